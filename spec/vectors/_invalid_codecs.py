"""Files whose entries break the rules of compression, checksums and seek tables.

Every file also has the undamaged entry `other`, which must stay readable.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from _compress import (
    COMPRESSED,
    RESERVED,
    SEEK_CHECKSUM_BIT,
    Block,
    SeekRow,
    checked_frame,
    content_checksum,
    lz4_last_literals,
    lz4_repeated,
    lz4_sequence,
    plain_frame,
    raw_blocks,
    seek_rows,
    seek_table,
    skippable_frame,
    zero_blocks,
    zstd_frame,
)
from _encode import Container, Entry, encode
from _layout import ENTRY_COMPRESSED, ENTRY_LZ4, ENTRY_ZSTD, LZ4, ZSTD, with_entry
from _primitives import crc32c, crc32c_of_zeros
from _vector import Invalid, byte_ramp, numbered_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "data"
TEXT = numbered_lines(500)
CHECKED = checked_frame(TEXT)
GIB = 1 << 30
MIB = 1 << 20


def _file(
    stored: bytes,
    content: bytes = TEXT,
    *,
    flags: int = ZSTD,
    orig_size: int | None = None,
    checksum: int | None = None,
    compression_default: int = 0,
    header_flags: int | None = None,
) -> bytes:
    """A file with the entry under test; by default its size and checksum are those of TEXT."""
    entries = (
        Entry(NAME, content, flags=flags, stored=stored, crc32c=checksum),
        Entry("other", b"undamaged"),
    )
    data = encode(Container(entries, compression_default=compression_default, flags=header_flags))
    return data if orig_size is None else with_entry(data, 0, orig_size=orig_size)


def _at_read(
    name: str, description: str, rule: str, error: str, data: bytes, also: tuple[str, ...] = ()
) -> Invalid:
    return Invalid(name, description, rule, error, "read", data, entry=NAME, also=also)


def _codec_choice() -> Iterator[Invalid]:
    both = ENTRY_COMPRESSED | ENTRY_ZSTD | ENTRY_LZ4
    choices = {
        "both_bits": ("Both codec bits are set.", both, 0),
        "both_bits_with_default": ("Both codec bits are set, and a default codec.", both, 1),
        "none": ("Flag 1, no codec bit, compression_default 0.", ENTRY_COMPRESSED, 0),
        "default_9": ("Flag 1, no codec bit, compression_default 9.", ENTRY_COMPRESSED, 9),
    }
    for name, (description, flags, default) in choices.items():
        data = _file(CHECKED, flags=flags, compression_default=default)
        yield _at_read(f"codec_{name}", description, "S-CMP-1", "unknown_codec", data)
    empty = _file(b"", b"", flags=ENTRY_COMPRESSED)
    what = "An entry of no bytes: flag 1, no codec bit, compression_default 0."
    yield _at_read("codec_none_empty", what, "S-CMP-1", "unknown_codec", empty)


def _limits() -> Iterator[Invalid]:
    size = GIB + 1
    yield _at_read(
        "zstd_orig_size_above_1_gib",
        "A true encoding of 1 GiB + 1 zero bytes: honest, and too large for the default limit.",
        "S-CMP-2",
        "limit_exceeded",
        _file(
            zstd_frame(zero_blocks(size), content_size=size),
            orig_size=size,
            checksum=crc32c_of_zeros(size),
        ),
    )
    for codec, flags in (("zstd", ZSTD), ("lz4", LZ4)):
        yield _at_read(
            f"{codec}_orig_size_2_63",
            "orig_size is 2^63; the limit is checked before what the stored bytes can reach.",
            "S-CMP-2",
            "limit_exceeded",
            _file(CHECKED, flags=flags, orig_size=1 << 63),
            also=("size_mismatch",),
        )
    frame = zstd_frame(raw_blocks(TEXT))
    yield _at_read(
        "zstd_orig_size_unreachable",
        "orig_size is one more than 32768 times disk_size.",
        "S-CMP-8",
        "size_mismatch",
        _file(frame, orig_size=32768 * len(frame) + 1),
    )
    block = lz4_last_literals(TEXT)
    yield _at_read(
        "lz4_orig_size_unreachable",
        "orig_size is one more than 255 times disk_size plus 64.",
        "S-CMP-8",
        "size_mismatch",
        _file(block, flags=LZ4, orig_size=255 * len(block) + 65),
    )


def _zstd_sizes() -> Iterator[Invalid]:
    blocks = raw_blocks(TEXT)
    checksum = content_checksum(TEXT)
    half = zstd_frame(raw_blocks(TEXT[:250]), content_size=(1 << 63) + 250)
    rest = zstd_frame(raw_blocks(TEXT[250:]), content_size=(1 << 63) + 250)
    declared = {
        "smaller": ("one byte less than orig_size", plain_frame(TEXT[:-1])),
        "larger": ("one byte more than orig_size", plain_frame(TEXT + b"!")),
        "1_tib": ("1 TiB", zstd_frame(blocks, content_size=1 << 40, checksum=checksum)),
        "sum_wraps": ("sizes whose 64-bit sum is orig_size", half + rest),
        "second_frame": ("a second frame that is too much", plain_frame(TEXT) + plain_frame(b"!")),
    }
    for name, (what, stored) in declared.items():
        yield _at_read(
            f"zstd_declares_{name}",
            f"The zstd frames declare {what}.",
            "S-CMP-3",
            "size_mismatch",
            _file(stored),
        )
    undeclared = {
        "longer": ("The frame has one byte more than orig_size.", TEXT + b"!"),
        "shorter": ("The frame has one byte less than orig_size.", TEXT[:-1]),
        "empty": ("The frame has no content.", b""),
    }
    for name, (description, content) in undeclared.items():
        yield _at_read(
            f"zstd_decodes_{name}",
            f"{description} It declares no content size.",
            "S-CMP-3",
            "size_mismatch",
            _file(zstd_frame(raw_blocks(content))),
        )
    yield _at_read(
        "zstd_decodes_longer_in_second_frame",
        "The first frame holds all of orig_size, a second one a byte more; no sizes declared.",
        "S-CMP-3",
        "size_mismatch",
        _file(zstd_frame(blocks) + zstd_frame(raw_blocks(b"!"))),
    )
    bomb = zero_blocks(64 * MIB)
    yield _at_read(
        "zstd_bomb",
        "64 MiB of zero bytes that claim to be 100; no content size declared.",
        "S-CMP-3",
        "size_mismatch",
        _file(zstd_frame(bomb), bytes(100)),
    )
    yield _at_read(
        "zstd_bomb_declares_orig_size",
        "64 MiB of zero bytes that claim to be 100, in the index and in the frame header.",
        "S-CMP-4",
        "bad_compression",
        _file(zstd_frame(bomb, content_size=100), bytes(100)),
        also=("size_mismatch",),
    )


def _zstd_damage() -> Iterator[Invalid]:
    no_tables = Block(COMPRESSED, b"\xf3" + byte_ramp(60), 61)
    wrong_checksum = content_checksum(TEXT) ^ 1
    two_blocks = zstd_frame((*raw_blocks(TEXT[:250]), *raw_blocks(TEXT[250:])))
    reserved_bit = bytearray(CHECKED)
    reserved_bit[4] |= 0x08
    damaged = {
        "garbage": ("Bytes that are no frame.", byte_ramp(64)),
        "old_magic": ("The magic of zstd 0.7.", b"\x27" + CHECKED[1:]),
        "cut_last_byte": ("The last byte of the frame checksum is missing.", CHECKED[:-1]),
        "cut_checksum": ("The frame checksum is missing.", CHECKED[:-4]),
        "cut_block": ("The frame ends in its block.", CHECKED[:-100]),
        "cut_at_block": (
            "The frame ends after the first of two blocks.",
            two_blocks[: 6 + 3 + 250],
        ),
        "cut_header": ("The frame ends in its header.", CHECKED[:7]),
        "cut_magic": ("Three bytes of the magic.", CHECKED[:3]),
        "block": (
            "A compressed block that refers to Huffman tables which no block has defined.",
            zstd_frame((no_tables,), content_size=len(TEXT)),
        ),
        "block_type": (
            "A block of the reserved type 3.",
            zstd_frame((Block(RESERVED, TEXT, len(TEXT)),), content_size=len(TEXT)),
        ),
        "reserved_bit": ("The reserved bit of the frame header is set.", bytes(reserved_bit)),
        "checksum": (
            "The frame checksum is wrong, the content and its CRC-32C are right.",
            zstd_frame(raw_blocks(TEXT), content_size=len(TEXT), checksum=wrong_checksum),
        ),
        "second_frame": (
            "The second of two frames is cut.",
            plain_frame(TEXT[:250]) + plain_frame(TEXT[250:])[:-1],
        ),
    }
    for name, (description, stored) in damaged.items():
        yield _at_read(
            f"zstd_damaged_{name}",
            description,
            "S-CMP-4",
            "bad_compression",
            _file(stored),
            also=("checksum_mismatch",) if name == "checksum" else (),
        )
    yield _at_read(
        "zstd_damaged_empty_frame",
        "A frame that declares no content, and has none, with a wrong checksum.",
        "S-CMP-4",
        "bad_compression",
        _file(zstd_frame(raw_blocks(b""), content_size=0, checksum=content_checksum(b"") ^ 1), b""),
        also=("checksum_mismatch",),
    )
    yield _at_read(
        "zstd_empty_input",
        "A compressed entry without stored bytes.",
        "S-CMP-4",
        "bad_compression",
        _file(b"", b""),
    )
    for name, flags, default in (("zstd", ZSTD, 0), ("default", ENTRY_COMPRESSED, 1)):
        yield _at_read(
            f"raw_bytes_flagged_{name}",
            "Flag 1 on raw bytes: disk_size equals orig_size and the CRC-32C fits them.",
            "S-CMP-4",
            "bad_compression",
            _file(TEXT, flags=flags, compression_default=default),
        )


def _zstd_structure() -> Iterator[Invalid]:
    around = {
        "garbage_before": ("Bytes before the frame.", b"junk" + CHECKED),
        "garbage_after": ("Bytes after the frame.", CHECKED + b"more junk"),
        "zeros_after": ("Eight zero bytes after the frame.", CHECKED + bytes(8)),
        "byte_after": ("One byte after the frame.", CHECKED + b"\x28"),
        "garbage_between": (
            "Bytes between two frames.",
            plain_frame(TEXT[:250]) + b"junk" + plain_frame(TEXT[250:]),
        ),
        "skippable_cut": (
            "The skippable frame after the frame is shorter than it says.",
            CHECKED + skippable_frame(b"ignored")[:-1],
        ),
    }
    for name, (description, stored) in around.items():
        yield _at_read(f"zstd_{name}", description, "S-CMP-5", "bad_compression", _file(stored))
    yield _at_read(
        "zstd_only_skippable",
        "Nothing but a skippable frame; orig_size is 0.",
        "S-CMP-5",
        "bad_compression",
        _file(skippable_frame(b"ignored"), b""),
    )
    yield _at_read(
        "zstd_only_skippable_with_size",
        "Nothing but a skippable frame; orig_size is 500.",
        "S-CMP-5",
        "bad_compression",
        _file(skippable_frame(b"ignored")),
        also=("size_mismatch",),
    )
    yield _at_read(
        "zstd_dictionary",
        "The frame names dictionary 7.",
        "S-CMP-6",
        "bad_compression",
        _file(zstd_frame(raw_blocks(TEXT), content_size=len(TEXT), dictionary_id=7)),
    )
    windows = {
        "144_mib": ("144 MiB, the next value above the limit", 17 << 3 | 1),
        "256_mib": ("256 MiB", 18 << 3),
        "largest": ("3.75 TiB, the largest there is", 0xFF),
    }
    for name, (what, window) in windows.items():
        yield _at_read(
            f"zstd_window_{name}",
            f"The frame asks for a window of {what}.",
            "S-CMP-7",
            "limit_exceeded",
            _file(zstd_frame(raw_blocks(TEXT), content_size=len(TEXT), window=window)),
        )
    size = 128 * MIB + 1
    yield _at_read(
        "zstd_window_single_segment",
        "A single-segment frame of 128 MiB + 1 zero bytes: its content is its window.",
        "S-CMP-7",
        "limit_exceeded",
        _file(
            zstd_frame(zero_blocks(size), content_size=size, single_segment=True),
            orig_size=size,
            checksum=crc32c_of_zeros(size),
        ),
    )


def _lz4() -> Iterator[Invalid]:
    content, block = lz4_repeated(b"abcdef", 500)
    literals = lz4_last_literals(TEXT)
    end = lz4_last_literals(content[-12:])
    frame_format = bytes.fromhex("04224d18604082f4010080") + TEXT + bytes(4)
    damaged = {
        "garbage": ("Literals that the block does not have.", b"\xf0\x64garbage"),
        "cut_literals": ("The last byte of the literals is missing.", literals[:-1]),
        "cut_offset": ("The block ends in the offset of a match.", block[: 1 + 6 + 1]),
        "cut_length": ("The block ends in the length of a match.", block[: 1 + 6 + 2]),
        "offset_beyond_start": (
            "A match that starts one byte before the content.",
            lz4_sequence(b"abcdef", 7, 482) + end,
        ),
        "frame_format": ("The lz4 frame format instead of a block.", frame_format),
    }
    for name, (description, stored) in damaged.items():
        yield _at_read(
            f"lz4_damaged_{name}",
            description,
            "S-CMP-4",
            "bad_compression",
            _file(stored, content, flags=LZ4),
        )
    yield _at_read(
        "lz4_damaged_offset_0",
        "A match with offset 0. Some lz4 libraries decode it, to other content.",
        "S-CMP-4",
        "bad_compression",
        _file(lz4_sequence(b"abcdef", 0, 482) + end, content, flags=LZ4),
        also=("checksum_mismatch",),
    )
    yield _at_read(
        "lz4_empty_input",
        "A compressed entry without stored bytes.",
        "S-CMP-4",
        "bad_compression",
        _file(b"", b"", flags=LZ4),
    )
    yield _at_read(
        "lz4_size_prefix",
        "The size of the content, and then the block.",
        "S-CMP-9",
        "bad_compression",
        _file(len(content).to_bytes(4, "little") + block, content, flags=LZ4),
    )
    sizes = {
        "longer": ("one byte more", content[:-1]),
        "shorter": ("one byte less", content + b"!"),
        # Zero bytes at the end of a buffer that was not filled would satisfy the CRC-32C.
        "shorter_by_zeros": ("eight bytes less", content + bytes(8)),
    }
    for name, (what, claimed) in sizes.items():
        yield _at_read(
            f"lz4_decodes_{name}",
            f"The block decodes to {what} than orig_size.",
            "S-CMP-3",
            "size_mismatch",
            _file(block, claimed, flags=LZ4),
        )


def _checksums() -> Iterator[Invalid]:
    wrong = crc32c(TEXT) ^ 0x80000000
    content, block = lz4_repeated(b"abcdef", 500)
    cases = {
        "raw": ("The CRC-32C of a raw entry is wrong.", _file(TEXT, flags=0, checksum=wrong)),
        "zstd": ("The CRC-32C of a zstd entry is wrong.", _file(CHECKED, checksum=wrong)),
        "lz4": (
            "The CRC-32C of an lz4 entry is wrong.",
            _file(block, content, flags=LZ4, checksum=crc32c(content) ^ 1),
        ),
        "of_stored_bytes": (
            "The CRC-32C of the stored bytes instead of the content.",
            _file(CHECKED, checksum=crc32c(CHECKED)),
        ),
        "zero": (
            "The stored value is 0 and header flag 0x0020 is set.",
            _file(TEXT, flags=0, checksum=0),
        ),
        "flag_clear": (
            "The header flags are 0; a stored value other than 0 counts all the same.",
            _file(TEXT, flags=0, checksum=wrong, header_flags=0),
        ),
        "empty_entry": ("An empty entry with a CRC-32C.", _file(b"", b"", flags=0, checksum=1)),
    }
    for name, (description, data) in cases.items():
        yield _at_read(f"crc_{name}", description, "S-CRC-1", "checksum_mismatch", data)


PARTS = [TEXT[:200], TEXT[200:400], TEXT[400:]]
SECOND_PART = (200, 200)


def _seek(
    name: str,
    description: str,
    rule: str,
    rows: list[SeekRow],
    *,
    frames: list[bytes] | None = None,
    error: str = "bad_seek_table",
    descriptor: int | None = None,
) -> Invalid:
    """A seekable entry of three frames; the range to ask for is the content of the second."""
    stored = b"".join(frames or [checked_frame(part) for part in PARTS])
    data = _file(stored + seek_table(rows, descriptor=descriptor))
    return Invalid(f"seek_{name}", description, rule, error, "range", data, NAME, SECOND_PART)


def _seek_tables() -> Iterator[Invalid]:
    rows = seek_rows([checked_frame(part) for part in PARTS], PARTS)
    first, second, third = rows

    def grown(row: SeekRow, *, compressed: int = 0, decompressed: int = 0) -> SeekRow:
        return replace(
            row,
            compressed_size=row.compressed_size + compressed,
            decompressed_size=row.decompressed_size + decompressed,
        )

    for bit in (2, 6):
        yield _seek(
            f"reserved_bit_{bit}",
            f"Bit {bit} of the descriptor is set.",
            "S-SEK-1",
            rows,
            descriptor=SEEK_CHECKSUM_BIT | 1 << bit,
        )
    sums = {
        "compressed_sum_larger": [first, second, grown(third, compressed=1)],
        "compressed_sum_smaller": [first, second, grown(third, compressed=-1)],
        "decompressed_sum_larger": [first, second, grown(third, decompressed=1)],
        "decompressed_sum_smaller": [first, second, grown(third, decompressed=-1)],
        "row_missing": [first, second],
        "row_too_many": [*rows, SeekRow(100, 100, 0)],
        "sums_wrap": [
            grown(first, compressed=1 << 31, decompressed=1 << 31),
            grown(second, compressed=1 << 31, decompressed=1 << 31),
            third,
        ],
        "no_rows": [],
    }
    for name, lying in sums.items():
        what = name.replace("_", " ")
        yield _seek(name, f"The table does not add up: {what}.", "S-SEK-2", lying)
    shifted = {
        "frames_shifted": (
            "The table moves the border between the first two frames by one byte.",
            [grown(first, compressed=1), grown(second, compressed=-1), third],
        ),
        "frame_too_long": (
            "The table gives the second frame a byte of the third.",
            [first, grown(second, compressed=1), grown(third, compressed=-1)],
        ),
        "contents_shifted": (
            "The table moves one byte of content from the first frame to the second.",
            [grown(first, decompressed=-1), grown(second, decompressed=1), third],
        ),
    }
    for name, (description, lying) in shifted.items():
        yield _seek(name, description, "S-SEK-3", lying)
    undeclared = [zstd_frame(raw_blocks(part)) for part in PARTS]
    first, second, third = seek_rows(undeclared, PARTS, checksums=False)
    yield _seek(
        "contents_shifted_undeclared",
        "As contents_shifted, with frames that declare no content size and have no checksum.",
        "S-SEK-3",
        [grown(first, decompressed=-1), grown(second, decompressed=1), third],
        frames=undeclared,
    )


def _seek_checksums() -> Iterator[Invalid]:
    checked = [checked_frame(part) for part in PARTS]
    plain = [plain_frame(part) for part in PARTS]
    rows = seek_rows(checked, PARTS)
    wrong_row = replace(rows[1], checksum=content_checksum(PARTS[1]) ^ 1)

    def flip_last_content_byte(frame: bytes, checksum_size: int) -> bytes:
        at = len(frame) - checksum_size - 1
        return frame[:at] + bytes([frame[at] ^ 0x20]) + frame[at + 1 :]

    flipped_checked = flip_last_content_byte(checked[1], 4)
    flipped_plain = flip_last_content_byte(plain[1], 0)
    wrong_own = checked[1][:-1] + bytes([checked[1][-1] ^ 1])
    cases = {
        "checksum_in_table": (
            "The checksum in the table is wrong, the frame and its own checksum are right.",
            [rows[0], wrong_row, rows[2]],
            checked,
        ),
        "checksum_in_frame": (
            "The frame's own checksum is wrong, the one in the table is right.",
            rows,
            [checked[0], wrong_own, checked[2]],
        ),
        "content_flipped": (
            "A flipped bit of content; both checksums notice.",
            rows,
            [checked[0], flipped_checked, checked[2]],
        ),
        "content_flipped_table_only": (
            "A flipped bit of content; only the table has a checksum.",
            seek_rows(plain, PARTS),
            [plain[0], flipped_plain, plain[2]],
        ),
        "content_flipped_frame_only": (
            "A flipped bit of content; only the frame has a checksum.",
            seek_rows(checked, PARTS, checksums=False),
            [checked[0], flipped_checked, checked[2]],
        ),
    }
    for name, (description, table, frames) in cases.items():
        yield _seek(name, description, "S-SEK-4", table, frames=frames, error="checksum_mismatch")


def codec_vectors() -> Iterator[Invalid]:
    yield from _codec_choice()
    yield from _limits()
    yield from _zstd_sizes()
    yield from _zstd_damage()
    yield from _zstd_structure()
    yield from _lz4()
    yield from _checksums()
    yield from _seek_tables()
    yield from _seek_checksums()
