"""Arrays, files of arrays and datasets of PyTorch as datasets."""

import io
import re
import tracemalloc
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

import cler
from cler import data
from cler.data.reading import _normalization
from cler.errors import UsageError

LABELS = np.arange(40) % 4
GRAY = (np.random.default_rng(0).integers(0, 40, (40, 10, 12)) + 60 * LABELS[:, None, None]).astype(np.uint8)
COLOR = np.stack([GRAY, GRAY // 2, 255 - GRAY], axis=1)


@pytest.mark.parametrize(
    ("images", "wanted"),
    [
        (GRAY, GRAY[:, None]),
        (GRAY[:, None], GRAY[:, None]),
        (GRAY[..., None], GRAY[:, None]),
        (COLOR, COLOR),
        (COLOR.transpose(0, 2, 3, 1), COLOR),
        (torch.from_numpy(COLOR), COLOR),
        (COLOR / 255, COLOR),
        ([Image.fromarray(each.transpose(1, 2, 0)) for each in COLOR], COLOR),
        ([Image.fromarray(each) for each in GRAY], GRAY[:, None]),
    ],
    ids=["gray", "1 first", "1 last", "color", "last", "tensor", "floats", "PIL", "gray PIL"],
)
def test_arrays_of_every_form(images, wanted):
    found = data.arrays(images, LABELS, images, LABELS)
    assert np.array_equal(found.train_images.numpy(), wanted)
    assert np.array_equal(found.test_images.numpy(), wanted)
    assert found.train_labels.tolist() == LABELS.tolist()
    assert found.classes == ("0", "1", "2", "3")
    pixels = found.train_images.double().transpose(0, 1).flatten(1) / 255
    assert np.allclose(found.mean, pixels.mean(1), atol=1e-4)
    assert np.allclose(found.std, pixels.std(1, unbiased=False), atol=1e-4)


def test_normalization_takes_little_memory():
    """A dataset may fill most of it."""
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 200, (1000, 3, 32, 32), dtype=np.uint8))
    tracemalloc.start()
    mean, std = _normalization(images)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < images.nbytes / 3
    pixels = images.double().transpose(0, 1).flatten(1) / 255
    assert np.allclose(mean, pixels.mean(1), atol=1e-4)
    assert np.allclose(std, pixels.std(1, unbiased=False), atol=1e-4)


def test_labels_of_any_kind_and_a_share_to_test_on():
    names = np.array(["dog", "ant", "cow", "bee"])[LABELS]
    found = data.arrays(COLOR, names, test_share=0.3, name="animals")
    assert (found.name, found.classes) == ("animals", ("ant", "bee", "cow", "dog"))
    assert found.train_labels.bincount().tolist() == [7] * 4
    assert found.test_labels.bincount().tolist() == [3] * 4
    every = {image.tobytes(): name for image, name in zip(COLOR, names.tolist(), strict=True)}
    for image, label in zip(found.test_images.numpy(), found.test_labels.tolist(), strict=True):
        assert every[image.tobytes()] == found.classes[label]
    assert data.arrays(COLOR, LABELS + 5).classes == ("5", "6", "7", "8")
    assert data.arrays(COLOR, LABELS, classes="abcd").classes == ("a", "b", "c", "d")


def test_labels_that_are_no_unicode():
    assert data.arrays(GRAY, [("\udcff", "\ud800")[label % 2] for label in LABELS]).classes == ("\ud800", "\udcff")


def test_a_size_for_images_of_many():
    mixed = [*COLOR[:20], *COLOR[20:, :, :8]]
    with pytest.raises(UsageError, match=r"size must be given, .* there are 12×10 and 12×8"):
        data.arrays(mixed, LABELS)
    with pytest.raises(UsageError, match="fit has no effect without a size"):
        data.arrays(COLOR, LABELS, fit="pad")
    assert data.arrays(mixed, LABELS, size=6, fit="pad").train_images.shape == (32, 3, 6, 6)
    assert data.arrays(GRAY, LABELS, size=6).train_images.shape == (32, 1, 6, 6)


def test_defaults_fit_the_images():
    assert data.arrays(COLOR, LABELS).defaults == {"tasks": 2, "augment": "none"}
    tall, gray, color = (
        GRAY.repeat(2, axis=1),
        *(each.repeat(2, axis=-1).repeat(2, axis=-2) for each in (GRAY, COLOR)),
    )
    assert data.arrays(tall, LABELS).defaults == {"tasks": 2, "augment": "none"}
    assert data.arrays(gray, LABELS).defaults == {"tasks": 2, "augment": "crop"}
    assert data.arrays(color, LABELS).defaults["augment"] == "crop-flip"


