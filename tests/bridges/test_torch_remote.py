"""The loader over a server: workers read ahead what they will be asked for."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

from shard_train import EpisodeDataset, SampleDataset, mix
from shard_train.torch import BatchStream, data_loader
from shardpack.writer_set import ShardWriterSet
from tests.shard_format.range_server import RangeServer
from tests.shard_format.support import noise
from tests.shard_train.dataset_support import write_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SHARDS, RECORDS = 4, 32
HEAD = 1 << 16


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RangeServer]:
    folder = tmp_path_factory.mktemp("served")
    with ShardWriterSet(
        str(folder / "s-%06d.shardpack"), max_records=RECORDS, fsync=False
    ) as writer:
        for number in range(SHARDS * RECORDS):
            writer.write(f"k{number:04}", {"a.bin": noise(10_000, number), "n.json": number})
    write_folder(folder / "eps", [900, 800, 700])
    with RangeServer(folder) as server:
        yield server


def shards_at(server: RangeServer) -> list[str]:
    return [server.url(f"s-{number:06}.shardpack") for number in range(SHARDS)]


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_fetch_each_shard_once_into_a_cache_that_they_share(
    server: RangeServer, tmp_path: Path, method: str
) -> None:
    dataset = SampleDataset(shards_at(server), entries=["a.bin", "n.json"], cache_dir=tmp_path)
    local = SampleDataset(str(server.folder / "s-*.shardpack"), entries=["a.bin", "n.json"])
    options: Any = {"shuffle": "shards", "batch_size": 8, "seed": 3}
    len(dataset)
    server.counted()
    loader = data_loader(
        dataset, num_workers=2, multiprocessing_context=method, persistent_workers=True, **options
    )
    for epoch in range(2):
        keys = [key for batch in loader for key in batch["__key__"]]
        wanted = data_loader(local, epoch=epoch, **options)
        assert keys == [key for batch in wanted for key in batch["__key__"]]
        assert server.counted(larger_than=HEAD) == (0 if epoch else SHARDS)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("read_ahead", ["256MB", 60_000])
def test_windows_and_mixtures_are_those_of_local_files(
    server: RangeServer, workers: int, read_ahead: int | str
) -> None:
    urls = [server.url(f"eps/ep_{number}.wshard") for number in range(3)]
    far = EpisodeDataset(urls, 16, 16, index=False, read_ahead=read_ahead)
    near = EpisodeDataset(server.folder / "eps", 16, 16)
    for shuffle in ("shards", "global"):
        found = data_loader(far, batch_size=8, num_workers=workers, shuffle=shuffle, seed=5)
        wanted = data_loader(near, batch_size=8, shuffle=shuffle, seed=5)
        for one, other in zip(found, wanted, strict=True):
            assert one.keys() == other.keys()
            assert all(torch.equal(one[key], other[key]) for key in one)
    mixed = [mix([(source, 0.5), (source, 0.5)], seed=2) for source in (far, near)]
    batches = [list(data_loader(one, batch_size=8, num_workers=workers)) for one in mixed]
    for one, other in zip(*batches, strict=True):
        assert torch.equal(one["state"], other["state"])
    streams = [BatchStream(source, source.plan(batch_size=8)) for source in (far, near)]
    for one, other in zip(*streams, strict=True):
        assert torch.equal(one["state"], other["state"])


def test_resuming_reads_ahead_from_there(server: RangeServer) -> None:
    dataset = SampleDataset(shards_at(server), entries=["n.json"], read_ahead=100_000)
    loader = data_loader(dataset, batch_size=8, num_workers=2)
    batches = iter(loader)
    before = [next(batches)["__key__"] for _ in range(3)]
    state = loader.state_dict()
    after = [batch["__key__"] for batch in batches]
    again = data_loader(dataset, batch_size=8, num_workers=1)
    again.load_state_dict(state)
    assert [batch["__key__"] for batch in again] == after
    assert len({key for keys in before + after for key in keys}) == SHARDS * RECORDS


def test_no_thread_is_left_when_the_loader_is_dropped(server: RangeServer) -> None:
    dataset = SampleDataset(shards_at(server), entries=["n.json"], read_ahead=50_000)
    loader = data_loader(dataset, batch_size=8)
    next(iter(loader))
    threads = [one for one in threading.enumerate() if one.name == "read-ahead"]
    assert threads
    del loader, dataset
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
