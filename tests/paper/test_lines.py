import dataclasses
import json
import math
from pathlib import Path

import pytest

from cler.paper import reproduce
from cler.paper.lines import lines as lines_of
from cler.paper.lines import notes, verdict
from cler.paper.tables import find_table
from cler.paper.terminal_table import paper_table
from cler.report.console import Terminal
from small_table import cell_of, groups_of, pair_of, results

ROOT = Path(__file__).parents[2]


def line_of(lines, pair, scenario="class_il"):
    (line,) = [line for line in lines if (pair_of(line.cell), line.scenario, line.cell.epochs) == (pair, scenario, 1)]
    return line


def test_a_line_has_ours_the_paper_s_and_both_gains(table):
    groups = groups_of(
        results(cell_of(table, "er-ace"), [20.0, 21.0]), results(cell_of(table, "er-ace+jigsaw"), [27.0, 27.5, 28.0])
    )
    line = line_of(lines_of(table, groups), "er-ace+jigsaw")
    assert (line.runs, line.mean, line.std, line.difference) == (3, 27.5, 0.5, 3.5)
    assert line.adjusted_forgetting == pytest.approx(line.ours.adjusted_forgetting["class_il"].mean)
    assert line.p_value < 0.01
    assert line.agrees is False
    assert line.gain.points == pytest.approx(7.0)
    assert 0 < line.gain.p_value < 0.02
    assert (line.paper_gain.points, line.paper_gain.p_value) == (4.0, 0.001)
    other = line_of(lines_of(table, groups), "er-ace+jigsaw", "task_il")
    assert (other.mean, other.difference, other.p_value) == (67.5, 3.5, None)
    assert math.isnan(other.paper_gain.p_value)
    assert line_of(lines_of(table, groups), "er-ace").gain is None


def test_what_is_not_there_has_the_paper_s_numbers_only(table):
    lines = lines_of(table, [])
    assert len(lines) == 7
    assert {pair_of(line.cell) for line in lines if not line.cell.available} == {"joint", "icarl"}
    for line in lines:
        assert (line.runs, line.mean, line.std, line.adjusted_forgetting) == (0, None, None, None)
        assert (line.difference, line.p_value, line.agrees, line.gain) == (None, None, None, None)
        assert (line.gain_difference, line.gain_agrees) == (None, None)
        assert line.paper is not None
    told = json.dumps([line.to_json() for line in lines], allow_nan=False)
    assert json.loads(told)[0]["paper"]["mean"] > 0


@pytest.mark.parametrize(
    ("ours", "agrees", "says"),
    [
        (25.0, True, "positive in 1 of 1 cell and within 1.5 points of the paper's in 1."),
        (25.75, False, "positive in 1 of 1 cell and within 1.5 points of the paper's in 0."),
        (22.25, False, "positive in 1 of 1 cell and within 1.5 points of the paper's in 0."),
        (19.0, False, "positive in 0 of 1 cell and within 1.5 points of the paper's in 0."),
    ],
)
def test_a_gain_agrees_if_there_is_one_of_about_the_paper_s_size(table, ours, agrees, says):
    groups = groups_of(
        results(cell_of(table, "er-ace"), [20.0, 20.0]), results(cell_of(table, "er-ace+jigsaw"), [ours, ours])
    )
    lines = lines_of(table, groups)
    line = line_of(lines, "er-ace+jigsaw")
    assert (line.gain_difference, line.gain_agrees) == (pytest.approx(ours - 24.0), agrees)
    assert line.to_json().items() >= {"gain_difference": line.gain_difference, "gain_agrees": agrees}.items()
    assert verdict(lines, "class_il") == f"CLER's gain is {says}"


@pytest.mark.parametrize(("ours", "marks"), [(24.5, ["-0.50"]), (23.0, ["!-2.00"]), (27.5, ["!+3.50", "!+2.50"])])
def test_the_terminal_marks_accuracies_and_gains_that_disagree(table, ours, marks):
    alone, jigsaw = cell_of(table, "er-ace"), cell_of(table, "er-ace+jigsaw")
    groups = groups_of(results(alone, [21.0] * 3), results(jigsaw, [ours - 0.01, ours, ours + 0.01]))
    lines = [line for line in lines_of(table, groups) if line.scenario == "class_il"]
    console = Terminal(width=120)
    with console.capture() as shown:
        console.print(paper_table(table, lines))
    text = shown.get().split("accuracy: final")[0]
    assert all(f" {mark}" in text for mark in marks)
    assert text.count("!") == sum(mark.startswith("!") for mark in marks)
    assert "ICARL" not in text


def test_no_gain_is_not_the_paper_s_claim_however_close(table):
    jigsaw = cell_of(table, "er-ace+jigsaw")
    close = dataclasses.replace(jigsaw, class_il=dataclasses.replace(jigsaw.class_il, mean=20.5))
    table = dataclasses.replace(table, cells=(cell_of(table, "er-ace"), close))
    groups = groups_of(results(cell_of(table, "er-ace"), [20.0]), results(close, [19.75]))
    line = line_of(lines_of(table, groups), "er-ace+jigsaw")
    assert (line.gain_difference, line.gain_agrees) == (-0.75, False)


