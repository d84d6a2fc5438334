"""Parquet and Arrow tables, written by pyarrow itself."""

from __future__ import annotations

import datetime
import decimal
import math
import os
import struct
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

import shardpack
from shard_format.errors import BadValue, InvalidArgument, MissingExtra, ShardError, ShardIOError
from shardpack.convert import from_table, to_table
from tests.shardpack.support import CREATED, noise, run_python

if TYPE_CHECKING:
    from pathlib import Path

OPTIONS: dict[str, Any] = {"fsync": False, "created": CREATED, "overwrite": True}
ROWS = 1000
JPEG = b"\xff\xd8\xff\xe0 a picture"


ONE = struct.pack("<ii", 0, 1)  # offsets of one value of a byte


def table(rows: int = ROWS) -> pa.Table:
    return pa.table(
        {
            "id": [f"row-{n}" for n in range(rows)],
            "label": pa.array(range(rows), pa.int64()),
            "score": pa.array([n / 3 for n in range(rows)], pa.float64()),
            "blob": pa.array([noise(n % 50, n) for n in range(rows)], pa.binary()),
            "vector": pa.array([[float(n), 0.5] for n in range(rows)], pa.list_(pa.float32(), 2)),
            "image": pa.array(
                [{"bytes": JPEG + b"%d" % n, "path": None} for n in range(rows)],
                pa.struct({"bytes": pa.binary(), "path": pa.string()}),
            ),
        }
    )


def convert(tables: Any, tmp_path: Path, **options: Any) -> shardpack.Dataset:  # noqa: ANN401 - those of from_table
    done = from_table(tables, tmp_path / "out.shardpack", **OPTIONS, **options)
    dataset = shardpack.open(done.paths)
    assert len(dataset) == done.records
    return dataset


def one(column: pa.Array, tmp_path: Path, **options: Any) -> shardpack.Record:  # noqa: ANN401 - those of from_table
    return convert(pa.table({"x": column}), tmp_path, **options)[0]


class TestSources:
    """Everything that has rows."""

    @pytest.mark.parametrize(
        "kind", ["parquet", "arrow file", "arrow stream", "feather", "table", "reader", "batches"]
    )
    def test_every_kind_of_table_gives_the_same_records(self, tmp_path: Path, kind: str) -> None:
        source: Any = str(tmp_path / "in")
        if kind == "parquet":
            pyarrow.parquet.write_table(table(), source, row_group_size=300)
        elif kind == "arrow file":
            with pa.ipc.new_file(source, table().schema) as writer:
                writer.write_table(table(), max_chunksize=300)
        elif kind == "arrow stream":
            with pa.ipc.new_stream(source, table().schema) as writer:
                writer.write_table(table(), max_chunksize=300)
        elif kind == "feather":
            pyarrow.feather.write_feather(table(), source)
        elif kind == "table":
            source = table()
        elif kind == "reader":
            source = table().to_reader(max_chunksize=70)
        else:
            source = table().to_batches(max_chunksize=70)
        dataset = convert(source, tmp_path, key="id")
        assert len(dataset) == ROWS
        for number in (0, 1, 299, 300, 999):
            record = dataset[number]
            assert record.key == f"row-{number}"
            assert record.metadata == {"id": record.key, "label": number, "score": number / 3}
            assert record["blob.bin"].read() == noise(number % 50, number)
            assert record["image.jpg"].read() == JPEG + b"%d" % number
            vector = record["vector.npy"].decode()
            assert vector.dtype == np.float32
            assert vector.tolist() == [number, 0.5]

    def test_many_files_are_numbered_through(self, tmp_path: Path) -> None:
        for number in range(3):
            pyarrow.parquet.write_table(table(5), tmp_path / f"in-{number}.parquet")
        dataset = convert(str(tmp_path / "in-*.parquet"), tmp_path)
        assert list(dataset.keys()) == [f"{n:09d}" for n in range(15)]

    def test_a_table_without_rows_is_a_shard_without_records(self, tmp_path: Path) -> None:
        assert len(convert(table(0), tmp_path)) == 0


