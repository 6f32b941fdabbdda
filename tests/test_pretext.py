import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cler.errors import UsageError
from cler.pretext import Jigsaw, Rotation


def golden_order(permutations):
    """Our label for each label of the golden files, whose numbering is another one."""
    ours = [tuple(row) for row in Jigsaw.permutations.tolist()]
    return torch.tensor([ours.index(tuple(row)) for row in permutations.tolist()])


@pytest.mark.parametrize("name", ["rotation", "jigsaw"])
def test_golden_transforms(golden, name):
    fixture = golden("cler_loss")
    labels = fixture[f"{name}.labels"]
    family = Rotation()
    if name == "jigsaw":
        family, labels = Jigsaw(), golden_order(fixture["jigsaw.permutations"])[labels]
    images = fixture["images84"]
    assert torch.equal(family.apply(images, labels[-len(images) :]), fixture[f"{name}.x84_u8"])


@settings(max_examples=40, deadline=None)
@given(size=st.integers(1, 9), channels=st.integers(1, 4), data=st.data())
def test_rotation_is_rot90(size, channels, data):
    labels = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=6)))
    images = torch.randn(len(labels), channels, size, size)
    rotated = Rotation().apply(images, labels)
    for image, label, result in zip(images, labels.tolist(), rotated, strict=True):
        assert torch.equal(result, image.rot90(label, (1, 2)))
    assert torch.equal(Rotation().apply(rotated, (4 - labels) % 4), images)


@settings(max_examples=40, deadline=None)
@given(half=st.integers(1, 5), label=st.integers(0, 23))
def test_jigsaw_moves_quadrants(half, label):
    image = torch.randn(1, 3, 2 * half, 2 * half)
    result = Jigsaw().apply(image, torch.tensor([label]))
    corners = [(0, 0), (0, half), (half, 0), (half, half)]
    for position, source in enumerate(Jigsaw.permutations[label].tolist()):
        (row, column), (from_row, from_column) = corners[position], corners[source]
        moved = result[:, :, row : row + half, column : column + half]
        assert torch.equal(moved, image[:, :, from_row : from_row + half, from_column : from_column + half])


def test_jigsaw_has_every_permutation_once_and_starts_with_the_identity():
    rows = [tuple(row) for row in Jigsaw.permutations.tolist()]
    assert sorted(rows) == sorted(itertools.permutations(range(4)))
    images = torch.randn(2, 3, 8, 8)
    assert torch.equal(Jigsaw().apply(images, torch.zeros(2, dtype=torch.long)), images)


def test_inverse_permutation_restores_the_image():
    images = torch.randn(24, 3, 6, 6)
    labels = torch.arange(24)
    order = [tuple(row) for row in Jigsaw.permutations.tolist()]
    inverse = torch.tensor([order.index(tuple(torch.tensor(row).argsort().tolist())) for row in order])
    assert torch.equal(Jigsaw().apply(Jigsaw().apply(images, labels), inverse), images)


@pytest.mark.parametrize(("family", "shape"), [(Rotation, (8, 6)), (Jigsaw, (8, 6)), (Jigsaw, (7, 7))])
def test_images_that_do_not_fit_are_refused(family, shape):
    with pytest.raises(UsageError):
        family().apply(torch.zeros(1, 3, *shape), torch.tensor([0]))
