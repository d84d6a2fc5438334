"""ShardReader: what it opens, what it finds, and every way it hands out bytes."""

from __future__ import annotations

import gzip
import io
import os
import random
import struct
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
from xxhash import xxh64_intdigest

from shard_format import Codec, Limits, ShardError, ShardReader, ShardWriter
from shard_format.errors import (
    BadCompression,
    BadMagic,
    ChecksumMismatch,
    Closed,
    DuplicateName,
    EntryNotFound,
    InvalidArgument,
    LimitExceeded,
    NotViewable,
    ShardIOError,
    SizeMismatch,
)
from shard_format.sources import FileSource
from tests.shard_format.support import (
    HandMade,
    PlainSource,
    Row,
    noise,
    prose,
    run_python,
    write_shard,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TEXT = prose(300_000)
RAW = noise(300_000)
CONTENTS = {
    "raw/large": RAW,
    "raw/small": b"0123456789",
    "raw/empty": b"",
    "zstd": TEXT,
    "lz4": TEXT,
    "seekable": TEXT,
    "größe/✓/😀": "ünïcode".encode(),
}
COMPRESSED = ("zstd", "lz4", "seekable")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with an entry of every kind."""
    file = tmp_path / "every kind.shard"
    with ShardWriter(file, fsync=False) as writer:
        for name, data in CONTENTS.items():
            codec = {"zstd": "zstd", "lz4": "lz4", "seekable": "zstd"}.get(name)
            frame_bytes = 10_000 if name == "seekable" else None
            writer.write_entry(name, data, compression=codec, frame_bytes=frame_bytes)
    return file


def in_every_way(reader: ShardReader, name: str) -> list[bytes]:
    """The content of an entry through each method that returns all of it."""
    size = reader.info(name).size
    filled = bytearray(size)
    assert reader.read_into(name, filled) == size
    ways = [
        reader.read_entry(name),
        reader[name],
        *reader.read_many([name, name]),
        *reader.read_many([name]),
        bytes(filled),
        reader.read_range(name, 0, size),
        b"".join(reader.iter_entry(name)),
    ]
    if reader.info(name).codec is Codec.NONE and not isinstance(reader.source, PlainSource):
        ways.append(bytes(reader.view(name)))
    return ways


class TestSources:
    """Whatever a file comes from, the reader gives the same bytes."""

    @pytest.mark.parametrize("make", [str, lambda path: path], ids=["str", "Path"])
    def test_a_path_is_opened(self, path: Path, make: Callable[[Path], Any]) -> None:
        with ShardReader(make(path)) as reader:
            assert reader.name == str(path)
            for name, data in CONTENTS.items():
                assert set(in_every_way(reader, name)) == {data}, name

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview], ids=lambda kind: kind.__name__)
    def test_memory_is_opened(self, path: Path, kind: Callable[[bytes], Any]) -> None:
        with ShardReader(kind(path.read_bytes())) as reader:
            assert reader.name == "<bytes>"
            for name, data in CONTENTS.items():
                assert set(in_every_way(reader, name)) == {data}, name

    def test_a_part_of_a_larger_memory_is_opened(self, path: Path) -> None:
        around = b"before" + path.read_bytes() + b"after"
        reader = ShardReader(memoryview(around)[6:-5])
        assert reader.read_entry("zstd") == TEXT

    def test_memory_of_other_items_than_bytes_is_opened(self, tmp_path: Path) -> None:
        file = write_shard(tmp_path / "a.shard", {"a": bytes(64)})
        words = np.frombuffer(file.read_bytes(), np.uint32)
        assert ShardReader(words.data).read_entry("a") == bytes(64)

    @pytest.mark.parametrize("buffering", [0, -1], ids=["FileIO", "BufferedReader"])
    def test_an_open_file_is_used_without_moving_or_closing_it(
        self, path: Path, buffering: int
    ) -> None:
        with path.open("rb", buffering=buffering) as file:
            file.seek(7)
            with ShardReader(file) as reader:
                for name, data in CONTENTS.items():
                    assert set(in_every_way(reader, name)) == {data}, name
            assert file.tell() == 7
            assert file.read(1) != b""

    def test_a_reader_outlives_the_open_file_it_was_made_from(self, path: Path) -> None:
        with path.open("rb") as file:
            reader = ShardReader(file)
        assert reader.read_entry("raw/small") == b"0123456789"

    @pytest.mark.parametrize("kind", ["BytesIO", "GzipFile", "BufferedRandom"])
    def test_a_seekable_file_object_is_read_through_its_methods(
        self, path: Path, tmp_path: Path, kind: str
    ) -> None:
        packed = tmp_path / "packed.gz"
        packed.write_bytes(gzip.compress(path.read_bytes()))
        files: dict[str, Callable[[], Any]] = {
            "BytesIO": lambda: io.BytesIO(path.read_bytes()),
            "GzipFile": lambda: gzip.GzipFile(packed),
            "BufferedRandom": lambda: path.open("r+b"),
        }
        with files[kind]() as file:
            reader = ShardReader(file)
            for name, data in CONTENTS.items():
                assert reader.read_entry(name) == data
                assert b"".join(reader.iter_entry(name)) == data
            reader.close()
            assert not file.closed

    def test_a_source_with_the_four_required_members_is_enough(self, path: Path) -> None:
        source = PlainSource(path)
        with ShardReader(source) as reader:
            assert reader.source is source
            for name, data in CONTENTS.items():
                assert set(in_every_way(reader, name)) == {data}, name
        assert source.closed == 0, "a source that the caller made is the caller's to close"

    def test_a_source_that_the_reader_opened_is_closed_with_it(self, path: Path) -> None:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(50):
            ShardReader(path).close()
        readers = [ShardReader(path) for _ in range(50)]
        assert len(os.listdir("/proc/self/fd")) == before + 50
        del readers
        assert len(os.listdir("/proc/self/fd")) == before

    def test_a_file_that_fails_to_open_leaves_no_descriptor(self, tmp_path: Path) -> None:
        broken = tmp_path / "broken.shard"
        broken.write_bytes(bytes(100))
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            with pytest.raises(BadMagic):
                ShardReader(broken)
        assert len(os.listdir("/proc/self/fd")) == before


class TestNotAFile:
    """What cannot be read says so with an error of ours."""

    def test_a_missing_file_names_itself_and_keeps_errno(self, tmp_path: Path) -> None:
        with pytest.raises(ShardIOError, match=r"nothing\.shard: cannot open: no such") as caught:
            ShardReader(tmp_path / "nothing.shard")
        assert isinstance(caught.value, FileNotFoundError)
        assert caught.value.errno == 2
        assert caught.value.filename == str(tmp_path / "nothing.shard")

    def test_a_folder_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ShardIOError, match="this is a folder") as caught:
            ShardReader(tmp_path)
        assert isinstance(caught.value, IsADirectoryError)

    @pytest.mark.parametrize(
        ("head", "what"),
        [
            (b"\x89HDF\r\n\x1a\n", "HDF5"),
            (b"PK\x03\x04", "zip"),
            (b"\x93NUMPY", "npy"),
            (b"\x89PNG", "PNG"),
            (b"\xff\xd8\xff", "JPEG"),
            (b"PAR1", "Parquet"),
            (b"\x89MCAP", "MCAP"),
            (b"\x80\x05", "pickle"),
            (b"\x1f\x8b", "gzip"),
            (bytes(257) + b"ustar", "tar"),
            (bytes(8) + b"SPR1", "ShardPack"),
            (b"WSJ1", "journal"),
        ],
    )
    def test_a_file_of_another_format_is_named(self, head: bytes, what: str) -> None:
        with pytest.raises(BadMagic) as caught:
            ShardReader(head + bytes(1000))
        assert what in str(caught.value.hint)
        assert what in caught.value.command_text()

    def test_a_pipe_is_refused_without_waiting_for_a_writer(self, tmp_path: Path) -> None:
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        script = """
            import sys
            from shard_format import ShardReader
            from shard_format.errors import InvalidArgument
            try:
                ShardReader(sys.argv[1])
            except InvalidArgument as error:
                print(error)
        """
        result = run_python(script, pipe, timeout=10)
        assert "not a regular file" in result.stdout

    def test_an_open_pipe_is_refused(self) -> None:
        read_end, write_end = os.pipe()
        with (
            os.fdopen(read_end, "rb") as file,
            os.fdopen(write_end, "wb"),
            pytest.raises(InvalidArgument, match="not a regular file"),
        ):
            ShardReader(file)

    def test_an_object_that_cannot_seek_is_refused(self) -> None:
        class Stream(io.RawIOBase):
            def readable(self) -> bool:
                return True

        with pytest.raises(InvalidArgument, match="cannot seek"):
            ShardReader(cast("Any", Stream()))

    @pytest.mark.parametrize("wrong", [5, None, ["a.shard"]], ids=repr)
    def test_other_objects_are_refused_by_type(self, wrong: object) -> None:
        with pytest.raises(InvalidArgument, match=type(wrong).__name__):
            ShardReader(cast("Any", wrong))

    def test_a_text_file_is_refused(self, path: Path) -> None:
        with path.open("r", encoding="utf-8") as file, pytest.raises(InvalidArgument):
            ShardReader(cast("Any", file))

    def test_a_closed_file_is_refused(self, path: Path) -> None:
        file = path.open("rb")
        file.close()
        with pytest.raises(ShardError):
            ShardReader(file)

    def test_a_file_object_that_was_closed_under_the_reader_is_an_error_of_ours(
        self, path: Path
    ) -> None:
        file = io.BytesIO(path.read_bytes())
        reader = ShardReader(file)
        file.close()
        with pytest.raises(ShardError):
            reader.read_entry("raw/small")

    def test_a_path_with_a_nul_is_refused(self) -> None:
        with pytest.raises(ShardError):
            ShardReader("a\0b.shard")

    def test_memory_that_is_not_contiguous_is_refused(self, path: Path) -> None:
        doubled = np.repeat(np.frombuffer(path.read_bytes(), np.uint8), 2)
        with pytest.raises(InvalidArgument, match="contiguous"):
            ShardReader(doubled.data[::2])

    def test_memory_in_fortran_order_is_refused(self) -> None:
        columns = np.asfortranarray(np.zeros((16, 16), np.uint8))
        with pytest.raises(InvalidArgument, match="contiguous"):
            ShardReader(columns.data)

    def test_fewer_than_one_thread_is_refused(self, path: Path) -> None:
        with pytest.raises(InvalidArgument, match="threads"):
            ShardReader(path, threads=0)


class TestNames:
    """What is in the file, without reading any of it."""

    def test_names_are_in_the_order_of_the_index(self, path: Path) -> None:
        with ShardReader(path) as reader:
            assert reader.names() == list(CONTENTS)
            assert list(reader) == list(CONTENTS)
            assert len(reader) == len(CONTENTS)

    def test_a_prefix_selects_names(self, path: Path) -> None:
        with ShardReader(path) as reader:
            assert reader.prefix("raw/") == ["raw/large", "raw/small", "raw/empty"]
            assert reader.prefix("grö") == ["größe/✓/😀"]
            assert reader.prefix("") == list(CONTENTS)
            assert reader.prefix("raw/large and more") == []
            assert reader.prefix("\ud800") == []

    def test_in_takes_any_object(self, path: Path) -> None:
        with ShardReader(path) as reader:
            assert all(name in reader for name in CONTENTS)
            for other in ("", "raw", "raw/large ", "RAW/LARGE", "\ud800", 5, None, b"zstd"):
                assert other not in reader, other

    def test_info_says_what_the_index_says(self, path: Path) -> None:
        with ShardReader(path) as reader:
            info = reader.info("zstd")
            assert (info.name, info.codec, info.size) == ("zstd", Codec.ZSTD, len(TEXT))
            assert info.disk_size < info.size
            assert info.data_offset % 64 == 0
            assert info.flags == 3
            assert (info.content_type, info.tag_bits) == (0, 0)
            assert reader.info("lz4").flags == 5
            assert reader.info("raw/small").disk_size == 10
            assert [info.name for info in reader.infos()] == list(CONTENTS)
            assert list(reader.infos())[3] == info == reader.info_at(3)

    def test_an_entry_without_a_checksum_says_none(self) -> None:
        rows = [Row(b"without", b"abc", crc=0), Row(b"with", b"abc")]
        with ShardReader(HandMade(rows, flags=0).to_bytes()) as reader:
            assert reader.info("without").crc32c is None
            assert reader.info("with").crc32c == reader.index["crc32c"][1]
        with ShardReader(HandMade([Row(b"empty")]).to_bytes()) as reader:
            assert reader.info("empty").crc32c == 0

    @pytest.mark.parametrize("number", [-1, 7, 10**9])
    def test_a_row_that_is_not_there_is_refused(self, path: Path, number: int) -> None:
        with ShardReader(path) as reader:
            with pytest.raises(InvalidArgument):
                reader.info_at(number)
            with pytest.raises(InvalidArgument):
                reader.info_name(number)

    def test_the_index_is_a_read_only_array(self, path: Path) -> None:
        with ShardReader(path) as reader:
            assert reader.index["orig_size"].tolist() == [len(data) for data in CONTENTS.values()]
            with pytest.raises(ValueError, match="read-only"):
                reader.index["orig_size"][0] = 1

    def test_an_unknown_name_suggests_the_nearest(self, path: Path) -> None:
        with ShardReader(path) as reader:
            for ask in (
                reader.read_entry,
                reader.__getitem__,
                reader.info,
                reader.view,
                reader.seek_table,
                lambda name: reader.read_range(name, 0, 1),
                lambda name: reader.read_into(name, bytearray(1)),
                lambda name: reader.read_many(["zstd", name]),
                lambda name: list(reader.iter_entry(name)),
            ):
                with pytest.raises(EntryNotFound, match="did you mean 'raw/large'") as caught:
                    ask("raw/larg")
                assert isinstance(caught.value, KeyError)
                assert caught.value.path == str(path)

    def test_an_unknown_name_without_neighbours_points_at_names(self, path: Path) -> None:
        with ShardReader(path) as reader, pytest.raises(EntryNotFound, match=r"names\(\) lists"):
            reader.read_entry("nothing like it")

    def test_an_unknown_name_in_a_large_file_points_at_names(self, tmp_path: Path) -> None:
        file = write_shard(tmp_path / "a.shard", {f"entry/{i}": b"" for i in range(300)})
        with ShardReader(file) as reader, pytest.raises(EntryNotFound, match="lists the 300"):
            reader.read_entry("entry/300")

    def test_repr_tells_the_file_and_its_state(self, path: Path) -> None:
        reader = ShardReader(path)
        assert "every kind.shard" in repr(reader)
        assert "7 entries" in repr(reader)
        reader.close()
        assert "closed" in repr(reader)


def random_names(count: int, seed: int) -> list[str]:
    """Different names of many lengths and alphabets."""
    choose = random.Random(seed)
    alphabets = ("abcdefgh/_0123456789", "äöüßéñ/", "日本語文字列", "😀😁👍🏽", "a")
    names: dict[str, None] = {}
    while len(names) < count:
        alphabet = choose.choice(alphabets)
        length = choose.choice((1, 2, 3, 5, 8, 13, 31, 32, 33, 64, 70, 300))
        names["".join(choose.choices(alphabet, k=length))] = None
    return list(names)


class TestLookup:
    """The quick ways of large files find what the plain ways of small ones find."""

    @pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 5000])
    def test_every_name_is_found_around_the_threshold(self, count: int) -> None:
        names = random_names(count + 50, seed=count)
        present, absent = names[:count], names[count:]
        rows = [Row(name.encode(), name.encode()[:9]) for name in present]
        reader = ShardReader(HandMade(rows, alignment=0).to_bytes())
        assert reader.names() == present
        for number, name in enumerate(present):
            assert reader.info(name) == reader.info_at(number)
            assert reader.info_name(number) == name
            assert reader.read_entry(name) == name.encode()[:9]
        assert not any(name in reader for name in absent)
        for prefix in ("", "a", "ä", "日本", "😀", "a/", "abcdefghi", *absent[:20], *present[:20]):
            wanted = [name for name in present if name.startswith(prefix)]
            assert reader.prefix(prefix) == wanted, prefix
        assert reader.first_wrong_name_hash() is None
        assert [info.name for info in reader.infos()] == present

    @pytest.mark.parametrize("count", [3, 300])
    def test_stored_hashes_are_not_trusted(self, count: int) -> None:
        """All the same, or those of other names: every name is found all the same (S-NAM-5)."""
        names = [f"entry/{number}" for number in range(count)]
        of_others = [xxh64_intdigest(name.encode()) for name in [*names[1:], names[0]]]
        for stored_hashes in ([7] * count, of_others):
            rows = [
                Row(name.encode(), name.encode(), name_hash=stored_hash)
                for name, stored_hash in zip(names, stored_hashes, strict=True)
            ]
            reader = ShardReader(HandMade(rows).to_bytes())
            assert [reader.read_entry(name) for name in names] == [n.encode() for n in names]
            assert "entry/x" not in reader
            assert reader.first_wrong_name_hash() == names[0]

    def test_names_with_equal_hashes_are_told_apart(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Real XXH64 collisions take 2**32 work to find, so the hash is made worse instead."""
        import shard_format._index as index_module

        monkeypatch.setattr(index_module, "xxh64_intdigest", lambda name: len(name) << 32)
        monkeypatch.setattr(
            index_module,
            "hash_names",
            lambda table, offsets, lengths: lengths.astype(np.uint64) << np.uint64(32),
        )
        names = [f"entry/{number}" for number in range(600)]
        rows = [Row(name.encode(), name.encode()) for name in names]
        reader = ShardReader(HandMade(rows).to_bytes())
        assert [reader.read_entry(name) for name in names] == [name.encode() for name in names]
        for absent in ("entry/x", "entry/600", "entry/0000", "e" * 50):
            assert absent not in reader

    @pytest.mark.parametrize("count", [3, 300])
    def test_a_repeated_name_is_found_among_many(self, count: int) -> None:
        rows = [Row(f"entry/{number}".encode()) for number in range(count)]
        rows[-1].name = b"entry/1"
        with pytest.raises(DuplicateName, match=f"entries 1 and {count - 1} ") as caught:
            ShardReader(HandMade(rows).to_bytes())
        assert caught.value.entry == "entry/1"
        assert caught.value.rule == "S-NAM-4"


class TestViews:
    """Views are the file itself."""

    def test_a_view_of_a_file_shares_its_mapping(self, path: Path) -> None:
        with ShardReader(path) as reader:
            first = np.frombuffer(reader.view("raw/large"), np.uint8)
            second = np.frombuffer(reader.view("raw/large"), np.uint8)
            assert np.shares_memory(first, second)
            assert first.ctypes.data == second.ctypes.data
            assert first.ctypes.data % 64 == 0
            assert first.tobytes() == RAW

    def test_a_view_of_bytes_shares_them(self, path: Path) -> None:
        data = path.read_bytes()
        with ShardReader(data) as reader:
            view = np.frombuffer(reader.view("raw/large"), np.uint8)
            assert np.shares_memory(view, np.frombuffer(data, np.uint8))

    @pytest.mark.parametrize("mutable", [False, True])
    def test_a_view_is_read_only(self, path: Path, mutable: bool) -> None:
        source = bytearray(path.read_bytes()) if mutable else path
        with ShardReader(source) as reader:
            view = reader.view("raw/small")
            assert view.readonly
            assert not np.frombuffer(view, np.uint8).flags.writeable
            with pytest.raises(TypeError):
                view[0] = 1

    def test_a_view_outlives_the_reader_and_the_file(self, path: Path) -> None:
        reader = ShardReader(path)
        view = reader.view("raw/large")
        reader.close()
        del reader
        path.unlink()
        assert bytes(view) == RAW

    def test_an_empty_entry_has_an_empty_view(self, path: Path) -> None:
        with ShardReader(path) as reader:
            assert bytes(reader.view("raw/empty")) == b""

    @pytest.mark.parametrize("name", COMPRESSED)
    def test_a_compressed_entry_has_no_view(self, path: Path, name: str) -> None:
        with ShardReader(path) as reader:
            with pytest.raises(
                NotViewable, match=r"compressed with (zstd|lz4).*read_into"
            ) as caught:
                reader.view(name)
            assert caught.value.entry == name

    def test_a_source_without_memory_has_no_view(self, path: Path) -> None:
        for source in (PlainSource(path), io.BytesIO(path.read_bytes())):
            with pytest.raises(NotViewable, match="cannot return views"):
                ShardReader(source).view("raw/small")

    def test_a_view_of_an_entry_with_two_sizes_is_refused(self) -> None:
        data = HandMade([Row(b"a", b"four", orig_size=5)]).to_bytes()
        with pytest.raises(SizeMismatch, match="S-DAT-4"):
            ShardReader(data).view("a")


class TestReadInto:
    """Reading into memory of the caller."""

    @pytest.mark.parametrize("codec", ["none", "zstd", "lz4", "seekable"])
    @pytest.mark.parametrize(
        "dtype",
        [
            "u1",
            "?",
            "<i2",
            ">i4",
            "<f2",
            "<f4",
            "<f8",
            "<c16",
            "<M8[ns]",
            "S7",
            "<U3",
            "i4,f8",
            "V6",
        ],
    )
    def test_arrays_of_any_type_are_filled(self, tmp_path: Path, dtype: str, codec: str) -> None:
        kind = np.dtype(dtype)
        seed = (np.arange(600) % 2 if dtype == "?" else np.arange(600) % 100).astype(np.uint8)
        expected = np.frombuffer(np.repeat(seed, kind.itemsize).tobytes(), kind).reshape(20, 30)
        with ShardWriter(tmp_path / "a.shard", fsync=False) as writer:
            writer.write_entry(
                "a",
                expected,
                compression="zstd" if codec == "seekable" else codec,
                frame_bytes=3 * 30 * kind.itemsize if codec == "seekable" else None,
            )
        target = np.zeros((20, 30), kind)
        with ShardReader(tmp_path / "a.shard") as reader:
            assert reader.read_into("a", target) == expected.nbytes
            assert target.tobytes() == expected.tobytes()
            rows = np.zeros((4, 30), kind)
            step = rows.nbytes // 4
            assert reader.read_into("a", rows, start=5 * step, stop=9 * step) == rows.nbytes
            assert rows.tobytes() == expected[5:9].tobytes()

    @pytest.mark.parametrize("name", ["raw/large", *COMPRESSED])
    def test_a_larger_buffer_keeps_its_rest(self, path: Path, name: str) -> None:
        buffer = bytearray(b"\xee" * 300_010)
        with ShardReader(path) as reader:
            assert reader.read_into(name, buffer) == 300_000
        assert buffer[:300_000] == CONTENTS[name]
        assert buffer[300_000:] == b"\xee" * 10

    def test_a_memoryview_slice_is_filled_in_place(self, path: Path) -> None:
        buffer = bytearray(30)
        with ShardReader(path) as reader:
            reader.read_into("raw/small", memoryview(buffer)[10:20])
        assert buffer == bytes(10) + b"0123456789" + bytes(10)

    def test_nothing_is_read_into_an_empty_buffer(self, path: Path) -> None:
        with ShardReader(path) as reader:
            assert reader.read_into("raw/empty", bytearray()) == 0
            assert reader.read_into("raw/empty", np.empty((0, 3))) == 0
            assert reader.read_into("zstd", bytearray(), start=5, stop=5) == 0

    @pytest.mark.parametrize("name", ["raw/large", *COMPRESSED])
    def test_a_buffer_that_is_too_small_is_refused_untouched(self, path: Path, name: str) -> None:
        buffer = bytearray(299_999)
        found = pytest.raises(InvalidArgument, match="at least 300000 bytes, found 299999")
        with ShardReader(path) as reader, found:
            reader.read_into(name, buffer)
        assert buffer == bytes(299_999)

    @pytest.mark.parametrize(
        "buffer",
        [
            bytes(300_000),
            memoryview(bytearray(600_000))[::2],
            np.zeros((1000, 600), np.uint8)[:, ::2],
            np.asfortranarray(np.zeros((600, 500), np.uint8)),
            np.broadcast_to(np.uint8(0), (300_000,)),
            np.empty(300_000, object),
            5,
            None,
        ],
        ids=["bytes", "step", "columns", "fortran", "broadcast", "objects", "number", "nothing"],
    )
    def test_memory_that_cannot_be_filled_is_refused(self, path: Path, buffer: Any) -> None:  # noqa: ANN401 - wrong on purpose
        with ShardReader(path) as reader, pytest.raises(InvalidArgument):
            reader.read_into("raw/large", buffer)


class TestRanges:
    """Parts of entries."""

    @pytest.mark.parametrize("name", ["raw/large", *COMPRESSED])
    def test_a_range_is_a_slice(self, path: Path, name: str) -> None:
        choose = random.Random(5)
        data = CONTENTS[name]
        edges = [0, 1, 9_999, 10_000, 10_001, 20_000, 290_000, 299_999, 300_000]
        edges += [choose.randrange(300_000) for _ in range(8)]
        with ShardReader(path) as reader:
            for start in edges:
                for stop in edges:
                    if start > stop:
                        continue
                    assert reader.read_range(name, start, stop) == data[start:stop]
            buffer = bytearray(5_000)
            assert reader.read_into(name, buffer, start=8_000, stop=13_000) == 5_000
            assert buffer == data[8_000:13_000]
            assert reader.read_into(name, buffer, start=297_000) == 3_000
            assert buffer[:3_000] == data[297_000:]

    @pytest.mark.parametrize("name", ["raw/large", *COMPRESSED])
    @pytest.mark.parametrize(
        ("start", "stop"), [(-1, 5), (5, 4), (0, 300_001), (300_001, 300_001), (-5, -1)]
    )
    def test_a_range_outside_the_entry_is_refused(
        self, path: Path, name: str, start: int, stop: int
    ) -> None:
        with ShardReader(path) as reader:
            with pytest.raises(InvalidArgument, match="outside the entry"):
                reader.read_range(name, start, stop)
            with pytest.raises(InvalidArgument, match="outside the entry"):
                reader.read_into(name, bytearray(400_000), start=start, stop=stop)

    def test_a_range_of_a_raw_entry_reads_no_more_than_itself(self, path: Path) -> None:
        source = PlainSource(path)
        reader = ShardReader(source)
        source.bytes_read = 0
        reader.read_range("raw/large", 1000, 1100)
        assert source.bytes_read == 100

    def test_a_range_of_a_seekable_entry_reads_only_its_frames(self, path: Path) -> None:
        source = PlainSource(path)
        reader = ShardReader(source)
        table = reader.seek_table("seekable")
        assert table is not None
        assert len(table) == 30
        frame = int(table.stored_starts[13] - table.stored_starts[12])
        footer_and_table = 9 + 8 + 30 * 12 + 9
        source.bytes_read = 0
        assert reader.read_range("seekable", 125_000, 125_100) == TEXT[125_000:125_100]
        assert source.bytes_read == footer_and_table + frame

    def test_only_seekable_entries_have_a_seek_table(self, path: Path) -> None:
        with ShardReader(path) as reader:
            for look in (reader.seek_table, reader.part_reader):
                assert [name for name in reader if look(name) is not None] == ["seekable"]


class TestPartReader:
    """Parts of one entry, again and again."""

    @pytest.mark.parametrize("kind", ["file", "bytes", "plain"])
    def test_any_part_is_what_read_range_returns(self, path: Path, kind: str) -> None:
        sources: dict[str, Any] = {"file": path, "bytes": path.read_bytes()}
        reader = ShardReader(sources.get(kind) or PlainSource(path))
        parts = reader.part_reader("seekable")
        assert parts is not None
        for start, stop in ((0, 300_000), (0, 1), (9_999, 10_001), (12_345, 67_890), (7, 7)):
            out = bytearray(stop - start)
            parts.read_into(start, memoryview(out))
            assert out == TEXT[start:stop]
        reader.close()

    def test_the_table_is_read_once(self, path: Path) -> None:
        source = PlainSource(path)
        parts = ShardReader(source).part_reader("seekable")
        assert parts is not None
        source.bytes_read = 0
        parts.read_into(125_000, memoryview(bytearray(100)))
        assert 0 < source.bytes_read < 9 + 8 + 30 * 12 + 9

    def test_what_cannot_be_read_is_refused(self, path: Path) -> None:
        reader = ShardReader(path)
        parts = reader.part_reader("seekable")
        assert parts is not None
        for start, size in ((-1, 5), (299_999, 2), (300_001, 0)):
            with pytest.raises(InvalidArgument, match="outside the entry") as caught:
                parts.read_into(start, memoryview(bytearray(size)))
            assert (caught.value.path, caught.value.entry) == (str(path), "seekable")
        with pytest.raises(InvalidArgument, match="read-only"):
            parts.read_into(0, memoryview(bytes(5)))
        reader.close()
        with pytest.raises(Closed):
            parts.read_into(0, memoryview(bytearray(5)))

    def test_a_closed_reader_does_not_read_from_a_source_that_is_still_open(
        self, path: Path
    ) -> None:
        source = PlainSource(path)
        reader = ShardReader(source)
        parts = reader.part_reader("seekable")
        assert parts is not None
        reader.close()
        with pytest.raises(Closed):
            parts.read_into(0, memoryview(bytearray(5)))

    def test_damage_is_found_in_the_frames_that_are_read(self, path: Path) -> None:
        data = bytearray(path.read_bytes())
        reader = ShardReader(path)
        table = reader.seek_table("seekable")
        assert table is not None
        at = reader.info("seekable").data_offset + int(table.stored_starts[13]) - 3
        data[at] ^= 1  # in the checksum of frame 12
        parts = ShardReader(bytes(data)).part_reader("seekable")
        assert parts is not None
        out = memoryview(bytearray(10_000))
        parts.read_into(130_000, out)
        assert out == TEXT[130_000:140_000]
        with pytest.raises(ChecksumMismatch) as caught:
            parts.read_into(120_000, out)
        assert caught.value.entry == "seekable"


class TestReadingTwoThingsAtATime:
    """An entry that comes in pieces, while its thread reads others."""

    @pytest.mark.parametrize("compression", ["zstd", "lz4"])
    def test_pieces_of_large_entries_do_not_disturb_each_other(
        self, tmp_path: Path, compression: str
    ) -> None:
        contents = {
            name: np.random.default_rng(seed).integers(0, 3, 9 << 20, dtype=np.uint8).tobytes()
            for seed, name in enumerate("ab")
        }
        with ShardWriter(tmp_path / "a.shard") as writer:
            for name, content in contents.items():
                writer.write_entry(name, content, compression=compression)
        with ShardReader(tmp_path / "a.shard") as reader:
            found = {name: bytearray() for name in contents}
            streams = {name: reader.iter_entry(name) for name in contents}
            while streams:
                for name in list(streams):
                    piece = next(streams[name], None)
                    if piece is None:
                        del streams[name]
                    else:
                        found[name] += piece
                assert reader.read_entry("a") == contents["a"]
            assert found == contents


class TestChecks:
    """Damage and limits."""

    @pytest.fixture
    def damaged(self, path: Path) -> bytes:
        """One bit of `raw/small` is wrong."""
        data = bytearray(path.read_bytes())
        data[ShardReader(path).info("raw/small").data_offset] ^= 1
        return bytes(data)

    def test_a_damaged_entry_is_never_returned_whole(self, damaged: bytes) -> None:
        reader = ShardReader(damaged)
        for read in (
            reader.read_entry,
            lambda name: reader.read_into(name, bytearray(10)),
            lambda name: reader.read_many(["zstd", name]),
            lambda name: reader.read_range(name, 0, 10),
            lambda name: list(reader.iter_entry(name)),
            lambda name: reader.verify(),
        ):
            with pytest.raises(ChecksumMismatch) as caught:
                read("raw/small")
            assert caught.value.entry == "raw/small"
            assert caught.value.rule == "S-CRC-1"
        assert reader.read_entry("zstd") == TEXT

    def test_check_false_returns_damaged_bytes(self, damaged: bytes) -> None:
        reader = ShardReader(damaged, check=False)
        expected = b"1123456789"
        assert reader.read_entry("raw/small") == expected
        assert b"".join(reader.iter_entry("raw/small")) == expected
        buffer = bytearray(10)
        reader.read_into("raw/small", buffer)
        assert buffer == expected
        assert reader.read_entry("zstd") == TEXT

    def test_verify_checks_also_when_reads_do_not(self, damaged: bytes) -> None:
        with pytest.raises(ChecksumMismatch):
            ShardReader(damaged, check=False).verify()

    def test_check_false_still_checks_structure(self, path: Path) -> None:
        with pytest.raises(ShardError, match="S-HDR-7"):
            ShardReader(path.read_bytes()[:-1], check=False)

    def test_a_lowered_limit_refuses_and_a_raised_one_accepts(self, path: Path) -> None:
        for lowered, field in (
            (Limits(max_entries=6), "S-HDR-8"),
            (Limits(max_index_bytes=48 * 7 - 1), "S-HDR-8"),
            (Limits(max_string_table_bytes=10), "S-HDR-12"),
        ):
            with pytest.raises(LimitExceeded, match=f"{field}.*(Limits)") as caught:
                ShardReader(path, limits=lowered)
            assert caught.value.path == str(path)
        exact = Limits(max_entries=7, max_index_bytes=48 * 7, max_decompressed_bytes=300_000)
        with ShardReader(path, limits=exact) as reader:
            assert reader.limits == exact
            assert reader.read_entry("zstd") == TEXT

    @pytest.mark.parametrize("count", [3, 300])
    def test_names_that_share_bytes_count_each_time(self, count: int) -> None:
        """A small file cannot claim more names than the string table may hold (S-NAM-9)."""
        data = bytearray(HandMade([Row(b"n")] * (count - 1) + [Row(b"n" * 1000)]).to_bytes())
        for number in range(count):  # each a letter shorter than the one before
            struct.pack_into("<IH", data, 64 + 48 * number + 8, 0, 1000 - number)
        total = sum(range(1000, 1000 - count, -1))
        with ShardReader(data, limits=Limits(max_string_table_bytes=total)) as reader:
            assert len(reader.names()) == count
        with pytest.raises(LimitExceeded, match="S-NAM-9") as caught:
            ShardReader(data, limits=Limits(max_string_table_bytes=total - 1))
        assert caught.value.found == f"{total} bytes"

    def test_the_decompression_limit_holds_for_every_way_of_reading(self, path: Path) -> None:
        reader = ShardReader(path, limits=Limits(max_decompressed_bytes=299_999))
        assert reader.read_entry("raw/large") == RAW
        for name in COMPRESSED:
            for read in (
                reader.read_entry,
                lambda name: reader.read_into(name, bytearray(300_000)),
                lambda name: reader.read_range(name, 5, 6),
                lambda name: list(reader.iter_entry(name)),
                lambda name: reader.read_many([name, "raw/small"]),
            ):
                with pytest.raises(LimitExceeded, match=r"S-CMP-2.*max_decompressed_bytes"):
                    read(name)

    def test_the_window_limit_holds(self, path: Path) -> None:
        reader = ShardReader(path, limits=Limits(max_zstd_window_bytes=1024))
        with pytest.raises(LimitExceeded, match="S-CMP-7"):
            reader.read_entry("zstd")

    def test_an_empty_compressed_block_is_refused(self) -> None:
        data = HandMade([Row(b"a", b"", flags=3, content=b"x" * 300)]).to_bytes()
        with pytest.raises(BadCompression, match="S-CMP-4"):
            ShardReader(data).read_entry("a")


class TestPartsOfRawEntries:
    """The first part that is read of a raw entry checks all of it, once for each process and file."""

    def damaged(self, tmp_path: Path) -> Path:
        path = tmp_path / "a.shard"
        with ShardWriter(path, fsync=False) as writer:
            writer.write_entry("empty", b"")
            writer.write_entry("x", bytes(range(250)) * 400)
        with ShardReader(path) as reader:
            at = reader.info("x").data_offset + 9_000
        content = bytearray(path.read_bytes())
        content[at] ^= 1
        path.write_bytes(content)
        return path

    def test_damage_elsewhere_in_the_entry_is_found(self, tmp_path: Path) -> None:
        path = self.damaged(tmp_path)
        target = np.empty(10, np.uint8)
        with ShardReader(path) as reader:
            with pytest.raises(ChecksumMismatch):
                reader.read_range("x", 0, 10)
            with pytest.raises(ChecksumMismatch):
                reader.read_into("x", target, start=0, stop=10)
            with pytest.raises(ChecksumMismatch):
                reader.view("x")

    def test_an_empty_entry_at_the_same_place_vouches_for_nothing(self, tmp_path: Path) -> None:
        with ShardReader(self.damaged(tmp_path)) as reader:
            assert reader.info("empty").data_offset == reader.info("x").data_offset
            assert len(reader.view("empty")) == 0
            with pytest.raises(ChecksumMismatch):
                reader.view("x")

    def test_unless_asked_not_to(self, tmp_path: Path) -> None:
        with ShardReader(self.damaged(tmp_path), check=False) as reader:
            assert reader.read_range("x", 0, 10) == bytes(range(10))

    def test_a_file_that_was_checked_is_not_checked_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "a.shard"
        with ShardWriter(path, fsync=False) as writer:
            writer.write_entry("x", bytes(100_000))
        with ShardReader(path) as reader:
            reader.read_range("x", 0, 10)

        def refuse(*_: object) -> int:
            raise AssertionError("checked again")

        monkeypatch.setattr("shard_format._content.crc32c_of_large", refuse)
        with ShardReader(path) as reader:
            assert reader.read_range("x", 10, 20) == bytes(10)

    def test_a_whole_entry_in_memory_is_checked_each_time(self, tmp_path: Path) -> None:
        path = tmp_path / "a.shard"
        with ShardWriter(path, fsync=False) as writer:
            writer.write_entry("x", bytes(100))
        content = bytearray(path.read_bytes())
        with ShardReader(content) as reader:
            assert reader.read_view("x") == bytes(100)
            content[reader.info("x").data_offset] = 1
            with pytest.raises(ChecksumMismatch):
                reader.read_view("x")

    def test_a_file_that_was_replaced_is_checked_again(self, tmp_path: Path) -> None:
        path = tmp_path / "a.shard"
        with ShardWriter(path, fsync=False) as writer:
            writer.write_entry("x", bytes(range(250)) * 400)
        with ShardReader(path) as reader:
            reader.read_range("x", 0, 10)
        with ShardReader(self.damaged(tmp_path)) as reader, pytest.raises(ChecksumMismatch):
            reader.read_range("x", 0, 10)


class TestLittleIsRead:
    """Opening costs the head, whatever follows it."""

    @pytest.fixture
    def huge(self, tmp_path: Path) -> Path:
        """50 GB that take no room: one raw entry of zeros."""
        size = 50_000_000_000
        head = HandMade([Row(b"zeros", orig_size=size, crc=0)], flags=0, total_size=128 + size)
        data = bytearray(head.to_bytes())
        data[88:96] = size.to_bytes(8, "little")  # disk_size
        path = tmp_path / "huge.shard"
        path.write_bytes(data)
        os.truncate(path, 128 + size)
        return path

    def test_opening_fifty_gigabytes_reads_less_than_64_kib(self, huge: Path) -> None:
        source = PlainSource(huge)
        reader = ShardReader(source)
        assert reader.info("zeros").size == 50_000_000_000
        assert source.bytes_read < 64 << 10
        assert source.reads <= 2

    def test_ranges_and_views_of_fifty_gigabytes_are_at_hand(self, huge: Path) -> None:
        with ShardReader(huge, check=False) as reader:  # the check would read all of it once
            assert reader.read_range("zeros", 49_999_999_990, 50_000_000_000) == bytes(10)
            view = reader.view("zeros")
            assert len(view) == 50_000_000_000
            assert bytes(view[-5:]) == bytes(5)
            buffer = bytearray(b"x" * 10)
            reader.read_into("zeros", buffer, start=40_000_000_000, stop=40_000_000_010)
            assert buffer == bytes(10)

    def test_a_reserved_head_for_many_is_read_once(self, tmp_path: Path) -> None:
        path = write_shard(tmp_path / "a.shard", {"a": b"1"}, reserve=1000)
        source = PlainSource(path)
        ShardReader(source)
        assert source.bytes_read <= path.stat().st_size


def close_and_use(reader: ShardReader) -> list[Callable[[], object]]:
    """Every call that needs the source."""
    return [
        lambda: reader.read_entry("raw/small"),
        lambda: reader.read_entry("raw/empty"),
        lambda: reader.read_entry("zstd"),
        lambda: reader.read_many(["raw/small", "zstd"]),
        lambda: reader.read_into("raw/small", bytearray(10)),
        lambda: reader.read_range("raw/small", 1, 2),
        lambda: reader.read_range("seekable", 1, 2),
        lambda: list(reader.iter_entry("raw/large")),
        lambda: list(reader.iter_entry("raw/empty")),
        lambda: reader.seek_table("seekable"),
        lambda: reader.schema,
        lambda: reader.verify(),
        lambda: reader.__enter__(),
        lambda: reader.__reduce__(),
    ]


class TestClosing:
    """A closed reader says that it is closed."""

    @pytest.mark.parametrize("kind", ["path", "bytes", "file object", "own source"])
    def test_a_closed_reader_refuses_to_read(self, path: Path, kind: str) -> None:
        sources: dict[str, Callable[[], Any]] = {
            "path": lambda: path,
            "bytes": path.read_bytes,
            "file object": lambda: io.BytesIO(path.read_bytes()),
            "own source": lambda: FileSource(path),
        }
        reader = ShardReader(sources[kind]())
        reader.close()
        reader.close()
        for number, use in enumerate(close_and_use(reader)):
            with pytest.raises(Closed, match="the reader is closed"):
                pytest.fail(f"use {number} of a closed reader gave {str(use())[:80]}")

    @pytest.mark.parametrize("kind", ["path", "bytes"])
    def test_a_closed_reader_hands_out_no_views(self, path: Path, kind: str) -> None:
        reader = ShardReader(path if kind == "path" else path.read_bytes())
        reader.close()
        for name in ("raw/large", "raw/small"):
            with pytest.raises(Closed):
                pytest.fail(f"a view of {bytes(reader.view(name)[:4])!r}")

    def test_the_with_block_closes(self, path: Path) -> None:
        with ShardReader(path) as reader:
            pass
        with pytest.raises(Closed):
            reader.read_entry("raw/small")
