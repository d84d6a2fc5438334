"""What records with the same names share while they are written, and how many there were of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shard_format.errors import InvalidArgument
from shardpack._kinds import Kinds, make_kinds
from shardpack.content_types import content_type_of, is_compressible
from shardpack.encodings import NO_COMPRESSION, Encoding, EntryCompression

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST_SHAPES: Final = 1024
# Names that the schema lists; a data set where every entry has its own name has no schema.
_MOST_NAMES: Final = 256


class Shape(NamedTuple):
    """What is the same for all records with the same names."""

    kinds: Kinds
    compressions: tuple[EntryCompression, ...]


class Shapes:
    """The shapes of the records that were made lately."""

    def __init__(self, compression: EntryCompression) -> None:
        self._compression = compression
        self._shapes: dict[tuple[Any, ...], Shape] = {}

    def get(
        self,
        names: tuple[str, ...],
        content_types: Mapping[str, str] | None,
        compression: Mapping[str, str | EntryCompression] | None,
    ) -> Shape:
        """The shape of records with these names."""
        identity: tuple[Any, ...] = names
        if content_types or compression:
            own_types = tuple((content_types or {}).items())
            own_codecs = tuple((name, str(codec)) for name, codec in (compression or {}).items())
            identity = (names, own_types, own_codecs)
        shape = self._shapes.get(identity)
        if shape is not None:
            return shape
        known = set(names)
        for what, given in (("content_types", content_types), ("compression", compression)):
            unknown = [name for name in given or () if name not in known]
            if unknown:
                raise InvalidArgument(f"{what} names an entry that is not there", entry=unknown[0])
        types = [(content_types or {}).get(name) for name in names]
        found = [
            content_type_of(name) if kind is None else kind
            for name, kind in zip(names, types, strict=True)
        ]
        kinds = make_kinds(names, found)
        codecs = [
            EntryCompression.parse(compression[name])
            if compression is not None and name in compression
            else self._compression
            if is_compressible(kind)
            else NO_COMPRESSION
            for name, kind in zip(names, found, strict=True)
        ]
        plain = (NO_COMPRESSION if c.encoding is Encoding.NONE else c for c in codecs)
        shape = Shape(kinds, tuple(plain))
        if len(self._shapes) >= _MOST_SHAPES:
            self._shapes.clear()
        self._shapes[identity] = shape
        return shape


class Schema:
    """Counts the records of a shard that have an entry of each name."""

    def __init__(self) -> None:
        # Records of the same kinds are counted together, and their names later.
        self._records: dict[Kinds, int] = {}
        self._schema: dict[str, dict[str, Any]] = {}
        self._too_many_names = False

    def go_on(self, schema: object, records: int) -> None:
        """Takes over the schema of a shard with so many records."""
        self._schema = _counted(schema)
        self._too_many_names = bool(records) and not self._schema

    def add(self, kinds: Kinds) -> None:
        """Counts a record."""
        counted = self._records
        if kinds in counted:
            counted[kinds] += 1
            return
        if len(counted) >= _MOST_SHAPES:
            self._count_names()
        counted[kinds] = 1

    def fields(self) -> dict[str, dict[str, Any]] | None:
        """Content type and number of records of every name; None if there are too many names."""
        self._count_names()
        return None if self._too_many_names else self._schema

    def _count_names(self) -> None:
        """Adds what was counted by kinds to the schema."""
        for kinds, records in self._records.items():
            for name, kind in zip(kinds.names, kinds.content_types, strict=True):
                known = self._schema.get(name)
                if known is None:
                    if len(self._schema) >= _MOST_NAMES:
                        self._too_many_names = True
                        continue
                    known = self._schema[name] = {"content_type": kind, "records": 0}
                if known["content_type"] != kind:
                    known["content_type"] = ""  # not one for all
                known["records"] += records
        self._records.clear()


def _counted(schema: object) -> dict[str, dict[str, Any]]:
    """The schema of a shard as far as it is what writers of this version make; it may be anything."""
    if not isinstance(schema, dict):
        return {}
    counted: dict[str, dict[str, Any]] = {}
    for name, known in schema.items():
        content_type, records = (
            (known.get("content_type"), known.get("records")) if isinstance(known, dict) else (0, 0)
        )
        if not isinstance(content_type, str) or type(records) is not int:
            return {}
        counted[name] = {"content_type": content_type, "records": records}
    return counted
