"""Finding episodes by what is known about them, and the expressions that choose some."""

from __future__ import annotations

import os
import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shard_format.errors import BadMagic, InvalidArgument
from shard_format.executors import LocalExecutor
from shard_train import EpisodeDataset, compute_stats
from shard_train.packed_episodes import open_episode_pack, pack_episodes
from tests.cli.conftest import flip_in
from wshard import Episode, WShardStreamWriter, find, save_wshard
from wshard.catalogue import EpisodeInfo, parse_where

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROWS: list[dict[str, Any]] = [
    {"task": "reach", "success": True, "camera": {"fps": 30}},
    {"task": "lift", "success": False, "score": 0.5},
    {"task": "reach", "is_success": 1},
    {"task": "wait"},
]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Episodes of 10, 20, 30 and 40 steps; the last one has no rewards."""
    folder = tmp_path / "runs"
    for number, metadata in enumerate(ROWS):
        length = 10 * (number + 1)
        episode = Episode(f"ep_{number}", env_id="Reach-v1")
        episode.observations["state"] = np.full((length, 2), number, np.float32)
        episode.metadata = metadata
        if number < 3:
            episode.rewards = np.full(length, 0.5, np.float32)
        path = folder / f"day_{number % 2}" / f"ep_{number}.wshard"
        path.parent.mkdir(parents=True, exist_ok=True)
        save_wshard(episode, path, fsync=False)
    return folder


class TestFind:
    def test_a_row_knows_return_length_success_and_metadata(self, runs: Path) -> None:
        rows = {row.id: row for row in find(runs)}
        facts = {id: (row.length, row.return_, row.success) for id, row in rows.items()}
        assert facts == {
            "ep_0": (10, 5.0, True),
            "ep_1": (20, 10.0, False),
            "ep_2": (30, 15.0, True),
            "ep_3": (40, None, None),
        }
        assert rows["ep_0"].metadata == ROWS[0]
        assert rows["ep_1"].path == str(runs / "day_1" / "ep_1.wshard")

    def test_the_saved_index_holds_all_of_it(
        self, runs: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for folder in (runs, *runs.iterdir()):
            os.utime(folder, ns=(1, 1))
        first = find(runs).to_dict()
        assert runs.with_name("runs.wshard-index").exists()
        monkeypatch.setattr("wshard.catalogue._scan.load_wshard", None)  # would be called to look
        assert find(runs).to_dict() == first
        assert [row.id for row in find(runs, "return > 5")] == ["ep_2", "ep_1"]

    def test_a_table_converts_to_columns_prints_and_opens_episodes(self, runs: Path) -> None:
        table = find(runs, where="success", index=False)
        assert not runs.with_name("runs.wshard-index").exists()
        columns = table.to_dict()
        assert list(columns) == ["path", "id", "env_id", "length", "return", "success", "metadata"]
        assert columns["return"] == [5.0, 15.0]
        assert list(table.paths) == columns["path"]
        shown = repr(table).splitlines()
        assert shown[0].split() == ["path", "id", "length", "return", "success"]
        assert shown[1].split()[1:] == ["ep_0", "10", "5", "True"]
        assert shown[-1] == "[2 episodes]"
        assert [row.id for row in table[1:]] == ["ep_2"]
        with table[1:].open(-1) as episode:
            assert (episode.id, episode.length) == ("ep_2", 30)
        with pytest.raises(IndexError):
            table.open(2)

    def test_other_processes_find_the_same_and_name_what_they_cannot_read(self, runs: Path) -> None:
        broken = runs / "day_0" / "broken.wshard"
        broken.write_bytes(b"SHRD" + bytes(100))
        failed: list[tuple[str, str]] = []
        tables = [
            find(
                runs,
                index=False,
                executor=executor,
                on_error=lambda path, error: failed.append((path, str(error))),
            ).to_dict()
            for executor in (None, LocalExecutor(2))
        ]
        assert tables[0] == tables[1]
        assert len(tables[0]["id"]) == 4
        assert failed[0] == failed[1]
        assert failed[0][0] == str(broken)

    def test_numbers_of_any_size_are_compared_or_refused(self, runs: Path) -> None:
        digits = "9" * 400
        for index in (False, True, True):  # without the index, while it is made, and from it
            for field, known in (("length", 4), ("return", 3)):
                assert len(find(runs, f"{field} < {digits}", index=index)) == known
                assert len(find(runs, f"{field} > -{digits}", index=index)) == known
                assert not find(runs, f"{field} == {2**63}", index=index)
            with pytest.raises(InvalidArgument, match="not understood"):
                find(runs, f"length < {'9' * 5000}", index=index)

    def test_names_from_files_cannot_repaint_the_terminal(self, tmp_path: Path) -> None:
        save_wshard(Episode("a\x1b[2J", length=1), tmp_path / "ep.wshard", fsync=False)
        assert "\x1b" not in repr(find(tmp_path, index=False))

    def test_an_unreadable_file_is_an_error_or_is_told(self, runs: Path) -> None:
        (runs / "bad.wshard").write_bytes(b"nothing of the kind")
        with pytest.raises(BadMagic, match=r"bad\.wshard"):
            find(runs)
        told: list[str] = []
        table = find(runs, on_error=lambda path, _: told.append(path))
        assert told == [str(runs / "bad.wshard")]
        assert len(table) == 4

    def test_damaged_rewards_leave_the_return_unknown_and_the_episode_usable(
        self, runs: Path
    ) -> None:
        flip_in(runs / "day_0" / "ep_0.wshard", "reward")
        assert [row.return_ for row in find(runs, "id == 'ep_0'")] == [None]

    def test_packs_are_named_unless_a_function_opens_them(self, runs: Path) -> None:
        pack_episodes(runs, runs.with_name("eps.shardpack"))
        files = str(runs.with_name("eps.shardpack"))
        with pytest.raises(InvalidArgument, match=r"eps\.shardpack: this is a pack of episodes"):
            find(files)
        table = find(files, "return > 5", packs=open_episode_pack)
        assert sorted(row.id for row in table) == ["ep_1", "ep_2"]
        with table.open(0) as episode:
            assert episode.id == table[0].id

    def test_a_folder_with_nothing_but_journals_says_what_to_do(self, tmp_path: Path) -> None:
        writer = WShardStreamWriter(tmp_path / "ep.wshard", "ep", [{"id": "x", "shape": [1]}])
        writer.begin_episode()
        writer.write_timestep({"x": np.zeros(1)})
        writer.close()
        with pytest.raises(InvalidArgument, match=r"no episodes found.*wshard recover "):
            find(tmp_path)

    def test_nothing_that_fits_is_an_empty_table(self, runs: Path) -> None:
        table = find(runs, "length > 1000")
        assert len(table) == 0
        assert repr(table).endswith("[0 episodes]")


class TestWithoutAWindow:
    def test_short_episodes_open_and_have_statistics(self, runs: Path) -> None:
        """All are shorter than the 64 steps that a window has if you do not say."""
        dataset = EpisodeDataset(runs, where="success")
        assert dataset.lengths.tolist() == [10, 30]
        assert "windows=0" in repr(dataset)
        with dataset.open_episode(1) as episode:
            assert episode.id == "ep_2"
        stats = compute_stats(dataset)
        assert (stats.episodes, stats.steps) == (2, 40)
        assert stats["state"].mean.tolist() == [1.5, 1.5]
        uses: list[Callable[[EpisodeDataset], object]] = [len, lambda ds: ds[0]]
        uses += [lambda ds: ds.batch([0]), lambda ds: [ds[n] for n in range(len(ds))]]
        for use in uses:  # never silently nothing
            with pytest.raises(InvalidArgument, match="no episode is long enough for a window"):
                use(dataset)

    def test_a_window_that_you_ask_for_must_fit(self, runs: Path) -> None:
        with pytest.raises(InvalidArgument, match="no episode is long enough for a window"):
            EpisodeDataset(runs, window=64)


def info(**metadata: Any) -> EpisodeInfo:  # noqa: ANN401 - any metadata
    return EpisodeInfo("a/ep.wshard", "ep", "Reach-v1", 120, metadata, 7.5)


class TestExpressions:
    @pytest.mark.parametrize(
        "text",
        [
            "success and length > 100",
            "success == true and not failed",
            "100 < length <= 120",
            "return >= 7.5 and return < 8",
            "-1 < return",
            "task in ('lift', 'reach')",
            "'each' in task and task not in ['lift']",
            "id == 'ep' and env_id == 'Reach-v1' and path == 'a/ep.wshard'",
            "camera.fps == 30 and metadata['camera']['fps'] == 30",
            "failed == null and failed is None and failed != 3",
            "(failed < 3 or length) and task",
            " task == 'reach' ",
        ],
    )
    def test_what_is_true_of_an_episode(self, text: str) -> None:
        assert parse_where(text)(info(success=True, task="reach", camera={"fps": 30}))

    @pytest.mark.parametrize(
        "text",
        [
            "failed",
            "failed < 3 or failed > 3 or 3 in failed",
            "task < 3",
            "length.real == 120",
            "camera.fps.deep == 30",
            "-task",
        ],
    )
    def test_what_cannot_be_compared_never_fits(self, text: str) -> None:
        assert not parse_where(text)(info(task="reach", camera={"fps": 30}))

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "length >",
            "length + 1",
            "2 ** 999999999",
            "'a' * 999999999 == id",
            "open('x')",
            "id.upper()",
            "[x for x in id]",
            "lambda: 1",
            "id if length else 0",
            "id[0:2]",
            "id[length]",
            "(x := 1)",
            "f'{id}'",
            "b'x' == id",
            "1j == length",
            "id == 'x'\nimport os",
            "yield",
            "{id}",
            "id @ id",
            "~length",
            "(" * 150 + "id" + ")" * 150 + " == 'x' and",
            "not " * 30 + "id",
            "[" * 30 + "]" * 30,
            "id" + ".a" * 30,
            "id == '\0'",
            "x" * 1001,
        ],
    )
    def test_everything_else_is_refused_before_a_file_is_opened(self, text: str) -> None:
        with pytest.raises(InvalidArgument, match="is not understood"):
            find("no such folder", text)

    def test_nothing_of_an_expression_is_executed(self, tmp_path: Path) -> None:
        target = tmp_path / "made"
        with pytest.raises(InvalidArgument):
            parse_where(f"open({str(target)!r}, 'w')")
        assert not target.exists()
        # Attributes are fields of the metadata, never of Python objects.
        assert not parse_where("id.__class__")(info())
        assert not parse_where("metadata.__class__.__mro__")(info())

    def test_a_misspelt_field_is_named(self, runs: Path) -> None:
        with pytest.raises(InvalidArgument, match=r"no episode has a field 'succss'.*'success'"):
            find(runs, "succss or length > 0")

    def test_an_expression_costs_little_memory(self) -> None:
        text = " or ".join(["id == 'a'"] * 70)
        tracemalloc.start()
        try:
            assert not parse_where(text)(info())
            assert tracemalloc.get_traced_memory()[1] < 2 << 20
        finally:
            tracemalloc.stop()


def test_the_library_of_episodes_needs_no_training_library(runs: Path) -> None:
    from tests.shard_format.support import check_python

    check_python(
        f"""
        import sys, wshard
        assert len(wshard.find({str(runs)!r})) == 4
        assert "shard_train" not in sys.modules and "shardpack" not in sys.modules
        """
    )
