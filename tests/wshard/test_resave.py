"""Loading and saving again: what was not changed stays, to the last byte."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shard_format import ShardReader, ShardWriter, WriterOptions, verify_identity
from tests.wshard.support import (
    GOLDEN,
    VECTORS,
    assert_same,
    described,
    entries_of,
    full_episode,
    hand_made,
    ramp,
    save,
)
from wshard import Channel, Episode, load_wshard, save_wshard
from wshard.editing import slice_episode
from wshard.types import FileOptions, TextChannel

if TYPE_CHECKING:
    from pathlib import Path

# Files whose header differs from ours in what carries no meaning: flags, or how names are ended.
OTHER_HEADS = {
    *("episode_go_form", "episode_python_form", "episode_stream_form", "episode_typescript_form"),
}
EPISODES = [
    path
    for path in sorted((VECTORS / "valid").glob("*.wshard"))
    if "episode" in json.loads(path.with_suffix(".json").read_text("utf-8"))
]


def is_compressed(path: Path) -> bool:
    with ShardReader(path) as reader:
        return any(info.codec.value for info in reader.infos())


def without_identity(path: Path) -> dict[str, bytes]:
    return {name: data for name, data in entries_of(path).items() if name != "meta/identity"}


class TestUnchanged:
    """Nothing is added, nothing is lost, nothing moves."""

    @pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
    def test_golden_files_come_back_byte_by_byte(self, tmp_path: Path, path: Path) -> None:
        how = "keep" if is_compressed(path) else None
        for ep in (load_wshard(path), load_wshard(path).load()):
            again = save(ep, tmp_path / "a.wshard", how)
            assert again.read_bytes() == path.read_bytes()

    @pytest.mark.parametrize("path", EPISODES, ids=lambda path: path.stem)
    def test_every_valid_episode_comes_back(self, tmp_path: Path, path: Path) -> None:
        how = "keep" if is_compressed(path) else None
        again = save(load_wshard(path), tmp_path / "a.wshard", how)
        if b'"v":1}' in entries_of(path).get("meta/identity", b""):
            # The identity becomes one of version 2: what is saved has it, and comes back from then on.
            assert without_identity(again) == without_identity(path)
            assert verify_identity(again).version == 2
            path, again = again, save(load_wshard(again), tmp_path / "b.wshard", how)
        assert entries_of(again) == entries_of(path)
        with ShardReader(path) as old, ShardReader(again) as new:
            assert new.names() == old.names()
            assert [i.content_type for i in new.infos()] == [i.content_type for i in old.infos()]
            assert new.header.alignment == old.header.alignment
        if path.stem not in OTHER_HEADS:
            assert again.read_bytes() == path.read_bytes()

    @pytest.mark.parametrize("path", EPISODES, ids=lambda path: path.stem)
    def test_a_clone_holds_the_same(self, tmp_path: Path, path: Path) -> None:
        ep = load_wshard(path)
        assert_same(ep.clone(), ep)

    def test_a_schema_section_and_tags_are_kept(self, tmp_path: Path) -> None:
        entries = entries_of(save(full_episode(), tmp_path / "a.wshard"))
        with ShardWriter(
            tmp_path / "b.wshard",
            role=5,
            options=WriterOptions(schema={"description": "mine", "x": 1}),
            fsync=False,
        ) as writer:
            for name, content in entries.items():
                writer.write_entry(name, content, content_type=6, tags=3)
        path = save(load_wshard(tmp_path / "b.wshard"), tmp_path / "c.wshard")
        with ShardReader(path) as reader:
            assert reader.schema is not None
            assert reader.schema.fields["x"] == 1
            assert {(i.content_type, i.tag_bits) for i in reader.infos() if "/" not in i.name} == {
                (6, 3)
            }

    def test_unknown_entries_and_fields_survive(self, tmp_path: Path) -> None:
        rows = [{"id": "x", "dtype": "float32", "shape": None, "x_note": [1, {"y": None}]}]
        entries: dict[str, Any] = {
            **described(2, rows, x_robot="arm 3", source={"a": 1}),
            "meta/wshard": {"version": 1, "x_thing": True},
            "meta/models": {"models": []},
            "signal/x": bytes(8),
            "aux/what": b"any",
            "strange": b"",
        }
        entries["meta/channels"]["x_also"] = 5
        path = tmp_path / "a.wshard"
        path.write_bytes(hand_made(entries))
        ep = load_wshard(path)
        assert save(ep, tmp_path / "b.wshard").read_bytes() != b""
        assert entries_of(tmp_path / "b.wshard") == entries_of(path)
        ep.metadata["new"] = 1
        ep.observations["x"].unit = "m"
        again = entries_of(save(ep, tmp_path / "c.wshard"))
        episode, channels = json.loads(again["meta/episode"]), json.loads(again["meta/channels"])
        assert episode == {**entries["meta/episode"], "metadata": {"new": 1}}
        assert channels["x_also"] == 5
        assert channels["channels"][0]["x_note"] == [1, {"y": None}]
        assert channels["channels"][0]["unit"] == "m"
        for name in ("meta/wshard", "meta/models", "aux/what", "strange", "signal/x"):
            assert again[name] == entries_of(path)[name]

    def test_odd_names_are_saved_as_they_came(self, tmp_path: Path) -> None:
        entries = {
            **described(2, []),
            **{name: bytes(8) for name in ("signal/", "signal/../x", "omen/state", "action//a")},
            "uncert/a": bytes(8),
            "residual/sign2nddiff": b"1",
            "label/": {"intervals": []},
        }
        path = tmp_path / "a.wshard"
        path.write_bytes(hand_made(entries))
        assert entries_of(save(load_wshard(path), tmp_path / "b.wshard")) == entries_of(path)


class TestChanged:
    """One change changes one thing."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return save(full_episode(), tmp_path / "a.wshard", options=FileOptions(identity=True))

    def changed(self, path: Path, change: Any) -> set[str]:  # noqa: ANN401 - a function
        """Which entries differ after a change."""
        ep = load_wshard(path)
        change(ep)
        again = save(ep, path.with_name("b.wshard"))
        before, after = entries_of(path), entries_of(again)
        load_wshard(again).load()
        with ShardReader(again) as reader:
            kept = [name for name in ShardReader(path).names() if name in after]
            assert [name for name in reader.names() if name in before] == kept
        names = before.keys() | after.keys()
        return {n for n in names if before.get(n) != after.get(n)} - {"meta/identity"}

    @pytest.mark.parametrize(
        ("change", "entries"),
        [
            (lambda ep: ep.metadata.update(x=1), {"meta/episode"}),
            (lambda ep: setattr(ep, "env_id", "other"), {"meta/episode"}),
            (lambda ep: setattr(ep.timebase, "tick_hz", 7.0), {"meta/episode"}),
            (lambda ep: setattr(ep.observations["state"], "unit", "deg"), {"meta/channels"}),
            (
                lambda ep: setattr(ep.actions["ctrl"], "data", ramp(12, 2, dtype="f8") * 2),
                {"action/ctrl"},
            ),
            (lambda ep: ep.actions.update(ctrl=ramp(12)), {"action/ctrl", "meta/channels"}),
            (lambda ep: ep.actions.pop("ctrl"), {"action/ctrl", "meta/channels"}),
            (lambda ep: ep.actions.update(new=ramp(12)), {"action/new", "meta/channels"}),
            (lambda ep: ep.labels["skill"].append((1, 2, "x")), {"label/skill"}),
            (lambda ep: setattr(ep, "truncations", None), {"truncated"}),
            (lambda ep: setattr(ep, "ticks", np.arange(12) * 2), {"time/ticks"}),
            (lambda ep: ep.extras.update({"aux/blob": b"new"}), {"aux/blob"}),
            (lambda ep: setattr(ep, "provenance", None), {"meta/provenance"}),
            (
                lambda ep: setattr(ep.observations["imu"], "timestamps_ns", np.arange(36)),
                {"time/signal/imu"},
            ),
            (
                lambda ep: ep.residuals.pop("state"),
                {"residual/state/sign2nddiff", "meta/channels"},
            ),
            (
                lambda ep: setattr(ep.observations["text"], "data", ["x"] * 12),
                {"signal/text", "offsets/signal/text"},
            ),
            (lambda ep: ep.load(), set()),
        ],
    )
    def test_only_what_was_changed_differs(
        self,
        path: Path,
        change: Any,  # noqa: ANN401 - a function
        entries: set[str],
    ) -> None:
        assert self.changed(path, change) == entries

    def test_a_renamed_channel_takes_its_clock_and_offsets_along(self, path: Path) -> None:
        def rename(ep: Any) -> None:  # noqa: ANN401 - an episode
            ep.observations["words"] = ep.observations.pop("text")
            ep.observations["text"] = ["other"] * 12
            ep.observations["gyro"] = ep.observations.pop("imu")

        changed = self.changed(path, rename)
        assert {"signal/words", "offsets/signal/words", "signal/gyro", "time/signal/gyro"} < changed
        again = load_wshard(path.with_name("b.wshard"))
        assert again.observations["words"].data == full_episode().observations["text"].data
        assert again.observations["text"].data == ["other"] * 12

    def test_of_two_that_share_a_clock_one_may_change_its_own(self, tmp_path: Path) -> None:
        for changed, other in (("a", "b"), ("b", "a")):
            ep = full_episode()
            for name in "ab":
                ep.observations[name] = Channel(data=ramp(3), timestamps_ns=[1, 2, 3])
            loaded = load_wshard(save(ep, tmp_path / "a.wshard"))
            loaded.observations[changed].timestamps_ns = np.array([7, 8, 9])
            again = load_wshard(save(loaded, tmp_path / "b.wshard"))
            assert again.times_ns(changed).tolist() == [7, 8, 9]
            assert again.times_ns(other).tolist() == [1, 2, 3]

    def test_a_new_rate_replaces_the_old_one_wherever_it_stood(self, tmp_path: Path) -> None:
        golden = next(path for path in GOLDEN if "simple" in path.stem)
        ep = load_wshard(golden)
        ep.timebase.tick_hz = 12.5
        assert load_wshard(save(ep, tmp_path / "a.wshard")).timebase.tick_hz == 12.5

    def test_a_changed_block_keeps_its_codec_and_filters(self, tmp_path: Path) -> None:
        ep = Episode("ep")
        ep.observations["joints"] = np.cumsum(np.ones((4000, 7), np.float32), axis=0)
        save_wshard(ep, tmp_path / "a.wshard", profile="training", fsync=False)
        with load_wshard(tmp_path / "a.wshard") as loaded:
            changed = loaded.observations["joints"].data + 1
            loaded.observations["joints"].data = changed
            save_wshard(loaded, tmp_path / "b.wshard", fsync=False)
        with (
            ShardReader(tmp_path / "a.wshard") as before,
            ShardReader(tmp_path / "b.wshard") as now,
        ):
            assert before.filters("signal/joints") is not None
            assert now.filters("signal/joints") == before.filters("signal/joints")
            assert now.info("signal/joints").codec == before.info("signal/joints").codec
        again = load_wshard(tmp_path / "b.wshard").observations["joints"].data
        np.testing.assert_array_equal(again, changed)

    def test_an_identity_is_made_anew_where_there_was_one(self, path: Path, tmp_path: Path) -> None:
        ep = load_wshard(path)
        ep.metadata["x"] = 1
        again = save(ep, tmp_path / "c.wshard")
        assert entries_of(again)["meta/identity"] != entries_of(path)["meta/identity"]
        assert "meta/identity" not in entries_of(
            save(ep, tmp_path / "c.wshard", options=FileOptions(identity=False))
        )


