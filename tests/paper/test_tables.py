import dataclasses
from pathlib import Path

import pytest

from cler import data
from cler.config.making import make_settings
from cler.errors import UsageError
from cler.methods import METHODS
from cler.paper.report_section import lines_by_runs, lines_of_all_tables
from cler.paper.settings import paper_file
from cler.paper.tables import BesidePaper, compared, contradictions, find_table, joint_paper_style, table_names
from cler.regularizers import REGULARIZERS
from cler.runs.compare import compare
from cler.runs.results import Result, make_result
from cler.stats import t_test_from_summary, welch_from_summary
from small_table import pair_of

ROOT = Path(__file__).parents[2]


def results(accuracies, **settings):
    """Complete runs of one setting: for each a row of final accuracies, or one number for all tasks."""
    settings = make_settings(**settings)
    found = []
    for seed, final in enumerate(accuracies):
        rows = [[50.0] * task + [60.0] for task in range(settings.tasks - 1)]
        rows.append(final if isinstance(final, list) else [final] * settings.tasks)
        rows = rows[-1:] if METHODS[settings.method].merged else rows
        made = make_result(settings.to_dict(), seed, {"class_il": rows, "task_il": rows}, 1.0, 1, {})
        found.append(Result.from_dict(Path(), made))
    return compare(found).groups


def cell_of(table, pair, *, dataset="cifar100", buffer=0, epochs=1):
    (cell,) = [
        cell
        for cell in find_table(table).cells
        if (pair_of(cell), cell.dataset, cell.buffer, cell.epochs) == (pair, dataset, buffer, epochs)
    ]
    return cell


def printed(table, pair, **place):
    cell = cell_of(table, pair, **place)
    return cell.task_il if table == "table2" else cell.class_il


# -- the file ----------------------------------------------------------------------------------------------------------


def test_every_cell_names_what_exists():
    known = {*data.names(), *METHODS}
    for cell in (cell for name in table_names() for cell in find_table(name).cells):
        assert {cell.method, cell.dataset} <= known
        assert cell.seeds >= 0
        assert cell.regularizer in ("none", *REGULARIZERS)
        assert cell.available
        assert cell.settings().to_dict().items() >= {"epochs": cell.epochs, "buffer": cell.buffer}.items()
    assert paper_file().keys() <= {"tables", "contradictions", "other_pretext_seeds", *data.names()}


@pytest.mark.parametrize(
    ("table", "pair", "place", "seeds"),
    [
        ("table1", "er-ace", {"buffer": 500}, 10),
        ("table2", "dualnet+rotation", {"dataset": "mini-imagenet", "buffer": 8000}, 10),
        ("cssl", "cope+barlow-twins", {"buffer": 2000}, 10),
        ("joint", "joint+jigsaw", {"dataset": "mini-imagenet"}, 10),
        ("joint", "joint+jigsaw", {"dataset": "mini-imagenet", "epochs": 50}, 1),
        ("epochs", "er-ace+barlow-twins", {"buffer": 500, "epochs": 20}, 3),
        ("epochs", "er-ace+jigsaw", {"buffer": 500, "epochs": 50}, 2),
        ("epochs", "er-ace+barlow-twins", {"buffer": 500, "epochs": 50}, 1),
        ("data-free", "lwf-mc", {"epochs": 30}, 1),
        ("data-free", "r-dfcil+rotation", {"epochs": 30}, 2),
        ("finetune", "finetune+rotation", {"dataset": "mini-imagenet"}, 10),
    ],
)
def test_a_cell_says_how_many_runs_it_wants(table, pair, place, seeds):
    assert cell_of(table, pair, **place).seeds == seeds


def test_the_other_pretext_task_wants_fewer_runs():
    both = find_table("figure4").with_both_pretexts()
    assert {cell.seeds for cell in both.cells if cell.class_il} == {10}
    assert {cell.seeds for cell in both.cells if not cell.class_il} == {5}
    assert both.with_both_pretexts() == both


def test_all_tables_have_each_cell_once_with_as_many_runs_as_any_of_them_wants():
    whole = find_table("all").cells
    assert len({cell.key for cell in whole}) == len(whole)
    for cell in (cell for name in table_names() for cell in find_table(name).cells):
        assert next(one.seeds for one in whole if one.key == cell.key) >= cell.seeds
    both = [cell.regularizer for cell in whole if cell.place == ("mini-imagenet", 8000, 1, "cope")]
    assert both == ["none", "rotation", "jigsaw"]


