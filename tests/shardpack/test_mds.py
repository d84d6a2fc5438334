"""MDS datasets that the real `mosaicml-streaming` wrote: see data/make_mds.py.

The package itself reads and writes the other side in tests/bridges/test_mds.py.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import shardpack
from shard_format.errors import (
    BadCompression,
    BadMetadata,
    BadOffset,
    BadValue,
    ChecksumMismatch,
    DuplicateName,
    InvalidArgument,
    LimitExceeded,
    ShardError,
    ShardIOError,
    SizeMismatch,
    UnknownCodec,
    UnsafePath,
    UnsupportedVersion,
)
from shard_format.registry import Limits
from shardpack.convert import from_mds
from tests.shardpack.data.make_mds import COLUMNS, HERE, jpeg, rows
from tests.shardpack.mds_support import check_records
from tests.shardpack.support import CREATED

OPTIONS: dict[str, Any] = {"fsync": False, "created": CREATED, "overwrite": True}


def convert(folder: Path, tmp_path: Path, **options: Any) -> shardpack.Dataset:  # noqa: ANN401 - those of from_mds
    done = from_mds(folder, tmp_path / "out.shardpack", **OPTIONS, **options)
    dataset = shardpack.open(done.paths)
    assert len(dataset) == done.records
    return dataset


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A dataset to damage."""
    return Path(shutil.copytree(HERE / "plain", tmp_path / "mds"))


def change_index(folder: Path, **fields: Any) -> None:  # noqa: ANN401 - any JSON
    path = folder / "index.json"
    index = json.loads(path.read_text())
    for row in index["shards"]:
        row.update(fields)
    path.write_text(json.dumps(index))


class TestReading:
    """Every encoding of the format."""

    def test_every_value_comes_back(self, tmp_path: Path) -> None:
        check_records(convert(HERE / "plain", tmp_path), rows())

    def test_images_are_the_bytes_that_were_stored(self, tmp_path: Path) -> None:
        stored = b"".join(path.read_bytes() for path in sorted((HERE / "plain").glob("*.mds")))
        for record in convert(HERE / "plain", tmp_path):
            for name in record.names:
                if name.endswith((".png", ".jpg")):
                    assert record[name].read() in stored

    @pytest.mark.parametrize("compression", ["zstd", "gz", "bz2", "br", "snappy"])
    def test_every_compression_is_read(self, tmp_path: Path, compression: str) -> None:
        dataset = convert(HERE / compression, tmp_path)
        assert [record["caption.txt"].decode() for record in dataset] == [
            row["caption"] for row in rows()
        ]
        assert [record.metadata["label"] for record in dataset] == [row["label"] for row in rows()]

    def test_the_columns_are_in_the_metadata_of_the_shards(self, tmp_path: Path) -> None:
        dataset = convert(HERE / "plain", tmp_path, metadata={"mine": 1})
        assert dataset.metadata["user"] == {"mds_columns": COLUMNS, "mine": 1}

    def test_columns_and_key_can_be_chosen(self, tmp_path: Path) -> None:
        dataset = convert(HERE / "plain", tmp_path, columns=["label"], key="caption")
        assert dataset["picture Nº 3"].metadata == {"label": 0}
        assert dataset["picture Nº 3"].names == ()
        numbered = convert(HERE / "plain", tmp_path, columns=["caption"], key="label")
        assert list(numbered.keys()) == [str(n - 3) for n in range(7)]

    def test_columns_that_would_become_one_entry_are_named(
        self, copied: Path, tmp_path: Path
    ) -> None:
        index = json.loads((copied / "index.json").read_text())
        names = ["caption.txt" if name == "blob" else name for name in sorted(COLUMNS)]
        encodings = ["str" if name == "blob" else COLUMNS[name] for name in sorted(COLUMNS)]
        for row in index["shards"]:
            row |= {"column_names": names, "column_encodings": encodings}
        (copied / "index.json").write_text(json.dumps(index))
        with pytest.raises(DuplicateName, match=r"'caption\.txt'.*two columns"):
            convert(copied, tmp_path)

    def test_it_writes_a_set_too(self, tmp_path: Path) -> None:
        done = from_mds(HERE / "plain", tmp_path / "o-%d.shardpack", max_records=3, **OPTIONS)
        assert [len(shardpack.open(path)) for path in done.paths] == [3, 3, 1]

    @pytest.mark.parametrize("options", [{"columns": ["gone"]}, {"key": "gone"}])
    def test_a_column_that_is_not_there_is_named(
        self, tmp_path: Path, options: dict[str, Any]
    ) -> None:
        with pytest.raises(InvalidArgument, match=r"'caption'.*'gone'"):
            convert(HERE / "zstd", tmp_path, **options)

    def test_a_column_that_can_be_no_key_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidArgument, match="'vector'"):
            convert(HERE / "plain", tmp_path, key="vector")


