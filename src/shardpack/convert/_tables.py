"""Tables: Parquet, Arrow and Feather files, and pyarrow objects in memory."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from shard_format.canonical_json import parse_foreign
from shard_format.errors import BadValue, InvalidArgument, ShardError, shorten
from shard_format.extras import require
from shard_format.foreign import reading
from shard_format.sources import read_file
from shardpack.content_types import ending_of
from shardpack.convert._naming import bytes_name, entry_name, json_value, row_key
from shardpack.dataset import expand
from shardpack.writer_set import ShardWriterSet, WrittenShards

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from shardpack.writer import Output

__all__ = ["from_table"]

_ROWS: Final = 256
_ARROW_MAGIC: Final = b"ARROW1"
_PARQUET_MAGIC: Final = b"PAR1"
# Decimals; dates, times of day and both, with an optional time zone.
_EXACT: Final = re.compile(
    r"-?\d+(\.\d+)?(E[+-]?\d+)?|(-?\d{4,}-\d\d-\d\d)? ?(\d\d:\d\d:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?"
)

Fields: TypeAlias = dict[str, Any]
Put: TypeAlias = Callable[[Any, Fields, Fields], None]
"""Takes a pyarrow value that is not null and puts it into the entries or the metadata of a record."""
Note: TypeAlias = Callable[[str], None]
Convert: TypeAlias = Callable[[Any], Any]
"""Turns a pyarrow value that is not null into a plain one."""
_Column: TypeAlias = tuple[str, Put, Any]
"""Name, converter and values."""


def from_table(
    tables: Any,  # noqa: ANN401 - paths, or anything of pyarrow with rows
    output: Output,
    *,
    key: str | None = None,
    columns: Iterable[str] | None = None,
    entries: Mapping[str, str] | None = None,
    batch_rows: int = _ROWS,
    **options: Any,  # noqa: ANN401 - checked by the writer
) -> WrittenShards:
    """Make shards of tables, one record per row, with a few hundred rows in memory at a time.

    Columns of bytes become entries, and so do images and sounds of Hugging Face datasets (a struct of `bytes` and
    `path`); the suffix of the name says what they hold: `image.jpg`. Lists of numbers and tensors of a fixed shape
    become `.npy` entries. Everything else becomes metadata of the record: numbers, text, nested values, JSON. What JSON
    has no form for becomes text without a loss: times with all their digits, decimals with all of theirs, durations
    with their unit, NaN and infinities by name, bytes as base64; the result lists such columns. A null in a column of
    bytes becomes a null in the metadata instead of an entry.

    Args:
        tables: paths of `.parquet`, `.arrow` or `.feather` files, patterns as `shardpack.open` takes them, a
            `pyarrow.Table`, a `RecordBatchReader`, record batches, or a list of these.
        output: one file (a path, or an open file), or `"train-%06d.shardpack"` for a set of shards.
        key: the column that has the keys; None for the number of the row.
        columns: only these; None for all.
        entries: entry names for columns, such as `{"text": "text.txt", "img": "image.png"}`: for text that you want
            as an entry, or bytes whose type you know.
        batch_rows: rows in memory at a time.
        options: what `ShardWriterSet` takes: `overwrite`, `max_bytes`, `compression` and so on.

    Raises:
        MissingExtra: pyarrow is not installed.
        ShardError: the message says which table, row and column.
    """
    require("pyarrow", "arrow")
    if batch_rows < 1:
        raise InvalidArgument("batch_rows is too small", expected="1 or more", found=batch_rows)
    wanted = None if columns is None else list(columns)
    names = dict(entries or {})
    records = 0
    changes: Counter[str] = Counter()
    with ShardWriterSet(output, **options) as writer:
        for name, batches in _opened(tables, batch_rows):
            row = 0
            try:
                for batch in batches:
                    converted = _columns(batch, wanted, key, names, changes)
                    key_of = _key_reader(batch, key)
                    for at in range(batch.num_rows):
                        own = row_key(records) if key is None else key_of(at)
                        writer.write(own, *_record(converted, at))
                        records += 1
                        row += 1
            except ShardError as error:
                error.problem = (
                    f"row {row}: {error.problem}" if error.path is None else error.problem
                )
                raise error.located(path=name) from None
    changed = [
        f"{what} ({values:,} {'value' if values == 1 else 'values'})"
        for what, values in changes.items()
    ]
    return WrittenShards(writer.paths, records, changed=changed)


def _record(columns: list[_Column], at: int) -> tuple[Fields, Fields]:
    """The entries and the metadata of a row."""
    entries: Fields = {}
    fields: Fields = {}
    name: str | None = None
    try:
        for name, put, values in columns:
            value = values[at]
            if value.is_valid:
                put(value, entries, fields)
            else:
                fields[name] = None
    except ShardError as error:
        raise error.located(entry=name) from None
    except Exception as error:  # noqa: BLE001 - see `_damaged`
        raise _damaged(error, name) from None
    return entries, fields


def _key_reader(batch: Any, column: str | None) -> Callable[[int], str]:  # noqa: ANN401 - of pyarrow
    """A function that returns the key of a row."""
    if column is None:
        return lambda _: ""
    values = batch.column(column)
    convert = None if _is_bytes(values.type) else _plain(values.type, lambda _: None)

    def key(at: int) -> str:
        try:
            value = values[at]
            plain = convert(value) if convert is not None and value.is_valid else None
        except ShardError as error:
            raise error.located(entry=column) from None
        except Exception as error:  # noqa: BLE001 - see `_damaged`
            raise _damaged(error, column) from None
        if plain is None or isinstance(plain, (dict, list)):
            raise BadValue(
                "not a valid key",
                entry=column,
                expected="text or a number",
                found=repr(value.as_py())[:80],
            )
        return str(plain)

    return key


def _damaged(error: Exception, column: str | None = None) -> BadValue:
    """Our error for what pyarrow, NumPy and Python's times raise for damaged values: errors of many kinds."""
    return BadValue(f"not a valid value: {str(error) or type(error).__name__}", entry=column)


