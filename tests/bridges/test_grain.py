"""Datasets in Grain's pipelines: as they are, in whole batches, and from there to JAX."""

from __future__ import annotations

import importlib
import pickle
from typing import TYPE_CHECKING, Any

import grain
import jax
import ml_dtypes
import numpy as np
import pytest

from shard_format.errors import InvalidArgument
from shard_train import EpisodeDataset, Plan, SampleDataset, mix
from shard_train.grain import batches
from shardpack import ShardPackWriter
from tests.bridges.blocking import fails_without
from tests.shard_train.dataset_support import write_folder
from tests.shard_train.test_dataset_contents import rich, said
from tests.wshard.support import save
from wshard import Episode, save_wshard

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

LENGTHS = (11, 14, 17, 9)
WORKERS = grain.MultiprocessingOptions(num_workers=2)


@pytest.fixture(scope="module", autouse=True)
def _parsed_flags() -> None:
    """Grain asks absl for flags when it starts workers; programs parse them, tests have none."""
    importlib.import_module("absl.flags").FLAGS.mark_as_parsed()


@pytest.fixture(scope="module", autouse=True)
def _several_devices() -> None:
    jax.config.update("jax_num_cpu_devices", 4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("grain") / "episodes", LENGTHS)


@pytest.fixture
def ds(folder: Path) -> EpisodeDataset:
    return EpisodeDataset(folder, window=4, threads=1)


