import dataclasses
import json
import math
import re
import shutil
import tomllib
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from cler.errors import UsageError
from cler.files import write_json
from cler.paper import cost, reproduce, tables
from cler.paper import settings as paper_settings
from cler.paper.settings import paper_file
from cler.paper.tables import find_table
from cler.paper.terminal_table import paper_table
from cler.report.console import Terminal
from cler.runs.bench import MOST_UNTIMED
from cler.runs.compare import compare
from cler.runs.jobs import make_jobs
from cler.runs.machine import environment
from cler.runs.results import Result, make_result
from cler.streams import Stream

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")

SMALL = """
[tables.small]
title = "A small table"

[[tables.small.columns]]
runs = { dataset = "cifar10-sample", buffer = 20 }
class_il."er-ace" = { mean = 20.0, std = 1.0, adjusted_forgetting = 30.0 }
class_il."er-ace+jigsaw" = { mean = 24.0, std = 1.0, p = 0.001 }
task_il."er-ace" = { mean = 60.0 }
task_il."er-ace+jigsaw" = { mean = 64.0 }

[[tables.small.columns]]
runs = { dataset = "cifar10-sample", buffer = 20, epochs = 3 }
class_il."er-ace" = { mean = 30.0 }

[[tables.small.columns]]
runs = { dataset = "imagenet-21k" }
class_il."joint" = { mean = 10.0 }

[[tables.small.columns]]
runs = { dataset = "cifar10-sample" }
class_il."icarl" = { mean = 11.0 }
"""


@pytest.fixture
def table(monkeypatch):
    """A table of er-ace with and without CLER, and of what this version does not have."""
    file = paper_file() | {"tables": tomllib.loads(SMALL)["tables"]}
    for module in (tables, paper_settings):
        monkeypatch.setattr(module, "paper_file", lambda: file)
    return find_table("small")


def pair_of(cell):
    """As in `paper.toml`."""
    return f"{cell.method}+{cell.regularizer}".removesuffix("+none")


def cell_of(table, pair, epochs=1):
    (cell,) = [cell for cell in table.cells if (pair_of(cell), cell.epochs) == (pair, epochs)]
    return cell


def results(cell, finals, *, precision="fp32", **changes):
    """Complete runs of a cell, a final class-incremental accuracy each; the task-incremental ones are 40 higher."""
    for seed, final in enumerate(finals):
        rows = [[50.0] * task + [55.0] for task in range(4)] + [[final] * 5]
        accuracy = {"class_il": rows, "task_il": [[x + 40 for x in row] for row in rows]}
        yield make_result(cell.settings(precision).to_dict() | changes, seed, accuracy, 1.0, 1, {})


def groups_of(*made):
    return compare(Result.from_dict(Path("run"), value) for values in made for value in values).groups


def line_of(lines, pair, scenario="class_il"):
    (line,) = [line for line in lines if (pair_of(line.cell), line.scenario, line.cell.epochs) == (pair, scenario, 1)]
    return line


# -- lines -------------------------------------------------------------------------------------------------------------


def test_a_line_has_ours_the_paper_s_and_both_gains(table):
    groups = groups_of(
        results(cell_of(table, "er-ace"), [20.0, 21.0]), results(cell_of(table, "er-ace+jigsaw"), [27.0, 27.5, 28.0])
    )
    line = line_of(reproduce.lines(table, groups), "er-ace+jigsaw")
    assert (line.runs, line.mean, line.std, line.difference) == (3, 27.5, 0.5, 3.5)
    assert line.adjusted_forgetting == pytest.approx(line.ours.adjusted_forgetting["class_il"].mean)
    assert line.p_value < 0.01
    assert line.agrees is False
    assert line.gain.points == pytest.approx(7.0)
    assert 0 < line.gain.p_value < 0.02
    assert (line.paper_gain.points, line.paper_gain.p_value) == (4.0, 0.001)
    other = line_of(reproduce.lines(table, groups), "er-ace+jigsaw", "task_il")
    assert (other.mean, other.difference, other.p_value) == (67.5, 3.5, None)
    assert math.isnan(other.paper_gain.p_value)
    assert line_of(reproduce.lines(table, groups), "er-ace").gain is None


