"""Where a dataset is that is to be read: on this disk, or behind a URL."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from xxhash import xxh3_128

from shard_format.atomic import write_file
from shard_format.errors import ShardError
from shard_format.listing import path_of_url
from shard_format.parallel import for_each
from shard_format.remote import shown
from shard_format.sources import is_url
from shard_format.transfer import AT_ONCE, base_name, fetch, names_below, path_below
from wshard.convert._model import DatasetReader, Probe
from wshard.convert._registry import FORMATS, detect, format_named, open_dataset, reader_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from typing_extensions import Self

    from shard_format.remote import Version
    from wshard._episode import Episode
    from wshard.convert._model import Format, Notes, ReadOptions

__all__ = ["DatasetSource"]

_OWN: Final = FORMATS["wshard"]
# Where each file may hold one episode.
_EPISODE_FILES: Final = tuple(ending for form in FORMATS.values() for ending in form.episode_files)


class DatasetSource:
    """A dataset that is to be read. Close it.

    WShard files behind a URL are read one by one. Other formats need local files, in a temporary folder: if each file of
    the folder holds one episode, it is fetched when the episode is read, and removed before the next; any other
    dataset is fetched now. It can be pickled; a process on another machine fetches what it needs for itself.

    Args:
        location: a path or URL.
        form: name of the format; None looks at the content.

    Raises:
        InvalidArgument: the format is not known.
        ShardIOError: a file is missing, or cannot be fetched.
    """

    def __init__(self, location: str | os.PathLike[str], form: str | None) -> None:
        place = path_of_url(os.fspath(location))
        self.is_far = is_url(place)
        self._place = place if self.is_far else os.path.abspath(place)
        self.location = shown(place) if self.is_far else self._place
        """The path, or the URL without what may be secret in it."""
        self._wanted = form
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._path = self._place
        self._has_copy = self._is_lazy = False
        self._urls: dict[str, str] = {}
        """Where the files of the copy come from."""
        if not self.is_far:
            Probe(self._path)  # for its error if there is nothing
            self.form = self._detected()
            self.version: dict[str, Any] = {"modified_ns": os.stat(self._path).st_mtime_ns}
            return
        versions = names_below(place)
        if form == _OWN.name or (form is None and _is_own(place, versions)):
            self.form = _OWN
        else:
            self._bring(versions)
        self.version = {"listed": _digest(versions)}

    def _bring(self, versions: dict[str, Version]) -> None:
        """Fetches what is needed before the first episode is read."""
        self._folder = tempfile.TemporaryDirectory(prefix="shard-", ignore_cleanup_errors=True)
        self._path = os.path.join(self._folder.name, base_name(self._place))
        self._has_copy = True
        if not versions:
            version = fetch(self._place, self._path)
            if version is not None:
                versions[""] = version
            self.form = self._detected()
            return
        root = self._place.rstrip("/")
        self._urls = {path_below(self._path, name): f"{root}/{name}" for name in sorted(versions)}
        # By the content of one file of each kind, and that of all other files, formats are known.
        kinds = {
            ending: path
            for ending in _EPISODE_FILES
            for path in reversed(self._urls)
            if path.endswith(ending)
        }
        later = [
            path
            for path in self._urls
            if path.endswith(_EPISODE_FILES) and path not in kinds.values()
        ]
        for_each(set(self._urls).difference(later), self.bring, AT_ONCE)
        if later and not any("/" in name for name in versions):
            for path in later:
                write_file(path, [], fsync=False)
            with suppress(ShardError):
                self.form = self._detected()
                self._is_lazy = bool(self.form.episode_files)
        if not self._is_lazy:
            for_each(later, self.bring, AT_ONCE)
            self.form = self._detected()

    def _detected(self) -> Format:
        try:
            return detect(self._path) if self._wanted is None else format_named(self._wanted)
        except ShardError as error:
            raise self.renamed(error) from None

    def bring(self, path: str) -> None:
        """Fetches a file of the copy."""
        fetch(self._urls[path], path)

    def open(self, options: ReadOptions) -> DatasetReader:
        """The dataset, open for reading. Close it first."""
        if self.is_far and not self._has_copy:
            return reader_of(_OWN, self._path, options)
        if self._has_copy and not os.path.exists(self._path):  # this process is on another machine
            self._bring(names_below(self._place))
        try:
            reader = open_dataset(self._path, self.form, options)
        except ShardError as error:
            raise self.renamed(error) from None
        return _FetchingReader(reader, self) if self._is_lazy else reader

    def renamed(self, error: ShardError) -> ShardError:
        """The same error with the URL of a file in place of the path of its copy."""
        if self._has_copy and error.path is not None:
            here = self._urls | {self._path: self.location}
            error.path = here.get(error.path, error.path)
        return error

    def close(self) -> None:
        """Removes what was fetched."""
        if self._folder is not None:
            self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_folder": None}  # who made it removes it


class _FetchingReader(DatasetReader):
    """A folder with a file for each episode, which is fetched when the episode is read."""

    def __init__(self, reader: DatasetReader, origin: DatasetSource) -> None:
        super().__init__(reader.path, reader.options)
        self._reader, self._origin = reader, origin
        self.strays = reader.strays
        self._fetched = ""

    def names(self) -> Sequence[str]:
        return self._reader.names()

    def read(self, number: int, notes: Notes) -> Episode:
        self._drop()
        path = self._reader.file_of(number)
        if not os.path.getsize(path):
            self._origin.bring(path)
        self._fetched = path
        return self._reader.read(number, notes)

    def _drop(self) -> None:
        """Makes the file of the last episode empty. Who has it open or mapped keeps it."""
        if self._fetched:
            with suppress(ShardError):  # Windows keeps open files
                write_file(self._fetched, [], fsync=False)
        self._fetched = ""

    def close(self) -> None:
        self._reader.close()
        self._drop()


def _is_own(url: str, names: Iterable[str]) -> bool:
    return base_name(url).endswith(_OWN.suffixes) or any(
        "/" not in name and name.endswith(_OWN.suffixes) for name in names
    )


def _digest(versions: dict[str, Version]) -> str:
    """What changes when a file is added, removed or replaced."""
    facts = [
        (name, version.size, version.etag or version.modified)
        for name, version in sorted(versions.items())
    ]
    return xxh3_128(repr(facts).encode()).hexdigest()
