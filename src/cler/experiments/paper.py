"""Our runs beside what the paper prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cler import stats
from cler.experiments.compare import Group
from cler.experiments.results import SETTINGS
from cler.experiments.settings import paper_settings
from cler.metrics import joint_paper_style

PAPER_RUNS = 10


@dataclass(frozen=True)
class BesidePaper:
    """One number of ours and the paper's."""

    ours: float
    ours_std: float
    paper: float
    paper_std: float | None
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


def beside_paper(group: Group) -> dict[str, BesidePaper]:
    """Final average accuracy of a group beside the paper's, for each setting that the paper prints."""
    cell = next((cell for cell in paper_settings()["printed"] if _is_about(cell, group)), None)
    return {} if cell is None else {name: _compared(cell[name], group, name) for name in SETTINGS if name in cell}


def _is_about(cell: dict[str, Any], group: Group) -> bool:
    expected = {"epochs": 1, "buffer": 0, **{name: value for name, value in cell.items() if name not in SETTINGS}}
    return all(group.settings.get(name) == value for name, value in expected.items())


def _compared(cell: dict[str, Any], group: Group, name: str) -> BesidePaper:
    values = [run.metrics["faa"][name] for run in group.runs]
    if "slip" in cell:  # compare with what the authors' evaluation would have given for our runs
        finals = [(run.accuracy["class_il"][-1], run.accuracy["task_il"][-1]) for run in group.runs]
        values = [joint_paper_style(class_il, task_il)[SETTINGS.index(name)] for class_il, task_il in finals]
    ours, ours_std = stats.mean_std(values)
    paper, paper_std = (*cell["accuracy"], None)[:2]
    p_value = None
    if paper_std is not None:
        p_value = stats.welch_from_summary(ours, ours_std, len(values), paper, paper_std, PAPER_RUNS).p_value
    return BesidePaper(ours, ours_std, paper, paper_std, p_value)
