"""MCAP files in and out, against the packages `mcap`, `mcap-protobuf-support`, `mcap-ros2-support` and `rosbags`."""

from __future__ import annotations

import base64
import json
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import wshard
from shard_format.errors import (
    BadMetadata,
    BadValue,
    ChecksumMismatch,
    InvalidArgument,
    LimitExceeded,
    ShardError,
    SizeMismatch,
    Truncated,
)
from tests.convert.mcap_support import made_episode
from tests.convert.ros_support import check_robot, encoded_picture, robot_messages
from wshard import Channel, Episode, Timebase
from wshard.convert import ConvertOptions, convert, detect, read, write
from wshard.convert._json_messages import columns_of
from wshard.convert._mcap import McapReader
from wshard.convert._model import Notes, ReadOptions
from wshard.video import VideoChannel

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from wshard.convert import ConvertedEpisode

writers = pytest.importorskip("mcap.writer")
readers = pytest.importorskip("mcap.reader")
rosbags_typesys = pytest.importorskip("rosbags.typesys")

SECOND = 1_000_000_000


def json_file(path: Path, messages: list[tuple[str, int, Any]], **options: Any) -> Path:  # noqa: ANN401 - of mcap
    """An MCAP file of JSON messages: topic, log time, content."""
    with path.open("wb") as out:
        writer = writers.Writer(out, **options)
        writer.start("p", "l")
        schema = writer.register_schema("any", "jsonschema", b'{"type":"object"}')
        channels: dict[str, int] = {}
        for number, (topic, log, content) in enumerate(messages):
            if topic not in channels:
                channels[topic] = writer.register_channel(topic, "json", schema, {"unit": "m"})
            data = json.dumps(content).encode()
            writer.add_message(channels[topic], log, data, log + 7, number)
        writer.add_attachment(1, 2, "cal.yaml", "text/yaml", b"fx: 1")
        writer.add_metadata("run", {"robot": "r2"})
        writer.finish()
    return path


def one(path: Path) -> ConvertedEpisode:
    (episode,) = read(path)
    return episode


def listed(path: Path) -> list[tuple[str, int, int, int, Any]]:
    """What the real library reads from a file of JSON messages."""
    with path.open("rb") as file:
        return [
            (channel.topic, m.log_time, m.publish_time, m.sequence, json.loads(m.data))
            for _, channel, m in readers.make_reader(file).iter_messages()
        ]


AWKWARD: list[Any] = [
    {"a": 1, "b": 1.5, "s": "x", "on": True, "v": {"x": 1, "y": 2.5, "z": 3}},
    {"a": 2, "b": 2, "s": "", "on": False, "v": {"x": 1, "y": 2, "z": 3}, "more": [1, 2]},
    {"a": 3, "b": None, "s": "ü", "on": True, "v": {"x": 0, "y": 0, "z": 0}, "more": []},
    {"t": {"sec": 5, "nsec": 7}, "list": [{"x": 1, "n": "p"}, {"x": 2, "n": "q"}], "e": {}},
    {"list": [], "names": ["u", "v"], "deep": [[1, 2], [3, 4]], "odd": [1, "a", None]},
    {"list": [{"p": {"x": 1, "y": 2}}], "mixed": 1, "big": 2**63, "way/../out": 1},
    {"mixed": "text", "big": 2**70, "deep": [[1, 2, 3]], "odd": {"k": [True, 1]}},
    {"list": [{"x": [1, 2]}, {"x": [3]}], "": 4, "flags": [True, False], "n": None},
    {"list": [{"a": {"x": 1}}, {"b": 2}], "t": {"sec": "x", "nsec": 7}, "huge": 2**60 + 1},
]


