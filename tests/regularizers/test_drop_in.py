"""The regularizer in anyone's code: networks that are not ours, precision, compilation, parallel training, copies."""

import copy
import math
import pickle
import subprocess
import sys
import warnings
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cler import Equivariant, Jigsaw, ResNet18, Rotation
from cler.errors import UsageError
from cler.nets.adapter import backbone
from cler.nets.backbone import Parts
from cler.pretext import Flips, Product
from plain_resnet import PlainResNet


class SmallTransformer(nn.Module):
    """A vision transformer: patches of 4×4 and a class token."""

    def __init__(self, n_classes=5, width=8, depth=4):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.class_token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 5, width))
        layer = nn.TransformerEncoderLayer(width, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.ModuleList(copy.deepcopy(layer) for _ in range(depth))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, n_classes)

    def forward(self, images):
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(len(images), -1, -1), tokens], 1) + self.positions
        for block in self.blocks:
            tokens = block(tokens)
        return self.out(self.norm(tokens[:, 0]))


class Halving(Rotation):
    """A slip: gives fewer images than it gets."""

    def apply(self, images, k):
        return super().apply(images, k)[::2]


def small_network(*, width=8):
    torch.manual_seed(0)
    network = nn.Sequential()
    network.add_module("early", nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()))
    network.add_module("late", nn.Sequential(nn.Conv2d(width, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU()))
    network.add_module("out", nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)))
    return network


def on_small(network, transforms="rotation", **options):
    return Equivariant(network, transforms, **{"tap": "early", "head": "late"} | options)


def gradients(*modules):
    return {f"{n}.{k}": p.grad for n, m in enumerate(modules) for k, p in m.named_parameters() if p.grad is not None}


def loss_and_gradients(call, images, *modules, seed=3):
    torch.manual_seed(seed)
    for module in modules:
        module.zero_grad()
    loss = call(images)
    loss.backward()
    return loss.detach(), gradients(*modules)


@pytest.fixture
def images():
    return torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(1))


# -- numbers -----------------------------------------------------------------------------------------------------------


def as_methods_do(regularizer, network, raw):
    return regularizer.loss(network, raw, torch.zeros_like(raw), parts=Parts((len(raw),)))


@pytest.mark.parametrize("name", ["rotation", "jigsaw"])
def test_a_network_that_is_not_ours_gives_the_numbers_of_ours(name, assert_close):
    torch.manual_seed(0)
    ours, theirs = ResNet18(7, width=4).double(), PlainResNet(7, width=4).double()
    theirs.load_state_dict(ours.state_dict() | {k: v for k, v in theirs.state_dict().items() if "num_batches" in k})
    images = torch.randn(6, 3, 16, 16, dtype=torch.float64)
    found = []
    for network in (ours, theirs):
        torch.manual_seed(5)
        regularizer = Equivariant(network, name, weight=0.7, generator=torch.Generator().manual_seed(2))
        call = partial(as_methods_do, regularizer, ours) if network is ours else regularizer
        found.append(loss_and_gradients(call, images, network, regularizer))
    (loss, expected), (their_loss, actual) = found
    assert_close(their_loss, loss)
    assert actual.keys() == expected.keys()
    for key, gradient in actual.items():
        assert_close(gradient, expected[key], key)


@pytest.mark.parametrize("head", ["blocks.2", "blocks.2:4", "blocks.2:"])
def test_tokens_are_averaged_the_class_token_among_them(images, assert_close, head):
    torch.manual_seed(0)
    network = SmallTransformer().double()
    regularizer = Equivariant(network, "jigsaw", tap="blocks.1", head=head)
    images = images.double()
    labels = torch.arange(len(images))
    tokens = network.patches(Jigsaw().apply(images, labels)).flatten(2).transpose(1, 2)
    tokens = torch.cat([network.class_token.expand(len(images), -1, -1), tokens], 1) + network.positions
    for block in network.blocks[: 3 if head == "blocks.2" else 4]:
        tokens = block(tokens)
    expected = F.linear(tokens.mean(1), regularizer.linear.weight, regularizer.linear.bias)
    assert_close(regularizer.logits(network, images, labels), expected)


