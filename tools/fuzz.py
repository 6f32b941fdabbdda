"""Throw malformed files at everything that reads files: none may crash, hang, eat memory or write where it should not.

python tools/fuzz.py --cases 12000 --seed 0 --log tools/fuzz.log

A case is a file of `fuzz_corpus/KIND`, as it is or changed at random; the same seed gives the same cases. Files named
good-… are valid as they are. A reader passes when it takes the case, or refuses it with one printable line. Cases are
read in child processes that have a limit of memory and of time, so that whatever happens there is known by its case.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import math
import os
import random
import resource
import select
import shutil
import signal
import struct
import sys
import tarfile
import tempfile
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from cler.config import comparing, making, reading
from cler.config.machine import Machine
from cler.data import cifar, decoding, images, sample, unpack
from cler.engine.events import Event, Message, Progress
from cler.engine.tensorfile import checksum
from cler.errors import UsageError
from cler.learner import Learner
from cler.learner.folder import JOURNAL, FolderLearner
from cler.report.console import Terminal
from cler.report.content import make_report
from cler.report.terminal import comparison_table, markdown_table, one_sentence
from cler.report.write import write_report
from cler.runs import results
from cler.runs.backends.attempts import Attempt
from cler.runs.compare import compare
from cler.runs.jobs import Job, remaining
from cler.runs.loading import Builder
from cler.runs.record import Recorder
from cler.tune.selection import Selection
from cler.tune.space import Range
from cler.tune.study import Study, settings_file
from tally import in_words

CORPUS = Path(__file__).parent / "fuzz_corpus"
MEMORY = 1 << 30
"""Bytes that a case may take."""
SECONDS = 2.0
"""Of processor time that a case may take."""
processor_time = time.process_time
HANG = 30.0
"""Seconds after which a case that says nothing is killed."""

# -- changes -----------------------------------------------------------------------------------------------------------

Change = Callable[[random.Random, bytes, list[bytes]], bytes]
"""From a case, and the other files of its kind, to another case."""

NUMBERS = (0, 1, 2, 127, 128, 255, 256, 32767, 65535, 10**6, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
TEXTS = (
    "", " ", "none", "grow", "a\nb", "a\r\nb", "a\u2028b", "\x1b[2J", "\x00", "\u202e", "é", "名", "\U0001f600", "NaN",
    "../../outside", "/tmp/outside", "-1", "0x10", "1_0", "٣", "0..9", "0..999999,0..999999", "a=b", "'", '"', "`rm`",
    "<script>", "[red]", "[/red]", "{}", "%s", "\\", "$x$", "&", "|", "e" * 5000, "9" * 5000,
)  # fmt: skip
RAW = (
    "NaN", "-Infinity", "1e999", "-1e999", "1e-999", "-0.0", "1e308", "9" * 5000, "1" + "0" * 400, "-1", "0", "1", "2",
    "1.5", "1000000000000", "true", "null", "[]", "{}", '""', "[[]]", "[null]", '{"a": 1, "a": 2}', '"\\ud800"',
    "[" * 500 + "]" * 500, "[" * 50_000 + "]" * 50_000, "[" * 100_000, '{"a":' * 600 + "1" + "}" * 600, '"\\u0000"',
    "1979-05-27", "inf", "nan", "{a = 1}", "'''a\nb'''", "0b1", "1_000", "0o7", "07:32:00",
)  # fmt: skip
"""Values as JSON or TOML would write them, or not."""


def flip(draw: random.Random, content: bytes, others: list[bytes]) -> bytes:
    changed = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 8, 32)) if content else 0):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def truncate(draw: random.Random, content: bytes, others: list[bytes]) -> bytes:
    return content[: draw.randrange(len(content) + 1)]


def insert(draw: random.Random, content: bytes, others: list[bytes]) -> bytes:
    place = draw.randrange(len(content) + 1)
    text = draw.choice(TEXTS + RAW).encode()
    return content[:place] + draw.choice((text, draw.randbytes(draw.randrange(1, 40)))) + content[place:]


def repeat(draw: random.Random, content: bytes, others: list[bytes]) -> bytes:
    first, last = _span(draw, content)
    return content[:last] + content[first:last] * draw.choice((1, 2, 50)) + content[last:]


def remove(draw: random.Random, content: bytes, others: list[bytes]) -> bytes:
    first, last = _span(draw, content)
    return content[:first] + content[last:]


def splice(draw: random.Random, content: bytes, others: list[bytes]) -> bytes:
    other = draw.choice(others)
    return content[: draw.randrange(len(content) + 1)] + other[draw.randrange(len(other) + 1) :]


def extreme(draw: random.Random, content: bytes, others: list[bytes]) -> bytes:
    """A number at the limits, where there may be a length; most of them stand near the beginning."""
    length, order = draw.choice((1, 2, 4, 8)), draw.choice(("little", "big"))
    field = (draw.choice(NUMBERS) % 256**length).to_bytes(length, order)
    place = draw.randrange(min(len(content), draw.choice((64, 10**9))) + 1)
    return content[:place] + field + content[place + length :]


def _span(draw: random.Random, content: bytes) -> tuple[int, int]:
    first = draw.randrange(len(content) + 1)
    return first, min(len(content), first + draw.choice((1, 4, 30, 500)))


BYTES: tuple[Change, ...] = (flip, truncate, insert, repeat, remove, splice, extreme)


def change_json(draw: random.Random, content: bytes, others: list[bytes]) -> bytes:
    """Another value, or none, or another name, somewhere in a JSON document."""
    try:
        root = [json.loads(content)]
        (owner, key), (other, place) = draw.choices(list(_places(root)), k=2)
        kind = draw.randrange(6)
        if kind == 0:
            del owner[key]
        elif kind == 1 and isinstance(owner, dict):
            owner[draw.choice(TEXTS)] = owner.pop(key)
        elif kind == 2:
            owner[key] = json.loads(json.dumps(other[place]))
        else:
            number = draw.choice((1, -1)) * draw.choice(NUMBERS)
            owner[key] = draw.choice(("\0raw", "\0raw", draw.choice(TEXTS), number, draw.random()))
        return json.dumps(root)[1:-1].replace('"\\u0000raw"', draw.choice(RAW)).encode()
    except (ValueError, RecursionError):
        return insert(draw, content, others)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a JSON value that holds another one."""
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from _places(value[key])


