"""The cache of remote files on disk: what it fetches, what it believes, and what happens if a process is killed."""

from __future__ import annotations

import errno
import logging
import os
import pickle
import signal
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest

from shard_format.disk_cache import BLOCK, DiskCache, KnownContent
from shard_format.errors import Closed, InvalidArgument, ShardIOError, Truncated
from shard_format.opening import open_source
from shard_format.remote import is_cached, open_url
from shard_format.sources import can_view
from shard_format.units import byte_count
from tests.shard_format.range_server import RangeServer
from tests.shard_format.support import check_python, noise, run_python

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shard_format.sources import ByteSource

SMALL = noise(3 * BLOCK + 12_345, seed=1)
LARGE = noise(20 * BLOCK + 777, seed=2)

READ_ALL = """
    import hashlib, os, signal, sys
    from shard_format.opening import open_source
    left = int(sys.argv[3])
    write = os.pwrite
    def dying(descriptor, data, offset):
        global left
        left -= 1
        if left == 0:
            write(descriptor, data[: len(data) // 2], offset)
            os.kill(os.getpid(), signal.SIGKILL)
        return write(descriptor, data, offset)
    os.pwrite = dying
    source = open_source(sys.argv[1], {"cache_dir": sys.argv[2]})
    print(hashlib.sha256(source.read_at(0, source.size())).hexdigest())
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RangeServer]:
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "small").write_bytes(SMALL)
    (folder / "large").write_bytes(LARGE)
    with RangeServer(folder) as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def open_(server: RangeServer, name: str, folder: Any, **options: Any) -> ByteSource:  # noqa: ANN401
    return open_source(server.url(name), {"cache_dir": folder, **options})


def test_a_small_file_is_fetched_with_one_request_and_then_never_again(
    server: RangeServer, folder: Path
) -> None:
    source = open_(server, "small", folder)
    assert source.size() == len(SMALL)
    assert source.read_at(BLOCK + 5, 100) == SMALL[BLOCK + 5 : BLOCK + 105]
    assert server.counted() == 2  # one to open it
    assert source.read_at(0, len(SMALL)) == SMALL
    assert server.counted() == 0
    again = open_(server, "small", folder)
    assert again.read_at(0, len(SMALL)) == SMALL
    assert server.counted() == 1  # which asks for the version


def test_of_a_large_file_the_blocks_around_what_is_read_are_fetched(
    server: RangeServer, folder: Path
) -> None:
    source = open_(server, "large", folder)
    server.counted()
    ranges = [(5 * BLOCK - 10, 20), (15 * BLOCK + 3, 7), (0, 0), (5 * BLOCK, 5)]
    assert source.read_ranges(ranges) == [LARGE[at : at + length] for at, length in ranges]  # type: ignore[attr-defined]
    spans = sorted((start, stop) for _, start, stop in server.asked)
    assert spans == [(4 * BLOCK, 6 * BLOCK), (15 * BLOCK, 16 * BLOCK)]
    server.counted()
    assert source.read_at(0, len(LARGE)) == LARGE
    assert sum(stop - start for _, start, stop in server.asked) == len(LARGE) - 3 * BLOCK


def test_reading_the_ends_of_a_file_fetches_nothing_more(server: RangeServer, folder: Path) -> None:
    source = open_(server, "small", folder)
    assert source.read_at(0, 100) == SMALL[:100]
    assert source.read_at(len(SMALL) - 64, 64) == SMALL[-64:]
    assert max(stop - start for _, start, stop in server.asked) <= 1 << 16


def test_an_object_of_the_cache_asks_for_a_version_once(server: RangeServer, folder: Path) -> None:
    cache = DiskCache(folder)
    for _ in range(3):
        assert open_(server, "small", cache).read_at(BLOCK, 9) == SMALL[BLOCK : BLOCK + 9]
    assert server.counted() == 2


def test_a_file_that_is_here_as_a_whole_is_mapped(server: RangeServer, folder: Path) -> None:
    for name, content in (("small", SMALL), ("large", LARGE)):
        source: Any = open_(server, name, folder)
        source.read_at(5, len(content) // 2)
        assert can_view(source) == (name == "small")
        source.read_at(0, len(content))
        view = source.view(7, len(content) - 7)
        source.close()
        assert view == content[7:]
        with pytest.raises(Closed):
            source.view(0, 1)


def test_a_small_file_of_known_content_takes_one_request_and_then_none(
    server: RangeServer, folder: Path
) -> None:
    content = KnownContent(len(SMALL), sha256(SMALL).hexdigest())
    for expected in (1, 0):
        options = {"cache_dir": folder}
        source = open_url(server.url("small"), options, first_read=len(SMALL), known=content)
        assert source.read_at(BLOCK, 50) == SMALL[BLOCK : BLOCK + 50]
        assert source.read_at(0, len(SMALL)) == SMALL
        assert server.counted() == expected
        assert is_cached(server.url("small"), options, content)


@pytest.mark.parametrize("size", [len(SMALL), len(SMALL) - 1])
def test_other_content_than_the_known_one_is_an_error_and_not_kept(
    server: RangeServer, folder: Path, size: int
) -> None:
    options, content = {"cache_dir": folder}, KnownContent(size, "0" * 64)
    source = open_url(server.url("small"), options, known=content)
    with pytest.raises(ShardIOError, match="has changed") as failure:
        source.read_at(BLOCK, 50)
    assert failure.value.errno == errno.ESTALE
    assert not is_cached(server.url("small"), options, content)
    assert all(path.stat().st_blocks == 0 for path in folder.iterdir())


def test_another_version_is_fetched_anew_and_never_mixed(server: RangeServer, folder: Path) -> None:
    cache = DiskCache(folder)
    first = open_(server, "large", cache)
    assert first.read_at(5 * BLOCK, 9) == LARGE[5 * BLOCK : 5 * BLOCK + 9]
    other = noise(len(LARGE), seed=3)
    (server.folder / "large").write_bytes(other)
    os.utime(server.folder / "large", ns=(1, 1))
    assert open_(server, "large", folder).read_at(5 * BLOCK, 9) == other[5 * BLOCK : 5 * BLOCK + 9]
    for source in (first, open_(server, "large", cache)):
        assert source.read_at(5 * BLOCK, 9) == LARGE[5 * BLOCK : 5 * BLOCK + 9]
        with pytest.raises(ShardIOError) as failure:
            source.read_at(9 * BLOCK, 9)
        assert failure.value.errno == errno.ESTALE


def test_it_checks_ranges_and_says_when_it_is_closed(server: RangeServer, folder: Path) -> None:
    source = open_(server, "small", folder)
    for offset, length in ((len(SMALL), 1), (-1, 2), (0, len(SMALL) + 1)):
        with pytest.raises(Truncated):
            source.read_at(offset, length)
    assert source.read_at(len(SMALL), 0) == b""
    copy = pickle.loads(pickle.dumps(source))
    source.close()
    with pytest.raises(Closed):
        source.read_at(0, 1)
    assert copy.read_at(BLOCK, 5) == SMALL[BLOCK : BLOCK + 5]


# --- trouble


@pytest.mark.parametrize("write", [1, 2, 5, 6])
def test_a_killed_process_leaves_no_wrong_bytes(
    server: RangeServer, folder: Path, write: int
) -> None:
    """In the middle of a block, between a block and its checksum, and in the middle of a checksum."""
    url = server.url("small")
    assert run_python(READ_ALL, url, folder, write).returncode == -signal.SIGKILL
    server.counted()
    source = open_(server, "small", folder)
    assert source.read_at(0, len(SMALL)) == SMALL
    # What was complete is not fetched again.
    start = (write - 1) // 2 * BLOCK
    assert [asked[1:] for asked in server.asked[1:]] == [(start, len(SMALL))]


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "longer"])
def test_a_damaged_file_is_noticed_and_fetched_again(
    server: RangeServer, folder: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    open_(server, "small", folder).read_at(BLOCK, 1)
    (path,) = folder.iterdir()
    good = path.read_bytes()
    flipped = bytearray(good)
    flipped[2 * BLOCK + 7] ^= 1
    made = {
        "flipped": bytes(flipped),
        "cut": good[: 2 * BLOCK],
        "empty": b"",
        "longer": good + b"x",
    }
    path.write_bytes(made[damage])
    for _ in range(2):
        assert open_(server, "small", folder).read_at(0, len(SMALL)) == SMALL
    assert path.read_bytes() == good
    assert len(caplog.records) == (damage == "flipped")
    server.counted()
    assert open_(server, "small", folder).read_at(0, len(SMALL)) == SMALL
    assert server.counted() == 1


def test_processes_that_want_the_same_file_at_once_fetch_it_once(
    server: RangeServer, folder: Path
) -> None:
    url = server.url("small")
    with ThreadPoolExecutor(3) as pool:
        sums = pool.map(lambda _: check_python(READ_ALL, url, folder, -1), range(3))
        assert len(set(sums)) == 1
    assert server.counted(larger_than=1 << 16) == 1
    assert open_(server, "small", folder).read_at(0, len(SMALL)) == SMALL


def test_threads_of_one_source_fetch_a_block_once(server: RangeServer, folder: Path) -> None:
    source = open_(server, "small", folder)
    with ThreadPoolExecutor(8) as pool:
        parts = pool.map(lambda _: source.read_at(BLOCK, 1000), range(8))
        assert set(parts) == {SMALL[BLOCK : BLOCK + 1000]}
    assert server.counted(larger_than=1 << 16) == 1


def test_the_files_that_were_opened_longest_ago_go_first(server: RangeServer, folder: Path) -> None:
    cache = DiskCache(folder, 10 * BLOCK)
    for name in "abcd":
        (server.folder / name).write_bytes(noise(3 * BLOCK, seed=ord(name)))
        source = open_(server, name, cache)
        for path in folder.iterdir():  # times that differ whatever the clock of the file system
            os.utime(path, ns=(path.stat().st_mtime_ns - 10**9,) * 2)
        source.read_at(BLOCK, 1)
        held = sum(path.stat().st_blocks * 512 for path in folder.iterdir())
        assert held <= 10 * BLOCK
    server.counted()
    for name in "dcba":
        assert (
            open_(server, name, cache).read_at(BLOCK, 1)
            == noise(3 * BLOCK, ord(name))[BLOCK : BLOCK + 1]
        )
    fetched = [name for name, start, stop in server.asked if stop - start > 1 << 16]
    assert fetched == ["b", "a"] or fetched == ["a"]


def test_a_file_that_does_not_fit_is_read_without_the_cache(
    server: RangeServer, folder: Path
) -> None:
    source = open_(server, "small", folder, cache_bytes="1M")
    assert source.read_at(BLOCK, 50) == SMALL[BLOCK : BLOCK + 50]
    assert sum(path.stat().st_blocks for path in folder.iterdir()) * 512 <= BLOCK


def test_a_full_disk_ends_caching_with_one_warning_and_reading_goes_on(
    server: RangeServer, folder: Path
) -> None:
    script = """
        import logging, resource, signal, sys
        from shard_format.disk_cache import DiskCache
        from shard_format.opening import open_source
        logging.basicConfig(format="%(name)s %(message)s", stream=sys.stdout)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        cache = DiskCache(sys.argv[1])
        sources = [open_source(url, {"cache_dir": cache}) for url in sys.argv[2:]]
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        for source in sources * 2:
            print(source.read_at(1 << 21, 5).hex())
    """
    urls = server.url("small"), server.url("large")
    lines = check_python(script, folder, *urls).splitlines()
    parts = [content[1 << 21 : (1 << 21) + 5].hex() for content in (SMALL, LARGE)]
    (warning,) = (line for line in lines if line.startswith("shard_format"))
    assert "the cache cannot be used" in warning
    assert [line for line in lines if line != warning] == parts * 2


def test_errors_of_the_network_are_raised_and_say_nothing_about_the_cache(
    server: RangeServer, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = DiskCache(folder)
    source = open_(server, "small", cache, retries=0)
    server.before = lambda *_: 503
    with caplog.at_level(logging.WARNING), pytest.raises(ShardIOError, match="503"):
        source.read_at(BLOCK, 5)
    assert not cache.is_off
    assert not caplog.records


def test_arguments_that_cannot_work_are_refused(server: RangeServer, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="a folder on this machine"):
        open_(server, "small", "s3://bucket/cache")
    with pytest.raises(InvalidArgument, match="cache_bytes must be a number of bytes"):
        open_(server, "small", tmp_path / "c", cache_bytes="many")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ShardIOError, match="cannot use this folder as the cache"):
        open_(server, "small", tmp_path / "file")
    assert byte_count("x", "256MB") == byte_count("x", "256 MiB") == 256 << 20
    assert byte_count("x", "7") == byte_count("x", 7) == 7
