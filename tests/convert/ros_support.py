"""Messages of a robot as ROS has them, and what becomes of them."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from wshard.types import Modality

if TYPE_CHECKING:
    from wshard import Episode

SECOND = 1_000_000_000


def robot_messages(types: dict[str, Any], *, ros1: bool = False) -> list[tuple[str, int, Any]]:
    """Joint states, an IMU, transforms, pictures and points."""
    rng = np.random.default_rng(0)
    stamp = types["builtin_interfaces/msg/Time"]

    def header(n: int) -> Any:  # noqa: ANN401 - of rosbags
        first = (n,) if ros1 else ()
        return types["std_msgs/msg/Header"](*first, stamp(n, 5), f"frame{n % 2}")

    vector, quaternion = types["geometry_msgs/msg/Vector3"], types["geometry_msgs/msg/Quaternion"]
    point_field = types["sensor_msgs/msg/PointField"]
    fields = [point_field(name, 4 * k, 7, 1) for k, name in enumerate("xyz")]
    found: list[tuple[str, int, Any]] = []
    for n in range(6):
        log = n * SECOND
        q = rng.normal(size=3)
        joints = types["sensor_msgs/msg/JointState"](
            header(n), ["a", "bé", "c"], q, q[:0], rng.normal(size=n)
        )
        found.append(("/joint_states", log, joints))
        nine = rng.normal(size=9)
        imu = types["sensor_msgs/msg/Imu"](
            header(n), quaternion(0.0, 0.0, 0.0, 1.0), nine, vector(1.0, 2.0, float(n)), nine,
            vector(*rng.normal(size=3)), nine,
        )  # fmt: skip
        found.append(("/imu", log + 1, imu))
        point = types["geometry_msgs/msg/Point"](1.0, 2.0, 3.0)
        pose = types["geometry_msgs/msg/Pose"](point, quaternion(0.0, 0.0, 0.0, 1.0))
        poses = [types["geometry_msgs/msg/PoseStamped"](header(k), pose) for k in range(n % 3)]
        found.append(("/path", log + 2, types["nav_msgs/msg/Path"](header(n), poses)))
        pixels = rng.integers(0, 255, (4, 30), dtype=np.uint8)
        image = types["sensor_msgs/msg/Image"](header(n), 4, 8, "bgr8", 0, 30, pixels.reshape(-1))
        found.append(("/cam/raw", log + 3, image))
        depth = rng.integers(0, 60000, (4, 8)).astype(">u2")
        big = types["sensor_msgs/msg/Image"](
            header(n), 4, 8, "16UC1", 1, 16, depth.view(np.uint8).reshape(-1)
        )
        found.append(("/cam/depth", log + 3, big))
        compressed = types["sensor_msgs/msg/CompressedImage"]
        for form in ("png", "jpeg"):
            picture = compressed(header(n), form, encoded_picture(form, 5, n))
            found.append((f"/cam/{form}", log + 3, picture))
        count = n + 1
        cloud = rng.normal(size=(count, 4)).astype("<f4")
        points = types["sensor_msgs/msg/PointCloud2"](
            header(n), 1, count, [*fields, point_field("ring", 12, 4, 1)], False, 16, 16 * count,
            cloud.view(np.uint8).reshape(-1), True,
        )  # fmt: skip
        found.append(("/points", log + 4, points))
        found.append(("/say", log + 5, types["std_msgs/msg/String"](f"hello {n}")))
    return found


def encoded_picture(form: str, height: int, value: int) -> Any:  # noqa: ANN401 - an array
    image = pytest.importorskip("PIL.Image")
    out = io.BytesIO()
    image.fromarray(np.full((height, 6, 3), value, np.uint8)).save(out, form)
    return np.frombuffer(out.getvalue(), np.uint8)


def check_robot(episode: Episode, messages: list[tuple[str, int, Any]]) -> None:
    """Compares channels with the messages that they were made of."""
    by_topic: dict[str, list[Any]] = {}
    for topic, _, message in messages:
        by_topic.setdefault(topic, []).append(message)
    seen = episode.observations
    joints = by_topic["/joint_states"]
    assert seen["joint_states/position"].data.tolist() == [m.position.tolist() for m in joints]
    assert seen["joint_states/position"].extra["names"] == ["a", "bé", "c"]
    assert [v.tolist() for v in seen["joint_states/effort"].data] == [
        m.effort.tolist() for m in joints
    ]
    assert seen["joint_states/header/stamp"].data.tolist() == [n * SECOND + 5 for n in range(6)]
    assert seen["joint_states/header/frame_id"].data == [m.header.frame_id for m in joints]
    imu = by_topic["/imu"]
    assert seen["imu/angular_velocity"].data[:, 2].tolist() == [m.angular_velocity.z for m in imu]
    assert seen["imu/orientation"].extra["names"] == ["x", "y", "z", "w"]
    assert seen["imu/orientation_covariance"].shape == (6, 9)
    times = seen["imu/orientation"].timestamps_ns
    assert times is not None
    assert times.tolist() == [n * SECOND + 1 for n in range(6)]
    path = seen["path/poses/pose/position"]
    assert [v.tolist() for v in path.data] == [[[1, 2, 3]] * (n % 3) for n in range(6)]
    assert json.loads(seen["path/poses/header/frame_id"][5]) == ["frame0", "frame1"]
    assert seen["path/poses/header/stamp"][5].tolist() == [5, SECOND + 5]
    raw = seen["cam/raw"]
    assert raw.modality == Modality.RGB
    for n, message in enumerate(by_topic["/cam/raw"]):
        pixels = message.data.reshape(4, 30)[:, :24].reshape(4, 8, 3)
        assert (raw[n] == pixels[..., ::-1]).all()
    depth = by_topic["/cam/depth"][3].data.view(">u2").reshape(4, 8)
    assert (seen["cam/depth"][3] == depth).all()
    assert seen["cam/depth"].modality == Modality.DEPTH
    wanted = np.broadcast_to(np.arange(6)[:, None, None, None], (6, 5, 6, 3))
    assert np.array_equal(seen["cam/png"].data, wanted)
    assert np.abs(seen["cam/jpeg"].data.astype(int) - wanted).max() <= 2
    points = seen["points/points"]
    ring = seen["points/points/ring"]
    assert points.modality == Modality.POINTCLOUD
    for n, message in enumerate(by_topic["/points"]):
        cloud = message.data.view("<f4").reshape(-1, 4)
        assert (points[n] == cloud[:, :3]).all()
        assert (
            ring[n][:, 0] == message.data.reshape(-1, 16)[:, 12:14].copy().view("<u2")[:, 0]
        ).all()
    assert seen["say/data"].data == [f"hello {n}" for n in range(6)]