class TestColumns:
    """What each type becomes."""

    @pytest.mark.parametrize(
        ("column", "expected"),
        [
            (pa.array([True]), True),
            (pa.array([None], pa.int32()), None),
            (pa.array([2**64 - 1], pa.uint64()), 2**64 - 1),
            (pa.array(["Größe"]), "Größe"),
            (pa.array(["a"]).dictionary_encode(), "a"),
            (pa.array([["a", None]]), ["a", None]),
            (pa.array([{"a": 1, "b": {"c": "d"}}]), {"a": 1, "b": {"c": "d"}}),
            (pa.array([decimal.Decimal("1.10")]), "1.10"),
            (
                pa.array([1_700_000_000_123_456_789], pa.timestamp("ns")),
                "2023-11-14 22:13:20.123456789",
            ),
            (pa.array([datetime.date(2024, 5, 6)]), "2024-05-06"),
            (pa.array([5], pa.time64("ns")), "00:00:00.000000005"),
            (pa.array([5], pa.duration("ms")), "5 ms"),
            (pa.array([None], pa.duration("ms")), None),
            (pa.array([[1, None]], pa.list_(pa.int64())), [1, None]),
        ],
        ids=str,
    )
    def test_a_value_goes_to_the_metadata(
        self, tmp_path: Path, column: pa.Array, expected: object
    ) -> None:
        record = one(column, tmp_path)
        assert record.metadata == {"x": expected}
        assert record.names == ()

    def test_numbers_and_bytes_that_json_cannot_hold_become_text(self, tmp_path: Path) -> None:
        assert one(pa.array([math.nan]), tmp_path).metadata["x"] == "NaN"
        assert one(pa.array([[b"\xff"]]), tmp_path).metadata["x"] == ["/w=="]

    @pytest.mark.parametrize(
        ("kind", "dtype"),
        [(pa.int8(), "i1"), (pa.uint16(), "u2"), (pa.float16(), "f2"), (pa.float64(), "f8")],
    )
    def test_lists_of_numbers_are_arrays_of_their_type(
        self, tmp_path: Path, kind: pa.DataType, dtype: str
    ) -> None:
        values = np.array([1, 2, 3], dtype)
        found = one(pa.array([values], pa.list_(kind)), tmp_path)["x.npy"].decode()
        assert found.dtype == np.dtype(dtype)
        assert found.tolist() == [1, 2, 3]

    @pytest.mark.parametrize(
        "kind", [pa.binary(), pa.large_binary(), pa.binary(3), pa.binary_view(), None], ids=str
    )
    def test_every_kind_of_bytes_is_an_entry(
        self, tmp_path: Path, kind: pa.DataType | None
    ) -> None:
        column = pa.array([b"xyz"], kind)
        if kind is None:
            column = column.dictionary_encode()
        assert one(column, tmp_path)["x.bin"].read() == b"xyz"

    def test_a_tensor_keeps_its_shape(self, tmp_path: Path) -> None:
        kind = pa.fixed_shape_tensor(pa.float32(), [2, 3])
        storage = pa.array([range(6), None], pa.list_(pa.float32(), 6))
        column = pa.ExtensionArray.from_storage(kind, storage)
        dataset = convert(pa.table({"x": column}), tmp_path)
        assert dataset[0]["x.npy"].decode().tolist() == [[0, 1, 2], [3, 4, 5]]
        assert dataset[1].metadata == {"x": None}

    def test_an_interval_has_no_form(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidArgument, match="'x'"):
            one(pa.array([pa.MonthDayNano([1, 2, 3])]), tmp_path)

    def test_null_bytes_leave_the_entry_out_and_say_so(self, tmp_path: Path) -> None:
        record = one(pa.array([None], pa.binary()), tmp_path)
        assert (record.names, record.metadata) == ((), {"x": None})

    @pytest.mark.parametrize(
        ("data", "path", "name"),
        [
            (b"\x89PNG\r\n\x1a\n..", None, "x.png"),
            (b"anything", "photos/a.webp", "x.webp"),
            (b"anything", "noending", "x.bin"),
            (b"RIFF\0\0\0\0WAVE", None, "x.wav"),
        ],
    )
    def test_files_of_hugging_face_are_named_by_what_they_are(
        self, tmp_path: Path, data: bytes, path: str | None, name: str
    ) -> None:
        kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
        record = one(pa.array([{"bytes": data, "path": path}], kind), tmp_path)
        assert record[name].read() == data
        assert record.metadata == ({} if path is None else {"x_path": path})

    def test_a_file_without_its_content_is_an_error(self, tmp_path: Path) -> None:
        kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
        with pytest.raises(BadValue, match=r"row 0.*/data/a\.jpg"):
            one(pa.array([{"bytes": None, "path": "/data/a.jpg"}], kind), tmp_path)

    def test_names_of_entries_can_be_given(self, tmp_path: Path) -> None:
        data = pa.table({"text": ["long text"], "img": [b"\0"], "n": [1]})
        record = convert(data, tmp_path, entries={"text": "text.txt", "img": "image.png"})[0]
        assert record.read_all() == {"text.txt": b"long text", "image.png": b"\0"}
        assert record["image.png"].content_type == "image/png"
        assert record.metadata == {"n": 1}

    def test_a_column_whose_name_says_it_all_keeps_it(self, tmp_path: Path) -> None:
        record = convert(pa.table({"left.jpg": [JPEG]}), tmp_path)[0]
        assert record.names == ("left.jpg",)

    def test_columns_can_be_chosen(self, tmp_path: Path) -> None:
        record = convert(table(3), tmp_path, columns=["label"], key="id")["row-1"]
        assert (record.names, record.metadata) == ((), {"label": 1})


