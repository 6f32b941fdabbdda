"""Networks by name, from a function, from a module; frozen, pretrained; and what every registered one promises."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

import cler
from cler.errors import UsageError
from cler.nets import NETWORKS, Backbone, ResNet18, build_network
from cler.nets.backbone import Parts, PretextImages
from cler.nets.dualnet import DualNetwork
from cler.nets.norm import BatchNorm
from cler.nets.submodules import find_part

SHAPE = (3, 16, 16)


class Small(nn.Module):
    """A few ordinary layers, and a parameter of its own."""

    def __init__(self, n_classes=6, channels=3):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(1, 8, 1, 1))
        self.early = nn.Sequential(nn.Conv2d(channels, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.1))
        self.middle = nn.Sequential(nn.Conv2d(8, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU())
        self.late = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.fc = nn.Linear(16, n_classes)
        self.feature_info = [{"module": "early"}, {"module": "middle"}, {"module": "late"}]

    def forward(self, images):
        return self.fc(self.late(self.middle(self.early(images) + self.shift)).mean((2, 3)))

    def get_classifier(self):
        return self.fc


def adapted(n_classes=6):
    return cler.backbone(Small(n_classes), tap="middle", head="late", classifier="fc")


KINDS = {
    **{name: lambda n, entry=entry: entry.build(n, channels=3, width=4) for name, entry in NETWORKS.items()},
    "dualnet": lambda n: DualNetwork(n, width=4),
    "adapted": adapted,
}


@pytest.mark.parametrize("name", KINDS)
def test_every_backbone_keeps_its_promises(name, assert_close):
    torch.manual_seed(0)
    network = KINDS[name](5).double()
    network.use(torch.Generator().manual_seed(0))
    for layer in network.modules():
        if "Dropout" in type(layer).__name__:
            layer.p = 0.0  # to compare passes
    assert isinstance(network, Backbone)
    find_part(network, network.tap), find_part(network, network.head)
    images, others = (torch.randn(n, *SHAPE, dtype=torch.float64) for n in (7, 4))
    assert network.features(images).shape == (7, network.feature_size)
    assert network(images).shape == (7, 5)
    # parts are as good as passes of their own, in order
    state = {name: each.clone() for name, each in network.state_dict().items()}
    expected, moved = [network(each) for each in images.split([3, 4])], network.state_dict()
    moved = {name: each.clone() for name, each in moved.items()}
    network.load_state_dict(state)
    pretext = PretextImages(others, (4,))
    assert_close(network(images, Parts((3, 4)), [pretext]), torch.cat(expected))
    for key, value in network.state_dict().items():
        assert_close(value, moved[key], key)
    assert pretext.maps.shape[0] == 4
    # silent parts and evaluation move nothing
    network(images, Parts((3, 4), silent=2))
    network.eval()
    assert_close(network(images, Parts((3, 4))), network(images))
    for key, value in network.state_dict().items():
        assert_close(value, moved[key], key)
    network.replace_classifier(nn.Linear(network.feature_size, 3).double())
    assert network(images).shape == (7, 3)


@pytest.mark.parametrize(("name", "width"), [("resnet18", 64), ("slim-resnet18", 20)])
def test_built_in_networks_have_their_widths(name, width):
    with torch.device("meta"):
        assert build_network(name, 10, image_shape=SHAPE).feature_size == 8 * width
        assert build_network(name, 10, image_shape=SHAPE, width=6).feature_size == 48


def test_a_function_is_called_with_the_number_of_outputs_and_a_module_is_copied():
    called = []

    def make(n_outputs):
        called.append(n_outputs)
        return adapted(n_outputs)

    assert build_network(make, 9, image_shape=SHAPE).classifier.out_features == 9
    assert called == [9]
    module = adapted(6)
    same, another = (build_network(module, n, image_shape=SHAPE) for n in (6, 9))
    assert torch.equal(same.classifier.weight, module.classifier.weight)
    assert same.classifier.weight is not module.classifier.weight
    assert another.classifier.out_features == 9
    assert module.classifier.out_features == 6
    for name, parameter in another.named_parameters():
        if "fc" not in name:
            assert torch.equal(parameter, module.get_parameter(name))


@pytest.mark.parametrize(
    ("network", "options", "message"),
    [
        ("resnet81", {}, "unknown network 'resnet81'.*resnet18"),
        (nn.Linear(3, 3), {}, r"network is a Linear.*cler\.backbone\(module, tap=…, head=…, classifier=…\)"),
        (lambda n: nn.Linear(3, n), {}, "network is a Linear"),
        (lambda n: n, {}, "gives a int, not a torch.nn.Module"),
        (18, {}, "network must be a name, a module, or a function .* not 18"),
        ("resnet18", {"pretrained": True}, "pretrained has no effect on resnet18"),
        (adapted, {"pretrained": True}, "pretrained has no effect"),
        (adapted, {"width": 20}, "width 20 has no effect"),
        (lambda n: adapted(n).double(), {}, r"does not take a batch of images \(N, 3, 16, 16\): .*float.*double"),
        ("timm:resnet18", {}, "needs the package timm: pip install"),
    ],
)
def test_mistakes_are_explained(network, options, message, monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UsageError, match=message):
        build_network(network, 6, image_shape=SHAPE, **options)


@pytest.mark.parametrize("network", [adapted, lambda n: ResNet18(n, width=4)], ids=["adapted", "resnet18"])
def test_frozen_layers_neither_learn_nor_count(network):
    torch.manual_seed(0)
    network = build_network(network, 6, image_shape=SHAPE, freeze=True).train()
    before = {name: each.clone() for name, each in network.state_dict().items()}
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    network(torch.randn(8, *SHAPE)).square().sum().backward()
    optimizer.step()
    changed = {name.removeprefix("module.").split(".")[0] for name, each in before.items()
               if not torch.equal(each, network.state_dict()[name])}  # fmt: skip
    assert changed == ({"late", "fc"} if "module.fc.bias" in before else {"layer4", "classifier"})
    assert network.training
    norms = [each for each in network.modules() if isinstance(each, nn.BatchNorm2d | BatchNorm)]
    assert {each.training for each in norms} == {True, False}
    assert not any(each.training for each in network.eval().modules())


def test_a_network_of_timm(monkeypatch):
    asked = []

    def create_model(name, **options):
        asked.append((name, options))
        if name != "small":
            raise RuntimeError(f"Unknown model ({name})")
        return Small(options["num_classes"], options["in_chans"])

    timm = ModuleType("timm")
    timm.create_model = create_model
    monkeypatch.setitem(sys.modules, "timm", timm)
    network = build_network("timm:small", 9, image_shape=(1, 16, 16), pretrained=True)
    assert asked == [("small", {"pretrained": True, "in_chans": 1, "num_classes": 9})]
    assert (network.tap, network.head) == ("module.middle", "module.late")
    assert network(torch.randn(2, 1, 16, 16)).shape == (2, 9)
    with pytest.raises(UsageError, match="timm cannot make large: Unknown model"):
        build_network("timm:large", 9, image_shape=SHAPE)
    with pytest.raises(UsageError, match="width 20 has no effect on timm:small"):
        build_network("timm:small", 9, image_shape=SHAPE, width=20)


@pytest.mark.parametrize(
    ("stages", "tap", "head"),
    [
        (["early", "middle", "late"], "module.middle", "module.late"),
        (["steps.0", "steps.1"], "module.steps.0", "module.steps.1"),
        (["steps.0", "steps.2"], "module.steps.0", "module.steps.1:3"),
    ],
)
def test_the_head_of_a_network_of_timm_is_all_after_the_last_but_one_stage(stages, tap, head, monkeypatch):
    class Steps(Small):
        def __init__(self):
            super().__init__()
            self.steps = nn.Sequential(self.early, self.middle, self.late)
            self.feature_info = SimpleNamespace(info=[{"module": each} for each in stages])

    timm = ModuleType("timm")
    timm.create_model = lambda name, **options: Steps()
    monkeypatch.setitem(sys.modules, "timm", timm)
    monkeypatch.setattr("cler.nets.build.try_out", lambda *_: None)
    network = build_network("timm:steps", 6, image_shape=SHAPE)
    assert (network.tap, network.head) == (tap, head)


def test_a_network_of_timm_that_does_not_name_its_stages(monkeypatch):
    timm = ModuleType("timm")
    timm.create_model = lambda name, **options: SimpleNamespace(
        get_classifier=lambda: None, named_modules=lambda: [], feature_info=[]
    )
    monkeypatch.setitem(sys.modules, "timm", timm)
    with pytest.raises(UsageError, match="timm does not say what the stages and the classifier of odd are"):
        build_network("timm:odd", 6, image_shape=SHAPE)
