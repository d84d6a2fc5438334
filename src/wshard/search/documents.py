"""What is stored about an episode or a window, and the requests and answers that both dialects share.

Nothing here reads files or talks to a server.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from shard_format.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from wshard.search.pooling import Range

__all__ = [
    "Condition",
    "Dialect",
    "DialectName",
    "Document",
    "EpisodeFacts",
    "Hit",
    "Key",
    "Request",
    "UnexpectedAnswer",
    "conditions",
]

DialectName = Literal["bridge", "server"]
Key = tuple[str, "int | None"]
"""Which episode a document is about: its id, and the chunk if it is one."""

EPISODES: Final = "traj_episodes"
WINDOWS: Final = "traj_timesteps"


@dataclass(frozen=True, slots=True)
class EpisodeFacts:
    """What is known about an episode without its arrays."""

    episode_id: str
    env_id: str
    length: int
    total_reward: float | None
    """None if it has no rewards."""
    file_path: str
    """Absolute, or a URL."""
    chunk_index: int | None = None

    @property
    def key(self) -> Key:
        """Which episode it is."""
        return self.episode_id, self.chunk_index


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """One vector with its facts: of an episode, or of a window if it has one."""

    facts: EpisodeFacts
    vector: NDArray[np.float32]
    window: Range | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None
    is_repeatable: bool = False
    """Whether it does no harm to send it again when nobody knows if it arrived."""


@dataclass(frozen=True, slots=True)
class Condition:
    """What a hit's metadata must fulfil."""

    field: str
    operator: str
    """`$eq`, `$gte`, `$lte` or `$in`."""
    value: Any


@dataclass(frozen=True, slots=True)
class Hit:
    """One result of a search."""

    id: Any
    score: float
    """Cosine similarity: larger is nearer."""
    metadata: dict[str, Any] = field(default_factory=dict)


class UnexpectedAnswer(Exception):
    """An answer that the dialect does not provide for; says what was expected."""


class Dialect(Protocol):
    """How a server is told. The two modules of this name have these functions; all are pure."""

    def create(self, collection: str, dimension: int) -> list[Request]:
        """Makes a collection; a later request is for servers that forbid (403) the one before."""
        ...

    def insert(self, collection: str, documents: Sequence[Document]) -> Request:
        """Stores documents."""
        ...

    def refused(self, answer: Any, count: int) -> dict[int, str]:  # noqa: ANN401 - JSON
        """Which documents the answer to `insert` says were not stored, and why."""
        ...

    def search(
        self, collection: str, vector: Sequence[float], top_k: int, conditions: Sequence[Condition]
    ) -> Request:
        """Asks for the nearest documents that fulfil all conditions."""
        ...

    def hits(self, answer: Any) -> list[Hit]:  # noqa: ANN401 - JSON
        """The answer to `search`, nearest first."""
        ...

    def stored(
        self, collection: str, vector: Sequence[float], episode_ids: Sequence[str], offset: int
    ) -> Request | None:
        """Asks for documents of these episodes; None where storing replaces them by their ids."""
        ...

    def delete(self, collection: str, id: Any) -> Request:  # noqa: ANN401 - as the hit has it
        """Removes one document."""
        ...


def as_dialect(name: str) -> Dialect:
    """The module for a dialect's name."""
    from wshard.search import bridge_dialect, server_dialect

    known: dict[str, Dialect] = {"bridge": bridge_dialect, "server": server_dialect}
    if name not in known:
        raise InvalidArgument("no such dialect", expected=" or ".join(known), found=repr(name))
    return known[name]


def conditions(
    *,
    env_id: str | None = None,
    episode_id: str | None = None,
    min_length: int | None = None,
    min_reward: float | None = None,
    max_reward: float | None = None,
) -> list[Condition]:
    """What a search asks for besides nearness; bounds are inclusive."""
    asked: list[Condition] = []
    for name, text in (("env_id", env_id), ("episode_id", episode_id)):
        if text is not None:
            if not isinstance(text, str):
                raise InvalidArgument(f"{name} is not a string", found=repr(text))
            asked.append(Condition(name, "$eq", text))
    for argument, name, operator, bound in (
        ("min_length", "length_T", "$gte", min_length),
        ("min_reward", "total_reward", "$gte", min_reward),
        ("max_reward", "total_reward", "$lte", max_reward),
    ):
        if bound is None:
            continue
        number = _number(bound)
        if number is None:
            raise InvalidArgument(
                f"{argument} is not a finite number",
                found=repr(bound),
                hint="leave it out for no bound",
            )
        asked.append(Condition(name, operator, number))
    return asked


def _number(value: Any) -> int | float | None:  # noqa: ANN401 - of Python or NumPy
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    if number - number != 0:
        return None
    return int(number) if number.is_integer() and abs(number) < 1 << 53 else number


def object_of(value: Any, what: str) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """A JSON object, or the complaint that it is none."""
    if not isinstance(value, dict):
        raise UnexpectedAnswer(f"{what} as a JSON object")
    return value


def list_of(value: Any, what: str) -> list[Any]:  # noqa: ANN401 - JSON
    """A JSON list, or the complaint that it is none."""
    if not isinstance(value, list):
        raise UnexpectedAnswer(f"{what} as a JSON list")
    return value


def score_of(value: Any, what: str) -> float:  # noqa: ANN401 - JSON
    """A finite number, or the complaint that it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value - value != 0:
        raise UnexpectedAnswer(f"{what} as a number")
    return float(value)
