"""The page, as text and in a real browser (chromium, driven by Playwright)."""

import re
import shutil
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from cler.report.content import make_report
from cler.report.page import page
from cler.runs.compare import compare

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Elements(HTMLParser):
    """Checks that elements are closed in order, and counts them by name and class."""

    def __init__(self, text):
        super().__init__()
        self.open, self.found = [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def count(self, tag, *classes):
        return sum(one == tag and set(classes) <= set(has.get("class", "").split()) for one, has in self.found)


@pytest.fixture(scope="module")
def report(runs, published):
    """Two datasets, one of them with published numbers beside it."""
    printed = {"dataset": "printed", "tasks": 10, "buffer": 500}
    pairs = [(runs.plain | printed, [19.0, 20.0, 21.0]), (runs.cler | printed, [24.0, 25.0, 26.5])]
    pairs += [(runs.finetune, [16.0, 16.5]), (runs.joint, [45.0, 46.0]), (runs.plain, [30.0, 31.0])]
    pairs += [(runs.cler, [33.0, 34.5]), (runs.cler | {"weight": 0.5}, [29.0, 28.5])]
    comparison = runs.compare(*pairs)
    preface = "What was done.\n\n| what | why |\n|---|---|\n| this | `that` |\n\n---\nAt last."
    return make_report(comparison, preface=preface, beside=published(comparison))


def test_commands_in_the_preface_look_like_commands(runs):
    made = page(runs.report((runs.plain, [30.0]), preface="By `cler <run>`, then."))
    assert "<p>By <code>cler &lt;run&gt;</code>, then.</p>" in made


def test_the_page_needs_nothing_from_elsewhere(report):
    text = page(report)
    elements = Elements(text)
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in elements.found}
    assert not re.search(r"https?:|url\(|@import", text)


def test_everything_is_drawn(report):
    elements = Elements(page(report))
    assert elements.count("svg", "chart") == 2 * 2  # a method and its regularized twins, both scenarios
    assert elements.count("svg", "heat") == 2 * 7
    assert elements.count("path", "line", "c0") == 2 * 2
    assert elements.count("path", "line", "c2") == 2 * 3
    assert elements.count("path", "line", "c2", "d1") == 2  # the second weight of the same regularizer
    assert elements.count("path", "line", "joint") == 2
    assert elements.count("i", "span") == 2 * 3
    assert elements.count("i", "published") == 2 * 1 + 1  # and one in the key
    rows = sum(len(sheet.rows) for sheet in report.beside.sheets)
    rows += sum(len(sheet.rows) for section in report.sections for sheet in section.sheets)
    assert elements.count("dl", "settings") == rows


def test_one_run_has_no_band_and_no_interval(runs):
    elements = Elements(page(runs.report((runs.plain, [30.0]), (runs.cler, [33.0]))))
    assert elements.count("path", "line", "c2") == 2
    assert elements.count("path", "band", "c2") == elements.count("i", "span") == 0
    assert elements.count("i", "point", "not-significant") == 2


def test_a_regularizer_has_one_color_in_every_chart(runs):
    names = [["jigsaw"], ["rotation", "barlow-twins"], ["zoom", "barlow-twins", "jigsaw"], ["abacus", "zoom"]]
    settings = [
        runs.plain | {"buffer": size, "regularizer": name}
        for size, others in enumerate(names, 1)
        for name in ("none", *others)
    ]
    made = page(runs.report(*((one, [30.0]) for one in settings)))
    keys = re.findall(r'<i class="key c(\d) d0"></i>(?:\+ )?([^<]+)<', made)
    assert len(keys) == len(settings)
    assert {(label, int(color)) for color, label in keys} == {
        *(("ER-ACE", 0), ("CLER (rotation)", 1), ("CLER (jigsaw)", 2), ("CSSL", 3), ("abacus", 4), ("zoom", 5))
    }


