"""The dialect of the public DeepData server: typed vector fields, number ids that the server gives.

Its ways that shape these requests: a filter object may hold one condition only, flat indexes ignore
filters, scores are cosine distances, and storing never replaces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from wshard.search.documents import (
    Condition,
    Hit,
    Request,
    UnexpectedAnswer,
    list_of,
    object_of,
    score_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wshard.search.documents import Document

__all__ = ["create", "delete", "hits", "insert", "refused", "search", "stored"]

MOST_DOCUMENTS: Final = 10_000
_FIELD: Final = "embedding"
_PAGE: Final = 1000


def create(collection: str, dimension: int) -> list[Request]:
    """Makes a collection. With a static token only the tenant's address may be used (403 says so)."""
    body = {
        "name": collection,
        "fields": [
            {
                "name": _FIELD,
                "type": "dense",
                "dim": dimension,
                "index": {"type": "hnsw", "params": {"m": 16, "ef_construction": 200}},
            }
        ],
    }
    return [
        Request("POST", "/v2/collections", body, is_repeatable=True),
        Request("POST", "/v3/tenants/default/collections", body, is_repeatable=True),
    ]


def insert(collection: str, documents: Sequence[Document]) -> Request:
    """Stores documents. Not repeatable: what arrived twice would be there twice."""
    docs = [
        {"vectors": {_FIELD: document.vector.tolist()}, "metadata": metadata(document)}
        for document in documents
    ]
    body = {"collection": collection, "continue_on_error": True, "docs": docs}
    return Request("POST", "/v2/insert/batch", body)


def metadata(document: Document) -> dict[str, Any]:
    """The facts. What is not known is left out, so that no filter takes it for a value."""
    facts = document.facts
    fields: dict[str, Any] = {
        "episode_id": facts.episode_id,
        "env_id": facts.env_id,
        "length_T": facts.length,
        "file_path": facts.file_path,
    }
    if document.window is not None:
        fields["window_start"], fields["window_end"] = document.window
    if facts.total_reward is not None:
        fields["total_reward"] = facts.total_reward
    if facts.chunk_index is not None:
        fields["chunk_index"] = facts.chunk_index
    return fields


def refused(answer: Any, count: int) -> dict[int, str]:  # noqa: ANN401 - JSON
    """The answer says success even if documents failed; `errors` and the counts tell."""
    fields = object_of(answer, "the answer")
    errors = object_of(fields.get("errors") or {}, "'errors'")
    try:
        failed = {int(number): str(reason) for number, reason in errors.items()}
    except ValueError:
        raise UnexpectedAnswer("'errors' by the documents' numbers") from None
    inserted = fields.get("inserted")
    if type(inserted) is not int:
        raise UnexpectedAnswer("'inserted' as a whole number")
    if inserted + len(failed) < count:
        stored_at_most = range(inserted, count)
        failed = {**dict.fromkeys(stored_at_most, "no reason given"), **failed}
    return failed


def search(
    collection: str, vector: Sequence[float], top_k: int, conditions: Sequence[Condition]
) -> Request:
    """Asks for the nearest documents; every condition in an object of its own."""
    body: dict[str, Any] = {
        "collection": collection,
        "queries": {_FIELD: list(vector)},
        "top_k": top_k,
    }
    asked = [
        {c.field: c.value if c.operator == "$eq" else {c.operator: c.value}} for c in conditions
    ]
    if asked:
        body["filters"] = asked[0] if len(asked) == 1 else {"$and": asked}
    return Request("POST", "/v2/search", body, is_repeatable=True)


def hits(answer: Any) -> list[Hit]:  # noqa: ANN401 - JSON
    """`documents` and, side by side with them, `scores`, which are cosine distances."""
    fields = object_of(answer, "the answer")
    # Go writes an empty list as null.
    documents = list_of(fields.get("documents", ()) or [], "'documents'")
    scores = list_of(fields.get("scores", ()) or [], "'scores'")
    if "documents" not in fields or len(documents) != len(scores):
        raise UnexpectedAnswer("'documents' and as many 'scores'")
    found = [
        Hit(
            _id(object_of(row, "a document").get("id")),
            1.0 - score_of(distance, "a score"),
            object_of(row.get("metadata") or {}, "'metadata' of a document"),
        )
        for row, distance in zip(documents, scores, strict=True)
    ]
    return sorted(found, key=lambda hit: -hit.score)


def _id(value: Any) -> int:  # noqa: ANN401 - JSON
    if type(value) is not int:
        raise UnexpectedAnswer("'id' of a document as a whole number")
    return value


def stored(
    collection: str, vector: Sequence[float], episode_ids: Sequence[str], offset: int
) -> Request | None:
    """Asks for a page of the documents of these episodes, wherever they are."""
    asked = (
        Condition("episode_id", "$eq", episode_ids[0])
        if len(episode_ids) == 1
        else Condition("episode_id", "$in", list(episode_ids))
    )
    request = search(collection, vector, _PAGE, [asked])
    body = {**(request.body or {}), "offset": offset, "ef_search": _PAGE + offset}
    return Request(request.method, request.path, body, is_repeatable=True)


def delete(collection: str, id: Any) -> Request:  # noqa: ANN401 - as the hit has it
    """Removes one document; a second time would be an error."""
    return Request("POST", "/v2/delete", {"collection": collection, "doc_id": id})
