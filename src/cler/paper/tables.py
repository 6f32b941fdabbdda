"""What the paper prints, table by table, and our runs beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from cler import stats
from cler.config.registry import DATASETS
from cler.config.settings import PRECISIONS, Settings, label_of, make_settings, of_a_row
from cler.errors import unknown
from cler.methods import METHODS
from cler.metrics import joint_paper_style
from cler.paper.settings import paper_file
from cler.runs.compare import Group
from cler.runs.results import SCENARIOS

PAPER_RUNS = 10
PRETEXTS = ("rotation", "jigsaw")
REGULARIZER_ORDER = ("none", "barlow-twins", *PRETEXTS)


@dataclass(frozen=True, kw_only=True)
class Printed:
    """What the paper prints of one cell; None where it is silent."""

    mean: float
    """Final average accuracy in percent."""
    std: float | None = None
    forgetting: float | None = None
    """Adjusted forgetting in percent."""
    p: float | None = None
    """p-value of the gain over the baseline."""
    slip: bool = False
    """Whether the authors' test loader of the first task held all tasks, which lowers the number."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One entry of a table: the settings that make it, and what the paper prints for them."""

    method: str
    regularizer: str
    dataset: str
    buffer: int = 0
    epochs: int = 1
    changes: tuple[tuple[str, float], ...] = ()
    """Settings that are not those of the paper's first tables."""
    class_il: Printed | None = None
    task_il: Printed | None = None

    @property
    def place(self) -> tuple[Any, ...]:
        """What it has in common with its baseline."""
        return self.dataset, self.buffer, self.epochs, self.method

    @property
    def label(self) -> str:
        """As a reader knows it: 'ER-ACE + CLER (jigsaw), 5 epochs'."""
        label = label_of(self.method, self.regularizer)
        return label if self.epochs == 1 else f"{label}, {self.epochs} epochs"

    @property
    def where(self) -> str:
        """The column it stands in: 'cifar100, memory of 500'."""
        return f"{self.dataset}, memory of {self.buffer}" if self.buffer else self.dataset

    @property
    def available(self) -> bool:
        """Whether this version has the method and the image set."""
        return self.method in METHODS and self.dataset in DATASETS

    @property
    def equivariant(self) -> bool:
        """Whether it is CLER, with either pretext task."""
        return self.regularizer in PRETEXTS

    def printed(self, scenario: str) -> Printed | None:
        """What the paper prints for 'class_il' or 'task_il'."""
        return self.class_il if scenario == "class_il" else self.task_il

    def to_json(self) -> dict[str, Any]:
        """Plain values for programs: which cell it is."""
        names = ("label", "method", "regularizer", "dataset", "buffer", "epochs")
        return {name: getattr(self, name) for name in names}

    def settings(self, precision: str = Settings.precision) -> Settings:
        """The settings of its runs."""
        return make_settings(
            method=self.method,
            regularizer=self.regularizer,
            dataset=self.dataset,
            buffer=self.buffer,
            epochs=self.epochs,
            precision=precision,
            **dict(self.changes),
        )

    def made(self, group: Group) -> bool:
        """Whether the group's runs have its settings, in whatever precision."""
        if not self.available or group.settings.get("precision") not in PRECISIONS:
            return False
        return self._wanted == _telling(group.settings)

    @cached_property
    def _wanted(self) -> dict[str, Any]:
        return _telling(self.settings().to_dict())


