"""What a user can get wrong, said in one line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UsageError(ValueError):
    """A mistake in what the user gave: the command line prints it as one line and exits with code 2."""

    def __init__(self, line: str) -> None:
        super().__init__(one_line(line))


def one_line(text: str) -> str:
    """The same without what would break the line, or be an order to the terminal."""
    return "".join(each if each.isprintable() else " " if each.isspace() else "\ufffd" for each in text)


def unknown(kind: str, name: str, allowed: Iterable[str]) -> UsageError:
    """The error for a name that does not exist: what exists, and what may have been meant."""
    allowed = list(allowed)
    by_lower_case = {each.lower(): each for each in allowed}
    near = difflib.get_close_matches(name.lower(), by_lower_case, n=1)
    hint = f"; did you mean '{by_lower_case[near[0]]}'?" if near else ""
    return UsageError(f"unknown {kind} '{name}' (known: {', '.join(allowed)}){hint}")
