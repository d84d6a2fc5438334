"""Saving an episode: one canonical file, complete or not there at all."""

from __future__ import annotations

from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING

from shard_format import Codec, Compression, ShardWriter
from shard_format._crc import crc32c
from shard_format._layout import ALIGNMENTS
from shard_format.errors import FormatError
from shard_format.identity import IDENTITY_ENTRY
from shard_format.registry import DEFAULT_LIMITS, Limits, Role
from shard_format.writer import EntryToWrite
from wshard.blocks import FileBlock
from wshard.compressing import StoragePolicy
from wshard.planning import plan_blocks

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping

    from shard_format.schema import Schema
    from wshard.blocks import StoredBlock
    from wshard.episode import Episode
    from wshard.origin import Origin
    from wshard.planned import PlannedEntry

__all__ = ["save_wshard"]


def save_wshard(
    episode: Episode,
    path: str | os.PathLike[str],
    compression: str | Compression | Mapping[str, str | Compression] | None = None,
    *,
    profile: str | None = None,
    steps_per_frame: int | Mapping[str, int] | None = None,
    identity: bool | None = None,
    alignment: int | None = None,
    fsync: bool = True,
    threads: int | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> None:
    """Saves an episode as one file, which appears under its name when it is complete.

    Args:
        episode: what to save. One that was loaded keeps its form: what was not changed stays as it was.
        path: where; an existing file is replaced at the end.
        compression: `"none"` (the default: canonical bytes, every array a view of the file), `"zstd"`,
            `"zstd:LEVEL"`, `"lz4"`, `"auto"`, which tries what suits each block, or a mapping of block names,
            channel names or patterns to these: `{"signal/rgb": "zstd:19", "signal/depth*": "lz4", "*": "none"}`.
            Blocks that hardly shrink stay raw. `"keep"` copies unchanged blocks of a loaded episode as they are
            stored, without decoding them.
        profile: `"training"` for the smallest files with fast windows, `"exchange"` for files that the
            reference readers in other languages open. Both choose as `"auto"` unless told otherwise.
        steps_per_frame: how many steps are decoded together in large zstd blocks; or a mapping as for
            `compression`. None chooses by size.
        identity: whether to store the episode's identity; None keeps it if the loaded file had one.
        alignment: of every block, 0, 16, 32 or 64; None for 64, or what the loaded file had.
        fsync: False skips syncing to disk: faster, and unsafe if the power goes.
        threads: for compressing; None for one per processor, up to 8.
        limits: raise `max_decompressed_bytes` for compressed blocks above 1 GiB.

    Raises:
        InvalidArgument: names the channel that cannot be saved, and why.
    """
    policy = StoragePolicy(compression, profile, steps_per_frame)
    plan = plan_blocks(episode)
    origin = episode.origin
    if identity is None:
        identity = origin is not None and IDENTITY_ENTRY in origin.reader
    if alignment is None:
        stored = 64 if origin is None else origin.reader.header.alignment
        alignment = stored if stored in ALIGNMENTS else 64
    default = policy.default
    if policy.keeps_all and origin is not None:
        with suppress(ValueError):  # a header may name anything
            default = Compression(Codec(origin.reader.header.compression_default))
    with ShardWriter(
        path,
        role=Role.WSHARD,
        alignment=alignment,
        compression=default,
        names=[entry.name for entry in plan.entries],
        identity=identity,
        schema=_kept_schema(origin),
        fsync=fsync,
        limits=limits,
        threads=threads,
    ) as writer:
        kept = [_kept(entry, policy, origin, identity) for entry in plan.entries]
        for is_kept, run in groupby(zip(kept, plan.entries, strict=True), _is_kept):
            if is_kept:
                for block, entry in run:
                    assert block is not None
                    block.copy_to(writer, entry.content_type)
            else:
                writer.write_many(_entries([entry for _, entry in run], policy))


def _kept_schema(origin: Origin | None) -> Schema | None:
    """The schema section of the loaded file; one that nobody can read is not kept."""
    if origin is None or origin.reader.role != Role.WSHARD:
        return None
    with suppress(FormatError):
        return origin.reader.schema
    return None


def _is_kept(pair: tuple[StoredBlock | None, PlannedEntry]) -> bool:
    return pair[0] is not None


def _kept(
    entry: PlannedEntry, policy: StoragePolicy, origin: Origin | None, identity: bool
) -> StoredBlock | None:
    """A block with the same content in a file, if blocks are to be kept as they are stored."""
    if not policy.keeps(entry):
        return None
    if entry.stored is not None and entry.stored.can_be_copied(identity):
        return entry.stored
    # Loaded and perhaps changed: its checksum tells.
    for reader in () if origin is None else (origin.reader, *origin.sidecars):
        if entry.name in reader:
            info = reader.info(entry.name)
            if info.size == entry.nbytes and info.crc32c == crc32c(entry.flat().data):
                return FileBlock.of(reader, entry.name)
    return None


def _entries(entries: Iterable[PlannedEntry], policy: StoragePolicy) -> Iterator[EntryToWrite]:
    for entry in entries:
        storage = policy.for_entry(entry)
        yield EntryToWrite(
            entry.name,
            entry.read(),
            compression=storage.compression,
            content_type=entry.content_type,
            tags=entry.tag_bits,
            frame_bytes=storage.frame_bytes,
            filters=storage.filters,
        )
