"""What columns of foreign formats are called in a record."""

from __future__ import annotations

from typing import Final

from shardpack.content_types import ENDINGS

_STARTS: Final = (
    (b"\xff\xd8\xff", "jpg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF8", "gif"),
    (b"II*\0", "tif"),
    (b"MM\0*", "tif"),
    (b"fLaC", "flac"),
    (b"OggS", "ogg"),
    (b"ID3", "mp3"),
    (b"\x93NUMPY", "npy"),
)


def entry_name(column: str, ending: str) -> str:
    """The column with an ending that says what it holds, unless it has that already."""
    own = column.rpartition(".")[2].lower()
    return column if ENDINGS.get(own, own) == ENDINGS.get(ending, ending) else f"{column}.{ending}"


def bytes_name(column: str, ending: str = "bin") -> str:
    """The name of a column of bytes: as it is if its ending is known, or that of bytes already."""
    own = column.rpartition(".")[2].lower()
    return column if own in ENDINGS or own == ending else f"{column}.{ending}"


def ending_of(data: bytes | memoryview, path: str | None = None) -> str:
    """What kind of file these bytes are, by the name that they had or by how they begin."""
    if path:
        own = path.rpartition(".")[2].lower()
        if own in ENDINGS and "." in path:
            return own
    start = bytes(data[:16])
    for begin, ending in _STARTS:
        if start.startswith(begin):
            return ending
    if start[:4] == b"RIFF" and start[8:12] in (b"WEBP", b"WAVE"):
        return "webp" if start[8:12] == b"WEBP" else "wav"
    return "bin"


def row_key(number: int) -> str:
    """The key of a sample that has none: its number, with zeros, so that keys sort as numbers do."""
    return f"{number:09d}"
