import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cler.nets import ResNet18
from cler.paper.filters import convolutions, importance, important_share, redundancy


def test_convolutions_come_in_order_of_depth():
    names = list(convolutions(ResNet18(2, width=2)))
    assert len(names) == 20
    assert names[0] == "stem.conv"
    assert len([name for name in names if "shortcut" not in name]) == 17
    assert names == sorted(names, key=lambda name: (name != "stem.conv", name.split(".")[:2]))


def test_importance_is_the_mean_of_squares_and_not_the_square_of_a_mean():
    network = nn.Sequential(nn.Conv2d(1, 2, 1, bias=False), nn.Flatten())  # logits: w·x for each of two classes
    with torch.no_grad():
        network[0].weight.copy_(torch.tensor([1.0, -2.0]).view(2, 1, 1, 1))
    x = torch.tensor([1.0, 3.0])
    labels = torch.tensor([0, 1])
    batches = [(x[i].view(1, 1, 1, 1), labels[i : i + 1]) for i in range(2)]
    expected = torch.zeros(2)
    for i in range(2):
        wrong = F.softmax(torch.tensor([1.0, -2.0]) * x[i], 0) - F.one_hot(labels[i], 2)
        expected += (wrong * x[i] * torch.tensor([1.0, -2.0])) ** 2 / 2
    (scores,) = importance(network, batches).values()
    torch.testing.assert_close(scores.flatten(), expected)


def test_shares_above_the_mean_of_parameters_and_of_filters():
    scores = {
        "layer": torch.tensor([[1.0, 1.0, 10.0], [0.0, 0.0, 0.0], [2.0, 2.0, 2.0], [1.0, 1.0, 0.0]]).view(4, 3, 1, 1)
    }
    assert important_share(scores)["layer"] == pytest.approx(100 * 4 / 12)  # the mean is 5/3: 10 and the 2s
    assert important_share(scores, filters=True)["layer"] == 50  # sums 12, 0, 6, 2, mean 5


def test_redundancy_is_the_distance_of_the_most_central_filters():
    network = nn.Sequential(nn.Conv2d(2, 4, 1, bias=False))
    filters = torch.tensor([[0.0, 0.0], [1.0, 1.0], [1.0, 0.0], [10.0, 0.0]])
    with torch.no_grad():
        network[0].weight.copy_(filters.view(4, 2, 1, 1))
    found = redundancy(network, share=0.25)["0"]  # the third filter: nearest to all others
    assert found["l1"] == pytest.approx((1 + 1 + 0 + 9) / 4)
    assert found["l2"] == pytest.approx((1 + 1 + 0 + 9) / 4)
    assert found["relative"] == pytest.approx(11 / 4 / ((0 + 2 + 1 + 10) / 4))
    half = redundancy(network, share=0.5)["0"]  # and the second one
    assert half["l1"] == pytest.approx((11 + 2 + 0 + 1 + 10) / 8)
    assert half["l2"] == pytest.approx((11 + 2**0.5 + 0 + 1 + 82**0.5) / 8)


def test_smaller_weights_do_not_look_more_redundant_in_relation_to_their_norm():
    network = ResNet18(2, width=4)
    before = redundancy(network)
    with torch.no_grad():
        for layer in convolutions(network).values():
            layer.weight.mul_(0.1)
    after = redundancy(network)
    for name, distances in before.items():
        assert after[name]["l1"] == pytest.approx(0.1 * distances["l1"], rel=1e-5)
        assert after[name]["relative"] == pytest.approx(distances["relative"], rel=1e-5)
