"""One reader for many threads, forked and spawned processes; and what crosses between them."""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shard_format import Limits, ShardReader, ShardWriter, errors
from shard_format.errors import Closed, InvalidArgument, MissingExtra, ShardError, ShardIOError
from shard_format.sources import FileSource
from tests.shard_format.support import HandMade, PlainSource, Row, check_python, noise, prose

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CONTENTS = {
    "raw/large": noise(1_200_000),
    "raw/small": b"0123456789",
    "zstd": prose(900_000),
    "lz4": prose(900_000),
    "seekable": prose(3_000_000),
    **{f"many/{number}": noise(200 + number, number) for number in range(300)},
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with entries of every kind, read only by the tests of this module."""
    file = tmp_path_factory.mktemp("concurrency") / "a.shard"
    with ShardWriter(file, fsync=False) as writer:
        for name, data in CONTENTS.items():
            codec = {"zstd": "zstd", "lz4": "lz4", "seekable": "zstd"}.get(name)
            frame_bytes = 50_000 if name == "seekable" else None
            writer.write_entry(name, data, compression=codec, frame_bytes=frame_bytes)
    return file


def read_much(reader: ShardReader, seed: int) -> None:
    """Reads in every way, starting at another place for every seed; asserts what comes."""
    names = list(CONTENTS)
    for step in range(12):
        name = names[(seed * 7 + step) % (5 if step % 2 else len(names))]
        data = CONTENTS[name]
        start, stop = len(data) // 3, len(data) // 2
        assert reader.read_entry(name) == data
        assert reader.read_range(name, start, stop) == data[start:stop]
        buffer = np.zeros(len(data), np.uint8)
        reader.read_into(name, buffer)
        assert buffer.tobytes() == data
    assert b"".join(reader.iter_entry("seekable")) == CONTENTS["seekable"]
    if not isinstance(reader.source, PlainSource) and reader.name != "<BytesIO>":
        assert bytes(reader.view("raw/large")) == CONTENTS["raw/large"]


class TestThreads:
    """Threads that share one reader."""

    @pytest.mark.parametrize("kind", ["path", "bytes", "file object", "plain source"])
    @pytest.mark.slow
    def test_32_threads_read_the_same_reader(self, path: Path, kind: str) -> None:
        sources: dict[str, Callable[[], Any]] = {
            "path": lambda: path,
            "bytes": path.read_bytes,
            "file object": lambda: io.BytesIO(path.read_bytes()),
            "plain source": lambda: PlainSource(path),
        }
        together = threading.Barrier(32)

        def work(seed: int) -> None:
            together.wait()
            read_much(reader, seed)

        with ShardReader(sources[kind](), threads=2) as reader, ThreadPoolExecutor(32) as pool:
            list(pool.map(work, range(32)))

    @pytest.mark.parametrize("threads", [1, 2, 8])
    def test_the_number_of_threads_changes_nothing(self, path: Path, threads: int) -> None:
        with ShardReader(path, threads=threads) as reader:
            assert reader.read_many(CONTENTS) == list(CONTENTS.values())
            assert reader["seekable"] == CONTENTS["seekable"]
            part = reader.read_range("seekable", 12_345, 2_345_678)
            assert part == CONTENTS["seekable"][12_345:2_345_678]

    def test_an_error_in_one_of_many_is_raised_and_leaves_the_reader_usable(self) -> None:
        rows = [Row(f"{number}".encode(), noise(600_000, number)) for number in range(8)]
        rows[5].crc = 0xDEADBEEF
        reader = ShardReader(HandMade(rows).to_bytes(), threads=4)
        with pytest.raises(errors.ChecksumMismatch) as caught:
            reader.read_many(reader.names())
        assert caught.value.entry == "5"
        assert reader["4"] == noise(600_000, 4)

    @pytest.mark.parametrize("method", ["read_at", "read_into", "view"])
    def test_a_file_that_is_closed_while_others_read_never_gives_bytes_of_another(
        self, tmp_path: Path, method: str
    ) -> None:
        mine, other = tmp_path / "mine", tmp_path / "other"
        mine.write_bytes(b"m" * 100_000)
        other.write_bytes(b"o" * 100_000)
        sources = [FileSource(mine)]
        found: set[bytes] = set()

        def read() -> None:
            while sources:
                with suppress(Closed, IndexError):
                    source, buffer = sources[0], bytearray(100)
                    if method == "read_at":
                        found.add(source.read_at(10, 100))
                    elif method == "read_into":
                        source.read_into(10, memoryview(buffer))
                        found.add(bytes(buffer))
                    else:
                        found.add(bytes(source.view(10, 100)))

        def close_and_open() -> None:
            for _ in range(4000):
                before = os.open(other, os.O_RDONLY)
                sources[0].close()
                after = os.open(other, os.O_RDONLY)  # gets the number that is free now
                os.close(before)
                sources[0] = FileSource(mine)
                os.close(after)
            sources.pop().close()

        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)  # threads interrupt each other wherever they can
        try:
            with ThreadPoolExecutor(4) as pool:
                for work in [*(pool.submit(read) for _ in range(3)), pool.submit(close_and_open)]:
                    work.result()
        finally:
            sys.setswitchinterval(interval)
        assert found == {b"m" * 100}

    def test_threads_end_with_the_call(self, path: Path) -> None:
        with ShardReader(path, threads=8) as reader:
            before = threading.active_count()
            reader.read_many(CONTENTS)
            reader.verify()
            assert threading.active_count() == before


CHILD = """
import os, sys, threading
sys.path.insert(0, sys.argv[2])
from tests.shard_format.test_concurrency import read_much
from shard_format import ShardReader

def in_children(count, work):
    children = []
    for seed in range(count):
        pid = os.fork()
        if pid == 0:
            try:
                work(seed)
            except BaseException as error:
                print("child", seed, repr(error)[:300], flush=True)
                os._exit(1)
            os._exit(0)
        children.append(pid)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
"""


class TestProcesses:
    """Forked and spawned processes. Forks happen in scripts: pytest's own threads forbid them here."""

    def root(self) -> Path:
        from tests.shard_format.support import REPOSITORY

        return REPOSITORY

    def test_forked_children_share_the_parents_reader(self, path: Path) -> None:
        script = CHILD + (
            "reader = ShardReader(sys.argv[1])\n"
            "view = reader.view('raw/large')\n"
            "assert in_children(4, lambda seed: read_much(reader, seed)) == [0] * 4\n"
            "read_much(reader, 9)\n"
        )
        check_python(script, path, self.root())

    def test_a_child_that_closes_its_reader_leaves_the_parents_open(self, path: Path) -> None:
        script = CHILD + (
            "reader = ShardReader(sys.argv[1])\n"
            "assert in_children(2, lambda seed: reader.close()) == [0] * 2\n"
            "read_much(reader, 3)\n"
        )
        check_python(script, path, self.root())

    def test_a_fork_while_other_threads_read_gives_working_children(self, path: Path) -> None:
        """Locks held by a thread at the fork stay locked in the child: there must be none."""
        script = CHILD + (
            "import warnings\n"
            "warnings.simplefilter('ignore', DeprecationWarning)  # the fork with threads is the test\n"
            "reader = ShardReader(sys.argv[1], threads=2)\n"
            "stop = threading.Event()\n"
            "def keep_reading():\n"
            "    seed = 0\n"
            "    while not stop.is_set():\n"
            "        read_much(reader, seed)\n"
            "        seed += 1\n"
            "threads = [threading.Thread(target=keep_reading) for _ in range(3)]\n"
            "for thread in threads: thread.start()\n"
            "codes = in_children(6, lambda seed: read_much(reader, seed))\n"
            "stop.set()\n"
            "for thread in threads: thread.join()\n"
            "assert codes == [0] * 6, codes\n"
        )
        check_python(script, path, self.root())

    def test_a_spawned_process_gets_the_reader_as_its_location(self, path: Path) -> None:
        context = multiprocessing.get_context("spawn")
        with ShardReader(path) as reader, context.Pool(1) as pool:
            assert pool.apply(ShardReader.read_entry, (reader, "zstd")) == CONTENTS["zstd"]


class TestPickling:
    """What crosses between processes."""

    def test_a_reader_of_a_path_pickles_as_the_path(self, path: Path) -> None:
        limits = Limits(max_entries=10_000)
        reader = ShardReader(path, limits=limits, threads=3, check=False)
        data = pickle.dumps(reader)
        assert len(data) < 1000
        with pickle.loads(data) as copy:
            assert copy.limits == limits
            assert copy.name == reader.name
            assert copy["zstd"] == CONTENTS["zstd"]
            assert pickle.dumps(copy) == data
        reader.close()

    def test_a_relative_path_is_found_from_another_folder(
        self, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(path.parent)
        data = pickle.dumps(ShardReader(path.name))
        monkeypatch.chdir(tmp_path)
        assert pickle.loads(data)["raw/small"] == b"0123456789"

    def test_a_reader_of_an_open_file_pickles_as_its_path(self, path: Path) -> None:
        with path.open("rb") as file, ShardReader(file) as reader:
            assert pickle.loads(pickle.dumps(reader))["raw/small"] == b"0123456789"

    def test_a_reader_of_bytes_pickles_with_them(self) -> None:
        reader = ShardReader(HandMade([Row(b"a", b"1")]).to_bytes())
        assert pickle.loads(pickle.dumps(reader))["a"] == b"1"

    def test_an_unpickled_reader_closes_what_it_opened(self, path: Path) -> None:
        copy = pickle.loads(pickle.dumps(ShardReader(path)))
        copy.close()
        with pytest.raises(errors.Closed):
            copy.source.read_at(0, 1)

    def test_a_reader_of_a_file_object_says_why_it_cannot_be_pickled(self, path: Path) -> None:
        reader = ShardReader(io.BytesIO(path.read_bytes()))
        with pytest.raises(
            InvalidArgument, match=r"cannot be pickled.*open the reader with a path"
        ):
            pickle.dumps(reader)

    @pytest.mark.parametrize(
        "kind",
        [getattr(errors, name) for name in errors.__all__],
        ids=lambda kind: kind.__name__,
    )
    def test_errors_pickle_with_all_they_know(self, kind: type[ShardError]) -> None:
        error = kind(
            "a problem",
            path="a.shard",
            entry="x",
            offset=7,
            expected=1,
            found=[2],
            rule="S-HDR-1",
            hint="do this",
        )
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is kind
        assert str(copy) == str(error)
        assert copy.args == error.args
        for name in ("problem", "path", "entry", "offset", "expected", "found", "rule", "hint"):
            assert getattr(copy, name) == getattr(error, name), name

    def test_an_error_of_the_system_pickles_with_errno(self) -> None:
        error = ShardIOError.wrap(OSError(28, "No space left on device"), "cannot write", "a.shard")
        copy = pickle.loads(pickle.dumps(error))
        assert (copy.errno, copy.strerror, copy.filename) == (
            28,
            "No space left on device",
            "a.shard",
        )

    def test_a_missing_extra_pickles_with_its_place(self) -> None:
        copy = pickle.loads(pickle.dumps(MissingExtra("a problem", path="a.shard")))
        assert copy.path == "a.shard"