class TestErrors:
    """Each names its place."""

    @pytest.mark.parametrize(
        "options", [{"key": "gone"}, {"columns": ["gone"]}, {"entries": {"gone": "x"}}]
    )
    def test_a_column_that_is_not_there(self, tmp_path: Path, options: dict[str, Any]) -> None:
        with pytest.raises(InvalidArgument, match=r"'id'.*'gone'"):
            convert(table(2), tmp_path, **options)

    def test_a_null_key_names_the_row(self, tmp_path: Path) -> None:
        with pytest.raises(BadValue, match=r"'k': row 1"):
            convert(pa.table({"k": ["a", None]}), tmp_path, key="k")

    def test_a_repeated_key(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidArgument, match="'a' was written before"):
            convert(pa.table({"k": ["a", "a"]}), tmp_path, key="k")

    def test_a_column_that_can_be_no_entry(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidArgument, match="int64"):
            convert(pa.table({"k": [1]}), tmp_path, entries={"k": "k.bin"})

    @pytest.mark.parametrize("content", [b"", b"PAR1 and nothing", b"ARROW1\0\0", b"hello world"])
    def test_a_file_that_is_no_table(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "in").write_bytes(content)
        with pytest.raises(BadValue, match="in: the table cannot be read"):
            convert(str(tmp_path / "in"), tmp_path)

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(ShardIOError, match="gone"):
            convert(str(tmp_path / "gone"), tmp_path)

    def test_something_that_is_no_table(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidArgument, match="int"):
            convert(3, tmp_path)

    @pytest.mark.parametrize("kind", ["parquet", "arrow"])
    def test_a_damaged_file_gives_an_error_of_ours_or_records(
        self, tmp_path: Path, kind: str
    ) -> None:
        path = tmp_path / "in"
        if kind == "parquet":
            pyarrow.parquet.write_table(table(20), path)
        else:
            pyarrow.feather.write_feather(table(20), path, compression="uncompressed")
        whole = path.read_bytes()
        failed = 0
        for at in range(4, len(whole), 97):
            data = bytearray(whole)
            data[at] ^= 0xFF
            path.write_bytes(data)
            try:
                convert(str(path), tmp_path)
            except ShardError:
                failed += 1
        assert failed

    @pytest.mark.parametrize(
        "values",
        [
            pa.array([7]).view(pa.timestamp("us", tz="Mars/Olympus")),
            pa.array([1 << 62]).view(pa.timestamp("s")),
            pa.array([1 << 30], pa.int32()).view(pa.date32()),
            pa.Array.from_buffers(pa.string(), 1, [None, *map(pa.py_buffer, (ONE, b"\xff"))]),
        ],
        ids=["time zone", "time", "date", "text"],
    )
    @pytest.mark.parametrize("where", ["in a list", "in a struct", "as the key"])
    def test_a_value_that_python_does_not_have_is_an_error_of_ours(
        self, tmp_path: Path, values: pa.Array, where: str
    ) -> None:
        column = values
        if where == "in a list":
            column = pa.ListArray.from_arrays([0, 1], values)
        elif where == "in a struct":
            column = pa.StructArray.from_arrays([values], ["y"])
        with pytest.raises(BadValue, match=r"<table>: .*row 0"):
            one(column, tmp_path, key="x" if where == "as the key" else None)

    @pytest.mark.parametrize(
        "column",
        [
            pa.StructArray.from_arrays([pa.array([1]), pa.array(["a"])], ["bytes", "path"]),
            pa.StructArray.from_arrays(
                [pa.array([b"a"]), pa.array([b"b"]), pa.array(["c"])], ["bytes", "bytes", "path"]
            ),
            pa.ExtensionArray.from_storage(
                pa.fixed_shape_tensor(pa.string(), [1]), pa.array([["a"]], pa.list_(pa.string(), 1))
            ),
            pa.ExtensionArray.from_storage(
                pa.fixed_shape_tensor(pa.int8(), [2]), pa.array([[1, None]], pa.list_(pa.int8(), 2))
            ),
        ],
        ids=["numbers as files", "two contents", "tensor of text", "tensor with a null"],
    )
    def test_a_column_that_claims_to_be_something_else_is_named(
        self, tmp_path: Path, column: pa.Array
    ) -> None:
        with pytest.raises(BadValue, match=r"<table>: entry 'x': row 0") as caught:
            one(column, tmp_path)
        assert caught.value.entry == "x"

    def test_a_column_of_lists_that_are_too_deep_is_named(self, tmp_path: Path) -> None:
        column = pa.array([1])
        for _ in range(sys.getrecursionlimit()):
            column = pa.ListArray.from_arrays([0, 1], column)
        with pytest.raises(BadValue, match=r"<table>: entry 'x': row 0"):
            one(column, tmp_path)

    @pytest.mark.parametrize("kind", ["table", "batch", "reader"])
    def test_offsets_outside_of_a_table_in_memory_are_refused(
        self, tmp_path: Path, kind: str
    ) -> None:
        far = struct.pack("<iii", 0, 1 << 30, 1)
        column = pa.Array.from_buffers(pa.binary(), 2, [None, *map(pa.py_buffer, (far, b"x"))])
        batch = pa.record_batch([column], ["x"])
        given = {
            "table": pa.Table.from_batches([batch]),
            "batch": batch,
            "reader": pa.RecordBatchReader.from_batches(batch.schema, [batch]),
        }[kind]
        with pytest.raises(BadValue, match="row 0"):
            convert(given, tmp_path)

    def test_importing_the_bridges_loads_no_optional_package(self) -> None:
        script = "import sys, shardpack.convert; print(sorted(sys.modules))"
        found = run_python(script).stdout
        assert "'shardpack.convert'" in found
        assert all(f"'{name}'" not in found for name in ("pyarrow", "PIL", "wshard", "webdataset"))

    def test_without_pyarrow_the_extra_is_named(self, tmp_path: Path) -> None:
        script = """
import sys
sys.modules["pyarrow"] = None
from shardpack.convert import from_table, to_table
try:
    from_table("x.parquet", "out.shardpack")
except ImportError as error:
    print(type(error).__name__, error)
"""
        found = run_python(script)
        assert MissingExtra.__name__ in found.stdout
        assert "pip install 'shard-format[arrow]'" in found.stdout


