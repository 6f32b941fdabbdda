from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cler import metrics
from cler.errors import UsageError

GOLDEN = Path(__file__).parent / "golden" / "metrics.npz"


@pytest.fixture(scope="module")
def golden():
    with np.load(GOLDEN) as file:
        return {key: file[key].astype(np.float64) if file[key].dtype.kind == "f" else file[key] for key in file.files}


def golden_rows(golden):
    return [[float(x) for x in row if not np.isnan(x)] for row in golden["acc_matrix"]]


def close(actual, expected):
    expected = np.asarray(expected)
    return np.max(np.abs(np.asarray(actual) - expected)) / (1 + np.max(np.abs(expected))) <= 1e-9


@pytest.mark.parametrize(
    ("name", "theirs"),
    [("accuracy", "faa"), ("backward_transfer", "bwt"), ("adjusted_forgetting", "adjusted_forgetting")],
)
def test_golden_metrics_of_the_matrix(golden, name, theirs):
    assert close(metrics.METRICS[name].function(golden_rows(golden)), golden[theirs])


def test_golden_metrics_with_an_early_look(golden):
    assert close(metrics.forgetting(golden_rows(golden), golden["next_task_acc"].tolist()), golden["forgetting"])


def test_golden_accuracy_of_joint(golden):
    class_il, task_il = golden["acc_cil"].tolist(), golden["acc_til"].tolist()
    assert close(metrics.accuracy([class_il]), golden["joint_correct_cil"])
    assert close(metrics.accuracy([task_il]), golden["joint_correct_til"])


