"""The pass of a method with the pretext images of its regularizers, against passes of their own."""

import copy

import pytest
import torch
from torch import nn

from cler import Equivariant
from cler.data.views import Views
from cler.methods import Setup
from cler.methods.base import Method
from cler.methods.loss import total
from cler.nets import ResNet18, forward_parts
from cler.nets.backbone import Parts
from cler.nets.dualnet import DualNetwork
from cler.nets.simplex import SimplexClassifier
from cler.regularizers import Regularizer
from cler.streams import Tasks
from cler.teachers import Lesson

PARTS = (4, 3, 2)


def simplex_resnet(n_outputs, *, width):
    network = ResNet18(n_outputs, width=width)
    network.replace_classifier(SimplexClassifier(network.classifier))
    return network


def make_method(network, regularizers):
    views = Views((0.5,) * 3, (0.25,) * 3, dtype=torch.float64)
    setup = Setup(network, views, tasks=Tasks.of_sizes([3, 3]), image_shape=(3, 16, 16), regularizers=regularizers)
    return Method(setup)


def state(*modules):
    """Gradients and buffers."""
    found = {}
    for number, module in enumerate(modules):
        found |= {f"{number}.{name}": parameter.grad for name, parameter in module.named_parameters()}
        found |= {f"{number}.{name}": buffer for name, buffer in module.named_buffers()}
    return found


@pytest.mark.parametrize("kind", [ResNet18, simplex_resnet, DualNetwork])
@pytest.mark.parametrize("parts", [None, Parts((4, 5))], ids=["one", "two"])
@pytest.mark.parametrize("heads", [("rotation",), ("jigsaw", "rotation")], ids="+".join)
def test_pretext_images_are_as_good_as_passes_of_their_own(kind, parts, heads, assert_close):
    torch.manual_seed(0)
    network = kind(6, width=4).double()
    regularizers = [
        Equivariant(network, name, tap=network.tap, head=network.head, weight=0.3).double() for name in heads
    ]
    pixels = torch.randint(256, (sum(PARTS), 3, 16, 16)).to(torch.uint8)
    batches = torch.randn(sum(PARTS), 3, 16, 16, dtype=torch.float64).split(PARTS)
    alone, own_heads = copy.deepcopy((network, regularizers))

    torch.manual_seed(1)
    labels = torch.zeros(len(pixels), dtype=torch.int64)
    outputs, penalties = make_method(network, regularizers).outputs(*batches, pixels=pixels, labels=labels, parts=parts)
    (torch.cat(outputs).square().mean() + total(penalties)).backward()

    torch.manual_seed(1)
    raw = make_method(alone, ()).views.plain(pixels)
    expected_penalty = sum(each.loss(alone, raw, raw, labels, parts) for each in own_heads)
    expected = forward_parts(alone, *batches)
    (torch.cat(expected).square().mean() + expected_penalty).backward()

    assert_close(total(penalties), expected_penalty)
    for mine, theirs in zip(outputs, expected, strict=True):
        assert_close(mine, theirs)
    found, wanted = state(network, *regularizers), state(alone, *own_heads)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert (found[name] is None) == (value is None), name
        if value is not None:
            assert_close(found[name], value, name)


class Constant(Regularizer):
    """A loss that is known beforehand, and the labels that came with the images."""

    def __init__(self, name, loss):
        super().__init__()
        self.name, self.constant = name, loss

    def loss(self, network, raw, augmented, labels, groups=None):
        self.labels = labels
        return torch.tensor(self.constant)


def test_penalties_have_the_names_of_their_regularizers():
    regularizers = [Constant("one", 1.0), Constant("two", 2.0), Constant("one", 4.0)]
    method = make_method(ResNet18(6, width=4).double(), regularizers)
    pixels, labels = torch.zeros(2, 3, 16, 16, dtype=torch.uint8), torch.tensor([4, 1])
    _, penalties = method.outputs(method.views.plain(pixels), pixels=pixels, labels=labels)
    assert penalties == {"one": 5.0, "two": 2.0}
    assert all(each.labels is labels for each in regularizers)


def test_a_lesson_follows_the_batches_through_the_network_that_is_asked_for(assert_close):
    torch.manual_seed(0)
    method, other = make_method(ResNet18(6, width=4).double(), ()), ResNet18(6, width=4).double()
    method.teachable = ("raw", "strong")
    batch, raw, strong = torch.randn(3, 2, 3, 16, 16, dtype=torch.float64)
    pixels, labels = torch.zeros(2, 3, 16, 16, dtype=torch.uint8), torch.tensor([4, 1])
    lesson = Lesson(pixels, labels, {"strong": strong, "raw": raw}, lambda seen: seen)
    expected = forward_parts(copy.deepcopy(other), batch, raw, strong)
    (passed,), taught = method.outputs(batch, pixels=pixels, labels=labels, lesson=lesson, network=other)
    assert list(taught) == ["raw", "strong"]
    for mine, theirs in zip((passed, *taught.values()), expected, strict=True):
        assert_close(mine, theirs)


@pytest.mark.parametrize(
    "where",
    [
        {"tap": "layer2", "head": "layer3"},
        {"tap": "layer3", "head": nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))},
    ],
    ids=["another tap", "a head of one's own"],
)
@pytest.mark.parametrize("parts", [None, Parts((1, 3))])
def test_where_pretext_images_would_not_fit_the_images_have_a_pass_of_their_own(where, parts):
    network = ResNet18(6, width=4)
    regularizer = Equivariant(network, "rotation", **where)
    assert regularizer.pretext_images(network, torch.zeros(2, 3, 16, 16), None) is None
    method = make_method(network.double(), [regularizer.double()])
    pixels = torch.randint(256, (4, 3, 16, 16)).to(torch.uint8)
    labels = torch.zeros(len(pixels), dtype=torch.int64)
    _, penalties = method.outputs(method.views.plain(pixels), pixels=pixels, labels=labels, parts=parts)
    assert float(total(penalties).detach()) > 0


def test_a_head_that_does_not_know_of_parts_reads_them_one_by_one(assert_close):
    torch.manual_seed(0)
    network = ResNet18(6, width=4).double()
    pixels, losses = torch.randint(256, (9, 3, 16, 16)).to(torch.uint8), []
    labels = torch.zeros(len(pixels), dtype=torch.int64)
    for head in ("layer4", "layer4.0:2"):  # the slice is a plain nn.Sequential of the same blocks
        torch.manual_seed(1)
        regularizer = Equivariant(network, "rotation", tap="layer3", head=head).double()
        method = make_method(copy.deepcopy(network), [regularizer])
        images = method.views.plain(pixels)
        losses.append(total(method.outputs(images, pixels=pixels, labels=labels, parts=Parts((4, 5)))[1]))
    assert_close(losses[1], losses[0])
