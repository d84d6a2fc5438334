"""Plots show every lane, read little, touch nothing global, and come out the same every time."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shard_format.errors import (
    EntryNotFound,
    InvalidArgument,
    MissingExtra,
    ShardError,
    ShardIOError,
)
from wshard import Channel, Episode, Timebase, load_wshard, save_wshard
from wshard.plot import PlotOptions, plot_episode
from wshard.plot._predictions import LEVELS, Prediction, measure
from wshard.plot._series import TimeAxis, read_series
from wshard.plot._style import dash, labels_of
from wshard.types import Intervals, RaggedChannel, Residual

if TYPE_CHECKING:
    from collections.abc import Callable

pytest.importorskip("matplotlib")

VECTORS = Path(__file__).parents[2] / "spec" / "vectors"
T = 40
SECOND = 1_000_000_000
NO_MODELS = PlotOptions(models=[])
PNG = b"\x89PNG\r\n\x1a\n"


def episode() -> Episode:
    rng = np.random.default_rng(3)
    joints = np.cumsum(rng.normal(size=(T, 3)), axis=0).astype(np.float32)
    guess = (joints + rng.normal(size=joints.shape)).astype(np.float32)
    wide = rng.normal(size=(T, 12)).astype(np.float32)
    ep = Episode("ep_$1_001", env_id="Reach-v1", timebase=Timebase(tick_hz=10))
    ep.observations["joints"] = Channel(data=joints, unit="rad")
    ep.observations["wide"] = wide
    ep.observations["wrist/rgb"] = Channel(
        data=rng.integers(0, 255, (T + 1, 12, 16, 3), dtype=np.uint8), modality="rgb"
    )
    ep.observations["wrist/depth"] = Channel(
        data=rng.random((T, 12, 16)).astype(np.float32), modality="depth"
    )
    ep.observations["task"] = ["reach"] * 20 + ["抓 $ grasp $"] * 20
    ep.observations["points"] = RaggedChannel(
        data=[rng.normal(size=(n % 4, 3)).astype(np.float32) for n in range(T)]
    )
    ep.observations["mic"] = Channel(
        data=rng.normal(size=8000).astype(np.float32),
        modality="audio",
        start_ns=0,
        sampling_rate_hz=2000.0,
    )
    ep.actions["ctrl"] = rng.normal(size=(T, 2)).astype(np.float32)
    ep.omens["joints"]["dreamer"] = guess
    ep.omens["wide"]["dreamer"] = wide + 1
    ep.omens["latent_action"]["genie"] = wide
    ep.uncerts["joints"]["dreamer"]["std"] = np.abs(guess)
    ep.uncerts["wide"]["dreamer"]["variance"] = np.abs(wide)
    ep.residuals["joints"] = Residual.of_signal("joints", joints)
    ep.residuals["joints/dreamer/delta_q"] = Residual.of_error(
        "joints", joints, guess, "dreamer", "delta_q", window=16
    )
    ep.rewards = rng.random(T).astype(np.float32)
    ep.terminations = np.arange(T) == T - 1
    ep.truncations = np.zeros(T, np.bool_)
    ep.labels["phase"] = Intervals([(0, 20, "reach"), (15, T, "grasp")])
    return ep


def titles(figure: Any) -> list[str]:  # noqa: ANN401 - matplotlib's figure
    """What stands above each panel."""
    from matplotlib.offsetbox import AnchoredOffsetbox

    found = []
    for axes in figure.axes:
        for box in axes.findobj(AnchoredOffsetbox):
            packed = box.get_child().get_children()
            found += [area.get_text() for area in packed[:1] if hasattr(area, "get_text")]
    return found


def labels(figure: Any) -> set[str]:  # noqa: ANN401 - matplotlib's figure
    """Every word of every legend."""
    from matplotlib.legend import Legend

    legends = [legend for axes in figure.axes for legend in axes.findobj(Legend)]
    return {text.get_text() for legend in legends for text in legend.get_texts()}


class TestDrawing:
    """Every lane has its panel."""

    def test_every_lane_is_drawn(self, tmp_path: Path) -> None:
        figure = plot_episode(episode(), tmp_path / "ep.png")
        content = (tmp_path / "ep.png").read_bytes()
        assert content.startswith(PNG)
        assert len(content) > 20_000
        assert titles(figure) == [
            "wrist/rgb",
            "wrist/depth",
            "task",
            "joints",
            "prediction − truth",
            "residual sign2nddiff",
            "residual delta_q · dreamer",
            "wide",
            "mean |truth − prediction|",
            "prediction − truth · dreamer",
            "points",
            "mic",
            "ctrl",
            "reward",
            "phase",
            "latent_action · genie",
            "joints: errors",
            "wide: errors",
        ]
        assert len(figure.axes) == 18
        assert {"predicted: dreamer", "±1σ", "reward", "terminated", "mean |error|"} <= labels(
            figure
        )

    def test_a_file_is_drawn_like_the_episode_in_memory(self, tmp_path: Path) -> None:
        save_wshard(episode(), tmp_path / "ep.wshard", compression="zstd", fsync=False)
        chosen = ["joints", "task", "mic"]
        with load_wshard(tmp_path / "ep.wshard") as opened:
            plot_episode(opened, tmp_path / "a.png", channels=chosen)
            assert not opened.observations["joints"].is_loaded
        plot_episode(tmp_path / "ep.wshard", tmp_path / "b.png", channels=chosen)
        assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()

    @pytest.mark.slow
    def test_the_same_episode_gives_the_same_picture(self, tmp_path: Path) -> None:
        chosen = ["wide", "wrist/*", "phase"]
        for name in ("a.png", "b.png"):
            plot_episode(episode(), tmp_path / name, channels=chosen)
        assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()

    def test_channels_and_lanes_can_be_chosen(self) -> None:
        ep = episode()
        assert titles(plot_episode(ep, channels=["wrist/*"])) == ["wrist/rgb", "wrist/depth"]
        assert titles(plot_episode(ep, channels=["joints"], lanes=["signal"])) == ["joints"]
        assert titles(plot_episode(ep, lanes=["reward"])) == ["reward"]
        assert titles(plot_episode(ep, lanes=["done"])) == ["ends"]
        assert titles(plot_episode(ep, lanes=["label", "action"])) == ["ctrl", "phase"]
        without = plot_episode(ep, channels=["joints"], lanes=["signal", "residual"])
        assert "predicted: dreamer" not in labels(without)

    def test_steps_cut_every_clock_at_the_same_time(self) -> None:
        figure = plot_episode(
            episode(), steps=slice(10, 20), channels=["joints", "mic"], lanes=["signal"]
        )
        for axes in figure.axes:
            assert axes.get_xlim() == pytest.approx((1.0, 2.0))
        sound = figure.axes[-1]
        (drawn,) = [x for x in (np.asarray(line.get_xdata()) for line in sound.lines) if x.size > 2]
        assert drawn.min() >= 1.0
        assert drawn.max() <= 2.0

    def test_what_does_not_fit_is_named_below(self) -> None:
        figure = plot_episode(episode(), max_panels=2)
        assert len(figure.axes) == 2
        (below,) = [text.get_text() for text in figure.texts if "not shown" in text.get_text()]
        assert below.startswith("9 more, not shown: task, joints")

    def test_the_title_can_be_given_and_is_never_markup(self, tmp_path: Path) -> None:
        figure = plot_episode(episode(), channels=["ctrl"])
        assert figure.texts[0].get_text() == r"ep_\$1_001"
        figure = plot_episode(episode(), tmp_path / "t.png", channels=["ctrl"], title="$\\frac{")
        assert figure.texts[0].get_text() == "\\$\\frac{"

    def test_a_clock_elsewhere_is_drawn_and_said(self) -> None:
        ep = Episode("far", timebase=Timebase(tick_hz=10))
        ep.rewards = np.zeros(T, np.float32)
        times = np.arange(50) * (SECOND // 20) + 1_700_000_000 * SECOND
        ep.observations["imu"] = Channel(data=np.arange(50.0), timestamps_ns=times)
        figure = plot_episode(ep, channels=["imu"])
        (axes,) = figure.axes
        assert axes.get_xlim() == pytest.approx((0.0, 4.0))
        assert any("outside the episode" in text.get_text() for text in axes.texts)

    def test_an_episode_without_a_clock_is_drawn_over_steps(self) -> None:
        ep = episode()
        ep.timebase.tick_hz = None
        figure = plot_episode(
            ep, channels=["joints", "mic", "phase"], steps=slice(10, 20), options=NO_MODELS
        )
        assert figure.axes[-1].get_xlabel() == "steps (the episode has no clock)"
        assert all(axes.get_xlim() == (10.0, 20.0) for axes in figure.axes)
        assert "no clock" in figure.texts[1].get_text()
        said = [text.get_text() for axes in figure.axes for text in axes.texts]
        assert "the episode has no clock: spread over the whole width" in said

    @pytest.mark.parametrize(
        "change",
        [
            lambda ep: ep.observations.update(x=np.full((T, 2), np.nan)),
            lambda ep: ep.observations.update(x=np.full((T, 20), np.nan)),
            lambda ep: ep.observations.update(x=np.zeros((T, 0), np.float32)),
            lambda ep: ep.observations.update(x=np.full((T, 8, 8), np.inf)),
            lambda ep: ep.observations.update(x=np.zeros((T, 3, 9, 9), np.uint8)),
            lambda ep: ep.observations.update(x=np.zeros((T, 2, 9, 9, 3), np.float32)),
            lambda ep: ep.observations.update(x=np.arange(T) % 2 == 0),
            lambda ep: ep.observations.update(x=[""] * T),
            lambda ep: ep.observations.update(x=RaggedChannel(data=[np.zeros((0, 3))] * T)),
            lambda ep: ep.observations.update(
                x=Channel(data=np.zeros(0), start_ns=0, sampling_rate_hz=5.0)
            ),
            lambda ep: ep.observations.update(
                x=Channel(data=np.arange(T, dtype=np.uint16), dtype="bf16")
            ),
            lambda ep: ep.labels.update(x=Intervals([])),
            lambda ep: ep.labels.update(x=Intervals([(-5, 500, "all"), (3, 3, "now")])),
            lambda ep: setattr(ep, "rewards", np.full(T, np.nan)),
        ],
    )
    def test_odd_data_is_drawn_all_the_same(
        self, tmp_path: Path, change: Callable[[Episode], None]
    ) -> None:
        ep = Episode("odd", length=T)
        ep.rewards = np.zeros(T, np.float32)
        change(ep)
        plot_episode(ep, tmp_path / "odd.png")
        assert (tmp_path / "odd.png").stat().st_size > 1000

    def test_an_episode_without_anything_is_an_empty_page(self, tmp_path: Path) -> None:
        figure = plot_episode(Episode("nothing", length=0), tmp_path / "n.png")
        assert figure.axes == []
        assert (tmp_path / "n.png").read_bytes().startswith(PNG)

    @pytest.mark.slow
    def test_every_vector_that_loads_is_drawn(self) -> None:
        drawn = 0
        for path in sorted((VECTORS / "valid").glob("*.wshard")):
            try:
                ep = load_wshard(path).load()
            except ShardError:
                continue
            try:
                figure = plot_episode(ep, max_panels=4)
            except InvalidArgument as error:
                assert "does not fit" in str(error)  # noqa: PT017 - of some vectors only
                figure = plot_episode(ep, max_panels=4, options=NO_MODELS)
            drawn += 1
            if path.stem.startswith("golden"):
                figure.canvas.draw()
                assert len(figure.axes) > 0
        assert drawn >= 6

    def test_sizes_that_a_file_only_claims_are_refused_before_memory_is_made(self) -> None:
        refused = 0
        for pattern in ("size_product_*", "size_length_*", "offsets_length_*"):
            for path in sorted((VECTORS / "invalid_episodes").glob(f"{pattern}.wshard")):
                with pytest.raises(ShardError):
                    plot_episode(path)
                refused += 1
        assert refused >= 8

    def test_vectors_and_pages_are_written_as_their_suffix_says(self, tmp_path: Path) -> None:
        ep = Episode("one", length=3)
        ep.rewards = [0.0, 1.0, 2.0]
        for name, start in (("a.svg", b"<?xml"), ("a.pdf", b"%PDF"), ("a.PNG", PNG)):
            plot_episode(ep, tmp_path / name)
            assert (tmp_path / name).read_bytes().startswith(start)


def predicted(models: int = 2) -> Episode:
    """Three joints with predictions, one of them of four steps at each step."""
    rng = np.random.default_rng(4)
    joints = np.cumsum(rng.normal(size=(T, 3)), axis=0).astype(np.float32)
    ep = Episode("ep", timebase=Timebase(tick_hz=10))
    ep.observations["joints"] = Channel(data=joints, unit="rad")
    for number in range(models):
        guess = (joints + rng.normal(size=joints.shape)).astype(np.float32)
        ep.omens["joints"][f"model_{number}"] = guess
        ep.uncerts["joints"][f"model_{number}"]["variance"] = np.full((T, 1), 4.0)
    return ep


def with_chunks() -> Episode:
    ep = predicted(1)
    rng = np.random.default_rng(6)
    chunks = rng.normal(size=(T, 4, 3)).astype(np.float32)
    ep.omens["joints"]["chunks"] = Channel(data=chunks, horizon=4)
    ep.uncerts["joints"]["chunks"]["std"] = Channel(data=np.ones((T, 4, 3)), horizon=4)
    return ep


def drawn_lines(axes: Any) -> list[tuple[Any, Any]]:  # noqa: ANN401 - matplotlib's axes
    return [(line.get_color(), line._unscaled_dash_pattern) for line in axes.lines]


def spoil_shape(ep: Episode) -> None:
    ep.omens["joints"]["bad"] = np.zeros((T, 2), np.float32)


def spoil_layout(ep: Episode) -> None:
    ep.omens["joints"]["bad"] = RaggedChannel(data=[np.zeros((1, 3))] * T)


def spoil_horizon(ep: Episode) -> None:
    ep.omens["joints"]["bad"] = np.zeros((T, 4, 3), np.float32)


def spoil_length(ep: Episode) -> None:
    ep.observations["imu"] = Channel(data=np.zeros(90), timestamps_ns=np.arange(90))
    ep.omens["imu"]["bad"] = np.zeros(T)


def spoil_spread(ep: Episode) -> None:
    ep.omens["joints"]["bad"] = np.zeros((T, 3), np.float32)
    ep.uncerts["joints"]["bad"]["std"] = np.zeros((T, 2), np.float32)


class TestPredictions:
    """Which model is which, and how far off each one is."""

    def test_an_episode_plots_itself(self) -> None:
        ep = predicted()
        figure = ep.plot(
            channels=["joints"],
            models=["model_1"],
            dims=[2, 0],
            per_dim=True,
            time=(1.0, 2.0),
            size=(10, 9),
            dpi=80,
        )
        assert titles(figure) == [
            *("joints[0]", "prediction − truth", "joints[2]", "prediction − truth"),
            "joints: errors",
        ]
        assert figure.get_size_inches().tolist() == pytest.approx([10, 9])
        assert figure.dpi == 80
        assert figure.axes[0].get_xlim() == pytest.approx((1.0, 2.0))
        assert figure.axes[0].get_ylabel() == "rad"
        assert "predicted: model_1" in labels(figure)
        assert "predicted: model_0" not in labels(figure)
        (truth, guess, *_) = figure.axes[2].lines
        assert np.allclose(truth.get_ydata(), ep.observations["joints"][10:20, 2])
        assert np.allclose(guess.get_ydata(), ep.omens["joints"]["model_1"][10:20, 2])
        off = ep.omens["joints"]["model_1"][10:20, 2] - ep.observations["joints"][10:20, 2]
        assert np.allclose(figure.axes[3].lines[1].get_ydata(), off)

    def test_several_models_of_several_dimensions_get_a_panel_for_each(self) -> None:
        assert titles(predicted(1).plot())[:2] == ["joints", "prediction − truth"]
        assert titles(predicted(2).plot())[::2] == [
            *("joints[0]", "joints[1]", "joints[2]"),
            "joints: errors",
        ]
        assert titles(predicted(2).plot(per_dim=False))[0] == "joints"
        ep = Episode("wide")
        ep.observations["x"] = np.zeros((T, 4, 5), np.float32)
        assert titles(ep.plot(per_dim=True))[-1] == "x[3, 0]"  # the first 16

    @pytest.mark.parametrize("per_dim", [True, False])
    def test_every_model_has_its_own_line_and_its_own_name(self, per_dim: bool) -> None:
        ep = Episode("many")
        ep.observations["x"] = np.zeros((T, 2), np.float32)
        for number in range(20):
            ep.omens["x"][f"a_model_with_a_long_{number:02}_name_{'x' * 20}"] = np.ones((T, 2))
        figure = ep.plot(per_dim=per_dim)
        drawn = drawn_lines(figure.axes[0])
        assert len(drawn) == (21 if per_dim else 42)
        assert len({repr(look) for look in drawn}) == len(drawn)
        assert len({repr(dash(number)) for number in range(300)}) == 300
        assert len(labels_of([f"{'x' * 50}{n}{'y' * 50}" for n in range(90)])) == 90
        key: Any = figure.axes[0].get_legend()
        texts = {text.get_text() for text in key.get_texts()}
        assert len(texts) == (21 if per_dim else 20)

    @pytest.mark.parametrize("window_bytes", [1, 1000, 16 << 20])
    def test_errors_are_those_of_a_plain_loop(
        self, monkeypatch: pytest.MonkeyPatch, window_bytes: int
    ) -> None:
        monkeypatch.setattr("wshard.plot._predictions._WINDOW_BYTES", window_bytes)
        ep = with_chunks()
        truth = np.asarray(ep.observations["joints"], np.float64)
        chunks = np.asarray(ep.omens["joints"]["chunks"], np.float64)
        kinds = dict(ep.uncerts["joints"]["chunks"])
        one = Prediction("chunks", 0, "chunks", ep.omens["joints"]["chunks"], kinds)
        found = measure(TimeAxis.of(ep), ep.observations["joints"], one, [0, 2])
        assert found is not None
        off = np.full((T, 4, 2), np.nan)
        for step in range(T):
            for ahead in range(min(4, T - step)):
                off[step, ahead] = chunks[step, ahead, [0, 2]] - truth[step + ahead, [0, 2]]
        assert found.rmse == pytest.approx(np.sqrt(np.nanmean(off**2, axis=(0, 1))))
        assert found.ahead == pytest.approx(np.sqrt(np.nanmean(off**2, axis=(0, 2))))
        assert found.total == pytest.approx(np.sqrt(np.nanmean(off**2)))
        z = np.abs(off[np.isfinite(off)])
        at = LEVELS.tolist().index(pytest.approx(0.95))
        assert found.inside is not None
        assert found.inside[at] == pytest.approx(np.mean(z <= 1.959964))

    def test_a_right_sigma_lies_on_the_diagonal(self) -> None:
        rng = np.random.default_rng(8)
        ep = Episode("long")
        ep.observations["x"] = np.zeros(20_000)
        omen = Channel(data=rng.normal(0, 3.0, 20_000))
        right = Prediction("m", 0, "m", omen, {"std": Channel(data=np.full(20_000, 3.0))})
        small = Prediction("m", 0, "m", omen, {"var": Channel(data=np.full(20_000, 1.0))})
        axis, truth = TimeAxis.of(ep), ep.observations["x"]
        good, sure = measure(axis, truth, right, [0]), measure(axis, truth, small, [0])
        assert good is not None
        assert sure is not None
        assert good.inside == pytest.approx(LEVELS, abs=0.02)
        assert sure.inside is not None
        assert (sure.inside < LEVELS).all()

    def test_a_horizon_is_drawn_as_chunks_from_the_step_where_they_were_made(self) -> None:
        ep = with_chunks()
        figure = ep.plot(dims=[1])
        chunks = ep.omens["joints"]["chunks"]
        lines = [np.asarray(line.get_xydata()) for line in figure.axes[0].lines]
        drawn = [line for line in lines if len(line) == 4]
        assert len(drawn) == T // 4
        for number, line in enumerate(drawn):
            assert line[:, 0] == pytest.approx((np.arange(4) + 4 * number) / 10)
            assert line[:, 1] == pytest.approx(chunks[4 * number, :, 1])
        insets: list[Any] = list(figure.axes[-1].child_axes)
        named = [axes.get_title(loc="left") for axes in insets]
        assert named[0:2] == ["RMSE by model", "RMSE by steps ahead"]
        assert named[2].startswith("calibration")

    def test_actions_are_predicted_too(self) -> None:
        ep = Episode("policy", timebase=Timebase(tick_hz=10))
        ep.actions["ctrl"] = np.zeros((T, 2), np.float32)
        ep.omens["ctrl"]["policy"] = Channel(data=np.ones((T, 8, 2)), horizon=8)
        assert titles(ep.plot()) == ["ctrl", "prediction − truth", "ctrl: errors"]

    def test_predicted_frames_stand_above_their_difference(self) -> None:
        ep = Episode("camera", timebase=Timebase(tick_hz=10))
        frames = np.random.default_rng(9).integers(0, 255, (T, 12, 16, 3), np.uint8)
        guess = frames // 2
        ep.observations["rgb"] = Channel(data=frames, modality="rgb")
        ep.omens["rgb"]["dreamer"] = guess
        ep.omens["rgb"]["small"] = (guess / 255).astype(np.float32)  # from 0 to 1
        figure = ep.plot()
        assert titles(figure) == [
            *("rgb", "predicted · dreamer", "|prediction − truth| · dreamer"),
            *("predicted · small", "|prediction − truth| · small"),
        ]
        shown = [np.asarray(image.get_array()) for image in figure.axes[2].images]
        at = [2, 7, 12, 17, 22, 27, 32, 37]
        off = np.abs(frames.astype(float) - guess).mean(axis=-1)
        assert len(shown) == 8
        for picture, step in zip(shown, at, strict=True):
            assert np.allclose(picture, off[step])
        scaled = np.asarray(figure.axes[4].images[0].get_array())
        assert np.allclose(scaled, off[2], atol=1e-4)

    @pytest.mark.parametrize(
        ("spoil", "message"),
        [
            (spoil_shape, r"'joints' by 'bad'.*expected dense \[T, 3\], found dense \[40, 2\]"),
            (spoil_layout, r"found ragged \[40, 3\]"),
            (spoil_horizon, r"found dense \[40, 4, 3\].*horizon=H"),
            (spoil_length, r"expected dense \[90\], found dense \[40\]"),
            (spoil_spread, r"the std of 'joints' by 'bad' does not fit the prediction"),
        ],
    )
    def test_a_prediction_that_does_not_fit_is_refused(
        self, tmp_path: Path, spoil: Callable[[Episode], None], message: str
    ) -> None:
        ep = predicted(1)
        spoil(ep)
        with pytest.raises(InvalidArgument, match=message) as caught:
            plot_episode(ep, tmp_path / "ep.png")
        assert "wshard doctor FILE" in str(caught.value)
        assert not (tmp_path / "ep.png").exists()
        assert "joints" in titles(ep.plot(models=["model_*"]))

    def test_a_prediction_whose_shape_is_a_guess_is_left_out_and_named(self) -> None:
        from matplotlib.offsetbox import AnchoredOffsetbox

        ep = predicted(1)
        spoil_shape(ep)
        ep.omens["joints"]["bad"].inferred = True
        figure = ep.plot()
        boxes: list[Any] = figure.axes[0].findobj(AnchoredOffsetbox)
        words = [area.get_text() for box in boxes for area in box.get_child().get_children()]
        assert "a guess that does not fit: bad" in words[1]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"models": "dreamer"}, "models takes a list"),
            ({"dims": [-1]}, "dims is not valid"),
            ({"dims": []}, "dims is not valid"),
            ({"dims": [7]}, "no channel has these dims"),
            ({"time": (9.0, 8.0)}, "no step starts in this time.*0 to 4"),
            ({"time": (1, 2, 3)}, "a pair of seconds"),
            ({"size": (12, 4)}, r"too small for 7 panels.*at least \d"),
            ({"size": (1, 1)}, "size is not valid"),
            ({"size": 5}, "size is not valid"),
            ({"dpi": 0}, "dpi is not valid"),
        ],
    )
    def test_arguments_that_cannot_work_are_refused(
        self, arguments: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(InvalidArgument, match=message):
            predicted().plot(**arguments)

    def test_an_unknown_model_is_named_with_those_that_are_there(self) -> None:
        with pytest.raises(EntryNotFound, match=r"no model 'modle_1'.*model_1"):
            predicted().plot(models=["modle_1"])
        ep = predicted()
        ep.timebase.tick_hz = None
        with pytest.raises(InvalidArgument, match=r"no clock.*slice\(100, 200\)"):
            ep.plot(time=(0, 1))
        assert ep.plot(time=slice(5, 9)).axes[0].get_xlim() == (5, 9)


class TestDecimation:
    """A million entries become a few hundred points, and no peak is lost."""

    def long(self) -> Episode:
        ep = Episode("long", timebase=Timebase(tick_hz=1000))
        values = np.zeros((200_000, 2), np.float32)
        values[123_456, 1] = 77
        values[50_000:60_000, 0] = np.nan
        ep.observations["x"] = values
        return ep

    def test_extremes_survive(self) -> None:
        ep = self.long()
        series = read_series(TimeAxis.of(ep), ep.observations["x"])
        assert not series.is_exact
        assert len(series.x) == 600
        assert series.high[:, 1].max() == 77
        x, y = series.line(1)
        assert len(x) == len(y) == 1200
        assert np.isnan(series.mean[:, 0]).any()
        at = x[int(np.nanargmax(y))]
        assert at == pytest.approx(123.456, abs=0.5)

    def test_few_points_are_drawn(self) -> None:
        (axes,) = plot_episode(self.long()).axes
        assert max(np.size(line.get_xdata()) for line in axes.lines) <= 1200

    def test_short_series_are_drawn_as_they_are(self) -> None:
        ep = episode()
        series = read_series(TimeAxis.of(ep), ep.observations["joints"])
        assert series.is_exact
        assert np.array_equal(series.mean, np.asarray(ep.observations["joints"]))


class TestManners:
    """Nothing around it changes, and mistakes are named."""

    def test_pyplot_is_not_touched(self) -> None:
        import matplotlib as mpl

        before = dict(mpl.rcParams)
        loaded = "matplotlib.pyplot" in sys.modules
        plot_episode(episode(), channels=["ctrl"])
        assert dict(mpl.rcParams) == before
        assert ("matplotlib.pyplot" in sys.modules) == loaded

    def test_notebooks_show_the_figure_without_pyplot_and_processes_exchange_it(self) -> None:
        figure: Any = episode().plot(channels=["ctrl"], dpi=40)
        png = figure._repr_png_()
        assert png.startswith(PNG)
        assert pickle.loads(pickle.dumps(figure))._repr_png_() == png

    def test_without_matplotlib_the_error_says_what_to_install(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        with pytest.raises(MissingExtra, match=r"shard-format\[plot\]"):
            plot_episode(episode())

    def test_unknown_channels_and_lanes_are_refused(self) -> None:
        with pytest.raises(EntryNotFound, match="joints"):
            plot_episode(episode(), channels=["joint"])
        with pytest.raises(InvalidArgument, match="unknown lane"):
            plot_episode(episode(), lanes=["signals"])
        with pytest.raises(InvalidArgument, match="list of names"):
            plot_episode(episode(), channels="joints")
        with pytest.raises(InvalidArgument, match="list of names"):
            plot_episode(episode(), lanes="signal")
        with pytest.raises(InvalidArgument, match="stride"):
            plot_episode(episode(), steps=slice(0, 10, 2))
        with pytest.raises(InvalidArgument, match="max_panels"):
            plot_episode(episode(), max_panels=0)

    def test_a_place_that_cannot_be_written_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ShardIOError, match="nowhere"):
            plot_episode(episode(), tmp_path / "nowhere" / "a.png", channels=["ctrl"])
        with pytest.raises(InvalidArgument, match="suffix"):
            plot_episode(episode(), tmp_path / "a.doc", channels=["ctrl"])
