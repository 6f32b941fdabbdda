"""Strings that anybody may have written, in each form of output: shown as they are, and nothing more.

For the terminal it is `console.Terminal` that sees to it, for LaTeX `latex.escape`; JSON needs nothing.
"""

from __future__ import annotations

import html
import re
import unicodedata
from typing import Any

from cler.errors import one_line, printable

_MARKDOWN = re.compile(
    r"[\\`*\[\]|~$]"  # code, emphasis, links and images, cells, strokes, formulas
    r"|(?<![^\W_])_|_(?![^\W_])"  # emphasis too, but not within a word
    r"|<(?! )"  # tags
    r"|&(?=#?\w+;)"  # signs by their names
    r"|:(?=//)|(?<=\bwww)\."  # addresses, which become links by themselves
)
_NAMED = {"<": "&lt;", "&": "&amp;", ":": "&#58;", ".": "&#46;"}


def in_markdown(text: str) -> str:
    """A string that Markdown shows as it is, in a cell, a heading or a line."""
    return _MARKDOWN.sub(lambda found: _NAMED.get(found[0]) or f"\\{found[0]}", one_line(text))


def in_html(text: str) -> str:
    """A string that HTML shows as it is, inside an element or an attribute between quotation marks."""
    return html.escape(printable(text))


def in_csv(value: Any) -> Any:
    """A value that no program takes for a formula that opens a table with it; what is no string stays as it is."""
    if not isinstance(value, str):
        return value
    text = one_line(value)
    begins = unicodedata.normalize("NFKC", text).lstrip()[:1]
    return f"'{text}" if begins and begins in "=+-@" and not _is_number(text) else text


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?", text, re.ASCII) is not None
