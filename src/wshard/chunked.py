"""Long episodes in several files: chunks, and a manifest that names them (spec/wshard.md, section 11)."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from shard_format import FileReference, Manifest, ShardReader
from shard_format.errors import (
    BadMetadata,
    ChunkDiscontinuity,
    InvalidArgument,
    MissingFile,
    ReferenceMismatch,
    ShardError,
    ShardIOError,
    UnsafePath,
)
from shard_format.registry import DEFAULT_LIMITS
from wshard.channels import Channel
from wshard.chunk_files import ChunkNames, ManifestWriter
from wshard.editing import slice_episode
from wshard.joining import join
from wshard.metadata import LARGEST
from wshard.names import check_id
from wshard.origin import Origin
from wshard.reader import episode_of, load_wshard, open_reader
from wshard.writer import save_wshard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from typing_extensions import Self

    from wshard.episode import Episode

__all__ = [
    "ChunkManifest",
    "ChunkedEpisodeReader",
    "ChunkedEpisodeWriter",
    "validate_chunk_continuity",
]

_ROW_FIELDS: Final = ("chunk_index", "length_T")


@dataclass(frozen=True, slots=True)
class ChunkManifest:
    """What a manifest says about the chunks of an episode. Stands for its path where one is needed."""

    episode_id: str
    env_id: str
    total_timesteps: int
    files: Manifest
    """The references to the chunk files."""
    path: str | None = None
    """The manifest's own file."""
    total_chunks: int | None = None
    """How many chunks it claims, where it says so."""
    metadata: Mapping[str, Any] | None = None
    """Of the whole episode, where it says so."""

    @property
    def chunks(self) -> list[dict[str, Any]]:
        """Its rows, as they are stored."""
        return [reference.to_fields() for reference in self.files.files]

    @classmethod
    def read(cls, source: str | os.PathLike[str] | ShardReader) -> ChunkManifest:
        """The manifest in a file of role 4, with every field checked (W-CHK-1, W-CHK-2)."""
        manifest = Manifest.read(source)
        path = source.name if isinstance(source, ShardReader) else os.fspath(source)
        try:
            return cls._checked(manifest, path)
        except ShardError as error:
            raise error.located(path=path) from None

    @classmethod
    def _checked(cls, manifest: Manifest, path: str) -> ChunkManifest:
        fields = manifest.fields
        if manifest.list_key != "chunks":
            raise _wrong("'chunks'", None, "a list")
        for key, needed in (("episode_id", True), ("env_id", False)):
            value = fields.get(key)
            if not isinstance(value, str) and (needed or value is not None):
                raise _wrong(f"'{key}'", value, "a string")
        for key, needed in (("total_timesteps", True), ("total_chunks", False)):
            value = fields.get(key)
            is_count = type(value) is int and 0 <= value <= LARGEST
            if not is_count and (needed or value is not None):
                raise _wrong(f"'{key}'", value, "an integer >= 0")
        metadata = fields.get("metadata")
        if metadata is not None and not isinstance(metadata, dict):
            raise _wrong("'metadata'", metadata, "an object")
        for number, reference in enumerate(manifest.files):
            _check_row(number, reference)
        return cls(
            fields["episode_id"],
            fields.get("env_id") or "",
            fields["total_timesteps"],
            manifest,
            path,
            fields.get("total_chunks"),
            metadata,
        )

    def __fspath__(self) -> str:
        if self.path is None:
            raise InvalidArgument("the manifest is not a file yet")
        return self.path

    def __str__(self) -> str:
        return self.path or f"manifest of {self.episode_id!r}"


def _check_row(number: int, reference: FileReference) -> None:
    uri, row = reference.uri, reference.extra
    if "/" in uri or "\\" in uri or uri in (".", ".."):
        raise UnsafePath(
            f"chunk {number} is not in the manifest's folder",
            expected="the name of a file",
            found=repr(uri),
            rule="W-CHK-2",
        )
    for key in _ROW_FIELDS:
        value = row.get(key)
        if type(value) is not int or not 0 <= value <= LARGEST:
            raise _wrong(f"'{key}' of row {number}", value, "an integer >= 0")
    span = row.get("timestep_range")
    if span is not None and (
        not isinstance(span, list)
        or len(span) != 2
        or not all(type(step) is int and 0 <= step <= LARGEST for step in span)
    ):
        raise _wrong(f"'timestep_range' of row {number}", span, "a list of two integers >= 0")
    total = row.get("total_chunks")
    if total is not None and (type(total) is not int or total < 0):
        raise _wrong(f"'total_chunks' of row {number}", total, "an integer >= 0")


def _wrong(what: str, found: object, expected: str) -> BadMetadata:
    return BadMetadata(
        f"{what} is not {expected}", entry="meta/manifest", found=repr(found)[:80], rule="W-CHK-1"
    )


