"""The container, step by step: `python examples/container.py [FOLDER]`.

Write some entries, list them, read them in every way, damage one, and kill a writer.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np

from shard_format import (
    FileReference,
    Manifest,
    ShardError,
    ShardReader,
    ShardWriter,
    WriterOptions,
    compute_identity,
    verify_identity,
)

STEPS, HEIGHT, WIDTH = 600, 64, 64


def title(text: str) -> None:
    print(f"\n== {text}", flush=True)


def shard(*arguments: object) -> None:
    """Run the command line as you would."""
    words = [str(argument) for argument in arguments]
    print(f"$ shard {' '.join(words)}", flush=True)
    result = subprocess.run([sys.executable, "-m", "shard_cli", *words], check=False)
    if result.returncode:
        print(f"(exit code {result.returncode})", flush=True)


def record_episode() -> dict[str, np.ndarray]:
    """A camera that sees a moving ball, and an arm that follows it."""
    random = np.random.default_rng(0)
    step = np.arange(STEPS)
    ball = np.stack([32 + 20 * np.sin(step / 25), 32 + 20 * np.cos(step / 40)], axis=1)
    rows, columns = np.mgrid[0:HEIGHT, 0:WIDTH]
    frames = np.empty((STEPS, HEIGHT, WIDTH, 3), np.uint8)
    for t, (y, x) in enumerate(ball):
        near = (rows - y) ** 2 + (columns - x) ** 2 < 40
        frames[t] = np.where(near[..., None], (230, 80, 40), (40, 60, 90))
        frames[t] += random.integers(0, 2, (HEIGHT, WIDTH, 1), dtype=np.uint8)
    joints = np.cumsum(random.normal(0, 0.01, (STEPS, 7)), axis=0).astype(np.float32)
    return {"signal/rgb": frames, "signal/joint_pos": joints, "reward": joints[:, 0].copy()}


def write(path: Path, episode: dict[str, np.ndarray]) -> None:
    title("Write: 7 MB of camera frames in seekable zstd, joints raw and aligned for mmap")
    frame_bytes = 16 * episode["signal/rgb"][0].nbytes
    start = time.perf_counter()
    with ShardWriter(
        path, alignment=64, identity=True, options=WriterOptions(schema={"producer": "demo"})
    ) as writer:
        for name, array in episode.items():
            if name == "signal/rgb":
                writer.write_entry(
                    name, array, compression="zstd", frame_bytes=frame_bytes, tags=["camera"]
                )
            else:
                writer.write_entry(name, array, content_type="tensor_v1")
    raw = sum(array.nbytes for array in episode.values())
    milliseconds = (time.perf_counter() - start) * 1e3
    print(f"{raw:,} bytes became {path.stat().st_size:,} in {milliseconds:.0f} ms: {path}")


def read(path: Path, episode: dict[str, np.ndarray]) -> None:
    title("Read: a view without a copy, a range without decoding the rest, all entries in parallel")
    start = time.perf_counter()
    with ShardReader(path) as reader:
        joints = np.frombuffer(reader.view("signal/joint_pos"), np.float32).reshape(STEPS, 7)
        opened = (time.perf_counter() - start) * 1e6
        assert np.array_equal(joints, episode["signal/joint_pos"])
        print(f"opened and viewed joint positions {joints.shape} in {opened:.0f} µs")

        row = episode["signal/rgb"][0].nbytes
        start = time.perf_counter()
        window = reader.read_range("signal/rgb", 300 * row, 364 * row)
        ranged = (time.perf_counter() - start) * 1e3
        assert window == episode["signal/rgb"][300:364].tobytes()
        print(f"64 of {STEPS} camera frames in {ranged:.2f} ms, each zstd frame checked")

        names = reader.names()
        everything = reader.read_many(names)
        print(f"read_many: {len(names)} entries, {sum(map(len, everything)):,} bytes, all checked")


def damage(path: Path) -> None:
    title("Damage one bit: reading that entry is an error")
    damaged = path.with_name("damaged.shard")
    data = bytearray(path.read_bytes())
    with ShardReader(path) as reader:
        data[reader.info("signal/joint_pos").data_offset + 1000] ^= 1
    damaged.write_bytes(data)
    with ShardReader(damaged) as reader:
        try:
            reader.read_entry("signal/joint_pos")
        except ShardError as error:
            print(f"{type(error).__name__} ({error.code}): {error}")
        print(f"the camera is still readable: {len(reader.read_entry('signal/rgb')):,} bytes")
    shard("verify", damaged)


def identity(path: Path) -> None:
    title("Identity: the same content has the same hash, however it is compressed")
    repacked = path.with_name("repacked.shard")
    shard("repack", path, repacked, "--compression", "lz4", "--force")
    first, second = compute_identity(path), compute_identity(repacked)
    print(f"zstd {first}\nlz4  {second}")
    assert first.digest == second.digest
    verify_identity(repacked, first)

    Manifest(
        [
            FileReference.to_file(path, relative_to=path.parent, start_key="0", end_key="599"),
            FileReference.to_file(repacked, relative_to=path.parent),
        ],
        {"dataset": "demo"},
    ).write(path.with_name("manifest.shard"))
    shard("verify", path.with_name("manifest.shard"))


def kill(path: Path) -> None:
    title("Kill a writer half-way (kill -9): the old file stays unchanged")
    before = compute_identity(path).digest
    script = textwrap.dedent(
        """
        import sys
        from shard_format import ShardWriter
        with ShardWriter(sys.argv[1], reserve=100) as writer:
            for number in range(100):
                writer.write_entry(f"entry/{number}", bytes(1_000_000))
                print(number, flush=True)
        """
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    for line in writer.stdout:
        if int(line) == 40:
            os.kill(writer.pid, signal.SIGKILL)
            break
    writer.communicate()
    print(f"the writer was killed (exit code {writer.returncode}) after 40 MB")
    assert compute_identity(path).digest == before
    print(f"{path} still has the identity {before[:16]}…")
    for left in path.parent.glob(".*.partial"):
        print(f"the killed writer left a temporary file: {left.name}")
        left.unlink()


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "demo-out")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "episode.shard"
    episode = record_episode()
    write(path, episode)
    shard("info", path)
    shard("ls", path)
    read(path, episode)
    damage(path)
    identity(path)
    kill(path)
    title("Look at the files")
    print(f"they are in {folder}; try: shard ls {path}")


if __name__ == "__main__":
    main()
