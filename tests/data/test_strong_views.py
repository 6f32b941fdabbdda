import colorsys
import math

import pytest
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance, ImageOps
from scipy import stats

from cler.data import strong_views
from cler.data.strong_views import (
    OPERATIONS,
    TRIES,
    autocontrast,
    blend,
    color_jitter,
    equalize,
    full,
    gray,
    light,
    mean_gray,
    move,
    posterize,
    randaugment,
    randomly_gray,
    resized_crop,
    scaled_windows,
    shift_hue,
    smooth,
    solarize,
)
from cler.data.views import VIEWS, Views


def images(count=6, channels=3, height=32, width=28, seed=0):
    """Random images with structure, so that a move or a histogram is not the same everywhere."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randint(256, (count, channels, 5, 5), generator=generator).float()
    smooth_part = F.interpolate(coarse, (height, width), mode="bilinear")
    noise = 40 * torch.randn(count, channels, height, width, generator=generator)
    spread = torch.linspace(0.3, 1, count).view(-1, 1, 1, 1)  # some of low contrast, for autocontrast to stretch
    return (spread * (smooth_part + noise)).clamp(0, 255).round()


def by_pillow(pixels, operation):
    """What an operation of Pillow makes of each image."""
    seen = []
    for image in pixels.to(torch.uint8):
        picture = Image.fromarray(image.permute(1, 2, 0).squeeze(2).numpy())
        data = torch.frombuffer(bytearray(operation(picture).tobytes()), dtype=torch.uint8)
        seen.append(data.view(*image.shape[1:], image.shape[0]).permute(2, 0, 1))
    return torch.stack(seen).float()


def moved(pixels, **how):
    zero = torch.zeros(len(pixels), 1, 1)
    parameters = dict.fromkeys(("shear_x", "shear_y", "right", "down", "angle"), zero)
    return move(pixels, **parameters | {name: zero + value for name, value in how.items()})


def affine(*matrix):
    return lambda picture: picture.transform(picture.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("ours", "pillows", "apart"),
    [
        (equalize, ImageOps.equalize, 0),
        (autocontrast, ImageOps.autocontrast, 1),
        (lambda pixels: posterize(pixels, 6), lambda picture: ImageOps.posterize(picture, 6), 0),
        (lambda pixels: solarize(pixels, 127.5), lambda picture: ImageOps.solarize(picture, 127.5), 0),
        (lambda pixels: blend(pixels, 0, 1.45), lambda picture: ImageEnhance.Brightness(picture).enhance(1.45), 1),
        (
            lambda pixels: blend(pixels, gray(pixels), 0.55),
            lambda picture: ImageEnhance.Color(picture).enhance(0.55),
            1,
        ),
        (
            lambda pixels: blend(pixels, mean_gray(pixels), 1.45),
            lambda picture: ImageEnhance.Contrast(picture).enhance(1.45),
            1,
        ),
        (
            lambda pixels: blend(pixels, smooth(pixels), 1.45),
            lambda picture: ImageEnhance.Sharpness(picture).enhance(1.45),
            1,
        ),
        (lambda pixels: moved(pixels, shear_x=0.15), affine(1, 0.15, 0, 0, 1, 0), 0),
        (lambda pixels: moved(pixels, shear_y=-0.15), affine(1, 0, 0, -0.15, 1, 0), 0),
        (lambda pixels: moved(pixels, right=6), affine(1, 0, -6, 0, 1, 0), 0),
        (lambda pixels: moved(pixels, down=-7), affine(1, 0, 0, 0, 1, 7), 0),
        (lambda pixels: moved(pixels, angle=math.radians(15)), lambda picture: picture.rotate(15), 0),
    ],
    ids=lambda value: "",
)
def test_operations_are_those_of_pillow(channels, ours, pillows, apart):
    pixels = images(channels=channels)
    expected = by_pillow(pixels, pillows)
    assert not torch.equal(expected, pixels) or channels == 1  # a gray image has no color to lose
    difference = (ours(pixels) - expected).abs()
    assert (difference > apart + 0.5).float().mean() < 0.002, difference.amax()  # Pillow moves in fixed-point numbers


def test_equalize_and_autocontrast_leave_an_even_image_alone():
    pixels = torch.full((1, 3, 20, 20), 77.0)
    assert torch.equal(equalize(pixels), pixels)
    assert torch.equal(autocontrast(pixels), pixels)


def test_hue_is_shifted_as_in_hsv():
    pixels = images(1, height=6, width=6)
    pixels[0, :, 0] = 100  # gray has no hue
    turns = 0.37
    expected = pixels.clone()
    for y in range(6):
        for x in range(6):
            hue, saturation, value = colorsys.rgb_to_hsv(*(pixels[0, :, y, x] / 255).tolist())
            expected[0, :, y, x] = 255 * torch.tensor(colorsys.hsv_to_rgb((hue + turns) % 1, saturation, value))
    torch.testing.assert_close(shift_hue(pixels, torch.full((1, 1, 1, 1), turns)), expected, atol=1e-3, rtol=0)
    torch.testing.assert_close(shift_hue(pixels, torch.zeros(1, 1, 1, 1)), pixels, atol=1e-3, rtol=0)


@pytest.mark.parametrize(("top", "left", "rows", "columns"), [(0, 0, 32, 28), (3, 5, 17, 11), (31, 0, 1, 28)])
@pytest.mark.parametrize("mirrored", [False, True])
def test_a_window_is_cut_out_scaled_and_mirrored(top, left, rows, columns, mirrored):
    pixels = images(2)
    cut = pixels[:, :, top : top + rows, left : left + columns]
    expected = F.interpolate(cut, pixels.shape[2:], mode="bilinear", align_corners=False)
    expected = expected.flip(3) if mirrored else expected
    other = torch.tensor([[0], [1]])  # the second image has another window
    window = [
        torch.tensor([[value]]) + other * shift for value, shift in ((top, -1), (left, 1), (rows, 1), (columns, -1))
    ]
    seen = scaled_windows(pixels, *map(torch.Tensor.float, window), torch.tensor([[mirrored], [not mirrored]]))
    torch.testing.assert_close(seen[0], expected[0], atol=2e-2, rtol=0)
    assert not torch.allclose(seen[1], expected[1], atol=5)


@pytest.mark.parametrize(("least", "height", "width"), [(0.2, 32, 32), (0.6, 84, 84), (0.2, 60, 30)])
def test_windows_are_drawn_by_area_ratio_and_place(monkeypatch, least, height, width):
    drawn = {}
    names = ("top", "left", "rows", "columns", "mirrored")
    monkeypatch.setattr(strong_views, "scaled_windows", lambda pixels, *how: drawn.update(zip(names, how, strict=True)))
    resized_crop(torch.zeros(8000, 1, height, width), torch.Generator().manual_seed(0), least=least)
    top, left, rows, columns = (drawn[name].squeeze(1).double() for name in names[:4])
    area, ratio = rows * columns / (height * width), (columns / rows).log() / math.log(4 / 3)
    assert area.min() > least * 0.95
    assert area.max() <= 1
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + rows <= height).all()
    assert (left + columns <= width).all()
    assert abs(drawn["mirrored"].double().mean() - 0.5) < 0.02
    if height == width:
        assert ratio.abs().max() < 1.3  # rounded to whole pixels
        small = area < (1 + least) / 2 - 0.15  # where nearly nothing is refused, area and ratio are uniform
        assert stats.kstest(area[area < 0.7].numpy(), stats.uniform(least, 0.7 - least).cdf).statistic < 0.05
        assert abs(ratio[small].mean()) < 0.05
    room = (height - rows) >= 3
    places = ((top + 0.5) / (height - rows + 1))[room]
    assert stats.kstest(places.numpy(), "uniform").statistic < 0.1
    assert abs(places.mean() - 0.5) < 0.02


def test_colors_are_jittered_and_lost_as_often_as_said():
    pixels = images(1, height=4, width=4).expand(6000, -1, -1, -1)
    seen = color_jitter(pixels, torch.Generator().manual_seed(0))
    changed = (seen - pixels).abs().amax((1, 2, 3)) > 1e-3
    assert abs(changed.double().mean() - 0.8) < 0.02
    lost = (randomly_gray(pixels, torch.Generator().manual_seed(1)) == gray(pixels)).all(3).all(2).all(1)
    assert abs(lost.double().mean() - 0.2) < 0.02
    flat = torch.full((6000, 1, 2, 2), 100.0)  # contrast and colors say nothing here: what is left is brightness
    bright = color_jitter(flat, torch.Generator().manual_seed(2))[:, 0, 0, 0] / 100
    factors = bright[(bright - 1).abs() > 1e-6]
    assert stats.kstest(factors.numpy(), stats.uniform(0.6, 0.8).cdf).pvalue > 1e-3


def test_each_image_gets_one_of_the_operations():
    """What became of each image is found again among the results of the functions that Pillow vouches for above."""
    count = 700
    pixels = images()[3:4].expand(count, -1, -1, -1)
    seen = strong_views._random_operation(pixels, torch.Generator().manual_seed(0), magnitude=15)
    factors = torch.tensor([0.55, 1.45]).view(2, 1, 1, 1, 1)
    one = pixels[:1]
    both = torch.tensor([1, -1])
    known = {
        "identity": [one],
        "shear x": [moved(one, shear_x=0.15 * sign) for sign in both],
        "shear y": [moved(one, shear_y=0.15 * sign) for sign in both],
        "translate x": [moved(one, right=int(28 * 75 / 331) * sign) for sign in both],
        "translate y": [moved(one, down=int(32 * 75 / 331) * sign) for sign in both],
        "rotate": [moved(one, angle=math.radians(15) * sign) for sign in both],
        "brightness": [blend(one, 0, factor) for factor in factors],
        "color": [blend(one, gray(one), factor) for factor in factors],
        "contrast": [blend(one, mean_gray(one), factor) for factor in factors],
        "sharpness": [blend(one, smooth(one), factor) for factor in factors],
        "posterize": [posterize(one, 6)],
        "solarize": [solarize(one, 127.5)],
        "autocontrast": [autocontrast(one)],
        "equalize": [equalize(one)],
    }
    assert tuple(known) == OPERATIONS
    counts = []
    for name, results in known.items():
        found = [((seen - result).abs().amax((1, 2, 3)) <= 0.51).sum().item() for result in results]
        assert min(found) > 0, name
        counts.append(sum(found))
    assert sum(counts) == count
    assert stats.chisquare(counts).pvalue > 1e-3


def test_the_whole_image_with_its_own_colors_is_the_image(monkeypatch):
    def largest(count, *shape, **_):
        draws = torch.full((count, *shape), 1 - 1e-7)  # all of the area; no chance is met
        draws[:, TRIES : 2 * TRIES] = 0.5  # a square window
        return draws

    pixels = images(3, width=32).to(torch.uint8)
    monkeypatch.setattr(torch, "rand", largest)
    assert torch.equal(light(pixels, None), pixels)
    assert torch.equal(full(pixels, None), pixels)


@pytest.mark.parametrize("view", [full, light, randaugment])
@pytest.mark.parametrize("shape", [(4, 1, 28, 28), (4, 3, 84, 84), (3, 4, 8, 8)])
def test_images_of_any_form_are_seen_alike_as_pixels_and_as_numbers(view, shape):
    pixels = images(*shape).to(torch.uint8)
    seen = view(pixels, torch.Generator().manual_seed(1))
    assert seen.shape == pixels.shape
    assert not torch.equal(seen, pixels)
    for dtype in (torch.float32, torch.float64):
        assert torch.equal(view(pixels.to(dtype), torch.Generator().manual_seed(1)), seen.to(dtype))


@pytest.mark.parametrize("name", sorted(VIEWS))
def test_there_may_be_no_image_to_see(name):
    """As where so few are replayed that none is of this task."""
    assert VIEWS[name](torch.empty(0, 3, 32, 32, dtype=torch.uint8), None).shape == (0, 3, 32, 32)


@pytest.mark.parametrize("name", ["full", "light", "randaugment"])
def test_a_view_within_a_step_looks_at_no_value(name):
    """Nothing but the shape is known of a tensor on the device `meta`: a look at a value would fail."""
    pixels = torch.empty(5, 3, 32, 32, dtype=torch.uint8, device="meta")
    assert VIEWS[name](pixels, None).shape == pixels.shape


def test_a_view_of_normalized_images_is_the_view_of_their_pixels():
    pixels = images(4).to(torch.uint8)
    views = Views((0.5, 0.4, 0.3), (0.2, 0.3, 0.1), "full", generator=torch.Generator().manual_seed(2))
    again = views.augmented_again(views.plain(pixels))
    views.generator.manual_seed(2)
    assert torch.equal(again, views.augmented(pixels))
