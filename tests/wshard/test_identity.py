"""Who an episode is: by content, whatever its storage."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest

from shard_format import ShardReader, ShardWriter, WriterOptions
from shard_format.errors import IdentityMismatch
from tests.wshard.support import GOLDEN, VECTORS, entries_of, full_episode, ramp, save
from wshard import Channel, Episode, Timebase, load_wshard
from wshard.doctor import examine
from wshard.editing import compact
from wshard.identity import Identity, episode_identity, stored_identity, verify_identity
from wshard.types import FileOptions

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
    assert Identity(episode_identity(ep).entries).digest == PUBLISHED[name]
    for compression in (None, "zstd", "lz4"):
        path = save(ep, tmp_path / "a.wshard", compression, options=FileOptions(identity=True))
        assert stored_identity(ShardReader(path)) == episode_identity(ep)
        assert verify_identity(path, PUBLISHED[name]).version == 1
        assert verify_identity(path).version == 2


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


def test_the_schema_section_is_part_of_it(tmp_path: Path) -> None:
    entries = entries_of(save(full_episode(), tmp_path / "a.wshard"))
    options = WriterOptions(schema={"description": "mine"})
    with ShardWriter(tmp_path / "b.wshard", role=5, options=options, fsync=False) as writer:
        for name, content in entries.items():
            writer.write_entry(name, content)
    ep = load_wshard(tmp_path / "b.wshard")
    assert episode_identity(ep) == episode_identity(tmp_path / "b.wshard")
    assert episode_identity(ep) == verify_identity(
        save(ep, tmp_path / "c.wshard", options=FileOptions(identity=True))
    )
    assert str(episode_identity(ep)) != str(episode_identity(tmp_path / "a.wshard"))


@pytest.mark.parametrize("name", ["sidecar", "sidecars", "sidecar_identity_2"])
def test_sidecars_state_an_identity_of_either_version(tmp_path: Path, name: str) -> None:
    shutil.copytree(VECTORS / "valid_episodes" / name, tmp_path / name)
    path = tmp_path / name / "ep.wshard"
    assert examine(path).ok
    compact(path, fsync=False)
    assert "omen/state/m" in entries_of(path)


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
    path = save(ep, tmp_path / "a.wshard", options=FileOptions(identity=True))
    wanted = str(episode_identity(path))
    ep.observations["a"] = [0, 1, 0.5, 3, 4]
    with pytest.raises(IdentityMismatch):
        verify_identity(save(ep, tmp_path / "b.wshard", options=FileOptions(identity=True)), wanted)
