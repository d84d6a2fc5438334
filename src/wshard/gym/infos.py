"""What environments say besides: a dictionary at every step, as channels."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shard_format.errors import InvalidArgument
from wshard.channels import Channel
from wshard.dtypes import DType
from wshard.names import check_id
from wshard.ragged import RaggedChannel, TextChannel


def info_channels(infos: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Channel], dict[str, str]]:
    """Every key as a channel `info/<key>`, with one entry for each of `infos`.

    Numbers that are always there make a plain channel, and a ragged one with no or one item where they are
    missing at times. Strings make text, and everything else that JSON can hold makes text of JSON, empty
    where it is missing.

    Returns:
        The channels, and the keys that could not be kept with the reason.
    """
    columns: dict[str, list[Any]] = {}
    for number, info in enumerate(infos):
        for key, value in flat(info).items():
            columns.setdefault(key, [_MISSING] * len(infos))[number] = value
    channels: dict[str, Channel] = {}
    left_out: dict[str, str] = {}
    for key, values in columns.items():
        name = f"info/{key}"
        try:
            check_id(name, "an info")
            channels[name] = _channel(values)
        except InvalidArgument as error:
            left_out[key] = error.problem
    return channels, left_out


_MISSING: Any = object()


def flat(info: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """What is in it and in dictionaries in it; arrays and lists copied, because environments use theirs again."""
    found: dict[str, Any] = {}
    for key, value in info.items():
        name = f"{prefix}/{key}" if prefix else str(key)
        if isinstance(value, Mapping):
            found |= flat(value, name)
        else:
            found[name] = value.copy() if isinstance(value, (np.ndarray, list)) else value
    return found


def _channel(values: list[Any]) -> Channel:
    there = [value for value in values if value is not _MISSING]
    is_whole = len(there) == len(values)
    if all(
        isinstance(value, (bool, int, float, np.number, np.bool_, np.ndarray)) for value in there
    ):
        arrays = [np.asarray(value) for value in there]
        kind = np.result_type(*arrays)
        if len({array.shape for array in arrays}) == 1 and _can_be_stored(kind, arrays):
            if is_whole:
                return Channel(data=np.stack(arrays).astype(kind))
            shape = (0, *arrays[0].shape)
            rows = iter(arrays)
            return RaggedChannel(
                data=[
                    np.empty(shape, kind) if value is _MISSING else next(rows)[None].astype(kind)
                    for value in values
                ]
            )
    if is_whole and all(isinstance(value, str) for value in there):
        return TextChannel(data=values)
    return TextChannel(
        data=["" if value is _MISSING else _text(value) for value in values],
        extra={"text": "json"},
    )


def _can_be_stored(kind: np.dtype[Any], arrays: list[np.ndarray[Any, Any]]) -> bool:
    try:
        DType.from_numpy(kind)
    except InvalidArgument:
        return False
    # int64 and uint64 together make float64, which does not hold all of them.
    return kind.kind == "f" or all(array.dtype.kind in "iub" for array in arrays)


def _text(value: Any) -> str:  # noqa: ANN401 - anything
    try:
        return json.dumps(as_json(value, strict=True), ensure_ascii=False)
    except TypeError:
        raise InvalidArgument(f"JSON cannot hold a value of type {type(value).__name__}") from None


def as_json(value: Any, *, strict: bool = False) -> Any:  # noqa: ANN401 - anything
    """A value as JSON can hold it; what has no form there becomes its `repr`, or raises TypeError if `strict`."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, np.integer)):
        number = int(value)
        return number if abs(number) < 1 << 63 else str(number)
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else str(value)
    if isinstance(value, (np.ndarray, np.bool_)):
        return as_json(value.tolist(), strict=strict)
    if isinstance(value, Mapping):
        return {str(key): as_json(part, strict=strict) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(part, strict=strict) for part in value]
    if strict:
        raise TypeError
    return repr(value)
