"""Long episodes in several files: written one by one, checked, and read as one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shard_format import Manifest, ShardReader
from shard_format.errors import (
    ChunkDiscontinuity,
    InvalidArgument,
    MissingFile,
    ReferenceMismatch,
    ShardError,
    UnsafePath,
)
from tests.shard_format.faults import LOOKS, REFUSED, Child
from tests.shard_format.support import listing
from tests.wshard.support import bits, facts_of, full_episode, noise_array, ramp, save
from wshard import Episode, add_lane, load_wshard
from wshard.chunked import (
    ChunkedEpisodeReader,
    ChunkedEpisodeWriter,
    ChunkManifest,
    validate_chunk_continuity,
)
from wshard.editing import split_episode

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def manifest(tmp_path: Path) -> ChunkManifest:
    """Twelve steps in chunks of five."""
    writer = ChunkedEpisodeWriter(tmp_path, "long", 5, fsync=False)
    writer.write_episode(full_episode())
    return writer.finalize_manifest()


class TestWriting:
    """Chunk by chunk."""

    def test_the_files_and_what_they_say(self, tmp_path: Path, manifest: ChunkManifest) -> None:
        names = [f"long_chunk_000{n}.wshard" for n in range(3)]
        assert listing(tmp_path) == [*names, "long_manifest.wshard"]
        assert (manifest.episode_id, manifest.env_id) == ("long", "Reach-v1")
        assert (manifest.total_timesteps, manifest.total_chunks) == (12, 3)
        for number, (name, row) in enumerate(zip(names, manifest.chunks, strict=True)):
            chunk = load_wshard(tmp_path / name)
            span = [(0, 4), (5, 9), (10, 11)][number]
            assert (chunk.id, chunk.chunk_index, chunk.total_chunks) == ("long", number, 3)
            assert chunk.timestep_range == span
            assert (row["uri"], row["timestep_range"]) == (name, list(span))
            assert row["length_T"] == chunk.length
            assert row["size"] == (tmp_path / name).stat().st_size
            assert chunk.is_chunked

    def test_only_the_last_chunk_has_the_observation_after_the_end(
        self, tmp_path: Path, manifest: ChunkManifest
    ) -> None:
        for number in range(3):
            chunk = load_wshard(tmp_path / f"long_chunk_000{number}.wshard")
            more = number == 2
            for name in ("signal/state", "omen/state/dreamer", "uncert/state/dreamer/std"):
                assert chunk.find(name).length == chunk.length + more, name

    def test_chunks_come_one_by_one_without_knowing_how_many(self, tmp_path: Path) -> None:
        folder = tmp_path / "new" / "folder"
        writer = ChunkedEpisodeWriter(folder, "ep", compression="zstd", steps_per_frame=2)
        for part in split_episode(full_episode(), steps=4):
            path = writer.write_chunk(part)
            assert load_wshard(path).chunk_index == len(listing(folder)) - 1
            assert part.chunk_index is None, "the caller's episode is not changed"
        manifest = writer.finalize_manifest()
        validate_chunk_continuity(manifest)
        assert manifest.total_chunks == 3
        stated = [
            chunk.total_chunks for chunk in ChunkedEpisodeReader(folder / "ep_manifest.wshard")
        ]
        assert stated == [None, None, None], "the rows of the manifest count"

    def test_the_context_finishes_unless_something_went_wrong(self, tmp_path: Path) -> None:
        with ChunkedEpisodeWriter(tmp_path, "ep", fsync=False) as writer:
            writer.write_chunk(Episode("x", actions={"a": ramp(2)}))
        assert "ep_manifest.wshard" in listing(tmp_path)
        with pytest.raises(ZeroDivisionError), ChunkedEpisodeWriter(tmp_path, "b", fsync=False):
            _ = 1 / 0
        assert "b_manifest.wshard" not in listing(tmp_path)

    def test_what_is_out_of_order_is_refused(self, tmp_path: Path) -> None:
        writer = ChunkedEpisodeWriter(tmp_path, "ep", fsync=False)
        with pytest.raises(InvalidArgument, match="no chunk"):
            writer.finalize_manifest()
        with pytest.raises(InvalidArgument, match="in order"):
            writer.write_chunk(Episode("x"), chunk_index=1)
        writer.write_chunk(Episode("x"), chunk_index=0, total_chunks=2)
        with pytest.raises(InvalidArgument, match="fewer chunks than announced"):
            writer.finalize_manifest()
        writer.write_chunk(Episode("x"))
        with pytest.raises(InvalidArgument, match="more chunks than announced"):
            writer.write_chunk(Episode("x"))
        for name in ("a/b", "", "..", 5, "run:1", "a\\b"):
            with pytest.raises(InvalidArgument):
                ChunkedEpisodeWriter(tmp_path, name)  # type: ignore[arg-type] # on purpose
        with pytest.raises(InvalidArgument, match="at least one step"):
            ChunkedEpisodeWriter(tmp_path, "ep", 0)


class TestReading:
    """All chunks as one, or one by one."""

    def test_the_manifest_opens_as_the_episode(self, manifest: ChunkManifest) -> None:
        whole, wanted = load_wshard(manifest), full_episode()
        assert (whole.id, whole.length, whole.chunk_index) == ("long", 12, None)
        found, facts = facts_of(whole), facts_of(wanted)
        for lane in ("observations", "actions", "rewards", "ends", "omens", "uncerts", "ticks"):
            assert found[lane] == facts[lane], lane
        for lane in ("metadata", "labels", "timebase", "extras", "provenance"):
            assert found[lane] == facts[lane], lane

    @pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
    def test_windows_cross_borders(self, tmp_path: Path, compression: str | None) -> None:
        data = noise_array(100, 50, dtype="u1") // 32
        writer = ChunkedEpisodeWriter(tmp_path, "ep", 30, fsync=False, compression=compression)
        writer.write_episode(Episode("x", observations={"a": data}))
        manifest = writer.finalize_manifest()
        for start, stop in ((0, 5), (25, 35), (29, 31), (10, 95), (60, 60), (89, 100), (0, 100)):
            channel = load_wshard(manifest).observations["a"]
            assert bits(channel[start:stop]) == bits(data[start:stop])
        assert bits(load_wshard(manifest).load().observations["a"].data) == bits(data)
        assert load_wshard(manifest).observations["a"][-1].tolist() == data[-1].tolist()

    def test_a_window_decodes_the_chunks_it_touches_only(self, tmp_path: Path) -> None:
        writer = ChunkedEpisodeWriter(tmp_path, "ep", 300, fsync=False, compression="lz4")
        writer.write_episode(Episode("x", observations={"a": ramp(900, 4) // 100}))
        manifest = writer.finalize_manifest()
        path = tmp_path / "ep_chunk_0002.wshard"
        content = bytearray(path.read_bytes())
        with ShardReader(path) as reader:
            content[reader.info("signal/a").data_offset + 40] ^= 0xFF
        path.write_bytes(content)
        channel = load_wshard(manifest).observations["a"]
        assert bits(channel[290:310]) == bits((ramp(900, 4) // 100)[290:310])
        with pytest.raises(ShardError, match="ep_chunk_0002"):
            channel[590:610]

    def test_the_whole_saved_is_the_episode_saved(
        self, tmp_path: Path, manifest: ChunkManifest
    ) -> None:
        ep = full_episode()
        del ep.residuals["state/dreamer/delta_q"]  # its windows were cut
        ep.id = "long"
        one = save(ep, tmp_path / "one.wshard")
        whole = load_wshard(manifest)
        del whole.residuals["state/dreamer/delta_q"]
        assert save(whole, tmp_path / "two.wshard").read_bytes() == one.read_bytes()

    def test_the_reader_gives_chunks_in_order(self, manifest: ChunkManifest) -> None:
        reader = ChunkedEpisodeReader(manifest)
        assert (len(reader), reader.num_chunks, reader.total_timesteps) == (3, 3, 12)
        assert [chunk.length for chunk in reader] == [5, 5, 2]
        assert reader.load_chunk(1).chunk_index == 1
        assert reader.load().length == 12
        assert reader.load_manifest() is reader.manifest
        with pytest.raises(InvalidArgument, match="no such chunk"):
            reader.load_chunk(3)

    def test_an_episode_without_steps_is_one_chunk(self, tmp_path: Path) -> None:
        writer = ChunkedEpisodeWriter(tmp_path, "ep", 5, fsync=False)
        writer.write_episode(Episode("x", observations={"a": ramp(0, 2)}))
        manifest = writer.finalize_manifest()
        validate_chunk_continuity(manifest)
        assert load_wshard(manifest).observations["a"].data.shape == (0, 2)


class TestChecking:
    """Each kind of break by its name."""

    def rewritten(self, manifest: ChunkManifest, change: Any) -> ChunkManifest:  # noqa: ANN401 - a function
        """The manifest with changed rows, as a file."""
        rows = [dict(reference.extra) for reference in manifest.files.files]
        fields = dict(manifest.files.fields)
        change(rows, fields)
        files = [
            replace(reference, extra=row)
            for reference, row in zip(manifest.files.files, rows, strict=True)
        ]
        Manifest(files, fields, manifest.files.folder, "chunks").write(manifest, fsync=False)
        return ChunkManifest.read(manifest)

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda rows, _: rows[1].update(chunk_index=5), "chunk 1 is missing"),
            (lambda rows, _: rows[1].update(chunk_index=0), "chunk 0 is there twice"),
            (
                lambda rows, _: rows[1].update(timestep_range=[6, 10]),
                "gap before chunk 1: steps 5 to 5",
            ),
            (lambda rows, _: rows[1].update(timestep_range=[4, 8]), "chunk 1 overlaps"),
            (
                lambda rows, _: rows[1].update(timestep_range=[5, 8]),
                "chunk 1 has a different length",
            ),
            (lambda rows, _: rows[2].update(length_T=3), "chunk 2 has a different length"),
            (lambda rows, _: rows[2].update(total_chunks=4), "another number of chunks"),
            (lambda _, fields: fields.update(total_chunks=4), "missing at the end"),
            (lambda _, fields: fields.update(total_timesteps=13), "a different total length"),
        ],
    )
    def test_breaks_are_named(self, manifest: ChunkManifest, change: Any, words: str) -> None:  # noqa: ANN401 - a function
        broken = self.rewritten(manifest, change)
        for check in (validate_chunk_continuity, load_wshard):
            with pytest.raises(ChunkDiscontinuity, match=words) as caught:
                check(broken)
            assert "long_manifest.wshard" in str(caught.value)

    def test_a_whole_episode_passes(self, manifest: ChunkManifest) -> None:
        seen: list[tuple[int, int]] = []
        validate_chunk_continuity(manifest, progress=lambda done, total: seen.append((done, total)))
        validate_chunk_continuity(manifest.path or "")
        assert seen[-1][0] == seen[-1][1] > 0

    def test_a_missing_chunk_is_named(self, tmp_path: Path, manifest: ChunkManifest) -> None:
        (tmp_path / "long_chunk_0001.wshard").unlink()
        for check in (validate_chunk_continuity, load_wshard):
            with pytest.raises(MissingFile) as caught:
                check(manifest)
            assert "long_chunk_0001.wshard" in str(caught.value)
        validate_chunk_continuity(manifest, check_files=False)

    def test_a_changed_chunk_is_named(self, tmp_path: Path, manifest: ChunkManifest) -> None:
        path = tmp_path / "long_chunk_0002.wshard"
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        for check in (validate_chunk_continuity, lambda m: ChunkedEpisodeReader(m).load_chunk(2)):
            with pytest.raises(ReferenceMismatch) as caught:
                check(manifest)
            assert "long_chunk_0002.wshard" in str(caught.value)
        path.write_bytes(content + b"more")
        with pytest.raises(ReferenceMismatch, match="long_chunk_0002"):
            load_wshard(manifest)

    def test_exchanged_chunks_are_found(self, tmp_path: Path, manifest: ChunkManifest) -> None:
        one, two = tmp_path / "long_chunk_0000.wshard", tmp_path / "long_chunk_0001.wshard"
        a, b = one.read_bytes(), two.read_bytes()
        one.write_bytes(b)
        two.write_bytes(a)
        with pytest.raises((ReferenceMismatch, ChunkDiscontinuity)):
            load_wshard(manifest)

    @pytest.mark.parametrize("uri", ["../x.wshard", "/etc/passwd", "a/b", "..", "a\\b"])
    def test_files_elsewhere_are_refused(self, manifest: ChunkManifest, uri: str) -> None:
        files = [replace(manifest.files.files[0], uri=uri), *manifest.files.files[1:]]
        Manifest(files, manifest.files.fields, manifest.files.folder, "chunks").write(
            manifest, fsync=False
        )
        with pytest.raises(UnsafePath):
            load_wshard(manifest)

    def test_chunks_with_different_channels_are_named(self, tmp_path: Path) -> None:
        writer = ChunkedEpisodeWriter(tmp_path, "ep", fsync=False)
        writer.write_chunk(Episode("x", actions={"a": ramp(2)}))
        writer.write_chunk(Episode("x", actions={"b": ramp(2)}))
        with pytest.raises(ChunkDiscontinuity, match=r"chunk 1 of 'ep' (has|lacks)"):
            load_wshard(writer.finalize_manifest())


class TestReplacing:
    """A chunked episode takes the place of another one, whose files have the same sizes."""

    def write(self, folder: Path, value: int, chunk_size: int = 2) -> None:
        data = np.full(6, value, np.float32)
        writer = ChunkedEpisodeWriter(folder, "ep", chunk_size, fsync=False)
        writer.write_episode(Episode("x", observations={"a": data}))
        writer.finalize_manifest()

    def value(self, folder: Path) -> int:
        """The one value of all steps."""
        with load_wshard(folder / "ep_manifest.wshard") as episode:
            (found,) = set(episode.observations["a"].data.tolist())
        return int(found)

    def test_the_files_of_the_old_one_go(self, tmp_path: Path) -> None:
        self.write(tmp_path, 1)
        first = listing(tmp_path)
        for value in (2, 3):
            self.write(tmp_path, value)
            assert (self.value(tmp_path), len(listing(tmp_path))) == (value, len(first))
        assert listing(tmp_path) == first, "names that became free are used again"

    @pytest.mark.slow
    def test_two_processes_at_once_leave_one_episode(self, tmp_path: Path) -> None:
        call, state = 0, "paused"
        while state == "paused":
            folder = tmp_path / str(call)
            self.write(folder, 1)
            one = Child(lambda folder=folder: self.write(folder, 2), call, "pause")  # type: ignore[misc]
            state = one.stopped()
            two = Child(lambda folder=folder: self.write(folder, 3, 3))  # type: ignore[misc]
            if state == "paused":
                two.stopped()  # it waits for the first one, or is done
                one.go()
            ends = {2: one.end(), 3: two.end()}
            assert set(ends.values()) <= {0, REFUSED}, call
            assert ends[self.value(folder)] == 0, call
            call += 1
        assert call > 10

    def test_a_reader_that_was_overtaken_looks_again(self, tmp_path: Path) -> None:
        call, state = 0, "paused"
        while state == "paused":
            folder = tmp_path / str(call)
            self.write(folder, 1)
            reader = Child(lambda folder=folder: self.value(folder), call, "pause", LOOKS)  # type: ignore[misc]
            state = reader.stopped()
            self.write(folder, 2)
            if state == "paused":
                reader.go()
            assert reader.end() == 0, call
            call += 1
        assert call > 4

    def test_an_episode_with_lanes_is_not_replaced(self, tmp_path: Path) -> None:
        self.write(tmp_path, 1)
        add_lane(tmp_path / "ep_manifest.wshard", "omen/a/m", np.zeros(6), fsync=False)
        with pytest.raises(InvalidArgument, match="remove_lane"):
            self.write(tmp_path, 2)
        assert self.value(tmp_path) == 1


def test_clocks_of_their_own_are_cut_where_chunks_start(manifest: ChunkManifest) -> None:
    counts = [chunk.observations["imu"].length for chunk in ChunkedEpisodeReader(manifest)]
    assert sum(counts) == 36
    start = load_wshard(manifest).times_ns()[5]
    second = ChunkedEpisodeReader(manifest).load_chunk(1).observations["imu"].timestamps_ns
    assert second is not None
    assert second[0] >= start > second[0] - 7_000_000
    assert np.all(np.diff(load_wshard(manifest).times_ns("imu")) == 7_000_000)
