"""A bucket of an object store (S3, Google Cloud Storage, Azure) through obstore, the extra `remote`.

`Bucket` has the six calls that the family makes of a store. obstore's threads do not follow into a forked
process, so there the calls go to a process that is started for them (`_store_relay`).
"""

from __future__ import annotations

import errno
import os
import re
import threading
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from shard_format._credentials import find_credentials
from shard_format._remote_source import StoreError, Version, printable
from shard_format.errors import InvalidArgument
from shard_format.extras import require
from shard_format.http import DEADLINE_S
from shard_format.parallel import in_background

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Result = TypeVar("Result")

_RETRIES = 6
# A pause is at most this many times the one before, so that pauses double on average, as they do over HTTP. With the 2 of
# obstore all six tries are made within two seconds, which is shorter than a busy store asks for; with its 15 seconds for a
# pause, a store that is down is noticed after half a minute.
_BACKOFF: dict[str, Any] = {"base": 4, "max_backoff": timedelta(seconds=5)}
_CONNECT_TIMEOUT_S = 5.0
# Without a byte of the answer.
_READ_TIMEOUT_S = 20.0
# For all of an answer, however large.
_TIMEOUT_S = 900.0
# S3 takes at most 10 000 parts of at least 5 MiB.
_PART_BYTES = 8 << 20
_MOST_PARTS = 9_000
# obstore wants these inside `client_options`, where users do not look for them.
_CLIENT_OPTIONS = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "default_headers",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_url",
        "read_timeout",
        "timeout",
        "user_agent",
    }
)
_DURATIONS = frozenset({"connect_timeout", "pool_idle_timeout", "read_timeout", "timeout"})
_RETRY_OPTIONS = frozenset({"backoff", "max_retries", "retry_timeout"})
_BACKOFF_OPTIONS = frozenset({"base", "init_backoff", "max_backoff"})
_MOMENT = timedelta(milliseconds=1)
# What the stores call a missing bucket.
NO_BUCKET = re.compile("NoSuchBucket|ContainerNotFound")
_SECONDS = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|)")


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object of a store."""

    key: str
    """Its name within the bucket."""
    version: Version
    """What tells this content from any other."""


class Bucket:
    """A bucket. Threads may share it, forked processes may use it, and it pickles as its URL with its options.

    Args:
        root: such as `s3://bucket`.
        options: for `obstore.store.from_url`. `allow_http`, `timeout` and other options of the client may stand beside the
            rest, and times may be numbers of seconds. Also `deadline` and `retries`, and those of `find_credentials`.
    """

    def __init__(self, root: str, options: Mapping[str, Any]) -> None:
        self.root = root
        self._options = dict(options)
        require("obstore", "remote")
        self._arguments = store_arguments(root, self._options)

    def __reduce__(self) -> tuple[Any, ...]:
        return Bucket, (self.root, self._options)

    def get(
        self, key: str, where: tuple[int, int] | dict[str, int], etag: str | None = None
    ) -> tuple[Version, tuple[int, int], bytes]:
        """A range of an object, or its last bytes: the version, where the bytes begin and end, and the bytes.

        Args:
            key: of the object.
            where: first byte and end, or `{"suffix": count}`.
            etag: if given, an object with another tag is an error (ESTALE).
        """
        return self._call(_get, key, where, etag)

    def head(self, key: str) -> Version:
        """The version of an object."""
        return self._call(_head, key)

    def list(self, prefix: str) -> list[StoredObject]:
        """The objects whose keys begin with a folder's name, `""` for all; by key."""
        return self._call(_list, prefix)

    def put(self, key: str, path: str, *, overwrite: bool = True) -> Version:
        """Uploads a file. The object appears complete or not at all; a failed upload in parts is aborted."""
        return self._call(_put, key, path, overwrite)

    def copy(self, key: str, target: str) -> None:
        """Copies an object within the bucket; the store does it."""
        self._call(_copy, key, target)

    def delete(self, key: str) -> None:
        """Removes an object."""
        self._call(_delete, key)

    def _call(self, operation: Callable[..., Result], *arguments: Any) -> Result:  # noqa: ANN401
        if not _is_usable():
            from shard_format._store_relay import relay

            return relay().call(partial(self.call_here, operation, arguments))
        return self.call_here(operation, arguments)

    def call_here(self, operation: Callable[..., Result], arguments: tuple[Any, ...]) -> Result:
        """Does one of the calls above in this process."""
        obstore = require("obstore", "remote")
        needed = _for_upload(self._arguments) if operation is _put else self._arguments
        store = _open_store(self.root, needed)
        return _interruptible(
            lambda: _guarded(self.root, lambda: operation(obstore, store, *arguments))
        )