# --- opening


def _opened(tables: Any, rows: int) -> Iterator[tuple[str, Iterable[Any]]]:  # noqa: ANN401 - as for from_table
    """The name for errors and the batches of each table."""
    pa = require("pyarrow", "arrow")
    if isinstance(tables, (pa.Table, pa.RecordBatch)):
        yield "<table>", _batches_of([tables], rows)
    elif isinstance(tables, pa.RecordBatchReader):
        yield "<batches>", _batches_of(tables, rows)
    elif isinstance(tables, (str, os.PathLike)):
        for path in expand(tables):
            yield path, _batches_of(_read_file(path, rows), rows)
    elif hasattr(tables, "__iter__"):
        for one in tables:
            yield from _opened(one, rows)
    else:
        raise InvalidArgument(
            "not a table",
            expected="a path, a pyarrow.Table, a RecordBatchReader, or a list of these",
            found=type(tables).__name__,
        )


def _batches_of(tables: Iterable[Any], rows: int) -> Iterator[Any]:
    """Batches of at most `rows` rows, all of them checked, because Arrow does not check the offsets in a file."""
    pa = require("pyarrow", "arrow")
    try:
        for table in tables:
            whole = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
            whole.validate(full=True)
            yield from whole.to_batches(max_chunksize=rows)
    except ShardError:
        raise
    except Exception as error:  # noqa: BLE001 - see `_damaged`
        raise _damaged(error) from None


def _read_file(path: str, rows: int) -> Iterator[Any]:
    """The batches of a file; those of Parquet have `rows` rows."""
    pa = require("pyarrow", "arrow")
    start = read_file(path, 8)
    with reading(path, "the table cannot be read", expected="a Parquet, Arrow or Feather file"):
        if start.startswith(_PARQUET_MAGIC):
            parquet = require("pyarrow.parquet", "arrow")
            with parquet.ParquetFile(path) as table:
                yield from table.iter_batches(batch_size=rows)
            return
        with pa.memory_map(path) as mapped:
            yield from _ipc_batches(mapped, is_file=start.startswith(_ARROW_MAGIC))


def _ipc_batches(mapped: Any, *, is_file: bool) -> Iterator[Any]:  # noqa: ANN401 - of pyarrow
    pa = require("pyarrow", "arrow")
    if not is_file:
        yield from pa.ipc.open_stream(mapped)
        return
    reader = pa.ipc.open_file(mapped)
    for number in range(reader.num_record_batches):
        yield reader.get_batch(number)


# --- columns


