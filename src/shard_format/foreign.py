"""Files of other formats: an error says what a file is and what to do with it, or why its library cannot read it."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from shard_format.errors import BadValue, ShardError, ShardIOError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["HEAD_BYTES", "explain", "looks_like", "reading"]

HEAD_BYTES: Final = 1024
"""How many bytes from the start of a file `looks_like` needs."""


class _KnownFormat(NamedTuple):
    offset: int
    magic: bytes
    what: str
    hint: str | None = None
    """What to do in Python."""
    command: str | None = None
    """What to do on the command line; None if it is the same."""


_PACK: Final = (
    "a ShardPack",
    "open it with shardpack.open(path)",
    "'shardpack' works on it",
)
_FORMATS: Final = (
    _KnownFormat(0, b"\x89HDF\r\n\x1a\n", "an HDF5 file", "wshard.load(path) reads known episodes, h5py anything", "'wshard convert' reads datasets of episodes"),
    _KnownFormat(0, b"PK\x03\x04", "a zip archive, as .npz files are", "wshard.load(path) reads an .npz file with an episode, numpy.load any", "'wshard convert' reads .npz files with episodes"),
    _KnownFormat(0, b"PK\x05\x06", "an empty zip archive"),
    _KnownFormat(257, b"ustar", "a tar archive", "shardpack.convert reads WebDataset archives", "'shardpack from-tar' converts WebDataset archives"),
    _KnownFormat(0, b"\x1f\x8b", "gzip data", "unpack it first"),
    _KnownFormat(0, b"\x28\xb5\x2f\xfd", "zstd data", "unpack it first"),
    _KnownFormat(0, b"\x04\x22\x4d\x18", "lz4 data", "unpack it first"),
    _KnownFormat(0, b"BZh", "bzip2 data", "unpack it first"),
    _KnownFormat(0, b"\xfd7zXZ\x00", "xz data", "unpack it first"),
    _KnownFormat(0, b"SQLite format 3\x00", "an SQLite database"),
    _KnownFormat(0, b"PAR1", "a Parquet file", "read it with pyarrow.parquet, or convert it with shardpack.convert or wshard.convert", "'wshard convert' and 'shardpack from-table' convert it"),
    _KnownFormat(0, b"ARROW1", "an Arrow file", "read it with pyarrow"),
    _KnownFormat(0, b"\x93NUMPY", "a NumPy .npy file", "read it with numpy.load"),
    _KnownFormat(0, b"\x89MCAP", "an MCAP file", "wshard.load(path) reads it as an episode", "'wshard convert' reads it"),
    _KnownFormat(0, b"\x89PNG", "a PNG image", "read it with Pillow; shardpack.pack stores images", "'shardpack create' stores images"),
    _KnownFormat(0, b"\xff\xd8\xff", "a JPEG image", "read it with Pillow; shardpack.pack stores images", "'shardpack create' stores images"),
    *(_KnownFormat(0, bytes((0x80, n)), "a Python pickle", "do not unpickle files you do not trust") for n in (2, 3, 4, 5)),
    _KnownFormat(8, b'{"', "a safetensors file", "read it with the package safetensors"),
    _KnownFormat(8, b"SPR1", *_PACK),
    _KnownFormat(8, b"SPI1", *_PACK),
    _KnownFormat(
        0,
        b"WSJ1",
        "the journal of a recording that was not finished",
        "wshard.recover(path) makes an episode of it",
        "'wshard recover' makes an episode of it",
    ),
    _KnownFormat(
        0,
        b"SHRD",
        "a Shard file",
        "open it with shard_format.ShardReader(path)",
        "'shard info' says what is in it",
    ),
    _KnownFormat(0, b"%PDF", "a PDF document"),
    _KnownFormat(0, b"\x7fELF", "a program"),
    _KnownFormat(0, b"version https://git-lfs", "a Git LFS pointer", "fetch the file with: git lfs pull"),
)  # fmt: skip


def looks_like(head: bytes) -> str | None:
    """What a file with these first bytes seems to be; None if nothing fits."""
    found = _recognise(head)
    return None if found is None else found.what


def explain(error: ShardError, head: bytes) -> None:
    """Adds to an error about a file that is not of the expected format what it is, and what to do.

    Errors that have a hint keep it.

    Args:
        error: is about the file.
        head: the first `HEAD_BYTES` of the file, or all of it.
    """
    if error.hint is not None:
        return
    found = _recognise(head)
    # A file that starts with the right magic is cut short; only an empty one says nothing about itself.
    if found is None or (error.code == "truncated" and head):
        return
    error.hint = f"it looks like {found.what}" + (f": {found.hint}" if found.hint else "")
    if found.command is not None:
        error.command = f"it looks like {found.what}: {found.command}"


def _recognise(head: bytes) -> _KnownFormat | None:
    if not head:
        return _KnownFormat(0, b"", "an empty file")
    for known in _FORMATS:
        if head.startswith(known.magic, known.offset):
            return known
    if not any(head):
        return _KnownFormat(0, b"", "zero bytes only, as an unfinished download or a sparse file")
    text = _text_kind(head)
    return None if text is None else _KnownFormat(0, b"", text)


def _text_kind(head: bytes) -> str | None:
    # The last character may be cut.
    text = head.decode("utf-8", errors="ignore")
    if len(text.encode()) < len(head) - 3 or any(c < " " and c not in "\t\n\r\f" for c in text):
        return None
    start = text.lstrip().lower()
    if start.startswith(("<!doctype html", "<html")):
        return "a web page, perhaps an error that was saved by a download"
    if start.startswith(("{", "[")):
        return "JSON text"
    return "text"


@contextmanager
def reading(
    path: str, problem: str, *, entry: str | None = None, expected: str | None = None
) -> Iterator[None]:
    """What a library raises for a damaged file, whatever it is, becomes a `BadValue`.

    Errors of ours stay. Those of the system, and a lack of memory, say nothing about the data: a `ShardIOError`.
    """
    try:
        yield
    except ShardError:
        raise
    except MemoryError as error:
        shortage = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        raise ShardIOError.wrap(shortage, "cannot read", path) from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:  # those of libraries have none
            raise ShardIOError.wrap(error, "cannot read", path) from error
        reason = str(error)[:300] or type(error).__name__
        raise BadValue(f"{problem}: {reason}", path=path, entry=entry, expected=expected) from None
