"""The page of the viewer: one HTML file that holds all of its scripts and styles."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
import zlib
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from shard_format.atomic import write_file
from shard_format.display import size
from shard_format.errors import FileMissing, InvalidArgument
from shard_format.sources import read_file
from wshard._files import save_wshard
from wshard.types import FileOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wshard._episode import Episode

LARGEST_EMBEDDED: Final = 20_000_000
"""Bytes of an episode that a page may hold: some programs refuse a larger page or notebook."""

_FILE: Final = "viewer.html.gz"
# Where the page reads how it gets its data; viewer/index.html has it.
_OPENING: Final = '<script type="application/json" id="configuration">'
_CONFIGURATION: Final = _OPENING + "{}</script>"


def viewer_page() -> str:
    """The page as it was built: it opens files that the user drops on it.

    Raises:
        FileMissing: the page has not been built.
        InvalidArgument: the file is not the viewer.
    """
    file = files("wshard.viewer").joinpath(_FILE)
    try:
        page = gzip.decompress(file.read_bytes()).decode("utf-8")
    except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError):
        page = ""  # refused below
    except FileNotFoundError:
        raise FileMissing(
            "the page of the viewer has not been built",
            path=str(file),
            hint="run 'make viewer' in a checkout, or install the package again",
        ) from None
    if page.count(_CONFIGURATION) != 1:
        raise InvalidArgument(
            "this is not the page of the viewer",
            path=str(file),
            expected=_CONFIGURATION,
            hint="build it again with 'make viewer'",
        )
    return page


def configured(page: str, configuration: Mapping[str, Any]) -> str:
    """The page with another configuration. Nothing in it can end the element: all `<` are escaped."""
    text = json.dumps(configuration, separators=(",", ":")).replace("<", "\\u003c")
    return page.replace(_CONFIGURATION, f"{_OPENING}{text}</script>")


def export_page(path: str | os.PathLike[str]) -> int:
    """Writes the viewer as one file, which shows the files that are dropped on it; returns its bytes."""
    return write_file(path, [viewer_page().encode()], fsync=False)


def to_html(episode: Episode, path: str | os.PathLike[str]) -> int:
    """Writes the viewer with an episode inside, for sharing; returns the bytes of the file.

    Args:
        episode: what to show, predictions and added lanes included, stored as in its own file.
        path: the file to write, which appears when it is complete.

    Raises:
        InvalidArgument: the episode takes more than 20 MB.
    """
    page = viewer_page()
    data = encoded(episode, LARGEST_EMBEDDED)
    file = {"name": name_of(episode), "base64": b64encode(data).decode("ascii")}
    html = configured(page, {"embedded": [file], "open": 0})
    return write_file(path, [html.encode()], fsync=False)


def encoded(episode: Episode, most: int) -> bytes:
    """An episode as the bytes of one file: unchanged blocks as they are stored, new ones compressed.

    Raises:
        InvalidArgument: it takes more than `most` bytes.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "episode.wshard")
        is_new = episode.origin is None
        options = FileOptions(identity=False)
        save_wshard(episode, file, "auto" if is_new else None, fsync=False, options=options)
        found = os.stat(file).st_size
        if found > most:
            raise InvalidArgument(
                "the episode is too large to be part of a page",
                path=None if episode.origin is None else episode.origin.path,
                expected=f"at most {size(most)}",
                found=size(found),
                hint="take a window, wshard.editing.slice_episode(episode, 0, 500), or fewer channels, "
                "load_wshard(path, channels=[…]); 'wshard view' shows files of any size",
            )
        return read_file(file)


def name_of(episode: Episode) -> str:
    """The file name that the page shows."""
    if episode.origin is None:
        return f"{episode.id}.wshard"
    return os.path.basename(episode.origin.path)


# --- the policy


class _Inline(HTMLParser):
    """Collects the texts of scripts and styles."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.found: dict[str, list[str]] = {"script": [], "style": []}
        self._texts: list[str] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        # Data is not run.
        is_data = tag == "script" and dict(attrs).get("type") == "application/json"
        self._texts = None if is_data else self.found.get(tag)
        if self._texts is not None:
            self._texts.append("")

    def handle_data(self, data: str) -> None:
        if self._texts is not None:
            self._texts[-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._texts = None


def policy_of(page: str) -> str:
    """The Content-Security-Policy for a served page: its own scripts and styles, and data from its server alone."""
    parser = _Inline()
    parser.feed(page)
    parser.close()
    hashes = {
        tag: " ".join(f"'sha256-{_sha256(text)}'" for text in texts) or "'none'"
        for tag, texts in parser.found.items()
    }
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {hashes['script']} 'wasm-unsafe-eval'",
            "worker-src blob:",
            f"style-src {hashes['style']}",
            "img-src 'self' blob: data:",
            "media-src blob:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )


def _sha256(text: str) -> str:
    return b64encode(sha256(text.encode()).digest()).decode("ascii")
