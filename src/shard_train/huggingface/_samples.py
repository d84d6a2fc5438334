"""Packs as datasets of Hugging Face `datasets`, and back. Needs the extra `huggingface`.

    from shard_train.huggingface._samples import samples_from_hf, samples_to_hf

    dataset = samples_to_hf("train-{000000..000009}.shardpack")
    dataset[0]["left.jpg"]                      # a PIL image
    samples_from_hf(dataset, "again-%06d.shardpack")

Nothing is sent or fetched: this reads and writes files.
"""

from __future__ import annotations

import json
import math
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from xxhash import xxh64

from shard_format.errors import BadMetadata, BadValue, InvalidArgument, ShardError, shorten
from shard_format.images import FORMATS
from shard_train._sample_decoding import EntrySelection
from shard_train.huggingface._arrow import (
    array_column,
    array_feature,
    features_of,
    libraries,
    marks_of,
    numbers_of,
    tables_of,
    whole_column,
    with_content,
    write_dataset,
)
from shardpack.columns import open_samples
from shardpack.content_types import content_type_of, ending_of
from shardpack.convert import from_table
from shardpack.values import decode_text, to_bytes

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from shard_train.huggingface._arrow import ArrowType, Column, Feature, HFDataset, Table
    from shardpack.columns import AnyRecord, Samples
    from shardpack.record import Entry
    from shardpack.writer_set import WrittenShards

__all__ = ["samples_from_hf", "samples_to_hf"]

KEY: Final = "__key__"
"""The column of the keys, as WebDataset has it in `datasets`."""
ENTRY: Final = "entry"
"""A word in the id of a type whose column is an entry of that name."""
_PLAIN: Final = frozenset(
    ("bool", "string", "large_string", "binary", "large_binary", "float16", "float32", "float64")
) | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_INT64: Final = range(-(1 << 63), 1 << 63)
# Records that say which columns there are.
_LOOK_AT: Final = 256
_MOST_ROWS: Final = 1000
_MOST_BYTES: Final = 16 << 20
_ROWS: Final = 256
_FEATURES: Final = "huggingface_features"
"""The field of a shard's metadata that keeps what the columns were."""


