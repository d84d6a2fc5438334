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
    crc32c,
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
    few = [*reversed(range(count)), 0, -1]
    for order in (few, few * (16 // 2)):
        assert dataset.take_samples(order) == [expected[number] for number in order]
        assert dataset.take_samples(np.array(order)) == [expected[number] for number in order]
        assert [record.read_all() for record in dataset.take(order)] == dataset.take_samples(order)
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


def test_runs_of_samples_of_different_shapes_are_read_in_order(tmp_path: Path) -> None:
    pictures = [{"jpg": noise(70 + n, n), "cls": b"%d" % n} for n in range(6)]
    texts = [{"txt": prose(300 + n)} for n in range(6)]
    expected = [*pictures[:4], *texts[:3], pictures[4], texts[3], {}, *texts[4:], pictures[5]]
    path = tmp_path / "a.shardpack"
    with shardpack.ShardPackWriter(path, compression="zstd", fsync=False) as writer:
        for number, sample in enumerate(expected):
            metadata = {"note": "x" * number} if number % 3 else None
            writer.write("k" * (1 + number), sample, metadata=metadata)
    with shardpack.open(path) as dataset:
        check_all_ways(dataset, expected)
        check_all_ways(dataset, expected)


def test_more_samples_than_are_touched_together_are_taken_in_the_order_asked_for(
    tmp_path: Path,
) -> None:
    named = {f"{n}": {"cls": b"%d" % n} for n in range(40)}
    expected = list(named.values())
    order = [(7 * n) % 80 - 40 for n in range(2 * 256 + 3)]
    with shardpack.open(write_pack(tmp_path / "a.shardpack", named)) as dataset:
        assert dataset.take_samples(order) == [expected[number] for number in order]
        assert dataset.take_samples(iter(order)) == [expected[number] for number in order]
        assert [record.key for record in dataset.take(order)] == [f"{n % 40}" for n in order]
        for position in (0, 256 - 1, 256, len(order) - 1):
            for wrong in (40, -41):
                numbers = [*order[:position], wrong, *order[position + 1 :]]
                with pytest.raises(IndexError, match="no record"):
                    dataset.take_samples(numbers)
                with pytest.raises(IndexError, match="no record"):
                    dataset.take(numbers)


def test_samples_before_a_damaged_one_are_handed_out_and_none_after_it(tmp_path: Path) -> None:
    named = {f"{n}": {"jpg": noise(50, n)} for n in range(6)}
    data = bytearray(write_pack(tmp_path / "a.shardpack", named).read_bytes())
    with shardpack.open(bytes(data)) as sound:
        data[sound[4]["jpg"].offset] ^= 1
    found: list[dict[str, bytes]] = []
    with shardpack.open(bytes(data)) as dataset:
        samples = dataset.samples()
        with pytest.raises(ChecksumMismatch, match="record '4'") as caught:
            found.extend(samples)
        assert caught.value.entry == "jpg"
        assert found == list(named.values())[:4]
        assert list(samples) == []
        assert dataset.sample(5) == named["5"]


def test_a_record_that_does_not_start_on_its_alignment_is_read_as_it_lies() -> None:
    parts = [Part(b"a", b"xyz"), Part(b"b", b"12345")]
    odd = HandMadeRecord(b"odd", [Part(b"a", b"1")], alignment=1)
    assert len(odd.to_bytes()) % 8
    records = [HandMadeRecord(b"0", parts), HandMadeRecord(b"1", parts), odd]
    records += [HandMadeRecord(b"%d" % number, parts) for number in range(2, 5)]
    with shardpack.open(HandMadePack(list(records)).to_bytes()) as dataset:
        usual = {"a": b"xyz", "b": b"12345"}
        check_all_ways(dataset, [usual, usual, {"a": b"1"}, usual, usual, usual])


def test_a_last_record_that_is_shorter_than_the_usual_head_is_refused() -> None:
    # What follows it, index and footer, is shorter too: the usual head would end after the file.
    sound = HandMadeRecord(b"0", [Part(b"n" * 2_000, b"xyz")])
    cut = sound.to_bytes()[:40]
    pack = HandMadePack([sound, cut], keys=[b"0", b"1"])
    with shardpack.open(pack.to_bytes()) as dataset:
        for _ in range(2):
            assert dataset.sample(0) == {"n" * 2_000: b"xyz"}
        expected = outcome(lambda: dataset[1].read_all())
        assert str(expected).startswith("size_mismatch")
        assert outcome(lambda: dataset.sample(1)) == expected
        assert outcome(lambda: dataset.take_samples([0] * 16 + [1])[-1]) == expected
        assert outcome(lambda: list(dataset.samples())[1]) == expected


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
            assert outcome(lambda: dataset.take_samples([0] * 16 + [1])[-1]) == expected
            assert outcome(lambda: list(dataset.samples())[1]) == expected
            # Padding and reserved bytes may be anything.
            assert isinstance(expected, str) or expected == named["k1"]
        data[position] ^= 0x41


_SOUND = Part(b"a", b"xyz")


@pytest.mark.parametrize(
    ("record", "code"),
    [
        (HandMadeRecord(b"1", [Part(b"a", b"xyz", original_size=4)]), SizeMismatch.code),
        (
            HandMadeRecord(b"1", [Part(b"a", b"xyz", stored_size=1 << 40, original_size=1 << 40)]),
            "bad_offset",
        ),
        (HandMadeRecord(b"1", [Part(b"a", b"xyz", crc=1)]), ChecksumMismatch.code),
        (HandMadeRecord(b"1", [Part(b"a", b"xyz", encoding=9)]), "unknown_codec"),
        (HandMadeRecord(b"1", [_SOUND], size=88), SizeMismatch.code),
        (HandMadeRecord(b"", [_SOUND]), "bad_name"),
        (HandMadeRecord(b"k" * 65_537, [_SOUND]), "limit_exceeded"),
        (HandMadeRecord(b"1", [_SOUND], b" " * ((16 << 20) + 1), 0), "limit_exceeded"),
        (HandMadeRecord(b"1", [_SOUND], head_crc=1), ChecksumMismatch.code),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_record_with_the_usual_shape_that_breaks_a_rule_is_refused(
    record: HandMadeRecord, code: str
) -> None:
    sound = HandMadeRecord(b"0", [_SOUND])
    check_refused(HandMadePack([sound, record, sound], keys=[b"0", b"1", b"2"]), code)


def test_an_entry_that_goes_on_in_the_next_record_is_refused() -> None:
    sound = HandMadeRecord(b"0", [_SOUND])
    end = bytes(-len(b"xyz") % 8) + sound.to_bytes()[:1]
    size = len(b"xyz" + end)
    longer = Part(b"a", b"xyz", stored_size=size, original_size=size, crc=crc32c(b"xyz" + end))
    pack = HandMadePack([sound, HandMadeRecord(b"1", [longer]), sound], keys=[b"0", b"1", b"2"])
    check_refused(pack, "bad_offset")


def test_entries_are_aligned_in_their_record_and_not_in_the_file() -> None:
    sound = HandMadeRecord(b"0", [_SOUND])
    odd = HandMadeRecord(b"odd", [Part(b"b", b"1")], alignment=1).to_bytes()
    padding = bytes(8)
    block = HandMadeRecord(b"1", [Part(b"a", b"0123456789abcdef")]).to_bytes() + padding
    start, head_size = len(sound.to_bytes()) + len(odd), 32 + 24 + len(b"....a") + len(b"1") + 4
    shifted = head_size + -(start + head_size) % 8
    assert block.index(b"0123") != shifted
    part = Part(b"a", b"0123456789abcdef", crc=crc32c(block[shifted : shifted + 16]))
    wrong = HandMadeRecord(b"1", [part], size=len(block)).to_bytes() + padding
    pack = HandMadePack([sound, odd, wrong, sound], keys=[b"0", b"odd", b"1", b"2"])
    check_refused(pack, ChecksumMismatch.code, number=2)


def check_refused(pack: HandMadePack, code: str, number: int = 1) -> None:
    """Refused with the words of the long way, after two sound samples have made a reader."""
    with shardpack.open(pack.to_bytes()) as dataset:
        assert [dataset.sample(0), dataset.sample(0)] == [{"a": b"xyz"}] * 2
        expected = fails_with(lambda: dataset[number].read_all())
        assert expected.startswith(code)
        assert fails_with(lambda: dataset.sample(number)) == expected
        assert fails_with(lambda: dataset.take_samples([0, number])) == expected
        assert fails_with(lambda: dataset.take_samples([0] * 16 + [number])) == expected
        assert fails_with(lambda: list(dataset.samples())) == expected


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