def test_a_run_with_fewer_tasks_does_not_cut_the_others_short(runs):
    long, other, short = runs.make(runs.plain, [30.0, 40.0, 50.0])
    for name, rows in short.accuracy.items():
        short.accuracy[name] = rows[:2]
    chart, matrix = (
        page(make_report(compare(order))).split(part)[1].split("</svg>")[0]
        for order, part in (([short, long, other], 'class="chart"'), ([long, short, other], 'class="heat"'))
    )
    assert "after task 2: 55.0 ± 0.0 %" in chart
    assert "after task 3: 35.0 ± 7.1 %" in chart
    assert re.findall(r">(\d+)</text>", matrix) == ["60", "50", "60", "35", "35", "35"]
    assert "Z" in page(make_report(compare([short, long]))).split('class="band')[1].split("/>")[0]


def test_references_alone_are_drawn_all_the_same(runs):
    elements = Elements(page(runs.report((runs.finetune, [16.0]), (runs.joint, [45.0]))))
    assert elements.count("svg", "chart") == 4
    assert elements.count("i", "span") == 0


def test_the_glance_comes_first_and_then_what_differs(report):
    text = page(report)
    parts = (
        "<h1>",
        'class="counts"',
        *report.beside.verdict,
        'class="glance"',
        "What was done.",
        'class="forest"',
        "<dl",
    )
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert text.index("At last.") > text.index("Accuracy matrices")


def test_every_mark_is_a_color_and_a_sign_and_leads_to_its_row(report):
    elements = Elements(page(report))
    links = [has["href"] for tag, has in elements.found if tag == "a" and "mark" in has.get("class", "")]
    rows = [has["id"] for tag, has in elements.found if tag == "tr" and "id" in has]
    assert len(links) == 2
    assert {link.removeprefix("#") for link in links} <= set(rows)
    assert len(rows) == len(set(rows))
    for kind, sign in (("agrees", "✓<small>+0.1"), ("off", "≠<small>−3.0"), ("not-run", "·")):
        assert re.search(rf'class="mark {kind}"[^>]*>{re.escape(sign)}<', page(report))


def test_without_published_numbers_there_is_no_glance(runs):
    assert 'id="glance"' not in page(runs.report((runs.plain, [30.0])))


def test_a_regularized_row_without_its_method_has_no_chart_of_its_own(runs):
    pairs = (runs.plain, [30.0]), (runs.cler, [33.0]), (runs.cler | {"precision": "tf32"}, [34.0])
    assert Elements(page(runs.report(*pairs))).count("svg", "chart") == 2
    assert Elements(page(runs.report(*pairs[1:]))).count("svg", "chart") == 4


def test_names_are_shown_not_obeyed(runs):
    text = page(runs.report((runs.plain | {"dataset": "<script>x&y</script>", "method": '"><b>'}, [30.0])))
    assert "script" not in {tag for tag, _ in Elements(text).found}
    assert "&lt;script&gt;x&amp;y" in text


HANG = 600_000
"""Milliseconds that the browser may take for anything: a hang, on the slowest machine."""


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("there is no chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=HANG)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def address(report, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "index.html"
    path.write_text(page(report), "utf-8")
    return path.as_uri()


@pytest.fixture
def look(browser, address):
    """Open the page in a window of a width and a color scheme, without a network."""
    contexts = []

    def open_page(width=1280, scheme="light"):
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme, offline=True)
        context.set_default_timeout(HANG)
        contexts.append(context)
        window = context.new_page()
        window.asked = []
        window.on("request", lambda request: window.asked.append(request.url))
        window.goto(address)
        return window

    yield open_page
    for context in contexts:
        context.close()