def test_what_is_not_there_has_the_paper_s_numbers_only(table):
    lines = reproduce.lines(table, [])
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
    lines = reproduce.lines(table, groups)
    line = line_of(lines, "er-ace+jigsaw")
    assert (line.gain_difference, line.gain_agrees) == (pytest.approx(ours - 24.0), agrees)
    assert line.to_json().items() >= {"gain_difference": line.gain_difference, "gain_agrees": agrees}.items()
    assert reproduce.verdict(lines, "class_il") == f"CLER's gain is {says}"


@pytest.mark.parametrize(("ours", "marks"), [(24.5, ["-0.50"]), (23.0, ["!-2.00"]), (27.5, ["!+3.50", "!+2.50"])])
def test_the_terminal_marks_accuracies_and_gains_that_disagree(table, ours, marks):
    alone, jigsaw = cell_of(table, "er-ace"), cell_of(table, "er-ace+jigsaw")
    groups = groups_of(results(alone, [21.0] * 3), results(jigsaw, [ours - 0.01, ours, ours + 0.01]))
    lines = [line for line in reproduce.lines(table, groups) if line.scenario == "class_il"]
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
    line = line_of(reproduce.lines(table, groups), "er-ace+jigsaw")
    assert (line.gain_difference, line.gain_agrees) == (-0.75, False)


@pytest.mark.parametrize(("ours", "agrees"), [(19.75, True), (18.5, False)])
def test_that_there_is_a_gain_is_claimed_of_cler_alone(table, ours, agrees):
    printed = dataclasses.replace(cell_of(table, "er-ace+jigsaw").class_il, mean=20.5)
    cssl = dataclasses.replace(cell_of(table, "er-ace+jigsaw"), regularizer="barlow-twins", class_il=printed)
    table = dataclasses.replace(table, cells=(cell_of(table, "er-ace"), cssl))
    groups = groups_of(results(cell_of(table, "er-ace"), [20.0]), results(cssl, [ours]))
    assert line_of(reproduce.lines(table, groups), "er-ace+barlow-twins").gain_agrees is agrees


def test_the_verdict_is_about_the_better_pretext_task_of_each_cell(table):
    both = table.with_both_pretexts()
    finals = {"er-ace": 20.0, "er-ace+jigsaw": 19.0, "er-ace+rotation": 24.0}
    groups = groups_of(*(results(cell_of(both, pair), [final]) for pair, final in finals.items()))
    assert "positive in 1 of 1 cell " in reproduce.verdict(reproduce.lines(both, groups), "class_il")
    only_other = [group for group in groups if group.settings["regularizer"] != "jigsaw"]
    assert reproduce.verdict(reproduce.lines(both, only_other), "class_il") is None
    assert reproduce.verdict(reproduce.lines(both, []), "class_il") is None


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
        line = line_of(reproduce.lines(table, groups_of(some, others), precision), "er-ace+jigsaw")
        assert line.mean == mean
        assert (line.gain is not None) == (mean == 25.0)


def test_a_line_tells_the_precision_of_its_runs(table):
    lines = reproduce.lines(table, groups_of(results(cell_of(table, "er-ace"), [20.0], precision="tf32")))
    told = {(line["label"], line["epochs"]): line["precision"] for line in (line.to_json() for line in lines)}
    assert told[("ER-ACE", 1)] == "tf32"
    assert told[("ER-ACE + CLER (jigsaw)", 1)] is None


def test_the_verdict_can_be_about_task_incremental_accuracy(table):
    groups = groups_of(results(cell_of(table, "er-ace"), [20.0]), results(cell_of(table, "er-ace+jigsaw"), [26.0]))
    lines = [line for line in reproduce.lines(table, groups) if line.scenario == "task_il"]
    assert reproduce.verdict(lines, "class_il") is None
    assert "positive in 1 of 1 cell and within 1.5 points of the paper's in 0." in reproduce.verdict(lines, "task_il")