def _telling(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that tell one cell from another."""
    return {name: value for name, value in of_a_row(settings).items() if name != "precision"}


@dataclass(frozen=True)
class Contradiction:
    """Where the paper says two things about one."""

    about: str
    says: list[float]
    here: str
    but: list[float]
    there: str
    tables: list[str]
    """Those that it concerns."""

    @property
    def sentence(self) -> str:
        """In one line."""
        says, but = (" and ".join(map(_number, numbers)) for numbers in (self.says, self.but))
        return f"The paper contradicts itself about {self.about}: {says} in {self.here}, {but} in {self.there}."


def _number(number: float) -> str:
    """As the paper prints it: two decimals, and p-values in full."""
    return f"{number:.2f}" if number > 0.01 else f"{number:.7f}".rstrip("0")


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper, or what one of its figures draws."""

    name: str
    title: str
    cells: tuple[Cell, ...]
    pretext: str = "paper"
    """'both' where the paper shows either pretext task, 'paper' where only the better one."""

    @property
    def scenarios(self) -> tuple[str, ...]:
        """What it is about: class_il, task_il or both."""
        return tuple(name for name in SCENARIOS if any(cell.printed(name) for cell in self.cells))

    @property
    def contradictions(self) -> list[Contradiction]:
        """Where the paper contradicts itself about it."""
        return [one for one in contradictions() if self.name in one.tables]

    def baseline(self, cell: Cell) -> Cell | None:
        """The cell of the method alone; None for itself."""
        alone = (one for one in self.cells if one.place == cell.place and one.regularizer == "none")
        return None if cell.regularizer == "none" else next(alone, None)

    def with_both_pretexts(self) -> PaperTable:
        """The same with the other pretext task beside each CLER cell, of which the paper prints no number."""
        cells = list(self.cells)
        for cell in self.cells:
            if cell.equivariant:
                (other,) = set(PRETEXTS) - {cell.regularizer}
                cells.append(replace(cell, regularizer=other, class_il=None, task_il=None))
        return replace(self, cells=_sorted(cells))


def table_names() -> tuple[str, ...]:
    """The tables that can be asked for."""
    return tuple(paper_file()["tables"])


def find_table(name: str) -> PaperTable:
    """A table of the paper by its name: 'table1', 'cssl', ..."""
    about = paper_file()["tables"].get(name)
    if about is None:
        raise unknown("table", name, table_names())
    return PaperTable(name, about["title"], _sorted(_cells(about)), about.get("pretext", "paper"))


def contradictions() -> list[Contradiction]:
    """Where the paper contradicts itself."""
    return [Contradiction(**one) for one in paper_file()["contradictions"]]


def _cells(about: dict[str, Any]) -> list[Cell]:
    """The cells of a table's own, then those that it takes from others; what is printed twice about a cell is one."""
    merged: dict[tuple[Any, ...], Cell] = {}
    for cell in [*_own(about), *_taken(about)]:
        key = *cell.place, cell.regularizer
        before = merged.get(key, cell)
        merged[key] = replace(before, class_il=before.class_il or cell.class_il, task_il=before.task_il or cell.task_il)
    return list(merged.values())


def _own(about: dict[str, Any]) -> Iterator[Cell]:
    for column in about.get("columns", ()):
        known = {name: value for name, value in column["runs"].items() if name in ("dataset", "buffer", "epochs")}
        changes = tuple((name, value) for name, value in column["runs"].items() if name not in known)
        for scenario in SCENARIOS:
            for pair, numbers in column.get(scenario, {}).items():
                method, _, regularizer = pair.partition("+")
                own: dict[str, Any] = known | {"changes": changes, scenario: Printed(**numbers)}
                yield Cell(method=method, regularizer=regularizer or "none", **own)


def _taken(about: dict[str, Any]) -> Iterator[Cell]:
    for name in about.get("takes", ()):
        for cell in find_table(name).cells:
            if cell.method in about["methods"] and cell.dataset in about.get("datasets", [cell.dataset]):
                yield replace(cell, task_il=cell.task_il if about.get("task_il", True) else None)


def _sorted(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """By column, and in each the methods as the paper has them, the baseline first."""
    datasets, methods = ([*dict.fromkeys(getattr(cell, name) for cell in cells)] for name in ("dataset", "method"))

    def key(cell: Cell) -> tuple[int, ...]:
        column = datasets.index(cell.dataset), cell.buffer, cell.epochs
        return *column, methods.index(cell.method), REGULARIZER_ORDER.index(cell.regularizer)

    return tuple(sorted(cells, key=key))


@dataclass(frozen=True)
class BesidePaper:
    """One number of ours and the paper's."""

    ours: float
    ours_std: float
    paper: float
    p_value: float | None
    """Of Welch's test from the two means and deviations, where the paper prints one."""

    @property
    def difference(self) -> float:
        """Ours over the paper's, in points."""
        return self.ours - self.paper

    @property
    def agrees(self) -> bool:
        """Within one point, or not told apart at 1 %."""
        return abs(self.difference) <= 1 or (self.p_value is not None and self.p_value >= 0.01)


def compared(group: Group, scenario: str, printed: Printed) -> BesidePaper:
    """A group's final average accuracy beside a printed one."""
    values = group.accuracies(scenario)
    if printed.slip:  # compare with what the authors' evaluation would have given for our runs
        finals = [(run.accuracy["class_il"][-1], run.accuracy["task_il"][-1]) for run in group.runs]
        values = [joint_paper_style(class_il, task_il)[SCENARIOS.index(scenario)] for class_il, task_il in finals]
    ours, ours_std = stats.mean_std(values)
    p_value = None
    if printed.std is not None:
        p_value = stats.welch_from_summary(ours, ours_std, len(values), printed.mean, printed.std, PAPER_RUNS).p_value
    return BesidePaper(ours, ours_std, printed.mean, p_value)
