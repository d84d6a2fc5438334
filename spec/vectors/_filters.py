"""The filters in front of zstd, forwards and back (spec/shard.md, Filtered entries).

One integer at a time, so that nothing depends on how an array library shifts or wraps.
"""

from __future__ import annotations

from dataclasses import dataclass

from _compress import checked_frame, seek_rows, seek_table, skippable_frame
from _encode import Entry
from _layout import ENTRY_FILTERED, ZSTD
from _primitives import canonical_json

DESCRIPTION_MAGIC = 0x184D2A5D
MAX_DESCRIPTION = 4096
MAX_FILTERED_FRAME = 64 << 20


@dataclass(frozen=True)
class Delta:
    """Differences between rows."""

    width: int
    row: int
    order: int = 1
    name: str = "delta"

    @property
    def unit(self) -> int:
        """The content of a frame is a multiple of this many bytes."""
        return self.row

    def fields(self) -> dict[str, object]:
        return {"name": self.name, "order": self.order, "row": self.row, "width": self.width}

    def forward(self, data: bytes) -> bytes:
        for _ in range(self.order):
            data = self._each_row(data, sign=-1)
        return data

    def backward(self, data: bytes) -> bytes:
        for _ in range(self.order):
            data = self._each_row(data, sign=1)
        return data

    def _each_row(self, data: bytes, sign: int) -> bytes:
        """Add the row before, or subtract it; adding uses the row that was just made."""
        mask = (1 << 8 * self.width) - 1
        made = bytearray(data)
        for at in range(self.row, len(data), self.width):
            before = (made if sign > 0 else data)[at - self.row : at - self.row + self.width]
            own = int.from_bytes(data[at : at + self.width], "little")
            value = own + sign * int.from_bytes(before, "little") & mask
            made[at : at + self.width] = value.to_bytes(self.width, "little")
        return bytes(made)


@dataclass(frozen=True)
class Planes:
    """All first bytes, then all second bytes, and so on."""

    width: int
    name: str = "planes"

    @property
    def unit(self) -> int:
        return self.width

    def fields(self) -> dict[str, object]:
        return {"name": self.name, "width": self.width}

    def forward(self, data: bytes) -> bytes:
        return b"".join(data[byte :: self.width] for byte in range(self.width))

    def backward(self, data: bytes) -> bytes:
        count = len(data) // self.width
        planes = [data[byte * count : (byte + 1) * count] for byte in range(self.width)]
        return b"".join(bytes(item) for item in zip(*planes, strict=True))


Filter = Delta | Planes


def forward(filters: tuple[Filter, ...], data: bytes) -> bytes:
    for one in filters:
        data = one.forward(data)
    return data


def backward(filters: tuple[Filter, ...], data: bytes) -> bytes:
    for one in reversed(filters):
        data = one.backward(data)
    return data


def description(filters: tuple[Filter, ...]) -> bytes:
    """The leading frame that names the filters."""
    text = canonical_json({"filters": [one.fields() for one in filters]})
    return skippable_frame(text, DESCRIPTION_MAGIC)


def filtered_frames(
    filters: tuple[Filter, ...], content: bytes, frame_content: int
) -> tuple[list[bytes], list[bytes]]:
    """The frames of a filtered entry, and the filtered content of each."""
    starts = range(0, len(content), frame_content)
    parts = [forward(filters, content[at : at + frame_content]) for at in starts]
    return [checked_frame(part) for part in parts], parts


def filtered_entry(
    name: str, content: bytes, filters: tuple[Filter, ...], *, frame_content: int | None = None
) -> Entry:
    """An honest filtered entry: one frame, or seekable where `frame_content` is given."""
    if frame_content is None:
        stored = description(filters) + checked_frame(forward(filters, content))
    else:
        frames, parts = filtered_frames(filters, content, frame_content)
        stored = description(filters) + b"".join(frames) + seek_table(seek_rows(frames, parts))
    return Entry(name, content, flags=ZSTD | ENTRY_FILTERED, stored=stored)