@pytest.mark.parametrize("name", table_names())
def test_every_table_is_whole(name):
    """Each regularized cell has its baseline, each mean is a percentage, and nothing is there twice."""
    table = find_table(name)
    places = [(*cell.place, cell.regularizer) for cell in table.cells]
    assert len(set(places)) == len(places)
    for cell in table.cells:
        assert (table.baseline(cell) is None) == (cell.regularizer == "none")
        for numbers in filter(None, (cell.class_il, cell.task_il)):
            assert 0 < numbers.mean < 100
            assert numbers.adjusted_forgetting is None or 0 <= numbers.adjusted_forgetting <= 100


def test_the_first_tables_have_the_same_cells():
    first, second = (
        [(*cell.place, cell.regularizer) for cell in find_table(name).cells] for name in ("table1", "table2")
    )
    assert first == second
    assert len(first) == 4 * 8 + 2 * 3


def test_the_printed_p_values_are_those_of_the_paper_s_test():
    table = find_table("significance")
    gains = [cell for cell in table.cells if cell.regularizer != "none"]
    assert len(gains) == 16
    different = []
    for cell in gains:
        before, after = table.baseline(cell).class_il, cell.class_il
        p_value = t_test_from_summary(before.mean, before.std, 10, after.mean, after.std, 10).p_value
        if round(p_value, 5) != after.p:
            different.append((pair_of(cell), cell.dataset, cell.buffer, p_value))
    ((*cell, p_value),) = different
    assert cell == ["er-ace+jigsaw", "cifar100", 500]
    (told,) = table.contradictions
    assert (told.says, told.but) == ([0.00001], [pytest.approx(p_value, rel=0.05)])


def test_contradictions_are_between_numbers_of_the_file():
    gains, epochs, joint, _ = contradictions()
    for buffer, mean in zip((500, 2000), gains.but, strict=True):
        cells = [c for c in find_table("significance").cells if (c.dataset, c.buffer) == ("cifar100", buffer)]
        signed = [c.class_il.mean * (-1 if c.regularizer == "none" else 1) for c in cells]
        assert sum(signed) / 4 == pytest.approx(mean, abs=0.006)
    cells = [printed(table, "er-ace+jigsaw", buffer=500) for table in ("table1", "epochs")]
    assert [[cell.mean, cell.adjusted_forgetting] for cell in cells] == [epochs.says, epochs.but]
    for table, numbers in (("table1", joint.says), ("joint", joint.but)):
        both = [printed(table, "joint", epochs=30), printed(table, "joint", dataset="mini-imagenet", epochs=50)]
        assert [one.mean for one in both] == numbers
    assert all(one.sentence.startswith("The paper contradicts itself about ") for one in contradictions())


def test_a_table_takes_cells_of_others():
    cell = cell_of("cssl", "er-ace", buffer=500)
    assert cell.class_il == printed("table1", "er-ace", buffer=500)
    assert cell.task_il == printed("table2", "er-ace", buffer=500)
    assert find_table("epochs").scenarios == ("class_il",)


def test_the_epochs_table_has_a_weight_of_its_own_for_one_cell():
    assert cell_of("epochs", "er-ace+jigsaw", buffer=500).settings().weight == 1.7
    assert cell_of("table1", "er-ace+jigsaw", buffer=500).settings().weight == 1.5


def test_the_settings_on_mini_imagenet():
    cells = [cell for name in ("figure4", "joint") for cell in find_table(name).with_both_pretexts().cells]
    made = {(pair_of(c), c.buffer, c.epochs): c.settings() for c in cells if c.dataset == "mini-imagenet"}
    assert len(made) == 2 * 12 + 2 * 4
    assert {(one.tasks, one.width) for one in made.values()} == {(20, 20)}
    lr = {key: settings.lr for key, settings in made.items()}
    assert (lr["er-ace", 2000, 1], lr["cope+rotation", 8000, 1], lr["joint", 0, 50]) == (0.1, 0.0005, 0.03)
    assert made["xder+jigsaw", 8000, 1].method_options.beta == 1.0


def test_both_pretext_tasks():
    table = find_table("figure4")
    assert table.pretext == "both"
    both = table.with_both_pretexts()
    assert len(both.cells) == 3 * 16
    for cell in both.cells:
        rivals = [one for one in both.cells if one.place == cell.place and one.equivariant]
        assert sorted(one.regularizer for one in rivals) == ["jigsaw", "rotation"]
        assert [one.class_il is None for one in rivals].count(True) == 1


def test_an_unknown_table_is_a_mistake_with_a_hint():
    with pytest.raises(UsageError, match=r"unknown table 'tabel1' .*did you mean 'table1'"):
        find_table("tabel1")


