"""The library and the reader of the vectors' generator, which share no line, on shards that nobody wrote.

Records of all vectors are put together anew and changed, with checksums that fit, under an index that is true or
not: both must refuse the same, read the same, and bring the same back.
"""

from __future__ import annotations

import io
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fastcrc import crc32
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from xxhash import xxh64_intdigest

import shardpack
from shard_format import ShardError
from shardpack import ShardPackReader

if TYPE_CHECKING:
    from collections.abc import Callable

VECTORS = Path(__file__).parents[2] / "spec" / "vectors"
HEAD = struct.Struct("<Q8sIIII")
FOOTER = struct.Struct("<QQQQIIIB7x")
# The reader of the generator is slow.
LARGEST = 2048
LZ4 = 2
MESSAGEPACK = 2
FILES = [path.read_bytes() for path in sorted(VECTORS.glob("*valid_packs/*.shardpack"))]
SMALL_FILES = [data for data in FILES if len(data) <= LARGEST]
REFUSED = "refused"


def blocks_of(data: bytes) -> list[bytes]:
    """The records that can be told from what follows."""
    found, at = [], 0
    while data[at + 8 : at + 12] == b"SPR1":
        (size,) = struct.unpack_from("<Q", data, at)
        if not 36 <= size <= min(LARGEST, len(data) - at):
            break
        found.append(data[at : at + size])
        at += size
    return found


BLOCKS = list(dict.fromkeys(block for data in FILES for block in blocks_of(data)))


def head_size_of(block: bytes) -> int:
    _, _, count, kinds_size, key_size, metadata_size = HEAD.unpack_from(block)
    return int(36 + 24 * count + kinds_size + key_size + metadata_size)


def with_right_checksum(block: bytes) -> bytes:
    size = head_size_of(block)
    if size > len(block):
        return block
    head = block[: size - 4]
    return head + struct.pack("<I", crc32.iscsi(head)) + block[size:]


@st.composite
def changed(draw: st.DrawFn, block: bytes) -> bytes:
    """A record with a byte of its head changed, whose checksum may fit."""
    at = draw(st.integers(0, min(head_size_of(block), len(block)) - 1))
    byte = draw(st.sampled_from(b'\0\1\2\3\4\x08\x40\x80\xc1\xff"{}[]a/'))
    data = block[:at] + bytes([byte]) + block[at + 1 :]
    return with_right_checksum(data) if draw(st.integers(0, 4)) else data


@st.composite
def shards(draw: st.DrawFn) -> bytes:
    """Records of any vectors under an index of their places; some are changed, the end may be cut."""
    blocks = draw(st.lists(st.sampled_from(BLOCKS), max_size=4))
    blocks = [draw(changed(b)) if draw(st.integers(0, 2)) == 0 else b for b in blocks]
    starts = [0]
    for block in blocks:
        starts.append(starts[-1] + len(block))
    hashes = [xxh64_intdigest(key_of(block)) for block in blocks]
    pairs = sorted((value, number) for number, value in enumerate(hashes))
    offsets = struct.pack(f"<{len(starts)}Q", *starts)
    lookup = b"".join(struct.pack("<Q", value) for value, _ in pairs)
    lookup += b"".join(struct.pack("<I", number) for _, number in pairs)
    text = draw(st.sampled_from([b"{}", b'{"user":{"a":1}}', b"[]"]))
    size = 32 + len(offsets) + len(lookup) + len(text) + 64
    index = struct.pack("<Q8sQQ", size, b"SPI1\1\0\0\0", len(blocks), len(text))
    checksums = [crc32.iscsi(part) for part in (offsets, lookup, text)]
    footer = FOOTER.pack(
        *(starts[-1], len(blocks), len(text), starts[-1] + size, *checksums, 1),
    )
    tail = footer + struct.pack("<I", crc32.iscsi(footer)) + b"SHRDPACK"
    data = b"".join(blocks) + index + offsets + lookup + text + tail
    return data[: len(data) - draw(st.sampled_from([0, 0, 0, 0, 1, 70, 140]))]


def key_of(block: bytes) -> bytes:
    _, _, count, kinds_size, key_size, _ = HEAD.unpack_from(block)
    start = 32 + 24 * count + kinds_size
    return block[start : start + key_size]