def change_json_lines(draw: random.Random, content: bytes, others: list[bytes]) -> bytes:
    lines = content.split(b"\n")
    place = draw.randrange(len(lines))
    return b"\n".join([*lines[:place], change_json(draw, lines[place], others), *lines[place + 1 :]])


def change_toml(draw: random.Random, content: bytes, others: list[bytes]) -> bytes:
    """Another value, another name, or a line from elsewhere, in a file of `name = value`."""
    lines = content.decode("utf-8", "replace").splitlines() or [""]
    place = draw.randrange(len(lines))
    name, _, value = lines[place].partition("=")
    known = [line for other in others for line in other.decode("utf-8", "replace").splitlines()]
    quoted = json.dumps(draw.choice(TEXTS), ensure_ascii=False)
    lines[place] = draw.choice(
        (f"{name}= {draw.choice(RAW)}", f"{name}= {quoted}", f"{quoted} ={value}", f"{name}= {draw.choice(NUMBERS)}")
    )
    lines.insert(place, draw.choice(("", "", "", draw.choice(known), lines[place], "[a]", "[[a]]")))
    return "\n".join(lines).encode("utf-8", "replace")


def change_png(draw: random.Random, content: bytes, others: list[bytes]) -> bytes:
    """Another size, depth or kind of color, with a checksum that is right."""
    if content[12:16] != b"IHDR":
        return extreme(draw, content, others)
    header = bytearray(content[12:29])
    place, length = draw.choice(((4, 4), (8, 4), (12, 1), (13, 1), (14, 1), (15, 1), (16, 1)))
    number = draw.choice((draw.choice(NUMBERS), draw.choice((16, 300, 5000, 9000, 12000, 20000)), draw.randrange(10)))
    header[place : place + length] = (number % 256**length).to_bytes(length)
    return content[:12] + bytes(header) + struct.pack(">I", zlib.crc32(header)) + content[33:]


