"""Files that lie: pictures, arrays, pixels that were kept, results, studies and attempts, each made in a folder."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import random
import struct
import zipfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

HERE = Path(__file__).parent
ESCAPES = "\x1b]0;owned\x07\x1b[2J\u202e<script>alert(1)</script>[x](http://evil.example)"

# -- pictures ----------------------------------------------------------------------------------------------------------


def chunk(kind: bytes, content: bytes) -> bytes:
    """A chunk of a PNG, with a checksum that is right."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int, *chunks: bytes, depth: int = 8, color: int = 2, data: bytes | None = None) -> bytes:
    """A PNG with this header, these chunks, and as many zeros as pixels, or other data."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0))
    row = 1 + -(-width * depth * {0: 1, 2: 3, 3: 1}[color] // 8)
    packed = zlib.compress(bytes(row * height), 9) if data is None else data
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


@cache
def bomb(megabytes: int) -> bytes:
    """Zeros, packed."""
    packer = zlib.compressobj(9)
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(megabytes)) + packer.flush()


def saved(kind: str, size: tuple[int, int] = (16, 16), mode: str = "RGB", frames: int = 1, **options: Any) -> bytes:
    """A picture as Pillow writes it."""
    stream = io.BytesIO()
    pictures = [Image.new(mode, size, number % 200) for number in range(frames)]
    more = {"save_all": True, "append_images": pictures[1:]} if frames > 1 else {}
    pictures[0].save(stream, kind, **more | options)
    return stream.getvalue()


def tiff(*entries: tuple[int, int, int, int]) -> bytes:
    """A TIFF of these entries: tag, type, count, value."""
    fields = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(entries)) + fields + bytes(4)


def pictures() -> dict[str, Callable[[], bytes]]:
    """Pictures by the names of their files."""
    cut = saved("JPEG", (64, 64), quality=95)
    return {
        "bomb-1-bit.png": lambda: png(30_000, 30_000, depth=1, color=0),
        "bomb-claimed.png": lambda: png(2**31 - 1, 2**31 - 1, data=b""),
        "bomb-below-the-limit.png": lambda: png(8900, 8900, depth=1, color=0),
        "wide.png": lambda: png(100_000, 1),
        "high.png": lambda: png(1, 100_000),
        "wide.gif": lambda: saved("GIF", (65_535, 1), "P"),
        "profile-bomb.png": lambda: png(8, 8, chunk(b"iCCP", b"x\0\0" + bomb(400))),
        "text-bomb.png": lambda: png(8, 8, chunk(b"zTXt", b"x\0\0" + bomb(400))),
        "many-texts.png": lambda: png(8, 8, *[chunk(b"zTXt", b"x\0\0" + bomb(1))] * 200),
        "international-bomb.png": lambda: png(8, 8, chunk(b"iTXt", b"x\0\x01\0\0\0" + bomb(400))),
        "data-bomb.png": lambda: png(8, 8, data=bomb(400)),
        "profile.jpg": lambda: saved("JPEG", icc_profile=os.urandom(300_000)),
        "profile.tif": lambda: saved("TIFF", icc_profile=bytes(1_000_000)),
        "profile-zeros.webp": lambda: saved("WEBP", icc_profile=bytes(1_000_000)),
        "cmyk.jpg": lambda: saved("JPEG", mode="CMYK"),
        "cmyk.tif": lambda: saved("TIFF", mode="CMYK"),
        "lab.tif": lambda: saved("TIFF", mode="LAB"),
        "ycbcr.jpg": lambda: saved("JPEG", mode="YCbCr"),
        "float.tif": lambda: saved("TIFF", mode="F"),
        "whole.tif": lambda: saved("TIFF", mode="I"),
        "animated.gif": lambda: saved("GIF", mode="P", frames=300),
        "animated.webp": lambda: saved("WEBP", frames=50),
        "animated.png": lambda: saved("PNG", frames=50),
        "pages.tif": lambda: saved("TIFF", frames=100),
        "icon.ico": lambda: saved("ICO"),
        "icon-of-a-bomb.ico": lambda: icon(png(30_000, 30_000, depth=1, color=0)),
        "icon-of-an-icon.ico": lambda: icon(icon(icon(b""))),
        "cut.jpg": lambda: cut[: len(cut) // 2],
        "cut.png": lambda: saved("PNG", (64, 64))[:90],
        "cut.webp": lambda: saved("WEBP", (64, 64))[:40],
        "cut.gif": lambda: saved("GIF", (64, 64), "P")[:60],
        "header.jpg": lambda: cut[:2],
        "empty.png": lambda: b"",
        "zero.png": lambda: png(0, 0, data=b""),
        "text.png": lambda: b"no picture",
        "page.png": lambda: b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>",
        "postscript.png": lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) run\n",
        "link-in.ppm": lambda: b"P6 99999999999 99999999999 255\n",
        "digits.ppm": lambda: b"P6 " + b"9" * 5000 + b" 1 255\n",
        "claims.bmp": lambda: b"BM" + struct.pack("<IIIIiiHHIIiiII", 54, 0, 54, 40, 2**30, 2**30, 1, 24, *[0] * 6),
        "below-zero.bmp": lambda: b"BM" + struct.pack("<IIIIiiHHIIiiII", 54, 0, 54, 40, -5, -(2**31), 1, 24, *[0] * 6),
        "claims.tif": lambda: tiff((256, 4, 1, 2**31), (257, 4, 1, 2**31), (273, 4, 2**31, 8)),
        "loop.tif": lambda: b"II*\0\x08\0\0\0\0\0\x08\0\0\0",
        "turned.jpg": lambda: saved("JPEG", exif=b"Exif\0\0II*\0" + b"\xff" * 200),
        "turned-on.jpg": lambda: saved("JPEG", exif=turned(99)),
        "palette.png": lambda: png(4, 4, color=3),
        "transparent.png": lambda: png(4, 4, chunk(b"PLTE", bytes(3)), chunk(b"tRNS", bytes(300)), color=3),
        "two.jpg": lambda: cut + cut,
        "behind.png": lambda: saved("PNG") + bytes(10_000_000),
    }


def turned(how: int) -> Image.Exif:
    """EXIF that says how a picture is turned."""
    exif = Image.Exif()
    exif[0x0112] = how
    return exif


def icon(content: bytes) -> bytes:
    """An icon that holds another file."""
    return struct.pack("<HHH", 0, 1, 1) + struct.pack("<BBBBHHII", 16, 16, 0, 0, 1, 32, len(content), 22) + content


# -- arrays ------------------------------------------------------------------------------------------------------------


class Evil:
    """Makes a file when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("unpickled",)


