from __future__ import annotations

import errno
import hashlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.error import URLError
from urllib.request import Request

import pytest
from filelock import FileLock, Timeout

from cler import data
from cler.data import download, unpack
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


# -- several processes -------------------------------------------------------------------------------------------------


def test_of_two_processes_one_downloads_and_the_other_waits_for_it(server: Server, tmp_path: Path, monkeypatch):
    target, shown = tmp_path / "new" / "file.tar.gz", list[tuple[int, int | None]]()
    monkeypatch.setattr(download, "LOOK", 0.01)
    code = """
import sys
from pathlib import Path
from cler.data.download import alone, fetch

def wait_to_be_told(done, total):
    print(done, flush=True)
    sys.stdin.readline()

target = Path(sys.argv[2])
with alone(target):
    fetch(sys.argv[1], target, sys.argv[3], wait_to_be_told, most=2_000_000)
"""
    command = [sys.executable, "-c", code, server.url, str(target), MD5]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin
        assert other.stdout
        told = other.stdin
        assert int(other.stdout.readline()) > 0

        def show(done: int, total: int | None) -> None:
            if not told.closed:
                told.close()
            shown.append((done, total))

        with download.alone(target, show):
            assert fetch(server, target).read_bytes() == CONTENT
    assert other.returncode == 0
    assert server.asked == [None]
    assert shown
    assert all(total is None for _, total in shown)  # which is how far the other one was
    assert [path.name for path in target.parent.iterdir()] == ["file.tar.gz"]


def test_where_a_file_system_has_no_locks_nobody_waits(tmp_path: Path, monkeypatch):
    def refuse(self: object, *_: object, **__: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("filelock.FileLock.acquire", refuse)
    with download.alone(tmp_path / "file.tar.gz"):
        assert list(tmp_path.iterdir()) == []


def test_another_process_that_never_ends_is_not_waited_for_any_longer(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(download, "LOOK", 0.0)
    target = tmp_path / "file.tar.gz"
    with FileLock(f"{part_of(target)}.lock"), pytest.raises(UsageError, match="another process is fetching"):
        download.alone(target, patience=0.0).__enter__()


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "mini-imagenet", "tiny-imagenet"])
def test_every_dataset_is_fetched_and_unpacked_by_one_process(tmp_path: Path, monkeypatch, name: str):
    def fetched(url: str, target: Path, *_: object, **__: object) -> Path:
        return target

    def unpacked(archive: Path, folder: Path, **_: object) -> None:
        with pytest.raises(Timeout):
            FileLock(f"{part_of(archive)}.lock").acquire(timeout=0)
        raise UsageError("was looked at")

    monkeypatch.setattr(download, "fetch", fetched)
    monkeypatch.setattr("cler.data.cifar._verify_archive", lambda layout, archive: None)
    for form in ("extract", "extract_zip"):
        monkeypatch.setattr(unpack, form, unpacked)
    with pytest.raises(UsageError, match="was looked at"):
        data.get(name, tmp_path)
    if name.startswith("cifar"):  # whose archive is unpacked where it is all there is
        (tmp_path / f"cifar-{name.removeprefix('cifar')}-python.tar.gz").touch()
        with pytest.raises(UsageError, match="was looked at"):
            data.load(name, tmp_path)
