"""Packs behind URLs: how many requests and bytes everything costs, counted by real servers on the loopback."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

import shardpack
from shardpack import ShardPackReader
from tests.shard_format.support import noise
from tests.shardpack.support import write_pack
from tests.stores.counting import CountedBucket, RangeServer, Traffic, range_server, s3_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KIB, MIB = 1 << 10, 1 << 20
BLOCK = 8 * MIB
RECORDS = 60


@pytest.fixture(scope="module")
def bucket() -> Iterator[CountedBucket]:
    with s3_server() as bucket:
        yield bucket


@pytest.fixture(scope="module")
def server() -> Iterator[RangeServer]:
    with range_server() as server:
        yield server


@pytest.fixture(params=["http", "s3"])
def store(request: pytest.FixtureRequest) -> RangeServer | CountedBucket:
    """Each kind of server."""
    found: RangeServer | CountedBucket = request.getfixturevalue(
        "server" if request.param == "http" else "bucket"
    )
    found.counter.taken()
    return found


def content(number: int) -> dict[str, bytes]:
    return {"img.bin": noise(100_000, number), "label.cls": b"%d" % number}


def samples(numbers: range) -> dict[str, dict[str, bytes]]:
    return {f"key/{number}": content(number) for number in numbers}


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A shard of 6 MB."""
    path = tmp_path_factory.mktemp("shard") / "a.shardpack"
    return write_pack(path, samples(range(RECORDS))).read_bytes()


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A shard of 23 MB, with small records around one that is larger than a block."""
    path = tmp_path_factory.mktemp("large") / "a.shardpack"
    middle = {"big": {"a.bin": noise(MIB, 9) * 10, "b.cls": b"1", "c.bin": noise(MIB, 8)}}
    some, others = samples(range(RECORDS)), samples(range(RECORDS, RECORDS + 60))
    return write_pack(path, some | middle | others).read_bytes()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A set of five shards, with its set file."""
    folder = tmp_path_factory.mktemp("set")
    pattern = str(folder / "train-%03d.shardpack")
    with shardpack.ShardWriterSet(pattern, max_records=12, fsync=False) as writer:
        for key, entries in samples(range(RECORDS)).items():
            writer.write(key, entries)
    return {name: (folder / name).read_bytes() for name in os.listdir(folder)}


def put_all(store: RangeServer | CountedBucket, files: dict[str, bytes], folder: str = "") -> str:
    """Puts a set to a server; returns the URL of the set file."""
    urls = {name: store.put(folder + name, data) for name, data in files.items()}
    store.counter.taken()
    return urls["train.shardpack-set"]


