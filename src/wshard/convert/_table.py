"""Tables with one row a step: CSV and Parquet, one file or a folder of files.

The first of the columns `episode_id`, `episode_index` and `episode` that is there says which episode a row
belongs to; without one, a file is one episode. The rows of an episode follow each other.
`wshard.convert._fields.address_of_field` says what the name of a column means; a column with any other name is an
observation. Lists are vectors, or ragged if their lengths differ; strings are text; fields of structs are columns `a.b`;
encoded pictures become pixels; columns `x[0]`, `x[1]`, … or `x[0][0]`, `x[0][1]`, … become one vector or matrix `x`.

The last row of an episode may have nothing in its actions, rewards and ends: then it is the observation after the last
step. Any other missing value becomes NaN (integers become floats for it), false, or empty text, and is noted.

`wshard.convert._table_writer` writes tables.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from bisect import bisect_right
from functools import cache, cached_property, lru_cache
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from shard_format.errors import BadValue, InvalidArgument, LimitExceeded, ShardError
from shard_format.extras import require
from shard_format.registry import DEFAULT_LIMITS
from shard_format.sources import read_file
from wshard._blocks import ArrayBlock
from wshard._channel_rows import channel_from_row
from wshard._channels import Channel, RaggedChannel
from wshard._episode import Episode
from wshard._labels import Intervals
from wshard._lanes import (
    TERMINATED,
    TIMESTAMPS,
    TRUNCATED,
    Address,
    block_name,
    offsets_block,
)
from wshard._metadata import complete_provenance, parse_facts, parse_row
from wshard._values import DType, as_times
from wshard.convert._arrays import EncodedFrames, channel_of, image_type, least_bytes, text_channel
from wshard.convert._fields import SECONDS, address_of_field, seconds_as_ns
from wshard.convert._hdf5 import as_json_value
from wshard.convert._model import DatasetReader
from wshard.convert._npz import modality_of, plain_name
from wshard.convert._per_file import files_in
from wshard.convert._table_writer import EPISODE, FLAT, FRAME, OWN, ROW, TableWriter, column_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from wshard._metadata import Row
    from wshard.convert._model import Notes, Probe, ReadOptions

__all__ = ["TableReader", "TableWriter", "recognises"]

_ENDINGS: Final = (".parquet", ".csv", ".tsv")
_DAMAGE: Final = (
    *(OSError, ValueError, TypeError, LookupError, NotImplementedError, OverflowError),
    *(MemoryError, RecursionError),
)
_STEPS: Final = ("action", *FLAT)
_READ_AHEAD: Final = 8 << 20
_ELEMENT: Final = re.compile(r"(.+?)\[(\d{1,9}(?:\]\[\d{1,9}){0,7})\]")


@cache
def library() -> Any:  # noqa: ANN401 - a module
    """pyarrow. Looked up once: a column needs it several times, and an import that is repeated takes a microsecond."""
    require("pyarrow.compute", "arrow")
    return require("pyarrow", "arrow")


def recognises(probe: Probe) -> bool:
    """Whether it is a table, or a folder with tables."""
    if not probe.is_folder:
        return probe.head.startswith(b"PAR1") or _looks_like_csv(probe.path, probe.head)
    for name in sorted(probe.names):
        if name.endswith(_ENDINGS):
            path = os.path.join(probe.path, name)
            try:
                head = read_file(path, 1024)
            except ShardError:
                continue
            if head.startswith(b"PAR1") or _looks_like_csv(path, head):
                return True
    return False


def _looks_like_csv(path: str, head: bytes) -> bool:
    """Whether a file is called a table and starts with a line of at least two names."""
    separator = b"\t" if path.endswith(".tsv") else b","
    is_text = b"\0" not in head and separator in head.partition(b"\n")[0]
    return path.endswith((".csv", ".tsv")) and is_text


class RowRun(NamedTuple):
    """The rows of one episode."""

    name: str
    file: str
    start: int
    stop: int
    key: str
    """What the table calls it."""
    damage: ShardError | None = None
    """Why its file cannot be read. Which episodes are in it is then unknown."""


class TableReader(DatasetReader):
    """Episodes of tables. Keeps one table in memory, or of a Parquet file one row group or several small ones."""

    def __init__(self, path: str, options: ReadOptions) -> None:
        super().__init__(path, options)
        require("pyarrow", "arrow")
        self._files = [path]
        if os.path.isdir(path):
            self._files, self.strays = files_in(path, lambda name: name.endswith(_ENDINGS))
            if not self._files:
                raise InvalidArgument("no tables in this folder", path=path, expected=_ENDINGS)
        self._last: _StepTable | None = None

    @cached_property
    def _runs(self) -> list[RowRun]:
        runs: list[RowRun] = []
        for file in self._files:
            runs += self._runs_in(file)
        if len({run.name for run in runs}) == len(runs):
            return runs
        return [
            run._replace(name=f"{os.path.splitext(os.path.basename(run.file))[0]}_{run.name}")
            for run in runs
        ]

    def _runs_in(self, file: str) -> list[RowRun]:
        try:
            with _errors(file):
                return self._runs_of(self._table(file))
        except ShardError as error:
            if len(self._files) == 1:
                raise
            stem = os.path.splitext(os.path.basename(file))[0]
            return [RowRun(stem, file, 0, 0, stem, error)]

    def _runs_of(self, table: _StepTable) -> list[RowRun]:
        column = next((name for name in EPISODE if name in table.names), None)
        if column is None:
            stem = os.path.splitext(os.path.basename(table.path))[0]
            return [RowRun(stem, table.path, 0, table.length, stem)]
        found = table.runs(column)
        names = {name for name, _, _ in found}
        if len(names) != len(found):
            raise BadValue(
                "the rows of an episode do not follow each other",
                entry=column,
                hint="sort the table by episode and step",
            )
        runs = [RowRun(name, table.path, start, stop, name) for name, start, stop in found]
        # Episodes without steps have no rows; our writer says that they are there, and where.
        empty = [
            RowRun(name, table.path, 0, 0, name) for name in table.described if name not in names
        ]
        return sorted((*runs, *empty), key=table.place) if empty else runs

    def _table(self, file: str) -> _StepTable:
        if self._last is None or self._last.path != file:
            self.close()
            self._last = open_table(file)
        return self._last

    def names(self) -> Sequence[str]:
        return [run.name for run in self._runs]

    def read(self, number: int, notes: Notes) -> Episode:
        run = self._runs[number]
        if run.damage is not None:
            raise run.damage
        with _errors(run.file):
            table = self._table(run.file)
            for key in table.dropped:
                notes.dropped(f"metadata {key!r} of the file", "it belongs to no episode")
            rows = table.rows(run.start, run.stop)
            return _EpisodeOfRows(rows, run, table, notes).episode()

    def close(self) -> None:
        if self._last is not None:
            self._last.close()
            self._last = None


class _StepTable:
    """A CSV file: read as a whole."""

    described: dict[str, Any]
    """What our writer says about the episodes of the table, by id."""
    described_columns: dict[str, bytes]
    """What our writer says about columns, by name."""
    dropped: Sequence[str] = ()
    """What other programs say about the table; no episode has a place for it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.described = {}
        self.described_columns = {}
        self._rows: dict[str, Row] = {}
        self._open()

    def _open(self) -> None:
        csv = require("pyarrow.csv", "arrow")
        separator = "\t" if self.path.endswith(".tsv") else ","
        self._whole = csv.read_csv(
            self.path,
            parse_options=csv.ParseOptions(delimiter=separator, newlines_in_values=True),
            convert_options=csv.ConvertOptions(null_values=[""], strings_can_be_null=False),
        )
        self.length: int = self._whole.num_rows
        self.names: list[str] = self._whole.column_names

    def place(self, run: RowRun) -> int:
        """The place of an episode among those of the table, as our writer says it."""
        facts = self.described.get(run.key)
        place = facts.get("place") if isinstance(facts, dict) else None
        return place if isinstance(place, int) else 0

    def row(self, name: str) -> Row:
        """What our writer says about a column, checked."""
        found = self._rows.get(name)
        if found is None:
            try:
                fields = json.loads(self.described_columns[name])
            except (ValueError, RecursionError) as error:
                raise BadValue(f"the description is damaged: {error}", entry=name) from None
            self._rows[name] = found = parse_row(fields, 0)
        return found

    def rows(self, start: int, stop: int) -> Any:  # noqa: ANN401 - a pyarrow.Table
        """Some rows."""
        return self._whole.slice(start, stop - start)

    def _pieces(self, name: str) -> Iterator[Any]:
        """A column, in pieces that fit into memory."""
        yield self._whole.column(name)

    def runs(self, column: str) -> list[tuple[str, int, int]]:
        """The name, first and last row of each episode."""
        runs: list[tuple[str, int, int]] = []
        done = 0
        for piece in self._pieces(column):
            whole = piece.combine_chunks()
            if whole.null_count:
                raise BadValue("a row belongs to no episode", path=self.path, entry=column)
            encoded = library().compute.run_end_encode(whole)
            start = done
            for value, end in zip(
                encoded.values.to_pylist(), encoded.run_ends.to_pylist(), strict=True
            ):
                name = value if isinstance(value, str) else f"episode_{value}"
                if runs and runs[-1][0] == name:
                    start = runs.pop()[1]
                runs.append((name, start, done + end))
                start = done + end
            done += len(whole)
        return runs

    def close(self) -> None:
        """Closes its file."""


