from __future__ import annotations

import hashlib
import pickle
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cler.data import cifar, download
from cler.data.cifar import Cifar, Layout, Member
from cler.errors import DamagedError, UsageError
from hostile import alter, truncate

IMAGES = np.random.default_rng(0).integers(0, 256, (12, 3072), dtype=np.uint8)
COARSE = np.array([5, 6, 7] * 4, dtype=np.uint8)
FINE = np.array([0, 1, 2, 3] * 3, dtype=np.uint8)
NUMPY_MODULES = (b"numpy._core.multiarray", b"numpy.core.multiarray")


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def binary(indices: slice) -> bytes:
    return np.column_stack([COARSE[indices], FINE[indices], IMAGES[indices]]).tobytes()


def pickled(indices: slice) -> bytes:
    batch = {b"data": IMAGES[indices], b"fine_labels": FINE[indices].tolist(), b"batch_label": b"training"}
    return pickle.dumps(batch, protocol=3)


def layout(folder: str, contents: dict[str, bytes], parse: Callable[[bytes], cifar.Arrays]) -> Layout:
    *train, test = (Member(name, sha256(content), len(content)) for name, content in contents.items())
    return Layout(f"{folder}.tar.gz", "", folder, tuple(train), (test,), parse)


BINARY_FILES = {
    "train_1.bin": binary(slice(0, 6)),
    "train_2.bin": binary(slice(6, 9)),
    "test.bin": binary(slice(9, 12)),
}
PYTHON_FILES = {"train": pickled(slice(0, 9)), "test": pickled(slice(9, 12))}
TINY = Cifar(
    name="tiny",
    title="TINY-4",
    description="",
    base_url="http://127.0.0.1:9/",
    layouts=(
        layout("tiny-binary", BINARY_FILES, cifar.binary_records(label_bytes=2)),
        layout("tiny-python", PYTHON_FILES, cifar.pickled_batch(b"fine_labels")),
    ),
    classes=("a", "b", "c", "d"),
    mean=(0.5, 0.5, 0.5),
    std=(0.2, 0.2, 0.2),
)


