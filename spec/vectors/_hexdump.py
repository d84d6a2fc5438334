"""The annotated hex dump of spec/shard.md, section 18."""

from __future__ import annotations

from typing import TYPE_CHECKING

from _decode import open_file
from _layout import ENTRY_FIELDS, ENTRY_SIZE, HEADER_FIELDS, HEADER_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _layout import Fields

HELLO = "hello"
END = "<!-- /hexdump -->"
BYTES_PER_LINE = 16
HEX_FIELDS = {"flags": 4, "name_hash": 16, "crc32c": 8}
"""Fields whose value reads better in hex, with the number of digits."""


def _value(name: str, value: int) -> str:
    if name == "magic":
        return f'"{value.to_bytes(4, "little").decode()}"'
    return f"0x{value:0{HEX_FIELDS[name]}x}" if name in HEX_FIELDS else str(value)


def lines_of(data: bytes, at: int, size: int, meaning: str) -> Iterator[str]:
    for start in range(at, at + size, BYTES_PER_LINE):
        piece = data[start : min(start + BYTES_PER_LINE, at + size)]
        yield f"{start:04x}  {piece.hex(' '):<47}  {meaning}".rstrip()
        meaning = ""


def _record(data: bytes, at: int, fields: Fields) -> Iterator[str]:
    for name, size in fields:
        value = int.from_bytes(data[at : at + size], "little")
        yield from lines_of(data, at, size, f"{name} = {_value(name, value)}")
        at += size


def annotated(data: bytes) -> str:
    """A Markdown code block with one line for each field of a small file without schema."""
    file = open_file(data)
    lines = ["header", *_record(data, 0, HEADER_FIELDS)]
    position = HEADER_SIZE
    for number in range(len(file.by_name)):
        lines += ["", f"index entry {number}", *_record(data, position, ENTRY_FIELDS)]
        position += ENTRY_SIZE
    lines += ["", "string table"]
    for name, entry in file.by_name.items():
        end = position + entry["name_length"] + 1
        lines += lines_of(data, position, end - position, f'"{name}" and its NUL')
        position = end
    padding = file.header["data_section_offset"] - position
    lines += lines_of(
        data, position, padding, f"padding to a multiple of {file.header['alignment']}"
    )
    lines += ["", "data"]
    for name, entry in file.by_name.items():
        lines += lines_of(data, entry["data_offset"], entry["disk_size"], f'content of "{name}"')
    return "\n".join(["```", *lines, "```"])


def insert(document: str, dump: str, name: str = HELLO) -> str:
    """The document with the region of this name replaced."""
    marker = f"<!-- hexdump:{name} -->"
    before, begin, rest = document.partition(marker)
    _, end, after = rest.partition(END)
    if not begin or not end:
        problem = f"a specification has no region {marker} ... {END}"
        raise SystemExit(problem)
    return f"{before}{marker}\n{dump}\n{END}{after}"
