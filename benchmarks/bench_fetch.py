"""Open a file, fetch one small entry, check it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import safetensors
import safetensors.numpy

from benchmarks.data import episode_50_mb
from benchmarks.harness import Goal, Table, compare
from shard_format import ShardReader, ShardWriter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WANTED = "signal/joint_pos"


def run(folder: Path) -> Iterator[Table]:
    arrays = episode_50_mb()
    shard, tensors, npz, hdf5 = (str(folder / f"e.{end}") for end in ("shard", "st", "npz", "h5"))
    with ShardWriter(shard) as writer:
        for name, array in arrays.items():
            writer.write_entry(name, array)
    safetensors.numpy.save_file(arrays, tensors)
    by_key: dict[str, Any] = {name.replace("/", "."): array for name, array in arrays.items()}
    np.savez(npz, **by_key)
    with h5py.File(hdf5, "w") as file:
        for name, array in arrays.items():
            file[name] = array

    def ours() -> bytes:
        with ShardReader(shard) as reader:
            return reader.read_entry(WANTED)

    def with_safetensors() -> object:
        with safetensors.safe_open(tensors, "np") as file:
            return file.get_tensor(WANTED)

    def with_npz() -> object:
        with np.load(npz) as file:
            return file[WANTED.replace("/", ".")]

    def with_h5py() -> object:
        with h5py.File(hdf5) as file:
            return file[WANTED][...]

    expected = arrays[WANTED].tobytes()
    assert ours() == expected
    assert np.asarray(with_safetensors()).tobytes() == expected
    medians = compare(
        {
            "shard (CRC checked)": ours,
            "safetensors (no checksum)": with_safetensors,
            "npz": with_npz,
            "h5py": with_h5py,
        },
        rounds=200,
        calls=20,
    )
    yield Table(
        "Open a 50 MB file, fetch one 28 KB entry",
        "Each call opens the file, reads the entry and closes the file.",
        medians,
        [
            Goal("shard (CRC checked)", "safetensors (no checksum)", 1.5),
            Goal("shard (CRC checked)", "npz", 1 / 5),
            Goal("shard (CRC checked)", "h5py", 1 / 10),
        ],
    )
