"""MDS with the real `mosaicml-streaming` on the other side: what it writes is read, what is written it reads."""

from __future__ import annotations

import io
import json
import tempfile
import time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

import shardpack
from shardpack import ShardPackWriter
from shardpack.convert import from_mds, to_mds
from tests.bridges.streaming_package import streaming_module
from tests.shard_format.support import check_python
from tests.shardpack.data.make_mds import COLUMNS, jpeg, picture, rows
from tests.shardpack.mds_support import check_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

# The package leaves files to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")

ROOT = Path(__file__).parents[2]
INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
FLOATS = ["float16", "float32", "float64"]
MORE_COLUMNS = {
    **{name: name for name in (*INTEGERS, *FLOATS, "jpeg", "jpegarray", "list[jpeg]", "list[pil]")},
    **{f"of {name}": f"ndarray:{name}" for name in (*INTEGERS, *FLOATS)},
}


@pytest.fixture(scope="module", autouse=True)
def _short_naps() -> Iterator[None]:
    """The writer of the package looks once a second whether its threads are done."""
    with pytest.MonkeyPatch.context() as patch:
        module = streaming_module("base.format.base.writer")
        patch.setattr(module, "sleep", lambda _: time.sleep(0.001))
        yield


def write_theirs(
    folder: Path,
    columns: Mapping[str, str],
    samples: Iterable[Mapping[str, Any]],
    **options: Any,  # noqa: ANN401 - those of MDSWriter
) -> Path:
    writer = streaming_module("base.format.mds").MDSWriter
    with writer(out=str(folder), columns=dict(columns), **options) as out:
        for sample in samples:
            out.write(sample)
    return folder


def read_theirs(folder: Path) -> Any:  # noqa: ANN401 - an untyped sequence of dictionaries
    return streaming_module("base.local").LocalDataset(str(folder))


def converted(folder: Path, target: Path, **options: Any) -> shardpack.Dataset:  # noqa: ANN401 - those of from_mds
    return shardpack.open(from_mds(folder, target, fsync=False, **options).paths)


def png(number: int) -> bytes:
    file = io.BytesIO()
    picture(number).save(file, "PNG")
    return file.getvalue()


def write_pack(path: Path, count: int = 20) -> Path:
    """A pack with every kind of entry and field that there is a column for."""
    with ShardPackWriter(path, metadata_encoding="msgpack", compression="lz4") as writer:
        for n in range(count):
            entries = {
                "jpg": jpeg(n),
                "left.png": png(n),
                "json": {"n": n, "ü": [None, 1.5]},
                "caption.txt": f"picture Nº {n}",
                "cls": str(n % 3),
                "points.npy": np.arange(3 * (n + 1), dtype="<f4").reshape(-1, 3),
                "mask.npy": np.arange(n) % 2 == 0,
                "turned.npy": np.asfortranarray(np.arange(6, dtype=">i2").reshape(2, 3) + n),
                "blob.bin": bytes(range(n)),
                "empty": b"",
                "object.pkl": b"never loaded",
            }
            fields = {"label": n - 5, "weight": n / 3, "name": f"n{n}", "raw": b"\0" * n}
            more = {"tags": ["a"] * n, "good": n % 2 == 0, **({"year": 1999} if n % 4 else {})}
            writer.write(f"day/{n}", entries, {**fields, **more})
    return path


def check_sample(sample: Mapping[str, Any], record: shardpack.Record) -> None:
    """That a sample which the package has read is this record."""
    fields = record.metadata
    assert sample.keys() == {"__key__", "year", *record.names, *fields}
    assert sample["__key__"] == record.key
    for name in ("jpg", "left.png"):
        assert np.array_equal(np.asarray(sample[name]), record[name].decode())
    for name in ("json", "caption.txt", "cls"):
        assert sample[name] == record[name].decode()
    for name in ("points.npy", "turned.npy"):
        assert np.array_equal(sample[name], record[name].decode())
        assert sample[name].dtype == record[name].decode().dtype.newbyteorder("=")
    for name in ("mask.npy", "blob.bin", "empty", "object.pkl"):
        assert sample[name] == record[name].read()
    for name, value in fields.items():
        assert sample[name] == value
    assert sample["year"] == fields.get("year")


