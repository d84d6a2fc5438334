"""Entries made of runs that another file holds: what they add up to, without decoding them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from shard_format._crc import combine
from shard_format.seekable import table_of_rows

if TYPE_CHECKING:
    from collections.abc import Sequence


class StoredRun(NamedTuple):
    """A part of an entry as another file holds it, for `ShardWriter.write_runs`."""

    descriptor: int
    """The open file."""
    offset: int
    """Where its stored bytes start there."""
    stored_size: int
    """How many there are."""
    content_size: int
    """How many bytes they decode to."""
    content_crc32c: int
    """CRC-32C of these."""


def measure_runs(runs: Sequence[StoredRun]) -> tuple[int, int]:
    """Size and CRC-32C of the content that all runs together decode to."""
    checksum = 0
    for run in runs:
        checksum = combine(checksum, run.content_crc32c, run.content_size)
    return sum(run.content_size for run in runs), checksum


def table_of_runs(runs: Sequence[StoredRun]) -> bytes:
    """The seek table of runs that are zstd frames with checksums."""
    return table_of_rows(
        [(run.stored_size, run.content_size, _frame_checksum(run)) for run in runs]
    )


def _frame_checksum(run: StoredRun) -> int:
    """The checksum at the end of a zstd frame."""
    end = run.offset + run.stored_size
    return int.from_bytes(os.pread(run.descriptor, 4, end - 4), "little")