FIELDS = {
    "name": (0, 100),
    "mode": (100, 8),
    "size": (124, 12),
    "time": (136, 12),
    "kind": (156, 1),
    "link": (157, 100),
}
"""Where the parts of a tar header are."""


def change_tar(draw: random.Random, content: bytes, others: list[bytes]) -> bytes:
    """Other parts in the header of a member, with a checksum that is right."""
    with suppress(zlib.error, EOFError, OSError):
        content = zlib.decompress(content, 31)
    blocks = [place for place in range(0, len(content) - 511, 512) if content[place + 257 : place + 262] == b"ustar"]
    if not blocks:
        return extreme(draw, content, others)
    block = draw.choice(blocks)
    header = bytearray(content[block : block + 512])
    place, length = FIELDS[draw.choice(list(FIELDS))]
    octal = f"{draw.choice(NUMBERS):o}".encode()[: length - 1]
    base256 = draw.choice((b"\x80", b"\xff")) + draw.choice((draw.randbytes(length), b"\xff" * length, bytes(length)))
    text = draw.choice((*TEXTS, "0", "1", "2", "3", "4", "5", "6", "7", "L", "K", "S", "g", "x", "a", "a/b")).encode()
    header[place : place + length] = draw.choice((octal, base256, text))[:length].ljust(length, b"\0")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return zlib.compress(content[:block] + bytes(header) + content[block + 512 :], wbits=31)


def make_tar(draw: random.Random, content: bytes, others: list[bytes]) -> bytes:
    """An archive of a few members that need not be what an archive should have."""
    stream = io.BytesIO()
    kinds = (tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE)
    names = ("a", "a/b", "a/../b", "..", ".", "/", "//a", "a//b", "./a", "a/", "n" * 300, *(t for t in TEXTS if t))
    form = draw.choice((tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT))
    with tarfile.open(fileobj=stream, mode="w", format=form) as tar:
        for _ in range(draw.randrange(1, 5)):
            member = tarfile.TarInfo(draw.choice(names))
            member.type, member.linkname = draw.choice(kinds), draw.choice(names)
            member.mode, member.mtime = draw.choice((0o644, 0, 0o7777)), draw.choice((0, 1, -1, 2**33, 10**11))
            member.size = draw.choice((0, 5)) if member.type == tarfile.REGTYPE else 0
            if form == tarfile.PAX_FORMAT:
                member.pax_headers = {
                    draw.choice(("path", "size", "mtime", "GNU.sparse.map")): draw.choice(TEXTS + RAW)
                }
            with suppress(ValueError):  # it will not fit
                tar.addfile(member, io.BytesIO(b"five!"))
    return zlib.compress(stream.getvalue(), wbits=31)


def change_safetensors(draw: random.Random, content: bytes, others: list[bytes]) -> bytes:
    """Another header."""
    length = int.from_bytes(content[:8], "little")
    header = change_json(draw, content[8 : 8 + length], others)
    return len(header).to_bytes(8, "little") + header + content[8 + length :]


def forge(draw: random.Random, content: bytes, others: list[bytes]) -> bytes:
    """Other tensors, or another description, with a checksum that is right."""
    try:
        tensors = safetensors.torch.load(content)
        metadata = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    except (safetensors.SafetensorError, ValueError, KeyError):
        return change_safetensors(draw, content, others)
    text = "header" if "header" in metadata else "learner"
    if draw.random() < 0.6:
        metadata[text] = change_json(draw, metadata.get(text, "").encode(), others).decode("utf-8", "replace")
    else:
        name = draw.choice(sorted(tensors))
        tensors |= {name: _other_tensor(draw, tensors[name])}
        if draw.random() < 0.2:
            tensors[draw.choice((*TEXTS[:9], "run.x", "method.x"))] = tensors.pop(name)
    content = safetensors.torch.save(tensors, metadata | {"checksum": checksum(metadata[text], tensors)})
    length = int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8 : 8 + length]), sort_keys=True).encode()  # else its order is anybody's
    return len(header).to_bytes(8, "little") + header + content[8 + length :]


