"""Folders of NumPy's files, written by NumPy and by our writer."""

from __future__ import annotations

import gc
import io
import json
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shard_format.errors import BadMetadata, BadValue, InvalidArgument, LimitExceeded, ShardError
from shard_format.registry import Limits
from wshard import Channel, Episode, Timebase, load, load_wshard, save_wshard
from wshard.convert import _npz, detect, read, write
from wshard.types import RaggedChannel, Residual, TextChannel
from wshard.video import VideoChannel

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


def full_episode(name: str = "ep_1") -> Episode:
    """An episode that has everything."""
    random = np.random.default_rng(4)
    pose = random.normal(size=(7, 3)).astype(np.float32)
    episode = Episode(
        name,
        env_id="Reach-v1",
        timebase=Timebase(tick_hz=20.0),
        observations={
            "pose": Channel(data=pose, unit="rad", extra={"names": ["a", "b", "c"]}),
            "arm/camera": Channel(
                data=random.integers(0, 255, (7, 8, 8, 3), np.uint8), modality="rgb"
            ),
            "words": TextChannel(data=["go", "", "über"] * 2),
            "odd words": TextChannel(data=["go", "", "über\0"] * 2),
            "points": RaggedChannel(data=[np.full((n, 2), n, np.int16) for n in range(6)]),
            "imu": Channel(data=random.normal(size=(31, 6)), timestamps_ns=np.arange(31) * 7),
            "sound": Channel(data=np.zeros(99, np.int16), start_ns=5, sampling_rate_hz=100.0),
            "half": Channel(data=pose[:6], dtype="bf16"),
        },
        actions={
            "ctrl": random.normal(size=(6, 2)),
            "plan": Channel(data=np.zeros((6, 4, 2)), horizon=4),
        },
        rewards=random.normal(size=6),
        terminations=np.arange(6) == 5,
        truncations=np.zeros(6, bool),
        omens={"pose": {"dreamer/v3": pose[:6]}},
        uncerts={"pose": {"dreamer/v3": {"std": pose[:6]}}},
        residuals={"pose": Residual.of_signal("pose", pose[:6])},
        labels={"phase": [(0, 2, "reach")]},
        metadata={"success": True, "task": "reach"},
        timestamps_ns=np.arange(6) ** 2,
    )
    weights = Channel(data=np.arange(20.0).reshape(2, 10))
    weights.has_stated_length = True
    episode.extras["model/weights"] = weights
    episode.extras["model.xml"] = b"<mujoco/>"
    return episode


def values(part: Any) -> Any:  # noqa: ANN401 - any part of an episode
    """What to compare of a part."""
    if isinstance(part, RaggedChannel):
        return part.values, part.offsets
    if isinstance(part, Channel):
        return (
            part.data,
            part.dtype_name,
            part.timestamps_ns,
            dict(part.extra),
            part.unit,
            part.modality,
        )
    if isinstance(part, Residual):
        return part.data, part.scales, part.channel_id, part.model
    return (bytes(part),) if hasattr(part, "tag_bits") else (part.to_fields(),)


def check_same(old: Episode, new: Episode) -> None:
    """Compares all parts and facts."""
    assert new.facts == old.facts
    assert new.parts.keys() == old.parts.keys()
    for address, part in old.parts.items():
        assert type(new.parts[address]) is type(part) or isinstance(part, Residual)
        for one, other in zip(values(part), values(new.parts[address]), strict=True):
            np.testing.assert_array_equal(one, other, str(address))


def test_an_episode_comes_back_with_everything(tmp_path: Path) -> None:
    report = write([full_episode(), full_episode("ep_10"), Episode("ep_2")], tmp_path / "a", "npz")
    assert {change.kind for change in report.changes} == {"kept"}
    assert detect(str(tmp_path / "a")).name == "npz"
    episodes = []
    for episode in read(tmp_path / "a"):
        path = tmp_path / f"{episode.id}.wshard"
        save_wshard(episode, path)
        episodes.append(load_wshard(path).load())
    assert [episode.id for episode in episodes] == ["ep_1", "ep_2", "ep_10"]
    save_wshard(full_episode(), tmp_path / "plain.wshard")
    check_same(load_wshard(tmp_path / "plain.wshard"), episodes[0])
    with np.load(tmp_path / "a" / "ep_1.npz") as file:
        np.testing.assert_array_equal(file["actions/ctrl"], full_episode().actions["ctrl"].data)
        assert file["rewards"].dtype == np.float64
        assert file["observations/arm/camera"].shape == (7, 8, 8, 3)


def test_files_of_episodes_that_only_the_garbage_collector_finds_are_closed_without_a_warning(
    tmp_path: Path,
) -> None:
    write([full_episode(), full_episode("ep_2")], tmp_path / "a", "npz")
    ring: list[Any] = [*read(tmp_path / "a")]
    ring[0].actions["ctrl"].data  # noqa: B018 - opens an array
    ring.append(ring)
    # The collector meets the open files before the objects that own them.
    ring.insert(0, [one for one in gc.get_objects() if isinstance(one, io.BufferedReader)])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        del ring
        gc.collect()
    assert not told


