"""ManiSkill trajectories, written with h5py and json as `RecordEpisode` of mani_skill 3.0.1 does; it wrote that of `test_real_hdf5` itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest

import wshard
import wshard.convert
from shard_format.errors import BadMetadata, UnsafePath
from wshard.types import Modality

if TYPE_CHECKING:
    from pathlib import Path

random = np.random.default_rng(3)


def maniskill_file(path: Path) -> None:
    facts: dict[str, Any] = {
        "env_info": {
            "env_id": "PickCube-v1",
            "env_kwargs": {"obs_mode": "rgbd", "limit": float("nan")},
            "max_episode_steps": 50,
        },
        "commit_info": {"commit": "abc"},
        "source_type": "motionplanning",
        "source_desc": "made by a planner",
        "episodes": [],
    }
    with h5py.File(path, "w", track_order=True) as file:
        for number, length in ((0, 4), (10, 3), (2, 5)):
            group = file.create_group(f"traj_{number}", track_order=True)
            camera = "obs/sensor_data/base_camera"
            rgb = random.integers(0, 255, (length + 1, 16, 16, 3), np.uint8)
            depth = random.integers(0, 999, (length + 1, 16, 16, 1), np.int16)
            group.create_dataset(f"{camera}/rgb", data=rgb, compression="gzip")
            group.create_dataset(f"{camera}/depth", data=depth, compression="gzip")
            group["obs/agent/qpos"] = random.normal(size=(length + 1, 9)).astype(np.float32)
            group["env_states/actors/cube"] = random.normal(size=(length + 1, 13))
            group["env_states/articulations/panda"] = random.normal(size=(length + 1, 31))
            group["actions"] = random.normal(size=(length, 7)).astype(np.float32)
            group["rewards"] = random.normal(size=length).astype(np.float32)
            for name in ("terminated", "success"):
                group[name] = np.arange(length) == length - 1
            for name in ("truncated", "fail"):
                group[name] = np.zeros(length, bool)
            facts["episodes"].append(
                {
                    "episode_id": number,
                    "episode_seed": 100 + number,
                    "control_mode": "pd_joint_pos",
                    "elapsed_steps": length,
                    "reset_kwargs": {"options": {"scale": 2}, "seed": 100 + number},
                    "success": True,
                    "fail": False,
                }
            )
    path.with_suffix(".json").write_text(json.dumps(facts))


def test_trajectories_are_read_by_number_with_one_more_observation(tmp_path: Path) -> None:
    maniskill_file(path := tmp_path / "trajectory.h5")
    assert wshard.convert.detect(str(path)).name == "maniskill"
    episodes = []
    for episode in wshard.convert.read(path):
        episodes.append(episode)
        with h5py.File(path) as file:
            group = file[episode.id]
            length = len(group["actions"])
            assert episode.length == length
            for name in ("sensor_data/base_camera/rgb", "agent/qpos"):
                assert episode.observations[name].length == length + 1
                np.testing.assert_array_equal(episode.observations[name].data, group["obs"][name])
            states = episode.observations["env_states/actors/cube"]
            np.testing.assert_array_equal(states.data, group["env_states/actors/cube"])
            np.testing.assert_array_equal(episode.actions["action"].data, group["actions"])
            assert episode.rewards is not None
            np.testing.assert_array_equal(episode.rewards.data, group["rewards"])
        assert episode.dones is not None
        assert episode.dones.tolist() == [False] * (length - 1) + [True]
        assert episode.truncations is not None
        assert not episode.truncations.data.any()
        assert episode.observations["info/success"].data.sum() == 1
        assert episode.observations["sensor_data/base_camera/rgb"].modality is Modality.RGB
        assert episode.observations["sensor_data/base_camera/depth"].modality is Modality.DEPTH
        assert not episode.lost
    assert [episode.id for episode in episodes] == ["traj_0", "traj_2", "traj_10"]
    assert [episode.metadata["seed"] for episode in episodes] == [100, 102, 110]
    metadata = episodes[0].metadata
    assert episodes[0].env_id == "PickCube-v1"
    assert metadata["success"] is True
    assert metadata["options"] == {"scale": 2}
    assert metadata["control_mode"] == "pd_joint_pos"
    assert metadata["dataset"]["env_info"]["max_episode_steps"] == 50
    assert metadata["dataset"]["source_type"] == "motionplanning"
    assert metadata["maniskill"]["fail"] is False


def test_a_folder_of_files_is_read_with_the_descriptions_beside_them(tmp_path: Path) -> None:
    (tmp_path / "rl").mkdir()
    for name in ("a", "b"):
        maniskill_file(tmp_path / "rl" / f"{name}.h5")
    with h5py.File(tmp_path / "rl" / "other.h5", "w") as file:
        file["statistics"] = np.zeros(3)
    one = [episode.metadata for episode in wshard.convert.read(tmp_path / "rl" / "a.h5")]
    found = list(wshard.convert.read(tmp_path / "rl"))
    assert [episode.id for episode in found] == [
        f"{name}/traj_{number}" for name in ("a", "b") for number in (0, 2, 10)
    ]
    assert [episode.metadata for episode in found] == [*one, *one]
    assert {change.field for change in found[0].lost} == {"other.h5"}


def test_trajectories_become_episodes_of_ours(tmp_path: Path) -> None:
    maniskill_file(path := tmp_path / "trajectory.h5")
    wshard.convert.write(wshard.convert.read(path), tmp_path / "ours", "wshard")
    for before, after in zip(
        wshard.convert.read(path), wshard.convert.read(tmp_path / "ours"), strict=True
    ):
        assert before.metadata == after.metadata
        assert {name: channel.shape for name, channel in before.blocks()} == {
            name: channel.shape for name, channel in after.blocks()
        }
        for name, channel in before.blocks():
            np.testing.assert_array_equal(channel.data, after.find(name).data)


def test_arrays_instead_of_groups_and_no_json_file(tmp_path: Path) -> None:
    with h5py.File(path := tmp_path / "x.h5", "w") as file:
        file["traj_0/obs"] = np.zeros((3, 4))
        file["traj_0/actions/arm"] = np.zeros((2, 4))
        file["traj_0/actions/gripper"] = np.zeros((2, 1))
        file["traj_0/terminated"] = np.array([0, 1])
        file["version"] = 3
        file.attrs["made_by"] = "a script"
    (episode,) = wshard.convert.read(path)
    assert set(episode.observations) == {"observation"}
    assert set(episode.actions) == {"arm", "gripper"}
    assert {change.field for change in episode.lost} == {
        *("x.json", "version", "terminated", "the file's attributes")
    }


def test_hostile_files_are_refused(tmp_path: Path) -> None:
    with h5py.File(path := tmp_path / "x.h5", "w") as file:
        file["traj_0/actions"] = np.zeros((2, 4))
        file["traj_0/obs"] = h5py.ExternalLink("/etc/passwd", "/x")
        file["traj_1"] = h5py.ExternalLink("/etc/passwd", "/x")
    for number in range(2):
        with pytest.raises(UnsafePath, match=r"x\.h5"):
            list(wshard.convert.read(path, episodes=slice(number, number + 1)))
    maniskill_file(path)
    for text in ("[]", '{"episodes": {}}', "{"):
        path.with_suffix(".json").write_text(text)
        with pytest.raises(BadMetadata, match=r"x\.json"):
            list(wshard.convert.read(path))
