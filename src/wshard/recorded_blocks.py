"""The runs of a channel in a journal, as one block: read where they are, or copied as they are stored."""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, overload

import numpy as np

from shard_format import Codec, Compression
from shard_format._filtered import leading_frame
from shard_format.codecs import SMALLEST_COMPRESSED
from shard_format.registry import DEFAULT_LIMITS
from shard_format.writer import StoredRun
from wshard.journal import Frame, JournalReader, Part

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from shard_format import ShardWriter
    from shard_format.filters import Filters

_log = logging.getLogger("wshard")

_SEEK_TABLE: Final = (17, 12)
"""Bytes of a seek table without rows, and of a row."""


class Runs:
    """The runs of one channel, in numbers: a recording of hours has hundreds of thousands."""

    def __init__(self) -> None:
        self.codec: Codec | None = None
        """How all of them are stored; None before the first."""
        self.filters: Filters | None = None
        """What was done to each before it was compressed."""
        self.entries = 0
        """Entries in all of them."""
        self._offsets = array("Q")
        self._stored_sizes = array("I")
        self._checksums = array("I")
        self.ends = array("Q")
        """Where the content of each ends in that of all."""

    def append(self, frame: Frame) -> None:
        """Adds a run that is whole."""
        codec, offset, stored_size, content_size, checksum = frame.part
        self.codec = codec
        self.entries += frame.entries
        self._offsets.append(offset)
        self._stored_sizes.append(stored_size)
        self._checksums.append(checksum)
        self.ends.append(self.start(len(self.ends)) + content_size)

    def start(self, number: int) -> int:
        """Where the content of a run starts in that of all."""
        return self.ends[number - 1] if number else 0

    def __getitem__(self, number: int) -> Part:
        assert self.codec is not None
        size = self.ends[number] - self.start(number)
        place = (self._offsets[number], self._stored_sizes[number])
        return Part(self.codec, *place, size, self._checksums[number])

    def stored_size(self, count: int) -> int:
        """Bytes that the first so many take in the journal."""
        return sum(self._stored_sizes[:count])


class RecordedBlock:
    """The runs of one channel in a journal, as one block.

    Args:
        journal: the journal that holds them.
        name: the block.
        runs: all of them, by now.
        nbytes: how many bytes of their content count, from the start.
    """

    is_compressed = True  # in pieces, so that an array of all is always a copy
    is_cut_cheaply = True

    def __init__(self, journal: JournalReader, name: str, runs: Runs, nbytes: int) -> None:
        self.journal = journal
        self.name = name
        self.nbytes = nbytes
        self.codec = Codec.NONE if runs.codec is None else runs.codec
        """How its runs are stored."""
        self._runs = runs
        self.run_count = bisect_left(runs.ends, nbytes) + 1 if nbytes else 0
        """Runs that hold any of it."""

    @property
    def path(self) -> str | None:
        return self.journal.path

    def can_be_copied(self, identity: bool) -> bool:
        """Whether its runs can be taken one by one; an identity needs all of the content."""
        return not identity

    def copy_to(self, writer: ShardWriter, content_type: int) -> None:
        """Copies its runs one after the other, in constant memory.

        They are decoded only where an entry may not hold them as they are: cut within a run, or no smaller
        than their content (S-CMP-10), or above what readers decompress (S-CMP-2).
        """
        is_whole = self._runs.start(self.run_count) == self.nbytes
        compression = Compression(self._allowed_codec())
        is_compressed = compression.codec is Codec.ZSTD
        filters = self._runs.filters if is_compressed else None
        if is_whole and compression.codec is self.codec:
            writer.write_runs(
                *(self.name, _StoredRuns(self), self.codec),
                content_type=content_type,
                filters=filters,
            )
            return
        writer.write_entry_stream(
            self.name,
            self.iter_content(),
            compression=compression,
            content_type=content_type,
            frame_bytes=self._runs.ends[0] if is_compressed else None,
            filters=filters,
        )

    def _allowed_codec(self) -> Codec:
        if self.codec is Codec.NONE:
            return Codec.NONE
        if self.nbytes > DEFAULT_LIMITS.max_decompressed_bytes:
            _log.warning(
                "%s: %s is stored raw: more than 1 GiB compressed is more than readers take",
                *(self.path, self.name),
            )
            return Codec.NONE
        stored = self._runs.stored_size(self.run_count)
        if self.run_count > 1:
            stored += _SEEK_TABLE[0] + _SEEK_TABLE[1] * self.run_count
        if self._runs.filters is not None:
            stored += len(leading_frame(self._runs.filters))
        # The recorder has tried whether it is worth it. To decode all for a few percent is not.
        is_kept = self.nbytes >= SMALLEST_COMPRESSED and stored < self.nbytes
        return Codec.ZSTD if is_kept else Codec.NONE

    def stored_run(self, number: int) -> StoredRun:
        """One of its runs, for whoever copies it."""
        run = self._runs[number]
        return StoredRun(
            *(self.journal.descriptor, run.offset, run.stored_size),
            *(run.content_size, run.content_crc32c),
        )

    def array(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        return self.part(dtype, shape, 0)

    def part(self, dtype: np.dtype[Any], shape: tuple[int, ...], start: int) -> NDArray[Any]:
        out = np.empty(shape, dtype)
        self.read_into(start, out.reshape(-1).view(np.uint8))
        return out

    def read_into(self, start: int, out: NDArray[np.uint8]) -> None:
        number = bisect_right(self._runs.ends, start)
        done = 0
        while done < len(out):
            content = np.frombuffer(self._content(number), np.uint8)
            inside = start + done - self._runs.start(number)
            piece = content[inside:][: len(out) - done]
            out[done : done + len(piece)] = piece
            done += len(piece)
            number += 1

    def _content(self, number: int) -> bytes | memoryview:
        return self.journal.content(self._runs[number], self._runs.filters)

    def iter_content(self) -> Iterator[bytes | memoryview]:
        """Its bytes, run by run."""
        left = self.nbytes
        for number in range(self.run_count):
            content = self._content(number)[:left]
            left -= len(content)
            yield content


class _StoredRuns(Sequence[StoredRun]):
    """The runs of a block, each made when it is asked for."""

    def __init__(self, block: RecordedBlock) -> None:
        self._block = block

    def __len__(self) -> int:
        return self._block.run_count

    @overload
    def __getitem__(self, number: int) -> StoredRun: ...
    @overload
    def __getitem__(self, number: slice) -> list[StoredRun]: ...
    def __getitem__(self, number: int | slice) -> StoredRun | list[StoredRun]:
        numbers = range(len(self))[number]
        if isinstance(numbers, range):
            return [self._block.stored_run(each) for each in numbers]
        return self._block.stored_run(numbers)
