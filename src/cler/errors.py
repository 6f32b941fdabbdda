"""What a user can get wrong, said in one line."""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

_PACKAGE = str(Path(__file__).parent)


class UsageError(ValueError):
    """A mistake in what the user gave: the command line prints it as one line and exits with code 2.

    With `parameter`, the name of a setting as Python knows it, the line continues that name: `UsageError("must be above
    zero, not 0", parameter="lr")` says "lr must be above zero, not 0", and on the command line "--lr must be …".
    """

    def __init__(self, line: str, parameter: str | None = None) -> None:
        self.line, self.parameter = one_line(line), parameter
        super().__init__(f"{parameter} {self.line}" if parameter else self.line)

    def spoken(self, name: Callable[[str], str]) -> str:
        """The whole line, with the parameter as `name` calls it."""
        return f"{name(self.parameter)} {self.line}" if self.parameter else self.line

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.line, self.parameter)


class DamagedError(Exception):
    """A file is damaged: the message says how, in a few words; what to do about it is up to the reader of the file."""


def printable(text: str) -> str:
    """A string without control characters and characters that reverse the direction of text; line breaks stay."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each == "\n" else " " if each.isspace() else "\ufffd" for each in text)


def one_line(text: str) -> str:
    """A string as one printable line."""
    return printable(text).replace("\n", " ")


def failure(error: BaseException) -> str:
    """What went wrong in a user's own code, and where: the innermost line outside of installed packages and of ours."""
    lines = traceback.extract_tb(error.__traceback__)
    own = [each for each in lines if "-packages" not in each.filename and not each.filename.startswith(_PACKAGE)]
    last = (own or lines)[-1]
    return f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"


def unknown(kind: str, name: str, allowed: Iterable[str]) -> UsageError:
    """The error for a name that does not exist: what exists, and what may have been meant."""
    allowed = list(allowed)
    return UsageError(f"unknown {kind} '{name}' (known: {', '.join(allowed)}){hint(name, allowed)}")


def hint(name: str, allowed: Iterable[str]) -> str:
    """The end of a line about a name that does not exist: what may have been meant, or nothing."""
    by_lower_case = {each.lower(): each for each in allowed}
    word = name.lower()
    near = difflib.get_close_matches(word, by_lower_case, n=1)
    near = near or [each for each in by_lower_case if len(word) > 2 and word in each]
    return f"; did you mean '{by_lower_case[near[0]]}'?" if near else ""
