"""A folder of decoded copies on a local disk: windows are cut out of them without decoding anything.

The folder is one LRU, by the time of each file: opening a copy touches it, and when a new copy does not fit, the
copies that were opened longest ago go. Nothing else is stored, so a killed process leaves nothing that is wrong.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import logging
import os
import re
import shutil
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from shard_format import Codec
from shard_format.atomic import TEMPORARY, is_abandoned
from shard_format.errors import InvalidArgument, ShardError, ShardIOError, TransportError
from shard_format.sources import FileSource, is_url, open_regular
from wshard import load_wshard, save_wshard
from wshard.catalogue import NO_PACK
from wshard.editing import SIDECAR_SUFFIX, fingerprint
from wshard.types import Channel, FileOptions
from wshard.windows import SMALL_CHANNEL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shard_format import ShardReader
    from shard_train._episodes.store import EpisodeStore
    from wshard.catalogue import EpisodeLocations
    from wshard.types import Episode
    from wshard.windows import WindowSource

__all__ = ["COPY_SUFFIX", "EpisodeCache", "make_cache"]

_log = logging.getLogger("wshard")

COPY_SUFFIX: Final = ".wshard-copy"
"""Copies are not named like episodes, so no dataset finds them."""
_COPY: Final = re.compile(rf"[0-9a-f]{{32}}{re.escape(COPY_SUFFIX)}")
# In every key: raise it when copies of an older library must not be used any more.
_VERSION: Final = 2
# The folder is listed again after this part of its copies was added by this process.
_LISTED_EVERY: Final = 256


def make_cache(folder: str | os.PathLike[str] | None, max_bytes: int | None) -> EpisodeCache | None:
    """Return the cache that `EpisodeDataset(cache=…, cache_bytes=…)` asks for, if any.

    Raises:
        InvalidArgument: an argument is not valid.
        ShardIOError: the folder cannot be made or written to.
    """
    if folder is None:
        if max_bytes is not None:
            raise InvalidArgument("cache_bytes needs a cache", hint="pass cache='folder' too")
        return None
    if max_bytes is not None and max_bytes < 1:
        raise InvalidArgument("cache_bytes must be at least 1", found=max_bytes)
    name = os.fspath(folder)
    if is_url(name):
        raise InvalidArgument(
            "a cache is a folder on this machine", found=name, hint="pass a path on a local disk"
        )
    path = os.path.abspath(name)  # workers may run in another folder
    try:
        os.makedirs(path, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise ShardIOError.wrap(error, "cannot use this folder as the cache", path) from error
    return EpisodeCache(path, max_bytes)


class EpisodeCache:
    """Copies of episodes in a folder, each made when an episode is opened for the first time.

    A copy holds the channels that items need, uncompressed. Its name changes with the episode, so a stale copy is
    never found. Processes share the copies without knowing of each other: a copy appears when it is complete.
    Each process verifies the checksums of a copy once. A failure of the cache is logged once, to `wshard`, and
    costs only the time that the cache would have saved.

    Safe for threads and after a fork; pickles as the path of the folder.
    """

    def __init__(self, folder: str, max_bytes: int | None) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._started_ns = time.time_ns()
        # Bytes of all copies when the folder was listed last, plus what this process added; and when to list again.
        self._total = 0
        self._additions_left = 0
        self._keys: dict[int, tuple[tuple[int, ...], str]] = {}
        """The copies of episodes that were opened before, by number."""
        self._verified: dict[str, int] = {}
        """The inode of each copy whose checksums were verified."""
        self._refused: set[str] = set()
        """Copies that could not be made: not tried again."""
        self._reported: set[str] = set()

    def open(self, store: EpisodeStore, number: int) -> WindowSource:
        """Return where items of an episode are read from: its copy if possible, else the episode itself.

        Raises:
            ShardError: the episode itself cannot be opened.
        """
        stamp = _stamp_of(store.locations, number)
        known = self._keys.get(number)
        if known is not None and known[0] == stamp:
            copy = self._find(known[1], store, number)
            if copy is not None:
                return copy
        source = store.sources(number, store.load_as_listed(number))
        in_pack = store.locations.pack_of[number] != NO_PACK
        mtime_ns = stamp[0] if stamp and not in_pack else None
        key = _key_of(source, mtime_ns) if _is_worth_copying(source) else None
        if key is None or key in self._refused:
            return source
        copy = self._find(key, store, number)
        if copy is None and key not in self._refused and self._make(key, source, store, number):
            copy = self._find(key, store, number)
        if copy is None:
            self._refused.add(key)
            return source
        if known is not None and known[1] != key:
            self._verified.pop(
                known[1], None
            )  # the copy of an older version is not asked for again
        self._keys[number] = (stamp, key)
        return copy

    def _path(self, key: str) -> str:
        return os.path.join(self._folder, key + COPY_SUFFIX)

    def _find(self, key: str, store: EpisodeStore, number: int) -> WindowSource | None:
        path = self._path(key)
        try:
            # Others may write to the folder: a link in it must not lead anywhere.
            descriptor, facts = open_regular(path, follow_links=False)
            inode = facts.st_ino
            # Checked below, once: the time of change, which is set there too, would tell a reader to check it again.
            source = FileSource(path, descriptor)
            episode = load_wshard(source, sidecars=False, check=False, threads=1)
            if self._verified.get(key) != inode:
                assert episode.origin is not None
                episode.origin.reader.verify()
                self._verified[key] = inode
            found = store.sources(number, episode)
            with suppress(OSError):  # the folder of another user, or just deleted
                now = time.time_ns()
                os.utime(path, ns=(now, now))
        except OSError as error:
            if error.errno != errno.ENOENT:
                self._report(error, "%s: cannot read copies in the cache: %s", path)
            return None
        except ShardError as error:
            _log.warning(
                "a copy in the cache is damaged and made again: %s", error.located(path=path)
            )
            if not self._remove(path):
                self._refused.add(key)
            return None
        return found

    def _make(self, key: str, source: WindowSource, store: EpisodeStore, number: int) -> bool:
        """Make a copy and return whether that was possible."""
        path = self._path(key)
        size = sum(channel.as_block().nbytes for channel in _channels(source))
        try:
            if self._max_bytes is not None and size > self._max_bytes:
                raise InvalidArgument(
                    "the copy of one episode is larger than the cache may be",
                    expected=f"cache_bytes of at least {size}",
                    found=self._max_bytes,
                )
            os.makedirs(self._folder, exist_ok=True)  # it may have been deleted
            self._make_room(size)
            if shutil.disk_usage(self._folder).free < size:
                full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                raise ShardIOError.wrap(full, "cannot write", self._folder)
            names = [
                glob.escape(want.name)
                for want in store.wanted
                if source.channels[want.key] is not None
            ]
            names += [
                glob.escape(content.block)
                for content in store.contents
                if source.contents[content.key] is not None
            ]
            with store.load(number, names) as episode:
                _verify_raw(episode)
                save_wshard(episode, path, "none", fsync=False, options=FileOptions(identity=False))
            made = os.stat(path)
            self._verified[key] = made.st_ino
            self._total += made.st_size
        except (ShardError, OSError) as error:
            if isinstance(error, TransportError):  # the source fails, not the cache
                raise
            name = store.locations[number]
            self._report(error, "%s: not copied to the cache, and read where it is: %s", name)
            return False
        return True

    def _make_room(self, size: int) -> None:
        """Remove the copies that were opened longest ago until a new one fits."""
        self._additions_left -= 1
        is_full = self._max_bytes is not None and self._total + size > self._max_bytes
        if self._additions_left >= 0 and not is_full:
            return
        copies = sorted(self._copies())
        self._total = sum(copy_size for _, copy_size, _ in copies)
        self._additions_left = len(copies) // _LISTED_EVERY
        if self._max_bytes is None or self._total + size <= self._max_bytes:
            return
        removed_in_use = False
        # A tenth more than needed, so that this happens rarely.
        for used_ns, copy_size, path in copies:
            if self._total + size <= self._max_bytes - self._max_bytes // 10:
                break
            if self._remove(path):
                self._total -= copy_size
                removed_in_use |= used_ns >= self._started_ns
        if removed_in_use:
            self._report(
                None,
                "%s: the episodes do not fit into cache_bytes=%s, so copies are made again and again, which "
                "takes longer than reading without a cache",
                self._folder,
                self._max_bytes,
            )

    def _copies(self) -> Iterator[tuple[int, int, str]]:
        """Yield time, size and path of all copies; remove what killed processes left behind."""
        with os.scandir(self._folder) as found:
            for file in found:
                with suppress(FileNotFoundError, PermissionError):  # gone meanwhile, or not ours
                    if _COPY.fullmatch(file.name):
                        facts = file.stat(follow_symlinks=False)
                        yield facts.st_mtime_ns, facts.st_size, file.path
                    elif (left := TEMPORARY.fullmatch(file.name)) and _COPY.fullmatch(left[1]):
                        is_abandoned(file.path, remove=True)

    def _remove(self, path: str) -> bool:
        """Remove a copy and return whether it is gone. A process that has mapped it keeps it."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            return True
        except OSError as error:
            self._report(error, "%s: cannot remove copies from the cache: %s", self._folder)
            return False
        return True

    def _report(self, error: ShardError | OSError | None, message: str, *facts: object) -> None:
        """Log the first failure of each kind."""
        kind = f"{message} {type(error).__name__} {getattr(error, 'errno', None)}"
        if kind not in self._reported:
            self._reported.add(kind)
            _log.warning(message, *facts, *(() if error is None else (error,)))

    def __reduce__(self) -> tuple[Any, ...]:
        return EpisodeCache, (self._folder, self._max_bytes)


