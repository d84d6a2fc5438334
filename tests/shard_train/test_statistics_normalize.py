"""Windows whose numbers are brought to a common range, and back."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_format.errors import InvalidArgument, ReferenceMismatch
from shard_train import EpisodeDataset, compute_stats, load_stats, save_stats
from shard_train._stats import Scaling
from shard_train.packed_episodes import pack_episodes
from shard_train.statistics import Stats
from tests.shard_train.dataset_support import arrays_of, write_folder
from tests.shard_train.test_statistics import assert_like_numpy, fields_of, stats_of
from tests.wshard.support import save
from wshard import Channel, Episode, Timebase, add_lane
from wshard.types import DType

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

LENGTHS = (20, 9, 31)


def camera(number: int, length: int) -> NDArray[np.uint8]:
    random = np.random.default_rng(number)
    return random.integers(0, (50, 100, 200), (length, 5, 6, 3)).astype("u1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read only. With statistics beside it."""
    folder = tmp_path_factory.mktemp("episodes") / "three"
    folder.mkdir()
    for number, length in enumerate(LENGTHS):
        arrays = arrays_of(number, length)
        ep = Episode(
            f"ep {number}",
            observations={
                "rgb": camera(number, length),
                "state": arrays["state"],
                "on": arrays["on"],
                "tokens": np.arange(length, dtype="i8")[:, None],
            },
            actions={"ctrl": arrays["ctrl"]},
            rewards=arrays["reward"],
        )
        save(ep, folder / f"ep_{number}.wshard", "zstd", steps_per_frame=4)
    save_stats(compute_stats(folder), folder)
    return folder


