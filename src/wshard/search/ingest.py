"""Ingesting: episodes become vectors with their facts, in batches, read a few megabytes at a time."""

from __future__ import annotations

import os
import threading
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from shard_format._parallel import for_each
from shard_format.errors import InvalidArgument, ShardError
from shard_format.registry import Role
from shard_format.sources import is_url
from wshard.episode import Episode
from wshard.reader import SIDECAR_SUFFIX, load_wshard
from wshard.search.client import Client
from wshard.search.documents import EPISODES, WINDOWS, Document, EpisodeFacts
from wshard.search.embed import PaddedProjection, dimension_of, embed
from wshard.search.pooling import entries_of, means_of, observed, total_of, windows_of
from wshard.search.server_dialect import MOST_DOCUMENTS
from wshard.search.transport import SearchServerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from wshard.search.documents import DialectName, Key
    from wshard.search.embed import Embedder
    from wshard.search.pooling import Range

__all__ = ["Failure", "FolderReport", "Ingested", "TrajectoryIngestor"]


# Means that are embedded together, and numbers that are sent together, whatever `batch_size` says.
_MOST_MEANS_BYTES: Final = 32 << 20
_MOST_NUMBERS_SENT: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Ingested:
    """What was stored of one episode."""

    episode_id: str
    file_path: str
    episodes: int
    """Vectors of the whole episode: 1, or 0 if only windows were asked for."""
    windows: int
    """Vectors of windows."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A file that was left out, and why."""

    path: str
    error: ShardError


@dataclass(slots=True)
class FolderReport:
    """What became of the files of a folder."""

    ingested: list[Ingested] = field(default_factory=list)
    """In the order of the files' names."""
    failures: list[Failure] = field(default_factory=list)
    """Files that were left out because of an error, with `on_error="skip"`."""
    manifests: list[str] = field(default_factory=list)
    """Manifests of chunked episodes: their chunks were ingested instead."""

    @property
    def windows(self) -> int:
        """Vectors of windows, in all."""
        return sum(one.windows for one in self.ingested)


