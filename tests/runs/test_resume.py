"""Runs that were stopped in some way, as `execute` and the command line meet them."""

import contextlib
import errno
import importlib
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch

from cler import files
from cler.config.machine import Machine
from cler.config.making import make_settings
from cler.data import images
from cler.engine import checkpoint
from cler.engine.events import Progress, Started
from cler.errors import UsageError
from cler.methods.er_ace import ErAce
from cler.methods.loss import total
from cler.runs import loading, record
from cler.runs.execute import execute
from cler.runs.jobs import delete_checkpoints, make_jobs, remaining, restart
from cler.runs.trainers import train_bundles
from hearing import Notes, without_times
from toys import DIES_AFTER, Toy

CPU = torch.device("cpu")
CLER = Path(sys.executable).with_name("cler")
OFTEN = Machine(workers=1, device="cpu", checkpoint_every=1e-9)
"""A checkpoint after every step."""


def make_job(out, seed=0, **changes):
    options = {"method": "er-ace", "dataset": "toy", "tasks": 2, "width": 2, "batch": 5, "replay_batch": 5}
    options |= {"buffer": 10} | changes
    return make_jobs(make_settings(**options), [seed], out)[0]


class Stopped(Exception):  # noqa: N818 - stands for Ctrl-C
    pass


def run(*jobs):
    notes = Notes()
    execute(jobs, OFTEN, callbacks=[notes])
    return notes


@contextlib.contextmanager
def stopping_at(monkeypatch, position):
    """Inside, a run stops just after its checkpoint of this moment."""
    write = checkpoint.write

    def write_and_stop(folder, taken, check):
        write(folder, taken, check)
        if taken.position == position:
            raise Stopped

    with monkeypatch.context() as patch, pytest.raises(Stopped):  # noqa: PT012
        patch.setattr(checkpoint, "write", write_and_stop)
        yield


def logged(folder):
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    lines = [line for line in lines if line["event"] != "progress"]  # which depend on when it was stopped
    return [{key: value for key, value in line.items() if key != "time"} for line in lines]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What a run leaves that nothing has stopped."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(images.DATASETS._entries, "toy", Toy())
        job = make_job(tmp_path_factory.mktemp("whole"))
        run(job)
    return job.folder


def assert_ended_like(folder, whole):
    assert without_times(folder) == without_times(whole)
    assert logged(folder) == logged(whole)
    assert names(folder) == ["log.jsonl", "result.json", "settings.json"]


# -- going on ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stops", [[(0, 2)], [(1, 0)], [(0, 1), (0, 6), (1, 0), (1, 5)]])
def test_a_run_goes_on_where_it_was_stopped(tmp_path, monkeypatch, whole, stops):
    job = make_job(tmp_path)
    for position in stops:
        with stopping_at(monkeypatch, position):
            run(job)
        assert remaining([job]) == [job]
    task, taken = stops[-1]
    assert run(job).messages == [f"er-ace buffer 10, seed 0: resuming from task {task + 1}, step {taken + 1}"]
    assert_ended_like(job.folder, whole)
    assert remaining([job]) == []


def test_log_lines_of_a_task_that_is_done_again_are_not_doubled(tmp_path, monkeypatch, whole):
    """Killed after the second task was written down, but before a checkpoint said so; the last line is cut."""
    job = make_job(tmp_path)
    with stopping_at(monkeypatch, (1, 3)):
        run(job)
    with (job.folder / "log.jsonl").open("a") as file:
        file.write('{"event": "evaluated", "task": 1, "class_il": [1, 2]}\n{"event": "eval')
    (job.folder / ".result.json.123.tmp").write_text("{")
    run(job)
    assert_ended_like(job.folder, whole)


def test_a_run_begun_anew(tmp_path, monkeypatch, whole):
    job = make_job(tmp_path)
    with stopping_at(monkeypatch, (1, 3)):
        run(job)
    restart([job, make_job(tmp_path, seed=1)])
    assert not list(job.folder.glob("*.safetensors"))
    assert run(job).messages == []
    assert_ended_like(job.folder, whole)


