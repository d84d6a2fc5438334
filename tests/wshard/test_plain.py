"""The fast way of filling the lanes of plain episodes gives what the general way gives."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wshard.reader
from shard_format import ShardReader
from shard_format._json import canonical, parse_object
from shard_format.errors import ShardError
from shard_format.registry import DEFAULT_LIMITS
from tests.wshard.support import VECTORS
from wshard import Channel, Episode, load_wshard, save_wshard
from wshard.described import parse_episode
from wshard.metadata import EpisodeFacts, episode_fields, parse_facts
from wshard.plain import plain_plan
from wshard.timebase import Timebase

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


TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)


@given(
    name=TEXTS,
    env_id=TEXTS,
    length=st.integers(0, 2**63 - 1),
    rate=st.sampled_from([30, 0.5, 1e-3, 1e6, 59.94]),
    epoch=st.sampled_from([0, 7]),
    metadata=st.sampled_from([{}, {"a": 1}]),
)
def test_the_usual_description_is_understood_without_a_parser_as_with_one(
    name: str, env_id: str, length: int, rate: float, epoch: int, metadata: dict[str, Any]
) -> None:
    facts = EpisodeFacts(
        name, env_id, length, Timebase("ticks", rate, epoch), metadata, None, None, None
    )
    text = canonical(episode_fields(facts))
    reader = ShardReader((VECTORS / "valid" / FILES[0].name).read_bytes())
    for _ in range(2):  # the second time the clock is known
        told, stored = parse_episode(reader, text, {})
        assert told == facts == parse_facts(parse_object(text, "it", DEFAULT_LIMITS), {})
        assert stored == text or stored == episode_fields(facts)


@pytest.mark.parametrize(
    "changed",
    [
        b'"episode_id":"e\xff"',  # not UTF-8
        b'"episode_id":"e\n"',
        b'"episode_id":"e","episode_id":"f"',
        b'"episode_id":"e" ',
    ],
)
def test_what_only_looks_like_the_usual_description_goes_to_the_parser(changed: bytes) -> None:
    facts = EpisodeFacts("e", "", 3, Timebase(), {}, None, None, None)
    usual = canonical(episode_fields(facts))
    reader = ShardReader((VECTORS / "valid" / FILES[0].name).read_bytes())
    parse_episode(reader, usual, {})
    text = usual.replace(b'"episode_id":"e"', changed)
    assert text != usual
    try:
        expected: object = parse_facts(parse_object(text, "it", DEFAULT_LIMITS), {})
    except ShardError as error:
        expected = type(error)
    try:
        found: object = parse_episode(reader, text, {})[0]
    except ShardError as error:
        found = type(error)
    assert found == expected
