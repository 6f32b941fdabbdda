"""What a learner can be told: what a run is told, but for what only a benchmark has, and the form of its images."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from cler.config.reading import LARGEST_SEED
from cler.config.schema import Setting, check_all, setting, settings_of
from cler.config.settings import Settings
from cler.config.values import DEVICES, read_device

DEFAULTS: dict[str, Any] = {"regularizer": "jigsaw", "weight": None}
"""Settings whose default for a learner differs from that for a run; a weight of None is the regularizer's own."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """What a learner is told that a run of a benchmark is not, its classes and the statistics of its pixels aside."""

    image_size: int = setting(32, "Height and width that images are scaled to.", least=3, most=1024)
    channels: int = setting(3, "Channels of an image: 3 for color, 1 for gray.", least=1, most=64)
    prequential: bool = setting(False, "Predict each batch before learning it, and count the correct predictions.")
    seed: int = setting(0, "Seed for all random numbers.", least=0, most=LARGEST_SEED)
    device: str = setting(
        "auto", "Device to learn on; auto is the GPU if there is one.", choices=DEVICES, read=read_device,
        role="machine",
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_all(self)


def learner_settings() -> dict[str, Setting]:
    """The settings of a learner, with its own defaults: those that it shares with a run, then its form."""
    shared = {name: each for name, each in settings_of(Settings).items() if each.learner}
    for name, default in DEFAULTS.items():
        optional = shared[name].optional or default is None
        shared[name] = dataclasses.replace(shared[name], default=default, absent=default, optional=optional)
    return shared | settings_of(Form)
