"""Opening what may be broken: as much of an episode as can be had, and why the rest cannot."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format import ShardReader
from shard_format.errors import ShardError
from shard_format.registry import DEFAULT_LIMITS, Role
from wshard.names import META_PROVENANCE
from wshard.reader import episode_of, load_wshard, open_reader, sidecar_files

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shard_format.sources import SourceLike
    from wshard.checks.finding import Findings
    from wshard.episode import Episode

__all__ = ["name_of", "open_broken"]

# Each left-out entry costs one more look at the rest.
_MOST_LEFT_OUT: Final = 200
_MAY_BE_LEFT_OUT: Final = ("signal/", "action/", "omen/", "uncert/", "residual/", "label/")


def name_of(source: SourceLike) -> str:
    """What a source is called, before it is opened."""
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source)
    return str(getattr(source, "name", "<bytes>"))


class _Partial(ShardReader):
    """A reader that does not show some of the entries."""

    hidden: frozenset[str] = frozenset()

    def names(self) -> list[str]:
        return [name for name in super().names() if name not in self.hidden]

    @property
    def index(self) -> NDArray[Any]:
        shown = [name not in self.hidden for name in super().names()]
        return super().index[np.array(shown, np.bool_)]

    def __contains__(self, name: object) -> bool:
        return name not in self.hidden and super().__contains__(name)


def open_broken(
    source: SourceLike, found: Findings, threads: int | None
) -> tuple[Episode | None, ShardReader | None]:
    """The episode, without the parts that keep it from opening; and its file where not even that works.

    Every reason becomes a finding.
    """
    try:
        return load_wshard(source, threads=threads), None
    except ShardError as error:
        reason = error
    except (ValueError, TypeError, OverflowError, MemoryError) as problem:
        reason = ShardError(f"it cannot be opened: {problem}")
    try:
        reader = open_reader(source, limits=DEFAULT_LIMITS, threads=threads, check=True)
    except ShardError as error:
        found.add_error(error)
        return None, None
    if reader.role != Role.WSHARD:
        found.add_error(reason)
        return None, reader
    episode, reader = _without_bad_entries(reader, reason, found, threads)
    if episode is None:
        return None, reader
    _attach_good_sidecars(episode, reader.name, found)
    return episode, None


def _without_bad_entries(
    reader: ShardReader, reason: ShardError, found: Findings, threads: int | None
) -> tuple[Episode | None, ShardReader]:
    hidden: set[str] = set()
    while True:
        try:
            return episode_of(reader), reader
        except ShardError as error:
            found.add_error(error)
            entry = error.entry or ""
            optional = entry.startswith(_MAY_BE_LEFT_OUT) or entry == META_PROVENANCE
            if not optional or entry in hidden or len(hidden) >= _MOST_LEFT_OUT:
                return None, reader
            hidden.add(entry)
        except (ValueError, TypeError, OverflowError, MemoryError):
            found.add_error(reason)
            return None, reader
        partial = _Partial(reader.source, threads=threads)
        partial.hidden = frozenset(hidden)
        partial.adopt_source()
        reader = partial


def _attach_good_sidecars(episode: Episode, path: str, found: Findings) -> None:
    """Sidecars one by one, so that a bad one does not hide the others."""
    files = sidecar_files(path)
    if not files:
        return
    from wshard.sidecar import attach

    for file in files:
        try:
            attach(episode, [file])
        except ShardError as error:  # noqa: PERF203 - each for itself
            found.add_error(error.located(path=file))
