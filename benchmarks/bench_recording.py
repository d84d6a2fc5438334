"""Recording step by step: 20 000 steps of state, action and a 64 × 64 camera; three cameras; an hour."""

from __future__ import annotations

import importlib
import os
import statistics
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from benchmarks.data import episode
from benchmarks.harness import Goal, Table
from wshard import WShardStreamWriter, load_wshard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    Step = dict[str, NDArray[Any]]

STEPS = 20_000
ROUNDS = 5
BUFFERED = 64
WARM_BYTES = 600 << 20
MEBIBYTE = bytes(1 << 20)
HOUR = 216_000
"""Steps of an hour at 60 Hz."""
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


def run(folder: Path) -> Iterator[Table]:
    steps = make_steps()
    yield from uncompressed(folder, steps)
    yield finishing(folder, steps)
    yield with_zstd(folder, steps)
    yield cameras(folder)
    yield memory(folder, steps)


def make_steps(count: int = 512) -> list[Step]:
    """So many steps, over and over: more than fits into the fastest caches."""
    random = np.random.default_rng(5)
    frames = episode(count, 64, 64)["signal/rgb"]
    return [
        {
            "state": random.normal(size=17).astype(np.float32),
            "action": random.normal(size=6).astype(np.float32),
            "rgb": np.array(frame),
        }
        for frame in frames
    ]


