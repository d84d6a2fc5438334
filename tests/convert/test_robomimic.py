"""robomimic files and what has their layout: as robomimic, LIBERO, MimicGen, robosuite and Isaac Lab write them with h5py."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest

import wshard
import wshard.convert
from shard_format.errors import BadValue, LimitExceeded, ShardError, UnsafePath
from wshard import Channel, Episode, Timebase
from wshard.convert._model import Probe
from wshard.convert._registry import format_named, module_of
from wshard.types import Modality, RaggedChannel, TextChannel

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ENV_ARGS = {"env_name": "Lift", "type": 1, "env_kwargs": {"control_freq": 20, "robots": ["Panda"]}}
random = np.random.default_rng(7)


def robomimic_file(path: Path) -> None:
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps(ENV_ARGS, indent=4)
        for number, length in ((0, 3), (2, 5), (10, 4)):
            demo = data.create_group(f"demo_{number}")
            pictures = random.integers(0, 255, (length + 1, 84, 84, 3), np.uint8)
            joints = random.normal(size=(length + 1, 7))
            joints[1, 2] = np.nan
            other = random.normal(size=(length + 1, 14))
            for group, part in (("obs", slice(0, length)), ("next_obs", slice(1, None))):
                demo.create_dataset(
                    f"{group}/agentview_image", data=pictures[part], compression="gzip"
                )
                demo[f"{group}/robot0_joint_pos"] = joints[part]
                demo[f"{group}/object"] = other[part]
            # A writer that adds noise: next_obs no longer repeats obs.
            demo["next_obs/object"][0] += 1
            demo["obs/agentview_depth"] = random.normal(size=(length, 84, 84, 1)).astype(np.float32)
            demo["actions"] = random.normal(size=(length, 7))
            demo["actions_abs"] = random.normal(size=(length, 7))
            demo["action_dict/rel_pos"] = random.normal(size=(length, 3)).astype(np.float32)
            demo["rewards"] = random.normal(size=length)
            demo["dones"] = np.eye(length, dtype=np.int64)[-1]
            demo["states"] = random.normal(size=(length, 32))
            demo.attrs["num_samples"] = length
            demo.attrs["model_file"] = "<mujoco>" + "x" * 100_000 + "</mujoco>"
            demo.attrs["ep_meta"] = json.dumps({"lang": f"lift cube {number}", "scale": 1.0})
            demo.attrs["camera_info"] = json.dumps({"agentview": {"intrinsics": [[1.5, 0.0]]}})
        data.attrs["total"] = 12
        file["mask/train"] = np.array(["demo_0", "demo_10"], dtype="S")
        file["mask/valid"] = np.array(["demo_2"], dtype="S")
        file["mask/none"] = np.array([], dtype="S")


def libero_file(path: Path) -> None:
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_name"] = "Libero_Kitchen_Tabletop_Manipulation"
        data.attrs["problem_info"] = json.dumps({"language_instruction": "open the drawer"})
        data.attrs["bddl_file_name"] = "a/b.bddl"
        data.attrs["bddl_file_content"] = "(define (problem …))"
        data.attrs["macros_image_convention"] = "opengl"
        data.attrs["env_args"] = json.dumps({"type": 1, "env_kwargs": {"control_freq": 20}})
        for number in range(2):
            demo = data.create_group(f"demo_{number}")
            demo["obs/agentview_rgb"] = random.integers(0, 255, (6, 32, 32, 3), np.uint8)
            demo["obs/ee_states"] = random.normal(size=(6, 6))
            demo["actions"] = random.normal(size=(6, 7))
            demo["states"] = random.normal(size=(6, 20))
            demo["robot_states"] = random.normal(size=(6, 9))
            demo["rewards"] = demo["dones"] = np.eye(6, dtype=np.uint8)[-1]
            demo.attrs["num_samples"] = 6
            demo.attrs["model_file"] = "<mujoco/>"
            demo.attrs["init_state"] = random.normal(size=20)
        data.attrs["num_demos"] = 2
        data.attrs["total"] = 12


def mimicgen_file(path: Path) -> None:
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps(ENV_ARGS)
        demo = data.create_group("demo_0")
        demo["actions"] = random.normal(size=(4, 7))
        demo["states/articulation"] = random.normal(size=(4, 9))
        demo["obs/states"] = random.normal(size=(4, 9))
        demo["datagen_info/eef_pose"] = random.normal(size=(4, 4, 4))
        demo["datagen_info/object_poses/cube"] = random.normal(size=(4, 4, 4))
        demo["datagen_info/subtask_term_signals/grasp"] = np.arange(4) // 2
        # As many subtasks as steps: still no steps.
        demo["src_demo_inds"] = np.array([3, 1, 4, 1])
        demo["src_demo_labels"] = np.array([[3], [1], [4], [1]])
        demo["note"] = "one text"
        demo["obs/said"] = ["a", "b", "", "ü"]
        demo["scale"] = np.float32(2)
        demo.attrs["num_samples"] = np.int32(4)
        demo.attrs["quality"] = 1.0
        data.attrs["total"] = 4


def robosuite_file(path: Path) -> None:
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["date"] = "1 1 2026"
        data.attrs["repository_version"] = "1.5.2"
        data.attrs["env"] = "Lift"
        data.attrs["env_info"] = json.dumps({"env_name": "Lift", "control_freq": 20})
        for number in (1, 2):
            demo = data.create_group(f"demo_{number}")
            demo.attrs["model_file"] = "<mujoco/>"
            demo["states"] = random.normal(size=(3, 32))
            demo["actions"] = random.normal(size=(3, 7))


def isaaclab_file(path: Path) -> None:
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps({"env_name": "Isaac-Stack-v0", "type": 2})
        for number in range(2):
            demo = data.create_group(f"demo_{number}")
            demo.attrs["num_samples"] = 5
            demo.attrs["seed"] = 42 + number
            demo.attrs["success"] = bool(number)
            for name, rows in (
                ("actions", 5),
                ("processed_actions", 5),
                ("obs/actions", 5),
                ("obs/eef_pos", 5),
                ("initial_state/articulation/robot/root_pose", 1),
                ("states/articulation/robot/root_pose", 5),
            ):
                values = random.normal(size=(rows, 7)).astype(np.float32)
                demo.create_dataset(name, data=values, compression="gzip")
        data.attrs["total"] = 10


FILES: dict[str, Callable[[Path], None]] = {
    "robomimic": robomimic_file,
    "libero": libero_file,
    "mimicgen": mimicgen_file,
    "robosuite": robosuite_file,
    "isaaclab": isaaclab_file,
}


def content(path: Path) -> dict[str, Any]:
    """Every dataset and attribute of a file as something that can be compared."""
    found: dict[str, Any] = {}

    def plain(value: Any) -> Any:  # noqa: ANN401 - of an attribute or dataset
        array = np.asarray(value)
        if array.dtype.hasobject:
            return array.tolist()
        return array.dtype.str, array.shape, array.tobytes()

    def look(name: str, item: Any) -> None:  # noqa: ANN401 - of h5py
        if isinstance(item, h5py.Dataset):
            found[name] = plain(item[()])
        for key, value in item.attrs.items():
            found[f"{name}@{key}"] = value if isinstance(value, str) else plain(value)

    with h5py.File(path) as file:
        file.visititems(look)
    return found


@pytest.mark.parametrize("kind", FILES)
def test_a_file_comes_back_as_it_was(kind: str, tmp_path: Path) -> None:
    source, ours, back = tmp_path / "in.hdf5", tmp_path / "ours", tmp_path / "back.hdf5"
    FILES[kind](source)
    wshard.convert.write(wshard.convert.read(source), ours, "wshard")
    report = wshard.convert.write(wshard.convert.read(ours), back, "robomimic")
    assert content(back) == content(source)
    assert not list(report.of_kind("dropped", "cast", "reordered"))


@pytest.mark.parametrize("kind", FILES)
def test_the_layout_is_recognised(kind: str, tmp_path: Path) -> None:
    FILES[kind](tmp_path / "x")
    expected = "robomimic"
    assert wshard.convert.detect(str(tmp_path / "x")).name == expected


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["data/demo_0/actions"], "robomimic"),
        (["data/demo_0/actions", "data/demo_0/initial_state/x"], "robomimic"),
        (["traj_0/actions", "traj_0/obs"], "maniskill"),
        (["action", "observations/qpos"], "aloha"),
        (["action", "observations/images/top"], "aloha"),
        (["actions", "observations", "rewards", "terminals"], None),
        (["episode_0/actions", "episode_0/observations"], None),
        (["data/x/actions"], None),
        (["data"], None),
        (["traj_x"], None),
        (["action", "observations"], None),
        ([], None),
    ],
)
def test_layouts_are_told_apart(names: list[str], expected: str | None, tmp_path: Path) -> None:
    with h5py.File(path := tmp_path / "episode_0.hdf5", "w") as file:
        for name in names:
            file[name] = np.zeros((2, 3))
    probe = Probe(str(path))
    formats = ("robomimic", "maniskill", "aloha")
    taken = [name for name in formats if module_of(format_named(name)).recognises(probe)]
    assert taken == ([] if expected is None else [expected])


def test_demos_are_read_by_number_with_all_that_they_say(tmp_path: Path) -> None:
    robomimic_file(path := tmp_path / "demo.hdf5")
    episodes = list(wshard.convert.read(path))
    assert [episode.id for episode in episodes] == ["demo_0", "demo_2", "demo_10"]
    assert [episode.metadata["splits"] for episode in episodes] == [["train"], ["valid"], ["train"]]
    reading = wshard.convert.read(path, episodes=slice(1, 2))
    episode = next(reading)
    with h5py.File(path) as file:
        demo = file["data/demo_2"]
        for key in ("agentview_image", "robot0_joint_pos"):
            array = episode.observations[key].data
            assert array.shape[0] == 6
            np.testing.assert_array_equal(array[:-1], demo["obs"][key])
            np.testing.assert_array_equal(array[1:], demo["next_obs"][key])
        for key in ("object", "next_obs/object"):
            path_there = key if "/" in key else f"obs/{key}"
            np.testing.assert_array_equal(episode.observations[key].data, demo[path_there])
        np.testing.assert_array_equal(episode.actions["action"].data, demo["actions"])
        assert bytes(episode.extras["model_file"].data).decode() == demo.attrs["model_file"]
    assert (episode.env_id, episode.length, episode.timebase.tick_hz) == ("Lift", 5, 20)
    assert {"actions_abs", "action_dict/rel_pos"} <= set(episode.actions)
    assert episode.rewards is not None
    assert episode.rewards.dtype == np.float64
    assert episode.terminations is not None
    assert episode.terminations.data.tolist() == [False] * 4 + [True]
    assert episode.observations["agentview_image"].modality is Modality.RGB
    assert episode.observations["agentview_depth"].modality is Modality.DEPTH
    assert episode.metadata["task"] == "lift cube 2"
    assert episode.observations["language_instruction"][:] == ["lift cube 2"] * 5
    assert episode.metadata["camera_info"] == {"agentview": {"intrinsics": [[1.5, 0.0]]}}
    assert json.loads(episode.metadata["dataset"]["env_args"]) == ENV_ARGS
    assert not episode.lost


def test_liberos_task_and_upside_down_pictures_are_told(tmp_path: Path) -> None:
    libero_file(path := tmp_path / "task_demo.hdf5")
    episode = next(wshard.convert.read(path))
    assert episode.metadata["task"] == "open the drawer"
    assert "bottom to top" in episode.observations["agentview_rgb"].description
    assert episode.rewards is not None
    assert episode.rewards.dtype == np.uint8
    assert episode.extras["init_state"].data.shape == (20,)
    assert set(episode.observations) >= {"states", "robot_states", "ee_states"}


def test_a_folder_with_a_file_for_each_task_is_one_dataset(tmp_path: Path) -> None:
    folder = tmp_path / "libero_goal"
    folder.mkdir()
    for name in ("task_10", "task_2", "task_1"):
        libero_file(folder / f"{name}.hdf5")
    libero_file(folder / "task_1.h5")
    (folder / "task_2.hdf5").write_bytes((folder / "task_2.hdf5").read_bytes()[:3000])
    (folder / "README.md").write_text("ten tasks")
    assert wshard.convert.detect(folder).name == "robomimic"
    open_files = set[int]()
    found = []
    for episode in wshard.convert.read(folder, on_error="skip"):
        found.append(episode.id)
        open_files.add(len(h5py.h5f.get_obj_ids(types=h5py.h5f.OBJ_FILE)))
        assert episode.actions["action"].shape == (6, 7)
        assert episode.metadata["task"] == "open the drawer"
        assert "README.md" in {change.field for change in episode.lost}
    assert found == [
        *("task_1.h5/demo_0", "task_1.h5/demo_1", "task_1.hdf5/demo_0", "task_1.hdf5/demo_1"),
        *("task_10.hdf5/demo_0", "task_10.hdf5/demo_1"),
    ]
    assert open_files == {1}
    with pytest.raises(BadValue, match=r"task_2\.hdf5"):
        list(wshard.convert.read(folder))


def test_a_folder_of_files_is_converted_by_several_processes(tmp_path: Path) -> None:
    folder = tmp_path / "libero_goal"
    folder.mkdir()
    for name in ("drawer", "bowl"):
        libero_file(folder / f"{name}.hdf5")
    (folder / "cut.hdf5").write_bytes((folder / "bowl.hdf5").read_bytes()[:3000])
    options = wshard.convert.ConvertOptions(jobs=2, verify=True, on_error="skip")
    report = wshard.convert.convert(folder, tmp_path / "out", options=options)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        f"{name}_demo_{number}.wshard" for name in ("bowl", "drawer") for number in (0, 1)
    ]
    assert list(report.failed) == ["cut"]
    assert "cut.hdf5" in report.failed["cut"]
    back = wshard.convert.convert(tmp_path / "out", tmp_path / "back.hdf5", to="robomimic")
    assert (back.episodes, back.steps) == (4, 24)


def test_a_folder_of_folders_of_files_is_one_dataset(tmp_path: Path) -> None:
    for name in ("libero_goal/drawer", "libero_goal/bowl", "more/libero_90/drawer"):
        (file := tmp_path / f"libero/{name}.hdf5").parent.mkdir(parents=True, exist_ok=True)
        libero_file(file)
    (tmp_path / "libero/cut").mkdir()
    (tmp_path / "libero/cut/cut.hdf5").write_bytes(file.read_bytes()[:3000])
    (tmp_path / "libero/more/README.md").write_text("three suites")
    (tmp_path / "libero/loop").symlink_to(tmp_path / "libero")
    options = wshard.convert.ConvertOptions(jobs=2, verify=True, on_error="skip")
    report = wshard.convert.convert(tmp_path / "libero", tmp_path / "out", options=options)
    assert report.format == "robomimic"
    with wshard.load(tmp_path / "out/more_libero_90_drawer_demo_1.wshard") as episode:
        assert episode.id == "more/libero_90/drawer/demo_1"
    assert report.episodes == 6
    assert list(report.failed) == ["cut"]
    assert "cut.hdf5" in report.failed["cut"]
    assert {change.field for change, _ in report.of_kind("dropped")} >= {"more/README.md", "loop"}


def test_isaac_labs_success_and_seed_are_metadata(tmp_path: Path) -> None:
    isaaclab_file(path := tmp_path / "dataset.hdf5")
    episodes = list(wshard.convert.read(path))
    assert [episode.metadata["success"] for episode in episodes] == [False, True]
    assert [episode.metadata["seed"] for episode in episodes] == [42, 43]
    (episode,) = wshard.convert.read(path, episodes=slice(1))
    assert episode.env_id == "Isaac-Stack-v0"
    assert episode.rewards is None
    assert episode.extras["initial_state/articulation/robot/root_pose"].data.shape == (1, 7)
    assert episode.observations["states/articulation/robot/root_pose"].shape == (5, 7)
    assert set(episode.actions) == {"action", "processed_actions"}


def test_large_arrays_stay_in_the_file_until_they_are_used(tmp_path: Path) -> None:
    with h5py.File(path := tmp_path / "x.hdf5", "w") as file:
        file["data/demo_0/actions"] = np.zeros((600, 2))
        file["data/demo_0/obs/cam"] = (
            np.arange(600 * 64 * 64 * 3).astype(np.uint8).reshape(600, 64, 64, 3)
        )
    for episode in wshard.convert.read(path):
        camera = episode.observations["cam"]
        part = camera[7:9]
        assert not camera.is_loaded
        np.testing.assert_array_equal(part, camera.data[7:9])


def any_episode() -> Episode:
    episode = Episode("run 1", env_id="Reach-v1", length=4, timebase=Timebase(tick_hz=10.0))
    episode.observations["pos"] = Channel(data=np.arange(15.0).reshape(5, 3), unit="m")
    episode.observations["cam/wrist"] = np.zeros((4, 8, 8, 3), np.uint8)
    episode.observations["cam"] = np.arange(4)
    episode.observations["said"] = ["a", "", "ü", "d"]
    episode.observations["points"] = RaggedChannel(
        "points", data=[np.zeros((n, 3)) for n in range(4)]
    )
    episode.observations["imu"] = Channel(data=np.zeros((9, 3)), timestamps_ns=np.arange(9))
    episode.actions["arm"] = np.arange(8, dtype=np.float32).reshape(4, 2)
    episode.actions["gripper"] = np.array([0, 1, 0, 1], np.int8)
    episode.terminations = np.array([0, 0, 0, 1], bool)
    episode.truncations = np.zeros(4, bool)
    episode.omens["pos"]["dreamer"] = np.ones((4, 3), np.float32)
    episode.uncerts["pos"]["dreamer"]["std"] = np.ones((4, 3), np.float32)
    episode.labels["phase"] = [(0, 2, "reach")]
    episode.extras["notes.txt"] = b"hello"
    episode.metadata = {"task": "reach", "seed": 3, "success": True, "who": {"name": "Ada"}}
    episode.metadata["dataset"] = {"author": "Ada"}
    episode.metadata["splits"] = ["train"]
    return episode


def test_any_episode_can_be_written_and_what_does_not_fit_is_noted(tmp_path: Path) -> None:
    report = wshard.convert.write([any_episode()], path := tmp_path / "x.hdf5", "robomimic")
    dropped = {change.field for change, _ in report.of_kind("dropped")}
    assert dropped == {"signal/points", "signal/imu", "label/phase", "signal/pos unit"}
    with h5py.File(path) as file:
        demo = file["data/demo_0"]
        np.testing.assert_array_equal(demo["actions"], [[0, 1, 0], [2, 3, 1], [4, 5, 0], [6, 7, 1]])
        np.testing.assert_array_equal(demo["next_obs/pos"][3], [12, 13, 14])
        assert demo["dones"].dtype == np.int64
        assert json.loads(file["data"].attrs["env_args"])["env_name"] == "Reach-v1"
        assert file["data"].attrs["total"] == demo.attrs["num_samples"] == 4
        assert file["mask/train"][:].tolist() == [b"demo_0"]
    assert wshard.convert.detect(str(path)).name == "robomimic"
    (episode,) = wshard.convert.read(path)
    assert episode.metadata["task"] == "reach"
    assert episode.metadata["seed"] == 3
    assert episode.metadata["success"] is True
    assert episode.metadata["who"] == {"name": "Ada"}
    wshard.convert.write(wshard.convert.read(path), again := tmp_path / "again.hdf5", "robomimic")
    assert content(again) == content(path)
    (episode,) = wshard.convert.read(path)
    assert episode.timebase.tick_hz == 10
    assert episode.observations["pos"].data.tolist() == np.arange(15.0).reshape(5, 3).tolist()
    assert episode.observations["said"][:] == ["a", "", "ü", "d"]
    assert isinstance(episode.observations["said"], TextChannel)
    assert episode.omens["pos"]["dreamer"].shape == (4, 3)
    assert episode.uncerts["pos"]["dreamer"]["std"].shape == (4, 3)
    assert episode.truncations is not None


def test_an_episode_without_anything_can_be_written(tmp_path: Path) -> None:
    empty = Episode("demo_3")
    only_first = Episode("demo_5", observations={"x": np.zeros((1, 2))}, length=None)
    only_first.length = 0
    wshard.convert.write([empty, only_first], path := tmp_path / "x.hdf5", "robomimic")
    assert [episode.id for episode in wshard.convert.read(path)] == ["demo_3", "demo_5"]
    with h5py.File(path) as file:
        assert file["data/demo_5/obs/x"].shape == (1, 2)


def test_arrays_that_are_not_as_long_as_the_actions_are_kept_beside_the_steps(
    tmp_path: Path,
) -> None:
    with h5py.File(path := tmp_path / "x.hdf5", "w") as file:
        demo = file.create_group("data/demo_0")
        demo["actions"] = np.zeros((3, 2))
        demo["obs/x"] = np.arange(4.0)  # one more, and no next_obs
        demo["obs/y"] = demo["next_obs/y"] = np.ones((5, 2))
        demo["dones"] = np.array([0, 2, 1])
        demo["rewards"] = np.zeros((3, 1))
    wshard.convert.write(wshard.convert.read(path), ours := tmp_path / "ours", "wshard")
    (episode,) = wshard.convert.read(ours)
    assert episode.observations["x"].length == 4
    assert set(episode.extras) == {"obs/y", "next_obs/y"}
    assert episode.rewards is episode.terminations is None
    wshard.convert.write(wshard.convert.read(ours), back := tmp_path / "back.hdf5", "robomimic")
    assert content(back) == content(path)


def test_datasets_without_values_and_names_of_numbers_are_noted(tmp_path: Path) -> None:
    with h5py.File(path := tmp_path / "x.hdf5", "w") as file:
        demo = file.create_group("data/demo_0")
        demo["actions"] = np.zeros((3, 2))
        demo["obs/none"] = h5py.Empty("f4")
        phases = h5py.enum_dtype({"reach": 0, "grasp": 1}, "i1")
        demo.create_dataset("obs/phase", data=np.array([0, 1, 1]), dtype=phases)
        demo["obs"].attrs["frame"] = "world"
        demo["kind"] = np.dtype("f4")
        demo.create_group("nothing")
    (episode,) = wshard.convert.read(path)
    assert episode.observations["phase"].data.tolist() == [0, 1, 1]
    assert {change.field for change in episode.lost} == {
        *("obs/none", "obs/phase names", "kind", "nothing")
    }


def test_what_masks_say_besides_their_demos_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "demo.hdf5"
    with h5py.File(path, "w") as file:
        file["data/demo_0/actions"] = np.zeros((3, 2))
        file["mask/train"] = np.array(["demo_0"], dtype="S")
        file["mask/train"].attrs["ratio"] = 0.9
        file["mask"].attrs["seed"] = 4
    (episode,) = wshard.convert.read(path)
    assert {"dropped mask attributes: seed", "dropped mask/train attributes: ratio"} <= set(
        map(str, episode.lost)
    )


def test_facts_that_differ_between_episodes_are_noted(tmp_path: Path) -> None:
    episodes = [any_episode(), any_episode()]
    episodes[1].env_id = "Other-v1"
    report = wshard.convert.write(episodes, path := tmp_path / "x.hdf5", "robomimic")
    assert "metadata/dataset/env_args" in {c.field for c, _ in report.of_kind("dropped")}
    with h5py.File(path) as file:
        assert list(file["data"]) == ["demo_0", "demo_1"]
        assert file["data"].attrs["total"] == 8


def test_metadata_that_makes_no_sense_to_the_writer_does_no_harm(tmp_path: Path) -> None:
    episode = any_episode()
    odd: dict[str, Any] = {
        "attributes": [1],
        "types": {"num_samples": "nonsense"},
        "paths": {"signal/cam": "/../..", "action/arm": 3, "signal/pos": "actions/x"},
        "dones": "O",
        "masks": {"a": 1},
        "scalars": 4,
        "texts": {"note": "a\0b", "/": "x"},
        "array_attributes": 7,
        "dataset_types": [],
    }
    episode.metadata |= {"robomimic": odd, "splits": 3, "task": {"no": "text"}, "x": np.float32(1)}
    wshard.convert.write([episode], path := tmp_path / "x.hdf5", "robomimic")
    with h5py.File(path) as file:
        assert list(file) == ["data"]
        assert file["data/demo_0/actions/x"].shape == (5, 3)
        assert json.loads(file["data/demo_0"].attrs["metadata"])["splits"] == 3


# --- hostile files


def small_file(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["data/demo_0/actions"] = np.zeros((3, 2))


def external_link(demo: Any) -> None:  # noqa: ANN401 - an h5py.Group
    demo["obs"] = h5py.ExternalLink("/etc/passwd", "/x")


def link_around(demo: Any) -> None:  # noqa: ANN401 - an h5py.Group
    """A soft link that is harmless itself, through a link out of the file."""
    with h5py.File(f"{demo.file.filename}.other", "w") as other:
        other["obs/secret"] = np.zeros((3, 2))
    demo.file["away"] = h5py.ExternalLink(f"{demo.file.filename}.other", "/")
    demo["obs"] = h5py.SoftLink("/away/obs")


def many_links(demo: Any) -> None:  # noqa: ANN401 - an h5py.Group
    """Links to links, each path twice through the next."""
    for number in range(40):
        demo[f"link_{number}"] = h5py.SoftLink(f"link_{number + 1}/link_{number + 1}")


def circle(demo: Any) -> None:  # noqa: ANN401 - an h5py.Group
    for number in range(8):
        demo[f"obs/{number}"] = h5py.SoftLink("/data")


def claim(demo: Any) -> None:  # noqa: ANN401 - an h5py.Group
    demo.create_dataset("obs/x", (3, 1 << 40), np.uint8, chunks=(1, 1 << 20))


def virtual(demo: Any) -> None:  # noqa: ANN401 - an h5py.Group
    layout = h5py.VirtualLayout((3, 2), "f8")
    layout[:] = h5py.VirtualSource("/etc/passwd", "x", (3, 2))
    demo.create_virtual_dataset("obs/x", layout)


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (external_link, UnsafePath),
        (link_around, UnsafePath),
        (many_links, BadValue),
        (virtual, UnsafePath),
        (circle, LimitExceeded),
        (claim, LimitExceeded),
    ],
)
def test_hostile_files_are_refused(
    damage: Callable[[Any], None], error: type[ShardError], tmp_path: Path
) -> None:
    small_file(path := tmp_path / "x.hdf5")
    with h5py.File(path, "a") as file:
        damage(file["data/demo_0"])
    with pytest.raises(error) as caught:
        list(wshard.convert.read(path, "robomimic"))
    assert str(path) in str(caught.value)


def test_a_demo_that_is_a_link_elsewhere_is_refused(tmp_path: Path) -> None:
    small_file(path := tmp_path / "x.hdf5")
    with h5py.File(path, "a") as file:
        file["data/demo_1"] = h5py.ExternalLink(str(tmp_path / "y.hdf5"), "/data/demo_0")
        file["data/demo_2"] = np.zeros(3)
    small_file(tmp_path / "y.hdf5")
    with pytest.raises(UnsafePath):
        list(wshard.convert.read(path, episodes=slice(1, 2)))
    with pytest.raises(BadValue, match="demo_2"):
        list(wshard.convert.read(path, episodes=slice(2, 3)))


def test_a_cut_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    robomimic_file(whole := tmp_path / "whole.hdf5")
    data = whole.read_bytes()
    cut = tmp_path / "cut.hdf5"
    for size in (600, 3000, len(data) // 2, len(data) - 1):
        cut.write_bytes(data[:size])
        with pytest.raises(ShardError, match=r"cut\.hdf5"):
            list(wshard.convert.read(cut, "robomimic"))


def test_damaged_bytes_are_an_error_or_other_values(tmp_path: Path) -> None:
    mimicgen_file(whole := tmp_path / "whole.hdf5")
    data = bytearray(whole.read_bytes())
    bad = tmp_path / "bad.hdf5"
    for place in np.random.default_rng(11).integers(8, len(data), 60):
        damaged = bytearray(data)
        damaged[place] ^= 0xFF
        bad.write_bytes(damaged)
        try:
            for episode in wshard.convert.read(bad, "robomimic"):
                episode.load()
        except ShardError:
            pass
