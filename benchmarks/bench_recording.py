"""Recording step by step: 20 000 steps of state, action and a 64 × 64 camera; three cameras; an hour."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from typing import TYPE_CHECKING

import numpy as np

from benchmarks import recorders
from benchmarks.data import NOISE, camera
from benchmarks.harness import Goal, Table
from wshard import WShardStreamWriter
from wshard.streaming import StreamOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from benchmarks.recorders import Measured, Step

STEPS = 20_000
# Of the peers that would take too long.
ZARR_STEPS = 1_000
LEROBOT_STEPS = 1_000
CAMERA_STEPS = 3_000
HOUR = 108_000
"""Steps of an hour at 30 Hz."""
ROUNDS = 3
MEBIBYTE = bytes(1 << 20)
CHANNELS = [
    {"id": "state", "dtype": "f32", "shape": [17]},
    {"id": "action", "dtype": "f32", "shape": [6], "lane": "action"},
    {"id": "rgb", "dtype": "u8", "shape": [64, 64, 3]},
]
CAMERAS = [{"id": f"camera_{n}", "dtype": "u8", "shape": [84, 84, 3]} for n in range(3)]
OURS = "WShardStreamWriter, all in the journal"
FINISHED = "WShardStreamWriter, finished"
RAW = "raw write() of each step"
HDF5 = "h5py, buffered by 64 and flushed"
MCAP = "MCAP"
ZARR = "Zarr, appended by 64"
LEROBOT = "LeRobot-style (mp4 + parquet, lossy)"
COPY = "cp"


def run(folder: Path) -> Iterator[Table]:
    steps = make_steps()
    yield memory(folder, steps)  # first: the peers' libraries take memory of their own
    yield from uncompressed(folder, steps)
    yield with_zstd(folder, steps)
    yield cameras(folder)


def make_steps(count: int = 512) -> list[Step]:
    """`count` steps that are recorded again and again: more than fit into the fastest caches."""
    random = np.random.default_rng(5)
    return [
        {
            "state": random.normal(size=17).astype(np.float32),
            "action": random.normal(size=6).astype(np.float32),
            "rgb": np.array(frame),
        }
        for frame in camera(0, count, 64)
    ]


def rounds(
    folder: Path, contenders: Mapping[str, Callable[[], Measured]], most_bytes: int
) -> dict[str, Measured]:
    """Medians of what the contenders measure, over interleaved rounds; each writes at most `most_bytes`."""
    found: dict[str, list[Measured]] = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name, work in contenders.items():
            warm(folder, most_bytes)
            found[name].append(work())
    return {
        name: {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        for name, runs in found.items()
    }


def warm(folder: Path, size: int) -> None:
    """Make the system get memory for files: in a virtual machine the first use takes five times as long."""
    scratch = folder / "scratch"
    with open(scratch, "wb") as file:
        file.writelines(MEBIBYTE for _ in range(size >> 20))
    scratch.unlink()


def copy(source: str, target: str) -> Measured:
    recorders.remove(target)
    start = time.perf_counter()
    subprocess.run(["cp", "--reflink=never", source, target], check=True)
    return {"finishing": time.perf_counter() - start}


def uncompressed(folder: Path, steps: list[Step]) -> Iterator[Table]:
    path, bare, h5, bag, store, copied = (
        str(folder / f"r.{end}") for end in ("wshard", "bin", "h5", "mcap", "zarr", "copy")
    )
    contenders: dict[str, Callable[[], Measured]] = {
        OURS: lambda: recorders.ours(path, CHANNELS, steps, STEPS),
        COPY: lambda: copy(path, copied),
        RAW: lambda: recorders.raw(bare, steps, STEPS),
        HDF5: lambda: recorders.hdf5(h5, steps, STEPS),
    }
    checks: list[Callable[[], None]] = [
        lambda: recorders.check_ours(path, steps, STEPS),
        lambda: recorders.check_hdf5(h5, steps, STEPS),
    ]
    if recorders.is_installed("mcap"):
        contenders[MCAP] = lambda: recorders.mcap(bag, steps, STEPS, "NONE")
        checks.append(lambda: recorders.check_mcap(bag, steps, STEPS))
    if recorders.is_installed("zarr"):
        contenders[ZARR] = lambda: recorders.zarr(store, steps, ZARR_STEPS)
        checks.append(lambda: recorders.check_zarr(store, steps, ZARR_STEPS))
    found = rounds(folder, contenders, 512 << 20)
    for check in checks:
        check()
    finishing = {"end_episode": found[OURS]["finishing"], COPY: found.pop(COPY)["finishing"]}
    recorders.remove(path, bare, h5, bag, store, copied)
    yield Table(
        "Record 20 000 steps of {state f32[17], action f32[6], rgb u8[64, 64, 3]}, uncompressed: time for each step",
        f"The camera sees a smooth moving scene with independent noise in each colour (σ = {NOISE:g}). All recorders repeat the "
        "same 512 steps. The time ends when all steps are in the file; nothing is synced. The raw call writes the same "
        "bytes without checksums, names or an index. Including the copy into the finished file, "
        f"{FINISHED.split(',')[0]} takes {found[OURS]['finished'] * 1e6:.1f} µs per step. Zarr records {ZARR_STEPS} "
        "steps. The stream writer of the reference implementation is not run here; measured elsewhere, it takes 2.0 to "
        "2.6 times as long as h5py buffered.",
        {name: measured["journal"] for name, measured in found.items()},
        [Goal(OURS, RAW, 1.6), Goal(OURS, HDF5, 1.0)],
    )
    mine = OURS.partition(",")[0]
    yield Table(
        "The same: how long one step takes",
        f"Median, 99th percentile and maximum of 20 000 calls in a tight loop; each is the median of {ROUNDS} rounds.",
        {
            f"{name.partition(',')[0]}, {key}": found[name][key]
            for key in ("p50", "p99", "max")
            for name in (OURS, HDF5)
        },
        [
            Goal(f"{mine}, p50", None, 20e-6),
            Goal(f"{mine}, p99", None, 150e-6),
            Goal(f"{mine}, max", None, 20e-3),
        ],
    )
    yield Table(
        "Finish a recording of 248 MB",
        "From the last step in the journal until the finished episode is in place and the journal is removed. Nothing is synced.",
        finishing,
        [Goal("end_episode", COPY, 1.75)],
    )


def with_zstd(folder: Path, steps: list[Step]) -> Table:
    path, bag, store, video = (
        str(folder / f"z.{end}") for end in ("wshard", "mcap", "zarr", "lerobot")
    )
    contenders: dict[str, Callable[[], Measured]] = {
        FINISHED: lambda: recorders.ours(path, CHANNELS, steps, STEPS, compression="zstd:1")
    }
    checks: list[Callable[[], None]] = [lambda: recorders.check_ours(path, steps, STEPS)]
    goals = []
    if recorders.is_installed("mcap"):
        contenders[MCAP] = lambda: recorders.mcap(bag, steps, STEPS, "ZSTD")
        checks.append(lambda: recorders.check_mcap(bag, steps, STEPS))
        goals.append(Goal(FINISHED, MCAP, 1 / 3))
    if recorders.is_installed("zarr"):
        contenders[ZARR] = lambda: recorders.zarr(store, steps, ZARR_STEPS, level=1)
        checks.append(lambda: recorders.check_zarr(store, steps, ZARR_STEPS))
    if recorders.is_installed("av", "pyarrow"):
        contenders[LEROBOT] = lambda: recorders.lerobot_style(video, steps, LEROBOT_STEPS)
        checks.append(lambda: recorders.check_lerobot_style(video, steps, LEROBOT_STEPS))
    found = rounds(folder, contenders, 200 << 20)
    for check in checks:
        check()
    recorders.remove(path, bag, store, video)
    sizes = _sizes(found)
    medians = {FINISHED: found.pop(FINISHED)["finished"]}
    medians |= {name: measured["journal"] for name, measured in found.items()}
    return Table(
        "The same 20 000 steps with zstd: time for each step",
        "WShardStreamWriter and Zarr compress at level 1. WShardStreamWriter is timed to the finished file; it stores the "
        "camera as differences of steps, which it chooses itself. MCAP uses the default of its Python library. The "
        "LeRobot style encodes the camera as AV1 video at the end of the episode. "
        f"Zarr records {ZARR_STEPS} steps, the video {LEROBOT_STEPS}. Nothing is synced. Bytes per step: {sizes}.",
        medians,
        goals,
    )


def _sizes(found: Mapping[str, Measured]) -> str:
    """Bytes per step of each file, for the note."""
    return ", ".join(
        f"{measured['size']:.0f} ({name.split()[0].rstrip(',')})"
        for name, measured in found.items()
    )


def cameras(folder: Path) -> Table:
    seen = [camera(number, 128, 84) for number in range(3)]
    steps = [{f"camera_{n}": seen[n][step] for n in range(3)} for step in range(128)]
    path = str(folder / "c.wshard")

    def record(compression: str) -> Measured:
        return recorders.ours(path, CAMERAS, steps, CAMERA_STEPS, compression=compression)

    contenders = {"none": lambda: record("none"), "zstd:1": lambda: record("zstd:1")}
    found = rounds(folder, contenders, 380 << 20)
    recorders.check_ours(path, steps, CAMERA_STEPS)
    recorders.remove(path)
    return Table(
        "Record three 84 × 84 × 3 cameras: time for each step",
        "The same kind of scene and noise, recorded at full speed until all steps are in the journal. 1 ms is 1 kHz.",
        {"uncompressed": found["none"]["journal"], "zstd:1": found["zstd:1"]["journal"]},
        [Goal("uncompressed", None, 1e-3), Goal("zstd:1", None, 1e-3)],
    )


def memory(folder: Path, steps: list[Step]) -> Table:
    path = str(folder / "m.wshard")
    writer = WShardStreamWriter(
        path, "ep", CHANNELS, compression="zstd:1", options=StreamOptions(fsync="never")
    )
    writer.begin_episode()
    early = late = 0
    for number in range(HOUR):
        writer.write_timestep(steps[number % len(steps)], reward=1.0, done=False)
        if number == HOUR // 10:
            early = resident()
        elif number % 1000 == 0 and number > HOUR // 10:
            late = max(late, resident())
    writer.end_episode()
    finished = resident()
    return Table(
        "Resident memory while recording an hour of 30 Hz at full speed, zstd:1",
        f"{HOUR} steps with 24 MiB of buffers.",
        {
            "after a tenth": float(early),
            "the most after that": float(late),
            "when it is finished": float(finished),
        },
        [Goal("the most after that", "after a tenth", (early + (16 << 20)) / early)],
        unit="bytes",
    )


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
