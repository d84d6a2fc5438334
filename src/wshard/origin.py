"""What a loaded episode remembers of its file, so that saving it again changes nothing by itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shard_format import ShardReader
    from wshard.metadata import Row

__all__ = ["Origin"]


@dataclass(slots=True)
class Origin:
    """Where an episode was loaded from.

    Owns: the readers.
    """

    reader: ShardReader
    """The episode's file; of a chunked episode its manifest."""
    wshard: dict[str, Any]
    """`meta/wshard` as parsed."""
    episode: dict[str, Any]
    """`meta/episode` as parsed."""
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
    def path(self) -> str:
        """What its file is called."""
        return self.reader.name

    @property
    def episode_id(self) -> str:
        """What its file calls it."""
        found: str = self.episode["episode_id" if "episode_id" in self.episode else "id"]
        return found

    def close(self) -> None:
        """Closes all files."""
        for reader in (self.reader, *self.sidecars, *self.chunks):
            reader.close()
