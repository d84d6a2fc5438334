"""Files on web servers, read with `Range` requests."""

from __future__ import annotations

import errno
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from shard_format._remote_source import OPEN_BYTES, RemoteSource, Version, printable, reopen, shown
from shard_format.errors import Closed, InvalidArgument, ShardIOError
from shard_format.http import (
    DEADLINE_S,
    Address,
    Broken,
    Client,
    Deadline,
    TryAgain,
    cut_off,
    retrying,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shard_format.http import Answer

# The largest file that is read whole from a server that knows no ranges.
_MOST_WHOLE = 1 << 26
_MOST_REDIRECTS = 5
# What a server answers to a request for the last bytes if it knows only other ranges, or none.
_NO_SUFFIXES = frozenset({200, 400, 416, 501})
_TRY_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
# What a signed address answers after its time.
_EXPIRED = frozenset({400, 401, 403, 404, 410})

_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})", re.IGNORECASE)
_EMPTY = re.compile(r"bytes \*/0", re.IGNORECASE)


class HttpSource(RemoteSource):
    """A file on a web server, read with `Range` requests over connections that are kept.

    A file on a server that knows no ranges is read whole when it is opened, if it has at most 64 MiB;
    a larger one is refused before its body is read. Redirects are followed, five at most and never from
    https to http; headers and credentials of the caller go only to the server they were meant for. The
    proxies of the environment (`http_proxy`, `https_proxy`, `no_proxy`) are used.

    A change of the file is noticed by its size and its ETag, or else its date. Of a server that states
    neither only the size tells.

    Threads may share it, forked processes make connections of their own, and it pickles as its URL with
    its options, credentials included, and opens that again.

    Owns: a client with its connections.

    Args:
        url: `http://` or `https://`; a user and password in it are sent as basic authorization.
        headers: sent with every request, such as `Authorization`.
        timeout: seconds for a whole request: the connection, redirects, and the answer. A second is
            added for each 64 KiB that are transferred.
        retries: how often one read tries again after a broken connection, a timeout, or an answer that
            means "later" (408, 425, 429, 500, 502, 503, 504), with growing pauses, or those the server asks for.
        deadline: seconds for all tries of one read; a second is added for each 64 KiB that came.
        tail: opening brings the end of the file instead of its beginning.
        first_read: how many bytes opening brings.

    Raises:
        TransportError: the server cannot be reached, fails, or breaks the protocol.
        ShardIOError: it refuses; `errno` is ENOENT for a missing file, EACCES for a forbidden one, ESTALE for one that
            changed while it was open.
        InvalidArgument: the URL or a header is malformed.
        MissingExtra: urllib3 is not installed (the extra `remote`).
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float = 30.0,
        retries: int = 4,
        deadline: float = DEADLINE_S,
        tail: bool = False,
        first_read: int = OPEN_BYTES,
    ) -> None:
        super().__init__(shown(url))
        self._first = Address.parse(url)
        numbers: dict[str, Any] = {"timeout": timeout, "deadline": deadline, "retries": retries}
        for option, value in numbers.items():
            least = -1 if option == "retries" else 0
            if not isinstance(value, (int, float)) or not value > least:
                raise InvalidArgument(
                    f"the storage option {option!r} cannot be used",
                    path=self.name,
                    expected=f"a number above {least}",
                    found=repr(value),
                )
        sent = _checked_headers(headers or {}, self.name)
        self._options = {"headers": dict(headers or {}), **numbers}
        self._retries, self._deadline_s = retries, deadline
        self._tail, self._first_read = tail, first_read
        # Where redirects led last time.
        self._address = self._first
        self._client = Client(
            self._first, sent, timeout, most_redirects=_MOST_REDIRECTS, use_proxies=True
        )
        try:
            limit = Deadline(deadline)
            retrying(lambda: self._open(limit), retries, limit)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        super().close()
        self._client.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return (reopen, (HttpSource, self._first.url, {**self._options, "tail": self._tail}))

    # --- what is asked and answered

    def _open(self, deadline: Deadline) -> None:
        asked = f"-{self._first_read}" if self._tail else f"0-{self._first_read - 1}"
        with self._answer(asked, deadline) as answer:
            if self._tail and answer.status in _NO_SUFFIXES:
                # The next try asks for the beginning.
                self._tail = False
            elif answer.status == 206:
                self._version = self._content_range(answer, None)
                length = min(self._first_read, self._version.size)
                data = b"".join(answer.pieces(length))
                if len(data) < length:
                    raise cut_off(length, len(data))
                self._keep(self._version.size - length if self._tail else 0, data)
            elif answer.status == 200:
                self._keep(0, self._whole(answer))
                self._version = Version(len(self._opened[1]), None, None)
            elif answer.status == 416 and _EMPTY.fullmatch(answer.header("Content-Range")):
                self._version = Version(0, None, None)
                self._keep(0, b"")
            else:
                raise self._refusal(answer)
        if not self._tail and asked.startswith("-"):
            self._open(deadline)

    def _fetch_into(self, offset: int, out: memoryview) -> None:
        done, length = 0, len(out)
        deadline = Deadline(self._deadline_s)

        def attempt() -> None:
            nonlocal done
            with self._answer(f"{offset + done}-{offset + length - 1}", deadline) as answer:
                if answer.status == 416:
                    raise self._changed(f"{self.size()} bytes", "fewer")
                if answer.status == 200:
                    raise self._no_ranges("the server answered with the whole file")
                if answer.status != 206:
                    raise self._refusal(answer)
                self._content_range(answer, (offset + done, offset + length))
                for piece in answer.pieces(length - done):
                    out[done : done + len(piece)] = piece
                    # After a break reading goes on here.
                    done += len(piece)
                    deadline.received(len(piece))
                if done < length:
                    raise cut_off(length, done)

        retrying(attempt, self._retries, deadline)

    def _content_range(self, answer: Answer, wanted: tuple[int, int] | None) -> Version:
        """What a partial answer is a part of; refuses one of another version or to another request.

        Args:
            answer: with status 206.
            wanted: first byte and end; None while the file is opened.
        """
        text = answer.header("Content-Range")
        match = _CONTENT_RANGE.fullmatch(text)
        if match is None:
            raise self._contradiction(
                "a Content-Range with the size of the file", repr(printable(text))
            )
        self._check_encoding(answer)
        first, last, size = (int(number) for number in match.groups())
        version = Version(size, answer.header("ETag"), answer.header("Last-Modified"))
        if wanted is None:  # opening asks for more than there may be
            start, stop = 0, min(self._first_read, size)
            if self._tail:
                start, stop = size - stop, size
        else:
            start, stop = wanted
            self._compare(version)
        if (first, last + 1) != (start, stop):
            raise self._contradiction(f"bytes {start} to {stop}", f"bytes {first} to {last + 1}")
        if answer.length is not None and answer.length != last + 1 - first:
            raise self._contradiction(
                f"a body of {last + 1 - first} bytes", f"Content-Length {answer.length}"
            )
        return version

    def _whole(self, answer: Answer) -> bytes:
        """The body of a server that knows no ranges, if it is small."""
        self._check_encoding(answer)
        length = answer.length
        if length is None and answer.header("Transfer-Encoding").lower() != "chunked":
            raise self._no_ranges("the server neither honours Range requests nor tells the size")
        body = b"".join(answer.pieces(_MOST_WHOLE + 1)) if (length or 0) <= _MOST_WHOLE else b""
        if max(length or 0, len(body)) > _MOST_WHOLE:
            raise self._no_ranges(
                "the server does not honour Range requests, and the file is too large to read whole",
                expected=f"at most {_MOST_WHOLE} bytes",
                found="more" if length is None else f"{length} bytes",
            )
        return body

    def _check_encoding(self, answer: Answer) -> None:
        encoding = answer.header("Content-Encoding").lower()
        if encoding not in ("", "identity"):
            raise self._contradiction(
                "the bytes of the file", f"Content-Encoding {printable(encoding)}"
            )

    # --- what goes wrong

    def _contradiction(self, expected: str, found: str) -> ShardIOError:
        return self._failure(
            errno.EPROTO,
            "the server's answer does not fit the request",
            expected=expected,
            found=found,
            hint="the server or a proxy mishandles Range requests: download the file and open that",
        )

    def _no_ranges(
        self, problem: str, *, expected: str | None = None, found: str | None = None
    ) -> ShardIOError:
        return self._failure(
            errno.EOPNOTSUPP,
            problem,
            expected=expected,
            found=found,
            hint="download the file and open that, or put it on a server that supports ranges",
        )

    def _refusal(self, answer: Answer) -> ShardIOError | TryAgain:
        status = answer.status
        number, hint = _STATUS_HINTS.get(status, (errno.EIO, _OTHER_HINT))
        line = f"{status} {printable(answer.reason)}".rstrip()
        error = self._failure(number, f"the server answered {line}", hint=hint)
        if status not in _TRY_AGAIN:
            return error
        error.hint = "try again later"
        return TryAgain(error, answer.retry_after_s())

    # --- requests

    @contextmanager
    def _answer(self, asked: str, deadline: Deadline) -> Iterator[Answer]:
        """The answer to a request for these bytes, after redirects."""
        if self._closed:
            raise Closed("the source is closed", path=self.name)
        headers = {"Range": f"bytes={asked}", "Accept-Encoding": "identity"}
        try:
            for address in dict.fromkeys((self._address, self._first)):
                left = deadline.seconds_left()
                with self._client.request("GET", address, headers, timeout=left) as answer:
                    if answer.status in _EXPIRED and address != self._first:
                        continue
                    if answer.status == 206:
                        self._address = answer.address
                    yield answer
                    return
        except Broken as broken:
            error = self._failure(
                broken.number,
                broken.problem,
                expected=broken.expected,
                found=broken.found,
                hint=broken.hint,
            )
            try:
                raise (TryAgain(error) if broken.may_pass else error) from broken.__cause__
            finally:
                del error  # the traceback has this frame


_OTHER_HINT = "check the URL"
_STATUS_HINTS: dict[int, tuple[int, str]] = {
    401: (errno.EACCES, "pass credentials: headers={'Authorization': …}"),
    403: (errno.EACCES, "check the credentials, or whether a signed URL has expired"),
    404: (errno.ENOENT, "check the URL"),
    407: (errno.EACCES, "the proxy wants credentials: put them into its URL"),
    410: (errno.ENOENT, "check the URL"),
    429: (errno.EAGAIN, _OTHER_HINT),
}


_OWN_HEADERS = frozenset(
    {"accept-encoding", "connection", "content-length", "range", "te", "transfer-encoding"}
)


def _checked_headers(headers: Mapping[str, Any], name: str) -> dict[str, str]:
    """Headers that can be sent; messages do not repeat values, which may be secret."""
    for key, value in headers.items():
        if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", key) or key.lower() in _OWN_HEADERS:
            raise InvalidArgument(f"this header cannot be set: {key!r}", path=name)
        if not isinstance(value, str) or not re.fullmatch(r"[\t -~\u00a0-\u00ff]*", value):
            raise InvalidArgument(f"the value of the header {key!r} cannot be sent", path=name)
    # Names are the same in any case; `title` makes them replace our own.
    return {key.title(): value for key, value in headers.items()}
