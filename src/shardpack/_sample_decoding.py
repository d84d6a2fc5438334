"""From a record to a sample: a dictionary of the values of its entries, and its key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from shard_format.errors import EntryNotFound, InvalidArgument, ShardError, shorten
from shardpack._selection import is_pattern
from shardpack._stacking import KEY
from shardpack.decoding import decode_entry, is_costly, is_read_in_parts
from shardpack.record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardpack._selection import Selection
    from shardpack.combined import AnyRecord
    from shardpack.record import Entry

__all__ = ["METADATA", "Decode", "Sample", "SampleDecoder", "name_is_taken"]

METADATA: Final = "__metadata__"
"""Under this name a sample has the metadata of its record, if that is wanted."""

Sample: TypeAlias = dict[str, Any]
Function: TypeAlias = Callable[[bytes], Any]
"""From the content of an entry to its value."""
Decode: TypeAlias = bool | Callable[[Sample], Any] | Mapping[str, Function]
"""What `SampleDataset` takes."""

_FILL: Final = 'missing="none" gives None in its place'
# Records of a data set have few kinds of entries; if not, they must not fill the memory.
_MOST_KNOWN: Final = 256


class SampleDecoder:
    """Makes samples of records. Safe for threads if the functions that it is given are.

    Args:
        decode: as for `SampleDataset`.
        selection: the entries.
        fill: whether what a record does not have is None; else it is an error.
        metadata: whether a sample has the metadata of its record.
        fields: those of the metadata that are values of the sample, each with what is done to it.

    Raises:
        InvalidArgument: `decode` is nothing of what it may be.
    """

    def __init__(
        self,
        decode: Decode,
        selection: Selection,
        *,
        fill: bool,
        metadata: bool,
        fields: Mapping[str, Callable[[Any], Any] | None],
    ) -> None:
        self._by_kind: dict[str, Function] = {}
        self.function: Callable[[Sample], Any] | None = None
        """What decodes a sample as a whole."""
        if isinstance(decode, Mapping):
            self._by_kind = {kind: _checked(function) for kind, function in decode.items()}
        elif not isinstance(decode, bool):
            self.function = _checked(decode)
        self.selection = selection
        self._gives_bytes = decode is False or self.function is not None
        self._fill = fill
        self._metadata = metadata
        self._fields = {
            field: convert if convert is None else _checked(convert)
            for field, convert in fields.items()
        }
        self._known: dict[tuple[str, str], Function | None] = {}

    # --- what it will take

    @property
    def described(self) -> str:
        """What is chosen, as a part of a text."""
        entries = self.selection.entries
        return (
            ("" if entries is None else f"entries={list(entries)!r}, ")
            + (f"fields={list(self._fields)!r}, " if self._fields else "")
            + ("metadata=True, " if self._metadata else "")
        )

    @property
    def takes_all_bytes(self) -> bool:
        """Whether a sample is made of the bytes of all entries and the key, and of nothing else."""
        return (
            self._gives_bytes
            and self.selection.entries is None
            and not self._metadata
            and not self._fields
        )

    def read_entries(self, record: Record, prefix: str) -> list[Entry]:
        """The entries of a part of a sample that are read as a whole; not episodes, which open in place.

        Args:
            record: the part.
            prefix: what is put before the names of its entries.
        """
        names = tuple(prefix + name for name in record.names) if prefix else record.names
        entries = (record[name[len(prefix) :]] for name in self.selection.of(names).names)
        return [
            entry
            for entry in entries
            if self._gives_bytes
            or self._function(prefix + entry.name, entry.content_type) is not None
            or not is_read_in_parts(entry.content_type)
        ]

    def work_bytes(self, record: AnyRecord) -> int:
        """Bytes of a record whose decoding is worth a thread."""
        return sum(
            entry.size
            for entry in self._entries(record)
            if self.function is not None
            or entry.is_compressed
            or self._function(entry.name, entry.content_type) is not None
            or (not self._gives_bytes and is_costly(entry.content_type))
        )

    def _entries(self, record: AnyRecord) -> Sequence[Entry]:
        if self.selection.entries is None:
            return record.file_entries()
        return [record[name] for name in self.selection.of(record.names).names]

    # --- samples

    def sample(self, record: AnyRecord) -> Any:  # noqa: ANN401 - what a function returns
        """The sample of a record.

        Raises:
            ShardError: the record is damaged, or lacks an entry.
        """
        return self.finished(self.contents(record))

    def contents(self, record: AnyRecord) -> Sample:
        """The sample before the function that decodes it as a whole, if there is one."""
        sample: Sample = {entry.name: self._value(entry) for entry in self._entries(record)}
        for name in self.selection.of(record.names).absent:
            if not self._fill:
                raise _no_entry(record, name)
            if not is_pattern(name):
                sample[name] = None
        _put(record, sample, KEY, record.key)
        if self._metadata or self._fields:
            self._put_metadata(record, sample)
        return sample

    def finished(self, contents: Sample) -> Any:  # noqa: ANN401 - what a function returns
        """The sample after that function."""
        if self.function is None:
            return contents
        key = contents[KEY]
        try:
            return self.function(contents)
        except Exception as error:
            _explain(error, key)
            raise

    def _put_metadata(self, record: AnyRecord, sample: Sample) -> None:
        metadata = record.metadata
        for field, convert in self._fields.items():
            if field not in metadata and not self._fill:
                raise EntryNotFound(
                    f"record {shorten(record.key)} has no field {shorten(field)} in its metadata",
                    path=_path(record),
                    found=", ".join(map(shorten, sorted(metadata))) or "no fields",
                    hint=_FILL,
                )
            value = metadata.get(field)
            if convert is not None and field in metadata:
                try:
                    value = convert(value)
                except Exception as error:
                    _explain(error, record.key, f"field {shorten(field)}, ")
                    raise
            _put(record, sample, field, value)
        if self._metadata:
            _put(record, sample, METADATA, metadata)

    def _value(self, entry: Entry) -> Any:  # noqa: ANN401 - any value
        if self._gives_bytes:
            return entry.read()
        function = self._function(entry.name, entry.content_type)
        if function is None:
            value = decode_entry(entry)
            # A view can neither be sent to another process nor outlive its file.
            return bytes(value) if isinstance(value, memoryview) else value
        content = entry.read()
        try:
            return function(content)
        except ShardError as error:
            raise entry.failed(error) from None
        except Exception as error:
            _explain(error, entry._record.key, f"entry {shorten(entry.name)}, ")
            raise

    def _function(self, name: str, content_type: str) -> Function | None:
        """The caller's own function for an entry; None leaves it to its content type."""
        if not self._by_kind:
            return None
        kind = (name, content_type)
        try:
            return self._known[kind]
        except KeyError:
            found = _fitting(self._by_kind, name, content_type.partition(";")[0].lower())
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[kind] = found
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": {}}


