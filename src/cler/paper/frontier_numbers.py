"""What the paper prints for runs with its settings, as numbers of a frontier."""

from __future__ import annotations

from collections.abc import Sequence

from cler.frontier.published import Number, contest_of
from cler.paper.lines import lines
from cler.paper.tables import find_table
from cler.runs.series import Series

SOURCE = "paper"
"""The paper's name among the sources of a frontier."""


def in_the_paper(rows: Sequence[Series]) -> dict[Series, Number]:
    """Class-incremental accuracies of the paper's first table, by our runs."""
    return {
        line.ours: Number(line.ours.label, contest_of(line.ours), line.paper.mean, SOURCE, line.paper.std)
        for line in lines(find_table("table1"), rows)
        if line.ours and line.paper and line.scenario == "class_il"
    }
