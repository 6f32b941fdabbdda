import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cler import metrics
from cler.errors import UsageError
from toys import close

GOLDEN = Path(__file__).parent / "golden" / "metrics.npz"


@pytest.fixture(scope="module")
def golden():
    with np.load(GOLDEN) as file:
        return {key: file[key].astype(np.float64) if file[key].dtype.kind == "f" else file[key] for key in file.files}


def golden_rows(golden):
    return [[float(x) for x in row if not np.isnan(x)] for row in golden["acc_matrix"]]


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


@pytest.fixture(scope="module")
def anytime():
    with np.load(GOLDEN.with_name("anytime_metrics.npz")) as file:
        return {key: file[key].astype(np.float64) if file[key].dtype.kind == "f" else file[key] for key in file.files}


def curves_of(anytime, survey):
    """The curve of each seed of a survey, cut after each of its evaluations."""
    for seed, accuracies in enumerate(anytime[f"{survey}.accuracy"]):
        task, tested = anytime[f"{survey}.task"].tolist(), anytime[f"{survey}.n_val"].tolist()
        rows = [row[: now + 1].tolist() for row, now in zip(accuracies, task, strict=True)]
        for end in range(1, len(rows) + 1):
            yield (seed, end - 1), metrics.Curve(task[:end], rows[:end], tested)


@pytest.mark.parametrize("survey", ["survey20", "survey5"])
@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("average_anytime_accuracy", "aaa"),
        ("min_accuracy", "average_min_acc"),
        ("worst_case_accuracy", "wcacc_first_task_filled"),
    ],
)
def test_golden_anytime_metrics(anytime, survey, name, theirs):
    expected = anytime[f"{survey}.{theirs}"]
    ours = np.zeros_like(expected)
    for place, curve in curves_of(anytime, survey):
        ours[place] = metrics.METRICS[name].function([], curve=curve)
    assert np.array_equal(np.isnan(ours), np.isnan(expected))
    assert close(np.nan_to_num(ours), np.nan_to_num(expected))


def test_golden_pooled_accuracy(anytime):
    for survey in ("survey20", "survey5"):
        for (seed, end), curve in curves_of(anytime, survey):
            assert close(curve.pooled[-1], anytime[f"{survey}.stream_accuracy"][seed, end])


