"""Whole samples without a `Record` around them: the straight way to the bytes of all entries.

`Record.read_all` looks at one entry after the other. Here, a function is made for each number of entries in
which that loop is written out, so that reading a usual sample takes about as long as copying its bytes.
It makes the same checks, and leaves whatever fails one (another shape, a compressed entry, damage) to
`Record.read_all`, which decodes it or says what is wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol

from shard_format.codecs import crc32c
from shardpack._heads import open_record
from shardpack._layout import (
    CHECKED,
    CHECKSUM,
    LARGEST_RECORD_METADATA,
    LONGEST_KEY,
    SAMPLE_ROWS,
    SAMPLE_START,
    TAGS,
)

if TYPE_CHECKING:
    from shardpack._origin import Origin
    from shardpack.record import Record

SampleReader = Callable[[int, int], "dict[str, bytes] | None"]
"""From start and size of a record to its contents, or None if it is not a usual one."""

# Longer functions gain nothing over the loop.
_MOST_ENTRIES: Final = 16
# A data set whose records all differ must not fill the memory.
_MOST_READERS: Final = 64


def read_sample(origin: Origin, start: int, size: int) -> dict[str, bytes]:
    """The content of every entry of the record in these bytes, checked and decompressed.

    Raises:
        FormatError: the record breaks a rule.
    """
    reader = origin.sample_reader
    if reader is not None:
        # Most records have the shape of the one before.
        contents = reader(start, size)
        if contents is not None:
            return contents
    record = open_record(origin, start, size)
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
        reader = readers[shape] = _maker(count)(
            origin.slices,
            origin.buffer,
            struct.Struct(f"{SAMPLE_START}{SAMPLE_ROWS * count}{len(stored)}s").unpack_from,
            tag + struct.pack("<II", count, len(stored)),
            stored,
            kinds.names,
            kinds.key_start,
            TAGS[tag].mask,
        )
    return reader


class _Maker(Protocol):
    """What the source below defines."""

    def __call__(
        self,
        slices: object,
        buffer: object,
        unpack_from: Callable[..., tuple[Any, ...]],
        shape: bytes,
        kinds: bytes,
        names: tuple[str, ...],
        key_start: int,
        mask: int,
        /,
    ) -> SampleReader: ...


@lru_cache(maxsize=_MOST_ENTRIES)
def _maker(count: int) -> _Maker:
    """Makes readers of records with so many entries. The source depends on nothing but their number."""
    numbers = range(count)

    def each(text: str, between: str) -> str:
        return between.join(text.format(n=n, next=n + 1) for n in numbers)

    source = f"""
def make(slices, buffer, unpack_from, shape, kinds, names, key_start, mask):
    {each("name{n}", ", ")}, = names
    around = key_start + {CHECKSUM.size}
    def read(start, size):
        if size < around:
            return None
        (
            found_size, found_shape, key_size, metadata_size,
            {each("stored{n}, original{n}, crc{n}, encoding{n}", ", ")}, found_kinds,
        ) = unpack_from(buffer, start)
        end0 = start + around + key_size + metadata_size
        {each("begin{n} = end{n} + (start - end{n} & mask); end{next} = begin{n} + stored{n}", "; ")}
        if (
            found_size != size or found_shape != shape or found_kinds != kinds
            or {each("encoding{n} or stored{n} != original{n}", " or ")}
            or end{count} > start + size
            or not 0 < key_size <= {LONGEST_KEY} or metadata_size > {LARGEST_RECORD_METADATA}
            or crc32c(slices[start:end0]) != {CHECKED}
        ):
            return None
        {each("data{n} = slices[begin{n}:end{next}]", "; ")}
        if {each("crc32c(data{n}) != crc{n}", " or ")}:
            return None
        return {{{each("name{n}: data{n}", ", ")}}}
    return read
"""
    namespace: dict[str, Any] = {"crc32c": crc32c}
    exec(source, namespace)  # noqa: S102 - the source is ours
    maker: _Maker = namespace["make"]
    return maker
