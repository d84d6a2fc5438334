"""A robot at 1 kHz with three cameras: `python examples/control_loop.py [FILE] [--seconds S]`.

The loop gives every step to the recorder, which compresses and writes in a background thread. Each camera has its own
rate and its own clock. At the end the example prints how long the loop waited for the recorder, and what was dropped.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from wshard import ChannelDef, Timebase, WShardStreamWriter, load_wshard
from wshard.streaming import StreamOptions

RATE_HZ = 1000
CAMERAS = {"camera/left": 30, "camera/right": 30, "camera/wrist": 60}


def channels() -> list[ChannelDef]:
    return [
        ChannelDef("joint_pos", "f32", (7,), unit="rad", modality="proprioception"),
        ChannelDef("torque", "f32", (7,), unit="N·m", lane="action"),
        *(
            ChannelDef(name, "u8", (84, 84, 3), "zstd:1", modality="rgb", rate=rate, own_clock=True)
            for name, rate in CAMERAS.items()
        ),
    ]


def scene() -> np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]:
    """A picture wider than the view of a camera, so that the camera can pan."""
    rows, columns = np.mgrid[0:84, 0:252]
    picture = np.stack([rows * 2, columns, (rows + columns) // 2], axis=2)
    return picture.astype(np.uint8)


def run(writer: WShardStreamWriter, seconds: float) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Run the control loop; return how many nanoseconds each step spent on recording."""
    view = scene()
    position, target = np.zeros(7, np.float32), np.linspace(-1, 1, 7, dtype=np.float32)
    steps = round(seconds * RATE_HZ)
    spent = np.zeros(steps, np.int64)
    start = time.monotonic_ns()
    next_frame = dict.fromkeys(CAMERAS, start)
    for step in range(steps):
        due = start + step * 10**9 // RATE_HZ
        while (now := time.monotonic_ns()) < due:
            time.sleep(max(0, (due - now) / 1e9 - 1e-4))
        torque = (target - position) * np.float32(0.5)
        position = position + torque * np.float32(0.01)
        before = time.perf_counter_ns()
        writer.write_timestep({"joint_pos": position, "torque": torque}, timestamp_ns=now)
        for name, rate in CAMERAS.items():
            if now >= next_frame[name]:
                pan = step % 168
                writer.write(name, view[:, pan : pan + 84], now)
                next_frame[name] += 10**9 // rate
        spent[step] = time.perf_counter_ns() - before
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=Path("control_loop.wshard"))
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    writer = WShardStreamWriter(
        arguments.file,
        "control_loop",
        channels(),
        options=StreamOptions(overflow="drop"),
        overwrite=True,
    )
    with writer:
        writer.begin_episode("SevenJoints-v0", Timebase(tick_hz=RATE_HZ))
        started = time.monotonic()
        spent = run(writer, arguments.seconds)
        rate = len(spent) / (time.monotonic() - started)
    p50, p99, worst = np.percentile(spent / 1e3, [50, 99, 100])
    print(f"{len(spent)} steps at {rate:.0f} Hz")
    print(
        f"recording took {p50:.0f} µs of a step (median), {p99:.0f} µs (99 %), {worst:.0f} µs (worst)"
    )
    print(f"dropped: {writer.dropped or 'nothing'}")
    with load_wshard(arguments.file) as ep:
        print(ep, "of", arguments.file.stat().st_size, "bytes")
        aligned = ep.align(to="camera/wrist", method="previous", channels=["joint_pos"])
        away = int(np.abs(aligned["joint_pos"].residual_ns).max()) / 1e6
        print(f"every wrist frame has a joint position that is at most {away:.2f} ms older")


if __name__ == "__main__":
    main()
