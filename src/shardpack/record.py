"""Records and their entries: heads are checked when a record is opened, entries when you touch them."""

from __future__ import annotations

import struct
import sys
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from shard_format import display
from shard_format.canonical_json import parse_object
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
from shard_format.images import FORMATS, decode_image
from shard_format.sources import BytesSource, MappedSlice, is_url, slice_of
from shardpack import _msgpack
from shardpack._layout import (
    CHECKED,
    CHECKSUM,
    LARGEST_RECORD_METADATA,
    LONGEST_KEY,
    RECORD_HEAD,
    ROW,
    SAMPLE_HEAD,
    TAGS,
)
from shardpack._record_head import RecordHead, UsualHead, at_record, parse_head
from shardpack._shard_bytes import ShardBytes
from shardpack.encodings import LABELS, Encoding, MetadataEncoding, decode
from shardpack.values import decode_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from shard_format.registry import Limits
    from shard_format.sources import ByteSource
    from shardpack.values import Decoder

__all__ = ["Entry", "Record", "StoredEntry"]

# A notebook shows a record without being asked: how many bytes an image may have, and how many entries are looked at.
_MOST_FOR_A_PICTURE: Final = 32 << 20
_MOST_LOOKED_AT: Final = 64
_SMALLEST_SIDE: Final = 8
_ARRAY: Final = "application/x-npy"


class StoredEntry(NamedTuple):
    """An entry as it is in the file, to copy it without decoding."""

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


def read_contents(
    shard: ShardBytes, spans: Iterable[tuple[int, int]]
) -> Iterator[dict[str, bytes]]:
    """The content of every entry of records in memory, checked and decompressed: name to bytes.

    This is the only way to whole samples, so it is one flat loop. It expects the head of a record to be like the one
    that was read before, with the same entry names; `parse_head` parses any other.

    Args:
        shard: has the bytes in memory, or mapped.
        spans: start and end of each record.

    Raises:
        FormatError: a record breaks a rule; you have got those before it.
    """
    buffer, slices = shard.buffer, shard.slices
    if buffer is None:  # another thread has closed the shard
        raise Closed("the shard is closed", path=shard.name)
    shape, around, types_start, stored_types, unpack_rows, names, mask = shard.usual_head
    for start, end in spans:
        try:
            size, found_shape, key_size, metadata_size = _unpack_head(buffer, start)
        except struct.error:
            parse_head(shard, start, end - start)  # says what is wrong
            raise
        position = start + around + key_size + metadata_size
        if (
            found_shape != shape
            or size != end - start
            or position > end
            or not 0 < key_size <= LONGEST_KEY
            or metadata_size > LARGEST_RECORD_METADATA
            or not (head := slices[start:position]).startswith(stored_types, types_start)
            or crc32c(head) != CHECKED
        ):
            head, tag, types, _, _, _ = parse_head(shard, start, end - start)
            position = start + len(head)
            shard.usual_head = UsualHead.of(head, types, TAGS[tag].mask)
            shape, around, types_start, stored_types, unpack_rows, names, mask = shard.usual_head
        contents: dict[str, bytes] = {}
        row = iter(unpack_rows(head, _HEAD_SIZE))
        for name, stored_size, original_size, checksum in zip(names, row, row, row):  # noqa: B905 - a keyword costs time
            # Entries are aligned inside their record.
            begin = position + (start - position & mask)
            position = begin + stored_size
            contents[name] = data = slices[begin:position]
            if crc32c(data) != checksum or stored_size != original_size:
                # Compressed, or damaged.
                record = open_record(shard, start, end - start)
                contents[name] = record.read_stored(name, data, checksum, original_size)
        if position > end:
            raise open_record(shard, start, end - start).find_problem(names[-1])
        yield contents


def read_key(shard: ShardBytes, start: int, end: int) -> str:
    """The key of a record in memory whose head was checked, as `read_contents` does it."""
    head = shard.slices[start : start + RECORD_HEAD.size]
    _, _, count, types_size, key_size, _ = RECORD_HEAD.unpack(head)
    key_start = start + RECORD_HEAD.size + ROW.size * count + types_size
    stored = shard.slices[key_start : key_start + key_size]
    if stored.isascii() and b"\0" not in stored:
        return stored.decode("ascii")
    return open_record(shard, start, end - start).key


