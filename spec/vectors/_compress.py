"""zstd frames and lz4 blocks made by hand, well-formed or not.

Hand-made encodings are the same bytes everywhere, and can be wrong in exactly one place. They do
not compress: zstd content goes into raw and RLE blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

from _primitives import xxh64

ZSTD_MAGIC = 0xFD2FB528
SKIPPABLE_MAGIC = 0x184D2A50
SEEK_TABLE_MAGIC = 0x184D2A5E
SEEK_FOOTER_MAGIC = 0x8F92EAB1
SEEK_CHECKSUM_BIT = 0x80

RAW, RLE, COMPRESSED, RESERVED = range(4)
MAX_BLOCK = 128 * 1024
WINDOW_128_KIB = 7 << 3
WINDOW_128_MIB = 17 << 3


def _u32(value: int) -> bytes:
    return value.to_bytes(4, "little")


@dataclass(frozen=True)
class Block:
    """One zstd block; `size` is the field of its header, the run length of an RLE block."""

    kind: int
    payload: bytes
    size: int


def raw_blocks(content: bytes) -> tuple[Block, ...]:
    parts = [content[at : at + MAX_BLOCK] for at in range(0, len(content), MAX_BLOCK)] or [b""]
    return tuple(Block(RAW, part, len(part)) for part in parts)


def zero_blocks(size: int) -> tuple[Block, ...]:
    """RLE blocks that decode to `size` zero bytes: 4 stored bytes for every 128 KiB."""
    return equal_blocks(b"\0", size)


def equal_blocks(byte: bytes, size: int) -> tuple[Block, ...]:
    """RLE blocks that decode to one byte `size` times."""
    sizes = [MAX_BLOCK] * (size // MAX_BLOCK) + [size % MAX_BLOCK] * (size % MAX_BLOCK > 0)
    return tuple(Block(RLE, byte, part) for part in sizes)


def zstd_frame(
    blocks: tuple[Block, ...],
    *,
    content_size: int | None = None,
    single_segment: bool = False,
    window: int = WINDOW_128_KIB,
    dictionary_id: int | None = None,
    checksum: int | None = None,
) -> bytes:
    """A frame with exactly the stated header fields, whether they are true or not.

    A content size always takes 8 bytes and a dictionary id 1 byte: legal for every value, and the
    header keeps its length when a vector changes the value.
    """
    descriptor = (
        (0xC0 if content_size is not None else 0)
        | (0x20 if single_segment else 0)
        | (0x04 if checksum is not None else 0)
        | (0x01 if dictionary_id is not None else 0)
    )
    parts = [_u32(ZSTD_MAGIC), bytes([descriptor])]
    if not single_segment:
        parts.append(bytes([window]))
    if dictionary_id is not None:
        parts.append(bytes([dictionary_id]))
    if content_size is not None:
        parts.append(content_size.to_bytes(8, "little"))
    for number, block in enumerate(blocks, start=1):
        header = int(number == len(blocks)) | block.kind << 1 | block.size << 3
        parts += [header.to_bytes(3, "little"), block.payload]
    if checksum is not None:
        parts.append(_u32(checksum))
    return b"".join(parts)


def content_checksum(content: bytes) -> int:
    """The checksum of a zstd frame and of a row of a seek table."""
    return xxh64(content) & 0xFFFFFFFF


def plain_frame(content: bytes) -> bytes:
    """An honest frame: raw blocks, content size, no checksum."""
    return zstd_frame(raw_blocks(content), content_size=len(content))


def checked_frame(content: bytes) -> bytes:
    """An honest frame with content size and checksum."""
    return zstd_frame(
        raw_blocks(content), content_size=len(content), checksum=content_checksum(content)
    )


def skippable_frame(payload: bytes, number: int = SKIPPABLE_MAGIC) -> bytes:
    return _u32(number) + _u32(len(payload)) + payload


@dataclass(frozen=True)
class SeekRow:
    """One row of a seek table."""

    compressed_size: int
    decompressed_size: int
    checksum: int | None = None


def seek_rows(
    frames: list[bytes], contents: list[bytes], *, checksums: bool = True
) -> list[SeekRow]:
    """True rows for these frames."""
    return [
        SeekRow(len(frame), len(content), content_checksum(content) if checksums else None)
        for frame, content in zip(frames, contents, strict=True)
    ]


def seek_table(
    rows: list[SeekRow], *, descriptor: int | None = None, count: int | None = None
) -> bytes:
    """The skippable frame that ends a seekable entry; `descriptor` and `count` may lie."""
    with_checksums = any(row.checksum is not None for row in rows)
    body = b"".join(
        _u32(row.compressed_size)
        + _u32(row.decompressed_size)
        + (b"" if row.checksum is None else _u32(row.checksum))
        for row in rows
    )
    if descriptor is None:
        descriptor = SEEK_CHECKSUM_BIT if with_checksums else 0
    footer = (
        _u32(len(rows) if count is None else count) + bytes([descriptor]) + _u32(SEEK_FOOTER_MAGIC)
    )
    return skippable_frame(body + footer, SEEK_TABLE_MAGIC)


def _lz4_length(value: int) -> bytes:
    """The bytes that continue a length whose nibble is full (15)."""
    return b"\xff" * ((value - 15) // 255) + bytes([(value - 15) % 255]) if value >= 15 else b""


def lz4_sequence(literals: bytes, offset: int, match_length: int) -> bytes:
    """Literals followed by a copy of `match_length` (at least 4) bytes from `offset` bytes back."""
    extra = match_length - 4
    token = min(len(literals), 15) << 4 | min(extra, 15)
    return (
        bytes([token])
        + _lz4_length(len(literals))
        + literals
        + offset.to_bytes(2, "little")
        + _lz4_length(extra)
    )


def lz4_last_literals(literals: bytes) -> bytes:
    """The literals that end a block; without a sequence before them, a block that stores them."""
    return bytes([min(len(literals), 15) << 4]) + _lz4_length(len(literals)) + literals


def lz4_repeated(unit: bytes, size: int) -> tuple[bytes, bytes]:
    """`unit` repeated up to `size` bytes, as content and as a block with one match.

    The last 12 bytes are literals, which keeps the end-of-block rules of the lz4 format.
    """
    content = (unit * (size // len(unit) + 1))[:size]
    match = size - len(unit) - 12
    return content, lz4_sequence(unit, len(unit), match) + lz4_last_literals(content[-12:])


def lz4_between(start: bytes, unit: bytes, count: int, end: bytes) -> tuple[bytes, bytes]:
    """`start`, `unit` repeated `count` times and `end` of at least 12 bytes, as content and as a block."""
    content = start + unit * count + end
    match = len(unit) * (count - 1)
    return content, lz4_sequence(start + unit, len(unit), match) + lz4_last_literals(end)


def zstd_spaces(start: bytes, count: int, end: bytes) -> tuple[bytes, bytes]:
    """`start`, spaces and `end`, as content and as a frame of a few hundred bytes."""
    content = start + b" " * count + end
    blocks = (*raw_blocks(start), *equal_blocks(b" ", count), *raw_blocks(end))
    return content, zstd_frame(blocks, content_size=len(content))
