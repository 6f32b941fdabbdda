import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from cler.data.views import PADDING, VIEWS, Views, crop_and_flip
from cler.errors import UsageError
from toys import given_crops

MEAN, STD = (0.5, 0.25, 0.75), (0.25, 0.5, 0.125)


def by_the_book(image, top, left, flip):
    """One image, pixel by pixel: black outside, a window of the original size, mirrored or not."""
    _, height, width = image.shape
    out = torch.zeros_like(image)
    for y in range(height):
        for x in range(width):
            row = top + y - PADDING
            column = left + (width - 1 - x if flip else x) - PADDING
            if 0 <= row < height and 0 <= column < width:
                out[:, y, x] = image[:, row, column]
    return out


@settings(max_examples=60)
@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 6), st.integers(1, 6)),
    seed=st.integers(0, 1000),
)
def test_each_image_is_cropped_by_its_own_row(shape, seed):
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(256, shape, generator=generator).to(torch.uint8)
    corners = torch.randint(2 * PADDING + 1, (shape[0], 2), generator=generator)
    crops = torch.cat([corners, torch.randint(2, (shape[0], 1), generator=generator)], 1)
    expected = [by_the_book(image, *row) for image, row in zip(pixels, crops.tolist(), strict=True)]
    result = crop_and_flip(pixels, crops)
    assert result.dtype == torch.uint8
    assert torch.equal(result, torch.stack(expected))


def test_the_middle_window_is_the_image_itself():
    pixels = torch.arange(2 * 3 * 8 * 8).view(2, 3, 8, 8).to(torch.uint8)
    assert torch.equal(crop_and_flip(pixels, torch.tensor([[4, 4, 0], [4, 4, 0]])), pixels)
    assert torch.equal(crop_and_flip(pixels, torch.tensor([[4, 4, 1], [4, 4, 1]])), pixels.flip(3))


def test_padding_is_black_not_gray():
    views = Views(MEAN, STD)
    views.view = given_crops(torch.tensor([[0, 8, 0]]))
    image = views.augmented(torch.full((1, 3, 8, 8), 255, dtype=torch.uint8))[0]
    for channel in range(3):
        black, white = -MEAN[channel] / STD[channel], (1 - MEAN[channel]) / STD[channel]
        assert torch.allclose(image[channel, :4], torch.full((4, 8), black))
        assert torch.allclose(image[channel, 4:, 4:], torch.full((4, 4), black))
        assert torch.allclose(image[channel, 4:, :4], torch.full((4, 4), white))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_plain_is_the_pixel_less_the_mean_over_the_deviation(dtype):
    pixels = torch.arange(256).to(torch.uint8).view(1, 1, 16, 16).expand(1, 3, 16, 16)
    result = Views(MEAN, STD, dtype=dtype).plain(pixels)
    mean, std = (torch.tensor(values, dtype=torch.float64).view(1, 3, 1, 1) for values in (MEAN, STD))
    assert result.dtype == dtype
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    assert torch.allclose(result.double(), (pixels.double() / 255 - mean) / std, rtol=0, atol=tolerance)


def draw(name, count=12, seed=3):
    """Some images, what a view makes of them, and the generator after it."""
    pixels = torch.randint(256, (count, 3, 9, 7), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    generator = torch.Generator().manual_seed(seed)
    return pixels, VIEWS[name](pixels, generator), generator


@pytest.mark.parametrize("name", VIEWS)
def test_every_view_keeps_shape_and_kind_and_draws_from_the_generator_alone(name):
    before = torch.get_rng_state()
    for images in (torch.randint(256, (5, 3, 9, 7)).to(torch.uint8), 255 * torch.rand(5, 1, 28, 28)):
        state = torch.get_rng_state()
        first, again, other = (VIEWS[name](images, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
        assert (first.shape, first.dtype) == (images.shape, images.dtype)
        assert torch.equal(first, again)
        assert torch.equal(first, other) == (name == "none")
        assert torch.equal(torch.get_rng_state(), state)
    torch.set_rng_state(before)


def test_no_view_draws_nothing():
    pixels, seen, generator = draw("none")
    assert torch.equal(seen, pixels)
    assert torch.equal(generator.get_state(), torch.Generator().manual_seed(3).get_state())


def test_corners_are_drawn_first_then_flips():
    pixels, seen, generator = draw("crop-flip")
    by_hand = torch.Generator().manual_seed(3)
    corners = torch.randint(2 * PADDING + 1, (len(pixels), 2), generator=by_hand)
    assert torch.equal(draw("crop")[1], crop_and_flip(pixels, torch.cat([corners, torch.zeros(12, 1).long()], 1)))
    assert torch.equal(draw("crop")[2].get_state(), by_hand.get_state())
    flips = torch.randint(2, (len(pixels), 1), generator=by_hand)
    assert torch.equal(seen, crop_and_flip(pixels, torch.cat([corners, flips], dim=1)))
    assert torch.equal(generator.get_state(), by_hand.get_state())


@pytest.mark.parametrize("augment", VIEWS)
def test_the_chosen_view_is_normalized_after_it(augment):
    pixels = torch.randint(256, (5, 3, 8, 8), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    views = Views(MEAN, STD, augment, generator=torch.Generator().manual_seed(3))
    seen = VIEWS[augment](pixels, torch.Generator().manual_seed(3))
    assert torch.equal(views.augmented(pixels), views.plain(seen))
    views.generator.manual_seed(3)
    assert torch.equal(Views(MEAN, STD, generator=views.generator).augmented(pixels, augment), views.plain(seen))
    views.generator.manual_seed(3)
    assert torch.allclose(views.augmented_again(views.plain(pixels)), views.plain(seen), atol=1e-5)


def test_crop_and_flip_is_what_is_not_said_and_an_unknown_one_is_refused():
    assert Views(MEAN, STD).augment == "crop-flip"
    with pytest.raises(UsageError, match=r"unknown augmentation 'crop-flop'.*did you mean 'crop-flip'"):
        Views(MEAN, STD, "crop-flop")


def test_a_new_view_is_a_function_and_a_line(monkeypatch):
    monkeypatch.setitem(VIEWS._entries, "upside-down", lambda images, generator: images.flip(2))
    pixels = torch.arange(3 * 64).view(1, 3, 8, 8).to(torch.uint8)
    views = Views(MEAN, STD, "upside-down")
    assert torch.equal(views.augmented(pixels), views.plain(pixels).flip(2))


def test_draws_are_uniform():
    side, count = 2 * PADDING + 3, 8100
    pixels = torch.zeros(count, 1, side, side, dtype=torch.uint8)
    pixels[:, :, PADDING + 1, PADDING : PADDING + 3] = torch.tensor([1, 2, 3]).to(torch.uint8)
    seen = VIEWS["crop-flip"](pixels, torch.Generator().manual_seed(0)).flatten(1)
    place = (seen == 2).int().argmax(1)  # of the middle pixel, which is mirrored onto itself
    flip = ((seen == 1).int().argmax(1) > place).long()
    top, left = place // side - 1, place % side - 1
    cells = torch.bincount(top * 9 + left, minlength=81)
    assert len(cells) == 81
    assert stats.chisquare(cells.numpy()).pvalue > 1e-3
    assert stats.chisquare(torch.bincount(flip, minlength=2).numpy()).pvalue > 1e-3
    by_flip = torch.stack([torch.bincount(top[flip == side], minlength=9) for side in (0, 1)])
    assert stats.chi2_contingency(by_flip.numpy()).pvalue > 1e-3
