"""Make the corpus anew: `python tools/fuzz_corpus/make.py`. Files named good-… are valid, bad-… are not."""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import pickle
import random
import shutil
import struct
import sys
import tarfile
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from cler import Learner
from cler.config.machine import Machine
from cler.data.sample import pack
from cler.engine import Run, train
from cler.engine.events import ignore
from cler.files import write_json
from cler.runs import loading, record
from cler.runs.results import make_result

CORPUS = Path(__file__).parent


def put(name: str, content: bytes | str) -> None:
    path = CORPUS / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def make_settings() -> None:
    put(
        "settings/good-all.toml",
        'method = "xder"\nregularizer = "jigsaw"\ndataset = "cifar100"\ntasks = 10\nbuffer = 500\n'
        'epochs = 1\nlr = 0.03\nweight = 0.5\nbatch = 10\nreplay-batch = 10\noptimizer = "sgd"\nwidth = 20\n'
        'class-order = 3\nprecision = "fp32"\nthreads = 1\nseeds = "0..4"\nalpha = 0.8\nvariant = "text"\n',
    )
    put("settings/good-empty.toml", "")
    put("settings/good-dualnet.toml", 'method = "dualnet"\nseeds = 3\nbuffer = 200\nlr = 1\n')
    put("settings/good-cope.toml", '# a comment\nmethod = "cope"\n"regularizer" = \'rotation\'\ntasks = 0x5\n')
    put("settings/bad-table.toml", "[settings]\ntasks = 5\n")
    put("settings/bad-deep.toml", "tasks = " + "[" * 3000 + "]" * 3000)
    put("settings/bad-digits.toml", "tasks = " + "9" * 5000)
    put("settings/bad-float.toml", "lr = nan\n")
    put("settings/bad-lines.toml", '"a\\nb" = 1\n')
    put("settings/bad-seeds.toml", 'seeds = "' + "0..999999," * 200 + '0"\n')
    put("settings/bad-utf8.toml", b'method = "\xff\xfe"\n')
    put("settings/bad-date.toml", "lr = 1979-05-27\n")
    put("strings/good-plain.txt", "0..9\ner-ace\n")
    put("strings/good-options.txt", "0,2,5\nxder\nalpha=0.5\nmargin=0.1\nvariant=released\n")
    put("strings/good-int.txt", "3\ncope\n")
    put("strings/bad-digits.txt", "9" * 5000 + "\ner-ace\n")
    put("strings/bad-many.txt", "0..999999," * 300 + "0\ner-ace\n")
    put("strings/bad-nan.txt", "0\nxder\nalpha=nan\n")
    put("strings/bad-name.txt", "0\nxder\nalp\x1b[2Jha=1\n")
    put("strings/bad-backwards.txt", "9..0\nxder\n")


def make_results() -> None:
    settings = {
        "method": "er-ace",
        "regularizer": "none",
        "dataset": "cifar100",
        "tasks": 3,
        "buffer": 500,
        "epochs": 1,
        "lr": 0.1,
        "weight": 0.0,
        "batch": 10,
        "width": 64,
        "class_order": None,
        "precision": "bf16",
    }
    rows = {
        "class_il": [[80.0], [60.5, 70.0], [40.0, 50.25, 66.0]],
        "task_il": [[80.0], [75.5, 78.0], [70.0, 72.0, 81.0]],
    }
    where = {"cler": "1.0", "torch": "2.13.0", "python": "3.12.1", "device": "cpu", "hardware": "a processor"}
    good = make_result(settings, 0, rows, 12.5, 500, where)
    joint = {name: [[50.0, 60.0, 70.0]] for name in rows}
    put("results/good-er-ace.json", json.dumps(good))
    old = {name: value for name, value in good.items() if name not in ("counts", "data", "revisions")}
    put("results/good-format-1.json", json.dumps(old | {"format": 1, "steps_per_second": 40.0}))
    put(
        "results/good-joint.json",
        json.dumps(make_result(settings | {"method": "joint", "buffer": 0}, 1, joint, 3, 9, where)),
    )
    put(
        "results/good-regularized.json",
        json.dumps(make_result(settings | {"regularizer": "jigsaw"}, 1, rows, 3, 9, where)),
    )
    failed = make_result(settings, 2, {name: [] for name in rows}, 1, 2, where, complete=False, failure="not finite")
    put("results/bad-failed.json", json.dumps(failed))

    def bad(name: str, **changes: object) -> None:
        put(f"results/bad-{name}.json", json.dumps(good | changes))

    bad("seed", seed=10**12)
    bad("digits", seconds=int("1" + "0" * 400))
    bad("counts", counts={"steps": int("1" + "0" * 400), "images": 1e308})
    bad("surrogate", settings=settings | {"method": "\ud800"})
    bad("lines", failure="a\nb", complete=False)
    bad("markup", settings=settings | {"dataset": "[/red]", "method": "\x1b[2J<script>$|&"})
    bad("kinds", settings=settings | {"lr": {"a": [1, None]}, "batch": "x"})
    bad("nan", seconds=float("nan"))
    bad("environment", environment={"hardware": [[{}]], "cler": {}, "torch": None})
    put(
        "results/bad-deep.json",
        json.dumps(good | {"environment": {"x": 1}}).replace('"x": 1', '"x": ' + "[" * 900 + "]" * 900),
    )
    put("results/bad-deep-settings.json", json.dumps(good).replace("null", "[" * 900 + "]" * 900))
    put("results/bad-very-deep.json", "[" * 3000)
    put("results/bad-list.json", "[]")
    put("results/bad-empty.json", "")
    put("results/bad-twice.json", json.dumps(good)[:-1] + ', "format": 2}')


