"""What is written comes back, whatever it is and however it is read."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardpack
from shardpack import ShardPackWriter
from tests.shardpack.support import RangesOnly

if TYPE_CHECKING:
    from pathlib import Path

TEXT = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
CONTENT = st.binary(max_size=300) | st.builds(
    lambda word, times: word * times, st.binary(min_size=1, max_size=8), st.integers(1, 200)
)
SAMPLES = st.dictionaries(
    TEXT,
    st.tuples(st.dictionaries(TEXT, CONTENT, max_size=4), st.dictionaries(TEXT, JSON, max_size=3)),
    max_size=6,
)
Samples = dict[str, tuple[dict[str, bytes], dict[str, Any]]]


@given(
    samples=SAMPLES,
    alignment=st.sampled_from([1, 8, 64]),
    compression=st.sampled_from(["none", "lz4", "zstd", "zstd:1"]),
)
def test_every_way_of_reading_gives_what_was_written(
    tmp_path: Path, samples: Samples, alignment: int, compression: str
) -> None:
    path = tmp_path / "a.shardpack"
    options: Any = {"alignment": alignment, "compression": compression, "overwrite": True}
    with ShardPackWriter(path, fsync=False, **options) as writer:
        for key, (entries, metadata) in samples.items():
            writer.write(key, entries, metadata)
    data = path.read_bytes()
    everything = [(key, *rest) for key, rest in samples.items()]
    ways = {
        "mapped": list(shardpack.open(path)),
        "bytes": list(shardpack.open(data)),
        "view": list(shardpack.open(memoryview(b"x" + data)[1:])),
        "file object": list(shardpack.open(io.BytesIO(data))),
        "ranges in order": list(shardpack.open(RangesOnly(data))),
        "stream": list(shardpack.stream(io.BytesIO(data))),
    }
    numbers = range(len(samples))
    ranges = shardpack.open(RangesOnly(data))
    ways["ranges one by one"] = [ranges[number] for number in numbers]
    ways["ranges taken"] = ranges.take(numbers)
    mapped = shardpack.open(path)
    ways["keys"] = [mapped[key] for key in samples]
    ways["offsets"] = [mapped.read_record_at_offset(at) for at in mapped.get_index()]
    for way, records in ways.items():
        found = [(record.key, record.read_all(), record.metadata) for record in records]
        assert found == everything, way
        for record, (_, entries, _) in zip(records, everything, strict=True):
            assert [entry.data for entry in record.file_entries()] == list(entries.values())
            assert list(record) == list(record.names) == list(entries)
            assert [record[name].read() for name in entries] == list(entries.values())


@given(metadata=st.dictionaries(TEXT, st.none() | st.integers(-(2**63), 2**64 - 1) | TEXT))
def test_metadata_comes_back(tmp_path: Path, metadata: dict[str, Any]) -> None:
    path = tmp_path / "a.shardpack"
    with ShardPackWriter(path, fsync=False, overwrite=True) as writer:
        writer.write("a", {}, metadata)
    assert shardpack.open(path)[0].metadata == metadata


@given(
    numbers=st.lists(st.integers(-12, 11), max_size=8),
    bounds=st.tuples(*[st.integers(-15, 15)] * 2),
)
def test_a_data_set_is_indexed_as_a_list_is(
    tmp_path: Path, numbers: list[int], bounds: tuple[int, int]
) -> None:
    keys = [f"key {n}" for n in range(12)]
    paths = []
    for number, part in enumerate((keys[:5], [], keys[5:6], keys[6:])):
        paths.append(tmp_path / f"{number}.shardpack")
        if not paths[-1].exists():
            with ShardPackWriter(paths[-1], fsync=False, overwrite=True) as writer:
                for key in part:
                    writer.write(key, {"a.txt": key})
    dataset = shardpack.open(paths, max_open=2)
    assert len(dataset) == 12
    assert [record.key for record in dataset.take(numbers)] == [keys[n] for n in numbers]
    assert [dataset[n].key for n in numbers] == [keys[n] for n in numbers]
    start, stop = bounds
    assert [record.key for record in dataset[start:stop]] == keys[start:stop]
    assert [record.key for record in dataset.records(start, stop)] == keys[start:stop]
    assert [record.key for record in dataset[start:stop:2]] == keys[start:stop:2]
    assert list(dataset.keys()) == keys
    assert [dataset[key]["a.txt"].decode() for key in keys] == keys
    offsets = dataset.get_index()
    assert [dataset.read_record_at_offset(offsets[n]).key for n in numbers] == [
        keys[n] for n in numbers
    ]
    for outside in (12, -13):
        with pytest.raises(IndexError):
            dataset[outside]
