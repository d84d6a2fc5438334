"""The valid files with filtered entries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from _compress import plain_frame, raw_blocks, seek_rows, seek_table, skippable_frame, zstd_frame
from _encode import Container, Entry
from _filters import (
    DESCRIPTION_MAGIC,
    Delta,
    Filter,
    Planes,
    description,
    filtered_entry,
    filtered_frames,
    forward,
)
from _layout import ENTRY_COMPRESSED, ENTRY_FILTERED, ZSTD
from _valid import valid
from _vector import Valid, byte_ramp

if TYPE_CHECKING:
    from collections.abc import Iterator


def walk(width: int, columns: int, rows: int) -> bytes:
    """Rows of integers that drift, wrap around and end with the largest value."""
    top = (1 << 8 * width) - 1
    values = [
        (top // 3 * step + 7 * column * step + step * step) & top
        for step in range(rows)
        for column in range(columns)
    ]
    values[-1] = top
    return b"".join(value.to_bytes(width, "little") for value in values)


def _entries(filters: dict[str, tuple[tuple[Filter, ...], bytes]]) -> tuple[Entry, ...]:
    return tuple(filtered_entry(name, data, chain) for name, (chain, data) in filters.items())


def _widths() -> Iterator[Valid]:
    for order in (1, 2):
        yield valid(
            f"filter_delta_order_{order}",
            f"delta of order {order} with every width; rows of one item and of several.",
            ("S-FLT-2", "S-FLT-4", "S-FLT-5"),
            Container(
                _entries(
                    {
                        f"{width}x{columns}": (
                            (Delta(width, width * columns, order),),
                            walk(width, columns, 20),
                        )
                        for width in (1, 2, 4, 8)
                        for columns in (1, 3)
                    }
                )
            ),
        )
    yield valid(
        "filter_planes",
        "planes with every width.",
        ("S-FLT-2", "S-FLT-4", "S-FLT-5"),
        Container(
            _entries({f"{width}": ((Planes(width),), walk(width, 5, 12)) for width in (2, 4, 8)})
        ),
    )
    yield valid(
        "filter_delta_planes",
        "delta then planes with every width and both orders.",
        ("S-FLT-2", "S-FLT-4", "S-FLT-5"),
        Container(
            _entries(
                {
                    f"{width}_order_{order}": (
                        (Delta(width, 7 * width, order), Planes(width)),
                        walk(width, 7, 9),
                    )
                    for width in (2, 4, 8)
                    for order in (1, 2)
                }
            )
        ),
    )


def _frames() -> Iterator[Valid]:
    chain = (Delta(4, 28), Planes(4))
    content = walk(4, 7, 23)
    yield valid(
        "filter_seekable",
        "Seekable entries of rows of 28 bytes: each frame starts anew, the last one is shorter.",
        ("S-FLT-5", "S-FLT-6", "S-SEK-5"),
        Container(
            (
                filtered_entry("delta", content, chain[:1], frame_content=28 * 6),
                filtered_entry("planes", content, chain[1:], frame_content=28 * 6),
                filtered_entry("both", content, chain, frame_content=28 * 6),
                filtered_entry("order_2", content, (Delta(4, 28, 2),), frame_content=28 * 10),
                filtered_entry("row_each", content, chain, frame_content=28),
                filtered_entry("one_frame", content, chain, frame_content=28 * 23),
                Entry("raw", byte_ramp(20)),
            )
        ),
    )
    frames, parts = filtered_frames(chain, content, 28 * 8)
    uneven = [content[:28], content[28:140], content[140:]]
    uneven_parts = [forward(chain, part) for part in uneven]
    uneven_frames = [plain_frame(part) for part in uneven_parts]
    yield valid(
        "filter_seekable_forms",
        "No checksums in the table, and frames of different lengths without checksums.",
        ("S-FLT-5", "S-FLT-6", "S-SEK-3", "S-SEK-4"),
        Container(
            tuple(
                Entry(name, content, flags=ZSTD | ENTRY_FILTERED, stored=description(chain) + rest)
                for name, rest in (
                    (
                        "no_checksums",
                        b"".join(frames) + seek_table(seek_rows(frames, parts, checksums=False)),
                    ),
                    (
                        "uneven",
                        b"".join(uneven_frames)
                        + seek_table(seek_rows(uneven_frames, uneven_parts)),
                    ),
                )
            )
        ),
    )


def _forms() -> Iterator[Valid]:
    content = walk(2, 3, 30)
    chain = (Delta(2, 6, 2),)
    body = forward(chain, content)
    spaced = (
        b' { "x":[{}], "filters" : [{"width":2, "row":6, "name":"de\\u006cta", "order":2} ] }\n'
    )
    long = spaced + b" " * (4096 - len(spaced))
    yield valid(
        "filter_description_forms",
        "Descriptions that are not canonical: white space, escapes, other order, other keys, 4096 bytes.",
        ("S-FLT-1", "S-FLT-2", "S-FLT-7"),
        Container(
            tuple(
                Entry(
                    name,
                    content,
                    flags=ZSTD | ENTRY_FILTERED,
                    stored=skippable_frame(text, DESCRIPTION_MAGIC) + plain_frame(body),
                )
                for name, text in (("spaced", spaced), ("longest", long))
            )
        ),
    )
    yield valid(
        "filter_codec_by_default",
        "Filtered entries with flag 1, no codec bit and compression_default 1; no content size.",
        ("S-FLT-1", "S-CMP-1"),
        Container(
            (
                Entry(
                    "data",
                    content,
                    flags=ENTRY_COMPRESSED | ENTRY_FILTERED,
                    stored=description(chain) + zstd_frame(raw_blocks(body)),
                ),
            ),
            compression_default=1,
        ),
    )
    yield valid(
        "filter_few_rows",
        "No row, one row and two rows: differences of order 2 need none of them.",
        ("S-FLT-5",),
        Container(
            _entries(
                {
                    f"rows_{rows}": ((Delta(2, 6, 2), Planes(2)), content[: 6 * rows])
                    for rows in range(3)
                }
            )
        ),
    )
    yield valid(
        "filter_leading_frame_without_flag",
        "A leading frame that looks like a description, and flag 0x0010 clear: nothing is filtered.",
        ("S-FLT-1", "S-CMP-5"),
        Container(
            (Entry("data", body, flags=ZSTD, stored=description(chain) + plain_frame(body)),)
        ),
    )


def filter_vectors() -> Iterator[Valid]:
    yield from _widths()
    yield from _frames()
    yield from _forms()
