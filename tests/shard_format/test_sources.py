"""One contract, every ByteSource. Expected bytes come from the memory that was written, not from a source."""

from __future__ import annotations

import errno
import io
import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast

import pytest

from shard_format import ByteSource, ShardReader, ShardWriter
from shard_format._remote_source import RemoteSource, Version
from shard_format.cache import BoundedCache
from shard_format.errors import Closed, InvalidArgument, ShardIOError, Truncated
from shard_format.opening import open_source, sharing_files
from shard_format.sources import (
    BytesSource,
    FileObjectSource,
    FileSource,
    SupportsReadInto,
    SupportsView,
    slice_of,
)
from tests.shard_format.support import PlainSource, closed_at_any_line, noise
from tests.shardpack.support import RangesOnly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CONTENT = noise(100_000)


class Trickle(io.BytesIO):
    """A file whose reads give at most seven bytes, as pipes and sockets do."""

    def read(self, size: int | None = -1) -> bytes:
        return super().read(7 if size is None or size < 0 else min(size, 7))


SOURCES: dict[str, Callable[[Path], ByteSource]] = {
    "FileSource": FileSource,
    "FileSource of a descriptor": lambda path: adopt(path),
    "FileSource without pread": lambda path: FileSource(path),
    "BytesSource": lambda path: BytesSource(CONTENT),
    "BytesSource of a bytearray": lambda path: BytesSource(bytearray(CONTENT)),
    "BytesSource of a slice": lambda path: BytesSource(memoryview(b"x" + CONTENT + b"y")[1:-1]),
    "FileObjectSource": lambda path: FileObjectSource(io.BytesIO(CONTENT)),
    "FileObjectSource that trickles": lambda path: FileObjectSource(Trickle(CONTENT)),
    "PlainSource": PlainSource,
}
# These have the two optional capabilities; the others have neither.
WITH_MEMORY = [name for name in SOURCES if name.startswith(("FileSource", "BytesSource"))]


def adopt(path: Path) -> FileSource:
    with path.open("rb") as file:
        return FileSource(str(path), os.dup(file.fileno()))


@pytest.fixture(params=SOURCES)
def source(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ByteSource]:
    """Each kind of source over the same bytes."""
    path = tmp_path / "content"
    path.write_bytes(CONTENT)
    if request.param == "FileSource without pread":
        monkeypatch.setattr("shard_format.sources._HAS_PREAD", False)
        monkeypatch.setattr("shard_format.sources._HAS_PREADV", False)
    opened = SOURCES[request.param](path)
    yield opened
    opened.close()


class TestContract:
    """What every source must do."""

    def test_it_is_a_byte_source_with_a_name_and_a_size(self, source: ByteSource) -> None:
        assert isinstance(source, ByteSource)
        assert isinstance(source.name, str)
        assert source.name
        assert source.size() == len(CONTENT)

    @pytest.mark.parametrize(
        ("offset", "length"), [(0, 1), (0, 100_000), (99_999, 1), (12_345, 54_321), (7, 7)]
    )
    def test_read_at_gives_exactly_the_asked_bytes(
        self, source: ByteSource, offset: int, length: int
    ) -> None:
        found = source.read_at(offset, length)
        assert type(found) is bytes
        assert found == CONTENT[offset : offset + length]

    def test_reads_do_not_depend_on_each_other(self, source: ByteSource) -> None:
        for offset in (500, 0, 99_990, 3, 500):
            assert source.read_at(offset, 10) == CONTENT[offset : offset + 10]

    @pytest.mark.parametrize("offset", [0, 5, 100_000])
    def test_a_read_of_nothing_is_empty(self, source: ByteSource, offset: int) -> None:
        assert source.read_at(offset, 0) == b""

    @pytest.mark.parametrize(
        ("offset", "length"), [(0, 100_001), (99_999, 2), (100_000, 1), (200_000, 1)]
    )
    def test_a_read_past_the_end_is_truncated(
        self, source: ByteSource, offset: int, length: int
    ) -> None:
        with pytest.raises(Truncated) as caught:
            source.read_at(offset, length)
        assert caught.value.path == source.name
        assert source.read_at(0, 5) == CONTENT[:5]

    def test_concurrent_reads_do_not_mix(self, source: ByteSource) -> None:
        def read(number: int) -> bool:
            offset, length = number * 97 % 90_000, number % 5_000
            return source.read_at(offset, length) == CONTENT[offset : offset + length]

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(read, range(400)))

    def test_it_has_both_optional_capabilities_or_none(
        self, source: ByteSource, request: pytest.FixtureRequest
    ) -> None:
        expected = request.node.callspec.params["source"] in WITH_MEMORY
        assert isinstance(source, SupportsView) == expected
        assert isinstance(source, SupportsReadInto) == expected

    def test_closing_twice_is_harmless(self, source: ByteSource) -> None:
        source.close()
        source.close()

    def test_open_source_returns_it_as_it_is(self, source: ByteSource) -> None:
        assert open_source(source) is source


