"""From files to encoded entries: several at once, in order, with bounded memory."""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING, Final

from shard_cli.samples import Problem, Sample, SourceFile

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence
    from concurrent.futures import Future

    from shardpack import EntryCompression, StoredEntry

# Neighbouring samples that one thread takes at once: handing over costs as much as a small file.
_RUN_BYTES: Final = 1 << 20
_RUN_SAMPLES: Final = 64
# Runs that are under way or wait to be written; a large sample counts as many.
_WAITING_RUNS: Final = 3
_WAITING_BYTES: Final = 256 << 20


def read_samples(
    samples: Sequence[Sample], compression: EntryCompression, jobs: int
) -> Generator[tuple[Sample, list[StoredEntry] | Problem], None, None]:
    """Each sample with its entries, ready to be written, or with what is wrong with one of its files.

    The order is that of the samples, and the bytes are the same, whatever `jobs` is.
    """
    if jobs <= 1 or len(samples) <= 1:
        for sample in samples:
            yield sample, read_sample(sample, compression)
        return
    from concurrent.futures import ThreadPoolExecutor

    # Threads: reading, checksums and compression of all that is not tiny hold no lock.
    executor = ThreadPoolExecutor(jobs, "read")
    waiting: deque[tuple[list[Sample], int, Future[list[list[StoredEntry] | Problem]]]] = deque()
    waiting_bytes = 0

    def work(run: list[Sample]) -> list[list[StoredEntry] | Problem]:
        return [read_sample(sample, compression) for sample in run]

    try:
        for run, size in _runs(samples):
            while waiting and (
                len(waiting) >= _WAITING_RUNS * jobs or waiting_bytes + size > _WAITING_BYTES
            ):
                earlier, freed, future = waiting.popleft()
                waiting_bytes -= freed
                yield from zip(earlier, future.result(), strict=True)
            waiting.append((run, size, executor.submit(work, run)))
            waiting_bytes += size
        for earlier, _, future in waiting:
            yield from zip(earlier, future.result(), strict=True)
    finally:
        executor.shutdown(wait=False, cancel_futures=True)


def _runs(samples: Sequence[Sample]) -> Iterator[tuple[list[Sample], int]]:
    run: list[Sample] = []
    size = 0
    for sample in samples:
        run.append(sample)
        size += sample.size
        if size >= _RUN_BYTES or len(run) >= _RUN_SAMPLES:
            yield run, size
            run, size = [], 0
    if run:
        yield run, size


def read_sample(sample: Sample, compression: EntryCompression) -> list[StoredEntry] | Problem:
    """The entries of a sample as they will be stored, or why there is none."""
    from shard_format.codecs import crc32c
    from shard_format.registry import DEFAULT_LIMITS
    from shardpack import StoredEntry
    from shardpack.content_types import content_type_of, is_compressible
    from shardpack.encodings import encode

    entries: list[StoredEntry] = []
    for file in sample.files:
        try:
            data = read_unchanged(file)
        except OSError as error:
            kind = "changed" if isinstance(error, (FileNotFoundError, _Changed)) else "unreadable"
            reason = (error.strerror or str(error)).lower()
            if isinstance(error, FileNotFoundError):
                reason = "it vanished while packing"
            return Problem(kind, sample.key, file.path, reason)
        content_type = content_type_of(file.name)
        size, encoding = len(data), 0
        # What readers would refuse to decompress is stored raw, which has no limit.
        if (
            size <= DEFAULT_LIMITS.max_decompressed_bytes
            and is_compressible(content_type)
            and (encoded := encode(data, compression)) is not None
        ):
            encoding, data = encoded
        entries.append(StoredEntry(file.name, content_type, encoding, size, crc32c(data), data))
    return entries


class _Changed(OSError):
    """A file is not what it was when it was listed."""


def read_unchanged(file: SourceFile) -> bytes:
    """The content of a file that is as it was when it was listed, before and after reading it."""
    descriptor = os.open(file.path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        _compare(file, os.fstat(descriptor))
        # One byte more than there should be: a file that grows shows itself, and costs no memory.
        wanted = file.size + 1
        data = os.read(descriptor, wanted)
        if 0 < len(data) < file.size:  # the system gives at most 2 GiB at once
            pieces = [data]
            missing = wanted - len(data)
            while missing and (piece := os.read(descriptor, missing)):
                pieces.append(piece)
                missing -= len(piece)
            data = b"".join(pieces)
        if len(data) != file.size:
            raise _Changed(
                None, f"it changed while packing: {file.size:,} bytes, now {len(data):,}"
            )
        _compare(file, os.fstat(descriptor))
    finally:
        os.close(descriptor)
    return data


def _compare(file: SourceFile, status: os.stat_result) -> None:
    if status.st_size != file.size:
        raise _Changed(
            None, f"it changed while packing: {file.size:,} bytes, now {status.st_size:,}"
        )
    if status.st_mtime_ns != file.mtime_ns:
        raise _Changed(None, "it changed while packing: it was written to after it was listed")
