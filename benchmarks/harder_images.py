"""Are the test images of mini-ImageNet, the last 100 of each class by file name, harder than 100 others?

python benchmarks/harder_images.py [--dataset mini-imagenet] [--data-dir FOLDER]

A classifier without a network: edges by direction and colors in squares of the image, random cosines of them, and ridge
regression. It is trained on all images of a class but a sixth: the test images, or a sixth drawn at random. Needs about
3 GB of memory and a few minutes on one core.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from cler import data

SQUARES, DIRECTIONS = 7, 9
COSINES, PENALTY = 2000, 300.0
AT_A_TIME = 500


def describe(pixels: Tensor) -> Tensor:
    """Edges by direction, mean colors and their deviations, in squares of images (N, 3, H, W)."""
    images = pixels.float() / 255
    side = images.shape[-1] // SQUARES
    gray = images.mean(1)
    across = F.pad(gray[:, :, 2:] - gray[:, :, :-2], (1, 1))
    down = F.pad(gray[:, 2:] - gray[:, :-2], (0, 0, 1, 1))
    direction = (torch.atan2(down, across) % math.pi / math.pi * DIRECTIONS).long().clamp(max=DIRECTIONS - 1)
    edges = torch.zeros(len(images), DIRECTIONS, *gray.shape[1:])
    edges.scatter_(1, direction[:, None], torch.hypot(across, down)[:, None])
    colors = F.avg_pool2d(images, side)
    deviations = (F.avg_pool2d(images**2, side) - colors**2).clamp(min=0).sqrt()
    return torch.cat([F.avg_pool2d(edges, side).sqrt().flatten(1), colors.flatten(1), deviations.flatten(1)], 1)


def by_class(source: data.ImageData) -> Tensor:
    """What is seen of the images (class, image, value), standardized; the test images of a class are its last."""
    splits = ((source.train_images, source.train_labels), (source.test_images, source.test_labels))
    parts = []
    for images, labels in splits:
        seen = torch.cat([describe(images[first : first + AT_A_TIME]) for first in range(0, len(images), AT_A_TIME)])
        parts.append(seen[torch.sort(labels, stable=True).indices].unflatten(0, (source.n_classes, -1)))
    seen = torch.cat(parts, 1)
    return (seen - seen.mean((0, 1))) / seen.std((0, 1))


class Classifier:
    """Ridge regression on the values and random cosines of them, from sums over images that can be taken out again."""

    def __init__(self, values: int, classes: int) -> None:
        self.directions = torch.randn(values, COSINES) / (2 * math.sqrt(values))
        self.shifts = 2 * math.pi * torch.rand(COSINES)
        width = values + COSINES + 1
        self.squares, self.products = torch.zeros(width, width), torch.zeros(width, classes)

    def _expand(self, values: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """A class at a time: its number, and its images (image, value)."""
        for number, images in enumerate(values):
            cosines = 2 * torch.cos(images @ self.directions + self.shifts)
            yield torch.tensor(number), torch.cat([images, cosines, torch.ones(len(images), 1)], 1)

    def add(self, values: Tensor, sign: int = 1) -> None:
        """Train on images (class, image, value); with a sign of -1, forget them."""
        for number, images in self._expand(values):
            self.squares.addmm_(images.T, images, alpha=sign)
            self.products[:, number] += sign * images.sum(0)

    def right(self, values: Tensor) -> Tensor:
        """The share of images of each class that it gets right."""
        weight = torch.linalg.solve(self.squares + PENALTY * torch.eye(len(self.squares)), self.products)
        return torch.stack(
            [(images @ weight).argmax(1).eq(number).float().mean() for number, images in self._expand(values)]
        )


def left_out(classifier: Classifier, values: Tensor, which: Tensor) -> Tensor:
    """Accuracy in percent on some images of each class (class, image), trained on all others."""
    some = torch.stack([images[rows] for images, rows in zip(values, which, strict=True)])
    classifier.add(some, -1)
    accuracy = 100 * classifier.right(some)
    classifier.add(some)
    return accuracy


def main() -> None:
    """Print the accuracy on the test images, on random sixths, and the difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="mini-imagenet")
    parser.add_argument("--data-dir", type=Path)
    given = parser.parse_args()
    torch.manual_seed(0)
    source = data.load(given.dataset, given.data_dir)
    values = by_class(source)
    classes, images = values.shape[:2]
    tests = len(source.test_labels) // classes
    classifier = Classifier(values.shape[2], classes)
    classifier.add(values)
    last = left_out(classifier, values, torch.arange(images - tests, images).expand(classes, -1))
    print(f"test images: {last.mean():.2f} %", flush=True)
    drawn = torch.rand(classes, images).argsort(1)
    others = torch.stack([left_out(classifier, values, drawn[:, at : at + tests]) for at in range(0, images, tests)])
    print(f"images drawn at random: {others.mean():.2f} % ({', '.join(f'{each:.2f}' for each in others.mean(1))})")
    lost = others.mean(0) - last
    print(f"difference: {lost.mean():.2f}, standard error over the classes {lost.std() / math.sqrt(classes):.2f}")


if __name__ == "__main__":
    main()
