"""RLDS in and out. The dataset in `fixtures/rlds` was written by tensorflow-datasets 4.9.10 (`make.py` beside it).
Whether TFDS parses what is written here, `tests/bridges/test_tfds.py` asks."""

from __future__ import annotations

import importlib.util
import json
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_format.errors import (
    BadMetadata,
    BadValue,
    ChecksumMismatch,
    InvalidArgument,
    ShardError,
    SizeMismatch,
    Truncated,
    UnsafePath,
)
from wshard import Channel, Episode, convert, load_wshard, save_wshard
from wshard.convert._model import Notes, ReadOptions
from wshard.convert._rlds import RldsReader
from wshard.convert._tf_example import (
    ByteStrings,
    decode_varints,
    encode_example,
    encode_varints,
    parse_example,
)
from wshard.convert._tfds import TFRecordFile, masked_crc32c
from wshard.types import Modality, RaggedChannel
from wshard.video import VideoChannel

FIXTURES = Path(__file__).parent / "fixtures" / "rlds"
DEMO = FIXTURES / "demo" / "1.0.0"


def load_maker() -> Any:  # noqa: ANN401 - anything
    spec = importlib.util.spec_from_file_location("make_rlds", FIXTURES / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make = load_maker()
NUMBERS = dict(zip(("train_0", "train_1", "val_0"), (0, 1, 2), strict=True))


def demo() -> dict[int, convert.ConvertedEpisode]:
    """The episodes by the number that they were made of: TensorFlow Datasets shuffles them."""
    found = {}
    for episode in convert.read(DEMO):
        path = episode.metadata["rlds"]["episode"]["episode_metadata/file_path"]
        found[int(Path(path).stem)] = episode
    return found


def column(steps: list[dict[str, Any]], *keys: str) -> Any:  # noqa: ANN401 - anything
    values = []
    for step in steps:
        value = step
        for key in keys:
            value = value[key]
        values.append(value)
    return values


def records(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The lists of every record of a dataset, by split."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("*.tfrecord-*")):
        file = TFRecordFile(str(path))
        for number in range(len(file.starts) - 1):
            example = parse_example(file.read(number))
            values = {name: example.values(name) for name in example.names}
            found.setdefault(path.name.split("-")[1].split(".")[0], []).append(
                {
                    name: [bytes(one) for one in value] if isinstance(value, ByteStrings) else value
                    for name, value in values.items()
                }
            )
    return found


# --- reading


def test_every_value_of_a_dataset_of_tfds_is_read() -> None:
    for number, episode in demo().items():
        made = make.episode(number)
        steps = made["steps"]
        for name, channel in episode.observations.items():
            if name in ("discount", "language_instruction"):
                expected = column(steps, name)
            else:
                expected = column(steps, "observation", name)
            if name == "image":
                assert np.abs(channel.data.astype(int) - np.array(expected)).max() <= 12
            elif channel.layout == "dense":
                assert np.array_equal(channel.data, np.array(expected)), name
            else:
                assert [np.asarray(one).tolist() for one in channel.data] == [
                    np.asarray(one).tolist() for one in expected
                ], name
        kinds = {name: channel.dtype.name for name, channel in episode.observations.items()}
        for name in ("wrist", "depth", "metres", "exact", "half", "large", "bytes", "negative"):
            assert kinds[name] == np.asarray(steps[0]["observation"][name]).dtype.name
        cameras = {
            name: episode.observations[name].modality for name in ("wrist", "depth", "metres")
        }
        assert list(cameras.values()) == [Modality.RGB, Modality.DEPTH, Modality.DEPTH]
        assert episode.metadata["task"] == "öffne die Tür"
        assert episode.metadata["success"] is (number != 1)
        facts = episode.metadata["rlds"]["episode"]
        assert facts["episode_metadata/number"] == -number
        assert facts["episode_metadata/tags"] == ["a"] * number
        gains = episode.extras["rlds/episode_metadata/gains"]
        assert isinstance(gains, Channel)
        assert gains.data.tolist() == [number, 2 * number, 3 * number]
        assert episode.observations["colour"].extra["classes"] == ["red", "blue"]
        kept = {
            name: channel.content_type
            for name, channel in episode.observations.items()
            if channel.layout == "video"
        }
        assert kept == {"image": "image/jpeg", "wrist": "image/png", "depth": "image/png"}
        assert not episode.lost


def test_the_last_step_is_a_step_unless_it_is_an_observation_only() -> None:
    episodes = demo()
    first = episodes[0]
    assert first.length == first.observations["state"].length == first.actions["arm"].length == 4
    assert first.terminations is not None
    assert first.truncations is not None
    assert first.terminations.data.tolist() == [False, False, False, True]
    assert episodes[1].truncations is not None
    assert episodes[1].truncations.data.tolist() == [False] * 4 + [True]
    final = episodes[2]
    steps = make.episode(2)["steps"]
    assert (final.length, final.observations["state"].length) == (5, 6)
    assert final.actions["gripper"].data.tolist() == [-1, -2, -3, -4, -5]
    assert final.rewards is not None
    assert final.rewards.data.tolist() == column(steps, "reward")[:-1]
    assert final.terminations is not None
    assert final.terminations.data.tolist() == [False] * 4 + [True]


def test_one_file_of_a_dataset_can_be_read_alone() -> None:
    path = DEMO / "demo-val.tfrecord-00000-of-00001"
    assert convert.detect(str(path)).name == "rlds"
    (episode,) = convert.read(path)
    assert (episode.id, episode.length) == ("val_0", 5)


def test_episodes_are_read_in_any_order_and_pictures_when_they_are_used() -> None:
    source = RldsReader(str(DEMO), ReadOptions())
    assert list(source.names()) == list(NUMBERS)
    one, again = (source.read(1, Notes()) for _ in range(2))
    assert np.array_equal(one.observations["wrist"].data, again.observations["wrist"].data)
    with pytest.raises(IndexError):
        source.read(3, Notes())


def test_pictures_become_pixels_if_you_ask_for_that() -> None:
    for kept, pixels in zip(convert.read(DEMO), convert.read(DEMO, video="decode"), strict=True):
        assert [(one.kind, one.field) for one in pixels.lost] == [
            ("decoded", "steps/observation/image")
        ]
        for name in ("image", "wrist", "depth", "metres"):
            assert type(pixels.observations[name]) is Channel
            same = kept.observations[name]
            assert np.array_equal(pixels.observations[name].data, same.data)
            assert pixels.observations[name].lossy == same.lossy


# --- there and back


def test_a_dataset_comes_back_as_it_was(tmp_path: Path) -> None:
    def through_files() -> Any:  # noqa: ANN401 - anything
        for number, episode in enumerate(convert.read(DEMO)):
            save_wshard(episode, tmp_path / f"{number}.wshard")
            yield load_wshard(tmp_path / f"{number}.wshard")

    report = convert.write(through_files(), tmp_path / "back", "rlds")
    assert {change.kind for change in report.changes} == {"kept", "filled"}
    padding = {"steps/action/arm", "steps/action/gripper", "steps/reward"}
    assert {change.field for change, _ in report.of_kind("filled")} == padding
    before, after = records(DEMO), records(tmp_path / "back")
    pictures = ("image", "wrist", "depth", "metres")
    for split in before:
        for old, new in zip(before[split], after[split], strict=True):
            assert old.keys() == new.keys()
            for name, values in old.items():
                if name.endswith("metres"):
                    continue
                if isinstance(values, np.ndarray):
                    assert values.dtype == new[name].dtype
                    assert values.tolist() == new[name].tolist(), name
                elif name.endswith("packed"):
                    assert list(map(zlib.decompress, values)) == list(
                        map(zlib.decompress, new[name])
                    )
                else:
                    assert values == new[name], name
    for one, other in zip(convert.read(DEMO), convert.read(tmp_path / "back"), strict=True):
        for name in pictures:
            assert np.array_equal(one.observations[name].data, other.observations[name].data)
    old_features, new_features = (
        json.loads((folder / "features.json").read_text()) for folder in (DEMO, tmp_path / "back")
    )
    assert old_features == new_features
    labels = "steps-observation-colour.labels.txt"
    assert (DEMO / labels).read_text() == (tmp_path / "back" / labels).read_text()


def made_by_hand(number: int = 0, steps: int = 5) -> Episode:
    random = np.random.default_rng(number)
    episode = Episode(f"hand_{number}", env_id="Reach-v1")
    episode.timebase.tick_hz = 20.0
    for dtype in ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?"):
        values = (random.random((steps + 1, 3)) * 100).astype(dtype)
        episode.observations[f"types/{np.dtype(dtype).name}"] = values
    episode.observations["camera"] = Channel(
        data=random.integers(0, 256, (steps + 1, 16, 12, 3)).astype(np.uint8), modality=Modality.RGB
    )
    episode.observations["text"] = [f"é{t}" for t in range(steps + 1)]
    episode.observations["points"] = RaggedChannel(
        data=[random.random((t, 2)).astype(np.float32) for t in range(steps + 1)]
    )
    episode.actions["action"] = random.random((steps, 2)) + 1
    episode.rewards = random.random(steps)
    episode.terminations = np.arange(steps) == steps - 1
    episode.truncations = np.zeros(steps, np.bool_)
    episode.timestamps_ns = np.arange(steps) * 50_000_000 + 7
    episode.metadata = {"task": "reach", "nested": [1, {"a": None}]}
    return episode


def assert_same(one: Episode, other: Episode) -> None:
    assert (one.id, one.env_id, one.length, one.timebase) == (
        *(other.id, other.env_id, other.length, other.timebase),
    )
    assert one.metadata == other.metadata
    assert dict(one.blocks()).keys() == dict(other.blocks()).keys()
    for name, channel in one.blocks():
        back = other.find(name)
        assert (channel.dtype, channel.shape) == (back.dtype, back.shape), name
        for a, b in zip(channel.data, back.data, strict=True):
            assert np.array_equal(a, b), name


def test_an_episode_of_ours_with_one_more_observation_comes_back_as_it_was(tmp_path: Path) -> None:
    episodes = [made_by_hand(number) for number in range(3)]
    report = convert.write(episodes, tmp_path / "out", "rlds")
    assert {change.kind for change in report.changes} == {"kept", "filled"}
    filled = {change.field for change, _ in report.of_kind("filled")}
    assert filled == {"steps/action", "steps/reward"}
    for one, other in zip(episodes, convert.read(tmp_path / "out"), strict=True):
        assert_same(one, other)
        assert other.timestamps_ns is not None
        assert one.timestamps_ns is not None
        assert other.timestamps_ns.tolist() == one.timestamps_ns.tolist()


def test_a_feature_becomes_a_group_where_channels_were_added(tmp_path: Path) -> None:
    episode = Episode("e")
    episode.observations["observation"] = np.ones((4, 3), np.float32)
    episode.actions["action"] = np.ones((4, 2), np.float32)
    convert.write([episode], tmp_path / "a", "rlds")
    path = tmp_path / "a" / "features.json"
    features = json.loads(path.read_text())
    del features["featuresDict"]["features"]["episode_metadata"]  # as if others had written it
    path.write_text(json.dumps(features))
    (found,) = convert.read(tmp_path / "a")
    found.observations["speed"] = np.arange(4, dtype=np.float32)
    found.actions["grip"] = np.ones((4, 1), np.float32)
    convert.write([found], tmp_path / "b", "rlds")
    (back,) = convert.read(tmp_path / "b")
    assert {name: channel.shape for name, channel in back.observations.items()} == {
        "observation": (4, 3),
        "speed": (4,),
    }
    assert {name: channel.shape for name, channel in back.actions.items()} == {
        "action": (4, 2),
        "grip": (4, 1),
    }


@pytest.mark.parametrize(
    "features",
    [
        {"tensor": {"dtype": "float32"}},
        {"featuresDict": {"features": {"steps": {"tensor": {"dtype": "float32"}}}}},
    ],
)
def test_metadata_that_only_looks_like_rlds_does_not_matter(tmp_path: Path, features: Any) -> None:  # noqa: ANN401 - JSON
    episode = Episode("e", metadata={"rlds": {"features": features}})
    episode.observations["x"] = np.ones((4, 3), np.float32)
    convert.write([episode], tmp_path / "out", "rlds")
    (back,) = convert.read(tmp_path / "out")
    assert np.array_equal(back.observations["x"].data, episode.observations["x"].data)


def test_pictures_with_colours_of_16_bits_stay_encoded_beside_the_episode(tmp_path: Path) -> None:
    folder = damaged(tmp_path, lambda data: data).parent
    path = folder / "features.json"
    features = json.loads(path.read_text())
    inner = features["featuresDict"]["features"]["steps"]["sequence"]["feature"]
    images = inner["featuresDict"]["features"]["observation"]["featuresDict"]["features"]
    images["wrist"]["image"]["dtype"] = "uint16"
    path.write_text(json.dumps(features))
    for episode in convert.read(folder):
        assert "wrist" not in episode.observations
        assert "rlds/steps/observation/wrist" in episode.extras


@pytest.mark.parametrize("video", ["keep", "decode"])
def test_encoded_cameras_of_any_origin_go_in_as_pictures(tmp_path: Path, video: str) -> None:
    pytest.importorskip("av")
    frames = np.random.default_rng(0).integers(0, 256, (5, 40, 48, 3), np.uint8)
    episode = Episode("e")
    episode.actions["action"] = np.ones((5, 1), np.float32)
    for codec in ("jpeg:90", "png", "ffv1"):
        episode.observations[codec[:4]] = VideoChannel.encode(frames, codec)
    episode.observations["last"] = VideoChannel.encode(np.resize(frames, (6, 40, 48, 3)), "png")
    report = convert.write([episode], tmp_path / "out", "rlds", video=video)
    decoded = {change.field for change, _ in report.of_kind("decoded")}
    kept = {"signal/jpeg", "signal/png", "signal/last"} if video == "keep" else set()
    assert decoded == {"signal/jpeg", "signal/png", "signal/ffv1", "signal/last"} - kept
    features = (tmp_path / "out" / "features.json").read_text()
    assert features.count('"encodingFormat": "jpeg"') == (1 if video == "keep" else 0)
    (found,) = convert.read(tmp_path / "out")
    for name, channel in episode.observations.items():
        back = found.observations[name]
        assert np.array_equal(back[: channel.length], channel.data), name
        assert back.content_type == (
            "image/jpeg" if video == "keep" and name == "jpeg" else "image/png"
        )
    # The last frame is repeated beside the one observation more.
    assert np.array_equal(found.observations["jpeg"][5], episode.observations["jpeg"][4])


def test_an_episode_of_ours_whose_last_action_is_zero_keeps_its_length(tmp_path: Path) -> None:
    episodes = [Episode("a"), Episode("b")]
    for episode, dtype in zip(episodes, (np.float64, np.float32), strict=True):
        episode.observations["x"] = np.ones((4, 2), dtype)
        episode.actions["action"] = np.zeros((4, 2))
    report = convert.write(episodes, tmp_path / "out", "rlds")
    assert [change.field for change, _ in report.of_kind("cast")] == ["steps/observation/x"]
    for found in convert.read(tmp_path / "out"):
        assert (found.length, found.observations["x"].shape) == (4, (4, 2))
        assert (found.terminations, found.truncations) == (None, None)


def test_what_rlds_cannot_hold_is_noted(tmp_path: Path) -> None:
    first, second = Episode("a"), Episode("b")
    first.observations["x"] = np.zeros((4, 2), np.float32)
    first.observations["x/y"] = np.ones(4, np.float32)
    first.observations["imu"] = Channel(data=np.zeros((9, 6)), start_ns=0, sampling_rate_hz=100)
    first.observations["scan"] = RaggedChannel(data=[np.array([0.1] * t) for t in range(4)])
    first.omens["x"]["dreamer"] = np.zeros((4, 2), np.float32)
    first.labels["contact"] = []
    second.observations["x"] = np.zeros((3, 5), np.float32)
    second.observations["new"] = np.zeros(3)
    report = convert.write([first, second], tmp_path / "out", "rlds")
    kinds: dict[str, set[str]] = {}
    for change in report.changes:
        kinds.setdefault(change.kind, set()).add(change.field)
    assert {"signal/imu", "label/contact", "steps/observation/x", "steps/observation/new"} <= kinds[
        "dropped"
    ]
    assert kinds["cast"] == {"steps/observation/scan"}
    assert kinds["renamed"] == {"signal/x/y"}
    assert "steps/is_terminal" in kinds["filled"]
    one, other = convert.read(tmp_path / "out")
    assert one.omens["x"]["dreamer"].shape == (4, 2)
    assert other.observations["x"].shape == (3, 2)


# --- damaged and hostile files


def damaged(tmp_path: Path, change: Any) -> Path:  # noqa: ANN401 - anything
    folder = tmp_path / "demo"
    shutil.copytree(DEMO, folder)
    path = folder / "demo-val.tfrecord-00000-of-00001"
    path.write_bytes(change(path.read_bytes()))
    return path


def test_a_file_that_is_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = (DEMO / "demo-val.tfrecord-00000-of-00001").read_bytes()
    path = damaged(tmp_path, lambda data: data)
    for size in (*range(1, 20), len(whole) // 2, len(whole) - 4, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(Truncated, match="demo-val"):
            list(convert.read(path, "rlds"))


@pytest.mark.parametrize("place", [0, 8, 20, 5000, -1])
def test_a_changed_byte_is_found_by_its_checksum(tmp_path: Path, place: int) -> None:
    def change(data: bytes) -> bytes:
        flipped = bytearray(data)
        flipped[place] ^= 1
        return bytes(flipped)

    path = damaged(tmp_path, change)
    with pytest.raises(ChecksumMismatch, match="demo-val"):
        list(convert.read(path, "rlds"))


@pytest.mark.parametrize("size", [1 << 20, 1 << 40, (1 << 64) - 1])
def test_a_length_that_lies_is_refused(tmp_path: Path, size: int) -> None:
    head = struct.pack("<Q", size)
    lie = head + struct.pack("<I", masked_crc32c(head)) + bytes(100)
    path = damaged(tmp_path, lambda _: lie)
    with pytest.raises(Truncated):
        list(convert.read(path, "rlds"))


def record(content: bytes) -> bytes:
    head = struct.pack("<Q", len(content))
    return (
        head
        + struct.pack("<I", masked_crc32c(head))
        + content
        + struct.pack("<I", masked_crc32c(content))
    )


def changed_record(tmp_path: Path, **features: Any) -> Path:  # noqa: ANN401 - anything
    """The episode of `val` with other lists in its record."""

    def change(data: bytes) -> bytes:
        example = parse_example(data[12:-4])
        lists: dict[str, Any] = {name: example.encoded(name) for name in example.names}
        lists.update({name.replace("__", "/"): value for name, value in features.items()})
        kept = {name: value for name, value in lists.items() if value is not None}
        return record(b"".join(encode_example(kept)))

    return damaged(tmp_path, change)


@pytest.mark.parametrize(
    ("features", "error"),
    [
        ({"steps__reward": np.zeros(3, np.float32)}, SizeMismatch),
        ({"steps__observation__state": np.zeros(17, np.float32)}, SizeMismatch),
        ({"steps__observation__state": np.zeros(18, np.int64)}, BadValue),
        ({"steps__observation__bytes": np.full(12, 256)}, BadValue),
        ({"steps__observation__points__ragged_row_lengths_0": np.full(6, 1 << 62)}, SizeMismatch),
        (
            {"steps__observation__points__ragged_row_lengths_0": np.array([-1, 1, 2, 0, 1, 0])},
            SizeMismatch,
        ),
        ({"steps__observation__exact": [b"123"] * 6}, SizeMismatch),
        ({"steps__observation__packed": [zlib.compress(bytes(1 << 20))] * 6}, SizeMismatch),
        ({"steps__observation__packed": [b"not zlib"] * 6}, BadValue),
        ({"steps__observation__wrist": [b"not a picture"] * 6}, BadValue),
        ({"steps__language_instruction": [b"\xff"] * 6}, InvalidArgument),
        ({"steps__is_last": None}, BadValue),
    ],
)
def test_values_that_do_not_fit_their_description_are_refused(
    tmp_path: Path, features: dict[str, Any], error: type[ShardError]
) -> None:
    path = changed_record(tmp_path, **features)
    field = next(iter(features)).split("__")[-1].split("ragged")[0]
    with pytest.raises(error, match=field if field else "points"):
        next(iter(convert.read(path, "rlds"))).load()


@pytest.mark.parametrize("template", ["../../{SPLIT}", "/etc/passwd", "{SPLIT}\0", "\ud800"])
def test_a_template_that_leads_elsewhere_is_refused(tmp_path: Path, template: str) -> None:
    folder = damaged(tmp_path, lambda data: data).parent
    info = json.loads((folder / "dataset_info.json").read_text())
    info["splits"][0]["filepathTemplate"] = template
    (folder / "dataset_info.json").write_text(json.dumps(info))
    with pytest.raises(UnsafePath):
        list(convert.read(folder))


@pytest.mark.parametrize(
    "lengths", [["99999999999999999"], ["-1"], ["x"], [None], [np.inf], "abc", 5]
)
def test_lengths_of_shards_that_make_no_sense_are_refused(tmp_path: Path, lengths: Any) -> None:  # noqa: ANN401 - anything
    folder = damaged(tmp_path, lambda data: data).parent
    info = json.loads((folder / "dataset_info.json").read_text())
    info["splits"][0]["shardLengths"] = lengths
    (folder / "dataset_info.json").write_text(json.dumps(info))
    with pytest.raises(BadMetadata, match=r"dataset_info\.json"):
        list(convert.read(folder))


def test_a_wrong_number_of_episodes_is_noticed(tmp_path: Path) -> None:
    folder = damaged(tmp_path, lambda data: data).parent
    info = json.loads((folder / "dataset_info.json").read_text())
    info["splits"][0]["shardLengths"] = ["1"]
    (folder / "dataset_info.json").write_text(json.dumps(info))
    with pytest.raises(SizeMismatch, match="a different number of records"):
        list(convert.read(folder))


def test_features_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    folder = damaged(tmp_path, lambda data: data).parent
    node: Any = {"tensor": {"dtype": "float32", "shape": {"dimensions": ["-7"]}}}
    bad = [
        node,
        {"tensor": {"dtype": "float32", "shape": {"dimensions": [np.inf]}}},
        {"tensor": {"dtype": "float32", "encoding": "pickle"}},
        {"sequence": 3},
        {"featuresDict": []},
        7,
    ]
    deep: Any = {"text": {}}
    for _ in range(60):
        deep = {"featuresDict": {"features": {"a": deep}}}
    for steps in (*bad, deep):
        features = {"featuresDict": {"features": {"steps": {"sequence": {"feature": steps}}}}}
        (folder / "features.json").write_text(json.dumps(features))
        with pytest.raises(BadMetadata, match=r"features\.json"):
            list(convert.read(folder))


def test_a_shape_that_claims_too_much_is_refused(tmp_path: Path) -> None:
    folder = damaged(tmp_path, lambda data: data).parent
    path = folder / "features.json"
    features = json.loads(path.read_text())
    inner = features["featuresDict"]["features"]["steps"]["sequence"]["feature"]
    tensors = inner["featuresDict"]["features"]["observation"]["featuresDict"]["features"]
    tensors["packed"]["tensor"]["shape"] = {"dimensions": ["2147483647"] * 3}
    path.write_text(json.dumps(features))
    with pytest.raises(SizeMismatch, match="packed"):
        next(iter(convert.read(folder))).load()


def test_array_record_is_refused_with_a_way_out(tmp_path: Path) -> None:
    folder = damaged(tmp_path, lambda data: data).parent
    info = json.loads((folder / "dataset_info.json").read_text())
    info["fileFormat"] = "array_record"
    (folder / "dataset_info.json").write_text(json.dumps(info))
    with pytest.raises(InvalidArgument, match=r"array_record.*convert_format"):
        list(convert.read(folder))


# --- protocol buffers


@pytest.mark.parametrize(
    "values",
    [
        [0, 1, 127],
        [128, 255, 0, 16383],
        [16384, 0, 1 << 27, 300],
        [1 << 40, 5, 1 << 56],
        [-1, 0, -(1 << 63), (1 << 63) - 1],
        [],
    ],
)
def test_integers_of_variable_length_come_back(values: list[int]) -> None:
    stored = encode_varints(np.array(values, np.int64))
    assert decode_varints(stored).tolist() == values
    plain = bytearray()
    for value in values:
        rest = value & 0xFFFFFFFFFFFFFFFF
        while rest > 127:
            plain.append(rest & 127 | 128)
            rest >>= 7
        plain.append(rest)
    assert stored == bytes(plain)


def test_lists_that_are_not_packed_are_read() -> None:
    floats = b"".join(b"\x0d" + struct.pack("<f", value) for value in (1.5, -2.0))
    integers = b"\x08\x05\x08\x96\x01" + b"\x0a\x02\x07\x08"

    def entry(name: bytes, kind: bytes, content: bytes) -> bytes:
        feature = kind + bytes([len(content)]) + content
        body = b"\x0a" + bytes([len(name)]) + name + b"\x12" + bytes([len(feature)]) + feature
        return b"\x0a" + bytes([len(body)]) + body

    features = entry(b"f", b"\x12", floats) + entry(b"i", b"\x1a", integers)
    example = parse_example(b"\x0a" + bytes([len(features)]) + features + b"\x10\x01")
    found: Any = example.values("f")
    assert found.tolist() == [1.5, -2.0]
    found = example.values("i")
    assert found.tolist() == [5, 150, 7, 8]


@pytest.mark.parametrize(
    "content",
    [b"\x0a", b"\x0a\x05ab", b"\xff" * 12, b"\x0b\x0c", b"\x0a\xff\xff\xff\xff\x0f", b"\x09abc"],
)
def test_what_is_not_an_example_is_refused(content: bytes) -> None:
    with pytest.raises(BadValue, match=r"tf\.train\.Example"):
        parse_example(content)
