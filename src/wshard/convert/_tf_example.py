"""`tf.train.Example` in the wire format of protocol buffers, read and written without TensorFlow.

An example is a map from names to lists of bytes, of 32-bit floats or of 64-bit integers. The nesting is fixed, so the
parser has no recursion, and what it allocates is bounded by a few times the size of its input.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, overload

import numpy as np

from shard_format.errors import BadName, BadValue

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

__all__ = ["ByteStrings", "Example", "encode_example", "parse_example"]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT: Final = 10
_KINDS: Final = {1: "bytes", 2: "floats", 3: "integers"}


class ByteStrings(Sequence[memoryview]):
    """Byte strings that lie in one buffer."""

    def __init__(self, data: memoryview, starts: array[int], stops: array[int]) -> None:
        self._data = data
        self._starts = starts
        self._stops = stops

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, item: int) -> memoryview: ...
    @overload
    def __getitem__(self, item: slice) -> ByteStrings: ...
    def __getitem__(self, item: int | slice) -> memoryview | ByteStrings:
        if isinstance(item, slice):
            return ByteStrings(self._data, self._starts[item], self._stops[item])
        return self._data[self._starts[item] : self._stops[item]]


Values: TypeAlias = "ByteStrings | NDArray[np.float32] | NDArray[np.int64]"


class Example:
    """The lists of an example by name; each is decoded when it is asked for."""

    def __init__(
        self, data: memoryview, spans: dict[str, tuple[int, list[tuple[int, int]]]]
    ) -> None:
        self._data = data
        self._spans = spans

    @property
    def names(self) -> frozenset[str]:
        """The names of its lists."""
        return frozenset(self._spans)

    def kind(self, name: str) -> str:
        """`"bytes"`, `"floats"` or `"integers"`; empty for a list without values."""
        return _KINDS.get(self._spans[name][0], "")

    def encoded(self, name: str) -> bytes:
        """One list as it is stored; `encode_example` takes it as it is."""
        kind, spans = self._spans[name]
        content = b"".join(self._data[start:stop] for start, stop in spans)
        return bytes([kind << 3 | _BYTES]) + encode_varint(len(content)) + content if kind else b""

    def values(self, name: str) -> Values:
        """The values of one list; floats are a view of the example."""
        kind, spans = self._spans[name]
        try:
            if kind == 2:
                return _floats(self._data, spans)
            if kind == 3:
                return _integers(self._data, spans)
            return _byte_strings(self._data, spans)
        except BadValue as error:
            raise error.located(entry=name) from None


def parse_example(data: bytes | memoryview) -> Example:
    """Finds the lists of an example.

    Raises:
        BadValue: the bytes are not an example; says where.
    """
    view = memoryview(data)
    spans: dict[str, tuple[int, list[tuple[int, int]]]] = {}
    for number, wire, start, stop in _fields(view, 0, len(view)):
        if number != 1 or wire != _BYTES:
            continue
        for inner, inner_wire, first, end in _fields(view, start, stop):
            if inner == 1 and inner_wire == _BYTES:
                name, value = _entry(view, first, end)
                spans[name] = value
    return Example(view, spans)


def _entry(
    view: memoryview, start: int, stop: int
) -> tuple[str, tuple[int, list[tuple[int, int]]]]:
    """One entry of the map: the name, and the kind of the list with the spans of its values."""
    name, kind = "", 0
    spans: list[tuple[int, int]] = []
    for number, wire, first, end in _fields(view, start, stop):
        if wire != _BYTES:
            continue
        if number == 1:
            try:
                name = str(view[first:end], "utf-8")
            except UnicodeDecodeError:
                raise BadName("the name of a feature is not UTF-8", offset=first) from None
        elif number == 2:
            for list_kind, list_wire, begin, last in _fields(view, first, end):
                if list_wire != _BYTES or list_kind not in _KINDS:
                    continue
                if list_kind != kind:
                    # One of three: another kind replaces what came before, the same kind goes on.
                    kind, spans = list_kind, []
                spans.append((begin, last))
    return name, (kind, spans)


def _fields(view: memoryview, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Number, wire type and span of each field of a message."""
    at = start
    while at < stop:
        first = at
        tag, at = _varint(view, at, stop)
        wire = tag & 7
        if wire == _BYTES:
            size, at = _varint(view, at, stop)
        elif wire == _FIXED32:
            size = 4
        elif wire == _FIXED64:
            size = 8
        elif wire == _VARINT:
            begin = at
            _, at = _varint(view, at, stop)
            yield tag >> 3, wire, begin, at
            continue
        else:
            raise _not_an_example("a field has an unknown wire type", first, wire)
        if size > stop - at:
            raise _not_an_example(
                "a field ends after the message that holds it", first, f"{size} bytes"
            )
        yield tag >> 3, wire, at, at + size
        at += size


