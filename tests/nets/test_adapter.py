"""`cler.backbone`: any module as a backbone, against our own layers."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cler
from cler.errors import UsageError
from cler.nets import PretextImages, ResNet18
from cler.nets.backbone import Backbone, Parts
from cler.nets.build import build_network, try_out
from cler.nets.norm import BatchNorm
from cler.nets.randomness import Dropout
from plain_resnet import PlainResNet


def pair():
    """Our ResNet-18, and one of PyTorch's layers with the same weights as a backbone."""
    torch.manual_seed(0)
    ours, plain = ResNet18(6, width=4), PlainResNet(6, width=4)
    for layer in ours.modules():
        if isinstance(layer, BatchNorm):  # as after some training, or mistakes about statistics would not show
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.5, 2)
    missing, unexpected = plain.load_state_dict(ours.state_dict(), strict=False)
    assert not unexpected
    assert all(name.endswith("num_batches_tracked") for name in missing)
    return ours, cler.backbone(plain, tap="layer3", head="layer4", classifier="classifier")


def small_network(*between, n_classes=6):
    """A few ordinary layers."""
    torch.manual_seed(0)
    early = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), *between)
    late = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
    last = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, n_classes))
    return nn.Sequential(early, late, last)


def adapted(*between, **options):
    return cler.backbone(small_network(*between, **options), tap="0", head="1", classifier="2.2")


def statistics(network):
    return {name.removeprefix("module."): each.clone() for name, each in network.named_buffers() if each.dim()}


def gradients(network):
    return {name.removeprefix("module."): each.grad for name, each in network.named_parameters()}


@pytest.mark.parametrize("what", ["features", "forward"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("parts", [None, Parts((4, 5)), Parts((4, 2, 3), silent=1)], ids=["one", "two", "silent"])
@pytest.mark.parametrize("pretext_sizes", [[], [(9,)], [(2, 5), (3, 4)]], ids=["none", "one", "two"])
def test_an_adapted_module_equals_our_own_layers(what, training, parts, pretext_sizes, assert_close):
    networks, found = [each.double().train(training) for each in pair()], []
    images = torch.randn(9, 3, 16, 16, dtype=torch.float64)
    extra = [torch.randn(sum(sizes), 3, 16, 16, dtype=torch.float64) for sizes in pretext_sizes]
    for network in networks:
        pretext = [PretextImages(each, sizes) for each, sizes in zip(extra, pretext_sizes, strict=True)]
        outputs = getattr(network, what)(images, parts, pretext)
        sum([outputs.square().sum(), *(each.maps.square().sum() for each in pretext)]).backward()
        found.append((outputs, [each.maps for each in pretext], statistics(network), gradients(network)))
    ours, theirs = found
    assert_close(theirs[0], ours[0], "outputs", 1e-9)
    for one, other in zip(theirs[1], ours[1], strict=True):
        assert_close(one, other, "maps", 1e-9)
    for one, other in ((theirs[2], ours[2]), (theirs[3], ours[3])):
        assert one.keys() == other.keys()
        for name, value in other.items():
            assert (one[name] is None) == (value is None), name
            if value is not None:
                assert_close(one[name], value, name, 1e-9)


def test_forward_is_that_of_the_module():
    module = small_network()
    network = cler.backbone(copy.deepcopy(module), tap="0", head="1", classifier="2.2")
    images = torch.randn(4, 3, 12, 12)
    torch.testing.assert_close(network(images), module(images), rtol=0, atol=0)
    torch.testing.assert_close(network.classifier(network.features(images)), network(images), rtol=0, atol=0)
    assert network.feature_size == 16


def test_pretext_images_leave_the_counters_of_batch_norms_alone():
    network = adapted()
    images = torch.randn(6, 3, 12, 12)
    network(images, Parts((2, 4)), [PretextImages(images, (3, 3))])
    assert {int(layer.num_batches_tracked) for layer in network.modules() if isinstance(layer, nn.BatchNorm2d)} == {2}


def test_logits_stay_in_single_precision_under_autocast():
    network = adapted()
    with torch.autocast("cpu", torch.bfloat16):
        assert network(torch.randn(4, 3, 12, 12)).dtype == torch.float32
        assert network.features(torch.randn(4, 3, 12, 12)).dtype == torch.float32


def test_a_new_classifier_takes_the_place_of_the_old_one():
    network = adapted()
    network.replace_classifier(nn.Linear(16, 3, bias=False))
    assert network(torch.randn(2, 3, 12, 12)).shape == (2, 3)
    assert network.classifier.bias is None
    assert len(list(network.module[2].parameters())) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tap": "nowhere"}, "no sub-module 'nowhere'"),
        ({"classifier": "fc"}, r"no sub-module 'fc'; .*\(give the last layer as classifier=\)"),
        ({"tap": "0.0:2"}, "has to name one sub-module"),
        ({"head": "1.7"}, "no sub-module '1.7'"),
        ({"head": nn.Identity()}, "head must be the name of a sub-module"),
        ({"classifier": "1"}, "has to be an nn.Linear, not a Sequential"),
        ({"module": "resnet"}, "takes a torch.nn.Module, not str"),
        ({"module": ResNet18(3, width=2)}, "is a backbone already"),
    ],
)
def test_mistakes_are_explained(change, message):
    options = {"module": small_network(), "tap": "0", "head": "1", "classifier": "2.2"} | change
    with pytest.raises(UsageError, match=message):
        cler.backbone(options.pop("module"), **options)


def test_a_batch_norm_that_averages_by_its_counter_is_refused():
    with pytest.raises(UsageError, match=r"batch norm 0.3 has momentum=None"):
        adapted(nn.BatchNorm2d(8, momentum=None))


