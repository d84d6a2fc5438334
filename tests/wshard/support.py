"""What several test files need: an episode with everything in it, and what an episode says, comparably."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import numpy as np

from shard_format import ShardReader
from tests.shard_format.support import REPOSITORY, HandMade, PlainSource, Row
from wshard import Channel, DType, Episode, Timebase, save_wshard
from wshard.types import (
    Interval,
    Intervals,
    Modality,
    RaggedChannel,
    Residual,
    TextChannel,
    VideoChannel,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pytest
    from numpy.typing import NDArray

VECTORS = REPOSITORY / "spec" / "vectors"
GOLDEN = sorted((VECTORS / "valid").glob("golden_*.wshard"))
ROLE = 5


def ramp(length: int, *shape: int, dtype: str = "f4") -> NDArray[Any]:
    """Numbers that differ from step to step, in a shape."""
    size = length * int(np.prod(shape, dtype=np.int64))
    return np.arange(size).reshape(length, *shape).astype(dtype)


def noise_array(length: int, *shape: int, dtype: str = "f4", seed: int = 0) -> NDArray[Any]:
    """Numbers from any bits: NaNs, infinities and all."""
    kind = np.dtype(dtype)
    size = length * int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    return np.frombuffer(random.Random(seed).randbytes(size), kind).reshape(length, *shape)


def without_ml_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the package with the dtype for bf16 were not installed."""
    monkeypatch.setattr("wshard._values.bfloat16", lambda: None)
    for attribute in ("stored_dtype", "numpy_dtype"):
        monkeypatch.setattr(DType.BFLOAT16, attribute, np.dtype("<u2"))


def full_episode(length: int = 12) -> Episode:
    """An episode that uses every lane and every kind of channel."""
    ep = Episode(
        "ep_001",
        env_id="Reach-v1",
        timebase=Timebase(tick_hz=50.0, epoch_ns=1_700_000_000_000_000_000),
        metadata={"task": "grüße", "seeds": [1, 2.5, None], "deep": {"er": True}},
        provenance={"run_id": "run 7", "source": {"host": "robot"}, "epoch": 3},
    )
    state = ramp(length + 1, 3) / 7
    ep.observations["state"] = Channel(
        data=state, unit="rad", modality=Modality.PROPRIOCEPTION, semantics="joint angles"
    )
    ep.observations["wrist/rgb"] = noise_array(length, 4, 4, 3, dtype="u1")
    ep.observations["text"] = [f"step {n} ☃"[: n % 9] for n in range(length)]
    ep.observations["scan"] = RaggedChannel(data=[ramp(n % 3, 2) for n in range(length)])
    ep.observations["imu"] = Channel(
        data=ramp(length * 3, 2, dtype="f8"),
        timestamps_ns=1_700_000_000_000_000_000 + np.arange(length * 3) * 7_000_000,
    )
    ep.observations["audio"] = Channel(
        data=ramp(length * 5, dtype="i2"),
        start_ns=1_700_000_000_000_000_000,
        sampling_rate_hz=250.0,
    )
    ep.actions["ctrl"] = Channel(data=ramp(length, 2, dtype="f8"), lossy={"codec": "round"})
    ep.rewards = np.linspace(0, 1, length)
    ep.terminations = np.arange(length) == length - 1
    ep.truncations = np.zeros(length, bool)
    ep.omens["state"]["dreamer"] = state + 1
    ep.uncerts["state"]["dreamer"]["std"] = np.abs(state)
    ep.omens["ctrl"]["act"] = Channel(data=noise_array(length, 3, 2), horizon=3)
    ep.residuals["state"] = Residual.of_signal("state", state[:length])
    ep.residuals["state/dreamer/delta_q"] = Residual.of_error(
        "state", state[:length], state[:length] + 1, "dreamer", "delta_q", window=4
    )
    ep.labels["skill"] = [(0, 1, "reach", "human", 0.9), Interval(1, length + 1, "grasp")]
    ep.labels["noise"] = Intervals([(10**18, 2 * 10**18, "beep")], unit="ns")
    ep.extras["aux/blob"] = b"\x00\x01any bytes"
    ep.extras["debug/numbers"] = ramp(length, 2, dtype="i8")
    return ep


def save(ep: Episode, path: Path, *args: Any, **options: Any) -> Path:  # noqa: ANN401 - save_wshard's
    """Saves without syncing; returns the path."""
    save_wshard(ep, path, *args, fsync=False, **options)
    return path


def bits(values: Any) -> bytes:  # noqa: ANN401 - an array
    return np.ascontiguousarray(values).tobytes()


