"""What a search finds: which episode, in which file, how near; the data is read from the file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shard_format.errors import InvalidArgument, ReferenceMismatch, ShardIOError
from wshard.editing import slice_episode
from wshard.reader import load_wshard

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wshard.episode import Episode

__all__ = ["EpisodeRef", "WindowRef"]


@dataclass(frozen=True, slots=True)
class EpisodeRef:
    """An episode that was found."""

    episode_id: str
    file_path: str
    """Where it was when it was ingested."""
    score: float
    """Cosine similarity to the query, from -1 to 1: larger is nearer, in every dialect."""
    metadata: dict[str, Any] = field(default_factory=dict, hash=False)
    """All that the index holds about it."""

    def load(
        self, channels: Iterable[str] | None = None, lanes: Iterable[str] | None = None
    ) -> Episode:
        """Opens the episode, lazily as `load_wshard`; close it, or use it in a `with`.

        Load from an index only if you would open the files that it names.

        Raises:
            ShardIOError: the file is not there any more.
            ReferenceMismatch: the file holds another episode by now.
        """
        if not self.file_path:
            raise InvalidArgument(
                f"the index names no file for episode {self.episode_id!r}",
                hint="ingest it from its file",
            )
        try:
            episode = load_wshard(self.file_path, channels, lanes)
        except ShardIOError as error:
            error.hint = error.hint or "was it moved since it was ingested? Ingest it again"
            raise
        if episode.id != self.episode_id:
            episode.close()
            raise _stale(self.file_path, f"episode {self.episode_id!r}", repr(episode.id))
        return episode


@dataclass(frozen=True, slots=True)
class WindowRef(EpisodeRef):
    """A window of an episode that was found: the steps from `start` up to, but not including, `stop`."""

    start: int = 0
    stop: int = 0

    def load_window(
        self, channels: Iterable[str] | None = None, lanes: Iterable[str] | None = None
    ) -> Episode:
        """The steps of the window as an episode of its own; reads only them, where the file allows it.

        Raises:
            ReferenceMismatch: the file holds another episode, or a shorter one, by now.
        """
        with self.load(channels, lanes) as episode:
            if not 0 <= self.start <= self.stop <= episode.length:
                steps = f"at least {self.stop} steps"
                raise _stale(self.file_path, steps, str(episode.length))
            return slice_episode(episode, self.start, self.stop)


def _stale(path: str, expected: str, found: str) -> ReferenceMismatch:
    return ReferenceMismatch(
        "the file is not the one that was ingested",
        path=path,
        expected=expected,
        found=found,
        hint="ingest it again",
    )
