"""What an episode is, without opening it for reading: for looking at many files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from shard_format.registry import DEFAULT_LIMITS, Role
from wshard.reader import open_episode, open_reader, read_descriptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shard_format import Limits
    from shard_format.sources import SourceLike
    from wshard.dtypes import DType

__all__ = ["EpisodeSummary", "peek"]

# Looking up a member of an enum takes longer than comparing.
_WSHARD = Role.WSHARD.value


class EpisodeSummary(NamedTuple):
    """The facts of an episode, and what is described in it."""

    id: str
    env_id: str
    length: int
    metadata: dict[str, Any]
    described: dict[str, tuple[DType, tuple[int, ...]]]
    """Dtype, and shape of a step, of each block that is described; see `Episode.described`."""


def peek(
    source: SourceLike,
    *,
    limits: Limits = DEFAULT_LIMITS,
    storage_options: Mapping[str, Any] | None = None,
) -> EpisodeSummary:
    """Reads what an episode says about itself, and nothing else; no file stays open.

    Lanes that were added in files of their own are not looked for.

    Args:
        source: a path, a URL, bytes, a binary file that can seek, or any `ByteSource`; or the manifest of
            an episode in chunks.
        limits: what the file may ask for; raise one for files you trust.
        storage_options: headers, credentials and the like for a URL.

    Raises:
        ShardError: a subclass that says what is wrong with the file.
    """
    reader = open_reader(
        source, limits=limits, threads=1, check=True, storage_options=storage_options
    )
    try:
        if reader.header.role == _WSHARD:
            (id, env_id, length, _, metadata, *_), _, _, _, rows = read_descriptions(reader)
            if rows:
                described = {block: (row.dtype, row.shape) for block, row in rows.items()}
                return EpisodeSummary(id, env_id, length, metadata, described)
        with open_episode(reader, sidecars=False) as episode:
            return EpisodeSummary(
                episode.id, episode.env_id, episode.length, episode.metadata, episode.described
            )
    finally:
        reader.close()
