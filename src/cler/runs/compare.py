"""Results grouped into series of runs that differ only by seed, each with its gain over the unregularized twin."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cler.config.comparing import benchmark_settings, is_addition, is_tuned, of_a_row
from cler.config.settings import OF_READING
from cler.errors import UsageError, hint, one_line
from cler.files import frozen
from cler.methods import METHODS
from cler.metrics import SCENARIOS
from cler.runs.distinguishing import agree, distinguishing_settings
from cler.runs.results import Result
from cler.runs.series import Series, gain


@dataclass(frozen=True)
class Comparison:
    """All groups, by dataset and method, and a line for each result that was left out or looks wrong."""

    groups: tuple[Series, ...]
    complaints: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON; what is not known is null."""
        best = best_by_validation(self.groups)
        groups = [group.to_json() | {"best_by_validation": group in best} for group in self.groups]
        return {"groups": groups, "complaints": list(self.complaints)}


def compare(results: Iterable[Result], against: str | Series | None = None) -> Comparison:
    """Group the complete runs and measure each regularized group against its unregularized twin.

    With `against`, some runs or the parts that they have, as 'er-ace+jigsaw', all others are measured against those.
    """
    by_settings: dict[Any, list[Result]] = {}
    complaints = []
    for result in results:
        if result.complete and result.failure is None:
            by_settings.setdefault(frozen(of_a_row(result.settings)), []).append(result)
        else:
            unfinished = "not finished: the command that began it resumes it, without --until-task"
            reason = f"failed: {result.failure}" if result.failure else unfinished
            complaints.append(one_line(f"left out: {result.path} ({reason})"))
    groups = []
    for runs in by_settings.values():
        distinct, repeated = _one_per_seed(runs)
        groups.append(Series(of_a_row(distinct[0].settings), tuple(distinct)))
        complaints += repeated
    groups.sort(key=_order)
    twin_of = _baseline_among(groups, against, complaints) if against else lambda group: _twin(group, groups)
    measured = [_with_gain(group, twin_of(group)) for group in groups]
    return Comparison(tuple(measured), (*dict.fromkeys(complaints), *_on_different_images(groups)))


def _on_different_images(groups: Sequence[Series]) -> Iterator[str]:
    """A line for each dataset, read in one way, of which the name has stood for different images."""
    found: dict[Any, dict[str, list[Result]]] = {}
    for run in (run for group in groups for run in group.results if run.data is not None):
        read = run.settings["dataset"], *(run.settings.get(name) for name in OF_READING)
        found.setdefault(read, {}).setdefault(str(run.data), []).append(run)
    for (dataset, *_), by_data in found.items():
        if len(by_data) > 1:
            told = ", ".join(f"{len(runs)} on {data} ({runs[0].path.parent} …)" for data, runs in by_data.items())
            yield one_line(f"{dataset}: not comparable, because its runs are on different images: {told}")


def measured_against(groups: Sequence[Series]) -> str:
    """What the gains of some groups are measured against, in words."""
    pairs = [(group, group.twin) for group in groups if group.twin]
    same = ("method", "teacher")
    if all(group.regularized and not twin.regularized and agree(group, twin, same) for group, twin in pairs):
        return "the same method without the regularizer"
    elsewhere = not all(agree(group, twin, ("buffer",)) for group, twin in pairs)
    return " or ".join(dict.fromkeys(_with_buffer(twin) if elsewhere else twin.label for _, twin in pairs))


def _with_buffer(group: Series) -> str:
    buffer = group.settings["buffer"]
    return f"{group.label} with a buffer of {buffer}" if buffer else group.label


def best_by_validation(groups: Sequence[Series]) -> list[Series]:
    """For each method with its regularizer and teacher: the settings, of several, that do best on held-out images."""
    rivals: dict[Any, list[Series]] = {}
    for group in groups:
        if group.validation is not None:
            names = ("method", "regularizer", "teacher", "dataset", "buffer", *benchmark_settings())
            rivals.setdefault(tuple(group.settings.get(name) for name in names), []).append(group)
    return [max(rows, key=lambda row: row.validation.mean) for rows in rivals.values() if len(rows) > 1]  # type: ignore[union-attr]


def _one_per_seed(runs: list[Result]) -> tuple[list[Result], list[str]]:
    """One run of each seed, and a line for each folder whose runs are left out for those of another.

    That is the first, among those that were evaluated within tasks if there are any: they know more metrics.
    """
    kept: dict[int, Result] = {}
    twice: dict[tuple[Path, Path], list[tuple[Result, Result]]] = {}
    for run in sorted(runs, key=lambda run: run.curves is None):
        first = kept.setdefault(run.seed, run)
        if first.accuracy != run.accuracy:
            twice.setdefault((first.path.parent.parent, run.path.parent.parent), []).append((first, run))
    return [kept[seed] for seed in sorted(kept)], [_twice(*folders, runs) for folders, runs in twice.items()]


