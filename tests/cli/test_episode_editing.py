"""`wshard slice`, `split`, `merge`, `compact` and `repack`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from shard_cli.episode_options import steps_argument
from shard_cli.exits import Exit
from shard_format import ShardReader, compute_identity
from tests.cli.conftest import new_episode
from wshard import Channel, add_lane, load_wshard
from wshard.editing import differences
from wshard.overviews import open_overviews
from wshard.types import FileOptions

if TYPE_CHECKING:
    from tests.cli.conftest import MakeEpisode, Run
    from wshard import Episode


@pytest.fixture
def with_sidecar(episode: Path) -> Path:
    """An episode with a lane that was added later."""
    add_lane(episode, "omen/joint_pos/v2", np.ones((60, 3), "f4"))
    return episode


def same(first: Path, second: Path) -> bool:
    with load_wshard(first) as a, load_wshard(second) as b:
        return not differences(a, b)


class TestSlice:
    def test_steps_become_an_episode(self, wshard: Run, episode: Path, tmp_path: Path) -> None:
        out = tmp_path / "part.wshard"
        result = wshard("slice", episode, "10:25", "-o", out)
        assert result.code == Exit.OK
        assert result.out.startswith(f"{out}: episode ep_001_10_25, 15 steps, 0.50 s, ")
        with load_wshard(out) as part, load_wshard(episode) as whole:
            assert part.length == 15
            wanted = whole.observations["joint_pos"].data[10:25]
            assert np.array_equal(part.observations["joint_pos"].data, wanted)
            assert part.observations["imu"].length == 60

    @pytest.mark.parametrize(
        ("text", "steps"),
        [
            ("0.5s:1s", (15, 30)),
            ("500ms:1000ms", (15, 30)),
            ("1s:", (30, 60)),
            (":0.1s", (0, 3)),
            (":", (0, 60)),
            ("10:1s", (10, 30)),
            (":2s", (0, 60)),
        ],
    )
    def test_ends_may_be_times_or_left_out(
        self, text: str, steps: tuple[int, int], wshard: Run, episode: Path, tmp_path: Path
    ) -> None:
        result = wshard("slice", "--json", episode, text, "-o", tmp_path / "part.wshard")
        assert (result.json["start"], result.json["stop"]) == steps

    def test_times_are_those_of_the_timestamps(
        self, wshard: Run, make_episode: MakeEpisode, tmp_path: Path
    ) -> None:
        def change(episode: Episode) -> None:
            episode.timestamps_ns = np.arange(60) * 100_000_000 + 10**18

        path = make_episode(change=change)
        result = wshard("slice", "--json", path, "1s:2.05s", "-o", tmp_path / "part.wshard")
        assert (result.json["start"], result.json["stop"]) == (10, 21)

    @pytest.mark.parametrize("text", ["5", "a:b", "1:2:3", "1m:2m", "-5:"])
    def test_what_is_no_range_is_wrong_use(
        self, text: str, wshard: Run, episode: Path, tmp_path: Path
    ) -> None:
        result = wshard("slice", "-o", tmp_path / "part.wshard", "--", episode, text)
        assert result.code == Exit.USAGE
        assert "write START:STOP in steps" in result.err

    @pytest.mark.parametrize("text", ["0:61", "30:20", "0s:2.5s"])
    def test_what_is_outside_the_episode_is_wrong_use(
        self, text: str, wshard: Run, episode: Path, tmp_path: Path
    ) -> None:
        result = wshard("slice", episode, text, "-o", tmp_path / "part.wshard")
        assert result.code == Exit.USAGE
        assert str(episode) in result.err
        assert not (tmp_path / "part.wshard").exists()

    def test_nothing_is_overwritten_without_force(
        self, wshard: Run, episode: Path, tmp_path: Path
    ) -> None:
        out = tmp_path / "part.wshard"
        out.write_text("precious")
        assert wshard("slice", episode, "0:5", "-o", out).code == Exit.USAGE
        assert out.read_text() == "precious"
        assert wshard("slice", episode, "0:5", "-o", out, "--force").code == Exit.OK
        result = wshard("slice", episode, "0:5", "-o", episode, "--force")
        assert result.code == Exit.USAGE
        assert "would be lost" in result.err

    def test_storage_is_like_that_of_the_input_unless_asked(
        self, wshard: Run, make_episode: MakeEpisode, tmp_path: Path
    ) -> None:
        path = make_episode(steps=600, profile="training", options=FileOptions(identity=True))
        out = tmp_path / "part.wshard"
        assert wshard("slice", path, "0:300", "-o", out).code == Exit.OK
        with ShardReader(out) as reader:
            assert reader.info("action/ctrl").filtered
            assert "meta/identity" in reader
        wshard("slice", path, "0:300", "-o", out, "-c", "none", "-c", "said=lz4", "--force")
        with ShardReader(out) as reader:
            assert reader.info("action/ctrl").codec.label == "none"
            assert reader.info("signal/said").codec.label == "lz4"
        raw = make_episode("raw.wshard")
        wshard("slice", raw, "0:30", "-o", out, "--force")
        with ShardReader(out) as reader:
            assert {info.codec.label for info in reader.infos()} == {"none"}

    def test_an_unknown_codec_is_wrong_use(
        self, wshard: Run, episode: Path, tmp_path: Path
    ) -> None:
        result = wshard("slice", episode, ":", "-o", tmp_path / "x.wshard", "-c", "gzip")
        assert result.code == Exit.USAGE
        assert "gzip" in result.err

    def test_a_name_that_searches_miss_is_a_warning(
        self, wshard: Run, episode: Path, tmp_path: Path
    ) -> None:
        result = wshard("slice", episode, ":", "-o", tmp_path / "part.bin")
        assert result.code == Exit.OK
        assert "does not end with .wshard" in result.err

    def test_an_id_can_be_given(self, wshard: Run, episode: Path, tmp_path: Path) -> None:
        out = tmp_path / "part.wshard"
        wshard("slice", episode, "0:5", "-o", out, "--id", "start")
        assert load_wshard(out).id == "start"

    def test_ranges_are_exact(self) -> None:
        assert steps_argument("0.1s:").start == 100_000_000


class TestSplitAndMerge:
    def test_parts_are_episodes_that_merge_to_the_same(
        self, wshard: Run, episode: Path, tmp_path: Path
    ) -> None:
        result = wshard("split", episode, "-o", tmp_path / "parts", "--steps", "25")
        assert result.code == Exit.OK
        names = sorted(os.listdir(tmp_path / "parts"))
        assert names == [f"ep_001_part_{number:04}.wshard" for number in range(3)]
        assert "part_0002.wshard: episode ep_001_50_60, 10 steps, " in result.out
        parts = [tmp_path / "parts" / name for name in names]
        out = tmp_path / "whole.wshard"
        result = wshard("merge", *parts, "-o", out)
        assert result.code == Exit.OK
        assert f"{out}: episode ep_001, 60 steps of 3 files, 2.00 s, " in result.out
        with load_wshard(episode) as a, load_wshard(out) as b:
            assert differences(a, b) == []

    def test_parts_start_where_asked(self, wshard: Run, episode: Path, tmp_path: Path) -> None:
        result = wshard("split", "--json", episode, "-o", tmp_path / "p", "--at", "10,40")
        assert [part["steps"] for part in result.json["parts"]] == [10, 30, 20]
        assert result.json["manifest"] is None

    def test_chunks_have_a_manifest_and_stay_one_episode(
        self, wshard: Run, episode: Path, tmp_path: Path
    ) -> None:
        result = wshard("split", "--json", episode, "-o", tmp_path, "--steps", "25", "--chunked")
        assert result.code == Exit.OK
        manifest = Path(result.json["manifest"])
        assert [part["steps"] for part in result.json["parts"]] == [25, 25, 10]
        assert manifest.name == "ep_001_manifest.wshard"
        assert same(episode, manifest)
        out = tmp_path / "one.wshard"
        assert wshard("merge", manifest, "-o", out).code == Exit.OK
        assert same(episode, out)

    def test_a_dry_run_writes_nothing(self, wshard: Run, episode: Path, tmp_path: Path) -> None:
        for more in ((), ("--chunked",)):
            result = wshard(
                "split", episode, "-o", tmp_path / "p", "--steps", "25", "--dry-run", *more
            )
            assert result.code == Exit.OK
            assert "0002.wshard" in result.out
        assert not (tmp_path / "p").exists()

    @pytest.mark.parametrize("more", [(), ("--chunked",)])
    def test_nothing_is_overwritten_without_force(
        self, more: tuple[str, ...], wshard: Run, episode: Path, tmp_path: Path
    ) -> None:
        arguments = ["split", str(episode), "-o", str(tmp_path / "p"), "--steps", "25", *more]
        assert wshard(*arguments).code == Exit.OK
        before = {path: path.stat().st_mtime_ns for path in (tmp_path / "p").iterdir()}
        result = wshard(*arguments)
        assert result.code == Exit.USAGE
        assert "pass --force" in result.err
        assert {path: path.stat().st_mtime_ns for path in (tmp_path / "p").iterdir()} == before
        assert wshard(*arguments, "--force").code == Exit.OK

    def test_chunks_of_a_longer_run_go_and_those_of_a_killed_one_are_said(
        self, wshard: Run, episode: Path, tmp_path: Path
    ) -> None:
        wshard("split", episode, "-o", tmp_path / "p", "--steps", "10", "--chunked")
        result = wshard(
            "split", episode, "-o", tmp_path / "p", "--steps", "30", "--chunked", "--force"
        )
        assert result.code == Exit.OK
        assert "older" not in result.err
        assert len(list((tmp_path / "p").iterdir())) == 3
        (tmp_path / "p" / "ep_001_manifest.wshard").unlink()
        wshard("split", episode, "-o", tmp_path / "p", "--steps", "60", "--chunked", "--force")
        result = wshard("split", episode, "-o", tmp_path / "q", "--steps", "60", "--chunked")
        assert "older" not in result.err
        (tmp_path / "q" / "ep_001_manifest.wshard").unlink()
        result = wshard(
            "split", episode, "-o", tmp_path / "q", "--steps", "60", "--chunked", "--force"
        )
        assert "1 older chunk of this episode" in result.err

    @pytest.mark.parametrize(
        "arguments",
        [
            (),
            ("--steps", "0"),
            ("--steps", "5", "--at", "5"),
            ("--at", "x"),
            ("--at", "5", "--chunked"),
        ],
    )
    def test_wrong_use(
        self, arguments: tuple[str, ...], wshard: Run, episode: Path, tmp_path: Path
    ) -> None:
        result = wshard("split", episode, "-o", tmp_path / "p", *arguments)
        assert result.code == Exit.USAGE
        assert not (tmp_path / "p").exists()

    def test_a_file_is_no_folder(self, wshard: Run, episode: Path) -> None:
        result = wshard("split", episode, "-o", episode, "--steps", "5", "--force")
        assert result.code == Exit.USAGE
        assert "this is a file" in result.err

    def test_episodes_with_other_channels_do_not_merge(
        self, wshard: Run, episode: Path, make_episode: MakeEpisode, tmp_path: Path
    ) -> None:
        def change(other: Episode) -> None:
            del other.observations["rgb"]

        other = make_episode("other.wshard", change=change)
        result = wshard("merge", episode, other, "-o", tmp_path / "x.wshard")
        assert result.code == Exit.FINDING
        assert f"{other}: this episode lacks the block 'signal/rgb', unlike {episode}" in result.err
        assert not (tmp_path / "x.wshard").exists()

    def test_an_input_is_never_the_output(
        self, wshard: Run, episode: Path, make_episode: MakeEpisode
    ) -> None:
        other = make_episode("other.wshard")
        assert wshard("merge", episode, other, "-o", other, "--force").code == Exit.USAGE

    def test_merge_says_in_json_what_it_made(
        self, wshard: Run, episode: Path, make_episode: MakeEpisode, tmp_path: Path
    ) -> None:
        other = make_episode("other.wshard")
        result = wshard("merge", "--json", episode, other, "-o", tmp_path / "both.wshard")
        assert result.json["steps"] == 120
        assert result.json["episode_id"] == "ep_001"
        assert [one["id"] for one in load_wshard(tmp_path / "both.wshard").metadata["merged_from"]]


class TestEdit:
    def test_values_are_json_or_text_and_the_file_stays_as_it_is(
        self, wshard: Run, episode: Path
    ) -> None:
        before = episode.read_bytes()
        result = wshard("edit", episode, "success=true", "operator=Ada", "n=3", 'tags=["a"]')
        assert result.code == Exit.OK
        assert "operator: Ada" in result.out
        assert episode.read_bytes() == before
        facts = wshard("inspect", "--json", episode).json["files"][0]
        wanted = {"success": True, "operator": "Ada", "n": 3, "tags": ["a"]}
        assert facts["metadata"].items() >= wanted.items()
        assert facts["metadata"]["task"] == "reach the cup"
        assert wshard("inspect", "--no-sidecars", "--json", episode).json["files"][0][
            "metadata"
        ] == {"task": "reach the cup", "seed": 7}

    def test_keys_and_labels_are_set_and_removed(self, wshard: Run, episode: Path) -> None:
        labels = ("--label", "grip=0:20:open", "--label", "grip=20:60:closed")
        result = wshard("edit", episode, *labels, "--remove", "seed", "--remove-label", "phase")
        assert result.code == Exit.OK
        loaded = load_wshard(episode)
        assert "seed" not in loaded.metadata
        assert "phase" not in loaded.labels
        assert [(one.start, one.end, one.text) for one in loaded.labels["grip"]] == [
            (0, 20, "open"),
            (20, 60, "closed"),
        ]

    def test_compact_folds_edits_in(self, wshard: Run, episode: Path) -> None:
        assert wshard("edit", episode, "success=true").code == Exit.OK
        assert wshard("compact", episode, "--force").code == Exit.OK
        assert not Path(f"{episode}.lanes").exists()
        assert load_wshard(episode).metadata["success"] is True

    @pytest.mark.parametrize(
        "arguments", [(), ("novalue",), ("a=1", "a=2"), ("--label", "phase=0:x:reach")]
    )
    def test_wrong_use_changes_nothing(
        self, arguments: tuple[str, ...], wshard: Run, episode: Path
    ) -> None:
        assert wshard("edit", episode, *arguments).code == Exit.USAGE
        assert not Path(f"{episode}.lanes").exists()


class TestCompact:
    def test_in_place_needs_force_and_removes_the_sidecars(
        self, wshard: Run, with_sidecar: Path
    ) -> None:
        result = wshard("compact", with_sidecar)
        assert result.code == Exit.USAGE
        assert "1 sidecar would be folded in and removed" in result.err
        result = wshard("compact", with_sidecar, "--force")
        assert result.code == Exit.OK
        assert "1 sidecar folded in: omen.joint_pos.v2.wshard" in result.out
        assert not Path(f"{with_sidecar}.lanes").exists()
        with ShardReader(with_sidecar) as reader:
            assert "omen/joint_pos/v2" in reader
            assert reader.info("signal/rgb").codec.label == "zstd"
        assert wshard("verify", with_sidecar).code == Exit.OK

    def test_another_file_leaves_everything_as_it_was(
        self, wshard: Run, with_sidecar: Path, tmp_path: Path
    ) -> None:
        before = with_sidecar.read_bytes()
        out = tmp_path / "whole.wshard"
        result = wshard("compact", "--json", with_sidecar, "-o", out, "--profile", "exchange")
        assert result.code == Exit.OK
        assert result.json["sidecars"] == ["omen.joint_pos.v2.wshard"]
        assert same(with_sidecar, out)
        assert with_sidecar.read_bytes() == before
        assert Path(f"{with_sidecar}.lanes").exists()
        with ShardReader(out) as reader:
            assert not any(info.filtered for info in reader.infos())
        assert wshard("compact", with_sidecar, "-o", out).code == Exit.USAGE

    def test_without_sidecars_there_is_nothing_to_do(self, wshard: Run, episode: Path) -> None:
        before = episode.read_bytes()
        result = wshard("compact", episode)
        assert result.code == Exit.OK
        assert "no sidecars, nothing to do" in result.out
        assert episode.read_bytes() == before

    def test_a_sidecar_of_another_episode_is_refused(
        self, wshard: Run, with_sidecar: Path, make_episode: MakeEpisode
    ) -> None:
        other = make_episode("other.wshard", steps=60, change=lambda e: e.actions.clear())
        other.replace(with_sidecar)
        assert "warning: " in wshard("inspect", with_sidecar).err
        before = with_sidecar.read_bytes()
        result = wshard("compact", with_sidecar, "--force")
        assert result.code == Exit.FINDING
        assert "(reference_mismatch)" in result.err
        assert with_sidecar.read_bytes() == before
        assert Path(f"{with_sidecar}.lanes").exists()

    def test_chunks_are_not_changed_in_place(
        self, wshard: Run, episode: Path, tmp_path: Path
    ) -> None:
        wshard("split", episode, "-o", tmp_path / "p", "--steps", "25", "--chunked")
        manifest = tmp_path / "p" / "ep_001_manifest.wshard"
        add_lane(manifest, "omen/joint_pos/v2", np.ones((60, 3), "f4"))
        result = wshard("compact", manifest, "--force")
        assert result.code == Exit.USAGE
        assert "pass -o OUT" in result.err
        out = tmp_path / "one.wshard"
        assert wshard("compact", manifest, "-o", out).code == Exit.OK
        assert "v2" in load_wshard(out).omens["joint_pos"]


class TestRepack:
    def test_the_content_stays_the_same(self, wshard: Run, episode: Path, tmp_path: Path) -> None:
        for number, options in enumerate(
            ([], ["--profile", "exchange"], ["-c", "none"], ["-c", "auto", "--alignment", "16"])
        ):
            out = tmp_path / f"out{number}.wshard"
            result = wshard("repack", episode, "-o", out, *options)
            assert result.code == Exit.OK
            assert f"{out}: 60 steps, " in result.out
            assert compute_identity(out).digest == compute_identity(episode).digest
            assert wshard("verify", out).code == Exit.OK

    def test_profiles_and_codecs_are_obeyed(
        self, wshard: Run, make_episode: MakeEpisode, tmp_path: Path
    ) -> None:
        path, out = make_episode(steps=600), tmp_path / "out.wshard"
        result = wshard("repack", "--json", path, "-o", out, "--profile", "training")
        assert result.json["size_after"] < result.json["size_before"]
        with ShardReader(out) as reader:
            assert reader.info("action/ctrl").filtered
        wshard("repack", path, "-o", out, "-c", "zstd", "--steps-per-frame", "50", "--force")
        with ShardReader(out) as reader:
            table = reader.seek_table("signal/rgb")
            assert table is not None
            assert len(table) == 12

    def test_overviews_are_written_beside_the_new_file(
        self, wshard: Run, make_episode: MakeEpisode, tmp_path: Path
    ) -> None:
        def change(episode: Episode) -> None:
            times = np.arange(20_000)
            episode.observations["force"] = Channel(data=times * 0.5, timestamps_ns=times)

        path, out = make_episode(change=change), tmp_path / "out.wshard"
        result = wshard("repack", "--json", path, "-o", out, "--overview", "-c", "zstd")
        assert result.json["overview"] == f"{out}.overview"
        overviews = open_overviews(out)
        assert overviews is not None
        with overviews:
            assert "signal/force" in overviews
            assert len(overviews.posters) > 1

    def test_in_place_needs_force_and_can_add_an_identity(
        self, wshard: Run, make_episode: MakeEpisode
    ) -> None:
        path = make_episode()
        assert wshard("repack", path, "-o", path, "--identity").code == Exit.USAGE
        assert wshard("repack", path, "-o", path, "--identity", "--force").code == Exit.OK
        with ShardReader(path) as reader:
            assert "meta/identity" in reader
        wshard("repack", path, "-o", path, "--no-identity", "--force")
        with ShardReader(path) as reader:
            assert "meta/identity" not in reader
        assert not [name for name in os.listdir(path.parent) if "partial" in name]

    def test_sidecars_stay_where_they_are_and_still_fit(
        self, wshard: Run, with_sidecar: Path, tmp_path: Path
    ) -> None:
        result = wshard("repack", with_sidecar, "-o", tmp_path / "out.wshard")
        assert "1 sidecar beside" in result.err
        assert "v2" not in load_wshard(tmp_path / "out.wshard").omens["joint_pos"]
        result = wshard("repack", with_sidecar, "-o", with_sidecar, "-c", "none", "--force")
        assert result.code == Exit.OK
        assert "v2" in load_wshard(with_sidecar).omens["joint_pos"]

    def test_a_chunked_episode_becomes_one_file(
        self, wshard: Run, episode: Path, tmp_path: Path
    ) -> None:
        wshard("split", episode, "-o", tmp_path / "p", "--steps", "25", "--chunked")
        manifest = tmp_path / "p" / "ep_001_manifest.wshard"
        out = tmp_path / "one.wshard"
        assert wshard("repack", manifest, "-o", out, "--profile", "training").code == Exit.OK
        assert same(episode, out)
        result = wshard("repack", manifest, "-o", manifest, "--force")
        assert result.code == Exit.USAGE
        assert "chunks would remain" in result.err

    def test_damage_is_not_copied(self, wshard: Run, damaged_episode: Path, tmp_path: Path) -> None:
        out = tmp_path / "out.wshard"
        result = wshard("repack", damaged_episode, "-o", out)
        assert result.code == Exit.FINDING
        assert "(checksum_mismatch)" in result.err
        assert not out.exists()
        assert not [name for name in os.listdir(tmp_path) if "partial" in name]

    def test_a_folder_is_no_output(self, wshard: Run, episode: Path, tmp_path: Path) -> None:
        result = wshard("repack", episode, "-o", tmp_path, "--force")
        assert result.code == Exit.USAGE
        assert "this is a folder" in result.err


def test_the_episode_of_the_tests_has_no_warnings(wshard: Run, episode: Path) -> None:
    assert new_episode().length == 60
    assert wshard("doctor", "--strict", episode).code == Exit.OK
