"""A raw encoder of journals: frames as spec/journal.md lays them out, true unless told otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from _compress import checked_frame
from _episode_draft import episode_fields
from _filters import Filter, forward
from _layout import pack
from _primitives import canonical_json, crc32c

if TYPE_CHECKING:
    from _metadata import JsonObject

MAGIC = int.from_bytes(b"WSJ1", "little")
START, RUN, NOTE, END = 1, 2, 3, 4
RAW, ZSTD = 0, 1
HEAD_FIELDS = (
    ("magic", 4),
    ("kind", 1),
    ("codec", 1),
    ("channel", 2),
    ("entries", 4),
    ("stored_size", 4),
    ("content_size", 4),
    ("content_crc32c", 4),
    ("sequence", 8),
    ("stored_crc32c", 4),
)
HEAD_CHECKSUM = ("head_crc32c", 4)
HEAD_SIZE = 40


def frame(kind: int, content: bytes, *, stored: bytes | None = None, **fields: int) -> bytes:
    """One frame; `fields` replaces what its head would say."""
    if stored is None:
        stored = checked_frame(content) if fields.get("codec") == ZSTD else content
    head = {
        "magic": MAGIC,
        "kind": kind,
        "codec": RAW,
        "channel": 0,
        "entries": 0,
        "stored_size": len(stored),
        "content_size": len(content),
        "content_crc32c": crc32c(content),
        "sequence": 0,
        "stored_crc32c": crc32c(stored),
    }
    for name in fields.keys() - head.keys() - {"head_crc32c"}:
        raise KeyError(name)
    data = pack(HEAD_FIELDS, head | fields)
    checksum = fields.get("head_crc32c", crc32c(data))
    return data + pack((HEAD_CHECKSUM,), {"head_crc32c": checksum}) + stored


def start_text(*rows: object, **fields: object) -> JsonObject:
    """What a start frame says; `fields` replaces parts of it."""
    episode = episode_fields(0)
    del episode["length_T"]
    return {"channels": list(rows), "episode": episode, "v": 1} | fields


@dataclass(frozen=True)
class Recording:
    """A journal in the making: each call gives one with a frame more."""

    data: bytes = b""
    sequence: int = 0

    def add(self, data: bytes) -> Recording:
        """Any bytes, which count as a frame."""
        return Recording(self.data + data, self.sequence + 1)

    def frame(
        self, kind: int, content: bytes, *, stored: bytes | None = None, **fields: int
    ) -> Recording:
        return self.add(
            frame(kind, content, stored=stored, **({"sequence": self.sequence} | fields))
        )

    def text(self, kind: int, value: JsonObject | bytes, **fields: int) -> Recording:
        content = value if isinstance(value, bytes) else canonical_json(value)
        return self.frame(kind, content, stored=None, **fields)

    def start(self, *rows: object, **fields: object) -> Recording:
        return self.text(START, start_text(*rows, **fields))

    def run(
        self,
        channel: int,
        entries: int,
        content: bytes,
        *,
        stored: bytes | None = None,
        **fields: int,
    ) -> Recording:
        told = {"channel": channel, "entries": entries} | fields
        return self.frame(RUN, content, stored=stored, **told)

    def filtered(
        self, channel: int, entries: int, content: bytes, *filters: Filter, **fields: int
    ) -> Recording:
        """A compressed run of a channel that is filtered."""
        stored = checked_frame(forward(filters, content))
        return self.run(channel, entries, content, stored=stored, **({"codec": ZSTD} | fields))

    def note(self, **fields: object) -> Recording:
        return self.text(NOTE, fields)

    def end(self, **fields: object) -> Recording:
        return self.text(END, fields)
