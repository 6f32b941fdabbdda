"""Studies with a sampler of their own: which trials are trained how far, what is kept, what the winner's file says."""

import random
from dataclasses import replace
from statistics import fmean

import pytest

from cler.config.machine import Machine
from cler.config.reading import read_config
from cler.config.registry import METHODS
from cler.engine import checkpoint
from cler.errors import UsageError
from cler.files import read_json, write_json, write_text
from cler.runs.execute import execute
from cler.runs.folders import locked
from cler.runs.jobs import restart
from cler.runs.results import make_result
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
    execute(jobs, Machine(workers=1, device="cpu"))


def make_study(out, select_on="first-tasks:3", **changes):
    given = {"method": "er", "dataset": "toy", "tasks": 4, "width": 2, "batch": 4, "buffer": 8, "replay_batch": 4}
    space = (Range("lr", 1e-3, 1e30, log=True),)
    study = Study(given | {"validate": 0.2}, space, Selection.parse(select_on), (0,), out)
    return replace(study, **changes)


def of_tasks(tasks, out, **changes):
    """A study that nothing has to be trained for: see `Pretending`."""
    study = make_study(out, "whole-stream", **changes)
    return replace(study, given=study.given | {"tasks": tasks})


def by_what_was_found(space, before, count):
    """Learning rates that are others as soon as any score is another."""
    drawn = random.Random(str(before))
    return [{"lr": drawn.uniform(0.001, 1.0)} for _ in range(count)]


class Pretending:
    """Trains at once, to accuracies that nobody can foresee and that fall from task to task.

    It notes what it was asked for, and how many checkpoints there were.
    """

    def __init__(
        self, accuracy=lambda lr, task: random.Random(f"{lr} {task}").uniform(0, 100 / 2**task), moment=lambda: None
    ):
        self.accuracy, self.moment = accuracy, moment
        self.calls, self.checkpoints = [], []

    def __call__(self, jobs):
        self.calls.append([])
        self.checkpoints.append(len(list(jobs[0].folder.parents[1].rglob("checkpoint*"))) if jobs else None)
        for job in jobs:
            tasks = job.settings.tasks
            rows = [[self.accuracy(job.settings.lr, task)] * (task + 1) for task in range(job.until_task or tasks)]
            names = ("class_il", "task_il", "validation_class_il", "validation_task_il")
            about = job.settings.to_dict(), job.seed, dict.fromkeys(names, rows), 1.0, 9, {}
            write_json(job.folder / "result.json", make_result(*about, complete=len(rows) == tasks))
            (job.folder / checkpoint.NAME).touch()
            self.calls[-1].append((job.settings.lr, job.until_task))
            self.moment()


def scores_of(trials, rung):
    return {trial.values["lr"]: trial.scores[rung] for trial in trials if len(trial.scores) > rung}


