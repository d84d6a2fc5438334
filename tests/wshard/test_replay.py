"""The replay buffer: each window in proportion, the bounds kept, and the folder as all of its state."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import gymnasium
import numpy as np
import pytest

from shard_format import ShardReader, ShardWriter
from shard_format.errors import Closed, EntryNotFound, InvalidArgument, ShardIOError
from tests.wshard.recording_support import record, recorder
from wshard import Channel, Episode, add_lane, load_wshard, save_wshard
from wshard._folders import following, in_order, is_being_recorded, reserve
from wshard.gym import RecordEpisodes, RecordVectorEpisodes
from wshard.replay import ReplayBuffer
from wshard.replay._episodes import PRIORITIES_FILE as PRIORITIES
from wshard.streaming import ChannelDef, WShardStreamWriter

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


_ROWS = (
    *("ctrl", "reward", "terminated", "truncated"),
    *("is_first", "is_last", "is_terminal", "is_pad"),
)


def episode(number: int, steps: int, *, extra: int = 1, **lanes: Any) -> Episode:  # noqa: ANN401 - channels
    """An episode in which every value says where it is: 1000 * episode + step."""
    ep = Episode(f"ep {number}", length=steps)
    places = 1000 * number + np.arange(steps + extra, dtype=np.float32)
    ep.observations["state"] = np.stack([places, -places], axis=1)
    ep.actions["ctrl"] = 1000 * number + np.arange(steps)
    ep.rewards = np.arange(steps) / 10
    ep.terminations = np.arange(steps) == steps - 1
    ep.truncations = np.zeros(steps, bool)
    for name, values in lanes.items():
        ep.observations[name] = values
    return ep


def filled(folder: Path, *lengths: int, **options: Any) -> ReplayBuffer:  # noqa: ANN401 - ReplayBuffer's
    options.setdefault("seed", 0)
    replay = ReplayBuffer(folder, fsync="never", **options)
    for number, steps in enumerate(lengths):
        replay.add_episode(episode(number, steps))
    return replay


def names(replay: ReplayBuffer) -> list[str]:
    return [os.path.basename(path) for path in replay.episodes]


def places(batch: dict[str, NDArray[Any]]) -> list[int]:
    """Where each window starts, as its own content says."""
    return [int(value) for value in batch["ctrl"][:, 0]]


def check_proportions(drawn: list[int], expected: dict[int, float]) -> None:
    """Each place about as often as expected: within four standard deviations."""
    counts = Counter(drawn)
    assert counts.keys() <= expected.keys()
    for place, share in expected.items():
        spread = np.sqrt(len(drawn) * share * (1 - share))
        assert abs(counts[place] - len(drawn) * share) <= 4 * spread + 1, place


class TestDrawing:
    """Windows, each in proportion."""

    def test_windows_are_what_the_episodes_hold(self, tmp_path: Path) -> None:
        with filled(tmp_path, 9, 5) as replay:
            batch = replay.sample(50, 4)
        assert {name: values.shape for name, values in batch.items()} == {
            "state": (50, 4, 2),
            "indices": (50, 2),
            "step_indices": (50, 4, 2),
            "probability": (50,),
            **dict.fromkeys(_ROWS, (50, 4)),
        }
        for row, place in enumerate(places(batch)):
            number, start = divmod(place, 1000)
            steps = np.arange(start, start + 4)
            np.testing.assert_array_equal(batch["ctrl"][row], place + np.arange(4))
            np.testing.assert_array_equal(batch["state"][row, :, 1], -(place + np.arange(4)))
            np.testing.assert_array_equal(batch["reward"][row], (steps / 10).astype(np.float32))
            np.testing.assert_array_equal(batch["terminated"][row], steps == [8, 4][number])
            np.testing.assert_array_equal(batch["is_first"][row], steps == 0)
            assert batch["indices"][row].tolist() == [number, start]
            assert batch["step_indices"][row].tolist() == [[number, step] for step in steps]
            np.testing.assert_array_equal(batch["is_last"][row], steps == [8, 4][number])
            np.testing.assert_array_equal(batch["is_terminal"][row], steps == [8, 4][number])
        assert not batch["is_pad"].any()

    def test_uniform_draws_every_window_as_often(self, tmp_path: Path) -> None:
        with filled(tmp_path, 5, 9, 2) as replay:
            assert replay.windows(4) == 2 + 6
            batch = replay.sample(8000, 4)
        assert (batch["probability"] == 1 / 8).all()
        expected = dict.fromkeys([0, 1, *range(1000, 1006)], 1 / 8)
        check_proportions(places(batch), expected)

    def test_recent_draws_newer_windows_more_often(self, tmp_path: Path) -> None:
        with filled(tmp_path, 3, 4) as replay:
            batch = replay.sample(20_000, 2, "recent", half_life=2)
        order = [0, 1, 1000, 1001, 1002]  # oldest first
        weights = 2.0 ** (-np.arange(5)[::-1] / 2)
        expected = dict(zip(order, weights / weights.sum(), strict=True))
        check_proportions(places(batch), expected)
        told = dict(zip(places(batch), batch["probability"].tolist(), strict=True))
        assert told == pytest.approx(expected)

    def test_recent_needs_no_half_life(self, tmp_path: Path) -> None:
        with filled(tmp_path, 500, 500) as replay:
            drawn = places(replay.sample(2000, 1, "recent"))
        assert np.mean([place >= 1000 for place in drawn]) == pytest.approx(32 / 33, abs=0.02)

    def test_priorities_are_followed(self, tmp_path: Path) -> None:
        with filled(tmp_path, 3, 4, 4) as replay:
            given = {(0, 0): 0.0, (0, 1): 3.0, (1, 0): 1.0, (1, 1): 0.0, (1, 2): 2.0, (1, 3): 50.0}
            assert replay.update_priorities(np.array(list(given)), list(given.values())) == 6
            batch = replay.sample(20_000, 2, "priority")
            # A window of two cannot start at step 3 of the second episode, and the third was given none.
            weights = {0: 0, 1: 3, 1000: 1, 1001: 0, 1002: 2, 2000: 1, 2001: 1, 2002: 1}
        expected = {place: weight / 9 for place, weight in weights.items()}
        check_proportions(places(batch), expected)
        told = dict(zip(places(batch), batch["probability"].tolist(), strict=True))
        assert told == pytest.approx({place: share for place, share in expected.items() if share})

    def test_new_steps_have_the_highest_priority_so_far(self, tmp_path: Path) -> None:
        with filled(tmp_path, 2) as replay:
            replay.update_priorities(np.array([[0, 0], [0, 1]]), [1.0, 8.0])
            replay.add_episode(episode(1, 2))
            check_proportions(
                places(replay.sample(5000, 1, "priority")),
                {0: 1 / 25, 1: 8 / 25, 1000: 8 / 25, 1001: 8 / 25},
            )

    @pytest.mark.parametrize("how", ["uniform", "recent", "priority"])
    def test_the_same_seed_draws_the_same(self, how: str, tmp_path: Path) -> None:
        filled(tmp_path, 20, 30, 40).close()
        drawn = []
        for seed in (1, 1, 2):
            with ReplayBuffer(tmp_path, seed=seed) as replay:
                drawn.append([places(replay.sample(8, 5, how)) for _ in range(3)])
        assert drawn[0] == drawn[1] != drawn[2]

    def test_padding_lets_windows_run_over_the_end(self, tmp_path: Path) -> None:
        with filled(tmp_path, 5, 2) as replay:
            assert replay.windows(4, padding="zero") == 7
            zero = replay.sample(7000, 4, padding="zero")
            again = replay.sample(50, 4, padding="repeat")
        check_proportions(places(zero), dict.fromkeys([*range(5), 1000, 1001], 1 / 7))
        for batch, fill in ((zero, False), (again, True)):
            for row, place in enumerate(places(batch)[:50]):
                number, start = divmod(place, 1000)
                real = min(4, [5, 2][number] - start)
                assert batch["is_pad"][row].tolist() == [False] * real + [True] * (4 - real)
                steps = place + np.arange(4)
                steps[real:] = steps[real - 1] if fill else 0
                np.testing.assert_array_equal(batch["ctrl"][row], steps)
                assert batch["terminated"][row, real:].tolist() == [fill] * (4 - real)

    def test_what_followed_the_last_step_can_be_had(self, tmp_path: Path) -> None:
        with filled(tmp_path, 4) as replay:
            replay.add_episode(episode(1, 4, extra=0))  # ends with its last action
            assert replay.windows(2, next_observations=True) == 3 + 2
            batch = replay.sample(3000, 2, next_observations=True)
            padded = replay.sample(100, 3, padding="zero", next_observations=True)
        assert batch["state"].shape == (3000, 3, 2)
        assert batch["ctrl"].shape == (3000, 2)
        assert batch["reward"].shape == (3000, 2)
        check_proportions(places(batch), dict.fromkeys([0, 1, 2, 1000, 1001], 1 / 5))
        np.testing.assert_array_equal(batch["state"][:, 1:, 0], batch["ctrl"] + 1)
        assert set(places(padded)) == {0, 1, 2, 3, 1000, 1001, 1002}
        for row, place in enumerate(places(padded)):
            real = 3 - padded["is_pad"][row].sum()
            np.testing.assert_array_equal(
                padded["state"][row, : real + 1, 0], place + np.arange(real + 1)
            )

    def test_channels_can_be_chosen(self, tmp_path: Path) -> None:
        filled(tmp_path, 5).close()
        add_lane(tmp_path / "000000.wshard", "omen/state/dreamer", np.arange(6.0))
        with ReplayBuffer(tmp_path, channels=["state", "omen/state/dreamer"]) as replay:
            batch = replay.sample(3, 2)
        assert "ctrl" not in batch
        assert batch["omen/state/dreamer"].shape == (3, 2)

    def test_lanes_that_were_added_since_are_found_by_refresh(self, tmp_path: Path) -> None:
        filled(tmp_path, 5).close()
        with ReplayBuffer(tmp_path, channels=["omen/state/dreamer"]) as replay:
            with pytest.raises(EntryNotFound):
                replay.sample(1, 1)
            add_lane(tmp_path / "000000.wshard", "omen/state/dreamer", np.arange(6.0))
            replay.refresh()
            assert replay.sample(1, 5)["omen/state/dreamer"].tolist() == [[0, 1, 2, 3, 4]]

    def test_names_in_both_lanes_and_names_that_are_taken(self, tmp_path: Path) -> None:
        with ReplayBuffer(tmp_path, fsync="never") as replay:
            for step in range(3):
                replay.add(
                    {"arm": step, "reward": 7},
                    {"arm": -step},
                    truncated=step == 2,
                    next_observations={"arm": 3, "reward": 8},
                )
            batch = replay.sample(1, 3, next_observations=True)
        assert batch["signal/arm"].tolist() == [[0, 1, 2, 3]]
        assert batch["action/arm"].tolist() == [[0, -1, -2]]
        assert batch["signal/reward"].tolist() == [[7, 7, 7, 8]]
        assert batch["reward"].tolist() == [[0, 0, 0]]

    def test_text_and_other_clocks_are_left_out(self, tmp_path: Path) -> None:
        with ReplayBuffer(tmp_path) as replay:
            imu = Channel(data=np.zeros(90), timestamps_ns=np.arange(90))
            replay.add_episode(episode(0, 3, said=["a", "b", "c"], imu=imu))
            batch = replay.sample(1, 3)
        assert batch.keys() & {"said", "imu"} == set()
        with (
            ReplayBuffer(tmp_path, channels=["said"]) as replay,
            pytest.raises(InvalidArgument, match="cannot hold"),
        ):
            replay.sample(1, 3)


class TestAdding:
    """Steps and episodes."""

    def test_steps_make_episodes(self, tmp_path: Path) -> None:
        with ReplayBuffer(tmp_path, compression="zstd", fsync="never") as replay:
            for number in range(2):
                for step in range(4):
                    replay.add(
                        np.array([step, number], np.float32),
                        step,
                        step / 3,
                        terminated=step == 3,
                        next_observations=np.array([step + 1, number], np.float32),
                    )
                assert len(replay) == 4 * (number + 1)
            assert names(replay) == ["000000.wshard", "000001.wshard"]
            assert repr(replay).endswith("2 episodes, 8 steps>")
        with load_wshard(tmp_path / "000001.wshard") as ep:
            expected = np.array([[0, 1], [1, 1], [2, 1], [3, 1], [4, 1]], np.float32)
            np.testing.assert_array_equal(ep.observations["observation"].data, expected)
            assert ep.actions["action"].data.tolist() == [0, 1, 2, 3]
            assert ep.terminations is not None
            assert ep.terminations.data.tolist() == [False, False, False, True]

    def test_flush_makes_the_running_episode_available(self, tmp_path: Path) -> None:
        with filled(tmp_path) as replay:
            for step in range(3):
                replay.add({"state": [step, 0.0]}, {"ctrl": step})
            assert (replay.steps, replay.windows(2)) == (0, 0)
            replay.flush()
            assert replay.windows(2) == 2
            replay.update_priorities(np.array([[0, 1]]), [9.0])
            assert places(replay.sample(1, 3)) == [0]
            replay.add({"state": [3.0, 0.0]}, {"ctrl": 3}, truncated=True)
            assert replay.windows(2) == 3
            check_proportions(
                places(replay.sample(2000, 2, "priority")), {0: 1 / 11, 1: 9 / 11, 2: 1 / 11}
            )
            assert names(replay) == ["000000.wshard"]

    def test_an_episode_can_be_ended_and_closing_ends_it(self, tmp_path: Path) -> None:
        with ReplayBuffer(tmp_path, fsync="never") as replay:
            replay.add([1.0])
            replay.end_episode([2.0])
            replay.end_episode()
            replay.add([5.0])
        assert sorted(os.listdir(tmp_path)) == ["000000.wshard", "000001.wshard"]

    def test_files_are_copied_as_they_are(self, tmp_path: Path) -> None:
        source = tmp_path / "source.wshard"
        save_wshard(episode(3, 5), source, "zstd")
        with ReplayBuffer(tmp_path / "replay") as replay:
            copy = replay.add_episode(source)
        with load_wshard(copy) as ep:
            assert ep.id == "ep 3"
            assert ep.actions["ctrl"].data.tolist() == [3000, 3001, 3002, 3003, 3004]

    def test_a_step_that_does_not_fit_is_not_added(self, tmp_path: Path) -> None:
        with ReplayBuffer(tmp_path, fsync="never") as replay:
            replay.add([1.0, 2.0], 0)
            with pytest.raises(InvalidArgument, match="shape"):
                replay.add([1.0], 0)
            replay.add([3.0, 4.0], 1, truncated=True)
            assert replay.steps == 2

    def test_recorders_may_fill_the_folder(self, tmp_path: Path) -> None:
        with ReplayBuffer(tmp_path, fsync="never") as replay:
            env = gymnasium.make("CartPole-v1", max_episode_steps=5)
            with RecordEpisodes(env, tmp_path) as recorder:
                recorder.reset(seed=0)
                for step in range(5):
                    recorder.step(step % 2)
                recorder.reset()
                recorder.step(0)
                replay.refresh()
                assert (names(replay), replay.steps) == (["000000.wshard"], 5)
                assert replay.sample(2, 5)["observation"].shape == (2, 5, 4)
                # Its journal is being written: it is not ours to recover.
                ReplayBuffer(tmp_path).close()
                assert "000001.wshard" not in os.listdir(tmp_path)
                # And its name is taken.
                replay.add(np.zeros(4, np.float32), np.int64(1), truncated=True)
                assert names(replay) == ["000000.wshard", "000002.wshard"]

    def test_the_streams_of_a_recorded_vector_environment_are_known(self, tmp_path: Path) -> None:
        envs = gymnasium.make_vec("CartPole-v1", 3, max_episode_steps=4)
        recorder = RecordVectorEpisodes(envs, tmp_path)
        recorder.reset(seed=0)
        for _ in range(20):
            recorder.step(recorder.action_space.sample())
        recorder.close()
        with ReplayBuffer(tmp_path, seed=0) as replay:
            batch = replay.sample(200, 12, across_episodes=True)
            assert batch["is_last"].any(axis=1).all()
            for window in batch["step_indices"]:
                indices = []
                for number in dict.fromkeys(window[:, 0].tolist()):
                    with load_wshard(replay.episodes[number]) as ep:
                        indices.append(ep.metadata["env_index"])
                assert len(set(indices)) == 1


class TestBounds:
    """The oldest go."""

    def test_by_steps(self, tmp_path: Path) -> None:
        with filled(tmp_path, 4, 4, 4, max_steps=9) as replay:
            assert (names(replay), replay.steps) == (["000001.wshard", "000002.wshard"], 8)
            add_lane(tmp_path / "000001.wshard", "omen/state/m", np.zeros(4))
            for _ in range(3):
                replay.add({"state": np.array([1, 2], np.float32)}, {"ctrl": 1})
            replay.end_episode()
            assert names(replay) == ["000002.wshard", "000003.wshard"]
        assert sorted(os.listdir(tmp_path)) == ["000002.wshard", "000003.wshard"]

    def test_by_bytes(self, tmp_path: Path) -> None:
        with filled(tmp_path, 100, 100, 100) as replay:
            size = replay.nbytes
            assert size == sum(os.path.getsize(path) for path in replay.episodes)
        with filled(tmp_path, max_bytes=size - 1) as replay:
            assert len(names(replay)) == 2
            assert replay.nbytes < size

    def test_the_newest_always_stays(self, tmp_path: Path) -> None:
        with filled(tmp_path, 3, 50, max_steps=10) as replay:
            assert (names(replay), replay.steps) == (["000001.wshard"], 50)

    def test_priorities_of_what_is_gone_are_ignored(self, tmp_path: Path) -> None:
        with filled(tmp_path, 4, 4, max_steps=8) as replay:
            batch = replay.sample(20, 4)
            replay.add_episode(episode(2, 4))
            gone = int((batch["indices"][:, 0] == 0).sum())
            assert 0 < gone < 20
            assert replay.update_priorities(batch["indices"], np.ones(20)) == 20 - gone

    @pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="counts open files")
    def test_few_files_are_open(self, tmp_path: Path) -> None:
        before = len(os.listdir("/proc/self/fd"))
        replay = ReplayBuffer(tmp_path, max_open=3, seed=0, fsync="never")
        for number in range(8):
            replay.add_episode(episode(number, 5, wide=np.zeros((5, 20_000), np.float32)))
        for _ in range(5):
            replay.sample(20, 2)
            # A mapped file has two: its own, and one that the map keeps.
            assert len(os.listdir("/proc/self/fd")) <= before + 2 * 3
        replay.close()
        assert len(os.listdir("/proc/self/fd")) == before

    def test_files_that_others_remove_are_forgotten(self, tmp_path: Path) -> None:
        with filled(tmp_path, 4, 4) as replay:
            os.unlink(tmp_path / "000000.wshard")
            replay.refresh()
            assert set(places(replay.sample(20, 4))) == {1000}


class TestResuming:
    """The folder is the state."""

    def test_opening_goes_on(self, tmp_path: Path) -> None:
        with filled(tmp_path, 3, 3) as replay:
            replay.update_priorities(np.array([[0, 1], [1, 2]]), [6.0, 2.0])
        with ReplayBuffer(tmp_path, seed=0, fsync="never") as replay:
            assert (names(replay), replay.steps) == (["000000.wshard", "000001.wshard"], 6)
            replay.add_episode(episode(2, 1))
            weights = {0: 1, 1: 6, 2: 1, 1000: 1, 1001: 1, 1002: 2, 2000: 6}
            check_proportions(
                places(replay.sample(10_000, 1, "priority")),
                {place: weight / 18 for place, weight in weights.items()},
            )
        assert max(os.listdir(tmp_path)) == PRIORITIES

    def test_after_a_kill_all_flushed_steps_and_saved_priorities_are_there(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        script = f"""
            import os, signal
            import numpy as np
            from wshard.replay import ReplayBuffer
            replay = ReplayBuffer({str(tmp_path)!r})
            for step in range(4):
                replay.add({{"state": [step, 0.0]}}, {{"ctrl": step}}, truncated=step == 3)
            for step in range(1000, 1003):
                replay.add({{"state": [step, 0.0]}}, {{"ctrl": step}})
            replay.update_priorities(np.array([[0, 2]]), [5.0])
            replay.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        """
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False)
        assert done.returncode == -signal.SIGKILL
        with caplog.at_level(logging.WARNING), ReplayBuffer(tmp_path, seed=0) as replay:
            assert "3 steps" in caplog.text
            assert (names(replay), replay.steps) == (["000000.wshard", "000001.wshard"], 7)
            # The running episode was seen by `flush`, after a priority of 5 was given.
            weights = {0: 1, 1: 1, 2: 5, 3: 1, 1000: 5, 1001: 5, 1002: 5}
            check_proportions(
                places(replay.sample(5000, 1, "priority")),
                {place: weight / 23 for place, weight in weights.items()},
            )
        assert not list(tmp_path.glob("*.partial"))

    def test_a_journal_with_losses_stays_beside_what_came_back(self, tmp_path: Path) -> None:
        with filled(tmp_path, 2) as replay:
            for step in range(3):
                replay.add({"state": np.array([step, 0], np.float32)}, {"ctrl": step})
            replay.flush()
            journal = (tmp_path / "000001.wshard.partial").read_bytes()
        os.unlink(tmp_path / "000001.wshard")
        (tmp_path / "000001.wshard.partial").write_bytes(journal + b"torn")
        (tmp_path / "000002.wshard.partial").write_bytes(b"no journal")
        (tmp_path / "000003.wshard.partial").touch()
        for _ in range(2):
            with ReplayBuffer(tmp_path, max_steps=4, fsync="never") as replay:
                assert names(replay) == ["000001.wshard"]
                assert replay.nbytes > len(journal)
                assert (tmp_path / "000001.wshard.partial").read_bytes() == journal + b"torn"
        with ReplayBuffer(tmp_path, max_steps=4, fsync="never") as replay:
            path = replay.add_episode(episode(4, 4))
            assert os.path.basename(path) == "000004.wshard"
            # The losses go with the episode.
            assert not (tmp_path / "000001.wshard.partial").exists()

    def test_a_file_that_cannot_be_read_is_left_out_and_named(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        filled(tmp_path, 3).close()
        (tmp_path / "000007.wshard").write_bytes(b"damaged")
        with caplog.at_level(logging.WARNING), ReplayBuffer(tmp_path, fsync="never") as replay:
            assert names(replay) == ["000000.wshard"]
            assert list(replay.skipped) == ["000007.wshard"]
            assert os.path.basename(replay.add_episode(episode(1, 1))) == "000008.wshard"
            replay.refresh()
        assert caplog.text.count("left out") == 1

    @pytest.mark.parametrize("ending", ["000001.wshard", ".partial", PRIORITIES])
    def test_a_file_that_cannot_be_opened_now_is_not_taken_for_damaged(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
    ) -> None:
        with filled(tmp_path, 3, 3) as replay:
            replay.update_priorities(np.array([[1, 2]]), [5.0])
        saved = (tmp_path / PRIORITIES).read_bytes()
        if ending == ".partial":
            writer = recorder(tmp_path / "000002.wshard")
            record(writer, 0, 4)
            writer.close()
        before = set(os.listdir(tmp_path))
        really_open = os.open

        def fail(path: str, *given: Any, **options: Any) -> int:  # noqa: ANN401 - as os.open
            if os.fspath(path).endswith(ending):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
            return really_open(path, *given, **options)

        monkeypatch.setattr(os, "open", fail)
        with pytest.raises(ShardIOError, match=f"{ending}.*Too many open files"):
            ReplayBuffer(tmp_path, fsync="never")
        assert set(os.listdir(tmp_path)) == before
        assert (tmp_path / PRIORITIES).read_bytes() == saved

    def test_an_episode_is_taken_in_as_soon_as_it_can_be_opened(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with filled(tmp_path, 3, 3) as replay:
            replay.update_priorities(np.array([[1, 2]]), [5.0])
        os.rename(tmp_path / "000001.wshard", tmp_path / "away")
        with ReplayBuffer(tmp_path, seed=0, fsync="never") as replay:
            os.rename(tmp_path / "away", tmp_path / "000001.wshard")
            with monkeypatch.context() as patched:
                limit = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
                patched.setattr(os, "open", Mock(side_effect=limit))
                with pytest.raises(ShardIOError):
                    replay.refresh()
            assert names(replay) == ["000000.wshard"]
            replay.refresh()
            assert names(replay) == ["000000.wshard", "000001.wshard"]
            assert replay.skipped == {}
            drawn = replay.sample(50, 1, "priority")
            assert 5 / 10 in drawn["probability"]

    def test_errors_of_the_system_are_errors_of_the_library(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")
        for folder in (tmp_path / "file", tmp_path / "file" / "below"):
            with pytest.raises(ShardIOError, match="file"):
                ReplayBuffer(folder)
        with filled(tmp_path / "gone", 3) as replay:
            shutil.rmtree(tmp_path / "gone")
            with pytest.raises(ShardIOError, match="gone"):
                replay.refresh()

    @pytest.mark.parametrize(
        "top", [10**400, "nan", -1, 1e300], ids=["digits", "nan", "below 0", "large"]
    )
    def test_priorities_out_of_range_start_anew(self, top: object, tmp_path: Path) -> None:
        with filled(tmp_path, 2) as replay:
            replay.update_priorities(np.array([[0, 0]]), [1.0])
        with ShardReader(tmp_path / PRIORITIES) as reader:
            entries = {name: reader.read_entry(name) for name in reader.names()}
        (name,) = (name for name in entries if not name.startswith("priority/"))
        entries[name] = json.dumps({**json.loads(entries[name]), "top": top}).encode()
        with ShardWriter(tmp_path / PRIORITIES, fsync=False) as writer:
            for name, content in entries.items():
                writer.write_entry(name, content)
        with ReplayBuffer(tmp_path, seed=0) as replay:
            replay.add_episode(episode(1, 1))
            check_proportions(
                places(replay.sample(1000, 1, "priority")), {0: 1 / 3, 1: 1 / 3, 1000: 1 / 3}
            )

    @pytest.mark.parametrize("content", [b"damaged", None])
    def test_priorities_that_cannot_be_read_start_anew(
        self, content: bytes | None, tmp_path: Path
    ) -> None:
        with filled(tmp_path, 2) as replay:
            replay.update_priorities(np.array([[0, 0]]), [1e6])
        file = tmp_path / PRIORITIES
        damaged = bytearray(file.read_bytes())
        damaged[-3] ^= 1
        file.write_bytes(content or bytes(damaged))
        with ReplayBuffer(tmp_path, seed=0) as replay:
            check_proportions(places(replay.sample(1000, 1, "priority")), {0: 0.5, 1: 0.5})


class TestArguments:
    """What cannot work is refused."""

    @pytest.mark.parametrize("options", [{"max_steps": 0}, {"max_bytes": -1}, {"max_open": 0}])
    def test_bounds(self, options: dict[str, Any], tmp_path: Path) -> None:
        with pytest.raises(InvalidArgument, match="at least 1"):
            ReplayBuffer(tmp_path, **options)

    @pytest.mark.parametrize(
        ("arguments", "options", "match"),
        [
            ((0, 1), {}, "at least 1"),
            ((1, 1, "often"), {}, "unknown value of how"),
            ((1, 1), {"padding": "mirror"}, "unknown padding"),
            ((1, 1, "recent"), {"half_life": 0}, "above 0"),
            ((1, 9), {}, "long enough for a window"),
        ],
    )
    def test_drawing(
        self, arguments: tuple[Any, ...], options: dict[str, Any], match: str, tmp_path: Path
    ) -> None:
        with filled(tmp_path, 3) as replay, pytest.raises(InvalidArgument, match=match):
            replay.sample(*arguments, **options)

    def test_an_empty_buffer(self, tmp_path: Path) -> None:
        with ReplayBuffer(tmp_path) as replay:
            assert (len(replay), replay.nbytes, replay.windows(1)) == (0, 0, 0)
            with pytest.raises(InvalidArgument, match="long enough for a window"):
                replay.sample(1, 1)

    @pytest.mark.parametrize(
        "values", [[1.0], [1.0, -1.0], [np.nan, 1.0], [np.inf, 1.0], [1e300, 1.0]]
    )
    def test_priorities(self, values: list[float], tmp_path: Path) -> None:
        with filled(tmp_path, 3) as replay:
            with pytest.raises(InvalidArgument, match="priority"):
                replay.update_priorities(np.array([[0, 0], [0, 1]]), values)
            replay.update_priorities(np.array([[0, 0], [0, 1], [0, 2]]), [0, 0, 0])
            with pytest.raises(InvalidArgument, match="all priorities are 0"):
                replay.sample(1, 1, "priority")

    def test_episodes_that_are_not_alike(self, tmp_path: Path) -> None:
        with filled(tmp_path, 3) as replay:
            replay.sample(1, 1)
            odd = episode(1, 3)
            odd.observations["state"] = np.zeros((3, 5))
            replay.add_episode(odd)
            with pytest.raises(InvalidArgument, match="a different kind") as caught:
                replay.sample(50, 1)
            assert caught.value.entry == "state"
            replay.add_episode(Episode("bare", length=3, actions={"ctrl": np.zeros(3, int)}))
            os.unlink(tmp_path / "000001.wshard")
            replay.refresh()
            with pytest.raises(EntryNotFound):
                replay.sample(50, 1)

    def test_a_closed_one(self, tmp_path: Path) -> None:
        replay = filled(tmp_path, 3)
        replay.close()
        replay.close()
        for call in (lambda: replay.sample(1, 1), lambda: replay.add([1.0]), replay.refresh):
            with pytest.raises(Closed):
                call()


class TestNames:
    """Names in a folder."""

    def test_numbers_are_counted(self) -> None:
        found = ["ep_10", "ep_9", "b", "000002", "10", "ep_9b"]
        assert sorted(found, key=in_order) == ["000002", "10", "b", "ep_9", "ep_9b", "ep_10"]

    @pytest.mark.parametrize(
        ("name", "then"),
        [
            (None, "000000"),
            ("000009", "000010"),
            ("99", "100"),
            ("ep_7", "ep_8"),
            ("b", "b-000001"),
        ],
    )
    def test_the_following_one_comes_after(self, name: str | None, then: str) -> None:
        assert following(name) == then
        assert name is None or in_order(name) < in_order(then)

    def test_a_name_is_given_once(self, tmp_path: Path) -> None:
        path = str(tmp_path / "a.wshard")
        assert reserve(path)
        assert not reserve(path)
        assert not is_being_recorded(path + ".partial")
        os.rename(path + ".partial", path)
        assert not reserve(path)
        assert os.listdir(tmp_path) == ["a.wshard"]


def test_links_in_the_folder_are_not_followed(tmp_path: Path) -> None:
    folder, outside = tmp_path / "replay", tmp_path / "outside"
    outside.mkdir()
    save_wshard(episode(7, 9), outside / "ep.wshard", fsync=False)
    with WShardStreamWriter(outside / "x.wshard", "ep", [ChannelDef("state", "f32", [1])]) as lost:
        lost.begin_episode("Test-v0")
        lost.write_timestep({"state": [1.0]})
        journal = (outside / "x.wshard.partial").read_bytes()
    (outside / "y.partial").write_bytes(journal)
    (outside / "priorities").write_bytes(b"precious")
    before = {path.name: path.read_bytes() for path in outside.iterdir()}
    folder.mkdir()
    (folder / "000000.wshard").symlink_to(outside / "ep.wshard")
    (folder / "000001.wshard.partial").symlink_to(outside / "y.partial")
    (folder / "000002.wshard").symlink_to(outside / "new")
    (folder / PRIORITIES).symlink_to(outside / "priorities")
    with filled(folder, 5, 6) as replay:
        assert names(replay) == ["000003.wshard", "000004.wshard"]
        replay.sample(4, 2)
    assert {path.name: path.read_bytes() for path in outside.iterdir()} == before


def test_lanes_that_are_a_link_are_removed_and_not_what_they_lead_to(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"1")
    with filled(tmp_path / "replay", 5, max_steps=6) as replay:
        (tmp_path / "replay" / "000000.wshard.lanes").symlink_to(outside)
        replay.add_episode(episode(1, 5))
        assert names(replay) == ["000001.wshard"]
    assert not os.path.lexists(tmp_path / "replay" / "000000.wshard.lanes")
    assert (outside / "precious").read_bytes() == b"1"
