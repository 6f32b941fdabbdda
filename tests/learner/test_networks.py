"""A learner on a network of one's own: a function or a module, saved and loaded to the bit."""

import json
import pickle

import numpy as np
import pytest
import torch
from safetensors import safe_open
from sklearn.base import clone
from torch import nn

import cler
from cler import Learner, UsageError
from cler.learner import fileformat
from cler.regularizers import REGULARIZERS
from toys import SmallCnn

GENERATOR = np.random.default_rng(0)
IMAGES = GENERATOR.integers(0, 256, (60, 8, 8, 3)).astype(np.uint8)
LABELS = GENERATOR.integers(0, 20, 60).tolist()


class Counting(SmallCnn):
    """Counts in a table of whole numbers how often each of its features was the largest."""

    def __init__(self, n_classes):
        super().__init__(n_classes)
        self.register_buffer("largest", torch.zeros(8, dtype=torch.int64))
        self.register_buffer("short", torch.full((2,), -1.0, dtype=torch.float16))
        self.register_buffer("last", torch.tensor(-1))

    def forward(self, images):
        features = self.late(self.early(images))
        if self.training:
            self.largest += torch.nn.functional.one_hot(features.detach().argmax(1), 8).sum(0)
        return self.fc(features)


def adapted(module):
    return cler.backbone(module, tap="early", head="late", classifier="fc")


def counting(n_classes):
    return adapted(Counting(n_classes))


def small(**changes):
    return Learner(**{"network": counting, "image_size": 8, "buffer": 20, "device": "cpu", **changes})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "learner.safetensors"


def state(learner):
    return learner._core.content()[0]


def assert_same(first, second):
    assert state(first).keys() == state(second).keys()
    for name, tensor in state(first).items():
        assert torch.equal(tensor, state(second)[name]), name


@pytest.mark.parametrize("regularizer", ["none", *REGULARIZERS])
def test_saved_and_loaded_to_the_bit(regularizer, path):
    learner = small(regularizer=regularizer).partial_fit(IMAGES[:25], LABELS[:25])
    learner.save(path)
    loaded = Learner.load(path, network=counting)
    assert loaded.get_params() == learner.get_params()
    for each in (learner, loaded):
        each.partial_fit(IMAGES[25:], LABELS[25:])
    assert len(learner.classes_) > 16  # it has grown meanwhile
    assert int(learner._core.method.network.module.largest.sum()) > 0
    assert_same(learner, loaded)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_it_grows_and_keeps_what_it_knows(optimizer):
    asked = []

    def network(n_classes):
        asked.append(n_classes)
        return counting(n_classes)

    learner = small(network=network, optimizer=optimizer).partial_fit(IMAGES[:40], [each % 16 for each in LABELS[:40]])
    before = learner.predict_proba(IMAGES)
    assert learner._core.make_room(17).n_classes == 32
    assert np.array_equal(learner.predict_proba(IMAGES), before)
    assert asked == [16, 32]


def test_a_module_is_copied_with_its_weights(path):
    module = counting(16)
    start = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    learner = small(network=module, method="finetune", lr=1e-30, regularizer="none", augment="none")
    learner.partial_fit(IMAGES, [each % 16 for each in LABELS])
    assert all(torch.equal(tensor, start[name]) for name, tensor in module.state_dict().items())
    for name, tensor in learner._core.method.network.named_parameters():
        assert torch.allclose(tensor, start[name], atol=1e-20), name
    learner.save(path)
    assert_same(Learner.load(path, network=module), learner)


def test_two_modules_of_one_class_stay_two():
    first, second = counting(16), counting(16)
    one = small(network=first, method="finetune", lr=1e-30, regularizer="none")
    other = small(network=second, method="finetune", lr=1e-30, regularizer="none")
    for learner, module in ((one, first), (other, second)):
        learner.partial_fit(IMAGES[:10], [0] * 10)
        trained = learner._core.method.network.classifier.weight
        assert torch.allclose(trained, module.classifier.weight, atol=1e-20)


def test_scikit_learns_clone_and_pickle():
    learner = small(network=counting(16)).partial_fit(IMAGES[:25], LABELS[:25])
    copy = clone(learner)
    assert isinstance(copy.network, cler.Backbone)
    assert "network=<AdaptedBackbone>" in repr(copy)
    assert_same(pickle.loads(pickle.dumps(learner)), learner)
    learner = small().partial_fit(IMAGES[:25], LABELS[:25])
    assert clone(learner).network is counting
    assert pickle.loads(pickle.dumps(learner)).network is counting
    assert small(network="resnet18", width=2).set_params(network=counting).network is counting
    with pytest.raises((AttributeError, pickle.PicklingError)):
        pickle.dumps(small(network=lambda n: counting(n)))


