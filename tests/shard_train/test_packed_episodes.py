"""Episodes in shards: opened in place, windows as through files, given back byte for byte."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardpack
from shard_format.errors import (
    ChecksumMismatch,
    EntryNotFound,
    InvalidArgument,
    ShardError,
    ShardIOError,
    UnsafePath,
)
from shard_format.sources import FileSource
from shard_train.packed_episodes import open_episode, pack_episodes
from shardpack import files, values
from shardpack.files import InputFile
from tests.shardpack.support import CREATED, RangesOnly, write_pack
from tests.wshard.test_remote_episodes import RangeHandler, address
from wshard import Episode, add_lane, load_wshard, save_wshard

__all__ = ["address"]  # a fixture

STEPS = 60


def pixels(seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 255, (STEPS, 32, 32, 3), dtype=np.uint8)


def save(path: Path, seed: int, compression: str | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    episode = Episode(f"ep{seed}", "env", STEPS)
    episode.observations["rgb"] = pixels(seed)
    episode.observations["state"] = np.arange(STEPS * 4, dtype=np.float32).reshape(STEPS, 4) + seed
    episode.rewards = np.ones(STEPS, np.float32)
    save_wshard(episode, path, compression, fsync=False)
    return path


@pytest.fixture(autouse=True)
def _decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the installed package brings it."""
    monkeypatch.setattr(values, "_registered", {})
    shardpack.register_decoder("application/vnd.shard.episode", load_wshard, from_source=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "episodes"
    save(root / "a.wshard", 1)
    save(root / "run" / "b.wshard", 2, "zstd")
    save(root / "run" / "v1.2.wshard", 3)
    add_lane(root / "a.wshard", "omen/state/dreamer", np.full((STEPS, 4), 7, np.float32))
    add_lane(root / "a.wshard", "omen/state/other", np.full((STEPS, 4), 8, np.float32))
    (root / "a.wshard.lanes" / "notes.txt").write_text("by hand")
    return root


def pack(folder: Path, **options: Any) -> shardpack.Dataset:  # noqa: ANN401 - the writer's
    output = folder.parent / "packed-%06d.shardpack"
    pack_episodes(folder, output, fsync=False, created=CREATED, **options)
    return shardpack.open(str(folder.parent / "packed-*.shardpack"))


def tree(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


class TestPacking:
    """`pack_episodes` and `unpack`."""

    def test_files_come_back_byte_for_byte_with_all_that_lies_beside_them(
        self, folder: Path, tmp_path: Path
    ) -> None:
        done = shardpack.unpack(pack(folder), tmp_path / "out")
        assert tree(tmp_path / "out") == tree(folder)
        assert done.files == 6
        assert done.size_bytes == sum(map(len, tree(folder).values()))

    def test_an_episode_is_a_record_named_by_its_path(self, folder: Path) -> None:
        dataset = pack(folder)
        assert list(dataset.keys()) == ["a", "run/b", "run/v1.2"]
        assert dataset["run/b"].names == ("wshard",)
        assert dataset["a"].names == (
            "wshard",
            "wshard.lanes/notes.txt",
            "wshard.lanes/omen.state.dreamer.wshard",
            "wshard.lanes/omen.state.other.wshard",
        )

    def test_large_files_are_mapped_and_give_the_same_bytes(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (folder / "empty.wshard").write_bytes(b"")
        pack_episodes(folder, tmp_path / "read.shardpack", created=CREATED)
        monkeypatch.setattr(files, "_LARGEST_READ", -1)
        pack_episodes(folder, tmp_path / "mapped.shardpack", created=CREATED)
        read, mapped = (tmp_path / f"{name}.shardpack" for name in ("read", "mapped"))
        assert read.read_bytes() == mapped.read_bytes()

    def test_shards_have_the_target_size(self, folder: Path) -> None:
        dataset = pack(folder, max_bytes=300_000)
        sizes = [os.path.getsize(shard.name) for shard in dataset.shards]
        assert len(sizes) == 3
        assert max(sizes) < 300_000

    def test_the_same_folder_gives_the_same_bytes(self, folder: Path, tmp_path: Path) -> None:
        for name in ("one", "two"):
            pack_episodes(folder, tmp_path / f"{name}.shardpack", created=CREATED)
        assert (tmp_path / "one.shardpack").read_bytes() == (
            tmp_path / "two.shardpack"
        ).read_bytes()

    def test_what_is_no_episode_is_named(self, folder: Path) -> None:
        (folder / "README.md").write_text("hello")
        (folder / "c.wshard.partial").write_bytes(b"a journal")
        (folder / "link.wshard").symlink_to(folder / "a.wshard")
        (folder / "run" / ".wshard").write_bytes(b"without a name")
        (folder / "gone.wshard.lanes").mkdir()
        (folder / "gone.wshard.lanes" / "x.wshard").write_bytes(b"lanes of nothing")
        told: list[int] = []
        done = pack_episodes(
            folder, folder.parent / "out.shardpack", fsync=False, progress=told.append
        )
        names = [os.path.relpath(path, folder) for path in done.left_out]
        assert names == [
            "README.md",
            "c.wshard.partial",
            "gone.wshard.lanes/x.wshard",
            "link.wshard",
            "run/.wshard",
        ]
        assert (done.episodes, done.sidecars) == (3, 3)
        assert len(told) == 3
        assert done.paths == [str(folder.parent / "out.shardpack")]

    def test_going_on_packs_only_what_is_new(self, folder: Path) -> None:
        pack(folder)
        save(folder / "z.wshard", 9)
        done = pack_episodes(
            folder, folder.parent / "packed-%06d.shardpack", append=True, fsync=False
        )
        assert done.episodes == 1
        dataset = shardpack.open(str(folder.parent / "packed-*.shardpack"))
        assert list(dataset.keys()) == ["a", "run/b", "run/v1.2", "z"]

    @pytest.mark.parametrize("what", ["empty", "no folder"])
    def test_a_folder_without_episodes_is_an_error(self, tmp_path: Path, what: str) -> None:
        source = tmp_path / "x"
        if what == "empty":
            source.mkdir()
        with pytest.raises(InvalidArgument, match=r"no episodes|not a folder"):
            pack_episodes(source, tmp_path / "out.shardpack")
        assert not (tmp_path / "out.shardpack").exists()

    def test_a_file_that_changes_meanwhile_is_an_error(self, folder: Path) -> None:
        path = folder / "a.wshard"
        with pytest.raises(ShardIOError, match=r"a\.wshard.*changed"), InputFile(str(path)):
            os.utime(path, ns=(1, 1))
        with pytest.raises(ShardIOError, match=r"a\.wshard"), InputFile(str(path)):
            path.unlink()

    def test_a_pipe_that_is_named_like_an_episode_is_left_out(self, folder: Path) -> None:
        os.mkfifo(folder / "run" / "pipe.wshard")
        done = pack_episodes(folder, folder.parent / "o.shardpack", fsync=False)
        assert done.left_out == [str(folder / "run" / "pipe.wshard")]


class TestUnpacking:
    """Keys are hostile."""

    @pytest.mark.parametrize("key", ["../x", "/etc/x", "a/../../x", "a\\b"])
    def test_nothing_is_written_outside_of_the_folder(self, tmp_path: Path, key: str) -> None:
        path = write_pack(tmp_path / "p.shardpack", {"fine": {"txt": b"1"}, key: {"txt": b"2"}})
        with pytest.raises(UnsafePath):
            shardpack.unpack(path, tmp_path / "out")
        assert not (tmp_path / "out").exists()

    def test_two_entries_that_are_one_file_are_refused(self, tmp_path: Path) -> None:
        path = write_pack(tmp_path / "p.shardpack", {"a": {"b.c": b"1"}, "a.b": {"c": b"2"}})
        with pytest.raises(UnsafePath):
            shardpack.unpack(path, tmp_path / "out")

    def test_a_file_that_is_there_is_not_replaced(self, tmp_path: Path) -> None:
        path = write_pack(tmp_path / "p.shardpack", {"a": {"txt": b"new"}})
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "a.txt").write_bytes(b"old")
        with pytest.raises(InvalidArgument, match=r"a\.txt"):
            shardpack.unpack(path, tmp_path / "out")
        assert (tmp_path / "out" / "a.txt").read_bytes() == b"old"

    def test_a_damaged_entry_is_not_written(self, tmp_path: Path) -> None:
        path = write_pack(tmp_path / "p.shardpack", {"a": {"txt": b"content"}})
        data = bytearray(path.read_bytes())
        data[data.index(b"content")] ^= 1
        path.write_bytes(data)
        with pytest.raises(ChecksumMismatch):
            shardpack.unpack(path, tmp_path / "out")
        assert tree(tmp_path / "out") == {}


class TestOpening:
    """`open_episode(record)` and `entry.decode()`."""

    def test_an_array_is_a_view_of_the_mapped_shard(self, folder: Path) -> None:
        record = pack(folder)["a"]
        window = open_episode(record).observations["rgb"][10:20]
        assert np.array_equal(window, pixels(1)[10:20])
        assert not window.flags.owndata
        assert record._shard.view is not None
        assert np.shares_memory(window, np.frombuffer(record._shard.view, np.uint8))

    def test_every_entry_starts_on_a_multiple_of_64(self, folder: Path) -> None:
        for record in pack(folder):
            for entry in record.file_entries():
                assert entry.offset % 64 == 0
        rgb = pack_window(folder)
        assert rgb.ctypes.data % 64 == 0

    @pytest.mark.parametrize("key", ["a", "run/b", "run/v1.2"])
    def test_windows_are_those_of_the_file(self, folder: Path, key: str) -> None:
        packed = open_episode(pack(folder)[key])
        plain = load_wshard(folder / f"{key}.wshard")
        for first, stop in ((0, 1), (7, 19), (0, STEPS), (STEPS - 1, STEPS)):
            for name in ("rgb", "state"):
                assert np.array_equal(
                    packed.observations[name][first:stop], plain.observations[name][first:stop]
                )
        assert packed.id == plain.id
        assert plain.rewards is not None
        assert packed.rewards is not None
        assert np.array_equal(packed.rewards[:], plain.rewards[:])

    def test_added_lanes_are_there(self, folder: Path) -> None:
        record = pack(folder)["a"]
        episode = open_episode(record)
        assert set(episode.omens["state"]) == {"dreamer", "other"}
        assert np.all(episode.omens["state"]["other"][3:5] == 8)
        assert "state" not in record["wshard"].decode().omens
        assert "state" not in open_episode(record, sidecars=False).omens

    def test_only_some_channels_can_be_asked_for(self, folder: Path) -> None:
        episode = open_episode(pack(folder)["run/b"], channels=["state"])
        assert list(episode.observations) == ["state"]

    def test_a_compressed_entry_opens_too(self, folder: Path, tmp_path: Path) -> None:
        with shardpack.ShardPackWriter(tmp_path / "x.shardpack", fsync=False) as writer:
            content = (folder / "a.wshard").read_bytes() + b""
            writer.write("a", {"wshard": content}, compression={"wshard": "zstd"})
        record = shardpack.open(tmp_path / "x.shardpack")["a"]
        assert record["wshard"].compression in ("zstd", "none")
        assert np.array_equal(open_episode(record).observations["rgb"][:3], pixels(1)[:3])

    def test_opening_does_not_read_the_frames(self, folder: Path) -> None:
        """A flipped pixel is found when it is touched, and nothing else minds."""
        pack(folder)
        path = folder.parent / "packed-000000.shardpack"
        data = bytearray(path.read_bytes())
        at = data.index(pixels(3)[5].tobytes())
        data[at] ^= 1
        path.write_bytes(data)
        record = shardpack.open(path)["run/v1.2"]
        episode = open_episode(record)
        assert np.array_equal(episode.observations["state"][:2], plain_state(3)[:2])
        with pytest.raises(ChecksumMismatch):
            _ = episode.observations["rgb"].data
        with pytest.raises(ChecksumMismatch):
            _ = record["wshard"].data

    def test_a_record_without_an_episode_says_what_it_has(self, tmp_path: Path) -> None:
        path = write_pack(tmp_path / "p.shardpack", {"a": {"jpg": b"1"}})
        with pytest.raises(EntryNotFound, match=r"0 episodes.*'jpg'"):
            open_episode(shardpack.open(path)["a"])

    def test_an_error_inside_names_shard_record_and_entry(self, tmp_path: Path) -> None:
        path = write_pack(tmp_path / "p.shardpack", {"a": {"ep.wshard": b"no episode" * 20}})
        record = shardpack.open(path)["a"]
        with pytest.raises(ShardError, match=r"p\.shardpack.*'a'.*'ep\.wshard'"):
            record["ep.wshard"].decode()
        with pytest.raises(ShardError, match=r"p\.shardpack.*'a'.*'ep\.wshard'"):
            open_episode(record)

    def test_an_overlay_can_add_lanes(self, folder: Path, tmp_path: Path) -> None:
        path = add_lane(
            folder / "run" / "b.wshard", "omen/state/late", np.full((STEPS, 4), 5, np.float32)
        )
        update = {"run/b": {"wshard.lanes/late.wshard": Path(path).read_bytes()}}
        Path(path).unlink()
        pack(folder)
        late = write_pack(tmp_path / "late.shardpack", update, alignment=64)
        over = shardpack.overlay(str(folder.parent / "packed-*.shardpack"), late)
        episode = open_episode(over["run/b"])
        assert np.all(episode.omens["state"]["late"][2:4] == 5)
        assert np.array_equal(episode.observations["rgb"][:2], pixels(2)[:2])

    def test_an_episode_comes_out_of_a_stream(self, folder: Path) -> None:
        pack(folder)
        with (folder.parent / "packed-000000.shardpack").open("rb") as file:
            episodes = [open_episode(record) for record in shardpack.stream(file)]
        assert [episode.id for episode in episodes] == ["ep1", "ep2", "ep3"]
        assert np.array_equal(episodes[1].observations["rgb"][3:5], pixels(2)[3:5])

    def test_it_stays_usable_after_the_data_set_is_closed(self, folder: Path) -> None:
        dataset = pack(folder)
        episode = open_episode(dataset["a"])
        dataset.close()
        assert np.array_equal(episode.observations["rgb"][1:2], pixels(1)[1:2])


def plain_state(seed: int) -> np.ndarray[Any, Any]:
    return np.arange(STEPS * 4, dtype=np.float32).reshape(STEPS, 4) + seed


def pack_window(folder: Path) -> np.ndarray[Any, Any]:
    episode = open_episode(shardpack.open(str(folder.parent / "packed-*.shardpack"))["a"])
    window: np.ndarray[Any, Any] = episode.observations["rgb"][0:1]
    return window


class TestElsewhere:
    """Other processes, other machines."""

    def test_an_episode_pickles_as_a_place_in_the_shard(self, folder: Path) -> None:
        episode = open_episode(pack(folder)["a"])
        stored = pickle.dumps(episode)
        assert len(stored) < 20_000
        again = pickle.loads(stored)
        assert np.array_equal(again.observations["rgb"][4:6], pixels(1)[4:6])
        assert np.all(again.omens["state"]["dreamer"][:1] == 7)

    def test_a_worker_in_another_folder_reads_it(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pack(folder)
        monkeypatch.chdir(folder.parent)
        episode = open_episode(shardpack.open("packed-000000.shardpack")["a"])
        (tmp_path / "stored").write_bytes(pickle.dumps(episode))
        script = (
            f"import pickle; e = pickle.load(open({str(tmp_path / 'stored')!r}, 'rb'));"
            "print(int(e.observations['rgb'][4:5].sum()))"
        )
        found = subprocess.run(
            [sys.executable, "-c", script], cwd="/", capture_output=True, text=True, check=True
        )
        assert int(found.stdout) == int(pixels(1)[4].sum())

    @pytest.mark.parametrize("key", ["run/v1.2", "run/b"])
    def test_of_a_remote_shard_only_the_ranges_of_a_window_are_read(
        self, folder: Path, key: str
    ) -> None:
        pack(folder)
        data = (folder.parent / "packed-000000.shardpack").read_bytes()
        source = RangesOnly(data)
        dataset = shardpack.open(source)
        episode = open_episode(dataset[key])
        source.asked.clear()
        window = episode.observations["rgb"][10:12]
        assert np.array_equal(window, pixels(3 if key == "run/v1.2" else 2)[10:12])
        assert sum(length for _, length in source.asked) < len(data) / 3

    def test_a_remote_uncompressed_window_asks_for_exactly_its_bytes(self, folder: Path) -> None:
        pack(folder)
        source = RangesOnly((folder.parent / "packed-000000.shardpack").read_bytes())
        dataset = shardpack.open(source)
        number = dataset.find("run/v1.2")
        assert number is not None
        # Without whole=False a record of at most 1 MiB comes as a whole.
        episode = open_episode(dataset.take([number], whole=False)[0])
        source.asked.clear()
        episode.observations["rgb"][10:12]
        assert sum(length for _, length in source.asked) == 2 * 32 * 32 * 3

    @pytest.mark.parametrize("profile", [None, "training"])
    def test_a_window_over_http_fetches_its_frames_and_not_the_pack(
        self, tmp_path: Path, address: str, profile: str | None
    ) -> None:
        for seed in range(3):
            frames = np.random.default_rng(seed).integers(0, 200, (400, 32, 32, 3), dtype=np.uint8)
            episode = Episode(f"ep{seed}", observations={"rgb": frames})
            path = tmp_path / "in" / f"{seed}.wshard"
            path.parent.mkdir(exist_ok=True)
            steps: dict[str, Any] = {} if profile is None else {"steps_per_frame": 16}
            save_wshard(episode, path, profile=profile, fsync=False, **steps)
        pack_episodes(tmp_path / "in", tmp_path / "p.shardpack", fsync=False)
        size = os.path.getsize(tmp_path / "p.shardpack")
        with shardpack.open(f"{address}/p.shardpack") as dataset:
            episode = open_episode(dataset["2"])
            window = episode.observations["rgb"][100:132]
            again = pickle.loads(pickle.dumps(episode))
        assert np.array_equal(window, frames[100:132])
        assert RangeHandler.sent < size / 4
        assert np.array_equal(again.observations["rgb"][390:], frames[390:])

    def test_a_pack_in_an_open_file_gives_episodes_too(self, folder: Path) -> None:
        pack(folder)
        source = FileSource(folder.parent / "packed-000000.shardpack")
        episode = open_episode(shardpack.open(source)["a"])
        assert np.array_equal(episode.observations["rgb"][1:2], pixels(1)[1:2])
