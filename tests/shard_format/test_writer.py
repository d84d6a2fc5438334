"""ShardWriter: what it takes, what it refuses, and when a file appears."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import mmap
import os
import random
import stat
import struct
from textwrap import dedent
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from shard_format import (
    Codec,
    Compression,
    ContentType,
    Limits,
    Role,
    Schema,
    ShardError,
    ShardReader,
    ShardWriter,
    WriterOptions,
    compute_identity,
    verify_identity,
)
from shard_format import (
    writer as writer_module,
)
from shard_format.errors import (
    BadMetadata,
    Closed,
    InvalidArgument,
    LimitExceeded,
    ShardIOError,
)
from tests.shard_format.support import (
    LAYOUTS,
    HandMade,
    Row,
    check_python,
    layout_options,
    listing,
    noise,
    prose,
    write_shard,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

TEXT = prose(50_000)
NOISE = noise(50_000)

# The start of scripts that measure how far their memory grows.
MEASURE = """
import sys
from shard_format import ShardReader, ShardWriter

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) << 10

def reset():
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the file of a test goes, in a folder of its own."""
    return tmp_path / "a.shard"


def open_writer(path: Path, **options: Any) -> ShardWriter:  # noqa: ANN401 - the writer's
    """A writer that does not wait for the disk."""
    return ShardWriter(path, fsync=False, **options)


def raising(pieces: list[bytes], error: BaseException) -> Iterator[bytes]:
    """Some pieces, then an error."""
    yield from pieces
    raise error


class TestData:
    """Everything with bytes is taken, and nothing else."""

    @pytest.mark.parametrize(
        "data",
        [
            b"plain",
            b"",
            bytearray(b"mutable"),
            memoryview(b"a view"),
            memoryview(b"0123456789")[2:7],
            memoryview(b"0123456789")[::2],
            memoryview(b"0123456789")[::-1],
            np.arange(12, dtype=np.int32).reshape(3, 4).data,
            np.zeros((0, 4), np.int32).data,
            np.zeros(3, "i4,f8").data,
            np.arange(3, dtype=">f4").data,
            (ctypes.c_int * 4)(1, 2, 3, 4),
            mmap.mmap(-1, 100),
        ],
        ids=lambda data: type(data).__name__,
    )
    def test_any_buffer_is_written_as_its_bytes(self, path: Path, data: Any) -> None:  # noqa: ANN401 - many types
        with open_writer(path) as writer:
            writer.write_entry("whole", data)
            writer.write_entry_stream("pieces", [data, b"", data])
        expected = memoryview(data).tobytes()
        with ShardReader(path) as reader:
            assert reader.read_entry("whole") == expected
            assert reader.read_entry("pieces") == expected * 2

    @pytest.mark.parametrize(
        "array",
        [
            np.arange(6, dtype=dtype).reshape(2, 3)
            for dtype in [
                "i1",
                "u1",
                "<i2",
                ">i2",
                "<u4",
                "<i8",
                "<u8",
                "<f2",
                "<f4",
                ">f4",
                "<f8",
                "<c8",
                "<c16",
            ]
        ]
        + [
            np.array([[True, False], [False, True]]),
            np.array(["2024-01-01", "NaT"], "datetime64[ns]"),
            np.array([1, 2], "timedelta64[s]"),
            np.array([(1, 2.5), (3, 4.5)], [("a", "<i4"), ("b", "<f8")]),
            np.array(["text", "ü"]),
            np.array([b"bytes", b"x"]),
            np.array(3.5),
            np.empty((0, 7), np.float32),
            np.empty((3, 0), np.float32),
            np.asfortranarray(np.arange(12).reshape(3, 4)),
            np.arange(24).reshape(4, 6)[::2, 1::2],
            np.arange(10)[::-1],
            np.arange(12).reshape(3, 4).T,
            np.broadcast_to(np.float32(2), (3, 3)),
            np.zeros(3, np.dtype([])),
            np.ma.masked_array(np.arange(4), [False, True, False, False]).data,
        ],
        ids=lambda array: f"{array.dtype.str}-{array.shape}-{array.flags.c_contiguous}",
    )
    def test_any_array_is_written_in_c_order(self, path: Path, array: np.ndarray[Any, Any]) -> None:
        with open_writer(path) as writer:
            writer.write_entry("a", array)
        assert ShardReader(path).read_entry("a") == array.tobytes(order="C")

    def test_a_read_only_array_is_written(self, path: Path) -> None:
        array = np.frombuffer(bytes(range(100)), np.uint8)
        assert not array.flags.writeable
        with open_writer(path) as writer:
            writer.write_entry("a", array)
        assert ShardReader(path).read_entry("a") == bytes(range(100))

    @pytest.mark.parametrize("layout", LAYOUTS)
    @pytest.mark.parametrize("size", [10, 3 << 20])
    def test_a_buffer_may_be_reused_after_the_call(
        self, path: Path, layout: str, size: int
    ) -> None:
        buffer = bytearray(b"1" * size)
        with open_writer(path, **layout_options(layout, ["a", "b", "c"])) as writer:
            writer.write_entry("a", buffer)
            buffer[:] = b"2" * size
            writer.write_entry("b", np.frombuffer(buffer, np.uint8))
            buffer[:] = b"3" * size
            writer.write_entry_stream("c", [memoryview(buffer)])
            buffer[:] = b"4" * size
        with ShardReader(path) as reader:
            for name, digit in zip("abc", b"123", strict=True):
                assert reader.read_entry(name) == bytes([digit]) * size

    @pytest.mark.parametrize(
        "data",
        ["text", 5, None, [1, 2], np.array([object()]), np.array([("x", 1)], "O,i4")],
        ids=["str", "int", "None", "list", "object array", "structured objects"],
    )
    def test_what_has_no_bytes_is_refused_and_the_writer_goes_on(
        self,
        path: Path,
        data: Any,  # noqa: ANN401 - wrong on purpose
    ) -> None:
        with open_writer(path) as writer:
            with pytest.raises(InvalidArgument) as caught:
                writer.write_entry("a", data)
            assert caught.value.entry == "a"
            with pytest.raises(InvalidArgument):
                writer.write_entry_stream("a", [b"good", data])
            writer.write_entry("a", b"good")
        assert ShardReader(path).read_entry("a") == b"good"

    def test_chunks_that_are_no_iterable_are_refused_and_the_writer_goes_on(
        self, path: Path
    ) -> None:
        with open_writer(path) as writer:
            with pytest.raises((InvalidArgument, TypeError)):
                writer.write_entry_stream("a", cast("Any", None), metadata={"x": 1})
            writer.write_entry("b", b"good")
        with ShardReader(path) as reader:
            assert reader.names() == ["b"]
            assert reader.schema is None or "a" not in reader.schema.entry_metadata


class TestNames:
    """Names are checked before anything is written."""

    @pytest.mark.parametrize(
        ("name", "rule"),
        [
            ("", "S-NAM-6"),
            ("a\0b", "S-NAM-6"),
            ("x" * 65_536, "S-NAM-6"),
            ("ü" * 32_768, "S-NAM-6"),
            ("\ud800", "S-NAM-3"),
            (b"bytes", "S-NAM-6"),
            (5, "S-NAM-6"),
            (None, "S-NAM-6"),
        ],
        ids=["empty", "NUL", "long", "long in UTF-8", "surrogate", "bytes", "int", "None"],
    )
    def test_a_bad_name_is_refused_and_the_writer_goes_on(
        self,
        path: Path,
        name: Any,  # noqa: ANN401 - wrong on purpose
        rule: str,
    ) -> None:
        with open_writer(path) as writer:
            with pytest.raises(InvalidArgument) as caught:
                writer.write_entry(name, b"")
            assert caught.value.rule == rule
            with pytest.raises(InvalidArgument):
                writer.write_entry_stream(name, [b""])
            writer.write_entry("good", b"1")
        assert ShardReader(path).names() == ["good"]

    @pytest.mark.parametrize("name", ["x" * 65_535, "../..", "/", "a\nb", " ", "😀", "\ufeff"])
    def test_any_other_text_is_a_name(self, path: Path, name: str) -> None:
        write_shard(path, {name: b"1"})
        assert ShardReader(path)[name] == b"1"

    def test_a_repeated_name_is_refused_and_the_writer_goes_on(self, path: Path) -> None:
        with open_writer(path) as writer:
            writer.write_entry("a", b"first")
            for write in (
                writer.write_entry,
                lambda name, data: writer.write_entry_stream(name, [data]),
            ):
                with pytest.raises(InvalidArgument, match="S-NAM-4"):
                    write("a", b"second")
            writer.write_entry("b", b"third")
        with ShardReader(path) as reader:
            assert [reader[name] for name in reader] == [b"first", b"third"]

    @pytest.mark.slow
    def test_a_name_repeated_among_a_hundred_thousand_is_refused(self, path: Path) -> None:
        with open_writer(path, alignment=0) as writer:
            for number in range(100_000):
                writer.write_entry(str(number), b"")
            for again in ("0", "65535", "65536", "99999"):
                with pytest.raises(InvalidArgument, match="already written"):
                    writer.write_entry(again, b"")
            assert len(writer) == 100_000
        assert len(ShardReader(path)) == 100_000

    def test_different_names_with_equal_hashes_are_both_written(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("shard_format.writer_input.xxh64_intdigest", lambda name: 7)
        monkeypatch.setattr("shard_format._assembly.xxh64_intdigest", lambda name: 7)
        with open_writer(path) as writer:
            writer.write_entry("a", b"1")
            writer.write_entry("b", b"2")
            with pytest.raises(InvalidArgument, match="already written"):
                writer.write_entry("a", b"3")
        with ShardReader(path) as reader:
            assert [reader[name] for name in ("a", "b")] == [b"1", b"2"]

    def test_wshard_files_have_no_nul_after_names_and_others_have_one(self, path: Path) -> None:
        for role, table in ((Role.WSHARD, b"abcd"), (Role.UNKNOWN, b"ab\0cd\0")):
            write_shard(path, {"ab": b"", "cd": b""}, role=role, alignment=0)
            assert path.read_bytes()[64 + 2 * 48 :] == table


class TestOptions:
    """Arguments of the writer and of single entries."""

    @pytest.mark.parametrize(
        "options",
        [
            {"alignment": 8},
            {"alignment": 128},
            {"alignment": -16},
            {"compression": "gzip"},
            {"compression": "zstd:23"},
            {"compression": "zstd:x"},
            {"compression": "lz4:0"},
            {"compression": "lz4:13"},
            {"compression": "none:1"},
            {"compression": ""},
            {"role": 256},
            {"role": -1},
            {"role": "robot"},
            {"reserve": -1},
            {"reserve": 10_000_001},
            {"reserve": ["a", ""]},
        ],
        ids=str,
    )
    def test_a_bad_option_is_refused_before_anything_is_made(
        self, path: Path, options: dict[str, Any]
    ) -> None:
        with pytest.raises(InvalidArgument):
            ShardWriter(path, **options)
        assert listing(path.parent) == []

    def test_repeated_declared_names_are_refused(self, path: Path) -> None:
        with contextlib.suppress(InvalidArgument), open_writer(path, reserve=["a", "a"]) as writer:
            writer.write_entry("a", b"")
            writer.write_entry("a", b"")
        assert listing(path.parent) == []

    def test_a_bad_schema_is_refused(self, path: Path) -> None:
        with pytest.raises(BadMetadata, match="S-SCH-4"):
            ShardWriter(path, options=WriterOptions(schema={"tags": "one"}))
        assert listing(path.parent) == []

    @pytest.mark.parametrize(
        "options",
        [
            {"compression": "gzip"},
            {"compression": 5},
            {"content_type": 65_536},
            {"content_type": "poem"},
            {"tags": 65_536},
            {"tags": -1},
            {"tags": "one string"},
            {"tags": [5]},
            {"tags": [f"tag {number}" for number in range(17)]},
            {"metadata": {"x": float("nan")}},
            {"metadata": {"x": print}},
            {"metadata": {5: "x"}},
            {"compression": "zstd", "frame_bytes": 0},
            {"compression": "zstd", "frame_bytes": 1 << 32},
            {"compression": "lz4", "frame_bytes": 100},
            {"compression": "none", "frame_bytes": 100},
            {"frame_bytes": 100},
        ],
        ids=str,
    )
    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_a_bad_argument_of_an_entry_leaves_no_trace(
        self, path: Path, options: dict[str, Any], layout: str
    ) -> None:
        data = bytes(1000)
        arguments = layout_options(layout, ["a", "b"])
        with open_writer(path, **arguments) as writer:
            writer.write_entry("a", data)
            with pytest.raises(InvalidArgument):
                writer.write_entry("b", data, **options)
            with pytest.raises(InvalidArgument):
                writer.write_entry_stream("b", [data], **options)
            writer.write_entry("b", data)
        first = path.read_bytes()
        write_shard(path, {"a": data, "b": data}, **arguments)
        assert path.read_bytes() == first

    @pytest.mark.parametrize(
        ("codec", "level"), [(Codec.ZSTD, 23), (Codec.LZ4, 0), (Codec.LZ4, 13), (Codec.NONE, 1)]
    )
    def test_a_level_that_the_codec_does_not_have_is_refused(
        self, path: Path, codec: Codec, level: int
    ) -> None:
        with open_writer(path) as writer:
            with pytest.raises(InvalidArgument):
                writer.write_entry("a", bytes(1000), compression=Compression(codec, level))
            writer.write_entry("a", b"1")
        assert ShardReader(path)["a"] == b"1"

    def test_content_types_and_roles_are_stored(self, path: Path) -> None:
        with open_writer(path, role="samples") as writer:
            writer.write_entry("enum", b"", content_type=ContentType.JSON)
            writer.write_entry("name", b"", content_type="image")
            writer.write_entry("number", b"", content_type=0x8001)
            writer.write_entry_stream("digits", [], content_type="17")
        with ShardReader(path) as reader:
            assert reader.role == Role.SAMPLES
            assert [info.content_type for info in reader.infos()] == [2, 6, 0x8001, 17]
            assert reader.header.flags == 0x22 | 0x80

    def test_flags_say_what_is_in_the_file(self, path: Path) -> None:
        write_shard(path, {"a": b""})
        assert ShardReader(path).header.flags == 0x22
        write_shard(path, {"a": b""}, schema={"x": 1})
        assert ShardReader(path).header.flags == 0x22 | 0x10
        write_shard(path, {"a": b""}, reserve=3)
        assert ShardReader(path).header.flags == 0x22 | 0x40

    @pytest.mark.parametrize("alignment", [0, 16, 32, 64])
    def test_every_block_is_aligned_and_gaps_are_zero(self, path: Path, alignment: int) -> None:
        contents = {str(size): b"\xff" * size for size in (1, 0, 15, 16, 17, 63, 64, 65, 0, 1000)}
        write_shard(path, contents, alignment=alignment)
        data = bytearray(path.read_bytes())
        with ShardReader(bytes(data)) as reader:
            assert reader.header.alignment == alignment
            end = reader.header.data_section_offset
            for info in reader.infos():
                if alignment:
                    assert info.data_offset % alignment == 0
                assert not any(data[end : info.data_offset])
                end = info.data_offset + info.disk_size
            assert end == len(data), "no padding after the last block"


class TestCompression:
    """S-CMP-10: what is kept compressed."""

    WAYS = pytest.mark.parametrize(
        ("codec", "stream"),
        [("zstd", False), ("zstd", True), ("lz4", False)],
        ids=["zstd", "zstd stream", "lz4"],
    )

    def write(self, writer: ShardWriter, name: str, data: bytes, stream: bool) -> None:
        if stream:
            writer.write_entry_stream(name, [data[:500], data[500:]])
        else:
            writer.write_entry(name, data)

    @WAYS
    def test_256_bytes_stay_raw_and_257_are_compressed(
        self, path: Path, codec: str, stream: bool
    ) -> None:
        with open_writer(path, compression=codec) as writer:
            for size in (0, 1, 256, 257):
                self.write(writer, str(size), bytes(size), stream)
        with ShardReader(path) as reader:
            codecs = [info.codec.label for info in reader.infos()]
            assert codecs == ["none", "none", "none", codec]
            assert [len(reader[name]) for name in reader] == [0, 1, 256, 257]

    @WAYS
    def test_entries_keep_the_rule_of_nine_tenths(
        self, path: Path, codec: str, stream: bool
    ) -> None:
        """Around the border: more and more noise in front of zeros."""
        with open_writer(path, compression=codec) as writer:
            for size in range(850, 960, 2):
                self.write(writer, str(size), noise(size) + bytes(1000 - size), stream)
        with ShardReader(path) as reader:
            kept = [info for info in reader.infos() if info.codec is not Codec.NONE]
            raw = [info for info in reader.infos() if info.codec is Codec.NONE]
            assert kept
            assert raw
            assert all(info.disk_size < 900 for info in kept)
            assert all(info.disk_size == 1000 for info in raw)
            reader.verify()

    def test_lz4_cannot_be_streamed_and_says_why(self, path: Path) -> None:
        with open_writer(path) as writer:
            with pytest.raises(InvalidArgument, match="one block"):
                writer.write_entry_stream("a", [bytes(1000)], compression="lz4")
            writer.write_entry("a", b"1")
        assert ShardReader(path)["a"] == b"1"

    @pytest.mark.parametrize("codec", ["zstd", "lz4"])
    def test_an_entry_is_kept_raw_exactly_when_the_codec_says_so(
        self, path: Path, codec: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """899 of 1000 bytes are kept, 900 are not, and 899 of 1001 are not (the floor)."""
        for size, stored, expected in (
            (1000, 899, True),
            (1000, 900, False),
            (1001, 899, True),
            (1001, 900, False),
            (1009, 907, True),
            (1009, 908, False),
        ):
            monkeypatch.setattr(
                "shard_format.codecs.compress_frame", lambda *_, n=stored, **__: bytes(n)
            )
            monkeypatch.setattr("cramjam.lz4.compress_block", lambda *_, n=stored, **__: bytes(n))
            with open_writer(path) as writer:
                writer.write_entry("a", noise(size), compression=codec)
            assert (ShardReader(path).info("a").disk_size == stored) == expected, (size, stored)

    @pytest.mark.parametrize("text", ["zstd:-5", "zstd:1", "zstd:22", "lz4", "ZSTD"])
    def test_levels_are_used(self, path: Path, text: str) -> None:
        write_shard(path, {"a": TEXT}, compression=text)
        with ShardReader(path) as reader:
            assert reader.info("a").codec.label == text.partition(":")[0].lower()
            assert reader["a"] == TEXT

    @pytest.mark.parametrize(("low", "high"), [("zstd:1", "zstd:19")])
    def test_a_higher_level_compresses_more(self, path: Path, low: str, high: str) -> None:
        # Words in random order: the fast modes miss matches that the dense ones find.
        words = [noise(2 + number % 8, number) for number in range(500)]
        data = b" ".join(random.Random(0).choices(words, k=40_000))
        with open_writer(path) as writer:
            writer.write_entry("low", data, compression=low)
            writer.write_entry("high", data, compression=high)
        with ShardReader(path) as reader:
            assert reader.info("high").disk_size < reader.info("low").disk_size

    def test_the_writers_codec_is_a_default_and_none_overrides_it(self, path: Path) -> None:
        with open_writer(path, compression="zstd") as writer:
            writer.write_entry("a", TEXT)
            writer.write_entry("b", TEXT, compression="lz4")
            writer.write_entry("c", TEXT, compression="none")
            writer.write_entry("d", TEXT, compression=Compression(Codec.ZSTD, 5))
        with ShardReader(path) as reader:
            assert [info.codec.label for info in reader.infos()] == ["zstd", "lz4", "none", "zstd"]
            assert reader.header.compression_default == Codec.ZSTD

    def test_compressed_entries_above_the_limit_are_refused(self, path: Path) -> None:
        with open_writer(
            path, options=WriterOptions(limits=Limits(max_decompressed_bytes=10_000))
        ) as writer:
            with pytest.raises(LimitExceeded, match="S-CMP-2"):
                writer.write_entry("a", bytes(10_001), compression="zstd")
            with pytest.raises(LimitExceeded, match="S-CMP-2"):
                writer.write_entry_stream("a", [bytes(5_000)] * 3, compression="zstd")
            writer.write_entry("a", bytes(10_001))
            writer.write_entry("b", bytes(10_000), compression="zstd")
        ShardReader(path).verify()

    def test_zstd_frames_declare_their_content_size(self, path: Path) -> None:
        """S-CMP-11. The Frame_Content_Size_flag is not 0, or the frame is a single segment."""
        with open_writer(path, compression="zstd") as writer:
            writer.write_entry("whole", TEXT)
            writer.write_entry("frames", TEXT, frame_bytes=20_000)
        with ShardReader(path) as reader:
            for name in reader:
                info = reader.info(name)
                descriptor = path.read_bytes()[info.data_offset + 4]
                assert descriptor >> 6 or descriptor & 0x20, name


class TestLayouts:
    """Three ways to write the head; one result."""

    CONTENTS = {  # noqa: RUF012 - a constant
        "text": TEXT,
        "noise": NOISE,
        "empty": b"",
        "größe": b"1",
        "last": b"12345",
    }

    @pytest.mark.parametrize("alignment", [0, 16, 64])
    @pytest.mark.parametrize("schema", [None, {"producer": "test"}], ids=["bare", "schema"])
    @pytest.mark.parametrize("identity", [False, True], ids=["plain", "identity"])
    def test_declared_names_give_the_bytes_of_the_default(
        self, path: Path, alignment: int, schema: dict[str, Any] | None, identity: bool
    ) -> None:
        options: dict[str, Any] = {
            "alignment": alignment,
            "schema": schema,
            "identity": identity,
            "compression": "zstd",
        }
        moved = write_shard(path, self.CONTENTS, **options).read_bytes()
        again = write_shard(path, self.CONTENTS, **options).read_bytes()
        declared = write_shard(path, self.CONTENTS, reserve=list(self.CONTENTS), **options)
        assert again == moved
        assert declared.read_bytes() == moved

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_every_layout_reads_and_verifies(self, path: Path, layout: str) -> None:
        names = [*self.CONTENTS, "streamed", "frames"]
        with open_writer(path, compression="zstd", **layout_options(layout, names)) as writer:
            for name, data in self.CONTENTS.items():
                writer.write_entry(name, data)
            writer.write_entry_stream("streamed", [TEXT, NOISE])
            writer.write_entry_stream("frames", [TEXT, NOISE], frame_bytes=7_000)
        with ShardReader(path) as reader:
            reader.verify()
            assert reader.names() == names
            assert {name: reader[name] for name in self.CONTENTS} == self.CONTENTS
            assert reader["streamed"] == reader["frames"] == TEXT + NOISE

    def test_blocks_larger_than_the_spool_give_the_same_bytes(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        expected = write_shard(path, self.CONTENTS).read_bytes()
        for size in (0, 1, 5, 60_000):
            monkeypatch.setattr(writer_module, "_SPOOL_BYTES", size)
            monkeypatch.setattr("shard_format._assembly._SPOOL_BYTES", size)
            assert write_shard(path, self.CONTENTS).read_bytes() == expected
            assert listing(path.parent) == ["a.shard"]

    def test_an_uncompressed_file_is_what_the_tables_of_the_spec_say(self, path: Path) -> None:
        """Against bytes that were put together without the library."""
        write_shard(path, self.CONTENTS, alignment=32)
        rows = [Row(name.encode(), data) for name, data in self.CONTENTS.items()]
        assert path.read_bytes() == HandMade(rows, alignment=32).to_bytes()

    def test_a_reserved_head_has_its_stated_size(self, path: Path) -> None:
        write_shard(path, {"a": b"1"}, reserve=10, alignment=64)
        header = ShardReader(path).header
        assert header.data_section_offset == 1216  # align(64 + 48 * 10 + 64 * 10) = align(1184)
        assert header.string_table_offset == 112
        assert not any(path.read_bytes()[114:1216])

    def test_a_full_reserved_head_refuses_the_entry_and_keeps_the_others(self, path: Path) -> None:
        with open_writer(path, reserve=2, alignment=0) as writer:
            writer.write_entry("a" * 100, b"1")
            with pytest.raises(LimitExceeded, match="the reserved head is full") as caught:
                writer.write_entry("b" * 100, b"2")
            assert "reserve more" in str(caught.value.hint)
            writer.write_entry("b", b"2")
        with ShardReader(path) as reader:
            assert reader.names() == ["a" * 100, "b"]

    def test_a_declared_entry_that_is_missing_fails_the_file(self, path: Path) -> None:
        writer = open_writer(path, reserve=["a", "b"])
        writer.write_entry("a", b"")
        with pytest.raises(InvalidArgument, match="next 'b'"):
            writer.close()
        assert listing(path.parent) == []
        with pytest.raises(Closed):
            writer.write_entry("b", b"")

    def test_a_declared_entry_out_of_order_is_refused_and_can_follow(self, path: Path) -> None:
        with open_writer(path, reserve=["a", "b"]) as writer:
            with pytest.raises(InvalidArgument, match="not the next"):
                writer.write_entry("b", b"2")
            writer.write_entry("a", b"1")
            writer.write_entry("b", b"2")
            with pytest.raises(InvalidArgument, match="no more entries"):
                writer.write_entry("c", b"3")
        assert ShardReader(path).names() == ["a", "b"]

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_a_file_without_entries_is_valid(self, path: Path, layout: str) -> None:
        open_writer(path, **layout_options(layout, [])).close()
        with ShardReader(path) as reader:
            reader.verify()
            assert len(reader) == 0

    def test_the_limits_of_the_head_are_kept(self, path: Path) -> None:
        with open_writer(path, options=WriterOptions(limits=Limits(max_entries=1))) as writer:
            writer.write_entry("a", b"")
            with pytest.raises(LimitExceeded, match="too many entries"):
                writer.write_entry("b", b"")
        with open_writer(
            path, options=WriterOptions(limits=Limits(max_string_table_bytes=100))
        ) as writer:
            writer.write_entry("a", b"")
            with pytest.raises(LimitExceeded, match="bytes of names"):
                writer.write_entry("b" * 100, b"")
        assert ShardReader(path).names() == ["a"]


class TestStreams:
    """write_entry_stream: pieces of any size, unknown in number."""

    @pytest.mark.parametrize("layout", LAYOUTS)
    @pytest.mark.parametrize("frame_bytes", [None, 1_000], ids=["one frame", "seekable"])
    @pytest.mark.parametrize("codec", ["none", "zstd", "zstd:-1"])
    @pytest.mark.parametrize("content", [TEXT, NOISE, b""], ids=["text", "noise", "empty"])
    def test_pieces_come_back_as_one(
        self, path: Path, layout: str, frame_bytes: int | None, codec: str, content: bytes
    ) -> None:
        if codec == "none":
            frame_bytes = None
        with open_writer(path, **layout_options(layout, ["before", "a", "after"])) as writer:
            writer.write_entry("before", b"1")
            pieces = (content[at : at + 777] for at in range(0, len(content), 777))
            writer.write_entry_stream("a", pieces, compression=codec, frame_bytes=frame_bytes)
            writer.write_entry("after", b"2")
        with ShardReader(path) as reader:
            reader.verify()
            assert reader["a"] == content
            assert (reader["before"], reader["after"]) == (b"1", b"2")
            shrinks = codec != "none" and content == TEXT
            assert reader.info("a").codec.label == ("zstd" if shrinks else "none")
            assert (reader.seek_table("a") is not None) == (shrinks and frame_bytes is not None)

    @pytest.mark.parametrize("frame_bytes", [None, 3_000], ids=["one frame", "seekable"])
    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_what_does_not_shrink_is_stored_raw_also_from_the_disk_spool(
        self,
        path: Path,
        frame_bytes: int | None,
        layout: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(writer_module, "_SPOOL_BYTES", 1_000)
        monkeypatch.setattr(writer_module, "_EXPAND_BYTES", 777)
        monkeypatch.setattr("shard_format._assembly._READ_BACK_BYTES", 512)
        with open_writer(path, **layout_options(layout, ["a", "b", "c"])) as writer:
            writer.write_entry("a", b"1")
            chunks = [NOISE[:20_000], NOISE[20_000:]]
            writer.write_entry_stream("b", chunks, compression="zstd", frame_bytes=frame_bytes)
            writer.write_entry("c", b"2")
        with ShardReader(path) as reader:
            assert reader.info("b").codec is Codec.NONE
            assert [reader[name] for name in "abc"] == [b"1", NOISE, b"2"]
        assert listing(path.parent) == ["a.shard"]

    @pytest.mark.parametrize("layout", LAYOUTS)
    @pytest.mark.parametrize("spool", [0, 1 << 20], ids=["disk", "memory"])
    @pytest.mark.parametrize(
        "error",
        [RuntimeError("broken"), OSError(5, "the camera is gone"), EOFError()],
        ids=["RuntimeError", "OSError", "EOFError"],
    )
    @pytest.mark.parametrize("codec", ["none", "zstd"])
    def test_an_iterable_that_raises_leaves_the_writer_as_it_was(
        self,
        path: Path,
        layout: str,
        spool: int,
        error: BaseException,
        codec: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(writer_module, "_SPOOL_BYTES", spool)
        options = layout_options(layout, ["a", "b", "c"])
        expected = write_shard(path, {"a": b"1", "b": b"22", "c": b"333"}, **options).read_bytes()
        with open_writer(path, **options) as writer:
            writer.write_entry("a", b"1")
            for pieces in ([], [b"x"], [NOISE] * 5):
                with pytest.raises(type(error)) as caught:
                    writer.write_entry_stream("b", raising(pieces, error), compression=codec)
                assert caught.value is error
            writer.write_entry("b", b"22")
            writer.write_entry_stream("c", [b"3", b"33"])
        assert path.read_bytes() == expected

    @pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), MemoryError()], ids=repr)
    def test_an_interrupted_stream_leaves_the_old_file_or_a_valid_one(
        self, path: Path, error: BaseException
    ) -> None:
        """Such an error may strike between any two steps: the writer may give up, the file may not break."""
        write_shard(path, {"old": b"1"})
        writer = open_writer(path)
        writer.write_entry("a", b"1")
        with pytest.raises(type(error)):
            writer.write_entry_stream("b", raising([NOISE], error))
        with contextlib.suppress(Closed):
            writer.write_entry("b", b"22")
            writer.close()
        assert listing(path.parent) == ["a.shard"]
        with ShardReader(path) as reader:
            reader.verify()
            assert reader.names() in (["old"], ["a", "b"])

    def test_a_failed_stream_leaves_no_tags_or_metadata(self, path: Path) -> None:
        with open_writer(path) as writer:
            with pytest.raises(RuntimeError):
                writer.write_entry_stream(
                    "a", raising([], RuntimeError()), tags=["lost"], metadata={"lost": True}
                )
            writer.write_entry("a", b"1")
        schema = ShardReader(path).schema
        assert schema is None or (schema.entry_metadata == {} and schema.tag_dictionary == [])

    def test_a_failed_stream_keeps_the_metadata_that_the_caller_gave_with_the_schema(
        self, path: Path
    ) -> None:
        with open_writer(
            path, options=WriterOptions(schema={"entry_metadata": {"a": {"kept": True}}})
        ) as writer:
            with pytest.raises(RuntimeError):
                writer.write_entry_stream("a", raising([b"x"], RuntimeError()))
            writer.write_entry("a", b"1")
        schema = ShardReader(path).schema
        assert schema is not None
        assert schema.entry_metadata == {"a": {"kept": True}}

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_writing_inside_a_stream_of_the_same_writer_cannot_break_the_file(
        self, path: Path, layout: str
    ) -> None:
        writer = open_writer(path, **layout_options(layout, ["outer", "inner"]))

        def chunks() -> Iterator[bytes]:
            yield b"first"
            with contextlib.suppress(InvalidArgument):
                writer.write_entry("inner", b"between")
            yield b"second"

        with contextlib.suppress(ShardError):
            writer.write_entry_stream("outer", chunks())
            if layout == "declared":  # refused inside: it was not its turn
                writer.write_entry("inner", b"between")
            writer.close()
        writer.abort()
        if path.exists():
            with ShardReader(path) as reader:
                reader.verify()
                assert reader["outer"] == b"firstsecond"


class TestSeekable:
    """frame_bytes."""

    def test_frames_hold_the_asked_bytes(self, path: Path) -> None:
        with open_writer(path, compression="zstd") as writer:
            writer.write_entry("whole", TEXT, frame_bytes=7_000)
            writer.write_entry_stream("stream", [TEXT[:1], TEXT[1:]], frame_bytes=7_000)
        with ShardReader(path) as reader:
            for name in reader:
                table = reader.seek_table(name)
                assert table is not None
                assert np.diff(table.content_starts).tolist() == [7_000] * 7 + [1_000]
                assert table.checksums is not None
                assert reader[name] == TEXT

    def test_frames_of_an_array_hold_whole_rows(self, path: Path) -> None:
        rows = np.arange(40_000, dtype=np.int32).reshape(400, 100) // 300
        with open_writer(path, compression="zstd") as writer:
            with pytest.raises(InvalidArgument, match="a multiple of 400, such as 1200"):
                writer.write_entry("a", rows, frame_bytes=1_000)
            writer.write_entry("a", rows, frame_bytes=1_200)
        with ShardReader(path) as reader:
            table = reader.seek_table("a")
            assert table is not None
            assert all(start % 400 == 0 for start in table.content_starts.tolist())
            assert reader.read_range("a", 400 * 50, 400 * 60) == rows[50:60].tobytes()

    def test_content_of_one_frame_needs_no_table(self, path: Path) -> None:
        with open_writer(path, compression="zstd") as writer:
            writer.write_entry("a", bytes(1_000), frame_bytes=1_000)
            writer.write_entry("b", bytes(1_001), frame_bytes=1_000)
        with ShardReader(path) as reader:
            assert reader.seek_table("a") is None
            assert reader.seek_table("b") is not None
            assert (reader["a"], reader["b"]) == (bytes(1_000), bytes(1_001))

    def test_the_table_counts_in_the_rule_of_nine_tenths(self, path: Path) -> None:
        """S-SEK-6: tiny frames shrink, but their table does not pay."""
        data = bytes(3_000)
        with open_writer(path, compression="zstd") as writer:
            writer.write_entry("whole", data, frame_bytes=20)
            writer.write_entry_stream("stream", [data], frame_bytes=20)
        with ShardReader(path) as reader:
            assert [info.codec for info in reader.infos()] == [Codec.NONE, Codec.NONE]
            assert reader["whole"] == reader["stream"] == data

    def test_the_number_of_threads_changes_nothing(self, path: Path) -> None:
        data = prose(5 << 20)
        written = set()
        for threads in (1, 2, 7):
            with open_writer(
                path, compression="zstd", options=WriterOptions(threads=threads)
            ) as writer:
                writer.write_entry("a", data, frame_bytes=100_000)
                writer.write_entry_stream("b", [data], frame_bytes=100_000)
            written.add(path.read_bytes())
        assert len(written) == 1

    def test_the_seek_table_is_in_the_standard_format(self, path: Path) -> None:
        """Read back with `struct`, as zstd's seekable format describes it."""
        with open_writer(path, compression="zstd") as writer:
            writer.write_entry("a", TEXT, frame_bytes=20_000)
        info = ShardReader(path).info("a")
        stored = path.read_bytes()[info.data_offset : info.data_offset + info.disk_size]
        frames, descriptor, magic = struct.unpack("<IBI", stored[-9:])
        assert (frames, descriptor, magic) == (3, 0x80, 0x8F92EAB1)
        start = len(stored) - 9 - 3 * 12 - 8
        assert struct.unpack("<II", stored[start : start + 8]) == (0x184D2A5E, 3 * 12 + 9)
        rows = list(struct.iter_unpack("<III", stored[start + 8 : -9]))
        assert sum(row[0] for row in rows) == start
        assert [row[1] for row in rows] == [20_000, 20_000, 10_000]