def _other_tensor(draw: random.Random, tensor: torch.Tensor) -> torch.Tensor:
    kind = draw.choice((torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool))
    number = draw.choice((0, 1, -1, 127, 2**31, 2**62, 1e30, 3e38, math.nan, math.inf))
    shape = draw.choice(((), (0,), (1,), (1, 1), (3, 3, 3, 3), (10_000,)))
    filled = torch.full_like(tensor, number) if tensor.is_floating_point() else torch.full_like(tensor.double(), number)
    filled = filled.nan_to_num(0).to(tensor.dtype) if not tensor.is_floating_point() else filled
    flat = tensor.flatten()
    return draw.choice((filled, tensor.to(kind), torch.zeros(shape, dtype=kind), flat.flip(0), flat[:0]))


# -- readers -----------------------------------------------------------------------------------------------------------

Read = Callable[[str, bytes, Path], list[str]]
"""Reads a case, by its name and content, in a folder; gives back what it complained of."""


def read_settings(name: str, content: bytes, folder: Path) -> list[str]:
    (folder / "settings.toml").write_bytes(content)
    _check_settings(reading.read_config(folder / "settings.toml"))
    return []


def read_strings(name: str, content: bytes, folder: Path) -> list[str]:
    """Lines: the seeds, the method, and what --set was given."""
    seeds, method, *options = [*content.decode("utf-8", "surrogateescape").split("\n"), ""]
    chosen = reading.parse_options([each for each in options if each], {"method": method})
    _check_settings({"method": method, "seeds": seeds} | chosen)
    return []


def _check_settings(chosen: dict[str, Any]) -> None:
    assert len(reading.parse_seeds(chosen.pop("seeds", "0..0"))) <= reading.LARGEST_SEED + 1
    reading.parse_seeds(f"{chosen.pop('seed', 0)},0", "seed")
    for made in making.grid(chosen):
        again = json.loads(json.dumps(made.to_dict(), allow_nan=False))
        assert comparing.completed(again) == again


def read_results(name: str, content: bytes, folder: Path) -> list[str]:
    """What `cler compare` and `cler report` do with a folder of three results."""
    good = (CORPUS / "results" / "good-er-ace.json").read_bytes().replace(b'"seed": 0', b'"seed": 1')
    for number, text in enumerate((good, content, good.replace(b'"none"', b'"jigsaw"'))):
        (folder / f"seed-{number}").mkdir()
        (folder / f"seed-{number}" / "result.json").write_bytes(text)
    found, complaints = results.find_results([folder])
    for some in ([one for one in found if one.path.parent.name == "seed-1"], found):
        comparison = compare(some)
        json.dumps(comparison.to_json(), allow_nan=False)
        shown = Terminal(file=io.StringIO(), width=80)
        shown.print(comparison_table(comparison.groups))
        f"{shown.file.getvalue()}{markdown_table(comparison.groups)}{one_sentence(comparison.groups)}".encode()
    write_report(make_report(comparison, complaints), folder / "report")
    return [*complaints, *comparison.complaints]


def noise() -> images.ImageData:
    """Images of four classes."""
    pixels = (torch.arange(24 * 3 * 64) * 37 % 251).to(torch.uint8).reshape(24, 3, 8, 8)
    labels, few = torch.arange(4).repeat(6), slice(4)
    return images.ImageData("noise", pixels, labels, pixels[few], labels[few], tuple("abcd"), (0.5,) * 3, (0.3,) * 3)


def noise_job(folder: Path) -> Job:
    chosen = making.make_settings(dataset="noise", tasks=2, buffer=4, batch=4, replay_batch=4, width=1)
    return Job(chosen, 0, folder)


