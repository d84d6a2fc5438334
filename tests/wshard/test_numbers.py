"""Numbers that a file merely claims, and numbers at the ends of their range: errors of ours, and no memory."""

from __future__ import annotations

import struct
import tracemalloc
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shard_format.errors import BadValue, ShardError, SizeMismatch
from tests.shard_format.support import HandMade, Row
from tests.wshard.support import described, hand_made
from wshard import Channel, Episode, load_wshard
from wshard.editing import slice_episode
from wshard.plot import plot_episode
from wshard.windows import wanted_channels

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

LONG = 1 << 28
OWN_CLOCK: dict[str, Any] = {"length": LONG, "start_ns": 0, "sampling_rate_hz": 1000}


def row(**fields: Any) -> dict[str, Any]:  # noqa: ANN401 - fields of a row
    return {"id": "x", "dtype": "f32", "shape": [], **fields}


@pytest.mark.parametrize(
    ("fields", "blocks"),
    [
        (row(**OWN_CLOCK), {}),
        (row(shape=[0], **OWN_CLOCK), {}),
        (row(shape=[0], length=LONG), {}),
        (row(layout="ragged", offsets_block="o", **OWN_CLOCK), {"o": bytes(8)}),
        (row(dtype="u8", layout="text", offsets_block="o", length=LONG), {"o": bytes(8)}),
    ],
    ids=["dense", "empty steps", "empty steps without a clock", "ragged", "text"],
)
def test_the_times_of_a_channel_need_the_bytes_of_its_entries(
    fields: dict[str, Any], blocks: dict[str, bytes]
) -> None:
    ep = load_wshard(hand_made({**described(4, [fields]), "signal/x": b"", **blocks}))
    tracemalloc.start()
    try:
        with pytest.raises(SizeMismatch):
            ep.times_ns("x")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_length_that_an_entry_backs_is_read() -> None:
    length = (1 << 20) + 1
    ep = load_wshard(hand_made({**described(length, []), "done": bytes(length)}))
    assert len(ep.times_ns()) == len(ep.ticks) == length


def test_an_entry_that_only_claims_its_size_backs_nothing() -> None:
    text = b'{"episode_id":"ep","length_T":%d}' % LONG
    claim = Row(b"done", bytes(16), flags=3, orig_size=LONG)
    with pytest.raises(SizeMismatch, match=r"\[W-EPI-5\]"):
        load_wshard(HandMade([Row(b"meta/episode", text), claim], role=5).to_bytes())


@pytest.mark.parametrize("rate", [5e-324, 1e-300, 1e-10])
def test_a_part_of_an_episode_with_a_tiny_rate_has_no_times_of_ours(rate: float) -> None:
    fields = described(4, [row()], timebase={"tick_hz": rate})
    ep = load_wshard(hand_made({**fields, "signal/x": bytes(16)}))
    with pytest.raises(BadValue, match="64 bits"):
        slice_episode(ep, 3, 4)


@pytest.mark.parametrize("times", [[0, 2**63 - 1], [2**62, -(2**62)], [2**63 - 1]])
def test_a_time_after_the_last_step_that_does_not_fit_is_an_error(times: list[int]) -> None:
    count = len(times)
    entries = described(count, [row()])
    entries["time/timestamps_ns"] = struct.pack(f"<{count}q", *times)
    ep = load_wshard(hand_made({**entries, "signal/x": bytes(4 * count + 4)}))
    with pytest.raises(BadValue, match="64 bits"):
        ep.times_ns("x")


def _extremes(dtype: str) -> list[NDArray[Any]]:
    ends = np.finfo(dtype)
    rows = [[np.nan] * 4, [np.inf, -np.inf, 0, 1], [ends.max, -ends.max] * 2, [ends.tiny, 0, 1, 2]]
    return [np.array(one, dtype) for one in rows]


@pytest.mark.parametrize("values", [*_extremes("f4"), *_extremes("f8")], ids=lambda v: str(v[:2]))
def test_extreme_values_are_aligned_and_drawn_without_warnings(
    values: NDArray[Any], tmp_path: Path
) -> None:
    ep = Episode("ep", length=4)
    ep.timebase.tick_hz = 10.0
    ep.observations["x"] = values
    ep.observations["own"] = Channel(data=values, start_ns=3, sampling_rate_hz=7.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ep.align(method="linear")
        ep.align(np.array([-(2**63), 0, 2**63 - 1]), "linear")
        plot_episode(ep, tmp_path / "out.png")


@pytest.mark.parametrize("shape", [[2**62], [2**31, 2**31, 0], [2**40]])
def test_windows_are_not_made_of_claims(shape: list[int]) -> None:
    entries = described(4, [row(shape=shape)])
    with pytest.raises(ShardError):
        wanted_channels(load_wshard(hand_made({**entries, "signal/x": b""})), None)
