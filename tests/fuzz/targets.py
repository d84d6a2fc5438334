"""What the fuzzer calls. Each target takes any bytes and may raise nothing but ShardError.

`container` reads a whole file in every way. The others aim past its checksums, at the parsers behind
them, which random bytes would hardly ever reach.
"""

from __future__ import annotations

import contextlib
import struct
from typing import TYPE_CHECKING

from shard_format import Limits, Manifest, ShardError, ShardReader, compute_identity
from shard_format._json import canonical, parse_object
from shard_format._layout import Codec
from shard_format.codecs import check_sizes, decode, decode_into, iter_decoded
from shard_format.seekable import FOOTER, SeekTable, decode_range_into, seek_table_size
from shard_format.verify import check

if TYPE_CHECKING:
    from collections.abc import Callable

# Small enough that the fuzzer's memory limit means something.
LIMITS = Limits(max_decompressed_bytes=1 << 22, max_zstd_window_bytes=1 << 23)

_TOTAL_FILE_SIZE = struct.Struct("<Q")
_TOTAL_FILE_SIZE_OFFSET = 40
_CODEC_AND_SIZE = struct.Struct("<BI")
_RANGE = struct.Struct("<III")


def fuzz_container(data: bytes) -> None:
    """A file: opened, searched, read whole, in part, in pieces, verified, hashed."""
    if len(data) >= 64:
        # The right size, or every mutation that inserts a byte would end there.
        data = b"".join(
            (data[:_TOTAL_FILE_SIZE_OFFSET], _TOTAL_FILE_SIZE.pack(len(data)), data[48:])
        )
    with ShardReader(data, limits=LIMITS, threads=1) as reader:
        names = reader.names()
        assert len(names) == len(reader) == len(set(names))
        for name in names[:64]:
            with contextlib.suppress(ShardError):
                info = reader.info(name)
                content = reader.read_entry(name)
                assert len(content) == info.size
                assert b"".join(reader.iter_entry(name)) == content
                middle = info.size // 2
                assert reader.read_range(name, middle, info.size) == content[middle:]
        check(reader)
        for examine in (Manifest.read, compute_identity):
            with contextlib.suppress(ShardError):
                examine(reader)


def fuzz_decompression(data: bytes) -> None:
    """A compressed entry: five bytes of codec and size, then the stored bytes. All ways must agree."""
    if len(data) < _CODEC_AND_SIZE.size:
        return
    choice, orig_size = _CODEC_AND_SIZE.unpack_from(data)
    codec = Codec.ZSTD if choice & 1 else Codec.LZ4
    orig_size &= (1 << 22) - 1
    stored = data[_CODEC_AND_SIZE.size :]
    check_sizes(codec, len(stored), orig_size, LIMITS)
    outcomes: list[bytes | str] = []
    buffer = bytearray(orig_size)

    def into_buffer() -> bytes:
        decode_into(codec, stored, memoryview(buffer), LIMITS)
        return bytes(buffer)

    ways: tuple[Callable[[], bytes], ...] = (
        lambda: decode(codec, stored, orig_size, LIMITS),
        into_buffer,
        lambda: b"".join(iter_decoded(codec, stored, orig_size, LIMITS)),
    )
    for way in ways:
        try:
            outcomes.append(way())
        except ShardError:  # noqa: PERF203 - three of them
            outcomes.append("refused")
    assert outcomes.count(outcomes[0]) == len(outcomes), [type(o) for o in outcomes]


def fuzz_seek_table(data: bytes) -> None:
    """A seekable entry: a range and a size, then the stored bytes."""
    if len(data) < _RANGE.size:
        return
    orig_size, start, length = (value & 0xFFFF for value in _RANGE.unpack_from(data))
    stored = data[_RANGE.size :]
    size = seek_table_size(stored[-FOOTER.size :], len(stored))
    if size is None:
        return
    table = SeekTable.parse(stored[-size:], len(stored), orig_size)
    if table is None or start >= orig_size or length == 0:
        return
    out = bytearray(min(length, orig_size - start))
    first, end = table.stored_range(table.frames_for(start, start + len(out)))
    decode_range_into(table, stored[first:end], start, memoryview(out), LIMITS, 1)


def fuzz_json(data: bytes) -> None:
    """Metadata: what is accepted has a canonical form that reads back the same."""
    fields = parse_object(data, "fuzz", LIMITS)
    text = canonical(fields)
    assert canonical(parse_object(text, "fuzz", LIMITS)) == text


TARGETS: dict[str, Callable[[bytes], None]] = {
    "container": fuzz_container,
    "decompression": fuzz_decompression,
    "json": fuzz_json,
    "seek_table": fuzz_seek_table,
}
