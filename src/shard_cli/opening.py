"""Opening files, and saying what a file that is no Shard file looks like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from shard_format import Limits, ShardError, ShardReader
    from wshard import Episode

_HEAD_BYTES: Final = 1024

_MAGICS: Final = (
    (0, b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    (0, b"PK\x03\x04", "a zip archive, as .npz files are"),
    (0, b"PK\x05\x06", "an empty zip archive"),
    (257, b"ustar", "a tar archive"),
    (0, b"\x1f\x8b", "gzip data"),
    (0, b"\x28\xb5\x2f\xfd", "zstd data"),
    (0, b"\x04\x22\x4d\x18", "lz4 data"),
    (0, b"BZh", "bzip2 data"),
    (0, b"\xfd7zXZ\x00", "xz data"),
    (0, b"SQLite format 3\x00", "an SQLite database"),
    (0, b"PAR1", "a Parquet file"),
    (0, b"ARROW1", "an Arrow file"),
    (0, b"\x93NUMPY", "a NumPy .npy file"),
    (0, b"\x89MCAP", "an MCAP file"),
    (0, b"\x89PNG", "a PNG image"),
    (0, b"\xff\xd8\xff", "a JPEG image"),
    (0, b"\x80\x02", "a Python pickle"),
    (0, b"\x80\x04", "a Python pickle"),
    (8, b'{"', "a safetensors file"),
    (8, b"SPR1", "a pack of samples: 'shardpack' works on it"),
    (8, b"SPI1", "a pack of samples: 'shardpack' works on it"),
    (0, b"SHRD", "a Shard file: 'shard info' says what is in it"),
    (0, b"%PDF", "a PDF document"),
    (0, b"\x7fELF", "a program"),
    (0, b"version https://git-lfs", "a Git LFS pointer: 'git lfs pull' fetches the file"),
)


def looks_like(head: bytes) -> str | None:
    """What a file with these first bytes seems to be, None if nothing fits."""
    if not head:
        return "an empty file"
    for offset, magic, what in _MAGICS:
        if head.startswith(magic, offset):
            return what
    if not any(head):
        return "zero bytes only, as an unfinished download or a sparse file"
    return _text_kind(head)


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


def limits_with(max_decompressed: int | None) -> Limits:
    """The limits of a reader, with `--max-decompressed` where it was given."""
    from dataclasses import replace

    from shard_format.registry import DEFAULT_LIMITS

    if max_decompressed is None:
        return DEFAULT_LIMITS
    return replace(DEFAULT_LIMITS, max_decompressed_bytes=max_decompressed)


def open_shard(path: str, *, max_decompressed: int | None = None) -> ShardReader:
    """A reader for the file; errors say what else it might be."""
    from shard_format import ShardReader
    from shard_format.errors import BadMagic, InvalidArgument, Truncated

    try:
        return ShardReader(path, limits=limits_with(max_decompressed))
    except (BadMagic, Truncated) as error:
        say_what_it_is(error, path)
        raise
    except InvalidArgument as error:
        error.hint = "a Shard file is read at any place: save it to a file first"
        raise


def open_episode(
    path: str,
    *,
    max_decompressed: int | None = None,
    sidecars: bool = True,
    threads: int | None = None,
) -> Episode:
    """An episode, with the lanes that were added later; errors say what else the file might be."""
    from shard_format.errors import BadMagic, Truncated
    from wshard import load_wshard

    try:
        return load_wshard(
            path, sidecars=sidecars, threads=threads, limits=limits_with(max_decompressed)
        )
    except (BadMagic, Truncated) as error:
        say_what_it_is(error, error.path or path)
        raise


def say_what_it_is(error: ShardError, path: str) -> None:
    """Adds what a file looks like that is not what was expected."""
    head = read_head(path)
    # A file that starts with our magic was cut; only an empty one says nothing about itself.
    what = looks_like(head) if error.code == "bad_magic" or not head else None
    if what is not None:
        error.hint = f"it looks like {what}"


def read_head(path: str) -> bytes:
    """The first bytes of a file."""
    with open(path, "rb") as file:
        return file.read(_HEAD_BYTES)