class _Parquet(_StepTable):
    """A Parquet file: row groups are read when they are needed, small ones several at a time."""

    def _open(self) -> None:
        parquet = require("pyarrow.parquet", "arrow")
        self._file = parquet.ParquetFile(self.path)
        self._schema = self._file.schema_arrow
        facts = self._file.metadata
        self.length = facts.num_rows
        self.names = self._schema.names
        self._row_bytes = sum(least_bytes(field.type) for field in self._schema)
        self._ends = [0]
        for number in range(facts.num_row_groups):
            self._ends.append(self._ends[-1] + facts.row_group(number).num_rows)
        self._kept: tuple[int, int, Any] = (0, 0, None)
        metadata = facts.metadata or {}
        self.described = _described(metadata, self.path)
        self.described_columns = {
            field.name: field.metadata[OWN]
            for field in self._schema
            if field.metadata and OWN in field.metadata
        }
        self.dropped = [
            key.decode(errors="replace") for key in metadata if key not in (OWN, b"ARROW:schema")
        ]

    def rows(self, start: int, stop: int) -> Any:  # noqa: ANN401 - a pyarrow.Table
        parts = []
        while start < stop:
            first, end, table = self._read(start)
            parts.append(table.slice(start - first, min(stop, end) - start))
            start = end
        return library().concat_tables(parts or [self._schema.empty_table()])

    def _read(self, row: int) -> tuple[int, int, Any]:
        """The row group with this row and, if it is small, those after it: first row, the one after the last, table."""
        if not self._kept[0] <= row < self._kept[1]:
            first = bisect_right(self._ends, row) - 1
            end, size = first + 1, self._size(first)
            self._check(size)
            # Several at a time, because each call costs as much as many rows.
            while end + 1 < len(self._ends) and (size := size + self._size(end)) <= _READ_AHEAD:
                end += 1
            self._kept = (0, 0, None)  # makes room for the next
            try:
                table = self._file.read_row_groups(range(first, end))
            except (library().ArrowException, *_DAMAGE):
                # Groups before a damaged one can be read, which `on_error="skip"` promises.
                end = first + 1
                table = self._file.read_row_group(first)
            if len(table) != self._ends[end] - self._ends[first]:
                raise BadValue("row groups do not have as many rows as they state")
            self._kept = (self._ends[first], self._ends[end], table)
        return self._kept

    def _size(self, number: int) -> int:
        """What a row group takes in memory at least."""
        group = self._file.metadata.row_group(number)
        # Not the columns of the group: pyarrow ends the process if their statistics are damaged.
        size: int = max(group.num_rows * self._row_bytes, group.total_byte_size)
        return size

    def _check(self, claimed: int) -> None:
        """Refuses to read what a few bytes may claim: values that repeat, or are missing, take no room in a file."""
        if claimed > DEFAULT_LIMITS.max_decompressed_bytes:
            raise LimitExceeded(
                "a row group is too large to read at once",
                path=self.path,
                expected=f"at most {DEFAULT_LIMITS.max_decompressed_bytes} bytes",
                found=f"{claimed} bytes",
                hint="write the table with smaller row groups",
            )

    def _whole_if_small(self) -> Any:  # noqa: ANN401 - a pyarrow.Table
        """The table, if it can be kept as a whole, so that its file is read once; None if not, or if it is damaged."""
        groups = range(len(self._ends) - 1)
        if self.length and sum(map(self._size, groups)) <= _READ_AHEAD:
            with contextlib.suppress(library().ArrowException, ShardError, *_DAMAGE):
                _, end, table = self._read(0)
                return table if end == self.length else None
        return None

    def _pieces(self, name: str) -> Iterator[Any]:
        whole = self._whole_if_small()
        if whole is not None:
            yield whole.column(name)
            return
        width = least_bytes(self._schema.field(name).type)
        if self.length * width <= DEFAULT_LIMITS.max_decompressed_bytes:
            # All row groups in one call: a call for each takes longer than the reading.
            yield self._file.read([name]).column(0)
            return
        for number, (first, end) in enumerate(pairwise(self._ends)):
            self._check((end - first) * width)
            yield self._file.read_row_group(number, [name]).column(0)

    def close(self) -> None:
        self._file.close()