class LastChannels(nn.Module):
    """Maps with their channels last, (N, H, W, C)."""

    def __init__(self):
        super().__init__()
        self.norm, self.out = nn.LayerNorm(8), nn.Linear(8, 6)

    def forward(self, maps):
        return self.out(self.norm(maps.permute(0, 2, 3, 1)))


def test_maps_with_channels_last_are_averaged_over_places(images, assert_close):
    network = small_network()
    network.late = LastChannels()
    network.out = nn.Identity()
    regularizer = on_small(network)
    labels = torch.arange(6) % 4
    maps = network(Rotation().apply(images, labels))
    expected = F.linear(maps.mean((1, 2)), regularizer.linear.weight, regularizer.linear.bias)
    assert_close(regularizer.logits(network, images, labels), expected, tolerance=1e-6)


OUTSIDE = ("blocks.2", "blocks.3", "norm", "out")


def test_only_the_network_up_to_the_tap_and_the_head_get_gradients(images):
    network = SmallTransformer()
    regularizer = Equivariant(network, "rotation", tap="blocks.1", head="blocks.2")
    regularizer(images).backward()
    reached = {name for name, parameter in network.named_parameters() if parameter.grad is not None}
    assert reached == {name for name, _ in network.named_parameters() if not name.startswith(OUTSIDE)}
    assert all(parameter.grad is not None for parameter in regularizer.parameters())


def test_what_comes_after_the_tap_is_not_computed(images):
    network = small_network()
    regularizer = on_small(network)
    called = []
    for name, module in network.named_modules():
        module.register_forward_hook(lambda *_, name=name: called.append(name))
    regularizer(images)
    assert called == ["early.0", "early.1", "early.2", "early"]
    network(images)
    assert called[-1] == ""  # and the network is whole again


@pytest.mark.parametrize("training", [True, False])
def test_the_network_is_left_as_it_was(images, training):
    network = small_network().train(training)
    before = copy.deepcopy(network.state_dict())
    regularizer = on_small(network, example=images)
    regularizer(images)
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    assert all(module.training == training for module in network.modules())
    assert not network.early._forward_hooks


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(("training", "whole"), [(True, False), (False, False), (True, True)])
def test_instance_norm_has_its_running_statistics_left_alone(images, training, whole):
    network = small_network()
    network.early[1] = nn.InstanceNorm2d(8, affine=True, track_running_stats=True)
    network.late[1] = nn.InstanceNorm2d(8, track_running_stats=True)
    network(images)
    network.train(training)
    regularizer = on_small(network)
    before = copy.deepcopy(network.state_dict())
    (compiled(regularizer) if whole else regularizer)(images).backward()
    assert network.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    labels = torch.arange(6) % 4
    expected = regularizer.classify(regularizer.stage(network.early(Rotation().apply(images, labels))))
    assert torch.equal(network.early[1].running_mean, before["early.1.running_mean"]) == (not training)
    assert torch.allclose(regularizer.logits(network, images, labels), expected)


def test_a_frozen_network_still_has_a_head_that_learns(images):
    network = small_network().eval().requires_grad_(False)
    regularizer = on_small(network)
    regularizer(images).backward()
    assert not gradients(network)
    assert len(gradients(regularizer)) == len([*regularizer.parameters()])
    assert all(module.training for module in regularizer.modules())


def test_a_head_of_ones_own(images):
    network = small_network()
    head = nn.Sequential(nn.Flatten(), nn.Linear(8 * 8 * 8, 16))
    regularizer = on_small(network, Product(Rotation(), Jigsaw(2, 4)), head=head, example=images)
    assert {id(p) for p in regularizer.parameters()} == {id(p) for p in head.parameters()}
    labels = torch.tensor([0, 3, 6, 9, 12, 15])
    expected = head(network.early(regularizer.transforms.apply(images, labels)))
    assert torch.equal(regularizer.logits(network, images, labels), expected)
    regularizer(images).backward()
    assert gradients(head)


