import copy
import errno
import json
import os
import resource
import struct

import pytest
import torch

from cler.engine import Control, RunName, checkpoint, train
from cler.engine.events import Progress
from cler.errors import UsageError
from cler.methods import METHODS
from cler.methods.loss import total
from cler.methods.optimizers import OPTIMIZERS
from cler.promises import toy
from cler.promises.state import differences
from cler.promises.training import StopAt, Stopped, resumed, resumes
from cler.regularizers import REGULARIZERS
from toys import noise

pytestmark = pytest.mark.usefixtures("shallow")
PAIRS = [
    (method, regularizer)
    for number, method in enumerate(METHODS)
    for regularizer in ("none", *REGULARIZERS)
    if regularizer != ("rotation", "jigsaw")[number % 2]  # one class, with another transform
]


DATA = noise()
SMALL = {"width": 2, "batch": 4, "replay_batch": 4, "buffer": 8, "lr": 0.01}


def make_run(method="er-ace", regularizer="none", seed=0, **changes):
    run = toy.make_run(method, regularizer, seed, data=DATA, **SMALL | changes)
    run.name = RunName(f"seed {seed}")
    return run


def go_on(folder, *run, **changes):
    """A new run, where the checkpoint was taken."""
    return resumed(folder, make_run(*run, **changes))


# -- going on ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "regularizer"), PAIRS, ids=["+".join(pair) for pair in PAIRS])
def test_a_run_that_was_stopped_ends_as_one_that_was_not(tmp_path, method, regularizer):
    stops = [(0, 3), (0, 5)] if METHODS[method].merged else [(0, 1), (1, 0), (1, 2)]
    resumes(method, regularizer, stops=stops, folder=tmp_path, data=noise(per_class=6), **SMALL)


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        *((method, {"optimizer": name}) for method in ("er-ace", "cope") for name in OPTIMIZERS if name != "sgd"),
        *((method, {"sgd_momentum": 0.9, "weight_decay": 1e-3}) for method in ("er-ace", "cope")),
        ("er-ace", {"precision": "bf16"}),
        ("xder", {"epochs": 2}),
        ("r-dfcil", {"variant": "text"}),
    ],
)
def test_with_other_settings_too(tmp_path, method, changes):
    last = make_run(method, "jigsaw", **changes).schedule[1] - 1
    changes |= SMALL | {"data": DATA, "network": "resnet18"}
    resumes(method, "jigsaw", stops=[(0, 2), (1, 1), (1, last)], folder=tmp_path, **changes)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize(("method", "regularizer"), PAIRS, ids=["+".join(pair) for pair in PAIRS])
def test_on_a_gpu_up_to_what_it_rounds(tmp_path, monkeypatch, method, regularizer):
    """Stopped before a step is recorded, in the middle of recorded ones, and between tasks.

    With repeatable convolutions and small steps: else two runs that nobody stops end far apart as well.
    """
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    data, options = DATA.to("cuda"), {"batch": 4, "buffer": 20, "epochs": 4, "lr": 0.001}

    def build():
        return toy.make_run(method, regularizer, data=data, tasks=2, width=8, **options)

    def weights(run):
        return torch.cat([tensor.flatten().float() for tensor in run.method.network.state_dict().values()])

    whole, run = build(), build()
    first = weights(whole)
    train([whole])
    stops = [(0, 2), (0, 11), (1, 0), (1, 2), (1, 9)]
    for position in [stop for stop in stops if stop[0] < len(whole.schedule)]:
        with pytest.raises(Stopped):
            train([run], control=StopAt(tmp_path, position))
        run, found = build(), checkpoint.find(tmp_path, pytest.fail)
        run.restore(found.state, found.accuracy)
    train([run])
    moved, apart = (weights(whole) - first).norm(), (weights(whole) - weights(run)).norm()
    print(f"{method}+{regularizer}: moved {moved:.2e}, apart {apart:.2e}")
    assert apart < 0.02 * moved


def test_time_and_steps_go_on_too(tmp_path):
    with pytest.raises(Stopped):
        train([run := make_run()], control=StopAt(tmp_path, (1, 3)))
    later = go_on(tmp_path)
    assert later.seconds == run.seconds > 0
    assert later.steps_done == 5 + 3
    assert later.running_accuracy == run.running_accuracy is not None


def test_a_checkpoint_stays_as_it_was_taken_while_its_run_and_one_from_it_go_on():
    run, later = make_run(), make_run()
    run.begin_task(0)
    run.step()
    run.taken = 1
    taken = checkpoint.take(run, {})
    before = copy.deepcopy(taken)
    later.restore(taken.state, copy.deepcopy(taken.accuracy))
    for each in (run, later):
        train([each])
    assert not differences(before.state.tensors, taken.state.tensors)
    assert (taken.state.numbers, taken.accuracy) == (before.state.numbers, before.accuracy)
    assert run.accuracy == later.accuracy != before.accuracy


