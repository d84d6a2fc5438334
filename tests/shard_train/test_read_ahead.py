"""Training from a server: how many requests an epoch takes, what is fetched ahead, and what happens when it fails."""

from __future__ import annotations

import errno
import gc
import pickle
import threading
import tracemalloc
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest

import shardpack
from shard_format.errors import InvalidArgument, ShardIOError
from shard_train import EpisodeDataset, Plan, SampleDataset, mix
from shard_train._read_ahead import Job, ReadAhead
from shard_train.packed_episodes import pack_episodes
from shardpack.writer_set import ShardWriterSet
from tests.shard_format import test_remote
from tests.shard_format.range_server import RangeServer
from tests.shard_format.support import check_python, noise
from tests.shard_train.dataset_support import assert_equal_windows, write_folder
from wshard import Episode, save_wshard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.stores.servers import Bucket

bucket = test_remote.bucket

SHARDS, RECORDS = 5, 40
RECORD_BYTES = 20_000
HEAD = 1 << 16
"""Opening a file takes requests of up to this size; reading its middle takes larger ones."""
EPISODES = 6
Shuffle = Literal["shards", "none", "global"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of samples, episodes in files, and the same in packs."""
    folder = tmp_path_factory.mktemp("served")
    with ShardWriterSet(
        str(folder / "s-%06d.shardpack"), max_records=RECORDS, fsync=False
    ) as writer:
        for number in range(SHARDS * RECORDS):
            entries = {"a.bin": noise(RECORD_BYTES, number), "n.json": {"n": number}}
            writer.write(f"k{number:04}", entries)
    write_folder(folder / "eps", [3000 + 10 * number for number in range(EPISODES)], "none")
    pack_episodes(folder / "eps", str(folder / "p-%06d.shardpack"), max_bytes=800_000, fsync=False)
    return folder


@pytest.fixture
def server(folder: Path) -> Iterator[RangeServer]:
    with RangeServer(folder) as server:
        yield server


def shards_at(server: RangeServer) -> list[str]:
    return [server.url(f"s-{number:06}.shardpack") for number in range(SHARDS)]


def episodes_at(server: RangeServer) -> list[str]:
    return [server.url(f"eps/ep_{number}.wshard") for number in range(EPISODES)]


def packs_at(server: RangeServer) -> list[str]:
    names = sorted(path.name for path in server.folder.glob("p-*.shardpack"))
    return [server.url(name) for name in names]


def set_at(server: RangeServer) -> str:
    return server.url("s.shardpack-set")


def local_shards(folder: Path) -> list[str]:
    return [str(folder / f"s-{number:06}.shardpack") for number in range(SHARDS)]


def keys_of(batches: Any) -> list[str]:  # noqa: ANN401 - batches of any dataset
    return [sample["__key__"] for batch in batches for sample in batch]


class TestSamples:
    @pytest.mark.parametrize("shuffle", ["shards", "none", "global"])
    @pytest.mark.parametrize(
        "options",
        [
            {"decode": False},
            {"entries": ["n.json"]},
            {"read_ahead": 300_000},
            {"read_ahead": 1},
            {"read_ahead": 0},
        ],
        ids=str,
    )
    def test_samples_read_ahead_are_those_of_the_local_shards(
        self,
        server: RangeServer,
        folder: Path,
        shuffle: Shuffle,
        options: dict[str, Any],
    ) -> None:
        far = SampleDataset(shards_at(server), **options)
        near = SampleDataset(local_shards(folder), **options)
        plan = far.plan(shuffle=shuffle, batch_size=16, buffer_shards=2, seed=3)
        for found, wanted in zip(far.batches(plan, 2), near.batches(plan, 2), strict=True):
            assert list(found) == list(wanted)

    @pytest.mark.parametrize("shuffle", ["shards", "none"])
    def test_an_epoch_by_shards_fetches_each_shard_once(
        self,
        server: RangeServer,
        shuffle: Shuffle,
    ) -> None:
        dataset = SampleDataset(shards_at(server), decode=False)
        plan = dataset.plan(shuffle=shuffle, batch_size=16, buffer_shards=2)
        assert len(set(keys_of(dataset.batches(plan)))) == len(dataset)
        large = [(name, stop - start) for name, start, stop in server.asked if stop - start > HEAD]
        assert len({name for name, _ in large}) == len(large) == SHARDS
        # Besides, each shard is opened.
        assert server.counted() <= 2 * SHARDS

    def test_two_ranks_together_fetch_little_more_than_one(
        self, server: RangeServer, folder: Path
    ) -> None:
        """Each rank reads its own shards, and two share one; as neighbours of the epoch, both would read all of them."""
        size = sum(Path(path).stat().st_size for path in local_shards(folder))
        keys: list[str] = []
        for rank in range(2):
            dataset = SampleDataset(set_at(server), decode=False)
            plan = dataset.plan(
                shuffle="shards", batch_size=16, buffer_shards=SHARDS, world_size=2, rank=rank
            )
            keys += keys_of(dataset.batches(plan))
        assert len(set(keys)) == len(keys) == SHARDS * RECORDS
        assert sum(stop - start for _, start, stop in server.asked) <= 1.5 * size

    def test_iterating_in_order_fetches_each_shard_once(self, server: RangeServer) -> None:
        dataset = SampleDataset(shards_at(server), decode=False)
        assert [sample["__key__"] for sample in dataset] == [
            f"k{number:04}" for number in range(SHARDS * RECORDS)
        ]
        assert server.counted(larger_than=HEAD) == SHARDS

    def test_the_second_epoch_from_the_cache_takes_no_requests(
        self, server: RangeServer, tmp_path: Path
    ) -> None:
        dataset = SampleDataset(shards_at(server), decode=False, cache_dir=tmp_path / "cache")
        plan = dataset.plan(shuffle="shards", batch_size=16, buffer_shards=2)
        first = keys_of(dataset.batches(plan))
        assert server.counted(larger_than=HEAD) == SHARDS
        assert keys_of(dataset.batches(plan)) == first
        assert len(keys_of(dataset.batches(plan.with_epoch(1)))) == len(first)
        assert server.counted() == 0
        # Another process asks for the version of each shard.
        again = pickle.loads(pickle.dumps(dataset))
        assert keys_of(again.batches(plan)) == first
        assert server.counted() <= SHARDS

    @pytest.mark.parametrize("shuffle", ["shards", "none", "global"])
    def test_an_epoch_of_a_set_takes_one_request_for_each_shard(
        self, server: RangeServer, shuffle: Shuffle
    ) -> None:
        dataset = SampleDataset(set_at(server), decode=False)
        plan = dataset.plan(shuffle=shuffle, batch_size=16, buffer_shards=2)
        assert server.counted() == 1  # the set file
        assert len(set(keys_of(dataset.batches(plan)))) == len(dataset)
        assert server.counted() == SHARDS

    @pytest.mark.parametrize("shuffle", ["shards", "global"])
    def test_a_set_in_the_cache_takes_one_request_to_open_and_none_to_read(
        self, server: RangeServer, tmp_path: Path, shuffle: Shuffle
    ) -> None:
        counts = []
        for _ in range(2):
            dataset = SampleDataset(set_at(server), decode=False, cache_dir=tmp_path / "cache")
            plan = dataset.plan(shuffle=shuffle, batch_size=16, buffer_shards=2)
            keys = keys_of(dataset.batches(plan))
            assert len(set(keys)) == SHARDS * RECORDS
            counts.append(server.counted())
        assert counts == [1 + SHARDS, 1]
        # Nothing is left to be read ahead.
        dataset.follow(plan)
        assert all(thread.name != "read-ahead" for thread in threading.enumerate())

    def test_a_shard_that_is_not_what_the_set_file_says_is_not_kept(
        self, folder: Path, tmp_path: Path
    ) -> None:
        served = tmp_path / "served"
        served.mkdir()
        for path in folder.glob("s*.shardpack*"):
            (served / path.name).write_bytes(path.read_bytes())
        changed = served / "s-000001.shardpack"
        content = bytearray(changed.read_bytes())
        content[len(content) // 2] ^= 1
        changed.write_bytes(content)
        with RangeServer(served) as server:
            dataset = SampleDataset(set_at(server), decode=False, cache_dir=tmp_path / "cache")
            assert dataset[0]["__key__"] == "k0000"
            with pytest.raises(ShardIOError, match=r"s-000001.shardpack.*has changed") as failure:
                dataset[RECORDS + 10]
            assert failure.value.errno == errno.ESTALE
            changed.write_bytes((folder / changed.name).read_bytes())
            again = SampleDataset(set_at(server), decode=False, cache_dir=tmp_path / "cache")
            assert again[RECORDS + 10]["__key__"] == f"k{RECORDS + 10:04}"

    def test_samples_that_lie_close_on_the_whole_share_a_request(self, server: RangeServer) -> None:
        dataset = SampleDataset(set_at(server), decode=False)
        chosen = [number for number in range(len(dataset)) if number % 5 == 0]
        server.counted()
        dataset.follow_batches(iter([np.array(chosen)]))
        assert [one["__key__"] for one in dataset.__getitems__(chosen)] == [
            f"k{number:04}" for number in chosen
        ]
        assert server.counted() == SHARDS
        dataset.close()

    def test_a_large_entry_that_nobody_reads_is_not_fetched(self, tmp_path: Path) -> None:
        with ShardWriterSet(
            str(tmp_path / "t-%06d.shardpack"), max_records=20, fsync=False
        ) as all_:
            for number in range(40):
                all_.write(f"{number}", {"n.json": {"n": number}, "x.bin": noise(150_000, number)})
        with RangeServer(tmp_path) as server:
            dataset = SampleDataset(server.url("t.shardpack-set"), entries=["n.json"])
            plan = dataset.plan(batch_size=8, shuffle="shards", buffer_shards=1)
            found = [sample["n.json"]["n"] for batch in dataset.batches(plan) for sample in batch]
            assert sorted(found) == list(range(40))
            fetched = sum(stop - start for _, start, stop in server.asked)
            # The ends of the shards, and a head of 4 KiB for each record, of 6 MB.
            assert fetched <= 2 * HEAD + 40 * (1 << 14)

    def test_samples_in_random_order_are_fetched_from_several_shards_at_once(
        self, server: RangeServer
    ) -> None:
        dataset = SampleDataset(shards_at(server), decode=False, read_ahead="1MB")
        plan = dataset.plan(batch_size=16)
        len(dataset)
        meet = meeting(server, SHARDS, larger_than=0)
        next(dataset.batches(plan))
        assert meet()

    def test_joined_datasets_and_mixtures_are_read_ahead(
        self, server: RangeServer, folder: Path
    ) -> None:
        def joined(shards: list[str]) -> SampleDataset:
            parts = {"x": shardpack.open(shards), "y": shardpack.open(shards[:SHARDS])}
            return SampleDataset(shardpack.join(parts), decode=False)

        plan = Plan(SHARDS * RECORDS, batch_size=32)
        near, far = joined(local_shards(folder)), joined(shards_at(server))
        for found, wanted in zip(far.batches(plan), near.batches(plan), strict=True):
            assert list(found) == list(wanted)
        keys: list[Any] = []
        for source in (shards_at(server), local_shards(folder)):
            sources = [SampleDataset(source, entries=["n.json"]) for _ in range(2)]
            mixed = mix([(sources[0], 0.7), (sources[1], 0.3)], seed=4)
            plan = mixed.plan(batch_size=20)
            mixed.follow(plan)
            keys.append([mixed.batch(numbers)["__key__"] for numbers in plan.batches()])
        assert keys[0] == keys[1]

    def test_batches_that_are_asked_for_in_another_order_are_read_directly(
        self, server: RangeServer, folder: Path
    ) -> None:
        far, near = SampleDataset(shards_at(server)), SampleDataset(local_shards(folder))
        plan = far.plan(shuffle="shards", batch_size=16)
        far.follow(plan)
        for step in (0, 1, 5, 2, 3):
            numbers = plan.batch(step)
            assert list(far.__getitems__(numbers)) == list(near.__getitems__(numbers))
        far.close()

    def test_an_object_store_serves_as_well(
        self, bucket: Bucket, folder: Path, tmp_path: Path
    ) -> None:
        paths = local_shards(folder)[:2]
        urls = [bucket.put(f"t/{n}.shardpack", Path(p).read_bytes()) for n, p in enumerate(paths)]
        plan = Plan(2 * RECORDS, batch_size=16)
        wanted = keys_of(SampleDataset(paths, decode=False).batches(plan))
        for _ in range(2):
            dataset = SampleDataset(
                urls, decode=False, storage_options=bucket.options, cache_dir=tmp_path
            )
            assert keys_of(dataset.batches(plan)) == wanted


class TestWindows:
    @pytest.mark.parametrize("shuffle", ["shards", "none", "global"])
    @pytest.mark.parametrize(
        ("files", "read_ahead"),
        [
            *((episodes_at, most) for most in ("256MB", 300_000, 1, 0)),
            # Without reading ahead, windows of packs come as those of other datasets of many packs.
            *((packs_at, most) for most in ("256MB", 300_000)),
        ],
    )
    def test_windows_read_ahead_are_those_of_the_local_files(
        self,
        server: RangeServer,
        folder: Path,
        files: Callable[[RangeServer], list[str]],
        shuffle: Shuffle,
        read_ahead: int,
    ) -> None:
        far = EpisodeDataset(files(server), 64, 64, read_ahead=read_ahead, index=False)
        near = EpisodeDataset(folder / "eps", 64, 64)
        plan = far.plan(shuffle=shuffle, batch_size=16, buffer_shards=2, seed=3)
        for found, wanted in zip(far.batches(plan), near.batches(plan), strict=True):
            assert_equal_windows(found.arrays, wanted.arrays)

    @pytest.mark.parametrize("files", [episodes_at, packs_at])
    def test_an_epoch_by_files_takes_one_request_for_each(
        self, server: RangeServer, files: Callable[[RangeServer], list[str]]
    ) -> None:
        dataset = EpisodeDataset(files(server), 64, 64, index=False)
        plan = dataset.plan(shuffle="shards", batch_size=16, buffer_shards=2)
        server.counted()
        for _ in dataset.batches(plan):
            pass
        assert server.counted() == len(files(server))

    def test_batches_of_any_order_take_one_request_for_each_file_if_all_fit(
        self, server: RangeServer, folder: Path
    ) -> None:
        far = EpisodeDataset(episodes_at(server), 64, index=False)
        near = EpisodeDataset(folder / "eps", 64)
        batches = np.random.default_rng(1).permutation(len(far))[:400].reshape(-1, 20)
        batches[::2] -= len(far)  # negative numbers count from the end
        server.counted()
        far.follow_batches(iter(batches))
        for numbers in batches:
            assert_equal_windows(far.batch(numbers), near.batch(numbers))
        assert server.counted() == EPISODES
        far.close()

    def test_a_few_windows_do_not_take_whole_files(self, server: RangeServer, folder: Path) -> None:
        far = EpisodeDataset(episodes_at(server), 64, index=False)
        near = EpisodeDataset(folder / "eps", 64)
        batches = [np.array([1500, 1510, 4500]), np.array([1540, 4510])]
        server.asked.clear()
        far.follow_batches(iter(batches))
        for numbers in batches:
            assert_equal_windows(far.batch(numbers), near.batch(numbers))
        largest = max(stop - start for _, start, stop in server.asked)
        assert largest <= HEAD
        far.close()

    @pytest.mark.parametrize("shuffle", ["shards", "global"])
    def test_a_large_channel_that_nobody_reads_is_not_fetched(
        self, tmp_path: Path, shuffle: Shuffle
    ) -> None:
        for number in range(3):
            cam = np.frombuffer(noise(1_000_000, number), np.uint8).reshape(500, -1)
            observations = {"cam": cam, "state": np.arange(500.0)}
            save_wshard(
                Episode(f"{number}", observations=observations), tmp_path / f"{number}.wshard"
            )
        with RangeServer(tmp_path) as server:
            urls = [server.url(f"{number}.wshard") for number in range(3)]
            dataset = EpisodeDataset(urls, 16, channels=["state"], index=False)
            plan = dataset.plan(shuffle=shuffle, batch_size=16, buffer_shards=1)
            found = [
                first for batch in dataset.batches(plan) for first in batch.arrays["state"][:, 0]
            ]
            assert sorted(found) == sorted(3 * [*range(500 - 16 + 1)])
            # For each file its length, opening it for windows, and the channel; the first file also says which
            # channels there are. However many threads need the channel, one asks for it.
            assert server.counted() == 3 * 3 + 1

    @pytest.mark.parametrize(
        ("step", "requests"),
        [(60, 12), (30, 1), (1, 1)],
        ids=["apart", "near", "overlapping"],
    )
    def test_windows_of_a_batch_share_a_request_if_they_are_near_each_other(
        self, tmp_path: Path, step: int, requests: int
    ) -> None:
        cam = np.frombuffer(noise(2_000_000, 1), np.uint8).reshape(1000, -1)
        save_wshard(Episode("0", observations={"cam": cam}), tmp_path / "0.wshard", "zstd")
        batches = np.random.default_rng(1).permuted(
            [100 + first + np.arange(12) * step for first in (0, 7, 9)], axis=1
        )
        with RangeServer(tmp_path) as server:
            # The file does not fit, nor do two batches.
            dataset = EpisodeDataset(server.url("0.wshard"), 16, index=False, read_ahead="500KB")
            server.counted()
            dataset.follow_batches(iter(batches))
            for numbers in batches:
                found = dataset.batch(numbers)["cam"]
                assert np.array_equal(found, [cam[at : at + 16] for at in numbers])
            # Besides, the file is opened once, however many threads need it.
            assert server.counted() == 1 + requests * len(batches)
            dataset.close()

    def test_steps_between_windows_that_take_few_bytes_in_the_file_take_no_memory(
        self, tmp_path: Path
    ) -> None:
        cam = np.repeat(np.arange(2000) % 256, 10_000).astype(np.uint8).reshape(2000, -1)
        save_wshard(
            Episode("0", observations={"cam": cam}), tmp_path / "0.wshard", profile="training"
        )
        with RangeServer(tmp_path) as server:
            dataset = EpisodeDataset(server.url("0.wshard"), 16, index=False, read_ahead=0)
            numbers = [100, 110, 1900]
            tracemalloc.start()
            try:
                found = dataset.batch(numbers)["cam"]
                most = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            assert np.array_equal(found, [cam[at : at + 16] for at in numbers])
            assert most < 4 * found.nbytes

    @pytest.mark.parametrize(
        "options", [{}, {"next_observations": True}, {"pad": "edge"}, {"pad": "zero"}], ids=str
    )
    def test_windows_that_share_requests_are_those_of_damaged_local_files_too(
        self, tmp_path: Path, options: dict[str, Any]
    ) -> None:
        for number in range(2):
            cam = np.frombuffer(noise(1_000_000, number), np.uint8).reshape(500, -1) // 64
            path = tmp_path / f"{number}.wshard"
            save_wshard(Episode(f"{number}", observations={"cam": cam}), path, profile="training")
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        with RangeServer(tmp_path) as server:
            urls = [server.url(f"{number}.wshard") for number in range(2)]
            options |= {"index": False, "on_error": "skip", "channels": ["cam"]}
            far = EpisodeDataset(urls, 16, 5, read_ahead=0, **options)
            near = EpisodeDataset(sorted(tmp_path.glob("*.wshard")), 16, 5, **options)
            for numbers in np.array_split(np.arange(len(near)), 5):
                assert_equal_windows(far.batch(numbers), near.batch(numbers))
            assert far.skipped.total == near.skipped.total > 0

    def test_files_are_dropped_when_the_order_is_past_them(self, server: RangeServer) -> None:
        dataset = EpisodeDataset(episodes_at(server), 64, 64, index=False, read_ahead=900_000)
        plan = dataset.plan(shuffle="shards", batch_size=16, buffer_shards=2)
        for numbers in plan.batches():
            if numbers[0] == plan.batch(0)[0]:
                dataset.follow(plan)
            dataset.batch(numbers)
            assert dataset.open_count <= 4  # of two groups at the border
        dataset.close()

    def test_the_second_epoch_from_the_cache_takes_no_requests(
        self, server: RangeServer, tmp_path: Path
    ) -> None:
        dataset = EpisodeDataset(
            episodes_at(server), 64, 64, index=False, cache_dir=tmp_path / "c", max_open=2
        )
        for epoch, shuffle in enumerate(("shards", "global", "none")):
            server.counted()
            for _ in dataset.batches(dataset.plan(shuffle=shuffle, batch_size=16, epoch=epoch)):  # type: ignore[arg-type]
                pass
            assert server.counted() == (0 if epoch else 2 * EPISODES)

    def test_windows_in_random_order_are_fetched_from_all_files_at_the_same_time(
        self, server: RangeServer
    ) -> None:
        dataset = EpisodeDataset(episodes_at(server), 64, 64, index=False, read_ahead=200_000)
        plan = dataset.plan(batch_size=4)
        meet = meeting(server, EPISODES, larger_than=0)
        next(dataset.batches(plan))
        assert meet()

    def test_memory_that_is_given_is_filled(self, server: RangeServer, folder: Path) -> None:
        far = EpisodeDataset(episodes_at(server), 64, 64, index=False, read_ahead=200_000)
        near = EpisodeDataset(folder / "eps", 64, 64)
        plan = far.plan(batch_size=8)
        far.follow(plan)
        room = near.batch(range(8))
        for step in range(3):
            found = far.batch(plan.batch(step), out=room)
            assert found["cam"] is room["cam"]
            assert_equal_windows(found, near.batch(plan.batch(step)))
        far.close()


def meeting(server: RangeServer, count: int, larger_than: int) -> Callable[[], bool]:
    """Have requests wait until `count` of them are there at the same time; the function returned says if they were."""
    barrier = threading.Barrier(count)
    met = threading.Event()

    def wait(_: str, start: int, stop: int) -> None:
        if not met.is_set() and stop - start > larger_than:
            barrier.wait(20)
            met.set()

    server.before = wait
    return met.is_set


class TestFailures:
    def test_an_error_is_raised_at_the_sample_that_needed_the_bytes(
        self, server: RangeServer
    ) -> None:
        """And `on_error="skip"` does not take a server that fails for damaged data."""
        options = {"retries": 0}
        dataset = SampleDataset(
            shards_at(server), decode=False, on_error="skip", storage_options=options
        )
        plan = dataset.plan(shuffle="none", batch_size=RECORDS // 2)
        shardpack_at_2 = f"s-{2:06}.shardpack"
        server.before = lambda name, start, stop: 500 if name == shardpack_at_2 else None
        batches = dataset.batches(plan)
        assert len(keys_of(next(batches) for _ in range(4))) == 2 * RECORDS
        with pytest.raises(ShardIOError, match=rf"{shardpack_at_2}.*500"):
            next(batches)
        assert dataset.skipped.total == 0

    @pytest.mark.parametrize("shuffle", ["none", "global"])
    @pytest.mark.parametrize("read_ahead", ["256MB", 200_000])
    def test_windows_of_a_server_that_fails_are_not_skipped(
        self,
        server: RangeServer,
        shuffle: Shuffle,
        read_ahead: int | str,
    ) -> None:
        dataset = EpisodeDataset(
            episodes_at(server),
            *(64, 64),
            index=False,
            on_error="skip",
            read_ahead=read_ahead,
            storage_options={"retries": 0},
        )
        server.before = lambda *_: 503
        with pytest.raises(ShardIOError, match="503"):
            next(dataset.batches(dataset.plan(shuffle=shuffle, batch_size=8)))
        assert dataset.skipped.total == 0

    def test_a_damaged_sample_is_replaced_as_it_is_without_reading_ahead(
        self, folder: Path, tmp_path: Path
    ) -> None:
        content = bytearray((folder / "s-000001.shardpack").read_bytes())
        content[len(content) // 2] ^= 1
        (tmp_path / "s-000000.shardpack").write_bytes(content)
        plan = Plan(RECORDS, batch_size=8, seed=1)
        with RangeServer(tmp_path) as server:
            found = [
                SampleDataset(
                    server.url("s-000000.shardpack"),
                    decode=False,
                    on_error="skip",
                    read_ahead=read_ahead,
                )
                for read_ahead in ("256MB", 0)
            ]
            assert keys_of(found[0].batches(plan)) == keys_of(found[1].batches(plan))
            assert dict(found[0].skipped) == dict(found[1].skipped)
            assert found[0].skipped.total == 1

    def test_options_of_the_cache_are_for_shards_that_are_opened_here(self, folder: Path) -> None:
        opened = shardpack.open(local_shards(folder))
        with pytest.raises(InvalidArgument, match="are for shards that are opened here"):
            SampleDataset(opened, cache_dir="cache")
        with pytest.raises(InvalidArgument, match="cache_bytes needs a cache"):
            SampleDataset(local_shards(folder), cache_bytes=5)


class TestThreads:
    def test_no_more_is_begun_than_fits_until_there_is_room(self) -> None:
        begun = [threading.Event() for _ in range(6)]
        released = threading.Event()
        too_early: list[int] = []

        def work(number: int) -> int:
            begun[number].set()
            if number > 2 and not released.is_set():
                too_early.append(number)
            return number

        jobs = [Job(10, partial(work, number)) for number in range(6)]
        ahead = ReadAhead(lambda: [jobs.pop(0)] if jobs else [], 30, threads=4)
        assert ahead.result(0) == 0
        assert all(event.wait(20) for event in begun[:3])
        assert not begun[3].is_set()
        released.set()
        ahead.release(10)
        assert begun[3].wait(20)
        # What is asked for is made even if there is no room.
        assert [ahead.result(number) for number in (5, 4, 3)] == [5, 4, 3]
        assert not too_early
        ahead.close()

    @pytest.mark.parametrize("drop", ["close", "del", "iterator"])
    def test_threads_end_with_the_dataset_or_the_iteration(
        self, server: RangeServer, drop: str
    ) -> None:
        before = set(threading.enumerate())
        datasets: list[Any] = [
            SampleDataset(shards_at(server), read_ahead=100_000),
            EpisodeDataset(episodes_at(server), 64, 64, index=False, read_ahead=200_000),
            EpisodeDataset(episodes_at(server), 64, 64, index=False),
        ]
        plans = [dataset.plan(shuffle="shards", batch_size=8) for dataset in datasets]
        running = []
        for dataset, plan in zip(datasets, plans, strict=True):
            if drop == "iterator":
                running.append(dataset.batches(plan))
                next(running[-1])
            else:
                dataset.follow(plan)
                dataset.__getitems__(plan.batch(0))
        threads = [one for one in set(threading.enumerate()) - before if one.name == "read-ahead"]
        assert len(threads) >= 3
        if drop == "close":
            for dataset in datasets:
                dataset.close()
        running.clear()
        if drop == "del":
            del dataset
            datasets.clear()
            gc.collect()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()

    @pytest.mark.parametrize("cached", [False, True])
    def test_forked_workers_read_ahead_on_their_own(
        self, server: RangeServer, folder: Path, tmp_path: Path, cached: bool
    ) -> None:
        script = """
            import os, pickle, sys
            from shard_train import EpisodeDataset, SampleDataset
            shards, episodes, folder, cached = pickle.loads(bytes.fromhex(sys.argv[1]))
            cache = {"cache_dir": folder} if cached else {}
            datasets = [
                SampleDataset(shards, decode=False, **cache),
                EpisodeDataset(episodes, 64, 64, index=False, **cache),
                EpisodeDataset(episodes, 64, 64, index=False, read_ahead=400_000, **cache),
            ]
            def read(dataset, plan):
                batches = list(dataset.batches(plan))
                if isinstance(dataset, SampleDataset):
                    return [sample["__key__"] for batch in batches for sample in batch]
                return [float(batch.arrays["state"].sum()) for batch in batches]
            for dataset in datasets:
                plan = dataset.plan(shuffle="shards", batch_size=8, buffer_shards=2)
                dataset.follow(plan)
                dataset.__getitems__(plan.batch(0))  # threads are running
                ends = []
                for worker in range(2):
                    out, into = os.pipe()
                    if os.fork() == 0:
                        own = dataset.plan(shuffle="shards", batch_size=8, buffer_shards=2, num_workers=2, worker=worker)
                        os.write(into, pickle.dumps(read(dataset, own)))
                        os._exit(0)
                    os.close(into)
                    ends.append(open(out, "rb"))
                found = [pickle.load(end) for end in ends]
                wanted = read(dataset, plan)
                size = len(wanted) // len(plan) if isinstance(dataset, SampleDataset) else 1
                batches = [wanted[at : at + size] for at in range(0, len(wanted), size)]
                for worker in range(2):
                    assert found[worker] == sum(batches[worker::2], []), worker
                for _ in ends:
                    assert os.wait()[1] == 0
            print("done")
        """
        given = (shards_at(server), episodes_at(server), str(tmp_path / "cache"), cached)
        assert check_python(script, pickle.dumps(given).hex()).strip() == "done"
        if cached:
            assert server.counted(larger_than=HEAD) == SHARDS + EPISODES
