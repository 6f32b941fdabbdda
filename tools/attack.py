"""Throw odd paths, files, answers, archives, strings, streams, limits and signals at cler as it is installed.

python tools/attack.py --log tools/attack.log

The wheel is built and installed into a fresh environment, and all of it runs as an ordinary user: root becomes nobody.
A case is a command in a folder of its own. Found is what ends in a traceback, hangs, has an exit code that it should
not have, changes a file outside its folder, leaves a temporary file, or prints what a terminal would obey; and a run
or a learner that does not end as one left in peace, to the bit. Most of the commands are called in a process that has
imported everything, or are forked from one; those that are about the streams of a process are processes of their own.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import io
import json
import os
import pwd
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import forged
from tally import in_words

HERE = Path(__file__).parent
ANY = frozenset({0, 1, 2})
REFUSED = frozenset({2})
QUICK = "--dataset noise --tasks 2 --width 1 --batch 4 --replay-batch 4 --buffer 4 --device cpu --workers 1".split()  # noqa: SIM905
LEARN = "--once --width 1 --image-size 8 --batch 4 --replay-batch 4 --buffer 8 --device cpu".split()  # noqa: SIM905
SLOW = ("demo", "tune", "bench", "analyze", "reproduce", "check", "data get")
"""Commands that would take long, or fetch something, if they were not refused."""
PARTING = 10.0
"""Seconds that what a command has started may outlive it."""
HANG = 120.0
"""Seconds after which a case that says nothing is killed."""


@dataclass(frozen=True)
class Case:
    """A command, what has to be there before, and how it may end."""

    name: str
    arguments: tuple[str, ...]
    codes: frozenset[int] = ANY
    prepare: Callable[[Path], Any] = lambda folder: None
    encoding: str = "utf-8"


# -- what has to be there ----------------------------------------------------------------------------------------------


def furnish(folder: Path) -> None:
    """A result, a few images, and things that are not what they should be."""
    good = (HERE / "fuzz_corpus" / "results" / "good-er-ace.json").read_bytes()
    (folder / "results").mkdir()
    (folder / "results" / "result.json").write_bytes(good)
    picture = (HERE / "fuzz_corpus" / "images" / "good-rgb.png").read_bytes()
    for label in "ab":
        (folder / "images" / label).mkdir(parents=True)
        for number in range(6):
            (folder / "images" / label / f"{number}.png").write_bytes(picture)
    (folder / "file").write_text("a file\n")
    (folder / "closed").mkdir(mode=0)
    (folder / "read-only").mkdir(mode=0o555)
    (folder / "unreadable").touch(mode=0)
    (folder / "loop").symlink_to("loop")
    (folder / "nothing").symlink_to("nowhere")
    os.mkfifo(folder / "pipe")


def odd_things(path: Path, precious: Path) -> dict[str, Callable[[], Any]]:
    """What can stand in the place of a file."""

    def sparse() -> None:
        path.touch()
        os.truncate(path, 1 << 42)

    def listen() -> None:
        with socket.socket(socket.AF_UNIX) as server, suppress(OSError):
            server.bind(os.path.relpath(path))

    return {
        "pipe": lambda: os.mkfifo(path),
        "link": lambda: path.symlink_to(precious),
        "link to nothing": lambda: path.symlink_to("nowhere"),
        "link to itself": lambda: path.symlink_to(path.name),
        "link to zeros": lambda: path.symlink_to("/dev/zero"),
        "folder": path.mkdir,
        "unreadable": lambda: path.touch(mode=0),
        "empty": path.touch,
        "huge": sparse,
        "socket": listen,
    }


# -- families ----------------------------------------------------------------------------------------------------------


NEVER = {
    "long": "x" * 5000, "long folders": "x/" * 2500 + "x", "nobody's": "~nosuchuser/x", "null": "a\0b",
    "in closed": "closed/x", "in a loop": "loop/x",
}  # fmt: skip
"""Paths that every command refuses."""
PERHAPS = {
    "closed": "closed", "read-only": "read-only", "in read-only": "read-only/x", "file": "file", "pipe": "pipe",
    "in a file": "file/x", "nothing": "nothing", "zeros": "/dev/zero", "null device": "/dev/null", "empty": "",
    "proc": "/proc/self/mem", "in proc": "/proc/nothing/x", "unreadable": "unreadable", "not utf-8": "caf\udce9",
    "escape": "\x1b[2J\u202e", "lines": "a\nb", "dash": "-", "root": "/", "name too long": "n" * 256,
}  # fmt: skip
"""Paths that some commands may take."""


def paths() -> Iterator[Case]:
    """Paths that cannot be, or are something else, for every command that takes one."""
    from hostile import NEEDED, paths_of_commands

    more = {"run": QUICK, "learn": LEARN}
    for command, flag in sorted(paths_of_commands()):
        slow = command in SLOW
        values = NEVER if slow else NEVER | PERHAPS
        for name, value in values.items():
            given = value + ("/x.py" if flag == "--import" else "")
            needed = NEEDED.get(command, []) if flag else []
            needed = needed + (more.get(command, []) if flag != "--data-dir" else ["--dataset", "cifar10"])
            arguments = (*command.split(), *needed, *([flag] if flag else []), given)
            yield Case(f"{command} {flag} {name}", arguments, REFUSED if name in NEVER else ANY, furnish)


def files() -> Iterator[Case]:
    """Every file of the fuzzing corpus, given to the commands that read its kind."""
    corpus = HERE / "fuzz_corpus"

    def put(source: Path, target: str) -> Callable[[Path], None]:
        def prepare(folder: Path) -> None:
            furnish(folder)
            (folder / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, folder / target)

        return prepare

    def stopped(source: Path) -> Callable[[Path], None]:
        def prepare(folder: Path) -> None:
            stopped_run(folder)
            shutil.copy(source, folder / "runs" / "x" / "seed-0" / source.name.partition("-")[2])

        return prepare

    for path in sorted(corpus.glob("results/*")):
        for command in ("compare", "compare --json", "compare --markdown", "report"):
            yield Case(f"{command} {path.name}", (*command.split(), "results"), ANY, put(path, "results/x/result.json"))
    for path in sorted(corpus.glob("settings/*")):
        arguments = ("run", "--config", "x.toml", *QUICK)
        yield Case(f"run --config {path.name}", arguments, ANY, put(path, "x.toml"))
    for path in sorted(corpus.glob("runs/*")):
        yield Case(f"run resumed, {path.name}", ("run", "er-ace", *QUICK), ANY, stopped(path))
    for path in sorted(corpus.glob("learners/*")):
        arguments = ("learn", "images", "--once", "--device", "cpu")
        yield Case(f"learn resumed, {path.name}", arguments, ANY, put(path, "images/.cler/learner.safetensors"))
    for path in sorted(corpus.glob("journals/*")):
        yield Case(f"learn, {path.name}", ("learn", "images", *LEARN), ANY, put(path, "images/.cler/journal.jsonl"))
    for path in sorted(corpus.glob("images/*")):
        yield Case(f"learn, {path.name}", ("learn", "images", *LEARN), ANY, put(path, f"images/c/{path.name}"))
    for path in sorted(corpus.glob("*/*")):
        yield Case(
            f"report --preface {path.parent.name}/{path.name}",
            ("report", "results", "--preface", "x"),
            ANY,
            put(path, "x"),
        )


def stopped_run(folder: Path) -> None:
    """A run that was stopped, with everything that it has left."""
    furnish(folder)
    run = folder / "runs" / "x" / "seed-0"
    run.mkdir(parents=True)
    for good in (HERE / "fuzz_corpus" / "runs").glob("good-*"):
        shutil.copy(good, run / good.name.removeprefix("good-"))


PLACES = {
    **{
        f"runs/x/seed-0/{name}": ("run", "er-ace", *QUICK)
        for name in (
            ".lock", ".owner", "checkpoint.safetensors", "checkpoint.previous.safetensors", "log.jsonl", "result.json",
            "settings.json", "checkpoint.damaged-1",
        )
    },
    "runs/x/seed-0/network.safetensors": ("run", "er-ace", *QUICK, "--save-network"),
    **{
        f"images/.cler/{name}": ("learn", "images", *LEARN)
        for name in (".lock", ".owner", "learner.safetensors", "journal.jsonl", "held_out.json")
    },
    "images/a/odd.png": ("learn", "images", *LEARN),
    "images/odd": ("learn", "images", *LEARN),
    "results/odd/result.json": ("compare", "results"),
    "results/odd": ("compare", "results", "--json"),
    "x.toml": ("run", "--config", "x.toml", *QUICK),
    "x.py": ("run", "er-ace", "--import", "x.py", *QUICK),
    "preface": ("report", "results", "--preface", "preface"),
    **{f"report/{name}": ("report", "results") for name in ("index.html", "report.md", "report.tex", "runs.csv")},
    "data/cifar-10-binary.tar.gz": ("data", "check", "cifar10", "--data-dir", "data"),
    "data/cifar-10-batches-bin/data_batch_1.bin": ("data", "check", "cifar10", "--data-dir", "data"),
    "data/mini-imagenet/train": ("data", "check", "mini-imagenet", "--data-dir", "data"),
}  # fmt: skip


def places() -> Iterator[Case]:
    """Things that are no files where files should be."""

    def put(place: str, kind: str) -> Callable[[Path], None]:
        def prepare(folder: Path) -> None:
            stopped_run(folder)
            path = folder / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            odd_things(path, folder / "precious")[kind]()

        return prepare

    for place, arguments in PLACES.items():
        for kind in odd_things(Path("x"), Path("precious")):
            yield Case(f"{kind} as {place}", arguments, ANY, put(place, kind))


def owners() -> Iterator[Case]:
    """What locks may say of their owners."""
    host = __import__("cler.files", fromlist=["HOST"]).HOST
    said = ["", "{", "[]", "null", '{"host": 3}', '{"host": {}}', "\0", "[" * 100_000, '{"token": "\x1b[2J"}']
    said += [
        json.dumps({"host": owner, "process": process, "token": "x"})
        for owner in (host, "elsewhere", "\x1b[2J")
        for process in (1, 0, -1, 2**31, 10**17, "1", None, 999_999)
    ]

    def put(text: str) -> Callable[[Path], None]:
        def prepare(folder: Path) -> None:
            stopped_run(folder)
            (folder / "runs" / "x" / "seed-0" / ".owner").write_text(text)

        return prepare

    for number, text in enumerate(said):
        yield Case(f"owner {number}: {text[:60]!r}", ("run", "er-ace", *QUICK), ANY, put(text))


def strings() -> Iterator[Case]:
    """Strings that are orders to somebody, as every option of every command, in results, and as labels."""
    import cler.cli
    from hostile import NEEDED, STRINGS, put_results

    some = [text for text in STRINGS if "\0" not in text]
    of_paths = {"out", "data_dir", "config", "preface", "state", "folder", "folders"}
    registered = [("", each) for each in cler.cli.app.registered_commands]
    registered += [("data ", each) for each in cler.cli.data.data_app.registered_commands]
    for prefix, command in registered:
        name = prefix + (command.name or command.callback.__name__)
        for parameter in inspect.signature(command.callback, eval_str=True).parameters.values():
            if "bool" in str(parameter.annotation.__origin__) or (name in SLOW and parameter.name in of_paths):
                continue
            marker = parameter.annotation.__metadata__[0]
            given = [each for each in (marker.default, *(marker.param_decls or ())) if str(each)[:2] == "--"]
            flag = (given or [f"--{parameter.name.replace('_', '-')}"])[0]
            is_argument = type(marker).__name__ == "ArgumentInfo"
            for text in some[:: 1 if is_argument else 7]:
                value = (text,) if is_argument else (f"{flag}={text}",)
                needed = [] if is_argument else NEEDED.get(name, [])
                more = {"run": QUICK, "learn": LEARN}.get(name, [])
                more = [] if flag in more else more
                yield Case(f"{name} {flag} {text[:40]!r}", (*name.split(), *needed, *more, *value), ANY, furnish)
    for arguments in (
        ("compare", "all"),
        ("compare", "all", "--markdown"),
        ("compare", "all", "--json"),
        ("report", "all"),
    ):
        yield Case(" ".join(arguments), arguments, frozenset({0}), lambda folder: put_results(folder / "all"))

    def label(text: str) -> Callable[[Path], None]:
        def prepare(folder: Path) -> None:
            furnish(folder)
            (folder / "images" / "a").rename(folder / "images" / text.replace("/", "-"))
            (folder / "images" / "b" / f"{text.replace('/', '-')}.png").write_text("no picture")

        return prepare

    for text in some:
        yield Case(f"learn label {text[:40]!r}", ("learn", "images", *LEARN), frozenset({0}), label(text))


def answers() -> Iterator[Case]:
    """What a server may answer, to a new download and to one that resumes."""
    from cler.data import cifar, images
    from hostile import ANSWERS, OK, RawServer

    slow = {
        "status": (b"HTTP", b"x"), "continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"), "headers": (OK, b"X: x\r\n"),
        "body": (OK + b"Content-Length: 100000000\r\n\r\n", b"x"),
        "chunks": (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    }  # fmt: skip
    servers = {name: (content, b"") for name, content in ANSWERS.items()} | slow

    def serve(name: str, part: bytes) -> Callable[[Path], None]:
        def prepare(folder: Path) -> None:
            url = RawServer(*servers[name]).url
            attacked = dataclasses.replace(cifar.cifar10, name="attacked", base_url=url.rpartition("/")[0] + "/")
            images.DATASETS._entries["attacked"] = attacked
            (folder / "data").mkdir()
            if part:
                (folder / "data" / "cifar-10-binary.tar.gz.part").write_bytes(part)

        return prepare

    for name in servers:
        for part in (b"", b"some"):
            arguments = ("data", "get", "attacked", "--data-dir", "data")
            yield Case(f"{name}{', resumed' * bool(part)}", arguments, REFUSED, serve(name, part))


def archives() -> Iterator[Case]:
    """Archives without a checksum: those of the fuzzing corpus, changed ones, and some that are large."""
    import gzip
    import tarfile

    import fuzz
    from cler.data import images, mini_imagenet

    attacked = dataclasses.replace(mini_imagenet.mini_imagenet, name="attacked-mini", base_url="http://127.0.0.1:9/")
    images.DATASETS._entries["attacked-mini"] = attacked
    (kind,) = (kind for kind in fuzz.KINDS if kind.name == "archives")

    def put(make: Callable[[], bytes]) -> Callable[[Path], None]:
        def prepare(folder: Path) -> None:
            (folder / "data").mkdir()
            (folder / "data" / attacked.archive).write_bytes(make())

        return prepare

    def many() -> bytes:
        with tarfile.open(fileobj=(stream := io.BytesIO()), mode="w:gz", compresslevel=1) as tar:
            for number in range(70_000):
                tar.addfile(tarfile.TarInfo(f"x/{number}"))
        return stream.getvalue()

    def long_names() -> bytes:
        with tarfile.open(fileobj=(stream := io.BytesIO()), mode="w:gz", compresslevel=1) as tar:
            for number in range(5):
                tar.addfile(tarfile.TarInfo(f"{number}" * 40_000_000))
        return stream.getvalue()

    own = {"70,000 files": many, "long names": long_names, "zeros": lambda: gzip.compress(bytes(300_000_000), 1)}
    own |= {f"case {number}": lambda number=number: fuzz.make_case(kind, number, 5)[1] for number in range(100)}
    for name, make in own.items():
        yield Case(name, ("data", "get", "attacked-mini", "--data-dir", "data"), REFUSED, put(make))


CHECK = ("data", "check")
OWN = ("--data-dir", "data", "--size", "8")
ON_IMAGES = ("--dataset", "folder:images", *OWN)


def datasets() -> Iterator[Case]:
    """Datasets of one's own: paths that cannot be, pictures and arrays that lie, and things that are no files."""
    forms = ("folder", "domains", "npz", "hf")
    for form in forms:
        for name, value in (NEVER | PERHAPS).items():
            if form != "hf" or name != "root":  # where another package looks through the whole disk
                codes = frozenset({1, 2}) if name in NEVER else ANY  # 1 says that a dataset is missing
                named = f"{form}:{value}"
                yield Case(f"check {form}, {name}", (*CHECK, named, "--data-dir", "data"), codes, furnish)
                arguments = ("run", "er", *other_dataset(QUICK), "--dataset", named, "--data-dir", "data")
                yield Case(f"run {form}, {name}", arguments, REFUSED if name in NEVER else ANY, furnish)
    for name, make in forged.pictures().items():
        put = putting(f"images/a/{name}", make)
        for form in ("check", "run", "skipping"):
            yield Case(f"{form} {name}", TRAINED[form], ANY, put)
    for path in sorted((HERE / "fuzz_corpus" / "images").iterdir()):
        yield Case(f"skipping {path.name}", TRAINED["skipping"], ANY, putting(f"images/a/{path.name}", path.read_bytes))
    for name, make in forged.arrays().items():
        put = putting("x.npz", make)
        yield Case(f"check npz {name}", (*CHECK, "npz:x.npz", "--data-dir", "data"), ANY, put)
        arguments = ("run", "er", *other_dataset(QUICK), "--dataset", "npz:x.npz", "--size", "8")
        yield Case(f"run npz {name}", arguments, ANY, put)
    yield from odd_layouts()