def test_a_checkpoint_left_by_a_run_that_was_killed_at_its_end_is_cleared_away(tmp_path, monkeypatch, whole):
    job = make_job(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "delete", lambda folder: None)
        run(job)
    assert remaining([job]) == []
    assert (job.folder / checkpoint.NAME).exists()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", cannot_write)  # as on a file system that can only be read
        delete_checkpoints([job])
    delete_checkpoints([job])
    assert_ended_like(job.folder, whole)


def cannot_write(*_, **__):
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def test_a_failed_run_leaves_no_checkpoint(tmp_path):
    job = make_job(tmp_path, lr=1e30)
    ((_, _, failure),) = run(job).ended
    assert "not finite" in failure
    assert names(job.folder) == ["log.jsonl", "result.json", "settings.json"]


@pytest.mark.parametrize("class_order", [None, "seed"])
def test_side_by_side_runs_go_on_with_those_that_stand_where_they_do(tmp_path, monkeypatch, class_order):
    """The way of a GPU, on a CPU."""
    alone, together = (
        [make_job(tmp_path / name, seed, class_order=class_order) for seed in range(4)]
        for name in ("alone", "together")
    )
    run(*alone)
    for job, position in zip(together, [(0, 3), (1, 2), (0, 3), None], strict=True):
        job.folder.mkdir(parents=True)
        if position:
            with stopping_at(monkeypatch, position):
                run(job)
    seen = []

    def look(event):
        if isinstance(event, Progress):
            seen.append(event.labels)

    train_bundles([together], replace(OFTEN, at_once=10), look)
    labels = [job.label for job in together]
    assert set(seen) == {(labels[0], labels[2]), (labels[1],), (labels[3],)}
    for one, other in zip(alone, together, strict=True):
        assert without_times(one.folder) == without_times(other.folder)


@pytest.mark.parametrize("moment", ["in the second task", "in the last evaluation"])
def test_running_out_of_memory_repeats_no_run_that_has_ended(tmp_path, monkeypatch, moment):
    """The way of a GPU, on a CPU: a run fails, memory runs out later, and the others go on from where they stand."""
    alone, together = ([make_job(tmp_path / name, seed) for seed in range(4)] for name in ("alone", "together"))
    run(*alone[1:])
    build = loading.build_run

    def build_badly(settings, seed, data, name):
        built = build(settings, seed, data, name)
        learn, evaluate = built.method.observe, built.evaluate

        def learn_badly(batch):
            if moment == "in the second task" and seed == 3 and built.method.task == 1 and built.at_once > 2:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return {"loss": total(learn(batch)) * (float("nan") if seed == 0 else 1.0)}

        def evaluate_badly(task):
            if moment == "in the last evaluation" and seed == 2 and task == 1 and built.at_once > 2:
                raise torch.OutOfMemoryError("CUDA out of memory")
            evaluate(task)

        built.method.observe, built.evaluate = learn_badly, evaluate_badly
        return built

    monkeypatch.setattr(loading, "build_run", build_badly)
    for job in together:
        job.folder.mkdir(parents=True)
    notes = Notes()
    train_bundles([together], replace(OFTEN, at_once=10), notes)
    assert "out of memory with 4 runs at once; continuing with 2" in notes.messages
    assert sorted(label for label, _, _ in notes.ended) == [job.label for job in together]
    assert [line["event"] for line in logged(together[0].folder)] == ["failed"]
    for one, other in zip(alone[1:], together[1:], strict=True):
        assert without_times(one.folder) == without_times(other.folder)


# -- what can be wrong -------------------------------------------------------------------------------------------------


