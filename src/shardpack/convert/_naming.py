"""How columns of other formats are named in a record."""

from __future__ import annotations

import base64
import math
from typing import Any, Final

from shardpack.content_types import ENDINGS

_STARTS: Final = (
    (b"\xff\xd8\xff", "jpg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF8", "gif"),
    (b"II*\0", "tif"),
    (b"MM\0*", "tif"),
    (b"fLaC", "flac"),
    (b"OggS", "ogg"),
    (b"ID3", "mp3"),
    (b"\x93NUMPY", "npy"),
)


def entry_name(column: str, ending: str) -> str:
    """The column with a suffix that says what it holds, unless it has one already."""
    own = column.rpartition(".")[2].lower()
    return column if ENDINGS.get(own, own) == ENDINGS.get(ending, ending) else f"{column}.{ending}"


def bytes_name(column: str, ending: str = "bin") -> str:
    """The name of a column of bytes: with a suffix unless it has a known one."""
    own = column.rpartition(".")[2].lower()
    return column if own in ENDINGS or own == ending else f"{column}.{ending}"


def ending_of(data: bytes | memoryview, path: str | None = None) -> str:
    """The suffix for these bytes, from the name that they had or from their first bytes."""
    if path:
        own = path.rpartition(".")[2].lower()
        if own in ENDINGS and "." in path:
            return own
    start = bytes(data[:16])
    for begin, ending in _STARTS:
        if start.startswith(begin):
            return ending
    if start[:4] == b"RIFF" and start[8:12] in (b"WEBP", b"WAVE"):
        return "webp" if start[8:12] == b"WEBP" else "wav"
    return "bin"


def row_key(number: int) -> str:
    """The key of a sample without one: its number with leading zeros, so that keys sort like numbers."""
    return f"{number:09d}"


def json_value(value: Any) -> Any:  # noqa: ANN401 - any value
    """A value in a form that JSON can hold: bytes become base64 text, NaN and infinities their names."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, dict):
        return {str(key): json_value(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(one) for one in value]
    return value