@pytest.mark.parametrize("source", WITH_MEMORY, indirect=True)
class TestViews:
    """Sources that hand out memory."""

    @pytest.fixture
    def viewable(self, source: ByteSource) -> SupportsView:
        assert isinstance(source, SupportsView)
        return source

    @pytest.mark.parametrize(("offset", "length"), [(0, 100_000), (99_999, 1), (4_097, 10)])
    def test_a_view_shows_the_bytes_read_only(
        self, viewable: SupportsView, offset: int, length: int
    ) -> None:
        view = viewable.view(offset, length)
        assert view == CONTENT[offset : offset + length]
        assert view.readonly
        assert (view.format, view.ndim) == ("B", 1)

    @pytest.mark.parametrize("offset", [0, 5, 100_000])
    def test_an_empty_view_is_empty(self, viewable: SupportsView, offset: int) -> None:
        assert len(viewable.view(offset, 0)) == 0

    @pytest.mark.parametrize(
        ("offset", "length"), [(0, 100_001), (99_999, 2), (100_000, 1), (200_000, 1)]
    )
    def test_a_view_past_the_end_is_truncated(
        self, viewable: SupportsView, offset: int, length: int
    ) -> None:
        with pytest.raises(Truncated):
            viewable.view(offset, length)

    def test_a_view_outlives_its_source(self, viewable: SupportsView, source: ByteSource) -> None:
        view = viewable.view(10, 1_000)
        source.close()
        assert view == CONTENT[10:1_010]


@pytest.mark.parametrize("source", WITH_MEMORY, indirect=True)
class TestReadInto:
    """Sources that fill the caller's memory."""

    @pytest.fixture
    def fillable(self, source: ByteSource) -> SupportsReadInto:
        assert isinstance(source, SupportsReadInto)
        return source

    @pytest.mark.parametrize(("offset", "length"), [(0, 100_000), (99_999, 1), (4_097, 10), (3, 0)])
    def test_the_whole_buffer_is_filled(
        self, fillable: SupportsReadInto, offset: int, length: int
    ) -> None:
        buffer = bytearray(length + 2)
        fillable.read_into(offset, memoryview(buffer)[1:-1])
        assert buffer == b"\0" + CONTENT[offset : offset + length] + b"\0"

    def test_too_few_bytes_are_truncated(self, fillable: SupportsReadInto) -> None:
        for offset, length in ((99_999, 2), (100_000, 1), (0, 100_001)):
            with pytest.raises(Truncated):
                fillable.read_into(offset, memoryview(bytearray(length)))


