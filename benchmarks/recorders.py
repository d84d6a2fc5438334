"""Recorders that take the same steps: ours and the peers', each with a check of what it wrote.

Each records the steps, closes its file, and returns the time per step. The checks are not timed.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from wshard import WShardStreamWriter, load_wshard
from wshard.streaming import StreamOptions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Step = dict[str, NDArray[Any]]
    Measured = dict[str, float]

BUFFERED = 64
"""Steps that peers with arrays gather before they write: what ours does by default."""
REWARD, DONE = 1.0, False
RATE_HZ = 30


def is_installed(*packages: str) -> bool:
    """Whether all these modules are installed."""
    return all(importlib.util.find_spec(package) is not None for package in packages)


def remove(*paths: str) -> None:
    for path in paths:
        with suppress(FileNotFoundError):
            shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)


def size_of(path: str) -> int:
    """Size in bytes of a file, or of all files of a folder."""
    if not os.path.isdir(path):
        return os.stat(path).st_size
    return sum(
        os.stat(os.path.join(folder, name)).st_size
        for folder, _, names in os.walk(path)
        for name in names
    )


def check_all(found: Any, steps: list[Step], name: str, count: int) -> None:  # noqa: ANN401 - an array of any library
    """Check that every entry of a channel is what was recorded."""
    expected = np.stack([step[name] for step in steps])
    assert len(found) == count, f"{name}: {len(found)} entries instead of {count}"
    for first in range(0, count, len(steps)):
        part = np.asarray(found[first : min(first + len(steps), count)])
        assert np.array_equal(part, expected[: len(part)]), f"{name}: from entry {first}"


class _Latencies:
    """Times of single calls."""

    def __init__(self, count: int) -> None:
        self.times = np.empty(count + 1)

    def measured(self) -> Measured:
        latencies = np.diff(self.times)
        return {
            "p50": float(np.percentile(latencies, 50)),
            "p99": float(np.percentile(latencies, 99)),
            "max": float(latencies.max()),
        }


# --- ours


def ours(
    path: str,
    channels: list[dict[str, Any]],
    steps: list[Step],
    count: int,
    **options: Any,  # noqa: ANN401 - the writer's
) -> Measured:
    """Times until all steps are in the journal and until the file is finished, and times of single calls."""
    remove(path, path + ".partial")
    writer = WShardStreamWriter(
        path, "ep", channels, options=StreamOptions(fsync="never"), **options
    )
    latencies = _Latencies(count)
    times, clock, write = latencies.times, time.perf_counter, writer.write_timestep
    start = clock()
    writer.begin_episode()
    for number in range(count):
        times[number] = clock()
        write(steps[number % len(steps)], reward=REWARD, done=DONE)
    times[count] = clock()
    writer.flush()
    flushed = clock()
    writer.end_episode()
    finished = clock()
    return {
        "journal": (flushed - start) / count,
        "finished": (finished - start) / count,
        "finishing": finished - flushed,
        "size": os.stat(path).st_size / count,
        **latencies.measured(),
    }


def check_ours(path: str, steps: list[Step], count: int) -> None:
    with load_wshard(path) as found:
        assert found.length == count
        for name in steps[0]:
            lane = found.actions if name in found.actions else found.observations
            check_all(lane[name], steps, name, count)


# --- one call for each step


def raw(path: str, steps: list[Step], count: int) -> Measured:
    """Write the same bytes and nothing else."""
    besides = np.float64(REWARD).tobytes() + bytes([DONE])
    blobs = [b"".join(value.tobytes() for value in step.values()) + besides for step in steps]
    remove(path)
    start = time.perf_counter()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    for number in range(count):
        os.write(descriptor, blobs[number % len(blobs)])
    os.close(descriptor)
    return {"journal": (time.perf_counter() - start) / count}


# --- arrays that grow


def _kinds(steps: list[Step]) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    return {
        **{name: (value.dtype, value.shape) for name, value in steps[0].items()},
        "reward": (np.dtype("f8"), ()),
        "done": (np.dtype("u1"), ()),
    }


class _Gathered:
    """A buffer that collects steps in arrays until there are enough to write."""

    def __init__(self, steps: list[Step]) -> None:
        self.kinds = _kinds(steps)
        self.arrays = {n: np.empty((BUFFERED, *s), dtype) for n, (dtype, s) in self.kinds.items()}

    def put(self, place: int, step: Step) -> None:
        for name, value in step.items():
            self.arrays[name][place] = value
        self.arrays["reward"][place], self.arrays["done"][place] = REWARD, DONE


def hdf5(path: str, steps: list[Step], count: int) -> Measured:
    """Resizable datasets, flushed after each write."""
    remove(path)
    latencies = _Latencies(count)
    times, clock = latencies.times, time.perf_counter
    start = clock()
    with h5py.File(path, "w") as file:
        gathered = _Gathered(steps)
        datasets = {
            name: file.create_dataset(
                name, (0, *shape), dtype, maxshape=(None, *shape), chunks=(BUFFERED, *shape)
            )
            for name, (dtype, shape) in gathered.kinds.items()
        }
        for number in range(count):
            times[number] = clock()
            place = number % BUFFERED
            gathered.put(place, steps[number % len(steps)])
            if place == BUFFERED - 1 or number == count - 1:
                for name, dataset in datasets.items():
                    dataset.resize(number + 1, axis=0)
                    dataset[number - place :] = gathered.arrays[name][: place + 1]
                file.flush()
        times[count] = clock()
    return {"journal": (clock() - start) / count, **latencies.measured()}


def check_hdf5(path: str, steps: list[Step], count: int) -> None:
    with h5py.File(path) as file:
        for name in steps[0]:
            check_all(file[name], steps, name, count)


def zarr(path: str, steps: list[Step], count: int, level: int | None = None) -> Measured:
    """Arrays that are appended to; each append writes one chunk file and the array's metadata."""
    library = importlib.import_module("zarr")
    remove(path)
    compressors = None
    if level is not None:
        compressors = [library.codecs.ZstdCodec(level=level)]
    start = time.perf_counter()
    group = library.open_group(path, mode="w")
    gathered = _Gathered(steps)
    arrays = {
        name: group.create_array(
            name,
            shape=(0, *shape),
            chunks=(BUFFERED, *shape),
            dtype=dtype,
            compressors=compressors,
        )
        for name, (dtype, shape) in gathered.kinds.items()
    }
    for number in range(count):
        place = number % BUFFERED
        gathered.put(place, steps[number % len(steps)])
        if place == BUFFERED - 1 or number == count - 1:
            for name, stored in arrays.items():
                stored.append(gathered.arrays[name][: place + 1])
    return {"journal": (time.perf_counter() - start) / count, "size": size_of(path) / count}


