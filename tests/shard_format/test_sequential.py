"""Reading forward in large blocks, opening with the last bytes, and copies of what is behind a URL."""

from __future__ import annotations

import errno
import os
import pickle
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from shard_format.errors import ShardIOError
from shard_format.opening import copying_urls, open_source
from shard_format.parallel import map_in_order
from shard_format.remote import HttpSource, open_url
from shard_format.sequential import BLOCK_BYTES, SequentialSource, temporary_copy
from shard_format.sources import FileSource
from tests.shard_format.support import noise
from tests.stores.counting import CountedBucket, RangeServer, Traffic, range_server, s3_server

if TYPE_CHECKING:
    from collections.abc import Iterator

KIB, MIB = 1 << 10, 1 << 20
LARGE = noise(MIB, seed=3) * 30 + b"end"


@pytest.fixture
def server() -> Iterator[RangeServer]:
    with range_server() as server:
        yield server


@pytest.fixture(scope="module")
def bucket() -> Iterator[CountedBucket]:
    with s3_server() as bucket:
        yield bucket


@pytest.fixture(params=["http", "s3"])
def store(request: pytest.FixtureRequest) -> RangeServer | CountedBucket:
    """Each kind of server."""
    found: RangeServer | CountedBucket = request.getfixturevalue(
        "server" if request.param == "http" else "bucket"
    )
    return found


class Counted:
    """A source in memory that notes its reads, and fails where it is told to."""

    def __init__(self, data: bytes) -> None:
        self.name = "<counted>"
        self.data = data
        self.reads: list[tuple[int, int]] = []
        self.broken: int | None = None

    def size(self) -> int:
        return len(self.data)

    def read_at(self, offset: int, length: int) -> bytes:
        self.reads.append((offset, length))
        if self.broken is not None and offset <= self.broken < offset + length:
            raise ShardIOError("broken", path=self.name)
        return self.data[offset : offset + length]

    def close(self) -> None:
        """Nothing to release."""


class TestForward:
    """What reading in order asks of the source."""

    @pytest.mark.parametrize("step", [1000, 64 * KIB, 3 * MIB, 20 * MIB])
    def test_every_byte_is_fetched_once_in_blocks(self, step: int) -> None:
        source = Counted(LARGE)
        forward = SequentialSource(source)
        for start in range(0, len(LARGE), step * (1 if step > 1000 else 50)):
            wanted = LARGE[start : start + step]
            before = max(0, start - 100)
            assert forward.read_at(before, 50) == LARGE[before : before + 50]
            assert forward.read_at(start, len(wanted)) == wanted
        forward.release()
        asked = sorted(source.reads)
        assert [start for start, _ in asked] == list(range(0, len(LARGE), BLOCK_BYTES))
        assert sum(length for _, length in asked) == len(LARGE)

    def test_nothing_behind_the_stop_is_fetched_ahead(self) -> None:
        source = Counted(LARGE)
        forward = SequentialSource(source, 5 * MIB, 20 * MIB)
        for start in range(5 * MIB, 20 * MIB, MIB):
            forward.read_at(start, MIB)
        forward.release()
        assert sum(length for _, length in source.reads) == 15 * MIB
        assert max(start + length for start, length in source.reads) == 20 * MIB

    def test_who_reads_little_gets_one_block(self) -> None:
        source = Counted(LARGE)
        forward = SequentialSource(source)
        forward.read_at(0, 100)
        forward.read_at(100, 100 * KIB)
        forward.release()
        assert source.reads == [(0, BLOCK_BYTES)]

    def test_reads_elsewhere_are_fetched_as_they_are_until_they_go_on(self) -> None:
        source = Counted(LARGE)
        forward = SequentialSource(source)
        for start in (25 * MIB, 12 * MIB, 20 * MIB):
            assert forward.read_at(start, 4 * KIB) == LARGE[start : start + 4 * KIB]
        assert source.reads == [(25 * MIB, 4096), (12 * MIB, 4096), (20 * MIB, 4096)]
        start = 20 * MIB + 4096
        assert forward.read_at(start, 100) == LARGE[start : start + 100]
        assert source.reads[3:] == [(start, BLOCK_BYTES)]
        forward.release()

    def test_an_error_is_raised_where_it_is_and_can_pass(self) -> None:
        source = Counted(LARGE)
        source.broken = 9 * MIB
        forward = SequentialSource(source)
        for start in range(0, 8 * MIB, MIB):
            forward.read_at(start, MIB)
        with pytest.raises(ShardIOError):
            forward.read_at(8 * MIB, MIB)
        source.broken = None
        assert forward.read_at(8 * MIB, MIB) == LARGE[8 * MIB : 9 * MIB]
        forward.release()
        assert forward.read_at(0, 10) == LARGE[:10]
        forward.release()

    def test_releasing_it_does_not_wait_for_requests(self) -> None:
        asked, answered = threading.Event(), threading.Event()

        class Slow(Counted):
            def read_at(self, offset: int, length: int) -> bytes:
                if offset >= BLOCK_BYTES:
                    asked.set()
                    answered.wait()
                return super().read_at(offset, length)

        source = SequentialSource(Slow(LARGE))
        source.read_at(0, 2 * MIB)
        source.read_at(2 * MIB, MIB)  # fetches ahead
        assert asked.wait(30)
        source.release()
        answered.set()

    def test_threads_may_share_it(self) -> None:
        forward = SequentialSource(Counted(LARGE))
        with ThreadPoolExecutor(8) as pool:
            read = pool.map(lambda start: forward.read_at(start, MIB), range(0, 30 * MIB, MIB))
            assert b"".join(read) == LARGE[: 30 * MIB]
        forward.release()


