"""`wshard verify` and `wshard doctor`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from shard_cli.exits import Exit, exit_for
from tests.cli.conftest import flip_in
from tests.each import for_each
from wshard import add_lane
from wshard.types import FileOptions

if TYPE_CHECKING:
    from tests.cli.conftest import MakeEpisode, Run, Terminal
    from wshard import Episode

VECTORS = Path(__file__).parents[2] / "spec" / "vectors"
INVALID = sorted((VECTORS / "invalid_episodes").glob("*.json"))
VALID = [
    path
    for path in sorted((VECTORS / "valid").glob("*.wshard"))
    # The others show what the container makes of such a file.
    if "episode" in json.loads(path.with_suffix(".json").read_text())
]


@pytest.fixture
def folder(make_episode: MakeEpisode, tmp_path: Path) -> Path:
    """Three good episodes, one damaged and one odd one."""
    for number in range(3):
        make_episode(f"rec/{number}/ep_{number}.wshard")
    flip_in(make_episode("rec/bad.wshard"), "signal/rgb")

    def change(episode: Episode) -> None:
        values = np.sin(np.arange(180.0)).reshape(60, 3)
        values[10] = np.nan
        episode.observations["joint_pos"] = values.astype("f4")

    make_episode("rec/odd.wshard", change=change)
    return tmp_path / "rec"


class TestVerify:
    def test_a_good_episode_is_ok(self, wshard: Run, episode: Path) -> None:
        result = wshard("verify", episode)
        assert result.code == Exit.OK
        assert f"{episode}: ok, 60 steps, " in result.out
        assert wshard("verify", "-q", episode).out == ""

    @pytest.mark.parametrize("name", ["entry_count_limit", "manifest_too_many_values"])
    def test_advice_is_not_for_python(self, name: str, wshard: Run) -> None:
        result = wshard("verify", VECTORS / "invalid" / f"{name}.shard")
        assert "limit_exceeded" in result.out
        assert "Limits(" not in result.out + result.err

    def test_damage_is_found_and_named(self, wshard: Run, damaged_episode: Path) -> None:
        result = wshard("verify", damaged_episode)
        assert result.code == Exit.FINDING
        first, second = result.out.splitlines()
        assert first == f"{damaged_episode}: FAILED, 1 error"
        assert second.startswith("  checksum_mismatch: signal/rgb: ")
        assert second.endswith("[S-CRC-1]")

    def test_rules_of_episodes_are_checked(
        self, wshard: Run, make_episode: MakeEpisode, tmp_path: Path
    ) -> None:
        from shard_format import ShardReader, ShardWriter

        source = make_episode()
        path = tmp_path / "short.wshard"
        with ShardReader(source) as reader, ShardWriter(path, role="wshard", fsync=False) as writer:
            for name in reader.names():
                data = reader.read_entry(name)
                writer.write_entry(name, data[:-4] if name == "action/ctrl" else data)
        result = wshard("verify", path)
        assert result.code == Exit.FINDING
        assert "size_mismatch: action/ctrl: " in result.out
        assert "[W-BLK-1]" in result.out

    def test_a_stored_identity_is_compared(
        self, wshard: Run, make_episode: MakeEpisode, tmp_path: Path
    ) -> None:
        from shard_format import ShardReader, ShardWriter

        source = make_episode(options=FileOptions(identity=True))
        path = tmp_path / "changed.wshard"
        with ShardReader(source) as reader, ShardWriter(path, role="wshard", fsync=False) as writer:
            for name in reader.names():
                data = bytearray(reader.read_entry(name))
                if name == "action/ctrl":
                    data[0] ^= 1
                writer.write_entry(name, bytes(data))
        result = wshard("verify", path)
        assert result.code == Exit.FINDING
        assert "identity_mismatch: " in result.out

    @pytest.mark.parametrize(
        ("name", "is_old"), [("provenance_and_identity", True), ("identity_2", False)]
    )
    def test_an_identity_of_version_1_is_said(self, wshard: Run, name: str, is_old: bool) -> None:
        path = VECTORS / "valid" / f"episode_{name}.wshard"
        words = "(version 1: it does not cover the role and the schema section)"
        for command in ("verify", "inspect"):
            assert (words in wshard(command, path).out) == is_old
        assert wshard("verify", "--json", path).json["files"][0]["old_identity"] == is_old

    def test_a_folder_is_checked_with_a_total(self, wshard: Run, folder: Path) -> None:
        result = wshard("verify", folder)
        assert result.code == Exit.FINDING
        assert "5 episodes, 1 failed, " in result.out
        assert result.out.count(": ok, ") == 4
        assert "1 warning for 'wshard doctor'" in result.out

    def test_quiet_prints_only_bad_ones(self, wshard: Run, folder: Path) -> None:
        lines = wshard("verify", "-q", folder).out.splitlines()
        assert len(lines) == 2
        assert lines[0].startswith(f"{folder / 'bad.wshard'}: FAILED")

    def test_json_counts_and_lists(self, wshard: Run, folder: Path) -> None:
        document = wshard("verify", "--json", folder).json
        assert (document["ok"], document["episodes"], document["failed"]) == (False, 5, 1)
        bad = document["files"][0]
        assert bad["ok"] is False
        (error,) = bad["errors"]
        assert (error["code"], error["block"], error["rule"]) == (
            "checksum_mismatch",
            "signal/rgb",
            "S-CRC-1",
        )
        assert document["files"][1]["errors"] == []

    @pytest.mark.parametrize("jobs", ["1", "2", "7"])
    def test_results_come_in_order_whatever_the_jobs(
        self, wshard: Run, folder: Path, jobs: str
    ) -> None:
        assert wshard("verify", folder, "-j", jobs).out == wshard("verify", folder).out

    def test_chunks_are_checked_against_their_manifest(
        self, wshard: Run, episode: Path, tmp_path: Path
    ) -> None:
        out = tmp_path / "long"
        wshard("split", episode, "-o", out, "--steps", "20", "--chunked")
        result = wshard("verify", out)
        assert result.code == Exit.OK
        assert "60 steps, 4 files, " in result.out
        (out / "ep_001_chunk_0001.wshard").write_bytes(
            (out / "ep_001_chunk_0002.wshard").read_bytes()
        )
        result = wshard("verify", out)
        assert result.code == Exit.FINDING
        assert "FAILED" in result.out
        (out / "ep_001_chunk_0001.wshard").unlink()
        assert "missing_file: " in wshard("verify", out).out

    def test_a_chunk_with_other_bytes_of_the_same_size_is_found(
        self, wshard: Run, make_episode: MakeEpisode, tmp_path: Path
    ) -> None:
        out = tmp_path / "long"
        wshard("split", make_episode(), "-o", out, "--steps", "30", "--chunked")
        flip_in(out / "ep_chunk_0001.wshard", "signal/rgb")
        result = wshard("verify", out)
        assert result.code == Exit.FINDING
        assert "reference_mismatch: " in result.out

    def test_sidecars_are_checked_too(self, wshard: Run, episode: Path) -> None:
        sidecar = Path(add_lane(episode, "omen/joint_pos/v2", np.ones((60, 3), "f4")))
        assert ": ok, 60 steps, 2 files, " in wshard("verify", episode).out
        flip_in(sidecar, "omen/joint_pos/v2")
        result = wshard("verify", episode)
        assert result.code == Exit.FINDING
        assert f"checksum_mismatch: {sidecar}: " in result.out

    def test_other_exit_codes_are_kept(self, wshard: Run, episode: Path, tmp_path: Path) -> None:
        assert wshard("verify", tmp_path / "absent.wshard").code == Exit.IO
        data = bytearray(episode.read_bytes())
        data[4] = 9
        episode.write_bytes(data)
        assert wshard("verify", episode).code == Exit.UNSUPPORTED

    def test_a_large_block_needs_permission(self, wshard: Run, make_episode: MakeEpisode) -> None:
        path = make_episode(steps=600, compression="zstd")
        result = wshard("verify", path, "--max-decompressed", "4K")
        assert result.code == Exit.FINDING
        assert "limit_exceeded" in result.out
        advice = wshard("doctor", path, "--max-decompressed", "4K").out
        assert "    do: pass --max-decompressed SIZE if you trust the file\n" in advice
        assert wshard("verify", path, "--max-decompressed", "2G").code == Exit.OK

    def test_a_file_of_another_kind_is_named(self, wshard: Run, tmp_path: Path) -> None:
        path = tmp_path / "x.wshard"
        path.write_bytes(b"PK\x03\x04" + bytes(100))
        for verb in ("verify", "doctor"):
            result = wshard(verb, path)
            assert result.code == Exit.FINDING
            assert "it looks like a zip archive" in result.out
        path.write_bytes(b"WSJ1" + bytes(100))
        assert "'wshard recover' makes an episode of it" in wshard("verify", path).out

    def test_progress_is_drawn_in_a_terminal(self, terminal: Terminal, folder: Path) -> None:
        code, out = terminal("verify", folder, module="shard_cli.wshard")
        assert code == Exit.FINDING
        assert "\x1b[32mok" in out


class TestDoctor:
    def test_parts_together_examine_each_episode_once(self, wshard: Run, folder: Path) -> None:
        whole = [one["file"] for one in wshard("doctor", "--json", folder).json["files"]]
        parts = [wshard("doctor", "--json", folder, "--part", f"{n}/3") for n in (1, 2, 3)]
        assert [one["file"] for part in parts for one in part.json["files"]] == whole
        assert wshard("doctor", folder, "--part", "0/3").code == Exit.USAGE

    def test_a_good_episode_is_healthy(self, wshard: Run, episode: Path) -> None:
        result = wshard("doctor", episode)
        assert result.code == Exit.OK
        assert f"{episode}: healthy, 60 steps" in result.out

    def test_each_finding_comes_with_advice(self, wshard: Run, damaged_episode: Path) -> None:
        result = wshard("doctor", damaged_episode)
        assert result.code == Exit.FINDING
        assert f"{damaged_episode}: damaged, 60 steps, 1 error" in result.out
        assert "\n  error: checksum_mismatch: signal/rgb: " in result.out
        assert "\n    do: " in result.out

    def test_warnings_count_only_with_strict(self, wshard: Run, folder: Path) -> None:
        odd = folder / "odd.wshard"
        result = wshard("doctor", odd)
        assert result.code == Exit.OK
        assert "  warning: not_finite: signal/joint_pos: " in result.out
        assert wshard("doctor", "--strict", odd).code == Exit.FINDING
        assert wshard("doctor", "-q", odd).out == ""
        assert "not_finite" in wshard("doctor", "-q", "--strict", odd).out

    def test_codes_can_be_ignored(self, wshard: Run, folder: Path) -> None:
        odd, bad = folder / "odd.wshard", folder / "bad.wshard"
        result = wshard("doctor", "--strict", "--ignore", "not_finite", odd)
        assert result.code == Exit.OK
        assert "healthy" in result.out
        codes = "not_finite,checksum_mismatch"
        assert wshard("doctor", "--ignore", codes, odd, bad).code == Exit.OK

    def test_a_misspelled_code_is_wrong_use(self, wshard: Run, episode: Path) -> None:
        result = wshard("doctor", "--ignore", "not_finit", episode)
        assert result.code == Exit.USAGE
        assert "did you mean 'not_finite'" in result.err

    def test_a_folder_ends_with_a_summary_by_code(self, wshard: Run, folder: Path) -> None:
        result = wshard("doctor", folder, "--jobs", "2")
        assert result.code == Exit.FINDING
        table = result.out.partition("CODE\tSEVERITY\tEPISODES\tFINDINGS\n")[2].splitlines()
        assert table[0] == "checksum_mismatch\terror\t1\t1"
        assert table[1] == "not_finite\twarning\t1\t1"
        assert table[-1] == "5 episodes, 3 healthy, 1 with warnings, 1 damaged"

    def test_json_has_findings_and_summary(self, wshard: Run, folder: Path) -> None:
        document = wshard("doctor", "--json", "--ignore", "no_end", folder).json
        assert document["ok"] is False
        assert document["ignored"] == ["no_end"]
        assert len(document["files"]) == 5
        finding = document["files"][0]["findings"][0]
        assert finding.keys() == {
            *("code", "severity", "message", "block", "step", "count", "rule", "file", "advice"),
        }
        assert document["summary"][0] == {
            "code": "checksum_mismatch",
            "severity": "error",
            "episodes": 1,
            "findings": 1,
        }

    def test_an_episode_that_does_not_open_is_said(self, wshard: Run, episode: Path) -> None:
        episode.write_bytes(episode.read_bytes()[:-1])
        result = wshard("doctor", episode)
        assert result.code == Exit.FINDING
        assert f"{episode}: does not open\n" in result.out
        assert "  error: truncated: " in result.out


class TestVectors:
    """The files of spec/vectors."""

    @for_each("path", VALID)
    def test_every_valid_episode_is_ok(self, path: Path, wshard: Run) -> None:
        result = wshard("verify", path)
        assert result.code == Exit.OK, result.out
        assert wshard("inspect", "--values", path).code == Exit.OK

    @for_each("path", INVALID)
    @pytest.mark.slow
    def test_every_invalid_episode_fails(self, path: Path, wshard: Run) -> None:
        expected = json.loads(path.read_text())
        result = wshard("verify", "--json", path.parent / expected["file"])
        assert result.code == exit_for(expected["error"])
        assert result.json["files"][0]["errors"]