def _varint(view: memoryview, at: int, stop: int) -> tuple[int, int]:
    """A number of variable length, and where it ends."""
    if at < stop and view[at] < 128:
        return view[at], at + 1
    value = 0
    for place, byte in enumerate(view[at : min(stop, at + _LONGEST_VARINT)]):
        value |= (byte & 127) << (7 * place)
        if byte < 128:
            return value & 0xFFFFFFFFFFFFFFFF, at + place + 1
    raise _not_an_example("a number does not end", at, None)


def _not_an_example(problem: str, offset: int, found: object) -> BadValue:
    return BadValue(f"not a tf.train.Example: {problem}", offset=offset, found=found)


def _byte_strings(view: memoryview, spans: list[tuple[int, int]]) -> ByteStrings:
    starts, stops = array("q"), array("q")
    for start, stop in spans:
        for number, wire, first, end in _fields(view, start, stop):
            if number == 1 and wire == _BYTES:
                starts.append(first)
                stops.append(end)
    return ByteStrings(view, starts, stops)


def _floats(view: memoryview, spans: list[tuple[int, int]]) -> NDArray[np.float32]:
    pieces: list[NDArray[np.float32]] = []
    for start, stop in spans:
        single = bytearray()
        for number, wire, first, end in _fields(view, start, stop):
            if number != 1:
                continue
            if wire == _FIXED32:
                single += view[first:end]
            elif wire == _BYTES:
                if (end - first) % 4:
                    raise _not_an_example(
                        "floats end in the middle of one", first, f"{end - first} bytes"
                    )
                if single:
                    pieces.append(np.frombuffer(single, "<f4"))
                    single = bytearray()
                pieces.append(np.frombuffer(view[first:end], "<f4"))
        if single:
            pieces.append(np.frombuffer(single, "<f4"))
    return _joined(pieces, np.dtype("<f4"))


def _integers(view: memoryview, spans: list[tuple[int, int]]) -> NDArray[np.int64]:
    pieces: list[NDArray[np.int64]] = []
    for start, stop in spans:
        single = bytearray()
        for number, wire, first, end in _fields(view, start, stop):
            if number != 1:
                continue
            if wire == _VARINT:
                single += view[first:end]
            elif wire == _BYTES:
                if single:
                    pieces.append(decode_varints(single))
                    single = bytearray()
                pieces.append(decode_varints(view[first:end], first))
        if single:
            pieces.append(decode_varints(single))
    return _joined(pieces, np.dtype("<i8"))


def _joined(pieces: list[NDArray[Any]], dtype: np.dtype[Any]) -> NDArray[Any]:
    if len(pieces) == 1:
        return pieces[0]
    return np.concatenate(pieces) if pieces else np.zeros(0, dtype)


