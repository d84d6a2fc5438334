"""Reading a shard from start to end without its index: pipes, standard input, truncated files."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol

from shard_format.errors import (
    BadMagic,
    BadOffset,
    LimitExceeded,
    ShardError,
    ShardIOError,
    SizeMismatch,
    TrailingData,
    Truncated,
)
from shard_format.opening import open_source
from shard_format.registry import DEFAULT_LIMITS, Limits
from shard_format.sequential import BLOCK_BYTES, SequentialSource
from shard_format.sources import is_url
from shardpack._index import ShardIndex
from shardpack._layout import BLOCK_START, FOOTER_SIZE, INDEX_MARKER, RECORD_MARKER
from shardpack._shard_bytes import ShardBytes
from shardpack.reader import checked_footer
from shardpack.record import open_record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shard_format.sources import ByteSource
    from shardpack.record import Record

__all__ = ["stream"]

# Memory grows as bytes arrive, so a false size costs nothing.
_PIECE: Final = 16 << 20
_LARGEST_RECORD: Final = 4 << 30


def stream(
    file: BinaryIO | str | os.PathLike[str],
    *,
    limits: Limits = DEFAULT_LIMITS,
    max_record_bytes: int = _LARGEST_RECORD,
) -> Iterator[Record]:
    """The records of a shard in order, from anything that can only be read forwards.

    Each record is in memory as a whole and stays valid while you read on.

    Args:
        file: a path, a URL, or anything with `read`, such as `sys.stdin.buffer` or a server's response.
        limits: what the file may ask for.
        max_record_bytes: refuse larger records; raise it for files you trust.

    Raises:
        Truncated: after the last complete record, if the stream ends before the index does.
        FormatError: the stream has something that is neither a record nor the index.
    """
    if isinstance(file, str) and is_url(file):
        # Opening brings the first block: a shard of up to 8 MiB takes one request.
        remote = open_source(file, first_read=BLOCK_BYTES)
        with closing(remote) as source, closing(_ForwardFile(source)) as forward:
            yield from _stream(forward, source.name, limits, max_record_bytes)
        return
    if isinstance(file, (str, os.PathLike)):
        try:
            descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        except OSError as error:
            raise ShardIOError.wrap(error, "cannot open", os.fspath(file)) from error
        with os.fdopen(descriptor, "rb") as opened:
            yield from _stream(opened, os.fspath(file), limits, max_record_bytes)
        return
    name = str(getattr(file, "name", f"<{type(file).__name__}>"))
    yield from _stream(file, name, limits, max_record_bytes)


class _ForwardFile:
    """A remote file that is read from start to end."""

    def __init__(self, source: ByteSource) -> None:
        self._source = SequentialSource(source)
        self._position = 0

    def read(self, size: int) -> bytes:
        """As many bytes, or those that are left."""
        size = min(size, self._source.size() - self._position)
        data = self._source.read_at(self._position, size)
        self._position += size
        return data

    def close(self) -> None:
        self._source.release()


class _ForwardReader(Protocol):
    def read(self, size: int, /) -> bytes: ...


def _stream(
    file: _ForwardReader, name: str, limits: Limits, max_record_bytes: int
) -> Iterator[Record]:
    position = count = 0
    while True:
        start = read_bytes(file, BLOCK_START.size, name)
        if len(start) < BLOCK_START.size:
            raise _cut(name, position, len(start))
        size, marker = BLOCK_START.unpack(start)
        is_index = marker == INDEX_MARKER
        if not any(start):  # space that a writer reserved and did not use
            raise _cut(name, position, 0)
        if marker != RECORD_MARKER and not is_index:
            raise BadMagic(
                "neither a record nor the index starts here",
                path=name,
                offset=position,
                found=marker.hex(" "),
                rule="P-REC-2",
            )
        if size < BLOCK_START.size:
            raise BadOffset(
                "a record is smaller than its head", path=name, offset=position, rule="P-REC-1"
            )
        most = limits.max_index_bytes if is_index else max_record_bytes
        if size > most:
            raise LimitExceeded(
                f"{'an index' if is_index else 'a record'} is too large to read from a stream",
                path=name,
                offset=position,
                expected=f"at most {most} bytes",
                found=f"{size} bytes",
                rule="P-IDX-1" if is_index else None,
                hint="pass max_record_bytes=… or limits=… if you trust the file",
                command="pass a larger --record-size-limit if you trust the file",
            )
        data = start + read_bytes(file, size - len(start), name)
        if len(data) < size:
            raise _cut(name, position, len(data), "P-FTR-1" if is_index else "P-REC-7")
        if is_index:
            _check_end(data, position, count, name, limits)
            if read_bytes(file, 1, name):
                raise TrailingData("bytes follow the footer", path=name, rule="P-FTR-5")
            return
        yield open_record(ShardBytes(name, limits, data, position), 0, size)
        position += size
        count += 1


def read_bytes(file: _ForwardReader, size: int, name: str) -> bytes:
    """Read `size` bytes, or fewer at the end of the file."""
    pieces: list[bytes] = []
    missing = size
    try:
        while missing and (piece := file.read(min(missing, _PIECE))):
            pieces.append(piece)
            missing -= len(piece)
    except OSError as error:
        if isinstance(error, ShardError):
            raise
        raise ShardIOError.wrap(error, "cannot read", name) from error
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _cut(name: str, position: int, found: int, rule: str = "P-FTR-1") -> Truncated:
    return Truncated(
        "the stream ends before the index of the shard",
        path=name,
        offset=position,
        found=f"{found} bytes after the last complete record",
        rule=rule,
        hint="all complete records were read",
    )


def _check_end(data: bytes, position: int, count: int, name: str, limits: Limits) -> None:
    """Check that the footer and the head of the index match what was read."""
    try:
        footer = checked_footer(
            data[-FOOTER_SIZE:], position + len(data), lambda: data[: BLOCK_START.size]
        )
        if (footer.index_offset, footer.record_count) != (position, count):
            raise SizeMismatch(
                "the footer does not match the records before it",
                offset=position,
                expected=f"{footer.record_count} records up to byte {footer.index_offset}",
                found=f"{count} records up to byte {position}",
                rule="P-IDX-2",
            )
        ShardIndex(name, memoryview(data), footer, limits)
    except ShardError as error:
        raise error.located(path=name) from None
