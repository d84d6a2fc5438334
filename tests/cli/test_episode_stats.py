"""`wshard stats`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from shard_cli.exits import Exit
from shard_train import EpisodeDataset, compute_stats, load_stats
from tests.cli.conftest import flip_in

if TYPE_CHECKING:
    from tests.cli.conftest import MakeEpisode, Run, Terminal
    from wshard import Episode


@pytest.fixture
def folder(make_episode: MakeEpisode, tmp_path: Path) -> Path:
    """Three episodes."""
    for number in range(3):
        make_episode(f"rec/ep_{number}.wshard", steps=20 + number)
    return tmp_path / "rec"


def written(folder: Path) -> Path:
    return Path(f"{folder}.wshard-stats")


class TestStats:
    def test_it_shows_a_row_for_each_channel_and_writes_the_file(
        self, wshard: Run, folder: Path
    ) -> None:
        result = wshard("stats", folder)
        assert (result.code, result.err) == (Exit.OK, "")
        first, heading, *rows, last = result.out.splitlines()
        assert first == "3 episodes, 63 steps"
        assert heading.split("\t")[:3] == ["CHANNEL", "TYPE", "NUMBERS"]
        assert [row.split("\t")[0] for row in rows] == ["ctrl", "joint_pos", "reward", "rgb"]
        assert rows[3].split("\t")[1:5] == ["u8 [8, 8, 3]", str(63 * 192), "0", "0"]
        assert last == f"{written(folder)}: written"
        assert load_stats(folder).steps == 63
        assert EpisodeDataset(folder, 8, normalize=True)[0]["rgb"].dtype == np.float32

    def test_verbose_shows_every_number_with_its_quantiles(self, wshard: Run, folder: Path) -> None:
        result = wshard("stats", "-v", "--quantiles", "0.005,0.5", folder)
        _, heading, *rows, _ = result.out.splitlines()
        assert heading.split("\t")[-2:] == ["0.5%", "50%"]
        names = [row.split("\t")[0] for row in rows]
        assert names[:3] == ["ctrl[0]", "ctrl[1]", "ctrl[2]"]
        assert names[-3:] == ["rgb[:,:,0]", "rgb[:,:,1]", "rgb[:,:,2]"]
        assert "reward" in names

    def test_json_has_what_the_library_says(self, wshard: Run, folder: Path) -> None:
        document = wshard("stats", "--json", "--jobs", "2", folder).json
        stats = compute_stats(folder)
        assert (document["episodes"], document["steps"], document["written"]) == (3, 63, True)
        assert document["output"] == str(written(folder))
        assert document["channels"]["ctrl"]["mean"] == stats["ctrl"].mean.tolist()
        assert document["channels"]["ctrl"]["shape"] == [3]
        assert document["fingerprints"] == list(stats.fingerprints)
        assert "distributions" not in document["channels"]["ctrl"]

    def test_what_is_not_finite_is_shown(
        self, wshard: Run, make_episode: MakeEpisode, tmp_path: Path
    ) -> None:
        def change(episode: Episode) -> None:
            values = np.ones((60, 2), "f4")
            values[:, 1] = np.nan
            values[3, 0] = np.inf
            episode.observations["joint_pos"] = values

        make_episode("odd/ep.wshard", change=change)
        result = wshard("stats", tmp_path / "odd")
        row = next(row for row in result.out.splitlines() if row.startswith("joint_pos"))
        assert row.split("\t")[2:] == ["59", "60", "1", "1", "0", "1", "1"]
        document = wshard("stats", "--json", tmp_path / "odd").json
        assert document["channels"]["joint_pos"]["mean"] == [1.0, None]

    def test_quiet_prints_the_table_only(self, wshard: Run, folder: Path) -> None:
        lines = wshard("stats", "-q", folder).out.splitlines()
        assert lines[0].startswith("CHANNEL")
        assert len(lines) == 5

    def test_a_terminal_gets_a_table_that_fits(self, terminal: Terminal, folder: Path) -> None:
        code, text = terminal("stats", folder, columns=100, module="shard_cli.wshard")
        assert code == Exit.OK
        assert "CHANNEL" in text
        assert "\t" not in text


class TestAgain:
    def test_statistics_that_are_current_are_shown_and_not_made_again(
        self, wshard: Run, folder: Path
    ) -> None:
        first = wshard("stats", folder).out
        # What nobody else would have written shows whether it was replaced.
        text = json.dumps(json.loads(written(folder).read_text()), indent=1)
        written(folder).write_text(text)
        second = wshard("stats", folder)
        assert second.code == Exit.OK
        assert second.out.splitlines()[:-1] == first.splitlines()[:-1]
        assert second.out.endswith(": up to date; --force computes them again\n")
        assert written(folder).read_text() == text
        assert wshard("stats", "--json", folder).json["written"] is False
        assert wshard("stats", "--force", folder).code == Exit.OK
        assert written(folder).read_text() != text

    def test_other_data_needs_force(
        self, wshard: Run, folder: Path, make_episode: MakeEpisode
    ) -> None:
        wshard("stats", folder)
        make_episode("rec/ep_9.wshard")
        result = wshard("stats", folder)
        assert result.code == Exit.FINDING
        assert "the data has changed since" in result.err
        assert "pass --force to make them again (reference_mismatch)" in result.err
        assert wshard("stats", "-f", folder).out.startswith("4 episodes")

    def test_other_quantiles_need_force(self, wshard: Run, folder: Path) -> None:
        wshard("stats", folder)
        result = wshard("stats", "--quantiles", "0.25", folder)
        assert result.code == Exit.USAGE
        assert "the file exists; pass --force to replace it" in result.err
        assert wshard("stats", "--quantiles", "0.25", "--force", folder).code == Exit.OK
        assert list(load_stats(folder)["ctrl"].quantiles) == [0.25]

    def test_a_file_that_is_something_else_is_not_replaced(self, wshard: Run, folder: Path) -> None:
        written(folder).write_text("mine")
        result = wshard("stats", folder)
        assert result.code == Exit.FINDING
        assert written(folder).read_text() == "mine"


class TestInputs:
    def test_several_folders_need_a_file_to_write(
        self, wshard: Run, folder: Path, make_episode: MakeEpisode, tmp_path: Path
    ) -> None:
        make_episode("more/ep.wshard")
        result = wshard("stats", folder, tmp_path / "more")
        assert result.code == Exit.USAGE
        assert "pass -o OUT to say where" in result.err
        out = tmp_path / "both.wshard-stats"
        assert wshard("stats", folder, tmp_path / "more", "-o", out).code == Exit.OK
        assert load_stats(out).episodes == 4
        assert not written(folder).exists()

    @pytest.mark.parametrize("quantiles", ["2", "a", "", "0.5,-1", "nan"])
    def test_quantiles_are_shares(self, wshard: Run, folder: Path, quantiles: str) -> None:
        result = wshard("stats", "--quantiles", quantiles, folder)
        assert result.code == Exit.USAGE
        assert "is not a list of quantiles; write numbers from 0 to 1" in result.err

    def test_a_damaged_episode_is_named_and_nothing_written(
        self, wshard: Run, folder: Path
    ) -> None:
        flip_in(folder / "ep_1.wshard", "signal/rgb")
        result = wshard("stats", folder)
        assert result.code == Exit.FINDING
        assert "ep_1.wshard: entry 'signal/rgb'" in result.err
        assert not written(folder).exists()

    def test_a_folder_that_is_not_there_is_said(self, wshard: Run, tmp_path: Path) -> None:
        result = wshard("stats", tmp_path / "none", "-o", tmp_path / "x")
        assert result.code == Exit.IO
        assert "no such file" in result.err

    def test_a_folder_without_episodes_is_said(self, wshard: Run, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        result = wshard("stats", tmp_path / "empty")
        assert result.code == Exit.USAGE
        assert "no episodes found" in result.err

    def test_parts_become_statistics(self, wshard: Run, folder: Path) -> None:
        for number in (2, 1):
            result = wshard("stats", folder, "--part", f"{number}/2")
            assert result.code == Exit.OK
            assert not written(folder).exists()
        result = wshard("commit", written(folder))
        assert (result.code, "3 episodes, 63 steps" in result.out) == (Exit.OK, True)
        assert load_stats(folder).episodes == 3
        assert wshard("stats", folder, "--part", "3/2").code == Exit.USAGE
