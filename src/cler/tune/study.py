"""A study: rounds of trials, of which the better half continues after 2, 4, 8, … tasks."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from cler.config.making import make_settings
from cler.config.reading import IMPORT
from cler.config.registry import is_file
from cler.config.settings import Settings
from cler.config.values import number_of_tasks
from cler.engine.bundles import MOST_AT_ONCE
from cler.errors import UsageError
from cler.files import read_json, write_json, write_text
from cler.runs.folders import check_writable, locked
from cler.runs.jobs import Index, Job, make_jobs, outdated, remaining, restart
from cler.runs.results import read_result
from cler.tune.selection import Selection
from cler.tune.space import Range

FILE = "study.json"
BEST = "best.toml"
Propose = Callable[[Sequence[Range], Sequence["Trial"], int], list[dict[str, Any]]]
Train = Callable[[Sequence[Job]], object]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Trial:
    """Values of the tuned settings, and the scores that they reached."""

    values: dict[str, Any]
    scores: tuple[float, ...] = ()
    """Accuracy on held-out images at each rung that it reached: in percent, over the tasks so far and the seeds. A
    trial that has ended with fewer scores than there are rungs was dropped."""

    @property
    def score(self) -> float:
        """Its last accuracy on held-out images; 0 before the first."""
        return self.scores[-1] if self.scores else 0.0

    def __str__(self) -> str:
        values = ", ".join(f"{name} {value}" for name, value in self.values.items())
        return f"{values}: {self.score:.2f} % on held-out images"


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
    imports: tuple[str, ...] = ()
    """Files and modules with the user's own parts, which the winner's settings file names too."""

    def settings(self, values: dict[str, Any]) -> Settings:
        """The settings of a trial, on the dataset that decides."""
        other = {"dataset": self.selection.other_dataset} if self.selection.other_dataset else {}
        return make_settings(**self.given | other | values)

    def rungs(self) -> list[int]:
        """After how many tasks trials are compared."""
        return self.selection.rungs(self.settings({each.name: each.ends[0] for each in self.space}))

    def about(self) -> dict[str, Any]:
        """What makes it this study, in plain values."""
        return {
            "given": self.given,
            "space": json.loads(json.dumps([asdict(each) for each in self.space])),
            "select_on": str(self.selection),
            "rungs": self.rungs(),
            "seeds": list(self.seeds),
        }

    def trials(self) -> tuple[list[Trial], list[Trial]]:
        """The trials of the rounds that have ended, and those of the round under way."""
        if not (self.out / FILE).exists():
            return [], []
        found = read_json(self.out / FILE)
        try:
            before, now = (about | about["given"] for about in (found["about"], self.about()))
            different = [name for name in before | now if name != "given" and before.get(name) != now.get(name)]
            ended, under_way = (
                [Trial(each["values"], tuple(each["scores"])) for each in found[part]]
                for part in ("trials", "under_way")
            )
            reached, last = [len(trial.scores) for trial in ended], len(self.rungs())
            whole = all(self._may_be(trial, last) for trial in [*ended, *under_way]) and (
                not ended or (min(reached) > 0 and max(reached) == last)
            )
        except (KeyError, TypeError, ValueError):
            different, whole = [], False
        if different:
            raise UsageError(
                f"{self.out} holds a different study (it differs in {', '.join(different)}): choose another output "
                "folder",
                "out",
            )
        if not whole:
            raise UsageError(f"{self.out / FILE} is not a study: delete it to start over")
        return ended, under_way

    def _may_be(self, trial: Trial, most: int) -> bool:
        """Whether it has values of all that is tuned and of nothing else, and at most so many scores."""
        ranges = {each.name: each for each in self.space}
        return (
            isinstance(trial.values, dict)
            and trial.values.keys() == ranges.keys()
            and all(ranges[name].holds(value) for name, value in trial.values.items())
            and len(trial.scores) <= most
            and all(type(score) in (int, float) and 0 <= score <= 100 for score in trial.scores)
        )

    def write(self, ended: Sequence[Trial], under_way: Sequence[Trial]) -> None:
        """Write the trials of the rounds that have ended, and those of the round under way, to the study's file."""
        trials, begun = (list(map(asdict, part)) for part in (ended, under_way))
        write_json(self.out / FILE, {"about": self.about(), "trials": trials, "under_way": begun})


def run(study: Study, count: int, train: Train, propose: Propose, say: Say = lambda line: None) -> list[Trial]:
    """Train the trials that the study does not have yet, write the best as a settings file, and return all trials.

    The new ones make a round, after the one under way, if any; but one that is in its first rung grows by them. Where
    those that got furthest have diverged there is no best one, and a `UsageError` says so.
    """
    check_writable(study.out)
    with locked(study.out) as ours:
        if not ours:
            raise UsageError(
                f"another cler is tuning in {study.out}: wait for it, or choose another output folder", "out"
            )
        return _run(study, count, train, propose, say)


def _run(study: Study, count: int, train: Train, propose: Propose, say: Say) -> list[Trial]:
    ended, under_way = study.trials()
    if there := len(ended) + len(under_way):
        say(f"{there} of {max(count, there)} trials are already in {study.out}")
        for line in _outdated(study, [*ended, *under_way]):
            say(line)
    while under_way or len(ended) < count:
        under_way = _Round(study, ended, under_way, train, say).finish(count - len(ended), propose)
        if not under_way:
            say(f"{len(ended)} of {count} trials: there are no other values in the space")
            break
        ended, under_way = [*ended, *under_way], []
        study.write(ended, under_way)
    if not best(ended).score:
        told = "the trials that got furthest have 0 % on held-out images, as runs do that diverge"
        raise UsageError(f"has no winner: {told}; try other values", "space")
    write_text(study.out / BEST, settings_file(study, ended))
    return ended


