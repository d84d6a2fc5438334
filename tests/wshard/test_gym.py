"""Recording Gymnasium: each file holds exactly what the environment gave, compared with a rollout without a recorder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from shard_format.errors import InvalidArgument, ShardIOError
from wshard import Timebase, load_wshard, open_partial, recover
from wshard.gym import RecordEpisodes, RecordingOptions, RecordVectorEpisodes
from wshard.gym._channels import InfoChannels
from wshard.types import TextChannel

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from wshard import Episode

Env = gymnasium.Env[Any, Any]
LETTERS = "aé☃"


class Everything(gymnasium.Env[dict[str, Any], dict[str, Any]]):
    """Every kind of space at once; what it gives is drawn from its spaces, and kept in `log`."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 25}  # noqa: RUF012 - Gymnasium's way

    def __init__(self, steps: int = 7, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = spaces.Dict(
            {
                "arm": spaces.Box(-1, 1, (3,), np.float32),
                "depth": spaces.Box(0, 65535, (2, 2), np.uint16),
                "rgb": spaces.Box(0, 255, (4, 4, 3), np.uint8),
                "deep": spaces.Dict(
                    {"mode": spaces.Discrete(4, start=-1), "bits": spaces.MultiBinary(5)}
                ),
                "pair": spaces.Tuple(
                    (spaces.MultiDiscrete([3, 4]), spaces.Text(8, charset=LETTERS))
                ),
            }
        )
        self.action_space = spaces.Dict(
            {"arm": spaces.Box(-1, 1, (2,), np.float64), "say": spaces.Text(4, min_length=0)}
        )
        self._steps = steps
        self.log: list[tuple[Any, ...]] = []

    def _give(self) -> dict[str, Any]:
        given: dict[str, Any] = self.observation_space.sample()
        return given

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self._left = self._steps
        observation, info = self._give(), {"left": self._left, "name": "start"}
        self.log.append((observation, info))
        return observation, info

    def step(
        self, action: dict[str, Any]
    ) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self._left -= 1
        info: dict[str, Any] = {"left": self._left, "name": f"step {self._left}"}
        if self._left % 2:
            info["odd"] = {"half": self._left / 2}
        reward = 0.1 * self._left  # not a float32
        result = (self._give(), reward, self._left == 0, False, info)
        self.log.append((action, *result))
        return result

    def render(self) -> Any:  # noqa: ANN401 - Gymnasium's type has a parameter
        return np.full((6, 5, 3), self._left, np.uint8)


@dataclass
class Rollout:
    """One episode as it was, in lists."""

    observations: list[Any] = field(default_factory=list)
    actions: list[Any] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    terminated: list[bool] = field(default_factory=list)
    truncated: list[bool] = field(default_factory=list)

    def add(self, action: object, observation: object, reward: float, *ends: bool) -> None:
        self.actions.append(np.copy(action))  # type: ignore[call-overload]
        self.observations.append(np.copy(observation))  # type: ignore[call-overload]
        self.rewards.append(reward)
        self.terminated.append(bool(ends[0]))
        self.truncated.append(bool(ends[1]))


def check(ep: Episode, rollout: Rollout) -> None:
    """That a file holds a rollout, no more and no less."""
    assert ep.length == len(rollout.actions)
    assert len(ep.observations["observation"]) == ep.length + 1
    np.testing.assert_array_equal(ep.observations["observation"].data, rollout.observations)
    np.testing.assert_array_equal(ep.actions["action"].data, rollout.actions)
    assert ep.rewards is not None
    np.testing.assert_array_equal(ep.rewards.data, rollout.rewards)
    assert ep.terminations is not None
    np.testing.assert_array_equal(ep.terminations.data, rollout.terminated)
    assert ep.truncations is not None
    np.testing.assert_array_equal(ep.truncations.data, rollout.truncated)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def record(env: Env, folder: Path, **options: Any) -> RecordEpisodes[Any, Any]:  # noqa: ANN401 - RecordEpisodes'
    return RecordEpisodes(env, folder, **split(options))


def split(options: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a recorder, with the rare ones in `RecordingOptions`; nothing is synced."""
    names = {"channels", "infos", "autoreset_mode"} & options.keys()
    rare = {name: options.pop(name) for name in names}
    return {**options, "options": RecordingOptions(fsync="never", **rare)}


def play(env: Env, steps: int, seed: int = 3, actions: int = 5) -> list[Rollout]:
    """Plays and resets when an episode is over; the last episode may not be."""
    chosen = np.random.default_rng(actions)
    rollouts = [Rollout([np.copy(env.reset(seed=seed)[0])])]
    for _ in range(steps):
        if isinstance(env.action_space, spaces.Discrete):
            action: Any = chosen.integers(env.action_space.n)
        else:
            action = chosen.uniform(-1, 1, 1).astype(np.float32)
        observation, reward, terminated, truncated, _ = env.step(action)
        rollouts[-1].add(action, observation, float(reward), terminated, truncated)
        if terminated or truncated:
            rollouts.append(Rollout([np.copy(env.reset()[0])]))
    return rollouts


def cartpole(**options: Any) -> Env:  # noqa: ANN401 - gymnasium.make's
    return gymnasium.make("CartPole-v1", **options)


class TestEpisodes:
    """One file for each, with all of it."""

    def test_files_hold_what_the_environment_gave(self, tmp_path: Path) -> None:
        expected = play(cartpole(max_episode_steps=20), 120)
        with record(cartpole(max_episode_steps=20), tmp_path, compression="zstd") as env:
            assert len(play(env, 120)) == len(expected)
        over = [
            rollout
            for rollout in expected
            if rollout.terminated and any(rollout.terminated + rollout.truncated)
        ]
        assert len(over) > 3
        assert (
            {any(r.terminated) for r in over} == {any(r.truncated) for r in over} == {True, False}
        )
        for number, rollout in enumerate(over):
            with load_wshard(tmp_path / f"{number:06d}.wshard") as ep:
                check(ep, rollout)
                assert ep.env_id == "CartPole-v1"
                assert ep.timebase.tick_hz == 50
                assert ep.metadata["ended"] == (
                    "terminated" if any(rollout.terminated) else "truncated"
                )
                assert ep.metadata["seed"] == (3 if number == 0 else None)

    def test_rewards_keep_their_double_precision(self, tmp_path: Path) -> None:
        def make() -> Env:
            return gymnasium.make("Pendulum-v1", max_episode_steps=15)

        rollout = play(make(), 15)[0]
        with record(make(), tmp_path) as env:
            play(env, 15)
        with load_wshard(tmp_path / "000000.wshard") as ep:
            check(ep, rollout)
            assert ep.rewards is not None
            assert ep.rewards.dtype_name == "f64"

    def test_every_space_becomes_channels(self, tmp_path: Path) -> None:
        inner = Everything()
        with record(inner, tmp_path) as env:
            env.action_space.seed(1)
            env.reset(seed=9)
            for _ in range(7):
                env.step(env.action_space.sample())
        with load_wshard(tmp_path / "000000.wshard") as ep:
            seen = [entry[0] if len(entry) == 2 else entry[1] for entry in inner.log]
            done = [entry[0] for entry in inner.log[1:]]
            assert set(ep.observations) == {
                *("arm", "depth", "rgb", "deep/mode", "deep/bits", "pair/0", "pair/1"),
            }
            picked = {
                "arm": [o["arm"] for o in seen],
                "depth": [o["depth"] for o in seen],
                "rgb": [o["rgb"] for o in seen],
                "deep/mode": [o["deep"]["mode"] for o in seen],
                "deep/bits": [o["deep"]["bits"] for o in seen],
                "pair/0": [o["pair"][0] for o in seen],
            }
            for name, values in picked.items():
                np.testing.assert_array_equal(ep.observations[name].data, values)
                assert ep.observations[name].data.dtype == np.asarray(values).dtype
            said = ep.observations["pair/1"]
            assert isinstance(said, TextChannel)
            assert said.data == [o["pair"][1] for o in seen]
            assert said.modality == "language"
            assert ep.observations["rgb"].modality == "rgb"
            assert ep.observations["deep/mode"].extra["space"] == "Discrete(4, start=-1)"
            np.testing.assert_array_equal(ep.actions["arm"].data, [a["arm"] for a in done])
            assert ep.actions["say"].data == [a["say"] for a in done]

    def test_seeds_options_and_metadata_are_kept(self, tmp_path: Path) -> None:
        def add(facts: dict[str, Any]) -> dict[str, Any]:
            return {"label": f"{facts['episode']} {facts['ended']} {facts['seed']}"}

        with record(cartpole(max_episode_steps=2), tmp_path, metadata=add) as env:
            for seed in (4, None):
                env.reset(seed=seed, options={"low": np.float64(-0.01), "high": 0.01})
                env.step(0)
                env.step(1)
        with load_wshard(tmp_path / "000000.wshard") as ep:
            assert ep.metadata["seed"] == 4
            assert ep.metadata["options"] == {"low": -0.01, "high": 0.01}
            assert ep.metadata["label"] == "0 truncated 4"
            assert ep.metadata["gymnasium"] == gymnasium.__version__
        with load_wshard(tmp_path / "000001.wshard") as ep:
            assert ep.metadata["seed"] is None

    def test_the_name_may_hold_the_seed_and_a_folder(self, tmp_path: Path) -> None:
        with record(
            cartpole(max_episode_steps=1), tmp_path, name="{seed}/{episode}", metadata={"a": 1}
        ) as env:
            env.reset(seed=4)
            env.step(0)
        with load_wshard(tmp_path / "4" / "0.wshard") as ep:
            assert (ep.id, ep.metadata["a"]) == ("4/0", 1)

    def test_frames_are_a_camera(self, tmp_path: Path) -> None:
        with record(
            Everything(render_mode="rgb_array"),
            tmp_path,
            render=True,
            channels={"render": {"compression": "zstd:1", "rate": 25.0}},
        ) as env:
            env.reset()
            for _ in range(7):
                env.step(env.action_space.sample())
        with load_wshard(tmp_path / "000000.wshard") as ep:
            camera = ep.observations["render"]
            assert (camera.modality, camera.sampling_rate_hz) == ("rgb", 25)
            assert camera.data.shape == (8, 6, 5, 3)
            assert camera.data[:, 0, 0, 0].tolist() == [7, 6, 5, 4, 3, 2, 1, 0]

    def test_infos_are_kept_on_request(self, tmp_path: Path) -> None:
        with record(Everything(), tmp_path, infos=True) as env:
            env.reset()
            for _ in range(7):
                env.step(env.action_space.sample())
        with load_wshard(tmp_path / "000000.wshard") as ep:
            assert ep.observations["info/left"].data.tolist() == [7, 6, 5, 4, 3, 2, 1, 0]
            assert ep.observations["info/name"].data[:2] == ["start", "step 6"]
            half = ep.observations["info/odd/half"]  # from the third observation on
            nan = np.nan
            np.testing.assert_array_equal(half.data, [nan, nan, 2.5, nan, 1.5, nan, 0.5, nan])

    def test_an_environment_may_use_its_arrays_again(self, tmp_path: Path) -> None:
        class Reusing(gymnasium.Env[Any, Any]):
            observation_space = spaces.Box(0, 99, (1,), np.float32)
            action_space = spaces.Box(0, 99, (1,), np.float32)
            held = np.zeros(1, np.float32)

            def reset(self, **_: object) -> tuple[Any, dict[str, Any]]:
                self.held[:] = 0
                return self.held, {"same": self.held}

            def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:  # noqa: ANN401 - an array
                self.held += 1
                return self.held, 0.0, bool(self.held[0] == 4), False, {"same": self.held}

        action = np.zeros(1, np.float32)
        with record(Reusing(), tmp_path, infos=True) as env:
            env.reset()
            for number in range(4):
                action[:] = number
                env.step(action)
        with load_wshard(tmp_path / "000000.wshard") as ep:
            for name in ("observation", "info/same"):
                assert ep.observations[name].data[:, 0].tolist() == [0, 1, 2, 3, 4]
            assert ep.actions["action"].data[:, 0].tolist() == [0, 1, 2, 3]


class Told(gymnasium.Env[Any, Any]):
    """An environment that gives the infos that it was told, one after another."""

    observation_space = spaces.Text(9)
    action_space = spaces.Discrete(2)

    def __init__(self, infos: list[dict[str, Any]], *, ends: bool = True) -> None:
        self._infos = infos
        self._ends = ends

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        self._at = 0
        return "t0", self._infos[0]

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:  # noqa: ANN401 - an action
        self._at += 1
        is_over = self._ends and self._at == len(self._infos) - 1
        return f"t{self._at}", self._at / 3, is_over, False, self._infos[self._at]


INFOS: list[dict[str, Any]] = [
    {"n": 1, "mixed": 1, "list": [1, {"a": None}], "v": np.arange(2), "later": None},
    {"n": True, "mixed": "two", "x": 0.5, "name": "größe", "deep": {"er": np.float32(2)}},
    {"n": 2**60 + 1, "v": np.ones(2, np.uint8), "x": -1, "w": np.ones((1, 2), np.float32)},
    {"n": 4.5, "v": np.ones(3), "a//b": 1, "success": False, "bad": "\ud800", "later": "now"},
    {"mixed": 3, "object": object(), "success": np.float64(1), "name": 7, "observation": 5},
]


def told(folder: Path, given: list[dict[str, Any]] = INFOS, **options: Any) -> Path:  # noqa: ANN401 - RecordEpisodes'
    """Records an episode with these infos to its end."""
    with record(Told(given), folder, **{"infos": True, **options}) as env:
        env.reset()
        for _ in given[1:]:
            env.step(0)
    return folder / "000000.wshard"


class TestInfos:
    """A dictionary at every step."""

    def test_the_first_value_of_a_key_decides_and_nothing_is_lost(self, tmp_path: Path) -> None:
        nan = np.nan
        with load_wshard(told(tmp_path)) as ep:
            found = {name[5:]: c for name, c in ep.observations.items() if name != "observation"}
            numbers = {
                "n": [1, 1, nan, 4.5, nan],
                "mixed": [1, nan, nan, nan, 3],
                "x": [nan, 0.5, -1, nan, nan],
                "deep/er": [nan, 2, nan, nan, nan],
                "success": [nan, nan, nan, 0, 1],
                "observation": [nan, nan, nan, nan, 5],
            }
            for name, values in numbers.items():
                assert found[name].dtype_name == "f64"
                np.testing.assert_array_equal(found[name].data, values)
            assert found["v"].data.tolist() == [[0, 1], [0, 0], [1, 1], [0, 0], [0, 0]]
            assert found["v"].data.dtype == np.arange(2).dtype
            np.testing.assert_array_equal(found["w"].data[:3, 0, 0], [nan, nan, 1])
            texts = {
                "list": ['[1, {"a": null}]', "", "", "", ""],
                "name": ["", "größe", "", "", ""],
                "later": ["", "", "", "now", ""],
            }
            for name, strings in texts.items():
                assert found[name].data == strings
            other = [json.loads(text or "{}") for text in found["other"].data]
            assert other == [
                {},
                {"mixed": "two"},
                {"n": 2**60 + 1},
                {"v": [1.0, 1.0, 1.0], "a//b": 1, "bad": "\ud800"},
                {"name": 7},
            ]
            assert found.keys() == {*numbers, *texts, "v", "w", "other"}
            assert list(ep.metadata["infos_left_out"]) == ["object"]

    def test_a_recovered_recording_has_the_channels_and_values_of_a_finished_one(
        self, tmp_path: Path
    ) -> None:
        finished = told(tmp_path)
        for count in range(1, len(INFOS)):
            folder = tmp_path / str(count)
            with record(Told(INFOS, ends=False), folder, infos=True) as env:
                env.reset()
                for _ in range(count):
                    env.step(0)
            assert recover(folder / "000000.wshard.partial", fsync=False).steps == count
            with load_wshard(folder / "000000.wshard") as ep, load_wshard(finished) as whole:
                for name, channel in ep.observations.items():
                    wanted = whole.observations[name]
                    assert (channel.layout, channel.dtype_name) == (
                        wanted.layout,
                        wanted.dtype_name,
                    )
                    assert channel.extra == wanted.extra
                    np.testing.assert_array_equal(channel.data[:count], wanted.data[:count])
                seen = InfoChannels({"observation"})
                needed = {
                    channel.id for info in INFOS[: count + 1] for channel in seen.take(info)[0]
                }
                assert needed <= {*ep.observations}

    def test_a_channel_of_the_environment_is_not_replaced(self, tmp_path: Path) -> None:
        inner = Told([{"x": 1}, {"x": 2}])
        inner.observation_space = spaces.Dict({"info": spaces.Dict({"x": spaces.Text(9)})})  # type: ignore[assignment]
        step, reset = inner.step, inner.reset
        inner.step = lambda action: ({"info": {"x": "a"}}, *step(action)[1:])  # type: ignore[method-assign]
        inner.reset = lambda **_: ({"info": {"x": "a"}}, reset()[1])  # type: ignore[method-assign]
        with record(inner, tmp_path, infos=True) as env:
            env.reset()
            env.step(0)
        with load_wshard(tmp_path / "000000.wshard") as ep:
            assert ep.observations["info/x"].data == ["a", "a"]
            assert ep.observations["info/other"].data == ['{"x": 1}', '{"x": 2}']


class TestOutcome:
    """How an episode went, in its metadata."""

    @pytest.mark.parametrize(
        ("last", "success"),
        [
            ({"success": np.True_}, True),
            ({"success": 0.0, "is_success": True}, False),
            ({"is_success": np.array([1.0])}, True),
            ({"success": None, "is_success": 0}, False),
            ({"success": np.ones(2)}, None),
            ({"success": "yes"}, None),
            ({}, None),
        ],
    )
    def test_success_is_what_the_last_info_says(
        self, last: dict[str, Any], success: bool | None, tmp_path: Path
    ) -> None:
        infos = [{"success": success is False}, {}, last]
        with load_wshard(told(tmp_path, infos, infos=False)) as ep:
            assert ep.metadata.get("success") is success
            assert ep.metadata["ended"] == "terminated"

    def test_a_function_gets_the_last_info_the_return_and_the_length(self, tmp_path: Path) -> None:
        got: list[dict[str, Any]] = []

        def add(facts: dict[str, Any]) -> dict[str, Any]:
            got.append(facts)
            return {"score": facts["return"], "success": "perhaps"}

        infos = [{}, {"x": 1}, {"x": 2, "is_success": True}]
        path = told(tmp_path, infos, infos=False, metadata=add)
        (facts,) = got
        assert facts["info"] == infos[-1]
        assert (facts["return"], facts["length"]) == (1 / 3 + 2 / 3, 2)
        assert (facts["ended"], facts["success"], facts["episode"]) == ("terminated", True, 0)
        with load_wshard(path) as ep:
            assert (ep.metadata["score"], ep.metadata["success"]) == (1.0, "perhaps")

    def test_a_mapping_still_works_and_has_the_last_word(self, tmp_path: Path) -> None:
        infos = [{}, {"success": True}]
        path = told(tmp_path, infos, infos=False, metadata={"success": "by hand", "a": 1})
        with load_wshard(path) as ep:
            assert (ep.metadata["success"], ep.metadata["a"]) == ("by hand", 1)

    @pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
    def test_vectors_do_the_same(self, mode: AutoresetMode, tmp_path: Path) -> None:
        ends = [[{}, {"x": 1.0}, {"x": 2.0, "success": won}] for won in (True, False)]
        envs = RecordVectorEpisodes(
            SyncVectorEnv([lambda one=one: Told(one) for one in ends], autoreset_mode=mode),  # type: ignore[misc]
            tmp_path,
            name="{env}-{episode}",
            metadata=lambda facts: {"x": facts["info"]["x"], "return": facts["return"]},
            **split({"infos": True}),
        )
        envs.reset()
        for _ in range(2):
            envs.step(np.zeros(2, np.int64))
        envs.close()
        for number, won in enumerate((True, False)):
            with load_wshard(next(tmp_path.glob(f"{number}-*.wshard"))) as ep:
                assert ep.metadata["success"] is won
                assert (ep.metadata["x"], ep.metadata["return"]) == (2.0, 1.0)
                np.testing.assert_array_equal(ep.observations["info/x"].data, [np.nan, 1, 2])
                assert ep.observations["info/x"].layout == "dense"


class TestUnfinished:
    """Nothing is lost, and nothing appears that is not whole."""

    def test_closing_in_the_middle_keeps_the_journal(self, tmp_path: Path) -> None:
        rollout = play(cartpole(), 5)[0]
        with record(cartpole(), tmp_path) as env:
            play(env, 5)
        assert files(tmp_path) == ["000000.wshard.partial"]
        recovery = recover(tmp_path / "000000.wshard.partial")
        assert (recovery.steps, recovery.lost_data) == (5, False)
        with load_wshard(tmp_path / "000000.wshard") as ep:
            np.testing.assert_array_equal(
                ep.observations["observation"].data, rollout.observations[:5]
            )
            np.testing.assert_array_equal(ep.actions["action"].data, rollout.actions)
            assert ep.metadata["seed"] == 3

    def test_an_error_of_the_environment_leaves_all_steps_before_it(self, tmp_path: Path) -> None:
        class Failing(Everything):
            def step(self, action: Any) -> Any:  # noqa: ANN401 - an action
                if self._left == 4:
                    raise RuntimeError("the robot fell")
                return super().step(action)

        env = record(Failing(), tmp_path)
        env.reset()
        for _ in range(3):
            env.step(env.action_space.sample())
        with pytest.raises(RuntimeError, match="fell"):
            env.step(env.action_space.sample())
        with open_partial(tmp_path / "000000.wshard") as ep:
            assert ep.length == 3
            text = ep.observations["pair/1"].data[0]
        assert text == env.unwrapped.log[0][0]["pair"][1]  # type: ignore[attr-defined]
        env.close()
        assert files(tmp_path) == ["000000.wshard.partial"]

    def test_a_killed_process_loses_no_flushed_step(self, tmp_path: Path) -> None:
        script = f"""
            import os, signal, gymnasium
            from wshard.gym import RecordEpisodes
            env = RecordEpisodes(gymnasium.make("CartPole-v1"), {str(tmp_path)!r})
            env.reset(seed=3)
            for step in range(6):
                env.step(step % 2)
            env._recorder.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        """
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False)
        assert done.returncode == -signal.SIGKILL
        assert recover(tmp_path / "000000.wshard.partial").steps == 6

    def test_a_reset_ends_an_episode_early(self, tmp_path: Path) -> None:
        with record(cartpole(), tmp_path) as env:
            env.reset(seed=1)
            env.step(0)
            env.reset(seed=2)
            env.reset(seed=3)
        assert files(tmp_path) == ["000000.wshard"]
        with load_wshard(tmp_path / "000000.wshard") as ep:
            assert (ep.length, len(ep.observations["observation"])) == (1, 2)
            assert ep.metadata["ended"] == "reset"
            assert ep.dones is not None
            assert not ep.dones.any()

    def test_names_that_are_taken_are_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "000000.wshard").write_bytes(b"mine")
        (tmp_path / "000001.wshard.partial").write_bytes(b"mine too")
        with record(cartpole(max_episode_steps=1), tmp_path) as env:
            env.reset()
            env.step(0)
        assert files(tmp_path) == ["000000.wshard", "000001.wshard.partial", "000002.wshard"]
        assert (tmp_path / "000000.wshard").read_bytes() == b"mine"

    def test_two_recorders_share_a_folder(self, tmp_path: Path) -> None:
        one, two = (record(cartpole(max_episode_steps=2), tmp_path) for _ in range(2))
        for env in (one, two):
            env.reset()
        for _ in range(2):
            for env in (one, two):
                env.step(0)
        assert files(tmp_path) == ["000000.wshard", "000001.wshard"]

    def test_recording_leaves_no_open_files_and_threads(self, tmp_path: Path) -> None:
        before = os.listdir("/proc/self/fd")
        with record(cartpole(max_episode_steps=3), tmp_path) as env:
            play(env, 30)
        assert len(os.listdir("/proc/self/fd")) == len(before)

    def test_a_value_that_does_not_fit_stops_the_recording_at_the_last_good_step(
        self, tmp_path: Path
    ) -> None:
        class Wrong(gymnasium.Wrapper[Any, Any, Any, Any]):
            def step(self, action: Any) -> Any:  # noqa: ANN401 - an action
                observation, *rest = super().step(action)
                return (observation[:2] if action == 1 else observation, *rest)

        env = record(Wrong(cartpole(disable_env_checker=True)), tmp_path)
        env.reset()
        env.step(0)
        with pytest.raises(
            InvalidArgument, match=r"does not fit its space.*\[4\].*\[2\]"
        ) as caught:
            env.step(1)
        assert caught.value.entry == "observation"
        with pytest.raises(InvalidArgument, match="no episode"):
            env.step(0)
        assert recover(tmp_path / "000000.wshard.partial").steps == 1
        env.reset()
        env.close()


class TestArguments:
    """What cannot work is refused when the recorder is made."""

    @pytest.mark.parametrize(
        "space", [spaces.Sequence(spaces.Discrete(2)), spaces.Graph(spaces.Discrete(2), None)]
    )
    def test_spaces_of_no_fixed_size(self, space: spaces.Space[Any], tmp_path: Path) -> None:
        env = Everything()
        env.observation_space = spaces.Dict({"inner": space})
        with pytest.raises(InvalidArgument, match="cannot record this space") as caught:
            record(env, tmp_path)
        assert caught.value.entry == "inner"

    @pytest.mark.parametrize(
        ("options", "match"),
        [
            ({"name": "same"}, "same name"),
            ({"name": "{episode}-{other}"}, "cannot make names"),
            ({"name": "{episode}-{seed:d}"}, "cannot make names"),
            ({"render": True}, "does not render"),
            ({"channels": {"legs": {}}}, "unknown channel"),
        ],
    )
    def test_options(self, options: dict[str, Any], match: str, tmp_path: Path) -> None:
        with pytest.raises(InvalidArgument, match=match):
            record(cartpole(), tmp_path, **options)

    def test_a_step_needs_a_reset(self, tmp_path: Path) -> None:
        with record(cartpole(max_episode_steps=1), tmp_path) as env:
            env.reset()
            env.step(0)
            with pytest.raises(InvalidArgument, match="no episode is being recorded"):
                env.step(0)

    def test_a_folder_that_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        env = record(cartpole(), tmp_path / "file" / "folder")
        with pytest.raises(ShardIOError):
            env.reset()

    def test_rewards_are_numbers(self, tmp_path: Path) -> None:
        class Many(Everything):
            def step(self, action: Any) -> Any:  # noqa: ANN401 - an action
                observation, _, *rest = super().step(action)
                return (observation, np.zeros(2), *rest)

        with record(Many(), tmp_path) as env:
            env.reset()
            with pytest.raises(InvalidArgument, match="one number"):
                env.step(env.action_space.sample())

    @pytest.mark.parametrize("said", ["\ud800", 7])
    def test_texts_can_be_stored(self, said: object, tmp_path: Path) -> None:
        with record(Everything(), tmp_path) as env:
            env.reset()
            with pytest.raises(InvalidArgument) as caught:
                env.step({"arm": np.zeros(2), "say": said})
        assert caught.value.entry == "say"

    def test_texts_may_be_longer_than_their_space_says(self, tmp_path: Path) -> None:
        inner = Everything(steps=2)
        inner.action_space = spaces.Dict({"say": spaces.Text(4, charset=LETTERS)})
        said = "☃" * 5000
        env = record(inner, tmp_path)
        env.reset()
        env.step({"say": said})
        env.close()
        recover(tmp_path / "000000.wshard.partial", fsync=False)
        with load_wshard(tmp_path / "000000.wshard") as ep:
            assert ep.actions["say"].data == [said]

    def test_the_clock_may_be_given(self, tmp_path: Path) -> None:
        with record(cartpole(max_episode_steps=1), tmp_path, timebase=Timebase(tick_hz=7)) as env:
            env.reset()
            env.step(0)
        assert load_wshard(tmp_path / "000000.wshard").timebase.tick_hz == 7

    def test_an_environment_without_a_rate_gives_episodes_without_one(self, tmp_path: Path) -> None:
        inner = Everything(1)
        inner.metadata = {"render_modes": ["rgb_array"]}
        with record(inner, tmp_path) as env:
            env.reset()
            env.step(env.action_space.sample())
        assert load_wshard(tmp_path / "000000.wshard").timebase.tick_hz is None

    def test_without_gymnasium_the_error_says_what_to_install(self) -> None:
        script = (
            "import sys; sys.modules['gymnasium'] = None; import wshard, wshard.replay, wshard.gym"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=False
        )
        assert "pip install 'shard-format[gym]'" in done.stderr


def reference(number: int, seed: int, actions: list[int], mode: AutoresetMode) -> list[Rollout]:
    """What one of many environments does, played alone."""
    env = cartpole(max_episode_steps=12)
    rollouts = [Rollout([np.copy(env.reset(seed=seed + number)[0])])]
    is_over = False
    for action in actions:
        if is_over and mode is AutoresetMode.NEXT_STEP:
            rollouts.append(Rollout([np.copy(env.reset()[0])]))
            is_over = False
            continue  # the action of this step does nothing
        observation, reward, terminated, truncated, _ = env.step(action)
        rollouts[-1].add(action, observation, float(reward), terminated, truncated)
        is_over = terminated or truncated
        if is_over and mode is not AutoresetMode.NEXT_STEP:
            rollouts.append(Rollout([np.copy(env.reset()[0])]))
    return rollouts


def many(
    count: int, mode: AutoresetMode, make: Callable[[], Env] | None = None
) -> SyncVectorEnv[Any, Any]:
    return SyncVectorEnv(
        [make or (lambda: cartpole(max_episode_steps=12))] * count, autoreset_mode=mode
    )


@pytest.mark.parametrize("mode", AutoresetMode)
class TestVectors:
    """Many environments at once, whatever they do when one of them is over."""

    def test_every_episode_is_what_its_environment_does_alone(
        self, mode: AutoresetMode, tmp_path: Path
    ) -> None:
        count, steps, seed = 3, 60, 11
        actions = np.random.default_rng(2).integers(2, size=(steps, count))
        with_recorder = RecordVectorEpisodes(
            many(count, mode), tmp_path, name="{env}/{episode}", **split({})
        )
        plain = many(count, mode)
        for envs in (with_recorder, plain):
            envs.reset(seed=seed)
        for row in actions:
            got, expected = with_recorder.step(row), plain.step(row)
            for ours, theirs in zip(got[:4], expected[:4], strict=True):
                np.testing.assert_array_equal(ours, theirs)
            over = got[2] | got[3]
            if mode is AutoresetMode.DISABLED and over.any():
                for envs in (with_recorder, plain):
                    envs.reset(options={"reset_mask": over.copy()})
        with_recorder.close()
        for number in range(count):
            expected_rollouts = reference(number, seed, actions[:, number].tolist(), mode)
            folder = tmp_path / str(number)
            found = sorted(folder.glob("*.wshard"), key=lambda path: int(path.stem))
            finished = [r for r in expected_rollouts if any(r.terminated) or any(r.truncated)]
            assert len(found) == len(finished) >= 3
            for path, rollout in zip(found, finished, strict=True):
                with load_wshard(path) as ep:
                    check(ep, rollout)
                    assert ep.metadata["env_index"] == number
                    first = path is found[0]
                    assert ep.metadata["seed"] == (seed + number if first else None)
            # The episode that was not over: all of its steps are in the journal.
            rest = expected_rollouts[-1] if expected_rollouts[-1] not in finished else None
            partials = list(folder.glob("*.partial"))
            if rest is not None and rest.actions:
                with open_partial(partials[0]) as ep:
                    np.testing.assert_array_equal(ep.actions["action"].data, rest.actions)
            else:
                assert partials == []

    def test_spaces_texts_infos_and_frames(self, mode: AutoresetMode, tmp_path: Path) -> None:
        made: list[Everything] = []

        def make() -> Env:
            made.append(Everything(steps=3 + len(made), render_mode="rgb_array"))
            return made[-1]

        envs = RecordVectorEpisodes(
            many(2, mode, make),
            tmp_path,
            name="{env}-{episode}",
            render=True,
            **split({"infos": True}),
        )
        envs.action_space.seed(0)
        envs.reset(seed=[5, 6], options={"hard": True})
        for _ in range(4):
            _, _, terminated, _, _ = envs.step(envs.action_space.sample())
            if mode is AutoresetMode.DISABLED and terminated.any():
                envs.reset(options={"reset_mask": terminated})
        envs.close()
        for number, inner in enumerate(made):
            log = inner.log[: 4 + number]
            seen = [entry[0] if len(entry) == 2 else entry[1] for entry in log]
            with load_wshard(next(tmp_path.glob(f"{number}-*.wshard"))) as ep:
                assert ep.metadata["options"] == {"hard": True}
                assert ep.metadata["seed"] == 5 + number
                assert ep.length == 3 + number
                assert ep.observations["pair/1"].data == [o["pair"][1] for o in seen]
                np.testing.assert_array_equal(ep.observations["rgb"].data, [o["rgb"] for o in seen])
                assert ep.actions["say"].data == [entry[0]["say"] for entry in log[1:]]
                assert ep.observations["info/left"].data.tolist() == list(range(3 + number, -1, -1))
                assert ep.observations["info/name"].data[-1] == "step 0"
                frames = ep.observations["render"].data[:, 0, 0, 0].tolist()
                last = [] if mode is AutoresetMode.SAME_STEP else [0]
                assert frames == [*range(3 + number, 0, -1), *last]


class TestVectorArguments:
    """What a vector environment may say about itself."""

    def test_without_a_mode_it_resets_with_the_next_step(self, tmp_path: Path) -> None:
        envs = many(1, AutoresetMode.NEXT_STEP)
        del envs.metadata["autoreset_mode"]
        assert RecordVectorEpisodes(envs, tmp_path)._mode == "NextStep"
        assert (
            RecordVectorEpisodes(envs, tmp_path, **split({"autoreset_mode": "Disabled"}))._mode
            == "Disabled"
        )
        with pytest.raises(InvalidArgument, match="unknown autoreset mode"):
            RecordVectorEpisodes(envs, tmp_path, **split({"autoreset_mode": "sometimes"}))
        envs.close()

    def test_an_environment_that_hides_its_last_observation_is_refused(
        self, tmp_path: Path
    ) -> None:
        envs = many(1, AutoresetMode.NEXT_STEP, lambda: cartpole(max_episode_steps=1))
        envs.metadata["autoreset_mode"] = AutoresetMode.SAME_STEP
        recorder = RecordVectorEpisodes(envs, tmp_path, **split({}))
        recorder.reset()
        with pytest.raises(InvalidArgument, match="last observation"):
            recorder.step(np.array([0]))
        recorder.close()

    def test_environments_of_their_own_kind_are_recorded(self, tmp_path: Path) -> None:
        """CartPole's own vector version."""
        envs = gymnasium.make_vec(
            "CartPole-v1", num_envs=2, vectorization_mode="vector_entry_point"
        )
        recorder = RecordVectorEpisodes(envs, tmp_path, **split({}))
        recorder.reset(seed=0)
        for _ in range(40):
            recorder.step(np.array([0, 1]))
        recorder.close()
        found = sorted(tmp_path.glob("*.wshard"))
        assert found
        for path in found:
            with load_wshard(path) as ep:
                assert len(set(ep.actions["action"].data.tolist())) == 1
                assert ep.terminations is not None
                assert ep.terminations.data.tolist() == [False] * (ep.length - 1) + [True]