def read_runs(name: str, content: bytes, folder: Path) -> list[str]:
    """What `cler run` does with the folder of a run that was stopped, to go on with it."""
    for good in (CORPUS / "runs").glob("good-*"):
        shutil.copy(good, folder / good.name.removeprefix("good-"))
    (folder / name.partition("-")[2]).write_bytes(content)
    lines: list[str] = []

    def note(event: Event) -> None:
        if isinstance(event, Message):
            lines.append(event.text)

    if remaining([noise_job(folder)]):
        Builder(Recorder(note, Machine(device="cpu")))(noise_job(folder))
    return [line for line in lines if "resuming from task" not in line]


def read_learners(name: str, content: bytes, folder: Path) -> list[str]:
    (folder / "learner.safetensors").write_bytes(content)
    learner = Learner.load(folder / "learner.safetensors", device="cpu")
    pixels = torch.zeros(learner.batch, learner.channels, 8, 8, dtype=torch.uint8)
    if hasattr(learner, "classes_"):
        assert learner.predict_proba(pixels).shape == (learner.batch, len(learner.classes_))
        learner.partial_fit(pixels, [learner.classes_[0]] * learner.batch)
    learner.save(folder / "again.safetensors")
    return []


def read_journals(name: str, content: bytes, folder: Path) -> list[str]:
    (folder / JOURNAL).write_bytes(content)
    learner = Learner("finetune", "none", image_size=8, width=1)
    learner.partial_fit(torch.zeros(3, 3, 8, 8), ["a"] * 3)
    return _learn(folder, folder, learner)


def read_images(name: str, content: bytes, folder: Path) -> list[str]:
    """What `cler learn` does with a picture."""
    (folder / "images" / "label").mkdir(parents=True)
    (folder / "images" / "label" / name).write_bytes(content)
    return _learn(folder / "images", folder, Learner("finetune", "none", image_size=8, width=1))


def read_folders(name: str, content: bytes, folder: Path) -> list[str]:
    """What `cler learn` does with a folder that is made by a recipe: a dictionary of names and what they are."""
    with suppress(ValueError, RecursionError):
        recipe = json.loads(content)
        for path, what in recipe.items() if isinstance(recipe, dict) else ():
            if ".." not in path and not path.startswith("/"):
                with suppress(OSError, ValueError):  # the file system will not have it
                    _make_entry(folder / "images" / path, what)
    (folder / "images").mkdir(exist_ok=True)
    return _learn(folder / "images", folder, Learner("finetune", "none", image_size=8, width=1))


