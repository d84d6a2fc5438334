"""Rerun recordings, read back by the reader of `rerun-sdk`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.convert.mcap_support import made_episode
from wshard import Episode
from wshard.convert import write
from wshard.video import VideoChannel

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("rerun")
chunks = pytest.importorskip("rerun.chunk")


def recorded(path: Path) -> dict[str, dict[str, Any]]:
    """By the path of an entity, what was recorded there, as lists by column."""
    found: dict[str, dict[str, Any]] = {}
    for chunk in chunks.RrdReader(path).stream():
        batch = chunk.to_record_batch()
        columns = found.setdefault(chunk.entity_path, {})
        for name in batch.schema.names:
            if "RowId" not in name:
                values = batch.column(name)
                plain = values.cast("int64") if name == "time" else values
                columns.setdefault(name, []).extend(plain.to_pylist())
    return found


def test_a_recording_has_every_channel_on_its_timelines(tmp_path: Path) -> None:
    ep = made_episode()
    report = write([ep], tmp_path / "a.rrd", "rerun")
    seen = recorded(tmp_path / "a.rrd")
    qpos = seen["/signal/qpos"]
    assert np.array_equal(qpos["Scalars:scalars"], ep.observations["qpos"].data)
    assert qpos["SeriesLines:names"] == [["a", "b", "c"]]
    assert qpos["step"] == list(range(13))
    assert qpos["time"] == ep.times_ns("qpos").tolist()
    pixels = np.array(seen["/signal/cam"]["Image:buffer"], np.uint8)
    assert np.array_equal(pixels.reshape(12, 16, 20, 3), ep.observations["cam"].data)
    depth = np.array(seen["/signal/depth"]["DepthImage:buffer"], np.uint8)
    assert np.array_equal(
        depth.reshape(-1).view("<u2").reshape(12, 16, 20), ep.observations["depth"].data
    )
    texts = seen["/signal/language_instruction"]["TextDocument:text"]
    assert [text for (text,) in texts] == ep.observations["language_instruction"].data
    for points, wanted in zip(
        seen["/signal/points"]["Points3D:positions"], ep.observations["points"].data, strict=True
    ):
        assert np.array_equal(np.array(points, np.float32).reshape(-1, 3), wanted)
    assert seen["/signal/boxes"]["values"][3] == [0, 1, 2]
    assert len(seen["/signal/imu"]["time"]) == 55
    assert "step" not in seen["/signal/imu"]
    assert ep.rewards is not None
    assert np.array_equal(np.array(seen["/reward"]["Scalars:scalars"])[:, 0], ep.rewards.data)
    assert len(seen["/action/chunk"]["Tensor:data"]) == 12
    assert {"/omen/qpos/dreamer", "/uncert/qpos/dreamer/std", "/terminated"} <= seen.keys()
    facts = json.loads(seen["/__properties/episode"]["json"][0][0])
    assert facts["metadata"]["task"] == "reach"
    assert facts["labels"]["phase"]["intervals"][0]["text"] == "reach"
    assert {change.field for change in report.changes if change.kind == "dropped"} == {
        "blob",
        "array",
    }


def test_an_episode_without_a_rate_has_steps_only(tmp_path: Path) -> None:
    ep = Episode("a", actions={"a": np.arange(4.0), "big": np.array([2**60 + 1] * 4)})
    report = write([ep], tmp_path / "a.rrd", "rerun")
    seen = recorded(tmp_path / "a.rrd")
    assert seen["/action/a"].keys() == {"step", "Scalars:scalars"}
    assert [str(change) for change in report.changes if change.kind == "cast"] == [
        "cast action/big: int64 to float64, numbers in plots are floats"
    ]


def test_encoded_cameras_stay_encoded(tmp_path: Path) -> None:
    pytest.importorskip("av")
    frames = np.random.default_rng(0).integers(0, 255, (9, 32, 48, 3), dtype=np.uint8)
    ep = Episode("a")
    for name, codec in (("video", "h264:bf=0"), ("jpeg", "jpeg:90"), ("b", "h264:bf=2")):
        ep.observations[name] = VideoChannel.encode(frames, codec)
    report = write([ep], tmp_path / "a.rrd", "rerun")
    seen = recorded(tmp_path / "a.rrd")
    for name, column in (("video", "VideoStream:sample"), ("jpeg", "EncodedImage:blob")):
        camera = ep.observations[name]
        assert isinstance(camera, VideoChannel)
        found = [np.array(row, np.uint8).tobytes() for row in seen[f"/signal/{name}"][column]]
        assert found == [bytes(packet.data) for packet in camera.packets()]
    assert [c.field for c in report.changes if c.kind == "decoded"] == ["signal/b"]


def test_several_episodes_become_a_folder_of_recordings(tmp_path: Path) -> None:
    write(
        [Episode(f"ep_{n}", actions={"a": np.arange(n + 1.0)}) for n in range(3)],
        tmp_path / "all",
        "rerun",
    )
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == [
        "ep_0.rrd",
        "ep_1.rrd",
        "ep_2.rrd",
    ]
    assert len(recorded(tmp_path / "all" / "ep_2.rrd")["/action/a"]["step"]) == 3
