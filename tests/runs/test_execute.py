import gc
import importlib
import json
import math
import platform
import weakref
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import cler
from cler.config.machine import Machine
from cler.config.making import make_settings
from cler.config.schema import settings_of
from cler.config.settings import Settings
from cler.data.images import ImageData
from cler.engine import RunName, bundles, checkpoint
from cler.engine.events import (
    Checkpointed,
    Elsewhere,
    Evaluated,
    Finished,
    Message,
    Progress,
    Started,
    ignore,
)
from cler.errors import UsageError
from cler.files import read_json, write_json
from cler.methods import METHODS
from cler.methods.loss import total
from cler.runs import loading, record, trainers, workers
from cler.runs.build import check_fit
from cler.runs.execute import execute
from cler.runs.folders import OWNER, check_writable, locked
from cler.runs.jobs import make_jobs as jobs_of
from cler.runs.jobs import remaining
from cler.runs.results import read_result
from cler.runs.trainers import in_bundles
from hearing import Notes, without_times
from toys import shades

CPU = torch.device("cpu")
local = importlib.import_module("cler.runs.backends.local")


def make_jobs(out, seeds=(0,), **changes):
    options = {"method": "finetune", "dataset": "toy", "tasks": 2, "width": 2, "batch": 4} | changes
    if METHODS[options["method"]].replays:
        options = {"replay_batch": 4} | options
    return jobs_of(make_settings(**options), seeds, out)


def run_all(jobs):
    notes = Notes()
    execute(jobs, Machine(workers=1, device="cpu"), callbacks=[notes])
    return notes


