"""Search: a query becomes a vector, the server's answer becomes references to episodes in files."""

from __future__ import annotations

import operator
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shard_format.errors import BadMetadata, InvalidArgument, ReferenceMismatch, ShardIOError
from shard_format.safe_paths import unsafe_form
from shard_format.sources import is_url
from wshard._files import open_wshard
from wshard.editing import slice_episode
from wshard.search._client import SearchClient, ServerOptions
from wshard.search._dialects import make_filters
from wshard.search._ingest import content_hash
from wshard.search._vectors import (
    PaddedProjection,
    check_averaged,
    embed,
    find_observation,
    input_of_query,
    inputs_of,
)
from wshard.types import Channel, Episode

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import ArrayLike

    from wshard.search._dialects import Filter, Hit
    from wshard.search._vectors import Embedder

    Query = ArrayLike | Channel | Episode


@dataclass(frozen=True, slots=True)
class EpisodeRef:
    """An episode that a search found."""

    episode_id: str
    file_path: str
    """Where the file was when it was ingested, or where it is below the retriever's root."""
    score: float
    """Cosine similarity to the query, from -1 to 1: larger is nearer, in every dialect."""
    metadata: dict[str, Any] = field(default_factory=dict, hash=False)
    """Everything that the index holds about the episode."""

    def load(
        self, channels: Iterable[str] | None = None, lanes: Iterable[str] | None = None
    ) -> Episode:
        """Open the episode, lazily like `load_wshard`; close it, or use it in a `with`.

        Load from an index only if you would open the files that it names.

        Raises:
            ShardIOError: the file is gone.
            ReferenceMismatch: the file now holds another episode, or its recorded data was changed.
        """
        if not self.file_path:
            raise InvalidArgument(
                f"the index does not name a file for episode {self.episode_id!r}",
                hint="ingest it from its file",
            )
        try:
            episode = open_wshard(self.file_path, channels, lanes)
        except ShardIOError as error:
            error.hint = error.hint or "was it moved since it was ingested? Ingest it again"
            raise
        if episode.id != self.episode_id:
            episode.close()
            raise _stale(self.file_path, f"episode {self.episode_id!r}", repr(episode.id))
        expected = self.metadata.get("content_hash")
        if expected is not None and episode.origin is not None:
            found = content_hash(episode.origin.reader)
            if found != expected:
                episode.close()
                raise _stale(self.file_path, f"content {expected!s:.16}…", f"{found:.16}…")
        return episode


