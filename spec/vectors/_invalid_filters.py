"""Files whose filtered entries break a rule. The entry `other` is undamaged in all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from _compress import (
    SeekRow,
    checked_frame,
    lz4_last_literals,
    plain_frame,
    seek_rows,
    seek_table,
    skippable_frame,
    zero_blocks,
    zstd_frame,
)
from _encode import Container, Entry, encode
from _filters import (
    DESCRIPTION_MAGIC,
    MAX_FILTERED_FRAME,
    Delta,
    Planes,
    description,
    filtered_frames,
    forward,
)
from _layout import ENTRY_FILTERED, ENTRY_ZSTD, LZ4, ZSTD, with_entry
from _primitives import canonical_json, crc32c, crc32c_of_zeros
from _valid_filters import walk
from _vector import Invalid

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "data"
CHAIN = (Delta(4, 28), Planes(4))
CONTENT = walk(4, 7, 20)
BODY = checked_frame(forward(CHAIN, CONTENT))
FILTERED = ZSTD | ENTRY_FILTERED
DELTA = {"name": "delta", "order": 1, "row": 28, "width": 4}
PLANES = {"name": "planes", "width": 4}


def _file(
    stored: bytes, content: bytes = CONTENT, *, flags: int = FILTERED, checksum: int | None = None
) -> bytes:
    entries = (
        Entry(NAME, content, flags=flags, stored=stored, crc32c=checksum),
        Entry("other", b"undamaged"),
    )
    return encode(Container(entries))


def _bad(
    name: str,
    what: str,
    rule: str,
    data: bytes,
    *,
    error: str = "bad_filter",
    also: tuple[str, ...] = (),
) -> Invalid:
    return Invalid(f"filter_{name}", what, rule, error, "read", data, entry=NAME, also=also)


def _described(text: bytes, frame: bytes = BODY) -> bytes:
    return _file(skippable_frame(text, DESCRIPTION_MAGIC) + frame)


def _leading_frames() -> Iterator[Invalid]:
    leading = description(CHAIN)
    raw = {
        "on_raw_entry": ("An entry that is not compressed.", ENTRY_FILTERED),
        "on_raw_entry_zstd_bit": (
            "The zstd bit without flag 1: the entry is raw.",
            ENTRY_FILTERED | ENTRY_ZSTD,
        ),
    }
    for name, (what, flags) in raw.items():
        yield _bad(name, f"Flag 0x0010. {what}", "S-FLT-1", _file(CONTENT, flags=flags))
    stored = {
        "no_description": ("The first frame is an ordinary one.", BODY),
        "description_at_end": ("The description follows the frame.", BODY + leading),
        "number_50": (
            "The leading skippable frame has the number 0x184D2A50.",
            skippable_frame(leading[8:]) + BODY,
        ),
        "number_5e": (
            "The leading skippable frame has the number of seek tables.",
            skippable_frame(leading[8:], 0x184D2A5E) + BODY,
        ),
        "description_empty": (
            "The leading frame is empty.",
            skippable_frame(b"", DESCRIPTION_MAGIC) + BODY,
        ),
        "description_4097": (
            "The leading frame has 4097 bytes.",
            skippable_frame(leading[8:].ljust(4097), DESCRIPTION_MAGIC) + BODY,
        ),
        "description_size_lies": (
            "The leading frame claims 4096 bytes, more than the entry has.",
            leading[:4] + (4096).to_bytes(4, "little") + leading[8:] + BODY,
        ),
        "description_cut": ("The stored bytes end inside the leading frame.", leading[:20]),
        "stored_7_bytes": ("Seven stored bytes.", leading[:7]),
    }
    # A frame that is cut off is damaged compression, too.
    cut = {"description_size_lies", "description_cut", "stored_7_bytes"}
    for name, (what, data) in stored.items():
        also = ("bad_compression",) if name in cut else ()
        yield _bad(name, what, "S-FLT-1", _file(data), also=also)
    frames, parts = filtered_frames(CHAIN, CONTENT, 28 * 8)
    table = seek_table(seek_rows(frames, parts))
    several = {
        "frames_without_table": ("Three frames without a seek table.", b"".join(frames)),
        "table_counts_1": (
            "Three frames and a seek table whose footer counts one, so that it is none.",
            b"".join(frames) + table[:-9] + (1).to_bytes(4, "little") + table[-5:],
        ),
        "skippable_after_frame": (
            "A skippable frame follows the frame.",
            BODY + skippable_frame(b"x"),
        ),
    }
    for name, (what, data) in several.items():
        yield _bad(name, what, "S-FLT-1", _file(leading + data))
    block = lz4_last_literals(forward(CHAIN, CONTENT))
    yield _bad(
        "on_lz4_entry",
        "Flag 0x0010 on an lz4 entry.",
        "S-FLT-1",
        _file(leading + block, flags=LZ4 | ENTRY_FILTERED),
    )


def _texts() -> Iterator[Invalid]:
    good = canonical_json({"filters": [DELTA, PLANES]})
    row = b'{"name":"delta","order":1,"row":28,"width":4}'
    texts = {
        "not_json": ("Not JSON.", b"delta 4"),
        "cut": ("The closing brace is missing.", good[:-1]),
        "list": ("A list.", canonical_json([DELTA, PLANES])),
        "null": ("null.", b"null"),
        "nan": ("NaN in a field that nobody knows.", good[:-1] + b',"x":NaN}'),
        "repeated_key": ("Two lists of filters.", good[:-1] + b',"filters":[]}'),
        "repeated_key_inside": (
            "A filter with two widths.",
            b'{"filters":[' + row[:-1] + b',"width":2}]}',
        ),
        "utf16": ("UTF-16.", good.decode().encode("utf-16")),
        "bom": ("A byte order mark.", b"\xef\xbb\xbf" + good),
        "invalid_utf8": ("The byte FF in a string.", good[:-1] + b',"x":"\xff"}'),
        "trailing": ("A second object.", good + b"{}"),
        "trailing_nul": ("A NUL after the object.", good + b"\0"),
        "deep": ("2000 levels.", good[:-1] + b',"x":' + b"[" * 1990 + b"]" * 1990 + b"}"),
    }
    for name, (what, text) in texts.items():
        yield _bad(f"json_{name}", f"Description: {what}", "S-FLT-2", _described(text))


def _fields() -> Iterator[Invalid]:
    objects: dict[str, tuple[str, object]] = {
        "missing": ("There is no list.", {}),
        "object": ("An object.", {"filters": DELTA}),
        "string": ("A string.", {"filters": "delta"}),
        "null": ("null.", {"filters": None}),
        "empty": ("An empty list.", {"filters": []}),
        "three": ("Three filters.", {"filters": [DELTA, DELTA, PLANES]}),
        "of_strings": ("A list of strings.", {"filters": ["delta"]}),
        "with_null": ("The second filter is null.", {"filters": [DELTA, None]}),
    }
    for name, (what, value) in objects.items():
        data = _described(canonical_json(value))
        yield _bad(f"list_{name}", f"filters: {what}", "S-FLT-2", data)
    values: dict[str, tuple[object, ...]] = {
        "name": (None, 7, ["delta"], True),
        "order": (0, 3, -1, "1", True, 1.5, None),
        "width": (0, 3, 16, -4, "4", 4.5, None, [4]),
        "row": (0, 27, 30, -28, "28", 28.5, None, True),
    }
    for field, wrong in values.items():
        for number, value in enumerate(wrong):
            text = canonical_json({"filters": [DELTA | {field: value}]})
            name = f"delta_{field}_wrong_{number}"
            yield _bad(name, f"delta with {field} = {value!r}.", "S-FLT-2", _described(text))
        fewer = {key: value for key, value in DELTA.items() if key != field}
        text = canonical_json({"filters": [fewer]})
        yield _bad(f"delta_{field}_missing", f"delta without {field}.", "S-FLT-2", _described(text))
    for number, value in enumerate((1, 0, 3, "2", True, None)):
        text = canonical_json({"filters": [PLANES | {"width": value}]})
        name = f"planes_width_wrong_{number}"
        yield _bad(name, f"planes with width = {value!r}.", "S-FLT-2", _described(text))
    more: dict[str, dict[str, object]] = {"delta": DELTA | {"x": 1}, "planes": PLANES | {"row": 4}}
    for name, fields in more.items():
        text = canonical_json({"filters": [fields]})
        yield _bad(f"{name}_field_more", f"{name} with a field more.", "S-FLT-2", _described(text))
    text = canonical_json({"filters": [{"name": "planes"}]})
    yield _bad("planes_width_missing", "planes without width.", "S-FLT-2", _described(text))


def _names_and_order() -> Iterator[Invalid]:
    unknown: dict[str, list[dict[str, object]]] = {
        "xor": [{"name": "xor", "width": 4}],
        "private": [{"name": "example.org"}],
        "capital": [DELTA | {"name": "Delta"}],
        "no_name": [{"name": "", "width": 4}],
        "second": [DELTA, {"name": "bits", "width": 4}],
    }
    for name, filters in unknown.items():
        found = str(filters[-1]["name"])
        data = _described(canonical_json({"filters": filters}))
        what = f'The filter "{found}", which nobody knows.'
        yield _bad(f"unknown_{name}", what, "S-FLT-3", data, error="unknown_filter")
    lists: dict[str, tuple[str, list[dict[str, object]]]] = {
        "planes_first": ("planes then delta.", [PLANES, DELTA]),
        "delta_twice": ("delta twice.", [DELTA, DELTA]),
        "planes_twice": ("planes twice.", [PLANES, PLANES]),
        "widths_differ": ("delta of width 4, planes of width 2.", [DELTA, PLANES | {"width": 2}]),
    }
    for name, (what, filters) in lists.items():
        data = _described(canonical_json({"filters": filters}))
        yield _bad(f"order_{name}", what, "S-FLT-4", data)


def _frame_sizes() -> Iterator[Invalid]:
    leading = description(CHAIN)
    longer = CONTENT + b"tail"
    yield _bad(
        "frame_not_whole_rows",
        "The only frame ends with 4 bytes of a row of 28.",
        "S-FLT-5",
        _file(leading + checked_frame(forward(CHAIN[1:], longer)), longer),
    )
    odd = CONTENT[:-2]
    planes = (Planes(4),)
    yield _bad(
        "frame_not_whole_items",
        "planes of width 4 over 558 bytes.",
        "S-FLT-5",
        _file(description(planes) + checked_frame(odd), odd),
    )
    huge = (MAX_FILTERED_FRAME // 28 + 1) * 28
    frame = zstd_frame(zero_blocks(huge), content_size=huge)
    data = _file(leading + frame, b"", checksum=crc32c_of_zeros(huge))
    yield _bad(
        "frame_above_64_mib",
        "A true encoding of a little more than 64 MiB of zero bytes in one frame.",
        "S-FLT-5",
        with_entry(data, 0, orig_size=huge),
    )
    parts = [CONTENT[:100], CONTENT[100:]]
    frames = [checked_frame(part) for part in parts]
    table = seek_table(seek_rows(frames, parts))
    yield _bad(
        "frames_cut_rows",
        "A seekable entry of whole rows, but the frames meet in the middle of one.",
        "S-FLT-5",
        _file(leading + b"".join(frames) + table),
    )


def _sums_and_checksums() -> Iterator[Invalid]:
    leading = description(CHAIN)
    frames, parts = filtered_frames(CHAIN, CONTENT, 28 * 8)
    rows = seek_rows(frames, parts)
    first = rows[0]
    sums = {
        "counted_in_first_row": (
            "The first row of the seek table counts the leading frame.",
            [
                SeekRow(
                    first.compressed_size + len(leading), first.decompressed_size, first.checksum
                ),
                *rows[1:],
            ],
        ),
        "row_of_its_own": (
            "The seek table has a row for the leading frame.",
            [SeekRow(len(leading), 0, 0), *rows],
        ),
        "row_missing": ("The seek table lacks the last frame.", rows[:-1]),
    }
    for name, (what, lying) in sums.items():
        yield Invalid(
            f"filter_seek_{name}",
            what,
            "S-FLT-6",
            "bad_seek_table",
            "range",
            _file(leading + b"".join(frames) + seek_table(lying)),
            entry=NAME,
            span=(28 * 8, 28),
        )
    yield _bad(
        "crc_of_filtered_bytes",
        "The CRC-32C is that of the filtered bytes.",
        "S-CRC-1",
        _file(leading + BODY, checksum=crc32c(forward(CHAIN, CONTENT))),
        error="checksum_mismatch",
    )
    yield _bad(
        "content_not_filtered",
        "The description names filters, the frame holds the original bytes.",
        "S-CRC-1",
        _file(leading + checked_frame(CONTENT)),
        error="checksum_mismatch",
    )
    originals = [CONTENT[at : at + 28 * 8] for at in range(0, len(CONTENT), 28 * 8)]
    plain = [plain_frame(part) for part in parts]
    wrong = [
        SeekRow(len(frame), len(part), seek_rows([frame], [original])[0].checksum)
        for frame, part, original in zip(plain, parts, originals, strict=True)
    ]
    yield Invalid(
        "filter_seek_checksums_of_original",
        "The checksums in the seek table are those of the original bytes.",
        "S-SEK-4",
        "checksum_mismatch",
        "range",
        _file(leading + b"".join(plain) + seek_table(wrong)),
        entry=NAME,
        span=(28 * 8, 28),
    )


def filter_vectors() -> Iterator[Invalid]:
    yield from _leading_frames()
    yield from _texts()
    yield from _fields()
    yield from _names_and_order()
    yield from _frame_sizes()
    yield from _sums_and_checksums()