def npy(header: str, content: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    """An array with this header."""
    length = len(header).to_bytes(2 if version == b"\x01\x00" else 4, "little")
    return b"\x93NUMPY" + version + length + header.encode("latin-1") + content


def array(value: Any) -> bytes:
    """An array as numpy writes it."""
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.asanyarray(value), allow_pickle=True)
    return stream.getvalue()


def npz(**members: Any) -> bytes:
    """A file of `np.savez`, of arrays or of bytes that stand for one; images and labels, unless others are given."""
    usual = {"x_train": np.zeros((8, 8, 8, 3), np.uint8), "y_train": np.arange(8) % 2}
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
        for name, value in (usual | members).items():
            if value is not None:
                file.writestr(f"{name}.npy", value if isinstance(value, bytes) else array(value))
    return stream.getvalue()


def shaped(shape: str, kind: str = "|u1", order: str = "False", more: str = "") -> bytes:
    """An array that claims this shape, with a few bytes."""
    return npy(f"{{'descr': {kind!r}, 'fortran_order': {order}, 'shape': {shape}{more}}}\n", bytes(100))


def arrays() -> dict[str, Callable[[], bytes]]:
    """Files of `np.savez` by what they are."""
    good, evil = npz(), pickle.dumps(Evil())
    strange = np.array(["a", "b"] * 4)
    labels: dict[str, Any] = {
        "floats": np.arange(8.0), "not a number": np.full(8, np.nan), "endless": np.full(8, np.inf),
        "truth": np.arange(8) % 2 == 0, "dates": np.arange(8).astype("M8[s]"), "complex": np.arange(8) + 1j,
        "escapes": np.array([ESCAPES, "=1+1"] * 4), "long": np.array(["x" * 5000, "y"] * 4),
        "bytes": np.array([b"\xff\xfe", b"a"] * 4), "below zero": -np.arange(8), "huge": np.arange(8).astype("u8") - 1,
        "a table": np.zeros((8, 2), int), "a column": np.arange(8)[:, None] % 2, "one": np.array(3),
        "too many": np.arange(9), "none": np.zeros(0, int), "all alike": np.zeros(8, int), "each its own": np.arange(8),
        "structured": np.zeros(8, [("a", "u1"), ("b", "u1")]), "void": np.zeros(8, "V3"), "strings": strange,
        "halves of a pair": shaped("(8,)", "<U1")[:-100] + b"\0\xd8\0\0" * 8, "no sign": shaped("(8,)", "<U1")[:-100] +
        b"\xff\xff\xff\x7f" * 8, "big-endian": np.arange(8).astype(">i8") % 2, "objects": np.array([Evil()] * 8),
    }  # fmt: skip
    pixels: dict[str, Any] = {
        "objects": np.array([Evil()] * 8), "a pickle": evil, "text": b"no array", "nothing": b"",
        "below zero": shaped("(-8, 8, 8, 3)"), "both below zero": shaped("(-8, -8, 8, 3)"),
        "huge": shaped("(9223372036854775807,)"), "beyond": shaped("(99999999999999999999999, 8)"),
        "many huge": shaped("(4294967296, 4294967296, 4294967296, 4294967296)"), "endless": shaped("(1e999, 8)"),
        "a float": shaped("(8.0, 8, 8, 3)"), "truth": shaped("(True, 8, 8, 3)"), "a string": shaped("'8'"),
        "flat": shaped("()"), "claims much": shaped("(8, 30000, 30000, 3)"),
        "an order": shaped("__import__('os').mkdir('evaluated')"), "deep": shaped("(" * 5000 + ")" * 5000),
        "long header": npy(" " * 20_000_000 + "\n", version=b"\x02\x00"),
        "another key": shaped("(8,)", more=", 'x': 1"),
        "long claim": b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "a version": b"\x93NUMPY\xff\xff\x10\x00",
        "version 3": npy("{'descr': '|u1', 'fortran_order': False, 'shape': (8, 8, 8, 3)}\n", bytes(1536), b"\x03\x00"),
        "a kind": shaped("(8,)", "|O"), "no kind": shaped("(8,)", "nothing"), "nested kinds": shaped("(8,)", "5000u1"),
        "cut": array(np.zeros((8, 8, 8, 3), np.uint8))[:-9], "columns": np.zeros((8, 8, 8, 3), np.uint8, order="F"),
        "none": np.zeros((0, 8, 8, 3), np.uint8), "no height": np.zeros((8, 0, 8, 3), np.uint8),
        "two channels": np.zeros((8, 2, 8, 8), np.uint8), "five axes": np.zeros((8, 1, 3, 8, 8), np.uint8),
        "whole": np.zeros((8, 8, 8, 3), np.int64), "complex": np.zeros((8, 8, 8, 3), complex),
        "dates": np.zeros((8, 8, 8), "M8[s]"), "not a number": np.full((8, 8, 8, 3), np.nan),
        "halves": np.zeros((8, 8, 8, 3), "f2"), "long floats": np.zeros((8, 8, 8, 3), np.longdouble),
        "big-endian": np.zeros((8, 8, 8, 3), ">f4"), "endless floats": np.full((8, 8, 8, 3), np.inf),
        "strings": np.full((8, 8, 8, 3), "x"), "structured": np.zeros((8, 8, 8), "u1,u1"),
        "wide": np.zeros((8, 1, 100_000), np.uint8), "one pixel": np.zeros((8, 1, 1), np.uint8),
    }  # fmt: skip
    classes: dict[str, Any] = {
        "escapes": np.array([ESCAPES, "=1+1"]), "one": np.array("a"), "a table": np.array([["a"], ["b"]]),
        "numbers": np.array([1.5, np.nan]), "bytes": np.array([b"\xff", b"b"]), "objects": np.array([Evil(), Evil()]),
        "alike": np.array(["a", "a"]), "many": np.arange(100_000), "halves of a pair": shaped("(2,)", "<U1")[:-100] +
        b"\0\xd8\0\0" * 2, "empty": np.array(["", ""]), "long": np.array(["x" * 5000, "y"]),
    }  # fmt: skip
    made = {f"labels: {name}": lambda value=value: npz(y_train=value) for name, value in labels.items()}
    made |= {f"images: {name}": lambda value=value: npz(x_train=value) for name, value in pixels.items()}
    made |= {f"classes: {name}": lambda value=value: npz(classes=value) for name, value in classes.items()}
    return made | {
        "one array": lambda: array(np.zeros(3)), "a pickle": lambda: evil,
        "an array of objects": lambda: array([Evil()]),
        "nothing": lambda: b"", "text": lambda: b"no archive", "no arrays": lambda: npz(x_train=None, y_train=None),
        "cut": lambda: good[:-30], "flipped": lambda: good[:60] + bytes([good[60] ^ 255]) + good[61:],
        "no labels": lambda: npz(y_train=None), "escapes": lambda: npz(x_train=None, **{ESCAPES.replace("/",
        "-"): b""}),
        "half a test": lambda: npz(x_test=np.zeros((2, 8, 8, 3), np.uint8)),
        "another test": lambda: npz(x_test=np.zeros((2, 9, 9, 3), np.uint8), y_test=np.arange(2)),
        "a strange test": lambda: npz(x_test=np.zeros((2, 8, 8, 3), np.uint8), y_test=np.arange(2) + 7),
        "behind": lambda: good + bytes(1_000_000), "before": lambda: b"#!/bin/sh\n" + good,
        "outside": lambda: npz(**{"../../outside": np.zeros(3), "/outside": np.zeros(3)}),
        "many members": lambda: npz(**{str(number): b"" for number in range(20_000)}),
        "encrypted": lambda: encrypted(good), "another packing": lambda: good.replace(b"\x08\0\0\0!\0",
        b"\x63\0\0\0!\0"),
        "lies about sizes": lambda: good.replace(struct.pack("<I", 1664), struct.pack("<I", 2**31)),
        "twice": twice, "much": lambda: npz(x_train=np.zeros((100, 1000, 1000, 3), np.uint8),
        y_train=np.arange(100) % 2),
    }  # fmt: skip


