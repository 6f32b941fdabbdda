"""Where runs are trained, as a person says it: on this machine, by SLURM, by Ray."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cler.config.registry import BACKENDS
from cler.config.schema import check_all, setting, settings_of, with_underscores
from cler.errors import UsageError, unknown
from cler.files import as_path, read_text

_ADDRESS = re.compile(r"(ray://)?[\w.-]+:\d{1,5}|(ray://)?\[[0-9a-fA-F:]+\]:\d{1,5}")
_TIME = re.compile(r"(?:(\d{1,4})-)?(\d{1,4}):(\d\d)(?::(\d\d))?")


def read_on(value: Any) -> str:
    """A backend, such as 'slurm', or 'ray:HOST:PORT' with the host and port of a cluster that is running."""
    with_address = [f"{name}:HOST:PORT" for name, each in BACKENDS.items() if each.takes_address]
    if not isinstance(value, str):
        raise ValueError(f"must be {', '.join(BACKENDS)} or {' or '.join(with_address)}, not {value!r}")
    name, colon, address = value.partition(":")
    if name not in BACKENDS:
        raise unknown("backend", value, [*BACKENDS, *with_address])
    if colon and not BACKENDS[name].takes_address:
        raise ValueError(f"must be {name} alone, not {value!r}: only {' or '.join(with_address)} has an address")
    if colon and not _ADDRESS.fullmatch(address):
        raise ValueError(f"must be {name}:HOST:PORT, or {name} alone for a cluster of its own, not {value!r}")
    return value


def read_minutes(value: Any) -> int:
    """Minutes, from a number of them or a string as SLURM reads it: 'MM:SS', 'HH:MM:SS', 'D-HH:MM', 'D-HH:MM:SS'."""
    if isinstance(value, int) and not isinstance(value, bool):
        minutes = value
    elif isinstance(value, str) and (found := _TIME.fullmatch(value)):
        days, first, second, third = found.groups()
        hours, rest, seconds = map(int, (first, second, third or 0) if days or third else (0, first, second))
        minutes = int(days or 0) * 24 * 60 + hours * 60 + rest + bool(seconds)
    else:
        raise ValueError(f"must be a number of minutes, or HH:MM:SS, or D-HH:MM:SS, not {value!r}")
    if not 2 <= minutes <= 366 * 24 * 60:
        raise ValueError(f"must be from 2 minutes to a year, not {value!r}")
    return minutes


def read_word(value: Any) -> str:
    """A string that can stand in a line of a script for `sbatch`."""
    if not isinstance(value, str) or not re.fullmatch(r"[\w.,:&|*()\[\]=/+@-]+", value):
        raise ValueError(f"must be a string without spaces or quotes, not {value!r}")
    return value


@dataclass(frozen=True, kw_only=True)
class Slurm:
    """How SLURM is asked for the machine that trains a bundle: the table [slurm] of a settings file."""

    partition: str | None = setting(None, "The partition.", role="machine", read=read_word)
    account: str | None = setting(None, "Whose account.", role="machine", read=read_word)
    qos: str | None = setting(None, "The quality of service.", role="machine", read=read_word)
    time: int | str = setting(240, "Time limit of a job, then resumed in another.", role="machine", read=read_minutes)
    gpus: int = setting(1, "GPUs of a job; 0 to train on a CPU.", least=0, most=1, role="machine")
    cpus: int | None = setting(None, "Cores of a job.", least=1, most=1024, role="machine")
    memory: str | None = setting(None, "Memory of a job, as 32G.", role="machine", read=read_word)
    constraint: str | None = setting(None, "Features that the node must have.", role="machine", read=read_word)
    exclude: str | None = setting(None, "Nodes not to use.", role="machine", read=read_word)
    setup: str | None = setting(None, "Shell command to run first in each job.", role="machine")
    notice: int = setting(
        90, "Seconds before the time limit at which a job writes its checkpoints and queues again.",
        least=10, most=3600, role="machine",
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_all(self)
        if isinstance(self.time, int) and self.notice > 60 * (self.time - 1):
            raise UsageError(
                f"notice must be at most {60 * (self.time - 1)} where the time limit is {self.time} minutes, not "
                f"{self.notice}: SLURM may give it a minute early, and a job would queue again before it trains"
            )


def slurm_table(table: Any, where: str = "") -> Slurm:
    """The settings of a table [slurm], checked."""
    if not isinstance(table, Mapping):
        raise UsageError(f'{where}[slurm] must be a table, with lines such as: partition = "gpu"')
    known = settings_of(Slurm)
    values = with_underscores(table, f"{where}[slurm]: ")
    for name in values:
        if name not in known:
            raise unknown(f"setting in {where}[slurm]", name, known)
    try:
        return Slurm(**values)
    except UsageError as error:
        raise UsageError(f"{where}[slurm]: {error}") from None


def read_slurm(value: Any) -> Slurm:
    """The table itself, from Python, or the settings file that has it."""
    if isinstance(value, Slurm):
        return value
    if isinstance(value, Mapping):
        return slurm_table(value)
    if not isinstance(value, str | Path):
        raise ValueError(f"must be a settings file with a table [slurm], or that table, not {value!r}")
    path = as_path(value)
    try:
        content = tomllib.loads(read_text(path))
    except UsageError:
        raise
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from None
    if "slurm" not in content:
        raise ValueError(f"{path} has no table [slurm]")
    return slurm_table(content["slurm"], f"{path}: ")
