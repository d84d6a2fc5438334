"""The end of a shard: offsets of the records, lookup by key, metadata, footer (sections 7 and 8)."""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format._json import canonical, parse_object
from shard_format.codecs import crc32c
from shard_format.errors import BadOffset, ChecksumMismatch, LimitExceeded, SizeMismatch
from shardpack._layout import (
    FOOTER_SIZE,
    INDEX_HEAD,
    INDEX_TAG,
    Footer,
    u32_sequence,
    u64_sequence,
)

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from shard_format.registry import Limits


def build_index(
    offsets: array[int], hashes: array[int], end: int, metadata: Mapping[str, Any]
) -> tuple[list[bytes], Footer]:
    """The parts that follow the last record, in order, and the footer that is the last of them.

    Args:
        offsets: start of each record.
        hashes: XXH64 of each key.
        end: where the last record ends.
        metadata: the fields of the shard.
    """
    starts = np.empty(len(offsets) + 1, "<u8")
    starts[:-1] = np.frombuffer(offsets, np.uint64) if len(offsets) else 0
    starts[-1] = end
    by_record = np.frombuffer(hashes, np.uint64) if len(hashes) else np.empty(0, np.uint64)
    # Stable: among equal hashes the records keep their order, in every implementation.
    order = np.argsort(by_record, kind="stable")
    lookup = by_record[order].astype("<u8").tobytes() + order.astype("<u4").tobytes()
    text = canonical(metadata)
    places = starts.tobytes()
    footer = Footer(end, len(offsets), len(text), 0, crc32c(places), crc32c(lookup), crc32c(text))
    footer = footer._replace(total_size=footer.metadata_at + len(text) + FOOTER_SIZE)
    head = INDEX_HEAD.pack(footer.total_size - end, INDEX_TAG, len(offsets), len(text))
    return [head, places, lookup, text, footer.pack()], footer


# More records might push one another out of the cache before they are read.
_TOUCHED: Final = 256
_SMALLEST: Final = 5e-324
_KNOWN_FIELDS: Final = frozenset(("created", "schema", "user", "version"))


