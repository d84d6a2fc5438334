"""Minari datasets, written and read back by the real package."""

from __future__ import annotations

import json
import os
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shard_format.errors import BadMetadata, BadValue, ShardError, UnsafePath
from wshard import Channel, Episode, Timebase, load_wshard, save_wshard
from wshard.convert import detect, read, write
from wshard.types import RaggedChannel, TextChannel
from wshard.video import VideoChannel

if TYPE_CHECKING:
    from pathlib import Path

minari = pytest.importorskip("minari")
spaces = pytest.importorskip("gymnasium.spaces")
h5py = pytest.importorskip("h5py")

OBSERVATION = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (40, 48, 3), np.uint8),
        "small": spaces.Box(0, 255, (8, 8, 3), np.uint8),
        "pose": spaces.Dict({"joints": spaces.Box(-np.inf, np.inf, (2, 3), np.float64)}),
        "pair": spaces.Tuple((spaces.Discrete(5, start=2), spaces.MultiBinary(4))),
        "choice": spaces.MultiDiscrete([3, 4]),
        "words": spaces.Text(12),
        "level": spaces.Box(-1, 1, (), np.float32),
    }
)
ACTION = spaces.Tuple((spaces.Box(-1, np.array([1, 2]), (2,), np.float32), spaces.Discrete(3)))


@pytest.fixture(autouse=True)
def _own_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