# -- our runs beside it ------------------------------------------------------------------------------------------------


def beside(group):
    """A group's accuracies and the paper's, by scenario."""
    return {scenario: line.beside for (_, scenario), line in lines_by_runs(lines_of_all_tables([group])).items()}


def test_a_group_is_set_beside_its_own_cell():
    (group,) = results([24.0, 25.0], method="er-ace", regularizer="jigsaw", dataset="cifar100", buffer=2000)
    class_il = beside(group)["class_il"]
    cell = printed("table1", "er-ace+jigsaw", buffer=2000)
    assert class_il.paper == cell.mean
    assert class_il.ours == 24.5
    assert class_il.difference == pytest.approx(24.5 - cell.mean)
    assert beside(group)["task_il"].p_value < 0.001
    assert class_il.p_value_of_three is None


def test_where_the_paper_s_number_of_runs_is_uncertain_both_are_tested():
    (group,) = results([20.0, 21.0, 22.5], method="er-ace", regularizer="barlow-twins", dataset="cifar100", buffer=500)
    cell = printed("cssl", "er-ace+barlow-twins", buffer=500)
    found = compared(group, "class_il", cell)
    for runs, p_value in ((10, found.p_value), (3, found.p_value_of_three)):
        expected = welch_from_summary(found.ours, found.ours_std, 3, cell.mean, cell.std, runs).p_value
        assert p_value == pytest.approx(expected)
    assert found.p_value != pytest.approx(found.p_value_of_three)


@pytest.mark.parametrize(
    "other", [{"buffer": 300}, {"epochs": 2}, {"dataset": "cifar10"}, {"regularizer": "rotation"}, {"lr": 0.5}]
)
def test_other_settings_have_no_cell(other):
    (group,) = results([20.0, 21.0], **({"method": "er-ace", "dataset": "cifar100", "buffer": 500} | other))
    assert beside(group) == {}


def test_precision_makes_no_other_cell():
    for precision in ("fp32", "bf16"):
        (group,) = results([20.0, 21.0], method="er-ace", dataset="cifar100", buffer=500, precision=precision)
        assert set(beside(group)) == {"class_il", "task_il"}


@pytest.mark.parametrize(
    ("changed", "counts"),
    [
        (lambda settings: settings | {"label_noise": 0.2}, False),
        (lambda settings: settings | {"compile": True}, True),
    ],
    ids=["of a newer version", "compiled"],
)
def test_runs_of_another_version_count_if_they_know_no_more(changed, counts):
    (group,) = results([20.0, 21.0], method="er-ace", dataset="cifar100", buffer=500)
    assert bool(beside(dataclasses.replace(group, settings=changed(group.settings)))) == counts


def test_a_run_with_another_weight_belongs_to_the_table_that_has_it():
    (group,) = results([20.0], method="er-ace", regularizer="jigsaw", dataset="cifar100", buffer=500, weight=1.7)
    assert beside(group)["class_il"].paper == printed("epochs", "er-ace+jigsaw", buffer=500).mean
    assert "task_il" not in beside(group)


def test_joint_is_compared_with_the_evaluation_that_the_paper_used():
    (group,) = results([60.0, 60.0], method="joint", dataset="cifar100")
    assert beside(group)["class_il"].ours == pytest.approx(60.0)
    assert beside(group)["task_il"].ours == pytest.approx(0.91 * 60.0)


def test_golden_joint_as_printed(golden):
    arrays = golden("metrics")
    class_il, task_il = arrays["acc_cil"].tolist(), arrays["acc_til"].tolist()
    printed = float(arrays["joint_printed_cil"]), float(arrays["joint_printed_til"])
    assert joint_paper_style(class_il, task_il) == pytest.approx(printed, abs=1e-9)


@pytest.mark.parametrize(("tasks", "share"), [(10, 0.91), (20, 0.9525)])
def test_joint_as_printed_on_a_constant_model(tasks, share):
    class_il, task_il = joint_paper_style([37.0] * tasks, [60.0] * tasks)
    assert class_il == pytest.approx(37)
    assert task_il == pytest.approx(share * 60)


@pytest.mark.parametrize(
    ("ours", "p_value", "agrees"), [(20.9, None, True), (21.5, None, False), (23.0, 0.02, True), (23.0, 0.005, False)]
)
def test_agreement_is_a_point_or_a_test_that_does_not_reject(ours, p_value, agrees):
    assert BesidePaper(ours, 1.0, 20.0, p_value).agrees is agrees