@pytest.mark.parametrize("transforms", [Flips(), Jigsaw(4, 10), Product(Rotation(), Jigsaw())])
def test_other_families(images, transforms):
    regularizer = on_small(small_network(), transforms)
    assert regularizer.linear.out_features == transforms.n_transforms
    regularizer(images).backward()


def test_a_generator_repeats_the_draws(images):
    network = small_network().eval()
    regularizer = on_small(network, generator=torch.Generator().manual_seed(4)).eval()
    first = [float(regularizer(images).detach()) for _ in range(3)]
    torch.rand(1)
    regularizer.generator.manual_seed(4)
    assert [float(regularizer(images).detach()) for _ in range(3)] == first
    assert len(set(first)) > 1


# -- precision, compilation --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("make", [small_network, SmallTransformer])
def test_autocast(images, make, dtype):
    torch.manual_seed(0)
    network = make()
    paths = {} if make is small_network else {"tap": "blocks.1", "head": "blocks.2"}
    regularizer = on_small(network, **paths)
    exact, _ = loss_and_gradients(regularizer, images, network, regularizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, enabled=dtype == torch.float16)
    optimizer = torch.optim.SGD([*network.parameters(), *regularizer.parameters()], lr=0.1)
    torch.manual_seed(3)
    with torch.autocast("cpu", dtype):
        loss = regularizer(images)
    assert loss.dtype == torch.float32
    assert torch.allclose(loss, exact, atol=0.05)
    before = copy.deepcopy([*optimizer.param_groups[0]["params"]])
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    moved = [not torch.equal(a, b) for a, b in zip(before, optimizer.param_groups[0]["params"], strict=True)]
    assert sum(moved) >= len(gradients(network)) > 0


def test_a_network_in_low_precision(images):
    network = small_network().bfloat16()
    regularizer = on_small(network)
    assert regularizer.linear.weight.dtype == torch.float32
    for module in (regularizer, regularizer.bfloat16()):
        assert module(images.bfloat16()).isfinite()


def compiled(function):
    return torch.compile(function, backend="aot_eager", fullgraph=True)


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about itself
        yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_whole_it_gives_the_same_numbers(images):
    found = []
    for wrap in (lambda function: function, compiled):
        network = small_network()
        regularizer = on_small(network, Product(Rotation(), Jigsaw()))
        targets = torch.arange(len(images)) % 5

        def step(x, network=network, regularizer=regularizer, targets=targets):
            return F.cross_entropy(network(x), targets) + regularizer(x)

        step = wrap(step)
        results = [loss_and_gradients(step, images, network, regularizer, seed=seed) for seed in (0, 1)]
        found.append((results, {**network.state_dict(), **regularizer.state_dict()}))
    (expected, state), (actual, compiled_state) = found
    for (loss, grads), (compiled_loss, compiled_grads) in zip(expected, actual, strict=True):
        assert torch.allclose(loss, compiled_loss)
        assert all(torch.allclose(gradient, compiled_grads[key], atol=1e-6) for key, gradient in grads.items())
    assert all(torch.allclose(value, compiled_state[key]) for key, value in state.items())


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("where", ["outside", "in place", "tap"])
def test_a_compiled_network_can_be_regularized(images, where):
    plain, network = small_network(), small_network()
    for each in (plain, network):
        each.out = nn.Identity()
    wrapped = network
    if where == "outside":
        wrapped = torch.compile(network, backend="eager")
    elif where == "in place":
        network.compile(backend="eager")
    else:
        network.early = torch.compile(network.early, backend="eager")
    assert torch.allclose(wrapped(images), plain(images))
    found = []
    for each in (plain, wrapped):
        torch.manual_seed(2)
        regularizer = on_small(each)
        found.append(loss_and_gradients(regularizer, images, regularizer))
    assert torch.allclose(found[0][0], found[1][0])
    assert found[0][1].keys() == found[1][1].keys()
    assert torch.allclose(wrapped(images), plain(images))


