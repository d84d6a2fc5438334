"""The identity of an episode: a hash of its content, the same for every compression."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from shard_format.identity import (
    Identity,
    compute_identity,
    schema_digest,
    stored_identity,
    verify_identity,
)
from shard_format.registry import Role
from shard_format.signing import Signature
from shard_format.signing import sign as sign_identity
from shard_format.signing import verify as verify_signature
from wshard._episode import Episode
from wshard._plan_episode import plan_entries
from wshard._writer import kept_schema

if TYPE_CHECKING:
    from shard_format.reader import ShardReader
    from shard_format.sources import SourceLike

__all__ = [
    "Identity",
    "Signature",
    "episode_identity",
    "sign_identity",
    "stored_identity",
    "verify_identity",
    "verify_signature",
]


def episode_identity(episode: Episode | SourceLike | ShardReader) -> Identity:
    """The identity of an episode, in memory or in a file.

    For an episode in memory, it is the identity that its file will have. `str()` gives its 64 hex digits.
    """
    if not isinstance(episode, Episode):
        return compute_identity(episode)
    hashes: dict[str, str] = {}
    for entry in plan_entries(episode):
        hashes[entry.name] = hashlib.sha256(entry.flat().data).hexdigest()
    schema = kept_schema(episode.origin)
    return Identity(hashes, int(Role.WSHARD), schema_digest(schema.to_bytes() if schema else b""))