def open_table(path: str) -> _StepTable:
    """A table, by the first bytes of its file."""
    return _Parquet(path) if read_file(path, 4) == b"PAR1" else _StepTable(path)


@contextlib.contextmanager
def _errors(path: str) -> Iterator[None]:
    """Turns errors of pyarrow about damaged tables into ours."""
    pyarrow = library()
    try:
        yield
    except ShardError as error:
        raise error.located(path=path) from None
    except (pyarrow.ArrowException, *_DAMAGE) as error:
        raise BadValue(f"the table cannot be read: {error}", path=path) from None


def _described(metadata: dict[bytes, bytes], path: str) -> dict[str, Any]:
    """What our writer says about episodes; nothing for tables of other programs."""
    try:
        found = json.loads(metadata.get(OWN, b"{}"))
    except (ValueError, RecursionError) as error:
        raise BadValue(f"the description of the episodes is damaged: {error}", path=path) from None
    return found if isinstance(found, dict) else {}


class _EpisodeOfRows:
    """Makes an episode of some rows."""

    def __init__(self, rows: Any, run: RowRun, table: _StepTable, notes: Notes) -> None:  # noqa: ANN401 - a pyarrow.Table
        self._run, self._table, self._notes = run, table, notes
        self._count = run.stop - run.start
        facts = table.described.get(run.key)
        self._facts: dict[str, Any] = facts if isinstance(facts, dict) else {}
        self._columns = _flat_columns(rows)
        self._steps = self._count - self._has_last_observation()
        stated = self._facts.get("episode")
        if isinstance(stated, dict) and stated.get("length_T") in (self._count, self._count - 1):
            self._steps = stated["length_T"]

    def _has_last_observation(self) -> bool:
        """Whether the last row has an observation and nothing else."""
        columns = [column for name, column in self._columns.items() if _is_of_steps(name)]
        return (
            bool(columns)
            and self._count > 0
            and all(not column[-1].is_valid for column in columns)
            and (self._count == 1 or any(column[-2].is_valid for column in columns))
        )

    def episode(self) -> Episode:
        episode = self._described_episode() if self._facts else Episode(self._run.name)
        if self._run.name != self._run.key:
            self._notes.renamed(f"episode {self._run.key}", self._run.name)
            episode.id = self._run.name
        episode.length = self._steps
        groups = _grouped(self._columns)
        chosen = next((name for name in EPISODE if name in self._columns), None)
        for name, columns in groups.items():
            if name == chosen or (name in EPISODE and self._facts):
                self._notes.kept(name, "the episodes themselves")
            elif name in (FRAME, ROW) and self._is_counting(columns):
                self._notes.kept(name, "the order of the steps")
                start = self._run.start if name == ROW else 0
                if self._count and (first := columns[0][1][0].as_py()) != start:
                    self._add_fact(episode, "first", name, first)
            elif name in EPISODE and len(columns[0][1].unique()) == 1:
                self._add_fact(episode, "values", name, columns[0][1][0].as_py())
            elif name in self._table.described_columns:
                self._add_own(episode, name, columns[0][1])
            else:
                self._add(episode, name, columns)
        return episode

    def _described_episode(self) -> Episode:
        fields = self._facts.get("episode")
        facts = parse_facts(fields if isinstance(fields, dict) else {}, {})
        episode = Episode.from_facts(facts)
        labels, provenance = self._facts.get("labels"), self._facts.get("provenance")
        for name, label in (labels if isinstance(labels, dict) else {}).items():
            episode.labels[name] = Intervals.from_fields(label)
        if isinstance(provenance, dict):
            episode.provenance = complete_provenance(provenance)
        return episode

    def _add_fact(self, episode: Episode, kind: str, name: str, value: object) -> None:
        """What a column says about the whole episode."""
        facts = episode.metadata.setdefault("table", {})
        facts.setdefault(kind, {})[name] = as_json_value(value)
        self._notes.kept(name, f"metadata table.{kind}.{name}")

    def _is_counting(self, columns: list[tuple[tuple[int, ...], Any]]) -> bool:
        column = columns[0][1]
        if column.null_count or not library().types.is_integer(column.type):
            return False
        values = column.to_numpy(zero_copy_only=False)
        return bool((np.diff(values.astype(np.int64)) == 1).all())

    def _add_own(self, episode: Episode, name: str, column: Any) -> None:  # noqa: ANN401 - a pyarrow array
        """A column that our writer described."""
        length = self._count
        if length > self._steps and not column[-1].is_valid:
            length = self._steps
        column = column[:length]
        if length and column.null_count == length:
            self._notes.dropped(name, "it holds nothing")
            return
        row = self._table.row(name)
        if length != self._steps:
            row = row._replace(fields={**row.fields, "length": length})
        fields = row.fields
        blocks: dict[str, ArrayBlock] = {}
        if fields.get("layout") in ("ragged", "text"):
            values, offsets = _ragged_parts(column, row.dtype, row.shape)
            stored = fields.get("offsets_block") or offsets_block(row.block)
            blocks[stored] = ArrayBlock(stored, offsets)
        else:
            dense = _dense(column)
            if dense is None or dense.size != length * prod(row.shape):
                raise BadValue("a column does not have its shape", entry=name, expected=row.shape)
            is_bits = row.dtype is DType.BFLOAT16
            values = dense if is_bits else dense.astype(row.dtype.numpy_dtype, copy=False)
        block = ArrayBlock(row.block, np.ascontiguousarray(values).reshape(-1))
        address: Address = (row.block,) if row.block in FLAT else row.address
        episode.parts[address] = channel_from_row(row, address[-1], block, self._steps, blocks.get)
        self._notes.kept(name, row.block)

    def _add(self, episode: Episode, name: str, columns: list[tuple[tuple[int, ...], Any]]) -> None:
        notes, address = self._notes, address_of_field(name)
        is_step = address[0] in _STEPS or len(address) == 1
        arrays = [
            (place, column[: self._steps] if is_step else column) for place, column in columns
        ]
        if self._steps < self._count and all(not column[-1].is_valid for _, column in columns):
            # An observation that has nothing in the last row has one a step.
            arrays = [(place, column[: self._steps]) for place, column in columns]
        if len(arrays) == 1 and not arrays[0][0]:
            channel = self._channel(address[-1], name, arrays[0][1])
        else:
            channel = self._joined(address[-1], name, arrays)
        if channel is None:
            return
        lane = address[0]
        if lane in FLAT and channel.step_shape == (1,) and not isinstance(channel, RaggedChannel):
            notes.cast(name, "lists of one number", "numbers")
            channel = Channel(lane, data=channel.data.reshape(-1))
        if len(address) == 1 and (channel.step_shape or isinstance(channel, RaggedChannel)):
            address = ("signal", name)  # not one number a step
        elif lane in (SECONDS, TIMESTAMPS):
            self._add_clock(episode, name, lane, channel, columns[0][1])
            return
        elif lane in (TERMINATED, TRUNCATED) and channel.dtype_name is not DType.BOOL:
            notes.cast(name, channel.dtype_name, "bool")
            channel = Channel(lane, data=channel.data != 0)
        if len(address) > 1:
            address = (lane, *(plain_name(key, notes) for key in address[1:]))
        if address in episode.parts:
            address = ("signal", plain_name(name, notes))
        episode.parts[address] = channel
        block = block_name(address)
        notes.kept(name, block)
        if column_of(block) != name:
            facts = episode.metadata.setdefault("table", {})
            facts.setdefault("columns", {})[block] = name

    def _add_clock(
        self,
        episode: Episode,
        name: str,
        lane: str,
        clock: Channel,
        column: Any,  # noqa: ANN401 - a pyarrow array
    ) -> None:
        times = clock.data
        if lane == SECONDS and times.dtype.kind == "f":
            times = seconds_as_ns(times, name, self._run.file, self._notes)
        elif times.dtype.kind not in "iu":
            raise BadValue("times are not whole nanoseconds", entry=name, found=times.dtype)
        elif lane == SECONDS and not _is_time(column):
            times = seconds_as_ns(times, name, self._run.file, self._notes)
        if episode.timestamps_ns is not None:
            self._notes.dropped(name, "another column has the times already")
            return
        episode.timestamps_ns = as_times(times, name)
        self._notes.kept(name, TIMESTAMPS)
        if self._steps < self._count and column[-1].is_valid:
            self._notes.dropped(f"{name} of the last row", "only steps have times")

    def _joined(
        self, key: str, name: str, columns: list[tuple[tuple[int, ...], Any]]
    ) -> Channel | None:
        """One channel of columns that hold its elements."""
        channels = [self._channel(key, f"{name}{list(at)}", column) for at, column in columns]
        dense = [
            one.data for one in channels if one is not None and not isinstance(one, RaggedChannel)
        ]
        if len(dense) != len(columns) or any(data.ndim != 1 for data in dense):
            raise BadValue("elements of a vector are not numbers", entry=name)
        shape = [max(at) + 1 for at in zip(*(at for at, _ in columns), strict=True)]
        ordered = [
            data
            for _, data in sorted(
                zip((at for at, _ in columns), dense, strict=True), key=lambda one: one[0]
            )
        ]
        return Channel(key, data=np.stack(ordered, axis=1).reshape(-1, *shape))

    def _channel(self, key: str, name: str, column: Any) -> Channel | None:  # noqa: ANN401 - a pyarrow array
        """A channel of one column; None, with a note, if there is nothing in it."""
        types = library().types
        kind, notes = column.type, self._notes
        if types.is_dictionary(kind):
            column = column.dictionary_decode()
            kind = column.type
        if types.is_null(kind) or (len(column) and column.null_count == len(column)):
            notes.dropped(name, "it holds nothing")
            return None
        if types.is_string(kind) or types.is_large_string(kind):
            if column.null_count:
                notes.filled(name, "missing text with empty text")
            return text_channel(key, column.to_pylist())
        if types.is_binary(kind) or types.is_large_binary(kind):
            return self._bytes(key, name, column.to_pylist())
        if types.is_struct(kind):  # an encoded picture, as Hugging Face stores it
            items = [item or {} for item in column.to_pylist()]
            if any(item.get("path") for item in items):
                notes.dropped(f"{name}.path", "an episode has pictures, not the names of files")
            return self._bytes(key, name, [item.get("bytes") for item in items])
        if _is_list(kind):
            return self._lists(key, name, column)
        return self._numbers(key, name, column)

    def _bytes(self, key: str, name: str, found: list[bytes | None]) -> Channel | None:
        values = [value or b"" for value in found]
        if not any(values):
            self._notes.dropped(name, "it holds no bytes")
            return None
        if None in found:
            self._notes.filled(name, "missing bytes with none")
        if all(image_type(value) for value in values):
            self._notes.decoded(name, "encoded pictures to pixels")
            frames = EncodedFrames(name, values, self._run.file)
            return channel_of(key, frames, path=self._run.file, modality=modality_of(key, frames))
        return RaggedChannel(key, data=[np.frombuffer(value, np.uint8) for value in values])

    def _lists(self, key: str, name: str, column: Any) -> Channel | None:  # noqa: ANN401 - a pyarrow array
        values = _dense(column)
        if values is not None:
            return channel_of(key, values, modality=modality_of(key, values))
        if column.null_count:
            self._notes.filled(name, "missing lists with empty ones")
        items = column.flatten()
        try:
            if _is_number(items.type) and not items.null_count:
                values = items.to_numpy(zero_copy_only=False)
                return RaggedChannel(key, values=values, offsets=_offsets(_lengths(column)))
            return RaggedChannel(key, data=[np.asarray(one or []) for one in column.to_pylist()])
        except (ShardError, ValueError) as error:
            self._notes.dropped(name, f"lists that are not numbers: {error}")
            return None

    def _numbers(self, key: str, name: str, column: Any) -> Channel | None:  # noqa: ANN401 - a pyarrow array
        pyarrow, types = library(), library().types
        kind, notes = column.type, self._notes
        if _is_time(column):
            notes.cast(name, kind, "int64", "nanoseconds")
            unit = pyarrow.duration("ns") if types.is_duration(kind) else pyarrow.timestamp("ns")
            column = column.cast(unit).cast(pyarrow.int64())
        elif types.is_decimal(kind):
            notes.cast(name, kind, "float64")
            column = column.cast(pyarrow.float64())
        elif not _is_number(kind):
            notes.dropped(name, f"an episode cannot store {kind}")
            return None
        if column.null_count and types.is_boolean(kind):
            notes.filled(name, "missing values with false")
            column = column.fill_null(False)
        elif column.null_count:
            notes.filled(name, "missing values with NaN")
            if types.is_integer(column.type):
                notes.cast(name, column.type, "float64", "because values are missing")
                column = column.cast(pyarrow.float64(), safe=False)
            column = column.fill_null(float("nan"))
        return Channel(key, data=column.to_numpy(zero_copy_only=False))


