"""Reading: open, find, fetch, check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shard_format import seekable
from shard_format._index import FEW_ENTRIES, Index, parse_header
from shard_format._layout import HEADER_SIZE, Codec, HeaderFlag
from shard_format._memory import filled_bytes
from shard_format._namehash import WORD_PADDING
from shard_format._parallel import batches, for_each, thread_count
from shard_format.codecs import check_sizes, crc32c, decode, decode_into, iter_decoded
from shard_format.errors import (
    ChecksumMismatch,
    Closed,
    EntryNotFound,
    InvalidArgument,
    NotViewable,
    ShardError,
    SizeMismatch,
    Truncated,
    UnknownCodec,
    shorten,
)
from shard_format.registry import DEFAULT_LIMITS, Limits, role_label
from shard_format.schema import Schema
from shard_format.sources import ByteSource, SourceLike, SupportsReadInto, SupportsView, open_source
from shard_format.verify import check as check_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType

    from numpy.typing import NDArray
    from typing_extensions import Self

    from shard_format._layout import Header, IndexRow
    from shard_format.sources import BytesLike

__all__ = ["EntryInfo", "ShardReader"]

_CHECKSUMS = HeaderFlag.CHECKSUMS.value
# One read of this size brings the whole head of most files.
_FIRST_READ = 8192
# From here on stored bytes are decoded straight from the mapping instead of being read first, and an
# entry is worth a look for a seek table.
_LARGE = 1 << 18
# Raw entries are handed out in pieces of this size: large enough to be worth a map.
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class EntryInfo:
    """What the index says about one entry."""

    name: str
    """The entry's name."""
    codec: Codec
    """How its bytes are stored."""
    size: int
    """Bytes after decompression (`orig_size`)."""
    disk_size: int
    """Bytes in the file."""
    data_offset: int
    """Where the stored bytes start in the file."""
    crc32c: int | None
    """Checksum of the uncompressed bytes; None if the file has none for this entry."""
    content_type: int
    """A hint; see `ContentType`."""
    tag_bits: int
    """Sixteen flags, named by the schema's tag dictionary."""
    flags: int
    """The raw flags of the index entry."""


