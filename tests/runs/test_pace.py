import pytest

from cler.engine.events import Progress, RunName, Started
from cler.runs.pace import Pace

ONE, TWO, THREE = (RunName(f"run {number}", seed=number) for number in range(3))


def progress(runs, task, step, seconds, begun=0):
    """What the engine tells `seconds` after the runs began to step in this task."""
    rate = len(runs) * (step - begun) / seconds
    return Progress(tuple(runs), task, 2, step, 100, 0.0, rate, None, {})


def test_steps_of_runs_side_by_side_count_each_and_the_seconds_once():
    now = iter([10.0, 25.0, 100.0, 105.0])
    pace = Pace(lambda: next(now))
    assert str(pace) == ""
    with pace.timed():
        for run in (ONE, TWO):
            pace(Started(run, 0, 0))
        pace(progress([ONE, TWO], 0, 40, 4.0))
        pace(progress([ONE, TWO], 0, 100, 5.0))  # faster, once recorded
        pace(progress([ONE, TWO], 1, 50, 2.0))
        pace(progress([TWO], 1, 100, 5.0))  # the other has diverged
    with pace.timed():  # resumed within a task
        pace(Started(THREE, 1, 60))
        pace(progress([THREE], 1, 100, 2.0, begun=60))
    assert pace.steps == 2 * 150 + 50 + 40
    assert pace.stepping == pytest.approx(5 + 5 + 2)
    assert pace.whole == 20
    said = "390 steps: 19.5 per second with loading, evaluation and checkpoints, 32.5 per device without"
    assert str(pace) == said
