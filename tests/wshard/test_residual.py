"""Residuals against slow loops over Python numbers, the vector of the specification and the golden file."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shard_format import ShardReader
from shard_format.errors import InvalidArgument
from wshard import residual
from wshard.residual import (
    Residual,
    compute_error_residual,
    compute_sign2nd_diff,
    compute_sign2nd_diff_multidim,
    dequantize_delta,
    pack_bool_mask,
    pack_multidim_residual_bits,
    pack_residual_bits,
    quantize_delta,
    reconstruct_from_omen_and_delta,
    unpack_bool_mask,
    unpack_multidim_residual_bits,
    unpack_residual_bits,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

GOLDEN = Path(__file__).parents[2] / "spec" / "vectors" / "valid" / "golden_omen_uncert.wshard"
SPEC_SIGNAL = [0, 1, 0, -1, 3, 0]
LARGEST_F32 = float(np.finfo(np.float32).max)
SMALLEST_F32 = 2.0**-149

quick = settings(derandomize=True, database=None, deadline=None, max_examples=80)
steps = st.integers(0, 40)
shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
any_float = st.floats(allow_nan=True, allow_infinity=True)


@st.composite
def arrays(draw: st.DrawFn, dtypes: str = "d", finite: bool = True) -> NDArray[Any]:
    """Arrays [T, ...] whose dimensions have scales from subnormal to near the limit of their dtype."""
    length, shape = draw(steps), draw(shapes)
    generator = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    exponents = st.integers(-1074, 125 if finite else 1020)
    values = generator.normal(size=(length, *shape)) * 2.0 ** draw(exponents)
    with np.errstate(all="ignore"):
        values = values.astype(dtype)
        if finite:
            values[~np.isfinite(values)] = 1
    if draw(st.booleans()):
        values = values.astype(dtype.newbyteorder())
    if values.size and draw(st.booleans()):
        place = draw(st.integers(0, values.size - 1))
        value = draw(st.sampled_from([0.0, -0.0, 1.0]) if finite else any_float)
        with np.errstate(all="ignore"):
            values.flat[place] = value
    return values


def slow_signs(signal: NDArray[Any]) -> NDArray[np.int8]:
    """The definition, one Python float at a time."""
    signs = np.zeros(signal.shape, np.int8)
    for place in np.ndindex(*signal.shape[1:]):
        x = [float(value) for value in signal[(slice(None), *place)]]
        for t in range(1, len(x) - 1):
            bend = 2.0 * x[t] - x[t - 1] - x[t + 1]
            signs[(t, *place)] = (bend > 0) - (bend < 0)
    return signs


def slow_bits(residual: NDArray[Any]) -> bytes:
    packed = bytearray()
    for place in np.ndindex(*residual.shape[1:]):
        part = bytearray(math.ceil(len(residual) / 8))
        for t in range(len(residual)):
            if residual[(t, *place)] > 0:
                part[t // 8] |= 1 << (t % 8)
        packed += part
    return bytes(packed)


class TestSecondDifference:
    """r[t] = sign(2·x[t] − x[t−1] − x[t+1])."""

    def test_the_vector_of_the_specification_comes_out(self) -> None:
        signs = compute_sign2nd_diff(SPEC_SIGNAL)
        assert signs.tolist() == [0, 1, 0, -1, 1, 0]
        assert signs.dtype == np.int8
        assert pack_residual_bits(signs) == b"\x12"

    def test_the_golden_residual_is_that_of_dimension_0(self) -> None:
        with ShardReader(GOLDEN) as reader:
            signal = np.frombuffer(reader.read_entry("signal/joint_pos"), "<f4").reshape(10, 3)
            stored = bytes(reader.read_entry("residual/joint_pos/sign2nddiff"))
        assert stored.hex() == "9000"
        assert pack_residual_bits(compute_sign2nd_diff(signal[:, 0])) == stored
        everything = pack_multidim_residual_bits(compute_sign2nd_diff_multidim(signal))
        assert everything[:2] == stored
        assert len(everything) == 6

    @quick
    @given(signal=arrays("defe", finite=False))
    def test_it_agrees_with_a_loop(self, signal: NDArray[Any]) -> None:
        np.testing.assert_array_equal(compute_sign2nd_diff(signal), slow_signs(signal))
        np.testing.assert_array_equal(compute_sign2nd_diff_multidim(signal), slow_signs(signal))

    @quick
    @given(signal=arrays("fe"))
    def test_an_error_residual_is_that_of_the_difference(self, signal: NDArray[Any]) -> None:
        omen = np.sin(np.arange(signal.size)).reshape(signal.shape).astype(np.float32)
        expected = slow_signs(signal.astype(np.float64) - omen.astype(np.float64))
        np.testing.assert_array_equal(compute_error_residual(signal, omen), expected)

    def test_the_edges_of_a_stored_residual_follow_the_rule_of_its_file(self) -> None:
        signal = np.array([0, 1, 0, -1, 3, 0], np.float32)
        for edges, bits in (("pad", 0x12), ("overlap", 0x33)):
            own = Residual.of_signal("x", signal, edges=edges)
            error = Residual.of_error("x", signal * 2, signal, "m", edges=edges)
            assert own.data.tolist() == error.data.tolist() == [bits], edges

    @pytest.mark.parametrize("length", [0, 1, 2])
    @pytest.mark.parametrize("edge_rule", ["pad", "overlap"])
    def test_fewer_than_three_steps_give_zeros(self, length: int, edge_rule: str) -> None:
        signs = compute_sign2nd_diff(np.full((length, 2), 5.0), edge_rule)
        assert signs.shape == (length, 2)
        assert not signs.any()

    @pytest.mark.parametrize("shape", [(5, 0), (0, 0), (5, 0, 3), (0, 4)])
    def test_sizes_of_zero_keep_their_shape(self, shape: tuple[int, ...]) -> None:
        assert compute_sign2nd_diff(np.zeros(shape)).shape == shape

    def test_overlapping_edges_repeat_their_neighbour(self) -> None:
        signs = compute_sign2nd_diff([[0, 0], [1, -1], [0, 0], [5, -5], [0, 0]], "overlap")
        assert signs.T.tolist() == [[1, 1, -1, 1, 1], [-1, -1, 1, -1, -1]]

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_what_has_no_second_difference_gives_0(self, value: float) -> None:
        signs = compute_sign2nd_diff([0, 1, 0, value, value, 0, 1, 0])
        assert signs.tolist() == slow_signs(np.array([0, 1, 0, value, value, 0, 1, 0])).tolist()
        if math.isnan(value):
            assert signs.tolist() == [0, 1, 0, 0, 0, 0, 1, 0]

    @pytest.mark.parametrize("dtype", ["u1", ">i2", "<u4", ">u8", "i8", "?"])
    def test_integers_and_booleans_do_not_wrap_around(self, dtype: str) -> None:
        assert compute_sign2nd_diff(np.array([1, 0, 1, 1, 0], dtype)).tolist() == [0, -1, 1, 1, 0]

    def test_large_integers_are_rounded_to_64_bit_floats_first(self) -> None:
        near = 1 << 60
        assert compute_sign2nd_diff(np.array([near, near + 1, near])).tolist() == [0, 0, 0]
        assert compute_sign2nd_diff(np.array([near, near + 1024, near])).tolist() == [0, 1, 0]

    def test_bfloat16_counts_as_floats(self) -> None:
        ml_dtypes = pytest.importorskip("ml_dtypes")
        signal = np.array(SPEC_SIGNAL, ml_dtypes.bfloat16)
        assert compute_sign2nd_diff(signal).tolist() == [0, 1, 0, -1, 1, 0]
        codes, scales = quantize_delta(signal, None)
        rebuilt = reconstruct_from_omen_and_delta(np.zeros_like(signal), codes, scales)
        np.testing.assert_allclose(rebuilt, SPEC_SIGNAL, atol=scales[0] / 2)

    def test_tiles_do_not_show(self, monkeypatch: pytest.MonkeyPatch) -> None:
        signal = np.random.default_rng(1).normal(size=(70, 5, 3)).astype(np.float32)
        whole = compute_sign2nd_diff(signal)
        codes, scales = quantize_delta(signal, signal[::-1], 6)
        monkeypatch.setattr(residual, "_TILE_VALUES", 40)
        np.testing.assert_array_equal(compute_sign2nd_diff(signal), whole)
        packed = pack_multidim_residual_bits(whole)
        assert packed == slow_bits(whole)
        again = unpack_multidim_residual_bits(packed, 70, (5, 3))
        np.testing.assert_array_equal(again, np.where(whole > 0, 1, -1))
        small = quantize_delta(signal, signal[::-1], 6)
        np.testing.assert_array_equal(small[0], codes)
        np.testing.assert_array_equal(small[1], scales)
        expected = signal[::-1] + codes * np.repeat(scales.astype(float), 6, axis=0)[:70]
        rebuilt = reconstruct_from_omen_and_delta(signal[::-1], codes, scales, 6)
        np.testing.assert_array_equal(rebuilt, expected)

    def test_an_array_that_is_not_contiguous_is_the_same_as_its_copy(self) -> None:
        signal = np.random.default_rng(2).normal(size=(3, 9, 40)).T[::2]
        copy = np.ascontiguousarray(signal)
        np.testing.assert_array_equal(compute_sign2nd_diff(signal), compute_sign2nd_diff(copy))
        for one, other in zip(
            quantize_delta(signal, None), quantize_delta(copy, None), strict=True
        ):
            np.testing.assert_array_equal(one, other)


class TestBits:
    """One bit a step, least significant first."""

    @quick
    @given(data=st.data(), length=steps, shape=shapes)
    def test_plus_and_minus_one_come_back(
        self, data: st.DataObject, length: int, shape: tuple[int, ...]
    ) -> None:
        seed = data.draw(st.integers(0, 1 << 32))
        signs = np.random.default_rng(seed).choice(np.array([-1, 1], np.int8), (length, *shape))
        packed = pack_multidim_residual_bits(signs)
        assert packed == slow_bits(signs)
        again = unpack_multidim_residual_bits(packed, length, shape)
        np.testing.assert_array_equal(again, signs)
        assert again.dtype == np.int8
        if not shape:
            assert pack_residual_bits(signs) == packed
            np.testing.assert_array_equal(unpack_residual_bits(packed, length), signs)

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_any_bytes_are_unpacked(self, kind: type) -> None:
        assert unpack_residual_bits(kind(b"\x12"), 6).tolist() == [-1, 1, -1, -1, 1, -1]

    def test_arrays_of_bytes_are_unpacked_also_with_gaps(self) -> None:
        spaced = np.array([0x12, 99, 0x01, 99], np.uint8)[::2]
        assert (unpack_residual_bits(spaced, 16) > 0).nonzero()[0].tolist() == [1, 4, 8]

    @pytest.mark.parametrize(
        ("edge_rule", "edge"), [(None, -1), ("overlap", -1), ("pad", 0)], ids=str
    )
    def test_padded_edges_read_back_as_0(self, edge_rule: str | None, edge: int) -> None:
        signs = unpack_residual_bits(b"\x12", 6, edge_rule)
        assert signs.tolist() == [edge, 1, -1, -1, 1, edge]
        many = unpack_multidim_residual_bits(b"\x12\x12", 6, 2, edge_rule)
        assert many.T.tolist() == [signs.tolist()] * 2

    @pytest.mark.parametrize("length", [0, 1, 2])
    def test_short_padded_residuals_are_edges_only(self, length: int) -> None:
        packed = bytes(-(-length // 8))
        assert unpack_residual_bits(packed, length, "pad").tolist() == [0] * length

    def test_zero_and_minus_one_are_the_same_bit(self) -> None:
        assert pack_residual_bits([0, -1, 1, 0]) == pack_residual_bits([-1, -1, 1, -1]) == b"\x04"
        assert pack_residual_bits([math.nan, 0.5, -0.5]) == b"\x02"

    def test_unused_bits_are_zero_and_ignored(self) -> None:
        assert pack_residual_bits([1] * 3) == b"\x07"
        assert unpack_residual_bits(b"\xff", 3).tolist() == [1, 1, 1]

    @pytest.mark.parametrize("shape", [(0, 3), (4, 0), (0,), (4, 2, 0)])
    def test_nothing_packs_into_nothing(self, shape: tuple[int, ...]) -> None:
        assert pack_multidim_residual_bits(np.zeros(shape, np.int8)) == b""
        assert unpack_multidim_residual_bits(b"", shape[0], shape[1:], "pad").shape == shape

    def test_a_number_of_dimensions_is_one_axis(self) -> None:
        assert unpack_multidim_residual_bits(bytes(6), 10, 3).shape == (10, 3)
        assert unpack_multidim_residual_bits(bytes(2), 10, 1).shape == (10, 1)
        assert unpack_multidim_residual_bits(bytes(2), 10, []).shape == (10,)

    @pytest.mark.parametrize("size", [0, 1, 3, 5, 7])
    def test_a_wrong_number_of_bytes_is_refused(self, size: int) -> None:
        with pytest.raises(InvalidArgument, match="2 x 10 bits") as caught:
            unpack_multidim_residual_bits(bytes(size), 10, 2)
        assert (caught.value.expected, caught.value.found) == ("4 bytes", f"{size} of dtype uint8")

    def test_a_huge_length_is_refused_before_anything_is_allocated(self) -> None:
        with pytest.raises(InvalidArgument, match="do not fit"):
            unpack_residual_bits(b"\0", 1 << 62)
        with pytest.raises(InvalidArgument, match="do not fit"):
            unpack_bool_mask(b"\0", (1 << 62, 1 << 62))


class TestMasks:
    """Booleans as bits."""

    @quick
    @given(data=st.data(), shape=shapes)
    def test_masks_come_back(self, data: st.DataObject, shape: tuple[int, ...]) -> None:
        seed = data.draw(st.integers(0, 1 << 32))
        mask = np.random.default_rng(seed).random(shape) < 0.5
        packed = pack_bool_mask(mask)
        assert packed == slow_bits(mask.ravel())
        again = unpack_bool_mask(packed, shape)
        np.testing.assert_array_equal(again, mask)
        assert again.dtype == np.bool_
        np.testing.assert_array_equal(unpack_bool_mask(packed, mask.size), mask.ravel())

    def test_numbers_other_than_0_are_true(self) -> None:
        assert pack_bool_mask(np.array([0, 2, -1])) == b"\x06"
        assert pack_bool_mask([]) == b""

    def test_floats_are_refused(self) -> None:
        with pytest.raises(InvalidArgument, match="booleans"):
            pack_bool_mask([0.5])


def assert_within_half_a_scale(
    delta: NDArray[np.float64],
    codes: NDArray[np.int8],
    scales: NDArray[np.float32],
    window: int,
) -> None:
    """|d − q·scale| ≤ scale / 2, in 64-bit floats and in exact fractions."""
    spread = np.repeat(scales.astype(np.float64), window, axis=0)[: len(delta)]
    restored = dequantize_delta(codes, scales, window)
    assert (np.abs(delta - restored) <= spread / 2).all()
    for d, q, scale in zip(delta.flat[:20], codes.flat, spread.flat, strict=False):
        exact = Fraction(float(d)) - int(q) * Fraction(float(scale))
        assert abs(exact) * 2 <= Fraction(float(scale))


class TestQuantisedDifferences:
    """q = round(d / scale), with a scale for each window and dimension."""

    @quick
    @given(signal=arrays("dfe"), window=st.integers(1, 50))
    @example(signal=np.array([SMALLEST_F32 * 127, SMALLEST_F32 * 0.4, 5e-324]), window=3)
    @example(signal=np.array([127 * LARGEST_F32, 1e-300, -127 * LARGEST_F32]), window=2)
    @example(signal=np.array([5e-324, -5e-324]), window=1)
    def test_a_signal_is_kept_within_half_a_scale(self, signal: NDArray[Any], window: int) -> None:
        codes, scales = quantize_delta(signal, None, window)
        assert codes.shape == signal.shape
        assert codes.dtype == np.int8
        assert scales.shape == (math.ceil(len(signal) / window), *signal.shape[1:])
        assert scales.dtype == np.float32
        assert codes.size == 0 or -127 <= codes.min() <= codes.max() <= 127
        assert_within_half_a_scale(signal.astype(np.float64), codes, scales, window)

    @quick
    @given(signal=arrays("fe"), window=st.integers(1, 50), seed=st.integers(0, 1 << 32))
    def test_a_signal_comes_back_from_its_omen(
        self, signal: NDArray[Any], window: int, seed: int
    ) -> None:
        factors = 1 + np.random.default_rng(seed).normal(size=signal.shape) / 8
        omen = (signal.astype(np.float64) * factors).astype(np.float32)
        codes, scales = quantize_delta(signal, omen, window)
        delta = signal.astype(np.float64) - omen.astype(np.float64)
        assert_within_half_a_scale(delta, codes, scales, window)
        rebuilt = reconstruct_from_omen_and_delta(omen, codes, scales, window)
        spread = np.repeat(scales.astype(np.float64), window, axis=0)[: len(signal)]
        slack = np.spacing(np.abs(rebuilt)) / 2
        assert (np.abs(signal.astype(np.float64) - rebuilt) <= spread / 2 + slack).all()

    @quick
    @given(
        mantissa=st.integers(1 << 23, (1 << 24) - 1),
        whole=st.integers(-126, 126),
        ulps=st.integers(-3, 3),
    )
    def test_differences_next_to_a_half_go_to_the_right_side(
        self, mantissa: int, whole: int, ulps: int
    ) -> None:
        scale = mantissa * 2.0**-23
        near = (whole + 0.5) * scale
        near += ulps * np.spacing(near)
        signal = np.array([127 * scale, near])
        codes, scales = quantize_delta(signal, None)
        assert scales.tolist() == [scale]
        assert_within_half_a_scale(signal, codes, scales, 256)

    def test_halves_go_to_even(self) -> None:
        codes, scales = quantize_delta([127, 0.5, 1.5, 2.5, -0.5, -1.5], None)
        assert codes.tolist() == [127, 0, 2, 2, 0, -2]
        assert scales.tolist() == [1.0]

    def test_each_window_and_dimension_has_its_scale(self) -> None:
        signal = np.array([[127, 0], [-254, 0], [1, 12.7], [0, 0]])
        codes, scales = quantize_delta(signal, np.zeros((4, 2)), window_size=2)
        expected = np.array([[2, 1], [1 / 127, 0.1]])
        np.testing.assert_allclose(scales, expected, rtol=2e-7)
        assert codes.tolist() == [[64, 0], [-127, 0], [127, 127], [0, 0]]

    def test_no_difference_has_the_scale_1(self) -> None:
        codes, scales = quantize_delta([5.0, 7.0], [5.0, 7.0])
        assert (codes.tolist(), scales.tolist()) == ([0, 0], [1.0])

    @pytest.mark.parametrize("shape", [(0,), (0, 3), (1,), (1, 2), (5, 0), (300, 0, 2)])
    def test_short_and_empty_signals_work(self, shape: tuple[int, ...]) -> None:
        codes, scales = quantize_delta(np.ones(shape), np.zeros(shape))
        assert scales.shape == (math.ceil(shape[0] / 256), *shape[1:])
        rebuilt = reconstruct_from_omen_and_delta(np.zeros(shape), codes, scales)
        assert rebuilt.shape == shape
        np.testing.assert_allclose(rebuilt, np.ones(shape), rtol=1e-6)

    @pytest.mark.parametrize("dtype", ["?", "u1", ">u8", "i8", ">f4", "f2"])
    def test_other_types_are_taken_by_value(self, dtype: str) -> None:
        signal = np.array([1, 0, 1, 1], dtype)
        codes, scales = quantize_delta(signal, np.ones(4, ">i2"))
        assert codes.tolist() == [0, -127, 0, 0]
        rebuilt = reconstruct_from_omen_and_delta(np.ones(4, ">i2"), codes, scales)
        np.testing.assert_allclose(rebuilt, [1, 0, 1, 1], atol=1e-6)

    def test_a_window_longer_than_the_episode_is_one_window(self) -> None:
        codes, scales = quantize_delta([1.0, 2.0], None, window_size=1 << 70)
        assert scales.shape == (1,)
        assert dequantize_delta(codes, scales, 1 << 70)[1] == pytest.approx(2)

    def test_the_first_value_that_is_not_finite_is_located(self) -> None:
        signal = np.zeros((600, 2, 3))
        signal[400, 1, 2] = math.nan
        signal[400, 1, 0] = math.inf
        signal[599, 0, 0] = -math.inf
        with pytest.raises(InvalidArgument, match="quantised") as caught:
            quantize_delta(signal, np.zeros((600, 2, 3)))
        assert caught.value.found == "the first at step 400, dimension [1, 0]"
        with pytest.raises(InvalidArgument, match="signal is NaN") as caught:
            quantize_delta([1.0, math.nan], None)
        assert caught.value.found == "the first at step 1"

    def test_a_difference_that_overflows_is_not_finite(self) -> None:
        with pytest.raises(InvalidArgument, match="signal minus omen"):
            quantize_delta([1.5e308], [-1.5e308])

    def test_a_difference_beyond_32_bit_scales_is_refused(self) -> None:
        with pytest.raises(InvalidArgument, match="too large") as caught:
            quantize_delta([0.0, 1e41], None)
        assert caught.value.found == "1e+41 within steps 0 to 1"

    def test_scales_from_a_file_may_be_anything(self) -> None:
        scales = np.array([math.inf, math.nan, -2.0], ">f4")
        delta = dequantize_delta(np.array([0, -128, 5], np.int8), scales, 1)
        np.testing.assert_array_equal(delta, [math.nan, math.nan, -10.0])

    def test_scales_of_another_shape_are_refused(self) -> None:
        codes, scales = quantize_delta(np.ones((10, 2)), None, 4)
        with pytest.raises(InvalidArgument, match="windows of 5") as caught:
            dequantize_delta(codes, scales, 5)
        assert (caught.value.expected, caught.value.found) == ("shape (2, 2)", "shape (3, 2)")

    def test_codes_that_are_not_integers_are_refused(self) -> None:
        with pytest.raises(InvalidArgument, match="integers"):
            dequantize_delta([0.5], [1.0])


class TestArguments:
    """What cannot work is said before anything is computed."""

    def test_unknown_edge_rules_are_refused(self) -> None:
        with pytest.raises(InvalidArgument, match="'pad' or 'overlap'"):
            compute_sign2nd_diff([1.0], "wrap")
        with pytest.raises(InvalidArgument, match="'pad' or 'overlap'"):
            unpack_residual_bits(b"\0", 3, "wrap")

    @pytest.mark.parametrize(
        "signal", [["a"], [1j], [None], np.zeros(2, "M8[ns]"), np.zeros(2, "V2")], ids=repr
    )
    def test_what_is_not_a_real_number_is_refused(self, signal: Any) -> None:  # noqa: ANN401 - anything
        with pytest.raises(InvalidArgument, match="real numbers"):
            compute_sign2nd_diff(signal)

    def test_ragged_lists_and_single_numbers_are_refused(self) -> None:
        with pytest.raises(InvalidArgument, match="cannot make an array"):
            compute_sign2nd_diff([[1, 2], [3]])
        with pytest.raises(InvalidArgument, match="time axis"):
            compute_sign2nd_diff(3.0)

    def test_shapes_must_agree(self) -> None:
        with pytest.raises(InvalidArgument, match=r"shape \(3, 1\)") as caught:
            compute_error_residual(np.zeros((3, 1)), np.zeros(3))
        assert caught.value.found == "shape (3,)"
        with pytest.raises(InvalidArgument, match="different shapes"):
            quantize_delta(np.zeros((3, 2)), np.zeros((3, 1)))
        with pytest.raises(InvalidArgument, match="quantized and omen"):
            reconstruct_from_omen_and_delta([1.0], np.zeros(2, np.int8), [1.0])

    def test_one_dimension_is_packed_by_the_simple_function_only(self) -> None:
        with pytest.raises(InvalidArgument, match="pack_multidim_residual_bits"):
            pack_residual_bits(np.zeros((3, 2)))

    @pytest.mark.parametrize("value", [-1, 2.0, True, "3", None])
    def test_counts_are_integers(self, value: Any) -> None:  # noqa: ANN401 - anything
        with pytest.raises(InvalidArgument, match="T is wrong"):
            unpack_residual_bits(b"\0", value)
        with pytest.raises(InvalidArgument, match="D_or_shape is wrong"):
            unpack_multidim_residual_bits(b"\0", 3, value)
        with pytest.raises(InvalidArgument, match="T is wrong"):
            unpack_bool_mask(b"\0", (1, value))

    @pytest.mark.parametrize("window", [0, -1, 2.5, False])
    def test_windows_have_at_least_one_step(self, window: Any) -> None:  # noqa: ANN401 - anything
        with pytest.raises(InvalidArgument, match="window_size is wrong"):
            quantize_delta([1.0], None, window)
        with pytest.raises(InvalidArgument, match="window_size is wrong"):
            dequantize_delta([1], [1.0], window)

    def test_text_is_not_bytes(self) -> None:
        with pytest.raises(InvalidArgument, match="bytes"):
            unpack_residual_bits("abc", 24)  # type: ignore[arg-type]  # on purpose
