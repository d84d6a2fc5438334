"""The catalogue of a folder or pack, saved beside it: opened in milliseconds, believed while that is the same."""

from __future__ import annotations

import logging
import os
import re
import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format import ShardReader, ShardWriter
from shard_format._layout import Codec
from shard_format.errors import BadMetadata, ShardError
from wshard.dataset.catalogue import UNREADABLE, Catalogue
from wshard.dataset.listing import INDEX_SUFFIX, ROOT
from wshard.dataset.names import Names
from wshard.dataset.numbering import MOST_STEPS
from wshard.dataset.places import NO_PACK, Places

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["index_beside", "is_current", "load_index", "read_index", "save_index"]

_log = logging.getLogger("wshard")

_VERSION: Final = "wshard-index 2"
_KIND: Final = "kind"
_COLUMNS: Final = ("lengths", "observed", "sizes", "mtimes_ns", "pack_of", "records")
# Clocks of file systems are coarse: a folder may change twice at what it takes for the same time.
_UNSURE_NS: Final = 2_000_000_000
# Names that lead out of the folder.
_LEADS_OUT: Final = re.compile(rb"(?:\A|\0)/|(?:\A|[\0/])\.\.?(?:/|\0)|(?:\A|\0)\0")
_SUSPICIOUS: Final = (b"\0/", b"\0.", b"/.", b"\0\0")
_LEADS_OUT_ON_WINDOWS: Final = re.compile(rb"[\\:]")


def index_beside(path: str) -> str:
    """Where the index of a folder or pack is."""
    return os.path.abspath(path) + INDEX_SUFFIX


def save_index(path: str, catalogue: Catalogue, made_ns: int) -> bool:
    """Puts the index in place of an earlier one; whether that was possible.

    Args:
        path: where to.
        catalogue: what to save.
        made_ns: a time before the first folder was looked into.
    """
    folders, places = catalogue.folders, catalogue.places
    entries: dict[str, Any] = {
        _KIND: _VERSION.encode(),
        "made_ns": np.array([made_ns], "<i8"),
        "base": os.fsencode(_from_index(path, places.base)),
        "names": places.names.blob,
        "name_offsets": places.names.offsets,
        "pack_of": places.pack_of,
        "records": places.records,
        "packs": places.packs.blob,
        "pack_sizes": catalogue.pack_sizes,
        "pack_mtimes_ns": catalogue.pack_mtimes_ns,
        "lengths": catalogue.lengths,
        "observed": catalogue.observed,
        "sizes": catalogue.sizes,
        "mtimes_ns": catalogue.mtimes_ns,
        "facts": catalogue.facts.blob,
        "fact_offsets": catalogue.facts.offsets,
        "folders": Names.of(folders).blob,
        "folder_mtimes_ns": np.fromiter(folders.values(), np.int64, len(folders)),
    }
    try:
        # Losing it costs nothing but the time to make it again.
        with ShardWriter(path, names=list(entries), fsync=False) as writer:
            for name, content in entries.items():
                if isinstance(content, np.ndarray):
                    content = np.ascontiguousarray(content, "<i8")
                writer.write_entry(name, content)
    except (ShardError, OSError) as error:
        _log.info("%s: the index is not saved, opening will take as long again: %s", path, error)
        return False
    return True


def _from_index(path: str, base: str) -> str:
    """How a folder is reached from the one that the index is in: both may be moved together."""
    try:
        return os.path.relpath(base, os.path.dirname(os.path.abspath(path)))
    except ValueError:  # on another drive
        return os.path.abspath(base)


def load_index(path: str, base: str, *, stays_inside: bool) -> tuple[Catalogue, int] | None:
    """The catalogue that was saved and when that was; None if there is none, or none that can be used.

    Args:
        path: of the index.
        base: the folder that its names start from.
        stays_inside: whether all names must lie below it.
    """
    if not os.path.exists(path):
        return None
    try:
        with ShardReader(path) as reader:
            return _parse(reader, base, stays_inside)
    except ShardError as error:
        _log.warning("%s: the index is made anew: %s", path, error)
        return None


def read_index(path: str) -> Catalogue:
    """The catalogue that was saved, believed as it is, with names from where it says.

    Raises:
        ShardError: there is none, or none that can be used.
    """
    try:
        with ShardReader(path) as reader:
            base = os.path.join(os.path.dirname(path), os.fsdecode(_bytes(reader, "base")))
            return _parse(reader, os.path.normpath(os.path.abspath(base)), False)[0]
    except ShardError as error:
        raise error.located(path=path) from None