def _outdated(study: Study, trials: Sequence[Trial]) -> list[str]:
    """A line for each way in which today's code or data would not reproduce the trials that have been trained."""
    index, trained = Index(study.out), []
    for trial in trials:
        for job in make_jobs(study.settings(trial.values), study.seeds, study.out, data=study.data, index=index):
            with suppress(UsageError):  # that it has no result, or none that can be read
                read_result(job.folder)
                trained.append(job)
    return outdated(trained, lambda one: study.data, remedy="another output folder")


def best(trials: Sequence[Trial]) -> Trial:
    """The one with the highest score of those that got furthest, the earlier one if two are equal."""
    return max(trials, key=lambda trial: (len(trial.scores), trial.score))


class _Round:
    """Trials that are compared with each other: at each rung the better half of those that reached it continues.

    Which ones these are follows from the scores, so nothing else has to be known of a round that was stopped.
    """

    def __init__(self, study: Study, ended: Sequence[Trial], begun: Sequence[Trial], train: Train, say: Say) -> None:
        self.study, self.ended, self.trials, self.train, self.say = study, ended, list(begun), train, say
        self.rungs, self.index = study.rungs(), Index(study.out)

    def finish(self, wanted: int, propose: Propose) -> list[Trial]:
        """Train the round to its end, and return its trials; in its first rung it grows to as many as are wanted."""
        if all(len(trial.scores) < 2 for trial in self.trials):
            self._grow(wanted, propose)
        alive = list(range(len(self.trials)))
        for rung in range(len(self.rungs)):
            self._reach(rung, alive, f"{len(alive)} trial{'s' * (len(alive) > 1)}")
            alive, before = self._better_half(rung, alive, len(alive)), alive
            if 0 < len(alive) < len(before):
                told = f"{len(alive)} of {len(before)} trials continue{'s' * (len(alive) == 1)}"
                self.say(f"{told} to task {self.rungs[rung + 1]}")
        return self.trials

    def _grow(self, wanted: int, propose: Propose) -> None:
        """Train all trials to the first rung, ten at a time: each ten are proposed by what the others showed there.

        One that cannot be among the better half any more, as so many are better already, is dropped at once.
        """
        size = max(wanted, len(self.trials))
        alive = [number for number, trial in enumerate(self.trials) if trial.scores]
        while new := self._new(size, propose):
            first, last, of = (len(self.ended) + number for number in (new[0] + 1, new[-1] + 1, size))
            which = f"trials {first} to {last}" if first < last else f"trial {first}"
            self._reach(0, new, f"{which} of {of}")
            alive = self._better_half(0, [*alive, *new], size)

    def _new(self, size: int, propose: Propose) -> list[int]:
        """The trials without a score or, if all have one and the round is to grow, up to ten that are proposed now."""
        there, room = len(self.trials), min(MOST_AT_ONCE, size - len(self.trials))
        new = [number for number, trial in enumerate(self.trials) if not trial.scores]
        if not new and room and (proposed := propose(self.study.space, [*self.ended, *self.trials], room)):
            self.trials += map(Trial, proposed)
            self.study.write(self.ended, self.trials)
            new = list(range(there, len(self.trials)))
        return new

    def _reach(self, rung: int, numbers: Sequence[int], which: str) -> None:
        """Train these trials as far as a rung, and score those that had not been there."""
        new = [number for number in numbers if len(self.trials[number].scores) <= rung]
        if not new:
            return
        jobs = {number: self._jobs(number, rung) for number in new}
        self.train(remaining([job for each in jobs.values() for job in each]))
        for number in new:
            score = fmean(map(_held_out_accuracy, jobs[number]))
            self.trials[number] = replace(self.trials[number], scores=(*self.trials[number].scores, score))
        self.study.write(self.ended, self.trials)
        tasks = self.rungs[rung]
        self.say(f"{which} after {tasks} task{'s' * (tasks > 1)}; best so far: {best([*self.ended, *self.trials])}")

    def _better_half(self, rung: int, reached: Sequence[int], size: int) -> list[int]:
        """Which of those that reached a rung may be among the better half of so many; none after the last rung.

        Of equal ones the earlier is better. The others need no checkpoints any more.
        """
        half = (size + 1) // 2 if rung < len(self.rungs) - 1 else 0
        kept = set(sorted(reached, key=lambda number: (-self.trials[number].scores[rung], number))[:half])
        restart([job for number in reached if number not in kept for job in self._jobs(number, rung)])
        return sorted(kept)

    def _jobs(self, number: int, rung: int) -> list[Job]:
        """The runs of a trial as far as a rung."""
        study, tasks = self.study, self.rungs[rung]
        settings = study.settings(self.trials[number].values)
        until = tasks if tasks < number_of_tasks(settings.tasks) else None
        return make_jobs(settings, study.seeds, study.out, until_task=until, data=study.data, index=self.index)


def _held_out_accuracy(job: Job) -> float:
    """The mean over the tasks so far, as of the last one; 0 for a run that has diverged."""
    result = read_result(job.folder) if job.result.exists() else {}
    rows = result.get("validation", {}).get("class_il")
    if "failure" in result:
        return 0.0
    if not rows or (job.until_task and len(rows) < job.until_task) or not (job.until_task or result["complete"]):
        raise UsageError(f"{job.folder} is not that far yet: another process is training it; try again later")
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
    own = {IMPORT: [os.path.abspath(each) if is_file(each) else each for each in study.imports] or None}
    lines = [*_toml(own | values), "", "[tuned]", *_toml(tuned)]
    return "\n".join(lines) + "\n"


def _toml(values: dict[str, Any]) -> list[str]:
    return [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in values.items() if value is not None]
