"""The Parquet files of a LeRobot dataset: rows of some columns, with no more in memory than they need."""

from __future__ import annotations

import os
import stat
import threading
from bisect import bisect_left, bisect_right
from contextlib import contextmanager
from functools import cache, lru_cache
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from shard_format.errors import (
    BadMetadata,
    BadValue,
    Closed,
    LimitExceeded,
    ShardError,
    ShardIOError,
    SizeMismatch,
)
from shard_format.extras import require

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

EPISODE: Final = "episode_index"
# A group of rows is read as a whole if that is not much more than what is wanted.
_FEW_ROWS: Final = 16
_FEW_TIMES: Final = 4
# Small groups are read several at a time, because each read costs as much as many rows.
_READ_AHEAD: Final = 8 << 20
# The numbers of a larger group with many episodes are kept for the next ones.
_MOST_KEPT: Final = 256 << 20
_BYTES: Final = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8}
"""Of a number, by its type in Parquet."""
_BATCH: Final = 1 << 16
# Rows with texts or pictures may be large.
_SMALL_BATCH: Final = 256
_ALWAYS_FINE: Final = 1 << 20
# Handing less to other threads takes longer than decoding it.
_WORTH_THREADS: Final = 1 << 20


@cache
def library() -> Any:  # noqa: ANN401 - a module
    """pyarrow. Looked up once: a column needs it several times, and an import that is repeated takes a microsecond."""
    require("pyarrow.compute", "lerobot")
    return require("pyarrow", "lerobot")


def open_parquet(path: str) -> Any:  # noqa: ANN401 - a pyarrow.parquet.ParquetFile
    """A Parquet file for reading: close it.

    Raises:
        LimitExceeded: it states more rows than it can have, such as a billion times the same one.
    """
    parquet, arrow = require("pyarrow.parquet", "lerobot"), library()
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise BadValue("not a file", path=path)
        size = os.path.getsize(path)
        file = parquet.ParquetFile(path)
    except OSError as error:
        raise ShardIOError.wrap(error, "cannot read as Parquet", path) from error
    except (arrow.ArrowException, ValueError) as error:  # names may not be UTF-8
        raise BadValue(f"not a Parquet file that can be read: {error}", path=path) from None
    rows = file.metadata.num_rows
    # Each row has a time, and no two rows of an episode have the same.
    if rows > max(size, _ALWAYS_FINE):
        file.close()
        raise LimitExceeded(
            "the file states more rows than it has bytes",
            path=path,
            expected=f"at most {size} rows",
            found=rows,
        )
    return file


class NumberColumn(NamedTuple):
    """What a column of numbers holds in each row."""

    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]
    """None where the number of elements is not the same by type."""


@lru_cache(256)
def numbers_of(kind: Any) -> NumberColumn | None:  # noqa: ANN401 - a type of pyarrow
    """What a column holds, if that is numbers or arrays of them."""
    arrow = library()
    types, shape = arrow.types, list[int | None]()
    if isinstance(kind, arrow.BaseExtensionType):
        kind = kind.storage_type
    while types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        shape.append(kind.list_size if types.is_fixed_size_list(kind) else None)
        kind = kind.value_type
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return NumberColumn(np.dtype(kind.to_pandas_dtype()), tuple(shape))
    return None


class KeptRows(NamedTuple):
    """All numbers of some rows of a file."""

    first: int
    stop: int
    table: Any
    """A pyarrow.Table."""
    arrays: dict[str, NDArray[Any]]
    """Columns of the table as arrays, once they were asked for."""


