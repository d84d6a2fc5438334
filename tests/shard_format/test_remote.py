"""Files behind URLs, against a real server on the loopback that counts, and misbehaves on request.

Expected bytes come from what the server was given. Nothing here sleeps: pauses are recorded instead.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import pickle
import socket
import ssl
import struct
import sys
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_format import ShardReader, ShardWriter
from shard_format._store_relay import relay
from shard_format.errors import (
    BadMagic,
    Closed,
    InvalidArgument,
    MissingExtra,
    ShardIOError,
    Truncated,
)
from shard_format.executors import RemoteTraceback
from shard_format.filters import Filters, Planes
from shard_format.opening import open_source
from shard_format.remote import Fetch, HttpSource, open_url, plan_ranges
from shard_format.sources import FileSource, SupportsReadRanges
from tests.shard_format import test_sources
from tests.shard_format.support import check_python, closed_at_any_line, noise
from tests.stores.servers import Bucket, moto

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shard_format import ByteSource

CONTENT = test_sources.CONTENT
KIB = 1 << 10
HEAD = 64 * KIB
LARGE = noise(700_000, seed=1)


class Server(ThreadingHTTPServer):
    """Serves what is in `files`, by ranges; `script` holds what to do instead, a request each."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {"/content": CONTENT, "/large": LARGE}
        self.versions: dict[str, str] = {}
        self.script: deque[Callable[[Handler], None]] = deque()
        self.always: Callable[[Handler], None] | None = None
        self.requests: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.connections = 0
        self.sent = 0
        self.scheme = "http"

    def url(self, path: str) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_port}{path}"

    def get_request(self) -> tuple[Any, Any]:
        self.connections += 1
        return super().get_request()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as in the base
        """A client that hangs up is part of the tests."""

    def counted(self) -> int:
        """Requests since the last call."""
        count = len(self.requests)
        self.requests.clear()
        return count


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server
    # Without it, headers and body wait for each other.
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: ANN401 - as in the base
        """Quiet."""

    def do_GET(self) -> None:
        self.server.requests.append(f"{self.path} {self.headers.get('Range', '')}")
        self.server.headers.append({key.lower(): value for key, value in self.headers.items()})
        script = self.server.script
        act = script.popleft() if script else self.server.always
        if act is None:
            self.serve()
        else:
            act(self)

    @property
    def content(self) -> bytes | None:
        path = self.path.removeprefix(f"http://127.0.0.1:{self.server.server_port}")
        return self.server.files.get(path.partition("?")[0])

    def span(self) -> tuple[int, int]:
        """What is asked for and there."""
        first, last = self.headers["Range"].removeprefix("bytes=").split("-")
        size = len(self.content or b"")
        if not first:
            return max(0, size - int(last)), size
        return int(first), min(int(last) + 1, size)

    def serve(self, **changes: str) -> None:
        """The right answer, with some headers changed or, where empty, left out."""
        content = self.content
        if content is None:
            self.answer(404)
            return
        start, stop = self.span()
        if start >= len(content):
            self.answer(416, {"Content-Range": f"bytes */{len(content)}"})
            return
        headers = {
            "Content-Range": f"bytes {start}-{stop - 1}/{len(content)}",
            "ETag": self.server.versions.get(self.path, '"one"'),
        }
        changed = {key.replace("_", "-"): value for key, value in changes.items()}
        self.answer(206, headers | changed, content[start:stop])

    def answer(self, status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        self.begin(status, {"Content-Length": str(len(body))} | (headers or {}))
        # Before they are: the client may look as soon as it has them.
        self.server.sent += len(body)
        self.wfile.write(body)

    def begin(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in headers.items():
            if value:
                self.send_header(key, value)
        self.end_headers()


# --- what a server may do instead


def status(code: int, **headers: str) -> Callable[[Handler], None]:
    fields = {key.replace("_", "-"): value for key, value in headers.items()}
    return lambda handler: handler.answer(code, fields)


def right(**changes: str) -> Callable[[Handler], None]:
    return lambda handler: handler.serve(**changes)


def whole(handler: Handler) -> None:
    """No ranges, as Python's own server."""
    handler.answer(200, {}, handler.content or b"")


def hang_up(handler: Handler) -> None:
    handler.close_connection = True


def reset(handler: Handler) -> None:
    """An RST instead of an answer."""
    linger = struct.pack("ii", 1, 0)
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    handler.connection.close()
    handler.close_connection = True


def serve_then_close(handler: Handler) -> None:
    """Does not say that the connection ends."""
    handler.serve()
    handler.close_connection = True


def cut(count: int) -> Callable[[Handler], None]:
    """Promises the body and sends `count` bytes of it."""

    def act(handler: Handler) -> None:
        start, stop = handler.span()
        content = handler.content or b""
        headers = {
            "Content-Range": f"bytes {start}-{stop - 1}/{len(content)}",
            "Content-Length": str(stop - start),
            "ETag": '"one"',
        }
        handler.begin(206, headers)
        handler.wfile.write(content[start : start + count])
        handler.close_connection = True

    return act


def chunked(
    code: int, *, extra: bytes = b"", end: bytes = b"0\r\n\r\n"
) -> Callable[[Handler], None]:
    def act(handler: Handler) -> None:
        content = handler.content or b""
        start, stop = handler.span() if code == 206 else (0, len(content))
        headers = {"Transfer-Encoding": "chunked", "ETag": '"one"'}
        if code == 206:
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
        handler.begin(code, headers)
        body = content[start:stop] + extra
        for position in range(0, len(body), 9_999):
            piece = body[position : position + 9_999]
            handler.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        handler.wfile.write(end)
        if not end:
            handler.close_connection = True

    return act


def slowly(handler: Handler) -> None:
    """The body in pieces with pauses between them."""
    start, stop = handler.span()
    content = handler.content or b""
    headers = {
        "Content-Range": f"bytes {start}-{stop - 1}/{len(content)}",
        "Content-Length": str(stop - start),
        "ETag": '"one"',
    }
    handler.begin(206, headers)
    for position in range(start, stop, 10_000):
        handler.wfile.write(content[position : min(position + 10_000, stop)])
        time.sleep(0.005)


@pytest.fixture
def server() -> Iterator[Server]:
    with running(Server()) as server:
        yield server


class running:
    def __init__(self, server: Server) -> None:
        self.server = server

    def __enter__(self) -> Server:
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()
        return self.server

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that would have been made; and no proxy or credentials of the machine."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name.startswith("AWS_"):
            monkeypatch.delenv(name)
    made: list[float] = []
    monkeypatch.setattr("shard_format.http._sleep", made.append)
    return made


@pytest.fixture
def source(request: pytest.FixtureRequest) -> Iterator[ByteSource]:
    """Each kind of remote source over the bytes of the contract suite."""
    if request.param == "ObjectStoreSource":
        store = request.getfixturevalue("bucket")
        opened = open_url(store.put("content", CONTENT), store.options)
    else:
        server = request.getfixturevalue("server")
        server.always = KINDS[request.param]
        opened = HttpSource(server.url("/content"))
    yield opened
    opened.close()


KINDS: dict[str, Callable[[Handler], None] | None] = {
    "HttpSource": None,
    "HttpSource of a slow server": slowly,
    "HttpSource of chunks": chunked(206),
    "HttpSource without keep-alive": right(Connection="close"),
    "HttpSource of a silent close": serve_then_close,
    "HttpSource without ranges": whole,
}


@pytest.mark.parametrize("source", [*KINDS, "ObjectStoreSource"], indirect=True)
class TestContract(test_sources.TestContract):
    """What every source must do."""

    def test_ranges_come_in_the_asked_order(self, source: ByteSource) -> None:
        assert isinstance(source, SupportsReadRanges)
        ranges = [(99_990, 10), (0, 10), (70_000, 0), (80_000, 5_000), (65_000, 1_000), (0, 10)]
        expected = [CONTENT[offset : offset + length] for offset, length in ranges]
        assert source.read_ranges(ranges) == expected
        assert source.read_ranges([]) == []
        with pytest.raises(Truncated):
            source.read_ranges([(0, 10), (99_999, 2)])

    def test_a_closed_source_says_closed(self, source: ByteSource) -> None:
        source.close()
        for offset in (0, 90_000):
            with pytest.raises(Closed):
                source.read_at(offset, 5)

    def test_it_pickles_as_its_url(self, source: ByteSource) -> None:
        again = pickle.loads(pickle.dumps(source))
        assert type(again) is type(source)
        assert again.read_at(90_000, 10) == CONTENT[90_000:90_010]
        again.close()

    def test_its_repr_is_short(self, source: ByteSource) -> None:
        assert len(repr(source)) < 200
        assert source.name in repr(source)


@pytest.mark.parametrize("source", ["HttpSource", "ObjectStoreSource"], indirect=True)
def test_another_thread_may_close_it_at_any_moment(source: ByteSource) -> None:
    pickled = pickle.dumps(source)
    wanted = [(70_000, 600), (70_600, 400)]
    lines = closed_at_any_line(
        lambda: pickle.loads(pickled),
        lambda opened: b"".join(opened.read_ranges(wanted)),
        CONTENT[70_000:71_000],
    )
    assert lines > 10


class TestPlan:
    """Which requests serve which ranges."""

    def test_near_ranges_share_a_request(self) -> None:
        plan = plan_ranges([(100, 10), (0, 10), (20, 5)], gap=10)
        assert plan == [Fetch(0, 25, (1, 2)), Fetch(100, 110, (0,))]

    def test_the_gap_may_be_reached_and_not_exceeded(self) -> None:
        assert len(plan_ranges([(0, 10), (20, 10)], gap=10)) == 1
        assert len(plan_ranges([(0, 10), (21, 10)], gap=10)) == 2

    def test_overlapping_and_equal_ranges_are_fetched_once(self) -> None:
        assert plan_ranges([(5, 10), (0, 10), (5, 10), (6, 1)], gap=0) == [
            Fetch(0, 15, (1, 0, 2, 3))
        ]

    def test_a_request_grows_only_up_to_the_limit(self) -> None:
        assert len(plan_ranges([(0, 60), (60, 60)], gap=0, most=100)) == 2
        assert plan_ranges([(0, 1_000)], most=100) == [Fetch(0, 1_000, (0,))]

    def test_nothing_needs_no_request(self) -> None:
        assert plan_ranges([]) == plan_ranges([(5, 0), (0, 0)]) == []

    @given(
        st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 300)), max_size=30),
        st.integers(0, 200),
        st.integers(1, 1_000),
    )
    def test_every_range_is_inside_the_one_request_that_serves_it(
        self, ranges: list[tuple[int, int]], gap: int, most: int
    ) -> None:
        plan = plan_ranges(ranges, gap=gap, most=most)
        served = [position for part in plan for position in part.members]
        assert sorted(served) == [number for number, (_, length) in enumerate(ranges) if length]
        for part in plan:
            inside = [ranges[position] for position in part.members]
            assert part.start == min(offset for offset, _ in inside)
            assert part.stop == max(offset + length for offset, length in inside)
            assert len(inside) == 1 or part.stop - part.start <= most
        assert [part.start for part in plan] == sorted(part.start for part in plan)


