"""mini-ImageNet in small: four classes of six and two images, as files, as an archive and as a user meets them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import logging
import os
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, JpegImagePlugin

from cler.data import decoding, images, mini_imagenet
from cler.data.mini_imagenet import CACHE, MiniImageNet
from cler.errors import UsageError

IDS = ("n01", "n02", "n03", "n04")


def picture(size: tuple[int, int] = (84, 84), seed: int = 0) -> Image.Image:
    blocks = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(blocks).resize(size)


def jpeg(seed: int) -> bytes:
    picture(seed=seed).save(stream := io.BytesIO(), "JPEG")
    return stream.getvalue()


FILES = {
    f"{'train' if index < 6 else 'val'}/{name}/{name}{index:08}.jpg": jpeg(8 * number + index)
    for number, name in enumerate(IDS)
    for index in range(8)
}
LISTED = "".join(f"{hashlib.sha256(FILES[name]).hexdigest()}  {name}\n" for name in sorted(FILES))
TINY = replace(
    mini_imagenet.mini_imagenet,
    base_url="http://127.0.0.1:9/",
    wordnet_ids=IDS,
    train=6,
    test=2,
    sha256=hashlib.sha256(LISTED.encode()).hexdigest(),
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The images as the archive has them."""
    root = tmp_path_factory.mktemp("source")
    for name, content in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


@pytest.fixture
def root(source: Path, tmp_path: Path) -> Path:
    """The images laid out by hand."""
    return lay(source, tmp_path / "data" / "mini-imagenet")


def lay(source: Path, root: Path) -> Path:
    for file in source.rglob("*.jpg"):
        target = root / file.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
    return root


def pack(source: Path, site: Path) -> Path:
    """The archive, made as `git archive` does it."""
    site.mkdir(exist_ok=True)
    with tarfile.open(site / TINY.archive, "w:gz", pax_headers={"comment": "557e"}) as tar:
        tar.add(source, TINY.folder)
    return site / TINY.archive


@pytest.fixture
def site(tmp_path: Path, source: Path) -> Path:
    """A folder with the archive; `served` fetches from there."""
    pack(source, tmp_path / "site")
    return tmp_path / "site"


@pytest.fixture
def served(site: Path, serve: Callable[[Path], str]) -> MiniImageNet:
    return replace(TINY, base_url=serve(site))


def decoded(file: Path) -> np.ndarray:
    return np.asarray(Image.open(file)).transpose(2, 0, 1)


def assert_tiny(data: images.ImageData, source: Path) -> None:
    assert sorted(data.classes) == list(IDS)
    for split, found, labels, count in (
        ("train", data.train_images, data.train_labels, 6),
        ("val", data.test_images, data.test_labels, 2),
    ):
        assert labels.bincount().tolist() == [count] * 4
        for number, name in enumerate(data.classes):
            wanted = np.stack([decoded(file) for file in sorted((source / split / name).iterdir())])
            assert np.array_equal(found[labels == number].numpy(), wanted)


# -- the dataset ------------------------------------------------------------------------------------------------------


def test_class_numbers_are_numpy_s_permutation():
    """Its first three numbers are 26, 86 and 2, its last 44."""
    classes = mini_imagenet.mini_imagenet.classes
    assert [classes[number] for number in (26, 86, 2, 44)] == ["n01532829", "n01558993", "n01704323", "n13133613"]
    assert sorted(set(classes)) == list(mini_imagenet.mini_imagenet.wordnet_ids)
    assert len(classes) == 100


@pytest.mark.parametrize("place", [TINY.folder, "mini-imagenet", ""])
def test_every_place_is_read(source: Path, tmp_path: Path, place: str):
    lay(source, tmp_path / place)
    data = TINY.load(tmp_path)
    assert_tiny(data, source)
    assert (data.name, data.image_size, data.mean, data.std) == ("mini-imagenet", 84, (0.5,) * 3, (0.5,) * 3)
    status = TINY.check(tmp_path)
    assert (status.state, status.path) == ("present", tmp_path / place)


