"""TensorBoard: event files in the folder of each run; `tensorboard --logdir runs` shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cler.metrics import METRICS, SCENARIOS
from cler.tracking.base import Table, TrackedRun, Tracker, register
from cler.tracking.figures import of_metrics

FLUSH_SECONDS = 5
"""How soon points reach the file."""


@register
class TensorBoard(Tracker):
    """Curves; the settings and the final table as text, and both in the tab of hyperparameters."""

    name = "tensorboard"
    package = "tensorboard"

    def __init__(self, run: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        if not run.resumed:
            for left in run.folder.glob("events.out.tfevents.*"):  # of a run that was dropped, and is done again
                left.unlink()
        self._writer: Any = SummaryWriter(str(run.folder), flush_secs=FLUSH_SECONDS)
        if not run.resumed:
            settings = {**run.settings, "seed": run.seed}
            self._writer.add_text("settings", _table(["setting", "value"], list(settings.items())), 0)
            self._add(_hyperparameters(settings)[:2])

    def _add(self, summaries: Sequence[Any]) -> None:
        for summary in summaries:
            self._writer.file_writer.add_summary(summary)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Add each figure as a scalar."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)

    def end(self, step: int, metrics: Table | None) -> None:
        """The final table as text, and each metric as a scalar."""
        if metrics is not None:
            self.log(step, of_metrics(metrics))
            scenarios = list(next(iter(metrics.values()), {}))
            rows = [[name, *(f"{row[each]:.4g}" for each in scenarios)] for name, row in metrics.items()]
            self._writer.add_text("metrics", _table(["metric", *scenarios], rows), step)
            self._add(_hyperparameters({})[2:])
        self._writer.close()


def _hyperparameters(settings: Mapping[str, Any]) -> tuple[Any, ...]:
    """What the tab of hyperparameters reads: which figures are its metrics, the settings, and that a run has ended."""
    from torch.utils.tensorboard.summary import hparams

    plain = {name: value if isinstance(value, int | float | str) else str(value) for name, value in settings.items()}
    shown = of_metrics({name: dict.fromkeys(SCENARIOS, 0.0) for name in METRICS})
    return tuple(hparams(plain, shown))


def _table(heading: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table in Markdown."""
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
