import io
from pathlib import Path

import pytest

from cler.engine import RunName
from cler.engine.events import Decoding, Elsewhere, Evaluated, Failed, Finished, Progress
from cler.report.console import Terminal
from cler.report.progress import ProgressBars, decoding_bar, download_bar


@pytest.fixture
def bars():
    return ProgressBars(Terminal(file=io.StringIO(), force_terminal=True, width=100), runs=4)


def report(bars, *labels, done):
    where = {"task": 0, "tasks": 2, "step": 5, "steps": 10, "done": done, "steps_per_second": 3.0}
    bars(Progress(tuple(map(RunName, labels)), **where, accuracy=None, losses={}))


def rows(bars):
    """The share of all runs that is done, then what the other bars are called, and their shares."""
    overall, *others = bars._bars.tasks
    assert overall.total == 4
    return overall.description, overall.completed, {row.description: row.completed for row in others if row.visible}


def test_a_bar_for_the_runs_that_are_trained_together(bars):
    report(bars, "a", "b", done=0.25)
    report(bars, "c", done=0.5)
    assert rows(bars) == ("0 of 4 runs", 1.0, {"a and 1 more": 0.25, "c": 0.5})
    report(bars, "a", "b", done=1.0)
    bars(Finished(RunName("a"), 50.0))
    assert rows(bars) == ("1 of 4 runs", 2.5, {"a and 1 more": 1.0, "c": 0.5})
    bars(Finished(RunName("b"), 50.0))
    assert rows(bars) == ("2 of 4 runs", 2.5, {"c": 0.5})


def test_a_run_that_fails_counts_once_and_the_others_go_on_in_a_bar_of_their_own(bars):
    report(bars, "a", "b", "c", "d", done=0.5)
    bars(Failed(RunName("b"), "its loss is not finite"))
    report(bars, "a", "c", "d", done=0.6)
    assert rows(bars) == ("1 of 4 runs", pytest.approx(2.8), {"a and 2 more": 0.6})
    assert bars.failures == ["b: its loss is not finite"]


def test_runs_that_are_trained_fewer_at_a_time_are_not_counted_twice(bars):
    report(bars, "a", "b", "c", "d", done=0.1)
    report(bars, "a", "b", done=0.4)
    assert rows(bars) == ("0 of 4 runs", pytest.approx(1.0), {"a and 1 more": 0.4})


def test_a_later_run_of_the_same_name_has_a_bar_too(bars):
    """As with another method's own setting, which names do not tell."""
    report(bars, "a", done=1.0)
    bars(Finished(RunName("a"), 50.0))
    report(bars, "a", done=0.25)
    assert rows(bars) == ("1 of 4 runs", 1.25, {"a": 0.25})


def test_runs_of_the_same_name_at_the_same_time_have_a_bar_each(bars):
    """As two optimizers of a grid, in two processes."""
    sgd, adam = (RunName("a", folder=Path(name)) for name in ("sgd", "adam"))
    where = {"task": 0, "tasks": 2, "step": 5, "steps": 10, "steps_per_second": 3.0, "accuracy": None, "losses": {}}
    bars(Progress((sgd,), done=0.75, **where))
    bars(Progress((adam,), done=0.25, **where))
    assert [row.completed for row in bars._bars.tasks] == [1.0, 0.75, 0.25]
    bars(Finished(sgd, 50.0))
    assert rows(bars) == ("1 of 4 runs", 1.25, {"a": 0.25})


def test_runs_that_another_process_does_are_not_waited_for(bars):
    report(bars, "a", done=0.5)
    bars(Elsewhere(RunName("b"), complete=False))
    overall = bars._bars.tasks[0]
    assert (overall.description, overall.total) == ("0 of 3 runs", 3.0)


LOG = """\
[0/4] er-ace, 2 seeds: task 1/2, step 1/10, loss 3.000, 8.0 steps/s
[0/4] xder, seed 0: task 1/2, step 3/10, 8.0 steps/s
[0/4] er-ace, 2 seeds: task 1/2, step 8/10, loss 2.500, 8.0 steps/s, 52 s left
[0/4] er-ace, 2 seeds: task 1/2 learned, loss 2.500, accuracy 75.00%, 8.0 steps/s, 34 s left
[1/4] er-ace, seed 0: class-incremental accuracy 40.00%
[2/4] er-ace, seed 1: class-incremental accuracy 44.50%
"""


def test_a_bar_for_a_dataset_that_other_machines_decode(bars):
    bars(Decoding("folder:photos", 64, 200))
    bars(Decoding("folder:photos", 128, 200))
    assert rows(bars) == ("0 of 4 runs", 0, {"decoding folder:photos": 128})
    bars(Decoding("folder:photos", 200, 200))
    assert rows(bars) == ("0 of 4 runs", 0, {})


