"""Matching clocks against a search through all entries, and gathering what was matched."""

from __future__ import annotations

import math
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shard_format.errors import EntryNotFound, InvalidArgument
from wshard import Channel, Episode, Timebase
from wshard.alignment import (
    METHODS,
    Aligned,
    AlignedChannel,
    Match,
    Method,
    match,
    needed_range,
    take,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

SECOND = 1_000_000_000
SMALLEST, LARGEST = -(1 << 63), (1 << 63) - 1

quick = settings(derandomize=True, database=None, deadline=None, max_examples=120)
moments = st.one_of(
    st.integers(-5, 30),
    st.integers(-(10**18), 10**18),
    st.sampled_from([SMALLEST, SMALLEST + 1, -1, 0, LARGEST - 1, LARGEST]),
)
clocks = st.lists(moments, max_size=12).map(sorted)
targets = st.lists(moments, max_size=12)
tolerances = st.none() | st.integers(0, 10) | st.sampled_from([LARGEST, 1 << 64, 1 << 70])
methods = st.sampled_from(METHODS)


def int64(values: list[int]) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def slow_match(
    times: list[int], target: int, method: str, tolerance: int | None
) -> tuple[int, float, int, bool]:
    """Index, weight, residual and validity for one target, in Python integers."""
    nothing = (-1, 0.0, 0, False)
    indices = range(len(times))
    before = [i for i in indices if times[i] <= target]
    weight = 0.0
    if method == "nearest":
        chosen = min(indices, key=lambda i: (abs(times[i] - target), times[i], i), default=-1)
        used = chosen
    elif method == "previous":
        chosen = used = max(before, default=-1)
    elif method == "exact":
        chosen = used = min((i for i in indices if times[i] == target), default=-1)
    else:
        chosen = used = max(before, default=-1)
        if chosen >= 0 and times[chosen] != target:
            after = chosen + 1
            if after == len(times):
                return nothing
            weight = (target - times[chosen]) / (times[after] - times[chosen])
            if times[after] - target < target - times[chosen]:
                used = after
    if chosen < 0:
        return nothing
    residual = times[used] - target
    if tolerance is not None and abs(residual) > tolerance:
        return nothing
    return chosen, weight, max(-LARGEST, min(residual, LARGEST)), True


class TestMatching:
    """Which entry belongs to which time."""

    @quick
    @given(times=clocks, wanted=targets, method=methods, tolerance=tolerances)
    @example(times=[SMALLEST, LARGEST], wanted=[-1, LARGEST - 1], method="linear", tolerance=None)
    @example(times=[0, 100], wanted=[50], method="linear", tolerance=10)
    @example(times=[SMALLEST], wanted=[LARGEST], method="nearest", tolerance=None)
    @example(times=[1, 1, 3, 3], wanted=[0, 1, 2, 3, 4], method="nearest", tolerance=None)
    def test_it_agrees_with_a_search_through_all_entries(
        self, times: list[int], wanted: list[int], method: Method, tolerance: int | None
    ) -> None:
        if method == "exact":
            tolerance = None
        found = match(int64(times), int64(wanted), method, tolerance)
        expected = [slow_match(times, target, method, tolerance) for target in wanted]
        assert found.indices.tolist() == [row[0] for row in expected]
        assert found.residual_ns.tolist() == [row[2] for row in expected]
        assert found.valid.tolist() == [row[3] for row in expected]
        if method == "linear":
            assert found.weights is not None
            np.testing.assert_allclose(found.weights, [row[1] for row in expected], rtol=1e-15)
            assert ((found.weights >= 0) & (found.weights < 1)).all()
        else:
            assert found.weights is None
        assert found.indices.dtype == found.residual_ns.dtype == np.int64
        assert len(found) == len(wanted)

    def test_ties_go_to_the_earlier_entry(self) -> None:
        found = match([0, 10], [5, 6], "nearest")
        assert found.indices.tolist() == [0, 1]
        assert found.residual_ns.tolist() == [-5, 4]

    def test_of_equal_times_nearest_and_exact_take_the_first_and_the_others_the_last(self) -> None:
        times = [0, 7, 7, 7, 20]
        chosen = {method: match(times, [7], method).indices.tolist() for method in METHODS}
        assert chosen == {"nearest": [1], "previous": [3], "exact": [1], "linear": [3]}
        assert match(times, [8], "nearest").indices.tolist() == [1]

    def test_the_tolerance_is_included(self) -> None:
        assert match([0], [10, 11], "nearest", 10).valid.tolist() == [True, False]
        assert match([0], [10, 11], "previous", 10).valid.tolist() == [True, False]
        assert match([0, 100], [10, 50, 90], "linear", 10).valid.tolist() == [True, False, True]

    def test_a_match_without_an_entry_is_neutral(self) -> None:
        found = match([10, 20], [5, 15, 25], "linear")
        assert found.weights is not None
        assert found.indices.tolist() == [-1, 0, -1]
        assert found.weights.tolist() == [0.0, 0.5, 0.0]
        assert found.residual_ns.tolist() == [0, -5, 0]
        assert found.valid.tolist() == [False, True, False]

    @pytest.mark.parametrize("method", METHODS)
    def test_an_empty_clock_matches_nothing(self, method: Method) -> None:
        found = match([], [1, 2], method)
        assert found.valid.tolist() == [False, False]
        assert needed_range(found) == (0, 0)
        assert len(match([1], [], method)) == 0

    @pytest.mark.parametrize("dtype", [">i8", "<i4", "u1", "u8"])
    def test_any_integers_are_times(self, dtype: str) -> None:
        found = match(np.array([0, 10, 20], dtype), np.array([11, 0], dtype))
        assert found.indices.tolist() == [1, 0]
        assert found.residual_ns.tolist() == [-1, 0]

    def test_arguments_are_left_alone(self) -> None:
        times, wanted = int64([0, 10, 20]), int64([30, 5])
        for method in METHODS:
            match(times, wanted, method, 0)
        assert times.tolist() == [0, 10, 20]
        assert wanted.tolist() == [30, 5]


class TestRefusedTimes:
    """What is not a clock."""

    def test_times_that_run_backwards_are_located(self) -> None:
        with pytest.raises(InvalidArgument, match="backwards at index 2") as caught:
            match([0, 10, 9, 11], [5])
        assert (caught.value.expected, caught.value.found) == ("10 or later", "9")
        assert "wshard doctor FILE" in str(caught.value)
        assert "np.argsort" in str(caught.value)

    @pytest.mark.parametrize(
        ("factor", "unit"),
        [(1_000, "microseconds"), (1_000_000, "milliseconds"), (1_000_000_000, "seconds")],
    )
    def test_a_clock_in_another_unit_is_refused_with_its_unit_and_the_line_that_mends_it(
        self, factor: int, unit: str
    ) -> None:
        ep = Episode("ep", timebase=Timebase(tick_hz=10), length=500)
        ep.actions["ctrl"] = np.zeros((500, 2))
        times = np.arange(5000) * 10_000_000
        imu = ep.observations["imu"] = Channel(data=np.arange(5000), timestamps_ns=times // factor)
        with pytest.raises(
            InvalidArgument, match=f"entry 'imu': .*as if they were {unit}"
        ) as caught:
            ep.align()
        assert "wshard doctor FILE" in str(caught.value)
        line = str(caught.value).split("`")[3]
        exec(line, {"channel": imu})  # noqa: S102 - our own words
        assert (ep.align()["imu"].max_residual_ns or 0) < SECOND

    def test_a_short_clock_is_aligned_if_a_tolerance_says_how(self) -> None:
        ep = Episode("ep", timebase=Timebase(tick_hz=10))
        ep.actions["ctrl"] = np.zeros((500, 2))
        ep.observations["burst"] = Channel(
            data=np.arange(50.0), timestamps_ns=np.arange(50) * 10**6
        )
        with pytest.raises(InvalidArgument, match="tolerance_ns="):
            ep.align()
        assert ep.align(tolerance_ns=10**7)["burst"].invalid == 499
        ep.observations["burst"].timestamps_ns = np.arange(50) * 4 * 10**7  # 2 s of 50 s
        assert ep.align()["burst"].invalid == 0

    def test_targets_may_run_backwards(self) -> None:
        assert match([0, 10], [10, 0]).indices.tolist() == [1, 0]

    def test_seconds_as_floats_are_refused_with_the_conversion(self) -> None:
        with pytest.raises(InvalidArgument, match=r"times_ns must be integers.*1e9"):
            match([0.5], [1])
        with pytest.raises(InvalidArgument, match="targets_ns must be integers"):
            match([1], np.array([0.5]))

    def test_times_have_one_axis_and_64_bits(self) -> None:
        with pytest.raises(InvalidArgument, match="one axis"):
            match([[1]], [1])
        with pytest.raises(InvalidArgument, match="do not fit"):
            match(np.array([1 << 63], np.uint64), [1])
        with pytest.raises(InvalidArgument):
            match([1], [1 << 64])
        with pytest.raises(InvalidArgument, match="cannot make an array"):
            match([[1], [1, 2]], [1])

    def test_an_unknown_method_is_refused_with_those_there_are(self) -> None:
        with pytest.raises(InvalidArgument, match="'nearest', 'previous', 'exact' or 'linear'"):
            match([1], [1], "cubic")  # type: ignore[arg-type]  # on purpose

    @pytest.mark.parametrize("tolerance", [-1, 0.5, True, "1"])
    def test_tolerances_are_nanoseconds(self, tolerance: Any) -> None:  # noqa: ANN401 - anything
        with pytest.raises(InvalidArgument, match="tolerance_ns"):
            match([1], [1], "nearest", tolerance)

    def test_exact_is_exact(self) -> None:
        assert match([1], [1], "exact", 0).valid.all()
        with pytest.raises(InvalidArgument, match="nearest"):
            match([1], [1], "exact", 5)


class TestTaking:
    """Gathering and interpolating values."""

    @quick
    @given(times=clocks, wanted=targets, method=methods, data=st.data())
    def test_reading_the_needed_range_only_gives_the_same(
        self, times: list[int], wanted: list[int], method: Method, data: st.DataObject
    ) -> None:
        width = data.draw(st.sampled_from([(), (2,), (0,), (2, 3)]))
        values = np.random.default_rng(len(times)).normal(size=(len(times), *width))
        found = match(int64(times), int64(wanted), method)
        start, stop = needed_range(found)
        assert 0 <= start <= stop <= len(times)
        whole = take(values, found)
        np.testing.assert_array_equal(take(values[start:stop], found, offset=start), whole)
        assert whole.shape == (len(wanted), *width)
        for row, target in enumerate(wanted):
            index, weight, _residual, valid = slow_match(times, target, method, None)
            if not valid:
                assert np.isnan(whole[row]).all()
            elif weight == 0:
                np.testing.assert_array_equal(whole[row], values[index])
            else:
                expected = values[index] * (1 - weight) + values[index + 1] * weight
                np.testing.assert_allclose(whole[row], expected, rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize(
        ("dtype", "missing"),
        [("f8", math.nan), (">f4", math.nan), ("f2", math.nan), ("i4", 0), ("u8", 0), ("?", False)],
    )
    def test_rows_without_a_value_are_neutral(self, dtype: str, missing: float) -> None:
        found = match([10, 20], [5, 20, 10], "previous")
        rows = take(np.ones((2, 2), dtype), found)
        assert rows.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(rows, [[missing] * 2, [1, 1], [1, 1]])

    def test_the_values_are_a_copy(self) -> None:
        values = np.arange(3.0)
        rows = take(values, match([0, 1, 2], [0, 1, 2]))
        rows[:] = 9
        assert values.tolist() == [0.0, 1.0, 2.0]

    @pytest.mark.parametrize("dtype", ["f2", "<f4", ">f4", "f8"])
    def test_floats_are_interpolated_in_their_dtype(self, dtype: str) -> None:
        values = np.array([[0, 8], [4, 0]], dtype)
        rows = take(values, match([0, 4], [0, 1, 2, 4], "linear"))
        assert rows.dtype == np.dtype(dtype)
        assert rows.tolist() == [[0, 8], [1, 6], [2, 4], [4, 0]]

    def test_bfloat16_is_interpolated(self) -> None:
        ml_dtypes = pytest.importorskip("ml_dtypes")
        values = np.array([0, 4], ml_dtypes.bfloat16)
        rows = take(values, match([0, 4], [-1, 1, 4], "linear"))
        assert rows.dtype == values.dtype
        np.testing.assert_array_equal(rows.astype(np.float64), [math.nan, 1, 4])

    @quick
    @given(
        pair=st.tuples(
            st.floats(allow_nan=False, allow_infinity=False),
            st.floats(allow_nan=False, allow_infinity=False),
        ),
        at=st.integers(0, 1000),
    )
    def test_interpolation_stays_between_its_values(
        self, pair: tuple[float, float], at: int
    ) -> None:
        found = match([0, 1000], [at], "linear")
        assert min(pair) <= take(np.array(pair), found)[0] <= max(pair)
        assert take(np.array([pair[0]] * 2), found)[0] == pair[0]

    def test_neighbours_that_are_not_finite_do_not_reach_an_entry(self) -> None:
        values = np.array([1.0, math.nan, 2.0, math.inf])
        rows = take(values, match([0, 10, 20, 30], [0, 5, 15, 20, 25, 30], "linear"))
        np.testing.assert_array_equal(rows, [1, math.nan, math.nan, 2, math.inf, math.inf])

    def test_a_target_on_an_entry_keeps_its_bits(self) -> None:
        values = np.array([0x7FC01234, 0xFFC05678], np.uint32).view(np.float32)
        rows = take(values, match([0, 1], [1, 0], "linear"))
        assert rows.view(np.uint32).tolist() == [0xFFC05678, 0x7FC01234]

    def test_tiles_do_not_show(self, monkeypatch: pytest.MonkeyPatch) -> None:
        values = np.random.default_rng(3).normal(size=(20, 3)).astype(np.float32)
        found = match(np.arange(20) * 10, np.arange(-3, 195, 2), "linear")
        whole = take(values, found)
        monkeypatch.setattr("wshard.alignment._TILE_VALUES", 7)
        np.testing.assert_array_equal(take(values, found), whole)

    @pytest.mark.parametrize("dtype", ["i4", "u1", "?"])
    def test_integers_are_not_interpolated(self, dtype: str) -> None:
        with pytest.raises(InvalidArgument, match="'nearest' or 'previous'") as caught:
            take(np.zeros(2, dtype), match([0, 1], [0], "linear"))
        assert caught.value.found == str(np.dtype(dtype))

    def test_lists_are_gathered_with_none_for_missing_items(self) -> None:
        texts = ["reach", "grasp", "lift"]
        found = match([10, 20, 30], [25, 5, 31], "previous")
        assert take(texts, found) == ["grasp", None, "lift"]
        assert take(tuple(texts), found) == ["grasp", None, "lift"]
        start, stop = needed_range(found)
        assert (start, stop) == (1, 3)
        assert take(texts[start:stop], found, start) == ["grasp", None, "lift"]
        ragged = [np.zeros(2), np.ones(1), np.ones(3)]
        assert take(ragged, found)[0] is ragged[1]

    def test_lists_are_not_interpolated(self) -> None:
        with pytest.raises(InvalidArgument, match="'nearest' or 'previous'"):
            take(["a", "b"], match([0, 1], [0], "linear"))

    def test_values_that_are_too_few_are_refused(self) -> None:
        found = match([0, 1, 2], [1, 2])
        with pytest.raises(InvalidArgument, match="needed_range") as caught:
            take(np.zeros(2), found)
        assert (caught.value.expected, caught.value.found) == ("entries 1 to 2", "0 to 1")
        with pytest.raises(InvalidArgument, match="needed_range"):
            take(np.zeros(3), found, offset=2)
        with pytest.raises(InvalidArgument, match="none"):
            take([], found)
        with pytest.raises(InvalidArgument, match="entries 0 to 1"):
            take(np.zeros(1), match([0, 2], [1], "linear"))

    def test_values_that_are_not_numbers_are_refused(self) -> None:
        with pytest.raises(InvalidArgument, match="a list"):
            take(np.array(["a", "b"]), match([0, 1], [0]))
        with pytest.raises(InvalidArgument, match="time axis"):
            take(np.array(1.0), match([0, 1], [0]))


def aligned() -> Aligned:
    targets_ns = int64([0, 1_000_000, 2_000_000])
    channels = {}
    for name, times in {
        "signal/camera": [100, 1_001_500],
        "signal/imu": [-2_500_000_000],
        "signal/nothing": [],
    }.items():
        found = match(times, targets_ns, "nearest", None if "imu" in name else 5_000)
        data = take(np.zeros(len(times)), found)
        channels[name] = AlignedChannel(data, found.valid, found.residual_ns)
    return Aligned(targets_ns, channels, "nearest")


class TestAligned:
    """Several channels at common times."""

    def test_it_is_a_mapping_of_its_channels(self) -> None:
        episode = aligned()
        assert list(episode) == list(episode.keys())
        assert list(episode) == ["signal/camera", "signal/imu", "signal/nothing"]
        assert episode["signal/camera"] is episode.channels["signal/camera"]
        assert "signal/imu" in episode
        assert "signal/lidar" not in episode
        assert len(episode) == 3

    def test_an_unknown_channel_is_an_error_with_a_suggestion(self) -> None:
        with pytest.raises(EntryNotFound, match="did you mean 'signal/camera'"):
            aligned()["signal/camrea"]

    def test_residuals_are_summed_up_over_valid_rows(self) -> None:
        assert aligned().residuals() == {
            "signal/camera": {"max_ns": 1500, "mean_ns": 800.0, "invalid": 1},
            "signal/imu": {"max_ns": 2_502_000_000, "mean_ns": 2_501_000_000.0, "invalid": 0},
            "signal/nothing": {"max_ns": None, "mean_ns": None, "invalid": 3},
        }

    def test_extreme_residuals_do_not_overflow(self) -> None:
        channel = AlignedChannel([], np.ones(2, np.bool_), int64([SMALLEST, 5]))
        assert channel.max_residual_ns == 1 << 63
        assert channel.mean_abs_residual_ns == pytest.approx(2**62)

    def test_its_text_is_a_table(self) -> None:
        assert str(aligned()).splitlines() == [
            "3 times, method nearest",
            "channel         mean distance  max distance  without value",
            "signal/camera          800 ns      1.500 us         1 of 3",
            "signal/imu            2.501 s       2.502 s         0 of 3",
            "signal/nothing              -             -         3 of 3",
        ]

    def test_names_cannot_break_the_table(self) -> None:
        channel = aligned()["signal/imu"]
        text = str(Aligned(int64([0]), {"a\nb\x1b[2J": channel, "x" * 5000: channel}, "exact"))
        assert len(text.splitlines()) == 4
        assert "\x1b" not in text
        assert max(map(len, text.splitlines())) < 250

    def test_no_channels_is_a_table_too(self) -> None:
        assert str(Aligned(int64([]), {}, "exact")).splitlines()[0] == "0 times, method exact"

    def test_results_can_be_sent_to_other_processes(self) -> None:
        again = pickle.loads(pickle.dumps(aligned()))
        assert again.residuals() == aligned().residuals()
        sent: Match = pickle.loads(pickle.dumps(match([0, 2], [1], "linear")))
        assert sent.weights is not None
        assert sent.weights.tolist() == [0.5]