def rounds(
    folder: Path,
    contenders: Mapping[str, Callable[[], Mapping[str, float]]],
    count: int = ROUNDS,
) -> dict[str, dict[str, float]]:
    """Medians of what the contenders measure themselves, in interleaved rounds; files go in between."""
    found: dict[str, list[Mapping[str, float]]] = {name: [] for name in contenders}
    for _ in range(count):
        for name, work in contenders.items():
            warm(folder)
            found[name].append(work())
    return {
        name: {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        for name, runs in found.items()
    }


def warm(folder: Path) -> None:
    """Makes memory for files ready: a virtual machine that must first ask its host for it takes five times as long."""
    scratch = folder / "scratch"
    with open(scratch, "wb") as file:
        file.writelines(MEBIBYTE for _ in range(WARM_BYTES >> 20))
    scratch.unlink()


def remove(*paths: str) -> None:
    for path in paths:
        with suppress(FileNotFoundError):
            os.unlink(path)


def ours(
    path: str,
    channels: list[dict[str, Any]],
    steps: list[Step],
    count: int = STEPS,
    **options: Any,  # noqa: ANN401 - the writer's
) -> dict[str, float]:
    """What a recording takes for each step, and how long single calls take."""
    remove(path, path + ".partial")
    writer = WShardStreamWriter(path, "ep", channels, fsync="never", **options)
    times = np.empty(count + 1)
    clock, write = time.perf_counter, writer.write_timestep
    start = clock()
    writer.begin_episode()
    for number in range(count):
        times[number] = clock()
        write(steps[number % len(steps)], reward=1.0, done=False)
    times[count] = clock()
    writer.flush()
    flushed = clock()
    writer.end_episode()
    finished = clock()
    latencies = np.diff(times)
    return {
        "journal": (flushed - start) / count,
        "finished": (finished - start) / count,
        "finishing": finished - flushed,
        "p50": float(np.percentile(latencies, 50)),
        "p99": float(np.percentile(latencies, 99)),
        "max": float(latencies.max()),
    }


def raw(path: str, steps: list[Step]) -> dict[str, float]:
    blobs = [b"".join(value.tobytes() for value in step.values()) + bytes(5) for step in steps]
    remove(path)
    start = time.perf_counter()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    for number in range(STEPS):
        os.write(descriptor, blobs[number % len(blobs)])
    os.close(descriptor)
    return {"journal": (time.perf_counter() - start) / STEPS}


def hdf5(path: str, steps: list[Step]) -> dict[str, float]:
    """Resizable datasets, written 64 steps at a time, and flushed."""
    remove(path)
    times = np.empty(STEPS + 1)
    clock = time.perf_counter
    start = clock()
    with h5py.File(path, "w") as file:
        kinds = {
            **{name: (value.dtype, value.shape) for name, value in steps[0].items()},
            "reward": (np.dtype("f4"), ()),
            "done": (np.dtype("u1"), ()),
        }
        datasets = {
            name: file.create_dataset(
                name, (0, *shape), dtype, maxshape=(None, *shape), chunks=(BUFFERED, *shape)
            )
            for name, (dtype, shape) in kinds.items()
        }
        buffers = {n: np.empty((BUFFERED, *shape), dtype) for n, (dtype, shape) in kinds.items()}
        for number in range(STEPS):
            times[number] = clock()
            step, place = steps[number % len(steps)], number % BUFFERED
            for name, value in step.items():
                buffers[name][place] = value
            buffers["reward"][place], buffers["done"][place] = 1.0, False
            if place == BUFFERED - 1 or number == STEPS - 1:
                first = number - place
                for name, dataset in datasets.items():
                    dataset.resize(number + 1, axis=0)
                    dataset[first:] = buffers[name][: place + 1]
                file.flush()
        times[STEPS] = clock()
    finished = clock()
    latencies = np.diff(times)
    return {
        "journal": (finished - start) / STEPS,
        "p50": float(np.percentile(latencies, 50)),
        "p99": float(np.percentile(latencies, 99)),
        "max": float(latencies.max()),
    }


def mcap(path: str, steps: list[Step], compression: str) -> dict[str, float]:
    """One message for each channel and step, in chunks of the library's default size."""
    library = importlib.import_module("mcap.writer")
    remove(path)
    start = time.perf_counter()
    with open(path, "wb") as file:
        writer = library.Writer(file, compression=library.CompressionType[compression])
        writer.start()
        ids = {
            name: writer.register_channel(topic=name, message_encoding="raw", schema_id=0)
            for name in steps[0]
        }
        for number in range(STEPS):
            for name, value in steps[number % len(steps)].items():
                writer.add_message(ids[name], number, value.tobytes(), number)
        writer.finish()
    return {"journal": (time.perf_counter() - start) / STEPS}


def has_mcap() -> bool:
    try:
        importlib.import_module("mcap.writer")
    except ImportError:
        return False
    return True


def uncompressed(folder: Path, steps: list[Step]) -> Iterator[Table]:
    path, bare, h5, bag = (str(folder / f"r.{end}") for end in ("wshard", "bin", "h5", "mcap"))
    contenders: dict[str, Callable[[], Mapping[str, float]]] = {
        OURS: lambda: ours(path, CHANNELS, steps),
        RAW: lambda: raw(bare, steps),
        HDF5: lambda: hdf5(h5, steps),
    }
    if has_mcap():
        contenders[MCAP] = lambda: mcap(bag, steps, "NONE")
    found = rounds(folder, contenders)
    check(path, steps)
    medians = {name: measured["journal"] for name, measured in found.items()}
    yield Table(
        "Record 20 000 steps of {state f32[17], action f32[6], rgb u8[64, 64, 3]}, uncompressed: time for each step",
        "Until all steps are in the file, nothing synced. The raw call writes the same bytes without checksums, "
        f"names or an index. Finished, with the copy into its final form, {FINISHED.split(',')[0]} takes "
        f"{found[OURS]['finished'] * 1e6:.1f} µs a step.",
        medians,
        [Goal(OURS, RAW, 1.6), Goal(OURS, HDF5, 1.0)],
    )
    names = {
        f"{name.partition(',')[0]}, {key}": found[name][key]
        for key in ("p50", "p99", "max")
        for name in (OURS, HDF5)
    }
    mine = OURS.partition(",")[0]
    yield Table(
        "The same: how long one step takes",
        "The median of all rounds, of the median, the 99th percentile and the longest of 20 000 calls in a tight loop.",
        names,
        [
            Goal(f"{mine}, p50", None, 20e-6),
            Goal(f"{mine}, p99", None, 150e-6),
            Goal(f"{mine}, max", None, 20e-3),
        ],
    )


def finishing(folder: Path, steps: list[Step]) -> Table:
    path, copy = str(folder / "f.wshard"), str(folder / "f.copy")

    def cp() -> dict[str, float]:
        remove(copy)
        start = time.perf_counter()
        subprocess.run(["cp", "--reflink=never", path, copy], check=True)
        return {"finishing": time.perf_counter() - start}

    found = rounds(folder, {"end_episode": lambda: ours(path, CHANNELS, steps), "cp": cp})
    return Table(
        "Finish a recording of 248 MB",
        "From the last step in the journal to the episode under its name, the journal removed, nothing synced.",
        {name: measured["finishing"] for name, measured in found.items()},
        [Goal("end_episode", "cp", 1.75)],
    )


def with_zstd(folder: Path, steps: list[Step]) -> Table:
    path, bag = str(folder / "z.wshard"), str(folder / "z.mcap")
    contenders: dict[str, Callable[[], Mapping[str, float]]] = {
        FINISHED: lambda: ours(path, CHANNELS, steps, compression="zstd:1")
    }
    goals = []
    if has_mcap():
        contenders[MCAP] = lambda: mcap(bag, steps, "ZSTD")
        goals.append(Goal(FINISHED, MCAP, 1 / 3))
    found = rounds(folder, contenders, 3)
    check(path, steps)
    medians = {FINISHED: found.pop(FINISHED)["finished"]}
    medians |= {name: measured["journal"] for name, measured in found.items()}
    return Table(
        "The same 20 000 steps with zstd: time for each step",
        "Ours at level 1, as the finished file; MCAP as its Python library compresses. Nothing synced.",
        medians,
        goals,
    )


def cameras(folder: Path) -> Table:
    frames = episode(64, 84, 84)["signal/rgb"]
    steps = [{f"camera_{n}": np.roll(frame, n, 0) for n in range(3)} for frame in frames]
    path = str(folder / "c.wshard")
    found = rounds(
        folder,
        {
            "uncompressed": lambda: ours(path, CAMERAS, steps, 5_000),
            "zstd:1": lambda: ours(path, CAMERAS, steps, 5_000, compression="zstd:1"),
        },
        3,
    )
    return Table(
        "Record three 84 × 84 × 3 cameras: time for each step",
        "As fast as it goes, until all is in the journal: 1 ms is 1 kHz.",
        {name: measured["journal"] for name, measured in found.items()},
        [Goal("uncompressed", None, 1e-3), Goal("zstd:1", None, 1e-3)],
    )


def memory(folder: Path, steps: list[Step]) -> Table:
    path = str(folder / "m.wshard")
    writer = WShardStreamWriter(path, "ep", CHANNELS, compression="zstd:1", fsync="never")
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
        "Resident memory over an hour at 60 Hz, recorded as fast as it goes, zstd:1",
        f"{HOUR} steps, 64 MiB of buffers.",
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


def check(path: str, steps: list[Step]) -> None:
    with load_wshard(path) as found:
        assert found.length == STEPS
        assert np.array_equal(found.observations["rgb"][777], steps[777 % len(steps)]["rgb"])
        assert np.array_equal(found.actions["action"][STEPS - 1], steps[31]["action"])