def encrypted(content: bytes) -> bytes:
    """The same archive, whose members say that they need a password."""
    changed = bytearray(content)
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = changed.find(mark)
        while start >= 0:
            changed[start + place] |= 1
            start = changed.find(mark, start + 1)
    return bytes(changed)


def twice() -> bytes:
    """An archive with two members of the same name."""
    stream = io.BytesIO(npz())
    with zipfile.ZipFile(stream, "a") as file:
        file.fp.seek(0, 2)  # type: ignore[union-attr]
        info = zipfile.ZipInfo("x_train.npy")
        file.NameToInfo.clear()
        file.writestr(info, b"no array")
    return stream.getvalue()


# -- pixels that were kept ---------------------------------------------------------------------------------------------


def pixels(content: bytes, listed: bytes = b"") -> dict[str, Callable[[], bytes]]:
    """What may stand in the place of a file of pixels; where `listed` tells of them, digests are right."""
    length = int.from_bytes(content[32:40])
    header, rest = json.loads(content[40 : 40 + length]), content[40 + length :]

    def told(about: Any) -> bytes:
        text = about if isinstance(about, bytes) else json.dumps(about).encode()
        digest = hashlib.sha256(hashlib.sha256(listed).digest() + text + rest).digest()
        return digest + len(text).to_bytes(8) + text + rest

    shapes = (
        [],
        [0],
        [-1, 3, 16, 16],
        [2**62, 3, 16, 16],
        [12, 768],
        [12, 16, 16, 3],
        [1.5],
        ["12"],
        None,
        [[12]],
        [12.0],
    )
    made = {f"shape {shape}": lambda shape=shape: told(header | {"shape": shape}) for shape in shapes}
    broken = ({"0": ESCAPES}, {"99": "x"}, {"-1": "x"}, {"x": "y"}, [], "x", None, {"9" * 5000: "x"})
    made |= {f"broken {str(each)[:30]}": lambda each=each: told(header | {"broken": each}) for each in broken}
    return made | {
        "nothing": lambda: b"", "a digest alone": lambda: content[:32], "cut": lambda: content[:-1],
        "longer": lambda: content + b"x", "flipped": lambda: content[:-1] + bytes([content[-1] ^ 1]),
        "a long header": lambda: content[:32] + b"\xff" * 8 + content[40:], "text": lambda: b"text" * 1000,
        "no object": lambda: told([]), "deep": lambda: told(b"[" * 100_000), "digits": lambda: told(b"9" * 5000),
        "zeros": lambda: bytes(len(content)), "noise": lambda: random.Random(0).randbytes(len(content)),
    }  # fmt: skip


