"""Fixed-size replay buffers on the device."""

from cler.memory.balanced import BalancedReservoir
from cler.memory.quota import QuotaBuffer, Recollection
from cler.memory.reservoir import Replay, Reservoir, closed, reservoir_slots

__all__ = ["BalancedReservoir", "QuotaBuffer", "Recollection", "Replay", "Reservoir", "closed", "reservoir_slots"]
