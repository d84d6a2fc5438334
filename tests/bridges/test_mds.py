"""MDS with the real `mosaicml-streaming` on the other side: what it writes can be read."""

from __future__ import annotations

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

import shardpack
from shardpack.convert import from_mds
from tests.bridges.streaming_package import streaming_module
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


def converted(folder: Path, target: Path, **options: Any) -> shardpack.Dataset:  # noqa: ANN401 - those of from_mds
    return shardpack.open(from_mds(folder, target, fsync=False, **options).paths)


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
                    assert float(fields["str_float"]) == sample["str_float"]
                    assert Decimal(fields["str_decimal"]) == sample["str_decimal"]