@pytest.fixture
def shard(tmp_path: Path, server: Server) -> str:
    """The URL of a Shard file, about 1 MB."""
    path = tmp_path / "a.shard"
    with ShardWriter(path, fsync=False) as writer:
        writer.write_entry("raw", LARGE)
        writer.write_entry("packed", noise(9_000) * 40, compression="zstd")
        for number in range(20):
            writer.write_entry(f"small/{number}", noise(500, number))
        writer.write_entry("last", noise(200_000))
    server.files["/a.shard"] = path.read_bytes()
    return server.url("/a.shard")


class TestReader:
    """A reader over a URL."""

    def test_opening_takes_one_request_and_reading_an_entry_one_more(
        self, shard: str, server: Server
    ) -> None:
        with ShardReader(shard) as reader:
            assert reader.name == shard
            assert "raw" in reader.names()
            assert server.counted() == 1
            assert server.sent == HEAD
            assert reader.read_entry("last") == noise(200_000)
            assert server.counted() == 1
            assert server.sent == HEAD + 200_000
            assert reader.read_entry("small/7") == noise(500, 7)
            assert server.counted() == 1
            assert reader.read_range("raw", 500_000, 500_100) == LARGE[500_000:500_100]
            assert server.counted() == 1
        assert server.connections == 1

    def test_the_first_bytes_are_not_fetched_again(self, shard: str, server: Server) -> None:
        with ShardReader(shard) as reader:
            server.counted()
            assert reader.read_entry("raw") == LARGE
            assert server.requests == [
                f"/a.shard bytes={HEAD}-{reader.info('raw').data_offset + 699_999}"
            ]

    def test_many_near_entries_take_one_request(self, shard: str, server: Server) -> None:
        names = [f"small/{number}" for number in (3, 19, 0, 7)]
        with ShardReader(shard) as reader:
            server.counted()
            found = reader.read_many(names)
        assert found == [noise(500, number) for number in (3, 19, 0, 7)]
        assert server.counted() == 1

    def test_small_entries_that_are_read_one_after_the_other_come_64_kib_at_a_time(
        self, tmp_path: Path, server: Server
    ) -> None:
        path = tmp_path / "many.shard"
        with ShardWriter(path, fsync=False) as writer:
            writer.write_entry("large", noise(HEAD))
            for number in range(90):
                writer.write_entry(f"{number:02d}", noise(2000, number))
        server.files["/many.shard"] = path.read_bytes()
        with ShardReader(server.url("/many.shard")) as reader:
            server.counted()
            for number in range(90):
                assert reader.read_entry(f"{number:02d}") == noise(2000, number)
        assert server.counted() == 4

    def test_entries_far_apart_are_fetched_side_by_side(self, server: Server) -> None:
        meeting = threading.Barrier(3, timeout=10)

        def meet(handler: Handler) -> None:
            meeting.wait()
            handler.serve()

        source = HttpSource(server.url("/large"))
        server.script.extend([meet, meet, meet])
        ranges = [(600_000, 10), (200_000, 10), (400_000, 10)]
        assert source.read_ranges(ranges) == [LARGE[at : at + 10] for at, _ in ranges]
        source.close()

    def test_a_compressed_entry_is_read_with_the_block_of_its_seek_table(
        self, shard: str, server: Server
    ) -> None:
        with ShardReader(shard) as reader:
            server.counted()
            assert reader.read_entry("packed") == noise(9_000) * 40
        assert server.counted() == 1

    @pytest.mark.parametrize("filters", [None, Filters(planes=Planes(4))])
    def test_a_large_compressed_entry_is_read_whole_with_one_request(
        self, tmp_path: Path, server: Server, filters: Filters | None
    ) -> None:
        """Its seek table is taken from what was fetched; a part is found by the table alone."""
        path = tmp_path / "large.shard"
        content = LARGE + bytes(600_000)
        with ShardWriter(path, fsync=False) as writer:
            writer.write_entry("first", noise(HEAD))
            for name, frame_bytes in (("frames", 100_000), ("one", None)):
                writer.write_entry(
                    name, content, compression="zstd", frame_bytes=frame_bytes, filters=filters
                )
            writer.write_entry("last", noise(HEAD))
        server.files["/large.shard"] = path.read_bytes()
        out = bytearray(len(content))
        with ShardReader(server.url("/large.shard")) as reader, ShardReader(path) as local:
            assert len(local.seek_table("frames") or ()) == 13
            server.counted()
            for name in ("frames", "one"):
                assert reader.read_entry(name) == content
                assert server.counted() == 1
                reader.read_into(name, out)
                assert out == content
                assert server.counted() == 1
            assert reader.read_range("frames", 50_000, 50_010) == content[50_000:50_010]
            assert server.counted() <= 3

    def test_it_verifies(self, shard: str) -> None:
        with ShardReader(shard) as reader:
            reader.verify()

    def test_a_long_head_takes_one_more_request(self, tmp_path: Path, server: Server) -> None:
        path = tmp_path / "long.shard"
        with ShardWriter(path, fsync=False) as writer:
            for number in range(5_000):
                writer.write_entry(f"entry/{number:05}", b"x")
        server.files["/long.shard"] = path.read_bytes()
        with ShardReader(server.url("/long.shard")) as reader:
            assert len(reader) == 5_000
            assert reader.read_entry("entry/00000") == b"x"
        assert len(server.requests) <= 3
        assert server.requests[1].startswith(f"/long.shard bytes={HEAD}-")

    def test_it_pickles_and_opens_again_with_one_request(self, shard: str, server: Server) -> None:
        with ShardReader(shard) as reader:
            state = pickle.dumps(reader)
        server.counted()
        with pickle.loads(state) as again:
            assert server.counted() == 1
            assert again.read_entry("last") == noise(200_000)

    def test_threads_share_it(self, shard: str, server: Server) -> None:
        with ShardReader(shard) as reader, ThreadPoolExecutor(8) as pool:
            jobs = [f"small/{number % 20}" for number in range(100)]
            found = list(pool.map(reader.read_entry, jobs))
        assert found == [noise(500, number % 20) for number in range(100)]
        assert server.connections <= 40

    def test_a_forked_process_makes_connections_of_its_own(
        self, shard: str, server: Server
    ) -> None:
        script = """
        import os, sys
        from shard_format import ShardReader

        reader = ShardReader(sys.argv[1])
        first = reader.read_entry("last")
        children = []
        for number in range(3):
            child = os.fork()
            if child == 0:
                same = all(reader.read_entry("last") == first for _ in range(10))
                os._exit(0 if same else 1)
            children.append(child)
        assert all(reader.read_entry("last") == first for _ in range(10))
        assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
        print("same")
        """
        assert check_python(script, shard) == "same\n"
        assert server.connections == 4

    def test_a_damaged_file_is_an_error_with_the_url(self, server: Server) -> None:
        with pytest.raises(BadMagic) as caught:
            ShardReader(server.url("/content"))
        assert caught.value.path == server.url("/content")

    def test_an_empty_file_is_a_source_of_nothing(self, server: Server) -> None:
        server.files["/empty"] = b""
        source = HttpSource(server.url("/empty"))
        assert source.size() == 0
        assert source.read_at(0, 0) == b""
        with pytest.raises(Truncated):
            source.read_at(0, 1)
        source.close()


