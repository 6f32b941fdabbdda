import importlib
import itertools
import math
import pickle
import time
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from torch import nn

import hearing
from cler.config.making import make_settings
from cler.engine import Control, Run, RunName, bundles, steps, train
from cler.engine import evaluate as evaluation
from cler.engine.bundles import train_in_bundles
from cler.engine.evaluate import evaluate
from cler.engine.events import Evaluated, Failed, Finished, Progress, Started
from cler.methods import METHODS
from cler.methods.loss import total
from cler.nets import passes
from cler.promises.toy import make_short_run
from cler.runs.build import build_run
from toys import noise

loop = importlib.import_module("cler.engine.train")  # the name in the package is the function


DATA = noise(6, 13)


def make_run(method="finetune", seed=0, regularizer="none", **changes):
    options = {"tasks": 3, "width": 2, "batch": 4, "replay_batch": 4, "buffer": 8, "data": DATA} | changes
    run = make_short_run(method, regularizer, seed, **options)
    run.name = RunName(f"{method} {seed}")
    return run


class Notes(hearing.Notes):
    @property
    def done(self):
        return [(event.run.label, event.task, len(event.accuracy["class_il"])) for event in self.of(Evaluated)]

    @property
    def failures(self):
        return [(event.run.label, event.why) for event in self.of(Failed)]


@pytest.fixture
def told_at_every_step(monkeypatch):
    monkeypatch.setattr(loop, "REPORT_SECONDS", 0.0)


def poison(run, task, step):
    """Make the loss of one step, counted from 1, not a number."""
    learn, taken = run.method.observe, dict.fromkeys(range(len(run.schedule)), 0)

    def observe(batch):
        taken[run.method.task] += 1
        loss = total(learn(batch))
        return {"loss": loss * math.nan if taken[task] == step and run.method.task == task else loss}

    run.method.observe = observe
    return run


# -- what a run gives --------------------------------------------------------------------------------------------------