class DataFile:
    """A Parquet file with the steps of one episode or many. Threads may share it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._arrow = library()
        self._file = open_parquet(path)
        self._lock = threading.Lock()
        self._kept: KeptRows | None = None
        self.schema = self._file.schema_arrow
        self.numbers = {field.name: numbers_of(field.type) for field in self.schema}
        """What each column holds; None for one that does not hold numbers."""
        groups = self._file.metadata.num_row_groups
        counts = [self._file.metadata.row_group(number).num_rows for number in range(groups)]
        self._starts: list[int] = [0, *np.cumsum(counts, dtype=np.int64).tolist()]
        self._episodes: dict[int, tuple[int, int]] | None = None

    def close(self) -> None:
        """Closes the file; what is still to be read of it raises `Closed`."""
        with self._lock:
            self._file.close()
            self._kept = None

    def episode(self, number: int) -> tuple[int, int]:
        """The first row of an episode, and the one after its last."""
        with self._lock:
            if self._episodes is None:
                self._episodes = self._find_episodes()
            found = self._episodes.get(number)
        if found is None:
            raise BadValue(
                "the file does not have the rows of the episode",
                path=self.path,
                entry=EPISODE,
                expected=f"rows of episode {number}",
                found=f"episodes {', '.join(map(str, [*self._episodes][:10]))}",
            )
        return found

    def _find_episodes(self) -> dict[int, tuple[int, int]]:
        if EPISODE not in self.schema.names or not self._arrow.types.is_integer(
            self.schema.field(EPISODE).type
        ):
            raise BadMetadata(
                "no column with the numbers of episodes", path=self.path, entry=EPISODE
            )
        found: dict[int, tuple[int, int]] = {}
        start = 0
        latest: int | None = None
        with self._reading([EPISODE]):
            # A small file is read once, as a whole.
            kept = self._kept_rows(0, self._starts[-1]) if self._starts[-1] else None
            tables = (
                self._file.iter_batches(_BATCH, columns=[EPISODE])
                if kept is None
                else (kept.table,)
            )
            for table in tables:
                values = as_array(table.column(EPISODE), (), self.path, EPISODE)
                edges = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
                for first, stop in pairwise(edges):
                    number = int(values[first]) if stop > first else latest
                    if number is None or stop == first:
                        continue
                    if number in found and number != latest:
                        raise BadValue(
                            "the rows of an episode are not together",
                            path=self.path,
                            entry=EPISODE,
                            found=f"episode {number} again at row {start + first}",
                        )
                    begin = found[number][0] if number in found else start + first
                    found[number] = (begin, start + stop)
                    latest = number
                start += len(values)
        return found

    def rows(self, columns: Sequence[str]) -> list[dict[str, Any]]:
        """All rows; columns that the file does not have are left out."""
        there = [name for name in columns if name in self.numbers]
        with self._lock, self._reading(there):
            rows: list[dict[str, Any]] = self._file.read(there, use_threads=False).to_pylist()
            return rows

    def read(self, columns: Sequence[str], start: int, stop: int) -> Any:  # noqa: ANN401 - a pyarrow.Table
        """Some columns of the rows from `start` to `stop`."""
        parts = []
        with self._lock, self._reading(columns):
            if start < stop and all(self.numbers[name] for name in columns):
                kept = self._kept_rows(start, stop)
                if kept is not None:
                    rows = kept.table.slice(start - kept.first, stop - start)
                    return rows.select(list(columns))
            for group, (first, end) in enumerate(pairwise(self._starts)):
                if first < stop and end > start:
                    low, high = max(start, first) - first, min(stop, end) - first
                    parts.append(self._part(group, columns, low, high, end - first))
            if not parts:
                return self._file.schema_arrow.empty_table().select(list(columns))
            return parts[0] if len(parts) == 1 else self._arrow.concat_tables(parts)

    def values(self, columns: Sequence[str], start: int, stop: int) -> dict[str, list[Any]]:
        """Some columns of the rows from `start` to `stop`, as Python has them."""
        table = self.read(columns, start, stop)
        with self._reading(columns):  # texts may not be UTF-8
            found: dict[str, list[Any]] = table.to_pydict()
        return found

    def arrays(
        self, shapes: Mapping[str, tuple[int, ...]], start: int, stop: int
    ) -> dict[str, NDArray[Any]]:
        """Some columns of numbers of the rows from `start` to `stop`, by the shape of a row."""
        with self._lock, self._reading([*shapes]):
            kept = self._kept_rows(start, stop) if start < stop else None
        found: dict[str, NDArray[Any]] = {}
        if kept is not None:
            for name, shape in shapes.items():
                try:
                    if name not in kept.arrays:
                        column = kept.table.column(name)
                        kept.arrays[name] = as_array(column, shape, self.path, name)
                except ShardError:  # perhaps only in rows of other episodes
                    continue
                found[name] = kept.arrays[name][start - kept.first : stop - kept.first]
        rest = {name: shape for name, shape in shapes.items() if name not in found}
        if rest:
            table = self.read(list(rest), start, stop)
            for name, shape in rest.items():
                found[name] = as_array(table.column(name), shape, self.path, name)
        return found

    def _part(self, group: int, columns: Sequence[str], low: int, high: int, rows: int) -> Any:  # noqa: ANN401 - a pyarrow.Table
        if rows <= _FEW_TIMES * (high - low) + _FEW_ROWS:
            is_large = self._file.metadata.row_group(group).total_byte_size > _WORTH_THREADS
            table = self._file.read_row_group(group, list(columns), use_threads=is_large)
            return table.slice(low, high - low)
        parts, at = [], 0
        size = _BATCH if all(self.numbers[name] for name in columns) else _SMALL_BATCH
        for batch in self._file.iter_batches(size, row_groups=[group], columns=list(columns)):
            first, end = max(low - at, 0), min(high - at, len(batch))
            if first < end:
                parts.append(batch.slice(first, end - first))
            at += len(batch)
            if at >= high:
                break
        return self._arrow.Table.from_batches(parts)

    def _kept_rows(self, start: int, stop: int) -> KeptRows | None:
        """All numbers of some rows, read together with those that follow; None if that is too much to keep, or damaged."""
        if self._kept is None or not self._kept.first <= start < stop <= self._kept.stop:
            starts = self._starts
            first, end = bisect_right(starts, start) - 1, bisect_left(starts, stop)
            if end >= len(starts):
                return None
            size = sum(map(self._numbers_size, range(first, end)))
            has_others = starts[end] - starts[first] > _FEW_TIMES * (stop - start) + _FEW_ROWS
            if size > (_MOST_KEPT if has_others else _READ_AHEAD):
                return None
            while end + 1 < len(starts) and (size := size + self._numbers_size(end)) <= _READ_AHEAD:
                end += 1
            numeric = [name for name, numbers in self.numbers.items() if numbers]
            self._kept = None  # makes room for the next
            try:
                table = self._file.read_row_groups(
                    range(first, end), numeric, use_threads=size > _WORTH_THREADS
                )
            except (self._arrow.ArrowException, OSError, ValueError):
                # The damage may be in the rows that were read ahead.
                return None
            self._kept = KeptRows(starts[first], starts[end], table, {})
        return self._kept

    def _numbers_size(self, group: int) -> int:
        """What the numbers of a group take in memory: repeated values take next to nothing in the file."""
        facts = self._file.metadata.row_group(group)
        columns = (facts.column(number) for number in range(facts.num_columns))
        return sum(each.num_values * _BYTES.get(each.physical_type, 0) for each in columns)

    @contextmanager
    def _reading(self, columns: Sequence[str]) -> Iterator[None]:
        """Turns the errors of pyarrow into ours."""
        if self._file.closed:
            raise Closed("the dataset is closed", path=self.path)
        try:
            yield
        except ShardError:
            raise
        except (self._arrow.ArrowException, OSError, ValueError) as error:
            raise BadValue(
                f"the data cannot be read: {error}", path=self.path, entry=", ".join(columns)
            ) from None


def as_array(values: Any, shape: Sequence[int], path: str, name: str) -> NDArray[Any]:  # noqa: ANN401 - an array of pyarrow
    """A column of numbers as an array; each row must have the shape that the dataset states."""
    arrow = library()
    rows = len(values)
    if isinstance(values, arrow.ChunkedArray):
        # One chunk as it is: joining one copies it.
        values = values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()
        if isinstance(values, arrow.ChunkedArray):
            values = arrow.concat_arrays(values.chunks)
    if isinstance(values.type, arrow.BaseExtensionType):
        values = values.storage
    for size in shape:
        _check_nulls(values, path, name)
        if not arrow.types.is_fixed_size_list(values.type):
            compute = arrow.compute
            lengths = compute.min_max(compute.list_value_length(values)).as_py()
            found = {length for length in lengths.values() if length is not None}
        else:
            found = {values.type.list_size}
        if found - {size}:
            raise SizeMismatch(
                "a row has a different shape than the dataset states",
                path=path,
                entry=name,
                expected=list(shape),
                found=f"{sorted(found)} in place of {size}",
            )
        values = values.flatten()
    _check_nulls(values, path, name)
    array: NDArray[Any] = values.to_numpy(zero_copy_only=False)
    if array.size != rows * prod(shape):
        raise SizeMismatch(
            "rows have a different shape than the dataset states",
            path=path,
            entry=name,
            expected=f"{rows} rows of {list(shape)}",
            found=f"{array.size} numbers",
        )
    return array.reshape(rows, *shape)


def _check_nulls(values: Any, path: str, name: str) -> None:  # noqa: ANN401 - an array of pyarrow
    if values.null_count:
        raise BadValue(
            "a number is missing",
            path=path,
            entry=name,
            expected="a value in each row",
            found=f"{values.null_count} null",
            hint="fill or remove these rows first",
        )


class ColumnRows:
    """Rows of one column that are read when they are used."""

    def __init__(
        self, file: DataFile, name: str, start: int, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        self._file, self._name, self._start = file, name, start
        self.shape = shape
        self.dtype = dtype

    def __getitem__(self, rows: slice, /) -> NDArray[Any]:
        start, stop, _ = rows.indices(self.shape[0])
        table = self._file.read([self._name], self._start + start, self._start + max(start, stop))
        return as_array(table.column(0), self.shape[1:], self._file.path, self._name)


def pictures_of(file: DataFile, name: str, start: int, stop: int) -> list[bytes]:
    """The encoded pictures of some rows."""
    pictures: list[bytes] = []
    for step, cell in enumerate(file.values([name], start, stop)[name]):
        picture = cell.get("bytes") if isinstance(cell, dict) else cell
        if not isinstance(picture, bytes):
            raise BadValue(
                "the picture of a step is not in the table",
                path=file.path,
                entry=f"{name}, step {step}",
                hint="embed the pictures into the Parquet files first",
            )
        pictures.append(picture)
    return pictures