def _stamp_of(locations: EpisodeLocations, number: int) -> tuple[int, ...]:
    """Return what tells, without opening it, that an episode did not change: time, size and inode of its file or pack.

    Empty for a URL, as asking costs as much as opening.
    """
    pack = int(locations.pack_of[number])
    path = locations[number] if pack == NO_PACK else locations.pack_path(pack)
    if is_url(path):
        return ()
    try:
        facts = os.stat(path)
    except (OSError, ValueError):  # opening says what is wrong; an open pack may not be a file
        return ()
    sidecars_ns = 0
    with suppress(OSError):
        sidecars_ns = os.stat(path + SIDECAR_SUFFIX).st_mtime_ns
    return facts.st_mtime_ns, facts.st_size, facts.st_ino, sidecars_ns


def _key_of(source: WindowSource, mtime_ns: int | None) -> str | None:
    """Return a name for the copy of an episode that changes whenever the episode may have changed.

    None if a change might not show: the episode has neither a time nor checksums.
    """
    readers = _readers(source.episode)
    blocks = sorted({channel.block for channel in _channels(source)})
    infos = [reader.info(name) for reader in readers for name in blocks if name in reader]
    if mtime_ns is None and any(info.crc32c is None and info.size for info in infos):
        return None
    facts = [
        _VERSION,
        # Behind the question mark of a URL are signatures, which differ from day to day.
        source.path.partition("?")[0] if mtime_ns is None else source.path,
        mtime_ns,
        [[reader.source.size(), fingerprint(reader)] for reader in readers],
        blocks,
    ]
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


def _is_worth_copying(source: WindowSource) -> bool:
    """Return whether windows of a copy would cost less: the episode is remote, or large and compressed."""
    readers = _readers(source.episode)
    if not all(reader.can_view for reader in readers):
        return True
    large = [channel.block for channel in _channels(source) if channel.nbytes > SMALL_CHANNEL]
    return any(
        reader.info(name).codec is not Codec.NONE
        for reader in readers
        for name in large
        if name in reader
    )


def _verify_raw(episode: Episode) -> None:
    """Verify what decoding does not: parts of raw entries have no checksum of their own."""
    for reader in _readers(episode):
        for block, _ in episode.blocks():
            if block in reader and reader.info(block).codec is Codec.NONE:
                reader.verify_entry(block)


def _readers(episode: Episode) -> list[ShardReader]:
    """Return every file that an episode is read from."""
    origin = episode.origin
    assert origin is not None
    return [origin.reader, *origin.sidecars, *origin.chunks]


def _channels(source: WindowSource) -> list[Channel]:
    found = (*source.channels.values(), *source.contents.values())
    return [channel for channel in found if isinstance(channel, Channel)]
