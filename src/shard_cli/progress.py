"""A progress bar that quick work never shows."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final, TextIO

from shard_cli.text import fit, size, width

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from typing_extensions import Self

# Below this nobody waits, and a bar would only flicker.
_SILENT_SECONDS: Final = 0.5
_REDRAW_SECONDS: Final = 0.1
_BAR_COLUMNS: Final = 24
_CLEAR_LINE: Final = "\r\x1b[2K"


class Progress:
    """One line on a terminal: bar, percent, bytes per second and the time that is left.

    Args:
        label: what is being done.
        stream: the terminal; None draws nothing.
        clock: seconds that only go forward.
    """

    def __init__(
        self, label: str, stream: TextIO | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._label = label
        self._stream = stream
        self._clock = clock
        self._start = clock()
        self._next_draw = self._start + _SILENT_SECONDS
        self._drawn = False

    def update(self, done: int, total: int) -> None:
        """So many bytes of so many are done. Cheap enough to call for every piece."""
        if self._stream is None:
            return
        now = self._clock()
        if now < self._next_draw:
            return
        self._next_draw = now + _REDRAW_SECONDS
        self._stream.write(_CLEAR_LINE + self._text(done, total, now - self._start))
        self._stream.flush()
        self._drawn = True

    def clear(self) -> None:
        """Takes the bar off the screen; the next update may draw it again."""
        if self._drawn and self._stream is not None:
            self._stream.write(_CLEAR_LINE)
            self._stream.flush()
            self._drawn = False

    def _text(self, done: int, total: int, seconds: float) -> str:
        # A total comes from the file and may lie; more than all of it is never shown.
        share = min(done / total, 1.0) if total > 0 else 0.0
        filled = int(share * _BAR_COLUMNS)
        rate = done / seconds
        left = _clock_time((total - done) / rate) if 0 < done <= total else "--:--"
        facts = (
            f" [{'=' * filled}{' ' * (_BAR_COLUMNS - filled)}] {share:4.0%}"
            f"  {size(int(rate))}/s  ETA {left}"
        )
        # The last column stays free: a full line would wrap and could not be cleared.
        assert self._stream is not None
        columns = terminal_columns(self._stream) - 1
        return fit(fit(self._label, max(8, columns - width(facts))) + facts, columns)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.clear()


def terminal_columns(stream: TextIO) -> int:
    """The width of the terminal behind a stream; COLUMNS says it where nothing else does."""
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except OSError:
        columns = 0  # as a terminal of unknown size says
    stated = os.environ.get("COLUMNS", "")
    return columns or (int(stated) if stated.isdecimal() else 0) or 80


def _clock_time(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