@pytest.fixture(scope="module")
def strict() -> Any:  # noqa: ANN401 - a module that is found only here
    """The reader of the generator."""
    sys.path.insert(0, str(VECTORS))
    try:
        import _pack_reader
    finally:
        sys.path.remove(str(VECTORS))
    return _pack_reader


def test_the_parts_are_many() -> None:
    assert len(BLOCKS) > 150
    assert len(SMALL_FILES) > 150


def outcome(error: type[Exception], read: Callable[[], object]) -> object:
    try:
        return read()
    except error:
        return REFUSED


def assert_same_record(
    reader: ShardPackReader,
    opened: Any,  # noqa: ANN401 - as above
    number: int,
    broken: type[Exception],
) -> None:
    try:
        record = reader.record(number)
        key = record.key
    except ShardError:
        assert outcome(broken, lambda: opened.record(number)) == REFUSED
        return
    expected = opened.record(number)
    assert (key, record.names) == (expected.key, tuple(e.name for e in expected.entries))
    metadata = outcome(broken, lambda: has_fields(expected))
    assert outcome(ShardError, lambda: bool(record.metadata)) == metadata
    for entry in expected.entries:
        name = entry.name
        found = outcome(ShardError, lambda name=name: record[name].read())  # type: ignore[misc] # bound now
        content = outcome(broken, entry.read)
        # What is no lz4 block is refused by each decoder in its own way (P-ENC-5, S-CMP-9).
        is_either = entry.row["encoding"] == LZ4 and REFUSED in (found, content)
        assert found == content or is_either


def has_fields(record: Any) -> bool:  # noqa: ANN401 - as above
    """Whether there is metadata that says something."""
    found = record.metadata()
    return bool(found.get("map") if record.head["metadata_encoding"] == MESSAGEPACK else found)


def assert_both_agree(data: bytes, strict: Any, tmp_path: Path) -> None:  # noqa: ANN401 - as above
    broken: type[Exception] = strict.BrokenRuleError
    opened: Any = outcome(broken, lambda: strict.open_pack(data))
    try:
        reader = ShardPackReader(data)
    except ShardError:
        assert opened == REFUSED
    else:
        assert opened != REFUSED
        with reader:
            numbers = outcome(ShardError, lambda: [*reader.get_index()])
            assert numbers == outcome(broken, lambda: opened.offsets()[:-1])
            metadata = outcome(ShardError, lambda: reader.metadata)
            assert metadata == outcome(broken, lambda: opened.metadata())
            for number in range(len(reader) if numbers != REFUSED else 0):
                assert_same_record(reader, opened, number, broken)
    streamed: list[str] = []
    stop: str | None = None
    try:
        streamed.extend(record.key for record in shardpack.stream(io.BytesIO(data)))
    except ShardError as error:
        stop = error.code
    expected_stream = strict.stream(data)
    assert streamed == [record.key for record in expected_stream.records]
    assert (stop is None) == (expected_stream.stop is None), (stop, expected_stream.stop)
    result = shardpack.recover(data, tmp_path / "out.shardpack", fsync=False, overwrite=True)
    recovered = strict.recover(data)
    with ShardPackReader(tmp_path / "out.shardpack") as again:
        assert list(again.keys()) == recovered.keys
    assert result.had_index == recovered.had_index
    lost = sorted(recovered.lost, key=lambda part: part[0])
    assert [(part.offset, part.size, part.key) for part in result.lost] == lost


@settings(
    max_examples=150,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=shards())
@example(data=b"")
@pytest.mark.slow
def test_both_read_the_same_of_records_put_together(
    data: bytes,
    strict: Any,  # noqa: ANN401 - as above
    tmp_path: Path,
) -> None:
    assert_both_agree(data, strict, tmp_path)


def flipped(step: int) -> list[bytes]:
    """Each vector that is small enough, with every so many a byte changed, one at a time."""
    return [
        data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :]
        for start, data in enumerate(SMALL_FILES)
        for at in range(start % step, len(data), step)
    ]


@pytest.mark.slow
def test_both_read_the_same_of_vectors_with_a_bit_changed(strict: Any, tmp_path: Path) -> None:  # noqa: ANN401 - as above
    for data in flipped(397):
        assert_both_agree(data, strict, tmp_path)


@pytest.mark.slow
def test_both_read_the_same_of_vectors_with_any_byte_changed(strict: Any, tmp_path: Path) -> None:  # noqa: ANN401 - as above
    for data in flipped(61):
        assert_both_agree(data, strict, tmp_path)
