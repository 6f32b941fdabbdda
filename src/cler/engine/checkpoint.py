"""Checkpoints of a run: one file to resume from, and the one before it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cler.engine import tensorfile
from cler.engine.run import Curves, Run
from cler.engine.state import State
from cler.engine.tensorfile import checksum, on_host, pieces
from cler.errors import DamagedError, UsageError
from cler.files import replacing, writing

FORMAT = 1
NAME = "checkpoint.safetensors"
PREVIOUS = "checkpoint.previous.safetensors"
DAMAGED = "checkpoint.damaged-"
"""Name of damaged checkpoints, followed by a number; they are kept until the run ends."""


@dataclass(frozen=True)
class Checkpoint:
    """The complete state of a run at some moment."""

    about: dict[str, Any]
    """Which run this is, in plain values."""
    state: State
    accuracy: dict[str, list[list[float]]]
    curves: Curves = field(default_factory=dict)

    @property
    def position(self) -> tuple[Any, Any]:
        """The task, and how many of its steps had been taken."""
        return self.state.numbers["run.task"], self.state.numbers["run.taken"]


def take(run: Run, about: dict[str, Any]) -> Checkpoint:
    """The run as it is now, copied to the host."""
    state = run.state()
    tensors = {name: tensor.detach().to("cpu", copy=True) for name, tensor in state.tensors.items()}
    accuracy, curves = ({name: list(rows) for name, rows in each.items()} for each in (run.accuracy, run.curves))
    return Checkpoint(about, State(tensors, state.numbers), accuracy, curves)


def write(folder: Path, checkpoint: Checkpoint, check: Callable[[], None] = lambda: None) -> None:
    """Write it as the newest checkpoint in the folder; the one before it is kept as the previous one.

    If `check` raises when all is written, that one stays the newest.
    """
    tensors = on_host(checkpoint.state.tensors)
    header = json.dumps(
        {
            "format": FORMAT,
            "about": checkpoint.about,
            "numbers": checkpoint.state.numbers,
            "accuracy": checkpoint.accuracy,
            "curves": checkpoint.curves,
        }
    )
    metadata = {"header": header, "checksum": checksum(header, tensors)}
    with replacing(folder / NAME, previous=folder / PREVIOUS, check=check) as file:
        file.writelines(pieces(tensors, metadata))


def find(folder: Path, message: Callable[[str], None]) -> Checkpoint | None:
    """The newest whole checkpoint in a folder; damaged ones are set aside, with a message.

    One that cannot be read may be whole: a `UsageError` says why it cannot, and everything stays where it is.
    """
    damaged = []
    for name in (NAME, PREVIOUS):
        try:
            found = _read(folder / name)
        except FileNotFoundError:
            continue
        except DamagedError as error:
            damaged.append(f"{folder / name} is damaged ({error}) and set aside as {_set_aside(folder / name)}")
            continue
        if damaged:
            message(f"{damaged[0]}; resuming from the checkpoint before it")
        return found
    if damaged:
        message(f"{', '.join(damaged)}, and there is no other; starting over")
    return None


def is_in(folder: Path) -> bool:
    """Whether there is a checkpoint in a folder, whole or not."""
    return any((folder / name).exists() for name in (NAME, PREVIOUS))


def delete(folder: Path) -> None:
    """Delete the checkpoints in a folder, also those that were set aside."""
    for path in (folder / NAME, folder / PREVIOUS, *folder.glob(f"{DAMAGED}*")):
        path.unlink(missing_ok=True)


def _set_aside(path: Path) -> str:
    """Rename a damaged file to a name that is free; returns the name."""
    number = 1
    while os.path.lexists(path.with_name(f"{DAMAGED}{number}")):
        number += 1
    with writing(path):
        return path.rename(path.with_name(f"{DAMAGED}{number}")).name


def _read(path: Path) -> Checkpoint:
    try:
        tensors, metadata = tensorfile.read(path, follow=False)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}; fix that, or delete the run's folder to start over"
        ) from None
    header = metadata.get("header", "")
    if metadata.get("checksum") != checksum(header, tensors):
        raise DamagedError("its checksum is wrong")
    try:
        value = json.loads(header)
        if value["format"] <= FORMAT:
            state, curves = State(tensors, dict(value["numbers"])), dict(value.get("curves", {}))
            return Checkpoint(dict(value["about"]), state, dict(value["accuracy"]), curves)
    except (LookupError, RecursionError, TypeError, ValueError):
        raise DamagedError("its header is not as it should be") from None
    raise UsageError(f"{path} was written by a newer cler: update cler, or delete the run's folder to start over")
