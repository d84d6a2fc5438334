"""A server that speaks one of the dialects: collections, documents, searches."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any, Final

from wshard.search.documents import UnexpectedAnswer, as_dialect
from wshard.search.transport import SearchServerError, Transport

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from wshard.search.documents import Condition, DialectName, Document, Hit, Key, Request

__all__ = ["Client"]

# Statuses of a server that does not know an address or the fields of a request.
_MISUNDERSTOOD: Final = (400, 404, 405, 422)
_OTHER: Final = {"bridge": "server", "server": "bridge"}


class Client:
    """Carries out what a dialect words. Safe to use from several threads.

    Args:
        url: of the server.
        dialect: `"bridge"` or `"server"`.
        timeout: seconds after which a try is given up.
        api_key: the server's token.
        retries: how often a request is sent again.
    """

    def __init__(
        self,
        url: str,
        dialect: DialectName = "bridge",
        *,
        timeout: float = 30.0,
        api_key: str | None = None,
        retries: int = 3,
    ) -> None:
        self._words = as_dialect(dialect)
        self.dialect = dialect
        self._transport = Transport(url, timeout=timeout, api_key=api_key, retries=retries)

    @property
    def url(self) -> str:
        """Of the server, without secrets."""
        return self._transport.url

    def create(self, collection: str, dimension: int) -> bool:
        """Makes a collection; False if there is one of that name."""
        *others, last = self._words.create(collection, dimension)
        for request in (*others, last):
            try:
                self._send(request)
            except SearchServerError as error:  # noqa: PERF203 - two rounds at most
                if error.status == 409 or (
                    error.status == 400 and "already exists" in error.answer.lower()
                ):
                    return False
                if error.status != 403 or request is last:
                    raise
            else:
                return True
        raise AssertionError

    def insert(self, collection: str, documents: Sequence[Document]) -> None:
        """Stores documents, in one request.

        Raises:
            SearchServerError: the server refused all or some of them; the others are stored.
        """
        if not documents:
            return
        request = self._words.insert(collection, documents)
        answer = self._send(request)
        try:
            refused = self._words.refused(answer, len(documents))
        except UnexpectedAnswer as error:
            raise self._unexpected(request, error) from None
        if refused:
            number, reason = min(refused.items())
            about = documents[number].facts if 0 <= number < len(documents) else None
            raise self._transport.error(
                request,
                f"the server stored {len(documents) - len(refused)} of {len(documents)} documents",
                number=errno.EIO,
                found=f"{reason!r:.200}" + ("" if about is None else f" for {about.file_path}"),
                hint="if the collection was made with another dimension, "
                "drop it or give other names for the collections",
            )

    def search(
        self,
        collection: str,
        vector: Sequence[float],
        top_k: int,
        conditions: Sequence[Condition] = (),
    ) -> list[Hit]:
        """The nearest documents that fulfil all conditions, nearest first."""
        request = self._words.search(collection, vector, top_k, conditions)
        return self._hits(request)[:top_k]

    def stored_ids(
        self, collection: str, vector: Sequence[float], keys: Collection[Key]
    ) -> list[Any]:
        """The ids of what is stored about these episodes; none where storing replaces it anyway."""
        names = sorted({episode_id for episode_id, _ in keys})
        wanted: dict[Any, bool] = {}
        while names:
            # A page that brings nothing new is the last; servers may give short ones before.
            known = len(wanted)
            request = self._words.stored(collection, vector, names, known)
            for hit in [] if request is None else self._hits(request):
                key = hit.metadata.get("episode_id"), hit.metadata.get("chunk_index")
                wanted[hit.id] = any(key == one for one in keys)
            if len(wanted) == known:
                break
        return [id_ for id_, is_wanted in wanted.items() if is_wanted]

    def delete(self, collection: str, ids: Sequence[Any]) -> None:
        """Removes documents, one by one as the server wants it."""
        for id_ in ids:
            self._send(self._words.delete(collection, id_))

    def _hits(self, request: Request) -> list[Hit]:
        answer = self._send(request)
        try:
            return self._words.hits(answer)
        except UnexpectedAnswer as error:
            raise self._unexpected(request, error) from None

    def _send(self, request: Request) -> Any:  # noqa: ANN401 - JSON
        try:
            return self._transport.send(request)
        except SearchServerError as error:
            if error.status in _MISUNDERSTOOD:
                hint = f'a server that speaks otherwise needs dialect="{_OTHER[self.dialect]}"'
                error.hint = hint if error.hint is None else f"{error.hint}; {hint}"
            raise

    def _unexpected(self, request: Request, error: UnexpectedAnswer) -> SearchServerError:
        return self._transport.error(
            request,
            f"the answer does not fit the {self.dialect} dialect",
            number=errno.EPROTO,
            expected=str(error),
            hint=f'a server that speaks otherwise needs dialect="{_OTHER[self.dialect]}"',
        )

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_words"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._words = as_dialect(self.dialect)

    def __repr__(self) -> str:
        return f"<Client {self.url}, {self.dialect} dialect>"
