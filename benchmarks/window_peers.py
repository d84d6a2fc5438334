"""Episodes in WShard and in the formats of peers; all write the same episodes and read the same windows.

A window is a range of steps of the camera, the state and the action. A peer opens files when it needs them, so that it
can be sent to worker processes, and keeps a bounded number of them open.
"""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import av
import h5py
import hdf5plugin
import numpy as np
import safetensors
import safetensors.numpy
import zarr

from benchmarks.episodes import as_episode
from benchmarks.recorders import size_of
from wshard import load_wshard, save_wshard

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from benchmarks.data import Arrays
    from wshard.types import Channel

    Parts = list[NDArray[Any]]
    """Camera, state and action."""

NAMES = ("signal/rgb", "signal/state", "action/ctrl")
CAMERA, *NUMBERS = NAMES
CHUNK_STEPS = 16
RATE_HZ = 30


class WindowPeer(ABC):
    """A format with a file, or a folder of files, for each episode.

    Owns: the files that are open.

    Args:
        folder: the folder of the files.
        most_open: the number of episodes that stay open; the least recently used is closed first.
    """

    name: ClassVar[str]
    suffix: ClassVar[str]
    is_slow: ClassVar[bool] = False
    """Whether it takes ten milliseconds for a window, and more. Such are timed by themselves: what they do to caches
    and threads is felt by the others."""

    def __init__(self, folder: Path, most_open: int) -> None:
        self.folder = folder
        self._opened = lru_cache(most_open)(self.open)

    def path(self, number: int) -> str:
        """The path of an episode."""
        return str(self.folder / f"{number}{self.suffix}")

    def write_all(self, episodes: Sequence[Arrays], count: int) -> None:
        """Write `count` episodes: the given ones, then copies of their files."""
        self.folder.mkdir()
        for number, arrays in enumerate(episodes):
            self.write(self.path(number), arrays)
        for number in range(len(episodes), count):
            first = self.path(number % len(episodes))
            copy = shutil.copytree if os.path.isdir(first) else shutil.copyfile
            copy(first, self.path(number))

    def size(self) -> int:
        """Size of all files in bytes."""
        return size_of(str(self.folder))

    @abstractmethod
    def write(self, path: str, arrays: Arrays) -> None:
        """Write an episode."""

    @abstractmethod
    def open(self, number: int) -> Any:  # noqa: ANN401 - whatever the library reads from
        """Open an episode for `cut` and `cut_into`."""

    @abstractmethod
    def cut(self, opened: Any, start: int, stop: int) -> Parts:  # noqa: ANN401 - what `open` gave
        """The steps, as the library returns them."""

    def cut_into(self, opened: Any, start: int, out: Parts) -> None:  # noqa: ANN401 - what `open` gave
        """Read the steps from `start` on into arrays of the caller."""
        for part, place in zip(self.cut(opened, start, start + len(out[0])), out, strict=True):
            place[...] = part

    def window(self, number: int, start: int, stop: int) -> Parts:
        """The steps of an episode, as the library returns them."""
        return self.cut(self._opened(number), start, stop)

    def window_into(self, number: int, start: int, out: Parts) -> None:
        """Read the steps of an episode from `start` on into arrays of the caller."""
        self.cut_into(self._opened(number), start, out)


class WShard(WindowPeer):
    """WShard, not compressed, one episode at a time, without a dataset."""

    name = "wshard"
    suffix = ".wshard"
    profile: ClassVar[str | None] = None

    def write(self, path: str, arrays: Arrays) -> None:
        save_wshard(as_episode(arrays), path, profile=self.profile, fsync=False)

    def open(self, number: int) -> list[Channel]:
        episode = load_wshard(self.path(number), threads=1)
        return [episode.find(name) for name in NAMES]

    def cut(self, opened: list[Channel], start: int, stop: int) -> Parts:
        return [channel[start:stop] for channel in opened]

    def cut_into(self, opened: list[Channel], start: int, out: Parts) -> None:
        for channel, place in zip(opened, out, strict=True):
            channel.read_steps_into(start, place)


class WShardTraining(WShard):
    """WShard, compressed."""

    name = "wshard, profile training"
    profile = "training"


class Hdf5(WindowPeer):
    """HDF5 with the defaults of h5py: not compressed, contiguous."""

    name = "h5py, uncompressed"
    suffix = ".h5"

    def layout(self, array: NDArray[Any]) -> Mapping[str, Any]:
        """Arguments of `create_dataset` for an array."""
        return {}

    def write(self, path: str, arrays: Arrays) -> None:
        with h5py.File(path, "w") as file:
            for name, array in arrays.items():
                file.create_dataset(name, data=array, **self.layout(array))

    def open(self, number: int) -> list[Any]:
        # Without the cache of chunks: it would hold the whole of a small dataset, decoded.
        file = h5py.File(self.path(number), rdcc_nbytes=0, rdcc_nslots=0)
        return [file[name] for name in NAMES]

    def cut(self, opened: list[Any], start: int, stop: int) -> Parts:
        return [data[start:stop] for data in opened]

    def cut_into(self, opened: list[Any], start: int, out: Parts) -> None:
        for data, place in zip(opened, out, strict=True):
            data.read_direct(place, np.s_[start : start + len(place)])


