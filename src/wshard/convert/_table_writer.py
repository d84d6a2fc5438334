"""Episodes as tables with one row a step (`wshard.convert._table`).

A path that ends with `.csv` or `.parquet` becomes one file with all episodes, which then have the columns of
the first one. Any other path becomes a folder with a Parquet file for each episode. Columns are `episode_index`,
`episode_id`, `frame_index`, `timestamp_ns`, `observation.<name>`, `action.<name>`, `reward`, `terminated`, `truncated`,
`omen/…`, `uncert/…`; a column that was read from a table has its name again (`metadata["table"]["columns"]`). Parquet keeps
types, units and metadata, CSV does not.
"""

from __future__ import annotations

import os
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.canonical_json import canonical
from shard_format.errors import InvalidArgument
from shard_format.extras import require
from wshard._channel_rows import row_fields
from wshard._channels import Channel, RaggedChannel, TextChannel
from wshard._labels import Intervals
from wshard._lanes import (
    REWARD,
    TERMINATED,
    TICKS,
    TIMESTAMPS,
    TRUNCATED,
    Address,
    block_name,
    offsets_block,
)
from wshard._metadata import episode_fields
from wshard._values import DType
from wshard.convert._arrays import drop_video_fields
from wshard.convert._fields import address_of_field, note_ambiguous
from wshard.convert._model import DatasetWriter
from wshard.convert._own import file_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wshard._episode import Episode
    from wshard.convert._model import Notes, WriteOptions

EPISODE: Final = ("episode_id", "episode_index", "episode")
FRAME: Final = "frame_index"
ROW: Final = "index"
OWN: Final = b"wshard"
FLAT: Final = (REWARD, TERMINATED, TRUNCATED)
# More numbers a step than this do not become columns of a CSV file.
_MOST_COLUMNS: Final = 256