def test_golden_metrics_of_capymoa(anytime):
    at_ends, all_of_them = anytime["capymoa.accuracy_matrix"], anytime["capymoa.anytime_accuracy_matrix"]
    tasks = len(at_ends)
    task = np.repeat(np.arange(tasks), len(all_of_them) // tasks)
    rows = [row[: now + 1].tolist() for row, now in zip(all_of_them, task, strict=True)]
    ahead = [[0.0] * tasks, *(row[now + 1 :].tolist() for now, row in enumerate(at_ends[:-1]))]
    curve = metrics.Curve(task.tolist(), rows, [anytime["capymoa.y_true"].shape[1]] * tasks, ahead)
    assert close(metrics.average_anytime_accuracy([], curve), anytime["capymoa.anytime_accuracy_seen_avg"])
    assert close(metrics.future_accuracy([], curve), anytime["capymoa.forward_transfer"])
    after_each = [row[: now + 1].tolist() for now, row in enumerate(at_ends)]
    assert close(metrics.incremental_accuracy(after_each), anytime["capymoa.accuracy_seen_avg"])
    assert close(metrics.accuracy(after_each), anytime["capymoa.accuracy_final"])


def test_golden_accuracy_on_the_classes_met(anytime):
    """In a stream without boundaries it is what i-Blurry's authors call A_AUC."""
    met = anytime["auc.query_accuracy"].tolist()
    curve = metrics.Curve([0] * len(met), [[0.0]] * len(met), [1], met=met)
    assert close(metrics.average_anytime_accuracy([], curve), anytime["auc.A_auc"])


def test_golden_forward_transfer(golden):
    untrained, before = golden["random_acc"].tolist(), golden["next_task_acc"].tolist()
    ahead = [untrained, *([accuracy] for accuracy in before[: len(untrained) - 1])]
    curve = metrics.Curve([0], [[0.0]], [1], ahead)
    assert close(metrics.forward_transfer([], curve), golden["fwt"])


def predictions(anytime, ends):
    """A curve with an evaluation after each of these numbers of samples."""
    right = np.cumsum(anytime["prequential.y_true"] == anytime["prequential.y_pred"])
    counted = [(int(right[end - 1]), 0, int(end)) for end in ends]
    return metrics.Curve([0] * len(counted), [[0.0]] * len(counted), [1], predicted=counted)


def test_golden_prequential_accuracy(anytime):
    expected = anytime["prequential.cumulative_accuracy"]
    ours = [metrics.prequential_accuracy([], predictions(anytime, [end + 1])) for end in range(len(expected))]
    assert close(ours, expected)
    bounds, window = anytime["prequential.boundaries"][1:], int(anytime["prequential.window"])
    assert close(predictions(anytime, bounds).prequential_windows, anytime["prequential.accuracy_per_task"])
    windows = range(window, len(expected) + 1, window)
    assert close(predictions(anytime, windows).prequential_windows, anytime["prequential.windowed_accuracy"])


def test_a_curve_by_hand():
    curve = metrics.Curve(
        task=[0, 0, 1, 1],
        rows=[[20.0], [80.0], [50.0, 10.0], [60.0, 90.0]],
        tested=[30, 10],
        ahead=[[10.0, 20.0], [35.0]],
        predicted=[(1, 0, 10), (4, 2, 20), (6, 2, 30), (10, 5, 40)],
    )
    values = metrics.measure([[80.0], [60.0, 90.0]], {"curve": curve})
    expected = {
        "average_anytime_accuracy": (20 + 80 + 40 + 67.5) / 4,
        "min_accuracy": 50,
        "worst_case_accuracy": (90 + 50) / 2,
        "forward_transfer": 15,
        "future_accuracy": 35,
        "prequential_accuracy": 25,
        "blind_accuracy": 12.5,
    }
    assert {name: values[name] for name in expected} == pytest.approx(expected)


def test_an_evaluation_before_the_first_prediction_says_nothing_of_the_stream():
    curve = metrics.Curve([0], [[20.0]], [30], predicted=[(0, 0, 0)])
    assert np.isnan(metrics.prequential_accuracy([], curve))
    assert curve.prequential_windows == []


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
    assert metrics.adjusted_forgetting([[0.5], [0.25, 50.0]]) == 50  # this one was, seldom


@pytest.mark.parametrize("rows", [[[42.0]], [[30.0, 54.0]]])
def test_without_an_earlier_task_there_is_nothing_to_forget(rows):
    """A single task, and Joint, which learns all at once."""
    expected = dict.fromkeys(metrics.METRICS, float("nan")) | {"accuracy": 42.0, "incremental_accuracy": 42.0}
    assert metrics.measure(rows) == pytest.approx(expected, nan_ok=True)
    assert metrics.average_accuracy_after_each_task(rows) == [42]


@pytest.mark.parametrize("rows", [[[50], [math.nan, 50]], [[math.nan], [50, 50]], [[80], [math.nan, 60], [40, 50, 20]]])
def test_of_an_accuracy_that_is_not_a_number_nothing_is_said(rows):
    assert math.isnan(metrics.adjusted_forgetting(rows))
    assert math.isnan(metrics.forgetting(rows))


def test_before_the_first_evaluation_nothing_is_known():
    nothing = pytest.approx(dict.fromkeys(metrics.METRICS, float("nan")), nan_ok=True)
    assert metrics.measure([]) == nothing
    curve = metrics.Curve([], [], [30, 10])
    of_curves = {name: each for name, each in metrics.METRICS.items() if each.facts}
    assert all(np.isnan(each.function([], curve=curve)) for each in of_curves.values())


def test_every_metric_says_what_it_means():
    for name, metric in metrics.METRICS.items():
        assert name.isidentifier()
        assert metric.meaning.endswith(".")
        assert metric.better in ("higher", "lower")


@pytest.mark.parametrize("function", [lambda rows: rows[7][0], lambda rows: None])
def test_a_metric_that_fails_is_named(monkeypatch, function):
    monkeypatch.setitem(metrics.METRICS, "third", metrics.Metric(function, "", "higher", "%"))
    with pytest.raises(UsageError, match=r"^the metric third fails with (IndexError|TypeError): "):
        metrics.measure([[50.0]])


def test_a_metric_can_ask_for_other_facts(monkeypatch):
    per_step = metrics.Metric(lambda rows, steps: rows[-1][0] / steps, "Of nothing.", "higher", "%", facts=("steps",))
    monkeypatch.setitem(metrics.METRICS, "per_step", per_step)
    assert metrics.measure([[50.0]], {"steps": 10, "seconds": 3.0})["per_step"] == 5


@pytest.mark.parametrize("rows", [[], [[]], [[1.0], [1.0]], [[1.0, 2.0], [1.0, 2.0]], [[1.0], [1.0, 2.0, 3.0]]])
@pytest.mark.parametrize("name", [name for name, metric in metrics.METRICS.items() if not metric.facts])
def test_what_is_not_a_triangle_is_refused(name, rows):
    with pytest.raises(UsageError, match="accuracy matrix"):
        metrics.METRICS[name].function(rows)


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
