"""Optuna's part in tuning: to propose values by what was found before."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cler.errors import UsageError
from cler.tune.space import Range

if TYPE_CHECKING:
    from cler.tune.study import Trial


def propose(space: Sequence[Range], before: Sequence[Trial], count: int) -> list[dict[str, Any]]:
    """Values for so many new trials, the same for the same trials before: a study that was killed continues as it was.

    Tree-structured Parzen estimators; trials that are under way count as bad, so that a generation is spread.
    """
    try:
        import optuna
    except ImportError:
        raise UsageError("tuning needs optuna: pip install 'cler[tune]'") from None

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
                state = optuna.trial.TrialState.PRUNED if trial.dropped else optuna.trial.TrialState.COMPLETE
                study.add_trial(
                    optuna.create_trial(
                        state=state,
                        params=trial.values,
                        distributions=distributions,
                        value=trial.score,
                        intermediate_values=dict(enumerate(trial.scores)),
                    )
                )
            asked = [study.ask(distributions).params for _ in range(count)]
    finally:
        optuna.logging.set_verbosity(verbosity)
    return [{each.name: each.rounded(params[each.name]) for each in space} for params in asked]
