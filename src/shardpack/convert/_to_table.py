"""Packs as tables: one row per record, in a Parquet, Arrow or Feather file."""

from __future__ import annotations

import os
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from shard_format.atomic import AtomicFile
from shard_format.canonical_json import canonical
from shard_format.errors import (
    BadValue,
    InvalidArgument,
    LimitExceeded,
    ShardError,
    ShardIOError,
    shorten,
)
from shard_format.extras import require
from shardpack.columns import open_samples
from shardpack.writer_set import WrittenShards

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardpack.columns import AnyRecord, Samples

__all__ = ["to_table"]

KEY_COLUMN: Final = "__key__"
"""The column that has the keys."""
_ENDINGS: Final = (".parquet", ".arrow", ".feather")
# A part of the table is written when it has this many rows or this many bytes of entries.
_MOST_ROWS: Final = 16_384
_MOST_BYTES: Final = 64 << 20
# Records whose fields are compared at once to find out the types.
_TYPED_AT_ONCE: Final = 1024
_MOST_COLUMNS: Final = 4096


def to_table(
    shards: Samples,
    output: str | os.PathLike[str],
    *,
    columns: Iterable[str] | None = None,
    entries: bool = True,
    overwrite: bool = False,
    fsync: bool = True,
) -> WrittenShards:
    """Write a table of all records: a column `__key__`, one for each field of the metadata, one for each entry.

    Entries are bytes, as they were packed. The types of the fields come from all records, whose metadata is read
    first; a field whose values have no type in common becomes JSON text, which the result says. A record without a
    field or an entry has a null there. `from_table(…, key="__key__")` makes records again.

    Args:
        shards: what `shardpack.open` takes, or an open dataset.
        output: a file that ends in `.parquet`, `.arrow` or `.feather`.
        columns: only these fields and entries; None for all.
        entries: False leaves out the entries, which are then not read.
        overwrite: True replaces a file that is there; otherwise it is an error.
        fsync: False skips syncing to disk.

    Raises:
        MissingExtra: pyarrow is not installed.
        InvalidArgument: a field and an entry have the same name, or a column does not exist.
    """
    require("pyarrow", "arrow")
    path = os.fspath(output)
    if not path.endswith(_ENDINGS):
        raise InvalidArgument(
            "the name does not say what kind of table it is",
            path=path,
            expected=f"a name that ends in {', '.join(_ENDINGS)}",
        )
    if os.path.lexists(path) and not overwrite:
        raise InvalidArgument(
            "the file exists",
            path=path,
            hint="pass overwrite=True to replace it",
            command="pass --force to replace it",
        )
    with open_samples(shards) as dataset:
        layout = _TableLayout(None if columns is None else set(columns), entries)
        records: Iterator[AnyRecord] = iter(dataset.records())
        while some := list(islice(records, _TYPED_AT_ONCE)):
            layout.add(some)
        schema = layout.schema()
        count = 0
        file = AtomicFile(path, fsync=fsync)
        try:
            with (
                os.fdopen(os.dup(file.descriptor), "wb") as opened,
                _table_writer(path, opened, schema) as writer,
            ):
                for rows in _parts(dataset.records(), layout.entries):
                    writer.write_batch(layout.batch(rows, schema))
                    count += len(rows)
            file.commit()
        except ShardError:
            raise
        except OSError as error:
            raise ShardIOError.wrap(error, "cannot write", path) from error
        finally:
            file.abort()
    return WrittenShards([path], count, changed=layout.changed())


def _table_writer(path: str, file: Any, schema: Any) -> Any:  # noqa: ANN401 - of pyarrow
    if path.endswith(".parquet"):
        return require("pyarrow.parquet", "arrow").ParquetWriter(file, schema)
    return require("pyarrow", "arrow").ipc.new_file(file, schema)


def _parts(records: Iterable[AnyRecord], entries: list[str]) -> Iterator[list[AnyRecord]]:
    """Records that go into the table together."""
    rows: list[AnyRecord] = []
    size = 0
    for record in records:
        rows.append(record)
        size += sum(record[name].size for name in entries if name in record)
        if len(rows) >= _MOST_ROWS or size >= _MOST_BYTES:
            yield rows
            rows, size = [], 0
    if rows:
        yield rows


