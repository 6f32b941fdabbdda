import math

import pytest
import scipy.stats

from cler.report.evidence import evidence
from cler.runs.compare import compare

BEFORE, AFTER = [30.0, 31.0, 29.5, 32.0], [33.0, 34.5, 31.5, 33.0]


def found(runs, before, after, **seeds):
    groups = compare([*runs.make(runs.plain, before), *runs.make(runs.cler, after, **seeds)]).groups
    return evidence(groups)


def test_every_test_is_of_the_runs_against_their_twin(runs):
    class_il, task_il = found(runs, BEFORE, AFTER)
    assert (class_il.scenario, task_il.scenario) == ("class_il", "task_il")
    assert class_il.points == pytest.approx(33.0 - 30.625)
    assert class_il.student == pytest.approx(scipy.stats.ttest_ind(BEFORE, AFTER).pvalue)
    assert class_il.welch == pytest.approx(scipy.stats.ttest_ind(BEFORE, AFTER, equal_var=False).pvalue)
    assert class_il.paired == pytest.approx(scipy.stats.ttest_rel(BEFORE, AFTER).pvalue)
    assert class_il.pairs == 4
    for low, high in (class_il.welch_interval, class_il.bootstrap_interval):
        assert low < class_il.points < high
    assert class_il.holm == pytest.approx(2 * class_il.student)  # both settings are in the table


def test_only_shared_seeds_are_paired(runs):
    one, _ = found(runs, BEFORE, AFTER, seeds=[9, 3, 1, 8])
    assert one.pairs == 2
    assert one.paired == pytest.approx(scipy.stats.ttest_rel([31.0, 32.0], [31.5, 34.5]).pvalue)
    apart, _ = found(runs, BEFORE, AFTER, seeds=[6, 7, 8, 9])
    assert apart.pairs == 0
    assert math.isnan(apart.paired)
    assert apart.student == pytest.approx(scipy.stats.ttest_ind(BEFORE, AFTER).pvalue)


def test_one_run_each_says_nothing_but_the_difference(runs):
    one, _ = found(runs, [30.0], [33.0])
    assert one.points == pytest.approx(3)
    silent = (one.student, one.welch, one.paired, one.holm, *one.welch_interval, *one.bootstrap_interval)
    assert all(map(math.isnan, silent))


def test_rows_without_a_twin_have_no_gain(runs):
    assert evidence(compare(runs.make(runs.cler, AFTER)).groups) == []
