"""Record a Gymnasium environment: `python examples/record_cartpole.py [FOLDER] [--episodes N]`.

Every episode becomes one file, from the observation of the reset to the one after the last action. Needs the extra `gym`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gymnasium
import numpy as np

from wshard import load_wshard
from wshard.gym import RecordEpisodes


def balance(observation: np.ndarray[tuple[int], np.dtype[np.float32]]) -> int:
    """Push the cart in the direction in which the pole falls."""
    angle, speed = observation[2], observation[3]
    return int(angle + 0.3 * speed > 0)


def record(folder: Path, episodes: int) -> None:
    env = RecordEpisodes(
        gymnasium.make("CartPole-v1", max_episode_steps=200),
        folder,
        name="cartpole-{episode:06d}",
        compression="zstd",
        metadata={"policy": "balance"},
    )
    random = np.random.default_rng(0)
    with env:
        for seed in range(episodes):
            observation, _ = env.reset(seed=seed)
            over = False
            while not over:
                # Sometimes a random action, so that episodes differ.
                action = balance(observation) if random.random() > 0.6 else int(random.integers(2))
                observation, _, terminated, truncated, _ = env.step(np.int64(action))
                over = terminated or truncated


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("cartpole"))
    parser.add_argument("--episodes", type=int, default=10)
    arguments = parser.parse_args()
    record(arguments.folder, arguments.episodes)
    for path in sorted(arguments.folder.glob("*.wshard")):
        with load_wshard(path) as ep:
            assert ep.rewards is not None
            print(
                f"{path.name}: {ep.length} actions, {len(ep.observations['observation'])} observations, "
                f"return {ep.rewards.data.sum():.0f}, seed {ep.metadata['seed']}, {ep.metadata['ended']}"
            )


if __name__ == "__main__":
    main()
