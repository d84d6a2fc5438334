"""Pack and read 50 000 samples of about 12 KB, each with a label and a small array.

Slow peers handle fewer samples; all times are per sample.
"""

from __future__ import annotations

import gc
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

import shardpack
from benchmarks.bench_recording import warm
from benchmarks.harness import Goal, Table
from benchmarks.pack_peers import (
    ArrayRecord,
    Files,
    LitData,
    Lmdb,
    LmdbChecked,
    LmdbUnpacked,
    Mds,
    Peer,
    Samples,
    ShardPack,
    WebDataset,
    WebDatasetWithoutTime,
    Wids,
    Zip,
)
from benchmarks.pack_tables import HuggingFace, Lance, Parquet
from benchmarks.recorders import is_installed, size_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from benchmarks.pack_peers import Sample

SAMPLES = 50_000
SLOW_SAMPLES = 4_000
PACKED_SAMPLES = 10_000
"""Samples of one round of packing."""
SLOW_PACKED_SAMPLES = 500
BATCH = 64
GIGABYTE = 10**9
SHARDS = 1_000
RECORDS_OF_A_SHARD = 10_000
PEERS: tuple[type[Peer], ...] = (
    *(ShardPack, Lmdb, LmdbUnpacked, LmdbChecked, WebDataset, WebDatasetWithoutTime, Wids, Mds),
    *(HuggingFace, ArrayRecord, LitData, Lance, Parquet, Zip, Files),
)
UNPACKING = (LmdbUnpacked, LmdbChecked)
"""These differ from another peer in how they read."""
OURS = ShardPack.name


def run(folder: Path) -> Iterator[Table]:
    yield memory(folder)  # first, before there is anything else
    yield open_a_gigabyte(folder)
    kinds = installed()
    samples = Samples(SAMPLES)
    yield packing(folder, [kind for kind in kinds if kind not in UNPACKING], samples)
    peers = prepare(folder, kinds, samples)
    yield random_access(peers)
    yield batches(peers)
    yield sequential(peers)
    yield opening(peers)
    yield sizes([peer for peer in peers if type(peer) not in UNPACKING], samples)