@pytest.mark.parametrize(("rotation", "better"), [([29.0, 30.0], "er-ace+rotation"), ([19.0, 20.0], "er-ace+jigsaw")])
def test_the_paper_s_number_stands_beside_our_better_pretext_task(table, rotation, better):
    both = table.with_both_pretexts()
    groups = groups_of(
        results(cell_of(both, "er-ace+jigsaw"), [27.0, 28.0]), results(cell_of(both, "er-ace+rotation"), rotation)
    )
    lines = reproduce.lines(both, groups)
    for scenario, mean in (("class_il", 24.0), ("task_il", 64.0)):
        pair = [line_of(lines, name, scenario) for name in ("er-ace+jigsaw", "er-ace+rotation")]
        assert [pair_of(line.cell) for line in pair if line.better_of_two] == [better]
        (line,) = [line for line in pair if line.paper]
        assert (pair_of(line.cell), line.paper.mean) == (better, mean)
    assert any("better of the two pretext tasks" in note for note in reproduce.notes(both, lines))


def test_with_one_pretext_task_only_the_paper_s_number_stays_where_it_is(table):
    both = table.with_both_pretexts()
    lines = reproduce.lines(both, groups_of(results(cell_of(both, "er-ace+rotation"), [29.0, 30.0])))
    assert line_of(lines, "er-ace+jigsaw").paper.mean == 24.0
    assert line_of(lines, "er-ace+rotation").paper is None
    assert line_of(lines, "er-ace+rotation").better_of_two is None
    assert not any("better of the two" in note for note in reproduce.notes(both, lines))


def test_the_committed_results_are_found():
    """Whatever their folders are called."""
    table = find_table("table1")
    state = reproduce.look(
        table,
        ROOT / "results" / "cifar100",
        seeds=10,
        precision="fp32",
        cells=reproduce.select(table, only=["er-ace"], datasets=["cifar100"]),
    )
    assert not state.missing
    assert not state.complaints
    lines = reproduce.lines(find_table("table2"), state.groups, "bf16")
    joint = next(line for line in lines if line.cell.method == "joint" and line.runs)
    assert joint.paper.slip
    assert joint.mean == pytest.approx(0.91 * joint.ours.final_accuracy["task_il"].mean, abs=0.5)
    assert joint.adjusted_forgetting is None
    assert any("Joint" in note for note in reproduce.notes(find_table("table2"), lines))


# -- what was asked for ------------------------------------------------------------------------------------------------


def test_selecting_cells():
    table = find_table("table1")
    cells = reproduce.select(table, only=["er-ace", "xder+jigsaw"], datasets=["cifar100"], buffers=[500])
    assert [pair_of(cell) for cell in cells] == ["er-ace", "er-ace+jigsaw", "xder+jigsaw"]
    alone = reproduce.select(table, only=["er-ace+none"], datasets=["cifar100"], buffers=[500])
    assert [pair_of(cell) for cell in alone] == ["er-ace"]
    assert [pair_of(cell) for cell in reproduce.select(table, datasets=["cifar100"], epochs=[30])] == ["joint"]
    assert reproduce.select(table) == table.cells


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"only": ["er-aec"]}, "unknown method in table1 'er-aec' .*did you mean 'er-ace'"),
        ({"datasets": ["cifar10"]}, "unknown dataset in table1 'cifar10'"),
        ({"buffers": [501]}, "unknown buffer size in table1 '501'"),
        ({"only": ["finetune"], "buffers": [500]}, "no cell with this method, dataset, buffer and epochs together"),
        ({"epochs": [7]}, "unknown number of epochs in table1 '7' .known: 1, 30, 50"),
    ],
)
def test_cells_that_are_not_there(wanted, says):
    with pytest.raises(UsageError, match=says):
        reproduce.select(find_table("table1"), **wanted)


def test_cells_on_a_dataset_that_this_version_lacks(table):
    with pytest.raises(UsageError, match="does not have imagenet-21k, which these cells need"):
        reproduce.select(table, datasets=["imagenet-21k"])


# -- what is missing ---------------------------------------------------------------------------------------------------


def look(table, out, seeds=2, **options):
    return reproduce.look(table, out, seeds=seeds, precision="fp32", **options)


