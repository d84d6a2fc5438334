"""MessagePack for the vectors: the shortest form of plain values, and a strict reader.

The reader gives every value as an object of one key, its type, so that JSON can say what it is.
"""

from __future__ import annotations

import struct
from typing import cast

from _decode import BrokenRuleError
from _episode_json import check
from _limits import LIMITS

RULE = "P-MTD-3"
DEEPEST = 128
Tagged = dict[str, object]

_WIDTHS = {"text": (0xD9, 0xDA, 0xDB), "bin": (0xC4, 0xC5, 0xC6), "list": (0, 0xDC, 0xDD)}
_WIDTHS["map"] = (0, 0xDE, 0xDF)


def _head(kind: str, count: int, short: int = 0, inline: int = 0) -> bytes:
    if count < inline:
        return bytes([short | count])
    for first, width in zip(_WIDTHS[kind], (1, 2, 4), strict=True):
        if first and count < 256**width:
            return bytes([first]) + count.to_bytes(width, "big")
    raise ValueError(count)


def _integer(value: int) -> bytes:
    if -32 <= value < 128:
        return value.to_bytes(1, "big", signed=value < 0)
    first = 0xD0 if value < 0 else 0xCC
    for step, width in enumerate((1, 2, 4, 8)):
        least, beyond = (-(256**width) // 2, 0) if value < 0 else (0, 256**width)
        if least <= value < beyond:
            return bytes([first + step]) + value.to_bytes(width, "big", signed=value < 0)
    raise ValueError(value)


def encode(value: object) -> bytes:
    """The shortest form, keys in the order given."""
    if value is None or isinstance(value, bool):
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, str):
        text = value.encode()
        return _head("text", len(text), 0xA0, 32) + text
    if isinstance(value, bytes):
        return _head("bin", len(value)) + value
    if isinstance(value, list):
        return _head("list", len(value), 0x90, 16) + b"".join(map(encode, value))
    fields = cast("dict[object, object]", value)
    pairs = b"".join(encode(key) + encode(item) for key, item in fields.items())
    return _head("map", len(fields), 0x80, 16) + pairs


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.values = 0

    def take(self, size: int) -> bytes:
        check(self.at + size <= len(self.data), "bad_metadata", RULE, "cut off")
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, width: int, *, signed: bool = False) -> int:
        return int.from_bytes(self.take(width), "big", signed=signed)

    def value(self, depth: int) -> Tagged:
        first = self.number(1)
        if first < 0x80 or first >= 0xE0:
            return {"int": str(first if first < 0x80 else first - 256)}
        if first < 0x90:
            return self.map(first & 15, depth)
        if first < 0xA0:
            return self.list(first & 15, depth)
        if first < 0xC0:
            return self.text(first & 31)
        if first in (0xC0, 0xC2, 0xC3):
            return {"nil": None} if first == 0xC0 else {"bool": first == 0xC3}
        if first in (0xCA, 0xCB):
            raw = self.take(4 if first == 0xCA else 8)
            number = struct.unpack(">f" if first == 0xCA else ">d", raw)[0]
            return {"float64_hex": struct.pack(">d", number).hex()}
        if 0xCC <= first <= 0xD3:
            width = 1 << (first & 3)
            return {"int": str(self.number(width, signed=first >= 0xD0))}
        for kind, widths in _WIDTHS.items():
            if first in widths:
                size = self.number((1, 2, 4)[widths.index(first)])
                return self.sized(kind, size, depth)
        if 0xC7 <= first <= 0xC9 or 0xD4 <= first <= 0xD8:
            size = 1 << first - 0xD4 if first >= 0xD4 else self.number(1 << first - 0xC7)
            code = self.number(1, signed=True)
            return {"ext": {"code": str(code), "hex": self.take(size).hex()}}
        raise BrokenRuleError("bad_metadata", f"{RULE}: first byte {first:#x}")

    def sized(self, kind: str, size: int, depth: int) -> Tagged:
        if kind == "text":
            return self.text(size)
        if kind == "bin":
            return {"bin": self.take(size).hex()}
        return self.list(size, depth) if kind == "list" else self.map(size, depth)

    def text(self, size: int) -> Tagged:
        try:
            return {"text": self.take(size).decode()}
        except UnicodeDecodeError as error:
            raise BrokenRuleError("bad_metadata", f"{RULE}: {error}") from error

    def expect(self, values: int) -> None:
        check(self.at + values <= len(self.data), "bad_metadata", RULE, "cut off")
        self.values += values
        check(self.values <= LIMITS["max_json_nodes"], "limit_exceeded", RULE, "too many values")

    def list(self, count: int, depth: int) -> Tagged:
        check(depth < DEEPEST, "bad_metadata", RULE, "too deep")
        self.expect(count)
        return {"list": [self.value(depth + 1) for _ in range(count)]}

    def map(self, count: int, depth: int) -> Tagged:
        check(depth < DEEPEST, "bad_metadata", RULE, "too deep")
        self.expect(2 * count)
        pairs: list[tuple[Tagged, Tagged]] = []
        for _ in range(count):
            key = self.value(depth + 1)
            check(not key.keys() & {"list", "map"}, "bad_metadata", RULE, "a key")
            check(all(key != known for known, _ in pairs), "bad_metadata", RULE, "repeated key")
            pairs.append((key, self.value(depth + 1)))
        return {"map": [list(pair) for pair in pairs]}


def parse_map(data: bytes) -> Tagged:
    """The one map that these bytes are."""
    reader = _Reader(data)
    value = reader.value(0)
    check(reader.at == len(data), "bad_metadata", RULE, "bytes follow")
    check("map" in value, "bad_metadata", RULE, "no map")
    return value