def other_dataset(arguments: Sequence[str]) -> list[str]:
    """Options of a run without those that name its dataset."""
    place = list(arguments).index("--dataset")
    return [*arguments[:place], *arguments[place + 2 :]]


TRAINED = {
    "check": (*CHECK, "folder:images", "--data-dir", "data"),
    "run": ("run", "er", *other_dataset(QUICK), *ON_IMAGES),
    "skipping": ("run", "er", *other_dataset(QUICK), *ON_IMAGES, "--skip-broken"),
}
"""Commands that read the folder of images."""


def putting(place: str, make: Callable[[], bytes]) -> Callable[[Path], None]:
    """What makes a file beside all that has to be there."""

    def prepare(folder: Path) -> None:
        furnish(folder)
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_bytes(make())

    return prepare


def odd_layouts() -> Iterator[Case]:
    """Things that are no files or folders where datasets should have them, names that are orders, and forged pixels."""
    from hostile import STRINGS

    places = {
        "images/a/odd.png": TRAINED["check"],
        "images/odd": TRAINED["run"],
        "images/train": TRAINED["run"],
        "data/decoded": TRAINED["run"],
        "data/tiny-imagenet-200/val/val_annotations.txt": (*CHECK, "tiny-imagenet", "--data-dir", "data"),
        "data/tiny-imagenet-200/wnids.txt": (*CHECK, "tiny-imagenet", "--data-dir", "data"),
        "data/tiny-imagenet-200/train": (*CHECK, "tiny-imagenet", "--data-dir", "data"),
        "images/state.json": (*CHECK, "hf:images", "--data-dir", "data"),
        "images/dataset_dict.json": (*CHECK, "hf:images", "--data-dir", "data"),
        "x.npz": (*CHECK, "npz:x.npz"),
    }

    def put(place: str, kind: str) -> Callable[[Path], None]:
        def prepare(folder: Path) -> None:
            furnish(folder)
            for part in ("train/n01/images", "val/images"):
                (folder / "data" / "tiny-imagenet-200" / part).mkdir(parents=True)
            picture = (folder / "images" / "a" / "0.png").read_bytes()
            (folder / "data/tiny-imagenet-200/train/n01/images/0.JPEG").write_bytes(picture)
            (folder / "data/tiny-imagenet-200/val/val_annotations.txt").write_text("0.JPEG\tn01\n")
            path = folder / place
            if path.is_dir():
                shutil.rmtree(path)
            path.unlink(missing_ok=True)
            odd_things(path, folder / "precious")[kind]()

        return prepare

    for place, arguments in places.items():
        for kind in odd_things(Path("x"), Path("precious")):
            yield Case(f"{kind} as {place}", arguments, ANY, put(place, kind))

    def named(text: str) -> Callable[[Path], None]:
        def prepare(folder: Path) -> None:
            furnish(folder)
            (folder / "images" / "a").rename(folder / "images" / text)
            (folder / "images" / "b" / f"{text}.png").write_text("no picture")

        return prepare

    for text in [*(text.replace("/", "-") for text in STRINGS if "\0" not in text), "caf\udce9", "n" * 250, " ", "é"]:
        for form in ("check", "skipping"):
            yield Case(f"{form}, class {text[:40]!r}", TRAINED[form], ANY, named(text))

    def forged_pixels(name: str) -> Callable[[Path], None]:
        def prepare(folder: Path) -> None:
            import cler.data
            from cler.data import decoding

            furnish(folder)
            listed: list[bytes] = []
            digest = decoding._digest
            decoding._digest = lambda told, *rest: (listed.append(told), digest(told, *rest))[1]
            cler.data.load("folder:images", "data", size=8)
            decoding._digest = digest
            (path,) = (folder / "data" / "decoded").iterdir()
            path.write_bytes(forged.pixels(path.read_bytes(), listed[0])[name]())

        return prepare

    header = json.dumps({"shape": [12, 3, 8, 8], "broken": {}}).encode()
    for name in forged.pixels(bytes(32) + len(header).to_bytes(8) + header + bytes(12 * 192)):
        yield Case(f"pixels, {name}", TRAINED["run"], frozenset({0}), forged_pixels(name))