def make_runs() -> None:
    """A run that was stopped after its first task."""
    sys.path.insert(0, str(CORPUS.parent))
    import fuzz

    class Recorder(record.Recorder):
        def keep(self, run: Run) -> None:
            super().keep(run)
            raise KeyboardInterrupt

    fuzz.images.register(fuzz.images.InMemory(fuzz.noise()))
    folder = CORPUS / "runs"
    folder.mkdir()
    job = fuzz.noise_job(folder)
    write_json(folder / "settings.json", {"settings": job.settings.to_dict(), "seed": 0})
    recorder = Recorder(ignore, Machine(device="cpu"))
    with suppress(KeyboardInterrupt):
        train([loading.Builder(recorder)(job)], recorder.hear, recorder)
    for path in list(folder.iterdir()):
        path.rename(folder / f"good-{path.name}")
    deep = "[" * 3000 + "]" * 3000
    put(
        "runs/bad-log.jsonl",
        '{"task": 0}\n{"task": 1' + "0" * 400 + "}\n" + deep + '\n{"task": null}\n[]\n{"task": NaN}\n',
    )
    put("runs/bad-settings.json", '{"settings": [1], "seed": 0}')
    put("runs/bad-result.json", '{"settings": "x", "seed": {}}')
    put("runs/bad-checkpoint.safetensors", (2**63).to_bytes(8, "little") + b"{}")


def make_learners() -> None:
    noise = (np.arange(5 * 3 * 64) * 37 % 251).astype(np.uint8).reshape(5, 3, 8, 8)
    few = {"image_size": 8, "width": 1, "batch": 4, "replay_batch": 4, "buffer": 4, "device": "cpu"}
    (CORPUS / "learners").mkdir()
    learner = Learner("er-ace", "none", **few).partial_fit(noise, ["a", "b", "a", 3, "b"])
    learner.save(CORPUS / "learners" / "good-er-ace.safetensors")
    learner = Learner("cope", "none", **few, classes=["a", "b"]).partial_fit(noise, ["a", "b", "a", "b", "b"])
    learner.save(CORPUS / "learners" / "good-cope.safetensors")
    Learner("finetune", "none", **few).save(CORPUS / "learners" / "good-new.safetensors")
    put("learners/bad-empty.safetensors", b"")
    put("learners/bad-length.safetensors", (2**63).to_bytes(8, "little") + b"{}")
    put("learners/bad-pickle.safetensors", pickle.dumps({"a": 1}))
    put("learners/bad-deep.safetensors", (100_000).to_bytes(8, "little") + b"[" * 3000)
    put("journals/good-three.jsonl", "".join(f'["a/{number}.png", 10, {number}]\n' for number in range(3)))
    put("journals/good-more.jsonl", "".join(f'["a/{number}.png", 10, {number}]\n' for number in range(4)) + '["a')
    put("journals/bad-kinds.jsonl", '[1, "a", null]\n[[], {}, 1]\n{"a": 1, "b": 2, "c": 3}\n')
    put("journals/bad-deep.jsonl", "[" * 3000 + "]" * 3000 + "\n[1]\n[2]\n")
    put("journals/bad-digits.jsonl", f'["a/b.png", {"9" * 5000}, 1]\n' + "[]\n" * 2)