class Counting:
    """A compiler that counts the graphs that it was given and how often they ran."""

    def __init__(self):
        self.graphs = self.runs = 0

    def __call__(self, graph, inputs):
        self.graphs += 1

        def run(*inputs):
            self.runs += 1
            return graph(*inputs)

        return run


def compiled_at(network, where, backend):
    if where == "in place":
        network.compile(backend=backend, fullgraph=True)
    elif where == "forward":
        network.forward = torch.compile(network.forward, backend=backend)
    elif where == "tap":
        network.blocks[1] = torch.compile(network.blocks[1], backend=backend)
    else:
        network.blocks[0] = torch.compile(network.blocks[0], backend=backend)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(("where", "in_pretext"), [("in place", 0), ("forward", 0), ("tap", 0), ("before the tap", 1)])
def test_a_compiled_network_stays_compiled(images, where, in_pretext):
    network, backend = SmallTransformer(depth=3), Counting()
    compiled_at(network, where, backend)
    regularizer = Equivariant(network, "rotation", tap="blocks.1", head="blocks.2", example=images)
    backend.runs = 0
    for step in range(1, 4):
        network(images).sum().backward()
        graphs = backend.graphs
        regularizer(images).backward()
        assert backend.runs == step * (1 + in_pretext)
    assert backend.graphs == graphs


# -- copies and state --------------------------------------------------------------------------------------------------


def test_state_is_that_of_the_head_alone(images):
    network = small_network()
    regularizer = on_small(network)
    regularizer(images).backward()
    late = {f"stage.{name}" for name in network.late.state_dict()}
    assert regularizer.state_dict().keys() == late | {"linear.weight", "linear.bias"}
    other = on_small(network)
    assert not torch.equal(regularizer.linear.weight, other.linear.weight)
    other.load_state_dict(regularizer.state_dict())
    labels = torch.arange(6) % 4
    assert torch.equal(*(each.logits(network, images, labels) for each in (regularizer, other)))


def test_a_copy_has_a_head_of_its_own_and_the_same_network(images):
    network = small_network()
    regularizer = on_small(network, generator=torch.Generator().manual_seed(1))
    twin = copy.deepcopy(regularizer)
    regularizer.zero_grad()
    twin(images).backward()
    assert gradients(network)
    assert gradients(twin)
    assert not gradients(regularizer)


def again(pair):
    return pickle.loads(pickle.dumps(copy.deepcopy(pair)))


@pytest.mark.parametrize("make", [copy.deepcopy, again])
@pytest.mark.parametrize("order", [("network", "regularizer"), ("regularizer", "network")])
def test_copied_with_the_network_it_trains_the_copy(images, make, order):
    network = small_network()
    both = {"network": network, "regularizer": on_small(network)}
    twin = make(nn.ModuleDict({name: both[name] for name in order}))
    twin["regularizer"](images).backward()
    assert gradients(twin["network"])
    assert not gradients(network)


class Recorder:
    def hear(self, module, inputs, *output):
        self.heard = inputs[0], *output


def test_hooks_stay_with_the_network(images):
    network, recorder = small_network(), Recorder()
    network.late[0] = nn.utils.spectral_norm(network.late[0])
    network.late[1].register_forward_pre_hook(recorder.hear)
    network.late.register_forward_hook(recorder.hear)
    network.late[2].register_full_backward_hook(recorder.hear)
    recorder.heard = network.early(images)  # a tensor with a history cannot be copied
    regularizer = on_small(network)
    before = recorder.heard
    regularizer(images).backward()
    assert recorder.heard is before
    assert [type(hook).__name__ for hook in regularizer.stage[0]._forward_pre_hooks.values()] == ["SpectralNorm"]
    network(images)
    assert recorder.heard is not before


