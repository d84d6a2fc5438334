"""Ingest episodes: each becomes vectors with their facts, sent in batches, read a few megabytes at a time."""

from __future__ import annotations

import hashlib
import os
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from shard_format.canonical_json import canonical
from shard_format.errors import DATA_ERRORS, InvalidArgument, ShardError, check_choice
from shard_format.listing import walk_folder
from shard_format.parallel import ordered_parallel
from shard_format.registry import Role
from shard_format.sources import is_url
from wshard._files import open_wshard
from wshard._sidecar import SIDECAR_SUFFIX, ground_truth
from wshard.search._client import SearchClient, ServerOptions
from wshard.search._dialects import Document
from wshard.search._vectors import (
    PaddedProjection,
    dimension_of,
    embed,
    entries_of,
    find_observation,
    inputs_of,
    total_of,
    windows_of,
)
from wshard.types import Episode

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from shard_format.reader import ShardReader
    from wshard.search._dialects import Key
    from wshard.search._vectors import Embedder, Range

    Source = str | os.PathLike[str] | Episode

# Observations that are embedded together, and numbers that are sent together, whatever `batch_size` says.
_MOST_INPUT_BYTES: Final = 32 << 20
_MOST_NUMBERS_SENT: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Ingested:
    """What was stored of one episode."""

    episode_id: str
    file_path: str
    windows: int
    """Vectors of windows."""


@dataclass(frozen=True, slots=True)
class IngestFailure:
    """A file that was left out, and why."""

    path: str
    error: ShardError


@dataclass(slots=True)
class FolderReport:
    """What became of the files of a folder."""

    ingested: list[Ingested] = field(default_factory=list)
    """In the order of the files' names."""
    failures: list[IngestFailure] = field(default_factory=list)
    """Files that were left out because of an error, with `on_error="skip"`."""
    manifests: list[str] = field(default_factory=list)
    """Manifests of chunked episodes: their chunks were ingested instead."""

    @property
    def windows(self) -> int:
        """Vectors of windows, in all."""
        return sum(one.windows for one in self.ingested)