def records() -> Iterator[Case]:
    """Results, logs, pictures of buffers, studies, settings of machines and attempts that lie."""
    good = json.loads((HERE / "fuzz_corpus" / "results" / "good-er-ace.json").read_text())
    commands = ("compare", "compare --json", "compare --markdown", "report")
    for name, value in forged.results(good).items():
        put = putting("results/x/result.json", json.dumps(value).encode)
        yield from (Case(f"{command}, {name}", (*command.split(), "results"), ANY, put) for command in commands)
    comparable = good | {"settings": good["settings"] | COMPARABLE}
    comparable["accuracy"] = {name: [[50.0] * (task + 1) for task in range(10)] for name in good["accuracy"]}
    counted = cache(counted_arithmetic)

    def with_counts(value: dict[str, Any]) -> Callable[[Path], None]:
        def prepare(folder: Path) -> None:
            putting("results/x/result.json", json.dumps(value).encode)(folder)
            (folder / "counted.json").write_bytes(counted())

        return prepare

    frontier = ("frontier", "results", "--arithmetic", "counted.json")
    for name, value in forged.results(comparable).items():
        yield Case(f"frontier, {name}", frontier, ANY, with_counts(value))
    for number, text in enumerate(
        ("{", "[]", '{"counts": 3}', '{"counts": [3]}', '{"counts": [{"flops_per_image": "x"}]}', "[" * 99_999,
         '{"counts": [{"flops_per_image": 1e300}]}', '{"counts": [{"a": [[]]}]}')
    ):  # fmt: skip
        put = putting("counted.json", text.encode)
        yield Case(f"frontier --arithmetic {number}", frontier, ANY, put)
    for name, lines in forged.LOGS.items():
        put = putting("results/log.jsonl", "\n".join(map(json.dumps, lines)).encode)
        yield Case(f"report, log with {name}", ("report", "results"), ANY, put)
    for name, make in forged.pictures().items():
        yield Case(f"report, buffer {name}", ("report", "results"), frozenset({0}), putting("results/buffer.png", make))
    yield from odd_studies()
    for name, text in forged.attempts().items():
        put = putting("runs/.attempts/host-1-x/y/attempt.json", text.encode)
        yield Case(f"attempt {name}", ("run", "er-ace", *QUICK, "--on", "local"), ANY, put)
    odd = ("on", "workers", "out", "data-dir", "device", "track", "images", "checkpoint-every", "slurm", "save-network")
    values = ('"\\u0000"', '"~nosuchuser/x"', f'"{"x" * 5000}"', '"\\u001b[2J"', "-1", "1e999", "nan", "true", "[]",
              "{}", '["a", "b"]', "99999999999999999999", '"slurm"', '"ray:x:99999999"', '"ray:[::]:1"', '""',
              "1979-05-27", '"closed/x"', '{partition = "a b"}', '{setup = "\\n"}', '"wandb+wandb"',
              '"loop"')  # fmt: skip
    for name in odd:
        for value in values:
            put = putting("x.toml", f"{name} = {value}\n".encode)
            yield Case(f"{name} = {value[:30]}", ("run", "--config", "x.toml", *QUICK), ANY, put)


