import pytest

from cler.metrics import SCENARIOS
from cler.report.content import make_report
from cler.report.published import Glance, Mark, Published
from cler.report.sheets import Cell, Column, Row, Sheet, estimate


def _glance(anchor):
    """A table of two rows, of which one number agrees, one is off and one has not been run."""
    agrees = Mark("agrees", "+0.1", "20.1, 20 in the atlas", anchor)
    marks = (agrees, Mark("off", "−3.0", "17, 20 in the atlas", anchor)), (None, Mark("not run", "", "20 in the atlas"))
    columns = Column("", numeric=False), Column("50", "toy"), Column("500", "toy")
    return Glance("Table 1", columns, tuple(zip(("ER-ACE", "Joint"), marks, strict=True)))


@pytest.fixture(scope="session")
def published():
    """Gives what a source, 'the atlas', has published about runs on the dataset 'printed': 20 %, and gains of 4."""

    def make(comparison):
        groups = [group for group in comparison.groups if group.settings["dataset"] == "printed"]
        columns = Column("method", numeric=False), Column("ours", "accuracy"), Column("atlas", "accuracy")
        rows = tuple(
            Row(
                group,
                (Cell(group.label), estimate(group.final_accuracy["class_il"]), Cell("20.00 ± 1.00")),
                "printed",
                f"row-{number}",
            )
            for number, group in enumerate(groups)
        )
        keys = [(group, name) for group in groups for name in SCENARIOS]
        return Published(
            source="the atlas",
            title="An Atlas",
            counts={"agrees": 1, "off": 0, "not run": 2},
            verdict=("Its claim holds.",),
            agreement="All accuracies agree.",
            reading="How to read it.",
            glances=(_glance(rows[0].anchor if rows else ""),),
            sheets=(Sheet("Table 1", columns, rows, "A note.", "table1"),),
            gains={(group, name): 4.0 for group, name in keys if group.regularized},
            columns={key: {"atlas_accuracy": 20.0} for key in keys},
        )

    return make


@pytest.fixture(scope="session")
def report(runs, published):
    """Two datasets, one of them with published numbers beside it."""
    printed = {"dataset": "printed", "tasks": 10, "buffer": 500}
    pairs = [(runs.plain | printed, [19.0, 20.0, 21.0]), (runs.cler | printed, [24.0, 25.0, 26.5])]
    pairs += [(runs.finetune, [16.0, 16.5]), (runs.joint, [45.0, 46.0]), (runs.plain, [30.0, 31.0])]
    pairs += [(runs.cler, [33.0, 34.5]), (runs.cler | {"weight": 0.5}, [29.0, 28.5])]
    comparison = runs.compare(*pairs)
    preface = "What was done.\n\n| what | why |\n|---|---|\n| this | `that` |\n\n---\nAt last."
    return make_report(comparison, preface=preface, beside=published(comparison))
