"""Items of a dataset by time: entries around a step, clocks of their own, and what followed the last step."""

from __future__ import annotations

import pickle
import re
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_format.errors import BadValue, InvalidArgument
from shard_train import EpisodeDataset
from tests.shard_train.dataset_support import (
    arrays_of,
    assert_equal_windows,
    episode_of,
    write_folder,
)
from tests.wshard.support import hand_made, noise_array, save
from wshard import Channel, ChunkedEpisodeWriter, Episode, Timebase, load_wshard
from wshard.types import TextChannel

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Times = NDArray[np.int64]

MS = 1_000_000
OWN_KEYS = {"episode", "start", "t"}


def entry_at(times: Times, target: int, tolerance: int) -> tuple[int, bool, int]:
    """The entry for a time: its number, whether it is padding, and how far it is. Slow and obvious."""
    best = 0
    for number, time in enumerate(times.tolist()):
        if abs(time - target) < abs(int(times[best]) - target):
            best = number
    outside = target < times[0] - tolerance or target > times[-1] + tolerance
    return best, bool(outside), 0 if outside else abs(int(times[best]) - target)


def timed(
    array: NDArray[Any], times: Times, step_ns: int, deltas: list[float], tolerance: int
) -> tuple[NDArray[Any], list[bool], int]:
    """What an item must hold of a channel, which entries are padding, and the largest distance."""
    found = [entry_at(times, step_ns + round(delta * 1e9), tolerance) for delta in deltas]
    values = np.stack([array[number] for number, _, _ in found])
    return values, [is_pad for _, is_pad, _ in found], max(distance for _, _, distance in found)


