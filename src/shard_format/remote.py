"""Files behind a URL: HTTP(S) ranges with the standard library, object stores through obstore.

Opening takes one request, which also brings the first 64 KiB; reading an entry takes one more. Every
answer is held against the version that was opened, so that bytes of two versions are never mixed.
Names and error messages leave out what may be secret in a URL: user, password and query.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from shard_format._http import HttpSource
from shard_format._http_connections import WEB_SCHEMES
from shard_format._objectstore import ObjectStoreSource
from shard_format._remote_source import Fetch, plan_ranges, shown
from shard_format.errors import InvalidArgument
from shard_format.sources import FileSource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shard_format.sources import ByteSource

__all__ = ["Fetch", "HttpSource", "ObjectStoreSource", "open_url", "plan_ranges"]

_STORE_SCHEMES = ("abfs", "abfss", "az", "gs", "s3")


def open_url(url: str, storage_options: Mapping[str, Any] | None = None) -> ByteSource:
    """The source behind a URL.

    Args:
        url: `http(s)://`, `s3://`, `gs://`, `az://`, `abfs(s)://` or `file://`.
        storage_options: for HTTP the keyword arguments of `HttpSource`, for object stores what
            `obstore.store.from_url` takes.

    Raises:
        InvalidArgument: the scheme or an option is not known.
        MissingExtra: an object store without the extra `remote`.
    """
    scheme = url.partition("://")[0].lower()
    options = dict(storage_options or {})
    if scheme in _STORE_SCHEMES:
        return ObjectStoreSource(url, storage_options=options)
    known = ("headers", "retries", "timeout") if scheme in WEB_SCHEMES else ()
    unknown = sorted(options.keys() - set(known))
    if scheme in (*WEB_SCHEMES, "file") and unknown:
        raise InvalidArgument(
            f"no such storage option for {scheme}",
            path=shown(url),
            expected=" or ".join(known) or "none",
            found=", ".join(unknown),
        )
    if scheme in WEB_SCHEMES:
        return HttpSource(url, **options)
    if scheme == "file":
        return FileSource(_local_path(url))
    raise InvalidArgument(
        "no such kind of URL",
        path=shown(url),
        expected=", ".join(f"{known}://" for known in (*WEB_SCHEMES, *_STORE_SCHEMES, "file")),
        found=f"{scheme}://",
        hint="for a local file whose path looks like a URL, pass a pathlib.Path",
    )


def _local_path(url: str) -> str:
    from urllib.request import url2pathname

    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
        raise InvalidArgument(
            "this URL names no local file",
            path=shown(url),
            expected="file:///path, with ? and # written as %3F and %23",
        )
    return url2pathname(parts.path)
