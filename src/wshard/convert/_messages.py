"""Messages of MCAP files and ROS bags as channels: each topic is a group of channels with the clock of its messages.

A decoder makes flat fields of a message: a path and a value each. Paths are tuples of keys; None stands for the items of a list,
and a tuple of keys at the end for an object of numbers that became one vector (or one time in nanoseconds).
"""

from __future__ import annotations

import base64
import binascii
import json
from array import array
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import numpy as np

from shard_format.errors import BadValue
from wshard._channels import Channel, Modality, RaggedChannel, TextChannel
from wshard.convert._arrays import EncodedFrames, channel_of, image_type
from wshard.convert._sensors import (
    DEPTH,
    FOXGLOVE_POINTS,
    KINDS,
    ROS_POINTS,
    Points,
    SensorFrames,
    SensorItems,
    SensorPictures,
    SensorSteps,
    picture_size,
    pixel_layout,
    ragged,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from numpy.typing import NDArray

    from wshard._episode import Episode
    from wshard.convert._mcap_file import MessageFile, Place
    from wshard.convert._model import Notes

__all__ = [
    "VECTORS",
    "Json",
    "JsonDecoder",
    "MessageDecoder",
    "Path",
    "RawDecoder",
    "Topic",
    "Value",
    "json_text",
]

Path: TypeAlias = "tuple[str | tuple[str, ...] | None, ...]"
Value: TypeAlias = "bool | int | float | str | NDArray[Any] | None"

VECTORS: Final = (("x", "y"), ("x", "y", "z"), ("x", "y", "z", "w"), ("r", "g", "b", "a"))
"""Objects of numbers with these keys become one vector."""
TIMES: Final = (("sec", "nsec"), ("sec", "nanosec"))
"""Objects of integers with these keys are times, which become nanoseconds."""
VECTOR_OF: Final = {frozenset(names): names for names in VECTORS}
_TIME_OF: Final = {frozenset(names): names for names in TIMES}

# Values of a field stay in memory up to this many bytes if messages are larger than `_LARGE`.
_MOST_KEPT: Final = 1 << 20
_LARGE: Final = 2048
# Messages whose values are given to fields at once.
_ROWS: Final = 512
_MOST_ROWS: Final = 4 << 20
_MOST_FIELDS: Final = 1000
_SCALARS: Final = {bool, int, float, type(None)}
_PLAIN: Final = {*_SCALARS, str}
_EXACT: Final = 1 << 53
_I64: Final = 1 << 63


class Json(str):
    """A value that no array can hold, as JSON text."""

    __slots__ = ()

    def value(self) -> Any:  # noqa: ANN401 - any JSON
        """What it stands for."""
        return json.loads(self)


_TEXTS: Final = {str, Json}


def json_text(value: Any) -> Json:  # noqa: ANN401 - any JSON
    """A value as JSON text."""
    return Json(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


class MessageDecoder(Protocol):
    """Makes flat fields of the bytes of a message."""

    types: dict[Path, np.dtype[Any]]
    """The dtype of each field whose type the schema states."""

    def __call__(self, data: memoryview) -> dict[Path, Value]: ...


# --- JSON


class JsonDecoder:
    """Decodes messages in JSON.

    Args:
        entry: the topic, for errors.
        path: the file, for errors.
        has_bytes: whether the field `data` is base64.
    """

    def __init__(self, entry: str, path: str, *, has_bytes: bool = False) -> None:
        self.types: dict[Path, np.dtype[Any]] = {}
        self._entry = entry
        self._path = path
        self._has_bytes = has_bytes

    def __call__(self, data: memoryview) -> dict[Path, Value]:
        try:
            value = json.loads(str(data, "utf-8"))
            found: dict[Path, Value] = {}
            if self._has_bytes and isinstance(value, dict) and isinstance(value.get("data"), str):
                content = base64.b64decode(value.pop("data"), validate=True)
                found["data",] = np.frombuffer(content, np.uint8)
            flatten(value, (), found)
        except (ValueError, RecursionError, binascii.Error) as error:
            raise BadValue(
                f"a message is not JSON: {error}", path=self._path, entry=self._entry
            ) from None
        return found


class WholeJson:
    """Decodes messages in JSON as one text each: for topics that have too many different keys."""

    def __init__(self) -> None:
        self.types: dict[Path, np.dtype[Any]] = {}

    def __call__(self, data: memoryview) -> dict[Path, Value]:
        return {(): json_text(json.loads(bytes(data)))}


class RawDecoder:
    """Keeps the bytes of messages whose encoding is not known."""

    def __init__(self) -> None:
        self.types: dict[Path, np.dtype[Any]] = {(): np.dtype(np.uint8)}

    def __call__(self, data: memoryview) -> dict[Path, Value]:
        return {(): np.frombuffer(data, np.uint8)}


def flatten(value: Any, path: Path, found: dict[Path, Value]) -> None:  # noqa: ANN401 - any JSON
    """Adds the flat fields of a JSON value."""
    kind = type(value)
    if kind is dict:
        if path and 2 <= len(value) <= 4:
            whole = _vector_or_time(value)
            if whole is not None:
                names, number = whole
                found[(*path, names)] = number
                return
        if not value:
            found[path] = Json("{}")
        for key, one in value.items():
            if type(one) in _PLAIN:
                found[(*path, key)] = one
            else:
                flatten(one, (*path, key), found)
    elif kind is list:
        numbers = as_numbers(value)
        if numbers is not None:
            found[path] = numbers
        elif not _flatten_items(value, path, found):
            is_texts = len(value) < _MOST_FIELDS and set(map(type, value)) == {str}
            found[path] = _texts(tuple(value)) if is_texts else json_text(value)
    else:
        found[path] = value


@lru_cache(64)
def _texts(texts: tuple[str, ...]) -> Json:
    """A list of texts as JSON: the names of joints are the same in every message."""
    return json_text(texts)


def _vector_or_time(value: dict[str, Any]) -> tuple[tuple[str, ...], Value] | None:
    """An object of numbers as one vector, or of integers as nanoseconds, with its keys; None for any other."""
    keys = frozenset(value)
    names = VECTOR_OF.get(keys)
    if names:
        numbers = [value[name] for name in names]
        if set(map(type, numbers)) <= {int, float}:
            vector = as_numbers(numbers)
            return None if vector is None else (names, vector)
    names = _TIME_OF.get(keys)
    if names:
        seconds, rest = (value[name] for name in names)
        if type(seconds) is int and type(rest) is int:
            is_time = 0 <= rest < 1_000_000_000 and abs(seconds) < 1 << 33
            return (names, seconds * 1_000_000_000 + rest) if is_time else None
    return None


def as_numbers(value: list[Any]) -> NDArray[Any] | None:
    """A list of numbers, or of lists of them, as an array; None if no array holds it exactly."""
    flat, shape = value, [len(value)]
    kinds = set(map(type, flat))
    while kinds == {list}:
        lengths = set(map(len, flat))
        if len(lengths) > 1:
            return None
        shape.append(lengths.pop())
        flat = [one for inner in flat for one in inner]
        kinds = set(map(type, flat))
    if not flat:
        return np.zeros(shape) if len(shape) == 1 else None
    if type(None) in kinds and float in kinds:  # as JavaScript writes NaN
        flat = [np.nan if one is None else one for one in flat]
        kinds = set(map(type, flat))
    if kinds == {float}:
        made = np.array(flat, np.float64)
        return made if len(shape) == 1 else made.reshape(shape)
    if kinds == {int, float}:
        is_exact = all(type(one) is float or -_EXACT < one < _EXACT for one in flat)
        return np.array(flat, np.float64).reshape(shape) if is_exact else None
    if kinds == {int}:
        fits = min(flat) >= -_I64 and max(flat) < _I64
        return np.array(flat, np.int64).reshape(shape) if fits else None
    return np.array(flat, np.bool_).reshape(shape) if kinds == {bool} else None


def _flatten_items(items: list[Any], path: Path, found: dict[Path, Value]) -> bool:
    """Adds a list of objects with the same keys as one array for each field."""
    if not all(type(one) is dict and one for one in items):
        return False
    flat: list[dict[Path, Value]] = []
    for item in items:
        fields: dict[Path, Value] = {}
        flatten(item, (None,), fields)
        flat.append(fields)
    first = flat[0]
    if any(one.keys() != first.keys() for one in flat) or any(None in inner[1:] for inner in first):
        return False
    columns: dict[Path, Value] = {}
    for inner in first:
        values = [one[inner] for one in flat]
        column: Value = None
        if all(isinstance(one, np.ndarray) for one in values):
            if inner[-1:] and isinstance(inner[-1], tuple):
                column = as_numbers([one.tolist() for one in values])  # type: ignore[union-attr] # arrays
        elif not any(isinstance(one, (np.ndarray, Json)) for one in values):
            column = as_numbers(values)
            if column is None:
                column = json_text(values)
        if column is None:
            return False
        columns[(*path, *inner)] = column
    found.update(columns)
    return True


# --- fields and topics


class Field:
    """What the messages of a topic have at one path."""

    def __init__(self, dtype: np.dtype[Any] | None) -> None:
        self.dtype = dtype
        self.kind = ""
        """`number`, `text` or `array`; `mixed` if messages differ, and must be decoded again."""
        self.messages = array("q")
        """Which messages have it."""
        self.values: list[Any] = []
        """Numbers and texts."""
        self.content: bytearray | None = bytearray()
        """The bytes of arrays; None if they are read again when they are used."""
        self.nbytes = 0
        self.shapes: list[tuple[int, ...]] = []
        self.is_merged = False

    def add(self, message: int, value: Any) -> None:  # noqa: ANN401 - a Value
        """Takes the value of the next message."""
        self.messages.append(message)
        kind = self.kind
        if type(value) is np.ndarray:
            if kind != "array":
                if kind:
                    self.kind = "mixed"
                    return
                self.kind = "array"
                self.dtype = self.dtype or value.dtype
            if value.dtype != self.dtype and not self._promote(value):
                self.kind = "mixed"
                return
            self.shapes.append(value.shape)
            self.nbytes += value.nbytes
            if self.content is not None:
                self.content += value.astype(self.dtype, copy=False).tobytes()
                self._forget_large()
        elif isinstance(value, str):
            if kind != "text":
                self.kind = "mixed" if kind else "text"
            self.values.append(value)
        else:
            if kind != "number":
                self.kind = "mixed" if kind else "number"
            self.values.append(value)

    def extend(self, first: int, column: Sequence[Any]) -> None:
        """Takes the values of several messages, of which `first` is the first."""
        kinds = set(map(type, column))
        if kinds == {np.ndarray} and self.kind in ("", "array"):
            dtype = self.dtype or column[0].dtype
            if all(value.dtype is dtype for value in column) or all(
                value.dtype == dtype for value in column
            ):
                self.kind, self.dtype = "array", dtype
                self.messages.extend(range(first, first + len(column)))
                self.shapes.extend([value.shape for value in column])
                self.nbytes += sum([value.nbytes for value in column])
                if self.content is not None:
                    self.content += b"".join(column)
                    self._forget_large()
                return
        elif kinds <= _TEXTS and self.kind in ("", "text"):
            self.kind = "text"
            self.messages.extend(range(first, first + len(column)))
            self.values.extend(column)
            return
        elif kinds <= _SCALARS and self.kind in ("", "number"):
            self.kind = "number"
            self.messages.extend(range(first, first + len(column)))
            self.values.extend(column)
            return
        for number, value in enumerate(column, first):
            self.add(number, value)

    def _forget_large(self) -> None:
        if self.nbytes > _MOST_KEPT and self.nbytes > _LARGE * len(self.messages):
            self.content = None

    def _promote(self, value: NDArray[Any]) -> bool:
        """Whether an array of another dtype fits, after the dtype was widened where that is exact."""
        if not value.size:
            return True
        before, after = self.dtype, value.dtype
        if not self.nbytes:
            self.dtype = after
            return True
        if {before, after} != {np.dtype(np.int64), np.dtype(np.float64)} or self.content is None:
            return before == after
        if after == np.float64:
            old = np.frombuffer(self.content, np.int64)
            if len(old) and np.abs(old).max() >= _EXACT:
                return False
            self.content = bytearray(old.astype(np.float64).tobytes())
            self.dtype = np.dtype(np.float64)
            return True
        return bool(np.abs(value).max() < _EXACT)


class Topic:
    """The messages of one topic.

    Args:
        name: of the topic.
        schema: the name of its message type.
        decode: makes fields of the bytes of a message.
        data: gives the bytes of a message again.
        path: the file, for errors.
    """

    def __init__(
        self,
        name: str,
        schema: str,
        decode: MessageDecoder,
        data: Callable[[Place], memoryview],
        path: str,
    ) -> None:
        self.name = name
        self.schema = schema
        self.origin: dict[str, Any] = {"topic": name}
        """What each of its channels says about where it comes from."""
        self._path = path
        self._decode = decode
        self._data = data
        self.log_times = array("q")
        self.publish_times = array("q")
        self.sequences = array("L")
        self.channels = array("L")
        self._places = array("q")
        self.fields: dict[Path, Field] = {}
        self.kind = KINDS.get(schema.replace("/msg/", "/"), "")
        self._pictures: set[tuple[str, tuple[int, int] | None]] = set()
        self._keys: list[Path] = []
        self._rows: list[Collection[Value]] = []
        self._row_bytes = 0
        self._given = 0

    def add(
        self, channel: int, sequence: int, log: int, publish: int, data: memoryview, place: Place
    ) -> None:
        """Takes the next message of the file."""
        self.channels.append(channel)
        self.sequences.append(sequence)
        self.log_times.append(log)
        self.publish_times.append(publish)
        self._places.extend(place)
        self._row(self._decode(data), len(data))
        if len(self.fields) > _MOST_FIELDS and isinstance(self._decode, JsonDecoder):
            self._decode = WholeJson()
            self.fields, self._keys, self._rows, self._given = {}, [], [], 0
            for number in range(len(self.log_times)):
                self._row(self.decoded(number), len(data))

    def _row(self, found: dict[Path, Value], size: int) -> None:
        """Takes the fields of the next message; those of messages that have the same fields are kept together."""
        if self.kind == "compressed":
            self._look(found.get(("data",)))
        keys = list(found)
        if keys != self._keys:
            self._flush()
            self._keys = keys
        self._rows.append(found.values())
        self._row_bytes += size
        if self._row_bytes > _MOST_ROWS or len(self._rows) == _ROWS:
            self._flush()

    def _flush(self) -> None:
        """Gives the values of the last messages to the fields."""
        rows, self._rows, self._row_bytes = self._rows, [], 0
        first, self._given = self._given, self._given + len(rows)
        for path, *column in zip(self._keys, *rows, strict=True):
            field = self.fields.get(path)
            if field is None:
                field = self.fields[path] = Field(self._decode.types.get(path))
            field.extend(first, column)

    def _look(self, data: Any) -> None:  # noqa: ANN401 - a Value
        """Remembers what kind of picture a message has."""
        if isinstance(data, np.ndarray):
            content = np.ascontiguousarray(data).data
            self._pictures.add((image_type(content), picture_size(content)))

    def decoded(self, number: int) -> dict[Path, Value]:
        """The fields of a message, read again."""
        chunk, start, stop = self._places[3 * number : 3 * number + 3]
        return self._decode(self._data((chunk, start, stop)))

    def field_values(self, path: Path, messages: Sequence[int]) -> list[Any]:
        """The values of one field in some messages, read again; an empty list has no fields."""
        return [self.decoded(number).get(path, Json("[]")) for number in messages]

    def _merge_empty_lists(self) -> None:
        """Makes an empty list of objects an empty entry of the fields that its objects have in other messages."""
        for path in [path for path in self.fields if None in path]:
            empty = self.fields.get(path[: path.index(None)])
            field = self.fields[path]
            if empty is None or empty.kind != "array" or empty.nbytes or field.kind == "mixed":
                continue
            if not set(empty.messages).isdisjoint(field.messages):
                continue
            messages = np.array(field.messages + empty.messages, np.int64)
            order = np.argsort(messages, kind="stable").tolist()
            more: list[Any] = [(0,) if field.kind == "array" else Json("[]")] * len(empty.messages)
            old: list[Any] = field.shapes if field.kind == "array" else field.values
            both = [*old, *more]
            merged = [both[at] for at in order]
            field.messages = array("q", messages[order].tolist())
            if field.kind == "array":
                field.shapes = merged
            else:
                field.values = merged
            empty.is_merged = True
        self.fields = {path: field for path, field in self.fields.items() if not field.is_merged}

    # --- channels

    def add_to(self, episode: Episode, notes: Notes, names: FieldNames) -> None:
        """Adds the channels of the topic to an episode."""
        times = np.array(self.log_times, np.int64)
        if len(times) and (times[1:] < times[:-1]).any():
            notes.reordered(self.name, "messages sorted by log time, which ran backwards")
        if getattr(self._decode, "has_replaced_text", False):
            notes.cast(self.name, "text", "UTF-8", "bytes that are not UTF-8 were replaced")
        self._flush()
        self._merge_empty_lists()
        special = getattr(self, f"_{self.kind}", None) if self.kind else None
        done = special(episode, notes, names, times) if special else frozenset()
        if self.kind and not done:
            notes.dropped(
                f"{self.name} (as {self.kind})", "messages differ in form; their bytes are kept"
            )
        vectors: list[Channel] = []
        for path, field in self.fields.items():
            if path in done:
                continue
            name = names.take(self.name, path, notes)
            channel = self._channel(name, path, field, times)
            episode.observations[name] = channel
            vectors.append(channel)
            notes.kept(f"{self.name}.{_dotted(path)}", f"signal/{name}")
        self._name_elements(vectors)
        facts = {"publish_time_ns": self.publish_times, "sequence": self.sequences}
        if len(set(self.channels)) > 1:
            facts["channel_id"] = self.channels
        if -1 in self.publish_times[:1]:  # bags have no such time
            del facts["publish_time_ns"]
            if not self.fields:
                facts["log_time_ns"] = self.log_times
        for key, values in facts.items():
            if key == "sequence" and not any(values):
                continue
            name = names.take(self.name, (key,), notes)
            order = np.argsort(times, kind="stable")
            kept = np.array(values, np.int64 if key.endswith("_ns") else np.uint32)[order]
            unit = "ns" if key.endswith("_ns") else ""
            extra = {**self.origin, "record": key}
            episode.observations[name] = Channel(
                name, data=kept, timestamps_ns=times[order], unit=unit, extra=extra
            )
            notes.kept(f"{self.name}.{key}", f"signal/{name}")

    def _name_elements(self, channels: list[Channel]) -> None:
        """Gives vectors the names that the same messages state, as in JointState."""
        for key in ("name", "names"):
            field = self.fields.get((key,))
            if field is None or field.kind != "text" or not field.values:
                continue
            first = field.values[0]
            if isinstance(first, Json) and all(one == first for one in field.values):
                names = first.value()
                for channel in channels:
                    if channel.layout == "dense" and channel.step_shape == (len(names),):
                        channel.extra = {**channel.extra, "names": names}

    def _order(self, field: Field, times: NDArray[np.int64]) -> tuple[Any, NDArray[np.int64], bool]:
        """The messages that have a field in the order of their times, those times, and whether any moved."""
        messages = np.array(field.messages, np.int64)
        own = times[messages]
        if len(own) < 2 or not (own[1:] < own[:-1]).any():
            return np.arange(len(messages)), own, False
        order = np.argsort(own, kind="stable")
        return order, own[order], True

    def _channel(self, name: str, path: Path, field: Field, times: NDArray[np.int64]) -> Channel:
        order, own, moved = self._order(field, times)
        facts: dict[str, Any] = {
            "timestamps_ns": own,
            "extra": {
                **self.origin,
                "path": [list(key) if isinstance(key, tuple) else key for key in path],
            },
        }
        keys = path[-1] if path else None
        if isinstance(keys, tuple):
            if keys in TIMES:
                facts["unit"] = "ns"
            else:
                facts["extra"]["names"] = list(keys)
        if field.kind == "number":
            numbers = self._numbers(field)
            if numbers is not None:
                return Channel(name, data=numbers[order], **facts)
        elif field.kind == "text":
            texts = [field.values[at] for at in order] if moved else field.values
            if not any(isinstance(one, Json) for one in texts):
                return TextChannel(name, [well_formed(one) for one in texts], **facts)
            if all(isinstance(one, Json) for one in texts):
                return TextChannel(name, texts, content_type="application/json", **facts)
        elif field.kind == "array":
            made = self._array(name, path, field, order, moved, facts)
            if made is not None:
                return made
        messages = np.array(field.messages, np.int64)[order].tolist()
        values = self.field_values(path, messages)
        return TextChannel(
            name, [as_json(one) for one in values], content_type="application/json", **facts
        )

    @staticmethod
    def _numbers(field: Field) -> NDArray[Any] | None:
        """Numbers as an array; None if no dtype holds them exactly."""
        values = field.values
        if field.dtype is not None:
            return np.array(values, field.dtype)
        kinds = {type(one) for one in values}
        if kinds == {bool}:
            return np.array(values, np.bool_)
        if kinds == {int}:
            low, high = min(values), max(values)
            if low >= -_I64 and high < _I64:
                return np.array(values, np.int64)
            return np.array(values, np.uint64) if low >= 0 and high < 2 * _I64 else None
        if float not in kinds or bool in kinds:
            return None
        if any(type(one) is int and abs(one) >= _EXACT for one in values):
            return None
        return np.array([np.nan if one is None else one for one in values], np.float64)

    def _array(
        self,
        name: str,
        path: Path,
        field: Field,
        order: Any,  # noqa: ANN401 - an index
        moved: bool,
        facts: dict[str, Any],
    ) -> Channel | None:
        """Arrays as a dense or ragged channel; None if their shapes do not allow that."""
        dtype = field.dtype
        assert dtype is not None
        shapes = [field.shapes[at] for at in order] if moved else field.shapes
        tails = {shape[1:] for shape in shapes if shape != (0,)} or {()}
        if len(tails) > 1:
            return None
        tail = tails.pop()
        counts = np.array([shape[0] for shape in shapes], np.int64)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        is_dense = len(set(shapes)) == 1
        if not path:
            is_dense = False
        if field.content is None:
            messages = np.array(field.messages, np.int64)[order]
            items: Any = SensorItems(
                lambda message: self.decoded(message)[path], messages, offsets, tail, dtype
            )
            if is_dense:
                rows = SensorSteps(items, (len(shapes), *shapes[0]))
                return channel_of(name, rows, path=self._path, **facts)
            return ragged(name, items, offsets, self._path, facts)
        values = np.frombuffer(bytes(field.content), dtype).reshape(-1, *tail)
        if moved:
            starts = np.concatenate([[0], np.cumsum([shape[0] for shape in field.shapes])])
            values = np.concatenate([values[starts[at] : starts[at + 1]] for at in order])
        if is_dense:
            return Channel(name, data=values.reshape(len(shapes), *shapes[0]), **facts)
        return RaggedChannel(name, values=values, offsets=offsets, **facts)

    # --- pictures and points

    def same(self, *keys: str) -> list[Any] | None:
        """The values that fields have in all messages; None if one of them is missing or differs."""
        found = []
        for key in keys:
            field = self.fields.get((key,))
            if field is None or not field.values or len(field.messages) != len(self.log_times):
                return None
            if any(one != field.values[0] for one in field.values):
                return None
            found.append(field.values[0])
        return found

    def _bytes(
        self, times: NDArray[np.int64]
    ) -> tuple[SensorItems, NDArray[np.int64], list[int]] | None:
        """The field `data` of all messages, in the order of their times, and its lengths."""
        field = self.fields.get(("data",))
        if field is None or field.kind != "array" or len(field.messages) != len(times):
            return None
        order, own, _ = self._order(field, times)
        counts = [field.shapes[at][0] for at in order]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        content = field.content
        get: Callable[[int], Any]
        if content is None:

            def get(message: int) -> Any:  # noqa: ANN401 - an array
                return self.decoded(message)["data",]
        else:
            starts = np.concatenate([[0], np.cumsum([shape[0] for shape in field.shapes])]).tolist()
            whole = np.frombuffer(bytes(content), np.uint8)

            def get(message: int) -> Any:  # noqa: ANN401 - an array
                return whole[starts[message] : starts[message + 1]]

        return SensorItems(get, order, offsets, (), np.dtype(np.uint8)), own, counts

    def _image(
        self, episode: Episode, notes: Notes, names: FieldNames, times: NDArray[np.int64]
    ) -> frozenset[Path]:
        facts, data = self.same("height", "width", "encoding", "step"), self._bytes(times)
        if facts is None or data is None:
            return frozenset()
        height, width, encoding, step = facts
        layout = pixel_layout(encoding)
        big = self.same("is_bigendian")
        items, own, counts = data
        if layout is None or set(counts) != {step * height}:
            return frozenset()
        dtype, channels, flip = layout
        if step < width * channels * dtype.itemsize:
            return frozenset()
        rows = SensorPictures(
            items, height, width, step, channels, dtype, flip, bool(big and big[0])
        )
        name = names.take(self.name, (), notes)
        modality = Modality.DEPTH if encoding.upper() in DEPTH else Modality.RGB
        extra = {**self.origin, "encoding": encoding}
        episode.observations[name] = channel_of(
            name, rows, path=self._path, modality=modality, timestamps_ns=own, extra=extra
        )
        if flip:
            notes.reordered(f"{self.name}.data", f"{encoding} to RGB")
        notes.kept(f"{self.name}.data", f"signal/{name}")
        return frozenset(
            (key,) for key in ("data", "height", "width", "encoding", "step", "is_bigendian")
        )

    def _compressed(
        self, episode: Episode, notes: Notes, names: FieldNames, times: NDArray[np.int64]
    ) -> frozenset[Path]:
        data = self._bytes(times)
        kinds = {kind for kind, _ in self._pictures}
        if data is None or len(self._pictures) != 1 or not all(kinds):
            return frozenset()
        items, own, _ = data
        form = self.same("format")
        name = names.take(self.name, (), notes)
        extra = {**self.origin, **({"format": form[0]} if form else {})}
        frames = EncodedFrames(name, SensorFrames(items), self._path)
        is_depth = frames.dtype != np.uint8
        episode.observations[name] = channel_of(
            name,
            frames,
            path=self._path,
            modality=Modality.DEPTH if is_depth else Modality.RGB,
            timestamps_ns=own,
            extra=extra,
        )
        notes.decoded(self.name, f"{kinds.pop()} to pixels")
        return frozenset((("data",), ("format",)) if form else (("data",),))

    def _points(
        self, episode: Episode, notes: Notes, names: FieldNames, times: NDArray[np.int64]
    ) -> frozenset[Path]:
        data = self._bytes(times)
        described = point_layout(self)
        if data is None or described is None:
            return frozenset()
        fields, stride = described
        items, own, counts = data
        if any(count % stride for count in counts):
            return frozenset()
        offsets = np.concatenate([[0], np.cumsum([count // stride for count in counts])])
        kinds = {dtype for _, dtype, _ in fields}
        groups: dict[str, list[Any]] = {}
        for one in fields:
            is_first = len(kinds) == 1 or one[0] in ("x", "y", "z")
            groups.setdefault("" if is_first else one[0], []).append(one)
        for key, group in groups.items():
            if len({dtype for _, dtype, _ in group}) > 1:
                return frozenset()
            name = names.take(self.name, ("points", key) if key else ("points",), notes)
            made = Points(items, offsets, group, stride)
            extra = {**self.origin, "names": [one[0] for one in group], "points": key}
            facts = {"modality": Modality.POINTCLOUD, "timestamps_ns": own, "extra": extra}
            episode.observations[name] = ragged(name, made, offsets, self._path, facts)
            notes.kept(f"{self.name}.data", f"signal/{name}")
        gone: set[Path] = {("data",), ("point_step",), ("point_stride",), ("row_step",)}
        gone.update(path for path in self.fields if path[0] == "fields")
        gone.add(("is_bigendian",))
        return frozenset(gone)


class Places:
    """Places of messages in several files: the chunk also says which file it is in."""

    def __init__(self, files: Sequence[MessageFile]) -> None:
        self._files = files

    def place(self, number: int, place: Place) -> Place:
        """A place in one of the files as a place in all of them."""
        return (place[0] * len(self._files) + number, place[1], place[2])

    def data(self, place: Place) -> memoryview:
        """The bytes of a message."""
        chunk, number = divmod(place[0], len(self._files))
        return self._files[number].data((chunk, place[1], place[2]))


class FieldNames:
    """The names of the channels of an episode, each used once."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def take(self, topic: str, path: Path, notes: Notes) -> str:
        """A name for the channel of a field."""
        keys = [key for key in path if isinstance(key, str)]
        plain = "/".join((*topic.split("/"), *keys))
        parts = [part for part in plain.split("/") if part]
        name = "/".join("_" if part in (".", "..") else part for part in parts) or "message"
        name = name.replace("\0", "_").encode(errors="replace").decode()
        number, wanted = 1, name
        while name in self._taken:
            number += 1
            name = f"{wanted}_{number}"
        self._taken.add(name)
        if number > 1 or any(part in (".", "..") for part in parts):
            notes.renamed(f"{topic}.{_dotted(path)}", f"signal/{name}")
        return name


def _dotted(path: Path) -> str:
    return ".".join(str(key) for key in path if isinstance(key, str))


def as_json(value: Any) -> str:  # noqa: ANN401 - a Value
    """A value as JSON text."""
    if isinstance(value, Json):
        return value
    if isinstance(value, np.ndarray):
        value = value.tolist()
    return well_formed(json_text(value))


def well_formed(text: str) -> str:
    """A text that UTF-8 can hold: JSON may escape half a character."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def point_layout(topic: Topic) -> tuple[list[tuple[str, np.dtype[Any], int]], int] | None:
    """Name, dtype and offset of the fields of points, and the bytes of one point; None if messages differ."""
    is_ros = ("point_step",) in topic.fields
    facts = topic.same("point_step" if is_ros else "point_stride")
    big = topic.same("is_bigendian")
    if facts is None or not facts[0]:
        return None
    stride = facts[0]
    found = topic.decoded(0)
    keys: list[Any] = []
    for key in ("name", "offset", "datatype" if is_ros else "type", "count"):
        field = topic.fields.get(("fields", None, key))
        if field is None and key == "count":
            keys.append(None)
            continue
        if field is None or len(field.messages) != len(topic.log_times):
            return None
        value: Any = found["fields", None, key]
        if field.kind == "text":
            if any(one != value for one in field.values):
                return None
            keys.append(value.value())
        else:
            if field.content is None or bytes(field.content) != value.tobytes() * len(
                field.messages
            ):
                return None
            keys.append(value.tolist())
    names, offsets, types, counts = keys
    codes = ROS_POINTS if is_ros else FOXGLOVE_POINTS
    fields: list[tuple[str, np.dtype[Any], int]] = []
    for number, (name, offset, code) in enumerate(zip(names, offsets, types, strict=True)):
        if not isinstance(name, str) or not 0 < code < len(codes):
            return None
        dtype = np.dtype(codes[code]).newbyteorder(">" if big and big[0] else "<")
        count = counts[number] if counts else 1
        if not 0 < count <= 64 or offset < 0 or offset + count * dtype.itemsize > stride:
            return None
        fields.extend(
            (name if count == 1 else f"{name}_{one}", dtype, offset + one * dtype.itemsize)
            for one in range(count)
        )
    if is_ros and not _is_dense_cloud(topic, stride):
        return None
    return (fields, stride) if fields else None


def _is_dense_cloud(topic: Topic, stride: int) -> bool:
    """Whether the rows of clouds follow each other without gaps."""
    width, height, step = (topic.fields.get((key,)) for key in ("width", "height", "row_step"))
    data = topic.fields[("data",)]
    if width is None or height is None or step is None:
        return False
    return all(
        w * stride == s and s * h == shape[0]
        for w, h, s, shape in zip(
            width.values or (), height.values or (), step.values or (), data.shapes, strict=False
        )
    )