def test_progress_goes_on_from_there(tmp_path):
    seen = []

    def look(event):
        if isinstance(event, Progress):
            seen.append((event.task, event.step, event.done))

    with pytest.raises(Stopped):
        train([make_run()], control=StopAt(tmp_path, (1, 3)))
    train([go_on(tmp_path)], look)
    assert seen[-1] == (1, 5, 1.0)
    assert all(task == 1 and step > 3 for task, step, _ in seen)


def test_a_loss_that_was_not_finite_is_still_known(tmp_path):
    run = make_run()
    learn = run.method.observe
    run.method.observe = lambda batch: {
        "loss": total(learn(batch)) * (float("nan") if int(run._position) == 2 else 1.0)
    }
    with pytest.raises(Stopped):
        train([run], control=StopAt(tmp_path, (0, 4)))
    later = go_on(tmp_path)
    train([later])
    assert later.failure == "the loss was not finite at task 1, step 3; try a lower lr or weight"


def test_runs_that_stand_elsewhere_are_not_trained_together(tmp_path):
    with pytest.raises(Stopped):
        train([make_run()], control=StopAt(tmp_path, (0, 4)))
    with pytest.raises(ValueError, match="where they stand"):
        train([go_on(tmp_path), make_run(seed=1)])


def test_side_by_side_each_is_kept_at_the_same_step(tmp_path):
    positions = {}

    class Look(Control):
        checkpoint_every = 0.0

        def keep(self, run):
            positions.setdefault(run.label, []).append((run.task, run.taken))

    train([make_run(seed=0), make_run(seed=1)], control=Look())
    within = [(task, step) for task in range(2) for step in range(1, 6)]
    assert positions["seed 0"] == positions["seed 1"] == [*within[:5], (1, 0), *within[5:]]


@pytest.mark.parametrize(("every", "times"), [(3.0, 3), (100.0, 0), (float("inf"), 0)])
def test_the_time_between_checkpoints(monkeypatch, every, times):
    """A clock that moves by a second with every look, of which there is one in a step and one in a checkpoint."""
    clock = iter(range(1000))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))
    kept = []

    class Look(Control):
        checkpoint_every = every

        def keep(self, run):
            kept.append((run.task, run.taken))

    run = make_run(tasks=1, epochs=1)
    assert run.schedule == (10,)
    train([run], control=Look())
    assert len(kept) == times


# -- on disk -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def two(tmp_path):
    """A folder with a checkpoint, taken at step 4, and the one before it, at step 2."""
    run = make_run()
    run.begin_task(0)
    for taken in (2, 4):
        run.step()
        run.step()
        run.taken = taken
        checkpoint.write(tmp_path, checkpoint.take(run, {"whose": taken}))
    return tmp_path


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def found_in(folder):
    said = []
    found = checkpoint.find(folder, said.append)
    return (found and found.position[1]), said


def test_the_one_before_is_kept(two):
    assert names(two) == [checkpoint.PREVIOUS, checkpoint.NAME]
    assert found_in(two) == (4, [])
    assert checkpoint.find(two, pytest.fail).about == {"whose": 4}
    os.replace(two / checkpoint.PREVIOUS, two / checkpoint.NAME)
    assert found_in(two) == (2, [])
    checkpoint.delete(two)
    assert names(two) == []
    assert found_in(two) == (None, [])


def test_it_is_a_plain_safetensors_file(two):
    content = (two / checkpoint.NAME).read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    assert json.loads(header["__metadata__"]["header"])["format"] == checkpoint.FORMAT
    assert header["network.classifier.weight"]["shape"] == [4, 16]