_unpack_head = SAMPLE_HEAD.unpack_from
_HEAD_SIZE: Final = SAMPLE_HEAD.size


def open_record(shard: ShardBytes, start: int, size: int) -> Record:
    """The record that takes `size` bytes from `start` on; checks its head.

    Raises:
        FormatError: the head breaks a rule (P-REC, P-KND).
    """
    return Record(shard, start, parse_head(shard, start, size))


class Record:
    """One sample: a key, metadata, and named entries.

    The head is in memory and checked. Entries are read, checked and decompressed when you access them.
    You cannot read a record after its shard was closed. Safe to use from several threads.
    """

    __slots__ = ("_entries", "_head", "_shard", "_start")

    def __init__(self, shard: ShardBytes, start: int, head: RecordHead) -> None:
        self._shard = shard
        self._start = start
        self._head = head
        self._entries: tuple[Entry, ...] | None = None

    @property
    def key(self) -> str:
        """The name of the sample, unique in its shard."""
        head = self._head
        start = head.types.key_start
        try:
            key = head.stored[start : start + head.key_size].decode("utf-8")
        except UnicodeDecodeError as error:
            problem = BadName(f"the key of a record is not UTF-8: {error}", rule="P-REC-5")
            raise at_record(problem, self._shard, self._start) from None
        if "\0" in key:
            problem = BadName("the key of a record holds U+0000", rule="P-REC-5")
            raise at_record(problem, self._shard, self._start)
        return key

    @property
    def metadata(self) -> dict[str, Any]:
        """What the writer stored about the sample; parsed each time."""
        encoding, stored = self.stored_metadata
        try:
            return _parse_metadata(encoding, stored, self._shard.limits)
        except ShardError as error:
            raise self.in_record(error) from None

    @property
    def stored_metadata(self) -> tuple[MetadataEncoding, bytes]:
        """The metadata as it is in the file, and its encoding."""
        head = self._head
        stop = len(head.stored) - CHECKSUM.size
        return TAGS[head.tag].metadata_encoding, head.stored[stop - head.metadata_size : stop]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the entries, in the order of the file."""
        return self._head.types.names

    @property
    def content_types(self) -> tuple[str, ...]:
        """Content types of the entries, in the order of the file; empty where unknown."""
        return self._head.types.content_types

    @property
    def shard_name(self) -> str:
        """What errors call the shard: a path, a URL, `<bytes>`."""
        return self._shard.name

    @property
    def offset(self) -> int:
        """Where the record starts in its shard."""
        return self._shard.base + self._start

    @property
    def size(self) -> int:
        """Bytes of the whole record in the file."""
        return int.from_bytes(self._head.stored[:8], "little")

    @property
    def alignment(self) -> int:
        """Every entry starts on a multiple of this."""
        return TAGS[self._head.tag].mask + 1

    def read_all(self) -> dict[str, bytes]:
        """The content of every entry, checked and decompressed: name to bytes."""
        shard, start, end = self._shard, self._start, self._start + self.size
        if shard.buffer is None:
            # One request for all entries.
            shard = shard.part(
                start, self._head.stored + shard.slices[start + len(self._head.stored) : end]
            )
            start, end = 0, end - start
        return next(read_contents(shard, ((start, end),)))

    def decode(self, decoders: Mapping[str, Decoder] | None = None) -> dict[str, Any]:
        """Every entry as the value of its content type; see `Entry.decode`."""
        return {entry.name: entry.decode(decoders) for entry in self.file_entries()}

    def file_entries(self) -> tuple[Entry, ...]:
        """The entries, in the order of the file."""
        if self._entries is None:
            self._entries = tuple(self._make_entries())
        return self._entries

    def _make_entries(self) -> Iterator[Entry]:
        # Entries hold a copy of the record that does not hold them: a reference cycle would keep the
        # file mapped until the garbage collector runs.
        record = Record(self._shard, self._start, self._head)
        mask, size = self.alignment - 1, self.size
        position = len(self._head.stored)
        rows = iter(self._head.rows)
        for number, row in enumerate(zip(rows, rows, rows, rows, strict=True)):
            position = (position + mask) & ~mask
            if row[0] > size - position:
                raise self._outside(self.names[number], position, row[0])
            yield Entry(record, number, position, _EntryRow(*row))
            position += row[0]

    def find_problem(self, name: str) -> ShardError:
        """What is wrong with an entry that does not pass its checks."""
        try:
            _ = next(islice(self._make_entries(), self.names.index(name), None)).data
        except ShardError as error:
            return error
        raise AssertionError("the entry is not damaged")  # pragma: no cover

    def __getitem__(self, name: str) -> Entry:
        """The entry of this name."""
        position = self._head.types.positions.get(name)
        if position is None:
            error = EntryNotFound(
                f"record {shorten(self.key)} has no entry {shorten(str(name))}",
                path=self._shard.name,
            )
            error.candidates, error.wanted = self.names, str(name)
            raise error
        try:
            return self.file_entries()[position]
        except BadOffset:
            # An entry leaves the record; those before it can still be read.
            return next(islice(self._make_entries(), position, None))

    def __contains__(self, name: object) -> bool:
        return name in self._head.types.positions

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return self._head.types.count

    def __repr__(self) -> str:
        return f"<Record {self.key!r}: {', '.join(map(repr, self.names))}>"

    def thumbnail(self) -> NDArray[np.uint8] | None:
        """A small picture of the first image in it; None without images, or if the image is large, remote or damaged.

        Without the extra `images`, only arrays that look like images are shown.
        """
        if is_url(self.shard_name):
            return None
        try:
            for entry in islice(self._make_entries(), _MOST_LOOKED_AT):
                frame = _frame_of(entry)
                if frame is not None:
                    picture = display.picture_of(frame)
                    is_byte = frame.dtype == np.uint8
                    low, high = (0.0, 255.0) if is_byte else display.value_range([picture])
                    return display.to_pixels(picture, low, high)
        except (ShardError, ValueError):
            pass  # reading the entry says what is wrong with it
        return None

    def _repr_html_(self) -> str:
        columns = ("entry", "type", "codec", "size", "stored")
        facts = [("shard", self.shard_name), ("size", display.size(self.size))]
        try:
            facts += display.fields(self.metadata)
            table = display.Table(columns, map(_cells, self._make_entries()), len(self))
            picture = self.thumbnail()
            pictures = {} if picture is None else {self.key: picture}
            return display.card(f"Record {self.key}", facts, table, pictures)
        except ShardError as error:  # a notebook still shows which record it is
            return display.card("Record", facts, note=f"cannot be shown: {error}")

    def __reduce__(self) -> tuple[Any, ...]:
        # Goes to another process as its bytes.
        shard, start = self._shard, self._start
        block = shard.slices[start : start + self.size]
        return _from_block, (shard.name, shard.limits, self.offset, block)

    def stored_entries(self, *, check: bool = True) -> list[StoredEntry]:
        """The entries as they are in the file, to copy them without decoding.

        Args:
            check: False skips the checksums, which are copied with the bytes.
        """
        return [entry.stored_entry(check=check) for entry in self.file_entries()]

    # --- for entries of this record

    def read_part(self, start: int, size: int) -> memoryview:
        """Bytes of the record; a view if the shard is in memory or mapped."""
        shard = self._shard
        begin = self._start + start
        view = shard.view  # another thread may close the shard
        if view is not None:
            return view[begin : begin + size]
        if shard.source is None:
            raise Closed("the shard is closed", path=shard.name)
        return memoryview(shard.slices[begin : begin + size])

    def part_source(self, start: int, size: int, name: str) -> ByteSource:
        """Bytes of the record as a source, which reads only what is asked for."""
        shard = self._shard
        begin = self._start + start
        view = shard.view
        if view is None:
            if shard.source is None or shard.is_closed:
                raise Closed("the shard is closed", path=shard.name)
            return slice_of(shard.source, begin, size, name)
        part = view[begin : begin + size]
        if shard.mapped is None:
            return BytesSource(part, name)
        return MappedSlice(part, shard.mapped, begin, name)

    @property
    def limits(self) -> Limits:
        """What the shard may ask for."""
        return self._shard.limits

    def read_stored(self, name: str, stored: bytes, check: int, size: int) -> bytes:
        """The content of an entry from its stored bytes; `check` is its checksum with the encoding above."""
        checksum, encoding = check & 0xFFFFFFFF, check >> 32 & 0xFF
        if crc32c(stored) != checksum or (not encoding and len(stored) != size):
            raise self.find_problem(name)
        return self.decompress(name, encoding, stored, size) if encoding else stored

    def decompress(self, name: str, encoding: int, stored: bytes | memoryview, size: int) -> bytes:
        """The content of a compressed entry."""
        try:
            return decode(encoding, stored, size, self._shard.limits)
        except ShardError as error:
            raise self.in_record(error, name) from None

    def in_record(self, error: ShardError, name: str | None = None) -> ShardError:
        """Add file, record and entry to an error."""
        error.problem = f"record {shorten(self.key)}: {error.problem}"
        if error.offset is None:
            error.offset = self.offset
        return error.located(path=self._shard.name, entry=name)

    def _outside(self, name: str, position: int, stored_size: int) -> ShardError:
        return self.in_record(
            BadOffset(
                "the entry extends beyond its record",
                offset=self.offset + position,
                expected=f"at most {max(0, self.size - position)} bytes",
                found=f"{stored_size} bytes",
                rule="P-ENT-1",
            ),
            name,
        )


def _frame_of(entry: Entry) -> NDArray[Any] | None:
    """The pixels of an entry that is an image, or an array with the shape of one; None if it is neither, or large."""
    is_image = entry.content_type in FORMATS
    if max(entry.size, entry.stored_size) > _MOST_FOR_A_PICTURE:
        return None
    if is_image:
        return decode_image(entry.content_type, entry.data, _MOST_FOR_A_PICTURE)
    value = entry.decode() if entry.content_type == _ARRAY else None
    if isinstance(value, np.ndarray) and value.ndim == 3 and value.dtype.kind in "biuf":
        colours = min(value.shape[0], value.shape[2])
        if colours in (1, 3, 4) and sorted(value.shape)[1] >= _SMALLEST_SIDE:
            return value
    return None


def _cells(entry: Entry) -> tuple[str, ...]:
    sizes = display.size(entry.size), display.size(entry.stored_size)
    return (entry.name, entry.content_type, entry.compression, *sizes)


def _from_block(name: str, limits: Limits, offset: int, block: bytes) -> Record:
    return open_record(ShardBytes(name, limits, block, offset), 0, len(block))


def _parse_metadata(encoding: MetadataEncoding, stored: bytes, limits: Limits) -> dict[str, Any]:
    """The metadata of a record (P-MTD)."""
    if encoding is MetadataEncoding.NONE:
        if stored:
            raise BadMetadata("metadata is present, but its encoding is 'none'", rule="P-MTD-1")
        return {}
    if encoding is MetadataEncoding.JSON:
        return parse_object(stored, "the metadata", limits, rule="P-MTD-2")
    value = _msgpack.unpack(stored, limits)
    if not isinstance(value, dict):
        raise BadMetadata("the metadata is not a map", found=type(value).__name__, rule="P-MTD-3")
    return value


class _EntryRow(NamedTuple):
    stored_size: int
    original_size: int
    checksum: int
    encoding: int


class Entry:
    """One named entry of a record: read, checked and decompressed on first access."""

    __slots__ = ("_data", "_number", "_position", "_record", "_row", "_stored", "name")

    def __init__(
        self, record: Record, number: int, position: int, row: _EntryRow, name: str | None = None
    ) -> None:
        self.name = record.names[number] if name is None else name
        """Unique in its record; a different one than in the file if the record is a combined one."""
        self._record = record
        self._number = number
        self._position = position
        self._row = row
        self._stored: memoryview | None = None
        self._data: memoryview | None = None

    @property
    def record_key(self) -> str:
        """The key of its record."""
        return self._record.key

    @property
    def content_type(self) -> str:
        """A media type such as `image/jpeg`; empty if unknown."""
        return self._record.content_types[self._number]

    @property
    def size(self) -> int:
        """Bytes of the content."""
        return self._row.original_size

    @property
    def stored_size(self) -> int:
        """Bytes in the file."""
        return self._row.stored_size

    @property
    def offset(self) -> int:
        """Where the stored bytes start in the shard."""
        return self._record.offset + self._position

    @property
    def compression(self) -> str:
        """`none`, `gzip`, `lz4` or `zstd`."""
        number = self._row.encoding
        return LABELS[number] if number < len(LABELS) else f"unknown ({number})"

    @property
    def crc32c(self) -> int:
        """CRC-32C of the stored bytes."""
        return self._row.checksum

    @property
    def data(self) -> memoryview:
        """The content, read-only: a view of the file if that is mapped and the entry is not compressed."""
        data = self._data
        if data is None:
            row = self._row
            data = self._checked()
            if row.encoding:
                record = self._record
                data = memoryview(
                    record.decompress(self.name, row.encoding, data, row.original_size)
                )
            elif row.stored_size != row.original_size:
                raise self.failed(
                    SizeMismatch(
                        "an entry that is not compressed has two different sizes",
                        expected=f"{row.stored_size} bytes",
                        found=f"{row.original_size} bytes",
                        rule="P-ENT-2",
                    )
                )
            self._data = data
        return data

    def read(self) -> bytes:
        """The content as a bytes object."""
        return bytes(self.data)

    def decode(self, decoders: Mapping[str, Decoder] | None = None) -> Any:  # noqa: ANN401 - any value
        """The content as the value of its content type: a dict, text, an array, and so on.

        If no decoder is known for the type, you get the same view as from `data`.

        Args:
            decoders: content type to function; tried before the registered decoders.
        """
        try:
            return decode_value(self, decoders)
        except ShardError as error:
            # An error of `data` has its place already.
            raise (error if error.entry == self.name else self.failed(error)) from None

    def source(self) -> ByteSource:
        """The content as a byte source, so that a file inside the record is read like a file.

        A mapped shard gives views of its mapping; a remote shard fetches only the ranges that are read.
        The checksum of the whole entry is not checked. A compressed entry is decompressed, and checked, here.
        """
        record = self._record
        name = f"{record.shard_name}, record {shorten(record.key)}, entry {shorten(self.name)}"
        if self.is_compressed or self.size != self.stored_size:
            return BytesSource(self.data, name)
        return record.part_source(self._position, self.stored_size, name)

    def stored_entry(self, *, check: bool = True) -> StoredEntry:
        """The entry as it is in the file; see `Record.stored_entries`."""
        row = self._row
        data = self._checked() if check else self._record.read_part(self._position, row.stored_size)
        return StoredEntry(
            self.name, self.content_type, row.encoding, row.original_size, row.checksum, data
        )

    def renamed(self, name: str) -> Entry:
        """The same entry under another name."""
        return Entry(self._record, self._number, self._position, self._row, name)

    def _checked(self) -> memoryview:
        stored = self._stored
        if stored is None:
            row = self._row
            stored = self._record.read_part(self._position, row.stored_size)
            computed = crc32c(stored)
            if computed != row.checksum:
                raise self.failed(
                    ChecksumMismatch(
                        "the stored bytes are damaged",
                        offset=self.offset,
                        expected=f"CRC-32C {row.checksum:08x}",
                        found=f"{computed:08x}",
                        rule="P-ENT-3",
                    )
                )
            self._stored = stored
        return stored

    @property
    def limits(self) -> Limits:
        """What a decoder may make of the entry."""
        return self._record.limits

    def failed(self, error: ShardError) -> ShardError:
        """Add file, record and entry to an error."""
        return self._record.in_record(error, self.name)

    @property
    def is_compressed(self) -> bool:
        """Whether reading the entry means decompressing it."""
        return self._row.encoding != Encoding.NONE

    def __len__(self) -> int:
        # Python has no length beyond sys.maxsize; reading such an entry says what is wrong with it.
        return self.size if self.size <= sys.maxsize else len(self.data)

    def __repr__(self) -> str:
        return (
            f"<Entry {self.name!r}: {self.content_type or 'unknown type'}, {self.size} bytes, "
            f"{self.compression}>"
        )
