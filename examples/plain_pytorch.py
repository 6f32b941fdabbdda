"""CLER in a plain PyTorch loop: your own small network, and three more lines."""

import torch
import torch.nn.functional as F
from torch import nn

import cler


def block(inputs: int, outputs: int) -> nn.Sequential:
    """Halve the size of the maps."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())


class SmallNet(nn.Module):
    """Three blocks and a classifier."""

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.first, self.second, self.third = block(3, 16), block(16, 32), block(32, 64)
        self.classifier = nn.Linear(64, n_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits (N, n_classes)."""
        return self.classifier(self.third(self.second(self.first(images))).mean((2, 3)))


torch.manual_seed(0)
images, labels = torch.randn(320, 3, 32, 32), torch.randint(10, (320,))  # yours go here, normalized

network = SmallNet(n_classes=10)
regularizer = cler.Equivariant(network, "jigsaw", tap="second", head="third")  # 1: what to watch
optimizer = torch.optim.SGD([*network.parameters(), *regularizer.parameters()], lr=0.05)  # 2: train its head

for step, batch in enumerate(torch.arange(320).split(32)):
    augmented = torch.where(torch.rand(32, 1, 1, 1) < 0.5, images[batch].flip(3), images[batch])
    loss = F.cross_entropy(network(augmented), labels[batch])
    loss = loss + regularizer(images[batch])  # 3: add its loss, on images that are not augmented
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: loss {loss.item():.3f}")
