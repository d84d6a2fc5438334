"""Records and their entries: parsed when they are opened, read and checked when they are touched."""

from __future__ import annotations

import sys
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from shard_format._json import parse_object
from shard_format.codecs import crc32c
from shard_format.errors import (
    BadMetadata,
    BadName,
    BadOffset,
    ChecksumMismatch,
    Closed,
    EntryNotFound,
    ShardError,
    SizeMismatch,
    shorten,
)
from shardpack import _msgpack
from shardpack._layout import CHECKSUM, TAGS, MetadataEncoding
from shardpack._origin import Origin
from shardpack.encodings import LABELS, Encoding, decode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shard_format.registry import Limits
    from shard_format.sources import ByteSource
    from shardpack._kinds import Kinds
    from shardpack.decoding import Decoder

__all__ = ["Entry", "Record", "StoredEntry"]


class StoredEntry(NamedTuple):
    """An entry as it is in the file, to be copied without decoding it."""

    name: str
    content_type: str
    encoding: int
    """0 none, 1 gzip, 2 lz4, 3 zstd."""
    original_size: int
    """Bytes after decoding."""
    crc32c: int
    """Of the stored bytes."""
    data: bytes | memoryview
    """The stored bytes."""


def located(error: ShardError | None, origin: Origin, start: int) -> ShardError:
    """The error with the file and the start of the record."""
    assert error is not None  # callers have seen that something is wrong
    if error.offset is None:
        error.offset = origin.base + start
    return error.located(path=origin.name)


