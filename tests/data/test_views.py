import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from cler.data.views import Views, crop_and_flip

MEAN, STD = (0.5, 0.25, 0.75), (0.25, 0.5, 0.125)


def by_the_book(image, top, left, flip, padding):
    """One image, pixel by pixel: black outside, a window of the original size, mirrored or not."""
    _, height, width = image.shape
    out = torch.zeros_like(image)
    for y in range(height):
        for x in range(width):
            row = top + y - padding
            column = left + (width - 1 - x if flip else x) - padding
            if 0 <= row < height and 0 <= column < width:
                out[:, y, x] = image[:, row, column]
    return out


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 6), st.integers(1, 6)),
    padding=st.integers(0, 4),
    seed=st.integers(0, 1000),
)
def test_each_image_is_cropped_by_its_own_row(shape, padding, seed):
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(256, shape, generator=generator).to(torch.uint8)
    corners = torch.randint(2 * padding + 1, (shape[0], 2), generator=generator)
    crops = torch.cat([corners, torch.randint(2, (shape[0], 1), generator=generator)], 1)
    expected = [by_the_book(image, *row, padding) for image, row in zip(pixels, crops.tolist(), strict=True)]
    result = crop_and_flip(pixels, crops, padding)
    assert result.dtype == torch.uint8
    assert torch.equal(result, torch.stack(expected))


def test_the_middle_window_is_the_image_itself():
    pixels = torch.arange(2 * 3 * 8 * 8).view(2, 3, 8, 8).to(torch.uint8)
    assert torch.equal(crop_and_flip(pixels, torch.tensor([[4, 4, 0], [4, 4, 0]])), pixels)
    assert torch.equal(crop_and_flip(pixels, torch.tensor([[4, 4, 1], [4, 4, 1]])), pixels.flip(3))


def test_padding_is_black_not_gray():
    views = Views(MEAN, STD)
    views.draw_crops = lambda count, device: torch.tensor([[0, 8, 0]])
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


def test_augmented_is_plain_after_the_crop():
    pixels = torch.randint(256, (5, 3, 8, 8), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    views = Views(MEAN, STD, generator=torch.Generator().manual_seed(3), padding=2)
    crops = Views(MEAN, STD, generator=torch.Generator().manual_seed(3), padding=2).draw_crops(5, pixels.device)
    assert torch.equal(views.augmented(pixels), views.plain(crop_and_flip(pixels, crops, 2)))


def test_draws_are_uniform_and_come_from_the_generator_alone():
    before = torch.get_rng_state()
    crops = Views(MEAN, STD, generator=torch.Generator().manual_seed(0)).draw_crops(8100, torch.device("cpu"))
    again = Views(MEAN, STD, generator=torch.Generator().manual_seed(0)).draw_crops(8100, torch.device("cpu"))
    assert torch.equal(crops, again)
    assert torch.equal(before, torch.get_rng_state())
    top, left, flip = crops.unbind(1)
    cells = torch.bincount(top * 9 + left, minlength=81)
    assert len(cells) == 81
    assert stats.chisquare(cells.numpy()).pvalue > 1e-3
    assert stats.chisquare(torch.bincount(flip, minlength=2).numpy()).pvalue > 1e-3
    assert set(flip.tolist()) == {0, 1}
    by_flip = torch.stack([torch.bincount(top[flip == side], minlength=9) for side in (0, 1)])
    assert stats.chi2_contingency(by_flip.numpy()).pvalue > 1e-3
