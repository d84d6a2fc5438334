"""Panels: one for each thing that is shown, each drawn into axes that share the time in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from wshard.checks.finding import counted
from wshard.names import DELTA_RESIDUAL
from wshard.plots.film import draw_strip, strip_height
from wshard.plots.parts import colour_bar, describe, legend_lines, row_means, say
from wshard.plots.series import BINS, read_series
from wshard.plots.style import CUT, END, INK, QUIET, SMALL, calm, colour, plain, quiet_y
from wshard.residual import dequantize_delta
from wshard.values import product

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from wshard.channels import Channel
    from wshard.episode import Episode
    from wshard.labels import Intervals
    from wshard.plots.series import Clock, Series
    from wshard.ragged import RaggedChannel, TextChannel
    from wshard.residual_lane import Residual

__all__ = ["MOST_LINES", "Panel", "Scene"]

MOST_LINES: Final = 8
"""More dimensions than this make a heat map."""

_MOST_ROWS: Final = 256
_MOST_WORDS: Final = 60
_SPREADS: Final = {"variance": np.sqrt, "var": np.sqrt}
_WIDE_SPREADS: Final = ("std", "stddev", "sigma", "variance", "var")


@dataclass(frozen=True)
class Panel:
    """A row of the figure."""

    title: str
    height: float
    """Inches."""
    draw: Callable[[Any], None]
    detail: str = ""
    belongs: bool = False
    """Whether it is a strip that belongs to the panel above."""


class Scene:
    """Makes the panels of one episode."""

    def __init__(self, episode: Episode, clock: Clock, width_inches: float) -> None:
        self.episode = episode
        self.clock = clock
        self.width = width_inches

    def _read(self, channel: Channel, bins: int = BINS) -> Series:
        return read_series(self.episode, self.clock, channel, bins=bins)

    # --- numbers

    def numbers(
        self,
        title: str,
        channel: Channel,
        omens: Mapping[str, Channel],
        uncerts: Mapping[str, Mapping[str, Channel]],
    ) -> list[Panel]:
        """Lines or a heat map, with predictions and their spread."""
        detail = describe(channel)
        if product(channel.shape) <= MOST_LINES:
            return [
                Panel(title, 1.15, lambda axes: self._lines(axes, channel, omens, uncerts), detail)
            ]
        panels = [Panel(title, 1.15, lambda axes: self._heat(axes, channel), detail)]
        if omens:
            panels.append(
                Panel(
                    "mean |truth − prediction|",
                    0.55,
                    lambda axes: self._errors(axes, channel, omens, uncerts),
                    belongs=True,
                )
            )
        return panels

    def _lines(
        self,
        axes: Any,  # noqa: ANN401 - matplotlib's axes
        channel: Channel,
        omens: Mapping[str, Channel],
        uncerts: Mapping[str, Mapping[str, Channel]],
    ) -> None:
        truth = self._read(channel)
        calm(axes)
        count = truth.mean.shape[1]
        for number in range(count):
            x, y = truth.line(number)
            mark = "." if len(x) == 1 else None
            axes.plot(
                x, y, color=colour(number), lw=1.0 if truth.is_exact else 0.7, marker=mark, ms=3
            )
        dashes = [(0, (3.0, 1.5)), (0, (1.0, 1.2)), (0, (5.0, 1.5, 1.0, 1.5))]
        styles: list[tuple[str, Any]] = []
        for at, (model, omen) in enumerate(omens.items()):
            guess = self._read(omen)
            for number in range(min(guess.mean.shape[1], count if count else 0)):
                axes.plot(
                    guess.seconds,
                    guess.mean[:, number],
                    color=colour(number),
                    lw=0.9,
                    ls=dashes[at % len(dashes)],
                    alpha=0.95,
                )
            styles.append((f"predicted: {plain(model, 16)}", {"ls": dashes[at % len(dashes)]}))
            styles += self._band(axes, guess, uncerts.get(model, {}))
        for model, kinds in uncerts.items():
            if model not in omens:  # an uncertainty of the signal itself
                styles += self._band(axes, truth, kinds)
        self._say_empty(axes, truth)
        legend_lines(axes, count, styles)

    def _band(
        self,
        axes: Any,  # noqa: ANN401 - matplotlib's axes
        around: Series,
        kinds: Mapping[str, Channel],
    ) -> list[tuple[str, Any]]:
        for kind, uncert in kinds.items():
            if kind not in _WIDE_SPREADS:
                continue
            spread = self._read(uncert)
            size = spread.mean if len(spread.seconds) == len(around.seconds) else None
            if size is None:
                continue
            with np.errstate(all="ignore"):
                size = _SPREADS.get(kind, np.abs)(size)
            for number in range(around.mean.shape[1]):
                width = size[:, min(number, size.shape[1] - 1)] if size.shape[1] else 0.0
                middle = around.mean[:, number]
                axes.fill_between(
                    around.seconds,
                    middle - width,
                    middle + width,
                    color=colour(number),
                    alpha=0.16,
                    lw=0,
                )
            return [("±1σ", {"band": True})]
        return []

    def _heat(self, axes: Any, channel: Channel) -> None:  # noqa: ANN401 - matplotlib's axes
        series = self._read(channel)
        calm(axes, grid=False)
        table = series.mean.T
        rows = len(table)
        if rows > _MOST_ROWS:
            edges = np.linspace(0, rows, _MOST_ROWS + 1).astype(np.int64)
            with np.errstate(all="ignore"):
                sums = np.add.reduceat(np.nan_to_num(table), edges[:-1], axis=0)
                table = sums / np.diff(edges)[:, None]
        if not table.size or np.isnan(table).all():
            self._say_empty(axes, series)
            return
        # Two outliers in a hundred must not make the rest one grey.
        low, high = np.nanpercentile(table, (1, 99))
        picture = axes.imshow(
            table,
            aspect="auto",
            interpolation="nearest",
            origin="lower",
            cmap="cividis",
            extent=(*self._edges(series), -0.5, rows - 0.5),
            vmin=low,
            vmax=high if high > low else low + 1,
        )
        axes.set_ylabel("dimension", fontsize=SMALL, color=QUIET)
        colour_bar(axes, picture)

    def _edges(self, series: Series) -> tuple[float, float]:
        """Where a picture of a series starts and ends: half an entry beyond its times."""
        times = series.seconds
        if len(times) < 2:
            return self.clock.low_s, self.clock.high_s
        half = float(times[-1] - times[0]) / (len(times) - 1) / 2
        if half <= 0:
            return self.clock.low_s, self.clock.high_s
        return float(times[0]) - half, float(times[-1]) + half

    def _errors(
        self,
        axes: Any,  # noqa: ANN401 - matplotlib's axes
        channel: Channel,
        omens: Mapping[str, Channel],
        uncerts: Mapping[str, Mapping[str, Channel]],
    ) -> None:
        calm(axes)
        truth = self._read(channel)
        styles: list[tuple[str, Any]] = []
        for at, (model, omen) in enumerate(omens.items()):
            guess = self._read(omen)
            count = min(len(guess.seconds), len(truth.seconds))
            if guess.mean.shape[1] != truth.mean.shape[1] or not count:
                continue
            off = np.abs(guess.mean[:count] - truth.mean[:count])
            axes.plot(truth.seconds[:count], row_means(off), color=colour(at), lw=1.0)
            styles.append((plain(model, 18), {"color": colour(at)}))
            for kind, uncert in uncerts.get(model, {}).items():
                if kind in _WIDE_SPREADS:
                    spread = self._read(uncert)
                    with np.errstate(all="ignore"):
                        size = row_means(_SPREADS.get(kind, np.abs)(spread.mean))
                    axes.fill_between(spread.seconds, 0, size, color=colour(at), alpha=0.14, lw=0)
                    styles.append(("mean σ", {"band": True, "color": colour(at)}))
                    break
        axes.set_ylim(bottom=0)
        legend_lines(axes, 0, styles)

    def _say_empty(self, axes: Any, series: Series) -> None:  # noqa: ANN401 - matplotlib's axes
        if not series.mean.size or np.isnan(series.mean).all():
            say(axes, "nothing to see in this span")
        elif series.moved:
            say(axes, "its clock lies outside the episode: drawn from the left edge on", at=0.93)

    # --- residuals

    def residual(self, key: str, residual: Residual) -> Panel:
        """Signs as a raster, differences as a filled curve."""
        title = f"residual {residual.type}" + (f" · {residual.model}" if residual.model else "")
        if residual.type == DELTA_RESIDUAL:
            return Panel(title, 0.4, lambda axes: self._delta(axes, residual), belongs=True)
        return Panel(title, 0.3, lambda axes: self._signs(axes, residual), belongs=True)

    def _signs(self, axes: Any, residual: Residual) -> None:  # noqa: ANN401 - matplotlib's axes
        from matplotlib.colors import ListedColormap

        calm(axes, grid=False)
        quiet_y(axes)
        length = self.episode.length
        start, stop = self.clock.start, self.clock.stop
        if length and stop > start:
            signs = residual.signs(length)[start:stop].T
            low, high = self.clock.low_s, self.clock.high_s
            half = (high - low) / signs.shape[1] / 2  # each sign around its step
            if signs.shape[1] > 2 * BINS:
                edges = np.linspace(0, signs.shape[1], BINS + 1).astype(np.int64)
                sums = np.add.reduceat(signs.astype(np.float64), edges[:-1], axis=1)
                signs = np.sign(sums)
            axes.imshow(
                signs,
                aspect="auto",
                interpolation="nearest",
                cmap=ListedColormap(["#9db7d3", "#f4f5f6", "#e0a98f"]),
                vmin=-1,
                vmax=1,
                extent=(low - half, high - half, len(signs) - 0.5, -0.5),
            )
        legend_lines(
            axes,
            0,
            [
                ("+1 peak", {"patch": "#e0a98f"}),
                ("−1 dip or straight", {"patch": "#9db7d3"}),
            ],
        )

    def _delta(self, axes: Any, residual: Residual) -> None:  # noqa: ANN401 - matplotlib's axes
        calm(axes)
        start, stop = self.clock.start, min(self.clock.stop, len(residual.data))
        assert residual.scales is not None
        window = residual.window
        first = start // window  # whole windows, so that scales and codes stay together
        codes = residual.data[first * window : stop]
        scales = residual.scales[first : first - (-len(codes) // window)]
        with np.errstate(all="ignore"):
            error = np.abs(dequantize_delta(codes, scales, window))[start - first * window :]
        size = row_means(error.reshape(len(error), -1))
        seconds = (self.episode.times_ns()[start:stop] - self.clock.zero_ns) / 1e9
        if len(size) > 2 * BINS:
            edges = np.linspace(0, len(size), BINS + 1).astype(np.int64)
            size = np.fmax.reduceat(size, edges[:-1])
            seconds = seconds[(edges[:-1] + edges[1:]) // 2]
        axes.fill_between(seconds, 0, size, color=colour(3), alpha=0.35, lw=0)
        axes.plot(seconds, size, color=colour(3), lw=0.7)
        axes.set_ylim(bottom=0)
        legend_lines(axes, 0, [("mean |error|", {"color": colour(3)})])

    # --- pictures

    def frames(self, title: str, channel: Channel, *, belongs: bool = False) -> Panel:
        """A film strip."""
        return Panel(
            title,
            strip_height(channel, self.width),
            lambda axes: draw_strip(axes, self.episode, self.clock, channel),
            "" if belongs else describe(channel),
            belongs,
        )

    # --- sound, points, words, ends

    def sound(self, title: str, channel: Channel) -> Panel:
        """The outline of a waveform."""
        return Panel(title, 0.7, lambda axes: self._waveform(axes, channel), describe(channel))

    def _waveform(self, axes: Any, channel: Channel) -> None:  # noqa: ANN401 - matplotlib's axes
        calm(axes)
        series = self._read(channel, bins=2 * BINS)
        if series.mean.size:
            with np.errstate(all="ignore"):
                low, high = np.fmin.reduce(series.low, axis=1), np.fmax.reduce(series.high, axis=1)
            if series.is_exact and series.mean.shape[1] == 1:
                axes.plot(series.seconds, series.mean[:, 0], color=colour(7), lw=0.7)
            else:
                axes.fill_between(series.seconds, low, high, color=colour(7), alpha=0.8, lw=0.2)
        self._say_empty(axes, series)

    def counts(self, title: str, channel: RaggedChannel) -> Panel:
        """How many items each step has."""
        return Panel(title, 0.7, lambda axes: self._counts(axes, channel), describe(channel))

    def _counts(self, axes: Any, channel: RaggedChannel) -> None:  # noqa: ANN401 - matplotlib's axes
        calm(axes)
        start, stop, seconds, _ = self.clock.entries(self.episode, channel)
        counts = np.diff(channel.offsets)[start:stop]
        if not len(counts):
            say(axes, "nothing to see in this span")
            return
        if len(counts) > 2 * BINS:
            edges = np.linspace(0, len(counts), BINS + 1).astype(np.int64)
            counts = np.maximum.reduceat(counts, edges[:-1])
            seconds = seconds[edges[:-1]]
        axes.fill_between(seconds, 0, counts, step="post", color=colour(7), alpha=0.25, lw=0)
        axes.step(
            seconds,
            counts,
            where="post",
            color=colour(7),
            lw=0.9,
            marker="." if len(counts) == 1 else None,
        )
        axes.set_ylim(bottom=0)
        axes.set_ylabel("items", fontsize=SMALL, color=QUIET)

    def words(self, title: str, channel: TextChannel) -> Panel:
        """Each text from where it starts to where it changes."""
        return Panel(title, 0.34, lambda axes: self._words(axes, channel), describe(channel))

    def _words(self, axes: Any, channel: TextChannel) -> None:  # noqa: ANN401 - matplotlib's axes
        start, stop, seconds, _ = self.clock.entries(self.episode, channel)
        texts = channel._shallow().read_steps(start, stop) if stop > start else []
        runs: list[tuple[float, str]] = []
        for at, text in zip(seconds.tolist(), texts, strict=True):
            if not runs or text != runs[-1][1]:
                runs.append((at, text))
        ends = [at for at, _ in runs[1:]] + [self.clock.high_s]
        spans = [
            (at, end, text, 0)
            for (at, text), end in zip(runs[:_MOST_WORDS], ends, strict=False)
            if text
        ]
        self._spans(axes, spans, 1)
        if not runs:
            say(axes, "nothing to see in this span")
        elif len(runs) > _MOST_WORDS:
            legend_lines(axes, 0, [(f"first {_MOST_WORDS} of {len(runs)}", {})])

    def intervals(self, title: str, intervals: Intervals) -> Panel:
        """Labelled spans, in as many rows as overlap."""
        spans: list[tuple[float, float, str, int]] = []
        ends: list[float] = []
        for item in sorted(intervals, key=lambda item: (item.start, item.end)):
            low, high = (self._when(at, intervals.unit) for at in (item.start, item.end))
            if high < self.clock.low_s or low > self.clock.high_s:
                continue
            row = next((n for n, end in enumerate(ends) if end <= low), len(ends))
            ends[row : row + 1] = [high]
            spans.append((low, high, item.text, row))
        rows = max(1, len(ends))
        return Panel(
            title,
            0.1 + 0.22 * min(rows, 8),
            lambda axes: self._spans(axes, spans, rows),
            f"label · {counted(len(intervals), 'interval')}",
        )

    def _when(self, position: int, unit: str) -> float:
        if unit == "ns":
            return float(position - self.clock.zero_ns) / 1e9
        times = self.episode.times_ns()
        if not len(times):
            return 0.0
        if 0 <= position < len(times):
            return float(int(times[position]) - self.clock.zero_ns) / 1e9
        end = (self.clock.episode_high_ns - self.clock.zero_ns) / 1e9
        return end if position >= len(times) else 0.0

    def _spans(self, axes: Any, spans: Sequence[tuple[float, float, str, int]], rows: int) -> None:  # noqa: ANN401 - matplotlib's axes
        calm(axes, grid=False)
        quiet_y(axes)
        axes.set_ylim(rows, 0)
        colours = {
            text: colour(number) for number, text in enumerate(dict.fromkeys(s[2] for s in spans))
        }
        whole = max(self.clock.high_s - self.clock.low_s, 1e-12)
        for low, high, text, row in spans:
            left, right = max(low, self.clock.low_s), min(high, self.clock.high_s)
            axes.barh(
                row + 0.5,
                max(right - left, whole / 800),
                left=left,
                height=0.82,
                color=colours[text],
                alpha=0.28,
                lw=0,
            )
            axes.plot([left, left], [row + 0.09, row + 0.91], color=colours[text], lw=1.2)
            room = int((right - left) / whole * self.width * 18)  # letters of this size in an inch
            if room >= 3:
                axes.text(
                    left + whole * 0.004,
                    row + 0.52,
                    plain(text, room),
                    fontsize=SMALL,
                    color=INK,
                    va="center",
                )

    def rewards(self, *, reward: bool, ends: bool) -> Panel:
        """The reward, and how the episode ended; or one of them."""
        shown = self.episode.rewards if reward else None
        return Panel(
            "ends" if shown is None else "reward",
            0.3 if shown is None else 0.8,
            lambda axes: self._rewards(axes, shown, ends),
            "" if shown is None else describe(shown),
        )

    def _rewards(self, axes: Any, reward: Channel | None, ends: bool) -> None:  # noqa: ANN401 - matplotlib's axes
        episode, clock = self.episode, self.clock
        calm(axes)
        styles: list[tuple[str, Any]] = []
        if reward is not None:
            series = self._read(reward)
            x, y = series.line(0) if series.mean.shape[1] else (series.seconds, series.seconds)
            axes.fill_between(x, 0, y, color=colour(2), alpha=0.15, lw=0)
            axes.plot(x, y, color=colour(2), lw=1.0, marker="." if len(x) == 1 else None)
            styles.append(("reward", {"color": colour(2)}))
        else:
            quiet_y(axes)
            axes.set_ylim(0, 1)
        times = episode.times_ns()
        for word, flags, ink, dash in (
            ("terminated", episode.terminations, END, "-"),
            ("truncated", episode.truncations, CUT, (0, (2, 1.5))),
        ):
            if flags is None or not ends:
                continue
            where = np.flatnonzero(np.asarray(flags._shallow().data)[clock.start : clock.stop])
            for at in where[:200].tolist():
                second = (int(times[clock.start + at]) - clock.zero_ns) / 1e9
                axes.axvline(second, color=ink, lw=1.0, ls=dash)
                axes.plot(
                    [second],
                    [1],
                    marker="v",
                    ms=4,
                    color=ink,
                    clip_on=False,
                    transform=axes.get_xaxis_transform(),
                )
            if where.size:
                many = f" ({where.size} times)" if where.size > 1 else ""
                styles.append((word + many, {"color": ink, "ls": dash}))
        legend_lines(axes, 0, styles)
