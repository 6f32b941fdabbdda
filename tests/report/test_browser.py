"""The page in a real browser (chromium, driven by Playwright): sorting, filters, narrow, dark, long, live."""

import re
import shutil
import threading
from itertools import pairwise

import pytest

from cler.config.machine import Machine
from cler.config.making import make_settings
from cler.data import images
from cler.engine.events import Evaluated
from cler.report.content import make_report
from cler.report.watch import watch
from cler.report.write import write_page
from cler.runs.compare import compare
from cler.runs.jobs import make_jobs
from cler.runs.logs import Log
from cler.runs.scan import Attachments, Scan, Unfinished
from cler.runs.trainers import train_bundles
from toys import Toy, wait_until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HANG = 600_000
"""Milliseconds that the browser may take for anything: a hang, on the slowest machine."""
pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("there is no chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=HANG)
        yield opened
        opened.close()


@pytest.fixture
def look(browser):
    """Open a page in a window of a width and a color scheme, without a network."""
    contexts = []

    def open_page(address, width=1280, scheme="light", **options):
        window = {"viewport": {"width": width, "height": 800}, "color_scheme": scheme, "offline": True}
        context = browser.new_context(**window | options)
        context.set_default_timeout(HANG)
        contexts.append(context)
        window = context.new_page()
        window.asked, window.wrong = [], []
        window.on("request", lambda request: window.asked.append(request.url))
        window.on("pageerror", lambda error: window.wrong.append(str(error)))
        window.on("console", lambda message: window.wrong.append(message.text))
        window.goto(address)
        return window

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def address(report, tmp_path_factory):
    """A report on few runs."""
    return write_page(report, tmp_path_factory.mktemp("page")).as_uri()


METHODS = ("er-ace", "er", "derpp", "xder", "cope")


@pytest.fixture(scope="module")
def hundred(runs, tmp_path_factory):
    """A report on a hundred rows, with curves of the loss and runs that are not finished."""
    finals = iter(range(10_000))
    pairs = [
        (runs.plain | {"method": method, "buffer": size, "dataset": dataset, "lr": 0.01 if name == "none" else 0.03}
         | {"regularizer": name, "weight": weight}, [20 + next(finals) * 37 % 600 / 10, 30.0])
        for dataset in ("cifar100", "mini-imagenet")
        for size in (500, 2000)
        for method in METHODS
        for name, weight in (("none", 0), ("jigsaw", 1.5), ("rotation", 1.0), ("barlow-twins", 1.0), ("jigsaw", 0.5))
    ]  # fmt: skip
    comparison = runs.compare(*pairs)
    assert len(comparison.groups) == 100
    losses = {
        name: [(task, step, 3 / (1 + task + step)) for task in range(3) for step in range(1, 101)] for name in "ab"
    }
    log = Log(losses, dict.fromkeys(range(3), 100))
    attachments = {run.path.parent: Attachments(log) for group in comparison.groups for run in group.results}
    settings = comparison.groups[0].settings
    unfinished = [Unfinished(comparison.groups[0].results[0].path, settings, seed, log, True) for seed in range(5)]
    made = make_report(comparison, attachments=attachments, unfinished=unfinished)
    return write_page(made, tmp_path_factory.mktemp("hundred"))


CONTRAST = """() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const light = (...colors) => {
    for (const color of colors) { canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1); }
    const linear = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3)
      .map(value => value / 255).map(value => value <= .04045 ? value / 12.92 : ((value + .055) / 1.055) ** 2.4);
    return .2126 * linear[0] + .7152 * linear[1] + .0722 * linear[2];
  };
  const style = element => getComputedStyle(element);
  const behind = element => {
    const color = style(element).backgroundColor;
    return color !== 'rgba(0, 0, 0, 0)' || !element.parentElement ? color : behind(element.parentElement);
  };
  const ratio = (one, other) => (Math.max(one, other) + .05) / (Math.min(one, other) + .05);
  const with_text = 'p, th, td, dt, dd, summary, small, figcaption, li, a, label, button, .mark, .label, .value';
  const texts = [...document.querySelectorAll(with_text)].filter(element => !element.closest('.heat'))
    .map(element => ratio(light(behind(element), style(element).color), light(behind(element))));
  const cells = [...document.querySelectorAll('.heat td')].map(cell => {
    const under = behind(cell.parentElement), shade = style(cell).backgroundColor;
    return ratio(light(under, shade, style(cell).color), light(under, shade));
  });
  return [Math.min(...texts), Math.min(...cells)];
}"""


LINES = """() => {
  const numbers = [...document.querySelectorAll('.glance thead th')].filter(each => /^\\d+$/.test(each.textContent));
  return numbers.map(each => {
    const text = document.createRange();
    text.selectNodeContents(each);
    return text.getClientRects().length;
  });
}"""
"""How many lines each number that heads a column of marks takes."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_in_light_and_in_the_dark(look, address, scheme):
    window = look(address, scheme=scheme)
    ground = window.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (int(re.search(r"\d+", ground).group()) < 60) == (scheme == "dark")
    texts, cells = window.evaluate(CONTRAST)
    assert texts >= 4.5  # what WCAG asks of text
    assert cells >= 3.5


def test_a_phone_scrolls_the_tables_and_not_the_page(look, address):
    window = look(address, width=375)
    window.locator("tr.runs summary").first.click()
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
    small = "[...document.querySelectorAll('.fold svg text')].map(text => text.getBoundingClientRect().height)"
    assert min(window.evaluate(small)) >= 9


def test_a_phone_puts_the_cells_of_a_table_in_words_below_each_other(look, address):
    window = look(address, width=390)
    first, second = (window.locator("table.prose tbody td").nth(number) for number in (0, 1))
    assert second.bounding_box()["y"] >= first.bounding_box()["y"] + first.bounding_box()["height"]
    assert second.evaluate("cell => getComputedStyle(cell, '::before').content") == '"why: "'
    assert look(address).locator("table.prose thead").is_visible()


def test_a_phone_breaks_no_number_above_the_marks(look, address):
    """However little room is left for them; the names of datasets above may break."""
    window = look(address, width=320)
    window.evaluate("document.querySelectorAll('.glance').forEach(each => each.style.width = 'min-content')")
    assert set(window.evaluate(LINES)) == {1}


def test_a_mark_leads_to_a_row_and_the_row_to_its_runs(look, address):
    window = look(address)
    color = "getComputedStyle(document.getElementById('row-0').cells[1]).backgroundColor"
    before = window.evaluate(color)
    window.locator("a.mark").first.click()
    assert window.locator("#row-0").is_visible()
    assert window.evaluate(color) != before
    window.locator("#filters input[type=search]").fill("nothing has this")
    assert not window.locator("#row-0").is_visible()
    window.locator("#filters input[type=search]").fill("")
    link = window.locator("#row-0 a")
    there = window.locator(f"tr{link.get_attribute('href')}")
    link.click()
    there.locator("+ tr.more").wait_for()  # a browser tells its page of the new address when it has time


def test_a_row_opens_on_demand_and_nothing_is_fetched(look, address):
    window = look(address)
    setting = window.locator("dl.settings").first
    assert not setting.is_visible()
    window.locator("tr.runs summary").first.click()
    assert setting.is_visible()
    assert "lr\n0.01" in setting.inner_text()
    window.locator("tr.runs td:last-child").first.click()  # anywhere on the row
    assert not setting.is_visible()
    assert window.asked == [address]
    assert window.wrong == []


def test_what_is_drawn_has_its_place(look, address):
    window = look(address)
    window.evaluate("for (const row of document.querySelectorAll('details')) row.open = true")
    boxes = "selector => [...document.querySelectorAll(selector)].map(one => one.getBoundingClientRect().toJSON())"
    for selector in (".chart", ".heat", ".heat td", ".span"):
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


def column(table, number):
    """The texts of a column, a list for each group of rows."""
    bodies = table.evaluate(
        "(table, number) => [...table.tBodies].map(body => [...body.rows].filter(row => row.matches('.runs'))"
        ".map(row => row.cells[number].textContent.trim()))",
        number,
    )
    return [[text.replace("−", "-") for text in body] for body in bodies]


def test_a_click_on_a_heading_sorts_within_each_buffer(look, hundred):
    window = look(hundred.as_uri())
    table = window.locator("table[data-sheet='cifar100: results']")
    before = column(table, 2)
    gain, accuracy = (table.locator("th[scope=col]", has_text=name).first for name in ("gain", "accuracy"))
    accuracy.locator("button").click()
    numbers = [[float(text.split()[0]) for text in body] for body in column(table, 2)]
    assert len(numbers) == 2
    assert all(body == sorted(body, reverse=True) for body in numbers)
    assert accuracy.get_attribute("aria-sort") == "descending"
    gain.locator("button").focus()  # without a mouse
    window.keyboard.press("Enter")
    window.keyboard.press("Space")
    assert (accuracy.get_attribute("aria-sort"), gain.get_attribute("aria-sort")) == (None, "ascending")
    for body in column(table, 4):
        known = [float(text) for text in body if text]
        assert known == sorted(known)
        assert not any(body[len(known) :])  # rows without a gain come last
    window.keyboard.press("Enter")
    assert gain.get_attribute("aria-sort") is None
    assert column(table, 2) == before
    table.locator("tr.runs summary", has_text="X-DER + CSSL").first.click()
    accuracy.locator("button").click()
    settings = table.locator("tr.runs:has(details[open]) + tr.more").inner_text()
    assert settings.startswith("method\nxder\nregularizer\nbarlow-twins\n")  # it has moved with its row


def test_rows_are_filtered_by_method_and_by_words(look, hundred):
    window = look(hundred.as_uri())
    shown = window.locator("tr.runs:visible")
    assert shown.count() == 100
    window.locator("#filters label", has_text="CoPE").click()
    assert shown.count() == 20
    assert window.locator("#filters output").inner_text() == "20 of 100 rows"
    assert window.locator("#unfinished tbody tr:visible").count() == 0  # ER-ACE's
    window.locator("#filters label", has_text="X-DER").click()
    window.locator("#filters input[type=search]").fill("JIGSAW 2000")
    assert shown.count() == 2 * 2 * 2
    assert {text.split(" +")[0] for text in shown.locator("summary").all_inner_texts()} == {"CoPE", "X-DER"}
    assert window.locator("tr.heading:visible").all_inner_texts() == ["buffer 2000"] * 2
    window.locator(".fold summary").first.click()
    assert window.locator("figure[data-method]:visible figcaption").all_inner_texts() == [
        *("CoPE, buffer 2000", "X-DER, buffer 2000")
    ]
    window.locator("#filters button").click()
    assert shown.count() == 100
    window.locator("#filters input[type=search]").fill("cifar100 jigsaw 500")
    assert shown.count() == 10
    assert window.locator("#unfinished tbody tr[data-method]:visible").count() == 0  # they have no regularizer
    window.locator("#filters input[type=search]").fill("cifar100 500")
    assert window.locator("#unfinished tbody tr[data-method]:visible").count() == 5
    assert window.wrong == []


def test_a_page_that_loads_again_unfolds_what_was_unfolded_and_no_more(look, hundred):
    window = look(hundred.as_uri())
    rows, folds = window.locator("tr.runs details"), window.locator("details.fold")
    rows.nth(30).locator("summary").click()  # the same method with another buffer and on another dataset has rows too
    folds.last.locator("summary").click()
    under_way = window.locator("#unfinished details")
    under_way.nth(3).locator("summary").click()  # other seeds have the same name
    wait_until(lambda: window.evaluate("Object.keys(window.cler.state.folds).length === 3"))
    window.evaluate("history.replaceState(window.cler.state, '')")
    window.reload()
    unfolded = "list => list.map((one, number) => one.open ? number : -1).filter(number => number >= 0)"
    assert rows.evaluate_all(unfolded) == [30]
    assert folds.evaluate_all(unfolded) == [folds.count() - 1]
    assert under_way.evaluate_all(unfolded) == [3]
    assert window.locator("#unfinished .chart:visible").count() == 2


def test_a_link_that_leads_nowhere_breaks_nothing(look, hundred):
    window = look(f"{hundred.as_uri()}#%")
    assert window.evaluate("'bar' in window.cler")
    assert window.wrong == []


def test_a_hundred_rows_stay_readable(look, hundred):
    assert hundred.stat().st_size < 1_500_000
    window = look(hundred.as_uri())
    heights = window.evaluate("[...document.querySelectorAll('tr.runs')].map(row => row.offsetHeight)")
    assert len(heights) == 100
    assert max(heights) < 40  # one line each
    assert max(window.evaluate("[...document.querySelectorAll('#unfinished tr')].map(row => row.offsetHeight)")) < 40
    assert window.evaluate("document.querySelector('#summary').getBoundingClientRect().bottom") <= 800
    assert window.evaluate("document.documentElement.scrollWidth") == 1280
    assert window.evaluate("document.documentElement.scrollHeight") < 8000
    headings = window.locator("tr.heading:visible").all_inner_texts()
    assert headings == ["buffer 500", "buffer 2000"] * 2
    color = "tone => getComputedStyle(document.querySelector(`td.${tone}`)).color"
    assert window.evaluate(color, "up") != window.evaluate(color, "down")
    narrow = look(hundred.as_uri(), width=390)
    assert narrow.evaluate("document.documentElement.scrollWidth") == 390


def test_headings_stay_in_sight(look, hundred):
    window = look(hundred.as_uri())
    table = window.locator("table[data-sheet='cifar100: results']")
    table.locator("tr.runs").last.evaluate("row => row.scrollIntoView({block: 'center', behavior: 'instant'})")
    heading, filters = table.locator("thead").first.bounding_box(), window.locator("#filters").bounding_box()
    assert filters["y"] == 0
    assert heading["y"] == pytest.approx(filters["height"], abs=1)
    window.set_viewport_size({"width": 375, "height": 800})
    wait_until(
        lambda: window.evaluate("!document.querySelector('.scroll:has(tr.runs)').matches('.fits')")
    )  # it scrolls instead
    assert window.evaluate("document.documentElement.scrollWidth") == 375


def test_a_page_without_rows_has_no_filters(look, runs, tmp_path):
    assert look(write_page(make_report(runs.compare(), []), tmp_path).as_uri()).locator("#filters").is_hidden()


def test_long_names_are_whole_and_do_not_widen_the_page(look, runs, tmp_path):
    sides = [{"batch": batch, "replay_batch": batch + 10, "width": width} for batch in (5, 10) for width in (16, 20)]
    grid = [{**one, "lr": lr} for one in sides for lr in (0.03, 0.1)]
    rows = runs.plain, *(runs.cler | {"weight": weight} for weight in (0.5, 1.5))
    pairs = [(row | one, [30.0, 31.0]) for one in grid for row in rows]
    comparison, log = runs.compare(*pairs), Log({"stream": [(0, step, 1.0) for step in (1, 2)]}, {0: 2})
    folder = comparison.groups[0].results[0].path
    under_way = [Unfinished(folder, row.settings, 0, log, running) for row in comparison.groups for running in (0, 1)]
    made = make_report(comparison, ["skipped: /mnt/" + "long_folder_" * 20], unfinished=under_way)
    address = write_page(made, tmp_path).as_uri()
    assert look(address, width=375).evaluate("document.documentElement.scrollWidth") == 375
    window = look(address)
    for fold in window.locator(".fold").all():
        fold.evaluate("fold => fold.open = true")
    names = window.locator(".scroll td.first, .scroll td.first summary, .label")
    assert names.evaluate_all("all => all.filter(one => one.scrollWidth > one.clientWidth).length") == 0
    titles = [cell.get_attribute("title") for cell in window.locator("tr.runs td.first").all()]
    assert "ER-ACE + CLER (jigsaw) batch 10, replay_batch 20, width 20, lr 0.03, weight 0.5" in titles


def test_on_paper_colors_stay_and_what_nobody_can_click_is_left_out(look, address):
    window = look(address, scheme="dark")
    window.emulate_media(media="print")
    assert not window.locator("#filters").is_visible()
    heading = window.locator("table[data-sheet] > thead").first
    assert heading.evaluate("heading => getComputedStyle(heading).position") == "static"
    assert window.evaluate("getComputedStyle(document.querySelector('.mark')).printColorAdjust") == "exact"
    ground = window.evaluate("getComputedStyle(document.body).backgroundColor")
    assert int(re.search(r"\d+", ground).group()) > 200  # light, also where screens are dark


def test_without_scripts_everything_is_there(look, hundred):
    window = look(hundred.as_uri(), java_script_enabled=False)
    assert window.locator("tr.runs:visible").count() == 100
    assert not window.locator("#filters").is_visible()
    window.locator("tr.runs summary").first.click()
    assert window.locator("dl.settings").first.is_visible()


@pytest.fixture
def training(tmp_path, monkeypatch):
    """A run in this process, which waits after each task to be let on."""
    monkeypatch.setitem(images.DATASETS._entries, "toy", Toy())
    settings = make_settings(method="er-ace", dataset="toy", tasks=2, buffer=16, width=4, batch=4, replay_batch=4)
    jobs, machine = make_jobs(settings, [0], tmp_path / "runs"), Machine(device="cpu", save_buffer_images=4)
    let_on = threading.Semaphore(0)

    def wait(event):
        if isinstance(event, Evaluated):
            assert let_on.acquire(timeout=HANG / 1000)

    thread = threading.Thread(target=lambda: train_bundles([jobs], machine, wait))
    yield thread, let_on
    let_on.release(10)
    if thread.ident:
        thread.join()


def eventually(ask, expected):
    """Ask a page that loads itself again, in the middle of which it has no answer, until the answer is this."""
    errors = pytest.importorskip("playwright.sync_api").Error

    def answered():
        try:
            return ask() == expected
        except errors:
            return False

    wait_until(answered)


def test_an_open_page_follows_the_runs(look, training, tmp_path):
    thread, let_on = training
    scan, stopped, written = Scan([tmp_path / "runs"]), threading.Event(), []

    def write(live=0.4):
        made = make_report(compare(scan.results), unfinished=scan.unfinished, attachments=scan.attachments)
        written.append(write_page(made, tmp_path / "report", live=live))

    watcher = threading.Thread(target=lambda: watch(scan, write, stopped.is_set, every=0.2))
    watcher.start()
    try:
        wait_until(lambda: written)  # there is nothing yet
        address = written[0].as_uri()
        window = look(address)
        thread.start()
        window.locator("#unfinished td", has_text="2 of 2").wait_for()
        window.set_viewport_size({"width": 1280, "height": 200})
        box = window.locator("#filters input[type=search]")
        eventually(lambda: (box.fill("er"), box.input_value())[1], "er")
        eventually(lambda: window.evaluate("scrollTo({top: 77, behavior: 'instant'}), scrollY"), 77)
        let_on.release(2)
        window.locator("tr.runs", has_text="ER-ACE").wait_for()  # it has finished, and nobody has loaded the page
        eventually(lambda: window.evaluate("scrollY"), 77)
        eventually(lambda: box.evaluate("box => [box.value, box === document.activeElement]"), ["er", True])
        eventually(lambda: window.locator("#unfinished").count(), 0)
    finally:
        stopped.set()
        watcher.join()
    before = len(written)
    scan.update()
    write(live=None)
    window.locator("body:not(:has(.live))").wait_for()
    window.locator("tr.runs summary").click()
    assert {"loss: stream", "confusion between tasks", "buffer at the end, seed 0"} <= {
        text.split("\n")[0] for text in window.locator(".traces figcaption").all_inner_texts()
    }
    assert window.locator(".traces img").evaluate("image => image.naturalWidth") > 16
    assert {*window.asked} == {address, *(url for url in window.asked if url.startswith("data:"))}
    assert before < 100  # only when something has changed
    assert window.wrong == []
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == ["index.html"]