def assert_same_records(found: shardpack.Dataset, expected: shardpack.Dataset) -> None:
    for one, other in zip(found, expected, strict=True):
        assert (one.key, one.metadata) == (other.key, other.metadata)
        assert set(one.names) == set(other.names)
        for name in other.names:
            if name == "turned.npy":  # the values, in the order of this machine
                assert np.array_equal(one[name].decode(), other[name].decode())
            else:
                assert one[name].read() == other[name].read()


class TestTheirs:
    """What the package writes."""

    @pytest.mark.parametrize("compression", [None, "zstd:7", "gz", "bz2:1", "br:3", "snappy"])
    def test_every_value_comes_back(self, tmp_path: Path, compression: str | None) -> None:
        hashes = ["sha1", "xxh3_64"] if compression else []
        options = {"compression": compression, "hashes": hashes, "size_limit": 1 << 12}
        folder = write_theirs(tmp_path / "mds", COLUMNS, rows(), **options)
        assert len(list(folder.glob("shard.*"))) > 2
        check_records(converted(folder, tmp_path / "x.shardpack"), rows())

    def test_no_encoding_is_left_out(self) -> None:
        known = streaming_module("base.format.mds.encodings").get_mds_encodings()
        ours = {name.partition(":")[0] for name in (*COLUMNS.values(), *MORE_COLUMNS.values())}
        assert ours == known

    def test_numbers_arrays_and_lists_of_images_come_back(self, tmp_path: Path) -> None:
        samples: list[dict[str, Any]] = []
        for end in ("min", "max"):
            sample: dict[str, Any] = {}
            for name in (*INTEGERS, *FLOATS):
                limits = np.iinfo(name) if name in INTEGERS else np.finfo(name)
                value = np.dtype(name).type(getattr(limits, end))
                sample |= {name: value, f"of {name}": np.array([[value], [1]], name)}
            images = [picture(3), picture(4)]
            sample |= {"jpeg": images[0], "list[jpeg]": images, "list[pil]": images}
            samples.append({**sample, "jpegarray": [jpeg(1), jpeg(2)]})
        folder = write_theirs(tmp_path / "mds", MORE_COLUMNS, samples)
        for record, sample in zip(
            converted(folder, tmp_path / "x.shardpack"), samples, strict=True
        ):
            assert record.metadata == {name: sample[name] for name in (*INTEGERS, *FLOATS)}
            for name in (*INTEGERS, *FLOATS):
                found = record[f"of {name}.npy"].decode()
                assert found.dtype == np.dtype(name)
                assert np.array_equal(found, sample[f"of {name}"])
            for k, image in enumerate(sample["list[pil]"]):
                assert np.array_equal(record[f"list[pil].{k}.npy"].decode(), np.asarray(image))
                assert record[f"jpegarray.{k}.jpg"].read() == jpeg(k + 1)
                assert record[f"list[jpeg].{k}.jpg"].read() == jpeg(k + 3)
            assert record["jpeg"].read() == jpeg(3)

    @settings(max_examples=30, deadline=None)
    @given(
        st.lists(
            st.fixed_dictionaries(
                {
                    "words": st.text(),
                    "blob": st.binary(),
                    "int": st.integers(-(1 << 63), (1 << 63) - 1),
                    "str_int": st.integers(),
                    "str_float": st.floats(allow_nan=False),
                    "str_decimal": st.decimals(allow_nan=False),
                    "json": st.recursive(
                        st.none() | st.booleans() | st.integers() | st.text(),
                        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
                        max_leaves=5,
                    ),
                    "array": arrays.arrays(
                        st.sampled_from([*INTEGERS, *FLOATS]),
                        arrays.array_shapes(max_dims=4, max_side=4),
                    ),
                }
            ),
            min_size=1,
            max_size=5,
        )
    )
    def test_any_values_come_back(self, samples: list[dict[str, Any]]) -> None:
        columns = {"words": "str", "blob": "bytes", "array": "ndarray"}
        columns |= {name: name for name in samples[0] if name not in columns}
        with tempfile.TemporaryDirectory() as folder:
            write_theirs(Path(folder, "mds"), columns, samples, size_limit=500)
            with converted(Path(folder, "mds"), Path(folder, "x.shardpack")) as dataset:
                for record, sample in zip(dataset, samples, strict=True):
                    assert record["words.txt"].decode() == sample["words"]
                    assert record["blob.bin"].read() == sample["blob"]
                    assert record["json"].decode() == sample["json"]
                    array = record["array.npy"].decode()
                    assert array.dtype == sample["array"].dtype
                    assert np.array_equal(array, sample["array"], equal_nan=True)
                    fields = record.metadata
                    assert (fields["int"], int(fields["str_int"])) == (
                        sample["int"],
                        sample["str_int"],
                    )
                    assert fields["str_float"] == sample["str_float"]
                    assert Decimal(fields["str_decimal"]) == sample["str_decimal"]


