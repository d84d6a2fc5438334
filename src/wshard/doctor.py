"""Examining an episode: what is broken, what will likely hurt, and what is good to know.

    from wshard.doctor import examine

    report = examine("ep_001.wshard")
    for finding in report.findings:
        print(finding, "->", finding.advice)

Broken rules have the error codes of the specification; everything that is a matter of judgement has
codes of its own, listed in spec/registry.md, and thresholds in `ExamineOptions`.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from shard_format._parallel import map_in_order, thread_count
from wshard.channels import Channel
from wshard.checks.container import check_file, check_sidecars, content_bytes
from wshard.checks.finding import CODES, ExamineOptions, Finding, Findings, Report
from wshard.checks.lanes import check_descriptions, check_ends, check_labels, check_lengths
from wshard.checks.opening import name_of, open_broken
from wshard.checks.predictions import check_predictions, check_residual
from wshard.checks.times import check_times
from wshard.checks.values import check_channel
from wshard.episode import Episode

if TYPE_CHECKING:
    from collections.abc import Callable

    from shard_format import ShardReader
    from shard_format.sources import SourceLike

__all__ = ["CODES", "ExamineOptions", "Finding", "Report", "examine"]

_DEFAULT_OPTIONS = ExamineOptions()


def examine(
    source: SourceLike | Episode,
    *,
    options: ExamineOptions = _DEFAULT_OPTIONS,
    progress: Callable[[int, int], None] | None = None,
    threads: int | None = None,
) -> Report:
    """Looks at everything in an episode and never raises for what it finds.

    Every entry is read against its checksum first and its values are looked at then: two passes, of which
    the second finds the file in memory. Channels are read in windows (`options.window_bytes`), so memory
    stays bounded. Values of damaged blocks are not looked at.

    Args:
        source: a path or anything else that `load_wshard` opens: an episode, a manifest of chunks, an
            episode with sidecars; or an open episode, which stays open and as it is.
        options: thresholds of judgement.
        progress: called with the bytes done and the bytes in all, never by two threads at once.
        threads: how many threads may be used; None for one per processor, up to 8.
    """
    if isinstance(source, Episode):
        found = Findings(source.origin.path if source.origin is not None else "")
        return _examined(source, None, found, options, progress, threads)
    found = Findings(name_of(source))
    episode, reader = open_broken(source, found, threads)
    try:
        return _examined(episode, reader, found, options, progress, threads)
    finally:
        if episode is not None:
            episode.close()
        if reader is not None:
            reader.close()


def _examined(
    episode: Episode | None,
    reader: ShardReader | None,
    found: Findings,
    options: ExamineOptions,
    progress: Callable[[int, int], None] | None,
    threads: int | None,
) -> Report:
    readers = _readers(episode, reader)
    work = [] if episode is None else _work(episode)
    content = sum(content_bytes(each) for each in readers)
    in_files = content if options.check_container else 0
    meter = _Meter(progress, in_files + sum(item.nbytes for item in work))
    for each in readers:
        check_file(each, options, found, meter.advance)
    length = None
    if episode is not None:
        length = episode.length
        if episode.origin is not None:
            check_sidecars(episode.origin.reader, episode.origin.sidecars, options, found)
        # Values first: they show which lengths can be believed.
        _check_values(work, options, found, meter, threads)
        check_times(episode, options, found)
        check_lengths(episode, found)
        check_ends(episode, found)
        check_predictions(episode, found)
        for residual in episode.residuals.values():
            check_residual(episode, residual, options, found, meter.advance)
        with found.guard():
            check_descriptions(episode, found)
        check_labels(episode, found)
    meter.finish()
    return Report(
        path=found.path,
        findings=found.sorted(),
        episode_id=None if episode is None else episode.id,
        length=length,
        files=len(readers),
        blocks=0 if episode is None else len(work) + len(episode.residuals),
        bytes=content,
    )


def _readers(episode: Episode | None, reader: ShardReader | None) -> list[ShardReader]:
    if episode is None or episode.origin is None:
        return [] if reader is None else [reader]
    origin = episode.origin
    return [origin.reader, *origin.chunks, *origin.sidecars]


class _Item(NamedTuple):
    """A channel whose values are to be looked at."""

    block: str
    channel: Channel
    nbytes: int
    spread: str


def _work(episode: Episode) -> list[_Item]:
    spreads = {
        id(channel): kind
        for models in episode.uncerts.values()
        for kinds in models.values()
        for kind, channel in kinds.items()
    }
    named = list(episode.blocks())
    named += [(name, extra) for name, extra in episode.extras.items() if isinstance(extra, Channel)]
    items = []
    for block, channel in named:
        # What the row says may be any number; what the file holds is bounded.
        stored = channel._block
        size = channel.nbytes if stored is None else stored.nbytes
        items.append(_Item(channel.block or block, channel, size, spreads.get(id(channel), "")))
    return items


def _check_values(
    work: list[_Item],
    options: ExamineOptions,
    found: Findings,
    meter: _Meter,
    threads: int | None,
) -> None:
    def look(item: _Item) -> Findings:
        if item.block in found.damaged:
            return Findings()
        return check_channel(item.block, item.channel, options, meter.advance, spread=item.spread)

    workers = thread_count(threads, sum(item.nbytes for item in work))
    # Each thread may hold a window: together no more than the one that was allowed.
    if workers > 1:
        options = replace(options, window_bytes=max(1, options.window_bytes // workers))
    found.merge(map_in_order(work, look, workers))


class _Meter:
    """Adds up what is done, for whoever watches."""

    def __init__(self, progress: Callable[[int, int], None] | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0
        self._lock = threading.Lock()

    def advance(self, size: int) -> None:
        if self._progress is None:
            return
        with self._lock:
            self._done = min(self._done + size, self._total)
            self._progress(self._done, self._total)

    def finish(self) -> None:
        """Says that all is done, also where damaged blocks were left out."""
        if self._progress is not None and self._done < self._total:
            self._done = self._total
            self._progress(self._done, self._total)
