"""What tuning selects settings by, and what tables say about results with tuned settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isnan
from typing import Any

from cler.config.registry import DATASETS, METHODS
from cler.config.settings import Settings
from cler.config.values import OWN_SEED, number_of_tasks
from cler.errors import UsageError, one_line
from cler.metrics import SCENARIOS
from cler.runs.series import Series

WAYS = "first-tasks:3, other-dataset:NAME or whole-stream"


@dataclass(frozen=True)
class Selection:
    """Which tasks decide, of which dataset: always by training images that are held out."""

    first_tasks: int | None = None
    other_dataset: str | None = None

    @classmethod
    def parse(cls, text: str) -> Selection:
        """From a string of the command line."""
        way, _, what = text.partition(":")
        if way == "first-tasks" and what.isdecimal() and len(what) <= 5 and 1 <= int(what) <= 10_000:
            return cls(first_tasks=int(what))
        if way == "other-dataset" and what:
            DATASETS.find(what)
            return cls(other_dataset=what)
        if text == "whole-stream":
            return cls()
        raise UsageError(f"must be {WAYS}, not '{text}'", "select_on")

    def __str__(self) -> str:
        if self.first_tasks:
            return f"first-tasks:{self.first_tasks}"
        return f"other-dataset:{self.other_dataset}" if self.other_dataset else "whole-stream"

    def rungs(self, settings: Settings) -> list[int]:
        """After how many tasks trials are compared: 2, 4, 8 and so on, and at the end."""
        tasks = number_of_tasks(settings.tasks)
        if METHODS.find(settings.method).merged:
            if self.first_tasks:
                raise UsageError(f"{self}: {settings.method} learns all tasks at once; take whole-stream", "select_on")
            return [tasks]
        if self.first_tasks and self.first_tasks > tasks:
            instead = f"first-tasks:{tasks} or whole-stream"
            raise UsageError(f"{self}: {settings.dataset} has {tasks} tasks here; take {instead}", "select_on")
        last = self.first_tasks or tasks
        return [*(2**n for n in range(1, last.bit_length()) if 2**n < last), last]


def tuning_in_words(tuned: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """What a stamp says of settings: 'lr 0.02, weight 1.3 tuned on first-tasks:3 of cifar100 (60 trials, seed 0)'."""
    seeds = tuned["seeds"]
    which = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
    where = "" if tuned["select_on"].startswith("other-dataset") else f" of {tuned['dataset']}"
    values = ", ".join(f"{name} {settings.get(name, '–')}" for name in tuned["names"])
    return f"{values} tuned on {tuned['select_on']}{where} ({tuned['trials']} trials, {which})"


def tuning_lines(groups: Iterable[Series]) -> list[str]:
    """A line for each row whose settings were tuned, with its accuracy on the tasks that tuning did not see."""
    return [
        one_line(f"{row.label}: {tuning_in_words(row.tuned, row.settings)}; {_unseen(row)}")
        for row in groups
        if row.tuned
    ]


def _unseen(row: Series) -> str:
    if not row.seen_by_tuning:
        return "tuning saw none of these tasks"
    unseen = {name: row.unseen_by_tuning(name) for name in SCENARIOS}
    if None in unseen.values() and row.settings.get("class_order") == OWN_SEED:
        return "tuning may have seen classes of every task here, because each seed orders them differently"
    if None in unseen.values():
        return "tuning saw every task here"
    numbers = [
        f"{each.mean:.2f}" + ("" if isnan(each.std) else f" ± {each.std:.2f}") for each in unseen.values() if each
    ]
    return (
        f"on the tasks from {row.seen_by_tuning + 1} on, which tuning did not see, accuracy is {numbers[0]} "
        f"class-incremental, {numbers[1]} task-incremental"
    )
