import pytest
import torch

from cler.errors import UsageError
from cler.nets import ResNet18
from cler.nets.simplex import SimplexClassifier, simplex


def test_golden_simplex(golden, assert_close):
    fixture = golden("xder")
    small, large = fixture["simplex10"], fixture["simplex100_f32"]
    assert_close(simplex(small.shape[1]), small)
    assert_close(simplex(large.shape[1]), large, tolerance=1e-7)


@pytest.mark.parametrize("n_classes", [2, 3, 10, 100])
def test_corners_are_unit_vectors_equally_far_apart(n_classes, assert_close):
    corners = simplex(n_classes)
    assert corners.shape == (n_classes - 1, n_classes)
    expected = torch.full((n_classes, n_classes), -1 / (n_classes - 1), dtype=torch.float64).fill_diagonal_(1)
    assert_close(corners.T @ corners, expected, tolerance=1e-12)
    assert_close(corners.sum(1), torch.zeros(n_classes - 1), tolerance=1e-12)


def test_one_class_has_no_simplex():
    with pytest.raises(UsageError, match="at least two"):
        simplex(1)


def make_network(dtype=torch.float64):
    torch.manual_seed(0)
    network = ResNet18(5, width=2).to(dtype)
    network.replace_classifier(SimplexClassifier(network.classifier))
    return network


def test_logits_are_inner_products_with_the_corners(assert_close):
    network = make_network()
    plain = ResNet18(5, width=2).double()
    plain.load_state_dict(network.state_dict())  # the corners are no part of it
    images = torch.randn(6, 3, 8, 8, dtype=torch.float64)
    logits = network(images)
    assert_close(logits, plain(images)[:, :4] @ simplex(5))
    assert_close(logits.sum(1), torch.zeros(6), tolerance=1e-12)


def test_the_corners_and_the_last_output_do_not_learn():
    network = make_network()
    assert "corners" not in dict(network.named_parameters())
    assert network.classifier.out_features == 5
    network(torch.randn(6, 3, 8, 8, dtype=torch.float64)).square().sum().backward()
    assert network.classifier.weight.grad[:4].any()
    assert not network.classifier.weight.grad[4].any()


def test_logits_stay_in_single_precision_under_autocast():
    network = make_network(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert network(torch.randn(2, 3, 8, 8)).dtype == torch.float32