def test_the_copy_that_was_fetched_has_to_be_the_published_one(source: Path, tmp_path: Path):
    root = lay(source, tmp_path / TINY.folder)
    picture(seed=999).save(root / "val/n02/n0200000007.jpg")
    assert TINY.check(tmp_path).state == "damaged"
    with pytest.raises(UsageError, match=r"does not hold the images that were published .*: delete it and run"):
        TINY.load(tmp_path)
    assert not (root / CACHE).exists()


def test_a_folder_of_a_user_s_own_is_taken_as_it_is(source: Path, tmp_path: Path):
    root = lay(source, tmp_path / "anywhere")
    picture(seed=999).save(root / "val/n02/n0200000007.jpg")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mini-imagenet").symlink_to(root)
    for folder in (root, tmp_path / "data"):
        assert TINY.check(folder).state == "present"
        images = TINY.load(folder).test_images
        assert np.array_equal(images[2 * TINY.classes.index("n02") + 1], decoded(root / "val/n02/n0200000007.jpg"))


def test_a_pipe_in_the_place_of_the_pixels_is_not_waited_for(source: Path, root: Path):
    os.mkfifo(root / CACHE)
    assert_tiny(TINY.load(root.parent), source)


def test_what_an_operating_system_leaves_behind_is_no_image(source: Path, root: Path):
    for name in ("train/.DS_Store", "train/n01/Thumbs.db", "val/n02/._n0200000006.jpg", "train/list.csv"):
        (root / name).write_bytes(b"x")
    (root / "train/.git").mkdir()
    assert_tiny(TINY.load(root.parent), source)


def test_gray_images_become_colors(root: Path):
    file = root / "val/n03/n0300000006.jpg"
    picture().convert("L").save(file)
    data = TINY.load(root.parent)
    (image, _) = data.test_images[data.test_labels == data.classes.index("n03")]
    assert np.array_equal(image.numpy(), np.stack([np.asarray(Image.open(file))] * 3))


@pytest.mark.parametrize("made", [(), ("train",), ("n01",), ("images/train", "images/val")])
def test_missing_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: tuple[str, ...]):
    for name in made:
        (tmp_path / "mini-imagenet" / name).mkdir(parents=True)
    message = (
        f"mini-ImageNet is not in {tmp_path}: run `cler data get mini-imagenet --data-dir {tmp_path}`, look in another "
        f"data folder, or put its folders train and val in {tmp_path / 'mini-imagenet'} by hand"
    )
    with pytest.raises(UsageError) as raised:
        TINY.load(tmp_path)
    assert str(raised.value) == message
    assert TINY.check(tmp_path) == images.Status("missing", message, tmp_path)
    monkeypatch.setenv("CLER_DATA", str(tmp_path))
    assert "run `cler data get mini-imagenet`, look" in TINY.check(tmp_path).reason


# -- damage ------------------------------------------------------------------------------------------------------------


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-300])


def claim(width: int, height: int) -> Callable[[Path], None]:
    """Write another size into the header of a JPEG."""

    def change(file: Path) -> None:
        content = bytearray(file.read_bytes())
        start = content.index(b"\xff\xc0") + 5
        content[start : start + 4] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
        file.write_bytes(content)

    return change


