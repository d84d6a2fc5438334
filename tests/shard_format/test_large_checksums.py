"""The checksum of large entries is taken in parts, and is the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from shard_format import ShardReader, ShardWriter, _kernels
from shard_format.codecs import crc32c
from shard_format.errors import ChecksumMismatch

if TYPE_CHECKING:
    from pathlib import Path

SIZE = (9 << 20) + 12_345


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("size", [1, 7, 1000, 65_537])
def test_parts_give_the_checksum_of_the_whole(
    workers: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = np.random.default_rng(size).bytes(size)
    monkeypatch.setattr(_kernels, "CRC_BYTES_PER_THREAD", 1)
    assert _kernels.crc32c_of_large(content, workers) == crc32c(content)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_large_entry_is_checked_whatever_the_threads(tmp_path: Path, threads: int) -> None:
    content = np.random.default_rng(1).bytes(SIZE)
    path = tmp_path / "large.shard"
    with ShardWriter(path, fsync=False) as writer:
        writer.write_entry("x", content)
    with ShardReader(path, threads=threads) as reader:
        assert reader.view("x", check=True) == content
        offset = reader.info("x").data_offset
    damaged = bytearray(path.read_bytes())
    damaged[offset + SIZE - 3] ^= 4
    with ShardReader(bytes(damaged), threads=threads) as reader:
        with pytest.raises(ChecksumMismatch):
            reader.read_entry("x")
        with pytest.raises(ChecksumMismatch):
            reader.view("x", check=True)
