"""The cache of decoded copies: when they are made, used, replaced and removed, and what happens if that fails."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shutil
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zstandard

import shardpack
from shard_format import Codec
from shard_format.atomic import AtomicFile
from shard_format.errors import ChecksumMismatch, FormatError, InvalidArgument, ShardIOError
from shard_train import EpisodeDataset
from shard_train._episodes.cache import COPY_SUFFIX as SUFFIX
from shard_train.packed_episodes import pack_episodes
from tests.shard_format.support import HandMade, Row, check_python, listing, noise, run_python
from tests.shard_train.dataset_support import assert_equal_windows
from tests.wshard.support import ROLE, described, full_episode, save
from tests.wshard.test_remote_episodes import address  # noqa: F401 - a fixture
from wshard import ChunkedEpisodeWriter, Episode, Timebase, add_lane

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

LENGTH = 300
COPY_BYTES = LENGTH * (16 * 16 + 12 + 4 + 1 + 1 + 1 + 4)
"""About what the copy of an episode takes: all channels, rewards, ends and ticks."""
WINDOW = 8

READ_ALL = """
    import sys
    import numpy as np
    from shard_train import EpisodeDataset
    ds = EpisodeDataset(sys.argv[1], 8, cache=sys.argv[2])
    print(int(ds.batch(range(len(ds)))["cam"].sum(dtype=np.int64)))
"""


def episode_of(number: int) -> Episode:
    """An episode with a camera that is worth compressing and too large to be kept in memory."""
    steps = np.arange(LENGTH)
    return Episode(
        f"ep {number}",
        timebase=Timebase(tick_hz=10),
        observations={
            "cam": ((steps[:, None, None] // 9 + number) % 251 * np.ones((1, 16, 16))).astype("u1"),
            "state": (steps[:, None] + np.arange(3) / 4 + 1000 * number).astype("f4"),
        },
        actions={"on": steps % 3 == number % 3},
        rewards=steps / 8,
        terminations=steps == LENGTH - 1,
        truncations=np.zeros(LENGTH, bool),
    )


def write_folder(folder: Path, count: int = 2, compression: str = "zstd") -> Path:
    folder.mkdir(parents=True)
    for number in range(count):
        path = folder / f"ep_{number}.wshard"
        save(episode_of(number), path, compression, steps_per_frame=16)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "eps")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def copies(cache: Path) -> list[Path]:
    return sorted(path for path in cache.iterdir() if path.name.endswith(SUFFIX))


def copied_bytes(cache: Path) -> int:
    return sum(path.stat().st_size for path in copies(cache))


def first_window_of(ds: EpisodeDataset, episode: int) -> dict[str, Any]:
    at = int(np.flatnonzero(ds.locate(range(len(ds)))[0] == episode)[0])
    return ds[at]


def read_all(ds: EpisodeDataset) -> dict[str, Any]:
    return ds.batch(range(0, len(ds), 7))


def assert_same_windows(found: EpisodeDataset, wanted: EpisodeDataset) -> None:
    assert_equal_windows(read_all(found), read_all(wanted))


def forbid_decoding(path: Path) -> None:
    """Damages what a file holds, and nothing that says which file it is: only a copy can be read now."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    start = len(content) // 2
    content[start : start + 64] = noise(64)
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def foreign_episode(value: int, *, has_checksums: bool) -> bytes:
    """A file of another writer: one compressed channel, of one value, perhaps without checksums."""
    row = {"id": "x", "dtype": "u8", "shape": [400], "signal_block": "signal/x"}
    texts = described(200, [row])
    rows = [Row(name.encode(), json.dumps(text).encode()) for name, text in texts.items()]
    content = bytes([value]) * (200 * 400)
    packed = zstandard.compress(content)
    crc = None if has_checksums else 0
    flags = Codec.ZSTD.entry_flags
    rows.append(Row(b"signal/x", packed, flags=flags, content=content, crc=crc))
    return HandMade(rows, role=ROLE, flags=0x22 if has_checksums else 0x02).to_bytes()


