"""Frames of zstd and what the reference makes of them, for zstd-frames.test.ts: python make_frames.py FILE

Each record is the length of the frame, the length of its content (-1: refused) and the room that a reader has for it, as
int32, then the frame and the SHA-256 of the content.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from typing import TYPE_CHECKING

import numpy as np
import zstandard

if TYPE_CHECKING:
    from collections.abc import Iterator

LEVELS = (*range(-5, 0), *range(1, 23))
SIZES = (
    *range(12),
    63,
    64,
    255,
    256,
    257,
    1000,
    4095,
    20_000,
    65_535,
    65_536,
    131_071,
    131_073,
    300_000,
)
rng = np.random.default_rng(20)


def contents(size: int) -> Iterator[bytes]:
    """Bytes that compress in different ways."""
    yield rng.bytes(size)
    yield b"\x07" * size
    yield (b"pick up the cup, step %d; " % size * (size // 16 + 1))[:size]
    yield np.cumsum(rng.normal(size=size // 4 + 1)).astype("f4").tobytes()[:size]
    yield np.arange(size // 8 + 1, dtype="i8").tobytes()[:size]
    yield rng.geometric(0.2, size).astype("u1").tobytes()
    again = bytearray(rng.integers(97, 120, size, "u1").tobytes())
    for at in range(40, size, 37):
        start, length = rng.integers(at), rng.integers(3, 60)
        again[at : at + length] = again[start : start + length]
    yield bytes(again[:size])


def valid() -> Iterator[tuple[bytes, bytes]]:
    """Frames of all levels and sizes, with and without what is optional."""
    for at, size in enumerate(SIZES):
        for which, content in enumerate(contents(size)):
            number = at * 7 + which
            parameters = zstandard.ZstdCompressionParameters.from_level(
                LEVELS[number % len(LEVELS)] if size < 100_000 else number % 9 - 3,
                write_content_size=number % 3 > 0,
                write_checksum=number % 4 == 0,
                enable_ldm=number % 5 == 0,
                **({"window_log": 27} if number % 10 == 0 else {}),
            )
            compressor = zstandard.ZstdCompressor(compression_params=parameters)
            yield compressor.compress(content), content
            # Several blocks, flushed where nobody expects it, some of them empty.
            pieces = compressor.compressobj()
            middle = size // 3
            frame = pieces.compress(content[:middle]) + pieces.flush(
                zstandard.COMPRESSOBJ_FLUSH_BLOCK
            )
            frame += pieces.compress(content[middle:]) + pieces.flush(
                zstandard.COMPRESSOBJ_FLUSH_BLOCK
            )
            yield frame + pieces.flush(), content


def damaged(frame: bytes) -> bytes:
    changed = bytearray(frame)
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(4, min(len(changed), rng.choice([16, 64, 1 << 30]))))
        kind = rng.integers(5)
        if kind == 0:
            changed[at] = rng.integers(256)
        elif kind == 1:
            changed[at] ^= 1 << rng.integers(8)
        elif kind == 2:
            changed[at] = rng.choice([0, 1, 127, 128, 255])
        elif kind == 3 and len(changed) > 8:
            del changed[at]
        else:
            changed.insert(at, rng.integers(256))
    return bytes(changed)


def decoded(frame: bytes) -> bytes | None:
    try:
        reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj()
        content = reader.decompress(frame)
    except zstandard.ZstdError:
        return None
    return content if reader.eof and not reader.unused_data else None


def main(path: str) -> None:
    with open(path, "wb") as file:

        def write(frames: bytes, content: bytes | None, room: int) -> None:
            length = -1 if content is None else len(content)
            file.write(struct.pack("<iii", len(frames), length, room) + frames)
            file.write(hashlib.sha256(content or b"").digest())

        skippable = struct.pack("<II", 0x184D2A53, 5) + b"hello"
        before, known = b"", b""
        for frame, content in valid():
            write(frame, content, len(content))
            write(
                skippable + frame + skippable + before, content + known, len(content) + len(known)
            )
            before, known = frame, content
            if 4 < len(content) < 5000:
                for _ in range(24):
                    changed = damaged(frame)
                    found = decoded(changed)
                    write(changed, found, len(content if found is None else found))
        dictionary = zstandard.ZstdCompressionDict(b"a dictionary of a few words " * 40)
        write(
            zstandard.ZstdCompressor(dict_data=dictionary).compress(b"a few words " * 9), None, 108
        )


if __name__ == "__main__":
    main(sys.argv[1])
