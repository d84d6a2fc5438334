"""MDS, the format of MosaicML Streaming: an `index.json` and shards of samples with typed columns."""

from __future__ import annotations

import os
from collections import deque
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from shard_format.errors import DuplicateName, InvalidArgument, ShardError
from shard_format.registry import DEFAULT_LIMITS, Limits
from shardpack._output import Output
from shardpack.columns import opened
from shardpack.convert._mds_columns import Columns
from shardpack.convert._mds_output import MdsOutput
from shardpack.convert._mds_shards import read_index, samples, shard_bytes
from shardpack.convert._mds_values import converter
from shardpack.convert._names import row_key
from shardpack.convert._result import Converted
from shardpack.decoding import decode_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from shardpack.columns import Samples
    from shardpack.combined import AnyRecord
    from shardpack.convert._mds_layout import Places
    from shardpack.convert._mds_shards import Shard
    from shardpack.convert._mds_values import Put

__all__ = ["from_mds", "to_mds"]

KEY: Final = "__key__"
# What is looked at before the columns are chosen.
_MOST_RECORDS: Final = 256
_MOST_BYTES: Final = 16 << 20


def from_mds(
    folder: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    columns: Iterable[str] | None = None,
    key: str | None = None,
    check: bool = True,
    limits: Limits = DEFAULT_LIMITS,
    **options: Any,  # noqa: ANN401 - checked by the writer
) -> Converted:
    """Makes shards of an MDS data set, sample by sample; one of its shards is in memory if it is compressed.

    Bytes, text, JSON, JPEG and PNG become entries as they are, arrays and raw images `.npy` entries,
    lists of images numbered entries. Numbers become fields of the metadata of the record. Pickles are
    kept as bytes and never loaded. The columns and their encodings are in the metadata of the shards.
    A data set that `to_mds` wrote becomes the records that it was made of.

    Args:
        folder: where `index.json` is.
        output: one file, or `"train-%06d.shardpack"` for a set of shards.
        columns: only these; None for all.
        key: the column whose values are the keys, text or a number; None for the one that `to_mds` wrote, or
            else the number of the sample.
        check: False skips the hashes that the index has for its shards.
        limits: raise `max_decompressed_bytes` for compressed shards above 1 GiB.
        options: `max_bytes` and `max_records` for a set, and what `ShardPackWriter` takes.

    Raises:
        ShardError: a subclass that says which file is missing or damaged.
    """
    root = os.fspath(folder)
    shards, places = read_index(root)
    wanted = None if columns is None else list(columns)
    kinds = {name: encoding for shard in shards for name, encoding, _ in shard.columns}
    for name in (*(wanted or ()), *(() if key is None else (key,))):
        if name not in kinds:
            raise InvalidArgument(
                "there is no such column",
                path=root,
                expected=", ".join(map(repr, kinds)) or "columns",
                found=repr(name),
            )
    if key is None and places.key in kinds:
        key = places.key
    options.setdefault("metadata_encoding", "msgpack")
    options["metadata"] = {"mds_columns": kinds, **(options.get("metadata") or {})}
    records = 0
    with Output(output, **options) as writer:
        for shard in shards:
            puts = _converters(shard, wanted, places)
            data = shard_bytes(shard, check, limits)
            try:
                for sample in samples(shard, data):
                    entries, fields = _Unique(), _Unique()
                    for name, put in puts.items():
                        put(sample[name], entries, fields)
                    own = row_key(records) if key is None else _key(sample[key], key, kinds[key])
                    writer.write(own, entries, fields)
                    records += 1
            except ShardError as error:
                raise error.located(path=shard.path) from None
    return Converted(writer.paths, records)


class _Unique(dict[str, Any]):
    """Parts of a record, of which each comes once."""

    def __setitem__(self, name: str, value: Any) -> None:  # noqa: ANN401 - of any kind
        if name in self:
            raise DuplicateName(
                "two columns would become this", entry=name, hint="columns=[…] leaves one out"
            )
        super().__setitem__(name, value)