class TestClosing:
    """What a source that was closed does."""

    @pytest.mark.parametrize("method", ["read_at", "read_into", "view"])
    def test_a_closed_file_source_says_closed(self, tmp_path: Path, method: str) -> None:
        path = tmp_path / "content"
        path.write_bytes(CONTENT)
        source = FileSource(path)
        source.close()
        calls: dict[str, Callable[[], object]] = {
            "read_at": lambda: source.read_at(0, 5),
            "read_into": lambda: source.read_into(0, memoryview(bytearray(5))),
            "view": lambda: bytes(source.view(0, 5)),
        }
        with pytest.raises(Closed):
            pytest.fail(f"a closed source gave {calls[method]()!r}")

    @pytest.mark.parametrize("kind", ["file", "mapped", "shared", "bytes", "slice", "ranges"])
    def test_another_thread_may_close_it_at_any_moment(self, tmp_path: Path, kind: str) -> None:
        path = tmp_path / "content"
        path.write_bytes(CONTENT)

        def open_one() -> ByteSource:
            if kind in ("bytes", "slice"):
                source: ByteSource = BytesSource(CONTENT)
                return source if kind == "bytes" else slice_of(source, 0, len(CONTENT), "part")
            if kind == "ranges":
                return slice_of(RangesOnly(CONTENT), 0, len(CONTENT), "part")
            if kind == "shared":
                with sharing_files():
                    shared = open_source(path)
                assert isinstance(shared, FileSource)
                shared.release()
                return shared
            file = FileSource(path)
            if kind == "mapped":
                file.view(0, 10)
            return file

        def read_into(source: Any) -> bytearray:  # noqa: ANN401 - a source that can
            buffer = bytearray(1000)
            source.read_into(500, memoryview(buffer))
            return buffer

        reads: list[Callable[[Any], Any]] = [lambda source: source.read_at(500, 1000), read_into]
        if kind == "ranges":
            reads[1:] = [lambda source: b"".join(source.read_ranges([(500, 400), (900, 600)]))]
        else:
            reads.append(lambda source: source.view(500, 1000))
        for read in reads:
            assert closed_at_any_line(open_one, read, CONTENT[500:1500]) > 2

    @pytest.mark.parametrize("kind", [FileSource, BytesSource])
    def test_a_negative_offset_is_not_counted_from_the_end(
        self, tmp_path: Path, kind: type[FileSource | BytesSource]
    ) -> None:
        path = tmp_path / "content"
        path.write_bytes(CONTENT)
        source = FileSource(path) if kind is FileSource else BytesSource(CONTENT)
        for read in (source.view, source.read_at):
            with pytest.raises((Truncated, ShardIOError)):
                read(-10, 5)

    def test_a_closed_bytes_source_says_closed(self) -> None:
        source = BytesSource(CONTENT)
        source.close()
        with pytest.raises(Closed):
            source.read_at(0, 5)

    @pytest.mark.parametrize("method", ["read_at", "read_into", "view"])
    def test_a_read_that_began_before_the_closing_reads_its_own_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
    ) -> None:
        (tmp_path / "content").write_bytes(CONTENT)
        (tmp_path / "other").write_bytes(bytes(len(CONTENT)))
        source = FileSource(tmp_path / "content")
        others: list[int] = []

        def as_another_thread_may(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*given: Any, **options: Any) -> Any:  # noqa: ANN401 - of any function
                source.close()
                others.extend(os.open(tmp_path / "other", os.O_RDONLY) for _ in range(3))
                return function(*given, **options)

            return call

        for module, name in ((os, "pread"), (os, "preadv"), (mmap, "mmap")):
            monkeypatch.setattr(module, name, as_another_thread_may(getattr(module, name)))
        if method == "read_at":
            assert source.read_at(7, 1000) == CONTENT[7:1007]
        elif method == "read_into":
            source.read_into(7, memoryview(buffer := bytearray(1000)))
            assert buffer == CONTENT[7:1007]
        else:
            assert source.view(7, 1000) == CONTENT[7:1007]
        monkeypatch.undo()
        source.close()
        for other in others:
            os.close(other)

    def test_remote_bytes_that_are_here_come_whole_while_another_thread_closes(self) -> None:
        class Remote(RemoteSource):
            _version = Version(10, None, None)

            def __getattribute__(self, name: str) -> Any:  # noqa: ANN401
                value = super().__getattribute__(name)
                if name == "_opened":  # another thread closes it right after
                    self._opened = (0, b"")
                return value

            def _fetch_into(self, offset: int, out: memoryview) -> None:
                raise AssertionError("everything is here")

        source = Remote("remote")
        source._opened = (0, b"0123456789")
        assert source.read_at(2, 5) == b"23456"
        source._opened = (0, b"0123456789")
        assert source.read_ranges([(0, 4), (6, 4)]) == [b"0123", b"6789"]

    def test_a_file_object_stays_the_callers(self) -> None:
        file = io.BytesIO(CONTENT)
        FileObjectSource(file).close()
        assert not file.closed

    def test_the_memory_of_a_closed_bytes_source_is_released(self) -> None:
        data = bytearray(CONTENT)
        source = BytesSource(data)
        with pytest.raises(BufferError):
            data.append(1)
        source.close()
        data.append(1)

    def test_descriptors_are_closed_on_exec(self, tmp_path: Path) -> None:
        path = tmp_path / "content"
        path.write_bytes(CONTENT)
        source = FileSource(path)
        assert not os.get_inheritable(source._file.descriptor)
        source.close()


