"""Opening the catalogue of a dataset: from its saved index while that is current, else by scanning the files.

The index of a folder or pack is `<folder>.wshard-index`, a Shard file of plain columns beside it. It is current
while the folders, the sidecar folders and the packs have the times that it names.
"""

from __future__ import annotations

import logging
import os
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format import Codec, ShardReader, ShardWriter
from shard_format.errors import BadMetadata, InvalidArgument, ShardError
from shard_format.sources import is_url
from wshard.catalogue._rows import NO_PACK, PACK, ROW, UNREADABLE, Catalogue, StringTable
from wshard.catalogue._scan import (
    INDEX_SUFFIX,
    ROOT,
    Known,
    find_files,
    list_files,
    list_folder,
    list_opened,
    scan_files,
)
from wshard.catalogue._where import Expression, parse_where

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import NDArray

    from shard_format.executors import Executor
    from wshard.catalogue._scan import EpisodeListing, Files, PackOfEpisodes
    from wshard.catalogue._where import Where

    OpenPack = Callable[[str, Mapping[str, Any] | None], PackOfEpisodes]

__all__ = ["MOST_STEPS", "CatalogueOpener", "index_beside", "select"]

_log = logging.getLogger("wshard")

MOST_STEPS: Final = 1 << 53
"""Steps that an episode, or a dataset, can have: floats count no further."""
_VERSION: Final = b"wshard-index 4"
# File systems have coarse clocks: a folder may change twice within what they call the same time.
_UNSURE_NS: Final = 2_000_000_000
# Names that lead out of the folder.
_LEADS_OUT: Final = re.compile(rb"(?:\A|\0)/|(?:\A|[\0/])\.\.?(?:/|\0)|(?:\A|\0)\0")
_SUSPICIOUS: Final = (b"\0/", b"\0.", b"/.", b"\0\0")
_LEADS_OUT_ON_WINDOWS: Final = re.compile(rb"[\\:]")


def index_beside(path: str) -> str:
    """Return the path of the index of a folder or pack."""
    return os.path.abspath(path) + INDEX_SUFFIX


# --- opening


