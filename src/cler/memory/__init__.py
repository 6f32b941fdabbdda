"""Fixed-size replay memories on the device."""

from cler.memory.reservoir import Replay, Reservoir, reservoir_slots

__all__ = ["Replay", "Reservoir", "reservoir_slots"]
