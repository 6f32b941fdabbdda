import io
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from cler.memory import Reservoir
from cler.runs.buffer_images import NAME, WIDEST, save_buffer_images, small


def run_with(stored, channels=3, *, replays=True):
    """A run with a buffer of one image of each shade, stored in a mixed order."""
    buffer = Reservoir(20, (channels, 4, 6))
    if stored:
        shades = torch.tensor([(7 * number) % stored for number in range(stored)])
        pixels = shades.view(-1, 1, 1, 1).expand(-1, channels, 4, 6).to(torch.uint8)
        buffer.add(pixels, shades)
    return SimpleNamespace(method=SimpleNamespace(buffer=buffer, replays=replays))


def shades_of(picture):
    """The shade of each image in the picture, row by row."""
    found = []
    for top in range(0, picture.height, 5):
        found += [picture.getpixel((left, top)) for left in range(0, picture.width, 7)]
    return [pixel[0] for pixel in found if pixel[3]]


@pytest.mark.parametrize(
    ("count", "expected"), [(9, [0, 2, 4, 7, 9, 11, 14, 16, 19]), (100, list(range(20))), (1, [0]), (2, [0, 19])]
)
@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_in_the_order_of_their_classes(tmp_path, count, expected, channels):
    save_buffer_images(tmp_path, run_with(20, channels), count)
    with Image.open(tmp_path / NAME) as picture:
        assert shades_of(picture) == expected


def test_without_a_buffer_or_an_image_there_is_no_picture(tmp_path):
    save_buffer_images(tmp_path, run_with(0), 9)
    save_buffer_images(tmp_path, run_with(9, replays=False), 9)
    assert list(tmp_path.iterdir()) == []


def test_a_picture_for_a_page_is_small(tmp_path):
    Image.new("RGB", (3 * WIDEST, WIDEST), "red").save(tmp_path / NAME)
    with Image.open(io.BytesIO(small(tmp_path / NAME, 1))) as picture:
        assert picture.size == (WIDEST, WIDEST // 3)


def test_what_is_no_picture_of_ours_is_not_shown(tmp_path):
    path = tmp_path / NAME
    assert small(path, 0) is None
    path.write_bytes(b"<svg onload=alert(1)>")
    assert small(path, 1) is None
    Image.new("RGB", (9, 9)).save(path, "GIF")
    assert small(path, 2) is None
    Image.new("1", (9000, 9000)).save(path, "PNG")  # small on disk, large in memory
    assert small(path, 3) is None
    path.write_bytes(path.read_bytes()[:200])
    assert small(path, 4) is None