def assert_same(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    for key, values in wanted.items():
        assert np.array_equal(found[key], values), key
        assert np.asarray(found[key]).dtype == np.asarray(values).dtype, key


def assert_all_same(
    found: Iterable[Mapping[str, Any]], wanted: Iterable[Mapping[str, Any]]
) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert_same(one, other)


def places(batch: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Which windows a batch holds."""
    return list(zip(batch["episode"].tolist(), batch["start"].tolist(), strict=True))


class TestAsTheyAre:
    """`grain.MapDataset.source(ds)` and `grain.DataLoader(data_source=ds)`."""

    def test_a_dataset_is_a_random_access_source(self, ds: EpisodeDataset) -> None:
        assert isinstance(ds, grain.sources.RandomAccessDataSource)
        source = grain.MapDataset.source(ds)
        assert len(source) == len(ds)
        assert_same(source[5], ds[5])
        assert_all_same(list(source[3:30:9]), [ds[3], ds[12], ds[21]])

    def test_shuffled_batches_have_every_window_once(self, ds: EpisodeDataset) -> None:
        steps = grain.MapDataset.source(ds).shuffle(seed=3).batch(5)
        found = [place for batch in steps for place in places(batch)]
        assert sorted(found) == [ds.episode_of(number) for number in range(len(ds))]
        assert steps[0]["cam"].shape == (5, 4, 6, 4)

    def test_samples_of_packs_are_one_too(self, tmp_path: Path) -> None:
        with ShardPackWriter(tmp_path / "a.shardpack") as writer:
            for number in range(6):
                writer.write(f"key {number}", {"x.npy": np.full(2, number), "label.cls": number})
        samples = SampleDataset(tmp_path / "a.shardpack")
        assert isinstance(samples, grain.sources.RandomAccessDataSource)
        source = grain.MapDataset.source(samples)
        assert [sample["label.cls"] for sample in source] == [str(n) for n in range(6)]
        steps = batches(samples, Plan(6, seed=1, batch_size=3))
        assert sorted(np.concatenate([b["x.npy"][:, 0] for b in steps]).tolist()) == list(range(6))
        assert pickle.loads(pickle.dumps(samples)).__repr__() == repr(samples)

    def test_the_state_of_a_loader_is_refused_by_another_dataset(self, folder: Path) -> None:
        def made(window: int) -> grain.DataLoaderIterator:
            data = EpisodeDataset(folder, window=window, episodes=[0, 1])
            sampler = grain.samplers.SequentialSampler(num_records=8)
            return iter(grain.DataLoader(data_source=data, sampler=sampler, worker_count=0))

        running = made(4)
        next(running)
        made(4).set_state(running.get_state())
        with pytest.raises(ValueError, match="DataSource in checkpoint does not match"):
            made(5).set_state(running.get_state())


class TestWholeBatches:
    """`batches(ds, plan)`."""

    def test_elements_are_the_batches_of_the_plan(self, ds: EpisodeDataset) -> None:
        plan = Plan(len(ds), seed=7, batch_size=6)
        steps = batches(ds, plan)
        assert len(steps) == len(plan)
        assert_all_same(steps, [ds.batch(plan.batch(n)) for n in range(len(plan))])
        assert_same(steps[-1], ds.batch(plan.batch(len(plan) - 1)))
        assert_all_same(list(steps[1:4:2]), [steps[1], steps[3]])

    def test_every_epoch_has_all_windows_in_another_order(self, ds: EpisodeDataset) -> None:
        plan = Plan(len(ds), seed=7, batch_size=4, drop_last=True)
        found = [places(batch) for batch in batches(ds, plan, epochs=3)]
        assert len(found) == 3 * len(plan)
        epochs = [found[len(plan) * n : len(plan) * (n + 1)] for n in range(3)]
        for epoch in epochs:
            windows = [place for batch in epoch for place in batch]
            assert len(set(windows)) == len(windows) == 4 * len(plan)
        assert epochs[0] != epochs[1] != epochs[2]
        repeated = batches(ds, plan).repeat(3)
        assert [places(repeated[n]) for n in range(len(repeated))] == found

    def test_a_run_without_end_can_start_anywhere(self, ds: EpisodeDataset) -> None:
        plan = Plan(len(ds), seed=7, batch_size=4)
        steps = batches(ds, plan, epochs=None)
        number = 1000 * len(plan) + 3
        assert_same(steps[number], ds.batch(plan.with_epoch(1000).batch(3)))

    def test_ranks_together_have_every_window_once(self, ds: EpisodeDataset) -> None:
        found: list[tuple[int, int]] = []
        for rank in range(2):
            plan = Plan(len(ds), seed=1, batch_size=3, world_size=2, rank=rank, pad=False)
            found += [place for batch in batches(ds, plan) for place in places(batch)]
        assert sorted(found) == [ds.episode_of(number) for number in range(len(ds))]

    def test_a_state_is_one_integer_from_which_every_step_can_be_resumed(
        self, ds: EpisodeDataset
    ) -> None:
        steps = batches(ds, Plan(len(ds), seed=5, batch_size=9), epochs=2).to_iter_dataset()
        expected = list(steps)
        running = iter(steps)
        for step in range(len(expected)):
            state = running.get_state()
            assert state == {"next_index": step}
            again = iter(steps)
            again.set_state(state)
            assert_all_same(again, expected[step:])
            next(running)

    def test_workers_give_the_same_batches_and_resume(self, ds: EpisodeDataset) -> None:
        steps = batches(ds, Plan(len(ds), seed=5, batch_size=6), epochs=2)
        expected = list(steps)
        running = iter(steps.to_iter_dataset().mp_prefetch(WORKERS))
        assert_all_same([next(running) for _ in range(3)], expected[:3])
        state = running.get_state()
        assert_all_same([next(running) for _ in range(2)], expected[3:5])
        running.set_state(state)
        assert_all_same(running, expected[3:])
        running.close()

    def test_mixtures_come_in_their_own_order(self, ds: EpisodeDataset) -> None:
        mixed = mix({"a": (ds, 0.5), "b": (ds, 0.5)}, stop="first", seed=2)
        plan = mixed.plan(batch_size=4, drop_last=True)
        assert_all_same(
            batches(mixed, plan, epochs=2),
            [mixed.batch(p.batch(n)) for p in (plan, plan.with_epoch(1)) for n in range(len(plan))],
        )

    def test_few_batches_are_read_ahead(self, ds: EpisodeDataset) -> None:
        """Grain's own default of 500 is for small elements."""
        read: list[int] = []

        class Counted:
            def __len__(self) -> int:
                return len(ds)

            def batch(self, numbers: NDArray[np.int64], /) -> dict[str, Any]:
                read.append(len(numbers))
                return ds.batch(numbers)

        running = iter(batches(Counted(), Plan(len(ds), batch_size=1)).to_iter_dataset())
        next(running)
        next(running)
        running.close()
        assert len(read) <= 6

    def test_the_text_of_batches_names_dataset_and_plan(self, ds: EpisodeDataset) -> None:
        plan = Plan(len(ds), seed=7, batch_size=2)
        steps = batches(ds, plan)
        assert repr(ds) in repr(steps)
        assert repr(plan) in repr(steps)
        assert repr(pickle.loads(pickle.dumps(steps))) == repr(steps)

    def test_plans_that_cannot_work_are_refused(self, ds: EpisodeDataset) -> None:
        with pytest.raises(InvalidArgument, match=r"another dataset .* found 5 samples"):
            batches(ds, Plan(5))
        with pytest.raises(InvalidArgument, match="num_workers=1, found num_workers=2"):
            batches(ds, Plan(len(ds), num_workers=2))
        with pytest.raises(InvalidArgument, match="epochs"):
            batches(ds, Plan(len(ds)), epochs=0)

    def test_a_plan_without_batches_has_none(self, ds: EpisodeDataset) -> None:
        steps = batches(ds, Plan(len(ds), batch_size=1000, drop_last=True), epochs=None)
        assert list(steps) == []
        with pytest.raises(IndexError):
            steps[0]


class TestJax:
    """From a batch to devices."""

    @pytest.fixture
    def wide(self, tmp_path: Path) -> EpisodeDataset:
        weights = np.arange(240).reshape(20, 12).astype(ml_dtypes.bfloat16)
        episode = Episode("a", observations={"w": weights}, actions={"a": np.ones(20, np.float32)})
        save_wshard(episode, tmp_path / "a.wshard")
        return EpisodeDataset(tmp_path, window=4, index=False)

    def test_bf16_stays_bfloat16(self, wide: EpisodeDataset) -> None:
        batch = batches(wide, Plan(len(wide), batch_size=8))[0]
        found = jax.device_put(batch["w"])
        assert found.dtype == jax.numpy.bfloat16
        assert found.shape == (8, 4, 12)
        assert np.array_equal(np.asarray(found), batch["w"])

    def test_a_batch_is_spread_over_devices(self, wide: EpisodeDataset) -> None:
        mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
        plan = Plan(len(wide), batch_size=8, drop_last=True)
        steps = batches(wide, plan).to_iter_dataset()
        spread = steps.map(
            lambda batch: jax.tree.map(
                lambda values: jax.make_array_from_process_local_data(sharding, values), batch
            )
        )
        found, expected = next(iter(spread)), wide.batch(plan.batch(0))
        assert len(found["w"].addressable_shards) == 4
        for shard in found["w"].addressable_shards:
            assert np.array_equal(np.asarray(shard.data), expected["w"][shard.index])

    def test_grain_puts_batches_on_a_device_ahead(self, wide: EpisodeDataset) -> None:
        plan = Plan(len(wide), batch_size=8, drop_last=True)
        steps = batches(wide, plan).to_iter_dataset()
        put = grain.experimental.device_put(steps, jax.devices()[1])
        found = next(iter(put))
        assert found["w"].devices() == {jax.devices()[1]}
        assert np.array_equal(np.asarray(found["w"]), wide.batch(plan.batch(0))["w"])


def test_without_grain_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(importlib.import_module("sys").modules, "shard_train.grain")
    assert "shard-format[grain]" in fails_without(monkeypatch, "grain", "shard_train.grain")


def test_text_and_ragged_data_come_as_the_dataset_gives_them(tmp_path: Path) -> None:
    for number in range(3):
        save(rich(number), tmp_path / f"ep_{number}.wshard")
    ds = EpisodeDataset(tmp_path, 5, channels=["state", "said", "scan", "metadata/task"])
    steps = batches(ds, Plan(len(ds), batch_size=7, shuffle="none"))
    assert [len(batch["said"]) for batch in steps.to_iter_dataset()] == [7, 7, 7, 3]
    assert steps[1]["said"][1] == said(1)[:5]
    assert steps[1]["metadata/task"][:2] == ["task 0", "task 1"]
    in_workers = steps.to_iter_dataset().mp_prefetch(WORKERS)
    assert [batch["said"][0] for batch in in_workers] == [step["said"][0] for step in steps]
    assert grain.MapDataset.source(ds)[9]["said"] == said(1)[1:6]