def test_without_a_terminal_lines_say_how_far_a_dataset_is_decoded():
    file, now = io.StringIO(), [0.0]
    bars = ProgressBars(Terminal(file=file, force_terminal=False, width=100), runs=4, clock=lambda: now[0])
    for now[0], done in ((0.0, 64), (29.0, 128), (31.0, 192), (32.0, 200)):
        bars(Decoding("folder:photos", done, 200))
    told = [f"decoding folder:photos: {done} of 200 images" for done in (64, 192)]
    assert file.getvalue().splitlines() == told


def test_without_a_terminal_lines_say_where_each_bundle_stands():
    """At its start, after each task but the last, and every half a minute; nothing in it is an order."""
    now = 0.0
    console = Terminal(file=io.StringIO(), force_terminal=False, width=40)
    seeds = tuple(RunName(f"er-ace, seed {seed}", seed=seed) for seed in range(2))
    other = (RunName("xder, seed 0"),)

    def move(runs, task, step, losses, accuracy=None):
        done = (10 * task + step) / 20
        bars(Progress(runs, task, 2, step, 10, done, 8.0, accuracy, losses))

    with ProgressBars(console, 4, clock=lambda: now) as bars:
        move(seeds, 0, 1, {"stream": 2.0, "replay": 1.0})
        now = 20.0
        move(seeds, 0, 6, {"stream": 1.0})
        move(other, 0, 3, {})
        now = 30.0
        move(seeds, 0, 8, {"stream": 2.5})
        move(seeds, 0, 10, {})
        for run, accuracy in zip(seeds, (70.0, 80.0), strict=True):
            bars(Evaluated(run, 0, {"class_il": (accuracy,), "task_il": (accuracy,)}))
        move(seeds, 1, 10, {"stream": 1.0}, 75.0)
        for run, accuracy in zip(seeds, (40.0, 44.5), strict=True):
            bars(Evaluated(run, 1, {"class_il": (accuracy, accuracy), "task_il": (accuracy, accuracy)}))
            bars(Finished(run, accuracy))
    assert console.file.getvalue() == LOG


def test_runs_that_stop_after_a_task_count_as_ended():
    console = Terminal(file=io.StringIO(), force_terminal=False, width=100)
    bars = ProgressBars(console, 2)
    report(bars, "a", "b", done=1.0)
    for label in "ab":
        bars(Evaluated(RunName(label), 0, {"class_il": (70.0,)}))
    assert console.file.getvalue().splitlines()[-1].startswith("[2/2] a and 1 more: task 1/2 learned, accuracy 70.00%")
    assert [(task.description, task.completed) for task in bars._bars.tasks] == [("2 of 2 runs", 2.0)]


def test_a_run_that_fails_is_not_waited_for_when_a_task_has_been_learned():
    console = Terminal(file=io.StringIO(), force_terminal=False, width=100)
    bars = ProgressBars(console, 2)
    report(bars, "a", "b", done=0.5)
    bars(Evaluated(RunName("a"), 0, {"class_il": (70.0,)}))
    assert "learned" not in console.file.getvalue()
    bars(Failed(RunName("b"), "its loss is not finite"))
    bars(Evaluated(RunName("a"), 0, {"class_il": (60.0,)}))
    assert "task 1/2 learned, accuracy 60.00%" in console.file.getvalue()


@pytest.mark.parametrize(
    ("width", "told"),
    [
        (130, "er-ace+jigsaw m200 lr 0.05, seed 7 ━━━    task 1/2 step 5/10 loss 1.50 acc 45% 3.0 steps/s --:--"),
        (80, "er-ace+jigsaw m…, seed 7 ━━━    task 1/2 loss 1.50 acc 45% 3.0 steps/s --:--"),
        (60, "er-…, seed 7 ━━━    task 1/2 loss 1.50 acc 45%  --:--"),
    ],
)
def test_a_bar_fits_its_terminal(width, told):
    console = Terminal(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    bars = ProgressBars(console, 1)
    run = RunName("er-ace+jigsaw m200 lr 0.05, seed 7", seed=7)
    bars(Progress((run,), 0, 2, 5, 10, 0.5, 3.0, 45.0, {"stream": 1.0, "replay": 0.5}))
    lines = Terminal(file=io.StringIO(), width=width)
    lines.print(bars._bars.get_renderable())
    assert lines.file.getvalue().splitlines()[1].rstrip() == told


@pytest.mark.parametrize(("bar", "shown"), [(decoding_bar, "decoding folder:x"), (download_bar, "folder:x")])
def test_a_bar_of_a_dataset_shows_once_it_moves(bar, shown):
    def told(*moves, terminal=True):
        console = Terminal(file=io.StringIO(), force_terminal=terminal, width=100, color_system=None)
        with bar(console, "folder:x") as advance:
            for move in moves:
                advance(*move)
        return console.file.getvalue()

    assert shown not in told()
    assert shown in told((64, 640), (640, 640))
    assert told((64, 640), terminal=False) == ""
    assert ("bytes" in told((640, 640))) is (bar is download_bar)
