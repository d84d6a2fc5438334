"""Samples for training: what they hold, in batches and alone, from files, servers, joins, and damaged ones."""

from __future__ import annotations

import io
import json
import os
import pickle
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import shardpack
from shard_format.errors import (
    BadValue,
    ChecksumMismatch,
    Closed,
    EntryNotFound,
    FileMissing,
    FormatError,
    InvalidArgument,
    ShardIOError,
)
from shard_train import BatchSampler, Plan, SampleBatch, SampleDataset, mix
from tests.shard_format.test_remote import Server, bucket  # noqa: F401 - one is a fixture
from tests.shardpack.support import (
    HandMadePack,
    HandMadeRecord,
    Part,
    RangesOnly,
    check_python,
    noise,
    write_pack,
)
from wshard import Episode, save_wshard

if TYPE_CHECKING:
    from tests.shard_format.test_remote import Handler
    from tests.stores.servers import Bucket

REPOSITORY = Path(__file__).parents[2]
COUNT = 23
SIZES = (10, 10, 3)


def image(number: int, form: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((6, 5, 3), 10 * number, np.uint8)).save(file, form)
    return file.getvalue()


def depth(number: int) -> np.ndarray[Any, Any]:
    return np.arange(12, dtype=np.float32).reshape(4, 3) + number


