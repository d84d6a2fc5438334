"""Train a world model in torch: `python examples/latent_world_model.py [FOLDER] [--updates N]`.

Record a pendulum and a small camera that watches it, train on windows of the compressed episodes, and write beside each
episode what the model expects 20 steps ahead and how sure it is. If you kill the example and start it again, it resumes.
Needs the extras `gym` and `torch`; with `plot` it draws an episode that the model was not trained on.
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
import torch
from gymnasium.spaces import Box, Dict
from gymnasium.wrappers import TransformObservation
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import pad, softplus

from shard_train import EpisodeDataset
from shard_train.torch import data_loader
from wshard import Channel, Timebase, add_lane, load_wshard
from wshard.gym import RecordEpisodes

Array = np.ndarray[Any, np.dtype[Any]]
EPISODES, HELD_OUT, SIDE, NAME = 40, 8, 16, "pendulum-{episode:03d}"
LATENT, MEMORY, WINDOW, BATCH, SAVE_EVERY = 8, 64, 32, 16, 50
AHEAD, FUTURES = 20, 16
SCALE = torch.tensor([1.0, 1.0, 8.0])  # of cosine, sine and speed


def look(state: Array) -> dict[str, Array]:
    """What the camera sees of the pendulum: a bright rod."""
    x, y = np.meshgrid(*2 * [np.linspace(-1.2, 1.2, SIDE)])
    along = np.clip(x * state[1] - y * state[0], 0, 1)
    distance = (x - along * state[1]) ** 2 + (y + along * state[0]) ** 2
    return {"camera": (255 * np.exp(-30 * distance)).astype(np.uint8), "state": state}


def record(folder: Path) -> None:
    """Record the episodes that are missing. A random, slowly changing torque drives the pendulum."""
    env = gymnasium.make("Pendulum-v1")
    seen = Dict({"camera": Box(0, 255, (SIDE, SIDE), np.uint8), "state": env.observation_space})
    env = TransformObservation(env, look, seen)
    there, clock = len(list(folder.glob("*.wshard"))), Timebase(tick_hz=20)
    with RecordEpisodes(env, folder, name=NAME, compression="zstd", timebase=clock) as env:
        for seed in range(there, EPISODES):
            env.reset(seed=seed)
            random = np.random.default_rng(seed)
            torque, over = np.zeros(1), False
            while not over:
                torque = np.clip(0.9 * torque + random.normal(0, 0.7, 1), -2, 2)
                _, _, terminated, truncated, _ = env.step(torque.astype(np.float32))
                over = terminated or truncated


def network(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 64), nn.SiLU(), nn.Linear(64, outputs))


def gaussian(values: torch.Tensor) -> Normal:
    mean, width = values.chunk(2, dim=-1)
    return Normal(mean, softplus(width) + 0.01)


class WorldModel(nn.Module):  # type: ignore[misc]  # torch is not there where types are checked
    """A picture gives a latent z; a memory h of earlier steps predicts the next z; h and z together give the state."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = network(SIDE * SIDE, 2 * LATENT)
        self.remember = nn.GRU(LATENT + 1, MEMORY, batch_first=True)
        self.expect = network(MEMORY, 2 * LATENT)
        self.state = network(MEMORY + LATENT, 2 * len(SCALE))
        self.reward = network(MEMORY, 2)

    def loss(self, batch: dict[str, torch.Tensor], weight: float) -> torch.Tensor:
        """Nats per step: how unlikely state and reward were, plus, weighted, how much of the picture was unexpected."""
        codes = self.encode(batch["camera"].flatten(-2) / 255)
        z = gaussian(codes).rsample()
        h, _ = self.remember(torch.cat([z[:, :-1], batch["action"]], -1))
        surprise = kl_divergence(gaussian(codes[:, 1:]), gaussian(self.expect(h)))
        before = pad(h, (0, 0, 1, 0))  # before the first step there is nothing to remember
        state = gaussian(self.state(torch.cat([before, z], -1)))
        unlikely = -state.log_prob(batch["state"] / SCALE).sum(-1).mean()
        unlikely -= gaussian(self.reward(h)).log_prob(batch["reward"][..., None] / 8).mean()
        return unlikely + weight * surprise.sum(-1).mean()

    def step(self, latents: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Take one step without a picture: h and z after an action."""
        h, z = latents.split([MEMORY, LATENT], -1)
        h, _ = self.remember(torch.cat([z, actions], -1)[:, None], h[None].contiguous())
        return torch.cat([h[:, 0], gaussian(self.expect(h[:, 0])).sample()], -1)

    def imagine(self, camera: torch.Tensor, actions: torch.Tensor) -> tuple[Array, Array]:
        """The state at each step as predicted `AHEAD` steps before, from the pictures until then and the actions.

        Mean and standard deviation over many futures. The first steps are predicted from the first picture.
        """
        z = gaussian(self.encode(camera.flatten(-2) / 255)).sample((FUTURES,))
        actions = actions.expand(FUTURES, -1, -1)
        h, _ = self.remember(torch.cat([z[:, :-1], actions], -1))
        starts = z.shape[1] - AHEAD
        latents = torch.cat([pad(h, (0, 0, 1, 0)), z], -1)[:, :starts]
        path = [latents[:, :1]]
        for ahead in range(AHEAD):
            taken = actions[:, ahead : ahead + starts]
            latents = self.step(latents.flatten(0, 1), taken.flatten(0, 1)).view_as(latents)
            path.append(latents if ahead == AHEAD - 1 else latents[:, :1])
        states = gaussian(self.state(torch.cat(path, 1)))
        std = (states.variance.mean(0) + states.mean.var(0)).sqrt()
        return (states.mean.mean(0) * SCALE).numpy(), (std * SCALE).numpy()


def train(model: WorldModel, dataset: EpisodeDataset, updates: int, checkpoint: Path) -> None:
    """Print progress, and regularly save everything needed to resume."""
    loader = data_loader(dataset, batch_size=BATCH, seed=0)
    optimizer = torch.optim.Adam(model.parameters())
    parts = {"model": model, "optimizer": optimizer, "loader": loader}
    first = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(saved[name])
        first = saved["update"]
        print(f"resuming after update {first}")
    start, losses = time.perf_counter(), list[float]()
    epochs = itertools.chain.from_iterable(itertools.repeat(loader))
    for update, batch in zip(range(first + 1, updates + 1), epochs, strict=False):
        torch.manual_seed(update)  # the same noise, whatever came before
        optimizer.param_groups[0]["lr"] = 0.01 * (1 - update / (updates + 1))
        optimizer.zero_grad()
        # With the full weight from the start, the latents would carry no information.
        loss = model.loss(batch, weight=min(1.0, 0.2 + update / updates))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if update % SAVE_EVERY == 0:
            state = {name: part.state_dict() for name, part in parts.items()}
            torch.save({**state, "update": update}, f"{checkpoint}.new")
            Path(f"{checkpoint}.new").replace(checkpoint)
            rate = len(losses) * BATCH / (time.perf_counter() - start)
            print(f"update {update}: loss {np.mean(losses):.3f}, {rate:,.0f} windows/s", flush=True)
            start, losses = time.perf_counter(), []


def write_back(model: WorldModel, path: Path, updates: int) -> None:
    """Write the predictions as lanes beside the episode, which stays unchanged."""
    torch.manual_seed(0)
    with load_wshard(path) as ep, torch.no_grad():
        camera, actions = ep.observations["camera"].data, ep.actions["action"].data
        mean, std = model.imagine(torch.tensor(camera), torch.tensor(actions))
    about = f"expected {AHEAD} steps before, knowing the actions"
    omen = Channel(data=mean, description=about, extra={"updates": updates})
    lanes = {"omen/state/world_model": omen, "uncert/state/world_model/std": std}
    add_lane(path, lanes, name="world_model", replace=True)


def compare(paths: list[Path]) -> None:
    """Compare the lanes in the files with what happened, and with the state that the model started from."""
    episodes = [load_wshard(path) for path in paths]
    truth = np.stack([ep.observations["state"].data for ep in episodes])
    omen = np.stack([ep.omens["state"]["world_model"].data for ep in episodes])
    std = np.stack([ep.uncerts["state"]["world_model"]["std"].data for ep in episodes])
    error = np.abs(omen - truth)[:, AHEAD:]
    rows = {
        "mean error of the model": error,
        "of the last state it saw": np.abs(truth[:, AHEAD:] - truth[:, :-AHEAD]),
        "within one std (ideal: 0.68)": error < std[:, AHEAD:],
    }
    print(f"{'':30}{'cos':>8}{'sin':>8}{'speed':>8}")
    for name, values in rows.items():
        print(f"{name:30}" + "".join(f"{mean:8.3f}" for mean in values.mean(axis=(0, 1))))


def wshard(*arguments: object) -> None:
    """Run the command line as you would."""
    words = [str(argument) for argument in arguments]
    print(f"$ wshard {' '.join(words)}", flush=True)
    subprocess.run([sys.executable, "-m", "shard_cli.wshard", *words], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("pendulum"))
    parser.add_argument("--updates", type=int, default=300)
    arguments = parser.parse_args()
    folder = arguments.folder
    torch.manual_seed(0)
    torch.set_num_threads(1)  # more threads would only wait for each other: the tensors are small
    print(f"\n== Record {EPISODES} episodes of Pendulum-v1, and a camera", flush=True)
    record(folder)
    paths = sorted(folder.glob("*.wshard"))
    print(f"{len(paths)} files in {folder}, such as {paths[0].name}")
    print(f"\n== Train a world model on windows of {EPISODES - HELD_OUT} of them", flush=True)
    training = range(EPISODES - HELD_OUT)
    dataset = EpisodeDataset(folder, window=WINDOW, next_observations=True, episodes=training)
    print(dataset)
    model = WorldModel()
    train(model, dataset, arguments.updates, folder.with_suffix(".pt"))
    print("\n== Write the predictions beside what happened")
    for path in paths:
        write_back(model, path, arguments.updates)
    wshard("verify", "--quiet", folder)
    print("no problems found; every byte was checked")
    wshard("inspect", paths[-1])
    print(f"\n== {AHEAD} steps ahead, in the {HELD_OUT} episodes that it was not trained on")
    compare(paths[-HELD_OUT:])
    if find_spec("matplotlib"):
        wshard("plot", paths[-1], "-o", folder.with_suffix(".png"), "--force")


if __name__ == "__main__":
    main()
