"""The page as text; `test_browser.py` looks at it in a browser."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

from cler.report.content import make_report
from cler.report.page import page
from cler.runs.compare import compare
from cler.runs.logs import Log
from cler.runs.scan import Attachments, Unfinished


class Elements(HTMLParser):
    """Checks that elements are closed in order, and counts them by name and class."""

    def __init__(self, text):
        super().__init__()
        self.open, self.found = [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        if tag not in ("meta", "br", "input", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def count(self, tag, *classes):
        return sum(one == tag and set(classes) <= set(has.get("class", "").split()) for one, has in self.found)


def test_commands_in_the_preface_look_like_commands(runs):
    made = page(runs.report((runs.plain, [30.0]), preface="By `cler <run>`, then."))
    assert "<p>By <code>cler &lt;run&gt;</code>, then.</p>" in made


def test_the_page_needs_nothing_from_elsewhere(report):
    text = page(report)
    elements = Elements(text)
    assert not {"link", "img", "iframe"} & {tag for tag, _ in elements.found}
    assert [has for tag, has in elements.found if tag == "script"] == [{}]
    assert not re.search(r"https?:|url\(|@import", text)


def test_only_the_script_of_the_page_may_run(report):
    text = page(report, live=2.0)
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:" in text


def test_only_a_live_page_loads_itself_again(report):
    live, final = page(report, live=2.0), page(report)
    for sign in ("location.reload()", 'http-equiv="refresh"', 'class="live"'):
        assert sign in live
        assert sign not in final
    assert 'content="2"' in live
    assert 'content="1"' in page(report, live=0.1)  # 0 would load it without a pause
    assert page(report) == final  # which does not tell the time


def test_everything_is_drawn(report):
    elements = Elements(page(report))
    assert elements.count("svg", "chart") == 2 * 2  # a method and its regularized twins, both scenarios
    assert elements.count("table", "heat") == 2 * 7
    assert elements.count("path", "line", "c0") == 2 * 2
    assert elements.count("path", "line", "c2") == 2 * 3
    assert elements.count("path", "line", "c2", "d1") == 2  # the second weight of the same regularizer
    assert elements.count("path", "line", "joint") == 2
    assert elements.count("i", "span") == 2 * 3
    assert elements.count("i", "published") == 2 * 1 + 1  # and one in the key
    assert elements.count("dl", "settings") == elements.count("tr", "runs") == 7


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
        page(make_report(compare(order))).split(part)[1].split(end)[0]
        for order, part, end in (
            ([short, long, other], 'class="chart"', "</svg>"),
            ([long, short, other], 'class="heat"', "</table>"),
        )
    )
    assert "after task 2: 55.0 ± 0.0 %" in chart
    assert "after task 3: 35.0 ± 7.1 %" in chart
    assert re.findall(r">(\d+)</td>", matrix) == ["60", "50", "60", "35", "35", "35"]
    assert "Z" in page(make_report(compare([short, long]))).split('class="band')[1].split("/>")[0]


def test_references_alone_are_drawn_all_the_same(runs):
    elements = Elements(page(runs.report((runs.finetune, [16.0]), (runs.joint, [45.0]))))
    assert elements.count("svg", "chart") == 4
    assert elements.count("i", "span") == 0


def test_the_glance_comes_first_and_then_what_differs(report):
    text = page(report)
    glance = ("<h1>", 'class="counts"', *report.beside.verdict, 'class="glance"')
    parts = (*glance, "What was done.", 'id="filters"', 'id="published"', 'id="data-1"', 'class="forest"', "At last.")
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


def test_every_mark_is_a_color_and_a_sign_and_leads_to_its_row(report):
    elements = Elements(page(report))
    links = [has["href"] for tag, has in elements.found if tag == "a" and "mark" in has.get("class", "")]
    rows = [has["id"] for _, has in elements.found if "id" in has]
    assert len(links) == 2
    assert {link.removeprefix("#") for link in links} <= set(rows)
    assert len(rows) == len(set(rows))
    for kind, sign in (("agrees", "✓<small>+0.1"), ("off", "≠<small>−3.0"), ("not-run", "·")):
        assert re.search(rf'class="mark {kind}"[^>]*>{re.escape(sign)}<', page(report))


def test_without_published_numbers_there_is_no_glance(runs):
    text = page(runs.report((runs.plain, [30.0, 31.0]), (runs.cler, [33.0, 32.0]), (runs.joint, [60.0])))
    assert 'class="glance"' not in text
    (first, second) = re.findall(r"<tr>(.*?)</tr>", text.split('<table class="summary">')[1].split("</table>")[0])[1:]
    assert re.findall(r">([^<>]+)<", first) == ["toy", "without a buffer", "1", "Joint", "60.00"]
    assert re.findall(r">([^<>]+)<", second) == [
        *("toy", "50", "2", "ER-ACE + CLER (jigsaw)", "32.50 ± 0.71", "+2.00", "1 of 1, 0 significantly")
    ]


def test_of_single_runs_the_summary_says_that_no_gain_is_tested(runs):
    text = page(runs.report((runs.plain, [30.0]), (runs.cler, [33.0])))
    assert "<td>1 of 1, not tested</td>" in text


def test_where_nothing_gains_nothing_is_said_of_significance(runs):
    text = page(runs.report((runs.plain, [30.0, 31.0]), (runs.cler, [28.0, 29.0])))
    assert "<td>0 of 1</td>" in text
    assert "Class-incremental: a regularizer raises accuracy in 0 of 1 row. Task-incremental" in text


def test_gains_are_drawn_in_the_order_of_the_tables(runs):
    methods = [one | {"method": name} for name in ("er-ace", "cope") for one in (runs.plain, runs.cler)]
    text = page(runs.report(*((one | {"buffer": size}, [30.0]) for size in (500, 50) for one in methods)))
    labels = re.findall(r'<div class="label">([^<]+)<', text)
    names = [f"{name} + CLER (jigsaw), buffer {size}" for size in (50, 500) for name in ("ER-ACE", "CoPE")]
    assert labels == names * 2


def test_a_row_leads_to_all_that_is_known_of_its_runs(runs, tmp_path):
    comparison = runs.compare((runs.plain, [30.0, 31.0]))
    (group,) = comparison.groups
    for run in group.results:
        object.__setattr__(run, "confusion", [[6, 2, 0], [1, 7, 0], [0, 4, 4]])
        object.__setattr__(run, "curves", CURVES)
    log = Log({"stream": [(0, 5, 2.0), (2, 10, 1.0)], "<b>": [(1, 5, 3.0)]}, {0: 10, 1: 10, 2: 10})
    attachments = {run.path.parent: Attachments(log) for run in group.results}
    text = page(make_report(comparison, attachments=attachments))
    captions = re.findall(r"<figure class=\"(\w+)\"><figcaption>([^<]+)", text)
    assert captions == [
        *(("curve", "loss: stream"), ("curve", "loss: &lt;b&gt;")),
        *(("curve", "accuracy, class-incremental"), ("curve", "accuracy, task-incremental")),
        *(("matrix", "accuracy matrix, class-incremental"), ("matrix", "accuracy matrix, task-incremental")),
        ("matrix", "confusion between tasks"),
    ]
    confusion = text.split("confusion between tasks<")[1].split("</table>")[0]
    assert re.findall(r"<td class=\"(h\d+)[^>]*>(\d+)<", confusion) == [
        *(("h15", "75"), ("h5", "25"), ("h0", "0"), ("h2", "12"), ("h18", "88"), ("h0", "0")),
        *(("h0", "0"), ("h10", "50"), ("h10", "50")),
    ]


CURVES = {
    "task": [0, 0, 1, 2],
    "step": [5, 10, 10, 10],
    "class_il": [[50.0], [60.0], [50.0, 60.0], [30.0] * 3],
    "task_il": [[70.0], [80.0], [70.0, 80.0], [50.0] * 3],
    "ahead_class_il": [],
    "ahead_task_il": [],
    "predicted": [[0, 0, 0, 1]] * 4,
    "tested": [8, 8, 8],
}


def test_runs_that_are_not_finished_tell_how_far_they_are(runs):
    log = Log({"stream": [(1, 5, 2.345678)]}, {0: 10, 1: 10}, 1, 5, {0: 44.0}, "2026-11-18T10:20:30+00:00")
    settings = [runs.plain | {"teacher": "none", "dataset": "<i>", "lr": lr} for lr in (0.1, 0.2)]
    unfinished = [Unfinished(Path(str(seed)), settings[seed], seed, log, running=bool(seed)) for seed in range(2)]
    text = page(make_report(compare([]), unfinished=unfinished))
    rows = [re.findall(r">([^<>]+)<", row) for row in re.findall(r'<tr data-method="er-ace"[^>]*>(.*?)</tr>', text)]
    same = ["50 %", " ", "2 of 3", "44.00", "stream 2.35"]
    assert rows == [
        ["ER-ACE ", "lr 0.2", "&lt;i&gt;", "50", "1", *same, "running 10:20:30"],
        ["ER-ACE ", "lr 0.1", "&lt;i&gt;", "50", "0", *same, "stopped 10:20:30"],
    ]
    assert "<h1>2 runs under way</h1>" in text
    captions = re.findall(r"<figure class=\"curve\"><figcaption>([^<]+)", text)
    assert captions == ["loss: stream", "accuracy, class-incremental"] * 2


def test_a_regularized_row_without_its_method_has_no_chart_of_its_own(runs):
    pairs = (runs.plain, [30.0]), (runs.cler, [33.0]), (runs.cler | {"precision": "tf32"}, [34.0])
    assert Elements(page(runs.report(*pairs))).count("svg", "chart") == 2
    assert Elements(page(runs.report(*pairs[1:]))).count("svg", "chart") == 4


def test_a_teacher_is_drawn_beside_the_method_without_it(runs):
    ema = {"teacher": "ema", "ema_momentum": 0.9}
    pairs = [(runs.plain, [30.0, 31.0]), (runs.cler, [33.0, 34.0]), (runs.cler | ema, [36.0, 37.0])]
    made = page(runs.report(*pairs))
    assert Elements(made).count("svg", "chart") == 2  # one panel, in two scenarios
    assert {"ER-ACE", "+ CLER (jigsaw)", "+ CLER (jigsaw) + EMA"} <= set(re.findall(r'"></i>([^<]+)<', made))
    pairs[1] = (runs.plain | ema, [32.0, 33.0])  # CLER without the teacher was not run
    made = page(runs.report(*pairs))
    assert Elements(made).count("svg", "chart") == 2
    assert {"ER-ACE", "+ EMA", "+ CLER (jigsaw) + EMA"} <= set(re.findall(r'"></i>([^<]+)<', made))


def test_names_are_shown_not_obeyed(runs):
    text = page(runs.report((runs.plain | {"dataset": "<script>x&y</script>", "method": '"><b>'}, [30.0])))
    assert Elements(text).count("script") == 1
    assert "&lt;script&gt;x&amp;y" in text
