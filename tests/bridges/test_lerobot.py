"""LeRobot 0.4.4 opens the datasets that the converter writes."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from tests.convert.fixtures import make_lerobot as made
from wshard import Episode, Timebase
from wshard.convert import read, write

if TYPE_CHECKING:
    from collections.abc import Callable

pytest.importorskip("lerobot")

FIXTURES = Path(made.__file__).parent


@pytest.fixture(scope="module")
def open_dataset() -> Callable[..., Any]:
    """Opens a folder with lerobot's own class."""
    # Without CUDA the compiled part of torchvision does not load, and torchvision describes this operator all the same.
    library = torch.library.Library("torchvision", "FRAGMENT")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    with pytest.warns(UserWarning, match="torchvision"):
        lerobot = importlib.import_module("lerobot.datasets.lerobot_dataset")

    def opened(folder: Path, **options: Any) -> Any:  # noqa: ANN401 - of the library
        return lerobot.LeRobotDataset("a/b", root=folder, video_backend="pyav", **options)

    return opened


def pixels_of(image: Any) -> Any:  # noqa: ANN401 - a tensor
    return np.moveaxis(image.numpy(), -3, -1) * 255


@pytest.mark.filterwarnings("ignore")  # of torchvision: its decoder is deprecated
def test_lerobot_opens_its_own_dataset_after_it_was_read_and_written(
    tmp_path: Path, open_dataset: Callable[..., Any]
) -> None:
    shutil.unpack_archive(FIXTURES / "lerobot_v3.zip", tmp_path / "v3")
    before = [episode.load() for episode in read(tmp_path / "v3", video="decode")]
    write(read(tmp_path / "v3"), tmp_path / "after", "lerobot")
    dataset = open_dataset(tmp_path / "after")
    assert (dataset.num_episodes, dataset.num_frames) == (3, sum(made.LENGTHS))
    rows = iter(dataset)
    for number, episode in enumerate(before):
        for step in range(episode.length):
            row = next(rows)
            assert (int(row["episode_index"]), int(row["frame_index"])) == (number, step)
            assert row["task"] == made.task(number, step)
            for name in ("state", "grid"):
                assert np.array_equal(row[f"observation.{name}"], episode.observations[name][step])
            # Tensors of lerobot have 32 bits.
            assert np.array_equal(row["action"], episode.actions["action"][step].astype("f4"))
            assert bool(row["next.success"]) == episode.observations["next/success"][step]
            for name in ("top", "wrist"):
                expected = episode.observations[f"images/{name}"][step]
                difference = pixels_of(row[f"observation.images.{name}"]) - expected
                assert np.abs(difference).max() <= 1 + 2 * (name == "top")


@pytest.mark.filterwarnings("ignore")  # as above
def test_lerobot_gives_windows_of_episodes_of_any_origin(
    tmp_path: Path, open_dataset: Callable[..., Any]
) -> None:
    frames = np.zeros((2, 10, 64, 96, 3), np.uint8)
    frames[:] = np.arange(20, dtype=np.uint8).reshape(2, 10, 1, 1, 1) * 12
    episodes = []
    for number in range(2):
        ep = Episode(f"run_{number}", length=10, timebase=Timebase(tick_hz=20))
        ep.observations["state"] = np.arange(22, dtype="f4").reshape(11, 2) + 100 * number
        ep.observations["images/cam"] = frames[number]
        ep.actions["ctrl"] = np.ones((10, 3), np.float32)
        ep.rewards = np.arange(10, dtype="f4")
        ep.metadata["task"] = "push"
        episodes.append(ep)
    write(episodes, tmp_path / "out", "lerobot")
    deltas = {name: [0, 0.05, 0.1] for name in ("observation.state", "observation.images.cam")}
    dataset = open_dataset(tmp_path / "out", delta_timestamps=deltas)
    assert (dataset.fps, dataset.num_episodes, dataset.num_frames) == (20, 2, 20)
    assert dataset.meta.stats["observation.state"]["max"].tolist() == [118, 119]
    for number, start in ((0, 0), (1, 7)):
        item = dataset[10 * number + start]
        assert item["task"] == "push"
        expected = episodes[number].observations["state"][start : start + 3]
        assert np.array_equal(item["observation.state"], expected)
        difference = pixels_of(item["observation.images.cam"]) - frames[number, start : start + 3]
        assert np.abs(difference).max() <= 12  # AV1 at a quality of 30
