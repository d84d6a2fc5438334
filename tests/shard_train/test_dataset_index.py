"""The saved index of a folder of episodes: when it is believed, when it is made anew, and what a forged one can do."""

from __future__ import annotations

import logging
import os
import time
import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shard_format import ShardReader, ShardWriter
from shard_format.errors import BadMetadata, InvalidArgument, LimitExceeded, ShardError
from shard_train import EpisodeDataset
from tests.shard_train.dataset_support import episode_of, write_folder
from tests.wshard.support import save
from wshard import ChunkedEpisodeWriter, add_lane, edit, load_wshard
from wshard.catalogue import _scan
from wshard.catalogue._rows import ROW

if TYPE_CHECKING:
    from pathlib import Path

    from wshard.types import Episode

MINUTE = 60_000_000_000


def age(folder: Path, nanoseconds: int = MINUTE) -> None:
    """Makes a folder look as if it had last been changed some time ago."""
    for inner in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        then = time.time_ns() - nanoseconds
        os.utime(inner, ns=(then, then))


def index_of(folder: Path) -> Path:
    return folder.with_name(folder.name + ".wshard-index")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three episodes in an old folder."""
    folder = write_folder(tmp_path / "eps", [10, 12, 14])
    age(folder)
    return folder


class Watch:
    """Which episodes are opened to find out about them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: list[str] = []
        load = load_wshard

        def watched(path: str, **options: Any) -> Episode:  # noqa: ANN401 - load_wshard's
            self.opened.append(os.path.basename(path))
            return load(path, **options)

        monkeypatch.setattr(_scan, "load_wshard", watched)

    def lengths(self, files: Any, **options: Any) -> list[int]:  # noqa: ANN401 - the dataset's
        """Opens a dataset anew, and forgets what was opened before."""
        self.opened.clear()
        lengths: list[int] = EpisodeDataset(files, 4, **options).lengths.tolist()
        return lengths


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