class TestOneShard:
    """Opening, and single records."""

    def test_a_shard_opens_with_one_request_and_a_record_takes_another(
        self, store: RangeServer | CountedBucket, shard: bytes
    ) -> None:
        url = store.put("one.shardpack", shard)
        with shardpack.open(url, storage_options=store.options) as dataset:
            assert len(dataset) == RECORDS
            assert dataset.metadata["version"] == 1
            assert store.counter.taken() == Traffic(1, 64 * KIB)
            record = dataset[7]
            assert record.read_all() == content(7)
            assert store.counter.taken() == Traffic(1, record.size)
            assert dataset["key/20"]["label.cls"].decode() == "20"
            assert dataset.sample(21) == content(21)
            assert store.counter.taken().requests == 2

    def test_an_index_above_64_kibibytes_takes_a_second_request(
        self, store: RangeServer | CountedBucket, tmp_path: Path
    ) -> None:
        path = write_pack(tmp_path / "a", {str(number): {} for number in range(5000)})
        url = store.put("index.shardpack", path.read_bytes())
        with shardpack.open(url, storage_options=store.options) as dataset:
            assert dataset.find("4321") == 4321
            assert store.counter.taken().requests == 3

    def test_an_entry_of_a_large_record_does_not_fetch_the_others(
        self, store: RangeServer | CountedBucket, large: bytes
    ) -> None:
        url = store.put("large.shardpack", large)
        with shardpack.open(url, storage_options=store.options) as dataset:
            store.counter.taken()
            assert dataset[RECORDS]["b.cls"].decode() == "1"
            assert store.counter.taken().sent < 100 * KIB
            assert len(dataset.sample(RECORDS)["a.bin"]) == 10 * MIB
            assert store.counter.taken().requests == 1

    @pytest.mark.parametrize("read", ["records", "samples", "keys"])
    def test_reading_in_order_takes_a_request_for_each_8_mebibytes(
        self, store: RangeServer | CountedBucket, large: bytes, read: str
    ) -> None:
        url = store.put("large.shardpack", large)
        with ShardPackReader(url, storage_options=store.options) as reader:
            if read == "records":
                found: list[Any] = [record.read_all() for record in reader.records()]
                assert found[3] == content(3)
            elif read == "samples":
                assert list(reader.samples())[RECORDS + 5] == content(RECORDS + 4)
            else:
                assert list(reader.keys())[:2] == ["key/0", "key/1"]
        requests, sent = store.counter.taken()
        if read == "keys":
            assert sent < 0.6 * len(large)  # not the large record
        else:
            assert sent <= 1.05 * len(large)
            assert requests <= len(large) / BLOCK + 2

    def test_records_stay_readable_while_others_are_read(
        self, store: RangeServer | CountedBucket, large: bytes
    ) -> None:
        url = store.put("large.shardpack", large)
        with ShardPackReader(url, storage_options=store.options) as reader:
            records = list(reader.records())
            store.counter.taken()
            for number in (70, 3, 40):
                key = int(records[number].key.removeprefix("key/"))
                assert records[number].read_all() == content(key)
            assert store.counter.taken() == Traffic(0, 0)
            assert records[RECORDS]["b.cls"].decode() == "1"

    def test_a_part_of_the_records_fetches_nothing_behind_it(
        self, store: RangeServer | CountedBucket, shard: bytes
    ) -> None:
        url = store.put("one.shardpack", shard)
        with ShardPackReader(url, storage_options=store.options) as reader:
            store.counter.taken()
            assert [record.read_all() for record in reader.records(10, 30)] == [
                content(number) for number in range(10, 30)
            ]
            bounds = reader.get_index()
            assert store.counter.taken() == Traffic(1, bounds[30] - bounds[10])


class TestSets:
    """Many shards."""

    def test_a_set_opens_with_one_request_and_shards_when_they_are_read(
        self, store: RangeServer | CountedBucket, files: dict[str, bytes]
    ) -> None:
        url = put_all(store, files)
        with shardpack.open(url, storage_options=store.options) as dataset:
            assert len(dataset) == RECORDS
            assert dataset.metadata["version"] == 1
            assert store.counter.taken().requests == 1
            assert dataset[30].read_all() == content(30)
            assert store.counter.taken().requests == 2

    def test_an_epoch_in_order_takes_two_requests_for_each_shard(
        self, store: RangeServer | CountedBucket, files: dict[str, bytes]
    ) -> None:
        url = put_all(store, files)
        with shardpack.open(url, storage_options=store.options) as dataset:
            store.counter.taken()
            assert list(dataset.samples()) == [content(number) for number in range(RECORDS)]
            requests, sent = store.counter.taken()
            assert requests == 10
            assert sent == sum(len(data) for name, data in files.items() if name[-4:] != "-set")

    def test_an_epoch_over_streams_takes_one_request_for_each_shard(
        self, server: RangeServer, files: dict[str, bytes]
    ) -> None:
        url = put_all(server, files)
        shards = [url.replace(".shardpack-set", f"-{number:03d}.shardpack") for number in range(5)]
        found = [record.read_all() for shard in shards for record in shardpack.stream(shard)]
        assert found == [content(number) for number in range(RECORDS)]
        sizes = [len(data) for name, data in files.items() if name[-4:] != "-set"]
        assert server.counter.taken() == Traffic(5, sum(sizes))

    def test_a_list_of_shards_is_counted_with_the_requests_that_open_them(
        self, store: RangeServer | CountedBucket, files: dict[str, bytes]
    ) -> None:
        shards = put_all(store, files).replace("train.shardpack-set", "train-{000..004}.shardpack")
        with shardpack.open(shards, storage_options=store.options) as dataset:
            assert len(dataset) == RECORDS
            assert dataset.find("nothing") is None
            assert len(dataset.key_hashes()) == RECORDS
            assert store.counter.taken().requests == 5

    @pytest.mark.parametrize("take", ["take", "take_samples", "take_keyed", "slice"])
    def test_a_batch_is_planned_over_the_shards_and_comes_in_order(
        self, store: RangeServer | CountedBucket, files: dict[str, bytes], take: str
    ) -> None:
        url = put_all(store, files)
        wanted = [59, 1, 0, 25, 58, 24, 2, 59]
        with shardpack.open(url, storage_options=store.options) as dataset:
            list(dataset.take(range(0, RECORDS, 12)))  # opens all shards
            store.counter.taken()
            if take == "take":
                found = [record.read_all() for record in dataset.take(wanted)]
            elif take == "take_samples":
                found = dataset.take_samples(wanted)
            elif take == "take_keyed":
                keyed = dataset.take_keyed(wanted)
                assert [key for key, _ in keyed] == [f"key/{number}" for number in wanted]
                found = [entries for _, entries in keyed]
            else:
                wanted = list(range(20, 40))
                found = [record.read_all() for record in dataset[20:40]]
            assert found == [content(number) for number in wanted]
            # Neighbours share a request, and three shards have some.
            assert store.counter.taken().requests == 3

    def test_columns_of_a_join_are_fetched_each_with_one_request(
        self, store: RangeServer | CountedBucket, tmp_path: Path
    ) -> None:
        urls = {
            name: store.put(
                f"{name}.shardpack",
                write_pack(
                    tmp_path / name,
                    {str(n): {f"{name}.bin": noise(20_000, n + at)} for n in range(50)},
                ).read_bytes(),
            )
            for at, name in enumerate(("left", "right"))
        }
        parts = [shardpack.open(url, storage_options=store.options) for url in urls.values()]
        with closing(parts[0]), closing(parts[1]), shardpack.join(*parts) as joined:
            assert store.counter.taken().requests == 2
            found = [record.read_all() for record in joined.take([8, 6, 7])]
            assert store.counter.taken().requests == 2
            assert found[1] == {"left.bin": noise(20_000, 6), "right.bin": noise(20_000, 7)}