def rounds(
    contenders: dict[str, tuple[Callable[[int], object], int]], count: int
) -> dict[str, float]:
    """Median time of one unit of work of each contender, over interleaved rounds."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for work, _ in contenders.values():
        work(1)
    gc.collect()
    gc.disable()
    try:
        for _ in range(count):
            for name, (work, calls) in contenders.items():
                start = time.perf_counter()
                work(calls)
                times[name].append((time.perf_counter() - start) / calls)
    finally:
        gc.enable()
    return {name: statistics.median(found) for name, found in times.items()}


def goals(medians: dict[str, float], *wanted: tuple[type[Peer], float]) -> list[Goal]:
    """Goals against the installed peers: ours may take at most `ratio` times as long."""
    return [Goal(OURS, peer.name, ratio) for peer, ratio in wanted if peer.name in medians]


def installed() -> list[type[Peer]]:
    """The peers that are installed; prints the names of the others."""
    missing = [kind.name for kind in PEERS if not is_installed(*kind.packages)]
    if missing:
        print(f"not installed, left out: {', '.join(missing)}", file=sys.stderr)
    return [kind for kind in PEERS if kind.name not in missing]


def packing(folder: Path, kinds: list[type[Peer]], samples: Samples) -> Table:
    many = samples.first(PACKED_SAMPLES)

    place = folder / "packing"
    times: dict[str, list[float]] = {}
    for _ in range(3):
        for kind in kinds:
            count = SLOW_PACKED_SAMPLES if kind.is_slow else PACKED_SAMPLES
            part = many[:count]
            place.mkdir()
            warm(folder, 160 << 20)
            start = time.perf_counter()
            kind(place).write(part)
            times.setdefault(kind.name, []).append((time.perf_counter() - start) / count)
            shutil.rmtree(place)
    medians = {name: statistics.median(found) for name, found in times.items()}
    return Table(
        "Pack samples of 12 KB with label and array: time for each sample",
        f"Samples are given as bytes. Nothing is compressed or synced. {PACKED_SAMPLES} samples; slow peers pack "
        f"{SLOW_PACKED_SAMPLES}. ShardPack computes checksums of everything; LMDB writes packed values in one transaction.",
        medians,
        goals(medians, (Lmdb, 1.5), (WebDataset, 1 / 10)),
    )


def prepare(folder: Path, kinds: list[type[Peer]], samples: Samples) -> list[Peer]:
    """Write and open the dataset of each peer, and check some samples against the originals."""
    peers = []
    many = samples.first(SAMPLES)
    for kind in kinds:
        place = folder / kind.__name__
        place.mkdir()
        peer = kind(place)
        peer.count = SLOW_SAMPLES if kind.is_slow else SAMPLES
        peer.write(many[: peer.count])
        peer.open()
        check(peer, many)
        peers.append(peer)
    return peers


def check(peer: Peer, samples: Sequence[Sample]) -> None:
    number = -1
    for number, sample in enumerate(islice(peer.samples(), peer.sequential_samples)):
        assert peer.contents(sample) == samples[number].contents, f"{peer.name}: sample {number}"
    assert number + 1 == min(peer.sequential_samples, peer.count), f"{peer.name}: {number + 1}"
    if peer.random_calls:
        numbers = random.Random(1).sample(range(peer.count), 32)
        for number, sample in zip(numbers, peer.take(numbers), strict=True):
            assert peer.contents(sample) == samples[number].contents, f"{peer.name}: {number}"
            assert peer.contents(peer.get(number)) == samples[number].contents, peer.name


def numbers_of(peer: Peer, count: int) -> list[int]:
    """Random sample numbers, the same for all peers with the same number of samples."""
    chance = random.Random(2)
    return [chance.randrange(peer.count) for _ in range(count)]


def random_access(peers: list[Peer]) -> Table:
    def reading(peer: Peer) -> Callable[[int], None]:
        numbers = numbers_of(peer, peer.random_calls)
        get = peer.get

        def work(count: int) -> None:
            for number in numbers[:count]:
                get(number)

        return work

    medians = rounds(
        {peer.name: (reading(peer), peer.random_calls) for peer in peers if peer.random_calls}, 9
    )
    return Table(
        "Random access, one by one: time for each sample",
        f"All entries are read as bytes. {SAMPLES} samples; {SLOW_SAMPLES} for peers that pack slowly. LMDB stores one value "
        "per sample and reads in one transaction. It has three rows: packed values as stored; values cut into "
        "the three entries, as ShardPack returns them; and the same with one CRC-32C per value, which is the work that "
        "ShardPack does. The goal compares with the second.",
        medians,
        goals(medians, (LmdbUnpacked, 2.5), (Wids, 1 / 3), (Mds, 1 / 3), (HuggingFace, 1 / 3)),
    )


def batches(peers: list[Peer]) -> Table:
    def reading(peer: Peer) -> Callable[[int], None]:
        numbers = numbers_of(peer, BATCH * peer.batch_calls)
        groups = [numbers[first : first + BATCH] for first in range(0, len(numbers), BATCH)]
        take = peer.take

        def work(count: int) -> None:
            for group in groups[:count]:
                take(group)

        return work

    medians = rounds(
        {peer.name: (reading(peer), peer.batch_calls) for peer in peers if peer.random_calls}, 9
    )
    return Table(
        f"Random access, {BATCH} samples together: time for each batch",
        "As above. Libraries that can read many samples with one call use that call.",
        medians,
        goals(medians, (LmdbUnpacked, 1.5)),
    )


def sequential(peers: list[Peer]) -> Table:
    def reading(peer: Peer) -> Callable[[int], object]:
        return lambda count: deque(islice(peer.samples(), count), maxlen=0)

    medians = rounds(
        {peer.name: (reading(peer), min(peer.sequential_samples, peer.count)) for peer in peers},
        5,
    )
    without = medians.get(WebDatasetWithoutTime.name)
    beside = (
        f" With mtime=0 in the tar files, ShardPack is {without / medians[OURS]:.0f} times as fast as WebDataset."
        if without
        else ""
    )
    return Table(
        "From start to end: time for each sample",
        f"All entries are read as bytes; LMDB as above.{beside}",
        medians,
        goals(medians, (LmdbUnpacked, 1.5), (WebDataset, 1 / 40)),
    )


def opening(peers: list[Peer]) -> Table:
    times: dict[str, list[float]] = {}
    for _ in range(5):
        for peer in peers:
            for _ in range(peer.open_calls):
                peer.close()
                start = time.perf_counter()
                peer.open()
                peer.get(0)
                times.setdefault(peer.name, []).append(time.perf_counter() - start)
    return Table(
        "Open the dataset and read the first sample",
        "Closing is not counted. A library may keep what it caches by default from one opening to the next.",
        {name: statistics.median(found) for name, found in times.items()},
    )


def sizes(peers: list[Peer], samples: Samples) -> Table:
    raw = {count: samples.raw_bytes(count) for count in {peer.count for peer in peers}}
    scale = raw[SAMPLES]
    found = {"contents alone": float(scale)}
    found |= {peer.name: size_of(str(peer.folder)) / raw[peer.count] * scale for peer in peers}
    return Table(
        f"Size of {SAMPLES} samples",
        "Sizes of peers that pack fewer samples are scaled up.",
        found,
        [Goal(OURS, "contents alone", 1.02)],
        unit="bytes",
    )


def open_a_gigabyte(folder: Path) -> Table:
    path = str(folder / "gigabyte.shardpack")
    samples = Samples(2_048)
    many = samples.first(len(samples))
    with shardpack.ShardPackWriter(path, fsync=False) as writer:
        number = 0
        while writer.size < GIGABYTE:
            _, picture, label, array = many[number % len(many)]
            writer.write(f"{number:08d}", {"jpg": picture, "json": label, "npy": array})
            number += 1

    with shardpack.open(path) as dataset:
        assert len(dataset) == number
        assert tuple(dataset[0].read_all().values()) == many[0].contents
    name = f"open and first of {number} samples"
    times = []
    for _ in range(2_000):
        start = time.perf_counter()
        dataset = shardpack.open(path)
        dataset.sample(0)
        times.append(time.perf_counter() - start)
        dataset.close()
    os.unlink(path)
    return Table(
        "Open a shard of 1 GB and read its first sample",
        "Reads and checks the footer and the offsets of the index, then reads all entries of the sample as bytes. "
        "Closing is not counted.",
        {name: statistics.median(times)},
        [Goal(name, None, 0.15e-3)],
    )


_MEMORY_SCRIPT = """
import sys
import shardpack
from benchmarks.bench_recording import resident
paths, = sys.argv[1:]
with open(paths) as file:
    names = file.read().splitlines()
