"""Connections to web servers: addresses, proxies, headers, and the sockets that are kept."""

from __future__ import annotations

import base64
import os
import re
import ssl
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from shard_format._remote_source import CONNECTIONS, shown
from shard_format.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping
    from http.client import HTTPResponse

WEB_SCHEMES = ("http", "https")
# The rest of an answer up to this size is read, so that its connection can be kept.
_LITTLE = 1 << 12
_OWN_HEADERS = frozenset(
    {"accept-encoding", "connection", "content-length", "range", "te", "transfer-encoding"}
)


@dataclass(frozen=True, slots=True)
class Address:
    """A URL, taken apart for a request."""

    url: str
    secure: bool
    host: str
    port: int
    target: str
    authorization: str | None

    @property
    def origin(self) -> tuple[bool, str, int]:
        return self.secure, self.host, self.port

    @property
    def shown(self) -> str:
        return shown(self.url)

    @classmethod
    def parse(cls, url: str) -> Address:
        try:
            parts = urlsplit(url)
            host = (parts.hostname or "").encode("idna").decode()
            port = parts.port
        except ValueError:  # a malformed port, address or name
            raise InvalidArgument("this is not a URL", path=shown_malformed(url)) from None
        if parts.scheme not in WEB_SCHEMES or not host or re.search(r"[^!-~]", host):
            raise InvalidArgument(
                "this is not a URL", path=shown_malformed(url), expected="http(s)://host/path"
            )
        secure = parts.scheme == "https"
        target = quote(parts.path or "/", safe="/%!$&'()*+,;=:@~")
        if parts.query:
            target += "?" + quote(parts.query, safe="/%!$&'()*+,;=:@~?[]|")
        authorization = None
        if parts.username is not None:
            authorization = _basic(parts.username, parts.password)
        return cls(url, secure, host, port or (443 if secure else 80), target, authorization)


def _basic(user: str, password: str | None) -> str:
    pair = f"{unquote(user)}:{unquote(password or '')}"
    return "Basic " + base64.b64encode(pair.encode()).decode()


class Connections:
    """Connections that are kept, each for one process and origin.

    There is no lock, which a fork could leave taken: dictionaries and deques are safe by themselves.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._idle: dict[tuple[object, ...], deque[HTTPConnection]] = {}
        self._proxies: dict[tuple[object, ...], Address | None] = {}
        self._context: ssl.SSLContext | None = None
        self._closed = False

    def take(self, address: Address) -> tuple[HTTPConnection, str, dict[str, str], bool]:
        """A connection, the target and the headers to use with it, and whether it was used before."""
        origin = address.origin
        if origin not in self._proxies:
            self._proxies[origin] = _proxy_for(address)
        proxy = self._proxies[origin]
        target, extra = address.target, {}
        if proxy is not None and not address.secure:
            host = f"[{address.host}]" if ":" in address.host else address.host
            target = f"http://{host}:{address.port}{target}"
            if proxy.authorization is not None:
                extra["Proxy-Authorization"] = proxy.authorization
        try:
            return self._for(address).pop(), target, extra, True
        except IndexError:
            return self._connect(address, proxy), target, extra, False

    def release(self, address: Address, connection: HTTPConnection, response: HTTPResponse) -> None:
        """Keeps the connection if the answer was read to its end, or has little left."""
        with suppress(OSError, HTTPException):
            if response.length is not None and response.length <= _LITTLE:
                response.read()
        idle = self._for(address)
        whole = response.isclosed() and connection.sock is not None
        response.close()
        if whole and not self._closed and len(idle) < CONNECTIONS:
            idle.append(connection)
        else:
            connection.close()

    def drop(self) -> None:
        """Closes what is not in use. In a forked process this leaves those of its parent open there."""
        for idle in list(self._idle.values()):
            with suppress(IndexError):
                while True:
                    idle.pop().close()

    def close(self) -> None:
        self._closed = True
        self.drop()

    def _for(self, address: Address) -> deque[HTTPConnection]:
        return self._idle.setdefault((os.getpid(), *address.origin), deque())

    def _connect(self, address: Address, proxy: Address | None) -> HTTPConnection:
        to = proxy or address
        if not address.secure:
            return HTTPConnection(to.host, to.port, timeout=self._timeout)
        if self._context is None:  # reading the authorities takes longer than connecting
            context = ssl.create_default_context()
            context.set_alpn_protocols(["http/1.1"])
            self._context = context
        connection = HTTPSConnection(to.host, to.port, timeout=self._timeout, context=self._context)
        if proxy is not None:
            headers = {}
            if proxy.authorization is not None:
                headers["Proxy-Authorization"] = proxy.authorization
            connection.set_tunnel(address.host, address.port, headers)
        return connection


def _proxy_for(address: Address) -> Address | None:
    """The proxy that the environment names for an address."""
    # The variants without `_environment` also ask the system, which on macOS breaks forked processes.
    from urllib.request import getproxies_environment
    from urllib.request import proxy_bypass_environment as bypass  # type: ignore[attr-defined] # lacking in typeshed

    proxies = getproxies_environment()
    url = proxies.get("https" if address.secure else "http") or proxies.get("all")
    if not url or bypass(f"{address.host}:{address.port}", proxies):
        return None
    proxy = Address.parse(url if "://" in url else f"http://{url}")
    if proxy.secure:
        raise InvalidArgument(
            "this kind of proxy is not supported", path=proxy.shown, expected="an http:// proxy"
        )
    return proxy


def checked_headers(headers: Mapping[str, Any], name: str) -> dict[str, str]:
    """Headers that can be sent; messages do not repeat values, which may be secret."""
    for key, value in headers.items():
        if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", key) or key.lower() in _OWN_HEADERS:
            raise InvalidArgument(f"this header cannot be set: {key!r}", path=name)
        if not isinstance(value, str) or not re.fullmatch(r"[\t -~\u00a0-\u00ff]*", value):
            raise InvalidArgument(f"the value of the header {key!r} cannot be sent", path=name)
    # Names are the same in any case; `title` makes them replace our own.
    return {key.title(): value for key, value in headers.items()}


def shown_malformed(url: str) -> str:
    """The same for a URL that cannot be taken apart: where a password in it ends is not known."""
    return f"{shown(url.partition('://')[0])}://…" if "@" in url else shown(url)
