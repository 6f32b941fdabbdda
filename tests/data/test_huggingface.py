"""Datasets of Hugging Face: saved in a folder, in the package's own cache, or missing."""

import io
import json
import shutil
import sys

import numpy as np
import pytest
from PIL import Image

import photos
from cler import data
from cler.config.making import make_settings
from cler.config.settings import Settings
from cler.data import huggingface
from cler.errors import UsageError

datasets = pytest.importorskip("datasets")
FEATURES = {"image": datasets.Image(), "label": datasets.ClassLabel(names=list(photos.CLASSES))}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """The package's cache in the test's folder."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    huggingface._loaded.cache_clear()


def rows(count, start=0, labels=range(4), **features):
    columns = {
        "image": [photos.picture(label, start + number, (9, 9)) for number in range(count) for label in range(4)],
        "label": [label for _ in range(count) for label in labels],
    }
    return datasets.Dataset.from_dict(columns, features=datasets.Features(FEATURES | features))


def load(tmp_path, **reading):
    return data.load(f"hf:{tmp_path / 'saved'}", tmp_path, **reading)


@pytest.mark.parametrize("test", ["test", "validation", None])
def test_a_copy_in_a_folder(tmp_path, test):
    parts = {"train": rows(5)} | ({test: rows(2, 50)} if test else {})
    (datasets.DatasetDict(parts) if test else parts["train"]).save_to_disk(tmp_path / "saved")
    found = load(tmp_path)
    assert found.classes == photos.CLASSES
    if test:
        assert np.array_equal(found.test_images[0].permute(1, 2, 0).numpy(), np.asarray(photos.picture(0, 50, (9, 9))))
        assert len(found.train_labels) == 20
    assert found.test_labels.bincount().tolist() == [2 if test else 1] * 4
    assert data.check(f"hf:{tmp_path / 'saved'}", tmp_path).state == "present"


def test_labels_that_are_strings(tmp_path):
    names = ["dog", "ant", "cow", "bee"]
    rows(5, labels=names, label=datasets.Value("string")).save_to_disk(tmp_path / "saved")
    assert load(tmp_path).classes == ("ant", "bee", "cow", "dog")


@pytest.mark.parametrize("secret", [-1, None])
def test_a_split_whose_labels_are_secret_is_passed_over(tmp_path, secret):
    parts = {"train": rows(5), "validation": rows(3, 50), "test": rows(2, 90, labels=[secret] * 4)}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved")
    assert load(tmp_path).test_labels.bincount().tolist() == [3] * 4
    del parts["validation"]
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved")
    assert load(tmp_path).test_labels.bincount().tolist() == [1] * 4


def test_classes_that_do_not_occur_are_left_out(tmp_path):
    """As in a dataset of which somebody has chosen some classes."""
    rows(5).filter(lambda row: row["label"] != 1).save_to_disk(tmp_path / "saved")
    found = load(tmp_path)
    assert found.classes == ("apple", "cup", "door")
    assert found.train_labels.bincount().tolist() == [4] * 3
    assert make_settings(dataset=f"hf:{tmp_path / 'saved'}").tasks == 3


def test_a_changed_copy_is_noticed(tmp_path):
    rows(5).save_to_disk(tmp_path / "saved")
    before = load(tmp_path).fingerprint()
    rows(5, start=7).save_to_disk(tmp_path / "saved")
    assert load(tmp_path).fingerprint() != before


def test_a_broken_picture_is_named_by_its_row(tmp_path):
    stored = [{"bytes": b"x" if number == 7 else png(number), "path": None} for number in range(20)]
    columns = {"image": stored, "label": [number % 4 for number in range(20)]}
    datasets.Dataset.from_dict(columns, features=datasets.Features(FEATURES)).save_to_disk(tmp_path / "saved")
    with pytest.raises(UsageError, match=r"1 of 20 cannot be read, train/7 \(it is no image\)"):
        load(tmp_path)
    assert load(tmp_path, skip_broken=True).train_labels.bincount().tolist() == [4, 4, 4, 3]


@pytest.mark.parametrize("size", [None, 8])
def test_a_row_without_a_picture_is_named(tmp_path, size):
    columns = {
        "image": [None if number == 7 else {"bytes": png(number), "path": None} for number in range(20)],
        "label": [number % 4 for number in range(20)],
    }
    datasets.Dataset.from_dict(columns, features=datasets.Features(FEATURES)).save_to_disk(tmp_path / "saved")
    with pytest.raises(UsageError, match=r"1 of 20 cannot be read, train/7 \(it is no image\)"):
        load(tmp_path, size=size)
    assert load(tmp_path, size=size, skip_broken=True).train_labels.bincount().tolist() == [4, 4, 4, 3]


def test_labels_that_are_lists_are_refused_in_one_line(tmp_path):
    kind = datasets.Sequence(datasets.Value("int64"))
    rows(2, labels=[[0], [1], [2], [3]], label=kind).save_to_disk(tmp_path / "saved")
    assert make_settings(dataset=f"hf:{tmp_path / 'saved'}").tasks == Settings.tasks
    with pytest.raises(UsageError, match=r"a label must be a string or a whole number, not \[0\]"):
        load(tmp_path)


def png(number):
    photos.picture(number % 4, number, (9, 9)).save(stream := io.BytesIO(), "PNG")
    return stream.getvalue()


def test_a_folder_of_files_and_the_cache_of_the_package(tmp_path, capsys):
    """The package makes a dataset of files in its cache; one that was downloaded lies there in the same way."""
    kinds = {f"{n}.png": photos.KINDS["plain.png"] for n in range(5)}
    photos.write_folder(tmp_path / "saved/train", kinds=kinds, size=(9, 9))
    found = load(tmp_path)
    assert found.classes == photos.CLASSES
    assert found.train_labels.bincount().tolist() == [4] * 4
    assert capsys.readouterr() == ("", "")
    (made,) = (path.parent for path in (tmp_path / "cache").rglob("dataset_info.json"))
    downloaded = tmp_path / "cache/nobody___animals/default/0.0.0" / made.name
    shutil.copytree(made, downloaded)
    (downloaded / "saved-train.arrow").rename(downloaded / "animals-train.arrow")
    about = json.loads((downloaded / "dataset_info.json").read_text())
    (downloaded / "dataset_info.json").write_text(json.dumps(about | {"dataset_name": "animals"}))
    assert data.load("hf:nobody/animals", tmp_path).fingerprint() == found.fingerprint()
    assert data.load("hf:nobody/animals:default", tmp_path).fingerprint() == found.fingerprint()


def test_what_is_nowhere_is_refused_at_once(monkeypatch, tmp_path):
    import socket

    monkeypatch.setattr(socket, "create_connection", lambda *_: pytest.fail("asked a server"))
    with pytest.raises(UsageError, match=r"hf:nobody/nothing cannot be loaded .*: run `cler data get hf:nobody"):
        data.load("hf:nobody/nothing", tmp_path)
    assert data.check("hf:nobody/nothing", tmp_path).state == "missing"


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"text": ["a", "b"], "label": [0, 1]}, "needs one column of images, and has none"),
        ({"image": [Image.new("L", (9, 9))] * 2, "kind": [0, 1]}, "needs a column of labels, called label or labels"),
    ],
)
def test_datasets_without_images_or_labels(tmp_path, columns, says):
    datasets.Dataset.from_dict(columns).save_to_disk(tmp_path / "saved")
    with pytest.raises(UsageError, match=says):
        load(tmp_path)


def test_splits_without_one_to_train_on(tmp_path):
    datasets.DatasetDict({"left": rows(1), "right": rows(1)}).save_to_disk(tmp_path / "saved")
    with pytest.raises(UsageError, match="has no split called train, but left, right"):
        load(tmp_path)


def test_without_the_package(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UsageError, match=r"^dataset hf:NAME needs the package datasets .*: pip install datasets$"):
        data.load("hf:mnist", tmp_path)
