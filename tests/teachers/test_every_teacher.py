"""What holds for every teacher with every method that it fits: a new one is tested by being registered."""

from itertools import cycle

import pytest

from cler.config.compatibility import fits
from cler.methods import METHODS
from cler.promises import steps, toy, training
from cler.regularizers import REGULARIZERS
from cler.teachers import TEACHERS

pytestmark = pytest.mark.usefixtures("shallow")
PAIRS = [(method, teacher) for teacher in TEACHERS for method in METHODS if fits(method, teacher)]
TAUGHT = [pair for pair in PAIRS if TEACHERS[pair[1]].teaches]
TRIPLES = [(*pair, regularizer) for pair, regularizer in zip(PAIRS, cycle(["none", *REGULARIZERS]), strict=False)]
"""Every pair with one regularizer or another."""


@pytest.mark.parametrize(("method", "teacher", "regularizer"), TRIPLES, ids=map("+".join, TRIPLES))
def test_keeps_the_rule_and_is_part_of_checkpoints(method, teacher, regularizer, tmp_path):
    small = METHODS[method].own_network is None and TRIPLES.index((method, teacher, regularizer)) % 2
    network = {"network": toy.small_network} if small else {}
    steps.keeps_the_rule(method, regularizer, teacher=teacher, precision="bf16", **network)
    training.resumes(method, regularizer, teacher=teacher, folder=tmp_path, stops=[(0, 1)], data=toy.colors())


@pytest.mark.parametrize(("method", "teacher"), TAUGHT, ids=map("+".join, TAUGHT))
def test_a_lesson_keeps_the_rule_in_the_first_task_and_changes_nothing_for_other_runs(method, teacher):
    steps.recorded_step_serves(method, teacher=teacher)
    training.together_equals_alone(method, teacher=teacher)


@pytest.mark.parametrize("teacher", [name for name, teacher in TEACHERS.items() if not teacher.teaches])
def test_a_step_of_one_that_only_answers_keeps_the_rule_and_serves_all_with_its_key(teacher):
    """With a method that has one key for all tasks."""
    steps.recorded_step_serves("finetune", teacher=teacher)


@pytest.mark.parametrize("teacher", TEACHERS)
def test_its_running_statistics_follow_the_network(teacher):
    training.answers_with_statistics_that_move("er", "none", teacher=teacher, network=toy.small_network)
