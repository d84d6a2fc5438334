"""What a conversion did, so that nothing is left out unsaid."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Converted"]


@dataclass(frozen=True, slots=True)
class Converted:
    """What was written, and what was not."""

    paths: list[str]
    """The new files."""
    records: int
    """How many samples they hold."""
    left_out: list[str] = field(default_factory=list)
    """Names of the input that are not in them, because the caller allowed it."""
