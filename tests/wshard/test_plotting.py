"""Plots show every lane, read little, touch nothing global, and come out the same every time."""

from __future__ import annotations

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
from wshard import (
    Channel,
    Episode,
    Intervals,
    RaggedChannel,
    Residual,
    Timebase,
    load_wshard,
    save_wshard,
)
from wshard.plot import PlotOptions, plot_episode
from wshard.plot._series import TimeAxis, read_series

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

    def test_vectors_and_pages_are_written_as_their_suffix_says(self, tmp_path: Path) -> None:
        ep = Episode("one", length=3)
        ep.rewards = [0.0, 1.0, 2.0]
        for name, start in (("a.svg", b"<?xml"), ("a.pdf", b"%PDF"), ("a.PNG", PNG)):
            plot_episode(ep, tmp_path / name)
            assert (tmp_path / name).read_bytes().startswith(start)


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
