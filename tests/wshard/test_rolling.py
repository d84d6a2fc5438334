"""Recordings that go on in another file: chunks that are whole at any time, and one episode in the end."""

from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import wait
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_format import ShardReader
from shard_format.errors import InvalidArgument, MissingFile, ShardIOError
from tests.shard_format.support import listing
from tests.wshard.recording_support import CHANNELS, check_file, check_steps, record, recorder
from wshard import (
    DType,
    Timebase,
    WShardStreamWriter,
    _file_roller,
    _recorder,
    load_wshard,
    open_partial,
    recover,
    save_wshard,
    validate_chunk_continuity,
)
from wshard._chunk_manifest import ManifestWriter
from wshard._journal_episode import JournalBlock
from wshard.chunked import ChunkManifest
from wshard.editing import differences
from wshard.streaming import StreamOptions
from wshard.types import Interval

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from wshard._journal import JournalWriter


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ep.wshard"


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    for writer in list(_recorder._alive):
        writer.stop()
        writer.leave_to_parent()


def manifest_of(path: Path) -> Path:
    return path.with_name(f"{path.stem}_manifest.wshard")


def chunk_of(path: Path, index: int) -> Path:
    return path.with_name(f"{path.stem}_chunk_{index:04d}.wshard")


def chunk_lengths(path: Path) -> list[int]:
    manifest = ChunkManifest.read(manifest_of(path))
    return [row["length_T"] for row in manifest.chunks]


def finish_chunks(writer: WShardStreamWriter) -> None:
    """Returns when every journal but the last has become a chunk."""
    writer.flush()
    assert writer._roller is not None
    wait(writer._roller.finisher._futures, timeout=60)