class TestSchema:
    """What the file says about itself."""

    def test_fields_tags_and_metadata_come_back(self, path: Path) -> None:
        schema = {"producer": "test", "x-unknown": {"deep": [1, None, "ü"]}, "tags": ["t"]}
        with open_writer(path, options=WriterOptions(schema=schema)) as writer:
            writer.write_entry("a", b"", tags=["train", "hard"], metadata={"shape": [1, 2]})
            writer.write_entry_stream("b", [], tags=["hard"], metadata={"y": 1.5})
            writer.write_entry("c", b"", tags=0x8000)
            writer.schema.fields["description"] = "added later"
        with ShardReader(path) as reader:
            found = reader.schema
            assert found is not None
            assert found.fields == {
                **schema,
                "description": "added later",
                "tag_dictionary": ["train", "hard"],
                "entry_metadata": {"a": {"shape": [1, 2]}, "b": {"y": 1.5}},
            }
            assert [found.tags(info.tag_bits) for info in reader.infos()] == [
                ["train", "hard"],
                ["hard"],
                ["bit 15"],
            ]
            assert reader.header.schema_offset + len(found.to_bytes()) == path.stat().st_size

    def test_metadata_of_numpy_scalars_is_written_as_numbers(self, path: Path) -> None:
        values = {"f8": np.float64(1.5), "f4": np.float32(0.5), "i": np.int64(7), "b": np.True_}
        with open_writer(path) as writer:
            writer.write_entry("a", b"", metadata=values)
        schema = ShardReader(path).schema
        assert schema is not None
        assert schema.entry_metadata["a"] == {"f8": 1.5, "f4": 0.5, "i": 7, "b": True}

    def test_the_seventeenth_tag_is_refused_and_the_writer_goes_on(self, path: Path) -> None:
        with open_writer(path) as writer:
            for number in range(16):
                writer.write_entry(str(number), b"", tags=[f"tag {number}"])
            with pytest.raises(InvalidArgument, match="at most 16"):
                writer.write_entry("x", b"", tags=["one more"])
            writer.write_entry("x", b"", tags=["tag 3", "tag 3"])
        with ShardReader(path) as reader:
            assert [info.tag_bits for info in reader.infos()] == [1 << n for n in range(16)] + [8]

    def test_a_null_field_stands_for_an_absent_one(self, path: Path) -> None:
        """S-SCH-4."""
        with open_writer(
            path, options=WriterOptions(schema={"entry_metadata": None, "tag_dictionary": None})
        ) as writer:
            writer.write_entry("a", b"", metadata={"x": 1}, tags=["t"])
            with pytest.raises(RuntimeError):
                writer.write_entry_stream("b", raising([], RuntimeError()))
        schema = ShardReader(path).schema
        assert schema is not None
        assert schema.entry_metadata == {"a": {"x": 1}}

    @pytest.mark.parametrize("wrap", [dict, Schema], ids=["dict", "Schema"])
    def test_the_callers_schema_is_not_changed(
        self, path: Path, wrap: Callable[[dict[str, Any]], Any]
    ) -> None:
        """The same schema for two files: the second must know nothing of the first."""
        given = wrap({"entry_metadata": {"other": {"x": 1}}})
        with open_writer(path, options=WriterOptions(schema=given)) as writer:
            writer.write_entry("a", b"", tags=["t"], metadata={"y": 1})
        assert given == wrap({"entry_metadata": {"other": {"x": 1}}})

    def test_a_schema_that_became_wrong_fails_the_file_and_leaves_nothing(self, path: Path) -> None:
        writer = open_writer(path)
        writer.schema.fields["tags"] = "one"
        with pytest.raises(ShardError, match="S-SCH-4"):
            writer.close()
        assert listing(path.parent) == []


