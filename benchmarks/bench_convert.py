"""Converters: reading other formats against the libraries that they belong to, many episodes, and windows of video."""

from __future__ import annotations

import shutil
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import av
import h5py
import numpy as np
import zarr

from benchmarks.harness import Goal, Table, compare
from wshard import Episode, load_wshard, save_wshard
from wshard.convert import ConvertOptions, convert, read, write
from wshard.video import VideoChannel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

EPISODES = 40
STEPS = 200
MANY = 1000
WINDOW = 64
SIDE = 224
# Of the raw speed of a format's own library.
SHARE = 0.7


def run(folder: Path) -> Iterator[Table]:
    for name, (suffix, raw) in READERS.items():
        yield reading(folder, name, suffix, raw)
    yield many_episodes(folder)
    yield windows(folder)


def episodes(count: int, steps: int, side: int) -> Iterator[Episode]:
    """As a robot records them: joints, an action, a reward, a camera."""
    random = np.random.default_rng(0)
    frames = moving_picture(steps + 1, side)
    for number in range(count):
        ep = Episode(f"episode_{number}", env_id="Bench-v0")
        ep.observations["state"] = random.normal(size=(steps + 1, 32)).astype("f4")
        ep.observations["rgb"] = np.roll(frames, number, axis=0)
        ep.actions["action"] = random.normal(size=(steps, 7)).astype("f4")
        ep.rewards = random.normal(size=steps)
        ep.terminations = np.arange(steps) == steps - 1
        ep.truncations = np.zeros(steps, bool)
        yield ep


def moving_picture(steps: int, side: int) -> NDArray[np.uint8]:
    y, x = np.mgrid[:side, :side]
    noise = np.random.default_rng(1).integers(0, 12, (side, side))
    frames = [np.sin((x + 3 * t) / 17) * 60 + np.cos((y - t) / 23) * 50 + 120 for t in range(steps)]
    grey = (np.stack(frames) + noise).astype(np.uint8)
    return np.stack([grey, 255 - grey, grey // 2], axis=-1)


# --- reading


def touch(ep: Any) -> int:  # noqa: ANN401 - an episode
    return sum(channel.data.nbytes for _, channel in ep.blocks())


def raw_hdf5(path: Path) -> int:
    total = 0

    def visit(_: str, item: Any) -> None:  # noqa: ANN401 - a group or a dataset
        nonlocal total
        if isinstance(item, h5py.Dataset):
            total += item[()].nbytes

    for file in [path] if path.is_file() else sorted(path.rglob("*.hdf5")):
        with h5py.File(file) as opened:
            opened.visititems(visit)
    return total


def raw_zarr(path: Path) -> int:
    group = zarr.open_group(str(path), mode="r")
    ends = [0, *group["meta/episode_ends"][:].tolist()]
    total = 0
    for array in group["data"].arrays():
        for start, stop in pairwise(ends):
            total += array[1][start:stop].nbytes
    return total


def raw_npz(path: Path) -> int:
    total = 0
    for file in sorted(path.glob("*.npz")):
        with np.load(file) as arrays:
            total += sum(arrays[name].nbytes for name in arrays.files)
    return total


READERS: dict[str, tuple[str, Callable[[Path], int]]] = {
    "minari": ("", raw_hdf5),
    "robomimic": (".hdf5", raw_hdf5),
    "zarr": (".zarr", raw_zarr),
    "npz": ("", raw_npz),
    "dreamer": ("", raw_npz),
}


def reading(folder: Path, name: str, suffix: str, raw: Callable[[Path], int]) -> Table:
    path = folder / f"{name}_dataset{suffix}"
    write(episodes(EPISODES, STEPS, 32), path, format=name)
    ours, theirs = f"wshard.convert.read, {name}", "the arrays alone, with its own library"
    medians = compare(
        {ours: lambda: sum(touch(ep) for ep in read(path, name)), theirs: lambda: raw(path)},
        rounds=7,
    )
    return Table(
        f"Reading {EPISODES} episodes of {name}",
        f"{STEPS} steps, a camera of 32 × 32 pixels; every array is read.",
        medians,
        [Goal(ours, theirs, 1 / SHARE)],
    )


# --- whole conversions


def many_episodes(folder: Path) -> Table:
    source = folder / "many.hdf5"
    write(episodes(MANY, 120, 24), source, format="robomimic")

    def run_with(jobs: int) -> None:
        target = folder / f"many_{jobs}"
        convert(source, target, options=ConvertOptions(jobs=jobs))
        shutil.rmtree(target)

    one, two = "one process", "two processes"
    return Table(
        f"Converting {MANY} episodes of robomimic to WShard",
        "120 steps, a camera of 24 × 24 pixels; starting the processes included.",
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
