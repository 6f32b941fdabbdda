"""Rows of runs that are comparable, in contests: each with its arithmetic and the numbers published for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from cler import stats
from cler.config.making import make_settings
from cler.config.protocols import PROTOCOLS
from cler.config.settings import Settings
from cler.config.values import is_own_network
from cler.frontier.arithmetic import Counts, shape_of
from cler.frontier.published import Contest, Number, contest_of, published, without_puzzle
from cler.methods import METHODS
from cler.runs.series import Estimate, Series

SAME = {
    "dataset": "cifar100", "stream": "class-incremental", "tasks": 10, "epochs": 1, "batch": 10, "validate": 0.0,
    "width": 64, "pretrained": False, "freeze": False, "classifier": "network",
}  # fmt: skip
"""What runs have to share to be compared with what is published, beside the class order of their protocol."""
AS_PUBLISHED = ("optimizer", "augment", "normalize")
"""Settings that a method has to have from its protocol to be called the published one."""
WITHOUT_AND_WITH_CLER = ("none", "jigsaw")
Beside = Callable[[Sequence[Series]], Mapping[Series, Number]]
PICKED_ON = range(5)
"""Seeds that decide which row of a contest is the best; others tell how good it is."""


@dataclass(frozen=True)
class Entry:
    """Runs in a contest."""

    row: Series
    contest: Contest
    arithmetic: float
    """For an image of the stream, in multiples of what ER takes with ten images of the buffer a step."""
    published: tuple[Number, ...]
    """What others print for it, the highest first."""

    @property
    def name(self) -> str:
        """Its parts, as the page and the figure name them."""
        return without_puzzle(self.row.label)

    @property
    def accuracy(self) -> Estimate:
        """Final average accuracy, class-incremental."""
        return self.row.final_accuracy["class_il"]

    def on(self, seeds: Iterable[int]) -> list[float]:
        """Final average accuracy of the runs that have these seeds."""
        wanted = set(seeds)
        return [run.metrics["accuracy"]["class_il"] for run in self.row.results if run.seed in wanted]

    @property
    def picked_by(self) -> Estimate | None:
        """Mean and deviation over the seeds that decide which row is the best; None where some are missing."""
        values = self.on(PICKED_ON)
        return Estimate(*stats.mean_std(values)) if len(values) == len(PICKED_ON) else None

    @property
    def fresh(self) -> list[float]:
        """Accuracy on the seeds that did not decide."""
        return self.on(set(self.row.seeds) - set(PICKED_ON))


@dataclass(frozen=True)
class Frontier:
    """Everything that there is to compare."""

    entries: tuple[Entry, ...]
    numbers: tuple[Number, ...]

    @property
    def contests(self) -> list[Contest]:
        """The contests that have runs, the short names of protocols first."""
        found = {entry.contest for entry in self.entries}
        return sorted(found, key=lambda contest: (len(contest.protocol), contest.protocol, contest.buffer))

    def of(self, contest: Contest) -> list[Entry]:
        """The runs in a contest, the most accurate first."""
        return sorted((one for one in self.entries if one.contest == contest), key=lambda one: -one.accuracy.mean)

    def not_run(self, contest: Contest) -> list[Number]:
        """What was published in a contest and has no runs of ours, the highest first."""
        ours = {number for entry in self.entries for number in entry.published}
        found = [number for number in self.numbers if number.contest == contest and number not in ours]
        return sorted(found, key=lambda number: -number.mean)

    def best_published(self, contest: Contest) -> Number | None:
        """The highest number that was published in a contest."""
        found = [number for number in self.numbers if number.contest == contest]
        return max(found, key=lambda number: number.mean, default=None)

    def best(self) -> list[Entry]:
        """The row of each contest that is best on the seeds that decide; none where no row has them all."""
        picked = []
        for contest in self.contests:
            means = [(entry.picked_by.mean, entry) for entry in self.of(contest) if entry.picked_by]
            picked += [max(means, key=lambda each: each[0])[1]] if means else []
        return picked

    def cheapest(self, contest: Contest) -> list[Entry]:
        """The runs in a contest that none beats with as little arithmetic, from cheap to dear."""
        front: list[Entry] = []
        for entry in sorted(self.of(contest), key=lambda one: (one.arithmetic, -one.accuracy.mean)):
            if not front or entry.accuracy.mean > front[-1].accuracy.mean:
                front.append(entry)
        return front


def make_frontier(groups: Sequence[Series], counts: Counts, beside: Beside) -> Frontier:
    """The rows of results that are comparable, in the precision that most runs have.

    `beside` gives numbers that were published for runs with exactly these settings; others are found by method.
    """
    rows = list(filter(_comparable, groups))
    runs: Counter[str] = Counter()
    for row in rows:
        runs[row.settings["precision"]] += len(row.results)
    rows = [row for row in rows if row.settings["precision"] == max(runs, key=lambda name: runs[name])]
    printed, numbers = beside(rows), published()
    if rows:
        counts.count(row.settings for row in rows)
    entries = []
    for row in rows:
        contest = contest_of(row)
        same = [one for one in numbers if one.contest == contest and one.label == row.label and _as_published(row)]
        found = [printed[row]] if row in printed else sorted(same, key=lambda number: -number.mean)
        entries.append(Entry(row, contest, counts.relative(row.settings), tuple(found)))
    return Frontier(tuple(entries), (*printed.values(), *numbers))


def _comparable(row: Series) -> bool:
    settings = row.settings
    same = all(settings.get(name) == value for name, value in SAME.items())
    ordered = settings["class_order"] == PROTOCOLS.get(_protocol(row), {}).get("class_order")
    network = settings["network"] == Settings.network or is_own_network(settings["network"])
    known = settings["method"] in METHODS and settings["regularizer"] in WITHOUT_AND_WITH_CLER
    return same and ordered and network and known and settings["buffer"] > 0


def _protocol(row: Series) -> str:
    """The name of the protocol whose batches the runs have; there may be none of this name."""
    return f"online-{contest_of(row).protocol}"


def _as_published(row: Series) -> bool:
    """Whether the method computes what it does by default, in the protocol that others publish it in."""
    parts = {name: row.settings[name] for name in ("method", "regularizer", "teacher")}
    usual = make_settings(**parts, protocol=_protocol(row), dataset=SAME["dataset"]).to_dict()
    alike = all(row.settings[name] == usual[name] for name in AS_PUBLISHED)
    return alike and shape_of(row.settings) == shape_of(usual)
