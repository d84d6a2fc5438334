"""The client of a search server: sends what a dialect words, in bounded time, size and tries.

Redirects are not followed, so the token never goes to another host.
"""

from __future__ import annotations

import errno
import json
import os
import re
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

from shard_format import http
from shard_format.canonical_json import parse as parse_json
from shard_format.errors import BadMetadata, InvalidArgument, LimitExceeded, ShardIOError
from shard_format.extras import require
from shard_format.registry import Limits
from wshard.search._dialects import DIALECTS, Request, ServerDialect, UnexpectedAnswer
from wshard.search._id_map import IdMap, default_path

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from typing_extensions import Unpack

    from shard_format.errors import Facts
    from wshard.search._dialects import DialectName, Document, Filter, Hit, Key

_MOST_ANSWERED: Final = 16 << 20
# Vectors are long lists of numbers.
_ANSWER_LIMITS: Final = Limits(max_json_bytes=_MOST_ANSWERED, max_json_nodes=_MOST_ANSWERED // 16)
_MOST_REFUSAL: Final = 4096
# Documents that are looked at together before they are deleted.
_LOOKED_AT: Final = 100
# A document that does not exist, depending on the operation.
_ABSENT: Final = frozenset({404, 500})
_READY: Final = Request("/readyz", None, is_repeatable=True, method="GET")
# The server refused before it did anything: any request may be sent again.
_BUSY: Final = frozenset({429, 503})
# The server may have done something: only a repeatable request may be sent again.
_UNSURE: Final = frozenset({408, 502, 504})
# A server that knows neither the address nor the fields of a request may speak the other dialect.
_MISUNDERSTOOD: Final = frozenset({400, 404, 405, 422})
_OTHER: Final = {"bridge": "server", "server": "bridge"}
_HINTS: Final = {
    401: "pass the server's token as api_key=",
    403: "the token lacks a permission that this needs",
    404: "check the URL and the collection's name; ensure_collections() creates the collections",
    413: "lower batch_size",
    429: "the server limits requests: raise batch_size, lower jobs, or try later",
    500: "check that the collection exists (ingesting creates it); the server's log may say more",
    503: "the server is starting or overloaded: try later",
}
Parsed = TypeVar("Parsed")
_sleep = time.sleep


class SearchServerError(ShardIOError):
    """The server cannot be reached, refuses, or gives an unusable answer.

    `path` is the address without secrets, `errno` says what kind of failure it is.
    """

    status: int | None = None
    """Of the HTTP answer; None if there was none."""
    answer: str = ""
    """The beginning of what the server said when it refused."""
    may_retry: bool = False
    """Whether sending the request again is safe and may help."""
    retry_after_s: float = 0.0
    """How long the server asks to wait before that."""

    def __reduce__(self) -> tuple[Any, ...]:
        rebuild, (kind, problem, state) = super().__reduce__()
        return rebuild, (kind, problem, {**state, "status": self.status, "answer": self.answer})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How to talk to a search server; the defaults suit a server nearby."""

    dialect: DialectName = "server"
    """`"server"` for the public DeepData server, `"bridge"` for servers that speak as the first bridge did."""
    timeout: float = 30.0
    """Seconds for one try, the whole answer included."""
    retries: int = 3
    """How often to send a request again after a failure, where that is safe."""
    batch_size: int = 256
    """Documents in one request, at most."""
    episodes: str = "traj_episodes"
    """The collection of episodes."""
    windows: str = "traj_timesteps"
    """The collection of windows."""
    tenant: str | None = None
    """Whose collections these are, sent as `X-Tenant-ID`; None for the server's default."""
    requests_per_second: float = 90.0
    """The client waits rather than send more. The public server refuses more than 100."""
    id_map: str | os.PathLike[str] | None = None
    """The file in which the ingestor keeps the ids that the public server gives; None for
    `shard-format/search-ids.sqlite` in `$XDG_STATE_HOME` or `~/.local/state`."""

    def __post_init__(self) -> None:
        if self.dialect not in DIALECTS:
            raise InvalidArgument(
                "unknown dialect", expected=" or ".join(DIALECTS), found=repr(self.dialect)
            )
        if self.tenant is not None and not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", self.tenant):
            raise InvalidArgument(
                "not a tenant",
                expected="up to 64 letters, digits, _ and -",
                found=repr(self.tenant),
            )
        for name, value, fits, expected in (
            ("timeout", self.timeout, 0 < self.timeout <= 86_400, "above 0, at most 86400 seconds"),
            ("retries", self.retries, self.retries >= 0, "at least 0"),
            ("batch_size", self.batch_size, 1 <= self.batch_size <= 10_000, "1 to 10000"),
            (
                "requests_per_second",
                self.requests_per_second,
                self.requests_per_second > 0,
                "above 0",
            ),
        ):
            if not fits:
                raise InvalidArgument(f"{name} is out of range", expected=expected, found=value)


class SearchClient:
    """Collections, documents and searches on one server. Safe to use from several threads.

    Args:
        url: `http://host:port` or `https://…`, with a path in front of the server's own if needed.
        api_key: the server's token, sent as `Authorization: Bearer …`.
        options: timeouts, retries, batches and names.
    """

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        options: ServerOptions | None = None,
    ) -> None:
        self.options = options or ServerOptions()
        self.url = _checked_url(url)
        """The address of the server, without secrets."""
        if api_key is not None and not re.fullmatch(r"[\x21-\x7e]+", api_key):
            raise InvalidArgument("api_key has characters that a header cannot have")
        self._words = DIALECTS[self.options.dialect]
        self._key = api_key
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if api_key is not None:
            headers["Authorization"] = f"Bearer {api_key}"
        if self.options.tenant is not None:
            headers["X-Tenant-ID"] = self.options.tenant
        require("urllib3", "search")
        self._http = http.Client(http.Address.parse(self.url), headers, self.options.timeout)
        self._tenant = self.options.tenant or "default"
        self._pace = _Pace(self.options.requests_per_second)
        path = self.options.id_map
        self._ids = IdMap(
            default_path() if path is None else os.fspath(path), f"{self.url} {self._tenant}"
        )

    def is_ready(self) -> bool:
        """Whether the server takes requests; it does not while it starts."""
        try:
            self._attempt(_READY, lambda answer: None)
        except SearchServerError as error:
            if error.status == 503:
                return False
            raise
        return True

    def create(self, collection: str, dimension: int) -> None:
        """Create a collection, unless there is one of that name."""
        try:
            self._send_one(self._words.create(collection, dimension, self._tenant))
        except SearchServerError as error:
            exists = error.status == 400 and "already exists" in error.answer.lower()
            if not exists and error.status != 409:
                raise

    def drop(self, collection: str) -> None:
        """Remove a collection with all its documents, if there is one of that name."""
        try:
            self._send_one(self._words.drop(collection, self._tenant))
        except SearchServerError as error:
            if error.status != 404 and "not found" not in error.answer.lower():
                raise
        self._ids.forget_all(collection)

    def _send_one(self, requests: Sequence[Request]) -> None:
        """Send the first request that the server does not forbid."""
        for request in requests:
            try:
                return self._send(request, lambda answer: None)
            except SearchServerError as error:  # noqa: PERF203 - two at most
                if error.status != 403 or request is requests[-1]:
                    raise
        return None

    def replace(self, collection: str, documents: Sequence[Document], new: Collection[Key]) -> None:
        """Store documents, and remove the older ones of the episodes `new`, whose first documents these are.

        The old documents go last: until then a search finds both, and `TrajectoryRetriever` shows the newer one.

        Raises:
            SearchServerError: the server refused all or some of them; the others are stored.
        """
        words = self._words
        if not isinstance(words, ServerDialect):
            return self._insert(collection, documents)
        self._ids.mark_old(collection, new)
        self._insert(collection, documents)
        old = self._ids.old(collection, new)
        for some in _parts(sorted(old), _LOOKED_AT):
            there = self._documents(words, collection, some)
            for id_ in some:
                # A server that lost its data has given the id to something else since.
                if there.get(id_, {}).get("episode_id") == old[id_]:
                    self._delete(words, collection, id_)
            self._ids.forget(collection, some)
        return None

    def _documents(
        self, words: ServerDialect, collection: str, ids: Sequence[int]
    ) -> dict[int, dict[str, Any]]:
        """The metadata of documents that exist, by id."""
        try:
            return self._send(words.get(collection, ids), words.documents)
        except SearchServerError as error:
            if error.status not in _ABSENT:
                raise
        if len(ids) == 1:
            return {}
        # One that does not exist can make the server refuse all.
        found: dict[int, dict[str, Any]] = {}
        for id_ in ids:
            found |= self._documents(words, collection, [id_])
        return found

    def _delete(self, words: ServerDialect, collection: str, id_: int) -> None:
        try:
            self._send(words.delete(collection, id_), lambda answer: None)
        except SearchServerError as error:
            if error.status not in _ABSENT:  # another process was faster
                raise

    def _insert(self, collection: str, documents: Sequence[Document]) -> None:
        """Store documents, in one request."""
        request = self._words.insert(collection, documents)
        inserted = self._send(request, partial(self._words.inserted, count=len(documents)))
        if inserted.ids:
            self._ids.add(
                collection, ((documents[number].key, id_) for number, id_ in inserted.ids.items())
            )
        if refused := inserted.refused:
            number, reason = min(refused.items())
            place = (
                f" for {documents[number].facts['file_path']}" if number < len(documents) else ""
            )
            raise self._error(
                request,
                f"the server stored {len(documents) - len(refused)} of {len(documents)} documents",
                errno.EIO,
                found=f"{reason!r:.200}{place}",
                hint="if the collection has another dimension, drop it or name other collections",
            )

    def search(
        self,
        collection: str,
        vector: Sequence[float],
        top_k: int,
        filters: Sequence[Filter] = (),
    ) -> list[Hit]:
        """The nearest documents that pass all filters, nearest first."""
        request = self._words.search(collection, vector, top_k, filters)
        return self._send(request, self._words.hits)[:top_k]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.url, self._key, self.options)

    # --- HTTP

    def _send(self, request: Request, parse: Callable[[Any], Parsed]) -> Parsed:
        """The answer, parsed by the dialect. Pauses and tries again where that is safe."""

        def attempt() -> Parsed:
            self._pace.wait()
            try:
                return self._attempt(request, parse)
            except SearchServerError as error:
                if error.may_retry:
                    raise http.TryAgain(error, error.retry_after_s) from error.__cause__
                raise

        return http.retrying(attempt, self.options.retries)

    def _attempt(self, request: Request, parse: Callable[[Any], Parsed]) -> Parsed:
        body = None
        if request.body is not None:
            body = json.dumps(request.body, allow_nan=False, separators=(",", ":")).encode()
        address = http.Address.parse(self.url + request.path)
        try:
            with self._http.request(request.method, address, {}, body) as answer:
                most = _MOST_REFUSAL if answer.status >= 300 else _MOST_ANSWERED
                answered = b"".join(answer.pieces(most + 1))
        except http.Broken as broken:
            raise self._broken(request, broken) from broken.__cause__
        if answer.status >= 300:
            raise self._refusal(request, answer, answered)
        if len(answered) > most:
            found = f"more than {most} bytes"
            raise self._error(request, "the answer is too large", errno.EMSGSIZE, found=found)
        try:
            return parse(parse_json(answered, "the answer", _ANSWER_LIMITS) if answered else None)
        except UnexpectedAnswer as misfit:
            problem = f"the answer does not fit the {self.options.dialect} dialect"
            hint = self._other_dialect()
            failure = self._error(request, problem, errno.EPROTO, expected=str(misfit), hint=hint)
        except LimitExceeded as error:
            failure = self._error(request, error.problem, errno.EMSGSIZE, found=error.found)
        except BadMetadata:
            found = repr(self._shown(answered, 80))
            hint = "is this the address of the vector database?"
            problem = "the answer is not JSON"
            failure = self._error(request, problem, errno.EPROTO, found=found, hint=hint)
        failure.status = answer.status
        raise failure

    # --- failures

    def _error(
        self, request: Request, problem: str, number: int, **facts: Unpack[Facts]
    ) -> SearchServerError:
        """The error for a request, with its address."""
        where = self.url + request.path
        error = SearchServerError(problem, **facts)
        error.path = where
        error.errno, error.strerror, error.filename = number, problem, where
        return error

    def _other_dialect(self) -> str:
        return f'a server that speaks the other dialect needs ServerOptions(dialect="{_OTHER[self.options.dialect]}")'

    def _refusal(self, request: Request, answer: http.Answer, answered: bytes) -> SearchServerError:
        status = answer.status
        text = self._shown(answered, 200)
        hints = [_HINTS[status]] if status in _HINTS else []
        if status < 400:
            target = answer.header("Location").partition("?")[0]
            where = self._shown(target.encode(), 200)
            hints = [f"redirects are not followed: use the address it points to, {where}"]
        if status in _MISUNDERSTOOD:
            hints.append(self._other_dialect())
        error = self._error(
            request,
            f"the server answered {status}" + (f": {text}" if text else ""),
            errno.EACCES if status in (401, 403) else errno.EIO,
            hint="; ".join(hints) or None,
        )
        error.status, error.answer = status, text
        error.may_retry = status in _BUSY or (status in _UNSURE and request.is_repeatable)
        error.retry_after_s = answer.retry_after_s()
        return error

    def _broken(self, request: Request, broken: http.Broken) -> SearchServerError:
        """What to say about a failed connection, and whether the request may be sent again."""
        hint = broken.hint
        if broken.was_sent and broken.may_pass and not request.is_repeatable:
            hint += "; it may have been carried out: ingest again, searches show only the newest"
        failure = self._error(
            request,
            broken.problem,
            broken.number,
            expected=broken.expected,
            found=broken.found,
            hint=hint,
        )
        failure.may_retry = broken.may_pass and (request.is_repeatable or not broken.was_sent)
        return failure

    def _shown(self, said: bytes, most: int) -> str:
        """What a server says, fit to be shown: one line, and without the token if it repeats that."""
        text = said.decode("utf-8", "replace")
        if self._key is not None:
            text = text.replace(self._key, "…")
        text = " ".join(text.split())
        text = "".join(letter if letter.isprintable() else "?" for letter in text)
        return text if len(text) <= most else text[:most] + "…"


