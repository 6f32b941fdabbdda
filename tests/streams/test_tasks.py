import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cler.errors import UsageError
from cler.streams import Tasks
from cler.streams.tasks import sizes_of


def test_classes_of_tasks_by_hand():
    tasks = Tasks(torch.tensor([1, 0, 2, 0, 1, 1]))
    assert (tasks.number, tasks.sizes, tasks.n_classes) == (3, (2, 3, 1), 6)
    assert [tasks.present(task).tolist() for task in range(3)] == [[1, 3], [0, 4, 5], [2]]
    assert [tasks.past(task).tolist() for task in range(3)] == [[], [1, 3], [1, 3, 0, 4, 5]]
    assert [tasks.seen(task).tolist() for task in range(3)] == [[1, 3], [1, 3, 0, 4, 5], [1, 3, 0, 4, 5, 2]]
    assert [tasks.to_come(task).tolist() for task in range(3)] == [[0, 4, 5, 2], [2], []]
    assert [tasks.not_past(task).tolist() for task in range(3)] == [[1, 3, 0, 4, 5, 2], [0, 4, 5, 2], [2]]
    assert tasks.position.tolist() == [0, 0, 0, 1, 1, 2]
    assert tasks.rank.tolist() == [2, 0, 5, 1, 3, 4]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(0, 1000))
def test_where_a_class_is_among_those_selected(sizes, seed):
    order = torch.randperm(sum(sizes), generator=torch.Generator().manual_seed(seed))
    tasks = Tasks(Tasks.of_sizes(sizes).of_class[order])
    assert tasks.sizes == tuple(sizes)
    for label in range(tasks.n_classes):
        task = int(tasks.of_class[label])
        assert tasks.present(task)[tasks.position[label]] == label
        for later in range(task, tasks.number):
            assert tasks.seen(later)[tasks.rank[label]] == label
    for task in range(tasks.number):
        assert torch.equal(tasks.seen(task), torch.cat([tasks.past(task), tasks.present(task)]))
        assert torch.equal(tasks.not_past(task), torch.cat([tasks.present(task), tasks.to_come(task)]))


@pytest.mark.parametrize("of_class", [[], [0, 2], [1, 1]])
def test_every_task_has_a_class(of_class):
    with pytest.raises(ValueError, match="every task needs a class"):
        Tasks(torch.tensor(of_class, dtype=torch.int64))


@pytest.mark.parametrize(
    ("tasks", "sizes"),
    [(2, (6, 6)), (1, (12,)), ("3", (4, 4, 4)), ("5+5+2", (5, 5, 2)), ((1, 11), (1, 11)), ([12], (12,))],
)
def test_sizes(tasks, sizes):
    assert sizes_of(tasks, 12) == sizes


@pytest.mark.parametrize("tasks", [0, -1, 5, 7, 13, 24, "5", "many", "", "1.5"])
def test_a_number_that_does_not_divide_the_classes_is_refused(tasks):
    with pytest.raises(UsageError) as refused:
        sizes_of(tasks, 12)
    assert str(refused.value) == (
        "tasks must be a number that divides the 12 classes (1, 2, 3, 4, 6, 12), or the number of classes of each "
        f"task, joined by +, as 11+1; {'nothing' if tasks == '' else tasks} does not divide them"
    )


@pytest.mark.parametrize("tasks", ["5+5", "5+5+5", "12+0", "+12", "6+-1+7", "a+b", (5, 5), (13, -1), [2], []])
def test_sizes_that_do_not_add_up_are_refused(tasks):
    with pytest.raises(UsageError) as refused:
        sizes_of(tasks, 12)
    given = tasks if isinstance(tasks, str) else "+".join(map(str, tasks))
    assert str(refused.value) == (
        f"tasks must be numbers of classes from 1 that add up to 12, one for each task, not {given}"
    )
