"""The episodes that become rows: one after the other, and which of their channels."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

from shard_format.errors import InvalidArgument, ShardError
from wshard.dataset import EpisodeDataset
from wshard.episode import Episode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wshard.channels import Channel
    from wshard.dataset.listing import Files

__all__ = ["Episodes", "Named", "chosen_channels", "located"]

_log = logging.getLogger("wshard")

Named: TypeAlias = tuple[str, Episode]
"""An episode, and what errors call it."""


class Episodes:
    """Episodes one after the other, each closed before the next is opened."""

    def __init__(self, given: Files | EpisodeDataset | Episode | Iterable[Episode]) -> None:
        self.channels: list[str] | None = None
        self._dataset: EpisodeDataset | None = None
        self._given: Iterable[Episode] = ()
        if isinstance(given, Episode):
            self._given = [given]
        elif isinstance(given, EpisodeDataset):
            self._dataset, self.channels = given, list(given.channels)
        elif isinstance(given, Iterator) or _has_episodes(given):
            self._given = given  # type: ignore[assignment] # checked one by one
        else:
            self._dataset = EpisodeDataset(given, window=1)  # type: ignore[arg-type] # says if not

    @property
    def identity(self) -> str:
        """The same for the same files; episodes in memory have none."""
        if self._dataset is None:
            return secrets.token_hex(8)
        return f"{os.path.dirname(self._dataset.paths[0])} {self._dataset.fingerprint}"

    def __iter__(self) -> Iterator[Named]:
        if self._dataset is None:
            for number, episode in enumerate(self._given):
                if not isinstance(episode, Episode):
                    raise InvalidArgument("this is no episode", found=type(episode).__name__)
                yield episode.id or f"episode {number}", episode
            return
        for number, path in enumerate(self._dataset.paths):
            with self._dataset._episodes.load(number) as episode:
                yield path, episode


def _has_episodes(given: object) -> bool:
    return isinstance(given, (list, tuple)) and any(isinstance(one, Episode) for one in given)


@contextmanager
def located(name: str) -> Iterator[None]:
    """Says which episode an error is about."""
    try:
        yield
    except ShardError as error:
        raise error.located(path=name) from None


def chosen_channels(
    name: str, episode: Episode, channels: list[str] | None
) -> list[tuple[str, str, Channel]]:
    """The channels for columns: their blocks, the names by which episodes find them, and themselves."""
    if channels is not None:
        wanted = []
        for lookup in channels:
            channel = episode.find(lookup)
            block = next((b for b, other in episode.blocks() if other is channel), lookup)
            wanted.append((block, lookup, channel))
        return wanted
    taken, left = [], []
    for block, channel in episode.blocks():
        is_lane = block.startswith(("signal/", "action/"))
        if is_lane and not channel.has_own_clock:
            taken.append((block, block, channel))
        elif is_lane or block.startswith(("omen/", "uncert/")):
            left.append(block)
    left += [f"label/{label}" for label in episode.labels]
    left += [f"residual/{residual}" for residual in episode.residuals]
    if left:
        _log.warning("%s: not in the rows: %s", name, ", ".join(left))
    return taken
