import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cler.errors import UsageError
from cler.pretext import Flips, Jigsaw, Product, Rotation


def golden_order(permutations):
    """Our label for each label of the golden files, whose numbering is another one."""
    ours = [tuple(row) for row in Jigsaw().permutations.tolist()]
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


@settings(max_examples=40)
@given(size=st.integers(1, 9), channels=st.integers(1, 4), data=st.data())
def test_rotation_is_rot90(size, channels, data):
    labels = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=6)))
    images = torch.randn(len(labels), channels, size, size)
    rotated = Rotation().apply(images, labels)
    for image, label, result in zip(images, labels.tolist(), rotated, strict=True):
        assert torch.equal(result, image.rot90(label, (1, 2)))
    assert torch.equal(Rotation().apply(rotated, (4 - labels) % 4), images)


@settings(max_examples=40)
@given(grid=st.integers(2, 4), height=st.integers(1, 3), width=st.integers(1, 3), label=st.integers(0, 19))
def test_jigsaw_moves_tiles(grid, height, width, label):
    image = torch.randn(1, 3, grid * height, grid * width)
    family = Jigsaw(grid, 20)
    result = family.apply(image, torch.tensor([label]))

    def tile(images, number):
        row, column = number // grid * height, number % grid * width
        return images[:, :, row : row + height, column : column + width]

    for position, source in enumerate(family.permutations[label].tolist()):
        assert torch.equal(tile(result, position), tile(image, source))


def test_jigsaw_has_every_permutation_once_and_starts_with_the_identity():
    rows = [tuple(row) for row in Jigsaw().permutations.tolist()]
    assert sorted(rows) == sorted(itertools.permutations(range(4)))
    images = torch.randn(2, 3, 8, 8)
    assert torch.equal(Jigsaw().apply(images, torch.zeros(2, dtype=torch.long)), images)


def smallest_distance(permutations):
    return min(int((a != b).sum()) for a, b in itertools.combinations(permutations, 2))


@pytest.mark.parametrize(("grid", "count", "apart"), [(2, 4, 4), (2, 12, 3), (3, 9, 8), (3, 60, 6), (4, 30, 13)])
def test_some_permutations_are_well_spread(grid, count, apart):
    """A Latin square's rows are all 4 apart, half of the 24 orders 3; random ones of nine or sixteen come closer."""
    family = Jigsaw(grid, count)
    assert family.n_transforms == len(family.permutations) == count
    assert family.permutations[0].tolist() == list(range(grid**2))
    assert all(sorted(row) == list(range(grid**2)) for row in family.permutations.tolist())
    assert smallest_distance(family.permutations) >= apart


def test_the_permutations_of_a_large_jigsaw_are_fixed_by_the_seed():
    first, again, other = (Jigsaw(3, 10, seed=seed).permutations for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"grid": 1}, "at least 2"),
        ({"grid": 3}, "say how many"),
        ({"n_permutations": 25}, "2 to 24"),
        ({"n_permutations": 1}, "2 to 24"),
        ({"grid": 3, "n_permutations": 1001}, "2 to 1000"),
    ],
)
def test_a_jigsaw_that_cannot_be_is_refused(wrong, message):
    with pytest.raises(UsageError, match=message):
        Jigsaw(**wrong)


def test_inverse_permutation_restores_the_image():
    images = torch.randn(24, 3, 6, 6)
    labels = torch.arange(24)
    order = [tuple(row) for row in Jigsaw().permutations.tolist()]
    inverse = torch.tensor([order.index(tuple(torch.tensor(row).argsort().tolist())) for row in order])
    assert torch.equal(Jigsaw().apply(Jigsaw().apply(images, labels), inverse), images)


def test_flips():
    images = torch.randn(4, 3, 6, 5)
    flipped = Flips().apply(images, torch.arange(4))
    expected = (images[0], images[1].flip(2), images[2].flip(1), images[3].flip(1, 2))
    for result, image in zip(flipped, expected, strict=True):
        assert torch.equal(result, image)


def test_product_is_one_after_the_other():
    product = Product(Rotation(), Jigsaw(3, 5))
    assert product.n_transforms == 20
    image = torch.randn(1, 3, 12, 12)
    for turns, order in itertools.product(range(4), range(5)):
        turned = image.rot90(turns, (2, 3))
        expected = Jigsaw(3, 5).apply(turned, torch.tensor([order]))
        assert torch.equal(product.apply(image, torch.tensor([turns * 5 + order])), expected)


class Darker:
    """A family of one's own, that does more than move pixels."""

    n_transforms = 2

    def apply(self, images, labels):
        return images * (1 - 0.5 * labels.view(-1, 1, 1, 1))


def test_product_takes_families_of_ones_own():
    product = Product(Product(Darker(), Flips()), Darker())
    images = torch.randn(2, 1, 3, 4)
    dark_flipped_dark = product.apply(images, torch.tensor([0, 1 * 8 + 2 * 2 + 1]))
    assert torch.equal(dark_flipped_dark, torch.stack([images[0], images[1].flip(1) / 4]))


@pytest.mark.parametrize("families", [(Rotation, Flips), (Jigsaw, Jigsaw)])
def test_a_product_with_a_transform_under_two_labels_is_refused(families):
    with pytest.raises(UsageError, match="in common"):
        Product(*(family() for family in families))


@pytest.mark.parametrize("families", [(Rotation, Jigsaw), (Jigsaw, Flips)])
def test_products_that_can_be_told_apart(families):
    product = Product(*(family() for family in families))
    images = torch.randn(1, 1, 8, 8).expand(96, -1, -1, -1)
    assert len(product.apply(images, torch.arange(product.n_transforms)).unique(dim=0)) == 96


@pytest.mark.parametrize(
    ("family", "shape", "message"),
    [
        (Rotation(), (1, 3, 8, 6), "needs square images, these are 8×6"),
        (Jigsaw(), (1, 3, 7, 7), "even size"),
        (Jigsaw(3, 4), (1, 3, 9, 8), "multiples of 3, these are 9×8"),
        (Rotation(), (3, 8, 8), r"batch of images .* not a tensor \(3, 8, 8\)"),
    ],
)
def test_images_that_do_not_fit_are_refused(family, shape, message):
    with pytest.raises(UsageError, match=message):
        family.apply(torch.zeros(shape), torch.tensor([0]))


def test_a_product_of_names_is_refused():
    with pytest.raises(UsageError, match=r"as in Product\(Rotation\(\), Jigsaw\(\)\), not 'rotation'"):
        Product("rotation", Jigsaw())