class TestIdentity:
    """identity=True."""

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_the_last_entry_is_the_identity(self, path: Path, layout: str) -> None:
        names = ["a", "b"]
        with open_writer(path, identity=True, **layout_options(layout, names)) as writer:
            writer.write_entry("a", TEXT, compression="lz4")
            with pytest.raises(RuntimeError):
                writer.write_entry_stream("b", raising([b"lost"], RuntimeError()))
            writer.write_entry_stream("b", [TEXT, NOISE], compression="zstd")
            with pytest.raises(InvalidArgument):
                writer.write_entry("meta/identity", b"{}")
        with ShardReader(path) as reader:
            assert reader.names() == ["a", "b", "meta/identity"]
            assert reader["meta/identity"] == compute_identity(reader).text
            assert reader.info("meta/identity").content_type == ContentType.JSON
            verify_identity(reader)

    def test_without_it_the_caller_may_write_the_entry(self, path: Path) -> None:
        write_shard(path, {"a": b"", "meta/identity": b"{}"})
        assert ShardReader(path)["meta/identity"] == b"{}"


class TestAppearing:
    """The file appears complete, in one step, or not at all."""

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_nothing_is_seen_before_close(self, path: Path, layout: str) -> None:
        writer = open_writer(path, **layout_options(layout, ["a"]))
        writer.write_entry("a", NOISE)
        assert not path.exists()
        writer.close()
        assert listing(path.parent) == ["a.shard"]

    @pytest.mark.parametrize("layout", LAYOUTS)
    @pytest.mark.parametrize("end", ["abort", "exception", "dropped", "interrupt"])
    def test_an_unfinished_file_leaves_nothing(
        self, path: Path, layout: str, end: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(writer_module, "_SPOOL_BYTES", 10)
        write_shard(path, {"old": b"1"})
        before = path.read_bytes()

        def use() -> None:
            writer = open_writer(path, **layout_options(layout, ["a", "b"]))
            writer.write_entry("a", NOISE)
            if end == "abort":
                writer.abort()
                writer.abort()
                writer.close()
            elif end == "exception":
                with pytest.raises(RuntimeError), writer:
                    raise RuntimeError
            elif end == "interrupt":
                with pytest.raises(KeyboardInterrupt), writer:
                    raise KeyboardInterrupt

        use()
        gc.collect()
        assert listing(path.parent) == ["a.shard"]
        assert path.read_bytes() == before

    def test_a_writer_that_is_closed_refuses_everything(self, path: Path) -> None:
        writer = open_writer(path)
        writer.write_entry("a", b"1")
        writer.close()
        written = path.read_bytes()
        writer.close()
        writer.abort()
        for use in (
            lambda: writer.write_entry("b", b""),
            lambda: writer.write_entry_stream("b", [b""]),
            writer.__enter__,
        ):
            with pytest.raises(Closed, match=r"a\.shard: the writer is closed"):
                use()
        assert path.read_bytes() == written

    def test_old_views_stay_valid_after_the_file_is_replaced(self, path: Path) -> None:
        write_shard(path, {"a": b"old" * 1000})
        with ShardReader(path) as old:
            view = old.view("a")
            write_shard(path, {"a": b"new" * 1000})
            assert bytes(view) == b"old" * 1000
            assert old["a"] == b"old" * 1000
        assert ShardReader(path)["a"] == b"new" * 1000

    def test_of_two_writers_to_one_name_the_last_to_close_wins(self, path: Path) -> None:
        first, second = open_writer(path), open_writer(path)
        first.write_entry("a", b"first")
        second.write_entry("a", b"second")
        second.close()
        assert ShardReader(path)["a"] == b"second"
        first.close()
        assert ShardReader(path)["a"] == b"first"
        assert listing(path.parent) == ["a.shard"]

    def test_aborting_one_of_two_writers_leaves_the_other(self, path: Path) -> None:
        first, second = open_writer(path), open_writer(path)
        first.write_entry("a", b"first")
        second.abort()
        first.close()
        assert ShardReader(path)["a"] == b"first"

    @pytest.mark.parametrize("existing", [True, False], ids=["file", "dangling"])
    def test_a_link_keeps_pointing_and_its_target_is_written(
        self, tmp_path: Path, existing: bool
    ) -> None:
        (tmp_path / "real").mkdir()
        target, link = tmp_path / "real" / "a.shard", tmp_path / "link.shard"
        if existing:
            write_shard(target, {"a": b"old"})
        link.symlink_to(target)
        write_shard(link, {"a": b"new"})
        assert link.is_symlink()
        assert ShardReader(target)["a"] == b"new"
        assert listing(tmp_path) == ["link.shard", "real"]
        assert listing(target.parent) == ["a.shard"]

    def test_the_mode_of_an_existing_file_is_kept(self, path: Path) -> None:
        write_shard(path, {"a": b"old"})
        path.chmod(0o640)
        write_shard(path, {"a": b"new"})
        assert stat.S_IMODE(path.stat().st_mode) == 0o640

    def test_a_new_file_gets_the_mode_that_the_umask_leaves(self, path: Path) -> None:
        umask = os.umask(0o027)
        try:
            write_shard(path, {"a": b""})
        finally:
            os.umask(umask)
        assert stat.S_IMODE(path.stat().st_mode) == 0o640

    def test_a_folder_in_the_way_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidArgument, match="folder"):
            ShardWriter(tmp_path)

    def test_a_missing_folder_is_made(self, tmp_path: Path) -> None:
        path = write_shard(tmp_path / "new" / "folder" / "a.shard", {"a": b"1"})
        assert ShardReader(path)["a"] == b"1"

    def test_a_file_where_the_folder_would_be_is_an_error_with_errno(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(ShardIOError, match="cannot write") as caught:
            ShardWriter(tmp_path / "file" / "a.shard")
        assert caught.value.errno in (errno.EEXIST, errno.ENOTDIR)

    def test_a_path_with_a_nul_is_refused(self) -> None:
        with pytest.raises(ShardError):
            ShardWriter("a\0b.shard")

    def test_the_longest_file_names_work(self, tmp_path: Path) -> None:
        for name in ("x" * 249 + ".shard", "ü" * 120 + ".shard"):
            path = write_shard(tmp_path / name, {"a": b"1"})
            assert ShardReader(path)["a"] == b"1"

    def test_a_relative_path_is_where_it_was_when_the_writer_opened(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "other").mkdir()
        monkeypatch.chdir(tmp_path)
        writer = ShardWriter("a.shard", fsync=False)
        monkeypatch.chdir(tmp_path / "other")
        writer.write_entry("a", b"1")
        writer.close()
        assert listing(tmp_path) == ["a.shard", "other"]

    def test_a_forked_child_that_drops_the_writer_does_not_take_the_file_along(
        self, path: Path
    ) -> None:
        script = """
            import os, sys
            from shard_format import ShardReader, ShardWriter
            writer = ShardWriter(sys.argv[1])
            writer.write_entry("a", b"1")
            child = os.fork()
            if child == 0:
                del writer
                os._exit(0)
            os.waitpid(child, 0)
            writer.close()
            print(ShardReader(sys.argv[1])["a"])
        """
        assert check_python(script, path) == "b'1'\n"


class TestSyncing:
    """File, rename, folder: in this order."""

    @pytest.fixture
    def calls(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
        """What was synced and renamed, by name, as it happens."""
        seen: list[tuple[str, str]] = []
        fsync, replace = os.fsync, os.replace

        def record_fsync(descriptor: int) -> None:
            seen.append(("fsync", os.readlink(f"/proc/self/fd/{descriptor}")))
            fsync(descriptor)

        def record_replace(source: str, target: str) -> None:
            seen.append(("replace", source))
            seen.append(("to", target))
            replace(source, target)

        monkeypatch.setattr(os, "fsync", record_fsync)
        monkeypatch.setattr(os, "replace", record_replace)
        return seen

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_the_file_is_synced_then_renamed_then_the_folder_is_synced(
        self, path: Path, layout: str, calls: list[tuple[str, str]]
    ) -> None:
        with ShardWriter(path, **layout_options(layout, ["a"])) as writer:
            writer.write_entry("a", NOISE)
        (synced, temporary), *rest = calls
        assert synced == "fsync"
        assert temporary != str(path)
        assert rest == [("replace", temporary), ("to", str(path)), ("fsync", str(path.parent))]

    def test_fsync_false_syncs_nothing(self, path: Path, calls: list[tuple[str, str]]) -> None:
        write_shard(path, {"a": b""})
        assert [what for what, _ in calls] == ["replace", "to"]

    def test_the_whole_file_is_there_when_it_is_synced(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sizes: list[int] = []
        fsync = os.fsync

        def measure(descriptor: int) -> None:
            sizes.append(os.fstat(descriptor).st_size)
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", measure)
        with ShardWriter(path, options=WriterOptions(schema={"x": 1})) as writer:
            writer.write_entry("a", NOISE)
        assert sizes[0] == path.stat().st_size

    @pytest.mark.parametrize("call", ["fsync", "replace", "writev"])
    def test_a_disk_that_fails_at_the_end_leaves_the_old_file(
        self, path: Path, call: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_shard(path, {"old": b"1"})
        before = path.read_bytes()
        writer = ShardWriter(path)
        writer.write_entry("a", NOISE)

        def fail(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, call, fail)
        with pytest.raises(ShardIOError, match=r"a\.shard.*No space.*free some space") as caught:
            writer.close()
        monkeypatch.undo()
        assert caught.value.errno == 28
        assert isinstance(caught.value.__cause__, OSError)
        assert listing(path.parent) == ["a.shard"]
        assert path.read_bytes() == before
        with pytest.raises(Closed):
            writer.write_entry("b", b"")


class TestMemory:
    """A writer needs little memory whatever passes through it. Each test is a process of its own."""

    @pytest.mark.parametrize("layout", ["default", "reserved"])
    @pytest.mark.parametrize("codec", ["none", "zstd", "zstd seekable"])
    @pytest.mark.slow
    def test_200_mb_stream_through_in_bounded_memory(
        self, path: Path, codec: str, layout: str
    ) -> None:
        script = """
            piece = bytes(range(256)) * 4096
            path, codec, layout = sys.argv[1:]
            with ShardWriter(path, fsync=False, reserve=9 if layout == "reserved" else None) as writer:
                name, _, seekable = codec.partition(" ")
                options = dict(compression=name, frame_bytes=1 << 20 if seekable else None)
                writer.write_entry_stream("warm", [piece] * 2, **options)
                reset()
                before = peak()
                writer.write_entry_stream("a", (piece for _ in range(200)), **options)
                writer.close()
                print(peak() - before)
            assert ShardReader(path).info("a").size == 200 << 20
        """
        grown = int(check_python(MEASURE + dedent(script), path, codec, layout))
        assert grown < 48 << 20, f"{grown >> 20} MiB"

    @pytest.mark.slow
    def test_200_mb_that_do_not_shrink_are_expanded_again_in_bounded_memory(
        self, path: Path
    ) -> None:
        script = """
            import random
            piece = random.Random(0).randbytes(1 << 20)
            with ShardWriter(sys.argv[1], fsync=False) as writer:
                writer.write_entry_stream("warm", [piece[:1000]], compression="zstd")
                reset()
                before = peak()
                # Each piece is turned a little, so that no window finds the last one again.
                turned = (piece[n:] + piece[:n] for n in range(0, 200 * 4096, 4096))
                shuffled = (bytes(b ^ (n & 255) for b in p[:64]) + p[64:] for n, p in enumerate(turned))
                writer.write_entry_stream("a", shuffled, compression="zstd:-50")
                writer.close()
                print(peak() - before)
            assert ShardReader(sys.argv[1]).info("a").size == 200 << 20
        """
        grown = int(check_python(MEASURE + dedent(script), path))
        assert grown < 80 << 20, f"{grown >> 20} MiB"

    @pytest.mark.slow
    def test_200_000_entries_need_few_bytes_each(self, path: Path) -> None:
        script = """
            with ShardWriter(sys.argv[1], fsync=False, alignment=0) as writer:
                for number in range(1000):
                    writer.write_entry(f"warm/{number}", b"")
                reset()
                before = peak()
                for number in range(200_000):
                    writer.write_entry(f"entry/{number}", b"")
                writer.close()
                print(peak() - before)
            assert len(ShardReader(sys.argv[1])) == 201_000
        """
        grown = int(check_python(MEASURE + dedent(script), path))
        assert grown < 48 << 20, f"{grown >> 20} MiB: {grown // 200_000} bytes an entry"
