"""Views that read and change pixel values: resized crops, color jitter, RandAugment.

Each image has parameters of its own, tensors drawn for the whole batch; a part with a probability is computed for all
images and taken for some. Inside, pixels are whole floating numbers from 0 to 255. Of images that are not red, green
and blue, colors stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import update_wrapper

import torch
import torch.nn.functional as F
from torch import Tensor

Generator = torch.Generator | None
TRIES = 10
"""Draws of a window's size, of which the first that fits into the image counts."""
LEVELS = 30
"""The largest magnitude of RandAugment."""


class PixelView:
    """A view of floating images from 0 to 255, for those and for uint8; what it gives is rounded to whole pixels."""

    def __init__(self, draw: Callable[[Tensor, Generator], Tensor]) -> None:
        self.draw = draw
        update_wrapper(self, draw)

    def __call__(self, images: Tensor, generator: Generator) -> Tensor:
        """A new view of images (N, C, H, W), of their type."""
        return _whole(self.draw(images.float().round(), generator)).to(images.dtype)


@PixelView
def full(pixels: Tensor, generator: Generator) -> Tensor:
    """A resized crop of a fifth of the image or more, mirrored in half of the cases, with other colors, or gray."""
    pixels = resized_crop(pixels, generator, least=0.2)
    return randomly_gray(color_jitter(pixels, generator), generator)


@PixelView
def light(pixels: Tensor, generator: Generator) -> Tensor:
    """A resized crop of three fifths of the image or more, mirrored in half of the cases."""
    return resized_crop(pixels, generator, least=0.6)


@PixelView
def randaugment(pixels: Tensor, generator: Generator) -> Tensor:
    """RandAugment: three operations of medium strength, one after the other, drawn for each image from fourteen."""
    for _ in range(3):
        pixels = _random_operation(pixels, generator, magnitude=15)
    return pixels


def resized_crop(pixels: Tensor, generator: Generator, *, least: float) -> Tensor:
    """A window of each image, scaled to the image's size, and mirrored in half of the cases.

    Its area is uniform from the share `least` of the image to all of it, the logarithm of its ratio of width to height
    is uniform from 3/4 to 4/3, its place is uniform.
    """
    height, width = pixels.shape[2:]
    area, ratio, place = _uniform(pixels, generator, (2 * TRIES + 3,)).tensor_split([TRIES, 2 * TRIES], 1)
    area = height * width * (least + (1 - least) * area)
    ratio = torch.exp(math.log(4 / 3) * (2 * ratio - 1))
    rows, columns = (area / ratio).sqrt().round(), (area * ratio).sqrt().round()
    fits = ((rows <= height) & (columns <= width)).int().argmax(1, keepdim=True)  # the first that does
    rows, columns = (sizes.gather(1, fits).clamp(1, whole) for sizes, whole in ((rows, height), (columns, width)))
    top, left, mirrored = place.split(1, 1)
    top, left = (top * (height - rows + 1)).floor(), (left * (width - columns + 1)).floor()
    return scaled_windows(pixels, top, left, rows, columns, mirrored < 0.5)


def scaled_windows(
    pixels: Tensor, top: Tensor, left: Tensor, rows: Tensor, columns: Tensor, mirrored: Tensor
) -> Tensor:
    """A window of each image, bilinearly scaled to the image's size, then mirrored or not; all parameters are (N, 1).

    Nothing outside the window is seen, as if it had been cut out first.
    """
    _, _, height, width = pixels.shape
    x = _window(left, columns, width)
    x = torch.where(mirrored, x.flip(1), x)
    y = _window(top, rows, height)
    grid = torch.stack(
        [
            ((2 * x + 1) / width - 1)[:, None, :].expand(-1, height, -1),
            ((2 * y + 1) / height - 1)[:, :, None].expand(-1, -1, width),
        ],
        dim=3,
    )
    return F.grid_sample(pixels, grid, mode="bilinear", padding_mode="border", align_corners=False)


