"""Protobuf messages as flat fields."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.errors import BadMetadata, BadValue
from shard_format.extras import require
from wshard.convert._messages import VECTOR_OF, Json, json_text

if TYPE_CHECKING:
    from wshard.convert._messages import Path, Value

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
                plan.append((field.name, kind, None, field.has_presence))
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

    def __call__(self, data: memoryview) -> dict[Path, Value]:
        message = self._class()
        found: dict[Path, Value] = {}
        try:
            message.ParseFromString(bytes(data))
            self._flatten(message, self._plan, (), found)
        except (*self._errors, ValueError, RecursionError) as error:
            raise BadValue(
                f"a message is not of its protobuf type: {error}",
                path=self._path,
                entry=self._name,
                found=f"a message of {len(data)} bytes",
            ) from None
        return found

    def _flatten(self, message: Any, plan: list[Any], path: Path, found: dict[Path, Value]) -> None:  # noqa: ANN401 - of protobuf
        for name, kind, what, has_presence in plan:
            if has_presence and not message.HasField(name):
                continue
            at = (*path, name)
            value = getattr(message, name)
            if kind == "value":
                found[at] = value
                if what is not None:
                    self.types.setdefault(at, what)
            elif kind == "message":
                self._flatten(value, what[0], at, found)
            elif kind == "vector":
                names, dtype = what[1]
                found[(*at, names)] = np.array([getattr(value, one) for one in names], dtype)
            elif kind == "numbers":
                found[at] = np.array(value, what)
            elif kind == "bytes":
                found[at] = np.frombuffer(value, np.uint8)
            elif kind == "time":
                found[(*at, ("sec", "nsec"))] = value.seconds * 1_000_000_000 + value.nanos
            elif kind == "texts":
                texts = [_text(one) for one in value]
                found[at] = json_text(texts)
            elif kind == "items":
                self._items(value, what, at, found)
            elif kind == "any":
                found[at] = self._json(value)
            else:
                whole = json.loads(self._json(message))
                found[at] = json_text(whole.get(name))

    def _json(self, message: Any) -> Json:  # noqa: ANN401 - of protobuf
        return Json(self._to_json(message, preserving_proto_field_name=True, indent=None))

    def _items(self, items: Any, what: Any, at: Path, found: dict[Path, Value]) -> None:  # noqa: ANN401 - of protobuf
        steps, vector = what
        if vector:
            names, dtype = vector
            rows = [[getattr(one, name) for name in names] for one in items]
            found[(*at, None, names)] = np.array(rows, dtype).reshape(len(rows), len(names))
            return
        flat: list[dict[Path, Value]] = []
        leaves = [_leaf(*step) for step in steps]
        if None not in leaves:
            for one in items:
                fields: dict[Path, Value] = {}
                self._flatten(one, steps, (None,), fields)
                flat.append(fields)
        if None in leaves or any(len(one) != len(leaves) for one in flat):
            found[at] = json_text([json.loads(self._json(one)) for one in items])
            return
        for inner, dtype, shape in leaves:
            values: list[Any] = [one[inner] for one in flat]
            if dtype is None:
                found[(*at, *inner)] = json_text(values)
            else:
                found[(*at, *inner)] = np.array(values, dtype).reshape(len(values), *shape)


def _leaf(name: str, kind: str, what: Any, has_presence: bool) -> Any:  # noqa: ANN401 - of protobuf
    """Path, dtype (None for text) and shape of a field of the items of a list; None if it is not that simple."""
    if kind == "vector":
        names, dtype = what[1]
        return (None, name, names), dtype, (len(names),)
    if kind == "time":
        return (None, name, ("sec", "nsec")), np.dtype(np.int64), ()
    return ((None, name), what, ()) if kind == "value" and not has_presence else None


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


def _text(value: str | bytes) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value
