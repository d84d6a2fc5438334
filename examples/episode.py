"""An episode from writing to plotting: `python examples/episode.py [FOLDER]`.

Write an episode, add predictions and residuals without rewriting it, inspect, plot and verify it, split it into chunks,
and see what the doctor reports about a bad one.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from wshard import (
    Channel,
    ChunkedEpisodeWriter,
    Episode,
    Timebase,
    add_lane,
    load_wshard,
    save_wshard,
    validate_chunk_continuity,
)
from wshard.types import FileOptions, Residual

STEPS, RATE_HZ, IMU_HZ = 600, 30, 200


def title(text: str) -> None:
    print(f"\n== {text}", flush=True)


def wshard(*arguments: object) -> None:
    """Run the command line as you would."""
    words = [str(argument) for argument in arguments]
    print(f"$ wshard {' '.join(words)}", flush=True)
    program = (
        "import sys; from shard_cli.main import wshard_entry_point; sys.exit(wshard_entry_point())"
    )
    result = subprocess.run([sys.executable, "-c", program, *words], check=False)
    if result.returncode:
        print(f"(exit code {result.returncode})", flush=True)


def record() -> Episode:
    """A camera that sees a moving ball, an arm that follows it, and an IMU with its own clock."""
    random = np.random.default_rng(0)
    seconds = np.arange(STEPS + 1) / RATE_HZ
    ball = np.stack([32 + 20 * np.sin(seconds), 32 + 20 * np.cos(0.7 * seconds)], axis=1)
    rows, columns = np.mgrid[0:64, 0:64]
    frames = np.empty((STEPS + 1, 64, 64, 3), np.uint8)
    for t, (y, x) in enumerate(ball):
        near = (rows - y) ** 2 + (columns - x) ** 2 < 40
        frames[t] = np.where(near[..., None], (230, 80, 40), (40, 60, 90))
    noise = random.normal(0, 3, frames.shape)
    frames = np.clip(frames + noise, 0, 255).astype(np.uint8)
    arm = np.stack([np.sin(seconds * (1 + k / 3)) * (1 - k / 10) for k in range(3)], axis=1)
    arm = (arm + random.normal(0, 0.01, arm.shape)).astype(np.float32)

    ep = Episode("ep_001", env_id="FollowBall-v1", timebase=Timebase(tick_hz=RATE_HZ))
    ep.observations["rgb"] = Channel(data=frames, modality="rgb")
    ep.observations["joint_pos"] = Channel(data=arm, unit="rad", modality="proprioception")
    imu_times = np.arange(STEPS * IMU_HZ // RATE_HZ) * (10**9 // IMU_HZ)
    gyro = np.stack([np.cos(imu_times / 1e9), np.sin(imu_times / 2e9)], axis=1).astype(np.float32)
    ep.observations["imu"] = Channel(data=gyro, unit="rad/s", timestamps_ns=imu_times)
    ep.observations["instruction"] = ["follow the ball"] * (STEPS // 2) + ["hold"] * (STEPS // 2)
    ep.actions["ctrl"] = np.diff(arm, axis=0)
    ep.rewards = -np.abs(np.diff(arm, axis=0)).sum(axis=1)
    ep.terminations = np.zeros(STEPS, bool)
    ep.truncations = np.arange(STEPS) == STEPS - 1
    ep.labels["phase"] = [(0, STEPS // 2, "follow", "operator", 0.9), (STEPS // 2, STEPS, "hold")]
    ep.metadata = {"robot": "three-joint arm", "success": True}
    return ep


def write(ep: Episode, path: Path) -> None:
    title("Write: every lane, with the profile for training")
    raw = sum(channel.nbytes for _, channel in ep.blocks())
    start = time.perf_counter()
    save_wshard(ep, path, profile="training", options=FileOptions(identity=True))
    milliseconds = (time.perf_counter() - start) * 1e3
    print(f"{raw:,} bytes became {path.stat().st_size:,} in {milliseconds:.0f} ms: {path}")


def read(ep: Episode, path: Path) -> None:
    title("Read: descriptions at once, 64 steps of the camera without decoding the rest")
    start = time.perf_counter()
    loaded = load_wshard(path)
    opened = time.perf_counter()
    window = loaded.observations["rgb"][300:364]
    read_window = time.perf_counter()
    print(f"{loaded} in {(opened - start) * 1e6:.0f} µs")
    print(f"window {window.shape} in {(read_window - opened) * 1e3:.2f} ms")
    assert np.array_equal(window, ep.observations["rgb"].data[300:364])
    print(loaded.align(to="imu", method="linear", channels=["joint_pos", "imu", "instruction"]))


def predict(path: Path) -> None:
    title("Predict: add the lanes of a model beside the recording, which stays unchanged")
    before = path.stat().st_mtime_ns
    random = np.random.default_rng(1)
    with load_wshard(path) as ep:
        truth = ep.observations["joint_pos"].data
        smooth = np.apply_along_axis(np.convolve, 0, truth, np.ones(15) / 15, "same")
        predicted = (smooth + random.normal(0, 0.02, truth.shape)).astype(np.float32)
        steps = slice(0, ep.length)
        add_lane(
            path,
            {
                "omen/joint_pos/smoother": predicted,
                "uncert/joint_pos/smoother/std": np.full_like(truth, 0.08),
                "residual/joint_pos/sign2nddiff": Residual.of_signal("joint_pos", truth[steps]),
                "residual/joint_pos/smoother/sign2nddiff": Residual.of_error(
                    "joint_pos", truth[steps], predicted[steps], "smoother"
                ),
            },
            name="smoother",
        )
    assert path.stat().st_mtime_ns == before
    with load_wshard(path) as ep:
        error = ep.omens["joint_pos"]["smoother"].data - ep.observations["joint_pos"].data
        print(f"mean error of the prediction: {np.abs(error).mean():.4f} rad")


def chunks(path: Path) -> None:
    title("Chunks: the same episode in three files and a manifest")
    with load_wshard(path) as ep:
        writer = ChunkedEpisodeWriter(path.parent / "chunks", ep.id, chunk_size_t=250)
        writer.write_episode(ep)
    validate_chunk_continuity(writer.finalize_manifest())
    manifest = path.parent / "chunks" / "ep_001_manifest.wshard"
    with load_wshard(manifest) as whole:
        window = whole.observations["rgb"][240:304]
        print(f"{whole}; a window across two files: {window.shape}")


def bad_one(ep: Episode, path: Path) -> None:
    title("A bad recording: what the doctor reports")
    sick = ep.clone()
    broken = np.array(sick.observations["joint_pos"].data)
    broken[100:110, 1] = np.nan
    broken[:, 2] = 0
    sick.observations["joint_pos"].data = broken
    times = sick.times_ns().copy()
    times[300] = times[299] - 5_000_000
    sick.timestamps_ns = times
    save_wshard(sick, path)
    wshard("doctor", path)


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "demo-out")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "ep_001.wshard"
    for old in (path.parent / "ep_001.wshard.lanes").glob("*.wshard"):
        old.unlink()
    ep = record()
    write(ep, path)
    read(ep, path)
    predict(path)
    wshard("inspect", path)
    wshard("plot", path, "-o", folder / "ep_001.png", "--force")
    wshard("compact", path, "--force")
    wshard("verify", path)
    chunks(path)
    bad_one(ep, folder / "bad.wshard")
    title("Look at the files")
    print(f"look at {folder / 'ep_001.png'}, and try: wshard inspect {path}")


if __name__ == "__main__":
    main()