COMPARABLE = {
    "method": "er-ace", "regularizer": "none", "dataset": "cifar100", "stream": "class-incremental", "tasks": 10,
    "epochs": 1, "batch": 10, "replay_batch": 10, "validate": 0.0, "width": 64, "buffer": 500,
}  # fmt: skip
"""Settings that `cler frontier` takes results with."""


def counted_arithmetic() -> bytes:
    """What `cler frontier --arithmetic` keeps of runs with these settings."""
    from cler.config.making import make_settings
    from cler.frontier.arithmetic import Counts

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "counted.json"
        Counts(path).relative(make_settings(**COMPARABLE).to_dict())
        return path.read_bytes()


FOUR_TASKS = [*QUICK[: QUICK.index("--tasks")], "--tasks", "4", *QUICK[QUICK.index("--tasks") + 2 :]]
TUNE = ("tune", "er", *FOUR_TASKS, "--space", "lr=0.01|0.03", "--trials", "2", "--select-on", "whole-stream")


def odd_studies() -> Iterator[Case]:
    """Studies that lie, where one is resumed, and things that are no files in the place of theirs."""

    def begin(folder: Path) -> dict[str, Any]:
        furnish(folder)
        (folder / "tune").mkdir()
        found: dict[str, Any] = json.loads(in_peace("tune")[0]["/tune/study.json"])
        return found

    def lying(name: str) -> Callable[[Path], None]:
        def prepare(folder: Path) -> None:
            value = forged.studies(begin(folder))[name]
            (folder / "tune" / "study.json").write_text(json.dumps(value))

        return prepare

    def placed(name: str, kind: str) -> Callable[[Path], None]:
        def prepare(folder: Path) -> None:
            begin(folder)
            odd_things(folder / "tune" / name, folder / "precious")[kind]()

        return prepare

    trial = {"values": {"lr": 0.01}, "scores": [50.0, 40.0]}
    for name in forged.studies({"about": {}, "trials": [trial, trial], "under_way": []}):
        yield Case(f"study, {name}", WORK["tune"], ANY, lying(name))
    for name in ("study.json", "best.toml", "study.png"):
        for kind in odd_things(Path("x"), Path("precious")):
            yield Case(f"{kind} as {name}", WORK["tune"], ANY, placed(name, kind))