class TestUnpacking:
    """What reads everything more than once."""

    def test_unpacking_fetches_everything_once(
        self, store: RangeServer | CountedBucket, files: dict[str, bytes], tmp_path: Path
    ) -> None:
        url = put_all(store, files)
        with shardpack.open(url, storage_options=store.options) as dataset:
            done = shardpack.unpack(dataset, tmp_path / "out")
            assert done.files == 2 * RECORDS
            assert (tmp_path / "out/key/33.img.bin").read_bytes() == content(33)["img.bin"]
            again = shardpack.unpack(dataset, tmp_path / "out")
            assert (again.files, again.kept) == (0, 2 * RECORDS)
        requests, sent = store.counter.taken()
        size = sum(map(len, files.values()))
        assert sent <= 2 * 1.05 * size
        assert requests <= 1 + 2 * 2 * len(files)

    def test_a_remote_stream_takes_a_request_for_each_8_mebibytes(
        self, server: RangeServer, large: bytes
    ) -> None:
        url = server.put("large.shardpack", large)
        server.counter.taken()
        keys = [record.key for record in shardpack.stream(url)]
        assert (len(keys), keys[0]) == (2 * RECORDS + 1, "key/0")
        requests, sent = server.counter.taken()
        assert sent == len(large)
        assert requests <= len(large) / BLOCK + 2

    def test_what_is_left_of_a_remote_shard_is_recovered_with_each_byte_fetched_once(
        self, server: RangeServer, shard: bytes, tmp_path: Path
    ) -> None:
        url = server.put("cut.shardpack", shard[:5_000_000])
        server.counter.taken()
        recovery = shardpack.recover(url, tmp_path / "saved.shardpack")
        assert recovery.records == 49
        assert not recovery.had_index
        assert server.counter.taken() == Traffic(1, 5_000_000)

    def test_a_split_by_shares_and_a_sort_fetch_everything_once(
        self, server: RangeServer, shard: bytes, tmp_path: Path
    ) -> None:
        url = server.put("one.shardpack", shard)
        server.counter.taken()
        names = {str(tmp_path / "a.shardpack"): 0.5, str(tmp_path / "b.shardpack"): 0.5}
        assert sum(part.records for part in shardpack.split(url, names).values()) == RECORDS
        assert server.counter.taken() == Traffic(1, len(shard))
        assert shardpack.sort(url, tmp_path / "c.shardpack").records == RECORDS
        assert server.counter.taken() == Traffic(1, len(shard))
