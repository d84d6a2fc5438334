"""What the tests of datasets share: folders of small episodes, and what their windows must be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tests.wshard.support import save
from wshard import Episode, Timebase

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]


def arrays_of(number: int, length: int) -> Arrays:
    """The channels of an episode, with values that say which episode and step they are from."""
    steps = np.arange(length + 1)
    rewards = number + steps[:length] / 8
    return {
        "cam": ((steps[:, None, None] * 7 + number * 31) % 251 * np.ones((1, 6, 4))).astype("u1"),
        "state": (1000 * number + steps[:, None] + np.arange(3) / 4).astype("f4"),
        "on": steps[:length] % 3 == 0,
        "ctrl": (-1000.0 * number - steps[:length, None] * np.ones((1, 2))).astype("f8"),
        "reward": rewards.astype("f4"),
        "terminated": steps[:length] == length - 1,
        "truncated": np.zeros(length, bool),
    }


def episode_of(number: int, length: int, metadata: Mapping[str, Any] | None = None) -> Episode:
    """An episode of these arrays. `cam` and `state` have an entry after the last step."""
    arrays = arrays_of(number, length)
    return Episode(
        f"ep {number}",
        timebase=Timebase(tick_hz=30),
        env_id="Push-v0" if number % 2 else "Pull-v0",
        observations={name: arrays[name] for name in ("cam", "state", "on")},
        actions={"ctrl": arrays["ctrl"]},
        rewards=arrays["reward"],
        terminations=arrays["terminated"],
        truncations=arrays["truncated"],
        metadata=metadata,
    )


def write_folder(
    folder: Path,
    lengths: Sequence[int],
    compression: str | None = "zstd",
    metadata: Sequence[Mapping[str, Any]] | None = None,
) -> Path:
    """A file `ep_<number>.wshard` for each length."""
    folder.mkdir(exist_ok=True, parents=True)
    for number, length in enumerate(lengths):
        episode = episode_of(number, length, metadata[number] if metadata else None)
        save(episode, folder / f"ep_{number}.wshard", compression, steps_per_frame=4)
    return folder


def window_of(number: int, length: int, start: int, window: int, pad: str) -> Arrays:
    """What a window must be, made with plain NumPy."""
    stop = min(start + window, length)
    missing = start + window - stop
    found = {}
    for key, array in arrays_of(number, length).items():
        part = array[start:stop]
        widths = [(0, missing)] + [(0, 0)] * (part.ndim - 1)
        found[key] = np.pad(part, widths, mode="edge" if pad == "edge" else "constant")
    found["t"] = start + np.arange(window)
    if pad != "none":
        found["is_pad"] = np.arange(window) >= stop - start
    return found


def assert_equal_windows(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """The same keys, types and values."""
    assert found.keys() == wanted.keys()
    for key, array in wanted.items():
        assert found[key].dtype == array.dtype, key
        assert np.array_equal(found[key], array), key
