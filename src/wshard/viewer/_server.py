"""The server of `wshard view`: one page, and ranges of the files that were named, for this user's browser alone.

Every request must name this server as its host (else 421: a name of another site that leads here), must not come from
a page of another site (403), and must carry the token (401). The page itself holds no data: it needs no token, and a
link on another site may lead to it. Nothing can
be written, and no path comes from the client: files have numbers.
"""

from __future__ import annotations

import errno
import gzip
import io
import ipaddress
import json
import os
import re
import secrets
import socket
import socketserver
import sys
import threading
import time
from functools import cached_property
from hmac import compare_digest
from http import HTTPStatus
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final

from shard_format.errors import ShardError, ShardIOError, TransportError, UnsafePath
from wshard.viewer._episodes import EpisodeList
from wshard.viewer._files import LARGEST_RANGE
from wshard.viewer._page import configured, policy_of, viewer_page

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from wshard.viewer._episodes import OpenPack
    from wshard.viewer._files import OpenedFile, ViewedFile, ViewedFiles

LOOPBACK: Final = "127.0.0.1"

_PIECE_BYTES: Final = 4 << 20
_PART_BYTES: Final = 64 << 10
_LONGEST_LINE: Final = 8 << 10
_LONGEST_HEAD: Final = 32 << 10
# A browser opens six connections to a server, and some more for pages in other tabs.
_MOST_CONNECTIONS: Final = 64
_LARGEST_NUMBER: Final = 18  # digits: far beyond any file, and small for `int`
_RANGE: Final = re.compile(r"bytes=([0-9]*)-([0-9]*)")
_WITH_PORT: Final = re.compile(r":[0-9]+\Z")
_NO_WEIGHT: Final = re.compile(r"\s*q\s*=\s*0(\.0*)?\s*", re.IGNORECASE)
_NUMBERED: Final = re.compile(r"/(f|findings)/([0-9]{1,9})")
_HEADERS: Final = {
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_FAILED: Final = HTTPStatus.INTERNAL_SERVER_ERROR
_JSON: Final = "application/json"
_TEXT: Final = "text/plain; charset=utf-8"


class RequestRefused(Exception):
    """The request gets a different answer than what it asked for.

    Args:
        status: of the answer.
        text: says why, and what would be right.
        headers: more headers of the answer.
    """

    def __init__(self, status: HTTPStatus, text: str, **headers: str) -> None:
        super().__init__(text)
        self.status, self.text, self.headers = status, text, headers


class _Idle(Exception):
    """No request came for the time after which the server ends."""


class ViewerServer(ThreadingHTTPServer):
    """Shows files in the browser of this user, until it is closed.

    Args:
        files: what the page may read.
        host: the address to listen at. With one other than the loopback, other machines can reach the server.
        port: 0 for any that is free.
        idle_s: ends `serve` after this time without a request; None for never.
        open_pack: opens packs of episodes for the table of episodes.
        findings: takes the path or URL of a file and returns what the doctor says about it, as JSON.

    Raises:
        ShardIOError: the address cannot be used.
        FileMissing: the page has not been built.
    """

    daemon_threads = True
    request_queue_size = _MOST_CONNECTIONS
    # So that a server can begin where one has just ended. On Windows it would mean that two could.
    allow_reuse_address = os.name != "nt"

    def __init__(
        self,
        files: ViewedFiles,
        *,
        host: str = LOOPBACK,
        port: int = 0,
        idle_s: float | None = None,
        open_pack: OpenPack | None = None,
        findings: Callable[[str], bytes] | None = None,
    ) -> None:
        page = configured(viewer_page(), {"server": True})
        self.page, self.policy = page.encode(), policy_of(page)
        self.files, self.findings = files, findings
        self.rows = EpisodeList(files, open_pack)
        self.idle_s = idle_s
        self.seconds_for_a_request = 20.0
        """How long a client may take to send a request, and to take the next bytes of an answer."""
        self._token = secrets.token_urlsafe(32)
        self._room = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        # The doctor reads whole files: one at a time.
        self.examining = threading.Lock()
        self.last_request = time.monotonic()
        # As browsers write it: they name the server in each request.
        address = _address(host.strip("[]"))
        host = host if address is None else str(address)
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise ShardIOError.wrap(error, "cannot listen", f"{_bracketed(host)}:{port}") from error
        self._host = host

    def server_bind(self) -> None:
        """Binds the address, without asking a name server for its name as the base class does."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    @cached_property
    def packed_page(self) -> bytes:
        """The page as gzip. It is made when a browser first asks, so that the server starts without waiting for it."""
        return gzip.compress(self.page, 6, mtime=0)

    @property
    def url(self) -> str:
        """The address to open in a browser. It holds the token, which gives access to the files."""
        address = _address(self._host)
        is_any = address is not None and address.is_unspecified
        host = socket.gethostname() if is_any else self._host
        return f"http://{_bracketed(host)}:{self.server_port}/#token={self._token}"

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return _is_loopback(self._host)

    def serve(self) -> None:
        """Answers until another thread calls `shutdown`, or until no request came for `idle_s`."""
        try:
            self.serve_forever(poll_interval=0.2)
        except _Idle:
            return

    def service_actions(self) -> None:
        """Called between requests: ends an idle server."""
        if self.idle_s is not None and time.monotonic() - self.last_request > self.idle_s:
            raise _Idle

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as in the base
        """Answers in another thread, unless too many connections are open."""
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as in the base
        """Answers the requests of one connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as in the base
        """Ignores clients that hang up; anything else is a mistake in this module, and is printed."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def is_own_host(self, host: str | None) -> bool:
        """Whether a request names this server: otherwise the browser shows another site, whose name leads here."""
        if host is None:
            return False
        if not _WITH_PORT.search(host):
            host += ":80"
        name, _, port = host.lower().rpartition(":")
        if port != str(self.server_port):
            return False
        if name == _bracketed(self._host).lower():
            return True
        if _is_loopback(self._host):
            return name == "localhost"
        # The name of a site is not an address, nor that of this machine.
        return _address(name.strip("[]")) is not None or name == socket.gethostname().lower()

    def is_token(self, authorization: str | None) -> bool:
        """Whether the header `Authorization` has the token. Takes the same time for every wrong one."""
        given = (authorization or "").encode("utf-8", "surrogateescape")
        return compare_digest(given, f"Bearer {self._token}".encode())

    def __enter__(self) -> Self:
        return self


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _is_loopback(host: str) -> bool:
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


# --- requests


class _Inbox(io.RawIOBase):
    """What a client sends, bounded in bytes and time for each request."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection, self._seconds = connection, seconds
        self._deadline, self._room = 0.0, 0

    def begin(self) -> None:
        """Another request begins."""
        self._deadline, self._room = time.monotonic() + self._seconds, _LONGEST_HEAD

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - as in the base
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        if self._room <= 0:
            raise HTTPException("the head of the request is too long")
        self._connection.settimeout(left)
        received = self._connection.recv_into(buffer)
        self._room -= received
        return received


class _Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    server: ViewerServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "wshard", ""
    default_request_version = "HTTP/1.0"  # of a request without one; older ones have no headers
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self._inbox = _Inbox(self.connection, self.server.seconds_for_a_request)
        self.rfile = io.BufferedReader(self._inbox)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: ANN401 - as in the base
        """Writes no log."""

    def version_string(self) -> str:
        return self.server_version

    def handle_one_request(self) -> None:
        """Reads one request and answers it."""
        self._inbox.begin()
        self.command = self.requestline = self.request_version = ""
        try:
            self.raw_requestline = self.rfile.readline(_LONGEST_LINE + 1)
            if not self.raw_requestline:
                self.close_connection = True
            elif len(self.raw_requestline) > _LONGEST_LINE:
                self.send_error(HTTPStatus.REQUEST_URI_TOO_LONG)
            elif self.parse_request():
                self.connection.settimeout(self.server.seconds_for_a_request)
                self._answer()
        except (TimeoutError, ConnectionError):
            self.close_connection = True

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answers a request that cannot be understood; the base class calls it."""
        status = HTTPStatus(code)
        self.close_connection = True
        self._reply(status, (message or explain or status.phrase).encode(), _TEXT)

    def _answer(self) -> None:
        try:
            self._check()
            if self.path == "/":
                self._reply_page()
                return
            self._check_token()
            self._count_request()
            self._answer_with_data()
            self._count_request()
        except RequestRefused as refused:
            text = refused.text.encode(errors="replace")
            self._reply(refused.status, text, _TEXT, refused.headers)

    def _count_request(self) -> None:
        # A page asks for new files as long as it is open.
        if self.path != "/files.json":
            self.server.last_request = time.monotonic()

    def _check(self) -> None:
        """Refuses what no page of this server asks for."""
        hosts = self.headers.get_all("Host") or [""]
        if len(hosts) != 1 or not self.server.is_own_host(hosts[0]):
            self.close_connection = True
            raise RequestRefused(HTTPStatus.MISDIRECTED_REQUEST, "this server has another name")
        site = self.headers.get("Sec-Fetch-Site", "none")
        origin = self.headers.get("Origin", f"http://{hosts[0]}")
        # The page holds no data, and a link to it may be anywhere: in a terminal that is a web page, too.
        is_link = self.path == "/" and self.headers.get("Sec-Fetch-Dest") == "document"
        if (
            not (site in ("same-origin", "none") or is_link)
            or origin.lower() != f"http://{hosts[0].lower()}"
        ):
            self.close_connection = True
            raise RequestRefused(HTTPStatus.FORBIDDEN, "only the page of this server may ask it")
        if self.command not in ("GET", "HEAD"):
            self.close_connection = True
            raise RequestRefused(
                HTTPStatus.METHOD_NOT_ALLOWED, "files can only be read", Allow="GET, HEAD"
            )
        if "Content-Length" in self.headers or "Transfer-Encoding" in self.headers:
            self.close_connection = True
            raise RequestRefused(HTTPStatus.BAD_REQUEST, "expected a request without a body")

    def _check_token(self) -> None:
        if not self.server.is_token(self.headers.get("Authorization")):
            raise RequestRefused(
                HTTPStatus.UNAUTHORIZED,
                "the token is missing or wrong; open the address that 'wshard view' printed",
                **{"WWW-Authenticate": "Bearer"},
            )

    def _answer_with_data(self) -> None:
        files = self.server.files
        try:
            if self.path == "/files.json":
                self._reply_json(files.document())
                return
            if self.path == "/episodes.json":
                self._reply_json(self.server.rows.document())
                return
            match = _NUMBERED.fullmatch(self.path)
            file = None if match is None else files.find(int(match[2]))
            if match is None or file is None:
                raise RequestRefused(
                    HTTPStatus.NOT_FOUND, "no such file; GET /files.json lists the files"
                )
            if match[1] == "findings":
                self._reply_findings(file)
            else:
                opened = files.open(file)
                try:
                    self._send_range(file, opened)
                finally:
                    opened.close()
        except ShardError as error:
            raise RequestRefused(_status_of(error), str(error)) from None

    # --- answers

    def _send_range(self, file: ViewedFile, opened: OpenedFile) -> None:
        tag = f'"{opened.tag}"'
        headers = {"Accept-Ranges": "bytes", "ETag": tag}
        if self.command == "HEAD":
            self._begin(HTTPStatus.OK, opened.size, "application/octet-stream", headers)
            return
        if self.headers.get("If-Range", tag) != tag:
            raise RequestRefused(HTTPStatus.PRECONDITION_FAILED, "the file has changed", ETag=tag)
        start, stop = _range_of(self.headers.get_all("Range") or [], opened.size)
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{opened.size}"
        status, kind = HTTPStatus.PARTIAL_CONTENT, "application/octet-stream"
        if opened.file is not None:
            self._begin(status, stop - start, kind, headers)
            sent = self.connection.sendfile(opened.file, start, stop - start)
            # A file that has become shorter: the client sees that bytes are missing.
            self.close_connection |= sent != stop - start
            return
        assert opened.source is not None
        has_begun = False
        try:
            for at in range(start, stop, _PIECE_BYTES):
                piece = opened.source.read_at(at, min(_PIECE_BYTES, stop - at))
                if not has_begun:
                    self._begin(status, stop - start, kind, headers)
                    has_begun = True
                self._write(piece)
        except ShardError:
            self.server.files.forget(file)
            if not has_begun:
                raise
            self.close_connection = True

    def _reply_page(self) -> None:
        body = self.server.page
        headers = {"Content-Security-Policy": self.server.policy, "Vary": "Accept-Encoding"}
        if _accepts_gzip(self.headers.get("Accept-Encoding", "")):
            body = self.server.packed_page
            headers["Content-Encoding"] = "gzip"
        self._reply(HTTPStatus.OK, body, "text/html; charset=utf-8", headers)

    def _reply_findings(self, file: ViewedFile) -> None:
        if self.server.findings is None:
            raise RequestRefused(HTTPStatus.NOT_FOUND, "this server does not examine files")
        with self.server.examining:
            found = self.server.findings(file.location)
        self._reply(HTTPStatus.OK, found, _JSON)

    def _reply_json(self, document: dict[str, Any]) -> None:
        # ASCII only: names may be no Unicode.
        self._reply(HTTPStatus.OK, json.dumps(document, separators=(",", ":")).encode(), _JSON)

    def _reply(
        self, status: HTTPStatus, body: bytes, kind: str, headers: dict[str, str] | None = None
    ) -> None:
        self._begin(status, len(body), kind, headers or {})
        if self.command != "HEAD":
            self._write(body)

    def _write(self, data: bytes) -> None:
        # In parts: the time that a client may take counts for each.
        for at in range(0, len(data), _PART_BYTES):
            self.wfile.write(memoryview(data)[at : at + _PART_BYTES])

    def _begin(self, status: HTTPStatus, length: int, kind: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()


def _accepts_gzip(accepted: str) -> bool:
    """What an `Accept-Encoding` says about gzip."""
    for one in accepted.split(","):
        coding, _, weight = one.partition(";")
        if coding.strip().lower() == "gzip":
            return _NO_WEIGHT.fullmatch(weight) is None
    return False


def _range_of(given: list[str], size: int) -> tuple[int, int]:
    """The first byte and the end of the one range that a request asks for."""
    expected = (
        f"expected one range of at most {LARGEST_RANGE} bytes, such as 'Range: bytes=0-65535'"
    )
    match = _RANGE.fullmatch(given[0]) if len(given) == 1 else None
    if match is None or not any(match.groups()):
        raise RequestRefused(HTTPStatus.BAD_REQUEST, expected)
    first, last = match.groups()
    if max(len(first), len(last)) > _LARGEST_NUMBER:
        raise RequestRefused(HTTPStatus.BAD_REQUEST, expected)
    start = int(first) if first else max(0, size - int(last))
    stop = min(int(last) + 1, size) if first and last else size
    if first and last and int(last) < start:
        raise RequestRefused(HTTPStatus.BAD_REQUEST, expected)
    if start >= size:
        outside = {"Content-Range": f"bytes */{size}"}
        raise RequestRefused(
            HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, f"the file has {size} bytes", **outside
        )
    if stop - start > LARGEST_RANGE:
        raise RequestRefused(HTTPStatus.BAD_REQUEST, expected)
    return start, stop


def _status_of(error: ShardError) -> HTTPStatus:
    if isinstance(error, UnsafePath):
        return HTTPStatus.FORBIDDEN
    if isinstance(error, FileNotFoundError):
        return HTTPStatus.NOT_FOUND
    if isinstance(error, OSError) and error.errno == errno.ESTALE:  # the content of a URL changed
        return HTTPStatus.CONFLICT
    return HTTPStatus.BAD_GATEWAY if isinstance(error, TransportError) else _FAILED