class _TableLayout:
    """The columns of a table, found out from the records.

    Args:
        wanted: only these columns; None for all.
        with_entries: whether entries are columns.
    """

    def __init__(self, wanted: set[str] | None, with_entries: bool) -> None:
        self._wanted = wanted
        self._with_entries = with_entries
        self._types: dict[str, Any] = {}
        """By field; None for one that becomes JSON text."""
        self._entries: dict[str, None] = {}

    @property
    def entries(self) -> list[str]:
        """The entries that are columns."""
        return list(self._entries)

    def add(self, records: list[AnyRecord]) -> None:
        """Take note of the fields and the entries of some records."""
        rows = [_fields(record) for record in records]
        for name in dict.fromkeys(name for row in rows for name in row):
            if self._is_wanted(name):
                found = _type_of([row.get(name) for row in rows])
                known = self._types.get(name, found)
                self._types[name] = None if found is None else _common_type(known, found)
        if self._with_entries:
            for record in records:
                self._entries |= dict.fromkeys(filter(self._is_wanted, record.names))
        if len(self._types) + len(self._entries) > _MOST_COLUMNS:
            raise LimitExceeded(
                "the records have too many different fields and entries for a table",
                expected=f"at most {_MOST_COLUMNS} columns",
                hint="choose columns=[…]",
                command="choose columns with --column",
            )

    def _is_wanted(self, name: str) -> bool:
        return self._wanted is None or name in self._wanted

    def schema(self) -> Any:  # noqa: ANN401 - of pyarrow
        """The columns and their types."""
        pa = require("pyarrow", "arrow")
        for name in self._entries:
            # `from_table` puts a null into the metadata of a record that lacks an entry.
            if self._types.get(name) == pa.null():
                del self._types[name]
        both = [name for name in self._entries if name in self._types or name == KEY_COLUMN]
        if both:
            raise InvalidArgument(
                "an entry has the name of another column",
                entry=both[0],
                hint="entries=False leaves out the entries",
                command="pass --fields-only to leave out the entries",
            )
        missing = sorted((self._wanted or set()) - self._types.keys() - self._entries.keys())
        if missing:
            raise InvalidArgument(
                "the column does not exist",
                expected=", ".join(map(repr, [*self._types, *self._entries])) or "columns",
                found=repr(missing[0]),
            )
        fields = [(name, kind or pa.string()) for name, kind in self._types.items()]
        binary = [(name, pa.binary()) for name in self._entries]
        return pa.schema([(KEY_COLUMN, pa.string()), *fields, *binary])

    def changed(self) -> list[str]:
        """The fields that became JSON text."""
        return [
            f"field {name!r}: as JSON text, because its values have no type in common"
            for name, kind in self._types.items()
            if kind is None
        ]

    def batch(self, records: list[AnyRecord], schema: Any) -> Any:  # noqa: ANN401 - of pyarrow
        """The rows of some records."""
        pa = require("pyarrow", "arrow")
        rows = [_fields(record) for record in records]
        columns = [pa.array([record.key for record in records], pa.string())]
        for name, kind in self._types.items():
            values = [row.get(name) for row in rows]
            if kind is None:
                values = [None if one is None else canonical(one).decode() for one in values]
            columns.append(_array(values, kind or pa.string(), name))
        for name in self._entries:
            contents = [record[name].data if name in record else None for record in records]
            columns.append(_array(contents, pa.binary(), name))
        return pa.record_batch(columns, schema=schema)


def _fields(record: AnyRecord) -> dict[str, Any]:
    """The metadata, without the key that `from_table` has put into it."""
    fields = record.metadata
    if KEY_COLUMN in fields and fields.pop(KEY_COLUMN) != record.key:
        raise InvalidArgument(
            f"the metadata of record {shorten(record.key)} has a field with the name of the keys' column",
            entry=KEY_COLUMN,
        )
    return fields


def _array(values: list[Any], kind: Any, name: str) -> Any:  # noqa: ANN401 - of pyarrow
    pa = require("pyarrow", "arrow")
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, OverflowError, TypeError) as error:
        raise BadValue(f"a value does not fit into the column: {error}", entry=name) from None


def _type_of(values: list[Any]) -> Any:  # noqa: ANN401 - of pyarrow
    """The type that all values have in common; None if a table cannot hold them in one column."""
    pa = require("pyarrow", "arrow")
    try:
        found = pa.array(values).type
    except (pa.ArrowException, OverflowError, TypeError):
        return None
    return None if _has_empty_struct(found) else found


def _common_type(first: Any, second: Any) -> Any:  # noqa: ANN401 - of pyarrow
    pa = require("pyarrow", "arrow")
    if first is None or first == second:
        return first
    schemas = [pa.schema([("x", kind)]) for kind in (first, second)]
    try:
        return pa.unify_schemas(schemas, promote_options="permissive").field("x").type
    except pa.ArrowException:
        return None


def _has_empty_struct(kind: Any) -> bool:  # noqa: ANN401 - of pyarrow
    """Whether a type has a struct without fields in it, which Parquet cannot store."""
    types = require("pyarrow.types", "arrow")
    if types.is_struct(kind):
        return not kind.num_fields or any(_has_empty_struct(part.type) for part in kind)
    return types.is_list(kind) and _has_empty_struct(kind.value_type)
