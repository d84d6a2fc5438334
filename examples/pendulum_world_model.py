"""Train a world model with NumPy alone: `python examples/pendulum_world_model.py [FOLDER] [--updates N]`.

The example records a pendulum, trains a small ensemble of neural networks on windows of the episodes, and writes beside
each episode what the networks predict 20 steps ahead and how sure they are. On episodes that they were not trained on,
it compares the predictions with the simplest guess: nothing changes. Needs the extra `gym`, and `plot` for a picture.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from shard_train import EpisodeDataset, Plan
from wshard import Channel, Timebase, add_lane, load_wshard
from wshard.gym import RecordEpisodes

Array = np.ndarray[Any, np.dtype[Any]]
EPISODES, HELD_OUT, NAME = 40, 8, "pendulum-{episode:03d}"
MEMBERS, HIDDEN = 5, 64  # networks in the ensemble, and units in each of their two hidden layers
WINDOW, BATCH = 16, 8  # steps of a window, and windows that each network sees in one update
AHEAD, FUTURES = 20, 4  # steps to look ahead, and futures that each network imagines
SCALE = np.array([1, 1, 8], np.float32)  # the largest cosine, sine and speed
CHANGE = np.array([0.2, 0.2, 0.5], np.float32)  # how much they change in one step, roughly


def record(folder: Path) -> None:
    """Record the episodes that are missing. A random, slowly changing torque drives the pendulum."""
    env = gymnasium.make("Pendulum-v1")
    first = len(list(folder.glob("*.wshard")))
    with RecordEpisodes(env, folder, name=NAME, timebase=Timebase(tick_hz=20)) as env:
        for seed in range(first, EPISODES):
            env.reset(seed=seed)
            random = np.random.default_rng(seed)
            torque, over = np.zeros(1), False
            while not over:
                torque = np.clip(0.9 * torque + random.normal(0, 0.7, 1), -2, 2)
                _, _, terminated, truncated, _ = env.step(torque.astype(np.float32))
                over = terminated or truncated


class Ensemble:
    """Networks that predict from a state and a torque how the state changes: a mean and a log standard deviation.

    Each is `inputs -> tanh -> tanh -> outputs`. The first axis of every array is the network, so one matrix product
    serves all of them: `(members, rows, inputs) @ (members, inputs, outputs)`.
    """

    def __init__(self) -> None:
        random, sizes = np.random.default_rng(0), (4, HIDDEN, HIDDEN, 6)
        shapes = [(MEMBERS, *pair) for pair in itertools.pairwise(sizes)]
        self.weights = [random.standard_normal(s, np.float32) / s[1] ** 0.5 for s in shapes]
        self.biases = [np.zeros((MEMBERS, 1, size), np.float32) for size in sizes[1:]]
        # In the order of the layers: weights, biases, weights, biases, …
        layers = zip(self.weights, self.biases, strict=True)
        self.parameters = list(itertools.chain.from_iterable(layers))
        # Adam keeps a running mean of each slope and of its square.
        self.means = [np.zeros_like(p) for p in self.parameters]
        self.squares = [np.zeros_like(p) for p in self.parameters]
        self.updates = 0

    def forward(self, states: Array, torques: Array) -> tuple[list[Array], Array, Array]:
        """The input of each layer, then the mean and the log standard deviation of the (scaled) change."""
        layers = [np.concatenate([states / SCALE, torques / 2], axis=-1)]
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            layers.append(np.tanh(layers[-1] @ weight + bias))
        out = layers[-1] @ self.weights[-1] + self.biases[-1]
        return layers, out[..., :3], np.clip(out[..., 3:], -6, 2)  # never surer than e⁻⁶

    def update(self, states: Array, torques: Array, after: Array, rate: float) -> float:
        """Take one step of gradient descent; return the loss before it, averaged over the networks.

        The loss is the negative log-likelihood of what happened. With z = (mean - truth) / std it is, up to a
        constant, `z² / 2 + log std` for each number. So its slope is `z / std` for the mean and `1 - z²` for log std.
        """
        layers, mean, log_std = self.forward(states, torques)
        truth, std = (after - states) / CHANGE, np.exp(log_std)
        z = (mean - truth) / std
        slope = np.concatenate([z / std, 1 - z**2], axis=-1) / states.shape[1]
        # Backpropagation, from the last layer to the first: the slope at a layer's output gives the slopes of its
        # weights and biases, and the slope at its input. The derivative of tanh is 1 - tanh².
        slopes: list[Array] = []
        for weight, inputs in zip(self.weights[::-1], layers[::-1], strict=True):
            slopes = [inputs.transpose(0, 2, 1) @ slope, slope.sum(axis=1, keepdims=True), *slopes]
            slope = (slope @ weight.transpose(0, 2, 1)) * (1 - inputs**2)
        self.adam(slopes, rate)
        return float((z**2 / 2 + log_std).sum(axis=-1).mean())

    def adam(self, slopes: list[Array], rate: float) -> None:
        """Move each parameter against the running mean of its slope, in units of the slope's usual size."""
        self.updates += 1
        lists = (self.parameters, slopes, self.means, self.squares)
        for value, slope, mean, square in zip(*lists, strict=True):
            mean += 0.1 * (slope - mean)
            square += 0.001 * (slope**2 - square)
            # Both began at zero and are too small at first; the two divisors make up for it.
            usual = np.sqrt(square / (1 - 0.999**self.updates)) + 1e-8
            value -= rate * mean / (1 - 0.9**self.updates) / usual

    def imagine(self, states: Array, torques: list[Array]) -> list[Array]:
        """Imagine futures of each start: arrays `(members × futures, starts, 3)` after 0, 1, … steps."""
        random, rows = np.random.default_rng(0), np.tile(states, (MEMBERS, FUTURES, 1))
        path = [rows]
        for torque in torques:  # one for each start
            _, mean, log_std = self.forward(rows, np.tile(torque, (MEMBERS, FUTURES, 1)))
            change = mean + np.exp(log_std) * random.standard_normal(mean.shape, np.float32)
            rows = np.clip(rows + change * CHANGE, -SCALE, SCALE)
            path.append(rows)
        return [rows.reshape(-1, *states.shape) for rows in path]


