"""Datasets: which shards are meant, how few bytes are read, what stays open, what crosses processes."""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import shardpack
from shard_format.errors import BadMagic, Closed, EntryNotFound, InvalidArgument, ShardIOError
from shardpack import Dataset, ShardPackReader
from tests.shard_format.test_remote import Server
from tests.shardpack.support import RangesOnly, check_python, noise, prose, write_pack
from wshard import Episode, save_wshard

if TYPE_CHECKING:
    from collections.abc import Callable

REPOSITORY = Path(__file__).parents[2]
COUNT = 60


def content(number: int) -> dict[str, bytes]:
    return {
        "a.jpg": noise(500 + number, number),
        "b.txt": prose(400 + number),
        "c.cls": b"%d" % number,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six shards of ten records, read only."""
    path = tmp_path_factory.mktemp("set")
    for shard in range(6):
        numbers = range(10 * shard, 10 * shard + 10)
        write_pack(
            path / f"train-{shard:03d}.shardpack",
            {f"key/{number}": content(number) for number in numbers},
            compression="lz4",
        )
    return path


def test_a_file_of_another_format_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ep.wshard"
    save_wshard(Episode("e", observations={"x": np.zeros((50, 3))}), path)
    with pytest.raises(BadMagic, match=r"not a ShardPack file.*it looks like a Shard file"):
        shardpack.open(path)


class TestNames:
    """What `open` takes."""

    @pytest.mark.parametrize(
        "shards",
        [
            lambda f: f,
            lambda f: str(f / "train-{000..005}.shardpack"),
            lambda f: f"{f}/train-00?.shardpack",
            lambda f: f"{f}/*.shardpack",
            lambda f: [f / f"train-00{n}.shardpack" for n in range(6)],
            lambda f: (f"{f}/train-{{000..002}}.shardpack", f"{f}/train-00[345].shardpack"),
            lambda f: [(f / f"train-00{n}.shardpack").read_bytes() for n in range(6)],
            lambda f: [RangesOnly((f / f"train-00{n}.shardpack").read_bytes()) for n in range(6)],
            lambda f: (str(p) for p in sorted(f.iterdir())),
            lambda f: (
                (f / "train-{000..005}.shardpack").as_uri().replace("%7B", "{").replace("%7D", "}")
            ),
        ],
        ids=[
            "folder",
            "range",
            "mark",
            "star",
            "list",
            "both",
            "bytes",
            "sources",
            "generator",
            "URL",
        ],
    )
    def test_all_ways_to_name_the_shards_of_a_set(
        self, folder: Path, shards: Callable[[Path], Any]
    ) -> None:
        dataset = shardpack.open(shards(folder))
        assert len(dataset) == COUNT
        assert dataset[37].read_all() == content(37)
        assert dataset["key/59"].read_all() == content(59)
        assert [record.key for record in dataset] == [f"key/{n}" for n in range(COUNT)]

    def test_a_file_whose_name_looks_like_a_pattern_is_that_file(self, tmp_path: Path) -> None:
        for name in ("a[1].shardpack", "b-{0..3}.shardpack", "c*.shardpack"):
            path = write_pack(tmp_path / name, {name: {}})
            assert list(shardpack.open(str(path)).keys()) == [name]

    def test_a_range_keeps_its_digits(self, tmp_path: Path) -> None:
        for number in (8, 9, 10):
            write_pack(tmp_path / f"{number:02d}-{number}.shardpack", {str(number): {}})
        dataset = shardpack.open(f"{tmp_path}/{{08..10}}-*.shardpack")
        assert list(dataset.keys()) == ["8", "9", "10"]

    @pytest.mark.parametrize("shards", ["*.nothing", [], "{5..3}", [[]]])
    def test_nothing_is_an_error(
        self,
        tmp_path: Path,
        shards: Any,  # noqa: ANN401 - anything
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(InvalidArgument):
            shardpack.open(shards)

    def test_an_empty_folder_and_a_missing_file_are_errors(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidArgument, match="no such files"):
            shardpack.open(tmp_path)
        with pytest.raises(ShardIOError, match=r"missing\.shardpack"):
            shardpack.open(tmp_path / "missing.shardpack")

    def test_a_missing_shard_in_the_middle_is_named(self, folder: Path) -> None:
        dataset = shardpack.open(f"{folder}/train-{{004..006}}.shardpack")
        with pytest.raises(ShardIOError, match=r"train-006"):
            len(dataset)
        with pytest.raises(ShardIOError, match=r"train-006"):
            list(dataset)


class TestAccess:
    """Numbers, keys, offsets."""

    @pytest.fixture(params=["one", "many", "ranges"])
    def dataset(self, folder: Path, request: pytest.FixtureRequest, tmp_path: Path) -> Dataset:
        if request.param == "many":
            return shardpack.open(folder)
        whole = write_pack(
            tmp_path / "whole", {f"key/{n}": content(n) for n in range(COUNT)}, compression="zstd"
        )
        return shardpack.open(whole if request.param == "one" else RangesOnly(whole.read_bytes()))

    def test_numbers_of_any_kind(self, dataset: Dataset) -> None:
        for number in (0, 59, -1, -60, np.int64(31), np.uint8(7), True):
            assert dataset[number].read_all() == content(int(number) % COUNT)  # type: ignore[index] # any integer
        found = dataset.take(np.array([5, -1, 5]))
        assert [record.key for record in found] == ["key/5", "key/59", "key/5"]
        assert [r.key for r in dataset.__getitems__([3, 2])] == ["key/3", "key/2"]

    @pytest.mark.parametrize("number", [60, -61, 2**70])
    def test_numbers_outside(self, dataset: Dataset, number: int) -> None:
        with pytest.raises(IndexError):
            dataset[number]
        with pytest.raises(IndexError):
            dataset.take([0, number])

    @pytest.mark.parametrize("wrong", [1.5, None, b"key/1", (1, 2)])
    def test_what_is_no_number_and_no_key_is_a_type_error(
        self,
        dataset: Dataset,
        wrong: Any,  # noqa: ANN401 - anything
    ) -> None:
        with pytest.raises(TypeError):
            dataset[wrong]

    def test_keys(self, dataset: Dataset) -> None:
        assert dataset.find("key/44") == 44
        assert dataset["key/44"].read_all() == content(44)
        assert "key/44" in dataset
        for missing in ("key/60", "", "\ud800", "KEY/1"):
            assert missing not in dataset
            with pytest.raises(EntryNotFound):
                dataset[missing]
        assert 44 not in dataset

    def test_offsets(self, dataset: Dataset) -> None:
        record = dataset.read_record_at_offset(dataset.get_index()[23])
        assert record.key == "key/23"
        assert len(dataset.get_index()) == COUNT
        for wrong in (1, -1, 2**70, dataset.get_index()[5] + 8):
            with pytest.raises(InvalidArgument, match="no record starts here"):
                dataset.read_record_at_offset(wrong)

    def test_a_closed_data_set_says_so_and_views_stay(self, dataset: Dataset) -> None:
        record = dataset[3]
        view = record["a.jpg"].data
        with dataset:
            pass
        calls: list[Callable[[], object]] = [
            lambda: dataset[3],
            lambda: dataset["key/3"],
            lambda: dataset.take([1]),
            lambda: list(dataset),
            lambda: dataset.metadata,
            lambda: dataset.get_index(),
        ]
        if dataset.label != "<ranges>":  # which has all bytes of the record in memory
            calls += [record.read_all, lambda: record["b.txt"].data]
        for call in calls:
            with pytest.raises(Closed):
                call()
        dataset.close()
        assert bytes(view) == content(3)["a.jpg"]

    def test_entries_that_are_not_compressed_are_views_of_the_file(self, folder: Path) -> None:
        record = shardpack.open(folder)[0]
        first, second = record["a.jpg"].data, shardpack.open(folder)[0]["a.jpg"].data
        assert first.readonly
        assert np.shares_memory(
            np.frombuffer(first, np.uint8), np.frombuffer(record["a.jpg"].data, np.uint8)
        )
        assert record["a.jpg"].data is first  # checked once
        assert first == second
        assert record["b.txt"].compression == "lz4"
        assert record["b.txt"].size == 400
        assert record["b.txt"].stored_size < 400

    def test_an_entry_that_is_not_there_is_named_with_a_suggestion(self, dataset: Dataset) -> None:
        with pytest.raises(EntryNotFound, match=r"'key/0'.*did you mean 'a.jpg'"):
            dataset[0]["a.jpeg"]


class TestRanges:
    """A reader that wants one entry reads no other's bytes."""

    @pytest.fixture
    def source(self, tmp_path: Path) -> RangesOnly:
        samples = {
            f"{n}": {"large.jpg": noise(100_000, n), "label.cls": str(n), "more.bin": noise(50_000)}
            for n in range(5)
        }
        return RangesOnly(write_pack(tmp_path / "a", samples).read_bytes())

    def test_one_read_of_the_last_64_kibibytes_opens_a_shard(self, source: RangesOnly) -> None:
        dataset = shardpack.open(source)
        assert dataset.metadata["version"] == 1
        assert len(dataset) == 5
        assert source.asked == [(source.size() - 65_536, 65_536)]

    def test_an_index_that_is_longer_takes_one_more(self, tmp_path: Path) -> None:
        path = write_pack(tmp_path / "a", {str(n): {} for n in range(5000)})
        source = RangesOnly(path.read_bytes())
        dataset = shardpack.open(source)
        assert (len(dataset), source.rounds) == (5000, 2)
        assert sum(length for _, length in source.asked) < 5000 * 20 + 1000
        assert dataset["4999"].key == "4999"

    def test_one_entry_of_a_large_record_takes_its_head_and_its_bytes(self, tmp_path: Path) -> None:
        entries = {"large.jpg": noise(2_000_000), "label.cls": "3", "more.bin": noise(50_000)}
        source = RangesOnly(write_pack(tmp_path / "a", {"3": entries}).read_bytes())
        dataset = shardpack.open(source)
        source.asked.clear()
        entry = dataset[0]["more.bin"]
        assert source.asked == [(0, 4096)]
        assert entry.data == noise(50_000)
        assert source.asked[1:] == [(entry.offset, 50_000)]

    def test_a_small_record_takes_one_read(self, source: RangesOnly) -> None:
        dataset = shardpack.open(source)
        source.rounds = 0
        assert len(dataset[2].read_all()["large.jpg"]) == 100_000
        assert source.rounds == 1
        assert len(dataset["2"].read_all()["large.jpg"]) == 100_000
        assert source.rounds == 2

    def test_records_in_order_come_in_few_reads(self, source: RangesOnly) -> None:
        dataset = shardpack.open(source)
        source.rounds = 0
        assert [record["label.cls"].decode() for record in dataset] == ["0", "1", "2", "3", "4"]
        assert source.rounds == 1

    def test_taken_records_come_together(self, source: RangesOnly) -> None:
        dataset = shardpack.open(source)
        source.rounds = 0
        assert [r["label.cls"].decode() for r in dataset.take([4, 0, 2])] == ["4", "0", "2"]
        assert source.rounds == 1

    def test_of_large_records_only_heads_are_taken(self, tmp_path: Path) -> None:
        long = {f"{'x' * 5000}{n}": {"a.bin": noise(2_000_000), "b.cls": str(n)} for n in range(2)}
        source = RangesOnly(write_pack(tmp_path / "a", long).read_bytes())
        dataset = shardpack.open(source)
        source.asked.clear()
        assert [r["b.cls"].decode() for r in dataset.take([1, 0])] == ["1", "0"]
        assert sum(length for _, length in source.asked) < 20_000

    def test_a_shard_behind_a_url(self, folder: Path) -> None:
        server = Server()
        for path in folder.iterdir():
            server.files[f"/{path.name}"] = path.read_bytes()
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            with shardpack.open(server.url("/train-{000..005}.shardpack")) as dataset:
                assert len(dataset) == COUNT
                assert dataset["key/33"].read_all() == content(33)
                assert [r.key for r in dataset.take([59, 0])] == ["key/59", "key/0"]
                copy = pickle.loads(pickle.dumps(dataset))
                assert copy[12].read_all() == content(12)
                copy.close()
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


def read_much(dataset: Dataset, seed: int) -> None:
    """Reads in every way, starting at another place for every seed; asserts what comes."""
    for step in range(40):
        number = (seed * 17 + step * 7) % COUNT
        assert dataset[number].read_all() == content(number)
        assert dataset[f"key/{number}"].key == f"key/{number}"
        assert bytes(dataset[number]["b.txt"].data) == content(number)["b.txt"]
    assert len(list(dataset.records(5, 25))) == 20


class TestProcesses:
    """Threads, forked and spawned processes."""

    @pytest.mark.parametrize("max_open", [1, 3, 256])
    def test_threads_share_a_data_set(self, folder: Path, max_open: int) -> None:
        with shardpack.open(folder, max_open=max_open) as dataset, ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda seed: read_much(dataset, seed), range(16)))

    def test_an_index_that_was_released_is_closed_and_not_damaged(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reader = ShardPackReader(folder / "train-000.shardpack")
        open_index = reader._open_index

        def as_another_thread_may() -> object:
            index = open_index()
            reader.close()
            return index

        monkeypatch.setattr(reader, "_open_index", as_another_thread_may)
        with pytest.raises(Closed):
            reader.find("key/3")

    def test_few_files_stay_open(self, folder: Path) -> None:
        before = len(os.listdir("/proc/self/fd"))
        dataset = shardpack.open(folder, max_open=2)
        read_much(dataset, 0)
        assert len(os.listdir("/proc/self/fd")) - before <= 2
        dataset.close()
        del dataset
        assert len(os.listdir("/proc/self/fd")) == before

    def test_forked_children_share_the_parents_data_set(self, folder: Path) -> None:
        script = """
        import os, sys
        sys.path.insert(0, sys.argv[2])
        import shardpack
        from tests.shardpack.test_dataset import read_much
        dataset = shardpack.open(sys.argv[1], max_open=2)
        read_much(dataset, 1)
        children = []
        for seed in range(4):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    read_much(dataset, seed)
                    code = 0
                finally:
                    os._exit(code)
            children.append(pid)
        read_much(dataset, 9)
        assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4
        """
        check_python(script, folder, REPOSITORY)

    def test_a_spawned_process_gets_the_data_set_as_its_locations(self, folder: Path) -> None:
        context = multiprocessing.get_context("spawn")
        with shardpack.open(folder) as dataset, context.Pool(1) as pool:
            assert pool.apply(len, (dataset,)) == COUNT
            record = pool.apply(Dataset.__getitem__, (dataset, 7))
            assert record.read_all() == content(7)
            assert record.offset == dataset[7].offset

    def test_a_relative_path_is_found_from_another_folder(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(folder)
        stored = pickle.dumps(shardpack.open("train-{000..001}.shardpack"))
        reader = pickle.dumps(ShardPackReader("train-000.shardpack"))
        assert len(stored) < 1000
        monkeypatch.chdir(tmp_path)
        assert len(pickle.loads(stored)) == 20
        assert len(pickle.loads(reader)) == 10

    def test_a_data_set_of_bytes_pickles_as_the_bytes(self, folder: Path) -> None:
        dataset = shardpack.open((folder / "train-003.shardpack").read_bytes())
        assert pickle.loads(pickle.dumps(dataset))[2].read_all() == content(32)


class TestStreams:
    """Reading forwards only."""

    def test_a_pipe_is_read_to_its_end(self, folder: Path) -> None:
        script = """
        import sys, shardpack
        print([record.key for record in shardpack.stream(sys.stdin.buffer)])
        """
        path = folder / "train-001.shardpack"
        run = subprocess.run(
            [sys.executable, "-c", dedent(script)],
            input=path.read_bytes(),
            capture_output=True,
            check=True,
        )
        assert run.stdout.decode().strip() == str([f"key/{n}" for n in range(10, 20)])

    def test_a_reader_that_gives_little_at_a_time_is_asked_again(self, folder: Path) -> None:
        class Dripping(io.BytesIO):
            def read(self, size: int | None = -1) -> bytes:
                return super().read(min(7, size or 7))

        data = (folder / "train-001.shardpack").read_bytes()
        found = list(shardpack.stream(Dripping(data)))
        # All are valid after the end.
        assert [record.read_all() for record in found] == [content(n) for n in range(10, 20)]
        assert [r.offset for r in found] == list(shardpack.open(data).get_index())

    def test_a_path_is_streamed_too(self, folder: Path, tmp_path: Path) -> None:
        found = list(shardpack.stream(folder / "train-002.shardpack"))
        assert len(found) == 10
        with pytest.raises(ShardIOError):
            next(shardpack.stream(tmp_path / "missing"))