def check_zarr(path: str, steps: list[Step], count: int) -> None:
    group = importlib.import_module("zarr").open_group(path, mode="r")
    for name in steps[0]:
        check_all(group[name][:], steps, name, count)


# --- messages


def mcap(path: str, steps: list[Step], count: int, compression: str) -> Measured:
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
        for number in range(count):
            for name, value in steps[number % len(steps)].items():
                writer.add_message(ids[name], number, value.tobytes(), number)
        writer.finish()
    return {
        "journal": (time.perf_counter() - start) / count,
        "size": os.stat(path).st_size / count,
    }


def check_mcap(path: str, steps: list[Step], count: int) -> None:
    """Count all messages and compare the last ones: reading every message takes longer than writing it."""
    library = importlib.import_module("mcap.reader")
    last = count - 200
    with open(path, "rb") as file:
        reader = library.make_reader(file)
        assert reader.get_summary().statistics.message_count == count * len(steps[0])
        looked_at = 0
        for _, channel, message in reader.iter_messages(start_time=last):
            expected = steps[message.log_time % len(steps)][channel.topic]
            assert message.data == expected.tobytes(), f"{channel.topic}: message {looked_at}"
            looked_at += 1
        assert looked_at == 200 * len(steps[0])


# --- video and columns


def lerobot_style(folder: str, steps: list[Step], count: int) -> Measured:
    """As LeRobot stores an episode: the camera as video with its default codec, the rest as columns.

    Frames stay in memory, which is faster than PNG files, and are encoded when the episode ends.
    """
    av = importlib.import_module("av")
    pyarrow = importlib.import_module("pyarrow")
    parquet = importlib.import_module("pyarrow.parquet")
    os.environ["SVT_LOG"] = "1"  # the encoder says no more than errors
    remove(folder)
    os.makedirs(folder)
    start = time.perf_counter()
    frames: list[NDArray[Any]] = []
    states: list[NDArray[Any]] = []
    actions: list[NDArray[Any]] = []
    for number in range(count):
        step = steps[number % len(steps)]
        frames.append(step["rgb"].copy())
        states.append(step["state"].copy())
        actions.append(step["action"].copy())
    with av.open(os.path.join(folder, "rgb.mp4"), "w") as video:
        stream = video.add_stream("libsvtav1", RATE_HZ, options={"g": "2", "crf": "30"})
        stream.pix_fmt = "yuv420p"
        stream.height, stream.width = frames[0].shape[:2]
        for frame in frames:
            video.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        video.mux(stream.encode())
    columns = {
        name: pyarrow.FixedSizeListArray.from_arrays(np.concatenate(values), len(values[0]))
        for name, values in (("state", states), ("action", actions))
    }
    columns["reward"] = np.full(count, REWARD)
    columns["done"] = np.full(count, DONE)
    parquet.write_table(pyarrow.table(columns), os.path.join(folder, "data.parquet"))
    return {"journal": (time.perf_counter() - start) / count, "size": size_of(folder) / count}


def check_lerobot_style(folder: str, steps: list[Step], count: int) -> None:
    """Check that the columns are exact, and that the video has all frames and they look alike."""
    av = importlib.import_module("av")
    table = importlib.import_module("pyarrow.parquet").read_table(f"{folder}/data.parquet")
    for name in ("state", "action"):
        column = table[name].combine_chunks()
        width = len(steps[0][name])
        check_all(column.values.to_numpy().reshape(-1, width), steps, name, count)
    frames = 0
    with av.open(f"{folder}/rgb.mp4") as video:
        for frame in video.decode(video=0):
            if frames % 100 == 0:
                expected = steps[frames % len(steps)]["rgb"].astype(np.int16)
                assert np.abs(frame.to_ndarray(format="rgb24") - expected).mean() < 8
            frames += 1
    assert frames == count
