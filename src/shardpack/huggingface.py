"""Packs as data sets of Hugging Face `datasets`, and back. Needs the extra `huggingface`.

    from shardpack.huggingface import from_hf_dataset, to_hf_dataset

    dataset = to_hf_dataset("train-{000000..000009}.shardpack")
    dataset[0]["left.jpg"]                      # a PIL image
    from_hf_dataset(dataset, "again-%06d.shardpack")

Nothing is sent or fetched: this reads and writes files.
"""

from __future__ import annotations

import json
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

from xxhash import xxh64

from shard_format.errors import BadValue, InvalidArgument
from shardpack._hf_arrow import (
    features_of,
    libraries,
    marks_of,
    numbers_of,
    tables_of,
    whole_column,
    with_content,
    write_dataset,
)
from shardpack._hf_samples import ENTRY, KEY, SampleColumns, bytes_of, is_json
from shardpack._selection import Selection
from shardpack.columns import opened
from shardpack.convert.tables import from_table
from shardpack.values import to_bytes

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping

    from shardpack._hf_arrow import Column, Feature, HFDataset, Table
    from shardpack.columns import Samples
    from shardpack.combined import AnyRecord
    from shardpack.convert import Converted

__all__ = ["from_hf_dataset", "to_hf_dataset"]

# Records that say which columns there are.
_LOOK_AT: Final = 256
_MOST_ROWS: Final = 1000
_MOST_BYTES: Final = 16 << 20
_ROWS: Final = 256
_FEATURES: Final = "huggingface_features"
"""The field of a shard's metadata that keeps what the columns were."""


def to_hf_dataset(
    source: Samples,
    *,
    entries: Iterable[str] | None = None,
    features: Mapping[str, Any] | None = None,
    path: str | os.PathLike[str] | None = None,
) -> HFDataset:
    """A `datasets.Dataset` of the samples of packs, one row each.

    `__key__` is the key. Each entry is a column of its name: images stay the bytes that they are, with the type
    `Image`; sounds likewise, as `Audio(decode=False)`; text is a string, JSON has the type `Json`, arrays (`.npy`) are
    lists and `Array2D` to `Array5D`, all else is bytes. Each field of the metadata is a column too, nested ones as
    `Json`; one that is called like an entry has `metadata.` in front. Where a sample lacks something, its row has None.

    Packs that `from_hf_dataset` has made get their former columns back.

    The rows are written to an Arrow file, a few megabytes in memory at a time, which the data set then maps.

    Args:
        source: what `shardpack.open` takes, or an open data set.
        entries: names, or patterns such as `"*.jpg"`; None for all.
        features: types of single columns, instead of those that follow from the first 256 samples. Necessary for
            entries and fields that come later, and for arrays whose shapes differ: `{"scan.npy": Array2D((None, 3),
            "float32")}`, or `{"scan.npy": Value("binary")}` for the bytes of the file.
        path: of the Arrow file; an existing one is replaced. None for one in the cache of `datasets`, whose name
            depends on the packs, so that it is replaced when the same packs are read again.

    Raises:
        MissingExtra: `datasets` is not installed.
        ShardError: a subclass that says which sample cannot be read, or does not fit its column.
    """
    libraries()
    with opened(source) as dataset:
        former = _former(dataset.metadata)
        records: Iterator[AnyRecord] = iter(dataset.records())
        first = list(islice(records, _LOOK_AT))
        columns = SampleColumns(first, Selection(entries), dict(features or {}), former)
        name = f"samples-{xxh64(f'{dataset!r} {columns.features}'.encode()).hexdigest()}"
        batches = _batches(columns, chain(first, records))
        return write_dataset(batches, columns.features, path, name)


def _former(metadata: Mapping[str, Any]) -> dict[str, Feature]:
    datasets, _ = libraries()
    stored = (metadata.get("user") or {}).get(_FEATURES)
    return dict(datasets.Features.from_dict(stored)) if isinstance(stored, dict) else {}


def _batches(columns: SampleColumns, records: Iterable[AnyRecord]) -> Iterator[Table]:
    rows: list[dict[str, Any]] = []
    size = 0
    for record in records:
        rows.append(columns.row(record))
        size += bytes_of(rows[-1])
        if len(rows) >= _MOST_ROWS or size >= _MOST_BYTES:
            yield columns.table(rows)
            rows, size = [], 0
    if rows:
        yield columns.table(rows)