def spread(ds: EpisodeDataset, key: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Mean and deviation of all steps of a dataset of windows of one step."""
    values = ds.batch(range(len(ds)))[key].astype("f8")
    axes = tuple(range(values.ndim - 1))
    return values.mean(axis=axes), values.std(axis=axes)


class TestModes:
    """What is done to which channel."""

    def test_true_brings_floats_and_pictures_to_mean_0_and_deviation_1(self, folder: Path) -> None:
        ds = EpisodeDataset(folder, 1, normalize=True)
        raw = EpisodeDataset(folder, 1).batch(range(len(ds)))
        batch = ds.batch(range(len(ds)))
        kinds = {
            key: batch[key].dtype for key in ("rgb", "state", "ctrl", "on", "tokens", "reward")
        }
        assert kinds == {
            "rgb": np.float32,
            "state": np.float32,
            "ctrl": np.float64,
            "on": np.bool_,
            "tokens": np.int64,
            "reward": np.float32,
        }
        for key in ("rgb", "ctrl"):
            mean, std = spread(ds, key)
            np.testing.assert_allclose(mean, 0, atol=1e-6)
            np.testing.assert_allclose(std, 1, atol=1e-6)
        for key in ("on", "tokens", "reward", "terminated", "episode", "start"):
            assert np.array_equal(batch[key], raw[key]), key

    def test_pictures_come_out_as_users_of_scaled_pictures_know_them(self, folder: Path) -> None:
        """Dividing by 255 before taking statistics and normalising changes nothing."""
        pixels = np.concatenate([camera(n, length) for n, length in enumerate(LENGTHS)]) / 255
        mean, std = pixels.mean(axis=(0, 1, 2)), pixels.std(axis=(0, 1, 2))
        got = EpisodeDataset(folder, 4, normalize=True)[3]["rgb"]
        np.testing.assert_allclose(got, (camera(0, 20)[3:7] / 255 - mean) / std, atol=1e-5)

    @pytest.mark.parametrize("mode", ["min_max", "quantile"])
    def test_one_mode_is_for_the_same_channels(self, folder: Path, mode: str) -> None:
        batch = EpisodeDataset(folder, 1, normalize=mode).batch(range(sum(LENGTHS)))
        for key in ("rgb", "ctrl"):
            largest = np.abs(batch[key]).max()
            assert largest == pytest.approx(1) if mode == "min_max" else 1 <= largest < 1.2
        assert batch["tokens"].dtype == np.int64

    def test_a_mapping_is_for_the_channels_that_it_names(self, folder: Path) -> None:
        modes = {"ctrl": "min_max", "state": "none", "reward": "mean_std", "tokens": "min_max"}
        ds = EpisodeDataset(folder, 1, normalize=modes)
        raw = EpisodeDataset(folder, 1).batch(range(len(ds)))
        batch = ds.batch(range(len(ds)))
        assert (batch["ctrl"].min(), batch["ctrl"].max()) == (-1, 1)
        assert batch["tokens"].dtype == np.float32
        assert (batch["tokens"].min(), batch["tokens"].max()) == (-1, 1)
        assert abs(batch["reward"].mean()) < 1e-6
        assert all(np.array_equal(batch[key], raw[key]) for key in ("rgb", "state", "on"))
        assert batch["rgb"].dtype == np.uint8

    def test_channels_say_what_comes_out(self, folder: Path) -> None:
        ds = EpisodeDataset(folder, 4, normalize=True)
        window = ds[0]
        assert {key: kind for key, (kind, _) in ds.channels.items()} == {
            key: window[key].dtype for key in ds.channels
        }

    def test_a_name_with_its_lane_finds_the_statistics_without(self, folder: Path) -> None:
        ds = EpisodeDataset(folder, 4, channels=["signal/state", "ctrl"], normalize=True)
        plain = EpisodeDataset(folder, 4, normalize=True)
        assert np.array_equal(ds[5]["signal/state"], plain[5]["state"])


class TestBatches:
    """Whole arrays, in place where that is possible."""

    def test_windows_batches_and_samples_are_the_same(self, folder: Path) -> None:
        ds = EpisodeDataset(folder, 6, normalize=True)
        batch = ds.batch([7, 1, 30])
        samples = ds.__getitems__([7, 1, 30])
        for row, number in enumerate([7, 1, 30]):
            for key in ("rgb", "state", "ctrl"):
                assert np.array_equal(ds[number][key], batch[key][row])
                assert np.array_equal(samples[row][key], batch[key][row])

    def test_a_batch_can_be_filled_again(self, folder: Path) -> None:
        ds = EpisodeDataset(folder, 6, normalize=True)
        first = ds.batch([0, 1])
        wanted = ds.batch([20, 3])
        again = ds.batch([20, 3], out=first)
        for key in ("rgb", "state", "ctrl"):
            assert again[key] is first[key]
            assert np.array_equal(again[key], wanted[key])

    def test_an_array_that_cannot_be_filled_is_named(self, folder: Path) -> None:
        ds = EpisodeDataset(folder, 6, normalize=True)
        wrong = ds.batch([0, 1])
        wrong["rgb"] = wrong["rgb"].astype("f8")
        with pytest.raises(InvalidArgument, match=r"out\['rgb'\] .*expected .* float32"):
            ds.batch([0, 1], out=wrong)

    def test_threads_do_not_change_it(self, folder: Path) -> None:
        numbers = list(range(30)) * 20
        one, many = (
            EpisodeDataset(folder, 6, normalize=True, threads=threads).batch(numbers)
            for threads in (1, 4)
        )
        assert all(np.array_equal(one[key], many[key]) for key in one)

    def test_what_lies_behind_the_end_stays_zero_or_the_last_step(self, folder: Path) -> None:
        for pad in ("zero", "edge"):
            ds = EpisodeDataset(folder, 8, pad=pad, normalize=True)
            window = ds[LENGTHS[0] - 3]
            assert window["is_pad"].tolist() == [False] * 3 + [True] * 5
            for key in ("rgb", "state", "ctrl"):
                behind = window[key][3:]
                assert np.array_equal(behind, np.zeros_like(behind)) == (pad == "zero")
                if pad == "edge":
                    assert (behind == window[key][2]).all()

    def test_a_transform_gets_what_was_normalised(self, folder: Path) -> None:
        def transform(sample: dict[str, Any]) -> dict[str, Any]:
            return {"state": sample["state"] * 2}

        ds = EpisodeDataset(folder, 6, normalize=True, transform=transform)
        plain = EpisodeDataset(folder, 6, normalize=True)
        assert np.array_equal(ds[3]["state"], plain[3]["state"] * 2)

    def test_it_survives_pickling_and_changes_the_fingerprint(self, folder: Path) -> None:
        ds = EpisodeDataset(folder, 6, normalize=True)
        again = pickle.loads(pickle.dumps(ds))
        assert np.array_equal(again[5]["rgb"], ds[5]["rgb"])
        assert repr(again) == repr(ds)
        plain, other = EpisodeDataset(folder, 6), EpisodeDataset(folder, 6, normalize="min_max")
        assert len({ds.fingerprint, plain.fingerprint, other.fingerprint}) == 3


class TestStatistics:
    """Where they come from."""

    def test_those_beside_the_folder_are_used_for_any_of_its_episodes(self, folder: Path) -> None:
        ds = EpisodeDataset(folder, 4, episodes=[1], normalize=True)
        whole = EpisodeDataset(folder, 4, normalize=True)
        assert np.array_equal(ds[0]["state"], whole[17]["state"])
        assert ds.stats is not None
        assert ds.stats.episodes == 3
        assert EpisodeDataset(folder, 4).stats is None

    def test_statistics_and_their_path_can_be_given(self, folder: Path, tmp_path: Path) -> None:
        files = sorted(folder.glob("*.wshard"))
        listed = EpisodeDataset(files, 4)
        path = save_stats(compute_stats(listed), tmp_path / "mine.wshard-stats")
        wanted = EpisodeDataset(folder, 4, normalize="min_max")[2]["ctrl"]
        for normalize, stats in (("min_max", path), ("min_max", load_stats(path))):
            ds = EpisodeDataset(files, 4, normalize=normalize, stats=stats)
            assert np.array_equal(ds[2]["ctrl"], wanted)
        for given_ in (path, load_stats(path), tmp_path / "mine.wshard-stats"):
            ds = EpisodeDataset(files, 4, normalize=given_)
            assert abs(spread(EpisodeDataset(files, 1, normalize=given_), "ctrl")[0]).max() < 1e-6
            assert len(ds) == len(listed)

    def test_those_of_other_data_are_an_error_unless_they_are_meant(
        self, folder: Path, tmp_path: Path
    ) -> None:
        other = write_folder(tmp_path / "other", [7, 7])
        path = save_stats(compute_stats(other), other)
        with pytest.raises(ReferenceMismatch, match="of other data"):
            EpisodeDataset(folder, 4, channels=["state"], normalize=path)
        EpisodeDataset(folder, 4, channels=["state"], normalize=load_stats(path))

    def test_none_are_an_error_with_the_call_to_make(self, tmp_path: Path) -> None:
        folder = write_folder(tmp_path / "eps", [5])
        with pytest.raises(InvalidArgument, match=r"save_stats\(shard_train\.compute_stats\("):
            EpisodeDataset(folder, 4, normalize=True)
        with pytest.raises(InvalidArgument, match="only a folder has statistics beside it"):
            EpisodeDataset(folder / "ep_0.wshard", 4, normalize=True)

    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            ({"normalize": "meanstd"}, "neither a mode nor a file .*'mean_std'"),
            ({"normalize": 3}, "unknown normalize"),
            ({"normalize": {"stat": "mean_std"}}, "entry 'stat': normalize names a channel"),
            ({"normalize": {"state": "std"}}, "entry 'state': unknown mode"),
            ({"stats": "x"}, "without normalize"),
            ({"normalize": "a/b.wshard-stats"}, "no statistics found"),
            ({"normalize": "a/b", "stats": "c"}, "statistics are given twice"),
        ],
    )
    def test_what_cannot_work_is_said(
        self, folder: Path, options: dict[str, Any], problem: str
    ) -> None:
        with pytest.raises(InvalidArgument, match=problem):
            EpisodeDataset(folder, 4, **options)

    def test_a_channel_without_statistics_or_with_others_is_named(self, folder: Path) -> None:
        stats = load_stats(folder)
        some = Stats({name: stats[name] for name in ("state", "ctrl")})
        with pytest.raises(InvalidArgument, match="entry 'rgb': no statistics of this"):
            EpisodeDataset(folder, 4, normalize=some)
        other = Stats({"state": stats_of(np.zeros((2, 5)))})
        with pytest.raises(InvalidArgument, match=r"'state': .*\[3\], found f64 \[5\]"):
            EpisodeDataset(folder, 4, channels=["state"], normalize=other)


class TestPredictions:
    """Lanes about a channel go with it."""

    @pytest.fixture
    def predicted(self, tmp_path: Path) -> Path:
        folder = write_folder(tmp_path / "eps", [12, 15])
        for number, length in enumerate((12, 15)):
            state = arrays_of(number, length)["state"]
            add_lane(
                folder / f"ep_{number}.wshard",
                {
                    "omen/state/dreamer": state + 3,
                    "uncert/state/dreamer/std": np.full_like(state, 2),
                    "uncert/state/dreamer/variance": np.full_like(state, 4),
                    "uncert/state/dreamer/entropy": np.full_like(state, 7),
                },
            )
        save_stats(compute_stats(folder), folder)
        return folder

    LANES = (
        "omen/state/dreamer",
        "uncert/state/dreamer/std",
        "uncert/state/dreamer/variance",
        "uncert/state/dreamer/entropy",
    )

    @pytest.mark.parametrize(
        ("normalize", "mode"),
        [(True, "mean_std"), ("min_max", "min_max"), ({"state": "quantile"}, "quantile")],
    )
    def test_they_are_scaled_as_their_truth_is(
        self, predicted: Path, normalize: bool | str | dict[str, str], mode: str
    ) -> None:
        ds = EpisodeDataset(predicted, 4, channels=["state", *self.LANES], normalize=normalize)
        window = ds[2]
        scale = load_stats(predicted)["state"].scaling(mode).scale
        omen, std, variance, entropy = (window[lane] for lane in self.LANES)
        np.testing.assert_allclose(omen - window["state"], np.tile(3 / scale, (4, 1)), rtol=1e-4)
        np.testing.assert_allclose(std, np.tile(2 / scale, (4, 1)), rtol=1e-5)
        np.testing.assert_allclose(variance, np.tile(4 / scale**2, (4, 1)), rtol=1e-5)
        assert (entropy == 7).all()

    def test_they_can_be_left_alone(self, predicted: Path) -> None:
        modes = {"state": "mean_std", "omen/state/dreamer": "none"}
        ds = EpisodeDataset(predicted, 4, channels=["state", self.LANES[0]], normalize=modes)
        assert np.array_equal(ds[0][self.LANES[0]], arrays_of(0, 12)["state"][:4] + 3)

    def test_an_uncertainty_of_unknown_kind_cannot_be_asked_for(self, predicted: Path) -> None:
        with pytest.raises(
            InvalidArgument, match="entropy': this uncertainty cannot be normalised"
        ):
            EpisodeDataset(predicted, 4, channels=self.LANES, normalize={self.LANES[3]: "mean_std"})

    def test_a_prediction_of_nothing_that_was_measured_goes_by_its_own(
        self, tmp_path: Path
    ) -> None:
        ep = Episode("ep", observations={"x": np.zeros((50, 1))})
        ep.omens["latent"]["vae"] = np.random.default_rng(0).normal(5, 2, (50, 3))
        path = save(ep, tmp_path / "a.wshard")
        ds = EpisodeDataset(path, 1, channels=["omen/latent/vae"])
        ds = EpisodeDataset(path, 1, channels=["omen/latent/vae"], normalize=compute_stats(ds))
        mean, std = spread(ds, "omen/latent/vae")
        np.testing.assert_allclose([mean, std], [[0] * 3, [1] * 3], atol=1e-12)


class TestScaling:
    """There and back."""

    @given(
        mode=st.sampled_from(["mean_std", "min_max", "quantile", "none"]),
        dtype=st.sampled_from(["f4", "f8", "u1", "i4"]),
        offset=st.sampled_from([0, 7, 100]),
        seed=st.integers(0, 5),
    )
    def test_the_way_back_gives_the_numbers_again(
        self, mode: str, dtype: str, offset: int, seed: int
    ) -> None:
        random = np.random.default_rng(seed)
        numbers = (random.normal(size=(60, 3)) * (1, 20, 0) + offset + 1).clip(0, 200).astype(dtype)
        stats = stats_of(numbers)
        scaled = stats.normalize(numbers, mode)
        assert scaled.dtype == (np.float64 if dtype == "f8" else np.float32)
        back = stats.denormalize(scaled, mode)
        np.testing.assert_allclose(back, numbers, rtol=1e-5, atol=1e-4)
        assert back.dtype == scaled.dtype

    @pytest.mark.parametrize("mode", ["mean_std", "min_max", "quantile"])
    @pytest.mark.parametrize("dtype", ["f4", "f8", "i8", "u1"])
    def test_numbers_that_never_change_become_zero(self, mode: str, dtype: str) -> None:
        numbers = np.full((5, 2), 3, dtype)
        stats = stats_of(numbers)
        assert (stats.normalize(numbers, mode) == 0).all()
        assert np.array_equal(stats.denormalize(np.zeros((5, 2)), mode), numbers)
        # What is new is measured in the channel's own unit.
        np.testing.assert_allclose(stats.normalize(numbers + 1, mode), 1)

    def test_a_spread_that_is_only_rounding_counts_as_none(self) -> None:
        numbers = np.full((1000, 1), 1000.1, "f4")
        numbers[0] = np.nextafter(numbers[0], np.float32(np.inf))
        stats = stats_of(numbers)
        assert stats.std > 0
        assert np.abs(stats.normalize(numbers)).max() < 1e-3

    def test_where_nothing_is_known_numbers_stay(self) -> None:
        stats = stats_of(np.full((3, 1), np.nan, "f4"))
        assert stats.normalize(np.array([[5.0]], "f4")) == 5

    def test_nan_and_infinity_stay_what_they_are(self) -> None:
        stats = stats_of(np.arange(10.0)[:, None])
        got = stats.normalize(np.array([[np.nan], [np.inf], [-np.inf]]))
        assert np.array_equal(got[:, 0], [np.nan, np.inf, -np.inf], equal_nan=True)

    def test_a_large_offset_keeps_its_digits_in_float32(self) -> None:
        numbers = (1e5 + np.random.default_rng(0).normal(size=(500, 2))).astype("f4")
        stats = stats_of(numbers)
        exact = (numbers.astype("f8") - stats.mean) / stats.std
        np.testing.assert_allclose(stats.normalize(numbers), exact, rtol=1e-6, atol=1e-6)

    def test_leading_axes_are_free_and_the_step_must_fit(self) -> None:
        stats = stats_of(np.random.default_rng(0).normal(size=(50, 3)))
        one = np.array([0.5, 1, 2])
        many = np.broadcast_to(one, (4, 5, 3))
        assert np.array_equal(stats.denormalize(many)[2, 2], stats.denormalize(one))
        with pytest.raises(InvalidArgument, match=r"expected \[\.\.\., 3\], found float64 \[4\]"):
            stats.denormalize(np.zeros(4))
        with pytest.raises(InvalidArgument, match="unknown mode"):
            stats.normalize(one, "std")

    def test_bits_of_bf16_are_scaled_as_numbers(self) -> None:
        scaling = Scaling(np.array([1.0]), np.array([2.0]), DType.BFLOAT16, (1,))
        bits = np.array([[0x3F80], [0xC000]], "<u2")  # 1 and -2
        assert scaling.forward(bits).tolist() == [[0.0], [-1.5]]

    @pytest.mark.parametrize("shape", [(5, 6, 3), (3, 5, 6), (2, 5, 6, 3)])
    def test_pictures_are_scaled_by_colour_whatever_their_layout(
        self, shape: tuple[int, ...]
    ) -> None:
        pictures = np.random.default_rng(0).integers(0, 256, (7, *shape)).astype("u1")
        stats = stats_of(pictures)
        wanted = (pictures - stats.mean) / stats.std
        np.testing.assert_allclose(stats.normalize(pictures), wanted, atol=1e-5)


class TestOtherItems:
    """Packs, entries at other times, clocks of their own, and what followed the last step."""

    def test_packs_have_the_statistics_of_their_files(self, folder: Path, tmp_path: Path) -> None:
        size = max(path.stat().st_size for path in folder.iterdir())
        out = tmp_path / "eps-%03d.shardpack"
        packs = pack_episodes(folder, out, max_bytes=int(1.5 * size)).paths
        assert len(packs) > 1
        stats = compute_stats(packs)
        assert fields_of(stats) == fields_of(load_stats(folder))
        path = save_stats(stats, tmp_path / "eps.wshard-stats")
        ds = EpisodeDataset(packs, 6, normalize=path)
        plain = EpisodeDataset(folder, 6, normalize=True)
        assert all(np.array_equal(ds[9][key], plain[9][key]) for key in ("rgb", "state", "ctrl"))

    @pytest.mark.parametrize("pad", ["zero", "edge"])
    def test_what_followed_the_last_step_is_normalised_too(self, folder: Path, pad: str) -> None:
        ds = EpisodeDataset(
            folder, 6, channels=["state"], pad=pad, next_observations=True, normalize=True
        )
        stats = load_stats(folder)["state"]
        # Other channels of this folder end with the last step: what followed is known of all but that.
        wanted = stats.normalize(arrays_of(0, LENGTHS[0])["state"][-4:-1])
        got = ds[LENGTHS[0] - 3]["state"]
        assert got.shape == (7, 3)
        assert np.array_equal(got[:3], wanted)
        assert np.array_equal(got[3:], np.broadcast_to(0 if pad == "zero" else wanted[2], (4, 3)))

    def test_entries_at_other_times_are_normalised(self, tmp_path: Path) -> None:
        state = np.random.default_rng(0).normal(9, 4, (30, 2)).astype("f4")
        ep = Episode(
            "ep", observations={"state": state, "x": state * 2}, timebase=Timebase(tick_hz=10)
        )
        path = save(ep, tmp_path / "a.wshard")
        stats = compute_stats(path)
        ds = EpisodeDataset(path, delta_timestamps={"state": [-0.1, 0, 0.1]}, normalize=stats)
        item = ds[0]
        assert np.array_equal(item["state"], stats["state"].normalize(state[[0, 0, 1]]))
        assert item["state_is_pad"].tolist() == [True, False, False]
        assert np.array_equal(item["x"], stats["x"].normalize(state[0] * 2))

    def test_every_entry_of_a_clock_of_its_own_counts(self, tmp_path: Path) -> None:
        force = np.random.default_rng(0).normal(5, 3, (100, 2))
        ep = Episode("ep", observations={"x": np.zeros((10, 1))}, timebase=Timebase(tick_hz=10))
        ep.observations["force"] = Channel(data=force, start_ns=0, sampling_rate_hz=100.0)
        path = save(ep, tmp_path / "a.wshard")
        plain = EpisodeDataset(path, 4, channels=["force"], align="nearest")
        stats = compute_stats(plain)
        assert_like_numpy(stats["force"], force)
        ds = EpisodeDataset(path, 4, channels=["force"], align="nearest", normalize=stats)
        assert np.array_equal(ds[2]["force"], stats["force"].normalize(plain[2]["force"]))
