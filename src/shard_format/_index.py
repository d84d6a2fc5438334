"""From the bytes of a file's head to a checked index that finds names.

A file with few entries gets a dictionary of names. A file with many is checked and hashed by whole columns, and lookup
is a binary search over sorted hashes: a dictionary of a million names would take longer than everything else that
opening does.
"""

from __future__ import annotations

import codecs
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from xxhash import xxh64_intdigest

from shard_format._kernels import WORD_PADDING, hash_names, load_words
from shard_format.errors import (
    BadHeader,
    BadMagic,
    BadName,
    BadOffset,
    DuplicateName,
    LimitExceeded,
    Overlap,
    TrailingData,
    Truncated,
    UnsupportedVersion,
)
from shard_format.layout import (
    ALIGNMENTS,
    HEADER,
    HEADER_SIZE,
    INDEX_DTYPE,
    INDEX_ENTRY,
    INDEX_ENTRY_SIZE,
    MAGIC,
    VERSION,
    Header,
    HeaderFlag,
    IndexRow,
)
from shard_format.parallel import for_each, thread_count
from shard_format.sources import can_read_into

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import NDArray

    from shard_format.registry import Limits
    from shard_format.sources import ByteSource

_BIG_ENDIAN: Final = int(HeaderFlag.BIG_ENDIAN)
# Up to here a dictionary of names beats the fixed cost of the column operations.
FEW_ENTRIES: Final = 128
# One read of this size brings the whole head of most files.
_FIRST_READ = 8192
# A long head is read in pieces of this size, side by side.
_HEAD_PIECE = 1 << 20
# 16 384 rows of 48 bytes fit in the second-level cache.
_COLUMN_BLOCK = 1 << 14
# Sorted lookup keys hold the upper 40 bits of the hash and the row number in the lower 24: one sort of
# plain integers instead of an argsort, and eight bytes an entry. 2**24 is above the entry limit.
_ROW_BITS = 24
_ROW_MASK = (1 << _ROW_BITS) - 1
_MOST_ROWS = 1 << _ROW_BITS
_LONGEST_NAME = (1 << 16) - 1
_HASH_MASK = ((1 << 64) - 1) ^ _ROW_MASK
# `IndexRow._make` without its check of the length, which the struct makes sure of.
_AS_ROW: Final[Callable[[tuple[int, ...]], IndexRow]] = partial(tuple.__new__, IndexRow)


def read_head(source: ByteSource, limits: Limits) -> tuple[Header, Index]:
    """The checked header and index of a file, in as few reads as possible."""
    size = source.size()
    start = source.read_at(0, min(size, _FIRST_READ))
    header = parse_header(start, size, limits)
    needed = header.data_section_offset
    if header.entry_count <= FEW_ENTRIES:
        # A reserved head may be long and empty; names cannot start behind this.
        if needed > len(start):
            start += source.read_at(len(start), needed - len(start))
        return header, Index(header, start, limits)
    head = np.empty(needed + WORD_PADDING, np.uint8)
    head[needed:] = 0
    if can_read_into(source):
        memory, read_into = head.data, source.read_into

        def read_piece(start: int) -> None:
            read_into(start, memory[start : min(start + _HEAD_PIECE, needed)])

        for_each(range(0, needed, _HEAD_PIECE), read_piece, thread_count(None, needed))
    else:
        head[:needed] = np.frombuffer(source.read_at(0, needed), np.uint8)
    if head[:HEADER_SIZE].tobytes() != start[:HEADER_SIZE]:
        raise Truncated("the file changed while it was being opened")
    return header, Index(header, head.data.toreadonly(), limits)


