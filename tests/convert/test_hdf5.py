"""Any HDF5 file, with a mapping."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shard_format.errors import BadValue, InvalidArgument, LimitExceeded, ShardError, UnsafePath
from wshard import Episode, load_wshard, save_wshard
from wshard.convert import detect, read, write
from wshard.convert._mapped_hdf5 import load_mapping, suggest_mapping
from wshard.video import VideoChannel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

h5py = pytest.importorskip("h5py")
image = pytest.importorskip("PIL.Image")

LENGTHS = (4, 6, 3)
RANDOM = np.random.default_rng(9)


def png(value: int) -> Any:  # noqa: ANN401 - an array
    """An encoded image of one colour."""
    stream = io.BytesIO()
    image.new("RGB", (8, 6), (value, 0, 255)).save(stream, "PNG")
    return np.frombuffer(stream.getvalue(), np.uint8)


def make_groups(path: Path) -> Path:
    """A group for each episode."""
    with h5py.File(path, "w") as file:
        file.attrs["robot"] = "arm"
        file["split/train"] = [0, 5]
        for number, steps in enumerate(LENGTHS):
            group = file.create_group(f"runs/take_{number * 5}")
            group.attrs["operator"] = "B"
            group["obs/qpos"] = RANDOM.normal(size=(steps + 1, 7))
            group["obs/cam"] = RANDOM.integers(0, 255, (steps + 1, 6, 8, 3)).astype(np.uint8)
            group["obs/words"] = ["go"] * steps
            frames = group.create_dataset("obs/png", (steps,), h5py.vlen_dtype(np.uint8))
            for step in range(steps):
                frames[step] = png(step)
            group["actions"] = RANDOM.normal(size=(steps, 2)).astype(np.float32)
            group["reward"] = RANDOM.normal(size=(steps, 1))
            group["stamp"] = np.arange(steps) * 0.5
            group["success"] = bool(number)
            group["camera_matrix"] = np.eye(3)
            group["weird"] = np.zeros(4, [("x", "f4"), ("y", "f4")])
    return path


GROUPS: dict[str, Any] = {
    "episodes": "runs/take_*",
    "observations": {
        "joints": {"path": "obs/qpos", "unit": "rad", "names": list("abcdefg")},
        "cam": {"path": "obs/cam", "modality": "rgb"},
        "png": "obs/png",
        "words": "obs/words",
    },
    "actions": {"action": "actions"},
    "rewards": "reward",
    "timestamps": {"path": "stamp", "unit": "s"},
    "metadata": {"success": "success"},
    "extras": {"intrinsics": "camera_matrix"},
    "env_id": "Arm-v0",
}


def make_flat(path: Path) -> Path:
    """The steps of all episodes back to back."""
    count = sum(LENGTHS)
    last = np.zeros(count, np.bool_)
    last[np.cumsum(LENGTHS)[:-1] - 1] = True
    with h5py.File(path, "w") as file:
        file["data/state"] = RANDOM.normal(size=(count, 5))
        file["data/action"] = RANDOM.normal(size=(count, 2))
        file["data/episode"] = np.repeat(np.arange(len(LENGTHS)) % 2, LENGTHS)
        file["data/last"] = last
        file["meta/ends"] = np.cumsum(LENGTHS)
        file["meta/lengths"] = np.array(LENGTHS)
        file["meta/seed"] = np.arange(len(LENGTHS)) + 7
        file["meta/task"] = ["a", "b", "c"]
        file["meta/matrix"] = RANDOM.normal(size=(len(LENGTHS), 2, 2))
    return path


def test_groups_become_episodes_as_the_mapping_says(tmp_path: Path) -> None:
    path = make_groups(tmp_path / "a.h5")
    assert detect(str(path)).name == "hdf5"
    expected = {}
    with h5py.File(path, "r") as file:
        for number in range(3):
            group = file[f"runs/take_{number * 5}"]
            names = ("obs/qpos", "obs/cam", "actions", "reward")
            expected[number] = {name: group[name][:] for name in names}
    for number, episode in enumerate(read(path, mapping=GROUPS)):
        save_wshard(episode, tmp_path / "one.wshard")
        own = load_wshard(tmp_path / "one.wshard")
        group = expected[number]
        assert own.id == f"take_{number * 5}"
        assert own.length == LENGTHS[number]
        assert own.env_id == "Arm-v0"
        joints = own.observations["joints"]
        np.testing.assert_array_equal(joints.data, group["obs/qpos"], strict=True)
        assert (joints.unit, joints.extra["names"][0]) == ("rad", "a")
        np.testing.assert_array_equal(own.observations["cam"].data, group["obs/cam"])
        assert own.observations["words"].data == ["go"] * LENGTHS[number]
        assert own.observations["png"].data[2, 0, 0].tolist() == [2, 0, 255]
        assert own.observations["png"].content_type == "image/png"
        np.testing.assert_array_equal(own.actions["action"].data, group["actions"])
        assert own.rewards is not None
        np.testing.assert_array_equal(own.rewards.data, group["reward"][:, 0], strict=True)
        assert own.timestamps_ns is not None
        assert own.timestamps_ns[:3].tolist() == [0, 500_000_000, 1_000_000_000]
        assert own.metadata == {
            "operator": "B",
            "success": bool(number),
            "dataset": {"robot": "arm"},
        }
        assert own.extras["intrinsics"].data.shape == (3, 3)
        assert {(note.kind, note.field) for note in episode.lost} == {
            ("dropped", "weird"),
            ("dropped", "/split"),
            ("cast", "stamp"),
        }
        own.close()
    assert number == 2


def picture(kind: str, mode: str = "RGB", size: tuple[int, int] = (8, 6)) -> bytes:
    stream = io.BytesIO()
    image.new(mode, size, 9).save(stream, kind)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("files", "kept", "noted"),
    [
        ([picture("JPEG")] * 3, "image/jpeg", set()),
        ([picture("PNG", "I;16")] * 3, "image/png", set()),
        ([picture("JPEG"), picture("PNG")], None, {"decoded"}),
        ([picture("WEBP")] * 2, None, {"decoded"}),
        ([picture("TIFF", "F")] * 2, None, set()),
    ],
)
@pytest.mark.parametrize("padded", [True, False])
def test_pictures_stay_as_they_are_if_all_are_alike(
    tmp_path: Path, files: list[bytes], kept: str | None, noted: set[str], padded: bool
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        if padded:
            rows = np.zeros((len(files), max(map(len, files)) + 7), np.uint8)
            for row, data in zip(rows, files, strict=True):
                row[: len(data)] = np.frombuffer(data, np.uint8)
            file["cam"] = rows
        else:
            dataset = file.create_dataset("cam", (len(files),), h5py.vlen_dtype(np.uint8))
            for step, data in enumerate(files):
                dataset[step] = np.frombuffer(data, np.uint8)
    mapping = {"observations": {"cam": {"path": "cam", "encoded": True}}}
    (episode,) = read(tmp_path / "a.h5", mapping=mapping)
    camera = episode.observations["cam"]
    assert camera.content_type == kept
    assert {note.kind for note in episode.lost} == noted
    if isinstance(camera, VideoChannel):
        assert [bytes(packet.data) for packet in camera.packets()] == files
    expected = [np.asarray(image.open(io.BytesIO(data))) for data in files]
    (pixels,) = read(tmp_path / "a.h5", mapping=mapping, video="decode")
    for found in (camera, pixels.observations["cam"]):
        assert [frame.tolist() for frame in found.data] == [one.tolist() for one in expected]
    assert {note.kind for note in pixels.lost} == noted | (
        {"decoded"} if kept == "image/jpeg" else set()
    )


@pytest.mark.parametrize(
    "other",
    [picture("PNG", size=(9, 6)), picture("PNG", "L"), b"\x89PNG"],
    ids=["size", "grey", "cut"],
)
def test_a_picture_unlike_the_first_is_named(tmp_path: Path, other: bytes) -> None:
    files = [picture("PNG"), picture("PNG"), other]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = file.create_dataset("cam", (3,), h5py.vlen_dtype(np.uint8))
        for step, data in enumerate(files):
            dataset[step] = np.frombuffer(data, np.uint8)
    with pytest.raises(ShardError, match="cam, step 2"):
        list(read(tmp_path / "a.h5", mapping={"observations": {"cam": "cam"}}))


@pytest.mark.parametrize(
    ("episodes", "lengths"),
    [
        ({"ends": "meta/ends"}, LENGTHS),
        ({"lengths": "/meta/lengths"}, LENGTHS),
        ({"last": ["data/last"]}, LENGTHS),
        ({"ids": "data/episode"}, LENGTHS),
        (None, (sum(LENGTHS),)),
    ],
)
def test_arrays_of_all_episodes_are_split(
    tmp_path: Path, episodes: Mapping[str, Any] | None, lengths: tuple[int, ...]
) -> None:
    path = make_flat(tmp_path / "a.h5")
    mapping = {"observations": {"state": "data/state"}, "actions": {"a": "data/action"}, "fps": 20}
    if episodes:
        extra = {"metadata": {"seed": "meta/seed", "task": "meta/task"}}
        mapping |= {"episodes": episodes, **extra, "extras": {"matrix": "meta/matrix"}}
    found = list(read(path, mapping=mapping))
    assert tuple(len(episode) for episode in found) == lengths
    with h5py.File(path, "r") as file:
        for lane, source in (("signal/state", "data/state"), ("action/a", "data/action")):
            joined = np.concatenate([episode.find(lane).data for episode in found])
            np.testing.assert_array_equal(joined, file[source][:], strict=True)
        if episodes:
            assert [episode.metadata["seed"] for episode in found] == [7, 8, 9]
            assert [episode.metadata["task"] for episode in found] == ["a", "b", "c"]
            np.testing.assert_array_equal(
                found[1].extras["matrix"].data, file["meta/matrix"][1], strict=True
            )
    assert found[0].timebase.tick_hz == 20


def test_without_a_mapping_the_error_says_how_to_get_one(tmp_path: Path) -> None:
    path = make_groups(tmp_path / "a.h5")
    with pytest.raises(InvalidArgument, match="suggest_mapping") as caught:
        next(read(path))
    assert "--suggest-map" in caught.value.command_text()


def test_a_suggested_mapping_finds_everything_in_groups(tmp_path: Path) -> None:
    path = make_groups(tmp_path / "a.h5")
    mapping = suggest_mapping(str(path))
    assert mapping == {
        "episodes": "runs/take_*",
        "observations": {
            "cam": {"path": "obs/cam", "modality": "rgb"},
            "png": {"path": "obs/png", "modality": "rgb", "encoded": True},
            "qpos": "obs/qpos",
            "words": "obs/words",
            "stamp": "stamp",
        },
        "actions": {"action": "actions"},
        "rewards": "reward",
        "metadata": {"success": "success"},
        "extras": {"camera_matrix": "camera_matrix"},
    }
    (tmp_path / "map.json").write_text(json.dumps(mapping))
    loaded = load_mapping(str(tmp_path / "map.json"))
    assert loaded == mapping
    assert [len(episode) for episode in read(path, mapping=loaded)] == list(LENGTHS)


def test_a_suggested_mapping_finds_the_ends_of_episodes(tmp_path: Path) -> None:
    path = make_flat(tmp_path / "a.h5")
    mapping = suggest_mapping(str(path))
    assert mapping["episodes"] == {"ends": "meta/ends"}
    assert mapping["actions"] == {"data/action": "data/action"}
    assert [len(episode) for episode in read(path, mapping=mapping)] == list(LENGTHS)
    for gone, expected in (
        ("meta/ends", "lengths"),
        ("meta/lengths", "ids"),
        ("data/episode", None),
    ):
        with h5py.File(path, "a") as file:
            del file[gone]
        assert list(suggest_mapping(str(path)).get("episodes", {})) == (
            [expected] if expected else []
        )


@pytest.mark.parametrize(
    ("mapping", "place"),
    [
        ({"observation": {}}, "did you mean 'observations'"),
        ({"observations": {"x": 5}}, "observations/x"),
        ({"observations": {"x": {"path": "a", "units": "m"}}}, "observations/x"),
        ({"observations": {"x": {"path": "a", "unit": 5}}}, "observations/x/unit"),
        ({"episodes": {"ends": "a", "ids": "b"}}, "episodes"),
        ({"episodes": {"ends": ["a", "b"]}}, "episodes/ends"),
        ({"episodes": {"last": []}}, "episodes/last"),
        ({"timestamps": {"path": "a", "unit": "min"}}, "timestamps/unit"),
        ({"fps": -1}, "fps"),
        ([], "mapping"),
    ],
)
def test_a_mapping_with_a_mistake_is_refused_with_the_field(
    tmp_path: Path,
    mapping: object,
    place: str,
) -> None:
    path = tmp_path / "map.json"
    path.write_text(json.dumps(mapping))
    with pytest.raises(InvalidArgument, match=place):
        load_mapping(str(path))


def test_files_that_do_not_fit_the_mapping_are_refused_with_the_place(tmp_path: Path) -> None:
    path = make_flat(tmp_path / "a.h5")
    for mapping, place in (
        ({"actions": {"a": "data/acton"}}, "did you mean 'action'"),
        ({"actions": {"a": "data"}}, "group"),
        ({"actions": {"a": "data/action"}, "observations": {"m": "meta/matrix"}}, "signal/m"),
        ({"episodes": {"ends": "data/state"}}, "data/state"),
        ({"episodes": {"ends": "meta/seed"}, "actions": {"a": "meta/ends"}}, "steps"),
        ({"rewards": "data/state"}, "data/state"),
        ({"observations": {"a": {"path": "data/state", "encoded": True}}}, "data/state"),
        ({"episodes": "nothing_*"}, "nothing"),
    ):
        with pytest.raises(ShardError, match=place):
            list(read(path, mapping=mapping))
    with h5py.File(path, "a") as file:
        file["far"] = h5py.ExternalLink("/etc/other.h5", "x")
        file.create_dataset("meta/unordered", data=[9, 3])
        file["gone"] = h5py.SoftLink("/nothing")
    with pytest.raises(UnsafePath, match="far"):
        list(read(path, mapping={"actions": {"a": "far/x"}}))
    with pytest.raises(BadValue, match="nothing"):
        list(read(path, mapping={"episodes": {"ends": "gone"}}))
    with pytest.raises(BadValue, match="order"):
        list(read(path, mapping={"episodes": {"ends": "meta/unordered"}}))


def test_groups_that_contain_themselves_and_empty_giants_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (1 << 40,), np.float64, chunks=(1024,))
    with pytest.raises(LimitExceeded, match="claims"):
        next(read(path, mapping={"actions": {"a": "x"}}))
    with h5py.File(path, "a") as file:
        for number in range(20):
            file[f"loop/again_{number}"] = h5py.SoftLink("/loop")
    assert path.stat().st_size < 1 << 16
    with pytest.raises(LimitExceeded, match="nested"):
        suggest_mapping(str(path))


def external(group: Any, name: str, secret: Path) -> None:  # noqa: ANN401 - an h5py.Group
    group[name] = h5py.ExternalLink(str(secret), "/x")


def external_on_the_way(group: Any, name: str, secret: Path) -> None:  # noqa: ANN401 - an h5py.Group
    group["elsewhere"] = h5py.ExternalLink(str(secret), "/")
    group[name] = h5py.SoftLink(f"{group.name}/elsewhere/x")


def virtual(group: Any, name: str, secret: Path) -> None:  # noqa: ANN401 - an h5py.Group
    layout = h5py.VirtualLayout((5, 3), "f8")
    layout[:] = h5py.VirtualSource(str(secret), "x", (5, 3))
    group.create_virtual_dataset(name, layout)


def stored_elsewhere(group: Any, name: str, secret: Path) -> None:  # noqa: ANN401 - an h5py.Group
    group.create_dataset(name, (5, 3), "f8", external=[(str(secret), 0, 120)])


@pytest.mark.parametrize("link", [external, external_on_the_way, virtual, stored_elsewhere])
@pytest.mark.parametrize(
    ("form", "where"),
    [
        ("aloha", "observations"),
        ("d4rl", "/"),
        ("hdf5", "run"),
        ("maniskill", "traj_0"),
        ("minari", "episode_0"),
        ("robomimic", "data/demo_0"),
    ],
)
def test_data_of_other_files_is_refused_in_every_format(
    tmp_path: Path, form: str, where: str, link: Callable[..., None]
) -> None:
    secret, path = tmp_path / "secret.h5", tmp_path / "in.hdf5"
    with h5py.File(secret, "w") as file:
        file["x"] = np.full((5, 3), 42.0)
    if form == "minari":
        write([Episode("ep", actions={"action": np.zeros((5, 2))})], tmp_path / "in", form)
        path = tmp_path / "in" / "data" / "main_data.hdf5"
    with h5py.File(path, "a") as file:
        group = file.require_group(where)
        for name in ("action", "actions", "rewards", "terminals", "obs/y", "infos/y"):
            if name not in group:
                group[name] = np.zeros(5) if name in ("rewards", "terminals") else np.zeros((5, 2))
        name = "observations" if form in ("d4rl", "minari") else "x"
        group.pop(name, None)
        link(group, name, secret)
    mapping = {"episodes": "run", "observations": {"x": "x"}} if form == "hdf5" else None
    episodes = read(tmp_path / "in" if form == "minari" else path, form, mapping=mapping)
    with pytest.raises(UnsafePath):
        [episode.load() for episode in episodes]


def test_a_chunk_that_is_much_larger_than_what_is_stored_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (3,), np.float64, maxshape=(None,), chunks=(1 << 28,))
    with pytest.raises(LimitExceeded, match="claims"):
        next(read(path, mapping={"actions": {"a": "x"}}))


def test_rows_of_text_that_all_point_to_the_same_bytes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    count, size = 300, 100_000
    with h5py.File(path, "w") as file:
        file["words"] = ["w" * size, *(f"{number}" for number in range(1, count))]
    content = bytearray(path.read_bytes())
    # The place of a string: its size, the address of a heap, its number there.
    first = content.index(size.to_bytes(4, "little"))
    content[first : first + 16 * count] = content[first : first + 16] * count
    path.write_bytes(content)
    with pytest.raises(LimitExceeded, match="words"):
        next(read(path, mapping={"observations": {"words": "words"}}))


def test_an_attribute_with_very_many_strings_or_a_damaged_one_is_refused_with_its_name(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file["x"] = np.zeros((3, 2))
        file.attrs["words"] = ["w"] * 4097
    with pytest.raises(LimitExceeded, match="attribute words"):
        next(read(path, mapping={"actions": {"a": "x"}}))
    with h5py.File(path, "w") as file:
        file["x"] = np.zeros((3, 2))
        file.attrs["words"] = "w" * 1003
    content = path.read_bytes()
    path.write_bytes(content.replace((1003).to_bytes(4, "little"), (1004).to_bytes(4, "little"), 1))
    with pytest.raises(BadValue, match="attribute words"):
        next(read(path, mapping={"actions": {"a": "x"}}))


def test_attributes_of_datasets_and_types_of_flags_are_noted(tmp_path: Path) -> None:
    path = make_flat(tmp_path / "a.h5")
    with h5py.File(path, "a") as file:
        file["data/state"].attrs["unit"] = "m"
    mapping = {"observations": {"s": "data/state"}, "terminations": "data/episode"}
    (episode,) = read(path, mapping=mapping)
    notes = {(note.kind, note.field) for note in episode.lost}
    assert {("dropped", "data/state attributes"), ("cast", "data/episode")} <= notes


def test_times_are_as_many_as_steps_and_finite(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["a"] = np.zeros((3, 2))
        file["one_more"] = np.arange(4) * 5
        file["few"] = np.arange(2.0)
        file["nan"] = np.array([0, 1, np.nan])
        file["far"] = np.full(3, 1 << 62)
    mapping: dict[str, Any] = {"actions": {"a": "a"}}
    mapping["timestamps"] = {"path": "one_more", "unit": "ms"}
    (episode,) = read(path, mapping=mapping)
    assert episode.timestamps_ns is not None
    assert episode.timestamps_ns.tolist() == [0, 5_000_000, 10_000_000]
    assert "one_more after the last step" in {note.field for note in episode.lost}
    for name in ("few", "nan", "far"):
        mapping["timestamps"] = {"path": name, "unit": "us"}
        with pytest.raises(BadValue, match=name):
            next(read(path, mapping=mapping))


def test_reading_ahead_gives_the_rows_of_each_episode(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    lengths = [100, 900, 1, 0, 299, 300, 700, 40, 40, 1620]
    data = np.arange(4000 * 512, dtype=np.float32).reshape(4000, 512)
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=data, chunks=(300, 512))
        file.create_dataset("y", data=data[:, :8])
        file["lengths"] = lengths
    names = {"x": "x", "y": "y"}
    mapping = {"episodes": {"lengths": "lengths"}, "observations": names}
    start = 0
    for episode, length in zip(read(path, mapping=mapping), lengths, strict=True):
        x, y = (episode.observations[name] for name in names)
        np.testing.assert_array_equal(x[length // 2 :], data[start + length // 2 : start + length])
        np.testing.assert_array_equal(x.data, data[start : start + length])
        np.testing.assert_array_equal(y.data, data[start : start + length, :8])
        start += length


def test_large_arrays_stay_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    data = np.arange(40_000.0).reshape(-1, 4)
    with h5py.File(path, "w") as file:
        file["x"] = data
        file["ends"] = [9_990, 10_000]
    mapping = {"episodes": {"ends": "ends"}, "observations": {"x": "x"}}
    episode = next(iter(read(path, mapping=mapping)))
    channel = episode.observations["x"]
    assert not channel.is_loaded
    assert channel.shape == (9_990, 4)
