"""The one way to print to a terminal: no text that is shown can contain commands for it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import IO, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from cler.errors import one_line, printable

TABLE_WIDTH = 80
"""Columns that tables of numbers have at least."""


class Terminal(Console):
    """A console that shows strings as they are, whoever wrote them: no markup, no escape sequence in them counts."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, highlight=False, emoji=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The pieces to show; only control codes that rich itself has made are kept."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))

    def say(self, line: str) -> None:
        """Print a line for people, which a terminal that is too narrow wraps."""
        self.print(one_line(line), soft_wrap=True)

    def _check_buffer(self) -> None:
        """Write what is to be shown; what the standard error does not take is dropped, and stops nothing."""
        try:
            super()._check_buffer()
        except OSError:
            del self._buffer[:]
            if not self.stderr:
                raise

    def on_broken_pipe(self) -> None:
        """The reader has closed the output: print nothing more, and exit."""
        self.quiet = True
        drop(self.file)
        raise SystemExit(1)


def drop(stream: IO[str]) -> None:
    """Send the rest of an output nowhere; otherwise Python would try to write it again when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