def test_a_damaged_checkpoint(tmp_path, monkeypatch, whole):
    job = make_job(tmp_path)
    with stopping_at(monkeypatch, (1, 3)):
        run(job)
    file = job.folder / checkpoint.NAME
    file.write_bytes(file.read_bytes()[:-5])
    said = run(job).messages
    assert said[0].startswith(f"{file} is damaged")
    assert said[1] == "er-ace buffer 10, seed 0: resuming from task 2, step 3"
    assert_ended_like(job.folder, whole)


def test_no_checkpoint_is_whole(tmp_path, monkeypatch, whole):
    job = make_job(tmp_path)
    with stopping_at(monkeypatch, (1, 3)):
        run(job)
    for file in job.folder.glob("*.safetensors"):
        file.write_bytes(b"")
    (line,) = run(job).messages
    assert line.endswith("starting over")
    assert_ended_like(job.folder, whole)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_log_that_is_no_plain_file_is_refused_and_left_alone(tmp_path, kind):
    job = make_job(tmp_path)
    job.folder.mkdir(parents=True)
    log, other = job.folder / "log.jsonl", tmp_path / "other"
    other.write_text("precious")
    if kind == "link":
        log.symlink_to(other)
    elif kind == "pipe":
        os.mkfifo(log)
    else:
        log.mkdir()
    with pytest.raises(UsageError, match=r"log\.jsonl|cannot write to"):
        run(job)
    assert other.read_text() == "precious"
    assert not (job.folder / "result.json").exists()


def test_images_that_were_replaced_are_refused(tmp_path, monkeypatch, whole):
    job = make_job(tmp_path)
    with stopping_at(monkeypatch, (1, 3)):
        run(job)
    before = {path: path.read_bytes() for path in job.folder.iterdir()}

    class Replaced(Toy):
        def load(self, folder):
            data = super().load(folder)
            data.train_images[7, 0, 0, 0] += 1
            return data

    with monkeypatch.context() as patch:
        patch.setitem(images.DATASETS._entries, "toy", Replaced())
        with pytest.raises(UsageError, match=rf"{job.folder} was started with different data: .* restart"):
            run(job)
    assert {path: path.read_bytes() for path in job.folder.iterdir() if path.name != ".lock"} == {
        path: content for path, content in before.items() if path.name != ".lock"
    }
    run(job)
    assert_ended_like(job.folder, whole)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("device", "cuda", "a different device"),
        ("seed", 5, "a different seed"),
        ("settings", {"method": "er-ace"}, "different settings"),
        ("settings", None, "different settings"),
        ("revisions", {"method": 7}, "er-ace revision 7, this is 1"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path, monkeypatch, name, value, says):
    job = make_job(tmp_path)
    with stopping_at(monkeypatch, (0, 3)):
        run(job)
    found = checkpoint.find(job.folder, pytest.fail)
    checkpoint.write(job.folder, checkpoint.Checkpoint(found.about | {name: value}, found.state, found.accuracy))
    with pytest.raises(UsageError, match=f"was started with {says}: "):
        run(job)


def test_a_checkpoint_that_does_not_say_its_data_and_revisions_is_the_same(tmp_path, monkeypatch, whole):
    job = make_job(tmp_path)
    with stopping_at(monkeypatch, (0, 3)):
        run(job)
    found = checkpoint.find(job.folder, pytest.fail)
    about = {name: found.about[name] for name in ("settings", "seed", "device")}
    checkpoint.write(job.folder, checkpoint.Checkpoint(about, found.state, found.accuracy))
    run(job)
    assert_ended_like(job.folder, whole)


@pytest.mark.parametrize("missing", ["run.task", "run.generator", "network.classifier.weight"])
def test_a_checkpoint_that_does_not_fit_is_refused(tmp_path, monkeypatch, missing):
    job = make_job(tmp_path)
    with stopping_at(monkeypatch, (0, 3)):
        run(job)
    found = checkpoint.find(job.folder, pytest.fail)
    for named in (found.state.tensors, found.state.numbers):
        named.pop(missing, None)
    checkpoint.write(job.folder, found)
    with pytest.raises(UsageError, match=rf"the checkpoint in {job.folder} does not fit .*delete it"):
        run(job)