def better_half(trials, rung):
    """The learning rates that should continue from a rung."""
    scores = scores_of(trials, rung)
    return sorted(scores, key=scores.get, reverse=True)[: (len(scores) + 1) // 2]


def test_at_each_rung_the_better_half_of_all_trials_continues(tmp_path):
    pretending, said = Pretending(), []
    trials = run(of_tasks(10, tmp_path), 25, pretending, by_what_was_found, said.append)
    rates = [trial.values["lr"] for trial in trials]
    tens = [[(rate, 2) for rate in part] for part in (rates[:10], rates[10:20], rates[20:])]
    assert pretending.calls[:3] == tens
    for rung, (call, until) in enumerate(zip(pretending.calls[3:], (4, 8, None), strict=True)):
        continuing = set(better_half(trials, rung))
        assert call == [(rate, until) for rate in rates if rate in continuing]
    assert list(map(len, pretending.calls)) == [10, 10, 5, 13, 7, 4]
    assert sorted(len(trial.scores) for trial in trials) == [1] * 12 + [2] * 6 + [3] * 3 + [4] * 4
    final = scores_of(trials, 3)
    assert best(trials).values["lr"] == max(final, key=final.get)
    assert best(trials).score == max(final.values())
    # of the first twenty, those that thirteen others beat already are not kept until all have been there
    assert pretending.checkpoints == [0, 10, 13, 13, 7, 4]
    assert not list(tmp_path.rglob("checkpoint*"))
    firsts = [scores_of(trials[:count], 0) for count in (10, 20, 25)]
    tops = [f"lr {max(each, key=each.get)}: {max(each.values()):.2f} % on held-out images" for each in firsts]
    assert said[:5] == [
        f"trials 1 to 10 of 25 after 2 tasks; best so far: {tops[0]}",
        f"trials 11 to 20 of 25 after 2 tasks; best so far: {tops[1]}",
        f"trials 21 to 25 of 25 after 2 tasks; best so far: {tops[2]}",
        "13 of 25 trials continue to task 4",
        f"13 trials after 4 tasks; best so far: lr {better_half(trials, 1)[0]}: "
        f"{max(scores_of(trials, 1).values()):.2f} % on held-out images",
    ]
    assert said[5:] == [
        "7 of 13 trials continue to task 8",
        said[6],
        "4 of 7 trials continue to task 10",
        f"4 trials after 10 tasks; best so far: {best(trials)}",
    ]


def test_of_equal_trials_the_earlier_ones_continue_and_win(tmp_path):
    pretending = Pretending(lambda lr, task: 50.0)
    trials = run(of_tasks(5, tmp_path), 5, pretending, propose)
    assert [len(trial.scores) for trial in trials] == [3, 3, 2, 1, 1]
    assert best(trials) is trials[0]


def test_each_ten_are_proposed_by_the_scores_of_those_before(tmp_path):
    asked = []

    def noting(space, before, count):
        asked.append((list(before), count))
        return by_what_was_found(space, before, count)

    trials = run(of_tasks(4, tmp_path), 12, Pretending(), noting)
    assert [count for _, count in asked] == [10, 2]
    assert asked[1][0] == [replace(trial, scores=trial.scores[:1]) for trial in trials[:10]]


def test_the_worse_half_is_dropped_after_a_task_and_the_best_is_a_settings_file(tmp_path):
    trained, said = [], []

    def noting(jobs):
        trained.append([(job.settings.lr, job.until_task) for job in jobs])
        train(jobs)

    study = make_study(tmp_path)
    trials = run(study, 4, noting, propose, said.append)
    assert trained[0] == [(rate, 2) for rate in RATES[:4]]
    kept, dropped = ([trial for trial in trials if len(trial.scores) == count] for count in (2, 1))
    assert [(trial.values["lr"], 3) for trial in kept] == trained[1]
    assert (len(kept), len(dropped)) == (2, 2)
    assert min(trial.scores[0] for trial in kept) >= max(trial.scores[0] for trial in dropped)
    assert trials[3] == Trial({"lr": 1e30}, (0.0,))  # it has diverged
    assert not list(tmp_path.rglob("checkpoint*"))
    assert said[0].startswith("trials 1 to 4 of 4 after 2 tasks; best so far: lr ")

    top = best(trials)
    found = [read_json(path) for path in tmp_path.rglob("result.json")]
    (held_out,) = [each["validation"]["class_il"] for each in found if each["settings"]["lr"] == top.values["lr"]]
    assert top.score == pytest.approx(fmean(held_out[2]))
    config = read_config(tmp_path / BEST)
    assert config.pop("tuned") == {
        "names": ["lr"], "select_on": "first-tasks:3", "dataset": "toy", "trials": 4, "seeds": [0],
    }  # fmt: skip
    assert config == {name: value for name, value in study.given.items() if name != "validate"} | top.values


def test_trials_that_have_diverged_need_no_training_to_be_compared(tmp_path):
    trained = []

    def noting(jobs):
        trained.append(len(jobs))
        train(jobs)

    def diverging(space, before, count):
        return [{"lr": 1e30 / 10**number} for number in range(count)]

    study = make_study(tmp_path)
    with pytest.raises(UsageError, match="space has no winner: the trials that got furthest have 0 %"):
        run(study, 3, noting, diverging)
    ended, _ = study.trials()
    assert [trial.scores for trial in ended] == [(0.0, 0.0), (0.0, 0.0), (0.0,)]
    assert trained == [3, 0]
    assert not (tmp_path / BEST).exists()


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


def test_a_study_ends_where_its_space_does(tmp_path):
    """With the better half of those that there are."""
    said = []
    trials = run(
        of_tasks(4, tmp_path), 9, Pretending(), lambda *asked: propose(*asked[:2], 3 - len(asked[1])), said.append
    )
    assert sorted(len(trial.scores) for trial in trials) == [1, 2, 2]
    assert said[-1] == "3 of 9 trials: there are no other values in the space"
    assert (tmp_path / BEST).exists()
    assert not list(tmp_path.rglob("checkpoint*"))


def test_a_study_whose_file_is_gone_finds_all_scores_again_in_its_runs(tmp_path):
    trials, again = run(of_tasks(5, tmp_path), 4, Pretending(), propose), Pretending()
    (tmp_path / FILE).unlink()
    assert run(of_tasks(5, tmp_path), 4, again, propose) == trials
    assert not any(again.calls)


class KilledError(Exception):
    pass


def test_a_study_that_was_killed_at_any_moment_ends_as_if_it_had_not_been(tmp_path, monkeypatch):
    """Within each rung and between them, before and after everything that it writes or deletes."""
    monkeypatch.setattr(module, "MOST_AT_ONCE", 3)
    whole = of_tasks(5, tmp_path / "whole")
    trials = run(whole, 7, Pretending(), by_what_was_found)
    assert sorted(len(trial.scores) for trial in trials) == [1, 1, 1, 2, 2, 3, 3]
    left = -1

    def moment():
        nonlocal left
        left -= 1
        if left == 0:
            raise KilledError

    def between(effect):
        def hooked(*arguments):
            moment()
            effect(*arguments)
            moment()

        return hooked

    for name, effect in (("write_json", write_json), ("write_text", write_text), ("restart", restart)):
        monkeypatch.setattr(module, name, between(effect))
    kills = 0
    while left <= 0:
        kills += 1
        stopped, left = of_tasks(5, tmp_path / f"stopped {kills}"), kills
        first, second = Pretending(moment=moment), Pretending()
        try:
            run(stopped, 7, first, by_what_was_found)
        except KilledError:
            run(stopped, 7, second, by_what_was_found)
        assert read_json(stopped.out / FILE) == read_json(whole.out / FILE), kills
        assert (stopped.out / BEST).read_text() == (whole.out / BEST).read_text()
        assert sum(map(len, [*first.calls, *second.calls])) == 3 + 3 + 1 + 4 + 2  # nothing is trained twice
        assert not list(stopped.out.rglob("checkpoint*"))
    assert kills > 30


@pytest.mark.parametrize("stopped_at", [0, 1, 2])
def test_a_study_that_was_stopped_as_it_trained_ends_as_if_it_had_not_been(tmp_path, monkeypatch, stopped_at):
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


def test_more_trials_after_the_end_are_a_round_of_their_own(tmp_path):
    study, pretending, said = of_tasks(4, tmp_path), Pretending(), []
    first = run(study, 4, Pretending(), by_what_was_found)
    more = run(study, 9, pretending, by_what_was_found, said.append)
    assert more[:4] == first
    assert [len(call) for call in pretending.calls] == [5, 3]
    assert {rate for rate, _ in pretending.calls[1]} == set(better_half(more[4:], 0))
    assert said[0] == f"4 of 9 trials are already in {tmp_path}"
    assert said[1].startswith("trials 5 to 9 of 9 after 2 tasks; best so far: lr ")
    assert best(more).score == max(trial.score for trial in more if len(trial.scores) == 2)
    assert run(study, 9, None, None) == more


def stopped_in(study, count, call):
    """Run a study until so many calls of its training have ended, and one was begun."""
    pretending = Pretending()

    def stopping(jobs):
        if len(pretending.calls) == call:
            raise KeyboardInterrupt
        pretending(jobs)

    with pytest.raises(KeyboardInterrupt):
        run(study, count, stopping, by_what_was_found)


@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_round_in_its_first_rung_grows(tmp_path, call):
    """As if so many had been asked for from the start; those that were dropped too soon are trained again."""
    whole, grown = of_tasks(4, tmp_path / "whole"), of_tasks(4, tmp_path / "grown")
    run(whole, 60, Pretending(), by_what_was_found)
    stopped_in(grown, 30, call)
    run(grown, 60, Pretending(), by_what_was_found)
    assert read_json(grown.out / FILE) == read_json(whole.out / FILE)


def test_a_round_that_is_past_its_first_rung_is_finished_before_others_are_added(tmp_path):
    first, both = of_tasks(8, tmp_path / "first"), of_tasks(8, tmp_path / "both")
    expected = run(first, 8, Pretending(), by_what_was_found)
    stopped_in(both, 8, 2)
    pretending = Pretending()
    trials = run(both, 12, pretending, by_what_was_found)
    assert trials[:8] == expected
    assert [len(call) for call in pretending.calls] == [2, 4, 2, 1]
    assert trials == run(first, 12, Pretending(), by_what_was_found)


def test_what_is_under_way_is_finished_though_fewer_are_asked_for(tmp_path):
    study, pretending = of_tasks(4, tmp_path), Pretending()
    stopped_in(study, 30, 1)
    assert len(run(study, 3, pretending, None)) == 20
    assert [len(call) for call in pretending.calls] == [10, 10]
    stopped_in(study, 25, 0)
    assert len(run(study, 3, pretending, None)) == 25
    assert [len(call) for call in pretending.calls[2:]] == [5, 3]


def test_trials_of_another_revision_are_told_of_in_one_line(tmp_path, monkeypatch):
    study, said = make_study(tmp_path, "first-tasks:1"), []
    run(study, 2, train, propose, said.append)
    monkeypatch.setattr(METHODS["er"], "revision", 1000)
    next(tmp_path.rglob("result.json")).write_text("{")
    run(study, 3, train, propose, said.append)
    (line,) = (line for line in said if "revision" in line)
    assert line.endswith("this is 1000: another output folder repeats it")


def test_another_study_in_the_folder_is_refused(tmp_path):
    run(make_study(tmp_path, "first-tasks:1"), 1, train, propose)
    other = make_study(tmp_path, "first-tasks:2", given=make_study(tmp_path).given | {"precision": "bf16"})
    with pytest.raises(UsageError, match=r"a different study \(it differs in select_on, rungs, precision\): choose"):
        run(other, 1, train, propose)


def test_a_run_that_another_process_has_begun_is_named_as_such(tmp_path):
    with pytest.raises(UsageError, match="another process is training it; try again later"):
        run(make_study(tmp_path), 2, lambda jobs: None, propose)


def test_a_study_is_made_by_one_process_at_a_time(tmp_path):
    with locked(tmp_path), pytest.raises(UsageError, match="another cler is tuning in"):
        run(make_study(tmp_path), 1, lambda jobs: pytest.fail("nothing is to be trained"), propose)
    assert not (tmp_path / FILE).exists()


TRIAL = {"values": {"lr": 0.01}, "scores": [50.0, 40.0]}


@pytest.mark.parametrize("part", ["trials", "under_way"])
@pytest.mark.parametrize(
    "forged",
    [
        [TRIAL | {"scores": None}],
        [TRIAL | {"scores": "x"}],
        [TRIAL | {"scores": [50.0, True]}],
        [TRIAL | {"scores": [50.0, 101.0]}],
        [TRIAL | {"scores": [50.0] * 3}],
        [TRIAL | {"values": None}],
        [TRIAL | {"values": {"lr": "0.01"}}],
        [TRIAL | {"values": {"lr": 0.01, "batch": 3}}],
        [TRIAL | {"values": {"lr": -1.0}}],
        [{"lr": 0.01}],
        [None],
        [{}],
        3,
    ],
    ids=str,
)
def test_a_forged_study_is_refused(tmp_path, part, forged):
    refused(tmp_path, {part: forged})


@pytest.mark.parametrize("scores", [[], [50.0]])
def test_a_study_that_ended_without_a_trial_at_its_end_is_refused(tmp_path, scores):
    refused(tmp_path, {"trials": [TRIAL | {"scores": scores}]})


def refused(out, forged):
    study, trial = make_study(out), Trial({"lr": 0.01}, (50.0, 40.0))
    study.write([trial], [trial, Trial({"lr": 0.02})])
    assert study.trials() == ([trial], [trial, Trial({"lr": 0.02})])
    write_json(out / FILE, read_json(out / FILE) | forged)
    with pytest.raises(UsageError, match="is not a study: delete it to start over"):
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
