"""The dialect that existing code speaks: string ids, `insert` and `search` under the collection's name.

Storing under an id that is there replaces what it named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from shard_format.errors import InvalidArgument
from wshard.search.documents import Hit, Request, list_of, object_of, score_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wshard.search.documents import Condition, Document

__all__ = ["create", "delete", "hits", "insert", "refused", "search", "stored"]


def create(collection: str, dimension: int) -> list[Request]:
    """Makes a collection; 409 says that it is there."""
    body = {"name": collection, "dimension": dimension, "index_type": "hnsw"}
    return [Request("POST", "/v2/collections", body, is_repeatable=True)]


def insert(collection: str, documents: Sequence[Document]) -> Request:
    """Stores documents: three lists side by side."""
    body = {
        "vectors": [document.vector.tolist() for document in documents],
        "ids": [document_id(document) for document in documents],
        "metadata": [metadata(document) for document in documents],
    }
    return Request("POST", f"{_path(collection)}/insert", body, is_repeatable=True)


def document_id(document: Document) -> str:
    """The id of an episode, or of a window of it.

    Chunks have the id of the whole episode; their number keeps one from replacing the other.
    """
    facts = document.facts
    name = facts.episode_id
    if facts.chunk_index is not None:
        name += f"_c{facts.chunk_index}"
    return name if document.window is None else f"{name}_w{document.window[0]}"


def metadata(document: Document) -> dict[str, Any]:
    """The facts, under the names that existing indexes have."""
    facts = document.facts
    if document.window is not None:
        return {
            "episode_id": facts.episode_id,
            "env_id": facts.env_id,
            "file_path": facts.file_path,
            "window_start": document.window[0],
            "window_end": document.window[1],
            "length_T": facts.length,
        }
    fields = {
        "episode_id": facts.episode_id,
        "env_id": facts.env_id,
        "length_T": facts.length,
        # Always there in this dialect.
        "total_reward": 0.0 if facts.total_reward is None else facts.total_reward,
        "file_path": facts.file_path,
    }
    return fields if facts.chunk_index is None else {**fields, "chunk_index": facts.chunk_index}


def refused(answer: Any, count: int) -> dict[int, str]:  # noqa: ANN401 - JSON; as the other dialect
    """None: a server of this dialect refuses a request as a whole."""
    return {}


def search(
    collection: str, vector: Sequence[float], top_k: int, conditions: Sequence[Condition]
) -> Request:
    """Asks for the nearest documents; a single condition stands alone, several under `$and`."""
    body: dict[str, Any] = {"vector": list(vector), "top_k": top_k}
    asked = [{"field": c.field, c.operator: c.value} for c in conditions]
    if asked:
        body["filter"] = asked[0] if len(asked) == 1 else {"$and": asked}
    return Request("POST", f"{_path(collection)}/search", body, is_repeatable=True)


def hits(answer: Any) -> list[Hit]:  # noqa: ANN401 - JSON
    """`results`, each with `id`, `score` (a similarity) and `metadata`."""
    results = list_of(object_of(answer, "the answer").get("results"), "'results'")
    found = [
        Hit(
            row.get("id"),
            score_of(row.get("score"), "'score' of a result"),
            object_of(row.get("metadata"), "'metadata' of a result"),
        )
        for row in (object_of(row, "a result") for row in results)
    ]
    return sorted(found, key=lambda hit: -hit.score)


def stored(
    collection: str,
    vector: Sequence[float],
    episode_ids: Sequence[str],
    offset: int,
) -> Request | None:
    """Not needed: ids name what is replaced."""
    return None


def delete(collection: str, id: Any) -> Request:  # noqa: ANN401 - as the other dialect
    """Not part of this dialect, which replaces documents by their ids."""
    raise InvalidArgument(
        "documents cannot be deleted in the bridge dialect",
        entry=collection,
        hint="use dialect='server' against a server that speaks it",
    )


def _path(collection: str) -> str:
    return f"/v2/collections/{quote(collection, safe='')}"
