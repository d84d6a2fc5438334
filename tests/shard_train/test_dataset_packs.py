"""Episodes in packs as a dataset, and saved indexes as one: the same windows as from files."""

from __future__ import annotations

import gc
import os
import pickle
import shutil
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import shardpack
from shard_format import ShardReader, ShardWriter
from shard_format._content import Content
from shard_format.errors import (
    BadMetadata,
    ChecksumMismatch,
    InvalidArgument,
    ReferenceMismatch,
    ShardError,
    ShardIOError,
)
from shard_train import EpisodeDataset
from shard_train.packed_episodes import EpisodePack, pack_episodes
from tests.shard_format.support import check_python
from tests.shard_train.dataset_support import (
    arrays_of,
    assert_equal_windows,
    episode_of,
    write_folder,
)
from tests.shard_train.test_dataset import LENGTHS, WORKERS, wanted
from tests.shard_train.test_dataset_index import age, index_of
from tests.wshard.support import noise_array, save
from tests.wshard.test_remote_episodes import address  # noqa: F401 - a fixture
from wshard import ChunkedEpisodeWriter, Episode, add_lane, load_wshard
from wshard.catalogue._rows import ROW

if TYPE_CHECKING:
    from shard_format.layout import IndexRow


def pack(folder: Path, output: Path, **options: Any) -> list[str]:  # noqa: ANN401 - pack_episodes'
    """The packs that a folder of episodes makes."""
    output.parent.mkdir(exist_ok=True, parents=True)
    return pack_episodes(folder, output, **options).paths


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read only."""
    return write_folder(tmp_path_factory.mktemp("episodes") / "five", LENGTHS)


@pytest.fixture
def packs(files: Path, tmp_path: Path) -> list[str]:
    """Three packs, of two episodes and one."""
    size = max(path.stat().st_size for path in files.iterdir())
    made = pack(files, tmp_path / "packs" / "eps-%03d.shardpack", max_bytes=2 * size)
    assert len(made) >= 2
    return made


class Watch:
    """Which episodes of packs are opened to find out about them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: list[str] = []
        load = EpisodePack.load

        def watched(pack: EpisodePack, record: int, name: str, **options: Any) -> Episode:  # noqa: ANN401 - load's
            if not options:  # a window asks for channels
                self.opened.append(pack.reader.record(record).key)
            return load(pack, record, name, **options)

        monkeypatch.setattr(EpisodePack, "load", watched)

    def lengths(self, given: Any, **options: Any) -> list[int]:  # noqa: ANN401 - the dataset's
        """Opens a dataset anew, and forgets what was opened before."""
        self.opened.clear()
        lengths: list[int] = EpisodeDataset(given, 3, **options).lengths.tolist()
        return lengths


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


