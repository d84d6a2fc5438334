"""Converters: reading other formats against the libraries that they belong to, many episodes, and windows of video."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import mmap
import os
import shutil
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import av
import numpy as np
import torch

from benchmarks.foreign import SOURCES, droid, moving_picture, options_of
from benchmarks.harness import Goal, Table, compare
from shard_train import EpisodeDataset
from wshard import Episode, Timebase, load_wshard
from wshard.convert import ConvertOptions, convert, read, write
from wshard.video import VideoChannel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

MANY = 1000
WINDOW = 64
SIDE = 224
# Of the raw speed of a format's own library.
SHARE = 0.7


def run(folder: Path) -> Iterator[Table]:
    for number, title in enumerate(SOURCES):
        place = folder / str(number)
        place.mkdir()
        yield reading(place, title)
        shutil.rmtree(place)
    yield many_episodes(folder)
    for every in (2, WINDOW):
        yield windows(folder, every)


# --- reading


def touch(ep: Any) -> int:  # noqa: ANN401 - an episode
    """Reads every array; returns their bytes."""
    total = 0
    for _, channel in ep.blocks():
        data = channel.data
        if isinstance(data, np.ndarray):
            # A view of a mapped file has read nothing yet.
            total += len(data.tobytes()) if is_mapped(data) else data.nbytes
    return total


def is_mapped(array: NDArray[Any]) -> bool:
    base: Any = array
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    return isinstance(base, (np.memmap, mmap.mmap))


def reading(folder: Path, title: str) -> Table:
    form, make, raw = SOURCES[title]
    path = make(folder)
    options = options_of(form, path)
    ours, theirs = f"wshard.convert.read, {title}", "its own library, without making episodes"
    medians = compare(
        {
            ours: lambda: sum(touch(ep) for ep in read(path, form, **options)),
            theirs: lambda: raw(path),
        },
        rounds=7,
    )
    return Table(
        f"Reading {title}",
        "20 episodes of 200 steps, with a camera of 84 × 84 pixels where the format has pictures, or 8 000 messages; "
        "every array is read.",
        medians,
        [Goal(ours, theirs, 1 / SHARE)],
    )


# --- whole conversions


def many_episodes(folder: Path) -> Table:
    source = droid(folder, MANY)

    def run_with(jobs: int) -> None:
        target = folder / f"many_{jobs}"
        convert(source, target, options=ConvertOptions(jobs=jobs))
        shutil.rmtree(target)

    one, two = "one process", "two processes"
    return Table(
        f"Converting {MANY} episodes of LeRobot v2.1 to WShard",
        "As DROID: 15 Hz, 230 to 270 steps, three cameras of 320 × 180 in H.264, which are not decoded, joints, actions, "
        "tasks. Starting the processes and syncing to disk included.",
        compare({one: partial(run_with, 1), two: partial(run_with, 2)}, rounds=3),
        [Goal(two, one, 1 / 1.6)],
    )


# --- video


def windows(folder: Path, every: int) -> Table:
    """Windows of one camera, with a keyframe every few frames; LeRobot itself encodes with 2."""
    steps, name = 600, "observation.images.cam"
    frames = moving_picture(steps, SIDE)
    ep = Episode("episode_0", length=steps, timebase=Timebase(tick_hz=30))
    ep.observations["images/cam"] = VideoChannel.encode(
        frames, "h264:crf=30", fps=30, keyframe_every=every, name="cam"
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

    def as_floats(start: int) -> Any:  # noqa: ANN401 - a tensor
        pixels = torch.from_numpy(ours[start]["images/cam"])
        return pixels.permute(0, 3, 1, 2).float().div_(255)

    first, tensors = "EpisodeDataset", "EpisodeDataset, then float32 [T, C, H, W]"
    pyav = "PyAV, mp4, seek and decode by time"
    contenders: dict[str, Callable[[], object]] = {
        first: partial(items, ours, starts),
        "load_wshard, frames by number": by_number,
        tensors: lambda: [as_floats(start) for start in starts],
        pyav: lambda: [by_time(mp4, start / 30) for start in starts],
    }
    goals = []
    for backend in ("torchcodec", "pyav") if importlib.util.find_spec("lerobot") else ():
        theirs = f"LeRobotDataset, {backend}, float32 [T, C, H, W]"
        loader = importlib.import_module("lerobot.datasets.lerobot_dataset").LeRobotDataset(
            "bench/cam",
            root=dataset,
            delta_timestamps={name: [step / 30 for step in range(WINDOW)]},
            video_backend=backend,
        )
        contenders[theirs] = partial(items, loader, starts)
        goals += [Goal(first, theirs, 0.5), Goal(tensors, theirs, 0.5)]
    if not goals:
        print("not installed, left out: lerobot", file=sys.stderr)
        goals = [Goal(first, pyav, 0.5)]
    with one_processor():
        medians = compare(contenders, rounds=7)
    return Table(
        f"Windows of {WINDOW} frames of H.264, a keyframe every {every} frames",
        f"{SIDE} × {SIDE} pixels, {len(starts)} random windows, on one processor; "
        f"{file.stat().st_size / 1e6:.2f} MB against {frames.nbytes / 1e6:.0f} MB of pixels. "
        "Frames are uint8 [T, H, W, C] where nothing else is said. EpisodeDataset and PyAV spend most of their time in the same decoder.",
        medians,
        goals,
    )


def items(dataset: Any, numbers: list[int]) -> list[Any]:  # noqa: ANN401 - ours or LeRobot's
    return [dataset[number] for number in numbers]


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
