"""The files that the page may read, each by its number: it cannot ask for a path."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import count
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple
from urllib.parse import urlsplit

from shard_format import Manifest
from shard_format.cache import BoundedCache
from shard_format.errors import InvalidArgument, ShardError, UnsafePath
from shard_format.listing import ListedFile, expand, is_there, path_of_url, walk_folder
from shard_format.opening import open_source
from shard_format.registry import Role
from shard_format.sources import is_url, open_regular, read_file
from wshard._folders import OVERVIEW_SUFFIX, RecordingFiles, is_being_recorded
from wshard._journal import MAGIC as JOURNAL_MAGIC
from wshard._journal import PARTIAL_SUFFIX
from wshard._sidecar import SIDECAR_SUFFIX
from wshard.overviews import overview_path
from wshard.partial import state_of
from wshard.viewer._catalogues import NamedEpisode, is_catalogue, read_catalogue

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shard_format.sources import ByteSource

MOST_FILES: Final = 100_000
"""Files that one viewer lists; the page holds a row for each."""

LARGEST_RANGE: Final = 64 << 20
"""Bytes of a file that one question brings."""

_EPISODE: Final = ".wshard"
_PACK: Final = ".shardpack"
_OVERVIEW: Final = _EPISODE + OVERVIEW_SUFFIX
_SUFFIXES: Final = (_EPISODE, _OVERVIEW, _PACK, ".shard", PARTIAL_SUFFIX)
_IN_SIDECARS: Final = _EPISODE + SIDECAR_SUFFIX + "/"
_MANIFEST: Final = "_manifest" + _EPISODE
_SET: Final = ".shardpack-set"
# Bytes 8 to 11 of a pack: spec/shardpack.md, sections 2 and 7.
_PACK_MARKERS: Final = (b"SPR1", b"SPI1")
_MAGIC: Final = b"SHRD"
_ROLES: Final = {bytes([Role.MANIFEST]): "manifest", bytes([Role.WSHARD]): "episode"}
_HEAD_BYTES: Final = 64
_LONGEST_PROBLEM: Final = 500
_FOLLOW_RECORDING_S: Final = 1
_FOLLOW_FOLDER_S: Final = 10
# Each holds a connection or two, and the 64 KiB that opening brought.
_MOST_REMOTE: Final = 64


class ViewedFile(NamedTuple):
    """A file that the page may ask for."""

    number: int
    """What the page calls it; never another file's."""
    name: str
    """Its path below the folder that was given, with slashes: where the files beside it are."""
    location: str
    """Its path or URL, which the page does not see."""
    size: int
    mtime_ns: int
    """When it was changed; 0 for a URL."""
    kind: str
    """episode, manifest, pack, set, recording, sidecar, overview or container."""


class LeftOut(NamedTuple):
    """A file that is there and is not shown."""

    name: str
    problem: str


@dataclass(frozen=True)
class OpenedFile:
    """A file as it was when it was opened. A local one is a file to close, a remote one a source that stays open."""

    size: int
    tag: str
    """Other content has another tag. A recording keeps its tag while it grows."""
    file: BinaryIO | None = None
    source: ByteSource | None = None

    def read(self, offset: int, length: int) -> bytes:
        """Bytes of the file; fewer if it has become shorter."""
        if self.file is None:
            assert self.source is not None
            return self.source.read_at(offset, length)
        self.file.seek(offset)
        pieces = []
        while length and (piece := self.file.read(length)):
            pieces.append(piece)
            length -= len(piece)
        return b"".join(pieces)

    def close(self) -> None:
        """Closes a local file."""
        if self.file is not None:
            self.file.close()


