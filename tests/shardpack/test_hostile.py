"""Shards that lie, each rule of spec/shardpack.md on its own: refused with the stated code, cheaply."""

from __future__ import annotations

import io
import struct
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from xxhash import xxh64_intdigest

import shardpack
from shard_format import Limits
from shard_format.errors import DuplicateName, LimitExceeded, ShardError
from tests.shardpack.support import HandMadePack, HandMadeRecord, Part, prose

if TYPE_CHECKING:
    from collections.abc import Callable

PART = Part(b"a.txt", b"hello", b"text/plain")


def record(**changes: Any) -> HandMadePack:  # noqa: ANN401 - fields of a record
    fields = {"key": b"k", "parts": [PART], **changes}
    return HandMadePack([HandMadeRecord(**fields)])


def part(**changes: Any) -> HandMadePack:  # noqa: ANN401 - fields of an entry
    fields = {"name": b"a.txt", "stored": b"hello", "content_type": b"text/plain", **changes}
    return record(parts=[Part(**fields)])


def footer(**changes: int) -> HandMadePack:
    return HandMadePack([HandMadeRecord(b"k", [PART])], footer=changes)


TWO: list[HandMadeRecord | bytes] = [HandMadeRecord(b"k", [PART]), HandMadeRecord(b"l", [PART])]
SIZE = len(TWO[0].to_bytes()) if isinstance(TWO[0], HandMadeRecord) else 0
GZIP_OF_HELLO = bytes.fromhex(
    "1f8b08000000000000ffcb48cdc9c907008 6a6103605000000".replace(" ", "")
)

