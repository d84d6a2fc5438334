"""Statistics of datasets: the same as NumPy's over all numbers at once, whatever the numbers are like."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shard_format.canonical_json import canonical
from shard_format.errors import BadMetadata, FormatError, InvalidArgument, ReferenceMismatch
from shard_train import EpisodeDataset, compute_stats, load_stats
from shard_train._stats import Scaling, group_shape
from shard_train.statistics import DEFAULT_QUANTILES, ChannelAccumulator, channel_fields
from shard_train.stats_parts import commit_stats, save_part
from tests.shard_train.dataset_support import arrays_of, write_folder
from tests.wshard.support import save
from wshard import Channel, ChunkedEpisodeWriter, Episode, add_lane
from wshard.types import DType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from shard_train.statistics import ChannelStats, Stats

LENGTHS = (20, 3, 31, 16, 40)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read only."""
    return write_folder(tmp_path_factory.mktemp("episodes") / "five", LENGTHS)


def fields_of(stats: Stats) -> bytes:
    """All that statistics say, to the last digit."""
    return canonical({name: channel_fields(channel) for name, channel in stats.items()})


def stats_of(
    array: NDArray[Any], pieces: int = 1, quantiles: Sequence[float] = DEFAULT_QUANTILES
) -> ChannelStats:
    """Of an array that comes in so many pieces."""
    dtype = DType.from_numpy(array.dtype)
    found = ChannelAccumulator(dtype, array.shape[1:])
    for part in np.array_split(array, pieces):
        found.add(part)
    return found.finish(quantiles)


def assert_like_numpy(
    found: ChannelStats, numbers: NDArray[Any], quantiles_within: float = 0.0
) -> None:
    """Against all numbers at once, in float64; `numbers` are finite.

    `quantiles_within` is how far quantiles may be from their places, as a share of all numbers.
    """
    exact = numbers.astype(np.float64)
    spread = exact.std(axis=0)
    assert (found.count == len(numbers)).all()
    assert np.array_equal(found.min, numbers.min(axis=0))
    assert np.array_equal(found.max, numbers.max(axis=0))
    scale = np.abs(exact).max() or 1.0
    np.testing.assert_allclose(found.mean, exact.mean(axis=0), rtol=1e-12, atol=1e-15 * scale)
    # NumPy itself rounds the mean that it takes the deviation from.
    np.testing.assert_allclose(found.std, spread, rtol=1e-9, atol=1e-15 * scale)
    for share, values in found.quantiles.items():
        if quantiles_within:
            around = np.clip([share - quantiles_within, share + quantiles_within], 0, 1)
            low, high = np.quantile(exact, around, axis=0)
            assert ((low <= values) & (values <= high)).all()
        else:
            wanted = np.quantile(exact, share, axis=0)
            np.testing.assert_allclose(values, wanted, rtol=1e-12, atol=1e-15 * scale)


FINITE = st.one_of(
    hnp.arrays(
        st.sampled_from(["f4", "f8", "f2"]),
        st.tuples(st.integers(1, 50), st.integers(1, 3)),
        elements=st.floats(-1000, 1000, width=16),
    ),
    hnp.arrays(
        st.sampled_from(["u1", "i1", "u2", "i2", "i4", "u4", "i8", "u8"]),
        st.tuples(st.integers(1, 50), st.integers(1, 3)),
    ),
    hnp.arrays(np.bool_, st.tuples(st.integers(1, 50), st.integers(1, 3))),
)