def samples_to_hf(
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

    Packs that `samples_from_hf` has made get their former columns back.

    The rows are written to an Arrow file, a few megabytes in memory at a time, which the dataset then maps.

    Args:
        source: what `shardpack.open` takes, or an open dataset.
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
    with open_samples(source) as dataset:
        former = _former(dataset.metadata)
        records: Iterator[AnyRecord] = iter(dataset.records())
        first = list(islice(records, _LOOK_AT))
        columns = SampleColumns(first, EntrySelection(entries), dict(features or {}), former)
        name = f"samples-{xxh64(f'{dataset!r} {columns.features}'.encode()).hexdigest()}"
        batches = _batches(columns, chain(first, records))
        return write_dataset(batches, columns.features, path, name)


def _former(metadata: Mapping[str, Any]) -> dict[str, Feature]:
    """What the columns were, as the pack says it."""
    datasets, _ = libraries()
    stored = (metadata.get("user") or {}).get(_FEATURES)
    if not isinstance(stored, dict):
        return {}
    try:
        former = dict(datasets.Features.from_dict(stored))
    except Exception as error:  # noqa: BLE001 - `datasets` does not check what it is given
        raise BadMetadata(
            f"the pack does not say what its columns were: {str(error) or type(error).__name__}",
            entry=_FEATURES,
            hint="remove the field from the metadata of the shards",
        ) from None
    files = (datasets.Image, datasets.Audio)
    return {
        name: kind for name, kind in former.items() if isinstance(kind, files) or _is_plain(kind)
    }


def _is_plain(feature: Feature) -> bool:
    """Whether a type has no files inside it, which `datasets` would open wherever the values say they are."""
    datasets, _ = libraries()
    if isinstance(feature, dict):
        return all(map(_is_plain, feature.values()))
    inner = feature if isinstance(feature, list) else [getattr(feature, "feature", None)]
    if inner != [None]:
        return all(map(_is_plain, inner))
    kinds = (datasets.Value, datasets.ClassLabel)
    return isinstance(feature, kinds) or _is_array(feature) or is_json(feature)


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


def samples_from_hf(
    dataset: HFDataset,
    output: str | os.PathLike[str],
    *,
    key: str | None = None,
    columns: Iterable[str] | None = None,
    entries: Mapping[str, str] | None = None,
    max_bytes: int | None = 1 << 30,
    max_records: int | None = None,
    compression: str | None = None,
) -> WrittenShards:
    """Makes packs of a dataset of Hugging Face, one record a row, a few hundred rows in memory at a time.

    Images and sounds become entries that hold the bytes that the dataset has, `image.jpg`; those that are files on
    this machine are read. Arrays and lists of numbers become `.npy` entries, columns of bytes entries too. All else
    goes to the metadata of the record: numbers, text, labels, nested values; times and decimals as text. What the
    columns were is kept in the metadata of the shards, so that `samples_to_hf` gives them back.

    Args:
        dataset: a `datasets.Dataset`, or an `IterableDataset`, which is read once.
        output: one file, or `"train-%06d.shardpack"` for a set of shards.
        key: the column whose values are the keys; None for `__key__` if there is one, else the number of the row.
        columns: only these; None for all.
        entries: names of entries for columns, such as `{"text": "text.txt"}`.
        max_bytes: target size of the shards of a set.
        max_records: most records of a shard of a set.
        compression: as `ShardPackWriter` takes it.

    Raises:
        MissingExtra: `datasets` is not installed.
        ShardError: a subclass that says which row and column.
    """
    datasets, _ = libraries()
    tables = tables_of(dataset, _ROWS)
    first = next(tables, None)
    if first is None:
        raise InvalidArgument("the dataset has no rows")
    features = features_of(dataset, first)
    if key is None and KEY in features:
        key = KEY
    wanted = [name for name in features if name != key] if columns is None else list(columns)
    names = {name: name for name in wanted if ENTRY in marks_of(features.get(name))}
    names.update(entries or {})
    kept = {name: feature for name, feature in features.items() if name in wanted}
    arranged = _Arranged(kept, names)
    described = json.loads(json.dumps(datasets.Features(kept).to_dict()))
    return from_table(
        map(arranged.table, chain([first], tables)),
        output,
        key=key,
        columns=wanted,
        entries=arranged.names,
        batch_rows=_ROWS,
        max_bytes=max_bytes,
        max_records=max_records,
        compression=compression,
        metadata={_FEATURES: described},
    )


class _Arranged:
    """Tables as `from_table` takes them: what only `datasets` knows becomes bytes and text."""

    def __init__(self, features: Mapping[str, Feature], names: Mapping[str, str]) -> None:
        self._features = features
        self.names = dict(names)
        for column, feature in features.items():
            if _is_array(feature):
                self.names.setdefault(column, column.removesuffix(".npy") + ".npy")

    def table(self, table: Table) -> Table:
        """The same rows."""
        datasets, pa = libraries()
        for column, feature in self._features.items():
            changed = None
            whole = whole_column(table, column)
            is_list = pa.types.is_list(whole.type) or pa.types.is_fixed_size_list(whole.type)
            if isinstance(feature, (datasets.Image, datasets.Audio)):
                changed = with_content(whole, column)
            elif _is_array(feature) or (is_list and ENTRY in marks_of(feature)):
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


# --- columns


class SampleColumns:
    """The columns of a dataset of records."""

    def __init__(
        self,
        first: Sequence[AnyRecord],
        selection: EntrySelection,
        given: Mapping[str, Feature],
        former: Mapping[str, Feature],
    ) -> None:
        datasets, _ = libraries()
        self._selection = selection
        self._former = former
        self._types = dict(given)
        fields: dict[str, list[Any]] = {}
        columns: dict[str, None] = {}
        for record in first:
            for name in selection.of(record.names).names:
                column = self._entry_column(name)
                columns[column] = None
                if column not in self._types:
                    self._types[column] = former.get(column) or entry_feature(record[name])
            for name, value in record.metadata.items():
                fields.setdefault(name, []).append(value)
        self._entry_columns = set(columns) | given.keys() - fields.keys()
        for name, values in fields.items():
            if name in columns or self._path_of(name):
                continue
            column = self._field_column(name)
            columns[column] = None
            if column not in self._types:
                self._types[column] = self._former_field(column) or field_feature(values)
        columns.update(dict.fromkeys(given))
        types = {column: self._types[column] for column in columns}
        self.features = datasets.Features({KEY: datasets.Value("string"), **types})

    def _entry_column(self, name: str) -> str:
        stem = name.rpartition(".")[0]
        column = stem if stem in self._former and name not in self._former else name
        if column == KEY:
            raise InvalidArgument("an entry has the name of the column of keys", entry=name)
        return column

    def _field_column(self, name: str) -> str:
        return f"metadata.{name}" if name in self._entry_columns or name == KEY else name

    def _path_of(self, name: str) -> str | None:
        """The column of files whose former path a field is."""
        datasets, _ = libraries()
        column = name.removesuffix("_path")
        is_file = isinstance(self._former.get(column), (datasets.Image, datasets.Audio))
        return column if is_file and name != column and name not in self._former else None

    def _former_field(self, column: str) -> Feature | None:
        """The former type, unless its values are texts now: times and decimals."""
        datasets, _ = libraries()
        feature = self._former.get(column)
        if isinstance(feature, datasets.Value):
            return feature if feature.dtype in _PLAIN else None
        return feature

    def row(self, record: AnyRecord) -> dict[str, Any]:
        """What a record has in each column.

        Raises:
            BadValue: it has an entry or a field without a column.
        """
        datasets, _ = libraries()
        row: dict[str, Any] = {KEY: record.key}
        for name in self._selection.of(record.names).names:
            column = self._entry_column(name)
            if column not in self._entry_columns:
                raise _unexpected("an entry", name, record)
            row[column] = _entry_value(record[name], self._types[column])
        for name, value in record.metadata.items():
            if (of_file := self._path_of(name)) is not None:
                if row.get(of_file) is not None:
                    row[of_file]["path"] = value
                continue
            # Where an entry is missing, a field of its name may stand for it.
            stands = name in self._entry_columns and row.get(name) is None
            column = name if stands else self._field_column(name)
            if column not in self._types:
                raise _unexpected("a field", name, record)
            kind = self._types[column]
            if value is not None and isinstance(kind, (datasets.Image, datasets.Audio)):
                # `datasets` would open whatever path it names.
                raise BadValue(
                    f"record {shorten(record.key)} has a field in place of a file",
                    entry=name,
                    found=type(value).__name__,
                )
            row[column] = _field_value(value, kind)
        return row

    def table(self, rows: Sequence[Mapping[str, Any]]) -> Table:
        """ColumnValues as a batch of Arrow."""
        _, pa = libraries()
        schema = self.features.arrow_schema
        columns = []
        for field in schema:
            values = [row.get(field.name) for row in rows]
            try:
                columns.append(_column(field.type, values))
            except (pa.ArrowException, ShardError, TypeError, ValueError, OverflowError) as error:
                problem = error.problem if isinstance(error, ShardError) else str(error)
                raise BadValue(
                    f"samples {shorten(rows[0][KEY])} to {shorten(rows[-1][KEY])} "
                    f"do not fit their column: {problem}",
                    entry=field.name,
                    expected=str(self.features[field.name]),
                    hint="pass the type of the column as features={name: type}",
                ) from error
        return pa.RecordBatch.from_arrays(columns, schema=schema)


def _unexpected(what: str, name: str, record: AnyRecord) -> BadValue:
    return BadValue(
        f"record {shorten(record.key)} has {what} that those before it do not have",
        entry=name,
        hint="choose entries with entries=[…], or give its type as features={name: type}",
    )


# --- types


def json_feature() -> Feature:
    """The type of JSON texts; older versions of `datasets` have none."""
    datasets, _ = libraries()
    kind = getattr(datasets, "Json", None)
    return datasets.Value("string", id=ENTRY) if kind is None else kind(id=ENTRY)


def entry_feature(entry: Entry) -> Feature:
    """The type of a column of entries such as this one."""
    datasets, _ = libraries()
    kind = entry.content_type.partition(";")[0].lower()
    if kind in FORMATS:
        return datasets.Image(id=ENTRY)
    if kind.startswith("audio/"):
        # Decoding needs a package that `datasets` does not bring.
        return datasets.Audio(decode=False, id=ENTRY)
    if kind == "application/json":
        return json_feature()
    if kind.startswith("text/"):
        return datasets.Value("string", id=ENTRY)
    if kind == "application/x-npy":
        array = entry.decode()
        shape = (None,) if array.ndim == 1 else array.shape
        feature = array_feature(array.dtype, shape, ENTRY)
        if feature is not None:
            return feature
    return datasets.Value("binary", id=ENTRY)


def field_feature(values: Iterable[Any]) -> Feature:
    """The type of a column of these values of a field of the metadata."""
    datasets, _ = libraries()
    known = [value for value in values if value is not None]
    if known and all(isinstance(value, list) for value in known):
        items = [item for value in known for item in value]
        kind = _scalar_kind(items) if items else None
        if kind is not None and None not in items:
            return datasets.Sequence(datasets.Value(kind))
    kind = _scalar_kind(known)
    if kind is not None:
        return datasets.Value(kind)
    json_type = getattr(datasets, "Json", None)
    return datasets.Value("string") if json_type is None else json_type()


def _scalar_kind(values: Sequence[Any]) -> str | None:
    kinds = {type(value) for value in values}
    if kinds == {bool}:
        return "bool"
    if kinds == {str}:
        return "string"
    if kinds == {bytes}:
        return "binary"
    if kinds == {int} and all(value in _INT64 for value in values):
        return "int64"
    if kinds and kinds <= {int, float} and float in kinds:
        exact = all(isinstance(value, float) or int(float(value)) == value for value in values)
        return "float64" if exact else None
    return None


# --- values


def _entry_value(entry: Entry, feature: Feature) -> Any:  # noqa: ANN401 - what `_column` takes
    datasets, _ = libraries()
    try:
        if isinstance(feature, datasets.Image):
            _check_image(entry)
        if isinstance(feature, (datasets.Image, datasets.Audio)):
            return {"bytes": bytes(entry.data), "path": None}
        if isinstance(feature, datasets.Value) and feature.dtype in ("binary", "large_binary"):
            return bytes(entry.data)
        if is_json(feature):
            entry.decode()  # says what is wrong with it
            return decode_text(entry.data)
        if isinstance(feature, datasets.Value) and feature.dtype in ("string", "large_string"):
            return decode_text(entry.data)
        return entry.decode()
    except ShardError as error:
        raise error.located(entry=entry.name) from None


def _check_image(entry: Entry) -> None:
    """Refuse what is not an image: `datasets` would let Pillow guess, which starts Ghostscript for PostScript."""
    if content_type_of(ending_of(entry.data)) not in FORMATS:
        raise entry.failed(
            BadValue(
                "not an image of a format that can be decoded",
                expected=", ".join(FORMATS),
                found=f"a file that starts with {bytes(entry.data[:8])!r}",
                hint=f'features={{{entry.name!r}: Value("binary")}} takes the bytes',
            )
        )


def _field_value(value: Any, feature: Feature) -> Any:  # noqa: ANN401 - of any kind
    datasets, _ = libraries()
    is_text = isinstance(feature, datasets.Value) and feature.dtype == "string"
    if value is None or (is_text and isinstance(value, str)) or not (is_text or is_json(feature)):
        return value
    return json.dumps(value, ensure_ascii=False)


def is_json(feature: Feature) -> bool:
    """Whether a type holds JSON texts."""
    datasets, _ = libraries()
    kind = getattr(datasets, "Json", None)
    return kind is not None and isinstance(feature, kind)


def _column(kind: ArrowType, values: list[Any]) -> Column:
    _, pa = libraries()
    there = [value for value in values if value is not None]
    if not there or not all(isinstance(value, np.ndarray) for value in there):
        values = [value.tolist() if isinstance(value, np.ndarray) else value for value in values]
        if not isinstance(kind, pa.ExtensionType):
            return pa.array(values, kind)
        return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))
    column = _array_column(kind, there)
    if len(there) == len(values):
        return column
    order = iter(range(len(there)))
    return column.take(pa.array([None if value is None else next(order) for value in values]))


