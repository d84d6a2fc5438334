"""The annotated hex dump of spec/shardpack.md, section 15."""

from __future__ import annotations

from typing import TYPE_CHECKING

from _hexdump import lines_of
from _layout import unpack
from _pack import (
    CHECKSUM,
    FOOTER_END,
    FOOTER_FIELDS,
    FOOTER_SIZE,
    INDEX_FIELDS,
    KIND_FIELDS,
    RECORD_FIELDS,
    ROW_FIELDS,
)
from _pack_reader import Record, open_pack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _layout import Fields

TEXTS = {"marker": 4, "magic": 8}


class _Dump:
    """Lines for the parts of a file, one after another."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.lines: list[str] = []

    def add(self, size: int, meaning: str) -> None:
        self.lines += lines_of(self.data, self.at, size, meaning)
        self.at += size

    def fields(self, fields: Fields) -> None:
        for name, value in unpack(fields, self.data, self.at).items():
            size = dict(fields)[name]
            self.add(size, f"{name} = {_shown(name, value)}")

    def text(self, size: int, what: str) -> None:
        self.add(size, f'{what} = "{self.data[self.at : self.at + size].decode()}"')


def _shown(name: str, value: int) -> str:
    if name in TEXTS:
        return f'"{value.to_bytes(TEXTS[name], "little").decode()}"'
    return f"0x{value:08x}" if name.endswith("crc32c") else str(value)


def _add_record(dump: _Dump, record: Record) -> None:
    dump.fields(RECORD_FIELDS)
    for _ in record.entries:
        dump.fields(ROW_FIELDS)
    for entry in record.entries:
        dump.fields(KIND_FIELDS)
        dump.text(len(entry.name.encode()), "name")
        dump.text(len(entry.content_type), "content type")
    dump.text(record.head["key_size"], "key")
    dump.fields((("head_crc32c", CHECKSUM[0][1]),))
    alignment = f"padding to a multiple of {record.head['alignment']}"
    for entry in record.entries:
        dump.add(entry.start - dump.at, alignment)
        dump.add(entry.row["stored_size"], f'content of "{entry.name}"')
    dump.add(record.start + record.head["record_size"] - dump.at, alignment)


def _add_numbers(dump: _Dump, name: str, count: int, width: int) -> None:
    for number in range(count):
        value = int.from_bytes(dump.data[dump.at : dump.at + width], "little")
        shown = f"0x{value:016x}" if name == "hashes" else str(value)
        dump.add(width, f"{name}[{number}] = {shown}")


def annotated_pack(data: bytes) -> str:
    """A Markdown code block with one line for each field of a small shard without record metadata."""
    opened, dump = open_pack(data), _Dump(data)

    def parts() -> Iterator[list[str]]:
        for number in range(opened.count):
            dump.lines = [f"record {number}"]
            _add_record(dump, opened.record(number))
            yield dump.lines
        dump.lines = ["index"]
        dump.fields(INDEX_FIELDS)
        _add_numbers(dump, "offsets", opened.count + 1, 8)
        _add_numbers(dump, "hashes", opened.count, 8)
        _add_numbers(dump, "numbers", opened.count, 4)
        dump.add(len(data) - FOOTER_SIZE - dump.at, "metadata, canonical JSON")
        yield dump.lines
        dump.lines = ["footer"]
        dump.fields((*FOOTER_FIELDS, *FOOTER_END))
        yield dump.lines

    text = "\n\n".join("\n".join(lines) for lines in parts())
    return f"```\n{text}\n```"