def _interruptible(call: Callable[[], Result]) -> Result:
    """What a call returns. obstore does not notice Ctrl-C, so that in the main thread another thread makes the call.

    The call goes on after an interrupt, until it or the process ends.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    try:
        answer = in_background(call)
    except RuntimeError:
        return call()
    try:
        return answer.result()
    finally:
        del answer  # the traceback of its error has this frame


def _get(
    obstore: Any,  # noqa: ANN401
    store: Any,  # noqa: ANN401
    key: str,
    where: tuple[int, int] | dict[str, int],
    etag: str | None,
) -> tuple[Version, tuple[int, int], bytes]:
    options: dict[str, Any] = {"range": where}
    if etag and not etag.startswith("W/"):
        options["if_match"] = etag
    result = obstore.get(store, key, options=options)
    # Like bytes, without a copy.
    return _version(result.meta), result.range, result.bytes()


def _head(obstore: Any, store: Any, key: str) -> Version:  # noqa: ANN401
    return _version(obstore.head(store, key))


def _list(obstore: Any, store: Any, prefix: str) -> list[StoredObject]:  # noqa: ANN401
    found = [
        StoredObject(meta["path"], _version(meta))
        for chunk in obstore.list(store, prefix=prefix or None)
        for meta in chunk
    ]
    return sorted(found, key=lambda one: one.key)


def _put(obstore: Any, store: Any, key: str, path: str, overwrite: bool) -> Version:  # noqa: ANN401
    size = os.path.getsize(path)
    part_bytes = max(_PART_BYTES, -(-size // _MOST_PARTS))
    if overwrite:
        answer = obstore.put(store, key, Path(path), chunk_size=part_bytes)
    else:
        # Stores refuse an existing object only for uploads in one piece.
        answer = obstore.put(store, key, Path(path), mode="create", use_multipart=False)
    return Version(size, answer.get("e_tag"), None)


def _copy(obstore: Any, store: Any, key: str, target: str) -> None:  # noqa: ANN401
    obstore.copy(store, key, target)


def _delete(obstore: Any, store: Any, key: str) -> None:  # noqa: ANN401
    obstore.delete(store, key)


def _version(meta: Mapping[str, Any]) -> Version:
    return Version(meta["size"], meta.get("e_tag"), str(meta.get("last_modified") or "") or None)


# --- stores of this process

# One store, with its connections, for all objects of a bucket.
_stores: dict[tuple[str, str], Any] = {}
_stores_lock = threading.Lock()
_MOST_STORES = 64
# The process in which obstore was used first.
_process: int | None = None


def _is_usable() -> bool:
    """Whether this process may call obstore: it was not forked after the first call."""
    global _process
    if _process is None:
        _process = os.getpid()
    return _process == os.getpid()


def _open_store(root: str, arguments: dict[str, Any]) -> Any:  # noqa: ANN401
    key = (root, repr(sorted(arguments.items())))
    with _stores_lock:
        store = _stores.get(key)
        if store is None:
            from_url = require("obstore.store", "remote").from_url
            try:
                store = _guarded(root, lambda: from_url(root, **arguments))
            except StoreError as error:
                raise _refused_options(root, error.line) from None
            if len(_stores) >= _MOST_STORES:
                _stores.pop(next(iter(_stores)))
            _stores[key] = store
    return store


# --- options


def store_arguments(root: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """What `obstore.store.from_url` takes for these options.

    Raises:
        RemoteDenied: no credentials were found.
        InvalidArgument: an option has a wrong type.
    """
    rest = find_credentials(root, options)
    client = rest.pop("client_options", None) or {}
    if not isinstance(client, dict):
        raise _wrong_option(root, "client_options", "a dictionary", client)
    client = client | {name: rest.pop(name) for name in _CLIENT_OPTIONS & rest.keys()}
    # obstore looks there only if it is given no options of the client.
    if os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true"):
        client.setdefault("allow_http", True)
    deadline = _seconds(root, "deadline", rest.pop("deadline", DEADLINE_S))
    # The last try begins before `retry_timeout` and ends after `read_timeout`.
    read_timeout = min(_READ_TIMEOUT_S, deadline / 3)
    client.setdefault("timeout", _TIMEOUT_S)
    client.setdefault("read_timeout", read_timeout)
    client.setdefault("connect_timeout", min(_CONNECT_TIMEOUT_S, read_timeout))
    for name in _DURATIONS & client.keys():
        client[name] = f"{round(_seconds(root, name, client[name]) * 1000)}ms"
    retries = rest.pop("retries", _RETRIES)
    if not isinstance(retries, int) or retries < 0:
        raise _wrong_option(root, "retries", "a number of tries, 0 or more", retries)
    retry: dict[str, Any] = {
        "max_retries": retries,
        "retry_timeout": timedelta(seconds=deadline - read_timeout),
    }
    retry |= _checked_retries(root, rest.pop("retry_config", None) or {})
    retry["backoff"] = {**_BACKOFF, **(retry.get("backoff") or {})}
    endpoint = rest.get("endpoint")
    if endpoint is None and root.startswith("s3:"):
        endpoint = os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT")
    if endpoint is not None:
        if re.fullmatch(r"https?://[^\s/]+(/\S*)?", str(endpoint)) is None:
            raise _wrong_option(root, "endpoint", "a URL such as http://127.0.0.1:9000", endpoint)
        if endpoint.startswith("http://") and not client.get("allow_http"):
            raise InvalidArgument(
                "the endpoint is not encrypted",
                path=root,
                expected="an endpoint with https://",
                found=endpoint,
                hint="pass allow_http=True in storage_options if that is what you want",
                command="pass --storage-option allow_http=true if that is what you want",
            )
        if root.startswith("gs:"):
            rest["base_url"] = rest.pop("endpoint")
    rest["client_options"], rest["retry_config"] = client, retry
    return rest


def _checked_retries(root: str, given: Any) -> dict[str, Any]:  # noqa: ANN401 - checked here
    """The option `retry_config`: obstore ignores what it does not know, and panics if pauses cannot grow."""
    if not isinstance(given, dict) or not given.keys() <= _RETRY_OPTIONS:
        expected = f"a dictionary with {', '.join(sorted(_RETRY_OPTIONS))}"
        raise _wrong_option(root, "retry_config", expected, given)
    backoff = given.get("backoff") or {}
    try:
        is_right = (
            backoff.keys() <= _BACKOFF_OPTIONS
            and backoff.get("base", 2) > 1
            and all(backoff.get(name, _MOMENT) >= _MOMENT for name in _BACKOFF_OPTIONS - {"base"})
        )
    except (AttributeError, TypeError):
        is_right = False
    if not is_right:
        expected = (
            "init_backoff and max_backoff, times of a millisecond or more, and a base above 1"
        )
        raise _wrong_option(root, "backoff", expected, backoff)
    return given


def _for_upload(arguments: dict[str, Any]) -> dict[str, Any]:
    """The same store, whose answer may come after the minutes that a request takes to be sent."""
    client = {k: v for k, v in arguments["client_options"].items() if k != "read_timeout"}
    return {**arguments, "client_options": client}


def _seconds(root: str, name: str, value: object) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    match = _SECONDS.fullmatch(str(value))
    if match is None or isinstance(value, bool):
        raise _wrong_option(root, name, "seconds, such as 30 or '500ms'", value)
    seconds = float(match[1]) * {"ms": 0.001, "s": 1, "m": 60, "": 1}[match[2]]
    if not seconds > 0:
        raise _wrong_option(root, name, "more than 0 seconds", value)
    return seconds


def _wrong_option(root: str, name: str, expected: str, found: object) -> InvalidArgument:
    return InvalidArgument(
        f"the storage option {name!r} cannot be used",
        path=root,
        expected=expected,
        found=repr(found),
    )


# --- errors


def _guarded(root: str, call: Callable[[], Result]) -> Result:
    """What a call of obstore returns; its errors become ours, without the dumps behind their messages.

    Raises:
        StoreError: the store refuses, or cannot be reached.
        InvalidArgument: obstore does not take the options or the key.
    """
    errors = require("obstore.exceptions", "remote")
    try:
        return call()
    except (errors.BaseError, OSError) as error:
        raise StoreError(_error_number(errors, error), _first_line(error)) from None
    except (TypeError, ValueError, OverflowError) as error:
        raise _refused_options(root, _first_line(error)) from None
    except BaseException as error:
        # A Rust panic derives from BaseException, from a class that cannot be imported.
        if type(error).__name__ != "PanicException":
            raise
        raise _refused_options(root, _first_line(error)) from None


def _refused_options(root: str, line: str) -> InvalidArgument:
    hint = next(hint for words, hint in _HINTS.items() if re.search(words, line))
    return InvalidArgument(f"obstore refuses this: {line}", path=root, hint=hint)


_HINTS = {
    "parse path": "an object cannot be read if its name has an empty part, '.', '..' or a control character: give it another",
    "InvalidHeaderValue": "a key, a token or the region has a character that cannot be sent, such as a line break at its end",
    "InvalidUri|InvalidPort": "check the endpoint: expected a URL such as http://127.0.0.1:9000",
    "": "check the storage options: docs/remote.md lists those of each store",
}
"""What to do, by words in what obstore says; the last for everything else."""


def _error_number(errors: Any, error: Exception) -> int:  # noqa: ANN401
    if isinstance(error, FileNotFoundError) or NO_BUCKET.search(str(error)):
        return errno.ENOENT
    if isinstance(error, errors.PreconditionError):
        return errno.ESTALE
    if isinstance(error, errors.AlreadyExistsError):
        return errno.EEXIST
    if isinstance(error, (errors.PermissionDeniedError, errors.UnauthenticatedError)):
        return errno.EACCES
    if isinstance(error, errors.NotSupportedError):
        return errno.EOPNOTSUPP
    # The reason is only in the text, and in the dump that follows it.
    text = str(error)
    if status := re.search(r"status code: (\d{3})", text):
        other = errno.EINVAL if status[1].startswith("4") else errno.EIO
        known = {"416": errno.ERANGE, "429": errno.EAGAIN}
        # Lists have no error of their own for these, and 412 also comes when a body is continued after a break.
        known |= {"401": errno.EACCES, "403": errno.EACCES, "412": errno.ESTALE}
        return known.get(status[1], other)
    if system := re.search(r"Os \{\s*code: (\d+)", text):
        return int(system[1])
    return next((number for words, number in _NUMBERS.items() if re.search(words, text)), errno.EIO)


_NUMBERS = {
    "InvalidCertificate": errno.ECONNABORTED,
    "TimedOut|kind: Timeout": errno.ETIMEDOUT,
    "dns error": errno.EHOSTUNREACH,
    "NotPartial|non-partial response": errno.EOPNOTSUPP,
    "UnexpectedRange|Requested .* got": errno.EPROTO,
    "kind: Interrupted|IncompleteMessage|kind: Body": errno.ECONNRESET,
}


def _first_line(error: BaseException) -> str:
    """What obstore says, without the dump that follows and without queries, which may hold a token."""
    line = (str(error).splitlines() or [""])[0]
    asked = _ASKED.search(line)
    if asked is not None:
        method, url, retries, answer = asked.groups()
        answer = answer.removeprefix("Server returned non-2xx status code: ")
        code = re.search(r"<Code>(\w+)</Code>", str(error))
        answer = answer.partition(":")[0] + (f" {code[1]}" if code else "")
        line = f"{method} {url}: {answer}" + (f", after {retries} retries" if retries else "")
    return printable(re.sub(r"\?[^\s:]*", "?…", line), 300)


_ASKED = re.compile(r"Error performing (\w+) (\S+) in \S+?(?:, after (\d+) retries, .*?)? +- (.*)")
