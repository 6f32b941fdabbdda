import pytest
import torch
import torch.nn.functional as F

from cler.nets import ResNet18
from cler.paper.gradients import added, among, cosines, mean_gradients, mean_term

LABELS = torch.tensor([2, 3, 3, 2, 3, 2, 2])


@pytest.fixture
def network():
    torch.manual_seed(0)
    return ResNet18(6, width=2).double().eval()


@pytest.fixture
def images():
    return torch.randn(7, 3, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_the_mean_is_over_images_however_they_are_cut(network, images):
    losses = {"all": F.cross_entropy, "own": among(torch.tensor([2, 3]), torch.tensor([0, 1, 0, 1]))}
    batches = zip(images.split([3, 4]), LABELS.split([3, 4]), strict=True)
    found = mean_gradients(network, batches, losses)
    logits = network(images)
    own = -logits[:, 2:4].log_softmax(1)[torch.arange(7), LABELS - 2].mean()
    for name, loss in (("all", F.cross_entropy(logits, LABELS)), ("own", own)):
        network.zero_grad()
        loss.backward(retain_graph=True)
        wanted = {name: each.grad for name, each in network.named_parameters()}
        assert found[name].keys() == wanted.keys()
        for parameter, gradient in found[name].items():
            torch.testing.assert_close(gradient, wanted[parameter], atol=1e-12, rtol=1e-9)


def test_the_network_is_left_alone(network, images):
    before = {name: each.clone() for name, each in network.state_dict().items()}
    mean_gradients(network, [(images, LABELS)], {"all": F.cross_entropy})
    assert all(parameter.grad is None for parameter in network.parameters())
    assert all(torch.equal(each, before[name]) for name, each in network.state_dict().items())


def test_the_mean_of_a_term_counts_what_it_does_not_depend_on_as_zero(network, images):
    found = mean_term(network, (2 * network.features(images).sum() for _ in range(3)))
    network.zero_grad()
    network.features(images).sum().backward()
    for name, parameter in network.named_parameters():
        wanted = torch.zeros_like(parameter) if parameter.grad is None else 2 * parameter.grad
        torch.testing.assert_close(found[name], wanted, atol=1e-12, rtol=1e-9)
    assert not found["classifier.weight"].any()
    assert not any(each.any() for each in mean_term(network, ()).values())


def test_the_gradient_of_a_sum_is_the_sum_of_gradients():
    assert added({"a": torch.tensor(1.0)}, {"a": torch.tensor(2.0)}) == {"a": torch.tensor(3.0)}


def test_cosines_over_all_and_over_each_part():
    first = {"stem.conv": torch.tensor([3.0, 4.0]), "layer1.a": torch.tensor([[1.0]]), "layer1.b": torch.tensor([2.0])}
    second = {
        "stem.conv": torch.tensor([4.0, 3.0]),
        "layer1.a": torch.tensor([[-2.0]]),
        "layer1.b": torch.tensor([-4.0]),
    }
    first["classifier.weight"], second["classifier.weight"] = torch.tensor([10.0]), torch.tensor([10.0])
    found = cosines(first, second)
    assert found["classifier"] == pytest.approx(1)
    assert found["all with classifier"] == pytest.approx((100 + 24 - 10) / (130 * 145) ** 0.5)
    assert found["stem"] == pytest.approx(24 / 25)
    assert found["layer1"] == pytest.approx(-1)
    assert found["all"] == pytest.approx((24 - 10) / (30 * 45) ** 0.5)