# -- parallel training -------------------------------------------------------------------------------------------------

WORKER = """
import sys, torch, torch.distributed as distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import cler

rank, folder = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
torch.manual_seed(0)
early = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
late = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
plain = nn.Sequential(early, late, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
generator = torch.Generator().manual_seed(rank)
images, labels = torch.randn(4, 3, 8, 8, generator=generator), torch.randint(3, (4,), generator=generator)

network = DistributedDataParallel(plain)
regularizer = cler.Equivariant(network, "rotation", tap="0", head="1", generator=generator)
parallel = DistributedDataParallel(regularizer)
state = generator.get_state()
for module, call in ((plain, regularizer), (network, parallel)):
    generator.set_state(state)
    parameters = [*plain.parameters(), *regularizer.parameters()]
    for parameter in parameters:
        parameter.grad = None
    (nn.functional.cross_entropy(module(images), labels) + call(images)).backward()
    torch.save([parameter.grad for parameter in parameters], f"{folder}/{type(module).__name__}{rank}")
distributed.barrier()  # else one would close while the other still reads
distributed.destroy_process_group()
"""


def test_gradients_agree_between_two_processes(tmp_path):
    command = [sys.executable, "-c", WORKER]
    workers = [subprocess.Popen([*command, str(rank), str(tmp_path)]) for rank in range(2)]
    assert [worker.wait() for worker in workers] == [0, 0]
    alone, together = (
        [torch.load(tmp_path / f"{name}{rank}") for rank in range(2)]
        for name in ("Sequential", "DistributedDataParallel")
    )
    assert any(not torch.allclose(first, second) for first, second in zip(*alone, strict=True))
    for mine, yours, first, second in zip(*alone, *together, strict=True):
        assert torch.allclose(first, second)
        assert torch.allclose(first, (mine + yours) / 2, atol=1e-6)


# -- what a user can get wrong -----------------------------------------------------------------------------------------


class Layer(nn.Module):
    """Gives what a layer gives in a container, as those of Hugging Face do."""

    def __init__(self, wrap, layer):
        super().__init__()
        self.wrap, self.layer = wrap, layer

    def forward(self, x):
        return self.wrap(self.layer(x))


def never_calls_its_tap():
    network = small_network()
    network.forward = lambda images: images
    return network


def test_a_network_that_catches_errors_does_not_hide_its_tap(images):
    network = small_network()
    plain = network.forward

    def forward(batch):
        try:
            return plain(batch)
        except Exception:
            return batch

    network.forward = forward
    assert on_small(network, weight=np.float32(1))(images).isfinite()


def test_the_first_of_several_outputs_of_the_tap_is_read():
    one, other = small_network(), small_network()
    other.load_state_dict(one.state_dict())
    other.early = Layer(lambda maps: (maps, None), other.early)
    losses = [on_small(each, generator=torch.Generator().manual_seed(0)) for each in (one, other)]
    losses[1].load_state_dict(losses[0].state_dict())
    images = torch.rand(4, 3, 8, 8)
    assert losses[0](images) == losses[1](images)


def test_a_backbone_says_where_the_loss_belongs():
    network = backbone(small_network(), tap="early", head="late", classifier="out.2")
    assert Equivariant(network).tap == "module.early"


def with_maps_by_name():
    network = small_network()
    network.early = Layer(lambda maps: {"maps": maps}, network.early)
    return network


def head_in(container):
    network = small_network()
    network.late[0] = Layer(container, network.late[0])
    return network


def takes_tokens(maps):
    assert maps.ndim == 3, "expects tokens"


def without_gradients():
    network = small_network()
    network.forward = torch.no_grad()(network.forward)
    return network


