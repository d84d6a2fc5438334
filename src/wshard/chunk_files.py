"""The files of an episode in chunks: what they are called, and the manifest that grows with them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from shard_format import FileReference, Manifest
from wshard.folders import SUFFIX

if TYPE_CHECKING:
    from collections.abc import Mapping

_CHUNK: Final = re.compile(r"_chunk_([0-9]{4,9})$")
_MANIFEST: Final = "_manifest"


@dataclass(frozen=True, slots=True)
class ChunkNames:
    """What the chunks and the manifest of an episode are called (spec/wshard.md, section 11)."""

    folder: str
    """Where they are."""
    stem: str
    """How their names begin."""

    @classmethod
    def of(cls, path: str) -> ChunkNames:
        """The names that go with `<stem>.wshard`."""
        folder, name = os.path.split(path)
        return cls(folder, name.removesuffix(SUFFIX))

    @classmethod
    def of_member(cls, path: str) -> tuple[ChunkNames, int | None]:
        """The names that go with a file whose own name is that of a chunk, and its index.

        The index of a manifest is -1, that of any other file None.
        """
        names = cls.of(path)
        if names.stem.endswith(_MANIFEST):
            return replace(names, stem=names.stem.removesuffix(_MANIFEST)), -1
        found = _CHUNK.search(names.stem)
        if found is None:
            return names, None
        return replace(names, stem=names.stem[: found.start()]), int(found[1])

    def chunk(self, index: int) -> str:
        """The file of a chunk."""
        return os.path.join(self.folder, f"{self.stem}_chunk_{index:04d}{SUFFIX}")

    @property
    def manifest(self) -> str:
        """The file of the manifest."""
        return os.path.join(self.folder, f"{self.stem}{_MANIFEST}{SUFFIX}")


class ManifestWriter:
    """The manifest of chunks that appear one by one; true whenever it is written.

    Args:
        names: where it will be.
        episode_id: of the whole episode.
        env_id: of the whole episode.
    """

    def __init__(self, names: ChunkNames, episode_id: str, env_id: str = "") -> None:
        self.names = names
        self.episode_id = episode_id
        self.env_id = env_id
        self.metadata: Mapping[str, Any] | None = None
        """Of the whole episode, where that is more than its first chunk says."""
        self.steps = 0
        """In all chunks."""
        self._references: list[FileReference] = []

    def __len__(self) -> int:
        return len(self._references)

    def add(self, path: str, length: int, known: FileReference | None = None) -> None:
        """Appends a chunk that is finished.

        Args:
            path: its file, which is read to hash it.
            length: its steps.
            known: what an earlier manifest says of the file, which spares reading it.
        """
        folder = self.names.folder or "."
        reference = known or FileReference.to_file(path, relative_to=folder)
        row = {
            "chunk_index": len(self),
            "length_T": length,
            # An empty chunk has no last step.
            "timestep_range": [self.steps, max(self.steps, self.steps + length - 1)],
        }
        uri = os.path.basename(path)
        self._references.append(replace(reference, uri=uri, extra={**reference.extra, **row}))
        self.steps += length

    def take_back(self, length: int) -> None:
        """Forgets the chunk that was added last, of so many steps."""
        self._references.pop()
        self.steps -= length

    def write(self, *, fsync: bool) -> str:
        """Puts the manifest in place of an earlier one; returns its path."""
        total = len(self)
        rows = [
            replace(reference, extra={**reference.extra, "total_chunks": total})
            for reference in self._references
        ]
        fields = {
            "episode_id": self.episode_id,
            "env_id": self.env_id,
            "total_chunks": total,
            "total_timesteps": self.steps,
            **({} if self.metadata is None else {"metadata": dict(self.metadata)}),
        }
        manifest = Manifest(rows, fields, os.path.abspath(self.names.folder or "."), "chunks")
        manifest.write(self.names.manifest, fsync=fsync)
        return self.names.manifest
