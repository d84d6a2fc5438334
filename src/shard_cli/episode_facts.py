"""What an episode is and holds, from its descriptions and its index: the facts of `wshard inspect`."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from shard_cli.entries import iter_rows
from shard_cli.exits import error_fields
from shard_cli.opening import open_episode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from shard_cli.episode_files import EpisodeFile
    from shard_format import ShardError, ShardReader
    from wshard import Channel, Episode

# Statistics read so many bytes at a time.
_WINDOW_BYTES: Final = 16 << 20
# Entries whose form the format fixes: dtype, and bytes of one of their steps.
_FIXED: Final = {
    "time/ticks": ("i32", 4),
    "done": ("bool", 1),
    "terminated": ("bool", 1),
    "truncated": ("bool", 1),
    "reward": ("f32", 4),
}


@dataclass(slots=True)
class _Stored:
    """How one block is stored, over all files that hold a part of it."""

    size: int = 0
    stored: int = 0
    codecs: list[str] = field(default_factory=list)
    filters: str | None = None
    frames: int | None = None
    sidecar: str | None = None


def describe(
    file: EpisodeFile,
    _: Callable[[int, int], None] | None = None,
    *,
    stats: bool = False,
    sidecars: bool = True,
    max_decompressed: int | None = None,
    threads: int | None = None,
) -> dict[str, Any] | ShardError:
    """The facts, as `--json` shows them, or why there are none. Reads no blocks unless `stats` is set."""
    from shard_format.errors import ShardError

    try:
        with open_episode(
            file.path, max_decompressed=max_decompressed, sidecars=sidecars, threads=threads
        ) as episode:
            return _facts(file, episode, stats=stats)
    except ShardError as error:
        return error


def _facts(file: EpisodeFile, episode: Episode, *, stats: bool) -> dict[str, Any]:
    assert episode.origin is not None
    origin = episode.origin
    stored = _stored(origin.chunks or [origin.reader], origin.sidecars)
    files = [origin.reader, *origin.chunks]
    seconds, rate, clock = _clock(episode)
    return {
        "file": file.path,
        "episode_id": episode.id,
        "env_id": episode.env_id,
        "steps": episode.length,
        "seconds": seconds,
        "rate_hz": rate,
        "clock": clock,
        "epoch_ns": episode.timebase.epoch_ns,
        "file_size": sum(reader.header.total_file_size for reader in files),
        "size": sum(one.size for one in stored.values()),
        "stored": sum(one.stored for one in stored.values()),
        "identity": _identity(origin.reader),
        "chunk": _chunk(episode),
        "chunks": [os.path.basename(reader.name) for reader in origin.chunks],
        "sidecars": [os.path.basename(reader.name) for reader in origin.sidecars],
        "metadata": episode.metadata,
        "provenance": episode.provenance,
        "blocks": list(_blocks(episode, stored, stats=stats)),
    }


def _stored(readers: Iterable[ShardReader], sidecars: Iterable[ShardReader]) -> dict[str, _Stored]:
    found: dict[str, _Stored] = {}
    for reader in (*readers, *sidecars):
        is_sidecar = reader in sidecars
        for row in iter_rows(reader):
            # Every sidecar has descriptions of its own.
            if row.name.startswith("meta/"):
                continue
            one = found.setdefault(row.name, _Stored())
            one.size += row.size
            one.stored += row.stored
            if row.codec not in one.codecs:
                one.codecs.append(row.codec)
            if row.codec == "zstd":
                _add_frames(one, reader, row.name)
            if is_sidecar:
                one.sidecar = os.path.basename(reader.name)
    return found


def _add_frames(one: _Stored, reader: ShardReader, name: str) -> None:
    from shard_format.errors import ShardError

    try:
        table, filters = reader.seek_table(name), reader.filters(name)
    except ShardError:  # damaged, which `wshard verify` says
        return
    if table is not None:
        one.frames = (one.frames or 0) + len(table)
    if filters is not None:
        one.filters = str(filters)


def _clock(episode: Episode) -> tuple[float, float, str]:
    """How long it lasts, steps in a second, and where that is from: `rate` or `timestamps`."""
    from shard_format.errors import ShardError

    rate = float(episode.timebase.tick_hz)
    try:
        times = episode.timestamps_ns
    except ShardError:
        times = None
    if times is None or len(times) < 2 or times[-1] <= times[0]:
        return (episode.length / rate if rate > 0 else 0.0), rate, "rate"
    between = (int(times[-1]) - int(times[0])) / 1e9
    measured = (len(times) - 1) / between
    return len(times) / measured, measured, "timestamps"


def _identity(reader: ShardReader) -> str | dict[str, Any] | None:
    from shard_format.errors import ShardError
    from shard_format.identity import stored_identity

    try:
        identity = stored_identity(reader)
    except ShardError as error:
        return {"error": error_fields(error)}
    return None if identity is None else identity.digest


def _chunk(episode: Episode) -> dict[str, Any] | None:
    if episode.chunk_index is None:
        return None
    span = episode.timestep_range
    return {
        "index": episode.chunk_index,
        "total": episode.total_chunks,
        "timestep_range": None if span is None else list(span),
    }


def _blocks(
    episode: Episode, stored: dict[str, _Stored], *, stats: bool
) -> Iterator[dict[str, Any]]:
    channels = _channels(episode)
    chunked = episode.origin is not None and bool(episode.origin.chunks)
    for name, one in stored.items():
        channel = channels.get(name)
        fields = _plain(name, one.size, episode) if channel is None else _described(channel)
        row: dict[str, Any] = {
            "block": name,
            **fields,
            "size": one.size,
            "stored": one.stored,
            "codec": "+".join(one.codecs),
            "filters": one.filters,
            "frames": one.frames,
            "sidecar": one.sidecar,
        }
        if stats:
            # A raw block of one file is a view: taken whole, its checksum is compared.
            whole = one.codecs == ["none"] and not chunked
            row["stats"] = None if channel is None else statistics(channel, whole=whole)
        yield row


def _channels(episode: Episode) -> dict[str, Channel]:
    from wshard import Channel

    named = [*episode.blocks(), *episode.extras.items()]
    return {
        channel.block or name: channel for name, channel in named if isinstance(channel, Channel)
    }


def _described(channel: Channel) -> dict[str, Any]:
    if channel.start_ns is not None:
        clock = "regular"
    else:
        clock = "own" if channel.has_own_clock else "steps"
    return {
        "dtype": "text" if channel.layout == "text" else channel.dtype.value,
        "shape": list(channel.shape),
        "length": channel.length,
        "layout": channel.layout,
        "clock": clock,
        "rate_hz": channel.sampling_rate_hz,
        "unit": channel.unit or None,
        "modality": None if channel.modality is None else str(channel.modality),
        "description": channel.description or None,
        "inferred": channel.inferred,
    }


def _plain(name: str, size: int, episode: Episode) -> dict[str, Any]:
    """What is known of a block that is no channel."""
    dtype: str | None = None
    shape: list[int] | None = None
    length: int | None = None
    lane = name.partition("/")[0]
    if name in _FIXED:
        dtype, step = _FIXED[name]
        shape, length = [], size // step
    elif lane in ("time", "offsets"):
        dtype, shape, length = "i64", [], size // 8
    elif lane == "label":
        label = episode.labels.get(name.removeprefix("label/"))
        dtype, length = "intervals", None if label is None else len(label)
    elif lane == "residual":
        kind = name.removesuffix("/scales").rpartition("/")[2]
        if name.endswith("/scales"):
            dtype = "f32"
        else:
            dtype = {"sign2nddiff": "bits", "delta_q": "i8"}.get(kind)
            length = None if dtype is None else episode.length
    return {
        "dtype": dtype,
        "shape": shape,
        "length": length,
        "layout": None,
        "clock": None,
        "rate_hz": None,
        "unit": None,
        "modality": None,
        "description": None,
        "inferred": False,
    }


def statistics(channel: Channel, *, whole: bool) -> dict[str, Any] | None:
    """Smallest, mean and largest of the finite values, and how many are not; None without numbers.

    A block that cannot be read gives its error: one bad lane does not hide the others.
    """
    import numpy as np

    from shard_format.errors import ShardError

    if channel.layout == "text":
        return None
    low, high = float("inf"), float("-inf")
    total, finite, nan, infinite = 0.0, 0, 0, 0
    try:
        for values in _pieces(channel, whole=whole):
            if values.dtype.kind == "f":
                good, missing = np.isfinite(values), int(np.isnan(values).sum())
                nan += missing
                infinite += values.size - int(good.sum()) - missing
                values = values[good]
            if values.size:
                finite += values.size
                total += float(values.sum(dtype="f8"))
                low, high = min(low, values.min().item()), max(high, values.max().item())
    except ShardError as error:
        return {"error": error_fields(error)}
    return {
        "min": low if finite else None,
        "mean": total / finite if finite else None,
        "max": high if finite else None,
        "nan": nan,
        "infinite": infinite,
    }


def _pieces(channel: Channel, *, whole: bool) -> Iterator[NDArray[Any]]:
    import numpy as np

    from wshard import RaggedChannel

    if isinstance(channel, RaggedChannel):
        yield _numbers(np.asarray(channel.values), channel)
        return
    steps = max(1, _WINDOW_BYTES // max(1, channel.step_bytes))
    if whole:
        _ = channel.data
    for start in range(0, channel.length, steps):
        piece = channel.read_steps(start, min(start + steps, channel.length))
        yield _numbers(piece, channel)


def _numbers(values: NDArray[Any], channel: Channel) -> NDArray[Any]:
    import numpy as np

    if channel.dtype == "bf16":
        # The upper half of a 32-bit float, whether or not ml_dtypes gives it a name.
        return (values.view("<u2").astype("<u4") << np.uint32(16)).view("<f4")
    return values.view(np.uint8) if values.dtype == np.bool_ else values