@dataclass(frozen=True, slots=True)
class CatalogueOpener:
    """Finds out which episodes a dataset has."""

    index: bool | str | os.PathLike[str]
    """Whether to use and save the index beside a folder or pack; or the path of one."""
    on_error: Callable[[str, ShardError], None]
    """Called with each file that cannot be read, and why."""
    storage_options: Mapping[str, Any] | None = None
    open_pack: OpenPack | None = None
    """Opens a pack of episodes, with these options; None if packs are an error."""
    saves: bool = True
    """False uses an index that is there and saves none."""
    executor: Executor | None = None
    """Opens episodes elsewhere; None if this process does."""

    @property
    def _own_path(self) -> str | None:
        return None if isinstance(self.index, bool) else os.fspath(self.index)

    def open(self, files: Files) -> Catalogue:
        """Return the catalogue of the files, which is up to date, and saved if it was not."""
        if isinstance(files, (str, os.PathLike)) and os.fspath(files).endswith(INDEX_SUFFIX):
            return self._of_index(os.fspath(files))
        found = find_files(files, self.storage_options)
        if isinstance(found, str):
            return self._of_folder(found)
        listing = list_files(found)
        if self.index is True:
            return self._of_packs_and_files(listing)
        return self._of_list(listing, self._pack_opener(listing))

    def open_packs(
        self, names: Iterable[str], open_pack: Callable[[int], PackOfEpisodes]
    ) -> Catalogue:
        """Return the catalogue of packs that are open already."""
        return self._of_list(list_opened(names), open_pack)

    def _scan(
        self, listing: EpisodeListing, known: Known, opener: Callable[[int], PackOfEpisodes]
    ) -> Catalogue:
        return scan_files(
            listing, known, opener, self.on_error, self.storage_options, self.executor
        )

    def _pack_opener(self, listing: EpisodeListing) -> Callable[[int], PackOfEpisodes]:
        packs, open_pack = listing.packs, self.open_pack

        def opener(pack: int) -> PackOfEpisodes:
            path = listing.path(packs[pack])
            if open_pack is None:
                raise InvalidArgument(
                    "this is a pack of episodes",
                    path=path,
                    hint="pass packs=shard_train.packed_episodes.open_episode_pack, or a pattern for files, "
                    "such as '**/*.wshard'",
                )
            return open_pack(path, self.storage_options if is_url(path) else None)

        return opener

    def _of_index(self, path: str) -> Catalogue:
        """Use a saved index without scanning the files again."""
        if self._own_path is not None:
            raise InvalidArgument(
                "a saved index needs no other index", path=path, found=f"index={self._own_path!r}"
            )
        catalogue = read_index(path)
        for row in np.flatnonzero(catalogue.rows["length"] == UNREADABLE).tolist():
            lost = catalogue.locations[row]
            error = InvalidArgument(
                "could not be read when the index was made",
                path=lost,
                hint="open the folder itself to see why, or pass on_error='skip'",
            )
            self.on_error(lost, error)
        return catalogue

    def _of_folder(self, folder: str) -> Catalogue:
        path = self._own_path or (index_beside(folder) if self.index else None)
        base = os.path.abspath(folder)
        loaded = None if path is None else load_index(path, base, stays_inside=True)
        if loaded is not None and _is_current(*loaded):
            return loaded[0]
        made_ns = time.time_ns()
        listing = list_folder(folder)
        beside = None if path is None else _indexes_beside(listing)
        known = Known(None if loaded is None else loaded[0], beside)
        catalogue = self._scan(listing, known, self._pack_opener(listing))
        _check_packed_twice(catalogue)
        # Saved even if nothing changed: the next opening can then trust the folder's time.
        if path is not None and self.saves:
            save_index(path, catalogue, made_ns)
        return catalogue

    def _of_list(
        self, listing: EpisodeListing, opener: Callable[[int], PackOfEpisodes]
    ) -> Catalogue:
        """Files as they were given, with one index for all of them or none."""
        path = self._own_path
        loaded = None if path is None else load_index(path, listing.base, stays_inside=False)
        earlier = None if loaded is None else loaded[0]
        made_ns = time.time_ns()
        catalogue = self._scan(listing, Known(earlier), opener)
        if (
            path is not None
            and self.saves
            and (earlier is None or not _is_same(catalogue, earlier))
        ):
            save_index(path, catalogue, made_ns)
        return catalogue

    def _of_packs_and_files(self, listing: EpisodeListing) -> Catalogue:
        """Files as they were given; each local pack has its own index beside it."""
        made_ns = time.time_ns()
        known = Known(None, _indexes_beside(listing))
        catalogue = self._scan(listing, known, self._pack_opener(listing))
        for pack, file in enumerate(listing.packs):
            path = listing.path(file)
            if self.saves and not is_url(path) and known.pack(file) is None:
                part = catalogue.of_pack(pack, os.path.dirname(path), os.path.basename(path))
                save_index(index_beside(path), part, made_ns)
        return catalogue


def _indexes_beside(listing: EpisodeListing) -> dict[str, Catalogue]:
    """Return what is saved beside the packs, by their names."""
    found: dict[str, Catalogue] = {}
    for file in listing.packs:
        path = listing.path(file)
        if is_url(path):
            continue
        folder, name = os.path.split(path)
        loaded = load_index(index_beside(path), folder, stays_inside=True)
        if loaded is None:
            continue
        catalogue = loaded[0]
        is_of_pack = len(catalogue.packs) == 1 and catalogue.packs[0] == name
        if is_of_pack and not catalogue.rows["pack"].any():
            found[file.name] = catalogue.of_pack(0, listing.base, file.name)
    return found


def _check_packed_twice(catalogue: Catalogue) -> None:
    """Refuse a folder that holds an episode as a file and again in a pack of that file."""
    pack_of = catalogue.rows["pack"]
    in_packs = np.flatnonzero(pack_of != NO_PACK)
    if not 0 < len(in_packs) < len(pack_of):
        return
    files = {catalogue.names[row] for row in np.flatnonzero(pack_of == NO_PACK).tolist()}
    for row in in_packs.tolist():
        name = catalogue.names[row]
        folder = os.path.dirname(catalogue.packs[int(pack_of[row])])
        for path in (name, f"{folder}/{name}" if folder else name):
            if path in files:
                raise InvalidArgument(
                    "the folder holds an episode twice, as a file and in a pack",
                    path=catalogue.base,
                    found=f"{path} and {catalogue.locations[row]}",
                    hint="pass a pattern for the ones you mean, such as '*.wshard' or "
                    "'*.shardpack', or a list of both",
                )


def _is_same(catalogue: Catalogue, earlier: Catalogue) -> bool:
    return (
        catalogue.names.blob == earlier.names.blob
        and catalogue.packs.blob == earlier.packs.blob
        and catalogue.facts.blob == earlier.facts.blob
        and catalogue.forms.blob == earlier.forms.blob
        and np.array_equal(catalogue.rows, earlier.rows)
        and np.array_equal(catalogue.pack_rows, earlier.pack_rows)
    )