# -- randomness --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout])
def test_dropout_draws_from_the_given_generator_only(kind):
    network = adapted(kind(0.5))
    generator = torch.Generator().manual_seed(0)
    network.use(generator)
    images, before = torch.randn(4, 3, 12, 12), torch.get_rng_state()
    first, second = network(images), network(images)
    assert torch.equal(before, torch.get_rng_state())
    assert not torch.equal(first, second)
    generator.manual_seed(0)
    torch.testing.assert_close(network(images), first, rtol=0, atol=0)


@pytest.mark.parametrize("kind", [nn.Dropout, nn.Dropout2d, nn.AlphaDropout, nn.FeatureAlphaDropout])
@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_dropout_is_that_of_pytorch_but_for_its_draws(kind, p):
    network = nn.Sequential(kind(p))
    x = torch.randn(50, 40, 6, 6)
    expected = network(x)
    cler.nets.randomness.replace_dropout(network)
    assert type(network[0]) is Dropout
    found = network(x)
    torch.testing.assert_close(found.mean(), expected.mean(), rtol=0, atol=0.03)
    torch.testing.assert_close(found.std(), expected.std(), rtol=0.05, atol=0)
    if p:
        values = [each.flatten().sort().values[::500] for each in (found, expected)]
        torch.testing.assert_close(*values, rtol=0.1, atol=0.1)
    assert torch.equal(network.eval()(x), x)


def test_a_copy_of_a_layer_draws_where_the_layer_does_and_a_pickle_from_torch():
    network = adapted(nn.Dropout(0.5))
    generator = torch.Generator().manual_seed(0)
    network.use(generator)
    assert copy.deepcopy(network).module[0][3].source.generator is generator
    assert pickle.loads(pickle.dumps(network)).module[0][3].source.generator is None


class Functional(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.5, self.training)


@pytest.mark.parametrize("layer", [Functional(), nn.RReLU()], ids=["functional dropout", "RReLU"])
def test_a_module_that_draws_from_the_global_generator_is_refused_by_name(layer):
    network = adapted(layer)
    state = torch.get_rng_state()
    with pytest.raises(UsageError, match=r"sub-module 'module.0.3' draws from PyTorch's global generator"):
        try_out(network, 6, (3, 12, 12))
    assert torch.equal(torch.get_rng_state(), state)


def test_attention_with_dropout_is_refused_and_without_is_not():
    class Transformer(nn.Module):
        def __init__(self, rate):
            super().__init__()
            self.patches = nn.Conv2d(3, 16, 4, stride=4)
            self.blocks = nn.ModuleList(
                nn.TransformerEncoderLayer(16, 2, 32, dropout=rate, batch_first=True) for _ in range(2)
            )
            self.fc = nn.Linear(16, 6)

        def forward(self, images):
            x = self.patches(images).flatten(2).transpose(1, 2)
            for block in self.blocks:
                x = block(x)
            return self.fc(x.mean(1))

    where = {"tap": "blocks.0", "head": "blocks.1", "classifier": "fc"}
    with pytest.raises(UsageError, match=r"sub-module 'module.blocks.0.self_attn' draws"):
        try_out(cler.backbone(Transformer(0.1), **where), 6, (3, 12, 12))
    network = cler.backbone(Transformer(0.0), **where)
    try_out(network, 6, (3, 12, 12))
    images = torch.randn(5, 3, 12, 12)
    pretext = PretextImages(images, (5,))
    parts = network(images, Parts((2, 3)), [pretext])
    torch.testing.assert_close(parts, network(images))
    assert pretext.maps.shape == (5, 9, 16)


def test_every_backbone_of_ones_own_is_tried_out():
    class Mine(Backbone):
        tap, head, feature_size = "early", "late", 8

        def __init__(self, n_outputs):
            super().__init__()
            self.early, self.late = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 8, 3)
            self.classifier = nn.Linear(8, n_outputs)

        def features(self, images, parts=None, pretext=()):
            return self.late(self.early(images)).mean(3)  # (N, 8, H)

    with pytest.raises(UsageError, match=r"features has to give a tensor \(N, 8\), not \(N, 8, 4\)"):
        build_network(Mine, 6, image_shape=(3, 8, 8))


def test_images_that_the_network_asserts_not_to_be_its_own_are_refused():
    class Picky(nn.Identity):
        def forward(self, x):
            assert x.shape[-1] == 32, "Input width doesn't match model"
            return x

    with pytest.raises(
        UsageError, match=r"does not take a batch of images \(N, 3, 16, 16\): Input width doesn't match"
    ):
        try_out(adapted(Picky()), 6, (3, 16, 16))


def test_images_that_are_too_small_are_refused():
    with pytest.raises(UsageError, match=r"does not take a batch of images \(N, 3, 2, 2\): .*[Kk]ernel size"):
        try_out(adapted(), 6, (3, 2, 2))


def test_a_part_in_evaluation_stays_there():
    stem = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5)).requires_grad_(False).eval()
    late = nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4))
    ends = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    network = copy.deepcopy(cler.backbone(nn.Sequential(stem, late, ends), tap="0", head="1", classifier="2.2")).train()
    network(torch.randn(4, 3, 8, 8))
    assert [layer.training for layer in network.module] == [False, True, True]
    assert [int(norm.num_batches_tracked) for norm in network.modules() if isinstance(norm, nn.BatchNorm2d)] == [0, 1]
    assert not network.module[0][2].training


def test_a_network_that_was_in_evaluation_as_a_whole_is_trained():
    convolutions = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)
    whole = nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    network = cler.backbone(whole.eval(), tap="0", head="1", classifier="4").train()
    assert all(layer.training for layer in network.modules())
