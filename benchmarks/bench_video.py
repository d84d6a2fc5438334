"""Windows of encoded video, against the loader of LeRobot and PyAV."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import av
import numpy as np
import torch
from torch.utils.data import default_collate

from benchmarks.foreign import moving_picture
from benchmarks.harness import Goal, Table, compare
from shard_train import EpisodeDataset
from shard_train.torch import image_tensor
from wshard import Episode, Timebase, load_wshard
from wshard.convert import convert, write
from wshard.video import VideoChannel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

WINDOW = 64
SIDE = 224
FPS = 30
NAME = "observation.images.cam"
FLOATS = "float32 [T, C, H, W]"
BATCH = "one batch, float32 [B, T, C, H, W]"


def run(folder: Path) -> Iterator[Table]:
    for every in (2, WINDOW):
        yield windows(folder, every)


def windows(folder: Path, every: int) -> Table:
    """Windows of one camera, with a keyframe every few frames; LeRobot itself encodes with 2."""
    steps = 600
    frames = moving_picture(steps, SIDE)
    ep = Episode("episode_0", length=steps, timebase=Timebase(tick_hz=FPS))
    ep.observations["images/cam"] = VideoChannel.encode(
        frames, "h264:crf=30", fps=FPS, keyframe_every=every, name="cam"
    )
    # The same packets in both: nothing is encoded again.
    dataset, mine = folder / f"lerobot_{every}", folder / f"windows_{every}"
    write([ep], dataset, format="lerobot")
    convert(dataset, mine)
    (file,) = mine.glob("*.wshard")
    (mp4,) = dataset.rglob("*.mp4")
    starts = np.random.default_rng(2).integers(0, steps - WINDOW, 8).tolist()
    ours = EpisodeDataset(mine, window=WINDOW, channels=["images/cam"], index=False)

    def by_number() -> int:
        with load_wshard(file) as opened:
            cam = opened.observations["images/cam"]
            return sum(cam[start : start + WINDOW].nbytes for start in starts)

    def floats(start: int) -> Any:  # noqa: ANN401 - a tensor
        return image_tensor(ours[start]["images/cam"])

    def batch() -> Any:  # noqa: ANN401 - a tensor
        return image_tensor(ours.batch(starts)["images/cam"])

    kept: dict[str, Any] = {"windows": None, "images": None}

    def batch_again() -> Any:  # noqa: ANN401 - a tensor
        kept["windows"] = ours.batch(starts, out=kept["windows"])
        kept["images"] = image_tensor(kept["windows"]["images/cam"], out=kept["images"])
        return kept["images"]

    first, same = "EpisodeDataset", f"EpisodeDataset, {FLOATS}"
    collated = f"EpisodeDataset, {BATCH}"
    again = f"EpisodeDataset, {BATCH}, out="
    contenders: dict[str, Callable[[], object]] = {
        first: partial(items, ours, starts),
        "load_wshard, frames by number": by_number,
        same: lambda: [floats(start) for start in starts],
        collated: batch,
        again: batch_again,
        "PyAV, mp4, seek and decode by time": lambda: [
            by_time(mp4, start / FPS) for start in starts
        ],
    }
    goals = []
    for backend, loader in loaders_of_lerobot(dataset).items():
        if not torch.equal(batch(), default_collate(items(loader, starts))[NAME]):
            raise AssertionError(f"LeRobot with {backend} gives other values")
        theirs, their_batch = (f"LeRobotDataset, {backend}, {form}" for form in (FLOATS, BATCH))
        contenders[theirs] = partial(items, loader, starts)
        contenders[their_batch] = partial(collated_items, loader, starts)
        goals += [
            Goal(first, theirs, 0.5),
            Goal(same, theirs, 0.5),
            Goal(collated, their_batch, 0.5),
            Goal(again, their_batch, 0.5),
        ]
    with one_processor():
        medians = compare(contenders, rounds=7)
    return Table(
        f"Windows of {WINDOW} frames of H.264, a keyframe every {every} frames",
        f"{SIDE} × {SIDE} pixels, {len(starts)} random windows, on one processor; "
        f"{file.stat().st_size / 1e6:.2f} MB against {frames.nbytes / 1e6:.0f} MB of pixels. Where nothing else is said, windows "
        "come one by one as uint8 [T, H, W, C]. LeRobot has only floats from 0 to 1, so the other rows are floats, too, with the "
        f"same values to the bit. Rows with {BATCH} end with what a training step receives: one batch in new memory, of 308 MB. "
        "LeRobot's samples go through torch's default_collate; EpisodeDataset.batch gives uint8, of which "
        "shard_train.torch.image_tensor makes floats. In the row with out=, both fill the memory of the batch before, as a loop "
        "does that is done with one batch when it asks for the next. "
        f"Rows with {FLOATS} stop before: 8 tensors, each made of one window. All decode with the FFmpeg that "
        "PyAV brings. PyAV alone has no goal: it and EpisodeDataset spend most of their time in the same decoder.",
        medians,
        goals,
    )


def loaders_of_lerobot(dataset: Path) -> dict[str, Any]:
    """LeRobot's own dataset by the backend that decodes; empty if it is not installed."""
    if not importlib.util.find_spec("lerobot"):
        print("not installed, left out: lerobot", file=sys.stderr)
        return {}
    # torchvision, which LeRobot imports, describes this operator also where its compiled part does not load, as without CUDA.
    library = torch.library.Library("torchvision", "FRAGMENT")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    made = importlib.import_module("lerobot.datasets.lerobot_dataset").LeRobotDataset
    deltas = {NAME: [step / FPS for step in range(WINDOW)]}
    return {
        backend: made("bench/cam", root=dataset, delta_timestamps=deltas, video_backend=backend)
        for backend in ("torchcodec", "pyav")
    }


def items(dataset: Any, numbers: list[int]) -> list[Any]:  # noqa: ANN401 - ours or LeRobot's
    return [dataset[number] for number in numbers]


def collated_items(dataset: Any, numbers: list[int]) -> Any:  # noqa: ANN401 - a dictionary
    return default_collate(items(dataset, numbers))


@contextlib.contextmanager
def one_processor() -> Iterator[None]:
    """Keeps the process on one processor, as the worker of a loader is: ours and torch have one thread."""
    before, threads = os.sched_getaffinity(0), torch.get_num_threads()
    os.sched_setaffinity(0, {min(before)})
    torch.set_num_threads(1)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        torch.set_num_threads(threads)


def by_time(path: Path, start: float) -> NDArray[np.uint8]:
    """The frames of a window, as loaders of mp4 files read them."""
    found = []
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        container.seek(int(start / stream.time_base), stream=stream)
        for frame in container.decode(stream):
            if frame.time >= start - 1e-4:
                found.append(frame.to_ndarray(format="rgb24"))
            if len(found) == WINDOW:
                break
    return np.stack(found)
