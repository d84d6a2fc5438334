"""D4RL files with the layout of its own scripts, written with h5py; `test_real_hdf5` reads one that such a script wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shard_format.errors import BadValue, InvalidArgument, ShardError, SizeMismatch, UnsafePath
from wshard import load_wshard, save_wshard
from wshard.convert import detect, read

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

h5py = pytest.importorskip("h5py")

ENDS = {3: "terminals", 9: "timeouts", 10: "terminals"}
"""The last steps of three episodes of 4, 6 and 1 steps; a fourth one of 3 steps is not finished."""
BOUNDS = ((0, 4), (4, 10), (10, 11), (11, 14))
COUNT = 14


def arrays(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 - arrays
    """What a file of D4RL holds."""
    random = np.random.default_rng(3)
    observations = random.normal(size=(COUNT, 5)).astype(np.float32)
    following = np.roll(observations, -1, axis=0)
    for _, stop in BOUNDS:
        following[stop - 1] = random.normal(size=5)
    found: dict[str, Any] = {
        "observations": observations,
        "next_observations": following,
        "actions": random.normal(size=(COUNT, 2)).astype(np.float32),
        "rewards": random.normal(size=COUNT).astype(np.float32),
        "terminals": np.zeros(COUNT, np.bool_),
        "timeouts": np.zeros(COUNT, np.bool_),
        "infos/qpos": random.normal(size=(COUNT, 3)),
        "metadata/algorithm": np.bytes_("SAC"),
        "metadata/policy/fc0/weight": random.normal(size=(64, 5)),
    }
    for step, kind in ENDS.items():
        found[kind][step] = True
    found.update(changes)
    return {name: value for name, value in found.items() if value is not None}


def make(path: Path, **changes: Any) -> Path:  # noqa: ANN401 - arrays
    """A file with these arrays; None leaves one out."""
    with h5py.File(path, "w") as file:
        for name, value in arrays(**changes).items():
            options = {"compression": "gzip"} if np.ndim(value) else {}
            file.create_dataset(name, data=value, **options)
    return path


def test_episodes_are_split_where_they_terminate_or_time_out(tmp_path: Path) -> None:
    expected = arrays()
    path = make(tmp_path / "a.hdf5")
    assert detect(str(path)).name == "d4rl"
    for number, episode in enumerate(read(path)):
        start, stop = BOUNDS[number]
        save_wshard(episode, tmp_path / "one.wshard")
        own = load_wshard(tmp_path / "one.wshard")
        assert own.length == stop - start
        for block, name in {
            "action/action": "actions",
            "reward": "rewards",
            "terminated": "terminals",
            "truncated": "timeouts",
            "signal/info/qpos": "infos/qpos",
        }.items():
            np.testing.assert_array_equal(
                own.find(block).data, expected[name][start:stop], strict=True
            )
        after = expected["next_observations"][stop - 1 : stop]
        np.testing.assert_array_equal(
            own.observations["observation"].data,
            np.concatenate([expected["observations"][start:stop], after]),
            strict=True,
        )
        assert own.metadata["dataset"] == {"metadata/algorithm": "SAC"}
        assert [(note.kind, note.field) for note in episode.lost] == [
            ("dropped", "metadata/policy/fc0/weight")
        ]
        own.close()
    assert number == 3


def test_what_a_file_has_besides_its_arrays_is_noted(tmp_path: Path) -> None:
    path = make(tmp_path / "a.hdf5")
    with h5py.File(path, "a") as file:
        file["observations"].attrs["unit"] = "m"
        file.create_group("later")
        file["info/qpos"] = file["infos/qpos"][:]
    first = next(read(path))
    notes = {(note.kind, note.field) for note in first.changes}
    assert {("kept", "observations.attrs['unit']"), ("dropped", "later")} <= notes
    assert first.metadata["dataset"]["inner_attributes"] == {"observations": {"unit": "m"}}
    assert ("renamed", "infos/qpos") in notes
    assert {"info/qpos", "info/qpos_"} <= set(first.observations)


def test_next_observations_that_are_not_those_of_the_next_step_stay(tmp_path: Path) -> None:
    following = arrays()["next_observations"]
    following[5] += 1
    first, second, *_ = read(make(tmp_path / "a.hdf5", next_observations=following))
    assert first.observations["observation"].shape == (5, 5)
    assert second.observations["observation"].shape == (6, 5)
    np.testing.assert_array_equal(second.observations["next_observation"].data, following[4:10])


def test_without_next_observations_there_are_as_many_observations_as_actions(
    tmp_path: Path,
) -> None:
    for episode in read(make(tmp_path / "a.hdf5", next_observations=None)):
        assert len(episode.observations["observation"]) == episode.length


def test_flags_may_be_floats_and_columns_and_infos_one_array(tmp_path: Path) -> None:
    plain = arrays()
    path = make(
        tmp_path / "a.hdf5",
        **{
            "terminals": plain["terminals"].astype(np.float32).reshape(-1, 1),
            "rewards": plain["rewards"].reshape(-1, 1),
            "infos/qpos": None,
            "infos": plain["infos/qpos"],
        },
    )
    episodes = list(read(path))
    assert [len(episode) for episode in episodes] == [4, 6, 1, 3]
    path.unlink()
    first = episodes[0]
    assert first.terminations is not None
    assert first.rewards is not None
    assert first.terminations.data.tolist() == [False, False, False, True]
    np.testing.assert_array_equal(first.rewards.data, plain["rewards"][:4], strict=True)
    np.testing.assert_array_equal(first.observations["info"].data, plain["infos/qpos"][:4])
    assert ("cast", "terminals") in {(note.kind, note.field) for note in first.changes}


def test_files_without_timeouts_are_split_at_a_time_limit_that_you_give(tmp_path: Path) -> None:
    path = make(tmp_path / "a.hdf5", timeouts=None, next_observations=None)
    whole = list(read(path))
    assert [len(episode) for episode in whole] == [4, 7, 3]
    assert whole[0].truncations is None
    assert "max_episode_steps" in str(whole[0].changes)
    parts = list(read(path, mapping={"max_episode_steps": 3}))
    assert [len(episode) for episode in parts] == [3, 1, 3, 3, 1, 3]
    assert parts[0].truncations is not None
    assert parts[0].truncations.data.tolist() == [False, False, True]
    assert [episode.dones is not None and bool(episode.dones[-1]) for episode in parts] == [
        True
    ] * 6
    with pytest.raises(InvalidArgument, match="max_episode_steps"):
        next(read(path, mapping={"observations": "x"}))


def chunked(path: Path, bounds: Sequence[tuple[int, int, int]], **more: Any) -> Path:  # noqa: ANN401 - arrays
    """A file with chunks (number, first step, stop) of `arrays()`, and what else is given at its root."""
    whole = arrays(**{"infos/qpos": None})
    with h5py.File(path, "w") as file:
        for number, start, stop in bounds:
            for name in ("observations", "actions", "rewards", "terminals", "timeouts"):
                file[f"virtual/{number}/{name}"] = whole[name][start:stop]
        for name, value in more.items():
            file[name] = value
    return path


def test_chunks_are_one_dataset_in_which_episodes_go_on(tmp_path: Path) -> None:
    whole = arrays(next_observations=None)
    plain = list(read(make(tmp_path / "plain.hdf5", next_observations=None)))
    path = chunked(tmp_path / "a.hdf5", [(0, 0, 3), (1, 3, 8), (2, 8, 8), (10, 9, 14), (3, 8, 9)])
    assert detect(path).name == "d4rl"
    found = list(read(path))
    assert [(episode.id, episode.length) for episode in found] == [
        *(("episode_0", 4), ("episode_1", 5), ("episode_2", 1)),  # chunks 4 to 9 are missing
        *(("episode_3", 1), ("episode_4", 3)),
    ]
    assert "virtual/4" in {change.field for change in found[0].lost}
    path = chunked(tmp_path / "b.hdf5", [(0, 0, 3), (1, 3, 8), (2, 8, 14)])
    for episode, expected, (start, stop) in zip(read(path), plain, BOUNDS, strict=True):
        rows = episode.observations["observation"]
        np.testing.assert_array_equal(rows[:], whole["observations"][start:stop])
        np.testing.assert_array_equal(
            rows[1 : stop - start], whole["observations"][start + 1 : stop]
        )
        for view in ("rewards", "terminations", "truncations"):
            np.testing.assert_array_equal(getattr(episode, view), getattr(expected, view))
        assert episode.lost == ()


def test_large_arrays_of_chunks_stay_in_the_file(tmp_path: Path) -> None:
    big = np.arange(3000 * 16, dtype=np.float32).reshape(3000, 16)
    ends = np.zeros(3000, np.bool_)
    ends[2500] = True
    whole = {"observations": big, "actions": big[:, :2], "rewards": big[:, 0], "terminals": ends}
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for number in range(3):
            for name, values in whole.items():
                rows = values[number * 1000 : (number + 1) * 1000]
                file.create_dataset(f"virtual/{number}/{name}", data=rows, compression="gzip")
    lengths: list[int] = []
    for episode in read(tmp_path / "a.hdf5"):
        channel, at = episode.observations["observation"], sum(lengths)
        lengths.append(episode.length)
        for start, stop in ((0, 3), (98, 499), (998, 1002), (990, 2501), (5, 9)):
            expected = big[at : at + episode.length][start:stop]
            np.testing.assert_array_equal(channel[start:stop], expected)
        assert not channel.is_loaded or episode.length < 1000
    assert lengths == [2501, 499]


def test_arrays_at_the_root_are_read_instead_of_chunks_as_d4rl_does(tmp_path: Path) -> None:
    whole = arrays(next_observations=None)
    names = ("observations", "actions", "rewards", "terminals", "timeouts")
    path = chunked(tmp_path / "a.hdf5", [(0, 0, 14)], **{name: whole[name] for name in names})
    found = list(read(path))
    assert [episode.length for episode in found] == [stop - start for start, stop in BOUNDS]
    assert set(found[0].observations) == {"observation"}
    assert [str(change) for change in found[0].lost] == [
        "dropped virtual: slices of the arrays at the root, which are read instead"
    ]


def test_chunks_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    for name, value in (("actions", np.zeros((2, 2), "f4")), ("rewards", None)):
        path = chunked(tmp_path / "a.hdf5", [(0, 0, 3), (1, 3, 8)])
        with h5py.File(path, "a") as file:
            del file[f"virtual/1/{name}"]
            if value is not None:
                file[f"virtual/1/{name}"] = value
        with pytest.raises(SizeMismatch, match="virtual/1"):
            next(read(path, format="d4rl"))
    path = chunked(tmp_path / "a.hdf5", [(0, 0, 3), (1, 3, 8)])
    with h5py.File(path, "a") as file:
        del file["virtual/1/actions"]
        file["virtual/1/actions"] = np.zeros((5, 3), "f4")
    with pytest.raises(SizeMismatch, match=r"virtual/\*/actions"):
        next(read(path))


def test_large_arrays_stay_in_the_file(tmp_path: Path) -> None:
    count = 3000
    flags = np.zeros(count, np.bool_)
    flags[-1] = True
    big = np.arange(count * 16, dtype=np.float32).reshape(count, 16)
    path = make(
        tmp_path / "a.hdf5",
        **{
            "observations": big,
            "next_observations": big + 16,
            "actions": big[:, :2],
            "rewards": big[:, 0],
            "terminals": flags,
            "timeouts": flags,
            "infos/qpos": None,
        },
    )
    for episode in read(path):
        channel = episode.observations["observation"]
        assert not channel.is_loaded
        assert channel.shape == (count + 1, 16)
        np.testing.assert_array_equal(
            channel[count - 2 :], np.arange((count - 2) * 16, (count + 1) * 16).reshape(3, 16)
        )
        np.testing.assert_array_equal(channel[count], big[-1] + 16)
        np.testing.assert_array_equal(channel[:3], big[:3])
        assert not channel.is_loaded


def test_files_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.hdf5"
    for changes, error, place in (
        ({"timeouts": np.zeros(3, np.bool_)}, SizeMismatch, "timeouts"),
        ({"terminals": np.zeros((COUNT, 2))}, SizeMismatch, "terminals"),
        ({"rewards": np.zeros((COUNT, 2))}, BadValue, "rewards"),
        ({"actions": np.zeros((3, 2))}, BadValue, "actions"),
    ):
        with pytest.raises(error, match=place):
            next(read(make(path, **changes)))
    make(path, observations=None)
    with h5py.File(path, "a") as file:
        file["observations"] = h5py.ExternalLink("/etc/other.h5", "x")
    with pytest.raises(UnsafePath, match="observations"):
        next(read(path))
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ShardError, match=r"a\.hdf5"):
        next(read(path, format="d4rl"))
