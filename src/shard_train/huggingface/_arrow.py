"""Arrays as columns of Hugging Face datasets and back: types, Arrow memory, files.

Arrow tables are written and read as they are, past the rows of Python objects that `datasets` makes of them: that is
faster by orders of magnitude, and exact.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from shard_format.atomic import AtomicFile
from shard_format.errors import (
    BadValue,
    InvalidArgument,
    LimitExceeded,
    ShardError,
    ShardIOError,
    shorten,
)
from shard_format.extras import require
from shard_format.sources import read_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

# The libraries are not there when types are checked.
Feature: TypeAlias = Any
"""A type of `datasets`."""
ArrowType: TypeAlias = Any
"""A type of pyarrow."""
Column: TypeAlias = Any
"""An array of pyarrow."""
Table: TypeAlias = Any
"""A table of pyarrow."""
HFDataset: TypeAlias = Any
"""A `datasets.Dataset` or `IterableDataset`."""

BF16: Final = "bf16"
"""A word in the id of a type whose numbers were bf16, which Arrow does not have."""
RAGGED: Final = "ragged"
"""A word in the id of a type whose rows may have different lengths, even where they have not."""
_MOST_AXES: Final = 5
# Offsets of Arrow's lists are 32 bits.
_MOST_NUMBERS: Final = (1 << 31) - 1
_ARROW_DTYPES: Final = frozenset(
    ("bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
) | {"float16", "float32", "float64"}


def libraries() -> tuple[Any, Any]:
    """`datasets` and `pyarrow`."""
    return require("datasets", "huggingface"), require("pyarrow", "huggingface")


# --- types


def array_feature(
    dtype: np.dtype[Any], shape: Sequence[int | None], mark: str | None = None
) -> Feature:
    """The type of a column of arrays; None if `datasets` has none.

    Args:
        dtype: of the arrays.
        shape: of one row; the first length is None if rows differ in it.
        mark: a word for the id of the type, which `datasets` keeps.
    """
    datasets, _ = libraries()
    name = dtype.name
    marks = [] if mark is None else [mark]
    if name == "bfloat16":
        # Every bf16 number is a float32.
        name = "float32"
        marks.append(BF16)
    if name not in _ARROW_DTYPES or len(shape) > _MOST_AXES:
        return None
    if shape and shape[0] is None:
        marks.append(RAGGED)
    note = " ".join(marks) or None
    if not shape:
        return datasets.Value(name, id=note)
    if len(shape) == 1:
        # Of a list only the id of its numbers is kept in files.
        length = -1 if shape[0] is None else shape[0]
        return datasets.Sequence(datasets.Value(name, id=note), length=length)
    return getattr(datasets, f"Array{len(shape)}D")(tuple(shape), name, id=note)


def marks_of(feature: Feature) -> set[str]:
    """What the ids of a type, and of what its lists hold, say."""
    inner = getattr(feature, "feature", None)
    ids = [getattr(one, "id", None) for one in (feature, inner)]
    return {mark for found in ids if isinstance(found, str) for mark in found.split()}


# --- from arrays


def array_column(
    kind: ArrowType,
    values: NDArray[Any],
    offsets: NDArray[np.int64] | None = None,
) -> Column:
    """A column of this type, its numbers copied at most once.

    Args:
        kind: what the type of `datasets` is in Arrow.
        values: one row for each entry; with `offsets`, the items of all rows.
        offsets: where each row starts in `values`, and the end.
    """
    _, pa = libraries()
    if values.dtype.name == "bfloat16":
        values = values.astype(np.float32)
    if values.size > _MOST_NUMBERS:
        raise LimitExceeded(
            "too many numbers for one column of a table",
            expected=f"at most {_MOST_NUMBERS}",
            found=values.size,
        )
    storage: ArrowType = getattr(kind, "storage_type", kind)
    rows = np.ascontiguousarray(values, values.dtype.newbyteorder("="))
    column = pa.array(rows.reshape(-1))
    if pa.types.is_fixed_size_list(storage):
        if not storage.list_size:
            return pa.array([[]] * len(rows), storage)
        return pa.FixedSizeListArray.from_arrays(column, type=storage)
    counts = np.cumprod(rows.shape)
    for size, count in zip(rows.shape[:0:-1], counts[-2::-1], strict=True):
        column = pa.ListArray.from_arrays(_offsets(np.arange(count + 1) * size), column)
    if offsets is not None:
        column = pa.ListArray.from_arrays(_offsets(offsets), column)
    return column if storage is kind else pa.ExtensionArray.from_storage(kind, column)


def _offsets(offsets: NDArray[Any]) -> Column:
    _, pa = libraries()
    return pa.array(np.asarray(offsets).astype(np.int32))


def padded_column(column: Column, count: int) -> Column:
    """Return a column of `count` rows, filled up with nulls."""
    _, pa = libraries()
    if len(column) == count:
        return column
    return pa.concat_arrays([column, pa.nulls(count - len(column), column.type)])


# --- to arrays


class ColumnValues(NamedTuple):
    """The numbers of a column."""

    values: NDArray[Any]
    """[rows, ...]; with `offsets` the items of all rows, one after the other."""
    offsets: NDArray[np.int64] | None = None
    """Where each row starts, if rows have different lengths."""


def numbers_of(column: Column, feature: Feature = None) -> ColumnValues | None:
    """A column of numbers, or of lists of numbers, as one array; None for anything else.

    Raises:
        BadValue: a list lacks a number, or lists differ where arrays cannot.
    """
    _, pa = libraries()
    types = pa.types
    storage = column.storage if isinstance(column, pa.ExtensionArray) else column
    shape: list[int] = []
    offsets: NDArray[np.int64] | None = None
    declared = getattr(feature, "shape", None) or (0,)
    is_ragged = RAGGED in marks_of(feature) or declared[0] is None
    while (
        types.is_fixed_size_list(storage.type)
        or types.is_list(storage.type)
        or types.is_large_list(storage.type)
    ):
        if storage.null_count:
            raise BadValue("a list in a list is missing")
        if types.is_fixed_size_list(storage.type):
            shape.append(storage.type.list_size)
        else:
            lengths = storage.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
            is_even = not len(lengths) or bool((lengths == lengths[0]).all())
            if offsets is None and not shape and (is_ragged or not is_even):
                offsets = np.concatenate(([0], np.cumsum(lengths)))
            elif is_even:
                shape.append(int(lengths[0]) if len(lengths) else _known(feature, len(shape)))
            else:
                raise BadValue("lists within a row have different lengths")
        storage = storage.flatten()
    if not (
        types.is_integer(storage.type)
        or types.is_floating(storage.type)
        or types.is_boolean(storage.type)
    ):
        return None
    if storage.null_count:
        raise BadValue("a number in a list is missing")
    flat = storage.to_numpy(zero_copy_only=False)
    count = len(column) if offsets is None else int(offsets[-1])
    values = flat.reshape(count, *shape)
    if BF16 in marks_of(feature):
        values = values.astype(require("ml_dtypes", BF16).bfloat16)
    return ColumnValues(values, offsets)


def _known(feature: Feature, axis: int) -> int:
    """The length of an axis that no row shows."""
    shape = getattr(feature, "shape", ())
    return int(shape[axis]) if axis < len(shape) and shape[axis] else 0


# --- files in tables


def with_content(column: Column, name: str | None = None) -> Column:
    """Files as `datasets` has them, with the content of those that are only named."""
    _, pa = libraries()
    content, paths = column.field("bytes"), column.field("path")
    # What lies below a missing row says nothing.
    is_named = _mask(column.is_valid()) & _mask(content.is_null()) & _mask(paths.is_valid())
    if not is_named.any():
        return column
    read, names = [], []
    for data, path, is_file in zip(content, paths.to_pylist(), is_named.tolist(), strict=True):
        read.append(_read(path, name) if is_file else data.as_py())
        # Do not store the folders of this machine.
        names.append(os.path.basename(path) if is_file else path)
    arrays = [pa.array(read, content.type), pa.array(names, paths.type)]
    return pa.StructArray.from_arrays(arrays, ["bytes", "path"], mask=column.is_null())


def _mask(column: Column) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = column.to_numpy(zero_copy_only=False)
    return mask


def _read(path: str, column: str | None) -> bytes:
    if not os.path.isfile(path):
        raise BadValue(
            "the row names a file that is not on this machine",
            entry=column,
            found=shorten(path),
            hint="embed the files before you save the dataset",
        )
    return read_file(path)


# --- tables


def write_dataset(
    batches: Iterable[Table], features: Feature, path: str | os.PathLike[str] | None, name: str
) -> HFDataset:
    """Writes tables to one Arrow file, which appears when it is complete, and opens that."""
    datasets, pa = libraries()
    if path is None:
        path = os.path.join(datasets.config.HF_DATASETS_CACHE, "shard-format", f"{name}.arrow")
    target = os.path.abspath(os.fspath(path))
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
    except OSError as error:
        raise ShardIOError.wrap(error, "cannot make the folder", target) from error
    file = AtomicFile(target, fsync=False)
    try:
        with (
            pa.OSFile(file.temporary, "wb") as sink,
            pa.ipc.new_stream(sink, features.arrow_schema) as stream,
        ):
            for batch in batches:
                stream.write_batch(batch)
        file.commit()
    except OSError as error:
        file.abort()
        if isinstance(error, ShardError):
            raise
        raise ShardIOError.wrap(error, "cannot write", target) from error
    except BaseException:
        file.abort()
        raise
    return datasets.Dataset.from_file(target)


def tables_of(dataset: HFDataset, rows: int) -> Iterator[Table]:
    """The rows of a dataset as Arrow tables, whether it is in memory, in files or streamed.

    Images and the like stay the bytes that they are.
    """
    datasets, pa = libraries()
    if isinstance(dataset, (datasets.DatasetDict, datasets.IterableDatasetDict)):
        raise InvalidArgument(
            "this is a dictionary of datasets",
            hint=f"take one: dataset[{next(iter(dataset), '')!r}]",
        )
    if not isinstance(dataset, (datasets.Dataset, datasets.IterableDataset)):
        raise InvalidArgument(
            "not a dataset of Hugging Face",
            expected="a datasets.Dataset or IterableDataset",
            found=type(dataset).__name__,
        )
    if rows < 1:
        raise InvalidArgument("batch_rows is too small", expected="1 or more", found=rows)
    for table in dataset.with_format("arrow").iter(batch_size=rows):
        assert isinstance(table, pa.Table)
        try:
            # Arrow does not check the offsets in the files of a dataset.
            table.validate(full=True)
        except pa.ArrowException as error:
            raise BadValue(f"the dataset is damaged: {error}") from None
        yield table


def features_of(dataset: HFDataset, table: Table) -> dict[str, Feature]:
    """The types of the columns, of a stream that does not say them those of its first table."""
    datasets, _ = libraries()
    return dict(dataset.features or datasets.Features.from_arrow_schema(table.schema))


def whole_column(table: Table, name: str) -> Column:
    """A column of a table in one piece."""
    _, pa = libraries()
    column = table.column(name)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