class ShardReader:
    """The entries of a Shard file, by name.

    Opening reads the head of the file and checks its structure; the time does not depend on how much
    data follows. Every entry returned whole is checked against its CRC-32C. A reader never changes
    after opening: threads may share it, forked processes inherit it, and it pickles as its location.

    Owns: the source, if it opened it itself.

    Args:
        source: a path, bytes, a binary file that can seek, or any `ByteSource`.
        limits: what the file may ask for; raise one for files you trust.
        threads: how many threads large reads may use; None for one per processor, up to 8.
        check: False skips the checksums of entries. Structure is always checked.

    Raises:
        ShardError: a subclass that says which rule of spec/shard.md the file breaks.
    """

    def __init__(
        self,
        source: SourceLike,
        *,
        limits: Limits = DEFAULT_LIMITS,
        threads: int | None = None,
        check: bool = True,
    ) -> None:
        if threads is not None and threads < 1:
            raise InvalidArgument("threads must be at least 1", found=threads)
        self._source = open_source(source)
        self._owns_source = self._source is not source
        self._limits = limits
        self._threads = threads
        self._check = check
        self._closed = False
        try:
            self.header, self._index = _read_head(self._source, limits)
        except ShardError as error:
            self.close()
            raise error.located(path=self._source.name) from None
        self._all_checked = bool(self.header.flags & _CHECKSUMS)

    header: Header
    """The header, field by field."""

    # --- what is there

    @property
    def name(self) -> str:
        """What the source calls itself: a path, or `<bytes>`."""
        return self._source.name

    @property
    def role(self) -> int:
        """What the file is for; see `Role`."""
        return self.header.role

    @property
    def limits(self) -> Limits:
        """The limits it was opened with."""
        return self._limits

    @property
    def threads(self) -> int | None:
        """How many threads large reads may use; None for one per processor, up to 8."""
        return self._threads

    @property
    def source(self) -> ByteSource:
        """Where the bytes come from."""
        return self._source

    @property
    def index(self) -> NDArray[Any]:
        """The index as a read-only structured array, one row per entry, without a copy."""
        return self._index.rows

    def names(self) -> list[str]:
        """All names, in the order of the index."""
        return self._index.names()

    def prefix(self, prefix: str) -> list[str]:
        """The names that start with `prefix`, in the order of the index."""
        return self._index.names(self._index.with_prefix(prefix))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._index.find(name) is not None

    def __len__(self) -> int:
        return self._index.count

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __getitem__(self, name: str) -> bytes:
        return self.read_entry(name)

    def info(self, name: str) -> EntryInfo:
        """What the index says about an entry. The entry itself is not read."""
        return self.info_at(self._find(name), name)

    def info_at(self, number: int, name: str | None = None) -> EntryInfo:
        """What the index says about the entry in row `number`."""
        if not 0 <= number < self._index.count:
            raise InvalidArgument(
                "no such row", path=self.name, expected=f"0 to {len(self) - 1}", found=number
            )
        row = self._index.row(number)
        name = self._index.name(number) if name is None else name
        try:
            codec = self._codec(row)
        except ShardError as error:
            raise error.located(path=self.name, entry=name) from None
        return EntryInfo(
            name=name,
            codec=codec,
            size=row.orig_size,
            disk_size=row.disk_size,
            data_offset=row.data_offset,
            crc32c=row.crc32c if self._all_checked or row.crc32c else None,
            content_type=row.content_type,
            tag_bits=row.tag_bits,
            flags=row.flags,
        )

    def info_name(self, number: int) -> str:
        """The name of the entry in row `number`."""
        return self._index.name(number)

    def first_wrong_name_hash(self) -> str | None:
        """The first name whose stored hash is not its XXH64 (S-NAM-5), None if all are right."""
        number = self._index.first_wrong_hash()
        return None if number is None else self._index.name(number)

    def infos(self) -> Iterator[EntryInfo]:
        """What the index says about each entry, in its order, one at a time."""
        for number, name in enumerate(self.names()):
            yield self.info_at(number, name)

    @property
    def schema(self) -> Schema | None:
        """The schema section, read now; None if the file has none.

        Raises:
            BadMetadata: the section is malformed. Entries can still be read.
        """
        self._ensure_open()
        try:
            return Schema.read(self.header, self._index.rows, self._source, self._limits)
        except ShardError as error:
            raise error.located(path=self.name) from None

    # --- reading

    def read_entry(self, name: str) -> bytes:
        """All bytes of an entry, decompressed and checked."""
        row = self._index.row(self._find(name))
        try:
            if not row.flags & 1 and row.disk_size == row.orig_size:
                data = self._source.read_at(row.data_offset, row.disk_size)
                self._check_content(row, data)
                return data
            return self._decode(row)
        except ShardError as error:
            raise self._located(error, name) from None

    def read_many(self, names: Iterable[str]) -> list[bytes]:
        """All bytes of several entries, in the asked order, decompressed in parallel."""
        wanted = list(names)
        numbers = [self._find(name) for name in wanted]
        sizes = [int(size) for size in self._index.rows["orig_size"][numbers]] if numbers else []
        if len(wanted) == 1:  # leaves the threads to the frames of a seekable entry
            return [self.read_entry(wanted[0])]
        results: list[bytes] = [b""] * len(wanted)

        def read_run(run: range) -> None:
            for position in run:
                results[position] = self.read_entry(wanted[position])

        for_each(
            batches(range(len(wanted)), sizes),
            read_run,  # type: ignore[arg-type] # slices of a range are ranges
            thread_count(self._threads, sum(sizes)),
        )
        return results

    def read_into(
        self, name: str, buffer: BytesLike, *, start: int = 0, stop: int | None = None
    ) -> int:
        """Reads an entry, or its bytes from `start` to `stop`, into memory of the caller.

        Nothing is copied on the way: raw bytes are read and compressed ones decoded into place.

        Args:
            name: the entry.
            buffer: writable, contiguous memory of at least the needed size, such as an array.
            start: first byte wanted.
            stop: end of the bytes wanted; None for the end of the entry.

        Returns:
            The number of bytes written to the start of the buffer.
        """
        row = self._index.row(self._find(name))
        stop = row.orig_size if stop is None else stop
        try:
            _check_range(row, start, stop)
            out = _writable_bytes(buffer)
            if len(out) < stop - start:
                raise InvalidArgument(
                    "the buffer is too small",
                    expected=f"at least {stop - start} bytes",
                    found=f"{len(out)} bytes",
                )
            out = out[: stop - start]
            if (start, stop) == (0, row.orig_size):
                self._read_whole_into(row, out)
            else:
                self._read_part_into(row, start, out)
        except ShardError as error:
            raise self._located(error, name) from None
        return len(out)

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """The bytes of an entry from `start` to `stop`.

        Of a seekable entry only the frames that hold them are read, decoded and checked. Of a raw entry
        only the bytes themselves are read; a part of it has no checksum. Any other compressed entry is
        decoded and checked as a whole first.
        """
        row = self._index.row(self._find(name))
        try:
            _check_range(row, start, stop)
            if (start, stop) == (0, row.orig_size):
                return self.read_entry(name)
            if self._codec(row) is Codec.NONE:
                _check_raw(row)
                return self._source.read_at(row.data_offset + start, stop - start)
            return filled_bytes(
                stop - start, row.disk_size, lambda out: self._read_part_into(row, start, out)
            )
        except ShardError as error:
            raise self._located(error, name) from None

    def iter_entry(self, name: str) -> Iterator[memoryview]:
        """The content of an entry in pieces, in bounded memory, for entries of any size.

        The checksum covers the whole: it is checked after the last piece, and a mismatch is raised
        then. Pieces of raw entries are views of the mapped file.
        """
        row = self._index.row(self._find(name))
        try:
            checksum = 0
            for piece in self._iter_content(row):
                checksum = crc32c(piece, checksum) if self._check else 0
                yield piece
            if self._is_checked(row):
                _compare_checksum(row, checksum)
        except ShardError as error:
            raise self._located(error, name) from None

    def view(self, name: str) -> memoryview:
        """A read-only view of an uncompressed entry, without a copy and without a check.

        The view maps the file and keeps the mapping alive, also after `close()`. Use `verify()` to check
        the bytes behind it. `np.frombuffer(view, dtype)` makes an array of it.

        Raises:
            NotViewable: the entry is compressed, or the source has no memory to show.
        """
        row = self._index.row(self._find(name))
        try:
            if self._codec(row) is not Codec.NONE:
                raise NotViewable(
                    f"the entry is compressed with {self._codec(row).label}",
                    hint="use read_entry or read_into",
                )
            _check_raw(row)
            source = self._source
            if not isinstance(source, SupportsView):
                raise NotViewable(
                    f"a {type(source).__name__} cannot hand out views",
                    hint="use read_entry or read_into",
                )
            return source.view(row.data_offset, row.disk_size)
        except ShardError as error:
            raise self._located(error, name) from None

    def seek_table(self, name: str) -> seekable.SeekTable | None:
        """Where the frames of a seekable entry are; None if the entry is not seekable."""
        row = self._index.row(self._find(name))
        try:
            if self._codec(row) is not Codec.ZSTD:
                return None
            return self._seek_table(row)
        except ShardError as error:
            raise self._located(error, name) from None

    def verify(self, *, progress: Callable[[int, int], None] | None = None) -> None:
        """Reads every byte of the file and checks every rule; returns if all hold.

        Memory stays bounded. `shard_format.verify.check` lists all findings instead of raising.

        Args:
            progress: called with the bytes done and the bytes in all, never by two threads at once.

        Raises:
            ShardError: the first problem found.
        """
        self._ensure_open()
        for finding in check_file(self, progress=progress).errors:
            raise finding.error

    # --- life

    def close(self) -> None:
        """Closes the file. Views that were handed out stay valid."""
        if not self._closed:
            self._closed = True
            if self._owns_source:
                self._source.close()

    def __enter__(self) -> Self:
        self._ensure_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        self._ensure_open()
        return (_reopen, (self._source, self._limits, self._threads, self._check))

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self)} entries"
        return f"<ShardReader {self.name!r}: {role_label(self.role)}, {state}>"

    # --- inside

    def _ensure_open(self) -> None:
        if self._closed:
            raise Closed("the reader is closed", path=self.name)

    def _find(self, name: str) -> int:
        number = self._index.find(name)
        if number is None:
            self._ensure_open()
            raise EntryNotFound(
                f"no entry {shorten(name)}", path=self.name, hint=self._suggestion(name)
            )
        return number

    def _suggestion(self, name: str) -> str:
        if self._index.count > FEW_ENTRIES:
            return f"names() lists the {self._index.count} there are"
        import difflib

        close = difflib.get_close_matches(name, self.names(), n=3)
        if close:
            return f"did you mean {' or '.join(repr(other) for other in close)}?"
        return f"names() lists the {self._index.count} there are"

    def _located(self, error: ShardError, name: str) -> ShardError:
        if self._closed:
            return Closed("the reader is closed", path=self.name)
        return error.located(path=self.name, entry=name)

    def _codec(self, row: IndexRow) -> Codec:
        flags = row.flags & 7
        if not flags & 1:
            return Codec.NONE
        if flags == 3:
            return Codec.ZSTD
        if flags == 5:
            return Codec.LZ4
        default = self.header.compression_default
        if flags == 1 and default in (Codec.ZSTD, Codec.LZ4):
            return Codec(default)
        raise UnknownCodec(
            "the codec of the entry cannot be determined",
            expected="exactly one of the codec flags 2 (zstd) and 4 (lz4), or a default codec",
            found=f"flags 0x{row.flags:04x} and default {default}",
            rule="S-CMP-1",
        )

    def _stored(self, offset: int, length: int) -> bytes | memoryview:
        """Stored bytes for a decoder: a view where that saves a large copy."""
        if length >= _LARGE and isinstance(self._source, SupportsView):
            return self._source.view(offset, length)
        return self._source.read_at(offset, length)

    def _seek_table(self, row: IndexRow) -> seekable.SeekTable | None:
        end = row.data_offset + row.disk_size
        footer_size = min(row.disk_size, seekable.FOOTER.size)
        footer = self._source.read_at(end - footer_size, footer_size)
        size = seekable.seek_table_size(footer, row.disk_size)
        if size is None:
            return None
        tail = self._source.read_at(end - size, size)
        return seekable.SeekTable.parse(tail, row.disk_size, row.orig_size)

    def _prepare(self, row: IndexRow) -> tuple[Codec, seekable.SeekTable | None]:
        """The codec, after all checks that need no data, and the seek table if it is of use."""
        codec = self._codec(row)
        if codec is Codec.NONE:
            _check_raw(row)
            return codec, None
        check_sizes(codec, row.disk_size, row.orig_size, self._limits)
        if codec is Codec.ZSTD and row.orig_size >= _LARGE:
            return codec, self._seek_table(row)
        return codec, None

    def _decode(self, row: IndexRow) -> bytes:
        codec, table = self._prepare(row)
        if table is not None and len(table) > 1:
            return filled_bytes(
                row.orig_size, row.disk_size, lambda out: self._read_whole_into(row, out)
            )
        stored = self._stored(row.data_offset, row.disk_size)
        data = decode(codec, stored, row.orig_size, self._limits)
        self._check_content(row, data)
        return data

    def _is_checked(self, row: IndexRow) -> bool:
        return self._check and (self._all_checked or row.crc32c != 0)

    def _check_content(self, row: IndexRow, content: bytes | memoryview) -> None:
        if self._is_checked(row):
            _compare_checksum(row, crc32c(content))

    def _decode_seekable_into(
        self, row: IndexRow, table: seekable.SeekTable, start: int, out: memoryview
    ) -> int:
        """Returns the CRC-32C of what was decoded."""
        if not len(out):
            return 0
        first, end = table.stored_range(table.frames_for(start, start + len(out)))
        stored = self._stored(row.data_offset + first, end - first)
        return seekable.decode_range_into(table, stored, start, out, self._limits, self._threads)

    def _iter_content(self, row: IndexRow) -> Iterator[memoryview]:
        codec = self._codec(row)
        if codec is Codec.NONE:
            _check_raw(row)
            for start in range(row.data_offset, row.data_offset + row.disk_size, _PIECE):
                length = min(_PIECE, row.data_offset + row.disk_size - start)
                yield memoryview(self._stored(start, length))
            return
        check_sizes(codec, row.disk_size, row.orig_size, self._limits)
        stored = self._stored(row.data_offset, row.disk_size)
        yield from iter_decoded(codec, stored, row.orig_size, self._limits)

    def _read_whole_into(self, row: IndexRow, out: memoryview) -> None:
        codec, table = self._prepare(row)
        if codec is Codec.NONE:
            self._read_raw_into(row.data_offset, out)
        elif table is not None and len(table) > 1:
            checksum = self._decode_seekable_into(row, table, 0, out)
            if self._is_checked(row):
                _compare_checksum(row, checksum)
            return
        else:
            stored = self._stored(row.data_offset, row.disk_size)
            decode_into(codec, stored, out, self._limits)
        self._check_content(row, out)

    def _read_part_into(self, row: IndexRow, start: int, out: memoryview) -> None:
        codec, _ = self._prepare(row)
        if codec is Codec.NONE:
            self._read_raw_into(row.data_offset + start, out)
            return
        # A range wants the table of a small entry too: it is what makes the range checkable.
        table = self._seek_table(row) if codec is Codec.ZSTD else None
        if table is not None:
            self._decode_seekable_into(row, table, start, out)
            return
        whole = np.empty(row.orig_size, np.uint8)
        self._read_whole_into(row, whole.data)
        out[:] = whole.data[start : start + len(out)]

    def _read_raw_into(self, offset: int, out: memoryview) -> None:
        source = self._source
        if isinstance(source, SupportsReadInto):
            source.read_into(offset, out)
        else:
            out[:] = source.read_at(offset, len(out))