@dataclass(frozen=True, slots=True)
class WindowRef(EpisodeRef):
    """A window of an episode that a search found: from step `start` up to, but not including, `stop`."""

    start: int = 0
    stop: int = 0

    def load_window(
        self, channels: Iterable[str] | None = None, lanes: Iterable[str] | None = None
    ) -> Episode:
        """The steps of the window as an episode of its own; reads only them, where the file allows it.

        Raises:
            ReferenceMismatch: the file now holds another episode, or a shorter one.
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


class TrajectoryRetriever:
    """Finds episodes and windows that look like a query.

    Args:
        url: of the server.
        embedder: the one that ingested; `PaddedProjection()` by default.
        root: the folder below which the files are, if the index names them relative to one.
        channel: which observation counts when the query is an episode; None for the first.
        api_key: the server's token.
        options: dialect, timeouts, retries, pace, tenant, and the names of the collections.
    """

    def __init__(
        self,
        url: str = "http://localhost:8080",
        embedder: Embedder | None = None,
        *,
        root: str | os.PathLike[str] | None = None,
        channel: str | None = None,
        api_key: str | None = None,
        options: ServerOptions | None = None,
    ) -> None:
        self.embedder: Embedder = PaddedProjection() if embedder is None else embedder
        self._root = None if root is None else os.path.abspath(root)
        self._client = SearchClient(url, api_key, options)
        self._channel = channel

    @property
    def url(self) -> str:
        """The address of the server, without secrets."""
        return self._client.url

    def health(self) -> bool:
        """Whether the server is ready for requests.

        Raises:
            SearchServerError: the server cannot be reached.
        """
        return self._client.is_ready()

    def search_episodes(
        self,
        query: Query,
        top_k: int = 10,
        env_id: str | None = None,
        min_length: int | None = None,
        min_reward: float | None = None,
        max_reward: float | None = None,
    ) -> list[EpisodeRef]:
        """The episodes whose mean observation is nearest, nearest first.

        Args:
            query: one observation [D]; several [T, ...], which are averaged over time (a single image
                needs a time axis of 1 too); a channel; or an episode, whose first observation counts.
                Values that are not finite do not count.
            top_k: how many at most. A server may give fewer.
            env_id: only of this environment.
            min_length: only with at least this many steps.
            min_reward: only with a total reward of at least this.
            max_reward: only with a total reward of at most this.

        Raises:
            SearchServerError: the server cannot be reached, refuses, or gives an unusable answer.
        """
        filters = make_filters(
            env_id=env_id, min_length=min_length, min_reward=min_reward, max_reward=max_reward
        )
        found = self._search(self._client.options.episodes, query, top_k, filters)
        return [EpisodeRef(*self._place(hit), hit.score, hit.metadata) for hit in found]

    def search_windows(
        self,
        query: Query,
        top_k: int = 10,
        env_id: str | None = None,
        min_length: int | None = None,
        episode_id: str | None = None,
    ) -> list[WindowRef]:
        """The windows whose mean observation is nearest, nearest first.

        Args:
            query: as for `search_episodes`.
            top_k: how many at most.
            env_id: only of this environment.
            min_length: only of episodes with at least this many steps.
            episode_id: only of this episode.
        """
        filters = make_filters(env_id=env_id, min_length=min_length, episode_id=episode_id)
        found = self._search(self._client.options.windows, query, top_k, filters)
        return [
            WindowRef(*self._place(hit), hit.score, hit.metadata, *self._steps(hit))
            for hit in found
        ]

    def search_similar_episodes(
        self,
        query_obs: Query,
        top_k: int = 10,
        env_id: str | None = None,
        min_length: int | None = None,
        reward_range: tuple[float | None, float | None] | None = None,
    ) -> list[EpisodeRef]:
        """`search_episodes` under the name that existing code calls; `reward_range` is inclusive."""
        low, high = (None, None) if reward_range is None else reward_range
        return self.search_episodes(query_obs, top_k, env_id, min_length, low, high)

    def search_similar_timesteps(
        self,
        query_obs: Query,
        top_k: int = 10,
        env_id: str | None = None,
        min_length: int | None = None,
        episode_id: str | None = None,
    ) -> list[WindowRef]:
        """`search_windows` under the name that existing code calls."""
        return self.search_windows(query_obs, top_k, env_id, min_length, episode_id)

    def _search(
        self, collection: str, query: Query, top_k: int, filters: Sequence[Filter]
    ) -> list[Hit]:
        try:
            count = operator.index(top_k)
        except TypeError:
            count = 0
        if count < 1:
            raise InvalidArgument("top_k is not a count", expected="at least 1", found=repr(top_k))
        if isinstance(query, Episode):
            query = find_observation(query, self._channel)
        if isinstance(query, Channel):
            check_averaged(query)
            ((_, observed),) = inputs_of(self.embedder, query, [(0, query.length)])
        else:
            observed = input_of_query(self.embedder, query)
        vector = embed(self.embedder, [observed])[0]
        if not vector.any():
            raise InvalidArgument(
                "the vector of the query is all zeros, which have no direction to compare"
            )
        found = self._client.search(collection, vector.tolist(), count, filters)
        return _newest(found)

    def _place(self, hit: Hit) -> tuple[str, str]:
        episode_id, file_path = (hit.metadata.get(key) for key in ("episode_id", "file_path"))
        if not isinstance(episode_id, str) or not isinstance(file_path, str):
            raise self._foreign("strings 'episode_id' and 'file_path'")
        if self._root is None or is_url(file_path) or os.path.isabs(file_path):
            return episode_id, file_path
        if (problem := unsafe_form(file_path)) is not None:
            raise self._foreign(f"paths below the root, without one that {problem}")
        return episode_id, os.path.join(self._root, *file_path.split("/"))

    def _steps(self, hit: Hit) -> tuple[int, int]:
        start, stop = (hit.metadata.get(key) for key in ("window_start", "window_end"))
        return self._step(start), self._step(stop)

    def _step(self, number: Any) -> int:  # noqa: ANN401 - JSON
        # Servers that keep numbers as floats may give integers back as floats.
        if type(number) is float and number.is_integer():
            number = int(number)
        if type(number) is not int or not 0 <= number < 1 << 63:
            raise self._foreign("integers 'window_start' and 'window_end'")
        return number

    def _foreign(self, expected: str) -> BadMetadata:
        return BadMetadata(
            "the collection holds something that was not ingested by this library",
            path=self.url,
            expected=expected + " in the metadata of every document",
            hint="pass the names of the collections that were ingested",
        )

    def __repr__(self) -> str:
        return f"<TrajectoryRetriever {self.url}, {self._client.options.dialect} dialect>"


def _newest(hits: list[Hit]) -> list[Hit]:
    """Without older documents about the same steps of the same episode, which an interrupted replacement leaves."""
    fields = ("episode_id", "chunk_index", "window_start")
    newest: dict[tuple[str, ...], Hit] = {}
    for hit in hits:
        key = tuple(repr(hit.metadata.get(field)) for field in fields)
        other = newest.setdefault(key, hit)
        if isinstance(hit.id, int) and isinstance(other.id, int) and hit.id > other.id:
            newest[key] = hit
    return sorted(newest.values(), key=lambda hit: -hit.score)
