import dataclasses
import json
import re

import pytest

from cler.errors import UsageError
from cler.files import write_json
from cler.paper import reproduce
from cler.paper.tables import find_table
from cler.runs.jobs import make_jobs
from cler.runs.results import make_result
from small_table import cell_of, look, pair_of, results, store


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


def test_the_cell_with_least_to_do_comes_first(table, tmp_path):
    store(tmp_path, results(cell_of(table, "er-ace+jigsaw"), [25.0]))
    missing = look(table, tmp_path).missing
    seconds = {work.cell: each for work, each in zip(missing, (6.0, 10.0, 4.0), strict=True)}
    ordered = reproduce.cheapest_first(missing, seconds)
    assert [seconds[work.cell] * len(work.jobs) for work in ordered] == [8.0, 10.0, 12.0]
