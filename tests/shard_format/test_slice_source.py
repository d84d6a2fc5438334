"""A part of a source behaves as the whole one does, and never shows what lies beside it."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_format import ShardReader, ShardWriter
from shard_format.errors import BadOffset, Closed, Truncated
from shard_format.sources import (
    BytesSource,
    FileObjectSource,
    FileSource,
    MappedSlice,
    SliceSource,
    can_read_ranges,
    can_view,
    slice_of,
)
from tests.shardpack.support import RangesOnly

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shard_format.sources import ByteSource

DATA = bytes(range(256)) * 8
START, LENGTH = 100, 1000
PART = DATA[START : START + LENGTH]


@pytest.fixture(params=["file", "bytes", "ranges", "file object", "mapped"])
def part(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ByteSource]:
    path = tmp_path / "data"
    path.write_bytes(DATA)
    if request.param == "mapped":
        source = FileSource(path)
        view = source.view(START, LENGTH)
        yield MappedSlice(view, (str(path), source.identity), START, "part")
        return
    with path.open("rb") as file:
        sources: dict[str, ByteSource] = {
            "file": FileSource(path),
            "bytes": BytesSource(DATA),
            "ranges": RangesOnly(DATA),
            "file object": FileObjectSource(file),
        }
        yield slice_of(sources[request.param], START, LENGTH, "part")


class TestReading:
    """The contract of a source."""

    @given(offset=st.integers(0, LENGTH), length=st.integers(0, LENGTH))
    def test_any_range_is_that_of_the_part(
        self, part: ByteSource, offset: int, length: int
    ) -> None:
        if offset + length > LENGTH:
            with pytest.raises(Truncated):
                part.read_at(offset, length)
            return
        expected = PART[offset : offset + length]
        assert part.read_at(offset, length) == expected
        if can_view(part):
            assert part.view(offset, length) == expected
            assert part.view(offset, length).readonly
        if can_read_ranges(part):
            assert part.read_ranges([(offset, length), (0, 1)]) == [expected, PART[:1]]
        assert isinstance(part, (SliceSource, BytesSource))
        buffer = bytearray(length)
        part.read_into(offset, memoryview(buffer))
        assert buffer == expected

    def test_it_says_its_own_size_and_name(self, part: ByteSource) -> None:
        assert (part.size(), part.name) == (LENGTH, "part")

    def test_a_negative_offset_shows_nothing_of_what_lies_before(self) -> None:
        part = slice_of(BytesSource(DATA), START, LENGTH, "part")
        with pytest.raises(Truncated):
            part.read_at(-1, 1)

    def test_ranges_outside_are_refused_before_anything_is_asked_for(self) -> None:
        source = RangesOnly(DATA)
        part = slice_of(source, START, LENGTH, "part")
        assert can_read_ranges(part)
        with pytest.raises(Truncated, match="part"):
            part.read_ranges([(0, 1), (LENGTH, 1)])
        assert source.asked == []

    @pytest.mark.parametrize(("start", "length"), [(-1, 5), (0, len(DATA) + 1), (5000, 0)])
    def test_a_part_outside_of_its_source_is_refused(self, start: int, length: int) -> None:
        with pytest.raises(BadOffset):
            slice_of(BytesSource(DATA), start, length, "part")


class TestCapabilities:
    """A slice can do what its source can, and no more."""

    def test_views_and_batches_are_there_where_the_source_has_them(self, tmp_path: Path) -> None:
        path = tmp_path / "data"
        path.write_bytes(DATA)
        local = slice_of(FileSource(path), 0, 5, "part")
        remote = slice_of(RangesOnly(DATA), 0, 5, "part")
        assert (can_view(local), can_read_ranges(local)) == (True, False)
        assert (can_view(remote), can_read_ranges(remote)) == (False, True)

    def test_a_container_in_the_middle_of_a_file_is_read_in_place(self, tmp_path: Path) -> None:
        with ShardWriter(tmp_path / "inner.shard", alignment=64) as writer:
            writer.write_entry("x", PART)
        inner = (tmp_path / "inner.shard").read_bytes()
        outer = bytes(64) + inner + b"after"
        reader = ShardReader(slice_of(BytesSource(outer), 64, len(inner), "part"))
        view = reader.view("x")
        assert view == PART
        assert view.obj is outer

    def test_of_a_remote_container_only_the_ranges_that_are_needed_are_asked_for(
        self, tmp_path: Path
    ) -> None:
        with ShardWriter(tmp_path / "inner.shard") as writer:
            writer.write_entry("large", bytes(1 << 20))
            writer.write_entry("small", PART)
        inner = (tmp_path / "inner.shard").read_bytes()
        source = RangesOnly(b"before" + inner)
        reader = ShardReader(slice_of(source, 6, len(inner), "part"))
        assert reader.read_entry("small") == PART
        assert sum(length for _, length in source.asked) < 20_000


class TestLife:
    """Closing and pickling."""

    def test_closing_it_leaves_the_source_open(self) -> None:
        source = BytesSource(DATA)
        part = slice_of(source, START, LENGTH, "part")
        part.close()
        assert source.read_at(0, 1) == DATA[:1]
        with pytest.raises(Closed, match="part"):
            part.read_at(0, 1)

    @pytest.mark.parametrize("is_mapped", [False, True])
    def test_it_pickles_as_the_file_and_the_place(self, tmp_path: Path, is_mapped: bool) -> None:
        path = tmp_path / "data"
        path.write_bytes(bytes(1 << 20) + DATA)
        start = (1 << 20) + START
        source = FileSource(path)
        part: ByteSource = slice_of(source, start, LENGTH, "part")
        if is_mapped:
            part = MappedSlice(
                source.view(start, LENGTH), (str(path), source.identity), start, "part"
            )
        stored = pickle.dumps(part)
        assert len(stored) < 500
        again = pickle.loads(stored)
        assert again.read_at(0, LENGTH) == PART
        assert again.name == "part"
