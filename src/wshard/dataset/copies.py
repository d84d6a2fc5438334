"""Copies of episodes as they are decoded: which are worth making, what tells them apart, and writing one."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format import Codec, ShardWriter
from shard_format.registry import Role
from wshard.blocks import ChainedBlock, FileBlock
from wshard.episode import Episode
from wshard.planning import plan_blocks
from wshard.sidecar import fingerprint
from wshard.windows import SMALL_CHANNEL, STEP_KEYS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shard_format import ShardReader
    from wshard.channels import Channel
    from wshard.planned import PlannedEntry
    from wshard.windows import Sources

__all__ = ["copied_bytes", "is_worth_copying", "key_of", "write_copy"]

# In every key: another number, and no copy of an older library is used any more.
_VERSION: Final = 1
_PIECE_BYTES: Final = 1 << 24


def is_worth_copying(sources: Sources) -> bool:
    """Whether windows of a copy would cost less: what is far away, or large and compressed."""
    readers = _readers(sources.episode)
    if not all(reader.can_view for reader in readers):
        return True
    large = [channel.block for channel in _channels(sources) if channel.nbytes > SMALL_CHANNEL]
    return any(
        reader.info(name).codec is not Codec.NONE
        for reader in readers
        for name in large
        if name in reader
    )


def copied_bytes(sources: Sources) -> int:
    """About the size of a copy."""
    return sum(channel.nbytes for channel in _channels(sources))


def key_of(sources: Sources, path: str, mtime_ns: int | None) -> str | None:
    """A name for the copy of what items need of an episode, which changes whenever that may have changed.

    Args:
        sources: the episode, opened where it is.
        path: what it is called.
        mtime_ns: when its file was changed; None if it has no file of its own here.

    Returns:
        The name; None if a change might not show: no time and no checksums.
    """
    readers = _readers(sources.episode)
    blocks = sorted({channel.block for channel in _channels(sources)})
    if mtime_ns is None and not all(_has_checksum(r, name) for r in readers for name in blocks):
        return None
    facts = [
        _VERSION,
        # Behind the question mark are signatures, which differ from day to day.
        path.partition("?")[0] if mtime_ns is None else path,
        mtime_ns,
        [[reader.source.size(), fingerprint(reader)] for reader in readers],
        blocks,
    ]
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


def write_copy(path: str, sources: Sources) -> bool:
    """Writes what items need of an episode, uncompressed; it appears when it is complete.

    Every byte is checked on the way, in bounded memory.

    Args:
        path: where to.
        sources: the episode, opened where it is.

    Returns:
        Whether it is there now because of this; False if somebody else was faster.

    Raises:
        ShardError: the episode is damaged, or the copy cannot be written.
    """
    kept = _part_of(sources)
    plan = plan_blocks(kept)
    # Without rewards and ends, which are small, and may be stored in another form.
    channels = {block: channel for block, channel in kept.blocks() if "/" in block}
    with ShardWriter(
        path,
        role=Role.WSHARD,
        names=[entry.name for entry in plan.entries],
        # Losing it costs nothing but the time to make it again.
        fsync=False,
        threads=1,
    ) as writer:
        for entry in plan.entries:
            pieces = _pieces(entry, channels.get(entry.name), sources.episode)
            writer.write_entry_stream(entry.name, pieces, content_type=entry.content_type)
        if os.path.exists(path):
            writer.abort()
            return False
    return True


def _readers(episode: Episode) -> list[ShardReader]:
    """Every file that an episode is read from."""
    origin = episode.origin
    assert origin is not None
    return [origin.reader, *origin.sidecars, *origin.chunks]


def _channels(sources: Sources) -> list[Channel]:
    return [channel for channel in sources.channels.values() if channel is not None]


def _has_checksum(reader: ShardReader, name: str) -> bool:
    if name not in reader:
        return True
    info = reader.info(name)
    return info.crc32c is not None or info.size == 0


def _part_of(sources: Sources) -> Episode:
    """An episode of the same channels, with all clocks and nothing else."""
    whole = sources.episode
    wanted = {
        id(channel) for key, channel in sources.channels.items() if channel and key not in STEP_KEYS
    }
    part = Episode(whole.id or "copy", whole.env_id, timebase=replace(whole.timebase))
    part._length = whole.length
    for own, lane in ((part.observations, whole.observations), (part.actions, whole.actions)):
        for name, channel in lane.items():
            if id(channel) in wanted:
                own.adopt(name, channel)
    for name, models in whole.omens.items():
        for model in [model for model, channel in models.items() if id(channel) in wanted]:
            _inner(part.omens, name).adopt(model, models[model])
    for name, by_model in whole.uncerts.items():
        for model, kinds in by_model.items():
            for kind in [kind for kind, channel in kinds.items() if id(channel) in wanted]:
                _inner(_inner(part.uncerts, name), model).adopt(kind, kinds[kind])
    part._rewards = whole.rewards
    part._terminations, part._truncations = whole.terminations, whole.truncations
    part._ticks, part._timestamps = whole._ticks, whole._timestamps
    return part


def _inner(lane: Any, name: str) -> Any:  # noqa: ANN401 - lanes of lanes, of either depth
    if name not in lane:
        lane.adopt(name, lane.new_inner(name))
    return lane[name]


def _pieces(entry: PlannedEntry, channel: Channel | None, episode: Episode) -> Iterable[Any]:
    """The bytes of an entry, checked; of large ones never all at once."""
    block = None if channel is None or channel.is_loaded else channel._block
    if isinstance(block, FileBlock):
        return block.reader.iter_entry(block.name)
    if isinstance(block, ChainedBlock):
        return _chained_pieces(block, episode)
    return [entry.flat()]


def _chained_pieces(block: ChainedBlock, episode: Episode) -> Iterator[Any]:
    for reader in _readers(episode):
        # Parts of raw entries have no checksum of their own.
        if block.name in reader and reader.info(block.name).codec is Codec.NONE:
            reader.verify_entry(block.name)
    room = np.empty(min(_PIECE_BYTES, block.nbytes), np.uint8)
    for start in range(0, block.nbytes, _PIECE_BYTES):
        piece = room[: min(_PIECE_BYTES, block.nbytes - start)]
        block.read_into(start, piece)
        yield piece