def logged(folder, *kinds):
    """The lines of a log that tell of these events."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] in kinds]


# -- what is on disk ---------------------------------------------------------------------------------------------------


def test_a_run_leaves_its_settings_its_result_and_its_log(tmp_path):
    (job,) = make_jobs(tmp_path, seeds=[7], method="er-ace", regularizer="jigsaw", buffer=20, epochs=2)
    notes = run_all([job])
    assert sorted(path.name for path in job.folder.iterdir()) == ["log.jsonl", "result.json", "settings.json"]

    result = json.loads((job.folder / "result.json").read_text())
    given = {"method": "er-ace", "regularizer": "jigsaw", "dataset": "toy", "buffer": 20, "epochs": 2, "weight": 1.0}
    assert given.items() <= result["settings"].items()
    assert result["settings"].keys() == settings_of(Settings).keys()
    assert result["seed"] == 7
    assert result["complete"] is True
    assert "failure" not in result
    rows = result["accuracy"]
    assert [[len(row) for row in rows[name]] for name in ("class_il", "task_il")] == [[1, 2], [1, 2]]
    assert result["seconds"] > 0
    steps = 2 * 2 * (40 // 4)
    assert result["counts"] == {"steps": steps, "images": 4 * steps}
    assert result["data"] == shades().fingerprint()
    assert result["revisions"] == {"engine": 1, "method": 1, "network": 1, "regularizer": 1, "stream": 1}
    environment = result["environment"]
    assert environment["cler"] == cler.__version__
    assert environment["torch"] == torch.__version__
    assert environment["python"] == platform.python_version()
    assert environment["device"] == "cpu"
    assert environment["hardware"]

    assert json.loads((job.folder / "settings.json").read_text()) == {"settings": result["settings"], "seed": 7}
    log = logged(job.folder, "evaluated")
    assert [line["task"] for line in log] == [0, 1]
    assert log[1]["class_il"] == pytest.approx(result["accuracy"]["class_il"][1], abs=1e-3)
    assert notes.ended == [
        ("er-ace+jigsaw buffer 20 epochs 2, seed 7", pytest.approx(sum(rows["class_il"][-1]) / 2, abs=1e-3), None)
    ]
    assert notes.progressed[-1].done == 1


# -- doing only what is left -------------------------------------------------------------------------------------------


def test_a_finished_run_is_not_repeated(tmp_path):
    jobs = make_jobs(tmp_path, seeds=[0, 1])
    assert remaining(jobs) == jobs
    run_all(jobs[:1])
    assert remaining(jobs) == jobs[1:]


def test_an_unfinished_run_is_begun_again_and_gives_the_same(tmp_path):
    (job,) = make_jobs(tmp_path)
    run_all([job])
    whole = without_times(job.folder)
    log = logged(job.folder, "evaluated")

    half = json.loads((job.folder / "result.json").read_text())
    half["complete"] = False
    half["accuracy"] = {name: rows[:1] for name, rows in half["accuracy"].items()}
    (job.folder / "result.json").write_text(json.dumps(half))
    assert remaining([job]) == [job]
    run_all([job])
    assert without_times(job.folder) == whole
    assert len(logged(job.folder, "evaluated")) == len(log)
    assert remaining([job]) == []


class Stopped(Exception):  # noqa: N818 - stands for Ctrl-C
    pass


def test_a_run_that_is_stopped_keeps_the_tasks_it_has_done(tmp_path):
    def stop_in_the_second_task(event):
        if isinstance(event, Progress) and event.task == 1:
            raise Stopped

    (job,) = make_jobs(tmp_path)
    with pytest.raises(Stopped):
        execute([job], Machine(workers=1, device="cpu"), callbacks=[stop_in_the_second_task])
    result = read_result(job.folder)
    assert result["complete"] is False
    assert [len(row) for row in result["accuracy"]["class_il"]] == [1]
    assert remaining([job]) == [job]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"lr": 0.5}, "lr"),
        ({"epochs": 2, "class_order": 3}, "epochs, class_order"),
        ({"seeds": [4]}, "seed"),
        ({"epochs": 2, "seeds": [4]}, "epochs, seed"),
    ],
)
def test_a_folder_with_a_different_run_is_refused(tmp_path, changes, named):
    jobs = make_jobs(tmp_path)
    run_all(jobs)
    before = (jobs[0].folder / "result.json").read_bytes()
    with pytest.raises(
        UsageError, match=rf"{jobs[0].folder} holds a different run \(it differs in {named}\).*output folder"
    ):
        remaining([replace(job, folder=jobs[0].folder) for job in make_jobs(tmp_path, **changes)])
    assert (jobs[0].folder / "result.json").read_bytes() == before


def test_a_setting_that_only_the_run_in_the_folder_has_is_named(tmp_path):
    """One of a newer version."""
    (job,) = make_jobs(tmp_path)
    settings = job.settings.to_dict() | {"momentum": None}
    job.folder.mkdir(parents=True)
    (job.folder / "settings.json").write_text(json.dumps({"settings": settings, "seed": 0}))
    with pytest.raises(UsageError, match=r"\(it differs in momentum\)"):
        remaining([job])


def test_what_was_changed_is_in_the_folder_s_name(tmp_path):
    usual = {"dataset": "cifar100", **dict.fromkeys(("tasks", "width", "batch", "replay_batch"))}
    (plain,) = make_jobs(tmp_path, method="er-ace", buffer=500, **usual)
    assert plain.folder == tmp_path / "er-ace_cifar100_m500" / "seed-0"
    changes = {"lr": 0.5, "class_order": "seed", "variant": "text"}
    (changed,) = make_jobs(tmp_path, method="cope", regularizer="jigsaw", buffer=2000, **usual, **changes)
    assert changed.folder.parent.name == "cope+jigsaw_cifar100_m2000_lr-0.5_class_order-seed_variant-text"
    (whole,) = make_jobs(tmp_path, method="er-ace", buffer=500, **usual, lr=2.0, precision="bf16")
    assert whole.folder.parent.name == "er-ace_cifar100_m500_lr-2_precision-bf16"


def test_numbers_that_differ_late_get_folders_of_their_own(tmp_path):
    names = [make_jobs(tmp_path, lr=lr)[0].folder.parent.name for lr in (0.012345678, 0.012345679)]
    assert [name.rpartition("lr-")[2].split("_")[0] for name in names] == ["0.012345678", "0.012345679"]


def test_a_long_name_is_cut_and_stays_one_of_its_own(tmp_path):
    third = {name: value / 3 for name, value in zip(("alpha", "beta", "gamma", "eta"), range(1, 5), strict=True)}
    changes = {"method": "xder", "regularizer": "barlow-twins", "buffer": 20, "lr": 1 / 3, "weight": 2 / 3, **third}
    one, again, other = (
        make_jobs(tmp_path, **changes, margin=margin)[0].folder.parent.name for margin in (1 / 3, 1 / 3, 2 / 3)
    )
    assert one == again != other
    assert one[:-8] == other[:-8]
    assert len(one) == 200


def test_a_long_name_in_any_script_is_one_of_a_folder(tmp_path):
    (job,) = make_jobs(tmp_path, dataset=f"folder:{'/'.join(['資料' * 20] * 3)}")
    check_writable(job.folder)


def test_a_folder_with_a_broken_result_is_refused(tmp_path):
    (job,) = make_jobs(tmp_path)
    job.folder.mkdir(parents=True)
    (job.folder / "result.json").write_text('{"format": 1')
    with pytest.raises(UsageError, match=rf"result\.json is not JSON.*; to do this run again, delete {job.folder}"):
        remaining([job])


@pytest.mark.parametrize("settings", ['"er-ace"', "[1]", "null"])
def test_a_folder_with_settings_of_another_kind_is_refused(tmp_path, settings):
    (job,) = make_jobs(tmp_path)
    job.folder.mkdir(parents=True)
    (job.folder / "settings.json").write_text(f'{{"settings": {settings}, "seed": 0}}')
    with pytest.raises(UsageError, match="holds a different run"):
        remaining([job])


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    jobs = make_jobs(tmp_path / "file" / "runs")
    with pytest.raises(UsageError, match=r"cannot write to .*file"):
        execute(jobs, Machine(workers=1, device="cpu"))


# -- losses in the log -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seconds", "steps"), [(math.inf, [10]), (0.0, [*range(1, 11)])])
def test_losses_are_logged_now_and_then_and_at_the_end_of_each_task(tmp_path, monkeypatch, seconds, steps):
    monkeypatch.setattr(importlib.import_module("cler.engine.train"), "REPORT_SECONDS", 0.0)
    monkeypatch.setattr(record, "LOG_SECONDS", seconds)
    (job,) = make_jobs(tmp_path)
    notes = run_all([job])
    lines = logged(job.folder, "progress")
    assert [(line["task"], line["step"]) for line in lines] == [(task, step) for task in range(2) for step in steps]
    told = [p.losses for p in notes.progressed]
    for line in lines:
        since = [each for each, p in zip(told, notes.progressed, strict=True) if p.task == line["task"]]
        since = since[: line["step"]] if len(steps) == 1 else [since[line["step"] - 1]]
        mean = {name: sum(each[name] for each in since) / len(since) for name in since[0]}
        assert line["losses"] == pytest.approx(mean, rel=1e-5)
        assert line["time"]


def test_losses_that_cannot_be_logged_stop_no_run(tmp_path, monkeypatch):
    write = record.log_line

    def full_for_losses(folder, line):
        if line["event"] == "progress":
            raise OSError(28, "No space left on device")
        write(folder, line)

    monkeypatch.setattr(record, "log_line", full_for_losses)
    (job,) = make_jobs(tmp_path)
    (said,) = run_all([job]).of(Message)
    assert said.text == "cannot write losses (No space left on device); continuing without"
    assert read_result(job.folder)["complete"]


# -- callbacks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        *((kind, ZeroDivisionError) for kind in (Started, Progress, Evaluated, Checkpointed, Finished)),
        (Progress, SystemExit),
    ],
)
def test_a_callback_that_raises_ends_training_and_nothing_is_lost(tmp_path, kind, error):
    whole, stopped = (make_jobs(tmp_path / name, method="er", buffer=8)[0] for name in ("whole", "stopped"))
    run_all([whole])

    def fail(event):
        if isinstance(event, kind):
            raise error

    with pytest.raises(error):
        execute([stopped], Machine(workers=1, device="cpu"), callbacks=[fail])
    assert (kind is Finished) == (remaining([stopped]) == [])
    assert (kind is Finished) != (stopped.folder / checkpoint.NAME).exists()
    run_all(remaining([stopped]))
    assert without_times(stopped.folder) == without_times(whole.folder)


@pytest.mark.parametrize("kind", [Started, Progress, Evaluated])
def test_a_run_that_another_process_has_taken_over_is_left_to_it(tmp_path, kind):
    """As it happens to a process that was stopped for long, on a host from which others heard nothing meanwhile."""
    (job,) = make_jobs(tmp_path, seeds=[0], method="er", buffer=8)
    there = {}

    def take_over(event):
        if isinstance(event, kind) and not there:
            write_json(job.folder / OWNER, {"host": "elsewhere", "process": 1, "token": "other"})
            there.update({path.name: path.read_bytes() for path in job.folder.iterdir()})
        assert not (there and isinstance(event, Checkpointed))

    with pytest.raises(UsageError, match=f"{job.folder} was taken over by another process"):
        execute([job], Machine(workers=1, device="cpu"), callbacks=[take_over])
    assert {path.name: path.read_bytes() for path in job.folder.iterdir()} == there


def test_every_callback_hears_every_event(tmp_path):
    first, second = Notes(), Notes()
    execute(make_jobs(tmp_path), Machine(workers=1, device="cpu"), callbacks=[first, second])
    assert first.heard == second.heard
    assert {type(event) for event in first.heard} == {Started, Progress, Evaluated, Checkpointed, Finished}
    assert {event.run.folder for event in first.of(Finished)} == {make_jobs(tmp_path)[0].folder}


# -- two processes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["in turn", "side by side"])
def test_runs_that_another_process_is_doing_are_left_to_it(tmp_path, way):
    jobs = make_jobs(tmp_path, seeds=[0, 1, 2])
    notes = Notes()
    jobs[1].folder.mkdir(parents=True)
    with locked(jobs[1].folder):
        if way == "in turn":
            execute(jobs, Machine(workers=1, device="cpu"), callbacks=[notes])
        else:
            trainers.train_bundles([jobs], Machine(device="cpu", at_once=2), notes)
    assert notes.of(Elsewhere) == [Elsewhere(jobs[1].name, complete=False)]
    assert [event.run for event in notes.of(Finished)] == [jobs[0].name, jobs[2].name]
    assert remaining(jobs) == [jobs[1]]
    if way == "in turn":
        (said,) = notes.of(Message)
        assert said.text.startswith("1 run is being trained by another process")
    assert not list(tmp_path.rglob(".lock"))


@pytest.mark.parametrize("way", ["in turn", "side by side"])
def test_a_run_that_another_process_has_just_done_is_not_done_again(tmp_path, way):
    """It was not finished when this process asked which runs are left."""
    jobs = make_jobs(tmp_path, seeds=[0, 1])
    todo = remaining(jobs)
    run_all(jobs[:1])
    before = (jobs[0].folder / "result.json").read_bytes()
    notes = Notes()
    if way == "in turn":
        execute(todo, Machine(workers=1, device="cpu"), callbacks=[notes])
    else:
        trainers.train_bundles([todo], Machine(device="cpu"), notes)
    assert notes.of(Elsewhere) == [Elsewhere(jobs[0].name, complete=True)]
    assert not notes.of(Message)
    assert (jobs[0].folder / "result.json").read_bytes() == before
    assert remaining(jobs) == []


def test_without_a_graph_no_steps_are_recorded(tmp_path, monkeypatch):
    loop, asked = importlib.import_module("cler.engine.train"), []
    make = loop.make_stepper
    monkeypatch.setattr(loop, "make_stepper", lambda *given, graph: asked.append(graph) or make(*given, graph=graph))
    for number, graph in enumerate((True, False)):
        trainers.train_bundles([make_jobs(tmp_path / str(number))], Machine(device="cpu", graph=graph), ignore)
    assert asked == [True, False]


def test_a_run_is_locked_while_it_is_trained_and_no_longer(tmp_path):
    jobs, locks = make_jobs(tmp_path, seeds=[0, 1]), set()

    def look(event):
        if isinstance(event, Progress):
            locks.add((event.runs[0].seed, *(path.parent.name for path in tmp_path.rglob(".lock"))))

    execute(jobs, Machine(workers=1, device="cpu"), callbacks=[look])
    assert locks == {(0, "seed-0"), (1, "seed-1")}


# -- failures ----------------------------------------------------------------------------------------------------------


def test_a_failure_is_recorded_and_the_next_run_goes_on(tmp_path):
    bad, good = make_jobs(tmp_path / "bad", lr=1e30) + make_jobs(tmp_path / "good")
    notes = run_all([bad, good])
    result = read_result(bad.folder)
    assert "not finite at task 1, step" in result["failure"]
    assert result["complete"] is False
    assert len(logged(bad.folder, "failed")) == 1
    assert not logged(bad.folder, "evaluated")
    assert read_result(good.folder)["complete"]
    assert [label for label, _, _ in notes.ended] == ["finetune lr 1e+30, seed 0", "finetune, seed 0"]
    said = [failure for _, _, failure in notes.ended]
    assert said[0].startswith(result["failure"])
    assert "lr 1e+30" in said[0]  # the settings, beside the step
    assert said[1] is None


def test_a_failure_in_a_later_task_keeps_what_was_evaluated(tmp_path, monkeypatch):
    build = loading.build_run

    def poisoned(settings, seed, data, name):
        run = build(settings, seed, data, name)
        learn = run.method.observe
        run.method.observe = lambda batch: {
            "loss": total(learn(batch)) * (float("nan") if run.method.task == 1 else 1.0)
        }
        return run

    monkeypatch.setattr(loading, "build_run", poisoned)
    (job,) = make_jobs(tmp_path)
    run_all([job])
    result = read_result(job.folder)
    assert result["failure"] == "the loss was not finite at task 2, step 1; try a lower lr or weight"
    assert [len(row) for row in result["accuracy"]["class_il"]] == [1]
    assert [line["event"] for line in logged(job.folder, "evaluated", "failed")] == ["evaluated", "failed"]


def test_a_failed_run_would_only_fail_again(tmp_path):
    jobs = make_jobs(tmp_path, lr=1e30)
    run_all(jobs)
    assert remaining(jobs) == []


# -- where it runs -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("known_to_new_processes")
def test_in_processes_equals_in_turn(tmp_path):
    """Under a tracker too, which hears what happens in the processes and has a file for each seed."""
    in_turn, in_processes = (make_jobs(tmp_path / name, seeds=[0, 1, 2]) for name in ("turn", "processes"))
    run_all(in_turn)
    notes = Notes()
    execute(in_processes, Machine(workers=2, device="cpu", track="tensorboard"), callbacks=[notes])
    for one, other in zip(in_turn, in_processes, strict=True):
        assert without_times(one.folder) == without_times(other.folder)
        (events,) = other.folder.glob("events.out.tfevents.*")
        assert b"metrics/forgetting_class_il" in events.read_bytes()
    assert len({str(without_times(job.folder)["accuracy"]) for job in in_turn}) > 1
    assert sorted(label for label, _, _ in notes.ended) == [f"finetune, seed {seed}" for seed in range(3)]
    assert {p.labels for p in notes.progressed} == {(f"finetune, seed {seed}",) for seed in range(3)}
    assert torch.get_num_threads() == 1


def test_a_mistake_in_a_worker_is_the_users_mistake_here(tmp_path):
    jobs = make_jobs(tmp_path, seeds=[0, 1])  # this dataset is not known in a new process
    with pytest.raises(UsageError, match="unknown dataset 'toy'"):
        workers.Workers().train([jobs], Machine(device="cpu"), [None], ignore)


@pytest.mark.parametrize(
    ("gpus", "at_once", "seeds", "sizes"),
    [
        ("", None, 5, [5]),
        ("GPU-a", None, 5, [5]),
        ("GPU-a,GPU-b", None, 5, [3, 2]),
        ("0,1,2,3", None, 10, [3, 3, 3, 1]),
        ("0,1", None, 25, [10, 10, 5]),
        ("0,1", 2, 5, [2, 2, 1]),
        ("0,1,2", None, 2, [1, 1]),
        ("0,1,2", None, 1, [1]),
    ],
)
def test_every_gpu_has_a_process_and_its_share(tmp_path, monkeypatch, gpus, at_once, seeds, sizes):
    """On pretended GPUs; a single one is this process's own."""
    named = gpus.split(",") if gpus else []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: max(len(named), 1))
    seen = []
    monkeypatch.setattr(workers.Workers, "train", lambda _, bundles, __, places, ___: seen.append((bundles, places)))
    monkeypatch.setattr(local, "train_bundles", lambda bundles, *_, **__: seen.append((bundles, [None])))
    jobs = make_jobs(tmp_path, seeds=range(seeds))
    local.Local(Machine()).train(jobs, Machine(device="cuda", at_once=at_once), ignore)
    ((bundles, places),) = seen
    assert [len(bundle) for bundle in bundles] == sizes
    assert [job for bundle in bundles for job in bundle] == jobs
    alone = len(sizes) == 1
    assert places == ([None] if alone else named[: len(sizes)])