class Record:
    """One sample: a key, metadata, and named entries.

    The head is in memory and checked; entries are read, checked and decoded when they are touched.
    A record of a closed shard can no longer be read. Safe to use from several threads.
    """

    __slots__ = ("_entries", "_fixed", "_head", "_kinds", "_origin", "_rows", "_start")

    def __init__(
        self,
        origin: Origin,
        start: int,
        fixed: tuple[Any, ...],
        head: bytes,
        kinds: Kinds,
        rows: tuple[int, ...],
    ) -> None:
        self._origin = origin
        self._start = start
        self._fixed = fixed
        self._head = head
        self._kinds = kinds
        self._rows = rows

    @property
    def key(self) -> str:
        """The name of the sample, unique in its shard."""
        start = self._kinds.key_start
        try:
            key = self._head[start : start + self._fixed[4]].decode("utf-8")
        except UnicodeDecodeError as error:
            problem = BadName(f"the key of a record is not UTF-8: {error}", rule="P-REC-5")
            raise located(problem, self._origin, self._start) from None
        if "\0" in key:
            problem = BadName("the key of a record holds U+0000", rule="P-REC-5")
            raise located(problem, self._origin, self._start)
        return key

    @property
    def metadata(self) -> dict[str, Any]:
        """What the writer said about the sample; empty if it said nothing. Parsed anew each time."""
        encoding, stored = self.stored_metadata
        try:
            return parse_metadata(encoding, stored, self._origin)
        except ShardError as error:
            raise self._in_record(error) from None

    @property
    def stored_metadata(self) -> tuple[MetadataEncoding, bytes]:
        """The metadata as it is in the file, and how it is encoded."""
        stop = len(self._head) - CHECKSUM.size
        return TAGS[self._fixed[1]].metadata_encoding, self._head[stop - self._fixed[5] : stop]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the entries, in the order of the file."""
        return self._kinds.names

    @property
    def content_types(self) -> tuple[str, ...]:
        """Content types of the entries, in the order of the file; empty where it is not known."""
        return self._kinds.content_types

    @property
    def offset(self) -> int:
        """Where the record starts in its shard."""
        return self._origin.base + self._start

    @property
    def size(self) -> int:
        """Bytes of the whole record in the file."""
        return int(self._fixed[0])

    @property
    def alignment(self) -> int:
        """Every entry starts on a multiple of this."""
        return TAGS[self._fixed[1]].mask + 1

    def read_all(self) -> dict[str, bytes]:
        """The content of every entry, checked and decompressed: the fastest way to a whole sample."""
        origin = self._origin
        base = self._start
        fixed = self._fixed
        size = fixed[0]
        mask = TAGS[fixed[1]].mask
        position = len(self._head)
        slices: Any = origin.slices
        if origin.buffer is None and origin.source is not None:
            # One request for all entries.
            slices, base = _Shifted(slices[base + position : base + size], position), 0
        contents: dict[str, bytes] = {}
        rows = iter(self._rows)
        for name, stored_size, original_size, checksum, encoding in zip(
            self._kinds.names, rows, rows, rows, rows, strict=False
        ):
            position = (position + mask) & ~mask
            stop = position + stored_size
            if stop > size:
                raise self._outside(name, position, stored_size)
            data = slices[base + position : base + stop]
            if crc32c(data) != checksum:
                raise self._damaged(name, position, checksum, data)
            if encoding:
                data = self._decode(name, encoding, data, original_size)
            elif stored_size != original_size:
                raise self._wrong_size(name, stored_size, original_size)
            contents[name] = data
            position = stop
        return contents

    def decode(self, decoders: Mapping[str, Decoder] | None = None) -> dict[str, Any]:
        """Every entry as the value that its content type says; see `Entry.decode`."""
        return {entry.name: entry.decode(decoders) for entry in self.file_entries()}

    def episode(self, **options: Any) -> Any:  # noqa: ANN401 - this package does not know episodes
        """The `wshard.Episode` of a record that `pack_episodes` wrote, with its added lanes.

        Nothing but its descriptions is read before it is touched, and arrays that are not compressed
        are views of the shard.

        Args:
            options: what `wshard.load_wshard` takes: `channels`, `lanes`, `check` and so on.
        """
        from shardpack.episodes import open_episode

        return open_episode(self, options)

    def file_entries(self) -> tuple[Entry, ...]:
        """The entries, in the order of the file."""
        try:
            return self._entries
        except AttributeError:
            self._entries: tuple[Entry, ...] = tuple(self._make_entries())
            return self._entries

    def _make_entries(self) -> Iterator[Entry]:
        # Entries hold a twin that does not hold them: in a circle they would keep a mapping of the file
        # until the garbage collector comes.
        twin = Record(self._origin, self._start, self._fixed, self._head, self._kinds, ())
        mask = TAGS[self._fixed[1]].mask
        size = self._fixed[0]
        position = len(self._head)
        rows = iter(self._rows)
        for number, (stored_size, original_size, checksum, encoding) in enumerate(
            zip(rows, rows, rows, rows, strict=True)
        ):
            position = (position + mask) & ~mask
            if position + stored_size > size:
                raise self._outside(self._kinds.names[number], position, stored_size)
            yield Entry(twin, number, position, stored_size, original_size, checksum, encoding)
            position += stored_size

    def __getitem__(self, name: str) -> Entry:
        """The entry of this name."""
        position = self._kinds.positions.get(name)
        if position is None:
            error = EntryNotFound(
                f"record {shorten(self.key)} has no entry {shorten(str(name))}",
                path=self._origin.name,
            )
            error.candidates, error.wanted = self.names, str(name)
            raise error
        try:
            return self.file_entries()[position]
        except BadOffset:
            # Another one leaves the record, and with it all that follow; those before are whole.
            return next(islice(self._make_entries(), position, None))

    def __contains__(self, name: object) -> bool:
        return name in self._kinds.positions

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds.names)

    def __len__(self) -> int:
        return self._kinds.count

    def __repr__(self) -> str:
        return f"<Record {self.key!r}: {', '.join(map(repr, self.names))}>"

    def __reduce__(self) -> tuple[Any, ...]:
        # Crosses between processes as the bytes that it is.
        origin, start = self._origin, self._start
        block = origin.slices[start : start + self.size]
        return _from_block, (origin.name, origin.limits, self.offset, block)

    def stored_entries(self, *, check: bool = True) -> list[StoredEntry]:
        """The entries as they are in the file, to be copied elsewhere without decoding them.

        Args:
            check: False skips the checksums, which go along with the bytes anyway.
        """
        return [entry.stored_entry(check=check) for entry in self.file_entries()]

    def _decode(self, name: str, encoding: int, stored: bytes | memoryview, size: int) -> bytes:
        try:
            return decode(encoding, stored, size, self._origin.limits)
        except ShardError as error:
            raise self._in_record(error, name) from None

    def _outside(self, name: str, position: int, stored_size: int) -> ShardError:
        return self._in_record(
            BadOffset(
                "the entry leaves its record",
                offset=self.offset + position,
                expected=f"at most {max(0, self._fixed[0] - position)} bytes",
                found=f"{stored_size} bytes",
                rule="P-ENT-1",
            ),
            name,
        )

    def _damaged(
        self, name: str, position: int, checksum: int, data: bytes | memoryview
    ) -> ShardError:
        return self._in_record(
            ChecksumMismatch(
                "the stored bytes are damaged",
                offset=self.offset + position,
                expected=f"CRC-32C {checksum:08x}",
                found=f"{crc32c(data):08x}",
                rule="P-ENT-3",
            ),
            name,
        )

    def _wrong_size(self, name: str, stored_size: int, original_size: int) -> ShardError:
        return self._in_record(
            SizeMismatch(
                "an entry that is not compressed has two different sizes",
                expected=f"{stored_size} bytes",
                found=f"{original_size} bytes",
                rule="P-ENT-2",
            ),
            name,
        )

    def _in_record(self, error: ShardError, name: str | None = None) -> ShardError:
        error.problem = f"record {shorten(self.key)}: {error.problem}"
        if error.offset is None:
            error.offset = self.offset
        return error.located(path=self._origin.name, entry=name)


def _from_block(name: str, limits: Limits, offset: int, block: bytes) -> Record:
    from shardpack._heads import open_record

    return open_record(Origin(name, limits, block, offset), 0, len(block))


class _Shifted:
    """Slices of bytes that were cut out of something larger."""

    __slots__ = ("_data", "_shift")

    def __init__(self, data: bytes, shift: int) -> None:
        self._data = data
        self._shift = shift

    def __getitem__(self, key: slice) -> bytes:
        return self._data[key.start - self._shift : key.stop - self._shift]


def parse_metadata(encoding: MetadataEncoding, stored: bytes, origin: Origin) -> dict[str, Any]:
    """The metadata of a record (P-MTD)."""
    if encoding is MetadataEncoding.NONE:
        if stored:
            raise BadMetadata("there is metadata although its encoding is none", rule="P-MTD-1")
        return {}
    if encoding is MetadataEncoding.JSON:
        return parse_object(stored, "the metadata", origin.limits, rule="P-MTD-2")
    value = _msgpack.unpack(stored)
    if not isinstance(value, dict):
        raise BadMetadata("the metadata is not a map", found=type(value).__name__, rule="P-MTD-3")
    return value


class Entry:
    """One named content of a record: read, checked and decompressed on first touch."""

    __slots__ = (
        "_checksum",
        "_data",
        "_encoding",
        "_number",
        "_original_size",
        "_position",
        "_record",
        "_stored",
        "_stored_size",
    )

    def __init__(
        self,
        record: Record,
        number: int,
        position: int,
        stored_size: int,
        original_size: int,
        checksum: int,
        encoding: int,
    ) -> None:
        self._record = record
        self._number = number
        self._position = position
        self._stored_size = stored_size
        self._original_size = original_size
        self._checksum = checksum
        self._encoding = encoding
        self._stored: memoryview | None = None
        self._data: memoryview | None = None

    @property
    def name(self) -> str:
        """Unique in its record."""
        return self._record._kinds.names[self._number]

    @property
    def content_type(self) -> str:
        """A media type such as `image/jpeg`; empty if it is not known."""
        return self._record._kinds.content_types[self._number]

    @property
    def size(self) -> int:
        """Bytes of the content."""
        return self._original_size

    @property
    def stored_size(self) -> int:
        """Bytes in the file."""
        return self._stored_size

    @property
    def offset(self) -> int:
        """Where the stored bytes start in the shard."""
        return self._record.offset + self._position

    @property
    def compression(self) -> str:
        """`none`, `gzip`, `lz4` or `zstd`."""
        number = self._encoding
        return LABELS[number] if number < len(LABELS) else f"unknown ({number})"

    @property
    def crc32c(self) -> int:
        """CRC-32C of the stored bytes."""
        return self._checksum

    @property
    def data(self) -> memoryview:
        """The content, read-only: a view of the file where it is mapped and the entry not compressed."""
        data = self._data
        if data is None:
            if self._encoding:
                content = self._record._decode(
                    self.name, self._encoding, self._checked(), self._original_size
                )
                data = memoryview(content)
            else:
                if self._stored_size != self._original_size:
                    raise self._record._wrong_size(
                        self.name, self._stored_size, self._original_size
                    )
                data = self._checked()
            self._data = data
        return data

    def read(self) -> bytes:
        """The content as bytes of its own."""
        return bytes(self.data)

    def decode(self, decoders: Mapping[str, Decoder] | None = None) -> Any:  # noqa: ANN401 - any value
        """The content as the value that its content type says: dict, text, array, episode…

        Contents of a type without a decoder come back as the view that `data` is.

        Args:
            decoders: content type to function, asked before the registered ones.
        """
        from shardpack.decoding import decode_entry

        return decode_entry(self, decoders)

    def source(self) -> ByteSource:
        """The content as a source of its own, for readers of parts; not checked as a whole.

        A file inside the record is read through it as a file is: in views of the shard, or of a remote
        one in the ranges that are needed.
        """
        from shardpack._entry_source import entry_source

        return entry_source(self)

    def stored_entry(self, *, check: bool = True) -> StoredEntry:
        """The entry as it is in the file; see `Record.stored_entries`."""
        data = self._checked() if check else self._read()
        return StoredEntry(
            self.name,
            self.content_type,
            self._encoding,
            self._original_size,
            self._checksum,
            data,
        )

    def _checked(self) -> memoryview:
        stored = self._stored
        if stored is None:
            stored = self._read()
            if crc32c(stored) != self._checksum:
                raise self._record._damaged(self.name, self._position, self._checksum, stored)
            self._stored = stored
        return stored

    def _read(self) -> memoryview:
        record = self._record
        start = record._start + self._position
        stop = start + self._stored_size
        origin = record._origin
        if origin.view is not None:
            return origin.view[start:stop]
        if origin.source is None:
            raise Closed("the shard is closed", path=origin.name)
        return memoryview(origin.slices[start:stop])

    @property
    def max_decoded_bytes(self) -> int:
        """The largest value that a decoder may make of it."""
        return self._record._origin.limits.max_decompressed_bytes

    def failed(self, error: ShardError) -> ShardError:
        """The error with file, record and entry."""
        return self._record._in_record(error, self.name)

    @property
    def is_compressed(self) -> bool:
        """Whether reading it takes a decompression."""
        return self._encoding != Encoding.NONE

    def __len__(self) -> int:
        # No length for Python: what is wrong with such an entry is found by reading it.
        return self._original_size if self._original_size <= sys.maxsize else len(self.data)

    def __repr__(self) -> str:
        return (
            f"<Entry {self.name!r}: {self.content_type or 'unknown type'}, {self.size} bytes, "
            f"{self.compression}>"
        )
