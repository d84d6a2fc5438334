"""Episodes in chunks: writing and reading their manifest, and opening all chunks as one episode (section 11)."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
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
from shard_format.opening import sharing_files
from shard_format.sources import is_url
from wshard._episode import Origin
from wshard._joining import join
from wshard._metadata import LARGEST
from wshard._reader import episode_of
from wshard._sidecar import fingerprint, fingerprint_of, is_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from wshard._episode import Episode
    from wshard._folders import ChunkNames


# --- writing


@dataclass(frozen=True, slots=True)
class ManifestWriter:
    """The manifest of an episode whose chunks appear one by one."""

    names: ChunkNames
    episode_id: str
    env_id: str = ""
    metadata: Mapping[str, Any] | None = None
    """The metadata of the whole episode, if its first chunk does not have all of it."""
    references: tuple[FileReference, ...] = ()
    """The chunks so far."""

    def __len__(self) -> int:
        return len(self.references)

    @property
    def steps(self) -> int:
        """Steps in all chunks."""
        return sum(reference.extra["length_T"] for reference in self.references)

    def with_chunk(
        self, path: str, length: int, known: FileReference | None = None
    ) -> ManifestWriter:
        """The same with one more chunk; `known` is its row in an earlier manifest, which saves hashing the file."""
        folder = self.names.folder or "."
        reference = known or FileReference.to_file(
            path, relative_to=folder, fingerprint=fingerprint_of(path)
        )
        start = self.steps
        row = {
            "chunk_index": len(self),
            "length_T": length,
            # An empty chunk has no last step.
            "timestep_range": [start, max(start, start + length - 1)],
        }
        added = replace(reference, uri=os.path.basename(path), extra={**reference.extra, **row})
        return replace(self, references=(*self.references, added))

    def with_metadata(self, metadata: Mapping[str, Any]) -> ManifestWriter:
        """The same with the metadata of one more part; counts of `dropped` are added."""
        return replace(self, metadata=merge_metadata(self.metadata or {}, metadata))

    def write(self, *, fsync: bool, path: str | None = None) -> None:
        """Replaces an earlier manifest, or writes to another path."""
        total = len(self)
        rows = [replace(r, extra={**r.extra, "total_chunks": total}) for r in self.references]
        fields = {
            "episode_id": self.episode_id,
            "env_id": self.env_id,
            "total_chunks": total,
            "total_timesteps": self.steps,
            **({} if self.metadata is None else {"metadata": dict(self.metadata)}),
        }
        manifest = Manifest(rows, fields, os.path.abspath(self.names.folder or "."), "chunks")
        manifest.write(path or self.names.manifest, fsync=fsync)


def merge_metadata(whole: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of a recording, updated with that of its next part; counts of `dropped` are added."""
    dropped: dict[str, Any] = {}
    for counts in (whole.get("dropped"), part.get("dropped")):
        for block, number in counts.items() if isinstance(counts, dict) else ():
            before = dropped.get(block, 0)
            both = isinstance(before, int) and isinstance(number, int)
            dropped[block] = before + number if both else number
    return {**whole, **part, **({"dropped": dropped} if dropped else {})}


# --- reading


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
    """How many chunks it claims, if it states a number."""
    metadata: Mapping[str, Any] | None = None
    """Of the whole episode, if it states any."""

    @property
    def chunks(self) -> list[dict[str, Any]]:
        """Its rows, as they are stored."""
        return [reference.to_fields() for reference in self.files.files]

    @property
    def in_order(self) -> list[FileReference]:
        """The references in the order of the chunks."""
        return sorted(self.files.files, key=lambda reference: int(reference.extra["chunk_index"]))

    @classmethod
    def read(cls, source: str | os.PathLike[str] | ShardReader) -> ChunkManifest:
        """The manifest in a file of role 4, with every field checked (W-CHK-1, W-CHK-2)."""
        path = source.name if isinstance(source, ShardReader) else os.fspath(source)
        return cls.of(Manifest.read(source), path)

    @classmethod
    def of(cls, manifest: Manifest, path: str) -> ChunkManifest:
        """A manifest that was read from `path`, checked."""
        fields = manifest.fields
        try:
            if manifest.list_key != "chunks":
                raise _wrong("'chunks'", None, "a list")
            _check_fields(fields, _FIELDS)
            for number, reference in enumerate(manifest.files):
                _check_row(number, reference)
        except ShardError as error:
            raise error.located(path=path) from None
        return cls(
            fields["episode_id"],
            fields.get("env_id") or "",
            fields["total_timesteps"],
            manifest,
            path,
            fields.get("total_chunks"),
            fields.get("metadata"),
        )

    def __fspath__(self) -> str:
        if self.path is None:
            raise InvalidArgument("the manifest is not a file yet")
        return self.path

    def __str__(self) -> str:
        return self.path or f"manifest of {self.episode_id!r}"


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= LARGEST


