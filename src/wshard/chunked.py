"""Long episodes in several files: chunks, and a manifest that names them (spec/wshard.md, section 11)."""

from __future__ import annotations

import os
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shard_format.atomic import locked, switched
from shard_format.errors import InvalidArgument, MissingFile
from wshard._channels import Channel
from wshard._chunk_manifest import (
    ChunkManifest,
    ManifestWriter,
    check_chunk,
    open_chunk,
    validate_chunk_continuity,
)
from wshard._files import open_wshard, save_wshard
from wshard._folders import ChunkNames, remove_with_overview
from wshard._lanes import LANES, check_id
from wshard._reader import episode_of
from wshard._sidecar import check_no_sidecars, new_file
from wshard.editing import slice_episode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from typing_extensions import Self

    from wshard._episode import Episode

__all__ = [
    "ChunkManifest",
    "ChunkNames",
    "ChunkedEpisodeReader",
    "ChunkedEpisodeWriter",
    "validate_chunk_continuity",
]


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
        """One chunk, lazily loaded; `verify` first compares the whole file's SHA-256 with the manifest."""
        for reference in self.manifest.files.files:
            if reference.extra["chunk_index"] == chunk_index:
                if verify:
                    path = self.manifest.files.resolve(reference)
                    self.manifest.files.verify_file(path, reference)
                chunk = episode_of(open_chunk(self.manifest, reference))
                check_chunk(self.manifest, reference, chunk)
                return chunk
        raise InvalidArgument(
            "no such chunk",
            path=self.manifest_path,
            expected=f"0 to {self.num_chunks - 1}",
            found=chunk_index,
        )

    def iter_chunks(self, *, verify: bool = True) -> Iterator[Episode]:
        """The chunks in order, one at a time."""
        for reference in self.manifest.in_order:
            yield self.load_chunk(reference.extra["chunk_index"], verify=verify)

    def __iter__(self) -> Iterator[Episode]:
        return self.iter_chunks()

    def load(self) -> Episode:
        """The whole episode, still lazy."""
        return open_wshard(self.manifest_path)