@pytest.mark.parametrize("number", [[[]], "1", True, None])
def test_a_checkpoint_that_stands_nowhere_is_refused(tmp_path, monkeypatch, number):
    job = make_job(tmp_path)
    with stopping_at(monkeypatch, (0, 3)):
        run(job)
    found = checkpoint.find(job.folder, pytest.fail)
    found.state.numbers["run.task"] = number
    checkpoint.write(job.folder, found)
    with pytest.raises(UsageError, match=rf"the checkpoint in {job.folder} does not fit .*delete it"):
        run(job)


def full_disk(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_stops_no_run_and_is_said_once(tmp_path, monkeypatch, whole):
    jobs = [make_job(tmp_path), make_job(tmp_path, seed=1)]
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "pieces", full_disk)
        said = run(*jobs).messages
    assert said == ["cannot write checkpoints (No space left on device); continuing without"]
    assert_ended_like(jobs[0].folder, whole)


@pytest.mark.parametrize("end", [None, Stopped, KeyboardInterrupt])
def test_checkpoints_that_are_written_in_the_background_are_asked_for_at_the_end(tmp_path, monkeypatch, end):
    monkeypatch.setattr(checkpoint, "write", full_disk)
    notes = Notes()
    with contextlib.suppress(Stopped, KeyboardInterrupt), record.Recorder(notes, Machine(device="cpu")) as recorder:
        build = loading.Builder(recorder)
        for job in (make_job(tmp_path), make_job(tmp_path, seed=1)):
            job.folder.mkdir(parents=True)
            built = build(job)
            built.device = torch.device("cuda")  # which is only asked whether to wait for the disk
            recorder.keep(built)
        if end:
            raise end
    assert notes.messages == ["cannot write checkpoints (No space left on device); continuing without"]


def test_results_so_far_that_cannot_be_written_stop_no_run(tmp_path, monkeypatch, whole):
    job, write = make_job(tmp_path), files.write_json

    def full_until_the_end(path, value, check):
        if value.get("complete") is False:
            full_disk()
        write(path, value, check)

    monkeypatch.setattr(record, "write_json", full_until_the_end)
    assert run(job).messages == ["cannot write results so far (No space left on device); continuing without"]
    assert_ended_like(job.folder, whole)


def test_a_result_that_cannot_be_written_is_an_error_of_one_line_and_is_not_lost(tmp_path, monkeypatch, whole):
    job, write = make_job(tmp_path), files.write_json

    def full_at_the_end(path, value, check):
        if value.get("complete"):
            full_disk()
        write(path, value, check)

    with monkeypatch.context() as patch:
        patch.setattr(record, "write_json", full_at_the_end)
        with pytest.raises(UsageError, match=rf"cannot write to {job.folder}: No space left on device"):
            run(job)
    # only the last evaluation was left
    assert run(job).messages == ["er-ace buffer 10, seed 0: resuming from task 2, step 9"]
    assert_ended_like(job.folder, whole)


def test_a_folder_that_becomes_unwritable_while_training(tmp_path, monkeypatch):
    """Removed, which is what stops root too."""
    job, write = make_job(tmp_path), checkpoint.write

    def remove_and_write(folder, taken, check):
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        write(folder, taken, check)

    monkeypatch.setattr(checkpoint, "write", remove_and_write)
    with pytest.raises(UsageError, match=rf"cannot write to {job.folder}: No such file or directory"):
        run(job)


