"""Which shards a caller means: one file, many, a numbered range, a pattern, a folder, URLs."""

from __future__ import annotations

import glob
import os
import re
import stat
from typing import TYPE_CHECKING, Any, Final, TypeAlias, Union

from shard_format.errors import InvalidArgument
from shard_format.sources import is_url

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shard_format.sources import SourceLike

__all__ = ["Shards", "expand"]

Shards: TypeAlias = Union["SourceLike | Iterable[SourceLike]"]
"""What `shardpack.open` takes."""

SUFFIX: Final = ".shardpack"
_INDEX_SUFFIX: Final = ".wshard-index"
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_MOST_SHARDS: Final = 10_000_000


def expand(shards: Shards) -> list[Any]:
    """The single shards that are meant, in order.

    Text with `{000000..000973}` is a range of numbers, both ends included, with as many digits; text
    with `*`, `?` or `[` is a pattern of local names, in the order of the names; a folder is all its
    `.shardpack` files. A file whose own name looks like that is the file.

    Raises:
        InvalidArgument: nothing is meant, or a pattern finds nothing.
    """
    if isinstance(shards, os.PathLike):
        return _expand_text(os.fspath(shards))
    if isinstance(shards, str):
        return _expand_text(shards)
    if isinstance(shards, (list, tuple)) or (
        hasattr(shards, "__iter__")
        and not isinstance(shards, (bytes, bytearray, memoryview))
        and not hasattr(shards, "read_at")
        and not hasattr(shards, "read")
    ):
        found = [one for part in shards for one in expand(part)]
        if not found:
            raise InvalidArgument("there are no shards to open", found="an empty list")
        return found
    return [shards]


def _expand_text(text: str) -> list[str]:
    is_remote = is_url(text)
    mode = None if is_remote else _mode(text)
    if mode is not None:
        if not stat.S_ISDIR(mode):
            return [text]
        return _not_empty(sorted(glob.glob(os.path.join(glob.escape(text), "*" + SUFFIX))), text)
    match = _RANGE.search(text)
    if match is not None:
        return [one for each in _range(text, match) for one in _expand_text(each)]
    # A query of a URL may hold a question mark; there is no asking a server for names.
    if not is_remote and glob.has_magic(text):
        found = glob.glob(text, recursive=True)
        # What is known about a shard may be saved beside it.
        return _not_empty(sorted(one for one in found if not one.endswith(_INDEX_SUFFIX)), text)
    return [text]


def _mode(path: str) -> int | None:
    """What kind of file it is; None if there is none."""
    try:
        return os.stat(path).st_mode
    except (OSError, ValueError):
        return None


def _range(text: str, match: re.Match[str]) -> list[str]:
    first, last = int(match[1]), int(match[2])
    if last < first or last - first >= _MOST_SHARDS:
        raise InvalidArgument(
            "a range of shards runs backwards or is too long", found=match[0], path=text
        )
    width = len(match[1])
    start, stop = match.span()
    return [f"{text[:start]}{number:0{width}d}{text[stop:]}" for number in range(first, last + 1)]


def _not_empty(found: list[str], text: str) -> list[str]:
    if not found:
        raise InvalidArgument("no shards found", path=text, expected=f"files ending in {SUFFIX}")
    return found