class ViewedFiles:
    """What a user wants to see: files, folders, packs and URLs.

    Args:
        arguments: paths and URLs. A folder means the files below it; one of an object store, too. With a file come its
            overviews, its sidecars, its chunks, and the other files of its recording. With a catalogue, the folders
            say where episodes may be, and only those that it names are shown.

    Raises:
        InvalidArgument: an argument is not there, or there are more than `MOST_FILES` files.
        ShardError: a catalogue cannot be read.
        ShardIOError: a folder cannot be read, or a server refuses.
    """

    def __init__(self, arguments: Sequence[str | os.PathLike[str]]) -> None:
        given = [path_of_url(os.fspath(one)) for one in arguments]
        if not given:
            raise InvalidArgument("nothing to show", expected="files, folders or URLs")
        local = [os.path.abspath(one) for one in given if not is_url(one)]
        for path in local:
            if not is_there(path):
                raise InvalidArgument("no such file or folder", path=path)
        folders = [path for path in local if os.path.isdir(path)]
        catalogues = [path for path in local if is_catalogue(path) and path not in folders]
        self._single = [path for path in local if path not in (*folders, *catalogues)]
        self.folders = [] if catalogues else folders
        """The folders that are shown as a whole."""
        self._catalogued = _Catalogued(catalogues, folders) if catalogues else None
        self._only = (local or given)[0] if len(given) == 1 else None
        self._base = ""
        # Without local files, and where drives of Windows have nothing in common, names are whole paths.
        with suppress(ValueError):
            roots = self.folders if self._catalogued is None else self._catalogued.roots
            self._base = os.path.commonpath([*roots, *map(os.path.dirname, self._single)])
        self.title = ", ".join(map(_title_of, given[:3])) + (", …" if len(given) > 3 else "")
        self._remote: BoundedCache[str, ByteSource] = BoundedCache(count=_MOST_REMOTE)
        self._urls: dict[str, int] = {}
        for url in filter(is_url, given):
            if is_catalogue(url):
                raise InvalidArgument("a catalogue must be a local file", path=url)
            self._urls.update(self._expanded(url))
        self._url_base = "" if len(given) > 1 else _folder_of(given[0], next(iter(self._urls), ""))
        self._numbers: dict[str, int] = {}
        self._kinds: dict[str, tuple[ListedFile, str]] = {}
        self._recovered: dict[str, tuple[object, bool]] = {}
        self._inside: dict[str, str | None] = {}
        self._files: dict[int, ViewedFile] = {}
        self._lock = threading.Lock()
        self.left_out: list[LeftOut] = []
        """What the last listing found and does not show."""
        self.list()

    @property
    def opened_first(self) -> int | None:
        """The number of the one file that was named; None if the user has to choose."""
        number = None if self._only is None else self._numbers.get(self._only)
        file = None if number is None else self._files.get(number)
        # A set is its packs.
        return None if file is None or file.kind == "set" else number

    def shows(self, file: ViewedFile, path: str) -> bool:
        """Whether an episode of a file is shown; a catalogue may name some of a pack. `path` is as `wshard.find` has it."""
        chosen = self._catalogued
        if chosen is None or file.location in self._single:
            return True
        return path.replace(os.sep, "/") in chosen.paths

    def list(self) -> list[ViewedFile]:
        """All files as they are now. A file keeps its number as long as it has its name."""
        with self._lock:
            self.left_out = []
            files: dict[str, ViewedFile] = {}
            for location, listed in self._found():
                if location in files:
                    continue
                if len(files) == MOST_FILES:
                    raise InvalidArgument(
                        "too many files for one viewer",
                        path=self._base or None,
                        expected=f"at most {MOST_FILES:,}",
                        hint="name folders inside it, or pack the episodes: shardpack pack-episodes",
                    )
                try:
                    kind = self._kind_of(location, listed)
                except ShardError as error:
                    self._leave_out(listed.name, error)
                    continue
                if kind == "recording" or not listed.name.endswith(PARTIAL_SUFFIX):
                    number = self._numbers.setdefault(location, len(self._numbers))
                    facts = (listed.name, location, listed.size, listed.mtime_ns, kind)
                    files[location] = ViewedFile(number, *facts)
            self._files = {file.number: file for file in files.values()}
            return list(files.values())

    def document(self) -> dict[str, Any]:
        """The files as the page gets them."""
        found = [file for file in self.list() if not self._is_recovered(file)]
        live = {file.number: _is_live(file) for file in found if file.kind == "recording"}
        return {
            "version": 1,
            "title": self.title,
            "files": [
                {"number": file.number, "name": file.name, "size": file.size, "kind": file.kind}
                | ({"live": live[file.number]} if file.number in live else {})
                for file in found
            ],
            "open": self.opened_first,
            # After how many seconds the page asks again: a recorder may begin at any time.
            "follow": _FOLLOW_RECORDING_S
            if any(one is not False for one in live.values())
            else _FOLLOW_FOLDER_S
            if self.folders
            else None,
            # The page may read a little of each file for its table.
            "local": not self._urls,
        }

    def find(self, number: int) -> ViewedFile | None:
        """The file of a number; None if there never was one, or it is not there any more."""
        return self._files.get(number)

    def _is_recovered(self, file: ViewedFile) -> bool:
        """Whether a file is a journal that its recorder has left, and an episode has all of it."""
        if file.kind != "recording" or _is_live(file) is not False:
            return False
        files = RecordingFiles.of(file.location)
        facts = (file.size, file.mtime_ns, _facts_of(files.path), _facts_of(files.names.manifest))
        known = self._recovered.get(file.location)
        if known is None or known[0] != facts:
            is_recovered = False
            with suppress(ShardError):
                is_recovered = state_of(files) == "recovered"
            known = self._recovered[file.location] = facts, is_recovered
        return known[1]

    # --- which files

    def _found(self) -> Iterator[tuple[str, ListedFile]]:
        for folder in self.folders:
            inside = os.path.realpath(folder)
            for file in walk_folder(folder, _SUFFIXES).files:
                path = os.path.join(folder, file.name)
                self._inside[path] = inside
                # Links to folders were not followed.
                yield from self._local(path, file, is_checked=os.path.islink(path))
        for path in self._single:
            self._inside[path] = None  # the user named it, wherever it leads
            yield from self._with_what_is_beside(path, os.path.dirname(path))
        if self._catalogued is not None:
            self.left_out += self._catalogued.left_out
            for path, root in self._catalogued.files.items():
                self._inside.setdefault(path, os.path.realpath(root))
                yield from self._with_what_is_beside(path, root)
        for url, size in self._urls.items():
            yield url, ListedFile(_without_secrets(url).removeprefix(self._url_base), size, 0)

    def _with_what_is_beside(self, path: str, folder: str) -> Iterator[tuple[str, ListedFile]]:
        """A file, and those that belong to it and lie in a folder."""
        yield from self._local(path)
        inside = os.path.realpath(folder)
        for beside in _beside(path):
            self._inside.setdefault(beside, inside)
            yield from self._local(beside)

    def _local(
        self, path: str, listed: ListedFile | None = None, *, is_checked: bool = True
    ) -> Iterator[tuple[str, ListedFile]]:
        """A file, unless it cannot be shown."""
        name = os.path.relpath(path, self._base) if self._base else path
        name = name.replace(os.sep, "/")
        try:
            if is_checked:
                self._refuse_outside(path)
            if listed is None:
                descriptor, status = open_regular(path)
                os.close(descriptor)
                listed = ListedFile(name, status.st_size, status.st_mtime_ns)
        except ShardError as error:
            self._leave_out(name, error)
            return
        yield path, replace(listed, name=name)

    def _refuse_outside(self, path: str) -> None:
        inside = self._inside.get(path)
        if inside is not None and not _is_in(os.path.realpath(path), inside):
            raise UnsafePath(
                "a link leads out of the folder",
                path=path,
                expected=f"a file in {inside}",
                hint="name the file itself to show it",
            )

    def _leave_out(self, name: str, error: ShardError) -> None:
        self.left_out.append(LeftOut(name, str(error)[:_LONGEST_PROBLEM]))

    def _kind_of(self, location: str, listed: ListedFile) -> str:
        """What a file is, by its first bytes; of a URL by its name, because looking costs a request."""
        if is_url(location):
            name = urlsplit(location).path
            return "manifest" if name.endswith(_MANIFEST) else _kind(name, b"")
        known = self._kinds.get(location)
        if known is None or known[0] != listed:
            head = read_file(location, _HEAD_BYTES)
            known = self._kinds[location] = listed, _kind(listed.name, head)
        return known[1]

    def _expanded(self, url: str) -> Iterator[tuple[str, int]]:
        """The files that a URL means, with their sizes."""
        urls = expand(url, _SUFFIXES)
        if urls == [url]:
            yield url, self._source_of(url).size()
            beside = overview_path(url)
            with suppress(ShardError):  # most have none, and some servers say that it is forbidden
                yield beside, self._source_of(beside).size()
            if urlsplit(url).path.endswith((_MANIFEST, _SET)):
                yield from _chunks_of(url)
            return
        from shard_format.remote import list_url

        folder = os.path.commonprefix(urls).rpartition("/")[0]  # noqa: RUF071 - of texts
        sizes = {one.url: one.version.size for one in list_url(folder)}
        yield from ((one, sizes.get(one, 0)) for one in urls)

    # --- their bytes

    def open(self, file: ViewedFile) -> OpenedFile:
        """Opens a file as it is now.

        Raises:
            UnsafePath: it has become a link that leads out of its folder.
            ShardError: it cannot be opened.
        """
        if is_url(file.location):
            source = self._source_of(file.location)
            self._urls[file.location] = source.size()
            version = repr((source.size(), getattr(source, "version", None)))
            return OpenedFile(source.size(), _digest(version.encode()), source=source)
        self._refuse_outside(file.location)
        descriptor, status = open_regular(file.location)
        opened = os.fdopen(descriptor, "rb", buffering=0)
        if file.kind == "recording":
            # What is written stays as it is, and more follows. A new recording begins in another way.
            beginning = _digest(opened.read(_HEAD_BYTES))
            return OpenedFile(status.st_size, f"r-{status.st_ino:x}-{beginning}", opened)
        version = f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"
        return OpenedFile(status.st_size, version, opened)

    def forget(self, file: ViewedFile) -> None:
        """Opens a URL again the next time: its content has changed, or its server has failed."""
        self._remote.pop(file.location)

    def _source_of(self, url: str) -> ByteSource:
        return self._remote.get_or_make(url, lambda: open_source(url))


