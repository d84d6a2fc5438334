"""Text and ragged channels in a recording, channels that are added late, and what a kill leaves."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import textwrap
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shard_format import ShardReader
from shard_format.errors import InvalidArgument, ShardIOError
from tests.wshard.recording_support import recorder
from wshard import (
    ChannelDef,
    Episode,
    _record_buffers,
    load_wshard,
    open_partial,
    recover,
    save_wshard,
)
from wshard.types import RaggedChannel, TextChannel

if TYPE_CHECKING:
    from pathlib import Path

    from wshard import WShardStreamWriter

TASKS = ["", "pick up the größte", "☃", "", "pick up the größte", "done"]
CHANNELS: list[ChannelDef | dict[str, Any]] = [
    ChannelDef("task", layout="text"),
    {"id": "scan", "layout": "ragged", "dtype": "f32", "shape": [3], "compression": "zstd:1"},
    {"id": "tokens", "layout": "ragged", "dtype": "i32", "lane": "action"},
    {"id": "state", "dtype": "f32", "shape": [2]},
]


def values(number: int) -> dict[str, Any]:
    """A step; no two steps are the same."""
    return {
        "task": TASKS[number % len(TASKS)],
        "scan": np.full((number % 4, 3), number, np.float32) if number % 4 else [],
        "tokens": range(number, number + number % 3),
        "state": [number, -number],
    }


def record(writer: WShardStreamWriter, first: int, stop: int) -> None:
    for number in range(first, stop):
        writer.write_timestep(values(number), reward=number / 3)


def check(episode: Episode, count: int, *, with_last: bool = False) -> None:
    """That an episode holds the first steps, and perhaps the observation after the last."""
    assert episode.length == count
    steps = [values(number) for number in range(count + with_last)]
    task, scan = episode.observations["task"], episode.observations["scan"]
    assert isinstance(task, TextChannel)
    assert task.data == [step["task"] for step in steps]
    assert isinstance(scan, RaggedChannel)
    assert (scan.dtype_name, scan.step_shape) == ("f32", (3,))
    assert [entry.tolist() for entry in scan.data] == [
        np.asarray(s["scan"]).tolist() for s in steps
    ]
    tokens = episode.actions["tokens"]
    assert (tokens.layout, tokens.dtype_name) == ("ragged", "i32")
    assert [entry.tolist() for entry in tokens.data] == [list(s["tokens"]) for s in steps[:count]]
    np.testing.assert_array_equal(
        episode.observations["state"].data.reshape(-1, 2),
        np.reshape([step["state"] for step in steps], (-1, 2)),
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ep.wshard"


def blocks(path: Path) -> dict[str, bytes]:
    """What the entries of a file hold, apart from descriptions."""
    with ShardReader(path) as reader:
        reader.verify()
        return {n: reader.read_entry(n) for n in reader.names() if not n.startswith("meta/")}


def rows(path: Path) -> Any:  # noqa: ANN401 - JSON
    with ShardReader(path) as reader:
        return reader.read_json("meta/channels")


def cuts(journal: bytes) -> list[int]:
    """Sizes of a journal that ends with a frame, or within the next: in its head, behind it, before its end."""
    sizes, at = set(), 0
    while at < len(journal):
        size = struct.unpack_from("<I", journal, at + 12)[0]
        at += 40 + size
        sizes |= {at - 1, at, at + 1, at + 40, at + 41}
    first = 40 + struct.unpack_from("<I", journal, 12)[0]
    return sorted(size for size in sizes if first <= size <= len(journal))


class TestTextAndRagged:
    """Language, point clouds, tokens."""

    def test_a_recording_has_the_blocks_of_an_episode_that_was_saved(self, path: Path) -> None:
        with recorder(path, channels=CHANNELS) as writer:
            record(writer, 0, 12)
            writer.end_episode(
                final_observations={k: values(12)[k] for k in ("task", "scan", "state")}
            )
        saved = Episode(id="ep", length=12)
        steps = [values(number) for number in range(13)]
        saved.observations["task"] = TextChannel(data=[step["task"] for step in steps])
        saved.observations["scan"] = RaggedChannel(data=[step["scan"] for step in steps])
        saved.actions["tokens"] = RaggedChannel(
            "tokens", "i32", data=[list(step["tokens"]) for step in steps[:12]]
        )
        saved.observations["state"] = np.array([s["state"] for s in steps], np.float32)
        saved.rewards = [number / 3 for number in range(12)]
        save_wshard(saved, path.with_name("saved.wshard"))
        assert blocks(path) == blocks(path.with_name("saved.wshard"))
        assert rows(path) == rows(path.with_name("saved.wshard"))
        with load_wshard(path) as episode:
            check(episode, 12, with_last=True)

    def test_cut_around_every_frame_it_gives_the_steps_that_are_whole(self, path: Path) -> None:
        writer = recorder(path, channels=CHANNELS, flush_steps=2)
        record(writer, 0, 5)
        writer.close()
        partial = path.with_name("ep.wshard.partial")
        journal = partial.read_bytes()
        lengths = []
        for size in cuts(journal):
            partial.write_bytes(journal[:size])
            with open_partial(partial) as episode:
                lengths.append(episode.length)
                if episode.observations:  # the note with the channels is there
                    check(episode, episode.length)
        assert lengths == sorted(lengths)
        assert set(lengths) == {0, 2, 4, 5}

    def test_a_finished_and_a_recovered_recording_are_the_same(self, path: Path) -> None:
        for name in ("finished", "recovered"):
            writer = recorder(path.with_name(f"{name}.wshard"), channels=CHANNELS)
            record(writer, 0, 13)
            (writer.end_episode if name == "finished" else writer.close)()
        result = recover(path.with_name("recovered.wshard.partial"), fsync=False)
        assert not result.lost_data
        found = [path.with_name(f"{name}.wshard") for name in ("finished", "recovered")]
        assert blocks(found[0]) == blocks(found[1])
        assert rows(found[0]) == rows(found[1])

    def test_items_without_offsets_are_reported_as_lost(self, path: Path) -> None:
        writer = recorder(path, channels=[{"id": "task", "layout": "text"}], flush_steps=3)
        for number in range(6):
            writer.write_timestep({"task": f"step {number}"})
        writer.close()
        partial = path.with_name("ep.wshard.partial")
        partial.write_bytes(partial.read_bytes()[: -40 - 3 * 8])  # the offsets of the last run
        result = recover(partial, fsync=False)
        assert (result.steps, result.cut, result.lost_data) == (3, {"signal/task": 1}, True)

    def test_a_reader_follows_them(self, path: Path) -> None:
        writer = recorder(path, channels=CHANNELS)
        with open_partial(path) as live:
            for count in (1, 4, 9):
                record(writer, writer.steps_written, count)
                writer.flush()
                assert live.refresh()
                check(live, count)
        writer.abort()

    @pytest.mark.parametrize(
        ("step", "says"),
        [
            ({"task": b"bytes"}, "is not a string"),
            ({"task": None}, "is not a string"),
            ({"task": "\ud800"}, "lone surrogate"),
            ({"task": "x" * (33 << 20)}, "too large"),
            ({"scan": 5}, "expected [items, 3], found []"),
            ({"scan": [1, 2, 3]}, "found [3]"),
            ({"scan": np.zeros((2, 4))}, "found [2, 4]"),
            ({"scan": "text"}, "signal/scan"),
            ({"tokens": [1.5]}, "action/tokens"),
            ({"tokens": [[1]]}, "found [1, 1]"),
        ],
    )
    def test_a_value_that_does_not_fit_raises_and_the_recording_goes_on(
        self, path: Path, step: dict[str, Any], says: str
    ) -> None:
        writer = recorder(path, channels=CHANNELS)
        for number in range(7):  # whether or not a buffer is just taken
            with pytest.raises(InvalidArgument) as caught:
                writer.write_timestep(values(number) | step, reward=0.0)
            assert says in str(caught.value)
            record(writer, number, number + 1)
        writer.end_episode()
        with load_wshard(path) as episode:
            check(episode, 7)

    def test_large_entries_do_not_wait_for_many_and_do_not_pile_up(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        channels = [{"id": "x", "layout": "ragged", "dtype": "u8"}]
        writer = recorder(
            path, channels=channels, flush_steps=64, buffer_bytes=30 << 20, overflow="error"
        )
        assert writer._recorder is not None
        held = threading.Event()
        monkeypatch.setattr(writer._recorder, "_write_batch", lambda _: held.wait(60))
        piece = np.zeros(17 << 20, np.uint8)
        for _ in range(2):
            writer.write_timestep({"x": piece})
        with pytest.raises(ShardIOError, match="cannot keep up"):
            writer.write_timestep({"x": piece})
        held.set()
        writer.abort()

    def test_noise_stays_raw_and_words_are_compressed(self, path: Path) -> None:
        channels = [
            {"id": "words", "layout": "text"},
            {"id": "noise", "layout": "ragged", "dtype": "u8"},
        ]
        random = np.random.default_rng(0)
        with recorder(path, channels=channels, compression="zstd:3", flush_steps=50) as writer:
            writer.write_timestep({"words": "", "noise": []})
            writer.flush()  # a run without items does not decide anything
            for _ in range(200):
                bits = random.integers(0, 256, 99)
                writer.write_timestep({"words": "pick up the cube", "noise": bits})
        with ShardReader(path) as reader:
            sizes = {name: reader.info(name) for name in ("signal/words", "signal/noise")}
        words, noise = sizes["signal/words"], sizes["signal/noise"]
        assert words.disk_size < words.size / 4
        assert noise.disk_size == noise.size == 200 * 99


class TestLateChannels:
    """Channels that nobody knew when the recording began."""

    LATE: tuple[dict[str, Any], ...] = (
        {"id": "force", "dtype": "f32", "shape": [2]},
        {"id": "count", "dtype": "i16"},
        {"id": "says", "layout": "text"},
        {"id": "near", "layout": "ragged", "shape": [1]},
    )
    MORE: dict[str, Any] = {"force": [1, 2], "count": 7, "says": "hm", "near": [[1], [2]]}  # noqa: RUF012

    def test_steps_before_are_filled(self, path: Path) -> None:
        with recorder(path, channels=CHANNELS, flush_steps=4) as writer:
            record(writer, 0, 6)
            for channel in self.LATE:
                writer.add_channel(channel)
            writer.add_channel({"id": "mode", "dtype": "u8", "lane": "action"}, fill=9)
            for number in range(6, 9):
                writer.write_timestep(values(number) | self.MORE | {"mode": 1}, reward=number / 3)
        with load_wshard(path) as episode:
            check(episode, 9)
            nan = [float("nan")] * 2
            np.testing.assert_array_equal(
                episode.observations["force"].data, [nan] * 6 + [[1, 2]] * 3
            )
            assert episode.observations["count"].data.tolist() == [0] * 6 + [7] * 3
            assert episode.observations["says"].data == [""] * 6 + ["hm"] * 3
            near = episode.observations["near"].data
            assert [len(entry) for entry in near] == [0] * 6 + [2] * 3
            assert episode.actions["mode"].data.tolist() == [9] * 6 + [1] * 3

    def test_a_cut_around_any_frame_costs_no_step_that_was_flushed(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(_record_buffers, "_FILL_BYTES", 8)  # so that filling takes several runs
        writer = recorder(path, channels=CHANNELS, flush_steps=2)
        record(writer, 0, 4)
        writer.flush()
        partial = path.with_name("ep.wshard.partial")
        flushed = partial.stat().st_size
        for channel in self.LATE:
            writer.add_channel(channel)
        writer.write_timestep(values(4) | self.MORE, reward=0.0)
        writer.close()
        journal = partial.read_bytes()
        seen = set()
        for size in [size for size in cuts(journal) if size >= flushed]:
            partial.write_bytes(journal[:size])
            with open_partial(partial) as episode:
                assert episode.length in (4, 5)
                seen.add((episode.length, len(episode.observations)))
                check(episode, episode.length)
        assert seen == {(4, n) for n in range(3, 8)} | {(5, 7)}

    def test_before_the_first_step_it_is_like_any_other(self, path: Path) -> None:
        with recorder(path, channels=CHANNELS) as writer:
            writer.add_channel(self.LATE[1])
            writer.write_timestep(values(0) | {"count": 3}, reward=0.0)
        with load_wshard(path) as episode:
            assert episode.observations["count"].data.tolist() == [3]

    def test_later_files_have_it_too(self, path: Path) -> None:
        with recorder(path, channels=CHANNELS, max_steps_per_file=5) as writer:
            record(writer, 0, 3)
            writer.add_channel(self.LATE[2])
            for number in range(3, 12):
                writer.write_timestep(values(number) | {"says": str(number)}, reward=number / 3)
            writer.flush()
            with pytest.raises(InvalidArgument, match="moved on to another file"):
                writer.add_channel(self.LATE[1])
            for number in range(12, 14):
                writer.write_timestep(values(number) | {"says": str(number)}, reward=number / 3)
        with load_wshard(writer.episode_path) as episode:
            check(episode, 14)
            said = episode.observations["says"].data
            assert said == ["", "", "", *(str(number) for number in range(3, 14))]

    @pytest.mark.parametrize(
        ("channel", "fill", "says"),
        [
            ({"id": "state"}, None, "declared twice"),
            ({"id": "x", "own_clock": True}, None, "before the recording begins"),
            ({"id": "x", "shape": [2]}, [1], "a different shape"),
            ({"id": "a//b"}, None, "empty part"),
        ],
    )
    def test_one_that_cannot_be_added_is_refused(
        self,
        path: Path,
        channel: dict[str, Any],
        fill: Any,  # noqa: ANN401 - anything
        says: str,
    ) -> None:
        with recorder(path, channels=CHANNELS) as writer:
            record(writer, 0, 2)
            with pytest.raises(InvalidArgument, match=says):
                writer.add_channel(channel, fill)
            record(writer, 2, 4)
        with load_wshard(path) as episode:
            check(episode, 4)


class TestDurableSteps:
    """What a kill cannot take."""

    def test_exactly_these_steps_come_back_after_a_kill(self, path: Path) -> None:
        script = f"""
            import os, signal
            from tests.wshard.test_recording_ragged import CHANNELS, record, recorder
            for fsync in ("never", "interval", "always"):
                path = {str(path)!r} + fsync
                writer = recorder(path, channels=CHANNELS, flush_steps=1000, fsync=fsync)
                counts = [writer.durable_steps]
                record(writer, 0, 7)
                counts.append(writer.durable_steps)
                writer.flush()
                counts.append(writer.durable_steps)
                record(writer, 7, 11)
                counts.append(writer.durable_steps)
                print(*counts, writer.steps_written, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        """
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, check=False
        )
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
        assert done.stdout.split() == [b"0", b"0", b"7", b"7", b"11"] * 3
        for fsync in ("never", "interval", "always"):
            assert recover(f"{path}{fsync}.partial", fsync=False).steps == 7
            with load_wshard(f"{path}{fsync}") as episode:
                check(episode, 7)

    def test_full_buffers_count_without_a_flush_and_over_all_files(self, path: Path) -> None:
        writer = recorder(path, channels=CHANNELS, flush_steps=4, max_steps_per_file=6)
        record(writer, 0, 15)
        assert writer._recorder is not None
        writer._recorder.settle()
        assert (writer.durable_steps, writer.steps_written) == (12, 15)
        writer.end_episode()
        assert writer.durable_steps == 15

    def test_a_step_counts_only_when_it_is_synced_if_that_is_asked_for(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        counts: list[int] = []
        writer = recorder(path, channels=CHANNELS, fsync="always")
        sync = os.fdatasync

        def counting(descriptor: int) -> None:
            counts.append(writer.durable_steps)
            sync(descriptor)

        monkeypatch.setattr(os, "fdatasync", counting)
        record(writer, 0, 3)
        writer.flush()
        assert counts[-1] == 0
        assert writer.durable_steps == 3
        writer.abort()

    def test_a_disk_that_fails_makes_nothing_durable(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writer = recorder(path, channels=CHANNELS)
        record(writer, 0, 3)
        writer.flush()

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        assert writer._recorder is not None
        monkeypatch.setattr(writer._recorder.journal, "append", full)
        record(writer, 3, 6)
        with pytest.raises(ShardIOError):
            writer.flush()
        assert writer.durable_steps == 3
        monkeypatch.undo()
        writer.abort()