def _key(value: memoryview, column: str, encoding: str) -> str:
    if encoding in ("str", "bytes"):
        return decode_text(value)
    fields: dict[str, Any] = {}
    converter(column, encoding)(value, {}, fields)
    if column not in fields:
        raise InvalidArgument(
            "this column cannot be the key", entry=column, expected="text or numbers"
        )
    return str(fields[column])


def _converters(shard: Shard, wanted: list[str] | None, places: Places) -> dict[str, Put]:
    return {
        name: converter(
            name,
            encoding,
            entry=places.entries.get(name),
            field=places.fields.get(name),
            is_optional=name in places.optional,
        )
        for name, encoding, _ in shard.columns
        if (name != places.key if wanted is None else name in wanted)
    }


def to_mds(
    shards: Samples,
    folder: str | os.PathLike[str],
    *,
    columns: Iterable[str] | None = None,
    encodings: Mapping[str, str] | None = None,
    key: str | None = KEY,
    max_bytes: int = 1 << 26,
    compression: str | None = None,
    hashes: Iterable[str] = ("xxh64",),
    fsync: bool = True,
) -> Converted:
    """Writes an MDS data set, which `streaming.StreamingDataset` opens; the package itself is not needed.

    Each entry is a column of its name, and each field of the metadata too; one that is called like an entry
    has `metadata.` in front. JPEG, PNG, JSON and text stay the bytes that they are, and are images, values and
    text to whoever reads the samples; arrays (`.npy`) are arrays, all other entries bytes. Integers of the
    metadata are `int`, floats `float64`, text is `str`, all else `json`. `from_mds` gives the records back.
    Content types and the metadata of the shards are left behind.

    All samples have the same columns, those of the first 256 records. One shard is in memory at a time, and
    the index is written last: if this does not end well, nothing is left.

    Args:
        shards: what `shardpack.open` takes, or an opened data set.
        folder: where `index.json` and the shards go. Must be empty, or not be there.
        columns: only these, and the key; None for all.
        encodings: those of single columns, as MDS calls them: `{"cls": "int", "points.npy": "bytes"}`. A column may
            have a name without the ending: `{"image": "jpeg"}` for the entry `image.jpg`.
        key: the column of the keys; None leaves them out.
        max_bytes: a new shard starts before one grows above this, before compression.
        compression: None, `"zstd"`, or with a level, `"zstd:7"`.
        hashes: of every file, for readers that check them.
        fsync: False skips syncing to disk.

    Raises:
        InvalidArgument: the folder is not empty, or a record has other columns than the first ones.
        BadValue: a value does not fit its column; the message says which encoding does.
        LimitExceeded: a sample of 4 GiB.
    """
    with opened(shards) as dataset:
        waiting: Iterator[AnyRecord] = iter(dataset.records())
        first = _first(waiting)
        chosen = Columns(first, key=key, wanted=columns, given=encodings or {})
        with MdsOutput(
            os.fspath(folder),
            chosen,
            max_bytes=max_bytes,
            compression=compression,
            hashes=hashes,
            fsync=fsync,
        ) as output:
            for record in chain(_taken(first), waiting):
                output.write(record.key, chosen.values(record))
    return Converted(output.paths, output.records)


def _first(records: Iterator[AnyRecord]) -> deque[AnyRecord]:
    """Enough records to see what they are like."""
    found: deque[AnyRecord] = deque()
    size = 0
    while len(found) < _MOST_RECORDS and size < _MOST_BYTES:
        record = next(records, None)
        if record is None:
            break
        found.append(record)
        size += sum(entry.size for entry in record.file_entries())
    return found


def _taken(records: deque[AnyRecord]) -> Iterator[AnyRecord]:
    """Each once, and then no longer in memory."""
    while records:
        yield records.popleft()