class TestNumbers:
    """One channel."""

    @given(array=FINITE, pieces=st.integers(1, 5))
    def test_they_are_those_of_all_numbers_in_any_number_of_pieces(
        self, array: NDArray[Any], pieces: int
    ) -> None:
        found = stats_of(array, min(pieces, len(array)))
        assert not found.nan.any()
        assert not found.inf.any()
        assert_like_numpy(found, array)

    @given(
        array=hnp.arrays(
            st.sampled_from(["f4", "f8", "f2"]),
            (30, 2),
            elements=st.floats(-100, 100, width=16)
            | st.sampled_from([math.nan, math.inf, -math.inf]),
        ),
        pieces=st.integers(1, 4),
    )
    def test_what_is_not_finite_is_counted_and_left_out(
        self, array: NDArray[Any], pieces: int
    ) -> None:
        found = stats_of(array, pieces)
        for column in range(2):
            numbers = array[:, column]
            assert found.nan[column] == np.isnan(numbers).sum()
            assert found.inf[column] == np.isinf(numbers).sum()
            finite = numbers[np.isfinite(numbers)].astype(np.float64)
            assert found.count[column] == len(finite)
            if len(finite):
                assert found.min[column] == finite.min()
                np.testing.assert_allclose(found.std[column], finite.std(), atol=1e-12)
                np.testing.assert_allclose(found.mean[column], finite.mean(), atol=1e-12)
                median = np.quantile(finite, 0.5)
                np.testing.assert_allclose(found.quantiles[0.5][column], median, atol=1e-12)
            else:
                assert np.isnan([found.mean[column], found.std[column], found.max[column]]).all()

    @pytest.mark.parametrize("offset", [0.0, 1e6, -1e12, 1e15])
    def test_a_large_offset_costs_no_digits(self, offset: float) -> None:
        noise = np.random.default_rng(0).integers(-8, 9, (9000, 2)).astype("f8")
        numbers = noise + offset
        found = stats_of(numbers, 7)
        np.testing.assert_allclose(found.std, noise.std(axis=0), rtol=1e-12)
        exact = offset + noise.mean(axis=0)
        assert (np.abs(found.mean - exact) <= np.spacing(abs(offset) + 8)).all()

    def test_nanoseconds_since_the_epoch_keep_their_spread(self) -> None:
        small = np.random.default_rng(0).integers(-3, 4, (5000, 1))
        numbers = 1_700_000_000_000_000_001 + small
        found = stats_of(numbers, 6)
        # As floats, all of them are the same number.
        assert numbers.astype("f8").std() == 0
        np.testing.assert_allclose(found.std, small.std(axis=0), rtol=1e-12)
        assert found.min == numbers.min()

    @pytest.mark.parametrize("dtype", ["i8", "u8"])
    def test_whole_numbers_of_64_bits_do_not_overflow(self, dtype: str) -> None:
        info = np.iinfo(dtype)
        numbers = np.array([[info.min], [info.max], [info.max], [info.min]], dtype)
        found = stats_of(numbers, 3)
        assert (int(found.min[0]), int(found.max[0])) == (info.min, info.max)
        assert_like_numpy(found, numbers)

    @pytest.mark.parametrize("value", [0.1, -3e30, 0.0])
    @pytest.mark.parametrize("dtype", ["f4", "f8"])
    def test_numbers_that_never_change_have_a_deviation_of_exactly_zero(
        self, value: float, dtype: str
    ) -> None:
        numbers = np.full((10_001, 1), value, dtype)
        found = stats_of(numbers, 9)
        assert found.std == 0
        assert found.mean == numbers[0]
        assert all(quantile == numbers[0] for quantile in found.quantiles.values())

    def test_the_pixels_of_a_colour_share_statistics(self) -> None:
        pictures = np.random.default_rng(0).integers(0, 256, (40, 16, 16, 3), dtype="u1")
        found = stats_of(pictures, 3, (0, 0.001, 0.25, 1))
        colours = pictures.reshape(-1, 3)
        assert found.mean.shape == (1, 1, 3)
        assert (found.count == 40 * 256).all()
        for share, values in found.quantiles.items():
            assert np.array_equal(values[0, 0], np.quantile(colours, share, axis=0))
        np.testing.assert_allclose(found.std[0, 0], colours.std(axis=0), rtol=1e-12)

    def test_bf16_numbers_are_numbers_with_and_without_its_package(self) -> None:
        bits = np.array([[0x3F80], [0xC000], [0x4040]], "<u2")  # 1, -2, 3
        found = ChannelAccumulator(DType.BFLOAT16, (1,))
        found.add(bits)
        assert_like_numpy(found.finish((0.5,)), np.array([[1.0], [-2.0], [3.0]]))


