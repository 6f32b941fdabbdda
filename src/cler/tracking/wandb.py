"""Weights & Biases, online or, with `WANDB_MODE=offline`, in the folder of each run for `wandb sync` later."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from cler.tracking.base import Table, TrackedRun, Tracker, register
from cler.tracking.figures import of_metrics

PROJECT = "cler"
"""The project, where `WANDB_PROJECT` does not say another."""
STOPPED = 255
"""Exit code of a run that has not come to its end; Weights & Biases shows it as killed."""


@register
class WeightsAndBiases(Tracker):
    """Curves, the settings as configuration, and the final metrics as summary and table.

    It never asks for a login: without one, and not offline, it is left out. It prints nothing, and leaves the terminal
    and the figures of the machine to `cler`.
    """

    name = "wandb"
    package = "wandb"

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        quiet = wandb.Settings(silent=True, console="off", x_disable_stats=True, init_timeout=40, finish_timeout=40)
        session = wandb.setup(wandb.Settings(silent=True))
        if session.settings.mode not in ("offline", "disabled") and not wandb.login(prompt=False, verify=False):
            raise PermissionError("nobody is logged in: run `wandb login`, or set WANDB_MODE=offline")
        self._run: Any = wandb.init(
            id=run.id,
            resume="allow",
            reinit="create_new",  # as many side by side as there are seeds
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run.label,
            group=run.group,
            config={**run.settings, "seed": run.seed},
            dir=str(run.folder),
            settings=quiet,
        )

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Add the figures as a row of the run's history."""
        self._run.log(dict(figures), step=step)

    def end(self, step: int, metrics: Table | None) -> None:
        """The final metrics, in the summary and as a table."""
        import wandb

        if metrics is not None:
            self._run.summary.update(of_metrics(metrics))
            scenarios = list(next(iter(metrics.values()), {}))
            rows = [[name, *(row[each] for each in scenarios)] for name, row in metrics.items()]
            self._run.log({"metrics": wandb.Table(columns=["metric", *scenarios], data=rows)}, step=step)
        self._run.finish(exit_code=0 if metrics is not None else STOPPED)