@pytest.mark.parametrize(
    ("classes", "tasks"),
    [(2, 2), (3, 3), (4, 2), (6, 3), (7, None), (10, 5), (12, 4), (15, 5), (49, None), (50, 10), (100, 10), (200, 10)],
)
def test_a_number_of_tasks_that_divides_the_classes(classes, tasks):
    from cler.data.reading import usual_tasks

    assert usual_tasks(classes).get("tasks") == tasks


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((COLOR, LABELS[1:]), "there are 40 training images and 39 labels"),
        ((COLOR, LABELS, COLOR), "test images and test labels go together"),
        ((COLOR, LABELS, COLOR, LABELS + 1), "the test label 4 is of a class without images to train on"),
        ((COLOR.astype(int), LABELS), "images must be uint8 from 0 to 255, or floats from 0 to 1, not int64"),
        ((COLOR / 2, LABELS), "float images must lie from 0 to 1"),
        ((COLOR[0], 3), "labels must be a list"),
        ((GRAY[0], LABELS), "images must have the shape N×H×W, N×C×H×W or N×H×W×C with 1 or 3 channels C, not 10×12"),
        (
            (COLOR.repeat(2, 1)[:, :4].transpose(0, 2, 3, 1), LABELS),
            "with 1 or 3 channels C, not 40×10×12×4; those of a cler.data.ImageData may have any number",
        ),
        ((COLOR, LABELS * 1.0), "a label must be a string or a whole number"),
        ((COLOR, np.eye(1000)[LABELS].tolist()), r"a label must be a string or a whole number, not \[1.0, .{,40}\]$"),
        ((COLOR, LABELS, COLOR[:, :, 1:], LABELS), "size must be given, such as 64, .* there are 12×10 and 12×9$"),
        ((COLOR, LABELS * 0), "has 1 class: it needs at least two"),
        (([], []), "there must be at least one image"),
    ],
)
def test_arrays_that_are_no_dataset(arguments, says):
    with pytest.raises(UsageError, match=says) as raised:
        data.arrays(*arguments)
    assert "\n" not in str(raised.value)


def test_gray_images_to_test_on_are_made_like_the_others():
    found = data.arrays(COLOR, LABELS, GRAY, LABELS)
    assert np.array_equal(found.test_images.numpy(), GRAY[:, None].repeat(3, axis=1))
    assert data.arrays(GRAY, LABELS, COLOR, LABELS).train_images.shape == COLOR.shape


def test_names_of_classes_have_to_fit():
    with pytest.raises(UsageError, match="3 names of classes do not fit 4 labels, which are 0, 1, 2, …: "):
        data.arrays(COLOR, LABELS, classes=["a", "b", "c"])


class MapStyle(torch.utils.data.Dataset):
    def __init__(self, count, item):
        self.count, self.item = count, item

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.item(index)


def test_a_dataset_of_pytorch():
    train = MapStyle(40, lambda index: (torch.from_numpy(COLOR[index] / 255), torch.tensor(LABELS[index])))
    test = MapStyle(8, lambda index: (Image.fromarray(COLOR[index].transpose(1, 2, 0)), int(LABELS[index])))
    train.classes = ["w", "x", "y", "z"]
    found = data.torch(train, test)
    assert np.array_equal(found.train_images.numpy(), COLOR)
    assert np.array_equal(found.test_images.numpy(), COLOR[:8])
    assert (found.name, found.classes) == ("torch", ("w", "x", "y", "z"))
    assert len(data.torch(train).test_labels) == 8
    with pytest.raises(UsageError, match="item 0 of the dataset must be an image and its label, not Tensor"):
        data.torch(MapStyle(3, lambda index: torch.zeros(3, 4, 4)))
    with pytest.raises(UsageError, match="item 0 of the dataset must be an image and its label, not tuple of 3"):
        data.torch(MapStyle(3, lambda index: (torch.zeros(3, 4, 4), 0, 0)))
    with pytest.raises(UsageError, match="must have a length and be indexed by numbers"):
        data.torch(iter([]))


def test_runs_on_arrays_and_on_a_file_of_them_are_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = {"width": 2, "batch": 8, "buffer": 8, "replay_batch": 8, "device": "cpu", "workers": 1, "verbose": False}
    np.savez("mine.npz", x_train=COLOR, y_train=LABELS, x_test=COLOR[:8], y_test=LABELS[:8])
    given = cler.train("er-ace", dataset=data.arrays(COLOR, LABELS, COLOR[:8], LABELS[:8]), **small)
    named = cler.train("er-ace", dataset="npz:mine.npz", **small)
    assert given.settings | {"dataset": "npz:mine.npz"} == named.settings
    assert given.settings["tasks"] == 2
    assert np.array_equal(given.accuracy["class_il"], named.accuracy["class_il"], equal_nan=True)


