"""What tests and `tools/attack.py` throw at cler: strings, results, damage, answers of servers, and paths."""

from __future__ import annotations

import inspect
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from cler.cli import app, data
from cler.config.machine import Machine
from cler.config.schema import settings_of
from cler.files import write_json
from cler.runs.results import make_result

# -- strings -----------------------------------------------------------------------------------------------------------

STRINGS = (
    "\x1b]0;owned\x07\x1b[2J\x9b31m\r\b\u202e", "[x](http://evil.example)", "![x](http://evil.example/x.png)",
    "<img src=x onerror=alert(1)>", "<script>alert(1)</script>", "http://evil.example www.evil.example",
    "`a` *b* _c_ ~~d~~", "=HYPERLINK(\"http://evil.example\")", "+1+cmd|'/c calc'!A0", "@SUM(1)", "-2+3", "\uff1dcmd()",
    "a|b||c", "$x$ \\frac{", "[link=http://evil.example]x[/link] [/bold]", "\" onmouseover=\"alert(1)",
    "&lt;b&gt; &#60;b&#62;", "a\n# b\n| c |", "\\input{/etc/passwd}", "{{ 7*7 }} {% raw %}", "_x", "\0", "{0} %s",
)  # fmt: skip


def put_results(folder: Path) -> Path:
    """Results in which every string, and the name of a setting, is hostile; some have failed, some are none."""
    rows = [[50.0], [40.0, 50.0]]
    matrices = {"class_il": rows, "task_il": rows}
    for number, text in enumerate(STRINGS):
        for seed in range(2):
            settings = {
                "method": text,
                "regularizer": text if seed else "none",
                "dataset": text if number % 2 else "toy",
            }
            settings |= {"tasks": 2, "buffer": 9, "epochs": 1, text: text, "variant": number, "network": text}
            about = dict.fromkeys(("hardware", "torch", "cler", text), text)
            result = make_result(settings, seed, matrices, 1.0, 9, about, data=text, revisions={"x": text})
            write_json(folder / f"{number}-{seed}" / "result.json", result)
        failed = result | {"failure": text, "complete": False}
        write_json(folder / f"{number}-failed" / "result.json", failed)
        write_json(folder / f"{number}-none" / "result.json", failed | {"seed": text})
    return folder


# -- commands ----------------------------------------------------------------------------------------------------------

NEEDED = {
    "run": ["finetune"],
    "tune": ["finetune", "--space", "lr=0.01..0.1"],
    "reproduce": ["table1"],
    "analyze": ["figure1"],
    "compare": ["results"],
    "report": ["results"],
    "frontier": ["results"],
    "learn": ["images"],
    "check": ["er-ace"],
    "data get": ["cifar10"],
}
"""What a command has to be given before any option."""


def paths_of_commands() -> Iterator[tuple[str, str]]:
    """Every command with every option of it that is a path; an argument is an option without a name."""
    of_machines = {name for name, each in settings_of(Machine).items() if each.kind is Path}
    for prefix, commands in (("", app.registered_commands), ("data ", data.data_app.registered_commands)):
        for command in commands:
            name = prefix + (command.name or command.callback.__name__)
            for parameter in inspect.signature(command.callback, eval_str=True).parameters.values():
                kind, marker = parameter.annotation.__origin__, parameter.annotation.__metadata__[0]
                if "Path" in str(kind) or parameter.name in (*of_machines, "imports"):
                    given = [each for each in (marker.default, *(marker.param_decls or ())) if str(each)[:2] == "--"]
                    flag = (given or [f"--{parameter.name.replace('_', '-')}"])[0]
                    yield name, "" if type(marker).__name__ == "ArgumentInfo" else flag


# -- files -------------------------------------------------------------------------------------------------------------


def truncate(path: Path) -> None:
    """Cut the last byte off."""
    path.write_bytes(path.read_bytes()[:-1])


