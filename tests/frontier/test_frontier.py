"""Rows, contests, the best of them, and the page, of results that are made up."""

import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest

from cler.config.making import make_settings
from cler.frontier import figure
from cler.frontier.entries import Entry, Frontier, make_frontier
from cler.frontier.page import best_table, contest_sheet, fronts_table, gains_sheet, page
from cler.frontier.published import Contest, Number, published, sources
from cler.paper.frontier_numbers import in_the_paper
from cler.runs.compare import compare
from cler.runs.results import Result, make_result
from cler.runs.series import Estimate


class Arithmetic:
    """Stands for what is counted: 2 with CLER, 1 without."""

    def count(self, rows):
        pass

    def relative(self, settings):
        return 2.0 if settings["regularizer"] != "none" else 1.0


def results(finals, **changes):
    """Runs whose last accuracies are given, with seeds from 0 on."""
    settings = make_settings(dataset="cifar100", precision="bf16", **changes).to_dict()
    made = []
    for seed, final in enumerate(finals):
        rows = [[50.0] * task + [60.0] for task in range(9)] + [[final] * 10]
        accuracy = {"class_il": rows, "task_il": rows}
        value = make_result(settings, seed, accuracy, 60.0, 60, {})
        made.append(Result.from_dict(Path(f"{settings['method']}/{len(made)}/result.json"), value))
    return made


def frontier(*groups):
    return make_frontier(compare([run for runs in groups for run in runs]).groups, Arithmetic(), in_the_paper)


MKD = {"method": "er", "teacher": "mkd", "protocol": "online-10+64", "buffer": 1000}
PLAIN = [38.0, 38.2, 38.4, 38.6, 38.8, 30.0]
LUCKY = [39.0, 39.1, 39.2, 39.3, 39.4, 32.0, 34.0]
FEW = [99.0, 99.0]


@pytest.fixture(scope="module")
def found():
    return frontier(
        results(PLAIN, **MKD),
        results(LUCKY, **MKD, regularizer="jigsaw"),
        results(FEW, method="er", protocol="online-10+64", buffer=1000),
        results([20.0] * 5, method="er-ace", buffer=500),
        results([50.0] * 5, method="er-ace", buffer=500, validate=0.1),
        results([50.0] * 5, method="er-ace", buffer=500, epochs=5),
        results([50.0] * 5, method="er-ace", buffer=500, regularizer="rotation"),
        results([50.0] * 5, method="finetune"),
    )


def test_contests_are_protocols_and_buffers_and_rows_are_the_comparable_ones(found):
    assert found.contests == [Contest("10+10", 500), Contest("10+64", 1000)]
    assert [entry.row.label for entry in found.of(found.contests[0])] == ["ER-ACE"]
    assert [entry.row.label for entry in found.of(found.contests[1])] == ["ER", "ER + CLER (jigsaw) + MKD", "ER + MKD"]


@pytest.mark.parametrize(
    "changes",
    [
        {"stream": "shuffled"}, {"tasks": 20}, {"epochs": 2}, {"batch": 20}, {"validate": 0.1}, {"width": 32},
        {"freeze": True}, {"classifier": "ncm"}, {"class_order": 3}, {"network": "slim-resnet18"},
        {"regularizer": "rotation"},
    ],
    ids=str,
)  # fmt: skip
def test_runs_of_another_benchmark_or_network_are_not_compared(changes):
    chosen = {"method": "er-ace", "buffer": 500}
    found = frontier(results([20.0] * 5, **chosen), results([50.0] * 5, **chosen, **changes))
    assert [entry.accuracy.mean for entry in found.entries] == [20.0]
    assert [str(number) for number in found.entries[0].published] == ["20.17 ± 1.31"]


