"""Large shards: many records, records above 4 GiB, many shards. Slow."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING

import pytest

import shardpack
from shardpack import ShardPackWriter
from tests.shardpack.support import check_python, noise, write_pack

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30


@pytest.mark.slow
def test_a_record_above_4_gibibytes(tmp_path: Path) -> None:
    """The content is a sparse file of zeros, which takes no room on the disk; the shard does."""
    free = os.statvfs(tmp_path)
    if free.f_bavail * free.f_frsize < 12 * GIB:
        pytest.skip("not enough room on the disk")
    size = 4 * GIB + 4097
    hole = tmp_path / "hole"
    hole.touch()
    os.truncate(hole, size)
    path = tmp_path / "a.shardpack"
    with (
        open(hole, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as zeros,
        ShardPackWriter(path, fsync=False) as writer,
    ):
        writer.write("before", {"a.txt": "1"})
        writer.write("large", {"zeros.bin": zeros, "after.bin": noise(100)})
        writer.write("after", {"a.txt": "2"})
    dataset = shardpack.open(path)
    assert dataset["after"].offset > 4 * GIB
    record = dataset["large"]
    assert record["after.bin"].data == noise(100)
    entry = record["zeros.bin"]
    assert entry.size == size
    assert entry.data[-1] == 0
    assert dataset["after"]["a.txt"].decode() == "2"
    assert [one.key for one in dataset] == ["before", "large", "after"]
    path.unlink()


@pytest.mark.slow
def test_a_hundred_thousand_records(tmp_path: Path) -> None:
    path = tmp_path / "a.shardpack"
    count = 100_000
    with ShardPackWriter(path, fsync=False) as writer:
        for number in range(count):
            writer.write(f"sample/{number}", {"a.cls": b"%d" % number})
    dataset = shardpack.open(path)
    assert len(dataset) == count
    for number in range(0, count, 997):
        assert dataset[number].read_all() == {"a.cls": b"%d" % number}
        assert dataset.find(f"sample/{number}") == number
    assert len(set(dataset.keys())) == count


@pytest.mark.slow
def test_a_thousand_shards_of_ten_thousand_records_take_little_memory(tmp_path: Path) -> None:
    path = write_pack(tmp_path / "one", {f"{n:06d}": {"a.cls": b"1"} for n in range(10_000)})
    for number in range(1000):
        os.link(path, tmp_path / f"{number:04d}.shardpack")
    script = """
    import resource, sys, shardpack
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    dataset = shardpack.open(sys.argv[1])
    assert len(dataset) == 10_000_000
    for number in range(0, 10_000_000, 9_999):
        dataset[number].read_all()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """
    assert int(check_python(script, tmp_path)) < 300_000
