"""The names that existing code uses, and what they are equal to."""

from __future__ import annotations

import numpy as np
import pytest

import wshard
from shard_format.errors import InvalidArgument
from wshard import types
from wshard._values import bfloat16
from wshard.types import Channel, DType, Episode, Modality, Timebase, TimebaseSpec, TimebaseType

SIZES = {
    "f64": 8,
    "f32": 4,
    "f16": 2,
    "bf16": 2,
    "i64": 8,
    "i32": 4,
    "i16": 2,
    "i8": 1,
    "u64": 8,
    "u32": 4,
    "u16": 2,
    "u8": 1,
    "bool": 1,
}
LONG = {
    "FLOAT64": "f64",
    "FLOAT32": "f32",
    "FLOAT16": "f16",
    "BFLOAT16": "bf16",
    "BOOL": "bool",
    "INT64": "i64",
    "INT32": "i32",
    "INT16": "i16",
    "INT8": "i8",
    "UINT64": "u64",
    "UINT32": "u32",
    "UINT16": "u16",
    "UINT8": "u8",
}


class TestDType:
    """Thirteen types, under all their names."""

    def test_there_are_thirteen_with_the_sizes_of_the_registry(self) -> None:
        assert {dtype.value: dtype.size for dtype in DType} == SIZES
        assert {dtype.name: dtype.value for dtype in DType} == LONG

    def test_it_is_its_short_name(self) -> None:
        assert DType("f32") == "f32"
        assert str(DType.FLOAT32) == f"{DType.FLOAT32}" == "f32"

    @pytest.mark.parametrize("dtype", list(DType))
    def test_numpy_and_back(self, dtype: DType) -> None:
        stored = dtype.numpy_dtype
        assert stored.itemsize == dtype.size
        if dtype is DType.BFLOAT16 and bfloat16() is None:
            assert stored == np.uint16
            return
        assert DType.from_numpy(stored) is dtype
        if dtype is not DType.BFLOAT16:
            assert DType.from_numpy(stored.newbyteorder(">")) is dtype

    @pytest.mark.parametrize(
        "name", ["float32", "FLOAT32", "F32", "f32", np.float32, np.dtype(">f4")]
    )
    def test_it_is_found_by_any_of_its_names(self, name: object) -> None:
        assert DType.parse(name) is DType.FLOAT32  # type: ignore[arg-type] # any of them

    @pytest.mark.parametrize(
        "name", ["f128", "", "complex64", "object", "datetime64[ns]", np.complex64]
    )
    def test_other_types_are_refused_with_those_there_are(self, name: object) -> None:
        with pytest.raises(InvalidArgument, match="f64 f32 f16 bf16"):
            DType.parse(name)  # type: ignore[arg-type] # on purpose


class TestOtherTypes:
    """Modalities, clocks and the roof over all of them."""

    def test_modalities_are_their_names_and_know_their_content_type(self) -> None:
        assert {m.value: m.content_type for m in Modality} == {
            "rgb": 6,
            "depth": 1,
            "language": 5,
            "proprioception": 1,
            "audio": 7,
            "video": 8,
            "pointcloud": 1,
        }
        assert Modality("rgb") is Modality.RGB
        assert f"{Modality.RGB}" == "rgb"
        assert Modality("rgb") == "rgb"

    def test_a_timebase_is_a_timebase_spec(self) -> None:
        assert TimebaseSpec is Timebase
        clock = TimebaseSpec(type=TimebaseType.TICKS, tick_hz=60.0, epoch_ns=5)
        assert clock.dt_ns == 16_666_667
        assert Timebase() == TimebaseSpec(TimebaseType.TICKS, None, 0)
        assert Timebase().dt_ns is None
        assert Timebase(tick_hz=5e-324).dt_ns == 2**63 - 1

    def test_channels_and_episodes_are_made_as_existing_code_makes_them(self) -> None:
        data = np.zeros((4, 2), np.float32)
        channel = Channel(name="state", dtype=DType.FLOAT32, shape=[2], data=data)
        ep = Episode(
            id="ep",
            env_id="env",
            length=4,
            timebase=TimebaseSpec(),
            observations={"state": channel},
            rewards=Channel(name="reward", dtype=DType.FLOAT32, shape=[], data=data[:, 0]),
            metadata={},
            chunk_index=0,
            total_chunks=1,
            timestep_range=(0, 3),
        )
        ep.omens["state"] = {}
        ep.omens["state"]["m"] = channel.clone()
        ep.validate()
        copy = ep.clone()
        assert copy.is_chunked
        assert copy.observations["state"].length == 4
        assert not np.shares_memory(copy.observations["state"].data, data)
        assert ep.omens["state"]["m"].name

    def test_all_names_are_importable_and_sorted_into_one_place(self) -> None:
        for module in (wshard, types):
            assert all(hasattr(module, name) for name in module.__all__)
            assert len(set(module.__all__)) == len(module.__all__)
        assert {"Episode", "Channel", "DType", "Modality", "Timebase"} <= set(types.__all__)