class TestOurs:
    """What `to_mds` writes."""

    def test_every_sample_of_every_shard_is_read(self, tmp_path: Path) -> None:
        pack = shardpack.open(write_pack(tmp_path / "x.shardpack"))
        done = to_mds(pack, tmp_path / "mds", max_bytes=1 << 13, fsync=False)
        assert len(done.paths) > 4
        theirs = read_theirs(tmp_path / "mds")
        assert len(theirs) == len(pack) == done.records
        for number, record in enumerate(pack):
            check_sample(theirs[number], record)

    @pytest.mark.parametrize("compression", [None, "zstd", "zstd:19"])
    def test_and_comes_back(self, tmp_path: Path, compression: str | None) -> None:
        pack = shardpack.open(write_pack(tmp_path / "x.shardpack"))
        to_mds(pack, tmp_path / "mds", max_bytes=1 << 13, compression=compression, fsync=False)
        assert_same_records(converted(tmp_path / "mds", tmp_path / "y.shardpack"), pack)

    def test_the_bytes_are_those_of_the_package(self, tmp_path: Path) -> None:
        """Shards, and the rows of the index: where they end, the order of columns, hashes."""
        pack = shardpack.open(write_pack(tmp_path / "x.shardpack"))
        to_mds(pack, tmp_path / "ours", max_bytes=5000, hashes=["xxh64", "sha1"], fsync=False)
        index = json.loads((tmp_path / "ours" / "index.json").read_text())
        row = index["shards"][0]
        columns = dict(zip(row["column_names"], row["column_encodings"], strict=True))
        assert columns["turned.npy"] == "ndarray"
        files = ("jpg", "left.png", "json", "caption.txt", "cls")
        samples = []
        for record in pack:
            sample = {"__key__": record.key, "year": None, **record.decode(), **record.metadata}
            for name in ("mask.npy", "blob.bin", "empty", "object.pkl", *files):
                sample[name] = record[name].read()  # stored as they are
            sample["turned.npy"] = sample["turned.npy"].astype("i2")
            samples.append(sample)
        options = {"size_limit": 5000, "hashes": ["sha1", "xxh64"]}
        theirs = write_theirs(tmp_path / "theirs", columns, samples, **options)
        del index["shardpack"]
        assert index == json.loads((theirs / "index.json").read_text())
        for shard in index["shards"]:
            name = shard["raw_data"]["basename"]
            assert (tmp_path / "ours" / name).read_bytes() == (theirs / name).read_bytes()

    def test_a_streaming_dataset_opens_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In a process of its own, which takes its threads, locks and shared memory with it."""
        pack = shardpack.open(write_pack(tmp_path / "x.shardpack"))
        to_mds(pack, tmp_path / "plain", max_bytes=5000, fsync=False)
        to_mds(pack, tmp_path / "zstd", max_bytes=5000, compression="zstd", fsync=False)
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        script = """
        import json, sys
        sys.path.insert(0, sys.argv[1])
        from tests.bridges.streaming_package import streaming_module

        StreamingDataset = streaming_module("base.dataset").StreamingDataset
        folder = sys.argv[2]
        for places in (
            {"local": f"{folder}/plain"},
            {"local": f"{folder}/cache", "remote": f"{folder}/zstd", "validate_hash": "xxh64"},
        ):
            dataset = StreamingDataset(batch_size=1, shuffle=False, **places)
            names = ("__key__", "caption.txt", "label", "json", "weight")
            print(json.dumps([[sample[name] for name in names] for sample in dataset]))
            assert dataset[17]["points.npy"].shape == (18, 3)
        """
        expected = [
            [
                record.key,
                record["caption.txt"].decode(),
                record.metadata["label"],
                record["json"].decode(),
                record.metadata["weight"],
            ]
            for record in pack
        ]
        printed = check_python(script, ROOT, tmp_path).splitlines()
        assert [json.loads(line) for line in printed] == [expected, expected]

    def test_chosen_encodings_are_what_they_say(self, tmp_path: Path) -> None:
        pack = shardpack.open(write_pack(tmp_path / "x.shardpack"))
        encodings = {
            "cls": "int",
            "left": "png",
            "caption": "str",
            "turned": "ndarray:int16:2,3",
            "label": "int8",
            "weight": "float32",
            "jpg": "bytes",
        }
        names = [*encodings, "year"]
        to_mds(pack, tmp_path / "mds", columns=names, encodings=encodings, key=None, fsync=False)
        theirs = read_theirs(tmp_path / "mds")
        for number, record in enumerate(pack):
            sample = theirs[number]
            assert sample.keys() == set(names)
            assert (sample["cls"], sample["label"]) == (number % 3, number - 5)
            assert sample["weight"] == np.float32(number / 3)
            assert sample["jpg"] == record["jpg"].read()
            assert isinstance(sample["left"], Image.Image)
            assert sample["caption"] == f"picture Nº {number}"
            assert np.array_equal(sample["turned"], record["turned.npy"].decode())
        back = converted(tmp_path / "mds", tmp_path / "y.shardpack")
        assert set(back[3].names) == {"left.png", "caption.txt", "turned.npy", "jpg"}
        assert back[3].metadata == {"cls": 0, "label": -2, "weight": 1.0, "year": 1999}

    def test_what_the_package_wrote_goes_back_to_it_under_the_same_names(
        self, tmp_path: Path
    ) -> None:
        kept = {
            name: kind for name, kind in COLUMNS.items() if name not in ("raw", "views", "photos")
        }
        samples = [{name: row[name] for name in kept} for row in rows()]
        first = write_theirs(tmp_path / "first", kept, samples)
        pack = converted(first, tmp_path / "x.shardpack")
        encodings = pack.metadata["user"]["mds_columns"]
        to_mds(pack, tmp_path / "second", encodings=encodings, key=None, hashes=(), fsync=False)
        assert (tmp_path / "second" / "shard.00000.mds").read_bytes() == (
            first / "shard.00000.mds"
        ).read_bytes()

    @settings(max_examples=30, deadline=None)
    @given(
        st.lists(
            st.tuples(
                st.fixed_dictionaries(
                    {
                        "txt": st.text().map(str.encode),
                        "any.txt": st.binary(),
                        "deep/er.bin": st.binary(),
                        "name without an ending": st.binary(),
                        "x.npy": arrays.arrays(
                            st.sampled_from(["?", "<f4", ">f8", "<u2", "<c8", "<M8[s]"]),
                            arrays.array_shapes(min_dims=0, min_side=0, max_side=3),
                        ),
                    }
                ),
                st.fixed_dictionaries(
                    {
                        "count": st.integers(-(1 << 63), (1 << 63) - 1),
                        "share": st.floats(allow_nan=False),
                        "txt": st.text(),
                        "mixed": st.integers(0, 9) | st.floats(allow_nan=False) | st.booleans(),
                    },
                    optional={"sometimes": st.lists(st.text())},
                ),
            ),
            max_size=6,
        )
    )
    def test_any_records_are_read_by_the_package_and_come_back(
        self, samples: list[tuple[dict[str, Any], dict[str, Any]]]
    ) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            with ShardPackWriter(
                folder / "x.shardpack", metadata_encoding="msgpack", fsync=False
            ) as writer:
                for number, (entries, fields) in enumerate(samples):
                    writer.write(f"ä {number}", entries, fields)
            with shardpack.open(folder / "x.shardpack") as pack:
                to_mds(pack, folder / "mds", max_bytes=700, fsync=False)
                with converted(folder / "mds", folder / "y.shardpack") as back:
                    assert len(back) == len(samples)
                    for one, other in zip(back, pack, strict=True):
                        assert (one.key, one.metadata) == (other.key, other.metadata)
                        entries, wanted = one.read_all(), other.read_all()
                        array, expected = one["x.npy"].decode(), other["x.npy"].decode()
                        assert array.dtype.newbyteorder("=") == expected.dtype.newbyteorder("=")
                        assert array.tobytes() == expected.astype(array.dtype).tobytes()
                        del entries["x.npy"], wanted["x.npy"]
                        assert entries == wanted
                if samples:
                    theirs = read_theirs(folder / "mds")
                    for number, record in enumerate(pack):
                        sample = theirs[number]
                        assert sample["__key__"] == record.key
                        assert sample["txt"] == record["txt"].decode()
                        assert sample["metadata.txt"] == record.metadata["txt"]
                        assert sample["deep/er.bin"] == record["deep/er.bin"].read()
                        assert sample["mixed"] == record.metadata["mixed"]