def test_a_row_after_each_task_with_all_tasks_so_far():
    run = make_run()
    assert run.running_accuracy is None
    train([run])
    for rows in run.accuracy.values():
        assert [len(row) for row in rows] == [1, 2, 3]
        assert all(0 <= accuracy <= 100 for row in rows for accuracy in row)
    assert run.complete
    assert run.failure is None
    assert run.steps_done == sum(run.schedule) == 3 * (26 // 4)
    assert run.seconds > 0
    assert run.running_accuracy == pytest.approx(sum(run.accuracy["class_il"][-1]) / 3)


def test_runs_side_by_side_share_all_of_the_time_that_they_take(monkeypatch):
    """By a clock that moves in steps and evaluations alone."""
    clock, runs = [0.0], [make_run(), make_run()]

    def slowly(function, seconds):
        return lambda *arguments: clock.append(clock.pop() + seconds) or function(*arguments)

    for run in runs:
        run.step, run.evaluate = slowly(run.step, 1.0), slowly(run.evaluate, 100.0)
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    train(runs)
    assert [run.seconds for run in runs] == [2 * (18 + 3 * 100)] * 2


def test_joint_has_one_row_with_every_task():
    run = make_run("joint")
    train([run])
    assert run.complete
    assert {name: [len(row) for row in rows] for name, rows in run.accuracy.items()} == {
        "class_il": [3],
        "task_il": [3],
    }
    assert run.steps_done == 78 // 4


@pytest.mark.parametrize("epochs", [1, 2, 3])
def test_epochs_multiply_the_steps(epochs):
    run = make_run("er", epochs=epochs)
    train([run])
    assert run.schedule == (epochs * 6,) * 3
    assert run.steps_done == epochs * 18
    assert int(run.method.buffer.offered) == epochs * 18 * 4  # every epoch is offered to the memory again


@pytest.mark.parametrize("chunk", [3, 500])
def test_evaluation_equals_counting_image_by_image(monkeypatch, chunk):
    monkeypatch.setattr(evaluation, "images_at_once", lambda *_, **__: chunk)
    run = make_run()
    train([run])
    taped = []
    hook = run.method.network.register_forward_hook(lambda module, images, output: taped.append(output.requires_grad))
    class_il, task_il = evaluate(run.method, run.stream, run.views, range(3)).values()
    hook.remove()
    assert taped == [False] * 3 * math.ceil(10 / chunk)
    run.method.network.eval()
    predicted = [[0] * 3 for _ in range(3)]
    for task in range(3):
        right_of_all = right_of_task = total = 0
        for pixels, label in zip(DATA.test_images, DATA.test_labels.tolist(), strict=True):
            if label // 2 == task:
                with torch.no_grad():
                    scores = run.method.network(run.views.plain(pixels[None]))[0].tolist()
                best = max(range(6), key=scores.__getitem__)
                predicted[task][best // 2] += 1
                right_of_all += best == label
                right_of_task += max((2 * task, 2 * task + 1), key=scores.__getitem__) == label
                total += 1
        assert class_il[task] == pytest.approx(100 * right_of_all / total)
        assert task_il[task] == pytest.approx(100 * right_of_task / total)
    run.method.network.train()
    assert run.accuracy["class_il"][-1] == class_il
    assert run.accuracy["task_il"][-1] == task_il
    assert run.confusion == predicted


def test_validation_is_on_the_images_that_were_held_out():
    run = make_run(validate=0.3, lr=0.1)
    train([run])
    rows = []
    with torch.no_grad(), run.method.answering():
        for held_out in map(run.stream.held_out, range(3)):
            assert len(held_out.labels) == 8
            answers = run.method.logits(run.views.plain(held_out.pixels)).argmax(1)
            rows.append(100 * float((answers == held_out.labels).double().mean()))
    assert run.accuracy["validation_class_il"][-1] == pytest.approx(rows)
    assert len(run.accuracy["validation_task_il"]) == 3


def test_evaluation_on_a_cpu_takes_few_images_at_a_time(monkeypatch):
    monkeypatch.setattr(passes, "MOST", 8)
    run, sizes = make_run(), []
    logits = run.method.logits
    monkeypatch.setattr(run.method, "logits", lambda images: sizes.append(len(images)) or logits(images))
    evaluate(run.method, run.stream, run.views, range(2))
    assert sum(sizes) == len(run.stream.test(0).labels) + len(run.stream.test(1).labels)
    assert max(sizes) == 8


def test_precision_is_set_for_the_run_only():
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    seen = []

    def look(event):
        if isinstance(event, Evaluated):
            seen.append((torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32))

    full, tf32, half = (make_run(precision=precision) for precision in ("fp32", "tf32", "bf16"))
    for run in (full, tf32, half):
        train([run], look)
    assert seen[::3] == [("highest", False), ("high", True), ("high", True)]
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == before
    weights = [run.method.network.classifier.weight for run in (full, half)]
    assert all(weight.dtype == torch.float32 for weight in weights)
    assert not torch.equal(*weights)


def test_in_bfloat16_a_second_step_on_a_batch_sees_what_the_first_has_changed():
    """Autocast would keep what it made of a weight at first."""
    run, layer, images = make_run(precision="bf16"), nn.Linear(2, 2), torch.ones(3, 2)
    seen = []

    def observe(batch):
        for _ in range(2):
            seen.append(layer(images))
            with torch.no_grad():
                layer.weight.add_(1)
        return {"loss": seen[-1].float().mean()}

    run.method.observe = observe
    run.begin_task(0)
    run.step()
    first, second = seen
    assert first.dtype == torch.bfloat16
    assert torch.allclose(second - first, torch.tensor(2.0, dtype=torch.bfloat16), atol=0.05)


# -- groups of runs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other", [{"epochs": 2}, {"tasks": 2}, {"batch": 5}, {"method": "joint"}, {"precision": "bf16"}]
)
def test_runs_that_do_not_march_in_step_are_refused(other):
    runs = [make_run(), make_run(**other)]
    with pytest.raises(ValueError, match="share schedule, precision and device"):
        train(runs)
    assert all(run.steps_done == 0 for run in runs)


def test_progress_goes_from_nothing_to_all(told_at_every_step):
    notes = Notes()
    train([make_run(seed=0), make_run(seed=1)], notes)
    assert [(p.task, p.step) for p in notes.progressed] == [(task, step) for task in range(3) for step in range(1, 7)]
    assert [p.done for p in notes.progressed] == pytest.approx([n / 18 for n in range(1, 19)])
    for p in notes.progressed:
        assert (p.tasks, p.steps, p.labels) == (3, 6, ("finetune 0", "finetune 1"))
        assert p.steps_per_second > 0
        assert (p.accuracy is None) == (p.task == 0)
    assert notes.done == [(f"finetune {seed}", task, task + 1) for task in range(3) for seed in range(2)]
    assert not notes.failures


def test_runs_that_stop_after_a_task_have_done_all_by_then():
    heard, control = [], Control()
    control.until_task = 1
    train([make_run()], heard.append, control)
    last = [event for event in heard if isinstance(event, Progress)][-1]
    assert (last.task, last.done) == (0, 1.0)
    assert last.tasks > 1


def test_progress_is_told_at_the_end_of_every_task_however_fast():
    notes = Notes()
    train([make_run()], notes)
    assert [p.done for p in notes.progressed if p.step == p.steps] == pytest.approx([1 / 3, 2 / 3, 1])
    done = [p.done for p in notes.progressed]
    assert done == sorted(done)


def test_a_loss_that_is_not_finite_stops_that_run_alone(told_at_every_step):
    notes = Notes()
    first, bad, last = make_run(seed=0), poison(make_run(seed=1), task=1, step=3), make_run("er", seed=2)
    train([first, bad, last], notes)
    assert bad.failure == "the loss was not finite at task 2, step 3; try a lower lr or weight"
    assert notes.failures == [("finetune 1", bad.failure)]
    assert [len(row) for row in bad.accuracy["class_il"]] == [1]
    assert not bad.complete
    for run, alone in ((first, make_run(seed=0)), (last, make_run("er", seed=2))):
        train([alone])
        assert run.complete
        assert run.failure is None
        assert run.accuracy == alone.accuracy
        assert torch.equal(run.method.network.classifier.weight, alone.method.network.classifier.weight)
    assert notes.progressed[-1].labels == ("finetune 0", "er 2")
    assert notes.progressed[-1].done == 1


def test_a_failed_run_takes_no_more_steps_and_the_others_go_on_with_the_next_one(told_at_every_step):
    bad, good = poison(make_run(seed=0), task=0, step=2), make_run("er", seed=1)
    told = []

    class Look(Notes):
        def __call__(self, event):
            super().__call__(event)
            if isinstance(event, Failed):
                told.append((bad.steps_done, good.steps_done, bad.seconds > 0))

    notes = Look()
    train([bad, good], notes)
    assert told == [(2, 2, True)]
    assert int(bad._position) == 2
    assert [p.labels for p in notes.progressed[:3]] == [("finetune 0", "er 1")] * 2 + [("er 1",)]
    assert (bad.steps_done, good.steps_done) == (2, 18)
    alone = make_run("er", seed=1)
    train([alone])
    assert good.accuracy == alone.accuracy


def test_a_failure_before_a_run_was_stopped_is_noticed_when_it_is_resumed():
    """Where not a step of the task was left."""
    old, new, notes = make_run(), make_run(), Notes()
    old.begin_task(0)
    for _ in range(6):
        old.step()
    old.taken = 6
    old._bad_step.fill_(4)
    new.restore(old.state(), old.accuracy)
    train([new], notes)
    assert notes.failures == [("finetune 0", "the loss was not finite at task 1, step 5; try a lower lr or weight")]


def test_the_time_that_checkpoints_take_is_not_the_runs(monkeypatch):
    looks, waited = itertools.count(), []

    class Slow(Control):
        checkpoint_every = 0

        def keep(self, run):
            waited.append(100_000)

    run = make_run()
    monkeypatch.setattr(time, "perf_counter", lambda: next(looks) + sum(waited))
    train([run], control=Slow())
    assert len(waited) == 18 + 2
    assert 0 < run.seconds < 1000  # a second for each look at the clock


def test_a_failure_in_the_first_task_leaves_no_row():
    notes = Notes()
    bad = make_run(lr=1e30)
    train([bad], notes)
    assert "the loss was not finite at task 1, step " in bad.failure
    assert bad.accuracy == {"class_il": [], "task_il": []}
    assert notes.failures == [("finetune 0", bad.failure)]
    assert not notes.done


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_an_infinite_loss_is_a_failure_too(value):
    run = make_run()
    learn = run.method.observe
    run.method.observe = lambda batch: {"loss": total(learn(batch)).detach() * 0 + value}
    train([run])
    assert "task 1, step 1;" in run.failure


def test_outputs_that_are_not_numbers_are_a_failure_and_no_accuracy():
    good, bad = make_run(seed=0), make_run(seed=1)
    end_task = bad.method.end_task

    def spoil(task, batches):
        end_task(task, batches)
        if task == 1:
            bad.method.network.classifier.weight.data.fill_(float("nan"))

    bad.method.end_task, notes = spoil, Notes()
    train([bad, good], notes)
    assert notes.failures == [(bad.label, "the outputs were not numbers after task 2; try a lower lr or weight")]
    assert len(bad.accuracy["class_il"]) == 1
    assert good.complete


def test_when_every_run_has_failed_nothing_more_is_done(told_at_every_step):
    runs = [poison(make_run(seed=seed), task=1, step=seed + 1) for seed in range(2)]
    train(runs)
    assert [run.steps_done for run in runs] == [6 + 1, 6 + 2]
    assert ["step 1;" in runs[0].failure, "step 2;" in runs[1].failure] == [True, True]


def test_the_first_bad_step_is_named_even_when_looked_at_late():
    run = poison(make_run(), task=2, step=2)
    train([run])
    assert "task 3, step 2;" in run.failure


# -- events -----------------------------------------------------------------------------------------------------------


def test_every_event_can_be_sent_to_another_process(told_at_every_step):
    notes = Notes()
    train([make_run("er", regularizer="rotation"), poison(make_run(seed=1), task=1, step=1)], notes)
    kinds = {Started, Progress, Evaluated, Failed, Finished}
    assert {type(event) for event in notes.heard} == kinds
    without_nan = [event for event in notes.heard if "nan" not in str(event)]
    assert {type(event) for event in without_nan} == kinds
    assert pickle.loads(pickle.dumps(without_nan)) == without_nan


def test_a_run_is_said_to_start_where_it_stands_and_to_finish_with_its_accuracy():
    notes = Notes()
    train([run := make_run()], notes)
    assert notes.heard[0] == Started(run.name, task=0, step=0, schedule=(6, 6, 6))
    assert notes.heard[-1] == Finished(run.name, run.running_accuracy)
    assert notes.of(Evaluated)[-1].accuracy == {name: tuple(rows[-1]) for name, rows in run.accuracy.items()}


def with_terms(run, terms):
    """A run whose steps tell these loss terms, of the task and the number of the step in it, from 1."""
    learn, taken = run.method.observe, [0] * len(run.schedule)

    def observe(batch):
        learn(batch)
        taken[run.method.task] += 1
        told = terms(run.method.task, taken[run.method.task])
        return {name: torch.tensor(float(value)) for name, value in told.items()}

    run.method.observe = observe
    return run


def test_progress_tells_the_mean_of_each_loss_term_since_the_last_report_and_over_the_runs(monkeypatch):
    monkeypatch.setattr(loop, "REPORT_SECONDS", math.inf)  # a report at the end of each task
    first = with_terms(make_run(seed=0), lambda task, step: {"stream": 10 * task + step})
    later = with_terms(
        make_run(seed=1), lambda task, step: {"stream": 1} | ({"replay": 100 * task + step} if task else {})
    )
    notes = Notes()
    train([first, later], notes)
    assert [p.losses for p in notes.progressed] == [
        {"stream": pytest.approx((3.5 + 1) / 2)},
        {"stream": pytest.approx((13.5 + 1) / 2), "replay": pytest.approx(103.5)},
        {"stream": pytest.approx((23.5 + 1) / 2), "replay": pytest.approx(203.5)},
    ]
    assert notes.progressed[1].sums == ({"stream": (81.0, 6)}, {"stream": (6.0, 6), "replay": (621.0, 6)})


def test_every_step_is_in_one_report_and_no_more(told_at_every_step):
    notes = Notes()
    train([with_terms(make_run(), lambda task, step: {"stream": 10 * task + step})], notes)
    assert [p.losses["stream"] for p in notes.progressed] == [
        10 * task + step for task in range(3) for step in range(1, 7)
    ]
    assert all(p.sums[0]["stream"][1] == 1 for p in notes.progressed)


@pytest.mark.parametrize(("bad", "good"), [(math.nan, 1.0), (math.inf, -math.inf), (math.inf, 1.0)])
def test_one_term_that_is_not_finite_is_a_failure(bad, good):
    run = with_terms(make_run(), lambda task, step: {"stream": good, "replay": bad if (task, step) == (1, 2) else 1.0})
    if math.isinf(good):
        run = with_terms(make_run(), lambda task, step: {"stream": good, "replay": bad} if task else {"stream": 1.0})
    train([run])
    assert f"task 2, step {1 if math.isinf(good) else 2};" in run.failure


def test_sums_of_losses_are_no_part_of_the_state():
    run = make_run()
    before = run.state()
    train([run])
    assert run.state().tensors.keys() - before.tensors.keys() <= {
        name for name in run.state().tensors if ".state." in name
    }
    assert run.state().numbers.keys() == before.numbers.keys()


# -- more runs than fit at once ----------------------------------------------------------------------------------------


class FakeTrain:
    """In place of `train`: remembers the bundles, and runs out of memory on those that are too large."""

    def __init__(self, room=100):
        self.room, self.tried, self.seen, self.error = room, [], list, torch.OutOfMemoryError("CUDA out of memory")

    def __call__(self, runs, emit, control):
        self.tried.append(list(runs))
        self.seen()
        if len(runs) > self.room:
            raise self.error

    @property
    def finished(self):
        return [run for group in self.tried if len(group) <= self.room for run in group]


@pytest.fixture
def fake(monkeypatch):
    fake = FakeTrain()
    monkeypatch.setattr(bundles, "train", fake)
    return fake


class FakeRun(str):
    phases: ClassVar[list] = []


def built(job):
    return FakeRun(f"run {job}")


def test_jobs_of_a_kind_are_bundled_in_order(fake):
    train_in_bundles(["a1", "b1", "a2", "a3", "b2"], built, kind=lambda job: job[0], at_once=2)
    assert fake.tried == [["run a1", "run a2"], ["run a3"], ["run b1", "run b2"]]


def test_no_jobs_are_no_trouble(fake):
    train_in_bundles([], built, kind=str, at_once=2)
    assert fake.tried == []


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, torch.AcceleratorError])
def test_a_bundle_that_does_not_fit_is_halved_and_finished_runs_are_not_repeated(fake, error):
    fake.room, fake.error = 2, error("CUDA error: out of memory\nFor debugging consider ...")
    notes = Notes()
    train_in_bundles(list(range(7)), built, kind=lambda job: job == 6, at_once=6, emit=notes)
    assert [len(group) for group in fake.tried] == [6, 3, 2, 1, 2, 1, 1]
    assert fake.finished == [f"run {job}" for job in range(7)]
    assert notes.messages[0] == "out of memory with 6 runs at once; continuing with 3"
    assert len(notes.messages) == 2