def validate_chunk_continuity(
    manifest: ChunkManifest | str | os.PathLike[str],
    *,
    check_files: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Checks that the chunks make one whole episode.

    Args:
        manifest: the manifest, or its file.
        check_files: also that every file is there, unchanged, and says the same of itself.
        progress: called with the bytes done and the bytes in all.

    Raises:
        ChunkDiscontinuity: a gap, a repeat, an overlap or a wrong length; names the chunk.
        MissingFile, ReferenceMismatch: a file is not there, or not the one that was written.
    """
    if not isinstance(manifest, ChunkManifest):
        manifest = ChunkManifest.read(manifest)
    try:
        _check_continuity(manifest)
        if check_files and manifest.path is not None:
            manifest.files.verify(progress=progress)
            for row, reference in _in_order(manifest):
                with _open_chunk(manifest, reference) as reader:
                    _check_chunk(manifest, row, episode_of(reader))
    except ShardError as error:
        raise error.located(path=manifest.path) from None


def _in_order(manifest: ChunkManifest) -> list[tuple[Mapping[str, Any], FileReference]]:
    rows = [(reference.extra, reference) for reference in manifest.files.files]
    return sorted(rows, key=lambda pair: pair[0]["chunk_index"])


def _check_continuity(manifest: ChunkManifest) -> None:
    """W-CHK-3 to W-CHK-6."""
    rows = [row for row, _ in _in_order(manifest)]
    total = 0
    for expected, row in enumerate(rows):
        index = row["chunk_index"]
        if index < expected:
            raise _broken(f"chunk {index} is there twice", "W-CHK-4", expected, index)
        if index > expected:
            raise _broken(f"chunk {expected} is missing", "W-CHK-3", expected, index)
        length, span = row["length_T"], row.get("timestep_range")
        if span is not None:
            start, end = span
            if start > total:
                missing = f"steps {total} to {start - 1} are missing"
                raise _broken(
                    f"there is a gap before chunk {index}: {missing}", "W-CHK-5", total, start
                )
            if start < total:
                raise _broken(f"chunk {index} overlaps the one before it", "W-CHK-5", total, start)
            # An empty chunk has no last step: its range is written as [start, start].
            if end - start + 1 != length and not (length == 0 and end == start):
                raise _broken(
                    f"chunk {index} has another length than its range",
                    "W-CHK-6",
                    f"length_T {end - start + 1} for [{start}, {end}]",
                    length,
                )
        claimed = row.get("total_chunks")
        if claimed is not None and claimed != len(rows):
            raise _broken(
                f"chunk {index} claims another number of chunks", "W-CHK-6", len(rows), claimed
            )
        total += length
    if manifest.total_chunks is not None and manifest.total_chunks != len(rows):
        raise _broken(
            "chunks are missing at the end", "W-CHK-6", f"{manifest.total_chunks} chunks", len(rows)
        )
    if total != manifest.total_timesteps:
        raise _broken(
            "the chunks have another length in all", "W-CHK-6", manifest.total_timesteps, total
        )


def _check_not_empty(manifest: ChunkManifest) -> None:
    if not manifest.files.files:
        raise _broken("the manifest names no chunks", "W-CHK-6", "at least one", 0)


def _broken(problem: str, rule: str, expected: object, found: object) -> ChunkDiscontinuity:
    return ChunkDiscontinuity(
        problem, entry="meta/manifest", expected=expected, found=found, rule=rule
    )


def _check_chunk(manifest: ChunkManifest, row: Mapping[str, Any], chunk: Episode) -> None:
    """W-CHK-8: what a chunk says of itself."""
    origin = chunk.origin
    # [0, 0] of a chunk without steps reads as unset.
    span = row.get("timestep_range") if chunk.length else None
    for what, expected, found in (
        ("episode_id", manifest.episode_id, chunk.id),
        ("chunk_index", row["chunk_index"], chunk.chunk_index),
        ("length_T", row["length_T"], chunk.length),
        (
            "total_chunks",
            len(manifest.files.files),
            chunk.total_chunks or len(manifest.files.files),
        ),
        (
            "timestep_range",
            span if span is None else tuple(span),
            span if span is None else chunk.timestep_range,
        ),
    ):
        if expected != found:
            raise ChunkDiscontinuity(
                f"the chunk says another {what} than the manifest",
                path=None if origin is None else origin.path,
                expected=expected,
                found=found,
                rule="W-CHK-8",
            )


def _open_chunk(
    manifest: ChunkManifest, reference: FileReference, like: ShardReader | None = None
) -> ShardReader:
    """A chunk's file, after a look at its size (W-CHK-7)."""
    path = manifest.files.resolve(reference)
    try:
        size = os.stat(path).st_size
    except FileNotFoundError:
        raise MissingFile(
            f"chunk {reference.extra['chunk_index']} is missing", path=path, rule="W-CHK-7"
        ) from None
    except OSError as error:  # such as a name that no file can have
        raise ShardIOError.wrap(error, "cannot read", path) from error
    if reference.size is not None and reference.size != size:
        raise ReferenceMismatch(
            f"chunk {reference.extra['chunk_index']} is not the file that the manifest names",
            path=path,
            expected=f"{reference.size} bytes",
            found=f"{size} bytes",
            rule="W-CHK-7",
        )
    return open_reader(
        path,
        limits=DEFAULT_LIMITS if like is None else like.limits,
        threads=None if like is None else like.threads,
        check=True,
    )


def open_chunked(reader: ShardReader) -> Episode:
    """The whole episode behind a manifest, still lazy; windows may cross the borders of chunks."""
    manifest = ChunkManifest.read(reader)
    chunks: list[Episode] = []
    readers: list[ShardReader] = []
    try:
        _check_continuity(manifest)
        _check_not_empty(manifest)
        for row, reference in _in_order(manifest):
            readers.append(_open_chunk(manifest, reference, reader))
            chunk = episode_of(readers[-1])
            _check_chunk(manifest, row, chunk)
            chunks.append(chunk)
        episode = join(chunks)
    except BaseException as error:
        for opened in readers:
            opened.close()
        if isinstance(error, ShardError):
            raise error.located(path=reader.name) from None
        raise
    episode.chunk_index = episode.total_chunks = episode.timestep_range = None
    if manifest.metadata is not None:
        episode.metadata = dict(manifest.metadata)
    episode.origin = Origin(reader, {}, {}, {}, {}, chunks=readers)
    return episode


class ChunkedEpisodeReader:
    """The chunks of an episode, one by one or as a whole.

    Args:
        manifest_path: the file `<episode_id>_manifest.wshard`.
    """

    def __init__(self, manifest_path: str | os.PathLike[str]) -> None:
        self.manifest_path = os.fspath(manifest_path)
        self.manifest = ChunkManifest.read(self.manifest_path)

    def load_manifest(self) -> ChunkManifest:
        """What the manifest says."""
        return self.manifest

    @property
    def num_chunks(self) -> int:
        """How many chunks there are."""
        return len(self.manifest.files.files)

    @property
    def total_timesteps(self) -> int:
        """The steps of all chunks."""
        return self.manifest.total_timesteps

    def __len__(self) -> int:
        return self.num_chunks

    def load_chunk(self, chunk_index: int, *, verify: bool = True) -> Episode:
        """One chunk, lazily loaded.

        Args:
            chunk_index: which.
            verify: compare the file's SHA-256 with the manifest first, which reads all of it.
        """
        for row, reference in _in_order(self.manifest):
            if row["chunk_index"] == chunk_index:
                path = self.manifest.files.resolve(reference)
                if verify:
                    self.manifest.files.verify_file(path, reference)
                chunk = episode_of(_open_chunk(self.manifest, reference))
                _check_chunk(self.manifest, row, chunk)
                return chunk
        raise InvalidArgument(
            "no such chunk",
            path=self.manifest_path,
            expected=f"0 to {self.num_chunks - 1}",
            found=chunk_index,
        )

    def iter_chunks(self, *, verify: bool = True) -> Iterator[Episode]:
        """The chunks in order, one at a time."""
        for row, _ in _in_order(self.manifest):
            yield self.load_chunk(row["chunk_index"], verify=verify)

    def __iter__(self) -> Iterator[Episode]:
        return self.iter_chunks()

    def load(self) -> Episode:
        """The whole episode, still lazy."""
        return load_wshard(self.manifest_path)


@dataclass(slots=True)
class _Written:
    """A chunk that is on disk."""

    path: str
    length: int
    total: int | None
    """How many chunks its file says there are; None if that was not known yet."""


@dataclass(slots=True)
class _Progress:
    chunks: list[_Written] = field(default_factory=list)
    steps: int = 0


class ChunkedEpisodeWriter:
    """Writes an episode chunk by chunk. Every chunk is a complete file as soon as it is written.

        writer = ChunkedEpisodeWriter("data/ep_001", "ep_001", chunk_size_t=1000)
        for chunk in chunks:
            writer.write_chunk(chunk)
        writer.finalize_manifest()

    Args:
        base_path: the folder, made if need be.
        episode_id: what the whole episode is called.
        chunk_size_t: steps in a chunk, for `write_episode`.
        env_id: where it happened; taken from the first chunk if left out.
        total_chunks: how many there will be, if known. Otherwise the chunks learn it at the end, which
            copies their files once.
        compression, profile, steps_per_frame, fsync: as for `save_wshard`.
    """

    def __init__(
        self,
        base_path: str | os.PathLike[str],
        episode_id: str,
        chunk_size_t: int = 1000,
        env_id: str | None = None,
        *,
        total_chunks: int | None = None,
        compression: Any = None,  # noqa: ANN401 - as for save_wshard
        profile: str | None = None,
        steps_per_frame: Any = None,  # noqa: ANN401 - as for save_wshard
        fsync: bool = True,
    ) -> None:
        check_id(episode_id, "an episode in chunks")
        if "/" in episode_id or os.sep in episode_id:
            raise InvalidArgument(
                "the id of an episode in chunks makes file names",
                expected="no slash",
                found=repr(episode_id),
            )
        if chunk_size_t < 1:
            raise InvalidArgument("a chunk has at least one step", found=chunk_size_t)
        self.folder = os.fspath(base_path)
        self.episode_id = episode_id
        self.chunk_size_t = chunk_size_t
        self.env_id = env_id
        self.total_chunks = total_chunks
        self._options = {
            "compression": compression,
            "profile": profile,
            "steps_per_frame": steps_per_frame,
            "fsync": fsync,
        }
        self._names = ChunkNames(self.folder, episode_id)
        self._progress = _Progress()
        os.makedirs(self.folder, exist_ok=True)

    def write_chunk(
        self, chunk: Episode, chunk_index: int | None = None, total_chunks: int | None = None
    ) -> str:
        """Writes the next chunk; returns its path.

        Args:
            chunk: its steps. Ids, indices and ranges are set here, the episode itself is not changed.
            chunk_index: must be the next one where given.
            total_chunks: how many there will be, where that is known by now.
        """
        done = self._progress
        index = len(done.chunks)
        if chunk_index is not None and chunk_index != index:
            raise InvalidArgument(
                "chunks are written in order",
                expected=f"chunk {index}",
                found=f"chunk {chunk_index}",
            )
        total = total_chunks if total_chunks is not None else self.total_chunks
        if total is not None and index >= total:
            raise InvalidArgument(
                "there are more chunks than announced", expected=f"{total}", found=f"chunk {index}"
            )
        part = chunk.mapped(lambda channel: channel)
        part.origin = None
        part.id = self.episode_id
        if self.env_id is None:
            self.env_id = chunk.env_id
        part.env_id = self.env_id
        length = part.length
        part.chunk_index, part.total_chunks = index, total
        part.timestep_range = (done.steps, max(done.steps, done.steps + length - 1))
        path = self._names.chunk(index)
        save_wshard(part, path, **self._options)
        done.chunks.append(_Written(path, length, total))
        done.steps += length
        return path

    def write_episode(self, episode: Episode) -> list[str]:
        """Cuts an episode into chunks of `chunk_size_t` steps and writes them; returns their paths."""
        length = episode.length
        starts = range(0, max(1, length), self.chunk_size_t)
        before = len(self._progress.chunks)
        paths = []
        for start in starts:
            stop = min(start + self.chunk_size_t, length)
            chunk = slice_episode(episode, start, stop)
            if stop < length:
                _drop_last_observation(chunk)
            total = self.total_chunks if before or self.total_chunks else len(starts)
            paths.append(self.write_chunk(chunk, total_chunks=total))
        return paths

    def finalize_manifest(self) -> ChunkManifest:
        """Writes `<episode_id>_manifest.wshard` and returns what it says."""
        done = self._progress
        if not done.chunks:
            raise InvalidArgument("no chunk was written", path=self.folder)
        total = len(done.chunks)
        for chunk in done.chunks:
            if chunk.total != total:
                _set_total(chunk, total, bool(self._options["fsync"]))
        manifest = ManifestWriter(self._names, self.episode_id, self.env_id or "")
        for chunk in done.chunks:
            manifest.add(chunk.path, chunk.length)
        path = manifest.write(fsync=bool(self._options["fsync"]))
        return ChunkManifest.read(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.finalize_manifest()


def _drop_last_observation(chunk: Episode) -> None:
    """Only the last chunk has the observation after its last step (section 11)."""
    length = chunk.length
    kinds = [lane for models in chunk.uncerts.values() for lane in models.values()]
    lanes: list[Any] = [chunk.observations, *chunk.omens.values(), *kinds, chunk.extras]
    for lane in lanes:
        for name, channel in list(lane.items()):
            if (
                isinstance(channel, Channel)
                and not channel.has_own_clock
                and channel.length == length + 1
            ):
                lane.adopt(name, channel.sliced(0, length))


def _set_total(chunk: _Written, total: int, fsync: bool) -> None:
    """Tells a chunk how many there are, without decoding its blocks."""
    episode = load_wshard(chunk.path, sidecars=False)
    try:
        episode.total_chunks = total
        save_wshard(episode, chunk.path, "keep", fsync=fsync)
        chunk.total = total
    finally:
        episode.close()