def _facts_of(path: str) -> tuple[int, int] | None:
    """Size and modification time, which change with the content; None without a file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def _is_live(file: ViewedFile) -> bool | None:
    """Whether a process is writing a recording now; None if that cannot be known."""
    # The recorder of an empty journal may be about to lock it, and must not find it locked.
    if is_url(file.location) or file.size == 0 or os.name == "nt":
        return None
    try:
        return is_being_recorded(file.location)
    except ShardError:
        return None


class _Catalogued:
    """The episodes that catalogues name.

    Args:
        catalogues: local files.
        folders: where the episodes may be; none means the folder of each catalogue.
    """

    def __init__(self, catalogues: Sequence[str], folders: Sequence[str]) -> None:
        self.roots = list(folders) or [os.path.dirname(path) for path in catalogues]
        self.paths: set[str] = set()
        """Of the episodes; of one in a pack, with its name in the pack."""
        self.files: dict[str, str] = {}
        """The files to show, and in which folder each is."""
        self.left_out: list[LeftOut] = []
        for catalogue in catalogues:
            folder = os.path.dirname(catalogue)
            for path in read_catalogue(catalogue):
                try:
                    self._add(NamedEpisode(path, folder), catalogue)
                except ShardError as error:  # noqa: PERF203 - one episode at a time
                    problem = str(error)[:_LONGEST_PROBLEM]
                    self.left_out.append(LeftOut(path[:_LONGEST_PROBLEM], problem))

    def _add(self, named: NamedEpisode, catalogue: str) -> None:
        location = os.path.realpath(named.file)
        root = next((root for root in self.roots if _is_in(location, os.path.realpath(root))), None)
        if root is None:
            raise UnsafePath(
                "the catalogue names an episode in another folder",
                path=named.path,
                expected=f"an episode in {' or '.join(self.roots)}",
                hint=f"name its folder too: wshard view {os.path.basename(catalogue)} FOLDER",
            )
        self.paths.add(named.path)
        self.files[named.file] = root


def _beside(path: str) -> Iterator[str]:
    """The files that belong to one that was named: overviews, sidecars, chunks, and the rest of its recording."""
    if path.endswith(PARTIAL_SUFFIX):
        recording = RecordingFiles.of(path)
        candidates = [recording.path, recording.names.manifest]
        for index in count():
            both = [recording.journal(index), recording.names.chunk(index)]
            candidates += both
            if not any(map(os.path.exists, both)):
                break
        yield from (one for one in candidates if one != path and os.path.exists(one))
        return
    overview = overview_path(path)
    if os.path.exists(overview):
        yield overview
    sidecars = path + SIDECAR_SUFFIX
    if os.path.isdir(sidecars):
        yield from walk_folder(sidecars, _EPISODE).paths()
    with suppress(ShardError):  # it may be gone by now
        if _kind(path, read_file(path, _HEAD_BYTES)) in ("manifest", "set"):
            yield from (chunk for chunk, _ in _chunks_of(path))
            yield from RecordingFiles.of(path).journals()


def _chunks_of(manifest: str) -> Iterator[tuple[str, int]]:
    """The chunks of an episode, with their sizes. What is wrong with a manifest, opening it says."""
    with suppress(ShardError):
        opened = Manifest.read(manifest)
        for row in opened.files:
            with suppress(UnsafePath):
                yield opened.resolve(row), row.size or 0


def _kind(name: str, head: bytes) -> str:
    if head.startswith(JOURNAL_MAGIC) or (not head and name.endswith(_EPISODE + PARTIAL_SUFFIX)):
        return "recording"
    if _IN_SIDECARS in name:
        return "sidecar"
    if name.endswith(_OVERVIEW):
        return "overview"
    if name.endswith(_SET):
        return "set"
    if head[8:12] in _PACK_MARKERS:
        return "pack"
    if head.startswith(_MAGIC):
        return _ROLES.get(head[5:6], "container")
    # Opening it says what is wrong with it.
    return "pack" if name.endswith(_PACK) else "episode" if name.endswith(_EPISODE) else "container"


def _is_in(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip(os.sep) + os.sep)


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=12).hexdigest()


def _without_secrets(url: str) -> str:
    """Host and path of a URL, without user, password and query."""
    parts = urlsplit(url)
    return parts.netloc.rpartition("@")[2] + parts.path


def _folder_of(url: str, first: str) -> str:
    """How the names of the files of one URL begin."""
    if not is_url(url):
        return ""
    shown = _without_secrets(url)
    return shown.rpartition("/")[0] + "/" if first == url else shown.rstrip("/") + "/"


def _title_of(given: str) -> str:
    if is_url(given):
        return _without_secrets(given)
    name = os.path.basename(os.path.abspath(given))
    return name + "/" if os.path.isdir(given) else name