def _columns(
    batch: Any,  # noqa: ANN401 - of pyarrow
    wanted: list[str] | None,
    key: str | None,
    names: Mapping[str, str],
    changes: Counter[str],
) -> list[_Column]:
    try:
        converters = _converters(batch.schema, wanted, key, names, changes)
        return [(column, put, _decoded(batch.column(column))) for column, put in converters.items()]
    except ShardError:
        raise
    except Exception as error:  # noqa: BLE001 - see `_damaged`
        raise _damaged(error) from None


def _converters(
    schema: Any,  # noqa: ANN401 - of pyarrow
    wanted: list[str] | None,
    key: str | None,
    names: Mapping[str, str],
    changes: Counter[str],
) -> dict[str, Put]:
    """A function for each column that puts its values into a record."""
    there = schema.names
    if len(set(there)) != len(there):
        raise InvalidArgument("two columns have the same name", found=", ".join(there))
    for name in (*(wanted or ()), *names, *(() if key is None else (key,))):
        if name not in there:
            raise InvalidArgument(
                "the column does not exist",
                expected=", ".join(map(repr, there)) or "columns",
                found=repr(name),
            )

    def note(column: str, what: str) -> None:
        changes[f"column {column!r}: {what}"] += 1

    return {
        field.name: _converter(
            field.name, field.type, names.get(field.name), partial(note, field.name)
        )
        for field in schema
        if wanted is None or field.name in wanted
    }


def _converter(column: str, kind: Any, name: str | None, note: Note) -> Put:  # noqa: ANN401 - a type of pyarrow
    pa = require("pyarrow", "arrow")
    types = require("pyarrow.types", "arrow")
    if types.is_dictionary(kind):
        kind = kind.value_type
    is_text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    npy = name or entry_name(column, "npy")
    if _is_bytes(kind) or (name is not None and is_text):
        return _to_entry(name or bytes_name(column), lambda value: memoryview(value.as_buffer()))
    if types.is_struct(kind) and {part.name for part in kind} == {"bytes", "path"}:
        return partial(_put_file, column, name)
    if _is_list_of_numbers(kind):
        return partial(_put_array, column, npy, _plain(kind, note), note)
    if isinstance(kind, pa.FixedShapeTensorType):
        return _to_entry(npy, lambda value: value.to_numpy())
    if name is not None:
        raise InvalidArgument(
            "this column cannot be an entry",
            entry=column,
            expected="bytes, text, an image or numbers",
            found=str(kind),
        )
    try:
        return _to_field(column, _plain(kind, note))
    except InvalidArgument as error:
        raise error.located(entry=column) from None
    except RecursionError as error:
        raise _damaged(error, column) from None


def _is_bytes(kind: Any) -> bool:  # noqa: ANN401 - a type of pyarrow
    types = require("pyarrow.types", "arrow")
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_binary_view(kind)
    )


def _plain(kind: Any, note: Note) -> Convert:  # noqa: ANN401 - a type of pyarrow
    """A function that turns values of a type into what JSON can hold, without a loss.

    Args:
        kind: the type.
        note: called for each value that becomes another kind of value, with what it becomes.
    """
    pa = require("pyarrow", "arrow")
    types = require("pyarrow.types", "arrow")

    def noted(what: str, convert: Convert) -> Convert:
        def converted(value: Any) -> Any:  # noqa: ANN401 - a scalar of pyarrow, a plain value
            note(what)
            return convert(value)

        return converted

    # Older versions of pyarrow do not have these types.
    if isinstance(kind, getattr(pa, "UuidType", ())):
        return noted("UUID as text", lambda value: str(value.as_py()))
    if isinstance(kind, getattr(pa, "JsonType", ())):
        # The JSON of other programs may have NaN in it.
        return lambda value: json_value(parse_foreign(value.as_py().encode(), "the value"))
    if isinstance(kind, pa.BaseExtensionType):
        inner = _plain(kind.storage_type, note)
        return noted(f"{kind} as {kind.storage_type}", lambda value: inner(value.value))
    if types.is_dictionary(kind):
        inner = _plain(kind.value_type, note)
        return lambda value: inner(value.value)
    if types.is_struct(kind):
        return _plain_struct(kind, note)
    if types.is_map(kind):
        pair = _plain_list([kind.key_type, kind.item_type], note)
        return lambda value: [pair(both.values()) for both in value.values]
    if hasattr(kind, "value_type"):
        item = _or_none(_plain(kind.value_type, note))
        return lambda value: [item(one) for one in value.values]
    if types.is_floating(kind):
        return lambda value: _plain_float(value.as_py(), note)
    if _is_bytes(kind):
        return noted("bytes as base64 text", lambda value: json_value(value.as_py()))
    if types.is_duration(kind):
        return noted(f"{kind} as text", lambda value: f"{value.value} {kind.unit}")
    if types.is_interval(kind):
        raise InvalidArgument(
            "intervals of months and days cannot be stored",
            hint="columns=[…] leaves the column out",
            command="pass --column for each of the others",
        )
    if types.is_temporal(kind) or types.is_decimal(kind):
        return noted(f"{kind} as text", _exact_text)
    return lambda value: value.as_py()


