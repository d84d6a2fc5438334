"""A folder of decoded copies on a local disk, from which windows are views instead of work."""

from __future__ import annotations

import errno
import logging
import operator
import os
import shutil
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from shard_format.errors import InvalidArgument, ShardError, ShardIOError
from shard_format.sources import is_url
from wshard.dataset.copies import copied_bytes, is_worth_copying, key_of, write_copy
from wshard.dataset.copy_room import SUFFIX, CopyRoom
from wshard.dataset.places import NO_PACK
from wshard.reader import SIDECAR_SUFFIX, load_wshard

if TYPE_CHECKING:
    from collections.abc import Callable

    from wshard.dataset.places import Places
    from wshard.episode import Episode
    from wshard.windows import Sources

__all__ = ["EpisodeCache", "Stamp", "make_cache", "stamp_of"]

_log = logging.getLogger("wshard")


class Stamp(NamedTuple):
    """What tells, without opening it, that an episode is the same as a moment ago."""

    mtime_ns: int | None
    """When its file was changed; None if it has no file of its own here."""
    others: tuple[int, ...] = ()
    """Size and number of its file, and when its lanes were added; or those of its pack."""


def stamp_of(places: Places, number: int) -> Stamp:
    """The stamp of an episode now; of what is behind a URL always the same, as asking costs as much as opening."""
    pack = int(places.pack_of[number])
    path = places.path(number) if pack == NO_PACK else places.pack_path(pack)
    if is_url(path):
        return Stamp(None)
    try:
        facts = os.stat(path)
    except (OSError, ValueError):  # opening says what is wrong; an opened pack may not be a file
        return Stamp(None)
    if pack != NO_PACK:
        return Stamp(None, (facts.st_size, facts.st_ino, facts.st_mtime_ns))
    lanes_ns = 0
    with suppress(OSError):
        lanes_ns = os.stat(path + SIDECAR_SUFFIX).st_mtime_ns
    return Stamp(facts.st_mtime_ns, (facts.st_size, facts.st_ino, lanes_ns))


