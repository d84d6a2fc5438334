"""Converters: reading other formats against the libraries that they belong to, many episodes, and windows of video."""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING, Any

import av
import numpy as np

from benchmarks.foreign import SOURCES, droid, moving_picture, options_of
from benchmarks.harness import Goal, Table, compare
from wshard import Episode, load_wshard, save_wshard
from wshard.convert import ConvertOptions, convert, read
from wshard.video import VideoChannel

if TYPE_CHECKING:
    from collections.abc import Iterator
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
    yield windows(folder)


# --- reading


def touch(ep: Any) -> int:  # noqa: ANN401 - an episode
    return sum(getattr(channel.data, "nbytes", 0) for _, channel in ep.blocks())


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


def windows(folder: Path) -> Table:
    steps = 600
    frames = moving_picture(steps, SIDE)
    channel = VideoChannel.encode(frames, "h264:crf=23", fps=30, keyframe_every=WINDOW, name="cam")
    ep = Episode("ep", length=steps)
    ep.observations["cam"] = channel
    save_wshard(ep, folder / "cam.wshard")
    # As LeRobot's datasets have them: one mp4, times instead of frame numbers.
    channel.to_file(folder / "cam.mp4", fps=30)
    starts = np.random.default_rng(2).integers(0, steps - WINDOW, 8).tolist()

    def ours() -> int:
        with load_wshard(folder / "cam.wshard") as opened:
            cam = opened.observations["cam"]
            return sum(cam[start : start + WINDOW].nbytes for start in starts)

    def theirs() -> int:
        return sum(by_time(folder / "cam.mp4", start / 30).nbytes for start in starts)

    mine, other = "load_wshard, frames by number", "PyAV, mp4, seek and decode by time"
    return Table(
        f"Windows of {WINDOW} frames of H.264",
        f"{SIDE} × {SIDE} pixels, a keyframe every {WINDOW} frames, {len(starts)} random windows; "
        f"{(folder / 'cam.wshard').stat().st_size / 1e6:.2f} MB against {frames.nbytes / 1e6:.0f} MB of pixels. "
        "LeRobot's loader opens, seeks and decodes the same way for each window; turning frames into tensors is left out.",
        compare({mine: ours, other: theirs}, rounds=7),
        [Goal(mine, other, 0.5)],
    )


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