def from_hf_dataset(
    dataset: HFDataset,
    output: str | os.PathLike[str],
    *,
    key: str | None = None,
    columns: Iterable[str] | None = None,
    entries: Mapping[str, str] | None = None,
    batch_rows: int = _ROWS,
    max_bytes: int | None = 1 << 30,
    max_records: int | None = None,
    compression: str | None = None,
) -> Converted:
    """Makes packs of a data set of Hugging Face, one record a row, a few hundred rows in memory at a time.

    Images and sounds become entries that hold the bytes that the data set has, `image.jpg`; those that are files on
    this machine are read. Arrays and lists of numbers become `.npy` entries, columns of bytes entries too. All else
    goes to the metadata of the record: numbers, text, labels, nested values; times and decimals as text. What the
    columns were is kept in the metadata of the shards, so that `to_hf_dataset` gives them back.

    Args:
        dataset: a `datasets.Dataset`, or an `IterableDataset`, which is read once.
        output: one file, or `"train-%06d.shardpack"` for a set of shards.
        key: the column whose values are the keys; None for `__key__` if there is one, else the number of the row.
        columns: only these; None for all.
        entries: names of entries for columns, such as `{"text": "text.txt"}`.
        batch_rows: rows that are in memory at a time.
        max_bytes: target size of the shards of a set.
        max_records: most records of a shard of a set.
        compression: as `ShardPackWriter` takes it.

    Raises:
        MissingExtra: `datasets` is not installed.
        ShardError: a subclass that says which row and column.
    """
    libraries()
    tables = tables_of(dataset, batch_rows)
    first = next(tables, None)
    if first is None:
        raise InvalidArgument("the data set has no rows")
    features = features_of(dataset, first)
    if key is None and KEY in features:
        key = KEY
    wanted = [name for name in features if name != key] if columns is None else list(columns)
    names = {name: name for name in wanted if ENTRY in marks_of(features.get(name))}
    names.update(entries or {})
    kept = {name: feature for name, feature in features.items() if name in wanted}
    arranged = _Arranged(kept, names)
    return from_table(
        map(arranged.table, chain([first], tables)),
        output,
        key=key,
        columns=wanted,
        entries=arranged.names,
        batch_rows=batch_rows,
        max_bytes=max_bytes,
        max_records=max_records,
        compression=compression,
        metadata={_FEATURES: _as_json(kept)},
    )


def _as_json(features: Mapping[str, Feature]) -> dict[str, Any]:
    datasets, _ = libraries()
    described: dict[str, Any] = json.loads(json.dumps(datasets.Features(features).to_dict()))
    return described


class _Arranged:
    """Tables as `from_table` takes them: what only `datasets` knows becomes bytes and text.

    Args:
        features: of the columns.
        names: of the entries that columns become.
    """

    def __init__(self, features: Mapping[str, Feature], names: Mapping[str, str]) -> None:
        self._features = features
        self.names = dict(names)
        for column, feature in features.items():
            if _is_array(feature):
                self.names.setdefault(column, _npy_name(column))

    def table(self, table: Table) -> Table:
        """The same rows."""
        datasets, pa = libraries()
        for column, feature in self._features.items():
            changed = None
            whole = whole_column(table, column)
            if isinstance(feature, (datasets.Image, datasets.Audio)):
                changed = with_content(whole, column)
            elif _is_array(feature) or (ENTRY in marks_of(feature) and _is_list(whole)):
                changed = _as_npy(whole, feature, column, self.names[column])
            elif is_json(feature) and column in self.names and isinstance(whole, pa.ExtensionArray):
                changed = whole.storage
            if changed is not None:
                at = table.schema.get_field_index(column)
                table = table.set_column(at, column, changed)
        return table


def _is_array(feature: Feature) -> bool:
    datasets, _ = libraries()
    kinds = (datasets.Array2D, datasets.Array3D, datasets.Array4D, datasets.Array5D)
    is_scalar = isinstance(feature, datasets.Value) and feature.dtype not in ("string", "binary")
    return isinstance(feature, kinds) or (is_scalar and ENTRY in marks_of(feature))


def _is_list(column: Column) -> bool:
    _, pa = libraries()
    return bool(pa.types.is_list(column.type) or pa.types.is_fixed_size_list(column.type))


def _npy_name(column: str) -> str:
    return column if column.endswith(".npy") else f"{column}.npy"


def _as_npy(column: Column, feature: Feature, name: str, entry: str) -> Column:
    """Arrays as the content of `.npy` files."""
    _, pa = libraries()
    files: list[bytes | None] = []
    for number in range(len(column)):
        one = column.slice(number, 1)
        if one.null_count:
            files.append(None)
            continue
        try:
            rows = numbers_of(one, feature)
        except BadValue as error:
            raise error.located(entry=name) from None
        assert rows is not None
        array = rows.values if rows.offsets is not None else rows.values[0]
        files.append(bytes(to_bytes(entry, "application/x-npy", array)))
    return pa.array(files, pa.binary())
