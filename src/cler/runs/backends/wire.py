"""Jobs and events as plain values, which any machine can read: nothing is pickled."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from cler.config.machine import Machine
from cler.config.schema import settings_of
from cler.config.settings import Settings
from cler.engine import RunName
from cler.engine.events import Event
from cler.runs.custom import Code
from cler.runs.jobs import Job
from cler.runs.machine import find_device

_OF_A_JOB = tuple(
    each.name for each in dataclasses.fields(Job) if each.name not in ("settings", "folder", "probe", "unaided")
)
"""What a job has in plain values already."""
_OF_THE_DRIVER = frozenset({"on", "slurm", "give_up_after", "workers", "out", "until_task"})
"""Settings of the machine that only the driver needs, or that come with the jobs."""
_OF_A_MACHINE = tuple(name for name in settings_of(Machine) if name not in _OF_THE_DRIVER)


@dataclass(frozen=True)
class Begun:
    """A machine has begun to make an attempt."""

    host: str


@dataclass(frozen=True)
class Ended:
    """A machine has ended an attempt, finished or not."""

    how: Literal["done", "stopped", "mistake", "error"]
    why: str = ""


Word = Event | Begun | Ended
"""What a driver hears from an attempt."""
_KINDS: dict[str, Any] = {kind.__name__: kind for kind in (*Event.__subclasses__(), Begun, Ended)}


def plain_job(job: Job) -> dict[str, Any]:
    """A job in plain values; its probe, which is code, stays here."""
    return {
        "settings": job.settings.to_dict(),
        "folder": str(job.folder.absolute()),
        "along": plain_job(job.unaided) if job.unaided else None,
        **{name: getattr(job, name) for name in _OF_A_JOB},
    }


def read_job(values: dict[str, Any]) -> Job:
    """The job that plain values stand for; what its settings name has to be registered by now."""
    declared = settings_of(Settings)
    settings = {name: value for name, value in values["settings"].items() if name in declared}
    options = {name: value for name, value in values["settings"].items() if name not in declared}
    rest = {name: values[name] for name in _OF_A_JOB}
    rest["unaided"] = read_job(values["along"]) if values["along"] else None
    return Job(Settings(**settings, options=options), folder=Path(values["folder"]), **rest)


def plain_machine(machine: Machine) -> dict[str, Any]:
    """How to train, in plain values; what only the driver has to know stays here."""
    values = {name: getattr(machine, name) for name in _OF_A_MACHINE}
    return values | {"data_dir": str(machine.data_dir.absolute()) if machine.data_dir else None}


def read_machine(values: dict[str, Any]) -> Machine:
    """How to train on this machine, which has to have the device, but not the trackers: these never end training."""
    machine = Machine(**{name: values[name] for name in _OF_A_MACHINE if name != "track"})
    object.__setattr__(machine, "track", values["track"])
    find_device(machine.device)
    return machine


def plain_code(code: Code) -> dict[str, Any]:
    """What has to be imported, in plain values."""
    return {"modules": list(code.modules), "given": [list(each) for each in code.given]}


def read_code(values: dict[str, Any]) -> Code:
    """The code that plain values stand for."""
    given = [(kind, name, module, path) for kind, name, module, path in values["given"]]
    return Code(tuple(values["modules"]), tuple(given), ())


def line_of(word: Word, names: Sequence[RunName]) -> str:
    """A word as a line of JSON; runs are given by their number among those of the attempt."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(word):
        value = getattr(word, field.name)
        if field.name == "run":
            value = names.index(value)
        elif field.name == "runs":
            value = [names.index(each) for each in value]
        values[field.name] = value
    return json.dumps([type(word).__name__, values], ensure_ascii=False) + "\n"


def read_line(line: str, names: Sequence[RunName]) -> Word | None:
    """The word in a line; None for an incomplete line, as a process leaves it when it is killed."""
    try:
        kind, values = json.loads(line)
        if "run" in values:
            values["run"] = names[values["run"]]
        if "runs" in values:
            values["runs"] = tuple(names[each] for each in values["runs"])
            values["sums"] = tuple({term: tuple(sums) for term, sums in each.items()} for each in values["sums"])
        if "schedule" in values:
            values["schedule"] = tuple(values["schedule"])
        if isinstance(values.get("accuracy"), dict):
            values["accuracy"] = {name: tuple(row) for name, row in values["accuracy"].items()}
        word: Word = _KINDS[kind](**values)
        hints = get_type_hints(_KINDS[kind])
        return word if all(_fits(getattr(word, name), hint) for name, hint in hints.items()) else None
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value has the declared type of an event's field; whole numbers have to fit into 64 bits."""
    kind, of = get_origin(hint), get_args(hint)
    if hint is Any or kind is Literal:
        return hint is Any or value in of
    if kind in (Union, UnionType):
        return any(_fits(value, each) for each in of)
    if kind is tuple and of[-1] is not ...:
        return isinstance(value, tuple) and len(value) == len(of) and all(map(_fits, value, of))
    if kind is tuple:
        return isinstance(value, tuple) and all(_fits(each, of[0]) for each in value)
    if kind is dict:
        return isinstance(value, dict) and all(_fits(each, of[1]) for each in value.values())
    if hint in (int, float):
        return type(value) is int and abs(value) < 2**63 if hint is int or type(value) is int else type(value) is float
    return isinstance(value, hint)
