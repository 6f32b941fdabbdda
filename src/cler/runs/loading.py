"""Loading what runs are trained on, once for all of them, and building them from it."""

from __future__ import annotations

import math
import time
from collections.abc import Hashable

import torch

from cler import data as datasets
from cler.config.settings import Settings
from cler.data.images import Advance, ImageData
from cler.engine import Run
from cler.engine.events import Decoding, Message
from cler.engine.train import REPORT_SECONDS
from cler.errors import UsageError
from cler.runs.build import build_run
from cler.runs.jobs import Job
from cler.runs.record import Recorder

Loaded = dict[Hashable, tuple[ImageData, str]]
"""Datasets that are ready for a device, with their fingerprints."""


class Builder:
    """Builds the runs of jobs, loading each dataset once.

    `loaded` are datasets that are there already, to which others are added; None for none.
    """

    def __init__(self, recorder: Recorder, loaded: Loaded | None = None) -> None:
        self.recorder, self.machine = recorder, recorder.machine
        self.loaded: Loaded = {} if loaded is None else loaded

    def __call__(self, job: Job) -> Run:
        """The run of a job, ready to be trained, from its checkpoint on if it has one."""
        key = self.machine.device, self.machine.data_dir, self.machine.images, datasets.key(job.settings)
        if key not in self.loaded:
            self.loaded[key] = self._load(job.settings)
        images, fingerprint = self.loaded[key]
        if job.data not in (None, fingerprint):
            raise UsageError(
                f"{job.settings.dataset} has other images here (fingerprint {fingerprint}) than the runs are for "
                f"({job.data}): copy them here, or start again if they have changed"
            )
        run = build_run(job.settings, job.seed, images, job.name)
        self.recorder.adopt(run, job, fingerprint)
        return run

    def _load(self, settings: Settings) -> tuple[ImageData, str]:
        data = datasets.load_for(settings, self.machine.data_dir, self._telling(settings.dataset))
        placed = data.to(torch.device(self.machine.device), self.machine.images)
        if placed.on_host:
            size = (data.train_images.nbytes + data.test_images.nbytes) / 1e9
            text = f"{size:.1f} GB of images of {settings.dataset} stay in main memory, where the GPU reads them"
            self.recorder.hear(Message(text))
        return placed, data.fingerprint()

    def _telling(self, dataset: str) -> Advance:
        """A function that decoding calls as it advances: it emits events, and ends decoding when asked to stop."""
        told = -math.inf

        def advance(done: int, images: int | None) -> None:
            nonlocal told
            if (now := time.monotonic()) - told >= REPORT_SECONDS or done == images:
                told = now
                self.recorder.hear(Decoding(dataset, done, images))
            if self.recorder.stop is not None:
                raise self.recorder.stop

        return advance
