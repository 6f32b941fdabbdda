"""Reading the values of settings that are more than a number or a name out of a list."""

from __future__ import annotations

from importlib.util import find_spec
from numbers import Integral
from typing import Any

from cler.config.registry import METHODS, NETWORKS, REGULARIZERS, TEACHERS, TRACKERS
from cler.config.schema import joined
from cler.errors import UsageError

DEVICES = ("auto", "cpu", "cuda")
OWN_SEED = "seed"
"""The class order of a run that is permuted by its own seed."""


def read_tasks(value: Any) -> int | str:
    """A number of equal tasks, or the number of classes of each: '5+5+10', or a list."""
    sizes = value.split("+") if isinstance(value, str) else list(value) if isinstance(value, list | tuple) else [value]
    whole = all(isinstance(size, str | Integral) and not isinstance(size, bool) for size in sizes)
    try:
        numbers = [int(size) for size in sizes] if whole else []
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1 or max(numbers) > 10_000 or len(numbers) > 10_000:
        raise ValueError(f"must be a number of tasks, or the classes of each as 5+5+10, not {value!r}")
    return numbers[0] if len(numbers) == 1 else joined(numbers)


def number_of_tasks(tasks: int | str) -> int:
    """How many tasks the setting `tasks` means."""
    return tasks if isinstance(tasks, int) else tasks.count("+") + 1


def read_class_order(value: Any) -> int | str:
    """The seed of a permutation, or 'seed' for that of the run."""
    if value == OWN_SEED:
        return OWN_SEED
    text = str(value)
    if isinstance(value, bool | float) or not (text.isascii() and text.isdecimal() and len(text) <= 6):
        raise ValueError(f"must be a whole number from 0 to 999999, or {OWN_SEED}, not {value!r}")
    return int(text)


def read_regularizer(value: Any) -> str:
    """'none', a regularizer, or several joined by '+', each of which is known."""
    if not isinstance(value, str):
        raise ValueError(f"must be the name of a regularizer, or several as jigsaw+barlow-twins, not {value!r}")
    names = value.split("+")
    if len(names) > 1 and "none" in names:
        raise ValueError(f"cannot join none with others, as in {value!r}: leave it out")
    for name in names:
        if name.lower() == "cler" and name not in REGULARIZERS:
            raise ValueError(f"{name}: CLER is jigsaw or rotation")
        if name != "none" and name not in REGULARIZERS:
            raise REGULARIZERS.no_such(name, ["none", *REGULARIZERS])
    if len(set(names)) < len(names):
        raise ValueError(f"must name different regularizers, not {value!r}")
    return value


def read_teacher(value: Any) -> str:
    """'none', or a teacher that is known."""
    if not isinstance(value, str):
        raise ValueError(f"must be the name of a teacher, not {value!r}")
    if value != "none" and value not in TEACHERS:
        raise TEACHERS.no_such(value, ["none", *TEACHERS])
    return value


def read_weight(value: Any) -> float | str:
    """A number from zero, or one for each of several regularizers, joined by '+'."""
    parts = value.split("+") if isinstance(value, str) else [value]
    try:
        numbers = [float(part) for part in parts if not isinstance(part, bool)]
    except (OverflowError, TypeError, ValueError):
        numbers = []
    if len(numbers) != len(parts) or not all(0 <= number <= 1e30 for number in numbers):
        raise ValueError(f"must be a number from 0 to 1e30, or several as 1.5+0.01, not {value!r}")
    return numbers[0] if len(numbers) == 1 else joined([exact(number) for number in numbers])


def regularizers_in(value: str) -> list[str]:
    """The names in the setting `regularizer`, where 'none' names none."""
    return [] if value == "none" else value.split("+")


def own_weight(regularizer: str) -> float | str:
    """The default weight of each regularizer, as the setting `weight` has them; 0 without any."""
    weights = [REGULARIZERS.find(name).weight for name in regularizers_in(regularizer)]
    return read_weight(joined(weights)) if weights else 0.0


def exact(number: float) -> str:
    """A number as a string: in six digits if that is exact, otherwise in as many as it takes."""
    short = f"{number:g}"
    return short if float(short) == number else repr(number)


def read_network(value: Any) -> str:
    """The name of a network; that of a method's own, or of an object from Python, stays as it is."""
    known = [*NETWORKS, *(name for name, method in METHODS.items() if has_own_network(method))]
    if not isinstance(value, str):
        raise ValueError(f"must be the name of a network, not {value!r}")
    if not value.startswith("timm:") and value not in known:
        raise NETWORKS.no_such(value, [*NETWORKS, "timm:NAME"])
    return value


def has_own_network(method: Any) -> bool:
    """Whether the method works with one network alone, its own."""
    return bool(getattr(method, "own_network", False))


def is_own_network(name: str) -> bool:
    """Whether this is the network that one method alone works with."""
    return name in METHODS and has_own_network(METHODS[name])


def read_device(value: Any) -> str:
    """One of the devices by name; which GPU of several it is, is chosen elsewhere."""
    if not isinstance(value, str):
        raise ValueError(f"must be a string, not {value!r}")
    if value not in DEVICES:
        raise UsageError(
            f"unknown device '{value}' (known: {', '.join(DEVICES)}); cuda is the GPU, and CUDA_VISIBLE_DEVICES "
            "chooses which of several"
        )
    return value


def read_track(value: Any) -> str:
    """A tracker, or several joined by '+', each of which is known and installed here."""
    if not isinstance(value, str):
        raise ValueError(f"must be the name of a tracker, or several as tensorboard+wandb, not {value!r}")
    if "," in value:
        meant = joined([name.strip() for name in value.split(",")])
        raise ValueError(f"must join several trackers by '+', as {meant}, not by a comma")
    names = value.split("+")
    for name in names:
        package = TRACKERS.find(name).package
        if package is not None and find_spec(package) is None:
            raise ValueError(f"{name} needs the package {package}: pip install {package}")
    if len(set(names)) < len(names):
        raise ValueError(f"must name different trackers, not {value!r}")
    return value