def store(folder, values):
    for value in values:
        write_json(folder / f"seed-{value['seed']}" / "result.json", value)


def test_everything_is_missing_from_a_folder_that_is_not_there(table, tmp_path):
    state = look(table, tmp_path / "none")
    assert [(pair_of(work.cell), work.cell.epochs, len(work.jobs)) for work in state.missing] == [
        ("er-ace", 1, 2), ("er-ace+jigsaw", 1, 2), ("er-ace", 3, 2)
    ]  # fmt: skip
    folders = [job.folder for work in state.missing for job in work.jobs]
    assert len(set(folders)) == len(folders)
    assert not (tmp_path / "none").exists()


def test_finished_runs_are_found_by_their_settings_and_the_rest_goes_on_in_their_precision(table, tmp_path):
    jigsaw = cell_of(table, "er-ace+jigsaw")
    store(tmp_path / "some name", results(jigsaw, [25.0], precision="bf16"))
    store(tmp_path / "another learning rate", results(cell_of(table, "er-ace"), [25.0, 26.0], lr=0.7))
    state = look(table, tmp_path)
    (work,) = [work for work in state.missing if work.cell == jigsaw]
    ((seed, settings),) = [(job.seed, job.settings) for job in work.jobs]
    assert (seed, settings.precision) == (1, "bf16")
    assert [len(work.jobs) for work in state.missing] == [2, 1, 2]


def test_a_choice_of_cells_does_not_change_the_precision_of_what_is_missing(table, tmp_path):
    store(tmp_path, results(cell_of(table, "er-ace"), [20.0], precision="bf16"))
    jigsaw = cell_of(table, "er-ace+jigsaw")
    (work,) = look(table, tmp_path, cells=[jigsaw]).missing
    assert (work.cell, {job.settings.precision for job in work.jobs}) == (jigsaw, {"bf16"})


def test_files_that_are_no_results_get_a_line_each_and_stay_as_they_are(table, tmp_path):
    (first, second) = look(table, tmp_path).missing[0].jobs
    (foreign,) = make_jobs(cell_of(table, "er-ace+jigsaw").settings(), [0], tmp_path)
    newer = next(results(cell_of(table, "er-ace"), [20.0])) | {"format": 3}
    write_json(first.folder / "result.json", newer)
    second.folder.mkdir(parents=True)
    (second.folder / "result.json").write_text("no JSON")
    write_json(foreign.folder / "settings.json", {"settings": {"lr": 5.0}, "seed": 0})
    (tmp_path / "result.json").write_text("[]")
    state = look(table, tmp_path)
    assert len(state.complaints) == 3
    for folder, why in (
        (first.folder, "format 3 is newer than 2.*update cler"),
        (second.folder, "is not JSON"),
        (tmp_path, "not a JSON object"),
    ):
        (line,) = [line for line in state.complaints if f"{folder}/result" in line or f"{folder} " in line]
        assert line.startswith("skipped: ")
        assert re.search(why, line)
    left = [job for work in state.missing for job in work.jobs]
    assert not {first.folder, second.folder, foreign.folder} & {job.folder for job in left}
    beside = foreign.folder.parent.with_name(f"{foreign.folder.parent.name}_2") / "seed-0"
    assert beside in {job.folder for job in left}
    assert json.loads((first.folder / "result.json").read_text()) == newer


def test_runs_in_a_precision_that_does_not_exist_are_not_ours(table, tmp_path):
    (value,) = results(cell_of(table, "er-ace"), [20.0])
    for precision, seed in (("fp32", 1), ("fp8", 0)):
        value["settings"]["precision"] = precision
        store(tmp_path, [value])
        assert look(table, tmp_path).missing[0].jobs[0].seed == seed


def test_a_run_that_failed_is_told_of_and_not_repeated(table, tmp_path):
    job = look(table, tmp_path).missing[0].jobs[0]
    failed = make_result(
        job.settings.to_dict(), 0, {"class_il": [], "task_il": []}, 1.0, 1, {}, complete=False, failure="no"
    )
    write_json(job.folder / "result.json", failed)
    state = look(table, tmp_path)
    assert state.complaints == [f"er-ace buffer 20, seed 0 stopped: no (to try again, delete {job.folder})"]
    assert [job.seed for job in state.missing[0].jobs] == [1]


