"""Every method with an ordinary module for a network: a small CNN with PyTorch's own batch norm and dropout."""

from itertools import cycle

import pytest
import torch
from torch import nn

import cler
from cler.config.making import make_settings
from cler.engine import train
from cler.errors import UsageError
from cler.methods import METHODS
from cler.methods.xder import XDer
from cler.nets import ResNet18
from cler.promises import toy
from cler.runs.build import build_run, make_network
from toys import noise

VARIANTS = {"pcr": ["hpcr"], "xder": ["released"], "cope": ["text"], "lwf-mc": ["released"], "r-dfcil": ["text"]}
METHOD_NAMES = [name for name, method in METHODS.items() if method.own_network is None]
PAIRS = list(zip(METHOD_NAMES, cycle(["jigsaw", "none", "barlow-twins"]), strict=False))


def small_cnn():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout2d(0.1)),
        nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 7)),
    )


def small_backbone():
    return cler.backbone(small_cnn(), tap="0", head="1", classifier="2.2")


DATA = noise(4, 16, size=12)


def make_run(method, regularizer, network, **changes):
    return toy.make_run(method, regularizer, data=DATA, network=network, **changes)


@pytest.mark.parametrize(("method", "regularizer"), PAIRS, ids=["+".join(pair) for pair in PAIRS])
def test_trains_and_resumes_to_the_bit_without_touching_the_global_generator(method, regularizer):
    network, global_state = small_backbone(), torch.get_rng_state()
    run = make_run(method, regularizer, network)
    first = {name: each.clone() for name, each in run.state().tensors.items()}
    train([run])
    assert run.complete
    state = run.state()
    assert any(not torch.equal(first[name], state.tensors[name]) for name in first if ".module.0" in name)
    assert torch.equal(torch.get_rng_state(), global_state)
    counters = [name for name in state.tensors if name.startswith("network.") and "num_batches_tracked" in name]
    assert len(counters) == 2 * len(run.method.network.members)

    halfway = make_run(method, regularizer, network)
    halfway.begin_task(0)
    for _ in range(2):
        halfway.step()
    resumed = make_run(method, regularizer, network)
    kept = halfway.state()
    resumed.restore(type(kept)({name: each.clone() for name, each in kept.tensors.items()}, kept.numbers), {})
    for each in (halfway, resumed):
        each.step()
    for name, tensor in halfway.state().tensors.items():
        assert torch.equal(tensor, resumed.state().tensors[name]), name


@pytest.mark.parametrize(("method", "variant"), [(name, each) for name in VARIANTS for each in VARIANTS[name]])
def test_other_variants_train_too(method, variant):
    run = make_run(method, "jigsaw", small_backbone(), variant=variant)
    train([run])
    assert run.complete


def test_a_function_of_the_number_of_outputs_gets_what_the_method_needs():
    asked = []

    def network(n_outputs):
        asked.append(n_outputs)
        return ResNet18(n_outputs, width=2)

    for method in ("er", "cope", "xder"):
        make_run(method, "none", network)
    assert asked == [4, 256, 4]


def test_a_network_is_copied_for_each_run():
    network = small_backbone()
    one, other = (make_run("er", "none", network) for _ in range(2))
    assert one.method.network is not other.method.network
    before = [each.clone() for each in network.parameters()]
    train([one])
    assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))
    assert one.method.network.module[0][3].source.generator is one.generator


def test_a_method_with_a_network_of_its_own_takes_no_other():
    with pytest.raises(UsageError, match="network has no effect: dualnet has a network of its own"):
        make_run("dualnet", "none", small_backbone())


def test_the_simplex_is_part_of_an_adapted_network():
    network = make_network(XDer, 4, network=small_backbone(), image_shape=(3, 12, 12)).double()
    logits = network(torch.randn(5, 3, 12, 12, dtype=torch.float64))
    torch.testing.assert_close(logits.sum(1), torch.zeros(5, dtype=torch.float64), rtol=0, atol=1e-6)


def test_a_network_without_batch_norm_can_be_inverted():
    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.early, self.late = nn.Conv2d(3, 8, 3, stride=2), nn.Conv2d(8, 16, 3, padding=1)
            self.fc = nn.Linear(16, 4)

        def forward(self, images):
            return self.fc(self.late(self.early(images).relu()).relu().mean((2, 3)))

    run = make_run("r-dfcil", "none", cler.backbone(Plain(), tap="early", head="late", classifier="fc"))
    train([run])
    assert run.complete


def test_settings_name_a_network_and_freeze_it():
    small = {"tasks": 2, "batch": 8, "replay_batch": 8, "buffer": 16}
    settings = make_settings(method="er-ace", regularizer="jigsaw", network="slim-resnet18", freeze=True, **small)
    run = build_run(settings, 0, DATA)
    network = run.method.network
    assert (type(network), network.feature_size) == (ResNet18, 160)
    before = {name: each.clone() for name, each in network.state_dict().items()}
    train([run])
    changed = {name.split(".")[0] for name, each in network.state_dict().items() if not torch.equal(each, before[name])}
    assert changed == {"layer4", "classifier"}


@pytest.mark.parametrize("method", ["er", "pcr", "r-dfcil"])
def test_a_network_with_nothing_to_train_is_refused(method):
    """Unless the method puts a classifier of its own in it, as PCR and R-DFCIL do."""

    def frozen(n_outputs):
        module = nn.Sequential(*list(small_cnn())[:2], nn.Sequential(nn.Flatten(), nn.Linear(400, n_outputs)))
        return cler.backbone(module.requires_grad_(False), tap="0", head="1", classifier="2.1")

    if method in ("pcr", "r-dfcil"):
        toy.in_later_task(make_run(method, "none", frozen))
    else:
        with pytest.raises(UsageError, match="network has nothing to train: at least its classifier"):
            make_run(method, "none", frozen)