# --- JSON


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_chunking": False},
        {"compression": writers.CompressionType.LZ4, "chunk_size": 100},
        {"compression": writers.CompressionType.NONE},
        {"index_types": writers.IndexType.NONE, "use_statistics": False},
        {"use_chunking": False, "index_types": writers.IndexType.NONE, "repeat_channels": False},
    ],
    ids=str,
)
def test_json_messages_come_back_with_topics_times_and_values(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    messages = [("/odd", number * SECOND, content) for number, content in enumerate(AWKWARD)]
    messages += [("/n", 5, n) for n in range(3)]
    messages += [("plain", 10 * n, {"value": n / 3}) for n in range(50)]
    source = json_file(tmp_path / "a.mcap", messages, **options)
    wshard.save_wshard(one(source), tmp_path / "a.wshard")
    with wshard.load_wshard(tmp_path / "a.wshard") as episode:
        write([episode], tmp_path / "b.mcap", "mcap")
    assert sorted(listed(tmp_path / "b.mcap"), key=lambda m: m[3]) == sorted(
        listed(source), key=lambda m: m[3]
    )
    with (tmp_path / "b.mcap").open("rb") as file:
        reader = readers.make_reader(file)
        assert {c.topic for c in reader.get_summary().channels.values()} == {"/odd", "/n", "plain"}
        assert {tuple(c.metadata.items()) for c in reader.get_summary().channels.values()} == {
            (("unit", "m"),)
        }
        (attachment,) = reader.iter_attachments()
        assert (attachment.name, attachment.data, attachment.log_time) == ("cal.yaml", b"fx: 1", 2)
        assert {m.name: m.metadata for m in reader.iter_metadata()}["run"] == {"robot": "r2"}


def test_topics_become_channels_with_the_clock_of_their_messages(tmp_path: Path) -> None:
    messages = [
        ("/arm/state", 100 * n, {"q": [n, 0.5], "pose": {"x": n, "y": 1, "z": 2}}) for n in range(4)
    ]
    path = json_file(tmp_path / "drive.mcap", [*messages, ("/t", 50, {"text": "go", "ok": True})])
    assert detect(str(path)).name == "mcap"
    episode = one(path)
    assert (episode.id, episode.length) == ("drive", 0)
    q = episode.observations["arm/state/q"]
    assert q.data.tolist() == [[n, 0.5] for n in range(4)]
    assert q.timestamps_ns is not None
    assert q.timestamps_ns.tolist() == [0, 100, 200, 300]
    pose = episode.observations["arm/state/pose"]
    assert pose.extra["names"] == ["x", "y", "z"]
    assert pose.shape == (4, 3)
    assert episode.observations["t/text"].data == ["go"]
    assert episode.observations["t/ok"].dtype == np.bool_
    assert episode.observations["arm/state/publish_time_ns"].data.tolist() == [7, 107, 207, 307]
    assert bytes(episode.extras["attachments/cal.yaml"]) == b"fx: 1"
    assert episode.metadata["mcap"]["metadata"] == [{"name": "run", "metadata": {"robot": "r2"}}]
    assert episode.lost == ()
    aligned = episode.align(to="t/ok", method="previous")
    assert np.asarray(aligned["arm/state/q"].data).tolist() == [[0, 0.5]]


def test_log_times_that_run_backwards_are_sorted_and_noted(tmp_path: Path) -> None:
    messages = [("a", t, {"n": n, "v": [n] * (n + 1)}) for n, t in enumerate([5, 3, 3, 9, 1])]
    episode = one(json_file(tmp_path / "a.mcap", messages))
    assert episode.observations["a/n"].data.tolist() == [4, 1, 2, 0, 3]
    assert [v.tolist() for v in episode.observations["a/v"].data] == [
        [4] * 5, [1, 1], [2, 2, 2], [0], [3] * 4
    ]  # fmt: skip
    assert episode.observations["a/publish_time_ns"].data.tolist() == [8, 10, 10, 12, 16]
    assert [change.kind for change in episode.lost] == ["reordered"]


def test_topics_that_would_have_the_same_name_are_told_apart(tmp_path: Path) -> None:
    messages = [("/a", 1, {"b/c": 1, "b": {"c": 2}}), ("a", 1, {"b": {"c": 3}})]
    episode = one(json_file(tmp_path / "a.mcap", messages))
    values = {
        n: c.data.tolist()
        for n, c in episode.observations.items()
        if "time" not in n and "seq" not in n
    }
    assert values == {"a/b/c": [1], "a/b/c_2": [2], "a/b/c_3": [3]}
    assert sum(change.kind == "renamed" for change in episode.changes) >= 2


@pytest.mark.parametrize("seed", range(20))
def test_messages_give_the_same_channels_together_and_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    kinds = rng.choice(len(ODD_VALUES), 3)
    messages = [
        (
            "/a",
            n,
            {f"k{k}": ODD_VALUES[(k + (rng.random() < 0.02)) % len(ODD_VALUES)] for k in kinds},
        )
        for n in range(60)
    ]
    path = json_file(tmp_path / "a.mcap", messages)
    together = one(path)
    monkeypatch.setattr("wshard.convert._messages._ROWS", 1)
    apart = one(path)
    assert together.observations.keys() == apart.observations.keys()
    for name, channel in together.observations.items():
        other = apart.observations[name]
        assert (channel.dtype, channel.layout) == (other.dtype, other.layout)
        assert repr(channel.data) == repr(other.data)
        assert repr(channel.timestamps_ns) == repr(other.timestamps_ns)


ODD_VALUES: list[Any] = [
    *(1, 2.5, None, True, "text", 2**60, 2**70, [], {}, [1, 2], [1.5, 2], [0.5, None], [True]),
    *([None], ["a", "b"], ["a", 1], [[1, 2], [3, 4]], [[1], [2, 3]], [2**60, 1], [2**60, 0.5]),
    *({"x": 1, "y": 2}, {"x": 1, "y": 2.5}, {"x": 2**60, "y": 1}, {"x": "a", "y": "b"}),
    *({"x": True, "y": False}, {"sec": 1, "nsec": 2}, {"sec": 1, "nsec": -2}, {"a": {"b": [1]}}),
    *([{"x": 1, "y": 2}], [{"x": 1, "n": "p"}] * 2, [{"p": {"x": 1, "y": 2}}] * 2, [{"q": []}]),
    *([{}], [{"a": 1}, {"b": 2}], [{"a": [{"b": 1}]}]),
]


def test_a_topic_with_too_many_keys_becomes_text(tmp_path: Path) -> None:
    messages = [("/a", n, {f"key{n}": n}) for n in range(1200)]
    source = json_file(tmp_path / "a.mcap", messages)
    episode = one(source)
    assert json.loads(episode.observations["a"][7]) == {"key7": 7}
    write([episode], tmp_path / "b.mcap", "mcap")
    assert listed(tmp_path / "b.mcap") == listed(source)


def test_channels_of_all_kinds_go_there_and_back(tmp_path: Path) -> None:
    path = tmp_path / "a.mcap"
    with path.open("wb") as out:
        writer = writers.Writer(out)
        writer.start()
        plain = writer.register_channel("plain", "json", 0)
        odd = writer.register_channel("odd", "cbor", writer.register_schema("s", "x", b"\xff"))
        writer.register_channel("silent", "ros1", writer.register_schema("t", "ros1msg", b"int8 a"))
        other = writer.register_channel("plain", "json", writer.register_schema("u", "", b""))
        twins = [writer.register_channel("twin", "json", 0, {"node": node}) for node in "ab"]
        for number, (channel, data) in enumerate(
            [
                (plain, b'{"v": 2}'), (odd, b"\xa1\x01"), (odd, b"\xa1"), (other, b'{"v": "x"}'),
                (twins[0], b'{"n": 1}'), (twins[1], b'{"n": 2}'), (twins[0], b'{"n": 3}'),
            ]
        ):  # fmt: skip
            writer.add_message(channel, 5, data, 6, number)
        writer.finish()
    episode = one(path)
    assert episode.observations["plain/v"].data.tolist() == [2]
    assert episode.observations["plain/v_2"].data == ["x"]
    assert [v.tobytes() for v in episode.observations["odd"].data] == [b"\xa1\x01", b"\xa1"]
    write([episode], tmp_path / "b.mcap", "mcap")

    def everything(path: Path) -> tuple[Any, Any]:
        with path.open("rb") as file:
            reader = readers.make_reader(file)
            found = [
                (
                    c.topic,
                    c.message_encoding,
                    c.metadata,
                    s and (s.name, s.encoding, s.data),
                    m.sequence,
                    json_or(m.data),
                )
                for s, c, m in reader.iter_messages()
            ]
            topics = [c.topic for c in reader.get_summary().channels.values()]
        return sorted(found, key=lambda m: m[4]), sorted(topics)

    assert everything(tmp_path / "b.mcap") == everything(path)


def json_or(data: bytes) -> Any:  # noqa: ANN401 - any JSON, or bytes
    return json.loads(data) if data[:1] == b"{" else data


# --- ROS


def typestore() -> Any:  # noqa: ANN401 - of rosbags
    return rosbags_typesys.get_typestore(rosbags_typesys.Stores.ROS2_HUMBLE)


def ros_file(path: Path, messages: list[tuple[str, int, Any]], *, ros1: bool = False) -> Path:
    """An MCAP file of ROS messages, serialised by rosbags."""
    stores = rosbags_typesys.Stores
    store = rosbags_typesys.get_typestore(stores.ROS1_NOETIC) if ros1 else typestore()
    with path.open("wb") as out:
        writer = writers.Writer(out, chunk_size=4096)
        writer.start("ros1" if ros1 else "ros2")
        channels: dict[str, int] = {}
        for number, (topic, log, message) in enumerate(messages):
            kind = message.__msgtype__
            if topic not in channels:
                text, _ = store.generate_msgdef(kind, ros_version=1 if ros1 else 2)
                name = kind.replace("/msg/", "/") if ros1 else kind
                encoding = "ros1msg" if ros1 else "ros2msg"
                schema = writer.register_schema(name, encoding, text.encode())
                channels[topic] = writer.register_channel(topic, "ros1" if ros1 else "cdr", schema)
            data = (
                store.serialize_ros1(message, kind) if ros1 else store.serialize_cdr(message, kind)
            )
            writer.add_message(channels[topic], log, bytes(data), log, number)
        writer.finish()
    return path


@pytest.mark.parametrize("ros1", [False, True], ids=["ros2", "ros1"])
def test_ros_messages_become_channels(tmp_path: Path, ros1: bool) -> None:
    stores = rosbags_typesys.Stores
    store = rosbags_typesys.get_typestore(stores.ROS1_NOETIC) if ros1 else typestore()
    messages = robot_messages(store.types, ros1=ros1)
    path = ros_file(tmp_path / "a.mcap", messages, ros1=ros1)
    check_robot(one(path), messages)
    wshard.save_wshard(one(path), tmp_path / "a.wshard")
    with wshard.load_wshard(tmp_path / "a.wshard") as episode:
        check_robot(episode, messages)


def test_what_was_ros_is_written_as_json_with_the_same_topics_and_times(tmp_path: Path) -> None:
    messages = robot_messages(typestore().types)
    source = one(ros_file(tmp_path / "a.mcap", messages))
    report = write([source], tmp_path / "b.mcap", "mcap")
    assert any(change.kind == "cast" and change.field == "/imu" for change in report.changes)
    found = listed(tmp_path / "b.mcap")
    assert [m[:2] for m in sorted(found, key=lambda m: m[3])] == [m[:2] for m in messages]
    back = one(tmp_path / "b.mcap")
    check_robot(back, messages)
    (joints,) = (m[4] for m in found if m[0] == "/joint_states" and m[1] == SECOND)
    assert joints["name"] == ["a", "bé", "c"]
    assert joints["header"]["stamp"] == {"sec": 1, "nsec": 5}


def test_numbers_that_json_does_not_know_become_null_and_infinity_is_noted(tmp_path: Path) -> None:
    array = typestore().types["sensor_msgs/msg/JointState"]
    header = typestore().types["std_msgs/msg/Header"]
    stamp = header(typestore().types["builtin_interfaces/msg/Time"](0, 0), "")
    odd = np.array([np.nan, 1.5, np.inf])
    message = array(stamp, [], odd, odd[:2], np.arange(2.0))
    report = write(
        read(ros_file(tmp_path / "a.mcap", [("/j", 1, message)])), tmp_path / "b.mcap", "mcap"
    )
    assert any("infinite" in change.field for change in report.changes if change.kind == "cast")
    seen = one(tmp_path / "b.mcap").observations
    assert np.array_equal(seen["j/velocity"].data, [odd[:2]], equal_nan=True)
    assert np.array_equal(seen["j/position"].data, [[np.nan, 1.5, np.nan]], equal_nan=True)


@pytest.mark.parametrize("form", ["png", "jpeg"])
def test_pictures_of_different_sizes_are_kept_as_bytes(tmp_path: Path, form: str) -> None:
    types = typestore().types
    header = types["std_msgs/msg/Header"](types["builtin_interfaces/msg/Time"](0, 0), "")
    pictures = [encoded_picture(form, 5 + n, n) for n in range(3)]
    make = types["sensor_msgs/msg/CompressedImage"]
    messages = [("/c", n, make(header, form, data)) for n, data in enumerate(pictures)]
    episode = one(ros_file(tmp_path / "a.mcap", messages))
    found = episode.observations["c/data"].data
    assert [data.tobytes() for data in found] == [data.tobytes() for data in pictures]
    assert [change.kind for change in episode.lost] == ["dropped"]


@pytest.mark.parametrize("form", ["png", "jpeg"])
def test_encoded_pictures_stay_encoded_on_the_way_in_and_out(tmp_path: Path, form: str) -> None:
    types = typestore().types
    header = types["std_msgs/msg/Header"](types["builtin_interfaces/msg/Time"](7, 5), "cam")
    pictures = [encoded_picture(form, 16, n) for n in range(40)]
    make = types["sensor_msgs/msg/CompressedImage"]
    messages = [("/c", 10 * n, make(header, form, data)) for n, data in enumerate(pictures)]
    wanted = [data.tobytes() for data in pictures]
    source = ros_file(tmp_path / "a.mcap", messages)
    episode = one(source)
    assert episode.lost == ()
    write([episode], tmp_path / "b.mcap", "mcap")
    for path in (source, tmp_path / "b.mcap"):
        found = one(path)
        camera = found.observations["c"]
        assert isinstance(camera, VideoChannel)
        assert (camera.codec, camera.step_shape) == (form, (16, 6, 3))
        assert [bytes(packet.data) for packet in camera.packets()] == wanted
        assert np.abs(camera[39].astype(int) - 39).max() <= 2
        times = camera.timestamps_ns
        assert times is not None
        assert times.tolist() == [10 * n for n in range(40)]
        wshard.save_wshard(found, tmp_path / "a.wshard")
        with wshard.load_wshard(tmp_path / "a.wshard") as saved:
            stored = saved.observations["c"]
            assert isinstance(stored, VideoChannel)
            assert [bytes(packet.data) for packet in stored.packets()] == wanted
    first = listed(tmp_path / "b.mcap")[0][4]
    assert (base64.b64decode(first["data"]), first["format"]) == (wanted[0], form)
    assert (first["timestamp"], first["frame_id"]) == ({"sec": 7, "nsec": 5}, "cam")
    (pixels,) = read(source, video="decode")
    assert pixels.observations["c"].layout == "dense"
    assert [change.kind for change in pixels.lost] == ["decoded"]


def test_compressed_video_stays_encoded_on_the_way_in_and_out(tmp_path: Path) -> None:
    pytest.importorskip("av")
    frames = np.random.default_rng(0).integers(0, 255, (20, 32, 48, 3), dtype=np.uint8)
    video = VideoChannel.encode(frames, "h264:bf=0,crf=18", keyframe_every=8)
    wanted = [bytes(packet.data) for packet in video.packets()]
    path = tmp_path / "a.mcap"
    with path.open("wb") as out:
        writer = writers.Writer(out)
        writer.start()
        schema = writer.register_schema("foxglove.CompressedVideo", "jsonschema", b"{}")
        channel = writer.register_channel("/v", "json", schema)
        for n, packet in enumerate(wanted):
            data = base64.b64encode(packet).decode()
            content = {"timestamp": {"sec": 1, "nsec": n}, "frame_id": "c", "format": "h264"}
            writer.add_message(channel, n, json.dumps({**content, "data": data}).encode(), n)
        writer.finish()
    write([one(path)], tmp_path / "b.mcap", "mcap")
    assert [m[4]["data"] for m in listed(tmp_path / "b.mcap")] == [
        m[4]["data"] for m in listed(path)
    ]
    for file in (path, tmp_path / "b.mcap"):
        camera = one(file).observations["v"]
        assert isinstance(camera, VideoChannel)
        assert camera.keyframes.tolist() == [0, 8, 16]
        assert [bytes(packet.data) for packet in camera.packets()] == wanted
        assert np.array_equal(camera[9:12], video[9:12])
    (pixels,) = read(path, video="decode")
    assert np.array_equal(pixels.observations["v"].data, video.data)


def test_cameras_of_an_episode_keep_their_packets_where_foxglove_can_show_them(
    tmp_path: Path,
) -> None:
    pytest.importorskip("av")
    frames = np.random.default_rng(0).integers(0, 255, (20, 32, 48, 3), dtype=np.uint8)
    episode = Episode("a")
    for name, codec in (("plain", "h264:bf=0"), ("jpeg", "jpeg:90"), ("b", "h264:bf=2")):
        episode.observations[name] = VideoChannel.encode(frames, codec)
    report = write([episode], tmp_path / "a.mcap", "mcap")
    assert [change.field for change in report.changes if change.kind == "decoded"] == ["signal/b"]
    back = one(tmp_path / "a.mcap").observations
    for name in ("plain", "jpeg"):
        before, after = episode.observations[name], back[name]
        assert isinstance(before, VideoChannel)
        assert isinstance(after, VideoChannel)
        assert before.packets() == after.packets()
        assert (before.lossy, before.content_type) == (after.lossy, after.content_type)
    assert np.array_equal(back["b"].data, episode.observations["b"].data)


@pytest.mark.parametrize(
    "message",
    [
        {"height": -1, "width": -5, "encoding": "rgb8", "step": -1, "data": "AA=="},
        {"height": 1, "width": 1, "encoding": 5, "step": 1, "data": "AA=="},
        {"height": "1", "width": 1, "encoding": "mono8", "step": 1, "data": "AA=="},
        {"height": 1, "width": 1, "encoding": "mono8", "step": 1.0, "data": "AA=="},
        {"height": 1, "width": 2, "encoding": "mono8", "step": 2, "data": [1, 2]},
    ],
)
def test_messages_that_only_look_like_pictures_are_kept_as_they_are(
    tmp_path: Path, message: dict[str, Any]
) -> None:
    path = tmp_path / "a.mcap"
    with path.open("wb") as out:
        writer = writers.Writer(out)
        writer.start()
        schema = writer.register_schema("foxglove.RawImage", "jsonschema", b"{}")
        channel = writer.register_channel("/i", "json", schema)
        writer.add_message(channel, 1, json.dumps(message).encode(), 1)
        writer.finish()
    episode = one(path)
    assert [change.kind for change in episode.lost] == ["dropped"]
    assert episode.observations["i/height"].data[0] == message["height"]
    data = message["data"]
    assert episode.observations["i/data"][0].tolist() == (data if isinstance(data, list) else [0])


def test_a_nan_with_bits_of_its_own_is_noted(tmp_path: Path) -> None:
    odd = np.array([0x7FF8_0000_0000_0007, 0xFFF8 << 48], np.uint64).view(np.float64)
    episode = Episode("a", actions={"odd": odd, "plain": np.array([np.nan, 1])})
    report = write([episode], tmp_path / "a.mcap", "mcap")
    noted = [change.field for change in report.changes if change.kind == "cast"]
    assert noted == ["/action/odd, NaN"]
    assert np.isnan(one(tmp_path / "a.mcap").actions["odd"].data).all()


def test_the_decoder_of_mcap_reads_the_same(tmp_path: Path) -> None:
    decoder = pytest.importorskip("mcap_ros2.decoder")
    path = ros_file(tmp_path / "a.mcap", robot_messages(typestore().types))
    episode = one(path)
    with path.open("rb") as file:
        reader = readers.make_reader(file, decoder_factories=[decoder.DecoderFactory()])
        for step, found in enumerate(reader.iter_decoded_messages(topics=["/joint_states"])):
            message = found.decoded_message
            assert episode.observations["joint_states/position"][step].tolist() == message.position
            assert episode.observations["joint_states/effort"][step].tolist() == message.effort


ALL_TYPES = """\
bool b
byte by
char ch
int8 i1
uint8 u1
int16 i2
uint16 u2
int32 i4
uint32 u4
int64 i8
uint64 u8
float32 f4
float64 f8
string s
string<=5 short
bool[3] flags
float64[] many
float64[<=3] few
string[] texts
string[2] two
builtin_interfaces/Time[] times
my/Inner inner
my/Inner[] inners
my/Inner[2] pair
my/Empty nothing
int8 last
================================================================================
MSG: my/Inner
int8 k
float64 v
string name
uint16[] ids
================================================================================
MSG: my/Empty
"""


def test_every_type_of_ros_2_is_read_as_rosbags_reads_it(tmp_path: Path) -> None:
    store = rosbags_typesys.get_typestore(rosbags_typesys.Stores.EMPTY)
    humble = typestore()
    parse = rosbags_typesys.get_types_from_msg
    types = parse(ALL_TYPES, "my/msg/All")
    names = ("builtin_interfaces/msg/Time",)
    store.register({**{n: humble.fielddefs[n] for n in names}, **types})
    inner = store.types["my/msg/Inner"]
    time = store.types["builtin_interfaces/msg/Time"]
    items = [inner(k, k / 3, f"n{k}", np.arange(k, dtype=np.uint16)) for k in range(3)]
    message = store.types["my/msg/All"](
        True, 100, 200, -1, 255, -300, 65535, -(2**31), 2**32 - 1, -(2**63), 2**64 - 1, 0.5, 1 / 3,
        "text", "abc", np.array([True, False, True]), np.arange(5.0), np.arange(2.0), ["x", "yy"],
        ["p", ""], [time(1, 2), time(3, 4)], items[1], items, items[:2],
        store.types["my/msg/Empty"](), -7,
    )  # fmt: skip
    path = tmp_path / "a.mcap"
    for little in (True, False):
        with path.open("wb") as out:
            writer = writers.Writer(out)
            writer.start()
            schema = writer.register_schema("my/msg/All", "ros2msg", ALL_TYPES.encode())
            channel = writer.register_channel("all", "cdr", schema)
            data = store.serialize_cdr(message, "my/msg/All", little_endian=little)
            writer.add_message(channel, 1, bytes(data), 1)
            writer.finish()
        seen = one(path).observations
        plain: dict[str, Any] = {
            "b": True,
            "by": 100,
            "ch": 200,
            "i1": -1,
            "u1": 255,
            "i2": -300,
            "u2": 65535,
        }
        plain |= {"i4": -(2**31), "u4": 2**32 - 1, "i8": -(2**63), "u8": 2**64 - 1, "f4": 0.5}
        plain |= {"f8": 1 / 3, "s": "text", "short": "abc", "last": -7, "inner/name": "n1"}
        assert {key: seen[f"all/{key}"][0] for key in plain} == plain
        assert seen["all/u8"].dtype == np.uint64
        assert seen["all/f4"].dtype == np.float32
        assert seen["all/flags"].data.tolist() == [[True, False, True]]
        assert seen["all/many"][0].tolist() == [0, 1, 2, 3, 4]
        assert json.loads(seen["all/texts"][0]) == ["x", "yy"]
        assert seen["all/times"][0].tolist() == [SECOND + 2, 3 * SECOND + 4]
        assert seen["all/inners/v"][0].tolist() == [0, 1 / 3, 2 / 3]
        assert json.loads(seen["all/inners/ids"][0]) == [[], [0], [0, 1]]
        assert json.loads(seen["all/pair/name"][0]) == ["n0", "n1"]


IDL = """\
================================================================================
IDL: my/msg/Pose
module my { module msg { struct Pose {
  double angle;
  sequence<float> ranges;
  string label;
}; }; };
"""


def test_definitions_in_idl_are_understood(tmp_path: Path) -> None:
    path = tmp_path / "a.mcap"
    data = struct.pack("<4sdI3fI4s", b"\0\1\0\0", 0.5, 3, 1, 2, 3, 4, b"abc\0")
    with path.open("wb") as out:
        writer = writers.Writer(out)
        writer.start()
        schema = writer.register_schema("my/msg/Pose", "ros2idl", IDL.encode())
        writer.add_message(writer.register_channel("p", "cdr", schema), 1, data, 1)
        writer.finish()
    seen = one(path).observations
    assert seen["p/angle"].data.tolist() == [0.5]
    assert seen["p/ranges"].data.tolist() == [[1, 2, 3]]
    assert seen["p/label"].data == ["abc"]


# --- protobuf


@pytest.mark.parametrize("size", [1, 1 << 17])
def test_fields_that_a_protobuf_schema_does_not_have_are_noted(tmp_path: Path, size: int) -> None:
    pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
    file = pb2.FileDescriptorProto(name="s.proto", package="s", syntax="proto3")
    made = file.message_type.add(name="State")
    made.field.add(name="blob", number=1, type=pb2.FieldDescriptorProto.TYPE_BYTES, label=1)
    told = pb2.FileDescriptorSet(file=[file]).SerializeToString()
    length = size.to_bytes(1, "little") if size < 128 else bytes([0x80, 0x80, 8])
    known = b"\x0a" + length + b"x" * size
    for number, data in enumerate((known, known + b"\x10\x05")):
        path = tmp_path / f"{number}.mcap"
        writer = pytest.importorskip("mcap.writer").Writer(str(path))
        writer.start()
        schema = writer.register_schema("s.State", "protobuf", told)
        channel = writer.register_channel("/state", "protobuf", schema)
        writer.add_message(channel, 1, data, 1)
        writer.finish()
        (episode,) = read(path)
        assert episode.observations["state/blob"].data[0].tobytes() == b"x" * size
        lost = [change.field for change in episode.lost]
        assert lost == (["/state"] if number else [])


def test_protobuf_messages_become_channels(tmp_path: Path) -> None:
    protobuf = pytest.importorskip("mcap_protobuf.writer")
    pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
    pools = pytest.importorskip("google.protobuf.descriptor_pool")
    factory = pytest.importorskip("google.protobuf.message_factory")
    struct_pb2 = pytest.importorskip("google.protobuf.struct_pb2")
    time_pb2 = pytest.importorskip("google.protobuf.timestamp_pb2")
    kinds = pb2.FieldDescriptorProto
    file = pb2.FileDescriptorProto(name="robot.proto", package="robot", syntax="proto3")
    for imported in (time_pb2, struct_pb2):
        file.dependency.append(imported.DESCRIPTOR.name)

    def message(name: str, *fields: tuple[str, int, str, bool]) -> None:
        made = file.message_type.add(name=name)
        for number, (field, kind, type_name, is_list) in enumerate(fields, 1):
            label = kinds.LABEL_REPEATED if is_list else kinds.LABEL_OPTIONAL
            made.field.add(
                name=field, number=number, type=kind, type_name=type_name or None, label=label
            )

    inner = kinds.TYPE_MESSAGE
    message("Vector3", *[(key, kinds.TYPE_DOUBLE, "", False) for key in "xyz"])
    message(
        "Item",
        ("n", kinds.TYPE_UINT32, "", False),
        ("s", kinds.TYPE_STRING, "", False),
        ("v", inner, ".robot.Vector3", False),
    )
    message("Tree", ("n", kinds.TYPE_INT32, "", False), ("below", inner, ".robot.Tree", True))
    message(
        "State",
        ("stamp", inner, ".google.protobuf.Timestamp", False),
        ("f", kinds.TYPE_FLOAT, "", False),
        ("big", kinds.TYPE_UINT64, "", False),
        ("on", kinds.TYPE_BOOL, "", False),
        ("text", kinds.TYPE_STRING, "", False),
        ("blob", kinds.TYPE_BYTES, "", False),
        ("q", kinds.TYPE_DOUBLE, "", True),
        ("tags", kinds.TYPE_STRING, "", True),
        ("at", inner, ".robot.Vector3", False),
        ("path", inner, ".robot.Vector3", True),
        ("items", inner, ".robot.Item", True),
        ("tree", inner, ".robot.Tree", False),
        ("any", inner, ".google.protobuf.Struct", False),
    )  # fmt: skip
    pool = pools.DescriptorPool()
    for imported in (time_pb2, struct_pb2):
        pool.AddSerializedFile(imported.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    made = factory.GetMessageClass(pool.FindMessageTypeByName("robot.State"))
    path = tmp_path / "a.mcap"
    with path.open("wb") as out:
        writer = protobuf.Writer(out)
        for n in range(4):
            state = made(f=n / 4, big=2**64 - 1, on=n > 1, text=f"t{n}", blob=b"\0\xff" * n)
            state.stamp.FromNanoseconds(n * SECOND + 3)
            state.q.extend([n, 0.5])
            state.tags.extend(["a"] * n)
            for k in range(n):
                state.path.add(x=k, y=1, z=2)
                state.items.add(n=k, s=f"i{k}").v.x = k
            if n:
                state.at.x = n
            state.tree.below.add(n=n)
            state.any["key"] = n
            writer.write_message("/state", state, log_time=n, publish_time=n)
        writer.finish()
    seen = one(path).observations
    assert seen["state/stamp"].data.tolist() == [n * SECOND + 3 for n in range(4)]
    assert seen["state/f"].dtype == np.float32
    assert seen["state/big"].data.tolist() == [2**64 - 1] * 4
    assert seen["state/on"].data.tolist() == [False, False, True, True]
    assert seen["state/text"].data == ["t0", "t1", "t2", "t3"]
    assert [v.tobytes() for v in seen["state/blob"].data] == [b"\0\xff" * n for n in range(4)]
    assert seen["state/q"].data.tolist() == [[n, 0.5] for n in range(4)]
    assert json.loads(seen["state/tags"][2]) == ["a", "a"]
    # A message that is not set is not there, so this channel has fewer entries.
    assert seen["state/at"].data[:, 0].tolist() == [1, 2, 3]
    times = seen["state/at"].timestamps_ns
    assert times is not None
    assert times.tolist() == [1, 2, 3]
    assert [len(v) for v in seen["state/path"].data] == [0, 1, 2, 3]
    assert seen["state/items/n"][3].tolist() == [0, 1, 2]
    assert json.loads(seen["state/items/s"][2]) == ["i0", "i1"]
    assert json.loads(seen["state/tree/below"][2]) == [{"n": 2}]
    assert json.loads(seen["state/any"][2]) == {"key": 2}


# --- episodes out and back


def no_rate(ep: Episode) -> None:
    ep.timebase = Timebase()


def own_times(ep: Episode) -> None:
    ep.timestamps_ns = np.array([5, 3, *range(20, 120, 10)])


def before_1970(ep: Episode) -> None:
    ep.timebase.epoch_ns = -5 * SECOND


@pytest.mark.parametrize("change", [None, no_rate, own_times, before_1970])
def test_an_episode_comes_back_as_it_was(
    tmp_path: Path, change: Callable[[Episode], None] | None
) -> None:
    ep = made_episode()
    if change:
        change(ep)
    report = write([ep], tmp_path / "a.mcap", "mcap")
    more = {"no_rate": {"filled"}, "before_1970": {"cast"}}.get(
        getattr(change, "__name__", ""), set()
    )
    assert {found.kind for found in report.changes} == {"kept"} | more
    back = one(tmp_path / "a.mcap")
    wshard.save_wshard(ep, tmp_path / "a.wshard")
    wshard.save_wshard(back, tmp_path / "b.wshard")
    assert (tmp_path / "b.wshard").read_bytes() == (tmp_path / "a.wshard").read_bytes()


def test_foxglove_finds_the_schemas_that_it_knows(tmp_path: Path) -> None:
    write([made_episode()], tmp_path / "a.mcap", "mcap")
    with (tmp_path / "a.mcap").open("rb") as file:
        reader = readers.make_reader(file)
        first = {channel.topic: (schema, m) for schema, channel, m in reader.iter_messages()}
        summary = reader.get_summary()
    assert summary.statistics.message_count == sum(
        summary.statistics.channel_message_counts.values()
    )
    assert all(schema.encoding == "jsonschema" for schema, _ in first.values())
    assert all(json.loads(schema.data)["type"] == "object" for schema, _ in first.values())
    names = {topic: schema.name for topic, (schema, _) in first.items()}
    assert names["/signal/cam"] == "foxglove.CompressedImage"
    assert names["/signal/depth"] == "foxglove.RawImage"
    assert names["/signal/points"] == "foxglove.PointCloud"
    assert names["/signal/qpos"] == "sensor_msgs/JointState"
    assert {"/reward", "/omen/qpos/dreamer", "/action/ctrl"} <= names.keys()
    picture = json.loads(first["/signal/cam"][1].data)
    assert picture.keys() == {"timestamp", "frame_id", "format", "data"}
    schema = json.loads(first["/signal/cam"][0].data)["properties"]
    assert schema["data"] == {"type": "string", "contentEncoding": "base64"}
    assert picture["timestamp"].keys() == {"sec", "nsec"}


def check_schema(schema: dict[str, Any]) -> None:
    """What Foxglove's parser of JSON schemas accepts (parseJsonSchema of the package mcap-support)."""
    assert schema["type"] == "object"
    for field in schema["properties"].values():
        if field["type"] == "array":
            field = field["items"]
            assert "contentEncoding" not in field
        assert field["type"] in ("boolean", "string", "number", "integer", "object")
        assert field.get("contentEncoding", "base64") == "base64"
        if field["type"] == "object":
            check_schema(field)


def check_message(schema: dict[str, Any], message: dict[str, Any]) -> None:
    """Compares a message with what its schema says."""
    python: dict[str, Any] = {
        "boolean": bool,
        "string": str,
        "integer": int,
        "number": (int, float, type(None)),
    }
    for key, field in schema["properties"].items():
        is_list = field["type"] == "array"
        value, form = message[key], field["items"] if is_list else field
        for item in value if is_list else [value]:
            if form["type"] == "object":
                check_message(form, item)
            elif item not in ("NaN", "Infinity", "-Infinity"):
                assert isinstance(item, python[form["type"]])
            if "contentEncoding" in form:
                base64.b64decode(item, validate=True)


@pytest.mark.parametrize("source", ["episode", "ros"])
def test_foxglove_can_parse_every_schema_and_messages_fit_them(tmp_path: Path, source: str) -> None:
    if source == "episode":
        write([made_episode()], tmp_path / "a.mcap", "mcap")
    else:
        recording = ros_file(tmp_path / "ros.mcap", robot_messages(typestore().types))
        write(read(recording), tmp_path / "a.mcap", "mcap")
    fields = {}
    with (tmp_path / "a.mcap").open("rb") as file:
        for schema, channel, each in readers.make_reader(file).iter_messages():
            described = json.loads(schema.data)
            check_schema(described)
            check_message(described, json.loads(each.data))
            fields[channel.topic] = described["properties"]
    if source == "episode":
        assert fields["/action/ctrl"]["value"] == {"type": "array", "items": {"type": "number"}}
        assert fields["/reward"]["value"] == {"type": "number"}
        assert "value" not in fields["/action/chunk"]
    else:
        assert fields["/imu"]["angular_velocity"]["properties"].keys() == {"x", "y", "z"}
        assert fields["/imu"]["header"]["properties"]["stamp"]["properties"].keys() == {
            "sec",
            "nsec",
        }
        poses = fields["/path"]["poses"]["items"]["properties"]
        assert poses["pose"]["properties"]["position"]["properties"].keys() == {"x", "y", "z"}


def test_several_episodes_become_a_folder_of_files(tmp_path: Path) -> None:
    episodes = [Episode("ep", actions={"a": np.full((3, 1), n)}) for n in range(11)]
    write(episodes, tmp_path / "all", "mcap")
    back = list(read(tmp_path / "all"))
    assert [ep.actions["a"].data[0, 0] for ep in back] == list(range(11))


def test_a_file_has_room_for_one_episode_and_a_folder_for_several(tmp_path: Path) -> None:
    episodes = [Episode(f"ep_{n}", actions={"a": np.zeros((3, 1))}) for n in range(2)]
    target = tmp_path / "all.mcap"
    with pytest.raises(InvalidArgument, match="several episodes do not fit into one file"):
        write(iter(episodes), target)
    write(episodes, tmp_path / "source", "npz")
    with pytest.raises(InvalidArgument, match="2 episodes"):
        convert(tmp_path / "source", target)
    with pytest.raises(InvalidArgument, match="'ep_1' after another one"):
        convert(tmp_path / "source", target, options=ConvertOptions(where="length > 1"))
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
    chosen = ConvertOptions(where="id == 'ep_1'")
    convert(tmp_path / "source", target, options=chosen)
    assert target.is_file()
    write(episodes[:1], tmp_path / "all", "mcap")
    assert [path.name for path in (tmp_path / "all").iterdir()] == ["ep_0.mcap"]


def test_lanes_that_were_added_to_a_recording_go_out_with_it(tmp_path: Path) -> None:
    source = json_file(tmp_path / "a.mcap", [("/a", 10 * n, {"v": n}) for n in range(5)])
    episode = one(source)
    episode.observations["a/v_smooth"] = Channel(
        data=np.arange(5.0), timestamps_ns=episode.observations["a/v"].timestamps_ns
    )
    write([episode], tmp_path / "b.mcap", "mcap")
    back = one(tmp_path / "b.mcap")
    assert back.observations["a/v_smooth"].data.tolist() == [0, 1, 2, 3, 4]
    assert [m for m in listed(tmp_path / "b.mcap") if m[0] == "/a"] == listed(source)


def test_a_channel_that_was_moved_in_time_is_a_topic_of_its_own(tmp_path: Path) -> None:
    episode = one(json_file(tmp_path / "a.mcap", [("/a", 10 * n, {"v": n}) for n in range(5)]))
    episode.observations["a/v"].timestamps_ns = np.arange(5) * 10 + 3
    write([episode], tmp_path / "b.mcap", "mcap")
    moved = one(tmp_path / "b.mcap").observations["a/v"]
    assert moved.data.tolist() == [0, 1, 2, 3, 4]
    assert moved.timestamps_ns is not None
    assert moved.timestamps_ns.tolist() == [3, 13, 23, 33, 43]


@pytest.mark.parametrize("kept", ["text", {}, {"channels": [{"topic": 5}]}, {"channels": 7}])
def test_metadata_that_only_looks_like_that_of_a_file_does_no_harm(
    tmp_path: Path, kept: object
) -> None:
    episode = Episode("a", actions={"a": np.arange(3)}, metadata={"mcap": kept})
    write([episode], tmp_path / "a.mcap", "mcap")
    back = one(tmp_path / "a.mcap")
    assert back.actions["a"].data.tolist() == [0, 1, 2]
    assert back.metadata == {"mcap": kept}


# --- laziness


def test_pictures_and_points_stay_in_the_file_until_they_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    types = typestore().types
    rng = np.random.default_rng(0)
    header = types["std_msgs/msg/Header"](types["builtin_interfaces/msg/Time"](0, 0), "")
    frames = rng.integers(0, 255, (40, 100, 200, 3), dtype=np.uint8)
    make = types["sensor_msgs/msg/Image"]
    messages = [
        ("/cam", n, make(header, 100, 200, "rgb8", 0, 600, frame.reshape(-1)))
        for n, frame in enumerate(frames)
    ]
    path = ros_file(tmp_path / "a.mcap", messages)
    reader = McapReader(str(path), ReadOptions())
    episode = reader.read(0, Notes())
    camera = episode.observations["cam"]
    assert not camera.is_loaded
    used: list[Any] = []
    data = reader._open[0].data

    def counted(place: tuple[int, int, int]) -> memoryview:
        used.append(place)
        return data(place)

    monkeypatch.setattr(reader._open[0], "data", counted)
    assert (camera[7:9] == frames[7:9]).all()
    assert len(used) == 2
    assert (camera.data == frames).all()
    reader.close()


# --- damaged and hostile files


def record(op: int, content: bytes) -> bytes:
    return struct.pack("<BQ", op, len(content)) + content


def text(value: str) -> bytes:
    return struct.pack("<I", len(value.encode())) + value.encode()


MAGIC = b"\x89MCAP0\r\n"


def raw_file(path: Path, *records: bytes) -> Path:
    end = record(15, bytes(4)) + record(2, bytes(20)) + MAGIC
    path.write_bytes(MAGIC + record(1, text("") + text("")) + b"".join(records) + end)
    return path


def chunk(compression: str, size: int, stored: bytes, crc: int = 0) -> bytes:
    head = struct.pack("<QQQI", 0, 0, size, crc) + text(compression)
    return record(6, head + struct.pack("<Q", len(stored)) + stored)


CHANNEL = record(4, struct.pack("<HH", 1, 0) + text("a") + text("json") + struct.pack("<I", 0))


def message(data: bytes, log: int = 1) -> bytes:
    return record(5, struct.pack("<HIQQ", 1, 0, log, 1) + data)


@pytest.mark.parametrize(
    ("records", "error"),
    [
        ([message(b"{}")], BadValue),
        ([CHANNEL, message(b"{")], BadValue),
        ([CHANNEL, message(b"[" * 100_000)], BadValue),
        ([CHANNEL, message(b"{}", 1 << 63)], BadValue),
        ([CHANNEL, record(5, b"abc")], BadValue),
        ([struct.pack("<BQ", 5, 1 << 62)], BadValue),
        ([struct.pack("<BQ", 9, (1 << 64) - 1)], BadValue),
        ([record(4, struct.pack("<HH", 1, 9) + text("a") + text("json") + bytes(4))], BadValue),
        ([record(4, struct.pack("<HHI", 1, 0, 1 << 31))], BadValue),
        ([CHANNEL, CHANNEL.replace(b"json", b"jsoN")], BadValue),
        ([chunk("zstd", 1 << 40, b"\x28\xb5\x2f\xfd")], LimitExceeded),
        ([chunk("lz4", 1 << 29, b"abcd")], SizeMismatch),
        ([chunk("", 5, b"abcd")], SizeMismatch),
        ([chunk("", 4, b"abcd", 7)], ChecksumMismatch),
        ([chunk("brotli", 4, b"abcd")], ShardError),
        ([chunk("zstd", 100, b"abcd")], ShardError),
        ([record(9, bytes(16) + text("n") + text("") + struct.pack("<Q", 1) + b"x" + b"abcd")], ChecksumMismatch),
        ([record(9, bytes(16) + text("n") + text("") + struct.pack("<Q", 1 << 60))], BadValue),
        ([record(12, text("wshard") + struct.pack("<I", 0))], BadMetadata),
    ],
)  # fmt: skip
def test_damaged_files_are_refused_with_the_file_named(
    tmp_path: Path, records: list[bytes], error: type[ShardError]
) -> None:
    path = raw_file(tmp_path / "bad.mcap", *records)
    with pytest.raises(error) as found:
        one(path)
    assert "bad.mcap" in str(found.value)


def test_a_file_that_is_cut_anywhere_is_an_error(tmp_path: Path) -> None:
    whole = json_file(tmp_path / "a.mcap", [("/a", n, {"v": n}) for n in range(3)]).read_bytes()
    path = tmp_path / "cut.mcap"
    for length in range(8, len(whole), 5):
        path.write_bytes(whole[:length])
        with pytest.raises(Truncated):
            one(path)


@pytest.mark.parametrize("use_chunking", [True, False])
def test_flipped_bytes_give_an_error_or_an_episode(tmp_path: Path, use_chunking: bool) -> None:
    messages = [("/a", n, {"v": n, "w": [1.5, n]}) for n in range(3)]
    whole = json_file(tmp_path / "a.mcap", messages, use_chunking=use_chunking).read_bytes()
    path = tmp_path / "flipped.mcap"
    for position in range(8, min(len(whole), 700), 7):
        damaged = bytearray(whole)
        damaged[position] ^= 0x81
        path.write_bytes(damaged)
        try:
            for channel in one(path).observations.values():
                assert len(channel.data) == channel.length
        except ShardError:
            pass


def test_records_that_mcap_does_not_define_are_noted(tmp_path: Path) -> None:
    path = raw_file(tmp_path / "a.mcap", CHANNEL, message(b"{}"), record(0x85, b"private"))
    assert [str(change) for change in one(path).lost] == [
        "dropped records of kind 0x85: MCAP does not say what they hold"
    ]


def test_a_record_of_this_library_that_claims_huge_entries_is_refused(tmp_path: Path) -> None:
    write([Episode("a", actions={"a": np.arange(6.0).reshape(3, 2)})], tmp_path / "a.mcap", "mcap")
    with (tmp_path / "a.mcap").open("rb") as file:
        reader = readers.make_reader(file)
        facts = {m.name: m.metadata for m in reader.iter_metadata()}["wshard"]
        found = list(reader.iter_messages())
    lie = facts["episode"].replace('"shape": [2]', '"shape": [1099511627776]')
    assert lie != facts["episode"]
    with (tmp_path / "bad.mcap").open("wb") as out:
        writer = writers.Writer(out)
        writer.start()
        channel = writer.register_channel("/action/a", "json", 0)
        for _, _, each in found:
            writer.add_message(channel, each.log_time, each.data, each.log_time)
        writer.add_metadata("wshard", {"episode": lie})
        writer.finish()
    with pytest.raises(BadMetadata, match="fewer bytes"):
        one(tmp_path / "bad.mcap")


def ros_message(path: Path, definition: str, data: bytes, name: str = "my/msg/T") -> Path:
    with path.open("wb") as out:
        writer = writers.Writer(out)
        writer.start()
        schema = writer.register_schema(name, "ros2msg", definition.encode())
        channel = writer.register_channel("t", "cdr", schema)
        writer.add_message(channel, 1, b"\0\1\0\0" + data, 1)
        writer.finish()
    return path


# Each type has ten of the next: 10 to the 20th parts.
BUSHY = "my/T0 a\n" + "".join(
    f"{'=' * 80}\nMSG: my/T{n}\n" + "".join(f"my/T{n + 1} f{k}\n" for k in range(10 * (n < 20)))
    for n in range(21)
)


@pytest.mark.parametrize(
    ("definition", "data", "error"),
    [
        ("", b"\0" * 100, BadValue),
        ("my/T t", b"\0" * 8, BadMetadata),
        ("my/Z[1000] z\n" + "=" * 80 + "\nMSG: my/Z\nint8[0] a\n", b"\0" * 2000, BadMetadata),
        ("float64[] v", struct.pack("<I", 1 << 31), BadValue),
        ("string s", struct.pack("<I", 1 << 31), BadValue),
        ("my/E[] e\n" + "=" * 80 + "\nMSG: my/E\n", struct.pack("<I", 1 << 31), BadValue),
        ("float64[1000000000] v", b"\0" * 8, BadValue),
        ("float64 v", b"\0" * 4, BadValue),
        ("int8 v", b"\0" * 40, BadValue),
        (BUSHY, b"\0" * 8, LimitExceeded),
    ],
)
def test_ros_messages_that_lie_are_refused(
    tmp_path: Path, definition: str, data: bytes, error: type[ShardError]
) -> None:
    with pytest.raises(error) as found:
        one(ros_message(tmp_path / "bad.mcap", definition, data))
    assert "bad.mcap" in str(found.value)


def test_the_name_of_a_type_is_never_run_as_code(tmp_path: Path) -> None:
    name = "my/msg/T:\n    pass\nraise SystemExit(3)\nclass X"
    with pytest.raises(BadMetadata):
        one(ros_message(tmp_path / "a.mcap", "int8 v", b"\5", name))


def test_numbers_that_no_array_holds_exactly_are_kept_as_text() -> None:
    found: dict[Any, Any] = {}
    columns_of([{"a": [2**53 + 1, 0.5], "b": [1, True], "c": [[1], [1, 2]]}], (), found)
    assert {key: json.loads(column[0]) for (key,), column in found.items()} == {
        "a": [2**53 + 1, 0.5],
        "b": [1, True],
        "c": [[1], [1, 2]],
    }