def test_the_best_is_picked_on_the_first_seeds_and_told_on_others(found):
    _, best = found.best()
    assert best.row.label == "ER + CLER (jigsaw) + MKD"  # ER has too few seeds to be picked
    assert best.picked_by.mean == pytest.approx(39.2)
    assert best.fresh == [32.0, 34.0]
    assert found.best_published(best.contest) == Number("GSA + MKD", Contest("10+64", 1000), 40.1, "mkd", 1.0)
    row = "| 10+64 | 1000 | ER + CLER + MKD | 39.20 ± 0.16 | 33.00 ± 1.41 (2) | 2.0 × | 40.1 ± 1, GSA + MKD |"
    assert row in best_table(found)
    assert "| 10+10 | 500 | ER-ACE | 20.00 ± 0.00 | not run | 1.0 × | 20.17 ± 1.31, ER-ACE |" in best_table(found)


def test_a_row_has_its_cost_and_what_was_published(found):
    sheet = contest_sheet(found, Contest("10+64", 1000))
    rows = {row.cells[0].text: [cell.text for cell in row.cells[1:]] for row in sheet.rows}
    seeds, accuracy, stream, forgetting, cost, beside = rows["ER + MKD"]
    assert (seeds, cost, beside) == ("6", "1.0 ×", "38.5 ± 0.5, 37.5")
    assert [row.cells[-1].note for row in sheet.rows] == ["(ccl-dc, mkd)", "", "(mkd, pdfk)"]
    assert accuracy.startswith("37.00 ± 3.4")
    assert stream.split()[0] == f"{(60 + sum((50 * task + 60) / (task + 1) for task in range(1, 9)) + 37) / 10:.2f}"
    assert forgetting.split()[0] == "23.00"
    assert rows["ER + CLER + MKD"][-1] == ""
    assert [row.cells[0].note for row in sheet.rows] == ["", "picked on seeds 0–4", ""]
    assert "GSA + MKD 40.1 ± 1 (mkd)" in sheet.note
    assert "ER + MKD 3" not in sheet.note


def test_a_variant_of_a_method_has_no_published_number():
    chosen = {"method": "ccl-dc", "protocol": "online-10+64", "buffer": 1000}
    for changes, numbers in (({}, ["37.2 ± 1.2"]), ({"networks": 1}, []), ({"repeats": 2}, [])):
        (entry,) = frontier(results([30.0], **chosen, **changes)).entries
        assert list(map(str, entry.published)) == numbers


def test_runs_in_another_protocol_are_not_called_the_published_method():
    chosen = {"method": "er", "protocol": "online-10+64", "buffer": 1000}
    other_order = results([90.0] * 5, **chosen, class_order=3)
    natural_order = results([90.0] * 5, method="er", replay_batch=64, buffer=1000)
    for changes in ({"augment": "none"}, {"optimizer": "sgd"}, {"normalize": True}):
        changed = results([50.0] * 5, **chosen, **changes)
        found = frontier(results([30.0] * 5, **chosen), changed, other_order, natural_order)
        assert [len(entry.published) for entry in found.of(Contest("10+64", 1000))] == [0, 2]
        ((name, value),) = changes.items()
        assert f"| 10+64 | 1000 | ER, {name} {value} | 50.00 ± 0.00 |" in best_table(found)


def test_what_cler_adds_is_told_also_where_it_is_nothing(found):
    (row,) = gains_sheet(found).rows
    texts = [cell.text for cell in row.cells]
    assert texts[:3] == ["ER + MKD", "10+64", "1000"]
    assert texts[5] == "+0.43"
    assert not row.cells[7].strong
    told = page(found, "# First\n\n---\n\n## Last", "figure.png")
    assert "significantly (after Holm's correction) in 0 of 1 pairs." in told
    assert "Not significantly: ER + MKD (10+64, buffer 1000)." in told
    assert told.startswith("# First\n\n## The best row for each protocol and buffer")
    assert told.endswith("## Last\n")
    assert "](figure.png)" in told


def test_a_page_of_few_runs_says_what_there_is_not():
    told = page(frontier(results([20.0, 21.0], method="er-ace", buffer=500)), "# Few", "figure.png")
    assert "protocol and buffer\n\nNo row has all of the seeds 0 to 4, which decide.\n\n## Acc" in told
    assert told.endswith("## What CLER adds\n\nFor no row with CLER is there one without it.\n")
    assert "\n\n\n" not in told