def failure(call: Callable[[], object]) -> ShardIOError:
    """The error of a call that must fail."""
    with pytest.raises(ShardIOError) as caught:
        call()
    return caught.value


class TestRetries:
    """What passes by itself."""

    @pytest.mark.parametrize("code", [408, 425, 429, 500, 502, 503, 504])
    def test_a_server_that_is_busy_twice_is_asked_a_third_time(
        self, server: Server, pauses: list[float], code: int
    ) -> None:
        server.script.extend([status(code), status(code)])
        source = HttpSource(server.url("/content"))
        server.script.extend([status(code), status(code)])
        assert source.read_at(90_000, 5_000) == CONTENT[90_000:95_000]
        assert server.counted() == 6
        assert len(pauses) == 4
        assert 0 < pauses[0] < pauses[1] < 1
        source.close()

    @pytest.mark.parametrize(
        "broken",
        [hang_up, reset, cut(0), cut(1), cut(4_999), chunked(206, end=b"")],
        ids=["hang up", "reset", "no body", "one byte", "all but one", "no last chunk"],
    )
    def test_a_broken_connection_is_made_again(
        self, server: Server, broken: Callable[[Handler], None]
    ) -> None:
        source = HttpSource(server.url("/content"))
        server.script.extend([broken, broken])
        assert source.read_at(90_000, 5_000) == CONTENT[90_000:95_000]
        source.close()

    @pytest.mark.parametrize("broken", [hang_up, reset, cut(0), cut(1_000)])
    def test_so_it_is_while_opening(
        self, server: Server, broken: Callable[[Handler], None]
    ) -> None:
        server.script.extend([broken, broken])
        source = HttpSource(server.url("/content"))
        assert source.read_at(0, 70_000) == CONTENT[:70_000]
        source.close()

    def test_reading_goes_on_where_it_broke(self, server: Server) -> None:
        source = HttpSource(server.url("/large"))
        server.counted()
        server.script.extend([cut(100_000), cut(50_000)])
        assert source.read_at(100_000, 300_000) == LARGE[100_000:400_000]
        assert server.requests == [
            f"/large bytes={start}-399999" for start in (100_000, 200_000, 250_000)
        ]
        source.close()

    def test_the_tries_are_bounded(self, server: Server, pauses: list[float]) -> None:
        server.always = status(503)
        error = failure(lambda: HttpSource(server.url("/content"), retries=2))
        assert "503" in str(error)
        assert server.url("/content") in str(error)
        assert server.counted() == 3
        assert len(pauses) == 2

    def test_no_retries_means_none(self, server: Server, pauses: list[float]) -> None:
        server.script.append(cut(10))
        error = failure(lambda: HttpSource(server.url("/content"), retries=0))
        assert error.found == "10 bytes"
        assert server.counted() == 1
        assert pauses == []

    @pytest.mark.parametrize(
        ("after", "pause"), [("7", 7), ("50", 50), ("soon", 0.2), ("9" * 5_000, 0.2)]
    )
    def test_the_servers_wish_for_a_pause_is_honoured(
        self, server: Server, pauses: list[float], after: str, pause: float
    ) -> None:
        server.script.append(status(429, Retry_After=after))
        HttpSource(server.url("/content")).close()
        assert pauses == [pytest.approx(pause, rel=0.5)]

    def test_a_connection_that_the_server_closed_meanwhile_costs_no_pause(
        self, server: Server, pauses: list[float]
    ) -> None:
        source = HttpSource(server.url("/content"), retries=0)
        for _ in range(3):
            server.script.append(serve_then_close)
            assert source.read_at(90_000, 5_000) == CONTENT[90_000:95_000]
        assert pauses == []
        source.close()

    def test_a_server_that_does_not_answer_is_given_up(self, server: Server) -> None:
        release = threading.Event()
        server.always = lambda handler: cast("None", release.wait(10))
        error = failure(lambda: HttpSource(server.url("/content"), timeout=0.02, retries=1))
        release.set()
        assert error.errno == errno.ETIMEDOUT
        assert server.counted() == 2

    def test_a_server_that_is_not_there_is_an_io_error(self, server: Server) -> None:
        url = server.url("/content")
        with running(Server()) as other:
            gone = other.url("/content")
        error = failure(lambda: HttpSource(gone, retries=1))
        assert error.errno == errno.ECONNREFUSED
        assert gone in str(error)
        assert url not in str(error)

    @pytest.mark.parametrize(
        ("code", "tries"), [(socket.EAI_AGAIN, 2), (socket.EAI_NONAME, 1)], ids=["later", "never"]
    )
    def test_a_name_that_cannot_be_resolved_is_an_io_error(
        self, monkeypatch: pytest.MonkeyPatch, code: int, tries: int
    ) -> None:
        asked = []

        def resolve(host: str, *rest: object) -> None:
            asked.append(host)
            raise socket.gaierror(code, "no such name")

        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        error = failure(lambda: HttpSource("http://host.invalid/x", retries=1))
        assert error.errno == errno.EHOSTUNREACH
        assert asked == ["host.invalid"] * tries

    @pytest.mark.parametrize(
        ("code", "number"),
        [
            (400, errno.EIO),
            (401, errno.EACCES),
            (403, errno.EACCES),
            (404, errno.ENOENT),
            (410, errno.ENOENT),
            (501, errno.EIO),
            (204, errno.EIO),
            (304, errno.EIO),
        ],
    )
    def test_a_refusal_is_final(
        self, server: Server, pauses: list[float], code: int, number: int
    ) -> None:
        server.always = status(code)
        error = failure(lambda: HttpSource(server.url("/content")))
        assert (error.errno, error.path) == (number, server.url("/content"))
        assert str(code) in str(error)
        assert server.counted() == 1
        assert pauses == []