_COUNT: Final = "an integer >= 0"
_RANGE: Final = "a list of two integers >= 0"
_HASH: Final = "64 lower-case hex digits"
_FORMS: Final[dict[str, Callable[[Any], bool]]] = {
    "a string": lambda value: isinstance(value, str),
    "an object": lambda value: isinstance(value, dict),
    _COUNT: _is_count,
    _HASH: is_hash,
    _RANGE: lambda value: (
        isinstance(value, list) and len(value) == 2 and all(map(_is_count, value))
    ),
}
_FIELDS: Final = {
    "episode_id": "a string",
    "env_id": "a string",
    "metadata": "an object",
    "total_timesteps": _COUNT,
    "total_chunks": _COUNT,
}
_ROW_FIELDS: Final = {
    "chunk_index": _COUNT,
    "length_T": _COUNT,
    "total_chunks": _COUNT,
    "timestep_range": _RANGE,
    "fingerprint": _HASH,
}
_NEEDED: Final = ("episode_id", "total_timesteps", "chunk_index", "length_T")


def _check_fields(fields: Mapping[str, Any], forms: Mapping[str, str], place: str = "") -> None:
    for key, form in forms.items():
        value = fields.get(key)
        if (value is not None or key in _NEEDED) and not _FORMS[form](value):
            raise _wrong(f"'{key}'{place}", value, form)


