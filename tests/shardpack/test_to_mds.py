"""MDS data sets that `to_mds` writes: names, columns, errors, and what is left after these.

That the real `mosaicml-streaming` reads them is seen in tests/bridges/test_mds.py.
"""

from __future__ import annotations

import json
import mmap
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import shardpack
from shard_format.errors import (
    BadMetadata,
    BadValue,
    InvalidArgument,
    LimitExceeded,
    ShardIOError,
)
from shardpack import ShardPackWriter
from shardpack.convert import from_mds, to_mds
from shardpack.convert._mds_columns import Columns
from shardpack.convert._mds_output import MdsOutput
from tests.shard_format.support import listing
from tests.shardpack.data.make_mds import jpeg

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Sample = tuple[dict[str, Any], dict[str, Any]]


def write_pack(path: Path, records: Mapping[str, Sample]) -> Path:
    """A shard of these entries and fields."""
    with ShardPackWriter(path, metadata_encoding="msgpack", fsync=False) as writer:
        for key, (entries, fields) in records.items():
            writer.write(key, entries, fields)
    return path


def convert(folder: Path, tmp_path: Path, **options: Any) -> shardpack.Dataset:  # noqa: ANN401 - those of from_mds
    return shardpack.open(
        from_mds(folder, tmp_path / "out.shardpack", fsync=False, **options).paths
    )


def some_pack(folder: Path, count: int) -> Path:
    """Records with a text and a number."""
    records = {f"{n:04d}": ({"txt": f"text {n}".encode()}, {"n": n}) for n in range(count)}
    return write_pack(folder / "x.shardpack", records)


def columns_of(folder: Path) -> dict[str, str]:
    """The columns and their encodings, as the first shard has them."""
    row = json.loads((folder / "index.json").read_text())["shards"][0]
    return dict(zip(row["column_names"], row["column_encodings"], strict=True))