CASES: dict[str, tuple[HandMadePack, str, str]] = {
    "marker": (record(marker=b"SPR2"), "bad_magic", "P-REC-2"),
    "version": (record(version=2), "unsupported_version", "P-REC-3"),
    "metadata encoding": (record(metadata_encoding=3), "bad_header", "P-REC-4"),
    "alignment": (record(alignment=16), "bad_header", "P-REC-4"),
    "alignment zero": (record(alignment=0), "bad_header", "P-REC-4"),
    "flags": (record(flags=1), "bad_header", "P-REC-4"),
    "empty key": (record(key=b""), "bad_name", "P-REC-5"),
    "key not UTF-8": (record(key=b"\xff"), "bad_name", "P-REC-5"),
    "key with NUL": (record(key=b"a\0b"), "bad_name", "P-REC-5"),
    "key too long": (record(key=b"k" * 65_537), "limit_exceeded", "P-REC-5"),
    "key size": (record(key_size=0xFFFFFFFF), "limit_exceeded", "P-REC-5"),
    "entries": (record(entry_count=0xFFFFFFFF), "limit_exceeded", "P-REC-6"),
    "metadata size": (record(metadata_size=0xFFFFFFFF), "limit_exceeded", "P-REC-6"),
    "kinds size": (record(kinds_size=0xFFFFFFFF), "limit_exceeded", "P-REC-6"),
    "head beyond the record": (record(kinds_size=5000), "bad_offset", "P-REC-7"),
    "record size": (record(size=64), "size_mismatch", "P-REC-7"),
    "record size huge": (record(size=2**64 - 1), "size_mismatch", "P-REC-7"),
    "head checksum": (record(head_crc=1), "checksum_mismatch", "P-REC-8"),
    "more kinds": (record(more_kinds=b"\0"), "size_mismatch", "P-KND-1"),
    "fewer kinds": (record(kinds=b"\1\0"), "size_mismatch", "P-KND-1"),
    "kind beyond the area": (record(kinds=b"\2\0\0\0a"), "size_mismatch", "P-KND-1"),
    "empty name": (part(name=b""), "bad_name", "P-KND-2"),
    "name not UTF-8": (part(name=b"\xed\xa0\x80"), "bad_name", "P-KND-2"),
    "name with NUL": (part(name=b"a\0"), "bad_name", "P-KND-2"),
    "content type": (part(content_type=b"text\tplain"), "bad_header", "P-KND-3"),
    "content type too long": (part(content_type=b"x" * 256), "bad_header", "P-KND-3"),
    "repeated name": (record(parts=[PART, PART]), "duplicate_name", "P-KND-4"),
    "entry outside": (part(stored_size=6000), "bad_offset", "P-ENT-1"),
    "entry size wraps": (part(stored_size=2**64 - 1), "bad_offset", "P-ENT-1"),
    "two sizes": (part(original_size=6), "size_mismatch", "P-ENT-2"),
    "entry checksum": (part(crc=7), "checksum_mismatch", "P-ENT-3"),
    "encoding": (part(encoding=4), "unknown_codec", "P-ENC-1"),
    "decompressed size": (part(encoding=3, original_size=2**40), "limit_exceeded", "P-ENC-3"),
    "unreachable size": (part(encoding=3, original_size=2**20), "size_mismatch", "P-ENC-4"),
    "unreachable gzip": (part(encoding=1, original_size=6000), "size_mismatch", "P-ENC-4"),
    "not zstd": (part(encoding=3), "bad_compression", "P-ENC-5"),
    "not lz4": (part(encoding=2, stored=b"\xf0\xff\xff"), "bad_compression", "P-ENC-5"),
    "lz4 with its size in front": (
        part(encoding=2, stored=b"\5\0\0\0\x50hello", original_size=5),
        "bad_compression",
        "P-ENC-5",
    ),
    "not gzip": (part(encoding=1), "bad_compression", "P-ENC-5"),
    "empty zstd": (part(encoding=3, stored=b""), "bad_compression", "P-ENC-5"),
    "two gzip members": (
        part(encoding=1, stored=GZIP_OF_HELLO * 2, original_size=5),
        "bad_compression",
        "P-ENC-5",
    ),
    "longer gzip": (
        part(encoding=1, stored=GZIP_OF_HELLO, original_size=4),
        "size_mismatch",
        "P-ENC-4",
    ),
    "shorter gzip": (
        part(encoding=1, stored=GZIP_OF_HELLO, original_size=6),
        "size_mismatch",
        "P-ENC-4",
    ),
    "metadata without encoding": (record(metadata=b"{}"), "bad_metadata", "P-MTD-1"),
    "metadata not JSON": (record(metadata=b"{", metadata_encoding=1), "bad_metadata", "P-MTD-2"),
    "metadata no object": (record(metadata=b"[]", metadata_encoding=1), "bad_metadata", "P-MTD-2"),
    "metadata not msgpack": (
        record(metadata=b"\xc1", metadata_encoding=2),
        "bad_metadata",
        "P-MTD-3",
    ),
    "metadata no map": (record(metadata=b"\x90", metadata_encoding=2), "bad_metadata", "P-MTD-3"),
    "msgpack claims much": (
        record(metadata=b"\xdf\xff\xff\xff\xff", metadata_encoding=2),
        "bad_metadata",
        "P-MTD-3",
    ),
    "msgpack deep": (
        record(metadata=b"\x81\x00" + b"\x91" * 5000, metadata_encoding=2),
        "bad_metadata",
        "P-MTD-3",
    ),
    "magic": (HandMadePack(TWO, magic=b"SHRDPACX"), "truncated", "P-FTR-2"),
    "footer checksum": (HandMadePack(TWO, footer_crc=1), "checksum_mismatch", "P-FTR-3"),
    "footer version": (footer(version=2), "unsupported_version", "P-FTR-4"),
    "total size": (footer(total_size=10_000), "truncated", "P-FTR-5"),
    "total size small": (footer(total_size=100), "trailing_data", "P-FTR-5"),
    "index offset": (footer(index_offset=8), "bad_offset", "P-FTR-6"),
    "index offset huge": (footer(index_offset=2**64 - 1), "bad_offset", "P-FTR-6"),
    "record count": (footer(record_count=2), "bad_offset", "P-FTR-6"),
    "record count huge": (footer(record_count=2**63), "bad_offset", "P-FTR-6"),
    "metadata size of the shard": (footer(metadata_size=2**63), "bad_offset", "P-FTR-6"),
    "index head": (
        HandMadePack(TWO, index_head=struct.pack("<Q4sB3xQQ", 1, b"SPI1", 1, 2, 3)),
        "size_mismatch",
        "P-IDX-2",
    ),
    "offsets checksum": (HandMadePack(TWO, offsets_crc=1), "checksum_mismatch", "P-IDX-3"),
    "offsets repeat": (HandMadePack(TWO, offsets=[0, 0, 2 * SIZE]), "bad_offset", "P-IDX-4"),
    "offsets start late": (HandMadePack(TWO, offsets=[8, SIZE, 2 * SIZE]), "bad_offset", "P-IDX-4"),
    "offsets beyond": (HandMadePack(TWO, offsets=[0, SIZE, 9 * SIZE]), "bad_offset", "P-IDX-4"),
    "offsets inside": (
        HandMadePack(TWO, offsets=[0, SIZE - 8, 2 * SIZE]),
        "size_mismatch",
        "P-REC-7",
    ),
    "offsets too near": (HandMadePack(TWO, offsets=[0, 8, 2 * SIZE]), "bad_offset", "P-REC-1"),
    "lookup checksum": (HandMadePack(TWO, lookup_crc=1), "checksum_mismatch", "P-IDX-5"),
    "hashes not sorted": (HandMadePack(TWO, hashes=[2, 1]), "bad_offset", "P-IDX-6"),
    "numbers outside": (HandMadePack(TWO, numbers=[0, 2]), "bad_offset", "P-IDX-6"),
    "metadata checksum": (HandMadePack(TWO, metadata_crc=1), "checksum_mismatch", "P-IDX-7"),
    "metadata of the shard not JSON": (HandMadePack(TWO, text=b"{]"), "bad_metadata", "P-IDX-8"),
    "metadata of the shard no object": (HandMadePack(TWO, text=b"1"), "bad_metadata", "P-IDX-8"),
}