class TestWindows:
    """What comes out of packs."""

    def test_packs_give_the_windows_of_the_files(self, files: Path, packs: list[str]) -> None:
        folder = os.path.dirname(packs[0])
        plain = EpisodeDataset(files, 16)
        ways: list[Any] = [
            folder,
            packs,
            f"{folder}/*.shardpack",
            f"{folder}/eps-*",
            f"{folder}/eps-{{000..{len(packs) - 1:03d}}}.shardpack",
            shardpack.open(packs),
            shardpack.open(f"{folder}/eps-*"),
        ]
        for _ in range(2):  # the second time with indexes
            for way in ways:
                ds = EpisodeDataset(way, 16)
                assert ds.lengths.tolist() == list(LENGTHS)
                names = [os.path.basename(path) for path in ds.paths]
                assert names == [f"ep_{number}.wshard" for number in range(5)]
                assert ds.paths[0] == f"{packs[0]}/ep_0.wshard"
                assert_equal_windows(ds.batch(range(len(ds))), plain.batch(range(len(plain))))
                assert_equal_windows(ds[-1], wanted(ds, len(ds) - 1))
                assert ds.data_fingerprint == plain.data_fingerprint

    def test_one_pack_is_a_dataset(self, files: Path, tmp_path: Path) -> None:
        (one,) = pack(files, tmp_path / "all.shardpack")
        ds = EpisodeDataset(one, 16, episodes=[4, 0], where=lambda ep: ep.length > 10)
        assert ds.lengths.tolist() == [40, 20]
        assert ds[0]["reward"][0] == 4.0

    def test_options_work_as_with_files(self, files: Path, packs: list[str]) -> None:
        for options in (
            {"window": 7, "pad": "edge"},
            {"window": 7, "next_observations": True},
            {"delta_timestamps": {"cam": [-1 / 30, 0.0]}},
        ):
            plain, packed = EpisodeDataset(files, **options), EpisodeDataset(packs, **options)
            assert len(plain) == len(packed)
            assert_equal_windows(packed.batch([0, 30, -1]), plain.batch([0, 30, -1]))

    def test_added_lanes_are_channels(self, tmp_path: Path) -> None:
        folder = write_folder(tmp_path / "eps", [12])
        add_lane(folder / "ep_0.wshard", {"omen/state/m": arrays_of(0, 12)["state"] + 5})
        (made,) = pack(folder, tmp_path / "all.shardpack")
        window = EpisodeDataset(made, 8, channels=["state", "omen/state/m"])[2]
        assert np.array_equal(window["omen/state/m"], window["state"] + 5)

    def test_every_episode_of_a_record_counts_and_nothing_else_does(self, tmp_path: Path) -> None:
        paths = [save(episode_of(n, 9 + n), tmp_path / f"{n}.wshard") for n in range(3)]
        data = [path.read_bytes() for path in paths]
        target = tmp_path / "odd.shardpack"
        with shardpack.ShardPackWriter(target) as writer:
            writer.write("a", {"left.wshard": data[0], "right.wshard": data[1], "jpg": b"x"})
            writer.write("b", {"txt": b"no episode"})
            writer.write("c.d", {"wshard": data[2]}, compression={"wshard": "zstd"})
        for _ in range(2):
            ds = EpisodeDataset(target, 4)
            inside = [path.removeprefix(f"{target}/") for path in ds.paths]
            assert inside == ["a.left.wshard", "a.right.wshard", "c.d.wshard"]
            assert ds.lengths.tolist() == [9, 10, 11]
            firsts = ds.batch(np.cumsum([0, 6, 7]))["reward"][:, 0]
            assert firsts.tolist() == [0.0, 1.0, 2.0]

    def test_packs_may_be_bytes(self, packs: list[str], files: Path) -> None:
        opened = shardpack.open([Path(path).read_bytes() for path in packs])
        ds = EpisodeDataset(opened, 16)
        assert_equal_windows(
            pickle.loads(pickle.dumps(ds)).batch([0, -1]), EpisodeDataset(files, 16).batch([0, -1])
        )

    def test_packs_can_be_read_over_http(
        self,
        packs: list[str],
        files: Path,
        address: str,  # noqa: F811 - the fixture
        tmp_path: Path,
        watch: Watch,
    ) -> None:
        urls = f"{address}/packs/eps-{{000..{len(packs) - 1:03d}}}.shardpack"
        there = tmp_path / "urls.index"
        for _ in range(2):
            assert watch.lengths(urls, index=there) == list(LENGTHS)
        assert watch.opened == []
        ds = EpisodeDataset(urls, 16, index=there)
        assert ds.paths[0] == f"{address}/packs/eps-000.shardpack/ep_0.wshard"
        assert_equal_windows(ds.batch([0, -1]), EpisodeDataset(files, 16).batch([0, -1]))


