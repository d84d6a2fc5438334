"""Records for a batch: of a remote shard their heads and the entries that are wanted, in two rounds of requests."""

from __future__ import annotations

from functools import partial
from operator import index as as_index
from typing import TYPE_CHECKING, Any, Final

from shard_format.errors import ShardError
from shard_format.sources import can_read_ranges
from shardpack._heads import FIRST_READ, head_size_of, open_record, read_keys, record_of_head
from shardpack._origin import Origin
from shardpack._sample_decoding import name_is_taken
from shardpack._stacking import KEY
from shardpack.columns import CombinedDataset
from shardpack.record import located

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shard_format.sources import ByteSource
    from shardpack._sample_decoding import SampleDecoder
    from shardpack.columns import AnyDataset
    from shardpack.combined import AnyRecord
    from shardpack.dataset import Dataset
    from shardpack.reader import ShardPackReader
    from shardpack.record import Record

__all__ = ["take_bytes", "take_records"]

# Records up to this size are fetched whole if all of them is wanted: requests cost more than bytes.
_SMALL_RECORD: Final = 1 << 20


def take_bytes(
    dataset: Dataset, numbers: list[int], decoder: SampleDecoder
) -> list[dict[str, Any]]:
    """`Dataset.take_samples`, each with the key of its record."""
    return dataset._take(numbers, partial(_take_bytes, decoder=decoder))


def _take_bytes(
    reader: ShardPackReader, numbers: Iterable[int], *, decoder: SampleDecoder
) -> list[dict[str, Any]]:
    wanted = list(numbers)
    if reader.origin.buffer is None:
        records = _take_parts(reader, wanted, decoder=decoder, prefix="")
        return [decoder.contents(record) for record in records]
    samples: list[dict[str, Any]] = [*reader.take_samples(wanted)]
    offsets = reader.get_index()
    keys = read_keys(reader.origin, [offsets[number] for number in wanted])
    for sample, key in zip(samples, keys, strict=True):
        if sample.setdefault(KEY, key) is not key:
            raise name_is_taken(KEY, key, reader.name)
    return samples


def take_records(
    dataset: AnyDataset, numbers: list[int], decoder: SampleDecoder, prefix: str = ""
) -> Sequence[AnyRecord]:
    """The records of these numbers, in this order; what the decoder reads of remote ones comes along.

    Args:
        dataset: may be put together from others.
        numbers: negative ones count from the end.
        decoder: says which entries of a record are read.
        prefix: what is put before their names.
    """
    if isinstance(dataset, CombinedDataset):
        return dataset.take_with(
            numbers,
            lambda part, inside, before: take_records(part, inside, decoder, prefix + before),
        )
    return dataset._take(numbers, partial(_take_parts, decoder=decoder, prefix=prefix))


def _take_parts(
    reader: ShardPackReader, numbers: Iterable[int], *, decoder: SampleDecoder, prefix: str
) -> list[Record]:
    source = reader.origin.source
    if source is None or not can_read_ranges(source):
        # Read when it is touched: of a mapped shard that takes no request.
        return reader.take(numbers)
    takes_all = decoder.selection.entries is None
    spans = [_span(reader, as_index(number)) for number in numbers]
    pieces = source.read_ranges(
        [
            (start, size if takes_all and size <= _SMALL_RECORD else min(size, FIRST_READ))
            for start, size in spans
        ]
    )
    records = [
        _opened(reader.origin, start, size, piece)
        for (start, size), piece in zip(spans, pieces, strict=True)
    ]
    missing: list[tuple[_Fetched, int, int]] = []
    for record in records:
        slices = record._origin.slices
        if isinstance(slices, _Fetched):
            missing += (
                (slices, entry.offset, entry.stored_size)
                for entry in decoder.read_entries(record, prefix)
                if not slices.holds(entry.offset, entry.stored_size)
            )
    parts = source.read_ranges([(start, size) for _, start, size in missing])
    for (slices, start, _), part in zip(missing, parts, strict=True):
        slices.add(start, part)
    return records


def _span(reader: ShardPackReader, number: int) -> tuple[int, int]:
    """Start and size of a record."""
    count, starts = len(reader), reader.get_index()
    at = number + count if number < 0 else number
    if not 0 <= at < count:
        raise IndexError(f"{reader.name}: there is no record {number}, only 0 to {count - 1}")
    end = starts[at + 1] if at + 1 < count else reader.footer.index_offset
    return starts[at], end - starts[at]


def _opened(origin: Origin, start: int, size: int, piece: bytes) -> Record:
    """The record that starts with these bytes, or that they are."""
    if len(piece) == size:
        return open_record(Origin(origin.name, origin.limits, piece, start), 0, size)
    source = origin.source
    assert source is not None  # whoever fetched the piece had one
    try:
        head_size = head_size_of(piece, size)
    except ShardError as error:
        raise located(error, origin, start) from None
    if head_size > len(piece):
        piece += origin.slices[start + len(piece) : start + head_size]
    here = Origin(origin.name, origin.limits, None)
    here.source = source
    here.slices = slices = _Fetched(source)
    slices.add(start, piece)
    return record_of_head(here, start, size, piece[:head_size])


class _Fetched:
    """Slices of a record of which some parts are here; others are read when they are asked for."""

    __slots__ = ("_parts", "_source")

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._parts: list[tuple[int, bytes]] = []

    def add(self, start: int, part: bytes) -> None:
        """Keeps a part of the file."""
        self._parts.append((start, part))

    def holds(self, start: int, size: int) -> bool:
        """Whether these bytes are here."""
        return self._find(start, size) is not None

    def _find(self, start: int, size: int) -> bytes | None:
        for begin, part in self._parts:
            if begin <= start and start + size <= begin + len(part):
                return part[start - begin : start - begin + size]
        return None

    def __getitem__(self, key: slice) -> bytes:
        size = key.stop - key.start
        part = self._find(key.start, size)
        return self._source.read_at(key.start, size) if part is None else part
