"""Writing an episode of 21 MB, raw and with zstd."""

from __future__ import annotations

import os
import shutil
from functools import partial
from typing import TYPE_CHECKING

import h5py
import hdf5plugin
import numpy as np
import safetensors.numpy
import zstandard

from benchmarks.data import episode_21_mb
from benchmarks.episodes import as_episode, write_zarr
from benchmarks.harness import Goal, Table, compare
from wshard import Episode, edit, load_wshard, save_wshard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from benchmarks.data import Arrays

CAMERA = "signal/rgb"
HDF5_STEPS = 16


def run(folder: Path) -> Iterator[Table]:
    arrays = episode_21_mb()
    for fsync in (True, False):
        yield uncompressed(folder, arrays, fsync)
    yield with_zstd(folder, arrays)
    yield edits(folder)


def edits(folder: Path) -> Table:
    steps = {"2 MB": 40, "500 MB": 10_173}
    for label, length in steps.items():
        camera = np.zeros((length, 128, 128, 3), np.uint8)
        save_wshard(Episode(label, observations={"rgb": camera}), folder / label, fsync=False)
    medians = compare(
        {
            label: partial(edit, folder / label, metadata={"success": True}, fsync=False)
            for label in steps
        },
        rounds=40,
    )
    for label in steps:
        shutil.rmtree(f"{folder / label}.lanes")
        (folder / label).unlink()
    return Table(
        "Edit the metadata of an episode on disk, nothing synced",
        "`wshard.edit` of uncompressed episodes of two sizes: it writes a small sidecar and does not read the blocks.",
        medians,
        [Goal("500 MB", "2 MB", 1.25), Goal("500 MB", None, 10e-3)],
    )


def uncompressed(folder: Path, arrays: Arrays, fsync: bool) -> Table:
    blob = b"".join(array.tobytes() for array in arrays.values())
    target, ours, tensors, hdf5 = (
        str(folder / f"w.{end}") for end in ("bin", "wshard", "st", "h5")
    )

    def bare() -> None:
        temporary = target + ".tmp"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        view = memoryview(blob)
        while len(view):
            view = view[os.write(descriptor, view) :]
        if fsync:
            os.fsync(descriptor)
        os.close(descriptor)
        os.rename(temporary, target)
        if fsync:
            parent = os.open(folder, os.O_RDONLY)
            os.fsync(parent)
            os.close(parent)

    def with_h5py() -> None:
        with h5py.File(hdf5, "w") as file:
            for name, array in arrays.items():
                file[name] = array

    episode = as_episode(arrays)
    contenders: dict[str, Callable[[], object]] = {
        "bare write()": bare,
        "save_wshard": lambda: save_wshard(episode, ours, fsync=fsync),
    }
    if not fsync:
        contenders["safetensors"] = lambda: safetensors.numpy.save_file(arrays, tensors)
        contenders["h5py"] = with_h5py
    for work in contenders.values():
        work()
    check(ours, arrays)
    return Table(
        f"Write an episode of 21 MB, uncompressed, {'file and folder' if fsync else 'nothing'} synced",
        "Each call writes a new file; save_wshard and the bare call rename it into place. The bare call writes the same "
        "bytes in one piece, without checksums.",
        compare(contenders, rounds=40),
        [Goal("save_wshard", "bare write()", 1.3)],
    )


def with_zstd(folder: Path, arrays: Arrays) -> Table:
    ours, hdf5, zipped, target = (
        str(folder / f"z.{end}") for end in ("wshard", "h5", "zip", "bin")
    )
    episode = as_episode(arrays)

    def bare() -> None:
        compressor = zstandard.ZstdCompressor(level=3)
        with open(target, "wb") as file:
            file.writelines(
                compressor.compress(array.reshape(-1).view(np.uint8).data)
                for array in arrays.values()
            )

    def with_h5py() -> None:
        with h5py.File(hdf5, "w") as file:
            for name, array in arrays.items():
                chunks = (min(HDF5_STEPS, len(array)), *array.shape[1:])
                file.create_dataset(name, data=array, chunks=chunks, **hdf5plugin.Zstd(clevel=3))

    contenders: dict[str, Callable[[], object]] = {
        "save_wshard": lambda: save_wshard(episode, ours, "zstd:3", fsync=False),
        "bare zstandard and write(), 1 thread": bare,
        "h5py-zstd, chunks of 16 steps": with_h5py,
        "zarr in a zip": lambda: write_zarr(zipped, arrays, level=3),
    }
    for work in contenders.values():
        work()
    check(ours, arrays)
    medians = compare(contenders, rounds=10)
    best = min(medians["h5py-zstd, chunks of 16 steps"], medians["zarr in a zip"])
    medians["the better of h5py and zarr"] = best
    return Table(
        "Write an episode of 21 MB, zstd level 3, nothing synced",
        "Each call writes a new file.",
        medians,
        [Goal("save_wshard", "the better of h5py and zarr", 1 / 1.3)],
    )


def check(path: str, arrays: Arrays) -> None:
    with load_wshard(path) as episode:
        assert np.array_equal(episode.observations["rgb"].data, arrays[CAMERA])
        assert np.array_equal(episode.actions["ctrl"].data, arrays["action/ctrl"])
