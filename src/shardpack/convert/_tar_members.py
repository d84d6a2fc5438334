"""The members of a tar file, read from start to end: ustar, GNU and pax, as far as samples need them.

Own code rather than `tarfile`, which keeps every member in memory, takes extended headers of any size,
and raises errors of many kinds for damaged files.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from shard_format.errors import (
    BadHeader,
    BadName,
    ChecksumMismatch,
    LimitExceeded,
    Truncated,
    UnsafePath,
)
from shardpack.streaming import _read

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

BLOCK: Final = 512
# name, mode, uid, gid, size, mtime, checksum, type, link name, magic, version, owner, group, device
# numbers, prefix.
_HEADER: Final = struct.Struct("<100s8s8s8s12s12s8sc100s6s2s32s32s8s8s155s12x")
_CHECKSUM_AT: Final = slice(148, 156)
# Extended headers carry one path; this is far more than any file system takes.
_LARGEST_EXTENSION: Final = 1 << 20
# Writers fill the last of their blocks; a device that never ends is no tar file.
_LARGEST_PADDING: Final = 16 << 20
_FILES: Final = (b"0", b"\0", b"7")
_FOLDER: Final = b"5"
_KINDS: Final = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a character device",
    b"4": "a block device",
    b"6": "a pipe",
    b"S": "a sparse file",
}
_PAX_RECORD: Final = re.compile(rb"(\d{1,7}) ([^=]+)=")


class Member(NamedTuple):
    """A file of a tar file."""

    name: str
    offset: int
    """Where its header is."""
    data: bytes


def members(file: BinaryIO, path: str, most: int) -> Iterator[Member]:
    """The regular files, in order; folders are passed over.

    Args:
        file: anything with `read`.
        path: what errors call it.
        most: larger members are refused.

    Raises:
        UnsafePath: a member that is no file: a link, a device.
        FormatError: the tar file is damaged or ends too early.
    """
    position = 0
    extended: dict[str, str] = {}
    while True:
        start = position
        header = _read(file, BLOCK, path)
        if len(header) < BLOCK:
            # Without its end, a file that was cut between two members would look complete.
            raise _cut(path, start)
        position += BLOCK
        if not any(header):
            _check_end(file, path, start)
            return
        kind, name, size = _parse(header, path, start)
        is_extension = kind in b"xgLK"
        if is_extension:
            limit = _LARGEST_EXTENSION
        else:
            name = extended.get("path", name)
            if "size" in extended:
                size = _decimal(extended["size"], path, start)
            limit = most
        if size > limit:
            raise LimitExceeded(
                "a member of the tar file is too large",
                path=path,
                entry=name,
                offset=start,
                expected=f"at most {limit} bytes",
                found=f"{size} bytes",
                hint=None if is_extension else "pass max_record_bytes=… if you trust the file",
            )
        if not is_extension and kind not in _FILES and kind != _FOLDER:
            raise UnsafePath(
                "a member of the tar file is no regular file",
                path=path,
                entry=name,
                offset=start,
                found=_KINDS.get(kind, f"type {kind!r}"),
                hint="remove it from the tar file, or store what it leads to",
            )
        data = _read(file, size, path)
        padding = -size % BLOCK
        if len(data) < size or len(_read(file, padding, path)) < padding:
            raise _cut(path, start)
        position += size + padding
        if kind == b"x":
            extended |= _parse_pax(data, path, start)
        elif kind == b"g":
            _check_global(data, path, start)
        elif kind == b"L":
            extended["path"] = _text(data.rstrip(b"\0"), path, start)
        elif kind != b"K":  # the target of a link, which is refused when it comes
            extended = {}
            # Tar files of Unix 7 mark a folder by a slash.
            if kind != _FOLDER and not name.endswith("/"):
                yield Member(name, start, data)


def _parse(header: bytes, path: str, start: int) -> tuple[bytes, str, int]:
    fields = _HEADER.unpack(header)
    name, size, checksum, kind, magic, prefix = (fields[n] for n in (0, 4, 6, 7, 9, 15))
    blank = bytearray(header)
    blank[_CHECKSUM_AT] = b" " * 8
    stored, total = _number(checksum, path, start), sum(blank)
    # Old writers added signed bytes.
    if stored != total and stored != total - 256 * sum(byte > 127 for byte in blank):
        raise ChecksumMismatch(
            "not a tar file, or its header is damaged",
            path=path,
            offset=start,
            expected=f"the sum {stored}",
            found=total,
        )
    text = _text(name.partition(b"\0")[0], path, start)
    front = prefix.partition(b"\0")[0]
    # GNU's own headers use the place of the prefix for something else.
    if magic == b"ustar\0" and front:
        text = f"{_text(front, path, start)}/{text}"
    return kind, text, _number(size, path, start)


def _number(field: bytes, path: str, start: int) -> int:
    """Octal digits, or a large number in base 256."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.partition(b"\0")[0].strip()
    try:
        return int(digits or b"0", 8)
    except ValueError:
        raise BadHeader(
            "not a tar file, or its header is damaged",
            path=path,
            offset=start,
            expected="octal digits",
            found=repr(field),
        ) from None


def _decimal(text: str, path: str, start: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise BadHeader(
            "an extended header has a bad size", path=path, offset=start, found=repr(text[:40])
        )
    return int(text)


def _text(raw: bytes, path: str, start: int) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadName(
            f"the name of a member is not UTF-8: {error}", path=path, offset=start, found=repr(raw)
        ) from None


def _parse_pax(data: bytes, path: str, start: int) -> dict[str, str]:
    """The fields of an extended header that change how the next member is read."""
    found: dict[str, str] = {}
    position = 0
    while position < len(data):
        match = _PAX_RECORD.match(data, position)
        end = position + int(match[1]) if match is not None else 0
        if match is None or not match.end() < end <= len(data) or data[end - 1 : end] != b"\n":
            raise BadHeader("an extended header is damaged", path=path, offset=start)
        field = match[2].decode("utf-8", "replace")
        if field in ("path", "size"):
            found[field] = _text(data[match.end() : end - 1], path, start)
        elif field.startswith("GNU.sparse."):
            raise UnsafePath(
                "a member of the tar file is no regular file",
                path=path,
                offset=start,
                found="a sparse file",
            )
        position = end
    return found


def _check_global(data: bytes, path: str, start: int) -> None:
    if _parse_pax(data, path, start):
        raise BadHeader("a header for all members sets their path or size", path=path, offset=start)


def _check_end(file: BinaryIO, path: str, start: int) -> None:
    """What follows the first empty block is empty; read to the end, so that a pipe does not break."""
    room = _LARGEST_PADDING
    while piece := _read(file, 1 << 16, path):
        room -= len(piece)
        if piece.strip(b"\0") or room < 0:
            raise BadHeader(
                "something follows the end of the tar file",
                path=path,
                offset=start,
                hint="tar files that were put one after another are given as a list",
            )


def _cut(path: str, start: int) -> Truncated:
    return Truncated(
        "the tar file has lost its end: it stops here, without an empty block",
        path=path,
        offset=start,
        hint="copy it again; append 1024 zero bytes to one that is known to be complete",
    )
