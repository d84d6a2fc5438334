"""Filtered entries: the transformations, their description, and files that have them."""

from __future__ import annotations

import json
import struct
import threading
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zstandard
from fastcrc import crc32
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh64_intdigest

from shard_format import (
    EntryToWrite,
    Filters,
    Limits,
    ShardError,
    ShardReader,
    ShardWriter,
    WriterOptions,
    compute_identity,
    verify_identity,
)
from shard_format.errors import (
    BadFilter,
    BadSeekTable,
    ChecksumMismatch,
    FormatError,
    InvalidArgument,
    LimitExceeded,
    NotViewable,
    SizeMismatch,
    UnknownFilter,
)
from shard_format.filters import LARGEST_FRAME, Delta, Planes, encode_frame, encoded_size
from shard_format.verify import check
from tests.shard_format.support import HandMade, PlainSource, Row, noise, prose

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ZSTD = 0x0003
FILTERED = 0x0010
DELTA4 = {"name": "delta", "order": 1, "row": 28, "width": 4}
PLANES4 = {"name": "planes", "width": 4}


@st.composite
def all_filters(draw: st.DrawFn) -> Filters:
    """Every combination that the specification allows, with short and long rows."""
    width = draw(st.sampled_from([1, 2, 4, 8]))
    with_delta = width == 1 or draw(st.booleans())
    with_planes = width > 1 and (not with_delta or draw(st.booleans()))
    items = draw(st.integers(1, 12) | st.sampled_from([255, 256, 300]))
    order = draw(st.sampled_from([1, 2]))
    delta = Delta(width=width, row=width * items, order=order) if with_delta else None
    return Filters(delta, Planes(width) if with_planes else None)


def content_of(rows: int, filters: Filters, kind: str, seed: int) -> bytes:
    """Content of whole rows that compresses, or not, or has every extreme value."""
    size = rows * filters.unit
    if kind == "noise":
        return noise(size, seed)
    if kind == "extremes":
        return bytes(np.random.default_rng(seed).choice([0, 1, 127, 128, 255], size).astype("u1"))
    return prose(size)


contents = st.sampled_from(["noise", "extremes", "prose"])


