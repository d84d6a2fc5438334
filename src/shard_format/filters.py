"""Reversible transformations in front of zstd (spec/shard.md, section 8, "Filtered entries").

Smooth trajectories, depth images and noisy cameras compress far better as differences of rows, or with
the bytes of their numbers sorted by significance. Everything here is about one frame: frames are
filtered one by one, so that each can be decoded alone.

    from shard_format.filters import Delta, Filters, Planes

    filters = Filters(Delta(width=4, row=28), Planes(4))
    writer.write_entry("signal/joints", joints, compression="zstd", filters=filters)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format import _zstd
from shard_format._json import canonical, parse_object
from shard_format.errors import BadFilter, BadMetadata, InvalidArgument, UnknownFilter
from shard_format.registry import DEFAULT_LIMITS

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["LARGEST_FRAME", "Delta", "Filters", "Planes", "encode_frame", "encoded_size"]

LARGEST_FRAME: Final = 64 << 20
"""Bytes of content that one filtered frame may have (S-FLT-5)."""

_DELTA_WIDTHS = (1, 2, 4, 8)
_INTEGERS = {width: np.dtype(f"<u{width}") for width in _DELTA_WIDTHS}
_PLANES_WIDTHS = (2, 4, 8)
_ORDERS = (1, 2)
_FIELDS = {"delta": {"name", "order", "row", "width"}, "planes": {"name", "width"}}
# Rows of at least so many items are added one by one: below it the calls cost more than the additions,
# above it accumulate does, which runs along columns.
_LONG_ROW = 256
_SHORT_ROW = 32
# Below it the header of a block, and its codes, cost more than they save.
_SMALLEST_BLOCK = 256
# Work that takes several passes goes in pieces that stay in the cache.
_ITEMS_AT_ONCE = 1 << 17


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """Each row but the first becomes its difference to the row before, as integers that wrap."""

    width: int
    """Bytes of an integer: 1, 2, 4 or 8."""
    row: int
    """Bytes of a row, a multiple of `width`: one step of an array."""
    order: int = 1
    """How often it is done: 1, or 2 for what moves at an even speed."""

    def __post_init__(self) -> None:
        _check_field("delta", "order", self.order, _ORDERS)
        _check_field("delta", "width", self.width, _DELTA_WIDTHS)
        if not _is_integer(self.row) or self.row <= 0 or self.row % self.width:
            raise InvalidArgument(
                "the field 'row' of the filter 'delta' has a value that is not allowed",
                expected=f"a positive multiple of {self.width}",
                found=_brief(self.row),
                rule="S-FLT-2",
            )

    def _fields(self) -> dict[str, Any]:
        return {"name": "delta", "order": self.order, "row": self.row, "width": self.width}

    def __str__(self) -> str:
        return f"delta{'' if self.order == 1 else self.order}:{self.width}"


@dataclass(frozen=True, slots=True)
class Planes:
    """The first byte of every item, then the second of every item, and so on."""

    width: int
    """Bytes of an item: 2, 4 or 8."""

    def __post_init__(self) -> None:
        _check_field("planes", "width", self.width, _PLANES_WIDTHS)

    def _fields(self) -> dict[str, Any]:
        return {"name": "planes", "width": self.width}

    def __str__(self) -> str:
        return f"planes:{self.width}"


@dataclass(frozen=True, slots=True)
class Filters:
    """What is done to each frame of an entry before it is compressed: `delta`, `planes` or both."""

    delta: Delta | None = None
    """Done first, undone last."""
    planes: Planes | None = None
    """Done last, undone first."""

    def __post_init__(self) -> None:
        if self.delta is None and self.planes is None:
            raise InvalidArgument("there is no filter", rule="S-FLT-2")
        if self.delta and self.planes and self.delta.width != self.planes.width:
            raise InvalidArgument(
                "the two filters have different widths",
                expected=f"planes of width {self.delta.width}",
                found=f"width {self.planes.width}",
                rule="S-FLT-4",
            )

    @classmethod
    def parse(cls, description: bytes) -> Filters:
        """From the text in front of a filtered entry (S-FLT-2 to S-FLT-4).

        Raises:
            UnknownFilter: it names a filter that is not known here.
            BadFilter: it breaks a rule.
        """
        return _parse(description)

    @property
    def description(self) -> bytes:
        """The canonical text that stands in front of the entry."""
        return canonical({"filters": self.to_fields()})

    def to_fields(self) -> list[dict[str, Any]]:
        """The list in it, for JSON of one's own."""
        return [step._fields() for step in (self.delta, self.planes) if step is not None]

    @property
    def unit(self) -> int:
        """The content of every frame is a multiple of so many bytes."""
        if self.delta is not None:
            return self.delta.row
        assert self.planes is not None
        return self.planes.width

    def check_frame(self, nbytes: int) -> None:
        """Whether a frame may have so many bytes of content (S-FLT-5).

        Raises:
            BadFilter: it may not.
        """
        if nbytes > LARGEST_FRAME:
            raise BadFilter(
                "a filtered frame is too large",
                expected=f"at most {LARGEST_FRAME} bytes",
                found=f"{nbytes} bytes",
                rule="S-FLT-5",
            )
        if nbytes % self.unit:
            raise BadFilter(
                "a filtered frame does not hold whole rows or items",
                expected=f"a multiple of {_brief(self.unit)} bytes",
                found=f"{nbytes} bytes",
                rule="S-FLT-5",
            )

    def apply(self, data: bytes | memoryview | NDArray[Any]) -> memoryview:
        """The filtered form of one frame, in new memory."""
        frame = _as_bytes(data)
        try:
            self.check_frame(frame.size)
        except BadFilter as error:
            raise InvalidArgument(
                error.problem, expected=error.expected, found=error.found, rule=error.rule
            ) from None
        if self.delta is not None:
            frame = _apply_delta(frame, self.delta)
        if self.planes is not None:
            frame = np.ascontiguousarray(frame.reshape(-1, self.planes.width).T).reshape(-1)
        return frame.data

    def undo_into(
        self, filtered: bytes | memoryview | NDArray[Any], out: memoryview | NDArray[Any]
    ) -> None:
        """The original of one filtered frame, into writable memory of the same size.

        Both may be the same memory if there are no planes.
        """
        source, target = _as_bytes(filtered), _as_bytes(out)
        if source.size != target.size:
            raise InvalidArgument(
                "the memory has another size than the frame",
                expected=f"{source.size} bytes",
                found=f"{target.size} bytes",
            )
        self.check_frame(source.size)
        if self.planes is not None:
            _undo_planes(source, self.planes.width, target)
        else:
            # Does nothing where both are the same memory.
            target[:] = source
        if self.delta is not None:
            _undo_delta(target, self.delta)

    def undo_in_place(self, frame: memoryview | NDArray[Any]) -> None:
        """Turns one filtered frame into its original; planes need memory for a second frame."""
        target = _as_bytes(frame)
        if self.planes is not None:
            self.undo_into(target.copy(), target)
            return
        self.check_frame(target.size)
        assert self.delta is not None
        _undo_delta(target, self.delta)

    def undo_part_into(self, frame: memoryview, start: int, out: memoryview) -> None:
        """A part of the original of one filtered frame: as much as `out` holds, from the byte `start` on.

        The frame is of no use afterwards.
        """
        delta = self.delta
        if (
            self.planes is None
            and delta is not None
            and delta.order == 1
            and delta.row >= _LONG_ROW * delta.width
            and len(out)
            and start % delta.row == 0 == len(out) % delta.row
        ):
            self.check_frame(len(frame))
            rows, wanted = (_integers(_as_bytes(memory), delta) for memory in (frame, out))
            if rows.flags.aligned and wanted.flags.aligned:
                _sum_some_rows(rows, start // delta.row, wanted)
                return
        self.undo_in_place(frame)
        out[:] = frame[start : start + len(out)]

    def __str__(self) -> str:
        """Short, for tables: `delta:4 planes:4`."""
        return " ".join(str(step) for step in (self.delta, self.planes) if step is not None)


def encode_frame(data: bytes | memoryview, level: int, filters: Filters) -> bytes:
    """One zstd frame, with content size and checksum, that holds the filtered form of the data.

    Each plane gets blocks of its own, and with them its own entropy codes: signs and exponents say
    nothing about the lowest bits. So does the first row of differences, which is none.
    """
    filtered = filters.apply(data)
    size = len(filtered)
    if filters.planes is not None:
        size //= filters.planes.width
        cuts = list(range(0, len(filtered), size)) if size else [0]
    else:
        assert filters.delta is not None
        size = filters.delta.row
        cuts = [0, size] if size < len(filtered) else [0]
    if size < _SMALLEST_BLOCK or len(cuts) == 1:
        return _zstd.compress_frame(filtered, level, checksum=True)
    parts = [filtered[a:b] for a, b in zip(cuts, [*cuts[1:], len(filtered)], strict=True)]
    # Of wider numbers all bytes but the lowest repeat.
    of_noise = filters.delta is not None and filters.delta.width == 1
    return _zstd.compress_in_blocks(parts, level, of_noise=of_noise)


def encoded_size(data: bytes | memoryview, level: int, filters: Filters | None) -> int:
    """Bytes of the one frame that the data would become; to compare filters with each other."""
    if filters is None:
        return len(_zstd.compress_frame(data, level, checksum=True))
    return len(encode_frame(data, level, filters))


# --- the description


@lru_cache(maxsize=256)
def _parse(description: bytes) -> Filters:
    # Kept, because a window of a training run is read in less time than JSON.
    try:
        value = parse_object(
            description, "the description of the filters", DEFAULT_LIMITS, rule="S-FLT-2"
        )
        steps = value.get("filters")
        if not isinstance(steps, list) or not 1 <= len(steps) <= 2:
            raise BadFilter(
                "the description has no list of one or two filters",
                found=_brief(steps),
                rule="S-FLT-2",
            )
        parsed = [_parse_step(step) for step in steps]
        delta, planes = None, None
        for step in parsed:
            if isinstance(step, Planes) and planes is None:
                planes = step
            elif isinstance(step, Delta) and delta is None and planes is None:
                delta = step
            else:
                raise BadFilter(
                    "the filters are not in an allowed order",
                    expected="delta, planes, or delta then planes",
                    found=" then ".join(str(step["name"]) for step in steps),
                    rule="S-FLT-4",
                )
        return Filters(delta, planes)
    except (BadMetadata, InvalidArgument) as error:
        raise BadFilter(
            error.problem, expected=error.expected, found=error.found, rule=error.rule
        ) from None


def _parse_step(step: object) -> Delta | Planes:
    name = step.get("name") if isinstance(step, dict) else None
    if not isinstance(step, dict) or not isinstance(name, str):
        raise BadFilter("a filter is not an object with a name", found=_brief(step), rule="S-FLT-2")
    if set(step) != _FIELDS.get(name, set(step)):
        # A field that changed the meaning would go unnoticed where a part of an entry is read.
        raise BadFilter(
            f"the filter {name!r} has other fields than it should",
            expected=", ".join(sorted(_FIELDS[name])),
            found=_brief(sorted(step)),
            rule="S-FLT-2",
        )
    if name == "delta":
        return Delta(width=step["width"], row=step["row"], order=step["order"])
    if name == "planes":
        return Planes(step["width"])
    raise UnknownFilter(
        f"the entry was filtered with {_brief(name)}, which is not known here",
        expected="delta or planes",
        rule="S-FLT-3",
        hint="a later version of the library may know it",
    )


def _check_field(name: str, field: str, value: object, allowed: tuple[int, ...]) -> None:
    if not _is_integer(value) or value not in allowed:
        raise InvalidArgument(
            f"the field {field!r} of the filter {name!r} has a value that is not allowed",
            expected=f"{', '.join(map(str, allowed[:-1]))} or {allowed[-1]}",
            found=_brief(value),
            rule="S-FLT-2",
        )


def _is_integer(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _brief(value: object) -> str:
    """What a file says, short enough for a message."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


# --- the bytes of one frame


def _as_bytes(data: bytes | memoryview | NDArray[Any]) -> NDArray[np.uint8]:
    if isinstance(data, np.ndarray):
        return data.reshape(-1).view(np.uint8)
    return np.frombuffer(data, np.uint8)


def _integers(frame: NDArray[np.uint8], delta: Delta) -> NDArray[Any]:
    return frame.view(_INTEGERS[delta.width]).reshape(-1, delta.row // delta.width)


def _apply_delta(frame: NDArray[np.uint8], delta: Delta) -> NDArray[np.uint8]:
    for _ in range(delta.order if frame.size else 0):
        rows = _integers(frame, delta)
        frame = np.empty(frame.size, np.uint8)
        differences = _integers(frame, delta)
        differences[0] = rows[0]
        np.subtract(rows[1:], rows[:-1], out=differences[1:])
    return frame


def _undo_delta(frame: NDArray[np.uint8], delta: Delta) -> None:
    if not frame.size:
        return
    rows = _integers(frame, delta)
    if not rows.flags.aligned:
        # NumPy would copy on every call instead of once.
        copied = rows.copy()
        _sum_rows(copied, delta.order)
        rows[:] = copied
    else:
        _sum_rows(rows, delta.order)


def _sum_rows(rows: NDArray[Any], order: int) -> None:
    items = rows.shape[1]
    for _ in range(order):
        if items >= _LONG_ROW:
            previous = rows[0]
            for row in rows[1:]:
                np.add(row, previous, row)
                previous = row
        elif rows.dtype.itemsize == 2 and items <= _SHORT_ROW:
            # Three times as fast in a wider type, whose upper half is dropped again.
            at_once = max(1, _ITEMS_AT_ONCE // items)
            total = np.zeros(items, np.uint32)
            for start in range(0, len(rows), at_once):
                wide = rows[start : start + at_once].astype(np.uint32)
                wide[0] += total
                np.add.accumulate(wide, axis=0, out=wide)
                rows[start : start + at_once] = wide
                total = wide[-1]
        else:
            np.add.accumulate(rows, axis=0, dtype=rows.dtype, out=rows)


def _sum_some_rows(rows: NDArray[Any], first: int, out: NDArray[Any]) -> None:
    """The sums up to the row `first`, and on from there, without those before and after that nobody wants."""
    np.add.reduce(rows[: first + 1], axis=0, dtype=rows.dtype, out=out[0])
    previous = out[0]
    for row, total in zip(rows[first + 1 :], out[1:], strict=False):
        np.add(row, previous, total)
        previous = total


def _undo_planes(planes: NDArray[np.uint8], width: int, out: NDArray[np.uint8]) -> None:
    count = planes.size // width
    items = out.view(_INTEGERS[width])
    if width == 2 and items.flags.aligned:
        # Arithmetic is twice as fast as writing every second byte; for wider items it is not.
        for start in range(0, count, _ITEMS_AT_ONCE):
            stop = min(count, start + _ITEMS_AT_ONCE)
            piece = items[start:stop]
            piece[:] = planes[count + start : count + stop]
            np.left_shift(piece, 8, piece)
            np.bitwise_or(piece, planes[start:stop], piece)
        return
    for number in range(width):
        out[number::width] = planes[number * count : (number + 1) * count]
