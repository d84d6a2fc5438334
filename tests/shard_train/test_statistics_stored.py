"""Statistics in files, of data that changes, and of several datasets together."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shard_train
from shard_format.errors import (
    BadMetadata,
    EntryNotFound,
    InvalidArgument,
    ReferenceMismatch,
    ShardError,
    ShardIOError,
    UnsupportedVersion,
)
from shard_train import EpisodeDataset, compute_stats, load_stats, save_stats
from shard_train.statistics import Stats
from tests.shard_train.dataset_support import write_folder
from tests.shard_train.test_statistics import fields_of, stats_of
from tests.wshard.support import save
from wshard import Episode


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "eps", [8, 5, 12])


class TestFiles:
    """Saving and loading."""

    def test_they_come_back_as_they_were(self, folder: Path) -> None:
        stats = compute_stats(folder)
        path = save_stats(stats, folder)
        assert path == str(folder) + ".wshard-stats"
        loaded = load_stats(folder)
        assert fields_of(loaded) == fields_of(stats)
        assert (loaded.episodes, loaded.steps) == (3, 25)
        assert loaded.fingerprints == stats.fingerprints
        assert loaded["ctrl"].mean.dtype == stats["ctrl"].mean.dtype
        assert loaded["cam"].min.dtype == stats["cam"].min.dtype
        text = Path(path).read_bytes()
        save_stats(loaded, folder)
        assert Path(path).read_bytes() == text

    @pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "u2", "i4", "i8", "u8", "bool"])
    def test_every_type_comes_back(self, dtype: str, tmp_path: Path) -> None:
        numbers = np.random.default_rng(0).integers(0, 2, (600, 2)).astype(dtype)
        if dtype == "u8":
            numbers[0] = 2**64 - 1
        stats = Stats({"x": stats_of(numbers)}, ("a",), 1, 600)
        loaded = load_stats(save_stats(stats, tmp_path / "x.wshard-stats"))
        assert fields_of(loaded) == fields_of(stats)

    def test_numbers_of_which_none_is_finite_come_back(self, tmp_path: Path) -> None:
        stats = Stats({"x": stats_of(np.array([[np.nan, 1.0], [np.inf, 2.0]]))})
        loaded = load_stats(save_stats(stats, tmp_path / "x.wshard-stats"))
        assert np.isnan(loaded["x"].mean).tolist() == [True, False]
        assert fields_of(loaded) == fields_of(stats)

    def test_the_file_is_canonical_json(self, folder: Path) -> None:
        fields = json.loads(Path(save_stats(compute_stats(folder), folder)).read_bytes())
        assert (fields["format"], fields["version"]) == ("wshard-stats", 3)
        state = fields["channels"]["state"]
        assert (state["dtype"], state["shape"], len(state["mean"])) == ("f32", [3], 3)
        assert set(state["quantiles"]) == {"0.01", "0.1", "0.5", "0.9", "0.99"}

    def test_a_write_that_fails_leaves_what_was_there(self, folder: Path, tmp_path: Path) -> None:
        stats = compute_stats(folder)
        path = Path(save_stats(stats, folder))
        before = path.read_bytes()
        broken = Stats({"\ud800": stats["state"]})
        with pytest.raises(InvalidArgument, match="surrogate"):
            save_stats(broken, folder)
        assert path.read_bytes() == before
        with pytest.raises(ShardIOError, match="cannot write"):
            save_stats(stats, path / "x.wshard-stats")
        assert not [name for name in os.listdir(tmp_path) if name.endswith(".partial")]

    def test_a_channel_that_is_not_there_is_named(self, folder: Path) -> None:
        with pytest.raises(EntryNotFound, match=r"'stat'; did you mean 'state'\?"):
            compute_stats(folder)["stat"]


class TestStaleness:
    """Whether statistics are of the data at hand."""

    def test_none_is_an_error_with_the_call_to_make(self, folder: Path) -> None:
        with pytest.raises(InvalidArgument, match="no statistics found") as raised:
            load_stats(folder)
        call = str(raised.value.hint).removeprefix("make them: ").partition(", or '")[0]
        eval(call, {"shard_train": shard_train})
        assert load_stats(folder).episodes == 3

    def test_data_that_has_changed_is_noticed(self, folder: Path) -> None:
        save_stats(compute_stats(folder), folder)
        write_folder(folder, [8, 5, 13])
        with pytest.raises(ReferenceMismatch, match="the data has changed since") as raised:
            load_stats(folder)
        assert "shard_train.save_stats(shard_train.compute_stats(" in str(raised.value.hint)
        # Given by its path, a file is read as it is.
        assert load_stats(str(folder) + ".wshard-stats").steps == 25
        save_stats(compute_stats(folder), folder)
        assert load_stats(folder).steps == 26

    def test_other_numbers_in_as_many_steps_are_noticed_by_their_size(self, folder: Path) -> None:
        save_stats(compute_stats(folder), folder)
        ep = Episode("ep", observations={"state": np.random.default_rng(0).normal(size=(5, 99))})
        save(ep, folder / "ep_1.wshard")
        with pytest.raises(ReferenceMismatch):
            load_stats(folder)

    def test_a_folder_may_move_and_its_files_may_get_other_names(
        self, folder: Path, tmp_path: Path
    ) -> None:
        save_stats(compute_stats(folder), folder)
        other = tmp_path / "deep" / "other"
        shutil.copytree(folder, other)
        for number in range(3):
            (other / f"ep_{number}.wshard").rename(other / f"run {number}.wshard")
        shutil.copy(str(folder) + ".wshard-stats", str(other) + ".wshard-stats")
        assert load_stats(other).episodes == 3

    def test_some_of_the_episodes_are_still_the_same_data(self, folder: Path) -> None:
        save_stats(compute_stats(EpisodeDataset(folder, 1, episodes=[0, 2])), folder)
        assert load_stats(folder).episodes == 2
        assert load_stats(folder, EpisodeDataset(folder, 4, episodes=[1])).steps == 20


class TestDamage:
    """Files that are no statistics."""

    @pytest.mark.parametrize(
        "text", [b"", b"{}", b"[]", b"\xff", b'{"format":"wshard-stats"', b'{"format":"other"}']
    )
    def test_other_files_are_refused(self, text: bytes, tmp_path: Path) -> None:
        path = tmp_path / "x.wshard-stats"
        path.write_bytes(text)
        with pytest.raises(BadMetadata, match=r"x\.wshard-stats"):
            load_stats(path)

    def test_a_later_version_is_told(self, tmp_path: Path) -> None:
        path = tmp_path / "x.wshard-stats"
        path.write_bytes(b'{"format":"wshard-stats","version":4}')
        with pytest.raises(UnsupportedVersion, match=r"expected 3, found 4"):
            load_stats(path)

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("dtype", "f33"),
            ("dtype", None),
            ("shape", [-1]),
            ("shape", [4]),
            ("shape", 3),
            ("count", [1, 2]),
            ("count", [-1, 1, 1]),
            ("count", [1.5, 1, 1]),
            ("mean", ["a", 0, 0]),
            ("mean", 1),
            ("std", [-1, 0, 0]),
            ("max", [True, 1, 1]),
            ("quantiles", {"2": [0, 0, 0]}),
            ("quantiles", {"half": [0, 0, 0]}),
            ("quantiles", []),
        ],
    )
    def test_values_that_cannot_be_are_refused_by_channel(
        self, folder: Path, key: str, value: object
    ) -> None:
        path = Path(save_stats(compute_stats(folder), folder))
        fields = json.loads(path.read_bytes())
        fields["channels"]["state"][key] = value
        path.write_text(json.dumps(fields))
        with pytest.raises(BadMetadata, match=r"entry 'state': the statistics of a channel"):
            load_stats(path)

    @given(place=st.integers(0, 10**6), byte=st.integers(0, 255))
    def test_any_changed_byte_is_an_error_of_ours_or_does_no_harm(
        self, tmp_path_factory: pytest.TempPathFactory, place: int, byte: int
    ) -> None:
        path = tmp_path_factory.mktemp("any") / "x.wshard-stats"
        save_stats(Stats({"x": stats_of(np.arange(12.0).reshape(6, 2))}, ("a",), 1, 6), path)
        data = bytearray(path.read_bytes())
        data[place % len(data)] = byte
        path.write_bytes(data)
        with contextlib.suppress(ShardError):
            assert load_stats(path).keys()
