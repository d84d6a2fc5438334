"""Kill a recorder and recover the recording: `python examples/crash_recovery.py [FOLDER]`.

Another process records a Gymnasium environment and prints how many steps it has flushed. The example kills it, runs
`wshard recover`, and compares the result with the same seed played again. Needs the extra `gym`.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from wshard import ChannelDef, WShardStreamWriter, load_wshard

if TYPE_CHECKING:
    from collections.abc import Iterator

Vector = np.ndarray[Any, np.dtype[np.float32]]
SEED, FLUSH_EVERY, KILL_AFTER = 7, 100, 1000


def play() -> Iterator[tuple[Vector, Vector, float]]:
    """Every step of the pendulum: state, torque, reward. The same each time."""
    env = gymnasium.make("Pendulum-v1", max_episode_steps=10**9)
    random = np.random.default_rng(SEED)
    seen, _ = env.reset(seed=SEED)
    while True:
        torque = random.uniform(-2, 2, 1).astype(np.float32)
        after, reward, *_ = env.step(torque)
        yield seen, torque, float(reward)
        seen = after


def record(path: Path) -> None:
    """Record until the process is killed; print after each flush how many steps are safe."""
    channels = [ChannelDef("state", "f32", (3,)), ChannelDef("torque", "f32", (1,), lane="action")]
    with WShardStreamWriter(path, "pendulum", channels, compression="zstd:1") as writer:
        writer.begin_episode("Pendulum-v1", metadata={"seed": SEED})
        for number, (seen, torque, reward) in enumerate(play(), start=1):
            writer.write_timestep({"state": seen, "torque": torque}, reward=reward)
            if number % FLUSH_EVERY == 0:
                writer.flush()
                print(number, flush=True)


def kill_in_the_middle(path: Path) -> int:
    """Start a recorder and kill it; return how many steps it reported as flushed."""
    command, flushed = [sys.executable, __file__, "--record", str(path)], 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as recorder:
        print("flushed:", end="", flush=True)
        # To the end: the recorder may have printed more before it was killed.
        for line in recorder.stdout or ():
            flushed = int(line)
            print(f" {flushed}", end="", flush=True)
            if flushed == KILL_AFTER:
                recorder.kill()
    print(f"\nkilled (exit code {recorder.returncode}): at most {FLUSH_EVERY} steps are lost")
    return flushed


def compare(path: Path, flushed: int) -> None:
    print("\n== Compare the recovered steps with the same seed played again")
    with load_wshard(path) as ep:
        assert ep.rewards is not None
        assert ep.length >= flushed, "a step that was flushed is missing"
        states, torques, rewards = zip(*itertools.islice(play(), ep.length), strict=True)
        assert ep.observations["state"].data.tobytes() == np.stack(states).tobytes()
        assert ep.actions["torque"].data.tobytes() == np.stack(torques).tobytes()
        assert ep.rewards.data.tobytes() == np.array(rewards).tobytes()
        print(f"steps reported as flushed: {flushed:>6,}")
        print(f"steps recovered:           {ep.length:>6,}")
    print("every state, torque and reward is the same, bit for bit")


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "demo-out")
    folder.mkdir(parents=True, exist_ok=True)
    path, partial = folder / "pendulum.wshard", folder / "pendulum.wshard.partial"
    for old in (path, partial):
        old.unlink(missing_ok=True)
    print("\n== Record Pendulum-v1 in another process, and kill it (kill -9)")
    flushed = kill_in_the_middle(path)
    print(f"{path} does not exist; its journal does: {partial}, {partial.stat().st_size:,} bytes")
    print("\n== Recover it")
    print(f"$ wshard recover {partial}", flush=True)
    command = [sys.executable, "-m", "shard_cli.wshard", "recover", str(partial)]
    subprocess.run(command, check=False)
    compare(path, flushed)


if __name__ == "__main__":
    record(Path(sys.argv[2])) if sys.argv[1:2] == ["--record"] else main()
