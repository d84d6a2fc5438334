"""Writing one shard: records go to the file in large batches, and the file appears when it is complete."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import time
from abc import ABC, abstractmethod
from array import array
from copy import deepcopy
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeAlias, Union

import numpy as np
from xxhash import xxh64_intdigest

from shard_format.atomic import AtomicFile, claim_space, write_all
from shard_format.canonical_json import canonical
from shard_format.errors import (
    Closed,
    InvalidArgument,
    LimitExceeded,
    ShardError,
    ShardIOError,
    shorten,
)
from shard_format.listing import is_there
from shard_format.registry import DEFAULT_LIMITS
from shard_format.sources import FileSource
from shard_format.writer_input import NameSet
from shardpack._index import build_index, unknown_fields
from shardpack._layout import (
    FOOTER_SIZE,
    INDEX_HEAD,
    MOST_RECORDS,
    VERSION,
)
from shardpack._record_encoder import RecordEncoder, encode_key
from shardpack._shard_bytes import ShardBytes
from shardpack.encodings import MetadataEncoding
from shardpack.reader import ShardPackReader
from shardpack.record import open_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import NDArray
    from typing_extensions import Self, Unpack

    from shard_format.codecs import Compression
    from shardpack._layout import Footer
    from shardpack._record_encoder import EncodedRecord, EncodingOptions
    from shardpack._record_head import EntryTypes
    from shardpack.columns import AnyRecord
    from shardpack.record import StoredEntry

__all__ = ["Output", "ShardPackWriter", "creation_time", "output_name"]

Output: TypeAlias = Union["str | os.PathLike[str] | BinaryIO"]
"""Where a writer writes: a path, or an open file such as a pipe."""

# Records are written in batches of this size; larger batches would leave the processor's cache.
_BATCH_BYTES: Final = 1 << 20
# Space is reserved ahead in steps as large as the file, between these bounds: writing into reserved space
# takes less than half the time on ext4.
_LEAST_CLAIM: Final = 8 << 20
_MOST_CLAIM: Final = 256 << 20
_BATCH_BUFFERS: Final = 1000
_MOST_UNSORTED: Final = 1 << 16
# Memory that the caller may change is copied up to this size, and written at once above it.
_LARGEST_COPY: Final = 1 << 20
_INDEX_BYTES_PER_RECORD: Final = 20
_METADATA_ROOM: Final = 1024
_MOST_COUNTED: Final = 1024
# A dataset with more entry names than this has no schema.
_MOST_NAMES: Final = 256


def creation_time(created: str | float | datetime | None) -> str:
    """The time that a shard states: as given, from SOURCE_DATE_EPOCH, or now."""
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


def output_name(output: Output) -> str:
    """What errors call the output of a writer: its path, or the name of a file object.

    Raises:
        InvalidArgument: it is neither a path nor an object with `write`.
    """
    if isinstance(output, (str, os.PathLike)):
        return os.fspath(output)
    if not hasattr(output, "write"):
        raise InvalidArgument(
            "cannot write to this",
            expected="a path, or a file that is open for writing bytes",
            found=type(output).__name__,
        )
    return str(getattr(output, "name", f"<{type(output).__name__}>"))


class RecordWriter(ABC):
    """What the writer of one shard and the writer of a set have in common."""

    @property
    @abstractmethod
    def encoder(self) -> RecordEncoder:
        """Makes the bytes of records."""

    @abstractmethod
    def write_encoded(self, record: EncodedRecord) -> None:
        """Add a record that an encoder with the same options has encoded."""

    @abstractmethod
    def close(self) -> None:
        """Finish what is being written. You can call it twice."""

    @abstractmethod
    def abort(self) -> None:
        """Drop what is being written."""

    def write(
        self,
        key: str,
        entries: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
        *,
        content_types: Mapping[str, str] | None = None,
        compression: Mapping[str, str | Compression] | None = None,
    ) -> None:
        """Add a record.

        Args:
            key: names the sample; unique in the shard, or in the set of shards.
            entries: name to content. Bytes are stored as they are; other values are encoded as the suffix of
                the name says: `.json`, `.txt`, `.npy` (arrays), `.npz` (dictionaries of arrays).
            metadata: what you want to know about the sample without reading its entries; JSON.
            content_types: for names whose suffix does not say it.
            compression: for single entries, by name; otherwise that of the writer.

        Raises:
            InvalidArgument: the key was written before, or a value cannot be stored. The shard is unchanged,
                and you can go on writing.
        """
        self.write_encoded(self.encoder.encode(key, entries, metadata, content_types, compression))

    def write_stored(
        self,
        key: str,
        entries: Iterable[StoredEntry],
        metadata_encoding: MetadataEncoding = MetadataEncoding.NONE,
        metadata: bytes = b"",
    ) -> None:
        """Add a record of entries that are encoded already, as `Record.stored_entries` returns them.

        Sizes and checksums are not checked.
        """
        self.write_encoded(self.encoder.encode_stored(key, entries, metadata_encoding, metadata))

    def copy(self, record: AnyRecord, *, key: str | None = None, check: bool = True) -> None:
        """Add a record of another shard without decoding its entries.

        Args:
            record: of any shard.
            key: a key other than its own.
            check: False skips the checksums of its entries.
        """
        entries = record.stored_entries(check=check)
        self.write_stored(record.key if key is None else key, entries, *record.stored_metadata)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


class ShardPackWriter(RecordWriter):
    """Writes one shard, record by record, in one pass.

        with ShardPackWriter("a.shardpack") as writer:
            writer.write("key", {"jpg": data, "json": {"label": 3}})

    The file appears under its name when `close` (or the end of the `with` block) has written and synced all of
    it. After an exception, `abort` or a kill, the file that was there before is unchanged. A killed process
    leaves a hidden `.partial` file from which `shardpack.recover` recovers the records. Not safe for several
    threads at once.

    Memory is bounded: 1 MiB of records that wait to be written, and 24 bytes per record, 32 if keys repeat.

    You can also pass a file object that is open for writing, such as a pipe, a socket or an `io.BytesIO`: it gets the
    shard from its first byte to its last, and is never read or moved. It stays yours to close. After an exception it
    holds a part of a shard, which `shardpack.recover` reads. The keys are then kept in memory, too.

    Args:
        path: where the file will appear; or an open file.
        alignment: every entry starts on a multiple of this: 1, 8 or 64. With 64 you can use arrays and files
            inside the shard in place with any instruction set, for about 32 bytes per entry.
        compression: for entries whose content type is not compressed already: `"none"`, `"lz4"`, `"zstd"`, or
            with a level, `"zstd:19"`. Entries above 1 GiB are stored uncompressed, because readers refuse
            larger compressed ones by default.
        metadata: your own fields about the shard.
        max_record_bytes: refuse records above this size.
        created: the time that the shard states; None for SOURCE_DATE_EPOCH, else now.
        append: True keeps the records that are already in the file and continues after them.
        overwrite: True replaces the file when the new one is complete. Without either, an existing file is an error.
        fsync: False skips syncing to disk: faster, but a power failure can lose the file.
        storage_options: for a URL of an object store, as `shard_format.remote.open_url` takes them.
    """

    def __init__(
        self,
        path: Output,
        *,
        metadata: Mapping[str, Any] | None = None,
        created: str | float | datetime | None = None,
        append: bool = False,
        overwrite: bool = False,
        fsync: bool = True,
        storage_options: Mapping[str, Any] | None = None,
        **encoding: Unpack[EncodingOptions],
    ) -> None:
        self._storage_options = storage_options
        self._file: AtomicFile | None = None
        self._stream: BinaryIO | None = None
        self._closed = False
        self._torn = False
        self.name = output_name(path)
        self._encoder = RecordEncoder(self.name, **encoding)
        self._created = creation_time(created)
        self.metadata: dict[str, Any] = deepcopy(dict(metadata or {}))
        """Your own fields about the shard. `close` writes them; you can change them until then."""
        canonical(self.metadata)  # refuse bad values now rather than after an hour
        self._other_fields: dict[str, Any] = {}
        self._offsets = array("Q")
        self._hashes = array("Q")
        # Numbers of the older records, sorted by hash when a key is first looked up; newer records are searched.
        self._by_hash: NDArray[np.intp] = np.empty(0, np.intp)
        self._seen = NameSet()
        self._is_in_set: Callable[[str], bool] | None = None
        self._keys: set[str] = set()  # of a file object, which cannot be read back
        self._position = 0
        self._written = 0
        self._claimed = 0
        self._pending: list[bytes | memoryview] = []
        self._schema = _SchemaCounter()
        self._update_hash: Callable[[bytes | memoryview], None] | None = None
        self._read_hash: Callable[[], str] | None = None
        self.fields: dict[str, Any] = {}
        """The metadata of the shard, once it is closed."""
        self.footer: Footer | None = None
        """The footer of the shard, once it is closed."""
        if append and overwrite:
            raise InvalidArgument("append and overwrite exclude each other", path=self.name)
        self._keeps_others = not (append or overwrite)
        if not isinstance(path, (str, os.PathLike)):
            if append:
                raise InvalidArgument("an open file cannot be appended to", path=self.name)
            self._stream = path
            return
        self._refuse_existing("the file exists")
        existing = None
        if append and is_there(self.name, storage_options):
            existing = ShardPackReader(self.name, storage_options=storage_options)
        try:
            self._file = AtomicFile(path, fsync=fsync, storage_options=storage_options)
            if existing is not None:
                self._continue(existing)
        except BaseException:
            self.abort()
            raise
        finally:
            if existing is not None:
                existing.close()

    def _refuse_existing(self, problem: str) -> None:
        if self._keeps_others and is_there(self.name, self._storage_options):
            raise InvalidArgument(
                problem,
                path=self.name,
                hint="pass overwrite=True to replace it, or append=True to continue after its records",
                command="pass --force to replace it",
            )

    @property
    def encoder(self) -> RecordEncoder:
        """Makes the bytes of records."""
        return self._encoder

    def share_keys(self, seen: NameSet, is_in_set: Callable[[str], bool]) -> None:
        """Make keys unique in a whole set of shards; call it before you write anything.

        Args:
            seen: hashes of the keys of all shards; this shard adds its own.
            is_in_set: whether a key is in one of the other shards; called when its hash was seen.
        """
        self._seen = seen
        self._is_in_set = is_in_set

    def hash_content(self) -> None:
        """Compute the SHA-256 of the file while it is written; call it before you write anything."""
        digest = hashlib.sha256()
        self._update_hash, self._read_hash = digest.update, digest.hexdigest

    @property
    def sha256(self) -> str | None:
        """The SHA-256 of the closed file, if `hash_content` was called."""
        return None if self._read_hash is None else self._read_hash()

    def keep_fields(self, fields: Mapping[str, Any]) -> None:
        """Keep the index fields of an older shard that this library does not know."""
        self._other_fields = {**unknown_fields(fields), **self._other_fields}

    def _continue(self, existing: ShardPackReader) -> None:
        """Take over all records of a finished shard."""
        assert self._file is not None
        hashes = existing.key_hashes()
        fields = existing.metadata
        self._offsets = array("Q", existing.get_index())
        self._hashes = array("Q", hashes.tobytes())
        self._seen.add_hashes(hashes)
        user = fields.get("user")
        self.metadata = {**(user if isinstance(user, dict) else {}), **self.metadata}
        self.keep_fields(fields)
        self._schema.continue_from(fields.get("schema"), len(existing))
        end = existing.footer.index_offset
        try:
            for piece in existing.pieces(end):
                write_all(self._file.descriptor, [piece])
        except ShardError:
            raise
        except OSError as error:
            raise ShardIOError.wrap(error, "cannot copy the records", self.name) from error
        self._position = self._written = end

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def temporary(self) -> str:
        """The hidden file while it is being written."""
        return self._file.temporary if self._file is not None else ""

    @property
    def size(self) -> int:
        """Size of the file if you closed it now, within a few hundred bytes."""
        return self.size_with(0, records=0)

    def size_with(self, record_bytes: int, *, records: int = 1) -> int:
        """Size of the file with one more record of this size."""
        count = len(self._offsets) + records
        around = INDEX_HEAD.size + FOOTER_SIZE + 8 + _METADATA_ROOM
        return self._position + record_bytes + _INDEX_BYTES_PER_RECORD * count + around

    def write_encoded(self, record: EncodedRecord) -> None:
        """Add a record that an encoder with the same options has encoded."""
        if self._closed or self._torn:
            self._ensure_whole()
        key, encoded, types, parts, size = record
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
        if self._stream is not None:
            self._keys.add(key)
        self._offsets.append(self._position)
        self._hashes.append(key_hash)
        self._position += size
        self._schema.add(types)
        self._torn = False

    def _append(self, parts: list[bytes | memoryview], size: int) -> None:
        must_write = False
        for part in parts:
            if type(part) is not bytes:
                # The caller may change it after this call.
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
        pending, self._pending = self._pending, []
        try:
            if self._update_hash is not None:
                # One call for many small pieces; large ones are not copied.
                is_small = position - self._written <= 2 * _BATCH_BYTES
                for piece in (b"".join(pending),) if is_small else pending:
                    self._update_hash(piece)
            if self._stream is not None:
                _write_stream(self._stream, pending)
            else:
                assert self._file is not None
                if position > self._claimed:
                    self._claim(position)
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
        """Reserve disk space before it is needed."""
        assert self._file is not None
        step = min(position, _MOST_CLAIM)
        if step < _LEAST_CLAIM:
            return
        self._claimed = position + step
        # There may be room for less; writing will tell.
        with contextlib.suppress(OSError):
            claim_space(self._file.descriptor, self._written, self._claimed - self._written)

    def _ensure_whole(self) -> None:
        if self._closed:
            raise Closed("the writer is closed", path=self.name)
        if self._torn:
            # An interrupt came in the middle of a record.
            self.abort()
            raise Closed("writing a record was interrupted; the shard is dropped", path=self.name)

    def flush(self) -> None:
        """Hand all records to the operating system, so that they survive if this process is killed."""
        self._ensure_whole()
        self._flush(self._position)
        if self._stream is not None:
            self._flush_stream()

    def _flush_stream(self) -> None:
        assert self._stream is not None
        try:
            self._stream.flush()
        except OSError as error:
            raise ShardIOError.wrap(error, "cannot write", self.name) from error

    def __contains__(self, key: object) -> bool:
        """Whether a record with this key was written, so that an interrupted run can skip it."""
        if not isinstance(key, str):
            return False
        encoded = encode_key(key)
        key_hash = xxh64_intdigest(encoded)
        return self._seen.contains_hash(key_hash) and self._is_there(key, key_hash)

    def _is_there(self, key: str, key_hash: int) -> bool:
        """Compare the keys themselves, because several keys can share a hash."""
        if self._is_in_set is not None and self._is_in_set(key):
            return True
        if self._stream is not None:
            return key in self._keys
        numbers = self._records_with(key_hash)
        if not numbers:
            return False
        self._flush(self._position)
        assert self._file is not None
        source = FileSource(self.name, os.dup(self._file.descriptor))
        try:
            shard = ShardBytes.of_source(source, DEFAULT_LIMITS)
            for number in numbers:
                start = self._offsets[number]
                is_last = number + 1 == len(self._offsets)
                stop = self._position if is_last else self._offsets[number + 1]
                if open_record(shard, start, stop - start).key == key:
                    return True
            return False
        finally:
            source.close()

    def _records_with(self, key_hash: int) -> list[int]:
        """Numbers of the records whose keys have this hash."""
        # No view of the hashes may outlive this call: an array cannot grow while there is one.
        hashes = np.asarray(self._hashes)
        if len(hashes) - len(self._by_hash) > _MOST_UNSORTED:
            self._by_hash = np.argsort(hashes)
        by_hash = self._by_hash
        # A key of another type would make NumPy convert all the hashes.
        wanted = np.uint64(key_hash)
        older, newer = hashes[: len(by_hash)], hashes[len(by_hash) :]
        first = np.searchsorted(older, wanted, sorter=by_hash)
        last = np.searchsorted(older, wanted, "right", sorter=by_hash)
        found = len(by_hash) + np.flatnonzero(newer == wanted)
        return [*by_hash[first:last].tolist(), *found.tolist()]

    def close(self) -> None:
        """Write the index and put the file in its place. You can call it twice."""
        if self._closed:
            return
        self._ensure_whole()
        fields: dict[str, Any] = {
            **self._other_fields,
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
            if self._file is None:
                self._flush_stream()
            else:
                if self._claimed:
                    os.ftruncate(self._file.descriptor, footer.total_size)
                self._refuse_existing("a file appeared here while the shard was written")
                self._file.commit()
            self.fields, self.footer = fields, footer
        except BaseException as error:
            self.abort()
            if isinstance(error, OSError) and not isinstance(error, ShardError):
                raise ShardIOError.wrap(error, "cannot finish the shard", self.name) from error
            raise
        self._closed = True

    def abort(self) -> None:
        """Drop everything that was written; what a file object has taken stays. You can call it at any time."""
        self._closed = True
        self._pending = []
        if self._file is not None:
            self._file.abort()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self.abort()

    def __repr__(self) -> str:
        return f"<ShardPackWriter {self.name!r}: {len(self)} records>"


def _write_stream(stream: BinaryIO, buffers: list[bytes | memoryview]) -> None:
    """Write all buffers to a file object, whatever pieces it takes them in."""
    for buffer in buffers:
        view = memoryview(buffer)
        while len(view):
            written: int | None = stream.write(view)
            if written is None and isinstance(stream, io.RawIOBase):
                raise BlockingIOError("the file takes no more bytes now, and does not wait")
            view = view[len(view) if written is None else written :]


class _SchemaCounter:
    """Counts how many records of a shard have an entry of each name."""

    def __init__(self) -> None:
        # Counted by entry types first, because most records share theirs.
        self._records: dict[EntryTypes, int] = {}
        self._schema: dict[str, dict[str, Any]] = {}
        self._too_many_names = False

    def continue_from(self, schema: object, records: int) -> None:
        """Take over the schema of a shard with this many records."""
        self._schema = _parse_schema(schema)
        self._too_many_names = bool(records) and not self._schema

    def add(self, types: EntryTypes) -> None:
        """Count a record."""
        counted = self._records
        if types in counted:
            counted[types] += 1
            return
        if len(counted) >= _MOST_COUNTED:
            self._count_names()
        counted[types] = 1

    def fields(self) -> dict[str, dict[str, Any]] | None:
        """Content type and record count of every name; None if there are too many names."""
        self._count_names()
        return None if self._too_many_names else self._schema

    def _count_names(self) -> None:
        for types, records in self._records.items():
            for name, content_type in zip(types.names, types.content_types, strict=True):
                known = self._schema.get(name)
                if known is None:
                    if len(self._schema) >= _MOST_NAMES:
                        self._too_many_names = True
                        continue
                    known = self._schema[name] = {"content_type": content_type, "records": 0}
                if known["content_type"] != content_type:
                    known["content_type"] = ""  # it varies
                known["records"] += records
        self._records.clear()


def _parse_schema(schema: object) -> dict[str, dict[str, Any]]:
    """The schema of a shard if it has the form that this version writes, else nothing."""
    if not isinstance(schema, dict):
        return {}
    counted: dict[str, dict[str, Any]] = {}
    for name, known in schema.items():
        content_type, records = (
            (known.get("content_type"), known.get("records")) if isinstance(known, dict) else (0, 0)
        )
        if not isinstance(content_type, str) or type(records) is not int:
            return {}
        counted[name] = {"content_type": content_type, "records": records}
    return counted
