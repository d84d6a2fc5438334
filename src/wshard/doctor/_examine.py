"""Examining an episode from the first file to the last value."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format import ShardReader
from shard_format.errors import ShardError, must_stop
from shard_format.parallel import map_in_order, thread_count
from shard_format.registry import Role
from wshard._files import open_wshard
from wshard._lanes import META_PROVENANCE
from wshard._reader import episode_of
from wshard._sidecar import attach, sidecar_files
from wshard.doctor._clocks import check_times
from wshard.doctor._findings import EpisodeReport, ExamineOptions, Findings
from wshard.doctor._overviews import check_overviews
from wshard.doctor._predictions import check_predictions, check_residual
from wshard.doctor._structure import (
    check_descriptions,
    check_ends,
    check_file,
    check_labels,
    check_lengths,
    check_sidecars,
)
from wshard.doctor._values import check_channel
from wshard.types import Channel, Episode

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from shard_format.sources import SourceLike

    Progress = Callable[[int, int], None]

_DEFAULT_OPTIONS = ExamineOptions()
# Each hidden entry costs one more look at the others.
_MOST_HIDDEN: Final = 200
_MAY_BE_HIDDEN: Final = ("signal/", "action/", "omen/", "uncert/", "residual/", "label/")
# What contradictory sizes can raise where no rule foresaw them.
_UNFORESEEN: Final = (ValueError, TypeError, OverflowError, MemoryError)


def examine(
    source: SourceLike | Episode,
    *,
    options: ExamineOptions = _DEFAULT_OPTIONS,
    progress: Progress | None = None,
    threads: int | None = None,
) -> EpisodeReport:
    """Look at everything in an episode; never raise for what is found.

    Every entry is read against its checksum first, and its values are examined then: two passes, the second of
    which usually reads from the page cache. Channels are read in windows (`options.window_bytes`), so memory
    stays bounded. Values of damaged blocks are not examined.

    Args:
        source: a path or anything else that `load_wshard` opens: an episode, a manifest of chunks, an
            episode with sidecars; or an open episode, which stays open and as it is.
        options: the thresholds.
        progress: called with the bytes done and the bytes in all, never by two threads at once.
        threads: how many threads may be used; None for one per processor, up to 8.

    Raises:
        TransportError: the network or a server failed, which says nothing about the episode.
    """
    if isinstance(source, Episode):
        found = Findings(source.origin.path if source.origin is not None else "", options)
        return _examine_opened(source, None, found, progress, threads)
    if isinstance(source, (str, os.PathLike)):
        found = Findings(os.fspath(source), options)
    else:
        found = Findings(str(getattr(source, "name", "<bytes>")), options)
    episode, reader = _open_broken(source, found, threads)
    try:
        return _examine_opened(episode, reader, found, progress, threads)
    finally:
        for opened in (episode, reader):
            if opened is not None:
                opened.close()


def _examine_opened(
    episode: Episode | None,
    reader: ShardReader | None,
    found: Findings,
    progress: Progress | None,
    threads: int | None,
) -> EpisodeReport:
    readers = [] if reader is None else [reader]
    if episode is not None and episode.origin is not None:
        readers = [episode.origin.reader, *episode.origin.chunks, *episode.origin.sidecars]
    work = [] if episode is None else _work(episode)
    # Sizes in files may lie: Python integers cannot overflow.
    content = sum(sum(each.index["orig_size"].tolist()) for each in readers)
    in_files = content if found.options.check_container else 0
    found.advance = _meter(progress, in_files + sum(_stored_bytes(each) for _, each, _ in work))
    for each in readers:
        check_file(each, found)
    if episode is not None:
        if episode.origin is not None:
            check_sidecars(episode.origin.reader, episode.origin.sidecars, found)
        # Values first: they show which lengths can be believed.
        _check_values(work, found, threads)
        check_times(episode, found)
        check_lengths(episode, found)
        check_ends(episode, found)
        check_predictions(episode, found)
        for residual in episode.residuals.values():
            check_residual(episode, residual, found)
        with found.guard():
            check_descriptions(episode, found)
        check_labels(episode, found)
        check_overviews(episode, found)
    found.advance(1 << 62)  # all is done, also if damaged blocks were left out
    return EpisodeReport(
        path=found.path,
        findings=found.sorted(),
        entries=sum(len(each) for each in readers),
        bytes=content,
        episode_id=None if episode is None else episode.id,
        length=None if episode is None else episode.length,
        files=len(readers),
        blocks=0 if episode is None else len(work) + len(episode.residuals),
    )


def _meter(progress: Progress | None, total: int) -> Callable[[int], None]:
    """A function that adds up the bytes that are done, and reports them."""
    done = 0
    lock = threading.Lock()

    def advance(size: int) -> None:
        nonlocal done
        if progress is not None:
            with lock:
                done = min(done + size, total)
                progress(done, total)

    return advance


def _work(episode: Episode) -> list[tuple[str, Channel, str]]:
    """The channels whose values are examined, their blocks, and the kind of an uncertainty."""
    named = list(episode.blocks())
    named += [(name, extra) for name, extra in episode.extras.items() if isinstance(extra, Channel)]
    return [
        (
            channel.block or block,
            channel,
            block.rpartition("/")[2] if block.startswith("uncert/") else "",
        )
        for block, channel in named
    ]


def _stored_bytes(channel: Channel) -> int:
    """What the row claims may be any number; what the file holds is bounded."""
    return channel.nbytes if channel.source is None else channel.source.nbytes


def _check_values(
    work: list[tuple[str, Channel, str]], found: Findings, threads: int | None
) -> None:
    workers = thread_count(threads, sum(_stored_bytes(channel) for _, channel, _ in work))
    # Each thread may hold a window: together no more than one window of the size you allow.
    options = replace(found.options, window_bytes=max(1, found.options.window_bytes // workers))

    def look(item: tuple[str, Channel, str]) -> Findings:
        block, channel, kind = item
        part = Findings(found.path, options, found.advance)
        if block not in found.damaged:
            check_channel(block, channel, part, kind=kind)
        return part

    for part in map_in_order(work, look, workers):
        for finding in part:
            found.keep(finding)


# --- opening what may be broken


class _HidingReader(ShardReader):
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


def _open_broken(
    source: SourceLike, found: Findings, threads: int | None
) -> tuple[Episode | None, ShardReader | None]:
    """The episode, without the parts that keep it from opening; or its file if not even that works.

    Every reason becomes a finding.
    """
    try:
        return _complete(open_wshard(source, sidecars=False, threads=threads), found), None
    except ShardError as error:
        if must_stop(error):
            raise
        reason = error
    except _UNFORESEEN as problem:
        reason = ShardError(f"cannot be opened: {problem}")
    try:
        reader = ShardReader(source, threads=threads)
    except ShardError as error:
        found.add_error(error)
        return None, None
    hidden: set[str] = set()
    while reader.role == Role.WSHARD:
        try:
            return _complete(episode_of(reader), found), None
        except ShardError as error:
            if must_stop(error):
                raise
            reason = error
            entry = error.entry or ""
            is_optional = entry.startswith(_MAY_BE_HIDDEN) or entry == META_PROVENANCE
            if not is_optional or entry in hidden or len(hidden) >= _MOST_HIDDEN:
                break
        except _UNFORESEEN:
            break
        found.add_error(reason)
        hidden.add(entry)
        hiding = _HidingReader(reader.source, threads=threads)
        hiding.hidden = frozenset(hidden)
        hiding.adopt_source()
        reader = hiding
    found.add_error(reason)
    return None, reader


def _complete(episode: Episode, found: Findings) -> Episode:
    """The episode with its sidecars; a bad one does not hide the others."""
    len(
        episode.parts
    )  # sorts blocks into lanes, which otherwise happens at the first use of a lane
    assert episode.origin is not None
    for error in attach(episode, sidecar_files(episode.origin.path)):
        found.add_error(error)
    return episode
