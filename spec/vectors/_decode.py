"""A strict reader for the self-check: says which error code a file deserves.

It favours plainness over speed, follows section 15 of spec/shard.md, and shares nothing with the
library but the spec.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from _compress import (
    RESERVED,
    RLE,
    SEEK_CHECKSUM_BIT,
    SEEK_FOOTER_MAGIC,
    SEEK_TABLE_MAGIC,
    SKIPPABLE_MAGIC,
    ZSTD_MAGIC,
    SeekRow,
    content_checksum,
)
from _filters import (
    DESCRIPTION_MAGIC,
    MAX_DESCRIPTION,
    MAX_FILTERED_FRAME,
    Delta,
    Filter,
    Planes,
    backward,
)
from _layout import (
    ENTRY_COMPRESSED,
    ENTRY_FIELDS,
    ENTRY_FILTERED,
    ENTRY_LZ4,
    ENTRY_SIZE,
    ENTRY_ZSTD,
    FLAG_BIG_ENDIAN,
    FLAG_CHECKSUMS,
    HEADER_FIELDS,
    HEADER_SIZE,
    unpack,
)
from _limits import LIMITS
from _primitives import crc32c
from _zstd_library import decode_frame

MAX_ZSTD_RATIO = 32_768
SEEK_FOOTER_SIZE = 9
SKIPPABLE_HEADER_SIZE = 8


class BrokenRuleError(Exception):
    """A file breaks a rule; `code` is the error code of the registry."""

    def __init__(self, code: str, what: str) -> None:
        super().__init__(f"{code}: {what}")
        self.code = code


def require(condition: bool, code: str, what: str) -> None:
    if not condition:
        raise BrokenRuleError(code, what)


@dataclass(frozen=True)
class File:
    """An opened file; `by_name` is in index order."""

    data: bytes
    header: dict[str, int]
    by_name: dict[str, dict[str, int]]


def _check_header(data: bytes) -> dict[str, int]:
    require(data[:4] == b"SHRD"[: len(data)], "bad_magic", "S-HDR-2")
    require(len(data) >= HEADER_SIZE, "truncated", "S-HDR-1")
    header = unpack(HEADER_FIELDS, data)
    total, table = header["total_file_size"], header["string_table_offset"]
    index_end = HEADER_SIZE + ENTRY_SIZE * header["entry_count"]
    require(header["version"] == 2, "unsupported_version", "S-HDR-3")
    require(header["index_entry_size"] == ENTRY_SIZE, "bad_header", "S-HDR-4")
    require(header["alignment"] in (0, 16, 32, 64), "bad_header", "S-HDR-5")
    require(not header["flags"] & FLAG_BIG_ENDIAN, "bad_header", "S-HDR-6")
    require(len(data) >= total, "truncated", "S-HDR-7")
    require(len(data) <= total, "trailing_data", "S-HDR-7")
    require(header["entry_count"] <= LIMITS["max_entries"], "limit_exceeded", "S-HDR-8")
    index_size = index_end - HEADER_SIZE
    require(index_size <= LIMITS["max_index_bytes"], "limit_exceeded", "S-HDR-8: index")
    require(index_end <= total, "bad_offset", "S-HDR-9")
    require(table == index_end, "bad_offset", "S-HDR-10")
    require(table <= header["data_section_offset"] <= total, "bad_offset", "S-HDR-11")
    table_size = header["data_section_offset"] - table
    require(table_size <= LIMITS["max_string_table_bytes"], "limit_exceeded", "S-HDR-12")
    return header


def _name_of(entry: dict[str, int], table: bytes) -> str:
    end = entry["name_offset"] + entry["name_length"]
    require(end <= len(table), "bad_name", "S-NAM-1")
    require(entry["name_length"] > 0, "bad_name", "S-NAM-2")
    try:
        return table[entry["name_offset"] : end].decode()
    except UnicodeDecodeError as error:
        raise BrokenRuleError("bad_name", "S-NAM-3") from error


def open_file(data: bytes) -> File:
    header = _check_header(data)
    table = data[header["string_table_offset"] : header["data_section_offset"]]
    raw = [
        unpack(ENTRY_FIELDS, data, HEADER_SIZE + ENTRY_SIZE * i)
        for i in range(header["entry_count"])
    ]
    length_of_names = sum(entry["name_length"] for entry in raw)
    require(length_of_names <= LIMITS["max_string_table_bytes"], "limit_exceeded", "S-NAM-9")
    entries = [(_name_of(entry, table), entry) for entry in raw]
    require(len({name for name, _ in entries}) == len(entries), "duplicate_name", "S-NAM-4")
    for entry in raw:
        start, end = entry["data_offset"], entry["data_offset"] + entry["disk_size"]
        require(start >= header["data_section_offset"], "bad_offset", "S-DAT-1")
        require(end <= header["total_file_size"], "bad_offset", "S-DAT-2")
    covered = 0
    for start, size in sorted((e["data_offset"], e["disk_size"]) for e in raw if e["disk_size"]):
        require(start >= covered, "overlap", "S-DAT-3")
        covered = start + size
    return File(data, header, dict(entries))


def codec_of(file: File, entry: dict[str, int]) -> str:
    flags = entry["flags"]
    if not flags & ENTRY_COMPRESSED:
        return "none"
    bits = flags & (ENTRY_ZSTD | ENTRY_LZ4)
    by_bits = {ENTRY_ZSTD: "zstd", ENTRY_LZ4: "lz4"}
    by_default = {1: "zstd", 2: "lz4"}
    codec = by_bits.get(bits) if bits else by_default.get(file.header["compression_default"])
    if codec is None:
        raise BrokenRuleError("unknown_codec", "S-CMP-1")
    return codec


@dataclass(frozen=True)
class Frame:
    """A zstd frame inside an entry; `content_size` is None where the header does not say."""

    data: bytes
    content_size: int | None
    window: int
    dictionary_id: int


def _take(data: bytes, at: int, size: int) -> tuple[int, int]:
    """The little-endian number of `size` bytes at `at`, and the position behind it."""
    require(at + size <= len(data), "bad_compression", "S-CMP-4: truncated")
    return int.from_bytes(data[at : at + size], "little"), at + size


def _walk_frame(data: bytes, start: int) -> tuple[Frame, int]:
    """Measure the frame at `start` without decoding it (RFC 8878, section 3.1.1)."""
    descriptor, at = _take(data, start + 4, 1)
    single_segment = bool(descriptor & 0x20)
    window = 0
    if not single_segment:
        code, at = _take(data, at, 1)
        window = (1 << 10 + (code >> 3)) * (8 + (code & 7)) // 8
    dictionary_id, at = _take(data, at, (0, 1, 2, 4)[descriptor & 3])
    size_width = (int(single_segment), 2, 4, 8)[descriptor >> 6]
    content_size: int | None = None
    if size_width:
        content_size, at = _take(data, at, size_width)
        content_size += 256 if size_width == 2 else 0
    if single_segment:
        window = content_size or 0
    last = 0
    while not last:
        header, at = _take(data, at, 3)
        last, kind, size = header & 1, header >> 1 & 3, header >> 3
        require(kind != RESERVED, "bad_compression", "S-CMP-4: reserved block type")
        at += 1 if kind == RLE else size
        require(at <= len(data), "bad_compression", "S-CMP-4: truncated")
    _, at = _take(data, at, 4 if descriptor & 0x04 else 0)
    return Frame(data[start:at], content_size, window, dictionary_id), at


def zstd_frames(data: bytes) -> list[Frame]:
    """The frames of an entry; skippable frames are checked and dropped."""
    frames, at = [], 0
    while at < len(data):
        magic, _ = _take(data, at, 4)
        if magic & ~0xF == SKIPPABLE_MAGIC:
            size, at = _take(data, at + 4, 4)
            at += size
            require(at <= len(data), "bad_compression", "S-CMP-4: truncated")
            continue
        require(magic == ZSTD_MAGIC, "bad_compression", "S-CMP-5")
        frame, at = _walk_frame(data, at)
        frames.append(frame)
    require(bool(frames), "bad_compression", "S-CMP-5: no frame")
    return frames


def _decode_frame(frame: Frame, limit: int) -> bytes:
    """The content of a frame, cut after `limit` + 1 bytes."""
    require(frame.dictionary_id == 0, "bad_compression", "S-CMP-6")
    require(frame.window <= LIMITS["max_window_bytes"], "limit_exceeded", "S-CMP-7")
    try:
        return decode_frame(frame.data, limit + 1, LIMITS["max_window_bytes"])
    except ValueError as error:
        raise BrokenRuleError("bad_compression", f"S-CMP-4: {error}") from error


def decode_zstd(data: bytes, size: int, filters: tuple[Filter, ...] = ()) -> bytes:
    frames = zstd_frames(data)
    declared = sum(frame.content_size or 0 for frame in frames)
    complete = all(frame.content_size is not None for frame in frames)
    require(declared <= size, "size_mismatch", "S-CMP-3: declared too large")
    require(declared == size or not complete, "size_mismatch", "S-CMP-3: declared too small")
    content = b""
    for frame in frames:
        if filters:
            _check_filtered_size(filters, frame.content_size or 0)
        part = _decode_frame(frame, size - len(content))
        require(len(content) + len(part) <= size, "size_mismatch", "S-CMP-3: too long")
        if filters:
            _check_filtered_size(filters, len(part))
        content += backward(filters, part)
    require(len(content) == size, "size_mismatch", "S-CMP-3: too short")
    return content


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    require(len(dict(pairs)) == len(pairs), "bad_filter", "S-FLT-2: repeated key")
    return dict(pairs)


def _parse_filter(row: object) -> Filter:
    if not isinstance(row, dict) or not isinstance(row.get("name"), str):
        raise BrokenRuleError("bad_filter", "S-FLT-2: a filter without a name")
    name = row["name"]
    require(name in ("delta", "planes"), "unknown_filter", f"S-FLT-3: {name}")
    width, order, length = row.get("width"), row.get("order"), row.get("row")
    widths = (1, 2, 4, 8) if name == "delta" else (2, 4, 8)
    require(_is_integer(width) and width in widths, "bad_filter", "S-FLT-2: width")
    assert isinstance(width, int)
    known = {"name", "width"} if name == "planes" else {"name", "width", "order", "row"}
    require(set(row) <= known, "bad_filter", "S-FLT-2: other fields")
    if name == "planes":
        return Planes(width)
    require(_is_integer(order) and order in (1, 2), "bad_filter", "S-FLT-2: order")
    require(_is_integer(length), "bad_filter", "S-FLT-2: row")
    assert isinstance(order, int)
    assert isinstance(length, int)
    require(length > 0 and length % width == 0, "bad_filter", "S-FLT-2: row")
    return Delta(width, length, order)


def _parse_description(text: bytes) -> tuple[Filter, ...]:
    def refuse(name: str) -> object:
        raise BrokenRuleError("bad_filter", f"S-FLT-2: {name}")

    try:
        value = json.loads(text.decode(), object_pairs_hook=_without_repeats, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise BrokenRuleError("bad_filter", f"S-FLT-2: {error}") from error
    return parse_filters(value.get("filters") if isinstance(value, dict) else None)


def parse_filters(rows: object) -> tuple[Filter, ...]:
    """A list of filters (S-FLT-2 to S-FLT-4)."""
    if not isinstance(rows, list) or not 1 <= len(rows) <= 2:
        raise BrokenRuleError("bad_filter", "S-FLT-2: no list of one or two filters")
    filters = tuple(_parse_filter(row) for row in rows)
    names = [one.name for one in filters]
    fine = len(names) == 1 or (
        names == ["delta", "planes"] and filters[0].width == filters[1].width
    )
    require(fine, "bad_filter", "S-FLT-4")
    return filters


def filters_of(file: File, entry: dict[str, int]) -> tuple[tuple[Filter, ...], int]:
    """The filters of an entry and the size of the leading frame that describes them."""
    if not entry["flags"] & ENTRY_FILTERED:
        return (), 0
    require(codec_of(file, entry) == "zstd", "bad_filter", "S-FLT-1: codec")
    stored = stored_bytes(file, entry)
    require(len(stored) >= SKIPPABLE_HEADER_SIZE, "bad_filter", "S-FLT-1: no description")
    head = unpack((("magic", 4), ("size", 4)), stored)
    require(head["magic"] == DESCRIPTION_MAGIC, "bad_filter", "S-FLT-1: number")
    end = SKIPPABLE_HEADER_SIZE + head["size"]
    require(1 <= head["size"] <= MAX_DESCRIPTION, "bad_filter", "S-FLT-1: size")
    require(end <= len(stored), "bad_filter", "S-FLT-1: cut off")
    return _parse_description(stored[SKIPPABLE_HEADER_SIZE:end]), end


def _check_filtered_size(filters: tuple[Filter, ...], size: int) -> None:
    """The rule of S-FLT-5 for the content of one frame."""
    require(size % filters[0].unit == 0, "bad_filter", "S-FLT-5: not whole rows")
    require(size <= MAX_FILTERED_FRAME, "bad_filter", "S-FLT-5: too large")


def _lz4_length(data: bytes, at: int, length: int) -> tuple[int, int]:
    extra = 255 if length == 15 else 0
    while extra == 255:
        extra, at = _take(data, at, 1)
        length += extra
    return length, at


def decode_lz4(data: bytes, size: int) -> bytes:
    require(bool(data), "bad_compression", "S-CMP-4: empty")
    content, at = bytearray(), 0
    while True:
        token, at = _take(data, at, 1)
        literals, at = _lz4_length(data, at, token >> 4)
        require(at + literals <= len(data), "bad_compression", "S-CMP-4: literals cut off")
        content += data[at : at + literals]
        at += literals
        require(len(content) <= size, "size_mismatch", "S-CMP-3: too long")
        if at == len(data):
            break
        offset, at = _take(data, at, 2)
        require(0 < offset <= len(content), "bad_compression", "S-CMP-4: match offset")
        match, at = _lz4_length(data, at, token & 15)
        require(len(content) + match + 4 <= size, "size_mismatch", "S-CMP-3: too long")
        for _ in range(match + 4):
            content.append(content[-offset])
    require(len(content) == size, "size_mismatch", "S-CMP-3: too short")
    return bytes(content)


def stored_bytes(file: File, entry: dict[str, int]) -> bytes:
    return file.data[entry["data_offset"] : entry["data_offset"] + entry["disk_size"]]


def _check_sizes(entry: dict[str, int], codec: str) -> None:
    size, disk_size = entry["orig_size"], entry["disk_size"]
    if codec == "none":
        require(disk_size == size, "size_mismatch", "S-DAT-4")
        return
    require(size <= LIMITS["max_decompressed_bytes"], "limit_exceeded", "S-CMP-2")
    reachable = MAX_ZSTD_RATIO * disk_size if codec == "zstd" else 255 * disk_size + 64
    require(size <= reachable, "size_mismatch", "S-CMP-8")


def read_entry(file: File, name: str) -> bytes:
    entry = file.by_name[name]
    codec = codec_of(file, entry)
    _check_sizes(entry, codec)
    stored, size = stored_bytes(file, entry), entry["orig_size"]
    filters, leading = filters_of(file, entry)
    if filters and seek_rows_of(file, entry) is None:
        whole = [frame.data for frame in zstd_frames(stored[leading:])]
        require(whole == [stored[leading:]], "bad_filter", "S-FLT-1: not one frame")
    if codec == "none":
        content = stored
    elif codec == "zstd":
        content = decode_zstd(stored, size, filters)
    else:
        content = decode_lz4(stored, size)
    if file.header["flags"] & FLAG_CHECKSUMS or entry["crc32c"]:
        require(crc32c(content) == entry["crc32c"], "checksum_mismatch", "S-CRC-1")
    return content


def seek_rows_of(file: File, entry: dict[str, int]) -> list[SeekRow] | None:
    """The seek table of an entry, None when it has none (spec/shard.md, section 8)."""
    if codec_of(file, entry) != "zstd":
        return None
    stored = stored_bytes(file, entry)
    if len(stored) < SKIPPABLE_HEADER_SIZE + SEEK_FOOTER_SIZE:
        return None
    footer, _ = _take(stored, len(stored) - 4, 4)
    count, at = _take(stored, len(stored) - SEEK_FOOTER_SIZE, 4)
    descriptor, _ = _take(stored, at, 1)
    row_size = 12 if descriptor & SEEK_CHECKSUM_BIT else 8
    body = count * row_size + SEEK_FOOTER_SIZE
    start = len(stored) - body - SKIPPABLE_HEADER_SIZE
    if footer != SEEK_FOOTER_MAGIC or start < 0:
        return None
    if unpack((("magic", 4), ("size", 4)), stored, start) != {
        "magic": SEEK_TABLE_MAGIC,
        "size": body,
    }:
        return None
    require(not descriptor & 0x7C, "bad_seek_table", "S-SEK-1")
    fields = (("compressed", 4), ("decompressed", 4), ("checksum", row_size - 8))
    rows = []
    for number in range(count):
        row = unpack(fields, stored, start + SKIPPABLE_HEADER_SIZE + number * row_size)
        checksum = row["checksum"] if row_size == 12 else None
        rows.append(SeekRow(row["compressed"], row["decompressed"], checksum))
    _, leading = filters_of(file, entry)
    compressed = leading + sum(row.compressed_size for row in rows)
    rule = "S-FLT-6" if leading else "S-SEK-2"
    require(compressed == start, "bad_seek_table", rule)
    total = sum(row.decompressed_size for row in rows)
    require(total == entry["orig_size"], "bad_seek_table", "S-SEK-2")
    return rows


def _decode_row(stored: bytes, row: SeekRow, filters: tuple[Filter, ...]) -> bytes:
    magic, _ = _take(stored, 0, 4)
    require(magic == ZSTD_MAGIC, "bad_seek_table", "S-SEK-3: no frame here")
    try:
        frame, _ = _walk_frame(stored, 0)
    except BrokenRuleError as error:
        raise BrokenRuleError("bad_seek_table", f"S-SEK-3: {error}") from error
    require(len(frame.data) == len(stored), "bad_seek_table", "S-SEK-3: frame is shorter")
    declared = row.decompressed_size if frame.content_size is None else frame.content_size
    require(declared == row.decompressed_size, "bad_seek_table", "S-SEK-3: declared size")
    if filters:
        _check_filtered_size(filters, row.decompressed_size)
    try:
        content = _decode_frame(frame, row.decompressed_size)
    except BrokenRuleError as error:
        if "checksum" in str(error):
            raise BrokenRuleError("checksum_mismatch", "S-SEK-4: own checksum") from error
        raise
    require(len(content) == row.decompressed_size, "bad_seek_table", "S-SEK-3: decoded size")
    wanted = row.checksum
    if wanted is not None:
        require(content_checksum(content) == wanted, "checksum_mismatch", "S-SEK-4: table")
    return backward(filters, content)


def read_range(file: File, name: str, start: int, length: int) -> bytes:
    """A part of a seekable entry, decoding only the frames it touches."""
    entry = file.by_name[name]
    codec = codec_of(file, entry)
    _check_sizes(entry, codec)
    rows = seek_rows_of(file, entry)
    if rows is None:
        return read_entry(file, name)[start : start + length]
    stored = stored_bytes(file, entry)
    filters, at = filters_of(file, entry)
    result, content_at = b"", 0
    for row in rows:
        if content_at < start + length and start < content_at + row.decompressed_size:
            content = _decode_row(stored[at : at + row.compressed_size], row, filters)
            first = max(start - content_at, 0)
            result += content[first : start + length - content_at]
        at += row.compressed_size
        content_at += row.decompressed_size
    return result