def is_current(catalogue: Catalogue, made_ns: int) -> bool:
    """Whether no folder has changed since, as far as folders can tell."""
    if not catalogue.folders or bool((catalogue.lengths == UNREADABLE).any()):
        return False
    for name, mtime_ns in catalogue.folders.items():
        if mtime_ns > made_ns - _UNSURE_NS:
            return False
        try:
            if os.stat(os.path.join(catalogue.base, name)).st_mtime_ns != mtime_ns:
                return False
        except OSError:
            return False
    places = catalogue.places
    for pack, wanted in enumerate(zip(catalogue.pack_sizes, catalogue.pack_mtimes_ns, strict=True)):
        # Packs are few, and grow.
        try:
            facts = os.stat(places.pack_path(pack))
        except OSError:
            return False
        if (facts.st_size, facts.st_mtime_ns) != wanted:
            return False
    return True


def _parse(reader: ShardReader, base: str, stays_inside: bool) -> tuple[Catalogue, int]:
    if _bytes(reader, _KIND) != _VERSION.encode():
        raise _damaged(_KIND, "another kind of file, or version")
    made = _integers(reader, "made_ns", 1)
    blob = _bytes(reader, "names")
    offsets = _offsets(reader, "name_offsets", len(blob))
    names = Names(blob, offsets)
    if len(names) and (np.frombuffer(blob, np.uint8)[offsets[1:] - 1] != 0).any():
        raise _damaged("names", "names that are not where the offsets say")
    columns = {key: _integers(reader, key, len(names)) for key in _COLUMNS}
    lengths, pack_of = columns["lengths"], columns["pack_of"]
    if ((lengths < UNREADABLE) | (lengths > MOST_STEPS)).any():
        raise _damaged("lengths", "a length that no episode has")
    packs = Names(_bytes(reader, "packs"))
    if ((pack_of < NO_PACK) | (pack_of >= len(packs))).any():
        raise _damaged("pack_of", "a pack that there is not")
    if stays_inside:
        own = np.flatnonzero(pack_of == NO_PACK)
        _check_names(blob if len(own) == len(names) else names.select(own).blob, "names")
        _check_names(packs.blob, "packs")
    facts = _bytes(reader, "facts")
    fact_offsets = _offsets(reader, "fact_offsets", len(facts), len(names))
    folders = Names(_bytes(reader, "folders"))
    _check_names(folders.blob.removeprefix(ROOT.encode() + b"\0"), "folders")
    times = _integers(reader, "folder_mtimes_ns", len(folders)).tolist()
    catalogue = Catalogue(
        Places(base, names, packs, pack_of.astype(np.int32), columns["records"]),
        lengths,
        columns["observed"],
        columns["sizes"],
        columns["mtimes_ns"],
        _integers(reader, "pack_sizes", len(packs)),
        _integers(reader, "pack_mtimes_ns", len(packs)),
        Names(facts, fact_offsets),
        {folders[number]: time for number, time in enumerate(times)},
    )
    return catalogue, int(made[0])


def _check_names(blob: bytes, entry: str) -> None:
    # The short strings are looked for many times faster than the pattern.
    framed = b"\0" + blob
    suspicious = any(part in framed for part in _SUSPICIOUS)
    if (suspicious and _LEADS_OUT.search(blob)) or (
        os.name == "nt" and _LEADS_OUT_ON_WINDOWS.search(blob)
    ):
        raise _damaged(entry, "a name that leads out of the folder")


def _bytes(reader: ShardReader, name: str) -> bytes:
    # Never compressed by us: nothing here may be larger in memory than it is in the file.
    if reader.info(name).codec is not Codec.NONE:
        raise _damaged(name, "a compressed entry")
    return reader.read_entry(name)


def _integers(reader: ShardReader, name: str, count: int) -> NDArray[np.int64]:
    content = _bytes(reader, name)
    if len(content) != 8 * count:
        raise _damaged(name, f"{len(content)} bytes", f"{8 * count} bytes")
    return np.frombuffer(content, "<i8").astype(np.int64, copy=False)


def _offsets(
    reader: ShardReader, name: str, end: int, count: int | None = None
) -> NDArray[np.int64]:
    """Where the parts of `end` bytes begin, and the end; of so many parts, if that is known."""
    stored = reader.info(name).size // 8 if count is None else count + 1
    offsets = _integers(reader, name, max(1, stored))
    if offsets[0] != 0 or offsets[-1] != end or (offsets[1:] < offsets[:-1]).any():
        raise _damaged(name, "offsets out of order", f"from 0 to {end}")
    return offsets


def _damaged(entry: str, found: str, expected: str | None = None) -> BadMetadata:
    return BadMetadata("the index cannot be used", entry=entry, found=found, expected=expected)


def now_ns() -> int:
    """The time for `made_ns`."""
    return time.time_ns()