def channel_facts(channel: Channel | None) -> Any:  # noqa: ANN401 - a dictionary or None
    """Everything that a channel says, in values that compare bit by bit."""
    if channel is None:
        return None
    facts: dict[str, Any] = {
        "layout": channel.layout,
        "dtype": channel.dtype_name.value,
        "shape": tuple(channel.step_shape),
        "length": channel.length,
        "modality": channel.modality,
        "rate": channel.sampling_rate_hz,
        "content_type": channel.content_type,
        "words": (channel.unit, channel.semantics, channel.description),
        "lossy": channel.lossy,
        "horizon": channel.horizon,
        "extra": dict(channel.extra),
        "start_ns": channel.start_ns,
        "clock": None if channel.timestamps_ns is None else bits(channel.timestamps_ns),
    }
    if isinstance(channel, RaggedChannel):
        facts["values"] = bits(channel.values)
        facts["offsets"] = channel.offsets.tolist()
        if isinstance(channel, TextChannel):
            facts["text"] = channel.data
    elif isinstance(channel, VideoChannel):
        # Not the pixels: only a decoder could tell them.
        facts["packets"] = [(bytes(one.data), *one[1:]) for one in channel.packets()]
        facts["shape"], facts["extradata"] = channel.shape, channel.extradata
    else:
        facts["array"] = (channel.data.shape, bits(channel.data))
    return facts


def facts_of(ep: Episode) -> dict[str, Any]:
    """Everything that an episode says, in values that compare bit by bit."""
    rewards = channel_facts(ep.rewards)
    if ep.rewards is not None and ep.rewards.dtype_name in ("f32", "f64"):
        # Stored as f32 where that is exact: the numbers count.
        rewards["dtype"], rewards["array"] = "float", bits(ep.rewards.data.astype(np.float64))
    ends = [None if c is None else c.data.tolist() for c in (ep.terminations, ep.truncations)]
    if ends[1] is not None and ends[0] is None:
        ends[0] = [False] * ep.length
    return {
        "id": (ep.id, ep.env_id, ep.length),
        "timebase": (str(ep.timebase.type), ep.timebase.tick_hz, ep.timebase.epoch_ns),
        "metadata": ep.metadata,
        "chunk": (ep.chunk_index, ep.total_chunks, ep.timestep_range),
        "provenance": ep.provenance and {k: v for k, v in ep.provenance.items() if v and k != "v"},
        "ticks": ep.ticks.tolist(),
        "stamps": None if ep.timestamps_ns is None else ep.timestamps_ns.tolist(),
        # Empty blocks mean absent: without steps there is no difference.
        "rewards": rewards if ep.length else None,
        "ends": ends if ep.length else None,
        "dones": None if ep.dones is None or not ep.length else ep.dones.tolist(),
        "observations": {k: channel_facts(v) for k, v in sorted(ep.observations.items())},
        "actions": {k: channel_facts(v) for k, v in sorted(ep.actions.items())},
        "omens": {
            (name, model): channel_facts(channel)
            for name, models in sorted(ep.omens.items())
            for model, channel in sorted(models.items())
        },
        "uncerts": {
            (name, model, kind): channel_facts(channel)
            for name, models in sorted(ep.uncerts.items())
            for model, kinds in sorted(models.items())
            for kind, channel in sorted(kinds.items())
        },
        "residuals": {
            (r.channel_id, r.model, r.type): (bits(r.data), r.window if r.scales is not None else 0)
            + ((None,) if r.scales is None else (r.data.shape, bits(r.scales)))
            for r in ep.residuals.values()
        },
        "labels": {
            name: (lane.unit, lane.extra, list(lane)) for name, lane in sorted(ep.labels.items())
        },
        "extras": {
            name: channel_facts(extra) if isinstance(extra, Channel) else bytes(extra)
            for name, extra in sorted(ep.extras.items())
        },
    }


def assert_same(found: Episode, wanted: Episode) -> None:
    """Bit by bit, lane by lane, so that a failure names the lane."""
    ours, theirs = facts_of(found), facts_of(wanted)
    for lane, facts in theirs.items():
        assert ours[lane] == facts, lane


def hand_made(entries: Mapping[str, bytes | dict[str, Any]], **options: Any) -> bytes:  # noqa: ANN401 - HandMade's
    """An episode's file from its entries; dictionaries become JSON. Not made by the writer."""
    rows = [
        Row(name.encode(), content if isinstance(content, bytes) else json.dumps(content).encode())
        for name, content in entries.items()
    ]
    return HandMade(rows, role=ROLE, **options).to_bytes()


def described(length: int, rows: list[Any], **episode: Any) -> dict[str, Any]:  # noqa: ANN401 - fields
    """The two descriptions of a hand-made episode."""
    return {
        "meta/episode": {"episode_id": "ep", "length_T": length, **episode},
        "meta/channels": {"channels": rows},
    }


def entries_of(path: Path | bytes) -> dict[str, bytes]:
    """All entries of a file, by the container's reader."""
    with ShardReader(path) as reader:
        return {name: reader.read_entry(name) for name in reader.names()}


class RecordingSource(PlainSource):
    """A source that remembers which ranges were asked for."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.ranges: list[tuple[int, int]] = []

    def read_at(self, offset: int, length: int) -> bytes:
        self.ranges.append((offset, offset + length))
        return super().read_at(offset, length)

    def bytes_within(self, start: int, stop: int) -> int:
        """How many bytes of a range were read since the last `forget`."""
        return sum(max(0, min(b, stop) - max(a, start)) for a, b in self.ranges)

    def forget(self) -> None:
        self.ranges.clear()
