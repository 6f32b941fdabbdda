from __future__ import annotations

import hashlib
import io
import tarfile
import tracemalloc
from pathlib import Path

import pytest

from cler.data import unpack
from cler.errors import UsageError


def tar_of(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def plain(name: str, content: bytes = b"content") -> tuple[tarfile.TarInfo, bytes]:
    return tarfile.TarInfo(name), content


def special(name: str, kind: bytes, target: str = "") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, b""


def test_extract(tmp_path: Path):
    archive = tar_of(
        tmp_path / "a.tar.gz", special("set", tarfile.DIRTYPE), plain("set/one"), plain("set/sub/two", b"2")
    )
    unpack.extract(archive, tmp_path / "out")
    assert (tmp_path / "out/set/one").read_bytes() == b"content"
    assert (tmp_path / "out/set/sub/two").read_bytes() == b"2"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["set"]


def test_extract_replaces_files_and_leaves_others(tmp_path: Path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set/one").write_bytes(b"damaged")
    (tmp_path / "set/mine").write_bytes(b"mine")
    unpack.extract(tar_of(tmp_path / "a.tar.gz", plain("set/one"), plain("set/two")), tmp_path)
    assert {path.name: path.read_bytes() for path in (tmp_path / "set").iterdir()} == {
        "one": b"content",
        "two": b"content",
        "mine": b"mine",
    }


@pytest.mark.parametrize(
    "bad",
    [
        plain("../evil"),
        plain("set/../../evil"),
        plain("/tmp/cler-evil"),
        special("set/link", tarfile.SYMTYPE, "/etc/passwd"),
        special("set/link", tarfile.SYMTYPE, "one"),
        special("set/link", tarfile.LNKTYPE, "set/one"),
        special("set/device", tarfile.CHRTYPE),
        special("set/block", tarfile.BLKTYPE),
        special("set/pipe", tarfile.FIFOTYPE),
    ],
    ids=lambda bad: f"{bad[0].type.decode()} {bad[0].name}",
)
def test_malicious_archive_leaves_nothing(tmp_path: Path, bad: tuple[tarfile.TarInfo, bytes]):
    archive = tar_of(tmp_path / "a.tar.gz", plain("set/one"), bad)
    out = tmp_path / "deep" / "out"
    out.mkdir(parents=True)
    with pytest.raises(UsageError, match="will not unpack"):
        unpack.extract(archive, out)
    assert list(out.iterdir()) == []
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.tar.gz", "deep", "out"]
    assert not Path("/tmp/cler-evil").exists()


def test_archive_that_is_too_large(tmp_path: Path):
    archive = tar_of(tmp_path / "a.tar.gz", plain("set/one", bytes(600)), plain("set/two", bytes(600)))
    with pytest.raises(UsageError, match="more than 1000 bytes"):
        unpack.extract(archive, tmp_path / "out", limit=1000)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    "damage", [lambda whole: whole[: len(whole) // 2], lambda whole: b"no archive", lambda whole: b""]
)
def test_damaged_archive_leaves_nothing(tmp_path: Path, damage):
    archive = tar_of(
        tmp_path / "a.tar.gz",
        plain("set/one", bytes(range(256)) * 4000),
        plain("set/two", hashlib.sha512().digest() * 999),
    )
    archive.write_bytes(damage(archive.read_bytes()))
    with pytest.raises(UsageError, match="will not unpack"):
        unpack.extract(archive, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    "headers",
    [{"path": "a\0b"}, {"mtime": "1" + "0" * 30}, {"GNU.sparse.map": "0,1,x"}, {"size": "-512"}],
    ids=["name", "time", "map", "size"],
)
def test_headers_that_tarfile_stumbles_over(tmp_path: Path, headers: dict[str, str]):
    member, content = plain("set/one")
    member.pax_headers = headers
    with pytest.raises(UsageError, match="will not unpack"):
        unpack.extract(tar_of(tmp_path / "a.tar.gz", (member, content)), tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("kind", ["", "bz2", "xz"])
def test_other_archives_than_gzipped_ones_are_refused(tmp_path: Path, kind: str):
    with tarfile.open(tmp_path / "a.tar", f"w:{kind}") as tar:
        tar.addfile(tarfile.TarInfo("set/one"))
    with pytest.raises(UsageError, match="will not unpack"):
        unpack.extract(tmp_path / "a.tar", tmp_path / "out")


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("where", ["name", "link"])
def test_a_long_name_takes_no_memory(tmp_path: Path, form: int, where: str):
    member = tarfile.TarInfo("set/one")
    setattr(member, where if where == "name" else "linkname", "x" * 20_000_000)
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz", format=form, compresslevel=1) as tar:
        tar.addfile(member)
    tracemalloc.start()
    try:
        with pytest.raises(UsageError, match="a header of"):
            unpack.extract(tmp_path / "a.tar.gz", tmp_path / "out")
        assert tracemalloc.get_traced_memory()[1] < 3_000_000
    finally:
        tracemalloc.stop()
    assert list((tmp_path / "out").iterdir()) == []


def test_many_headers_take_no_memory_either(tmp_path: Path):
    """Each is for all members that follow, and tarfile remembers them all."""
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz", compresslevel=1) as tar:
        for number in range(100):
            header = tarfile.TarInfo.create_pax_global_header({f"key{number}": "x" * 30_000})
            tar.fileobj.write(header)
            tar.fileobj.write(tarfile.TarInfo(f"set/{number}").tobuf())
    with pytest.raises(UsageError, match="its headers are too long"):
        unpack.extract(tmp_path / "a.tar.gz", tmp_path / "out")


@pytest.mark.parametrize("name", ["x" * 501, "a\nb", "\x1b[2J", "\u202etxt", "d/" * 300 + "x"])
def test_a_name_that_no_file_should_have_is_refused(tmp_path: Path, name: str):
    with pytest.raises(UsageError, match="no name for a file") as raised:
        unpack.extract(tar_of(tmp_path / "a.tar.gz", plain(name)), tmp_path / "out")
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 400


def test_no_more_files_than_a_dataset_has_are_unpacked(tmp_path: Path):
    archive = tar_of(tmp_path / "a.tar.gz", *(plain(f"set/{number}", b"") for number in range(21)))
    with pytest.raises(UsageError, match="it holds more than 20 files"):
        unpack.extract(archive, tmp_path / "out", members=20)
    assert list((tmp_path / "out").iterdir()) == []


def test_extract_into_a_file_is_refused(tmp_path: Path):
    (tmp_path / "out").write_text("in the way")
    with pytest.raises(UsageError, match="cannot unpack"):
        unpack.extract(tar_of(tmp_path / "a.tar.gz", plain("set/one")), tmp_path / "out")