class TestGroups:
    """Which numbers share a statistic."""

    @pytest.mark.parametrize(
        ("dtype", "shape", "groups"),
        [
            ("f32", (14,), (14,)),
            ("f32", (), ()),
            ("f32", (2, 3), (2, 3)),
            ("u8", (64, 64, 3), (1, 1, 3)),
            ("u8", (2, 64, 64, 3), (1, 1, 1, 3)),
            ("u8", (3, 64, 64), (3, 1, 1)),
            ("u16", (48, 64, 1), (1, 1, 1)),
            ("u16", (480, 640), (1, 1)),
            ("u8", (6, 4), (6, 4)),
            ("f32", (480, 640), (1, 1)),
            ("f32", (10_000, 3), (1, 3)),
            ("i16", (4000,), (1,)),
        ],
    )
    def test_pictures_have_one_per_colour_and_small_steps_one_per_number(
        self, dtype: str, shape: tuple[int, ...], groups: tuple[int, ...]
    ) -> None:
        assert group_shape(DType(dtype), shape) == groups
        np.broadcast_shapes(shape, groups)


def rank_errors(numbers: NDArray[Any], found: ChannelStats) -> float:
    """How far quantiles are from their places, as a share of all numbers."""
    ordered, count = np.sort(numbers[:, 0]), len(numbers)
    worst = 0.0
    for share, value in found.quantiles.items():
        first = np.searchsorted(ordered, value[0], "left") / count
        last = np.searchsorted(ordered, value[0], "right") / count
        worst = max(worst, first - share, share - last)
    return worst


class TestQuantiles:
    """Of more numbers than are kept."""

    @pytest.mark.parametrize("order", ["random", "rising", "falling", "waves", "few", "outliers"])
    @pytest.mark.parametrize("columns", [1, 65])
    def test_they_are_within_the_documented_distance(self, order: str, columns: int) -> None:
        count = 200_000 if columns == 1 else 20_000
        random = np.random.default_rng(1)
        one = {
            "random": random.normal(size=count),
            "rising": np.arange(count, dtype=float),
            "falling": -np.arange(count, dtype=float),
            "waves": np.sin(np.arange(count) / 777) + np.arange(count) / count,
            "few": random.integers(0, 5, count).astype(float),
            "outliers": np.where(
                np.arange(count) % 1000 == 7, 1e30, 1e6 + random.normal(size=count)
            ),
        }[order].astype("f8")
        numbers = np.repeat(one[:, None], columns, axis=1)
        shares = [0, 0.001, *DEFAULT_QUANTILES, 0.75, 1]
        found = stats_of(numbers, 23, shares)
        # Four deviations of a sample of 16 384, or of 2 048 where columns are many.
        assert rank_errors(numbers, found) <= (0.016 if columns == 1 else 0.045)
        assert found.quantiles[0][0] == one.min()
        assert found.quantiles[1][0] == one.max()

    def test_numbers_that_are_missing_in_one_column_do_not_shift_another(self) -> None:
        random = np.random.default_rng(0)
        numbers = random.normal(size=(30_000, 2))
        holes = numbers.copy()
        holes[random.random(30_000) < 0.9, 1] = np.nan
        found = stats_of(holes, 11)
        whole = stats_of(numbers, 11)
        assert found.quantiles[0.9][0] == whole.quantiles[0.9][0]
        left = holes[np.isfinite(holes[:, 1]), 1:]
        ordered = np.sort(left[:, 0])
        for share, value in found.quantiles.items():
            place = np.searchsorted(ordered, value[1]) / len(ordered)
            assert abs(place - share) < 0.06