class TrajectoryIngestor:
    """Stores vectors of episodes in a vector database, for `TrajectoryRetriever` to find.

    An episode's vector is `embedder(mean)`: the mean over time of its first observation that is an
    array, or of `channel`, one step flattened, float32. Each window has one too. Values that are not
    finite do not count in means and in the total reward. Channels are read in pieces of some megabytes and
    checked; only a channel that is compressed as a single frame is decoded whole. The vectors of an
    episode are held until all of it was read, so that nothing of a damaged file is stored.

    An embedder that declares `takes = "window"` gets the steps themselves, float32 [T, D]: those of a window, and for
    the episode's own vector all of them, which are then in memory together.

    Ingesting an episode again replaces it. The public server gives ids of its own, so the ingestor keeps them in a
    file, `ServerOptions.id_map`, and deletes the old documents after it stored the new ones. The bridge dialect
    replaces documents by their ids, and keeps windows of a longer earlier version.

    Args:
        url: of the server.
        embedder: from one mean observation, float32 [D], to a vector; see `Embedder`. Search with the
            same one. The default is `PaddedProjection()`.
        window: steps of a window.
        stride: steps from one window's start to the next.
        root: the folder that holds all files. The index then names files relative to it, so that it can be used on
            another machine, with its root. None stores absolute paths.
        channel: which observation stands for an episode; None for the first.
        api_key: the server's token.
        options: dialect, timeouts, retries, batches, pace, tenant, and the names of the collections.
    """

    def __init__(
        self,
        url: str = "http://localhost:8080",
        embedder: Embedder | None = None,
        *,
        window: int = 32,
        stride: int = 16,
        root: str | os.PathLike[str] | None = None,
        channel: str | None = None,
        api_key: str | None = None,
        options: ServerOptions | None = None,
    ) -> None:
        for name, value in (("window", window), ("stride", stride)):
            if value < 1:
                raise InvalidArgument(f"{name} cannot be {value}", expected="at least 1")
        self.embedder: Embedder = PaddedProjection() if embedder is None else embedder
        self.window, self.stride = window, stride
        self._root = None if root is None else os.path.abspath(root)
        self._client = SearchClient(url, api_key, options)
        self._dimension = dimension_of(self.embedder)
        self._channel = channel
        self._is_ready = False

    @property
    def url(self) -> str:
        """The address of the server, without secrets."""
        return self._client.url

    def health(self) -> bool:
        """Whether the server is ready for requests.

        Raises:
            SearchServerError: the server cannot be reached.
        """
        return self._client.is_ready()

    def drop_collections(self) -> None:
        """Remove both collections from the server, with everything in them. The files stay."""
        for collection in (self._client.options.episodes, self._client.options.windows):
            self._client.drop(collection)
        self._is_ready = False

    def ensure_collections(self, dimension: int | None = None) -> None:
        """Create both collections, unless they exist. Ingesting does this for you.

        Args:
            dimension: the size of the vectors, where the embedder does not have it as an attribute.

        Raises:
            InvalidArgument: the size of the vectors is not known yet.
        """
        if dimension is not None and dimension < 1:
            raise InvalidArgument(f"dimension cannot be {dimension}", expected="at least 1")
        self._dimension = dimension or self._dimension
        if self._dimension is None:
            raise InvalidArgument(
                "the size of the vectors is not known",
                hint="pass dimension=, or ingest an episode, which creates the collections",
            )
        if not self._is_ready:
            for collection in (self._client.options.episodes, self._client.options.windows):
                self._client.create(collection, self._dimension)
            self._is_ready = True

    # --- one episode

    def ingest(
        self,
        source: Source,
        *,
        path: str | os.PathLike[str] | None = None,
        windows: bool = True,
    ) -> Ingested:
        """Store the vector of an episode and those of its windows.

        Args:
            source: a file, a URL, or an episode.
            path: where you saved an episode that was made in memory; references name it.
            windows: False leaves out the windows.

        Raises:
            ShardError: the file cannot be read, or has no observation that can be averaged.
            SearchServerError: the server cannot be reached, or refuses.
        """
        opened = nullcontext(source) if isinstance(source, Episode) else open_wshard(source)
        with opened as episode:
            documents = self._documents(episode, path, windows)
        batches = _Batches(self._client, self.ensure_collections)
        done = batches.add(documents)
        batches.finish()
        return done

    def ingest_episode(
        self, source: Source, *, path: str | os.PathLike[str] | None = None
    ) -> Ingested:
        """Store the vector of an episode, without windows; otherwise like `ingest`."""
        return self.ingest(source, path=path, windows=False)

    def ingest_timesteps(
        self, source: Source, *, path: str | os.PathLike[str] | None = None
    ) -> Ingested:
        """`ingest` under the name that existing code calls."""
        return self.ingest(source, path=path)

    # --- many

    def ingest_folder(
        self,
        folder: str | os.PathLike[str],
        *,
        windows: bool = True,
        jobs: int = 1,
        on_error: Literal["raise", "skip"] = "raise",
        progress: Callable[[int, int, str], None] | None = None,
    ) -> FolderReport:
        """Store all episodes (`*.wshard`) of a folder and its subfolders.

        Chunks of longer episodes are stored one by one, their manifests are not.

        Args:
            folder: where to look.
            windows: False leaves out the windows.
            jobs: how many files to read at once; the embedder is called from as many threads.
            on_error: `"skip"` leaves out files that cannot be ingested and reports them. Errors of
                the server always stop.
            progress: called with the files done, the files in all, and the last one's path.

        Raises:
            ShardError: as `ingest`, and where two files hold the same episode. Then some of the others
                are stored and some are not; ingest the folder again to complete it.
        """
        check_choice("on_error", on_error, ("raise", "skip"))
        if jobs < 1:
            raise InvalidArgument("jobs must be at least 1", found=jobs)
        root = os.fspath(folder)
        if not os.path.isdir(root):
            raise InvalidArgument("not a folder", path=root, hint="ingest() takes a single file")
        listing = walk_folder(root, ".wshard", enter=lambda name: not name.endswith(SIDECAR_SUFFIX))
        files = listing.paths()

        def read(file: str) -> tuple[list[Document], ShardError | None]:
            """The documents of a file, of a manifest none; and why it cannot be ingested."""
            try:
                with open_wshard(file) as episode:
                    origin = episode.origin
                    is_manifest = origin is not None and origin.reader.role == Role.MANIFEST
                    return [] if is_manifest else self._documents(episode, None, windows), None
            except DATA_ERRORS as error:
                return [], error.located(path=file)

        report = FolderReport()
        batches = _Batches(self._client, self.ensure_collections)
        every = zip(files, ordered_parallel(files, read, jobs), strict=True)
        for number, (file, (documents, error)) in enumerate(every, start=1):
            failure = error or batches.clash(documents)
            if failure is not None:
                if on_error == "raise":
                    raise failure
                report.failures.append(IngestFailure(file, failure))
            elif documents:
                report.ingested.append(batches.add(documents))
            else:
                report.manifests.append(file)
            if progress is not None:
                progress(number, len(files), file)
        batches.finish()
        return report

    def _documents(
        self, episode: Episode, path: str | os.PathLike[str] | None, windows: bool
    ) -> list[Document]:
        """The documents of an episode and of its windows.

        All of them before the first is sent, so that nothing of a damaged file is stored.
        """
        facts = facts_of(episode, path, self._root)
        found: list[Document] = []
        try:
            channel = find_observation(episode, self._channel)
            cut = windows_of(episode.length, self.window, self.stride) if windows else []
            ranges = [*entries_of(episode, channel, cut), (0, channel.length)]
            about: list[Range | None] = [*cut, None]
            waiting: dict[int, NDArray[np.float32]] = {}
            size = done = 0
            for number, observed in inputs_of(self.embedder, channel, ranges):
                waiting[number] = observed
                size, done = size + observed.nbytes, done + 1
                if done == len(ranges) or size >= _MOST_INPUT_BYTES:
                    vectors = embed(self.embedder, list(waiting.values()), self._dimension)
                    self._dimension = vectors.shape[1]
                    made = zip(waiting, vectors, strict=True)
                    # A vector of zeros has no direction, so no search can find it.
                    found += [Document(facts, v, about[of]) for of, v in made if v.any()]
                    waiting.clear()
                    size = 0
            if all(document.window is not None for document in found):
                raise InvalidArgument(
                    "the vector of the episode is all zeros, which have no direction to compare",
                    entry=channel.block or channel.name,
                    hint="name another observation with channel=, or use another embedder",
                )
        except ShardError as error:
            raise error.located(path=facts["file_path"]) from None
        return found

    def __repr__(self) -> str:
        return f"<TrajectoryIngestor {self.url}, {self._client.options.dialect} dialect>"


