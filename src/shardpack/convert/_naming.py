"""How columns of other formats are named in a record."""

from __future__ import annotations

import base64
import math
from typing import Any

from shardpack.content_types import ENDINGS


def entry_name(column: str, ending: str) -> str:
    """The column with a suffix that says what it holds, unless it has one already."""
    own = column.rpartition(".")[2].lower()
    return column if ENDINGS.get(own, own) == ENDINGS.get(ending, ending) else f"{column}.{ending}"


def bytes_name(column: str) -> str:
    """The name of a column of bytes: with the suffix `.bin` unless it has a known one."""
    own = column.rpartition(".")[2].lower()
    return column if own in ENDINGS or own == "bin" else f"{column}.bin"


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
