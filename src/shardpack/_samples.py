"""Whole samples without a `Record` around them: the straight way to the bytes of all entries.

`Record.read_all` looks at one entry after the other. Here, functions are made for each number of entries in
which that loop is written out, so that reading a usual sample takes little longer than copying its bytes.
They make the same checks, and leave whatever fails one (another shape, a compressed entry, damage) to
`Record.read_all`, which decodes it or says what is wrong.
"""

from __future__ import annotations

import struct
import textwrap
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol

from shard_format.codecs import crc32c
from shardpack._heads import open_record
from shardpack._layout import (
    CHECKED,
    CHECKSUM,
    LARGEST_RECORD_METADATA,
    LONGEST_KEY,
    SAMPLE_ROW,
    SAMPLE_START,
    TAGS,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardpack._origin import Origin
    from shardpack.record import Record

# Longer functions gain nothing over the loop.
_MOST_ENTRIES: Final = 16
# A data set whose records all differ must not fill the memory.
_MOST_READERS: Final = 64


@dataclass(frozen=True, slots=True)
class SampleReader:
    """Reads whole samples of one shape."""

    one: Callable[[int, int], dict[str, bytes] | None]
    """From start and end of a record to its contents, or None if it is not a usual one."""
    many: Callable[[Origin, Iterator[tuple[int, int]]], Iterator[dict[str, bytes]]]
    """The same for one record after the other, up to and with the first that is not a usual one."""


def read_sample(origin: Origin, start: int, end: int) -> dict[str, bytes]:
    """The content of every entry of the record in these bytes, checked and decompressed.

    Raises:
        FormatError: the record breaks a rule.
    """
    reader = origin.sample_reader
    if reader is not None:
        # Most records have the shape of the one before.
        contents = reader.one(start, end)
        if contents is not None:
            return contents
    return _read_other(origin, start, end)


def read_samples(origin: Origin, places: Iterator[tuple[int, int]]) -> Iterator[dict[str, bytes]]:
    """`read_sample` for one record after the other, in less time.

    Args:
        origin: where the bytes are.
        places: start and end of each record; asked for the next one when that is wanted.

    Raises:
        FormatError: a record breaks a rule; those before have been handed out.
    """
    for start, end in places:
        yield read_sample(origin, start, end)
        reader = origin.sample_reader
        if reader is not None:
            yield from reader.many(origin, places)


def extend_samples(
    found: list[dict[str, bytes]], origin: Origin, places: Iterator[tuple[int, int]]
) -> None:
    """Adds what `read_samples` gives to a list, in still less time."""
    reader = origin.sample_reader
    if reader is not None:
        found += reader.many(origin, places)
    # Nothing is left, unless one was not a usual one.
    found += read_samples(origin, places)


def _read_other(origin: Origin, start: int, end: int) -> dict[str, bytes]:
    """Any sample, the long way; the next one is then expected to have its shape."""
    record = open_record(origin, start, end - start)
    contents = record.read_all()
    if origin.buffer is not None and 0 < len(record) <= _MOST_ENTRIES:
        origin.sample_reader = _reader_like(origin, record)
    return contents


def _reader_like(origin: Origin, record: Record) -> SampleReader | None:
    """The reader of records that have the shape of this one; None for the first of them."""
    kinds, tag = record._kinds, record._fixed[1]
    readers = origin.sample_readers
    shape = (tag, kinds.stored)
    if shape not in readers:
        # There may be no second one: it would take longer to open a shard for a single sample.
        if len(readers) >= _MOST_READERS:
            readers.clear()
        readers[shape] = None
        return None
    reader = readers[shape]
    if reader is None:
        count, stored = kinds.count, kinds.stored
        reader = readers[shape] = SampleReader(
            *_maker(count)(
                origin.slices,
                origin.buffer,
                struct.Struct(f"{SAMPLE_START}{SAMPLE_ROW * count}{len(stored)}s"),
                tag + struct.pack("<II", count, len(stored)),
                stored,
                kinds.names,
                kinds.key_start + CHECKSUM.size,
                TAGS[tag].mask,
            )
        )
    return reader


class _Maker(Protocol):
    """What the source below defines: it makes the two functions of a `SampleReader`."""

    def __call__(
        self,
        slices: object,
        buffer: object,
        usual: struct.Struct,
        shape: bytes,
        kinds: bytes,
        names: tuple[str, ...],
        around: int,
        mask: int,
        /,
    ) -> tuple[Any, Any]: ...


@lru_cache(maxsize=_MOST_ENTRIES)
def _maker(count: int) -> _Maker:
    """Makes readers of records with so many entries. The source depends on nothing but their number.

    In it, `usual` unpacks a head up to its key, `shape` and `kinds` are the bytes of it that all records of
    one shape share, `around` is the size of a head without key and metadata, and `crc…` is the checksum of an
    entry with encoding and reserved bytes above it: no CRC-32C fits if one of these is not zero. The rules
    of the head are P-REC, those of the entries P-ENT.
    """

    def each(text: str, between: str = " or ") -> str:
        return between.join(text.format(n=n, next=n + 1) for n in range(count))

    def checked(otherwise: str, indent: int) -> str:
        """From `start` and `end` to `data…`, or to `otherwise` if anything is not as usual."""
        lines = f"""\
if start > last:
    {otherwise}
(
    found_size, found_shape, key_size, metadata_size,
    {each("stored{n}, original{n}, crc{n}", ", ")}, found_kinds,
) = unpack_from(buffer, start)
end0 = start + around + key_size + metadata_size
{each("begin{n} = end{n} + mask & unmasked; end{next} = begin{n} + stored{n}", "; ")}
if (
    found_size != end - start or found_shape != shape or found_kinds != kinds
    or {each("stored{n} != original{n}")}
    or end{count} > end or start & mask
    or not key_size or key_size > {LONGEST_KEY} or metadata_size > {LARGEST_RECORD_METADATA}
    or crc32c(slices[start:end0]) != {CHECKED}
):
    {otherwise}
{each("data{n} = slices[begin{n}:end{next}]", "; ")}
if {each("crc32c(data{n}) != crc{n}")}:
    {otherwise}
"""
        return textwrap.indent(lines, " " * indent)

    contents = f"{{{each('name{n}: data{n}', ', ')}}}"
    source = f"""
def make(slices, buffer, usual, shape, kinds, names, around, mask):
    {each("name{n}", ", ")}, = names
    unpack_from, last = usual.unpack_from, len(buffer) - usual.size
    unmasked = ~mask

    def one(start, end):
{checked("return None", 8)}
        return {contents}

    def many(origin, places):
        for start, end in places:
{checked("yield read_other(origin, start, end); return", 12)}
            yield {contents}

    return one, many
"""
    namespace: dict[str, Any] = {"crc32c": crc32c, "read_other": _read_other}
    exec(source, namespace)  # noqa: S102 - the source is ours
    maker: _Maker = namespace["make"]
    return maker