def with_imu(episode: Episode, count: int = 60, first_ns: int = -3 * MS) -> Episode:
    """Adds a float and an integer channel with clocks of their own: one recorded, one regular."""
    times = first_ns + np.arange(count) * 5 * MS + np.arange(count) % 3 * MS
    data = np.stack([np.arange(count), -np.arange(count)], axis=1).astype("f4")
    episode.observations["imu"] = Channel(data=data, timestamps_ns=times)
    episode.observations["gps"] = Channel(
        data=np.arange(count // 4, dtype="i8"), sampling_rate_hz=50.0, start_ns=7 * MS
    )
    return episode


class TestDeltaTimestamps:
    """Steps with what channels hold at other times."""

    @given(
        lengths=st.lists(st.integers(1, 30), min_size=1, max_size=3),
        stride=st.integers(1, 7),
        rate=st.sampled_from([10.0, 30.0, 29.97, 1000.0]),
        epoch=st.sampled_from([0, -5_000_000_123, 1_700_000_000_000_000_000]),
        offsets=st.dictionaries(
            st.sampled_from(["cam", "state", "on", "ctrl", "reward", "terminated"]),
            st.lists(st.integers(-40, 40), min_size=1, max_size=9),
            min_size=1,
        ),
        compression=st.sampled_from([None, "zstd"]),
    )
    def test_entries_are_those_of_the_obvious_search(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        lengths: list[int],
        stride: int,
        rate: float,
        epoch: int,
        offsets: dict[str, list[int]],
        compression: str | None,
    ) -> None:
        folder = tmp_path_factory.mktemp("any")
        for number, length in enumerate(lengths):
            episode = episode_of(number, length)
            episode.timebase = Timebase(tick_hz=rate, epoch_ns=epoch)
            save(episode, folder / f"{number}.wshard", compression, steps_per_frame=4)
        deltas = {key: [offset / rate for offset in some] for key, some in offsets.items()}
        ds = EpisodeDataset(folder, stride=stride, delta_timestamps=deltas, index=False)
        steps = [(e, s) for e, length in enumerate(lengths) for s in range(0, length, stride)]
        assert len(ds) == len(steps)
        batch = ds.batch(range(len(ds)))
        for row, (number, step) in enumerate(steps):
            self.check(ds, batch, row, number, lengths[number], step, deltas)
        shutil.rmtree(folder)

    def check(
        self,
        ds: EpisodeDataset,
        batch: dict[str, Any],
        row: int,
        number: int,
        length: int,
        step: int,
        deltas: dict[str, list[float]],
    ) -> None:
        with load_wshard(ds.paths[number]) as episode:
            at = np.int64(step)
            wanted: dict[str, Any] = {"episode": np.int64(number), "start": at, "t": at}
            for key, array in arrays_of(number, length).items():
                if key in deltas:
                    times = episode.step_times_ns(len(array))
                    values, is_pad, _ = timed(array, times, int(times[step]), deltas[key], 100_000)
                    wanted[key], wanted[f"{key}_is_pad"] = values, np.array(is_pad)
                else:
                    wanted[key] = array[step]
        assert_equal_windows({key: array[row] for key, array in batch.items()}, wanted)

    @given(data=st.data(), length=st.integers(1, 25), extra=st.booleans())
    def test_recorded_times_are_searched_for_the_nearest_within_the_tolerance(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        data: st.DataObject,
        length: int,
        extra: bool,
    ) -> None:
        gaps = data.draw(st.lists(st.integers(0, 90), min_size=length, max_size=length))
        deltas = data.draw(st.lists(st.integers(-300, 300), min_size=1, max_size=6))
        tolerance = data.draw(st.integers(0, 60))
        times = np.cumsum(gaps) * MS
        values = noise_array(length + extra, 5, dtype="u1")
        clock = Timebase(tick_hz=30)
        episode = Episode("ep", "", length, clock, {"x": values}, timestamps_ns=times)
        folder = tmp_path_factory.mktemp("any")
        path = save(episode, folder / "a.wshard")
        seconds = [delta / 1000 for delta in deltas]
        ds = EpisodeDataset(
            path, delta_timestamps={"x": seconds}, tolerance_s=tolerance / 1000, index=False
        )
        own = load_wshard(path).step_times_ns(length + extra)
        for step in range(length):
            limit = tolerance * MS
            wanted, is_pad, distance = timed(values, own, int(times[step]), seconds, limit)
            if distance > limit:
                message = rf"a\.wshard: entry 'x'.*of step {step} and .*the nearest is .* s away"
                with pytest.raises(InvalidArgument, match=message):
                    ds[step]
            else:
                item = ds[step]
                assert item["x_is_pad"].tolist() == is_pad
                # Of steps at the same time any may be the nearest: the first is.
                assert np.array_equal(item["x"], wanted)
        shutil.rmtree(folder)

    def test_a_time_between_regular_steps_is_refused_at_once(self, tmp_path: Path) -> None:
        path = save(episode_of(0, 8), tmp_path / "a.wshard")
        message = r"a\.wshard: entry 'cam'.*between the steps.*multiples of 0\.0333333333 s"
        with pytest.raises(InvalidArgument, match=message):
            EpisodeDataset(path, delta_timestamps={"cam": [0.0, 0.04]})
        ds = EpisodeDataset(path, delta_timestamps={"cam": [0.0, 0.04]}, tolerance_s=0.02)
        assert ds[2]["cam"][:, 0, 0].tolist() == arrays_of(0, 8)["cam"][[2, 3], 0, 0].tolist()

    def test_a_large_tolerance_reaches_over_the_ends(self, tmp_path: Path) -> None:
        ep = Episode("ep", observations={"x": np.arange(4.0)}, timebase=Timebase(tick_hz=10.0))
        path = save(ep, tmp_path / "a.wshard")
        ds = EpisodeDataset(path, delta_timestamps={"x": [-0.06, 0.06, 0.07]}, tolerance_s=0.065)
        assert ds[0]["x_is_pad"].tolist() == [False, False, False]
        assert ds[0]["x"].tolist() == [0.0, 1.0, 1.0]
        assert ds[3]["x_is_pad"].tolist() == [False, False, True]
        assert ds[3]["x"].tolist() == [2.0, 3.0, 3.0]

    def test_of_steps_at_the_same_time_the_first_is_the_nearest(self, tmp_path: Path) -> None:
        times = np.array([0, 10, 10, 10, 90]) * MS
        ep = Episode("ep", observations={"x": np.arange(5.0)}, timestamps_ns=times)
        path = save(ep, tmp_path / "a.wshard")
        ds = EpisodeDataset(path, delta_timestamps={"x": [0.001, 0.0]}, tolerance_s=0.005)
        assert ds[3]["x"].tolist() == [1.0, 1.0]
        later = EpisodeDataset(path, delta_timestamps={"x": [0.004]}, tolerance_s=0.005)
        assert later[2]["x"].tolist() == [1.0]

    @pytest.mark.parametrize("compression", [None, "zstd:1"])
    @pytest.mark.parametrize(
        "offsets",
        [[0, 1, 2], [-3, -2, -1, 0], [0], [5, 0, -5], [0, 0, 1], [-60, 0, 60], [-1, 9, 9, 10, 60]],
    )
    def test_large_channels_are_read_in_parts(
        self, tmp_path: Path, compression: str | None, offsets: list[int]
    ) -> None:
        frames = noise_array(130, 40, 30, dtype="u1") // 4
        ep = Episode("ep", observations={"cam": frames}, timebase=Timebase(tick_hz=10.0))
        path = save(ep, tmp_path / "a.wshard", compression, steps_per_frame=8)
        ds = EpisodeDataset(path, delta_timestamps={"cam": [o / 10 for o in offsets]})
        batch = ds.batch(range(130))
        places = np.arange(130)[:, None] + offsets
        assert np.array_equal(batch["cam"], frames[places.clip(0, 129)])
        assert np.array_equal(batch["cam_is_pad"], (places < 0) | (places > 129))

    def test_only_what_is_near_is_decoded(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ep = Episode(
            "ep",
            observations={"cam": noise_array(400, 40, 30, dtype="u1") // 4},
            timebase=Timebase(tick_hz=30),
        )
        path = save(ep, tmp_path / "a.wshard", "zstd:1", steps_per_frame=4)
        read: list[tuple[int, int]] = []
        original = Channel.read_steps_into

        def watched(channel: Channel, start: int, out: NDArray[Any]) -> None:
            if channel.name == "cam":
                read.append((start, len(out)))
            original(channel, start, out)

        monkeypatch.setattr(Channel, "read_steps_into", watched)

        def ranges(offsets: list[int], step: int = 100) -> list[tuple[int, int]]:
            read.clear()
            seconds = [offset / 30 for offset in offsets]
            EpisodeDataset(path, delta_timestamps={"cam": seconds}, tolerance_s=1e-3)[step]
            return read

        assert ranges([-2, -1, 0]) == [(98, 3)]
        assert ranges([-2, -1, 0], 0) == [(0, 1)]
        assert ranges([-2, -1, 0, 1], 1) == [(0, 3)]
        assert ranges([-4, -2, 0]) == [(96, 5)]
        assert ranges([-90, -1, 0]) == [(10, 1), (99, 2)]

    def test_a_key_brings_its_channel_along(self, tmp_path: Path) -> None:
        path = save(with_imu(episode_of(0, 8)), tmp_path / "a.wshard")
        ds = EpisodeDataset(
            path, channels=["ctrl"], delta_timestamps={"state": [0], "imu": [0]}, align="nearest"
        )
        own = {"state_is_pad", "imu_is_pad", "reward", "terminated", "truncated", *OWN_KEYS}
        assert ds[0].keys() == {"ctrl", "state", "imu", *own}
        assert ds[0]["ctrl"].shape == (2,)
        assert ds[0]["state"].shape == (1, 3)

    def test_keys_are_the_names_that_items_use(self, tmp_path: Path) -> None:
        ep = Episode("ep", timebase=Timebase(tick_hz=30))
        ep.observations = {"start": np.ones((4, 1)), "reward": np.ones((4, 2))}
        ep.observations["x_is_pad"] = np.zeros(4)
        ep.observations["x"] = np.zeros(4)
        path = save(ep, tmp_path / "a.wshard")
        item = EpisodeDataset(
            path, delta_timestamps={"signal/start": [0], "reward": [0]}, channels=[]
        )[0]
        assert item["signal/start"].shape == (1, 1)
        assert item["reward"].tolist() == [0.0]  # the lane, which is not there
        with pytest.raises(InvalidArgument, match=r"'start'.*a different key.*signal/start"):
            EpisodeDataset(path, delta_timestamps={"start": [0]}, channels=[])
        with pytest.raises(InvalidArgument, match="the name of another one's mask"):
            EpisodeDataset(path, delta_timestamps={"x": [0]})

    def test_memory_can_be_used_again_and_transforms_work(self, tmp_path: Path) -> None:
        path = save(episode_of(0, 12), tmp_path / "a.wshard")
        options: dict[str, Any] = {"delta_timestamps": {"cam": [-1 / 30, 0.0]}}
        ds = EpisodeDataset(path, **options)
        first = ds.batch([0, 1])
        again = ds.batch([5, 11], out=first)
        assert again["cam"] is first["cam"]
        assert_equal_windows(again, ds.batch([5, 11]))
        changed = EpisodeDataset(path, **options, transform=lambda item: {"n": item["start"]})
        assert changed.batch([3, 4])["n"].tolist() == [3, 4]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"window": 3}, "window and delta_timestamps exclude"),
            ({"pad": "edge"}, "pad and delta_timestamps exclude"),
            ({"next_observations": True}, "next_observations and delta_timestamps exclude"),
            ({"delta_timestamps": {}}, "is empty"),
            ({"delta_timestamps": {"cam": []}}, "list of seconds"),
            ({"delta_timestamps": {"cam": 0.5}}, "list of seconds"),
            ({"delta_timestamps": {"cam": ["a"]}}, "list of seconds"),
            ({"delta_timestamps": {"cam": [float("nan")]}}, "list of seconds"),
            ({"delta_timestamps": {"cam": [1e300]}}, "list of seconds"),
            ({"tolerance_s": -1}, "tolerance_s"),
            ({"tolerance_s": float("nan")}, "tolerance_s"),
            ({"delta_timestamps": {"camera": [0]}}, "no channel 'camera'"),
        ],
    )
    def test_arguments_that_cannot_work_are_refused(
        self, tmp_path: Path, options: dict[str, Any], message: str
    ) -> None:
        path = save(episode_of(0, 8), tmp_path / "a.wshard")
        with pytest.raises((InvalidArgument, KeyError), match=message):
            EpisodeDataset(path, **{"delta_timestamps": {"cam": [0]}, **options})

    def test_an_episode_that_says_nothing_about_time_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "a.wshard"
        described = {
            "channels": [{"id": "x", "dtype": "f32", "shape": [], "signal_block": "signal/x"}]
        }
        entries: dict[str, Any] = {
            "meta/wshard": {"format": "W-SHARD", "version": "0.1"},
            "meta/episode": {"episode_id": "ep", "length_T": 4},
            "meta/channels": described,
            "signal/x": np.arange(4, dtype="<f4").tobytes(),
        }
        path.write_bytes(hand_made(entries))
        assert EpisodeDataset(path, 2)[1]["x"].tolist() == [1.0, 2.0]
        with pytest.raises(InvalidArgument, match=r"a\.wshard: .*has no times"):
            EpisodeDataset(path, delta_timestamps={"x": [0.0]})
        entries["meta/wshard"]["timebase"] = {"dt_ns": 100 * MS}
        path.write_bytes(hand_made(entries))
        assert EpisodeDataset(path, delta_timestamps={"x": [0.1]})[1]["x"].tolist() == [2.0]

    def test_times_that_run_backwards_or_out_of_range_are_refused(self, tmp_path: Path) -> None:
        for times, error, message in (
            ([0, 5, 3, 9], InvalidArgument, "run backwards at index 2"),
            ([0, 1, 2, (1 << 63) - 1], BadValue, "too far from 0"),
        ):
            ep = Episode("ep", observations={"x": np.zeros(4)}, timestamps_ns=times)
            path = save(ep, tmp_path / "a.wshard")
            with pytest.raises(error, match=rf"a\.wshard: entry 'x': .*{message}"):
                EpisodeDataset(path, delta_timestamps={"x": [0.0]})

    def test_episodes_in_chunks_have_times(self, tmp_path: Path) -> None:
        with ChunkedEpisodeWriter(tmp_path / "eps", "long", chunk_size_t=7) as writer:
            writer.write_episode(episode_of(1, 25))
        ds = EpisodeDataset(tmp_path / "eps", delta_timestamps={"state": [-2 / 30, 0, 1 / 30]})
        assert np.array_equal(ds[14]["state"], arrays_of(1, 25)["state"][[12, 14, 15]])


