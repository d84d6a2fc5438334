"""Shards with kinds or an entry that break a rule."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from _compress import (
    COMPRESSED,
    RESERVED,
    WINDOW_128_MIB,
    Block,
    checked_frame,
    lz4_last_literals,
    lz4_repeated,
    lz4_sequence,
    plain_frame,
    raw_blocks,
    skippable_frame,
    zero_blocks,
    zstd_frame,
)
from _gzip import member, zeros
from _invalid_packs import BAD, LARGEST_U64, bad_record
from _pack import GZIP, LZ4, ZSTD, Part
from _valid_packs import TEXT
from _vector import byte_ramp, numbered_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _vector import InvalidPack

GIB = 1 << 30
LINES = numbered_lines(400)
BEFORE, AFTER = Part("before", b"1", TEXT), Part("other", b"2", TEXT)


def _kinds() -> Iterator[InvalidPack]:
    def kinds(name: str, description: str, stored: bytes) -> InvalidPack:
        record = replace(BAD, kinds=stored)
        return bad_record(name, description, "P-KND-1", "size_mismatch", record)

    def part(name: str, description: str, rule: str, error: str, wrong: Part) -> InvalidPack:
        return bad_record(name, description, rule, error, replace(BAD, parts=(BEFORE, wrong)))

    stored = BAD.parts[0].kind
    yield kinds("kinds_longer", "A byte more than its one kind.", stored + b"\0")
    yield kinds("kinds_shorter", "A byte less than its one kind.", stored[:-1])
    yield kinds("kinds_cut", "3 bytes, which hold no sizes.", stored[:3])
    yield kinds("kinds_missing", "No kinds, and one entry.", b"")
    yield kinds("kinds_lie", "A name of 65 535 bytes is claimed.", b"\xff\xff" + stored[2:])
    for name, description, raw in (
        ("name_empty", "No name.", b""),
        ("name_not_utf8", "A byte that is not UTF-8.", b"a\xff"),
        ("name_surrogate", "A surrogate as three bytes.", b"\xed\xa0\x80"),
        ("name_nul", "U+0000.", b"a\0b"),
    ):
        yield part(name, description, "P-KND-2", "bad_name", Part(raw, b"hello", TEXT))
    for name, description, content_type in (
        ("content_type_too_long", "256 bytes.", b"x" * 256),
        ("content_type_tab", "A tab.", b"text/\tplain"),
        ("content_type_delete", "The byte 0x7f.", b"text/plain\x7f"),
        ("content_type_not_ascii", "A letter outside ASCII.", "text/größe".encode()),
    ):
        wrong = Part("x.txt", b"hello", content_type)
        yield part(name, description, "P-KND-3", "bad_header", wrong)
    yield part(
        "duplicate_name",
        "Two entries have the same name.",
        *("P-KND-4", "duplicate_name", Part("before", b"hello", TEXT)),
    )


def _entry(
    name: str,
    description: str,
    rule: str,
    error: str,
    part: Part,
    *,
    also: tuple[str, ...] = (),
    rules_also: tuple[str, ...] = (),
    is_last: bool = False,
) -> InvalidPack:
    """An entry between two good ones."""
    parts = (BEFORE, part) if is_last else (BEFORE, part, AFTER)
    return bad_record(
        *(name, description, rule, error, replace(BAD, parts=parts)),
        when="entry",
        entry=str(part.name),
        also=also,
        rules_also=rules_also,
    )


def _raw(**row: int) -> Part:
    return Part("x", b"hello", TEXT, row=row)


def _sizes() -> Iterator[InvalidPack]:
    for name, description, size in (
        ("stored_size_beyond", "The entry ends one byte behind the record.", 6),
        ("stored_size_largest", "2^64 - 1 bytes.", LARGEST_U64),
        ("stored_size_wraps", "The end wraps around 2^64 into the record.", LARGEST_U64 - 64),
    ):
        # With its own padding, the record of alignment 1 has no byte behind its last entry.
        part = Part("x", b"hello", TEXT, row={"stored_size": size, "original_size": size})
        record = replace(BAD, parts=(BEFORE, part), alignment=1)
        yield bad_record(
            *(name, description, "P-ENT-1", "bad_offset", record), when="entry", entry="x"
        )
    yield _entry(
        "raw_sizes_differ",
        "Not encoded, and one byte longer after decoding.",
        *("P-ENT-2", "size_mismatch", _raw(original_size=6)),
    )
    yield _entry(
        "raw_original_size_largest",
        "Not encoded, and 2^64 - 1 bytes after decoding.",
        *("P-ENT-2", "size_mismatch", _raw(original_size=LARGEST_U64)),
    )
    yield _entry(
        "entry_checksum",
        "The checksum of a raw entry is wrong.",
        *("P-ENT-3", "checksum_mismatch", _raw(crc32c=0)),
    )
    damaged = Part("x", LINES, TEXT, ZSTD, plain_frame(LINES), row={"crc32c": 0})
    yield _entry(
        "encoded_checksum",
        "The checksum of an encoded entry is wrong; what is stored would decode.",
        *("P-ENT-3", "checksum_mismatch", damaged),
    )
    for number in (4, 255):
        yield _entry(
            f"encoding_{number}", f"{number}.", "P-ENC-1", "unknown_codec", _raw(encoding=number)
        )


def _limits() -> Iterator[InvalidPack]:
    stored = {GZIP: member(LINES), LZ4: lz4_last_literals(LINES), ZSTD: plain_frame(LINES)}
    labels = {GZIP: "gzip", LZ4: "lz4", ZSTD: "zstd"}
    for encoding, data in stored.items():
        for what, size in (("above_limit", GIB + 1), ("largest", LARGEST_U64)):
            part = Part("x", LINES, TEXT, encoding, data, row={"original_size": size})
            yield _entry(
                f"{labels[encoding]}_size_{what}",
                f"{size} bytes after decoding are claimed.",
                *("P-ENC-3", "limit_exceeded", part),
            )
        reach = {GZIP: 1032 * len(data), LZ4: 255 * len(data) + 64, ZSTD: 32_768 * len(data)}
        size = reach[encoding] + 1
        part = Part("x", LINES, TEXT, encoding, data, row={"original_size": size})
        yield _entry(
            f"{labels[encoding]}_not_reachable",
            f"{size} bytes cannot come from {len(data)}.",
            *("P-ENC-4", "size_mismatch", part),
        )
        for difference in (-1, 1):
            size = len(LINES) + difference
            part = Part("x", LINES, TEXT, encoding, data, row={"original_size": size})
            yield _entry(
                f"{labels[encoding]}_{'shorter' if difference > 0 else 'longer'}",
                f"{len(LINES)} bytes where {size} are claimed.",
                *("P-ENC-4", "size_mismatch", part),
                # A decoder of lz4 that is given too little room cannot tell why it does not fit.
                also=("bad_compression",) if encoding == LZ4 else (),
                rules_also=("P-ENC-5",) if encoding == LZ4 else (),
            )
    window = zstd_frame(raw_blocks(LINES), content_size=len(LINES), window=WINDOW_128_MIB + 1)
    yield _entry(
        "zstd_window",
        "A window of 144 MiB.",
        *("P-ENC-3", "limit_exceeded", Part("x", LINES, TEXT, ZSTD, window)),
    )


def _bombs() -> Iterator[InvalidPack]:
    """Small stored bytes that decode to much more than their row says."""
    content, deflated = zeros(8_000)
    lz4_content, block = lz4_repeated(b"bomb", 1 << 21)
    frame = zstd_frame(zero_blocks(1 << 29))
    for name, encoding, stored, size in (
        ("gzip", GZIP, deflated, len(content)),
        ("lz4", LZ4, block, len(lz4_content)),
        ("zstd", ZSTD, frame, 1 << 29),
    ):
        part = Part("x", b"", TEXT, encoding, stored, row={"original_size": 10})
        yield _entry(
            f"bomb_{name}",
            f"{len(stored)} bytes that decode to {size}, of which 10 are stated.",
            *("P-ENC-4", "size_mismatch", part),
            also=("bad_compression",) if encoding == LZ4 else (),
            rules_also=("P-ENC-5",) if encoding == LZ4 else (),
        )
    lying = zstd_frame(zero_blocks(1 << 29), content_size=10)
    yield _entry(
        "bomb_zstd_lying",
        "A frame that declares 10 bytes as its row does, and holds half a GiB.",
        *("P-ENC-4", "size_mismatch"),
        Part("x", b"", TEXT, ZSTD, lying, row={"original_size": 10}),
        also=("bad_compression",),
        rules_also=("P-ENC-5",),
    )


def _broken() -> Iterator[InvalidPack]:
    hello = b"hello" * 10

    def broken(name: str, description: str, encoding: int, stored: bytes) -> InvalidPack:
        part = Part("x", hello, TEXT, encoding, stored)
        return _entry(
            *(name, description, "P-ENC-5", "bad_compression", part),
            # Damaged bytes may end early or late before they are found to be damaged.
            also=("size_mismatch",),
            rules_also=("P-ENC-4",),
        )

    good = member(hello)
    flipped = good[:20] + bytes([good[20] ^ 1]) + good[21:]
    yield broken("gzip_empty", "No bytes.", GZIP, b"")
    yield broken("gzip_not", "Bytes that are no gzip.", GZIP, hello)
    yield broken("gzip_cut", "The last byte is missing.", GZIP, good[:-1])
    yield broken("gzip_no_trailer", "Checksum and size are missing.", GZIP, good[:-8])
    yield broken("gzip_flipped", "A bit of the content is wrong.", GZIP, flipped)
    yield broken("gzip_size", "Its own size is wrong.", GZIP, member(hello, size=7))
    yield broken("gzip_trailing", "A byte follows the member.", GZIP, good + b"\0")
    yield broken("gzip_two", "An empty member follows.", GZIP, good + member(b""))
    split = member(hello[:20]) + member(hello[20:])
    yield broken("gzip_split", "Two members, with a half each.", GZIP, split)
    yield broken("gzip_zlib", "A zlib stream.", GZIP, b"\x78\x01" + good[10:])
    yield broken("lz4_empty", "No bytes.", LZ4, b"")
    yield broken("lz4_literals", "Literals that are not there.", LZ4, b"\xf0\xff\xff")
    offset = lz4_sequence(b"hello", 6, 33) + lz4_last_literals(b"hello hello!")
    yield broken("lz4_offset", "A match from before the start.", LZ4, offset)
    size = len(hello).to_bytes(4, "little")
    yield broken("lz4_size_prefix", "Its size is in front.", LZ4, size + lz4_last_literals(hello))
    yield broken("lz4_trailing", "A block follows.", LZ4, lz4_last_literals(hello) + b"\x50hello")
    frame = plain_frame(hello)
    yield broken("zstd_empty", "No bytes.", ZSTD, b"")
    yield broken("zstd_not", "Bytes that are no zstd.", ZSTD, hello)
    yield broken("zstd_cut", "The last byte is missing.", ZSTD, frame[:-1])
    yield broken("zstd_trailing", "Bytes follow the frame.", ZSTD, frame + b"\0\0\0\0")
    yield broken("zstd_in_front", "A byte stands in front of the frame.", ZSTD, b"\0" + frame)
    yield broken("zstd_skippable_only", "No frame with content.", ZSTD, skippable_frame(hello))
    skip = skippable_frame(b"note")[:-1]
    yield broken("zstd_skippable_cut", "A skippable frame is cut.", ZSTD, frame + skip)
    checked = checked_frame(hello)
    wrong = checked[:-1] + bytes([checked[-1] ^ 1])
    yield _entry(
        "zstd_checksum",
        "The frame's own checksum is wrong.",
        *("P-ENC-5", "checksum_mismatch", Part("x", hello, TEXT, ZSTD, wrong)),
        also=("bad_compression",),
    )
    dictionary = zstd_frame(raw_blocks(hello), content_size=len(hello), dictionary_id=7)
    yield broken("zstd_dictionary", "The frame needs a dictionary.", ZSTD, dictionary)
    reserved = zstd_frame((Block(RESERVED, hello, len(hello)),), content_size=len(hello))
    yield broken("zstd_reserved_block", "A block of the reserved type.", ZSTD, reserved)
    garbage = zstd_frame((Block(COMPRESSED, byte_ramp(20), 20),), content_size=len(hello))
    yield broken("zstd_garbage_block", "A compressed block of garbage.", ZSTD, garbage)
    yield _entry(
        "zstd_declares_other",
        "Frames declare another size than the row does.",
        *("P-ENC-4", "size_mismatch"),
        Part("x", hello, TEXT, ZSTD, zstd_frame(raw_blocks(hello), content_size=len(hello) + 1)),
        also=("bad_compression",),
        rules_also=("P-ENC-5",),
    )


def entry_vectors() -> Iterator[InvalidPack]:
    yield from _kinds()
    yield from _sizes()
    yield from _limits()
    yield from _bombs()
    yield from _broken()
