"""Files from the cases of spec/vectors/canonical, written with the library."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import numpy as np

from shard_format import Compression, ShardWriter, WriterOptions
from shardpack import ShardPackWriter
from wshard import Channel, DType, Episode, Timebase, save_wshard
from wshard._blocks import Extra
from wshard.types import FileOptions, Intervals, RaggedChannel, Residual, TextChannel
from wshard.video import Packet, VideoChannel

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

Told = dict[str, Any]
"""What a case tells."""
_FIELDS = ("modality", "semantics", "content_type", "unit", "description", "lossy")


def write(case: Told, path: Path) -> None:
    """Writes what a case of `canonical/` asks for."""
    writers = {"container": _write_container, "episode": _write_episode, "pack": _write_pack}
    writers[case["kind"]](case, path)


# --- containers


def _write_container(case: Told, path: Path) -> None:
    options, entries = case["options"], case["entries"]
    reserve: int | list[str] | None = None
    if options["layout"] == "declared":
        reserve = [entry["name"] for entry in entries]
    elif options["layout"] == "reserved":
        reserve = int(options["max_entries"]) - options["identity"]
    with ShardWriter(
        path,
        role=int(options["role"]),
        alignment=int(options["alignment"]),
        compression=Compression.parse(options["compression"]),
        reserve=reserve,
        identity=options["identity"],
        options=WriterOptions(schema=case.get("schema")),
    ) as writer:
        for entry in entries:
            writer.write_entry(
                entry["name"],
                _content(entry["content"]),
                content_type=int(entry["content_type"]),
                tags=int(entry["tag_bits"]),
            )


def _content(text: str) -> bytes:
    kind, _, value = text.partition(":")
    if kind == "hex":
        return bytes.fromhex(value)
    size = int(value)
    if kind == "ramp":
        return bytes(position & 0xFF for position in range(size))
    return b"".join(b"row %06d\n" % row for row in range(size // 11 + 1))[:size]


# --- shards of datasets


def _write_pack(case: Told, path: Path) -> None:
    options = case["options"]
    with ShardPackWriter(
        path,
        alignment=int(options["alignment"]),
        metadata=case["user"],
        created=options["created"],
        compression=options["compression"],
    ) as writer:
        for record in case["records"]:
            entries = {entry["name"]: _content(entry["content"]) for entry in record["entries"]}
            kinds = {entry["name"]: entry["content_type"] for entry in record["entries"]}
            writer.write(record["key"], entries, record.get("metadata"), content_types=kinds)


# --- episodes


def _write_episode(case: Told, path: Path) -> None:
    options = case["options"]
    save_wshard(
        _episode(case["episode"]),
        path,
        compression=options["compression"],
        options=FileOptions(identity=options["identity"]),
    )


def _episode(told: Told) -> Episode:
    base = told["timebase"]
    ep = Episode(
        told["id"],
        env_id=told["env_id"],
        length=int(told["length"]),
        metadata=told["metadata"],
    )
    for field in ("chunk_index", "total_chunks"):
        if told.get(field) is not None:
            setattr(ep, field, int(told[field]))
    if told.get("timestep_range") is not None:
        first, last = map(int, told["timestep_range"])
        ep.timestep_range = (first, last)
    for lane in ("observations", "actions"):
        for key, channel in told.get(lane, {}).items():
            getattr(ep, lane)[key] = _channel(channel, ep.length)
    for channel, models in told.get("omens", {}).items():
        for model, one in models.items():
            ep.omens[channel][model] = _channel(one, ep.length)
    for channel, models in told.get("uncerts", {}).items():
        for model, kinds in models.items():
            for kind, one in kinds.items():
                ep.uncerts[channel][model][kind] = _channel(one, ep.length)
    _add_steps(ep, told)
    for one in told.get("residuals", ()):
        residual = _residual(ep, one)
        ep.residuals["/".join(filter(None, (one["channel"], one["model"], one["type"])))] = residual
    for key, label in told.get("labels", {}).items():
        ep.labels[key] = _label(label)
    for name, extra in told.get("extras", {}).items():
        content, kind = bytes.fromhex(extra["hex"]), int(extra["content_type"])
        ep.extras[name] = Extra(name, content, content_type=kind)
    if told.get("provenance") is not None:
        ep.provenance = told["provenance"]
    # Last: an episode without a rate takes that of the timestamps that it is given.
    ep.timebase = Timebase(base["type"], base["tick_hz"], int(base["epoch_ns"]))
    return ep


def _add_steps(ep: Episode, told: Told) -> None:
    if told.get("rewards") is not None:
        ep.rewards = _channel(told["rewards"], ep.length)
    for lane in ("terminations", "truncations"):
        if told.get(lane) is not None:
            setattr(ep, lane, np.frombuffer(bytes.fromhex(told[lane]), np.bool_))
    if told.get("ticks") is not None:
        ep.ticks = np.array([int(tick) for tick in told["ticks"]], np.int32)
    if told.get("timestamps_ns") is not None:
        ep.timestamps_ns = _times(told["timestamps_ns"])


def _times(texts: list[str]) -> NDArray[np.int64]:
    return np.array([int(text) for text in texts], np.int64)


def _channel(told: Told, length: int) -> Channel:
    row = dict(told.get("row", {}))
    facts: Told = {key: row.pop(key) for key in _FIELDS if key in row}
    if row:
        facts["extra"] = row
    if "timestamps_ns" in told:
        facts["timestamps_ns"] = _times(told["timestamps_ns"])
    if "start_ns" in told:
        facts["start_ns"] = int(told["start_ns"])
    if "sampling_rate_hz" in told:
        facts["sampling_rate_hz"] = told["sampling_rate_hz"]
    if "horizon" in told:
        facts["horizon"] = int(told["horizon"])
    dtype, shape = DType.parse(told["dtype"]), tuple(int(size) for size in told["shape"])
    layout = told["layout"]
    if layout == "text":
        return TextChannel("", told["text"], **facts)
    if layout == "ragged":
        steps = [_array(items, dtype, (-1, *shape)) for items in told["items"]]
        return RaggedChannel("", dtype, data=steps, **facts)
    if layout == "video":
        return _video(told, dtype, shape, facts)
    count = int(told.get("length", -1 if told["hex"] else length))
    return Channel("", dtype, shape, _array(told["hex"], dtype, (count, *shape)), **facts)


def _array(text: str, dtype: DType, shape: tuple[int, ...]) -> NDArray[Any]:
    data = bytes.fromhex(text)
    if not data and -1 in shape:
        shape = tuple(max(0, size) for size in shape)
    return np.frombuffer(data, dtype.stored_dtype).reshape(shape)


def _video(told: Told, dtype: DType, shape: tuple[int, ...], facts: Told) -> Channel:
    count = len(told["packets"])
    packets = zip(
        [bytes.fromhex(packet) for packet in told["packets"]],
        [int(step) for step in told.get("steps", range(count))],
        told.get("keyframes", [True] * count),
        told.get("hidden", [False] * count),
        strict=True,
    )
    return VideoChannel.from_packets(
        [Packet(*packet) for packet in packets],
        told["content_type"],
        shape,
        dtype=dtype,
        extradata=base64.b64decode(told.get("extradata", "")),
        **facts,
    )


def _residual(ep: Episode, told: Told) -> Residual:
    channel, model, kind = told["channel"], told["model"], told["type"]
    signal = ep.observations[channel]
    window = int(told.get("window", 256))
    if not model:
        return Residual.of_signal(channel, signal, kind, window=window)
    omen = ep.omens[channel][model]
    return Residual.of_error(channel, signal, omen, model, kind, window=window)


def _label(told: Told) -> Intervals:
    intervals = [
        (int(one["start"]), int(one["end"]), one["text"], one["source"] or "", one["confidence"])
        for one in told["intervals"]
    ]
    return Intervals(intervals, unit=told["unit"])
