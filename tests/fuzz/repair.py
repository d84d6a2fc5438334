"""Files whose sizes and checksums fit again after something in them was changed, so that readers look further."""

from __future__ import annotations

import contextlib
import struct

from xxhash import xxh64_intdigest

from shard_format import Limits, ShardError, ShardReader
from shard_format.codecs import crc32c

# Small enough that a fuzzer's memory limit means something.
LIMITS = Limits(max_decompressed_bytes=1 << 22, max_zstd_window_bytes=1 << 23)

_TOTAL_FILE_SIZE = struct.Struct("<Q")
_TOTAL_FILE_SIZE_OFFSET = 40
_JOURNAL_HEAD = struct.Struct("<4sBBHIIIIQI")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
# Of a record: size, marker and tag, number of entries, sizes of kinds, key and metadata.
_PACK_HEAD = struct.Struct("<Q8sIIII")
_PACK_ROW = struct.Struct("<QQIBxxx")
_PACK_FOOTER = struct.Struct("<QQQQIIIB7x")


def with_right_size(data: bytes) -> bytes:
    """The file with its own size in the header, or every mutation that inserts a byte would end there."""
    if len(data) < 64:
        return data
    return b"".join((data[:_TOTAL_FILE_SIZE_OFFSET], _TOTAL_FILE_SIZE.pack(len(data)), data[48:]))


def with_right_checksums(data: bytes) -> bytes:
    """The file with its own size and with the checksums of what its entries decode to."""
    file = bytearray(with_right_size(data))
    with (
        contextlib.suppress(ShardError),
        ShardReader(bytes(file), limits=LIMITS, threads=1, check=False) as reader,
    ):
        for number, name in enumerate(reader.names()[:64]):
            with contextlib.suppress(ShardError):
                checksum = crc32c(reader.read_entry(name))
                _U32.pack_into(file, 64 + 48 * number + 40, checksum)
    return bytes(file)


def with_right_heads(data: bytes) -> bytes:
    """The frames with true checksums and sequence, or hardly a mutation would come past the first of them."""
    frames: list[bytes] = []
    at = 0
    while at + _JOURNAL_HEAD.size + 4 <= len(data):
        _, kind, codec, channel, entries, stored_size, size, checksum, _, _ = (
            _JOURNAL_HEAD.unpack_from(data, at)
        )
        at += _JOURNAL_HEAD.size + 4
        stored = data[at : at + stored_size]
        at += len(stored)
        stored_checksum = crc32c(stored)
        # A raw run is its own content; a compressed one may claim what fits into the fuzzer's memory.
        size, checksum = (
            (size % LIMITS.max_decompressed_bytes, checksum)
            if codec
            else (stored_size, stored_checksum)
        )
        head = _JOURNAL_HEAD.pack(
            *(b"WSJ1", kind, codec, channel, entries, stored_size, size, checksum),
            *(len(frames), stored_checksum),
        )
        frames.append(head + struct.pack("<I", crc32c(head)) + stored)
    return b"".join(frames) + data[at:]


def _pack_end(
    index_offset: int, offsets: bytes, lookup: bytes, metadata: bytes, count: int
) -> bytes:
    """Index and footer with true sizes and checksums."""
    size = 32 + len(offsets) + len(lookup) + len(metadata) + 64
    head = struct.pack("<Q8sQQ", size, b"SPI1\1\0\0\0", count, len(metadata))
    checksums = (crc32c(part) for part in (offsets, lookup, metadata))
    sizes = index_offset, count, len(metadata), index_offset + size
    footer = _PACK_FOOTER.pack(*sizes, *checksums, 1)
    tail = footer + _U32.pack(crc32c(footer)) + b"SHRDPACK"
    return head + offsets + lookup + metadata + tail


def with_right_end(data: bytes) -> bytes:
    """The shard with sizes and checksums of the index that fit; offsets, hashes and numbers may lie."""
    start = data.rfind(b"SPI1") - 8
    if start < 0 or len(data) - start < 104:
        return data
    body = data[start + 32 : -64]
    count = min(int.from_bytes(data[start + 16 : start + 18], "little"), (len(body) - 8) // 20)
    middle, end = 8 * (count + 1), 8 * (count + 1) + 12 * count
    return data[:start] + _pack_end(start, body[:middle], body[middle:end], body[end:], count)


def with_right_records(data: bytes) -> bytes:
    """The records with true checksums and sizes that fit, and a true index of them."""
    starts, keys, blocks = [0], [], []
    at = 0
    while data[at + 8 : at + 12] == b"SPR1" and len(data) - at >= 36:
        size, tag, count, kinds_size, key_size, metadata_size = _PACK_HEAD.unpack_from(data, at)
        size = size if 36 <= size <= len(data) - at else len(data) - at
        key_at = 32 + 24 * count + kinds_size
        head_size = key_at + key_size + metadata_size + 4
        block = bytearray(data[at : at + size])
        _U64.pack_into(block, 0, size)
        if head_size <= size:
            _fit_rows(block, count, head_size, tag[6])
            _U32.pack_into(block, head_size - 4, crc32c(bytes(block[: head_size - 4])))
        blocks.append(bytes(block))
        keys.append(bytes(block[key_at : key_at + key_size]))
        at += size
        starts.append(at)
    if not blocks:
        return data
    pairs = sorted((xxh64_intdigest(key), number) for number, key in enumerate(keys))
    lookup = b"".join(_U64.pack(value) for value, _ in pairs)
    lookup += b"".join(_U32.pack(number) for _, number in pairs)
    offsets = b"".join(map(_U64.pack, starts))
    return b"".join(blocks) + _pack_end(at, offsets, lookup, data[at + 32 : -64], len(blocks))


def _fit_rows(block: bytearray, count: int, head_size: int, alignment: int) -> None:
    """Checksums of what the rows say is stored."""
    end = head_size
    for at in range(32, 32 + 24 * count, 24):
        stored_size, size, _, encoding = _PACK_ROW.unpack_from(block, at)
        start = -(-end // max(alignment, 1)) * max(alignment, 1)
        end = start + stored_size
        if end > len(block):
            return
        _PACK_ROW.pack_into(block, at, stored_size, size, crc32c(bytes(block[start:end])), encoding)