def _array_column(kind: ArrowType, arrays: list[np.ndarray[Any, Any]]) -> Column:
    """A column of arrays that have the shape of its type."""
    _, pa = libraries()
    storage: ArrowType = getattr(kind, "storage_type", kind)
    axes, inner = 0, storage
    while pa.types.is_list(inner) or pa.types.is_fixed_size_list(inner):
        axes, inner = axes + 1, inner.value_type
    is_free = (
        not pa.types.is_fixed_size_list(storage) and getattr(kind, "shape", (None,))[0] is None
    )
    for array in arrays:
        if array.dtype != inner.to_pandas_dtype() or array.ndim != axes:
            found = f"an array {array.dtype} {list(array.shape)}"
            raise BadValue(f"{found} among arrays {inner} with {axes} axes")
        shape = getattr(kind, "shape", array.shape)
        if array.shape[is_free:] != tuple(shape)[is_free:]:
            raise BadValue(f"an array {list(array.shape)} among arrays {list(shape)}")
    if not is_free or not axes:
        return array_column(kind, np.stack(arrays))
    lengths = [len(array) for array in arrays]
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    return array_column(kind, np.concatenate(arrays), offsets)


def bytes_of(row: Mapping[str, Any]) -> int:
    """About how much memory a row takes."""
    total = 0
    for value in row.values():
        content = value.get("bytes") if isinstance(value, dict) else value
        if isinstance(content, np.ndarray):
            total += math.prod(content.shape) * content.itemsize
        elif isinstance(content, (bytes, str)):
            total += len(content)
    return total
