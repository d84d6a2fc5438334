"""Formats in which a dataset is a folder of files: one for each episode, or several with several episodes each."""

from __future__ import annotations

import os
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from shard_format.errors import (
    DATA_ERRORS,
    InvalidArgument,
    MissingExtra,
    ShardError,
    ShardIOError,
)
from shard_format.listing import natural_key
from wshard.convert._model import DatasetReader, Probe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wshard._episode import Episode
    from wshard.convert._model import Notes, ReadOptions

__all__ = ["FilesReader", "files_in", "has_file", "next_path", "several_episodes", "stem"]

# Refusing a folder of thousands of other files must not take minutes.
_MOST_PROBED: Final = 64


def stem(path: str) -> str:
    """The name of a file without its ending."""
    return os.path.splitext(os.path.basename(os.path.abspath(path)))[0]


def files_in(folder: str, is_wanted: Callable[[str], object]) -> tuple[list[str], list[str]]:
    """The paths of the files of a dataset in the order of their numbers, and the names of what else is in its folder."""
    names = sorted(os.listdir(folder), key=natural_key)
    wanted = [name for name in names if is_wanted(name)]
    others = set(names).difference(wanted)
    return [os.path.join(folder, name) for name in wanted], [n for n in names if n in others]


def has_file(
    folder: str, suffixes: tuple[str, ...], recognises: Callable[[Probe], bool], probe: Probe
) -> bool:
    """Whether one of the first files of a folder is in a format. Notes the damage of those that cannot be read."""
    files, _ = files_in(folder, lambda name: name.lower().endswith(suffixes))
    for file in islice(files, _MOST_PROBED):
        try:
            one = Probe(file)
            if recognises(one):
                return True
            damage = one.damage
        except (ShardIOError, MissingExtra) as error:
            damage = error
        # The folder may still be one of another format, in which this file does not matter.
        probe.damage = probe.damage or damage
    return False


class _EpisodeOfFile(NamedTuple):
    """An episode of one of several files."""

    file: int
    number: int
    """Of the episode in its file."""
    damage: ShardError | None = None
    """Why the file cannot be read. Which episodes are in it is then unknown."""


class FilesReader(DatasetReader):
    """A folder of files with several episodes each, such as LIBERO's with a file for each task.

    One file is open at a time. The id of an episode is `<file without ending>/<id in the file>`.

    Args:
        path: of the folder.
        options: for each file.
        open_file: makes the reader of one file.
        suffixes: of the files, in small letters.
        beside: endings of files that lie beside one of them and are read with it.
    """

    def __init__(
        self,
        path: str,
        options: ReadOptions,
        open_file: Callable[[str, ReadOptions], DatasetReader],
        suffixes: tuple[str, ...],
        beside: tuple[str, ...] = (),
    ) -> None:
        super().__init__(path, options)
        self._open_file = open_file
        self._files, others = files_in(path, lambda name: name.lower().endswith(suffixes))
        if not self._files:
            raise InvalidArgument(
                "no file of this format in the folder", path=path, expected=", ".join(suffixes)
            )
        stems = [stem(file) for file in self._files]
        companions = {name + ending for name in stems for ending in beside}
        self.strays: list[str] = [name for name in others if name not in companions]
        if len(set(stems)) < len(stems):  # a.h5 and a.hdf5
            stems = [os.path.basename(file) for file in self._files]
        self._open: tuple[int, DatasetReader] | None = None
        self._places: list[_EpisodeOfFile] = []
        self._names: list[str] = []
        for file, name in enumerate(stems):
            try:
                found = self._reader(file).names()
            except DATA_ERRORS as error:
                self._names.append(name)
                self._places.append(_EpisodeOfFile(file, 0, error))
                continue
            if not found:
                self.strays.append(os.path.basename(self._files[file]))
            self._names += (f"{name}/{one}" for one in found)
            self._places += (_EpisodeOfFile(file, number) for number in range(len(found)))
        self.close()

    def names(self) -> Sequence[str]:
        return self._names

    def read(self, number: int, notes: Notes) -> Episode:
        place = self._places[number]
        if place.damage is not None:
            raise place.damage
        episode = self._reader(place.file).read(place.number, notes)
        episode.id = self._names[number]
        return episode

    def close(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def _reader(self, file: int) -> DatasetReader:
        """The reader of a file, instead of the one before: it stays open for its arrays."""
        if self._open is None or self._open[0] != file:
            self.close()
            self._open = file, self._open_file(self._files[file], self.options)
        return self._open[1]


def next_path(path: str, names: list[str], episode: str, suffix: str) -> str:
    """Where the next episode goes. A path with the ending is a file for one episode, any other path a folder of files.

    Args:
        path: of the dataset.
        names: of the files so far; gets the name of the new one.
        episode: the id of the episode.
        suffix: of the files.

    Raises:
        InvalidArgument: a second episode for one file.
    """
    if path.lower().endswith(suffix):
        if names:
            raise several_episodes(os.path.basename(path), f"{episode!r} after another one")
        names.append(os.path.basename(path))
        return path
    plain = "".join(c if c.isalnum() or c in "-_." else "_" for c in episode).lstrip(".")
    base = name = plain or "episode"
    number = 1
    while name + suffix in names:
        number += 1
        name = f"{base}_{number}"
    if not names:
        os.mkdir(path)
    names.append(name + suffix)
    return os.path.join(path, names[-1])


def several_episodes(target: str, found: str) -> InvalidArgument:
    """The error for a file that has room for one episode."""
    return InvalidArgument(
        "several episodes do not fit into one file",
        path=target,
        expected="a folder as target, or one episode",
        found=found,
        hint="give a name without ending, and the format: format=…, --to FORMAT",
    )
