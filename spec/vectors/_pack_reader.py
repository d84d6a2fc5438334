"""A strict reader of ShardPack for the self-check: at random, as a stream, and what recovery gives."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from _decode import (
    MAX_ZSTD_RATIO,
    BrokenRuleError,
    decode_lz4,
    decode_zstd,
)
from _episode_json import check
from _layout import align, unpack
from _limits import LIMITS
from _messagepack import parse_map
from _metadata import JsonObject, parse_object
from _pack import (
    CHECKSUM,
    FOOTER_END,
    FOOTER_FIELDS,
    FOOTER_SIZE,
    GZIP,
    INDEX_FIELDS,
    INDEX_HEAD_SIZE,
    INDEX_MARKER,
    JSON,
    KIND_FIELDS,
    LZ4,
    MESSAGEPACK,
    NONE,
    PACK_MAGIC,
    RECORD_FIELDS,
    RECORD_HEAD_SIZE,
    RECORD_MARKER,
    ROW_FIELDS,
    ROW_SIZE,
    ZSTD,
)
from _primitives import crc32c, xxh64

if TYPE_CHECKING:
    from collections.abc import Callable

SMALLEST_FILE = 104
SMALLEST_RECORD = 36
MOST_RECORDS = (1 << 32) - 1
LONGEST_KEY = 65_536
MOST_ENTRIES = 1 << 20
LARGEST_METADATA = 16 << 20
LARGEST_HEAD = 64 << 20
LONGEST_CONTENT_TYPE = 255
GZIP_RATIO = 1032
ALIGNMENTS = (1, 8, 64)
BLOCK_START = 12
MUCH = 1 << 30
GZIP_WRAPPER = 31
RULES_HERE = {
    "S-CMP-2": "P-ENC-3",
    "S-CMP-3": "P-ENC-4",
    "S-CMP-4": "P-ENC-5",
    "S-CMP-5": "P-ENC-5",
    "S-CMP-6": "P-ENC-5",
    "S-CMP-7": "P-ENC-3",
}


def rule_of(error: BrokenRuleError) -> str:
    return str(error).split(": ")[1]


# --- the end of the file (P-FTR, P-IDX)


@dataclass(frozen=True)
class Opened:
    """An opened shard, of which nothing but the footer and the head of the index was looked at."""

    data: bytes
    footer: dict[str, int]

    def _part(self, start: int, size: int, checksum: str, rule: str) -> bytes:
        part = self.data[start : start + size]
        check(crc32c(part) == self.footer[checksum], "checksum_mismatch", rule)
        return part

    @property
    def count(self) -> int:
        return self.footer["record_count"]

    @property
    def _offsets_at(self) -> int:
        return self.footer["index_offset"] + INDEX_HEAD_SIZE

    def offsets(self) -> list[int]:
        size = 8 * (self.count + 1)
        found = _numbers(self._part(self._offsets_at, size, "offsets_crc32c", "P-IDX-3"), 8)
        ascends = all(a < b for a, b in pairwise(found))
        right_ends = found[0] == 0 and found[-1] == self.footer["index_offset"]
        check(ascends and right_ends, "bad_offset", "P-IDX-4")
        return found

    def lookup(self) -> list[tuple[int, int]]:
        start = self._offsets_at + 8 * (self.count + 1)
        part = self._part(start, 12 * self.count, "lookup_crc32c", "P-IDX-5")
        hashes, numbers = _numbers(part[: 8 * self.count], 8), _numbers(part[8 * self.count :], 4)
        fine = hashes == sorted(hashes) and all(number < self.count for number in numbers)
        check(fine, "bad_offset", "P-IDX-6")
        return list(zip(hashes, numbers, strict=True))

    def metadata(self) -> JsonObject:
        start = self._offsets_at + 8 * (self.count + 1) + 12 * self.count
        size = self.footer["metadata_size"]
        return _json(self._part(start, size, "metadata_crc32c", "P-IDX-7"), "P-IDX-8")

    def record(self, number: int) -> Record:
        start, end = self.offsets()[number : number + 2]
        return open_record(self.data, start, end - start)

    def find(self, key: bytes) -> int | None:
        found = [number for value, number in self.lookup() if value == xxh64(key)]
        found = [number for number in found if self.record(number).key.encode() == key]
        check(len(found) < 2, "duplicate_name", "P-REC-10")
        return found[0] if found else None


def _numbers(data: bytes, width: int) -> list[int]:
    return [int.from_bytes(data[at : at + width], "little") for at in range(0, len(data), width)]


def _json(data: bytes, rule: str) -> JsonObject:
    try:
        return parse_object(data)
    except BrokenRuleError as error:
        if error.code == "limit_exceeded":
            raise
        raise BrokenRuleError("bad_metadata", f"{rule}: {error}") from error


def open_pack(data: bytes) -> Opened:
    check(len(data) >= SMALLEST_FILE, "truncated", "P-FTR-1")
    last = data[-FOOTER_SIZE:]
    footer = unpack((*FOOTER_FIELDS, *FOOTER_END), last)
    markers = (RECORD_MARKER, INDEX_MARKER)
    starts_well = int.from_bytes(data[8:12], "little") in markers
    is_complete = footer["magic"] == PACK_MAGIC
    check(is_complete, "truncated" if starts_well else "bad_magic", "P-FTR-2")
    check(footer["footer_crc32c"] == crc32c(last[:-12]), "checksum_mismatch", "P-FTR-3")
    check(footer["version"] == 1, "unsupported_version", "P-FTR-4")
    total, count = footer["total_size"], footer["record_count"]
    check(len(data) >= total, "truncated", "P-FTR-5")
    check(len(data) <= total, "trailing_data", "P-FTR-5")
    size = INDEX_HEAD_SIZE + 8 * (count + 1) + 12 * count + footer["metadata_size"] + FOOTER_SIZE
    check(footer["index_offset"] + size == total, "bad_offset", "P-FTR-6")
    check(count <= MOST_RECORDS and size <= LIMITS["max_index_bytes"], "limit_exceeded", "P-IDX-1")
    expected = {
        "index_size": size,
        "marker": INDEX_MARKER,
        "version": 1,
        "reserved": 0,
        "record_count": count,
        "metadata_size": footer["metadata_size"],
    }
    found = unpack(INDEX_FIELDS, data, footer["index_offset"])
    check(found == expected, "size_mismatch", "P-IDX-2")
    return Opened(data, footer)


# --- a record (P-REC, P-KND, P-MTD)


@dataclass(frozen=True)
class Entry:
    """One entry; the rules that concern it are asked when it is read."""

    name: str
    content_type: str
    row: dict[str, int]
    data: bytes
    """The whole file."""
    start: int
    record_end: int

    @property
    def stored(self) -> bytes:
        end = self.start + self.row["stored_size"]
        check(end <= self.record_end, "bad_offset", "P-ENT-1")
        stored = self.data[self.start : end]
        check(crc32c(stored) == self.row["crc32c"], "checksum_mismatch", "P-ENT-3")
        return stored

    def read(self) -> bytes:
        size, encoding = self.row["original_size"], self.row["encoding"]
        stored = self.stored
        if encoding == NONE:
            check(size == len(stored), "size_mismatch", "P-ENT-2")
            return stored
        check(encoding in (GZIP, LZ4, ZSTD), "unknown_codec", "P-ENC-1")
        check(size <= LIMITS["max_decompressed_bytes"], "limit_exceeded", "P-ENC-3")
        reachable = {
            GZIP: GZIP_RATIO * len(stored),
            LZ4: 255 * len(stored) + 64,
            ZSTD: MAX_ZSTD_RATIO * len(stored),
        }
        # Of nothing at all nothing can be reached either; the encoding is what is wrong with it.
        check(bool(stored), "bad_compression", "P-ENC-5", "empty")
        check(size <= reachable[encoding], "size_mismatch", "P-ENC-4", "not reachable")
        decoders: dict[int, Callable[[bytes, int], bytes]] = {
            GZIP: _decode_gzip,
            LZ4: decode_lz4,
            ZSTD: decode_zstd,
        }
        try:
            return decoders[encoding](stored, size)
        except BrokenRuleError as error:
            rule = RULES_HERE.get(rule_of(error), rule_of(error))
            raise BrokenRuleError(error.code, f"{rule}: {error}") from error


def _decode_gzip(stored: bytes, size: int) -> bytes:
    decoder = zlib.decompressobj(GZIP_WRAPPER)
    try:
        content = decoder.decompress(stored, size + 1)
    except zlib.error as error:
        raise BrokenRuleError("bad_compression", f"P-ENC-5: {error}") from error
    check(len(content) <= size, "size_mismatch", "P-ENC-4", "too long")
    is_one = decoder.eof and not decoder.unused_data
    check(is_one, "bad_compression", "P-ENC-5", "not one member")
    check(len(content) == size, "size_mismatch", "P-ENC-4", "too short")
    return content


@dataclass(frozen=True)
class Record:
    """A record whose head follows the rules."""

    start: int
    head: dict[str, int]
    stored_key: bytes
    stored_metadata: bytes
    entries: tuple[Entry, ...]

    @property
    def key(self) -> str:
        return _text(self.stored_key, "P-REC-5")

    def metadata(self) -> JsonObject:
        """Plain for JSON; for MessagePack with the type of every value."""
        encoding = self.head["metadata_encoding"]
        if encoding == JSON:
            return _json(self.stored_metadata, "P-MTD-2")
        if encoding == MESSAGEPACK:
            return parse_map(self.stored_metadata)
        check(not self.stored_metadata, "bad_metadata", "P-MTD-1")
        return {}

    def entry(self, name: str) -> Entry:
        return next(entry for entry in self.entries if entry.name == name)


def _text(data: bytes, rule: str) -> str:
    check(bool(data) and b"\0" not in data, "bad_name", rule)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BrokenRuleError("bad_name", f"{rule}: {error}") from error


def _parse_kinds(data: bytes, count: int) -> list[tuple[str, str]]:
    kinds, at = [], 0
    for _ in range(count):
        check(at + 4 <= len(data), "size_mismatch", "P-KND-1")
        sizes = unpack(KIND_FIELDS, data, at)
        middle = at + 4 + sizes["name_size"]
        end = middle + sizes["content_type_size"]
        check(end <= len(data), "size_mismatch", "P-KND-1")
        name, content_type = _text(data[at + 4 : middle], "P-KND-2"), data[middle:end]
        is_printable = all(0x20 <= letter <= 0x7E for letter in content_type)
        fine = is_printable and len(content_type) <= LONGEST_CONTENT_TYPE
        check(fine, "bad_header", "P-KND-3")
        kinds.append((name, content_type.decode()))
        at = end
    check(at == len(data), "size_mismatch", "P-KND-1")
    names = {name for name, _ in kinds}
    check(len(names) == len(kinds), "duplicate_name", "P-KND-4")
    return kinds


def open_record(data: bytes, start: int, size: int) -> Record:
    """The record of this size; the caller has seen that so much is there."""
    record = open_head(data, start, size)
    _ = record.key
    return record


def open_head(data: bytes, start: int, size: int) -> Record:
    """A record whose key may still be no text: its head says where it ends."""
    check(size >= SMALLEST_RECORD, "bad_offset", "P-REC-1")
    head = unpack(RECORD_FIELDS, data, start)
    check(head["marker"] == RECORD_MARKER, "bad_magic", "P-REC-2")
    check(head["version"] == 1, "unsupported_version", "P-REC-3")
    allowed = head["metadata_encoding"] <= MESSAGEPACK and head["alignment"] in ALIGNMENTS
    check(allowed and head["flags"] == 0, "bad_header", "P-REC-4")
    count, key_size = head["entry_count"], head["key_size"]
    check(key_size <= LONGEST_KEY, "limit_exceeded", "P-REC-5")
    check(key_size > 0, "bad_name", "P-REC-5")
    kinds_at = RECORD_HEAD_SIZE + ROW_SIZE * count
    key_at = kinds_at + head["kinds_size"]
    metadata_at = key_at + key_size
    head_size = metadata_at + head["metadata_size"] + 4
    within = count <= MOST_ENTRIES and head["metadata_size"] <= LARGEST_METADATA
    check(within and head_size <= LARGEST_HEAD, "limit_exceeded", "P-REC-6")
    check(head["record_size"] == size, "size_mismatch", "P-REC-7")
    check(head_size <= size, "bad_offset", "P-REC-7")
    block = data[start : start + head_size]
    checksum = unpack(CHECKSUM, block, head_size - 4)["crc32c"]
    check(crc32c(block[:-4]) == checksum, "checksum_mismatch", "P-REC-8")
    key = block[key_at:metadata_at]
    kinds = _parse_kinds(block[kinds_at:key_at], count)
    entries, end = [], head_size
    for number, (name, content_type) in enumerate(kinds):
        row = unpack(ROW_FIELDS, block, RECORD_HEAD_SIZE + ROW_SIZE * number)
        at = align(end, head["alignment"])
        entries.append(Entry(name, content_type, row, data, start + at, start + size))
        end = at + row["stored_size"]
    return Record(start, head, key, block[metadata_at:-4], tuple(entries))


# --- as a stream (section 11)


@dataclass(frozen=True)
class Streamed:
    """What a stream gives before it ends, and the rule and code if it does not end well."""

    records: list[Record]
    stop: tuple[str, str] | None
    claims_much: bool = False
    """Whether it ends in a record that a reader of streams may refuse for its size alone."""


def stream(data: bytes) -> Streamed:
    records: list[Record] = []
    try:
        _stream(data, records)
    except BrokenRuleError as error:
        at = sum(record.head["record_size"] for record in records)
        claimed = int.from_bytes(data[at : at + 8], "little")
        is_cut = rule_of(error) == "P-REC-7"
        return Streamed(records, (rule_of(error), error.code), is_cut and claimed > MUCH)
    return Streamed(records, None)


def _stream(data: bytes, records: list[Record]) -> None:
    at = 0
    while True:
        check(at + BLOCK_START <= len(data), "truncated", "P-FTR-1")
        check(any(data[at : at + BLOCK_START]), "truncated", "P-FTR-1", "space that was claimed")
        size = int.from_bytes(data[at : at + 8], "little")
        marker = int.from_bytes(data[at + 8 : at + BLOCK_START], "little")
        if marker == INDEX_MARKER:
            check(size <= LIMITS["max_index_bytes"], "limit_exceeded", "P-IDX-1")
            check(at + size <= len(data), "truncated", "P-FTR-1")
            opened = open_pack(data[: at + size])
            check(opened.footer["index_offset"] == at, "size_mismatch", "P-IDX-2")
            check(opened.count == len(records), "size_mismatch", "P-IDX-2")
            check(at + size == len(data), "trailing_data", "P-FTR-5")
            return
        check(marker == RECORD_MARKER, "bad_magic", "P-REC-2")
        check(size >= SMALLEST_RECORD, "bad_offset", "P-REC-1")
        check(at + size <= len(data), "truncated", "P-REC-7")
        records.append(open_record(data, at, size))
        at += size


# --- recovering (section 12)


@dataclass
class Recovered:
    """What comes back of a damaged shard, and what does not: offset, size, and the key if known."""

    keys: list[str]
    lost: list[tuple[int, int, str | None]]
    had_index: bool


def recover(data: bytes) -> Recovered:
    try:
        offsets = open_pack(data).offsets()
    except BrokenRuleError:
        found = Recovered([], [], had_index=False)
        _scan(data, found)
    else:
        found = Recovered([], [], had_index=True)
        for start, end in pairwise(offsets):
            if not _take(data, start, end - start, found):
                found.lost.append((start, end - start, None))
    return found


def _take(data: bytes, start: int, size: int, found: Recovered) -> bool:
    """Whether a record is there; it may still be lost by what is in it."""
    try:
        record = open_head(data, start, size)
    except BrokenRuleError:
        return False
    key = None
    try:
        key = record.key
        for entry in record.entries:
            _ = entry.stored
        has_encoding = record.head["metadata_encoding"] != NONE
        check(has_encoding or not record.stored_metadata, "bad_metadata", "P-MTD-1")
        check(key not in found.keys, "duplicate_name", "P-REC-10")
    except BrokenRuleError:
        found.lost.append((start, size, key))
    else:
        found.keys.append(key)
    return True


def _scan(data: bytes, found: Recovered) -> None:
    at = 0
    while any(data[at:]):
        marker = int.from_bytes(data[at + 8 : at + BLOCK_START], "little")
        if marker == INDEX_MARKER:
            return
        size = int.from_bytes(data[at : at + 8], "little")
        if at + size <= len(data) and _take(data, at, size, found):
            at += size
            continue
        following = _next_record(data, at + 1)
        found.lost.append((at, following - at, None))
        at = following


def _next_record(data: bytes, at: int) -> int:
    while (marker := data.find(b"SPR1", at + 8)) >= 0:
        at = marker - 8
        size = int.from_bytes(data[at : at + 8], "little")
        if at + size <= len(data):
            try:
                open_head(data, at, size)
            except BrokenRuleError:
                pass
            else:
                return at
        at += 1
    return len(data)