def test_a_run_that_does_not_fit_alone_is_an_error(fake):
    fake.room = 0
    with pytest.raises(torch.OutOfMemoryError):
        train_in_bundles([1, 2], built, kind=lambda job: 0, at_once=2)
    assert [len(group) for group in fake.tried] == [2, 1]


def test_what_has_ended_before_memory_ran_out_is_not_repeated_and_the_rest_is_bundled_anew(monkeypatch):
    stands, tried = dict.fromkeys("abcdef", "begin"), []

    def train(runs, emit, control):
        tried.append("".join(runs))
        if len(tried) == 1:
            stands.update(a=None, c="middle", e="middle")  # one has ended, two have come further
            raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(bundles, "train", train)
    train_in_bundles(list("abcdef"), FakeRun, kind=len, stands=stands.get, at_once=5)
    assert tried == ["abcde", "bd", "ce", "f"]


def test_a_job_is_claimed_when_its_bundle_begins_and_left_out_if_it_is_not_to_be_had(fake):
    held, most = set(), []

    @contextmanager
    def claim(job):
        held.add(job)
        yield job not in "cdh"
        held.remove(job)

    fake.seen = lambda: most.append("".join(sorted(held)))
    train_in_bundles(list("abcdefgh"), built, kind=lambda job: 0, claim=claim, at_once=2)
    assert fake.tried == [["run a", "run b"], ["run e", "run f"], ["run g"]]
    assert most == ["ab", "cdef", "gh"]
    assert not held