def test_the_same_seed_twice_is_told_of(table, tmp_path):
    for name, final in (("a", 20.0), ("b", 21.0)):
        store(tmp_path / name, results(cell_of(table, "er-ace"), [final]))
    (line,) = look(table, tmp_path).complaints
    assert line.startswith("seed 0 twice with different accuracies")


def test_without_a_number_each_cell_has_the_runs_that_it_wants(table, tmp_path):
    cells = [dataclasses.replace(cell, seeds=cell.epochs) for cell in table.cells]
    state = look(dataclasses.replace(table, cells=tuple(cells)), tmp_path, seeds=None)
    assert [(pair_of(work.cell), len(work.jobs)) for work in state.missing] == [
        ("er-ace", 1), ("er-ace+jigsaw", 1), ("er-ace", 3)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("count", "there", "wanted"),
    [
        (3, [], [0, 1, 2]),
        (3, [1], [0, 1, 2]),
        (3, [10, 11], [0, 10, 11]),
        (2, [10, 11, 12], [10, 11]),
        (3, [0, 1, 2, 3], [0, 1, 2]),
    ],
)
def test_runs_count_whatever_their_seeds(count, there, wanted):
    assert reproduce.wanted_seeds(count, there) == wanted


# -- what it costs -----------------------------------------------------------------------------------------------------


def test_costs_are_measured_once_for_each_pair_and_grow_with_the_epochs(table, tmp_path, monkeypatch):
    measured = []

    def step(run, phase):
        measured.append((type(run.method).name, phase))
        return 0.002

    monkeypatch.setattr(cost, "_time_of_a_step", step)
    missing = look(table, tmp_path).missing
    costs = cost.seconds_per_run(missing, CPU, at_once=2)
    assert measured == [("er-ace", "observe")] * 2
    assert [costs[work.cell] for work in missing] == pytest.approx([5.0, 5.0, 15.0])


def test_each_phase_counts_with_the_time_of_its_own_steps(tmp_path, monkeypatch):
    times = {"invert": 0.001, "observe": 0.01, "refine": 0.002}
    monkeypatch.setattr(cost, "_time_of_a_step", lambda run, phase: times[phase])
    table = find_table("data-free")
    cells = reproduce.select(table, only=["r-dfcil+none"], datasets=["cifar100"])
    (work,) = look(table, tmp_path, cells=cells, seeds=1).missing
    seconds = 10 * 30 * 500 * 0.01 + 9 * (5000 * 0.001 + 40 * 500 * 0.002)
    assert cost.seconds_per_run([work], CPU, at_once=1)[work.cell] == pytest.approx(seconds)


def test_a_cost_is_that_of_earlier_runs_where_there_are_some(table, tmp_path, monkeypatch):
    monkeypatch.setattr(cost, "_seconds_per_step", lambda *_: {"observe": 0.0})
    hardware = environment(CPU)["hardware"]
    for seed, (seconds, made_on) in enumerate([(30.0, hardware), (50.0, hardware), (400.0, hardware), (1.0, "other")]):
        (run,) = results(cell_of(table, "er-ace+jigsaw"), [25.0])
        run["settings"] |= {"an option": 0.1 * seed, "buffer": 30}  # as long, whatever they are
        store(tmp_path, [run | {"seed": seed, "seconds": seconds, "environment": {"hardware": made_on}}])
    state = look(table, tmp_path, seeds=5)
    costs = cost.seconds_per_run(state.missing, CPU, 2, state.groups)
    assert {(pair_of(work.cell), work.cell.epochs): costs[work.cell] for work in state.missing} == {
        ("er-ace", 1): 0, ("er-ace+jigsaw", 1): 25, ("er-ace", 3): 0
    }  # fmt: skip