CONTRAST = """() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const light = (color, under) => {
    canvas.fillStyle = under; canvas.fillRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
    const linear = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3)
      .map(value => value / 255).map(value => value <= .04045 ? value / 12.92 : ((value + .055) / 1.055) ** 2.4);
    return .2126 * linear[0] + .7152 * linear[1] + .0722 * linear[2];
  };
  const behind = element => {
    const color = getComputedStyle(element).backgroundColor;
    return color !== 'rgba(0, 0, 0, 0)' || !element.parentElement ? color : behind(element.parentElement);
  };
  const ratio = (one, other) => (Math.max(one, other) + .05) / (Math.min(one, other) + .05);
  const with_text = 'p, th, td, dt, dd, summary, small, figcaption, li, a, .mark, .label, .value';
  const texts = [...document.querySelectorAll(with_text)]
    .map(element => {
      const under = behind(element);
      return ratio(light(getComputedStyle(element).color, under), light(under, under));
    });
  const cells = [...document.querySelectorAll('.heat rect')].map(rect => {
    const under = behind(rect), text = rect.nextElementSibling, shade = rect.getAttribute('fill-opacity');
    const fill = getComputedStyle(rect).fill.replace('rgb(', 'rgba(').replace(')', `, ${shade})`);
    return ratio(light(getComputedStyle(text).fill, under), light(fill, under));
  });
  return [Math.min(...texts), Math.min(...cells)];
}"""


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_in_light_and_in_the_dark(look, scheme):
    window = look(scheme=scheme)
    ground = window.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (int(re.search(r"\d+", ground).group()) < 60) == (scheme == "dark")
    texts, cells = window.evaluate(CONTRAST)
    assert texts >= 4.5  # what WCAG asks of text
    assert cells >= 3.5


@pytest.mark.browser
def test_a_phone_scrolls_the_tables_and_not_the_page(look):
    window = look(width=375)
    assert window.evaluate("document.documentElement.scrollWidth") == 375
    inside, outside = window.evaluate("(box => [box.scrollWidth, box.clientWidth])(document.querySelector('.across'))")
    assert inside <= outside  # all marks of a table are seen at once
    boxes = window.evaluate("[...document.querySelectorAll('.scroll')].map(box => [box.scrollWidth, box.clientWidth])")
    assert any(inside > outside for inside, outside in boxes)
    assert all(outside <= 375 for _, outside in boxes)
    _, other = window.locator("#published tbody td:not(.first)").all()[:2]  # after ours
    assert other.inner_text() == "20.00 ± 1.00"
    frame, number = window.locator("#published .scroll").first.bounding_box(), other.bounding_box()
    assert number["x"] + number["width"] <= frame["x"] + frame["width"]
    small = "[...document.querySelectorAll('svg text')].map(text => text.getBoundingClientRect().height)"
    assert min(window.evaluate(small)) >= 9


@pytest.mark.browser
def test_a_mark_leads_to_a_row_that_stands_out(look):
    window = look()
    color = "getComputedStyle(document.getElementById('row-0')).backgroundColor"
    before = window.evaluate(color)
    window.locator("a.mark").first.click()
    assert window.locator("#row-0").is_visible()
    assert window.evaluate(color) != before


@pytest.mark.browser
def test_settings_open_on_demand_and_nothing_is_fetched(look, address):
    window = look()
    setting = window.locator("dl.settings").first
    assert not setting.is_visible()
    window.locator("summary").first.click()
    assert setting.is_visible()
    assert "lr\n0.01" in setting.inner_text()
    assert window.asked == [address]


@pytest.mark.browser
def test_what_is_drawn_has_its_place(look):
    window = look()
    boxes = "selector => [...document.querySelectorAll(selector)].map(one => one.getBoundingClientRect().toJSON())"
    for selector in (".chart", ".heat", ".heat rect", ".span"):
        drawn = window.evaluate(boxes, selector)
        assert drawn
        assert all(box["width"] > 3 and box["height"] > 3 for box in drawn), selector
    for track, point in zip(
        *(window.evaluate(boxes, one) for one in (".track:not(.axis)", ".track .point")), strict=True
    ):
        assert track["left"] - 6 <= point["left"] <= track["right"] + 6
        assert track["top"] <= point["top"] <= track["bottom"]
    ticks = window.evaluate(boxes, ".axis span")
    pairs = [(one, other) for one, other in pairwise(ticks) if one["top"] == other["top"]]
    assert all(one["right"] < other["left"] for one, other in pairs)
