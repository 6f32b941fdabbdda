"""Your own images in memory: arrays, and PyTorch datasets that are indexed by number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from cler.data.images import ImageData
from cler.data.inputs import Label, as_tensor, in_order, to_bytes, to_labels
from cler.data.reading import Reading, as_labels, image_data, split, usual_tasks, usual_view
from cler.errors import UsageError
from cler.pictures import channels_first, fitted, plain

CHANNELS = (1, 3)


class MapStyle(Protocol):
    """A PyTorch dataset that is indexed by number; each item is an image and its label."""

    def __len__(self) -> int:
        """How many items there are."""

    def __getitem__(self, index: int) -> Any:
        """An image and its label."""


def from_arrays(
    train_images: Any,
    train_labels: Any,
    test_images: Any = None,
    test_labels: Any = None,
    *,
    name: str = "arrays",
    classes: Sequence[str] | None = None,
    size: int | None = None,
    fit: str | None = None,
    test_share: float | None = None,
) -> ImageData:
    """Make a dataset from arrays, for `cler.train(dataset=...)`.

        cler.train("er-ace", dataset=cler.data.arrays(x_train, y_train, x_test, y_test), tasks=5)

    Args:
        train_images: uint8 from 0 to 255 or floats from 0 to 1, of shape N×H×W, N×C×H×W or N×H×W×C, C being 1 or 3; a
            numpy array, a tensor, or a list of images, which may be PIL images.
        train_labels: a string or a whole number for each.
        test_images: images to test on; without them, a share of each class is set aside.
        test_labels: their labels.
        name: the dataset's name in results.
        classes: names of the classes, in the order of their labels.
        size: pixels that each side of an image is brought to.
        fit: how: 'crop' (default), 'pad' or 'stretch'.
        test_share: the share of each class to test on (default: 0.2).
    """
    how = Reading.checked(size=size, fit=fit, test_share=test_share)
    if (test_images is None) != (test_labels is None):
        raise UsageError("test images and test labels go together: give both of them or neither")
    train = _pixels(train_images, how), to_labels(train_labels)
    test = None if test_images is None else (_pixels(test_images, how), to_labels(test_labels))
    return assembled(name, train, test, classes, how)


def from_torch(
    train: MapStyle,
    test: MapStyle | None = None,
    *,
    name: str = "torch",
    classes: Sequence[str] | None = None,
    size: int | None = None,
    fit: str | None = None,
    test_share: float | None = None,
) -> ImageData:
    """Make a dataset from map-style PyTorch datasets, whose items are an image and a label.

        cler.train("er-ace", dataset=cler.data.torch(train, test, size=64))

    Every item is read once. Images are PIL images, uint8 arrays or tensors, or floats from 0 to 1. Remove augmentation
    and normalization from the dataset's transforms; `cler` does both. The other arguments are those of
    `cler.data.arrays`; `classes` is by default the dataset's attribute of that name.
    """
    how = Reading.checked(size=size, fit=fit, test_share=test_share)
    listed = classes if classes is not None else getattr(train, "classes", None)
    return assembled(name, _items(train, how), None if test is None else _items(test, how), listed, how)


def _items(dataset: MapStyle, how: Reading) -> tuple[Tensor, list[Label]]:
    """The images and the labels of all items."""
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise UsageError(f"a dataset of PyTorch must have a length and be indexed by numbers, not {dataset!r}")
    images, labels = [], []
    for number in range(len(dataset)):
        item = dataset[number]
        if not isinstance(item, tuple | list) or len(item) != 2:
            given = f"{type(item).__name__} of {len(item)}" if isinstance(item, tuple | list) else type(item).__name__
            raise UsageError(f"item {number} of the dataset must be an image and its label, not {given}")
        images.append(_one(item[0], how))
        labels.append(item[1])
    return _stacked(images), to_labels(labels)


def assembled(
    name: str,
    train: tuple[Tensor, Sequence[Label]],
    test: tuple[Tensor, Sequence[Label]] | None,
    classes: Sequence[str] | None,
    how: Reading,
) -> ImageData:
    """Images and labels as a dataset; without test images, a share of each class is for the test."""
    for what, part in (("training", train), ("test", test)):
        if part is not None and len(part[0]) != len(part[1]):
            raise UsageError(f"{name}: there are {len(part[0])} {what} images and {len(part[1])} labels")
    found = in_order(dict.fromkeys(train[1]))
    if strange := set(test[1]).difference(found) if test else set():
        raise UsageError(f"{name}: the test label {in_order(strange)[0]!r} is of a class without images to train on")
    names = tuple(map(str, found)) if classes is None else _named(name, found, classes)
    numbers = {label: number for number, label in enumerate(found)}
    images, labels = train[0], as_labels([numbers[label] for label in train[1]])
    if test is None:
        numbered = [f"{label}/{number}" for number, label in enumerate(train[1])]
        of_test = torch.tensor(split(numbered, labels.tolist(), names, how.held_back), dtype=torch.bool)
        pair = (images[of_test], labels[of_test])
        images, labels = images[~of_test], labels[~of_test]
    elif how.test_share is not None:
        raise UsageError("has no effect: there are test images", "test_share")
    else:
        images, tested = _alike(images, test[0])
        pair = (tested, as_labels([numbers[label] for label in test[1]]))
    defaults = usual_tasks(len(names)) | usual_view(*images.shape[1:])
    return image_data(name, (images, labels), pair, names, defaults)


def _alike(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """Images of one size; gray ones are made like the others if those are in color."""
    if train.shape[2:] != test.shape[2:]:
        raise _of_different_sizes(train[0], test[0])
    channels = max(train.shape[1], test.shape[1])
    return train.expand(-1, channels, -1, -1).contiguous(), test.expand(-1, channels, -1, -1).contiguous()


def _of_different_sizes(*images: np.ndarray | Tensor) -> UsageError:
    told = " and ".join(f"{each.shape[2]}×{each.shape[1]}" for each in images)
    return UsageError(f"must be given, such as 64, for images of different sizes: there are {told}", "size")


def _named(name: str, found: Sequence[Label], classes: Sequence[str]) -> tuple[str, ...]:
    if list(found) == list(range(len(classes))):
        return tuple(map(str, classes))
    if not set(map(str, found)) - set(map(str, classes)) and len(found) == len(classes):
        return tuple(map(str, found))
    raise UsageError(
        f"{name}: {len(classes)} names of classes do not fit {len(found)} labels, which are {_few(found)}: "
        "give a name for each label, and labels from 0"
    )


def _few(labels: Sequence[Label]) -> str:
    return ", ".join(map(str, labels[:3])) + (", …" if len(labels) > 3 else "")


def _pixels(images: Any, how: Reading) -> Tensor:
    """Images as uint8, N×C×H×W: of one size, or fitted to one."""
    if not isinstance(images, list | tuple):
        whole = to_bytes(first_channels(as_tensor(images))).cpu()
        return whole if how.size is None else _stacked([_fitted(each.numpy(), how) for each in whole])
    return _stacked([_one(image, how) for image in images])


def _one(image: Any, how: Reading) -> np.ndarray:
    """An image as uint8, C×H×W; one of PIL in color unless it is gray and nothing of it is transparent."""
    if hasattr(image, "convert"):
        picture = plain(image)
        picture = picture.convert("L" if picture.mode in ("1", "L") else "RGB")
        return channels_first(picture if how.size is None else fitted(picture, how.size, how.fitted))
    pixels = to_bytes(first_channels(as_tensor(image).unsqueeze(0)))[0].cpu().numpy()
    return pixels if how.size is None else _fitted(pixels, how)


def _fitted(pixels: np.ndarray, how: Reading) -> np.ndarray:
    from PIL import Image

    assert how.size is not None
    picture = Image.fromarray(np.ascontiguousarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)))
    return channels_first(fitted(picture, how.size, how.fitted))


def first_channels(images: Tensor) -> Tensor:
    """Images as N×C×H×W."""
    given = "×".join(map(str, images.shape))
    if images.dim() == 3:
        images = images.unsqueeze(1)
    if images.dim() == 4 and images.shape[1] not in CHANNELS:
        images = images.permute(0, 3, 1, 2)
    if images.dim() != 4 or images.shape[1] not in CHANNELS or 0 in images.shape:
        raise UsageError(
            f"images must have the shape N×H×W, N×C×H×W or N×H×W×C with 1 or 3 channels C, not {given}; those of a "
            "cler.data.ImageData may have any number of channels"
        )
    return images.contiguous()


def _stacked(images: Iterable[np.ndarray]) -> Tensor:
    """Images of one size as a tensor; gray ones are made like the others where some are in color."""
    all_of_them = list(images)
    if not all_of_them:
        raise UsageError("there must be at least one image")
    channels = max(len(each) for each in all_of_them)
    same = [each if len(each) == channels else each.repeat(channels, axis=0) for each in all_of_them]
    strange = next((each for each in same if each.shape != same[0].shape), None)
    if strange is not None:
        raise _of_different_sizes(same[0], strange)
    return torch.from_numpy(np.stack(same))
