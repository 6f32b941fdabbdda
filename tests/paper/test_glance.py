"""The paper at a glance: a mark for each of its numbers."""

import pytest

from cler.config.making import make_settings
from cler.paper.report_section import beside_paper


def settings(pair, dataset="cifar100", **changes):
    """The paper's settings for a method, or method+regularizer."""
    method, _, regularizer = pair.partition("+")
    made = make_settings(method=method, regularizer=regularizer or "none", dataset=dataset, precision="bf16", **changes)
    return made.to_dict()


@pytest.fixture(scope="module")
def beside(runs):
    """ER-ACE as in the paper, and with both pretext tasks, of which ours has another better one, far above it."""
    pairs = (
        (settings("er-ace", buffer=500), [19.0, 20.0, 21.0]),
        (settings("er-ace+jigsaw", buffer=500), [23.0, 24.0, 25.0]),
        (settings("er-ace+rotation", buffer=500), [33.0, 34.0, 35.0]),
        (settings("joint", epochs=30), [70.0]),
        (settings("joint+jigsaw", epochs=30), [71.0]),
    )
    return beside_paper(runs.compare(*pairs).groups)


def marks(beside, title):
    """The marks of a table by the name of the row and the column."""
    (glance,) = [each for each in beside.glances if each.title.startswith(title)]
    columns = [f"{column.above} {column.heading}".strip() for column in glance.columns[1:]]
    found = {(name, column): mark for name, row in glance.rows for column, mark in zip(columns, row, strict=True)}
    return {place: mark for place, mark in found.items() if mark}


def test_every_number_of_a_table_has_its_mark(beside):
    found = marks(beside, "Table 1")
    assert len(found) == 38
    assert (found["ER-ACE", "cifar100 500"].state, found["ER-ACE", "cifar100 500"].text) == ("agrees", "−0.2")
    assert found["ER-ACE", "cifar100 500"].told == "ER-ACE: 20.00 ± 1.00 in 3 runs, 20.17 ± 1.31 in the paper"
    assert found["ER-ACE", "mini-imagenet 8000"].state == "not run"
    assert found["ER-ACE", "mini-imagenet 8000"].told == "ER-ACE: not run, 16.07 ± 1.29 in the paper"
    assert found["Joint, several epochs", "cifar100 –"].state == "agrees"
    assert found["Joint, several epochs", "mini-imagenet –"].state == "not run"


def test_the_better_pretext_task_stands_for_both(beside):
    mark = marks(beside, "Table 1")["ER-ACE + CLER", "cifar100 500"]
    assert (mark.state, mark.text) == ("off", "+9.5")
    assert "rotation" in mark.anchor


def test_a_gain_is_off_where_it_differs_or_is_not_significant(beside, runs):
    gains = marks(beside, "Significance")
    assert len(gains) == 16
    assert gains["ER-ACE + CLER", "cifar100 500"].state == "off"  # 14, instead of 4.36
    for finals, state in (([23.9, 24.0, 24.1], "agrees"), ([18.0, 24.0, 30.0], "off"), ([24.0], "not run")):
        pairs = (settings("er-ace", buffer=500), [20.0, 20.1, 19.9][: len(finals)])
        groups = runs.compare(pairs, (settings("er-ace+jigsaw", buffer=500), finals)).groups
        assert marks(beside_paper(groups), "Significance")["ER-ACE + CLER", "cifar100 500"].state == state


def test_marks_lead_to_rows_and_a_repeated_number_to_that_of_its_own_table(beside):
    rows = [row.anchor for sheet in beside.sheets for row in sheet.rows]
    assert len(rows) == len(set(rows))
    for glance in beside.glances:
        for mark in (mark for _, row in glance.rows for mark in row if mark):
            assert bool(mark.anchor) == (mark.state != "not run")
            assert not mark.anchor or mark.anchor in rows
    assert marks(beside, "Joint")["Joint, several epochs", "cifar100"].anchor.startswith("joint-")
    assert marks(beside, "Several epochs")["ER-ACE", "cifar100 500"].anchor.startswith("table1-")  # no sheet of its own


def test_rows_tell_epochs_where_they_differ(beside):
    assert {name for name, _ in marks(beside, "Several epochs")} >= {"ER-ACE", "ER-ACE + CSSL, 5 epochs"}
    assert {name for name, _ in marks(beside, "Methods without")} == {
        "LwF.MC", "LwF.MC + CLER", "R-DFCIL", "R-DFCIL + CLER"
    }  # fmt: skip
    assert {column for _, column in marks(beside, "Comparison")} == {
        "class-incremental 500", "class-incremental 2000", "task-incremental 500", "task-incremental 2000"
    }  # fmt: skip