def replace_by(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        file.unlink()
        make(file)

    return change


BROKEN_FILES = {
    "truncated": (cut, "is not a JPEG, or is incomplete"),
    "empty": (lambda file: file.write_bytes(b""), "is not a JPEG"),
    "a text": (lambda file: file.write_text("no picture"), "is not a JPEG"),
    "a PNG": (lambda file: picture().save(file, "PNG"), "is not a JPEG"),
    "another size": (lambda file: picture((84, 85)).save(file), "has 84×85 pixels instead of 84×84"),
    "a large claim": (claim(9000, 9000), "has 9000×9000 pixels instead of 84×84"),
    "a huge claim": (claim(65000, 65000), "is not a JPEG"),
    "too long": (lambda file: file.write_bytes(file.read_bytes() + bytes(100_000)), "bytes, more than 100000"),
    "a folder": (replace_by(Path.mkdir), "is not a file"),
    "a pipe": (replace_by(os.mkfifo), "is not a file"),
}


@pytest.mark.parametrize("kind", BROKEN_FILES)
def test_a_broken_file_is_named(root: Path, kind: str, monkeypatch: pytest.MonkeyPatch):
    change, says = BROKEN_FILES[kind]
    file = root / "val/n02/n0200000007.jpg"
    change(file)
    if "claim" in kind:
        for other in [*root.rglob("*.jpg")]:
            claim(9000, 9000)(other)  # whichever is the first
        monkeypatch.setattr(JpegImagePlugin.JpegImageFile, "load", lambda *_: pytest.fail("was decoded"))
        file = root / "train" / TINY.classes[0] / f"{TINY.classes[0]}{0:08}.jpg"
        change(file)
    status = TINY.check(root.parent)
    assert (status.state, status.path) == ("damaged", root)
    assert status.reason.startswith(f"{file} ")
    assert says in status.reason
    assert status.reason.endswith(": delete it and run `cler data get mini-imagenet`")
    assert not (root / CACHE).exists()


def remove_class(root: Path) -> None:
    for file in (root / "train/n03").iterdir():
        file.unlink()
    (root / "train/n03").rmdir()


@pytest.mark.parametrize(
    ("change", "named", "says"),
    [
        (remove_class, "train/n03", "has 0 images instead of 6"),
        (lambda root: (root / "val/n03/n0300000006.jpg").unlink(), "val/n03", "has 1 images instead of 2"),
        (lambda root: picture().save(root / "val/n03/more.jpg"), "val/n03", "has 3 images instead of 2"),
        (lambda root: (root / "train/cats").mkdir(), "train/cats", "is not a class of mini-ImageNet"),
        (lambda root: (root / "val/n05").mkdir(), "val/n05", "is not a class of mini-ImageNet"),
        (
            lambda root: (root / "val/n03/n0300000006.jpg").rename(root / "val/n03/n0300000000.jpg"),
            "val/n03/n0300000000.jpg",
            "is a training image too",
        ),
    ],
)
def test_a_wrong_layout_is_named(root: Path, change: Callable[[Path], object], named: str, says: str):
    change(root)
    with pytest.raises(UsageError) as raised:
        TINY.load(root.parent)
    assert str(raised.value) == f"{root / named} {says}: delete it and run `cler data get mini-imagenet`"
    assert TINY.check(root.parent).state == "damaged"


def test_a_file_that_cannot_be_read_is_not_called_damaged(root: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(path: Path, *_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(mini_imagenet, "read_bytes", refuse)
    with pytest.raises(UsageError, match=r"cannot read .*00000000.jpg \(Permission denied\)"):
        TINY.load(root.parent)


# -- the file of pixels ------------------------------------------------------------------------------------------------


def forbid_decoding(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(mini_imagenet, "_decode", lambda *_: pytest.fail("was decoded"))


def test_images_are_decoded_once(root: Path, source: Path, monkeypatch: pytest.MonkeyPatch):
    first = TINY.load(root.parent)
    assert sorted(file.name for file in root.iterdir()) == [CACHE, "train", "val"]
    forbid_decoding(monkeypatch)
    second = TINY.load(root.parent)
    assert_tiny(second, source)
    assert second.fingerprint() == first.fingerprint()
    second.train_images.zero_()  # what a user does to the tensors stays with them
    assert TINY.load(root.parent).fingerprint() == first.fingerprint()


def flip(position: int) -> Callable[[bytes], bytes]:
    return lambda content: content[:position] + bytes([content[position] ^ 1]) + content[position:][1:]


@pytest.mark.parametrize(
    "damage",
    [flip(3), flip(32), flip(99_999), lambda content: content[:-1], lambda content: content[:10], lambda content: b""],
    ids=["checksum", "first pixel", "some pixel", "truncated", "stump", "empty"],
)
def test_damaged_pixels_are_made_anew(root: Path, source: Path, damage: Callable[[bytes], bytes]):
    TINY.load(root.parent)
    whole = (root / CACHE).read_bytes()
    (root / CACHE).write_bytes(damage(whole))
    assert_tiny(TINY.load(root.parent), source)
    assert (root / CACHE).read_bytes() == whole


def test_a_changed_image_is_seen(root: Path):
    before = TINY.load(root.parent)
    file = root / "train/n01/n0100000000.jpg"
    picture(seed=999).save(file)
    after = TINY.load(root.parent)
    (changed,) = (after.train_images != before.train_images).flatten(1).any(1).nonzero().flatten().tolist()
    assert np.array_equal(after.train_images[changed].numpy(), decoded(file))


def test_images_that_changed_places_are_seen(root: Path):
    before = TINY.load(root.parent)
    for first, second in (("train/n01", "x"), ("train/n02", "train/n01"), ("x", "train/n02")):
        (root / first).rename(root / second)
    after = TINY.load(root.parent)
    assert after.fingerprint() != before.fingerprint()


def test_a_damaged_image_is_seen_though_its_pixels_are_kept(root: Path):
    TINY.load(root.parent)
    cut(root / "train/n01/n0100000000.jpg")
    assert TINY.check(root.parent).state == "damaged"


@pytest.mark.parametrize("place", ["_digest", "replace"])
def test_without_room_images_are_decoded_each_time_and_that_is_said_once(
    root: Path, source: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, place: str
):
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    owner = mini_imagenet.os if place == "replace" else decoding
    monkeypatch.setattr(owner, place, fail)
    for _ in range(2):
        assert_tiny(TINY.load(root.parent), source)
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("cler", logging.WARNING)
    assert record.message == (
        f"cannot keep the decoded images in {root / CACHE} (No space left on device): they are decoded each time"
    )
    assert sorted(file.name for file in root.iterdir()) == ["train", "val"]


# -- fetching ----------------------------------------------------------------------------------------------------------


def test_get_fetches_once(served: MiniImageNet, site: Path, source: Path, tmp_path: Path):
    seen: list[int] = []
    status = served.get(tmp_path / "new", lambda done, total: seen.append(done))
    assert (status.state, status.path) == ("present", tmp_path / "new" / TINY.folder)
    assert seen[-1] == (site / TINY.archive).stat().st_size
    assert_tiny(served.load(tmp_path / "new"), source)
    (site / TINY.archive).unlink()
    assert served.get(tmp_path / "new") == status


@pytest.mark.parametrize("place", [TINY.folder, "mini-imagenet"])
def test_get_repairs(served: MiniImageNet, source: Path, tmp_path: Path, place: str):
    root = lay(source, tmp_path / place)
    remove_class(root)
    cut(root / "val/n01/n0100000006.jpg")
    assert served.get(tmp_path).path == tmp_path / TINY.folder
    assert_tiny(served.load(tmp_path), source)


def test_an_archive_fetched_by_hand_is_unpacked(source: Path, tmp_path: Path):
    pack(source, tmp_path)
    assert TINY.check(tmp_path).state == "missing"
    assert TINY.get(tmp_path).state == "present"


@pytest.mark.parametrize("content", [b"", b"<html>", gzip.compress(os.urandom(9999))[:-9]])
def test_an_archive_that_is_not_whole_is_fetched_anew(served: MiniImageNet, tmp_path: Path, content: bytes):
    (tmp_path / TINY.archive).write_bytes(content)
    assert served.get(tmp_path).state == "present"


@pytest.mark.parametrize("damage", [lambda whole: whole[:-9], flip(-6), flip(5000), lambda _: b"", lambda _: b"<html>"])
def test_what_arrives_damaged_is_not_used(
    served: MiniImageNet, site: Path, tmp_path: Path, damage: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(mini_imagenet.download.time, "sleep", lambda _: None)
    (site / TINY.archive).write_bytes(damage((site / TINY.archive).read_bytes()))
    with pytest.raises(UsageError, match=r"cannot fetch .*wrong checksum"):
        served.get(tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []


def test_an_archive_of_something_else_is_told_of(tmp_path: Path):
    with tarfile.open(tmp_path / TINY.archive, "w:gz") as tar:
        tar.add(__file__, "test.py")
    with pytest.raises(UsageError, match=rf"^unpacked .*{TINY.archive}, but mini-ImageNet is not in"):
        TINY.get(tmp_path)


def test_an_archive_with_a_link_is_refused(source: Path, tmp_path: Path):
    bad = lay(source, tmp_path / "bad")
    (bad / "train/n01/n0100000000.jpg").unlink()
    (bad / "train/n01/n0100000000.jpg").symlink_to("/etc/passwd")
    pack(bad, tmp_path / "data")
    with pytest.raises(UsageError, match="will not unpack"):
        TINY.get(tmp_path / "data")
    assert [file.name for file in (tmp_path / "data").iterdir()] == [TINY.archive]


# -- the command line --------------------------------------------------------------------------------------------------


@pytest.fixture
def cler(cler_here, monkeypatch: pytest.MonkeyPatch, served: MiniImageNet):
    """The command, which downloads from a server of this test."""
    monkeypatch.setitem(images.DATASETS._entries, "mini-imagenet", served)
    return cler_here


SMALL = ("--dataset", "mini-imagenet", "--tasks", 2, "--width", 4, "--batch", 12, "--buffer", 12, "--workers", 1)


def test_from_nothing_to_a_trained_run(cler, tmp_path: Path):
    code, out, err = cler("run", "er-ace", *SMALL)
    assert (code, out) == (2, "")
    assert err.startswith("cler: mini-ImageNet is not in ")
    assert len(err.splitlines()) == 1
    code, out, _ = cler("data", "check", "mini-imagenet")
    assert (code, out.partition(" - ")[0]) == (1, "mini-imagenet: missing")
    for command in ("get", "check"):
        code, out, _ = cler("data", command, "mini-imagenet")
        assert (code, out.partition(" - ")[0]) == (0, "mini-imagenet: present")
    code, _, err = cler("run", "er-ace", "--regularizer", "jigsaw", *SMALL)
    assert code == 0, err
    (file,) = tmp_path.glob("runs/er-ace+jigsaw_mini-imagenet_m12*/seed-0/result.json")
    result = json.loads(file.read_text())
    assert result["complete"]
    assert (result["settings"]["lr"], result["settings"]["weight"]) == (0.03, 0.3)
    cut(tmp_path / "data" / TINY.folder / "val/n01/n0100000006.jpg")
    code, out, _ = cler("data", "check", "mini-imagenet")
    assert (code, out.partition(" - ")[0]) == (1, "mini-imagenet: damaged")
    code, _, err = cler("run", "er", *SMALL)
    assert code == 2
    assert "is not a JPEG, or is incomplete: delete it and run" in err


@pytest.mark.parametrize(("method", "regularizer"), [("xder", "rotation"), ("dualnet", "none")])
def test_networks_and_pretext_tasks_take_84_pixels(cler, root: Path, method: str, regularizer: str):
    code, _, err = cler("run", method, "--regularizer", regularizer, *SMALL)
    assert code == 0, err


def test_the_paper_s_table_counts_it_in(cler):
    arguments = ("reproduce", "table1", "--dataset", "mini-imagenet", "--dry-run", "--device", "cpu")
    code, out, err = cler(*arguments)
    assert code == 0
    assert "missing: mini-imagenet, buffer 8000: DualNet + CLER (rotation), 10 runs, time not known" in err
    assert "in all: 181 runs" in err
    assert "not in this version" not in out