with shardpack.open(names[0]) as dataset:
    dataset[0].read_all()
print(resident())
dataset = shardpack.open(names, max_open=len(names))
size = len(dataset)
for number in range(0, size, size // len(names)):
    dataset[number].read_all()
assert all(dataset._readers)
print(resident(), size)
"""


def memory(folder: Path) -> Table:
    place = folder / "many"
    place.mkdir()
    first = place / "0.shardpack"
    with shardpack.ShardPackWriter(first, fsync=False) as writer:
        for number in range(RECORDS_OF_A_SHARD):
            writer.write(f"{number:08d}", {"cls": b"1"})
    names = [str(first)]
    for number in range(1, SHARDS):
        names.append(str(place / f"{number}.shardpack"))
        os.link(first, names[-1])
    listed = folder / "many.txt"
    listed.write_text("\n".join(names), "utf-8")
    result = subprocess.run(
        [sys.executable, "-c", _MEMORY_SCRIPT, str(listed)], stdout=subprocess.PIPE, check=True
    )
    before, after, size = map(int, result.stdout.split())
    assert size == SHARDS * RECORDS_OF_A_SHARD
    shutil.rmtree(place)
    name, limit = f"{SHARDS} shards, all open, one record of each", "300 MB"
    return Table(
        f"Memory for {SHARDS} shards of {RECORDS_OF_A_SHARD} records",
        f"Resident memory, including mapped parts of the files, above the {before / 1e6:.0f} MB of a process with one "
        "open shard. By default at most 256 shards are open at a time.",
        {name: float(after - before), limit: 300e6},
        [Goal(name, limit, 1.0)],
        unit="bytes",
    )
