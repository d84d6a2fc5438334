"""Who an episode is: by content, whatever its storage."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from shard_format import ShardReader
from shard_format.errors import IdentityMismatch
from tests.wshard.support import GOLDEN, full_episode, ramp, save
from wshard import Channel, Episode, Timebase, load_wshard
from wshard.identity import episode_identity, stored_identity, verify_identity

if TYPE_CHECKING:
    from pathlib import Path

# spec-facts, section 6: the golden episodes as the second generation of writers stores them.
PUBLISHED = {
    "golden_simple_episode": "3e49af954ba6cb7fa5f13d931a073e88eaa03b0a2482308e9febc05248aaf7d3",
    "golden_dtype_zoo": "a31da2ca75ae8e0d571e54de1841202cf0936a221bd03878753f8c0771e8930c",
    "golden_per_block_compressed": "69aed52ef5d44d5e199fe86939eb9c66f61bef4c59a730a27f103a2c1de2707b",
}


def as_new(path: Path) -> Episode:
    """A golden episode made anew, as a user would."""
    old = load_wshard(path)
    rate = round(old.timebase.tick_hz or 0)
    ep = Episode(old.id, old.env_id, old.length, Timebase(tick_hz=rate), metadata=old.metadata)
    for name, channel in old.observations.items():
        ep.observations[name] = Channel(data=channel.data, dtype=channel.dtype_name)
        ep.observations[name].modality = channel.modality
    for name, channel in old.actions.items():
        ep.actions[name] = Channel(data=channel.data, dtype=channel.dtype_name)
    ep.rewards, ep.terminations = old.rewards, old.terminations
    return ep


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_identities_are_ours(tmp_path: Path, name: str) -> None:
    ep = as_new(next(path for path in GOLDEN if path.stem == name))
    assert str(episode_identity(ep)) == PUBLISHED[name]
    for compression in (None, "zstd", "lz4"):
        path = save(ep, tmp_path / "a.wshard", compression, identity=True)
        found = stored_identity(ShardReader(path))
        assert found is not None
        assert found.digest == PUBLISHED[name]
        verify_identity(path, PUBLISHED[name])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression": "zstd"},
        {"profile": "training"},
        {"profile": "exchange"},
    ],
)
def test_storage_does_not_matter(tmp_path: Path, options: dict[str, str]) -> None:
    path = save(full_episode(), tmp_path / "a.wshard", **options)
    assert str(episode_identity(path)) == str(episode_identity(full_episode()))


def test_every_change_of_content_changes_it() -> None:
    found = {str(episode_identity(full_episode()))}
    for change in (
        lambda ep: ep.metadata.update(x=1),
        lambda ep: setattr(ep.observations["state"], "unit", "deg"),
        lambda ep: ep.labels["skill"].append((1, 2, "x")),
        lambda ep: ep.extras.update({"aux/blob": b"2"}),
        lambda ep: setattr(ep, "ticks", np.arange(12) + 1),
    ):
        ep = full_episode()
        change(ep)
        found.add(str(episode_identity(ep)))
    assert len(found) == 6


def test_a_changed_file_is_found(tmp_path: Path) -> None:
    ep = Episode("e", observations={"a": ramp(5)})
    path = save(ep, tmp_path / "a.wshard", identity=True)
    wanted = str(episode_identity(path))
    ep.observations["a"] = [0, 1, 0.5, 3, 4]
    with pytest.raises(IdentityMismatch):
        verify_identity(save(ep, tmp_path / "b.wshard", identity=True), wanted)