class TrajectoryIngestor:
    """Stores what episodes look like in a vector database, for `TrajectoryRetriever` to find.

    An episode's vector is `embedder(mean)`: the mean over time of its first observation that is an
    array, or of `channel`, one step flattened, float32. Each window has one too. Values that are not
    finite are left out of means and of the total reward. Channels are read in pieces of some
    megabytes and checked; only one that is compressed as a single frame must be decoded whole. The
    vectors of one episode are held until all of it was read, so that nothing of a damaged file is stored.

    Ingesting an episode again replaces it. The bridge dialect does so by its ids, and keeps windows of
    a longer earlier version; the server dialect looks for the old documents and deletes them after the new
    ones are stored.

    Args:
        url: of the server.
        embedder: from one mean observation, float32 [D], to a vector; see `Embedder`.
            `PaddedProjection()` if left out. Search with the same one.
        dialect: `"bridge"`, or `"server"` for the public DeepData server.
        window: steps of a window.
        stride: steps from one window's start to the next.
        timeout: seconds after which a try is given up.
        api_key: the server's token.
        retries: how often a request is sent again where that is safe.
        batch_size: documents in a request, at most.
        dimension: size of the vectors, where the embedder does not say and
            `ensure_collections` is called before anything is ingested.
        channel: which observation stands for an episode; None for the first.
        episodes: the collection of episodes.
        windows: the collection of windows.
    """

    def __init__(
        self,
        url: str = "http://localhost:8080",
        embedder: Embedder | None = None,
        *,
        dialect: DialectName = "bridge",
        window: int = 32,
        stride: int = 16,
        timeout: float = 30.0,
        api_key: str | None = None,
        retries: int = 3,
        batch_size: int = 256,
        dimension: int | None = None,
        channel: str | None = None,
        episodes: str = EPISODES,
        windows: str = WINDOWS,
    ) -> None:
        for name, value, most in (
            ("window", window, None),
            ("stride", stride, None),
            ("batch_size", batch_size, MOST_DOCUMENTS),
            ("dimension", 1 if dimension is None else dimension, None),
        ):
            if value < 1 or (most is not None and value > most):
                limit = "at least 1" if most is None else f"1 to {most}"
                raise InvalidArgument(f"{name} cannot be {value}", expected=limit)
        self.embedder: Embedder = PaddedProjection() if embedder is None else embedder
        self.window, self.stride = window, stride
        self._client = Client(url, dialect, timeout=timeout, api_key=api_key, retries=retries)
        self._batch_size = batch_size
        self._dimension = dimension or dimension_of(self.embedder)
        self._channel = channel
        self._collections = {"episodes": episodes, "windows": windows}
        self._are_made = False
        self._making = threading.Lock()

    @property
    def url(self) -> str:
        """Of the server, without secrets."""
        return self._client.url

    def ensure_collections(self) -> None:
        """Makes both collections, unless they are there. Ingesting does so by itself.

        Raises:
            InvalidArgument: the size of the vectors is not known yet.
        """
        if self._dimension is None:
            raise InvalidArgument(
                "the size of the vectors is not known",
                hint="give dimension=, or ingest an episode, which makes the collections",
            )
        with self._making:
            if not self._are_made:
                for collection in self._collections.values():
                    self._client.create(collection, self._dimension)
                self._are_made = True

    # --- one episode

    def ingest(
        self,
        source: str | os.PathLike[str] | Episode,
        *,
        path: str | os.PathLike[str] | None = None,
    ) -> Ingested:
        """Stores the vector of an episode and those of its windows.

        Args:
            source: a file, a URL, or an episode.
            path: where an episode that was made in memory has been saved; references name it.

        Raises:
            ShardError: the file cannot be read, or has no observation that can be averaged.
            SearchServerError: the server cannot be reached, or refuses.
        """
        return self._ingest(source, path, whole=True, windows=True)

    def ingest_episode(
        self,
        source: str | os.PathLike[str] | Episode,
        *,
        path: str | os.PathLike[str] | None = None,
    ) -> Ingested:
        """Stores the vector of an episode, without windows; otherwise as `ingest`."""
        return self._ingest(source, path, whole=True, windows=False)

    def ingest_windows(
        self,
        source: str | os.PathLike[str] | Episode,
        *,
        path: str | os.PathLike[str] | None = None,
    ) -> Ingested:
        """Stores the vectors of an episode's windows only; otherwise as `ingest`."""
        return self._ingest(source, path, whole=False, windows=True)

    def _ingest(
        self,
        source: str | os.PathLike[str] | Episode,
        path: str | os.PathLike[str] | None,
        *,
        whole: bool,
        windows: bool,
    ) -> Ingested:
        opened = nullcontext(source) if isinstance(source, Episode) else load_wshard(source)
        with opened as episode:
            sending = _Sending(self)
            done = self._add(sending, episode, path, whole=whole, windows=windows)
            sending.finish()
        return done

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
        """Stores all episodes of a folder and its subfolders, `*.wshard`.

        Chunks of longer episodes are stored one by one, their manifests are not.

        Args:
            folder: where to look.
            windows: False leaves out the windows.
            jobs: how many files are read at once; the embedder is called from as many threads.
            on_error: `"skip"` leaves out files that cannot be ingested and reports them. Errors of
                the server always stop.
            progress: called with the files done, the files in all, and the last one's path; from one
                thread at a time.

        Raises:
            ShardError: as `ingest`, and where two files hold the same episode. Then some of the others
                are stored and some are not; ingesting the folder again completes it.
        """
        if jobs < 1 or on_error not in ("raise", "skip"):
            raise InvalidArgument(
                "jobs or on_error cannot be like this",
                expected='jobs >= 1 and on_error "raise" or "skip"',
                found=f"jobs {jobs}, on_error {on_error!r}",
            )
        files = _episode_files(folder)
        report = FolderReport()
        sending = _Sending(self)
        results: dict[str, Ingested] = {}
        lock = threading.Lock()
        done = 0

        def take(file: str) -> None:
            nonlocal done
            try:
                with load_wshard(file) as episode:
                    if _is_manifest(episode):
                        with lock:
                            report.manifests.append(file)
                    else:
                        results[file] = self._add(
                            sending, episode, None, whole=True, windows=windows
                        )
            except SearchServerError:
                raise
            except ShardError as error:
                error.located(path=file)
                if on_error == "raise":
                    raise
                with lock:
                    report.failures.append(Failure(file, error))
            with lock:
                done += 1
                if progress is not None:
                    progress(done, len(files), file)

        for_each(files, take, jobs)
        sending.finish()
        report.ingested = [results[file] for file in files if file in results]
        report.failures.sort(key=lambda failure: failure.path)
        report.manifests.sort()
        return report

    def _add(
        self,
        sending: _Sending,
        episode: Episode,
        path: str | os.PathLike[str] | None,
        *,
        whole: bool,
        windows: bool,
    ) -> Ingested:
        """Hands the documents of one episode over; they are sent when there are enough."""
        facts = facts_of(episode, path)
        try:
            # All of them before the first is sent: of a damaged file nothing is stored.
            documents = list(self._documents(episode, facts, whole=whole, windows=windows))
            sending.announce(facts)
        except ShardError as error:
            raise error.located(path=facts.file_path) from None
        for document in documents:
            sending.add(document)
        windowed = len(documents) - int(whole)
        return Ingested(facts.episode_id, facts.file_path, int(whole), windowed)

    def _documents(
        self, episode: Episode, facts: EpisodeFacts, *, whole: bool, windows: bool
    ) -> Iterator[Document]:
        channel = observed(episode, self._channel)
        cut = windows_of(facts.length, self.window, self.stride) if windows else []
        ranges = entries_of(episode, channel, cut)
        about: list[Range | None] = [*cut]
        if whole:
            ranges.append((0, channel.length))
            about.append(None)
        waiting: list[tuple[int, NDArray[np.float32]]] = []
        size = 0
        for number, mean in means_of(channel, ranges):
            waiting.append((number, mean))
            size += mean.nbytes
            if size >= _MOST_MEANS_BYTES:
                yield from self._embedded(waiting, facts, about)
                waiting, size = [], 0
        yield from self._embedded(waiting, facts, about)

    def _embedded(
        self,
        means: list[tuple[int, NDArray[np.float32]]],
        facts: EpisodeFacts,
        about: list[Range | None],
    ) -> Iterator[Document]:
        if not means:
            return
        vectors = embed(self.embedder, [mean for _, mean in means], self._dimension)
        self._dimension = vectors.shape[1]
        for (number, _), vector in zip(means, vectors, strict=True):
            yield Document(facts, vector, about[number])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_making": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._making = threading.Lock()

    def __repr__(self) -> str:
        return f"<TrajectoryIngestor {self.url}, {self._client.dialect} dialect>"


