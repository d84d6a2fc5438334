"""Bags of ROS 1 and ROS 2, written by the package `rosbags`."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import struct
from typing import TYPE_CHECKING, Any

import pytest

import wshard
from shard_format.errors import (
    BadCompression,
    BadMetadata,
    BadValue,
    LimitExceeded,
    ShardError,
    ShardIOError,
    SizeMismatch,
    Truncated,
)
from tests.convert.ros_support import check_robot, robot_messages
from wshard.convert import detect, read, write
from wshard.convert._model import Notes, ReadOptions
from wshard.convert._rosbag import RosbagReader

if TYPE_CHECKING:
    from pathlib import Path

    from wshard.convert import ConvertedEpisode

typesys = pytest.importorskip("rosbags.typesys")
rosbag1 = pytest.importorskip("rosbags.rosbag1")
rosbag2 = pytest.importorskip("rosbags.rosbag2")
enums = pytest.importorskip("rosbags.rosbag2.enums")
HUMBLE = typesys.get_typestore(typesys.Stores.ROS2_HUMBLE)
NOETIC = typesys.get_typestore(typesys.Stores.ROS1_NOETIC)


def ros2_bag(
    path: Path, messages: list[tuple[str, int, Any]], storage: str, mode: str = "none"
) -> Path:
    writer = rosbag2.Writer(path, version=9, storage_plugin=getattr(enums.StoragePlugin, storage))
    writer.set_compression(
        getattr(enums.CompressionMode, mode.upper()), enums.CompressionFormat.ZSTD
    )
    writer.set_custom_data("robot", "r2")
    with writer:
        connections: dict[str, Any] = {}
        for topic, log, message in messages:
            kind = message.__msgtype__
            if topic not in connections:
                connections[topic] = writer.add_connection(topic, kind, typestore=HUMBLE)
            writer.write(connections[topic], log, HUMBLE.serialize_cdr(message, kind))
    return path


def ros1_bag(path: Path, messages: list[tuple[str, int, Any]], compression: str = "") -> Path:
    writer = rosbag1.Writer(path)
    if compression:
        writer.set_compression(getattr(writer.CompressionFormat, compression))
    with writer:
        connections: dict[str, Any] = {}
        for topic, log, message in messages:
            kind = message.__msgtype__
            if topic not in connections:
                connections[topic] = writer.add_connection(topic, kind, typestore=NOETIC)
            writer.write(connections[topic], log, NOETIC.serialize_ros1(message, kind))
    return path


def one(path: Path) -> ConvertedEpisode:
    (episode,) = read(path)
    return episode


@pytest.mark.parametrize(
    ("storage", "mode"),
    [
        *(("SQLITE3", mode) for mode in ("none", "message", "file")),
        *(("MCAP", mode) for mode in ("none", "message", "file", "storage")),
    ],
)
def test_a_bag_of_ros_2_becomes_an_episode(tmp_path: Path, storage: str, mode: str) -> None:
    messages = robot_messages(HUMBLE.types)
    path = ros2_bag(tmp_path / "run_7", messages, storage, mode)
    assert detect(str(path)).name == "rosbag"
    reader = RosbagReader(str(path), ReadOptions())
    assert reader.names() == ["run_7"]
    episode = reader.read(0, Notes())
    assert episode.id == "run_7"
    check_robot(episode, messages)
    assert episode.metadata["rosbag"]["custom_data"] == {"robot": "r2"}
    wshard.save_wshard(episode, tmp_path / "a.wshard")
    reader.close()
    with wshard.load_wshard(tmp_path / "a.wshard") as saved:
        check_robot(saved, messages)


@pytest.mark.parametrize("compression", ["", "BZ2", "LZ4"])
def test_a_bag_of_ros_1_becomes_an_episode(tmp_path: Path, compression: str) -> None:
    messages = robot_messages(NOETIC.types, ros1=True)
    path = ros1_bag(tmp_path / "run.bag", messages, compression)
    assert detect(str(path)).name == "rosbag"
    episode = one(path)
    assert episode.id == "run"
    reader = RosbagReader(str(path), ReadOptions())
    check_robot(reader.read(0, Notes()), messages)
    reader.close()
    described = {one["topic"]: one for one in episode.metadata["rosbag"]["channels"]}
    assert described["/imu"]["schema"]["name"] == "sensor_msgs/Imu"


@pytest.mark.parametrize(("storage", "suffix"), [("SQLITE3", "db3"), ("MCAP", "mcap")])
def test_the_files_of_a_split_bag_are_one_episode(
    tmp_path: Path, storage: str, suffix: str
) -> None:
    messages = robot_messages(HUMBLE.types)
    path = ros2_bag(tmp_path / "one", messages[:20], storage)
    more = ros2_bag(tmp_path / "two", messages[20:], storage)
    (more / f"two.{suffix}").rename(path / f"two.{suffix}")
    described = path / "metadata.yaml"
    name = f"- one.{suffix}"
    text = described.read_text()
    assert text.count(name) == 1
    described.write_text(text.replace(name, f"{name}\n  - two.{suffix}"))
    reader = RosbagReader(str(path), ReadOptions())
    check_robot(reader.read(0, Notes()), messages)
    reader.close()


def test_a_folder_of_bags_is_a_dataset(tmp_path: Path) -> None:
    string = NOETIC.types["std_msgs/msg/String"]
    for number in (2, 10, 1):
        ros1_bag(tmp_path / f"run_{number}.bag", [("/say", 5, string(f"n{number}"))])
    episodes = {ep.id: ep.observations["say/data"].data for ep in read(tmp_path)}
    assert episodes == {"run_1": ["n1"], "run_2": ["n2"], "run_10": ["n10"]}
    assert list(episodes) == ["run_1", "run_2", "run_10"]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts the open files in /proc")
@pytest.mark.parametrize("form", ["bag", "folder", "mcap"])
def test_of_many_bags_only_the_last_stays_open(tmp_path: Path, form: str) -> None:
    for number in range(8):
        messages = robot_messages((NOETIC if form == "bag" else HUMBLE).types, ros1=form == "bag")
        if form == "bag":
            ros1_bag(tmp_path / f"run_{number}.bag", messages)
        else:
            path = ros2_bag(tmp_path / f"run_{number}", messages, "MCAP")
            if form == "mcap":
                (path / f"run_{number}.mcap").rename(tmp_path / f"run_{number}.mcap")
                shutil.rmtree(path)
    opened = [len(os.listdir("/proc/self/fd")) for _ in read(tmp_path)]
    assert opened[-1] < opened[0] + 4


def test_a_bag_goes_out_as_mcap_with_its_topics(tmp_path: Path) -> None:
    messages = robot_messages(HUMBLE.types)
    write(read(ros2_bag(tmp_path / "a", messages, "SQLITE3")), tmp_path / "a.mcap", "mcap")
    (episode,) = read(tmp_path / "a.mcap")
    assert {one["topic"] for one in episode.metadata["mcap"]["channels"]} == {
        m[0] for m in messages
    }


def change(path: Path, *statements: str) -> None:
    (file,) = path.glob("*.db3")
    with sqlite3.connect(file) as database:
        for statement in statements:
            database.execute(statement)
    database.close()


def test_an_old_bag_without_definitions_is_read_as_humble_defines_its_messages(
    tmp_path: Path,
) -> None:
    messages = robot_messages(HUMBLE.types)
    path = ros2_bag(tmp_path / "a", messages, "SQLITE3")
    change(path, "DROP TABLE message_definitions", "DROP TABLE schema")
    reader = RosbagReader(str(path), ReadOptions())
    notes = Notes()
    check_robot(reader.read(0, notes), messages)
    reader.close()
    assert any(found.kind == "filled" and "Imu" in found.field for found in notes.changes)


def test_a_topic_whose_type_is_defined_nowhere_keeps_its_bytes_and_the_others_are_read(
    tmp_path: Path,
) -> None:
    messages = robot_messages(HUMBLE.types)
    path = ros2_bag(tmp_path / "a", messages, "SQLITE3")
    change(
        path, "DROP TABLE message_definitions", "UPDATE topics SET type = 'my/msg/Own' WHERE id = 1"
    )
    episode = one(path)
    topic = messages[0][0]
    (lost,) = [change for change in episode.lost if change.field == topic]
    assert "my/msg/Own" in lost.detail
    assert "rosbags-convert" in lost.detail
    kept = episode.observations[topic.strip("/")]
    first = next(message for name, _, message in messages if name == topic)
    stored = bytes(HUMBLE.serialize_cdr(first, first.__msgtype__))
    assert bytes(kept.data[0]) == stored
    others = {one["topic"] for one in episode.metadata["rosbag"]["channels"]} - {topic}
    assert others
    assert all(
        any(name.startswith(other.strip("/")) for name in episode.observations) for other in others
    )
    # MCAP has no place for messages of an unknown type.
    report = write([episode], tmp_path / "out.mcap", "mcap")
    assert topic in [change.field for change, _ in report.of_kind("dropped")]
    (back,) = read(tmp_path / "out.mcap")
    assert len(back.observations) > 1


@pytest.mark.parametrize("definition", ["other/Thing thing\n", "this is not a definition (("])
def test_an_mcap_file_that_leaves_out_a_definition_goes_out_as_it_was(
    tmp_path: Path, definition: str
) -> None:
    path = tmp_path / "own.mcap"
    writer = pytest.importorskip("mcap.writer").Writer(str(path))
    writer.start()
    schema = writer.register_schema("my/msg/Own", "ros2msg", definition.encode())
    channel = writer.register_channel("/own", "cdr", schema)
    writer.add_message(channel, 5, b"\0\1\0\0abc", 5)
    writer.finish()
    for source, target in ((path, tmp_path / "a.mcap"), (tmp_path / "a.mcap", tmp_path / "b.mcap")):
        (episode,) = read(source)
        assert bytes(episode.observations["own"].data[0]) == b"\0\1\0\0abc"
        write([episode], target, "mcap")


ENDLESS = """
CREATE VIEW messages AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)
SELECT x AS id, 1 AS topic_id, x AS timestamp, x'00' AS data FROM c
"""


@pytest.mark.parametrize(
    ("statements", "error"),
    [
        (["DROP TABLE messages"], BadMetadata),
        (["UPDATE messages SET data = 5"], BadValue),
        (["UPDATE messages SET timestamp = 'x'"], BadValue),
        (["UPDATE messages SET topic_id = 99"], BadValue),
        (["UPDATE messages SET data = x'00010000ffffff'"], BadValue),
        (
            [
                "ALTER TABLE messages RENAME TO m",
                ENDLESS,
            ],
            BadMetadata,
        ),
    ],
)
def test_damaged_databases_are_refused(
    tmp_path: Path, statements: list[str], error: type[ShardError]
) -> None:
    path = ros2_bag(tmp_path / "bad", robot_messages(HUMBLE.types), "SQLITE3")
    change(path, *statements)
    with pytest.raises(error, match="bad"):
        one(path)


@pytest.mark.parametrize(
    ("before", "after", "error"),
    [
        ("storage_identifier: sqlite3", "storage_identifier: other", BadMetadata),
        ("- bag.db3", "- ../../outside.db3", ShardIOError),
        ("relative_file_paths", "no_paths", BadMetadata),
        ("version: 9", "version: [", BadMetadata),
        ("compression_mode: ''", "compression_mode: FILE", BadMetadata),
    ],
)
def test_a_description_that_lies_is_refused(
    tmp_path: Path, before: str, after: str, error: type[ShardError]
) -> None:
    path = ros2_bag(tmp_path / "bag", robot_messages(HUMBLE.types), "SQLITE3")
    described = path / "metadata.yaml"
    text = described.read_text()
    assert before in text
    described.write_text(text.replace(before, after))
    with pytest.raises(error):
        one(path)


@pytest.mark.parametrize("storage", ["SQLITE3", "MCAP"])
@pytest.mark.parametrize("form", [None, "rosbag"])
def test_a_description_that_belongs_to_no_bag_is_named(
    tmp_path: Path, storage: str, form: str | None
) -> None:
    path = ros2_bag(tmp_path / "bag", robot_messages(HUMBLE.types), storage)
    (path / "metadata.yaml").write_text("name: kitchen\nlicense: mit\n")
    with pytest.raises(BadMetadata, match=r"bag/metadata\.yaml: not the description of a bag"):
        next(read(path, form))
    if storage == "MCAP":
        assert [episode.id for episode in read(path, "mcap")] == ["bag"]


def test_a_bag_of_ros_1_that_is_cut_anywhere_is_an_error_or_shorter(tmp_path: Path) -> None:
    string = NOETIC.types["std_msgs/msg/String"]
    whole = ros1_bag(
        tmp_path / "a.bag", [("/say", n, string("hello")) for n in range(3)]
    ).read_bytes()
    path = tmp_path / "cut.bag"
    start = whole.index(b"op=\x05") - 40
    for length in range(start, len(whole), 5):
        path.write_bytes(whole[:length])
        with contextlib.suppress(Truncated):
            seen = one(path).observations
            assert not seen or seen["say/data"].data == ["hello"] * 3


def test_flipped_bytes_of_a_bag_give_an_error_or_an_episode(tmp_path: Path) -> None:
    string = NOETIC.types["std_msgs/msg/String"]
    whole = ros1_bag(
        tmp_path / "a.bag", [("/say", n, string("hello")) for n in range(3)]
    ).read_bytes()
    path = tmp_path / "flipped.bag"
    start = whole.index(b"op=\x05") - 40
    for position in range(start, len(whole), 9):
        damaged = bytearray(whole)
        damaged[position] ^= 0x81
        path.write_bytes(damaged)
        with contextlib.suppress(ShardError):
            one(path)


def head(**fields: bytes) -> bytes:
    text = b"".join(
        struct.pack("<I", len(name) + 1 + len(value)) + name.encode() + b"=" + value
        for name, value in fields.items()
    )
    return struct.pack("<I", len(text)) + text


@pytest.mark.parametrize(
    ("compression", "size", "stored", "error"),
    [
        (b"lz4", 1 << 30, b"abcd", SizeMismatch),
        (b"bz2", (1 << 32) - 1, b"abcd", LimitExceeded),
        (b"bz2", 100, b"abcd", BadCompression),
        (b"none", 100, b"abcd", SizeMismatch),
        (b"odd", 4, b"abcd", BadCompression),
    ],
)
def test_chunks_that_claim_too_much_are_refused(
    tmp_path: Path, compression: bytes, size: int, stored: bytes, error: type[ShardError]
) -> None:
    path = tmp_path / "bad.bag"
    chunk = head(op=b"\x05", compression=compression, size=struct.pack("<I", size))
    path.write_bytes(b"#ROSBAG V2.0\n" + chunk + struct.pack("<I", len(stored)) + stored)
    with pytest.raises(error, match=r"bad\.bag"):
        one(path)


def test_other_databases_and_folders_are_not_bags(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "other.db") as database:
        database.execute("CREATE TABLE topics (id)")
    database.close()
    for path in (tmp_path, tmp_path / "other.db"):
        with pytest.raises(ShardError):
            detect(str(path))


def altered_bag(path: Path, *statements: str) -> Path:
    """A bag with SQLite storage, changed by some statements."""
    ros2_bag(path, robot_messages(HUMBLE.types)[:9], "SQLITE3")
    (file,) = path.glob("*.db3")
    with contextlib.closing(sqlite3.connect(file)) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()
    return path


@pytest.mark.parametrize(
    "statements",
    [
        (
            "ALTER TABLE messages RENAME TO old",
            "CREATE TABLE messages(id INTEGER, topic_id INT, timestamp INT, data BLOB AS(zeroblob(900000000)))",
            "INSERT INTO messages(id, topic_id, timestamp) VALUES(1, 1, 1)",
        ),
        (
            "ALTER TABLE messages RENAME TO old",
            "CREATE TABLE messages(id TEXT, topic_id INT, timestamp INT, data BLOB)",
            "INSERT INTO messages SELECT 'x', topic_id, timestamp, data FROM old",
        ),
    ],
    ids=["computed data", "text as id"],
)
def test_tables_that_are_not_those_of_a_bag_are_refused(
    tmp_path: Path, statements: tuple[str, ...]
) -> None:
    path = altered_bag(tmp_path / "bag", *statements)
    with pytest.raises((BadMetadata, BadValue)) as found:
        one(path)
    assert "bag.db3" in str(found.value)


def test_what_a_bag_says_about_topics_is_kept_also_for_those_without_messages(
    tmp_path: Path,
) -> None:
    path = altered_bag(
        tmp_path / "bag",
        "UPDATE topics SET offered_qos_profiles = 'depth: 7' WHERE id = 1",
        "INSERT INTO topics SELECT 99, '/silent', type, serialization_format, offered_qos_profiles, type_description_hash FROM topics WHERE id = 1",
        "ALTER TABLE messages ADD COLUMN mood TEXT",
    )
    episode = one(path)
    topics = {row["topic"]: row for row in episode.metadata["rosbag"]["channels"]}
    assert topics["/joint_states"]["metadata"]["offered_qos_profiles"] == "depth: 7"
    assert topics["/silent"]["is_empty"] is True
    assert "column mood of messages" in [change.field for change in episode.lost]


def test_a_topic_of_ros_1_with_two_types_goes_out_as_both(tmp_path: Path) -> None:
    types = NOETIC.types
    messages = [
        ("/a", 1, types["std_msgs/msg/String"]("x")),
        ("/b", 2, types["std_msgs/msg/Int8"](5)),
    ]
    path = ros1_bag(tmp_path / "a.bag", messages)
    path.write_bytes(path.read_bytes().replace(b"topic=/b", b"topic=/a"))
    write([one(path)], tmp_path / "b.mcap", "mcap")
    (back,) = read(tmp_path / "b.mcap")
    seen = back.observations
    assert [list(seen[name].data) for name in ("a/data", "a/data_2")] == [["x"], [5]]


def test_a_description_that_repeats_itself_is_read_in_no_time(tmp_path: Path) -> None:
    path = ros2_bag(tmp_path / "bag", robot_messages(HUMBLE.types)[:9], "SQLITE3")
    text = (path / "metadata.yaml").read_text()
    laughs = "a0: &a0 [x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30)
    )
    custom = "  custom_data:\n    all: *a29\n"
    assert "  custom_data:\n    robot: r2\n" in text
    text = text.replace("  custom_data:\n    robot: r2\n", custom)
    (path / "metadata.yaml").write_text(laughs + text)
    assert "custom_data" in [change.field for change in one(path).lost]