def make_cache(
    folder: str | os.PathLike[str] | None, most_bytes: int | None
) -> EpisodeCache | None:
    """The cache that a caller asks for, if any. The arguments are those of `EpisodeDataset`.

    Raises:
        InvalidArgument: an argument cannot work.
        ShardIOError: the folder cannot be made, or not be written to.
    """
    if folder is None:
        if most_bytes is not None:
            raise InvalidArgument("cache_bytes is for a cache", hint="pass cache='folder' too")
        return None
    if most_bytes is not None and operator.index(most_bytes) < 1:
        raise InvalidArgument("cache_bytes is at least 1", found=most_bytes)
    name = os.fspath(folder)
    if is_url(name):
        raise InvalidArgument(
            "a cache is a folder on this machine", found=name, hint="give a path on a local disk"
        )
    # Workers may run in another folder.
    path = os.path.abspath(name)
    try:
        os.makedirs(path, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise ShardIOError.wrap(error, "this cannot be the cache", path) from error
    return EpisodeCache(path, most_bytes)


class EpisodeCache:
    """Copies of episodes in a folder, made when an episode is opened for the first time.

    A copy holds the channels that items need, uncompressed, under a name that changes with the episode, so that a
    stale one is never found. Processes share the copies, and need not know of each other: a copy appears when it is
    complete, and whoever is second has worked in vain. Each process checks the checksums of a copy once. What
    goes wrong with the cache is reported once to the logger `wshard`, and costs only the time that it would have
    saved.

    Safe for threads and after a fork; pickles as the name of the folder.

    Args:
        folder: where the copies are.
        most_bytes: how many bytes they may have together; None for any number.
    """

    def __init__(self, folder: str, most_bytes: int | None) -> None:
        self._folder = folder
        self._most = most_bytes
        self._set_up()

    def _set_up(self) -> None:
        self._room = CopyRoom(self._folder, self._most)
        self._keys: dict[int, tuple[Stamp, str]] = {}
        """The copies of episodes that were opened before, by number."""
        self._checked: dict[str, int] = {}
        """Which file each copy was when its checksums were right."""
        self._refused: set[str] = set()
        """Copies that could not be made: not tried again."""
        self._told: set[str] = set()

    def open(
        self,
        number: int,
        path: str,
        stamp: Stamp,
        open_source: Callable[[], Sources],
        use: Callable[[Episode], Sources],
    ) -> Sources:
        """Where items of an episode come from: its copy if there is one or can be one, else itself.

        Args:
            number: of the episode.
            path: what it is called.
            stamp: what it is now.
            open_source: opens the episode itself.
            use: makes the same of a copy.

        Raises:
            ShardError: the episode itself cannot be opened.
        """
        known = self._keys.get(number)
        if known is not None and known[0] == stamp:
            copy = self._find(known[1], use)
            if copy is not None:
                return copy
        source = open_source()
        key = key_of(source, path, stamp.mtime_ns) if is_worth_copying(source) else None
        if key is None or key in self._refused:
            return source
        copy = self._find(key, use)
        if copy is None and key not in self._refused and self._make(key, path, source):
            copy = self._find(key, use)
        if copy is None:
            self._refused.add(key)
            return source
        self._keys[number] = (stamp, key)
        return copy

    def _path(self, key: str) -> str:
        return os.path.join(self._folder, key + SUFFIX)

    def _find(self, key: str, use: Callable[[Episode], Sources]) -> Sources | None:
        path = self._path(key)
        try:
            file = os.stat(path).st_ino
            episode = load_wshard(path, sidecars=False, threads=1)
            if self._checked.get(key) != file:
                assert episode.origin is not None
                episode.origin.reader.verify()
                self._checked[key] = file
            found = use(episode)
            with suppress(OSError):  # a folder of somebody else, or just deleted
                # The least recently used go first. As exact as can be: by itself the system takes its last tick.
                now = time.time_ns()
                os.utime(path, ns=(now, now))
        except OSError as error:
            if error.errno != errno.ENOENT:
                self._tell(error, "%s: copies in the cache cannot be read: %s", path)
            return None
        except ShardError as error:
            _log.warning("a damaged copy in the cache is made anew: %s", error.located(path=path))
            self._drop(key)
            return None
        return found

    def _drop(self, key: str) -> None:
        try:
            is_gone = self._room.drop(key + SUFFIX)
        except OSError as error:
            is_gone = False
            self._tell(error, "%s: copies in the cache cannot be removed: %s", self._folder)
        if not is_gone:
            self._refused.add(key)

    def _make(self, key: str, path: str, source: Sources) -> bool:
        """Makes a copy; whether that was possible."""
        target, size = self._path(key), copied_bytes(source)
        try:
            if self._most is not None and size > self._most:
                raise InvalidArgument(
                    "the copy of one episode is larger than the cache may be",
                    expected=f"cache_bytes of at least {size}",
                    found=self._most,
                )
            # Somebody may have deleted it.
            os.makedirs(self._folder, exist_ok=True)
            went = self._room.prepare(size)
            self._check_disk(size)
            if write_copy(target, source):
                made = os.stat(target)
                self._checked[key] = made.st_ino
                went += self._room.add(made.st_size)
        except (ShardError, OSError) as error:
            self._tell(error, "%s: not copied to the cache, and read where it is: %s", path)
            return False
        if went:
            self._tell(
                None,
                "%s: what is read does not fit into cache_bytes=%s: copies are made again and again, which takes "
                "longer than to do without a cache",
                self._folder,
                self._most,
            )
        return True

    def _check_disk(self, size: int) -> None:
        """Refuses what the disk has no room for, before it is decoded."""
        if shutil.disk_usage(self._folder).free < size:
            full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            raise ShardIOError.wrap(full, "cannot write", self._folder)

    def _tell(self, error: ShardError | OSError | None, message: str, *facts: object) -> None:
        """Reports the first of each kind of trouble."""
        kind = f"{message} {type(error).__name__} {getattr(error, 'errno', None)}"
        if kind not in self._told:
            self._told.add(kind)
            _log.warning(message, *facts, *(() if error is None else (error,)))

    def __getstate__(self) -> dict[str, Any]:
        return {"_folder": self._folder, "_most": self._most}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._set_up()
