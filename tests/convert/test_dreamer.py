"""Replay buffers of Dreamer.

The packages do not install beside the test tools. The files here have the names and arrays of their own code; that code
(dreamerv3 at e3f0224 with `elements` 3.22.4, its release 1.5.0, and dreamerv2) was run by hand against this reader and writer.
"""

from __future__ import annotations

import os
import uuid
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shard_format.errors import BadValue, Closed, InvalidArgument, ShardError, Truncated
from wshard import Channel, Episode, save_wshard
from wshard.convert import ConvertOptions, convert, detect, read, write
from wshard.convert._dreamer import base62
from wshard.types import RaggedChannel, TextChannel

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

ZEROS = "0" * 22


def steps(length: int, seed: int, *, terminal: bool = True) -> list[dict[str, Any]]:
    """The rows of one episode, as the driver of DreamerV3 makes them."""
    random = np.random.default_rng(seed)
    rows = []
    for t in range(length + 1):
        last = t == length
        rows.append(
            {
                "image": random.integers(0, 255, (8, 9, 3), np.uint8),
                "reward": np.float32(0 if t == 0 else seed * 100 + t),
                "is_first": np.bool_(t == 0),
                "is_last": np.bool_(last),
                "is_terminal": np.bool_(last and terminal),
                "action": (random.normal(size=2) * (not last)).astype(np.float32),
                "dyn/deter": random.normal(size=4).astype(np.float32),
                "log_success": np.int32(t),
            }
        )
    return rows


class Stream:
    """One worker of a replay buffer: writes chunks whose names chain them."""

    clock = 0

    def __init__(self, folder: Path, size: int = 5) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.size = folder, size
        self.uuid = uuid.uuid4()

    def save(self, rows: list[dict[str, Any]]) -> list[Path]:
        return [self._chunk(rows[at : at + self.size]) for at in range(0, len(rows), self.size)]

    def _chunk(self, rows: list[dict[str, Any]]) -> Path:
        own, self.uuid = self.uuid, uuid.uuid4()
        Stream.clock += 1
        name = f"20260301T101010F{Stream.clock:06d}-{base62(own.int)}-{base62(self.uuid.int)}-{len(rows)}.npz"
        arrays: dict[str, Any] = {key: np.stack([row[key] for row in rows]) for key in rows[0]}
        arrays["stepid"] = np.stack(
            [np.frombuffer(own.bytes + t.to_bytes(4, "big"), np.uint8) for t in range(len(rows))]
        )
        np.savez_compressed(self.folder / name, **arrays)
        return self.folder / name


def column(rows: list[dict[str, Any]], key: str) -> NDArray[Any]:
    return np.stack([row[key] for row in rows])


def check(episode: Episode, rows: list[dict[str, Any]]) -> None:
    """Compares an episode with the rows that it was made of."""
    assert episode.length == len(rows) - 1
    assert episode.terminations is not None
    assert episode.truncations is not None
    assert episode.rewards is not None
    for key in ("image", "log_success"):
        np.testing.assert_array_equal(episode.observations[key].data, column(rows, key))
    np.testing.assert_array_equal(episode.actions["action"].data, column(rows, "action")[:-1])
    np.testing.assert_array_equal(episode.rewards.data, column(rows, "reward")[1:])
    terminal, last = column(rows, "is_terminal")[1:], column(rows, "is_last")[1:]
    np.testing.assert_array_equal(episode.terminations.data, terminal)
    np.testing.assert_array_equal(episode.truncations.data, last & ~terminal)
    np.testing.assert_array_equal(
        episode.omens["dyn/deter"]["dreamer"].data, column(rows, "dyn/deter")
    )
    assert episode.rewards.dtype == np.float32


def test_chunks_of_several_workers_become_episodes(tmp_path: Path) -> None:
    folder = tmp_path / "replay"
    left, right = Stream(folder), Stream(folder)
    first, second, third = steps(7, 1), steps(3, 2, terminal=False), steps(12, 3)
    left.save(first)
    right.save(third[:10])
    left.save(second)
    right.save(third[10:])

    assert detect(str(folder)).name == "dreamer"
    episodes = list(read(folder))
    for episode, rows in zip(episodes, (first, second, third), strict=True):
        check(episode, rows)
        assert not episode.lost
        assert episode.metadata["dreamer"]["version"] == 3
    assert [episode.metadata["dreamer"]["stream"] for episode in episodes] == [0, 0, 1]
    assert episodes[0].observations["stepid"].shape == (8, 20)
    assert str(episodes[0].observations["image"].modality) == "rgb"


