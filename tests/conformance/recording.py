"""Recordings from the cases of spec/vectors/canonical, made with the library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from wshard import DType, Timebase, WShardStreamWriter
from wshard.streaming import StreamOptions

Told = dict[str, Any]
_NEVER = 3600.0
"""Seconds after which runs are written: only steps decide."""


def record(case: Told, path: Path) -> bytes:
    """Records what a case asks for; returns the journal, as it is before the episode is finished."""
    episode, base = case["episode"], case["episode"]["timebase"]
    channels = {one["id"]: one for one in case["channels"]}
    writer = WShardStreamWriter(
        path,
        episode["id"],
        [
            {key: value for key, value in one.items() if key != "shape"}
            | {"shape": [int(size) for size in one["shape"]]}
            for one in case["channels"]
        ],
        on_partial="discard",
        options=StreamOptions(
            flush_steps=int(case["options"]["flush_steps"]), flush_seconds=_NEVER, fsync="never"
        ),
    )
    writer.begin_episode(
        episode["env_id"],
        Timebase(base["type"], base["tick_hz"], int(base["epoch_ns"])),
        episode.get("metadata"),
    )
    for call in case["calls"]:
        ((kind, told),) = call.items()
        if kind == "step":
            facts = {key: value for key, value in told.items() if key != "values"}
            if "timestamp_ns" in facts:
                facts["timestamp_ns"] = int(facts["timestamp_ns"])
            writer.write_timestep(_values(channels, told["values"]), **facts)
        elif kind == "write":
            name = told["channel"]
            writer.write(name, _value(channels[name], told["value"]), int(told["timestamp_ns"]))
        else:
            start, end = int(told["start"]), int(told["end"])
            writer.annotate(told["text"], start, end, label=told["label"])
    writer.flush()
    journal = Path(writer.partial_path).read_bytes()
    writer.end_episode(final_observations=_values(channels, case["final"]))
    return journal


def _values(channels: Told, told: dict[str, str]) -> Told:
    return {key: _value(channels[key], value) for key, value in told.items()}


def _value(channel: Told, told: str) -> Any:  # noqa: ANN401 - an array or text
    data = bytes.fromhex(told)
    if channel["layout"] == "text":
        return data.decode()
    shape = [int(size) for size in channel["shape"]]
    if channel["layout"] == "ragged":
        shape = [-1, *shape]
    return np.frombuffer(data, DType.parse(channel["dtype"]).stored_dtype).reshape(shape)