class TestKinds:
    """What is particular to one kind."""

    def test_a_file_source_makes_one_mapping(self, tmp_path: Path) -> None:
        path = tmp_path / "mapped once"
        path.write_bytes(CONTENT)
        source = FileSource(path)
        views = [source.view(number, 10) for number in range(50)]
        with open("/proc/self/maps") as maps:
            assert sum("mapped once" in line for line in maps) == 1
        assert len({id(view.obj) for view in views}) == 1
        source.close()

    def test_an_empty_file_is_a_source(self, tmp_path: Path) -> None:
        path = tmp_path / "empty"
        path.touch()
        for source in (FileSource(path), BytesSource(b""), FileObjectSource(io.BytesIO())):
            assert source.size() == 0
            assert source.read_at(0, 0) == b""
            with pytest.raises(Truncated):
                source.read_at(0, 1)
            source.close()

    def test_a_file_object_that_returns_text_is_refused(self) -> None:
        with pytest.raises(InvalidArgument, match="binary"):
            FileObjectSource(cast("Any", io.StringIO("text" * 100))).read_at(0, 5)

    def test_reprs_are_short(self, source: ByteSource) -> None:
        assert len(repr(source)) < 300


@pytest.mark.parametrize("problem", [None, errno.EINVAL, errno.EIO])
def test_a_system_that_cannot_bring_memory_into_reach_shows_it_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: int | None
) -> None:
    """Data of 2 MiB is mapped, asked for in advance, and checked."""
    content = noise(2 << 20)
    path = tmp_path / "a.shard"
    with ShardWriter(path, fsync=False) as writer:
        writer.write_entry("a", content)
    asked: list[tuple[int, int]] = []

    class Mapping(mmap.mmap):
        def madvise(self, option: int, start: int = 0, length: int = 0) -> None:
            asked.append((start, length))
            if problem is not None:
                raise OSError(problem, os.strerror(problem))
            super().madvise(option, start, length)

    monkeypatch.setattr("shard_format.sources.mmap.mmap", Mapping)
    monkeypatch.setattr("shard_format.sources._can_populate", True)
    monkeypatch.setattr("shard_format._content._verified", BoundedCache(count=0))
    for _ in range(2):
        with ShardReader(path) as reader:
            assert reader.read_view("a") == content
    # Once is enough to learn that a system does not know it.
    assert len(asked) == (1 if problem == errno.EINVAL else 2)
    assert all(start % mmap.PAGESIZE == 0 and length >= len(content) for start, length in asked)
