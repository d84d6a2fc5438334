"""Reading MessagePack, which older writers used for metadata and entries."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from shard_format.errors import BadMetadata, LimitExceeded, shorten
from shard_format.registry import DEFAULT_LIMITS

if TYPE_CHECKING:
    from shard_format.registry import Limits

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
    """A MessagePack extension value; only its writer knows what it means."""

    code: int
    data: bytes


def unpack(data: bytes | memoryview, limits: Limits = DEFAULT_LIMITS) -> Any:  # noqa: ANN401 - any value
    """The one value that these bytes are.

    Raises:
        BadMetadata: the bytes are not exactly one value, or nested more than 128 levels deep.
        LimitExceeded: it has more values than `limits.max_json_nodes`.
    """
    reader = _Reader(bytes(data), limits.max_json_nodes)
    value = reader.value(1)
    if reader.position != len(reader.data):
        _fail("bytes follow the value")
    return value


def _fail(problem: str) -> NoReturn:
    raise BadMetadata(f"not valid MessagePack: {problem}", rule="P-MTD-3")


class _Reader:
    def __init__(self, data: bytes, most_values: int) -> None:
        self.data = data
        self.position = 0
        self.values = 0
        self.most_values = most_values

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
            return self.array(first & 0x0F, level)
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
            return self.array(self.number(_ARRAY[first]), level)
        if first in _MAP:
            return self.map(self.number(_MAP[first]), level)
        if first in _FIXED_EXTENSION or first in _EXTENSION:
            size = _FIXED_EXTENSION.get(first) or self.number(_EXTENSION[first])
            code = self.number(1)
            return Extension(code - 0x100 if code >= 0x80 else code, self.take(size))
        return _fail(f"unknown first byte {first:#x}")

    def expect(self, values: int) -> None:
        """Refuse what a list or a map claims to hold, before anything is made of it."""
        if values > len(self.data) - self.position:  # each takes at least one byte
            _fail("it ends too early")
        self.values += values
        if self.values > self.most_values:
            raise LimitExceeded(
                "the MessagePack has too many values",
                expected=f"at most {self.most_values}",
                found=f"{self.values} or more",
                rule="P-MTD-3",
                hint="pass limits=Limits(max_json_nodes=…) if you trust the file",
                command="",
            )

    def array(self, count: int, level: int) -> list[Any]:
        self.expect(count)
        return [self.value(level + 1) for _ in range(count)]

    def map(self, count: int, level: int) -> dict[Any, Any]:
        self.expect(2 * count)
        found: dict[Any, Any] = {}
        for _ in range(count):
            key = self.value(level + 1)
            if isinstance(key, (list, dict)):
                _fail("a key is a list or a map")
            if key in found:
                _fail(f"the key {shorten(str(key))} occurs twice in one map")
            found[key] = self.value(level + 1)
        return found
