"""Episodes and windows as TensorDicts, and as the storage of TorchRL's replay buffers."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
import torch
from tensordict import NonTensorStack, TensorDict
from torchrl.data import SamplerWithoutReplacement
from torchrl.envs import GymEnv

from shard_format.errors import InvalidArgument
from shard_train import EpisodeDataset
from shard_train.tensordict import from_tensordict, read_windows, to_tensordict
from shard_train.torchrl import WindowStorage, replay_buffer
from tests.bridges.blocking import fails_without
from tests.shard_train.dataset_support import write_folder
from wshard import Episode, load_wshard, save_wshard

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STEPS = 6


def made(more: int = 1, **fields: Any) -> Episode:  # noqa: ANN401 - any part of an episode
    random = np.random.default_rng(0)
    given: dict[str, Any] = {
        "observations": {
            "wrist/rgb": random.integers(0, 9, (STEPS + more, 2, 2, 3), dtype=np.uint8),
            "state": random.normal(size=(STEPS + more, 4)).astype("f4"),
            "weights": random.normal(size=(STEPS + more, 2)).astype(ml_dtypes.bfloat16),
        },
        "actions": {"action": random.normal(size=(STEPS, 3)).astype("f4")},
        "rewards": random.normal(size=STEPS),
        "terminations": np.arange(STEPS) == STEPS - 1,
        "truncations": np.zeros(STEPS, bool),
    }
    return Episode("a", **{**given, **fields})


def rollout() -> TensorDict:
    """What an environment of TorchRL returns, put together by hand."""
    states = torch.arange(STEPS + 1.0).reshape(-1, 1) / 3
    states[2] = torch.nan
    no = torch.zeros(STEPS, 1, dtype=torch.bool)
    end = no.clone()
    end[-1] = True
    following = {"observation": states[1:], "reward": torch.rand(STEPS, 1)}
    return TensorDict(
        {
            "observation": states[:-1],
            "action": torch.rand(STEPS, 2),
            "done": no,
            "terminated": no,
            "truncated": no,
            "next": {**following, "done": end, "terminated": no, "truncated": end},
        },
        batch_size=[STEPS],
    )


def assert_same(found: TensorDict, wanted: TensorDict) -> None:
    keys = set(wanted.keys(include_nested=True, leaves_only=True))
    assert set(found.keys(include_nested=True, leaves_only=True)) == keys
    assert found.batch_size == wanted.batch_size
    for key in keys:
        assert found[key].dtype == wanted[key].dtype, key
        assert torch.equal(found[key].nan_to_num(7), wanted[key].nan_to_num(7)), key


class TestEpisodes:
    """Both ways."""

    def test_what_follows_each_step_is_exact(self) -> None:
        episode = made()
        td = to_tensordict(episode)
        assert td.batch_size == (STEPS,)
        state = episode.observations["state"].data
        assert np.array_equal(td["state"].numpy(), state[:-1])
        assert np.array_equal(td["next", "state"].numpy(), state[1:])
        assert td["next", "wrist", "rgb"].shape == (STEPS, 2, 2, 3)
        assert td["next", "reward"].shape == (STEPS, 1)
        assert td["next", "done"][:, 0].tolist() == [False] * (STEPS - 1) + [True]
        assert not td["done"].any()

    def test_observations_and_what_follows_share_their_memory(self) -> None:
        td = to_tensordict(made())
        step = td["state"].stride(0) * 4
        assert td["next", "state"].data_ptr() == td["state"].data_ptr() + step

    def test_bf16_is_that_of_torch(self) -> None:
        td = to_tensordict(made())
        assert td["weights"].dtype is torch.bfloat16
        wanted = made().observations["weights"].data[:-1].astype("f4")
        assert np.array_equal(td["weights"].float().numpy(), wanted)

    def test_the_way_back_is_exact(self, tmp_path: Path) -> None:
        save_wshard(made(), tmp_path / "a.wshard", profile="training")
        wanted = load_wshard(tmp_path / "a.wshard")
        found = from_tensordict(to_tensordict(wanted), "a")
        blocks, others = dict(wanted.blocks()), dict(found.blocks())
        assert others.keys() == blocks.keys()
        for block, channel in blocks.items():
            assert others[block].dtype_name == channel.dtype_name, block
            assert np.array_equal(others[block].data, channel.data), block
        save_wshard(found, tmp_path / "b.wshard")

    def test_a_rollout_becomes_an_episode_and_a_rollout_again(self) -> None:
        td = rollout()
        episode = from_tensordict(td, "a", env_id="Reach-v1", metadata={"seed": 3})
        assert (episode.length, episode.env_id, episode.metadata) == (
            STEPS,
            "Reach-v1",
            {"seed": 3},
        )
        assert episode.observations["observation"].length == STEPS + 1
        assert episode.rewards is not None
        assert episode.rewards.step_shape == ()
        assert_same(to_tensordict(episode), td)

    def test_what_an_environment_of_torchrl_returns_comes_back_the_same(self) -> None:
        td = GymEnv("Pendulum-v1").rollout(5)
        assert_same(to_tensordict(from_tensordict(td, "a")), td)

    def test_several_actions_lie_below_action(self) -> None:
        actions = {"arm": np.zeros((STEPS, 2), "f4"), "grip": np.ones(STEPS, bool)}
        td = to_tensordict(made(actions=actions))
        assert td["action", "arm"].shape == (STEPS, 2)
        assert from_tensordict(td, "a").actions.keys() == actions.keys()
        assert "action" in to_tensordict(made(actions={"ctrl": actions["arm"]}))

    def test_nothing_but_the_notes_of_collectors_is_left_out(self) -> None:
        td = rollout()
        td["log_prob"] = torch.rand(STEPS)
        td["collector", "traj_ids"] = torch.zeros(STEPS, dtype=torch.int64)
        td["next", "bonus"] = torch.rand(STEPS)
        episode = from_tensordict(td, "a")
        assert episode.actions.keys() == {"action", "log_prob"}
        assert episode.observations.keys() == {"observation", "next/bonus"}

    def test_without_the_last_observation_the_caller_decides(self) -> None:
        episode = made(more=0)
        with pytest.raises(InvalidArgument, match=r"expected 7 entries, found 6 entries"):
            to_tensordict(episode)
        state = episode.observations["state"].data
        dropped = to_tensordict(episode, last="drop")
        assert dropped.batch_size == (STEPS - 1,)
        assert np.array_equal(dropped["next", "state"].numpy(), state[1:])
        repeated = to_tensordict(episode, last="repeat")
        assert np.array_equal(repeated["next", "state"][-2:].numpy(), state[[-1, -1]])

    def test_what_an_episode_does_not_have_is_not_made_up(self) -> None:
        td = to_tensordict(made(rewards=None, terminations=None, truncations=None))
        assert ("next", "reward") not in td.keys(include_nested=True)
        assert not td["next", "done"].any()

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda td: td[[0, 2, 1, 3, 4, 5]], "what follows a step is not what the next one"),
            (lambda td: torch.cat([td, td]), r"an end at step 5 of 12"),
            (lambda td: torch.stack([td, td]), r"take one of them: td\[0\]"),
            (
                lambda td: td.set("note", NonTensorStack(*"abcdef")),
                r"entry 'note': not a tensor .* td.exclude\('note'\)",
            ),
        ],
    )
    def test_what_is_no_trajectory_is_refused(
        self, change: Callable[[TensorDict], TensorDict], message: str
    ) -> None:
        with pytest.raises(InvalidArgument, match=message):
            from_tensordict(change(rollout()), "a")

    def test_names_that_torchrl_uses_are_refused(self) -> None:
        for name in ("next", "action/x"):
            with pytest.raises(InvalidArgument, match=f"reserves the name '{name[:4]}"):
                to_tensordict(made(observations={name: np.zeros((STEPS + 1, 1))}))
        clashing = {"arm": np.zeros((STEPS + 1, 1)), "arm/left": np.zeros((STEPS + 1, 1))}
        with pytest.raises(InvalidArgument, match="the first part of another"):
            to_tensordict(made(observations=clashing))


class TestWindows:
    """Batches of windows, and replay buffers over them."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return write_folder(tmp_path / "runs", [9, 12])

    @pytest.fixture
    def ds(self, folder: Path) -> EpisodeDataset:
        return EpisodeDataset(
            folder, window=4, channels=["cam", "state", "ctrl"], next_observations=True
        )

    def test_a_batch_has_what_followed_each_step(self, ds: EpisodeDataset) -> None:
        td, arrays = read_windows(ds, [3, 1, 7]), ds.batch([3, 1, 7])
        assert td.batch_size == (3, 4)
        assert np.array_equal(td["cam"].numpy(), arrays["cam"][:, :-1])
        assert np.array_equal(td["next", "state"].numpy(), arrays["state"][:, 1:])
        assert np.array_equal(td["action"].numpy(), arrays["ctrl"])
        assert np.array_equal(td["next", "reward"][..., 0].numpy(), arrays["reward"])
        assert td["episode"][:, 0].tolist() == arrays["episode"].tolist()

    def test_windows_without_what_followed_are_refused(self, folder: Path) -> None:
        with pytest.raises(InvalidArgument, match="next_observations=True"):
            read_windows(EpisodeDataset(folder, window=4, channels=["state"]), [0])

    def test_a_replay_buffer_reads_a_batch_with_one_call(
        self, ds: EpisodeDataset, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[int] = []
        read = EpisodeDataset.batch

        def counted(self: EpisodeDataset, numbers: Any) -> Any:  # noqa: ANN401 - as it is
            asked.append(len(numbers))
            return read(self, numbers)

        monkeypatch.setattr(EpisodeDataset, "batch", counted)
        buffer = replay_buffer(ds, batch_size=5, seed=1)
        batch = buffer.sample()
        assert asked == [5]
        assert batch.batch_size == (5, 4)
        numbers = batch["index"][:, 0].numpy()
        assert np.array_equal(batch["state"].numpy(), read(ds, numbers)["state"][:, :-1])

    def test_the_same_seed_draws_the_same_windows(self, ds: EpisodeDataset) -> None:
        one, other = (replay_buffer(ds, batch_size=5, seed=1) for _ in range(2))
        for _ in range(3):
            assert_same(one.sample(), other.sample())

    def test_other_samplers_and_threads_that_read_ahead_work(self, ds: EpisodeDataset) -> None:
        buffer = replay_buffer(ds, batch_size=3, sampler=SamplerWithoutReplacement(), prefetch=2)
        found: list[int] = []
        for batch in buffer:
            found += batch["index"][:, 0].tolist()
        assert sorted(found) == list(range(len(ds)))

    def test_elements_are_windows(self, ds: EpisodeDataset) -> None:
        storage = WindowStorage(ds)
        assert len(storage) == storage.max_size == len(ds)
        assert storage[2].batch_size == (4,)
        assert storage[torch.tensor([2, 3])].batch_size == (2, 4)
        assert storage[1:4].batch_size == (3, 4)
        assert_same(storage[1:3][1], storage[2])
        assert 2 in storage
        assert len(ds) not in storage

    def test_nothing_is_written(self, ds: EpisodeDataset) -> None:
        storage, buffer = WindowStorage(ds), replay_buffer(ds, batch_size=2)
        with pytest.raises(InvalidArgument, match="read, not written"):
            storage[0] = storage[1]
        with pytest.raises(RuntimeError, match="doesn't allow writing"):
            buffer.extend(buffer.sample())
        with pytest.raises(RuntimeError, match="doesn't allow writing"):
            buffer.empty()

    def test_a_state_goes_with_its_dataset_only(self, ds: EpisodeDataset, folder: Path) -> None:
        state = replay_buffer(ds, batch_size=2).state_dict()
        replay_buffer(ds, batch_size=2).load_state_dict(state)
        other = EpisodeDataset(folder, window=5, next_observations=True)
        with pytest.raises(InvalidArgument, match="the state is of another dataset"):
            replay_buffer(other, batch_size=2).load_state_dict(state)

    def test_a_storage_opens_its_files_in_a_new_process(
        self, ds: EpisodeDataset, tmp_path: Path
    ) -> None:
        (tmp_path / "storage").write_bytes(pickle.dumps(WindowStorage(ds)))
        script = (
            "import pickle, pathlib, sys\n"
            "storage = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())\n"
            "print(repr(storage), storage[2]['state'].sum().item())"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / "storage")],
            capture_output=True,
            text=True,
            check=True,
        )
        storage = WindowStorage(ds)
        assert done.stdout == f"{storage!r} {storage[2]['state'].sum().item()}\n"


def test_without_tensordict_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for call in (
        lambda: to_tensordict(made()),
        lambda: from_tensordict(rollout(), "a"),
        lambda: read_windows(None, [0]),  # type: ignore[arg-type] # not looked at
    ):
        assert "shard-format[tensordict]" in fails_without(monkeypatch, "tensordict", call)


def test_without_torchrl_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchrl.data", None)
    assert "shard-format[torchrl]" in fails_without(monkeypatch, "torchrl", "shard_train.torchrl")