# --- choosing


def select(catalogue: Catalogue, episodes: Iterable[int] | None, where: Where | None) -> Catalogue:
    """Return the rows of the episodes that are chosen, by number and by what is known about them.

    Raises:
        InvalidArgument: no episode can be read, or a number is not that of an episode.
    """
    rows = np.flatnonzero(catalogue.rows["length"] >= 0)
    if not len(rows):
        raise InvalidArgument(
            "no episode can be read", path=catalogue.base, found=f"{len(catalogue.rows)} files"
        )
    if episodes is not None:
        rows = rows[_checked_numbers(episodes, len(rows))]
    if where is not None:
        keeps = parse_where(where)
        rows = rows[[bool(keeps(catalogue.facts_of(row))) for row in rows.tolist()]]
        if isinstance(keeps, Expression):
            keeps.check_names()
    return catalogue.select(rows)


def _checked_numbers(episodes: Iterable[int], count: int) -> NDArray[np.int64]:
    numbers = np.array(list(episodes))
    if numbers.dtype.kind not in "iu" or numbers.ndim != 1:
        raise InvalidArgument(
            "episodes takes episode numbers",
            expected=f"a list of integers from 0 to {count - 1}",
            found=f"{numbers.dtype} {list(numbers.shape)}",
        )
    outside = (numbers < 0) | (numbers >= count)
    if outside.any():
        raise InvalidArgument(
            "no episode has this number",
            expected=f"0 to {count - 1}",
            found=int(numbers[outside][0]),
        )
    if len(np.unique(numbers)) != len(numbers):
        raise InvalidArgument("an episode is chosen twice", found=f"{len(numbers)} numbers")
    return numbers.astype(np.int64)


# --- saving and loading


def save_index(path: str, catalogue: Catalogue, made_ns: int) -> None:
    """Replace the index at `path`. A failure is logged: it only costs the time to scan again."""
    folders = catalogue.folders
    entries: dict[str, Any] = {
        "kind": _VERSION,
        "made_ns": np.array([made_ns], "<i8"),
        "base": os.fsencode(_relative_base(path, catalogue.base)),
        "names": catalogue.names.blob,
        "name_offsets": catalogue.names.offsets.astype("<i8"),
        "rows": catalogue.rows.tobytes(),
        "packs": catalogue.packs.blob,
        "pack_rows": catalogue.pack_rows.tobytes(),
        "facts": catalogue.facts.blob,
        "fact_offsets": catalogue.facts.offsets.astype("<i8"),
        "forms": catalogue.forms.blob,
        "folders": StringTable.of(folders).blob,
        "folder_mtimes_ns": np.fromiter(folders.values(), "<i8", len(folders)),
    }
    try:
        with ShardWriter(path, reserve=list(entries), fsync=False) as writer:
            for name, content in entries.items():
                writer.write_entry(name, content)
    except (ShardError, OSError) as error:
        _log.info("%s: cannot save the index, so the next opening scans again: %s", path, error)


def _relative_base(path: str, base: str) -> str:
    """Return the way from the index to the folder: both may be moved together."""
    try:
        return os.path.relpath(base, os.path.dirname(os.path.abspath(path)))
    except ValueError:  # on another drive
        return os.path.abspath(base)


def load_index(path: str, base: str, *, stays_inside: bool) -> tuple[Catalogue, int] | None:
    """Return a saved catalogue and when it was made; None if no usable one exists."""
    if not os.path.exists(path):
        return None
    try:
        with ShardReader(path) as reader:
            return _parse(reader, base, stays_inside)
    except ShardError as error:
        _log.warning("%s: the index cannot be used and is made again: %s", path, error)
        return None


def read_index(path: str) -> Catalogue:
    """Return a saved catalogue whose names start from where it says.

    Raises:
        ShardError: it does not exist, or it cannot be used.
    """
    try:
        with ShardReader(path) as reader:
            base = os.path.join(os.path.dirname(path), os.fsdecode(_bytes(reader, "base")))
            return _parse(reader, os.path.normpath(os.path.abspath(base)), False)[0]
    except ShardError as error:
        raise error.located(path=path) from None