class TestWriting:
    """`to_mds`; that others read it is seen where they are installed."""

    def test_records_come_back_with_their_keys_and_names(self, tmp_path: Path) -> None:
        entries = {"jpg": jpeg(1), "b.bin": b"1", "no ending": b"2", "d/e.pkl": b"3", "f.gz": b"4"}
        write_pack(tmp_path / "x.shardpack", {f"a/{n}.b": (entries, {"n": n}) for n in range(3)})
        done = to_mds(tmp_path / "x.shardpack", tmp_path / "mds", fsync=False)
        assert [Path(path).name for path in done.paths] == ["shard.00000.mds", "index.json"]
        assert done.records == 3
        back = convert(tmp_path / "mds", tmp_path)
        assert list(back.keys()) == ["a/0.b", "a/1.b", "a/2.b"]
        assert [record.metadata for record in back] == [{"n": 0}, {"n": 1}, {"n": 2}]
        assert all(record.read_all() == entries for record in back)

    def test_an_index_that_lost_what_it_knows_of_packs_is_read_as_any_other(
        self, tmp_path: Path
    ) -> None:
        entries = {"a.jpg": jpeg(1), "b.bin": b"1", "c": b"2", "txt": b"3", "x.npy": np.ones(3)}
        write_pack(tmp_path / "x.shardpack", {"k": (entries, {"n": 1})})
        to_mds(tmp_path / "x.shardpack", tmp_path / "mds", fsync=False)
        index = json.loads((tmp_path / "mds" / "index.json").read_text())
        del index["shardpack"]
        (tmp_path / "mds" / "index.json").write_text(json.dumps(index))
        [record] = convert(tmp_path / "mds", tmp_path, key="__key__")
        assert (record.key, record.metadata) == ("k", {"n": 1})
        names = {"__key__.txt", "a.jpg", "b.bin", "c.bin", "txt", "x.npy"}
        assert set(record.names) == names

    def test_the_columns_that_a_pack_once_had_can_be_asked_for_again(self, tmp_path: Path) -> None:
        encodings = {"n": "uint8", "words": "str"}
        write_pack(tmp_path / "x.shardpack", {"k": ({"words.txt": b"x"}, {"n": 1})})
        to_mds(tmp_path / "x.shardpack", tmp_path / "a", encodings=encodings, fsync=False)
        back = convert(tmp_path / "a", tmp_path)
        former = back.metadata["user"]["mds_columns"]
        assert former == {"__key__": "str", **encodings}
        to_mds(back, tmp_path / "b", encodings=former, fsync=False)
        for name in listing(tmp_path / "a"):
            assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()

    def test_the_same_records_give_the_same_bytes(self, tmp_path: Path) -> None:
        path = some_pack(tmp_path, 60)
        for name in ("a", "b"):
            to_mds(path, tmp_path / name, max_bytes=600, compression="zstd", fsync=False)
        assert len(listing(tmp_path / "a")) > 3
        for name in listing(tmp_path / "a"):
            assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()

    def test_no_shard_is_larger_than_asked_for(self, tmp_path: Path) -> None:
        done = to_mds(some_pack(tmp_path, 50), tmp_path / "mds", max_bytes=800, fsync=False)
        sizes = [Path(path).stat().st_size for path in done.paths[:-1]]
        assert len(sizes) > 2
        assert max(sizes) <= 800
        # One sample cannot be cut: it has a shard of its own.
        done = to_mds(tmp_path / "x.shardpack", tmp_path / "tiny", max_bytes=1, fsync=False)
        assert len(done.paths) == 51
        assert len(convert(tmp_path / "tiny", tmp_path)) == 50

    def test_a_pack_without_records_is_a_data_set_without_samples(self, tmp_path: Path) -> None:
        write_pack(tmp_path / "x.shardpack", {})
        to_mds(tmp_path / "x.shardpack", tmp_path / "mds", fsync=False)
        assert listing(tmp_path / "mds") == ["index.json"]
        assert len(convert(tmp_path / "mds", tmp_path)) == 0

    def test_joined_data_sets_are_written_too(self, tmp_path: Path) -> None:
        write_pack(tmp_path / "a.shardpack", {"k": ({"txt": b"a"}, {})})
        write_pack(tmp_path / "b.shardpack", {"k": ({"txt": b"b"}, {})})
        joined = shardpack.join(
            {"l.": tmp_path / "a.shardpack", "r.": tmp_path / "b.shardpack"},
        )
        to_mds(joined, tmp_path / "mds", fsync=False)
        assert len(convert(tmp_path / "mds", tmp_path)[0].names) == 2

    @pytest.mark.parametrize(
        ("late", "message"),
        [
            (({"json": b"{}"}, {"n": 1}), r"'cap\.txt': record 'late' lacks this entry.*columns="),
            (
                ({"json": b"{}", "cap.txt": b"x", "y": b"z"}, {"n": 1}),
                r"'y': record 'late' has an entry that the first ones lack.*columns=",
            ),
            (
                ({"json": b"{}", "cap.txt": b"x"}, {"n": 1, "m": 2}),
                r"'m': record 'late' has a field that the first ones lack.*columns=",
            ),
            (({"json": b"{}", "cap.txt": b"x"}, {}), r"'n': record 'late' lacks.*'n': 'json'"),
            (
                ({"json": b"{", "cap.txt": b"x"}, {"n": 1}),
                r"'json': record 'late' does not fit.*not valid JSON.*encodings={'json': 'bytes'}",
            ),
            (
                ({"json": b"{}", "cap.txt": b"\xff"}, {"n": 1}),
                r"'cap\.txt': record 'late'.*not UTF-8.*encodings={'cap\.txt': 'bytes'}",
            ),
            (
                ({"json": b"{}", "cap.txt": b"x"}, {"n": 0.5}),
                r"'n': record 'late'.*found 0\.5.*encodings={'n': 'float64'}",
            ),
            (
                ({"json": b"{}", "cap.txt": b"x"}, {"n": 1 << 63}),
                r"'n': record 'late'.*encodings={'n': 'json'}",
            ),
        ],
        ids=["lacks", "more", "field", "lacks field", "json", "text", "float", "large"],
    )
    def test_a_record_that_is_unlike_the_first_ones_is_named_and_nothing_is_left(
        self, tmp_path: Path, late: Sample, message: str
    ) -> None:
        usual = ({"json": b"{}", "cap.txt": b"x"}, {"n": 1})
        records = {str(n): usual for n in range(300)} | {"late": late}
        write_pack(tmp_path / "x.shardpack", records)
        with pytest.raises((InvalidArgument, BadValue), match=message):
            to_mds(tmp_path / "x.shardpack", tmp_path / "mds", max_bytes=1000, fsync=False)
        assert listing(tmp_path) == ["x.shardpack"]

    def test_what_the_first_records_do_not_fit_is_kept_as_it_is(self, tmp_path: Path) -> None:
        first = {"a.json": b"no json", "b.txt": b"\xff", "c.jpg": b"no image", "d.npy": b"no array"}
        others = {"e.npy": np.array(3), "f.npy": np.zeros(0), "g.npy": np.array(["a"])}
        write_pack(tmp_path / "x.shardpack", {"k": ({**first, **others}, {})})
        to_mds(tmp_path / "x.shardpack", tmp_path / "mds", fsync=False)
        assert columns_of(tmp_path / "mds") == {
            "__key__": "str",
            **dict.fromkeys((*first, *others), "bytes"),
        }

    def test_fields_have_the_narrowest_type_that_keeps_all_of_them(self, tmp_path: Path) -> None:
        rows = [
            {"i": 1, "f": 1, "s": "a", "b": True, "m": 1, "l": [1], "x": 1 << 63, "t": None},
            {"i": 2, "f": 0.5, "s": "b", "b": False, "m": "a", "l": [], "x": 1, "o": 1, "t": 1},
        ]
        write_pack(tmp_path / "x.shardpack", {str(n): ({}, row) for n, row in enumerate(rows)})
        to_mds(tmp_path / "x.shardpack", tmp_path / "mds", fsync=False)
        expected = {"i": "int", "f": "float64", "s": "str"} | dict.fromkeys("bmlxto", "json")
        assert columns_of(tmp_path / "mds") == {"__key__": "str", **expected}
        assert [record.metadata for record in convert(tmp_path / "mds", tmp_path)] == rows

    def test_a_field_that_is_null_here_and_lacks_there_is_named(self, tmp_path: Path) -> None:
        rows: list[dict[str, Any]] = [{"a": None}, {}]
        write_pack(tmp_path / "x.shardpack", {str(n): ({}, row) for n, row in enumerate(rows)})
        with pytest.raises(InvalidArgument, match=r"'a'.*records '0' and '1'"):
            to_mds(tmp_path / "x.shardpack", tmp_path / "mds", fsync=False)

    def test_a_field_that_is_called_like_an_entry_has_a_column_of_its_own(
        self, tmp_path: Path
    ) -> None:
        write_pack(tmp_path / "x.shardpack", {"k": ({"txt": b"entry"}, {"txt": "field"})})
        to_mds(tmp_path / "x.shardpack", tmp_path / "mds", fsync=False)
        assert set(columns_of(tmp_path / "mds")) == {"__key__", "metadata.txt", "txt"}
        [record] = convert(tmp_path / "mds", tmp_path)
        assert (record["txt"].read(), record.metadata) == (b"entry", {"txt": "field"})

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"columns": ["gone"]}, r"no such column.*'txt'.*'gone'"),
            ({"encodings": {"gone": "int"}}, r"no such column.*'txt'.*'gone'"),
            ({"encodings": {"txt": "pil"}}, r"'txt'.*cannot have this encoding.*'pil'"),
            ({"encodings": {"txt": "list[png]"}}, r"cannot have this encoding"),
            ({"encodings": {"txt": "int:3"}}, r"cannot have this encoding"),
            ({"encodings": {"txt": "ndarray::3"}}, r"cannot have this encoding"),
            ({"encodings": {"txt": "ndarray:bool"}}, r"'txt'.*not known.*bool"),
            ({"key": "txt"}, r"'txt'.*called as the column of keys"),
            ({"key": None, "columns": []}, r"no columns"),
            ({"max_bytes": 0}, r"max_bytes.*found 0"),
            ({"max_bytes": 1 << 32}, r"max_bytes.*4294967295"),
            ({"compression": "gz"}, r"'zstd'.*'gz'"),
            ({"compression": "zstd:23"}, r"'zstd'.*'zstd:23'"),
            ({"hashes": ["md99"]}, r"hash.*md99"),
        ],
        ids=lambda value: str(value)[:30],
    )
    def test_what_cannot_be_is_said_before_anything_is_written(
        self, tmp_path: Path, options: dict[str, Any], message: str
    ) -> None:
        path = some_pack(tmp_path, 3)
        with pytest.raises(InvalidArgument, match=message):
            to_mds(path, tmp_path / "mds", fsync=False, **options)
        assert not (tmp_path / "mds").exists()

    @pytest.mark.parametrize(
        ("encoding", "value"),
        [
            ("int8", 128),
            ("uint8", -1),
            ("int", True),
            ("int", "1"),
            ("float32", 1e40),
            ("float64", (1 << 60) + 1),
            ("str", 1),
            ("str_int", "one"),
            ("str_float", None),
            ("bytes", "text"),
            ("json", b"bytes"),
            ("json", {"deep": [{1: 2}]}),
            ("ndarray", [1]),
            ("png", "a.png"),
        ],
        ids=str,
    )
    def test_a_value_that_an_encoding_cannot_hold_is_refused(
        self, tmp_path: Path, encoding: str, value: object
    ) -> None:
        write_pack(tmp_path / "x.shardpack", {"k": ({}, {"v": value})})
        with pytest.raises(BadValue, match=rf"'v': record 'k'.*{encoding!r}.*expected"):
            to_mds(
                tmp_path / "x.shardpack", tmp_path / "mds", encodings={"v": encoding}, fsync=False
            )

    @pytest.mark.parametrize(
        ("encoding", "data"),
        [
            ("int", b"three"),
            ("float32", b""),
            ("str_int", b"1" * 5000),
            ("str_decimal", b"1,5"),
            ("ndarray", b"\x93NUMPY"),
            ("jpeg", b"text"),
        ],
    )
    def test_a_content_that_readers_could_not_read_is_refused(
        self, tmp_path: Path, encoding: str, data: bytes
    ) -> None:
        write_pack(tmp_path / "x.shardpack", {"k": ({"v": data}, {})})
        with pytest.raises(BadValue, match=r"'v': record 'k'.*encodings={'v': 'bytes'}"):
            to_mds(
                tmp_path / "x.shardpack", tmp_path / "mds", encodings={"v": encoding}, fsync=False
            )

    @pytest.mark.parametrize("encoding", ["ndarray:int16", "ndarray:float32:4"])
    def test_an_array_of_another_kind_is_refused(self, tmp_path: Path, encoding: str) -> None:
        write_pack(tmp_path / "x.shardpack", {"k": ({"v.npy": np.zeros(3, np.float32)}, {})})
        with pytest.raises(BadValue, match=r"'v\.npy'.*found float32 \(3,\)"):
            to_mds(
                tmp_path / "x.shardpack",
                tmp_path / "mds",
                encodings={"v.npy": encoding},
                fsync=False,
            )

    def test_a_sample_that_32_bits_cannot_measure_is_named(self, tmp_path: Path) -> None:
        path = some_pack(tmp_path, 1)
        with shardpack.open(path) as dataset, mmap.mmap(-1, 1 << 32) as untouched:
            columns = Columns(list(dataset), key=None, wanted=["txt"], given={})
            output = MdsOutput(
                str(tmp_path / "mds"),
                columns,
                max_bytes=1 << 26,
                compression=None,
                hashes=(),
                fsync=False,
            )
            with memoryview(untouched) as large, pytest.raises(LimitExceeded, match="'big'"):
                output.write("big", [large])

    def test_nothing_is_replaced(self, tmp_path: Path) -> None:
        path = some_pack(tmp_path, 3)
        (tmp_path / "mds").mkdir()
        (tmp_path / "mds" / "notes.txt").write_text("mine")
        with pytest.raises(InvalidArgument, match=r"mds: the folder is not empty.*'notes\.txt'"):
            to_mds(path, tmp_path / "mds", fsync=False)
        assert listing(tmp_path / "mds") == ["notes.txt"]
        with pytest.raises(ShardIOError, match=r"x\.shardpack"):
            to_mds(path, path, fsync=False)

    @pytest.mark.parametrize("is_there", [False, True])
    def test_an_interruption_leaves_no_data_set(self, tmp_path: Path, is_there: bool) -> None:
        target = tmp_path / "mds"
        seen: list[list[str]] = []

        class Interrupted(shardpack.Dataset):
            def records(self, start: int = 0, stop: int | None = None) -> Iterator[Any]:
                yield from super().records(0, 400)
                seen.append(listing(target))
                raise KeyboardInterrupt

        path = some_pack(tmp_path, 500)
        if is_there:
            target.mkdir()
        with Interrupted(path) as dataset, pytest.raises(KeyboardInterrupt):
            to_mds(dataset, target, max_bytes=1000, fsync=False)
        # The index comes last: before that, only shards that are complete have a name.
        assert len(seen[0]) > 2
        assert all(re.fullmatch(r"shard\.\d{5}\.mds", name) for name in seen[0])
        assert target.exists() == is_there
        assert not is_there or listing(target) == []

    @pytest.mark.parametrize(
        "places", [3, [], {"key": 1}, {"entries": []}, {"fields": {"a": 1}}, {"optional": [1]}]
    )
    def test_what_the_index_says_of_packs_is_not_believed(
        self, tmp_path: Path, places: object
    ) -> None:
        to_mds(some_pack(tmp_path, 3), tmp_path / "mds", fsync=False)
        index = json.loads((tmp_path / "mds" / "index.json").read_text())
        index["shardpack"] = places
        (tmp_path / "mds" / "index.json").write_text(json.dumps(index))
        with pytest.raises(BadMetadata, match=r"index\.json"):
            convert(tmp_path / "mds", tmp_path)
