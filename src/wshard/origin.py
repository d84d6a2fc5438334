"""What a loaded episode remembers of its file, so that saving it again changes nothing by itself."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shard_format._json import parse_object
from shard_format.registry import DEFAULT_LIMITS
from wshard.names import META_EPISODE

if TYPE_CHECKING:
    from shard_format import ShardReader
    from wshard.metadata import Row

__all__ = ["Origin"]


class UnknownFields(NamedTuple):
    """What descriptions say that this library does not know: kept, also in copies and parts of an episode."""

    episode: dict[str, Any]
    wshard: dict[str, Any]


_KNOWN_EPISODE: Final = frozenset(
    (
        *("episode_id", "id", "env_id", "length_T", "length_t", "timebase", "metadata"),
        *("chunk_index", "total_chunks", "timestep_range", "action_spaces"),
    )
)
_KNOWN_WSHARD: Final = frozenset(
    (
        *("version", "wshard_version", "format", "timebase", "endianness", "alignment"),
        *("streaming", "omen_channels"),
    )
)


@dataclass(slots=True)
class Origin:
    """Where an episode was loaded from.

    Owns: the readers.
    """

    reader: ShardReader
    """The episode's file; of a chunked episode its manifest."""
    wshard: dict[str, Any]
    """`meta/wshard` as parsed."""
    stored_episode: dict[str, Any] | bytes
    """`meta/episode`, parsed or not yet."""
    channels: dict[str, Any]
    """`meta/channels` as parsed."""
    rows: dict[str, Row]
    """The row of each block that has one."""
    sidecars: list[ShardReader] = field(default_factory=list)
    """Files with lanes that were added later, in the order in which they are read."""
    chunks: list[ShardReader] = field(default_factory=list)
    """The chunks, of a chunked episode."""
    is_filtered: bool = False
    """Whether the caller asked for some channels or lanes only."""

    @property
    def episode(self) -> dict[str, Any]:
        """`meta/episode` as parsed."""
        stored = self.stored_episode
        if isinstance(stored, bytes):
            stored = self.stored_episode = parse_object(stored, META_EPISODE, DEFAULT_LIMITS)
        return stored

    @property
    def path(self) -> str:
        """What its file is called."""
        return self.reader.name

    @property
    def episode_id(self) -> str:
        """What its file calls it."""
        found: str = self.episode["episode_id" if "episode_id" in self.episode else "id"]
        return found

    @property
    def unknown_fields(self) -> UnknownFields:
        """What its descriptions say beyond what this library knows."""
        episode = {k: v for k, v in self.episode.items() if k not in _KNOWN_EPISODE}
        wshard = {k: v for k, v in self.wshard.items() if k not in _KNOWN_WSHARD}
        return UnknownFields(deepcopy(episode), deepcopy(wshard))

    def close(self) -> None:
        """Closes all files."""
        self.reader.close()
        for reader in (*self.sidecars, *self.chunks):
            reader.close()