@pytest.mark.parametrize(
    ("network", "options", "message"),
    [
        (small_network, {"tap": "earlly"}, "no sub-module 'earlly'; near names: early, "),
        (small_network, {"head": "late.9"}, "no sub-module 'late.9'; near names: late."),
        (small_network, {"tap": "layer3"}, r"no sub-module 'layer3'.*\(give them as tap= and head=\)"),
        (small_network, {"head": ""}, "no sub-module ''"),
        (small_network, {"head": "late.a:"}, "no sub-module 'late.a:'"),
        (small_network, {"head": "nowhere.1:2"}, "no sub-module 'nowhere.1:2'"),
        (small_network, {"head": "late.2"}, "how many channels head 'late.2' gives out: give example=images"),
        (small_network, {"tap": "late", "head": "out.2"}, r"tap 'late' gives, \(N, 8, 4, 4\): mat1 and mat2"),
        (lambda: small_network(width=9), {"tap": "late"}, r"tap 'late' gives, \(N, 8, 4, 4\): .*channels"),
        (small_network, {"head": "early.0:0"}, "there is no 'early.0:0': 'early' has 3 sub-modules"),
        (small_network, {"head": "late.1:9"}, "there is no 'late.1:9': 'late' has"),
        (lambda: nn.Identity, {}, "network must be a torch.nn.Module, not type"),
        (small_network, {"weight": -1}, "weight must be a number that is at least zero, not -1"),
        (small_network, {"weight": "1"}, "weight must be a number that is at least zero, not '1'"),
        (small_network, {"weight": True}, "weight must be a number that is at least zero, not True"),
        (small_network, {"weight": math.inf}, "weight must be a number that is at least zero, not inf"),
        (small_network, {"tap": nn.Identity()}, "tap must be the name of a sub-module, .*, not a Identity"),
        (small_network, {"generator": 0}, "generator must be a torch.Generator, .*, not 0"),
        (small_network, {"head": 3}, "head must be the name of a sub-module, or a module, not a int"),
        (
            small_network,
            {"example": torch.zeros(2, 3, 8, 8, dtype=torch.uint8)},
            r"normalized images, not torch\.uint8",
        ),
        (small_network, {"transforms": "flips"}, r"or an object such as cler\.Flips\(\)"),
        (with_maps_by_name, {}, "tap 'early' gives a dict, not a tensor"),
        (
            lambda: head_in(lambda maps: {"maps": maps}),
            {"head": "late.0"},
            "the head gives a dict, not a tensor or a tuple that begins with one",
        ),
        (
            lambda: head_in(lambda maps: (maps,)),
            {"head": "late.0:2"},
            "tap 'early' gives, .*: 'tuple' object has no attribute",
        ),
        (lambda: head_in(takes_tokens), {"head": "late.0"}, "tap 'early' gives, .*: expects tokens"),
        (never_calls_its_tap, {}, "never calls"),
        (small_network, {"tap": "late.0:2"}, "tap 'late.0:2' has to name one sub-module: the last one of the slice"),
        (without_gradients, {}, "no gradient would reach tap 'early'"),
        (small_network, {"head": nn.Flatten()}, r"has to give \(N, 4\), this one gives \(N, 512\); .* give its name"),
        (small_network, {"transforms": "rotations"}, "unknown family .* did you mean 'rotation'"),
        (small_network, {"transforms": object()}, "needs n_transforms, an integer, and apply"),
        (
            small_network,
            {"transforms": Halving()},
            "the transforms give 3 images for 6: apply has to give one for each",
        ),
    ],
)
def test_mistakes_are_explained_in_one_line(images, network, options, message):
    with pytest.raises(UsageError, match=message) as error:
        on_small(network(), **options)(images)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("example", [True, False])