def parse_header(head: bytes, file_size: int, limits: Limits) -> Header:
    """The header of a file of `file_size` bytes that starts with `head` (S-HDR-1 to S-HDR-12)."""
    if head[:4] != MAGIC[: len(head)]:
        raise BadMagic(
            "not a Shard file",
            offset=0,
            expected=f"the bytes {MAGIC.hex(' ')} ('SHRD')",
            found=bytes(head[:4]).hex(" "),
            rule="S-HDR-2",
        )
    if len(head) < HEADER_SIZE:
        raise Truncated(
            "the file ends inside its header",
            expected=f"at least {HEADER_SIZE} bytes",
            found=f"{file_size} bytes",
            rule="S-HDR-1",
        )
    header = HEADER.unpack_from(head)
    _, version, _, flags, alignment, _, entry_size, count, table_start, data_start, _, total, _ = (
        header
    )
    if version != VERSION:
        raise UnsupportedVersion(
            "unknown version of the format",
            offset=4,
            expected=VERSION,
            found=version,
            rule="S-HDR-3",
            hint="a newer version of shard-format may read it",
        )
    if entry_size != INDEX_ENTRY_SIZE:
        raise BadHeader(
            "wrong size of an index entry",
            offset=10,
            expected=INDEX_ENTRY_SIZE,
            found=entry_size,
            rule="S-HDR-4",
        )
    if alignment not in ALIGNMENTS:
        raise BadHeader(
            "alignment is not allowed",
            offset=8,
            expected="0, 16, 32 or 64",
            found=alignment,
            rule="S-HDR-5",
        )
    if flags & _BIG_ENDIAN:
        raise BadHeader(
            "the header claims big-endian numbers",
            offset=6,
            expected="flag 0x0004 clear",
            found=f"flags 0x{flags:04x}",
            rule="S-HDR-6",
        )
    if total != file_size:
        shorter = file_size < total
        raise (Truncated if shorter else TrailingData)(
            "the file is shorter than its header says"
            if shorter
            else "the file goes on after its stated end",
            expected=f"{total} bytes",
            found=f"{file_size} bytes",
            rule="S-HDR-7",
            hint="the copy or upload may be incomplete" if shorter else None,
        )
    most_entries = min(limits.max_entries, _MOST_ROWS)
    if count > most_entries or count * INDEX_ENTRY_SIZE > limits.max_index_bytes:
        raise LimitExceeded(
            "too many entries",
            offset=12,
            expected=f"at most {most_entries} entries and {limits.max_index_bytes} bytes of index",
            found=f"{count} entries",
            rule="S-HDR-8",
            hint="pass limits=Limits(max_entries=…) if you trust the file",
            command="",
        )
    index_end = HEADER_SIZE + INDEX_ENTRY_SIZE * count
    if index_end > file_size:
        raise BadOffset(
            "the index does not fit in the file",
            offset=12,
            expected=f"at most {(file_size - HEADER_SIZE) // INDEX_ENTRY_SIZE} entries",
            found=f"{count} entries",
            rule="S-HDR-9",
        )
    if table_start != index_end:
        raise BadOffset(
            "the string table does not follow the index",
            offset=16,
            expected=index_end,
            found=table_start,
            rule="S-HDR-10",
        )
    if not index_end <= data_start <= file_size:
        raise BadOffset(
            "the data section is out of range",
            offset=24,
            expected=f"between {index_end} and {file_size}",
            found=data_start,
            rule="S-HDR-11",
        )
    if data_start - index_end > limits.max_string_table_bytes:
        raise LimitExceeded(
            "the string table is too large",
            offset=24,
            expected=f"at most {limits.max_string_table_bytes} bytes",
            found=f"{data_start - index_end} bytes",
            rule="S-HDR-12",
            hint="pass limits=Limits(max_string_table_bytes=…) if you trust the file",
            command="",
        )
    return Header(*header)


