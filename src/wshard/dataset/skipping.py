"""Windows that could not be read and were left out on request."""

from __future__ import annotations

from shard_format._skipping import SkipCounter

__all__ = ["Skipped"]


class Skipped(SkipCounter):
    """How many windows could not be read, by file; 0 for a file that was left out as a whole.

    Each file is reported once, to the logger `wshard`. Every process counts for itself.
    """

    def __init__(self) -> None:
        super().__init__("wshard", "window")

    @property
    def windows(self) -> int:
        """Of all files."""
        return self.total