class TestExactly:
    """What JSON has no form for is kept to the last digit, and the result says what it became."""

    def test_times_and_decimals_are_kept_at_any_depth(self, tmp_path: Path) -> None:
        nanoseconds = pa.array([1_700_000_000_123_456_789])
        time = "2023-11-14 22:13:20.123456789"
        kinds: dict[str, tuple[pa.Array, Any]] = {
            "timestamp[ns]": (nanoseconds.view(pa.timestamp("ns")), time),
            "timestamp[ns, tz=UTC]": (nanoseconds.view(pa.timestamp("ns", "UTC")), f"{time}Z"),
            "duration[ns]": (nanoseconds.view(pa.duration("ns")), "1700000000123456789 ns"),
            "decimal128(5, 2)": (pa.array([decimal.Decimal("1.10")], pa.decimal128(5, 2)), "1.10"),
            "decimal128(5, -2)": (
                pa.array([decimal.Decimal("12E2")], pa.decimal128(5, -2)),
                "1.2E+3",
            ),
        }
        for kind, (values, text) in kinds.items():
            deep = pa.ListArray.from_arrays([0, 1], pa.StructArray.from_arrays([values], ["y"]))
            rows = pa.table({"x": values, "deep": deep, "plain": [1.5]})
            done = from_table(rows, tmp_path / "out.shardpack", **OPTIONS)
            with shardpack.open(done.paths) as dataset:
                assert dataset[0].metadata == {"x": text, "deep": [{"y": text}], "plain": 1.5}
            assert done.changed == [
                f"column 'x': {kind} as text (1 value)",
                f"column 'deep': {kind} as text (1 value)",
            ]
            assert list(convert(rows, tmp_path, key="x").keys()) == [text]

    def test_a_time_that_the_calendar_does_not_have_is_refused(self, tmp_path: Path) -> None:
        for kind in (pa.timestamp("s"), pa.timestamp("ms", "UTC")):
            with pytest.raises(BadValue, match=r"entry 'x': row 0: not a time"):
                one(pa.array([-(1 << 62)]).view(kind), tmp_path)

    def test_other_changes_are_said_too(self, tmp_path: Path) -> None:
        rows = pa.table(
            {
                "n": [float("nan"), 1.0, float("inf")],
                "b": [{"x": b"1"}, None, {"x": b"2"}],
                "l": [[1, None], [1, 2], None],
            }
        )
        done = from_table(rows, tmp_path / "out.shardpack", **OPTIONS)
        assert done.changed == [
            "column 'n': NaN or infinity as text (2 values)",
            "column 'b': bytes as base64 text (2 values)",
            "column 'l': lists with nulls in the metadata, because an array cannot hold a null (1 value)",
        ]


