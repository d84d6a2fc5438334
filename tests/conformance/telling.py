"""What the library reads, as the JSON of spec/vectors/README.md tells it."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from xxhash import xxh64_intdigest

from shard_format import Identity, Manifest, Role, ShardReader, compute_identity
from shard_format.verify import check
from shardpack import ShardPackReader, ShardSet, stream
from shardpack import open as open_shards
from shardpack._msgpack import Extension
from wshard import load_wshard, recover
from wshard._video_index import HIDDEN, KEYFRAME
from wshard.overviews import OverviewFile, open_overviews
from wshard.video import VideoChannel

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from numpy.typing import NDArray

    from shardpack import Record
    from wshard import Channel, Episode
    from wshard.types import Intervals, Residual

Told = dict[str, Any]
_HEADER = (
    *("version", "role", "flags", "alignment", "compression_default", "entry_count"),
    *("string_table_offset", "data_section_offset", "schema_offset", "total_file_size"),
)
_LONGEST_HEX = 512
_MOST_LISTED = 1000
_NOT_EXTRA = ("meta/provenance", "meta/identity")


def sha256(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


# --- containers


def tell_container(path: Path) -> Told:
    with ShardReader(path) as reader:
        identity, schema = compute_identity(reader), reader.schema
        told: Told = {
            "header": {field: str(getattr(reader.header, field)) for field in _HEADER},
            "identity": Identity(identity.entries).digest,
            "identity_2": identity.digest,
            "warnings": sorted(warning.code for warning in check(reader).warnings),
        }
        if len(reader) > _MOST_LISTED:
            lines = "".join(f"{name}\t{sha256(reader[name])}\n" for name in reader.names())
            told["entries_sha256"] = sha256(lines.encode())
        else:
            told["entries"] = [_entry(reader, number) for number in range(len(reader))]
        if schema is not None:
            told["schema"] = schema.fields
        if reader.role == Role.MANIFEST:
            told["manifest_files"] = [one.to_fields() for one in Manifest.read(reader).files]
        return told


def _entry(reader: ShardReader, number: int) -> Told:
    info, row = reader.info_at(number), reader.index[number]
    content = reader[info.name]
    told: Told = {
        "codec": info.codec.label,
        "content_type": str(info.content_type),
        "crc32c": f"{int(row['crc32c']):08x}",
        "data_offset": str(info.data_offset),
        "disk_size": str(info.disk_size),
        "name": info.name,
        "name_hash": f"{int(row['name_hash']):016x}",
        "orig_size": str(info.size),
        "sha256": sha256(content),
        "tag_bits": str(info.tag_bits),
    }
    filters, table = reader.filters(info.name), reader.seek_table(info.name)
    if filters is not None:
        told["filters"] = [
            {key: str(value) for key, value in one.items()}
            for one in json.loads(filters.description)["filters"]
        ]
    if table is not None:
        for start, end in pairwise(table.content_starts):
            # A range gives what the whole entry has there.
            assert reader.read_range(info.name, start, end) == content[start:end]
        told["seekable_frames"] = [
            {
                "compressed_size": str(stop - start),
                "decompressed_size": str(end - begin),
                **({} if table.checksums is None else {"checksum": f"{table.checksums[at]:08x}"}),
            }
            for at, ((start, stop), (begin, end)) in enumerate(
                zip(pairwise(table.stored_starts), pairwise(table.content_starts), strict=True)
            )
        ]
    return told


# --- episodes


def tell_episode(path: Path) -> Told:
    with load_wshard(path) as episode:
        return _episode(episode)


def _episode(ep: Episode) -> Told:
    base, rewards = ep.timebase, _channel(ep.rewards) if ep.rewards is not None else None
    told: Told = {
        "id": ep.id,
        "env_id": ep.env_id,
        "length": str(ep.length),
        "timebase": {
            "epoch_ns": str(base.epoch_ns),
            "tick_hz": base.tick_hz,
            "type": str(base.type),
        },
        "metadata": dict(ep.metadata),
        "chunk_index": _text(ep.chunk_index),
        "total_chunks": _text(ep.total_chunks),
        "timestep_range": ep.timestep_range and [str(step) for step in ep.timestep_range],
        "observations": {key: _channel(one) for key, one in ep.observations.items()},
        "actions": {key: _channel(one) for key, one in ep.actions.items()},
        "omens": {
            channel: {model: _channel(one) for model, one in models.items()}
            for channel, models in ep.omens.items()
        },
        "uncerts": {
            channel: {
                model: {kind: _channel(one) for kind, one in kinds.items()}
                for model, kinds in models.items()
            }
            for channel, models in ep.uncerts.items()
        },
        "rewards": rewards if ep.length else None,
        "terminations": _ends(ep.terminations, ep),
        "truncations": _ends(ep.truncations, ep),
        "residuals": {key: _residual(one) for key, one in ep.residuals.items()},
        "labels": {key: _label(one) for key, one in ep.labels.items()},
        "extras": {
            name: sha256(bytes(one)) for name, one in ep.extras.items() if name not in _NOT_EXTRA
        },
        "ticks": _integers(ep.ticks) if ("time/ticks",) in ep.parts and ep.length else None,
        "timestamps_ns": _integers(ep.timestamps_ns) or None,
    }
    return told


def _text(value: int | None) -> str | None:
    return None if value is None else str(value)


def _integers(values: Iterable[Any] | None) -> list[str] | None:
    return None if values is None else [str(int(value)) for value in values]


def _bytes(data: bytes) -> Told:
    return {"hex": data.hex()} if len(data) <= _LONGEST_HEX else {"sha256": sha256(data)}


def _stored(data: Any, dtype: str) -> bytes:  # noqa: ANN401 - an array
    array = np.ascontiguousarray(data)
    if dtype == "bool":
        return bytes(int(byte != 0) for byte in array.tobytes())
    if dtype == "bf16" and array.dtype.itemsize == 4:  # widened: the upper half is the value
        return (array.view(np.uint32) >> 16).astype("<u2").tobytes()
    return array.tobytes()


def _channel(channel: Channel) -> Told:
    dtype = channel.dtype_name.value
    told: Told = {
        "block": channel.block,
        "dtype": dtype,
        "inferred": channel.inferred,
        "layout": channel.layout,
        "length": str(channel.length),
        "shape": [str(size) for size in channel.step_shape],
    }
    if isinstance(channel, VideoChannel):
        told |= _video(channel)
    elif channel.layout == "text":
        told["text"] = list(channel.data)
    elif channel.layout == "ragged":
        told["items"] = [_stored(step, dtype).hex() for step in channel.data]
    else:
        told |= _bytes(_stored(channel.data, dtype))
    if channel.horizon is not None:
        told["horizon"] = str(channel.horizon)
    if channel.start_ns is not None:
        told["start_ns"] = str(channel.start_ns)
    if channel.sampling_rate_hz is not None:
        told["sampling_rate_hz"] = channel.sampling_rate_hz
    if channel.start_ns is not None and channel.sampling_rate_hz is not None:
        told["times_ns"] = _integers(channel.timestamps_ns)
    elif channel.has_own_timestamps:
        told["timestamps_ns"] = _integers(channel.timestamps_ns)
    return told


def _video(channel: VideoChannel) -> Told:
    stored, index = channel.stored_array().tobytes(), channel.index
    return {
        "content_type": channel.content_type,
        "extradata": base64.b64encode(channel.extradata).decode(),
        "hidden": [bool(flags & HIDDEN) for flags in index.flags],
        "keyframes": [bool(flags & KEYFRAME) for flags in index.flags],
        "packets": [stored[a:b].hex() for a, b in pairwise(channel.offsets.tolist())],
        "steps": _integers(index.steps),
    }


def _ends(channel: Channel | None, ep: Episode) -> Told | None:
    if channel is None:
        return None
    data = _stored(channel.data, "bool")
    if not ep.length:
        return None
    return {"block": channel.block, "hex": data.hex(), "length": str(channel.length)}


def _residual(residual: Residual) -> Told:
    scales, is_quantised = residual.scales, residual.type == "delta_q"
    return {
        "block": residual.block,
        "channel": residual.channel_id,
        "model": residual.model,
        "scales": None if scales is None else np.asarray(scales).tobytes().hex(),
        "shape": [str(size) for size in residual.data.shape[1:]] if is_quantised else None,
        "type": residual.type,
        "window": str(residual.window) if is_quantised else None,
        **_bytes(np.asarray(residual.data).tobytes()),
    }


def _label(label: Intervals) -> Told:
    intervals = [
        {
            "confidence": one.confidence,
            "end": str(one.end),
            "source": one.source or None,
            "start": str(one.start),
            "text": one.text,
        }
        for one in label
    ]
    return {"intervals": intervals, "unit": label.unit}


# --- recordings


def tell_journal(path: Path, out: Path) -> Told:
    """What comes back of a recording; `out` is where the episode is saved meanwhile."""
    result = recover(path, out, fsync=False)
    told: Told = {
        "cut": {block: str(count) for block, count in result.cut.items()},
        "episode": tell_episode(out),
        "finished": result.finished,
        "read_bytes": str(path.stat().st_size - result.lost_bytes),
    }
    if result.error is not None:
        told |= {"error": result.error.code, "rule": result.error.rule}
    return told


# --- packs and sets


def tell_pack(path: Path) -> Told:
    with ShardPackReader(path) as reader:
        told: Told = {"index_offset": str(reader.footer.index_offset), "metadata": reader.metadata}
        told["records"] = [_record(record) for record in reader]
        # Every way to a record gives the same one.
        assert [reader.by_key(one["key"]).offset for one in told["records"]] == [
            reader.record(number).offset for number in range(len(reader))
        ]
    streamed = [_record(record) for record in stream(path)]
    assert streamed == told["records"]
    return told


def _record(record: Record) -> Told:
    encoding = record.stored_metadata[0].name.lower()
    is_tagged = encoding == "messagepack"
    told: Told = {
        "alignment": str(record.alignment),
        "key": record.key,
        "key_hash": f"{xxh64_intdigest(record.key.encode()):016x}",
        "metadata": tagged(record.metadata) if is_tagged else record.metadata,
        "metadata_encoding": encoding,
        "offset": str(record.offset),
        "size": str(record.size),
    }
    entries = [
        {
            "content_type": entry.content_type,
            "crc32c": f"{entry.crc32c:08x}",
            "encoding": entry.compression,
            "name": entry.name,
            "offset": str(entry.offset),
            "original_size": str(entry.size),
            "sha256": sha256(entry.data),
            "stored_size": str(entry.stored_size),
        }
        for entry in record.file_entries()
    ]
    return told | {"entries": entries}


def tagged(value: object) -> Told:
    """A value of MessagePack with its type."""
    if value is None or isinstance(value, bool):
        return {"nil": None} if value is None else {"bool": value}
    if isinstance(value, int):
        return {"int": str(value)}
    if isinstance(value, float):
        return {"float64_hex": struct.pack(">d", value).hex()}
    if isinstance(value, str):
        return {"text": value}
    if isinstance(value, Extension):
        return {"ext": {"code": str(value.code), "hex": value.data.hex()}}
    if isinstance(value, bytes):
        return {"bin": value.hex()}
    if isinstance(value, list):
        return {"list": [tagged(item) for item in value]}
    assert isinstance(value, dict)
    return {"map": [[tagged(key), tagged(item)] for key, item in value.items()]}


def tell_set(path: Path) -> Told:
    found = ShardSet.read(path)
    with open_shards(path) as dataset:
        return {"fields": found.fields, "keys": list(dataset.keys()), "shards": list(found.names)}


# --- overviews


def tell_overviews(path: Path) -> Told:
    """The overview file of an episode, and what of it fits."""
    overviews = open_overviews(path)
    assert overviews is not None
    with overviews:
        return {
            "overviews": {block: _overview(overviews, block) for block in overviews},
            "posters": [
                {
                    "block": poster.block,
                    "height": str(poster.height),
                    "number": str(poster.number),
                    "step": str(poster.step),
                    "width": str(poster.width),
                    **_bytes(overviews.read_poster(poster)),
                }
                for poster in overviews.posters
            ],
            "stale": overviews.stale,
        }


def _overview(overviews: OverviewFile, block: str) -> Told:
    found, known = overviews[block], overviews.blocks[block]
    form = len(found.mean), known.values

    def stored(array: NDArray[Any]) -> Told:
        return _bytes(np.ascontiguousarray(array.reshape(form).T).tobytes())

    return {
        "buckets": str(len(found.mean)),
        "dtype": known.dtype.value,
        "maxima": stored(found.maximum),
        "mean_dtype": f"f{8 * found.mean.itemsize}",
        "means": stored(found.mean),
        "minima": stored(found.minimum),
        "shape": [str(size) for size in found.mean.shape[1:]],
        "steps_per_bucket": str(found.steps_per_bucket),
    }