@pytest.mark.parametrize("own", [True, False])
def test_of_a_tuple_the_head_gives_the_first_element_counts(images, own, example):
    network = small_network()
    pools = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)] if own else []
    plain = nn.Sequential(*network.late, *pools)
    network.late = Layer(lambda output: (output, None), plain)
    regularizer = on_small(network, head=network.late if own else "late", example=images if example else None)
    labels = torch.arange(6) % 4
    expected = regularizer.classify(plain(network.early(Rotation().apply(images, labels))))
    assert torch.equal(regularizer.logits(network, images, labels), expected)


class TokensFirst(nn.Module):
    """A vision transformer that keeps tokens as (T, N, D): 16 patches."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 2, stride=2)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0) for _ in range(2))
        self.out = nn.Linear(8, 5)

    def forward(self, images):
        tokens = self.patches(images).flatten(2).permute(2, 0, 1)
        for block in self.blocks:
            tokens = block(tokens)
        return self.out(tokens.mean(0))


class MeanOver(nn.Module):
    def __init__(self, axis):
        super().__init__()
        self.axis, self.linear = axis, nn.Linear(8, 4)

    def forward(self, tokens):
        return self.linear(tokens.mean(self.axis))


@pytest.mark.parametrize("head", ["blocks.1", MeanOver(1)])
@pytest.mark.parametrize("count", [6, 16])
def test_tokens_that_come_before_images_are_refused(images, head, count):
    images, network = images[torch.arange(count) % 6], TokensFirst()
    paths = {"tap": "blocks.0", "head": head}
    with pytest.raises(UsageError, match=r"for (6|17) images, which have to come first: batch_first=True, or") as error:
        on_small(network, **paths, example=images)
    assert "\n" not in str(error.value)
    regularizer = on_small(network, **paths)
    if count == 16:  # as many as there are tokens: which is meant cannot be seen yet
        regularizer(images)
    with pytest.raises(UsageError, match="for 6 images"):
        regularizer(images[:6])


def test_a_head_of_ones_own_may_take_tokens_that_come_first(images):
    regularizer = on_small(TokensFirst(), tap="blocks.0", head=MeanOver(0), example=images)
    regularizer(images).backward()
    assert gradients(regularizer)


def test_channels_that_are_neither_in_maps_nor_last_are_refused_at_once(images):
    network = small_network()
    network.late = nn.Sequential(nn.Flatten(2), nn.Conv1d(8, 10, 3))
    with pytest.raises(UsageError, match=r"\(N, 10, 62\) where 10 channels .* \(N, T, C\): give a head of your own"):
        on_small(network, example=images)


def test_an_example_shows_a_mistake_at_once(images):
    with pytest.raises(UsageError, match="does not take"):
        on_small(small_network(width=9), tap="late", example=images)
    with pytest.raises(UsageError, match="square"):
        on_small(small_network(), example=images[:, :, :4])


class Dense(nn.Module):
    """Gives out what it takes beside what it adds, as dense blocks do."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 3, 1)

    def forward(self, maps):
        return torch.cat([maps, self.conv(maps)], 1)


def test_an_example_tells_the_width(images):
    network = small_network()
    network.dense = Dense()
    with pytest.raises(UsageError, match=r"\(N, 11, 8, 8\) where 3 channels were expected: give example=images"):
        on_small(network, head="dense")(images)
    regularizer = on_small(network, head="dense", example=images)
    assert regularizer.linear.in_features == 11
    regularizer(images).backward()


def test_images_have_to_be_normalized(images):
    regularizer = on_small(small_network())
    with pytest.raises(UsageError, match=r"normalized images, not torch\.uint8"):
        regularizer((100 * images).to(torch.uint8))
    with pytest.raises(UsageError, match=r"a tensor of normalized images, not ndarray: torch\.as_tensor"):
        regularizer(images.numpy())
    with pytest.raises(UsageError, match="at least one image"):
        regularizer(images[:0])


def test_a_generator_of_another_device_is_refused(images):
    regularizer = on_small(small_network(), generator=torch.Generator())
    with pytest.raises(UsageError, match="images are on meta"):
        regularizer(images.to("meta"))