class TestToTable:
    """One row per record."""

    def write(self, tmp_path: Path, fields: list[dict[str, Any]]) -> Path:
        path = tmp_path / "in.shardpack"
        with shardpack.ShardPackWriter(path, fsync=False, overwrite=True) as writer:
            for number, metadata in enumerate(fields):
                writer.write(f"k{number}", {"jpg": b"%d" % number} if number % 2 else {}, metadata)
        return path

    @pytest.mark.parametrize("ending", ["parquet", "arrow", "feather"])
    def test_records_come_back(self, tmp_path: Path, ending: str) -> None:
        # More than are looked at together; the type of a field shows late.
        fields = [
            {"label": n if n < 1500 else n + 0.5, "words": ["a"] * (n % 3), "at": {"x": n}}
            for n in range(2000)
        ]
        path = self.write(tmp_path, fields)
        table = tmp_path / f"t.{ending}"
        done = to_table(path, table, fsync=False)
        assert (done.paths, done.records, done.changed) == ([str(table)], 2000, [])
        read = pyarrow.parquet if ending == "parquet" else pyarrow.feather
        found = read.read_table(table)
        assert found.schema.names == ["__key__", "at", "label", "words", "jpg"]
        assert str(found.schema.field("label").type) == "double"
        back = from_table(str(table), tmp_path / "back.shardpack", key="__key__", **OPTIONS)
        with shardpack.open(back.paths) as dataset:
            for n in (0, 1, 1999):
                record = dataset[f"k{n}"]
                assert {name: record.metadata[name] for name in fields[n]} == fields[n]
                assert record.read_all() == ({"jpg": b"%d" % n} if n % 2 else {})
        again = tmp_path / f"again.{ending}"
        to_table(back.paths, again, fsync=False)
        assert read.read_table(again).equals(found)

    def test_values_without_a_common_type_become_json_which_is_said(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, [{"a": 1, "b": {}, "c": 1}, {"a": "x"}, {"a": {"y": [1]}}])
        done = to_table(path, tmp_path / "t.parquet", entries=False)
        assert [change.partition(":")[0] for change in done.changed] == ["field 'a'", "field 'b'"]
        assert pyarrow.parquet.read_table(tmp_path / "t.parquet").to_pydict() == {
            "__key__": ["k0", "k1", "k2"],
            "a": ["1", '"x"', '{"y":[1]}'],
            "b": ["{}", None, None],
            "c": [1, None, None],
        }

    def test_columns_are_chosen_and_nothing_is_replaced_unasked(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, [{"a": 1, "b": 2}, {"a": 3}])
        table = tmp_path / "t.parquet"
        to_table(path, table, columns=["a"])
        assert pyarrow.parquet.read_table(table).to_pydict() == {
            "__key__": ["k0", "k1"],
            "a": [1, 3],
        }
        before = table.read_bytes()
        wrong: list[dict[str, Any]] = [{}, {"overwrite": True, "columns": ["z"]}]
        for options in wrong:
            with pytest.raises(InvalidArgument):
                to_table(path, table, **options)
        with pytest.raises(InvalidArgument, match="ends in"):
            to_table(path, tmp_path / "t.csv")
        clash = self.write(tmp_path, [{}, {"jpg": 1}])
        with pytest.raises(InvalidArgument, match="name of another column"):
            to_table(clash, table, overwrite=True)
        assert table.read_bytes() == before
        assert sorted(os.listdir(tmp_path)) == ["in.shardpack", "t.parquet"]