class TestReuse:
    """What is read again, and what is not."""

    def test_a_folder_that_did_not_change_is_not_even_listed(
        self, folder: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert watch.lengths(folder) == [10, 12, 14]
        assert watch.opened == ["ep_0.wshard", "ep_1.wshard", "ep_2.wshard"]
        monkeypatch.setattr(os, "scandir", None)  # would fail if it were called
        assert watch.lengths(folder) == [10, 12, 14]
        assert watch.opened == []

    def test_only_what_is_new_or_changed_is_opened(self, folder: Path, watch: Watch) -> None:
        watch.lengths(folder)
        save(episode_of(1, 20), folder / "ep_1.wshard")
        save(episode_of(7, 7), folder / "ep_7.wshard")
        (folder / "ep_0.wshard").unlink()
        assert watch.lengths(folder) == [20, 14, 7]
        assert watch.opened == ["ep_1.wshard", "ep_7.wshard"]
        age(folder)
        assert watch.lengths(folder) == [20, 14, 7]
        assert watch.opened == []

    def test_a_folder_that_has_just_changed_is_listed_once_more(
        self, folder: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        age(folder, 0)
        moment = os.stat(folder).st_mtime_ns
        assert watch.lengths(folder) == [10, 12, 14]
        # Another file at what a coarse clock takes for the same time.
        save(episode_of(3, 16), folder / "ep_3.wshard")
        os.utime(folder, ns=(moment, moment))
        assert watch.lengths(folder) == [10, 12, 14, 16]
        assert watch.opened == ["ep_3.wshard"]
        # Found unchanged later on, it is believed from then on.
        real = time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: real() + MINUTE)
        assert watch.lengths(folder) == [10, 12, 14, 16]
        monkeypatch.setattr(os, "scandir", None)
        assert watch.lengths(folder) == [10, 12, 14, 16]

    def test_changes_deep_below_are_seen(self, folder: Path, watch: Watch) -> None:
        write_folder(folder / "a" / "b", [5])
        age(folder)
        assert watch.lengths(folder) == [5, 10, 12, 14]
        save(episode_of(1, 6), folder / "a" / "b" / "ep_1.wshard")
        os.utime(folder, ns=(0, os.stat(folder).st_mtime_ns))
        assert watch.lengths(folder) == [5, 6, 10, 12, 14]
        assert watch.opened == ["ep_1.wshard"]

    def test_running_recordings_change_nothing(self, folder: Path, watch: Watch) -> None:
        watch.lengths(folder)
        (folder / "ep_9.wshard.partial").write_bytes(b"")
        assert watch.lengths(folder) == [10, 12, 14]
        assert watch.opened == []

    def test_an_episode_whose_sidecars_change_is_read_again(
        self, folder: Path, watch: Watch
    ) -> None:
        add_lane(folder / "ep_0.wshard", {"omen/state/m": np.zeros((10, 3), "f4")})
        age(folder)
        age(folder / "ep_0.wshard.lanes")
        watch.lengths(folder)
        assert watch.lengths(folder) == [10, 12, 14]
        assert watch.opened == []
        add_lane(folder / "ep_0.wshard", {"omen/state/n": np.zeros((10, 3), "f4")})
        assert watch.lengths(folder) == [10, 12, 14]
        assert watch.opened == ["ep_0.wshard"]

    def test_chunks_are_not_opened_while_their_manifest_counts(
        self, folder: Path, watch: Watch
    ) -> None:
        with ChunkedEpisodeWriter(folder, "long", chunk_size_t=8) as writer:
            writer.write_episode(episode_of(4, 20))
        assert watch.lengths(folder) == [10, 12, 14, 20]
        assert "long_chunk_0001.wshard" not in watch.opened
        assert watch.lengths(folder) == [10, 12, 14, 20]
        assert watch.opened == []
        (folder / "long_manifest.wshard").unlink()
        assert watch.lengths(folder) == [10, 12, 14, 8, 8, 4]
        assert watch.opened == [f"long_chunk_000{n}.wshard" for n in range(3)]

    def test_without_an_index_every_file_is_opened_and_none_is_saved(
        self, folder: Path, watch: Watch
    ) -> None:
        for _ in range(2):
            assert watch.lengths(folder, index=False) == [10, 12, 14]
            assert len(watch.opened) == 3
        assert not index_of(folder).exists()

    def test_the_index_can_be_elsewhere(self, folder: Path, watch: Watch, tmp_path: Path) -> None:
        there = tmp_path / "elsewhere.index"
        watch.lengths(folder, index=there)
        assert there.exists()
        assert not index_of(folder).exists()
        assert watch.lengths(folder, index=there) == [10, 12, 14]
        assert watch.opened == []

    def test_a_list_of_files_can_have_an_index(
        self, folder: Path, watch: Watch, tmp_path: Path
    ) -> None:
        there = tmp_path / "list.index"
        files = [folder / "ep_2.wshard", folder / "ep_0.wshard"]
        assert watch.lengths(files, index=there) == [14, 10]
        before = there.stat().st_mtime_ns
        assert watch.lengths(files, index=there) == [14, 10]
        assert watch.opened == []
        assert there.stat().st_mtime_ns == before
        save(episode_of(0, 11), folder / "ep_0.wshard")
        assert watch.lengths(files, index=there) == [14, 11]
        assert watch.opened == ["ep_0.wshard"]
        assert watch.lengths(files) == [14, 11]
        assert not index_of(folder).exists()

    def test_conditions_work_from_the_index(self, tmp_path: Path, watch: Watch) -> None:
        metadata = [{"success": n % 2 == 0, "task": f"t{n}", "deep": {"er": 1}} for n in range(4)]
        folder = write_folder(tmp_path / "eps", [10, 11, 12, 13], metadata=metadata)
        age(folder)
        for _ in range(2):
            assert watch.lengths(
                folder, where=lambda ep: ep.metadata["success"] and ep.length > 10
            ) == [12]
            assert watch.lengths(
                folder, where=lambda ep: ep.metadata["task"] in ("t1", "t3") or ep.id == "ep 0"
            ) == [10, 11, 13]
            assert watch.lengths(
                folder, where=lambda ep: ep.env_id == "Push-v0", episodes=[3, 2]
            ) == [13]
            assert watch.lengths(
                folder, where=lambda ep: ep.metadata["deep"]["er"] == 1 and "ep_2" in ep.path
            ) == [12]
        assert watch.opened == []
        with pytest.raises(InvalidArgument, match=r"where= keeps no episode"):
            EpisodeDataset(folder, 4, where=lambda ep: ep.length > 100)
        assert watch.lengths(folder, where="success and length > 10 and deep.er == 1") == [12]
        assert watch.opened == []
        with pytest.raises(InvalidArgument, match=r"where takes an expression or a function"):
            EpisodeDataset(folder, 4, where=True)  # type: ignore[arg-type] # on purpose

    def test_metadata_that_was_edited_is_seen_by_the_next_dataset(
        self, folder: Path, watch: Watch
    ) -> None:
        age(folder)
        watch.lengths(folder)
        for success in (True, False):
            edit(folder / "ep_1.wshard", metadata={"success": success})
            kept = watch.lengths(folder, where=lambda ep: ep.metadata.get("success") is not None)
            assert kept == [12]
            assert watch.opened == ["ep_1.wshard"]
            found = EpisodeDataset(
                folder,
                4,
                where=lambda ep: ep.metadata.get("success") == success,  # noqa: B023 - called at once
            )
            assert found.lengths.tolist() == [12]

    def test_a_file_that_is_repaired_is_taken_in(self, folder: Path, watch: Watch) -> None:
        (folder / "ep_1.wshard").write_bytes(b"broken")
        age(folder)
        assert watch.lengths(folder, on_error="skip") == [10, 14]
        assert watch.lengths(folder, on_error="skip") == [10, 14]
        assert watch.opened == ["ep_1.wshard"]
        save(episode_of(1, 9), folder / "ep_1.wshard")
        age(folder)
        assert watch.lengths(folder) == [10, 9, 14]


class TestTrouble:
    """Indexes that cannot be written, or read, or believed."""

    @pytest.mark.skipif(
        not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere"
    )
    def test_a_place_that_cannot_be_written_to_is_no_error(
        self, folder: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        folder.parent.chmod(0o555)
        try:
            with caplog.at_level(logging.INFO, "wshard"):
                assert len(EpisodeDataset(folder, 4).lengths) == 3
        finally:
            folder.parent.chmod(0o755)
        assert "the index is not saved" in caplog.text

    def test_a_folder_in_the_place_of_the_index_is_no_error(
        self, folder: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        index_of(folder).mkdir()
        with caplog.at_level(logging.INFO, "wshard"):
            assert len(EpisodeDataset(folder, 4).lengths) == 3
        assert [record.levelno for record in caplog.records if "cannot save" in record.message] == [
            logging.INFO
        ]

    def test_a_damaged_index_is_made_anew(self, folder: Path) -> None:
        EpisodeDataset(folder, 4)
        whole = index_of(folder).read_bytes()
        random = np.random.default_rng(0)
        cut = [whole[:size] for size in (0, 1, 63, 64, 200, len(whole) // 2, len(whole) - 1)]
        flipped = []
        for place in random.integers(0, len(whole), 150).tolist():
            data = bytearray(whole)
            data[place] ^= 1 << int(random.integers(8))
            flipped.append(bytes(data))
        for content in (*cut, *flipped, b"x" * 1000):
            index_of(folder).write_bytes(content)
            assert EpisodeDataset(folder, 4).lengths.tolist() == [10, 12, 14]
            assert index_of(folder).exists()

    def forge(self, folder: Path, **changed: Any) -> None:  # noqa: ANN401 - bytes or lists
        """Writes an index with valid checksums that says something else."""
        EpisodeDataset(folder, 4)
        with ShardReader(index_of(folder)) as reader:
            entries: dict[str, Any] = {name: reader[name] for name in reader}
        for name, content in changed.items():
            if name in ("lengths", "pack_of") and isinstance(content, list):
                rows = np.frombuffer(entries["rows"], ROW)[: len(content)].copy()
                rows["length" if name == "lengths" else "pack"] = content
                entries["rows"] = rows.tobytes()
            elif name == "lengths":
                entries["rows"] = content
            else:
                entries[name] = np.array(content, "<i8") if isinstance(content, list) else content
        with ShardWriter(index_of(folder), fsync=False) as writer:
            for name, content in entries.items():
                if content is not None:
                    compression = "zstd" if len(content) > 100_000 else None
                    writer.write_entry(name, content, compression=compression)

    @pytest.mark.parametrize(
        "changed",
        [
            {"kind": b"wshard-index 9"},
            {"kind": None},
            {"forms": b""},
            {"forms": None},
            {"lengths": [10, 12]},
            {"lengths": [10, 12, -3]},
            {"lengths": [10, 12, 2**62]},
            {"lengths": b"short"},
            {"lengths": None},
            {"name_offsets": [0, 12, 24]},
            {"name_offsets": [0, 24, 12, 36]},
            {"name_offsets": [0, 11, 24, 36]},
            {"name_offsets": [0, 12, 24, 2**60]},
            {"name_offsets": [-12, 12, 24, 36]},
            {"name_offsets": []},
            {"name_offsets": b""},
            {"names": b"ep_0.wshard\0ep_1.wshard\0ep_2.wshardx"},
            {"names": b"../0.wshard\0ep_1.wshard\0ep_2.wshard\0"},
            {"names": b"ep_0.wshard\0/p_1.wshard\0ep_2.wshard\0"},
            {"names": b"ep_0.wshard\0a/../wshard\0ep_2.wshard\0"},
            {"names": b"ep_0.wshard\0ep_1.wshard\0ep_2.wsh/..\0"},
            {"names": bytes(1 << 20)},
            {"folders": b"..\0"},
            {"folders": b".\0/etc\0"},
            {"folder_mtimes_ns": [1, 2]},
            {"fact_offsets": [0, 5, 3, 4]},
            {"made_ns": [1, 2]},
        ],
        ids=lambda changed: str(changed)[:60],
    )
    def test_a_forged_index_is_made_anew(self, folder: Path, changed: dict[str, Any]) -> None:
        self.forge(folder, **changed)
        ds = EpisodeDataset(folder, 4)
        assert ds.lengths.tolist() == [10, 12, 14]
        assert ds.paths == [str(folder / f"ep_{n}.wshard") for n in range(3)]

    def test_facts_that_cannot_be_read_are_an_error_for_conditions_only(self, folder: Path) -> None:
        self.forge(folder, facts=b"[" * 3000, fact_offsets=[0, 1000, 2000, 3000])
        assert EpisodeDataset(folder, 4).lengths.tolist() == [10, 12, 14]
        with pytest.raises(BadMetadata, match="delete the index"):
            EpisodeDataset(folder, 4, where=lambda ep: ep.length > 3)

    @pytest.mark.parametrize(
        "form", [b"", b"[]", b'{"signal/state":7}', b'{"signal/state":["dense","f32",[-1],0]}']
    )
    def test_a_form_that_cannot_be_read_is_an_error_that_says_what_to_do(
        self, folder: Path, form: bytes
    ) -> None:
        self.forge(folder, forms=form + b"\0")
        with pytest.raises(BadMetadata, match="delete the index"):
            EpisodeDataset(folder, 4)

    def test_lengths_whose_sum_would_wrap_are_refused(self, folder: Path) -> None:
        self.forge(folder, lengths=[1 << 53, 1 << 53, 1 << 53])
        with pytest.raises(LimitExceeded, match="more steps than any dataset"):
            EpisodeDataset(folder, 4)

    def test_a_forged_length_is_found_out_when_the_episode_is_read(self, folder: Path) -> None:
        self.forge(folder, lengths=[10, 1 << 40, 14])
        ds = EpisodeDataset(folder, 4)
        with pytest.raises(ShardError, match=r"ep_1.*has changed since"):
            ds[1 << 39]


def test_an_episode_takes_less_than_200_bytes(tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    data = save(episode_of(0, 8, {"task": "push"}), tmp_path / "one.wshard").read_bytes()
    count = 1000
    for number in range(count):
        (folder / f"episode_{number:08d}.wshard").write_bytes(data)
    age(folder)
    EpisodeDataset(folder, 4)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        ds = EpisodeDataset(folder, 4)
        assert (tracemalloc.get_traced_memory()[0] - before) / count < 200
        assert len(ds) == 5 * count
    finally:
        tracemalloc.stop()
