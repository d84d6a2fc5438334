"""Which format a file is in, and opening and saving by it."""

from __future__ import annotations

import os
from enum import Enum
from typing import TYPE_CHECKING, Any

from shard_format.errors import InvalidArgument, ShardIOError
from wshard.journal import MAGIC as JOURNAL_MAGIC
from wshard.reader import load_wshard
from wshard.recorded import open_partial
from wshard.writer import save_wshard

if TYPE_CHECKING:
    from wshard.episode import Episode

__all__ = ["Format", "detect_format", "load", "save"]

_SHARD_MAGIC = b"SHRD"
# Files of neighbours, by how they start: named in errors, so that nobody has to guess.
_FOREIGN = {
    b"PK\x03\x04": "a zip archive, such as npz",
    b"\x89HDF": "HDF5",
    b"\x93NUM": "a NumPy array",
    b"PAR1": "Parquet",
    b"\x89MCA": "MCAP",
}


class Format(str, Enum):
    """What a file of an episode is."""

    WSHARD = "wshard"
    """An episode, or the manifest of a chunked one."""
    PARTIAL = "partial"
    """A recording that was not finished."""

    def __str__(self) -> str:
        return str.__str__(self)


def detect_format(path: str | os.PathLike[str]) -> Format:
    """Looks at the first bytes of a file, never at its name.

    Raises:
        InvalidArgument: it is none that this library opens; says what it looks like.
    """
    location = os.fspath(path)
    try:
        with open(location, "rb") as file:
            start = file.read(4)
    except OSError as error:
        raise ShardIOError.wrap(error, "cannot open", location) from error
    if start == _SHARD_MAGIC:
        return Format.WSHARD
    if start == JOURNAL_MAGIC:
        return Format.PARTIAL
    raise InvalidArgument(
        "no known format of an episode",
        path=location,
        expected="a WShard file or a recording journal",
        found=_FOREIGN.get(start, f"bytes {start.hex(' ')}" if start else "an empty file"),
    )


def load(path: str | os.PathLike[str], **options: Any) -> Episode:  # noqa: ANN401 - the arguments of the loader
    """Opens an episode in whatever format its file is; options as for `load_wshard`."""
    if detect_format(path) is Format.PARTIAL:
        if options:
            raise InvalidArgument(
                "a recording that was not finished opens without options",
                path=os.fspath(path),
                found=", ".join(sorted(options)),
            )
        return open_partial(path)
    return load_wshard(path, **options)


def save(episode: Episode, path: str | os.PathLike[str], **options: Any) -> None:  # noqa: ANN401 - the arguments of the saver
    """Saves an episode in the format that the name's ending says; options as for `save_wshard`."""
    ending = os.path.splitext(os.fspath(path))[1].lower()
    if ending != ".wshard":
        raise InvalidArgument(
            "no format is known for this ending",
            path=os.fspath(path),
            expected=".wshard",
            found=ending or "none",
        )
    save_wshard(episode, path, **options)
