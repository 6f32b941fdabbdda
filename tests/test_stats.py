import math
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from cler import stats
from cler.errors import UsageError
from toys import close

GOLDEN = Path(__file__).parent / "golden" / "metrics.npz"
FIRST, SECOND = [19.0, 21.5, 20.2, 18.8], [22.0, 21.0, 24.5, 23.1, 22.2]


@pytest.fixture(scope="module")
def golden():
    with np.load(GOLDEN) as file:
        return {key: file[key] for key in file.files if key.startswith("ttest")}


def test_golden_t_test_from_summary(golden):
    n = int(golden["ttest_n"])
    tests = [
        stats.t_test_from_summary(mean1, std1, n, mean2, std2, n) for mean1, std1, mean2, std2 in golden["ttest_inputs"]
    ]
    assert close([test.statistic for test in tests], golden["ttest_statistic"])
    assert close([test.p_value for test in tests], golden["ttest_p"])
    assert np.allclose([test.p_value for test in tests], golden["ttest_p"], rtol=1e-8, atol=0)


def test_golden_t_test_on_raw_values(golden):
    test = stats.t_test(golden["ttest_raw_base"], golden["ttest_raw_method"])
    assert close(test, (golden["ttest_raw_statistic"], golden["ttest_raw_p"]))


def test_a_p_value_of_the_paper():
    assert round(stats.t_test_from_summary(24.54, 2.67, 10, 26.76, 1.17, 10).p_value, 5) == 0.02697


def test_mean_std_by_hand():
    assert stats.mean_std([2, 4, 4, 4, 5, 5, 7, 9]) == pytest.approx((5, math.sqrt(32 / 7)))


def test_mean_std_of_too_few_values():
    mean, std = stats.mean_std([3.5])
    assert mean == 3.5
    assert math.isnan(std)
    assert all(map(math.isnan, stats.mean_std([])))
    assert all(map(math.isnan, stats.mean_std([1.0, math.inf])))


def test_equal_values_have_no_deviation():
    assert stats.mean_std([0.1] * 3) == (0.1, 0.0)


@pytest.mark.parametrize(("ours", "options"), [(stats.t_test, {}), (stats.welch, {"equal_var": False})])
def test_two_sample_tests_agree_with_scipy(ours, options):
    expected = scipy.stats.ttest_ind(SECOND, FIRST, **options)
    assert ours(FIRST, SECOND) == pytest.approx((expected.statistic, expected.pvalue), rel=1e-9)
    assert ours(SECOND, FIRST) == pytest.approx((-expected.statistic, expected.pvalue), rel=1e-9)


def test_from_summary_equals_from_values():
    numbers = (*stats.mean_std(FIRST), len(FIRST), *stats.mean_std(SECOND), len(SECOND))
    assert stats.t_test_from_summary(*numbers) == stats.t_test(FIRST, SECOND)
    assert stats.welch_from_summary(*numbers) == stats.welch(FIRST, SECOND)


def test_paired_test_agrees_with_scipy():
    expected = scipy.stats.ttest_rel(SECOND[:4], FIRST)
    assert stats.paired_t_test(FIRST, SECOND[:4]) == pytest.approx((expected.statistic, expected.pvalue), rel=1e-9)
    with pytest.raises(UsageError, match="4 and 5"):
        stats.paired_t_test(FIRST, SECOND)


def test_confidence_interval_agrees_with_scipy():
    expected = scipy.stats.t.interval(0.95, 3, np.mean(FIRST), scipy.stats.sem(FIRST))
    assert stats.confidence_interval(FIRST) == pytest.approx(expected, rel=1e-9)
    assert all(map(math.isnan, stats.confidence_interval([1.0])))


def test_welch_interval_agrees_with_scipy():
    expected = scipy.stats.ttest_ind(SECOND, FIRST, equal_var=False).confidence_interval()
    assert stats.welch_interval(FIRST, SECOND) == pytest.approx(tuple(expected), rel=1e-9)


def test_bootstrap_interval_agrees_with_scipy_and_with_itself():
    def difference(first, second, axis):
        return np.mean(second, axis) - np.mean(first, axis)

    expected = scipy.stats.bootstrap((FIRST, SECOND), difference, method="percentile", rng=1).confidence_interval
    found = stats.bootstrap_interval(FIRST, SECOND)
    assert found == pytest.approx(tuple(expected), abs=0.05 * (expected.high - expected.low))
    assert stats.bootstrap_interval(FIRST, SECOND) == found


@pytest.mark.parametrize("interval", [stats.welch_interval, stats.bootstrap_interval])
def test_intervals_of_a_difference_at_the_edges(interval):
    assert interval([5.0, 5.0], [7.0, 7.0]) == (2.0, 2.0)
    assert all(map(math.isnan, interval([5.0], [7.0, 8.0])))


def test_holm_by_hand():
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.holm([0.5, 0.9]) == [1.0, 1.0]
    assert stats.holm([]) == []


def test_holm_does_not_count_what_could_not_be_tested():
    first, unknown, second = stats.holm([0.01, math.nan, 0.04])
    assert (first, second) == pytest.approx((0.02, 0.04))
    assert math.isnan(unknown)


@pytest.mark.parametrize("test", [stats.t_test, stats.welch, stats.paired_t_test])
class TestEdges:
    def test_no_variance(self, test):
        assert test([5.0, 5.0], [5.0, 5.0]) == (0.0, 1.0)
        assert test([5.0, 5.0], [6.0, 6.0]) == (math.inf, 0.0)
        assert test([6.0, 6.0], [5.0, 5.0]) == (-math.inf, 0.0)

    @pytest.mark.parametrize("values", [[], [1.0], [1.0, math.nan]])
    def test_too_little_to_say(self, test, values):
        assert math.isnan(test(values, [2.0, 3.0][: len(values)]).p_value)


@pytest.mark.parametrize("test", [stats.t_test, stats.welch])
def test_one_value_on_one_side_is_too_few(test):
    assert math.isnan(test([1.0], [2.0, 3.0, 4.0]).p_value)


def test_one_sided_lack_of_variance_is_still_tested():
    assert stats.welch([5.0, 5.0, 5.0], [6.0, 7.0, 8.0]).p_value == pytest.approx(
        scipy.stats.ttest_1samp([6.0, 7.0, 8.0], 5.0).pvalue
    )