class ChunkedEpisodeWriter:
    """Writes an episode chunk by chunk. Every chunk is a complete file as soon as it is written.

    An episode of that id in the folder stays until `finalize_manifest` puts the new one in its place. Until then its
    chunks keep their names, and the new ones get others.

        writer = ChunkedEpisodeWriter("data/ep_001", "ep_001", chunk_size_t=1000)
        for chunk in chunks:
            writer.write_chunk(chunk)
        writer.finalize_manifest()

    Args:
        base_path: the folder, created if it is missing.
        episode_id: the id of the whole episode.
        chunk_size_t: steps in a chunk, for `write_episode`.
        env_id: the environment; that of the first chunk if you leave it out.
        compression, profile, steps_per_frame, fsync: as for `save_wshard`.
    """

    def __init__(
        self,
        base_path: str | os.PathLike[str],
        episode_id: str,
        chunk_size_t: int = 1000,
        env_id: str | None = None,
        *,
        compression: Any = None,  # noqa: ANN401 - as for save_wshard
        profile: str | None = None,
        steps_per_frame: int | Mapping[str, int] | None = None,
        fsync: bool = True,
    ) -> None:
        check_id(episode_id, "an episode in chunks")
        if "/" in episode_id or os.sep in episode_id:
            raise InvalidArgument(
                "the id of a chunked episode is part of its file names",
                expected="no slash",
                found=repr(episode_id),
            )
        names = ChunkNames(os.fspath(base_path), episode_id)
        names.check_referable()
        if chunk_size_t < 1:
            raise InvalidArgument("a chunk must have at least one step", found=chunk_size_t)
        self.folder = names.folder
        self.episode_id = episode_id
        self.chunk_size_t = chunk_size_t
        self.env_id = env_id
        self._save_options = {
            "compression": compression,
            "profile": profile,
            "steps_per_frame": steps_per_frame,
        }
        self._fsync = fsync
        self._total: int | None = None
        """The number of chunks, once it was announced."""
        self._manifest = ManifestWriter(names, episode_id)
        self._token = secrets.token_hex(6)
        os.makedirs(self.folder, exist_ok=True)
        check_no_sidecars(self._manifest.names.manifest)
        # Without a manifest, a living process may be writing them.
        has_old = os.path.exists(self._manifest.names.manifest)
        self._old = self._manifest.names.chunks() if has_old else []

    def write_chunk(
        self, chunk: Episode, chunk_index: int | None = None, total_chunks: int | None = None
    ) -> str:
        """Writes the next chunk; returns its path.

        Args:
            chunk: its steps. Ids, indices and ranges are set in the file, the episode itself is not changed.
            chunk_index: must be the next one, if given.
            total_chunks: how many there will be. A chunk that is written before you know does not state it.
        """
        index, start = len(self._manifest), self._manifest.steps
        if chunk_index not in (None, index):
            raise InvalidArgument(
                "chunks are written in order",
                expected=f"chunk {index}",
                found=f"chunk {chunk_index}",
            )
        self._total = self._total if total_chunks is None else total_chunks
        if self._total is not None and index >= self._total:
            raise InvalidArgument(
                "there are more chunks than announced",
                expected=f"{self._total}",
                found=f"chunk {index}",
            )
        if self.env_id is None:
            self.env_id = chunk.env_id
        part = chunk.mapped(lambda channel: channel)
        part.origin = None
        part.id, part.env_id = self.episode_id, self.env_id
        part.chunk_index, part.total_chunks = index, self._total
        length = part.length
        part.timestep_range = (start, max(start, start + length - 1))
        path = self._manifest.names.chunk(index, self._token)
        save_wshard(part, path, fsync=self._fsync, **self._save_options)
        path = _shorten(path, self._manifest.names.chunk(index))
        self._manifest = self._manifest.with_chunk(path, length)
        return path

    def write_episode(self, episode: Episode) -> list[str]:
        """Cuts an episode into chunks of `chunk_size_t` steps and writes them; returns their paths."""
        length = episode.length
        starts = range(0, max(1, length), self.chunk_size_t)
        total = self._total if len(self._manifest) else len(starts)
        paths = []
        for start in starts:
            stop = min(start + self.chunk_size_t, length)
            chunk = slice_episode(episode, start, stop)
            if stop < length:
                _drop_last_observation(chunk)
            paths.append(self.write_chunk(chunk, total_chunks=total))
        return paths

    def finalize_manifest(self) -> ChunkManifest:
        """Writes `<episode_id>_manifest.wshard` and returns what it says; removes the chunks of an earlier episode.

        Raises:
            InvalidArgument: chunks are missing, or lanes were added to the earlier episode.
            MissingFile: another process has replaced the episode meanwhile.
        """
        count = len(self._manifest)
        if not count or self._total not in (None, count):
            raise InvalidArgument(
                "there are fewer chunks than announced" if count else "no chunk was written",
                path=self.folder,
                expected=self._total,
                found=count,
            )
        manifest = replace(self._manifest, env_id=self.env_id or "")
        path = manifest.names.manifest
        own = {os.path.join(manifest.names.folder, each.uri) for each in manifest.references}
        with locked(path):
            check_no_sidecars(path)
            for chunk in own:
                if not os.path.exists(chunk):
                    raise MissingFile("another process has replaced the episode", path=chunk)
            manifest.write(fsync=self._fsync, path=new_file(path))
            with switched(new_file(path), path, fsync=self._fsync):
                for chunk in self._old:
                    if chunk not in own:
                        remove_with_overview(chunk)
        return ChunkManifest.read(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.finalize_manifest()


def _shorten(path: str, name: str) -> str:
    """Gives a chunk its usual name unless that is taken; returns where it is."""
    try:
        os.link(path, name)
    except OSError:  # taken, or a file system without links
        return path
    os.unlink(path)
    return name


def _drop_last_observation(chunk: Episode) -> None:
    """Only the last chunk has the observation after its last step (section 11)."""
    length = chunk.length
    for address, part in chunk.parts.items():
        if (
            LANES[address[0]].may_have_one_more
            and isinstance(part, Channel)
            and not part.has_own_clock
            and part.length == length + 1
        ):
            chunk.parts[address] = part.sliced(0, length)