def test_a_replay_buffer_comes_back_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "replay"
    one, other = Stream(folder), Stream(folder)
    cut = steps(6, 5)[2:]  # the buffer has dropped its first rows
    abandoned = steps(6, 6)[:4]
    one.save([*cut, *steps(2, 7), *abandoned, *steps(1, 8)])
    other.save(steps(4, 9)[:1])
    write(read(folder), tmp_path / "own", "wshard")
    report = write(read(tmp_path / "own"), tmp_path / "back", "dreamer")

    assert {change.field for change, _ in report.of_kind("dropped", "cast", "filled")} == {
        "signal/stepid"
    }
    before, after = list(read(folder)), list(read(tmp_path / "back"))
    assert len(before) == 5
    for old, new in zip(before, after, strict=True):
        assert old.length == new.length
        assert old.parts.keys() == new.parts.keys()
        for address, part in old.parts.items():
            if address != ("signal", "stepid"):
                np.testing.assert_array_equal(part.data, new.parts[address].data, str(address))
                assert part.dtype == new.parts[address].dtype
        for key in ("is_start", "first_row", "stream"):
            assert old.metadata["dreamer"].get(key) == new.metadata["dreamer"].get(key), key
    assert after[0].metadata["dreamer"]["is_start"] is False
    assert after[0].metadata["dreamer"]["first_row"] == {"reward": 502.0}
    assert after[2].truncations is not None
    assert not after[2].truncations.data.any()
    for name in os.listdir(tmp_path / "back"):
        with np.load(tmp_path / "back" / name) as chunk:
            assert chunk["stepid"].shape == (len(chunk["is_first"]), 20)
            assert int(name.rpartition("-")[2].removesuffix(".npz")) == len(chunk["is_first"])


def test_padding_and_repeated_saves_of_release_1_5_do_not_count(tmp_path: Path) -> None:
    rows = steps(8, 4)
    own, following = base62(uuid.uuid4().int), base62(uuid.uuid4().int)
    for count, successor in ((3, ZEROS), (6, ZEROS), (6, following)):
        arrays: dict[str, Any] = {key: np.stack([row[key] for row in rows]) for key in rows[0]}
        for array in arrays.values():
            array[count:] = 1  # memory that was never written
        np.savez_compressed(
            tmp_path / f"20260301T101010F000001-{own}-{successor}-{count}.npz", **arrays
        )
    rest: dict[str, Any] = {key: np.stack([row[key] for row in rows[6:]]) for key in rows[0]}
    np.savez_compressed(tmp_path / f"20260301T101011F000001-{following}-{ZEROS}-3.npz", **rest)
    (episode,) = read(tmp_path)
    check(episode, rows)


def test_actions_of_dreamer_v2_belong_to_the_row_before(tmp_path: Path) -> None:
    length = 5
    numbers = np.arange(length + 1)
    np.savez_compressed(
        tmp_path / f"20210301T101010-{uuid.uuid4().hex}-{length}.npz",
        image=np.zeros((length + 1, 8, 8, 3), np.uint8) + numbers[:, None, None, None].astype("u1"),
        action=numbers[:, None].astype(np.float32),  # the one that led to the row
        reward=numbers.astype(np.float32),
        discount=(numbers != length).astype(np.float32),
    )
    assert detect(str(tmp_path)).name == "dreamer"
    (episode,) = read(tmp_path)
    assert episode.metadata["dreamer"]["version"] == 2
    np.testing.assert_array_equal(episode.actions["action"].data[:, 0], numbers[1:])
    assert episode.rewards is not None
    assert episode.terminations is not None
    np.testing.assert_array_equal(episode.rewards.data, numbers[1:])
    np.testing.assert_array_equal(episode.terminations.data, numbers[1:] == length)
    write([episode], tmp_path / "v3", "dreamer")
    (again,) = read(tmp_path / "v3")
    np.testing.assert_array_equal(again.actions["action"].data[:, 0], numbers[1:])


def test_any_episode_can_be_written_and_the_report_says_what_is_missing(tmp_path: Path) -> None:
    episode = Episode(
        "made",
        env_id="Reach-v1",
        observations={
            "pose": np.arange(8.0).reshape(4, 2),
            "words": TextChannel("words", ["a"] * 4),
            "points": RaggedChannel("points", data=[np.ones((n, 3)) for n in range(4)]),
            "imu": Channel("imu", data=np.zeros(9), timestamps_ns=np.arange(9)),
        },
        actions={"arm": np.arange(4.0), "action": np.arange(4)},
        omens={"pose": {"other": np.ones((4, 2))}},
        uncerts={"pose": {"other": {"std": np.ones((4, 2))}}},
        labels={"phase": [(0, 2, "reach")]},
        metadata={"success": True},
    )
    report = write([episode, Episode("empty")], tmp_path / "out", "dreamer")
    dropped = {change.field for change, _ in report.of_kind("dropped")}
    assert dropped == {
        *("signal/words", "signal/points", "signal/imu", "label/phase", "metadata/success"),
        "env_id",
    }
    filled = {change.field for change, _ in report.of_kind("filled")}
    assert filled >= {"signal/pose", "reward", "terminated", "done"}
    first, second = read(tmp_path / "out")
    np.testing.assert_array_equal(
        first.observations["pose"].data[[0, 1, 2, 3, 3], 1], [1, 3, 5, 7, 7]
    )
    np.testing.assert_array_equal(first.actions["arm"].data, np.arange(4.0))
    assert first.omens["pose"]["other"].shape == (5, 2)
    assert first.uncerts["pose"]["other"]["std"].shape == (5, 2)
    assert second.length == 0