class TestDamage:
    """What is wrong is named, with the file."""

    def test_a_flipped_byte_does_not_fit_the_hash(self, copied: Path, tmp_path: Path) -> None:
        path = copied / "shard.00001.mds"
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        with pytest.raises(ChecksumMismatch, match=r"shard\.00001\.mds.*sha1"):
            convert(copied, tmp_path)
        assert len(convert(copied, tmp_path, check=False)) == 7

    @pytest.mark.parametrize("compression", ["zstd", "gz", "bz2", "br", "snappy"])
    def test_damaged_compression_is_an_error_of_ours(
        self, tmp_path: Path, compression: str
    ) -> None:
        folder = Path(shutil.copytree(HERE / compression, tmp_path / "mds"))
        path = next(folder.glob("*.mds.*"))
        whole = path.read_bytes()
        for at in range(0, len(whole), 11):
            data = bytearray(whole)
            data[at] ^= 0x55
            path.write_bytes(data)
            with pytest.raises((BadCompression, SizeMismatch, ChecksumMismatch)):
                convert(folder, tmp_path)
            try:
                convert(folder, tmp_path, check=False)
            except ShardError:
                continue

    @pytest.mark.slow
    def test_every_flipped_byte_of_a_shard_gives_an_error_of_ours_or_a_record(
        self, copied: Path, tmp_path: Path
    ) -> None:
        path = copied / "shard.00003.mds"
        whole = path.read_bytes()
        for at in range(0, len(whole), 13):
            data = bytearray(whole)
            data[at] ^= 0xFF
            path.write_bytes(data)
            try:
                convert(copied, tmp_path, check=False)
            except ShardError as error:
                assert error.path is not None  # noqa: PT017 - any error of ours, or none

    @pytest.mark.parametrize("keep", [0, 3, 100, -1])
    def test_a_shard_that_was_cut_is_found(self, copied: Path, tmp_path: Path, keep: int) -> None:
        path = copied / "shard.00000.mds"
        path.write_bytes(path.read_bytes()[:keep])
        with pytest.raises(SizeMismatch, match=r"shard\.00000\.mds"):
            convert(copied, tmp_path)

    def test_a_shard_that_is_not_there_is_named(self, copied: Path, tmp_path: Path) -> None:
        (copied / "shard.00002.mds").unlink()
        with pytest.raises(ShardIOError, match=r"shard\.00002\.mds"):
            convert(copied, tmp_path)

    @pytest.mark.parametrize("text", ["no json", "[]", '{"shards": [{}]}', '{"shards": 3}'])
    def test_an_index_that_is_none_is_named(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "index.json").write_text(text)
        with pytest.raises(BadMetadata, match=r"index\.json"):
            convert(tmp_path, tmp_path)

    @pytest.mark.parametrize("value", [None, 3, -1, 1 << 70, "x", [], {}, [None], [3, 3]], ids=repr)
    def test_no_field_of_the_index_is_believed(self, tmp_path: Path, value: object) -> None:
        folder = Path(shutil.copytree(HERE / "zstd", tmp_path / "mds"))
        whole = json.loads((folder / "index.json").read_text())
        row = whole["shards"][0]
        places = [(row, name) for name in row]
        places += [(row[part], name) for part in ("raw_data", "zip_data") for name in row[part]]
        for place, name in places:
            kept, place[name] = place[name], value
            (folder / "index.json").write_text(json.dumps(whole))
            place[name] = kept
            with contextlib.suppress(ShardError):
                convert(folder, tmp_path)

    @pytest.mark.parametrize(
        "fields", [{"column_names": ["\ud800"]}, {"column_encodings": ["\ud800"]}], ids=str
    )
    def test_text_that_is_not_unicode_is_refused_with_its_place(
        self, tmp_path: Path, fields: dict[str, Any]
    ) -> None:
        write_by_hand(tmp_path, "bytes", [b"1"])
        change_index(tmp_path, **fields)
        with pytest.raises(BadMetadata, match=r"index\.json.*surrogates"):
            convert(tmp_path, tmp_path)

    def test_the_key_is_read_as_each_shard_states_it(self, tmp_path: Path) -> None:
        write_by_hand(tmp_path, "str", [b"1"])
        path = tmp_path / "index.json"
        first = json.loads(path.read_text())["shards"][0]
        other = {**first, "column_encodings": ["str_int"]}
        path.write_text(json.dumps({"shards": [{**first, "column_encodings": ["bytes"]}, other]}))
        with pytest.raises(ShardError, match="'1'"):  # of both
            convert(tmp_path, tmp_path, key="x")
        other["column_names"] = ["y"]
        path.write_text(json.dumps({"shards": [first, other]}))
        with pytest.raises(BadMetadata, match=r"shard\.mds: entry 'x'"):
            convert(tmp_path, tmp_path, key="x")

    def test_a_folder_without_an_index_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ShardIOError, match=r"index\.json"):
            convert(tmp_path, tmp_path)

    @pytest.mark.parametrize("fields", [{"version": 3}, {"format": "csv"}])
    def test_other_versions_and_formats_are_refused(
        self, copied: Path, tmp_path: Path, fields: dict[str, Any]
    ) -> None:
        change_index(copied, **fields)
        with pytest.raises(UnsupportedVersion):
            convert(copied, tmp_path)

    def test_a_path_out_of_the_folder_is_refused(self, copied: Path, tmp_path: Path) -> None:
        change_index(copied, raw_data={"basename": "../x.mds", "bytes": 3, "hashes": {}})
        with pytest.raises(UnsafePath, match=r"\.\./x\.mds"):
            convert(copied, tmp_path)

    def test_an_unknown_encoding_is_named_and_can_be_left_out(
        self, copied: Path, tmp_path: Path
    ) -> None:
        names = sorted(COLUMNS)
        encodings = [COLUMNS[name] if name != "blob" else "my_own" for name in names]
        change_index(copied, column_encodings=encodings)
        with pytest.raises(InvalidArgument, match=r"'blob'.*'my_own'"):
            convert(copied, tmp_path)
        rest = [name for name in names if name != "blob"]
        assert len(convert(copied, tmp_path, columns=rest)) == 7

    def test_an_unknown_hash_is_named(self, copied: Path, tmp_path: Path) -> None:
        index = json.loads((copied / "index.json").read_text())
        index["shards"][0]["raw_data"]["hashes"] = {"md99": "0"}
        (copied / "index.json").write_text(json.dumps(index))
        with pytest.raises(UnknownCodec, match="md99"):
            convert(copied, tmp_path)

    def test_a_compressed_shard_may_not_claim_more_than_the_limit(self, tmp_path: Path) -> None:
        with pytest.raises(LimitExceeded, match="at most 100 bytes"):
            convert(HERE / "zstd", tmp_path, limits=Limits(max_decompressed_bytes=100))

    def test_an_unknown_compression_is_named(self, tmp_path: Path) -> None:
        folder = Path(shutil.copytree(HERE / "zstd", tmp_path / "mds"))
        change_index(folder, compression="mine")
        with pytest.raises(UnknownCodec, match="'mine'"):
            convert(folder, tmp_path)