def test_how_far_a_job_has_come_is_asked_when_it_has_been_claimed(fake):
    stands = {}

    @contextmanager
    def claim(job):
        stands[job] = None if job == "b" else job in "ad"  # another process has done some of it
        yield True

    train_in_bundles(list("abcd"), built, kind=lambda job: 0, stands=lambda job: stands[job], claim=claim, at_once=4)
    assert fake.tried == [["run a", "run d"], ["run c"]]


def test_asked_to_stop_between_two_bundles_none_begins(fake):
    control = Control()
    fake.seen = lambda: setattr(control, "stop", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        train_in_bundles([1, 2], built, kind=lambda job: 0, at_once=1, control=control)
    assert fake.tried == [["run 1"]]


def test_another_error_is_not_taken_for_lack_of_memory(monkeypatch):
    def broken(runs, emit, control):
        raise RuntimeError("a bug")

    monkeypatch.setattr(bundles, "train", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        train_in_bundles([1, 2], built, kind=lambda job: 0, at_once=2)


def test_in_bundles_equals_alone():
    jobs = [("finetune", 0), ("joint", 1), ("finetune", 2), ("finetune", 3)]
    runs = {}

    def build(job):
        runs[job] = make_run(*job)
        return runs[job]

    notes = Notes()
    train_in_bundles(jobs, build, kind=lambda job: job[0], at_once=2, emit=notes)
    for job in jobs:
        alone = make_run(*job)
        train([alone])
        assert runs[job].accuracy == alone.accuracy
        assert torch.equal(runs[job].method.network.classifier.weight, alone.method.network.classifier.weight)
    ended = [event.run.label for event in notes.of(Finished)]
    assert ended == ["finetune 0", "finetune 2", "finetune 3", "joint 1"]


def test_runs_whose_seeds_order_the_classes_are_bundled_where_their_schedules_are_equal():
    """Of six classes one has twice as many images, so that the task in which it comes is longer."""
    images = torch.cat([DATA.train_images, DATA.train_images[DATA.train_labels == 2]])
    labels = torch.cat([DATA.train_labels, torch.full((13,), 2)])
    uneven = replace(DATA, train_images=images, train_labels=labels)
    runs = {}

    def build(seed):
        runs[seed] = make_run("er", seed, class_order="seed", data=uneven)
        return runs[seed]

    notes = Notes()
    train_in_bundles(range(6), build, kind=lambda job: 0, at_once=6, emit=notes)
    assert len({tuple(run.stream.class_order.tolist()) for run in runs.values()}) == 6
    together = {p.labels for p in notes.progressed}
    assert {len({runs[int(label[-1])].schedule for label in labels}) for labels in together} == {1}
    assert len(together) == len({run.schedule for run in runs.values()}) == 3
    for seed, run in runs.items():
        alone = make_run("er", seed, class_order="seed", data=uneven)
        train([alone])
        assert run.accuracy == alone.accuracy
        assert run.stream.class_order.tolist() == make_run("er", class_order=seed).stream.class_order.tolist()


def test_without_a_wish_a_cpu_takes_one_run_at_a_time():
    runs = []
    notes = Notes()

    def build(job):
        runs.append(make_run(seed=job))
        return runs[-1]

    train_in_bundles([0, 1], build, kind=lambda job: 0, emit=notes)
    assert {p.labels for p in notes.progressed} == {("finetune 0",), ("finetune 1",)}
    assert sum(run.complete for run in runs) == 2


def test_what_a_run_needs_is_not_looked_at_where_there_is_no_other(fake, monkeypatch):
    monkeypatch.setattr(bundles, "how_many_fit", pytest.fail)
    train_in_bundles([1], built, kind=lambda job: 0)
    assert fake.tried == [["run 1"]]


@pytest.mark.parametrize(("wanted", "found"), [(2, 2), (100, 6)])
def test_all_the_memory_of_a_run_that_replays_decides_how_many_fit(monkeypatch, wanted, found):
    memory = {"in use": 0, "peak": 0}

    def take(amount, passing=0):
        memory["in use"] += amount
        memory["peak"] = max(memory["peak"], memory["in use"] + passing)

    class FakeRun:
        device, schedule, task = torch.device("cuda"), (5, 5), 0
        method, stream = SimpleNamespace(setup=SimpleNamespace(replay_batch=15)), SimpleNamespace(batch=10)

        def __init__(self):
            take(30)

        def __del__(self):
            take(-30)

        def begin_task(self, task):
            self.task = task

        def step(self):
            take(0, passing=10 * (self.task + 1))

        def end_task(self, task):
            pass

        begin_phase = end_task

    loaded = []

    def build(job):
        if not loaded:
            take(400)
            loaded.append("images")
        return FakeRun()

    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: memory.update(peak=memory["in use"]))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: memory["in use"])
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: memory["peak"])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000 - memory["in use"], 1000))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    assert bundles.how_many_fit(build, 0, wanted) == found  # half of 600, for 30 + 20 each


