"""ResNet-18 of PyTorch's own layers, whose tensors have the names that ours has."""

import torch.nn.functional as F
from torch import nn


class ConvNorm(nn.Module):
    """A convolution and its batch norm."""

    def __init__(self, inputs, outputs, size, stride):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
        self.bn = nn.BatchNorm2d(outputs)

    def forward(self, x):
        return self.bn(self.conv(x))


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Identity() if inputs == outputs else ConvNorm(inputs, outputs, 1, stride)

    def forward(self, x):
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + self.shortcut(x))


class PlainResNet(nn.Module):
    """ResNet-18 with so many filters in its stem."""

    def __init__(self, n_classes, width):
        super().__init__()

        def stage(inputs, outputs, stride):
            return nn.Sequential(Block(inputs, outputs, stride), Block(outputs, outputs, 1))

        self.stem = ConvNorm(3, width, 3, 1)
        self.layer1, self.layer2 = stage(width, width, 1), stage(width, 2 * width, 2)
        self.layer3, self.layer4 = stage(2 * width, 4 * width, 2), stage(4 * width, 8 * width, 2)
        self.classifier = nn.Linear(8 * width, n_classes)

    def forward(self, images):
        x = self.layer4(self.layer3(self.layer2(self.layer1(F.relu(self.stem(images))))))
        return self.classifier(x.mean((2, 3)))
