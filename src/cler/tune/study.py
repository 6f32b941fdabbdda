"""A study: generations of trials, side by side, of which the worse half is dropped after each task."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from cler.config.making import make_settings
from cler.config.settings import Settings
from cler.config.values import number_of_tasks
from cler.engine.bundles import MOST_AT_ONCE
from cler.errors import UsageError
from cler.files import read_json, write_json, write_text
from cler.runs.folders import check_writable
from cler.runs.jobs import Index, Job, make_jobs, remaining, restart
from cler.runs.results import read_result
from cler.tune.selection import Selection
from cler.tune.space import Range

FILE = "study.json"
BEST = "best.toml"
Propose = Callable[[Sequence[Range], Sequence["Trial"], int], list[dict[str, Any]]]


@dataclass(frozen=True)
class Trial:
    """Values of the tuned settings, and what came of them."""

    values: dict[str, Any]
    scores: tuple[float, ...] = ()
    """Accuracy on held-out images after each rung that it reached: in percent, over the tasks so far and the seeds."""
    dropped: bool = False
    """Whether others of its generation were better before the end."""

    @property
    def score(self) -> float:
        """Its last accuracy on held-out images; 0 before the first."""
        return self.scores[-1] if self.scores else 0.0


@dataclass(frozen=True)
class Study:
    """What is tuned, where it is kept, and on what it is selected."""

    given: dict[str, Any]
    """The settings that all trials share, with the dataset that the winner is for."""
    space: tuple[Range, ...]
    selection: Selection
    seeds: tuple[int, ...]
    out: Path
    data: str | None = None
    """The fingerprint of a dataset that decides and lies at a path; None for one that has a name."""

    def settings(self, values: dict[str, Any]) -> Settings:
        """The settings of a trial, on the dataset that decides."""
        other = {"dataset": self.selection.other_dataset} if self.selection.other_dataset else {}
        return make_settings(**self.given | other | values)

    def about(self) -> dict[str, Any]:
        """What makes it this study, in plain values."""
        space = json.loads(json.dumps([asdict(each) for each in self.space]))
        return {"given": self.given, "space": space, "select_on": str(self.selection), "seeds": list(self.seeds)}

    def trials(self) -> tuple[list[Trial], list[dict[str, Any]]]:
        """The trials that have ended, and the values of the generation under way."""
        if not (self.out / FILE).exists():
            return [], []
        found = read_json(self.out / FILE)
        if found.get("about") != self.about():
            raise UsageError(f"{self.out} holds a different study: choose another output folder", "out")
        try:
            ended = [Trial(each["values"], tuple(each["scores"]), each["dropped"]) for each in found["trials"]]
            under_way = list(found["under_way"])
            whole = all(map(self._are_values, [*(trial.values for trial in ended), *under_way]))
        except (KeyError, TypeError):
            whole = False
        if not whole or (ended and not self._have_ended(ended)):
            raise UsageError(f"{self.out / FILE} is no study: delete it to start over")
        return ended, under_way

    def _are_values(self, values: Any) -> bool:
        """Whether they are values of all that is tuned, and of nothing else."""
        ranges = {each.name: each for each in self.space}
        return (
            isinstance(values, dict)
            and values.keys() == ranges.keys()
            and all(ranges[name].holds(value) for name, value in values.items())
        )

    def _have_ended(self, trials: Sequence[Trial]) -> bool:
        """Whether trials have scores such as this study gives, and some of them were not dropped."""
        most = len(self.selection.rungs(self.settings(trials[0].values)))
        return not all(trial.dropped is True for trial in trials) and all(
            type(trial.dropped) is bool
            and 0 < len(trial.scores) <= most
            and all(type(score) in (int, float) and 0 <= score <= 100 for score in trial.scores)
            for trial in trials
        )

    def write(self, ended: Sequence[Trial], under_way: Sequence[dict[str, Any]]) -> None:
        """Write the trials that have ended, and the values of those under way, to the study's file."""
        trials = [asdict(each) | {"scores": list(each.scores)} for each in ended]
        write_json(self.out / FILE, {"about": self.about(), "trials": trials, "under_way": list(under_way)})


