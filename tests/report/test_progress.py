import io

import pytest

from cler.engine import RunName
from cler.engine.events import Elsewhere, Failed, Finished, Progress
from cler.report import progress
from cler.report.console import Terminal
from cler.report.progress import ProgressBars


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


def test_runs_that_another_process_does_are_not_waited_for(bars):
    report(bars, "a", done=0.5)
    bars(Elsewhere(RunName("b"), complete=False))
    overall = bars._bars.tasks[0]
    assert (overall.description, overall.total) == ("0 of 3 runs", 3.0)


def test_without_a_terminal_a_line_says_from_time_to_time_where_the_runs_stand(monkeypatch):
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    now = 0.0
    bars = ProgressBars(Terminal(file=io.StringIO(), force_terminal=False, width=100), runs=4)
    for now in (59.0, 61.0, 119.0, 122.0):
        report(bars, "a", "b", done=now / 1000)
    line = "[0/4] a and 1 more: task 1/2 step 5/10 3.0 steps/s\n"
    assert bars.console.file.getvalue() == line * 2
