"""What a stranger writes into a result reaches no form of output as anything but text."""

import csv
import html
import io
import json
import re
from html.parser import HTMLParser

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from cler.cli import main
from cler.errors import one_line, printable
from cler.report.escaping import in_csv, in_html, in_markdown
from cler.report.figures import accuracy_after_each_task
from cler.report.page import page
from cler.runs.compare import compare
from cler.runs.results import find_results
from hostile import STRINGS, put_results

MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])
ANYTHING = st.text() | st.lists(st.sampled_from([*STRINGS, *"\\`*_[]()<>|~$&:/.w!#\"' ab1"])).map("".join)


@given(ANYTHING)
@example("__0__")
def test_markdown_shows_a_string_as_it_is(text):
    shown = MARKDOWN.renderInline(f"x{in_markdown(text)}x")
    assert html.unescape(shown) == f"x{one_line(text)}x"
    assert not re.search("<(?! )|://|www[.]", in_markdown(text))


@given(ANYTHING)
def test_html_shows_a_string_as_it_is(text):
    heard = []
    parser = HTMLParser(convert_charrefs=True)
    parser.handle_data = heard.append
    parser.handle_starttag = lambda tag, attributes: heard.append(dict(attributes)["title"])
    parser.feed(f'<p title="{in_html(text)}">{in_html(text)}</p>')
    parser.close()
    assert "".join(heard) == 2 * printable(text)


@given(ANYTHING)
def test_no_cell_begins_a_formula(text):
    cell = in_csv(text)
    assert cell in (one_line(text), f"'{one_line(text)}")
    if cell.lstrip().startswith(tuple("=+-@")):
        float(cell)


def test_numbers_in_cells_stay_numbers():
    assert [in_csv(each) for each in (-1.5, 3, None, True, "-1.5", "+1e5")] == [-1.5, 3, None, True, "-1.5", "+1e5"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return put_results(tmp_path_factory.mktemp("results"))


def test_every_hostile_result_is_read(folder):
    results, complaints = find_results([folder])
    assert len(results) == 3 * len(STRINGS)
    assert len(complaints) == len(STRINGS)


@pytest.fixture
def cler(monkeypatch, capfd, tmp_path):
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["cler", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capfd.readouterr()
        assert not ended.value.code
        assert_printable(out)
        assert_printable(err)
        return out

    return call


def assert_printable(text):
    assert text.replace("\n", "").isprintable()


def assert_plain(text):
    """No link, image, code or tag in a page of Markdown, and all of the names as they are."""
    assert_printable(text)
    rendered = MARKDOWN.render(text)
    allowed = {"h1", "h2", "h3", "p", "ul", "li", "table", "thead", "tbody", "tr", "th", "td", "strong"}
    assert set(re.findall(r"<(\w+)", rendered)) <= allowed
    assert not re.search("://|www[.]", text)
    for hostile in STRINGS:
        assert one_line(hostile).strip() in html.unescape(rendered)


def test_the_terminal_and_markdown(cler, folder):
    assert "evil.example" in cler("compare", folder)
    assert_plain(cler("compare", folder, "--markdown"))
    assert len(json.loads(cler("compare", folder, "--json"))["groups"]) == 2 * len(STRINGS)


class Page(HTMLParser):
    """What a page has beside its text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.names, self.addresses = set(), set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.names |= {name for name, _ in attributes}
        self.addresses += [value for name, value in attributes if name in ("href", "src", "action")]


def test_the_files_of_a_report(cler, folder, tmp_path, runs):
    cler("report", folder, "--out", "report")
    made = {path.name: path.read_text() for path in (tmp_path / "report").iterdir()}
    for text in made.values():
        assert_printable(text)
    assert_plain(made["report.md"])
    usual, hostile = Page(page(runs.usual())), Page(made["index.html"])
    assert hostile.tags <= usual.tags | {"ul", "li"}
    assert hostile.names <= usual.names
    assert all(address.startswith("#") for address in hostile.addresses)
    for name in ("results.csv", "runs.csv"):
        for row in csv.reader(io.StringIO(made[name])):
            assert not [cell for cell in row if re.match(r"\s*([=+@]|-(?!\d))", cell)]
    assert "\\input{" not in made["report.tex"]


def test_figures(folder, tmp_path):
    groups = compare(find_results([folder])[0]).groups
    accuracy_after_each_task(groups, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1000