class Hdf5Zstd(Hdf5):
    """HDF5 with the best settings for windows."""

    name = f"h5py-zstd, chunks of {CHUNK_STEPS} steps"

    def layout(self, array: NDArray[Any]) -> Mapping[str, Any]:
        return {"chunks": (CHUNK_STEPS, *array.shape[1:]), **hdf5plugin.Zstd(clevel=3)}


class Zarr(WindowPeer):
    """Version 3 in a zip file, which it reads faster than a folder of chunks."""

    name = f"zarr-zstd, chunks of {CHUNK_STEPS} steps"
    suffix = ".zip"
    is_slow = True

    def write(self, path: str, arrays: Arrays) -> None:
        with zarr.storage.ZipStore(path, mode="w") as store:
            group = zarr.create_group(store)
            for name, array in arrays.items():
                made = group.create_array(
                    name,
                    shape=array.shape,
                    dtype=array.dtype,
                    chunks=(CHUNK_STEPS, *array.shape[1:]),
                    compressors=zarr.codecs.ZstdCodec(level=3),
                )
                made[...] = array

    def open(self, number: int) -> list[Any]:
        group = zarr.open_group(zarr.storage.ZipStore(self.path(number), mode="r"), mode="r")
        return [group[name] for name in NAMES]

    def cut(self, opened: list[Any], start: int, stop: int) -> Parts:
        return [np.asarray(data[start:stop]) for data in opened]


class SafeTensors(WindowPeer):
    """Slices of tensors, not compressed."""

    name = "safetensors slices, uncompressed"
    suffix = ".safetensors"

    def write(self, path: str, arrays: Arrays) -> None:
        safetensors.numpy.save_file(arrays, path)

    def open(self, number: int) -> list[Any]:
        file = safetensors.safe_open(self.path(number), "np")
        return [file.get_slice(name) for name in NAMES]

    def cut(self, opened: list[Any], start: int, stop: int) -> Parts:
        return [part[start:stop] for part in opened]


class Npz(WindowPeer):
    """One compressed file: every window decodes the episode."""

    name = "npz, compressed"
    suffix = ".npz"
    is_slow = True

    def write(self, path: str, arrays: Arrays) -> None:
        np.savez_compressed(path, **arrays)  # type: ignore[arg-type]  # as if they were its options

    def open(self, number: int) -> Any:  # noqa: ANN401 - as NumPy types it
        return np.load(self.path(number))

    def cut(self, opened: Any, start: int, stop: int) -> Parts:  # noqa: ANN401 - as NumPy types it
        return [opened[name][start:stop] for name in NAMES]


class Memmap(WindowPeer):
    """A folder of `.npy` files."""

    name = "memmap, uncompressed"
    suffix = ""

    def file(self, path: str, name: str) -> str:
        return os.path.join(path, f"{name.replace('/', '_')}.npy")

    def write(self, path: str, arrays: Arrays) -> None:
        os.mkdir(path)
        for name, array in arrays.items():
            np.save(self.file(path, name), array)

    def open(self, number: int) -> Parts:
        # "c" rather than "r": as fast, and torch takes no arrays that are read-only.
        path = self.path(number)
        return [np.load(self.file(path, name), mmap_mode="c") for name in NAMES]

    def cut(self, opened: Parts, start: int, stop: int) -> Parts:
        return [part[start:stop] for part in opened]


class Video(Memmap):
    """As LeRobot stores cameras: lossy H.264 with every second frame a key frame. The rest is mapped."""

    name = "mp4, H.264 through PyAV (lossy)"
    is_slow = True

    def file(self, path: str, name: str) -> str:
        return os.path.join(path, "rgb.mp4") if name == CAMERA else super().file(path, name)

    def write(self, path: str, arrays: Arrays) -> None:
        super().write(path, {name: array for name, array in arrays.items() if name != CAMERA})
        frames = arrays[CAMERA]
        with av.open(self.file(path, CAMERA), "w") as container:
            stream = container.add_stream("libx264", RATE_HZ, {"g": "2", "crf": "23"})
            stream.height, stream.width = frames.shape[1:3]
            stream.pix_fmt = "yuv420p"
            for frame in frames:
                container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, "rgb24")))
            container.mux(stream.encode(None))

    def open(self, number: int) -> Any:  # noqa: ANN401 - what the library reads with, and arrays
        path = self.path(number)
        numbers = [np.load(self.file(path, name), mmap_mode="c") for name in NUMBERS]
        # Each frame would make one for itself, which takes longer than decoding it.
        colours = av.video.reformatter.VideoReformatter()
        return av.open(self.file(path, CAMERA)), colours, numbers

    def cut(self, opened: Any, start: int, stop: int) -> Parts:  # noqa: ANN401 - what `open` gave
        container, colours, numbers = opened
        stream = container.streams.video[0]
        of_frame = 1 / (stream.time_base * RATE_HZ)  # units of time
        container.seek(int(start * of_frame), stream=stream)
        frames = []
        for frame in container.decode(stream):
            step = round(frame.pts / of_frame)
            if step >= start:
                frames.append(colours.reformat(frame, format="rgb24").to_ndarray())
            if step >= stop - 1:
                break
        return [np.stack(frames), *(part[start:stop] for part in numbers)]