class TestCopies:
    """What is copied, and that windows do not change by it."""

    @pytest.mark.parametrize(
        "options",
        [
            {"window": 8},
            {"window": 300, "stride": 3, "pad": "edge"},
            {"window": 8, "channels": ["cam", "on"]},
            {"delta_timestamps": {"cam": [-0.1, 0.0], "reward": [0.0, 0.1]}},
            {"window": 8, "normalize": {"state": "mean_std"}},
        ],
    )
    def test_windows_of_copies_are_those_of_the_files(
        self, tmp_path: Path, cache: Path, options: Mapping[str, Any]
    ) -> None:
        folder = write_folder(tmp_path / "eps", 0)
        for number in range(2):
            save(episode_of(number), folder / f"{number}.wshard", "zstd")
        plain: Any = dict(options)
        if "normalize" in plain:
            from shard_train import compute_stats

            plain["stats"] = compute_stats(EpisodeDataset(folder))
        ds = EpisodeDataset(folder, cache=cache, **plain)
        assert_same_windows(ds, EpisodeDataset(folder, **plain))
        assert len(copies(cache)) == 2

    def test_every_kind_of_lane_and_clock_can_be_copied(self, tmp_path: Path, cache: Path) -> None:
        folder = tmp_path / "eps"
        folder.mkdir()
        episode = full_episode(LENGTH)
        episode.timestamps_ns = 1_700_000_000_000_000_000 + np.arange(LENGTH) ** 2 * 1_000
        episode.actions["state"] = np.arange(LENGTH * 2.0).reshape(LENGTH, 2)
        episode.observations["reward"] = np.arange(LENGTH * 64.0).reshape(LENGTH, 64)
        save(episode, folder / "ep.wshard", "zstd")
        added = np.arange(LENGTH, dtype="f4")
        add_lane(folder / "ep.wshard", "omen/ctrl/later", added, fsync=False)
        asked = ["signal/state", "action/state", "wrist/rgb", "imu", "audio", "signal/reward"]
        asked += ["omen/state/dreamer", "uncert/state/dreamer/std", "omen/ctrl/later"]
        ds = EpisodeDataset(folder, 8, channels=asked, align="linear", cache=cache)
        assert_same_windows(ds, EpisodeDataset(folder, 8, channels=asked, align="linear"))
        assert len(copies(cache)) == 1

    def test_an_episode_in_chunks_becomes_one_copy(self, tmp_path: Path, cache: Path) -> None:
        folder = tmp_path / "eps"
        for name, compression in (("raw", "none"), ("packed", "zstd")):
            with ChunkedEpisodeWriter(
                folder, name, chunk_size_t=70, compression=compression
            ) as writer:
                writer.write_episode(episode_of(1))
        ds = EpisodeDataset(folder, WINDOW, cache=cache)
        assert_same_windows(ds, EpisodeDataset(folder, WINDOW))
        assert len(copies(cache)) == 1  # of the compressed one

    def test_episodes_in_packs_are_copied_and_stay_so_when_the_pack_grows(
        self, tmp_path: Path, folder: Path, cache: Path
    ) -> None:
        pack = tmp_path / "eps.shardpack"
        pack_episodes(folder, pack)
        assert_same_windows(EpisodeDataset(pack, WINDOW, cache=cache), EpisodeDataset(pack, WINDOW))
        before = copies(cache)
        assert len(before) == 2
        save(episode_of(7), folder / "ep_7.wshard", "zstd")
        pack_episodes(folder, pack, append=True)
        ds = EpisodeDataset(pack, WINDOW, cache=cache)
        assert_same_windows(ds, EpisodeDataset(pack, WINDOW))
        assert set(before) < set(copies(cache))
        assert len(copies(cache)) == 3

    def test_what_is_uncompressed_on_this_machine_is_not_copied(
        self, tmp_path: Path, cache: Path
    ) -> None:
        folder = write_folder(tmp_path / "raw", compression="none")
        read_all(EpisodeDataset(folder, WINDOW, cache=cache))
        pack_episodes(folder, tmp_path / "raw.shardpack")
        read_all(EpisodeDataset(tmp_path / "raw.shardpack", WINDOW, cache=cache))
        assert listing(cache) == []

    def test_small_channels_alone_are_no_reason_for_a_copy(self, folder: Path, cache: Path) -> None:
        read_all(EpisodeDataset(folder, WINDOW, channels=["state", "on"], cache=cache))
        assert listing(cache) == []

    def test_only_the_channels_of_the_dataset_are_copied(self, tmp_path: Path) -> None:
        folder = tmp_path / "eps"
        folder.mkdir()
        episode = episode_of(0)
        episode.observations["other"] = np.zeros((LENGTH, 5000), np.uint8)
        save(episode, folder / "ep.wshard", "zstd")
        read_all(EpisodeDataset(folder, WINDOW, channels=["cam"], cache=tmp_path / "cache"))
        assert copied_bytes(tmp_path / "cache") < COPY_BYTES + 5000

    def test_datasets_of_the_same_channels_share_copies_and_others_have_their_own(
        self, folder: Path, cache: Path
    ) -> None:
        read_all(EpisodeDataset(folder, 8, channels=["cam", "state"], cache=cache))
        read_all(EpisodeDataset(folder, 20, 5, ["state", "signal/cam"], "zero", cache=cache))
        assert len(copies(cache)) == 2
        ds = EpisodeDataset(folder, 8, channels=["cam"], cache=cache)
        assert_same_windows(ds, EpisodeDataset(folder, 8, channels=["cam"]))
        assert len(copies(cache)) == 4

    def test_nothing_is_copied_before_a_window_is_asked_for(
        self, folder: Path, cache: Path
    ) -> None:
        ds = EpisodeDataset(folder, WINDOW, cache=cache)
        assert listing(cache) == []
        _ = ds[0]
        assert len(copies(cache)) == 1

    def test_a_cache_inside_of_the_folder_adds_no_episodes(self, folder: Path) -> None:
        ds = EpisodeDataset(folder, WINDOW, cache=folder / "cache")
        read_all(ds)
        assert len(copies(folder / "cache")) == 2
        assert len(EpisodeDataset(folder, WINDOW, index=False).lengths) == 2

    def test_the_cache_changes_neither_the_text_form_nor_the_fingerprint(
        self, folder: Path, cache: Path
    ) -> None:
        plain = EpisodeDataset(folder, WINDOW)
        ds = EpisodeDataset(folder, WINDOW, cache=cache, cache_bytes=10**9)
        read_all(ds)
        assert (repr(ds), ds.fingerprint) == (repr(plain), plain.fingerprint)