class _Sending:
    """Collects documents and sends them in batches; whoever fills a batch waits until it is sent.

    Owns: the documents that wait, by collection, and the keys of the episodes that it has seen.
    """

    def __init__(self, ingestor: TrajectoryIngestor) -> None:
        self._ingestor = ingestor
        self._client = ingestor._client
        self._waiting: dict[str, list[Document]] = {"episodes": [], "windows": []}
        self._looked_up: dict[str, set[Key]] = {"episodes": set(), "windows": set()}
        self._seen: dict[Key, str] = {}
        self._lock = threading.RLock()

    def announce(self, facts: EpisodeFacts) -> None:
        """Refuses an episode that another file of this run holds too: one would replace the other."""
        with self._lock:
            other = self._seen.setdefault(facts.key, facts.file_path)
        if other != facts.file_path:
            raise InvalidArgument(
                f"two files hold episode {facts.episode_id!r}",
                expected="another id, or another chunk",
                found=f"the same in {other}",
                hint="ingest one of them, or save it with another id",
            )

    def add(self, document: Document) -> None:
        kind = "episodes" if document.window is None else "windows"
        with self._lock:
            waiting = self._waiting[kind]
            waiting.append(document)
            most = min(self._ingestor._batch_size, _MOST_NUMBERS_SENT // document.vector.size or 1)
            if len(waiting) >= most:
                self._send(kind)

    def finish(self) -> None:
        """Sends what is left; windows first, so that an episode that is found has its windows."""
        with self._lock:
            self._send("windows")
            self._send("episodes")

    def _send(self, kind: str) -> None:
        documents, self._waiting[kind] = self._waiting[kind], []
        if not documents:
            return
        self._ingestor.ensure_collections()
        collection = self._ingestor._collections[kind]
        new = {document.facts.key for document in documents} - self._looked_up[kind]
        old: list[Any] = []
        if new:
            # Looked for before anything is stored: later the old could not be told from the new.
            old = self._client.stored_ids(collection, documents[0].vector.tolist(), new)
            self._looked_up[kind] |= new
        self._client.insert(collection, documents)
        self._client.delete(collection, old)


def facts_of(episode: Episode, path: str | os.PathLike[str] | None = None) -> EpisodeFacts:
    """What is stored about an episode besides its vector; reads its rewards.

    Raises:
        InvalidArgument: it is in no file, so that nothing could be loaded when it is found.
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
    rewards = episode.rewards
    return EpisodeFacts(
        episode.id,
        episode.env_id,
        episode.length,
        None if rewards is None else total_of(rewards),
        where,
        episode.chunk_index,
    )


def _episode_files(folder: str | os.PathLike[str]) -> list[str]:
    root = Path(folder)
    if not root.is_dir():
        raise InvalidArgument(
            "this is no folder", path=os.fspath(folder), hint="ingest() takes a single file"
        )
    return sorted(
        str(file)
        for file in root.rglob("*.wshard")
        if file.is_file()
        and not any(part.endswith(SIDECAR_SUFFIX) for part in file.relative_to(root).parts[:-1])
    )


def _is_manifest(episode: Episode) -> bool:
    return episode.origin is not None and episode.origin.reader.role == Role.MANIFEST
