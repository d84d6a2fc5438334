"""Finding episodes: listing folders, patterns and packs, and reading what is not known yet."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from math import nan
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, Union

import numpy as np

from shard_format.errors import DATA_ERRORS, InvalidArgument, ShardError, ShardIOError
from shard_format.listing import ListedFile, expand, walk_folder
from shard_format.parallel import for_each, ordered_parallel
from shard_format.sources import is_url
from wshard._folders import find_recordings
from wshard._formats import load_wshard
from wshard._sidecar import SIDECAR_SUFFIX
from wshard.catalogue._forms import describe_form
from wshard.catalogue._rows import (
    CHUNK,
    NO_PACK,
    PACK,
    ROW,
    UNREADABLE,
    Catalogue,
    StringTable,
    parse_facts,
)
from wshard.windows import follows_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from shard_format.executors import Executor
    from wshard._episode import Episode

    OnError = Callable[[str, ShardError], None]

__all__ = [
    "INDEX_SUFFIX",
    "ROOT",
    "EpisodeListing",
    "Files",
    "Known",
    "PackOfEpisodes",
    "find_files",
    "list_files",
    "list_folder",
    "list_opened",
    "scan_files",
]

Files: TypeAlias = Union["str | os.PathLike[str] | Iterable[str | os.PathLike[str]]"]
"""A folder, a file, a URL, a pattern, or a list of these."""

INDEX_SUFFIX: Final = ".wshard-index"
ROOT: Final = "."
"""The name of the searched folder itself."""
_UNKNOWN: Final = -1  # size and time of what is not a local file
_EPISODE: Final = ".wshard"
_PACK: Final = ".shardpack"
_SET_FILE: Final = ".shardpack-set"
_MANIFEST: Final = "_manifest" + _EPISODE
_SIDECARS: Final = _EPISODE + SIDECAR_SUFFIX
# Concurrent requests to a remote store.
_REQUESTS: Final = 8
_encode: Final = json.JSONEncoder(separators=(",", ":")).encode


class PackOfEpisodes(Protocol):
    """A file of many records with episodes in them. `shard_train.packed_episodes` opens such packs."""

    def __len__(self) -> int:
        """How many records it has."""

    def entries(self, record: int) -> Mapping[str, int]:
        """The size of each episode of a record, by the file name that it had."""

    def load(self, record: int, name: str) -> Episode:
        """Opens an episode of a record."""


@dataclass(frozen=True, slots=True)
class EpisodeListing:
    """The files of a dataset, in the order of its episodes."""

    base: str
    """The folder that names start from."""
    files: list[ListedFile]
    folders: dict[str, int]
    """When each folder, and each folder of sidecars, changed before it was searched; empty if none was."""
    only_packs: bool = False
    """Whether all files are packs, whatever their names are."""

    def path(self, file: ListedFile) -> str:
        """Return the path of a file."""
        return file.name if is_url(file.name) else os.path.join(self.base, file.name)

    def is_pack(self, file: ListedFile) -> bool:
        """Return whether a file holds many episodes."""
        name = file.name.partition("?")[0] if is_url(file.name) else file.name
        return self.only_packs or name.endswith(_PACK)

    @property
    def packs(self) -> list[ListedFile]:
        """The files that are packs."""
        return [file for file in self.files if self.is_pack(file)]


# --- which files


def find_files(files: Files, storage_options: Mapping[str, Any] | None = None) -> str | list[str]:
    """Return the one folder that is meant, or the single files.

    Args:
        files: what the caller gave.
        storage_options: for URLs, as for `load_wshard`.

    Raises:
        InvalidArgument: the argument is not files, or a pattern finds nothing.
    """
    if isinstance(files, (str, os.PathLike)):
        text = os.fspath(files)
        is_folder = not is_url(text) and os.path.isdir(text)
        return text if is_folder else _expand(text, storage_options)
    parts: list[Any] = list(files) if hasattr(files, "__iter__") else [files]
    if not all(isinstance(part, (str, os.PathLike)) for part in parts):
        raise InvalidArgument(
            "expected files",
            expected="a path, a URL, a folder, a pattern, a list of these, or an open shardpack.Dataset",
            found=type(files).__name__,
        )
    for part in parts:
        if os.fspath(part).endswith(INDEX_SUFFIX):
            raise InvalidArgument(
                "a saved index cannot be part of a list",
                path=os.fspath(part),
                hint="pass the index alone, or the folders and packs themselves",
            )
    found = [one for part in parts for one in _expand(os.fspath(part), storage_options)]
    if not found:
        raise InvalidArgument("no files to open", found="an empty list")
    return found


def _expand(text: str, storage_options: Mapping[str, Any] | None) -> list[str]:
    return expand(
        text,
        (_EPISODE, _PACK),
        enter=lambda name: not name.endswith(_SIDECARS),
        keep=lambda path: (
            _SIDECARS + ("/" if is_url(path) else os.sep) not in path
            and not path.endswith(INDEX_SUFFIX)
            and not path.endswith(_SET_FILE)
        ),
        storage_options=storage_options,
    )


def list_folder(folder: str) -> EpisodeListing:
    """List the episodes and packs below a folder, in natural order.

    The folder of an episode's sidecars counts as part of the episode: its time is the episode's time if it is later.
    """
    found = walk_folder(os.path.abspath(folder), (_EPISODE, _PACK))
    folders = found.folders
    files = [
        replace(file, mtime_ns=max(file.mtime_ns, folders.get(file.name + SIDECAR_SUFFIX, -1)))
        for file in found.files
        if _SIDECARS + "/" not in file.name
    ]
    if not files:
        left = len(find_recordings(folder))
        raise InvalidArgument(
            "no episodes found",
            path=folder,
            expected=f"files *{_EPISODE} or *{_PACK}",
            found=f"{left} journals of recordings" if left else None,
            hint=f"save what was recorded: wshard recover {folder}" if left else None,
        )
    return EpisodeListing(found.folder, files, folders)


def list_files(paths: Iterable[str]) -> EpisodeListing:
    """List single files, in the given order."""
    return EpisodeListing(os.getcwd(), [_listed(path) for path in paths], {})


def list_opened(names: Iterable[str]) -> EpisodeListing:
    """List packs that are open already: files, URLs, bytes."""
    files = []
    for name in names:
        try:
            files.append(_listed(name))
        except (ShardIOError, ValueError):  # noqa: PERF203 - not a file, or not even a path
            files.append(ListedFile(name, _UNKNOWN, _UNKNOWN))
    return EpisodeListing(os.getcwd(), files, {}, only_packs=True)


def _listed(path: str) -> ListedFile:
    if is_url(path):
        return ListedFile(path, _UNKNOWN, _UNKNOWN)
    try:
        facts = os.stat(path)
    except OSError as error:
        raise ShardIOError.wrap(error, "cannot open", path) from error
    time = facts.st_mtime_ns
    with suppress(OSError):  # most episodes have no sidecars
        time = max(time, os.stat(path + SIDECAR_SUFFIX).st_mtime_ns)
    return ListedFile(path, facts.st_size, time)


# --- what is in them


@dataclass(frozen=True, slots=True)
class _Scanned:
    """What was found out about one episode."""

    length: int
    observed: int
    facts: str
    return_: float = nan
    form: str = ""
    name: str = ""
    record: int = 0
    size: int = _UNKNOWN


_LOST: Final = _Scanned(UNREADABLE, 0, "")


class Known:
    """What earlier catalogues say about files that did not change since."""

    def __init__(
        self, earlier: Catalogue | None, packs: Mapping[str, Catalogue] | None = None
    ) -> None:
        self._earlier = earlier
        self._by_pack = dict(packs or {})
        self._files: dict[str, int] = {}
        self._packs: dict[str, int] = {}
        if earlier is not None:
            own = np.flatnonzero(earlier.rows["pack"] == NO_PACK)
            self._files = {earlier.names[row]: row for row in own.tolist()}
            self._packs = {earlier.packs[pack]: pack for pack in range(len(earlier.packs))}

    def file(self, file: ListedFile) -> _Scanned | None:
        """Return what is known about a file, if it did not change and could be read."""
        row, earlier = self._files.get(file.name), self._earlier
        if row is None or earlier is None:
            return None
        length, observed, size, mtime_ns, _, _, total, number = earlier.rows[row].item()
        if length < 0 or (size, mtime_ns) != (file.size, file.mtime_ns):
            return None
        return _Scanned(length, observed, earlier.facts[row], total, earlier.forms[number])

    def pack(self, file: ListedFile) -> Catalogue | None:
        """Return the rows of a pack, if it did not change and all its episodes could be read."""
        candidates = [self._by_pack.get(file.name)]
        if self._earlier is not None and file.name in self._packs:
            number = self._packs[file.name]
            candidates.append(self._earlier.of_pack(number, self._earlier.base, file.name))
        for found in candidates:
            if (
                found is not None
                and found.pack_rows[0].item() == (file.size, file.mtime_ns)
                and not bool((found.rows["length"] < 0).any())
            ):
                return found
        return None


def scan_files(
    listing: EpisodeListing,
    known: Known,
    open_pack: Callable[[int], PackOfEpisodes],
    on_error: OnError,
    storage_options: Mapping[str, Any] | None,
    executor: Executor | None = None,
) -> Catalogue:
    """Read every listed file that is not known as it is now.

    Args:
        listing: the files.
        known: what earlier catalogues say.
        open_pack: opens a pack by its number.
        on_error: called with each file that cannot be read, and why.
        storage_options: for URLs, as for `load_wshard`.
        executor: opens the episodes that are files of their own elsewhere; this process reads the packs.
    """
    scanned = _scan_own_files(listing, known, on_error, storage_options, executor)
    parts, packs = [], 0
    for in_packs, files in groupby(listing.files, listing.is_pack):
        if not in_packs:
            own = list(files)
            found = [scanned[file.name] for file in own]
            sizes = [(file.size, file.mtime_ns) for file in own]
            names = [file.name for file in own]
            parts.append(_catalogue(listing.base, names, found, sizes, None))
            continue
        for file in files:
            part = known.pack(file)
            if part is None:
                found = _scan_pack(listing.path(file), open_pack, packs, on_error, file)
                names = [one.name for one in found]
                sizes = [(one.size, _UNKNOWN) for one in found]
                part = _catalogue(listing.base, names, found, sizes, file)
            parts.append(part)
            packs += 1
    return Catalogue.join(listing.base, parts, listing.folders)


def _catalogue(
    base: str,
    names: Sequence[str],
    found: Sequence[_Scanned],
    sizes: Sequence[tuple[int, int]],
    pack: ListedFile | None,
) -> Catalogue:
    number = NO_PACK if pack is None else 0
    forms: dict[str, int] = {}
    rows = []
    for one, (size, mtime_ns) in zip(found, sizes, strict=True):
        form = forms.setdefault(one.form, len(forms))
        rows.append(
            (one.length, one.observed, size, mtime_ns, number, one.record, one.return_, form)
        )
    return Catalogue(
        base,
        StringTable.of(names),
        np.array(rows, ROW),
        StringTable.of([] if pack is None else [pack.name]),
        np.array([] if pack is None else [(pack.size, pack.mtime_ns)], PACK),
        StringTable.of(one.facts for one in found),
        StringTable.of(forms),
        {},
    )


def _scan_own_files(
    listing: EpisodeListing,
    known: Known,
    on_error: OnError,
    storage_options: Mapping[str, Any] | None,
    executor: Executor | None,
) -> dict[str, _Scanned]:
    files = [file for file in listing.files if not listing.is_pack(file)]
    found: dict[str, _Scanned] = {}
    chunks: set[str] = set()
    threads = _REQUESTS if any(file.size == _UNKNOWN for file in files) else 1
    scan_file = partial(_scan_file, storage_options)

    def keep(file: ListedFile, one: _Scanned) -> None:
        found[file.name] = one
        if '"chunks"' in one.facts:
            folder = file.name.removesuffix(os.path.basename(file.name))
            named = parse_facts(one.facts).get("chunks")
            chunks.update(
                folder + chunk
                for chunk in (named if isinstance(named, list) else [])
                if isinstance(chunk, str)
            )

    def scan(some: Iterable[ListedFile]) -> None:
        unknown = []
        for file in some:
            one = known.file(file)
            if one is None:
                unknown.append(file)
            else:
                keep(file, one)
        paths = list(map(listing.path, unknown))
        if executor is None:
            results: Iterable[tuple[int, _Scanned | ShardError]] = enumerate(
                ordered_parallel(paths, scan_file, threads)
            )
        else:
            results = executor.run(scan_file, paths)
        for number, result in results:
            if isinstance(result, ShardError):
                on_error(paths[number], result)
                result = _LOST
            keep(unknown[number], result)

    # Manifests first: then their chunks need not be opened.
    scan(file for file in files if file.name.endswith(_MANIFEST))
    scan([file for file in files if file.name not in found and file.name not in chunks])
    found.update((file.name, _Scanned(CHUNK, 0, "")) for file in files if file.name in chunks)
    return found


def _scan_file(storage_options: Mapping[str, Any] | None, path: str) -> _Scanned | ShardError:
    """What is in the file of an episode, or why it cannot be read."""
    try:
        options = storage_options if is_url(path) else None
        with load_wshard(path, threads=1, storage_options=options) as episode:
            return _scanned(episode)
    except DATA_ERRORS as error:
        return error.located(path=path)


def _scan_pack(
    path: str,
    open_pack: Callable[[int], PackOfEpisodes],
    number: int,
    on_error: OnError,
    file: ListedFile,
) -> list[_Scanned]:
    try:
        pack = open_pack(number)
        count = len(pack)
    except DATA_ERRORS as error:
        on_error(path, error.located(path=path))
        return [_LOST]
    found: list[list[_Scanned]] = [[]] * count

    def scan(at: int) -> None:
        rows: list[_Scanned] = []
        try:
            entries = pack.entries(at)
        except DATA_ERRORS as error:
            on_error(path, error.located(path=path))
            rows.append(replace(_LOST, record=at))
            entries = {}
        for name, size in entries.items():
            try:
                with pack.load(at, name) as episode:
                    one = _scanned(episode)
            except DATA_ERRORS as error:
                inside = f"{path}/{name}"
                on_error(inside, error.located(path=inside))
                one = _LOST
            rows.append(replace(one, name=name, record=at, size=size))
        found[at] = rows

    for_each(range(count), scan, _REQUESTS if file.size == _UNKNOWN else 1)
    return [row for rows in found for row in rows]


def _scanned(episode: Episode) -> _Scanned:
    facts: dict[str, Any] = {
        "id": episode.id,
        "env_id": episode.env_id,
        "metadata": episode.metadata,
        "tick_hz": episode.timebase.tick_hz,
    }
    chunks = [] if episode.origin is None else episode.origin.chunks
    if chunks:
        facts["chunks"] = [os.path.basename(reader.name) for reader in chunks]
    lengths = [c.length for c in episode.observations.values() if follows_steps(c)]
    observed = min(lengths, default=episode.length + 1)
    return _Scanned(
        episode.length, observed, _encode(facts), _return_of(episode), describe_form(episode)
    )


def _return_of(episode: Episode) -> float:
    if episode.rewards is None:
        return nan
    try:
        return float(episode.rewards.data.sum(dtype=np.float64))
    except DATA_ERRORS:  # other channels can still be used; reading the rewards says what is wrong
        return nan
