"""Replay buffers for several environments: streams, windows across episodes, latents and folders of other processes."""

from __future__ import annotations

import errno
import logging
import os
import signal
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

from shard_format.errors import InvalidArgument, ShardIOError
from wshard import load_wshard
from wshard.replay import ReplayBuffer

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


class Row(NamedTuple):
    """A row of a stream, as windows across episodes are to show it."""

    state: int
    ctrl: int
    reward: float
    terminated: bool
    truncated: bool
    is_first: bool
    is_last: bool
    is_terminal: bool


class Environments:
    """Environments in which every observation is a number of its own, and who plays them in turn."""

    def __init__(self, count: int, *, has_last: bool = True) -> None:
        self._random = np.random.default_rng(7)
        self._has_last = has_last
        self._times = [0] * count
        self._left = [self._new_length() for _ in range(count)]
        self._is_first = [True] * count
        self.rows: list[list[Row]] = [[] for _ in range(count)]
        self.steps = 0

    def _new_length(self) -> int:
        return int(self._random.integers(1, 9))

    def play(self, replay: ReplayBuffer, rounds: int) -> None:
        for _ in range(rounds):
            for env in range(len(self.rows)):
                self._step(replay, env)

    def _step(self, replay: ReplayBuffer, env: int) -> None:
        self._left[env] -= 1
        is_over = self._left[env] == 0
        is_terminated = is_over and bool(self._random.integers(2))
        seen = 10_000 * env + self._times[env]
        replay.add(
            {"state": np.int64(seen)},
            {"ctrl": np.int64(-seen)},
            seen / 2,
            is_terminated,
            is_over and not is_terminated,
            next_observations={"state": np.int64(seen + 1)} if self._has_last else None,
            stream=env,
        )
        self.steps += 1
        is_end = is_over and not self._has_last
        ends = (is_terminated, is_over and not is_terminated)
        first = self._is_first[env]
        self.rows[env].append(
            Row(seen, -seen, seen / 2, *ends, first, is_end, is_end and is_terminated)
        )
        if is_over and self._has_last:
            last = Row(seen + 1, 0, 0.0, False, False, False, True, is_terminated)
            self.rows[env].append(last)
        self._is_first[env] = is_over
        self._times[env] += 2 if is_over else 1
        if is_over:
            self._left[env] = self._new_length()