def test_what_earlier_runs_tell_is_known_at_once(table, tmp_path, monkeypatch):
    monkeypatch.setattr(cost, "_seconds_per_step", lambda *_: pytest.fail("nothing is to be timed"))
    (run,) = results(cell_of(table, "er-ace"), [20.0])
    gpu = {"device": "cuda", "hardware": "a GPU"}
    store(tmp_path, [run | {"seconds": 40.0, "at_once": 2, "environment": gpu}])
    state = look(table, tmp_path)
    seconds, hardware = cost.known_seconds(state.missing, CPU, 2, state.groups)
    told = {(pair_of(cell), cell.epochs): each for cell, each in seconds.items()}
    assert (told, hardware) == ({("er-ace", 1): 20, ("er-ace", 3): 60}, "a GPU")
    here = {"device": "cpu", "hardware": environment(CPU)["hardware"]}
    store(tmp_path, [run | {"seconds": 10.0, "at_once": 1, "environment": here}])
    state = look(table, tmp_path)
    seconds, hardware = cost.known_seconds(state.missing, CPU, 2, state.groups)
    assert (set(seconds.values()), hardware) == ({5.0, 15.0}, here["hardware"])
    assert cost.known_seconds(state.missing, CPU, 2, ()) == ({}, here["hardware"])


def test_costs_are_measured_on_images_of_the_right_size(tmp_path, monkeypatch):
    measured = {}

    def step(settings, data, at_once):
        measured[settings.dataset] = data.image_size, Stream(data, settings.tasks, batch=settings.batch).schedule[1]
        return {"observe": 0.001}

    monkeypatch.setattr(cost, "_seconds_per_step", step)
    table = find_table("table1")
    cells = reproduce.select(table, only=["er-ace"], buffers=[2000])
    cost.seconds_per_run(look(table, tmp_path, cells=cells).missing, CPU, at_once=1)
    assert {name: size for name, (size, _) in measured.items()} == {"cifar100": 32, "mini-imagenet": 84}
    assert min(steps for _, steps in measured.values()) >= cost.MOST_STEPS + MOST_UNTIMED


def test_the_cell_with_least_to_do_comes_first(table, tmp_path):
    store(tmp_path, results(cell_of(table, "er-ace+jigsaw"), [25.0]))
    missing = look(table, tmp_path).missing
    seconds = {work.cell: each for work, each in zip(missing, (6.0, 10.0, 4.0), strict=True)}
    ordered = cost.cheapest_first(missing, seconds)
    assert [seconds[work.cell] * len(work.jobs) for work in ordered] == [8.0, 10.0, 12.0]


class Slow:
    """A run whose steps take these seconds of a clock that stands still otherwise."""

    schedule, task = (1, 100), 0
    method, stream = SimpleNamespace(setup=SimpleNamespace(replay_batch=10)), SimpleNamespace(batch=10)

    def __init__(self, monkeypatch, seconds):
        self.now, self.seconds = 0.0, iter(seconds)
        monkeypatch.setattr(cost.time, "perf_counter", lambda: self.now)

    def begin_task(self, task):
        self.task = task

    end_task = begin_task

    def begin_phase(self, phase):
        pass

    def step(self):
        self.now += next(self.seconds)


@pytest.mark.parametrize(
    ("seconds", "shortest"), [((9.0, 0.2, 0.1, 0.3), 0.1), ((9.0, 2.0, 1.0), 1.0), ((9.0, 30.0), 30.0)]
)
def test_a_cost_is_the_shortest_of_three_steps_or_three_seconds_in_the_second_task(monkeypatch, seconds, shortest):
    run = Slow(monkeypatch, seconds)
    assert cost._time_of_a_step(run, "observe") == pytest.approx(shortest)
    assert run.task == 1
    assert list(run.seconds) == []


def test_a_step_is_really_measured(table, tmp_path):
    (work, *_) = look(table, tmp_path).missing
    assert cost.seconds_per_run([work], CPU, at_once=1)[work.cell] > 0


def test_too_little_disk_is_said_before_anything_is_trained(table, tmp_path, monkeypatch):
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9))
    missing = look(table, tmp_path, seeds=50).missing
    cost.check_disk(tmp_path, missing, at_once=1)
    with pytest.raises(UsageError, match=r"has 1.00 GB of free disk space, and these runs may need 6.01 GB: free some"):
        cost.check_disk(tmp_path, missing, at_once=10)
