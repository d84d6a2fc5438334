"""Which files and packs a data set is made of: those below a folder, of a pattern, or as they were given."""

from __future__ import annotations

import glob
import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias, Union

import numpy as np

from shard_format.errors import InvalidArgument, ShardIOError
from shard_format.sources import is_url
from wshard.dataset.packs import PACK_SUFFIX, is_pack
from wshard.folders import SUFFIX, in_order
from wshard.reader import SIDECAR_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from shardpack import Dataset

__all__ = ["Files", "Listing", "find_files", "list_files", "list_folder", "list_opened"]

Files: TypeAlias = Union["str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | Dataset"]
"""What `EpisodeDataset` takes."""

UNKNOWN: Final = -1
"""The size and time of what is not a local file."""
ROOT: Final = "."
"""The name of the folder itself."""
INDEX_SUFFIX: Final = ".wshard-index"
"""How saved catalogues are called."""
_LANES: Final = SUFFIX + SIDECAR_SUFFIX
# A range of numbered files, as `shardpack.open` takes it.
_RANGE: Final = re.compile(r"\{\d+\.\.\d+\}")


@dataclass(frozen=True, slots=True)
class Listing:
    """Files as they are now. Lives while a data set is opened, not longer."""

    base: str
    """The folder that names start from."""
    names: list[str]
    """In the order of the episodes."""
    are_packs: NDArray[np.bool_]
    """Whether each holds many episodes."""
    sizes: NDArray[np.int64]
    """In bytes."""
    mtimes_ns: NDArray[np.int64]
    """When they were changed."""
    folders: dict[str, int]
    """When each folder was changed before it was looked into, by name; empty if no folder was searched."""

    def row(self, row: int) -> tuple[str, int, int]:
        """The name of a file, its size, and when it was changed."""
        return self.names[row], int(self.sizes[row]), int(self.mtimes_ns[row])

    def path(self, row: int) -> str:
        """The path of a file."""
        name = self.names[row]
        return name if is_url(name) else os.path.join(self.base, name)


def find_files(files: Files) -> str | list[str]:
    """The one folder that is meant, or the single files.

    Raises:
        InvalidArgument: nothing is meant, or a pattern finds nothing.
    """
    if isinstance(files, (str, os.PathLike)):
        text = os.fspath(files)
        return text if not is_url(text) and os.path.isdir(text) else _expand(text)
    parts: list[Any] = list(files) if hasattr(files, "__iter__") else [files]
    if not all(isinstance(part, (str, os.PathLike)) for part in parts):
        raise InvalidArgument(
            "these are no files",
            expected="a path, a URL, a folder, a pattern, a list of these, or an opened shardpack.Dataset",
            found=type(files).__name__,
        )
    for part in parts:
        if os.fspath(part).endswith(INDEX_SUFFIX):
            raise InvalidArgument(
                "a saved index is a data set of its own, and not part of a list",
                path=os.fspath(part),
                hint="give the index alone, or the folders and packs that are meant",
            )
    found = [one for part in parts for one in _expand(os.fspath(part))]
    if not found:
        raise InvalidArgument("there are no files to open", found="an empty list")
    return found


def _expand(text: str) -> list[str]:
    if not is_url(text):
        if os.path.isdir(text):
            return [os.path.join(text, name) for name in list_folder(text).names]
        # A file whose own name looks like a pattern is the file.
        if os.path.exists(text):
            return [text]
    if _RANGE.search(text):
        from shardpack.patterns import expand

        return [one for part in expand(text) for one in _expand_found(part)]
    if is_url(text) or not glob.has_magic(text):
        return [text]
    found = [one for one in glob.glob(text, recursive=True) if _is_meant(one)]
    if not found:
        raise InvalidArgument("no files found", path=text)
    return [one for match in sorted(found, key=in_order) for one in _expand_found(match)]


def _expand_found(path: str) -> list[str]:
    if is_url(path) or not os.path.isdir(path):
        return [path]
    return [] if path.endswith(_LANES) else _expand(path)


def _is_meant(path: str) -> bool:
    """Whether a pattern means it: no added lanes, and no saved index."""
    return _LANES + os.sep not in path and not path.endswith(INDEX_SUFFIX)


def list_folder(folder: str) -> Listing:
    """The episodes and packs below a folder, in the order of their names with numbers counted.

    Folders of added lanes are not looked into, links to folders are not followed, and what is hidden (`.name`) is
    left alone, as by patterns.
    """
    base = os.path.abspath(folder)
    found: list[tuple[str, int, int]] = []
    folders: dict[str, int] = {}
    waiting = [ROOT]
    while waiting:
        inner = waiting.pop()
        path = os.path.join(base, inner)
        prefix = "" if inner == ROOT else inner + "/"
        try:
            # Asked before looking: what is added while we look shows as a change the next time.
            folders[inner] = os.stat(path).st_mtime_ns
            with os.scandir(path) as entries:
                for entry in entries:
                    name = entry.name
                    if name.startswith("."):
                        continue
                    if entry.is_dir():
                        if not entry.is_symlink() and not name.endswith(_LANES):
                            waiting.append(prefix + name)
                    elif name.endswith((SUFFIX, PACK_SUFFIX)):
                        facts = _facts(entry)
                        if facts is not None:
                            found.append((prefix + name, *facts))
        except OSError as error:
            raise ShardIOError.wrap(error, "cannot look into", path) from error
    if not found:
        raise InvalidArgument(
            "there are no episodes", path=folder, expected=f"files *{SUFFIX} or *{PACK_SUFFIX}"
        )
    found.sort(key=lambda row: in_order(row[0]))
    return _listing(base, found, folders)


def _facts(entry: os.DirEntry[str]) -> tuple[int, int] | None:
    """Size and time of a file; None if it has been deleted meanwhile."""
    try:
        facts = entry.stat()
    except FileNotFoundError:
        # A link to nothing is not the same: whoever opens it says what is wrong.
        return (UNKNOWN, UNKNOWN) if entry.is_symlink() else None
    return facts.st_size, facts.st_mtime_ns


def list_files(paths: Iterable[str]) -> Listing:
    """Single files, in the given order."""
    found = []
    for path in paths:
        if is_url(path):
            found.append((path, UNKNOWN, UNKNOWN))
            continue
        try:
            facts = os.stat(path)
        except OSError as error:
            raise ShardIOError.wrap(error, "cannot open", path) from error
        found.append((path, facts.st_size, facts.st_mtime_ns))
    return _listing(os.getcwd(), found, {})


def list_opened(packs: Dataset) -> Listing:
    """Packs that somebody has opened, whatever they are called: files, URLs, bytes."""
    found = [(pack.name, *_size_and_time(pack.name)) for pack in packs.shards]
    return replace(_listing(os.getcwd(), found, {}), are_packs=np.ones(len(found), np.bool_))


def _size_and_time(name: str) -> tuple[int, int]:
    try:
        facts = os.stat(name)
    except (OSError, ValueError):  # not a file, or not even a path
        return UNKNOWN, UNKNOWN
    return facts.st_size, facts.st_mtime_ns


def _listing(base: str, found: list[tuple[str, int, int]], folders: dict[str, int]) -> Listing:
    count = len(found)
    return Listing(
        base,
        [name for name, _, _ in found],
        np.fromiter((is_pack(name) for name, _, _ in found), np.bool_, count),
        np.fromiter((size for _, size, _ in found), np.int64, count),
        np.fromiter((time for _, _, time in found), np.int64, count),
        folders,
    )