def run(
    study: Study,
    count: int,
    train: Callable[[Sequence[Job]], object],
    propose: Propose,
    say: Callable[[str], None] = lambda line: None,
) -> list[Trial]:
    """Train the trials that the study does not have yet, write the best as a settings file, and return all trials."""
    check_writable(study.out)
    ended, under_way = study.trials()
    if ended or under_way:
        say(f"{len(ended)} of {max(count, len(ended))} trials are already in {study.out}")
    while len(ended) < count:
        under_way = under_way or propose(study.space, ended, min(MOST_AT_ONCE, count - len(ended)))
        if not under_way:
            say(f"{len(ended)} of {count} trials: there are no other values in the space")
            break
        study.write(ended, under_way)
        first = len(ended) + 1
        ended = [*ended, *_generation(study, under_way, train)]
        under_way = []
        study.write(ended, under_way)
        top = best(ended)
        values = ", ".join(f"{name} {value}" for name, value in top.values.items())
        say(f"trials {first} to {len(ended)}; best so far: {values}, {top.score:.2f} % on held-out images")
    write_text(study.out / BEST, settings_file(study, ended))
    return ended


def best(trials: Sequence[Trial]) -> Trial:
    """The best of those that were not dropped."""
    return max((trial for trial in trials if not trial.dropped), key=lambda trial: trial.score)


def _generation(
    study: Study, proposed: Sequence[dict[str, Any]], train: Callable[[Sequence[Job]], object]
) -> list[Trial]:
    """Train trials side by side, and after each rung only the better half of them."""
    trials = [Trial(values) for values in proposed]
    rungs = study.selection.rungs(study.settings(dict(proposed[0])))
    alive, index = list(range(len(trials))), Index(study.out)
    for rung in rungs:
        last = rung == rungs[-1]
        if len(alive) == 1 and not last:
            continue  # there is nothing to compare it with before the end
        jobs = {number: _jobs(study, trials[number], rung, index) for number in alive}
        train(remaining([job for each in jobs.values() for job in each]))
        for number in alive:
            scores = (*trials[number].scores, fmean(_held_out_accuracy(job) for job in jobs[number]))
            trials[number] = replace(trials[number], scores=scores)
        kept = sorted(alive, key=lambda number: -trials[number].score)
        kept = kept if last else kept[: (len(kept) + 1) // 2]
        for number in set(alive) - set(kept):
            trials[number] = replace(trials[number], dropped=True)
        restart([job for number in alive if number not in kept or last for job in jobs[number]])
        alive = sorted(kept)
    return trials


def _jobs(study: Study, trial: Trial, tasks: int, index: Index) -> list[Job]:
    settings = study.settings(trial.values)
    until = tasks if tasks < number_of_tasks(settings.tasks) else None
    return make_jobs(settings, study.seeds, study.out, until_task=until, data=study.data, index=index)


def _held_out_accuracy(job: Job) -> float:
    """The mean over the tasks so far, as of the last one; 0 for a run that has diverged."""
    result = read_result(job.folder) if (job.folder / "result.json").exists() else {}
    rows = result.get("validation", {}).get("class_il")
    if "failure" in result:
        return 0.0
    if not rows or (job.until_task and len(rows) < job.until_task) or not (job.until_task or result["complete"]):
        raise UsageError(f"{job.folder} has not got as far: another process is training it; try again after that")
    return fmean(rows[(job.until_task or 0) - 1])


def settings_file(study: Study, trials: Sequence[Trial]) -> str:
    """The best trial as a settings file for the whole stream; its results are stamped with how they were tuned."""
    top = best(trials)
    values = {name: value for name, value in (study.given | top.values).items() if name != "validate"}
    tuned = {
        "names": [each.name for each in study.space],
        "select_on": str(study.selection),
        "dataset": study.settings(top.values).dataset,
        "trials": len(trials),
        "seeds": list(study.seeds),
    }
    lines = [*_toml(values), "", "[tuned]", *_toml(tuned)]
    return "\n".join(lines) + "\n"


def _toml(values: dict[str, Any]) -> list[str]:
    return [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in values.items() if value is not None]
