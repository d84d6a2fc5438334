"""How a recorder stores what it is given: raw, compressed, or as differences of steps; and on which threads."""

from __future__ import annotations

import _thread
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shard_format import Codec, ShardReader
from shard_format.errors import InvalidArgument, ShardError
from shard_format.filters import Filters, encode_frame
from tests.wshard.recording_support import recorder
from wshard import _record_buffers, _recorder, load_wshard, open_partial, recover
from wshard._journal_episode import Journal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from wshard import WShardStreamWriter

STEPS = 40


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "ep.wshard"
    for writer in list(_recorder._alive):
        writer.stop()
        writer.journal.close()


def camera(dtype: type = np.uint8, steps: int = STEPS) -> NDArray[Any]:
    """A still scene of noise that gets brighter, and wraps: only differences of steps compress."""
    top = np.iinfo(dtype).max
    scene = np.random.default_rng(3).integers(0, top, (16, 16, 3), dtype)
    return np.stack([scene + dtype(3 * step % top) for step in range(steps)])


def noise(steps: int = STEPS, levels: int = 256) -> NDArray[np.uint8]:
    return np.random.default_rng(4).integers(0, levels, (steps, 16, 16, 3), np.uint8)


def begun(path: Path, data: NDArray[Any], **options: Any) -> WShardStreamWriter:  # noqa: ANN401 - the writer's
    channel = {
        "id": "x",
        "dtype": f"{data.dtype.kind}{8 * data.dtype.itemsize}",
        "shape": data.shape[1:],
        "compression": "zstd:1",
    }
    return recorder(path, channels=[channel], **options)


def recorded(path: Path, data: NDArray[Any]) -> None:
    writer = begun(path, data)
    for row in data:
        writer.write_timestep({"x": row})
    writer.flush()
    writer.close()


def how(path: Path) -> tuple[set[Codec], bool]:
    """How the runs of `x` are stored in a journal, and whether they are filtered."""
    journal = Journal.open(f"{path}.partial", "nothing")
    journal.reader.close()
    (runs,) = (each for each in journal.channels if each.row.id == "x")
    assert runs.codec is not None
    return {runs.codec}, runs.filters is not None