@lru_cache(maxsize=1024)
def _is_of_steps(name: str) -> bool:
    """Whether a column has actions, rewards or ends. Asked for every column of every episode."""
    return address_of_field(_ELEMENT.sub(r"\1", name))[0] in _STEPS


def _flat_columns(rows: Any) -> dict[str, Any]:  # noqa: ANN401 - a pyarrow.Table
    """The columns by name, each as one array; the fields of structs are columns of their own."""
    columns: dict[str, Any] = {}
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        # One chunk as it is: joining one copies it.
        whole = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        _add_flat(columns, name, whole, 8)
    return columns


def _add_flat(columns: dict[str, Any], name: str, column: Any, depth: int) -> None:  # noqa: ANN401 - a pyarrow array
    if library().types.is_struct(column.type) and depth:
        names = {field.name for field in column.type}
        if not names <= {"bytes", "path"} or "bytes" not in names:
            for field, part in zip(column.type, column.flatten(), strict=True):
                _add_flat(columns, f"{name}.{field.name}", part, depth - 1)
            return
    columns[name if name not in columns else f"{name}_{len(columns)}"] = column


def _grouped(columns: dict[str, Any]) -> dict[str, list[tuple[tuple[int, ...], Any]]]:
    """Columns by the name of their vector, with the place of each in it; other columns have the place `()`."""
    vectors: dict[str, list[tuple[tuple[int, ...], Any]]] = {}
    for name, column in columns.items():
        vector, place = _element(name)
        if place:
            vectors.setdefault(vector, []).append((place, column))
    complete = {name for name, parts in vectors.items() if name not in columns and _is_full(parts)}
    groups: dict[str, list[tuple[tuple[int, ...], Any]]] = {}
    for name, column in columns.items():
        vector, _ = _element(name)
        if vector in complete:
            groups[vector] = vectors[vector]
        else:
            groups[name] = [((), column)]
    return groups


