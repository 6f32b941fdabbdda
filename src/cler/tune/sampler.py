"""Optuna's part in tuning: to propose values by what was found before."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from cler.errors import UsageError
from cler.tune.space import Range

if TYPE_CHECKING:
    from cler.tune.study import Trial

MOST_ASKED = 10
"""How often values are asked for, for each trial, until they are new."""


def propose(space: Sequence[Range], before: Sequence[Trial], count: int) -> list[dict[str, Any]]:
    """Values for so many new trials, the same for the same trials before: a study that was killed continues as it was.

    Tree-structured Parzen estimators. A trial that got further is better than one that did not, and of two that got as
    far the one with the higher score. Those that are proposed together count as bad for each other, so that they are
    spread. None is proposed twice: where choices run out there are fewer.
    """
    try:
        import optuna
    except ImportError:
        raise UsageError("tuning needs optuna: pip install optuna") from None

    def distribution(each: Range) -> Any:
        if each.choices:
            return optuna.distributions.CategoricalDistribution(each.choices)
        if each.whole:
            return optuna.distributions.IntDistribution(int(each.low), int(each.high), log=each.log)
        return optuna.distributions.FloatDistribution(each.low, each.high, log=each.log)

    distributions = {each.name: distribution(each) for each in space}
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # constant_liar is called experimental
            sampler = optuna.samplers.TPESampler(seed=len(before), constant_liar=True)
            study = optuna.create_study(direction="maximize", sampler=sampler)
            for trial in before:
                study.add_trial(
                    optuna.create_trial(
                        state=optuna.trial.TrialState.PRUNED,  # such are ranked by their last step, then by its value
                        params=trial.values,
                        distributions=distributions,
                        value=trial.score,
                        intermediate_values=dict(enumerate(trial.scores)),
                    )
                )
            asked = (study.ask(distributions).params for _ in range(MOST_ASKED * count))
            new = _distinct(space, [trial.values for trial in before], asked, count)
    finally:
        optuna.logging.set_verbosity(verbosity)
    return new


def _distinct(
    space: Sequence[Range], before: Sequence[dict[str, Any]], asked: Iterator[dict[str, Any]], count: int
) -> list[dict[str, Any]]:
    """So many of what was asked for, rounded, that differ from each other and from those before; as many as there are.

    A space of choices and whole numbers is gone through to its end where asking finds nothing new any more.
    """
    rounded = ({each.name: each.rounded(params[each.name]) for each in space} for params in asked)
    new: list[dict[str, Any]] = []
    for values in chain(rounded, _every(space)):
        if values not in before and values not in new:
            new.append(values)
        if len(new) == count:
            break
    return new


def _every(space: Sequence[Range]) -> Iterator[dict[str, Any]]:
    """All that a space holds, one after the other; nothing if a range has values without end."""
    if not space:
        yield {}
    elif all(each.choices or each.whole for each in space):
        first, *others = space
        for value in first.choices or range(int(first.low), int(first.high) + 1):
            yield from ({first.name: value} | values for values in _every(others))