def alter(path: Path) -> None:
    """Change a bit in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


# -- servers -----------------------------------------------------------------------------------------------------------

OK = b"HTTP/1.1 200 OK\r\n"
ANSWERS = {
    "nothing": b"",
    "no status": b"\r\n\r\n",
    "no HTTP": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "a status that is no number": b"HTTP/1.1 OK fine\r\n\r\n",
    "a status too large": b"HTTP/1.1 99999 x\r\n\r\n",
    "a status below zero": b"HTTP/1.1 -200 OK\r\n\r\n",
    "a long status": b"HTTP/1.1 200 " + b"x" * 70_000 + b"\r\n\r\n",
    "an order to the terminal": b"HTTP/1.1 503 \x1b[2J\x1b]0;x\x07\r\nContent-Length: 0\r\n\r\n",
    "a length that is no number": OK + b"Content-Length: many\r\n\r\nxxxx",
    "a length below zero": OK + b"Content-Length: -5\r\n\r\nxxxx",
    "a length with a point": OK + b"Content-Length: 1e3\r\n\r\nxxxx",
    "a length in other digits": OK + "Content-Length: ٣\r\n\r\nxxxx".encode(),
    "an endless length": OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\nxxxx",
    "an empty length": OK + b"Content-Length: \r\n\r\nxxxx",
    "a length that is too large": OK + b"Content-Length: 5000000\r\n\r\nxxxx",
    "more than is allowed": OK + b"\r\n" + b"x" * 3_000_000,
    "too few bytes": OK + b"Content-Length: 1000\r\n\r\nxxxx",
    "a chunk that is no number": OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nxxxx\r\n0\r\n\r\n",
    "a chunk below zero": OK + b"Transfer-Encoding: chunked\r\n\r\n-4\r\nxxxx\r\n0\r\n\r\n",
    "a chunk that is cut": OK + b"Transfer-Encoding: chunked\r\n\r\nff\r\nxxxx",
    "a huge chunk": OK + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nxxxx",
    "a long header": OK + b"X: " + b"x" * 70_000 + b"\r\n\r\nxxxx",
    "many headers": OK + b"X: x\r\n" * 1000 + b"\r\nxxxx",
    "a header that is none": OK + b"\x00\xff\r\n: \r\n\r\nxxxx",
    "a part nobody asked for": b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes x-y/z\r\n\r\nxxxx",
    "416": b"HTTP/1.1 416 No\r\n\r\n",
    "a redirection to nowhere": b"HTTP/1.1 302 Found\r\n\r\n",
    **{
        f"a redirection to {target[:30]!r}": b"HTTP/1.1 302 Found\r\nLocation: " + target.encode() + b"\r\n\r\n"
        for target in (
            "", "http://", "http:///x", "http://[::1", "http://[x]/", "http://a b/", "http://127.0.0.1:99999/",
            "http://127.0.0.1:x/", "http://127.0.0.1:-1/", "file:///etc/passwd", "ftp://127.0.0.1:9/", "data:,x",
            "gopher://x/", "http://" + "x" * 300 + "/", "http://..../", "http://é/", "http://\u2100/",
            "//", "javascript:x", "http://%00/", "http://\x7f/", "http://user:pass@/", "http://" + "a." * 40_000, "/",
        )
    },
}  # fmt: skip


class RawServer(threading.Thread):
    """Answers every request with the same bytes, the last of them again and again if it has `drops`."""

    def __init__(self, answer: bytes, drops: bytes = b"") -> None:
        super().__init__(daemon=True)
        self.answer, self.drops = answer, drops
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}/file.tar.gz"
        self.start()

    def run(self) -> None:
        with suppress(OSError):
            while True:
                caller, _ = self.socket.accept()
                threading.Thread(target=self.speak, args=[caller], daemon=True).start()

    def speak(self, caller: socket.socket) -> None:
        with caller, suppress(OSError):
            caller.recv(4096)
            caller.sendall(self.answer)
            while self.drops:
                caller.sendall(self.drops)
                time.sleep(0.01)

    def __enter__(self) -> RawServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        self.join()
