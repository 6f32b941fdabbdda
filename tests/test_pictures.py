"""Image files of every kind as pixels."""

import subprocess

import numpy as np
import pytest
from PIL import Image

import photos
from cler import pictures
from cler.errors import UsageError

SIZE = 24, 20
ORIGINAL = photos.picture(0, 0, SIZE)
LOSSY = {"photo.jpg": 8, "turned.JPEG": 8, "moving.gif": 20, "small.jp2": 8}
"""How far pixels may be off, at most on average."""


def written(tmp_path, name):
    photos.KINDS[name](ORIGINAL, tmp_path / name)
    return tmp_path / name


def expected(name):
    """What a viewer of images shows, on white."""
    if name in ("deep.png", "gray.png"):
        return np.asarray(ORIGINAL.convert("L").convert("RGB"))
    if name == "alpha.webp":
        half = np.asarray(ORIGINAL).copy()
        half[:, : SIZE[0] // 2] = 255
        return half
    return np.asarray(ORIGINAL)


@pytest.mark.parametrize("name", [name for name in photos.KINDS if name not in ("see-through.png", "icon.ico")])
def test_a_file_of_every_kind_shows_the_picture(tmp_path, name):
    shown = pictures.decoded(written(tmp_path, name), None, "crop").transpose(1, 2, 0)
    assert shown.shape == (SIZE[1], SIZE[0], 3)
    assert np.abs(shown.astype(int) - expected(name)).mean() <= LOSSY.get(name, 0)
    assert pictures.size_of(tmp_path / name) == (SIZE[1], SIZE[0])
    assert np.array_equal(pictures.decoded((tmp_path / name).read_bytes(), None, "crop").transpose(1, 2, 0), shown)


def test_a_transparent_color_of_a_palette_is_white(tmp_path):
    path = written(tmp_path, "see-through.png")
    indices = np.asarray(Image.open(path))
    shown = pictures.decoded(path, None, "crop").transpose(1, 2, 0)
    assert (shown[indices == 0] == 255).all()
    assert (indices == 0).any()
    assert not (shown[indices != 0] == 255).all(1).any()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("ending", ["jpg", "png", "webp", "tiff"])
def test_a_picture_has_the_size_that_its_header_tells(tmp_path, ending, orientation):
    """Pillow turns the size of a TIFF when it opens the file, of others when it turns their pixels."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    ORIGINAL.save(tmp_path / f"turned.{ending}", exif=exif)
    shape = SIZE if orientation > 4 else SIZE[::-1]
    assert pictures.decoded(tmp_path / f"turned.{ending}", None, "crop").shape == (3, *shape)
    assert pictures.size_of(tmp_path / f"turned.{ending}") == shape


@pytest.mark.parametrize("ending", ["jpg", "png", "webp", "tiff"])
def test_an_opened_picture_is_turned_as_its_file_is(tmp_path, ending):
    exif = Image.Exif()
    exif[0x0112] = 6
    ORIGINAL.save(tmp_path / f"turned.{ending}", exif=exif)
    with Image.open(tmp_path / f"turned.{ending}") as given:
        shown = pictures.plain(given)
    assert shown.size == SIZE[::-1]
    assert np.array_equal(pictures.channels_first(shown), pictures.decoded(tmp_path / f"turned.{ending}", None, "crop"))


def test_nobody_is_warned_of_broken_exif_data(tmp_path):
    """Also not when a learner, which turns all pictures, is given one that was opened here."""
    ORIGINAL.save(tmp_path / "odd.jpg", exif=b"Exif\0\0MM\0*\xff\xff\0\x08")
    shown = pictures.plain(pictures.open_picture(tmp_path / "odd.jpg"))
    assert np.array_equal(pictures.channels_first(shown), pictures.decoded(tmp_path / "odd.jpg", None, "crop"))


def test_gray_of_16_bits_is_turned(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(np.array([[257 * 100, 257 * 7]], np.uint16)).save(tmp_path / "deep.png", exif=exif)
    assert pictures.decoded(tmp_path / "deep.png", None, "crop")[0].tolist() == [[100], [7]]


def test_a_transparent_gray_of_16_bits_is_white(tmp_path):
    deep = np.array([[257 * 100, 257 * 7], [257 * 100 + 1, 0]], np.uint16)
    Image.fromarray(deep).save(tmp_path / "deep.png", transparency=257 * 100)
    assert pictures.decoded(tmp_path / "deep.png", None, "crop")[0].tolist() == [[255, 7], [100, 0]]


def test_gray_of_16_bits_in_a_text_of_numbers(tmp_path):
    """Pillow gives its pixels 32 bits, and does not say that white is 65535."""
    (tmp_path / "deep.pgm").write_bytes(b"P5 2 1 65535\n" + (257 * 100).to_bytes(2) + (257 * 7).to_bytes(2))
    assert pictures.decoded(tmp_path / "deep.pgm", None, "crop")[0].tolist() == [[100, 7]]


def test_what_is_an_image_by_its_name():
    assert all(map(pictures.is_picture, [*photos.KINDS, "A.PNG", "b.Jpeg", "c.jfif", "d.avif", "e.tga"]))
    assert not any(map(pictures.is_picture, [*photos.OTHERS, "f.eps", "g.pdf", "h.mpg", "png", "i.svg"]))


@pytest.mark.parametrize(("fit", "red", "black"), [("crop", 12, 0), ("pad", 4, 12), ("stretch", 4, 0)])
def test_how_a_picture_is_fitted(fit, red, black):
    wide = Image.new("RGB", (30, 10), (0, 0, 200))
    wide.paste((200, 0, 0), (10, 0, 20, 10))
    made = np.asarray(pictures.fitted(wide, 12, fit)).astype(int)
    assert made.shape == (12, 12, 3)
    assert (made[6, :, 0] > made[6, :, 2]).sum() == red
    assert (made[0].sum(1) == 0).sum() == black


def test_a_large_jpeg_is_decoded_as_a_fraction(tmp_path, monkeypatch):
    photos.picture(1, 0, (640, 480)).save(tmp_path / "large.jpg")
    decoded = []
    plain = pictures.plain
    monkeypatch.setattr(pictures, "plain", lambda each: decoded.append(each.size) or plain(each))
    small = pictures.decoded(tmp_path / "large.jpg", 16, "crop")
    assert small.shape == (3, 16, 16)
    assert decoded == [(80, 60)]
    whole = np.asarray(pictures.fitted(pictures.open_picture(tmp_path / "large.jpg"), 16, "crop")).transpose(2, 0, 1)
    assert np.abs(small.astype(int) - whole).mean() < 3


def test_no_program_is_run_for_a_picture(tmp_path, monkeypatch):
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"
    (tmp_path / "program.jpg").write_bytes(postscript)
    monkeypatch.setattr(subprocess, "Popen", pytest.fail)
    with pytest.raises(OSError, match="cannot identify"):
        pictures.open_picture(tmp_path / "program.jpg")


def test_a_huge_picture_is_not_decoded(tmp_path, monkeypatch):
    Image.new("1", (100, 90)).save(tmp_path / "large.png")
    monkeypatch.setattr(pictures, "MOST_PIXELS", 8999)
    with pytest.raises(UsageError, match="it has 100 × 90 pixels, more than 8999"):
        pictures.decoded(tmp_path / "large.png", 8, "crop")


def test_floats_that_do_not_say_what_is_white(tmp_path):
    Image.fromarray(np.ones((3, 3), np.float32)).save(tmp_path / "heights.tiff")
    with pytest.raises(UsageError, match="mode F does not say what is white"):
        pictures.open_picture(tmp_path / "heights.tiff")