class TestDataSets:
    """Many episodes."""

    def test_every_step_of_every_episode_counts_once(self, folder: Path) -> None:
        stats = compute_stats(folder)
        arrays = [arrays_of(number, length) for number, length in enumerate(LENGTHS)]
        assert set(stats) == {"cam", "state", "on", "ctrl", "reward"}
        assert (stats.episodes, stats.steps) == (5, sum(LENGTHS))
        for name, channel in stats.items():
            assert_like_numpy(channel, np.concatenate([one[name] for one in arrays]))
        # Also the observation after the last step.
        assert stats["state"].count.tolist() == [sum(LENGTHS) + 5] * 3
        assert stats["ctrl"].count.tolist() == [sum(LENGTHS)] * 2

    @pytest.mark.parametrize(
        ("window", "stride", "pad"), [(1, 1, "none"), (16, 5, "none"), (64, 7, "edge")]
    )
    def test_windows_do_not_change_them(
        self, folder: Path, window: int, stride: int, pad: str
    ) -> None:
        ds = EpisodeDataset(folder, window, stride, pad=pad)
        assert fields_of(compute_stats(ds)) == fields_of(compute_stats(folder))

    def test_the_number_of_threads_does_not_change_them(self, tmp_path: Path) -> None:
        random = np.random.default_rng(0)
        for number in range(9):
            steps = int(random.integers(1, 3000))
            ep = Episode(
                "ep", observations={"x": random.normal(size=(steps, 3)).astype("f4") * 1e3}
            )
            ep.observations["rgb"] = random.integers(0, 99, (steps, 4, 4, 3), dtype="u1")
            ep.actions["a"] = np.where(random.random((steps, 2)) < 0.1, np.nan, 1 / 3)
            save(ep, tmp_path / f"{number}.wshard", "zstd")
        one = fields_of(compute_stats(tmp_path, threads=1))
        assert all(fields_of(compute_stats(tmp_path, threads=n)) == one for n in (2, 3, 8))

    def test_only_the_episodes_and_channels_of_the_dataset_count(self, folder: Path) -> None:
        ds = EpisodeDataset(folder, 4, channels=["state"], episodes=[2, 0])
        stats = compute_stats(ds)
        assert set(stats) == {"state", "reward"}
        numbers = np.concatenate([arrays_of(2, 31)["state"], arrays_of(0, 20)["state"]])
        assert_like_numpy(stats["state"], numbers)
        # The data is the folder all the same.
        assert stats.fingerprints == compute_stats(folder).fingerprints

    def test_lanes_that_were_added_later_can_be_asked_for(self, tmp_path: Path) -> None:
        folder = write_folder(tmp_path / "eps", [12])
        predicted = arrays_of(0, 12)["state"] + 5
        add_lane(folder / "ep_0.wshard", {"omen/state/dreamer": predicted})
        stats = compute_stats(EpisodeDataset(folder, 4, channels=["omen/state/dreamer"]))
        assert_like_numpy(stats["omen/state/dreamer"], predicted)

    def test_rewards_of_different_types_are_numbers_of_one_kind(self, tmp_path: Path) -> None:
        for number, rewards in enumerate(([0.5, 1.0], [0.1, 0.7], None)):
            ep = Episode("ep", observations={"x": np.zeros((2, 1))})
            if rewards is not None:
                ep.rewards = np.array(rewards)
            save(ep, tmp_path / f"{number}.wshard")
        found = compute_stats(tmp_path)["reward"]
        assert found.count == 4
        np.testing.assert_allclose(found.mean, 2.3 / 4, rtol=1e-7)

    def test_an_episode_in_chunks_counts_as_a_whole(self, tmp_path: Path) -> None:
        numbers = np.random.default_rng(0).normal(size=(50, 2))
        writer = ChunkedEpisodeWriter(tmp_path / "eps" / "ep", "ep", chunk_size_t=20)
        for start in range(0, 50, 20):
            part = numbers[start : start + 20]
            writer.write_chunk(Episode("ep", observations={"x": part}))
        writer.finalize_manifest()
        stats = compute_stats(tmp_path / "eps")
        assert (stats.episodes, stats.steps) == (1, 50)
        assert_like_numpy(stats["x"], numbers)

    def test_steps_without_numbers_have_no_statistics(self, tmp_path: Path) -> None:
        ep = Episode("ep", observations={"none": np.zeros((3, 0)), "x": np.ones((3, 1))})
        assert set(compute_stats(save(ep, tmp_path / "a.wshard"))) == {"x"}

    def test_large_channels_are_read_in_pieces(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        numbers = np.random.default_rng(0).normal(size=(300_000, 4))
        ep = Episode("ep", observations={"x": numbers})
        save(ep, tmp_path / "a.wshard", "zstd", steps_per_frame=1000)
        sizes = []
        read = Channel.read_steps

        def watched(self: Channel, start: int, stop: int) -> NDArray[Any]:
            sizes.append(stop - start)
            return read(self, start, stop)

        monkeypatch.setattr(Channel, "read_steps", watched)
        found = compute_stats(tmp_path)["x"]
        assert sum(sizes) == 300_000
        assert max(sizes) * 32 <= 1 << 21
        np.testing.assert_allclose(found.std, numbers.std(axis=0), rtol=1e-12)

    def test_progress_goes_up_to_all_bytes(self, folder: Path) -> None:
        told: list[tuple[int, int]] = []
        compute_stats(folder, threads=3, progress=lambda done, total: told.append((done, total)))
        assert [done for done, _ in told] == sorted(done for done, _ in told)
        total = sum(LENGTHS) * (24 + 12 + 1 + 16)
        assert told[-1] == (total, total)
        assert len(told) == 5

    @pytest.mark.parametrize("quantiles", [[1.5], [-0.1], [math.nan]])
    def test_a_quantile_is_a_share(self, folder: Path, quantiles: list[float]) -> None:
        with pytest.raises(InvalidArgument, match="a quantile must be a share"):
            compute_stats(folder, quantiles=quantiles)

    def test_there_is_at_least_one_thread(self, folder: Path) -> None:
        with pytest.raises(InvalidArgument, match="threads must be at least 1"):
            compute_stats(folder, threads=0)


class TestDamage:
    """Episodes that cannot be read."""

    @pytest.fixture
    def damaged(self, tmp_path: Path) -> Path:
        """Three episodes; a byte of the second one's `state` is wrong."""
        from shard_format import ShardReader

        folder = write_folder(tmp_path / "eps", [9, 9, 9])
        path = folder / "ep_1.wshard"
        with ShardReader(path) as reader:
            info = reader.info("signal/state")
        data = bytearray(path.read_bytes())
        data[info.data_offset + info.disk_size // 2] ^= 0xFF
        path.write_bytes(data)
        return folder

    @pytest.mark.parametrize("threads", [1, 4])
    def test_a_damaged_episode_is_an_error_that_names_it(self, damaged: Path, threads: int) -> None:
        with pytest.raises(FormatError, match=r"ep_1\.wshard: entry 'signal/state'"):
            compute_stats(damaged, threads=threads)

    def test_an_episode_that_has_changed_meanwhile_is_an_error(self, tmp_path: Path) -> None:
        folder = write_folder(tmp_path / "eps", [9, 9])
        ds = EpisodeDataset(folder, 4)
        write_folder(folder, [9, 8])
        with pytest.raises(ReferenceMismatch, match=r"ep_1\.wshard: the episode has changed"):
            compute_stats(ds)

    def test_no_part_of_an_episode_that_is_skipped_counts(self, damaged: Path) -> None:
        ds = EpisodeDataset(damaged, 4, on_error="skip")
        stats = compute_stats(ds)
        assert [path.rpartition("/")[2] for path in ds.skipped] == ["ep_1.wshard"]
        assert (stats.episodes, stats.steps) == (2, 18)
        both = [arrays_of(number, 9) for number in (0, 2)]
        for name, channel in stats.items():
            assert_like_numpy(channel, np.concatenate([one[name] for one in both]))


@pytest.mark.parametrize("kind", [DType.FLOAT32, DType.FLOAT64])
def test_the_largest_numbers_are_measured_and_scaled_without_warnings(kind: DType) -> None:
    largest = float(np.finfo(kind.numpy_dtype).max)
    values = np.array([largest, 0.75 * largest, largest, 0.75 * largest], kind.numpy_dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one, other = (ChannelAccumulator(kind, (), seed=0) for _ in range(2))
        one.add(values)
        other.add(-values)
        one.join(other)
        stats = one.finish((0.0, 0.5, 1.0))
        offset, scale = np.array(-0.5 * largest), np.array(0.5 * largest)
        scaled = Scaling(offset, scale, kind, ()).forward(values)
    assert (float(stats.min), float(stats.max)) == (-largest, largest)
    np.testing.assert_allclose(scaled, [3, 2.5, 3, 2.5], rtol=1e-6)


class TestParts:
    """Statistics that several machines compute."""

    def test_parts_together_are_the_whole(self, folder: Path, tmp_path: Path) -> None:
        data = EpisodeDataset(folder, window=1)
        path = str(tmp_path / "all.wshard-stats")
        # More parts than episodes: some have none.
        for number in (3, 1, 7, 2, 6, 5, 4):
            save_part(data, path, (number, 7), quantiles=(0.25, 0.5))
        stats = commit_stats(path)
        whole = compute_stats(data, quantiles=(0.25, 0.5))
        assert (stats.episodes, stats.steps) == (whole.episodes, whole.steps)
        assert stats.fingerprints == whole.fingerprints
        assert set(stats) == set(whole)
        for key, one in whole.items():
            found = stats[key]
            for name in ("count", "nan", "inf", "min", "max"):
                np.testing.assert_array_equal(getattr(found, name), getattr(one, name))
            for name in ("mean", "std"):
                np.testing.assert_allclose(getattr(found, name), getattr(one, name), rtol=1e-14)
            for share in (0.25, 0.5):
                np.testing.assert_array_equal(found.quantiles[share], one.quantiles[share])
        assert [one.name for one in tmp_path.iterdir()] == ["all.wshard-stats"]
        # Again, as after a kill at the end.
        assert fields_of(commit_stats(path)) == fields_of(stats)
        assert fields_of(load_stats(path, data)) == fields_of(stats)

    def test_parts_that_are_missing_or_of_other_data_are_named(
        self, folder: Path, tmp_path: Path
    ) -> None:
        data = EpisodeDataset(folder, window=1)
        path = str(tmp_path / "all.wshard-stats")
        with pytest.raises(InvalidArgument, match="no parts"):
            commit_stats(path)
        save_part(data, path, (1, 2))
        with pytest.raises(InvalidArgument, match="missing"):
            commit_stats(path)
        with pytest.raises(InvalidArgument, match="does not exist"):
            save_part(data, path, (3, 2))
        other = EpisodeDataset(write_folder(tmp_path / "other", (5, 6)), window=1)
        part = Path(save_part(other, path, (2, 2)))
        with pytest.raises(InvalidArgument, match="fingerprint"):
            commit_stats(path)
        part.write_bytes(part.read_bytes()[:-100])
        with pytest.raises(BadMetadata, match="2-of-2"):
            commit_stats(path)
        save_part(data, path, (2, 2))
        assert commit_stats(path).episodes == len(LENGTHS)
