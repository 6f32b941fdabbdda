import io
import re

import pytest
from rich.table import Table
from rich.text import Text

from cler.report.console import Terminal

ORDERS = {
    "clear": "\x1b[2J",
    "title": "\x1b]0;title\x07",
    "link": "\x1b]8;;http://x\x1b\\y",
    "eight bits": "\x9b2J",
    "back": "a\b\b",
    "return": "a\rb",
    "bidi": "\u202e\u2066",
    "null": "\0",
    "half": "\udce9",
}


def shown(*things, **options):
    terminal = Terminal(file=io.StringIO(), width=60, **options)
    terminal.print(*things)
    return terminal.file.getvalue()


@pytest.mark.parametrize("order", ORDERS)
def test_no_string_is_an_order(order):
    text = ORDERS[order]
    table = Table(f"h{text}", title=f"t{text}", caption=f"c{text}")
    table.add_row(f"r{text}")
    for thing in (f"s{text}", Text(f"x{text}"), table):
        for colors in ({"color_system": None}, {"color_system": "truecolor", "force_terminal": True}):
            told = re.sub(r"\x1b\[[\d;]*m", "", shown(thing, **colors)).replace("\n", "")
            assert told.isprintable()


def test_its_own_orders_remain():
    assert shown(Text("bold", style="bold"), color_system="truecolor", force_terminal=True) == "\x1b[1mbold\x1b[0m\n"


def test_markup_is_shown_as_it_is():
    table = Table("[bold]x[/bold]", title="[link=http://x]")
    table.add_row("[/nothing] :smile:")
    told = shown(table)
    for text in ("[bold]x[/bold]", "[link=http://x]", "[/nothing] :smile:"):
        assert text in told


def test_lines_stay_lines():
    assert shown("one\ntwo\tthree") == "one\ntwo     three\n"
