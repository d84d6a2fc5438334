"""Lanes added later, without touching the episode."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_format import ShardReader
from shard_format.errors import (
    BadProfile,
    ChecksumMismatch,
    DuplicateName,
    IdentityMismatch,
    InvalidArgument,
    ReferenceMismatch,
)
from tests.shard_format.support import listing
from tests.wshard.support import assert_same, bits, entries_of, full_episode, hand_made, ramp, save
from wshard import Channel, Episode, add_lane, compact, load_wshard
from wshard._sidecar import sidecar_files
from wshard.chunked import ChunkedEpisodeWriter
from wshard.types import Residual, SidecarWarning

T = 12
LANES: dict[str, Any] = {
    "omen/state/v2": ramp(T, 3),
    "uncert/state/v2/std": ramp(T, 3),
    "residual/state/v2/sign2nddiff": Residual.of_error("state", ramp(T), ramp(T) * 2, "v2"),
    "residual/wrist/delta_q": Residual.of_signal("wrist", ramp(T), "delta_q"),
    "label/phases": [(0, 3, "one")],
    "signal/derived": Channel(data=ramp(7), timestamps_ns=np.arange(7), unit="m"),
    "action/hindsight": ramp(T, dtype="i8"),
    "signal/captions": [f"caption {n}" for n in range(T)],
    "embed/clip": ramp(T, 16),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return save(full_episode(), tmp_path / "ep.wshard")


def add(path: Path, block: Any, data: Any = None, **options: Any) -> str:  # noqa: ANN401 - add_lane's
    return add_lane(path, block, data, fsync=False, **options)


class TestAdding:
    """The base stays; the lanes are there as if they were part of it."""

    @pytest.mark.parametrize("block", LANES)
    def test_every_kind_of_lane_reads_as_part_of_the_episode(self, path: Path, block: str) -> None:
        before, when = path.read_bytes(), path.stat().st_mtime_ns
        added = add(path, block, LANES[block])
        assert (path.read_bytes(), path.stat().st_mtime_ns) == (before, when)
        assert sidecar_files(str(path)) == [added]
        wanted = full_episode()
        whole = load_wshard(path)
        plain = load_wshard(path, sidecars=False)
        assert_same(plain, wanted)
        merged = load_wshard(save(whole, path.with_name("whole.wshard")))
        assert entries_of(path.with_name("whole.wshard")).keys() > entries_of(path).keys()
        assert_same(merged, whole)
        for lane in (
            "labels",
            "residuals",
            "extras",
            "observations",
            "actions",
            "omens",
            "uncerts",
        ):
            assert getattr(wanted, lane).keys() <= getattr(whole, lane).keys()

    def test_several_lanes_in_one_sidecar_and_in_several(self, path: Path) -> None:
        add(path, {"omen/state/v2": ramp(T, 3), "uncert/state/v2/std": ramp(T, 3)}, name="v2")
        add(path, "omen/state/v3", ramp(T + 1, 3), compression="zstd")
        ep = load_wshard(path)
        assert list(ep.omens["state"]) == ["dreamer", "v3", "v2"] or set(ep.omens["state"]) == {
            *("dreamer", "v2", "v3")
        }
        assert listing(path.with_name("ep.wshard.lanes")) == ["omen.state.v3.wshard", "v2.wshard"]

    def test_names_in_any_script_make_files_of_their_own(self, path: Path) -> None:
        for block in ("omen/状态/模型", "omen/位置/模型", "omen/käse/ö"):
            add(path, block, ramp(T))
        assert {"状态", "位置", "käse"} < load_wshard(path).omens.keys()

    def test_a_lane_is_added_once_unless_replaced(self, path: Path) -> None:
        add(path, "omen/state/v2", ramp(T))
        with pytest.raises(InvalidArgument, match="replace=True"):
            add(path, "omen/state/v2", ramp(T))
        add(path, "omen/state/v2", ramp(T) + 1, replace=True)
        assert load_wshard(path).omens["state"]["v2"].data[0] == 1
        for block in ("omen/state/v2", "signal/state", "omen/state/dreamer"):
            with pytest.raises(InvalidArgument, match="already"):
                add(path, block, ramp(T), name="other")

    @pytest.mark.parametrize("block", [name for name in LANES if name.startswith("res")])
    def test_a_residual_is_added_once(self, path: Path, block: str) -> None:
        add(path, block, LANES[block])
        with pytest.raises(InvalidArgument, match="already"):
            add(path, block, LANES[block], name="other")
        load_wshard(path).load()

    @pytest.mark.parametrize(
        ("block", "data"),
        [
            ("omen/state/v2", ramp(T + 3)),
            ("omen/state", ramp(T)),
            ("reward", ramp(T)),
            ("meta/x", b"1"),
            ("time/x", ramp(T)),
            ("uncert", ramp(T)),
            ("signal/../x", ramp(T)),
            ("signal/x", np.array([object()] * T)),
            ("residual/other/sign2nddiff", Residual.of_signal("state", ramp(T))),
            ("residual/state/x", ramp(T)),
            ({}, None),
        ],
    )
    def test_what_is_no_lane_is_refused(self, path: Path, block: Any, data: Any) -> None:  # noqa: ANN401 - anything
        with pytest.raises(InvalidArgument):
            add(path, block, data)
        assert sidecar_files(str(path)) == []
        assert_same(load_wshard(path), full_episode())

    def test_an_undescribed_lane_is_guessed_from_its_signal_and_described_in_a_new_file(
        self, tmp_path: Path
    ) -> None:
        """Sections 10 and 12; W-INF-1."""
        codes = np.arange(3, dtype=np.int32)
        path = save(Episode("e", observations={"code": codes}), tmp_path / "e.wshard")
        sidecar = Path(add(path, "omen/code/m", codes))
        entries: dict[str, Any] = entries_of(sidecar)
        sidecar.write_bytes(hand_made({**entries, "meta/channels": {"channels": []}}))
        loaded = load_wshard(path)
        assert loaded.omens["code"]["m"].inferred
        assert loaded.omens["code"]["m"].data.tolist() == codes.tolist()
        again = load_wshard(save(loaded, tmp_path / "new.wshard"))
        assert not again.omens["code"]["m"].inferred
        assert again.omens["code"]["m"].data.dtype == np.int32

    def test_chunked_episodes_take_lanes_too(self, tmp_path: Path) -> None:
        writer = ChunkedEpisodeWriter(tmp_path, "long", 5, fsync=False)
        writer.write_episode(full_episode())
        manifest = writer.finalize_manifest()
        add(manifest, "omen/state/v2", ramp(T))  # type: ignore[arg-type] # stands for its path
        assert bits(load_wshard(manifest).omens["state"]["v2"][3:9]) == bits(ramp(T)[3:9])
        with pytest.raises(InvalidArgument, match="manifest"):
            compact(manifest)
        out = compact(manifest, tmp_path / "one.wshard", fsync=False)
        assert bits(load_wshard(out).omens["state"]["v2"].data) == bits(ramp(T))


class TestBinding:
    """A sidecar belongs to one content."""

    def test_a_sidecar_alone_is_no_episode(self, path: Path) -> None:
        with pytest.raises(BadProfile, match="adds lanes"):
            load_wshard(add(path, "omen/state/v2", ramp(T)))

    def test_a_changed_episode_refuses_it(self, path: Path) -> None:
        added = add(path, "omen/state/v2", ramp(T))
        ep = full_episode()
        ep.observations["state"] = ep.observations["state"].data + 9
        save(ep, path.with_name("other.wshard")).replace(path)
        with pytest.raises(ReferenceMismatch, match="W-SID-2") as caught:
            load_wshard(path, sidecars="strict")
        assert added in str(caught.value)
        with pytest.warns(SidecarWarning, match="add_lane"):
            assert_same(load_wshard(path), ep)
        assert_same(load_wshard(path, sidecars=False), ep)

    def test_other_storage_is_the_same_content(self, path: Path) -> None:
        add(path, "omen/state/v2", ramp(T))
        save(load_wshard(path, sidecars=False), path, profile="training")
        assert load_wshard(path).omens["state"]["v2"].length == T

    def test_sidecars_elsewhere_are_given(self, path: Path, tmp_path: Path) -> None:
        added = add(path, "omen/state/v2", ramp(T))
        shutil.move(added, tmp_path / "moved.wshard")
        assert "v2" not in load_wshard(path).omens["state"]
        assert "v2" in load_wshard(path, sidecars=[tmp_path / "moved.wshard"]).omens["state"]

    def test_two_sidecars_with_one_block_are_refused(self, path: Path) -> None:
        added = add(path, "omen/state/v2", ramp(T))
        shutil.copy(added, added.replace("omen.state.v2", "other"))
        with pytest.raises(DuplicateName, match="W-SID-3"):
            load_wshard(path, sidecars="strict")
        with pytest.warns(SidecarWarning, match="W-SID-3"):
            assert "v2" in load_wshard(path).omens["state"]

    def test_files_of_other_kinds_in_the_folder_do_no_harm(self, path: Path) -> None:
        add(path, "omen/state/v2", ramp(T))
        (path.with_name("ep.wshard.lanes") / "notes.txt").write_text("hello")
        assert "v2" in load_wshard(path).omens["state"]


class TestCompact:
    """Folding sidecars in."""

    def test_the_episode_holds_everything_and_the_sidecars_are_gone(self, path: Path) -> None:
        for block, data in LANES.items():
            add(path, block, data, compression="zstd")
        wanted = load_wshard(path).clone()
        assert compact(path, fsync=False) == str(path)
        assert listing(path.parent) == ["ep.wshard"]
        assert_same(load_wshard(path), wanted)
        assert set(LANES) <= entries_of(path).keys()

    def test_blocks_are_copied_as_they_are_stored(self, path: Path) -> None:
        added = add(path, "omen/state/v2", np.zeros((T, 500)), compression="zstd:19")
        with ShardReader(added) as reader:
            stored = b"".join(reader.iter_stored("omen/state/v2"))
        out = compact(path, path.with_name("out.wshard"), fsync=False)
        with ShardReader(out) as reader:
            assert b"".join(reader.iter_stored("omen/state/v2")) == stored
        assert len(sidecar_files(str(path))) == 1, "with another name the sidecars stay"

    def test_the_content_is_compared_first(self, path: Path) -> None:
        add(path, "omen/state/v2", ramp(T))
        content = bytearray(path.read_bytes())
        with ShardReader(path) as reader:
            row = reader.index[reader.names().index("action/ctrl")]
        content[int(row["data_offset"])] ^= 1
        path.write_bytes(content)
        load_wshard(path)  # the index is the same
        with pytest.raises((IdentityMismatch, ChecksumMismatch)):
            compact(path)
        assert path.read_bytes() == content
        assert len(sidecar_files(str(path))) == 1

    def test_without_sidecars_nothing_changes(self, path: Path) -> None:
        before = path.read_bytes()
        compact(path, fsync=False)
        assert path.read_bytes() == before
