"""A server of files on this machine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def serve() -> Iterator[Callable[[Path], str]]:
    """Serves a folder; gives back the address that its files are below."""
    with ExitStack() as running:

        def start(folder: Path) -> str:
            server = running.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)))
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
            thread.start()
            running.callback(thread.join)
            running.callback(server.shutdown)
            return f"http://127.0.0.1:{server.server_port}/"

        yield start