def _exact_text(value: Any) -> str:  # noqa: ANN401 - a scalar of pyarrow
    """A time or a decimal as text; Python's own types lose nanoseconds."""
    text: str = value.cast("string").as_py()
    if not _EXACT.fullmatch(
        text
    ):  # pyarrow writes other text for a time that the calendar does not have
        raise BadValue("not a time of the calendar", found=text)
    return text


def _or_none(convert: Convert) -> Convert:
    return lambda value: convert(value) if value.is_valid else None


def _plain_list(kinds: list[Any], note: Note) -> Convert:
    """A function for values that follow one another, each of its own type."""
    converts = [_or_none(_plain(kind, note)) for kind in kinds]
    return lambda values: [convert(value) for convert, value in zip(converts, values, strict=True)]


def _plain_struct(kind: Any, note: Note) -> Convert:  # noqa: ANN401 - a type of pyarrow
    names = [part.name for part in kind]
    if len(set(names)) != len(names):
        raise InvalidArgument(
            "two fields of a struct have the same name", found=", ".join(map(repr, names))
        )
    parts = _plain_list([part.type for part in kind], note)
    return lambda value: dict(zip(names, parts(value.values()), strict=True))


def _plain_float(value: float, note: Note) -> float | str:
    if math.isfinite(value):
        return value
    note("NaN or infinity as text")
    return str(json_value(value))


def _to_entry(name: str, convert: Callable[[Any], Any]) -> Put:
    def put(value: Any, entries: Fields, fields: Fields) -> None:  # noqa: ANN401 - a scalar of pyarrow
        entries[name] = convert(value)

    return put


def _to_field(column: str, convert: Callable[[Any], Any]) -> Put:
    def put(value: Any, entries: Fields, fields: Fields) -> None:  # noqa: ANN401 - a scalar of pyarrow
        fields[column] = convert(value)

    return put


def _decoded(column: Any) -> Any:  # noqa: ANN401 - an array of pyarrow
    """The values of a column that is dictionary-encoded."""
    types = require("pyarrow.types", "arrow")
    return column.dictionary_decode() if types.is_dictionary(column.type) else column


def _is_list_of_numbers(kind: Any) -> bool:  # noqa: ANN401 - a type of pyarrow
    types = require("pyarrow.types", "arrow")
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(
        is_list and (types.is_integer(kind.value_type) or types.is_floating(kind.value_type))
    )


def _put_array(
    column: str,
    name: str,
    convert: Convert,
    note: Note,
    value: Any,  # noqa: ANN401 - a scalar of pyarrow
    entries: Fields,
    fields: Fields,
) -> None:
    if value.values.null_count:
        note("lists with nulls in the metadata, because an array cannot hold a null")
        fields[column] = convert(value)
    else:
        entries[name] = value.values.to_numpy(zero_copy_only=False)


def _put_file(
    column: str,
    name: str | None,
    value: Any,  # noqa: ANN401 - a scalar of pyarrow
    entries: Fields,
    fields: Fields,
) -> None:
    """An image or a sound of a Hugging Face dataset."""
    content, path = value["bytes"], value["path"].as_py()
    if not content.is_valid:
        raise BadValue(
            "the row has the path of a file, not its content",
            entry=column,
            found=shorten(str(path)),
            hint="embed the files before you save the dataset",
        )
    data = memoryview(content.as_buffer())
    entries[name or entry_name(column, ending_of(data, path))] = data
    if path is not None:
        fields[f"{column}_path"] = path