class TestClocksOfTheirOwn:
    """Channels with times of their own, brought to the steps."""

    @given(
        length=st.integers(1, 20),
        count=st.integers(4, 80),
        first_ms=st.integers(-100, 300),
        window=st.integers(1, 12),
        pad=st.sampled_from(["none", "edge", "zero"]),
        method=st.sampled_from(["nearest", "previous", "linear", "exact"]),
        tolerance_ms=st.sampled_from([None, 0, 2, 40]),
        more=st.booleans(),
    )
    def test_windows_are_parts_of_the_aligned_episode(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        length: int,
        count: int,
        first_ms: int,
        window: int,
        pad: str,
        method: Any,  # noqa: ANN401 - one of the methods
        tolerance_ms: int | None,
        more: bool,
    ) -> None:
        folder = tmp_path_factory.mktemp("any")
        episode = with_imu(episode_of(0, length), count, first_ms * MS)
        del episode.observations["on"]  # so that what followed the last step is there
        path = save(episode, folder / "a.wshard", "zstd", steps_per_frame=4)
        tolerance = None if tolerance_ms is None or method == "exact" else tolerance_ms * MS
        if pad == "none" and window > length:
            window = length
        ds = EpisodeDataset(
            path,
            window,
            pad=pad,
            align=method,
            tolerance_s=None if tolerance is None else tolerance / 1e9,
            next_observations=more,
            index=False,
        )
        loaded = load_wshard(path)
        aligned = loaded.align(loaded.step_times_ns(length + more), method, tolerance_ns=tolerance)
        for number in range(len(ds)):
            item, start = ds[number], ds.episode_of(number)[1]
            stop = min(start + window, length)
            missing = start + window - stop
            for key in ("imu", "gps"):
                values = np.asarray(aligned[key].data)[start : stop + more]
                widths = [(0, missing)] + [(0, 0)] * (values.ndim - 1)
                padded = np.pad(values, widths, mode="edge" if pad == "edge" else "constant")
                assert item[key].dtype == padded.dtype
                assert np.array_equal(item[key], padded, equal_nan=key == "imu")
                absent = ~aligned[key].valid[start : stop + more]
                assert item[f"{key}_is_pad"].tolist() == [*absent.tolist(), *[True] * missing]
            assert item["cam"].shape[0] == window + more
            assert item["ctrl"].shape[0] == window
        shutil.rmtree(folder)

    def test_they_are_left_out_unless_they_are_aligned(self, tmp_path: Path) -> None:
        ep = with_imu(episode_of(0, 8))
        ep.observations["said"] = TextChannel(data=["a"] * 8)
        path = save(ep, tmp_path / "a.wshard")
        plain = EpisodeDataset(path, 4)
        assert not {"imu", "gps"} & plain.channels.keys()
        aligned = EpisodeDataset(path, 4, align="nearest")
        assert aligned.channels.keys() - plain.channels.keys() == {"imu", "gps"}
        assert aligned[0].keys() - plain[0].keys() == {"imu", "gps", "imu_is_pad", "gps_is_pad"}
        with pytest.raises(InvalidArgument, match=r"clock of its own.*align='nearest'"):
            EpisodeDataset(path, 4, channels=["imu"])
        assert aligned[0]["said"] == ["a"] * 4

    def test_only_the_range_that_covers_the_window_is_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        frames = noise_array(900, 20, 20, dtype="u1") // 4
        ep = episode_of(0, 300)
        ep.observations["lidar"] = Channel(data=frames, sampling_rate_hz=90.0, start_ns=0)
        path = save(ep, tmp_path / "a.wshard", "zstd:1", steps_per_frame=4)
        ds = EpisodeDataset(path, 10, channels=["lidar"], align="nearest")
        read: list[tuple[int, int]] = []
        original = Channel.read_steps_into

        def watched(channel: Channel, start: int, out: NDArray[Any]) -> None:
            if channel.name == "lidar":
                read.append((start, len(out)))
            original(channel, start, out)

        monkeypatch.setattr(Channel, "read_steps_into", watched)
        assert np.array_equal(ds[50]["lidar"], frames[150:180:3])
        assert read == [(150, 28)]

    def test_an_episode_where_it_follows_the_steps_is_read_as_well(self, tmp_path: Path) -> None:
        first, second = with_imu(episode_of(0, 8)), episode_of(1, 8)
        second.observations["imu"] = np.arange(16, dtype="f4").reshape(8, 2)
        save(first, tmp_path / "a.wshard")
        save(second, tmp_path / "b.wshard")
        ds = EpisodeDataset(tmp_path, 4, channels=["imu"], align="nearest", index=False)
        assert np.array_equal(ds[-1]["imu"], second.observations["imu"].data[4:])
        assert not ds[-1]["imu_is_pad"].any()
        turned = [tmp_path / "b.wshard", tmp_path / "a.wshard"]
        with pytest.raises(InvalidArgument, match=r"a\.wshard: entry 'imu'.*a clock of its own"):
            EpisodeDataset(turned, 4, channels=["imu"], align="nearest")

    @given(
        deltas=st.lists(st.integers(-400, 400), min_size=1, max_size=6),
        method=st.sampled_from(["nearest", "previous", "linear"]),
        tolerance_ms=st.sampled_from([None, 1, 30]),
        first_ms=st.integers(-100, 200),
    )
    def test_deltas_are_looked_up_on_their_own_clock(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        deltas: list[int],
        method: Any,  # noqa: ANN401 - one of the methods
        tolerance_ms: int | None,
        first_ms: int,
    ) -> None:
        folder = tmp_path_factory.mktemp("any")
        path = save(with_imu(episode_of(0, 9), 60, first_ms * MS), folder / "a.wshard")
        tolerance = None if tolerance_ms is None else tolerance_ms * MS
        seconds = [delta / 1000 for delta in deltas]
        ds = EpisodeDataset(
            path,
            delta_timestamps={"imu": seconds},
            align=method,
            tolerance_s=None if tolerance is None else tolerance / 1e9,
            index=False,
        )
        loaded = load_wshard(path)
        steps, own = loaded.times_ns(), loaded.times_ns("imu")
        low, high = min(steps[0], own[0]), max(steps[-1], own[-1])
        singles = loaded.align(method=method, tolerance_ns=tolerance, channels=["gps"])["gps"]
        for step in range(9):
            targets = steps[step] + np.array(deltas) * MS
            wanted = loaded.align(
                targets.clip(low, high), method, tolerance_ns=tolerance, channels=["imu"]
            )["imu"]
            outside = (targets < low) | (targets > high)
            item = ds[step]
            assert np.array_equal(item["imu"], np.asarray(wanted.data), equal_nan=True)
            assert np.array_equal(item["imu_is_pad"], outside | ~wanted.valid)
            assert item["gps"] == np.asarray(singles.data)[step]
            assert item["gps_is_pad"] == (not singles.valid[step])
        shutil.rmtree(folder)

    def test_without_align_the_tolerance_of_all_channels_holds(self, tmp_path: Path) -> None:
        path = save(with_imu(episode_of(0, 9)), tmp_path / "a.wshard")
        ds = EpisodeDataset(path, delta_timestamps={"imu": [0.0]}, tolerance_s=0.003)
        own, steps = load_wshard(path).times_ns("imu"), load_wshard(path).times_ns()
        nearest = [int(np.abs(own - time).argmin()) for time in steps]
        found = [item["imu"][0, 0] for item in ds.__getitems__(range(9))]
        assert found == nearest
        strict = EpisodeDataset(path, delta_timestamps={"imu": [0.0]})
        with pytest.raises(InvalidArgument, match=r"of step 1 and 0 s.*align='nearest'"):
            strict[1]
        assert "imu" not in EpisodeDataset(path, delta_timestamps={"cam": [0.0]})[0]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"align": "cubic"}, "unknown align"),
            ({"tolerance_s": 5}, "pass align"),
            ({"align": "exact", "tolerance_s": 5}, "has no tolerance"),
            ({"align": "nearest", "tolerance_s": -5}, "tolerance_s must be"),
            ({"align": "nearest", "tolerance_s": float("nan")}, "tolerance_s must be"),
        ],
    )
    def test_arguments_that_cannot_work_are_refused(
        self, tmp_path: Path, options: dict[str, Any], message: str
    ) -> None:
        path = save(episode_of(0, 8), tmp_path / "a.wshard")
        with pytest.raises(InvalidArgument, match=message):
            EpisodeDataset(path, 4, **options)

    def test_a_damaged_clock_names_file_and_channel(self, tmp_path: Path) -> None:
        ep = episode_of(0, 8)
        times = np.arange(20) * MS
        times[7] = 0
        ep.observations["imu"] = Channel(data=np.zeros(20), timestamps_ns=times)
        path = save(ep, tmp_path / "a.wshard")
        ds = EpisodeDataset(path, 4, align="nearest")
        with pytest.raises(InvalidArgument, match=r"a\.wshard: entry 'signal/imu': .*backwards"):
            ds[0]

    @pytest.mark.parametrize(
        "options", [{"delta_timestamps": {"imu": [0.0]}}, {"window": 4, "align": "linear"}]
    )
    def test_a_clock_in_microseconds_is_refused_unless_a_tolerance_is_given(
        self, tmp_path: Path, options: dict[str, Any]
    ) -> None:
        ep = episode_of(0, 300)
        times = np.arange(1000) * 10_000  # microseconds of 10 s
        ep.observations["imu"] = Channel(data=np.zeros(1000), timestamps_ns=times)
        path = save(ep, tmp_path / "a.wshard")
        message = (
            r"a\.wshard: entry 'signal/imu': .*microseconds.*wshard doctor.*timestamps_ns \* 1000"
        )
        with pytest.raises(InvalidArgument, match=message):
            _ = EpisodeDataset(path, **options)[0]
        allowed = {**options, "align": "nearest", "tolerance_s": 0.1}
        assert not EpisodeDataset(path, **allowed)[0]["imu_is_pad"].any()


