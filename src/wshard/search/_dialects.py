"""What the index stores about an episode or a window, and how each kind of server is told.

Everything here is pure: a dialect makes requests from documents and hits from answers. Nothing reads files
or talks to a server.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from urllib.parse import quote

from shard_format.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from wshard.search._vectors import Range

DialectName = Literal["bridge", "server"]
Key = tuple[str, "int | None"]
"""Which episode a document is about: its id, and the chunk if it is one."""

_FIELD: Final = "embedding"
# How far a search looks around in the index, at least: filters leave few of the nearest.
_LEAST_EFFORT: Final = 128


class Document(NamedTuple):
    """One vector with what the index stores besides it: of an episode, or of a window if it has one."""

    facts: Mapping[str, Any]
    """About the episode, under the names that existing indexes have: `episode_id`, `env_id`, `length_T`,
    `file_path` (absolute, relative to a root, or a URL), `content_hash`, `total_reward`, `chunk_index`. Unknown
    ones are absent, so that no filter takes them for a value."""
    vector: NDArray[np.float32]
    window: Range | None = None

    @property
    def key(self) -> Key:
        """Which episode it is about."""
        return self.facts["episode_id"], self.facts.get("chunk_index")

    def metadata(self) -> dict[str, Any]:
        """What the index stores besides the vector."""
        if self.window is None:
            return dict(self.facts)
        return {**self.facts, "window_start": self.window[0], "window_end": self.window[1]}


class Request(NamedTuple):
    """One HTTP request."""

    path: str
    body: Mapping[str, Any] | None
    is_repeatable: bool = False
    """Whether sending it twice does no harm, for when the client cannot know if it arrived."""
    method: str = "POST"


class Filter(NamedTuple):
    """A condition on the metadata of a hit."""

    field: str
    operator: str
    """`$eq`, `$gte`, `$lte` or `$in`."""
    value: Any


class Hit(NamedTuple):
    """One result of a search."""

    id: Any
    metadata: dict[str, Any]
    score: float
    """Cosine similarity: larger is nearer."""


class Inserted(NamedTuple):
    """What a server says about documents that were sent, by their numbers in the request."""

    ids: dict[int, int]
    """Those that it gave to what it stored; none where the documents brought their own."""
    refused: dict[int, str]
    """Why it did not store the others."""


class UnexpectedAnswer(Exception):
    """An answer that does not fit the dialect; the message says what the dialect expects."""


class BridgeDialect:
    """The dialect of existing code: string ids, `insert` and `search` under the collection's name.

    Storing a document under an id that exists replaces the old document.
    """

    def create(self, collection: str, dimension: int, tenant: str) -> list[Request]:
        """Create a collection; a later request is for servers that forbid (403) the one before."""
        body = {"name": collection, "dimension": dimension, "index_type": "hnsw"}
        return [Request("/v2/collections", body, is_repeatable=True)]

    def insert(self, collection: str, documents: Sequence[Document]) -> Request:
        """Store documents."""
        body = {
            "vectors": [document.vector.tolist() for document in documents],
            "ids": [self._id(document) for document in documents],
            "metadata": [self._metadata(document) for document in documents],
        }
        return Request(self._path(collection, "insert"), body, is_repeatable=True)

    def drop(self, collection: str, tenant: str) -> list[Request]:
        """Remove a collection; as for `create`, a later request is for servers that forbid the one before."""
        return [Request(self._path(collection, ""), None, is_repeatable=True, method="DELETE")]

    def inserted(self, answer: Any, count: int) -> Inserted:  # noqa: ANN401 - JSON
        """What the answer to `insert` says about `count` documents."""
        return Inserted({}, {})  # a server of this dialect refuses the request as a whole

    def search(
        self, collection: str, vector: Sequence[float], top_k: int, filters: Sequence[Filter]
    ) -> Request:
        """Ask for the nearest documents that pass all filters."""
        body: dict[str, Any] = {"vector": list(vector), "top_k": top_k}
        body |= _combined("filter", [{"field": f.field, f.operator: f.value} for f in filters])
        return Request(self._path(collection, "search"), body, is_repeatable=True)

    def hits(self, answer: Any) -> list[Hit]:  # noqa: ANN401 - JSON
        """The answer to `search`, nearest first."""
        results = _typed(_typed(answer, dict, "the answer").get("results"), list, "'results'")
        rows = [_typed(row, dict, "a result") for row in results]
        hits = [
            Hit(
                row.get("id"),
                _typed(row.get("metadata"), dict, "'metadata' of a result"),
                _score(row.get("score"), "'score' of a result"),
            )
            for row in rows
        ]
        return sorted(hits, key=lambda hit: -hit.score)

    @staticmethod
    def _path(collection: str, operation: str) -> str:
        return f"/v2/collections/{quote(collection, safe='')}/{operation}".rstrip("/")

    @staticmethod
    def _id(document: Document) -> str:
        # Chunks have the id of the whole episode; the number keeps one from replacing another.
        name, chunk = document.key
        if chunk is not None:
            name += f"_c{chunk}"
        return name if document.window is None else f"{name}_w{document.window[0]}"

    @staticmethod
    def _metadata(document: Document) -> dict[str, Any]:
        fields = document.metadata()
        left_out = {"total_reward", "chunk_index"} if document.window is not None else set()
        return {name: value for name, value in fields.items() if name not in left_out}


class ServerDialect:
    """The dialect of the public DeepData server: typed vector fields, integer ids that the server gives.

    Four of its habits shape these requests: a filter object may hold one condition only, flat indexes
    ignore filters, scores are cosine distances, and storing never replaces. The methods are those of
    `BridgeDialect`, and two more: a client that replaces a document must `get` and `delete` the old one.
    """

    def create(self, collection: str, dimension: int, tenant: str) -> list[Request]:
        index = {"type": "hnsw", "params": {"m": 16, "ef_construction": 200}}
        vectors = {"name": _FIELD, "type": "dense", "dim": dimension, "index": index}
        body = {"name": collection, "fields": [vectors]}
        return [Request(path, body, is_repeatable=True) for path in self._collections(tenant)]

    def drop(self, collection: str, tenant: str) -> list[Request]:
        name = quote(collection, safe="")
        return [
            Request(f"{path}/{name}", None, is_repeatable=True, method="DELETE")
            for path in self._collections(tenant)
        ]

    @staticmethod
    def _collections(tenant: str) -> tuple[str, str]:
        # With a static token the server allows only the second address, and answers 403 to the first.
        return "/v2/collections", f"/v3/tenants/{tenant}/collections"

    def insert(self, collection: str, documents: Sequence[Document]) -> Request:
        docs = [
            {"vectors": {_FIELD: document.vector.tolist()}, "metadata": document.metadata()}
            for document in documents
        ]
        # Not repeatable: a request that arrives twice stores everything twice.
        body = {"collection": collection, "continue_on_error": True, "docs": docs}
        return Request("/v2/insert/batch", body)

    def inserted(self, answer: Any, count: int) -> Inserted:  # noqa: ANN401 - JSON
        # The answer has the status of success even if documents failed; `errors` and the counts tell.
        fields = _typed(answer, dict, "the answer")
        errors = _typed(fields.get("errors") or {}, dict, "'errors'")
        try:
            failed = {int(number): str(reason) for number, reason in errors.items()}
        except ValueError:  # no number, or one of thousands of digits
            raise UnexpectedAnswer("'errors' by the documents' numbers") from None
        inserted = _typed(fields.get("inserted"), int, "'inserted'")
        if not 0 <= inserted <= count or not failed.keys() <= set(range(count)):
            raise UnexpectedAnswer(f"the {count} documents that were sent")
        if inserted + len(failed) < count:
            failed = {**dict.fromkeys(range(inserted, count), "no reason given"), **failed}
        ids = [_id(id_) for id_ in _typed(fields.get("ids") or [], list, "'ids'")]
        stored = [number for number in range(count) if number not in failed]
        if len(ids) != len(stored):
            raise UnexpectedAnswer("'ids' of the documents that were stored")
        return Inserted(dict(zip(stored, ids, strict=True)), failed)

    def search(
        self, collection: str, vector: Sequence[float], top_k: int, filters: Sequence[Filter]
    ) -> Request:
        body = {
            "collection": collection,
            "queries": {_FIELD: list(vector)},
            "top_k": top_k,
            "ef_search": max(_LEAST_EFFORT, 2 * top_k),
        }
        body |= _combined(
            "filters",
            [{f.field: f.value if f.operator == "$eq" else {f.operator: f.value}} for f in filters],
        )
        return Request("/v2/search", body, is_repeatable=True)

    def hits(self, answer: Any) -> list[Hit]:  # noqa: ANN401 - JSON
        fields = _typed(answer, dict, "the answer")
        # Go writes an empty list as null.
        documents = _typed(fields.get("documents") or [], list, "'documents'")
        scores = _typed(fields.get("scores") or [], list, "'scores'")
        if "documents" not in fields or len(documents) != len(scores):
            raise UnexpectedAnswer("'documents' and as many 'scores'")
        hits = []
        for row, distance in zip(documents, scores, strict=True):
            hits.append(Hit(*_document(row), 1.0 - _score(distance, "a score")))
        return sorted(hits, key=lambda hit: -hit.score)

    def get(self, collection: str, ids: Sequence[int]) -> Request:
        """Ask for documents by their ids."""
        path = f"/v2/collections/{quote(collection, safe='')}/get"
        return Request(path, {"ids": list(ids)}, is_repeatable=True)

    def documents(self, answer: Any) -> dict[int, dict[str, Any]]:  # noqa: ANN401 - JSON
        """The answer to `get`: metadata by id."""
        rows = _typed(answer, dict, "the answer").get("documents") or []
        return dict(_document(row) for row in _typed(rows, list, "'documents'"))

    def delete(self, collection: str, id_: int) -> Request:
        """Remove one document."""
        return Request("/v2/delete", {"collection": collection, "doc_id": id_})


DIALECTS: Final[dict[str, BridgeDialect | ServerDialect]] = {
    "bridge": BridgeDialect(),
    "server": ServerDialect(),
}


def make_filters(
    *,
    env_id: str | None = None,
    episode_id: str | None = None,
    min_length: int | None = None,
    min_reward: float | None = None,
    max_reward: float | None = None,
) -> list[Filter]:
    """The filters of a search; bounds are inclusive."""
    filters: list[Filter] = []
    for name, text in (("env_id", env_id), ("episode_id", episode_id)):
        if text is not None:
            if not isinstance(text, str):
                raise InvalidArgument(f"{name} is not a string", found=repr(text))
            filters.append(Filter(name, "$eq", text))
    for argument, name, operator, bound in (
        ("min_length", "length_T", "$gte", min_length),
        ("min_reward", "total_reward", "$gte", min_reward),
        ("max_reward", "total_reward", "$lte", max_reward),
    ):
        if bound is not None:
            filters.append(Filter(name, operator, _number(bound, argument)))
    return filters


def _number(value: Any, argument: str) -> int | float:  # noqa: ANN401 - of Python or NumPy
    try:
        number = float(value)
        if math.isfinite(number):
            return int(number) if number.is_integer() and abs(number) < 1 << 53 else number
    except (TypeError, ValueError, OverflowError):
        pass
    raise InvalidArgument(
        f"{argument} is not a finite number", found=repr(value), hint="omit it for no bound"
    )


def _combined(key: str, conditions: list[dict[str, Any]]) -> dict[str, Any]:
    """One condition alone, several under `$and`, none at all as nothing."""
    if not conditions:
        return {}
    return {key: conditions[0] if len(conditions) == 1 else {"$and": conditions}}


_JSON_NAMES: Final = {dict: "a JSON object", list: "a JSON list", int: "an integer"}


def _typed(value: Any, kind: type[Any], what: str) -> Any:  # noqa: ANN401 - JSON
    """The value, which must be exactly of this kind: True is not an integer."""
    if type(value) is not kind:
        raise UnexpectedAnswer(f"{what} as {_JSON_NAMES[kind]}")
    return value


def _document(row: Any) -> tuple[int, dict[str, Any]]:  # noqa: ANN401 - JSON
    """Id and metadata of a document of the public server."""
    id_ = _id(_typed(row, dict, "a document").get("id"))
    return id_, _typed(row.get("metadata") or {}, dict, "'metadata' of a document")


def _id(value: Any) -> int:  # noqa: ANN401 - JSON
    id_: int = _typed(value, int, "'id' of a document")
    if id_.bit_length() > 63:
        raise UnexpectedAnswer("'id' of a document with 63 bits")
    return id_


def _score(value: Any, what: str) -> float:  # noqa: ANN401 - JSON
    # Beyond 2**63, an integer may not fit a float.
    if type(value) not in (int, float) or not abs(value) < 1 << 63:
        raise UnexpectedAnswer(f"{what} as a number")
    return float(value)