def test_a_clock_that_goes_backwards_changes_nothing(tmp_path, monkeypatch, whole):
    """The newest checkpoint is known by its name, and the time between two does not come from the clock on the wall."""
    job = make_job(tmp_path)
    with stopping_at(monkeypatch, (1, 3)):
        run(job)
    os.utime(job.folder / checkpoint.NAME, (0, 0))
    now = iter(range(2_000_000_000, 0, -100_000))

    class Backwards(datetime):
        @classmethod
        def now(cls, zone=None):
            return datetime.fromtimestamp(next(now), UTC)

    monkeypatch.setattr(record, "datetime", Backwards)
    monkeypatch.setattr(time, "time", lambda: float(next(now)))
    assert run(job).messages == ["er-ace buffer 10, seed 0: resuming from task 2, step 4"]
    assert_ended_like(job.folder, whole)


@pytest.mark.parametrize(
    ("position", "steps"), [((0, 4), [(0, 1), (0, 2), (0, 3), (0, 4)]), ((1, 0), [(0, n) for n in range(1, 9)])]
)
@pytest.mark.usefixtures("told_at_every_step")
def test_losses_that_were_logged_after_the_checkpoint_are_dropped(tmp_path, monkeypatch, position, steps):
    """Killed at the end of the second task, with an older checkpoint."""
    monkeypatch.setattr(record, "LOG_SECONDS", 0.0)
    job = make_job(tmp_path)
    with stopping_at(monkeypatch, position):
        run(job)
    with (job.folder / "log.jsonl").open("a") as file:
        file.writelines(json.dumps({"event": "progress", "task": 1, "step": n, "losses": {}}) + "\n" for n in (1, 2, 3))
    kept = []

    def look(event):
        if isinstance(event, Started):
            kept.extend(json.loads(line) for line in (job.folder / "log.jsonl").read_text().splitlines())

    execute([job], OFTEN, callbacks=[look])
    assert [(line["task"], line["step"]) for line in kept if line["event"] == "progress"] == steps
    lines = [json.loads(line) for line in (job.folder / "log.jsonl").read_text().splitlines()]
    assert [(line["task"], line["step"]) for line in lines if line["event"] == "progress"] == [
        (task, step) for task in range(2) for step in range(1, 9)
    ]


# -- the command line --------------------------------------------------------------------------------------------------


@pytest.fixture
def cler(cler_here, tmp_path):
    """The command `cler run`, on the toy; gives back exit code and error output."""
    options = "run er-ace --dataset toy --tasks 2 --width 2 --batch 5 --replay-batch 5 --buffer 10 --workers 1"

    def call(*arguments):
        code, _, err = cler_here(*options.split(), "--out", tmp_path, *arguments)
        return code, err

    return call


@pytest.mark.parametrize(("option", "from_there"), [([], True), (["--restart"], False)])
def test_the_same_command_goes_on_unless_it_is_told_to_start_over(
    tmp_path, monkeypatch, whole, cler, option, from_there
):
    job = make_job(tmp_path)
    with stopping_at(monkeypatch, (1, 3)):
        run(job)
    code, said = cler(*option)
    assert code == 0, said
    assert ("er-ace buffer 10, seed 0: resuming from task 2, step 4" in said) == from_there
    assert_ended_like(job.folder, whole)


