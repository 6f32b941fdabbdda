"""The numbers in the paper's tables, from `paper.toml`, and one number of ours beside one of the paper's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any

from cler import stats
from cler.config.comparing import of_a_row
from cler.config.labels import label_of
from cler.config.making import make_settings
from cler.config.registry import DATASETS
from cler.config.settings import PRECISIONS, Settings
from cler.errors import unknown
from cler.methods import METHODS
from cler.metrics import SCENARIOS
from cler.paper.settings import paper_file
from cler.runs.series import Series

PAPER_RUNS, FEWER_RUNS = 10, 3
"""Runs behind each of the paper's numbers, and perhaps behind some of its side tables."""
PRETEXTS = ("rotation", "jigsaw")
"""CLER's two pretext tasks."""
REGULARIZER_ORDER = ("none", "barlow-twins", *PRETEXTS)
WHOLE = "all"
"""The name that all tables together go by."""
_IN_EVERY_CELL = ("method", "regularizer", "dataset", "buffer", "epochs")
"""Settings that every cell of a table gives."""


@dataclass(frozen=True, kw_only=True)
class Printed:
    """The numbers that the paper prints for one cell in one scenario; None where it prints none."""

    mean: float
    """Final average accuracy in percent."""
    std: float | None = None
    adjusted_forgetting: float | None = None
    """Adjusted forgetting in percent."""
    p: float | None = None
    """p-value of the gain over the method without the regularizer."""
    doubtful: bool = False
    """Whether it is uncertain that ten runs are behind it: some deviations of the side tables suggest three."""
    slip: bool = False
    """Whether the authors tested the first task on the images of all tasks, which lowers the number."""


@dataclass(frozen=True, kw_only=True)
class PaperCell:
    """One cell of a table in the paper: the settings of its runs, and the numbers that the paper prints for them."""

    method: str
    regularizer: str
    dataset: str
    buffer: int = 0
    epochs: int = 1
    changes: tuple[tuple[str, float], ...] = ()
    """Settings that differ from those of the paper's first tables."""
    seeds: int = PAPER_RUNS
    """How many runs of it we want."""
    chosen: str = ""
    """Which of its settings we chose by the accuracy that is reported."""
    class_il: Printed | None = None
    task_il: Printed | None = None

    @property
    def place(self) -> tuple[Any, ...]:
        """What the cell has in common with the one of the method alone."""
        return self.dataset, self.buffer, self.epochs, self.method

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for cells of the same runs, in whatever table."""
        return *self.place, self.regularizer, self.changes

    @property
    def label(self) -> str:
        """The method for a reader: 'ER-ACE + CLER (jigsaw), 5 epochs'."""
        label = label_of(self.method, self.regularizer)
        return label if self.epochs == 1 else f"{label}, {self.epochs} epochs"

    @property
    def where(self) -> str:
        """The column of the table that the cell stands in: 'cifar100, buffer 500'."""
        return f"{self.dataset}, buffer {self.buffer}" if self.buffer else self.dataset

    @property
    def available(self) -> bool:
        """Whether this version has the method and the dataset."""
        return self.method in METHODS and self.dataset in DATASETS

    @property
    def equivariant(self) -> bool:
        """Whether the regularizer is CLER, with either pretext task."""
        return self.regularizer in PRETEXTS

    def printed(self, scenario: str) -> Printed | None:
        """The paper's numbers for 'class_il' or 'task_il'."""
        return self.class_il if scenario == "class_il" else self.task_il

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON that say which cell it is."""
        return {name: getattr(self, name) for name in ("label", *_IN_EVERY_CELL)}

    def settings(self, precision: str = Settings.precision) -> Settings:
        """The settings of the cell's runs."""
        return make_settings(
            method=self.method,
            regularizer=self.regularizer,
            dataset=self.dataset,
            buffer=self.buffer,
            epochs=self.epochs,
            precision=precision,
            **dict(self.changes),
        )

    def made(self, group: Series) -> bool:
        """Whether runs have the cell's settings, in whatever precision."""
        if any(group.settings[name] != getattr(self, name) for name in _IN_EVERY_CELL):  # quickly, as most have not
            return False
        if not self.available or group.settings.get("precision") not in PRECISIONS:
            return False
        return self._wanted == _distinguishing(group.settings)

    @cached_property
    def _wanted(self) -> dict[str, Any]:
        return _distinguishing(self.settings().to_dict())