class TableWriter(DatasetWriter):
    """One CSV or Parquet file, or a folder of Parquet files, as the path says."""

    def __init__(self, path: str, options: WriteOptions) -> None:
        super().__init__(path, options)
        require("pyarrow", "arrow")
        self._is_csv = path.endswith(".csv")
        self._is_one_file = path.endswith((".csv", ".parquet"))
        self._writer: Any = None
        self._schema: Any = None
        self._number = 0
        self._described: dict[str, Any] = {}
        if not self._is_one_file:
            os.makedirs(path)

    def write(self, episode: Episode, notes: Notes) -> None:
        if episode.id in self._described:
            raise InvalidArgument("two episodes have the same id", entry=episode.id)
        table = self._table(episode, notes)
        self._describe(episode, notes)
        if self._is_one_file:
            if self._writer is None:
                self._start(self.path, table.schema)
            self._writer.write_table(_fitted(table, self._schema, notes))
        else:
            path = os.path.join(self.path, f"{file_name(episode.id)}.parquet")
            if os.path.exists(path):
                raise InvalidArgument("two episodes have the same id", path=path, entry=episode.id)
            self._start(path, table.schema)
            self._writer.write_table(table)
            self._finish_file({episode.id: self._described[episode.id]})
        self._number += 1

    def _start(self, path: str, schema: Any) -> None:  # noqa: ANN401 - a pyarrow.Schema
        self._schema = schema
        if self._is_csv:
            self._writer = require("pyarrow.csv", "arrow").CSVWriter(path, schema)
        else:
            parquet = require("pyarrow.parquet", "arrow")
            self._writer = parquet.ParquetWriter(path, schema, compression="zstd")

    def _finish_file(self, described: dict[str, Any]) -> None:
        if self._writer is not None:
            if not self._is_csv:
                text = canonical(described, None)
                self._writer.add_key_value_metadata({OWN: text})
            self._writer.close()
            self._writer = None

    def _describe(self, episode: Episode, notes: Notes) -> None:
        """What is not in the rows; noted as lost for CSV."""
        self._described[episode.id] = None
        labels = {name: one.to_fields() for name, one in episode.labels.items()}
        if not self._is_csv:
            fields = {**episode.unknown_fields.episode, **episode_fields(episode.facts)}
            self._described[episode.id] = {
                "episode": fields,
                "labels": labels,
                "provenance": episode.provenance,
                "place": self._number,
            }
            return
        why = "CSV holds only columns"
        for name in (
            *(f"metadata/{key}" for key in episode.metadata),
            *(f"label/{key}" for key in labels),
        ):
            notes.dropped(name, why)
        if episode.env_id:
            notes.dropped("env_id", why)
        if episode.timebase.tick_hz is not None:
            notes.dropped("timebase", why)
        if episode.provenance is not None:
            notes.dropped("meta/provenance", why)

    def _table(self, episode: Episode, notes: Notes) -> Any:  # noqa: ANN401 - a pyarrow.Table
        pyarrow = require("pyarrow", "arrow")
        parts = {
            address: part
            for address, part in episode.parts.items()
            if self._can_hold(address, part, episode.length, notes)
        }
        rows = episode.length + any(len(part) > episode.length for part in parts.values())
        columns: dict[str, Any] = {
            "episode_index": pyarrow.array(np.full(rows, self._number)),
            "episode_id": pyarrow.array([episode.id] * rows, pyarrow.string()),
            FRAME: pyarrow.array(np.arange(rows)),
        }
        metadata: dict[str, dict[bytes, bytes]] = {}
        former = episode.metadata.get("table")
        names = former.get("columns") if isinstance(former, dict) else None
        times = episode.timestamps_ns
        if times is not None:
            columns["timestamp_ns"] = _padded(pyarrow.array(times), rows)
            notes.kept(TIMESTAMPS, "timestamp_ns")
        for address, part in sorted(parts.items(), key=lambda one: one[0][0] in FLAT):
            block = block_name(address)
            name = column_of(block)
            if isinstance(names, dict) and _means(names.get(block), address):
                name = names[block]
            if name in columns:
                notes.renamed(block, f"{block}, because {name!r} is taken")
                name = block
            if self._is_csv:
                for place, column in _elements(part):
                    columns[f"{name}{place}"] = _padded(column, rows)
                if block == REWARD:
                    columns[name] = _wide(columns[name])
                self._note_types(block, part, notes)
                note_ambiguous(address, notes)
            else:
                columns[name] = _padded(_column(part), rows)
                row = _row(address, part, episode.length)
                drop_video_fields(row, part, block, notes)
                if self._is_one_file and block == REWARD and part.dtype_name.is_float:
                    columns[name], row["dtype"] = _wide(columns[name]), DType.FLOAT64.value
                metadata[name] = {OWN: canonical(row)}
            notes.kept(block, name)
        if self._is_csv and not rows:
            notes.dropped("the episode", "it has no steps, and CSV has nothing but rows")
        fields = [
            pyarrow.field(name, column.type, metadata=metadata.get(name))
            for name, column in columns.items()
        ]
        return pyarrow.Table.from_arrays(list(columns.values()), schema=pyarrow.schema(fields))

    def _can_hold(self, address: Address, part: Any, length: int, notes: Notes) -> bool:  # noqa: ANN401 - any part
        """Whether a part becomes a column; notes those that do not."""
        block = block_name(address)
        why = ""
        if isinstance(part, Intervals) or address[0] == TIMESTAMPS:
            return False  # elsewhere
        if address[0] == TICKS:
            if np.array_equal(part.data, np.arange(length)):
                return False
            why = "a table has no ticks"
        elif not isinstance(part, Channel) or not address[0]:
            why = "a table holds only what has one row a step"
        elif part.has_own_clock:
            why = "it has a clock of its own"
        elif len(part) not in (length, length + 1):
            why = f"it has {len(part)} entries for {length} steps"
        elif not prod(part.step_shape):
            why = "its steps are empty"
        elif self._is_csv and isinstance(part, RaggedChannel) and not isinstance(part, TextChannel):
            why = "CSV has no lists"
        elif self._is_csv and prod(part.step_shape) > _MOST_COLUMNS:
            why = f"more than {_MOST_COLUMNS} numbers a step are too many columns"
        if why:
            notes.dropped(block, why)
        return not why

    def _note_types(self, block: str, part: Channel, notes: Notes) -> None:
        kind = part.dtype_name
        if not isinstance(part, TextChannel) and kind not in (
            DType.FLOAT64,
            DType.INT64,
            DType.BOOL,
        ):
            notes.cast(block, kind, "text", "which is read as 64 bits")
        if part.unit or part.description or part.extra or part.horizon:
            notes.dropped(f"{block}, unit and description", "CSV holds only columns")

    def finish(self) -> None:
        if self._is_one_file and self._writer is None:
            pyarrow = require("pyarrow", "arrow")
            self._start(
                self.path, pyarrow.schema([pyarrow.field("episode_index", pyarrow.int64())])
            )
        self._finish_file(self._described)

    def abandon(self) -> None:
        if self._writer is not None:
            self._writer.close()


def _means(column: object, address: Address) -> bool:
    """Whether a column of that name is read as this part of an episode."""
    is_free = isinstance(column, str) and column not in (*EPISODE, FRAME, ROW)
    return is_free and address_of_field(str(column)) == address


