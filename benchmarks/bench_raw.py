"""Uncompressed entries: views, checks and writing, compared with the bare calls."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import safetensors.numpy

from benchmarks.data import episode_21_mb
from benchmarks.harness import Goal, Table, compare
from shard_format import ShardReader, ShardWriter
from shard_format.codecs import crc32c

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from benchmarks.data import Arrays

CAMERA = "signal/rgb"


def run(folder: Path) -> Iterator[Table]:
    arrays = episode_21_mb()
    yield from reading(folder, arrays)
    yield from writing(folder, arrays)


def reading(folder: Path, arrays: Arrays) -> Iterator[Table]:
    path = str(folder / "camera.shard")
    with ShardWriter(path) as writer:
        writer.write_entry(CAMERA, arrays[CAMERA])
    in_memory = arrays[CAMERA].tobytes()
    reader = ShardReader(path)

    def view() -> object:
        with ShardReader(path) as fresh:
            return np.frombuffer(fresh.view(CAMERA), np.uint8)

    assert np.shares_memory(
        np.frombuffer(reader.view(CAMERA), np.uint8), np.frombuffer(reader.view(CAMERA), np.uint8)
    )

    def verify_fresh() -> None:
        with ShardReader(path) as fresh:
            fresh.verify()

    medians = compare(
        {
            "bare CRC-32C of the bytes in memory": lambda: crc32c(in_memory),
            "reader.verify()": reader.verify,
            "open + verify() + close": verify_fresh,
            "open + view() + close": view,
            "read_entry()": lambda: reader.read_entry(CAMERA),
        },
        rounds=100,
    )
    yield Table(
        "A raw entry of 21 MB",
        "A view copies nothing. The first one in a process checks the entry; those measured here do not check it again. "
        "Verifying reads every byte through the mapping.",
        medians,
        [
            Goal("reader.verify()", "bare CRC-32C of the bytes in memory", 1 / 0.8),
        ],
    )


def writing(folder: Path, arrays: Arrays) -> Iterator[Table]:
    blob = b"".join(array.tobytes() for array in arrays.values())
    target = str(folder / "w.bin")
    shard = str(folder / "w.shard")
    tensors = str(folder / "w.st")

    def bare(fsync: bool) -> None:
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

    def write(fsync: bool, **layout: object) -> None:
        with ShardWriter(shard, fsync=fsync, **layout) as writer:  # type: ignore[arg-type] # one of two options
            for name, array in arrays.items():
                writer.write_entry(name, array)

    for fsync in (True, False):
        contenders: dict[str, Callable[[], object]] = {
            "bare write()": lambda fsync=fsync: bare(fsync),  # type: ignore[misc] # bound now
            "ShardWriter, names given": lambda fsync=fsync: write(fsync, reserve=list(arrays)),  # type: ignore[misc] # bound now
            "ShardWriter, room reserved": lambda fsync=fsync: write(fsync, reserve=16),  # type: ignore[misc] # bound now
            "ShardWriter, default": lambda fsync=fsync: write(fsync),  # type: ignore[misc] # bound now
        }
        if not fsync:
            contenders["safetensors"] = lambda: safetensors.numpy.save_file(arrays, tensors)
        medians = compare(contenders, rounds=60)
        goals = [
            Goal(name, "bare write()", 1.3)
            for name in contenders
            if fsync or name in {"ShardWriter, names given", "ShardWriter, room reserved"}
            if name.startswith("ShardWriter")
        ]
        policy = "file and folder synced" if fsync else "nothing synced"
        yield Table(
            f"Write 21 MB uncompressed, {policy}",
            "Six arrays. Each call writes a new file and renames it into place. The bare call writes the same bytes in one "
            "piece, without checksums.",
            medians,
            goals,
        )