class TestTail:
    """Opening with the last bytes."""

    def test_one_request_opens_it_and_brings_the_end(
        self, store: RangeServer | CountedBucket
    ) -> None:
        content = noise(300 * KIB)
        url = store.put("file", content)
        source = open_url(url, store.options, tail=True)
        assert source.size() == len(content)
        assert source.read_at(240 * KIB, 60 * KIB) == content[240 * KIB :]
        assert store.counter.taken() == Traffic(1, 64 * KIB)
        # What is here is not fetched again.
        assert source.read_at(100, len(content) - 100) == content[100:]
        assert store.counter.taken() == Traffic(1, len(content) - 100 - 64 * KIB)
        copy = pickle.loads(pickle.dumps(source))
        assert copy.read_at(len(content) - 5, 5) == content[-5:]
        assert store.counter.taken() == Traffic(1, 64 * KIB)
        for opened in (source, copy):
            opened.close()

    @pytest.mark.parametrize("size", [1, 100, 64 * KIB])
    def test_a_small_file_is_here_at_once(
        self, store: RangeServer | CountedBucket, size: int
    ) -> None:
        source = open_url(store.put("small", noise(size)), store.options, tail=True)
        assert source.read_at(0, size) == noise(size)
        assert store.counter.taken() == Traffic(1, size)
        source.close()

    def test_an_empty_file_opens(self, store: RangeServer | CountedBucket) -> None:
        source = open_url(store.put("empty", b""), store.options, tail=True)
        assert source.size() == 0
        source.close()

    def test_a_server_that_knows_no_suffixes_is_asked_for_the_head(self) -> None:
        with range_server(knows_suffixes=False) as server:
            content = noise(300 * KIB)
            source = HttpSource(server.put("file", content), tail=True)
            assert source.read_at(299 * KIB, KIB) == content[-KIB:]
            asked = [line.partition(" ")[2] for line in server.counter.asked]
            assert asked == ["bytes=-65536", "bytes=0-65535", "bytes=241664-307199"]
            source.close()

    def test_a_missing_file_is_asked_for_once(self, server: RangeServer) -> None:
        url = server.put("file", b"")
        with pytest.raises(ShardIOError) as caught:
            HttpSource(f"{url}.not", tail=True)
        assert caught.value.errno == errno.ENOENT
        assert server.counter.taken().requests == 1


class TestCopies:
    """All of a remote file on the local disk."""

    def test_a_copy_takes_a_request_per_block_and_has_the_name_of_the_url(
        self, store: RangeServer | CountedBucket
    ) -> None:
        url = store.put("file", LARGE)
        with copying_urls():
            source = open_source(url, store.options)
        assert isinstance(source, FileSource)
        assert source.name == url
        assert source.read_at(0, source.size()) == LARGE
        traffic = store.counter.taken()
        assert traffic.sent == len(LARGE)
        assert traffic.requests <= len(LARGE) / BLOCK_BYTES + 2
        source.close()
        outside = open_source(url, store.options)
        assert not isinstance(outside, FileSource)
        outside.close()

    def test_threads_that_help_are_in_the_block_too(self, server: RangeServer) -> None:
        urls = [server.put(f"file{number}", noise(1000, number)) for number in range(6)]
        with copying_urls():
            sources = map_in_order(urls, open_source, 3)
        assert all(isinstance(source, FileSource) for source in sources)
        for source in sources:
            source.close()

    def test_a_url_that_is_opened_again_is_the_same_copy(self, server: RangeServer) -> None:
        url = server.put("file", noise(1000))
        with copying_urls():
            first = open_source(url)
            with copying_urls():
                inner = map_in_order([url] * 5, open_source, 3)
                inner.append(open_source(server.put("other", noise(1000, 1))))
            first.close()
            # What a block has opened stays open behind it, and its own copies are forgotten.
            assert [source.read_at(0, 9) for source in inner[:5]] == [noise(1000)[:9]] * 5
            assert server.counter.taken().requests == 2
            open_source(server.put("other", noise(1000, 1))).close()
        assert server.counter.taken().requests == 1
        for source in inner:
            assert source.size() == 1000
            source.close()

    def test_a_full_disk_names_the_folder_and_the_url(
        self, server: RangeServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        full = os.fdopen(os.open("/dev/full", os.O_WRONLY), "wb", buffering=0)
        monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: full)
        source = open_source(server.put("file", noise(1000)))
        with pytest.raises(ShardIOError, match="TMPDIR") as caught:
            temporary_copy(source)
        assert caught.value.errno == errno.ENOSPC
        assert source.name in str(caught.value)
        source.close()

    def test_nothing_stays_in_the_folder_for_temporary_files(
        self, server: RangeServer, tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        source = open_source(server.put("file", noise(1000)))
        copy = temporary_copy(source)
        assert os.listdir(tmp_path) == []
        assert copy.read_at(0, 1000) == noise(1000)
        copy.close()
        source.close()