def check_windows(batch: dict[str, NDArray[Any]], rows: list[list[Row]]) -> set[int]:
    """Every window is a piece of one stream; returns where they start."""
    starts = set()
    for window in range(len(batch["state"])):
        start = int(batch["state"][window, 0])
        stream = rows[start // 10_000]
        place = next(n for n, row in enumerate(stream) if row.state == start)
        for name in Row._fields:
            wanted = [getattr(row, name) for row in stream[place:]][: batch["state"].shape[1]]
            assert batch[name][window].tolist() == wanted, name
        starts.add(start)
    assert not batch["is_pad"].any()
    return starts


def finished(rows: list[Row]) -> list[Row]:
    """The rows up to the end of the last finished episode."""
    ends = [place for place, row in enumerate(rows) if row.is_last]
    return rows[: ends[-1] + 1] if ends else []


class TestStreams:
    """Environments in turn, each with an episode of its own."""

    @pytest.mark.parametrize("has_last", [True, False])
    def test_sixteen_environments_in_turn(self, tmp_path: Path, has_last: bool) -> None:
        envs = Environments(16, has_last=has_last)
        with ReplayBuffer(tmp_path, fsync="never", seed=0) as replay:
            envs.play(replay, 16)
            rows = [finished(own) for own in envs.rows]
            assert replay.windows(9, across_episodes=True) == sum(len(own) - 8 for own in rows)
            batch = replay.sample(1000, 9, across_episodes=True)
            starts = check_windows(batch, envs.rows)
            assert starts == {row.state for own in rows for row in own[: len(own) - 8]}
            # Within episodes, too, no environment gets into the steps of another.
            within = replay.sample(300, 3)
            assert (np.diff(within["state"], axis=1) == 1).all()
            assert (within["ctrl"] == -within["state"]).all()
            ends = within["terminated"] | within["truncated"]
            assert (within["is_last"] == ends).all()
            assert (within["is_terminal"] == within["terminated"]).all()
        with ReplayBuffer(tmp_path, fsync="never", seed=0) as again:
            assert again.steps == envs.steps  # closing has ended all episodes
            for path in again.episodes:
                with load_wshard(path) as ep:
                    own = ep.observations["state"].data
                    assert set((own // 10_000).tolist()) == {ep.metadata["env_index"]}

    @pytest.mark.parametrize("how", ["uniform", "recent", "priority"])
    def test_the_same_seed_draws_the_same_across_episodes(self, how: str, tmp_path: Path) -> None:
        played(tmp_path).close()
        drawn = []
        for seed in (1, 1, 2):
            with ReplayBuffer(tmp_path, seed=seed) as replay:
                drawn.append(replay.sample(20, 12, how, across_episodes=True)["state"].tolist())
        assert drawn[0] == drawn[1] != drawn[2]

    def test_running_episodes_of_all_streams_can_be_drawn_after_flush(self, tmp_path: Path) -> None:
        envs = Environments(16)
        with ReplayBuffer(tmp_path, fsync="never", seed=0) as replay:
            for _ in range(3):
                envs.play(replay, 5)
                replay.flush()
                assert replay.steps == envs.steps
                assert replay.windows(4, across_episodes=True) == sum(
                    len(own) - 3 for own in envs.rows
                )
                check_windows(replay.sample(500, 4, across_episodes=True), envs.rows)

    def test_an_episode_that_runs_for_long_does_not_keep_others_from_being_deleted(
        self, tmp_path: Path
    ) -> None:
        with ReplayBuffer(tmp_path, fsync="never", max_steps=20) as replay:
            for step in range(50):
                replay.add([step], stream=0)
                replay.flush()
                replay.add([step], truncated=step % 5 == 4, stream=1)
            assert [os.path.basename(path) for path in replay.episodes] == [
                "000000.wshard",  # is still running
                "000010.wshard",
            ]
            assert len(list(tmp_path.glob("*.wshard"))) == 1
            replay.end_episode(stream=0)
            assert [os.path.basename(path) for path in replay.episodes] == ["000010.wshard"]

    def test_after_a_kill_all_flushed_steps_of_all_streams_are_there(self, tmp_path: Path) -> None:
        run_and_kill(
            f"""
            from tests.wshard.test_replay_streams import Environments
            from wshard.replay import ReplayBuffer
            replay = ReplayBuffer({str(tmp_path)!r})
            Environments(16).play(replay, 10)
            replay.flush()
            """
        )
        with ReplayBuffer(tmp_path / "other", fsync="never") as other:
            envs = Environments(16)
            envs.play(other, 10)
        with ReplayBuffer(tmp_path, seed=0) as replay:
            assert replay.steps == envs.steps == 160
            # What ran when the process died ends where it was flushed, in the stream that it had.
            for own in envs.rows:
                own[-1] = own[-1]._replace(is_last=True)
            check_windows(replay.sample(500, 8, across_episodes=True), envs.rows)

    def test_closing_ends_the_other_streams_if_one_fails(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        replay = ReplayBuffer(tmp_path, fsync="never")
        for stream in range(3):
            replay.add([1.0], stream=stream)
        really_replace = os.replace

        def fail(old: str, new: str, **options: Any) -> None:  # noqa: ANN401 - as os.replace
            if str(new).endswith("000001.wshard"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), new)
            really_replace(old, new, **options)

        with monkeypatch.context() as patched:
            patched.setattr(os, "replace", fail)
            with pytest.raises(ShardIOError, match=r"000001\.wshard"):
                replay.close()
        left = ["000000.wshard", "000001.wshard.partial", "000002.wshard"]
        assert sorted(os.listdir(tmp_path)) == left
        with ReplayBuffer(tmp_path) as again:
            assert again.steps == 3


def run_and_kill(script: str) -> None:
    """Run a script that ends by killing its process."""
    script = textwrap.dedent(script) + "\nimport os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
    done = subprocess.run([sys.executable, "-c", script], check=False)
    assert done.returncode == -signal.SIGKILL


class TestAcrossEpisodes:
    """Windows that continue with the next episode."""

    def test_streams_that_are_too_short_are_left_out(self, tmp_path: Path) -> None:
        with ReplayBuffer(tmp_path, fsync="never", seed=0) as replay:
            for step in range(6):
                replay.add([float(step)], step, truncated=step % 2 == 1, stream=0)
                replay.add([float(step)], 99, truncated=step % 2 == 1, stream=1 + step)
            assert replay.windows(5, across_episodes=True) == 2
            assert set(replay.sample(20, 5, across_episodes=True)["action"][:, 0]) == {0, 1}
            with pytest.raises(InvalidArgument, match=r"no stream is long.*one of 9 steps"):
                replay.sample(1, 9, across_episodes=True)

    def test_priorities_of_single_steps_are_followed(self, tmp_path: Path) -> None:
        envs = Environments(4)
        with ReplayBuffer(tmp_path, fsync="never", seed=0) as replay:
            envs.play(replay, 20)
            everything = replay.sample(4000, 5, across_episodes=True)
            values = (everything["state"] % 7 == 3).astype(float)
            assert replay.update_priorities(everything["step_indices"], values) == 20_000
            batch = replay.sample(500, 5, "priority", across_episodes=True)
            assert (batch["state"][:, 0] % 7 == 3).all()
            check_windows(batch, envs.rows)

    @pytest.mark.parametrize("options", [{"padding": "zero"}, {"next_observations": True}])
    def test_what_makes_no_sense_is_refused(self, options: dict[str, Any], tmp_path: Path) -> None:
        with ReplayBuffer(tmp_path) as replay, pytest.raises(InvalidArgument, match="row of its"):
            replay.windows(3, across_episodes=True, **options)


def played(folder: Path, **options: Any) -> ReplayBuffer:  # noqa: ANN401 - ReplayBuffer's
    """A buffer with four streams of steps."""
    replay = ReplayBuffer(folder, fsync="never", seed=0, **options)
    Environments(4).play(replay, 20)
    return replay


def latents_of(state: NDArray[Any], scale: float = 1.0) -> dict[str, NDArray[Any]]:
    """Latents that say which step they are of."""
    deter = np.stack([state * scale, -state * scale, state * 0 + 1], axis=-1).astype(np.float32)
    return {"deter": deter, "token": (state % 251).astype(np.uint8)}


class TestLatents:
    """Latents that a learner writes back."""

    def test_later_samples_have_what_was_written(self, tmp_path: Path) -> None:
        with played(tmp_path) as replay:
            batch = replay.sample(30, 6, across_episodes=True)
            assert batch.keys() & {"deter", "has_latents"} == set()
            given = latents_of(batch["state"])
            assert replay.update_latents(batch["step_indices"], given) == 180
            written = set(batch["state"].ravel().tolist())
            for across in (True, False):
                later = replay.sample(300, 4, across_episodes=across)
                known = np.isin(later["state"], list(written))
                assert 0 < known.mean() < 1
                np.testing.assert_array_equal(later["has_latents"], known)
                for name, values in latents_of(later["state"]).items():
                    assert later[name].dtype == values.dtype
                    np.testing.assert_array_equal(later[name][known], values[known])
                    assert not later[name][~known].any()
            # Written again, they are replaced.
            replay.update_latents(batch["step_indices"], latents_of(batch["state"], 3))
            later = replay.sample(300, 4, across_episodes=True)
            known = later["has_latents"]
            expected = latents_of(later["state"], 3)["deter"]
            np.testing.assert_array_equal(later["deter"][known], expected[known])

    def test_steps_that_were_never_written_have_what_the_actor_added(self, tmp_path: Path) -> None:
        with ReplayBuffer(tmp_path, fsync="never", seed=0) as replay:
            for step in range(40):
                latent = np.full(3, -step, np.float32)
                replay.add({"state": step, "deter": latent}, step, truncated=step % 10 == 9)
            batch = replay.sample(10, 2)
            latents = np.full((10, 2, 3), 500, np.float32)
            replay.update_latents(batch["step_indices"], {"deter": latents})
            later = replay.sample(100, 5)
            known = np.isin(later["state"], batch["state"])
            assert 0 < known.mean() < 1
            np.testing.assert_array_equal(later["has_latents"], known)
            expected = np.where(known, 500, -later["state"])
            np.testing.assert_array_equal(later["deter"][:, :, 1], expected)
            with pytest.raises(InvalidArgument, match="same names"):
                replay.update_latents(batch["step_indices"], {"deter": latents[:, :, :1]})

    def test_padding_and_steps_that_are_gone_are_left_out(self, tmp_path: Path) -> None:
        with played(tmp_path, max_steps=80) as replay:
            batch = replay.sample(50, 20, padding="zero")
            assert (batch["step_indices"][batch["is_pad"]] == -1).all()
            Environments(2).play(replay, 10)
            there = replay.update_latents(batch["step_indices"], latents_of(batch["state"]))
            assert 0 < there < (~batch["is_pad"]).sum()

    def test_latents_survive_a_kill_and_follow_running_episodes(self, tmp_path: Path) -> None:
        run_and_kill(
            f"""
            import numpy as np
            from wshard.replay import ReplayBuffer
            replay = ReplayBuffer({str(tmp_path)!r}, fsync="never", seed=0)
            for step in range(30):
                replay.add({{"state": step}}, truncated=step == 9)
                if step % 10 == 5:
                    replay.flush()
                    steps = np.array([[0, step], [1, step - 10]])
                    replay.update_latents(steps, {{"deter": np.array([step, step])}})
            replay.flush()
            """
        )
        with ReplayBuffer(tmp_path, seed=0) as replay:
            batch = replay.sample(200, 10)
        expected = np.where(np.isin(batch["state"], [5, 15, 25]), batch["state"], 0)
        np.testing.assert_array_equal(batch["deter"], expected)
        assert {5, 15, 25} == set(batch["state"][batch["has_latents"]].tolist())

    def test_a_step_whose_latents_were_cut_off_counts_as_never_written(
        self, tmp_path: Path
    ) -> None:
        with ReplayBuffer(tmp_path, fsync="never") as replay:
            for step in range(4):
                replay.add({"state": step}, truncated=step == 3)
            steps = replay.sample(1, 4)["step_indices"]
            old, new = np.full((1, 4, 500), 1.0), np.full((1, 4, 500), 2.0)
            (file,) = (tmp_path / "000000.wshard.latents",)
            replay.update_latents(steps, {"deter": old})
            before = file.read_bytes()
            replay.update_latents(steps, {"deter": new})
            after = file.read_bytes()
            assert len(before) == len(after)
            for cut in range(0, len(after), 97):
                file.write_bytes(after[:cut] + before[cut:])  # the system has written this much
                found = replay.sample(1, 4)["deter"][0]
                assert all(len(set(step.tolist())) == 1 for step in found)
                assert (found.any(axis=1)).sum() >= 3
                file.write_bytes(after[:cut])
                found = replay.sample(1, 4)["deter"][0]
                assert {tuple(set(step.tolist())) for step in found} <= {(0.0,), (2.0,)}

    def test_a_full_disk_is_an_error_and_costs_no_other_latents(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with ReplayBuffer(tmp_path, fsync="never") as replay:
            for step in range(4):
                replay.add({"state": step}, truncated=step == 3)
            steps = replay.sample(1, 4)["step_indices"]
            replay.update_latents(steps[:, :2], {"deter": np.ones((1, 2, 9))})
            with monkeypatch.context() as patched:
                full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

                def fail(*_: object) -> int:
                    raise full

                patched.setattr(os, "write", fail)
                patched.setattr(os, "writev", fail)
                with pytest.raises(ShardIOError, match="No space left"):
                    replay.update_latents(steps[:, 2:], {"deter": np.ones((1, 2, 9))})
            assert replay.sample(1, 4)["has_latents"].tolist() == [[True, True, False, False]]

    def test_deleted_episodes_take_their_latents_with_them(self, tmp_path: Path) -> None:
        with played(tmp_path, max_steps=60) as replay:
            for _ in range(4):
                batch = replay.sample(30, 2)
                replay.update_latents(batch["step_indices"], latents_of(batch["state"]))
                Environments(4).play(replay, 10)
                there = {path.name.removesuffix(".latents") for path in tmp_path.glob("*.latents")}
                assert there <= {os.path.basename(path) for path in replay.episodes}
            on_disk = [path for path in tmp_path.iterdir() if path.suffix != ".partial"]
            assert replay.nbytes == sum(path.stat().st_size for path in on_disk)
        (tmp_path / "000000.wshard.latents").touch()  # somebody wrote while it was deleted
        ReplayBuffer(tmp_path).close()
        assert not (tmp_path / "000000.wshard.latents").exists()

    def test_latents_count_as_bytes(self, tmp_path: Path) -> None:
        with played(tmp_path, max_bytes=200_000) as replay:
            before = len(replay.episodes)
            batch = replay.sample(30, 2)
            replay.update_latents(batch["step_indices"], {"big": np.zeros((30, 2, 2000))})
            assert replay.nbytes <= 200_000
            assert len(replay.episodes) < before

    @pytest.mark.parametrize(
        ("latents", "match"),
        [
            ({}, "by name"),
            ({"a": np.zeros((3, 2))}, "one entry for each step"),
            ({"a": np.zeros((4, 2), bool)}, "floating-point"),
            ({"reward": np.zeros((4, 2))}, "cannot have this name"),
            ({"state": np.zeros((4, 2, 7))}, r"int64 \[\], as the channel has"),
        ],
    )
    def test_what_cannot_be_kept_is_refused(
        self, latents: dict[str, Any], match: str, tmp_path: Path
    ) -> None:
        with played(tmp_path) as replay:
            steps = replay.sample(4, 2)["step_indices"]
            with pytest.raises(InvalidArgument, match=match):
                replay.update_latents(steps, latents)
            with pytest.raises(InvalidArgument, match="expected indices"):
                replay.update_latents(steps.astype(float), {"a": np.zeros((4, 2))})
        assert not list(tmp_path.glob("*.latents"))

    def test_a_model_of_another_form_starts_again(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with played(tmp_path) as replay:
            batch = replay.sample(40, 2)
            replay.update_latents(batch["step_indices"], latents_of(batch["state"]))
        with ReplayBuffer(tmp_path, seed=1) as replay:
            batch = replay.sample(40, 2)
            assert batch["deter"].shape == (40, 2, 3)
            with caplog.at_level(logging.WARNING):
                replay.update_latents(batch["step_indices"][:1], {"deter": np.zeros((1, 2, 8))})
            assert "replaced by deter float64 [8]" in caplog.text
            later = replay.sample(400, 2)
            assert later["deter"].shape == (400, 2, 8)
            known = np.isin(later["state"], batch["state"][:1])
            np.testing.assert_array_equal(later["has_latents"], known)

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"damaged",
            b"[" * 70_000,
            b'{"latents":{"deter":{"dtype":"<f4","shape":[999999999999]}}}\n',
            b'{"latents":{"deter":{"dtype":"<f4","shape":[100000]}}}\n1234',
            b'{"latents":{"deter":{"dtype":"|O","shape":[1]}}}\n123456789012345678901234567890',
            b'{"latents":{"reward":{"dtype":"<f4","shape":[]}}}\n123456789012345678901234567890',
            "pipe",
            "link",
        ],
    )
    def test_a_file_that_holds_no_latents_is_not_used_and_is_replaced(
        self, content: bytes | str, tmp_path: Path
    ) -> None:
        outside = tmp_path / "outside"
        outside.write_bytes(b"precious")
        folder = tmp_path / "replay"
        with ReplayBuffer(folder, fsync="never") as replay:
            replay.add({"state": 0}, truncated=True)
        file = folder / "000000.wshard.latents"
        if isinstance(content, bytes):
            file.write_bytes(content)
        elif content == "pipe":
            os.mkfifo(file)
        else:
            file.symlink_to(outside)
        with ReplayBuffer(folder, fsync="never") as replay:
            batch = replay.sample(1, 1)
            assert batch.keys() & {"deter", "has_latents"} == set()
            replay.update_latents(batch["step_indices"], {"deter": np.full((1, 1, 2), 5.0)})
            assert replay.sample(1, 1)["deter"].tolist() == [[[5.0, 5.0]]]
        assert outside.read_bytes() == b"precious"


class TestFolders:
    """A learner over the folders of several actors."""

    @pytest.mark.slow
    def test_a_learner_draws_from_what_other_processes_add(self, tmp_path: Path) -> None:
        script = """
            import sys
            from tests.wshard.test_replay_streams import Environments
            from wshard.replay import ReplayBuffer
            with ReplayBuffer(sys.argv[1], fsync="never", max_steps=40) as replay:
                Environments(3).play(replay, 20)
        """
        folders = [tmp_path / f"actor-{n}" for n in range(2)]
        actors = [
            subprocess.Popen([sys.executable, "-c", textwrap.dedent(script), str(folder)])
            for folder in folders
        ]
        envs = Environments(3)
        with ReplayBuffer(tmp_path / "same", fsync="never") as same:
            envs.play(same, 20)
        for own in envs.rows:
            own[-1] = own[-1]._replace(is_last=True)  # closing has ended what ran
        drawn = 0
        with ReplayBuffer(folders, seed=0) as learner:
            is_over = False
            while not is_over:
                is_over = all(actor.poll() is not None for actor in actors)
                learner.refresh()
                if learner.windows(5, across_episodes=True):
                    batch = learner.sample(8, 5, across_episodes=True)
                    check_windows(batch, envs.rows)
                    learner.update_priorities(batch["step_indices"], np.ones((8, 5)))
                    learner.update_latents(batch["step_indices"], latents_of(batch["state"]))
                    drawn += 1
            assert drawn
            assert [actor.returncode for actor in actors] == [0, 0]
            learner.refresh()
            assert 2 * 30 < learner.steps <= 2 * 40
            assert learner.skipped == {}
            assert {os.path.dirname(path) for path in learner.episodes} == set(map(str, folders))
            # The actors may have deleted an episode while the learner wrote its latents: opening removes these.
            for folder in folders:
                ReplayBuffer(folder).close()
                names = {path.name for path in folder.iterdir()}
                assert {name for name in names if name.endswith(".latents")} <= {
                    f"{name}.latents" for name in names
                }

    def test_the_state_of_a_learner_is_in_the_folders(self, tmp_path: Path) -> None:
        folders = [tmp_path / "a", tmp_path / "b"]
        for number, folder in enumerate(folders):
            with ReplayBuffer(folder, fsync="never") as actor:
                for step in range(10):
                    state = 100 * number + step
                    actor.add({"state": state}, truncated=step == 9)
        with ReplayBuffer(folders, seed=0) as learner:
            batch = learner.sample(100, 1)
            values = np.where(batch["state"] == 107, 3.0, 0.0)
            learner.update_priorities(batch["step_indices"], values)
            learner.update_latents(batch["step_indices"], {"z": batch["state"] * 2})
        with ReplayBuffer(folders[::-1], seed=0) as learner:
            batch = learner.sample(20, 1, "priority")
            assert set(batch["state"].ravel().tolist()) == {107}
            assert (batch["z"] == 214).all()

    def test_newer_episodes_are_drawn_more_often_whatever_folder_they_are_in(
        self, tmp_path: Path
    ) -> None:
        folders = [tmp_path / "a", tmp_path / "b"]
        actors = [ReplayBuffer(folder, fsync="never") for folder in folders]
        for state in range(8):
            actors[state % 2].add({"state": state}, truncated=True)
            path = actors[state % 2].episodes[-1]
            os.utime(path, ns=(state, state))
        with ReplayBuffer(folders, seed=0) as learner:
            found = [load_wshard(path).observations["state"].data[0] for path in learner.episodes]
            assert found == list(range(8))
            drawn = learner.sample(2000, 1, "recent", half_life=1)["state"].ravel()
        counts = np.bincount(drawn, minlength=8)
        assert (np.diff(counts[2:]) > 0).all()

    def test_episodes_that_an_actor_deletes_are_not_drawn(self, tmp_path: Path) -> None:
        with (
            played(tmp_path / "a") as actor,
            ReplayBuffer([tmp_path / "a"], seed=0, max_open=1) as learner,
        ):
            stale = learner.sample(50, 2)
            gone = actor.episodes[:-3]
            for path in gone:
                os.unlink(path)
            batch = learner.sample(50, 2)
            assert len(learner.episodes) == 3
            numbers = set(batch["indices"][:, 0].tolist())
            assert numbers <= set(range(len(gone), len(gone) + 3))
            is_there = np.isin(stale["indices"][:, 0], range(len(gone), len(gone) + 3))
            written = learner.update_latents(stale["step_indices"], {"z": np.ones((50, 2))})
            assert written == 2 * is_there.sum()
            # Even if all are gone that it knows of.
            for path in learner.episodes:
                os.unlink(path)
            actor.add({"state": np.int64(77)}, {"ctrl": np.int64(0)}, truncated=True, stream=9)
            assert set(learner.sample(50, 1)["state"].ravel().tolist()) == {77}

    def test_latents_of_an_episode_that_is_just_being_deleted_leave_no_file(
        self, tmp_path: Path
    ) -> None:
        with played(tmp_path / "a"), ReplayBuffer([tmp_path / "a"], seed=0) as learner:
            batch = learner.sample(50, 2)
            for path in learner.episodes:
                os.unlink(path)
            assert learner.update_latents(batch["step_indices"], {"z": np.ones((50, 2))}) == 0
            assert not list((tmp_path / "a").glob("*.latents"))

    def test_a_learner_adds_deletes_and_recovers_nothing(self, tmp_path: Path) -> None:
        journal = tmp_path / "a" / "000000.wshard.partial"
        with ReplayBuffer(tmp_path / "a", fsync="never") as actor:
            actor.add([1.0])
            actor.flush()
            content = journal.read_bytes()
        os.unlink(tmp_path / "a" / "000000.wshard")
        journal.write_bytes(content)  # as an actor leaves it that was killed
        before = sorted(os.listdir(tmp_path / "a"))
        with ReplayBuffer([tmp_path / "a", tmp_path / "b"]) as learner:
            for call in (lambda: learner.add([1.0]), lambda: learner.add_episode("x.wshard")):
                with pytest.raises(InvalidArgument, match="only reads"):
                    call()
            learner.flush()
        assert sorted(os.listdir(tmp_path / "a")) == before
        for bound in ("max_steps", "max_bytes"):
            options: dict[str, Any] = {bound: 5}
            with pytest.raises(InvalidArgument, match="deletes nothing"):
                ReplayBuffer([tmp_path / "a"], **options)
        for folders in ([], [tmp_path / "a", tmp_path / "b" / ".." / "a"]):
            with pytest.raises(InvalidArgument, match="different folders"):
                ReplayBuffer(folders)
