"""`sample`, `samples` and `take_samples` give what `read_all` gives of the same records, or its errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardpack
from shard_format.errors import ChecksumMismatch, Closed, ShardError, SizeMismatch
from tests.shardpack.support import (
    HandMadePack,
    HandMadeRecord,
    Part,
    RangesOnly,
    noise,
    prose,
    write_pack,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shardpack import Dataset

Samples = dict[str, dict[str, bytes]]

_names = st.sampled_from(["jpg", "json", "npy", "txt", "cls"])
_contents = st.binary(max_size=80) | st.integers(250, 900).map(prose)
_samples = st.lists(st.dictionaries(_names, _contents, max_size=5), min_size=1, max_size=12)


def fails_with(read: Callable[[], object]) -> str:
    """What is said about a broken sample."""
    with pytest.raises(ShardError) as caught:
        read()
    return f"{caught.value.code}: {caught.value}"


def outcome(read: Callable[[], dict[str, bytes]]) -> dict[str, bytes] | str:
    """The sample, or what is said about it."""
    try:
        return read()
    except ShardError as error:
        return f"{error.code}: {error}"


def check_all_ways(dataset: Dataset, expected: list[dict[str, bytes]]) -> None:
    count = len(expected)
    assert list(dataset.samples()) == expected
    assert [dataset.sample(number) for number in range(count)] == expected
    assert [dataset.sample(number - count) for number in range(count)] == expected
    order = [*reversed(range(count)), 0, -1]
    assert dataset.take_samples(order) == [expected[number] for number in order]
    assert dataset.take_samples(np.array(order)) == [expected[number] for number in order]
    assert list(dataset.samples(1, -1)) == expected[1:-1]
    assert [record.read_all() for record in dataset.records()] == expected


@given(
    samples=_samples,
    alignment=st.sampled_from([1, 8, 64]),
    compression=st.sampled_from(["none", "none", "zstd"]),
)
def test_samples_are_what_was_written_in_any_mixture_of_shapes(
    tmp_path: Path, samples: list[dict[str, bytes]], alignment: int, compression: str
) -> None:
    named = {f"{'k' * number}{number}": sample for number, sample in enumerate(samples)}
    path = write_pack(tmp_path / "a.shardpack", named, alignment=alignment, compression=compression)
    with shardpack.open(path) as mapped:
        check_all_ways(mapped, samples)
    with shardpack.open(RangesOnly(path.read_bytes())) as in_ranges:
        check_all_ways(in_ranges, samples)


def test_samples_of_many_shards_are_numbered_through(tmp_path: Path) -> None:
    expected = [{"jpg": noise(50, number), "cls": b"%d" % number} for number in range(9)]
    paths = [
        write_pack(
            tmp_path / f"{first}.shardpack",
            {f"{number}": expected[number] for number in range(first, first + 3)},
        )
        for first in (0, 3, 6)
    ]
    with shardpack.open(paths) as dataset:
        check_all_ways(dataset, expected)


def test_seventeen_entries_are_read_too(tmp_path: Path) -> None:
    expected = [{f"{n}.txt": b"%d" % n for n in range(count)} for count in (16, 17, 16, 17)]
    named = {f"{number}": sample for number, sample in enumerate(expected)}
    with shardpack.open(write_pack(tmp_path / "a.shardpack", named)) as dataset:
        check_all_ways(dataset, expected)


@pytest.mark.parametrize("alignment", [1, 8, 64])
def test_every_flipped_byte_of_a_record_is_found_after_sound_ones(
    tmp_path: Path, alignment: int
) -> None:
    named = {f"k{n}": {"jpg": noise(70, n), "cls": b"%d" % n} for n in range(3)}
    path = write_pack(tmp_path / "a.shardpack", named, alignment=alignment)
    data = bytearray(path.read_bytes())
    with shardpack.open(bytes(data)) as sound:
        start, stop = sound.get_index()[1], sound.get_index()[2]
    for position in range(start, stop):
        data[position] ^= 0x41
        with shardpack.open(bytes(data)) as dataset:
            assert dataset.sample(0) == named["k0"]
            # The second one makes the reader of this shape.
            assert dataset.sample(0) == named["k0"]
            expected = outcome(lambda: dataset[1].read_all())
            assert outcome(lambda: dataset.sample(1)) == expected
            assert outcome(lambda: dataset.take_samples([0, 1])[1]) == expected
            assert outcome(lambda: list(dataset.samples())[1]) == expected
            # Padding and reserved bytes may be anything.
            assert isinstance(expected, str) or expected == named["k1"]
        data[position] ^= 0x41


@pytest.mark.parametrize(
    ("part", "code"),
    [
        (Part(b"a", b"xyz", original_size=4), SizeMismatch.code),
        (Part(b"a", b"xyz", stored_size=1 << 40, original_size=1 << 40), "bad_offset"),
        (Part(b"a", b"xyz", crc=1), ChecksumMismatch.code),
        (Part(b"a", b"xyz", encoding=9), "unknown_codec"),
    ],
)
def test_a_record_with_the_usual_shape_and_a_wrong_row_is_refused(part: Part, code: str) -> None:
    sound = HandMadeRecord(b"0", [Part(b"a", b"xyz")])
    with shardpack.open(HandMadePack([sound, HandMadeRecord(b"1", [part])]).to_bytes()) as dataset:
        assert [dataset.sample(0), dataset.sample(0)] == [{"a": b"xyz"}] * 2
        assert fails_with(lambda: dataset.sample(1)).startswith(code)


@pytest.mark.parametrize("number", [3, -4, 1 << 70])
def test_a_sample_that_is_not_there_is_an_index_error(tmp_path: Path, number: int) -> None:
    path = write_pack(tmp_path / "a.shardpack", {f"{n}": {"cls": b"1"} for n in range(3)})
    with shardpack.open(path) as dataset:
        assert [dataset.sample(n) for n in (0, 1, 2)] == [{"cls": b"1"}] * 3
        with pytest.raises(IndexError):
            dataset.sample(number)
        with pytest.raises(IndexError):
            dataset.take_samples([0, number])


def test_a_closed_data_set_gives_no_samples(tmp_path: Path) -> None:
    path = write_pack(tmp_path / "a.shardpack", {"0": {"cls": b"1"}})
    dataset = shardpack.open(path)
    assert [dataset.sample(0), dataset.sample(0)] == [{"cls": b"1"}] * 2
    dataset.close()
    for read in (
        lambda: dataset.sample(0),
        lambda: dataset.take_samples([0]),
        lambda: list(dataset.samples()),
    ):
        with pytest.raises(Closed):
            read()
