"""From a record to a sample: a dictionary of the values of its entries, and its key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from shard_format.cache import BoundedCache
from shard_format.errors import EntryNotFound, InvalidArgument, ShardError, shorten
from shard_train._batches import KEY
from shardpack.record import Record
from shardpack.values import decode_value, is_costly, is_read_in_parts
from wshard import load_wshard

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shardpack.columns import AnyRecord
    from shardpack.record import Entry

__all__ = ["METADATA", "Decode", "EntrySelection", "Sample", "SampleDecoder"]

METADATA: Final = "__metadata__"
"""As a field, all of the metadata of the record."""

Sample: TypeAlias = dict[str, Any]
Function: TypeAlias = Callable[[bytes], Any]
"""From the content of an entry to its value."""
Decode: TypeAlias = bool | Callable[[Sample], Any] | Mapping[str, Function]
"""What `SampleDataset` takes."""

_FILL: Final = 'missing="none" gives None in its place'
# Records of a dataset have few kinds of entries; if not, they must not fill the memory.
_MOST_KNOWN: Final = 256


# Episodes open in place.
_EPISODES: Final = {"application/vnd.shard.episode": load_wshard}


class ChosenEntries(NamedTuple):
    """What a selection takes of a record."""

    names: tuple[str, ...]
    """Entries that are there, in the order asked for."""
    absent: tuple[str, ...]
    """Names and patterns that fit no entry."""


def is_pattern(text: str) -> bool:
    """Whether `*`, `?` or `[` stand for something else."""
    return any(sign in text for sign in "*?[")


class EntrySelection:
    """Entries by name, or by patterns such as `"*.jpg"`.

    Raises:
        InvalidArgument: `entries` is not a list of names, or empty.
    """

    def __init__(self, entries: Iterable[str] | None) -> None:
        if isinstance(entries, (str, bytes)):
            raise InvalidArgument("entries takes a list of names", hint=f"entries=[{entries!r}]")
        self.entries = None if entries is None else tuple(entries)
        for entry in self.entries or ():
            if not isinstance(entry, str):
                raise InvalidArgument(
                    "entries are chosen by their names", found=type(entry).__name__
                )
        if self.entries == ():
            raise InvalidArgument(
                "no entry is chosen", found="an empty list", hint="entries=None takes all"
            )
        self._known: BoundedCache[tuple[str, ...], ChosenEntries] = BoundedCache(count=_MOST_KNOWN)

    def of(self, names: tuple[str, ...]) -> ChosenEntries:
        """What it takes of a record whose entries have these names."""
        if self.entries is None:
            return ChosenEntries(names, ())
        entries = self.entries
        return self._known.get_or_make(names, lambda: _choose(entries, names))


def _choose(entries: tuple[str, ...], names: tuple[str, ...]) -> ChosenEntries:
    found: dict[str, None] = {}
    absent: list[str] = []
    for entry in entries:
        # An entry may be called like a pattern.
        fitting = (
            [entry]
            if entry in names
            else [name for name in names if is_pattern(entry) and fnmatchcase(name, entry)]
        )
        found.update(dict.fromkeys(fitting))
        if not fitting:
            absent.append(entry)
    return ChosenEntries(tuple(found), tuple(absent))


class SampleDecoder:
    """Makes samples of records. Safe for threads if the functions that it is given are.

    Raises:
        InvalidArgument: `decode` is neither a bool, a function nor a dictionary of functions.
    """

    def __init__(
        self,
        decode: Decode,
        selection: EntrySelection,
        *,
        fill: bool,
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
        self._fields = {
            field: convert if convert is None else _checked(convert)
            for field, convert in fields.items()
        }
        self._known: BoundedCache[tuple[str, str], Function | None] = BoundedCache(
            count=_MOST_KNOWN
        )

    # --- what it will take

    @property
    def described(self) -> str:
        """What is chosen, as a part of a text."""
        entries = self.selection.entries
        return ("" if entries is None else f"entries={list(entries)!r}, ") + (
            f"fields={list(self._fields)!r}, " if self._fields else ""
        )

    def read_entries(self, record: Record, prefix: str) -> list[Entry]:
        """The entries of a part of a sample that are read as a whole; not episodes, which open in place."""
        names = tuple(prefix + name for name in record.names) if prefix else record.names
        entries = (record[name[len(prefix) :]] for name in self.selection.of(names).names)
        return [
            entry
            for entry in entries
            if self._gives_bytes
            or self._function(prefix + entry.name, entry.content_type) is not None
            or not (entry.content_type in _EPISODES or is_read_in_parts(entry.content_type))
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

    @property
    def takes_all_bytes(self) -> bool:
        """Whether a sample is the key and the bytes of all entries, perhaps with a function that decodes them."""
        return self._gives_bytes and self.selection.entries is None and not self._fields

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
        sample: Sample = {entry.name: self._value(entry) for entry in self._entries(record)}
        for name in self.selection.of(record.names).absent:
            if not self._fill:
                raise _no_entry(record, name)
            if not is_pattern(name):
                sample[name] = None
        _put(sample, KEY, record.key, record.key, _path(record))
        if self._fields:
            self._put_metadata(record, sample)
        return self._finished(record.key, sample)

    def keyed_sample(self, keyed: tuple[str, Sample], path: str) -> Any:  # noqa: ANN401 - what a function returns
        """The sample of a key and all bytes, if it `takes_all_bytes`; errors name `path`."""
        key, sample = keyed
        _put(sample, KEY, key, key, path)
        return self._finished(key, sample)

    def _finished(self, key: str, sample: Sample) -> Any:  # noqa: ANN401 - what a function returns
        if self.function is None:
            return sample
        try:
            return self.function(sample)
        except Exception as error:
            _explain(error, key)
            raise

    def _put_metadata(self, record: AnyRecord, sample: Sample) -> None:
        metadata = record.metadata
        for field, convert in self._fields.items():
            if field == METADATA:
                _put(sample, METADATA, metadata, record.key, _path(record))
                continue
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
            _put(sample, field, value, record.key, _path(record))

    def _value(self, entry: Entry) -> Any:  # noqa: ANN401 - any value
        if self._gives_bytes:
            return entry.read()
        function = self._function(entry.name, entry.content_type)
        if function is None:
            try:
                value = decode_value(entry, source_decoders=_EPISODES)
            except ShardError as error:
                raise (error if error.entry == entry.name else entry.failed(error)) from None
            # A view can neither be sent to another process nor outlive its file.
            return bytes(value) if isinstance(value, memoryview) else value
        content = entry.read()
        try:
            return function(content)
        except ShardError as error:
            raise entry.failed(error) from None
        except Exception as error:
            _explain(error, entry.record_key, f"entry {shorten(entry.name)}, ")
            raise

    def _function(self, name: str, content_type: str) -> Function | None:
        """The caller's own function for an entry; None leaves it to its content type."""
        if not self._by_kind:
            return None
        return self._known.get_or_make(
            (name, content_type),
            lambda: _fitting(self._by_kind, name, content_type.partition(";")[0].lower()),
        )


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


def _put(sample: Sample, name: str, value: Any, key: str, path: str | None) -> None:  # noqa: ANN401 - any value
    if name in sample:
        raise InvalidArgument(
            f"record {shorten(key)}: two values of the sample would have the name {shorten(name)}",
            path=path,
            hint="choose with entries= and fields=",
        )
    sample[name] = value


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
    return record.shard_name if isinstance(record, Record) else None


def _explain(error: Exception, key: str, part: str = "") -> None:
    """Add to the error of a caller's function which record it failed on."""
    if isinstance(error, ShardError):
        error.problem = f"{part}record {shorten(key)}: {error.problem}"
    elif hasattr(error, "add_note"):
        error.add_note(f"while decoding {part}record {shorten(key)}")