def _window(start: Tensor, length: Tensor, size: int) -> Tensor:
    """Where along an axis of `size` pixels each of the scaled ones lies, (N, size)."""
    places = (torch.arange(size, device=start.device) + 0.5) * (length / size) - 0.5
    return start + torch.minimum(places.clamp(min=0), length - 1)


def color_jitter(pixels: Tensor, generator: Generator) -> Tensor:
    """Four of five images with brightness, contrast, saturation by up to 40 percent, hue by up to a tenth of a turn."""
    draws = _uniform(pixels, generator, (5, 1, 1, 1))
    brightness, contrast, saturation = (0.6 + 0.8 * draw for draw in draws[:, :3].unbind(1))
    hue, chance = 0.2 * draws[:, 3] - 0.1, draws[:, 4]
    seen = blend(pixels, 0, brightness)
    seen = blend(seen, mean_gray(seen), contrast)
    seen = blend(seen, gray(seen), saturation)
    return torch.where(chance < 0.8, shift_hue(seen, hue), pixels)


def randomly_gray(pixels: Tensor, generator: Generator) -> Tensor:
    """One of five images without its colors."""
    return torch.where(_uniform(pixels, generator, (1, 1, 1)) < 0.2, gray(pixels), pixels)


def blend(pixels: Tensor, other: Tensor | int, factor: Tensor) -> Tensor:
    """The other image where the factor is 0, the image itself where it is 1, and beyond it above."""
    return (other + factor * (pixels - other)).clamp(0, 255)


def gray(pixels: Tensor) -> Tensor:
    """The luminance, as all three channels; images that are not red, green and blue as they are."""
    if pixels.shape[1] != 3:
        return pixels
    red, green, blue = pixels.split(1, 1)
    return (0.299 * red + 0.587 * green + 0.114 * blue).expand_as(pixels)


def mean_gray(pixels: Tensor) -> Tensor:
    """The mean luminance of each image, (N, 1, 1, 1)."""
    return gray(pixels).mean((1, 2, 3), keepdim=True)


def shift_hue(pixels: Tensor, turns: Tensor) -> Tensor:
    """Hues moved around the circle by so many turns, (N, 1, 1, 1); saturation and value (of HSV) stay."""
    if pixels.shape[1] != 3:
        return pixels
    red, green, blue = pixels.split(1, 1)
    value = pixels.amax(1, keepdim=True)
    chroma = value - pixels.amin(1, keepdim=True)
    divisor = torch.where(chroma > 0, chroma, 1)
    sextant = torch.where(
        value == red,
        (green - blue) / divisor,
        torch.where(value == green, (blue - red) / divisor + 2, (red - green) / divisor + 4),
    )
    sextant = sextant + 6 * turns
    channels = []
    for start in (5, 3, 1):
        place = (start + sextant).remainder(6)
        channels.append(value - chroma * torch.minimum(place, 4 - place).clamp(0, 1))
    return torch.cat(channels, 1)


def _random_operation(pixels: Tensor, generator: Generator, *, magnitude: int) -> Tensor:
    """One of the operations of RandAugment for each image; those that have a direction go either way."""
    count, _, height, width = pixels.shape
    device = pixels.device
    choice = torch.randint(len(OPERATIONS), (count,), generator=generator, device=device)
    sign = 2 * torch.randint(2, (count, 1, 1), generator=generator, device=device) - 1
    strength = magnitude / LEVELS

    def chosen(name: str, amount: float) -> Tensor:
        return torch.where((choice == OPERATIONS.index(name)).view(-1, 1, 1), sign * amount, 0.0)

    factor = 1 + 0.9 * strength * sign.unsqueeze(1)
    results = {
        "move": move(
            pixels,
            shear_x=chosen("shear x", 0.3 * strength),
            shear_y=chosen("shear y", 0.3 * strength),
            right=chosen("translate x", int(150 / 331 * width * strength)),
            down=chosen("translate y", int(150 / 331 * height * strength)),
            angle=chosen("rotate", math.radians(30 * strength)),
        ),
        "brightness": blend(pixels, 0, factor),
        "color": blend(pixels, gray(pixels), factor),
        "contrast": blend(pixels, mean_gray(pixels), factor),
        "sharpness": blend(pixels, smooth(pixels), factor),
        "posterize": posterize(pixels, 8 - round(4 * strength)),
        "solarize": solarize(pixels, 255 * (1 - strength)),
        "autocontrast": autocontrast(pixels),
        "equalize": equalize(pixels),
    }
    place = (choice - OPERATIONS.index("rotate")).clamp(min=0)  # all moves are the first result
    return _whole(torch.stack(list(results.values()), 1)[torch.arange(count, device=device), place])


