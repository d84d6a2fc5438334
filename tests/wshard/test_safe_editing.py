"""Editing is safe: metadata, labels and lanes change without rewriting or losing anything."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

import wshard
from shard_format import Codec, ShardReader
from shard_format.errors import EntryNotFound, InvalidArgument, ReferenceMismatch
from tests.wshard.support import full_episode, ramp, save
from wshard import Episode, add_lane, compact, edit, load_wshard, remove_lane, save_wshard
from wshard.types import Timebase

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import FrameType

T = 12
OMEN = "omen/state/v2"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "episodes").mkdir()
    return save(full_episode(), tmp_path / "episodes" / "ep.wshard")


def calls_of(run: Callable[[], object]) -> set[str]:
    """The names of the Python functions that are called."""
    names: set[str] = set()

    def note(frame: FrameType, event: str, arg: object) -> None:
        names.add(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return names


class TestEdit:
    """`wshard.edit`."""

    def test_metadata_and_labels_change_without_the_file(self, path: Path) -> None:
        before = path.read_bytes()
        edit(path, metadata={"success": True}, labels={"phase": [(0, 4, "reach")]}, fsync=False)
        edit(path, metadata={"note": "x", "success": None}, fsync=False)
        edit(path, metadata={"success": False}, labels={"skill": None}, fsync=False)
        assert path.read_bytes() == before
        with load_wshard(path) as ep:
            assert (ep.metadata["success"], ep.metadata["note"]) == (False, "x")
            assert ep.labels["phase"][0].text == "reach"
            assert "skill" not in ep.labels
        with load_wshard(path, sidecars=False) as ep:
            assert "success" not in ep.metadata

    def test_compact_folds_it_in(self, path: Path) -> None:
        edit(path, metadata={"success": True}, fsync=False)
        add_lane(path, OMEN, ramp(T), fsync=False)
        compact(path, fsync=False)
        assert [each.name for each in path.parent.iterdir()] == ["ep.wshard"]
        with load_wshard(path, sidecars=False) as ep:
            assert ep.metadata["success"] is True
            assert "v2" in ep.omens["state"]

    def test_an_edit_of_other_content_is_not_taken_over(self, path: Path) -> None:
        """Someone has put another episode in the place of the one that was edited."""
        edit(path, metadata={"success": True}, fsync=False)
        other = Episode("other", length=T)
        other.observations["state"] = ramp(T, 3)
        save(other, path.with_name("other.wshard")).replace(path)
        with pytest.raises(ReferenceMismatch, match="belongs to an episode with another"):
            edit(path, metadata={"note": "x"}, fsync=False)
        (path.parent / "ep.wshard.lanes" / "meta.edit.wshard").unlink()
        edit(path, metadata={"note": "x"}, fsync=False)
        with load_wshard(path, sidecars="strict") as ep:
            assert ep.metadata == {"note": "x"}

    def test_nothing_to_change_is_refused(self, path: Path) -> None:
        with pytest.raises(InvalidArgument, match="nothing to change"):
            edit(path)


class TestRemoveLane:
    """`wshard.remove_lane`."""

    def test_a_lane_goes_and_the_others_stay(self, path: Path) -> None:
        lanes = {OMEN: ramp(T), "uncert/state/v2/std": ramp(T)}
        add_lane(path, lanes, name="v2", fsync=False)
        remove_lane(path, OMEN, fsync=False)
        with load_wshard(path, sidecars="strict") as ep:
            assert "v2" not in ep.omens["state"]
            assert ep.uncerts["state"]["v2"]["std"].data.tolist() == ramp(T).tolist()
        remove_lane(path, "uncert/state/v2/std", fsync=False)
        assert [each.name for each in path.parent.iterdir()] == ["ep.wshard"]

    def test_what_is_not_there_or_in_the_file_itself_is_told(self, path: Path) -> None:
        add_lane(path, OMEN, ramp(T), fsync=False)
        with pytest.raises(EntryNotFound, match="did you mean 'omen/state/v2'"):
            remove_lane(path, "omen/state/v3")
        with pytest.raises(InvalidArgument, match="own file"):
            remove_lane(path, "signal/state")


class TestSavingOver:
    """An episode with sidecars is saved over itself."""

    def test_new_metadata_keeps_the_lanes(self, path: Path) -> None:
        add_lane(path, OMEN, ramp(T), fsync=False)
        edit(path, metadata={"note": "x"}, fsync=False)
        with load_wshard(path) as ep:
            ep.metadata["success"] = True
            ep.metadata["note"] = "y"
            save_wshard(ep, path, fsync=False)
        with load_wshard(path, sidecars="strict") as ep:
            assert (ep.metadata["success"], ep.metadata["note"]) == (True, "y")
            assert ep.omens["state"]["v2"].data.tolist() == ramp(T).tolist()
        with load_wshard(path, sidecars=False) as ep:
            assert "v2" not in ep.omens["state"]
            ep.metadata["again"] = 1
            save_wshard(ep, path, fsync=False)
        assert "v2" in load_wshard(path, sidecars="strict").omens["state"]

    def test_another_ground_truth_is_refused_with_the_ways_out(self, path: Path) -> None:
        add_lane(path, OMEN, ramp(T), fsync=False)
        before = path.read_bytes()
        with load_wshard(path) as ep:
            ep.observations["state"] = ep.observations["state"].data + 1
            with pytest.raises(InvalidArgument, match=r"compact.*remove_lane.*another name"):
                save_wshard(ep, path, fsync=False)
        assert path.read_bytes() == before
        assert sorted(each.name for each in path.parent.iterdir()) == [
            "ep.wshard",
            "ep.wshard.lanes",
        ]
        assert "v2" in load_wshard(path, sidecars="strict").omens["state"]

    def test_a_label_that_was_added_as_a_lane_stays_in_its_sidecar(self, path: Path) -> None:
        add_lane(path, "label/phase", [(0, 4, "reach")], fsync=False)
        with load_wshard(path) as ep:
            ep.metadata["success"] = True
            save_wshard(ep, path, fsync=False)
        with load_wshard(path, sidecars="strict") as ep:
            assert ep.labels["phase"][0].text == "reach"
            ep.labels["phase"] = [(0, 4, "grasp")]
            with pytest.raises(InvalidArgument, match="label/phase"):
                save_wshard(ep, path, fsync=False)


class TestStoredForm:
    """Saving a loaded episode keeps how it is stored."""

    def test_unchanged_blocks_are_copied_and_changed_ones_encoded_as_before(
        self, tmp_path: Path
    ) -> None:
        ep = Episode("e", observations={"a": np.zeros((4000, 4), np.float32)})
        ep.actions["b"] = np.ones((4000, 2), np.float32)
        path = save(ep, tmp_path / "a.wshard", "zstd:5")
        with load_wshard(path) as loaded:
            _ = loaded.observations["a"].data
            loaded.actions["b"] = loaded.actions["b"].data * 2
            save_wshard(loaded, tmp_path / "b.wshard", fsync=False)
        with ShardReader(path) as old, ShardReader(tmp_path / "b.wshard") as new:
            assert b"".join(old.iter_stored("signal/a")) == b"".join(new.iter_stored("signal/a"))
            assert new.info("action/b").codec is Codec.ZSTD
        assert load_wshard(tmp_path / "b.wshard").actions["b"].data[0].tolist() == [2, 2]

    def test_unchanged_blocks_are_not_decoded(self, tmp_path: Path) -> None:
        ep = Episode("e", observations={"a": np.zeros((4000, 4), np.float32)})
        path = save(ep, tmp_path / "a.wshard", {"a": "zstd:5"})
        loaded = load_wshard(path)
        loaded.metadata["note"] = "x"
        saving = calls_of(lambda: save_wshard(loaded, tmp_path / "b.wshard", fsync=False))
        reading = calls_of(lambda: loaded.observations["a"].data)
        assert "decode_frame_into" in reading
        assert "decode_frame_into" not in saving

    def test_a_mistyped_block_is_an_error(self, tmp_path: Path) -> None:
        ep = Episode("e", observations={"rgb": ramp(9)})
        for options in ({"compression": {"signal/rbg": "zstd"}}, {"steps_per_frame": {"rbg": 4}}):
            with pytest.raises(EntryNotFound, match=r"did you mean '(signal/)?rgb'"):
                save_wshard(ep, tmp_path / "a.wshard", **options)
        assert list(tmp_path.iterdir()) == []
        save_wshard(ep, tmp_path / "a.wshard", {"depth*": "zstd", "*": "none"}, fsync=False)


class TestStrict:
    """Names that do not exist."""

    def test_unknown_attributes_are_refused(self) -> None:
        ep = Episode("e", observations={"qpos": ramp(3)})
        with pytest.raises(AttributeError, match="did you mean 'rewards'"):
            ep.reward = ramp(3)  # type: ignore[attr-defined]
        with pytest.raises(AttributeError, match="did you mean 'actions'"):
            _ = ep.actionz  # type: ignore[attr-defined]
        with pytest.raises(AttributeError, match="did you mean 'unit'"):
            ep.observations["qpos"].units = "rad"  # type: ignore[attr-defined]

    @pytest.mark.parametrize("lane", ["omens", "omne", "omem", "uncerts", "signals", "labels"])
    def test_a_mistyped_lane_is_refused(self, path: Path, lane: str) -> None:
        with pytest.raises(InvalidArgument, match=r"did you mean '(omen|uncert|signal|label)'"):
            add_lane(path, f"{lane}/state/v2/std", ramp(T), fsync=False)
        add_lane(path, "mine/state", ramp(T), fsync=False)

    def test_unknown_keys_suggest_similar_ones_or_else_all(self) -> None:
        ep = Episode("e", observations={"qpos": ramp(3)}, omens={"qpos": {"dreamer": ramp(3)}})
        with pytest.raises(EntryNotFound, match="did you mean 'qpos'"):
            _ = ep.observations["qposs"]
        with pytest.raises(EntryNotFound, match="no 'camera' in 'signal'; there is only 'qpos'"):
            _ = ep.observations["camera"]
        with pytest.raises(KeyError, match="did you mean 'dreamer'"):
            _ = ep.omens["qpos"]["dreamr"]
        with pytest.raises(KeyError):
            del ep.observations["qposs"]
        assert ep.observations.get("qposs") is None


class TestClock:
    """Nothing invents a clock."""

    def test_an_episode_without_a_rate_has_none(self, tmp_path: Path) -> None:
        ep = Episode("e", observations={"a": ramp(3)}, labels={"l": [(0, 2, "x")]})
        loaded = load_wshard(save(ep, tmp_path / "a.wshard"))
        assert loaded.timebase.tick_hz is None
        assert loaded.timebase.dt_ns is None
        with pytest.raises(InvalidArgument, match="tick_hz"):
            loaded.times_ns()
        assert wshard.editing.slice_episode(loaded, 1, 3).length == 2
        loaded.timebase = Timebase(tick_hz=10)
        assert loaded.times_ns().tolist() == [0, 100_000_000, 200_000_000]

    def test_times_show_a_rate(self) -> None:
        ep = Episode("e", timestamps_ns=np.arange(5) * 40_000_000)
        assert ep.timebase.tick_hz == 25


class TestNames:
    """Entries that look like lanes and are not."""

    @pytest.mark.parametrize("name", ["signal", "action", "signal/", "omen", "omen/x", "label/"])
    def test_a_prefix_alone_is_an_unknown_entry(self, tmp_path: Path, name: str) -> None:
        ep = Episode("e", observations={"a": ramp(3)})
        ep.extras.adopt(name, wshard.types.Extra(name, b"kept"))
        path = save(ep, tmp_path / "a.wshard")
        loaded = load_wshard(path)
        assert list(loaded.observations) == ["a"]
        assert (len(loaded.actions), len(loaded.omens), len(loaded.labels)) == (0, 0, 0)
        extra = loaded.extras[name]
        assert isinstance(extra, wshard.types.Extra)
        assert bytes(extra) == b"kept"
        assert bytes(load_wshard(save(loaded, tmp_path / "b.wshard")).extras[name].data) == b"kept"
