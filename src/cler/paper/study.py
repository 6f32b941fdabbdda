"""What a figure that looks into networks is made of: runs, a probe that looks into them, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from torch import Tensor

from cler.config.settings import Settings, label_of, make_settings, number_of_tasks
from cler.engine import Run
from cler.errors import UsageError
from cler.files import read_json
from cler.methods import METHODS
from cler.paper.tables import find_table
from cler.runs.compare import gain
from cler.runs.jobs import Job, make_jobs
from cler.runs.results import read_result

CHUNK = 250
"""Images in one pass where the result does not depend on it."""


class Findings(NamedTuple):
    """What one run has left."""

    accuracy: dict[str, list[list[float]]]
    """Both accuracy matrices, as in its result."""
    found: dict[int, dict[str, Any]]
    """What the probe found after a task, by its number from 0."""


Curve = Callable[[Findings], Sequence[float]]
"""Of one run; that of several is their mean."""


@dataclass(frozen=True)
class Panel:
    """A part of the figure: a curve for each of those compared."""

    title: str
    across: str
    up: str
    curve: Curve
    first: int = 1
    """Where its first value stands."""


@dataclass(frozen=True)
class Measure:
    """The figure in a number for each run."""

    name: str
    value: Callable[[Findings], float]
    digits: int = 3
    paper: Mapping[str, str] = field(default_factory=dict)
    """What the paper says of it with a regularizer: 'higher' or 'lower' than without."""


@dataclass(frozen=True)
class Study:
    """A figure of the paper that looks into networks."""

    name: str
    title: str
    method: str
    regularizers: tuple[str, ...]
    """The first is what the others are compared with."""
    probe: Callable[[Run, int], dict[str, Any] | None]
    panels: tuple[Panel, ...]
    measures: tuple[Measure, ...]
    note: str
    """What a reader of its measures has to know."""


@dataclass(frozen=True)
class Subject:
    """A method with one regularizer and one size of memory, and what its runs have left, by seed."""

    settings: Settings
    runs: dict[int, Findings]

    @property
    def label(self) -> str:
        """As a reader knows it."""
        return label_of(self.settings.method, self.settings.regularizer)

    def values(self, measure: Measure) -> list[float]:
        """One for each run."""
        return [measure.value(findings) for findings in self.runs.values()]


def study_jobs(
    study: Study, dataset: str, buffers: Sequence[int], seeds: Sequence[int], out: Path, **changes: Any
) -> list[Job]:
    """The runs of a study, in `out/STUDY`; without `buffers`, with those of the paper's table 1.

    The settings are the paper's but for the `changes`.
    """
    sizes: Sequence[int | None] = [None]
    if METHODS[study.method].replays:
        cells = [cell for cell in find_table("table1").cells if cell.dataset == dataset and cell.method == study.method]
        sizes = buffers or sorted({cell.buffer for cell in cells}) or sizes
    elif buffers:
        raise UsageError(
            f"{study.name} is about {METHODS[study.method].about.title}, which has no buffer: leave out --buffer"
        )
    jobs = []
    for buffer in sizes:
        for regularizer in study.regularizers:
            settings = make_settings(
                method=study.method, regularizer=regularizer, dataset=dataset, buffer=buffer, **changes
            )
            jobs += [replace(job, probe=study.probe) for job in make_jobs(settings, seeds, out / study.name)]
    return jobs


def read_subjects(jobs: Sequence[Job]) -> list[Subject]:
    """What finished runs have left; those that failed are left out, but of each subject one has to be there."""
    subjects: dict[str, Subject] = {}
    for job in jobs:
        subject = subjects.setdefault(str(job.settings), Subject(job.settings, {}))
        result = read_result(job.folder)
        if result["complete"]:
            subject.runs[job.seed] = _findings(job, result["accuracy"])
    for subject in subjects.values():
        if not subject.runs:
            raise UsageError(f"all runs of {subject.label} have failed: there is nothing to compare")
    return list(subjects.values())


def _findings(job: Job, accuracy: dict[str, list[list[float]]]) -> Findings:
    there = [task for task in range(number_of_tasks(job.settings.tasks)) if job.finding(task).exists()]
    if not there:
        raise UsageError(f"{job.folder} was trained without a look into it: delete it, or choose another --out")
    return Findings(accuracy, {task: read_json(job.finding(task)) for task in there})


def by_buffer(subjects: Sequence[Subject]) -> list[list[Subject]]:
    """Those that are compared with each other: with the same size of memory."""
    sizes = dict.fromkeys(subject.settings.buffer for subject in subjects)
    return [[subject for subject in subjects if subject.settings.buffer == size] for size in sizes]


class Difference(NamedTuple):
    """What a regularizer does to a measure, and whether the paper says so."""

    points: float
    p_value: float
    """Of Student's test; NaN with fewer than two runs on a side."""
    paper: str | None
    """'higher' or 'lower'; None where the paper says nothing."""

    @property
    def seen(self) -> str:
        """'higher' or 'lower' where chance is unlikely."""
        if not self.p_value < 0.05:
            return "not told apart"
        return "higher" if self.points > 0 else "lower"


def difference(measure: Measure, subject: Subject, alone: Subject) -> Difference:
    """Between a subject and that which it is compared with."""
    found = gain(alone.values(measure), subject.values(measure))
    return Difference(found.points, found.p_value, measure.paper.get(subject.settings.regularizer))


def mean_of(curve: Curve) -> Callable[[Findings], float]:
    """A curve in one number."""
    return lambda findings: fmean(curve(findings))


def training_images(run: Run, task: int) -> Iterator[tuple[Tensor, Tensor]]:
    """All training images of a task, not augmented, with their labels."""
    pixels, labels = run.stream.train(task)
    for some, their_labels in zip(pixels.split(CHUNK), labels.split(CHUNK), strict=True):
        yield run.views.plain(some), their_labels
