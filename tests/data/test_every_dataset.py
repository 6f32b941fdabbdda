"""Every kind of dataset on every stream with methods of every kind: trained and resumed to the bit, or refused."""

import numpy as np
import pytest
from torch.utils.data import Dataset

import photos
from cler import data
from cler.engine import train
from cler.errors import UsageError
from cler.promises.toy import make_short_run
from cler.promises.training import StopAt, Stopped, check_same, resumed
from cler.streams import STREAMS

REPRESENTATIVES = ("er-ace", "xder", "lwf-mc", "joint")
"""One that needs no tasks, one that needs their classes, one without a buffer, and Joint."""
OWN = {"long-tailed": {"imbalance": 2.0}}
"""Settings of streams, for few images."""


def arrays(channels, height=12, width=12, train=9, test=3):
    """Images of four classes, told by their brightness, N×H×W×C, and labels."""
    labels = np.arange(4).repeat(train + test)
    grain = np.random.default_rng(0).integers(0, 60, (len(labels), height, width, channels))
    images = (grain + 48 * labels[:, None, None, None]).astype(np.uint8)
    tested = np.arange(len(labels)) % (train + test) >= train
    return images[~tested], labels[~tested], images[tested], labels[tested]


class MapStyle(Dataset):
    """A dataset of PyTorch whose items are a picture and a label."""

    classes = photos.CLASSES

    def __init__(self, start, count):
        self.items = [(label, start + number) for number in range(count) for label in range(4)]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        label, number = self.items[index]
        return photos.picture(label, number, (12, 14)), label


def folder(root):
    photos.write_folder(root / "photos", fewer=1)
    return {"dataset": f"folder:{root / 'photos'}", "size": 12}


def folder_of_two_parts(root):
    kinds = {f"{number}.png": photos.KINDS["plain.png"] for number in range(12)}
    photos.write_folder(root / "train", kinds=kinds, fewer=1, size=(12, 12))
    photos.write_folder(root / "val", kinds=dict(list(kinds.items())[:2]), size=(12, 12), start=100)
    return {"dataset": f"folder:{root}"}


def folder_of_domains(root):
    kinds = {f"{number}.png": photos.KINDS["plain.png"] for number in range(8)}
    for start, name in enumerate(("day", "night")):
        photos.write_folder(root / name, kinds=kinds, size=(12, 12), start=20 * start)
    return {"dataset": f"domains:{root}"}


def npz(root, **shape):
    names = ("x_train", "y_train", "x_test", "y_test")
    np.savez(root / "arrays.npz", **dict(zip(names, arrays(**shape), strict=True)))
    return {"dataset": f"npz:{root / 'arrays.npz'}"}


def hugging_face(root):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list(photos.CLASSES))})
    parts = {}
    for name, start, count in (("train", 0, 9), ("test", 100, 3)):
        items = MapStyle(start, count)
        columns = {"image": [items[n][0] for n in range(len(items))], "label": [items[n][1] for n in range(len(items))]}
        parts[name] = datasets.Dataset.from_dict(columns, features=features)
    datasets.DatasetDict(parts).save_to_disk(root / "saved")
    return {"dataset": f"hf:{root / 'saved'}", "size": 12, "fit": "pad"}


def tiny_imagenet(root):
    photos.write_tiny_imagenet(root / "tiny-imagenet-200")
    return {"dataset": "tiny-imagenet"}


KINDS = {
    "folder": folder,
    "train-and-val": folder_of_two_parts,
    "domains": folder_of_domains,
    "npz": lambda root: npz(root, channels=3),
    "npz-gray": lambda root: npz(root, channels=1),
    "npz-wide": lambda root: npz(root, channels=3, width=16),
    "hf": hugging_face,
    "tiny-imagenet": tiny_imagenet,
    "digits": lambda root: {"dataset": "digits", "batch": 100},
    "arrays": lambda root: data.arrays(*arrays(3)),
    "torch": lambda root: data.torch(MapStyle(0, 9), MapStyle(100, 3), size=12),
}


@pytest.fixture(scope="module", params=KINDS)
def dataset(request, tmp_path_factory):
    """The kind, the images, and the settings that name them."""
    root = tmp_path_factory.mktemp(request.param)
    made = KINDS[request.param](root)
    if isinstance(made, data.ImageData):
        return request.param, made, {}
    reading = {name: value for name, value in made.items() if name not in ("dataset", "batch")}
    return request.param, data.load(made["dataset"], root, **reading), made


NEED_TASKS = ("xder", "lwf-mc")


def refusal(kind, stream, method):
    """What the one line says that refuses a cell; None where it trains."""
    if stream in ("blurry", "shuffled", "domain-incremental") and method in NEED_TASKS:
        return f"{stream} .*, which {method} needs; methods that do not: "
    if kind == "npz-wide" and stream == "domain-incremental":
        return "domains rotations: the transform of task 2 gives back .*, not uint8 images of the size "
    return None


@pytest.mark.parametrize("method", REPRESENTATIVES)
@pytest.mark.parametrize("stream", STREAMS)
def test_a_dataset_on_a_stream_with_a_method(dataset, stream, method, tmp_path):
    kind, images, named = dataset
    changes = {"batch": 8, "data": images, "stream": stream, **OWN.get(stream, {}), **named}

    def make(seed):
        return make_short_run(method, seed=seed, **changes)

    refused = refusal(kind, stream, method)
    if refused:
        with pytest.raises(UsageError, match=refused) as error:
            make(0)
        assert "\n" not in str(error.value)
        return
    whole = make(0)
    beside = [whole, next(run for run in map(make, range(1, 9)) if run.schedule == whole.schedule)]
    train(beside)
    assert all(run.complete and not run.failure for run in beside)
    last = len(whole.schedule) - 1
    with pytest.raises(Stopped):
        train([make(0)], control=StopAt(tmp_path, (last, 1)))
    alone = resumed(tmp_path, make(0))
    train([alone])
    check_same(alone, whole)


@pytest.mark.parametrize("method", ["dualnet", "mose"])
def test_networks_of_methods_take_gray_images(method):
    run = make_short_run(method, data=data.arrays(*arrays(1)), batch=8)
    train([run])
    assert run.complete
