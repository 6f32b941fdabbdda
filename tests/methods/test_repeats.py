"""Several steps on each batch of the stream, with any method that replays."""

import pytest
import torch
import torch.nn.functional as F

from cler import Learner, ResNet18
from cler.config.making import grid, make_settings
from cler.data.views import Views
from cler.errors import UsageError
from cler.methods import METHODS, Setup
from cler.methods.er import ExperienceReplay
from cler.promises import toy, training
from cler.promises.rule import check_every_phase
from cler.streams import Batch, Tasks
from toys import CIFAR, given_crops, ours

REPEATING = [name for name, each in METHODS.items() if each.replays and each.own_repeats is None]


class Rehearsal(ExperienceReplay):
    """ER with the loss of the reference: the mean over the replay plus the mean over the stream, in one pass."""

    def observe(self, batch):
        replay = self.buffer.sample(self.setup.replay_batch)
        images = torch.cat([self.views.augmented(replay.pixels), batch.images])
        (logits,), _ = self.outputs(images, pixels=batch.pixels, labels=batch.labels)
        replayed, stream = logits.tensor_split([len(replay.labels)])
        terms = {"stream": F.cross_entropy(stream, batch.labels), "replay": F.cross_entropy(replayed, replay.labels)}
        self.descend(terms)
        self.buffer.add(batch.pixels, batch.labels)
        return terms


def test_golden_repeated_steps(golden, load_golden, assert_close):
    fixture, weights = golden("frontier/rar"), golden("frontier/net_nf4")
    n_classes = len(weights["classifier.bias"])
    network = ResNet18(n_classes, width=len(weights["stem.conv"])).double()
    load_golden(network, weights)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    views = Views(*CIFAR, dtype=torch.float64)
    pairs = zip(fixture["stream_crops"], fixture["draw_crops"], strict=True)
    views.view = given_crops(*(crops for pair in pairs for crops in pair))
    capacity, repeats = len(fixture["buffer_labels"]), int(fixture["repeats"])
    setup = Setup(
        network=network,
        views=views,
        tasks=Tasks.of_sizes([n_classes]),
        image_shape=tuple(fixture["buffer_images"].shape[1:]),
        lr=float(fixture["lr"]),
        buffer=capacity,
        replay_batch=fixture["draws"].shape[1],
        repeats=repeats,
    )
    method = Rehearsal(setup)
    method.buffer.add(fixture["buffer_images"], fixture["buffer_labels"])
    draws = iter(fixture["draws"])
    method.buffer.draw_slots = lambda count: next(draws)
    pixels, labels = fixture["stream_images"], fixture["stream_labels"]
    terms = method.learn(Batch(pixels, views.augmented(pixels), labels))
    assert_close(terms["stream"], fixture["loss_stream"].mean())
    assert_close(terms["replay"], fixture["loss_replay"].mean())
    assert int(method.buffer.offered) == capacity + len(labels)
    state = network.state_dict()
    for name, value in fixture.under("after.").items():
        assert_close(state[ours(name)], value, name)
    for name, norm in zip(fixture["step_norm_names"].tolist(), fixture["step_norms"], strict=True):
        assert_close((state[ours(name)] - before[ours(name)]).norm(), norm, name)


@pytest.mark.parametrize("method", REPEATING)
def test_every_method_that_replays_can(method):
    """Within the rule; two steps of the optimizer for a batch, which the buffer is offered once."""
    run = toy.make_short_run(method, repeats=2, batch=8)
    check_every_phase(run)
    seen, offered = [], []
    learn, add = run.method.observe, run.method.buffer.add
    run.method.observe = lambda batch: seen.append(batch) or learn(batch)
    run.method.buffer.__class__ = type("Watched", (type(run.method.buffer),), {})
    type(run.method.buffer).add = lambda _, *given, **extra: offered.append(len(seen)) or add(*given, **extra)
    run.step()
    assert len(seen) == 2
    assert torch.equal(seen[0].pixels, seen[1].pixels)
    assert not torch.equal(seen[0].images, seen[1].images)
    assert offered == ([] if method == "xder" else [2])  # X-DER fills its buffer after the task


def test_a_run_with_several_steps_resumes(tmp_path):
    training.resumes("er", repeats=3, folder=tmp_path, stops=[(0, 1)], data=toy.colors())


def test_a_learner_takes_them_too():
    data = toy.colors(size=16)
    images, labels = data.train_images.permute(0, 2, 3, 1).numpy()[::6], data.train_labels.tolist()[::6]
    once, thrice = (Learner("er", "none", image_size=16, width=2, buffer=20, repeats=n, device="cpu") for n in (1, 3))
    for learner in (once, thrice):
        learner.partial_fit(images, labels)
    assert once.n_seen_ == thrice.n_seen_
    assert not (once.predict_proba(images) == thrice.predict_proba(images)).all()


@pytest.mark.parametrize(
    ("method", "says"),
    [
        ("finetune", "repeats 3 is for methods with a buffer, and finetune has none"),
        ("cope", "repeats 3: cope has inner instead; set that"),
        ("dualnet", "repeats 3: dualnet has fast_steps instead; set that"),
    ],
)
def test_methods_that_cannot_are_refused(method, says):
    with pytest.raises(UsageError, match=says):
        make_settings(method=method, repeats=3)


def test_in_a_grid_methods_without_a_buffer_take_one_step():
    made = grid({"method": ["finetune", "er"], "repeats": 3})
    assert [(one.method, one.repeats) for one in made] == [("finetune", 1), ("er", 3)]
