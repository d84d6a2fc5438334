"""LeRobot datasets. Those in `fixtures/` were written by lerobot itself: see `fixtures/make_lerobot.py`. Whether lerobot
opens what is written here, `tests/bridges/test_lerobot.py` asks."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shard_format.errors import (
    BadMetadata,
    BadValue,
    Closed,
    InvalidArgument,
    LimitExceeded,
    ShardError,
    UnsafePath,
    UnsupportedVersion,
)
from wshard import Channel, Episode, Timebase, load_wshard, save_wshard
from wshard.convert import detect, read, write
from wshard.convert._lerobot import (
    LeRobotReader,
    LeRobotWriter,
    _columns,
    _tables,
    _writer,
    recognises,
)
from wshard.convert._model import Notes, Probe, ReadOptions, WriteOptions
from wshard.types import RaggedChannel, TextChannel
from wshard.video import VideoChannel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wshard.convert import ConvertedEpisode

pq = pytest.importorskip("pyarrow.parquet")
pa = pytest.importorskip("pyarrow")
av = pytest.importorskip("av")

FIXTURES = Path(__file__).parent / "fixtures"
_spec = importlib.util.spec_from_file_location("make_lerobot", FIXTURES / "make_lerobot.py")
assert _spec is not None
assert _spec.loader is not None
made: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(made)

TOP = "observation.images.top"
# AV1 at a quality of 30.
CLOSE = 12


def opened(path: Path, video: str = "keep") -> LeRobotReader:
    """A dataset that is closed when the test is over."""
    reader = LeRobotReader(str(path), ReadOptions(video=video))
    _open.append(reader)
    return reader


_open: list[LeRobotReader] = []


@pytest.fixture(autouse=True)
def _close_readers() -> Iterator[None]:
    yield
    while _open:
        _open.pop().close()


def unpacked(tmp_path: Path, version: str) -> Path:
    folder = tmp_path / version
    with zipfile.ZipFile(
        FIXTURES / f"lerobot_{'v21' if version == 'v20' else version}.zip"
    ) as zipped:
        zipped.extractall(folder)
    if version == "v20":
        # One file with statistics of the whole dataset in place of those of each episode.
        lines = (folder / "meta/episodes_stats.jsonl").read_text().splitlines()
        (folder / "meta/stats.json").write_text(json.dumps(json.loads(lines[0])["stats"]))
        (folder / "meta/episodes_stats.jsonl").unlink()
        change_info(folder, codebase_version="v2.0")
    return folder


def change_info(folder: Path, **fields: object) -> None:
    path = folder / "meta/info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def rewrite(path: Path, change: Callable[[Any], Any], **options: object) -> None:
    """Replaces a Parquet file by a changed one."""
    pq.write_table(change(pq.read_table(path)), path, **options)


def all_of(folder: Path) -> list[ConvertedEpisode]:
    return [episode.load() for episode in read(folder)]


def check_values(episode: Episode, number: int, reader: LeRobotReader) -> None:
    for name, expected in made.frames(number).items():
        address = reader.address(name)
        assert address is not None
        found = episode.parts[address]
        if name == TOP:
            assert found.shape == expected.shape
            assert np.abs(found.data.astype(int) - expected).max() <= CLOSE
        elif name == "remark":
            assert list(found.data) == expected
        else:
            np.testing.assert_array_equal(found.data, expected)
            assert found.dtype == expected.dtype


# --- in


@pytest.mark.parametrize("video", ["keep", "decode"])
@pytest.mark.parametrize("version", ["v20", "v21", "v3"])
def test_a_dataset_that_lerobot_wrote_is_read_as_it_was_recorded(
    tmp_path: Path, version: str, video: str
) -> None:
    folder = unpacked(tmp_path, version)
    assert detect(str(folder)).name == "lerobot"
    reader = opened(folder, video)
    assert list(reader.names()) == ["episode_0", "episode_1", "episode_2"]
    for number in (2, 0, 1):
        notes = Notes()
        episode = reader.read(number, notes)
        check_values(episode, number, reader)
        steps = range(made.LENGTHS[number])
        tasks = [made.task(number, step) for step in steps]
        assert list(episode.observations["language_instruction"].data) == tasks
        assert episode.metadata["task"] == tasks[0]
        assert episode.metadata["success"] == (number != 1)
        assert episode.metadata["split"] == "train"
        assert episode.metadata["dataset"]["robot_type"] == "so100"
        assert episode.timebase.tick_hz == made.FPS
        assert episode.observations["state"].extra["names"] == ["x", "y", "z"]
        statistics = episode.metadata["statistics" if version != "v20" else "dataset"]
        statistics = statistics.get("statistics", statistics)
        assert len(statistics["action"]["mean"]) == 2
        episode.validate()
        # Every feature is accounted for, and only decoding changes anything.
        told = {change.field for change in notes.changes}
        assert set(made.FEATURES) | {"timestamp", "task_index"} <= told
        changed = {change.field for change in notes.changes if change.kind != "kept"}
        assert changed == ({TOP} if video == "decode" else set())
        camera = episode.observations["images/top"]
        assert isinstance(camera, VideoChannel) == (video == "keep")


def test_a_dataset_comes_back_as_it_was(tmp_path: Path) -> None:
    before, after = unpacked(tmp_path, "v3"), tmp_path / "after"
    files = []
    for episode in read(before):
        files.append(tmp_path / f"{episode.id}.wshard")
        save_wshard(episode, files[-1])
    report = write(map(load_wshard, files), after, "lerobot")
    assert [str(change) for change in report.changes if change.kind != "kept"] == []

    def table(folder: Path, name: str) -> Any:  # noqa: ANN401 - of pyarrow
        return pa.concat_tables(map(pq.read_table, sorted((folder / name).rglob("*.parquet"))))

    old, new = table(before, "data"), table(after, "data")
    tasks = {row[1]: row[0] for row in task_rows(after)}
    old_tasks = {row[0]: row[1] for row in task_rows(before)}
    renumbered = pa.array([tasks[old_tasks[n]] for n in old["task_index"].to_pylist()], pa.int64())
    old = old.set_column(old.schema.get_field_index("task_index"), "task_index", renumbered)
    assert new.schema.equals(old.schema)
    for name in old.column_names:
        assert new[name].to_pylist() == old[name].to_pylist(), name

    old, new = table(before, "meta/episodes"), table(after, "meta/episodes")
    assert new.schema.equals(old.schema)
    for name in old.column_names:
        if "/file_index" in name or "_timestamp" in name or name.startswith("stats/task_index"):
            continue  # there was a second file because the recording had been resumed
        old_values, new_values = old[name].to_pylist(), new[name].to_pylist()
        if name == "tasks":
            assert [set(each) for each in old_values] == [set(each) for each in new_values]
        elif not name.startswith(
            ("stats/index", "stats/frame_index", "stats/timestamp", "stats/ep")
        ):
            assert old_values == new_values, name

    infos = [json.loads((folder / "meta/info.json").read_text()) for folder in (before, after)]
    assert infos[0] == infos[1]
    stats = [json.loads((folder / "meta/stats.json").read_text()) for folder in (before, after)]
    assert stats[0].keys() == stats[1].keys()
    for kind in ("min", "max", "mean", "std", "count", "q50"):
        np.testing.assert_allclose(stats[0]["action"][kind], stats[1]["action"][kind], rtol=1e-6)
    assert packets(before) == packets(after)


def task_rows(folder: Path) -> list[tuple[int, str]]:
    found = pq.read_table(folder / "meta/tasks.parquet")
    text = next(name for name in found.column_names if name != "task_index")
    return list(zip(found["task_index"].to_pylist(), found[text].to_pylist(), strict=True))


def packets(folder: Path) -> list[bytes]:
    found = []
    for path in sorted((folder / "videos" / TOP).rglob("*.mp4")):
        with av.open(str(path)) as file:
            found += [bytes(packet) for packet in file.demux(video=0) if packet.size]
    return found


def test_names_are_known_without_the_steps(tmp_path: Path) -> None:
    folder = unpacked(tmp_path, "v3")
    shutil.rmtree(folder / "data")
    reader = opened(folder)
    assert len(reader.names()) == 3
    with pytest.raises(ShardError, match=r"file-000\.parquet"):
        reader.read(0, Notes())


def test_an_episode_that_is_read_again_has_facts_of_its_own(tmp_path: Path) -> None:
    reader = opened(unpacked(tmp_path, "v3"))
    names = range(len(reader.names()))
    first = [reader.read(number, Notes()).metadata for number in names]
    whole = json.dumps(first)
    first[-1]["statistics"].clear()
    for number in reversed(names):
        again = reader.read(number, Notes()).metadata
        assert again == json.loads(whole)[number]
        again["statistics"]["timestamp"]["mean"].append(1)


@pytest.mark.parametrize("most_kept", [0, 128 << 20])
def test_many_episodes_in_one_group_of_rows_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_kept: int
) -> None:
    folder = unpacked(tmp_path, "v3")
    rewrite(folder / "data/chunk-000/file-000.parquet", lambda table: table, row_group_size=100)
    monkeypatch.setattr(_tables, "_FEW_ROWS", 0)
    monkeypatch.setattr(_tables, "_FEW_TIMES", 1)
    monkeypatch.setattr(_tables, "_MOST_KEPT", most_kept)
    monkeypatch.setattr(_tables, "_BATCH", 2)
    reader = opened(folder)
    for number in (1, 0):
        check_values(reader.read(number, Notes()), number, reader)


def test_large_columns_are_read_when_they_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.arange(40 * 5000, dtype=np.float32).reshape(40, 5000)
    write(
        [Episode("one", observations={"large": values, "small": values[:, :2]})],
        tmp_path / "d",
        "lerobot",
    )
    reader = opened(tmp_path / "d")
    read_columns: list[str] = []

    def watched(method: str) -> Any:  # noqa: ANN401 - a method
        plain = getattr(_tables.DataFile, method)

        def call(self: Any, columns: Any, start: int, stop: int) -> Any:  # noqa: ANN401 - of pyarrow
            read_columns.extend(columns)
            return plain(self, columns, start, stop)

        return call

    for method in ("read", "arrays"):
        monkeypatch.setattr(_tables.DataFile, method, watched(method))
    channel = reader.read(0, Notes()).observations["large"]
    assert "observation.small" in read_columns
    assert "observation.large" not in read_columns
    np.testing.assert_array_equal(channel[7:9], values[7:9])
    np.testing.assert_array_equal(channel.data, values)
    other = reader.read(0, Notes()).observations["large"]
    reader.close()
    with pytest.raises(Closed):
        other[0:1]


def test_a_missing_number_is_the_fault_of_its_episode_alone(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    values = np.arange(12, dtype=np.float32).reshape(6, 2)
    write([Episode(f"ep_{n}", observations={"state": values}) for n in range(3)], folder, "lerobot")

    def without_one(table: Any) -> Any:  # noqa: ANN401 - of pyarrow
        numbers = table.column("timestamp").to_pylist()
        numbers[8] = None
        place = table.schema.get_field_index("timestamp")
        return table.set_column(place, "timestamp", pa.array(numbers, pa.float32()))

    rewrite(folder / "data/chunk-000/file-000.parquet", without_one, row_group_size=6)
    reader = opened(folder)
    assert [reader.read(n, Notes()).length for n in (0, 2)] == [6, 6]
    with pytest.raises(BadValue, match="a number is missing"):
        reader.read(1, Notes())


def test_text_that_is_not_utf_8_is_an_error_with_its_column(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    write([Episode("ep", observations={"note": ["one", "two"]}, length=2)], folder, "lerobot")

    def with_other_bytes(table: Any) -> Any:  # noqa: ANN401 - of pyarrow
        place = table.schema.get_field_index("observation.note")
        texts = pa.array([b"one", b"\xff"], pa.binary()).view(pa.string())
        return table.set_column(place, table.schema.field(place), texts)

    rewrite(folder / "data/chunk-000/file-000.parquet", with_other_bytes)
    with pytest.raises(BadValue, match=r"observation\.note"):
        next(read(folder))


def test_damaged_rows_leave_those_of_other_episodes(tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.float32).reshape(6, 2)
    folder = tmp_path / "d"
    write(
        [Episode(f"ep_{n}", observations={"state": values + n}) for n in range(4)],
        folder,
        "lerobot",
    )
    path = folder / "data/chunk-000/file-000.parquet"
    with pq.ParquetFile(path) as file:
        group = file.metadata.row_group(2)
        assert file.metadata.num_row_groups == 4
        column = next(
            group.column(number)
            for number in range(group.num_columns)
            if group.column(number).path_in_schema.startswith("observation.state")
        )
        start = min(column.data_page_offset, column.dictionary_page_offset or 1 << 62)
    with path.open("r+b") as opened_file:
        opened_file.seek(start)
        opened_file.write(b"\xff" * 16)
    found = list(read(folder, on_error="skip"))
    assert [episode.id for episode in found] == ["episode_0", "episode_1", "episode_3"]
    for number, episode in zip((0, 1, 3), found, strict=True):
        np.testing.assert_array_equal(episode.observations["state"].data, values + number)


def test_times_that_are_not_regular_are_kept_there_and_back(tmp_path: Path) -> None:
    folder = unpacked(tmp_path, "v21")
    times = np.array([0, 0.13, 0.2, 0.31, 0.5], np.float32)
    path = folder / "data/chunk-000/episode_000001.parquet"
    rewrite(path, lambda table: replaced(table, "timestamp", times))
    episode = all_of(folder)[1]
    assert episode.timestamps_ns is not None
    np.testing.assert_allclose(episode.timestamps_ns / 1e9, times, rtol=1e-6)
    write([episode], tmp_path / "after", "lerobot")
    table = pq.read_table(tmp_path / "after/data/chunk-000/file-000.parquet")
    np.testing.assert_array_equal(table["timestamp"].to_numpy(), times)


def replaced(table: Any, name: str, values: Any) -> Any:  # noqa: ANN401 - of pyarrow
    return table.set_column(table.schema.get_field_index(name), name, pa.array(values))


def test_a_video_with_another_rate_than_the_steps_gives_the_nearest_frames(tmp_path: Path) -> None:
    folder = unpacked(tmp_path, "v21")
    frames = np.zeros((8, 48, 64, 3), np.uint8)
    frames += (30 * np.arange(8, dtype=np.uint8))[:, None, None, None]
    path = folder / f"videos/chunk-000/{TOP}/episode_000001.mp4"
    VideoChannel.encode(frames, "h264:crf=1").to_file(path, fps=14)
    notes = Notes()
    camera = opened(folder).read(1, notes).observations["images/top"]
    assert TOP in {each.field for each in notes.changes if each.kind == "decoded"}
    nearest = [round(14 * step / made.FPS) for step in range(5)]
    assert np.abs(camera.data.astype(int) - frames[nearest]).max() <= CLOSE
    assert np.abs(camera[2:4].astype(int) - frames[nearest[2:4]]).max() <= CLOSE


# --- out


def test_episodes_of_any_origin_can_be_written_and_what_is_lost_is_noted(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    episodes = []
    for number in range(2):
        steps = 4 + number
        episode = Episode(f"e{number}", env_id="Reach-v1")
        episode.observations["joint_pos"] = rng.normal(size=(steps + 1, 3))
        episode.observations["depth"] = Channel(
            "depth", data=rng.integers(0, 9, (steps + 1, 8, 9), np.uint16), modality="depth"
        )
        episode.observations["note"] = [f"n{step}" for step in range(steps)]
        episode.observations["points"] = RaggedChannel(
            "points", data=[np.zeros((step, 3), np.float32) for step in range(steps)]
        )
        episode.observations["imu"] = Channel(
            "imu", data=np.zeros((99, 3)), timestamps_ns=np.arange(99)
        )
        episode.observations["force"] = Channel(
            "force", data=np.zeros((steps, 2)), unit="N", extra={"names": ["a", "b"]}
        )
        episode.observations["half"] = Channel("half", "bf16", data=np.ones((steps, 2), np.float32))
        episode.actions["ctrl"] = rng.normal(size=(steps, 1)).astype(np.float32)
        episode.rewards = rng.normal(size=steps)
        episode.truncations = np.arange(steps) == steps - 1
        episode.omens["joint_pos"]["dreamer"] = np.ones((steps, 3), np.float32)
        episode.labels["phase"] = [(0, 2, "reach")]
        episode.metadata.update(success=bool(number), seed=3)
        episodes.append(episode)
    del episodes[1].observations["note"]
    report = write(episodes, tmp_path / "d", "lerobot")
    told = {(change.kind, change.field) for change in report.changes}
    for change in (
        *[("dropped", name) for name in ("signal/points", "signal/imu", "env_id", "label/phase")],
        *[("dropped", name) for name in ("metadata/seed", "signal/joint_pos after the last step")],
        ("dropped", "signal/force: unit"),
        *[("filled", name) for name in ("fps", "task_index", "observation.note", "next.success")],
        *[("cast", "signal/half"), ("renamed", "action/ctrl"), ("kept", "reward")],
    ):
        assert change in told
    assert ("dropped", "metadata/success") not in told
    back = all_of(tmp_path / "d")
    for before, after in zip(episodes, back, strict=True):
        steps = before.length
        assert after.length == steps
        assert after.metadata["success"] == before.metadata["success"]
        for name in ("joint_pos", "depth"):
            expected = before.observations[name].data[:steps]
            np.testing.assert_array_equal(after.observations[name].data, expected)
            assert after.observations[name].dtype == expected.dtype
        np.testing.assert_array_equal(
            after.actions["action"].data, before.actions["ctrl"].data[:, 0]
        )
        for lane in ("rewards", "truncations"):
            np.testing.assert_array_equal(getattr(after, lane).data, getattr(before, lane).data)
        assert after.omens["joint_pos"]["dreamer"].data.all()
        assert after.terminations is None
    assert back[0].observations["force"].extra["names"] == ["a", "b"]
    assert list(back[0].observations["note"].data) == ["n0", "n1", "n2", "n3"]
    assert list(back[1].observations["note"].data) == [""] * 5


def told_by(changes: Any) -> set[str]:  # noqa: ANN401 - of a report or of an episode
    """What was lost or changed, as `kind field`."""
    return {f"{change.kind} {change.field}" for change in changes}


def test_what_a_channel_says_about_itself_is_not_lost_silently(tmp_path: Path) -> None:
    episode = Episode("pick the cup", length=3, timebase=Timebase(tick_hz=10, epoch_ns=5))
    episode.observations["state"] = Channel(
        "state",
        data=np.zeros((3, 2)),
        description="of the left arm",
        modality="proprioception",
        sampling_rate_hz=20,
        lossy={"codec": "rounded"},
        extra={"names": {"x": 1}, "frame": "base"},
    )
    episode.observations["gray"] = Channel(
        "gray", data=np.zeros((3, 8, 9), np.uint8), modality="rgb", sampling_rate_hz=10
    )
    episode.observations["language_instruction"] = TextChannel(
        "language_instruction", ["a", "a", "b", "b"], description="by hand"
    )
    episode.metadata.update(task="c", tasks=["c"], success=0.5, split=3)
    told = told_by(write([episode], tmp_path / "d", "lerobot").changes)
    for name in ("description", "modality", "sampling_rate_hz", "lossy", "names", "frame"):
        assert f"dropped signal/state: {name}" in told
    assert "cast signal/gray" in told
    assert not [each for each in told if each.startswith("dropped signal/gray")]
    for name in ("", " after the last step", ": description"):
        assert (f"dropped signal/language_instruction{name}" in told) == bool(name)
    for name in ("task", "tasks", "success", "split"):
        assert f"dropped metadata/{name}" in told
    assert {"dropped id", "dropped timebase: epoch_ns"} <= told


def test_numbers_with_the_name_of_the_instruction_are_a_feature(tmp_path: Path) -> None:
    episode = Episode("episode_0", length=3)
    episode.observations["language_instruction"] = np.arange(6.0).reshape(3, 2)
    write([episode], tmp_path / "d", "lerobot")
    (back,) = all_of(tmp_path / "d")
    np.testing.assert_array_equal(
        back.observations["language_instruction"].data, np.arange(6.0).reshape(3, 2)
    )


def test_what_only_a_later_episode_says_is_noted(tmp_path: Path) -> None:
    episodes = []
    for number, values in enumerate(([1, 2], [3, 1 << 40])):
        episode = Episode(f"episode_{number}", length=2)
        episode.observations["count"] = np.array(values, np.int64 if number else np.int32)
        dataset = {"robot_type": f"arm {number}"}
        episode.metadata.update(dataset=dataset, lerobot={"subtasks": [f"s{number}"]})
        episodes.append(episode)
    episodes[1].metadata["success"] = True
    told = told_by(write(episodes, tmp_path / "d", "lerobot").changes)
    for name in ("signal/count", "metadata/success", "metadata/dataset"):
        assert f"dropped {name}" in told
    assert "dropped metadata/lerobot/subtasks" in told


def test_encoded_video_that_becomes_pictures_is_noted(tmp_path: Path) -> None:
    episode = Episode("episode_0", length=4)
    frames = np.zeros((4, 48, 64, 3), np.uint8)
    episode.observations["cam"] = VideoChannel.encode(frames, "h264", name="cam")
    report = write([episode], tmp_path / "d", "lerobot", video="decode")
    assert "decoded signal/cam" in told_by(report.changes)


def test_files_and_sound_that_are_not_read_are_noted(tmp_path: Path) -> None:
    folder = unpacked(tmp_path, "v3")
    assert not [change for change in all_of(folder)[0].changes if change.kind == "dropped"]
    (folder / "README.md").write_text("about it")
    (folder / "meta/modality.json").write_text("{}")
    (folder / ".gitattributes").write_text("")
    (folder / "images" / TOP).mkdir(parents=True)
    features = json.loads((folder / "meta/info.json").read_text())["features"]
    features[TOP]["info"]["has_audio"] = True
    change_info(folder, features=features)
    dropped = {each for each in told_by(all_of(folder)[0].changes) if each.startswith("dropped")}
    assert dropped == {
        "dropped README.md",
        "dropped meta/modality.json",
        f"dropped {TOP}: audio",
    }


@pytest.mark.parametrize("version", ["v21", "v3"])
def test_tasks_that_no_episode_has_are_noted(tmp_path: Path, version: str) -> None:
    folder = unpacked(tmp_path, version)
    if version == "v21":
        path = folder / "meta/tasks.jsonl"
        path.write_text(path.read_text() + json.dumps({"task_index": 77, "task": "juggle"}) + "\n")
    else:

        def with_one_more(table: Any) -> Any:  # noqa: ANN401 - of pyarrow
            (text,) = (name for name in table.schema.names if name != "task_index")
            rows = {"task_index": [77], text: ["juggle"]}
            return pa.concat_tables(
                [table, pa.table(rows).select(table.schema.names).cast(table.schema)]
            )

        rewrite(folder / "meta/tasks.parquet", with_one_more)
    for episode in all_of(folder):
        assert "dropped tasks: no episode has the tasks 'juggle'" in map(str, episode.changes)


@pytest.mark.parametrize("version", ["v21", "v3"])
def test_episodes_that_a_dataset_states_and_does_not_have_are_noted(
    tmp_path: Path, version: str
) -> None:
    folder = unpacked(tmp_path, version)
    info = folder / "meta/info.json"
    facts = json.loads(info.read_text())
    info.write_text(json.dumps({**facts, "total_episodes": 9}))
    for episode in all_of(folder):
        assert "dropped episodes: the dataset states 9 episodes and holds 3" in map(
            str, episode.changes
        )


def test_pixels_become_video_and_each_episode_finds_its_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_columns, "_FRAME_BYTES", 4 * 48 * 64 * 3)
    episodes = []
    for number in range(3):
        frames = np.zeros((6 + number, 48, 64, 3), np.uint8)
        frames += (20 * np.arange(len(frames), dtype=np.uint8) + 5 * number)[:, None, None, None]
        grey = frames[..., 0].copy()
        episodes.append(
            Episode(
                f"e{number}",
                timebase=Timebase(tick_hz=12.5),
                observations={"cam": frames, "grey": grey},
                actions={"action": np.zeros((len(frames), 2))},
            )
        )
    write(episodes, tmp_path / "d", "lerobot")
    assert [
        path.name for path in (tmp_path / "d/videos/observation.images.cam").rglob("*.mp4")
    ] == ["file-000.mp4"]
    for before, after in zip(episodes, read(tmp_path / "d"), strict=True):
        camera = after.observations["images/cam"]
        assert isinstance(camera, VideoChannel)
        expected = before.observations["cam"].data.astype(int)
        assert np.abs(camera.data - expected).max() <= CLOSE
        assert np.abs(after.observations["images/grey"].data - expected).max() <= CLOSE
        assert after.timebase.tick_hz == 12.5
        mean = after.metadata["statistics"]["observation.images.cam"]["mean"]
        np.testing.assert_allclose(np.ravel(mean), expected.mean() / 255, rtol=1e-6)
    write(episodes, tmp_path / "pictures", "lerobot", video="decode")
    for before, after in zip(episodes, read(tmp_path / "pictures"), strict=True):
        found = after.observations["images/cam"].data
        np.testing.assert_array_equal(found, before.observations["cam"].data)


@pytest.mark.parametrize("codec", ["h264", "h265", "av1"])
def test_encoded_video_is_copied_also_where_frames_depend_on_later_ones(
    tmp_path: Path, codec: str
) -> None:
    rng = np.random.default_rng(0)
    picture = rng.integers(0, 255, (64, 96, 3), np.uint8)
    episodes = []
    for count in (9, 5, 12):
        frames = np.stack([np.roll(picture, 3 * step, axis=1) for step in range(count)])
        camera = VideoChannel.encode(frames, codec, fps=20, keyframe_every=8, modality="rgb")
        episodes.append(
            Episode(
                f"e{count}",
                timebase=Timebase(tick_hz=20),
                observations={"images/cam": camera},
                actions={"action": np.zeros((count, 2))},
            )
        )
    report = write(episodes, tmp_path / "d", "lerobot")
    assert "decoded" not in {change.kind for change in report.changes}
    for before, after in zip(episodes, read(tmp_path / "d"), strict=True):
        cameras = [each.observations["images/cam"] for each in (before, after)]
        assert isinstance(cameras[1], VideoChannel)
        assert not cameras[1].hidden
        np.testing.assert_array_equal(cameras[0].data, cameras[1].data)


def test_video_that_does_not_start_with_a_keyframe_is_encoded_again(tmp_path: Path) -> None:
    frames = np.zeros((12, 64, 96, 3), np.uint8)
    frames += (20 * np.arange(12, dtype=np.uint8))[:, None, None, None]
    camera = VideoChannel.encode(frames, "h264", fps=30, keyframe_every=8).sliced(3, 12)
    assert camera.hidden
    episode = Episode("e", observations={"cam": camera}, actions={"action": np.zeros((8, 2))})
    report = write([episode], tmp_path / "d", "lerobot")
    assert "signal/cam" in {each.field for each in report.changes if each.kind == "decoded"}
    (after,) = all_of(tmp_path / "d")
    # The last of the nine frames came after the last action.
    found = after.observations["images/cam"].data.astype(int)
    assert np.abs(found - frames[3:11]).max() <= CLOSE


@pytest.mark.parametrize("codec", ["jpeg:90", "png", None])
def test_files_of_pictures_and_small_pictures_go_into_the_table(
    tmp_path: Path, codec: str | None
) -> None:
    frames = np.random.default_rng(0).integers(0, 255, (4, 24, 30, 3), np.uint8)
    camera = Channel("cam", data=frames) if codec is None else VideoChannel.encode(frames, codec)
    episode = Episode("e", observations={"cam": camera}, actions={"action": np.zeros((4, 2))})
    write([episode], tmp_path / "d", "lerobot")
    (after,) = all_of(tmp_path / "d")
    found = after.observations["images/cam"]
    np.testing.assert_array_equal(found.data, camera.data)
    assert found.content_type == ("image/jpeg" if codec == "jpeg:90" else "image/png")


def test_depth_in_video_goes_there_and_back(tmp_path: Path) -> None:
    codes = np.random.default_rng(0).integers(0, 4096, (5, 48, 64), np.uint16)
    folder = unpacked(tmp_path, "v21")
    write_depth(folder / f"videos/chunk-000/{TOP}/episode_000001.mp4", codes)
    info = json.loads((folder / "meta/info.json").read_text())
    info["features"][TOP]["shape"] = [48, 64, 1]
    info["features"][TOP]["info"] = {
        "video.pix_fmt": "gray12le",
        "is_depth_map": True,
        "video.depth_min": 0.01,
        "video.depth_max": 10.0,
    }
    change_info(folder, **info)
    episode = opened(folder).read(1, Notes())
    camera = episode.observations["images/top"]
    assert camera.modality == "depth"
    assert camera.extra["depth"]["video.depth_max"] == 10.0
    np.testing.assert_array_equal(camera.data >> 4, codes)
    write([episode], tmp_path / "after", "lerobot")
    (after,) = all_of(tmp_path / "after")
    np.testing.assert_array_equal(after.observations["images/top"].data, camera.data)
    assert after.observations["images/top"].extra == camera.extra


def write_depth(path: Path, codes: Any) -> None:  # noqa: ANN401 - of pyarrow
    with av.open(str(path), "w") as out:
        stream = out.add_stream(
            "libx265", made.FPS, options={"x265-params": "lossless=1:log-level=none"}
        )
        stream.pix_fmt = "gray12le"
        stream.height, stream.width = codes.shape[1:]
        for picture in codes:
            frame = av.VideoFrame(stream.width, stream.height, "gray12le")
            plane = frame.planes[0]
            rows = np.zeros((stream.height, plane.line_size // 2), np.uint16)
            rows[:, : stream.width] = picture
            plane.update(rows.tobytes())
            out.mux(stream.encode(frame))
        out.mux(stream.encode())


def test_a_new_file_starts_when_one_is_large_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_writer, "_MOST_DATA_MB", 0)
    monkeypatch.setattr("wshard.convert._lerobot._videos.MOST_VIDEO_MB", 0)
    folder, after = unpacked(tmp_path, "v3"), tmp_path / "after"
    write(read(folder), after, "lerobot")
    assert len(list((after / "data").rglob("*.parquet"))) == 3
    assert len(list((after / "videos").rglob("*.mp4"))) == 3
    reader = opened(after)
    for number in range(3):
        check_values(reader.read(number, Notes()), number, reader)


def test_an_error_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="at least one episode"):
        write([], tmp_path / "d", "lerobot")
    assert not os.listdir(tmp_path)
    writer = LeRobotWriter(str(tmp_path / "open"), WriteOptions())
    episode = Episode("e", observations={"cam": np.zeros((3, 48, 64, 3), np.uint8)})
    writer.write(episode, Notes())
    writer.abandon()


# --- files that lie


@pytest.mark.parametrize(
    "template",
    [
        "../outside/{chunk_index}.parquet",
        "/etc/passwd",
        "{chunk_index.__class__}",
        "{chunk_index:0999999999d}",
        "{chunk_index!r}",
        "{secret}",
        "data/{video_key:03d}.parquet",
        "{0}",
        "data/\0",
        "{{chunk_index}}",
        7,
        None,
    ],
)
def test_paths_that_lead_elsewhere_are_refused(tmp_path: Path, template: object) -> None:
    folder = unpacked(tmp_path, "v3")
    change_info(folder, data_path=template)
    with pytest.raises((UnsafePath, BadMetadata), match="data_path"):
        opened(folder).read(0, Notes())
    change_info(
        folder,
        data_path="data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        video_path=template,
    )
    if template != "data/{video_key:03d}.parquet":
        with pytest.raises((UnsafePath, BadMetadata), match="video_path"):
            opened(folder).read(0, Notes())


def test_a_link_out_of_the_dataset_is_not_followed(tmp_path: Path) -> None:
    folder = unpacked(tmp_path, "v3")
    file = folder / "data/chunk-000/file-000.parquet"
    os.rename(file, tmp_path / "elsewhere.parquet")
    os.symlink(tmp_path / "elsewhere.parquet", file)
    with pytest.raises(UnsafePath):
        opened(folder).read(0, Notes())


def test_a_snapshot_of_the_hub_is_read_through_its_links_to_blobs(tmp_path: Path) -> None:
    plain = unpacked(tmp_path, "v3")
    cache = tmp_path / "datasets--lerobot--toy"
    snapshot, blobs = cache / "snapshots" / "0123abcd", cache / "blobs"
    blobs.mkdir(parents=True)
    for number, file in enumerate(sorted(path for path in plain.rglob("*") if path.is_file())):
        link = snapshot / file.relative_to(plain)
        link.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, blobs / f"{number:040x}")
        link.symlink_to(os.path.relpath(blobs / f"{number:040x}", link.parent))
    assert [each.id for each in all_of(snapshot)] == [each.id for each in all_of(plain)]
    # Nothing else beside the snapshot, and no folder that only poses as the one with its files.
    link = snapshot / "data/chunk-000/file-000.parquet"
    target = link.resolve()
    for elsewhere in (cache / "other", tmp_path / "secret"):
        link.unlink()
        shutil.copy(target, elsewhere)
        link.symlink_to(elsewhere)
        with pytest.raises(UnsafePath, match="cp -rL"):
            opened(snapshot).read(0, Notes())
    link.unlink()
    link.symlink_to(target)
    blobs.rename(tmp_path / "away")
    blobs.symlink_to(tmp_path / "away")
    with pytest.raises(UnsafePath):
        opened(snapshot).read(0, Notes())


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"codebase_version": "v1.6"}, UnsupportedVersion),
        ({"fps": 0}, BadMetadata),
        ({"fps": "10"}, BadMetadata),
        ({"fps": float("nan")}, BadMetadata),
        ({"features": []}, BadMetadata),
        ({"features": {"action": {"dtype": "float32"}}}, BadMetadata),
        ({"features": {"action": {"dtype": "float32", "shape": [-1]}}}, BadMetadata),
        ({"features": {"action": {"dtype": "float32", "shape": [1 << 40]}}}, BadMetadata),
    ],
)
def test_a_wrong_description_is_refused(
    tmp_path: Path, fields: dict[str, object], error: type[ShardError]
) -> None:
    folder = unpacked(tmp_path, "v3")
    change_info(folder, **fields)
    with pytest.raises(error, match=r"info\.json"):
        opened(folder)


def test_tables_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    def broken(change: Callable[[Path], object], message: str) -> None:
        folder = unpacked(tmp_path, "v3")
        change(folder)
        with pytest.raises(ShardError, match=message):
            list(read(folder))
        shutil.rmtree(folder)

    data = "data/chunk-000/file-000.parquet"
    episodes = "meta/episodes/chunk-000/file-000.parquet"

    def column(file: str, name: str, value: Callable[[list[Any]], list[Any]]) -> Any:  # noqa: ANN401 - of pyarrow
        return lambda folder: rewrite(
            folder / file, lambda table: replaced(table, name, value(table[name].to_pylist()))
        )

    broken(column(data, "task_index", lambda old: [9] * len(old)), "a task that the dataset does")
    broken(column(data, "episode_index", lambda old: [0] * len(old)), "a different number of steps")
    broken(column(data, "episode_index", lambda old: [5] * len(old)), "does not have the rows")
    broken(column(data, "episode_index", lambda old: [0, 1] * 6), "not together")
    broken(column(data, "action", lambda old: [[1.0]] * len(old)), "a different shape")
    broken(column(data, "action", lambda old: [[1.0, 2.0]] * 11 + [None]), "missing")
    broken(column(data, "action", lambda old: [1.0] * len(old)), "number of dimensions")
    broken(column(data, "phase", lambda old: [None, *old[1:]]), "missing")
    broken(column(data, "timestamp", lambda old: [float("nan"), *old[1:]]), "not a number")
    broken(column(episodes, "length", lambda old: [1 << 60] * 2), "a different number of steps")
    broken(column(episodes, "length", lambda old: [-1] * 2), "not an episode")
    broken(column(episodes, "data/file_index", lambda old: [1 << 40] * 2), "cannot read")
    broken(column(episodes, "data/file_index", lambda old: [None] * 2), "does not say where")
    start = f"videos/{TOP}/from_timestamp"
    broken(column(episodes, start, lambda old: [1e9] * 2), "a frame for each step")
    broken(column(episodes, start, lambda old: [float("nan")] * 2), "no time at which")
    broken(lambda folder: (folder / data).write_bytes(b"PAR1 nothing PAR1"), "Parquet")
    broken(
        lambda folder: os.truncate(folder / "videos" / TOP / "chunk-000/file-000.mp4", 900),
        r"file-000\.mp4",
    )


def test_numbers_that_repeat_do_not_fill_memory(tmp_path: Path) -> None:
    """A few kilobytes of Parquet can say the same number a billion times."""
    folder = unpacked(tmp_path, "v3")
    count = 3_000_000
    names = ("frame_index", "episode_index", "index", "task_index", "length")
    table = pa.table(dict.fromkeys(names, pa.array(np.zeros(count, np.int64))))
    for name in ("data/chunk-000/file-000.parquet", "meta/episodes/chunk-000/file-001.parquet"):
        pq.write_table(table, folder / name, row_group_size=count)
        assert (folder / name).stat().st_size < 1 << 20
    with pytest.raises(LimitExceeded, match="more rows than it has bytes"):
        opened(folder)
    (folder / "meta/episodes/chunk-000/file-001.parquet").unlink()
    with pytest.raises(LimitExceeded, match="more rows than it has bytes"):
        opened(folder).read(0, Notes())


def test_other_columns_of_the_table_of_episodes_are_kept(tmp_path: Path) -> None:
    folder = unpacked(tmp_path, "v3")
    for path in sorted((folder / "meta/episodes").rglob("*.parquet")):
        rewrite(path, lambda table: table.append_column("who", [["me"] * len(table)]))
        rewrite(path, lambda table: table.append_column("list", [[[1, 2]] * len(table)]))
    report = write(read(folder), tmp_path / "after", "lerobot")
    lost = {change.field for change in report.changes if change.kind == "dropped"}
    assert lost == {"metadata/lerobot/episode/list"}
    found = [each.metadata["lerobot"]["episode"]["who"] for each in read(tmp_path / "after")]
    assert found == ["me", "me", "me"]


def test_datasets_below_a_folder_are_read_as_one(tmp_path: Path) -> None:
    for version in ("v3", "v21"):
        unpacked(tmp_path / "all" / "robots", version)
    assert detect(tmp_path / "all").name == "lerobot"
    found = {episode.id: episode.load() for episode in read(tmp_path / "all")}
    alone = {
        f"robots/{version}/{episode.id}": episode
        for version in ("v3", "v21")
        for episode in all_of(tmp_path / "all" / "robots" / version)
    }
    assert sorted(found) == sorted(alone)
    for name, episode in found.items():
        assert list(episode.parts) == list(alone[name].parts)
        assert episode.changes == alone[name].changes
    # Without its description, a dataset is not taken for a folder of tables.
    shutil.rmtree(tmp_path / "all/robots/v3")
    (tmp_path / "all/robots/v21/meta/info.json").unlink()
    with pytest.raises(InvalidArgument, match="data/chunk-000") as error:
        detect(tmp_path / "all/robots/v21")
    assert "format='table'" in str(error.value)


def test_other_folders_are_not_taken_for_lerobot(tmp_path: Path) -> None:
    assert not recognises(Probe(str(tmp_path)))
    (tmp_path / "meta").mkdir()
    assert not recognises(Probe(str(tmp_path)))
    (tmp_path / "meta/info.json").write_text("[]")
    assert not recognises(Probe(str(tmp_path)))
    (tmp_path / "meta/info.json").write_text('{"codebase_version": "v9", "features": {}}')
    assert recognises(Probe(str(tmp_path)))
    with pytest.raises(UnsupportedVersion):
        opened(tmp_path)


def test_columns_that_are_not_numbers_become_text(tmp_path: Path) -> None:
    folder = unpacked(tmp_path, "v21")
    path = folder / "data/chunk-000/episode_000001.parquet"
    rows = [[{"role": "user", "content": f"{step}"}] for step in range(5)]
    lists = [[1.0] * step for step in range(5)]
    rewrite(
        path,
        lambda table: table.append_column("language_events", pa.array(rows)).append_column(
            "hits", pa.array(lists)
        ),
    )
    reader = opened(folder)
    notes = Notes()
    episode = reader.read(1, notes)
    assert json.loads(episode.observations["language_events"][3]) == rows[3]
    assert [each.tolist() for each in episode.observations["hits"].data] == lists
    assert "language_events" in {each.field for each in notes.changes if each.kind == "cast"}


def test_a_table_of_pictures_that_are_elsewhere_is_refused(tmp_path: Path) -> None:
    folder = unpacked(tmp_path, "v21")
    path = folder / "data/chunk-000/episode_000000.parquet"
    cells = [{"bytes": None, "path": "/etc/passwd"}] * 7
    rewrite(path, lambda table: replaced(table, "observation.images.wrist", cells))
    with pytest.raises(BadValue, match="not in the table"):
        opened(folder).read(0, Notes())