def test_names_of_arrays_say_what_they_are(tmp_path: Path) -> None:
    arrays: dict[str, NDArray[Any]] = {
        "observations/qpos": np.arange(15.0).reshape(5, 3),
        "obs": np.ones((5, 2), np.float32),
        "actions": np.arange(4),
        "rewards": np.arange(4) / 10,
        "terminals": np.array([0, 0, 0, 1.0]),
        "timeouts": np.zeros(4, bool),
        "timestamps": np.array([0, 0.1, 0.2, 0.35]),
        "camera/depth": np.zeros((4, 9, 9), np.uint16),
        "instruction": np.array(["a", "b", "é", ""]),
        "weights": np.zeros((11, 2)),
        "seed": np.array(7),
        "robot": np.array("panda"),
        "when": np.array(["2026-01-01"] * 4, "datetime64[s]"),
        "phase": np.zeros(4, np.complex64),
        "../climbing": np.asfortranarray(np.arange(8).reshape(4, 2)),
    }
    (tmp_path / "e").mkdir()
    np.savez_compressed(tmp_path / "e" / "run_3.npz", **arrays)  # type: ignore[arg-type] # names
    (episode,) = read(tmp_path / "e")
    assert episode.id == "run_3"
    assert episode.length == 4
    np.testing.assert_array_equal(episode.observations["qpos"].data, arrays["observations/qpos"])
    assert episode.observations["observation"].shape == (5, 2)
    assert episode.actions["action"].dtype == np.int64
    assert episode.terminations is not None
    assert episode.terminations.data.tolist() == [False, False, False, True]
    assert episode.timestamps_ns is not None
    assert episode.timestamps_ns.tolist() == [0, 100_000_000, 200_000_000, 350_000_000]
    assert episode.observations["instruction"].data == ["a", "b", "é", ""]
    assert episode.observations["camera/depth"].modality == "depth"
    assert episode.extras["npz/weights"].data.shape == (11, 2)
    assert episode.metadata["npz"]["values"] == {"seed": 7, "robot": "panda"}
    assert episode.observations["when"].data[0] == 1767225600
    np.testing.assert_array_equal(episode.observations["climbing"].data, arrays["../climbing"])
    assert {str(change) for change in episode.lost} == {
        "cast terminals: f64 to bool",
        "cast timestamps: float64 to int64, seconds to nanoseconds",
        "cast when: datetime64[s] to int64",
        "dropped phase: an episode cannot store complex64",
    }
    assert {change.field for change in episode.changes} >= arrays.keys()
    save_wshard(episode, tmp_path / "e.wshard")
    write([load_wshard(tmp_path / "e.wshard")], tmp_path / "back", "npz")
    changed = {"terminals", "timestamps", "when", "phase", "../climbing"}
    with np.load(tmp_path / "back" / "run_3.npz") as back:
        for name in arrays.keys() - changed:
            assert back[name].dtype == arrays[name].dtype, name
            np.testing.assert_array_equal(back[name], arrays[name])
    check_same(load_wshard(tmp_path / "e.wshard"), next(read(tmp_path / "back")))


@pytest.mark.parametrize("kind", ["episode_starts", "episode_ends"])
def test_one_file_can_hold_several_episodes(tmp_path: Path, kind: str) -> None:
    bounds = {
        "episode_starts": np.arange(10) % 4 == 0,
        "episode_ends": np.array([4, 8, 10]),
    }
    arrays: dict[str, Any] = {"obs": np.arange(10.0), "actions": np.arange(10), kind: bounds[kind]}
    np.savez(tmp_path / "all.npz", **arrays, episode_returns=np.array([1.0, 2, 3]))
    episodes = list(read(tmp_path / "all.npz"))
    assert [episode.length for episode in episodes] == [4, 4, 2]
    assert episodes[2].actions["action"].data.tolist() == [8, 9]
    assert episodes[2].metadata["npz"]["values"] == {"episode_returns": 3.0}


def test_folders_of_npy_files_are_episodes(tmp_path: Path) -> None:
    for number in (2, 10):
        folder = tmp_path / f"ep_{number}" / "observations"
        folder.mkdir(parents=True)
        np.save(folder / "qpos.npy", np.full((4, 2), number))
        np.save(folder.parent / "actions.npy", np.zeros((3, 2)))
        (folder.parent / "notes.txt").write_text("hello")
    assert detect(str(tmp_path)).name == "npz"
    episodes = list(read(tmp_path))
    assert [episode.id for episode in episodes] == ["ep_2", "ep_10"]
    assert episodes[1].observations["qpos"].data.tolist() == [[10, 10]] * 4
    assert [str(change) for change in episodes[0].lost] == ["dropped notes.txt: not an array"]
    (one,) = read(tmp_path / "ep_2")
    assert one.actions["action"].shape == (3, 2)