OPERATIONS = (
    "identity", "shear x", "shear y", "translate x", "translate y", "rotate", "brightness", "color", "contrast",
    "sharpness", "posterize", "solarize", "autocontrast", "equalize",
)  # fmt: skip
"""The operations of RandAugment; the first six move pixels."""


def move(pixels: Tensor, *, shear_x: Tensor, shear_y: Tensor, right: Tensor, down: Tensor, angle: Tensor) -> Tensor:
    """Images sheared from the top left corner, shifted, and turned counterclockwise about the middle, each (N, 1, 1).

    The nearest pixel is taken, black outside. At most one of the five is meant to differ from 0.
    """
    channels, height, width = pixels.shape[1:]
    y, x = (torch.arange(size, device=pixels.device) + 0.5 for size in (height, width))
    y, x = y[:, None], x[None, :]
    cos, sin = angle.cos(), angle.sin()
    from_x, from_y = x - width / 2, y - height / 2
    column = cos * from_x - sin * from_y + width / 2 + shear_x * y - right
    row = sin * from_x + cos * from_y + height / 2 + shear_y * x - down
    row, column = row.floor().long(), column.floor().long()
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    index = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)
    moved = pixels.flatten(2).gather(2, index.flatten(1).unsqueeze(1).expand(-1, channels, -1)).view_as(pixels)
    return torch.where(inside.unsqueeze(1), moved, 0.0)


def smooth(pixels: Tensor) -> Tensor:
    """Each pixel averaged with its eight neighbors, itself counted five times; the border as it is."""
    inner = (9 * F.avg_pool2d(pixels, 3, stride=1) + 4 * pixels[..., 1:-1, 1:-1]) / 13
    result = pixels.clone()
    result[..., 1:-1, 1:-1] = _whole(inner)
    return result


def posterize(pixels: Tensor, bits: int) -> Tensor:
    """Only the highest bits of each value."""
    step = 2 ** (8 - bits)
    return (pixels / step).floor() * step


def solarize(pixels: Tensor, threshold: float) -> Tensor:
    """Values from the threshold on inverted."""
    return torch.where(pixels >= threshold, 255 - pixels, pixels)


def autocontrast(pixels: Tensor) -> Tensor:
    """Each channel stretched to reach from 0 to 255; one of a single value as it is."""
    darkest, brightest = pixels.amin((2, 3), keepdim=True), pixels.amax((2, 3), keepdim=True)
    span = brightest - darkest
    return torch.where(span > 0, (pixels - darkest) * 255 / torch.where(span > 0, span, 1), pixels)


def equalize(pixels: Tensor) -> Tensor:
    """Each channel with a flat histogram, in whole numbers, as image libraries do it."""
    values = pixels.long().flatten(2)
    counts = values.new_zeros(*values.shape[:2], 256).scatter_add_(2, values, torch.ones_like(values))
    most = counts.gather(2, values.amax(2, keepdim=True))  # how often the brightest value occurs
    step = (values.shape[2] - most) // 255
    divisor = step.clamp(min=1)
    table = ((counts.cumsum(2) - counts + divisor // 2) // divisor).clamp(max=255)
    equalized = table.gather(2, values).to(pixels.dtype).view_as(pixels)
    return torch.where(step.unsqueeze(3) > 0, equalized, pixels)


def _whole(pixels: Tensor) -> Tensor:
    return pixels.round().clamp(0, 255)


def _uniform(pixels: Tensor, generator: Generator, shape: tuple[int, ...]) -> Tensor:
    """Uniform draws for each image, (N, *shape)."""
    return torch.rand(len(pixels), *shape, generator=generator, device=pixels.device)
