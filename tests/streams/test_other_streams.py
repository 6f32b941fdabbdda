"""What holds for every stream, and for those that are neither class-incremental nor blurry."""

import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cler.config.making import make_settings, unusual
from cler.config.registry import DOMAINS
from cler.errors import UsageError
from cler.streams import STREAMS, Stream, domains
from cler.streams.domain_incremental import DomainIncremental, DomainIncrementalOptions
from cler.streams.long_tailed import LongTailed, LongTailedOptions, long_tail
from cler.streams.shuffled import Shuffled
from toys import noise

WHOLE = sorted(STREAMS.keys() - {"long-tailed"})


def orders(stream, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [stream.order(task, generator) for task in range(len(stream.schedule))]


@settings(max_examples=60)
@given(
    name=st.sampled_from(sorted(STREAMS)),
    tasks=st.integers(1, 4),
    per_task=st.integers(1, 3),
    each=st.integers(8, 15),
    batch=st.integers(1, 2),
    seed=st.integers(0, 1000),
    validate=st.sampled_from([0.0, 0.4]),
)
def test_what_holds_for_every_stream(name, tasks, per_task, each, batch, seed, validate):
    classes = tasks * per_task
    data = noise(classes, each, size=2)
    how = {"batch": batch, "class_order": seed, "validate": validate}
    if name == "long-tailed":
        how["options"] = LongTailedOptions(imbalance=3)
    stream, again = (STREAMS[name](data, tasks, **how) for _ in range(2))
    assert stream.n_tasks == len(stream.schedule) == tasks
    assert sorted(stream.class_order.tolist()) == list(range(classes))
    came = torch.cat([rows.flatten() for rows in orders(stream)])
    assert len(came.unique()) == len(came)  # no image twice
    assert [len(rows) for rows in orders(stream)] == list(stream.schedule)
    assert all(map(torch.equal, orders(stream), orders(again)))
    held_out = torch.cat(stream._held_out)
    assert not torch.isin(came, held_out).any()
    if name in WHOLE:  # every image, but for incomplete batches
        tails = batch * (tasks if stream.boundaries else 1)
        assert len(came) + len(held_out) > len(data.train_labels) - tails - tasks
    tested = [stream.test(task).labels for task in range(tasks)]
    assert set(torch.cat(tested).tolist()) == set(range(classes))
    if name != "domain-incremental":
        assert sum(map(len, tested)) == len(data.test_labels)
    merged = STREAMS[name](data, tasks, merged=True, **how)
    assert len(merged.schedule) == 1


@pytest.mark.parametrize("name", sorted(STREAMS))
def test_seeds_differ(name):
    data = noise(4, 20, size=2)
    streams = [STREAMS[name](data, 2, batch=1, class_order=seed) for seed in (0, 1)]
    one, other = (torch.cat(orders(stream, seed)) for seed, stream in enumerate(streams))
    assert not torch.equal(one, other)


def test_shuffled_has_every_class_in_every_part():
    stream = Shuffled(noise(4, 50, size=2), 2, batch=5, class_order=3)
    assert all(set(stream.train(task).labels.tolist()) == {0, 1, 2, 3} for task in range(2))
    first = [int((stream.train_labels[torch.cat(orders(stream)).flatten()] == k).nonzero()[0]) for k in range(4)]
    assert first == sorted(first)
    natural = stream.class_order[stream.test(0).labels]
    assert set(natural.tolist()) == {0, 1}


# -- long-tailed -------------------------------------------------------------------------------------------------------


def test_a_long_tail_by_hand():
    counts = long_tail(torch.tensor([500, 500, 500]), 100.0, torch.tensor([0, 2, 1]))
    assert counts.tolist() == [500, 5, 50]
    assert long_tail(torch.tensor([3, 3]), 1000.0, torch.tensor([0, 1])).tolist() == [3, 1]
    assert long_tail(torch.tensor([9, 0]), 1.0, torch.tensor([0, 1])).tolist() == [9, 0]


@pytest.mark.parametrize("tail", ["ordered", "shuffled"])
def test_the_images_of_each_class(tail):
    data, how = noise(6, 100, size=2), LongTailedOptions(imbalance=10, tail=tail)
    streams = [LongTailed(data, 3, batch=5, class_order=seed, options=how) for seed in (1, 2)]
    counts = [torch.cat([stream.train(task).labels for task in range(3)]).bincount().tolist() for stream in streams]
    assert all(sorted(each) == [10, 16, 25, 40, 63, 100] for each in counts)
    if tail == "ordered":
        assert counts[0] == counts[1] == sorted(counts[0], reverse=True)
    else:  # the same classes of the dataset, whatever the order
        by_class = [dict(zip(s.class_order.tolist(), c, strict=True)) for s, c in zip(streams, counts, strict=True)]
        assert by_class[0] == by_class[1]
    assert len(streams[0].test(0).labels) == 10


# -- domain-incremental ------------------------------------------------------------------------------------------------


def test_each_domain_shows_its_images_by_its_transform(monkeypatch):
    monkeypatch.setattr(DOMAINS, "_entries", dict(DOMAINS._entries))
    domains("dark and light", lambda images: images // 2, lambda images: 255 - images)
    data = noise(3, 20, size=4)
    how = DomainIncrementalOptions(domains="dark and light")
    stream = DomainIncremental(data, 2, batch=5, options=how, validate=0.1)
    transforms = DOMAINS["dark and light"].transforms
    for task, transform in enumerate(transforms):
        members = stream._train[task]
        assert torch.equal(stream.train(task).pixels, transform(data.train_images[members]))
        assert torch.equal(stream.test(task).pixels, transform(data.test_images))
        assert torch.equal(stream.held_out(task).pixels, transform(data.train_images[stream._held_out[task]]))
        assert set(stream.train(task).labels.tolist()) == {0, 1, 2}
    assert torch.equal(data.train_images, noise(3, 20, size=4).train_images)  # others use them too
    assert stream.tasks.sizes == (3,)


def test_no_transform_is_asked_for_no_images(monkeypatch):
    monkeypatch.setattr(DOMAINS, "_entries", dict(DOMAINS._entries))
    monkeypatch.setattr("cler.data.images.CHUNK", 1)
    asked = []
    domains("counted", *[lambda images: asked.append(len(images)) or images] * 2)
    DomainIncremental(noise(3, 4, size=4), 2, batch=5, options=DomainIncrementalOptions(domains="counted"))
    assert asked == [1] * 12


def test_runs_side_by_side_share_the_images_of_their_domains(monkeypatch):
    monkeypatch.setattr(DOMAINS, "_entries", dict(DOMAINS._entries))
    data, other = noise(3, 20, size=4), noise(3, 20, size=4)
    first, second, fewer = (DomainIncremental(data, tasks, batch=5, class_order=tasks) for tasks in (4, 4, 2))
    assert first.data is second.data
    assert first.data is not fewer.data
    assert DomainIncremental(other, 4, batch=5).data is not first.data
    made = weakref.ref(first.data)
    del first, second
    assert made() is None  # nobody uses it, though the data that it was made of is there


def test_what_a_stream_of_domains_refuses(monkeypatch):
    monkeypatch.setattr(DOMAINS, "_entries", dict(DOMAINS._entries))
    data = noise(4, 20, size=4)
    for tasks in (5, "2+2"):
        with pytest.raises(UsageError, match="must be a number from 1 to 4, of the domains rotations"):
            DomainIncremental(data, tasks, batch=5)
    domains("cut", lambda images: images[:, :, :2])
    with pytest.raises(UsageError, match=r"the transform of task 1 gives back torch.uint8 \(80, 3, 2, 4\)"):
        DomainIncremental(data, 1, batch=5, options=DomainIncrementalOptions(domains="cut"))
    with pytest.raises(UsageError, match="need functions"):
        domains("none")
    with pytest.raises(UsageError, match=r"validate 0.05 holds out no image of task 3: hold out a larger share"):
        DomainIncremental(data, 4, batch=5, validate=0.05)


def test_there_is_a_task_for_each_transform_where_nobody_says_how_many():
    assert make_settings(stream="domain-incremental").tasks == 4
    assert make_settings(stream="domain-incremental", tasks=3).tasks == 3
    assert "tasks" not in unusual(make_settings(stream="domain-incremental"))
    assert unusual(make_settings(stream="domain-incremental", tasks=3))["tasks"] == 3
    assert make_settings(stream="blurry").tasks == make_settings().tasks == 5


def test_the_default_is_listed_first(cler_here):
    assert next(iter(STREAMS)) == "class-incremental"
    assert "(known: class-incremental, blurry, domain-incremental, long-tailed, shuffled)" in (
        cler_here("run", "--stream", "nowhere").err
    )


class Planned(Stream):
    """Whatever is asked for."""

    name = "planned"
    change = staticmethod(lambda parts: parts)

    def plan(self, labels, images, tasks, class_order):
        plan = super().plan(labels, images, tasks, class_order)
        return plan._replace(parts=self.change(plan.parts))


def test_a_stream_whose_classes_come_in_several_tasks_has_to_say_so(monkeypatch):
    monkeypatch.setattr(Planned, "change", staticmethod(lambda parts: [torch.cat(parts), parts[1]]))
    with pytest.raises(
        UsageError, match=r"^the stream planned has images of a class in other tasks .* disjoint = False"
    ):
        Planned(noise(), 2)
    monkeypatch.setattr(Planned, "disjoint", False)
    assert Planned(noise(), 2).n_tasks == 2


@pytest.mark.parametrize("change", [lambda parts: [part > 3 for part in parts], lambda parts: [[1, 2], [3, 4]]])
def test_a_plan_is_of_numbers_of_images(change, monkeypatch):
    monkeypatch.setattr(Planned, "change", staticmethod(change))
    with pytest.raises(UsageError, match=r"^plan of the stream planned .* of int64 tensors; .* mask\.nonzero\(\)"):
        Planned(noise(), 2)


@pytest.mark.parametrize("boundaries", [True, False])
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda parts: parts + parts, "planned plans 4 parts and is tested in 2 tasks"),
        (lambda parts: parts[:1], "planned plans 1 parts and is tested in 2 tasks"),
        (lambda parts: [torch.arange(20), torch.arange(20, 40)], "images to train on that are not among those"),
    ],
)
def test_a_plan_that_a_run_would_fail_with_is_refused(change, says, boundaries, monkeypatch):
    monkeypatch.setattr(Planned, "boundaries", boundaries)
    assert Planned(noise(), 2, validate=0.4).n_tasks == 2
    monkeypatch.setattr(Planned, "change", staticmethod(change))
    with pytest.raises(UsageError, match=says):
        Planned(noise(), 2, validate=0.4)
