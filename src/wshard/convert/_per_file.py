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
    from collections.abc import Callable, Mapping, Sequence

    from wshard._episode import Episode
    from wshard.convert._model import Notes, ReadOptions

__all__ = [
    "JoinedReader",
    "files_in",
    "has_file",
    "named_files",
    "next_path",
    "several_episodes",
    "stem",
]

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


def named_files(
    folder: str, suffixes: tuple[str, ...], beside: tuple[str, ...]
) -> tuple[dict[str, str], list[str]]:
    """The files of a dataset in a folder, by what to call them, and the names of what else is there.

    Args:
        folder: where they are.
        suffixes: of the files, in small letters.
        beside: endings of files that lie beside one of them and are read with it.
    """
    files, others = files_in(folder, lambda name: name.lower().endswith(suffixes))
    if not files:
        raise InvalidArgument(
            "no file of this format in the folder", path=folder, expected=", ".join(suffixes)
        )
    stems = [stem(file) for file in files]
    companions = {name + ending for name in stems for ending in beside}
    if len(set(stems)) < len(stems):  # a.h5 and a.hdf5
        stems = [os.path.basename(file) for file in files]
    strays = [name for name in others if name not in companions]
    return dict(zip(stems, files, strict=True)), strays


class _EpisodeOfPart(NamedTuple):
    """An episode of one of several datasets."""

    part: int
    number: int
    """Of the episode in its dataset."""
    damage: ShardError | None = None
    """Why the dataset cannot be read. Which episodes are in it is then unknown."""


class JoinedReader(DatasetReader):
    """Datasets of one format that are read as one: the files of a folder, such as LIBERO's with a file for each task,
    or the datasets below a folder.

    One of them is open at a time. The id of an episode is `<name of its dataset>/<id there>`.

    Args:
        path: of the folder.
        options: for each dataset.
        parts: the paths of the datasets, by what to call them.
        strays: what else is in the folder.
        open_part: makes the reader of one dataset.
    """

    def __init__(
        self,
        path: str,
        options: ReadOptions,
        parts: Mapping[str, str],
        strays: Sequence[str],
        open_part: Callable[[str, ReadOptions], DatasetReader],
    ) -> None:
        super().__init__(path, options)
        self._open_part = open_part
        self._parts = list(parts.values())
        self.strays: list[str] = list(strays)
        self._open: tuple[int, DatasetReader] | None = None
        self._places: list[_EpisodeOfPart] = []
        self._names: list[str] = []
        for part, name in enumerate(parts):
            try:
                reader = self._reader(part)
                found = reader.names()
            except DATA_ERRORS as error:
                self._names.append(name)
                self._places.append(_EpisodeOfPart(part, 0, error))
                continue
            if not found:
                self.strays.append(os.path.relpath(self._parts[part], path))
            self.strays += (f"{name}/{stray}" for stray in reader.strays)
            self._names += (f"{name}/{one}" for one in found)
            self._places += (_EpisodeOfPart(part, number) for number in range(len(found)))
        self.close()
        damages = [place.damage for place in self._places]
        if damages and damages[0] is not None and all(damages):
            raise damages[0]

    def names(self) -> Sequence[str]:
        return self._names

    def read(self, number: int, notes: Notes) -> Episode:
        place = self._places[number]
        if place.damage is not None:
            raise place.damage
        episode = self._reader(place.part).read(place.number, notes)
        episode.id = self._names[number]
        return episode

    def close(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def _reader(self, part: int) -> DatasetReader:
        """The reader of a dataset, instead of the one before: it stays open for its arrays."""
        if self._open is None or self._open[0] != part:
            self.close()
            self._open = part, self._open_part(self._parts[part], self.options)
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
        hint="give a name without ending, and the format with format=…",
        command="give a name without ending, and the format with --to FORMAT",
    )
