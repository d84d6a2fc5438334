"""Files that break the rules of the header, the index, the names and the data blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from _encode import Container, Entry, encode
from _layout import FLAG_BIG_ENDIAN, FLAG_CHECKSUMS, FLAG_LITTLE_ENDIAN, with_entry, with_header
from _primitives import crc32c, fnv1a64
from _vector import Invalid, byte_ramp

if TYPE_CHECKING:
    from collections.abc import Iterator

U32_MAX = 0xFFFFFFFF
U64_MAX = 0xFFFFFFFFFFFFFFFF

# Index at 64, string table at 160, data at 176, blocks at 176 and 192, end at 204.
BASE = encode(Container((Entry("a", b"first entry"), Entry("b", b"second entry"))))
TABLE, DATA, END = 160, 176, len(BASE)


def _at_open(name: str, description: str, rule: str, error: str, data: bytes) -> Invalid:
    return Invalid(name, description, rule, error, "open", data)


def _cuts_and_magic() -> Iterator[Invalid]:
    yield _at_open("empty_file", "No bytes at all.", "S-HDR-1", "truncated", b"")
    for size in (1, 3, 4, 5, 8, 16, 32, 48, 63):
        yield _at_open(
            f"cut_in_header_{size:02}",
            f"The first {size} bytes of a valid file.",
            "S-HDR-1",
            "truncated",
            BASE[:size],
        )
    wrong_magic = {
        "text": ("A text file.", b"name,value\n" * 12),
        "text_2_bytes": ("Two bytes of text: the magic is compared before the size.", b"no"),
        "byte_order": ("The magic in the other byte order.", b"DRHS" + BASE[4:]),
        "lower_case": ("The magic in lower case.", b"shrd" + BASE[4:]),
        "last_byte": ("Only the fourth byte of the magic is wrong.", b"SHRd" + BASE[4:]),
        "zeros": ("A file of zero bytes, as a crash can leave it.", bytes(END)),
    }
    for name, (description, data) in wrong_magic.items():
        yield _at_open(f"magic_{name}", description, "S-HDR-2", "bad_magic", data)


def _header_values() -> Iterator[Invalid]:
    for version in (0, 1, 3, 255):
        yield _at_open(
            f"version_{version}",
            f"Version {version}.",
            "S-HDR-3",
            "unsupported_version",
            with_header(BASE, version=version),
        )
    for size in (0, 44, 47, 96):
        yield _at_open(
            f"index_entry_size_{size}",
            f"index_entry_size is {size}.",
            "S-HDR-4",
            "bad_header",
            with_header(BASE, index_entry_size=size),
        )
    for alignment in (1, 8, 24, 128, 255):
        yield _at_open(
            f"alignment_{alignment}",
            f"Alignment {alignment}.",
            "S-HDR-5",
            "bad_header",
            with_header(BASE, alignment=alignment),
        )
    big_endian = {
        "big_endian_flag": FLAG_BIG_ENDIAN | FLAG_CHECKSUMS,
        "both_endian_flags": FLAG_BIG_ENDIAN | FLAG_LITTLE_ENDIAN | FLAG_CHECKSUMS,
    }
    for name, flags in big_endian.items():
        yield _at_open(
            name,
            "The big-endian flag is set.",
            "S-HDR-6",
            "bad_header",
            with_header(BASE, flags=flags),
        )


def _file_sizes() -> Iterator[Invalid]:
    sizes = {
        "total_size_plus_1": ("one more than", "truncated", END + 1),
        "total_size_minus_1": ("one less than", "trailing_data", END - 1),
        "total_size_u64_max": ("far more than", "truncated", U64_MAX),
    }
    for name, (relation, error, total) in sizes.items():
        yield _at_open(
            name,
            f"total_file_size is {relation} the size of the file.",
            "S-HDR-7",
            error,
            with_header(BASE, total_file_size=total),
        )
    lengths = {
        "trailing_byte": ("A zero byte after the end.", "trailing_data", BASE + b"\0"),
        "trailing_file": ("A second copy of the file after the end.", "trailing_data", BASE * 2),
        "cut_last_byte": ("The last byte is missing.", "truncated", BASE[:-1]),
        "cut_in_data": ("The file ends in the first block.", "truncated", BASE[: DATA + 3]),
        "cut_in_names": ("The file ends in the string table.", "truncated", BASE[: TABLE + 1]),
        "cut_in_index": ("The file ends in the index.", "truncated", BASE[:100]),
        "cut_after_header": ("Only the header is left.", "truncated", BASE[:64]),
    }
    for name, (description, error, data) in lengths.items():
        yield _at_open(name, description, "S-HDR-7", error, data)


def _head_offsets() -> Iterator[Invalid]:
    for name, count in (("limit", 10_000_001), ("u32_max", U32_MAX)):
        yield Invalid(
            f"entry_count_{name}",
            f"entry_count is {count} in a file of {END} bytes; the limit is checked first.",
            "S-HDR-8",
            "limit_exceeded",
            "open",
            with_header(BASE, entry_count=count),
            also=("bad_offset",),
        )
    yield _at_open(
        "entry_count_beyond_file",
        "More entries than the file has room for; string_table_offset agrees with them.",
        "S-HDR-9",
        "bad_offset",
        with_header(
            BASE, entry_count=100, string_table_offset=64 + 4800, data_section_offset=64 + 4800
        ),
    )
    long = encode(Container((Entry("a", byte_ramp(100)), Entry("b", byte_ramp(100)))))
    counts = {"one_fewer": 1, "one_more": 3, "zero": 0}
    for name, count in counts.items():
        yield _at_open(
            f"entry_count_{name}",
            f"entry_count is {count}, the index holds 2 entries: string_table_offset disagrees.",
            "S-HDR-10",
            "bad_offset",
            with_header(long, entry_count=count),
        )
    for name, offset in {
        "plus_1": TABLE + 1,
        "minus_1": TABLE - 1,
        "zero": 0,
        "u64_max": U64_MAX,
    }.items():
        yield _at_open(
            f"string_table_offset_{name}",
            f"string_table_offset is {offset} instead of {TABLE}.",
            "S-HDR-10",
            "bad_offset",
            with_header(BASE, string_table_offset=offset),
        )
    for name, offset in {
        "before_names": TABLE - 1,
        "zero": 0,
        "beyond_file": END + 1,
        "u64_max": U64_MAX,
    }.items():
        yield _at_open(
            f"data_section_offset_{name}",
            f"data_section_offset is {offset}; names start at {TABLE}, the file has {END} bytes.",
            "S-HDR-11",
            "bad_offset",
            with_header(BASE, data_section_offset=offset),
        )


def _name_places() -> Iterator[Invalid]:
    table_size = DATA - TABLE
    places = {
        "behind_table": ("starts at the end of the string table", table_size, 1),
        "across_table_end": ("ends one byte behind the string table", table_size - 1, 2),
        "offset_u32_max": ("has the largest offset", U32_MAX, 1),
        "offset_wraps": ("has an offset and a length whose 32-bit sum is 1", U32_MAX, 2),
    }
    for name, (what, offset, length) in places.items():
        yield _at_open(
            f"name_{name}",
            f"The second name {what}.",
            "S-NAM-1",
            "bad_name",
            with_entry(BASE, 1, name_offset=offset, name_length=length),
        )
    yield _at_open(
        "name_without_table",
        "The string table is empty: data_section_offset equals string_table_offset.",
        "S-NAM-1",
        "bad_name",
        with_header(BASE, data_section_offset=TABLE),
    )
    yield _at_open(
        "name_empty",
        "A name of no bytes.",
        "S-NAM-2",
        "bad_name",
        with_entry(BASE, 1, name_length=0),
    )


def _long_names() -> Iterator[Invalid]:
    # Built here: `encode` would hash 100 MiB of names.
    longest, count = 0xFFFF, 1625
    data_start = 64 + 48 * count + longest
    rows = (
        with_entry(bytes(64 + 48), 0, name_length=longest - i, data_offset=data_start)[64:]
        for i in range(count)
    )
    header = with_header(
        BASE[:64],
        alignment=0,
        entry_count=count,
        string_table_offset=64 + 48 * count,
        data_section_offset=data_start,
        total_file_size=data_start,
    )
    yield _at_open(
        "names_too_long_together",
        f"{count} names that share {longest} bytes of the string table: 100.3 MiB together.",
        "S-NAM-9",
        "limit_exceeded",
        header + b"".join(rows) + b"n" * longest,
    )


def _name_bytes() -> Iterator[Invalid]:
    encodings = {
        "overlong_2": ("an overlong slash of two bytes", b"a\xc0\xafb"),
        "overlong_3": ("an overlong slash of three bytes", b"a\xe0\x80\xafb"),
        "overlong_4": ("an overlong euro sign of four bytes", b"\xf0\x82\x82\xac"),
        "overlong_nul": ("an overlong NUL", b"a\xc0\x80"),
        "surrogate": ("a lone surrogate", b"a\xed\xa0\x80"),
        "surrogate_pair": ("a pair of surrogates of three bytes each", b"\xed\xa0\xbd\xed\xb8\x80"),
        "cut_character": ("the first two bytes of a euro sign", b"a\xe2\x82"),
        "continuation": ("a continuation byte on its own", b"a\x80"),
        "ff": ("the byte FF", b"a\xff"),
        "above_10ffff": ("U+110000", b"\xf4\x90\x80\x80"),
        "latin_1": ("Latin-1 text", b"gr\xf6\xdfe"),
    }
    for name, (what, name_bytes) in encodings.items():
        yield _at_open(
            f"name_utf8_{name}",
            f"A name with {what}.",
            "S-NAM-3",
            "bad_name",
            encode(Container((Entry("good", b"1"), Entry(name_bytes, b"2")))),
        )
    cut = encode(Container((Entry("größe", b"1"),)))
    yield _at_open(
        "name_utf8_slice",
        "The string table is valid UTF-8, but name_length ends in the middle of a character.",
        "S-NAM-3",
        "bad_name",
        with_entry(cut, 0, name_length=3),
    )


def _duplicates() -> Iterator[Invalid]:
    twice = encode(
        Container((Entry("same", b"first"), Entry("other", b"second"), Entry("same", b"third")))
    )
    shared = Container((Entry("same", b"first"), Entry("same", b"second")), string_table=b"same\0")
    cases = {
        "duplicate_name": ("Two entries with the same name and hash.", twice),
        "duplicate_name_same_bytes": ("Two entries share one name's bytes.", encode(shared)),
        "duplicate_name_other_hash": (
            "Two entries with the same name; one stores another hash.",
            with_entry(twice, 2, name_hash=fnv1a64(b"same")),
        ),
        "duplicate_name_same_content": (
            "Two entries with the same name and the same bytes.",
            encode(Container((Entry("same", b"equal"), Entry("same", b"equal")))),
        ),
    }
    for name, (description, data) in cases.items():
        yield _at_open(name, description, "S-NAM-4", "duplicate_name", data)


def _aim(data: bytes, index: int, offset: int, size: int) -> bytes:
    """Point a raw entry at other bytes of the file, with the right checksum for them."""
    checksum = crc32c(data[offset : offset + size])
    return with_entry(
        data, index, data_offset=offset, disk_size=size, orig_size=size, crc32c=checksum
    )


def _block_places() -> Iterator[Invalid]:
    before = {
        "by_1": ("starts one byte before the data section", DATA - 1, 4),
        "in_header": ("is the header", 0, 64),
        "empty_at_0": ("is empty and has offset 0", 0, 0),
    }
    for name, (what, offset, size) in before.items():
        yield _at_open(
            f"block_before_data_{name}",
            f"The first block {what}.",
            "S-DAT-1",
            "bad_offset",
            _aim(BASE, 0, offset, size),
        )
    beyond = {
        "by_1": ("ends one byte behind the file", END - 3, 4),
        "at_end": ("starts at the end of the file and has one byte", END, 1),
        "empty": ("is empty and starts one byte behind the file", END + 1, 0),
        "far": ("starts at 2^63", 1 << 63, 4),
        "offset_wraps": ("has the largest offset and two bytes: the 64-bit sum is 1", U64_MAX, 2),
        "size_wraps": ("has the largest size: the 64-bit sum is before its start", 192, U64_MAX),
        "both_wrap": (
            "has an offset and a size whose 64-bit sum is the end of the file",
            U64_MAX - 3,
            END + 4,
        ),
    }
    for name, (what, offset, size) in beyond.items():
        yield _at_open(
            f"block_beyond_file_{name}",
            f"The last block {what}.",
            "S-DAT-2",
            "bad_offset",
            _aim(BASE, 1, offset, size),
        )


def _overlaps() -> Iterator[Invalid]:
    three = encode(Container(tuple(Entry(name, byte_ramp(64)) for name in ("a", "b", "c"))))
    start = 64 + 48 * 3 + 16  # 6 bytes of names, padded
    cases = {
        "one_byte": ("The second block starts on the last byte of the first.", 1, start + 63, 64),
        "partial": ("The second block starts in the middle of the first.", 1, start + 32, 64),
        "contained": ("The second block lies inside the first.", 1, start + 16, 16),
        "identical": ("Two entries have the same block.", 1, start, 64),
        "not_adjacent": ("The third entry's block overlaps the first's.", 2, start + 10, 20),
        "around": ("The third entry's block covers the other two.", 2, start, 192),
        "out_of_order": ("The first entry's block lies in the third's.", 0, start + 130, 8),
    }
    for name, (description, index, offset, size) in cases.items():
        yield _at_open(
            f"overlap_{name}", description, "S-DAT-3", "overlap", _aim(three, index, offset, size)
        )
    hidden = _aim(_aim(three, 1, start + 20, 0), 2, start + 30, 8)
    yield _at_open(
        "overlap_behind_empty",
        "An empty entry stands between two that overlap, in the index and in the data.",
        "S-DAT-3",
        "overlap",
        hidden,
    )


def _raw_sizes() -> Iterator[Invalid]:
    sizes = {"plus_1": 12, "minus_1": 10, "zero": 0, "2_63": 1 << 63}
    for name, size in sizes.items():
        yield Invalid(
            f"raw_orig_size_{name}",
            f"A raw entry of 11 stored bytes says orig_size {size}.",
            "S-DAT-4",
            "size_mismatch",
            "read",
            with_entry(BASE, 0, orig_size=size),
            entry="a",
        )


def container_vectors() -> Iterator[Invalid]:
    yield from _cuts_and_magic()
    yield from _header_values()
    yield from _file_sizes()
    yield from _head_offsets()
    yield from _name_places()
    yield from _long_names()
    yield from _name_bytes()
    yield from _duplicates()
    yield from _block_places()
    yield from _overlaps()
    yield from _raw_sizes()
