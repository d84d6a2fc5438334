"""Windows of many episodes: what is in them, one by one, in batches, in threads and in other processes."""

from __future__ import annotations

import gc
import os
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_format.errors import (
    EntryNotFound,
    FileMissing,
    FormatError,
    InvalidArgument,
    ReferenceMismatch,
    ShardError,
    ShardIOError,
)
from shard_train import EpisodeDataset, WindowBatch
from shard_train.statistics import compute_stats
from tests.shard_format.support import check_python
from tests.shard_train.dataset_support import (
    arrays_of,
    assert_equal_windows,
    episode_of,
    window_of,
    write_folder,
)
from tests.wshard.support import noise_array, save
from tests.wshard.test_remote_episodes import (
    RangeHandler,
    address,  # noqa: F401 - a fixture
)
from wshard import Channel, ChunkedEpisodeWriter, Episode, add_lane

if TYPE_CHECKING:
    from pathlib import Path

LENGTHS = (20, 3, 31, 16, 40)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read only."""
    return write_folder(tmp_path_factory.mktemp("episodes") / "five", LENGTHS)


def wanted(ds: EpisodeDataset, number: int, lengths: tuple[int, ...] = LENGTHS) -> dict[str, Any]:
    episode, start = ds.episode_of(number)
    window = window_of(episode, lengths[episode], start, ds.window, ds.pad)
    return {**window, "episode": np.int64(episode), "start": np.int64(start)}


class TestWindows:
    """What is in a window."""

    @given(
        lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5),
        window=st.integers(1, 24),
        stride=st.integers(1, 9),
        pad=st.sampled_from(["none", "edge", "zero"]),
        compression=st.sampled_from([None, "zstd"]),
        seed=st.integers(0, 9),
    )
    def test_every_window_equals_the_slice_of_the_arrays(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        lengths: list[int],
        window: int,
        stride: int,
        pad: str,
        compression: str | None,
        seed: int,
    ) -> None:
        folder = write_folder(tmp_path_factory.mktemp("any"), lengths, compression)
        starts = [
            (episode, start)
            for episode, length in enumerate(lengths)
            for start in range(0, length, stride)
            if pad != "none" or start + window <= length
        ]
        if not starts:
            with pytest.raises(InvalidArgument, match="long enough for a window"):
                EpisodeDataset(folder, window, stride, pad=pad, index=False)
            return
        ds = EpisodeDataset(folder, window, stride, pad=pad, index=False)
        assert len(ds) == len(starts)
        assert list(zip(*map(np.ndarray.tolist, ds.locate(range(len(ds)))), strict=True)) == starts
        for number in np.random.default_rng(seed).permutation(len(ds))[:8].tolist():
            assert_equal_windows(ds[number], wanted(ds, number, tuple(lengths)))
        shutil.rmtree(folder)

    def test_episodes_come_in_the_order_in_which_people_count(self, tmp_path: Path) -> None:
        folder = write_folder(tmp_path / "eps", [5] * 12)
        ds = EpisodeDataset(folder, 5)
        assert [os.path.basename(path) for path in ds.paths] == [
            f"ep_{n}.wshard" for n in range(12)
        ]
        assert [int(window["reward"][0]) for window in ds] == list(range(12))  # type: ignore[attr-defined] # by numbers
        assert ds.lengths.tolist() == [5] * 12

    def test_negative_numbers_count_from_the_end(self, folder: Path) -> None:
        ds = EpisodeDataset(folder, 16)
        assert_equal_windows(ds[-1], wanted(ds, len(ds) - 1))
        assert ds.episode_of(-len(ds)) == ds.episode_of(0) == (0, 0)

    @pytest.mark.parametrize("number", [10**6, -(10**6)])
    def test_there_is_no_window_outside(self, folder: Path, number: int) -> None:
        ds = EpisodeDataset(folder, 16)
        with pytest.raises(IndexError, match=f"window {number} of {len(ds)}"):
            ds[number]

    def test_only_the_channels_that_are_asked_for_are_there(self, folder: Path) -> None:
        ds = EpisodeDataset(folder, 16, channels=["ctrl", "signal/cam", "reward"])
        own = {"reward", "terminated", "truncated", "episode", "start", "t"}
        assert ds[0].keys() == {"ctrl", "signal/cam"} | own
        forms = {"ctrl": (np.dtype("f8"), (2,)), "signal/cam": (np.dtype("u1"), (6, 4))}
        assert ds.channels == forms

    def test_names_that_mean_something_else_have_their_lane_in_front(self, tmp_path: Path) -> None:
        ep = Episode("ep", observations={"start": np.ones((4, 1)), "arm": np.zeros((4, 1))})
        ep.actions["arm"] = np.full((4, 1), 2.0)
        window = EpisodeDataset(save(ep, tmp_path / "a.wshard"), 4)[0]
        assert window["start"] == 0
        assert window["signal/start"].tolist() == [[1.0]] * 4
        assert window["action/arm"].tolist() == [[2.0]] * 4
        assert not window["reward"].any()
        assert not window["terminated"].any()

    def test_channels_with_a_clock_of_their_own_are_left_out(self, tmp_path: Path) -> None:
        ep = episode_of(0, 8)
        ep.observations["imu"] = Channel(data=np.zeros((40, 3)), timestamps_ns=np.arange(40))
        path = save(ep, tmp_path / "a.wshard")
        assert "imu" not in EpisodeDataset(path, 4)[0]
        with pytest.raises(InvalidArgument, match=r"a\.wshard: entry 'imu': windows cannot hold"):
            EpisodeDataset(path, 4, channels=["imu"])

    def test_lanes_that_were_added_later_are_channels(self, tmp_path: Path) -> None:
        folder = write_folder(tmp_path / "eps", [12, 14])
        for number, length in enumerate((12, 14)):
            predicted = arrays_of(number, length)["state"] + 5
            add_lane(folder / f"ep_{number}.wshard", {"omen/state/dreamer": predicted})
        ds = EpisodeDataset(folder, 8, channels=["state", "omen/state/dreamer"])
        assert len(ds.paths) == 2
        for window in ds.__getitems__(range(len(ds))):
            assert np.array_equal(window["omen/state/dreamer"], window["state"] + 5)

    def test_an_episode_in_chunks_is_one_episode(self, tmp_path: Path) -> None:
        folder = write_folder(tmp_path / "eps", [10])
        with ChunkedEpisodeWriter(folder, "long", chunk_size_t=7, compression="zstd") as writer:
            writer.write_episode(episode_of(1, 25))
        lone = episode_of(2, 11)
        save(lone, folder / "other_chunk_0003.wshard")
        for _ in range(2):  # the second time from the index
            ds = EpisodeDataset(folder, 10)
            names = [os.path.basename(path) for path in ds.paths]
            assert names == ["ep_0.wshard", "long_manifest.wshard", "other_chunk_0003.wshard"]
            assert ds.lengths.tolist() == [10, 25, 11]
            for number in range(1, 17):  # across the borders of chunks
                assert_equal_windows(ds[number], wanted(ds, number, (10, 25, 11)))

    def test_bits_of_bfloat16_stay_what_they_are(self, tmp_path: Path) -> None:
        bits = np.arange(0x3F80, 0x3F80 + 40, dtype=np.uint16).reshape(20, 2)
        ep = Episode("ep", observations={"x": Channel(dtype="bf16", data=bits)})
        for compression in (None, "zstd"):
            path = save(ep, tmp_path / "a.wshard", compression, steps_per_frame=4)
            found = EpisodeDataset(path, 7)[3]["x"]
            assert np.array_equal(found.view(np.uint16), bits[3:10])


class TestBatches:
    """Many windows with one call."""

    @pytest.mark.parametrize("pad", ["none", "edge", "zero"])
    @pytest.mark.parametrize("threads", [1, 2, 8])
    def test_a_batch_is_its_windows(self, folder: Path, pad: str, threads: int) -> None:
        ds = EpisodeDataset(folder, 16, pad=pad, threads=threads, max_open=2)
        numbers = np.random.default_rng(3).integers(0, len(ds), 40)
        arrays = ds.batch(numbers)
        windows = ds.__getitems__(numbers.tolist())
        assert len(windows) == 40
        for row, number in enumerate(numbers.tolist()):
            assert_equal_windows(windows[row], wanted(ds, number))
            assert_equal_windows({key: array[row] for key, array in arrays.items()}, windows[row])

    def test_large_windows_are_read_by_several_threads(self, tmp_path: Path) -> None:
        data = noise_array(60, 64, 64, 3, dtype="u1") // 8
        ep = Episode("ep", observations={"cam": data})
        ds = EpisodeDataset(
            save(ep, tmp_path / "a.wshard", "zstd:1", steps_per_frame=8), 32, threads=3
        )
        numbers = [28, 0, 7, 13, 13, 21, 1, 2]
        assert np.array_equal(
            ds.batch(numbers)["cam"], np.stack([data[n : n + 32] for n in numbers])
        )

    def test_samples_are_views_of_the_batch(self, folder: Path) -> None:
        windows = EpisodeDataset(folder, 16).__getitems__([4, 2])
        assert isinstance(windows, WindowBatch)
        assert np.shares_memory(windows[1]["cam"], windows.arrays["cam"])
        assert windows.arrays["cam"].flags.c_contiguous
        assert [len(sample["cam"]) for sample in windows] == [16, 16]
        assert [int(sample["start"]) for sample in windows[:]] == [4, 2]
        with pytest.raises(IndexError):
            windows[2]

    def test_memory_can_be_used_again(self, folder: Path) -> None:
        ds = EpisodeDataset(folder, 16, pad="zero")
        first = ds.batch([0, 1])
        again = ds.batch([len(ds) - 1, 30], out=first)
        assert again["cam"] is first["cam"]
        fresh = ds.batch([len(ds) - 1, 30])
        assert_equal_windows(again, fresh)
        with pytest.raises(InvalidArgument, match=r"out\['cam'\] cannot hold the windows"):
            ds.batch([0], out=first)

    def test_a_batch_may_be_empty(self, folder: Path) -> None:
        ds = EpisodeDataset(folder, 16)
        assert ds.batch([])["cam"].shape == (0, 16, 6, 4)
        assert list(ds.__getitems__([])) == []

    def test_a_transform_takes_the_place_of_the_window(self, folder: Path) -> None:
        def brighter(sample: dict[str, Any]) -> dict[str, Any]:
            return {"mean": sample["cam"].mean(), "start": sample["start"]}

        plain = EpisodeDataset(folder, 16)
        ds = EpisodeDataset(folder, 16, transform=brighter)
        assert ds[3] == brighter(plain[3])
        assert list(ds.__getitems__([3, 5])) == [brighter(plain[3]), brighter(plain[5])]
        batch = ds.batch([3, 5])
        assert batch["mean"].tolist() == [plain[3]["cam"].mean(), plain[5]["cam"].mean()]
        with pytest.raises(InvalidArgument, match="leave out= out"):
            ds.batch([3], out=batch)

    @pytest.mark.parametrize("numbers", [[0.5], [[1]], ["a"]])
    def test_numbers_must_be_integers_in_a_row(self, folder: Path, numbers: Any) -> None:  # noqa: ANN401 - wrong on purpose
        with pytest.raises(InvalidArgument, match=r"expected (window|sample) numbers"):
            EpisodeDataset(folder, 16).batch(numbers)


class TestWhichFiles:
    """Folders, patterns, lists."""

    def test_files_can_be_named_in_many_ways(self, folder: Path) -> None:
        paths = [str(folder / f"ep_{n}.wshard") for n in range(5)]
        ways: list[Any] = [
            folder,
            str(folder),
            f"{folder}/*.wshard",
            f"{folder.parent}/**/*.wshard",
            paths,
            [folder / "ep_0.wshard", f"{folder}/ep_[1-4].wshard"],
            (path for path in paths),
        ]
        for files in ways:
            assert EpisodeDataset(files, 16).paths == paths
        assert EpisodeDataset(paths[2], 16).paths == paths[2:3]
        assert EpisodeDataset(paths[::-1], 16).lengths.tolist() == list(LENGTHS[::-1])

    def test_folders_in_folders_are_searched(self, tmp_path: Path) -> None:
        write_folder(tmp_path / "all" / "b", [5, 6])
        write_folder(tmp_path / "all" / "a" / "deep.wshard", [7])
        write_folder(tmp_path / "all" / ".hidden", [8])
        (tmp_path / "all" / "._ep_0.wshard").write_bytes(b"what other systems leave behind")
        (tmp_path / "all" / "around").symlink_to(tmp_path / "all")
        (tmp_path / "all" / "c.wshard").symlink_to(tmp_path / "all" / "b" / "ep_0.wshard")
        assert EpisodeDataset(tmp_path / "all", 2).lengths.tolist() == [7, 5, 6, 5]

    def test_a_link_to_nothing_is_named(self, tmp_path: Path) -> None:
        folder = write_folder(tmp_path / "all", [5])
        (folder / "lost.wshard").symlink_to(tmp_path / "nowhere")
        for on_error in ("raise", "skip"):
            with pytest.raises(FileMissing, match=r"lost\.wshard: cannot open"):
                EpisodeDataset(folder, 2, on_error=on_error)

    def test_episodes_may_be_on_a_server(
        self,
        tmp_path: Path,
        address: str,  # noqa: F811 - the fixture
    ) -> None:
        write_folder(tmp_path, [20, 3, 31])
        urls = [f"{address}/ep_{number}.wshard" for number in (2, 0)]
        index = tmp_path / "of_urls.index"
        ds = EpisodeDataset(urls, 16, index=index, storage_options={"headers": {"X-Test": "1"}})
        assert ds.lengths.tolist() == [31, 20]
        batch = ds.batch([0, 15, 16])
        for row, (number, start) in enumerate([(2, 0), (2, 15), (0, 0)]):
            length = 31 if number else 20
            window = window_of(number, length, start, 16, "none")
            assert_equal_windows({key: batch[key][row] for key in window}, window)
        ds.close()
        RangeHandler.sent = 0
        known = EpisodeDataset(urls, 16, index=index, channels=["cam"])
        from_index = RangeHandler.sent
        EpisodeDataset(urls, 16, index=False, channels=["cam"])
        assert from_index < RangeHandler.sent - from_index
        assert known.paths == urls

    def test_relative_names_still_lead_there_from_another_folder(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.chdir(folder)
        sets = [EpisodeDataset(files, 16) for files in (".", "ep_0.wshard", ["ep_0.wshard"])]
        monkeypatch.chdir(tmp_path)
        for ds in sets:
            copied = pickle.loads(pickle.dumps(ds))
            assert_equal_windows(ds[0], wanted(ds, 0))
            assert_equal_windows(copied[0], wanted(ds, 0))

    @pytest.mark.parametrize("files", [[], "*.nothing", 7, b"a", ""])
    def test_nothing_is_an_error(self, files: Any, tmp_path: Path) -> None:  # noqa: ANN401 - wrong on purpose
        files = f"{tmp_path}/{files}" if files == "*.nothing" else files
        with pytest.raises((InvalidArgument, ShardIOError)):
            EpisodeDataset(files)
        with pytest.raises(InvalidArgument, match="no episodes found"):
            EpisodeDataset(tmp_path)

    def test_episodes_are_chosen_by_number(self, folder: Path) -> None:
        ds = EpisodeDataset(folder, 16, episodes=[4, 0])
        assert ds.lengths.tolist() == [40, 20]
        assert [os.path.basename(path) for path in ds.paths] == ["ep_4.wshard", "ep_0.wshard"]
        assert ds[0]["reward"][0] == 4.0
        for numbers in ([5], [-1], [0, 0], [0.5], "a"):
            with pytest.raises(InvalidArgument, match="episode"):
                EpisodeDataset(folder, 16, episodes=numbers)  # type: ignore[arg-type] # wrong on purpose

    @pytest.mark.parametrize(
        "options",
        [
            {"window": 0},
            {"stride": 0},
            {"max_open": 0},
            {"threads": 0},
            {"pad": "repeat"},
            {"on_error": "ignore"},
            {"channels": "cam"},
            {"window": 41},
        ],
    )
    def test_arguments_that_cannot_work_are_refused(
        self, folder: Path, options: dict[str, Any]
    ) -> None:
        with pytest.raises(InvalidArgument):
            EpisodeDataset(folder, **options)


class TestErrors:
    """Files that are not as the others."""

    @pytest.fixture
    def odd(self, tmp_path: Path) -> Path:
        """The second of three episodes lacks `cam`."""
        folder = write_folder(tmp_path / "odd", [10, 10, 10])
        ep = episode_of(1, 10)
        del ep.observations["cam"]
        save(ep, folder / "ep_1.wshard")
        return folder

    def test_a_missing_channel_names_file_and_channel(self, odd: Path) -> None:
        for _ in range(2):  # the second time from the index
            with pytest.raises(EntryNotFound, match=r"ep_1\.wshard: entry 'cam': an episode lacks"):
                EpisodeDataset(odd, 8)
        EpisodeDataset(odd, 8, channels=["state"]).batch([0, 3])
        with pytest.raises(EntryNotFound, match=r"ep_0\.wshard: no channel 'camera'"):
            EpisodeDataset(odd, 8, channels=["camera"])

    def test_another_shape_names_file_and_channel(self, odd: Path) -> None:
        ep = episode_of(1, 10)
        ep.observations["cam"] = np.zeros((10, 5, 4), np.uint8)
        save(ep, odd / "ep_1.wshard")
        with pytest.raises(InvalidArgument, match=r"ep_1\.wshard: entry 'cam'.*a different kind"):
            EpisodeDataset(odd, 8)

    def test_skipped_windows_are_replaced_counted_and_reported_once(
        self, odd: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        ds = EpisodeDataset(odd, 8, on_error="skip")
        assert len(ds) == 9
        for _ in range(2):
            batch = ds.batch(range(9))
            assert batch["episode"].tolist() == [0, 0, 0, 2, 2, 2, 2, 2, 2]
            assert batch["start"].tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2]
            assert batch["reward"][4, 0] == 2 + 1 / 8
        assert dict(ds.skipped) == {str(odd / "ep_1.wshard"): 6}
        assert ds.skipped.total == 6
        assert len(caplog.records) == 1
        assert "ep_1.wshard: a window was left out" in caplog.text

    def test_what_follows_the_last_episode_is_the_first(self, odd: Path) -> None:
        os.replace(odd / "ep_1.wshard", odd / "ep_2.wshard")
        ds = EpisodeDataset(odd, 8, on_error="skip")
        assert len(ds.paths) == 2
        assert ds.batch([4])["episode"].tolist() == [0]

    def test_damaged_steps_are_skipped_and_others_read(self, tmp_path: Path) -> None:
        folder = write_folder(tmp_path / "eps", [40, 40])
        path = folder / "ep_0.wshard"
        ep = episode_of(0, 40)
        ep.observations["cam"] = noise_array(40, 60, 40, dtype="u1") // 2
        other = episode_of(1, 40)
        other.observations["cam"] = noise_array(40, 60, 40, dtype="u1") // 2
        save(other, folder / "ep_1.wshard", "zstd:1", steps_per_frame=4)
        save(ep, path, "zstd:1", steps_per_frame=4)
        data = bytearray(path.read_bytes())
        middle = len(data) // 2
        data[middle : middle + 8] = bytes(255 - byte for byte in data[middle : middle + 8])
        path.write_bytes(data)
        with pytest.raises(FormatError, match=r"ep_0\.wshard: entry 'signal/cam'"):
            EpisodeDataset(folder, 40).batch([0])
        ds = EpisodeDataset(folder, 4, channels=["cam"], on_error="skip")
        episodes = ds.batch(range(37))["episode"]
        assert 0 < ds.skipped[str(path)] == int((episodes == 1).sum()) < 20

    def test_files_that_cannot_be_opened_are_left_out_as_a_whole(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        folder = write_folder(tmp_path / "eps", [10, 10, 10])
        (folder / "ep_1.wshard").write_bytes(b"not an episode")
        for _ in range(2):  # the second time from the index
            with pytest.raises(ShardError, match=r"ep_1\.wshard"):
                EpisodeDataset(folder, 8)
            ds = EpisodeDataset(folder, 8, on_error="skip")
            assert ds.lengths.tolist() == [10, 10]
            assert dict(ds.skipped) == {str(folder / "ep_1.wshard"): 0}
        assert "the file is left out" in caplog.text

    def test_when_no_episode_can_be_read_the_error_comes_through(self, odd: Path) -> None:
        ds = EpisodeDataset(odd, 8, on_error="skip")
        for number in range(3):
            (odd / f"ep_{number}.wshard").write_bytes(b"not an episode")
        with pytest.raises(FormatError):
            ds.batch([0])

    def test_an_episode_that_is_away_is_not_damaged(self, tmp_path: Path) -> None:
        """Others may have removed it, or the disk; the dataset would shrink without a word."""
        folder = write_folder(tmp_path / "eps", [10, 10])
        ds = EpisodeDataset(folder, 8, on_error="skip")
        (folder / "ep_1.wshard").unlink()
        for read in (lambda: ds.batch([0, 3]), lambda: compute_stats(ds)):
            with pytest.raises(FileMissing, match=r"ep_1\.wshard"):
                read()
        assert not ds.skipped
        with pytest.raises(FileMissing, match=r"ep_1\.wshard"):
            EpisodeDataset([folder / "ep_0.wshard", folder / "ep_1.wshard"], 8, on_error="skip")

    def test_an_episode_that_changed_since_is_not_read_as_the_old_one(self, tmp_path: Path) -> None:
        folder = write_folder(tmp_path / "eps", [10, 10])
        ds = EpisodeDataset(folder, 8)
        save(episode_of(1, 9), folder / "ep_1.wshard")
        with pytest.raises(ReferenceMismatch, match=r"ep_1.*expected 10 steps, found 9 steps"):
            ds[3]

    def test_a_channel_that_is_too_short_is_named(self, tmp_path: Path) -> None:
        ep = Episode("ep", length=10)
        ep.observations["a"] = np.zeros((10, 2))
        ep.observations["b"] = np.zeros((10, 2))
        path = save(ep, tmp_path / "a.wshard")
        ds = EpisodeDataset(path, 8)
        ds._store[0].channels["b"] = Channel("b", data=np.zeros((5, 2)))
        with pytest.raises(InvalidArgument, match=r"a\.wshard: entry 'b'.*shorter"):
            ds[0]


WORKERS = """
    import hashlib, multiprocessing, sys
    from shard_train import EpisodeDataset

    def digest(numbers):
        return hashlib.sha256(b"".join(a.tobytes() for a in ds.batch(numbers).values())).hexdigest()

    def start(given):
        global ds
        ds = given

    if __name__ == "__main__":
        ds = EpisodeDataset(sys.argv[2], 16, max_open=2)
        jobs = [[n, n + 9, n + 20] for n in range(20)]
        wanted = [digest(job) for job in jobs]
        with multiprocessing.get_context(sys.argv[1]).Pool(2, start, (ds,)) as pool:
            assert pool.map(digest, jobs) == wanted
        assert len(set(wanted)) == 20
        print("ok")
