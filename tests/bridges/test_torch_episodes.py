"""Episodes and packs in torch: their types, files and orders, from the file to the tensor."""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from shard_train import BatchSampler, EpisodeDataset, Plan, SampleDataset
from shard_train.torch import BatchStream, ByteColumn, collate, data_loader, to_tensors
from shardpack import ShardPackWriter
from tests.bridges.blocking import fails_without
from tests.wshard.recording_support import recorder
from tests.wshard.support import without_ml_dtypes
from wshard import Episode, load_wshard, save_wshard
from wshard._values import bfloat16
from wshard.types import DType, RaggedChannel, TextChannel

if TYPE_CHECKING:
    from pathlib import Path

    from shard_train._orders import Shuffle

WORKERS: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork", "timeout": 60}
SHARDS = 4
IN_EACH = 9


@pytest.fixture
def episodes(tmp_path: Path) -> Path:
    folder = tmp_path / "episodes"
    folder.mkdir()
    for number in range(3):
        latent = np.arange(40, dtype=np.float32).reshape(20, 2) + number
        episode = Episode(
            f"ep {number}",
            observations={
                "latent": latent.astype(ml_dtypes.bfloat16),
                "depth": np.full((20, 4), 40_000 + number, np.uint16),
                "count": np.full(20, 2**63 + number, np.uint64),
            },
            actions={"ctrl": np.zeros((20, 2), np.float32)},
        )
        save_wshard(episode, folder / f"{number}.wshard")
    return folder


@pytest.fixture
def pack(tmp_path: Path) -> str:
    for shard in range(SHARDS):
        with ShardPackWriter(tmp_path / f"train-{shard}.shardpack") as writer:
            for number in range(shard * IN_EACH, (shard + 1) * IN_EACH):
                writer.write(
                    f"sample {number}",
                    {
                        "picture.bin": bytes([number]) * (1000 + 100 * number),
                        "state.npy": np.full(6, number, np.float32),
                        "meta.json": {"number": number},
                    },
                )
    return str(tmp_path / "train-*.shardpack")