class TestChange:
    """A file that is replaced while it is open."""

    def refused(self, server: Server, source: HttpSource) -> ShardIOError:
        server.counted()
        error = failure(lambda: source.read_at(90_000, 5_000))
        assert server.counted() == 1
        source.close()
        assert error.errno == errno.ESTALE
        assert "open it again" in str(error)
        return error

    def test_another_etag_is_an_error(self, server: Server) -> None:
        source = HttpSource(server.url("/content"))
        server.files["/content"] = noise(100_000, seed=9)
        server.versions["/content"] = '"two"'
        error = self.refused(server, source)
        assert (error.expected, error.found) == ('ETag "one"', 'ETag "two"')

    def test_what_the_server_says_is_made_printable(self, server: Server) -> None:
        source = HttpSource(server.url("/content"))
        server.script.append(right(ETag="\x1b[31m" + "x" * 9_000))
        text = str(self.refused(server, source))
        assert text.isprintable()
        assert len(text) < 400

    @pytest.mark.parametrize("size", [99_999, 100_001, 80_000])
    def test_another_size_is_an_error(self, server: Server, size: int) -> None:
        server.always = right(ETag="")
        source = HttpSource(server.url("/content"))
        server.files["/content"] = noise(size)
        self.refused(server, source)

    def test_without_etags_the_date_tells(self, server: Server) -> None:
        server.always = right(ETag="", Last_Modified="Mon, 01 Jan 2024 00:00:00 GMT")
        source = HttpSource(server.url("/content"))
        assert source.read_at(90_000, 5_000) == CONTENT[90_000:95_000]
        server.always = right(ETag="", Last_Modified="Mon, 01 Jan 2024 00:00:01 GMT")
        self.refused(server, source)

    def test_the_etag_counts_more_than_the_date(self, server: Server) -> None:
        server.script.append(right(Last_Modified="Mon, 01 Jan 2024 00:00:00 GMT"))
        source = HttpSource(server.url("/content"))
        server.script.append(right(Last_Modified="Mon, 01 Jan 2024 00:00:09 GMT"))
        assert source.read_at(90_000, 5_000) == CONTENT[90_000:95_000]
        source.close()

    def test_a_weakened_etag_is_the_same(self, server: Server) -> None:
        source = HttpSource(server.url("/content"))
        server.script.append(right(ETag='W/"one"'))
        assert source.read_at(90_000, 5_000) == CONTENT[90_000:95_000]
        source.close()

    def test_a_change_in_the_middle_of_a_read_mixes_nothing(self, server: Server) -> None:
        source = HttpSource(server.url("/large"))

        def cut_and_change(handler: Handler) -> None:
            cut(100_000)(handler)
            server.versions["/large"] = '"two"'

        server.script.append(cut_and_change)
        assert failure(lambda: source.read_at(100_000, 300_000)).errno == errno.ESTALE
        source.close()

    def test_ranges_notice_it_too(self, server: Server) -> None:
        source = HttpSource(server.url("/large"))
        server.versions["/large"] = '"two"'
        error = failure(lambda: source.read_ranges([(300_000, 10), (500_000, 10), (690_000, 10)]))
        assert error.errno == errno.ESTALE
        source.close()


