"""Reversible transformations in front of zstd (spec/shard.md, section 8, "Filtered entries").

Smooth trajectories, depth images and noisy cameras compress far better as differences of rows, or with
the bytes of their numbers sorted by significance. Everything here is about one frame: frames are
filtered one by one, so that each can be decoded alone.

    from shard_format.filters import Delta, Filters, Planes

    filters = Filters(Delta(width=4, row=28), Planes(4))
    writer.write_entry("signal/joints", joints, compression="zstd", filters=filters)
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format._kernels import (
    apply_delta,
    apply_planes,
    as_uint8,
    compress_in_blocks,
    undo_delta,
    undo_delta_part,
    undo_planes,
)
from shard_format.canonical_json import canonical, parse_object
from shard_format.errors import BadFilter, BadMetadata, InvalidArgument, UnknownFilter
from shard_format.registry import DEFAULT_LIMITS
from shard_format.zstd import compress_frame

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["LARGEST_FRAME", "Delta", "Filters", "Planes", "encode_frame", "encoded_size"]

LARGEST_FRAME: Final = 64 << 20
"""Bytes of content that one filtered frame may have (S-FLT-5)."""

_DELTA_WIDTHS = (1, 2, 4, 8)
_PLANES_WIDTHS = (2, 4, 8)
_ORDERS = (1, 2)
_FIELDS = {"delta": {"name", "order", "row", "width"}, "planes": {"name", "width"}}
# Below it the header of a block, and its codes, cost more than they save.
_SMALLEST_BLOCK = 256


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

    def to_fields(self) -> dict[str, Any]:
        """The filter as JSON has it."""
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

    def to_fields(self) -> dict[str, Any]:
        """The filter as JSON has it."""
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
            raise InvalidArgument("the list of filters is empty", rule="S-FLT-2")
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
            UnknownFilter: this version does not know a filter.
            BadFilter: it breaks a rule.
        """
        return _parse(description)

    @property
    def description(self) -> bytes:
        """The canonical text in front of the entry."""
        return canonical({"filters": self.to_fields()})

    def to_fields(self) -> list[dict[str, Any]]:
        """The list of filters, as JSON values."""
        return [step.to_fields() for step in (self.delta, self.planes) if step is not None]

    @property
    def unit(self) -> int:
        """The content of every frame is a multiple of this number of bytes."""
        if self.delta is not None:
            return self.delta.row
        assert self.planes is not None
        return self.planes.width

    def check_frame(self, nbytes: int) -> None:
        """Whether a frame may have this number of content bytes (S-FLT-5).

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
        frame = as_uint8(data)
        try:
            self.check_frame(frame.size)
        except BadFilter as error:
            raise InvalidArgument(
                error.problem, expected=error.expected, found=error.found, rule=error.rule
            ) from None
        if self.delta is not None:
            frame = apply_delta(frame, self.delta.width, self.delta.row, self.delta.order)
        if self.planes is not None:
            frame = apply_planes(frame, self.planes.width)
        return frame.data

    def undo_into(
        self, filtered: bytes | memoryview | NDArray[Any], out: memoryview | NDArray[Any]
    ) -> None:
        """The original of one filtered frame, into writable memory of the same size.

        Without planes, both may be the same memory.
        """
        source, target = as_uint8(filtered), as_uint8(out)
        if source.size != target.size:
            raise InvalidArgument(
                "the memory has a different size than the frame",
                expected=f"{source.size} bytes",
                found=f"{target.size} bytes",
            )
        self.check_frame(source.size)
        if self.planes is not None:
            undo_planes(source, self.planes.width, target)
        else:
            # Does nothing where both are the same memory.
            target[:] = source
        if self.delta is not None:
            undo_delta(target, self.delta.width, self.delta.row, self.delta.order)

    def undo_in_place(self, frame: memoryview | NDArray[Any]) -> None:
        """Turns one filtered frame into its original; planes need memory for a second frame."""
        target = as_uint8(frame)
        if self.planes is not None:
            self.undo_into(target.copy(), target)
            return
        self.check_frame(target.size)
        assert self.delta is not None
        undo_delta(target, self.delta.width, self.delta.row, self.delta.order)

    def undo_part_into(self, frame: memoryview, start: int, out: memoryview) -> None:
        """A part of the original of one filtered frame: as much as `out` holds, from the byte `start` on.

        The content of the frame is overwritten.
        """
        delta = self.delta
        if self.planes is not None:
            if len(out) == len(frame):
                self.undo_into(frame, out)
                return
            original = np.empty(len(frame), np.uint8).data
            self.undo_into(frame, original)
            out[:] = original[start : start + len(out)]
            return
        assert delta is not None
        self.check_frame(len(frame))
        if delta.order == 1 and undo_delta_part(
            as_uint8(frame), delta.width, delta.row, start, as_uint8(out)
        ):
            return
        self.undo_in_place(frame)
        out[:] = frame[start : start + len(out)]

    def __str__(self) -> str:
        """Short, for tables: `delta:4 planes:4`."""
        return " ".join(str(step) for step in (self.delta, self.planes) if step is not None)


def encode_frame(data: bytes | memoryview, level: int, filters: Filters | None) -> bytes:
    """One zstd frame, with content size and checksum, that holds the data or its filtered form.

    Each plane gets blocks of its own, and with them its own entropy codes: signs and exponents say
    nothing about the lowest bits. Neither does the first row, which is not a difference.
    """
    if filters is None:
        return compress_frame(data, level, checksum=True)
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
        return compress_frame(filtered, level, checksum=True)
    parts = [filtered[a:b] for a, b in zip(cuts, [*cuts[1:], len(filtered)], strict=True)]
    # Of wider numbers all bytes but the lowest repeat.
    of_noise = filters.delta is not None and filters.delta.width == 1
    return compress_in_blocks(parts, level, of_noise=of_noise)


def encoded_size(data: bytes | memoryview, level: int, filters: Filters | None) -> int:
    """Bytes of the one frame that the data would become; to compare filters with each other."""
    return len(encode_frame(data, level, filters))


# --- the frame in front of a filtered entry

USUAL_SIZE: Final = 256
"""Most leading frames are smaller: one read gets them."""

_LEADING = struct.Struct("<II")
_LEADING_MAGIC = 0x184D2A5D
_LONGEST_DESCRIPTION = 4096


def leading_frame(filters: Filters) -> bytes:
    """The skippable frame in front of an entry."""
    description = filters.description
    return _LEADING.pack(_LEADING_MAGIC, len(description)) + description


def leading_size(head: bytes | memoryview, disk_size: int) -> int:
    """Bytes of the leading frame, from the first eight stored bytes or more (S-FLT-1)."""
    found = "fewer than 8 bytes"
    if len(head) >= _LEADING.size:
        magic, length = _LEADING.unpack_from(head)
        if magic == _LEADING_MAGIC and 1 <= length <= min(
            _LONGEST_DESCRIPTION, disk_size - _LEADING.size
        ):
            return _LEADING.size + int(length)
        found = f"{bytes(head[:4]).hex(' ')} and a length of {length}"
    raise BadFilter(
        "a filtered entry does not start with a description of its filters",
        expected=f"5d 2a 4d 18 and a length of 1 to {_LONGEST_DESCRIPTION}",
        found=found,
        rule="S-FLT-1",
    )


def parse_leading(head: bytes | memoryview, size: int) -> Filters:
    """The filters that a leading frame of `size` bytes describes."""
    return Filters.parse(bytes(head[_LEADING.size : size]))


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
            f"the filter {name!r} has wrong fields",
            expected=", ".join(sorted(_FIELDS[name])),
            found=_brief(sorted(step)),
            rule="S-FLT-2",
        )
    if name == "delta":
        return Delta(width=step["width"], row=step["row"], order=step["order"])
    if name == "planes":
        return Planes(step["width"])
    raise UnknownFilter(
        f"the entry was filtered with {_brief(name)}, which this version does not know",
        expected="delta or planes",
        rule="S-FLT-3",
        hint="a newer version of shard-format may read it",
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