def write(folder: Path, contents: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return folder


def with_archive(folder: Path, source: Path) -> Cifar:
    """The tiny dataset, its binary archive lying in `folder`."""
    write(source / "tiny-binary", BINARY_FILES)
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / "tiny-binary.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(source / "tiny-binary", "tiny-binary")
    first, second = TINY.layouts
    return replace(TINY, layouts=(replace(first, archive_md5=download.file_md5(archive)), second))


@pytest.fixture
def served(tmp_path: Path, serve: Callable[[Path], str]) -> Cifar:
    """The tiny dataset, its archive to be fetched from the folder `site`."""
    return replace(with_archive(tmp_path / "site", tmp_path / "source"), base_url=serve(tmp_path / "site"))


def assert_tiny(data: cifar.ImageData) -> None:
    images = torch.from_numpy(IMAGES).reshape(12, 3, 32, 32)
    labels = torch.from_numpy(FINE.astype(np.int64))
    assert torch.equal(data.train_images, images[:9])
    assert torch.equal(data.test_images, images[9:])
    assert torch.equal(data.train_labels, labels[:9])
    assert torch.equal(data.test_labels, labels[9:])
    assert (data.name, data.classes) == ("tiny", TINY.classes)


@pytest.mark.parametrize(
    ("place", "contents"),
    [("tiny-binary", BINARY_FILES), ("tiny-python", PYTHON_FILES), ("", BINARY_FILES), ("", PYTHON_FILES)],
    ids=["binary", "python", "binary directly", "python directly"],
)
def test_every_place_is_read(tmp_path: Path, place: str, contents: dict[str, bytes]):
    write(tmp_path / place, contents)
    assert_tiny(TINY.load(tmp_path))
    status = TINY.check(tmp_path)
    assert (status.state, status.path) == ("present", tmp_path / place)


def test_binary_is_preferred(tmp_path: Path):
    write(tmp_path / "tiny-python", PYTHON_FILES)
    write(tmp_path / "tiny-binary", BINARY_FILES)
    assert TINY.check(tmp_path).path == tmp_path / "tiny-binary"


def test_pixels_are_planes_of_rows():
    content = bytes([7]) + bytes([10] * 32 + [11] * 992 + [20] * 1024 + [30] * 1024)
    images, labels = cifar.binary_records(label_bytes=1)(content)
    assert labels.tolist() == [7]
    assert images[0, :, 0, 5].tolist() == [10, 20, 30]
    assert images[0, :, 1, 5].tolist() == [11, 20, 30]


def test_records_that_are_not_whole_are_refused(tmp_path: Path):
    content = BINARY_FILES["test.bin"][:-1]
    files = dict.fromkeys(BINARY_FILES, content)
    cut = replace(TINY, layouts=(layout("tiny-binary", files, cifar.binary_records(label_bytes=2)),))
    write(tmp_path / "tiny-binary", files)
    with pytest.raises(UsageError, match=f"a file of {len(content)} bytes does not hold whole images"):
        cut.load(tmp_path)


def test_missing_says_what_to_do(tmp_path: Path):
    message = (
        f"TINY-4 is not in {tmp_path}: run `cler data get tiny --data-dir {tmp_path}`, look in another data folder, "
        f"or fetch http://127.0.0.1:9/tiny-binary.tar.gz by hand and put it in {tmp_path}"
    )
    with pytest.raises(UsageError) as raised:
        TINY.load(tmp_path)
    assert str(raised.value) == message
    status = TINY.check(tmp_path)
    assert (status.state, status.reason) == ("missing", message)


@pytest.mark.parametrize(
    ("damage", "says"), [(truncate, "bytes instead of"), (alter, "was altered"), (Path.unlink, "is missing")]
)
@pytest.mark.parametrize("file", ["tiny-binary/train_2.bin", "tiny-binary/test.bin", "tiny-python/train"])
def test_damaged_file_is_named(tmp_path: Path, damage: Callable[[Path], None], says: str, file: str):
    folder = file.split("/")[0]
    write(tmp_path / folder, BINARY_FILES if folder == "tiny-binary" else PYTHON_FILES)
    damage(tmp_path / file)
    with pytest.raises(UsageError, match=says) as raised:
        TINY.load(tmp_path)
    message = str(raised.value)
    assert str(tmp_path / file) in message
    assert message.endswith(": delete it and run `cler data get tiny`")
    assert TINY.check(tmp_path).state == "damaged"
    assert TINY.check(tmp_path).reason == message


def test_truncated_file_is_found_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path, {"test.bin": BINARY_FILES["test.bin"][:-1]})
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail("was read"))
    with pytest.raises(DamagedError, match="9221 bytes instead of 9222"):
        TINY.layouts[0].test[0].read(tmp_path)


def test_unreadable_file_is_a_usage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path / "tiny-binary", BINARY_FILES)

    def refuse(path: Path, *_: object) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(cifar, "read_bytes", refuse)
    with pytest.raises(UsageError, match=r"cannot read .*train_1.bin \(Permission denied\)"):
        TINY.load(tmp_path)


def test_archive_is_unpacked_on_load(tmp_path: Path):
    tiny = with_archive(tmp_path / "data", tmp_path / "source")
    status = tiny.check(tmp_path / "data")
    assert (status.state, status.path) == ("present", tmp_path / "data/tiny-binary.tar.gz")
    assert not (tmp_path / "data/tiny-binary").exists()
    assert_tiny(tiny.load(tmp_path / "data"))
    assert_tiny(tiny.load(tmp_path / "data"))
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["tiny-binary", "tiny-binary.tar.gz"]


def test_damaged_archive_is_not_unpacked(tmp_path: Path):
    tiny = with_archive(tmp_path / "data", tmp_path / "source")
    alter(tmp_path / "data/tiny-binary.tar.gz")
    with pytest.raises(UsageError, match=r"tiny-binary.tar.gz is truncated or altered.*cler data get tiny"):
        tiny.load(tmp_path / "data")
    assert tiny.check(tmp_path / "data").state == "damaged"
    assert not (tmp_path / "data/tiny-binary").exists()


def test_get_fetches_once(tmp_path: Path, served: Cifar, monkeypatch: pytest.MonkeyPatch):
    seen: list[int] = []
    status = served.get(tmp_path / "data", lambda done, total: seen.append(done))
    assert (status.state, status.path) == ("present", tmp_path / "data/tiny-binary")
    assert seen
    assert_tiny(served.load(tmp_path / "data"))
    monkeypatch.setattr(download, "fetch", lambda *_: pytest.fail("fetched again"))
    assert served.get(tmp_path / "data") == status


