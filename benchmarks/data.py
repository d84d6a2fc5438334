"""Data to measure with: an episode as a robot records it, and files with many entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shard_format import ShardWriter

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

Arrays = dict[str, "NDArray[Any]"]

# Of `camera`: plain zstd makes 1.19 of it, and temporal differences 2.1.
NOISE = 2.0
CONTRAST = 80


def episode(steps: int, height: int, width: int) -> Arrays:
    """A camera with moving shapes and sensor noise, joint positions, actions and rewards."""
    random = np.random.default_rng(7)
    time = np.arange(steps)[:, None]
    joints = np.cumsum(random.normal(0, 0.01, (steps, 7)), axis=0).astype(np.float32)
    rows, columns = np.mgrid[0:height, 0:width]
    frames = np.empty((steps, height, width, 3), np.uint8)
    for step in range(steps):
        scene = 96 + 60 * np.sin((rows + step) / 9.0) + 40 * np.cos((columns - 2 * step) / 13.0)
        noise = random.integers(-1, 2, (height, width, 1))
        frames[step] = np.clip(scene[..., None] + noise, 0, 255)
    return {
        "signal/rgb": frames,
        "signal/joint_pos": joints,
        "action/ctrl": np.tanh(joints + 0.1 * np.sin(time)).astype(np.float32),
        "reward": random.normal(size=steps).astype(np.float32),
        "done": (time[:, 0] == steps - 1).astype(np.uint8),
        "time/ticks": np.arange(steps, dtype=np.int32),
    }


def episode_50_mb() -> Arrays:
    """1000 steps: 49 MB of camera and 28 KB of joint positions."""
    return episode(1000, 128, 128)


def episode_21_mb() -> Arrays:
    """1700 steps of a 64 × 64 camera: 21 MB."""
    return episode(1700, 64, 64)


def write_many(path: Path, count: int) -> None:
    """A file of many small entries."""
    with ShardWriter(path, alignment=16, fsync=False) as writer:
        for number in range(count):
            writer.write_entry(f"sample/{number:07d}/label", b"0123456789")


def camera(seed: int, steps: int, size: int) -> NDArray[np.uint8]:
    """Camera frames: a smooth background that moves slowly, with independent noise in each colour."""
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:size, 0:size]
    frames = np.empty((steps, size, size, 3), np.uint8)
    for step in range(steps):
        waves = 0.6 * np.sin((rows + 0.1 * step + 7 * seed) / 9)
        waves += 0.5 * np.cos((columns - 0.14 * step) / 13)
        scene = [120, 130, 110] + CONTRAST * waves[..., None] * [1, 0.8, -0.6]
        frames[step] = np.clip(np.rint(scene + random.normal(0, NOISE, scene.shape)), 0, 255)
    return frames