def unknown_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of an index but for what every writer says anew: it is kept (section 7)."""
    return {key: value for key, value in fields.items() if key not in _KNOWN_FIELDS}


def check_index_size(footer: Footer, limits: Limits) -> None:
    """Refuses an index that is larger than the caller allows, before it is read."""
    size = footer.total_size - footer.index_offset
    if size > limits.max_index_bytes:
        raise LimitExceeded(
            "the index is too large",
            expected=f"at most {limits.max_index_bytes} bytes",
            found=f"{size} bytes",
            rule="P-IDX-1",
            hint="pass limits=Limits(max_index_bytes=…) if you trust the file",
        )


class Index:
    """The index of an opened shard. Each part is checked once, when it is first needed.

    Owns: nothing but views of the index bytes, 20 bytes a record, which may be a mapping.
    """

    __slots__ = ("_data", "_hashes", "_limits", "_metadata", "_numbers", "_offsets", "footer")

    def __init__(self, data: memoryview, footer: Footer, limits: Limits) -> None:
        # From the start of the index block.
        self._data = data
        self.footer = footer
        self._limits = limits
        self._offsets: memoryview | None = None
        self._hashes: memoryview | None = None
        self._numbers: memoryview | None = None
        self._metadata: dict[str, Any] | None = None
        expected = INDEX_HEAD.pack(
            footer.total_size - footer.index_offset,
            INDEX_TAG,
            footer.record_count,
            footer.metadata_size,
        )
        if data[: INDEX_HEAD.size] != expected:
            raise SizeMismatch(
                "the head of the index contradicts the footer",
                offset=footer.index_offset,
                expected=expected.hex(" "),
                found=bytes(data[: INDEX_HEAD.size]).hex(" "),
                rule="P-IDX-2",
            )

    def _part(self, start: int, stop: int, checksum: int, what: str, rule: str) -> memoryview:
        base = self.footer.index_offset
        part = self._data[start - base : stop - base]
        computed = crc32c(part)
        if computed != checksum:
            raise ChecksumMismatch(
                f"{what} of the shard are damaged",
                offset=start,
                expected=f"CRC-32C {checksum:08x}",
                found=f"{computed:08x}",
                rule=rule,
                hint="shardpack.recover(path, output) brings back every complete record",
            )
        return part

    @property
    def offsets(self) -> memoryview:
        """Start of every record, and the end of the last one; checked."""
        offsets = self._offsets
        if offsets is None:
            footer = self.footer
            part = self._part(
                footer.offsets_at,
                footer.hashes_at,
                footer.offsets_crc32c,
                "the offsets",
                "P-IDX-3",
            )
            starts = np.frombuffer(part, "<u8")
            if int(starts[0]) or int(starts[-1]) != footer.index_offset or not _ascend(starts):
                raise BadOffset(
                    "the offsets of the records do not ascend from 0 to the index",
                    offset=footer.offsets_at,
                    rule="P-IDX-4",
                )
            self._offsets = offsets = u64_sequence(part)
        return offsets

    def _load_lookup(self) -> tuple[memoryview, memoryview]:
        footer = self.footer
        part = self._part(
            footer.hashes_at,
            footer.metadata_at,
            footer.lookup_crc32c,
            "the key hashes",
            "P-IDX-5",
        )
        split = 8 * footer.record_count
        hashes = np.frombuffer(part[:split], "<u8")
        numbers = np.frombuffer(part[split:], "<u4")
        if not bool((hashes[1:] >= hashes[:-1]).all()) or (
            numbers.size and int(numbers.max()) >= footer.record_count
        ):
            raise BadOffset(
                "the key hashes are not sorted, or belong to records that are not there",
                offset=footer.hashes_at,
                rule="P-IDX-6",
            )
        self._numbers = u32_sequence(part[split:])
        self._hashes = u64_sequence(part[:split])
        return self._hashes, self._numbers

    def records_with_hash(self, key_hash: int) -> Iterator[int]:
        """Numbers of the records whose keys have this hash."""
        hashes, numbers = self._hashes, self._numbers
        if hashes is None or numbers is None:
            hashes, numbers = self._load_lookup()
        at = bisect.bisect_left(hashes, key_hash)
        while at < len(hashes) and hashes[at] == key_hash:
            yield numbers[at]
            at += 1

    def lookup_arrays(self) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
        """The sorted hashes and the record number of each, as views."""
        hashes, numbers = self._hashes, self._numbers
        if hashes is None or numbers is None:
            hashes, numbers = self._load_lookup()
        return np.frombuffer(hashes, np.uint64), np.frombuffer(numbers, np.uint32)

    def let_go(self) -> None:
        """Drops the views, so that a mapping under them can end."""
        self._data = memoryview(b"")
        self._offsets = self._hashes = self._numbers = None

    @property
    def metadata(self) -> dict[str, Any]:
        """The fields of the shard."""
        found = self._metadata
        if found is None:
            footer = self.footer
            part = self._part(
                footer.metadata_at,
                footer.metadata_at + footer.metadata_size,
                footer.metadata_crc32c,
                "the metadata fields",
                "P-IDX-7",
            )
            found = parse_object(bytes(part), "the shard's metadata", self._limits, rule="P-IDX-8")
            self._metadata = found
        return found


def _ascend(starts: NDArray[np.uint64]) -> bool:
    """Whether each number is larger than the one before; the first must be 0.

    Bits of positive numbers have the same order as doubles, which are compared twice as fast; those that are none
    are never larger. Not where the processor was told to take the smallest doubles for 0.
    """
    numbers = starts.view("<f8") if _SMALLEST > 0 else starts
    return bool((numbers[1:] > numbers[:-1]).all())


def touched_places(
    offsets: memoryview, numbers: list[int], view: memoryview
) -> Iterator[Iterator[tuple[int, int]]]:
    """Start and end of records that are about to be read, in runs; the first byte of each is touched.

    A record at a random place makes the processor wait for its memory. Touched in one sweep, those of a run
    come side by side.

    Args:
        offsets: of the shard.
        numbers: the records, all of which must be there.
        view: the bytes of the shard.
    """
    bounds = np.frombuffer(offsets, np.int64)
    data = np.frombuffer(view, np.uint8)
    for first in range(0, len(numbers), _TOUCHED):
        wanted = np.array(numbers[first : first + _TOUCHED], np.int64)
        starts = bounds.take(wanted)
        data.take(starts)
        yield zip(starts.tolist(), bounds.take(wanted + 1).tolist(), strict=True)


def sorted_lookup(
    indexes: Sequence[tuple[NDArray[np.uint64], NDArray[np.uint32]]], starts: Sequence[int]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """One lookup for several shards: sorted hashes, and the number of each record in all of them."""
    hashes = np.concatenate([hashes for hashes, _ in indexes] or [np.empty(0, np.uint64)])
    numbers = np.concatenate(
        [
            numbers.astype(np.int64) + start
            for (_, numbers), start in zip(indexes, starts, strict=True)
        ]
        or [np.empty(0, np.int64)]
    )
    order = np.argsort(hashes, kind="stable")
    return hashes[order], numbers[order]