def npy(array: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def content(number: int) -> dict[str, bytes]:
    return {
        "left.jpg": image(number, "JPEG"),
        "mask.png": image(number, "PNG"),
        "depth.npy": npy(depth(number)),
        "meta.json": json.dumps({"n": number}).encode(),
        "caption.txt": b"view %d" % number,
        "raw.bin": noise(40, number),
    }


def keyed(number: int) -> dict[str, Any]:
    return {**content(number), "__key__": f"room/{number}"}


def write_folder(folder: Path, **options: Any) -> Path:  # noqa: ANN401 - the writer's
    folder.mkdir()
    number = 0
    for shard, size in enumerate(SIZES):
        path = folder / f"train-{shard}.shardpack"
        with shardpack.ShardPackWriter(
            path, fsync=False, created="2024-01-01T00:00:00Z", **options
        ) as writer:
            for _ in range(size):
                fields = {"label": number % 3, "weight": number / 2, "place": f"p{number}"}
                writer.write(f"room/{number}", content(number), metadata=fields)
                number += 1
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards, read only."""
    return write_folder(tmp_path_factory.mktemp("set") / "packs")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The same, to be damaged."""
    return write_folder(tmp_path / "own")


def damage(path: Path, wanted: bytes) -> None:
    """Turns a bit of the first place where these bytes are."""
    data = bytearray(path.read_bytes())
    at = data.index(wanted) + len(wanted) // 2
    data[at] ^= 1
    path.write_bytes(data)


def shape_of(sample: dict[str, Any]) -> tuple[int, ...]:
    return tuple(sample["depth.npy"].shape)


def counted(sample: dict[str, Any]) -> dict[str, Any]:
    """A transform and a decoder that pickle."""
    return {"total": len(sample), "key": sample["__key__"]}


class TestSamples:
    """What `ds[i]` is."""

    def test_entries_are_decoded_by_their_content_types(self, folder: Path) -> None:
        ds = SampleDataset(folder)
        assert len(ds) == COUNT
        sample = ds[13]
        assert list(sample) == [*content(13), "__key__"]
        assert sample["__key__"] == "room/13"
        np.testing.assert_array_equal(sample["depth.npy"], depth(13))
        assert sample["mask.png"].shape == (6, 5, 3)
        assert (sample["mask.png"] == 130).all()
        assert abs(sample["left.jpg"].astype(int) - 130).max() < 4
        assert sample["meta.json"] == {"n": 13}
        assert sample["caption.txt"] == "view 13"
        assert sample["raw.bin"] == noise(40, 13)

    def test_without_decoding_they_are_bytes(self, folder: Path) -> None:
        ds = SampleDataset(folder, decode=False)
        assert [ds[n] for n in (0, 22, -1)] == [keyed(0), keyed(22), keyed(22)]
        assert list(ds.__getitems__([5, 3, 21])) == [keyed(5), keyed(3), keyed(21)]
        assert list(ds[0]) == [*content(0), "__key__"]

    @pytest.mark.parametrize("decode", [True, False])
    def test_every_way_of_asking_gives_the_same(self, folder: Path, decode: bool) -> None:
        ds = SampleDataset(folder, decode=decode)
        together = ds.__getitems__(range(COUNT))
        for alone, one, by_key in zip(together, ds, together, strict=True):
            assert str(alone) == str(one) == str(ds[by_key["__key__"]])
        assert str(list(ds[4:9])) == str(list(together)[4:9])
        assert str(ds.__getitems__(np.array([7]))[0]) == str(together[7])

    @given(numbers=st.lists(st.integers(-COUNT, COUNT - 1), max_size=30))
    def test_batches_keep_any_order_with_repeats(self, folder: Path, numbers: list[int]) -> None:
        wanted = [n % COUNT for n in numbers]
        raw = SampleDataset(folder, decode=False).__getitems__(numbers)
        assert list(raw) == [keyed(n) for n in wanted]
        some = SampleDataset(folder, entries=["meta.json"], threads=2).batch(numbers)
        assert some.get("meta.json", []) == [{"n": n} for n in wanted]

    def test_arrays_belong_to_the_sample(self, folder: Path) -> None:
        ds = SampleDataset(folder, entries=["*.npy", "*.png", "*.jpg"])
        sample = ds[2]
        ds.close()
        for name in content(2).keys() & sample.keys():
            sample[name] += 1
        np.testing.assert_array_equal(sample["depth.npy"], depth(2) + 1)
        with SampleDataset(folder) as again:
            np.testing.assert_array_equal(again[2]["depth.npy"], depth(2))

    def test_arrays_inside_an_npz_do_too(self, tmp_path: Path) -> None:
        file = io.BytesIO()
        np.savez(file, a=np.zeros(3), b=np.ones(2))
        path = write_pack(tmp_path / "a.shardpack", {"k": {"x.npz": file.getvalue()}})
        arrays = SampleDataset(path)[0]["x.npz"]
        arrays["a"] += arrays["b"].sum()
        assert arrays["a"].tolist() == [2, 2, 2]

    def test_episodes_open_in_place(self, tmp_path: Path) -> None:
        episode = Episode("ep")
        episode.observations["state"] = np.arange(40, dtype=np.float32).reshape(20, 2)
        save_wshard(episode, tmp_path / "ep.wshard")
        path = write_pack(
            tmp_path / "a.shardpack", {"ep": {"wshard": (tmp_path / "ep.wshard").read_bytes()}}
        )
        for source in (path, RangesOnly(path.read_bytes())):
            opened = SampleDataset(source)[0]["wshard"]
            assert opened.observations["state"][3:5].tolist() == [[6, 7], [8, 9]]

    def test_fields_of_the_metadata_are_values(self, folder: Path) -> None:
        ds = SampleDataset(folder, entries=["caption.txt"], fields=["label", "weight"])
        assert ds[5] == {
            "caption.txt": "view 5",
            "__key__": "room/5",
            "label": 2,
            "weight": 2.5,
        }
        # JSON has one kind of number: 4.0 is stored as 4.
        assert SampleDataset(folder, fields=["weight"]).batch([2, 8])["weight"].dtype == np.int64
        floats = SampleDataset(folder, fields={"weight": np.float32, "place": str.upper})
        assert floats.batch([2, 8])["weight"].dtype == np.float32
        assert floats[3]["place"] == "P3"
        whole = SampleDataset(folder, entries=["caption.txt"], fields=["__metadata__"])[5]
        assert whole["__metadata__"] == {"label": 2, "weight": 2.5, "place": "p5"}

    def test_a_field_or_a_key_never_hides_an_entry(self, folder: Path, tmp_path: Path) -> None:
        with pytest.raises(EntryNotFound, match=r"'room/0' has no field 'labels' .*'label'"):
            SampleDataset(folder, fields=["labels"])[0]
        path = write_pack(tmp_path / "a.shardpack", {"k": {"__key__": b"mine"}})
        for decode in (True, False):
            with pytest.raises(InvalidArgument, match=r"a\.shardpack: record 'k'.*'__key__'"):
                SampleDataset(path, decode=decode)[0]

    @pytest.mark.parametrize("key", ["plain", "größer", "鍵/1"])
    def test_samples_of_bytes_have_their_keys(self, tmp_path: Path, key: str) -> None:
        path = write_pack(tmp_path / "a.shardpack", {"other": {"x": b"0"}, key: {"y.z": b"1"}})
        whole = SampleDataset(path, decode=False)
        assert whole[1] == {"y.z": b"1", "__key__": key}
        assert whole[1] == SampleDataset(path, decode=False, entries=["*.z"])[1]

    def test_a_key_is_found_and_another_one_is_not(self, folder: Path) -> None:
        ds = SampleDataset(folder)
        assert ds["room/17"]["meta.json"] == {"n": 17}
        assert ds.find("room/17") == 17
        assert "room/17" in ds
        assert "room/170" not in ds
        with pytest.raises(
            EntryNotFound, match=r"train-0.* 2 more: no sample has the key.*'room/170'"
        ):
            ds["room/170"]

    @pytest.mark.parametrize("decode", [True, False])
    @pytest.mark.parametrize("number", [COUNT, -COUNT - 1])
    def test_a_number_beyond_the_end_is_an_index_error(
        self, folder: Path, number: int, decode: bool
    ) -> None:
        ds = SampleDataset(folder, decode=decode, on_error="skip")
        with pytest.raises(IndexError, match=str(number)):
            ds[number]
        with pytest.raises(IndexError, match=str(number)):
            ds.__getitems__([0, number])

    @pytest.mark.parametrize("numbers", [[0.5], [[1]], ["a"], 3])
    def test_numbers_must_be_integers_in_a_row(self, folder: Path, numbers: Any) -> None:  # noqa: ANN401 - wrong on purpose
        with pytest.raises(InvalidArgument, match=r"expected (window|sample) numbers"):
            SampleDataset(folder).batch(numbers)

    def test_a_key_that_is_not_text_is_an_error(self, tmp_path: Path) -> None:
        path = tmp_path / "a.shardpack"
        records: list[HandMadeRecord | bytes] = [
            HandMadeRecord(key, [Part(b"a", b"1")]) for key in (b"fine", b"fine too", b"n\0t")
        ]
        path.write_bytes(HandMadePack(records).to_bytes())
        ds = SampleDataset(path, decode=False)
        assert ds.batch([1, 0])["__key__"] == ["fine too", "fine"]
        with pytest.raises(FormatError, match=r"a\.shardpack.*U\+0000"):
            ds.__getitems__([0, 2])

    def test_keys_of_other_scripts(self, tmp_path: Path) -> None:
        keys = ["räume/1", "部屋/2", "a"]
        path = write_pack(tmp_path / "a.shardpack", {key: {"a.cls": "1"} for key in keys})
        got = SampleDataset(path, decode=False).batch([0, 1, 2, 1])["__key__"]
        assert got == [*keys, keys[1]]


class TestDecoding:
    """Functions of the caller."""

    def test_functions_by_name_ending_type_and_pattern(self, folder: Path) -> None:
        ds = SampleDataset(
            folder,
            decode={
                "image/*": lambda data: "pattern of a type",
                "left.jpg": lambda data: "name",
                "npy": lambda data: "ending",
                "application/json": json.loads,
                "raw.*": len,
            },
        )
        assert ds[3] == {
            "left.jpg": "name",
            "mask.png": "pattern of a type",
            "depth.npy": "ending",
            "meta.json": {"n": 3},
            "caption.txt": "view 3",
            "raw.bin": 40,
            "__key__": "room/3",
        }

    def test_the_longest_ending_wins(self, tmp_path: Path) -> None:
        path = write_pack(tmp_path / "a.shardpack", {"k": {"x.seg.bin": b"1", "y.bin": b"2"}})
        ds = SampleDataset(path, decode={"bin": lambda data: "bin", "seg.bin": lambda data: "seg"})
        assert ds[0] == {"x.seg.bin": "seg", "y.bin": "bin", "__key__": "k"}

    @pytest.mark.parametrize("entries", [None, ["meta.json"]])
    def test_a_function_decodes_whole_samples(
        self, folder: Path, entries: list[str] | None
    ) -> None:
        def label(sample: dict[str, Any]) -> tuple[str, int]:
            return sample["__key__"], json.loads(sample["meta.json"])["n"]

        ds = SampleDataset(folder, decode=label, entries=entries, threads=2)
        assert list(ds.__getitems__([9, 12])) == [("room/9", 9), ("room/12", 12)]
        with pytest.raises(InvalidArgument, match=r"not dictionaries.*found tuple"):
            ds.batch([9, 12])
        # Whoever collates can tell, and take them one by one.
        assert not hasattr(ds.__getitems__([9, 12]), "arrays")

    def test_a_transform_comes_last_and_sees_arrays_it_may_change(self, folder: Path) -> None:
        def brighter(sample: dict[str, Any]) -> dict[str, Any]:
            sample["depth.npy"] += 1
            return {"depth": sample["depth.npy"], "n": sample["meta.json"]["n"]}

        ds = SampleDataset(folder, transform=brighter)
        batch = ds.batch([4, 8])
        np.testing.assert_array_equal(batch["depth"], np.stack([depth(4) + 1, depth(8) + 1]))
        assert batch["n"].tolist() == [4, 8]

    def test_what_a_function_raises_comes_through_and_says_where(self, folder: Path) -> None:
        def fails(_: object) -> None:
            raise ZeroDivisionError("mine")

        ways: list[dict[str, Any]] = [
            {"decode": fails},
            {"decode": {"caption.txt": fails}},
            {"fields": {"label": fails}},
        ]
        for way in ways:
            for on_error in ("raise", "skip"):
                with pytest.raises(ZeroDivisionError, match="mine") as caught:
                    SampleDataset(folder, on_error=on_error, **way).batch([0, 1])
                notes = getattr(caught.value, "__notes__", ["record 'room/0'"])
                assert "record 'room/0'" in notes[0]

    def test_our_errors_in_a_function_name_shard_record_and_entry(self, folder: Path) -> None:
        def fails(_: object) -> None:
            raise BadValue("mine")

        with pytest.raises(BadValue, match=r"0\.shardpack: entry 'raw\.bin'.*'room/1': mine"):
            SampleDataset(folder, decode={"bin": fails})[1]
        with pytest.raises(BadValue, match="record 'room/1': mine"):
            SampleDataset(folder, decode=fails)[1]

    @pytest.mark.parametrize(
        "options",
        [{"decode": "jpg"}, {"decode": None}, {"decode": {"jpg": "PIL"}}, {"fields": {"label": 3}}],
    )
    def test_what_is_no_function_is_refused(self, folder: Path, options: dict[str, Any]) -> None:
        with pytest.raises(InvalidArgument, match="cannot be decoded with this"):
            SampleDataset(folder, **options)

    def test_threads_change_nothing(self, tmp_path: Path) -> None:
        """Enough bytes that threads are started."""
        file = io.BytesIO()
        Image.fromarray(np.frombuffer(noise(150 * 150 * 3), np.uint8).reshape(150, 150, 3)).save(
            file, "PNG"
        )
        path = write_pack(
            tmp_path / "a.shardpack",
            {f"k{n}": {"a.png": file.getvalue(), "n.json": n} for n in range(8)},
        )
        one, many = (SampleDataset(path, threads=threads) for threads in (1, 8))
        order = [5, 1, 7, 1, 0]
        assert many.batch(order)["n.json"].tolist() == order
        np.testing.assert_array_equal(many.batch(order)["a.png"], one.batch(order)["a.png"])


class TestEntries:
    """Some of the entries."""

    def test_names_and_patterns_choose(self, folder: Path) -> None:
        ds = SampleDataset(folder, entries=["*.txt", "left.jpg", "*.???"], decode=False)
        assert list(ds[0]) == [
            "caption.txt",
            "left.jpg",
            "mask.png",
            "depth.npy",
            "raw.bin",
            "__key__",
        ]

    def test_others_are_not_even_checked(self, own: Path) -> None:
        damage(own / "train-0.shardpack", content(3)["mask.png"])
        assert SampleDataset(own, entries=["meta.json"])[3]["meta.json"] == {"n": 3}
        with pytest.raises(ChecksumMismatch, match=r"train-0\.shardpack: entry 'mask\.png'"):
            SampleDataset(own)[3]

    def test_a_misspelled_name_gets_a_hint(self, folder: Path) -> None:
        with pytest.raises(
            EntryNotFound, match=r"train-0.*'room/0' has no entry 'left\.jpeg'; did you mean 'left"
        ):
            SampleDataset(folder, entries=["left.jpeg"])[0]
        with pytest.raises(EntryNotFound, match=r"no entry that fits '\*\.webp'"):
            SampleDataset(folder, entries=["*.webp"])[0]

    @pytest.mark.parametrize("entries", ["left.jpg", [], [3], b"x"])
    def test_what_is_no_list_of_names_is_refused(self, folder: Path, entries: Any) -> None:  # noqa: ANN401 - wrong on purpose
        with pytest.raises(InvalidArgument):
            SampleDataset(folder, entries=entries)

    @pytest.fixture
    def uneven(self, tmp_path: Path) -> Path:
        samples: dict[str, dict[str, Any]] = {
            "a": {"x.json": 1, "y.json": 2},
            "b": {"x.json": 3},
            "c": {"x.json": 4, "z.txt": "only here"},
        }
        return write_pack(tmp_path / "uneven.shardpack", samples)

    def test_samples_with_different_names_cannot_be_stacked_unnoticed(self, uneven: Path) -> None:
        ds = SampleDataset(uneven)
        assert ds[1] == {"x.json": 3, "__key__": "b"}
        with pytest.raises(EntryNotFound, match=r"'b' has no 'y\.json'.*missing=\"none\""):
            ds.batch([0, 1])
        with pytest.raises(EntryNotFound, match=r"'b' has no 'z\.txt'"):
            ds.batch([1, 2])

    def test_none_may_stand_for_what_is_missing(self, uneven: Path) -> None:
        ds = SampleDataset(uneven, missing="none", fields=["label"])
        batch = ds.batch([0, 1, 2])
        assert batch["x.json"].tolist() == [1, 3, 4]
        assert batch["y.json"] == [2, None, None]
        assert batch["z.txt"] == [None, None, "only here"]
        assert batch["label"] == [None, None, None]
        named = SampleDataset(uneven, entries=["y.json", "*.txt"], missing="none")
        assert [named[n] for n in (0, 2)] == [
            {"y.json": 2, "__key__": "a"},
            {"z.txt": "only here", "y.json": None, "__key__": "c"},
        ]

    def test_a_record_that_lacks_a_named_entry_is_an_error(self, uneven: Path) -> None:
        ds = SampleDataset(uneven, entries=["x.json", "y.json"])
        with pytest.raises(EntryNotFound, match=r"uneven\.shardpack: record 'b' has no entry 'y"):
            ds.__getitems__([0, 1])
        skipping = SampleDataset(uneven, entries=["x.json", "y.json"], on_error="skip")
        assert skipping.batch([0, 1])["__key__"] == ["a", "a"]


class TestColumns:
    """Samples stacked."""

    def test_arrays_and_numbers_are_stacked_and_all_else_listed(self, folder: Path) -> None:
        ds = SampleDataset(folder, fields=["label", "weight", "place"])
        batch = ds.batch([8, 2])
        np.testing.assert_array_equal(batch["depth.npy"], np.stack([depth(8), depth(2)]))
        assert batch["depth.npy"].flags.writeable
        assert batch["left.jpg"].shape == (2, 6, 5, 3)
        assert batch["label"].tolist() == [2, 2]
        assert batch["weight"].tolist() == [4, 1]
        assert batch["place"] == ["p8", "p2"]
        assert batch["meta.json"] == [{"n": 8}, {"n": 2}]
        assert batch["__key__"] == ["room/8", "room/2"]

    def test_the_sequence_and_its_arrays_are_the_same_samples(self, folder: Path) -> None:
        samples = SampleDataset(folder).__getitems__([3, 4, 5])
        assert isinstance(samples, SampleBatch)
        assert len(samples) == 3
        assert samples.arrays is samples.arrays
        for row, sample in enumerate(samples):
            np.testing.assert_array_equal(sample["depth.npy"], samples.arrays["depth.npy"][row])
        assert [sample["__key__"] for sample in samples[1:]] == ["room/4", "room/5"]
        assert samples[-1]["__key__"] == "room/5"
        copy = pickle.loads(pickle.dumps(samples))
        np.testing.assert_array_equal(copy.arrays["depth.npy"], samples.arrays["depth.npy"])
        assert repr(samples) == "<SampleBatch of 3>"

    def test_what_does_not_fit_is_a_list(self, tmp_path: Path) -> None:
        rows: list[dict[str, Any]] = [
            {"shape.npy": npy(np.zeros(2)), "type.npy": npy(np.zeros(2)), "mixed.json": 1},
            {"shape.npy": npy(np.zeros(3)), "type.npy": npy(np.zeros(2, "u1")), "mixed.json": "a"},
        ]
        for row, huge, signs in zip(rows, (2**70, 1), (-1, 2**63), strict=True):
            row |= {"huge.json": huge, "signs.json": signs, "yes.json": True}
        path = write_pack(tmp_path / "a.shardpack", {str(n): row for n, row in enumerate(rows)})
        batch = SampleDataset(path).batch([0, 1])
        assert [value.shape for value in batch["shape.npy"]] == [(2,), (3,)]
        assert [value.dtype for value in batch["type.npy"]] == [np.float64, np.uint8]
        assert batch["mixed.json"] == [1, "a"]
        # No common type has room for these: they stay as they are.
        assert batch["huge.json"] == [2**70, 1]
        assert batch["signs.json"] == [-1, 2**63]
        assert batch["yes.json"].dtype == np.bool_

    def test_whole_and_broken_numbers_have_a_common_type(self, tmp_path: Path) -> None:
        path = write_pack(tmp_path / "a.shardpack", {"a": {"x.json": 1}, "b": {"x.json": 0.5}})
        batch = SampleDataset(path).batch([0, 1])
        assert (batch["x.json"].dtype, batch["x.json"].tolist()) == (np.float64, [1.0, 0.5])

    def test_an_empty_batch_is_empty(self, folder: Path) -> None:
        for decode in (True, False):
            ds = SampleDataset(folder, decode=decode)
            assert len(ds.__getitems__([])) == 0
            assert ds.batch([]) == {}

    @given(
        rows=st.lists(
            st.one_of(
                st.integers(-(2**70), 2**70),
                st.floats(allow_nan=False, allow_infinity=False),
                st.booleans(),
                st.text(),
            ),
            min_size=1,
            max_size=6,
        )
    )
    def test_no_value_is_changed_by_stacking(self, tmp_path: Path, rows: list[Any]) -> None:
        """But for integers beside fractions, which become the nearest one that floats have."""
        path = write_pack(
            tmp_path / "a.shardpack", {str(n): {"x.json": row} for n, row in enumerate(rows)}
        )
        column = SampleDataset(path).batch(range(len(rows)))["x.json"]
        has_floats = any(isinstance(row, float) for row in rows)
        if isinstance(column, np.ndarray):
            assert column.tolist() == [float(row) if has_floats else row for row in rows]
        else:
            assert column == rows


class TestSources:
    """Whatever has records."""

    def test_joins_and_overlays(self, folder: Path, tmp_path: Path) -> None:
        other = write_pack(
            tmp_path / "o.shardpack", {f"room/{n}": {"x.json": -n} for n in range(COUNT)}
        )
        fixes = write_pack(tmp_path / "f.shardpack", {"room/7": {"meta.json": {"n": "fixed"}}})
        joined = shardpack.join(shardpack.overlay(folder, fixes), {"other": other})
        ds = SampleDataset(joined, entries=["other.x.json", "meta.json"])
        assert ds.batch([7, 8]) == {
            "other.x.json": pytest.approx(np.array([-7, -8])),
            "meta.json": [{"n": "fixed"}, {"n": 8}],
            "__key__": ["room/7", "room/8"],
        }
        assert ds.shard_sizes == SIZES
        raw = SampleDataset(joined, decode=False)
        assert raw["room/8"] == {**keyed(8), "other.x.json": b"-8"}

    def test_a_given_dataset_stays_open(self, folder: Path) -> None:
        with shardpack.open(folder) as given_one:
            SampleDataset(given_one).close()
            assert len(given_one[0].read_all()) == 6
        ds = SampleDataset(folder)
        ds.close()
        with pytest.raises(Closed):
            ds[0]

    @pytest.mark.parametrize(
        "options", [{"on_error": "ignore"}, {"missing": "zero"}, {"threads": 0}, {"fields": "a"}]
    )
    def test_options_that_cannot_work_are_refused(
        self, folder: Path, options: dict[str, Any]
    ) -> None:
        with pytest.raises(InvalidArgument, match=next(iter(options))):
            SampleDataset(folder, **options)


def also(number: int) -> bytes:
    return noise(300, 1000 + number)


def large(number: int) -> dict[str, bytes]:
    return {
        "small.cls": b"%d" % number,
        "large.bin": noise(40_000, number),
        "also.bin": also(number),
    }


class TestRemote:
    """Few requests, and no bytes that nobody wants."""

    @pytest.fixture
    def source(self, tmp_path: Path) -> RangesOnly:
        path = write_pack(tmp_path / "r.shardpack", {f"k{n}": large(n) for n in range(12)})
        return RangesOnly(path.read_bytes())

    @pytest.mark.parametrize("decode", [True, False, len])
    def test_a_batch_is_one_round(self, source: RangesOnly, decode: Any) -> None:  # noqa: ANN401 - of three kinds
        ds = SampleDataset(source, decode=decode)
        source.rounds = 0
        got = list(ds.__getitems__([3, 9, 5]))
        assert source.rounds <= 2
        if decode is False:
            assert got == [{**large(n), "__key__": f"k{n}"} for n in (3, 9, 5)]

    @pytest.mark.parametrize("decode", [True, False])
    def test_of_chosen_entries_only_these_are_fetched(
        self, source: RangesOnly, decode: bool
    ) -> None:
        ds = SampleDataset(source, entries=["also.bin", "*.cls"], decode=decode)
        source.rounds, source.asked = 0, []
        got = ds.batch([3, 9, 5])
        assert got["also.bin"] == [also(n) for n in (3, 9, 5)]
        assert source.rounds == 2
        assert sum(size for _, size in source.asked) < 3 * 5000

    def test_in_joins_too(self, source: RangesOnly, tmp_path: Path) -> None:
        other = write_pack(
            tmp_path / "o.shardpack", {f"k{n}": {"b.bin": noise(50_000, n)} for n in range(12)}
        )
        second = RangesOnly(other.read_bytes())
        ds = SampleDataset(shardpack.join({"l": source, "r": second}), entries=["l.also.bin"])
        source.asked, second.asked = [], []
        assert ds.batch([1, 2])["l.also.bin"] == [also(1), also(2)]
        assert sum(size for _, size in source.asked + second.asked) < 4 * 5000

    def test_large_records_come_together(self, tmp_path: Path) -> None:
        """Above a mebibyte a record is not fetched before its head was seen."""
        samples = {
            f"k{n}": {"a.bin": noise(700_000, n), "b.bin": noise(600_000, n)} for n in (0, 1)
        }
        source = RangesOnly(write_pack(tmp_path / "r.shardpack", samples).read_bytes())
        ds = SampleDataset(source, decode=False)
        source.rounds = 0
        assert [sample["b.bin"] for sample in ds.__getitems__([1, 0])] == [
            noise(600_000, 1),
            noise(600_000, 0),
        ]
        assert source.rounds == 2

    def test_of_a_remote_episode_only_what_is_touched_is_read(self, tmp_path: Path) -> None:
        episode = Episode("ep")
        episode.observations["rgb"] = np.frombuffer(noise(2_000_000), np.uint8).reshape(200, -1)
        save_wshard(episode, tmp_path / "ep.wshard", compression="none")
        path = write_pack(
            tmp_path / "a.shardpack", {"ep": {"wshard": (tmp_path / "ep.wshard").read_bytes()}}
        )
        source = RangesOnly(path.read_bytes())
        opened = SampleDataset(source, entries=["wshard"])[0]["wshard"]
        np.testing.assert_array_equal(
            opened.observations["rgb"][7:9], episode.observations["rgb"][7:9]
        )
        assert sum(size for _, size in source.asked) < 300_000

    def test_damage_in_transit_is_found_and_long_heads_are_read(self, tmp_path: Path) -> None:
        samples = {f"{'x' * 6000}{n}": large(n) for n in range(3)}
        path = write_pack(tmp_path / "r.shardpack", samples)
        ds = SampleDataset(RangesOnly(path.read_bytes()), entries=["also.bin"])
        assert ds.batch([2, 0])["also.bin"] == [also(2), also(0)]
        damage(path, also(2))
        broken = SampleDataset(RangesOnly(path.read_bytes()), entries=["also.bin"])
        with pytest.raises(ChecksumMismatch, match=r"entry 'also\.bin'"):
            broken.batch([2, 0])

    def test_remote_shards_are_asked_at_the_same_time(self, tmp_path: Path) -> None:
        server = Server()
        for shard in range(3):
            # Too large to come along when a shard is opened.
            samples = {f"{shard}/{n}": {"a.bin": noise(90_000, 10 * shard + n)} for n in range(4)}
            path = write_pack(tmp_path / "a.shardpack", samples)
            server.files[f"/{shard}.shardpack"] = path.read_bytes()
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            with SampleDataset(server.url("/{0..2}.shardpack"), decode=False) as ds:
                ds.batch([3, 7, 11])  # all are open now
                server.counted()
                # No request is answered before there is one to each shard.
                together = threading.Barrier(3)

                def answer(handler: Handler) -> None:
                    together.wait(30)
                    handler.serve()

                server.always = answer
                assert ds.batch([8, 0, 5])["a.bin"] == [noise(90_000, n) for n in (20, 0, 11)]
                assert server.counted() == 3
        finally:
            server.shutdown()
            thread.join()
            server.server_close()

    def test_from_a_store_that_speaks_s3(
        self,
        folder: Path,
        bucket: Bucket,  # noqa: F811 - the fixture
    ) -> None:
        for path in sorted(folder.iterdir()):
            bucket.put(f"packs/{path.name}", path.read_bytes())
        local = SampleDataset(folder, entries=["depth.npy", "meta.json"])
        packs = shardpack.open(
            "s3://bucket/packs/train-{0..2}.shardpack", storage_options=bucket.options
        )
        ds = SampleDataset(packs, entries=["depth.npy", "meta.json"])
        numbers = [22, 0, 11, 1]
        assert ds.batch(numbers)["meta.json"] == local.batch(numbers)["meta.json"]
        np.testing.assert_array_equal(
            ds.batch(numbers)["depth.npy"], local.batch(numbers)["depth.npy"]
        )
        assert repr(ds) == repr(local)
        assert str(pickle.loads(pickle.dumps(ds))[12]) == str(local[12])
        packs.close()


class TestDamage:
    """`on_error`."""

    def test_the_error_names_shard_record_and_entry(self, own: Path) -> None:
        damage(own / "train-1.shardpack", content(14)["left.jpg"])
        for decode in (True, False):
            ds = SampleDataset(own, decode=decode)
            with pytest.raises(
                ChecksumMismatch, match=r"train-1\.shardpack: entry 'left\.jpg'.*'room/14'"
            ):
                ds.batch([13, 14])
            assert ds.batch([13, 15])["__key__"] == ["room/13", "room/15"]

    @pytest.mark.parametrize("decode", [True, False, counted])
    @pytest.mark.parametrize("where", ["left.jpg", "__key__"])
    def test_another_sample_takes_the_place_of_a_damaged_one(
        self,
        own: Path,
        decode: Any,  # noqa: ANN401 - of three kinds
        where: str,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        path = own / "train-1.shardpack"
        for number in (14, 15):
            damage(path, b"room/%d" % number if where == "__key__" else content(number)[where])
        ds = SampleDataset(own, decode=decode, on_error="skip")
        key = "key" if decode is counted else "__key__"
        for _ in range(2):
            assert ds.batch([13, 14, 15])[key] == ["room/13", "room/16", "room/16"]
        assert ds[14][key] == "room/16"
        assert dict(ds.skipped) == {str(path): 5}
        assert ds.skipped.total == 5
        assert len(caplog.records) == 1
        assert caplog.records[0].name == "shardpack"
        assert "train-1.shardpack: a sample was left out" in caplog.text

    def test_all_samples_of_an_epoch_but_the_damaged_ones_come(self, own: Path) -> None:
        damage(own / "train-0.shardpack", content(4)["depth.npy"])
        ds = SampleDataset(own, on_error="skip")
        keys = [
            sample["__key__"]
            for numbers in ds.plan(batch_size=4, pad=False).batches()
            for sample in ds.__getitems__(numbers)
        ]
        assert len(keys) == COUNT
        assert {f"room/{n}" for n in range(COUNT)} - set(keys) == {"room/4"}
        assert ds.skipped.total == 1

    def test_content_that_cannot_be_decoded_is_damage(self, tmp_path: Path) -> None:
        samples = {"a": {"x.jpg": b"no image"}, "b": {"x.jpg": image(1, "JPEG")}}
        path = write_pack(tmp_path / "a.shardpack", samples)
        with pytest.raises(BadValue, match=r"a\.shardpack: entry 'x\.jpg'.*'a'"):
            SampleDataset(path)[0]
        assert SampleDataset(path, on_error="skip").batch([0, 1])["__key__"] == ["b", "b"]

    def test_a_function_may_call_a_sample_damaged(self, folder: Path) -> None:
        def no_odd_ones(sample: dict[str, Any]) -> dict[str, Any]:
            if json.loads(sample["meta.json"])["n"] % 2:
                raise BadValue("odd")
            return {"key": sample["__key__"]}

        ds = SampleDataset(folder, decode=no_odd_ones, on_error="skip")
        assert ds.batch([0, 1, 2])["key"] == ["room/0", "room/2", "room/2"]
        assert ds.skipped.total == 1

    def test_shards_that_cannot_be_opened_are_left_out(
        self, own: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        paths = sorted(own.iterdir())
        paths[0].write_bytes(b"not a shard")
        with pytest.raises(FormatError, match=r"train-0\.shardpack"):
            SampleDataset(own)
        ds = SampleDataset(paths, on_error="skip")
        assert ds.shard_sizes == (10, 3)
        assert ds[0]["__key__"] == "room/10"
        assert dict(ds.skipped) == {str(paths[0]): 0}
        assert caplog.text.count("the file is left out") == 1

    def test_a_shard_that_is_away_is_not_damaged(self, own: Path) -> None:
        """Others may have removed it, or the disk; the dataset would shrink without a word."""
        missing = own / "train-9.shardpack"
        with pytest.raises(FileMissing, match=r"train-9\.shardpack"):
            SampleDataset([*own.iterdir(), missing], on_error="skip")
        ds = SampleDataset(shardpack.open(own, max_open=1), on_error="skip")
        assert ds[0]["__key__"] == "room/0"
        (own / "train-1.shardpack").unlink()
        with pytest.raises(FileMissing, match=r"train-1\.shardpack"):
            ds.batch([0, 11])
        assert not ds.skipped

    def test_so_is_a_first_shard_whose_index_is_damaged(self, own: Path) -> None:
        path = own / "train-0.shardpack"
        data = path.read_bytes()
        path.write_bytes(data.replace(b"SPI1", b"SPIx"))
        with pytest.raises(FormatError):
            SampleDataset(own)
        ds = SampleDataset(own, on_error="skip")
        assert ds.shard_sizes == (10, 3)
        assert dict(ds.skipped) == {str(path): 0}

    def test_when_no_shard_is_left_the_error_comes_through(self, tmp_path: Path) -> None:
        with pytest.raises(ShardIOError, match=r"none\.shardpack"):
            SampleDataset(tmp_path / "none.shardpack", on_error="skip")

    def test_a_shard_that_is_damaged_later_is_left_behind_in_few_steps(self, own: Path) -> None:
        given_one = shardpack.open(own, max_open=1)
        ds = SampleDataset(given_one, on_error="skip")
        assert len(ds) == COUNT
        (own / "train-1.shardpack").write_bytes(b"not a shard")
        assert ds.batch([9, 11, 19])["__key__"] == ["room/9", "room/4", "room/20"]
        assert dict(ds.skipped) == {str(own / "train-1.shardpack"): 2}

    def test_when_nothing_can_be_read_the_error_comes_through(self, own: Path) -> None:
        ds = SampleDataset(own, entries=["meta.jsn"], on_error="skip")
        with pytest.raises(EntryNotFound, match=r"did you mean 'meta\.json'"):
            ds[0]

    def test_mistakes_are_not_skipped(self, folder: Path) -> None:
        ds = SampleDataset(folder, on_error="skip")
        ds.close()
        with pytest.raises(Closed):
            ds.batch([0])
        assert ds.skipped.total == 0


class TestIdentity:
    """The fingerprint and the text form."""

    def test_they_are_the_same_wherever_the_shards_lie(self, folder: Path, tmp_path: Path) -> None:
        write_folder(tmp_path / "elsewhere")
        here, there = SampleDataset(folder), SampleDataset(f"{tmp_path}/elsewhere/*.shardpack")
        assert here.fingerprint == there.fingerprint
        assert repr(here) == repr(there)
        assert repr(here) == f"SampleDataset(samples=23, fingerprint={here.fingerprint!r})"

    def test_they_tell_datasets_apart(self, folder: Path, tmp_path: Path) -> None:
        first = folder / "train-0.shardpack"
        renamed = tmp_path / "other.shardpack"
        renamed.write_bytes(first.read_bytes())
        prefixes = [shardpack.join({a: first, b: renamed}) for a, b in (("x", "y"), ("y", "x"))]
        sources: list[Any] = [
            folder,
            first,
            renamed,
            [first, folder / "train-1.shardpack"],
            [folder / "train-1.shardpack", first],
            shardpack.overlay(first, renamed),
            *prefixes,
        ]
        assert len({SampleDataset(source).fingerprint for source in sources}) == len(sources)

    def test_the_text_tells_choices_apart(self, folder: Path) -> None:
        options: list[dict[str, Any]] = [
            {},
            {"entries": ["a"]},
            {"fields": ["a"]},
            {"fields": ["__metadata__"]},
        ]
        assert len({repr(SampleDataset(folder, **some)) for some in options}) == 4

    def test_bytes_have_one_too(self, folder: Path) -> None:
        data = (folder / "train-0.shardpack").read_bytes()
        assert SampleDataset(data).fingerprint == SampleDataset(bytes(data)).fingerprint


class TestTraining:
    """With plans, samplers and mixtures."""

    def test_a_plan_knows_length_and_shards(self, folder: Path) -> None:
        ds = SampleDataset(folder)
        assert ds.shard_sizes == SIZES
        assert ds.plan(batch_size=4, seed=7) == Plan(COUNT, batch_size=4, seed=7)
        near = ds.plan(shuffle="shards", buffer_shards=1, batch_size=3)
        assert near == Plan(
            COUNT, shuffle="shards", shard_sizes=SIZES, buffer_shards=1, batch_size=3
        )
        seen = [n for numbers in BatchSampler(near) for n in numbers]
        assert sorted(set(seen)) == list(range(COUNT))
        assert len(ds.plan(world_size=2, rank=1, batch_size=4, drop_last=True)) == 2

    def test_two_of_them_are_mixed(self, folder: Path, tmp_path: Path) -> None:
        other = write_pack(
            tmp_path / "o.shardpack",
            {f"o/{n}": {"depth.npy": npy(depth(100 + n)), "extra.json": n} for n in range(9)},
        )
        first = SampleDataset(folder, entries=["depth.npy", "caption.txt"], fields=["label"])
        mixed = mix({"a": (first, 0.5), "b": (SampleDataset(other), 0.5)}, seed=3)
        batch = mixed.batch(range(10))
        assert (batch["source_id"] == 1).sum() == 5
        for row, source in enumerate(batch["source_id"].tolist()):
            key = batch["__key__"][row]
            number = int(key.rpartition("/")[2])
            assert key.startswith("o/") == bool(source)
            np.testing.assert_array_equal(
                batch["depth.npy"][row], depth(100 + number if source else number)
            )
            assert batch["caption.txt"][row] == ("" if source else f"view {number}")
            assert batch["extra.json"][row] == (number if source else 0)
        np.testing.assert_array_equal(
            batch["extra.json_is_missing"], np.array(batch["source_id"]) == 0
        )
        assert str(mixed[3]["__key__"]) == batch["__key__"][3]
        assert first.fingerprint in repr(mixed)

    def test_one_with_a_transform_is_mixed(self, folder: Path) -> None:
        def only_depth(sample: dict[str, Any]) -> dict[str, Any]:
            return {"depth": sample["depth.npy"], "n": sample["meta.json"]["n"]}

        mixed = mix([(SampleDataset(folder, transform=only_depth), 0.9), (30, 0.1)], stop="all")
        batch = mixed.batch(next(iter(BatchSampler(mixed.plan(batch_size=10)))))
        from_folder = batch["source_id"] == 0
        assert from_folder.sum() == 9
        assert (batch["index_is_missing"] == from_folder).all()
        for row in np.flatnonzero(from_folder):
            np.testing.assert_array_equal(batch["depth"][row], depth(int(batch["n"][row])))

    def test_arrays_of_different_shapes_cannot_be_mixed_and_say_so(self, tmp_path: Path) -> None:
        path = write_pack(
            tmp_path / "a.shardpack",
            {str(n): {"x.npy": npy(np.zeros(1 + n % 2))} for n in range(8)},
        )
        with pytest.raises(InvalidArgument, match=r"'x\.npy' of source 'ragged' does not fit"):
            mix({"ragged": (SampleDataset(path), 1)}).batch(range(8))

    def test_memory_does_not_grow_over_epochs(self, tmp_path: Path) -> None:
        path = write_pack(
            tmp_path / "a.shardpack",
            {f"k{n}": {"x.npy": npy(np.zeros(10_000)), f"{n}.cls": "1"} for n in range(300)},
        )
        ds = SampleDataset(path, entries=["x.npy", "*.cls"], decode={"cls": int}, missing="none")

        def epoch(number: int) -> int:
            for numbers in ds.plan(batch_size=10, epoch=number).batches():
                ds.batch(numbers)
            return tracemalloc.get_traced_memory()[0]

        tracemalloc.start()
        try:
            first = epoch(0)
            later = [epoch(number) for number in (1, 2)]
            assert max(later) - first < 200_000
            assert tracemalloc.get_traced_memory()[1] < 8 << 20
            assert len(pickle.dumps(ds)) < 2000
        finally:
            tracemalloc.stop()


WORK = """
    import multiprocessing, sys
    sys.path.insert(0, sys.argv[3])
    from shard_train import SampleDataset
    from tests.shard_train.test_sample_dataset import COUNT, counted

    def read(ds, numbers, queue):
        queue.put((repr(ds), list(ds.__getitems__(numbers)), ds["room/21"]))

    if __name__ == "__main__":
        context = multiprocessing.get_context(sys.argv[1])
        ds = SampleDataset(sys.argv[2], transform=counted, on_error="skip")
        wanted = [list(ds.__getitems__(range(n, COUNT, 2))) for n in (0, 1)]
        queues = [context.SimpleQueue() for _ in wanted]
        workers = [
            context.Process(target=read, args=(ds, range(n, COUNT, 2), queue))
            for n, queue in enumerate(queues)
        ]
        for worker in workers:
            worker.start()
        got = [queue.get() for queue in queues]
        for worker in workers:
            worker.join()
        assert got == [(repr(ds), samples, ds["room/21"]) for samples in wanted], got
        print("ok")
"""


class TestProcesses:
    """Threads, forks, pickles."""

    @pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
    def test_workers_read_the_same(self, folder: Path, method: str, tmp_path: Path) -> None:
        script = tmp_path / "work.py"
        script.write_text("\n".join(line[4:] for line in WORK.splitlines()))
        run = (
            "import subprocess, sys; "
            f"sys.exit(subprocess.run([sys.executable, {str(script)!r}, *sys.argv[1:]]).returncode)"
        )
        assert check_python(run, method, folder, REPOSITORY).strip().endswith("ok")

    def test_threads_share_a_dataset(self, folder: Path) -> None:
        ds = SampleDataset(shardpack.open(folder, max_open=1), entries=["meta.json", "raw.bin"])

        def read(seed: int) -> None:
            for number in np.random.default_rng(seed).integers(0, COUNT, 20).tolist():
                assert ds.batch([number, 0])["meta.json"] == [{"n": number}, {"n": 0}]

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(read, range(8)))

    def test_a_pickle_holds_everything_and_is_small(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(folder)
        ds = SampleDataset(
            "train-{0..2}.shardpack", entries=["meta.json"], transform=counted, on_error="skip"
        )
        ds.batch(range(5))
        packed = pickle.dumps(ds)
        assert len(packed) < 2000
        wanted = list(ds.__getitems__([1, -1]))
        monkeypatch.chdir(tmp_path)
        before = len(os.listdir("/proc/self/fd"))
        with pickle.loads(packed) as again:
            assert repr(again) == repr(ds)
            assert list(again.__getitems__([1, -1])) == wanted
        del again
        assert len(os.listdir("/proc/self/fd")) == before

    def test_skips_are_counted_in_each_process_and_after_a_pickle(self, own: Path) -> None:
        damage(own / "train-0.shardpack", content(2)["raw.bin"])
        ds = SampleDataset(own, on_error="skip")
        ds[2]
        again = pickle.loads(pickle.dumps(ds))
        again[2]
        assert (ds.skipped.total, again.skipped.total) == (1, 2)
