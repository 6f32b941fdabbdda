"""Loss terms, summed on the device step by step and read from the host without waiting for it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from cler.errors import UsageError

Sums = dict[str, tuple[float, int]]
"""For each loss term: the sum of its values, and the number of steps."""


class LossSums:
    """The sum of each loss term over all steps so far.

    Totals only ever grow on the device, and what has been reported is subtracted on the host, so that no step is
    missed. They are made in the first step that has these terms, which a GPU takes before one of its kind is recorded.
    """

    def __init__(self, device: torch.device) -> None:
        self._one = torch.ones((), device=device)
        self._totals: dict[tuple[str, ...], _Total] = {}

    def add(self, terms: Mapping[str, Tensor]) -> Tensor:
        """Add the loss terms of a step to the totals; returns their sum."""
        if not isinstance(terms, Mapping):
            given = type(terms).__name__
            raise UsageError(f"observe must return the terms of its loss by name, as {{'replay': loss}}, not a {given}")
        names = tuple(terms)
        if names not in self._totals:
            for name, term in terms.items():
                if not isinstance(term, Tensor) or term.numel() != 1:
                    raise UsageError(
                        f"observe must return each term of its loss as a tensor of one number: {name} is not"
                    )
        values = torch.stack([*(term.detach().reshape(()) for term in terms.values()), self._one])
        if names not in self._totals:
            self._totals[names] = _Total(len(values), values.device)
        self._totals[names].running.add_(values)
        return values[:-1].sum()

    def since_last(self, *, wait: bool) -> Sums:
        """The sums since the last call; without `wait`, only what a GPU has reported by now."""
        sums: Sums = {}
        for names, total in self._totals.items():
            *values, steps = total.growth(wait=wait)
            if steps:
                sums = merged(sums, {name: (value, int(steps)) for name, value in zip(names, values, strict=True)})
        return sums


class _Total:
    """Running totals on a device, the last of which counts steps, and how much of them has been reported."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.running = torch.zeros(size, dtype=torch.float64, device=device)
        self._seen = torch.zeros(size, dtype=torch.float64, pin_memory=device.type == "cuda")
        self._told = [0.0] * size
        self._copied: torch.cuda.Event | None = None
        """When the copy that is on its way has arrived."""

    def growth(self, *, wait: bool) -> list[float]:
        if self.running.device.type != "cuda":
            return self._tell(self.running)
        if wait:
            self._copied = None
            return self._tell(self.running)
        grown = [0.0] * len(self._told)
        if self._copied is not None and self._copied.query():
            grown, self._copied = self._tell(self._seen), None
        if self._copied is None:
            self._seen.copy_(self.running, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()
        return grown

    def _tell(self, totals: Tensor) -> list[float]:
        now = totals.tolist()
        grown = [new - old for new, old in zip(now, self._told, strict=True)]
        self._told = now
        return grown


def means(sums: Sums) -> dict[str, float]:
    """Mean of each term over its steps."""
    return {name: total / steps for name, (total, steps) in sums.items()}


def merged(first: Sums, second: Sums) -> Sums:
    """The sums of loss terms over the steps of two such sums."""
    both = dict(first)
    for name, (total, steps) in second.items():
        before, count = both.get(name, (0.0, 0))
        both[name] = before + total, count + steps
    return both