@pytest.mark.parametrize("value", ["-1", "nan", "inf"])
def test_a_time_between_checkpoints_that_is_none(tmp_path, cler, value):
    code, said = cler("--checkpoint-every", value)
    assert code == 2
    assert said.startswith("cler: --checkpoint-every must be ")
    assert len(said.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_checkpoints_only_after_each_task(tmp_path, monkeypatch, cler):
    written = []
    monkeypatch.setattr(checkpoint, "write", lambda folder, taken, check: written.append(taken.position))
    assert cler("--checkpoint-every", "0")[0] == 0
    assert written == [(1, 0)]


def signal_at(task, step, number=signal.SIGTERM):
    """A callback that sends this process a signal at a step."""

    def hear(event):
        if isinstance(event, Progress) and (event.task, event.step) == (task, step):
            signal.raise_signal(number)

    return hear


@pytest.fixture
def told_at_every_step(monkeypatch):
    monkeypatch.setattr(importlib.import_module("cler.engine.train"), "REPORT_SECONDS", 0.0)


@pytest.mark.usefixtures("told_at_every_step")
def test_sigterm_leaves_a_checkpoint_of_the_step_at_hand(tmp_path, whole):
    job = make_job(tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as end:
        execute([job], replace(OFTEN, checkpoint_every=0), callbacks=[signal_at(1, 3)])
    assert end.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before
    assert checkpoint.find(job.folder, pytest.fail).position == (1, 3)
    assert run(job).messages == ["er-ace buffer 10, seed 0: resuming from task 2, step 4"]
    assert_ended_like(job.folder, whole)


@pytest.mark.usefixtures("told_at_every_step")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_command_that_a_signal_ends_says_so(tmp_path, monkeypatch, cler, number, code):
    hear = record.Recorder.hear

    def hear_and_stop(self, event):
        hear(self, event)
        signal_at(1, 3, number)(event)

    with monkeypatch.context() as patch:
        patch.setattr(record.Recorder, "hear", hear_and_stop)
        ended, said = cler()
    assert ended == code
    assert said.splitlines()[-1] == "cler: stopped; finished runs are kept, and the same command resumes the others"
    assert "resuming from task 2, step 4" in cler()[1]


# -- real processes ----------------------------------------------------------------------------------------------------


def test_a_killed_process_ends_like_one_that_was_not(tmp_path, path_with_toys):
    """Killed once, at random; `tools/kill_test.py` does so hundreds of times."""
    peace, war = (make_job(tmp_path / name, regularizer="jigsaw", epochs=3) for name in ("peace", "war"))
    run(peace)
    options = "run er-ace --regularizer jigsaw --dataset toy --tasks 2 --width 2 --batch 5 --replay-batch 5 --buffer 10"
    dying = {"PYTHONPATH": path_with_toys, DIES_AFTER: str(random.randint(2, 25))}  # of 48 steps
    killed = subprocess.run(
        [CLER, *options.split(), "--epochs", "3", "--workers", "1", "--out", "war", "--checkpoint-every", "1e-9"],
        env=os.environ | dying,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (said,) = run(war).messages
    assert "resuming from task" in said
    assert_ended_like(war.folder, peace.folder)


def test_worker_processes_leave_checkpoints_when_this_one_is_terminated(tmp_path, monkeypatch, path_with_toys):
    peace, war = ([make_job(tmp_path / name, seed, epochs=2) for seed in range(3)] for name in ("peace", "war"))
    run(*peace)
    monkeypatch.setenv("PYTHONPATH", path_with_toys)
    started = set()

    def terminate(event):
        if isinstance(event, Started):
            started.add(event.run)
        if isinstance(event, Progress):
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit) as end:
        execute(war, replace(OFTEN, workers=2), callbacks=[terminate])
    assert end.value.code == 143
    assert not multiprocessing.active_children()
    assert not list((tmp_path / "war").rglob(".lock"))
    for job in war:
        if job.name in started:
            assert (job.folder / checkpoint.NAME).exists() != (remaining([job]) == [])
    run(*war)
    for one, other in zip(war, peace, strict=True):
        assert_ended_like(one.folder, other.folder)


def test_an_edited_method_is_not_silently_answered_with_old_results(tmp_path, monkeypatch, cler):
    job = make_job(tmp_path)
    assert cler()[0] == 0
    before = (job.folder / "result.json").read_bytes()
    monkeypatch.setattr(ErAce, "revision", 2)
    code, said = cler()
    assert code == 0
    assert f"1 run in {job.folder.parent} was made by er-ace revision 1, this is 2: --redo (in Python" in said
    assert (job.folder / "result.json").read_bytes() == before
    code, said = cler("--redo")
    assert code == 0
    assert "revision" not in said
    assert json.loads((job.folder / "result.json").read_text())["revisions"]["method"] == 2
