from dataclasses import replace

import pytest

from cler.config.making import make_settings
from cler.errors import UsageError
from cler.runs.compare import compare
from cler.tune.selection import Selection, tuning_lines


@pytest.mark.parametrize(
    ("text", "tasks", "rungs"),
    [
        ("first-tasks:3", 10, [2, 3]),
        ("first-tasks:1", 10, [1]),
        ("first-tasks:2", 2, [2]),
        ("whole-stream", 10, [2, 4, 8, 10]),
        ("whole-stream", 8, [2, 4, 8]),
        ("whole-stream", 5, [2, 4, 5]),
        ("whole-stream", 2, [2]),
        ("whole-stream", 1, [1]),
        ("other-dataset:toy", 3, [2, 3]),
    ],
)
def test_trials_are_compared_after_two_four_eight_tasks_and_at_the_end(text, tasks, rungs):
    selection = Selection.parse(text)
    assert str(selection) == text
    assert selection.rungs(make_settings(method="er", dataset="toy", tasks=tasks)) == rungs


@pytest.mark.parametrize(
    "text",
    ["", "first-tasks", "first-tasks:0", "first-tasks:x", f"first-tasks:{'9' * 5000}", "other-dataset:", "all"],
)
def test_other_ways_are_refused(text):
    with pytest.raises(UsageError, match="must be first-tasks:3, other-dataset:NAME or whole-stream"):
        Selection.parse(text)


def test_a_dataset_that_nobody_knows_is_refused():
    with pytest.raises(UsageError, match="unknown dataset 'nowhere'"):
        Selection.parse("other-dataset:nowhere")


def test_more_tasks_than_there_are_and_tasks_of_joint_are_refused():
    with pytest.raises(UsageError, match="toy has 2 tasks here; take first-tasks:2 or whole-stream"):
        Selection.parse("first-tasks:3").rungs(make_settings(method="er", dataset="toy", tasks=2))
    joint = make_settings(method="joint", dataset="toy", tasks=4)
    with pytest.raises(UsageError, match="joint learns all tasks at once"):
        Selection.parse("first-tasks:3").rungs(joint)
    assert Selection.parse("whole-stream").rungs(joint) == [4]


@pytest.mark.parametrize(
    ("stamp", "changes", "line"),
    [
        (
            {"select_on": "first-tasks:2", "dataset": "toy", "seeds": [0]},
            {},
            "tuned on first-tasks:2 of toy (60 trials, seed 0); on the tasks from 3 on, which tuning did not see, "
            "accuracy is 32.00 ± 2.83 class-incremental, 52.00 ± 2.83 task-incremental",
        ),
        (
            {"select_on": "whole-stream", "dataset": "toy", "seeds": [0, 1]},
            {},
            "tuned on whole-stream of toy (60 trials, seeds 0, 1); tuning saw every task here",
        ),
        (
            {"select_on": "first-tasks:2", "dataset": "toy", "seeds": [0]},
            {"class_order": "seed"},
            "tuned on first-tasks:2 of toy (60 trials, seed 0); tuning may have seen classes of every task here, "
            "because each seed orders them differently",
        ),
        (
            {"select_on": "other-dataset:photos", "dataset": "photos", "seeds": [0]},
            {"class_order": "seed"},
            "tuned on other-dataset:photos (60 trials, seed 0); tuning saw none of these tasks",
        ),
    ],
)
def test_of_tuned_settings_is_told_what_decided_and_what_did_not(runs, stamp, changes, line):
    made = runs.make(runs.plain | changes, [30.0, 34.0])
    tuned = {"names": ["lr", "sparkle"], "trials": 60} | stamp
    groups = compare([replace(each, tuned=tuned) for each in made]).groups
    assert tuning_lines(groups) == [f"ER-ACE: lr 0.01, sparkle – {line}"]
    assert tuning_lines(compare(made).groups) == []
