import math
import re

import pytest

from cler.report.charts import ChartLine, accuracy_chart, curve_chart, heat_map, loss_chart, round_ticks, within_tasks
from cler.report.details import MOST_POINTS, loss_curve
from cler.runs.logs import Log


@pytest.mark.parametrize(
    ("low", "high", "most", "expected"),
    [
        (0, 1, 8, (0, 0.2, 0.4, 0.6, 0.8, 1.0)),
        (0, 5e-324, 8, (0, 0.2)),  # as a log may say that somebody has forged
        (0, 43, 8, (0, 10, 20, 30, 40, 50)),
        (-4.5, 8.2, 8, (-5, 0, 5, 10)),
        (0, 0, 8, (0, 0.2)),
        (0, 3e-7, 6, (0, 1e-7, 2e-7, 3e-7)),
        (0, 2e25, 6, (0, 5e24, 1e25, 1.5e25, 2e25)),
    ],
)
def test_ticks_are_round_and_few_and_reach_beyond_what_is_shown(low, high, most, expected):
    found = round_ticks(low, high, most)
    assert found == pytest.approx(expected)
    assert len(found) <= most


def curves(step, class_il):
    """Evaluations in the middle and at the end of two tasks of so many steps."""
    rows = [[class_il], [class_il + 10], [class_il, class_il + 2], [class_il, class_il]]
    half = {"task": [0, 0, 1, 1], "step": [step // 2, step] * 2, "class_il": rows, "task_il": rows, "tested": [5, 5]}
    return half | {"predicted": [[0, 0, 0, 1]] * 4, "ahead_class_il": [], "ahead_task_il": []}


def test_accuracy_within_tasks_is_the_mean_at_the_moments_that_runs_share(runs):
    (group,) = runs.compare((runs.plain, [30.0, 30.0])).groups
    for run, value in zip(group.results, (20.0, 40.0), strict=True):
        object.__setattr__(run, "curves", curves(10, value))
    assert [place for place, *_ in within_tasks(group, "class_il")] == [0.5, 1.0, 1.5, 2.0]
    assert [mean for _, mean, _ in within_tasks(group, "class_il")] == [30.0, 40.0, 31.0, 30.0]
    object.__setattr__(group.results[0], "curves", curves(10, 20.0) | {"step": [4, 10, 4, 10]})  # evaluated elsewhen
    assert [place for place, *_ in within_tasks(group, "class_il")] == [1.0, 2.0]
    object.__setattr__(group.results[0], "curves", None)
    assert within_tasks(group, "class_il") == []


def test_a_chart_begins_at_no_task_only_where_there_is_something_to_draw_there(runs):
    groups = runs.compare((runs.plain, [30.0]), (runs.joint, [50.0])).groups
    lines = [ChartLine(group.label, "c0 d0", group) for group in groups]
    at = re.compile(r'class="line[^>]*d="M(\d+) ')
    assert len(set(at.findall(curve_chart(lines, "class_il", top=60, title="t")))) == 1
    for run in next(group for group in groups if not group.reference).results:
        object.__setattr__(run, "curves", curves(10, 30.0))
    level, fine = sorted(map(int, at.findall(curve_chart(lines, "class_il", top=60, title="t"))))
    assert level < fine  # Joint's from 0 tasks on, the other from half a task on


def test_a_loss_is_the_mean_of_runs_that_logged_at_different_steps():
    logs = [
        Log({"a": [(0, 2, 4.0), (0, 6, 2.0), (0, 10, 1.0)]}, {0: 10}),
        Log({"a": [(0, 1, 6.0), (0, 10, 3.0)]}, {0: 10}),
    ]
    (first, *_), (*_, last) = loss_curve("a", logs), loss_curve("a", logs)
    assert first[:2] == (0.1, 6.0)  # only the second had begun
    assert last[0] == 1.0
    assert last[1] == 2.0


def test_a_long_log_is_drawn_by_few_points_and_none_of_it_is_skipped():
    points = [(0, step, 100.0 if step == 777 else 0.0) for step in range(1, 1001)]
    found = loss_curve("a", [Log({"a": points}, {0: 1000})])
    assert len(found) == MOST_POINTS
    assert max(mean for _, mean, _ in found) == pytest.approx(100 / 20, rel=0.2)
    assert len(loss_chart(found, 1, title="t")) < 2500


def test_a_loss_that_was_logged_once_is_seen():
    once, twice = ([(place, 1.0, math.nan) for place in places] for places in ((0.5,), (0.5, 1.0)))
    assert "<circle" in loss_chart(once, 1, title="t")
    assert "<circle" not in loss_chart(twice, 1, title="t")


def test_curves_of_a_run_that_is_not_finished_leave_room_for_its_other_tasks():
    last = re.compile(r'class="tick middle"[^>]*>(\d+)<')
    points = [(1.0, 60.0, math.nan), (2.0, 40.0, math.nan)]
    for chart in (loss_chart, accuracy_chart):
        assert last.findall(chart(points, 5, title="t")) == ["1", "2", "3", "4", "5"]
        assert last.findall(chart(points, 1, title="t")) == ["1", "2"]
    assert "after task 2: 40.0 %" in accuracy_chart(points, 5, title="t")


def test_a_matrix_of_many_tasks_shows_its_numbers_one_at_a_time():
    few, many = (heat_map([[50.0] * size] * size, top=100, title="t") for size in (10, 11))
    assert 'class="heat"' in few
    assert 'class="heat small"' in many
    assert many.count('<td class="h10">50</td>') == 121
    assert re.findall(r"<th>(\d*)</th>", few) == ["", *map(str, range(1, 11)), *map(str, range(1, 11))]