@pytest.mark.slow
class TestSharing:
    """Copies in other datasets, threads and processes."""

    def test_a_copy_is_used_instead_of_decoding(self, folder: Path, cache: Path) -> None:
        read_all(EpisodeDataset(folder, WINDOW, cache=cache))
        wanted = read_all(EpisodeDataset(folder, WINDOW))
        for path in folder.iterdir():
            forbid_decoding(path)
        with pytest.raises(FormatError):
            read_all(EpisodeDataset(folder, WINDOW))
        assert_equal_windows(read_all(EpisodeDataset(folder, WINDOW, cache=cache)), wanted)

    def test_it_is_found_again_after_its_episode_was_closed(
        self, folder: Path, cache: Path
    ) -> None:
        ds = EpisodeDataset(folder, WINDOW, cache=cache, max_open=1)
        wanted = read_all(ds)
        for path in folder.iterdir():
            forbid_decoding(path)
        assert_equal_windows(read_all(ds), wanted)
        ds.close()
        assert_equal_windows(read_all(ds), wanted)

    def test_nothing_is_kept_about_versions_of_an_episode_that_are_gone(
        self, folder: Path, cache: Path
    ) -> None:
        ds = EpisodeDataset(folder, WINDOW, cache=cache, index=False)
        path = folder / "ep_0.wshard"
        for version in range(1, 6):
            read_all(ds)
            ds.close()
            os.utime(path, ns=(version, version))
        assert len(copies(cache)) == len(list(cache.iterdir())) == 6  # no other files
        assert ds._store._cache is not None
        assert len(ds._store._cache._verified) == 2

    def test_a_pickled_dataset_uses_the_same_copies_in_another_process(
        self, tmp_path: Path, folder: Path, cache: Path
    ) -> None:
        ds = EpisodeDataset(folder, WINDOW, cache=cache)
        wanted = read_all(ds)
        pickled = pickle.dumps(ds)
        assert len(pickled) < 2500
        (tmp_path / "ds").write_bytes(pickled)
        for path in folder.iterdir():
            forbid_decoding(path)
        script = """
            import pickle, sys
            ds = pickle.load(open(sys.argv[1], "rb"))
            print(int(ds.batch(range(0, len(ds), 7))["cam"].sum(dtype="i8")))
        """
        found = check_python(script, tmp_path / "ds")
        assert int(found) == wanted["cam"].sum(dtype=np.int64)

    def test_a_forked_child_uses_and_makes_copies(self, folder: Path, cache: Path) -> None:
        script = """
            import os, sys
            from shard_train import EpisodeDataset
            ds = EpisodeDataset(sys.argv[1], 8, cache=sys.argv[2])
            parent = ds[0]["cam"].sum()
            child = os.fork()
            if child == 0:
                os._exit(0 if ds[0]["cam"].sum() == parent and ds[-1]["cam"].any() else 1)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
        assert check_python(script, folder, cache).strip() == "0"
        assert len(copies(cache)) == 2

    def test_processes_and_threads_that_make_the_same_copies_at_once_do_not_disturb_each_other(
        self, folder: Path, cache: Path
    ) -> None:
        wanted = EpisodeDataset(folder, WINDOW)
        total = int(wanted.batch(range(len(wanted)))["cam"].sum(dtype=np.int64))
        with ThreadPoolExecutor(3) as pool:
            found = list(pool.map(lambda _: check_python(READ_ALL, folder, cache), range(3)))
        assert {int(one) for one in found} == {total}
        ds = EpisodeDataset(folder, WINDOW, cache=cache.with_name("other"), max_open=1)
        with ThreadPoolExecutor(4) as pool:
            sums = pool.map(lambda number: int(ds[number]["cam"][0, 0, 0]), [0, 300, 0, 300] * 3)
            assert set(sums) == {int(wanted[n]["cam"][0, 0, 0]) for n in (0, 300)}
        for place in (cache, cache.with_name("other")):
            assert len(copies(place)) == 2
            assert not [name for name in listing(place) if name.endswith(".partial")]


class TestChanges:
    """A stale copy is never used."""

    def test_another_content_under_the_same_name_is_copied_anew(
        self, folder: Path, cache: Path
    ) -> None:
        ds = EpisodeDataset(folder, WINDOW, cache=cache)
        read_all(ds)
        path = folder / "ep_0.wshard"
        before = path.stat()
        save(episode_of(5), path, "zstd", steps_per_frame=16)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert_same_windows(
            EpisodeDataset(folder, WINDOW, cache=cache), EpisodeDataset(folder, WINDOW)
        )
        ds.close()  # and in a dataset that was open all the time
        assert_same_windows(ds, EpisodeDataset(folder, WINDOW))

    def test_a_lane_that_is_replaced_is_copied_anew(self, folder: Path, cache: Path) -> None:
        name, asked = "omen/state/m", ["cam", "omen/state/m"]
        ds = None
        for value in (1.0, 2.0):
            for number in range(2):
                lane = np.full((LENGTH, 3), value, "f4")
                path = folder / f"ep_{number}.wshard"
                add_lane(path, name, lane, replace=True, fsync=False)
            if ds is None:
                ds = EpisodeDataset(folder, WINDOW, channels=asked, cache=cache)
            ds.close()
            again = EpisodeDataset(folder, WINDOW, channels=asked, cache=cache)
            assert {float(one[0][name].max()) for one in (ds, again)} == {value}

    def test_a_file_that_is_gone_is_missed_though_there_is_a_copy(
        self, folder: Path, cache: Path
    ) -> None:
        ds = EpisodeDataset(folder, WINDOW, cache=cache)
        _ = ds[0]
        ds.close()
        (folder / "ep_0.wshard").unlink()
        with pytest.raises(ShardIOError, match=r"ep_0\.wshard"):
            _ = ds[0]

    def test_of_a_file_without_checksums_the_time_counts(self, tmp_path: Path, cache: Path) -> None:
        path = tmp_path / "ep.wshard"
        ds = None
        for value in (1, 2, 3):
            path.write_bytes(foreign_episode(value, has_checksums=False))
            os.utime(path, (value, value))
            ds = EpisodeDataset(path, WINDOW, cache=cache) if ds is None else ds
            ds.close()
            assert ds[0]["x"].max() == value
            assert EpisodeDataset(path, WINDOW, cache=cache)[0]["x"].max() == value
        assert len(copies(cache)) == 3

    @pytest.mark.parametrize("has_checksums", [True, False])
    def test_without_time_and_checksums_nothing_is_copied(
        self, tmp_path: Path, cache: Path, has_checksums: bool
    ) -> None:
        """In a pack there is no time of change: only checksums tell contents apart."""
        made = foreign_episode(0, has_checksums=has_checksums)
        pack = tmp_path / "a.shardpack"
        with shardpack.ShardPackWriter(pack) as writer:
            writer.write("ep", {"wshard": made})
        read_all(EpisodeDataset(pack, WINDOW, cache=cache))
        assert len(copies(cache)) == has_checksums


class TestRemote:
    """What is behind a URL."""

    def test_uncompressed_files_are_copied_too_and_not_fetched_again(
        self,
        tmp_path: Path,
        cache: Path,
        address: str,  # noqa: F811 - the fixture
    ) -> None:
        folder = write_folder(tmp_path / "raw", compression="none")
        wanted = read_all(EpisodeDataset(folder, WINDOW))
        urls = [f"{address}/raw/ep_{number}.wshard" for number in range(2)]
        assert_equal_windows(read_all(EpisodeDataset(urls, WINDOW, cache=cache)), wanted)
        for path in folder.iterdir():
            forbid_decoding(path)
        ds = EpisodeDataset(urls, WINDOW, cache=cache, max_open=1)
        assert_equal_windows(read_all(ds), wanted)
        shutil.rmtree(folder)  # not even its head is fetched twice by a process
        assert_equal_windows(read_all(ds), wanted)

    def test_a_signature_in_the_url_does_not_count(
        self,
        tmp_path: Path,
        cache: Path,
        address: str,  # noqa: F811 - the fixture
    ) -> None:
        write_folder(tmp_path / "eps", 1)
        for day in range(2):
            ds = EpisodeDataset(f"{address}/eps/ep_0.wshard?signed={day}", WINDOW, cache=cache)
            read_all(ds)
        assert len(copies(cache)) == 1

    def test_a_file_that_changed_behind_its_url_is_copied_anew(
        self,
        tmp_path: Path,
        cache: Path,
        address: str,  # noqa: F811 - the fixture
    ) -> None:
        folder = write_folder(tmp_path / "eps", 1)
        url = f"{address}/eps/ep_0.wshard"
        read_all(EpisodeDataset(url, WINDOW, cache=cache))
        save(episode_of(3), folder / "ep_0.wshard", "zstd")
        ds = EpisodeDataset(url, WINDOW, cache=cache)
        assert_same_windows(ds, EpisodeDataset(folder, WINDOW))


class TestRoom:
    """`cache_bytes`."""

    def test_the_least_recently_used_copies_go_first(self, tmp_path: Path, cache: Path) -> None:
        folder = write_folder(tmp_path / "eps", 5)
        room = int(3.5 * COPY_BYTES)
        ds = EpisodeDataset(folder, WINDOW, cache=cache, cache_bytes=room, max_open=1)
        made: list[Path] = []
        for episode in (0, 1, 2):
            first_window_of(ds, episode)
            made += set(copies(cache)) - set(made)
        first_window_of(ds, 0)
        assert set(copies(cache)) == set(made)
        first_window_of(ds, 3)
        assert made[0] in copies(cache)
        assert made[1] not in copies(cache)
        assert copied_bytes(cache) <= room

    def test_the_folder_stays_within_its_bytes_whoever_writes_to_it(
        self, tmp_path: Path, cache: Path
    ) -> None:
        folder = write_folder(tmp_path / "eps", 6)
        room = int(2.5 * COPY_BYTES)
        sets = [
            EpisodeDataset(folder, WINDOW, channels=names, cache=cache, cache_bytes=room)
            for names in (["cam"], ["cam", "state"], ["cam", "on"])
        ]
        for episode in range(6):
            for ds in sets:
                first_window_of(ds, episode)
                assert copied_bytes(cache) <= room

    def test_a_copy_that_goes_while_it_is_open_stays_readable(
        self, tmp_path: Path, cache: Path
    ) -> None:
        folder = write_folder(tmp_path / "eps", 4)
        plain = EpisodeDataset(folder, WINDOW)
        ds = EpisodeDataset(folder, WINDOW, cache=cache)
        assert_same_windows(ds, plain)
        for path in copies(cache):
            path.unlink()
        assert_same_windows(ds, plain)

    def test_files_of_others_in_the_folder_are_left_alone(
        self, tmp_path: Path, cache: Path
    ) -> None:
        folder = write_folder(tmp_path / "eps", 4)
        cache.mkdir()
        theirs = ["mine.wshard", f"notes{SUFFIX}", ".mine.partial"]
        for name in theirs:
            (cache / name).write_bytes(bytes(COPY_BYTES))
            os.utime(cache / name, (0, 0))
        room = int(1.5 * COPY_BYTES)
        read_all(EpisodeDataset(folder, WINDOW, cache=cache, cache_bytes=room))
        assert set(theirs) < set(listing(cache))

    def test_an_episode_that_never_fits_is_read_where_it_is_and_reported_once(
        self, folder: Path, cache: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        ds = EpisodeDataset(folder, WINDOW, cache=cache, cache_bytes=1000, max_open=1)
        for _ in range(2):
            assert_same_windows(ds, EpisodeDataset(folder, WINDOW))
        assert copies(cache) == []
        assert len(caplog.records) == 1
        assert "ep_0.wshard: not copied to the cache" in caplog.text
        assert "cache_bytes of at least" in caplog.text

    def test_a_cache_that_is_too_small_for_the_data_says_so_once(
        self, tmp_path: Path, cache: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        folder = write_folder(tmp_path / "eps", 5)
        room = int(2.5 * COPY_BYTES)
        ds = EpisodeDataset(folder, WINDOW, cache=cache, cache_bytes=room, max_open=1, threads=1)
        for _ in range(2):
            assert_same_windows(ds, EpisodeDataset(folder, WINDOW))
        assert len(caplog.records) == 1
        assert f"do not fit into cache_bytes={room}" in caplog.text


class TestTrouble:
    """Damage, full disks, killed processes and folders that are not ours."""

    @pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "other"])
    def test_a_damaged_copy_is_dropped_and_made_anew(
        self, folder: Path, cache: Path, damage: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        wanted = read_all(EpisodeDataset(folder, WINDOW, cache=cache))
        for path in copies(cache):
            content = bytearray(path.read_bytes())
            content[COPY_BYTES // 2] ^= 1
            half = path.read_bytes()[: COPY_BYTES // 2]
            made = {"flipped": bytes(content), "cut": half, "empty": b"", "other": noise(999)}
            path.write_bytes(made[damage])
        assert_equal_windows(read_all(EpisodeDataset(folder, WINDOW, cache=cache)), wanted)
        assert [record.getMessage().count("made again") for record in caplog.records] == [1, 1]
        caplog.clear()
        assert_equal_windows(read_all(EpisodeDataset(folder, WINDOW, cache=cache)), wanted)
        assert not caplog.records

    def test_a_damaged_file_fails_where_it_does_without_a_cache(
        self, folder: Path, cache: Path
    ) -> None:
        forbid_decoding(folder / "ep_0.wshard")
        plain = EpisodeDataset(folder, WINDOW, on_error="skip")
        ds = EpisodeDataset(folder, WINDOW, on_error="skip", cache=cache)
        assert_same_windows(ds, plain)
        assert dict(ds.skipped) == dict(plain.skipped)
        assert ds.skipped.total > 0
        assert len(copies(cache)) == 1
        with pytest.raises(FormatError, match=r"ep_0\.wshard"):
            read_all(EpisodeDataset(folder, WINDOW, cache=cache))

    def test_what_could_not_be_copied_is_not_tried_again(self, folder: Path, cache: Path) -> None:
        forbid_decoding(folder / "ep_0.wshard")
        script = """
            import sys
            from shard_train import EpisodeDataset
            ds = EpisodeDataset(
                sys.argv[1], 8, cache=sys.argv[2], max_open=1, threads=1, on_error="skip"
            )
            made = []
            def watch(event, arguments):
                if event == "open" and str(arguments[0]).endswith(".partial"):
                    made.append(arguments[0])
            sys.addaudithook(watch)
            for number in (0, -1) * 3:
                ds[number]
            print(len(made))
        """
        assert check_python(script, folder, cache).strip() == "2"

    def test_checksums_of_raw_chunks_are_checked_when_they_are_copied(
        self,
        tmp_path: Path,
        cache: Path,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        folder = tmp_path / "eps"
        compression = {"signal/cam": "none", "*": "zstd"}
        with ChunkedEpisodeWriter(
            folder, "long", chunk_size_t=150, compression=compression
        ) as writer:
            episode = episode_of(1)
            episode.observations["other"] = np.zeros((LENGTH, 1000), np.uint8)
            writer.write_episode(episode)
        chunk = next(path for path in sorted(folder.iterdir()) if "chunk_0001" in path.name)
        content = bytearray(chunk.read_bytes())
        at = content.index(bytes([20]) * 256)  # a frame of the camera
        content[at] ^= 1
        chunk.write_bytes(content)
        with pytest.raises(ChecksumMismatch):
            read_all(EpisodeDataset(folder, WINDOW, cache=cache))
        assert copies(cache) == []
        assert "CRC-32C mismatch" in caplog.text

    def test_a_killed_process_leaves_a_temporary_that_a_later_run_removes(
        self, folder: Path, cache: Path
    ) -> None:
        script = """
            import os, signal, sys
            from shard_train import EpisodeDataset
            ds = EpisodeDataset(sys.argv[1], 8, cache=sys.argv[2])
            def kill(event, _):
                if event == "os.rename":
                    os.kill(os.getpid(), signal.SIGKILL)
            sys.addaudithook(kill)
            ds[0]
        """
        assert run_python(script, folder, cache).returncode == -9
        assert copies(cache) == []
        (left,) = (path for path in cache.iterdir() if path.name.endswith(".partial"))
        plain = EpisodeDataset(folder, WINDOW)
        assert_same_windows(EpisodeDataset(folder, WINDOW, cache=cache), plain)
        assert not left.exists()

    def test_what_a_living_process_writes_stays(self, folder: Path, cache: Path) -> None:
        cache.mkdir()
        writing = AtomicFile(cache / ("0" * 32 + SUFFIX), fsync=False)
        read_all(EpisodeDataset(folder, WINDOW, cache=cache))
        assert os.path.exists(writing.temporary)
        writing.abort()

    def test_a_link_or_a_pipe_in_place_of_a_copy_is_replaced_not_followed(
        self, folder: Path, cache: Path, tmp_path: Path
    ) -> None:
        plain = EpisodeDataset(folder, WINDOW)
        assert_same_windows(EpisodeDataset(folder, WINDOW, cache=cache), plain)
        first, second, *_ = copies(cache)
        elsewhere = tmp_path / first.name
        first.rename(elsewhere)
        first.symlink_to(elsewhere)  # to a copy that is good
        second.unlink()
        os.mkfifo(second)
        good = elsewhere.read_bytes()
        assert_same_windows(EpisodeDataset(folder, WINDOW, cache=cache), plain)
        for copy in copies(cache):
            assert stat.S_ISREG(copy.lstat().st_mode)
        assert elsewhere.read_bytes() == good

    def test_where_copies_cannot_be_written_training_goes_on_and_says_so_once(
        self, tmp_path: Path, folder: Path, cache: Path
    ) -> None:
        script = """
            import logging, resource, sys
            from shard_train import EpisodeDataset
            logging.basicConfig(format="%(name)s %(message)s", stream=sys.stdout)
            ds = EpisodeDataset(sys.argv[1], 8, cache=sys.argv[2], max_open=1)
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
            for _ in range(2):
                cam = ds.batch(range(len(ds)))["cam"]
            print(int(cam.sum(dtype="i8")))
        """
        told, total = check_python(script, folder, cache).splitlines()
        assert told.startswith(f"wshard {folder / 'ep_0.wshard'}: not copied to the cache")
        assert "may write" in told
        assert int(total) == int(check_python(READ_ALL, folder, tmp_path / "other"))
        assert not [name for name in listing(cache) if name.endswith((SUFFIX, ".partial"))]

    def test_a_full_disk_is_reported_once_and_what_fits_is_copied(
        self, tmp_path: Path, folder: Path
    ) -> None:
        """A real file system of 128 KiB, in a mount namespace of its own; needs root."""
        if os.geteuid() != 0 or shutil.which("unshare") is None:
            pytest.skip("mounting needs root and unshare")
        script = dedent("""
            import logging, os, sys
            from shard_train import EpisodeDataset
            logging.basicConfig(format="%(message)s", stream=sys.stdout)
            ds = EpisodeDataset(sys.argv[2], 8, cache=sys.argv[1])
            cam = ds.batch(range(len(ds)))["cam"]
            print(len([name for name in os.listdir(sys.argv[1]) if name.endswith("-copy")]))
        """)
        mounted = tmp_path / "mounted"
        mounted.mkdir()
        mount = 'mount -t tmpfs -o size=128k tmpfs "$1" || exit 77; "$2" -c "$3" "$1" "$4"'
        result = subprocess.run(
            ["unshare", "-m", "sh", "-c", mount, "sh", mounted, sys.executable, script, folder],
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode == 77 or "unshare failed" in result.stderr:
            pytest.skip("this system lets nobody mount")
        told, count = result.stdout.splitlines()
        assert "the disk is full" in told
        assert count == "1"

    def test_a_folder_that_is_deleted_meanwhile_is_made_anew(
        self, folder: Path, cache: Path
    ) -> None:
        ds = EpisodeDataset(folder, WINDOW, cache=cache, max_open=1)
        plain = EpisodeDataset(folder, WINDOW)
        assert_same_windows(ds, plain)
        shutil.rmtree(cache)
        assert_same_windows(ds, plain)
        assert copies(cache)

    def test_a_folder_that_may_not_be_written_to_is_named_at_once(
        self, folder: Path, cache: Path
    ) -> None:
        cache.mkdir(mode=0o555)
        script = """
            import os, sys
            from shard_format.errors import ShardIOError
            from shard_train._episodes.cache import make_cache
            if os.geteuid() == 0:
                os.setresuid(65534, 65534, 65534)
            for path in sys.argv[1:]:
                try:
                    make_cache(path, None)
                except ShardIOError as error:
                    print(error.errno, error)
        """
        for line, path in zip(
            check_python(script, cache, cache / "deeper").splitlines(),
            (cache, cache / "deeper"),
            strict=True,
        ):
            assert (
                line
                == f"{errno.EACCES} {path}: cannot use this folder as the cache: Permission denied"
            )

    def test_a_file_in_the_place_of_the_folder_is_an_error(self, folder: Path) -> None:
        with pytest.raises(
            ShardIOError, match=r"ep_0\.wshard: cannot use this folder as the cache"
        ):
            EpisodeDataset(folder, WINDOW, cache=folder / "ep_0.wshard")

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"cache_bytes": 10}, "cache_bytes needs a cache"),
            ({"cache": "c", "cache_bytes": 0}, "cache_bytes must be at least 1"),
            ({"cache": "s3://bucket/cache"}, "a cache is a folder on this machine"),
        ],
    )
    def test_arguments_that_cannot_work_are_refused(
        self, folder: Path, options: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(InvalidArgument, match=message):
            EpisodeDataset(folder, WINDOW, **options)
