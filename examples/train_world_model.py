"""Train a world model from a replay buffer: `python examples/train_world_model.py [FOLDER] [--updates N]`.

The loop of DreamerV3, small enough for NumPy: act and add to the replay buffer, draw windows, let a linear latent state
imagine each window from its first observation and the actions, learn, and raise the priority of surprising windows.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from wshard import add_lane, load_wshard
from wshard.replay import ReplayBuffer

Array = np.ndarray[Any, np.dtype[Any]]
SENSORS, LATENT, BATCH, LENGTH = 8, 4, 16, 16


def act(replay: ReplayBuffer, random: np.random.Generator, steps: int = 100) -> None:
    """Play one episode: random pushes move a swing that eight noisy sensors observe."""
    sensors = np.random.default_rng(7).normal(size=(2, SENSORS))
    swing = random.normal(size=2)
    seen = (swing @ sensors).astype(np.float32)
    for step in range(steps):
        push = random.normal(size=1).astype(np.float32)
        swing = swing + 0.1 * np.array([swing[1], push[0] - swing[0] - 0.1 * swing[1]])
        after = (swing @ sensors + random.normal(0, 0.01, SENSORS)).astype(np.float32)
        reward, is_last = -float(swing @ swing), step == steps - 1
        replay.add(seen, push, reward, truncated=is_last, next_observations=after)
        seen = after


class Model:
    """z[0] = o[0] E, z[t + 1] = z[t] A + a[t] B, o[t] = z[t] D; trained with Adam."""

    def __init__(self, random: np.random.Generator) -> None:
        o, z = SENSORS, LATENT
        sizes = {"E": (o, z), "A": (z, z), "B": (1, z), "D": (z, o)}
        self.weights = {name: random.normal(0, 0.3, size) for name, size in sizes.items()}
        self.moments = {name: (np.zeros(size), np.zeros(size)) for name, size in sizes.items()}

    def update(self, seen: Array, actions: Array) -> Array:
        """Imagine windows and learn from the errors; return the error of each window."""
        w, states = self.weights, [seen[:, 0] @ self.weights["E"]]
        for step in range(LENGTH - 1):
            states.append(states[-1] @ w["A"] + actions[:, step] @ w["B"])
        error = np.stack(states, axis=1) @ w["D"] - seen
        slopes = {name: np.zeros_like(weight) for name, weight in w.items()}
        back, carried = 2 * error / error.size, np.zeros_like(states[0])
        for step in range(LENGTH - 1, -1, -1):
            slopes["A"] += states[step].T @ carried
            slopes["B"] += actions[:, step].T @ carried
            slopes["D"] += states[step].T @ back[:, step]
            carried = back[:, step] @ w["D"].T + carried @ w["A"].T
        slopes["E"] = seen[:, 0].T @ carried
        for name, slope in slopes.items():
            mean, square = self.moments[name]
            mean += 0.1 * (slope - mean)
            square += 0.01 * (slope**2 - square)
            w[name] -= 0.01 * mean / (np.sqrt(square) + 1e-8)
        return np.asarray((error**2).mean(axis=(1, 2)))

    def write_back(self, path: str) -> float:
        """Predict every step of an episode from the one before; return the mean error."""
        with load_wshard(path) as ep:
            seen, actions = ep.observations["observation"].data, ep.actions["action"].data
        first, w = seen @ self.weights["E"], self.weights
        ahead = np.concatenate([first[:1], first[:-1] @ w["A"] + actions @ w["B"]]) @ w["D"]
        std = np.broadcast_to((ahead - seen).std(axis=0), ahead.shape)
        lanes = {"omen/observation/linear": ahead, "uncert/observation/linear/std": std}
        add_lane(path, lanes, name="linear", replace=True)
        return float(np.abs(ahead - seen).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", default="replay")
    parser.add_argument("--updates", type=int, default=1500)
    arguments = parser.parse_args()
    random = np.random.default_rng(0)
    model, errors = Model(random), []
    with ReplayBuffer(arguments.folder, max_steps=20_000, seed=0) as replay:
        for update in range(arguments.updates):
            if update % 50 == 0:
                act(replay, random)
            batch = replay.sample(BATCH, LENGTH, "priority")
            surprise = model.update(batch["observation"], batch["action"])
            replay.update_priorities(batch["indices"], surprise + 1e-3)
            errors.append(surprise.mean())
        paths, first, last = replay.episodes, np.mean(errors[:20]), np.mean(errors[-20:])
        print(f"{replay}: error {first:.4f} at first, {last:.4f} at last")
    off = np.mean([model.write_back(path) for path in paths])
    print(f"wrote predictions beside {len(paths)} episodes; their mean error is {off:.4f}")


if __name__ == "__main__":
    main()