class TestChoice:
    """What the first run of a channel decides."""

    @pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
    def test_a_camera_becomes_differences_of_its_steps(self, path: Path, dtype: type) -> None:
        data = camera(dtype)
        recorded(path, data)
        assert how(path) == ({Codec.ZSTD}, True)
        with open_partial(path) as episode:
            assert np.array_equal(episode.observations["x"].data, data)
            assert np.array_equal(episode.observations["x"][7:23], data[7:23])
        recover(path, fsync=False)
        with ShardReader(path) as reader:
            reader.verify()
            info = reader.info("signal/x")
            assert str(reader.filters("signal/x")) == f"delta:{data.itemsize}"
            assert info.disk_size < data.nbytes // 3
        with load_wshard(path) as episode:
            assert np.array_equal(episode.observations["x"].data, data)
            assert np.array_equal(episode.observations["x"][3:37], data[3:37])

    def test_what_differences_would_make_larger_is_compressed_as_it_is(self, path: Path) -> None:
        recorded(path, noise(levels=4))
        assert how(path) == ({Codec.ZSTD}, False)

    def test_numbers_that_are_no_pixels_are_not_filtered(self, path: Path) -> None:
        recorded(path, camera(np.uint32) % 7)
        assert how(path) == ({Codec.ZSTD}, False)

    def test_noise_is_raw_from_the_first_run_on(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data = noise()
        writer = begun(path, data)
        for row in data[:5]:
            writer.write_timestep({"x": row})
        writer.flush()

        def refuse(*_: object, **__: object) -> bytes:
            raise AssertionError("compressed in vain")

        monkeypatch.setattr(_record_buffers, "encode_frame", refuse)
        for row in data[5:]:
            writer.write_timestep({"x": row})
        writer.flush()
        assert how(path) == ({Codec.NONE}, False)
        writer.end_episode()
        with load_wshard(path) as episode:
            assert np.array_equal(episode.observations["x"].data, data)

    def test_one_step_is_no_reason_for_differences(self, path: Path) -> None:
        data = camera() // 64
        writer = begun(path, data)
        writer.write_timestep({"x": data[0]})
        writer.flush()
        for row in data[1:]:
            writer.write_timestep({"x": row})
        writer.flush()
        assert how(path) == ({Codec.ZSTD}, False)

    def test_what_became_noise_is_kept_while_it_is_smaller(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data = np.concatenate([np.zeros_like(noise(5)), noise()])
        writer = begun(path, data)
        for row in data:
            writer.write_timestep({"x": row})
        writer.flush()

        def refuse(*_: object) -> bytes:
            raise AssertionError("a run was decoded")

        with monkeypatch.context() as patched:
            patched.setattr("wshard._journal.decode", refuse)
            writer.end_episode()
        with ShardReader(path) as reader:
            info = reader.info("signal/x")
            assert info.codec is Codec.ZSTD
            assert data.nbytes * 0.87 < info.disk_size < data.nbytes
        with load_wshard(path) as episode:
            assert np.array_equal(episode.observations["x"].data, data)

    def test_a_large_run_is_tried_in_part(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(_record_buffers, "_TRIED_BYTES", 1)
        data = camera(steps=5)
        tried = []

        def telling(content: memoryview, level: int, filters: Filters | None) -> bytes:
            tried.append(len(content))
            return encode_frame(content, level, filters)

        monkeypatch.setattr(_record_buffers, "encode_frame", telling)
        recorded(path, data)
        assert how(path) == ({Codec.ZSTD}, True)
        assert tried == [2 * 768, 2 * 768, 5 * 768]


class TestFiles:
    """Filters where a recording has several files."""

    def test_every_journal_and_chunk_says_its_filters(self, path: Path) -> None:
        data = camera()
        writer = begun(path, data, max_steps_per_file=12, flush_steps=8)
        for row in data[:30]:
            writer.write_timestep({"x": row})
        writer.flush()
        writer.close()
        found = recover(path, fsync=False)
        assert found.steps == 30
        assert [chunk.steps for chunk in found.chunks] == [12, 12, 6]
        for chunk in found.chunks:
            with ShardReader(chunk.path) as reader:
                reader.verify()
                assert str(reader.filters("signal/x")) == "delta:1"
        assert found.out is not None
        with load_wshard(found.out) as episode:
            assert np.array_equal(episode.observations["x"].data, data[:30])


class TestThreads:
    """Who compresses."""

    @pytest.fixture(autouse=True)
    def four(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_recorder, "available_threads", lambda: 4)
        monkeypatch.setattr(_recorder, "_SMALLEST_SUBMITTED", 1)

    def test_runs_stay_in_order_whoever_is_ready_first(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The second run waits for others, which other threads must then have taken."""
        data = camera(steps=200)
        threads: set[int] = set()
        others, reached, go = threading.Semaphore(0), threading.Event(), threading.Event()
        count = [0]
        write_batch = _recorder.Recorder._write_batch

        def gated(recorder: _recorder.Recorder, batch: Any) -> None:  # noqa: ANN401 - the batch
            if any(request.runs for request in batch):
                reached.set()
                assert go.wait(60)
            write_batch(recorder, batch)

        def uneven(content: memoryview, level: int, filters: Filters | None) -> bytes:
            number = count[0] = count[0] + 1
            threads.add(threading.get_ident())
            stored = encode_frame(content, level, filters)
            if number == 4:  # two to choose, the first run, and now
                assert others.acquire(timeout=60)
            elif number > 4:
                others.release()
            return stored

        monkeypatch.setattr(_record_buffers, "encode_frame", uneven)
        monkeypatch.setattr(_recorder.Recorder, "_write_batch", gated)
        writer = begun(path, data)
        for number, row in enumerate(data):
            writer.write_timestep({"x": row})
            assert number != 5 or reached.wait(60)  # so that the others come together
        go.set()
        writer.end_episode()
        assert len(threads) > 1
        with load_wshard(path) as episode:
            assert np.array_equal(episode.observations["x"].data, data)

    def test_where_no_thread_can_be_had_the_writer_does_it_all(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data = camera(steps=200)
        writer = begun(path, data)

        def refuse(*_: object) -> int:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(_thread, "start_new_thread", refuse)
        for row in data:
            writer.write_timestep({"x": row})
        writer.end_episode()
        with load_wshard(path) as episode:
            assert np.array_equal(episode.observations["x"].data, data)

    def test_threads_end_with_the_recording(self, path: Path) -> None:
        before = set(threading.enumerate())
        recorded(path, camera(steps=200))
        assert set(threading.enumerate()) <= before

    @pytest.mark.parametrize("number", [1, 2, 3, 9])
    def test_a_failure_reaches_the_one_who_records_and_hides_nothing_before(
        self, path: Path, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        count = [0]

        def failing(content: memoryview, level: int, filters: Filters | None) -> bytes:
            count[0] += 1
            if count[0] >= number:
                raise MemoryError("as much as there is")
            return encode_frame(content, level, filters)

        monkeypatch.setattr(_record_buffers, "encode_frame", failing)
        data = camera(steps=4000)
        writer = begun(path, data, buffer_bytes=1)
        with pytest.raises(MemoryError, match="as much"):  # noqa: PT012 - any of the steps, or the end
            for row in data:
                writer.write_timestep({"x": row})
            writer.end_episode()
        with pytest.raises((MemoryError, ShardError)):
            writer.flush()
        writer.close()
        found = recover(path, fsync=False)
        assert found.problem is None
        # Two are to choose; runs have five steps, and those before the one that failed may be whole.
        assert found.steps <= 5 * max(0, number - 3)
        assert found.steps % 5 == 0
        with load_wshard(path) as episode:
            assert episode.length == found.steps
            if found.steps:
                assert np.array_equal(episode.observations["x"].data, data[: found.steps])


class TestSteps:
    """Values are checked while they are copied."""

    def test_a_value_that_changes_while_it_is_looked_at_leaves_nothing(self, path: Path) -> None:
        class Fickle:
            looked = 0

            def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:  # noqa: ANN401 - NumPy's
                self.looked += 1
                return np.zeros((16, 16, 3) if self.looked == 1 else 5, np.uint8)

        data = camera(steps=12)
        writer = begun(path, data)
        for row in data[:5]:
            writer.write_timestep({"x": row})
        with pytest.raises(InvalidArgument, match="a different shape"):
            writer.write_timestep({"x": Fickle()})
        writer.flush()  # of a buffer in which nothing counts
        for row in data[5:]:
            writer.write_timestep({"x": row})
        writer.end_episode()
        with load_wshard(path) as episode:
            assert np.array_equal(episode.observations["x"].data, data)

    def test_a_step_that_does_not_fit_raises_also_where_it_would_be_dropped(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data = camera()
        writer = begun(path, data, overflow="drop")
        monkeypatch.setattr(_recorder.Recorder, "_take", lambda *_: None)
        with pytest.raises(InvalidArgument, match="a different shape"):
            writer.write_timestep({"x": data[0, 0]})
        assert not writer.dropped
        assert not writer.write_timestep({"x": data[0]})
        assert writer.dropped == {"signal/x": 1}
        writer.abort()


@settings(
    max_examples=25,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    dtype=st.sampled_from([np.uint8, np.uint16, np.int16, np.float32]),
    spread=st.sampled_from([1, 3, 250]),
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    seed=st.integers(0, 99),
)
def test_whatever_is_chosen_what_was_recorded_comes_back(
    tmp_path: Path, dtype: type, spread: int, lengths: list[int], seed: int
) -> None:
    random = np.random.default_rng(seed)
    steps = random.integers(0, spread, (sum(lengths), 6, 7))
    data: NDArray[Any] = np.cumsum(steps, axis=0).astype(dtype)
    path = tmp_path / f"{np.dtype(dtype)}-{spread}-{seed}-{'-'.join(map(str, lengths))}.wshard"
    writer = begun(path, data)
    at = 0
    for length in lengths:
        for row in data[at : at + length]:
            writer.write_timestep({"x": row})
        at += length
        writer.flush()
    out = path.with_suffix(".recovered.wshard")
    recover(path, out, fsync=False)
    writer.end_episode()
    for file in (path, out):
        with ShardReader(file) as reader:
            reader.verify()
        with load_wshard(file) as episode:
            assert np.array_equal(episode.observations["x"].data, data)
        file.unlink()
