"""Analyses of trained networks, for figures of the paper: their runs, a probe into each network, and its findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from torch import Tensor

from cler import stats
from cler.config.labels import label_of
from cler.config.making import make_settings
from cler.config.settings import Settings
from cler.config.values import number_of_tasks
from cler.engine import Run
from cler.errors import UsageError
from cler.files import read_json
from cler.methods import METHODS
from cler.paper.tables import find_table
from cler.report.numbers import SIGNIFICANT
from cler.runs.jobs import Job, make_jobs
from cler.runs.results import read_result
from cler.runs.series import gain

CHUNK = 250
"""Images in one forward pass, where the result does not depend on it."""


class Findings(NamedTuple):
    """The accuracies of one run, and what the probe found in its network."""

    accuracy: dict[str, list[list[float]]]
    """Both accuracy matrices, as in the run's result."""
    found: dict[int, dict[str, Any]]
    """What the probe found after a task, by the number of the task from 0."""


Curve = Callable[[Findings], Sequence[float]]
"""A function from the findings of one run to the values of a curve."""


@dataclass(frozen=True)
class Panel:
    """A panel of a figure, with a curve for each subject."""

    title: str
    across: str
    up: str
    curve: Curve
    first: int = 1
    """Where the curve's first value stands on the horizontal axis."""


@dataclass(frozen=True)
class Measure:
    """A number for each run, such as the mean of a curve."""

    name: str
    value: Callable[[Findings], float]
    digits: int = 3
    paper: Mapping[str, str] = field(default_factory=dict)
    """What the paper says, by regularizer: 'higher' or 'lower' than without it."""
    statement: str = ""
    """The paper's statement that it is one definition of: 'new tasks are learned better'."""
    definition: str = ""
    """What distinguishes it from other definitions of the statement: 'class-incremental'."""


@dataclass(frozen=True)
class Analysis:
    """An analysis of trained networks that a figure of the paper shows."""

    name: str
    title: str
    method: str
    regularizers: tuple[str, ...]
    """The regularizers that are compared; the others are tested against the first."""
    probe: Callable[[Run, int], dict[str, Any] | None]
    panels: tuple[Panel, ...]
    measures: tuple[Measure, ...]
    note: str
    """What a reader of the measures has to know."""

    def found_in(self, subjects: Sequence[Subject]) -> Analysis:
        """The analysis with the measures that all runs have: older ones lack some."""

        def known(measure: Measure) -> bool:
            try:
                for subject in subjects:
                    subject.values(measure)
            except KeyError:
                return False
            return True

        return replace(self, measures=tuple(filter(known, self.measures)))


@dataclass(frozen=True)
class Subject:
    """A method with one regularizer and one buffer size, and the findings of its runs by seed."""

    settings: Settings
    runs: dict[int, Findings]

    @property
    def label(self) -> str:
        """Method and regularizer for a reader: 'ER-ACE + CLER (jigsaw)'."""
        return label_of(self.settings.method, self.settings.regularizer)

    def values(self, measure: Measure) -> list[float]:
        """The value of a measure for each run."""
        return [measure.value(findings) for findings in self.runs.values()]


def analysis_jobs(
    analysis: Analysis, dataset: str, buffers: Sequence[int], seeds: Sequence[int], out: Path, **changes: Any
) -> list[Job]:
    """The runs of an analysis, in `out/NAME`; without `buffers`, with the buffer sizes of the paper's table 1.

    The settings are the paper's, except for the `changes`.
    """
    sizes: Sequence[int | None] = [None]
    if METHODS[analysis.method].replays:
        cells = [
            cell for cell in find_table("table1").cells if cell.dataset == dataset and cell.method == analysis.method
        ]
        sizes = buffers or sorted({cell.buffer for cell in cells}) or sizes
    elif buffers:
        raise UsageError(
            f"has no effect: {METHODS[analysis.method].about.title}, the method of {analysis.name}, has no buffer; "
            "leave it out",
            "buffer",
        )
    jobs = []
    for buffer in sizes:
        for regularizer in analysis.regularizers:
            settings = make_settings(
                method=analysis.method, regularizer=regularizer, dataset=dataset, buffer=buffer, **changes
            )
            jobs += [replace(job, probe=analysis.probe) for job in make_jobs(settings, seeds, out / analysis.name)]
    return jobs


