"""What tests hear of training, and what they read of it afterwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from cler.engine.events import Event, Failed, Finished, Message, Progress

E = TypeVar("E", bound=Event)


class Notes:
    """Keeps the events that it hears."""

    def __init__(self) -> None:
        self.heard: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.heard.append(event)

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.heard if isinstance(event, kind)]

    @property
    def messages(self) -> list[str]:
        return [event.text for event in self.of(Message)]

    @property
    def progressed(self) -> list[Progress]:
        return self.of(Progress)

    @property
    def ended(self) -> list[tuple[str, float | None, str | None]]:
        """Label, accuracy and failure of each run."""
        return [
            (event.run.label, getattr(event, "accuracy", None), getattr(event, "why", None))
            for event in self.heard
            if isinstance(event, Finished | Failed)
        ]


def without_times(folder: Path) -> dict[str, Any]:
    """The result in a folder, without what differs from one training to the next."""
    result = json.loads((folder / "result.json").read_text())
    return {key: value for key, value in result.items() if key not in ("seconds", "at_once", "environment")}
