"""Arrays as tensors, bytes as columns, samples as batches."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shard_format.errors import EntryNotFound, InvalidArgument
from shard_train import mix
from shard_train.torch import ByteColumn, collate, image_tensor, to_tensors
from tests.bridges.torch_support import Numbers, Plain

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

NUMBERS = ("?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16")


class TestToTensors:
    """NumPy to torch."""

    @pytest.mark.parametrize("dtype", NUMBERS)
    def test_numbers_of_every_type_share_their_memory(self, dtype: str) -> None:
        array = np.arange(12).astype(dtype).reshape(3, 4)
        tensor = to_tensors(array)
        assert tensor.data_ptr() == array.ctypes.data
        assert np.array_equal(tensor.numpy(), array)
        assert tensor.numpy().dtype == array.dtype

    @pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
    def test_types_of_ml_dtypes_become_those_of_torch_without_a_copy(self, name: str) -> None:
        array = np.array([[0.5, -2.0], [3.0, 0.0]]).astype(getattr(ml_dtypes, name))
        tensor = to_tensors({"x": array})["x"]
        assert tensor.dtype is getattr(torch, name)
        assert tensor.data_ptr() == array.ctypes.data
        assert tensor.float().tolist() == [[0.5, -2.0], [3.0, 0.0]]

    @given(
        array=hnp.arrays(
            hnp.integer_dtypes(endianness="?")
            | hnp.floating_dtypes(endianness="?", sizes=(32, 64)),
            hnp.array_shapes(min_dims=0, max_dims=3, min_side=0),
        ),
        backwards=st.booleans(),
        frozen=st.booleans(),
    )
    def test_values_are_the_same_whatever_the_memory_looks_like(
        self, array: NDArray[Any], backwards: bool, frozen: bool
    ) -> None:
        shown = array[..., ::-1].T if backwards and array.ndim else array
        shown.flags.writeable = not frozen
        tensor = to_tensors(shown)
        assert np.array_equal(tensor.numpy(), shown, equal_nan=shown.dtype.kind == "f")

    def test_writing_to_a_tensor_leaves_a_mapped_file_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "numbers"
        path.write_bytes(bytes(4096))
        with open(path, "rb") as file:
            mapped = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
        to_tensors(mapped)[:] = 1
        assert not mapped.any()
        assert not any(path.read_bytes())

    def test_read_only_memory_is_shared_on_request_without_a_warning(self) -> None:
        array = np.frombuffer(bytes(range(8)), np.uint8)
        assert to_tensors(array).data_ptr() != array.ctypes.data
        shared = to_tensors([array], read_only="share")[0]
        assert shared.data_ptr() == array.ctypes.data
        assert not array.flags.writeable

    def test_shared_memory_lives_as_long_as_its_tensor(self) -> None:
        tensor = to_tensors(np.frombuffer(b"a" * 100_000, np.uint8), read_only="share")
        assert bool((tensor == ord("a")).all())

    def test_what_is_not_numbers_stays_or_becomes_a_list(self) -> None:
        given = {
            "text": np.array(["a", "bc"]),
            "objects": np.array([None, {}], object),
            "key": "episode 1",
            "file": b"\x01",
            "none": None,
            "nested": ({"x": np.zeros(2)}, [np.float32(3)]),
        }
        found = to_tensors(given)
        assert found["text"] == ["a", "bc"]
        assert found["objects"] == [None, {}]
        assert [found[name] for name in ("key", "file", "none")] == ["episode 1", b"\x01", None]
        assert torch.equal(found["nested"][0]["x"], torch.zeros(2, dtype=torch.float64))
        assert found["nested"][1][0].shape == ()

    def test_an_unknown_choice_for_read_only_arrays_is_refused(self) -> None:
        with pytest.raises(InvalidArgument, match="'copy' or 'share'"):
            to_tensors(np.zeros(1), read_only="view")  # type: ignore[arg-type]


class TestImageTensor:
    """Pictures as models take them."""

    @pytest.mark.parametrize("shape", [(5, 7, 3), (4, 5, 7, 3), (2, 4, 5, 7, 1), (0, 4, 5, 7, 3)])
    def test_values_are_those_of_torchs_own_steps(self, shape: tuple[int, ...]) -> None:
        pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
        pixels.flags.writeable = False
        planes = torch.tensor(pixels).movedim(-1, -3)
        wanted = planes.contiguous().float().div_(255)
        found = image_tensor(pixels)
        assert torch.equal(found, wanted)
        assert found.is_contiguous()
        assert torch.equal(image_tensor(torch.tensor(pixels)), wanted)

    def test_memory_of_an_earlier_call_is_filled_again(self) -> None:
        first = image_tensor(np.full((2, 4, 6, 3), 51, np.uint8))
        again = image_tensor(np.full((2, 4, 6, 3), 255, np.uint8), out=first)
        assert again is first
        assert first.unique().tolist() == [1.0]

    def test_what_is_not_pictures_and_memory_that_does_not_fit_are_refused(self) -> None:
        pixels = np.zeros((2, 4, 6, 3), np.uint8)
        for wrong in (pixels[0, 0], pixels.astype(np.uint16), pixels.astype(np.float32)):
            with pytest.raises(InvalidArgument, match="not pictures"):
                image_tensor(wrong)
        for shape, dtype in (((3, 4, 6), torch.float32), ((2, 3, 4, 6), torch.float64)):
            with pytest.raises(InvalidArgument, match="does not fit"):
                image_tensor(pixels, out=torch.empty(shape, dtype=dtype))


class TestByteColumn:
    """Bytes of many samples."""

    @given(st.lists(st.binary(max_size=20), max_size=8))
    def test_it_is_a_sequence_of_the_bytes(self, values: list[bytes]) -> None:
        column = ByteColumn.of(values)
        assert list(column) == values
        assert column == values
        assert column[1:] == values[1:]
        assert [bytes(column.view(number)) for number in range(len(values))] == values
        assert [bytes(column.tensor(number).tolist()) for number in range(len(values))] == values

    def test_numbers_count_from_the_end_too_and_end_somewhere(self) -> None:
        column = ByteColumn.of([b"a", b"bc"])
        assert column[-1] == b"bc"
        for number in (2, -3):
            with pytest.raises(IndexError, match=f"sample {number} of 2"):
                column[number]

    def test_tensors_of_it_are_views(self) -> None:
        column = ByteColumn.of([b"ab", b"cd"])
        column.tensor(1)[0] = ord("x")
        assert column[1] == b"xd"


class TestCollate:
    """Samples to batches."""

    def test_what_was_read_as_a_batch_is_taken_without_a_copy(self) -> None:
        read = Numbers(10).__getitems__([1, 2])
        batch = collate(read)
        assert batch["big"].data_ptr() == read["big"].ctypes.data
        assert batch["number"].tolist() == [1, 2]

    def test_a_list_of_samples_becomes_tensors_lists_and_columns(self) -> None:
        plain = Plain(100)
        batch = collate([plain[number] for number in (1, 2, 8)])
        assert batch["number"].tolist() == [1, 2, 8]
        assert batch["name"] == ["sample 1", "sample 2", "sample 8"]
        assert isinstance(batch["file"], ByteColumn)
        assert batch["file"] == [plain[number]["file"] for number in (1, 2, 8)]
        assert [tuple(value.shape) for value in batch["ragged"]] == [(1, 2), (2, 2), (2, 2)]
        assert batch["tensor"].dtype is torch.bfloat16
        assert batch["tensor"].shape == (3, 3)
        assert batch["meta"] == [{"number": 1}, {"number": 2}, {"number": 8}]

    def test_samples_that_are_tuples_or_single_values_are_collated_too(self) -> None:
        images, labels = collate([(np.zeros((2, 2)), 1), (np.ones((2, 2)), 0)])
        assert images.shape == (2, 2, 2)
        assert labels.tolist() == [1, 0]
        assert collate([np.zeros(3), np.ones(3)]).shape == (2, 3)
        assert collate([b"a", b"bc"]) == [b"a", b"bc"]

    def test_a_sample_that_lacks_a_channel_is_an_error_that_names_it(self) -> None:
        with pytest.raises(EntryNotFound, match="sample 1 of the batch has no 'b'"):
            collate([{"a": 1, "b": 2}, {"a": 1}])

    def test_a_batch_of_a_mixture_is_taken_as_it_is(self) -> None:
        mixed = mix([(Numbers(10), 0.5), (Numbers(20), 0.5)], seed=1)
        batch = collate(mixed.__getitems__([0, 1, 2, 3]))
        assert sorted(batch["source_id"].tolist()) == [0, 0, 1, 1]
        assert batch["big"].shape == (4, 30_000)
