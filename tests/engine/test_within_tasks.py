"""Evaluation within tasks: it finds accuracies, and changes nothing of what is trained."""

import copy
import json

import pytest
import torch

from cler.config.making import make_settings
from cler.engine import train
from cler.methods import METHODS
from cler.promises import training
from cler.promises.rule import check_rule
from cler.promises.state import differences
from cler.promises.toy import in_later_task, make_short_run
from cler.runs.results import Result, make_result, read_result

pytestmark = pytest.mark.usefixtures("shallow")
COUNTS = {"run.predicted", "run.last_label"}


def finished(method, **changes):
    run = make_short_run(method, **changes)
    train([run])
    return run


@pytest.mark.parametrize("method", METHODS)
def test_training_does_not_change_by_a_bit(method):
    without, within = finished(method), finished(method, evaluate_every=2)
    left, right = without.state(), within.state()
    assert right.tensors.keys() - left.tensors.keys() == COUNTS
    assert not differences(left.tensors, {name: each for name, each in right.tensors.items() if name not in COUNTS})
    assert {**left.numbers, "run.seconds": 0} == {**right.numbers, "run.seconds": 0}
    assert without.accuracy == within.accuracy
    assert without.curves == {}
    assert within.curves["task"]


@pytest.mark.parametrize("method", METHODS)
def test_predicting_before_learning_keeps_the_rule(method):
    check_rule(in_later_task(make_short_run(method, evaluate_every=1, batch=8)))


@pytest.mark.parametrize("method", ["finetune", "er-ace", "xder", "lwf-mc"])
def test_it_is_resumed_to_the_bit(method):
    training.resumes(method, evaluate_every=2)


def test_where_it_is_evaluated():
    run = finished("er-ace", batch=8, evaluate_every=3)
    steps = run.schedule[0]
    points = [(task, step) for task in range(2) for step in (*range(3, steps, 3), steps)]
    assert list(zip(run.curves["task"], run.curves["step"], strict=True)) == points
    for name in ("class_il", "task_il"):
        assert [len(row) for row in run.curves[name]] == [task + 1 for task, _ in points]
        assert [row for row, (_, step) in zip(run.curves[name], points, strict=True) if step == steps] == (
            run.accuracy[name]
        )
        assert [len(row) for row in run.curves[f"ahead_{name}"]] == [2, 1]
    assert run.curves["tested"] == [20, 20]
    assert [each[3] for each in run.curves["predicted"]] == [8 * (task * steps + step) for task, step in points]


def test_joint_meets_all_tasks_at_once():
    run = finished("joint", evaluate_every=2)
    assert {len(row) for row in run.curves["class_il"]} == {2}
    assert [len(row) for row in run.curves["ahead_class_il"]] == [2]


def test_what_is_predicted_and_what_a_blind_guess_has_right():
    run = make_short_run("finetune", evaluate_every=1000)
    shown = []
    learn = run.method.learn

    def watch(batch):
        with torch.no_grad(), run.method.answering():
            shown.append((run.method.logits(run.views.plain(batch.pixels)).argmax(1), batch.labels))
        return learn(batch)

    run.method.learn = watch
    train([run])
    blind, last = 0, -1
    for _, labels in shown:
        blind, last = blind + int((labels == last).sum()), labels[-1]
    right = sum(int((answers == labels).sum()) for answers, labels in shown)
    assert run.curves["predicted"][-1][0] == right
    assert run.curves["predicted"][-1][2] == blind
    assert run.curves["predicted"][-1][3] == 16 * len(shown)


def test_outputs_that_are_not_numbers_end_a_run():
    run = make_short_run("finetune", evaluate_every=1)
    run.method.logits = lambda images: torch.full((len(images), 4), torch.nan)
    train([run])
    assert "before task 1" in run.failure


# -- in results --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written():
    run = finished("er-ace", evaluate_every=2)
    settings = make_settings(tasks=2, evaluate_every=2).to_dict()
    return json.loads(json.dumps(make_result(settings, 0, run.accuracy, 1.0, 6, {}, curves=run.curves)))


def test_metrics_are_computed_from_what_a_result_holds(written, tmp_path):
    (tmp_path / "result.json").write_text(json.dumps(written))
    result = Result.from_dict(tmp_path, read_result(tmp_path))
    for name in ("average_anytime_accuracy", "worst_case_accuracy", "prequential_accuracy", "blind_accuracy"):
        assert 0 <= result.metrics[name]["class_il"] <= result.metrics[name]["task_il"] <= 100
    assert result.curve("class_il").prequential_windows
    cut = result.until(1)
    assert set(cut.curves["task"]) == {0}
    assert len(cut.curves["ahead_task_il"]) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("task", [3, 1]),
        ("tested", [0]),
        ("tested", None),
        ("class_il", [[101.0]]),
        ("class_il", "rows"),
        ("task_il", []),
        ("ahead_class_il", [[1.0] * 9]),
        ("predicted", [[1, 2]]),
        ("step", []),
    ],
)
def test_curves_that_cannot_be_right_are_refused(written, tmp_path, name, value):
    wrong = copy.deepcopy(written)
    wrong["curves"][name] = value
    (tmp_path / "result.json").write_text(json.dumps(wrong))
    with pytest.raises(ValueError, match="curves"):
        read_result(tmp_path)
