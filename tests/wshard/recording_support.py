"""What the tests of recordings share: a small recording, its steps, and what must come back of it."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from shard_format import ShardReader
from wshard import WShardStreamWriter, load_wshard
from wshard.streaming import StreamOptions

if TYPE_CHECKING:
    from pathlib import Path

    from wshard import Episode

CHANNELS: list[dict[str, Any]] = [
    {"id": "state", "dtype": "f32", "shape": [3]},
    {"id": "rgb", "dtype": "u8", "shape": [8, 8], "compression": "zstd:1"},
    {"id": "ctrl", "dtype": "f64", "shape": [2], "lane": "action"},
]


@functools.lru_cache(maxsize=4096)
def step(number: int) -> dict[str, Any]:
    """The values of a step; no two steps are the same. Only differences of `rgb` can be compressed."""
    return {
        "state": np.array([number, -number, number / 3], np.float32),
        "rgb": (37 * np.arange(64).reshape(8, 8) + number).astype(np.uint8),
        "ctrl": np.array([number / 7, np.nan]),
    }


def recorder(path: Path, **options: Any) -> WShardStreamWriter:  # noqa: ANN401 - the writer's
    """A recording that has begun: nothing is synced, and nothing written before it is asked for."""
    settings = {"fsync": "never", "flush_seconds": 1e6, "flush_steps": 5, **options}
    timebase = settings.pop("timebase", None)
    names = [field.name for field in dataclasses.fields(StreamOptions) if field.name in settings]
    told = StreamOptions(**{name: settings.pop(name) for name in names})
    channels = settings.pop("channels", CHANNELS)
    writer = WShardStreamWriter(path, "ep", channels, options=told, **settings)
    writer.begin_episode("Test-v0", timebase)
    return writer


def record(writer: WShardStreamWriter, first: int, stop: int) -> None:
    """Records the steps from `first` to `stop`."""
    for number in range(first, stop):
        writer.write_timestep(
            step(number), reward=number / 10, terminated=False, truncated=number % 7 == 6
        )


def check_steps(episode: Episode, count: int | None = None) -> int:
    """Whether an episode holds exactly the first steps, bit by bit; returns how many."""
    length = episode.length
    assert count is None or length == count
    for name, channel in (*episode.observations.items(), *episode.actions.items()):
        wanted = np.array([step(number)[name] for number in range(length)], channel.data.dtype)
        assert channel.data.tobytes() == wanted.tobytes(), name
    if length:
        assert episode.rewards is not None
        assert episode.rewards.data.tolist() == [number / 10 for number in range(length)]
        assert episode.truncations is not None
        assert episode.truncations.data.tolist() == [n % 7 == 6 for n in range(length)]
    return length


def check_file(path: Path, count: int | None = None) -> int:
    """As `check_steps`, for a finished file, all of which must verify."""
    with ShardReader(path) as reader:
        reader.verify()
    with load_wshard(path) as episode:
        return check_steps(episode, count)