class Index:
    """The checked index of one file: rows by number, names by row, rows by name.

    Owns: the head's bytes, and a dictionary of rows (few entries) or sorted lookup keys (many).
    Read-only after construction, so that any number of threads may use it.

    Args:
        header: the checked header.
        head: the file's first `data_section_offset` bytes or more; with more than `FEW_ENTRIES` entries,
            `WORD_PADDING` bytes longer than that.
        limits: how long all names may be together.

    Raises:
        FormatError: the file breaks one of S-NAM-1 to S-NAM-4, S-NAM-9 and S-DAT-1 to S-DAT-3.
    """

    __slots__ = ("_by_name", "_keys", "_memory", "_table", "count")

    def __init__(self, header: Header, head: bytes | memoryview, limits: Limits) -> None:
        self.count = header.entry_count
        self._memory = head
        self._table = head[header.string_table_offset : header.data_section_offset]
        self._by_name: dict[str, IndexRow] | None = None
        self._keys: NDArray[np.uint64] | None = None
        if self.count * _LONGEST_NAME > limits.max_string_table_bytes:
            self._check_length_of_names(limits.max_string_table_bytes)
        if self.count <= FEW_ENTRIES:
            self._by_name = self._check_few(header)
        else:
            self._keys = self._check_many(header)

    # --- access

    @property
    def rows(self) -> NDArray[Any]:
        """All rows as a structured array, without a copy."""
        return np.frombuffer(self._memory, INDEX_DTYPE, self.count, HEADER_SIZE)

    def row(self, number: int) -> IndexRow:
        """All fields of one row."""
        at = HEADER_SIZE + INDEX_ENTRY_SIZE * number
        return IndexRow(*INDEX_ENTRY.unpack_from(self._memory, at))

    def name_bytes(self, number: int) -> bytes:
        """The name of one row, as UTF-8."""
        row = self.row(number)
        return bytes(self._table[row.name_offset : row.name_offset + row.name_length])

    def name(self, number: int) -> str:
        """The name of one row."""
        return self.name_bytes(number).decode()

    def names(self) -> list[str]:
        """All names."""
        return self._names_of(self.rows) if self._by_name is None else list(self._by_name)

    def _names_of(self, rows: NDArray[Any]) -> list[str]:
        offsets = rows["name_offset"].tolist()
        lengths = rows["name_length"].tolist()
        table = bytes(self._table)
        return [table[o : o + n].decode() for o, n in zip(offsets, lengths, strict=True)]

    def by_name(self) -> Mapping[str, IndexRow]:
        """Every row by its name."""
        if self._by_name is not None:
            return self._by_name
        return dict(zip(self.names(), map(self.row, range(self.count)), strict=True))

    def finder(self) -> Callable[[str], IndexRow | None]:
        """The function that gives the row of a name, or None."""
        return self._search if self._by_name is None else self._by_name.get

    def _search(self, name: str) -> IndexRow | None:
        keys = self._keys
        assert keys is not None
        try:
            key = name.encode()
        except UnicodeEncodeError:  # a lone surrogate, which no name can hold (S-NAM-3)
            return None
        wanted = xxh64_intdigest(key) & _HASH_MASK
        at = int(keys.searchsorted(np.uint64(wanted)))
        while at < self.count:
            candidate = int(keys[at])
            if candidate & _HASH_MASK != wanted:
                return None
            number = candidate & _ROW_MASK
            if self.name_bytes(number) == key:
                return self.row(number)
            at += 1
        return None

    def names_with_prefix(self, prefix: str) -> list[str]:
        """The names that start with the prefix, in index order."""
        if self._by_name is not None:
            return [name for name in self._by_name if name.startswith(prefix)]
        wanted = prefix.encode(errors="surrogatepass")
        offsets, lengths = self._name_columns()
        rows = np.flatnonzero(lengths >= len(wanted))
        table = self._padded_table()
        for at in range(0, len(wanted), 8):
            piece = wanted[at : at + 8]
            word = np.uint64(int.from_bytes(piece, "little"))
            mask = np.uint64((1 << 8 * len(piece)) - 1)
            rows = rows[load_words(table, offsets[rows] + at, "<u8") & mask == word]
        return self._names_of(self.rows[rows])

    def first_wrong_hash(self) -> int | None:
        """The first row whose stored hash is not that of its name (S-NAM-5)."""
        if self._by_name is not None:
            hashes = [xxh64_intdigest(name.encode()) for name in self._by_name]
            computed = np.array(hashes, np.uint64)
        else:
            computed = hash_names(self._padded_table(), *self._name_columns())
        wrong = np.flatnonzero(computed != self.rows["name_hash"])
        return int(wrong[0]) if wrong.size else None

    # --- checks, any number of entries

    def _check_length_of_names(self, most: int) -> None:
        # Names may share bytes of the table: a small file could claim far more of them than it has.
        total = int(self.rows["name_length"].sum(dtype=np.int64))
        if total > most:
            raise LimitExceeded(
                "the names are too long together",
                expected=f"at most {most} bytes",
                found=f"{total} bytes",
                rule="S-NAM-9",
                hint="pass limits=Limits(max_string_table_bytes=…) if you trust the file",
                command="",
            )

    # --- checks, few entries

    def _check_few(self, header: Header) -> dict[str, IndexRow]:
        by_name: dict[str, IndexRow] = {}
        end, is_in_order = header.data_section_offset, True
        # Of bytes: Python 3.11 crashes if it collects the iterator together with a memoryview.
        table = bytes(self._table)
        rows = bytes(self._memory[HEADER_SIZE : header.string_table_offset])
        try:
            for row in INDEX_ENTRY.iter_unpack(rows):
                _, name_offset, name_length, _, start, size, _, _, _, _ = row
                encoded = table[name_offset : name_offset + name_length]
                if not name_length or len(encoded) != name_length:
                    self._find_bad_name(range(self.count))
                by_name[encoded.decode()] = _AS_ROW(row)
                if start < end:
                    is_in_order = False
                end = start + size
        except UnicodeDecodeError:
            self._find_bad_name(range(self.count))
        if len(by_name) != self.count:
            self._find_duplicate(range(self.count))
        if not is_in_order or end > header.total_file_size:
            self._check_ranges(header)
        return by_name

    # --- checks, many entries

    def _name_columns(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        offsets, lengths = self._columns("name_offset", "name_length")
        return offsets.astype(np.int64), lengths.astype(np.int64)

    def _columns(self, *fields: str) -> list[NDArray[Any]]:
        """Fields of all rows, each as an array of its own.

        Block by block: the first field brings the rows into the cache, the others find them there.
        """
        columns = [np.empty(self.count, INDEX_DTYPE[field]) for field in fields]
        rows = self.rows
        for start in range(0, self.count, _COLUMN_BLOCK):
            block = slice(start, start + _COLUMN_BLOCK)
            for column, field in zip(columns, fields, strict=True):
                column[block] = rows[field][block]
        return columns

    def _padded_table(self) -> NDArray[np.uint8]:
        start = HEADER_SIZE + INDEX_ENTRY_SIZE * self.count
        return np.frombuffer(self._memory, np.uint8, len(self._table) + WORD_PADDING, start)

    def _check_many(self, header: Header) -> NDArray[np.uint64]:
        name_offsets, name_lengths, starts, ends = self._columns(
            "name_offset", "name_length", "data_offset", "disk_size"
        )
        offsets, lengths = name_offsets.astype(np.int64), name_lengths.astype(np.int64)
        table = self._padded_table()
        outside = (lengths == 0) | (offsets + lengths > len(self._table))
        if outside.any():
            self._find_bad_name(np.flatnonzero(outside).tolist())
        if len(self._table) and int(table[: len(self._table)].max()) >= 0x80:
            self._check_utf8(table, offsets, lengths)

        keys = hash_names(table, offsets, lengths)
        keys &= np.uint64(_HASH_MASK)
        keys |= np.arange(self.count, dtype=np.uint64)
        keys.sort()
        hashes = keys >> np.uint64(_ROW_BITS)
        same = np.flatnonzero(hashes[1:] == hashes[:-1])
        if same.size:
            suspects = np.union1d(keys[same], keys[same + 1]) & np.uint64(_ROW_MASK)
            self._find_duplicate(np.sort(suspects).tolist())

        ends += starts
        if (
            int(starts[0]) < header.data_section_offset
            or int(ends[-1]) > header.total_file_size
            or bool((ends < starts).any())  # the sum wrapped
            or bool((starts[1:] < ends[:-1]).any())
        ):
            self._check_ranges(header)
        return keys

    def _check_utf8(
        self, table: NDArray[np.uint8], offsets: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> None:
        # In a table that is valid as a whole, a name is valid if it starts and ends between characters.
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            for at in range(0, len(self._table), 1 << 20):
                decoder.decode(self._table[at : at + (1 << 20)])
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            self._find_bad_name(range(self.count))
            return
        ends = offsets + lengths
        # The byte behind the table belongs to the data section: it says nothing about the last name.
        cut = (table[offsets] & 0xC0 == 0x80) | (
            (table[ends] & 0xC0 == 0x80) & (ends < len(self._table))
        )
        if cut.any():
            self._find_bad_name(np.flatnonzero(cut).tolist())

    # --- which entry is it? Slow and exact; also decides the cases that a look at columns cannot.

    def _find_bad_name(self, suspects: Iterable[int]) -> None:
        for number in suspects:
            self._refuse_name(number)

    def _refuse_name(self, number: int) -> None:
        """Raises if the name breaks a rule by itself."""
        row = self.row(number)
        place = HEADER_SIZE + INDEX_ENTRY_SIZE * number + 8
        if row.name_offset + row.name_length > len(self._table):
            raise BadName(
                f"the name of entry {number} lies outside the string table",
                offset=place,
                expected=f"an end of at most {len(self._table)}",
                found=row.name_offset + row.name_length,
                rule="S-NAM-1",
            )
        if row.name_length == 0:
            raise BadName(f"the name of entry {number} is empty", offset=place, rule="S-NAM-2")
        try:
            self.name(number)
        except UnicodeDecodeError as error:
            raise BadName(
                f"the name of entry {number} is not UTF-8: {error.reason}",
                offset=place,
                found=repr(self.name_bytes(number)[:64]),
                rule="S-NAM-3",
            ) from None

    def _find_duplicate(self, suspects: Iterable[int]) -> None:
        seen: dict[bytes, int] = {}
        for number in suspects:
            name = self.name_bytes(number)
            first = seen.setdefault(name, number)
            if first != number:
                raise DuplicateName(
                    f"entries {first} and {number} have the same name",
                    entry=name.decode(),
                    rule="S-NAM-4",
                )

    def _check_ranges(self, header: Header) -> None:
        starts = self.rows["data_offset"].astype(np.uint64)
        sizes = self.rows["disk_size"].astype(np.uint64)
        total = np.uint64(header.total_file_size)
        before = starts < np.uint64(header.data_section_offset)
        # Subtract instead of adding: a sum of two u64 may wrap.
        room = total - np.minimum(sizes, total)
        beyond = (sizes > total) | (starts > room)
        for wrong, rule, expected in (
            (before, "S-DAT-1", f"not before the data section at {header.data_section_offset}"),
            (beyond, "S-DAT-2", f"within the file's {header.total_file_size} bytes"),
        ):
            if wrong.any():
                number = int(wrong.argmax())
                raise BadOffset(
                    "the data of the entry is out of range",
                    entry=self.name(number),
                    offset=HEADER_SIZE + INDEX_ENTRY_SIZE * number + 16,
                    expected=expected,
                    found=f"{sizes[number]} bytes at {starts[number]}",
                    rule=rule,
                )
        stored = np.flatnonzero(sizes)
        in_order = stored[np.argsort(starts[stored], kind="stable")]
        ends = starts[in_order] + sizes[in_order]
        collisions = np.flatnonzero(starts[in_order][1:] < ends[:-1])
        if collisions.size:
            first, second = (int(in_order[collisions[0] + i]) for i in (0, 1))
            raise Overlap(
                f"the stored bytes overlap those of entry {self.name(first)!r}",
                entry=self.name(second),
                offset=int(starts[second]),
                expected=f"a start at or after {int(starts[first]) + int(sizes[first])}",
                found=int(starts[second]),
                rule="S-DAT-3",
            )
