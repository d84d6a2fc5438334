"""Protobuf messages as flat fields."""

from __future__ import annotations

import base64
import json
from itertools import chain, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.errors import BadMetadata, BadValue
from shard_format.extras import require
from wshard.convert._message_columns import VECTOR_OF, ArrayColumn, Json, json_of_texts, json_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wshard.convert._message_columns import Column, Path

__all__ = ["ProtobufDecoder"]


class ProtobufDecoder:
    """Decodes protobuf messages.

    Args:
        name: of the message type.
        descriptors: a serialised `FileDescriptorSet` that has it.
        path: the file, for errors.
    """

    def __init__(self, name: str, descriptors: bytes, path: str) -> None:
        pb2 = require("google.protobuf.descriptor_pb2", "mcap")
        pools = require("google.protobuf.descriptor_pool", "mcap")
        factory = require("google.protobuf.message_factory", "mcap")
        to_json = require("google.protobuf.json_format", "mcap")
        self._errors = (require("google.protobuf.message", "mcap").Error, to_json.Error)
        self._to_json = to_json.MessageToJson
        self._unknown_fields = require("google.protobuf.unknown_fields", "mcap").UnknownFieldSet
        self.has_unknown_fields = False
        self._name = name
        self._path = path
        self.types: dict[Path, np.dtype[Any]] = {}
        self._plans: dict[str, list[Any] | None] = {}
        try:
            files = pb2.FileDescriptorSet.FromString(descriptors)
            pool = pools.DescriptorPool()
            by_name = {file.name: file for file in files.file}
            done: set[str] = set()
            for file in files.file:
                self._add_file(pool, file, by_name, done)
            descriptor = pool.FindMessageTypeByName(name)
            self._class = factory.GetMessageClass(descriptor)
            self._plan = self._compile(descriptor)
        except (*self._errors, TypeError, KeyError, ValueError, RecursionError) as error:
            raise BadMetadata(
                f"not a usable protobuf schema: {error}", path=path, entry=name
            ) from None

    def _add_file(self, pool: Any, file: Any, files: dict[str, Any], done: set[str]) -> None:  # noqa: ANN401 - of protobuf
        """Adds a file to the pool after those that it imports."""
        if file.name in done:
            return
        done.add(file.name)
        for name in file.dependency:
            if name in files:
                self._add_file(pool, files[name], files, done)
        pool.Add(file)

    def _compile(self, descriptor: Any) -> list[Any]:  # noqa: ANN401 - of protobuf
        """What to do with each field: name, action, and what that needs. Once for each type."""
        plan: list[Any] = []
        self._plans[descriptor.full_name] = None  # until it is complete
        for field in descriptor.fields:
            is_list = _is_repeated(field)
            inner = field.message_type
            if inner is not None:
                name = inner.full_name
                steps = self._plans[name] if name in self._plans else self._compile(inner)
                if inner.GetOptions().map_entry or steps is None:  # a type that contains itself
                    plan.append((field.name, "json", None, not is_list))
                elif inner.full_name in _JSON_TYPES and not is_list:
                    plan.append((field.name, "any", None, True))
                elif inner.full_name in _TIME_TYPES and not is_list:
                    plan.append((field.name, "time", None, True))
                else:
                    vector = self._vector(inner)
                    kind = "items" if is_list else "vector" if vector else "message"
                    plan.append((field.name, kind, (steps, vector), not is_list))
            elif field.cpp_type == field.CPPTYPE_STRING:
                is_bytes = field.type == field.TYPE_BYTES
                kind = "texts" if is_list else "bytes" if is_bytes else "value"
                plan.append((field.name, kind, is_bytes or None, field.has_presence))
            else:
                dtype = _CPP_TYPES[field.cpp_type]
                kind = "numbers" if is_list else "value"
                plan.append((field.name, kind, dtype, field.has_presence))
        self._plans[descriptor.full_name] = plan
        return plan

    @staticmethod
    def _vector(descriptor: Any) -> Any:  # noqa: ANN401 - names and dtype, or None
        names = VECTOR_OF.get(frozenset(field.name for field in descriptor.fields))
        kinds = {field.cpp_type for field in descriptor.fields}
        if not names or len(kinds) != 1 or any(_is_repeated(f) for f in descriptor.fields):
            return None
        dtype = _CPP_TYPES.get(kinds.pop())
        return None if dtype is None else (names, dtype)

    def parse(self, data: memoryview) -> Any:  # noqa: ANN401 - of protobuf
        try:
            message = self._class.FromString(bytes(data))
        except (*self._errors, RecursionError) as error:
            raise self._error(error) from None
        if not self.has_unknown_fields:
            self.has_unknown_fields = self._is_more(message, len(data))
        return message

    def _is_more(self, message: Any, size: int) -> bool:  # noqa: ANN401 - of protobuf
        """Whether a message has fields that its type does not have."""
        if size > _LARGE:  # a picture: finding its size would copy it
            return len(self._unknown_fields(message)) > 0
        size = message.ByteSize()
        message.DiscardUnknownFields()
        return bool(message.ByteSize() < size)

    def columns(
        self, messages: Sequence[Any], only: Path | None = None
    ) -> dict[Path, Column] | None:
        found: dict[Path, Column] = {}
        plan = [step for step in self._plan if only is None or step[0] == only[0]]
        try:
            return found if self._add(messages, plan, (), found) else None
        except (*self._errors, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise self._error(error) from None

    def _error(self, error: Exception) -> BadValue:
        return BadValue(
            f"a message is not of its protobuf type: {error}", path=self._path, entry=self._name
        )

    def _add(
        self, messages: Sequence[Any], plan: list[Any], path: Path, found: dict[Path, Column]
    ) -> bool:
        """Adds the fields of messages of one type; False if a field is set in some of them only."""
        for name, kind, what, has_presence in plan:
            if has_presence:
                count = sum([message.HasField(name) for message in messages])
                if not count:
                    continue
                if count < len(messages):
                    return False
            at = (*path, name)
            values = list(map(attrgetter(name), messages))
            if kind == "value":
                found[at] = values
                if what is not None:
                    self.types.setdefault(at, what)
            elif kind == "message":
                if not self._add(values, what[0], at, found):
                    return False
            elif kind == "vector":
                names, dtype = what[1]
                found[(*at, names)] = vectors(values, names, dtype)
            elif kind == "numbers":
                numbers = np.array(list(chain.from_iterable(values)), what)
                found[at] = ArrayColumn(what, [(len(one),) for one in values], [numbers])
            elif kind == "bytes":
                found[at] = ArrayColumn(_U8, [(len(one),) for one in values], values)
            elif kind == "time":
                found[(*at, ("sec", "nsec"))] = nanoseconds(values)
            elif kind == "texts":
                if what:  # bytes
                    values = [[base64.b64encode(item).decode() for item in one] for one in values]
                found[at] = [json_of_texts(tuple(one)) for one in values]
            elif kind == "items":
                if not self._add_items(values, what, at, found):
                    return False
            elif kind == "any":
                found[at] = [self._json(one) for one in values]
            else:
                found[at] = [self._json_field(one, name) for one in messages]
        return True

    def _json(self, message: Any) -> Json:  # noqa: ANN401 - of protobuf
        return Json(self._to_json(message, preserving_proto_field_name=True, indent=None))

    def _json_field(self, message: Any, name: str) -> Json:  # noqa: ANN401 - of protobuf
        """One field as JSON: the others may hold what JSON does not know."""
        part = type(message)()
        getattr(part, name).MergeFrom(getattr(message, name))
        return json_text(json.loads(self._json(part)).get(name))

    def _add_items(
        self,
        lists: Sequence[Any],
        what: Any,  # noqa: ANN401 - steps and vector
        at: Path,
        found: dict[Path, Column],
    ) -> bool:
        """Adds lists of messages: one array for each field of theirs, or JSON."""
        steps, vector = what
        items = list(chain.from_iterable(lists))
        counts = [len(one) for one in lists]
        inner: dict[Path, Column] = {}
        if vector:
            names, dtype = vector
            inner[None, names] = vectors(items, names, dtype)
            leaves = [((None, names), dtype, (len(names),))]
        else:
            leaves = [_leaf(*step) for step in steps]
            is_plain = None not in leaves and self._add(items, steps, (None,), inner)
            if not is_plain or (items and len(inner) < len(leaves)):
                if len(lists) > 1:  # some of them may be plain
                    return False
                found[at] = [json_text([json.loads(self._json(one)) for one in items])]
                return True
        for path, dtype, shape in leaves:
            column = inner.get(path, ())
            shapes = [(count, *shape) for count in counts]
            if isinstance(column, ArrayColumn):
                found[(*at, *path)] = ArrayColumn(dtype, shapes, column.parts)
            elif dtype is not None:
                found[(*at, *path)] = ArrayColumn(dtype, shapes, [np.array(column, dtype)])
            else:
                texts = iter(column)
                found[(*at, *path)] = [json_text(list(islice(texts, count))) for count in counts]
        return True


def vectors(messages: Sequence[Any], names: tuple[str, ...], dtype: np.dtype[Any]) -> ArrayColumn:
    """Messages of numbers as one vector each."""
    numbers = np.array(list(map(attrgetter(*names), messages)), dtype).reshape(-1)
    return ArrayColumn(dtype, [(len(names),)] * len(messages), [numbers])


def nanoseconds(times: Sequence[Any]) -> list[int]:
    """Times of protobuf."""
    return [time.seconds * 1_000_000_000 + time.nanos for time in times]


def _leaf(name: str, kind: str, what: Any, has_presence: bool) -> Any:  # noqa: ANN401 - of protobuf
    """Path, dtype (None for text) and shape of a field of the items of a list; None if it is not that simple."""
    if kind == "vector":
        names, dtype = what[1]
        return (None, name, names), dtype, (len(names),)
    if kind == "time":
        return (None, name, ("sec", "nsec")), np.dtype(np.int64), ()
    return ((None, name), what, ()) if kind == "value" and not has_presence else None


_LARGE: Final = 1 << 16
_U8: Final = np.dtype(np.uint8)
_TIME_TYPES: Final = ("google.protobuf.Timestamp", "google.protobuf.Duration")
_JSON_TYPES: Final = tuple(f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue"))
_CPP_TYPES: Final = {
    1: np.dtype(np.int32),
    2: np.dtype(np.int64),
    3: np.dtype(np.uint32),
    4: np.dtype(np.uint64),
    5: np.dtype(np.float64),
    6: np.dtype(np.float32),
    7: np.dtype(np.bool_),
    8: np.dtype(np.int32),
}


def _is_repeated(field: Any) -> bool:  # noqa: ANN401 - of protobuf
    found = getattr(field, "is_repeated", None)
    return bool(field.label == 3) if found is None else bool(found)
