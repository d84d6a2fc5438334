"""Which format a file is in, and opening and saving by it."""

from __future__ import annotations

import os
from enum import Enum
from typing import TYPE_CHECKING, Any

from shard_format import ShardReader
from shard_format.errors import InvalidArgument
from shard_format.sources import read_file
from wshard._files import load_wshard, save_wshard
from wshard._journal import MAGIC as JOURNAL_MAGIC
from wshard.partial import open_partial

if TYPE_CHECKING:
    from wshard._episode import Episode

__all__ = ["Format", "detect_format", "load", "save"]


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
        ShardError: it is neither; says what the file looks like.
    """
    location = os.fspath(path)
    if read_file(location, len(JOURNAL_MAGIC)) == JOURNAL_MAGIC:
        return Format.PARTIAL
    ShardReader(location).close()
    return Format.WSHARD


def load(path: str | os.PathLike[str], **options: Any) -> Episode:  # noqa: ANN401 - the arguments of the loader
    """Opens an episode in any known format; options as for `load_wshard`."""
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
    """Saves an episode in the format of the name's ending; options as for `save_wshard`."""
    ending = os.path.splitext(os.fspath(path))[1].lower()
    if ending != ".wshard":
        raise InvalidArgument(
            "no format is known for this ending",
            path=os.fspath(path),
            expected=".wshard",
            found=ending or "none",
        )
    save_wshard(episode, path, **options)