def encodings() -> Iterator[Case]:
    """Commands that print signs which an output may lack."""
    from hostile import put_results

    def prepare(folder: Path) -> None:
        furnish(folder)
        put_results(folder / "日本")

    commands = {
        "methods": ["methods"], "JSON": ["methods", "--json"], "help": ["--help"], "help of run": ["run", "--help"],
        "compare": ["compare", "日本"], "compare --json": ["compare", "日本", "--json"],
        "markdown": ["compare", "日本", "--markdown"], "report": ["report", "日本", "-o", "é"],
        "mistake": ["run", "é\udce9"], "no folder": ["compare", "caf\udce9"],
        "list": ["data", "list", "--data-dir", "é"], "run": ["run", "finetune", *QUICK, "--out", "läufe"],
    }  # fmt: skip
    for encoding in ("ascii", "latin-1", "cp437", "utf-8", "utf-16", "shift_jis", "koi8-r", "utf-7"):
        for name, arguments in commands.items():
            yield Case(f"{name} in {encoding}", tuple(arguments), ANY, prepare, encoding)


# -- families of processes ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """What is done with commands as processes in a folder: gives what is wrong."""

    name: str
    wrong: Callable[[Path], list[str]]

    def tried(self, box: Path) -> tuple[str, str]:
        """accepted, or found, with what is wrong."""
        folder = box / "case"
        folder.mkdir()
        try:
            wrong = self.wrong(folder)
        except subprocess.TimeoutExpired:
            wrong = ["hangs"]
        delete(folder)
        return ("found" if wrong else "accepted"), "; ".join(wrong)[-1500:]


NOISE = "import fuzz; fuzz.images.register(fuzz.images.InMemory(fuzz.noise()))"
"""A module that makes a dataset known to a process which has imported nothing."""
RUN = " ".join(["run er-ace --import noise.py", *QUICK])
STREAMS = {
    ">&-": 2, "2>&-": 0, "<&-": 0, ">&- 2>&-": 2, "<&- >&- 2>&-": 2, "1</dev/null": 1, "2</dev/null": 0,
    ">/dev/full": 1, "2>/dev/full": 0, "| head -c 1": 1, "2>&1 | head -c 1": 1,
}  # fmt: skip
"""What is done with the streams, and the code that the command ends with, if it is not 0."""


def in_shell(line: str, *codes: int, **variables: str) -> Callable[[Path], list[str]]:
    def wrong(folder: Path) -> list[str]:
        from hostile import put_results

        furnish(folder)
        put_results(folder / "é")
        (folder / "noise.py").write_text(NOISE)
        shell = ["bash", "-c", f"set -o pipefail; {line}"]
        environment = os.environ | {"PYTHONPATH": str(HERE)} | variables
        done = subprocess.run(shell, cwd=folder, capture_output=True, timeout=HANG, check=False, env=environment)
        out, err = (each.decode("utf-8", "replace") for each in (done.stdout, done.stderr))
        return judge(done.returncode, frozenset(codes), out, err)

    return wrong


def streams() -> Iterator[Trial]:
    """Streams that are closed, full, or not read to the end, and locales."""
    for command in ("methods", "compare é", RUN, "data check folder:images --data-dir d", "report é"):
        for how, code in STREAMS.items():
            yield Trial(
                f"{command.split()[0]} {how}", in_shell(f"cler {command} {how}", 0 if "|" in how else code, code)
            )
    for locale in ("C", "POSIX", "C.UTF-8"):
        for name, more in {
            "": {},
            " strict": {"PYTHONIOENCODING": "ascii:strict"},
            " coerced by nobody": {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        }.items():
            yield Trial(f"LC_ALL={locale}{name}", in_shell("cler compare é", 0, LC_ALL=locale, **more))
    larger = RUN.replace("--width 1", "--width 32")
    for blocks in (0, 1, 1000, 20_000):
        for command in (larger, f"learn images {' '.join(LEARN)}"):
            line = f"ulimit -f {blocks}; cler {command}"
            yield Trial(f"{command.split()[0]}, ulimit -f {blocks}", in_shell(line, *ANY))
    for name in ("TERM", "INT", "HUP"):
        for wait in (1, 2, 4):
            line = f"timeout --foreground --preserve-status -s {name} {wait} cler {RUN}"
            yield Trial(f"run, {name} after {wait} s", in_shell(line, 0, 128 + getattr(signal, f"SIG{name}")))


class Command:
    """A command in a process that is forked from this one; what it prints fits into a pipe, which no limit cuts."""

    def __init__(self, folder: Path, arguments: Sequence[str], limit: tuple[int, int] | None = None) -> None:
        self.code = 0
        self.outputs, printed = zip(*(os.pipe() for _ in range(2)), strict=True)
        reading, writing = os.pipe()
        self.process = os.fork()
        if not self.process:
            os.setpgid(0, 0)
            for number, output in enumerate(printed, 1):
                os.dup2(output, number)
            os.chdir(folder)
            self._become(arguments, limit, writing)
        for each in (writing, *printed):
            os.close(each)
        os.read(reading, 1)  # until it begins
        os.close(reading)

    def _become(self, arguments: Sequence[str], limit: tuple[int, int] | None, writing: int) -> None:
        code: Any = 1
        try:
            from cler.cli import main

            sys.stdout, sys.stderr = (
                io.TextIOWrapper(io.FileIO(number, "w", closefd=False), "utf-8") for number in (1, 2)
            )
            sys.argv = ["cler", *arguments]
            signal.signal(signal.SIGINT, signal.default_int_handler)  # which a job in the background ignores
            if limit is not None:
                resource.setrlimit(limit[0], (limit[1], resource.getrlimit(limit[0])[1]))
            os.write(writing, b"x")
            os.close(writing)
            main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.process, number)

    def wrong(self, *codes: int) -> list[str]:
        """Wait for its end, and judge it."""
        end = time.monotonic() + HANG
        while not (ended := os.waitpid(self.process, os.WNOHANG))[0]:
            if time.monotonic() > end:
                self.send(signal.SIGKILL)
                os.waitpid(self.process, 0)
                return ["hangs"]
            time.sleep(0.002)
        told = []
        for output in self.outputs:
            with open(output, "rb") as file:
                told.append(file.read().decode("utf-8", "replace"))
        self.code = os.waitstatus_to_exitcode(ended[1])
        return judge(self.code, frozenset(codes), *told) + self._left_behind()

    def _left_behind(self) -> list[str]:
        """Processes that it has started and that stay, which are ended here."""
        end = time.monotonic() + PARTING
        while (left := list(_processes_of(self.process))) and time.monotonic() < end:
            time.sleep(0.05)
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        return [f"left {len(left)} processes"] if left else []


