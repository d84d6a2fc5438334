"""Ray Data on two nodes: every row once, only the columns that are asked for, sets that appear as a whole."""

from __future__ import annotations

import json
import os
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import shardpack
from shard_format.errors import InvalidArgument
from shard_format.remote import delete_url, list_url, open_url
from shard_train import EpisodeDataset
from shard_train.packed_episodes import pack_episodes
from tests.ray import jobs
from tests.ray.conftest import EPISODES
from tests.stores import servers
from wshard import load_wshard
from wshard.identity import episode_identity

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.stores.servers import Bucket

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("cluster")]


@pytest.fixture(scope="session")
def packs(episodes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same episodes in a set of several shards."""
    folder = tmp_path_factory.mktemp("packs")
    pack_episodes(episodes, folder / "eps-%02d.shardpack", max_records=7)
    return folder / "eps.shardpack-set"


def contents(packs: Path | str) -> dict[str, dict[str, bytes]]:
    with shardpack.open(packs) as dataset:
        return {record.key: record.read_all() for record in dataset.records()}


def test_a_reference_says_what_is_known_about_an_episode(episodes: Path) -> None:
    from shard_train.ray import read_episodes

    rows = read_episodes(episodes, override_num_blocks=5).take_all()
    assert sorted(row["id"] for row in rows) == sorted(f"ep_{n}" for n in range(EPISODES))
    path = episodes / "run_1" / "ep_3.wshard"
    (row,) = (row for row in rows if row["id"] == "ep_3")
    assert row == {
        "path": str(path),
        "identity": str(episode_identity(path)),
        "id": "ep_3",
        "env_id": "Reach-v1",
        "length": 29,
        "bytes": path.stat().st_size,
    }
    (only,) = read_episodes(episodes, where="id == 'ep_3'").select_columns(["length"]).take_all()
    assert only == {"length": 29}
    with pytest.raises(InvalidArgument, match="stride"):
        read_episodes(episodes, stride=2)


def test_every_window_is_read_once(episodes: Path) -> None:
    from shard_train.ray import read_episodes

    expected = EpisodeDataset(episodes, window=8, stride=4)
    rows = read_episodes(episodes, window=8, stride=4, override_num_blocks=7).take_all()
    places = [(row["episode"], row["start"]) for row in rows]
    assert sorted(places) == [expected.episode_of(number) for number in range(len(expected))]
    by_place = dict(zip(places, rows, strict=True))
    for number in (0, 17, len(expected) - 1):
        window, row = expected[number], by_place[expected.episode_of(number)]
        assert set(row) == set(window)
        for name, values in window.items():
            assert np.array_equal(row[name], values), name


def test_channels_that_are_not_asked_for_are_not_read(tmp_path: Path) -> None:
    from shard_train.ray import read_episodes

    jobs.make_episodes(tmp_path / "eps", 2)
    path = tmp_path / "eps" / "run_0" / "ep_0.wshard"
    with load_wshard(path) as episode:
        entry = episode.origin.reader.info("signal/rgb")  # type: ignore[union-attr] # it was loaded
        offset = entry.data_offset
    data = bytearray(path.read_bytes())
    data[offset] ^= 0xFF
    path.write_bytes(data)
    windows = read_episodes(tmp_path / "eps", window=8, override_num_blocks=2)
    chosen = windows.select_columns(["state", "start"])
    assert set(chosen.schema().names) == {"state", "start"}
    assert len(chosen.take_all()) == len(EpisodeDataset(tmp_path / "eps", window=8))


@pytest.mark.parametrize("blocks", [2, 9])
def test_every_record_is_read_once_by_few_tasks_and_by_many(packs: Path, blocks: int) -> None:
    from shard_train.ray import KEY, METADATA, read_packs

    rows = read_packs(packs, override_num_blocks=blocks).take_all()
    assert {row[KEY]: {"wshard": row["wshard"]} for row in rows} == contents(packs)
    assert len(rows) == EPISODES
    assert rows[0][METADATA] == "{}"
    keys = read_packs(packs, override_num_blocks=blocks).select_columns([KEY]).take_all()
    assert sorted(row[KEY] for row in keys) == sorted(contents(packs))
    assert set(keys[0]) == {KEY}


def test_estimates_come_before_anything_is_read(packs: Path) -> None:
    from shard_train.ray import read_packs

    records = read_packs(packs, override_num_blocks=4)
    tasks = records._logical_plan.dag.datasource.get_read_tasks(4)
    assert sum(task.metadata.num_rows for task in tasks) == EPISODES
    sizes = [shard.stat().st_size for shard in packs.parent.glob("*.shardpack")]
    assert sum(task.metadata.size_bytes for task in tasks) == sum(sizes)


def test_a_set_has_each_record_once_though_a_worker_dies(packs: Path, tmp_path: Path) -> None:
    from shard_train.ray import PackSink, read_packs

    marker = str(tmp_path / "died")
    rows = read_packs(packs, override_num_blocks=4).map(partial(jobs.die_once, marker=marker))
    rows.write_datasink(PackSink(tmp_path / "new-%03d.shardpack", max_bytes=100_000))
    assert (tmp_path / "died").exists()
    assert contents(tmp_path / "new.shardpack-set") == contents(packs)
    listed = {path.name for path in tmp_path.iterdir()} - {"died", "new.shardpack-set"}
    with shardpack.open(tmp_path / "new.shardpack-set") as dataset:
        assert {str(one).rpartition("/")[2] for one in dataset.locations} == listed
    with pytest.raises(InvalidArgument, match="overwrite"):
        rows.write_datasink(PackSink(tmp_path / "new-%03d.shardpack"))


def test_a_set_of_which_a_task_fails_is_not_there_and_the_next_run_completes_it(
    packs: Path, tmp_path: Path
) -> None:
    from shard_train.ray import PackSink, read_packs

    luck = str(tmp_path / "luck")
    rows = read_packs(packs, override_num_blocks=4).map(partial(jobs.fail_without, luck=luck))
    sink = partial(PackSink, tmp_path / "new-%03d.shardpack", max_bytes=1, compression="zstd")
    with pytest.raises(Exception, match="no luck"):
        rows.write_datasink(sink())
    assert not list(tmp_path.glob("new*.shardpack")) + list(tmp_path.glob("*.shardpack-set"))
    (tmp_path / "luck").touch()
    rows.write_datasink(sink())
    assert contents(tmp_path / "new.shardpack-set") == contents(packs)
    assert not (tmp_path / "new.shardpack-parts").exists()


def test_a_task_that_runs_twice_writes_the_same_file(tmp_path: Path) -> None:
    import pyarrow

    from shard_train.ray import KEY, PackSink

    sink = PackSink(tmp_path / "new-%03d.shardpack")
    block = pyarrow.table({KEY: ["a", "b"], "x.txt": ["one", None], "y.bin": [b"1", b"2"]})
    first, before = sink.write([block], None), sorted((tmp_path / "new.shardpack-parts").iterdir())
    times = [path.stat().st_mtime_ns for path in before]
    assert sink.write([block], None) == first
    assert [path.stat().st_mtime_ns for path in before] == times
    assert sink.write([block.slice(0, 1)], None) != first
    before[0].unlink()
    assert sink.write([block], None) == first
    assert before[0].exists()


def test_a_folder_of_episodes_appears_as_a_whole(
    packs: Path, episodes: Path, tmp_path: Path
) -> None:
    from shard_train.ray import KEY, EpisodeSink, episode_bytes, read_packs

    rows = read_packs(packs, override_num_blocks=3)
    rows.write_datasink(EpisodeSink(tmp_path / "out"))
    assert {path.name for path in tmp_path.iterdir()} == {"out"}
    for path in episodes.rglob("*.wshard"):
        assert (tmp_path / "out" / path.relative_to(episodes)).read_bytes() == path.read_bytes()
    with pytest.raises(FileExistsError):
        rows.write_datasink(EpisodeSink(tmp_path / "out"))

    def same_key(row: dict[str, Any]) -> dict[str, Any]:
        return {**row, KEY: "same"}

    with pytest.raises(Exception, match="two rows have the key 'same'"):
        rows.map(same_key).write_datasink(EpisodeSink(tmp_path / "twice"))
    assert not (tmp_path / "twice").exists()
    with load_wshard(episodes / "run_0" / "ep_0.wshard") as episode:
        assert episode_bytes(episode) == (episodes / "run_0" / "ep_0.wshard").read_bytes()


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with servers.moto() as bucket:
        yield bucket


class TestObjectStores:
    """Sets and folders at URLs of a server on the loopback."""

    @pytest.fixture
    def folder(self, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        monkeypatch.setenv("SHARD_STORAGE_OPTIONS", json.dumps(bucket.options))
        return f"s3://bucket/{tmp_path.name}"

    def write(self, rows: Any, sink: Any) -> None:  # noqa: ANN401 - of Ray
        """The tasks get the options that this process has."""
        options = {"SHARD_STORAGE_OPTIONS": os.environ["SHARD_STORAGE_OPTIONS"]}
        rows.write_datasink(sink, ray_remote_args={"runtime_env": {"env_vars": options}})

    def test_a_set_appears_when_all_rows_are_written_and_is_completed_by_the_next_run(
        self, packs: Path, tmp_path: Path, folder: str
    ) -> None:
        from shard_train.ray import PackSink, read_packs

        luck = str(tmp_path / "luck")
        rows = read_packs(packs, override_num_blocks=4).map(partial(jobs.fail_without, luck=luck))
        sink = partial(PackSink, f"{folder}/new-%03d.shardpack", max_bytes=1)
        with pytest.raises(Exception, match="no luck"):
            self.write(rows, sink())
        assert not [one for one in list_url(folder) if "shardpack-parts/" not in one.url]
        (tmp_path / "luck").touch()
        self.write(rows, sink())
        set_file = f"{folder}/new.shardpack-set"
        assert contents(set_file) == contents(packs)
        with shardpack.open(set_file) as dataset:
            listed = {*map(str, dataset.locations), set_file}
        assert {one.url for one in list_url(folder)} == listed
        for overwrite in (False, True):
            with pytest.raises(InvalidArgument, match=r"already|replaced"):
                self.write(rows, sink(overwrite=overwrite))

    def test_a_task_that_runs_twice_writes_the_same_objects(self, folder: str) -> None:
        import pyarrow

        from shard_train.ray import KEY, PackSink

        sink = PackSink(f"{folder}/new-%03d.shardpack")
        block = pyarrow.table({KEY: ["a", "b"], "y.bin": [b"1", b"2"]})
        first = sink.write([block], None)
        before = list_url(folder)
        assert sink.write([block], None) == first
        assert list_url(folder) == before
        delete_url(next(one.url for one in before if one.url.endswith("-set")))
        assert sink.write([block], None) == first
        assert [one.url for one in list_url(folder)] == [one.url for one in before]

    def test_a_folder_of_episodes_is_continued_after_a_sudden_end_and_never_replaced(
        self, packs: Path, episodes: Path, folder: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from shard_train.ray import EpisodeSink, read_packs

        rows = read_packs(packs, override_num_blocks=3)
        with monkeypatch.context() as patched:
            patched.setattr("shard_train.ray._remove", jobs.die)
            with pytest.raises(KeyboardInterrupt):
                self.write(rows, EpisodeSink(f"{folder}/out"))
        self.write(rows, EpisodeSink(f"{folder}/out"))
        names = [path.relative_to(episodes).as_posix() for path in episodes.rglob("*.wshard")]
        assert sorted(one.url for one in list_url(folder)) == sorted(
            f"{folder}/out/{name}" for name in names
        )
        source = open_url(f"{folder}/out/{names[0]}")
        assert source.read_at(0, source.size()) == (episodes / names[0]).read_bytes()
        with pytest.raises(FileExistsError):
            self.write(rows, EpisodeSink(f"{folder}/out"))