def _read_head(source: ByteSource, limits: Limits) -> tuple[Header, Index]:
    size = source.size()
    start = source.read_at(0, min(size, _FIRST_READ))
    header = parse_header(start, size, limits)
    needed = header.data_section_offset
    if header.entry_count <= FEW_ENTRIES:
        # A reserved head may be long and empty; names cannot start behind this.
        if needed > len(start):
            start += source.read_at(len(start), needed - len(start))
        return header, Index(header, start)
    head = np.empty(needed + WORD_PADDING, np.uint8)
    head[needed:] = 0
    if isinstance(source, SupportsReadInto):
        memory, read_into = head.data, source.read_into

        def read_piece(start: int) -> None:
            read_into(start, memory[start : min(start + _PIECE, needed)])

        for_each(range(0, needed, _PIECE), read_piece, thread_count(None, needed))
    else:
        head[:needed] = np.frombuffer(source.read_at(0, needed), np.uint8)
    if head[:HEADER_SIZE].tobytes() != start[:HEADER_SIZE]:
        raise Truncated("the file changed while it was being opened")
    head.flags.writeable = False
    return header, Index(header, head)


def _reopen(source: ByteSource, limits: Limits, threads: int | None, check: bool) -> ShardReader:
    reader = ShardReader(source, limits=limits, threads=threads, check=check)
    reader._owns_source = True
    return reader


