import copy
import re

import pytest
import torch

from cler import ResNet18
from cler.data.views import Views, crop_and_flip
from cler.methods.loss import total
from cler.nets.backbone import Parts
from cler.regularizers.barlow_twins import BarlowTwins, barlow_twins_loss
from cler.streams import Batch
from golden_step import er_ace_before
from toys import CIFAR, given_crops, ours

NO_LABELS = torch.zeros(0, dtype=torch.int64)
"""The loss does not look at them."""


def views_of(*crops):
    """Views that draw these crops, one set after the other."""
    views = Views(*CIFAR, dtype=torch.float64)
    views.view = given_crops(*crops)
    return views


def golden_pair(golden, load_golden, views, weight=1.0):
    """Network and regularizer with the golden weights."""
    weights, projector = golden("net_nf4"), golden("barlow").under("net.projector.")
    network = ResNet18(len(weights["classifier.bias"]), width=len(weights["stem.conv"])).double()
    load_golden(network, weights)
    regularizer = BarlowTwins(network, views, weight=weight).double()
    fresh = {"bn.mean": regularizer.projector.bn.running_mean, "bn.var": regularizer.projector.bn.running_var}
    load_golden(regularizer.projector, projector | fresh)
    return network, regularizer


# -- golden ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["n20", "n10"])
def test_golden_loss(golden, assert_close, case):
    fixture = golden("barlow").under(f"{case}.")
    first, second = (fixture[name].requires_grad_() for name in ("z1", "z2"))
    loss = barlow_twins_loss(first, second)
    loss.backward()
    assert_close(loss, fixture["loss"])
    assert_close(first.grad, fixture["grad1"])
    assert_close(second.grad, fixture["grad2"])


def test_golden_network(golden, load_golden, assert_close):
    fixture = golden("barlow").under("net.")
    views = views_of(fixture["crops1"], fixture["crops2"])
    network, regularizer = golden_pair(golden, load_golden, views)
    loss = regularizer.loss(network, views.plain(fixture["images"]), views.augmented(fixture["images"]), NO_LABELS)
    loss.backward()
    assert_close(loss, fixture["loss"])
    modules = dict(network.named_parameters()) | dict(regularizer.named_parameters())
    stored = golden("barlow").under("net.grad.")
    assert stored
    for name, expected in stored.items():
        name, _, part = name.partition("_first")
        gradient = modules[ours(name)].grad
        assert (part == "") == (gradient.shape == expected.shape)
        assert re.fullmatch(r"|\d+rows|\d+cols", part)
        assert_close(gradient[tuple(map(slice, expected.shape))], expected, name)
    after = golden("barlow").under("net.after.")
    assert after
    for name, expected in after.items():
        assert_close(network.state_dict()[ours(name)], expected, name)


def test_golden_er_ace_step(golden, load_golden, assert_close):
    fixture, step = golden("er_ace_cssl_step"), golden("er_ace_step")
    views = views_of(step["stream_crops"], step["replay_crops"], fixture["view2_crops"])
    network, regularizer = golden_pair(golden, load_golden, views, float(fixture["lambda_r"]))
    method = er_ace_before(step, network, views, [regularizer])
    regularization = []
    original = regularizer.loss
    regularizer.loss = lambda *inputs: regularization.append(original(*inputs)) or regularization[-1]

    def tensors():
        return copy.deepcopy(network.state_dict() | regularizer.state_dict())

    before = tensors()
    pixels = step["stream_images"]
    loss = total(method.observe(Batch(pixels, views.augmented(pixels), step["stream_labels"])))

    assert_close(loss, fixture["loss_total"])
    assert_close(regularization[0], fixture["lambda_r"] * fixture["loss_bt_unweighted"])
    assert_close(loss, step["plain.loss_total"] + fixture["lambda_r"] * fixture["loss_bt_unweighted"])
    after = tensors()
    for name, value in fixture.under("after.").items():
        assert_close(after[ours(name)], value, name)
    norms = dict(zip(map(ours, fixture["step_norm_names"]), fixture["step_norms"], strict=True))
    assert norms.keys() == {name for name in after if not name.rpartition(".")[2].startswith("running_")}
    for name, norm in norms.items():
        assert_close((after[name] - before[name]).norm(), norm, name)


# -- the loss ----------------------------------------------------------------------------------------------------------


