"""The command line: parse, call, print. A command is a file; to add one, add it here."""

from __future__ import annotations

import errno
import io
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cler.cli import run, tune, reproduce, analyze, compare, report, frontier, methods, check, learn, bench, data  # isort: skip  # as `cler --help` lists them
from cler.cli.app import app, errors
from cler.cli.options import spoken
from cler.errors import UsageError, one_line
from cler.report.console import drop
from cler.signals import TERMINATED

__all__ = [
    "analyze",
    "app",
    "bench",
    "check",
    "compare",
    "data",
    "frontier",
    "learn",
    "main",
    "methods",
    "report",
    "reproduce",
    "run",
    "tune",
]

NO_ROOM = (
    "take a smaller --width, --batch or --buffer, or close other programs; if the GPU is too small, --device cpu uses "
    "the CPU; finished runs are kept, and the same command resumes from there"
)
STOPPED = "stopped; finished runs are kept, and the same command resumes the others"
NOT_PRINTED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EPIPE, errno.EBADF, errno.EIO)
"""What can be wrong with an output."""


@contextmanager
def _mistakes_in_one_line() -> Iterator[None]:
    """One line and an exit code: 2 for a user's mistake, 130 for Ctrl-C, 143 for SIGTERM, 1 for lack of memory.

    Anything else is a bug.
    """
    try:
        yield
    except UsageError as mistake:
        _stop(mistake.spoken(spoken), 2)
    except KeyboardInterrupt:
        _stop(STOPPED, 130)
    except SystemExit as end:
        if end.code == TERMINATED:
            _stop(STOPPED, TERMINATED)
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in NOT_PRINTED and error.filename is None:
            _cannot_print(error)
        if isinstance(error, OSError) and error.filename is not None and error.strerror:
            _stop(f"{os.fsdecode(error.filename)}: {error.strerror}", 2)
        if isinstance(error, FileNotFoundError) and error.strerror:
            _stop(error.strerror, 2)  # of tempfile, on a disk that takes nothing any more
        if isinstance(error, RuntimeError) and (lack := _lack_of_memory(error)):
            _stop(f"{str(lack).splitlines()[0]}; {NO_ROOM}", 1)
        if not hasattr(error, "format_message"):  # typer's own errors have it, whichever click they come from
            raise
        if not (message := error.format_message()):
            raise SystemExit(2) from None  # the help has been printed
        context = getattr(error, "ctx", None)
        if context and not message.endswith(("?", ")")):  # which say what may have been meant
            message = f"{message.removesuffix('.')}; see `{context.command_path} --help`"
        _stop(message, 2)


def _lack_of_memory(error: RuntimeError) -> BaseException | None:
    from cler.engine.steps import lack_of_memory  # takes a while to import

    return lack_of_memory(error)


def _cannot_print(error: OSError) -> None:
    """Report that the output cannot be written, unless its reader has closed it."""
    drop(sys.stdout)
    if error.errno == errno.EPIPE:
        raise SystemExit(1)
    _stop(f"cannot write the output: {error.strerror}", 1)


def _stop(line: str, code: int) -> None:
    try:
        sys.stdout.flush()
    except OSError:  # the mistake is what to tell
        drop(sys.stdout)
    errors.print("cler: " + " ".join(line.split()), soft_wrap=True)
    raise SystemExit(code)


def _check_streams() -> None:
    """Keep files from taking the numbers of closed standard streams; replace characters that a stream cannot encode."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115 - to the end
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - to the end
        _stop("the standard output is closed: send it to /dev/null if nobody is to read it", 2)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _formatted_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A warning of our own as a line for people, and others as Python writes them."""
    if Path(filename).is_relative_to(Path(__file__).parent.parent):
        return f"cler: {one_line(str(message))}\n"
    return _AS_PYTHON_WRITES(message, category, filename, lineno, line)


_AS_PYTHON_WRITES = warnings.formatwarning


def main() -> None:
    """The `cler` command."""
    warnings.formatwarning = _formatted_warning
    try:
        with _mistakes_in_one_line():
            _check_streams()
            code = app(prog_name="cler", standalone_mode=False)
            sys.stdout.flush()
            if code == 130:  # how typer reports Ctrl-C
                raise KeyboardInterrupt
            sys.exit(code)
    finally:
        try:
            sys.stderr.flush()
        except OSError:  # which is no reason for another exit code
            drop(sys.stderr)
