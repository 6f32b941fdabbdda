import pytest

from cler.report.content import Published
from cler.report.sheets import Cell, Column, Row, Sheet, estimate
from cler.runs.results import SCENARIOS


@pytest.fixture(scope="session")
def published():
    """Gives what a source, 'the atlas', has published about runs on the dataset 'printed': 20 %, and gains of 4."""

    def make(comparison):
        groups = [group for group in comparison.groups if group.settings["dataset"] == "printed"]
        columns = Column("method", numeric=False), Column("ours", "accuracy"), Column("atlas", "accuracy")
        rows = tuple(
            Row(group, (Cell(group.label), estimate(group.final_accuracy["class_il"]), Cell("20.00 ± 1.00")), "printed")
            for group in groups
        )
        keys = [(group, name) for group in groups for name in SCENARIOS]
        return Published(
            source="the atlas",
            title="An Atlas",
            verdict="Its claim holds.",
            agreement="All accuracies agree.",
            reading="How to read it.",
            sheets=(Sheet("Table 1", columns, rows, "A note."),),
            gains={(group, name): 4.0 for group, name in keys if group.regularized},
            columns={key: {"atlas_accuracy": 20.0} for key in keys},
        )

    return make
