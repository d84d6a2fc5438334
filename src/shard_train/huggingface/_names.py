"""What blocks of an episode are called as columns: the names that users of LeRobot know."""

from __future__ import annotations

from typing import Final

from shard_format.errors import InvalidArgument
from wshard.types import REWARD, TERMINATED, TRUNCATED

__all__ = [
    "EPISODE",
    "EPISODE_ID",
    "FRAME",
    "POSITIONS",
    "TIME",
    "TIME_NS",
    "block_of",
    "checked_block",
    "column_of",
]

EPISODE: Final = "episode_index"
EPISODE_ID: Final = "episode_id"
FRAME: Final = "frame_index"
TIME: Final = "timestamp"
"""Seconds since the start of the episode."""
TIME_NS: Final = "timestamp_ns"
"""The recorded times, whole nanoseconds."""
POSITIONS: Final = frozenset((EPISODE, EPISODE_ID, FRAME, TIME, TIME_NS, "index"))
"""Columns that say where a row is; they do not become channels."""

_LANES: Final = (("signal", "observation"), ("action", "action"))
_FLAT: Final = {
    "next.reward": REWARD,
    "done": TERMINATED,
    "next.done": TERMINATED,
    "next.terminated": TERMINATED,
    "next.truncated": TRUNCATED,
    REWARD: REWARD,
    TERMINATED: TERMINATED,
    TRUNCATED: TRUNCATED,
}
_PREFIXES: Final = ("signal/", "action/", "omen/", "uncert/")


def column_of(block: str) -> str:
    """The column of a block: `observation.state` of `signal/state`."""
    for lane, word in _LANES:
        if block.startswith(f"{lane}/"):
            name = block.removeprefix(f"{lane}/")
            return word if name == word else f"{word}.{name}"
    return block


def block_of(column: str) -> str:
    """The block of a column; one that has no meaning of its own is an observation."""
    if column in _FLAT:
        return _FLAT[column]
    if column.startswith(("omen/", "uncert/")):
        return column
    for lane, word in _LANES:
        if column == word:
            return f"{lane}/{word}"
        if column.startswith(f"{word}.") and column != f"{word}.":
            return f"{lane}/{column.removeprefix(f'{word}.')}"
    return f"signal/{column}"


def checked_block(block: str) -> str:
    """A block that a caller names.

    Raises:
        InvalidArgument: a column cannot become this block.
    """
    if block in (REWARD, TERMINATED, TRUNCATED) or block.startswith(_PREFIXES):
        return block
    raise InvalidArgument(
        "a column cannot become this",
        expected="'signal/NAME', 'action/NAME', 'omen/NAME/MODEL', 'uncert/NAME/MODEL/KIND', "
        "'reward', 'terminated' or 'truncated'; None leaves it out",
        found=repr(block),
    )