def test_the_front_is_by_accuracy_and_arithmetic(found):
    assert [entry.row.label for entry in found.cheapest(Contest("10+64", 1000))] == ["ER"]
    both = frontier(results(PLAIN, **MKD), results(LUCKY, **MKD, regularizer="jigsaw"))
    assert [entry.arithmetic for entry in both.cheapest(Contest("10+64", 1000))] == [1.0, 2.0]
    steps = ["| 10+64 | 1000 | ER + MKD | 37.00 | 1.0 × |", "| 10+64 | 1000 | ER + CLER + MKD | 37.43 | 2.0 × |"]
    assert fronts_table(both).splitlines()[2:] == steps


def test_the_front_has_no_row_that_another_beats_with_as_little():
    points = [(2.0, 30.0), (1.0, 20.0), (2.0, 31.0), (3.0, 31.0), (4.0, 40.0), (1.0, 10.0)]
    contest = Contest("10+10", 500)
    rows = [SimpleNamespace(final_accuracy={"class_il": Estimate(accuracy, 0.0)}) for _, accuracy in points]
    entries = [Entry(row, contest, cost, ()) for row, (cost, _) in zip(rows, points, strict=True)]
    assert Frontier(tuple(entries), ()).cheapest(contest) == [entries[index] for index in (1, 2, 4)]
    assert Frontier((), ()).cheapest(contest) == []


def test_of_several_precisions_the_one_of_most_runs_is_taken():
    other = results([90.0] * 3, method="er-ace", buffer=500)
    for run in other:
        run.settings["precision"] = "fp32"
    few = [results([20.0] * 2, method="er-ace", buffer=buffer) for buffer in (500, 1000)]
    assert [entry.accuracy.mean for entry in frontier(*few, other).entries] == [20.0, 20.0]
    assert [entry.accuracy.mean for entry in frontier(few[0], other).entries] == [90.0]


def test_all_that_others_print_for_a_method_stands_beside_it_the_highest_first():
    """GSA: its authors, those of MKD, those of CCL-DC."""
    (entry,) = frontier(results([37.0], method="gsa", protocol="online-10+64", buffer=2000)).entries
    assert [(number.mean, number.source) for number in entry.published] == [
        (39.7, "gsa"), (37.0, "mkd"), (35.1, "ccl-dc"),
    ]  # fmt: skip


def test_every_published_number_has_a_source_and_stands_once():
    numbers = published()
    assert {number.source for number in numbers} <= sources().keys()
    assert len({(number.label, number.contest, number.source) for number in numbers}) == len(numbers)
    assert {number.contest.protocol for number in numbers} == {"10+64"}
    assert all(0 < number.mean < 100 for number in numbers)


def test_names_in_the_figure_cover_neither_points_nor_each_other(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(figure, "write_figure", lambda made, *_: drawn.append(made))
    online = {"protocol": "online-10+64", "buffer": 1000}
    close = ({"method": "er"}, {"method": "er", "regularizer": "jigsaw"}, {"method": "er-ace", "teacher": "ema"})
    many = [run for at, each in enumerate(close) for run in results([30.0 + 0.3 * at] * 5, **online, **each)]
    figure.draw_frontier(make_frontier(compare(many).groups, Counted(), in_the_paper), tmp_path / "f.png")
    panel = drawn[0].axes[0]
    names = [text for text in panel.texts if "best published" not in text.get_text()]
    assert [name.get_text() for name in names] == ["ER-ACE + EMA", "ER + CLER", "ER"]
    boxes = [name.get_window_extent() for name in names]
    points = [panel.transData.transform(x) for drawn in panel.collections for x in drawn.get_offsets()]
    assert not any(box.contains(*point) for box in boxes for point in points)
    _, line = panel.transData.transform((1, 40.1))
    assert not any(box.containsy(line) for box in boxes)
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
    assert all(panel.bbox.containsx(x) for box in boxes for x in (box.x0, box.x1))


class Counted:
    """Stands for what is counted: little more with CLER, and still more with an average."""

    def count(self, rows):
        pass

    def relative(self, settings):
        return 1.0 + 0.1 * (settings["regularizer"] != "none") + 0.2 * (settings["teacher"] != "none")