class TestNextObservations:
    """Observations with one entry more than actions."""

    @given(
        lengths=st.lists(st.integers(1, 12), min_size=1, max_size=4),
        window=st.integers(1, 9),
        stride=st.integers(1, 4),
        pad=st.sampled_from(["none", "edge", "zero"]),
        shorter=st.booleans(),
    )
    def test_windows_have_what_followed_their_last_step(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        lengths: list[int],
        window: int,
        stride: int,
        pad: str,
        shorter: bool,
    ) -> None:
        folder = tmp_path_factory.mktemp("any")
        for number, length in enumerate(lengths):
            episode = episode_of(number, length)
            if not shorter:
                del episode.observations["on"]  # it has no entry after the last step
            save(episode, folder / f"{number}.wshard", "zstd", steps_per_frame=4)
        usable = [length - shorter for length in lengths]
        starts = [
            (number, start)
            for number, steps in enumerate(usable)
            for start in range(0, steps, stride)
            if pad != "none" or start + window <= steps
        ]
        options: dict[str, Any] = {"pad": pad, "next_observations": True, "index": False}
        if not starts:
            with pytest.raises(InvalidArgument, match=r"and the observation after them"):
                EpisodeDataset(folder, window, stride, **options)
            return
        ds = EpisodeDataset(folder, window, stride, **options)
        assert len(ds) == len(starts)
        assert ds.lengths.tolist() == lengths
        copied = pickle.loads(pickle.dumps(ds))
        for row, (number, start) in enumerate(starts):
            stop = min(start + window, usable[number])
            missing = start + window - stop
            item = copied[row]
            for key, array in arrays_of(number, lengths[number]).items():
                if key == "on" and not shorter:
                    continue
                extra = key in ("cam", "state", "on")
                part = array[start : stop + extra]
                widths = [(0, missing)] + [(0, 0)] * (part.ndim - 1)
                padded = np.pad(part, widths, mode="edge" if pad == "edge" else "constant")
                assert np.array_equal(item[key], padded), key
            if pad != "none":
                assert item["is_pad"].tolist() == [False] * (stop - start) + [True] * missing
        shutil.rmtree(folder)

    def test_it_works_from_the_index_too(self, tmp_path: Path) -> None:
        folder = write_folder(tmp_path / "eps", [6, 9])
        for index in (True, True, tmp_path / "other.index", tmp_path / "other.index"):
            ds = EpisodeDataset(folder, 5, next_observations=True, index=index)
            assert len(ds) == 1 + 4  # `on` has no entry after the last step
            assert ds[0]["cam"].shape == (6, 6, 4)