class TestChunks:
    """What is on the disk."""

    def test_without_limits_a_recording_is_one_file(self, path: Path) -> None:
        with recorder(path) as writer:
            record(writer, 0, 500)
        assert listing(path.parent) == ["ep.wshard"]
        assert writer.episode_path == str(path)

    def test_one_that_fits_is_one_file_under_its_name(self, path: Path) -> None:
        with recorder(path, max_steps_per_file=20) as writer:
            record(writer, 0, 20)
        assert listing(path.parent) == ["ep.wshard"]
        check_file(path, 20)

    @pytest.mark.parametrize("flush_steps", [1, 4, 64])
    def test_a_longer_one_is_an_episode_in_chunks(self, path: Path, flush_steps: int) -> None:
        with recorder(path, max_steps_per_file=7, flush_steps=flush_steps) as writer:
            record(writer, 0, 30)
        names = [chunk_of(path, index).name for index in range(5)]
        assert listing(path.parent) == [*names, "ep_manifest.wshard"]
        assert writer.episode_path == str(manifest_of(path))
        validate_chunk_continuity(manifest_of(path))
        assert chunk_lengths(path) == [7, 7, 7, 7, 2]
        with load_wshard(manifest_of(path)) as episode:
            check_steps(episode, 30)
            assert episode.ticks.tolist() == list(range(30))
        for index in range(5):
            with ShardReader(chunk_of(path, index)) as reader:
                reader.verify()
            with load_wshard(chunk_of(path, index)) as chunk:
                assert (chunk.id, chunk.env_id, chunk.chunk_index) == ("ep", "Test-v0", index)
                assert chunk.timestep_range == (7 * index, min(7 * index + 6, 29))
                assert chunk.total_chunks is None  # as long as it was recorded nobody knew

    def test_after_every_roll_the_manifest_opens_as_all_that_is_finished(self, path: Path) -> None:
        writer = recorder(path, max_steps_per_file=6)
        for number in range(0, 40, 4):
            record(writer, number, number + 4)
            finish_chunks(writer)
            full = max(0, number + 3) // 6
            if full:
                validate_chunk_continuity(manifest_of(path))
                with load_wshard(manifest_of(path)) as episode:
                    check_steps(episode, 6 * full)
        writer.end_episode()
        with load_wshard(manifest_of(path)) as episode:
            check_steps(episode, 40)

    def test_files_stay_below_a_size_and_end_at_whole_steps(self, path: Path) -> None:
        limit = 60_000
        with recorder(path, max_bytes_per_file=limit, channels=CHANNELS, flush_steps=64) as writer:
            record(writer, 0, 3000)
        sizes = [os.path.getsize(chunk_of(path, i)) for i in range(len(chunk_lengths(path)))]
        assert len(sizes) > 2
        assert all(size <= limit + 5000 for size in sizes)  # descriptions, index, alignment
        assert all(size > limit // 2 for size in sizes[:-1])
        with load_wshard(manifest_of(path)) as episode:
            check_steps(episode, 3000)

    def test_both_limits_hold_together(self, path: Path) -> None:
        with recorder(
            path, max_bytes_per_file=8000, max_steps_per_file=50, flush_steps=8
        ) as writer:
            record(writer, 0, 600)
        lengths = chunk_lengths(path)
        assert max(lengths) <= 50
        assert sum(lengths) == 600
        with load_wshard(manifest_of(path)) as episode:
            check_steps(episode, 600)

    def test_a_compressed_channel_never_grows_beyond_what_readers_take(
        self, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        from shard_format.registry import Limits

        monkeypatch.setattr(_file_roller, "LARGEST_ENTRY", 4000)
        monkeypatch.setattr(_file_roller, "_NEARLY_FULL", 3000)
        monkeypatch.setattr(
            "wshard._journal_episode.DEFAULT_LIMITS", Limits(max_decompressed_bytes=4000)
        )
        with recorder(path) as writer:
            record(writer, 0, 300)  # 64 bytes a step in the compressed channel
        assert max(chunk_lengths(path)) * 64 <= 4000
        assert "stored raw" not in caplog.text
        with load_wshard(manifest_of(path)) as episode:
            check_steps(episode, 300)

    def test_unless_one_file_is_asked_for(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(_file_roller, "_NEARLY_FULL", 3000)
        with recorder(path, may_roll=False) as writer:
            record(writer, 0, 300)
        assert listing(path.parent) == ["ep.wshard"]

    @pytest.mark.parametrize(
        "options",
        [
            {"max_steps_per_file": 0},
            {"max_bytes_per_file": -1},
            {"max_steps_per_file": 5, "may_roll": False},
        ],
    )
    def test_limits_that_mean_nothing_are_refused(
        self, path: Path, options: dict[str, Any]
    ) -> None:
        with pytest.raises(InvalidArgument, match="limit for files"):
            recorder(path, **options)

    def test_chunks_of_another_episode_are_not_touched(self, path: Path) -> None:
        with recorder(path, max_steps_per_file=5) as writer:
            record(writer, 0, 12)
        before = {name: (path.parent / name).read_bytes() for name in listing(path.parent)}
        with pytest.raises(InvalidArgument, match="chunked episode with this name"):
            recorder(path)
        assert {name: (path.parent / name).read_bytes() for name in before} == before
        assert listing(path.parent) == sorted(before)

    def test_a_file_in_the_way_makes_the_recording_go_on_where_it_is(
        self, path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        writer = recorder(path, max_steps_per_file=5)
        chunk_of(path, 1).write_bytes(b"somebody else's")
        record(writer, 0, 12)
        writer.end_episode()
        assert "in the way" in caplog.text
        check_file(path, 12)
        assert chunk_of(path, 1).read_bytes() == b"somebody else's"


class TestContent:
    """What goes into which chunk."""

    def test_the_observation_after_the_last_step_is_in_the_last_chunk(self, path: Path) -> None:
        writer = recorder(path, max_steps_per_file=5)
        record(writer, 0, 10)
        writer.end_episode(final_observations={"state": np.full(3, 7, np.float32)})
        with load_wshard(manifest_of(path)) as episode:
            assert episode.length == 10
            assert episode.observations["state"].length == 11
            assert episode.observations["state"].data[-1].tolist() == [7, 7, 7]
        with load_wshard(chunk_of(path, 0)) as chunk:
            assert chunk.observations["state"].length == 5

    def test_labels_have_the_right_steps_wherever_they_are_given(self, path: Path) -> None:
        writer = recorder(path, max_steps_per_file=10, flush_steps=3)
        writer.annotate("ahead", 25, 28)
        writer.annotate("event", 20, 20)
        record(writer, 0, 4)
        writer.annotate("here")
        writer.annotate("across", 2, 35)
        record(writer, 4, 40)
        writer.flush()
        writer.annotate("behind", 1, 3)
        writer.annotate("beyond", 38, 99)
        with open_partial(path) as live:
            writer.flush()
            live.refresh()
            seen = set(live.labels["notes"])
        writer.end_episode()
        with load_wshard(manifest_of(path)) as episode:
            whole = set(episode.labels["notes"])
        assert seen == whole
        assert whole == {
            Interval(25, 28, "ahead"),
            Interval(20, 20, "event"),
            Interval(4, 5, "here"),
            Interval(2, 35, "across"),
            Interval(1, 3, "behind"),
            Interval(38, 99, "beyond"),
        }
        with load_wshard(chunk_of(path, 2)) as chunk:
            assert set(chunk.labels["notes"]) == {
                Interval(0, 0, "event"),
                Interval(5, 8, "ahead"),
                Interval(0, 10, "across"),
            }

    def test_metadata_of_the_end_and_of_the_beginning_are_those_of_the_whole(
        self, path: Path
    ) -> None:
        writer = WShardStreamWriter(
            path, "ep", CHANNELS, options=StreamOptions(fsync="never", max_steps_per_file=4)
        )
        writer.begin_episode(metadata={"operator": "ada", "success": None})
        record(writer, 0, 10)
        writer.end_episode({"success": True})
        with load_wshard(manifest_of(path)) as episode:
            assert episode.metadata == {"operator": "ada", "success": True}
        with load_wshard(chunk_of(path, 0)) as chunk:
            assert chunk.metadata == {"operator": "ada", "success": None}

    def test_what_was_dropped_is_counted_where_it_happened_and_in_all(self, path: Path) -> None:
        writer = recorder(path, max_steps_per_file=4, overflow="drop")
        assert writer._recorder is not None
        record(writer, 0, 6)
        finish_chunks(writer)
        track = writer._steps
        assert track is not None
        track.dropped += 3  # as a full queue does
        record(writer, 6, 10)
        finish_chunks(writer)
        track.dropped += 1
        writer.end_episode()
        with load_wshard(manifest_of(path)) as episode:
            assert set(episode.metadata["dropped"].values()) == {4}
        found = []
        for index in range(3):
            with load_wshard(chunk_of(path, index)) as chunk:
                found.append(chunk.metadata.get("dropped", {}).get("signal/state", 0))
        assert found == [0, 3, 1]

    def test_channels_with_their_own_clock_go_on_without_a_gap(self, path: Path) -> None:
        channels = [
            {"id": "x", "dtype": "i32"},
            {"id": "cam", "dtype": "u8", "shape": [3], "own_clock": True, "compression": "zstd"},
        ]
        writer = recorder(path, channels=channels, max_steps_per_file=8, flush_steps=3)
        for number in range(50):
            writer.write_timestep({"x": number}, timestamp_ns=number * 10)
            for part in range(3):
                writer.write("cam", [number, part, 1], number * 10 + part)
        with pytest.raises(InvalidArgument, match="time runs backwards"):
            writer.write("cam", [0, 0, 0], 3)
        with pytest.raises(InvalidArgument, match="time runs backwards"):
            writer.write_timestep({"x": 1}, timestamp_ns=0)
        writer.end_episode()
        assert len(chunk_lengths(path)) == 7
        with load_wshard(manifest_of(path)) as episode:
            assert episode.observations["x"].data.tolist() == list(range(50))
            assert episode.timestamps_ns is not None
            assert episode.timestamps_ns.tolist() == [number * 10 for number in range(50)]
            camera = episode.observations["cam"]
            assert camera.data.tolist() == [[n, p, 1] for n in range(50) for p in range(3)]
            assert camera.timestamps_ns is not None
            assert camera.timestamps_ns.tolist() == [
                n * 10 + p for n in range(50) for p in range(3)
            ]

    def test_a_recording_without_steps_has_chunks_too(self, path: Path) -> None:
        channels = [{"id": "cam", "dtype": "u8", "shape": [50], "own_clock": True}]
        writer = recorder(path, channels=channels, max_bytes_per_file=4000)
        for number in range(300):
            writer.write("cam", np.full(50, number % 256), number)
        writer.flush()
        with pytest.raises(InvalidArgument, match="moved on to another file"):
            writer.write_timestep({}, reward=1.0)
        writer.end_episode()
        assert len(chunk_lengths(path)) > 2
        validate_chunk_continuity(manifest_of(path))
        with load_wshard(manifest_of(path)) as episode:
            assert episode.length == 0
            assert episode.observations["cam"].data[:, 7].tolist() == [n % 256 for n in range(300)]

    def test_no_file_ends_before_the_first_step(self, path: Path) -> None:
        channels = [
            {"id": "x", "dtype": "i32"},
            {"id": "cam", "dtype": "u8", "shape": [50], "own_clock": True},
        ]
        writer = recorder(path, channels=channels, max_bytes_per_file=4000)
        for number in range(300):
            writer.write("cam", np.full(50, 1), number)
        writer.flush()
        assert listing(path.parent) == ["ep.wshard.partial"]
        for number in range(9):
            writer.write_timestep({"x": number}, reward=number)
        writer.end_episode()
        with load_wshard(writer.episode_path) as episode:
            assert episode.observations["x"].data.tolist() == list(range(9))
            assert episode.observations["cam"].length == 300

    def test_a_recording_in_chunks_cannot_be_completed_and_says_so_before_it_ends(
        self, path: Path
    ) -> None:
        writer = recorder(path, max_steps_per_file=5)
        record(writer, 0, 12)
        writer.flush()
        with pytest.raises(InvalidArgument, match="cannot be completed"):
            writer.end_episode(complete=lambda episode: None)
        record(writer, 12, 14)
        writer.end_episode()
        with load_wshard(manifest_of(path)) as episode:
            check_steps(episode, 14)


@settings(max_examples=25)
@given(
    steps=st.integers(0, 40),
    max_steps=st.none() | st.integers(1, 25),
    max_bytes=st.none() | st.integers(1000, 9000),
    flush_steps=st.integers(1, 12),
    flushes=st.sets(st.integers(0, 40), max_size=4),
    timed=st.booleans(),
)
def test_chunks_hold_what_one_file_would(
    tmp_path: Path,
    steps: int,
    max_steps: int | None,
    max_bytes: int | None,
    flush_steps: int,
    flushes: set[int],
    timed: bool,
) -> None:
    for old in tmp_path.iterdir():
        old.unlink()
    limits = {"max_steps_per_file": max_steps, "max_bytes_per_file": max_bytes}
    found = []
    channels = [
        *CHANNELS,
        {"id": "cam", "dtype": "i16", "shape": [2], "own_clock": True},
        {"id": "task", "layout": "text", "compression": "zstd:1"},
        {"id": "scan", "layout": "ragged", "shape": [2], "own_clock": True},
    ]
    for name, options in (("one", {}), ("many", limits)):
        writer = recorder(
            tmp_path / f"{name}.wshard",
            channels=channels,
            flush_steps=flush_steps,
            timebase=Timebase(tick_hz=30),
            **options,
        )
        for number in range(steps):
            values = {
                key: np.full(shape, number)
                for key, shape in (("state", 3), ("rgb", (8, 8)), ("ctrl", 2))
            } | {"task": "go on " * (number % 4)}
            stamp = 5 * number if timed else None
            writer.write_timestep(values, reward=number / 3, done=False, timestamp_ns=stamp)
            writer.write("cam", [number, -number], 5 * number + 1)
            writer.write("scan", np.full((number % 3, 2), number), 5 * number + 2)
            if number % 11 == 5:
                writer.annotate(f"at {number}", number - 3, number + 4)
            if number in flushes:
                writer.flush()
        writer.end_episode({"steps": steps})
        found.append(load_wshard(writer.episode_path))
    one, many = found
    with one, many:
        assert differences(one, many) == []
        assert one.times_ns().tolist() == many.times_ns().tolist()
    if max_steps is not None and steps > max_steps:
        assert max(chunk_lengths(tmp_path / "many.wshard")) <= max_steps


class TestFollowing:
    """`open_partial` over many files."""

    def test_a_reader_sees_every_step_over_all_rolls(self, path: Path) -> None:
        writer = recorder(path, max_steps_per_file=6, flush_steps=2)
        with open_partial(path) as live:
            early = None
            for number in range(0, 50, 3):
                record(writer, number, number + 3)
                if number % 2:
                    finish_chunks(writer)
                writer.flush()
                assert live.refresh()
                assert not live.is_finished
                check_steps(live, number + 3)
                early = early or live.observations["state"]
                with open_partial(writer.partial_path) as other:
                    check_steps(other, number + 3)
            assert early is not None
            assert early[:3].shape == (3, 3)  # its journal has gone, and it has not
            writer.end_episode()
            live.refresh()
            assert live.is_finished
            check_steps(live, 51)

    def test_it_does_not_keep_the_space_of_finished_journals(self, path: Path) -> None:
        writer = recorder(path, max_steps_per_file=6)
        with open_partial(path) as live:
            record(writer, 0, 40)
            finish_chunks(writer)
            live.refresh()
            live.refresh()
            descriptors = [
                os.readlink(f"/proc/self/fd/{name}")
                for name in os.listdir("/proc/self/fd")
                if os.path.exists(f"/proc/self/fd/{name}")
                or os.path.islink(f"/proc/self/fd/{name}")
            ]
            assert not [name for name in descriptors if "(deleted)" in name and "ep" in name]
        writer.abort()

    def test_a_finished_one_opens_as_such(self, path: Path) -> None:
        with recorder(path, max_steps_per_file=6) as writer:
            record(writer, 0, 40)
        with open_partial(path) as episode:
            assert episode.is_finished
            check_steps(episode, 40)


class TestRecovering:
    """The whole set, from whichever file is named."""

    def left(self, path: Path, steps: int = 17) -> dict[str, bytes]:
        writer = recorder(path, max_steps_per_file=5)
        record(writer, 0, steps)
        finish_chunks(writer)
        writer.close()
        return {name: (path.parent / name).read_bytes() for name in listing(path.parent)}

    @pytest.mark.parametrize(
        "named",
        ["ep.wshard", "ep.wshard.partial", "ep_chunk_0003.wshard.partial", "ep_manifest.wshard"],
    )
    def test_finished_chunks_stay_and_the_rest_joins_them(self, path: Path, named: str) -> None:
        before = self.left(path)
        found = recover(path.with_name(named), fsync=False)
        assert [chunk.steps for chunk in found.chunks] == [5, 5, 5, 2]
        assert [chunk.from_journal for chunk in found.chunks] == [False, False, False, True]
        assert (found.steps, found.lost_data, found.finished) == (17, False, False)
        assert found.out == str(manifest_of(path))
        validate_chunk_continuity(manifest_of(path))
        with load_wshard(manifest_of(path)) as episode:
            check_steps(episode, 17)
        for name, content in before.items():
            if name != "ep_manifest.wshard":
                assert (path.parent / name).read_bytes() == content

    def test_doing_it_twice_changes_nothing(self, path: Path) -> None:
        self.left(path)
        first = recover(path, fsync=False)
        before = {name: (path.parent / name).read_bytes() for name in listing(path.parent)}
        assert recover(path, fsync=False).steps == first.steps
        assert {name: (path.parent / name).read_bytes() for name in before} == before

    def test_another_name_gets_links_and_a_manifest_of_its_own(self, path: Path) -> None:
        before = self.left(path)
        saved = path.with_name("saved.wshard")
        recover(path, saved, fsync=False)
        with load_wshard(manifest_of(saved)) as episode:
            check_steps(episode, 17)
        validate_chunk_continuity(manifest_of(saved))
        assert os.path.samefile(chunk_of(saved, 0), chunk_of(path, 0))
        assert {name: (path.parent / name).read_bytes() for name in before} == before
        with pytest.raises(InvalidArgument, match="exists"):
            recover(path, saved)

    def test_a_cut_journal_gives_its_whole_steps_and_says_what_is_lost(self, path: Path) -> None:
        self.left(path, 19)
        partial = path.with_name("ep_chunk_0003.wshard.partial")
        partial.write_bytes(partial.read_bytes()[:-9])
        found = recover(path, fsync=False)
        assert found.lost_data
        assert found.lost_bytes > 0
        assert found.problem is not None
        with load_wshard(manifest_of(path)) as episode:
            assert check_steps(episode) == found.steps < 19

    def test_steps_that_are_lost_between_journals_are_counted(self, path: Path) -> None:
        writer = recorder(path, max_steps_per_file=6, flush_steps=2)
        assert writer._roller is not None
        go = hold_finisher(writer)
        record(writer, 0, 12)
        writer.flush()
        writer._roller.finisher.close()
        base = path.with_name("ep.wshard.partial")
        content = base.read_bytes()
        base.write_bytes(content[: len(content) // 2])
        found = recover(path, fsync=False)
        assert found.lost_steps > 0
        assert found.steps == 12 - found.lost_steps
        validate_chunk_continuity(manifest_of(path))
        with load_wshard(manifest_of(path)) as episode:
            first = [n for n in range(12) if n < 6 - found.lost_steps or n >= 6]
            assert episode.observations["state"].data[:, 0].tolist() == first
            assert episode.ticks.tolist() == first  # the gap can be seen
        go.set()  # or its thread would keep the tests from ending

    def test_a_missing_chunk_is_an_error_and_the_journal_is_saved(self, path: Path) -> None:
        self.left(path)
        chunk_of(path, 1).unlink()
        with pytest.raises(MissingFile, match="missing"):
            recover(path, fsync=False)
        assert not chunk_of(path, 1).exists()
        with load_wshard(chunk_of(path, 3)) as chunk:
            assert chunk.timestep_range == (15, 16)

    def test_a_damaged_chunk_in_the_place_of_the_next_is_not_replaced(self, path: Path) -> None:
        self.left(path)
        chunk_of(path, 3).write_bytes(chunk_of(path, 0).read_bytes())
        with pytest.raises(InvalidArgument, match="in the way"):
            recover(path, fsync=False)

    @pytest.mark.parametrize("choice", ["refuse", "recover", "discard"])
    def test_a_new_writer_deals_with_what_is_left(
        self, path: Path, choice: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        before = self.left(path)
        if choice == "refuse":
            with pytest.raises(InvalidArgument, match=r"wshard recover .*ep_chunk_0003") as caught:
                recorder(path)
            assert "on_partial" in str(caught.value)
            assert {name: (path.parent / name).read_bytes() for name in before} == before
            assert listing(path.parent) == sorted(before)
            return
        with recorder(path, on_partial=choice, max_steps_per_file=4) as writer:
            record(writer, 0, 9)
        with load_wshard(manifest_of(path)) as episode:
            check_steps(episode, 9)
        back = path.with_name("ep.recovered-1.wshard")
        assert manifest_of(back).exists() == (choice == "recover")
        if choice == "recover":
            assert "17 steps" in caplog.text
            validate_chunk_continuity(manifest_of(back))
            with load_wshard(manifest_of(back)) as episode:
                check_steps(episode, 17)

    def test_a_writer_that_has_rolled_is_not_joined_by_another(self, path: Path) -> None:
        writer = recorder(path, max_steps_per_file=4)
        record(writer, 0, 10)
        finish_chunks(writer)
        for choice in ("refuse", "recover", "discard"):
            with pytest.raises(InvalidArgument, match="another writer"):
                recorder(path, on_partial=choice)
        record(writer, 10, 12)
        writer.end_episode()
        with load_wshard(manifest_of(path)) as episode:
            check_steps(episode, 12)

    def test_abort_deletes_all_of_it(self, path: Path) -> None:
        writer = recorder(path, max_steps_per_file=4)
        record(writer, 0, 30)
        writer.flush()
        writer.abort()
        assert listing(path.parent) == []


def hold_finisher(writer: WShardStreamWriter) -> threading.Event:
    """Lets no chunk be finished until the event is set."""
    assert writer._roller is not None
    finisher, go = writer._roller.finisher, threading.Event()
    finish = finisher._finish

    def held(journal: JournalWriter) -> None:
        go.wait()
        finish(journal)

    finisher._finish = held  # type: ignore[method-assign] # until the event
    return go


class TestFinisher:
    """Chunks are finished beside the recording."""

    def test_steps_do_not_wait_for_a_chunk_to_be_finished(self, path: Path) -> None:
        writer = recorder(path, max_steps_per_file=5)
        go = hold_finisher(writer)
        record(writer, 0, 40)
        writer.flush()  # would never return
        assert not chunk_of(path, 0).exists()
        assert path.with_name("ep_chunk_0007.wshard.partial").exists()
        go.set()
        writer.end_episode()
        with load_wshard(manifest_of(path)) as episode:
            check_steps(episode, 40)

    def test_but_only_so_many_may_wait(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_file_roller, "_MOST_WAITING", 2)
        writer = recorder(path, max_steps_per_file=5, overflow="drop", buffer_bytes=1)
        go = hold_finisher(writer)
        values = {"state": np.zeros(3), "rgb": np.zeros((8, 8)), "ctrl": np.zeros(2)}

        def journals() -> int:
            return len(list(path.parent.glob("*.partial")))

        while journals() < 4:  # two that wait, the one that waits for them, and the next
            writer.write_timestep(values)
        before = sum(writer.dropped.values())
        while sum(writer.dropped.values()) < before + 500:
            writer.write_timestep(values)
        assert journals() == 4
        go.set()
        writer.end_episode()
        with load_wshard(manifest_of(path)) as episode:
            assert episode.length == writer.steps_written

    def test_a_disk_that_is_full_for_a_while_loses_nothing(
        self, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def full(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        writer = recorder(path, max_steps_per_file=5)
        record(writer, 0, 8)
        finish_chunks(writer)
        with monkeypatch.context() as patch:
            patch.setattr(ManifestWriter, "write", full)
            record(writer, 8, 14)
            finish_chunks(writer)
        assert "its journal stays" in caplog.text
        record(writer, 14, 40)  # in one more file: no others are begun before this is settled
        writer.end_episode()
        assert chunk_lengths(path) == [5, 5, 30]
        with load_wshard(manifest_of(path)) as episode:
            check_steps(episode, 40)
        assert not list(path.parent.glob("*.partial"))

    def test_a_journal_that_cannot_be_removed_is_not_saved_twice(
        self, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def busy(journal: JournalWriter) -> None:
            raise OSError(errno.EBUSY, "Device or resource busy", journal.path)

        writer = recorder(path, max_steps_per_file=5)
        record(writer, 0, 8)
        finish_chunks(writer)
        with monkeypatch.context() as patch:
            patch.setattr("wshard._journal.JournalWriter.remove", busy)
            record(writer, 8, 14)
            finish_chunks(writer)
        assert "its journal stays" in caplog.text
        record(writer, 14, 20)
        writer.end_episode()
        assert chunk_lengths(path) == [5, 5, 10]
        validate_chunk_continuity(manifest_of(path))
        with load_wshard(manifest_of(path)) as episode:
            check_steps(episode, 20)
        assert not list(path.parent.glob("*.partial"))

    def test_a_disk_that_stays_full_keeps_the_journals(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        writer = recorder(path, max_steps_per_file=5)
        with monkeypatch.context() as patch:
            patch.setattr(JournalBlock, "copy_to", full)
            record(writer, 0, 18)
            writer.flush()
            with pytest.raises(ShardIOError, match="wshard recover"):
                writer.end_episode()
        assert recover(path, fsync=False).steps == 18
        with load_wshard(manifest_of(path)) as episode:
            check_steps(episode, 18)


def test_rewards_that_f32_holds_in_some_chunks_only_are_one_channel(path: Path) -> None:
    rewards = [0.5, 1.0, 0.1, 0.2, 2.0, 4.0]
    with recorder(path, channels=[{"id": "x"}], max_steps_per_file=2) as writer:
        for reward in rewards:
            writer.write_timestep({"x": 0.0}, reward=reward)
    with load_wshard(chunk_of(path, 0)) as chunk:
        assert chunk.rewards is not None
        assert chunk.rewards.dtype_name is DType.FLOAT32
    with load_wshard(manifest_of(path)) as episode:
        assert episode.rewards is not None
        assert episode.rewards.dtype_name is DType.FLOAT64
        assert episode.rewards[1:5].tolist() == rewards[1:5]
        assert episode.rewards.data.tolist() == rewards
        save_wshard(episode, path)
    with load_wshard(path) as episode:
        assert episode.rewards is not None
        assert episode.rewards.data.tolist() == rewards