"""


class TestProcesses:
    """Threads, forks, pickles, open files."""

    @pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
    def test_workers_read_the_same(self, folder: Path, method: str, tmp_path: Path) -> None:
        script = tmp_path / "work.py"
        script.write_text("\n".join(line[4:] for line in WORKERS.splitlines()))
        run = (
            "import subprocess, sys; "
            f"sys.exit(subprocess.run([sys.executable, {str(script)!r}, *sys.argv[1:]]).returncode)"
        )
        assert check_python(run, method, folder).strip().endswith("ok")

    def test_eight_threads_share_a_dataset(self, folder: Path) -> None:
        ds = EpisodeDataset(folder, 16, max_open=1)

        def read(seed: int) -> None:
            for number in np.random.default_rng(seed).integers(0, len(ds), 20).tolist():
                assert_equal_windows(ds[number], wanted(ds, number))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(read, range(8)))

    def test_a_pickle_holds_everything_and_is_small(self, folder: Path) -> None:
        ds = EpisodeDataset(
            folder, 16, channels=["cam"], pad="edge", where=lambda ep: ep.length > 3
        )
        ds.batch(range(5))
        packed = pickle.dumps(ds)
        assert len(packed) < 2000
        again = pickle.loads(packed)
        assert repr(again) == repr(ds)
        assert again.paths == ds.paths == pickle.loads(pickle.dumps(ds.paths))
        assert_equal_windows(again.batch([1, -1]), ds.batch([1, -1]))

    def test_the_text_form_tells_datasets_apart(self, folder: Path) -> None:
        texts = {
            repr(EpisodeDataset(folder, *args, **options))
            for args, options in (
                ((16,), {}),
                ((15,), {}),
                ((16, 2), {}),
                ((16,), {"pad": "edge"}),
                ((16,), {"channels": ["cam"]}),
                ((16,), {"episodes": [0, 2]}),
            )
        }
        assert len(texts) == 6
        assert repr(EpisodeDataset(folder, 16)) in texts

    @pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="only Linux counts its files")
    def test_no_more_files_stay_open_than_allowed(self, tmp_path: Path) -> None:
        folder = tmp_path / "eps"
        folder.mkdir()
        for number in range(12):  # large enough not to be read into memory at once
            ep = Episode("ep", observations={"cam": noise_array(20, 70, 70, dtype="u1")})
            save(ep, folder / f"{number}.wshard")
        gc.collect()
        gc.disable()  # files must not wait for it
        try:
            before = len(os.listdir("/proc/self/fd"))
            ds = EpisodeDataset(folder, 8, max_open=3, threads=2)
            assert len(os.listdir("/proc/self/fd")) == before
            for seed in range(10):
                ds.batch(np.random.default_rng(seed).integers(0, len(ds), 12))
                # Views that are mapped hold a second descriptor.
                assert len(os.listdir("/proc/self/fd")) <= before + 2 * 3
            ds.close()
            assert len(os.listdir("/proc/self/fd")) == before
            ds[0]
        finally:
            gc.enable()
