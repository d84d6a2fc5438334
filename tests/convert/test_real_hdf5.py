"""HDF5 files in `fixtures/hdf5.zip`, which the code of each project wrote itself, with random actions:

- `robosuite.hdf5`: robosuite 1.5.2 with mujoco 3.3.0, `DataCollectionWrapper` and the script for human demonstrations
- `robomimic.hdf5`: the scripts of robomimic 0.5.0 on that file (conversion, observations, absolute actions, splits)
- `libero.hdf5`: LIBERO 0.1.0 on robosuite 1.4.1, its `create_dataset.py` with cameras of 16 x 16 pixels
- `mimicgen_source.hdf5`, `mimicgen.hdf5`: MimicGen 1.0.1 on robosuite 1.4.1, a prepared source and merged demos
- `isaaclab.hdf5`: `HDF5DatasetFileHandler` of Isaac Lab (March 2026), without a simulator
- `maniskill/`: `RecordEpisode` of mani_skill 3.0.1 on the CPU
- `d4rl.hdf5`: `collect_data.py` of D4RL (November 2024) with a small environment in place of MuJoCo
- `mobile_aloha.hdf5`: `record_episodes.py` of Mobile ALOHA (January 2024) with cameras and arms made up

The XML models of robosuite and the text of LIBERO's task were shortened, and folders cut from paths.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest

import wshard.convert
from tests.convert.test_robomimic import content

if TYPE_CHECKING:
    from wshard import Episode
    from wshard.convert import ConvertedEpisode

ROBOMIMIC = ("robosuite", "robomimic", "libero", "mimicgen_source", "mimicgen", "isaaclab")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("real")
    with zipfile.ZipFile(Path(__file__).parent / "fixtures" / "hdf5.zip") as archive:
        archive.extractall(folder)
    return folder


def first(path: Path) -> ConvertedEpisode:
    episodes = wshard.convert.read(path)
    episode = next(episodes)
    episode.load()
    return episode


@pytest.mark.parametrize("name", ROBOMIMIC)
def test_a_file_comes_back_with_every_array_attribute_and_type(
    name: str, files: Path, tmp_path: Path
) -> None:
    source, ours, back = files / f"{name}.hdf5", tmp_path / "ours", tmp_path / "back.hdf5"
    assert wshard.convert.detect(source).name == "robomimic"
    for episode in wshard.convert.read(source):
        assert not episode.lost
    wshard.convert.write(wshard.convert.read(source), ours, "wshard")
    wshard.convert.write(wshard.convert.read(ours), back, "robomimic")
    assert content(back) == content(source)


def test_robomimics_next_observations_become_one_more_step(files: Path) -> None:
    episodes = {episode.id: episode for episode in wshard.convert.read(files / "robomimic.hdf5")}
    assert {name: one.metadata["splits"] for name, one in episodes.items()} == {
        "demo_1": ["train"],
        "demo_2": ["1_demos", "valid"],
    }
    for episode in wshard.convert.read(files / "robomimic.hdf5"):
        with h5py.File(files / "robomimic.hdf5") as file:
            demo = file["data"][episode.id]
            for key in demo["obs"]:
                rows = episode.observations[key].data
                np.testing.assert_array_equal(rows[:-1], demo["obs"][key])
                np.testing.assert_array_equal(rows[1:], demo["next_obs"][key])
        assert {"action", "actions_abs", "action_dict/abs_rot_6d"} <= set(episode.actions)
        assert episode.env_id == "Lift"


def test_libero_states_its_task_its_rate_and_that_pictures_are_upside_down(files: Path) -> None:
    episode = first(files / "libero.hdf5")
    task = "pick the alphabet soup and place it in the basket"
    assert episode.metadata["task"] == task
    assert episode.observations["language_instruction"][:] == [task] * episode.length
    assert (episode.env_id, episode.timebase.tick_hz) == ("Libero_Floor_Manipulation", 20)
    assert "bottom to top" in episode.observations["agentview_rgb"].description
    assert set(episode.extras) == {"model_file", "init_state"}


def test_mimicgen_keeps_how_to_make_more_demos(files: Path) -> None:
    own = first(files / "mimicgen_source.hdf5").metadata["robomimic"]
    assert own["inner_attributes"] == {
        "datagen_info": {"env_interface_name": "MG_Stack", "env_interface_type": "robosuite"}
    }
    episode = first(files / "mimicgen.hdf5")
    assert episode.extras["src_demo_inds"].data.tolist() == [1, 0]
    assert episode.observations["datagen_info/object_poses/cubeA"].shape == (5, 4, 4)


def test_isaac_lab_states_its_rate_and_may_have_demos_without_steps(files: Path) -> None:
    episodes = list(wshard.convert.read(files / "isaaclab.hdf5"))
    assert [(one.id, one.length) for one in episodes] == [
        ("demo_0", 3),
        ("demo_1", 0),
        ("demo_2", 3),
        ("demo_17", 2),
    ]
    assert [one.metadata.get("success") for one in episodes] == [True, False, None, None]
    assert [one.metadata.get("seed") for one in episodes] == [42, 3, None, 9]
    assert {one.timebase.tick_hz for one in episodes} == {20}


def values(episode: Episode, lane: str) -> dict[str, Any]:
    return {name: channel.data for name, channel in getattr(episode, lane).items()}


def test_maniskill_has_what_record_episode_wrote(files: Path) -> None:
    path = files / "maniskill" / "trajectory.h5"
    assert wshard.convert.detect(path).name == "maniskill"
    rows = json.loads(path.with_suffix(".json").read_text())["episodes"]
    assert [row["success"] for row in rows] == [False, True, False]
    with h5py.File(path) as file:
        for row, episode in zip(rows, wshard.convert.read(path), strict=True):
            group, signals = file[f"traj_{row['episode_id']}"], values(episode, "observations")
            assert not episode.lost
            assert episode.length == row["elapsed_steps"]
            assert episode.metadata["seed"] == row["episode_seed"]
            assert episode.metadata["success"] is row["success"]
            assert episode.rewards is not None
            assert episode.terminations is not None
            assert episode.truncations is not None
            for name, found in (
                *((f"obs/{key}", signals[key]) for key in ("agent/qpos", "extra/is_grasped")),
                ("env_states/actors/cube", signals["env_states/actors/cube"]),
                ("success", signals["info/success"]),
                ("actions", episode.actions["action"].data),
                ("rewards", episode.rewards.data),
                ("terminated", episode.terminations.data),
                ("truncated", episode.truncations.data),
            ):
                np.testing.assert_array_equal(found, group[name], name)
                assert found.dtype == group[name].dtype


def test_d4rl_has_the_steps_of_every_trajectory(files: Path) -> None:
    path = files / "d4rl.hdf5"
    assert wshard.convert.detect(path).name == "d4rl"
    at = 0
    with h5py.File(path) as file:
        for episode in wshard.convert.read(path):
            part = slice(at, at + episode.length)
            rows = episode.observations["observation"].data
            np.testing.assert_array_equal(rows[:-1], file["observations"][part])
            np.testing.assert_array_equal(rows[1:], file["next_observations"][part])
            np.testing.assert_array_equal(episode.actions["action"].data, file["actions"][part])
            for key in ("qpos", "qvel", "action_log_probs"):
                found = episode.observations[f"info/{key}"].data
                np.testing.assert_array_equal(found, file[f"infos/{key}"][part])
            ends = file["terminals"][part] | file["timeouts"][part]
            # The script cuts what it recorded after 40 steps, within a trajectory.
            assert np.flatnonzero(ends).tolist() == ([episode.length - 1] if part.stop < 40 else [])
            assert episode.metadata["dataset"]["metadata/algorithm"] == "SAC"
            assert [change.field for change in episode.lost] == ["metadata/policy/fc1/weight"]
            at += episode.length
        assert at == len(file["terminals"])


def test_mobile_aloha_has_channels_in_the_order_that_was_recorded(files: Path) -> None:
    episode = first(files / "mobile_aloha.hdf5")
    assert wshard.convert.detect(files / "mobile_aloha.hdf5").name == "aloha"
    # The recorder was given a ramp as channel 0, and one value as each of the others.
    for camera, base in (("cam_high", 0), ("cam_left_wrist", 40)):
        pictures = episode.observations[f"images/{camera}"].data
        assert pictures.shape == (3, 480, 640, 3)
        for step, picture in enumerate(pictures):
            for channel in (1, 2):
                middle = np.median(picture[..., channel])
                assert abs(middle - (base + 10 * step + 30 * channel)) <= 8
        assert np.ptp(pictures[..., 0]) > 200
    assert set(episode.actions) == {"action", "base_action"}
    dropped = [change.field for change in episode.changes if change.kind == "dropped"]
    assert dropped == ["compress_len"]