@pytest.mark.parametrize(("ours", "agrees"), [(19.75, True), (18.5, False)])
def test_that_there_is_a_gain_is_claimed_of_cler_alone(table, ours, agrees):
    printed = dataclasses.replace(cell_of(table, "er-ace+jigsaw").class_il, mean=20.5)
    cssl = dataclasses.replace(cell_of(table, "er-ace+jigsaw"), regularizer="barlow-twins", class_il=printed)
    table = dataclasses.replace(table, cells=(cell_of(table, "er-ace"), cssl))
    groups = groups_of(results(cell_of(table, "er-ace"), [20.0]), results(cssl, [ours]))
    assert line_of(lines_of(table, groups), "er-ace+barlow-twins").gain_agrees is agrees


def test_the_verdict_is_about_the_better_pretext_task_of_each_cell(table):
    both = table.with_both_pretexts()
    finals = {"er-ace": 20.0, "er-ace+jigsaw": 19.0, "er-ace+rotation": 24.0}
    groups = groups_of(*(results(cell_of(both, pair), [final]) for pair, final in finals.items()))
    assert "positive in 1 of 1 cell " in verdict(lines_of(both, groups), "class_il")
    only_other = [group for group in groups if group.settings["regularizer"] != "jigsaw"]
    assert verdict(lines_of(both, only_other), "class_il") is None
    assert verdict(lines_of(both, []), "class_il") is None


def test_of_two_precisions_that_of_most_runs_comes_first_then_the_device_s_and_no_gain_mixes_them(table):
    jigsaw, alone = cell_of(table, "er-ace+jigsaw"), cell_of(table, "er-ace")
    some = [*results(jigsaw, [25.0], precision="bf16"), *results(jigsaw, [26.0, 27.0], precision="tf32")]
    draw = [*results(alone, [20.0], precision="bf16")]
    more = [*results(alone, [20.0, 21.0], precision="bf16")]
    for others, precision, mean in (
        (more, "tf32", 25.0),
        (draw, "bf16", 25.0),
        (draw, "tf32", 26.5),
        ([], "bf16", 26.5),
    ):
        line = line_of(lines_of(table, groups_of(some, others), precision), "er-ace+jigsaw")
        assert line.mean == mean
        assert (line.gain is not None) == (mean == 25.0)


def test_a_line_tells_the_precision_of_its_runs(table):
    lines = lines_of(table, groups_of(results(cell_of(table, "er-ace"), [20.0], precision="tf32")))
    told = {(line["label"], line["epochs"]): line["precision"] for line in (line.to_json() for line in lines)}
    assert told[("ER-ACE", 1)] == "tf32"
    assert told[("ER-ACE + CLER (jigsaw)", 1)] is None


def test_the_verdict_can_be_about_task_incremental_accuracy(table):
    groups = groups_of(results(cell_of(table, "er-ace"), [20.0]), results(cell_of(table, "er-ace+jigsaw"), [26.0]))
    lines = [line for line in lines_of(table, groups) if line.scenario == "task_il"]
    assert verdict(lines, "class_il") is None
    assert "positive in 1 of 1 cell and within 1.5 points of the paper's in 0." in verdict(lines, "task_il")


@pytest.mark.parametrize(("rotation", "better"), [([29.0, 30.0], "er-ace+rotation"), ([19.0, 20.0], "er-ace+jigsaw")])
def test_the_paper_s_number_stands_beside_our_better_pretext_task(table, rotation, better):
    both = table.with_both_pretexts()
    groups = groups_of(
        results(cell_of(both, "er-ace+jigsaw"), [27.0, 28.0]), results(cell_of(both, "er-ace+rotation"), rotation)
    )
    lines = lines_of(both, groups)
    for scenario, mean in (("class_il", 24.0), ("task_il", 64.0)):
        pair = [line_of(lines, name, scenario) for name in ("er-ace+jigsaw", "er-ace+rotation")]
        assert [pair_of(line.cell) for line in pair if line.better_of_two] == [better]
        (line,) = [line for line in pair if line.paper]
        assert (pair_of(line.cell), line.paper.mean) == (better, mean)
    assert any("better of the two pretext tasks" in note for note in notes(both, lines))


def test_with_one_pretext_task_only_the_paper_s_number_stays_where_it_is(table):
    both = table.with_both_pretexts()
    lines = lines_of(both, groups_of(results(cell_of(both, "er-ace+rotation"), [29.0, 30.0])))
    assert line_of(lines, "er-ace+jigsaw").paper.mean == 24.0
    assert line_of(lines, "er-ace+rotation").paper is None
    assert line_of(lines, "er-ace+rotation").better_of_two is None
    assert not any("better of the two" in note for note in notes(both, lines))


def test_the_committed_results_are_found():
    """Whatever their folders are called."""
    table = find_table("table1")
    state = reproduce.take_inventory(
        table,
        ROOT / "results" / "cifar100",
        seeds=10,
        precision="fp32",
        cells=reproduce.select(table, only=["er-ace"], datasets=["cifar100"]),
    )
    assert not state.missing
    assert not state.complaints
    lines = lines_of(find_table("table2"), state.groups, "bf16")
    joint = next(line for line in lines if line.cell.method == "joint" and line.runs)
    assert joint.paper.slip
    assert joint.mean == pytest.approx(0.91 * joint.ours.final_accuracy["task_il"].mean, abs=0.5)
    assert joint.adjusted_forgetting is None
    assert any("Joint" in note for note in notes(find_table("table2"), lines))