def _distinguishing(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that distinguish one cell from another."""
    return {name: value for name, value in of_a_row(settings).items() if name != "precision"}


@dataclass(frozen=True)
class Contradiction:
    """Two places in the paper that give different numbers for the same thing."""

    about: str
    says: list[float]
    here: str
    but: list[float]
    there: str
    tables: list[str]
    """Names of the tables that it concerns."""

    @property
    def sentence(self) -> str:
        """The contradiction in one sentence."""
        says, but = (" and ".join(map(_number, numbers)) for numbers in (self.says, self.but))
        return f"The paper contradicts itself about {self.about}: {says} in {self.here}, {but} in {self.there}."


def _number(number: float) -> str:
    """A number as the paper prints it: to two decimals, and p-values in full."""
    return f"{number:.2f}" if number > 0.01 else f"{number:.7f}".rstrip("0")


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper, or one of its figures as a table."""

    name: str
    title: str
    cells: tuple[PaperCell, ...]
    pretext: str = "paper"
    """'both' where the paper shows both pretext tasks, 'paper' where it shows only the better one."""

    @property
    def scenarios(self) -> tuple[str, ...]:
        """The scenarios of the table: class_il, task_il or both; both where the paper prints no number."""
        printed = tuple(name for name in SCENARIOS if any(cell.printed(name) for cell in self.cells))
        return printed or SCENARIOS

    @property
    def contradictions(self) -> list[Contradiction]:
        """The paper's contradictions that concern this table."""
        return [one for one in contradictions() if self.name in one.tables]

    def baseline(self, cell: PaperCell) -> PaperCell | None:
        """The cell of the same method without a regularizer; None for that cell itself."""
        alone = (one for one in self.cells if one.place == cell.place and one.regularizer == "none")
        return None if cell.regularizer == "none" else next(alone, None)

    def with_both_pretexts(self) -> PaperTable:
        """The table with the other pretext task beside each CLER cell, for which the paper prints no number."""
        cells = {cell.key: cell for cell in self.cells}
        for cell in self.cells:
            if cell.equivariant:
                (other,) = set(PRETEXTS) - {cell.regularizer}
                seeds = min(cell.seeds, paper_file()["other_pretext_seeds"])
                unprinted = replace(cell, regularizer=other, seeds=seeds, class_il=None, task_il=None)
                cells.setdefault(unprinted.key, unprinted)
        return replace(self, cells=_sorted(list(cells.values())))


def table_names() -> tuple[str, ...]:
    """The names of the paper's tables."""
    return tuple(paper_file()["tables"])


def find_table(name: str) -> PaperTable:
    """A table of the paper by its name: 'table1', 'cssl', ..., or 'all' of them as one."""
    if name == WHOLE:
        cells = (cell for each in table_names() for cell in table_with_pretexts(each).cells)
        return PaperTable(WHOLE, "All tables", _sorted(_one_each(cells)))
    about = paper_file()["tables"].get(name)
    if about is None:
        raise unknown("table", name, [*table_names(), WHOLE])
    return PaperTable(name, about["title"], _sorted(_cells(about)), about.get("pretext", "paper"))


def table_with_pretexts(name: str, pretext: str | None = None) -> PaperTable:
    """A table by its name, with 'both' pretext tasks or that of the 'paper'; None is as the paper shows it."""
    if pretext not in (None, "paper", "both"):
        raise unknown("pretext", pretext, ("paper", "both"))
    table = find_table(name)
    return table.with_both_pretexts() if (pretext or table.pretext) == "both" else table


def contradictions() -> list[Contradiction]:
    """All contradictions in the paper's numbers."""
    return [Contradiction(**one) for one in paper_file()["contradictions"]]


def _cells(about: dict[str, Any]) -> list[PaperCell]:
    """The table's own cells, then those that it takes from other tables; a cell that is in both is merged into one."""
    merged: dict[tuple[Any, ...], PaperCell] = {}
    for cell in [*_own(about), *_taken(about)]:
        key = *cell.place, cell.regularizer
        before = merged.get(key, cell)
        merged[key] = replace(before, class_il=before.class_il or cell.class_il, task_il=before.task_il or cell.task_il)
    return list(merged.values())


def _one_each(cells: Iterable[PaperCell]) -> list[PaperCell]:
    """One cell for the same runs: the first of them, with as many runs as any of them wants."""
    found: dict[tuple[Any, ...], PaperCell] = {}
    for cell in cells:
        first = found.setdefault(cell.key, cell)
        found[cell.key] = replace(first, seeds=max(first.seeds, cell.seeds))
    return list(found.values())


def _own(about: dict[str, Any]) -> Iterator[PaperCell]:
    for column in about.get("columns", ()):
        known = {name: value for name, value in column["runs"].items() if name in ("dataset", "buffer", "epochs")}
        changes = tuple((name, value) for name, value in column["runs"].items() if name not in known)
        known |= {"changes": changes} | {name: column[name] for name in ("seeds", "chosen") if name in column}
        for pair in column.get("unprinted", ()):
            yield PaperCell(**_named(pair), **known)
        for scenario in SCENARIOS:
            for pair, numbers in column.get(scenario, {}).items():
                printed = Printed(**numbers, doubtful=about.get("doubtful_runs", False))
                own: dict[str, Any] = known | {scenario: printed}
                yield PaperCell(**_named(pair), **own)


def _named(pair: str) -> dict[str, Any]:
    method, _, regularizer = pair.partition("+")
    return {"method": method, "regularizer": regularizer or "none"}


def _taken(about: dict[str, Any]) -> Iterator[PaperCell]:
    for name in about.get("takes", ()):
        for cell in find_table(name).cells:
            if cell.method in about["methods"] and cell.dataset in about.get("datasets", [cell.dataset]):
                yield replace(cell, task_il=cell.task_il if about.get("task_il", True) else None)


def _sorted(cells: Sequence[PaperCell]) -> tuple[PaperCell, ...]:
    """The cells by column, and in each by method as in the paper, without a regularizer first."""
    datasets, methods = ([*dict.fromkeys(getattr(cell, name) for cell in cells)] for name in ("dataset", "method"))

    def key(cell: PaperCell) -> tuple[int, ...]:
        column = datasets.index(cell.dataset), cell.buffer, cell.epochs
        return *column, methods.index(cell.method), REGULARIZER_ORDER.index(cell.regularizer)

    return tuple(sorted(cells, key=key))


@dataclass(frozen=True)
class BesidePaper:
    """Our accuracy and the paper's for one cell and scenario."""

    ours: float
    ours_std: float
    paper: float
    p_value: float | None
    """p-value of Welch's test on the two means and deviations; None where the paper gives no deviation."""
    p_value_of_three: float | None = None
    """That p-value if the paper's number is of three runs; None where that is not in doubt."""

    @property
    def difference(self) -> float:
        """Our accuracy minus the paper's, in points."""
        return self.ours - self.paper

    @property
    def agrees(self) -> bool:
        """Whether they are within one point, or the difference is not significant at 1 %."""
        p_values = [each for each in (self.p_value, self.p_value_of_three) if each is not None]
        return abs(self.difference) <= 1 or any(each >= 0.01 for each in p_values)


def evaluated_as(printed: Printed, group: Series, scenario: str) -> list[float]:
    """The final average accuracies of runs, evaluated as those that the paper prints."""
    if not printed.slip:
        return group.accuracies(scenario)
    finals = [(run.accuracy["class_il"][-1], run.accuracy["task_il"][-1]) for run in group.results]
    return [joint_paper_style(class_il, task_il)[SCENARIOS.index(scenario)] for class_il, task_il in finals]


def compared(group: Series, scenario: str, printed: Printed) -> BesidePaper:
    """The final average accuracy of runs beside a printed one."""
    values = evaluated_as(printed, group, scenario)
    ours, ours_std = stats.mean_std(values)
    if printed.std is None:
        return BesidePaper(ours, ours_std, printed.mean, None)

    def p_value(runs: int) -> float:
        assert printed.std is not None
        return stats.welch_from_summary(ours, ours_std, len(values), printed.mean, printed.std, runs).p_value

    fewer = p_value(FEWER_RUNS) if printed.doubtful else None
    return BesidePaper(ours, ours_std, printed.mean, p_value(PAPER_RUNS), fewer)


def joint_paper_style(class_il: Sequence[float], task_il: Sequence[float]) -> tuple[float, float]:
    """Joint's accuracies (class-, task-incremental) as the authors evaluate them, given those on each task.

    Their test loader of the first task holds the whole test set; the others hold one task each. Task-incrementally,
    only images of the first task can be right in that first loader. All tasks have as many test images.
    """
    whole_class_il, whole_task_il = fmean(class_il), task_il[0] / len(task_il)
    return fmean([whole_class_il, *class_il[1:]]), fmean([whole_task_il, *task_il[1:]])