def column_of(block: str) -> str:
    """What our writer calls the column of a block."""
    for lane, word in (("signal", "observation"), ("action", "action")):
        if block.startswith(f"{lane}/"):
            name = block.removeprefix(f"{lane}/")
            return word if name == word else f"{word}.{name}"
    return block


def _row(address: Address, channel: Channel, length: int) -> dict[str, Any]:
    """The description of a channel, as our files have it."""
    block = block_name(address)
    name = address[1] if address[0] in ("signal", "action") else block
    fields = row_fields(channel, name, block, length)
    if address[0] in ("omen", "uncert"):
        fields.update(zip(("channel", "model", "type"), address[1:], strict=False))
    if isinstance(channel, RaggedChannel):
        fields["offsets_block"] = offsets_block(block)
    fields.pop("length", None)  # differs by episode, and the rows say it
    return fields


def _column(channel: Channel) -> Any:  # noqa: ANN401 - a pyarrow array
    """A channel as a column of Parquet."""
    pyarrow = require("pyarrow", "arrow")
    if isinstance(channel, TextChannel):
        return pyarrow.array(channel.data, pyarrow.string())
    if isinstance(channel, RaggedChannel):
        items = pyarrow.array(_plain(channel.values, channel.dtype_name).reshape(-1))
        offsets = channel.offsets * max(1, prod(channel.step_shape))
        return pyarrow.LargeListArray.from_arrays(pyarrow.array(offsets, pyarrow.int64()), items)
    values = pyarrow.array(_plain(channel.data, channel.dtype_name).reshape(-1))
    if not channel.step_shape:
        return values
    return pyarrow.FixedSizeListArray.from_arrays(values, prod(channel.step_shape))


def _elements(channel: Channel) -> list[tuple[str, Any]]:
    """A channel as columns of CSV: one for each number of a step."""
    pyarrow = require("pyarrow", "arrow")
    if isinstance(channel, TextChannel) or not channel.step_shape:
        data = channel.data
        if not isinstance(channel, TextChannel):
            data = _as_csv(channel)
        return [("", pyarrow.array(data))]
    flat = _as_csv(channel)
    return [
        (
            "".join(f"[{number}]" for number in place),
            pyarrow.array(np.ascontiguousarray(flat[(slice(None), *place)])),
        )
        for place in np.ndindex(*channel.step_shape)
    ]


def _as_csv(channel: Channel) -> NDArray[Any]:
    values = channel.data
    if channel.dtype_name is DType.BOOL:
        return values
    numbers = channel.dtype_name.as_numbers(values)
    return numbers.astype(np.float32) if numbers.dtype == np.float16 else numbers


def _plain(values: NDArray[Any], dtype: DType) -> NDArray[Any]:
    """Values in a type that Arrow has: bf16 as its bits."""
    return values.view("<u2") if dtype is DType.BFLOAT16 else values


def _padded(column: Any, rows: int) -> Any:  # noqa: ANN401 - a pyarrow array
    """A column with nothing in the row of the observation after the last step, if it ends before that."""
    pyarrow = require("pyarrow", "arrow")
    if len(column) == rows:
        return column
    return pyarrow.concat_arrays([column, pyarrow.nulls(rows - len(column), column.type)])


def _wide(rewards: Any) -> Any:  # noqa: ANN401 - a pyarrow array
    """Rewards as 64-bit floats: a file of ours stores them in as few bits as hold them, and the next episode may need more."""
    pyarrow = require("pyarrow", "arrow")
    is_float = pyarrow.types.is_floating(rewards.type)
    return rewards.cast(pyarrow.float64()) if is_float else rewards


def _fitted(table: Any, schema: Any, notes: Notes) -> Any:  # noqa: ANN401 - of pyarrow
    """The columns of the first episode, for an episode that may have others."""
    pyarrow = require("pyarrow", "arrow")
    columns = []
    for field in schema:
        if field.name not in table.column_names:
            notes.filled(field.name, "with nothing: only other episodes have it")
            columns.append(pyarrow.nulls(table.num_rows, field.type))
        elif (found := table.schema.field(field.name).type) != field.type:
            notes.dropped(field.name, f"it is {found}, and {field.type} in the first episode")
            columns.append(pyarrow.nulls(table.num_rows, field.type))
        else:
            columns.append(table.column(field.name))
            if table.schema.field(field.name).metadata != field.metadata:
                notes.dropped(
                    f"{field.name}, description", "a column has that of the first episode"
                )
    for name in table.column_names:
        if name not in schema.names:
            notes.dropped(name, "the first episode does not have it; write a folder to keep it")
    return pyarrow.Table.from_arrays(columns, schema=schema)
