"""Files that this program writes: whole or not at all, and never over another by accident."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

STDIN: Final = "-"
"""What stands for standard input, or output, where a file is asked for."""


def refuse_overwrite(path: str, *, force: bool) -> None:
    """Raises if something stands at the path already and `--force` was not given."""
    from shard_format.errors import InvalidArgument

    if not force and os.path.lexists(path):
        raise InvalidArgument("the file exists", path=path, hint="give --force to replace it")


def write_file(path: str, pieces: Iterable[bytes | memoryview], *, fsync: bool = False) -> int:
    """Writes a file that appears when all pieces are in it; returns its size.

    An error while the pieces are made, such as a wrong checksum at their end, leaves no file.
    """
    from shard_format._atomic import AtomicFile, write_all
    from shard_format.errors import ShardError, ShardIOError

    file = AtomicFile(path, fsync=fsync)
    written = 0
    try:
        for piece in pieces:
            write_all(file.descriptor, [piece])
            written += len(piece)
        file.commit()
    except ShardError:
        raise
    except OSError as error:  # would name the temporary file
        raise ShardIOError.wrap(error, "cannot write", path) from error
    finally:
        file.abort()
    return written


def beside(path: str) -> str:
    """A name for a temporary file in the folder of the output."""
    import secrets

    folder, base = os.path.split(os.path.realpath(path))
    short = base.encode(errors="surrogateescape")[:200].decode(errors="ignore")
    return os.path.join(folder, f".{short}.{secrets.token_hex(6)}.partial")


def put_in_place(temporary: str, path: str) -> None:
    """Moves a finished file to its path; what stood there gives it its permissions and goes.

    Readers that have the old file open or mapped keep it. A link keeps pointing where it did.
    """
    target = os.path.realpath(path)
    if os.path.exists(target):
        os.chmod(temporary, os.stat(target).st_mode & 0o777)
    os.replace(temporary, target)


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


def check_targets(targets: Iterable[str], sources: Iterable[str], *, force: bool) -> None:
    """Raises before anything is written if a target cannot be, or must not be, replaced."""
    from shard_cli.text import count
    from shard_format.errors import InvalidArgument

    paths = list(targets)
    existing = [path for path in paths if os.path.lexists(path)]
    own = list(sources)
    for path in existing:
        if os.path.isdir(path):
            raise InvalidArgument("a folder stands where a file must be", path=path)
        if any(same_file(path, source) for source in own):
            raise InvalidArgument("this would replace the file that is being read", path=path)
    if existing and not force:
        others = "" if len(existing) == 1 else f", and {count(len(existing) - 1, 'more file')}"
        raise InvalidArgument(
            f"the file exists{others}; nothing was written",
            path=existing[0],
            hint="give --force to replace",
        )
    for folder in {os.path.dirname(path) for path in paths}:
        while folder and not os.path.lexists(folder):
            folder = os.path.dirname(folder)
        if folder and not os.path.isdir(folder):
            raise InvalidArgument("a file stands where a folder must be", path=folder)
