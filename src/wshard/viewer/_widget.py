"""The viewer in a notebook: a widget whose page reads through messages of the kernel, so that it needs no port."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import weakref
from functools import lru_cache
from hashlib import blake2b
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from shard_format.atomic import write_file
from shard_format.errors import InvalidArgument, ShardError
from shard_format.extras import require
from wshard._episode import Episode
from wshard._formats import load_wshard
from wshard.viewer._episodes import EpisodeList
from wshard.viewer._files import LARGEST_RANGE, ViewedFiles
from wshard.viewer._page import configured, encoded, name_of, viewer_page

if TYPE_CHECKING:
    from collections.abc import Mapping

LARGEST_IN_WIDGET: Final = 256 << 20
"""Bytes of an episode that is not a file."""

_SCRIPT: Final = "widget.js"


def widget(shown: Episode | str | os.PathLike[str], *, height: int = 640) -> Any:  # noqa: ANN401 - of anywidget
    """The viewer as a widget of a notebook. Needs the extra `notebook`.

    The page asks the kernel for what you look at, so it works over remote kernels, without a port. Where widgets do not
    work, the cell shows the static summary of an episode.

    Args:
        shown: an episode; or a path or URL of anything that `wshard view` shows.
        height: of the cell, in pixels.

    Raises:
        MissingExtra: anywidget is not installed.
        InvalidArgument: the episode takes more than 256 MiB; save it, and pass its path.
    """
    kind = _kind_of_widget()
    return kind(Kernel(shown), height)


class Kernel:
    """Answers what the page asks for.

    Args:
        shown: as for `widget`.
    """

    page: bytes
    title: str
    summary: str
    """HTML without scripts about the one episode that is shown; empty for other files."""

    def __init__(self, shown: Episode | str | os.PathLike[str]) -> None:
        self.page = configured(viewer_page(), {"widget": True}).encode()
        if isinstance(shown, Episode):
            data = encoded(shown, LARGEST_IN_WIDGET)
            folder = tempfile.mkdtemp(prefix="wshard-view-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            self.summary = shown._repr_html_()
            name = re.sub(r"[^\w.-]", "_", name_of(shown))[-100:]
            write_file(os.path.join(folder, name), [data], fsync=False)
            self._files = ViewedFiles([os.path.join(folder, name)])
        else:
            self._files = ViewedFiles([shown])
            self.summary = _summary_of(self._files)
        self.title = self._files.title
        self._rows = EpisodeList(self._files, None)

    def answer(self, question: Mapping[str, Any]) -> tuple[dict[str, Any], bytes | None]:
        """The answer to a message of the page, and the bytes that go with it.

        The paths are those of the server; for `/f/N`, the question has `offset` and `length`.
        """
        path = question.get("path")
        try:
            if path == "/":
                return {}, self.page
            if path == "/files.json":
                return {"document": self._files.document()}, None
            if path == "/episodes.json":
                return {"document": self._rows.document()}, None
            if isinstance(path, str) and path.startswith("/f/"):
                return self._read(path.removeprefix("/f/"), question)
        except ShardError as error:
            return {"error": str(error)}, None
        return {"error": "the kernel does not know what the page asks for"}, None

    def _read(
        self, number: str, question: Mapping[str, Any]
    ) -> tuple[dict[str, Any], bytes | None]:
        is_number = number.isascii() and number.isdecimal() and len(number) < 10
        file = self._files.find(int(number)) if is_number else None
        if file is None:
            raise InvalidArgument("no such file", found=number[:20])
        offset, length = question.get("offset"), question.get("length")
        if type(offset) is not int or type(length) is not int or offset < 0 or length < 0:
            raise InvalidArgument("expected the offset and length of a range", path=file.name)
        if length > LARGEST_RANGE:
            raise InvalidArgument(
                "the range is too large", expected=f"at most {LARGEST_RANGE}", found=length
            )
        opened = self._files.open(file)
        try:
            stop = min(offset + length, opened.size)
            data = opened.read(offset, max(0, stop - offset))
            return {"size": opened.size, "tag": opened.tag}, data
        finally:
            opened.close()


def _summary_of(files: ViewedFiles) -> str:
    number = files.opened_first
    file = None if number is None else files.find(number)
    if file is None or file.kind not in ("episode", "manifest"):
        return ""
    try:
        with load_wshard(file.location) as episode:
            return episode._repr_html_()
    except ShardError:  # the page says what is wrong
        return ""


@lru_cache(maxsize=1)
def _kind_of_widget() -> Any:  # noqa: ANN401 - a class built on one of an optional package
    anywidget = require("anywidget", "notebook")
    traitlets = require("traitlets", "notebook")
    script = files("wshard.viewer").joinpath(_SCRIPT).read_text("utf-8")

    class EpisodeWidget(anywidget.AnyWidget):  # type: ignore[misc, name-defined] # of any version
        """The viewer in a cell."""

        _esm = script
        height = traitlets.Int(640).tag(sync=True)
        page = traitlets.Unicode("").tag(sync=True)
        # Also for what is saved with its widgets, as `nbconvert --execute` does.
        summary = traitlets.Unicode("").tag(sync=True)

        def __init__(self, kernel: Kernel, height: int) -> None:
            version = blake2b(kernel.page, digest_size=12).hexdigest()
            super().__init__(height=height, page=version, summary=kernel.summary)
            self._kernel = kernel
            self.on_msg(self._answer)

        def __repr__(self) -> str:
            return f"<viewer of {self._kernel.title}>"

        def _answer(self, _: object, question: object, __: object) -> None:
            asked = question if isinstance(question, dict) else {}
            answer, data = self._kernel.answer(asked)
            buffers = [] if data is None else [data]
            self.send({**answer, "id": asked.get("id")}, buffers)

        def _repr_mimebundle_(self, **options: Any) -> Any:  # noqa: ANN401 - as in the base
            bundle = super()._repr_mimebundle_(**options)
            if bundle is not None and self.summary:
                # What remains where widgets do not work: on GitHub, and in notebooks that are not trusted.
                bundle[0]["text/html"] = self.summary
            return bundle

    return EpisodeWidget