def test_a_ring_of_successors_ends(tmp_path: Path) -> None:
    rows, ids = steps(3, 1), [base62(number) for number in (1, 2)]
    for number, own in enumerate(ids):
        part = rows[number * 2 : number * 2 + 2]
        arrays: dict[str, Any] = {key: np.stack([row[key] for row in part]) for key in part[0]}
        name = f"20260301T10101{number}F000001-{own}-{ids[1 - number]}-2.npz"
        np.savez(tmp_path / name, **arrays)
    (episode,) = read(tmp_path)
    check(episode, rows)


@pytest.mark.parametrize("damage", ["object", "short", "cut", "flag", "bomb", "mixed"])
def test_damaged_chunks_are_named(tmp_path: Path, damage: str) -> None:
    stream = Stream(tmp_path / "replay", size=20)
    (path,) = stream.save(steps(6, 1))
    with np.load(path) as file:
        arrays = dict(file)
    expected: type[ShardError] = BadValue
    if damage == "object":
        np.savez(path, **{**arrays, "extra": np.array([{}] * 7, dtype=object)})
    elif damage == "short":
        np.savez(path, **{**arrays, "image": arrays["image"][:3]})
        expected = Truncated
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-40])
    elif damage == "flag":
        np.savez(path, **{**arrays, "is_first": np.zeros((7, 2))})
    elif damage == "bomb":
        # States 8 EB in a file of some bytes.
        header = b"\x93NUMPY\1\0\x76\0" + (
            b"{'descr': '|u1', 'fortran_order': False, 'shape': (9223372036854775000,), }".ljust(
                117
            )
            + b"\n"
        )
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("extra.npy", header)
    else:
        np.savez(path.with_name("20210301T101010-0123456789abcdef-5.npz"), **arrays)
        expected = InvalidArgument
    with pytest.raises(expected) as caught:
        list(read(tmp_path / "replay", "dreamer"))
    if damage == "object":
        assert "np.array(list(value), dtype)" in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_damaged_chunk_leaves_the_episodes_of_the_others(tmp_path: Path) -> None:
    first, second = steps(7, 1), steps(12, 2)  # with the last observation, 8 and 13 rows
    stream, other = Stream(tmp_path / "replay", size=7), Stream(tmp_path / "replay", size=7)
    (_, damaged, _) = stream.save(first + second)
    other.save(steps(3, 3))
    damaged.write_bytes(damaged.read_bytes()[:100])
    report = convert(tmp_path / "replay", tmp_path / "out", options=ConvertOptions(on_error="skip"))
    ((name, problem),) = report.failed.items()
    assert (name, damaged.name in problem) == ("episode_1", True)
    before, after, whole = read(tmp_path / "out")
    check(before, first[:7])
    check(after, second[6:])
    check(whole, steps(3, 3))


def test_large_arrays_stay_in_the_chunks(tmp_path: Path) -> None:
    rows = [
        {**row, "image": np.full((64, 64, 3), t, np.uint8)} for t, row in enumerate(steps(9, 1))
    ]
    Stream(tmp_path / "replay", size=4).save(rows)
    episodes = read(tmp_path / "replay")
    image = next(episodes).observations["image"]
    assert not image.is_loaded
    assert image[3:6, 0, 0, 0].tolist() == [3, 4, 5]
    assert image[0:1, 0, 0, 0].tolist() == [0]
    assert not image.is_loaded
    assert not list(episodes)
    with pytest.raises(Closed, match="before you ask for the next"):
        image[3:6]


def test_units_are_noted_because_a_replay_buffer_has_none(tmp_path: Path) -> None:
    ep = Episode("ep", length=2)
    ep.observations["force"] = Channel(data=np.ones((3, 3)), unit="N")
    report = write([ep], tmp_path / "replay", "dreamer")
    assert "signal/force, unit" in {change.field for change, _ in report.of_kind("dropped")}


def test_a_first_reward_that_is_not_a_number_comes_back(tmp_path: Path) -> None:
    ep = Episode("ep", length=2, metadata={"dreamer": {"first_row": {"reward": "nan"}}})
    ep.rewards = np.array([1.0, 2.0])
    write([ep], tmp_path / "replay", "dreamer")
    (found,) = read(tmp_path / "replay")
    assert found.metadata["dreamer"]["first_row"] == {"reward": "nan"}
    save_wshard(found, tmp_path / "a.wshard")