def _processes_of(group: int) -> Iterator[int]:
    """The processes of a group that have not ended."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, found = path.read_text("utf-8", "replace").rpartition(")")[2].split()[:3]
            if int(found) == group and state not in "ZX":
                yield int(path.parent.name)


WORK = {
    "run": ("run", "er-ace", *QUICK, "--epochs", "3", "--checkpoint-every", "0.05", "--seeds", "2"),
    "run that keeps its network": ("run", "er", *QUICK, "--checkpoint-every", "0.05", "--save-network"),
    "learn": ("learn", "images", *LEARN, "--save-every", "0.05"),
    "run on a folder": ("run", "er-ace", *other_dataset(QUICK), *ON_IMAGES, "--checkpoint-every", "0.05"),
    "tune": (*TUNE, "--validate", "0.3", "--checkpoint-every", "0.05"),
}
"""Commands that leave something which has to be the same whatever happened."""


@cache
def in_peace(work: str) -> tuple[dict[str, Any], float]:
    """What a command leaves that nothing happens to, and how long it takes."""
    with tempfile.TemporaryDirectory() as box:
        folder = Path(box) / "case"
        folder.mkdir()
        furnish(folder)
        began = time.monotonic()
        wrong = Command(folder, WORK[work]).wrong(0)
        seconds = time.monotonic() - began
        assert not wrong, wrong
        left = ends(folder)
        delete(folder)
    return left, seconds


def ends(folder: Path) -> dict[str, Any]:
    """What runs and learners have come to, but for the time that it took."""
    left: dict[str, Any] = {}
    for path in folder.glob("runs/**/result.json"):
        result = json.loads(path.read_text())
        left[str(path.parent)[len(str(folder)) :]] = {
            name: value for name, value in result.items() if name not in ("seconds", "environment")
        }
    for path in folder.glob("tune/*.[jt][so][om]*"):  # study.json and best.toml
        left[str(path)[len(str(folder)) :]] = path.read_text()
    for name in ("network", "learner"):
        for path in folder.rglob(f"{name}.safetensors"):
            left[str(path)[len(str(folder)) :]] = hash(path.read_bytes())
    return left


def ends_well(folder: Path, work: str, *, killed: bool = False) -> list[str]:
    """What is wrong when the command is given once more: it has to end as if nothing had happened.

    Nobody asks any more about the lock of a run that was finished when its process was killed, so it may stay.
    """
    wrong = Command(folder, WORK[work]).wrong(0)
    wrong += [] if ends(folder) == in_peace(work)[0] else ["it ended differently"]
    may_stay = {".cler", *((".lock", ".owner") if killed else ())}
    return wrong + [f"left {path.name}" for path in folder.rglob(".*") if path.name not in may_stay]


def signals() -> Iterator[Trial]:
    """Signals at various moments of a command, once and twice; afterwards the command ends as in peace.

    Before training begins SIGTERM ends a process as it always does, which is the same code to a shell.
    """
    codes = {
        signal.SIGTERM: (143, -signal.SIGTERM), signal.SIGINT: (130,), signal.SIGHUP: (-signal.SIGHUP,),
        signal.SIGKILL: (-signal.SIGKILL,),
    }  # fmt: skip

    def interrupted(work: str, numbers: Sequence[signal.Signals], share: float) -> Callable[[Path], list[str]]:
        def wrong(folder: Path) -> list[str]:
            wait = share * in_peace(work)[1]
            furnish(folder)
            command = Command(folder, WORK[work])
            for number in numbers:
                time.sleep(wait)
                command.send(number)
                wait = 0.01
            allowed = [code for number in numbers for code in codes[number]]
            wrong = command.wrong(0, *allowed)
            return wrong + ends_well(folder, work, killed=command.code < 0)

        return wrong

    twice = ((signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGTERM))
    moments = {**{(number,): range(5, 100, 19) for number in codes}, **dict.fromkeys(twice, range(20, 100, 30))}
    for work in WORK:
        for numbers, shares in moments.items():
            for share in shares:
                name = f"{work}, {' and '.join(each.name for each in numbers)} after {share}%"
                yield Trial(name, interrupted(work, numbers, share / 100))


def watching() -> Iterator[Trial]:
    """Signals to a report that is written again and again, and to processes that decode; none of them stays."""
    codes = {signal.SIGINT: (130,), signal.SIGTERM: (143, -signal.SIGTERM), signal.SIGKILL: (-signal.SIGKILL,)}

    def watched(numbers: Sequence[signal.Signals], wait: float) -> Callable[[Path], list[str]]:
        def wrong(folder: Path) -> list[str]:
            stopped_run(folder)
            command = Command(folder, ("report", "runs", "results", "later", "--watch", "--every", "0.1"))
            for number in numbers:
                time.sleep(wait)
                command.send(number)
            wrong = command.wrong(*(code for number in numbers for code in (0, *codes[number])))
            return wrong + [f"left {path.name}" for path in folder.rglob("*.tmp") if signal.SIGKILL not in numbers]

        return wrong

    def decoded(number: signal.Signals, wait: float) -> Callable[[Path], list[str]]:
        def wrong(folder: Path) -> list[str]:
            from cler.data import decoding

            decoding.ALONE = 100, 0
            furnish(folder)
            for each in range(400):
                (folder / "images" / "a" / f"more-{each}.png").write_bytes(forged.saved("PNG", (200, 200)))
            command = Command(folder, TRAINED["check"])
            time.sleep(wait)
            command.send(number)
            wrong = command.wrong(0, *codes[number], 1)
            return wrong + Command(folder, TRAINED["run"]).wrong(0)

        return wrong

    for wait in (0.05, 0.1, 0.5, 1.5):
        for number in codes:
            yield Trial(f"watch, {number.name} after {wait} s", watched((number,), wait))
            yield Trial(f"decode, {number.name} after {wait} s", decoded(number, wait))
        yield Trial(f"watch, twice after {wait} s", watched((signal.SIGINT, signal.SIGINT), wait))


def limits() -> Iterator[Trial]:
    """Too few file descriptors, files that may not grow, too little memory; afterwards the command ends as in peace."""
    kinds = {
        "file descriptors": (resource.RLIMIT_NOFILE, (4, 8, 10, 12, 16, 24)),
        "bytes in a file": (resource.RLIMIT_FSIZE, (0, 1000, 5000, 20_000, 100_000)),
    }

    def limited(work: str, kind: int, limit: int) -> Callable[[Path], list[str]]:
        def wrong(folder: Path) -> list[str]:
            furnish(folder)
            return Command(folder, WORK[work], (kind, limit)).wrong(*ANY) + ends_well(folder, work)

        return wrong

    for work in WORK:
        for words, (kind, several) in kinds.items():
            yield from (Trial(f"{work}, {limit} {words}", limited(work, kind, limit)) for limit in several)


def pairs() -> Iterator[Trial]:
    """Two processes with the same command, the second a little later; a learner, or a study, belongs to one of them."""

    def both(work: str, share: float) -> Callable[[Path], list[str]]:
        def wrong(folder: Path) -> list[str]:
            wait = share * in_peace(work)[1]
            furnish(folder)
            first = Command(folder, WORK[work])
            time.sleep(wait)
            second = Command(folder, WORK[work])
            codes = (0, 2) if work in ("learn", "tune") else (0,)
            return first.wrong(*codes) + second.wrong(*codes) + ends_well(folder, work)

        return wrong

    for work in WORK:
        yield from (
            Trial(f"two of {work}, {twelfths} twelfths apart", both(work, twelfths / 12)) for twelfths in range(12)
        )


FAMILIES: dict[str, Callable[[], Iterator[Case | Trial]]] = {
    each.__name__: each
    for each in (
        streams,
        signals,
        watching,
        datasets,
        records,
        paths,
        files,
        places,
        owners,
        strings,
        answers,
        archives,
        encodings,
        limits,
        pairs,
    )
}


def tried(family: str, only: str | None) -> Iterator[tuple[str, str, str]]:
    """Try the cases of a family, one after the other, in children that have imported everything."""
    import torch
    import torch._dynamo  # makes a folder when it is imported, so before a child does

    with suppress(ImportError):  # what these keep of fonts, and of servers, is made before a child begins
        import datasets  # noqa: F401
        import matplotlib.font_manager  # noqa: F401

    import cler.cli
    import cler.learner.watch
    import cler.report.page
    import cler.runs.execute
    import fuzz
    from cler.data import download, images

    fuzz.HANG = 2 * HANG  # a case with several commands watches over them itself
    download.fetch.__kwdefaults__.update(wait=0.0, patience=2.0, attempts=2)  # type: ignore[attr-defined]
    torch.set_num_threads(1)
    images.register(images.InMemory(fuzz.noise()))
    cases = [case for case in FAMILIES[family]() if only in (None, case.name)]

    def prepare(box: Path) -> Callable[[int], tuple[str, str]]:
        guard = fuzz.Guard()

        def try_number(number: int) -> tuple[str, str]:
            case = cases[number]
            return case.tried(box) if isinstance(case, Trial) else try_case(case, box, guard, cler.cli.main)

        return try_number

    for case, (outcome, said) in zip(cases, fuzz.in_children(prepare, len(cases)), strict=True):
        yield case.name, outcome, said


def try_case(case: Case, box: Path, guard: Any, main: Callable[[], None]) -> tuple[str, str]:
    """accepted or refused, with what was said, or found, with what is wrong."""
    folder = box / "case"
    folder.mkdir()
    os.chdir(folder)
    (box / "precious").write_text("precious")
    (folder / "precious").write_text("precious")
    case.prepare(folder)
    before = {path for path in folder.rglob("*") if path.name.endswith(".tmp")}
    outputs = [open(box / name, "wb+", 0) for name in ("out", "err")]  # noqa: SIM115 - closed below
    saved = [os.dup(number) for number in (1, 2)]
    streams = sys.stdout, sys.stderr, sys.argv
    for number, output in enumerate(outputs, 1):
        os.dup2(output.fileno(), number)
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(io.FileIO(number, "w", closefd=False), case.encoding, "strict") for number in (1, 2)
    )
    sys.argv = ["cler", *case.arguments]
    code: int = 0
    trace = ""
    try:
        with guard.on(box):
            main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except BaseException:
        trace = traceback.format_exc()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    sys.stdout, sys.stderr, sys.argv = streams
    for number, old in enumerate(saved, 1):
        os.dup2(old, number)
        os.close(old)
    told = []
    for output in outputs:
        output.seek(0)
        told.append(output.read().decode(case.encoding, "replace"))
        output.close()
    wrong = judge(code, case.codes, *told)
    wrong += [trace] if trace else []
    given = ("/dev/null", *(each for each in case.arguments if each.startswith("/")))
    touched = [note.partition(": ")[2] for note in guard.noted if "outside" in note]
    if any(each.startswith("hf:") for each in case.arguments):  # another package has a folder of its own
        given += (str(Path.home() / ".cache" / "huggingface"),)
    if case.arguments[:1] == ("frontier",):  # which writes beside the file that it is given
        given += tuple(os.path.dirname(each) for each in given)
    wrong += [f"touched {path}" for path in touched if not any(path in each or each in path for each in given)]
    wrong += ["the precious file was changed"] if (folder / "precious").read_text() != "precious" else []
    wrong += [f"left {path.name}" for path in folder.rglob("*.tmp") if path not in before]
    os.chdir(box)
    delete(folder)
    left = {path.name for path in box.iterdir()} - {"precious", "out", "err", "output"}
    wrong += [f"left {left} beside its folder"] if left else []
    return ("found", "; ".join(wrong)[-1500:]) if wrong else ("refused" if code else "accepted", told[1][-300:])


def interrupted_import(err: str) -> bool:
    """Whether Ctrl-C came while Python imported the command, none of which had run: a traceback of Python's own."""
    return "from cler.cli import main" in err and "in main" not in err and err.rstrip().endswith("KeyboardInterrupt")