def _make_entry(path: Path, what: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    elif isinstance(what, str) and what.startswith("->"):
        path.symlink_to(what.removeprefix("->"))
    else:
        picture = (CORPUS / "images" / "good-rgb.png").read_bytes()
        path.write_bytes(picture if what == "picture" else str(what)[:1000].encode("utf-8", "replace"))


def _learn(folder: Path, state: Path, learner: Learner) -> list[str]:
    lines: list[str] = []
    watched = FolderLearner(folder, state, learner, held_out=0.2, tries=1, message=lines.append)
    for _ in watched.learn():
        pass
    watched.accuracy()
    watched.save()
    return lines


def read_archives(name: str, content: bytes, folder: Path) -> list[str]:
    (folder / "archive").write_bytes(content)
    unpack.extract(folder / "archive", folder / "data")
    return []


def read_cifar(name: str, content: bytes, folder: Path) -> list[str]:
    """A file whose checksum is right, so that it is not refused for that."""
    layout = cifar.CIFAR100_PYTHON if name.endswith(".pickle") else cifar.CIFAR100_BINARY
    member = cifar.Member("data", hashlib.sha256(content).hexdigest())
    layout = cifar.Layout("archive", "", "folder", (member,), (member,), layout.parse)
    (folder / "folder").mkdir()
    (folder / "folder" / "data").write_bytes(content)
    told = cifar.cifar100
    cifar.Cifar("fuzz", "Fuzz", "", "", (layout,), told.classes, told.mean, told.std).load(folder)
    return []


def read_samples(name: str, content: bytes, folder: Path) -> list[str]:
    for good in (CORPUS / "samples").glob("good-*"):
        shutil.copy(good, folder / good.name.removeprefix("good-"))
    (folder / name.partition("-")[2]).write_bytes(content)
    sample.Sample(folder).load(folder)
    return []


def read_arrays(name: str, content: bytes, folder: Path) -> list[str]:
    """What `--dataset npz:PATH` does with a file."""
    (folder / "x.npz").write_bytes(content)
    source: Any = images.find(f"npz:{folder / 'x.npz'}")
    _ = source.defaults
    source.load(folder)
    return []


def read_pixels(name: str, content: bytes, folder: Path) -> list[str]:
    """What is done with a file of pixels, which is made again if it is not that of these pictures."""
    (folder / "x.pixels").write_bytes(content)
    made = decoding.Pixels(np.zeros((2, 3, 4, 4), np.uint8), {2: "it is no image"})
    kept = decoding.kept_pixels(folder / "x.pixels", PIXELS, 3, lambda: made)
    assert len(kept.images) + len(kept.broken) == 3
    assert kept.images.shape[1] == 3
    assert kept.images.ndim == 4
    return []


PIXELS = b"three pictures"
"""What the files of pixels in the corpus tell of."""


def read_studies(name: str, content: bytes, folder: Path) -> list[str]:
    """What `cler tune` does with a study that was stopped."""
    given = {"method": "er", "dataset": "noise", "tasks": 4, "validate": 0.2}
    space = (Range("lr", 0.001, 0.3, log=True), Range("batch", 1, 10, whole=True), Range("optimizer", choices=("sgd",)))
    study = Study(given, space, Selection(), (0,), folder)
    (folder / "study.json").write_bytes(content)
    ended, _ = study.trials()
    if ended:
        settings_file(study, ended)
    return []


def read_events(name: str, content: bytes, folder: Path) -> list[str]:
    """What a driver does with what is heard of an attempt."""
    (folder / "events.jsonl").write_bytes(content)
    for word in Attempt(folder, [noise_job(folder)]).news():
        if isinstance(word, Progress):
            assert 0 * word.step == 0 * word.done + 0 * word.steps_per_second
            assert all(run.label for run in word.runs)
    return []


@dataclass(frozen=True)
class Kind:
    """A sort of file, what reads it, and how it is changed."""

    name: str
    read: Read
    changes: tuple[Change, ...]
    share: int
    """Of a hundred cases."""


KINDS = (
    Kind("settings", read_settings, (change_toml, change_toml, *BYTES), 13),
    Kind("strings", read_strings, (insert, insert, *BYTES), 8),
    Kind("results", read_results, (change_json, change_json, *BYTES), 10),
    Kind("runs", read_runs, (change_json, change_json_lines, change_safetensors, forge, forge, forge, *BYTES), 11),
    Kind("learners", read_learners, (change_safetensors, forge, forge, forge, *BYTES), 10),
    Kind("journals", read_journals, (change_json_lines, change_json_lines, *BYTES), 3),
    Kind("images", read_images, (change_png, extreme, *BYTES), 12),
    Kind("folders", read_folders, (change_json, change_json, *BYTES), 4),
    Kind("archives", read_archives, (change_tar, change_tar, make_tar, *BYTES), 11),
    Kind("cifar", read_cifar, BYTES, 5),
    Kind("samples", read_samples, (change_json, *BYTES), 3),
    Kind("arrays", read_arrays, (extreme, *BYTES), 4),
    Kind("pixels", read_pixels, (extreme, *BYTES), 2),
    Kind("studies", read_studies, (change_json, change_json, *BYTES), 2),
    Kind("events", read_events, (change_json_lines, change_json_lines, *BYTES), 2),
)


# -- the trial ---------------------------------------------------------------------------------------------------------


def make_case(kind: Kind, number: int, seed: int) -> tuple[str, bytes]:
    """Name and content of a case: the files of the corpus first, then changed ones."""
    paths = sorted((CORPUS / kind.name).iterdir())
    if number < len(paths):
        return paths[number].name, paths[number].read_bytes()
    draw = random.Random(f"{seed}/{kind.name}/{number}")
    path = draw.choice(paths)
    others = [each.read_bytes() for each in paths if each.suffix == path.suffix]
    content = path.read_bytes()
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        content = draw.choice(kind.changes)(draw, content, others)
    return path.name, content


_CHANGES = {
    **dict.fromkeys(("os.mkdir", "os.rmdir", "os.remove", "os.chmod", "os.chown", "os.truncate", "os.utime"), slice(1)),
    **dict.fromkeys(("os.rename", "os.link"), slice(2)),
    "os.symlink": slice(1, 2),
}
"""What changes the file system, and which of its arguments are the places."""


class Guard:
    """Hears what Python is about to do, and notes what no reader has any business to do."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.noted: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is None:
            return
        if event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "socket.connect"):
            self.noted.append(event)
        writes = (
            event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        )
        paths = arguments[:1] if writes else arguments[_CHANGES[event]] if event in _CHANGES else ()
        for path in map(os.fsdecode, (each for each in paths if isinstance(each, str | bytes | os.PathLike))):
            # a relative one is found beside the folder, unless it is relative to a folder that was looked at itself
            if os.path.isabs(path) and not Path(os.path.realpath(path)).is_relative_to(self.folder):
                self.noted.append(f"{event} outside the folder: {path}")

    @contextmanager
    def on(self, folder: Path) -> Iterator[None]:
        self.folder, self.noted = folder.resolve(), []
        try:
            yield
        finally:
            self.folder = None


def try_case(kind: Kind, name: str, content: bytes, folder: Path, guard: Guard, output: io.FileIO) -> tuple[str, str]:
    """accepted or refused, with what was said, or found, with what is wrong."""
    lines: list[str] = []
    began, before, outcome = processor_time(), _pages()[1] * _PAGE, "accepted"
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew
    output.truncate(0)
    with warnings.catch_warnings(record=True) as warned, guard.on(folder):
        warnings.simplefilter("always")
        try:
            lines = kind.read(name, content, folder)
            outcome = "refused" if lines else "accepted"
        except UsageError as error:
            lines, outcome = [str(error)], "refused"
        except BaseException as error:
            place = error.__traceback__
            while place and place.tb_next:
                place = place.tb_next
            where = f"{Path(place.tb_frame.f_code.co_filename).name}:{place.tb_lineno}" if place else ""
            return "found", f"{type(error).__name__} at {where}: {error}"
    seconds = processor_time() - began
    taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    wrong = [*guard.noted, *(f"warning: {each.message}" for each in warned)]
    wrong += [f"not one printable line: {line!r}" for line in lines if not line.isprintable() or not line]
    wrong += [f"took {seconds:.1f} s"] if seconds > SECONDS else []
    wrong += [f"took {taken >> 20} MiB"] if taken > MEMORY else []
    if not name.endswith(".tif"):  # whose library has a voice of its own
        wrong += [f"printed {Path(output.name).read_bytes()[:200]!r}"] if os.fstat(output.fileno()).st_size else []
    return ("found", "; ".join(wrong)) if wrong else (outcome, "; ".join(lines))


_PAGE = os.sysconf("SC_PAGE_SIZE")


def _pages() -> tuple[int, int]:
    """Pages that this process has, and has in memory."""
    size, resident = Path("/proc/self/statm").read_text().split()[:2]
    return int(size), int(resident)


def outcomes(kind: Kind, count: int, seed: int) -> Iterator[tuple[str, str]]:
    """What came of each case."""

    def prepare(box: Path) -> Callable[[int], tuple[str, str]]:
        resource.setrlimit(resource.RLIMIT_AS, (_PAGE * _pages()[0] + 3 * MEMORY,) * 2)
        resource.setrlimit(resource.RLIMIT_FSIZE, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        sys.dont_write_bytecode = True
        guard, folder = Guard(), box / "outer" / "target"
        output = open(box / "output", "wb", 0)  # noqa: SIM115 - as long as the child lives
        for standard in (1, 2):
            os.dup2(output.fileno(), standard)

        def try_number(number: int) -> tuple[str, str]:
            folder.mkdir(parents=True)
            os.chdir(folder.parent)
            told = try_case(kind, *make_case(kind, number, seed), folder, guard, output)
            told = ("found", "left something beside the folder") if len(list(folder.parent.iterdir())) > 1 else told
            shutil.rmtree(folder.parent)
            return told

        return try_number

    return in_children(prepare, count)


def in_children(prepare: Callable[[Path], Callable[[int], tuple[str, str]]], count: int) -> Iterator[tuple[str, str]]:
    """What came of each of so many trials, made in a child process; one that hangs or dies is replaced.

    In the child `prepare` is given an empty folder, and gives back what makes the trial of a number.
    """
    done = 0
    while done < count:
        with tempfile.TemporaryDirectory(prefix="cler-fuzz-") as box:
            for told in _of_one_child(prepare, range(done, count), Path(box)):
                done += 1
                yield told


def _of_one_child(
    prepare: Callable[[Path], Callable[[int], tuple[str, str]]], numbers: range, box: Path
) -> Iterator[tuple[str, str]]:
    """What came of the trials up to the last, or to the one that is the child's end."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            trial = prepare(box)
            for number in numbers:
                os.write(writing, (json.dumps(trial(number)) + "\n").encode())
        except BaseException as error:
            os.write(writing, (json.dumps(("found", f"the trial itself failed: {error!r}")) + "\n").encode())
        os._exit(0)
    os.close(writing)
    done, rest = 0, b""
    while heard := select.select([reading], [], [], HANG)[0]:
        if not (block := os.read(reading, 1 << 16)):
            break
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            done += 1
            yield tuple(json.loads(line))
    os.kill(child, signal.SIGKILL)
    os.close(reading)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status and done < len(numbers):
        yield "found", f"the process died with {status}" if heard else "hangs"


def try_alone(kind: Kind, number: int, seed: int) -> None:
    """One case in this process, to look into it."""
    name, content = make_case(kind, number, seed)
    with tempfile.TemporaryDirectory() as folder:
        print(name, len(content), content[:1000])
        print(kind.read(name, content, Path(folder)))


def main() -> None:
    global SECONDS, HANG
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=12000, help="cases in all; the corpus comes first")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn")
    parser.add_argument("--kind", choices=[kind.name for kind in KINDS], help="only this kind")
    parser.add_argument("--only", type=int, help="try this one case of --kind here, with its traceback")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of processor time that a case may take")
    parser.add_argument(
        "--hang", type=float, default=HANG, help="seconds after which a case that says nothing is killed"
    )
    parser.add_argument("--log", type=Path, help="file that the lines go to, too")
    options = parser.parse_args()
    SECONDS, HANG = options.seconds, options.hang
    import torch._dynamo  # makes a folder when it is imported, so before a child does

    torch.set_num_threads(1)
    images.register(images.InMemory(noise()))
    kinds = [kind for kind in KINDS if options.kind in (None, kind.name)]
    if options.only is not None:
        return try_alone(kinds[0], options.only, options.seed)
    lines, tallies = [], Counter[str]()
    for kind in kinds:
        count = max(len(list((CORPUS / kind.name).iterdir())), math.ceil(options.cases * kind.share / 100))
        tally = Counter[str]()
        for number, (outcome, said) in enumerate(outcomes(kind, count, options.seed)):
            tally[outcome] += 1
            if outcome == "found":
                lines.append(f"{kind.name} {number}: {said[:300]}")
                print(lines[-1], flush=True)
        lines.append(in_words(kind.name, tally))
        print(lines[-1], flush=True)
        tallies += tally
    print(in_words("all", tallies))
    if options.log:
        options.log.write_text("\n".join([*lines, in_words("all", tallies)]) + "\n")
    sys.exit(1 if tallies["found"] else 0)


if __name__ == "__main__":
    main()