class _Batches:
    """Collects documents and sends them in batches.

    Owns: the documents that wait, by collection, and the keys of the episodes that it has seen.
    """

    def __init__(self, client: SearchClient, ensure_collections: Callable[[], None]) -> None:
        names = (client.options.windows, client.options.episodes)
        self._client = client
        self._ensure_collections = ensure_collections
        self._waiting: dict[str, list[Document]] = {name: [] for name in names}
        self._replaced: dict[str, set[Key]] = {name: set() for name in names}
        self._seen: dict[Key, str] = {}

    def clash(self, documents: list[Document]) -> InvalidArgument | None:
        """Why not to add an episode that another file of this run holds too: one would replace the other."""
        other = self._seen.get(documents[0].key) if documents else None
        if other is None:
            return None
        return InvalidArgument(
            f"two files hold episode {documents[0].key[0]!r}",
            path=documents[0].facts["file_path"],
            expected="another id, or another chunk",
            found=f"the same in {other}",
            hint="ingest one of them, or save it with another id",
        )

    def add(self, documents: list[Document]) -> Ingested:
        """Take the documents of an episode, and send those that fill a batch."""
        options, facts = self._client.options, documents[0].facts
        self._seen[documents[0].key] = facts["file_path"]
        most = min(options.batch_size, _MOST_NUMBERS_SENT // documents[0].vector.size or 1)
        for document in documents:
            collection = options.episodes if document.window is None else options.windows
            self._waiting[collection].append(document)
            if len(self._waiting[collection]) >= most:
                self._send(collection)
        return Ingested(facts["episode_id"], facts["file_path"], len(documents) - 1)

    def finish(self) -> None:
        """Send the rest; windows first, so that an episode that is found has its windows."""
        for collection in self._waiting:
            self._send(collection)

    def _send(self, collection: str) -> None:
        documents, self._waiting[collection] = self._waiting[collection], []
        if not documents:
            return
        self._ensure_collections()
        new = {document.key for document in documents} - self._replaced[collection]
        self._client.replace(collection, documents, new)
        self._replaced[collection] |= new


def facts_of(
    episode: Episode, path: str | os.PathLike[str] | None = None, root: str | None = None
) -> dict[str, Any]:
    """What the index stores about an episode besides its vector; reads its rewards.

    Raises:
        InvalidArgument: the episode is in no file, so a search result could not be loaded; or the file is not below
            the root.
    """
    if path is None and episode.origin is not None:
        path = episode.origin.path
    name = "" if path is None else os.fspath(path)
    where = name if is_url(name) or not name else os.path.abspath(name)
    if not where or not (is_url(where) or os.path.isfile(where)):
        raise InvalidArgument(
            f"episode {episode.id!r} is in no file",
            found=repr(name) if name else None,
            hint="save it, then ingest the file, or say where it is with path=",
        )
    if episode.origin is None or path is not episode.origin.path:
        with open_wshard(where, sidecars=False) as stored:
            assert stored.origin is not None
            content = content_hash(stored.origin.reader)
    else:
        content = content_hash(episode.origin.reader)
    rewards, chunk = episode.rewards, episode.chunk_index
    facts = {"episode_id": episode.id, "env_id": episode.env_id, "length_T": episode.length}
    return {
        **facts,
        "file_path": _relative(where, root),
        "content_hash": content,
        **({} if rewards is None else {"total_reward": total_of(rewards)}),
        **({} if chunk is None else {"chunk_index": chunk}),
    }


def content_hash(reader: ShardReader) -> str:
    """A hash of what a file records, from the checksums in its index: the same for every compression."""
    facts = {name: list(fact) for name, fact in ground_truth(reader).items()}
    return hashlib.sha256(canonical(facts, None)).hexdigest()


def _relative(path: str, root: str | None) -> str:
    """The path as the index names it: below the root, with forward slashes."""
    if root is None or is_url(path):
        return path
    relative = os.path.relpath(path, root)
    if relative.split(os.sep)[0] == os.pardir:
        raise InvalidArgument(
            "the file is not below the root", path=path, expected=f"a file below {root}"
        )
    return relative.replace(os.sep, "/")