def train(model: Ensemble, dataset: EpisodeDataset, updates: int) -> None:
    """Each network gets windows of its own, so that the networks differ where the data says little."""
    plan = Plan(len(dataset), seed=0, batch_size=MEMBERS * BATCH, drop_last=True)
    epochs = (plan.with_epoch(epoch).batches() for epoch in itertools.count())
    start, losses = time.perf_counter(), list[float]()
    for update, numbers in enumerate(itertools.chain.from_iterable(epochs), start=1):
        batch = dataset.batch(numbers)
        seen = batch["observation"]  # one state more than torques
        now, after = (part.reshape(MEMBERS, -1, 3) for part in (seen[:, :-1], seen[:, 1:]))
        torques = batch["action"].reshape(MEMBERS, -1, 1)
        losses.append(model.update(now, torques, after, 0.005 * (1 - update / (updates + 1))))
        if update % (updates // 5) == 0:
            rate = update * len(numbers) / (time.perf_counter() - start)
            print(f"update {update}: loss {np.mean(losses[-100:]):.2f}, {rate:,.0f} windows/s")
        if update == updates:
            return


def write_back(model: Ensemble, path: Path) -> None:
    """Write what the model predicted `AHEAD` steps before as lanes beside the episode, which stays as it is."""
    with load_wshard(path) as ep:
        states, torques = ep.observations["observation"].data, ep.actions["action"].data
    ahead = [torques[step : len(states) - AHEAD + step] for step in range(AHEAD)]
    imagined = model.imagine(states[:-AHEAD], ahead)
    # The first steps are predicted from the first state, all others from the state 20 steps before.
    futures = np.concatenate([*(rows[:, :1] for rows in imagined[:-1]), imagined[-1]], axis=1)
    mean, std = futures.mean(axis=0), futures.std(axis=0)
    omen = Channel(data=mean, description=f"expected {AHEAD} steps before, knowing the torques")
    lanes = {"omen/observation/ensemble": omen, "uncert/observation/ensemble/std": std}
    add_lane(path, lanes, name="ensemble", replace=True)


def compare(paths: list[Path]) -> None:
    """Compare the lanes in the files with what happened, and with the state that the model started from."""
    episodes = [load_wshard(path) for path in paths]
    truth = np.stack([ep.observations["observation"].data for ep in episodes])
    omen = np.stack([ep.omens["observation"]["ensemble"].data for ep in episodes])
    std = np.stack([ep.uncerts["observation"]["ensemble"]["std"].data for ep in episodes])
    error = np.abs(omen - truth)[:, AHEAD:]
    last_seen = np.abs(truth[:, AHEAD:] - truth[:, :-AHEAD])
    names = ("mean error of the model", "of the last state it saw", "within one std (ideal: 0.68)")
    print(f"{'':30}{'cos':>8}{'sin':>8}{'speed':>8}")
    for name, values in zip(names, (error, last_seen, error < std[:, AHEAD:]), strict=True):
        print(f"{name:30}" + "".join(f"{mean:8.3f}" for mean in values.mean(axis=(0, 1))))


def wshard(*arguments: object) -> None:
    """Run the command line as you would."""
    words = [str(argument) for argument in arguments]
    print("$ wshard", *words, flush=True)
    subprocess.run([sys.executable, "-m", "shard_cli.wshard", *words], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("pendulum"))
    parser.add_argument("--updates", type=int, default=1500)
    arguments = parser.parse_args()
    folder, train_on = arguments.folder, range(EPISODES - HELD_OUT)
    print(f"\n== Record {EPISODES} episodes of Pendulum-v1", flush=True)
    record(folder)
    paths = sorted(folder.glob("*.wshard"))
    print(f"\n== Train {MEMBERS} small networks on windows of {len(train_on)} of them", flush=True)
    dataset = EpisodeDataset(folder, window=WINDOW, next_observations=True, episodes=train_on)
    print(dataset)
    model = Ensemble()
    train(model, dataset, arguments.updates)
    print("\n== Write the predictions beside what happened")
    for path in paths:
        write_back(model, path)
    wshard("verify", "--quiet", folder)
    wshard("inspect", paths[-1])
    print(f"\n== {AHEAD} steps ahead, in the {HELD_OUT} episodes that it was not trained on")
    compare(paths[-HELD_OUT:])
    if find_spec("matplotlib"):
        wshard("plot", paths[-1], "-o", folder.with_suffix(".png"), "--force")


if __name__ == "__main__":
    main()
