"""CSV and Parquet tables, written by pyarrow and by our writer."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shard_format.errors import BadValue, LimitExceeded, ShardError
from shard_format.registry import Limits
from wshard import Channel, Episode, Timebase, load_wshard, save_wshard
from wshard.convert import _table as table
from wshard.convert import detect, read, write
from wshard.convert._model import ReadOptions
from wshard.types import RaggedChannel, TextChannel

if TYPE_CHECKING:
    from pathlib import Path

pa = pytest.importorskip("pyarrow")
csv = pytest.importorskip("pyarrow.csv")
parquet = pytest.importorskip("pyarrow.parquet")


def make(name: str = "ep_1", length: int = 5, **more: Any) -> Episode:  # noqa: ANN401 - observations
    """An episode that fits into a table."""
    random = np.random.default_rng(length)
    pose = random.normal(size=(length + 1, 3)).astype(np.float32)
    return Episode(
        name,
        env_id="Reach-v1",
        timebase=Timebase(tick_hz=20.0),
        observations={
            "pose": Channel(data=pose, unit="rad", extra={"names": ["a", "b", "c"]}),
            "camera": Channel(
                data=random.integers(0, 255, (length, 8, 8, 3), np.uint8), modality="rgb"
            ),
            "words": TextChannel(data=[f"ä{t}" for t in range(length + 1)]),
            "boxes": RaggedChannel(data=[np.full((t, 2), t, np.int16) for t in range(length)]),
            "half": Channel(data=pose[:length], dtype="bf16"),
            "flag": pose[:, 0] > 0,
            **more,
        },
        actions={
            "arm": random.normal(size=(length, 2, 2)),
            "action": np.arange(length, dtype=np.uint8),
        },
        rewards=random.normal(size=length),
        terminations=np.arange(length) == length - 1,
        truncations=np.zeros(length, bool),
        omens={"pose": {"dreamer/v3": pose}},
        uncerts={"pose": {"dreamer/v3": {"std": pose[:length]}}},
        labels={"phase": [(0, 2, "reach")]},
        metadata={"success": True},
        timestamps_ns=np.arange(length) ** 2 + 10**18,
    )


def check_same(old: Episode, new: Episode) -> None:
    """Compares all parts and facts."""
    assert new.facts == old.facts
    assert new.parts.keys() == old.parts.keys()
    for address, part in old.parts.items():
        other = new.parts[address]
        if isinstance(part, RaggedChannel):
            np.testing.assert_array_equal(part.values, other.values)
            np.testing.assert_array_equal(part.offsets, other.offsets)
        elif isinstance(part, Channel):
            np.testing.assert_array_equal(part.data, other.data, str(address))
            assert part.dtype_name == other.dtype_name
            for fact in ("unit", "modality", "extra", "step_shape"):
                assert getattr(part, fact) == getattr(other, fact)
        else:
            assert part.to_fields() == other.to_fields()


@pytest.mark.parametrize("name", ["all.parquet", "folder"])
def test_parquet_gives_back_what_a_table_can_hold(tmp_path: Path, name: str) -> None:
    episodes = [make(), make("ep_2", 1), make("ep_10", 7)]
    report = write(episodes, tmp_path / name, "table")
    assert {change.kind for change in report.changes} == {"kept"}
    assert detect(str(tmp_path / name)).name == "table"
    for old, new in zip(episodes, read(tmp_path / name), strict=True):
        save_wshard(old, tmp_path / "old.wshard")
        save_wshard(new, tmp_path / "new.wshard")
        check_same(load_wshard(tmp_path / "old.wshard"), load_wshard(tmp_path / "new.wshard"))
    table = parquet.read_table(tmp_path / name)
    assert table["action.arm"].is_null().to_pylist()[:7] == [False] * 5 + [True, False]
    assert table["frame_index"].to_pylist()[:7] == [0, 1, 2, 3, 4, 5, 0]


def test_csv_keeps_the_numbers(tmp_path: Path) -> None:
    episodes = [make(), make("ep_2", 3)]
    report = write(episodes, tmp_path / "all.csv", "table")
    lost = {change.field for change, _ in report.of_kind("dropped")}
    assert lost >= {"signal/boxes", "metadata/success", "label/phase", "env_id"}
    assert {change.field for change, _ in report.of_kind("cast")} >= {"signal/pose"}
    assert detect(str(tmp_path / "all.csv")).name == "table"
    for old, new in zip(episodes, read(tmp_path / "all.csv"), strict=True):
        assert new.id == old.id
        assert new.length == old.length
        for name in ("pose", "camera", "flag"):
            data = old.observations[name].data
            np.testing.assert_array_equal(new.observations[name].data.astype(data.dtype), data)
        assert new.observations["words"].data == old.observations["words"].data
        np.testing.assert_array_equal(new.actions["arm"].data, old.actions["arm"].data)
        np.testing.assert_array_equal(new.rewards, old.rewards)
        np.testing.assert_array_equal(new.terminations, old.terminations)
        np.testing.assert_array_equal(new.timestamps_ns, old.timestamps_ns)
        np.testing.assert_array_equal(
            new.omens["pose"]["dreamer/v3"].data.astype("f4"), old.omens["pose"]["dreamer/v3"].data
        )


def test_columns_of_other_programs_become_channels(tmp_path: Path) -> None:
    from PIL import Image

    picture = io.BytesIO()
    Image.fromarray(np.full((9, 8, 3), 7, np.uint8)).save(picture, "PNG")
    columns: dict[str, Any] = {
        "episode_index": [0, 0, 0, 1, 1],
        "frame_index": [0, 1, 2, 0, 1],
        "index": [0, 1, 2, 3, 4],
        "timestamp": pa.array([0, 0.1, 0.2, 0, 0.1], pa.float32()),
        "observation.state": [[1.0, 2], [3, 4], [5, 6], [7, 8], [9, 0]],
        "action": pa.array([[1, 1], [2, 2], None, [3, 3], [4, 4]], pa.list_(pa.float32(), 2)),
        "next.reward": pa.array([0.5, 1, None, 2, 3]),
        "next.done": pa.array([False, True, None, False, False]),
        "task": ["a", None, "c", "d", "e"],
        "points": [[1], [], [1, 2], [3], [4]],
        "pose": [{"x": t, "y": [t, t]} for t in range(5)],
        "camera": [{"bytes": picture.getvalue(), "path": None}] * 5,
        "count": pa.array([1, None, 3, 4, 5]),
        "empty": pa.nulls(5),
        "when": pa.array([0, 1, 2, 3, 4], pa.timestamp("s")),
        "price": pa.array([1, 2, 3, 4, 5]).cast(pa.decimal128(30, 2)),
    }
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=2)
    first, second = read(tmp_path / "a.parquet")
    assert (first.id, first.length, second.length) == ("episode_0", 2, 2)
    assert first.observations["state"].data.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert first.actions["action"].data.tolist() == [[1, 1], [2, 2]]
    assert first.actions["action"].dtype == np.float32
    assert first.rewards is not None
    assert first.terminations is not None
    assert first.rewards.data.tolist() == [0.5, 1]
    assert first.terminations.data.tolist() == [False, True]
    assert first.timestamps_ns is not None
    assert (
        first.timestamps_ns.tolist()
        == [
            0,
            100_000_001,
        ][:2]
    )
    assert first.observations["task"].data == ["a", "", "c"]
    assert [one.tolist() for one in first.observations["points"].data] == [[1], [], [1, 2]]
    assert first.observations["pose.y"].data.tolist() == [[0, 0], [1, 1], [2, 2]]
    assert first.observations["camera"].shape == (3, 9, 8, 3)
    assert first.observations["camera"].modality == "rgb"
    np.testing.assert_array_equal(first.observations["count"].data, [1, np.nan, 3])
    assert second.observations["count"].dtype == np.int64
    assert first.observations["when"].data.tolist() == [0, 10**9, 2 * 10**9]
    assert {change.field for change in first.changes if change.kind == "filled"} == {
        "task",
        "count",
    }
    dropped = {change.field for change in first.changes if change.kind == "dropped"}
    assert dropped == {"empty", "timestamp of the last row"}
    known = {change.field.partition(".x")[0].partition(".y")[0] for change in first.changes}
    assert known >= columns.keys()
    save_wshard(first, tmp_path / "a.wshard")
    write([load_wshard(tmp_path / "a.wshard")], tmp_path / "back.parquet", "table")
    back = parquet.read_table(tmp_path / "back.parquet").to_pydict()
    for name in ("observation.state", "action", "next.reward", "next.done", "points"):
        whole = columns[name]
        values = whole.to_pylist() if isinstance(whole, pa.Array) else whole
        assert back[name] == values[:3], name


def test_elements_of_vectors_are_put_together(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        "episode,observation.state[1],observation.state[0],m[0][0],m[0][1],odd[0],odd[2],action,done,note\n"
        '7,1,0.5,1,2,9,9,nan,0,"a,\nb"\n'
        "7,2,1.5,3,4,9,9,1,1,\n"
    )
    (episode,) = read(tmp_path / "a.csv")
    assert episode.id == "episode_7"
    assert episode.observations["state"].data.tolist() == [[0.5, 1], [1.5, 2]]
    assert episode.observations["m"].data.tolist() == [[[1, 2]], [[3, 4]]]
    assert {"odd[0]", "odd[2]"} <= episode.observations.keys()
    assert np.isnan(episode.actions["action"].data[0])
    assert episode.terminations is not None
    assert episode.terminations.data.tolist() == [False, True]
    assert episode.observations["note"].data == ["a,\nb", ""]


def test_files_of_a_folder_are_episodes(tmp_path: Path) -> None:
    for number in (2, 10):
        (tmp_path / f"run_{number}.csv").write_text(f"x,action\n{number},1\n5,\n")
    episodes = list(read(tmp_path))
    assert [episode.id for episode in episodes] == ["run_2", "run_10"]
    assert episodes[1].observations["x"].data.tolist() == [10, 5]
    assert episodes[1].length == 1


def test_what_does_not_fit_is_noted(tmp_path: Path) -> None:
    second = make("ep_2", 3, more=np.zeros(3), flag=np.zeros(3))
    second.observations["imu"] = Channel(data=np.zeros(9), timestamps_ns=np.arange(9))
    second.extras["model.xml"] = b"<mujoco/>"
    report = write([make(), second, Episode("empty")], tmp_path / "a.parquet", "table")
    dropped = {change.field for change, _ in report.of_kind("dropped")}
    assert dropped == {
        *("observation.more", "observation.flag", "signal/imu", "model.xml"),
    }
    episodes = list(read(tmp_path / "a.parquet"))
    assert "flag" not in episodes[1].observations
    assert [episode.id for episode in episodes] == ["ep_1", "ep_2", "empty"]


@pytest.mark.parametrize("damage", ["cut", "order", "null", "ragged", "description", "large"])
def test_damaged_tables_are_named(
    tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.parquet"
    write([make()], path, "table")
    expected: type[ShardError] = BadValue
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "order":
        parquet.write_table(pa.table({"episode": [1, 2, 1], "x": [1, 2, 3]}), path)
    elif damage == "null":
        parquet.write_table(pa.table({"episode": [1, None], "x": [1, 2]}), path)
    elif damage == "ragged":
        path = tmp_path / "a.csv"
        path.write_text("a,b\n1,2\n3\n")
    elif damage == "description":
        content = parquet.read_table(path)
        field = content.schema.field("observation.pose").with_metadata({b"wshard": b"{"})
        number = content.schema.names.index("observation.pose")
        parquet.write_table(content.cast(content.schema.set(number, field)), path)
    else:
        monkeypatch.setattr(table, "DEFAULT_LIMITS", Limits(max_decompressed_bytes=100))
        expected = LimitExceeded
    with pytest.raises(expected, match=path.name):
        list(read(path, "table"))


def test_rewards_that_need_more_bits_than_those_of_the_first_episode_are_kept(
    tmp_path: Path,
) -> None:
    exact = np.array([0.1, 0.2, 0.3])
    for number, rewards in enumerate((np.ones(3), exact)):
        ep = Episode(f"e{number}", length=3)
        ep.observations["state"] = np.ones((4, 2), "f4")
        ep.rewards = rewards
        save_wshard(ep, tmp_path / f"e{number}.wshard")  # stores the first in 32 bits
    for name in ("all.parquet", "all.csv"):
        write((load_wshard(tmp_path / f"e{number}.wshard") for number in (0, 1)), tmp_path / name)
        first, second = read(tmp_path / name)
        assert first.rewards is not None
        assert second.rewards is not None
        assert first.rewards.data.tolist() == [1, 1, 1]
        assert second.rewards.data.tolist() == exact.tolist()
        assert second.length == 3


@pytest.mark.parametrize("name", ["all.parquet", "folder"])
def test_an_episode_without_steps_is_written_and_read(tmp_path: Path, name: str) -> None:
    full, empty = Episode("b", length=2), Episode("a", length=0)
    for ep in (full, empty):
        ep.observations["state"] = np.ones((ep.length, 2), "f4")
        ep.metadata["task"] = ep.id
    last = Episode("c", length=2)
    last.observations["state"] = np.ones((2, 2), "f4")
    write([full, empty, last], tmp_path / name, format="table")
    found = {ep.id: ep for ep in read(tmp_path / name)}
    assert list(found) == (["b", "a", "c"] if name == "all.parquet" else ["a", "b", "c"])
    assert found["a"].length == 0
    assert found["a"].metadata["task"] == "a"
    assert found["a"].observations["state"].shape == (0, 2)


def test_csv_says_that_it_cannot_hold_an_episode_without_steps(tmp_path: Path) -> None:
    done = write([Episode("a", length=0)], tmp_path / "a.csv")
    assert any("no steps" in change.detail for change in done.changes)


def test_lists_of_different_lengths_keep_their_type(tmp_path: Path) -> None:
    items = {
        "whole": pa.array([[1, 2], [], None], pa.list_(pa.int32())),
        "half": pa.array([[0.5], [1.5, 2.5], []], pa.list_(pa.float32())),
        "action": [1.0, 2.0, 3.0],
    }
    parquet.write_table(pa.table(items), tmp_path / "a.parquet")
    (ep,) = read(tmp_path / "a.parquet")
    whole, half = ep.observations["whole"], ep.observations["half"]
    assert (whole.dtype.name, half.dtype.name) == ("int32", "float32")
    assert [one.tolist() for one in whole] == [[1, 2], [], []]
    assert [one.tolist() for one in half] == [[0.5], [1.5, 2.5], []]


def test_what_a_table_says_besides_its_steps_is_kept_or_noted(tmp_path: Path) -> None:
    columns = {
        "picture": [{"bytes": None, "path": "elsewhere.png"}] * 3,
        "action": [1.0, 2.0, 3.0],
        "frame_index": [5, 6, 7],
        "episode_id": ["a"] * 3,
        "episode_index": [9] * 3,
    }
    content = pa.table(columns).replace_schema_metadata({"made by": "a program"})
    parquet.write_table(content, tmp_path / "a.parquet")
    (ep,) = read(tmp_path / "a.parquet")
    facts = ep.metadata["table"]
    assert (facts["first"], facts["values"]) == ({"frame_index": 5}, {"episode_index": 9})
    dropped = {change.field for change in ep.changes if change.kind == "dropped"}
    assert dropped == {"picture", "picture.path", "metadata 'made by' of the file"}


def test_files_with_the_same_ids_keep_what_they_say_about_their_episodes(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("x", "y"):
        ep = Episode("same", length=2, env_id=name, metadata={"task": name})
        ep.observations["state"] = np.ones((2, 2), "f4")
        write([ep], tmp_path / "folder" / f"{name}.parquet")
    found = [(ep.id, ep.env_id, ep.metadata["task"]) for ep in read(tmp_path / "folder")]
    assert found == [("x_same", "x", "x"), ("y_same", "y", "y")]


def test_missing_vectors_cannot_claim_more_memory_than_there_may_be(tmp_path: Path) -> None:
    empty = pa.array([None], pa.list_(pa.float32(), 1 << 20))
    content = pa.table({"x": pa.chunked_array([empty] * 300), "action": np.ones(300)})
    parquet.write_table(content, tmp_path / "a.parquet", compression="zstd")
    assert (tmp_path / "a.parquet").stat().st_size < 10_000
    with pytest.raises(LimitExceeded, match="row group"):
        list(read(tmp_path / "a.parquet"))


def test_rewards_in_lists_of_one_number_are_rewards(tmp_path: Path) -> None:
    content = pa.table({"action": [[1.0], [2.0]], "next.reward": [[0.5], [1.5]]})
    parquet.write_table(content, tmp_path / "a.parquet")
    (ep,) = read(tmp_path / "a.parquet")
    assert ep.rewards is not None
    assert ep.rewards.data.tolist() == [0.5, 1.5]
    assert ep.actions["action"].shape == (2, 1)


def test_a_damaged_row_group_leaves_the_others(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    episodes = [make(f"ep_{number}", 4) for number in range(4)]
    write(episodes, path, format="table")
    with parquet.ParquetFile(path) as file:
        assert file.metadata.num_row_groups == len(episodes)
        names = file.schema_arrow.names
        column = file.metadata.row_group(2).column(names.index("reward"))
        start, size = column.data_page_offset, column.total_compressed_size
    with path.open("r+b") as opened:
        opened.seek(start)
        opened.write(b"\xff" * min(size, 16))
    found = list(read(path, on_error="skip"))
    assert [episode.id for episode in found] == ["ep_0", "ep_1", "ep_3"]
    for old, new in zip((episodes[0], episodes[1], episodes[3]), found, strict=True):
        check_same(old, new)


def test_an_episode_may_go_on_in_the_next_row_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = pa.table({"episode_index": [0, 0, 0, 1, 1], "action": np.arange(5.0)})
    parquet.write_table(content, tmp_path / "a.parquet", row_group_size=2)
    whole = [ep.actions["action"].data.tolist() for ep in read(tmp_path / "a.parquet")]
    monkeypatch.setattr(table, "DEFAULT_LIMITS", Limits(max_decompressed_bytes=39))
    names = table.TableReader(str(tmp_path / "a.parquet"), ReadOptions()).names()
    assert whole == [[0, 1, 2], [3, 4]]
    assert names == ["episode_0", "episode_1"]
