from dataclasses import replace

import pytest

from cler.config.machine import Machine
from cler.config.making import make_settings
from cler.engine.events import Progress, RunName, Started
from cler.files import read_json
from cler.runs.jobs import make_jobs
from cler.runs.pace import Pace
from cler.runs.trainers import train_bundles

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
    said = (
        "390 steps: 19.5 per second in all, with loading, evaluation and checkpoints; "
        "32.5 on each GPU or worker while it took steps"
    )
    assert str(pace) == said


def test_bundles_that_are_resumed_by_a_later_call_count_each_step_once(tmp_path):
    """As tuning trains: some runs to the end of a task, in two bundles, and from there a part of them to the end."""
    settings = make_settings(method="finetune", dataset="toy", tasks=4, width=2, batch=4)
    jobs, pace = make_jobs(settings, [0, 1, 2], tmp_path), Pace()
    machine = Machine(device="cpu", at_once=2)

    def train(jobs):
        with pace.timed():
            train_bundles([jobs], machine, pace)

    def told():
        results = [read_json(job.folder / "result.json") for job in jobs]
        seconds = sum(result["seconds"] / result["at_once"] for result in results)
        return sum(result["counts"]["steps"] for result in results), seconds

    train([replace(job, until_task=2) for job in jobs])
    steps, seconds = told()
    assert pace.steps == steps == 3 * 2 * 5
    assert 0 < pace.stepping <= seconds + 0.01  # which counts evaluation, too, and is rounded
    before = pace.stepping
    train([jobs[2], jobs[0]])
    assert pace.steps == told()[0] == steps + 2 * 2 * 5
    assert before < pace.stepping < pace.whole