class TestValues:
    """Values that lie about themselves, in a dataset made by hand."""

    @pytest.mark.parametrize(
        ("encoding", "data"),
        [
            ("ndarray", b""),
            ("ndarray", b"\x63"),
            ("ndarray", b"\x08"),
            ("ndarray", b"\x08\x0f\xff\xff"),
            ("ndarray", b"\x08\x04\x05abc"),
            ("ndarray", b"\x08\x0b" + bytes(8) + b"\xff" * 8),
            ("ndarray", b"\x08\x0f" + bytes(8) + b"\xff\xff\xff\xff\0\0\0\0" * 2),
            ("ndarray:uint8:" + ",".join("1" * 70), b"x"),
            ("ndarray:float32", b"\x04\x02abc"),
            ("ndarray:uint8:4", b"abc"),
            ("pil", b"short"),
            ("pil", struct.pack("<III", 2, 2, 1) + b"P" + b"1234"),
            ("pil", struct.pack("<III", 1 << 31, 1 << 31, 3) + b"RGB"),
            ("jpeg_array", b"\xff\xff\xff\xff"),
            ("jpeg_array", struct.pack("<II", 1, 9) + b"abc"),
            ("jpeg_array", struct.pack("<II", 1, 1) + b"abc"),
            ("list[png]", b"\0\0\0"),
            ("str_int", b"one"),
            ("str_float", b"\xff"),
            ("str_int", b"1" * 5000),
        ],
    )
    def test_a_damaged_value_is_named(self, tmp_path: Path, encoding: str, data: bytes) -> None:
        write_by_hand(tmp_path, encoding, [data])
        with pytest.raises(BadValue, match=r"shard\.mds.*x"):
            convert(tmp_path, tmp_path)

    @pytest.mark.parametrize(
        "sample", [b"", b"\1\0", struct.pack("<I", 4) + b"abc", struct.pack("<I", 2) + b"abc"]
    )
    def test_a_sample_that_its_values_do_not_fill_is_named(
        self, tmp_path: Path, sample: bytes
    ) -> None:
        write_by_hand(tmp_path, "bytes", [], samples=[struct.pack("<I", 1) + b"x", sample])
        with pytest.raises(SizeMismatch, match=r"shard\.mds.*sample 1"):
            convert(tmp_path, tmp_path)

    @pytest.mark.parametrize("offsets", [(16, 21, 20), (15, 20, 26), (16, 20, 27)])
    def test_offsets_that_leave_the_shard_are_refused(
        self, tmp_path: Path, offsets: tuple[int, ...]
    ) -> None:
        write_by_hand(tmp_path, "bytes", [b"1", b"2"])
        path = tmp_path / "shard.mds"
        whole = path.read_bytes()
        assert len(whole) == 26
        path.write_bytes(struct.pack("<4I", 2, *offsets) + whole[16:])
        with pytest.raises(BadOffset, match=r"shard\.mds"):
            convert(tmp_path, tmp_path)

    @pytest.mark.parametrize(
        "encoding",
        ["ndarray:complex64", "ndarray:int8:0", "ndarray:int8:a", "ndarray:int8:" + "9" * 5000],
        ids=lambda encoding: encoding[:20],
    )
    def test_an_array_of_an_unknown_kind_is_refused(self, tmp_path: Path, encoding: str) -> None:
        write_by_hand(tmp_path, encoding, [b"1"])
        with pytest.raises(InvalidArgument, match="unknown"):
            convert(tmp_path, tmp_path)

    def test_a_large_integer_stays_text(self, tmp_path: Path) -> None:
        write_by_hand(tmp_path, "str_int", [b"123456789012345678901234567890"])
        assert convert(tmp_path, tmp_path)[0].metadata["x"] == "123456789012345678901234567890"

    def test_jpeg_files_are_kept_as_they_are(self, tmp_path: Path) -> None:
        write_by_hand(tmp_path, "jpeg", [jpeg(1)])
        record = convert(tmp_path, tmp_path)[0]
        assert record["x.jpg"].read() == jpeg(1)
        assert Image.open(io.BytesIO(record["x.jpg"].data)).size == (5, 4)


def write_by_hand(
    folder: Path, encoding: str, values: list[bytes], samples: list[bytes] | None = None
) -> None:
    """One shard with one column `x` of varying size, put together from the layout."""
    samples = samples or [struct.pack("<I", len(value)) + value for value in values]
    starts = [4 * (len(samples) + 2)]
    for sample in samples:
        starts.append(starts[-1] + len(sample))
    data = struct.pack(f"<{len(starts) + 1}I", len(samples), *starts) + b"".join(samples)
    (folder / "shard.mds").write_bytes(data)
    row = {
        "column_encodings": [encoding],
        "column_names": ["x"],
        "column_sizes": [None],
        "compression": None,
        "format": "mds",
        "raw_data": {"basename": "shard.mds", "bytes": len(data), "hashes": {}},
        "samples": len(samples),
        "version": 2,
        "zip_data": None,
    }
    (folder / "index.json").write_text(json.dumps({"shards": [row], "version": 2}))