def decode_varints(data: bytes | bytearray | memoryview, offset: int = 0) -> NDArray[np.int64]:
    """Integers of variable length that lie back to back.

    Args:
        data: the bytes.
        offset: where they are in the example, for errors.
    """
    stored = np.frombuffer(data, np.uint8)
    goes_on = stored >= 128
    if not goes_on.any():
        return stored.astype(np.int64)
    if goes_on[-1]:
        raise _not_an_example("a number does not end", offset + len(stored), None)
    longest, runs = 2, goes_on[1:] & goes_on[:-1]
    while runs.any():
        longest += 1
        if longest > _LONGEST_VARINT:
            raise _not_an_example(
                "a number is too long", offset, f"more than {_LONGEST_VARINT} bytes"
            )
        runs = runs[1:] & goes_on[: -longest + 1]
    # From the last byte of each number back to its first. Narrow types are several times as fast.
    is_end = ~goes_on
    wide = np.dtype(np.uint16 if longest <= 2 else np.uint32 if longest <= 4 else np.uint64)
    values = stored[is_end].astype(wide)
    before = np.concatenate((np.zeros(longest, np.uint8), stored))
    is_longer: NDArray[np.bool_] | None = None
    for place in range(1, longest):
        earlier = before[longest - place : -place][is_end]
        continues = earlier >= 128
        is_longer = continues if is_longer is None else is_longer & continues
        shift = is_longer.view(np.uint8) * np.uint8(7)
        values <<= shift
        values |= (earlier & 127) * is_longer
    return values.astype(np.int64) if longest <= 4 else values.view(np.int64)


# --- writing


def encode_example(features: Mapping[str, Any]) -> list[bytes]:
    """An example as pieces of bytes to write one after the other.

    Args:
        features: by name a list of byte strings, an array of float32 or int64, or what `Example.encoded` gives.
    """
    entries: list[bytes] = []
    for name in sorted(features):
        pieces = _encode_list(features[name])
        size = sum(map(len, pieces))
        key = name.encode()
        head = b"\x0a" + encode_varint(len(key)) + key + b"\x12" + encode_varint(size)
        total = len(head) + size
        entries += [b"\x0a" + encode_varint(total) + head, *pieces]
    return [b"\x0a" + encode_varint(sum(map(len, entries))), *entries]


def _encode_list(values: Any) -> list[bytes]:  # noqa: ANN401 - a list of bytes, or an array
    pieces: list[bytes] = []
    if isinstance(values, bytes):
        return [values]
    if isinstance(values, np.ndarray):
        is_float = values.dtype.kind == "f"
        packed = values.astype("<f4", copy=False).tobytes() if is_float else encode_varints(values)
        if packed:
            pieces = [b"\x0a" + encode_varint(len(packed)), packed]
        tag = b"\x12" if is_float else b"\x1a"
    else:
        tag = b"\x0a"
        for value in values:
            pieces += [b"\x0a" + encode_varint(len(value)), bytes(value)]
    return [tag + encode_varint(sum(map(len, pieces))), *pieces]


def encode_varint(value: int) -> bytes:
    """One number of 0 or more."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def encode_varints(values: NDArray[Any]) -> bytes:
    """Integers, back to back."""
    flat = values.reshape(-1)
    if not len(flat):
        return b""
    if flat.dtype == np.bool_ or (flat.min() >= 0 and flat.max() < 128):
        return flat.astype(np.uint8).tobytes()
    rest: NDArray[Any] = flat.astype(np.int64, copy=False).view(np.uint64)
    longest = -(-int(rest.max()).bit_length() // 7)
    if longest <= 4:
        rest = rest.astype(np.uint32)  # several times as fast
    groups = np.zeros((len(rest), longest), np.uint8)
    is_used = np.zeros((len(rest), longest), np.bool_)
    for place in range(longest):
        is_used[:, place] = True if place == 0 else rest != 0
        groups[:, place] = rest & 127
        rest = rest >> 7
        groups[:, place] |= (rest != 0).view(np.uint8) << 7
    return groups[is_used].tobytes()
