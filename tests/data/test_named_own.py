"""Tiny-ImageNet in its own layout, and scikit-learn's digits."""

import hashlib
import sys
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

import photos
from cler import data
from cler.config.making import make_settings
from cler.data import digits
from cler.data.images import find
from cler.data.tiny_imagenet import tiny_imagenet
from cler.errors import UsageError

LAYOUT = "tiny-imagenet-200"


@pytest.fixture
def root(tmp_path):
    photos.write_tiny_imagenet(tmp_path / LAYOUT)
    return tmp_path / LAYOUT


def test_tiny_imagenet_in_its_layout(root):
    found = data.load("tiny-imagenet", root.parent)
    assert found.classes == ("n04", "n02", "n01", "n03")
    assert found.train_labels.tolist() == [label for label in range(4) for _ in range(9)]
    assert found.test_labels.bincount().tolist() == [3] * 4
    name = dict(line.split("\t")[:2] for line in (root / "val/val_annotations.txt").read_text().splitlines())
    files = sorted((root / "val/images").iterdir())
    for image, label, file in zip(found.test_images, found.test_labels, files, strict=True):
        assert np.array_equal(image.permute(1, 2, 0).numpy(), np.asarray(Image.open(file)))
        assert found.classes[label] == name[file.name]
    assert data.load("tiny-imagenet", root).fingerprint() == found.fingerprint()
    assert make_settings(dataset="tiny-imagenet").tasks == 10
    (root / "wnids.txt").unlink()
    assert data.load("tiny-imagenet", root.parent).classes == ("n01", "n02", "n03", "n04")


def test_tiny_imagenet_that_is_not_here(tmp_path):
    status = data.check("tiny-imagenet", tmp_path)
    assert status.state == "missing"
    assert status.reason.startswith(f"Tiny-ImageNet is not in {tmp_path}: run `cler data get tiny-imagenet --data-dir ")
    with pytest.raises(UsageError, match="Tiny-ImageNet is not in"):
        data.load("tiny-imagenet", tmp_path)


def test_tiny_imagenet_with_a_test_image_of_no_class(root):
    photos.picture(0, 0, (12, 12)).save(root / "val/images/more.JPEG")
    with pytest.raises(UsageError, match=r"more.JPEG has no line in .*val_annotations.txt"):
        data.load("tiny-imagenet", root.parent)


@pytest.fixture
def served(root, tmp_path, serve):
    """The dataset, which is fetched from a server of this test."""
    (tmp_path / "site").mkdir()
    archive = tmp_path / "site" / f"{LAYOUT}.zip"
    with zipfile.ZipFile(archive, "w") as held:
        for path in sorted(root.rglob("*")):
            held.write(path, path.relative_to(root.parent))
    md5 = hashlib.md5(archive.read_bytes(), usedforsecurity=False).hexdigest()
    return replace(tiny_imagenet, url=f"{serve(tmp_path / 'site')}{LAYOUT}.zip", md5=md5)


def test_tiny_imagenet_is_fetched_once(served, root, tmp_path):
    seen = []
    status = served.get(tmp_path / "new", lambda done, total: seen.append(done))
    assert status.state == "present"
    assert seen[-1] == (tmp_path / "site" / f"{LAYOUT}.zip").stat().st_size
    assert served.load(tmp_path / "new").fingerprint() == served.load(root.parent).fingerprint()
    (tmp_path / "site" / f"{LAYOUT}.zip").unlink()
    assert served.get(tmp_path / "new") == status


@pytest.mark.parametrize(
    ("name", "says"),
    [("../out.txt", "not a plain file inside it"), ("/out.txt", "not a plain file inside it"), ("link", "not a plain")],
)
def test_an_archive_that_reaches_out_is_refused(tmp_path, name, says):
    from cler.data.unpack import extract_zip

    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as held:
        member = zipfile.ZipInfo(name)
        member.external_attr = (0o120777 if name == "link" else 0o100644) << 16
        held.writestr(member, "/etc/passwd")
    with pytest.raises(UsageError, match=f"will not unpack .*{says}"):
        extract_zip(tmp_path / "bad.zip", tmp_path / "to")
    assert list((tmp_path / "to").iterdir()) == []


@pytest.mark.parametrize(
    ("limits", "says"), [({"limit": 5}, "unpacks to more than 5 bytes"), ({"members": 1}, "holds more than 1 files")]
)
def test_an_archive_that_is_too_large_is_refused(tmp_path, limits, says):
    from cler.data.unpack import extract_zip

    with zipfile.ZipFile(tmp_path / "large.zip", "w") as held:
        held.writestr("a", "123")
        held.writestr("b", "123")
    with pytest.raises(UsageError, match=f"will not unpack .*{says}"):
        extract_zip(tmp_path / "large.zip", tmp_path / "to", **limits)
    (tmp_path / "large.zip").write_bytes(b"x")
    with pytest.raises(UsageError, match="will not unpack"):
        extract_zip(tmp_path / "large.zip", tmp_path / "to")


# -- digits ------------------------------------------------------------------------------------------------------------


def test_the_digits_are_those_of_scikit_learn():
    sklearn = pytest.importorskip("sklearn.datasets")
    real = sklearn.load_digits()
    found = data.load("digits")
    images = np.concatenate([found.train_images, found.test_images])
    assert images.shape == (1797, 1, 8, 8)
    ours = {
        image.tobytes(): label for image, label in zip(images, [*found.train_labels, *found.test_labels], strict=True)
    }
    theirs = np.rint(real.images * 255 / 16).astype(np.uint8)
    assert {image.tobytes(): label for image, label in zip(theirs, real.target.tolist(), strict=True)} == ours
    assert (found.test_labels.bincount() / (found.train_labels.bincount() + found.test_labels.bincount())).mean() < 0.21


def test_runs_on_digits_do_not_mirror_them():
    settings = make_settings(dataset="digits")
    assert (settings.tasks, settings.augment) == (5, "none")


def test_digits_that_are_not_here(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(UsageError, match="the digits come with scikit-learn, which is not installed here"):
        data.load("digits")
    assert data.check("digits").state == "missing"
    (tmp_path / "digits.csv.gz").write_bytes(b"x")
    monkeypatch.setattr(digits, "_file", lambda: tmp_path / "digits.csv.gz")
    assert find("digits").check(tmp_path).state == "damaged"


def test_a_path_that_results_could_not_name_is_refused_in_one_line(tmp_path):
    with pytest.raises(UsageError, match="dataset must be UTF-8, for results to name it"):
        make_settings(dataset=f"folder:{tmp_path}/\udcff")
