"""Files that this program reads and writes: whole or not at all, and never over another by accident."""

from __future__ import annotations

import os
import re
import stat
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shard_cli.console import Console
    from shard_format import ShardWriter

STDIN: Final = "-"
"""Standard input, or output, instead of a file."""

# Content up to here is put together in memory: a frame of known size, and a codec that needs it whole.
_LARGEST_IN_MEMORY: Final = 64 << 20
# Bytes 8 to 11 of a shard: spec/shardpack.md, sections 2 and 7.
_PACK_MARKERS: Final = (b"SPR1", b"SPI1")
_KINDS: Final = (
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
)


def refuse_overwrite(path: str, *, force: bool) -> None:
    """Raises if the path exists and `--force` was not given."""
    from shard_format.errors import InvalidArgument
    from shard_format.listing import is_there

    if not force and is_there(path):
        raise InvalidArgument("the file exists", path=path, hint="pass --force to replace it")


def read_argument(path: str) -> bytes:
    """The whole content of a file, or of standard input."""
    from shard_format.errors import ShardIOError

    try:
        if path == STDIN:
            return sys.stdin.buffer.read()
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ShardIOError.wrap(error, "cannot read", path) from error


def read_list(argument: str) -> list[bytes]:
    """The items of a list in a file or on standard input: NUL after each as `find -print0` has it, or one on each line."""
    data = read_argument(argument)
    items = data.split(b"\0") if b"\0" in data else re.split(rb"\r?\n", data)
    return [item for item in items if item]


def same_file(first: str, second: str) -> bool:
    """Whether two paths lead to one file."""
    try:
        return os.path.samefile(first, second)
    except FileNotFoundError:
        return False


def known_size(path: str) -> int:
    """Bytes of a file; 0 where that cannot be told."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def is_pack(path: str) -> bool:
    """Whether `path` is a shard of a dataset, or stands for several."""
    from shard_format.errors import ShardError, ShardIOError
    from shard_format.sources import is_url, read_file

    if is_url(path):  # looking into it would cost a request
        return path.partition("?")[0].endswith(".shardpack")
    try:
        return read_file(path, 12)[8:] in _PACK_MARKERS
    except ShardIOError:
        return path.endswith(".shardpack")
    except ShardError:  # a pipe, which cannot be read again
        return False


def check_targets(targets: Iterable[str], sources: Iterable[str], *, force: bool) -> None:
    """Raises before anything is written if a target cannot be, or must not be, replaced."""
    from shard_cli.text import count
    from shard_format.errors import InvalidArgument

    paths = list(targets)
    existing = [path for path in paths if os.path.lexists(path)]
    own = list(sources)
    for path in existing:
        if os.path.isdir(path):
            raise InvalidArgument("there is a folder where a file must be", path=path)
        if any(same_file(path, source) for source in own):
            raise InvalidArgument("this would replace the file that is being read", path=path)
    if existing and not force:
        others = "" if len(existing) == 1 else f", and {count(len(existing) - 1, 'more file')}"
        raise InvalidArgument(
            f"the file exists, with other content{others}; nothing was written",
            path=existing[0],
            hint="pass --force to replace",
        )
    for folder in {os.path.dirname(path) for path in paths}:
        while folder and not os.path.lexists(folder):
            folder = os.path.dirname(folder)
        if folder and not os.path.isdir(folder):
            raise InvalidArgument("there is a file where a folder must be", path=folder)


def kind_of(mode: int) -> str:
    """What a file is that is neither a file nor a folder."""
    return next((what for test, what in _KINDS if test(mode)), "a symbolic link")


def write_content(
    writer: ShardWriter,
    name: str,
    pieces: Iterable[bytes | memoryview],
    size: int | None,
    storage: dict[str, Any],
    console: Console,
) -> None:
    """Writes one entry from pieces.

    Args:
        writer: takes the entry.
        name: its name.
        pieces: its content.
        size: bytes of content; None if only reading shows it.
        storage: options of `write_entry`, with `compression`. Entries above what readers decompress by
            default stay raw.
        console: warns when an entry stays raw.
    """
    from shard_cli.text import size as text_of_size
    from shard_format.codecs import NO_COMPRESSION, Codec
    from shard_format.registry import DEFAULT_LIMITS

    codec = storage["compression"].codec
    largest = DEFAULT_LIMITS.max_decompressed_bytes
    if codec is not Codec.NONE and size is not None and size > largest:
        console.warn(
            f"{name}: stored raw, because readers refuse compressed entries above {text_of_size(largest)}"
        )
        storage = {**storage, "compression": NO_COMPRESSION, "frame_bytes": None, "filters": None}
    elif codec is Codec.LZ4 or (size is not None and size <= _LARGEST_IN_MEMORY):
        writer.write_entry(name, b"".join(pieces), **storage)
        return
    writer.write_entry_stream(name, pieces, **storage)