def test_golden_class_and_task_correct(golden):
    logits, labels = torch.from_numpy(golden["logits"]), torch.from_numpy(golden["labels"].astype(np.int64))
    tasks, _, classes = logits.shape
    class_il, task_il = metrics.class_and_task_correct(logits, labels, torch.arange(classes) // (classes // tasks))
    assert close(100 * class_il.double().mean(1), golden["acc_cil"])
    assert close(100 * task_il.double().mean(1), golden["acc_til"])


def test_three_tasks_by_hand():
    rows = [[80.0], [60.0, 50.0], [40.0, 60.0, 90.0]]
    assert metrics.accuracy(rows) == pytest.approx(190 / 3)
    assert metrics.adjusted_forgetting(rows) == pytest.approx(100 * (40 / 80 + 0) / 2)
    assert metrics.forgetting(rows) == pytest.approx((40 + 0) / 2)
    assert metrics.backward_transfer(rows) == pytest.approx((-40 + 10) / 2)
    assert metrics.average_accuracy_after_each_task(rows) == pytest.approx([80, 55, 190 / 3])
    assert metrics.incremental_accuracy(rows) == pytest.approx((80 + 55 + 190 / 3) / 3)


def test_the_best_accuracy_is_not_always_the_first():
    rows = [[20.0], [50.0, 30.0], [40.0, 30.0, 10.0]]
    assert metrics.adjusted_forgetting(rows) == pytest.approx(100 * (10 / 50) / 2)
    assert metrics.backward_transfer(rows) == pytest.approx(10)


def test_adjusted_forgetting_is_100_for_collapse_and_0_for_no_loss():
    assert metrics.adjusted_forgetting([[70.0], [0.0, 80.0], [0.0, 0.0, 90.0]]) == 100
    assert metrics.adjusted_forgetting([[70.0], [70.0, 80.0], [75.0, 80.0, 90.0]]) == 0


def test_a_task_that_was_never_right_has_nothing_to_forget():
    assert metrics.adjusted_forgetting([[0.0], [0.0, 50.0], [30.0, 25.0, 50.0]]) == 25


@pytest.mark.parametrize("rows", [[[42.0]], [[30.0, 54.0]]])
def test_without_an_earlier_task_there_is_nothing_to_forget(rows):
    """A single task, and Joint, which learns all at once."""
    expected = dict.fromkeys(metrics.METRICS, float("nan")) | {"accuracy": 42.0, "incremental_accuracy": 42.0}
    assert metrics.measure(rows) == pytest.approx(expected, nan_ok=True)
    assert metrics.average_accuracy_after_each_task(rows) == [42]


def test_before_the_first_evaluation_nothing_is_known():
    assert metrics.measure([]) == pytest.approx(dict.fromkeys(metrics.METRICS, float("nan")), nan_ok=True)


def test_every_metric_says_what_it_means():
    for name, metric in metrics.METRICS.items():
        assert name.isidentifier()
        assert metric.meaning.endswith(".")
        assert metric.better in ("higher", "lower")


def test_a_metric_can_ask_for_other_facts(monkeypatch):
    per_step = metrics.Metric(lambda rows, steps: rows[-1][0] / steps, "Of nothing.", "higher", "%", facts=("steps",))
    monkeypatch.setitem(metrics.METRICS, "per_step", per_step)
    assert metrics.measure([[50.0]], {"steps": 10, "seconds": 3.0})["per_step"] == 5


@pytest.mark.parametrize("rows", [[], [[]], [[1.0], [1.0]], [[1.0, 2.0], [1.0, 2.0]], [[1.0], [1.0, 2.0, 3.0]]])
def test_what_is_not_a_triangle_is_refused(rows):
    with pytest.raises(UsageError, match="accuracy matrix"):
        metrics.accuracy(rows)


def test_class_and_task_correct_by_hand():
    logits = torch.tensor([[1.0, 2.0, 9.0, 0.0], [1.0, 2.0, 9.0, 0.0], [0.0, 5.0, 1.0, 2.0], [3.0, 0.0, 0.0, 0.0]])
    class_il, task_il = metrics.class_and_task_correct(logits, torch.tensor([1, 2, 2, 0]), torch.tensor([0, 0, 1, 1]))
    assert class_il.tolist() == [False, True, False, True]
    assert task_il.tolist() == [True, True, False, True]
    assert class_il.dtype == task_il.dtype == torch.bool


def test_among_unequal_tasks_by_hand():
    """Classes 0 and 3 are the first task, 1, 2 and 4 the second."""
    logits = torch.tensor([[1.0, 9.0, 8.0, 2.0, 0.0], [3.0, 9.0, 8.0, 2.0, 0.0], [9.0, 1.0, 0.0, 9.0, 2.0]])
    class_il, task_il = metrics.class_and_task_correct(logits, torch.tensor([3, 3, 4]), torch.tensor([0, 1, 1, 0, 1]))
    assert class_il.tolist() == [False, False, False]
    assert task_il.tolist() == [True, False, True]


@given(st.integers(0, 2**31), st.integers(1, 4), st.integers(1, 5))
def test_right_among_all_classes_is_right_within_the_task(seed, classes_per_task, tasks):
    generator = torch.Generator().manual_seed(seed)
    classes = classes_per_task * tasks
    logits = torch.randn(30, classes, generator=generator)
    labels = torch.randint(classes, (30,), generator=generator)
    class_il, task_il = metrics.class_and_task_correct(logits, labels, torch.arange(classes) // classes_per_task)
    assert torch.all(task_il | ~class_il)
    if tasks == 1:
        assert torch.equal(task_il, class_il)
    if classes_per_task == 1:
        assert task_il.all()


def test_no_value_leaves_the_device():
    logits, labels = torch.empty(6, 4, device="meta"), torch.empty(6, dtype=torch.int64, device="meta")
    of_class = torch.empty(4, dtype=torch.int64, device="meta")
    class_il, task_il = metrics.class_and_task_correct(logits, labels, of_class)  # a meta tensor has no values to read
    assert class_il.shape == task_il.shape == (6,)


@st.composite
def matrices(draw):
    tasks = draw(st.integers(2, 6))
    percent = st.floats(0, 100, allow_nan=False)
    return [draw(st.lists(percent, min_size=task + 1, max_size=task + 1)) for task in range(tasks)]


@given(matrices())
def test_ranges(rows):
    values = metrics.measure(rows)
    assert 0 <= values["adjusted_forgetting"] <= 100 + 1e-9
    assert values["forgetting"] >= max(0.0, -values["backward_transfer"]) - 1e-9
    assert values["accuracy"] == pytest.approx(metrics.average_accuracy_after_each_task(rows)[-1])
