"""Saving an episode: one canonical file, complete or not there at all."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from shard_format import Codec, Compression, ShardWriter, WriterOptions
from shard_format.codecs import crc32c
from shard_format.errors import FormatError
from shard_format.identity import IDENTITY_ENTRY
from shard_format.registry import DEFAULT_LIMITS, Limits, Role
from shard_format.writer import EntryToWrite
from wshard._blocks import ArrayBlock, FileBlock
from wshard._plan_episode import plan_entries

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence

    from shard_format.schema import Schema
    from wshard._blocks import StoredBlock
    from wshard._episode import Episode, Origin
    from wshard._plan_episode import PlannedEntry
    from wshard._storage import Storage, StoragePolicy

__all__ = ["write_episode"]

_ALIGNMENTS: Final = (0, 16, 32, 64)
# Raw blocks above this size are copied piece by piece.
_PIECE_BYTES: Final = 16 << 20
# And compressed blocks above this size.
_STREAMED_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions:
    """What few callers of `save_wshard` need."""

    identity: bool | None = None
    """Whether to store the episode's identity; None for what the loaded file had."""
    alignment: int | None = None
    """Of every block: 0, 16, 32 or 64 bytes; None for what the loaded file had, or 64."""
    threads: int | None = None
    """How many threads compress; None for one per processor, up to 8."""
    limits: Limits = DEFAULT_LIMITS
    """Raise `max_decompressed_bytes` for compressed blocks above 1 GiB."""
    storage_options: Mapping[str, Any] | None = None
    """For a URL of an object store, as `load_wshard` takes them."""


DEFAULT_OPTIONS: Final = FileOptions()


def write_episode(
    episode: Episode,
    path: str | os.PathLike[str],
    policy: StoragePolicy,
    *,
    fsync: bool = True,
    options: FileOptions = DEFAULT_OPTIONS,
) -> None:
    """Writes an episode as one file and looks at no other; arguments as for `save_wshard`."""
    episode = policy.with_cameras(episode)
    entries = plan_entries(episode)
    policy.check_names(entries)
    origin = episode.origin
    identity = options.identity
    if identity is None:
        identity = origin is not None and IDENTITY_ENTRY in origin.reader
    alignment = options.alignment
    if alignment is None:
        stored = 64 if origin is None else origin.reader.header.alignment
        alignment = stored if stored in _ALIGNMENTS else 64
    default = policy.default
    if policy.keeps_all and origin is not None:
        with suppress(ValueError):  # a header may name anything
            default = Compression(Codec(origin.reader.header.compression_default))
    with ShardWriter(
        path,
        role=Role.WSHARD,
        alignment=alignment,
        compression=default,
        reserve=[entry.name for entry in entries],
        identity=identity,
        fsync=fsync,
        options=WriterOptions(
            schema=kept_schema(origin),
            limits=options.limits,
            threads=options.threads,
            storage_options=options.storage_options,
        ),
    ) as writer:
        _write(writer, entries, policy, origin, identity, options.limits)


def _write(
    writer: ShardWriter,
    entries: Sequence[PlannedEntry],
    policy: StoragePolicy,
    origin: Origin | None,
    identity: bool,
    limits: Limits,
) -> None:
    # Each entry with the block of a file to copy, or with how to store it.
    forms: Iterator[tuple[PlannedEntry, Any]] = (
        (entry, _kept(entry, policy, origin, identity) or _storage(entry, policy, origin, limits))
        for entry in entries
    )
    for entry_kind, run in groupby(forms, _kind_of):
        if entry_kind == "write":
            writer.write_many(_to_write(run))
            continue
        for entry, form in run:
            if entry_kind == "copy":
                form.copy_to(writer, entry.content_type)
                continue
            assert entry.block is not None
            writer.write_entry_stream(
                entry.name,
                entry.block().pieces(_PIECE_BYTES),
                compression=form.compression,
                content_type=entry.content_type,
                tags=entry.tag_bits,
                frame_bytes=form.frame_bytes,
                filters=form.filters,
            )


def _kind_of(pair: tuple[PlannedEntry, StoredBlock | Storage]) -> str:
    entry, form = pair
    if hasattr(form, "copy_to"):
        return "copy"
    if entry.block is None:
        return "write"
    if form.compression.codec is Codec.NONE:
        return "stream" if entry.nbytes > _PIECE_BYTES else "write"
    # What is in memory already is compressed faster from there, and one frame is compressed as a whole.
    is_long = entry.nbytes > _STREAMED_BYTES and form.frame_bytes is not None
    return "stream" if is_long and not isinstance(entry.block(), ArrayBlock) else "write"


def _to_write(run: Iterator[tuple[PlannedEntry, Storage]]) -> Iterator[EntryToWrite]:
    for entry, storage in run:
        yield EntryToWrite(
            entry.name,
            entry.read(),
            compression=storage.compression,
            content_type=entry.content_type,
            tags=entry.tag_bits,
            frame_bytes=storage.frame_bytes,
            filters=storage.filters,
        )


def kept_schema(origin: Origin | None) -> Schema | None:
    """The schema section of the loaded file; one that cannot be parsed is not kept."""
    if origin is None or origin.reader.role != Role.WSHARD:
        return None
    with suppress(FormatError):
        return origin.reader.schema
    return None


def _kept(
    entry: PlannedEntry, policy: StoragePolicy, origin: Origin | None, identity: bool
) -> StoredBlock | None:
    """A block with the same content in a file, if blocks keep their stored form."""
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


def _storage(
    entry: PlannedEntry, policy: StoragePolicy, origin: Origin | None, limits: Limits
) -> Storage:
    """How to store an entry; one that was changed as the file had it that the episode was loaded from."""
    most = limits.max_decompressed_bytes
    if origin is None or entry.name not in origin.reader:
        return policy.for_entry(entry, most)
    before, filters = origin.reader.info(entry.name).codec, origin.reader.filters(entry.name)
    return policy.for_entry(entry, most, before, filters)
