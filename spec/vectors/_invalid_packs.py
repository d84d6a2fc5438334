"""Shards with a footer, an index or a record that breaks a rule, and shards that are cut."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from _pack import (
    INDEX_HEAD_SIZE,
    JSON,
    MESSAGEPACK,
    Pack,
    Part,
    Record,
)
from _primitives import xxh64
from _valid_packs import HELLO, TEXT, nested
from _vector import InvalidPack

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGEST_U64 = (1 << 64) - 1
LARGEST_U32 = (1 << 32) - 1
TEBI = 1 << 40
FIRST = Record("first", (HELLO,))
LAST = Record("last", (Part("y.txt", b"goodbye", TEXT),))
BAD = Record("bad", (HELLO,))
THREE = Pack((FIRST, BAD, LAST))


def bad_pack(
    name: str,
    description: str,
    rule: str,
    error: str,
    when: str,
    pack: Pack | bytes,
    *,
    also: tuple[str, ...] = (),
    rules_also: tuple[str, ...] = (),
    key: str | None = None,
) -> InvalidPack:
    data = pack if isinstance(pack, bytes) else pack.data
    return InvalidPack(
        *(name, description, rule, error, when, data),
        key=key,
        also=also,
        rules_also=rules_also,
    )


def bad_record(
    name: str,
    description: str,
    rule: str,
    error: str,
    record: Record,
    *,
    when: str = "record",
    entry: str | None = None,
    also: tuple[str, ...] = (),
    rules_also: tuple[str, ...] = (),
) -> InvalidPack:
    """A record between two good ones."""
    data = Pack((FIRST, record, LAST), metadata=THREE.metadata_bytes).data
    return InvalidPack(
        *(name, description, rule, error, when, data, 1, entry, None, also, rules_also)
    )


def _footers() -> Iterator[InvalidPack]:
    def footer(name: str, description: str, rule: str, error: str, **fields: int) -> InvalidPack:
        return bad_pack(name, description, rule, error, "open", replace(THREE, footer=fields))

    whole = THREE.data
    yield bad_pack("nothing", "No bytes at all.", "P-FTR-1", "truncated", "open", b"")
    yield bad_pack(
        "too_short",
        "One byte less than the smallest shard, which ends as one does.",
        *("P-FTR-1", "truncated", "open", Pack(metadata=b"").data[1:]),
        also=("bad_magic",),
    )
    yield bad_pack(
        "other_file",
        "Text that is long enough.",
        *("P-FTR-2", "bad_magic", "open", b"This is no shard of a data set. " * 4),
    )
    yield bad_pack(
        "magic", "The last byte is wrong.", "P-FTR-2", "truncated", "open", whole[:-1] + b"X"
    )
    yield bad_pack(
        "magic_without_start",
        "The magic is wrong, and no block starts the file.",
        *("P-FTR-2", "bad_magic", "open", bytes(12) + whole[12:-1] + b"X"),
    )
    yield bad_pack(
        "footer_checksum",
        "One bit of the footer's checksum is wrong.",
        *("P-FTR-3", "checksum_mismatch", "open", replace(THREE, footer_crc32c=1)),
    )
    yield footer("footer_version", "Version 2.", "P-FTR-4", "unsupported_version", version=2)
    yield footer(
        "total_size_larger",
        "The footer states one byte more than there is.",
        *("P-FTR-5", "truncated"),
        total_size=len(whole) + 1,
    )
    yield bad_pack(
        "bytes_in_front",
        "A byte stands in front of a shard.",
        *("P-FTR-5", "trailing_data", "open", b"\0" + whole),
    )
    yield bad_pack(
        "two_shards",
        "A shard stands in front of another.",
        *("P-FTR-5", "trailing_data", "open", whole + whole),
    )
    yield footer(
        "index_offset",
        "The index is said to start 8 bytes earlier.",
        *("P-FTR-6", "bad_offset"),
        index_offset=THREE.starts[-1] - 8,
    )
    yield footer(
        "index_offset_largest", "2^64 - 1.", "P-FTR-6", "bad_offset", index_offset=LARGEST_U64
    )
    yield footer("record_count", "One too many.", "P-FTR-6", "bad_offset", record_count=4)
    wrapped = footer(
        "record_count_wraps",
        "The number of records wraps around 2^64, at 20 bytes each, to the right size.",
        *("P-FTR-6", "bad_offset"),
        record_count=3 + (1 << 62),
    )
    # More records than a shard can have: a reader may notice that first.
    yield replace(wrapped, also=("limit_exceeded",), rules_also=("P-IDX-1",))
    yield footer(
        "index_metadata_size_largest",
        "2^64 - 1.",
        *("P-FTR-6", "bad_offset"),
        metadata_size=LARGEST_U64,
    )
    # Sizes and offset are wrong together, so that their sum is right modulo 2^64.
    yield footer(
        "sizes_wrap",
        "The sum of offset and sizes wraps around 2^64 to the size of the file.",
        *("P-FTR-6", "bad_offset"),
        index_offset=LARGEST_U64 - 15,
        metadata_size=len(THREE.metadata_bytes) + THREE.starts[-1] + 16,
    )


def _indexes() -> Iterator[InvalidPack]:
    def index(name: str, description: str, **fields: int) -> InvalidPack:
        pack = replace(THREE, index=fields)
        return bad_pack(name, description, "P-IDX-2", "size_mismatch", "open", pack)

    yield index("index_marker", "A record's marker.", marker=int.from_bytes(b"SPR1", "little"))
    yield index("index_version", "Version 2 in the head of the index.", version=2)
    yield index("index_reserved", "Reserved bytes of the head are not zero.", reserved=1)
    yield index("index_record_count", "Head and footer disagree about records.", record_count=2)
    yield index("index_metadata_size", "Head and footer disagree about metadata.", metadata_size=0)
    yield index(
        "index_size", "The head claims one byte less.", index_size=len(_index_of(THREE)) - 1
    )
    starts = THREE.starts
    hashes = tuple(sorted(xxh64(record.key_bytes) for record in THREE.records))
    yield bad_pack(
        "offsets_checksum",
        "The checksum of the offsets is wrong.",
        *("P-IDX-3", "checksum_mismatch", "offsets"),
        replace(THREE, footer={"offsets_crc32c": 1}),
    )
    for name, description, offsets in (
        ("offsets_start", "The first record is said to start at byte 8.", (8, *starts[1:])),
        ("offsets_end", "The last record is said to end at byte 0.", (*starts[:-1], 0)),
        ("offsets_beyond", "The last record is said to end 8 bytes later.",
         (*starts[:-1], starts[-1] + 8)),
        ("offsets_equal", "A record of no bytes.", (0, starts[1], starts[1], starts[3])),
        ("offsets_descend", "The second record starts behind the third.",
         (0, starts[2], starts[1], starts[3])),
        ("offsets_largest", "An offset of 2^64 - 1.", (0, LARGEST_U64, starts[2], starts[3])),
    ):  # fmt: skip
        pack = replace(THREE, offsets=offsets)
        yield bad_pack(name, description, "P-IDX-4", "bad_offset", "offsets", pack)
    yield bad_pack(
        "lookup_checksum",
        "The checksum of hashes and numbers is wrong.",
        *("P-IDX-5", "checksum_mismatch", "lookup"),
        replace(THREE, footer={"lookup_crc32c": 1}),
    )
    yield bad_pack(
        "hashes_descend",
        "The hashes are in descending order.",
        *("P-IDX-6", "bad_offset", "lookup", replace(THREE, hashes=hashes[::-1])),
    )
    yield bad_pack(
        "numbers_beyond",
        "A hash belongs to record 3 of 3.",
        *("P-IDX-6", "bad_offset", "lookup", replace(THREE, numbers=(0, 3, 1))),
    )
    yield bad_pack(
        "numbers_largest",
        "A hash belongs to record 2^32 - 1.",
        *("P-IDX-6", "bad_offset", "lookup", replace(THREE, numbers=(LARGEST_U32, 0, 1))),
    )
    yield bad_pack(
        "index_metadata_checksum",
        "The checksum of the metadata is wrong.",
        *("P-IDX-7", "checksum_mismatch", "index_metadata"),
        replace(THREE, footer={"metadata_crc32c": 1}),
    )
    for name, description, text in _bad_json():
        yield bad_pack(
            f"index_metadata_{name}",
            description,
            *("P-IDX-8", "bad_metadata", "index_metadata", replace(THREE, metadata=text)),
        )
    twice = Pack((FIRST, Record("first", (Part("y.txt", b"second", TEXT),)), LAST))
    yield bad_pack(
        "duplicate_key",
        "Two records have the same key.",
        *("P-REC-10", "duplicate_name", "key", twice),
        key="first",
    )


def _index_of(pack: Pack) -> bytes:
    return pack.data[pack.starts[-1] :]


def _bad_json() -> Iterator[tuple[str, str, bytes]]:
    """Name, description and text of what is no JSON object of the registry."""
    yield "missing", "No bytes.", b""
    yield "list", "A list.", b"[]"
    yield "cut", "It ends too early.", b'{"a":1'
    yield "trailing", "Bytes follow the object.", b"{}x"
    yield "repeats", "A key occurs twice.", b'{"a":1,"a":2}'
    yield "nan", "NaN.", b'{"a":NaN}'
    yield "surrogate", "A lone surrogate, escaped.", b'{"a":"\\ud800"}'
    yield "not_utf8", "A byte that is not UTF-8.", b'{"a":"\xff"}'
    yield "bom", "A byte order mark.", b"\xef\xbb\xbf{}"
    yield "deep", "129 levels.", nested(129)[0]
    yield "very_deep", "20 000 levels that do not end.", b'{"a":' + b"[" * 20_000


def _bad_messagepack() -> Iterator[tuple[str, str, bytes]]:
    yield "missing", "No bytes.", b""
    yield "list", "A list.", b"\x90"
    yield "cut", "A map of one pair, and no pair.", b"\x81"
    yield "cut_text", "A text of 5 bytes, of which 1 is there.", b"\x81\xa5a"
    yield "trailing", "A byte follows the map.", b"\x80\xc0"
    yield "repeats", "A key occurs twice.", b"\x82\xa1a\x01\xa1a\x02"
    yield "repeats_inside", "A key occurs twice in an inner map.", b"\x81\x01\x82\x02\x03\x02\x04"
    yield "list_as_key", "A list as a key.", b"\x81\x90\x01"
    yield "map_as_key", "A map as a key.", b"\x81\x80\x01"
    yield "unknown", "The first byte that means nothing.", b"\x81\xa1a\xc1"
    yield "not_utf8", "A text that is not UTF-8.", b"\x81\xa1a\xa1\xff"
    yield "deep", "129 levels.", nested(129)[1]
    yield "very_deep", "20 000 levels that do not end.", b"\x81\xa1a" + b"\x91" * 20_000
    yield "claims_pairs", "2^32 - 1 pairs are claimed.", b"\xdf\xff\xff\xff\xff\x01\x01"
    yield "claims_items", "2^32 - 1 items are claimed.", b"\x81\x01\xdd\xff\xff\xff\xff\xc0"
    yield "claims_bytes", "2^32 - 1 bytes are claimed.", b"\x81\x01\xc6\xff\xff\xff\xffx"


def _metadata() -> Iterator[InvalidPack]:
    yield bad_record(
        "metadata_without_encoding",
        "Metadata of two bytes, and no encoding.",
        *("P-MTD-1", "bad_metadata", replace(BAD, metadata=b"{}")),
        when="metadata",
    )
    for rule, encoding, kind, cases in (
        ("P-MTD-2", JSON, "json", _bad_json()),
        ("P-MTD-3", MESSAGEPACK, "messagepack", _bad_messagepack()),
    ):
        for name, description, stored in cases:
            yield bad_record(
                f"metadata_{kind}_{name}",
                f"{kind}: {description}",
                *(rule, "bad_metadata"),
                replace(BAD, metadata=stored, metadata_encoding=encoding),
                when="metadata",
            )


def _heads() -> Iterator[InvalidPack]:
    def head(name: str, description: str, rule: str, error: str, **fields: int) -> InvalidPack:
        return bad_record(name, description, rule, error, replace(BAD, head=fields))

    def key(name: str, description: str, key_bytes: bytes, error: str = "bad_name") -> InvalidPack:
        return bad_record(name, description, "P-REC-5", error, replace(BAD, key=key_bytes))

    for size in (8, 35):
        block = replace(BAD, head={"record_size": size}).data[:size]
        yield InvalidPack(
            f"record_of_{size}_bytes",
            f"A block of {size} bytes between two records.",
            *("P-REC-1", "bad_offset", "record"),
            _with_block(block),
            1,
            rules_also=("P-REC-7",),
        )
    yield head("marker", "The marker of version 2.", "P-REC-2", "bad_magic", marker=0x32525053)
    yield head("record_version", "Version 2.", "P-REC-3", "unsupported_version", version=2)
    for name, fields in (
        ("metadata_encoding", {"metadata_encoding": 3}),
        ("alignment_0", {"alignment": 0}),
        ("alignment_16", {"alignment": 16}),
        ("flags", {"flags": 1}),
    ):
        (value,) = fields.values()
        yield bad_record(
            f"record_{name}", f"{value}.", "P-REC-4", "bad_header", replace(BAD, head=fields)
        )
    yield key("key_empty", "No key.", b"")
    yield key("key_not_utf8", "A byte that is not UTF-8.", b"ba\xff")
    yield key("key_surrogate", "A surrogate as three bytes.", b"\xed\xa0\x80")
    yield key("key_overlong", "A slash in two bytes.", b"a\xc0\xaf")
    yield key("key_nul", "U+0000.", b"ba\0d")
    yield key("key_too_long", "65 537 bytes.", b"k" * 65_537, "limit_exceeded")
    for name, rule, field in (
        ("key_size_largest", "P-REC-5", "key_size"),
        ("entry_count_largest", "P-REC-6", "entry_count"),
        ("metadata_size_largest", "P-REC-6", "metadata_size"),
        ("kinds_size_largest", "P-REC-6", "kinds_size"),
    ):
        yield bad_record(
            name, "2^32 - 1.", rule, "limit_exceeded", replace(BAD, head={field: LARGEST_U32})
        )
    yield head(
        "entry_count_allowed",
        "As many entries as allowed are claimed, of which one is there.",
        *("P-REC-7", "bad_offset"),
        entry_count=1 << 20,
    )
    size = len(BAD.data)
    yield head(
        "head_larger", "The key ends behind the record.", "P-REC-7", "bad_offset", key_size=size
    )
    yield head("record_size_0", "0.", "P-REC-7", "size_mismatch", record_size=0)
    yield head(
        "record_size_smaller", "8 bytes less.", "P-REC-7", "size_mismatch", record_size=size - 8
    )
    yield head(
        "record_size_larger", "8 bytes more.", "P-REC-7", "size_mismatch", record_size=size + 8
    )
    yield head(
        "record_size_largest", "2^64 - 1.", "P-REC-7", "size_mismatch", record_size=LARGEST_U64
    )
    yield bad_record(
        "head_checksum",
        "The checksum of the head is wrong.",
        *("P-REC-8", "checksum_mismatch", replace(BAD, head_crc32c=0)),
    )


def _with_block(block: bytes) -> bytes:
    """Any bytes as the second of three records."""
    records = FIRST.data + block + LAST.data
    start = len(FIRST.data)
    offsets = (0, start, start + len(block), len(records))
    pack = replace(THREE, offsets=offsets)
    return records + _index_of(replace(pack, footer=_moved(pack, len(records))))


def _moved(pack: Pack, end: int) -> dict[str, int]:
    return {"index_offset": end, "total_size": end + len(_index_of(pack))}


def _cut_shards() -> Iterator[InvalidPack]:
    whole, starts = THREE.data, THREE.starts
    records = THREE.record_bytes

    def cut(
        name: str, description: str, data: bytes, rule: str = "P-REC-7", error: str = "truncated"
    ) -> InvalidPack:
        rules = ("P-FTR-1",) if rule == "P-REC-7" else ()
        return bad_pack(name, description, rule, error, "stream", data, rules_also=rules)

    yield cut("cut_in_last_entry", "The last record is cut in its entry.", records[:-8])
    yield cut("cut_in_head", "The second record is cut in its head.", whole[: starts[1] + 40])
    yield cut("cut_in_size", "4 bytes of the third record.", whole[: starts[2] + 4], "P-FTR-1")
    yield cut("no_index", "All records and no index.", records, "P-FTR-1")
    index = whole[: starts[3] + INDEX_HEAD_SIZE + 20]
    yield cut("cut_in_index", "All records and a part of the index.", index, "P-FTR-1")
    yield cut("cut_in_footer", "Half of the footer is missing.", whole[:-32], "P-FTR-1")
    yield cut(
        "claimed_space",
        "All records, and zero bytes that a writer claimed and did not use.",
        *(records + bytes(500), "P-FTR-1"),
    )
    yield cut(
        "claimed_little",
        "All records and 5 zero bytes.",
        *(records + bytes(5), "P-FTR-1"),
    )
    yield cut(
        "garbage_behind",
        "All records, and behind them text.",
        *(records + b"This is no block of a shard.", "P-REC-2", "bad_magic"),
    )
    yield cut(
        "record_claims_much",
        "The second record claims 2^40 bytes, and there is no index.",
        records[: starts[1]] + TEBI.to_bytes(8, "little") + records[starts[1] + 8 :],
    )
    yield bad_pack(
        "index_claims_much",
        "The index claims 2^40 bytes, and the footer is missing.",
        *("P-IDX-1", "limit_exceeded", "stream"),
        records + TEBI.to_bytes(8, "little") + index[starts[3] + 8 :],
    )
    yield bad_pack(
        "record_of_20_bytes",
        "A record of 20 bytes, and no index.",
        *("P-REC-1", "bad_offset", "stream"),
        records[: starts[1]] + (20).to_bytes(8, "little") + b"SPR1" + bytes(8) + LAST.data,
        rules_also=("P-REC-7",),
    )
    lost_middle = records[: starts[1]] + bytes(starts[2] - starts[1]) + records[starts[2] :]
    yield bad_pack(
        "hole",
        "The second record is all zeros, and there is no index.",
        *("P-FTR-1", "truncated", "stream", lost_middle),
        also=("bad_magic",),
    )
    two = Pack((FIRST, LAST))
    fewer = Pack((FIRST,), metadata=two.metadata_bytes, offsets=(0, two.starts[2]))
    end = two.starts[2]
    index_of_one = _index_of(replace(fewer, footer=_moved(fewer, end)))
    yield bad_pack(
        "fewer_records_stated",
        "Two records, and an index that takes both for one.",
        *("P-IDX-2", "size_mismatch", "stream", two.record_bytes + index_of_one),
    )
    # A whole record inside an entry: with the index it is content, without it may be taken for one.
    inner = Record("inner", (HELLO,))
    around = Record("around", (Part("a.bin", inner.data, "application/octet-stream"),))
    damaged = Pack((FIRST, replace(around, head_crc32c=0), LAST))
    yield InvalidPack(
        "record_inside_entry",
        "A damaged record holds another in its entry, which the index says is none.",
        *("P-REC-8", "checksum_mismatch", "record", damaged.data, 1),
    )


def head_vectors() -> Iterator[InvalidPack]:
    yield from _footers()
    yield from _indexes()
    yield from _heads()
    yield from _metadata()
    yield from _cut_shards()