# -- results, studies, attempts ----------------------------------------------------------------------------------------


def results(good: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Results with parts that lie, by what is odd about them; `good` is one with two tasks."""
    tasks = len(good["accuracy"]["class_il"])
    stamp = {"names": ["lr"], "select_on": "first-tasks:1", "dataset": "x", "trials": 3, "seeds": [0]}
    numbers = (-1, 0, 10**17, 1.5, True, None, "1", ESCAPES, [], {}, 1e300)
    made = {f"confusion of {value!r:.20}": {"confusion": [[value] * tasks] * tasks} for value in numbers}
    for value in (None, 3, "x", [], [[]], [[1]], [[1] * tasks], [[1] * (tasks + 1)] * tasks, [[1] * 1000] * 1000, {}):
        made[f"confusion {value!r:.30}"] = {"confusion": value}
    odd = {"names": ([ESCAPES], ["=1"], [], [1], "lr", ["lr"] * 10_000), "trials": (-1, 10**17, 1.5),
        "dataset": (ESCAPES, 3),
           "select_on": (f"other-dataset:{ESCAPES}", "first-tasks:99999", "first-tasks:0", "whole-stream", "x", None),
           "seeds": ([], [-1], [10**17], [0] * 10_000, ["0"])}  # fmt: skip
    for name, values in odd.items():
        for value in values:
            made[f"tuned.{name} {value!r:.30}"] = {"tuned": stamp | {name: value}}
    for value in (None, [], "x", {}, stamp | {"more": 1}):
        made[f"tuned {value!r:.30}"] = {"tuned": value}
    settings = {"width": (0, -1, 10**9, 10**15, "64", None), "replay_batch": (0, -1, 10**9, 10**15, 1.5),
        "batch": (0, 10**9),
                "repeats": (0, 10**9), "track": (ESCAPES, 3), "network": (ESCAPES, 3, "mine:net"),
                "method": (ESCAPES, "joint"),
                "dataset": (f"folder:{ESCAPES}", "hf:x", "npz:\0"), "precision": (ESCAPES, 3, None), "buffer": (0,
                10**11),
                "tasks": (10_001, "5+5", "5+" * 9999 + "5", 0), "weight": (1e300, "x"), "teacher": (ESCAPES, 3,
                "ema")}  # fmt: skip
    for name, values in settings.items():
        for value in values:
            made[f"settings.{name} {value!r:.30}"] = {"settings": good["settings"] | {name: value}}
    made |= {f"{name} {value!r:.20}": {name: value} for name in ("seconds", "seed", "at_once", "data", "failure")
             for value in (-1, 10**11, 1e300, ESCAPES, None, [])}  # fmt: skip
    return {name: good | changes for name, changes in made.items()}


LOGS = {
    "escapes": [{"event": "progress", "task": 0, "step": 1, "steps": 2, "losses": {ESCAPES: 1.0, "=1": 2.0},
        "time": ESCAPES}],
    "numbers": [{"event": "progress", "task": 0, "step": value, "steps": 0, "losses": {"x": value}, "time": "x"}
                for value in (-1, 1e29, 10**300, 1e-300, True, None, "1", [])],
    "tasks": [{"event": "evaluated", "task": value, "class_il": [50.0], "time": 3} for value in (-1, 1e11, 0.5, "x",
        None)],
    "accuracies": [{"event": "evaluated", "task": 0, "class_il": value} for value in ([1e29], [], ["x"], None, [[1]],
        [-5])],
    "many terms": [{"event": "progress", "task": 0, "step": 1, "steps": 2,
        "losses": {str(n): n for n in range(10_000)}}],
    "many points": [{"event": "progress", "task": 0, "step": n, "steps": 9, "losses": {"x": n}} for n in range(50_000)],
}  # fmt: skip
"""Lines of logs of runs, by what is odd about them."""


def studies(good: dict[str, Any]) -> dict[str, Any]:
    """Studies with parts that lie, by what is odd about them; `good` is one of two trials."""
    trial = good["trials"][0]
    odd = {"values": (None, {}, [], {"lr": ESCAPES}, {"lr": 0.5}, {"other": 1}, {"lr": None}, {"lr": 0.01, "x": 1},
        {"lr": []}),
           "scores": (None, [], "x", ["x"], [None], [1e300], [-1e300], [10**17], [True], [[1]], {}, [1.0] * 10_000,
               [1.0])}  # fmt: skip
    parts = {"trials": good, "under_way": good | {"trials": []}}
    made = {
        f"{part}, {name} {value!r:.30}": whole | {part: [{**trial, name: value}, *good["trials"][1:]]}
        for part, whole in parts.items()
        for name, values in odd.items()
        for value in values
    }
    made |= {
        f"{part} {value!r:.30}": whole | {part: value}
        for part, whole in parts.items()
        for value in (None, {}, [], "x", [None], [[]], ["x"], [{}])
    }
    made |= {f"{part} of values alone": whole | {part: [trial["values"]]} for part, whole in parts.items()}
    made["under way many times"] = good | {"trials": [], "under_way": [trial | {"scores": []}] * 1000}
    made["all dropped"] = good | {"trials": [each | {"scores": each["scores"][:1]} for each in good["trials"]]}
    return made | {"another": good | {"about": {}}, "no study": {}, "no trials": {"about": good["about"]}}


def attempts() -> dict[str, str]:
    """What may stand in the file of an attempt of another driver."""
    job = {"folder": "runs/x", "settings": {}}
    odd = ("", "{", "[]", "null", "[" * 100_000, "\0", '{"jobs": 3}', '{"jobs": [3]}', '{"jobs": [{"folder": 3}]}')
    about = [{"backend": "slurm", "jobs": jobs, "tries": tries}
             for jobs in ([], [job], [{"folder": "\0"}], [{"folder": ESCAPES}], [{"folder": "x" * 5000}], None)
             for tries in (0, -1, 10**17, "x", None, [])]  # fmt: skip
    return {f"{number}": text for number, text in enumerate([*odd, *map(json.dumps, about)])}