def _is_current(catalogue: Catalogue, made_ns: int) -> bool:
    """Return whether nothing changed since, as far as the times of folders and packs can tell."""
    if not catalogue.folders or bool((catalogue.rows["length"] == UNREADABLE).any()):
        return False
    locations = catalogue.locations
    try:
        for name, mtime_ns in catalogue.folders.items():
            if mtime_ns > made_ns - _UNSURE_NS:
                return False
            if os.stat(os.path.join(catalogue.base, name)).st_mtime_ns != mtime_ns:
                return False
        for pack, row in enumerate(catalogue.pack_rows):
            facts = os.stat(locations.pack_path(pack))
            if (facts.st_size, facts.st_mtime_ns) != row.item():
                return False
    except OSError:
        return False
    return True


def _parse(reader: ShardReader, base: str, stays_inside: bool) -> tuple[Catalogue, int]:
    if _bytes(reader, "kind") != _VERSION:
        raise _damaged("kind", "another kind of file, or another version")
    blob = _bytes(reader, "names")
    names = StringTable(blob, _offsets(reader, "name_offsets", len(blob)))
    if len(names) and (np.frombuffer(blob, np.uint8)[names.offsets[1:] - 1] != 0).any():
        raise _damaged("names", "names that are not where the offsets say")
    rows = _array(reader, "rows", ROW, len(names))
    if ((rows["length"] < UNREADABLE) | (rows["length"] > MOST_STEPS)).any():
        raise _damaged("rows", "a length that no episode has")
    packs = StringTable(_bytes(reader, "packs"))
    if ((rows["pack"] < NO_PACK) | (rows["pack"] >= len(packs))).any():
        raise _damaged("rows", "the number of a pack that does not exist")
    if stays_inside:
        own = np.flatnonzero(rows["pack"] == NO_PACK)
        _check_names(blob if len(own) == len(names) else names.select(own).blob, "names")
        _check_names(packs.blob, "packs")
    facts = _bytes(reader, "facts")
    fact_offsets = _offsets(reader, "fact_offsets", len(facts))
    if len(fact_offsets) != len(names) + 1:
        raise _damaged("fact_offsets", f"{len(fact_offsets)} offsets", f"{len(names) + 1}")
    forms = StringTable(_bytes(reader, "forms"))
    if ((rows["form"] < 0) | (rows["form"] >= len(forms))).any():
        raise _damaged("rows", "the number of a form that does not exist")
    folders = StringTable(_bytes(reader, "folders"))
    _check_names(folders.blob.removeprefix(ROOT.encode() + b"\0"), "folders")
    times = _array(reader, "folder_mtimes_ns", np.dtype("<i8"), len(folders)).tolist()
    catalogue = Catalogue(
        base,
        names,
        rows,
        packs,
        _array(reader, "pack_rows", PACK, len(packs)),
        StringTable(facts, fact_offsets),
        forms,
        {folders[number]: time for number, time in enumerate(times)},
    )
    return catalogue, int(_array(reader, "made_ns", np.dtype("<i8"), 1)[0])


def _check_names(blob: bytes, entry: str) -> None:
    # Searching for the short strings is many times faster than the pattern.
    framed = b"\0" + blob
    suspicious = any(part in framed for part in _SUSPICIOUS)
    if (suspicious and _LEADS_OUT.search(blob)) or (
        os.name == "nt" and _LEADS_OUT_ON_WINDOWS.search(blob)
    ):
        raise _damaged(entry, "a name that leads out of the folder")


def _bytes(reader: ShardReader, name: str) -> bytes:
    # `save_index` never compresses: nothing may be larger in memory than in the file.
    if reader.info(name).codec is not Codec.NONE:
        raise _damaged(name, "a compressed entry")
    return reader.read_entry(name)


def _array(reader: ShardReader, name: str, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
    content = _bytes(reader, name)
    if len(content) != dtype.itemsize * count:
        raise _damaged(name, f"{len(content)} bytes", f"{dtype.itemsize * count} bytes")
    return np.frombuffer(content, dtype)


def _offsets(reader: ShardReader, name: str, end: int) -> NDArray[np.int64]:
    """Return where the parts of `end` bytes begin, and the end."""
    offsets = _array(reader, name, np.dtype("<i8"), max(1, reader.info(name).size // 8))
    if offsets[0] != 0 or offsets[-1] != end or (offsets[1:] < offsets[:-1]).any():
        raise _damaged(name, "offsets out of order", f"from 0 to {end}")
    return offsets.astype(np.int64)


def _damaged(entry: str, found: str, expected: str | None = None) -> BadMetadata:
    return BadMetadata("the index cannot be used", entry=entry, found=found, expected=expected)
