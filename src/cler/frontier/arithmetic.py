"""The arithmetic of a step, counted on a CPU in narrow networks: that of a wide one follows from it exactly."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from cler.config.making import make_settings
from cler.config.settings import Settings
from cler.config.values import is_own_network
from cler.engine.bundles import begin_second_task
from cler.errors import UsageError
from cler.files import read_json, write_json, writing
from cler.runs.bench import flops_of_a_step, random_images
from cler.runs.build import build_run

WIDTHS = (2, 4, 6)
"""Widths that are counted. A layer multiplies as many numbers as it has inputs times outputs, so that the whole is a
polynomial of second degree in the width, which three values determine."""
SHAPE = ("method", "regularizer", "teacher", "batch", "replay_batch", "repeats", "network", "width")
"""Settings that every run has and that decide how much there is to compute."""
REFERENCE = {"method": "er", "batch": 10, "replay_batch": 10, "width": 64}
"""What arithmetic is told in multiples of."""


def shape_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run that decide its arithmetic; a part's own settings decide unless they are fractions."""
    usual = make_settings(**{name: settings[name] for name in SHAPE[:3]}, dataset="cifar100")
    own = {name: settings.get(name, value) for name, value in usual.options.items()}
    whole = {name: value for name, value in own.items() if not isinstance(value, float)}
    return {name: settings[name] for name in SHAPE} | whole


def flops_per_image(shape: Mapping[str, Any]) -> float:
    """Arithmetic for one image of the stream, in the second task, where every method does all it does."""
    counted = {width: _counted({**shape, "width": width}) for width in WIDTHS}
    return float(_at(shape["width"], counted)) / shape["batch"]


def _counted(shape: Mapping[str, Any]) -> int:
    """Arithmetic of a whole step, counted while it is taken."""
    known = {name: value for name, value in shape.items() if not (name == "network" and is_own_network(value))}
    buffer = max(Settings.buffer, shape["replay_batch"])
    settings = make_settings(**known, dataset="cifar100", buffer=buffer)
    run = build_run(settings, 0, random_images(torch.device("cpu"), steps=shape["replay_batch"]))
    begin_second_task([run])
    while not run.method.settled:
        run.step()
    return int(flops_of_a_step(run))


def _at(width: int, counted: Mapping[int, int]) -> Fraction:
    """The polynomial through what was counted, at another width."""
    value = Fraction(0)
    for one, flops in counted.items():
        term = Fraction(flops)
        for other in counted:
            term *= Fraction(width - other, one - other) if other != one else 1
        value += term
    return value


class Counts:
    """Arithmetic by shape, kept in a file: what stands there is not counted again."""

    def __init__(self, path: Path | None = None, say: Callable[[str], None] = lambda line: None) -> None:
        self.path, self.say = path, say
        self._known = self._read()

    def _read(self) -> dict[str, float]:
        if self.path is None or not self.path.exists():
            return {}
        content = read_json(self.path)
        try:
            found = [dict(each) for each in content["counts"]]
            return {_key(each): float(flops) for each in found if (flops := each.pop("flops_per_image")) > 0}
        except (KeyError, TypeError, ValueError):
            raise UsageError(f"{self.path} holds no arithmetic that was counted here: choose another file") from None

    def relative(self, settings: Mapping[str, Any]) -> float:
        """Arithmetic for an image of the stream, in multiples of what ER takes with ten images of the buffer a step."""
        self.count([settings])
        own, reference = (self._known[_key(shape_of(each))] for each in (settings, self._reference))
        return own / reference

    def count(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Count what is not known yet of rows with these settings, and of what they are told in multiples of."""
        shapes = {_key(shape): shape for shape in map(shape_of, [*rows, self._reference])}
        missing = {key: shape for key, shape in shapes.items() if key not in self._known}
        for number, (key, shape) in enumerate(missing.items(), 1):
            told = ", ".join(f"{name} {value}" for name, value in shape.items())
            self.say(f"counting arithmetic, {number} of {len(missing)}: {told}")
            self._known[key] = flops_per_image(shape)
            if self.path is not None:
                counts = [json.loads(key) | {"flops_per_image": flops} for key, flops in sorted(self._known.items())]
                with writing(self.path):
                    write_json(self.path, {"counts": counts})

    @cached_property
    def _reference(self) -> dict[str, Any]:
        return make_settings(**REFERENCE, dataset="cifar100").to_dict()


def _key(shape: Mapping[str, Any]) -> str:
    return json.dumps(shape, sort_keys=True)
