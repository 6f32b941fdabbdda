from __future__ import annotations

import hashlib
import io
import os
import re
import tarfile
import threading
import tracemalloc
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.error import URLError
from urllib.request import Request

import pytest

from cler.data import download
from cler.errors import UsageError
from hostile import ANSWERS, OK, RawServer

CONTENT = bytes(range(256)) * 4000
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves CONTENT, as well or as badly as its attributes say."""

    daemon_threads = True
    ranges = True
    content = CONTENT
    drop_after: int | None = None
    drops_left = 0
    status: int | None = None
    shift = 0

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/file.tar.gz"

    def handle_error(self, request: object, client_address: object) -> None:
        """Keep the clients that hang up out of the test's output."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, wanted = self.server, self.headers.get("Range")
        server.asked.append(wanted)
        if server.status:
            return self.send_error(server.status)
        start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) if wanted and server.ranges else 0
        if start and start >= len(server.content):
            return self.send_error(416)
        body = server.content[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header(
                "Content-Range", f"bytes {start + server.shift}-{len(server.content) - 1}/{len(server.content)}"
            )
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if server.drops_left:
            server.drops_left -= 1
            body = body[: server.drop_after]
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def fetch(server: Server, target: Path, **options: object) -> Path:
    return download.fetch(server.url, target, MD5, **({"wait": 0.0, "most": 2_000_000} | options))  # type: ignore[arg-type]


def part_of(target: Path) -> Path:
    return target.with_name(target.name + ".part")


def test_whole_file(server: Server, tmp_path: Path):
    target = tmp_path / "new" / "file.tar.gz"
    seen: list[tuple[int, int | None]] = []
    assert fetch(server, target, progress=lambda done, total: seen.append((done, total))) == target
    assert target.read_bytes() == CONTENT
    assert not part_of(target).exists()
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert len(seen) > 1


def test_second_fetch_asks_nothing(server: Server, tmp_path: Path):
    target = fetch(server, tmp_path / "file.tar.gz")
    fetch(server, target)
    assert server.asked == [None]


def test_altered_target_is_replaced(server: Server, tmp_path: Path):
    target = tmp_path / "file.tar.gz"
    target.write_bytes(b"x" + CONTENT[1:])
    assert fetch(server, target).read_bytes() == CONTENT


def test_part_is_continued(server: Server, tmp_path: Path):
    target = tmp_path / "file.tar.gz"
    part_of(target).write_bytes(CONTENT[:1000])
    seen: list[tuple[int, int | None]] = []
    fetch(server, target, progress=lambda done, total: seen.append((done, total)))
    assert target.read_bytes() == CONTENT
    assert server.asked == ["bytes=1000-"]
    assert seen[0][0] > 1000
    assert seen[-1] == (len(CONTENT), len(CONTENT))


def test_server_that_ignores_ranges(server: Server, tmp_path: Path):
    server.ranges = False
    target = tmp_path / "file.tar.gz"
    part_of(target).write_bytes(CONTENT[:1000])
    assert fetch(server, target, attempts=1).read_bytes() == CONTENT


def test_server_that_continues_at_the_wrong_place(server: Server, tmp_path: Path):
    server.shift = 7
    target = tmp_path / "file.tar.gz"
    part_of(target).write_bytes(CONTENT[:1000])
    assert fetch(server, target).read_bytes() == CONTENT
    assert server.asked == ["bytes=1000-", None]


@pytest.mark.parametrize("part", [CONTENT, CONTENT + b"more", b"wrong" * 10, b"x" * len(CONTENT)])
def test_part_that_is_whole_or_too_long_or_wrong(server: Server, tmp_path: Path, part: bytes):
    target = tmp_path / "file.tar.gz"
    part_of(target).write_bytes(part)
    assert fetch(server, target).read_bytes() == CONTENT
    assert not part_of(target).exists()
    assert len(server.asked) == (1 if part == CONTENT else 2)


def test_wrong_checksum(server: Server, tmp_path: Path):
    server.content = CONTENT[:-1] + b"x"
    target = tmp_path / "file.tar.gz"
    with pytest.raises(UsageError, match="wrong checksum"):
        fetch(server, target, attempts=2)
    assert len(server.asked) == 2
    assert list(tmp_path.iterdir()) == []


def test_dropped_connection_is_continued_in_the_same_call(server: Server, tmp_path: Path):
    server.drop_after, server.drops_left = 300_000, 2
    assert fetch(server, tmp_path / "file.tar.gz").read_bytes() == CONTENT
    assert server.asked == [None, "bytes=300000-", "bytes=600000-"]


def test_dropped_connection_is_continued_by_the_next_call(server: Server, tmp_path: Path):
    server.drop_after, server.drops_left = 300_000, 1
    target = tmp_path / "file.tar.gz"
    with pytest.raises(UsageError, match="broke after 300000 of 1024000 bytes"):
        fetch(server, target, attempts=1)
    assert not target.exists()
    assert part_of(target).read_bytes() == CONTENT[:300_000]
    assert fetch(server, target).read_bytes() == CONTENT
    assert server.asked == [None, "bytes=300000-"]


def test_interrupted_download_keeps_its_part(server: Server, tmp_path: Path):
    target = tmp_path / "file.tar.gz"

    def interrupt(done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(server, target, progress=interrupt)
    kept = part_of(target).read_bytes()
    assert 0 < len(kept) < len(CONTENT)
    assert CONTENT.startswith(kept)


@pytest.mark.parametrize(("status", "requests"), [(404, 1), (503, 3)])
def test_http_error_names_file_and_folder(server: Server, tmp_path: Path, status: int, requests: int):
    server.status = status
    with pytest.raises(UsageError) as raised:
        fetch(server, tmp_path / "file.tar.gz", attempts=3)
    message = str(raised.value)
    assert f"HTTP {status}" in message
    assert server.url in message
    assert f"put it in {tmp_path}" in message
    assert "\n" not in message
    assert len(server.asked) == requests


def test_nobody_listening(tmp_path: Path):
    with Server() as unused:
        url = unused.url
    with pytest.raises(UsageError, match="by hand and put it in"):
        download.fetch(url, tmp_path / "file.tar.gz", MD5, attempts=2, wait=0.0, most=10)


def test_attempts_wait_longer_and_longer(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    server.status = 503
    waits: list[float] = []
    monkeypatch.setattr(download.time, "sleep", waits.append)
    with pytest.raises(UsageError):
        fetch(server, tmp_path / "file.tar.gz", wait=1.0, attempts=4)
    assert waits == [0, 1, 2, 4]


def test_folder_that_cannot_be_made_is_not_tried_again(server: Server, tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UsageError, match=r"cannot write to .*/file: File exists; choose another data folder"):
        fetch(server, tmp_path / "file" / "file.tar.gz")
    assert server.asked == []


# -- answers that are none ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("have", [b"", b"some"], ids=["new", "resumed"])
@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_that_is_none_is_told_in_one_line(tmp_path: Path, answer: str, have: bytes):
    target = tmp_path / "file.tar.gz"
    if have:
        part_of(target).write_bytes(have)
    with RawServer(ANSWERS[answer]) as server, pytest.raises(UsageError, match=r"^cannot fetch http") as raised:
        download.fetch(server.url, target, MD5, most=2_000_000, attempts=2, wait=0.0)
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 600
    assert not target.exists()
    assert not part_of(target).exists() or part_of(target).stat().st_size <= 2_000_000


@pytest.mark.parametrize(
    ("answer", "drops"),
    [
        (b"HTTP", b"x"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (OK, b"X: x\r\n"),
        (OK + b"Content-Length: 1000000\r\n\r\n", b"x"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    ],
    ids=["status", "continue", "headers", "body", "chunks"],
)
def test_a_server_that_never_ends_is_given_up(tmp_path: Path, answer: bytes, drops: bytes):
    with RawServer(answer, drops) as server, pytest.raises(UsageError, match="cannot fetch") as raised:
        download.fetch(server.url, tmp_path / "file", MD5, most=2_000_000, attempts=1, patience=0.3)
    assert "it takes too long" in str(raised.value) or drops == b"X: x\r\n"  # of which only so many are read


def test_what_has_arrived_of_a_slow_one_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    clock = [0.0]
    monkeypatch.setattr(download, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=lambda _: None))
    target, answer = tmp_path / "file", OK + b"Content-Length: 1000000\r\n\r\n" + b"x" * 500_000
    with RawServer(answer, b"x") as server, pytest.raises(UsageError, match="what has arrived is kept"):
        download.fetch(server.url, target, MD5, lambda *_: clock.append(clock.pop() + 1e6), most=2_000_000)
    assert part_of(target).stat().st_size > 0


def test_an_encrypted_connection_is_not_left_for_one_that_is_not():
    request = Request("https://example.org/x")
    with pytest.raises(URLError, match="not encrypted"):
        download._Redirects().redirect_request(request, None, 302, "", {}, "http://example.org/x")
    assert download._Redirects().redirect_request(request, None, 302, "", {}, "https://example.org/y") is not None


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_part_that_is_no_plain_file_is_refused(server: Server, tmp_path: Path, kind: str):
    target, other = tmp_path / "file.tar.gz", tmp_path / "other"
    other.write_bytes(b"precious")
    if kind == "link":
        part_of(target).symlink_to(other)
    elif kind == "pipe":
        os.mkfifo(part_of(target))
    else:
        part_of(target).mkdir()
    with pytest.raises(UsageError, match=r"\.part is not a plain file"):
        fetch(server, target)
    assert other.read_bytes() == b"precious"
    assert server.asked == []


# -- archives ----------------------------------------------------------------------------------------------------------


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
    download.extract(archive, tmp_path / "out")
    assert (tmp_path / "out/set/one").read_bytes() == b"content"
    assert (tmp_path / "out/set/sub/two").read_bytes() == b"2"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["set"]


def test_extract_replaces_files_and_leaves_others(tmp_path: Path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set/one").write_bytes(b"damaged")
    (tmp_path / "set/mine").write_bytes(b"mine")
    download.extract(tar_of(tmp_path / "a.tar.gz", plain("set/one"), plain("set/two")), tmp_path)
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
        download.extract(archive, out)
    assert list(out.iterdir()) == []
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.tar.gz", "deep", "out"]
    assert not Path("/tmp/cler-evil").exists()


def test_archive_that_is_too_large(tmp_path: Path):
    archive = tar_of(tmp_path / "a.tar.gz", plain("set/one", bytes(600)), plain("set/two", bytes(600)))
    with pytest.raises(UsageError, match="more than 1000 bytes"):
        download.extract(archive, tmp_path / "out", limit=1000)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    "damage", [lambda whole: whole[: len(whole) // 2], lambda whole: b"no archive", lambda whole: b""]
)
def test_damaged_archive_leaves_nothing(tmp_path: Path, damage):
    archive = tar_of(
        tmp_path / "a.tar.gz", plain("set/one", CONTENT), plain("set/two", hashlib.sha512().digest() * 999)
    )
    archive.write_bytes(damage(archive.read_bytes()))
    with pytest.raises(UsageError, match="will not unpack"):
        download.extract(archive, tmp_path / "out")
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
        download.extract(tar_of(tmp_path / "a.tar.gz", (member, content)), tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("kind", ["", "bz2", "xz"])
def test_other_archives_than_gzipped_ones_are_refused(tmp_path: Path, kind: str):
    with tarfile.open(tmp_path / "a.tar", f"w:{kind}") as tar:
        tar.addfile(tarfile.TarInfo("set/one"))
    with pytest.raises(UsageError, match="will not unpack"):
        download.extract(tmp_path / "a.tar", tmp_path / "out")


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
            download.extract(tmp_path / "a.tar.gz", tmp_path / "out")
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
        download.extract(tmp_path / "a.tar.gz", tmp_path / "out")


@pytest.mark.parametrize("name", ["x" * 501, "a\nb", "\x1b[2J", "\u202etxt", "d/" * 300 + "x"])
def test_a_name_that_no_file_should_have_is_refused(tmp_path: Path, name: str):
    with pytest.raises(UsageError, match="no name for a file") as raised:
        download.extract(tar_of(tmp_path / "a.tar.gz", plain(name)), tmp_path / "out")
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 400


def test_no_more_files_than_a_dataset_has_are_unpacked(tmp_path: Path):
    archive = tar_of(tmp_path / "a.tar.gz", *(plain(f"set/{number}", b"") for number in range(21)))
    with pytest.raises(UsageError, match="it holds more than 20 files"):
        download.extract(archive, tmp_path / "out", members=20)
    assert list((tmp_path / "out").iterdir()) == []


def test_extract_into_a_file_is_refused(tmp_path: Path):
    (tmp_path / "out").write_text("in the way")
    with pytest.raises(UsageError, match="cannot unpack"):
        download.extract(tar_of(tmp_path / "a.tar.gz", plain("set/one")), tmp_path / "out")
