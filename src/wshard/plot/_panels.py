"""Panels: one for each thing that is shown, drawn into axes that share the time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from shard_format.display import picture_of, value_range
from wshard._lanes import DELTA_RESIDUAL
from wshard.multimodal import is_frames
from wshard.plot._series import BINS, bin_edges, read_series, row_means
from wshard.plot._style import (
    CUT,
    END,
    FAINT,
    INK,
    QUIET,
    SMALL,
    calm,
    colour,
    colour_bar,
    describe,
    key_band,
    key_line,
    legend,
    plain,
    quiet_y,
    say,
)
from wshard.residual import dequantize_delta
from wshard.types import Modality, RaggedChannel, TextChannel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from wshard.plot._series import Series, TimeAxis
    from wshard.plot._style import Axes
    from wshard.types import Channel, Episode, Intervals, Residual

    Omens = Mapping[str, Channel]
    Uncerts = Mapping[str, Mapping[str, Channel]]

# More dimensions than this make a heat map.
_MOST_LINES: Final = 8
_MOST_ROWS: Final = 256
_MOST_WORDS: Final = 60
_MOST_ENDS: Final = 200
_THUMBNAILS: Final = 8
_THUMBNAIL_PIXELS: Final = 160
_VARIANCES: Final = ("variance", "var")
_SPREADS: Final = ("std", "stddev", "sigma", *_VARIANCES)
_DASHES: Final = ((0, (3.0, 1.5)), (0, (1.0, 1.2)), (0, (5.0, 1.5, 1.0, 1.5)))
_PEAK, _DIP = "#e0a98f", "#9db7d3"
_NOTHING: Final = "nothing to see in this span"


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


class _Span(NamedTuple):
    """A text over some time, in a row of a panel."""

    low: float
    high: float
    text: str
    row: int


class Panels:
    """Makes the panels of one episode.

    Args:
        episode: whose channels are drawn.
        axis: the horizontal axis.
        width_inches: of the axes.
    """

    def __init__(self, episode: Episode, axis: TimeAxis, width_inches: float) -> None:
        self._episode = episode
        self._axis = axis
        self._width = width_inches

    def channel(
        self,
        title: str,
        channel: Channel,
        omens: Omens | None = None,
        uncerts: Uncerts | None = None,
    ) -> list[Panel]:
        """The panels of a channel, with its predictions and their spread."""
        omens, uncerts = omens or {}, uncerts or {}
        detail = describe(channel)
        if isinstance(channel, TextChannel):
            return [Panel(title, 0.34, partial(self._draw_words, channel), detail)]
        if isinstance(channel, RaggedChannel):
            return [Panel(title, 0.7, partial(self._draw_counts, channel), detail)]
        if is_frames(channel):
            frames = {f"predicted · {model}": o for model, o in omens.items() if is_frames(o)}
            return [
                self._frames(title, channel, detail),
                *(self._frames(name, omen, belongs=True) for name, omen in frames.items()),
            ]
        if channel.modality == Modality.AUDIO:
            return [Panel(title, 0.7, partial(self._draw_waveform, channel), detail)]
        if prod(channel.step_shape) <= _MOST_LINES:
            return [Panel(title, 1.15, partial(self._draw_lines, channel, omens, uncerts), detail)]
        panels = [Panel(title, 1.15, partial(self._draw_heat, channel), detail)]
        if omens:
            draw = partial(self._draw_errors, channel, omens, uncerts)
            panels.append(Panel("mean |truth − prediction|", 0.55, draw, belongs=True))
        return panels

    # --- numbers

    def _draw_lines(self, channel: Channel, omens: Omens, uncerts: Uncerts, axes: Axes) -> None:
        calm(axes)
        truth = read_series(self._axis, channel)
        count = truth.mean.shape[1]
        for number in range(count):
            x, y = truth.line(number)
            mark = "." if len(x) == 1 else None
            width = 1.0 if truth.is_exact else 0.7
            axes.plot(x, y, color=colour(number), lw=width, marker=mark, ms=3)
        keys: dict[str, Any] = {}
        for at, (model, omen) in enumerate(omens.items()):
            guess = read_series(self._axis, omen)
            dash = _DASHES[at % len(_DASHES)]
            for number in range(min(guess.mean.shape[1], count)):
                y = guess.mean[:, number]
                axes.plot(guess.x, y, color=colour(number), lw=0.9, ls=dash, alpha=0.95)
            keys.setdefault(f"predicted: {plain(model, 16)}", key_line(dash=dash))
            self._draw_band(axes, guess, uncerts.get(model, {}), keys)
        for model, kinds in uncerts.items():
            if model not in omens:  # an uncertainty of the signal itself
                self._draw_band(axes, truth, kinds, keys)
        _say_about(axes, truth)
        legend(axes, keys, count)

    def _draw_band(
        self, axes: Axes, around: Series, kinds: Mapping[str, Channel], keys: dict[str, Any]
    ) -> None:
        """Draw one standard deviation around a line."""
        spread = self._spread(kinds)
        if spread is None or len(spread.x) != len(around.x) or not spread.mean.shape[1]:
            return
        for number in range(around.mean.shape[1]):
            width = spread.mean[:, min(number, spread.mean.shape[1] - 1)]
            low, high = around.mean[:, number] - width, around.mean[:, number] + width
            axes.fill_between(around.x, low, high, color=colour(number), alpha=0.16, lw=0)
        keys.setdefault("±1σ", key_band())

    def _spread(self, kinds: Mapping[str, Channel]) -> Series | None:
        """The first uncertainty that is a standard deviation or a variance, as deviations."""
        for kind, uncert in kinds.items():
            if kind in _SPREADS:
                series = read_series(self._axis, uncert)
                with np.errstate(all="ignore"):
                    size = np.sqrt(series.mean) if kind in _VARIANCES else np.abs(series.mean)
                return replace(series, mean=size)
        return None

    def _draw_heat(self, channel: Channel, axes: Axes) -> None:
        calm(axes, grid=False)
        series = read_series(self._axis, channel)
        table = series.mean.T
        rows = len(table)
        if rows > _MOST_ROWS:
            edges = bin_edges(rows, _MOST_ROWS)
            with np.errstate(all="ignore"):
                sums = np.add.reduceat(np.nan_to_num(table), edges[:-1], axis=0)
                table = sums / np.diff(edges)[:, None]
        _say_about(axes, series)
        if series.is_empty:
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
        half = float(series.x[-1] - series.x[0]) / max(len(series.x) - 1, 1) / 2
        if half <= 0:
            return self._axis.low, self._axis.high
        return float(series.x[0]) - half, float(series.x[-1]) + half

    def _draw_errors(self, channel: Channel, omens: Omens, uncerts: Uncerts, axes: Axes) -> None:
        calm(axes)
        truth = read_series(self._axis, channel)
        keys: dict[str, Any] = {}
        for at, (model, omen) in enumerate(omens.items()):
            guess = read_series(self._axis, omen)
            count = min(len(guess.x), len(truth.x))
            if guess.mean.shape[1] != truth.mean.shape[1] or not count:
                continue
            off = np.abs(guess.mean[:count] - truth.mean[:count])
            axes.plot(truth.x[:count], row_means(off), color=colour(at), lw=1.0)
            keys.setdefault(plain(model, 18), key_line(colour(at)))
            spread = self._spread(uncerts.get(model, {}))
            if spread is not None:
                size = row_means(spread.mean)
                axes.fill_between(spread.x, 0, size, color=colour(at), alpha=0.14, lw=0)
                keys.setdefault("mean σ", key_band(colour(at)))
        axes.set_ylim(bottom=0)
        legend(axes, keys)

    def _draw_waveform(self, channel: Channel, axes: Axes) -> None:
        calm(axes)
        series = read_series(self._axis, channel, bins=2 * BINS)
        if series.mean.size:
            with np.errstate(all="ignore"):
                low, high = np.fmin.reduce(series.low, axis=1), np.fmax.reduce(series.high, axis=1)
            if series.is_exact and series.mean.shape[1] == 1:
                axes.plot(series.x, series.mean[:, 0], color=colour(7), lw=0.7)
            else:
                axes.fill_between(series.x, low, high, color=colour(7), alpha=0.8, lw=0.2)
        _say_about(axes, series)

    def _draw_counts(self, channel: RaggedChannel, axes: Axes) -> None:
        """How many items each step has."""
        calm(axes)
        start, stop, x, _ = self._axis.entries(channel)
        counts = np.diff(channel.offsets)[start:stop]
        if not len(counts):
            say(axes, _NOTHING)
            return
        if len(counts) > 2 * BINS:
            first = bin_edges(len(counts))[:-1]
            counts, x = np.maximum.reduceat(counts, first), x[first]
        mark = "." if len(counts) == 1 else None
        axes.fill_between(x, 0, counts, step="post", color=colour(7), alpha=0.25, lw=0)
        axes.step(x, counts, where="post", color=colour(7), lw=0.9, marker=mark)
        axes.set_ylim(bottom=0)
        axes.set_ylabel("items", fontsize=SMALL, color=QUIET)

    # --- residuals

    def residual(self, residual: Residual) -> Panel:
        """Signs as a raster, differences as a filled curve."""
        title = f"residual {residual.type}" + (f" · {residual.model}" if residual.model else "")
        if residual.type == DELTA_RESIDUAL:
            return Panel(title, 0.4, partial(self._draw_delta, residual), belongs=True)
        return Panel(title, 0.3, partial(self._draw_signs, residual), belongs=True)

    def _draw_signs(self, residual: Residual, axes: Axes) -> None:
        from matplotlib.colors import ListedColormap
        from matplotlib.patches import Patch

        calm(axes, grid=False)
        quiet_y(axes)
        axis = self._axis
        if axis.stop > axis.start:
            signs = residual.signs(self._episode.length)[axis.start : axis.stop].T
            half = (axis.high - axis.low) / signs.shape[1] / 2  # each sign around its step
            if signs.shape[1] > 2 * BINS:
                first = bin_edges(signs.shape[1])[:-1]
                signs = np.sign(np.add.reduceat(signs.astype(np.float64), first, axis=1))
            axes.imshow(
                signs,
                aspect="auto",
                interpolation="nearest",
                cmap=ListedColormap([_DIP, "#f4f5f6", _PEAK]),
                vmin=-1,
                vmax=1,
                extent=(axis.low - half, axis.high - half, len(signs) - 0.5, -0.5),
            )
        legend(axes, {"+1 peak": Patch(color=_PEAK), "−1 dip or straight": Patch(color=_DIP)})

    def _draw_delta(self, residual: Residual, axes: Axes) -> None:
        calm(axes)
        start, stop = self._axis.start, min(self._axis.stop, len(residual.data))
        assert residual.scales is not None
        window = residual.window
        first = start // window  # whole windows, so that scales and codes stay together
        codes = residual.data[first * window : stop]
        scales = residual.scales[first : first - (-len(codes) // window)]
        with np.errstate(all="ignore"):
            error = np.abs(dequantize_delta(codes, scales, window))[start - first * window :]
        size = row_means(error.reshape(len(error), -1))
        x = self._axis.positions[start:stop]
        if len(size) > 2 * BINS:
            edges = bin_edges(len(size))
            size, x = np.fmax.reduceat(size, edges[:-1]), x[(edges[:-1] + edges[1:]) // 2]
        axes.fill_between(x, 0, size, color=colour(3), alpha=0.35, lw=0)
        axes.plot(x, size, color=colour(3), lw=0.7)
        axes.set_ylim(bottom=0)
        legend(axes, {"mean |error|": key_line(colour(3))})

    # --- film strips

    def _frames(
        self, title: str, channel: Channel, detail: str = "", *, belongs: bool = False
    ) -> Panel:
        # As high as frames of this form need.
        height, width = picture_of(np.broadcast_to(0, channel.step_shape)).shape[:2]
        inches = min(max(self._width / _THUMBNAILS * height / max(width, 1), 0.5), 1.5)
        return Panel(title, float(inches), partial(self._draw_strip, channel), detail, belongs)

    def _draw_strip(self, channel: Channel, axes: Axes) -> None:
        """Some frames of a channel, each at its time."""
        calm(axes, grid=False)
        quiet_y(axes)
        axes.set_ylim(0, 1)
        axis = self._axis
        start, stop, x, word = axis.entries(channel)
        if stop <= start:
            say(axes, _NOTHING)
            return
        slot = (axis.high - axis.low) / _THUMBNAILS
        centres = axis.low + slot * (np.arange(_THUMBNAILS) + 0.5)
        nearest = np.abs(x[:, None] - centres[None, :]).argmin(axis=0)
        chosen = list(dict.fromkeys(nearest.tolist()))
        reading = channel.uncached()
        pictures = [_thumbnail(reading, start + at) for at in chosen]
        low, high = value_range(pictures)
        is_colour = pictures[0].ndim == 3
        look: dict[str, Any] = {} if is_colour else {"vmin": low, "vmax": high}
        look["cmap"] = "gray" if _is_grey(channel) else "viridis"
        box, figure = axes.get_position(), axes.figure
        wide = box.width * figure.get_figwidth() / _THUMBNAILS
        high_inches = box.height * figure.get_figheight()
        shown = None
        for place, (at, picture) in enumerate(zip(chosen, pictures, strict=True)):
            # Few frames stand where they belong, many side by side.
            middle = centres[place] if len(chosen) == _THUMBNAILS else float(x[at]) + slot / 2
            middle = min(max(middle, axis.low + slot / 2), axis.high - slot / 2)
            ratio = picture.shape[1] / picture.shape[0]
            half = slot / 2 * min(1.0, high_inches * ratio / wide) * 0.97
            tall = min(1.0, wide / ratio / high_inches) * 0.97
            shown = axes.imshow(
                np.clip((picture - low) / (high - low), 0, 1) if is_colour else picture,
                extent=(middle - half, middle + half, 0.5 - tall / 2, 0.5 + tall / 2),
                aspect="auto",
                interpolation="nearest" if max(picture.shape[:2]) < 32 else "antialiased",
                **look,
            )
            axes.text(
                middle - half + slot * 0.02,
                0.5 - tall / 2 + 0.03,
                f"{x[at]:.4g} s" if axis.unit == "s" else f"step {x[at]:.0f}",
                fontsize=SMALL - 1,
                color="white",
                va="bottom",
                bbox={"boxstyle": "square,pad=0.15", "fc": "#00000066", "ec": "none"},
            )
        axes.set_ylim(0, 1)
        if word:
            say(axes, word, at=0.93)
        if not is_colour:
            colour_bar(axes, shown)

    # --- words, labels, ends

    def _draw_words(self, channel: TextChannel, axes: Axes) -> None:
        """Each text from where it starts to where it changes."""
        start, stop, x, _ = self._axis.entries(channel)
        texts = channel.uncached().read_steps(start, stop) if stop > start else []
        runs: list[tuple[float, str]] = []
        for at, text in zip(x.tolist(), texts, strict=True):
            if not runs or text != runs[-1][1]:
                runs.append((at, text))
        ends = [at for at, _ in runs[1:]] + [self._axis.high]
        spans = [
            _Span(at, end, text, 0)
            for (at, text), end in zip(runs[:_MOST_WORDS], ends, strict=False)
            if text
        ]
        self._draw_spans(spans, 1, axes)
        if not runs:
            say(axes, _NOTHING)
        elif len(runs) > _MOST_WORDS:
            legend(axes, {f"first {_MOST_WORDS} of {len(runs)}": key_line(FAINT)})

    def intervals(self, title: str, intervals: Intervals) -> Panel:
        """Labelled spans, in as many rows as overlap."""
        spans: list[_Span] = []
        ends: list[float] = []
        detail = f"label · {len(intervals)} interval{'' if len(intervals) == 1 else 's'}"
        for item in sorted(intervals, key=lambda item: (item.start, item.end)):
            low, high = (self._position(at, intervals.unit) for at in (item.start, item.end))
            if low is None or high is None:
                detail += " · in ns, but the episode has no clock"
                break
            if high < self._axis.low or low > self._axis.high:
                continue
            row = next((n for n, end in enumerate(ends) if end <= low), len(ends))
            ends[row : row + 1] = [high]
            spans.append(_Span(low, high, item.text, row))
        rows = max(1, len(ends))
        height = 0.1 + 0.22 * min(rows, 8)
        return Panel(title, height, partial(self._draw_spans, spans, rows), detail)

    def _position(self, at: int, unit: str) -> float | None:
        if unit == "ns":
            return self._axis.seconds(at)
        return float(self._axis.positions[min(max(at, 0), len(self._axis.positions) - 1)])

    def _draw_spans(self, spans: Sequence[_Span], rows: int, axes: Axes) -> None:
        calm(axes, grid=False)
        quiet_y(axes)
        axes.set_ylim(rows, 0)
        texts = dict.fromkeys(span.text for span in spans)
        colours = {text: colour(number) for number, text in enumerate(texts)}
        axis = self._axis
        whole = max(axis.high - axis.low, 1e-12)
        for low, high, text, row in spans:
            left, right = max(low, axis.low), min(high, axis.high)
            look: dict[str, Any] = {"color": colours[text], "lw": 0, "alpha": 0.28}
            axes.barh(row + 0.5, max(right - left, whole / 800), left=left, height=0.82, **look)
            axes.plot([left, left], [row + 0.09, row + 0.91], color=colours[text], lw=1.2)
            room = int((right - left) / whole * self._width * 18)  # letters of this size in an inch
            if room >= 3:
                look = {"fontsize": SMALL, "color": INK, "va": "center"}
                axes.text(left + whole * 0.004, row + 0.52, plain(text, room), **look)

    def rewards(self, *, reward: bool, ends: bool) -> Panel:
        """The reward, and how the episode ended; or one of them."""
        shown = self._episode.rewards if reward else None
        draw = partial(self._draw_rewards, shown, ends)
        if shown is None:
            return Panel("ends", 0.3, draw)
        return Panel("reward", 0.8, draw, describe(shown))

    def _draw_rewards(self, reward: Channel | None, ends: bool, axes: Axes) -> None:
        calm(axes)
        keys: dict[str, Any] = {}
        if reward is not None:
            series = read_series(self._axis, reward)
            x, y = series.line(0) if series.mean.shape[1] else (series.x, series.x)
            axes.fill_between(x, 0, y, color=colour(2), alpha=0.15, lw=0)
            axes.plot(x, y, color=colour(2), lw=1.0, marker="." if len(x) == 1 else None)
            keys["reward"] = key_line(colour(2))
        else:
            quiet_y(axes)
            axes.set_ylim(0, 1)
        axis, episode = self._axis, self._episode
        for word, flags, ink, dash in (
            ("terminated", episode.terminations, END, "-"),
            ("truncated", episode.truncations, CUT, (0, (2, 1.5))),
        ):
            if flags is None or not ends:
                continue
            where = np.flatnonzero(flags.uncached().data[axis.start : axis.stop])
            for x in axis.positions[axis.start + where[:_MOST_ENDS]].tolist():
                axes.axvline(x, color=ink, lw=1.0, ls=dash)
                top = axes.get_xaxis_transform()
                axes.plot([x], [1], marker="v", ms=4, color=ink, clip_on=False, transform=top)
            if where.size:
                many = f" ({where.size} times)" if where.size > 1 else ""
                keys[word + many] = key_line(ink, dash)
        legend(axes, keys)


def _say_about(axes: Axes, series: Series) -> None:
    if series.is_empty:
        say(axes, _NOTHING)
    elif series.word:
        say(axes, series.word, at=0.93)


def _thumbnail(channel: Channel, entry: int) -> NDArray[np.float64]:
    """One frame as [H, W] or [H, W, 3], small enough."""
    frame = channel.dtype_name.as_numbers(channel.read_steps(entry, entry + 1))[0]
    return picture_of(frame, _THUMBNAIL_PIXELS)


def _is_grey(channel: Channel) -> bool:
    return channel.modality != Modality.DEPTH and (
        channel.dtype_name == "u8" or channel.modality is not None
    )
