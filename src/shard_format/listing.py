"""Which files a caller means: one file, a numbered range, a pattern, or all files below a folder."""

from __future__ import annotations

import glob
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from shard_format.errors import InvalidArgument, ShardIOError
from shard_format.sources import is_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = [
    "FolderListing",
    "ListedFile",
    "expand",
    "expand_braces",
    "is_there",
    "list_names",
    "natural_key",
    "path_of_url",
    "scan_folders",
    "walk_folder",
]

_DIGITS = re.compile(r"([0-9]+)")
_RANGE = re.compile(r"\{([0-9]+)\.\.([0-9]+)\}")
_LONGEST_RANGE: Final = 500
_MOST_NAMES: Final = 10_000_000


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """A sort key under which `ep_9` comes before `ep_10`."""
    # Not as numbers: Python refuses thousands of digits.
    return [
        (0, len(number := part.lstrip("0")), number) if _DIGITS.fullmatch(part) else (1, 0, part)
        for part in _DIGITS.split(name)
    ]


def expand_braces(text: str) -> list[str]:
    """The names behind ranges such as `train-{000000..000099}.shardpack`; the text itself if it has none.

    Both ends are included. Numbers have at least as many digits as the first one.

    Raises:
        InvalidArgument: a range runs backwards, or there are more than ten million names.
    """
    names = [text]
    while (match := _RANGE.search(names[0])) is not None:
        is_sane = len(match[0]) <= _LONGEST_RANGE
        first, last, width = (int(match[1]), int(match[2]), len(match[1])) if is_sane else (1, 0, 0)
        if last < first or (last - first + 1) * len(names) > _MOST_NAMES:
            raise InvalidArgument(
                "the range runs backwards or is too long", path=text, found=match[0]
            )
        # The first range is at the same place in every name: what lies before it has no range any more.
        names = [
            _RANGE.sub(f"{number:0{width}d}", name, count=1)
            for name in names
            for number in range(first, last + 1)
        ]
    return names


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file as it was when its folder was read."""

    name: str
    """The path below the folder, with `/` between its parts."""
    size: int
    """Bytes; -1 for a link that leads nowhere."""
    mtime_ns: int
    """When it was changed; -1 for a link that leads nowhere."""


@dataclass(frozen=True, slots=True)
class FolderListing:
    """The files below a folder."""

    folder: str
    """The folder itself."""
    files: list[ListedFile]
    """In natural order of their names."""
    folders: dict[str, int]
    """When each folder was changed (`mtime_ns`), by its path below the folder; `"."` is the folder itself."""

    def paths(self) -> list[str]:
        """The path of every file."""
        return [os.path.join(self.folder, file.name) for file in self.files]


def scan_folders(folder: str) -> Iterator[tuple[str, list[os.DirEntry[str]]]]:
    """A folder and all folders below it: for each its path below the first one, and what is in it.

    The path is empty, or ends with a slash. Links to folders are not followed.

    Raises:
        ShardIOError: a folder cannot be read.
    """
    waiting = [("", folder)]  # a list, because folders can be deeper than Python's stack
    while waiting:
        prefix, path = waiting.pop()
        try:
            with os.scandir(path) as scan:
                entries = list(scan)
        except OSError as error:
            raise ShardIOError.wrap(error, "cannot look into", path) from error
        yield prefix, entries
        waiting += [
            (f"{prefix}{entry.name}/", entry.path)
            for entry in entries
            if entry.is_dir(follow_symlinks=False)
        ]


def walk_folder(
    folder: str,
    suffixes: str | tuple[str, ...],
    *,
    enter: Callable[[str], bool] | None = None,
) -> FolderListing:
    """All files below a folder whose names end in one of `suffixes`.

    Hidden files and folders (`.name`) are skipped, and links to folders are not followed.

    Args:
        folder: where to start.
        suffixes: such as `".wshard"`.
        enter: called with the name of each subfolder; False skips it.

    Raises:
        ShardIOError: a folder cannot be read.
    """
    found: list[ListedFile] = []
    folders: dict[str, int] = {}
    waiting = ["."]
    while waiting:
        inner = waiting.pop()
        path = folder if inner == "." else os.path.join(folder, inner)
        prefix = "" if inner == "." else inner + "/"
        try:
            # The time is taken first, so that a file added while we look shows as a change the next time.
            folders[inner] = os.stat(path).st_mtime_ns
            with os.scandir(path) as entries:
                for entry in entries:
                    name = entry.name
                    if name.startswith("."):
                        continue
                    if entry.is_dir():
                        if not entry.is_symlink() and (enter is None or enter(name)):
                            waiting.append(prefix + name)
                    elif name.endswith(suffixes):
                        file = _listed(entry, prefix + name)
                        if file is not None:
                            found.append(file)
        except OSError as error:
            raise ShardIOError.wrap(error, "cannot look into", path) from error
    found.sort(key=lambda file: natural_key(file.name))
    return FolderListing(folder, found, folders)


def _listed(entry: os.DirEntry[str], name: str) -> ListedFile | None:
    """The facts of a file; None if it has been deleted meanwhile."""
    try:
        facts = entry.stat()
    except FileNotFoundError:
        # Listed anyway: opening a link to nowhere says what is wrong.
        return ListedFile(name, -1, -1) if entry.is_symlink() else None
    return ListedFile(name, facts.st_size, facts.st_mtime_ns)


def is_there(path: str, storage_options: Mapping[str, Any] | None = None) -> bool:
    """Whether there is a file, a link or a folder at a path, or a file at a URL.

    Raises:
        ShardIOError: the server refuses or cannot be reached.
    """
    path = path_of_url(path)
    if not is_url(path):
        return os.path.lexists(path)
    from shard_format.remote import exists

    return exists(path, storage_options)


def list_names(folder: str, storage_options: Mapping[str, Any] | None = None) -> list[str]:
    """The names in a folder, local or of an object store, in natural order; none if it does not exist.

    Raises:
        ShardIOError: the server refuses or cannot be reached.
    """
    folder = path_of_url(folder)
    if is_url(folder):
        from shard_format.remote import list_url

        inner = len(folder.rstrip("/")) + 1
        names = {one.url[inner:].partition("/")[0] for one in list_url(folder, storage_options)}
        return sorted(names, key=natural_key)
    try:
        return sorted(os.listdir(folder or os.curdir), key=natural_key)
    except OSError:
        return []


def expand(
    text: str,
    suffixes: str | tuple[str, ...],
    *,
    enter: Callable[[str], bool] | None = None,
    keep: Callable[[str], bool] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[str]:
    """The single files or URLs that a text means, in natural order.

    A file or URL means itself, also if its name looks like a pattern. A folder means the files below it with one
    of the suffixes. `{000..099}` is a range of numbers; `*`, `?`, `[…]` and `**` are patterns of names, and
    a folder that a pattern finds means its files.

    URLs of object stores have folders and patterns, too: a URL that does not end in one of the suffixes is a folder if
    there are such files below it. Web servers have neither.

    Args:
        text: what the caller gave.
        suffixes: which files of a folder are meant.
        enter: called with the name of each subfolder; False skips it.
        keep: called with each path that a pattern finds; False skips it.
        storage_options: for a URL, as `remote.open_url` takes them.

    Raises:
        InvalidArgument: a folder or a pattern holds no such file.
    """
    text = path_of_url(text)
    if not is_url(text):
        if os.path.isfile(text):
            return [text]
        if os.path.isdir(text):
            paths = walk_folder(text, suffixes, enter=enter).paths()
            if not paths:
                raise _nothing("no such files in this folder or below it", text, suffixes)
            return paths
        if os.path.lexists(text):  # a link to nowhere, or no regular file
            return [text]
    names = expand_braces(text)
    if names != [text]:
        return [
            path
            for name in names
            for path in expand(
                name, suffixes, enter=enter, keep=keep, storage_options=storage_options
            )
        ]
    if is_url(text):
        return _expand_url(text, suffixes, enter, keep, storage_options)
    if not glob.has_magic(text):
        return [text]
    found: list[str] = []
    try:
        matches = sorted(glob.glob(text, recursive=True), key=natural_key)
    except RecursionError:
        raise InvalidArgument(
            "the folders are too deep for the pattern", path=text, hint="pass the folder itself"
        ) from None
    for path in matches:
        if keep is not None and not keep(path):
            continue
        if os.path.isdir(path):
            if enter is None or enter(os.path.basename(path)):
                found += walk_folder(path, suffixes, enter=enter).paths()
        else:
            found.append(path)
    if not found:
        raise _nothing("the pattern finds no files", text, suffixes)
    return list(dict.fromkeys(found))


def path_of_url(text: str) -> str:
    """The path of a `file://` URL; any other path or URL as it is."""
    if not is_url(text):
        return text
    from shard_format.remote import local_path

    return local_path(text) or text


def _expand_url(
    url: str,
    suffixes: str | tuple[str, ...],
    enter: Callable[[str], bool] | None,
    keep: Callable[[str], bool] | None,
    storage_options: Mapping[str, Any] | None,
) -> list[str]:
    from shard_format.remote import is_store_url, list_url

    if not is_store_url(url):  # a question mark begins a query
        return [url]
    if glob.has_magic(url):
        parts = url.split("/")
        plain = next(number for number, part in enumerate(parts) if glob.has_magic(part))
        pattern = _pattern(url)
        found = [
            one.url
            for one in list_url("/".join(parts[:plain]), storage_options)
            if pattern.fullmatch(one.url) and (keep is None or keep(one.url))
        ]
        if not found:
            raise _nothing("the pattern finds no files", url, suffixes)
        return sorted(found, key=natural_key)
    if url.endswith(suffixes):
        return [url]
    folder = url.rstrip("/") + "/"
    found = [
        one.url
        for one in list_url(folder, storage_options)
        if one.url.endswith(suffixes) and _is_entered(one.url[len(folder) :], enter)
    ]
    if not found and url == folder:
        raise _nothing("no such files in this folder or below it", url, suffixes)
    return sorted(found, key=natural_key) or [url]


def _is_entered(inner: str, enter: Callable[[str], bool] | None) -> bool:
    """Whether a file below a folder counts, as for local folders: nothing hidden, no folder that `enter` skips."""
    *folders, name = inner.split("/")
    return not name.startswith(".") and all(
        not folder.startswith(".") and (enter is None or enter(folder)) for folder in folders
    )


_WILD: Final = re.compile(r"(\*\*/|\*\*|\*|\?|\[!?[^]/]+\])")


def _pattern(url: str) -> re.Pattern[str]:
    """What a URL with `*`, `?`, `[…]` and `**` matches, as `glob` matches paths."""
    meanings = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    # Every second part is a wildcard.
    parts = _WILD.split(url)
    return re.compile(
        "".join(
            meanings.get(part) or "[" + part[1:].replace("!", "^", 1).replace("\\", "\\\\")
            if number % 2
            else re.escape(part)
            for number, part in enumerate(parts)
        ),
        re.DOTALL,
    )


def _nothing(problem: str, text: str, suffixes: str | tuple[str, ...]) -> InvalidArgument:
    wanted = (suffixes,) if isinstance(suffixes, str) else suffixes
    return InvalidArgument(
        problem, path=text, expected=" or ".join(f"*{suffix}" for suffix in wanted)
    )