class _Pace:
    """Limits the requests per second, with a bucket that fills at this rate and is full at the start."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._tokens = self._most = max(1.0, per_second / 2)
        self._filled = time.monotonic()
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Wait for a turn."""
        with self._lock:
            now = time.monotonic()
            self._tokens += (now - self._filled) * self._per_second
            self._tokens = min(self._tokens, self._most) - 1
            self._filled = now
            missing = -self._tokens
        if missing > 0:
            _sleep(missing / self._per_second)


def _parts(items: Sequence[int], size: int) -> Iterable[Sequence[int]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _checked_url(url: str) -> str:
    """The address with its port. Refuses the parts of a URL that may be secret, without showing them."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except (TypeError, ValueError, AttributeError):
        raise InvalidArgument("not a URL", expected="http://host:port") from None
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise InvalidArgument(
            "the URL has more than an address",
            expected="http://host:port",
            found="a user, a query or a fragment, not shown",
            hint="pass the server's token as api_key=",
        )
    if parts.scheme not in ("http", "https") or not host or re.search(r"[^\x21-\x7e]", url):
        raise InvalidArgument(
            "not the address of a server", expected="http://host:port", found=repr(url)
        )
    shown = f"[{host}]" if ":" in host else host
    port = port or (443 if parts.scheme == "https" else 80)
    return f"{parts.scheme}://{shown}:{port}{parts.path.rstrip('/')}"
