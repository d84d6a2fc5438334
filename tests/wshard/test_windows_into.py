"""Windows read straight into memory of the caller."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from shard_format.errors import InvalidArgument
from wshard import ChunkedEpisodeWriter, Episode, load_wshard, save_wshard
from wshard.types import TextChannel

if TYPE_CHECKING:
    from pathlib import Path

STEPS = 200


def episode() -> Episode:
    random = np.random.default_rng(5)
    ep = Episode("ep")
    ep.observations["rgb"] = random.integers(0, 20, (STEPS, 16, 16, 3), dtype=np.uint8)
    ep.observations["pos"] = np.cumsum(random.normal(size=(STEPS, 3)), axis=0).astype(np.float32)
    ep.observations["on"] = random.integers(0, 2, STEPS).astype(bool)
    return ep


@pytest.mark.parametrize("storage", ["none", "zstd", "lz4", "auto"])
@pytest.mark.parametrize("start", [0, 1, 7, 16, 130])
def test_a_window_equals_the_slice_however_it_is_stored(
    tmp_path: Path, storage: str, start: int
) -> None:
    ep = episode()
    save_wshard(ep, tmp_path / "e.wshard", storage, steps_per_frame=16)
    loaded = load_wshard(tmp_path / "e.wshard")
    for name, channel in ep.observations.items():
        out = np.zeros((64, *channel.step_shape), channel.data.dtype)
        loaded.observations[name].read_steps_into(start, out)
        assert np.array_equal(out, channel.data[start : start + 64]), name


def test_a_window_may_cross_the_border_of_chunks(tmp_path: Path) -> None:
    ep = episode()
    writer = ChunkedEpisodeWriter(tmp_path, "ep", chunk_size_t=50, profile="training")
    writer.write_episode(ep)
    manifest = writer.finalize_manifest()
    out = np.zeros((120, 16, 16, 3), np.uint8)
    load_wshard(str(manifest)).observations["rgb"].read_steps_into(30, out)
    assert np.array_equal(out, ep.observations["rgb"].data[30:150])


def test_memory_that_is_not_contiguous_is_filled_too(tmp_path: Path) -> None:
    ep = episode()
    save_wshard(ep, tmp_path / "e.wshard", "zstd", steps_per_frame=16)
    every_other = np.zeros((128, 3), np.float32)[::2]
    load_wshard(tmp_path / "e.wshard").observations["pos"].read_steps_into(5, every_other)
    assert np.array_equal(every_other, ep.observations["pos"].data[5:69])


@pytest.mark.parametrize("shape", [(64, 4), (64,), (64, 3, 1)])
def test_an_array_of_another_shape_is_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    save_wshard(episode(), tmp_path / "e.wshard")
    channel = load_wshard(tmp_path / "e.wshard").observations["pos"]
    with pytest.raises(InvalidArgument, match="a different form"):
        channel.read_steps_into(0, np.zeros(shape, np.float32))


@pytest.mark.parametrize("start", [-1, 137, STEPS + 1])
def test_steps_outside_the_channel_are_refused(tmp_path: Path, start: int) -> None:
    save_wshard(episode(), tmp_path / "e.wshard", "zstd", steps_per_frame=16)
    channel = load_wshard(tmp_path / "e.wshard").observations["rgb"]
    with pytest.raises(InvalidArgument, match="outside the channel"):
        channel.read_steps_into(start, np.zeros((64, 16, 16, 3), np.uint8))


def test_text_does_not_fit_into_an_array() -> None:
    with pytest.raises(InvalidArgument, match="does not fit"):
        TextChannel("t", ["a", "b"]).read_steps_into(0, np.zeros(2, np.uint8))
