"""Real image files of every kind, as people have them, for tests of datasets."""

from __future__ import annotations

import numpy as np
from PIL import Image

CLASSES = ("apple", "bear", "cup", "door")
HUES = ((200, 60, 60), (60, 200, 60), (60, 60, 200), (200, 200, 60))
KINDS = {
    "plain.png": lambda picture, path: picture.save(path),
    "photo.jpg": lambda picture, path: picture.save(path, quality=95),
    "turned.JPEG": lambda picture, path: picture.rotate(90, expand=True).save(path, exif=turned(), quality=95),
    "deep.png": lambda picture, path: deep(picture).save(path),
    "see-through.png": lambda picture, path: picture.quantize(8).save(path, transparency=0),
    "alpha.webp": lambda picture, path: half_clear(picture).save(path, lossless=True),
    "gray.png": lambda picture, path: picture.convert("L").save(path),
    "moving.gif": lambda picture, path: picture.save(path, save_all=True, append_images=[picture.transpose(0)]),
    "old.bmp": lambda picture, path: picture.save(path),
    "scan.tiff": lambda picture, path: picture.save(path),
    "print.tif": lambda picture, path: picture.convert("CMYK").save(path),
    "raw.ppm": lambda picture, path: picture.save(path),
    "icon.ico": lambda picture, path: picture.save(path, sizes=[(24, 24)]),
    "small.jp2": lambda picture, path: picture.save(path),
}
"""By the name of the file: how it is written."""
OTHERS = {"notes.txt": b"no picture", "Thumbs.db": b"\0", ".hidden.png": b"", "list.csv": b"a,b"}
"""Files that are no images by their names."""


def turned() -> Image.Exif:
    """EXIF that says that a picture lies on its side: the camera was turned by 90 degrees."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


def deep(picture: Image.Image) -> Image.Image:
    """The picture in gray, of 16 bits."""
    return Image.fromarray(np.asarray(picture.convert("L")).astype(np.uint16) * 257)


def half_clear(picture: Image.Image) -> Image.Image:
    """The picture, its left half transparent."""
    clear = picture.convert("RGBA")
    clear.paste((7, 7, 7, 0), (0, 0, picture.width // 2, picture.height))
    return clear


def picture(label: int, number: int, size: tuple[int, int] = (24, 24)) -> Image.Image:
    """A picture of a class, told by its color, brighter below; no two are alike."""
    grain = np.random.default_rng([label, number]).normal(0, 12, (size[1], size[0], 3))
    ramp = np.linspace(-40, 40, size[1])[:, None, None]
    return Image.fromarray((np.array(HUES[label]) + ramp + grain).clip(0, 255).astype(np.uint8))


def write_folder(root, *, kinds=KINDS, classes=CLASSES, fewer=0, size=None, start=0):
    """A folder with a class for each color, in files of all kinds; each class has `fewer` than the one before it."""
    for label, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for number, (file, write) in enumerate(list(kinds.items())[: len(kinds) - fewer * label]):
            write(picture(label, start + number, size or (24 + number, 24)), root / name / file)
    return root


def write_tiny_imagenet(root, size=(12, 12)):
    """The layout that is published: classes of training images, and lines that tell the classes of test images."""
    lines = []
    for label, name in enumerate(("n04", "n02", "n01", "n03")):
        (root / "train" / name / "images").mkdir(parents=True)
        (root / "train" / name / f"{name}_boxes.txt").write_text("0 0 9 9")
        for number in range(9):
            picture(label, number, size).save(root / "train" / name / "images" / f"{name}_{number}.JPEG")
        (root / "val" / "images").mkdir(parents=True, exist_ok=True)
        for number in range(3):
            picture(label, 100 + number, size).save(root / "val" / "images" / f"val_{4 * number + label}.JPEG")
            lines.append(f"val_{4 * number + label}.JPEG\t{name}\t0\t0\t9\t9\n")
    (root / "val" / "val_annotations.txt").write_text("".join(lines))
    (root / "wnids.txt").write_text("n04\nn02\nn01\nn03\n")