def judge(code: int, codes: frozenset[int], out: str, err: str) -> list[str]:
    """What is wrong with the end of a command and with what it said."""
    wrong = [] if code in codes else [f"ended with {code}: {err[-500:]!r}"]
    if "Traceback (most recent" in err + out and not interrupted_import(err):
        wrong.append(f"a traceback: {err[-800:]}")
    for text in (out, err):
        odd = {
            sign
            for sign in text.replace("\n", "").replace("\ufeff", "")
            if not (sign.isprintable() or sign == "\ufffd")
        }
        wrong += [f"printed {sorted(odd)!r}"] if odd else []
    last = err.strip().rpartition("\n")[2]
    if code == 2 and not (last.startswith("cler: ") or not last):
        wrong.append(f"no line of ours at the end: {last!r}")
    return wrong


def delete(folder: Path) -> None:
    """Delete a folder, whatever its files allow."""
    for path in (folder, *folder.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)
    for path in [path for path in folder.rglob("*") if path.is_dir() and not path.is_symlink()]:
        path.chmod(0o700)
    shutil.rmtree(folder)


# -- the environment ---------------------------------------------------------------------------------------------------


@dataclass
class Environment:
    """The wheel in a fresh environment, below a folder that an ordinary user may read, and one that it may write to."""

    root: Path
    user: int | None = None
    variables: dict[str, str] = field(default_factory=dict)

    def make(self) -> None:
        self.root.chmod(0o755)
        for name in ("home", "tmp"):
            (self.root / name).mkdir()
        if os.getuid() == 0:
            self.user = pwd.getpwnam("nobody").pw_uid
            for name in ("home", "tmp"):
                os.chown(self.root / name, self.user, -1)
        shutil.copytree(HERE, self.root / "tools", ignore=shutil.ignore_patterns("__pycache__", "*.log"))
        shutil.copy(HERE.parent / "tests" / "hostile.py", self.root / "tools")
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "wheel", "--no-deps", "-w", self.root, HERE.parent], check=True)
        (wheel,) = self.root.glob("*.whl")
        venv = self.root / "venv"
        subprocess.run([self._python(), "-m", "venv", "--without-pip", venv], check=True)
        (site,) = venv.glob("lib/python*/site-packages")
        (site / "dependencies.pth").write_text(
            "".join(f"{path}\n" for path in sys.path if path.endswith("site-packages"))
        )
        subprocess.run(
            [*pip, "--python", venv / "bin" / "python", "install", "--no-deps", "--no-index", wheel], check=True
        )
        self.variables |= {
            "HOME": str(self.root / "home"), "TMPDIR": str(self.root / "tmp"), "PATH": f"{venv / 'bin'}:/usr/bin:/bin",
            "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "120", "LANG": "C.UTF-8", "GIT_CONFIG_GLOBAL": "/dev/null",
        }  # fmt: skip

    def _python(self) -> str:
        """The interpreter, or a copy of it where the ordinary user may not use it."""
        python = os.path.realpath(sys.executable)
        with suppress(PermissionError):
            trial = [python, "-c", "import json, ctypes"]
            if subprocess.run(trial, env={}, capture_output=True, check=False, **self.as_user()).returncode == 0:
                return python
        skipped = shutil.ignore_patterns("test", "tests", "__pycache__", "site-packages", "idlelib", "*.a")
        shutil.copytree(sys.base_prefix, self.root / "python", symlinks=True, ignore=skipped)
        self.variables["LD_LIBRARY_PATH"] = str(self.root / "python" / "lib")
        return str(self.root / "python" / "bin" / Path(python).name)

    def as_user(self) -> dict[str, Any]:
        """How a process is begun as the ordinary user."""
        user = {"user": self.user, "group": pwd.getpwuid(self.user).pw_gid, "extra_groups": []} if self.user else {}
        return user | {"cwd": self.root / "tmp"}

    def attack(self, family: str, only: str | None) -> Iterator[list[str]]:
        """The cases of a family, each as its name, what came of it, and what was said."""
        command = [self.root / "venv" / "bin" / "python", self.root / "tools" / "attack.py", "--inside", family]
        with tempfile.TemporaryFile("w+") as errors, subprocess.Popen(
            command + (["--only", only] if only else []), stdout=subprocess.PIPE, stderr=errors, text=True,
            env=self.variables, **self.as_user(),
        ) as process:  # fmt: skip
            assert process.stdout is not None
            yield from map(json.loads, process.stdout)
            if process.wait():
                errors.seek(0)
                yield ["the family", "found", errors.read()[-1500:]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", choices=FAMILIES, help="only this family")
    parser.add_argument("--only", help="only the case of this name")
    parser.add_argument("--log", type=Path, help="file that the lines go to, too")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        for told in tried(options.inside, options.only):
            print(json.dumps(told), flush=True)
        return
    log = open(options.log or os.devnull, "w")  # noqa: SIM115 - to the end

    def tell(line: str) -> None:
        for file in (sys.stdout, log):
            print(line, file=file, flush=True)

    with tempfile.TemporaryDirectory(prefix="cler-attack-") as folder, ThreadPoolExecutor(2) as threads:
        environment = Environment(Path(folder))
        environment.make()

        def attack(family: str) -> Counter[str]:
            tally = Counter[str]()
            for name, outcome, said in environment.attack(family, options.only):
                tally[outcome] += 1
                if outcome == "found":
                    tell(f"{family}, {name}: {said}")
            tell(in_words(family, tally))
            return tally

        families = [options.family] if options.family else list(FAMILIES)
        tallies = sum(threads.map(attack, families), Counter[str]())
    tell(in_words("all", tallies))
    sys.exit(1 if tallies["found"] else 0)


if __name__ == "__main__":
    main()