def read_everything(data: bytes) -> None:
    dataset = shardpack.open(data)
    _ = dataset.metadata
    for each in dataset.records():
        _ = each.key, each.metadata
        each.read_all()
        for entry in each.file_entries():
            _ = entry.data
    assert "zz" not in dataset


@pytest.mark.parametrize("case", CASES)
def test_a_shard_that_breaks_a_rule_is_refused_with_its_code(case: str) -> None:
    pack, code, rule = CASES[case]
    data = pack.to_bytes()
    tracemalloc.start()
    try:
        with pytest.raises(ShardError) as caught:
            read_everything(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (caught.value.code, caught.value.rule) == (code, rule), str(caught.value)
    assert caught.value.path == "<bytes>"
    assert peak < 4_000_000


def test_the_right_shards_behind_those_cases_are_read() -> None:
    """So that none of the cases is refused for something else."""
    for pack in (record(), part(), footer(), HandMadePack(TWO)):
        read_everything(pack.to_bytes())
    gzipped = part(encoding=1, stored=GZIP_OF_HELLO, original_size=5)
    assert shardpack.open(gzipped.to_bytes())[0].read_all() == {"a.txt": b"hello"}


@pytest.mark.parametrize(
    "data",
    [b"", b"x", bytes(200), b"SHRD" + bytes(300), prose(500)],
    ids=["empty", "one byte", "zeros", "a container", "text"],
)
def test_what_is_no_shard_is_refused(data: bytes) -> None:
    with pytest.raises(ShardError) as caught:
        shardpack.open(data)
    assert caught.value.code in ("bad_magic", "truncated")
    with pytest.raises(ShardError):
        list(shardpack.stream(io.BytesIO(data)))


def test_an_index_above_the_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(LimitExceeded, match="P-IDX-1"):
        shardpack.open(HandMadePack(TWO).to_bytes(), limits=Limits(max_index_bytes=100))


def test_a_compressed_entry_above_the_limit_of_the_caller_is_refused() -> None:
    data = part(encoding=1, stored=GZIP_OF_HELLO, original_size=5).to_bytes()
    dataset = shardpack.open(data, limits=Limits(max_decompressed_bytes=4))
    with pytest.raises(LimitExceeded, match="P-ENC-3"):
        dataset[0].read_all()


def test_keys_with_the_same_hash_are_told_apart() -> None:
    same = xxh64_intdigest(b"k")
    pack = HandMadePack(TWO, hashes=[same, same], numbers=[1, 0])
    dataset = shardpack.open(pack.to_bytes())
    assert dataset.find("k") == 0
    assert dataset["k"].key == "k"
    assert "l" not in dataset  # whose hash is not in the lookup


def test_a_key_that_is_there_twice_is_an_error_and_never_a_choice() -> None:
    twice: list[HandMadeRecord | bytes] = [TWO[0], TWO[0]]
    dataset = shardpack.open(HandMadePack(twice).to_bytes())
    with pytest.raises(DuplicateName, match="P-REC-10"):
        dataset["k"]
    two = shardpack.open([HandMadePack(TWO).to_bytes(), HandMadePack(TWO[1:]).to_bytes()])
    assert two["k"].key == "k"
    with pytest.raises(DuplicateName, match="two places"):
        two["l"]


def streamed(size: int, marker: bytes = b"SPR1") -> Callable[[], object]:
    return lambda: list(shardpack.stream(io.BytesIO(struct.pack("<Q4s", size, marker) + bytes(99))))


@pytest.mark.parametrize("size", [0, 11, 2**40, 2**64 - 1])
@pytest.mark.parametrize("marker", [b"SPR1", b"SPI1"])
def test_a_stream_that_claims_much_gets_nothing(size: int, marker: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ShardError):
            streamed(size, marker)()
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