class TestChecksums:
    """Blocks that are not compressed: checked once in a process, or never."""

    @pytest.fixture(params=["files", "pack"])
    def raw(self, request: pytest.FixtureRequest, tmp_path: Path) -> str:
        folder = write_folder(tmp_path / "raw", [4000, 4000], None)
        return (
            str(folder) if request.param == "files" else pack(folder, tmp_path / "a.shardpack")[0]
        )

    def test_a_block_is_checked_once_in_a_process_however_often_its_episode_is_opened(
        self, raw: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        checked: list[str] = []
        compare = Content._compare

        def watched(content: Content, row: IndexRow, data: bytes | memoryview) -> None:
            if len(data) == arrays_of(0, 4000)["cam"].nbytes:
                checked.append("cam")
            compare(content, row, data)

        monkeypatch.setattr(Content, "_compare", watched)
        ds = EpisodeDataset(raw, 8, channels=["cam"], max_open=1, index=False)
        for number in (0, -1) * 3:
            _ = ds[number]
        assert checked == ["cam", "cam"]

    def test_unchecked_windows_of_a_damaged_block_are_read_as_they_are(self, raw: str) -> None:
        path = raw if os.path.isfile(raw) else os.path.join(raw, "ep_0.wshard")
        content = bytearray(Path(path).read_bytes())
        cam = arrays_of(0, 4000)["cam"]
        content[content.index(cam.tobytes()) + cam.nbytes - 1] ^= 1
        Path(path).write_bytes(content)
        with pytest.raises(ChecksumMismatch):
            _ = EpisodeDataset(raw, 8, index=False)[0]
        ds = EpisodeDataset(raw, 8, index=False, check=False)
        assert np.array_equal(ds[0]["cam"], cam[:8])
        assert np.array_equal(pickle.loads(pickle.dumps(ds))[3992]["cam"], cam[3992:-1])


class TestFolders:
    """Folders of packs, of files, and of both."""

    def test_files_and_packs_of_a_folder_both_count_in_the_order_of_names(
        self, tmp_path: Path
    ) -> None:
        folder = tmp_path / "all"
        write_folder(folder, [5])
        old = write_folder(tmp_path / "old", [7, 8])
        pack(old, folder / "archive" / "a.shardpack")
        os.rename(folder / "ep_0.wshard", folder / "new.wshard")
        for _ in range(2):
            ds = EpisodeDataset(folder, 3)
            inside = [os.path.relpath(path, folder) for path in ds.paths]
            assert inside == [
                "archive/a.shardpack/ep_0.wshard",
                "archive/a.shardpack/ep_1.wshard",
                "new.wshard",
            ]
            assert ds.lengths.tolist() == [7, 8, 5]
            age(folder)

    @pytest.mark.parametrize("place", ["all.shardpack", "packs/all.shardpack"])
    def test_an_episode_that_is_there_twice_is_refused(self, tmp_path: Path, place: str) -> None:
        folder = write_folder(tmp_path / "eps", [5, 6])
        pack(folder, tmp_path / "new.shardpack")
        (folder / place).parent.mkdir(exist_ok=True)
        os.rename(tmp_path / "new.shardpack", folder / place)
        with pytest.raises(InvalidArgument, match=r"twice.*ep_0\.wshard and .*all\.shardpack/ep_0"):
            EpisodeDataset(folder, 3)
        both = EpisodeDataset([f"{folder}/*.wshard", folder / place], 3)
        assert both.lengths.tolist() == [5, 6, 5, 6]

    def test_a_folder_that_did_not_change_is_not_even_listed(
        self, packs: list[str], watch: Watch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        folder = tmp_path / "packs"
        age(folder)
        assert watch.lengths(folder) == list(LENGTHS)
        assert len(watch.opened) == 5
        monkeypatch.setattr(os, "scandir", None)  # would fail if it were called
        assert watch.lengths(folder) == list(LENGTHS)
        assert watch.opened == []
        assert not any(path.endswith("-index") for path in os.listdir(folder))

    def test_a_pack_that_changes_in_place_is_seen(
        self, packs: list[str], watch: Watch, tmp_path: Path, files: Path
    ) -> None:
        folder = tmp_path / "packs"
        age(folder)
        watch.lengths(folder)
        more = write_folder(tmp_path / "more", [9])
        (made,) = pack(more, tmp_path / "other.shardpack")
        before = folder.stat().st_mtime_ns
        Path(packs[0]).write_bytes(Path(made).read_bytes())
        assert folder.stat().st_mtime_ns == before
        assert 9 in watch.lengths(folder)
        assert watch.opened == ["ep_0"]


class TestIndexes:
    """What is saved beside packs, and saved indexes as datasets."""

    def test_a_pack_has_its_index_beside_it(
        self, packs: list[str], watch: Watch, files: Path, tmp_path: Path
    ) -> None:
        assert watch.lengths(packs) == list(LENGTHS)
        assert all(os.path.exists(f"{path}.wshard-index") for path in packs)
        assert watch.lengths(packs) == list(LENGTHS)
        assert watch.lengths(packs[::-1], where=lambda ep: ep.length > 3) != []
        assert watch.opened == []
        # A pack that is replaced is looked at again, the others are not.
        pack(files, tmp_path / "new.shardpack")
        os.replace(tmp_path / "new.shardpack", packs[0])
        watch.lengths(packs)
        assert len(watch.opened) == 5
        watch.lengths(packs)
        assert watch.opened == []
        assert len(shardpack.open(f"{tmp_path}/packs/eps-*").shards) == len(packs)

    def test_the_index_of_a_pack_serves_its_folder(
        self, packs: list[str], watch: Watch, tmp_path: Path
    ) -> None:
        watch.lengths(packs[0])
        known = len(watch.opened)
        assert watch.lengths(tmp_path / "packs") == list(LENGTHS)
        assert len(watch.opened) == 5 - known < 5

    def test_without_an_index_none_is_saved(self, packs: list[str], watch: Watch) -> None:
        for _ in range(2):
            watch.lengths(packs, index=False)
            assert len(watch.opened) == 5
        assert not any(os.path.exists(f"{path}.wshard-index") for path in packs)

    def test_one_index_can_be_for_all(
        self, packs: list[str], watch: Watch, tmp_path: Path, files: Path
    ) -> None:
        there = tmp_path / "all.index"
        mixed = [*packs, files / "ep_0.wshard"]
        for _ in range(2):
            assert watch.lengths(mixed, index=there) == [*LENGTHS, 20]
        assert watch.opened == []
        opened = shardpack.open(packs)
        for _ in range(2):
            assert watch.lengths(opened, index=tmp_path / "opened.index") == list(LENGTHS)
        assert watch.opened == []

    def test_an_index_is_a_dataset_of_its_own(
        self, files: Path, packs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = tmp_path / "runs"
        shutil.copytree(files, folder)
        plain = EpisodeDataset(folder, 16)
        short = EpisodeDataset(folder, 3)[0]
        EpisodeDataset(packs[0], 3)
        EpisodeDataset(packs, 3, index=tmp_path / "deep.wshard-index")
        monkeypatch.setattr(os, "scandir", None)  # would fail if it were called
        again = EpisodeDataset(index_of(folder), 16, where=lambda ep: ep.length > 3)
        assert again.paths == [plain.paths[number] for number in (0, 2, 3, 4)]
        assert_equal_windows(again[0], plain[0])
        one = EpisodeDataset(f"{packs[0]}.wshard-index", 3)
        assert one.paths[0] == f"{packs[0]}/ep_0.wshard"
        assert_equal_windows(one[0], short)
        assert EpisodeDataset(tmp_path / "deep.wshard-index", 3).lengths.tolist() == list(LENGTHS)
        # It leads to the folder from wherever both were moved to.
        monkeypatch.undo()
        moved = tmp_path / "elsewhere"
        moved.mkdir()
        os.rename(folder, moved / "runs")
        os.rename(index_of(folder), moved / "runs.wshard-index")
        monkeypatch.chdir(moved)
        assert_equal_windows(EpisodeDataset("runs.wshard-index", 16)[0], plain[0])

    def test_an_index_that_is_missing_damaged_or_outdated_says_so(
        self, files: Path, tmp_path: Path
    ) -> None:
        folder = tmp_path / "runs"
        shutil.copytree(files, folder)
        index = index_of(folder)
        with pytest.raises(ShardIOError, match=r"runs\.wshard-index"):
            EpisodeDataset(index, 16)
        EpisodeDataset(folder, 16)
        with pytest.raises(InvalidArgument, match="needs no other index"):
            EpisodeDataset(index, 16, index=tmp_path / "x")
        with pytest.raises(InvalidArgument, match="cannot be part of a list"):
            EpisodeDataset([index], 16)
        ds = EpisodeDataset(index, 16)
        save(episode_of(0, 19), folder / "ep_0.wshard")
        with pytest.raises(ReferenceMismatch, match=r"ep_0\.wshard: .*has changed"):
            ds[0]
        whole = index.read_bytes()
        index.write_bytes(bytes(255 - byte for byte in whole[:200]) + whole[200:])
        with pytest.raises(ShardError, match=r"runs\.wshard-index"):
            EpisodeDataset(index, 16)
        index.write_bytes(b"something else")
        with pytest.raises(ShardError, match=r"runs\.wshard-index"):
            EpisodeDataset(index, 16)

    def test_what_could_not_be_read_is_told_from_the_index(self, tmp_path: Path) -> None:
        folder = write_folder(tmp_path / "runs", [10, 10])
        (folder / "ep_1.wshard").write_bytes(b"broken")
        EpisodeDataset(folder, 4, on_error="skip")
        with pytest.raises(InvalidArgument, match=r"ep_1\.wshard: could not be read when"):
            EpisodeDataset(index_of(folder), 4)
        ds = EpisodeDataset(index_of(folder), 4, on_error="skip")
        assert dict(ds.skipped) == {str(folder / "ep_1.wshard"): 0}

    @pytest.mark.parametrize(
        "changed",
        [
            {"pack_of": [0, 1]},
            {"pack_of": [0, -2]},
            {"pack_of": [0, 1 << 40]},
            {"records": [0]},
            {"packs": b"../all.shardpack\0"},
            {"packs": b"other.shardpack\0"},
            {"packs": b""},
            {"pack_sizes": []},
            {"pack_mtimes_ns": [1, 2]},
            {"observed": [1]},
        ],
        ids=str,
    )
    def test_a_forged_index_of_a_pack_is_made_anew(
        self, tmp_path: Path, changed: dict[str, Any]
    ) -> None:
        (made,) = pack(write_folder(tmp_path / "eps", [5, 6]), tmp_path / "p" / "all.shardpack")
        EpisodeDataset(made, 3)
        self.forge(f"{made}.wshard-index", changed)
        for _ in range(2):
            ds = EpisodeDataset(made, 3)
            assert ds.lengths.tolist() == [5, 6]
            assert ds.paths[1] == f"{made}/ep_1.wshard"
            assert ds[-1]["reward"][0] == 1 + 3 / 8

    def test_a_forged_index_of_a_folder_cannot_lead_out_of_it(self, tmp_path: Path) -> None:
        folder = tmp_path / "packs"
        (made,) = pack(write_folder(tmp_path / "eps", [5, 6]), folder / "all.shardpack")
        shutil.copy2(made, tmp_path / "all.shardpack")
        age(folder)
        EpisodeDataset(folder, 3)
        self.forge(str(index_of(folder)), {"packs": b"../all.shardpack\0"})
        assert EpisodeDataset(folder, 3).paths[0] == f"{made}/ep_0.wshard"

    @pytest.mark.parametrize("records", [[0, 0], [1, 0], [0, 2], [0, 1 << 60], [0, -1]])
    def test_forged_places_are_found_out_when_the_episode_is_read(
        self, tmp_path: Path, records: list[int]
    ) -> None:
        (made,) = pack(write_folder(tmp_path / "eps", [5, 5]), tmp_path / "p" / "all.shardpack")
        EpisodeDataset(made, 3)
        self.forge(f"{made}.wshard-index", {"record": records})
        with pytest.raises(ReferenceMismatch, match=r"all\.shardpack: the pack has changed since"):
            EpisodeDataset(made, 3)[-1]

    def forge(self, index: str, changed: dict[str, Any]) -> None:
        with ShardReader(index) as reader:
            entries: dict[str, Any] = {name: reader[name] for name in reader}
        if "record" in changed:
            rows = np.frombuffer(entries["rows"], ROW).copy()
            rows["record"] = changed.pop("record")
            changed["rows"] = rows.tobytes()
        entries.update(changed)
        with ShardWriter(index, fsync=False) as writer:
            for name, content in entries.items():
                is_list = isinstance(content, list)
                writer.write_entry(name, np.array(content, "<i8") if is_list else content)

    def test_an_index_of_another_version_is_no_source(self, tmp_path: Path) -> None:
        folder = write_folder(tmp_path / "eps", [5])
        EpisodeDataset(folder, 3)
        self.forge(str(index_of(folder)), {"kind": b"wshard-index 1"})
        with pytest.raises(BadMetadata, match="another kind of file, or another version"):
            EpisodeDataset(index_of(folder), 3)
        assert len(EpisodeDataset(folder, 3)) == 3


class TestErrors:
    """Packs and episodes in them that cannot be read."""

    def damaged(self, tmp_path: Path) -> str:
        """The steps in the middle of the second episode's camera are not what they were."""
        folder = tmp_path / "eps"
        folder.mkdir()
        for number in range(3):
            ep = episode_of(number, 40)
            ep.observations["cam"] = noise_array(40, 60, 40, dtype="u1", seed=number) // 2
            save(ep, folder / f"ep_{number}.wshard", "zstd:1", steps_per_frame=4)
        (made,) = pack(folder, tmp_path / "all.shardpack")
        data = bytearray(Path(made).read_bytes())
        middle = len(data) // 2
        data[middle : middle + 8] = bytes(255 - byte for byte in data[middle : middle + 8])
        Path(made).write_bytes(data)
        return made

    def test_damaged_steps_name_pack_and_episode_or_are_skipped(self, tmp_path: Path) -> None:
        made = self.damaged(tmp_path)
        with pytest.raises(ShardError, match=r"all\.shardpack.*ep_1.*signal/cam"):
            EpisodeDataset(made, 40).batch([1])
        ds = EpisodeDataset(made, 4, channels=["cam"], on_error="skip")
        numbers = range(37, 74)  # of the second episode
        found = ds.batch(numbers)["episode"]
        assert set(found.tolist()) == {1, 2}
        assert dict(ds.skipped) == {f"{made}/ep_1.wshard": int((found == 2).sum())}
        assert 0 < ds.skipped.total < 20

    def test_an_episode_that_cannot_be_opened_is_named_or_left_out(self, tmp_path: Path) -> None:
        target = tmp_path / "a.shardpack"
        data = save(episode_of(2, 9), tmp_path / "x.wshard").read_bytes()
        with shardpack.ShardPackWriter(target) as writer:
            writer.write("first", {"wshard": data})
            writer.write("bad", {"wshard": b"not an episode"})
            writer.write("last", {"wshard": data})
        for _ in range(2):  # the second time there is an index
            with pytest.raises(ShardError, match=r"a\.shardpack.*bad"):
                EpisodeDataset(target, 4)
            ds = EpisodeDataset(target, 4, on_error="skip")
            assert [os.path.basename(path) for path in ds.paths] == ["first.wshard", "last.wshard"]
            assert dict(ds.skipped) == {f"{target}/bad.wshard": 0}

    def test_a_pack_that_is_none_is_named_or_left_out(
        self, packs: list[str], tmp_path: Path
    ) -> None:
        bad = tmp_path / "bad.shardpack"
        bad.write_bytes(b"something else entirely")
        with pytest.raises(ShardError, match=r"bad\.shardpack"):
            EpisodeDataset([*packs, bad], 3)
        ds = EpisodeDataset([bad, *packs], 3, on_error="skip")
        assert ds.lengths.tolist() == list(LENGTHS)
        assert dict(ds.skipped) == {str(bad): 0}
        with pytest.raises(InvalidArgument, match="no episode can be read"):
            EpisodeDataset(bad, 3, on_error="skip")
        with shardpack.ShardPackWriter(tmp_path / "empty.shardpack"):
            pass
        with pytest.raises(InvalidArgument, match="no episode can be read"):
            EpisodeDataset(tmp_path / "empty.shardpack", 3)

    def test_a_damaged_record_is_named_or_left_out(self, packs: list[str]) -> None:
        offset = shardpack.ShardPackReader(packs[0]).get_index()[1]
        with open(packs[0], "r+b") as file:
            file.seek(offset + 30)
            file.write(b"\xff\xff\xff\xff")
        with pytest.raises(ShardError, match=r"eps-000\.shardpack"):
            EpisodeDataset(packs, 3)
        ds = EpisodeDataset(packs, 3, on_error="skip")
        assert ds.lengths.tolist() == [LENGTHS[0], *LENGTHS[2:]]
        assert dict(ds.skipped) == {packs[0]: 0}

    @pytest.mark.parametrize("beside", [True, False])
    def test_a_manifest_in_a_pack_is_named(self, tmp_path: Path, beside: bool) -> None:
        folder = write_folder(tmp_path / "eps", [10])
        with ChunkedEpisodeWriter(folder, "long", chunk_size_t=7) as writer:
            writer.write_episode(episode_of(1, 25))
        # Whether or not its chunks can be found beside the pack.
        (made,) = pack(folder, (folder if beside else tmp_path) / "all.shardpack")
        message = r"long_manifest.*chunked episode cannot be opened in a pack.*unpack"
        with pytest.raises(InvalidArgument, match=message):
            EpisodeDataset(made, 3)
        ds = EpisodeDataset(made, 3, on_error="skip")
        assert ds.lengths.tolist() == [10, 7, 7, 7, 4]

    def test_a_pack_that_changed_since_is_not_read_as_the_old_one(
        self, packs: list[str], tmp_path: Path
    ) -> None:
        ds = EpisodeDataset(packs, 3)
        (other,) = pack(write_folder(tmp_path / "x" / "other", [9]), tmp_path / "o.shardpack")
        os.replace(other, packs[0])
        assert_equal_windows(ds[0], wanted(ds, 0))  # what is open stays as it was
        ds.close()
        with pytest.raises(ReferenceMismatch, match=r"eps-000\.shardpack.*changed since"):
            ds[LENGTHS[0] - 2]  # the window of the second episode


class TestProcesses:
    """Forks, pickles, open files, memory."""

    @pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
    def test_workers_read_the_same(self, packs: list[str], method: str, tmp_path: Path) -> None:
        script = tmp_path / "work.py"
        script.write_text("\n".join(line[4:] for line in WORKERS.splitlines()))
        run = (
            "import subprocess, sys; "
            f"sys.exit(subprocess.run([sys.executable, {str(script)!r}, *sys.argv[1:]]).returncode)"
        )
        assert check_python(run, method, os.path.dirname(packs[0])).strip().endswith("ok")

    def test_a_pickle_holds_everything_and_is_small(
        self, packs: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.chdir(tmp_path)
        for given in ("packs", [os.path.relpath(path) for path in packs], shardpack.open(packs)):
            ds = EpisodeDataset(given, 16)
            ds.batch(range(5))
            packed = pickle.dumps(ds)
            assert len(packed) < 3000
            monkeypatch.chdir("/")
            again = pickle.loads(packed)
            monkeypatch.chdir(tmp_path)
            assert repr(again) == repr(ds)
            assert_equal_windows(again.batch([1, -1]), ds.batch([1, -1]))

    def test_the_text_form_tells_packs_apart(self, packs: list[str]) -> None:
        other = packs[0].replace("eps-", "copy-")
        shutil.copy(packs[0], other)
        alone = {repr(EpisodeDataset(path, 3)) for path in (*packs, other)}
        assert len(alone) == len(packs) + 1

    @pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="only Linux counts its files")
    def test_packs_are_open_not_episodes(self, tmp_path: Path) -> None:
        folder = tmp_path / "eps"
        folder.mkdir()
        for number in range(12):
            ep = Episode("ep", observations={"cam": noise_array(20, 70, 70, dtype="u1")})
            save(ep, folder / f"{number:02d}.wshard")
        size = (folder / "00.wshard").stat().st_size
        made = pack(folder, tmp_path / "packs" / "%03d.shardpack", max_bytes=5 * size)
        assert len(made) == 3
        gc.collect()
        gc.disable()  # files must not wait for it
        try:
            before = len(os.listdir("/proc/self/fd"))
            ds = EpisodeDataset(made, 8, max_open=50, threads=2)
            for seed in range(10):
                ds.batch(np.random.default_rng(seed).integers(0, len(ds), 12))
                assert len(os.listdir("/proc/self/fd")) <= before + 2 * 3
            ds.close()
            assert len(os.listdir("/proc/self/fd")) == before
            few = EpisodeDataset(made, 8, max_open=1, threads=1)
            few.batch(np.random.default_rng(0).integers(0, len(ds), 12))
            # One pack, and that of the one open episode.
            assert len(os.listdir("/proc/self/fd")) <= before + 2 * 2
        finally:
            gc.enable()

    def test_windows_are_views_until_they_are_copied(self, tmp_path: Path) -> None:
        folder = tmp_path / "eps"
        folder.mkdir()
        frames = noise_array(40, 100, 100, dtype="u1")
        save(Episode("ep", observations={"cam": frames}), folder / "a.wshard")
        (made,) = pack(folder, tmp_path / "a.shardpack")
        ds = EpisodeDataset(made, 2)
        ds[0]
        channel = ds._store[0].channels["cam"]
        assert channel is not None
        assert not channel.read_steps(3, 5).flags.owndata
        assert np.array_equal(ds[3]["cam"], frames[3:5])

    def test_an_episode_takes_less_than_200_bytes(self, tmp_path: Path) -> None:
        data = save(episode_of(0, 8, {"task": "push"}), tmp_path / "one.wshard").read_bytes()
        count = 2000
        with shardpack.ShardWriterSet(
            tmp_path / "episodes-%03d.shardpack", max_bytes=500 * len(data)
        ) as writer:
            for number in range(count):
                writer.write(f"run_{number % 7}/episode_{number:08d}", {"wshard": data})
        pattern = f"{tmp_path}/episodes-*.shardpack"
        EpisodeDataset(pattern, 4)
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            ds = EpisodeDataset(pattern, 4)
            assert (tracemalloc.get_traced_memory()[0] - before) / count < 200
            assert len(ds) == 5 * count
        finally:
            tracemalloc.stop()


def test_reading_one_episode_of_a_pack_is_reading_its_file(files: Path, packs: list[str]) -> None:
    ds = EpisodeDataset(packs, 3)
    for number, path in enumerate(sorted(files.iterdir())):
        with ds.open_channels(number) as channels, load_wshard(path) as episode:
            assert np.array_equal(channels["cam"].data, episode.observations["cam"].data)
