"""Which episodes the arguments of a command mean: files, and all episodes in folders."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple

from shard_cli.files import known_size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

SUFFIX: Final = ".wshard"
SIDECAR_FOLDER: Final = ".lanes"

_MANIFEST_ROLE: Final = 4
_MAGIC: Final = b"SHRD"


class EpisodeFile(NamedTuple):
    """One episode on disk."""

    path: str
    """The file, or the manifest of a chunked episode."""
    size: int
    """Bytes of its files; 0 where that is not known."""
    chunks: tuple[str, ...] = ()
    """The files that its manifest names."""
    folder: str | None = None
    """The argument that it was found in, None if it is one itself."""


def add_episodes(parser: argparse.ArgumentParser) -> None:
    """FILE|FOLDER…"""
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="FILE|FOLDER",
        help="episodes, or folders that are searched for *.wshard, with their subfolders",
    )


def find_episodes(arguments: Sequence[str]) -> list[EpisodeFile]:
    """The episodes that are meant, each once, folders sorted.

    Chunks count with their manifest, sidecars with their episode.

    Raises:
        InvalidArgument: a folder has no episodes; a typing mistake must not look like success.
    """
    from shard_format.errors import InvalidArgument

    found: dict[str, EpisodeFile] = {}
    for argument in arguments:
        if not os.path.isdir(argument):
            found.setdefault(os.path.realpath(argument), _episode(argument))
            continue
        inside = list(_in_folder(argument))
        if not inside:
            raise InvalidArgument(
                "no episodes in this folder or below it",
                path=argument,
                expected=f"files with the suffix {SUFFIX}",
            )
        for episode in inside:
            found.setdefault(os.path.realpath(episode.path), episode)
    return list(found.values())


def _in_folder(folder: str) -> Iterator[EpisodeFile]:
    for where, folders, files in os.walk(folder, onerror=_raise):
        folders[:] = sorted(name for name in folders if not name.endswith(SIDECAR_FOLDER))
        episodes = [
            _episode(os.path.join(where, name), folder)
            for name in sorted(files)
            if name.endswith(SUFFIX)
        ]
        chunks = {chunk for episode in episodes for chunk in episode.chunks}
        yield from (episode for episode in episodes if episode.path not in chunks)


def _raise(error: OSError) -> None:
    raise error


def _episode(path: str, folder: str | None = None) -> EpisodeFile:
    chunks = _chunks_of(path)
    return EpisodeFile(path, sum(map(known_size, (path, *chunks))), chunks, folder)


def _chunks_of(path: str) -> tuple[str, ...]:
    """The files that a manifest names; none for every other file, and for one that is damaged."""
    from shard_format import Manifest, ShardError

    try:
        with open(path, "rb") as file:
            head = file.read(6)
        if not head.startswith(_MAGIC) or head[5:] != bytes([_MANIFEST_ROLE]):
            return ()
        where = os.path.dirname(path)
        return tuple(os.path.join(where, row.uri) for row in Manifest.read(path).files)
    except (OSError, ShardError):  # said when the file is opened
        return ()
