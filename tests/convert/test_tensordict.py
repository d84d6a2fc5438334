"""TensorDict and TorchRL memory maps, written by tensordict 0.14.3 and torchrl 0.14.1 (`fixtures/tensordict/make.py`)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_format.errors import (
    BadMetadata,
    InvalidArgument,
    LimitExceeded,
    ShardError,
    ShardIOError,
    SizeMismatch,
    UnsafePath,
)
from wshard import DType, convert, load_wshard, save_wshard
from wshard.types import Modality

FIXTURES = Path(__file__).parent / "fixtures" / "tensordict"


def steps_of(episode: Any) -> list[int]:  # noqa: ANN401 - anything
    """Which steps of the maker an episode has."""
    return [int(one) for one in episode.actions["action"].data[:, 0]]


def test_a_replay_buffer_is_read_without_what_lies_behind_its_end(tmp_path: Path) -> None:
    assert convert.detect(str(FIXTURES / "buffer")).name == "tensordict"
    assert convert.detect(str(FIXTURES / "buffer" / "storage")).name == "tensordict"
    episodes = list(convert.read(FIXTURES / "buffer"))
    assert [steps_of(episode) for episode in episodes] == [[0, 1, 2], [3, 4, 5], [6]]
    for number, episode in enumerate(episodes):
        save_wshard(episode, tmp_path / f"{number}.wshard")
        found = load_wshard(tmp_path / f"{number}.wshard")
        steps = np.array(steps_of(episode))
        state = found.observations["observation/state"].data
        assert state.tolist() == [[number, t] for t in range(len(steps) + 1)]
        half = found.observations["observation/half"]
        assert half.dtype_name is DType.BFLOAT16
        assert np.array_equal(DType.BFLOAT16.as_numbers(half.data), state)
        assert found.actions["action"].dtype == np.float64
        assert found.rewards is not None
        assert np.allclose(found.rewards.data, steps / 10)
        assert found.terminations is not None
        assert found.truncations is not None
        assert found.truncations.data.tolist() == (steps == 2).tolist()
        assert found.terminations.data.tolist() == ((steps % 3 == 2) & (steps != 2)).tolist()
        assert found.observations["pixels"].modality == Modality.RGB
        if len(steps) > 1:
            # What follows is not what the next row holds, so both are there.
            assert found.observations["pixels"].length == len(steps)
            assert (found.observations["next/pixels"].data == 255).all()
        assert found.metadata["tensordict"]["traj_id"] == number
        assert not episode.lost


def test_a_buffer_that_overwrites_its_oldest_steps_is_read_in_their_order() -> None:
    episodes = list(convert.read(FIXTURES / "ring"))
    assert [steps_of(episode) for episode in episodes] == [[3, 4, 5], [6, 7, 8], [9, 10]]


def test_a_rollout_of_two_environments_is_split_where_episodes_end() -> None:
    episodes = list(convert.read(FIXTURES / "rollout"))
    assert [steps_of(episode) for episode in episodes] == [
        [0, 1, 2],
        [3, 4],
        [100, 101],
        [102, 103, 104],
    ]
    for episode in episodes:
        assert episode.metadata["task"] == "open the door"
        assert episode.metadata["tensordict"]["data"] == {
            "config": {"gain": 2, "names": ["a", "b"]}
        }
        assert episode.observations["observation/state"].length == episode.length + 1


def test_texts_of_the_steps_are_read() -> None:
    first, second = convert.read(FIXTURES / "plain")
    assert first.observations["note"].data == ["step 0", "step 1", "step 2"]
    assert second.observations["note"].data == ["step 3"]


def test_trajectories_whose_steps_alternate_are_told_apart(tmp_path: Path) -> None:
    folder = copy(tmp_path)
    ids = np.memmap(folder / "storage/collector/traj_ids.memmap", np.int64, "r+")
    ids[:7] = [5, 9, 5, 9, 5, 9, 5]
    ids.flush()
    episodes = list(convert.read(folder))
    assert [steps_of(episode) for episode in episodes] == [[0, 2, 4, 6], [1, 3, 5]]


# --- damaged and hostile files


def copy(tmp_path: Path) -> Path:
    shutil.copytree(FIXTURES / "buffer", tmp_path / "buffer")
    return tmp_path / "buffer"


def change(path: Path, **facts: Any) -> None:  # noqa: ANN401 - anything
    path.write_text(json.dumps({**json.loads(path.read_text()), **facts}))


def tensor(**facts: Any) -> dict[str, Any]:  # noqa: ANN401 - anything
    return {
        "device": "cpu",
        "shape": [12, 2],
        "dtype": "torch.float32",
        "is_nested": False,
        **facts,
    }


@pytest.mark.parametrize(
    ("facts", "error"),
    [
        ({"action": tensor(shape=[1 << 40, 1])}, BadMetadata),
        ({"action": tensor(shape=[12, 1 << 40])}, SizeMismatch),
        ({"action": tensor(shape=[12, -1])}, BadMetadata),
        ({"action": tensor(shape="x")}, BadMetadata),
        ({"../../../etc/passwd": tensor()}, UnsafePath),
        ({"/etc/passwd": tensor()}, UnsafePath),
        ({"..": {"type": "TensorDict"}}, UnsafePath),
        ({"missing": tensor()}, ShardIOError),
        ({"missing": {"type": "TensorDict"}}, ShardIOError),
        ({"shape": [12, 2]}, BadMetadata),
        ({"shape": []}, BadMetadata),
        ({"_type": "LazyStackedTensorDict"}, InvalidArgument),
    ],
)
def test_a_description_that_lies_is_refused(
    tmp_path: Path, facts: dict[str, Any], error: type[ShardError]
) -> None:
    folder = copy(tmp_path)
    change(folder / "storage" / "meta.json", **facts)
    with pytest.raises(error):
        list(convert.read(folder, "tensordict"))


def test_rows_without_bytes_cannot_be_many(tmp_path: Path) -> None:
    meta = {"x": tensor(shape=[1 << 40, 0]), "shape": [1 << 40], "_type": "tensordict"}
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    (tmp_path / "x.memmap").write_bytes(b"")
    with pytest.raises(LimitExceeded, match="more rows"):
        list(convert.read(tmp_path))


@pytest.mark.parametrize("length", [13, -1, "x", None, True])
def test_a_length_that_the_storage_does_not_have_is_refused(tmp_path: Path, length: Any) -> None:  # noqa: ANN401 - anything
    folder = copy(tmp_path)
    change(folder / "storage" / "storage_metadata.json", len=length)
    with pytest.raises(BadMetadata, match="'len'"):
        list(convert.read(folder))


def test_a_storage_of_something_else_is_refused(tmp_path: Path) -> None:
    folder = copy(tmp_path)
    (folder / "storage" / "meta.json").unlink()
    with pytest.raises(InvalidArgument, match="LazyMemmapStorage"):
        list(convert.read(folder))


def test_a_file_that_is_too_short_is_refused(tmp_path: Path) -> None:
    folder = copy(tmp_path)
    path = folder / "storage" / "action.memmap"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SizeMismatch, match=r"action\.memmap"):
        list(convert.read(folder))


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = copy(tmp_path)
    path = folder / "storage" / "action.memmap"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnsafePath):
        list(convert.read(folder))


def test_a_pickle_is_never_loaded_and_what_cannot_be_stored_is_noted(tmp_path: Path) -> None:
    folder = copy(tmp_path)
    facts = {"thing": {"type": "NonTensorData"}, "wave": tensor(dtype="torch.complex64")}
    change(folder / "storage" / "meta.json", **facts)
    (folder / "storage" / "thing").mkdir()
    (folder / "storage" / "thing" / "meta.json").write_text('{"_type": "NonTensorData"}')
    (folder / "storage" / "thing" / "other.pickle").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    for episode in convert.read(folder):
        assert {change.field for change in episode.lost} == {"thing", "wave"}
