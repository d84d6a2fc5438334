"""Channels with clocks of their own at the times of the steps: matched once for an open episode, read by parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from shard_format.errors import InvalidArgument, ShardError
from wshard.alignment import METHODS, match, needed_range, take
from wshard.windows import Sources

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    from numpy.typing import NDArray

    from wshard.alignment import Match, Method
    from wshard.episode import Episode
    from wshard.windows import Wanted

__all__ = ["ResampledSources", "Resampling", "as_resampling", "mask_of", "read_matched"]


class Resampling(NamedTuple):
    """How entries are found for the times of the steps, as for `Episode.align`."""

    method: Method
    tolerance_ns: int | None


def as_resampling(align: str | None, tolerance_ns: int | None) -> Resampling | None:
    """The two arguments of a data set, checked; None if nothing is to be resampled."""
    if align is None:
        if tolerance_ns is not None:
            raise InvalidArgument(
                "tolerance_ns is for channels that are resampled", hint="pass align='nearest' too"
            )
        return None
    for method in METHODS:
        if method == align:
            match([], [], method, tolerance_ns)  # complains of a tolerance that cannot be
            return Resampling(method, tolerance_ns)
    raise InvalidArgument(
        "unknown align", expected=" or ".join(map(repr, METHODS)), found=repr(align)
    )


def mask_of(key: str) -> str:
    """What says where a channel has no entry."""
    return f"{key}_is_pad"


class ResampledSources(Sources):
    """Where the windows of one open episode come from, if some of its channels have clocks of their own.

    Keeps some 25 bytes for each step and such a channel, from its first use on.

    Args:
        episode: open; kept open by this.
        path: its file, for errors to name.
        wanted: the channels.
        steps: how many steps there are, or one more.
        resampling: how entries are found.
    """

    __slots__ = ("_matches", "_resampling", "_steps")

    def __init__(
        self,
        episode: Episode,
        path: str,
        wanted: Iterable[Wanted],
        steps: int,
        resampling: Resampling | None,
    ) -> None:
        super().__init__(episode, path, wanted, keep_small=True)
        self._steps = steps
        self._resampling = resampling
        self._matches: dict[str, Match] = {}

    def read_resampled(
        self, key: str, start: int, out: NDArray[Any], is_pad: NDArray[np.bool_]
    ) -> None:
        """Fills an array with a channel at the times of the steps from `start` on, and says where it has none."""
        matched = self._matches.get(key)
        if matched is None:
            matched = self._matches.setdefault(key, self._match(key))
        part = matched.part(start, start + len(out))
        read_matched(self, key, part, out)
        is_pad[...] = ~part.valid

    def _match(self, key: str) -> Match:
        channel, resampling = self.channels[key], self._resampling
        assert channel is not None
        assert resampling is not None
        try:
            times = self.episode.step_times_ns(self._steps)
            return self.episode.match(channel, times, *resampling)
        except ShardError as error:
            raise error.located(path=self.path, entry=channel.block or key) from None


def read_matched(sources: Sources, key: str, matched: Match, out: NDArray[Any]) -> None:
    """Fills an array with the entries that were found for some times; see `take` for those without one."""
    if matched.weights is None and bool(matched.valid.all()):
        sources.pick(key, matched.indices, out)
        return
    channel = sources.channels[key]
    assert channel is not None
    try:
        start, stop = needed_range(matched)
        out[...] = take(channel.read_steps(start, stop), matched, offset=start)
    except ShardError as error:
        raise error.located(path=sources.path, entry=channel.block or key) from None