class TestBadServers:
    """Servers that are no use, or mean harm."""

    def refused(self, server: Server, number: int) -> str:
        error = failure(lambda: HttpSource(server.url("/content")))
        assert error.errno == number
        assert error.hint
        assert error.path == server.url("/content")
        assert server.counted() == 1
        return str(error)

    def test_a_small_file_without_ranges_is_read_whole(self, server: Server) -> None:
        for act in (whole, chunked(200)):
            server.always = act
            server.counted()
            source = HttpSource(server.url("/content"))
            assert source.read_at(50_000, 50_000) == CONTENT[50_000:]
            assert server.counted() == 1
            source.close()

    def test_a_large_file_without_ranges_is_refused_unread(self, server: Server) -> None:
        for size in (64 * KIB * KIB + 1, 10**18):
            headers = {"Content-Length": str(size), "Connection": "close"}
            server.always = partial(Handler.begin, status=200, headers=headers)
            text = self.refused(server, errno.EOPNOTSUPP)
            assert "does not honour Range requests" in text
            assert "download the file" in text

    def test_an_endless_body_is_read_only_up_to_the_limit(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("shard_format._http_source._MOST_WHOLE", 50_000)
        server.always = chunked(200)
        assert "found more" in self.refused(server, errno.EOPNOTSUPP)

    def test_a_body_of_unknown_length_is_refused(self, server: Server) -> None:
        server.always = lambda handler: handler.begin(200, {"Connection": "close"})
        assert "nor tells the size" in self.refused(server, errno.EOPNOTSUPP)

    def test_a_server_that_forgets_ranges_later_is_refused(self, server: Server) -> None:
        source = HttpSource(server.url("/content"))
        server.script.append(whole)
        error = failure(lambda: source.read_at(90_000, 5_000))
        assert error.errno == errno.EOPNOTSUPP
        assert source.read_at(90_000, 5_000) == CONTENT[90_000:95_000]
        source.close()

    @pytest.mark.parametrize(
        "changes",
        [
            {"Content_Range": ""},
            {"Content_Range": "bytes 0-65535/*"},
            {"Content_Range": "bytes 1-65536/100000"},
            {"Content_Range": "bytes 0-65534/100000"},
            {"Content_Range": "bytes 0-99999/100000"},
            {"Content_Range": "bytes 0-65535/60000"},
            {"Content_Range": "bytes 65535-0/100000"},
            {"Content_Range": f"bytes 0-65535/{'9' * 5_000}"},
            {"Content_Range": "lines 0-65535/100000"},
            {"Content_Length": "65535"},
            {"Content_Length": "65537"},
            {"Content_Length": "9" * 18},
            {"Content_Encoding": "gzip"},
        ],
        ids=str,
    )
    def test_an_answer_that_does_not_fit_is_refused(
        self, server: Server, changes: dict[str, str]
    ) -> None:
        server.always = right(**changes)
        self.refused(server, errno.EPROTO)

    @pytest.mark.parametrize(
        "changes",
        [
            {"Content_Range": ""},
            {"Content_Range": "bytes 0-4999/100000"},
            {"Content_Range": "bytes 90000-94998/100000"},
            {"Content_Length": "4999"},
            {"Content_Length": "9" * 18},
            {"Content_Encoding": "br"},
        ],
        ids=str,
    )
    def test_so_it_is_after_opening(self, server: Server, changes: dict[str, str]) -> None:
        source = HttpSource(server.url("/content"))
        server.script.append(right(**changes))
        assert failure(lambda: source.read_at(90_000, 5_000)).errno == errno.EPROTO
        assert source.read_at(90_000, 5_000) == CONTENT[90_000:95_000]
        source.close()

    def test_what_follows_a_body_is_not_taken_for_the_next_answer(self, server: Server) -> None:
        source = HttpSource(server.url("/content"))
        server.script.append(chunked(206, extra=b"more than was asked for"))
        assert source.read_at(90_000, 5_000) == CONTENT[90_000:95_000]
        assert source.read_at(80_000, 5_000) == CONTENT[80_000:85_000]
        source.close()

    @pytest.mark.parametrize(
        "answer",
        [b"", b"SSH-2.0-server\r\n", b"HTTP/1.1 abc\r\n\r\n", b"\0" * 100_000, b"HTTP/1.1 206 OK\r\n" + b"a: b\r\n" * 500],
        ids=["nothing", "ssh", "no status", "zeros", "many headers"],
    )  # fmt: skip
    def test_noise_is_an_io_error(self, server: Server, answer: bytes) -> None:
        def act(handler: Handler) -> None:
            handler.wfile.write(answer)
            handler.close_connection = True

        server.always = act
        error = failure(lambda: HttpSource(server.url("/content"), retries=1))
        assert error.path == server.url("/content")

    def test_the_reason_of_a_refusal_is_made_printable(self, server: Server) -> None:
        def act(handler: Handler) -> None:
            handler.wfile.write(b"HTTP/1.1 418 \x1b[31mred" + b"x" * 900 + b"\r\n\r\n")
            handler.close_connection = True

        server.always = act
        text = str(failure(lambda: HttpSource(server.url("/content"))))
        assert text.isprintable()
        assert len(text) < 300


class TestRedirects:
    """A file that is somewhere else."""

    def test_they_are_followed_and_remembered(self, server: Server) -> None:
        server.script.append(status(302, Location="/content"))
        source = HttpSource(server.url("/moved"))
        assert server.counted() == 2
        assert source.name == server.url("/moved")
        assert source.read_at(90_000, 5_000) == CONTENT[90_000:95_000]
        assert server.requests == ["/content bytes=90000-94999"]
        assert server.connections == 1
        source.close()

    @pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
    def test_five_are_followed_and_not_six(self, server: Server, code: int) -> None:
        server.script.extend([status(code, Location="/content")] * 5)
        HttpSource(server.url("/content")).close()
        assert server.counted() == 6
        server.always = status(code, Location="/content")
        error = failure(lambda: HttpSource(server.url("/content")))
        assert error.errno == errno.ELOOP
        assert server.counted() == 6

    def test_an_address_that_has_expired_is_asked_for_again(self, server: Server) -> None:
        server.script.append(status(302, Location="/content?signature=1"))
        source = HttpSource(server.url("/moved"))
        server.script.extend([status(403), status(302, Location="/content?signature=2")])
        server.counted()
        assert source.read_at(90_000, 5_000) == CONTENT[90_000:95_000]
        assert [line.split()[0] for line in server.requests] == [
            "/content?signature=1",
            "/moved",
            "/content?signature=2",
        ]
        server.always = status(403)
        assert failure(lambda: source.read_at(90_000, 5_000)).errno == errno.EACCES
        source.close()

    @pytest.mark.parametrize(
        "location",
        ["file:///etc/passwd", "ftp://host/file", "", "http://[", "gopher:x", "http://a b/"],
    )
    def test_only_web_addresses_are_followed(self, server: Server, location: str) -> None:
        server.always = status(302, Location=location)
        error = failure(lambda: HttpSource(server.url("/content")))
        assert error.errno == errno.EPROTO
        assert server.counted() == 1

    def test_secrets_go_only_to_the_server_they_are_for(self, server: Server) -> None:
        with running(Server()) as other:
            server.script.append(status(302, Location=other.url("/content")))
            url = server.url("/content").replace("//", "//user:pass@")
            source = HttpSource(url, headers={"X-Api-Key": "hidden", "user-agent": "mine"})
            assert source.read_at(90_000, 5_000) == CONTENT[90_000:95_000]
            source.close()
            assert server.headers[0]["authorization"] == "Basic dXNlcjpwYXNz"
            assert server.headers[0]["x-api-key"] == "hidden"
            assert server.headers[0]["user-agent"] == "mine"
            assert len(other.headers) == 2
            assert not {"authorization", "x-api-key"} & other.headers[0].keys()
            assert other.headers[0]["user-agent"].startswith("shard-format/")


class TestSecrets:
    """What may be secret is sent and not shown."""

    def test_names_and_errors_leave_it_out(self, server: Server) -> None:
        url = server.url("/content?token=hidden").replace("//", "//user:hidden@")
        source = HttpSource(url, headers={"Authorization": "Bearer hidden"})
        assert server.requests == ["/content?token=hidden bytes=0-65535"]
        assert server.headers[0]["authorization"] == "Bearer hidden"
        assert source.name == server.url("/content?…")
        server.always = status(403)
        error = failure(lambda: source.read_at(90_000, 5))
        assert "hidden" not in f"{source!r} {source.name} {error} {error!r} {error.filename}"
        source.close()

    def test_a_redirect_is_shown_without_it(self, server: Server) -> None:
        server.always = status(302, Location="ftp://user:hidden@host/path?token=hidden")
        error = failure(lambda: HttpSource(server.url("/content")))
        assert "ftp://host/path?…" in str(error)
        assert "hidden" not in str(error)

    @pytest.mark.parametrize(
        "url",
        ["http://user:hid/den@host/", "http://user:hid?den@host/", "http://user:hidden@[/path"],
    )
    def test_a_malformed_url_is_not_shown(self, url: str) -> None:
        with pytest.raises(InvalidArgument) as caught:
            open_source(url)
        assert "hid" not in str(caught.value)

    @pytest.mark.parametrize(
        "headers",
        [
            {"A": "hidden\r\nB: c"},
            {"A\r\nB": "c"},
            {"A": "hidden\0"},
            {"A": "hidden…"},
            {"A:": "b"},
            {"": "b"},
            {"range": "bytes=0-1"},
            {"Accept-Encoding": "gzip"},
            {"A": "\x7f"},
        ],
        ids=str,
    )
    def test_headers_that_cannot_be_sent_are_refused(
        self, server: Server, headers: dict[str, Any]
    ) -> None:
        with pytest.raises(InvalidArgument) as caught:
            HttpSource(server.url("/content"), headers=headers)
        assert "hidden" not in str(caught.value)
        assert server.counted() == 0


class TestUrls:
    """Which strings are URLs, and of what."""

    @pytest.mark.parametrize(
        "url",
        [
            "http://",
            "http:///path",
            "http://host:port/path",
            "http://host:99999/path",
            "http://[::1/path",
            "http://ho st/path",
            f"http://{'a' * 300}.com/",
            "http://\0/",
            "http://host/\ud800",
        ],
    )
    def test_a_malformed_one_is_an_invalid_argument(self, url: str) -> None:
        with pytest.raises(InvalidArgument):
            open_source(url)

    @pytest.mark.parametrize("url", ["ftp://host/file", "gopher://x", "shard+http://host/"])
    def test_an_unknown_scheme_lists_the_known_ones(self, url: str) -> None:
        with pytest.raises(InvalidArgument) as caught:
            open_source(url)
        for scheme in ("http", "https", "s3", "gs", "az", "abfs", "abfss", "hf", "file", "memory"):
            assert f"{scheme}://" in str(caught.value)
        assert "pathlib.Path" in str(caught.value)

    @pytest.mark.parametrize(
        "name", ["a:b", "C:data", "12:30", "s3:key", "x:/y", "9p://x", "C://x"]
    )
    def test_other_paths_with_a_colon_stay_paths(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        monkeypatch.chdir(tmp_path)
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(CONTENT)
        for given_path in (name, path, f"./{name}", str(path.absolute())):
            source = open_source(given_path)
            assert isinstance(source, FileSource)
            source.close()

    def test_a_path_object_is_never_a_url(self) -> None:
        with pytest.raises(ShardIOError) as caught:
            open_source(Path("http://host/file"))
        assert caught.value.errno == errno.ENOENT

    @pytest.mark.parametrize("form", ["file://{}", "file://localhost{}", "FILE://{}"])
    def test_file_urls_are_files(self, tmp_path: Path, form: str) -> None:
        path = tmp_path / "a b%?#ü"
        path.write_bytes(CONTENT)
        source = open_source(form.format(path.as_uri().removeprefix("file://")))
        assert isinstance(source, FileSource)
        assert source.name == str(path)
        source.close()

    @pytest.mark.parametrize("url", ["file://host/path", "file:///path?query", "file:///path#part"])
    def test_other_file_urls_are_refused(self, url: str) -> None:
        with pytest.raises(InvalidArgument):
            open_source(url)

    @pytest.mark.parametrize("path", ["/a b", "/ä", "/a%20b", "/x?a=b c&d=%2F", "/[1]"])
    def test_odd_characters_are_sent_quoted(self, server: Server, path: str) -> None:
        server.always = lambda handler: handler.answer(200, {}, handler.path.encode())
        source = HttpSource(server.url(path) + "#fragment")
        sent = source.read_at(0, source.size()).decode()
        assert sent.isascii()
        assert " " not in sent
        assert "#" not in sent
        if path.isascii() and not set(path) & set(" []"):
            assert sent == path
        source.close()

    def test_a_reader_takes_storage_options_and_pickles_with_them(
        self, shard: str, server: Server
    ) -> None:
        options = {"headers": {"Authorization": "Bearer x"}}
        with ShardReader(shard, storage_options=options) as reader:
            state = pickle.dumps(reader)
        with pickle.loads(state) as again:
            assert again.read_entry("small/7") == noise(500, 7)
        assert {headers["authorization"] for headers in server.headers} == {"Bearer x"}

    @pytest.mark.parametrize("of_path", [True, False])
    def test_storage_options_without_a_url_are_refused(self, tmp_path: Path, of_path: bool) -> None:
        with pytest.raises(InvalidArgument, match="are for URLs"):
            ShardReader(tmp_path / "a.shard" if of_path else b"", storage_options={"timeout": 1})

    def test_storage_options_are_the_arguments_of_the_source(self, server: Server) -> None:
        options: dict[str, Any] = {
            "headers": {"X-A": "b"},
            "timeout": 5,
            "retries": 0,
            "deadline": 9,
        }
        source = open_url(server.url("/content"), options)
        assert server.headers[0]["x-a"] == "b"
        again = pickle.loads(pickle.dumps(source))
        assert server.headers[1]["x-a"] == "b"
        assert again._options == options
        for opened in (source, again):
            opened.close()
        for url in (server.url("/content"), "file:///x"):
            with pytest.raises(InvalidArgument, match="hedaers"):
                open_url(url, {"hedaers": {}})

    @pytest.mark.parametrize(
        "options", [{"timeout": 0}, {"timeout": -1}, {"retries": -1}, {"deadline": 0}]
    )
    def test_bad_options_are_refused(self, options: dict[str, Any]) -> None:
        with pytest.raises(InvalidArgument):
            HttpSource("http://127.0.0.1:1/", **options)

    def test_importing_the_package_loads_no_network_module(self) -> None:
        script = """
        import sys, shard_format
        shard_format.opening.open_source(b"")
        print({"http", "http.client", "ssl", "urllib.request", "obstore"} & set(sys.modules))
        """
        assert check_python(script) == "set()\n"


class TestProxies:
    """What the environment says about proxies."""

    def test_a_proxy_is_asked_for_the_whole_url(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with running(Server()) as origin:
            monkeypatch.setenv("http_proxy", server.url("").replace("//", "//user:pass@"))
            server.files[origin.url("/content")] = CONTENT
            source = HttpSource(origin.url("/content"))
            assert source.read_at(90_000, 5_000) == CONTENT[90_000:95_000]
            assert server.requests[1] == f"{origin.url('/content')} bytes=90000-94999"
            assert server.headers[1]["proxy-authorization"] == "Basic dXNlcjpwYXNz"
            assert server.headers[1]["host"] == f"127.0.0.1:{origin.server_port}"
            assert (server.connections, origin.connections) == (1, 0)
            source.close()

    def test_exceptions_are_honoured(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        HttpSource(server.url("/content")).close()
        assert server.counted() == 1

    def test_other_kinds_are_refused(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        for proxy in ("socks5://user:hidden@127.0.0.1:1", "https://user:hidden@127.0.0.1:1"):
            monkeypatch.setenv("http_proxy", proxy)
            with pytest.raises(InvalidArgument) as caught:
                HttpSource(server.url("/content"))
            assert "hidden" not in str(caught.value)


def self_signed(folder: Path) -> Path:
    """A key and a certificate for 127.0.0.1, in one file."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "loopback")])
    now = datetime.now(timezone.utc)
    address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(address, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(identifier, critical=False)
        .add_extension(issuer, critical=False)
        .sign(key, hashes.SHA256())
    )
    path = folder / "certificate.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    return path


class TestHttps:
    """The same through TLS."""

    @pytest.fixture
    def secure(self, tmp_path: Path) -> Iterator[tuple[Server, Path]]:
        certificate = self_signed(tmp_path)
        server = Server()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        # Or a client that refuses the certificate would hold up the accepting thread.
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
        server.scheme = "https"
        with running(server):
            yield server, certificate

    def test_a_trusted_server_is_read(
        self, secure: tuple[Server, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server, certificate = secure
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        source = HttpSource(server.url("/content"))
        assert source.read_at(90_000, 5_000) == CONTENT[90_000:95_000]
        assert server.connections == 1
        server.script.append(cut(100))
        assert source.read_at(80_000, 5_000) == CONTENT[80_000:85_000]
        source.close()

    def test_an_unknown_one_is_refused_at_once(
        self, secure: tuple[Server, Path], pauses: list[float]
    ) -> None:
        error = failure(lambda: HttpSource(secure[0].url("/content")))
        assert "certificate" in str(error)
        assert "SSL_CERT_FILE" in str(error)
        assert pauses == []

    def test_a_redirect_out_of_tls_is_not_followed(
        self, secure: tuple[Server, Path], server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", str(secure[1]))
        secure[0].script.append(status(302, Location=server.url("/content")))
        error = failure(lambda: HttpSource(secure[0].url("/content")))
        assert error.errno == errno.EPROTO
        assert server.counted() == 0


@pytest.fixture(scope="session")
def bucket() -> Iterator[Bucket]:
    with moto() as running:
        yield running


class TestObjectStores:
    """S3 as moto speaks it; the other stores share all of the code but obstore's own."""

    def test_a_reader_takes_one_request_to_open_and_one_to_read(
        self, bucket: Bucket, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = tmp_path / "a.shard"
        with ShardWriter(path, fsync=False) as writer:
            for number in range(4):
                writer.write_entry(f"e/{number}", noise(100_000, number))
        url = bucket.put("folder/a.shard", path.read_bytes())
        with caplog.at_level(logging.INFO, "werkzeug"):
            with ShardReader(open_url(url, bucket.options)) as reader:
                assert reader.name == url
                assert reader.read_entry("e/3") == noise(100_000, 3)
            asked = [record.getMessage() for record in caplog.records]
        assert len([line for line in asked if "/bucket/folder/a.shard" in line]) == 2

    def test_a_changed_object_is_an_error(self, bucket: Bucket) -> None:
        source = open_url(bucket.put("changing", noise(100_000)), bucket.options)
        bucket.put("changing", noise(100_000, seed=5))
        error = failure(lambda: source.read_at(90_000, 10))
        assert error.errno == errno.ESTALE
        assert error.path == "s3://bucket/changing"
        source.close()

    def test_a_missing_object_is_not_found(self, bucket: Bucket) -> None:
        error = failure(lambda: open_url("s3://bucket/no such", bucket.options))
        assert error.errno == errno.ENOENT
        assert len(str(error)) < 500

    def test_a_refusal_is_a_permission_error(self, bucket: Bucket) -> None:
        url = bucket.put("private", CONTENT)
        options = bucket.options | {"skip_signature": True}
        error = failure(lambda: open_url(url, options))
        assert error.errno == errno.EACCES
        assert "storage_options" in str(error)

    def test_an_empty_object_is_a_source_of_nothing(self, bucket: Bucket) -> None:
        source = open_url(bucket.put("empty", b""), bucket.options)
        assert source.size() == 0
        with pytest.raises(Truncated):
            source.read_at(0, 1)

    def test_names_are_decoded_as_in_other_urls(self, bucket: Bucket) -> None:
        bucket.put("a b/c?d#e", CONTENT)
        for url in ("s3://bucket/a b/c%3Fd%23e", "s3://bucket/a%20b/c%3Fd%23e"):
            assert open_url(url, bucket.options).size() == len(CONTENT)

    @pytest.mark.parametrize(
        "url",
        ["s3://bucket", "s3://bucket/", "s3://", "s3:///key", "s3://b/k?versionId=1", "gs://b/k#x"],
    )
    def test_a_url_without_an_object_is_refused(self, url: str) -> None:
        with pytest.raises(InvalidArgument):
            open_source(url)

    @pytest.mark.parametrize(
        "options", [{"acces_key_id": "hidden"}, {"client_options": {"alow_http": True}}], ids=str
    )
    def test_a_misspelled_option_is_refused(self, options: dict[str, Any]) -> None:
        with pytest.raises(InvalidArgument) as caught:
            open_url("s3://bucket/key", {**options, "anonymous": True})
        assert "hidden" not in str(caught.value)

    def test_a_store_that_is_not_there_is_an_io_error(self, bucket: Bucket) -> None:
        with running(Server()) as gone:
            options = bucket.options | {"endpoint": gone.url("")}
        error = failure(lambda: open_url("s3://bucket/key", options))
        assert error.errno == errno.ECONNREFUSED
        assert len(str(error).splitlines()) == 1

    def test_a_forked_process_reads_and_opens_as_its_parent_does(self, bucket: Bucket) -> None:
        url = bucket.put("forked", CONTENT)
        script = """
        import json, os, pickle, sys
        from shard_format.errors import FileMissing
        from shard_format.parallel import map_in_order
        from shard_format.remote import open_url

        options = json.loads(sys.argv[2])
        source = open_url(sys.argv[1], options)
        expected = source.read_at(90_000, 10)
        child = os.fork()
        if child == 0:
            right = source.read_at(80_000, 10_010)[-10:] == expected
            right += pickle.loads(pickle.dumps(source)).read_at(90_000, 10) == expected
            pieces = map_in_order(range(8), lambda number: source.read_at(number * 10_000, 10_000), 8)
            right += b"".join(pieces)[70_000:] == source.read_at(70_000, 10_000)
            try:
                open_url(sys.argv[1] + ".none", options)
            except FileMissing as error:
                right += error.path == sys.argv[1] + ".none"
            os._exit(right)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        print(source.read_at(90_000, 10) == expected)
        """
        assert check_python(script, url, json.dumps(bucket.options)) == "4\nTrue\n"

    def test_without_the_extra_the_error_names_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "obstore", None)
        with pytest.raises(MissingExtra, match=r"shard-format\[remote\]"):
            open_source("s3://bucket/key")


def test_an_error_that_cannot_be_pickled_arrives_from_the_process_that_reads_stores() -> None:
    """Its caller would wait for ever."""
    code = (
        "class Odd(Exception):\n    def __reduce__(self): raise TypeError\nraise Odd('the reason')"
    )
    with pytest.raises(RemoteTraceback, match="the reason"):
        relay().call(partial(exec, code, {}))
