import math
import sys
from dataclasses import replace
from statistics import fmean

import pytest

from cler.errors import UsageError
from cler.tune.sampler import propose
from cler.tune.space import Range
from cler.tune.study import Trial

SPACE = (
    Range("lr", 1e-3, 0.3, log=True),
    Range("replay_batch", 8, 64, whole=True),
    Range("optimizer", choices=("sgd", "adam")),
)


def test_without_optuna_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UsageError, match=r"tuning needs optuna: pip install optuna"):
        propose(SPACE, [], 1)


def test_proposals_are_inside_the_space_and_depend_on_what_came_before_alone():
    pytest.importorskip("optuna")
    before = []
    for _ in range(2):
        proposed = propose(SPACE, before, 10)
        assert proposed == propose(SPACE, before, 10)
        assert len({str(values) for values in proposed}) == 10
        for values in proposed:
            assert 1e-3 <= values["lr"] <= 0.3
            assert values["replay_batch"] in range(8, 65)
            assert values["optimizer"] in ("sgd", "adam")
        before += [Trial(values, (values["lr"],) * (1 + (values["lr"] > 0.01))) for values in proposed]
    assert propose(SPACE, before, 3) != propose(SPACE, before[:-1], 3)


def distance(before, peak):
    """How far the next ten learning rates are from one, in powers of ten."""
    return fmean(abs(math.log10(values["lr"] / peak)) for values in propose(SPACE[:1], before, 10))


@pytest.mark.parametrize("peak", [0.002, 0.02, 0.2])
def test_scores_of_the_first_rung_are_enough_to_propose_better_values(peak):
    """When most values are proposed no trial has got further yet."""
    pytest.importorskip("optuna")
    rates = [10 ** (-3 + number / 8) for number in range(20)]
    before = [Trial({"lr": rate}, (50 - 10 * abs(math.log10(rate / peak)),)) for rate in rates]
    assert distance(before, peak) < 0.4  # 0.7 to 1.0 where nothing is known
    further = [replace(trial, scores=(*trial.scores, 1.0)) if trial.values["lr"] > 0.1 else trial for trial in before]
    assert distance(further, 0.16) < 0.4  # a rung further counts more than any score


def test_no_values_are_proposed_twice_and_choices_run_out():
    pytest.importorskip("optuna")
    space = (Range("optimizer", choices=("sgd", "adam")), Range("normalize", choices=(True, False)))
    first = propose(space, [], 3)
    before = [Trial(values, (10.0,)) for values in first]
    second = propose(space, before, 3)
    assert len(first) == 3
    assert len(second) == 1
    every = {(values["optimizer"], values["normalize"]) for values in [*first, *second]}
    assert every == {("sgd", True), ("sgd", False), ("adam", True), ("adam", False)}
    assert propose(space, [*before, Trial(second[0], (10.0,))], 3) == []


def test_whole_numbers_run_out_no_earlier_than_there_are_none_left():
    """Though what is proposed crowds around the best ones."""
    pytest.importorskip("optuna")
    space = (Range("buffer", 1, 1000, log=True, whole=True),)
    before = [Trial({"buffer": number}, (100.0 - number,)) for number in range(1, 80)]
    assert len(propose(space, before, 10)) == 10
    every = [Trial({"buffer": number}, (100.0 - number,)) for number in range(1, 1001) if number != 500]
    assert propose(space, every, 10) == [{"buffer": 500}]
