"""Recording step by step: what a writer takes, refuses, and leaves behind."""

from __future__ import annotations

import errno
import gc
import logging
import os
import sys
import threading
from typing import IO, TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest

from shard_format import ShardReader
from shard_format.errors import Closed, InvalidArgument, ShardIOError
from tests.shard_format.support import check_python, listing
from tests.wshard.recording_support import (
    CHANNELS,
    check_file,
    check_steps,
    record,
    recorder,
)
from wshard import (
    ChannelDef,
    DType,
    Timebase,
    WShardStreamWriter,
    _recorder,
    add_lane,
    load_wshard,
    open_partial,
    recover,
)
from wshard._journal_episode import Journal
from wshard.streaming import StreamOptions
from wshard.types import Interval

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from shard_format import Codec
    from shard_format.filters import Filters
    from shard_format.writer import StoredRun

ONE = [{"id": "x", "dtype": "f32", "shape": [2]}]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ep.wshard"


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    for writer in list(_recorder._alive):
        writer.stop()
        writer.journal.close()


class Gate:
    """A disk that writes when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.reached = threading.Event()
        append = _recorder.Recorder._write_batch

        def guarded(recorder: _recorder.Recorder, batch: Any) -> None:  # noqa: ANN401 - the batch
            if any(request.runs for request in batch):
                self.reached.set()
                self.open.wait()
            append(recorder, batch)

        monkeypatch.setattr(_recorder.Recorder, "_write_batch", guarded)


class TestFinishing:
    """What `end_episode` makes."""

    def test_a_finished_recording_is_an_episode_and_nothing_else_is_left(self, path: Path) -> None:
        with recorder(path) as writer:
            record(writer, 0, 23)
            writer.end_episode({"task": "reach"})
        assert listing(path.parent) == ["ep.wshard"]
        check_file(path, 23)
        with load_wshard(path) as episode:
            assert (episode.id, episode.env_id) == ("ep", "Test-v0")
            assert episode.metadata == {"task": "reach"}
            assert list(episode.observations) == ["rgb", "state"]
            assert list(episode.actions) == ["ctrl"]

    def test_leaving_the_block_ends_the_episode(self, path: Path) -> None:
        with recorder(path) as writer:
            record(writer, 0, 3)
        check_file(path, 3)

    def test_a_compressed_channel_of_many_runs_is_seekable_without_decoding(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writer = recorder(path)
        record(writer, 0, 200)
        writer.flush()

        def refuse(*_: object) -> None:
            raise AssertionError("a run was decoded")

        monkeypatch.setattr("wshard._journal.decode", refuse)
        writer.end_episode()
        check_file(path, 200)
        with ShardReader(path) as reader:
            table = reader.seek_table("signal/rgb")
            assert table is not None
            assert len(table.content_starts) == 41

    def test_zero_steps_make_an_episode_without_steps(self, path: Path) -> None:
        recorder(path).end_episode()
        with load_wshard(path) as episode:
            assert episode.length == 0
            assert {name: c.data.shape for name, c in episode.observations.items()} == {
                "rgb": (0, 8, 8),
                "state": (0, 3),
            }
            assert episode.rewards is None

    def test_a_channel_that_hardly_shrinks_is_stored_raw_in_little_memory(self, path: Path) -> None:
        noise = np.random.default_rng(1).integers(0, 256, (40, 4096), np.uint8)
        channels = [{"id": "x", "dtype": "u8", "shape": [4096], "compression": "zstd"}]
        with recorder(path, channels=channels) as writer:
            for row in noise:
                writer.write_timestep({"x": row})
        with ShardReader(path) as reader:
            reader.verify()
            assert reader.info("signal/x").disk_size == noise.nbytes
        with load_wshard(path) as episode:
            assert np.array_equal(episode.observations["x"].data, noise)

    def test_more_than_readers_decompress_is_stored_raw(
        self, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        from shard_format.registry import Limits

        monkeypatch.setattr(
            "wshard._journal_episode.DEFAULT_LIMITS", Limits(max_decompressed_bytes=1000)
        )
        with recorder(path) as writer:
            record(writer, 0, 100)
        assert "storing signal/rgb raw" in caplog.text
        with ShardReader(path) as reader:
            assert reader.info("signal/rgb").codec.label == "none"
        check_file(path, 100)

    def test_the_observation_after_the_last_step_can_be_added(self, path: Path) -> None:
        writer = recorder(path, channels=ONE)
        for number in range(7):
            writer.write_timestep({"x": [number, 0]})
        with pytest.raises(InvalidArgument, match="do not have this observation"):
            writer.end_episode(final_observations={"y": [1, 2]})
        writer.end_episode(final_observations={"x": [7, 1]})
        with load_wshard(path) as episode:
            assert episode.length == 7
            assert episode.observations["x"].data[:, 0].tolist() == list(range(8))

    def test_what_could_not_be_recorded_can_be_completed(self, path: Path) -> None:
        writer = recorder(path, channels=ONE)
        writer.write_timestep({"x": [1, 2]})
        writer.end_episode(complete=lambda ep: ep.observations.update({"said": ["hello"]}))
        with load_wshard(path) as episode:
            assert episode.observations["said"].data == ["hello"]

    def test_an_error_while_completing_keeps_the_recording(self, path: Path) -> None:
        writer = recorder(path)
        record(writer, 0, 8)

        def fail(_: object) -> None:
            raise RuntimeError("the caller's own")

        with pytest.raises(RuntimeError, match="own"):
            writer.end_episode(complete=fail)
        assert listing(path.parent) == ["ep.wshard.partial"]
        assert recover(f"{path}.partial").finished
        check_file(path, 8)


class TestSteps:
    """What a step may be, and what happens to one that is not."""

    def test_values_are_converted_as_saving_an_episode_does(self, path: Path) -> None:
        channels = [
            {"id": "f16", "dtype": "f16"},
            {"id": "bf16", "dtype": "bf16", "shape": [2]},
            {"id": "flag", "dtype": "bool", "shape": [2]},
            {"id": "i16", "dtype": "i16"},
            {"id": "u8", "dtype": "u8", "shape": [2]},
            {"id": "f64", "dtype": "f64"},
        ]
        with recorder(path, channels=channels) as writer:
            writer.write_timestep(
                {
                    "f16": 1.5,
                    "bf16": np.array([1, -2], np.float32),
                    "flag": [True, False],
                    "i16": np.array(-300, ">i8"),
                    "u8": (1, 255),
                    "f64": np.array(2.5, ">f8"),
                },
                reward=np.float32(0.1),
                done=np.bool_(True),
            )
        with load_wshard(path) as episode:
            found = {
                name: channel.data[0].tolist() for name, channel in episode.observations.items()
            }
            assert found == {
                "f16": 1.5,
                "bf16": [1, -2],
                "flag": [True, False],
                "i16": -300,
                "u8": [1, 255],
                "f64": 2.5,
            }
            assert episode.rewards is not None
            assert episode.rewards.data.tolist() == [np.float32(0.1)]

    @pytest.mark.parametrize(
        ("values", "options", "named"),
        [
            ({"x": [1, 2, 3]}, {}, "signal/x"),
            ({"x": 1.0}, {}, "signal/x"),
            ({"x": ["a", "b"]}, {}, "signal/x"),
            ({"x": np.array([1j, 2])}, {}, "signal/x"),
            ({"x": np.array([None, 2])}, {}, "signal/x"),
            ({"x": [[1], [2, 3]]}, {}, "signal/x"),
            ({"x": np.array([2**24 + 1, 0])}, {}, "signal/x"),
            ({}, {}, "signal/x"),
            ({"y": [1, 2]}, {}, "signal/x"),
            ({"x": [1, 2], "y": 1}, {}, "'y'"),
            ({"x": [1, 2]}, {"reward": "much"}, "'reward'"),
            ({"x": [1, 2]}, {"reward": [1.0, 2.0]}, "'reward'"),
            ({"x": [1, 2]}, {"done": np.zeros(2)}, "'done'"),
            ({"x": [1, 2]}, {"terminated": False}, "'terminated'"),
            ({"x": [1, 2]}, {"timestamp_ns": 0.5}, "'time/timestamps_ns'"),
            ({"x": [1, 2]}, {"timestamp_ns": 1 << 63}, "'time/timestamps_ns'"),
            ({"x": [1, 2]}, {"timestamp_ns": -1}, "'time/timestamps_ns'"),
            ({"x": [1, 2]}, {"timestamp_ns": None}, "'time/timestamps_ns'"),
        ],
    )
    def test_a_step_that_does_not_fit_raises_names_the_channel_and_is_left_out(
        self, path: Path, values: dict[str, Any], options: dict[str, Any], named: str
    ) -> None:
        good: dict[str, Any] = {"reward": 1.0, "done": False, "timestamp_ns": 5}
        with recorder(path, channels=ONE) as writer:
            for number in range(4):
                writer.write_timestep({"x": [number, 0]}, **good)
                with pytest.raises(InvalidArgument) as caught:
                    writer.write_timestep(values, **{**good, **options})
                assert named in str(caught.value)
            assert writer.steps_written == 4
        with load_wshard(path) as episode:
            assert episode.observations["x"].data[:, 0].tolist() == [0, 1, 2, 3]

    def test_a_first_step_that_does_not_fit_decides_nothing(self, path: Path) -> None:
        with recorder(path, channels=ONE) as writer:
            with pytest.raises(InvalidArgument, match="signal/x"):
                writer.write_timestep({"x": [1]}, reward=1.0, done=True)
            writer.write_timestep({"x": [1, 2]}, timestamp_ns=7)
        with load_wshard(path) as episode:
            assert episode.rewards is None
            assert episode.timestamps_ns is not None
            assert episode.timestamps_ns.tolist() == [7]
            assert episode.timebase.type == "timestamps_ns"

    def test_integers_that_do_not_fit_are_refused_and_not_wrapped(self, path: Path) -> None:
        channels = [{"id": "x", "dtype": "i32"}, {"id": "y", "dtype": "u8"}]
        with recorder(path, channels=channels) as writer:
            for bad in ({"x": 1 << 31, "y": 1}, {"x": 1, "y": np.uint16(256)}, {"x": 1, "y": -1}):
                with pytest.raises(InvalidArgument, match="do not fit"):
                    writer.write_timestep(bad)

    def test_rewards_keep_every_bit(self, path: Path) -> None:
        rewards = [0.1, float("nan"), -0.0, 1e300, float("-inf")]
        with recorder(path, channels=ONE) as writer:
            for reward in rewards:
                writer.write_timestep({"x": [0, 0]}, reward=reward)
        with load_wshard(path) as episode:
            assert episode.rewards is not None
            assert episode.rewards.data.tobytes() == np.array(rewards).tobytes()

    @pytest.mark.parametrize(
        ("given", "blocks", "dones"),
        [
            ({"done": True}, {"done"}, True),
            ({"terminated": True, "truncated": False}, {"done", "terminated", "truncated"}, True),
            ({"truncated": True, "done": True}, {"done", "terminated", "truncated"}, True),
            ({"terminated": False}, {"done", "terminated"}, False),
            ({}, set(), None),
        ],
    )
    def test_ends_are_written_as_the_specification_says(
        self, path: Path, given: dict[str, bool], blocks: set[str], dones: bool | None
    ) -> None:
        with recorder(path, channels=ONE) as writer:
            writer.write_timestep({"x": [0, 0]}, **dict.fromkeys(given, False))
            writer.write_timestep({"x": [0, 0]}, **given)
        with ShardReader(path) as reader:
            assert {"done", "terminated", "truncated"} & set(reader.names()) == blocks
        with load_wshard(path) as episode:
            assert (None if dones is None else [False, dones]) == (
                None if episode.dones is None else episode.dones.tolist()
            )

    def test_done_must_be_the_union_of_both_ends(self, path: Path) -> None:
        with recorder(path, channels=ONE) as writer:
            with pytest.raises(InvalidArgument, match="union"):
                writer.write_timestep({"x": [0, 0]}, done=True, terminated=False, truncated=False)
            writer.write_timestep({"x": [0, 0]}, done=True, terminated=False, truncated=True)

    def test_an_end_that_is_left_out_later_is_false(self, path: Path) -> None:
        with recorder(path, channels=ONE) as writer:
            writer.write_timestep({"x": [0, 0]}, done=False)
            writer.write_timestep({"x": [0, 0]})
            writer.write_timestep({"x": [0, 0]}, done=True)
        assert load_wshard(path).terminations.data.tolist() == [False, False, True]  # type: ignore[union-attr] # there

    def test_the_older_call_works_and_tells_the_lanes_apart(self, path: Path) -> None:
        channels = [{"id": "x", "dtype": "f32"}, {"id": "ctrl", "dtype": "f32"}]
        with recorder(path, channels=channels) as writer:
            for t in range(3):
                writer.write_timestep(t, {"x": t}, {"ctrl": -t}, 0.5, t == 2)
            with pytest.raises(InvalidArgument, match="too many"):
                writer.write_timestep(3, {"x": 1}, {"ctrl": 1}, 0.5, False, 1)
            with pytest.raises(InvalidArgument, match="by name"):
                writer.write_timestep({"x": 1, "ctrl": 1}, 0.5)
        with load_wshard(path) as episode:
            assert list(episode.observations) == ["x"]
            assert episode.actions["ctrl"].data.tolist() == [0, -1, -2]
            assert episode.dones is not None
            assert episode.dones.tolist() == [False, False, True]

    def test_two_lanes_may_use_the_same_name(self, path: Path) -> None:
        channels = [{"id": "x"}, {"id": "x", "lane": "action"}]
        with recorder(path, channels=channels) as writer:
            writer.write_timestep({"signal/x": 1, "action/x": 2})
            writer.write_timestep(1, {"x": 3}, {"x": 4})
        with load_wshard(path) as episode:
            assert episode.observations["x"].data.tolist() == [1, 3]
            assert episode.actions["x"].data.tolist() == [2, 4]

    def test_what_was_given_may_be_changed_afterwards(self, path: Path) -> None:
        value = np.zeros(2, np.float32)
        with recorder(path, channels=ONE) as writer:
            for number in range(9):
                value[:] = number
                writer.write_timestep({"x": value})
        assert load_wshard(path).observations["x"].data[:, 1].tolist() == list(range(9))

    def test_chunks_of_a_declared_horizon_keep_it_in_the_journal_and_the_file(
        self, path: Path
    ) -> None:
        plan = {"id": "plan", "shape": [3, 2], "lane": "action", "horizon": 3}
        writer = recorder(path, channels=[plan], flush_steps=1)
        for t in range(4):
            writer.write_timestep({"plan": np.full((3, 2), t)})
        writer.end_episode()
        with load_wshard(path) as episode:
            channel = episode.actions["plan"]
            assert (channel.horizon, channel.shape) == (3, (4, 3, 2))

        left = path.with_name("left.wshard")
        writer = recorder(left, channels=[plan])
        writer.write_timestep({"plan": np.ones((3, 2))})
        writer.close()
        assert open_partial(f"{left}.partial").actions["plan"].horizon == 3

    def test_arrays_in_any_memory_order_are_taken(self, path: Path) -> None:
        channels = [{"id": "x", "dtype": "f32", "shape": [3, 4]}]
        value = np.arange(12, dtype=np.float32).reshape(4, 3).T
        with recorder(path, channels=channels) as writer:
            writer.write_timestep({"x": value})
            writer.write_timestep({"x": value[::-1]})
        assert np.array_equal(load_wshard(path).observations["x"].data, [value, value[::-1]])


class TestOwnClocks:
    """Channels whose entries come at times of their own."""

    CHANNELS = (
        {"id": "x", "dtype": "f32"},
        {"id": "cam", "dtype": "u8", "shape": [4], "own_clock": True, "compression": "zstd"},
        {"id": "imu", "dtype": "f64", "own_clock": True, "rate": 200.0, "unit": "m/s²"},
    )

    def test_each_keeps_its_own_length_and_times(self, path: Path) -> None:
        with recorder(path, channels=self.CHANNELS) as writer:
            writer.write("imu", 0.0, 5)  # before the first step
            for t in range(6):
                writer.write_timestep({"x": t}, reward=t, timestamp_ns=t * 10)
                for n in range(3):
                    writer.write("imu", t + n / 4, 10 + t * 10 + n)
                if t % 2:
                    writer.write("cam", [t] * 4, t * 10 + 1)
        with load_wshard(path) as episode:
            assert episode.length == 6
            assert episode.rewards is not None
            assert episode.observations["cam"].data[:, 0].tolist() == [1, 3, 5]
            assert episode.observations["cam"].timestamps_ns.tolist() == [11, 31, 51]  # type: ignore[union-attr] # there
            assert episode.observations["imu"].length == 19
            assert episode.observations["imu"].unit == "m/s²"
            assert episode.observations["imu"].sampling_rate_hz == 200.0

    def test_a_recording_may_have_nothing_else(self, path: Path) -> None:
        with recorder(path, channels=self.CHANNELS[1:]) as writer:
            for n in range(12):
                writer.write("imu", n, n)
        with load_wshard(path) as episode:
            assert episode.length == 0
            assert episode.observations["imu"].data.tolist() == list(range(12))
            assert episode.observations["cam"].length == 0

    def test_time_must_not_run_backwards_in_any_of_them(self, path: Path) -> None:
        with recorder(path, channels=self.CHANNELS) as writer:
            writer.write("imu", 0, 100)
            writer.write("imu", 0, 100)
            writer.write("cam", [0] * 4, 5)  # has its own
            with pytest.raises(InvalidArgument, match=r"backwards.*at least 100, found 99"):
                writer.write("imu", 0, 99)
            writer.write_timestep({"x": 0}, timestamp_ns=50)
            with pytest.raises(InvalidArgument, match="backwards"):
                writer.write_timestep({"x": 0}, timestamp_ns=49)
        assert load_wshard(path).observations["imu"].length == 2

    def test_only_they_are_written_one_by_one(self, path: Path) -> None:
        with recorder(path, channels=self.CHANNELS) as writer:
            for name in ("x", "nothing"):
                with pytest.raises(InvalidArgument, match=r"not have a clock of its own.*cam, imu"):
                    writer.write(name, 0, 0)
            with pytest.raises(InvalidArgument, match="nanoseconds"):
                writer.write("imu", 0, 0.5)  # type: ignore[arg-type] # on purpose
            with pytest.raises(InvalidArgument, match="signal/cam"):
                writer.write("cam", [0] * 3, 0)

    def test_several_threads_may_record(self, path: Path) -> None:
        channels = [{"id": f"c{n}", "dtype": "i64", "own_clock": True} for n in range(4)]
        with recorder(path, channels=channels, buffer_bytes=1) as writer:

            def fill(name: str) -> None:
                for n in range(700):
                    writer.write(name, n, n)

            threads = [threading.Thread(target=fill, args=(f"c{n}",)) for n in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        with load_wshard(path) as episode:
            for channel in episode.observations.values():
                assert channel.data.tolist() == list(range(700))


class TestNotes:
    """Labels and metadata."""

    def test_annotations_become_labels(self, path: Path) -> None:
        with recorder(path) as writer:
            writer.annotate("start")
            record(writer, 0, 4)
            writer.annotate("grasp", 1, 3, label="skill", source="human", confidence=0.5)
            writer.annotate("end")
        with load_wshard(path) as episode:
            assert episode.labels["notes"] == [Interval(0, 1, "start"), Interval(4, 5, "end")]
            assert episode.labels["skill"] == [Interval(1, 3, "grasp", "human", 0.5)]

    @pytest.mark.parametrize(
        "bad",
        [{"confidence": float("nan")}, {"label": "a//b"}, {"start": 3, "end": 1}, {"source": 5}],
    )
    def test_a_note_that_cannot_be_stored_raises_at_once_and_harms_nothing(
        self, path: Path, bad: dict[str, Any]
    ) -> None:
        with recorder(path) as writer:
            record(writer, 0, 3)
            with pytest.raises(InvalidArgument):
                writer.annotate("x", **bad)
            record(writer, 3, 6)
        check_file(path, 6)

    def test_metadata_that_is_no_json_raises_and_the_recording_goes_on(self, path: Path) -> None:
        writer = WShardStreamWriter(path, "ep", CHANNELS, options=StreamOptions(fsync="never"))
        with pytest.raises(InvalidArgument):
            writer.begin_episode(metadata={"x": {1, 2}})
        writer.begin_episode(metadata={"a": 1, "b": 1})
        record(writer, 0, 3)
        with pytest.raises(InvalidArgument):
            writer.end_episode({"x": float("nan")})
        record(writer, 3, 5)
        writer.end_episode({"b": 2})
        check_file(path, 5)
        assert load_wshard(path).metadata == {"a": 1, "b": 2}

    def test_the_timebase_is_kept(self, path: Path) -> None:
        writer = WShardStreamWriter(path, "ep", CHANNELS, options=StreamOptions(fsync="never"))
        writer.begin_episode(timebase=Timebase(tick_hz=50.0, epoch_ns=7))
        writer.end_episode()
        assert load_wshard(path).timebase == Timebase(tick_hz=50.0, epoch_ns=7)


class TestArguments:
    """What cannot work is said before anything is recorded."""

    @pytest.mark.parametrize(
        ("channel", "says"),
        [
            ({"id": "x", "dtype": "text"}, "layout='text'"),
            ({"id": "x", "layout": "sparse"}, "'dense', 'ragged' or 'text'"),
            ({"id": "x", "layout": None}, "unknown layout"),
            ({"id": "x", "layout": "text", "dtype": "u16"}, "no dtype and no shape"),
            ({"id": "x", "layout": "text", "shape": [3]}, "no dtype and no shape"),
            ({"id": "x", "layout": "ragged", "shape": [0]}, "empty or too large"),
            ({"id": "x", "extra": {"layout": "text"}}, "channels have already"),
            ({"id": "x", "dtype": "c64"}, "unknown dtype"),
            ({"id": "x", "shape": [-1]}, "list of integers"),
            ({"id": "x", "shape": [2.0]}, "list of integers"),
            ({"id": "x", "shape": [0]}, "empty or too large"),
            ({"id": "x", "shape": [1 << 40]}, "empty or too large"),
            ({"id": "x", "lane": "omen"}, "unknown lane"),
            ({"id": "x", "compression": "lz4"}, "cannot be joined"),
            ({"id": "x", "compression": "zip"}, "unknown compression"),
            ({"id": "x", "rate": -1.0}, "sampling_rate_hz"),
            ({"id": "x", "shape": [4], "horizon": 3}, "horizon"),
            ({"id": "x", "extra": {"time_block": "y"}}, "channels have already"),
            ({"id": "x", "extra": {"y": object()}}, "signal/x"),
            ({"id": "../x"}, "a part '.' or '..'"),
            ({"id": "x", "color": "red"}, "found color"),
            ({"dtype": "f32"}, "no id"),
            ("x", "a ChannelDef or a dictionary"),
        ],
    )
    def test_a_channel_that_cannot_be_recorded_is_refused(
        self,
        path: Path,
        channel: Any,  # noqa: ANN401 - anything
        says: str,
    ) -> None:
        with pytest.raises(InvalidArgument) as caught:
            WShardStreamWriter(path, "ep", [channel])
        assert says in str(caught.value)
        assert listing(path.parent) == []

    @pytest.mark.parametrize(
        "options",
        [
            {"fsync": "sometimes"},
            {"overflow": "explode"},
            {"on_partial": "ignore"},
            {"flush_steps": 0},
            {"flush_seconds": 0},
            {"max_steps_per_file": 0},
            {"max_bytes_per_file": 9, "may_roll": False},
            {"compression": "lz4"},
        ],
    )
    def test_options_that_mean_nothing_are_refused(
        self, path: Path, options: dict[str, Any]
    ) -> None:
        with pytest.raises(InvalidArgument):
            recorder(path, channels=ONE, **options)
        assert not list(path.parent.iterdir())

    def test_names_must_be_unique_and_episodes_have_an_id(self, path: Path) -> None:
        with pytest.raises(InvalidArgument, match="twice"):
            WShardStreamWriter(path, "ep", [*ONE, *ONE])
        with pytest.raises(InvalidArgument, match="an id"):
            WShardStreamWriter(path, "", ONE)

    def test_definitions_may_be_objects(self, path: Path) -> None:
        channel = ChannelDef("x", DType.FLOAT16, (2,), modality="depth", extra={"lens": 3})
        with recorder(path, channels=[channel]) as writer:
            writer.write_timestep({"x": [1, 2]})
        with load_wshard(path) as episode:
            found = episode.observations["x"]
            assert (found.dtype_name, found.modality, found.extra) == ("f16", "depth", {"lens": 3})

    def test_a_missing_folder_is_created(self, tmp_path: Path) -> None:
        path = tmp_path / "new" / "folder" / "ep.wshard"
        with recorder(path) as writer:
            record(writer, 0, 3)
        check_file(path, 3)

    def test_a_file_in_the_place_of_a_folder_is_a_clear_error(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(ShardIOError, match="cannot record"):
            recorder(tmp_path / "file" / "ep.wshard")


class TestOverwriting:
    """A finished episode is replaced only on demand, and only by a complete one."""

    @pytest.fixture(autouse=True)
    def old(self, path: Path) -> bytes:
        with recorder(path) as writer:
            record(writer, 0, 4)
        return path.read_bytes()

    def test_a_finished_episode_is_not_replaced_unasked(self, path: Path, old: bytes) -> None:
        with pytest.raises(InvalidArgument, match=r"finished episode exists.*overwrite=True"):
            recorder(path)
        assert path.read_bytes() == old
        assert listing(path.parent) == ["ep.wshard"]

    def test_nor_is_any_other_file_or_folder(self, tmp_path: Path) -> None:
        other = tmp_path / "notes.txt"
        other.write_text("mine")
        with pytest.raises(InvalidArgument, match="exists"):
            recorder(other)
        with pytest.raises(InvalidArgument, match="folder"):
            recorder(tmp_path, overwrite=True)
        assert other.read_text() == "mine"

    def test_the_old_one_stays_until_the_new_one_is_complete(self, path: Path, old: bytes) -> None:
        writer = recorder(path, overwrite=True)
        record(writer, 0, 9)
        writer.flush()
        assert path.read_bytes() == old
        writer.end_episode()
        check_file(path, 9)
        assert listing(path.parent) == ["ep.wshard"]

    def test_giving_up_leaves_the_old_one(self, path: Path, old: bytes) -> None:
        writer = recorder(path, overwrite=True)
        record(writer, 0, 9)
        writer.abort()
        assert path.read_bytes() == old
        assert listing(path.parent) == ["ep.wshard"]

    def test_a_failure_while_finishing_leaves_the_old_one_and_the_journal(
        self, path: Path, old: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writer = recorder(path, overwrite=True)
        record(writer, 0, 9)

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", full)
            with pytest.raises(ShardIOError, match="wshard recover"):
                writer.end_episode()
        assert path.read_bytes() == old
        out = path.with_name("again.wshard")
        assert recover(path, out, fsync=False).steps == 9
        check_file(out, 9)

    def test_a_file_that_appears_meanwhile_is_not_replaced(self, tmp_path: Path) -> None:
        path = tmp_path / "late.wshard"
        writer = recorder(path)
        record(writer, 0, 9)
        path.write_text("mine")
        with pytest.raises(InvalidArgument, match=r"appeared.*wshard recover"):
            writer.end_episode()
        assert path.read_text() == "mine"
        out = tmp_path / "again.wshard"
        assert recover(f"{path}.partial", out, fsync=False).steps == 9

    def test_chunks_replace_the_old_file_when_the_manifest_names_them_all(
        self, path: Path, old: bytes
    ) -> None:
        writer = recorder(path, overwrite=True, max_steps_per_file=4)
        record(writer, 0, 9)
        writer.flush()
        assert path.read_bytes() == old
        writer.end_episode()
        assert not path.exists()
        with load_wshard(writer.episode_path) as episode:
            check_steps(episode, 9)

    def test_an_episode_with_sidecars_is_not_replaced(self, path: Path, old: bytes) -> None:
        add_lane(path, {"omen/state/m": np.zeros((4, 3), np.float32)})
        with pytest.raises(InvalidArgument, match=r"sidecars.*remove_lane"):
            recorder(path, overwrite=True)
        assert path.read_bytes() == old

    def test_an_episode_in_chunks_is_not_replaced(self, tmp_path: Path) -> None:
        path = tmp_path / "long.wshard"
        with recorder(path, max_steps_per_file=2) as writer:
            record(writer, 0, 5)
        before = listing(tmp_path)
        with pytest.raises(InvalidArgument, match=r"chunked.*delete its files"):
            recorder(path, overwrite=True)
        assert listing(tmp_path) == before

    def test_chunks_that_a_manifest_cannot_name_are_refused_at_once(self, tmp_path: Path) -> None:
        path = tmp_path / "run:1.wshard"
        with pytest.raises(InvalidArgument, match=r"manifest.*run:1"):
            recorder(path, max_steps_per_file=2)
        with recorder(path) as writer:
            record(writer, 0, 5)
        assert [file.name for file in tmp_path.glob("run*")] == ["run:1.wshard"]


class TestOrder:
    """Calls at the wrong time."""

    def test_before_the_beginning_there_is_nothing_to_record_to(self, path: Path) -> None:
        writer = WShardStreamWriter(path, "ep", ONE)
        for call in (
            lambda: writer.write_timestep({"x": [1, 2]}),
            lambda: writer.write("x", 1, 1),
            lambda: writer.annotate("x"),
            writer.flush,
            writer.end_episode,
        ):
            with pytest.raises(InvalidArgument, match="begin_episode"):
                call()
        assert (writer.steps_written, writer.dropped) == (0, {})
        writer.close()
        assert listing(path.parent) == []

    def test_an_episode_begins_once(self, path: Path) -> None:
        writer = recorder(path)
        with pytest.raises(InvalidArgument, match="begun already"):
            writer.begin_episode()
        record(writer, 0, 2)
        writer.end_episode()
        check_file(path, 2)

    @pytest.mark.parametrize("end", ["end_episode", "abort", "close"])
    def test_after_the_end_everything_is_refused(self, path: Path, end: str) -> None:
        writer = recorder(path)
        record(writer, 0, 2)
        getattr(writer, end)()
        calls: list[Callable[[], object]] = [
            lambda: record(writer, 2, 3),
            lambda: writer.annotate("x"),
            writer.flush,
            writer.begin_episode,
            writer.end_episode,
        ]
        for call in calls:
            with pytest.raises(Closed):
                call()
        writer.close()
        writer.abort()
        left = {"end_episode": ["ep.wshard"], "abort": [], "close": ["ep.wshard.partial"]}
        assert listing(path.parent) == left[end]


class TestPartials:
    """What stays when a recording does not come to its end."""

    def test_an_error_inside_the_block_keeps_the_recording_and_says_so(
        self, path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fall_over() -> None:
            with recorder(path) as writer:
                record(writer, 0, 13)
                raise RuntimeError("the robot fell over")

        with pytest.raises(RuntimeError) as caught:
            fall_over()
        assert listing(path.parent) == ["ep.wshard.partial"]
        assert f"{path}.partial" in caplog.text
        assert "wshard recover" in caplog.text
        if sys.version_info >= (3, 11):
            assert "wshard recover" in "".join(caught.value.__notes__)
        result = recover(f"{path}.partial")
        assert (result.steps, result.lost_data, result.problem) == (13, False, None)
        assert not result.finished
        check_file(path, 13)
        assert listing(path.parent) == ["ep.wshard", "ep.wshard.partial"]

    def test_only_abort_deletes_it(self, path: Path) -> None:
        with recorder(path) as writer:
            record(writer, 0, 13)
            writer.abort()
        assert listing(path.parent) == []

    def test_a_writer_refuses_what_another_left_and_names_recover(self, path: Path) -> None:
        first = recorder(path)
        record(first, 0, 7)
        first.close()
        before = path.with_name("ep.wshard.partial").read_bytes()
        with pytest.raises(InvalidArgument, match=r"wshard recover .*ep.wshard.partial"):
            recorder(path)
        assert path.with_name("ep.wshard.partial").read_bytes() == before

    def test_or_brings_it_back_first(self, path: Path, caplog: pytest.LogCaptureFixture) -> None:
        for length in (7, 9):
            writer = recorder(path, on_partial="recover")
            record(writer, 0, length)
            writer.close()
        with recorder(path, on_partial="recover") as writer:
            record(writer, 0, 2)
        assert "recovered 7 steps of 'ep'" in caplog.text
        assert listing(path.parent) == [
            "ep.recovered-1.wshard",
            "ep.recovered-2.wshard",
            "ep.wshard",
        ]
        check_file(path, 2)
        check_file(path.with_name("ep.recovered-1.wshard"), 7)
        check_file(path.with_name("ep.recovered-2.wshard"), 9)

    def test_or_discards_it(self, path: Path) -> None:
        first = recorder(path)
        record(first, 0, 50)
        first.close()
        with recorder(path, on_partial="discard") as writer:
            record(writer, 0, 2)
        assert listing(path.parent) == ["ep.wshard"]
        check_file(path, 2)

    def test_what_cannot_be_brought_back_is_not_overwritten(self, path: Path) -> None:
        partial = path.with_name("ep.wshard.partial")
        partial.write_bytes(b"no journal at all")
        recorder(path, on_partial="recover").abort()
        kept = path.with_name("ep.recovered-1.wshard.partial")
        assert kept.read_bytes() == b"no journal at all"

    def test_an_empty_one_does_not_count(self, path: Path) -> None:
        path.with_name("ep.wshard.partial").touch()
        with recorder(path) as writer:
            record(writer, 0, 2)
        check_file(path, 2)

    def test_recovering_does_not_replace_an_episode_unasked(self, path: Path) -> None:
        writer = recorder(path)
        record(writer, 0, 2)
        writer.close()
        path.write_bytes(b"precious")
        with pytest.raises(InvalidArgument, match="pass out= to save the recording elsewhere"):
            recover(f"{path}.partial")
        with pytest.raises(InvalidArgument, match="cannot save over"):
            recover(f"{path}.partial", f"{path}.partial")
        assert path.read_bytes() == b"precious"
        recover(f"{path}.partial", path.with_name("other.wshard"))
        check_file(path.with_name("other.wshard"), 2)

    def test_a_program_that_forgets_to_finish_leaves_all_of_its_steps(self, path: Path) -> None:
        script = """
            import sys
            from pathlib import Path
            from tests.wshard.recording_support import record, recorder
            writer = recorder(Path(sys.argv[1]), flush_steps=1000)
            record(writer, 0, 12)
        """
        check_python(script, path)
        assert recover(f"{path}.partial").steps == 12


class TestLiveReading:
    """`open_partial` while the recording goes on."""

    def test_a_reader_follows_what_is_flushed(self, path: Path) -> None:
        writer = recorder(path)
        with open_partial(path) as episode:
            assert episode.length == 0
            assert not episode.refresh()
            record(writer, 0, 4)  # in the buffer
            assert not episode.refresh()
            writer.flush()
            assert episode.refresh()
            check_steps(episode, 4)
            kept = episode.observations["state"]
            record(writer, 4, 14)
            writer.annotate("now")
            writer.flush()
            assert episode.refresh()
            check_steps(episode, 14)
            assert episode.labels["notes"][0].start == 14
            assert kept.length == 4
            assert kept.data.shape == (4, 3)
            assert not episode.is_finished
            writer.end_episode()
            assert episode.refresh()
            assert episode.is_finished
            check_steps(episode, 14)

    def test_a_closed_reader_says_so(self, path: Path) -> None:
        writer = recorder(path)
        record(writer, 0, 10)
        writer.flush()
        with open_partial(path) as episode:
            pass
        with pytest.raises(Closed):
            episode.observations["rgb"][2:3]
        with pytest.raises(Closed):
            episode.refresh()
        writer.abort()

    def test_steps_are_read_from_their_runs_only(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writer = recorder(path)
        record(writer, 0, 50)
        writer.flush()
        with open_partial(path) as episode:
            (journal,) = episode._opened
            assert isinstance(journal, Journal)
            content, read = journal.reader.content, []

            def counting(
                codec: Codec, run: StoredRun, filters: Filters | None
            ) -> bytes | memoryview:
                read.append(run)
                return content(codec, run, filters)

            monkeypatch.setattr(journal.reader, "content", counting)
            assert episode.observations["rgb"][23:27].shape == (4, 8, 8)
            assert len(read) == 2
        writer.abort()

    def test_a_read_that_began_before_the_closing_reads_its_own_journal(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writer = recorder(path)
        record(writer, 0, 5)
        writer.flush()
        episode = open_partial(path)
        other = path.with_name("other")
        other.write_bytes(bytes(100_000))
        pread = os.pread
        others: list[IO[bytes]] = []

        def as_another_thread_may(*given: int) -> bytes:
            episode.close()
            others.extend(other.open("rb") for _ in range(3))
            return pread(*given)

        monkeypatch.setattr(os, "pread", as_another_thread_may)
        found = episode.observations["state"].data
        monkeypatch.undo()
        assert found.tolist() == [[n, -n, np.float32(n / 3)] for n in range(5)]
        with pytest.raises(Closed):
            _ = episode.observations["rgb"].data
        for file in others:
            file.close()
        writer.abort()

    def test_a_disk_that_fails_does_not_end_a_recording_early(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writer = recorder(path)
        record(writer, 0, 50)
        writer.close()
        partial = path.with_name("ep.wshard.partial")
        pread = os.pread

        def fail(descriptor: int, length: int, offset: int) -> bytes:
            if offset > 2000:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return pread(descriptor, length, offset)

        monkeypatch.setattr(os, "pread", fail)
        for read in (open_partial, recover):
            with pytest.raises(ShardIOError, match=r"ep\.wshard\.partial.*Input/output") as caught:
                read(partial)
            assert caught.value.errno == errno.EIO
        assert listing(path.parent) == ["ep.wshard.partial"]

    def test_a_recording_that_is_not_there_is_a_clear_error(self, path: Path) -> None:
        with pytest.raises(ShardIOError, match="cannot open"):
            open_partial(path)
        path.with_name("ep.wshard.partial").touch()
        with pytest.raises(InvalidArgument, match=r"nothing was recorded yet.*empty file"):
            open_partial(path)

    def test_no_descriptor_is_left_open(self, path: Path) -> None:
        def count() -> int:
            gc.collect()
            return len(os.listdir("/proc/self/fd"))

        before = count()
        writer = recorder(path)
        record(writer, 0, 20)
        writer.flush()
        open_partial(path)
        episode = open_partial(path)
        writer.end_episode()
        del episode
        assert count() == before


class Clock:
    """Time that stands still until it is turned."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class TestFlushing:
    """When steps get to the disk."""

    @staticmethod
    def on_disk(path: Path) -> int:
        with open_partial(path) as episode:
            return episode.length

    def clocked(
        self,
        path: Path,
        monkeypatch: pytest.MonkeyPatch,
        **options: Any,  # noqa: ANN401 - the writer's
    ) -> tuple[WShardStreamWriter, Clock, _recorder.Recorder]:
        clock = Clock()
        monkeypatch.setattr(WShardStreamWriter, "_clock", clock)
        writer = recorder(path, **{"flush_seconds": 0.5, "flush_steps": 64, **options})
        assert writer._recorder is not None
        return writer, clock, writer._recorder

    def test_after_so_many_steps(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        writer, _, thread = self.clocked(path, monkeypatch)
        record(writer, 0, 63)
        thread.settle()
        assert self.on_disk(path) == 0
        record(writer, 63, 70)
        thread.settle()
        assert self.on_disk(path) == 64
        writer.abort()

    def test_or_after_so_much_time_though_no_step_follows(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writer, clock, thread = self.clocked(path, monkeypatch)
        record(writer, 0, 3)
        clock.now += 0.49
        thread.settle()
        assert self.on_disk(path) == 0
        clock.now += 0.02
        thread.settle()
        assert self.on_disk(path) == 3
        writer.abort()

    def test_a_real_clock_wakes_the_thread_by_itself(self, path: Path) -> None:
        writer = recorder(path, flush_seconds=0.01, flush_steps=1000)
        with open_partial(path) as episode:
            record(writer, 0, 3)
            while not (episode.refresh() and episode.length == 3):
                pass
        writer.abort()

    def test_large_steps_do_not_wait_for_many(self, path: Path) -> None:
        channels = [{"id": "x", "dtype": "u8", "shape": [6 << 20]}]
        writer = recorder(path, channels=channels, flush_steps=64)
        assert writer._recorder is not None
        writer.write_timestep({"x": np.zeros(6 << 20, np.uint8)})
        writer.write_timestep({"x": np.zeros(6 << 20, np.uint8)})
        writer._recorder.settle()
        assert self.on_disk(path) == 2
        writer.abort()

    @pytest.mark.parametrize(
        ("policy", "syncs"), [("never", [0, 0, 0]), ("always", [3, 4, 4]), ("interval", [1, 1, 2])]
    )
    def test_the_journal_is_synced_as_asked(
        self, path: Path, policy: str, syncs: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """After two flushes within a second, a third one, and a second without any."""
        count = [0]
        sync = os.fdatasync

        def counting(descriptor: int) -> None:
            count[0] += 1
            sync(descriptor)

        monkeypatch.setattr(os, "fdatasync", counting)
        writer, clock, thread = self.clocked(path, monkeypatch, fsync=policy)
        found = []
        record(writer, 0, 2)
        writer.flush()
        record(writer, 2, 4)
        writer.flush()
        found.append(count[0])
        record(writer, 4, 6)
        writer.flush()
        found.append(count[0])
        clock.now += 1.1
        thread.settle()
        found.append(count[0])
        assert found == syncs
        writer.abort()

    def test_what_was_flushed_is_synced_though_no_step_follows(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(_recorder, "SYNC_SECONDS", 0.01)
        writer = recorder(path, fsync="interval")
        synced = threading.Event()
        monkeypatch.setattr(os, "fdatasync", lambda _: synced.set())
        record(writer, 0, 2)
        writer.flush()
        assert synced.wait(60)
        writer.abort()

    @pytest.mark.parametrize(("policy", "synced"), [("never", False), ("interval", True)])
    def test_the_finished_file_and_the_folder_are_synced_unless_told_not_to(
        self, path: Path, policy: str, synced: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[int] = []
        sync = os.fsync

        def remember(descriptor: int) -> None:
            seen.append(descriptor)
            sync(descriptor)

        monkeypatch.setattr(os, "fsync", remember)
        with recorder(path, fsync=policy) as writer:
            record(writer, 0, 3)
        assert bool(seen) == synced


class TestKeepingUp:
    """A disk that is slower than the recording."""

    OPTIONS: ClassVar[dict[str, Any]] = {
        "flush_steps": 2,
        "buffer_bytes": 1,
    }  # three buffers of two steps

    def test_block_waits_and_loses_nothing(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gate = Gate(monkeypatch)
        writer = recorder(path, **self.OPTIONS)
        thread = threading.Thread(target=record, args=(writer, 0, 40))
        thread.start()
        gate.reached.wait()
        assert writer.steps_written <= 6
        gate.open.set()
        thread.join()
        writer.end_episode()
        check_file(path, 40)
        assert "dropped" not in load_wshard(path).metadata

    def test_drop_leaves_steps_out_and_counts_them_in_the_file(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gate = Gate(monkeypatch)
        channels = [*ONE, {"id": "cam", "dtype": "u8", "own_clock": True}]
        writer = recorder(path, channels=channels, overflow="drop", **self.OPTIONS)
        taken = [writer.write_timestep({"x": [n, 0]}, reward=n) for n in range(20)]
        assert taken == [True] * 6 + [False] * 14
        assert [writer.write("cam", n, n) for n in range(8)] == [True] * 6 + [False] * 2
        dropped = {"signal/x": 14, "reward": 14, "signal/cam": 2, "time/signal/cam": 2}
        assert writer.dropped == dropped
        gate.open.set()
        writer.flush()
        writer.flush()
        with open_partial(path) as episode:  # also if nobody comes to finish it
            assert episode.metadata["dropped"] == dropped
        assert writer.write_timestep({"x": [99, 0]}, reward=99)
        writer.end_episode()
        with load_wshard(path) as episode:
            assert episode.observations["x"].data[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 99]
            assert episode.metadata["dropped"] == dropped

    def test_error_raises_and_the_recording_goes_on(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gate = Gate(monkeypatch)
        writer = recorder(path, overflow="error", **self.OPTIONS)
        record(writer, 0, 6)
        with pytest.raises(ShardIOError, match=r"cannot keep up.*buffer_bytes"):
            record(writer, 6, 7)
        gate.open.set()
        writer.flush()
        record(writer, 6, 9)
        writer.end_episode()
        check_file(path, 9)


def test_the_log_says_nothing_when_all_is_well(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "wshard"), recorder(path) as writer:
        record(writer, 0, 5)
    assert caplog.text == ""