def test_identical_decorrelated_views_leave_the_gap_between_the_two_variances():
    """Standardized with N − 1, correlated with N: the diagonal is (N − 1)/N, not 1."""
    count, size = 16, 5
    columns = torch.linalg.qr(torch.cat([torch.ones(count, 1), torch.randn(count, size)], 1).double()).Q[:, 1:]
    projections = 3 * columns + 7  # mean 7 and no correlation, for the columns are orthogonal to each other and to 1
    expected = size * ((count - 1) / count - 1) ** 2
    assert float(barlow_twins_loss(projections, projections)) == pytest.approx(expected, rel=1e-9)


def test_loss_by_hand():
    first, second = torch.randn(2, 6, 3, dtype=torch.float64)
    total = 0.0
    for d in range(3):
        for e in range(3):
            a, b = first[:, d], second[:, e]
            correlation = ((a - a.mean()) / a.std() * (b - b.mean()) / b.std()).sum() / 6
            total += (correlation - 1) ** 2 if d == e else 0.002 * correlation**2
    assert float(barlow_twins_loss(first, second)) == pytest.approx(float(total), rel=1e-12)


def test_loss_does_not_depend_on_scale_and_shift():
    first, second = torch.randn(2, 8, 4, dtype=torch.float64)
    moved = barlow_twins_loss(3 * first - 5, 0.1 * second + 2)
    assert torch.allclose(moved, barlow_twins_loss(first, second))


@pytest.mark.parametrize("dead", [(True, False), (True, True)])
def test_a_dimension_that_does_not_vary_is_harmless(dead):
    views = torch.randn(2, 10, 4)
    for view, flat in zip(views, dead, strict=True):
        if flat:
            view[:, 1] = 0.3
    views.requires_grad_()
    loss = barlow_twins_loss(*views)
    loss.backward()
    assert loss.isfinite()
    assert views.grad.isfinite().all()
    assert views.grad.abs().max() < 10


def test_loss_is_computed_in_full_under_autocast():
    torch.manual_seed(0)
    network, images = ResNet18(4, width=4), torch.randn(2, 8, 3, 16, 16)
    regularizer = BarlowTwins(network, Views(*CIFAR))
    with torch.autocast("cpu", torch.bfloat16):
        assert regularizer.loss(network, *images, NO_LABELS).dtype == torch.float32
        first, second = torch.randn(2, 8, 4)
        loss = barlow_twins_loss(first, second)
    assert torch.equal(loss, barlow_twins_loss(first, second))


# -- the views ---------------------------------------------------------------------------------------------------------


def test_the_second_view_is_cropped_as_raw_pixels_are(assert_close):
    pixels = torch.randint(256, (6, 3, 12, 12), dtype=torch.uint8)
    crops = torch.cat([torch.randint(9, (6, 2)), torch.randint(2, (6, 1))], dim=1)
    views = views_of(crops)
    assert_close(views.augmented_again(views.plain(pixels)), views.plain(crop_and_flip(pixels, crops)), tolerance=1e-14)


def test_two_views_are_two_passes_in_order(assert_close):
    torch.manual_seed(0)
    network = ResNet18(4, width=4).double()
    one_by_one = copy.deepcopy(network)
    views = Views(*CIFAR, dtype=torch.float64)
    regularizer = BarlowTwins(network, views, weight=0.5).double()
    projector = copy.deepcopy(regularizer.projector)
    raw, augmented, second = torch.randn(3, 8, 3, 16, 16, dtype=torch.float64)
    views.augmented_again = lambda images: second
    loss = regularizer.loss(
        network, raw, augmented, NO_LABELS, Parts((5, 3))
    )  # the parts of the batch make no difference
    assert_close(loss, 0.5 * barlow_twins_loss(*(projector(one_by_one.features(view)) for view in (augmented, second))))
    pairs = [*zip(network.named_buffers(), one_by_one.buffers(), strict=True)]
    pairs += zip(regularizer.projector.named_buffers(), projector.buffers(), strict=True)
    for (name, found), expected in pairs:
        assert_close(found, expected, name)


def test_the_classifier_is_left_alone():
    network = ResNet18(4, width=4)
    regularizer = BarlowTwins(network, Views(*CIFAR), weight=0.1)
    regularizer.loss(network, *torch.randn(2, 8, 3, 16, 16), NO_LABELS).backward()
    assert all(parameter.grad is None for parameter in network.classifier.parameters())
    trained = [*(parameter for stage in (network.stem, network.layer4) for parameter in stage.parameters())]
    assert all(parameter.grad is not None for parameter in (*trained, *regularizer.parameters()))
