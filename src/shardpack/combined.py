"""One sample from several shards: the entries of records with the same key, as if they were one record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, Union

from shard_format._json import canonical
from shard_format.errors import EntryNotFound, InvalidArgument, shorten
from shardpack import _msgpack
from shardpack._layout import MetadataEncoding
from shardpack.record import Entry

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardpack.decoding import Decoder
    from shardpack.record import Record, StoredEntry

__all__ = ["AnyRecord", "CombinedRecord", "Part"]


class Part(NamedTuple):
    """A record of one of the shards, and what is put before its names."""

    record: AnyRecord
    prefix: str = ""


class CombinedRecord:
    """A sample whose entries come from several records. Reads as a `Record` does, and as lazily.

    Args:
        key: of all parts.
        parts: the records, in order.
        later_wins: whether an entry, or a field of the metadata, of a later part replaces one of the
            same name; otherwise that is an error.
    """

    __slots__ = ("_later_wins", "_parts", "_places", "key")

    def __init__(self, key: str, parts: Sequence[Part], *, later_wins: bool) -> None:
        self.key = key
        """The name of the sample."""
        self._parts = parts
        self._later_wins = later_wins
        places: dict[str, tuple[AnyRecord, str]] = {}
        for record, prefix in parts:
            for name in record.names:
                full = prefix + name
                if full in places and not later_wins:
                    raise InvalidArgument(
                        f"two columns have an entry of this name in record {shorten(key)}",
                        entry=full,
                        hint='join({"left": …, "right": …}) puts names before the entries',
                    )
                # A replaced entry keeps its position.
                places[full] = (record, name)
        self._places = places

    @property
    def metadata(self) -> dict[str, Any]:
        """The fields of all parts."""
        fields: dict[str, Any] = {}
        for record, prefix in self._parts:
            for field, value in record.metadata.items():
                full = prefix + field
                if full in fields and not self._later_wins and fields[full] != value:
                    raise InvalidArgument(
                        f"two columns say different things about record {shorten(self.key)}",
                        expected=f"one value of {full!r}",
                        found=f"{fields[full]!r} and {value!r}",
                    )
                fields[full] = value
        return fields

    @property
    def stored_metadata(self) -> tuple[MetadataEncoding, bytes]:
        """The metadata as a shard would hold it, and how it is encoded."""
        said = [
            (prefix, *record.stored_metadata)
            for record, prefix in self._parts
            if record.stored_metadata[1]
        ]
        if not said:
            return MetadataEncoding.NONE, b""
        if len(said) == 1 and not said[0][0]:
            return said[0][1], said[0][2]
        if all(encoding is MetadataEncoding.JSON for _, encoding, _ in said):
            return MetadataEncoding.JSON, canonical(self.metadata)
        return MetadataEncoding.MESSAGEPACK, _msgpack.pack(self.metadata)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the entries, in the order of the parts."""
        return tuple(self._places)

    @property
    def content_types(self) -> tuple[str, ...]:
        """Content types of the entries, in the order of the names."""
        return tuple(entry.content_type for entry in self.file_entries())

    @property
    def size(self) -> int:
        """Bytes of all parts in their files."""
        return sum(record.size for record, _ in self._parts)

    @property
    def alignment(self) -> int:
        """The largest of the parts."""
        return max(record.alignment for record, _ in self._parts)

    def file_entries(self) -> tuple[Entry, ...]:
        """The entries, in the order of the names."""
        return tuple(map(self.__getitem__, self._places))

    def __getitem__(self, name: str) -> Entry:
        """The entry of this name."""
        place = self._places.get(name)
        if place is None:
            error = EntryNotFound(f"record {shorten(self.key)} has no entry {shorten(str(name))}")
            error.candidates, error.wanted = self.names, str(name)
            raise error
        record, own = place
        return record[own] if own == name else _RenamedEntry.of(record[own], name)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def read_all(self) -> dict[str, bytes]:
        """The content of every entry, checked and decompressed."""
        return {entry.name: entry.read() for entry in self.file_entries()}

    def decode(self, decoders: Mapping[str, Decoder] | None = None) -> dict[str, Any]:
        """Every entry as the value that its content type says; see `Entry.decode`."""
        return {entry.name: entry.decode(decoders) for entry in self.file_entries()}

    def episode(self, **options: Any) -> Any:  # noqa: ANN401 - this package does not know episodes
        """The `wshard.Episode` of the sample; lanes that one of the parts adds are in it.

        Args:
            options: what `wshard.load_wshard` takes.
        """
        from shardpack.episodes import open_episode

        return open_episode(self, options)

    def stored_entries(self, *, check: bool = True) -> list[StoredEntry]:
        """The entries as they are in their files; see `Record.stored_entries`."""
        return [
            record[own].stored_entry(check=check)._replace(name=name)
            for name, (record, own) in self._places.items()
        ]

    def __repr__(self) -> str:
        return f"<CombinedRecord {self.key!r}: {', '.join(map(repr, self.names))}>"


AnyRecord: TypeAlias = Union["Record | CombinedRecord"]
"""A record of a shard, or one that is put together from several."""


class _RenamedEntry(Entry):
    """An entry under the name that it has in a combined record."""

    __slots__ = ("_full_name",)

    _full_name: str

    @classmethod
    def of(cls, entry: Entry, name: str) -> _RenamedEntry:
        renamed = cls.__new__(cls)
        for slot in Entry.__slots__:
            setattr(renamed, slot, getattr(entry, slot))
        renamed._full_name = name
        return renamed

    @property
    def name(self) -> str:
        """With what the data set put before it."""
        return self._full_name
