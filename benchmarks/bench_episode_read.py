"""Reading episodes: one channel of a large file, and whole episodes stored in three ways."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import cramjam
import h5py
import hdf5plugin
import numpy as np
import safetensors
import safetensors.numpy
import zarr
import zstandard

from benchmarks.data import episode_21_mb, episode_50_mb
from benchmarks.episodes import as_episode, write_zarr
from benchmarks.harness import Goal, Table, compare
from shard_format import ShardReader
from wshard import load_wshard, save_wshard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from benchmarks.data import Arrays

WANTED = "signal/joint_pos"
CAMERA = "signal/rgb"
HDF5_STEPS = 16


def run(folder: Path) -> Iterator[Table]:
    yield one_channel(folder)
    arrays = episode_21_mb()
    yield uncompressed(folder, arrays)
    yield with_zstd(folder, arrays)
    yield with_lz4(folder, arrays)


def one_channel(folder: Path) -> Table:
    arrays = episode_50_mb()
    ours, tensors, npz, hdf5 = (str(folder / f"e.{end}") for end in ("wshard", "st", "npz", "h5"))
    save_wshard(as_episode(arrays), ours)
    safetensors.numpy.save_file(arrays, tensors)
    by_key: dict[str, Any] = {name.replace("/", "."): array for name, array in arrays.items()}
    np.savez(npz, **by_key)
    with h5py.File(hdf5, "w") as file:
        for name, array in arrays.items():
            file[name] = array

    def with_wshard() -> object:
        with load_wshard(ours) as episode:
            return episode.observations["joint_pos"].data

    def with_safetensors() -> object:
        with safetensors.safe_open(tensors, "np") as file:
            return file.get_tensor(WANTED)

    def with_npz() -> object:
        with np.load(npz) as file:
            return file[WANTED.replace("/", ".")]

    def with_h5py() -> object:
        with h5py.File(hdf5) as file:
            return file[WANTED][...]

    contenders: dict[str, Callable[[], object]] = {
        "load_wshard (CRC checked)": with_wshard,
        "safetensors (no checksum)": with_safetensors,
        "npz": with_npz,
        "h5py": with_h5py,
    }
    for work in contenders.values():
        assert np.array_equal(np.asarray(work()), arrays[WANTED])
    return Table(
        "Open an episode of 50 MB, fetch one channel of 28 KB",
        "Each call opens the file, reads the descriptions and the channel, and closes the file. The reference "
        "implementation, measured elsewhere, takes 4.5 to 7 times as long as safetensors.",
        compare(contenders, rounds=200, calls=20),
        [
            Goal("load_wshard (CRC checked)", "safetensors (no checksum)", 2.5),
            Goal("load_wshard (CRC checked)", "h5py", 1 / 6),
        ],
    )


def uncompressed(folder: Path, arrays: Arrays) -> Table:
    ours, tensors, hdf5 = (str(folder / f"none.{end}") for end in ("wshard", "st", "h5"))
    save_wshard(as_episode(arrays), ours)
    safetensors.numpy.save_file(arrays, tensors)
    with h5py.File(hdf5, "w") as file:
        for name, array in arrays.items():
            file[name] = array
    expected = touched(arrays.values())

    def with_h5py() -> int:
        with h5py.File(hdf5) as file:
            return touched([file[name][...] for name in arrays])

    contenders: dict[str, Callable[[], int]] = {
        "wshard (CRC checked)": lambda: touched(read_episode(ours)),
        "safetensors (no checksum)": lambda: touched(safetensors.numpy.load_file(tensors).values()),
        "h5py (no checksum)": with_h5py,
    }
    for work in contenders.values():
        assert work() == expected
    return Table(
        "Read an episode of 21 MB, uncompressed, every byte touched",
        "Each call opens the file, reads all arrays, sums all bytes and closes the file.",
        compare(contenders, rounds=60),
        [Goal("wshard (CRC checked)", "safetensors (no checksum)", 1.0)],
    )


def with_zstd(folder: Path, arrays: Arrays) -> Table:
    ours, hdf5, zipped = (str(folder / f"zstd.{end}") for end in ("wshard", "h5", "zip"))
    save_wshard(as_episode(arrays), ours, "zstd")
    with h5py.File(hdf5, "w") as file:
        for name, array in arrays.items():
            chunks = (min(HDF5_STEPS, len(array)), *array.shape[1:])
            file.create_dataset(name, data=array, chunks=chunks, **hdf5plugin.Zstd(clevel=3))
    write_zarr(zipped, arrays, level=3)
    expected = touched(arrays.values())
    frames = stored_frames(ours)

    def read_hdf5() -> list[np.ndarray]:
        with h5py.File(hdf5) as file:
            return [file[name][...] for name in arrays]

    def read_zarr() -> list[np.ndarray]:
        with zarr.storage.ZipStore(zipped, mode="r") as store:
            group = zarr.open_group(store, mode="r")
            return [np.asarray(group[name][...]) for name in arrays]

    contenders: dict[str, Callable[[], Sequence[np.ndarray]]] = {
        "wshard, 2 threads (CRC checked)": lambda: read_episode(ours, threads=2),
        "bare zstandard, 2 threads": lambda: [decode_on_two_threads(frames)],
        "wshard, 1 thread (CRC checked)": lambda: read_episode(ours, threads=1),
        "zarr in a zip": read_zarr,
        "h5py-zstd, chunks of 16 steps": read_hdf5,
    }
    for name, work in contenders.items():
        if not name.startswith("bare"):
            assert touched(work()) == expected
    assert np.array_equal(decode_on_two_threads(frames), arrays[CAMERA].reshape(-1))
    return Table(
        "Read an episode of 21 MB, zstd level 3",
        "Each call opens the file, reads into new arrays and closes the file. The bare library decodes only the camera, "
        "from the same frames in memory.",
        compare(contenders, rounds=40),
        [
            Goal("wshard, 2 threads (CRC checked)", "bare zstandard, 2 threads", 1.1),
            Goal("wshard, 2 threads (CRC checked)", "zarr in a zip", 1.0),
        ],
    )


def with_lz4(folder: Path, arrays: Arrays) -> Table:
    ours = str(folder / "lz4.wshard")
    save_wshard(as_episode(arrays), ours, "lz4")
    expected = touched(arrays.values())
    with ShardReader(ours) as reader:
        stored = b"".join(reader.iter_stored(CAMERA))
        infos = [reader.info(name) for name in reader.names() if not name.startswith("meta/")]
        assert reader.info(CAMERA).codec.label == "lz4"

    def decoded(block: bytes | memoryview, size: int) -> np.ndarray:
        out = np.empty(size, np.uint8)
        cramjam.lz4.decompress_block_into(block, out.data, output_len=size)
        return out

    def from_file() -> list[np.ndarray]:
        with open(ours, "rb") as file:
            whole = memoryview(file.read())
        found = []
        for info in infos:
            block = whole[info.data_offset : info.data_offset + info.disk_size]
            raw = info.codec.label == "none"
            found.append(np.frombuffer(block, np.uint8) if raw else decoded(block, info.size))
        return found

    assert touched(from_file()) == touched(read_episode(ours)) == expected
    contenders: dict[str, Callable[[], object]] = {
        "wshard (CRC checked)": lambda: read_episode(ours),
        "read() and bare lz4": from_file,
        "bare lz4, the camera only, from memory": lambda: decoded(stored, arrays[CAMERA].nbytes),
    }
    return Table(
        "Read an episode of 21 MB, lz4",
        "Reads into new arrays. The bare library is given the place of each block, and checks nothing.",
        compare(contenders, rounds=60),
        [Goal("wshard (CRC checked)", "read() and bare lz4", 1.1)],
    )


def read_episode(path: str, threads: int | None = None) -> list[np.ndarray]:
    """All arrays of an episode."""
    with load_wshard(path, threads=threads) as episode:
        episode.load(threads=threads)
        return [*(channel.data for _, channel in episode.blocks()), episode.ticks]


def touched(arrays: Any) -> int:  # noqa: ANN401 - any collection of arrays
    """A checksum that touches every byte of the arrays."""
    total = 0
    for array in arrays:
        flat = array.reshape(-1).view(np.uint8)
        whole = len(flat) // 8 * 8
        total += int(np.bitwise_xor.reduce(flat[:whole].view(np.uint64))) + int(flat[whole:].sum())
    return total


def stored_frames(path: str) -> list[tuple[bytes, int]]:
    """The zstd frames of the camera and the sizes of their contents."""
    with ShardReader(path) as reader:
        table = reader.seek_table(CAMERA)
        assert table is not None
        stored = b"".join(reader.iter_stored(CAMERA))
    at, sizes = table.stored_starts.tolist(), np.diff(table.content_starts).tolist()
    return [(stored[at[k] : at[k + 1]], sizes[k]) for k in range(len(table))]


def decode_on_two_threads(frames: Sequence[tuple[bytes, int]]) -> np.ndarray:
    sizes = [size for _, size in frames]
    starts = [0, *np.cumsum(sizes).tolist()]
    out = np.empty(starts[-1], np.uint8)

    def decode(numbers: range) -> None:
        decompressor = zstandard.ZstdDecompressor()
        for number in numbers:
            reader = decompressor.stream_reader(frames[number][0])
            reader.readinto(out.data[starts[number] : starts[number + 1]])

    half = len(frames) // 2
    helper = threading.Thread(target=decode, args=(range(half),))
    helper.start()
    decode(range(half, len(frames)))
    helper.join()
    return out