class TestCopies:
    """Copies and parts of an episode carry what this library does not know."""

    def test_unknown_fields_survive_clones_and_slices(self, tmp_path: Path) -> None:
        episode = Episode("ep", observations={"x": np.arange(20, dtype=np.float32)})
        save_wshard(episode, tmp_path / "a.wshard")
        with ShardReader(tmp_path / "a.wshard") as reader:
            texts = {name: reader.read_entry(name) for name in reader.names()}
        texts["meta/episode"] = texts["meta/episode"].replace(b"{", b'{"lab":{"room":3},', 1)
        texts["meta/wshard"] = texts["meta/wshard"].replace(b"{", b'{"written_by":"somebody",', 1)
        with ShardWriter(tmp_path / "b.wshard", role="wshard") as writer:
            for name, text in texts.items():
                writer.write_entry(name, text)
        loaded = load_wshard(tmp_path / "b.wshard")
        for number, copy in enumerate((loaded.clone(), slice_episode(loaded, 5, 10))):
            path = tmp_path / f"copy_{number}.wshard"
            save_wshard(copy, path)
            with ShardReader(path) as reader:
                assert reader.read_json("meta/episode")["lab"] == {"room": 3}
                assert reader.read_json("meta/wshard")["written_by"] == "somebody"


def test_text_that_the_format_does_not_define_is_saved_again(tmp_path: Path) -> None:
    ep = Episode("ep", length=3)
    ep.extras["notes/text"] = TextChannel("notes/text", ["a", "", "c"])
    save_wshard(ep, tmp_path / "first.wshard")
    save_wshard(load_wshard(tmp_path / "first.wshard"), tmp_path / "second.wshard")
    with load_wshard(tmp_path / "second.wshard") as again:
        assert list(again.extras) == ["notes/text"]
        assert again.extras["notes/text"].data == ["a", "", "c"]
