"""Writing: entries stream to disk as they come, and the file appears when it is complete."""

from __future__ import annotations

import functools
import os
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar, cast

from shard_format._assembly import Accepted, Blocks, Head, PlacedBlocks, SpooledBlocks
from shard_format._encoding import (
    Encoded,
    EntryPlan,
    Measure,
    Measured,
    StoredRun,
    encode_many,
    encode_one,
    encode_stream,
    expand_again,
    measure,
    measure_runs,
    table_of_runs,
)
from shard_format.atomic import AtomicFile, claim_space, write_all
from shard_format.canonical_json import canonical
from shard_format.codecs import SMALLEST_COMPRESSED, Compression, is_worth_it
from shard_format.errors import (
    Closed,
    InvalidArgument,
    ShardError,
    ShardIOError,
)
from shard_format.filters import leading_frame
from shard_format.identity import IDENTITY_ENTRY, Identity, schema_digest
from shard_format.layout import ALIGNMENTS, FILTERED, Codec, align
from shard_format.registry import (
    DEFAULT_LIMITS,
    ContentType,
    Limits,
    Role,
    parse_content_type,
    parse_role,
)
from shard_format.schema import Schema, TagNames
from shard_format.writer_input import (
    IterableFailed,
    NameSet,
    as_bytes,
    check_decompressed_size,
    check_filters,
    check_frame_bytes,
    encode_name,
    iter_views,
    next_or_none,
    row_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from typing_extensions import Self

    from shard_format.filters import Filters
    from shard_format.reader import ShardReader
    from shard_format.sources import BytesLike

__all__ = ["EntryToWrite", "ShardWriter", "StoredRun", "WriterOptions"]

# Blocks of the moved layout that a writer keeps in memory before it spools to disk.
_SPOOL_BYTES = 32 << 20
_EXPAND_BYTES = 1 << 20
# What `write_many` takes at a time: enough to keep threads busy.
_ROUND_BYTES = 32 << 20
_ROUND_ENTRIES = 4096

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def _fails_as_a_whole(
    method: Callable[Concatenate[ShardWriter, Parameters], Result],
) -> Callable[Concatenate[ShardWriter, Parameters], Result]:
    """After an error of the disk nothing that follows can be right: the file is given up."""

    @functools.wraps(method)
    def guarded(self: ShardWriter, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        self._ensure_open()
        if self._busy:
            raise InvalidArgument(
                "the writer is in the middle of another entry",
                path=self.name,
                hint="an iterable that is being written cannot use the same writer",
            )
        self._busy = True
        try:
            return method(self, *args, **kwargs)
        except IterableFailed as failure:
            # The caller's own error: the entry is dropped already, the file goes on.
            raise cast("BaseException", failure.__cause__) from None
        except OSError as error:
            if isinstance(error, ShardError):
                raise
            written = self._blocks.position
            self.abort()
            raise ShardIOError.wrap(
                error, f"cannot write after {written} bytes of data", self.name
            ) from error
        except (MemoryError, KeyboardInterrupt, SystemExit):
            # May have struck between two steps that belong together.
            self.abort()
            raise
        finally:
            self._busy = False

    return cast("Callable[Concatenate[ShardWriter, Parameters], Result]", guarded)


@dataclass(frozen=True, slots=True)
class EntryToWrite:
    """One entry for `ShardWriter.write_many`; the fields are the arguments of `write_entry`."""

    name: str
    """Any text but the empty one."""
    data: BytesLike
    """The content."""
    compression: str | Compression | None = None
    """None for the writer's default."""
    content_type: int | str = ContentType.UNKNOWN
    """A hint for readers."""
    tags: int | Iterable[str] = 0
    """Names of tags, or the tag bits."""
    frame_bytes: int | None = None
    """Bytes of content in each frame of a seekable entry."""
    filters: Filters | None = None
    """What to do to each frame before it is compressed."""
    metadata: Mapping[str, Any] | None = None
    """What the schema section says about the entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterOptions:
    """Rarely needed options of `ShardWriter`."""

    schema: Schema | Mapping[str, Any] | None = None
    """The schema section; `ShardWriter.schema` can be changed until the end, too."""
    limits: Limits = DEFAULT_LIMITS
    """Raise `max_decompressed_bytes` for compressed entries above 1 GiB."""
    threads: int | None = None
    """How many threads compress entries and frames; None for one per processor, up to 8."""
    storage_options: Mapping[str, Any] | None = None
    """For a URL, as `remote.open_url` takes them."""


DEFAULT_OPTIONS: Final = WriterOptions()


class ShardWriter:
    """Writes a Shard file, entry by entry.

    `write_entry` writes from memory, `write_many` compresses in parallel, `write_entry_stream` takes any size in
    constant memory, and `copy_entry` copies an entry of an open reader as it is stored: codec, filters, frames and
    checksum stay, and nothing is decoded.

    The file appears under its name when `close` (or the end of the `with` block) has written and synced
    all of it. An exception, `abort` or a killed process leaves the file that was there before. Not safe for
    several threads at once.

    Memory is bounded: blocks up to 32 MiB in all, then the disk; plus eight bytes per entry to detect
    repeated names.

    Args:
        path: where the file will appear: a path, or a URL of an object store. A temporary file is made in the same
            folder; for a URL, in the system's folder for temporary files.
        role: what the file is for: a `Role`, its name or its number.
        alignment: every entry starts on a multiple of this: 0, 16, 32 or 64.
        compression: what `write_entry` does unless told otherwise.
        reserve: all names that will be written, in order: gives the canonical bytes, written in place. Or a number of
            entries to reserve the head for; blocks are written in place, too. Without it, blocks are spooled and moved
            behind the head once, which gives the canonical bytes.
        identity: True adds the entry `meta/identity` at the end.
        fsync: False skips syncing to disk: faster, but a power failure can lose the file.
        options: rarely needed options.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        role: int | str = Role.UNKNOWN,
        alignment: int = 64,
        compression: str | Compression | None = None,
        reserve: int | Sequence[str] | None = None,
        identity: bool = False,
        fsync: bool = True,
        options: WriterOptions = DEFAULT_OPTIONS,
    ) -> None:
        self._file: AtomicFile | None = None
        self._closed = False
        self._busy = False
        self.name = os.fspath(path)
        if alignment not in ALIGNMENTS:
            raise InvalidArgument("unknown alignment", expected="0, 16, 32 or 64", found=alignment)
        limits, schema = options.limits, options.schema
        self._role = parse_role(role)
        self._alignment = alignment
        self._compression = Compression.parse(compression)
        self._limits = limits
        self._threads = options.threads
        given = schema.fields if isinstance(schema, Schema) else schema
        self.schema = Schema(deepcopy(dict(given or {})))
        """The schema section that will be written; change it until `close`."""
        self._tags = TagNames(self.schema.tag_dictionary)
        self._hashes: dict[str, str] | None = {} if identity else None
        self._seen = NameSet()

        if isinstance(reserve, int):
            if not 0 <= reserve <= limits.max_entries:
                raise InvalidArgument(
                    "the number of entries to reserve is out of range",
                    expected=f"0 to {limits.max_entries}",
                    found=reserve,
                )
            reserve += identity
        elif reserve is not None:
            reserve = [*reserve, *([IDENTITY_ENTRY] if identity else [])]

        file = AtomicFile(path, fsync=fsync, storage_options=options.storage_options)
        try:
            self._head = Head(file.folder, self.name, self._role, alignment, reserve, limits)
        except ShardError:
            file.abort()
            raise
        self._blocks: Blocks = (
            SpooledBlocks(file.folder, _SPOOL_BYTES)
            if self._head.size is None
            else PlacedBlocks(file.descriptor, self._head.size)
        )
        self._file = file

    # --- entries

    @_fails_as_a_whole
    def write_entry(
        self,
        name: str,
        data: BytesLike,
        *,
        compression: str | Compression | None = None,
        content_type: int | str = ContentType.UNKNOWN,
        tags: int | Iterable[str] = 0,
        frame_bytes: int | None = None,
        filters: Filters | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Writes one entry from memory.

        Bytes, memoryviews and C-contiguous arrays are not copied on their way to the disk; other
        arrays are brought into C order first. A failed call for a bad argument leaves the writer usable.

        Args:
            name: any text that is not empty; at most 65 535 bytes of UTF-8.
            data: the content.
            compression: `"none"`, `"zstd"`, `"lz4"`, with a level `"zstd:19"`; None for the writer's
                default. Entries of 256 bytes or fewer, and entries that would not shrink below nine
                tenths, are stored raw.
            content_type: a hint for readers: a `ContentType`, its name or its number.
            tags: names of tags, at most 16 different ones in a file, or the tag bits themselves.
            frame_bytes: makes a zstd entry seekable, with this many bytes of content in each frame. Must
                be a multiple of an array's row.
            filters: what to do to each frame of a zstd entry so that it compresses better. Readers get
                the original bytes. Data and frames must be multiples of `filters.unit`.
            metadata: fields of the entry in the schema section (`entry_metadata`).
        """
        plan = self._plan(name, data, compression, frame_bytes, filters)
        accepted = self._accept(name, tags, content_type, metadata)
        measured = measure(plan.content, self._hashes is not None)
        self._put(accepted, plan.content, encode_one(plan, self._threads), measured)

    @_fails_as_a_whole
    def write_many(self, entries: Iterable[EntryToWrite]) -> None:
        """Writes many entries from memory, compressing them and their frames in parallel.

        The bytes are those of calling `write_entry` for one after the other. Entries are taken from the
        iterable in rounds of some 32 MiB; their data must stay as it is until the call returns. If one
        cannot be written, those before it are, and the error is raised.
        """
        iterator = iter(entries)
        more = True
        while more:
            round_: list[tuple[EntryToWrite, EntryPlan]] = []
            weight = 0
            try:
                while weight < _ROUND_BYTES and len(round_) < _ROUND_ENTRIES:
                    entry = next_or_none(iterator)
                    if entry is None:
                        more = False
                        break
                    plan = self._plan(
                        entry.name, entry.data, entry.compression, entry.frame_bytes, entry.filters
                    )
                    round_.append((entry, plan))
                    weight += len(plan.content)
            except (ShardError, IterableFailed):
                self._write_round(round_)
                raise
            self._write_round(round_)

    def _write_round(self, round_: list[tuple[EntryToWrite, EntryPlan]]) -> None:
        results = encode_many(
            [plan for _, plan in round_], self._threads, with_hashes=self._hashes is not None
        )
        for (entry, plan), (encoded, measured) in zip(round_, results, strict=True):
            self._ensure_open()  # the iterable may have called abort
            accepted = self._accept(entry.name, entry.tags, entry.content_type, entry.metadata)
            self._put(accepted, plan.content, encoded, measured)

    def _plan(
        self,
        name: str,
        data: BytesLike,
        compression: str | Compression | None,
        frame_bytes: int | None,
        filters: Filters | None,
    ) -> EntryPlan:
        """Checks everything about an entry's data."""
        view = as_bytes(name, data)
        chosen = self._compression if compression is None else Compression.parse(compression)
        if frame_bytes is not None:
            check_frame_bytes(name, frame_bytes, row_bytes(data), chosen)
        if filters is not None:
            check_filters(name, filters, len(view), frame_bytes, chosen)
        if chosen.codec is not Codec.NONE and len(view) >= SMALLEST_COMPRESSED:
            check_decompressed_size(self.name, name, len(view), self._limits)
        return EntryPlan(view, chosen, frame_bytes, filters)

    def _put(
        self, accepted: Accepted, content: memoryview, encoded: Encoded, measured: Measured
    ) -> None:
        stored, flags = encoded
        checksum, digest = measured
        if self._hashes is not None and digest is not None:
            self._hashes[accepted.name] = digest
        start = self._pad()
        for piece in stored:
            self._blocks.append(piece)
        self._add_row(accepted, flags, start, len(content), checksum)

    @_fails_as_a_whole
    def copy_entry(self, reader: ShardReader, name: str) -> None:
        """Copies an entry of another file as it is stored there: nothing is decoded or compressed again.

        Its content is not checked on the way, unless this file carries an identity or the entry has no
        checksum yet; a damaged entry stays as damaged, and as detectable, as it was.

        Args:
            reader: an open reader of the other file.
            name: the entry, under which it is written here too.
        """
        info = reader.info(name)
        before = self._blocks.position
        accepted = self._accept(name, info.tag_bits, info.content_type, None)
        checksum = info.crc32c
        if self._hashes is not None or checksum is None:
            content = Measure(with_hash=self._hashes is not None)
            for piece in reader.iter_entry(name):
                content.update(piece)
            checksum = content.checksum
            if self._hashes is not None and content.digest is not None:
                self._hashes[name] = content.digest
        try:
            start = self._pad()
            for piece in reader.iter_stored(name):
                self._blocks.append(piece)
        except ShardError:
            self._blocks.truncate(before)
            raise
        flags = info.codec.entry_flags | (info.flags & FILTERED)
        self._add_row(accepted, flags, start, info.size, checksum)

    @_fails_as_a_whole
    def write_runs(
        self,
        name: str,
        runs: Sequence[StoredRun],
        codec: Codec,
        *,
        content_type: int | str = ContentType.UNKNOWN,
        filters: Filters | None = None,
    ) -> None:
        """Writes one entry from runs that another file holds, copied and not compressed again.

        Several zstd runs make a seekable entry. Not for files that carry an identity, which needs the content.

        Args:
            name: as for `write_entry`.
            runs: the parts of the entry, in order; with zstd each one frame with size and checksum.
            codec: how all of them are stored: raw or zstd.
            content_type: as for `write_entry`.
            filters: what was done to each of them before it was compressed.
        """
        if self._hashes is not None or codec not in (Codec.NONE, Codec.ZSTD):
            raise InvalidArgument(
                "runs can be copied as raw or zstd, into a file without identity", entry=name
            )
        size, checksum = measure_runs(runs)
        accepted = self._accept(name, 0, content_type, None)
        start = self._pad()
        is_filtered = filters is not None and codec is Codec.ZSTD and len(runs) > 0
        if filters is not None and is_filtered:
            self._blocks.append(leading_frame(filters))
        for run in runs:
            self._blocks.append_range(run.file.descriptor, run.offset, run.stored_size)
        if codec is Codec.ZSTD and len(runs) > 1:
            self._blocks.append(table_of_runs(runs))
        flags = codec.entry_flags if runs else 0
        if is_filtered:
            flags |= FILTERED
        self._add_row(accepted, flags, start, size, checksum)

    @_fails_as_a_whole
    def write_entry_stream(
        self,
        name: str,
        chunks: Iterable[BytesLike],
        *,
        compression: str | Compression | None = None,
        content_type: int | str = ContentType.UNKNOWN,
        tags: int | Iterable[str] = 0,
        frame_bytes: int | None = None,
        filters: Filters | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Writes one entry from pieces, in constant memory, for entries larger than that.

        With zstd the pieces become one frame, or with `frame_bytes` a seekable entry. lz4 is not
        possible here: an lz4 entry is one block. If the iterable raises, the entry is dropped and the
        writer stays usable. Arguments as for `write_entry`; filters need `frame_bytes`.
        """
        chosen = self._compression if compression is None else Compression.parse(compression)
        if chosen.codec is Codec.LZ4:
            raise InvalidArgument(
                "an lz4 entry is one block and cannot be streamed",
                entry=name,
                hint="use compression='zstd' or 'none' for this entry",
            )
        if frame_bytes is not None:
            check_frame_bytes(name, frame_bytes, 1, chosen)
        if filters is not None:
            if frame_bytes is None:
                raise InvalidArgument("a filtered stream needs frame_bytes", entry=name)
            check_filters(name, filters, frame_bytes, frame_bytes, chosen)
        before = self._blocks.position
        accepted = self._accept(name, tags, content_type, metadata)
        measured = Measure(with_hash=self._hashes is not None)
        views = iter_views(name, chunks)
        codec = chosen.codec

        def update(view: memoryview) -> None:
            measured.update(view)
            if codec is not Codec.NONE:
                check_decompressed_size(self.name, name, measured.size, self._limits)

        try:
            start = self._pad()
            for piece in encode_stream(views, chosen, frame_bytes, self._threads, update, filters):
                self._ensure_open()  # the iterable may have called abort
                self._blocks.append(piece)
            self._ensure_open()
            disk_size = self._blocks.position - start
            if codec is Codec.ZSTD and not (
                measured.size >= SMALLEST_COMPRESSED and is_worth_it(disk_size, measured.size)
            ):
                assert self._file is not None
                spool = SpooledBlocks(self._file.folder, _SPOOL_BYTES)
                expand_again(self._blocks, start, spool, _EXPAND_BYTES, frame_bytes, filters)
                codec = Codec.NONE
        except BaseException:
            # Whatever it was: the half-written entry goes, the error stays.
            if not self._closed:
                self._blocks.truncate(before)
            raise
        if self._hashes is not None and measured.digest is not None:
            self._hashes[name] = measured.digest
        flags = codec.entry_flags
        if filters is not None and codec is not Codec.NONE:
            flags |= FILTERED
        self._add_row(accepted, flags, start, measured.size, measured.checksum)

    # --- the end

    @_fails_as_a_whole
    def _finish(self) -> None:
        assert self._file is not None
        self._head.check_complete()
        schema = self._schema_text()
        header = self._head.header(self._compression.codec, self._blocks.position, len(schema))
        descriptor = self._file.descriptor
        if isinstance(self._blocks, SpooledBlocks):
            claim_space(descriptor, 0, header.total_file_size)
            self._head.write(descriptor, header)
            self._blocks.move_to(descriptor)
            write_all(descriptor, [schema])
        else:
            assert isinstance(self._blocks, PlacedBlocks)
            self._blocks.finish()
            write_all(descriptor, [schema])
            os.lseek(descriptor, 0, os.SEEK_SET)
            self._head.write(descriptor, header)
        self._file.commit()

    def close(self) -> None:
        """Finishes the file and puts it in place. A second call does nothing."""
        if self._closed:
            return
        if self._busy:
            raise InvalidArgument("cannot close: an entry is being written", path=self.name)
        try:
            if self._hashes is not None:
                identity = Identity(self._hashes, self._role, schema_digest(self._schema_text()))
                self._hashes = None
                self.write_entry(
                    IDENTITY_ENTRY, identity.text, compression="none", content_type=ContentType.JSON
                )
            self._finish()
        finally:
            self.abort()

    def abort(self) -> None:
        """Gives up: nothing appears under the name. After `close` it does nothing."""
        self._closed = True
        if self._file is not None:
            self._file.abort()
            self._head.close()
            if isinstance(self._blocks, SpooledBlocks):
                self._blocks.close()
            self._file = None

    def __enter__(self) -> Self:
        self._ensure_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def __len__(self) -> int:
        return self._head.count

    def __del__(self) -> None:
        # A writer that was dropped without close has no complete file to show.
        if getattr(self, "_file", None) is not None:
            self.abort()

    def __repr__(self) -> str:
        return f"<ShardWriter {self.name!r}: {self._head.count} entries>"

    # --- inside

    def _ensure_open(self) -> None:
        if self._closed:
            raise Closed("the writer is closed", path=self.name)

    def _accept(
        self,
        name: str,
        tags: int | Iterable[str],
        content_type: int | str,
        metadata: Mapping[str, Any] | None,
    ) -> Accepted:
        """Checks everything about an entry that is not its data."""
        encoded = encode_name(name)
        self._head.check_next(name)
        if name == IDENTITY_ENTRY and self._hashes is not None:
            raise InvalidArgument(
                "the writer writes this entry itself",
                entry=name,
                hint="pass identity=False",
                command="leave out --identity",
            )
        type_number = parse_content_type(content_type)
        self._head.check_room(name, encoded)
        tag_bits, tag_names = self._tags.bits(tags)
        described = None if metadata is None else deepcopy(dict(metadata))
        canonical(described)
        if not self._seen.add(encoded, self._head.names_with_hash):
            raise InvalidArgument(
                "an entry with this name was already written",
                path=self.name,
                entry=name,
                rule="S-NAM-4",
            )
        return Accepted(name, encoded, type_number, tag_bits, tag_names, described)

    def _pad(self) -> int:
        """Fills up to the alignment and returns where the next block starts."""
        start = align(self._blocks.position, self._alignment)
        if start != self._blocks.position:
            self._blocks.append(bytes(start - self._blocks.position))
        return start

    def _add_row(
        self, accepted: Accepted, flags: int, start: int, orig_size: int, checksum: int
    ) -> None:
        """The entry is complete: now it counts."""
        disk_size = self._blocks.position - start
        self._head.add(accepted, flags, start, disk_size, orig_size, checksum)
        self._tags.names = accepted.tag_names
        if accepted.metadata is not None:
            if self.schema.fields.get("entry_metadata") is None:
                self.schema.fields["entry_metadata"] = {}
            self.schema.fields["entry_metadata"][accepted.name] = accepted.metadata

    def _schema_text(self) -> bytes:
        if self._tags.names:
            self.schema.fields["tag_dictionary"] = list(self._tags.names)
        return self.schema.to_bytes() if self.schema.fields else b""