@pytest.mark.parametrize("damage", [truncate, alter, Path.unlink])
def test_get_repairs(tmp_path: Path, served: Cifar, damage: Callable[[Path], None]):
    write(tmp_path / "data/tiny-binary", BINARY_FILES)
    damage(tmp_path / "data/tiny-binary/test.bin")
    assert served.get(tmp_path / "data").state == "present"
    assert_tiny(served.load(tmp_path / "data"))


def test_an_archive_that_is_far_too_large_is_not_read(tmp_path: Path, served: Cifar, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "data").mkdir()
    with (tmp_path / "data/tiny-binary.tar.gz").open("wb") as file:
        file.truncate(1 << 40)
    md5 = download.file_md5
    monkeypatch.setattr(
        download,
        "file_md5",
        lambda path: md5(path) if path.stat().st_size < 1 << 30 else pytest.fail("the archive was hashed"),
    )
    assert served.check(tmp_path / "data").state == "damaged"
    assert served.get(tmp_path / "data").state == "present"


class Evil:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return (Path.touch, (self.path,))


def test_a_pickle_that_would_take_gigabytes_is_refused():
    content = b"]r" + (2**29).to_bytes(4, "little") + b"."  # an empty list, remembered under this number
    with pytest.raises(UsageError, match="so much memory"):
        cifar.pickled_batch(b"fine_labels")(content)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_malicious_pickle_is_not_executed(tmp_path: Path, protocol: int):
    content = pickle.dumps({b"data": Evil(tmp_path / "executed"), b"fine_labels": [0]}, protocol)
    evil = layout("tiny-python", {"train": content, "test": content}, cifar.pickled_batch(b"fine_labels"))
    write(tmp_path / "tiny-python", {"train": content, "test": content})
    with pytest.raises(UsageError, match="refused to unpickle"):
        replace(TINY, layouts=(evil,)).load(tmp_path)
    assert not (tmp_path / "executed").exists()
    pickle.loads(content)  # the pickle works: it was the unpickler that refused
    assert (tmp_path / "executed").exists()


@pytest.mark.parametrize("module", NUMPY_MODULES)
def test_pickles_of_old_and_new_numpy(module: bytes):
    content = pickled(slice(0, 9))
    for name in NUMPY_MODULES:
        content = content.replace(b"c" + name + b"\n", b"c" + module + b"\n")
    assert b"c" + module + b"\n" in content
    images, labels = cifar.pickled_batch(b"fine_labels")(content)
    assert np.array_equal(images.reshape(9, 3072), IMAGES[:9])
    assert np.array_equal(labels, FINE[:9])


def test_pickle_of_python_2():
    """As the official files are: byte strings, and 0 and 1 where numpy wants booleans."""
    head = b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    pixels = b"T" + (3072).to_bytes(4, "little") + IMAGES[0].tobytes()
    content = head + b"(K\x01K\x01M\x00\x0c\x86" + dtype + b"\x89" + pixels + b"tb" + b"U\x06labels]K\x04au."
    images, labels = cifar.pickled_batch(b"labels")(content)
    assert np.array_equal(images.reshape(3072), IMAGES[0])
    assert labels.tolist() == [4]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80",
        pickle.dumps([1, 2]),
        pickle.dumps({b"data": np.zeros((1, 3072)), b"fine_labels": [0]}, 3),
        pickle.dumps({b"data": np.zeros((1, 3071), np.uint8), b"fine_labels": [0]}, 3),
        pickle.dumps({b"data": np.zeros((1, 3072), np.uint8)}, 3),
    ],
)
def test_nonsense_pickle_is_a_usage_error(content: bytes):
    with pytest.raises(UsageError):
        cifar.pickled_batch(b"fine_labels")(content)


@pytest.mark.parametrize(("data", "records"), [(cifar.cifar10, 3073), (cifar.cifar100, 3074)])
def test_official_facts(data: Cifar, records: int):
    binary, python = data.layouts
    assert sum(member.size or 0 for member in binary.train) == 50_000 * records
    assert sum(member.size or 0 for member in binary.test) == 10_000 * records
    assert len(data.classes) == len(set(data.classes)) == int(data.title.split("-")[1])
    assert data.url == f"https://www.cs.toronto.edu/~kriz/{binary.archive}"
    digests = [member.digest for form in data.layouts for member in form.train + form.test]
    assert len(set(digests)) == len(digests)
    assert {len(digest) for digest in digests} == {32, 64}
    assert len(binary.archive_md5) == len(python.archive_md5) == 32