def test_threads_are_the_runs_own(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(bundles, "train", lambda runs, *_, **__: seen.append(torch.get_num_threads()))
    run_all([*make_jobs(tmp_path, threads=2), *make_jobs(tmp_path / "one", threads=1)])
    assert seen == [2, 1]
    assert torch.get_num_threads() == 1


def test_a_finished_run_gives_its_memory_back(tmp_path):
    (job,) = make_jobs(tmp_path)
    builder = loading.Builder(record.Recorder(ignore, Machine(device="cpu")))
    run = builder(job)
    gone = weakref.ref(run)
    del run
    gc.collect()
    assert gone() is None


def test_images_that_stay_in_main_memory_are_told_of(tmp_path, monkeypatch):
    asked = []

    def to(self, device, images):
        asked.append(images)
        return replace(self, on_host=True)

    monkeypatch.setattr(ImageData, "to", to)
    notes = Notes()
    jobs = make_jobs(tmp_path, seeds=[0, 1])
    trainers.train_bundles([jobs], Machine(device="cpu", images="host"), notes)
    assert asked == ["host"]  # once for both
    told = [message.text for message in notes.of(Message)]
    assert told == ["0.0 GB of images of toy stay in main memory, where the GPU reads them"]


@pytest.fixture
def placed(monkeypatch):
    """A way to each dataset that was made ready for a device, while it is there."""
    found, place = [], ImageData.to

    def noting(self, *where):
        images = place(self, *where)
        found.append(weakref.ref(images))
        return images

    monkeypatch.setattr(ImageData, "to", noting)
    return found


def test_a_backend_keeps_the_images_from_one_call_to_the_next_until_it_is_closed(tmp_path, placed):
    backend, machine = local.Local(Machine()), Machine(device="cpu", workers=1)
    for name in ("first", "second"):
        backend.train(make_jobs(tmp_path / name), machine, ignore)
    assert len(placed) == 1
    backend.train(make_jobs(tmp_path / "elsewhere"), Machine(device="cpu", workers=1, data_dir=tmp_path), ignore)
    assert len(placed) == 2  # other images may lie there
    assert None not in [images() for images in placed]
    backend.close()
    gc.collect()
    assert [images() for images in placed] == [None, None]
    backend.train(make_jobs(tmp_path / "again"), machine, ignore)
    assert len(placed) == 3


def test_training_from_python_keeps_no_images(tmp_path, placed):
    options = {"dataset": "toy", "tasks": 2, "width": 2, "batch": 4, "device": "cpu", "workers": 1, "verbose": False}
    cler.train("finetune", out=tmp_path, **options)
    gc.collect()
    assert [images() for images in placed] == [None]


def test_side_by_side_equals_in_turn(tmp_path):
    """The way of a GPU, on a CPU: bundles of runs that take the same steps."""
    in_turn, bundled = (
        [
            *make_jobs(tmp_path / name, seeds=[0, 1]),
            *make_jobs(tmp_path / name, method="er-ace", regularizer="rotation", buffer=8),
            *make_jobs(tmp_path / name, method="joint"),
            *make_jobs(tmp_path / name, method="er", epochs=2, buffer=8),
            *make_jobs(tmp_path / name, method="lwf-mc", variant="released"),
        ]
        for name in ("turn", "bundled")
    )
    run_all(in_turn)
    notes = Notes()
    trainers.train_bundles([bundled], Machine(device="cpu", at_once=10), notes)
    for one, other in zip(in_turn, bundled, strict=True):
        assert without_times(one.folder) == without_times(other.folder)
    assert [read_json(job.folder / "result.json")["at_once"] for job in bundled] == [3, 3, 3, 1, 1, 1]
    together = {p.labels for p in notes.progressed}
    assert together == {
        ("finetune, seed 0", "finetune, seed 1", "er-ace+rotation buffer 8, seed 0"),
        ("joint, seed 0",),
        ("er buffer 8 epochs 2, seed 0",),
        ("lwf-mc, seed 0",),
    }


def test_a_run_that_stops_early_does_not_stop_those_beside_it(tmp_path):
    whole, early = make_jobs(tmp_path, seeds=[0, 1])
    trainers.train_bundles([[whole, replace(early, until_task=1)]], Machine(device="cpu", at_once=2), ignore)
    rows = [read_json(job.folder / "result.json")["accuracy"]["class_il"] for job in (whole, early)]
    assert list(map(len, rows)) == [2, 1]


def test_bundles_are_of_jobs_that_could_be_trained_side_by_side(tmp_path):
    jobs = [*make_jobs(tmp_path, seeds=[0, 1, 2]), *make_jobs(tmp_path, epochs=2), *make_jobs(tmp_path, lr=0.3)]
    told = [[(job.settings.epochs, job.settings.lr, job.seed) for job in bundle] for bundle in in_bundles(jobs, 3)]
    lr = jobs[0].settings.lr
    assert told == [[(1, lr, 0), (1, lr, 1), (1, lr, 2)], [(1, 0.3, 0)], [(2, lr, 0)]]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tasks": 3}, "tasks must be a number that divides the 4 classes"),
        ({"batch": 50}, "batch must be at most 40"),
        ({"pretrained": True}, "pretrained has no effect on resnet18, which has no pretrained weights"),
        ({"tasks": 4}, None),
    ],
)
def test_settings_are_held_against_the_data_before_anything_is_written(changes, says):
    (job,) = make_jobs(Path("unused"), **changes)
    data = shades()
    if says is None:
        check_fit(job.settings, data)
    else:
        with pytest.raises(UsageError, match=says):
            check_fit(job.settings, data)


def test_images_that_a_regularizer_cannot_take_are_refused():
    data = shades()
    odd = ImageData("odd", data.train_images[..., :7, :7], data.train_labels, data.test_images[..., :7, :7],
                    data.test_labels, data.classes, data.mean, data.std)  # fmt: skip
    with pytest.raises(UsageError, match="jigsaw needs images of even size"):
        check_fit(make_jobs(Path("unused"), regularizer="jigsaw")[0].settings, odd)
    check_fit(make_jobs(Path("unused"), regularizer="rotation")[0].settings, odd)


def test_trackers_end_though_a_checkpoint_cannot_be_written(tmp_path, monkeypatch):
    closed, recorder, written = [], record.Recorder(ignore, Machine()), Future()
    monkeypatch.setattr(recorder._tracking, "close", lambda: closed.append(True))
    written.set_exception(UsageError("it is a link"))
    recorder._being_written[tmp_path] = written, Checkpointed(RunName("er"), 0, 0)
    with pytest.raises(UsageError, match="it is a link"), recorder:
        pass
    assert closed
