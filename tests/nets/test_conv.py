import torch

from cler.nets import ResNet18
from cler.nets.conv import Conv2d, WorkingCopies


def test_working_copies_pass_gradients_to_the_weights_and_follow_them():
    torch.manual_seed(0)
    network = ResNet18(3, width=4)
    copies = WorkingCopies([network])
    images, labels = torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 2, 0])
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        torch.nn.functional.cross_entropy(network(images), labels).backward()
    convolutions = [layer for layer in network.modules() if isinstance(layer, Conv2d)]
    assert len(convolutions) == 20
    assert all(layer.weight.grad is None for layer in convolutions)
    copies.gather_gradients()
    assert all(layer.weight.grad.dtype == torch.float32 and layer.weight.grad.any() for layer in convolutions)
    assert all(layer.working.grad is None for layer in convolutions)
    before = [layer.working.clone() for layer in convolutions]
    torch.optim.SGD(network.parameters(), lr=1.0).step()
    copies.refresh()
    for layer, old in zip(convolutions, before, strict=True):
        assert torch.equal(layer.working, layer.weight.to(torch.bfloat16))
        assert not torch.equal(layer.working, old)


def test_small_steps_are_not_lost_in_the_working_precision():
    layer = Conv2d(1, 1, 1, bias=False)
    torch.nn.init.ones_(layer.weight)
    copies = WorkingCopies([layer])
    for _ in range(100):
        layer.working.grad = torch.full_like(layer.working, 1.0)
        copies.gather_gradients()
        torch.optim.SGD([layer.weight], lr=1e-4).step()
        copies.refresh()
    assert abs(float(layer.weight.detach()) - 0.99) < 1e-5
    assert float(layer.working.detach()) < 1
