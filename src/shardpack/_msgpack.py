"""MessagePack, so that metadata stored in it can be read after a plain install."""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np

from shard_format.errors import BadMetadata, InvalidArgument

_DEEPEST: Final = 128
_NUMBERS: Final = {
    0xCA: struct.Struct(">f"),
    0xCB: struct.Struct(">d"),
    0xCC: struct.Struct(">B"),
    0xCD: struct.Struct(">H"),
    0xCE: struct.Struct(">I"),
    0xCF: struct.Struct(">Q"),
    0xD0: struct.Struct(">b"),
    0xD1: struct.Struct(">h"),
    0xD2: struct.Struct(">i"),
    0xD3: struct.Struct(">q"),
}
_CONSTANTS: Final = {0xC0: None, 0xC2: False, 0xC3: True}
# Width of the length field, by the first byte.
_BINARY: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4}
_EXTENSION: Final = {0xC7: 1, 0xC8: 2, 0xC9: 4}
_FIXED_EXTENSION: Final = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
_TEXT: Final = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_ARRAY: Final = {0xDC: 2, 0xDD: 4}
_MAP: Final = {0xDE: 2, 0xDF: 4}


class Extension(NamedTuple):
    """A MessagePack extension value, which only its writer understands."""

    code: int
    data: bytes


def unpack(data: bytes | memoryview) -> Any:  # noqa: ANN401 - any value
    """The one value that these bytes are.

    Raises:
        BadMetadata: the bytes are not exactly one value, or nested more than 128 levels deep.
    """
    reader = _Reader(bytes(data))
    value = reader.value(1)
    if reader.position != len(reader.data):
        _fail("bytes follow the value")
    return value


def _fail(problem: str) -> NoReturn:
    raise BadMetadata(f"not valid MessagePack: {problem}", rule="P-MTD-3")


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def take(self, size: int) -> bytes:
        start = self.position
        stop = start + size
        if stop > len(self.data):
            _fail("it ends too early")
        self.position = stop
        return self.data[start:stop]

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "big")

    def text(self, size: int) -> str:
        try:
            return self.take(size).decode("utf-8")
        except UnicodeDecodeError as error:
            _fail(f"a string is not UTF-8: {error}")

    def value(self, level: int) -> Any:  # noqa: ANN401 - any value
        first = self.number(1)
        if level > _DEEPEST and (0x80 <= first < 0xA0 or first in _ARRAY or first in _MAP):
            _fail(f"more than {_DEEPEST} levels of nesting")
        if first < 0x80:
            return first
        if first >= 0xE0:
            return first - 0x100
        if first < 0x90:
            return self.map(first & 0x0F, level)
        if first < 0xA0:
            return [self.value(level + 1) for _ in range(first & 0x0F)]
        if first < 0xC0:
            return self.text(first & 0x1F)
        if first in _CONSTANTS:
            return _CONSTANTS[first]
        if first in _NUMBERS:
            kind = _NUMBERS[first]
            return kind.unpack(self.take(kind.size))[0]
        if first in _TEXT:
            return self.text(self.number(_TEXT[first]))
        if first in _BINARY:
            return self.take(self.number(_BINARY[first]))
        if first in _ARRAY:
            # Each item takes a byte at least: a length that lies ends the loop soon.
            return [self.value(level + 1) for _ in range(self.number(_ARRAY[first]))]
        if first in _MAP:
            return self.map(self.number(_MAP[first]), level)
        if first in _FIXED_EXTENSION or first in _EXTENSION:
            size = _FIXED_EXTENSION.get(first) or self.number(_EXTENSION[first])
            code = self.number(1)
            return Extension(code - 0x100 if code >= 0x80 else code, self.take(size))
        return _fail(f"unknown first byte {first:#x}")

    def map(self, count: int, level: int) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for _ in range(count):
            key = self.value(level + 1)
            if isinstance(key, (list, dict)):
                _fail("a key is a list or a map")
            if key in found:
                _fail(f"the key {key!r} occurs twice in one map")
            found[key] = self.value(level + 1)
        return found


def pack(value: Any) -> bytes:  # noqa: ANN401 - any value
    """The shortest form of a value; maps in the order of their keys' insertion.

    Raises:
        InvalidArgument: something in it has no form in MessagePack.
    """
    parts: list[bytes] = []
    _write(value, parts, 1)
    return b"".join(parts)


def _write(value: Any, parts: list[bytes], level: int) -> None:  # noqa: ANN401 - any value
    is_nested = isinstance(value, (list, tuple, dict)) and not isinstance(value, Extension)
    if level > _DEEPEST and is_nested:
        raise InvalidArgument("nested too deeply", expected=f"at most {_DEEPEST} levels")
    if isinstance(value, np.generic):
        value = value.item()
    if value is None:
        parts.append(b"\xc0")
    elif isinstance(value, bool):
        parts.append(b"\xc3" if value else b"\xc2")
    elif isinstance(value, int):
        parts.append(_integer(value))
    elif isinstance(value, float):
        parts.append(b"\xcb" + struct.pack(">d", value))
    elif isinstance(value, str):
        try:
            encoded = value.encode("utf-8")
        except UnicodeEncodeError:
            raise InvalidArgument("a string holds a lone surrogate", found=ascii(value)) from None
        parts += [_length(len(encoded), 0xA0, 32, (0xD9, 0xDA, 0xDB)), encoded]
    elif isinstance(value, Extension):
        size, code = len(value.data), struct.pack(">b", value.code)
        fixed = {width: first for first, width in _FIXED_EXTENSION.items()}.get(size)
        start = bytes((fixed,)) if fixed else _length(size, 0, 0, (0xC7, 0xC8, 0xC9))
        parts += [start, code, value.data]
    elif isinstance(value, (bytes, bytearray, memoryview)):
        parts += [_length(memoryview(value).nbytes, 0, 0, (0xC4, 0xC5, 0xC6)), bytes(value)]
    elif isinstance(value, (list, tuple)):
        parts.append(_length(len(value), 0x90, 16, (None, 0xDC, 0xDD)))
        for item in value:
            _write(item, parts, level + 1)
    elif isinstance(value, dict):
        parts.append(_length(len(value), 0x80, 16, (None, 0xDE, 0xDF)))
        for key, item in value.items():
            _write(key, parts, level + 1)
            _write(item, parts, level + 1)
    else:
        raise InvalidArgument(
            "this value has no form in MessagePack",
            expected="dict, list, str, bytes, int, float, bool or None",
            found=type(value).__name__,
        )


def _length(count: int, base: int, inline: int, firsts: tuple[int | None, int, int]) -> bytes:
    if count < inline:
        return bytes((base | count,))
    for first, width in zip(firsts, (1, 2, 4), strict=True):
        if first is not None and count < 1 << (8 * width):
            return bytes((first,)) + count.to_bytes(width, "big")
    raise InvalidArgument("too long for MessagePack", found=count)


def _integer(value: int) -> bytes:
    if 0 <= value < 0x80:
        return bytes((value,))
    if -32 <= value < 0:
        return bytes((value + 0x100,))
    for first in (0xCC, 0xCD, 0xCE, 0xCF) if value >= 0 else (0xD0, 0xD1, 0xD2, 0xD3):
        kind = _NUMBERS[first]
        try:
            return bytes((first,)) + kind.pack(value)
        except struct.error:
            continue
    raise InvalidArgument("an integer needs more than 64 bits", found=value)
