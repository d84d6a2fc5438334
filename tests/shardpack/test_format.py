"""The bytes of a shard, held against ones that are put together by hand from the specification."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import shardpack
from shardpack import ShardPackWriter
from tests.shardpack.support import (
    CREATED,
    HandMadePack,
    HandMadeRecord,
    Part,
    noise,
    write_pack,
)

if TYPE_CHECKING:
    from pathlib import Path


def hand_made(alignment: int) -> bytes:
    parts = [
        Part(b"left.jpg", noise(100), b"image/jpeg"),
        Part("ü".encode(), b"", b"application/octet-stream"),
        Part(b"label.cls", b"7", b"text/plain"),
    ]
    second = HandMadeRecord(b"b/1", [], b'{"a":1,"b":[]}', 1, alignment)
    schema = {
        name: {"content_type": kind, "records": 1}
        for name, kind in (
            ("left.jpg", "image/jpeg"),
            ("ü", "application/octet-stream"),
            ("label.cls", "text/plain"),
        )
    }
    fields = {"created": CREATED, "schema": schema, "user": {"creator": "me"}, "version": 1}
    return HandMadePack(
        [HandMadeRecord(b"a", parts, alignment=alignment), second], fields
    ).to_bytes()


@pytest.mark.parametrize("alignment", [1, 8, 64])
def test_the_writer_gives_the_bytes_of_the_specification(tmp_path: Path, alignment: int) -> None:
    path = tmp_path / "a.shardpack"
    with ShardPackWriter(
        path, alignment=alignment, created=CREATED, metadata={"creator": "me"}, fsync=False
    ) as writer:
        writer.write("a", {"left.jpg": noise(100), "ü": b"", "label.cls": 7})
        writer.write("b/1", {}, {"b": [], "a": 1})
    assert path.read_bytes() == hand_made(alignment)


@pytest.mark.parametrize("alignment", [1, 8, 64])
def test_the_reader_reads_the_bytes_of_the_specification(alignment: int) -> None:
    dataset = shardpack.open(hand_made(alignment))
    assert list(dataset.keys()) == ["a", "b/1"]
    assert dataset["a"].read_all() == {"left.jpg": noise(100), "ü": b"", "label.cls": b"7"}
    assert dataset["b/1"].metadata == {"a": 1, "b": []}
    assert dataset["a"].metadata == {}
    assert dataset.metadata["user"] == {"creator": "me"}
    assert dataset[0].alignment == alignment


@pytest.mark.parametrize("alignment", [8, 64])
def test_aligned_entries_are_aligned_in_the_file(tmp_path: Path, alignment: int) -> None:
    samples = {f"{n}" * n: {"a.bin": noise(n), "b.npy": np.arange(n)} for n in range(1, 20)}
    path = write_pack(tmp_path / "a.shardpack", samples, alignment=alignment)
    entries = [entry for record in shardpack.open(path) for entry in record.file_entries()]
    assert {entry.offset % alignment for entry in entries} == {0}
    data = path.read_bytes()
    for entry in entries:
        assert data[entry.offset : entry.offset + entry.size] == entry.data


def test_an_empty_shard_has_only_an_index(tmp_path: Path) -> None:
    path = write_pack(tmp_path / "a.shardpack", {})
    assert path.read_bytes() == HandMadePack([]).to_bytes()
    dataset = shardpack.open(path)
    assert len(dataset) == 0
    assert list(dataset.records()) == []
    assert "a" not in dataset


def test_the_same_input_gives_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    samples = {
        str(n): {"a.json": {"n": n}, "b.npz": {"x": np.arange(n)}, "c.txt": "word " * n}
        for n in range(100)
    }
    files = []
    for name in ("a", "b"):
        path = write_pack(tmp_path / name, samples, compression="zstd", created=None)
        files.append(path.read_bytes())
    assert files[0] == files[1]
    assert shardpack.open(files[0]).metadata["created"] == "2023-11-14T22:13:20Z"


def test_overhead_is_below_two_percent_for_samples_of_twelve_kilobytes(tmp_path: Path) -> None:
    samples = {
        f"{n:08d}": {"image.jpg": noise(12_000, n), "label.cls": b"12", "small.npy": noise(192)}
        for n in range(200)
    }
    path = write_pack(tmp_path / "a.shardpack", samples)
    payload = sum(len(data) for entries in samples.values() for data in entries.values())
    assert path.stat().st_size < payload * 1.02
