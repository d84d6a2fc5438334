"""The clock of an episode: a rate, or timestamps (spec/wshard.md, section 5)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

__all__ = ["Timebase", "TimebaseType"]

DEFAULT_RATE_HZ: Final = 30.0
_LARGEST: Final = (1 << 63) - 1


class TimebaseType(str, Enum):
    """Where the times of the steps come from."""

    TICKS = "ticks"
    TIMESTAMPS_NS = "timestamps_ns"
    TIMESTAMPS_US = "timestamps_us"

    def __str__(self) -> str:
        return self.value


@dataclass
class Timebase:
    """How steps become times."""

    type: TimebaseType | str = TimebaseType.TICKS
    """`ticks` for a fixed rate, `timestamps_ns` where every step has its own time."""
    tick_hz: float = DEFAULT_RATE_HZ
    """Steps in a second."""
    epoch_ns: int = 0
    """The time of step 0, nanoseconds."""

    @property
    def dt_ns(self) -> int:
        """Nanoseconds of one step, rounded; at most 2**63 - 1."""
        return min(round(min(1e9 / self.tick_hz, 1e19)), _LARGEST)