def test_a_run_is_measured_in_its_second_task_with_a_whole_replay_batch():
    run = make_run("er", batch=4, replay_batch=7)
    bundles.begin_second_task([run])
    assert (run.method.task, run.method.settled) == (1, True)


@pytest.mark.usefixtures("shallow")
@pytest.mark.parametrize(("method", "task"), [("er-ace", 0), *((method, 2) for method in METHODS)])
def test_a_run_that_goes_on_can_be_measured_too(method, task):
    """In a later task, where it may not replay classes of a task that it has not reached."""
    old, new = make_run(method, regularizer="rotation"), make_run(method, regularizer="rotation")
    task = min(task, len(old.schedule) - 1)
    for each in range(task):
        old.begin_task(each)
        old.step()
        old.end_task(each)
        old.evaluate(each)
    old.begin_task(task)
    for _ in range(old.schedule[task]):
        old.step()
    old.taken = old.schedule[task]
    new.restore(old.state(), old.accuracy)
    bundles.begin_second_task([new])
    new.step()
    assert new.method.task == max(task, min(1, len(old.schedule) - 1))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_on_a_gpu_steps_that_cannot_be_recorded_are_taken_all_the_same(monkeypatch):
    """A step that looks at its loss, which no recording allows, goes on as if nobody had tried to record it."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    trained = []
    for can_record in (True, False):
        settings = make_settings(tasks=3, width=8, batch=4, method="finetune", lr=0.001)
        run, notes = build_run(settings, 0, DATA.to("cuda")), Notes()
        learn = run.method.observe

        def look(batch, learn=learn):
            terms = learn(batch)
            total(terms).item()
            return terms

        run.method.observe = look
        with monkeypatch.context() as patch:
            if not can_record:
                patch.setattr(steps.GraphStepper, "_record", lambda self: None)
            train([run], notes)
        assert run.complete
        assert any("could not be recorded" in text for text in notes.messages) == can_record
        trained.append(torch.cat([tensor.flatten().float() for tensor in run.method.network.state_dict().values()]))
        torch.rand(1, device="cuda")  # PyTorch's own generator is of use again too
    assert torch.equal(*trained)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_on_a_gpu_a_recording_survives_the_garbage_of_an_earlier_one(monkeypatch):
    """CUDA aborts the process where a graph is freed in the middle of a recording."""
    settings = make_settings(tasks=3, width=8, batch=4, method="finetune", lr=0.001)
    data, take_step, old = DATA.to("cuda"), Run.step, []

    def step(run):
        take_step(run)
        if torch.cuda.is_current_stream_capturing() and old:
            old.clear()
            assert [[number] for number in range(2000)]  # enough for the collector to begin, where it is on

    monkeypatch.setattr(Run, "step", step)
    for seed in range(2):
        runs = [build_run(settings, seed, data)]
        stepper = steps.GraphStepper(runs, pytest.fail)
        runs[0].begin_task(0)
        for _ in range(steps.WARM_UP + 2):
            stepper.step()
        assert stepper.graph is not None
        stepper.itself = stepper  # a cycle, which only the collector frees
        old.append(stepper)
