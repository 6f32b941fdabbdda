"""Studies with a sampler of their own: which trials are trained how far, what is kept, what the winner's file says."""

from dataclasses import replace
from statistics import fmean

import pytest
import torch

from cler.config.reading import read_config
from cler.errors import UsageError
from cler.files import read_json, write_json
from cler.runs.execute import execute
from cler.runs.trainers import in_bundles
from cler.tune import study as module
from cler.tune.selection import Selection
from cler.tune.space import Range
from cler.tune.study import BEST, FILE, Study, Trial, best, run

RATES = [0.001, 0.3, 0.03, 1e30, 0.01, 0.1]


def propose(space, before, count):
    """Learning rates in a fixed order."""
    return [{"lr": rate} for rate in RATES[len(before) :][:count]]


def train(jobs):
    execute(jobs, device=torch.device("cpu"), workers=1)


def make_study(out, select_on="first-tasks:3", **changes):
    given = {"method": "er", "dataset": "toy", "tasks": 4, "width": 2, "batch": 4, "buffer": 8, "replay_batch": 4}
    space = (Range("lr", 1e-3, 1e30, log=True),)
    study = Study(given | {"validate": 0.2}, space, Selection.parse(select_on), (0,), out)
    return replace(study, **changes)


def test_the_worse_half_is_dropped_after_a_task_and_the_best_is_a_settings_file(tmp_path):
    trained, said = [], []

    def noting(jobs):
        trained.append([(job.settings.lr, job.until_task) for job in jobs])
        train(jobs)

    study = make_study(tmp_path)
    trials = run(study, 4, noting, propose, said.append)
    assert trained[0] == [(rate, 2) for rate in RATES[:4]]
    kept = [trial for trial in trials if not trial.dropped]
    assert [(trial.values["lr"], 3) for trial in kept] == trained[1]
    assert [len(trial.scores) for trial in trials] == [1 if trial.dropped else 2 for trial in trials]
    assert min(trial.scores[0] for trial in kept) >= max(trial.scores[0] for trial in trials if trial.dropped)
    assert trials[3] == Trial({"lr": 1e30}, (0.0,), dropped=True)  # it has diverged
    assert not list(tmp_path.rglob("checkpoint*"))
    assert said[-1].startswith("trials 1 to 4; best so far: lr ")

    top = best(trials)
    found = [read_json(path) for path in tmp_path.rglob("result.json")]
    (held_out,) = [each["validation"]["class_il"] for each in found if each["settings"]["lr"] == top.values["lr"]]
    assert top.score == pytest.approx(fmean(held_out[2]))
    config = read_config(tmp_path / BEST)
    assert config.pop("tuned") == {
        "names": ["lr"], "select_on": "first-tasks:3", "dataset": "toy", "trials": 4, "seeds": [0],
    }  # fmt: skip
    assert config == {name: value for name, value in study.given.items() if name != "validate"} | top.values


def test_trials_that_differ_in_what_is_tuned_are_one_bundle(tmp_path):
    """So that a GPU trains them side by side; those that hold out another share would not be."""
    trained = []

    def noting(jobs):
        trained.append(in_bundles(jobs, 10))
        train(jobs)

    given = make_study(tmp_path).given | {"regularizer": "rotation"}
    space = (Range("lr", 1e-3, 1.0), Range("weight", 0.1, 3.0), Range("optimizer", choices=("sgd", "adam")))

    def spread(space, before, count):
        return [{"lr": 0.01 * (n + 1), "weight": 1.0 + n, "optimizer": ("sgd", "adam")[n % 2]} for n in range(count)]

    run(make_study(tmp_path, given=given, space=space), 3, noting, spread)
    assert [[len(bundle) for bundle in bundles] for bundles in trained] == [[3], [2]]
    others = [replace(job, settings=replace(job.settings, validate=0.3)) for job in trained[0][0]]
    assert len(in_bundles([*trained[0][0], *others], 10)) == 2


def test_the_last_of_a_generation_is_trained_to_the_end_at_once(tmp_path):
    """Where nothing is left to compare it with."""
    trained = []

    def noting(jobs):
        trained.append([job.until_task for job in jobs])
        train(jobs)

    trials = run(make_study(tmp_path, "whole-stream"), 2, noting, propose)
    assert trained == [[2, 2], [None]]
    assert sorted(len(trial.scores) for trial in trials) == [1, 2]
    assert len(list(tmp_path.rglob("result.json"))) == 2


