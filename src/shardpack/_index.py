"""The end of a shard: offsets of the records, lookup by key, metadata, footer (sections 7 and 8)."""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.canonical_json import canonical, parse_object
from shard_format.codecs import crc32c
from shard_format.errors import (
    BadOffset,
    ChecksumMismatch,
    Closed,
    LimitExceeded,
    ShardError,
    SizeMismatch,
)
from shardpack._layout import (
    FOOTER_SIZE,
    INDEX_HEAD,
    INDEX_TAG,
    Footer,
    sequence,
)

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from shard_format.registry import Limits


def build_index(
    offsets: array[int], hashes: array[int], end: int, metadata: Mapping[str, Any]
) -> tuple[list[bytes], Footer]:
    """The parts that follow the last record, in order, and the footer, which is the last part.

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
    # A stable sort, so that every implementation writes the same bytes.
    order = np.argsort(by_record, kind="stable")
    lookup = by_record[order].astype("<u8").tobytes() + order.astype("<u4").tobytes()
    text = canonical(metadata)
    places = starts.tobytes()
    footer = Footer(end, len(offsets), len(text), 0, crc32c(places), crc32c(lookup), crc32c(text))
    footer = footer._replace(total_size=footer.metadata_at + len(text) + FOOTER_SIZE)
    head = INDEX_HEAD.pack(footer.total_size - end, INDEX_TAG, len(offsets), len(text))
    return [head, places, lookup, text, footer.pack()], footer


_KNOWN_FIELDS: Final = frozenset(("created", "schema", "user", "version"))


def unknown_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of an index that this library does not know; writers keep them (section 7)."""
    return {key: value for key, value in fields.items() if key not in _KNOWN_FIELDS}


def check_index_size(footer: Footer, limits: Limits) -> None:
    """Refuse an index above the limit before reading it."""
    size = footer.total_size - footer.index_offset
    if size > limits.max_index_bytes:
        raise LimitExceeded(
            "the index is too large",
            expected=f"at most {limits.max_index_bytes} bytes",
            found=f"{size} bytes",
            rule="P-IDX-1",
            hint="pass limits=Limits(max_index_bytes=…) if you trust the file",
            command="",
        )


class ShardIndex:
    """The index of an open shard. Each part is checked once, when it is first needed.

    Owns: views of the index, 20 bytes per record, which may be mapped.
    """

    __slots__ = (
        "_data",
        "_hashes",
        "_limits",
        "_metadata",
        "_numbers",
        "_offsets",
        "_path",
        "footer",
    )

    def __init__(self, path: str, data: memoryview, footer: Footer, limits: Limits) -> None:
        # What errors call the shard.
        self._path = path
        # From the start of the index block.
        self._data: memoryview | None = data
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
        part = self.stored[start - base : stop - base]
        computed = crc32c(part)
        if computed != checksum:
            raise ChecksumMismatch(
                f"{what} of the shard are damaged",
                path=self._path,
                offset=start,
                expected=f"CRC-32C {checksum:08x}",
                found=f"{computed:08x}",
                rule=rule,
                hint="run shardpack.recover(path, output) to recover every complete record",
                command="run 'shardpack recover' to recover every complete record",
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
            offsets = sequence(part, "Q")
            starts = np.frombuffer(offsets, np.uint64)
            if (
                offsets[0]
                or offsets[-1] != footer.index_offset
                or not (starts[1:] > starts[:-1]).all()
            ):
                raise BadOffset(
                    "the offsets of the records do not ascend from 0 to the index",
                    path=self._path,
                    offset=footer.offsets_at,
                    rule="P-IDX-4",
                )
            self._offsets = offsets
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
                "the key hashes are not sorted, or name records that do not exist",
                path=self._path,
                offset=footer.hashes_at,
                rule="P-IDX-6",
            )
        self._numbers = sequence(part[split:], "I")
        self._hashes = sequence(part[:split], "Q")
        return self._hashes, self._numbers

    @property
    def stored(self) -> memoryview:
        """The index as it is in the file, up to the end of the file."""
        data = self._data
        if data is None:
            raise Closed("the shard is closed", path=self._path)
        return data

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

    def hashes_by_record(self) -> NDArray[np.uint64]:
        """XXH64 of the key of each record, in the order of the records."""
        hashes, numbers = self.lookup_arrays()
        found = np.zeros(len(hashes), np.uint64)
        found[numbers] = hashes
        return found

    def spans(self, numbers: Sequence[int]) -> list[tuple[int, int]]:
        """Start and end of these records, all of which must exist."""
        offsets = self.offsets
        return [(offsets[number], offsets[number + 1]) for number in numbers]

    def release(self) -> None:
        """Drop the views, so that the file can be unmapped."""
        self._data = None
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
            try:
                found = parse_object(
                    bytes(part), "the shard's metadata", self._limits, rule="P-IDX-8"
                )
            except ShardError as error:
                raise error.located(path=self._path) from None
            self._metadata = found
        return found


def sorted_lookup(
    indexes: Sequence[tuple[NDArray[np.uint64], NDArray[np.uint32]]], starts: Sequence[int]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """One lookup for several shards: sorted hashes, and the number of each record in the dataset."""
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
