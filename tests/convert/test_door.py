"""What users call: one episode by the ending of its file, and datasets that are larger than memory."""

from __future__ import annotations

import sys
import tracemalloc
from typing import TYPE_CHECKING

import numpy as np
import pytest

import wshard
from shard_format import Limits
from shard_format.errors import (
    InvalidArgument,
    LimitExceeded,
    MissingExtra,
    ShardError,
    ShardIOError,
)
from wshard import Episode, Timebase, load_wshard, save_wshard
from wshard.convert import ConvertedEpisode, ConvertOptions, convert, detect, read, write
from wshard.types import FileOptions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MB = 1 << 20


@pytest.mark.parametrize("name", ["ep.hdf5", "ep.mcap", "ep.parquet", "ep.zarr"])
def test_load_and_save_take_the_format_from_the_file(name: str, tmp_path: Path) -> None:
    episode = Episode("ep", timebase=Timebase(tick_hz=10))
    episode.observations["state"] = np.arange(12, dtype=np.float32).reshape(4, 3)
    episode.actions["action"] = np.ones((4, 2), np.float32)
    wshard.save(episode, tmp_path / name)
    with wshard.load(tmp_path / name) as found:
        assert isinstance(found, ConvertedEpisode)
        assert (
            found.observations["state"].data.tolist() == episode.observations["state"].data.tolist()
        )
        assert found.actions["action"].data.tolist() == episode.actions["action"].data.tolist()
        assert not found.lost


@pytest.mark.parametrize(
    ("damaged", "problem"),
    [
        *((name, "not JSON") for name in ("meta/info.json", "features.json", "metadata.json")),
        (f"20260301T101500F123456-{'1' * 22}-{'2' * 22}-5.npz", "zip"),
        ("run.npz", "zip"),
    ],
)
def test_a_folder_whose_one_file_is_damaged_is_named_with_it(
    tmp_path: Path, damaged: str, problem: str
) -> None:
    path = tmp_path / "data" / damaged
    path.parent.mkdir(parents=True)
    path.write_bytes(b'{"codebase_version": ' if damaged.endswith("json") else b"PK\3\4 cut")
    with pytest.raises(ShardError, match=problem) as error:
        detect(tmp_path / "data")
    assert error.value.path == str(path)


@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_a_damaged_file_does_not_hide_what_a_folder_is(tmp_path: Path, ending: str) -> None:
    np.savez(tmp_path / "b.npz", obs=np.zeros((3, 2)), action=np.zeros((3, 1)))
    if ending == "parquet":
        write(read(tmp_path / "b.npz"), tmp_path / "b.parquet")
        (tmp_path / "b.npz").unlink()
    head = b"PAR1" if ending == "parquet" else b"PK\3\4"
    (tmp_path / f"a.{ending}").write_bytes(head + b" cut")
    assert [episode.id for episode in read(tmp_path, on_error="skip")] == ["b"]


def test_an_hdf5_file_that_cannot_be_looked_at_does_not_hide_what_a_folder_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "b.h5").symlink_to(tmp_path / "gone")
    with pytest.raises(ShardIOError, match=r"b\.h5"):
        detect(tmp_path)
    (tmp_path / "c.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    (tmp_path / "b.h5").unlink()
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingExtra, match="hdf5"):
        detect(tmp_path)
    (tmp_path / "b.h5").symlink_to(tmp_path / "gone")
    np.savez(tmp_path / "a.npz", obs=np.zeros((3, 2)), action=np.zeros((3, 1)))
    assert detect(tmp_path).name == "npz"


def test_datasets_of_several_formats_below_a_folder_are_read_by_name(tmp_path: Path) -> None:
    for name in ("a", "b/c", "b/.hidden"):
        (tmp_path / name).mkdir(parents=True)
        np.savez(tmp_path / name / "run.npz", obs=np.zeros((3, 2)), action=np.zeros((3, 1)))
    with pytest.raises(InvalidArgument, match=r"npz: a, b/c.*format='npz'"):
        detect(tmp_path)
    (wshards := tmp_path / "w").mkdir()
    for episode in read(tmp_path / "a"):
        save_wshard(episode, wshards / "run.wshard")
    assert [episode.id for episode in read(tmp_path)] == ["w/run"]
    episodes = list(read(tmp_path, "npz"))
    assert [episode.id for episode in episodes] == ["a/run", "b/c/run"]
    assert [change.field for change in episodes[0].lost] == ["w"]
    write(read(tmp_path / "a"), tmp_path / "d.hdf5")
    (tmp_path / "d").mkdir()
    (tmp_path / "d.hdf5").rename(tmp_path / "d/d.hdf5")
    with pytest.raises(InvalidArgument, match="npz: a, b/c; robomimic: d; wshard: w"):
        detect(tmp_path)