def _checked(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    if not callable(function):
        raise InvalidArgument(
            "samples cannot be decoded with this",
            expected="a function, or a dictionary of functions",
            found=type(function).__name__,
        )
    return function


def _fitting(functions: Mapping[str, Function], name: str, content_type: str) -> Function | None:
    """By name, by ending (the longest one first), by content type, by a pattern of either."""
    parts = name.split(".")
    endings = (".".join(parts[at:]) for at in range(1, len(parts)))
    for key in (name, *endings, content_type):
        if key in functions:
            return functions[key]
    for key, function in functions.items():
        if is_pattern(key) and (fnmatchcase(content_type, key) or fnmatchcase(name, key)):
            return function
    return None


def _put(record: AnyRecord, sample: Sample, name: str, value: Any) -> None:  # noqa: ANN401 - any value
    if name in sample:
        raise name_is_taken(name, record.key, _path(record))
    sample[name] = value


def name_is_taken(name: str, key: str, path: str | None) -> InvalidArgument:
    """The error of an entry, or a field, that has the name of something else."""
    return InvalidArgument(
        f"record {shorten(key)}: two values of the sample would have the name {shorten(name)}",
        path=path,
        hint="choose with entries= and fields=",
    )


def _no_entry(record: AnyRecord, name: str) -> EntryNotFound:
    key, path = shorten(record.key), _path(record)
    if is_pattern(name):
        return EntryNotFound(
            f"record {key} has no entry that fits {shorten(name)}",
            path=path,
            found=", ".join(map(shorten, record.names)) or "no entries",
            hint='missing="none" allows that',
        )
    error = EntryNotFound(f"record {key} has no entry {shorten(name)}", path=path)
    error.candidates, error.wanted = record.names, name
    error.hint = error.hint or _FILL
    return error


def _path(record: AnyRecord) -> str | None:
    """The shard of a record; one that is put together has several."""
    return record._origin.name if isinstance(record, Record) else None


def _explain(error: Exception, key: str, part: str = "") -> None:
    """Says where somebody else's function failed, if the error has room for that."""
    if isinstance(error, ShardError):
        error.problem = f"{part}record {shorten(key)}: {error.problem}"
    elif hasattr(error, "add_note"):
        error.add_note(f"while decoding {part}record {shorten(key)}")