def _twice(here: Path, there: Path, runs: list[tuple[Result, Result]]) -> str:
    seeds = f"seed{'s' * (len(runs) > 1)} {', '.join(str(first.seed) for first, _ in runs)}"
    if len(runs) == 1:
        here, there = (run.path for run in runs[0])
    return f"{seeds} twice with different accuracies: kept {here}, not {there}"


def _baseline_among(
    groups: Sequence[Series], against: str | Series, complaints: list[str]
) -> Callable[[Series], Series | None]:
    """From a group to the one it is measured against: that on the same benchmark, with the same buffer if there is.

    Of several it is the only one with the same network and training, else the only one with the same settings; where
    there is none, a line among the `complaints` says so.
    """
    if isinstance(against, str):
        baselines = [one for one in groups if one.pair == against]
    else:
        baselines = [one for one in groups if one.settings == of_a_row(against.settings)]
    if not baselines:
        wanted = against if isinstance(against, str) else against.pair
        known = list(dict.fromkeys(one.pair for one in groups))
        told = f"must be one of those that are compared, {', '.join(known)}, not '{wanted}'{hint(wanted, known)}"
        raise UsageError(told, "against")

    def baseline_of(group: Series) -> Series | None:
        there = [one for one in baselines if agree(group, one, ("dataset", *benchmark_settings()))]
        found = [one for one in there if one.settings["buffer"] == group.settings["buffer"]] or there
        if group in baselines or not found:
            return None
        tuned = {name for name in group.settings if is_tuned(name, group.settings["method"])}
        trained = [one for one in found if agree(group, one, _shared(group, one) - tuned)]
        same = [one for one in trained if agree(group, one, _shared(group, one))]
        for few in (found, trained, same):
            if len(few) == 1:
                return few[0]
        differ = distinguishing_settings(found[0], found), distinguishing_settings(found[1], found)
        complaints.append(
            f"{group.label} is measured against nothing: {len(found)} rows are {found[0].label} ({'; '.join(differ)}"
            f"{'; …' * (len(found) > 2)}), and none or several of them are trained as it is"
        )
        return None

    return baseline_of


def _shared(first: Series, second: Series) -> set[str]:
    """The settings that both have, besides the parts that they are made of."""
    parts = ("method", "regularizer", "teacher", "buffer")
    return {name for name in first.settings.keys() & second.settings.keys() - {*parts} if not is_addition(name)}


def _with_gain(group: Series, twin: Series | None) -> Series:
    if twin is None:
        return group
    gains = {name: gain(twin.accuracies(name), group.accuracies(name)) for name in SCENARIOS}
    return replace(group, twin=twin, gain=gains)


def _twin(group: Series, groups: Sequence[Series]) -> Series | None:
    """The unregularized group with otherwise equal settings; failing that, the only one that differs in tuned ones."""
    if not group.regularized:
        return None
    plain = [one for one in groups if not one.regularized]
    name = group.settings["method"]
    method = METHODS.get(name)
    for ignored in (frozenset[str](), method.about.options_of_regularizer if method else frozenset[str]()):
        kept = {key for key in group.settings if not is_addition(key)} - ignored
        candidates = [one for one in plain if agree(group, one, {key for key in kept if not is_tuned(key, name)})]
        # Settings that only the regularized run has belong to its regularizer.
        exact = [one for one in candidates if agree(group, one, kept & one.settings.keys())]
        candidates = exact or candidates
        if len(candidates) == 1:
            return candidates[0]
    return None


def without_teacher(group: Series, groups: Sequence[Series]) -> Series | None:
    """The group whose settings are otherwise equal, if this one has a teacher."""
    alone = (one for one in groups if one.settings["teacher"] == "none" != group.settings["teacher"])
    # Settings that only the run with a teacher has belong to it.
    return next((one for one in alone if agree(group, one, one.settings.keys() - {"teacher"})), None)


def _order(group: Series) -> tuple[Any, ...]:
    settings, known = group.settings, list(METHODS)
    rank = known.index(settings["method"]) if settings["method"] in known else len(known)
    place = settings["dataset"], settings["epochs"], rank, settings["method"], settings["buffer"]
    return (*place, group.regularized, group.label, str(frozen(settings)))
