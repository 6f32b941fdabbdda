import math
from pathlib import Path

import pytest

from cler.experiments.compare import compare
from cler.experiments.paper import BesidePaper, beside_paper
from cler.experiments.results import Result, find_results, make_result
from cler.experiments.settings import make_settings, paper_settings
from cler.methods import METHODS
from cler.regularizers import REGULARIZERS
from cler.report.tables import paper_table

ROOT = Path(__file__).parents[2]


def results(accuracies, **settings):
    """Complete runs of one setting: for each a row of final accuracies, or one number for all tasks."""
    settings = make_settings(**settings)
    found = []
    for seed, final in enumerate(accuracies):
        rows = [[50.0] * task + [60.0] for task in range(settings.tasks - 1)]
        rows.append(final if isinstance(final, list) else [final] * settings.tasks)
        rows = rows[-1:] if METHODS[settings.method].merged else rows
        made = make_result(settings.to_dict(), seed, {"class_il": rows, "task_il": rows}, 1.0, 1.0, {})
        metrics = {name: made[name] for name in ("faa", "adjusted_forgetting", "forgetting", "bwt")}
        found.append(Result(Path(), made["settings"], seed, made["accuracy"], metrics, 1.0, 1.0, {}, True))
    return compare(found).groups


def test_a_group_is_set_beside_its_own_cell():
    (group,) = results([24.0, 25.0], method="er-ace", regularizer="jigsaw", dataset="cifar100", buffer=2000)
    beside = beside_paper(group)["class_il"]
    cells = [c for c in paper_settings()["printed"] if (c["method"], c["regularizer"]) == ("er-ace", "jigsaw")]
    (cell,) = [c for c in cells if c["buffer"] == 2000]
    assert [beside.paper, beside.paper_std] == cell["class_il"]["accuracy"]
    assert beside.ours == 24.5
    assert beside.difference == pytest.approx(24.5 - beside.paper)
    assert beside_paper(group)["task_il"].p_value is None


@pytest.mark.parametrize("other", [{"buffer": 300}, {"epochs": 2}, {"dataset": "cifar10"}, {"regularizer": "rotation"}])
def test_other_settings_have_no_cell(other):
    (group,) = results([20.0, 21.0], **({"method": "er-ace", "dataset": "cifar100", "buffer": 500} | other))
    assert beside_paper(group) == {}


def test_joint_is_compared_with_the_evaluation_that_the_paper_used():
    (group,) = results([60.0, 60.0], method="joint", dataset="cifar100")
    assert beside_paper(group)["class_il"].ours == pytest.approx(60.0)
    assert beside_paper(group)["task_il"].ours == pytest.approx(0.91 * 60.0)


@pytest.mark.parametrize(
    ("ours", "p_value", "agrees"), [(20.9, None, True), (21.5, None, False), (23.0, 0.02, True), (23.0, 0.005, False)]
)
def test_agreement_is_a_point_or_a_test_that_does_not_reject(ours, p_value, agrees):
    assert BesidePaper(ours, 1.0, 20.0, 1.0, p_value).agrees is agrees


def test_every_cell_names_what_exists():
    for cell in paper_settings()["printed"]:
        assert cell["method"] in METHODS
        assert cell["regularizer"] in ("none", *REGULARIZERS)


def test_the_readme_states_what_the_results_give():
    """Every group of the committed results stands in the README, and the paper's numbers beside it."""
    readme = (ROOT / "README.md").read_text("utf-8")
    found, complaints = find_results([ROOT / "results" / "cifar100"])
    assert not complaints
    groups = [group for group in compare(found).groups if group.settings["precision"] == "bf16"]
    assert len(groups) >= 8
    for group in groups:
        assert len(group.runs) == 10
        mean, std = group.faa["class_il"].mean, group.faa["class_il"].std
        (line,) = [line for line in readme.splitlines() if f"{mean:.2f} ± {std:.2f}" in line and group.label in line]
        for beside in beside_paper(group).values():
            assert f"{beside.paper:.2f}" in line
            assert beside.agrees
    assert paper_table(groups).row_count == sum(len(beside_paper(group)) for group in groups)
    assert not any(math.isnan(group.faa["class_il"].std) for group in groups)