def column(space: Any, count: int) -> Any:  # noqa: ANN401 - a space; its values
    """Values of a space, as the buffers of Minari have them."""
    if isinstance(space, spaces.Dict):
        return {key: column(part, count) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(column(part, count) for part in space.spaces)
    return [space.sample() for _ in range(count)]


def make(name: str = "test/some-v3", lengths: tuple[int, ...] = (3, 12, 1), **facts: Any) -> str:  # noqa: ANN401 - of Minari
    """A dataset written by Minari; its folder."""
    observation = facts.setdefault("observation_space", OBSERVATION)
    action = facts.setdefault("action_space", ACTION)
    observation.seed(7)
    action.seed(7)
    random = np.random.default_rng(5)
    buffers = []
    for number, steps in enumerate(lengths):
        infos = {
            "speed": random.normal(size=(steps + 1, 2)).astype(np.float32),
            "time": random.normal(size=steps + 1),
            "on": [bool(step % 2) for step in range(steps + 1)],
            "text": [f"step {step}" for step in range(steps + 1)],
            "inner": {"count": np.arange((steps + 1) * 2).reshape(steps + 1, 2)},
        }
        buffers.append(
            minari.data_collector.EpisodeBuffer(
                observations=column(observation, steps + 1),
                actions=column(action, steps),
                rewards=list(random.normal(size=steps)),
                terminations=[False] * (steps - 1) + [number % 2 == 0],
                truncations=[False] * (steps - 1) + [number % 2 == 1],
                seed=40 + number if number else None,
                options={"start": {"x": 1.5}, "level": number} if number else None,
                infos=infos,
            )
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        minari.create_dataset_from_buffers(name, buffers, author="A", description="D", **facts)
    return os.path.join(os.environ["MINARI_DATASETS_PATH"], name)


def same(left: Any, right: Any, where: str = "") -> None:  # noqa: ANN401 - values of Minari
    """Fails unless two values of Minari are equal, with their types."""
    if isinstance(left, dict):
        assert isinstance(right, dict) and left.keys() == right.keys(), where  # noqa: PT018 - one fact
        for key in left:
            same(left[key], right[key], f"{where}/{key}")
    elif isinstance(left, (tuple, list)):
        assert type(left) is type(right) and len(left) == len(right), where  # noqa: PT018 - one fact
        for number, one in enumerate(left):
            same(one, right[number], f"{where}/{number}")
    else:
        np.testing.assert_array_equal(left, right, err_msg=where, strict=True)


def episodes_of(folder: str | Path) -> list[dict[str, Any]]:
    """Everything that Minari says about the episodes of a dataset."""
    storage = minari.MinariDataset(os.path.join(folder, "data")).storage
    numbers = range(storage.total_episodes)
    metadata = list(storage.get_episode_metadata(numbers))
    fields = list(storage.get_episodes(numbers))
    return [{**one, "metadata": facts} for one, facts in zip(fields, metadata, strict=True)]


def through_files(source: str, folder: Path) -> list[Episode]:
    """The episodes of a dataset after they were saved and loaded as our own files."""
    folder.mkdir()
    paths = []
    for episode in read(source):
        paths.append(folder / f"{episode.id}.wshard")
        save_wshard(episode, paths[-1])
    return [load_wshard(path) for path in paths]


@pytest.mark.parametrize("jpeg", [True, False])
def test_a_minari_dataset_comes_back_as_it_was(tmp_path: Path, jpeg: bool) -> None:
    source = make(jpeg_encoding=jpeg)
    target = tmp_path / "minari" / "back-v0"
    report = write(through_files(source, tmp_path / "own"), target, "minari")
    assert not list(report.of_kind("dropped", "cast", "filled", "renamed", "decoded"))
    same(episodes_of(source), episodes_of(target))
    before = minari.load_dataset("test/some-v3").storage.metadata
    after = minari.load_dataset("back-v0").storage.metadata
    del before["dataset_size"], after["dataset_size"]
    assert before == after
    with (
        h5py.File(os.path.join(source, "data", "main_data.hdf5")) as old,
        h5py.File(target / "data" / "main_data.hdf5") as new,
    ):
        cameras = (file["episode_1/observations/camera"] for file in (old, new))
        assert [one.tobytes() for one in next(cameras)] == [one.tobytes() for one in next(cameras)]


@pytest.mark.parametrize("video", ["keep", "decode"])
def test_pictures_of_any_origin_are_what_minari_reads(tmp_path: Path, video: str) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (5, 40, 48, 3), np.uint8)
    episodes = [Episode(f"e{number}") for number in range(2)]
    jpeg = VideoChannel.encode(frames, "jpeg:90")
    grey = VideoChannel.encode(frames[..., 0], "png")
    for number, episode in enumerate(episodes):
        episode.actions["action"] = np.zeros((4, 1), np.float32)
        episode.observations["front"] = jpeg if number == 0 else Channel(data=frames)
        episode.observations["wrist"] = grey
        # In these files a pixel has one value and the channel says three, which Minari would not know.
        files = [bytes(packet.data) for packet in grey.packets()]
        episode.observations["wide"] = VideoChannel.from_packets(files, "image/png", (40, 48, 3))
        episode.observations["film"] = VideoChannel.encode(frames, "ffv1")
        episode.observations["tiny"] = VideoChannel.encode(frames[:, :8, :8], "png")
        episode.observations["raw"] = Channel(data=frames[::-1])
    target = tmp_path / "minari" / "mixed-v0"
    report = write(episodes, target, "minari", video=video)
    decoded = {change.field.rpartition("/")[2] for change, _ in report.of_kind("decoded")}
    kept = {"front", "wrist"} if video == "keep" else set()
    assert decoded == {"front", "wrist", "wide", "film", "tiny"} - kept
    assert minari.load_dataset("mixed-v0").storage.jpeg_encoding is (video == "keep")
    for episode, found in zip(episodes, episodes_of(target), strict=True):
        expected = {name: channel.data for name, channel in episode.observations.items()}
        same(found["observations"], expected)
    for episode, back in zip(episodes, read(target), strict=True):
        for name, channel in episode.observations.items():
            assert np.array_equal(back.observations[name].data, channel.data), name


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_arrow_and_parquet_hold_the_same_as_hdf5(tmp_path: Path, form: str) -> None:
    first = list(read(make("plain-v0")))
    second = list(read(make("table-v0", data_format=form)))
    assert len(first) == len(second) == 3
    for left, right in zip(first, second, strict=True):
        blocks, others = dict(left.blocks()), dict(right.blocks())
        assert blocks.keys() == others.keys()
        for name, channel in blocks.items():
            assert channel.dtype_name == others[name].dtype_name, name
            assert channel.modality == others[name].modality
            same(channel.data, others[name].data, name)
        assert left.length == right.length
        assert not [note for note in right.changes if note.kind in ("dropped", "cast", "filled")]
        for key in ("seed", "options", "observation_space", "action_space"):
            assert left.metadata.get(key) == right.metadata.get(key)
    target = tmp_path / "minari" / "back-v0"
    write(second, target, "minari")
    same(episodes_of(os.path.join(tmp_path, "minari", "plain-v0")), episodes_of(target))


def test_observations_are_one_more_than_actions_and_keep_their_names() -> None:
    _, episode, _ = read(make())
    assert episode.id == "episode_1"
    assert episode.length == 12
    assert {name: len(one) for name, one in episode.observations.items()} == dict.fromkeys(
        (
            *("camera", "choice", "level", "pair/0", "pair/1", "pose/joints", "small", "words"),
            *("info/inner/count", "info/on", "info/speed", "info/text", "info/time"),
        ),
        13,
    )
    assert {name: len(one) for name, one in episode.actions.items()} == {
        "action/0": 12,
        "action/1": 12,
    }
    assert episode.rewards is not None
    assert episode.rewards.dtype == np.float64
    assert episode.observations["camera"].modality == "rgb"
    assert episode.observations["camera"].lossy == {"codec": "jpeg"}
    assert episode.metadata["seed"] == 41
    assert episode.metadata["options"] == {"start": {"x": 1.5}, "level": 1}
    assert episode.metadata["dataset"]["author"] == ["A"]
    pose = episode.metadata["observation_space"]["subspaces"]["pose"]["subspaces"]["joints"]
    assert pose == {
        "type": "Box",
        "dtype": "float64",
        "shape": [2, 3],
        "low": "-inf",
        "high": "inf",
    }
    assert episode.observations["camera"].content_type == "image/jpeg"
    assert not episode.lost
    _, decoded, _ = read(make("pixels-v0"), video="decode")
    assert ("decoded", "camera") in {(note.kind, note.field) for note in decoded.changes}
    assert type(decoded.observations["camera"]) is Channel
    assert np.array_equal(decoded.observations["camera"].data, episode.observations["camera"].data)


def test_images_of_equal_encoded_length_are_images() -> None:
    source = make(lengths=(2,), observation_space=spaces.Box(0, 255, (32, 32), np.uint8))
    path = os.path.join(source, "data", "main_data.hdf5")
    blank = minari.dataset._storages.hdf5_storage.encode_frame(np.full((32, 32), 9, np.uint8))
    with h5py.File(path, "a") as file:
        del file["episode_0/observations"]
        file["episode_0/observations"] = np.stack([blank] * 3)
    (episode,) = read(source)
    assert episode.observations["observation"].shape == (3, 32, 32)
    assert (episode.observations["observation"].data == 9).all()


# Minari leaves a temporary folder to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_a_collector_records_comes_back(tmp_path: Path) -> None:
    gymnasium = import_module("gymnasium")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env = minari.DataCollector(gymnasium.make("CartPole-v1"), record_infos=True)
        for seed in range(2):
            env.reset(seed=seed)
            ended = False
            while not ended:
                _, _, terminated, truncated, _ = env.step(env.action_space.sample())
                ended = terminated or truncated
        env.create_dataset("cartpole/random-v0", algorithm_name="random")
        env.close()
    source = tmp_path / "minari" / "cartpole" / "random-v0"
    first, second = read(source / "data")
    assert (first.env_id, second.metadata["seed"]) == ("CartPole-v1", 1)
    assert first.metadata["rewards_sum"] == first.length
    target = tmp_path / "minari" / "cartpole" / "again-v0"
    write([first, second], target, "minari")
    same(episodes_of(source), episodes_of(target))
    assert minari.load_dataset("cartpole/again-v0").recover_environment().spec.id == "CartPole-v1"


def odd_episode(steps: int = 4) -> Episode:
    """An episode with what Minari has no place for."""
    episode = Episode("run 7", env_id="Arm", timebase=Timebase(tick_hz=20.0))
    episode.observations["arm/pos"] = np.arange(steps * 2, dtype=np.float32).reshape(steps, 2)
    episode.observations["arm"] = np.arange(steps + 1)
    episode.observations["on"] = np.ones(steps, np.bool_)
    episode.observations["task"] = TextChannel("task", ["räum auf"] * steps)
    episode.observations["points"] = RaggedChannel(
        "points", data=[np.zeros((n, 3)) for n in range(steps)]
    )
    episode.observations["imu"] = Channel(
        "imu", data=np.zeros((99, 3)), timestamps_ns=np.arange(99)
    )
    episode.actions["ctrl"] = Channel("ctrl", dtype="bf16", data=np.ones((steps, 2), np.float32))
    episode.omens["arm"]["model"] = np.zeros(steps)
    episode.labels["phase"] = [(0, 2, "reach")]
    episode.extras["notes"] = b"abc"
    episode.extras["calibration/matrix"] = np.eye(3)
    episode.observations["arm"].unit = "m"
    episode.metadata.update(task="räum auf", success=True, nested={"a": [1, 2], "b": None})
    episode.metadata.update(id=3, seed="none")
    return episode


def test_any_episode_can_be_written_and_what_is_lost_is_noted(tmp_path: Path) -> None:
    target = tmp_path / "minari" / "odd"
    smaller = Episode("b", observations={"arm": np.arange(3), "new": np.zeros(3)}, length=3)
    report = write([odd_episode(), smaller], target, "minari")
    dataset = minari.MinariDataset(target / "data")
    assert dataset.spec.dataset_id == "odd-v0"
    first, second = episodes_of(target)
    assert first["observations"].keys() == {"arm", "arm_", "on", "task"}
    assert first["observations"]["arm"]["pos"].shape == (4, 2)
    assert first["observations"]["task"] == ["räum auf"] * 4
    assert dataset.observation_space["task"].contains("räum auf")
    assert first["actions"]["ctrl"].dtype == np.float32
    assert first["infos"]["omen"]["arm"]["model"].shape == (4,)
    assert first["infos"]["calibration"]["matrix"].shape == (3, 3)
    assert first["metadata"]["success"]
    assert first["metadata"]["episode_id"] == "run 7"
    assert second["actions"] == {}
    assert not second["rewards"].any()
    kinds = {(change.kind, change.field) for change in report.changes}
    assert {
        *(("dropped", "signal/points"), ("dropped", "signal/imu"), ("dropped", "labels/phase")),
        *(("dropped", "notes"), ("filled", "rewards"), ("cast", "action/ctrl")),
    } <= kinds
    again, _ = read(target)
    assert (again.env_id, again.timebase.tick_hz) == ("Arm", 20.0)
    assert again.metadata["task"] == "räum auf"
    assert again.observations["arm_"].unit == "m"
    assert again.extras["infos/calibration/matrix"].data.shape == (3, 3)
    write([again], tmp_path / "again", "minari")
    (third,) = episodes_of(tmp_path / "again")
    assert third["infos"]["calibration"]["matrix"].shape == (3, 3)


def test_episodes_with_other_channels_than_the_first_can_be_written(tmp_path: Path) -> None:
    bare = Episode("a", observations={"observation": np.zeros((3, 2))}, length=3)
    other = Episode("b", observations={"x": np.arange(3)}, actions={"u": np.ones(3)}, length=3)
    empty = Episode("c", length=3, metadata={"env_spec": {"a": 1}, "notes": "a" * 100_000})
    report = write([bare, other, empty], tmp_path / "odd", "minari")
    _, second, third = episodes_of(tmp_path / "odd")
    np.testing.assert_array_equal(second["infos"]["x"], np.arange(3))
    np.testing.assert_array_equal(second["actions"]["u"], np.ones(3))
    assert third["metadata"]["env_spec"] == {"a": 1}
    kinds = {(change.kind, change.field) for change in report.changes}
    assert {("filled", "signal/observation"), ("dropped", "metadata/notes")} <= kinds
    assert [sorted(one.observations) for one in read(tmp_path / "odd")] == [
        ["observation"],
        ["info/x"],
        [],
    ]


def test_datasets_of_minari_0_4_have_their_facts_in_the_file(tmp_path: Path) -> None:
    source = make(lengths=(2, 3))
    facts_path = os.path.join(source, "data", "metadata.json")
    with open(facts_path, encoding="utf-8") as file:
        facts = json.load(file)
    os.unlink(facts_path)
    with h5py.File(os.path.join(source, "data", "main_data.hdf5"), "a") as file:
        for key in ("total_episodes", "dataset_id", "observation_space", "action_space"):
            file.attrs[key] = facts[key]
    assert detect(source).name == "minari"
    first, _ = read(source)
    assert first.metadata["dataset"]["dataset_id"] == "test/some-v3"
    assert "pair/0" in first.observations


def test_large_arrays_stay_in_the_file_until_they_are_used() -> None:
    source = make(lengths=(600,), observation_space=spaces.Box(-1, 1, (64,), np.float64))
    (episode,) = read(source, format="minari", episodes=slice(0, 1))
    with h5py.File(os.path.join(source, "data", "main_data.hdf5")) as file:
        expected = file["episode_0/observations"][:]
    for one in read(source):
        channel = one.observations["observation"]
        assert not channel.is_loaded
        np.testing.assert_array_equal(channel[500:520], expected[500:520])
        assert not channel.is_loaded
    del episode


def test_episodes_are_in_the_order_of_their_numbers() -> None:
    source = make(lengths=(1,) * 12, observation_space=spaces.Discrete(3))
    assert [one.id for one in read(source)] == [f"episode_{number}" for number in range(12)]


def test_damaged_datasets_are_refused_with_the_place(tmp_path: Path) -> None:
    source = make(lengths=(2, 2))
    main = os.path.join(source, "data", "main_data.hdf5")
    facts = os.path.join(source, "data", "metadata.json")
    with h5py.File(main, "a") as file:
        del file["episode_0/actions/_index_1"]
        file["episode_0/actions/_index_1"] = np.zeros(5, np.int64)
        file["episode_1/infos/far"] = h5py.ExternalLink("/etc/other.h5", "x")
    with pytest.raises(BadValue, match="actions/_index_1"):
        next(read(source))
    with pytest.raises(UnsafePath, match="other"):
        next(read(source, episodes=slice(1, 2)))
    with open(facts, encoding="utf-8") as file:
        stated = json.load(file)
    for change in ({"data_format": "odd"}, {"observation_space": "{}"}, {"action_space": "[1"}):
        with open(facts, "w", encoding="utf-8") as file:
            json.dump({**stated, **change}, file)
        with pytest.raises(BadMetadata, match=r"metadata\.json"):
            next(read(source))


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_cut_tables_are_refused(form: str) -> None:
    source = make(lengths=(4,), data_format=form, observation_space=spaces.Discrete(3))
    path = os.path.join(source, "data", "0", f"part-0.{form}")
    with open(path, "rb") as file:
        content = file.read()
    for size in range(0, len(content), 97):
        with open(path, "wb") as file:
            file.write(content[:size])
        with pytest.raises(ShardError, match=f"part-0.{form}"):
            next(read(source))


def test_what_minari_does_not_know_of_is_kept_or_noted() -> None:
    folder = make(lengths=(3,))
    with h5py.File(os.path.join(folder, "data", "main_data.hdf5"), "a") as file:
        file.attrs["version"] = 1
        file["calibration"] = np.ones(3)
        group = file["episode_0"]
        group.attrs["total_steps"] = 99
        group.attrs["tick_hz"] = 10
        group.attrs["camera"] = "front"
        group.attrs["camera/fov"] = 60.0
        group["rewards"].attrs["unit"] = "points"
    (episode,) = read(folder)
    assert episode.metadata["tick_hz"] == 10
    assert episode.metadata["camera"] == "front"
    assert episode.metadata["camera/fov"] == 60.0
    assert {change.field for change in episode.lost} >= {
        *("main_data.hdf5/calibration", "main_data.hdf5, attribute version", "total_steps"),
        "/episode_0/rewards, attribute unit",
    }


def test_the_clock_of_an_episode_comes_back(tmp_path: Path) -> None:
    ep = Episode("ep", length=2, timebase=Timebase(tick_hz=50, epoch_ns=7))
    write([ep], tmp_path / "clock-v0", "minari")
    (found,) = read(tmp_path / "clock-v0")
    assert (found.timebase.tick_hz, found.timebase.epoch_ns) == (50, 7)
    assert not {"tick_hz", "epoch_ns"} & found.metadata.keys()
