"""gzip members made by hand: the same bytes with every version of zlib, and wrong where told so."""

from __future__ import annotations

import zlib

MAGIC = b"\x1f\x8b"
DEFLATE = 8
UNKNOWN_SYSTEM = 255
NAME_FLAG = 0x08
LARGEST_STORED = 0xFFFF
LONGEST_MATCH = 258


def _u32(value: int) -> bytes:
    return (value & 0xFFFFFFFF).to_bytes(4, "little")


def _stored_blocks(content: bytes, block_size: int) -> bytes:
    parts = [content[at : at + block_size] for at in range(0, len(content), block_size)]
    blocks = b""
    for number, part in enumerate(parts or [b""], start=1):
        is_last = number >= len(parts)
        size = len(part)
        blocks += bytes([is_last]) + size.to_bytes(2, "little")
        blocks += (size ^ 0xFFFF).to_bytes(2, "little") + part
    return blocks


def member(
    content: bytes,
    *,
    deflated: bytes | None = None,
    block_size: int = LARGEST_STORED,
    name: bytes | None = None,
    checksum: int | None = None,
    size: int | None = None,
) -> bytes:
    """One member; without `deflated`, its content stands in stored blocks."""
    flags = 0 if name is None else NAME_FLAG
    head = MAGIC + bytes([DEFLATE, flags]) + bytes(4) + bytes([0, UNKNOWN_SYSTEM])
    head += b"" if name is None else name + b"\0"
    body = _stored_blocks(content, block_size) if deflated is None else deflated
    checksum = zlib.crc32(content) if checksum is None else checksum
    return head + body + _u32(checksum) + _u32(len(content) if size is None else size)


def zeros(matches: int) -> tuple[bytes, bytes]:
    """1 + 258 * `matches` zero bytes, and a member of one block with fixed codes that gives them."""
    bits = "1" + "10"  # last block, fixed codes; numbers stand with their lowest bit first
    bits += "00110000"  # the byte 0
    bits += ("11000101" + "00000") * matches  # 258 bytes from 1 byte back
    bits += "0000000"  # end of block
    bits += "0" * (-len(bits) % 8)
    deflated = bytes(int(bits[at : at + 8][::-1], 2) for at in range(0, len(bits), 8))
    content = bytes(1 + LONGEST_MATCH * matches)
    return content, member(content, deflated=deflated)
