"""What golden steps of replay methods share: a method as it stands before them, and what it should be afterwards."""

import pytest
import torch

from cler import ResNet18
from cler.data.views import Views
from cler.methods import Setup
from cler.streams import Tasks
from toys import CIFAR, given_crops, ours


@pytest.fixture
def before_golden_steps(golden, load_golden):
    def make(method, fixture, crops, *, tasks=2, classifier=None, **settings):
        """A method on the golden network, its buffer filled with the stored images; views are the given crops.

        What is offered to the buffer is listed in `offered`, and none of it is stored.
        """
        weights = golden("frontier/net_nf4")
        n_classes = len(weights["classifier.weight"])
        network = ResNet18(n_classes, width=len(weights["stem.conv"])).double()
        load_golden(network, weights)
        if classifier is not None:
            network.replace_classifier(classifier(network.classifier).double())
        views = Views(*CIFAR, dtype=torch.float64)
        views.view = given_crops(*crops)
        capacity = len(fixture["buffer_labels"])
        made = method(
            Setup(
                network=network,
                views=views,
                tasks=Tasks.of_sizes([n_classes // tasks] * tasks),
                image_shape=tuple(fixture["buffer_images"].shape[1:]),
                lr=float(fixture["lr"]),
                buffer=capacity,
                **settings,
            )
        )
        memory = made.buffer
        memory.pixels[:capacity] = fixture["buffer_images"]
        memory.labels[:capacity] = fixture["buffer_labels"]
        for name in memory.extra:
            memory.extra[name] = memory.extra[name].double()
            memory.extra[name][:capacity] = fixture[f"buffer_{name}"]
        memory.offered.fill_(capacity)
        memory.filled, made.offered = capacity, []
        memory.add = lambda pixels, labels, **extra: made.offered.append((pixels, labels, extra))
        network.train()
        return made

    return make


@pytest.fixture
def assert_after(assert_close):
    def check(network, fixture, case, before, names=lambda name: name):
        """All tensors of a case, and how far every trainable one has come from a state before."""
        after = network.state_dict()
        stored = fixture.under(f"{case}.after.")
        assert any(name.endswith(".mean") for name in stored)
        for name, value in stored.items():
            assert_close(after[ours(names(name))], value, name)
        listed = (ours(names(str(name))) for name in fixture[f"{case}.step_norm_names"])
        norms = dict(zip(listed, fixture[f"{case}.step_norms"], strict=True))
        assert norms.keys() == {name for name, _ in network.named_parameters()}
        for name, norm in norms.items():
            assert_close((after[name] - before[name]).norm(), norm, name)

    return check
