"""Reading: open, find, fetch, check."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from shard_format import foreign
from shard_format._content import Content
from shard_format._index import FEW_ENTRIES, read_head
from shard_format._kernels import filled_bytes
from shard_format.canonical_json import parse_object
from shard_format.errors import (
    BadMagic,
    Closed,
    EntryNotFound,
    InvalidArgument,
    ShardError,
    Truncated,
    shorten,
)
from shard_format.layout import FILTERED, Codec, IndexRow
from shard_format.opening import open_source
from shard_format.parallel import batches, for_each, thread_count
from shard_format.registry import DEFAULT_LIMITS, Limits, role_label
from shard_format.schema import Schema
from shard_format.sequential import SequentialSource
from shard_format.sources import ByteSource, SourceLike, can_view
from shard_format.verify import check as check_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from numpy.typing import NDArray
    from typing_extensions import Self

    from shard_format.filters import Filters
    from shard_format.layout import Header
    from shard_format.seekable import FrameDecoder, SeekTable
    from shard_format.sources import BytesLike

Result = TypeVar("Result")

__all__ = ["EntryInfo", "PartReader", "ShardReader"]

# Files up to this size are read at once: one read costs less than a map, and leaves no open file.
_SMALL_FILE: Final = 1 << 16


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

    @property
    def filtered(self) -> bool:
        """Whether filters were applied before compression; `ShardReader.filters` tells which."""
        return bool(self.flags & FILTERED)


class ShardReader:
    """The entries of a Shard file, by name.

    Opening reads the head of the file and checks its structure; the time does not depend on how much data follows. A
    reader never changes after opening: threads may share it, forked processes inherit it, and it pickles as its
    location. A local file of at most 64 KiB is read at once and pickles as its bytes.

    What is checked against CRC-32C:

    - An entry that you read as a whole, each time.
    - A part of a seekable zstd entry: the frames that hold it, against the checksums of the frames, each time.
    - A part or a view of an uncompressed entry of a local file or of bytes in memory: the whole entry, the first time
      in a process, for a file as it is now (device, inode, size and time of change).
    - A part of an uncompressed entry of a remote file or of an open file object: nothing, because the checksum covers
      the whole entry, which would have to be fetched.

    Owns: the source, if it opened it itself.

    Args:
        source: a path, a URL (`https://`, `s3://`, `gs://`, `az://`, …), bytes, a binary file that can
            seek, or any `ByteSource`.
        limits: what the file may ask for; raise one for files you trust.
        threads: how many threads large reads may use; None for one per processor, up to 8.
        check: False skips the checksums of entries. Structure is always checked.
        storage_options: headers, credentials and the like for a URL, as `remote.open_url` takes them.

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
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if threads is not None and threads < 1:
            raise InvalidArgument("threads must be at least 1", found=threads)
        self.source = open_source(source, storage_options, read_whole=_SMALL_FILE)
        self._owns_source = self.source is not source
        self.name = self.source.name
        self.limits = limits
        self.threads = threads
        self.check = check
        self.closed = False
        try:
            self.header, self._index = read_head(self.source, limits)
        except ShardError as error:
            if isinstance(error, (BadMagic, Truncated)):
                head = self.source.read_at(0, min(foreign.HEAD_BYTES, self.source.size()))
                foreign.explain(error, head)
            self.close()
            raise error.located(path=self.name) from None
        self._find = self._index.finder()
        self._content = Content(self.source, self.header, limits, threads, check)

    name: str
    """What the source calls itself: a path, a URL without its secrets, or `<bytes>`."""
    source: ByteSource
    """Where the bytes come from."""
    limits: Limits
    """The limits it was opened with."""
    threads: int | None
    """How many threads large reads may use; None for one per processor, up to 8."""
    check: bool
    """Whether it compares entries with their checksums."""
    header: Header
    """The header, field by field."""
    closed: bool
    """Whether `close` was called."""

    # --- what is there

    @property
    def role(self) -> int:
        """What the file is for; see `Role`."""
        return self.header.role

    @property
    def can_view(self) -> bool:
        """Whether `view` works for entries that are not compressed."""
        return can_view(self.source)

    @property
    def index(self) -> NDArray[Any]:
        """The index as a read-only structured array, one row per entry, without a copy."""
        return self._index.rows

    def rows(self) -> Mapping[str, IndexRow]:
        """The fields of every row of the index by name, in the order of the index."""
        return self._index.by_name()

    def names(self) -> list[str]:
        """All names, in the order of the index."""
        return self._index.names()

    def names_in_file(self) -> list[str]:
        """All names, in the order in which the content of the entries lies in the file."""
        names = self.names()
        return [names[row] for row in np.argsort(self.index["data_offset"], kind="stable")]

    def row_of(self, name: str) -> IndexRow:
        """The fields of an entry's row of the index."""
        row = self._find(name)
        if row is None:
            self._ensure_open()
            error = EntryNotFound(
                f"no entry {shorten(name)}",
                path=self.name,
                hint=f"names() lists the {self._index.count} there are",
                command="'shard ls' lists the entries",
            )
            if self._index.count <= FEW_ENTRIES:
                error.wanted, error.candidates = name, self.names()
            raise error
        return row

    def prefix(self, prefix: str) -> list[str]:
        """The names that start with `prefix`, in the order of the index."""
        return self._index.names_with_prefix(prefix)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._find(name) is not None

    def __len__(self) -> int:
        return self._index.count

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __getitem__(self, name: str) -> bytes:
        return self.read_entry(name)

    def info(self, name: str) -> EntryInfo:
        """What the index says about an entry. The entry itself is not read."""
        return self._info(self.row_of(name), name)

    def info_at(self, number: int) -> EntryInfo:
        """What the index says about the entry in row `number`."""
        name = self.info_name(number)
        return self._info(self._index.row(number), name)

    def _info(self, row: IndexRow, name: str) -> EntryInfo:
        try:
            codec = self._content.codec(row)
        except ShardError as error:
            raise self._located(error, name) from None
        return EntryInfo(
            name=name,
            codec=codec,
            size=row.orig_size,
            disk_size=row.disk_size,
            data_offset=row.data_offset,
            crc32c=row.crc32c if self._content.has_checksum(row) else None,
            content_type=row.content_type,
            tag_bits=row.tag_bits,
            flags=row.flags,
        )

    def info_name(self, number: int) -> str:
        """The name of the entry in row `number`."""
        if not 0 <= number < self._index.count:
            raise InvalidArgument(
                "no such row", path=self.name, expected=f"0 to {len(self) - 1}", found=number
            )
        return self._index.name(number)

    def first_wrong_name_hash(self) -> str | None:
        """The first name whose stored hash is not its XXH64 (S-NAM-5), None if all are right."""
        number = self._index.first_wrong_hash()
        return None if number is None else self._index.name(number)

    def infos(self) -> Iterator[EntryInfo]:
        """What the index says about each entry, in its order, one at a time."""
        for number, name in enumerate(self.names()):
            yield self._info(self._index.row(number), name)

    @property
    def schema(self) -> Schema | None:
        """The schema section, read now; None if the file has none.

        Raises:
            BadMetadata: the section is malformed. Entries can still be read.
        """
        self._ensure_open()
        try:
            return Schema.read(self.header, self._index.rows, self.source, self.limits)
        except ShardError as error:
            raise error.located(path=self.name) from None

    # --- reading

    def read_entry(self, name: str) -> bytes:
        """All bytes of an entry, decompressed and checked."""
        return self._on(name, self._content.read)

    def read_view(self, name: str) -> memoryview:
        """All bytes of an entry, decompressed and checked, as read-only memory.

        An uncompressed entry is a view of the mapped file if that saves a copy, and is then checked once in a process.
        `np.frombuffer(view, dtype)` makes an array of it.
        """
        return self._on(name, self._content.read_view)

    def read_many(self, names: Iterable[str]) -> list[bytes]:
        """All bytes of several entries, in the asked order, decompressed in parallel."""
        self._ensure_open()
        wanted = list(names)
        if len(wanted) == 1:  # leaves the threads to the frames of a seekable entry
            return [self.read_entry(wanted[0])]
        rows = [self.row_of(name) for name in wanted]
        sizes = [row.orig_size for row in rows]
        threads = thread_count(self.threads, sum(sizes))
        content = self._content.with_threads(1) if threads > 1 else self._content
        fetched = content.fetch_together(rows)
        results: list[bytes] = [b""] * len(wanted)

        def read_run(run: range) -> None:
            for position in run:
                row = rows[position]
                try:
                    results[position] = (
                        content.read(row)
                        if fetched is None
                        else content.decode(row, fetched[position])
                    )
                except ShardError as error:
                    raise self._located(error, wanted[position]) from None

        for_each(
            batches(range(len(wanted)), sizes),
            read_run,  # type: ignore[arg-type] # slices of a range are ranges
            threads,
        )
        return results

    def read_into(
        self,
        name: str,
        buffer: BytesLike,
        *,
        start: int = 0,
        stop: int | None = None,
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
        out = _writable_bytes(buffer)

        def read(row: IndexRow) -> int:
            end = row.orig_size if stop is None else stop
            _check_range(row, start, end)
            if len(out) < end - start:
                raise InvalidArgument(
                    "the buffer is too small",
                    expected=f"at least {end - start} bytes",
                    found=f"{len(out)} bytes",
                )
            self._content.read_into(row, start, out[: end - start])
            return end - start

        return self._on(name, read)

    def check_sizes(self, name: str) -> None:
        """Checks the sizes of an entry without reading it, before you allocate memory for it.

        All methods that return content do so themselves; call this before `read_into`.

        Raises:
            ShardError: the sizes contradict each other or exceed a limit, or the codec is not known.
        """
        self._on(name, self._content.check_sizes)

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """The bytes of an entry from `start` to `stop`.

        For a seekable entry, only the frames that hold them are read, decoded and checked. For a raw entry, only the
        bytes themselves are read, after the entry was checked once; see the class. Any other compressed entry is
        decoded and checked as a whole first.
        """

        def read(row: IndexRow) -> bytes:
            _check_range(row, start, stop)
            return filled_bytes(stop - start, lambda out: self._content.read_into(row, start, out))

        return self._on(name, read)

    def read_json(self, name: str, *, rule: str = "S-SCH-2") -> dict[str, Any]:
        """An entry that must be a JSON object, in the strict subset of spec/registry.md.

        Args:
            name: the entry.
            rule: the id that errors name, for readers of profiles with rules of their own.

        Raises:
            BadMetadata: it is not such an object.
            LimitExceeded: it is longer than `limits.max_json_bytes`; it is not read then.
        """
        return self.parse_json(name, self.read_json_text(name), rule=rule)

    def read_json_text(self, name: str) -> bytes:
        """The text of an entry that `read_json` would parse, as short as that demands."""
        return self._on(name, self._content.read_json_text)

    def parse_json(self, name: str, text: bytes, *, rule: str = "S-SCH-2") -> dict[str, Any]:
        """What `read_json` makes of an entry's text."""
        try:
            return parse_object(text, "the entry", self.limits, rule=rule)
        except ShardError as error:
            raise self._located(error, name) from None

    def iter_entry(self, name: str) -> Iterator[memoryview]:
        """The content of an entry in pieces, in bounded memory, for entries of any size.

        The checksum covers the whole: it is checked after the last piece, and a mismatch is raised
        then. Pieces of raw entries are views of the mapped file.
        """
        yield from self._iter(name, self._content.iter_pieces)

    def iter_verified(self, name: str) -> Iterator[memoryview]:
        """Like `iter_entry`, and after the last piece every rule about the entry is checked."""
        check = partial(self._content.with_checks().iter_pieces, check_table=True)
        yield from self._iter(name, check)

    def iter_stored(self, name: str) -> Iterator[memoryview]:
        """The bytes of an entry as they are stored, compressed or not, in pieces and unchecked."""
        yield from self._iter(name, self._content.iter_stored)

    def view(self, name: str, *, check: bool = True) -> memoryview:
        """A read-only view of an uncompressed entry, without a copy.

        The view maps the file and keeps the mapping alive, also after `close()`. The entry is checked the first time
        in a process, which reads every byte of it once. `np.frombuffer(view, dtype)` makes an array of it.

        Args:
            name: the entry.
            check: False does not compare the checksum.

        Raises:
            NotViewable: the entry is compressed, or the source has no memory to show.
        """
        return self._on(name, lambda row: self._content.view(row, check))

    def seek_table(self, name: str) -> SeekTable | None:
        """Where the frames of a seekable entry are; None if the entry is not seekable."""
        return self._on(name, self._content.seek_table)

    def part_reader(self, name: str) -> PartReader | None:
        """A reader for many parts of one seekable entry; None if the entry is not seekable.

        `read_into` and `read_range` look for the seek table every time.
        """
        decoder = self._on(name, self._content.frame_decoder)
        return None if decoder is None else PartReader(self, name, decoder)

    def filters(self, name: str) -> Filters | None:
        """What was done to an entry before it was compressed; None if nothing was.

        The bytes that reading returns are the original ones; this only tells how they are stored.
        """
        return self._on(name, self._content.filters)

    def verify_entry(self, name: str, *, progress: Callable[[int], None] | None = None) -> None:
        """Reads all of one entry and checks every rule about it, in bounded memory.

        Args:
            name: the entry.
            progress: called with the size of each piece of content.
        """
        for piece in self.iter_verified(name):
            if progress is not None:
                progress(len(piece))

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
            if finding.error is not None:
                raise finding.error

    # --- life

    @contextmanager
    def in_order(self) -> Iterator[Self]:
        """The same file, for someone who reads entries once and in the order of `names_in_file`.

        A remote file then comes in blocks of 8 MiB, the next of which are fetched meanwhile; it is read by one thread,
        and ends with the block. For a local file, this is the reader itself.
        """
        if can_view(self.source) or isinstance(self.source, SequentialSource):
            yield self
            return
        header = self.header
        source = SequentialSource(self.source, header.data_section_offset)
        reader = object.__new__(type(self))
        content = Content(source, header, self.limits, 1, self.check)
        own = {"source": source, "threads": 1, "_content": content, "_owns_source": False}
        reader.__dict__.update(self.__dict__, **own)
        try:
            yield reader
        finally:
            reader.close()
            source.release()

    def adopt_source(self) -> None:
        """Makes the source the reader's own: closing the reader closes it."""
        self._owns_source = True

    def close(self) -> None:
        """Closes the file. Views that were handed out stay valid."""
        if not self.closed:
            self.closed = True
            if self._owns_source:
                self.source.close()

    def __enter__(self) -> Self:
        self._ensure_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        self._ensure_open()
        return (_reopen, (self.source, self.limits, self.threads, self.check))

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self)} entries"
        return f"<ShardReader {self.name!r}: {role_label(self.role)}, {state}>"

    # --- inside

    def _ensure_open(self) -> None:
        if self.closed:
            raise Closed("the reader is closed", path=self.name)

    def _on(self, name: str, read: Callable[[IndexRow], Result]) -> Result:
        """Calls a method of the content with the row of an entry; errors say where they happened."""
        row = self._find(name)
        if row is None or self.closed:
            self._ensure_open()
            row = self.row_of(name)  # raises EntryNotFound
        try:
            return read(row)
        except ShardError as error:
            raise self._located(error, name) from error.__cause__

    def _iter(
        self, name: str, pieces: Callable[[IndexRow], Iterator[memoryview]]
    ) -> Iterator[memoryview]:
        found = self._on(name, pieces)
        try:
            yield from found
        except ShardError as error:
            raise self._located(error, name) from error.__cause__

    def _located(self, error: ShardError, name: str) -> ShardError:
        """The error with the file and the entry it is about."""
        if self.closed:
            return Closed("the reader is closed", path=self.name)
        return error.located(path=self.name, entry=name)

    def read_frames_into(
        self, name: str, decoder: FrameDecoder, start: int, out: memoryview
    ) -> None:
        """Fills memory with the bytes of a seekable entry from `start` on; for `PartReader`."""

        def read(row: IndexRow) -> None:
            _check_range(row, start, start + len(out))
            if out.readonly:
                raise InvalidArgument("the memory is read-only")
            self._content.decode_frames_into(row, decoder, start, out)

        self._on(name, read)


