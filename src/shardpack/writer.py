"""Writing one shard: records go to the file in large batches, and the file appears when it is complete."""

from __future__ import annotations

import contextlib
import os
import time
from array import array
from copy import deepcopy
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from xxhash import xxh64_intdigest

from shard_format._atomic import AtomicFile, claim_space, copy_range, write_all
from shard_format._json import canonical
from shard_format._nameset import NameSet
from shard_format.errors import (
    Closed,
    InvalidArgument,
    LimitExceeded,
    ShardError,
    ShardIOError,
    shorten,
)
from shard_format.registry import DEFAULT_LIMITS, Limits
from shard_format.sources import FileSource
from shardpack._heads import open_record
from shardpack._index import build_index, unknown_fields
from shardpack._layout import (
    FOOTER_SIZE,
    INDEX_HEAD,
    MOST_RECORDS,
    VERSION,
    MetadataEncoding,
)
from shardpack._origin import Origin
from shardpack._preparing import Prepared, Preparer, encode_key
from shardpack._shapes import Schema
from shardpack.reader import ShardPackReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType

    from typing_extensions import Self

    from shardpack.encodings import EntryCompression
    from shardpack.record import Record, StoredEntry

__all__ = ["ShardPackWriter"]

# Records wait until there is this much to write at once; more would leave the processor's cache.
_BATCH_BYTES: Final = 1 << 20
# Space is claimed ahead in steps as large as what is there, between these: writing into it takes less
# than half the time on ext4.
_LEAST_CLAIM: Final = 8 << 20
_MOST_CLAIM: Final = 256 << 20
_BATCH_BUFFERS: Final = 1000
# Memory that the caller may change is copied up to this size, and written at once above it.
_LARGEST_COPY: Final = 1 << 20
_INDEX_BYTES_PER_RECORD: Final = 20
_METADATA_ROOM: Final = 1024


def creation_time(created: str | float | datetime | None) -> str:
    """The time that a shard says it was made: as given, from SOURCE_DATE_EPOCH, or now."""
    if isinstance(created, str):
        return created
    if created is None:
        epoch = os.environ.get("SOURCE_DATE_EPOCH")
        try:
            created = time.time() if not epoch else int(epoch)
        except ValueError:
            raise InvalidArgument(
                "SOURCE_DATE_EPOCH is not a number of seconds", found=repr(epoch)
            ) from None
    if not isinstance(created, datetime):
        created = datetime.fromtimestamp(int(created), timezone.utc)
    return created.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