def cut(content):
    return content[: len(content) // 2]


def cut_in_the_header(content):
    return content[:100]


def flip_a_bit(content):
    return content[:-1000] + bytes([content[-1000] ^ 1]) + content[-999:]


def change_a_number(content):
    return content.replace(b'\\"run.taken\\": ', b'\\"run.taken\\":1')


def empty(content):
    return b""


def zeros(content):
    return bytes(len(content))


DAMAGE = [cut, cut_in_the_header, flip_a_bit, change_a_number, empty, zeros]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_one_is_replaced_by_the_one_before_and_said_so(two, damage):
    file = two / checkpoint.NAME
    whole = file.read_bytes()
    damaged = damage(whole)
    assert damaged != whole
    file.write_bytes(damaged)
    position, (line,) = found_in(two)
    assert position == 2
    assert line.startswith(f"{file} is damaged (")
    assert line.endswith(") and set aside as checkpoint.damaged-1; resuming from the checkpoint before it")
    assert "\n" not in line
    assert names(two) == ["checkpoint.damaged-1", checkpoint.PREVIOUS]  # or the next one would push out the whole one
    assert (two / "checkpoint.damaged-1").read_bytes() == damaged


@pytest.mark.parametrize("damage", DAMAGE)
def test_where_none_is_whole_the_run_begins_anew_and_says_so(two, damage):
    for name in names(two):
        (two / name).write_bytes(damage((two / name).read_bytes()))
    position, (line,) = found_in(two)
    assert position is None
    assert f") and set aside as checkpoint.damaged-1, {two / checkpoint.PREVIOUS} is damaged (" in line
    assert line.endswith(") and set aside as checkpoint.damaged-2, and there is no other; starting over")
    assert names(two) == ["checkpoint.damaged-1", "checkpoint.damaged-2"]
    checkpoint.delete(two)
    assert names(two) == []


@pytest.mark.parametrize("accuracy", [3, [1], None])
def test_one_that_was_sealed_with_a_wrong_header_is_damaged(two, accuracy):
    found = checkpoint.find(two, pytest.fail)
    checkpoint.write(two, checkpoint.Checkpoint(found.about, found.state, accuracy))
    position, (line,) = found_in(two)
    assert position == 4
    assert "damaged (its header is not as it should be)" in line


def test_one_of_a_newer_version_is_left_alone(two, monkeypatch):
    monkeypatch.setattr(checkpoint, "FORMAT", checkpoint.FORMAT - 1)
    with pytest.raises(UsageError, match=r"was written by a newer cler: update cler, or delete the run.s folder"):
        checkpoint.find(two, pytest.fail)
    assert len(names(two)) == 2


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_one_that_cannot_be_written_leaves_those_that_are_there(two, monkeypatch, failing):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, failing, full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.write(two, checkpoint.take(make_run(), {}))
    monkeypatch.undo()
    assert names(two) == [checkpoint.PREVIOUS, checkpoint.NAME]
    assert found_in(two) == (4, [])


def test_killed_between_the_two_renames(two, monkeypatch):
    """Only the older one has its name then."""
    renamed = []

    def killed(source, target):
        if renamed:
            raise Stopped
        renamed.append(os.rename(source, target))

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(Stopped):
        checkpoint.write(two, checkpoint.take(make_run(), {}))
    assert names(two) == [checkpoint.PREVIOUS]
    assert found_in(two) == (4, [])


def test_a_folder_whose_name_is_not_utf_8_is_as_good_as_any(two):
    other = two.with_name(os.fsdecode(b"caf\xe9"))
    two.rename(other)
    assert found_in(other) == (4, [])


@pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE, errno.EIO, errno.ESTALE])
def test_one_that_cannot_be_read_is_neither_overlooked_nor_taken_for_damaged(two, monkeypatch, number):
    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(UsageError, match=os.strerror(number)):
        checkpoint.find(two, pytest.fail)
    monkeypatch.undo()
    assert found_in(two) == (4, [])


def test_without_a_free_file_descriptor_nothing_is_taken_for_damaged(two):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
        with pytest.raises(UsageError, match=os.strerror(errno.EMFILE)):
            checkpoint.find(two, pytest.fail)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert found_in(two) == (4, [])


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_one_that_is_no_plain_file_is_refused_and_left_alone(two, kind):
    other, file = two / "other", two / checkpoint.NAME
    file.rename(other)
    if kind == "link":
        file.symlink_to(other)
    elif kind == "pipe":
        os.mkfifo(file)
    else:
        file.mkdir()
    before = names(two)
    with pytest.raises(UsageError, match=f"{checkpoint.NAME}"):
        checkpoint.find(two, pytest.fail)
    assert names(two) == before


def test_when_asked_to_stop_training_ends_after_the_step_at_hand_with_a_checkpoint():
    class AskedToStop(Control):
        taken = ()

        def hear(self, event):
            if isinstance(event, Progress) and event.task == 1:
                self.stop = KeyboardInterrupt()

        def keep(self, run):
            self.taken += ((run.task, run.taken),)

    control, run = AskedToStop(), make_run()
    with pytest.raises(KeyboardInterrupt):
        train([run], control.hear, control)
    assert control.taken[0] == (1, 0)
    task, step = control.taken[-1]
    assert task == 1
    assert step == run.taken > 0
    assert len(control.taken) == 2
