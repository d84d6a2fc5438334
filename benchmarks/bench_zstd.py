"""zstd: reading compared with the bare library, on one thread and on two."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import zstandard

from benchmarks.data import episode_21_mb
from benchmarks.harness import Goal, Table, compare
from shard_format import ShardReader, ShardWriter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

FRAME_STEPS = 16
CHUNK_STEPS = 25
SEEKABLE = "signal/rgb"


def run(folder: Path) -> Iterator[Table]:
    camera = episode_21_mb()[SEEKABLE]
    yield from many_entries(folder, np.array_split(camera, len(camera) // CHUNK_STEPS))
    yield from one_seekable_entry(folder, camera)
    yield from ranges(folder, camera)


def many_entries(folder: Path, chunks: Sequence[np.ndarray]) -> Iterator[Table]:
    path = folder / "many.shard"
    with ShardWriter(path, compression="zstd") as writer:
        for number, chunk in enumerate(chunks):
            writer.write_entry(f"chunk/{number:03d}", chunk)
    compressor = zstandard.ZstdCompressor(level=3)
    frames = [compressor.compress(chunk.tobytes()) for chunk in chunks]
    one, two = ShardReader(path, threads=1), ShardReader(path, threads=2)
    names = one.names()
    assert all(info.codec.label == "zstd" for info in one.infos())
    assert one.read_many(names) == two.read_many(names) == [c.tobytes() for c in chunks]
    decompressor = zstandard.ZstdDecompressor()

    def bare() -> list[bytes]:
        return [decompressor.decompress(frame) for frame in frames]

    title = f"Read {len(chunks)} zstd entries, 21 MB in all"
    note = "Reads from the file and checks the checksums. The bare library decodes frames that are already in memory."
    medians = compare(
        {"bare zstandard": bare, "read_many": lambda: one.read_many(names)}, rounds=100
    )
    yield Table(f"{title}, one thread", note, medians, [Goal("read_many", "bare zstandard", 1.1)])
    medians = compare(
        {
            "read_many, 1 thread": lambda: one.read_many(names),
            "read_many, 2 threads": lambda: two.read_many(names),
        },
        rounds=60,
    )
    yield Table(
        f"{title}, two threads",
        note,
        medians,
        [Goal("read_many, 2 threads", "read_many, 1 thread", 1 / 1.6)],
    )


def one_seekable_entry(folder: Path, camera: np.ndarray) -> Iterator[Table]:
    path = folder / "seekable.shard"
    row = camera[0].nbytes
    with ShardWriter(path) as writer:
        writer.write_entry(SEEKABLE, camera, compression="zstd", frame_bytes=row * FRAME_STEPS)
    one, two = ShardReader(path, threads=1), ShardReader(path, threads=2)
    table = one.seek_table(SEEKABLE)
    assert table is not None
    info = one.info(SEEKABLE)
    with open(path, "rb") as file:
        file.seek(info.data_offset)
        stored = file.read(info.disk_size)
    frames = [
        stored[int(table.stored_starts[k]) : int(table.stored_starts[k + 1])]
        for k in range(len(table))
    ]
    out = np.empty_like(camera)
    flat = out.reshape(-1).data
    decompressor = zstandard.ZstdDecompressor()
    starts = table.content_starts.tolist()

    def bare_into(numbers: range) -> None:
        local = decompressor if len(numbers) == len(frames) else zstandard.ZstdDecompressor()
        for number in numbers:
            reader = local.stream_reader(frames[number])
            reader.readinto(flat[starts[number] : starts[number + 1]])

    def bare_two_threads() -> None:
        half = len(frames) // 2
        helper = threading.Thread(target=bare_into, args=(range(half),))
        helper.start()
        bare_into(range(half, len(frames)))
        helper.join()

    assert one.read_entry(SEEKABLE) == two.read_entry(SEEKABLE) == camera.tobytes()
    note = (
        "Reads from the file and checks the frame checksums and the CRC. The bare library decodes the same frames "
        "from memory."
    )
    title = f"Read one seekable zstd entry of 21 MB ({len(frames)} frames)"
    medians = compare(
        {
            "bare zstandard into an array": lambda: bare_into(range(len(frames))),
            "read_into": lambda: one.read_into(SEEKABLE, out),
        },
        rounds=80,
    )
    yield Table(
        f"{title}, one thread",
        note,
        medians,
        [Goal("read_into", "bare zstandard into an array", 1.1)],
    )
    medians = compare(
        {
            "read_into, 1 thread": lambda: one.read_into(SEEKABLE, out),
            "read_into, 2 threads": lambda: two.read_into(SEEKABLE, out),
            "bare zstandard into an array, 2 threads": bare_two_threads,
            "read_entry, 1 thread": lambda: one.read_entry(SEEKABLE),
            "read_entry, 2 threads": lambda: two.read_entry(SEEKABLE),
        },
        rounds=60,
    )
    yield Table(
        f"{title}, two threads",
        f"{note} `read_entry` also needs 21 MB of new memory, which two threads get from the system hardly faster than "
        "one.",
        medians,
        [
            Goal("read_into, 2 threads", "read_into, 1 thread", 1 / 1.6),
            Goal("read_into, 2 threads", "bare zstandard into an array, 2 threads", 1.1),
        ],
    )


def ranges(folder: Path, camera: np.ndarray) -> Iterator[Table]:
    plain = folder / "plain.shard"
    with ShardWriter(plain) as writer:
        writer.write_entry(SEEKABLE, camera, compression="zstd")
    row = camera[0].nbytes
    start, stop = 700 * row, 764 * row
    seekable, whole = ShardReader(folder / "seekable.shard"), ShardReader(plain)
    assert seekable.read_range(SEEKABLE, start, stop) == camera[700:764].tobytes()
    medians = compare(
        {
            "read_range, seekable": lambda: seekable.read_range(SEEKABLE, start, stop),
            "read_range, one frame": lambda: whole.read_range(SEEKABLE, start, stop),
        },
        rounds=60,
    )
    yield Table(
        "Read 64 of 1700 camera frames from a zstd entry",
        "In a seekable entry the reader decodes five frames; in an ordinary one, the whole entry.",
        medians,
        [Goal("read_range, seekable", "read_range, one frame", 1 / 10)],
    )
