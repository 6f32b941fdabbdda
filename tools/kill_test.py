"""Kill `cler run` with SIGKILL at random moments, give the same command again, and compare with runs left in peace.

python tools/kill_test.py --kills 200 --log tools/kill_test.log

Each run is one method × regularizer, of which all get their turn, on a small set of random images. Its end has to be
the same to the last bit: all weights, memories, optimizer states and generators, the result and the log. Each command
is a process of its own, forked from this one to save the time of importing torch.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch._dynamo

import cler.cli
import cler.report.progress
import cler.report.terminal  # this and those above: what every command needs is imported once, before forking
import cler.runs.compare
import cler.runs.trainers
from cler.data import images
from cler.engine.events import Evaluated, Event
from cler.methods import METHODS
from cler.regularizers import REGULARIZERS
from cler.runs.record import Recorder

COMMON = "--dataset noise --tasks 2 --width 2 --batch 4 --lr 0.003 --device cpu --workers 1".split()  # noqa: SIM905
MOST_KILLS = 12
"""After so many a run is left in peace."""
LOCK = (".lock", ".owner")
"""What a process leaves that is killed when its run is finished: nobody asks about it any more."""


def noise() -> images.ImageData:
    """Random images of four classes."""
    pixels = torch.randint(256, (240, 3, 8, 8), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    labels, few = torch.arange(4).repeat(60), slice(40)
    return images.ImageData("noise", pixels, labels, pixels[few], labels[few], tuple("abcd"), (0.5,) * 3, (0.3,) * 3)


class DigestRecorder(Recorder):
    """Also leaves a digest of all that a run was at its end."""

    def hear(self, event: Event) -> None:
        run = self.runs[event.run] if isinstance(event, Evaluated) else None
        if run is not None and run.complete:
            digest = hashlib.sha256()
            for name, tensor in sorted(run.state().tensors.items()):
                digest.update(name.encode())
                digest.update(tensor.detach().contiguous().flatten().view(torch.uint8).numpy().data)
            (self.jobs[run.name].folder / "digest").write_text(digest.hexdigest())
        super().hear(event)


def start(arguments: list[str], folder: Path) -> int:
    """Begin a command in a process of its own, its output in a file."""
    if process := os.fork():
        return process
    os.setsid()
    opened = os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(opened, number)
    sys.argv = ["cler", *arguments]
    code = 1
    try:
        cler.cli.main()
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def was_killed(process: int, seconds: float) -> bool:
    """Kill a process after some time, unless it has ended by then."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, _ = os.waitpid(process, os.WNOHANG)
        if ended:
            return False
        time.sleep(0.002)
    os.kill(process, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL


def outcome(folder: Path) -> dict[str, Any]:
    """What a run has left, but for times; one that diverges has to do so again."""
    (run,) = folder.glob("runs/*/seed-*")
    result = json.loads((run / "result.json").read_text())
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    log = [line for line in log if line["event"] != "progress"]  # losses since the line before, or since a resume
    diverged = ("the loss was not finite", "the outputs were not numbers")
    assert result["complete"] or result["failure"].startswith(diverged), (folder / "output").read_text()
    # that a run has diverged is noticed a few times a second, after more steps or fewer
    passed_over = {"seconds", "environment"} | (set() if result["complete"] else {"counts"})
    return {
        "digest": (run / "digest").read_text() if result["complete"] else None,
        "result": {name: value for name, value in result.items() if name not in passed_over},
        "log": [{name: value for name, value in line.items() if name != "time"} for line in log],
        "files": sorted(path.name for path in run.iterdir() if path.name not in LOCK),
    }


def kill_one_run(method: str, regularizer: str, draw: random.Random) -> tuple[str, int, int, bool]:
    """One run, in peace and with kills: a line, how many kills, how many had a checkpoint, whether both ended alike."""
    optimizer, every = draw.choice(["sgd", "sgd", "adam", "adamw"]), draw.choice(["0", "0.02", "0.02", "0.1"])
    command = f"run {method} --regularizer {regularizer} --optimizer {optimizer} --seed {draw.randrange(1000)}".split()
    command += COMMON + (["--buffer", "20", "--replay-batch", "4"] if METHODS[method].replays else [])
    command += ["--set", "inversion_steps=20", "--set", "refinement_epochs=1"] if method == "r-dfcil" else []
    with tempfile.TemporaryDirectory() as name:
        peace, war = Path(name, "peace"), Path(name, "war")
        peace.mkdir()
        war.mkdir()
        began = time.monotonic()
        assert not was_killed(start([*command, "--out", str(peace / "runs")], peace), 600)
        seconds = time.monotonic() - began
        command += ["--out", str(war / "runs"), "--checkpoint-every", every]
        kills = 0
        while was_killed(start(command, war), 600 if kills == MOST_KILLS else draw.uniform(0.2 * seconds, seconds)):
            kills += 1
        went_on = re.findall(r"resuming from task (\d+), step (\d+)", (war / "output").read_text())
        expected, found = outcome(peace), outcome(war)
        differing = [each for each in expected if expected[each] != found[each]]
    positions = " ".join(f"{task}:{step}" for task, step in went_on) or "the beginning"
    line = f"{method}+{regularizer}, {optimizer}, every {every} s: {kills} kills, went on from {positions}: "
    line += f"DIFFERENT {', '.join(differing)}" if differing else "same"
    return line, kills, len(went_on), not differing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200, help="kills after a first checkpoint, at least")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn")
    parser.add_argument("--log", type=Path, help="file that the lines go to, too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    images.register(images.InMemory(noise()))
    cler.runs.trainers.Recorder = DigestRecorder  # type: ignore[misc]
    draw, lines, kills, kept, different = random.Random(options.seed), [], 0, 0, 0
    pairs = [(method, regularizer) for method in METHODS for regularizer in ("none", *REGULARIZERS)]
    draw.shuffle(pairs)
    for pair in itertools.cycle(pairs):
        if kept >= options.kills and len(lines) >= len(pairs):
            break
        line, more, went_on, alike = kill_one_run(*pair, draw)
        kills, kept, different = kills + more, kept + went_on, different + (not alike)
        lines.append(line)
        print(line, flush=True)
        summary = f"{kills} kills in {len(lines)} runs, {kept} with a checkpoint to go on from; {different} runs differ"
        if options.log:
            options.log.write_text("\n".join([*lines, summary]) + "\n")
    print(summary)
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