# -- files of arrays ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [("x_train", "y_train", "x_test", "y_test"), ("train_images", "train_labels", "test_images", "test_labels")],
)
def test_a_file_of_arrays(tmp_path, names):
    held = dict(zip(names, (COLOR, LABELS[:, None], COLOR[:8], LABELS[:8]), strict=True))
    np.savez_compressed(tmp_path / "mine.npz", **held, classes=np.array(list("abcd")))
    found = data.load(f"npz:{tmp_path / 'mine.npz'}")
    assert np.array_equal(found.train_images.numpy(), COLOR)
    assert np.array_equal(found.test_images.numpy(), COLOR[:8])
    assert found.classes == ("a", "b", "c", "d")
    status = data.check(f"npz:{tmp_path / 'mine.npz'}")
    assert (status.state, status.reason[:43]) == ("present", "40 training and 8 test images in 4 classes,")


def test_a_file_without_test_images(tmp_path):
    np.savez(tmp_path / "mine.npz", images=GRAY, labels=LABELS)
    name = f"npz:{tmp_path / 'mine.npz'}"
    assert len(data.load(name, test_share=0.5).test_labels) == 20
    assert data.load(name, size=6).train_images.shape == (32, 1, 6, 6)


def save_one(path, array):
    with path.open("wb") as file:
        np.save(file, array)


class Exploding:
    def __reduce__(self):
        return pytest.fail, ("was unpickled",)


@pytest.mark.parametrize(
    ("write", "state", "says"),
    [
        (lambda path: None, "missing", "cannot read .*mine.npz: No such file"),
        (lambda path: path.write_bytes(b"x" * 99), "damaged", "cannot be read as a file of np.savez"),
        (lambda path: path.write_bytes(b"PK\3\4"), "damaged", "cannot be read as a file of np.savez"),
        (lambda path: np.savez(path, a=COLOR, b=LABELS), "damaged", "has the arrays a, b, not x_train, y_train, "),
        (lambda path: save_one(path, COLOR), "damaged", "holds one array: save images and labels together"),
        (
            lambda path: np.savez(path, x=np.array([Exploding()] * 4), y=LABELS[:4]),
            "damaged",
            "cannot be read as a file of np.savez",
        ),
    ],
    ids=["missing", "noise", "stump", "other names", "one array", "pickled"],
)
def test_files_that_are_no_dataset(tmp_path, write, state, says):
    path = tmp_path / "mine.npz"
    write(path)
    with pytest.raises(UsageError, match=says) as raised:
        data.load(f"npz:{path}")
    assert "\n" not in str(raised.value)
    assert data.check(f"npz:{path}").state == state


@pytest.mark.parametrize("kind", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_damaged_file_of_arrays_however_it_is_compressed(tmp_path, kind):
    path = tmp_path / "mine.npz"
    with zipfile.ZipFile(path, "w", kind) as archive:
        for name, array in (("x", COLOR), ("y", LABELS)):
            np.save(stream := io.BytesIO(), array)
            archive.writestr(f"{name}.npy", stream.getvalue())
    assert len(data.load(f"npz:{path}").train_labels) == 32
    whole = bytearray(path.read_bytes())
    whole[300:320] = bytes(20)
    path.write_bytes(whole)
    with pytest.raises(
        UsageError, match=r"mine\.npz cannot be read as a file|cannot read .*mine\.npz: Invalid data stream"
    ):
        data.load(f"npz:{path}")


def forged_array(shape, kind="|u1", content=bytes(8)):
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + content


@pytest.mark.parametrize(
    "forged",
    [
        {"x": forged_array("(-8, 8, 8)")},
        {"x": forged_array("(9223372036854775807,)")},
        {"x": forged_array("(99999999999999999999999, 8)")},
        {"x": forged_array("(True, 8, 8)")},
        {"y": forged_array("(2,)", "<U1", b"\xff\xff\xff\x7f" * 2)},
        {"y": forged_array("(2,)", "<U1", b"\0\xd8\0\0" * 2)},
        {"classes": forged_array("(2,)", "<f8", bytes(16))},
        {"classes": forged_array("()", "<U1", b"a\0\0\0")},
        {"encrypted": b""},
    ],
    ids=lambda forged: str(forged)[-90:],
)
def test_forged_arrays_are_refused_in_one_line(tmp_path, forged):
    path = tmp_path / "mine.npz"
    with zipfile.ZipFile(path, "w") as file:
        for name, content in ({"x": forged_array("(2, 2, 2)"), "y": forged_array("(2,)")} | forged).items():
            file.writestr(f"{name}.npy", content)
    if "encrypted" in forged:
        flagged = re.sub(rb"(PK\x03\x04..|PK\x01\x02....).", b"\\1\x01", path.read_bytes(), flags=re.DOTALL)
        path.write_bytes(flagged)
    assert data.images.find(f"npz:{path}").defaults is not None
    with pytest.raises(UsageError) as raised:
        data.load(f"npz:{path}")
    assert "\n" not in str(raised.value)
    assert data.check(f"npz:{path}").state == "damaged"
