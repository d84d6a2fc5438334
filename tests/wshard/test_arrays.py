"""`load_arrays` and `peek`: what an episode holds and what it is, without an `Episode`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shard_format import ShardReader
from shard_format.errors import ChecksumMismatch, EntryNotFound, InvalidArgument, ShardError
from tests.shard_format.support import PlainSource
from tests.wshard.support import GOLDEN, full_episode, ramp
from wshard import (
    ChunkedEpisodeWriter,
    Episode,
    add_lane,
    load_arrays,
    load_wshard,
    peek,
    save_wshard,
)

if TYPE_CHECKING:
    from pathlib import Path


def plain_episode(length: int = 20, more: int = 0) -> Episode:
    ep = Episode("plain", env_id="Reach-v1", metadata={"success": True})
    ep.observations["state"] = ramp(length + more, 3)
    ep.observations["rgb"] = ramp(length, 4, 4, 3, dtype="u1")
    ep.actions["ctrl"] = ramp(length, 2, dtype="f8")
    ep.rewards = np.linspace(0, 1, length)
    ep.terminations = np.arange(length) == length - 1
    ep.ticks = np.arange(length)
    return ep


def through_channels(path: Path) -> dict[str, Any]:
    """The same, the long way."""
    with load_wshard(path) as ep:
        found = {block: channel.data for block, channel in ep.blocks()}
        with ShardReader(path) as reader:
            if "time/ticks" in reader:
                found["time/ticks"] = ep.ticks
        if ep.timestamps_ns is not None:
            found["time/timestamps_ns"] = ep.timestamps_ns
    return found


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, np.ndarray):
            assert found[name].dtype == value.dtype, name
            assert found[name].shape == value.shape, name
            assert found[name].tobytes() == value.tobytes(), name
        else:
            assert len(found[name]) == len(value), name
            assert all(np.array_equal(a, b) for a, b in zip(found[name], value, strict=True)), name


class TestLoadArrays:
    @pytest.mark.parametrize("more", [0, 1])
    @pytest.mark.parametrize("length", [0, 1, 20, 3000])
    @pytest.mark.parametrize("compression", ["none", "zstd", "auto"])
    def test_it_gives_what_channels_give(
        self, tmp_path: Path, length: int, more: int, compression: str
    ) -> None:
        """Small files and large ones, compressed and not."""
        path = tmp_path / "e.wshard"
        save_wshard(plain_episode(length, more), path, compression=compression)
        assert_same(load_arrays(path), through_channels(path))

    @pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
    def test_files_of_the_reference_give_the_same_both_ways(self, path: Path) -> None:
        assert_same(load_arrays(path), through_channels(path))

    def test_every_lane_and_kind_of_channel_is_there(self, tmp_path: Path) -> None:
        path = tmp_path / "e.wshard"
        save_wshard(full_episode(), path)
        found = load_arrays(path)
        assert_same(found, through_channels(path))
        assert {"omen/state/dreamer", "uncert/state/dreamer/std", "signal/imu"} <= found.keys()
        assert found["signal/text"][1] == full_episode().observations["text"].data[1]

    def test_some_are_read_by_block_or_by_name(self, tmp_path: Path) -> None:
        path = tmp_path / "e.wshard"
        save_wshard(plain_episode(), path)
        expected = through_channels(path)
        found = load_arrays(path, ["action/ctrl", "time/ticks"])
        assert_same(found, {name: expected[name] for name in ("action/ctrl", "time/ticks")})
        assert_same(load_arrays(path, ["state"]), {"state": expected["signal/state"]})
        assert load_arrays(path, []) == {}

    def test_nothing_else_of_a_large_file_is_looked_at(self, tmp_path: Path) -> None:
        path = tmp_path / "e.wshard"
        save_wshard(plain_episode(3000), path)
        wanted = through_channels(path)["action/ctrl"]
        damaged = bytearray(path.read_bytes())
        damaged[damaged.index(ramp(3000, 4, 4, 3, dtype="u1").tobytes()) + 5] ^= 1
        path.write_bytes(damaged)
        assert_same(load_arrays(path, ["action/ctrl"]), {"action/ctrl": wanted})
        with pytest.raises(ChecksumMismatch, match=r"signal/rgb"):
            load_arrays(path)
        assert load_arrays(path, check=False)["signal/rgb"].shape == (3000, 4, 4, 3)

    @pytest.mark.parametrize("length", [20, 3000])
    def test_arrays_outlive_the_file_and_cannot_be_written_to(
        self, tmp_path: Path, length: int
    ) -> None:
        path = tmp_path / "e.wshard"
        save_wshard(plain_episode(length), path)
        expected = through_channels(path)
        before = len(os.listdir("/proc/self/fd"))
        found = load_arrays(path)
        path.unlink()
        assert_same(found, expected)
        with pytest.raises(ValueError, match="read-only"):
            found["signal/state"][0] = 0
        del found, expected
        assert len(os.listdir("/proc/self/fd")) <= before

    def test_a_lane_that_is_not_there_is_left_out(self, tmp_path: Path) -> None:
        path = tmp_path / "e.wshard"
        save_wshard(Episode("bare", observations={"x": ramp(9, 2)}), path)
        assert "reward" not in load_arrays(path)
        with pytest.raises(EntryNotFound, match="reward"):
            load_arrays(path, ["reward"])

    def test_what_is_not_there_is_named_with_what_is(self, tmp_path: Path) -> None:
        path = tmp_path / "e.wshard"
        save_wshard(plain_episode(), path)
        with pytest.raises(EntryNotFound, match="signal/stat") as caught:
            load_arrays(path, ["signal/stat"])
        assert "signal/state" in str(caught.value)
        with pytest.raises(InvalidArgument, match="list"):
            load_arrays(path, "state")

    def test_lanes_that_were_added_later_are_there(self, tmp_path: Path) -> None:
        path = tmp_path / "e.wshard"
        save_wshard(plain_episode(), path)
        add_lane(path, "omen/state/dreamer", ramp(20, 3))
        assert_same(load_arrays(path), through_channels(path))
        assert np.array_equal(load_arrays(path)["omen/state/dreamer"], ramp(20, 3))

    def test_an_episode_in_chunks_comes_as_a_whole(self, tmp_path: Path) -> None:
        with ChunkedEpisodeWriter(tmp_path, "long", chunk_size_t=8) as writer:
            writer.write_episode(plain_episode())
        (manifest,) = tmp_path.glob("*manifest*")
        found = load_arrays(manifest)
        assert np.array_equal(found.pop("time/ticks"), np.arange(20))
        assert_same(found, through_channels(manifest))

    def test_bytes_will_do(self, tmp_path: Path) -> None:
        path = tmp_path / "e.wshard"
        save_wshard(plain_episode(), path)
        assert_same(load_arrays(path.read_bytes()), through_channels(path))

    @pytest.mark.parametrize("compression", ["none", "zstd"])
    def test_a_source_far_away_is_not_asked_twice(self, tmp_path: Path, compression: str) -> None:
        path = tmp_path / "e.wshard"
        save_wshard(plain_episode(3000), path, compression=compression)
        other, source = PlainSource(path), PlainSource(path)
        with load_wshard(other) as ep:
            ep.load()
            expected = {block: channel.data for block, channel in ep.blocks()}
            _ = ep.ticks
        found = load_arrays(source)
        assert source.reads <= other.reads
        assert np.array_equal(found["signal/rgb"], expected["signal/rgb"])

    def test_a_cut_file_is_an_error_that_names_it(self, tmp_path: Path) -> None:
        path = tmp_path / "e.wshard"
        save_wshard(plain_episode(), path)
        whole = path.read_bytes()
        for length in (0, 40, 100, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:length])
            with pytest.raises(ShardError, match=r"e\.wshard"):
                load_arrays(path)


class TestPeek:
    @pytest.mark.parametrize("compression", ["none", "zstd"])
    def test_it_says_what_the_episode_says(self, tmp_path: Path, compression: str) -> None:
        for ep in (plain_episode(), full_episode(), plain_episode(3000)):
            path = tmp_path / f"{ep.id}.wshard"
            save_wshard(ep, path, compression=compression)
            found = peek(path)
            with load_wshard(path) as opened:
                assert found.described == opened.described
            assert (found.id, found.env_id, found.length) == (ep.id, ep.env_id, ep.length)
            assert found.metadata == ep.metadata

    @pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
    def test_files_of_the_reference_are_understood(self, path: Path) -> None:
        with load_wshard(path) as opened:
            found = peek(path)
            assert found.described == opened.described
            assert (found.id, found.length) == (opened.id, opened.length)

    def test_an_episode_in_chunks_is_one(self, tmp_path: Path) -> None:
        with ChunkedEpisodeWriter(tmp_path, "long", chunk_size_t=8) as writer:
            writer.write_episode(plain_episode())
        (manifest,) = tmp_path.glob("*manifest*")
        assert peek(manifest).length == 20

    def test_no_file_stays_open(self, tmp_path: Path) -> None:
        path = tmp_path / "e.wshard"
        save_wshard(plain_episode(3000), path)
        before = len(os.listdir("/proc/self/fd"))
        kept = [peek(path) for _ in range(3)]
        assert len(os.listdir("/proc/self/fd")) == before
        assert kept[0] == kept[2]

    def test_what_is_no_episode_is_an_error_that_names_it(self, tmp_path: Path) -> None:
        path = tmp_path / "other.wshard"
        path.write_bytes(bytes(100))
        with pytest.raises(ShardError, match=r"other\.wshard"):
            peek(path)
