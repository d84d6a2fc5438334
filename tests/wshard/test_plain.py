"""The fast way of filling the lanes of plain episodes gives what the general way gives."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import wshard.reader
from tests.wshard.support import VECTORS
from wshard import Channel, Episode, load_wshard, save_wshard
from wshard.plain import plain_plan

if TYPE_CHECKING:
    from pathlib import Path

FILES = [
    path
    for path in sorted((VECTORS / "valid").glob("*.wshard"))
    if '"episode": {' in path.with_suffix(".json").read_text("utf-8")
]


def channel_facts(channel: Channel) -> dict[str, Any]:
    facts = {key: value for key, value in vars(channel).items() if key[:1] != "_"}
    block = channel._block
    assert block is not None
    return facts | {
        "type": type(channel),
        "length": channel.length,
        "bytes": (block.name, block.nbytes, block.is_compressed),
    }


def lanes(episode: Episode) -> dict[str, Any]:
    clocks = {
        "ticks": episode.ticks.tolist(),
        "timestamps": None if episode.timestamps_ns is None else episode.timestamps_ns.tolist(),
    }
    channels = [(name, channel_facts(channel)) for name, channel in episode.blocks()]
    others = [*episode.residuals, *episode.labels, *episode.extras]
    return {"channels": channels, "others": others, **clocks}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_both_ways_fill_the_same_lanes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = lanes(load_wshard(path))
    monkeypatch.setattr(wshard.reader, "plain_plan", lambda *_: None)
    assert lanes(load_wshard(path)) == fast


def test_a_plain_episode_takes_the_fast_way_and_others_do_not(tmp_path: Path) -> None:
    episode = Episode("ep", observations={"x": np.zeros((3, 2))}, rewards=np.zeros(3, np.float32))
    episode.terminations = np.zeros(3, bool)
    save_wshard(episode, tmp_path / "plain.wshard")
    episode.omens["x"]["m"] = np.zeros((3, 2))
    save_wshard(episode, tmp_path / "other.wshard")
    for name, is_plain in (("plain", True), ("other", False)):
        loaded = load_wshard(tmp_path / f"{name}.wshard")
        assert loaded.origin is not None
        plan = plain_plan(loaded.origin.reader, loaded.origin.rows)
        assert (plan is not None) is is_plain


def test_threads_that_touch_an_episode_at_once_see_the_same_lanes(tmp_path: Path) -> None:
    path = tmp_path / "e.wshard"
    save_wshard(Episode("ep", observations={"x": np.arange(6.0)}), path)
    for _ in range(50):
        episode = load_wshard(path)
        barrier = threading.Barrier(4)
        seen: list[Any] = []

        def touch(episode: Episode = episode, barrier: Any = barrier, seen: Any = seen) -> None:  # noqa: ANN401 - this round's
            barrier.wait()
            seen.append(episode.observations)

        threads = [threading.Thread(target=touch) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(seen) == 4
        assert all(lane is episode.observations for lane in seen)
        assert list(episode.observations) == ["x"]
