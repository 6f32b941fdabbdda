"""A run without a teacher is trained as part of one whose teacher only answers, and gets a result of its own."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cler.config.machine import Machine
from cler.config.making import make_settings
from cler.engine.events import Evaluated, Failed, Finished, Started
from cler.methods.er_ace import ErAce
from cler.runs.execute import execute, trained_once
from cler.runs.jobs import make_jobs, remaining
from cler.runs.results import read_result


def jobs_of(out, *teachers, seeds=(0,), **changes):
    options = {"method": "er-ace", "dataset": "toy", "tasks": 2, "width": 2, "batch": 4, "replay_batch": 4} | changes
    return [job for teacher in teachers for job in make_jobs(make_settings(**options, teacher=teacher), seeds, out)]


def run_all(jobs, *others):
    heard = []
    execute(jobs, Machine(workers=1, device="cpu"), callbacks=[heard.append, *others])
    return heard


def started(heard):
    return [event.run.folder for event in heard if isinstance(event, Started)]


def facts(job, out):
    """What a result says, but for how long it took; the folder is told from `out`."""
    result = read_result(job.folder)
    return job.folder.relative_to(out), {name: each for name, each in result.items() if name != "seconds"}


@pytest.mark.parametrize("changes", [{}, {"validate": 0.25}, {"classifier": "ncm"}, {"regularizer": "jigsaw"}])
def test_its_result_is_that_of_a_run_by_itself(tmp_path, changes):
    alone, together = (
        jobs_of(tmp_path / name, "none", "ema", seeds=(0, 1), **changes) for name in ("alone", "together")
    )
    for job in alone:
        run_all([job])
    heard = run_all(together)
    assert started(heard) == [job.folder for job in together if job.settings.teacher == "ema"]
    assert [facts(job, tmp_path / "together") for job in together] == [facts(job, tmp_path / "alone") for job in alone]
    assert sorted(event.run.label for event in heard if isinstance(event, Finished)) == sorted(
        job.label for job in together
    )
    assert all(
        event.accuracy.keys() <= {"class_il", "task_il", "validation_class_il", "validation_task_il"}
        for event in heard
        if isinstance(event, Evaluated)
    )


def test_one_that_another_process_saw_diverge_has_failed(tmp_path):
    alone, with_average = jobs = jobs_of(tmp_path, "none", "ema", lr=1e6)

    def meanwhile(event):
        if isinstance(event, Started):
            run_all([alone])

    failed = [event for event in run_all(jobs, meanwhile) if isinstance(event, Failed)]
    assert sorted(event.run.label for event in failed) == [alone.label, with_average.label]
    assert all("not finite" in event.why for event in failed)


def test_both_are_resumed(tmp_path):
    class Enough(Exception):  # noqa: N818
        pass

    def stop(event):
        if isinstance(event, Evaluated):
            raise Enough

    alone, jobs = (jobs_of(tmp_path / name, "none", "ema") for name in ("alone", "stopped"))
    for job in alone:
        run_all([job])
    with pytest.raises(Enough):
        run_all(jobs, stop)
    assert remaining(jobs) == jobs
    assert len(started(run_all(jobs))) == 1
    assert [facts(job, tmp_path / "stopped") for job in jobs] == [facts(job, tmp_path / "alone") for job in alone]


def test_what_was_begun_by_itself_is_resumed_by_itself(tmp_path):
    jobs = jobs_of(tmp_path, "none", "ema")
    for job in jobs:
        run_all([replace(job, until_task=1)])
    assert [job.unaided for job in trained_once(jobs, Machine())] == [None, None]
    run_all([jobs[0]])
    (job,) = jobs_of(tmp_path, "none", seeds=[1])
    heard = run_all([job, jobs[1]])  # the average of another seed
    assert started(heard) == [job.folder, jobs[1].folder]


def test_an_average_that_was_begun_without_it_leaves_it_to_be_trained(tmp_path):
    alone, averaged = jobs_of(tmp_path, "none", "ema")
    run_all([replace(averaged, until_task=1)])
    assert started(run_all([alone, averaged])) == [averaged.folder, alone.folder]
    assert not remaining([alone, averaged])


def test_outputs_that_are_not_numbers_leave_it_to_be_trained_and_to_fail_by_itself(tmp_path, monkeypatch):
    def of_the_average_alone(self, images):
        return self.network(images) * (1.0 if self.teacher else torch.nan)

    monkeypatch.setattr(ErAce, "logits", of_the_average_alone)
    alone, averaged = jobs_of(tmp_path, "none", "ema")
    assert started(run_all([alone, averaged])) == [averaged.folder, alone.folder]
    assert read_result(averaged.folder)["complete"]
    assert "not numbers" in read_result(alone.folder)["failure"]


@pytest.mark.parametrize("kept", [{"save_network": True}, {"save_buffer_images": 4}, {"track": "tensorboard"}])
def test_where_more_than_results_is_kept_both_are_trained(kept):
    jobs = jobs_of(Path("out"), "none", "ema")
    assert trained_once(jobs, Machine(**kept)) == jobs
    assert trained_once(jobs, Machine()) != jobs


@pytest.mark.parametrize("changes", [{"until_task": 1}, {"probe": print}])
def test_runs_that_stop_early_or_are_looked_into_are_both_trained(changes):
    jobs = [replace(job, **changes) for job in jobs_of(Path("out"), "none", "ema")]
    assert trained_once(jobs, Machine()) == jobs


@pytest.mark.parametrize("others", [{"teacher": "mkd"}, {"evaluate_every": 2}, {"lr": 0.5}, {"buffer": 7}])
def test_only_what_learns_the_same_is_trained_once(others):
    alone = jobs_of(Path("out"), "none")
    other = jobs_of(Path("out"), others.get("teacher", "ema"), **{k: v for k, v in others.items() if k != "teacher"})
    assert trained_once(alone + other, Machine()) == alone + other


def test_of_several_averages_one_brings_it_along():
    (alone,) = jobs_of(Path("out"), "none")
    slow, fast = (jobs_of(Path("out"), "ema", ema_momentum=each)[0] for each in (0.9, 0.5))
    assert trained_once([slow, alone, fast], Machine()) == [replace(slow, unaided=alone), fast]