def test_the_file_tells_the_networks_name_and_holds_no_code(path):
    small(network=counting(16)).save(path)
    with safe_open(path, "pt") as file:
        parameters = json.loads(file.metadata()["learner"])["parameters"]
    assert parameters["network"] == f"custom:{__name__}:Counting"


class Larger(Counting):
    def __init__(self, n_classes):
        super().__init__(n_classes)
        self.late[0] = nn.Conv2d(8, 8, 5, 2, 2)


@pytest.mark.parametrize(
    ("network", "says"),
    [
        (None, "its network is one of your own, .*counting: load it with network=…"),
        (lambda n: adapted(Larger(n)), "not the one that it was saved with: they differ in module.late.0.weight"),
        (lambda n: adapted(SmallCnn(n)), "they differ in module.largest, module.last, module.short"),
        (lambda n: adapted(Wide(n)), "larger than the one that it was saved with"),
        (3, "network must be a name, a module, or a function of the number of classes, not 3"),
        (SmallCnn(3), "network is a SmallCnn, which cler cannot train as it is: wrap it"),
        (lambda n: n, "network is a function that gives a int, not a torch.nn.Module"),
    ],
)
def test_another_network_than_it_was_saved_with_is_refused(network, says, path):
    small().partial_fit(IMAGES, LABELS).save(path)
    with pytest.raises(UsageError, match=f"cannot be loaded: .*{says}") as refused:
        Learner.load(path, network=network)
    assert "\n" not in str(refused.value)


class Wide(SmallCnn):
    def __init__(self, n_classes):
        super().__init__(n_classes)
        self.late.append(nn.Linear(8, 10_000))
        self.fc = nn.Linear(10_000, n_classes)


def test_a_network_by_name_is_not_given_again(path):
    small(network="resnet18", width=2).save(path)
    with pytest.raises(UsageError, match="its network is resnet18: leave network out"):
        Learner.load(path, network=counting)


def test_a_strangers_file_fetches_nothing(path):
    tensors, about = small(network="resnet18", width=2)._core.content()
    about["parameters"]["network"] = "timm:hf-hub:stranger/net"
    fileformat.write(path, fileformat.encode(tensors, about))
    with pytest.raises(UsageError, match=r"if you trust it, load it with network='timm:hf-hub:stranger/net'"):
        Learner.load(path)
    assert Learner.load(path, network="timm:hf-hub:stranger/net").network == "timm:hf-hub:stranger/net"


def test_a_file_cannot_ask_for_more_classes_than_it_holds(path):
    learner = small(regularizer="none").partial_fit(IMAGES, LABELS)
    tensors, about = learner._core.content()
    about = about | {"labels": list(range(100_000))}
    fileformat.write(path, fileformat.encode(tensors, about))
    with pytest.raises(UsageError, match="cannot be loaded"):
        Learner.load(path, network=counting)


@pytest.mark.parametrize(
    ("network", "says"),
    [
        (3, "network must be a name, a module, or a function"),
        (nn.Linear(2, 2), "network is a Linear, which cler cannot train as it is"),
        ("custom:mine:Net", "unknown network 'custom:mine:Net'"),
    ],
)
def test_what_is_no_network_is_refused_at_once(network, says):
    with pytest.raises(UsageError, match=says):
        small(network=network)


def test_pretrained_weights_of_a_network_that_has_none():
    for network in ("resnet18", counting):
        with pytest.raises(UsageError, match="pretrained has no effect on"):
            small(network=network, pretrained=True)
    with pytest.raises(UsageError, match="unknown network"):
        small(network="resnet-18", pretrained=True)


def test_what_reaches_the_method():
    learner = small(optimizer="sgd", sgd_momentum=0.5, weight_decay=0.25, freeze=True, augment="none", lr=0.125)
    learner.partial_fit(IMAGES[:20], LABELS[:20])
    method = learner._core.method
    group = method.optimizer.param_groups[0]
    assert (group["momentum"], group["weight_decay"], group["lr"]) == (0.5, 0.25, 0.125)
    pixels = torch.from_numpy(IMAGES[:5]).permute(0, 3, 1, 2)
    assert torch.equal(method.views.augmented(pixels), method.views.plain(pixels))
    network = method.network.module
    assert not any(each.requires_grad for each in network.early.parameters())
    assert all(each.requires_grad for each in network.late.parameters())


def test_exported(path):
    learner = small().partial_fit(IMAGES, LABELS)
    learner.export(path.with_suffix(".pt2"))
    program = torch.export.load(path.with_suffix(".pt2")).module()
    given = program(torch.from_numpy(IMAGES).permute(0, 3, 1, 2).contiguous())
    assert np.allclose(given.numpy(), learner.predict_proba(IMAGES), atol=1e-5)