@pytest.mark.parametrize(
    "damage", ["object", "ends", "cut", "twice", "text", "rows", "description"]
)
def test_damaged_files_are_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "a" / "ep_1.npz"
    write([full_episode()], path.parent, "npz")
    with np.load(path) as file:
        arrays: dict[str, Any] = dict(file)
    described = json.loads(arrays["wshard"].tobytes())
    expected: type[ShardError] = BadValue
    if damage == "object":
        arrays = {"obs": np.array([None, {}], dtype=object)}
    elif damage == "ends":
        arrays = {"obs": np.zeros(4), "episode_ends": np.array([3, 2])}
    elif damage == "twice":
        described["channels"].append(described["channels"][0])
        expected = BadMetadata
    elif damage == "text":
        arrays["wshard"] = arrays["wshard"][:-3]
    elif damage == "rows":
        arrays["observations/pose"] = arrays["observations/pose"][:3]
        expected = ShardError
    elif damage == "description":
        described["extras"] = {"model.xml": 3}
    if damage in ("twice", "description"):
        arrays["wshard"] = np.frombuffer(json.dumps(described).encode(), np.uint8)
    if damage in ("text", "description"):
        expected = BadMetadata
    np.savez(path, **arrays)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(expected) as caught:
        _ = [episode.load() for episode in read(path, "npz")]
    assert "ep_1.npz" in str(caught.value)
    if damage == "object":
        assert "np.array(list(value), dtype)" in str(caught.value)


def test_a_small_file_cannot_ask_for_much_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez_compressed(tmp_path / "bomb.npz", obs=np.zeros(1 << 21, np.uint8))
    monkeypatch.setattr(_npz, "DEFAULT_LIMITS", Limits(max_decompressed_bytes=1 << 20))
    episodes = read(tmp_path / "bomb.npz")
    channel = next(episodes).observations["observation"]
    assert channel[5:7].tolist() == [0, 0]
    with pytest.raises(LimitExceeded, match="read fewer steps"):
        _ = channel.data


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="files in this folder"):
        list(read(tmp_path, "npz"))
    with pytest.raises(InvalidArgument, match="not a dataset"):
        detect(str(tmp_path))


def test_rewards_that_follow_times_are_rewards(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", timestamps=np.arange(3) / 10, rewards=np.ones(3))
    (ep,) = read(tmp_path / "a.npz")
    assert ep.rewards is not None
    assert ep.rewards.data.tolist() == [1, 1, 1]
    assert not ep.observations


def test_rewards_and_ends_in_columns_of_one_number_are_rewards_and_ends(tmp_path: Path) -> None:
    ends = np.array([[False], [False], [True]])
    np.savez(tmp_path / "a.npz", actions=np.ones((3, 1)), rewards=np.ones((3, 1)), dones=ends)
    (ep,) = read(tmp_path / "a.npz")
    assert ep.rewards is not None
    assert ep.rewards.data.tolist() == [1, 1, 1]
    assert ep.terminations is not None
    assert ep.terminations.data.tolist() == [False, False, True]
    assert ep.actions["action"].shape == (3, 1)
    assert {change.field for change in ep.lost} == {"rewards", "dones"}


@pytest.mark.parametrize("form", ["npz", "table", "robomimic", "zarr", "dreamer"])
def test_cameras_that_are_encoded_are_written_as_pixels(tmp_path: Path, form: str) -> None:
    pytest.importorskip({"table": "pyarrow", "robomimic": "h5py", "zarr": "zarr"}.get(form, "PIL"))
    image = pytest.importorskip("PIL.Image")
    out = io.BytesIO()
    image.new("RGB", (8, 6), (9, 0, 255)).save(out, "JPEG")
    camera = VideoChannel.from_packets(
        [out.getvalue()] * 4, "image/jpeg", (6, 8, 3), lossy={"codec": "jpeg"}
    )
    episode = Episode("e", observations={"cam": camera}, actions={"action": np.zeros((4, 2))})
    path = tmp_path / ("out.parquet" if form == "table" else "out")
    report = write([episode], path, form)
    assert [change.field for change, _ in report.of_kind("decoded")] == ["signal/cam"]
    (back,) = read(path)
    found = back.observations["cam"]
    assert type(found) is Channel
    assert np.array_equal(found.data[:4], camera.data)
    if form in ("npz", "table", "zarr"):
        assert found.lossy == camera.lossy


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x89PNG\r\n", "looks like a PNG image: read it with Pillow"),
        (b"\x80\x04\x95", "looks like a Python pickle: do not unpickle"),
        (bytes(8) + b"SPR1" + bytes(200), "looks like a ShardPack: open it with shardpack"),
        (bytes(range(200, 250)), "name the format if you know it"),
        (None, "found a folder"),
    ],
)
def test_what_is_not_a_dataset_is_named(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "x"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(
        InvalidArgument, match=f"not a dataset in a format that can be read.*{said}"
    ):
        load(path)