def walk(steps: int, width: int = 7, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    """A smooth trajectory, what the filters are for."""
    steps_taken = np.random.default_rng(seed).normal(0, 0.01, (steps, width))
    return np.cumsum(steps_taken, axis=0).astype(np.float32)


def slow_apply(filters: Filters, data: bytes) -> bytes:
    """The table of the specification, word by word, with Python's integers."""
    if filters.delta is not None:
        width, row = filters.delta.width, filters.delta.row
        for _ in range(filters.delta.order):
            rows = [data[start : start + row] for start in range(0, len(data), row)]
            done = rows[:1]
            for before, now in pairwise(rows):
                done.append(
                    b"".join(
                        (
                            int.from_bytes(now[at : at + width], "little")
                            - int.from_bytes(before[at : at + width], "little")
                        )
                        .__mod__(1 << 8 * width)
                        .to_bytes(width, "little")
                        for at in range(0, row, width)
                    )
                )
            data = b"".join(done)
    if filters.planes is not None:
        data = b"".join(
            data[plane :: filters.planes.width] for plane in range(filters.planes.width)
        )
    return data


def skippable(content: bytes, magic: int = 0x184D2A5D) -> bytes:
    return struct.pack("<II", magic, len(content)) + content


def described(*steps: object) -> bytes:
    """A leading frame with this list of filters."""
    return skippable(json.dumps({"filters": steps}).encode())


def frame(content: bytes, *, declared: bool = True, checksum: bool = True) -> bytes:
    compressor = zstandard.ZstdCompressor(
        level=3, write_content_size=declared, write_checksum=checksum
    )
    if declared:
        return compressor.compress(content)
    stream = compressor.compressobj()
    return stream.compress(content) + stream.flush()


def seek_table(rows: list[tuple[int, int, int]]) -> bytes:
    table = b"".join(struct.pack("<III", *row) for row in rows)
    return skippable(table + struct.pack("<IBI", len(rows), 0x80, 0x8F92EAB1), magic=0x184D2A5E)


def table_of(frames: list[bytes], sizes: list[int]) -> bytes:
    return seek_table(
        [
            (len(one), size, int.from_bytes(one[-4:], "little"))
            for one, size in zip(frames, sizes, strict=True)
        ]
    )


def file_of(stored: bytes, content: bytes, *, flags: int = ZSTD | FILTERED) -> ShardReader:
    """A hand-made file with one entry `a`."""
    row = Row(b"a", stored, flags=flags, content=content)
    return ShardReader(HandMade([row]).to_bytes())


class TestTransformations:
    """Expected bytes are written by hand, from the table of the specification."""

    def test_delta_of_bytes_wraps(self) -> None:
        filters = Filters(Delta(width=1, row=2))
        assert bytes(filters.apply(bytes([10, 200, 13, 100, 5, 0]))) == bytes(
            [10, 200, 3, 156, 248, 156]
        )

    def test_delta_of_two_bytes_is_little_endian_and_borrows(self) -> None:
        filters = Filters(Delta(width=2, row=2))
        data = bytes.fromhex("0001 ff00 ffff 0000")
        assert bytes(filters.apply(data)) == bytes.fromhex("0001 ffff 00ff 0100")

    def test_delta_of_four_bytes(self) -> None:
        filters = Filters(Delta(width=4, row=8))
        data = struct.pack("<6I", 1, 2**32 - 1, 5, 0, 0, 2**31)
        expected = struct.pack("<6I", 1, 2**32 - 1, 4, 1, 2**32 - 5, 2**31)
        assert bytes(filters.apply(data)) == expected

    def test_delta_of_eight_bytes(self) -> None:
        filters = Filters(Delta(width=8, row=8))
        data = struct.pack("<3Q", 7, 3, 2**63)
        assert bytes(filters.apply(data)) == struct.pack("<3Q", 7, 2**64 - 4, 2**63 - 3)

    def test_order_two_is_delta_done_twice(self) -> None:
        filters = Filters(Delta(width=1, row=1, order=2))
        # 10 13 17 22: differences 10 3 4 5, differences of those 10 -7 1 1.
        assert bytes(filters.apply(bytes([10, 13, 17, 22]))) == bytes([10, 249, 1, 1])

    def test_planes_collect_bytes_of_equal_significance(self) -> None:
        assert bytes(Filters(planes=Planes(2)).apply(b"aAbBcC")) == b"abcABC"
        assert bytes(Filters(planes=Planes(4)).apply(b"abcdABCD")) == b"aAbBcCdD"
        assert bytes(Filters(planes=Planes(8)).apply(b"01234567abcdefgh")) == b"0a1b2c3d4e5f6g7h"

    def test_delta_comes_before_planes(self) -> None:
        filters = Filters(Delta(width=2, row=2), Planes(2))
        assert bytes(filters.apply(bytes.fromhex("0001 0302"))) == bytes.fromhex("0003 0101")

    @given(filters=all_filters(), rows=st.integers(0, 9), kind=contents, seed=st.integers(0, 99))
    def test_they_do_what_the_specification_says(
        self, filters: Filters, rows: int, kind: str, seed: int
    ) -> None:
        data = content_of(rows, filters, kind, seed)
        assert bytes(filters.apply(data)) == slow_apply(filters, data)

    @given(
        filters=all_filters(),
        rows=st.integers(0, 40),
        kind=contents,
        seed=st.integers(0, 99),
        offsets=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    )
    def test_undoing_gives_the_same_bytes_at_any_address(
        self, filters: Filters, rows: int, kind: str, seed: int, offsets: tuple[int, int]
    ) -> None:
        data = content_of(rows, filters, kind, seed)
        moved = memoryview(bytearray(offsets[0]) + data)[offsets[0] :]
        filtered = filters.apply(moved)
        assert len(filtered) == len(data)
        crooked = memoryview(bytearray(offsets[1]) + bytes(filtered))[offsets[1] :]
        out = memoryview(bytearray(offsets[0] + len(data) + 3))[offsets[0] : -3]
        filters.undo_into(crooked, out)
        assert bytes(out) == data
        filters.undo_in_place(crooked)
        assert bytes(crooked) == data

    @given(data=st.data(), kind=contents, seed=st.integers(0, 99))
    def test_undoing_a_part_gives_that_part(
        self, data: st.DataObject, kind: str, seed: int
    ) -> None:
        long_rows = st.sampled_from(
            [Filters(Delta(width=1, row=300)), Filters(Delta(width=4, row=2048, order=2))]
        )
        filters = data.draw(all_filters() | long_rows)
        content = content_of(data.draw(st.integers(1, 12)), filters, kind, seed)
        unit = data.draw(st.sampled_from([1, filters.unit]))
        stop = unit * data.draw(st.integers(0, len(content) // unit))
        start = unit * data.draw(st.integers(0, stop // unit))
        out = bytearray(stop - start)
        filters.undo_part_into(
            memoryview(bytearray(filters.apply(content))), start, memoryview(out)
        )
        assert out == content[start:stop]

    @pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "f8", "u8", "f2"])
    def test_arrays_of_any_type_come_back_bit_by_bit(self, dtype: str) -> None:
        array = np.frombuffer(noise(9 * 8 * 24), dtype).reshape(9, -1)
        width = array.itemsize
        delta = Delta(width=width, row=array[0].nbytes, order=2)
        filters = Filters(delta, Planes(width) if width > 1 else None)
        out = np.empty_like(array)
        filters.undo_into(filters.apply(array), out)
        assert out.tobytes() == array.tobytes()

    def test_large_planes_of_two_bytes_are_put_together_in_pieces(self) -> None:
        filters = Filters(planes=Planes(2))
        data = noise(600_002)
        out = bytearray(len(data))
        filters.undo_into(filters.apply(data), memoryview(out))
        assert out == data

    @pytest.mark.parametrize("items", [1, 3, 32, 33])
    @pytest.mark.parametrize("order", [1, 2])
    def test_many_short_rows_are_summed_up_in_pieces(self, items: int, order: int) -> None:
        filters = Filters(Delta(width=2, row=2 * items, order=order))
        data = noise(-(-400_000 // items) * 2 * items)
        filtered = bytearray(filters.apply(data))
        filters.undo_in_place(memoryview(filtered))
        assert filtered == data

    def test_memory_of_another_size_is_refused(self) -> None:
        with pytest.raises(InvalidArgument, match="a different size"):
            Filters(planes=Planes(2)).undo_into(bytes(4), memoryview(bytearray(6)))

    def test_data_that_is_not_whole_rows_is_refused(self) -> None:
        filters = Filters(Delta(width=2, row=6))
        with pytest.raises(InvalidArgument, match="S-FLT-5"):
            filters.apply(bytes(8))
        with pytest.raises(BadFilter, match="S-FLT-5"):
            filters.undo_in_place(memoryview(bytearray(8)))

    def test_threads_do_not_disturb_each_other(self) -> None:
        filters = Filters(Delta(width=4, row=28), Planes(4))
        pieces = [walk(500, seed=seed).tobytes() for seed in range(8)]
        results: dict[int, bytes] = {}

        def work(number: int) -> None:
            for _ in range(5):
                stored = encode_frame(pieces[number], 3, filters)
                out = bytearray(len(pieces[number]))
                filters.undo_into(zstandard.ZstdDecompressor().decompress(stored), memoryview(out))
                results[number] = bytes(out)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [results[number] for number in range(8)] == pieces


class TestFrames:
    """One zstd frame of filtered content."""

    @given(filters=all_filters(), rows=st.integers(0, 200), kind=contents)
    @settings(max_examples=50)
    def test_a_frame_is_plain_zstd_with_size_and_checksum(
        self, filters: Filters, rows: int, kind: str
    ) -> None:
        data = content_of(rows, filters, kind, 1)
        stored = encode_frame(data, 3, filters)
        facts = zstandard.get_frame_parameters(stored)
        assert (facts.content_size, facts.has_checksum) == (len(data), True)
        assert zstandard.ZstdDecompressor().decompress(stored) == bytes(filters.apply(data))
        assert encoded_size(data, 3, filters) == len(stored)

    def test_planes_in_blocks_of_their_own_are_smaller(self) -> None:
        filters = Filters(Delta(width=4, row=28), Planes(4))
        data = walk(1000).tobytes()
        together = zstandard.ZstdCompressor(3, write_checksum=True).compress(filters.apply(data))
        assert encoded_size(data, 3, filters) < len(together)

    def test_sizes_can_be_compared_with_no_filter_at_all(self) -> None:
        data = walk(1000).tobytes()
        plain = encoded_size(data, 3, None)
        assert plain == len(zstandard.ZstdCompressor(3, write_checksum=True).compress(data))
        assert encoded_size(data, 3, Filters(Delta(width=4, row=28), Planes(4))) < plain


class TestDescription:
    """S-FLT-2 to S-FLT-4."""

    def test_it_is_the_text_of_the_specification(self) -> None:
        text = (
            b'{"filters":[{"name":"delta","order":1,"row":28,"width":4},'
            b'{"name":"planes","width":4}]}'
        )
        filters = Filters(Delta(width=4, row=28), Planes(4))
        assert filters.description == text
        assert Filters.parse(text) == filters

    @given(filters=all_filters())
    def test_it_reads_back(self, filters: Filters) -> None:
        assert Filters.parse(filters.description) == filters

    def test_any_json_text_of_it_is_read(self) -> None:
        text = json.dumps({"note": "x", "filters": [PLANES4]}, indent=2).encode()
        assert Filters.parse(text) == Filters(planes=Planes(4))

    def test_a_short_text_names_the_filters(self) -> None:
        assert str(Filters(Delta(width=4, row=28), Planes(4))) == "delta:4 planes:4"
        assert str(Filters(Delta(width=2, row=2, order=2))) == "delta2:2"

    @pytest.mark.parametrize(
        ("text", "rule"),
        [
            (b"{", "S-FLT-2"),
            (b"[]", "S-FLT-2"),
            (b"\xef\xbb\xbf{}", "S-FLT-2"),
            (b"{}", "S-FLT-2"),
            (b'{"filters":{}}', "S-FLT-2"),
            (b'{"filters":[]}', "S-FLT-2"),
            (b'{"filters":[],"filters":[{"name":"planes","width":4}]}', "S-FLT-2"),
            (json.dumps({"filters": [DELTA4, PLANES4, PLANES4]}).encode(), "S-FLT-2"),
            (b'{"filters":["planes"]}', "S-FLT-2"),
            (b'{"filters":[{"width":4}]}', "S-FLT-2"),
            (b'{"filters":[{"name":4}]}', "S-FLT-2"),
            (b'{"filters":[{"name":"planes"}]}', "S-FLT-2"),
            (b'{"filters":[{"name":"planes","width":1}]}', "S-FLT-2"),
            (b'{"filters":[{"name":"planes","width":3}]}', "S-FLT-2"),
            (b'{"filters":[{"name":"planes","width":"4"}]}', "S-FLT-2"),
            (b'{"filters":[{"name":"planes","width":4.0}]}', "S-FLT-2"),
            (b'{"filters":[{"name":"planes","width":true}]}', "S-FLT-2"),
            (b'{"filters":[{"name":"planes","width":4,"x":1}]}', "S-FLT-2"),
            (json.dumps({"filters": [{**DELTA4, "order": 0}]}).encode(), "S-FLT-2"),
            (json.dumps({"filters": [{**DELTA4, "order": 3}]}).encode(), "S-FLT-2"),
            (json.dumps({"filters": [{**DELTA4, "order": True}]}).encode(), "S-FLT-2"),
            (json.dumps({"filters": [{**DELTA4, "width": 16}]}).encode(), "S-FLT-2"),
            (json.dumps({"filters": [{**DELTA4, "row": 0}]}).encode(), "S-FLT-2"),
            (json.dumps({"filters": [{**DELTA4, "row": -4}]}).encode(), "S-FLT-2"),
            (json.dumps({"filters": [{**DELTA4, "row": 27}]}).encode(), "S-FLT-2"),
            (json.dumps({"filters": [{**DELTA4, "row": None}]}).encode(), "S-FLT-2"),
            (json.dumps({"filters": [PLANES4, DELTA4]}).encode(), "S-FLT-4"),
            (json.dumps({"filters": [PLANES4, PLANES4]}).encode(), "S-FLT-4"),
            (json.dumps({"filters": [DELTA4, DELTA4]}).encode(), "S-FLT-4"),
            (
                json.dumps({"filters": [DELTA4, {"name": "planes", "width": 2}]}).encode(),
                "S-FLT-4",
            ),
        ],
    )
    def test_a_bad_one_is_refused(self, text: bytes, rule: str) -> None:
        with pytest.raises(BadFilter) as caught:
            Filters.parse(text)
        assert caught.value.rule == rule

    @pytest.mark.parametrize("steps", [[{"name": "bitshuffle", "n": 1}], [DELTA4, {"name": "xor"}]])
    def test_an_unknown_filter_is_named(self, steps: list[object]) -> None:
        with pytest.raises(UnknownFilter, match=r"bitshuffle|xor") as caught:
            Filters.parse(json.dumps({"filters": steps}).encode())
        assert caught.value.rule == "S-FLT-3"

    def test_messages_stay_short_whatever_the_description_says(self) -> None:
        digits = "9" * 3000
        for text in (
            f'{{"filters":[{{"name":"delta","order":1,"row":{digits},"width":4}}]}}',
            f'{{"filters":[{{"name":"{"x" * 3000}"}}]}}',
        ):
            with pytest.raises(FormatError) as caught:
                Filters.parse(text.encode()).check_frame(4)
            assert len(str(caught.value)) < 400

    @pytest.mark.parametrize(
        "make",
        [
            lambda: Filters(),
            lambda: Planes(1),
            lambda: Delta(width=3, row=3),
            lambda: Delta(width=4, row=6),
            lambda: Delta(width=4, row=4, order=3),
            lambda: Filters(Delta(width=4, row=4), Planes(2)),
        ],
    )
    def test_filters_that_no_file_may_have_cannot_be_made(self, make: Any) -> None:  # noqa: ANN401 - a lambda
        with pytest.raises(InvalidArgument, match="S-FLT-"):
            make()


@st.composite
def stored_ways(draw: st.DrawFn) -> tuple[Filters, bytes, int | None]:
    """Filters, content that fits them, and a frame size or none."""
    filters = draw(all_filters())
    rows = draw(st.integers(1, 60))
    kind = draw(contents)
    frame_rows = draw(st.none() | st.integers(1, 20))
    frame_bytes = None if frame_rows is None else frame_rows * filters.unit
    return filters, content_of(rows, filters, kind, 3), frame_bytes


class TestFiles:
    """Readers get the original bytes, whatever they ask for."""

    @given(way=stored_ways(), streamed=st.booleans(), data=st.data())
    @settings(max_examples=150)
    def test_every_way_of_reading_gives_the_original(
        self,
        tmp_path: Path,
        way: tuple[Filters, bytes, int | None],
        streamed: bool,
        data: st.DataObject,
    ) -> None:
        filters, content, frame_bytes = way
        path = tmp_path / "a.shard"
        with ShardWriter(path, fsync=False, compression="zstd") as writer:
            if streamed and frame_bytes is not None:
                halves = [content[:100], content[100:]]
                writer.write_entry_stream("a", halves, frame_bytes=frame_bytes, filters=filters)
            else:
                writer.write_entry("a", content, frame_bytes=frame_bytes, filters=filters)
        start = data.draw(st.integers(0, len(content)))
        stop = data.draw(st.integers(start, len(content)))
        with ShardReader(path) as reader:
            assert reader.read_entry("a") == content
            assert reader.read_many(["a", "a"]) == [content, content]
            assert reader.read_range("a", start, stop) == content[start:stop]
            assert b"".join(reader.iter_entry("a")) == content
            out = bytearray(len(content))
            assert reader.read_into("a", out) == len(content)
            assert out == content
            part = bytearray(stop - start)
            reader.read_into("a", part, start=start, stop=stop)
            assert part == content[start:stop]
            info = reader.info("a")
            assert info.crc32c == crc32.iscsi(content)
            assert reader.filters("a") == (filters if info.filtered else None)
            assert info.filtered == (info.codec != 0)
            if info.filtered:
                assert info.disk_size < info.size * 9 // 10
            report = check(reader)
            assert (report.errors, report.warnings) == ((), ())

    def test_a_file_has_the_bytes_of_the_specification(self, tmp_path: Path) -> None:
        data = walk(1000).tobytes()
        filters = Filters(Delta(width=4, row=28), Planes(4))
        path = tmp_path / "a.shard"
        with ShardWriter(path, fsync=False) as writer:
            writer.write_entry("one", data, compression="zstd", filters=filters)
            writer.write_entry(
                "two", data, compression="zstd", filters=filters, frame_bytes=28 * 400
            )
        with ShardReader(path) as reader:
            leading = skippable(filters.description)
            for name, starts in (("one", [0]), ("two", [0, 11_200, 22_400])):
                info = reader.info(name)
                assert info.flags == ZSTD | FILTERED
                stored = reader.source.read_at(info.data_offset, info.disk_size)
                frames = [
                    encode_frame(
                        data[at : at + (11_200 if len(starts) > 1 else 28_000)], 3, filters
                    )
                    for at in starts
                ]
                table = table_of(frames, [11_200, 11_200, 5_600]) if len(starts) > 1 else b""
                assert stored == leading + b"".join(frames) + table

    def test_a_range_reads_only_its_frames(self, tmp_path: Path) -> None:
        data = walk(40_000).tobytes()
        filters = Filters(Delta(width=4, row=28), Planes(4))
        path = tmp_path / "a.shard"
        with ShardWriter(path, fsync=False) as writer:
            writer.write_entry(
                "a", data, compression="zstd", filters=filters, frame_bytes=28 * 1000
            )
        source = PlainSource(path)
        reader = ShardReader(source)
        before = source.bytes_read
        assert reader.read_range("a", 280_000, 308_000) == data[280_000:308_000]
        assert source.bytes_read - before < 30_000

    def test_entries_that_do_not_shrink_stay_raw_and_unfiltered(self, tmp_path: Path) -> None:
        path = tmp_path / "a.shard"
        filters = Filters(planes=Planes(4))
        with ShardWriter(path, fsync=False, compression="zstd") as writer:
            writer.write_entry("noise", noise(4000), filters=filters)
            writer.write_entry("frames", noise(4000), filters=filters, frame_bytes=400)
            writer.write_entry("small", bytes(256), filters=filters)
            writer.write_entry("empty", b"", filters=filters)
            writer.write_entry_stream("stream", [noise(4000)], filters=filters, frame_bytes=400)
        with ShardReader(path) as reader:
            assert {info.flags for info in reader.infos()} == {0}
            assert reader.read_entry("noise") == reader.read_entry("stream") == noise(4000)
            assert bytes(reader.view("frames")) == noise(4000)

    def test_a_filtered_entry_has_no_view(self, tmp_path: Path) -> None:
        path = tmp_path / "a.shard"
        with ShardWriter(path, fsync=False) as writer:
            writer.write_entry(
                "a", bytes(4000), compression="zstd", filters=Filters(planes=Planes(4))
            )
        with ShardReader(path) as reader, pytest.raises(NotViewable):
            reader.view("a")

    def test_the_identity_does_not_depend_on_filters(self, tmp_path: Path) -> None:
        data = walk(3000)
        digests = set()
        for number, filters in enumerate(
            [None, Filters(Delta(width=4, row=28)), Filters(planes=Planes(4))]
        ):
            path = tmp_path / f"{number}.shard"
            with ShardWriter(path, fsync=False, identity=True) as writer:
                writer.write_many(
                    [EntryToWrite("a", data, "zstd", filters=filters, frame_bytes=28_000)]
                )
            digests.add(compute_identity(path).digest)
            verify_identity(path)
        assert len(digests) == 1

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"compression": "none"}, "only zstd entries can be filtered"),
            ({"compression": "lz4"}, "only zstd entries can be filtered"),
            ({"frame_bytes": 30}, "frame_bytes does not fit"),
        ],
    )
    def test_options_that_cannot_work_are_refused(
        self, tmp_path: Path, options: dict[str, Any], message: str
    ) -> None:
        filters = Filters(Delta(width=4, row=28))
        with ShardWriter(tmp_path / "a", fsync=False, compression="zstd") as writer:
            with pytest.raises(InvalidArgument, match=message):
                writer.write_entry("a", bytes(2800), filters=filters, **options)
            with pytest.raises(InvalidArgument, match="entry's size does not fit"):
                writer.write_entry("a", bytes(2801), filters=filters)
            with pytest.raises(InvalidArgument, match="needs frame_bytes"):
                writer.write_entry_stream("a", [bytes(2800)], filters=filters)
            with pytest.raises(InvalidArgument, match="S-FLT-5"):
                writer.write_entry_stream("a", [bytes(2801)], filters=filters, frame_bytes=280)
            writer.write_entry("a", bytes(2800), filters=filters)

    def test_a_frame_above_the_limit_is_refused_by_the_writer(self, tmp_path: Path) -> None:
        filters = Filters(planes=Planes(2))
        data = np.zeros(LARGEST_FRAME + 2, np.uint8)
        with ShardWriter(tmp_path / "a", fsync=False, compression="zstd") as writer:
            with pytest.raises(InvalidArgument, match="smaller frame_bytes"):
                writer.write_entry("a", data, filters=filters)
            with pytest.raises(InvalidArgument, match="smaller frame_bytes"):
                writer.write_entry("a", data, filters=filters, frame_bytes=LARGEST_FRAME + 2)


class TestHostileFiles:
    """Hand-made entries; each rule has its error, on every way of reading."""

    # Large enough that readers look for a table.
    CONTENT = walk(3000).tobytes()
    FILTERS = Filters(Delta(width=4, row=28), Planes(4))
    STEPS = (DELTA4, PLANES4)

    def stored(self) -> bytes:
        return described(*self.STEPS) + frame(bytes(self.FILTERS.apply(self.CONTENT)))

    def frames(self, sizes: list[int]) -> list[bytes]:
        cuts = np.cumsum([0, *sizes]).tolist()
        return [
            frame(bytes(self.FILTERS.apply(self.CONTENT[first:end])))
            for first, end in pairwise(cuts)
        ]

    def expect(
        self, reader: ShardReader, error: type[ShardError], rule: str | tuple[str, ...]
    ) -> None:
        rules = (rule,) if isinstance(rule, str) else rule
        size = reader.index["orig_size"][0]

        def read_all() -> Iterator[Any]:
            yield lambda: reader.read_entry("a")
            yield lambda: reader.read_many(["a", "a"])
            yield lambda: reader.read_into("a", bytearray(int(size)))
            yield lambda: b"".join(reader.iter_entry("a"))
            yield lambda: reader.read_range("a", 1, 5)
            yield lambda: reader.verify()

        for read in read_all():
            with pytest.raises(error) as caught:
                read()
            assert caught.value.rule in rules
            assert caught.value.entry == "a"

    def test_the_hand_made_file_is_right(self) -> None:
        reader = file_of(self.stored(), self.CONTENT)
        assert reader.read_entry("a") == self.CONTENT
        reader.verify()

    def test_frames_without_size_or_checksum_are_read_and_a_run_needs_a_table(self) -> None:
        sizes = [33_600, 33_600, 16_800]
        cuts = np.cumsum([0, *sizes]).tolist()
        pieces = [
            bytes(self.FILTERS.apply(self.CONTENT[first:end])) for first, end in pairwise(cuts)
        ]
        frames = [frame(piece, declared=False, checksum=False) for piece in pieces]
        table = seek_table(
            [
                (len(one), len(piece), xxh64_intdigest(piece) & 0xFFFFFFFF)
                for one, piece in zip(frames, pieces, strict=True)
            ]
        )
        whole = bytes(self.FILTERS.apply(self.CONTENT))
        run = b"".join(frames)
        for rest in (frame(whole, declared=False, checksum=False), run + table):
            reader = file_of(described(*self.STEPS) + rest, self.CONTENT)
            assert reader.read_entry("a") == self.CONTENT
            assert reader.read_range("a", 33_000, 69_000) == self.CONTENT[33_000:69_000]
            reader.verify()
        self.expect(file_of(described(*self.STEPS) + run, self.CONTENT), BadFilter, "S-FLT-1")

    def test_a_long_description_is_read(self) -> None:
        text = self.FILTERS.description.ljust(4096)
        reader = file_of(
            skippable(text) + frame(bytes(self.FILTERS.apply(self.CONTENT))), self.CONTENT
        )
        assert reader.filters("a") == self.FILTERS
        assert reader.read_entry("a") == self.CONTENT

    def test_a_description_of_4097_bytes_is_refused(self) -> None:
        text = self.FILTERS.description.ljust(4097)
        reader = file_of(
            skippable(text) + frame(bytes(self.FILTERS.apply(self.CONTENT))), self.CONTENT
        )
        self.expect(reader, BadFilter, "S-FLT-1")

    @pytest.mark.parametrize(
        "leading",
        [b"", skippable(b""), skippable(b'{"filters":[]}', magic=0x184D2A5C), b"\x5d\x2a\x4d\x18"],
        ids=["none", "empty", "other number", "cut"],
    )
    def test_a_missing_description_is_refused(self, leading: bytes) -> None:
        reader = file_of(leading + frame(self.CONTENT), self.CONTENT)
        self.expect(reader, BadFilter, "S-FLT-1")
        with pytest.raises(BadFilter):
            reader.filters("a")

    def test_a_description_that_claims_more_than_there_is_is_refused(self) -> None:
        stored = struct.pack("<II", 0x184D2A5D, 4000) + bytes(100)
        reader = file_of(stored, bytes(300))
        self.expect(reader, BadFilter, "S-FLT-1")

    @pytest.mark.parametrize("flags", [FILTERED, FILTERED | 2, FILTERED | 5])
    def test_the_flag_without_zstd_is_refused(self, flags: int) -> None:
        reader = file_of(self.CONTENT, self.CONTENT, flags=flags)
        self.expect(reader, BadFilter, "S-FLT-1")
        with pytest.raises(BadFilter):
            reader.view("a")
        with pytest.raises(BadFilter):
            reader.info("a")

    def test_zstd_by_default_can_be_filtered(self) -> None:
        row = Row(b"a", self.stored(), flags=FILTERED | 1, content=self.CONTENT)
        reader = ShardReader(HandMade([row], compression_default=1).to_bytes())
        assert reader.read_entry("a") == self.CONTENT

    @pytest.mark.parametrize(
        ("steps", "error", "rule"),
        [
            (({"name": "planes", "width": 3},), BadFilter, "S-FLT-2"),
            (({"name": "example.org", "k": 1},), UnknownFilter, "S-FLT-3"),
            ((PLANES4, DELTA4), BadFilter, "S-FLT-4"),
            (({**DELTA4, "row": 36},), BadFilter, "S-FLT-5"),
            (({**DELTA4, "row": 1 << 40},), BadFilter, "S-FLT-5"),
            (({**DELTA4, "row": 4 * 10**100},), BadFilter, "S-FLT-5"),
        ],
    )
    @pytest.mark.parametrize("in_frames", [False, True])
    def test_a_description_that_breaks_a_rule_is_refused(
        self, steps: tuple[object, ...], error: type[ShardError], rule: str, in_frames: bool
    ) -> None:
        frames = self.frames([33_600, 33_600, 16_800] if in_frames else [84_000])
        table = table_of(frames, [33_600, 33_600, 16_800]) if in_frames else b""
        self.expect(
            file_of(described(*steps) + b"".join(frames) + table, self.CONTENT), error, rule
        )

    def test_frames_that_cut_rows_are_refused(self) -> None:
        cut = [42_002, 41_998]
        frames = [frame(self.CONTENT[:42_002]), frame(self.CONTENT[42_002:])]
        stored = described(DELTA4) + b"".join(frames) + table_of(frames, cut)
        self.expect(file_of(stored, self.CONTENT), BadFilter, "S-FLT-5")

    def test_a_frame_above_64_mib_is_refused_before_it_is_decoded(self) -> None:
        content = bytes(LARGEST_FRAME + 4)
        for declared in (True, False):
            stored = described(PLANES4) + frame(content, declared=declared)
            row = Row(b"a", stored, flags=ZSTD | FILTERED, orig_size=len(content), crc=1)
            reader = ShardReader(HandMade([row]).to_bytes())
            with pytest.raises(BadFilter, match="too large"):
                reader.read_entry("a")

    @pytest.mark.parametrize("change", [-1, 1, 100])
    def test_a_table_whose_sizes_leave_out_the_description_is_refused(self, change: int) -> None:
        sizes = [33_600, 33_600, 16_800]
        frames = self.frames(sizes)
        rows = [
            (len(one), size, int.from_bytes(one[-4:], "little"))
            for one, size in zip(frames, sizes, strict=True)
        ]
        rows[0] = (rows[0][0] + change, *rows[0][1:])
        stored = described(*self.STEPS) + b"".join(frames) + seek_table(rows)
        reader = file_of(stored, self.CONTENT)
        for read in (
            lambda: reader.read_range("a", 1, 5),
            lambda: reader.seek_table("a"),
            lambda: reader.verify(),
        ):
            with pytest.raises(BadSeekTable) as caught:
                read()
            assert caught.value.rule == "S-FLT-6"

    def test_a_size_that_lies_is_refused(self) -> None:
        for size, error in ((83_972, SizeMismatch), (84_028, SizeMismatch)):
            row = Row(b"a", self.stored(), flags=ZSTD | FILTERED, orig_size=size, crc=1)
            self.expect(ShardReader(HandMade([row]).to_bytes()), error, "S-CMP-3")
        row = Row(b"a", self.stored(), flags=ZSTD | FILTERED, orig_size=1 << 40, crc=1)
        with pytest.raises(LimitExceeded):
            ShardReader(HandMade([row]).to_bytes()).read_entry("a")
        reader = ShardReader(
            HandMade([row]).to_bytes(), limits=Limits(max_decompressed_bytes=1 << 50)
        )
        with pytest.raises(SizeMismatch, match="S-CMP-8"):
            reader.read_entry("a")

    def test_the_checksum_is_of_the_original_bytes(self) -> None:
        filtered = bytes(self.FILTERS.apply(self.CONTENT))
        row = Row(b"a", self.stored(), ZSTD | FILTERED, orig_size=84_000, crc=crc32.iscsi(filtered))
        with pytest.raises(ChecksumMismatch, match="S-CRC-1"):
            ShardReader(HandMade([row]).to_bytes()).read_entry("a")

    def test_a_reader_that_ignored_the_flag_would_find_a_wrong_checksum(self) -> None:
        reader = file_of(self.stored(), self.CONTENT, flags=ZSTD)
        with pytest.raises(ChecksumMismatch, match="S-CRC-1"):
            reader.read_entry("a")

    def test_any_flipped_bit_is_an_error_or_the_same_data(self) -> None:
        content = walk(120).tobytes()
        frames = [
            frame(bytes(self.FILTERS.apply(content[at : at + 1120])))
            for at in range(0, len(content), 1120)
        ]
        stored = described(*self.STEPS) + b"".join(frames) + table_of(frames, [1120, 1120, 1120])
        whole = HandMade([Row(b"a", stored, ZSTD | FILTERED, content=content)]).to_bytes()
        start = whole.index(stored)
        for position in range(start, len(whole)):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << position % 8
            reader = ShardReader(bytes(damaged))
            for read, expected in (
                (lambda reader=reader: reader.read_entry("a"), content),
                (lambda reader=reader: b"".join(reader.iter_entry("a")), content),
            ):
                try:
                    found = read()
                except FormatError:
                    continue
                assert found == expected


class TestWriteMany:
    """Many entries at once: the same bytes as one by one."""

    @staticmethod
    def entries() -> list[EntryToWrite]:
        camera = np.arange(300 * 64, dtype=np.uint8).reshape(300, 64)
        both = Filters(Delta(width=4, row=28), Planes(4))
        return [
            EntryToWrite("joints", walk(2000), "zstd", filters=both),
            EntryToWrite("frames", walk(30_000), "zstd:1", filters=both, frame_bytes=28_000),
            EntryToWrite("camera", camera, "zstd", frame_bytes=6400, tags=["sensor"]),
            EntryToWrite("raw", noise(70_000), content_type="blob"),
            EntryToWrite("noise", noise(5000), "zstd", filters=Filters(planes=Planes(2))),
            EntryToWrite("lz4", prose(9000), "lz4", metadata={"description": "text"}),
            EntryToWrite("small", b"x", "zstd", tags=["sensor", "late"]),
            EntryToWrite("empty", b""),
            *(EntryToWrite(f"many/{number}", prose(number)) for number in range(300)),
        ]

    @staticmethod
    def write_one_by_one(writer: ShardWriter, entries: list[EntryToWrite]) -> None:
        for entry in entries:
            writer.write_entry(
                entry.name,
                entry.data,
                compression=entry.compression,
                content_type=entry.content_type,
                tags=entry.tags,
                frame_bytes=entry.frame_bytes,
                filters=entry.filters,
                metadata=entry.metadata,
            )

    @pytest.mark.parametrize("threads", [1, 2, 8])
    @pytest.mark.parametrize("identity", [False, True])
    def test_the_bytes_are_those_of_write_entry(
        self, tmp_path: Path, threads: int, identity: bool
    ) -> None:
        one, many = tmp_path / "one.shard", tmp_path / "many.shard"
        options: dict[str, Any] = {"fsync": False, "compression": "zstd", "identity": identity}
        with ShardWriter(one, **options) as writer:
            self.write_one_by_one(writer, self.entries())
        with ShardWriter(many, options=WriterOptions(threads=threads), **options) as writer:
            writer.write_many(iter(self.entries()))
        assert one.read_bytes() == many.read_bytes()

    def test_rounds_do_not_show_in_the_bytes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        paths = []
        for limit in (1, 10_000, 1 << 30):
            monkeypatch.setattr("shard_format.writer._ROUND_BYTES", limit)
            paths.append(tmp_path / str(limit))
            with ShardWriter(paths[-1], fsync=False, compression="zstd") as writer:
                writer.write_many(self.entries())
        assert len({path.read_bytes() for path in paths}) == 1

    def test_entries_are_taken_round_by_round(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("shard_format.writer._ROUND_BYTES", 1000)
        written: list[int] = []

        def produce(writer: ShardWriter) -> Iterator[EntryToWrite]:
            for number in range(20):
                written.append(len(writer))
                yield EntryToWrite(str(number), bytes(500))

        with ShardWriter(tmp_path / "a", fsync=False) as writer:
            writer.write_many(produce(writer))
        assert written == [number // 2 * 2 for number in range(20)]

    def test_nothing_to_write_is_nothing_written(self, tmp_path: Path) -> None:
        with ShardWriter(tmp_path / "a", fsync=False) as writer:
            writer.write_many([])
            assert len(writer) == 0

    @pytest.mark.parametrize(
        "bad",
        [
            EntryToWrite("bad", bytes(500), "none", filters=Filters(planes=Planes(2))),
            EntryToWrite("bad", "text"),  # type: ignore[arg-type] # on purpose
            EntryToWrite("", b""),
            EntryToWrite("good/0", b"again"),
        ],
    )
    def test_entries_before_a_bad_one_are_written(self, tmp_path: Path, bad: EntryToWrite) -> None:
        path = tmp_path / "a.shard"
        good = [EntryToWrite(f"good/{number}", prose(900)) for number in range(4)]
        with ShardWriter(path, fsync=False, compression="zstd") as writer:
            with pytest.raises(InvalidArgument):
                writer.write_many([*good[:3], bad, good[3]])
            writer.write_entry("after", b"1")
        with ShardReader(path) as reader:
            assert reader.names() == ["good/0", "good/1", "good/2", "after"]

    def test_an_iterable_that_fails_keeps_what_came_before(self, tmp_path: Path) -> None:
        path = tmp_path / "a.shard"

        def produce() -> Iterator[EntryToWrite]:
            yield EntryToWrite("a", b"1")
            raise OSError("the camera is gone")

        with ShardWriter(path, fsync=False) as writer, pytest.raises(OSError, match="camera"):
            writer.write_many(produce())
        with ShardReader(path) as reader:
            assert reader.names() == ["a"]

    def test_an_iterable_that_aborts_ends_the_writing(self, tmp_path: Path) -> None:
        writer = ShardWriter(tmp_path / "a.shard", fsync=False)

        def produce() -> Iterator[EntryToWrite]:
            yield EntryToWrite("a", b"1")
            writer.abort()

        with pytest.raises(ShardError, match="closed"):
            writer.write_many(produce())
        assert not (tmp_path / "a.shard").exists()