@pytest.mark.parametrize(
    "options",
    [
        {"window": 20, "align": "linear", "pad": "edge"},
        {"delta_timestamps": {"cam": [-0.1, 0.0, 0.1], "imu": [0.0]}, "align": "nearest"},
    ],
)
def test_a_batch_that_threads_read_is_its_items(tmp_path: Path, options: dict[str, Any]) -> None:
    for number in range(4):
        ep = with_imu(episode_of(number, 40))
        ep.observations["cam"] = noise_array(40, 90, 90, dtype="u1", seed=number) // 3
        save(ep, tmp_path / f"{number}.wshard", "zstd:1", steps_per_frame=4)
    threaded = EpisodeDataset(tmp_path, threads=4, max_open=2, index=False, **options)
    numbers = np.random.default_rng(0).integers(0, len(threaded), 64)
    batch = threaded.batch(numbers)
    assert batch["cam"].nbytes > 1 << 20  # enough for several threads
    alone = EpisodeDataset(tmp_path, threads=1, index=False, **options)
    for row, number in enumerate(numbers.tolist()):
        for key, array in alone[number].items():
            assert np.array_equal(batch[key][row], array, equal_nan=key == "imu"), key


class TestIdentity:
    """What tells datasets apart."""

    OPTIONS: tuple[dict[str, Any], ...] = (
        {"window": 1},
        {"window": 1, "next_observations": True},
        {"window": 1, "align": "nearest"},
        {"window": 1, "align": "linear"},
        {"window": 1, "align": "nearest", "tolerance_s": 5e-9},
        {"delta_timestamps": {"cam": [0.0]}},
        {"delta_timestamps": {"cam": [0.0], "ctrl": [0.0]}},
        {"delta_timestamps": {"cam": [0.0, 1 / 30]}},
        {"delta_timestamps": {"cam": [0.0]}, "tolerance_s": 1e-3},
        {"delta_timestamps": {"cam": [0.0]}, "align": "nearest"},
        {"delta_timestamps": {"cam": [0.0]}, "stride": 2},
    )

    def test_text_and_fingerprint_tell_options_apart_and_survive_a_pickle(
        self, tmp_path: Path
    ) -> None:
        path = save(with_imu(episode_of(0, 8)), tmp_path / "a.wshard")
        sets = [EpisodeDataset(path, **options) for options in self.OPTIONS]
        assert len({ds.fingerprint for ds in sets}) == len({repr(ds) for ds in sets}) == len(sets)
        for ds, options in zip(sets, self.OPTIONS, strict=True):
            copied = pickle.loads(pickle.dumps(ds))
            assert repr(copied) == repr(ds) == repr(EpisodeDataset(path, **options))
            assert f"windows={len(ds)}" in repr(ds)
            assert ds.fingerprint in repr(ds)
            assert not re.search("0x[0-9a-f]{6}", repr(ds))
            for key, array in ds.batch([0, 1]).items():
                assert np.array_equal(copied.batch([0, 1])[key], array, equal_nan=key == "imu")

    def test_seconds_may_come_in_any_form(self, tmp_path: Path) -> None:
        path = save(episode_of(0, 8), tmp_path / "a.wshard")
        forms: list[Any] = [[0, 1 / 30], (0.0, 1 / 30), np.array([0, 1 / 30]), iter([0, 1 / 30])]
        texts = {repr(EpisodeDataset(path, delta_timestamps={"cam": form})) for form in forms}
        assert len(texts) == 1