class PartReader:
    """Reads parts of one seekable entry. What is the same for all of them was looked up and checked before.

    Made by `ShardReader.part_reader`. Like the reader, it may be shared by threads and inherited by forked
    processes; it ends with the reader.
    """

    __slots__ = ("_decoder", "_name", "_reader")

    def __init__(self, reader: ShardReader, name: str, decoder: FrameDecoder) -> None:
        self._reader = reader
        self._name = name
        self._decoder = decoder

    def read_into(self, start: int, out: memoryview) -> None:
        """Fills memory, as plain bytes, with those of the entry from `start` on.

        Raises:
            InvalidArgument: the entry ends before, or the memory cannot be written to.
            ShardError: a subclass that says what is wrong with the stored bytes.
        """
        self._reader.read_frames_into(self._name, self._decoder, start, out)

    def whole_frames(self, start: int, stop: int) -> tuple[int, int]:
        """First and end byte of the content of the frames that hold a range."""
        return self._decoder.content_range(start, stop)


def _check_range(row: IndexRow, start: int, stop: int) -> None:
    """Refuses a range that is not inside an entry."""
    if not 0 <= start <= stop <= row.orig_size:
        raise InvalidArgument(
            "the range is outside the entry",
            expected=f"0 <= start <= stop <= {row.orig_size}",
            found=f"start {start}, stop {stop}",
        )


def _reopen(source: ByteSource, limits: Limits, threads: int | None, check: bool) -> ShardReader:
    reader = ShardReader(source, limits=limits, threads=threads, check=check)
    reader.adopt_source()
    return reader


def _writable_bytes(buffer: BytesLike) -> memoryview:
    if isinstance(buffer, np.ndarray):
        # Also covers dtypes that the buffer protocol does not know, such as bfloat16.
        if not buffer.flags.c_contiguous or not buffer.flags.writeable or buffer.dtype.hasobject:
            raise InvalidArgument(
                "the array is not plain memory: C-contiguous, writable, no objects"
            )
        return buffer.reshape(-1).view(np.uint8).data
    try:
        view = memoryview(buffer)
    except TypeError:
        raise InvalidArgument("this object has no memory", found=type(buffer).__name__) from None
    if view.readonly or not view.c_contiguous:
        raise InvalidArgument("the buffer is not writable, contiguous memory")
    return view.cast("B") if view.nbytes else memoryview(bytearray())