def _check_row(number: int, reference: FileReference) -> None:
    uri = reference.uri
    if "/" in uri or "\\" in uri or uri in (".", ".."):
        raise UnsafePath(
            f"chunk {number} is not in the manifest's folder",
            expected="the name of a file",
            found=repr(uri),
            rule="W-CHK-2",
        )
    _check_fields(reference.extra, _ROW_FIELDS, f" of row {number}")


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
        check_files: also check that every file exists, is unchanged and agrees with the manifest.
        progress: called with the bytes done and the bytes in all.

    Raises:
        ChunkDiscontinuity: a gap, a repeat, an overlap or a wrong length; names the chunk.
        MissingFile, ReferenceMismatch: a file is missing, or is not the one that was written.
    """
    if not isinstance(manifest, ChunkManifest):
        manifest = ChunkManifest.read(manifest)
    try:
        _check_continuity(manifest)
        if check_files and manifest.path is not None:
            manifest.files.verify(progress=progress)
            for reference in manifest.in_order:
                with open_chunk(manifest, reference) as reader:
                    check_chunk(manifest, reference, episode_of(reader))
    except ShardError as error:
        raise error.located(path=manifest.path) from None


def _check_continuity(manifest: ChunkManifest, *, needs_chunks: bool = False) -> None:
    """W-CHK-3 to W-CHK-6."""
    rows = [reference.extra for reference in manifest.in_order]
    if needs_chunks and not rows:
        raise _broken("the manifest names no chunks", "W-CHK-6", "at least one", 0)
    total = 0
    for expected, row in enumerate(rows):
        index, length = row["chunk_index"], row["length_T"]
        if index < expected:
            raise _broken(f"chunk {index} is there twice", "W-CHK-4", expected, index)
        if index > expected:
            raise _broken(f"chunk {expected} is missing", "W-CHK-3", expected, index)
        start, end = row.get("timestep_range") or (total, total + length - 1)
        if start > total:
            problem = (
                f"there is a gap before chunk {index}: steps {total} to {start - 1} are missing"
            )
            raise _broken(problem, "W-CHK-5", total, start)
        if start < total:
            raise _broken(f"chunk {index} overlaps the one before it", "W-CHK-5", total, start)
        # An empty chunk has no last step: its range is written as [start, start].
        if end - start + 1 != length and not (length == 0 and end == start):
            told = f"length_T {end - start + 1} for [{start}, {end}]"
            problem = f"chunk {index} has a different length than its range"
            raise _broken(problem, "W-CHK-6", told, length)
        if (claimed := row.get("total_chunks")) not in (None, len(rows)):
            problem = f"chunk {index} claims another number of chunks"
            raise _broken(problem, "W-CHK-6", len(rows), claimed)
        total += length
    if manifest.total_chunks is not None and manifest.total_chunks != len(rows):
        raise _broken(
            "chunks are missing at the end", "W-CHK-6", f"{manifest.total_chunks} chunks", len(rows)
        )
    if total != manifest.total_timesteps:
        raise _broken(
            "the chunks have a different total length", "W-CHK-6", manifest.total_timesteps, total
        )


def _broken(problem: str, rule: str, expected: object, found: object) -> ChunkDiscontinuity:
    return ChunkDiscontinuity(
        problem, entry="meta/manifest", expected=expected, found=found, rule=rule
    )


def check_chunk(manifest: ChunkManifest, reference: FileReference, chunk: Episode) -> None:
    """W-CHK-7 and W-CHK-8: the chunk is the one that was written, and says of itself what the manifest says."""
    row, total = reference.extra, len(manifest.files.files)
    assert chunk.origin is not None
    if row.get("fingerprint") not in (None, fingerprint(chunk.origin.reader)):
        raise _another_file(reference, chunk.origin.path, row["fingerprint"], "another index")
    facts: list[tuple[str, Any, Any]] = [
        ("episode_id", manifest.episode_id, chunk.id),
        ("chunk_index", row["chunk_index"], chunk.chunk_index),
        ("length_T", row["length_T"], chunk.length),
        ("total_chunks", total, chunk.total_chunks or total),
    ]
    # [0, 0] of a chunk without steps reads as unset.
    if chunk.length and row.get("timestep_range") is not None:
        facts.append(("timestep_range", tuple(row["timestep_range"]), chunk.timestep_range))
    for what, expected, found in facts:
        if expected != found:
            raise ChunkDiscontinuity(
                f"the chunk states a different {what} than the manifest",
                path=chunk.origin.path,
                expected=expected,
                found=found,
                rule="W-CHK-8",
            )


def _another_file(
    reference: FileReference, path: str, expected: str, found: str
) -> ReferenceMismatch:
    return ReferenceMismatch(
        f"chunk {reference.extra['chunk_index']} is not the file that the manifest names",
        path=path,
        expected=expected,
        found=found,
        hint="a writer of another version may have been interrupted: write the episode again",
        rule="W-CHK-7",
    )


def open_chunk(
    manifest: ChunkManifest,
    reference: FileReference,
    like: ShardReader | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> ShardReader:
    """A chunk's file, after a look at its size (W-CHK-7)."""
    path = manifest.files.resolve(reference)
    options: dict[str, Any] = {"storage_options": storage_options}
    if like is not None:
        options |= {"limits": like.limits, "threads": like.threads, "check": like.check}
    try:
        size = None if is_url(path) else os.stat(path).st_size
        _check_size(reference, path, size)
        reader = ShardReader(path, **options)
    except FileNotFoundError:
        raise MissingFile(
            f"chunk {reference.extra['chunk_index']} is missing", path=path, rule="W-CHK-7"
        ) from None
    except ShardError:
        raise
    except OSError as error:  # such as a name that no file can have
        raise ShardIOError.wrap(error, "cannot read", path) from error
    try:
        _check_size(reference, path, reader.source.size())
    except BaseException:
        reader.close()
        raise
    return reader


def _check_size(reference: FileReference, path: str, size: int | None) -> None:
    if None not in (reference.size, size) and reference.size != size:
        raise _another_file(reference, path, f"{reference.size} bytes", f"{size} bytes")


def open_chunked(reader: ShardReader, storage_options: Mapping[str, Any] | None = None) -> Episode:
    """The whole episode behind a manifest, still lazy; windows may cross the borders of chunks."""
    manifest = ChunkManifest.read(reader)
    chunks: list[Episode] = []
    readers: list[ShardReader] = []
    try:
        _check_continuity(manifest, needs_chunks=True)
        with sharing_files():
            for reference in manifest.in_order:
                readers.append(open_chunk(manifest, reference, reader, storage_options))
                chunk = episode_of(readers[-1])
                check_chunk(manifest, reference, chunk)
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
    episode.origin = Origin(reader, chunks=readers)
    return episode