def test_a_folder_with_very_many_folders_is_refused(tmp_path: Path) -> None:
    for number in range(1001):
        (tmp_path / f"{number}").mkdir()
    with pytest.raises(LimitExceeded, match="very many folders"):
        detect(tmp_path)


def large_episodes(count: int, steps: int, width: int) -> Iterator[Episode]:
    for number in range(count):
        random = np.random.default_rng(number)
        episode = Episode(f"ep_{number}", timebase=Timebase(tick_hz=10))
        episode.observations["state"] = random.random((steps, width), np.float32)
        episode.actions["action"] = np.zeros((steps, 2), np.float32)
        episode.rewards = np.zeros(steps)
        episode.terminations = np.arange(steps) == steps - 1
        yield episode


@pytest.mark.parametrize(
    "name",
    [
        *("wshard", "minari", "lerobot", "rlds", "robomimic", "mcap", "dreamer", "zarr", "npz"),
        *("table", "table.parquet"),
    ],
)
def test_a_dataset_that_is_written_and_read_is_never_in_memory_as_a_whole(
    name: str, tmp_path: Path
) -> None:
    arrow = pytest.importorskip("pyarrow")
    # Episodes of 2 MB. A table of LeRobot has statistics of every element, a message of MCAP is JSON if it is short.
    steps, width = (2048, 256) if name == "lerobot" else (32, 1 << 14)
    form, path = name.partition(".")[0], tmp_path / name
    tracemalloc.start()
    # Not traced by Python.
    before, of_arrow = arrow.total_allocated_bytes(), 0
    try:
        write(large_episodes(40, steps, width), path, form)
        total = 0
        for episode in read(path, form):
            for _, channel in episode.blocks():
                for few in channel.step_ranges(MB):
                    total += np.asarray(channel.read_steps(*few)).nbytes
                    of_arrow = max(of_arrow, arrow.total_allocated_bytes() - before)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert total > 80 * MB
    assert peak + of_arrow < 56 * MB


@pytest.mark.parametrize("form", ["hdf5", "mcap"])
@pytest.mark.parametrize("is_smooth", [True, False], ids=["zstd", "raw"])
def test_a_camera_that_is_larger_than_memory_is_converted_in_pieces(
    form: str, is_smooth: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = np.arange(1024).astype(np.uint8)[:, None, None, None]
    noise = np.random.default_rng(0).integers(0, 256, (1024, 128, 128, 3), np.uint8)
    frames = steps + np.zeros((1, 128, 128, 3), np.uint8) if is_smooth else noise
    episode = Episode("ep", timebase=Timebase(tick_hz=10))
    episode.observations["camera"] = frames
    episode.actions["action"] = np.zeros((1024, 2), np.float32)
    (tmp_path / "source").mkdir()
    path = tmp_path / "source" / f"ep.{form}"
    write([episode], path)
    for found in read(path):
        save_wshard(found.load(), tmp_path / "whole.wshard", profile="training")
    for constant in (
        *("wshard._writer._PIECE_BYTES", "wshard._writer._STREAMED_BYTES"),
        *("wshard.convert._engine._PIECE_BYTES", "wshard.convert._mcap_file._MOST_KEPT"),
    ):
        monkeypatch.setattr(constant, MB)
    tracemalloc.start()
    try:
        convert(path, tmp_path / "out", options=ConvertOptions(verify=True))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < frames.nbytes / 2
    (out,) = (tmp_path / "out").iterdir()
    assert out.read_bytes() == (tmp_path / "whole.wshard").read_bytes()


def test_a_block_that_readers_would_not_decompress_is_stored_raw(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    episode = Episode("ep", timebase=Timebase(tick_hz=10))
    episode.observations["camera"] = np.zeros((40, 32, 32, 3), np.uint8)
    limits = Limits(max_decompressed_bytes=100_000)
    options = FileOptions(limits=limits)
    save_wshard(episode, tmp_path / "ep.wshard", profile="training", options=options)
    assert "storing signal/camera raw" in caplog.text
    with load_wshard(tmp_path / "ep.wshard", limits=limits) as found:
        assert found.observations["camera"][3].shape == (32, 32, 3)
    with pytest.raises(LimitExceeded, match="signal/camera"):
        save_wshard(episode, tmp_path / "ep.wshard", "zstd", options=options)
