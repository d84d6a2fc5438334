"""Searching: a query becomes a vector, the server's answer becomes references."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from shard_format.errors import BadMetadata, InvalidArgument
from wshard.channels import Channel
from wshard.episode import Episode
from wshard.search.client import Client
from wshard.search.documents import EPISODES, WINDOWS, conditions
from wshard.search.embed import PaddedProjection, embed
from wshard.search.pooling import check_averaged, mean_of_query, means_of, observed
from wshard.search.references import EpisodeRef, WindowRef

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

    from wshard.search.documents import Condition, DialectName, Hit
    from wshard.search.embed import Embedder

__all__ = ["TrajectoryRetriever"]


class TrajectoryRetriever:
    """Finds episodes and windows that look like a query.

    Args:
        url: of the server.
        embedder: the one that was used for ingesting; `PaddedProjection()` if left out.
        dialect: `"bridge"`, or `"server"` for the public DeepData server.
        timeout: seconds after which a try is given up.
        api_key: the server's token.
        retries: how often a request is sent again.
        channel: which observation of an episode counts when it is the query; None for the first.
        episodes: the collection of episodes.
        windows: the collection of windows.
    """

    def __init__(
        self,
        url: str = "http://localhost:8080",
        embedder: Embedder | None = None,
        *,
        dialect: DialectName = "bridge",
        timeout: float = 30.0,
        api_key: str | None = None,
        retries: int = 3,
        channel: str | None = None,
        episodes: str = EPISODES,
        windows: str = WINDOWS,
    ) -> None:
        self.embedder: Embedder = PaddedProjection() if embedder is None else embedder
        self._client = Client(url, dialect, timeout=timeout, api_key=api_key, retries=retries)
        self._channel = channel
        self._episodes, self._windows = episodes, windows

    @property
    def url(self) -> str:
        """Of the server, without secrets."""
        return self._client.url

    def search_episodes(
        self,
        query: ArrayLike | Channel | Episode,
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
                What is not finite is left out of the mean.
            top_k: how many at most. A server may give fewer.
            env_id: only of this environment.
            min_length: only with at least so many steps.
            min_reward: only with a total reward of at least this.
            max_reward: only with a total reward of at most this.

        Raises:
            SearchServerError: the server cannot be reached, refuses, or answers something else.
        """
        asked = conditions(
            env_id=env_id, min_length=min_length, min_reward=min_reward, max_reward=max_reward
        )
        found = self._search(self._episodes, query, top_k, asked)
        return [EpisodeRef(*self._place(hit), hit.score, hit.metadata) for hit in found]

    def search_windows(
        self,
        query: ArrayLike | Channel | Episode,
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
            min_length: only of episodes with at least so many steps.
            episode_id: only of this episode.
        """
        asked = conditions(env_id=env_id, min_length=min_length, episode_id=episode_id)
        found = self._search(self._windows, query, top_k, asked)
        return [
            WindowRef(*self._place(hit), hit.score, hit.metadata, *self._steps(hit))
            for hit in found
        ]

    def search_similar_episodes(
        self,
        query_obs: ArrayLike | Channel | Episode,
        top_k: int = 10,
        env_id: str | None = None,
        min_length: int | None = None,
        reward_range: tuple[float | None, float | None] | None = None,
    ) -> list[EpisodeRef]:
        """`search_episodes` under the name that existing code calls; `reward_range` is inclusive."""
        low, high = (None, None) if reward_range is None else reward_range
        return self.search_episodes(query_obs, top_k, env_id, min_length, low, high)

    def _search(
        self,
        collection: str,
        query: ArrayLike | Channel | Episode,
        top_k: int,
        asked: Sequence[Condition],
    ) -> list[Hit]:
        try:
            count = operator.index(top_k)
        except TypeError:
            count = 0
        if count < 1:
            raise InvalidArgument("top_k is not a count", expected="at least 1", found=repr(top_k))
        return self._client.search(collection, self._vector(query), count, asked)

    def _vector(self, query: ArrayLike | Channel | Episode) -> list[float]:
        if isinstance(query, Episode):
            query = observed(query, self._channel)
        if isinstance(query, Channel):
            check_averaged(query)
            ((_, mean),) = means_of(query, [(0, query.length)])
        else:
            mean = mean_of_query(query)
        vector: list[float] = embed(self.embedder, [mean])[0].tolist()
        return vector

    def _place(self, hit: Hit) -> tuple[str, str]:
        episode_id, file_path = (hit.metadata.get(key) for key in ("episode_id", "file_path"))
        if not isinstance(episode_id, str) or not isinstance(file_path, str):
            raise self._foreign("strings 'episode_id' and 'file_path'")
        return episode_id, file_path

    def _steps(self, hit: Hit) -> tuple[int, int]:
        start, stop = (hit.metadata.get(key, "") for key in ("window_start", "window_end"))
        # Servers that keep numbers as floats may give them back as such.
        if not _is_whole(start) or not _is_whole(stop):
            raise self._foreign("whole numbers 'window_start' and 'window_end'")
        return int(start), int(stop)

    def _foreign(self, expected: str) -> BadMetadata:
        return BadMetadata(
            "the collection holds something that was not ingested by this library",
            path=self.url,
            expected=expected + " in the metadata of every document",
            hint="give the names of the collections that were ingested",
        )

    def __repr__(self) -> str:
        return f"<TrajectoryRetriever {self.url}, {self._client.dialect} dialect>"


def _is_whole(value: Any) -> bool:  # noqa: ANN401 - JSON
    return type(value) is int or (type(value) is float and value.is_integer())