@lru_cache(maxsize=1024)
def _element(name: str) -> tuple[str, tuple[int, ...]]:
    """The vector that a column is an element of, and its place in it; the column itself and `()` for others."""
    found = _ELEMENT.fullmatch(name)
    return (found[1], tuple(map(int, found[2].split("][")))) if found else (name, ())


def _is_full(parts: list[tuple[tuple[int, ...], Any]]) -> bool:
    """Whether columns are all elements of an array."""
    places = {place for place, _ in parts}
    if len({len(place) for place in places}) != 1 or len(places) != len(parts):
        return False
    shape = [max(at) + 1 for at in zip(*places, strict=True)]
    return bool(prod(shape) == len(parts))


def _is_number(kind: Any) -> bool:  # noqa: ANN401 - a pyarrow.DataType
    types = library().types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _is_list(kind: Any) -> bool:  # noqa: ANN401 - a pyarrow.DataType
    types = library().types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_time(column: Any) -> bool:  # noqa: ANN401 - a pyarrow array
    types = library().types
    kind = column.type
    return bool(types.is_timestamp(kind) or types.is_duration(kind) or types.is_date(kind))


def _dense(column: Any) -> NDArray[Any] | None:  # noqa: ANN401 - a pyarrow array
    """Lists of lists of one shape as an array; None if shapes differ or values are missing."""
    types, compute = library().types, library().compute
    shape = [len(column)]
    while _is_list(column.type):
        if column.null_count:
            return None
        if types.is_fixed_size_list(column.type):
            shape.append(column.type.list_size)
        else:
            lengths = compute.min_max(compute.list_value_length(column)).as_py()
            if lengths["min"] != lengths["max"] or lengths["min"] is None:
                return None
            shape.append(lengths["min"])
        column = column.flatten()
    if column.null_count or not _is_number(column.type):
        return None
    values: NDArray[Any] = column.to_numpy(zero_copy_only=False).reshape(shape)
    return values


def _ragged_parts(
    column: Any,  # noqa: ANN401 - a pyarrow array
    dtype: DType,
    shape: tuple[int, ...],
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The items of a column of lists or text, and where those of each row start."""
    types = library().types
    if types.is_string(column.type) or types.is_large_string(column.type):
        texts = [(text or "").encode() for text in column.to_pylist()]
        values = np.frombuffer(b"".join(texts), np.uint8)
        lengths = [len(text) for text in texts]
    else:
        items = column.flatten()
        values = items.to_numpy(zero_copy_only=False).astype(dtype.numpy_dtype, copy=False)
        lengths = [one // max(1, prod(shape)) for one in _lengths(column)]
    return values, _offsets(lengths)


def _lengths(column: Any) -> list[int]:  # noqa: ANN401 - a pyarrow array
    """The number of items in each list of a column; 0 for a missing list."""
    found = library().compute.list_value_length(column).to_pylist()
    return [one or 0 for one in found]


def _offsets(lengths: list[int]) -> NDArray[np.int64]:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