class TestEpisodes:
    """Windows and whole episodes."""

    @pytest.mark.parametrize("workers", [{}, WORKERS], ids=["here", "in workers"])
    def test_every_type_of_a_file_arrives_in_torch(
        self, episodes: Path, workers: dict[str, Any]
    ) -> None:
        loader = data_loader(EpisodeDataset(episodes, window=5), batch_size=4, **workers)
        for batch in loader:
            assert batch["latent"].dtype is torch.bfloat16
            assert batch["depth"].dtype is torch.uint16
            assert batch["count"].dtype is torch.uint64
            assert batch["terminated"].dtype is torch.bool
            starts = 2 * batch["start"] + batch["episode"]
            assert batch["latent"][:, 0, 0].tolist() == starts.tolist()
            assert batch["depth"][:, 0, 0].tolist() == (40_000 + batch["episode"]).tolist()

    def test_a_plain_torch_loader_takes_a_dataset_a_sampler_and_collate(
        self, episodes: Path
    ) -> None:
        ds = EpisodeDataset(episodes, window=5)
        plan = Plan(len(ds), batch_size=8, seed=1)
        loader = DataLoader(ds, batch_sampler=BatchSampler(plan), collate_fn=collate, **WORKERS)
        for step, batch in enumerate(loader):
            wanted = ds.batch(plan.batch(step))
            assert torch.equal(batch["latent"], to_tensors(wanted["latent"]))
            assert batch["start"].tolist() == wanted["start"].tolist()

    def test_channels_of_an_episode_become_tensors_over_its_file(self, episodes: Path) -> None:
        with load_wshard(episodes / "1.wshard") as episode:
            shared = to_tensors(episode.observations, read_only="share")
            assert shared["latent"].dtype is torch.bfloat16
            assert shared["latent"].data_ptr() == episode.observations["latent"].data.ctypes.data
            own = to_tensors(episode.observations)["depth"]
            own.fill_(1)
            assert int(episode.observations["depth"][0, 0]) == 40_001

    def test_bfloat16_needs_no_package_besides_torch(
        self, episodes: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        without_ml_dtypes(monkeypatch)
        with load_wshard(episodes / "1.wshard") as episode:
            assert episode.observations["latent"].data.dtype == np.uint16
            latent = to_tensors(episode.observations)["latent"]
        assert bfloat16() is not None
        assert DType.BFLOAT16.size == 2
        assert latent.dtype is torch.bfloat16
        assert latent[3].tolist() == [7, 8]

    def test_ragged_and_text_channels_are_lists(self) -> None:
        ragged = RaggedChannel(data=[np.zeros((2, 3)), np.ones((1, 3))])
        text = TextChannel(data=["push", "pull"])
        found = to_tensors({"points": ragged, "text": text, "x": np.zeros(2)})
        assert found["text"] == ["push", "pull"]
        assert [tuple(tensor.shape) for tensor in found["points"]] == [(2, 3), (1, 3)]
        assert found["x"].shape == (2,)


class TestPacks:
    """Samples."""

    @pytest.mark.parametrize("workers", [{}, WORKERS], ids=["here", "in workers"])
    @pytest.mark.parametrize("shuffle", ["global", "shards"])
    def test_decoded_samples_come_stacked(
        self, pack: str, shuffle: Shuffle, workers: dict[str, Any]
    ) -> None:
        ds = SampleDataset(pack)
        loader = data_loader(ds, batch_size=6, seed=3, shuffle=shuffle, **workers)
        seen = []
        for batch in loader:
            numbers = [meta["number"] for meta in batch["meta.json"]]
            assert batch["__key__"] == [f"sample {number}" for number in numbers]
            assert batch["state.npy"].tolist() == [[number] * 6 for number in numbers]
            assert isinstance(batch["picture.bin"], ByteColumn)
            assert batch["picture.bin"] == [bytes([n]) * (1000 + 100 * n) for n in numbers]
            assert int(batch["picture.bin"].tensor(2)[0]) == numbers[2]
            seen += numbers
        assert sorted(seen) == list(range(SHARDS * IN_EACH))

    def test_stored_bytes_come_as_columns(self, pack: str) -> None:
        ds = SampleDataset(pack, decode=False)
        loader = data_loader(ds, batch_size=6, seed=3, **WORKERS)
        for step, batch in enumerate(loader):
            wanted = ds.batch(loader.plan.batch(step))
            assert {name: list(column) for name, column in batch.items()} == wanted

    def test_a_stream_takes_shards_one_after_the_other(self, pack: str) -> None:
        ds = SampleDataset(pack, entries=["meta.json"])
        plan = ds.plan(batch_size=3, shuffle="shards", buffer_shards=1, seed=1)
        loader = DataLoader(BatchStream(ds, plan), batch_size=None, **WORKERS)
        numbers = [meta["number"] for batch in loader for meta in batch["meta.json"]]
        assert numbers == np.concatenate(list(plan.batches())).tolist()
        shards = [number // IN_EACH for number in numbers]
        assert sum(one != next_one for one, next_one in pairwise(shards)) == SHARDS - 1


def test_without_torch_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("shard_train.torch")]:
        monkeypatch.delitem(sys.modules, name)
    assert "shard-format[torch]" in fails_without(monkeypatch, "torch", "shard_train.torch")


def test_tensors_are_recorded(tmp_path: Path) -> None:
    path = tmp_path / "ep.wshard"
    with recorder(path, channels=[{"id": "x", "dtype": "f32", "shape": [2]}]) as writer:
        writer.write_timestep({"x": torch.tensor([1.0, 2.0])}, reward=torch.tensor(3.0))
    episode = load_wshard(path)
    assert episode.observations["x"].data.tolist() == [[1, 2]]
    assert episode.rewards is not None
    assert episode.rewards.data.tolist() == [3]
