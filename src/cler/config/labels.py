"""What readers call runs: their parts as tables name them, and their settings in a line."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from cler.config.comparing import default_settings
from cler.config.making import has_width
from cler.config.registry import METHODS, REGULARIZERS, TEACHERS
from cler.config.settings import OF_READING, OF_REPLAY, Settings, taken_by
from cler.config.values import regularizers_in


def label_of(method: str, regularizer: str, teacher: str = "none") -> str:
    """The parts as tables show them: 'ER-ACE + CLER (jigsaw) + EMA'; unknown names stay as they are."""
    title = title_of(METHODS, method)
    added = [title_of(REGULARIZERS, name) for name in regularizers_in(regularizer)]
    added += [title_of(TEACHERS, teacher)] if teacher != "none" else []
    return " + ".join([title, *added])


def title_of(table: Mapping[str, Any], name: str) -> str:
    """What readers call an entry of a table."""
    entry = table.get(name)
    about = getattr(entry, "about", entry)
    return getattr(about, "title", name) if entry is not None else name


def run_line(settings: Settings, seeds: Sequence[int], first: Settings | None = None) -> str:
    """One line that says what will run, with every setting that means something to it as it was resolved.

    Of runs after the `first` ones it says only what is different from those.
    """
    shown = ("method", "regularizer", "teacher", "dataset")
    before = _meant(first) if first else {}
    meant = _meant(settings, before)
    new = {name: value for name, value in meant.items() if name not in shown and before.get(name) != value}
    told = ", ".join(f"{name} {'–' if value is None else value}" for name, value in new.items())
    if first:
        told = f"like the first, with {told}" if told else "like the first"
    which = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
    return f"{label_of(settings.method, settings.regularizer, settings.teacher)} on {settings.dataset}, {which}: {told}"


def _meant(settings: Settings, also: Collection[str] = ()) -> dict[str, Any]:
    """The settings that these parts make use of, without what is off unless it is asked for, and is not.

    Those of the names `also` are told even if they are off.
    """
    unused = {name for name in OF_READING if name not in taken_by(settings.dataset)}
    unused |= set() if METHODS.find(settings.method).replays else set(OF_REPLAY)
    unused |= set() if has_width(settings.network) else {"width"}
    unused |= set() if settings.regularizers else {"weight"}
    values, defaults = settings.to_dict(), default_settings(settings.to_dict())
    off = {name for name, value in values.items() if value is None or (not defaults[name] and value == defaults[name])}
    return {name: value for name, value in values.items() if name not in (off - {"weight", *also}) | unused}