def read_subjects(jobs: Sequence[Job]) -> list[Subject]:
    """The findings of finished runs; others, and those that failed, are left out, but each subject needs one."""
    subjects: dict[str, Subject] = {}
    for job in jobs:
        subject = subjects.setdefault(str(job.settings), Subject(job.settings, {}))
        if job.result.exists() and (result := read_result(job.result))["complete"]:
            subject.runs[job.seed] = _findings(job, result["accuracy"])
    for subject in subjects.values():
        if not subject.runs:
            raise UsageError(
                f"there is no finished run of {subject.label} to compare: all failed, or another process is doing them"
            )
    return list(subjects.values())


def _findings(job: Job, accuracy: dict[str, list[list[float]]]) -> Findings:
    there = [task for task in range(number_of_tasks(job.settings.tasks)) if job.finding(task).exists()]
    if not there:
        raise UsageError(f"{job.folder} was trained without this analysis: delete it, or choose another folder")
    return Findings(accuracy, {task: read_json(job.finding(task)) for task in there})


def of_each_buffer(subjects: Sequence[Subject]) -> list[list[Subject]]:
    """The subjects in lists of equal buffer size, within which they are compared."""
    sizes = dict.fromkeys(subject.settings.buffer for subject in subjects)
    return [[subject for subject in subjects if subject.settings.buffer == size] for size in sizes]


class Difference(NamedTuple):
    """How a regularizer changes a measure, and what the paper says about it."""

    points: float
    p_value: float
    """p-value of Student's t-test; NaN with fewer than two runs on either side."""
    paper: str | None
    """'higher' or 'lower'; None where the paper says nothing."""

    @property
    def seen(self) -> str:
        """'higher' or 'lower' where the difference is significant."""
        if not self.p_value < SIGNIFICANT:
            return "no significant difference"
        return "higher" if self.points > 0 else "lower"


@dataclass(frozen=True)
class Tested:
    """A statement of the paper about a learner by one definition: what was seen, and how sure that is."""

    subject: Subject
    measure: Measure
    difference: Difference
    holm: float
    """p-value after Holm's correction for all tests of the analysis."""

    @property
    def verdict(self) -> str:
        """'holds', 'contradicted', or 'undecided' where there is no significant difference."""
        if self.difference.seen not in ("higher", "lower"):
            return "undecided"
        return "holds" if self.difference.seen == self.difference.paper else "contradicted"


def tested(analysis: Analysis, subjects: Sequence[Subject]) -> list[Tested]:
    """Every statement of the paper about the figure, by every definition, for each learner that it is about."""
    found = [
        (subject, measure, difference(measure, subject, alone))
        for alone, *others in of_each_buffer(subjects)
        for subject in others
        for measure in analysis.measures
        if subject.settings.regularizer in measure.paper
    ]
    corrected = stats.holm([each.p_value for _, _, each in found])
    return [Tested(*each, p_value) for each, p_value in zip(found, corrected, strict=True)]


def difference(measure: Measure, subject: Subject, alone: Subject) -> Difference:
    """The difference in a measure between a subject and the one without a regularizer."""
    found = gain(alone.values(measure), subject.values(measure))
    return Difference(found.points, found.p_value, measure.paper.get(subject.settings.regularizer))


def mean_of(curve: Curve) -> Callable[[Findings], float]:
    """The measure that is the mean of a curve."""
    return lambda findings: fmean(curve(findings))


def training_images(run: Run, task: int) -> Iterator[tuple[Tensor, Tensor]]:
    """All training images of a task, not augmented, with their labels."""
    images = run.stream.train(task)
    for some, their_labels in zip(images.chunks(CHUNK), images.labels.split(CHUNK), strict=True):
        yield run.views.plain(some), their_labels