def test_a_study_ends_where_its_space_does(tmp_path):
    said = []
    trials = run(
        make_study(tmp_path, "first-tasks:1"),
        9,
        train,
        lambda space, before, count: propose(space, before, min(count, 2 - len(before))),
        said.append,
    )
    assert len(trials) == 2
    assert said[-1] == "2 of 9 trials: there are no other values in the space"
    assert (tmp_path / BEST).exists()


@pytest.mark.parametrize("stopped_at", [0, 1, 2])
def test_a_study_that_was_stopped_ends_as_if_it_had_not_been(tmp_path, monkeypatch, stopped_at):
    monkeypatch.setattr(module, "MOST_AT_ONCE", 2)
    whole, stopped = make_study(tmp_path / "whole"), make_study(tmp_path / "stopped")
    run(whole, 3, train, propose)
    calls = []

    def stopping(jobs):
        calls.append(jobs)
        train(jobs[:1] if len(calls) > stopped_at else jobs)
        if len(calls) > stopped_at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(stopped, 3, stopping, propose)
    run(stopped, 3, train, propose)
    assert read_json(stopped.out / FILE) == read_json(whole.out / FILE)
    assert (stopped.out / BEST).read_text() == (whole.out / BEST).read_text()


def test_more_trials_are_added_to_those_that_there_are(tmp_path):
    study = make_study(tmp_path, "first-tasks:1")
    first = run(study, 2, train, propose)
    said = []
    more = run(study, 3, train, propose, said.append)
    assert more[:2] == first
    assert len(more) == 3
    assert said[0] == f"2 of 3 trials are already in {tmp_path}"
    assert run(study, 3, None, None) == more


def test_another_study_in_the_folder_is_refused(tmp_path):
    run(make_study(tmp_path, "first-tasks:1"), 1, train, propose)
    with pytest.raises(UsageError, match="holds a different study"):
        run(make_study(tmp_path, "first-tasks:2"), 1, train, propose)


def test_a_run_that_another_process_has_begun_is_named_as_such(tmp_path):
    with pytest.raises(UsageError, match="another process is training it; try again after that"):
        run(make_study(tmp_path), 2, lambda jobs: None, propose)


TRIAL = {"values": {"lr": 0.01}, "scores": [50.0], "dropped": False}


@pytest.mark.parametrize(
    "forged",
    [
        {"trials": [TRIAL | {"dropped": True}]},
        {"trials": [TRIAL | {"dropped": 0}]},
        {"trials": [TRIAL | {"scores": []}]},
        {"trials": [TRIAL | {"scores": "x"}]},
        {"trials": [TRIAL | {"scores": [101.0]}]},
        {"trials": [TRIAL | {"scores": [50.0] * 3}]},
        {"trials": [TRIAL | {"values": None}]},
        {"trials": [TRIAL | {"values": {"lr": "0.01"}}]},
        {"trials": [TRIAL | {"values": {"lr": 0.01, "batch": 3}}]},
        {"trials": [TRIAL | {"values": {"lr": -1.0}}]},
        {"under_way": [None]},
        {"under_way": [{}]},
        {"under_way": 3},
        {"trials": 3},
    ],
    ids=str,
)
def test_a_forged_study_is_refused(tmp_path, forged):
    study = make_study(tmp_path)
    study.write([Trial({"lr": 0.01}, (50.0,))], [])
    assert study.trials() == ([Trial({"lr": 0.01}, (50.0,))], [])
    write_json(tmp_path / FILE, read_json(tmp_path / FILE) | forged)
    with pytest.raises(UsageError, match="is no study: delete it to start over"):
        run(study, 2, None, propose)


@pytest.mark.parametrize("select_on", ["whole-stream", "other-dataset:toy"])
def test_a_whole_stream_decides_by_its_end(tmp_path, select_on):
    given = make_study(tmp_path).given | {"tasks": 2, "dataset": "cifar10-sample" if ":" in select_on else "toy"}
    (trial,) = run(make_study(tmp_path, select_on, given=given), 1, train, propose)
    (result,) = [read_json(path) for path in tmp_path.rglob("result.json")]
    assert result["complete"]
    assert result["settings"]["dataset"] == "toy"
    assert trial.score == pytest.approx(fmean(result["validation"]["class_il"][-1]))
    config = read_config(tmp_path / BEST)
    assert (config["dataset"], config["tuned"]["dataset"]) == (given["dataset"], "toy")
