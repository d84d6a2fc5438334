"""Messages of ROS 1 and ROS 2: their definitions, and their bytes as flat fields.

Definitions are parsed by `rosbags`. Messages are decoded here, straight into the fields that channels have: `rosbags` makes
Python source of the definitions in a file and runs it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from shard_format.errors import BadMetadata, BadValue, LimitExceeded
from shard_format.extras import require
from wshard.convert._json_messages import RawDecoder
from wshard.convert._message_columns import VECTORS, ArrayColumn, Json, json_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wshard.convert._message_columns import Column, MessageDecoder, Path, Value
    from wshard.convert._model import Notes

__all__ = ["RosDecoder", "definitions", "humble_definitions", "ros_decoder"]

Definitions: TypeAlias = "Mapping[str, Any]"
"""By the name of a message type: its constants and its fields, as `rosbags` has them."""

_NUMBERS: Final = {
    "bool": "?",
    "int8": "b",
    "uint8": "B",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "uint64": "Q",
    "float32": "f",
    "float64": "d",
    "char": "B",
    "octet": "B",
    "byte": "B",
}
_TIMES: Final = ("builtin_interfaces/msg/Time", "builtin_interfaces/msg/Duration")
_COUNTS: Final = {order: struct.Struct(f"{order}I").unpack_from for order in "<>"}
_BASE, _NAME, _ARRAY, _SEQUENCE = 1, 2, 3, 4
_MOST_FIELDS: Final = 2000
_MOST_PARTS: Final = 20_000
_LARGE: Final = 1 << 16
_SMALL: Final = 1 << 12
_MOST_TEXT: Final = 4 << 20
_DUMMY: Final = "structure_needs_at_least_one_member"


class UnknownType(BadMetadata):
    """A message type that nothing defines."""


def definitions(name: str, encoding: str, text: str, path: str) -> Definitions:
    """What the description of a message type defines: the type itself and those that it uses."""
    base = require("rosbags.typesys.base", "ros")
    if len(text) > _MOST_TEXT:
        raise LimitExceeded("a message definition is too long", path=path, entry=name)
    try:
        if encoding != "ros2idl":
            found: Definitions = require("rosbags.typesys.msg", "ros").get_types_from_msg(
                text, normal_name(name)
            )
            return found
        parse = require("rosbags.typesys.idl", "ros").get_types_from_idl
        line = "=" * 80 + "\n"
        parts = text.split(line)[1:] if text.startswith(f"{line}IDL: ") else [f"\n{text}"]
        return {key: one for part in parts for key, one in parse(part.partition("\n")[2]).items()}
    except (base.TypesysError, ValueError, RecursionError, AssertionError) as error:
        raise BadMetadata(
            f"cannot parse a message definition: {str(error) or type(error).__name__}",
            path=path,
            entry=name,
        ) from None


def humble_definitions() -> Definitions:
    """The standard messages of ROS 2 Humble, for bags of that time, which have no definitions."""
    typesys = require("rosbags.typesys", "ros")
    found: Definitions = typesys.get_typestore(typesys.Stores.ROS2_HUMBLE).fielddefs
    return found


def normal_name(name: str) -> str:
    """`package/msg/Type`, as ROS 2 writes it; ROS 1 leaves `msg` out."""
    package, _, rest = name.partition("/")
    return name if "/" in rest or not rest else f"{package}/msg/{rest}"


class _MessageRun:
    """Numbers one after the other, read with one call."""

    def __init__(self) -> None:
        self._parts: list[tuple[str, int | None]] = []
        """Character of `struct`; and of how many numbers an array is, which comes as bytes."""
        self._times: list[int] = []
        """Where two numbers are seconds and nanoseconds."""
        self._arrays: list[tuple[int, str]] = []
        """Where bytes are numbers, and which."""
        self._count = 0
        self.formats: dict[tuple[str, int], struct.Struct] = {}

    @property
    def is_empty(self) -> bool:
        """Whether it takes no bytes."""
        return not self._parts

    def skip(self) -> None:
        """Adds a byte that says nothing."""
        self._parts.append(("x", None))

    def take(self, char: str, count: int | None = None) -> None:
        """Adds a number, or an array of some."""
        if count is not None:
            self._arrays.append((self._count, char))
        self._parts.append((char, count))
        self._count += 1

    def take_time(self, chars: str) -> None:
        """Adds seconds and nanoseconds."""
        self._times.append(self._count - len(self._times))
        for char in chars:
            self.take(char)

    def format(self, order: str, at: int, is_aligned: bool) -> struct.Struct:
        """How to unpack it where the position is `at` after a multiple of 8."""
        found = self.formats.get((order, at))
        if found is None:
            text, position = order, at
            for char, count in self._parts:
                size = struct.calcsize(f"<{char}")
                pad = -position % size if is_aligned else 0
                nbytes = size if count is None else size * count
                text += "x" * pad + (char if count is None else f"{nbytes}s")
                position += pad + nbytes
            found = self.formats[order, at] = struct.Struct(text)
        return found

    def values(self, numbers: tuple[Any, ...], order: str) -> Sequence[Any]:
        """The values of its fields."""
        if not self._times and order == "<":
            return numbers
        found = list(numbers)
        if order == ">":
            for at, char in self._arrays:
                found[at] = swapped(found[at], np.dtype(char))
        for at in self._times:
            found[at : at + 2] = [found[at] * 1_000_000_000 + found[at + 1]]
        return found


def swapped(content: bytes | memoryview, dtype: np.dtype[Any]) -> bytes:
    """Numbers in the other order of bytes."""
    return np.frombuffer(content, dtype).byteswap().tobytes()


class _Layout:
    """A message type as a row of steps to decode it, with the path of each value that comes out."""

    def __init__(self) -> None:
        self.steps: list[Any] = []
        self.paths: list[Path] = []
        self.types: list[np.dtype[Any] | None] = []
        """The dtype of each leaf; None for text."""
        self.shapes: list[tuple[int, ...] | None] = []
        """The shape of each leaf; None if it varies."""

    @property
    def is_empty(self) -> bool:
        """Whether it takes no bytes. A list of lists without items takes none either."""
        return all(
            step.is_empty if isinstance(step, _MessageRun) else step[1] == 0 for step in self.steps
        )

    def add(self, path: Path, dtype: Any, shape: tuple[int, ...] | None) -> None:  # noqa: ANN401 - a dtype or None
        if len(self.paths) >= _MOST_FIELDS:
            raise LimitExceeded("a message type has too many fields", expected=_MOST_FIELDS)
        self.paths.append(path)
        self.types.append(None if dtype is None else np.dtype(dtype))
        self.shapes.append(shape)

    def run(self) -> _MessageRun:
        if not self.steps or not isinstance(self.steps[-1], _MessageRun):
            self.steps.append(_MessageRun())
        last: _MessageRun = self.steps[-1]
        return last


def ros_decoder(
    topic: str, kind: str, types: Definitions, path: str, notes: Notes, *, is_cdr: bool
) -> MessageDecoder:
    """What decodes the messages of a topic; a type that nothing defines leaves their bytes as they are, with a note."""
    try:
        return RosDecoder(kind, types, is_cdr=is_cdr, path=path)
    except UnknownType as error:
        notes.cast(topic, f"messages of {kind}", "their bytes", str(error))
        return RawDecoder()


class RosDecoder:
    """Decodes the messages of one type.

    Args:
        name: of the type.
        types: definitions of it and of the types that it uses.
        is_cdr: whether messages are of ROS 2 (CDR); otherwise of ROS 1.
        path: the file, for errors.
    """

    def __init__(self, name: str, types: Definitions, *, is_cdr: bool, path: str) -> None:
        self._name = normal_name(name)
        self._path = path
        self._is_cdr = is_cdr
        self._parts = 0
        self._layout = self._compile(self._name, types)
        self.types: dict[Path, np.dtype[Any]] = {
            at: dtype
            for at, dtype in zip(self._layout.paths, self._layout.types, strict=True)
            if dtype is not None
        }
        self.has_replaced_text = False

    # --- from definitions to steps

    def _compile(self, name: str, types: Definitions) -> _Layout:
        layout = _Layout()
        self._add_struct(layout, (), name, types, ())
        return layout

    def _fields(self, name: str, types: Definitions, above: tuple[str, ...]) -> list[Any]:
        if name not in types:
            raise UnknownType(
                "the definition of a message type is missing",
                path=self._path,
                entry=self._name,
                found=name,
                hint="record the bag again with definitions (ROS 2 Iron or later, or MCAP storage), or convert it with rosbags-convert",
            )
        if name in above or len(above) > 50:
            raise BadMetadata(
                "a message type contains itself", path=self._path, entry=self._name, found=name
            )
        fields: list[Any] = types[name][1]
        return fields

    def _add_struct(
        self, layout: _Layout, path: Path, name: str, types: Definitions, above: tuple[str, ...]
    ) -> None:
        fields = self._fields(name, types, above)
        above = (*above, name)
        names = tuple(field for field, _ in fields)
        bases = {desc[1][0] for _, desc in fields if desc[0] == _BASE}
        is_flat = all(desc[0] == _BASE for _, desc in fields)
        is_numbers = len(bases) == 1 and bases <= _NUMBERS.keys() - {"bool"}
        if path and names in VECTORS and is_flat and is_numbers:
            char = self._char(bases.pop())
            layout.run().take(char, len(names))
            layout.add((*path, names), f"<{char}", (len(names),))
            return
        if not fields and self._is_cdr:
            layout.run().skip()
        for field, desc in fields:
            self._add_field(layout, (*path, field), desc, types, above)

    def _char(self, base: str) -> str:
        return "b" if base == "byte" and not self._is_cdr else _NUMBERS[base]

    def _add_field(
        self,
        layout: _Layout,
        path: Path,
        desc: Any,  # noqa: ANN401 - of rosbags
        types: Definitions,
        above: tuple[str, ...],
    ) -> None:
        kind, what = desc
        self._parts += 1
        if self._parts > _MOST_PARTS:
            raise LimitExceeded(
                "a message type has too many parts", path=self._path, entry=self._name
            )
        if kind == _BASE:
            base = what[0]
            if base == "string":
                layout.steps.append(["string", None, (b"", "")])
                layout.add(path, None, ())
            else:
                char = self._number(base, path)
                run = layout.run()
                if path[-1] == _DUMMY:
                    run.skip()
                    return
                run.take(char)
                layout.add(path, f"<{char}", ())
        elif kind == _NAME and what in _TIMES:
            layout.run().take_time(self._time(what))
            layout.add((*path, ("sec", "nsec")), "<i8", ())
        elif kind == _NAME:
            self._add_struct(layout, path, what, types, above)
        else:
            item, count = what
            self._add_items(layout, path, item, count if kind == _ARRAY else None, types, above)

    def _number(self, base: str, path: Path) -> str:
        if base not in _NUMBERS:
            raise BadMetadata(
                "a message has a field of a type that cannot be read",
                path=self._path,
                entry=f"{self._name}, {'/'.join(map(str, path))}",
                expected=", ".join((*_NUMBERS, "string")),
                found=base,
            )
        return self._char(base)

    def _time(self, name: str) -> str:
        if name == _TIMES[1]:
            return "iI" if self._is_cdr else "ii"
        return "iI" if self._is_cdr else "II"

    def _add_items(
        self,
        layout: _Layout,
        path: Path,
        item: Any,  # noqa: ANN401 - of rosbags
        count: int | None,
        types: Definitions,
        above: tuple[str, ...],
    ) -> None:
        kind, what = item
        if kind == _BASE and what[0] == "string":
            layout.steps.append(["strings", count, (b"", "")])
            layout.add(path, None, ())
        elif kind == _BASE:
            char = self._number(what[0], path)
            dtype = np.dtype(f"<{char}")
            if count and dtype.kind != "b" and count * dtype.itemsize <= _SMALL:
                layout.run().take(char, count)
            else:
                layout.steps.append(("numbers", count, dtype))
            layout.add(path, dtype, None if count is None else (count,))
        else:
            inner = _Layout()
            if what in _TIMES:
                inner.run().take_time(self._time(what))
                inner.add((("sec", "nsec"),), "<i8", ())
            else:
                self._add_struct(inner, (), what, types, above)
            if inner.is_empty and count != 0:  # a message could have any number of them
                raise BadMetadata(
                    "a message has a list of items that take no bytes",
                    path=self._path,
                    entry=f"{self._name}, {'/'.join(map(str, path))}",
                    found=what,
                )
            layout.steps.append(("structs", count, inner))
            for at, leaf, shape in zip(inner.paths, inner.types, inner.shapes, strict=True):
                layout.add((*path, None, *at), None if shape is None else leaf, None)

    # --- from bytes to values

    def parse(self, data: memoryview) -> list[Any]:
        """The values of one message; arrays of numbers are bytes.

        Raises:
            BadValue: the message does not have the form that its definition says.
        """
        order, start, end = "<", 0, len(data)
        problem = ""
        if self._is_cdr:
            if end < 4 or data[0] or data[1] > 1:
                problem = "not plain CDR"
            else:
                order, start = ("<" if data[1] else ">"), 4
        # Bytes are cut faster than memory is; pictures are not copied.
        content = data[start:] if end > _LARGE else bytes(data[start:])
        try:
            values, used = self._decode(self._layout, content, 0, order)
            # CDR may be padded at its end.
            if end - start - used > (7 if self._is_cdr else 0):
                problem = problem or f"{end - start - used} bytes are left"
        except (ValueError, struct.error, OverflowError) as error:
            problem = problem or str(error)
        if problem:
            raise BadValue(
                f"a message does not fit its definition: {problem}",
                path=self._path,
                entry=self._name,
                found=f"a message of {end} bytes",
                hint=None if self._layout.paths else "the definition is missing or empty",
            )
        return values

    def columns(self, messages: Sequence[Any], only: Path | None = None) -> dict[Path, Column]:
        """The values of several messages."""
        layout = self._layout
        found: dict[Path, Column] = {}
        columns = zip(*messages, strict=True)
        for path, dtype, shape, column in zip(
            layout.paths, layout.types, layout.shapes, columns, strict=True
        ):
            if only not in (None, path):
                continue
            if dtype is None or shape == ():
                found[path] = column
                continue
            size = dtype.itemsize
            shapes = [
                one.shape if type(one) is np.ndarray else (len(one) // size,) for one in column
            ]
            found[path] = ArrayColumn(dtype, shapes, column)
        return found

    def _decode(
        self, layout: _Layout, data: bytes | memoryview, at: int, order: str
    ) -> tuple[list[Any], int]:
        values: list[Any] = []
        is_cdr = self._is_cdr
        for step in layout.steps:
            if type(step) is _MessageRun:
                form = step.formats.get((order, at & 7)) or step.format(order, at & 7, is_cdr)
                values += step.values(form.unpack_from(data, at), order)
                at += form.size
                continue
            kind = step[0]
            if kind in ("string", "strings"):
                if is_cdr:
                    at += -at & 3
                # Names of frames and joints are mostly those of the message before.
                seen, found = step[2]
                if seen and data[at : at + len(seen)] == seen:
                    at += len(seen)
                else:
                    start = at
                    found, at = self._text(kind, step[1], data, at, order)
                    if at - start < _LARGE:
                        step[2] = bytes(data[start:at]), found
                values.append(found)
                continue
            count = step[1]
            if count is None:
                if is_cdr:
                    at += -at & 3
                (count,) = _COUNTS[order](data, at)
                at += 4
            if count > len(data) - at:
                raise ValueError(f"{count} items, but {len(data) - at} bytes are left")
            if kind == "numbers":
                dtype = step[2]
                if count and is_cdr:
                    at += -at % dtype.itemsize
                content = data[at : at + count * dtype.itemsize]
                if len(content) != count * dtype.itemsize:
                    raise ValueError(f"{count} numbers, but {len(content)} bytes are left")
                at += len(content)
                if dtype.kind == "b":  # any byte but 0 is true
                    content = (np.frombuffer(content, np.uint8) != 0).tobytes()
                values.append(content if order == "<" else swapped(content, dtype))
            else:
                inner: _Layout = step[2]
                items = []
                for _ in range(count):
                    item, at = self._decode(inner, data, at, order)
                    items.append(item)
                values.extend(_columns(inner, items))
        return values, at

    def _text(
        self, kind: str, count: int | None, data: bytes | memoryview, at: int, order: str
    ) -> tuple[str, int]:
        """One string, or a list of them as JSON."""
        if kind == "string":
            return self._string(data, at, order)
        if count is None:
            count, at = self._count(data, at, order)
        if count > len(data) - at:
            raise ValueError(f"{count} strings, but {len(data) - at} bytes are left")
        texts = []
        for _ in range(count):
            text, at = self._string(data, at, order)
            texts.append(text)
        return json_text(texts), at

    def _count(self, data: bytes | memoryview, at: int, order: str) -> tuple[int, int]:
        if self._is_cdr:
            at += -at & 3
        return _COUNTS[order](data, at)[0], at + 4

    def _string(self, data: bytes | memoryview, at: int, order: str) -> tuple[str, int]:
        length, at = self._count(data, at, order)
        if length > len(data) - at:
            raise ValueError(f"a string of {length} bytes, but {len(data) - at} are left")
        end = at + length
        content = bytes(data[at : end - 1 if self._is_cdr and length else end])
        try:
            return content.decode(), end
        except UnicodeDecodeError:
            self.has_replaced_text = True
            return content.decode(errors="replace"), end


def _columns(layout: _Layout, items: list[list[Any]]) -> list[Value]:
    """The values of each leaf over all items of a list."""
    columns: list[Any] = list(zip(*items, strict=True)) if items else [()] * len(layout.paths)
    found: list[Value] = []
    for column, dtype, shape in zip(columns, layout.types, layout.shapes, strict=True):
        if dtype is None:
            found.append(json_text([plain(one) for one in column]))
        elif shape == ():
            found.append(np.array(column, dtype))
        elif shape is None:  # of different lengths
            arrays = (
                np.frombuffer(one, dtype) if type(one) is not np.ndarray else one for one in column
            )
            found.append(json_text([one.tolist() for one in arrays]))
        else:
            found.append(np.frombuffer(b"".join(column), dtype).reshape(len(items), *shape))
    return found


def plain(value: Any) -> Any:  # noqa: ANN401 - any JSON
    """What a JSON text inside another stands for."""
    return value.value() if isinstance(value, Json) else value