class ShardPackWriter:
    """Writes one shard, record by record, in one pass.

    The file appears under its name when `close` (or the end of the `with` block) has written and synced
    all of it. An exception, `abort` or a killed process leaves what stood there before; what was
    written is then in a hidden `.partial` file, from which `shardpack.recover` gets it back, unless it
    was removed. Not safe for several threads at once.

    Memory is bounded: 1 MiB of records that wait to be written, and 24 bytes a record.

    Args:
        path: where the file will appear.
        alignment: every entry starts on a multiple of this: 1, 8 or 64. 64 makes arrays and episodes
            inside usable in place with any instruction set, for about 32 bytes an entry.
        compression: for entries whose content type is not compressed already: `"none"`, `"gzip"`,
            `"lz4"`, `"zstd"`, or with a level, `"zstd:19"`.
        metadata: fields of your own about the shard.
        index_fields: fields of the index that this library does not know, from the shard that this one
            replaces.
        metadata_encoding: how metadata of records is stored: `"json"` or `"msgpack"`.
        max_record_bytes: records above this are refused.
        created: what the shard says about its time; None for SOURCE_DATE_EPOCH, else now.
        append: True keeps the records that are in the file already and goes on after them.
        fsync: False skips syncing to disk: faster, and unsafe if the power goes.
        limits: raise `max_decompressed_bytes` for compressed entries above 1 GiB.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        alignment: int = 8,
        compression: str | EntryCompression | None = None,
        metadata: Mapping[str, Any] | None = None,
        index_fields: Mapping[str, Any] | None = None,
        metadata_encoding: str = "json",
        max_record_bytes: int | None = None,
        created: str | float | datetime | None = None,
        append: bool = False,
        fsync: bool = True,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self._file: AtomicFile | None = None
        self._closed = False
        self._torn = False
        self.name = os.fspath(path)
        self._preparer = Preparer(
            self.name,
            alignment=alignment,
            compression=compression,
            metadata_encoding=metadata_encoding,
            max_record_bytes=max_record_bytes,
            limits=limits,
        )
        self._limits = limits
        self._created = creation_time(created)
        self.metadata: dict[str, Any] = deepcopy(dict(metadata or {}))
        """Fields of your own about the shard, which are written by `close`; change them until then."""
        self._index_fields = unknown_fields(index_fields or {})
        canonical(
            {**self._index_fields, "user": self.metadata}
        )  # refused now rather than after an hour
        self._offsets = array("Q")
        self._hashes = array("Q")
        self._seen = NameSet()
        self._is_in_set: Callable[[str], bool] | None = None
        self._position = 0
        self._written = 0
        self._claimed = 0
        self._pending: list[bytes | memoryview] = []
        self._schema = Schema()
        existing = ShardPackReader(self.name, limits=limits) if append and self._exists() else None
        try:
            self._file = AtomicFile(path, fsync=fsync)
            if existing is not None:
                self._go_on(existing)
        except BaseException:
            self.abort()
            raise
        finally:
            if existing is not None:
                existing.close()

    def join_set(self, seen: NameSet, is_in_set: Callable[[str], bool]) -> None:
        """Makes keys unique in a whole set of shards; to be called before anything is written.

        Args:
            seen: hashes of the keys of all shards, to which this one adds its own.
            is_in_set: whether a key is in one of the other shards; asked when its hash was seen.
        """
        self._seen = seen
        self._is_in_set = is_in_set

    def _exists(self) -> bool:
        return os.path.exists(self.name)

    def _go_on(self, existing: ShardPackReader) -> None:
        """Takes over all records of a finished shard."""
        assert self._file is not None
        footer = existing.footer
        hashes, numbers = existing.index.lookup_arrays()
        by_record = hashes.copy()
        by_record[numbers] = hashes
        fields = existing.metadata
        self._offsets = array("Q", existing.get_index())
        self._hashes = array("Q", by_record.tobytes())
        self._seen.add_hashes(by_record)
        user = fields.get("user")
        self.metadata = {**(user if isinstance(user, dict) else {}), **self.metadata}
        self._index_fields = {**unknown_fields(fields), **self._index_fields}
        self._schema.go_on(fields.get("schema"), len(existing))
        try:
            descriptor = os.open(self.name, os.O_RDONLY | getattr(os, "O_BINARY", 0))
            try:
                copy_range(descriptor, 0, footer.index_offset, self._file.descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise ShardIOError.wrap(error, "cannot copy the records", self.name) from error
        self._position = self._written = footer.index_offset

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def temporary(self) -> str:
        """The hidden file that is being written."""
        return self._file.temporary if self._file is not None else ""

    @property
    def size(self) -> int:
        """How large the file would be if it were closed now, within a few hundred bytes."""
        return self.size_with(0, records=0)

    def size_with(self, record_bytes: int, *, records: int = 1) -> int:
        """How large the file would be with a record of so many bytes more."""
        count = len(self._offsets) + records
        around = INDEX_HEAD.size + FOOTER_SIZE + 8 + _METADATA_ROOM
        return self._position + record_bytes + _INDEX_BYTES_PER_RECORD * count + around

    def write(
        self,
        key: str,
        entries: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
        *,
        content_types: Mapping[str, str] | None = None,
        compression: Mapping[str, str | EntryCompression] | None = None,
    ) -> None:
        """Adds a record.

        Args:
            key: names the sample; unique in the shard.
            entries: name to content. Bytes are stored as they are; other values as the ending of the
                name says: `.json`, `.txt`, `.npy` (arrays), `.npz` (dictionaries of arrays), `.msgpack`.
            metadata: what is to be known about the sample without reading its entries.
            content_types: for names whose ending does not say it.
            compression: for single entries, by name; otherwise what the writer was told.

        Raises:
            InvalidArgument: the key was written before, or something cannot be stored. The shard stays
                as it was, and more can be written.
        """
        self._add(self._preparer.prepare(key, entries, metadata, content_types, compression))

    def prepare(
        self,
        key: str,
        entries: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
        content_types: Mapping[str, str] | None = None,
        compression: Mapping[str, str | EntryCompression] | None = None,
    ) -> Prepared:
        """A record with all its bytes encoded and its size known, for `write_prepared`."""
        return self._preparer.prepare(key, entries, metadata, content_types, compression)

    def write_prepared(self, prepared: Prepared) -> None:
        """Adds a record that this writer, or one with the same options, has prepared."""
        self._add(prepared)

    def write_stored(
        self,
        key: str,
        entries: Iterable[StoredEntry],
        metadata_encoding: MetadataEncoding = MetadataEncoding.NONE,
        metadata: bytes = b"",
    ) -> None:
        """Adds a record of entries that are encoded already, as `Record.stored_entries` gives them."""
        self._add(self._preparer.prepare_stored(key, entries, metadata_encoding, metadata))

    def prepare_stored(
        self,
        key: str,
        entries: Iterable[StoredEntry],
        metadata_encoding: MetadataEncoding = MetadataEncoding.NONE,
        metadata: bytes = b"",
    ) -> Prepared:
        """As `prepare`, of entries that are encoded already; sizes and checksums are taken as given."""
        return self._preparer.prepare_stored(key, entries, metadata_encoding, metadata)

    def copy(self, record: Record, *, key: str | None = None, check: bool = True) -> None:
        """Adds a record of another shard without decoding and encoding its entries.

        Args:
            record: of any shard.
            key: another key than the one that it has.
            check: False skips the checksums of its entries.
        """
        encoding, metadata = record.stored_metadata
        entries = record.stored_entries(check=check)
        self.write_stored(record.key if key is None else key, entries, encoding, metadata)

    def _add(self, prepared: Prepared) -> None:
        if self._closed or self._torn:
            self._ensure_whole()
        key, encoded, kinds, parts, size = prepared
        key_hash = xxh64_intdigest(encoded)
        if self._seen.contains_hash(key_hash) and self._is_there(key, key_hash):
            raise InvalidArgument(
                f"the key {shorten(key)} was written before",
                path=self.name,
                expected="keys that are unique",
                rule="P-REC-10",
            )
        if len(self._offsets) >= MOST_RECORDS:
            raise LimitExceeded(
                "too many records in one shard",
                path=self.name,
                expected=f"at most {MOST_RECORDS}",
                rule="P-IDX-1",
            )
        self._torn = True
        self._append(parts, size)
        self._seen.add_hash(key_hash)
        self._offsets.append(self._position)
        self._hashes.append(key_hash)
        self._position += size
        self._schema.add(kinds)
        self._torn = False

    def _append(self, parts: list[bytes | memoryview], size: int) -> None:
        must_write = False
        for part in parts:
            if type(part) is not bytes:
                # Its owner may change it after this call.
                if size <= _LARGEST_COPY:
                    parts = [b"".join(parts)]
                else:
                    must_write = True
                break
        self._pending += parts
        waiting = self._position + size - self._written
        if must_write or waiting >= _BATCH_BYTES or len(self._pending) >= _BATCH_BUFFERS:
            self._flush(self._position + size)

    def _flush(self, position: int) -> None:
        assert self._file is not None
        pending, self._pending = self._pending, []
        if position > self._claimed:
            self._claim(position)
        try:
            write_all(self._file.descriptor, pending)
        except OSError as error:
            written = self._written
            self.abort()
            raise ShardIOError.wrap(
                error, f"cannot write after {written} bytes of records", self.name
            ) from error
        except (MemoryError, KeyboardInterrupt, SystemExit):
            self.abort()
            raise
        self._written = position

    def _claim(self, position: int) -> None:
        """Asks the file system for room before it is needed."""
        assert self._file is not None
        step = min(position, _MOST_CLAIM)
        if step < _LEAST_CLAIM:
            return
        self._claimed = position + step
        # If there is no room for so much, there may be for less: writing will tell.
        with contextlib.suppress(OSError):
            claim_space(self._file.descriptor, self._written, self._claimed - self._written)

    def _ensure_whole(self) -> None:
        if self._closed:
            raise Closed("the writer is closed", path=self.name)
        if self._torn:
            # An interrupt came between steps that belong together.
            self.abort()
            raise Closed("writing a record was interrupted, the shard is given up", path=self.name)

    def flush(self) -> None:
        """Gives all records to the system, so that a killed process does not lose them."""
        self._ensure_whole()
        self._flush(self._position)

    def __contains__(self, key: object) -> bool:
        """Whether a record with this key was written, so that an interrupted run can skip it."""
        if not isinstance(key, str):
            return False
        encoded = encode_key(key)
        key_hash = xxh64_intdigest(encoded)
        return self._seen.contains_hash(key_hash) and self._is_there(key, key_hash)

    def _is_there(self, key: str, key_hash: int) -> bool:
        """Hashes collide: looks at the keys themselves."""
        if self._is_in_set is not None and self._is_in_set(key):
            return True
        hashes = np.frombuffer(self._hashes, np.uint64) if len(self._hashes) else np.empty(0)
        numbers = np.flatnonzero(hashes == key_hash).tolist()
        del hashes  # an array that is looked at cannot grow
        if not numbers:
            return False
        self._flush(self._position)
        assert self._file is not None
        source = FileSource.from_descriptor(self._file.descriptor, self.name)
        try:
            origin = Origin.of_source(source, self._limits)
            for number in numbers:
                start = self._offsets[number]
                is_last = number + 1 == len(self._offsets)
                stop = self._position if is_last else self._offsets[number + 1]
                if open_record(origin, start, stop - start).key == key:
                    return True
            return False
        finally:
            source.close()

    def close(self) -> None:
        """Writes the index and puts the file in its place. Safe to call twice."""
        if self._closed:
            return
        self._ensure_whole()
        assert self._file is not None
        fields: dict[str, Any] = {
            **self._index_fields,
            "created": self._created,
            "user": self.metadata,
            "version": VERSION,
        }
        if (schema := self._schema.fields()) is not None:
            fields["schema"] = schema
        try:
            parts, footer = build_index(self._offsets, self._hashes, self._position, fields)
            self._pending += parts
            self._flush(self._position)
            if self._claimed:
                os.ftruncate(self._file.descriptor, footer.total_size)
            self._file.commit()
        except BaseException as error:
            self.abort()
            if isinstance(error, OSError) and not isinstance(error, ShardError):
                raise ShardIOError.wrap(error, "cannot finish the shard", self.name) from error
            raise
        self._closed = True

    def abort(self) -> None:
        """Drops everything that was written. Safe to call after anything, also twice."""
        self._closed = True
        self._pending = []
        if self._file is not None:
            self._file.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self.abort()

    def __repr__(self) -> str:
        return f"<ShardPackWriter {self.name!r}: {len(self)} records>"