def make_images() -> None:
    noise = (np.arange(12 * 10 * 4) * 37 % 251).astype(np.uint8).reshape(10, 12, 4)
    color = Image.fromarray(noise[..., :3].copy())

    def save(name: str, picture: Image.Image, **options: object) -> None:
        stream = io.BytesIO()
        picture.save(
            stream, {"jpg": "jpeg", "tif": "tiff", "pgm": "ppm"}.get(name[-3:], name.rpartition(".")[2]), **options
        )
        put(f"images/{name}", stream.getvalue())

    exif = Image.Exif()
    exif[0x0112] = 6
    save("good-rgb.png", color)
    save("good-alpha.png", Image.fromarray(noise))
    save("good-palette.png", color.quantize(8), transparency=b"\0\x80")
    save("good-16-bit.png", Image.fromarray(noise[..., 0].astype(np.uint16) * 250))
    save("good-1-bit.png", color.convert("1"))
    save("good-turned.jpg", color, exif=exif)
    save("good-cmyk.jpg", color.convert("CMYK"))
    save("good-progressive.jpg", color, progressive=True)
    save("good-plain.bmp", color)
    save("good-palette.bmp", color.quantize(8))
    save("good-animated.gif", color, save_all=True, append_images=[color.rotate(90)] * 2)
    save("good-lossless.webp", color, lossless=True)
    save("good-animated.webp", color, save_all=True, append_images=[color.rotate(180)])
    save("good-plain.tif", color, exif=exif)
    save("good-packed.tif", color, compression="tiff_lzw")
    save("good-jpeg.tif", color, compression="jpeg")
    save("bad-float.tif", Image.fromarray(noise[..., 0].astype(np.float32)))
    save("good-cmyk.tif", color.convert("CMYK"))
    save("good-plain.ppm", color)
    save("good-gray.pgm", color.convert("L"))
    put("images/good-text.ppm", "P3 2 1 255\n1 2 3 4 5 6\n")
    put("images/bad-empty.png", b"")
    put("images/bad-text.jpg", "this is no picture\n")
    put("images/bad-script.png", "<svg xmlns='http://www.w3.org/2000/svg'/>")
    put("images/bad-postscript.jpg", "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n")
    put("images/bad-bomb-1-bit.png", png(12_000, 13_000, depth=1, kind=0))
    put("images/bad-bomb-color.png", png(9_000, 9_000, depth=8, kind=2, whole=False))
    put("images/bad-huge.png", png(2**31 - 1, 2**31 - 1, depth=8, kind=2, whole=False))
    put("images/bad-wide.png", png(20_000_000, 1, depth=1, kind=0))
    put("images/bad-zero.png", png(0, 0, depth=8, kind=2, whole=False))
    put("images/bad-huge.ppm", "P6 60000 60000 255\n")
    put("images/bad-huge.pgm", b"P5 9000 9000 255\n" + bytes(100))
    put(
        "images/bad-huge.bmp",
        b"BM" + struct.pack("<IIIIiiHHIIiiII", 54, 0, 54, 40, 9000, 9000, 1, 24, 0, 0, 0, 0, 0, 0),
    )
    put("images/bad-huge.gif", b"GIF89a" + struct.pack("<HHBBB", 9000, 9000, 0x80, 0, 0) + bytes(6) + b";")
    put("images/bad-text-chunk.png", with_text_bomb())


def chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png(width: int, height: int, *, depth: int, kind: int, whole: bool = True) -> bytes:
    """A black picture, or the beginning of one."""
    header = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    row = bytes(1 + (width * depth + 7) // 8)
    pixels = zlib.compress(row * height, 9) if whole else b"\x78\x9c"
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def with_text_bomb() -> bytes:
    """A good picture with a comment that unpacks to much more than it is."""
    good = (CORPUS / "images" / "good-rgb.png").read_bytes()
    comment = chunk(b"zTXt", b"comment\0\0" + zlib.compress(bytes(5_000_000), 9))
    return good[:33] + comment + good[33:]


def make_folders() -> None:
    put("folders/good-two.json", json.dumps({"cat/a.png": "picture", "cat/b.png": "picture", "dog/a.png": "picture"}))
    put(
        "folders/good-odd-names.json",
        json.dumps({"名/é [red].png": "picture", " /a b.PNG": "picture", ".git/a.png": "x"}),
    )
    put("folders/bad-pipe.json", json.dumps({"cat/a.png": "pipe", "cat/b.png": "picture"}))
    put("folders/bad-loop.json", json.dumps({"cat/a.png": "->a.png", "cat/b.png": "picture", "dog": "->dog"}))
    put(
        "folders/bad-endless.json",
        json.dumps({"cat/a.png": "->/dev/zero", "cat/b.ppm": "->/dev/urandom", "cat/c.png": "->b"}),
    )
    put(
        "folders/bad-folder.json", json.dumps({"cat/a.png": "folder", "cat/a.png/b.png": "picture", "a.png": "picture"})
    )
    put("folders/bad-lines.json", json.dumps({"cat\nx/a\nb.png": "text", "\x1b[2J/a.png": "text", "c/\x07.png": ""}))
    put("folders/bad-nothing.json", "{}")


def make_archives() -> None:
    def archive(name: str, *members: tuple[str, bytes, dict[str, object]], mode: str = "w:gz") -> None:
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode=mode, format=tarfile.PAX_FORMAT) as tar:
            for path, content, about in members:
                member = tarfile.TarInfo(path)
                member.size = len(content)
                for key, value in about.items():
                    setattr(member, key, value)
                tar.addfile(member, io.BytesIO(content))
        put(f"archives/{name}", stream.getvalue())

    folder = ("data", b"", {"type": tarfile.DIRTYPE, "mode": 0o755})
    for kind in ("", ":gz", ":bz2", ":xz"):
        name = f"{'good' if kind == ':gz' else 'bad'}-plain.tar{kind.replace(':', '.')}"
        archive(name, folder, ("data/a.bin", bytes(range(256)), {}), ("b", b"b", {}), mode=f"w{kind}")
    archive("bad-parent.tar.gz", ("../../outside", b"x", {}))
    archive("bad-hidden-parent.tar.gz", ("data/../../outside", b"x", {}))
    archive("bad-absolute.tar.gz", ("/tmp/cler-fuzz-outside", b"x", {}))
    link = {"type": tarfile.SYMTYPE, "linkname": "../.."}
    archive("bad-link.tar.gz", ("data", b"", link), ("data/outside", b"x", {}))
    archive("bad-hard-link.tar.gz", ("data", b"", {"type": tarfile.LNKTYPE, "linkname": "/etc/passwd"}))
    archive("bad-device.tar.gz", ("data", b"", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 5}))
    archive("bad-pipe.tar.gz", ("data", b"", {"type": tarfile.FIFOTYPE}))
    archive("bad-time.tar.gz", ("data", b"x", {"mtime": 10**30}))
    archive("bad-negative-size.tar.gz", ("data", b"x", {"pax_headers": {"size": "-512"}}), ("b", b"b", {}))
    archive("bad-claimed-size.tar.gz", ("data", b"x", {"pax_headers": {"size": str(10**30)}}))
    archive("bad-null.tar.gz", ("data", b"x", {"pax_headers": {"path": "a\0b"}}))
    archive("bad-file-as-folder.tar.gz", ("data", b"x", {}), ("data/a", b"x", {}))
    archive("bad-sparse.tar.gz", ("data", b"x", {"pax_headers": {"GNU.sparse.map": "0,1,x", "GNU.sparse.size": "9"}}))
    archive("bad-bomb.tar.gz", ("data", bytes(30_000_000), {}))
    archive("bad-name.tar.gz", ("x" * 3_000_000, b"x", {}))
    good = (CORPUS / "archives" / "good-plain.tar.gz").read_bytes()
    put("archives/bad-half.tar.gz", good[: len(good) // 2])
    put("archives/bad-half.tar.xz", (CORPUS / "archives" / "bad-plain.tar.xz").read_bytes()[:150])
    put("archives/bad-text.tar.gz", "this is no archive\n")


def make_data() -> None:
    draw = random.Random(0)
    records = bytes((9, 50)) + draw.randbytes(3072)
    batch = {b"data": np.frombuffer(records, np.uint8)[:3072].reshape(1, 3072), b"fine_labels": [99]}
    put("cifar/good-train.bin", records)
    put("cifar/good-train.pickle", pickle.dumps(batch, protocol=4))
    put("cifar/bad-odd.bin", records[:-1])
    put("cifar/bad-labels.bin", b"\xff" * len(records))
    put("cifar/bad-code.pickle", b"cos\nsystem\n(S'true'\ntR.")
    put("cifar/bad-memo.pickle", b"\x80\x02]r\xff\xff\xff\x7f.")
    put("cifar/bad-length.pickle", b"\x80\x04\x8e" + (2**62).to_bytes(8, "little") + b"x.")
    put("cifar/bad-deep.pickle", b"\x80\x02" + b"]" * 2500 + b"a" * 2499 + b".")
    pixels = (np.arange(2 * 3 * 64) * 37 % 251).astype(np.uint8).reshape(2, 3, 8, 8)
    shard = {"file": "a.xz", "label": 0, "sha256": hashlib.sha256(pixels.tobytes()).hexdigest()}
    index = {"train_per_class": 1, "test_per_class": 1, "height": 8, "width": 8, "shards": [shard]}
    put("samples/good-index.json", json.dumps(index))
    put("samples/good-a.xz", pack(pixels))
    put("samples/bad-index.json", json.dumps(index | {"shards": [shard | {"label": 10**30}]}))
    put("samples/bad-a.xz", lzma.compress(bytes(50_000_000)))


def make_arrays() -> None:
    """Files of numpy's arrays, and files of decoded pixels."""
    sys.path.insert(0, str(CORPUS.parent))
    import forged

    put("arrays/good-color.npz", forged.npz())
    put("arrays/good-gray.npz", forged.npz(x_train=np.zeros((8, 9, 9)), classes=np.array(["a", "b"])))
    put("arrays/good-strings.npz", forged.npz(y_train=np.array(["a", "b"] * 4)))
    test = {"x_test": np.zeros((2, 8, 8, 3), np.uint8), "y_test": np.arange(2)}
    put("arrays/good-test.npz", forged.npz(**test))
    for name in ("labels: objects", "images: below zero", "images: beyond", "labels: no sign", "encrypted"):
        put(f"arrays/bad-{name.rpartition(': ')[2].replace(' ', '-')}.npz", forged.arrays()[name]())
    header, pixels = json.dumps({"shape": [2, 3, 4, 4], "broken": {"2": "it is no image"}}).encode(), bytes(96)
    digest = hashlib.sha256(hashlib.sha256(b"three pictures").digest() + header + pixels).digest()
    good = digest + len(header).to_bytes(8) + header + pixels
    put("pixels/good-three.pixels", good)
    put("pixels/bad-shape.pixels", forged.pixels(good, b"three pictures")["shape [12, 768]"]())


def make_tuning() -> None:
    """Studies, and what is heard of attempts."""
    space = [
        {"name": "lr", "low": 0.001, "high": 0.3, "log": True, "whole": False, "choices": []},
        {"name": "batch", "low": 1, "high": 10, "log": False, "whole": True, "choices": []},
        {"name": "optimizer", "low": 0.0, "high": 0.0, "log": False, "whole": False, "choices": ["sgd"]},
    ]
    given = {"method": "er", "dataset": "noise", "tasks": 4, "validate": 0.2}
    about = {"given": given, "space": space, "select_on": "whole-stream", "rungs": [2, 4], "seeds": [0]}
    values = {"lr": 0.03, "batch": 4, "optimizer": "sgd"}
    trials = [{"values": values, "scores": [50.5, 30.0]}, {"values": values, "scores": [0]}]
    begun = [{"values": values, "scores": [50.5]}, {"values": values, "scores": []}]
    put("studies/good-two.json", json.dumps({"about": about, "trials": trials, "under_way": begun}))
    put("studies/good-none.json", json.dumps({"about": about, "trials": [], "under_way": []}))
    put("studies/bad-dropped.json", json.dumps({"about": about, "trials": trials[1:], "under_way": []}))
    put("studies/bad-values.json", json.dumps({"about": about, "trials": [], "under_way": [None]}))
    progress = {"runs": [0], "task": 0, "tasks": 2, "step": 1, "steps": 3, "done": 0.2, "steps_per_second": 9.5,
                "accuracy": None, "losses": {"stream": 2.3}, "sums": [{"stream": [2.3, 1]}]}  # fmt: skip
    lines = [["Begun", {"host": "node-1"}], ["Progress", progress], ["Message", {"text": "\x1b[2J"}],
             ["Evaluated", {"run": 0, "task": 0, "accuracy": {"class_il": [50.0], "task_il": [50.0]}}],
             ["Finished", {"run": 0, "accuracy": 50.0, "metrics": {}}],
             ["Ended", {"how": "done", "why": ""}]]  # fmt: skip
    put("events/good-all.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    put("events/bad-deep.jsonl", "[" * 100_000 + "\n")
    put("events/bad-kinds.jsonl", json.dumps(["Progress", progress | {"done": "x", "runs": [0]}]) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for folder in CORPUS.iterdir():
        if folder.is_dir():
            shutil.rmtree(folder)
    for make in (
        make_settings,
        make_results,
        make_images,
        make_folders,
        make_archives,
        make_data,
        make_learners,
        make_runs,
        make_arrays,
        make_tuning,
    ):
        make()
