"""Which columns the records of a pack have as an MDS data set: chosen from the first ones, then kept to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shard_format.errors import BadValue, InvalidArgument, shorten
from shardpack.content_types import content_type_of
from shardpack.convert._mds_encoding import (
    Encoding,
    encoding_of,
    field_encoding,
    natural_encodings,
)
from shardpack.convert._mds_layout import FILES, Places
from shardpack.convert._names import bytes_name, entry_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shardpack.combined import AnyRecord
    from shardpack.convert._mds_encoding import Data

_NULL: Final = b"null"


class Source(NamedTuple):
    """Where the values of a column come from; neither name for the keys."""

    entry: str | None = None
    field: str | None = None


class Column(NamedTuple):
    """A column, in the order in which values are stored."""

    name: str
    encoding: Encoding
    source: Source


class Columns:
    """The columns of a data set. All samples have all of them.

    Owns: which fields some records lacked.

    Args:
        first: some records, whose entries and fields the columns are.
        key: the column of the keys; None for none.
        wanted: only these; None for all.
        given: encodings that the caller chose.

    Raises:
        InvalidArgument: a name stands for no column, or for two.
    """

    def __init__(
        self,
        first: Sequence[AnyRecord],
        *,
        key: str | None,
        wanted: Iterable[str] | None,
        given: Mapping[str, str],
    ) -> None:
        sources = _sources(first, {name: one for name, one in given.items() if name != key})
        if wanted is not None:
            names = list(wanted)
            _check_names((name for name in names if name != key), sources)
            sources = {name: sources[name] for name in names if name != key}
        self._is_choice = wanted is not None
        self._entries = {one.entry: None for one in sources.values() if one.entry is not None}
        self._fields = {one.field: None for one in sources.values() if one.field is not None}
        if key is not None:
            if key in sources:
                raise InvalidArgument(
                    "an entry, or a field, is called as the column of keys",
                    entry=key,
                    hint="give another key, or None to leave the keys out",
                )
            sources[key] = Source()
        if not sources and first:
            raise InvalidArgument("there are no columns to write", hint="give a key")
        # In this order, because others that write MDS do that.
        self.columns = [
            Column(name, _encoding(name, sources[name], first, given), sources[name])
            for name in sorted(sources)
        ]
        self._key = key
        self._lacking: dict[str, str] = {}
        self._null: dict[str, str] = {}

    @property
    def places(self) -> Places:
        """What `from_mds` needs to put everything back; complete after the last record."""
        entries: dict[str, str] = {}
        fields: dict[str, str] = {}
        for name, _, source in self.columns:
            if source.entry is not None:
                entries[name] = source.entry
            elif source.field is not None:
                fields[name] = source.field
        return Places(self._key, entries, fields, frozenset(self._lacking))

    def values(self, record: AnyRecord) -> list[Data]:
        """The values of a record, in the order of the columns.

        Raises:
            InvalidArgument: it has other entries or fields than those before it.
            BadValue: a value does not fit the encoding of its column.
        """
        metadata = record.metadata
        if not self._is_choice:
            for what, names, known in (
                ("an entry", record.names, self._entries),
                ("a field", metadata, self._fields),
            ):
                for name in names:
                    if name not in known:
                        raise InvalidArgument(
                            f"record {shorten(record.key)} has {what} that the first ones lack",
                            entry=name,
                            hint="columns=[…] chooses columns that all records have",
                        )
        return [self._value(column, record, metadata) for column in self.columns]

    def _value(self, column: Column, record: AnyRecord, metadata: dict[str, Any]) -> Data:
        try:
            return self._encoded(column, record, metadata)
        except BadValue as error:
            error.problem = (
                f"record {shorten(record.key)} does not fit the encoding "
                f"{column.encoding.name!r}: {error.problem}"
            )
            other = _other(column, metadata)
            error.hint = f"give another one: encodings={{{column.name!r}: {other!r}}}"
            raise error.located(entry=column.name) from None

    def _encoded(self, column: Column, record: AnyRecord, metadata: dict[str, Any]) -> Data:
        name, encoding, (entry, field) = column
        if entry is not None:
            if entry not in record:
                raise _lacks(record.key, "entry", entry)
            return encoding.of_entry(record[entry].data)
        if field is None:
            return encoding.of_field(record.key)
        is_json = encoding.name == "json"
        if field not in metadata:
            if not is_json:
                raise _lacks(record.key, "field", field)
            self._lacking.setdefault(name, record.key)
        elif metadata[field] is None and is_json:
            self._null.setdefault(name, record.key)
        else:
            return encoding.of_field(metadata[field])
        if name in self._lacking and name in self._null:
            raise InvalidArgument(
                "a field is null in one record and lacks in another, which MDS cannot tell apart",
                entry=field,
                found=f"records {shorten(self._null[name])} and {shorten(self._lacking[name])}",
                hint="columns=[…] leaves it out",
            )
        return _NULL


def _sources(first: Sequence[AnyRecord], given: Mapping[str, str]) -> dict[str, Source]:
    """All columns that the records could have."""
    entries = {name: None for record in first for name in record.names}
    fields = {name: None for record in first for name in record.metadata}
    sources = {name: Source(entry=name) for name in entries}
    for field in fields:
        if not isinstance(field, str):
            raise InvalidArgument("a field of the metadata has no text for a name", found=field)
        name = f"metadata.{field}" if field in entries else field
        if name in sources:
            raise InvalidArgument("two columns would have this name", entry=name)
        sources[name] = Source(field=field)
    for name, encoding in given.items():
        if name in sources:
            continue
        # As it was called before `from_mds` gave it an ending.
        kind = encoding.partition(":")[0]
        ending = "npy" if kind == "ndarray" else FILES.get(kind)
        entry = bytes_name(name) if ending is None else entry_name(name, ending)
        if entry in sources and entry not in given:
            sources[name] = sources.pop(entry)
    _check_names(given, sources)
    return sources


def _check_names(names: Iterable[str], sources: Mapping[str, Source]) -> None:
    for name in names:
        if name not in sources:
            raise InvalidArgument(
                "there is no such column",
                expected=", ".join(map(repr, sources)) or "columns",
                found=repr(name),
            )


def _encoding(
    name: str, source: Source, first: Sequence[AnyRecord], given: Mapping[str, str]
) -> Encoding:
    if name in given:
        return encoding_of(given[name], name)
    if source.entry is not None:
        return _entry_encoding(name, source.entry, first)
    if source.field is None:
        return encoding_of("str", name)
    rows = [record.metadata for record in first]
    values = [row[source.field] for row in rows if source.field in row]
    is_everywhere = len(values) == len(rows)
    return encoding_of(field_encoding(values) if is_everywhere else "json", name)


def _entry_encoding(name: str, entry: str, first: Sequence[AnyRecord]) -> Encoding:
    """The best one that all of the first records fit."""
    contents = [record[entry].data for record in first if entry in record]
    *better, last = natural_encodings(content_type_of(entry))
    for one in better:
        encoding = encoding_of(one, name)
        try:
            for data in contents:
                encoding.of_entry(data)
        except BadValue:
            continue
        return encoding
    return encoding_of(last, name)


def _other(column: Column, metadata: dict[str, Any]) -> str:
    """An encoding that takes more."""
    if column.source.field is None:
        return "bytes"
    is_float = isinstance(metadata.get(column.source.field), float)
    return "float64" if is_float and column.encoding.name == "int" else "json"


def _lacks(key: str, what: str, name: str) -> InvalidArgument:
    return InvalidArgument(
        f"record {shorten(key)} lacks this {what}, and all samples of MDS have the same columns",
        entry=name,
        hint="columns=[…] leaves it out"
        + (f", encodings={{{name!r}: 'json'}} writes null" if what == "field" else ""),
    )