def _check_raw(row: IndexRow) -> None:
    if row.disk_size != row.orig_size:
        raise SizeMismatch(
            "an uncompressed entry has two different sizes",
            expected=f"{row.orig_size} bytes (orig_size)",
            found=f"{row.disk_size} bytes (disk_size)",
            rule="S-DAT-4",
        )


def _check_range(row: IndexRow, start: int, stop: int) -> None:
    if not 0 <= start <= stop <= row.orig_size:
        raise InvalidArgument(
            "the range is outside the entry",
            expected=f"0 <= start <= stop <= {row.orig_size}",
            found=f"start {start}, stop {stop}",
        )


def _compare_checksum(row: IndexRow, computed: int) -> None:
    if computed != row.crc32c:
        raise ChecksumMismatch(
            "CRC-32C mismatch: the data is damaged",
            offset=row.data_offset,
            expected=f"{row.crc32c:08x}",
            found=f"{computed:08x}",
            rule="S-CRC-1",
        )


def _writable_bytes(buffer: BytesLike) -> memoryview:
    if isinstance(buffer, np.ndarray):
        # Also covers dtypes that the buffer protocol does not know, such as bfloat16.
        if not buffer.flags.c_contiguous or not buffer.flags.writeable:
            raise InvalidArgument("the array is not C-contiguous and writable")
        return buffer.reshape(-1).view(np.uint8).data
    view = memoryview(buffer)
    if view.readonly or not view.c_contiguous:
        raise InvalidArgument("the buffer is not writable, contiguous memory")
    return view.cast("B") if view.nbytes else memoryview(bytearray())
