"""An episode that has everything."""

from __future__ import annotations

import numpy as np

from wshard import Channel, Episode, Timebase
from wshard.types import Modality, RaggedChannel, TextChannel

SECOND = 1_000_000_000


def made_episode() -> Episode:
    rng = np.random.default_rng(0)
    steps, start = 12, 1_700_000_000 * SECOND
    ep = Episode("ep 1", env_id="E-v0", timebase=Timebase(tick_hz=10, epoch_ns=start))
    ep.observations["qpos"] = Channel(
        data=rng.normal(size=(steps + 1, 3)).astype("f4"),
        unit="rad",
        extra={"names": ["a", "b", "c"]},
    )
    pixels = rng.integers(0, 255, (steps, 16, 20, 3), dtype=np.uint8)
    ep.observations["cam"] = Channel(data=pixels, modality=Modality.RGB)
    ep.observations["grey"] = Channel(data=pixels[..., :1], modality=Modality.RGB)
    depth = rng.integers(0, 65535, (steps, 16, 20)).astype("u2")
    ep.observations["depth"] = Channel(data=depth, modality=Modality.DEPTH)
    ep.observations["features"] = rng.normal(size=(steps, 64, 32))
    odd = rng.normal(size=(steps, 4))
    odd[0], odd[1, 1], odd[2, 2] = np.nan, np.inf, -np.inf
    ep.observations["odd"] = odd
    ep.observations["imu"] = Channel(
        data=rng.normal(size=(55, 6)), timestamps_ns=start + np.arange(55) * 10**7
    )
    ep.observations["regular"] = Channel(
        data=rng.normal(size=55), start_ns=5, sampling_rate_hz=100.0
    )
    ep.observations["language_instruction"] = TextChannel(data=[f"täsk {i}" for i in range(steps)])
    ep.observations["points"] = RaggedChannel(
        data=[rng.normal(size=(i, 3)).astype("f4") for i in range(steps)],
        modality=Modality.POINTCLOUD,
    )
    ep.observations["boxes"] = RaggedChannel(data=[np.arange(i) for i in range(steps)])
    ep.observations["tokens"] = RaggedChannel(
        data=[rng.normal(size=(900, 4)) for _ in range(steps)]
    )
    ep.actions["ctrl"] = rng.normal(size=(steps, 2)).astype("f2")
    ep.actions["chunk"] = Channel(data=rng.normal(size=(steps, 4, 2)), horizon=4)
    ep.rewards = rng.normal(size=steps)
    ep.terminations = np.arange(steps) == steps - 1
    ep.truncations = np.zeros(steps, bool)
    ep.omens["qpos"]["dreamer"] = rng.normal(size=(steps, 3)).astype("f4")
    ep.uncerts["qpos"]["dreamer"]["std"] = rng.normal(size=(steps, 3)).astype("f4")
    ep.labels["phase"] = [(0, 5, "reach")]
    ep.metadata.update(task="reach", success=True)
    ep.extras["blob"] = b"123"
    ep.extras["array"] = np.arange(3 * steps).reshape(steps, 3)
    return ep
