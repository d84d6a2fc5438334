"""Panels: one for each thing that is shown, each drawn into axes that share the time in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from wshard.channels import Modality
from wshard.checks.values import as_numbers
from wshard.names import DELTA_RESIDUAL
from wshard.plots.series import BINS, read_series
from wshard.plots.style import (
    CUT,
    END,
    FAINT,
    INK,
    QUIET,
    SMALL,
    calm,
    colour,
    plain,
    quiet_y,
)
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
_THUMBNAILS: Final = 8
_THUMBNAIL_PIXELS: Final = 160
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
        self, axes: Any, around: Series, kinds: Mapping[str, Channel]
    ) -> list[tuple[str, Any]]:  # noqa: ANN401 - matplotlib's axes
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
                extent=(self.clock.low_s, self.clock.high_s, len(signs) - 0.5, -0.5),
            )
        legend_lines(
            axes,
            0,
            [
                ("+1 bends down", {"patch": "#e0a98f"}),
                ("−1 bends up", {"patch": "#9db7d3"}),
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
        height, width, _ = picture_axes(channel.shape)
        tall = self.width / _THUMBNAILS * height / max(width, 1)
        return Panel(
            title,
            float(min(max(tall, 0.5), 1.5)),
            lambda axes: self._strip(axes, channel),
            "" if belongs else describe(channel),
            belongs,
        )

    def _strip(self, axes: Any, channel: Channel) -> None:  # noqa: ANN401 - matplotlib's axes
        calm(axes, grid=False)
        quiet_y(axes)
        axes.set_ylim(0, 1)
        start, stop, seconds, moved = self.clock.entries(self.episode, channel)
        if stop <= start:
            say(axes, "nothing to see in this span")
            return
        clock = self.clock
        slot = (clock.high_s - clock.low_s) / _THUMBNAILS
        centres = clock.low_s + slot * (np.arange(_THUMBNAILS) + 0.5)
        nearest = np.abs(seconds[:, None] - centres[None, :]).argmin(axis=0)
        chosen = list(dict.fromkeys(nearest.tolist()))
        reading = channel._shallow()
        pictures = [self._thumbnail(reading, start + at) for at in chosen]
        low, high = _range_of(pictures)
        is_colour = pictures[0].ndim == 3
        box = axes.get_position()
        figure = axes.figure
        inches = (
            box.width * figure.get_figwidth() / _THUMBNAILS,
            box.height * figure.get_figheight(),
        )
        shown = None
        # Few frames stand where they belong, many side by side.
        spread = len(chosen) == _THUMBNAILS
        for place, (at, picture) in enumerate(zip(chosen, pictures, strict=True)):
            middle = centres[place] if spread else float(seconds[at]) + slot / 2
            middle = min(max(middle, clock.low_s + slot / 2), clock.high_s - slot / 2)
            ratio = picture.shape[1] / picture.shape[0]
            half = slot / 2 * min(1.0, inches[1] * ratio / inches[0]) * 0.97
            tall = min(1.0, inches[0] / ratio / inches[1]) * 0.97
            shown = axes.imshow(
                picture if not is_colour else np.clip((picture - low) / (high - low), 0, 1),
                extent=(middle - half, middle + half, 0.5 - tall / 2, 0.5 + tall / 2),
                aspect="auto",
                interpolation="nearest" if max(picture.shape[:2]) < 32 else "antialiased",
                cmap="gray" if _is_grey(channel) else "viridis",
                vmin=None if is_colour else low,
                vmax=None if is_colour else high,
            )
            axes.plot([float(seconds[at])], [0.0], marker="^", ms=2.5, color=QUIET, clip_on=False)
        axes.set_ylim(0, 1)
        if moved:
            say(axes, "its clock lies outside the episode: drawn from the left edge on", at=0.93)
        if not is_colour and shown is not None:
            colour_bar(axes, shown)

    @staticmethod
    def _thumbnail(channel: Channel, entry: int) -> Any:  # noqa: ANN401 - an array
        """One frame as [H, W] or [H, W, 3], small enough."""
        height, width, channels_first = picture_axes(channel.shape)
        frame = as_numbers(channel.read_steps(entry, entry + 1), channel.dtype)[0]
        with np.errstate(all="ignore"):
            numbers = frame.astype(np.float64)
        if len(channel.shape) > 3:
            numbers = numbers.reshape(-1, *channel.shape[-3:])[0]
        if numbers.ndim == 3:
            numbers = np.moveaxis(numbers, 0, -1) if channels_first else numbers
            numbers = numbers[..., :3] if numbers.shape[-1] >= 3 else numbers[..., 0]
        step = max(1, -(-max(height, width) // _THUMBNAIL_PIXELS))
        return numbers[::step, ::step]

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
            f"{len(intervals)} intervals",
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
            room = int((right - left) / whole * self.width * 16)  # letters of this size in an inch
            if room >= 3:
                axes.text(
                    left + whole * 0.004,
                    row + 0.52,
                    plain(text, room),
                    fontsize=SMALL,
                    color=INK,
                    va="center",
                )

    def rewards(self) -> Panel:
        """The reward, and how the episode ended."""
        episode = self.episode
        title = "reward" if episode.rewards is not None else "ends"
        detail = "" if episode.rewards is None else describe(episode.rewards)
        height = 0.8 if episode.rewards is not None else 0.3
        return Panel(title, height, self._rewards, detail)

    def _rewards(self, axes: Any) -> None:  # noqa: ANN401 - matplotlib's axes
        episode, clock = self.episode, self.clock
        calm(axes)
        styles: list[tuple[str, Any]] = []
        if episode.rewards is not None:
            series = self._read(episode.rewards)
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
            if flags is None:
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


# --- parts of panels


def describe(channel: Channel) -> str:
    """What is known about a channel, in a few words."""
    parts = [
        f"{channel.dtype} [{', '.join(map(str, channel.shape))}]"
        if channel.layout != "text"
        else "text"
    ]
    if channel.layout == "ragged":
        parts[0] += " ragged"
    if channel.unit:
        parts.append(plain(channel.unit, 20))
    if channel.has_own_clock:
        rate = f" {channel.sampling_rate_hz:g} Hz" if channel.sampling_rate_hz else ""
        parts.append(f"own clock{rate}, {channel.length} entries")
    if channel.inferred:
        parts.append("guessed")
    if channel.lossy is not None:
        parts.append(f"lossy {plain(str(channel.lossy.get('codec', '')), 12)}".rstrip())
    return " · ".join(parts)


def picture_axes(shape: tuple[int, ...]) -> tuple[int, int, bool]:
    """Height and width of a frame, and whether its colours come first."""
    last = shape[-3:]
    if len(last) == 3 and last[2] > 4 and last[0] <= 4:
        return last[1], last[2], True
    if len(last) == 3:
        return last[0], last[1], False
    return last[0], last[1], False


def _is_grey(channel: Channel) -> bool:
    return channel.modality != Modality.DEPTH and (
        channel.dtype == "u8" or channel.modality is not None
    )


def _range_of(pictures: Sequence[Any]) -> tuple[float, float]:
    """What counts as black and white in all of them."""
    finite = [picture[np.isfinite(picture)] for picture in pictures]
    low = min((float(values.min()) for values in finite if values.size), default=0.0)
    high = max((float(values.max()) for values in finite if values.size), default=1.0)
    if pictures[0].ndim == 3:
        # Colours have a range of their own: 0 to 1, or 0 to 255.
        low, high = min(low, 0.0), (255.0 if high > 1.0 else 1.0)
    return low, high if high > low else low + 1.0


def row_means(table: Any) -> Any:  # noqa: ANN401 - arrays
    """The mean of each row without its NaN; NaN where nothing is left."""
    known = np.isfinite(table)
    with np.errstate(all="ignore"):
        return np.where(known, table, 0.0).sum(axis=1) / known.sum(axis=1)


def say(axes: Any, text: str, *, at: float = 0.5) -> None:  # noqa: ANN401 - matplotlib's axes
    """A quiet word in the middle of a panel."""
    axes.text(
        0.5,
        at,
        text,
        transform=axes.transAxes,
        ha="center",
        va="center",
        fontsize=SMALL,
        color=QUIET,
    )


def colour_bar(axes: Any, picture: Any) -> None:  # noqa: ANN401 - matplotlib's objects
    """A small bar to the right of a panel."""
    inset = axes.inset_axes([1.012, 0.1, 0.008, 0.8])
    bar = axes.figure.colorbar(picture, cax=inset)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=SMALL - 0.5, colors=QUIET, length=1.5, width=0.4)
    bar.ax.locator_params(nbins=3)


def legend_lines(axes: Any, dimensions: int, styles: Sequence[tuple[str, Any]]) -> None:  # noqa: ANN401 - matplotlib's axes
    """The legend, right of the data: dimensions by colour, everything else by style."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    common: dict[str, Any] = {
        "frameon": False,
        "fontsize": SMALL,
        "borderaxespad": 0.0,
        "borderpad": 0.0,
        "labelcolor": INK,
        "handletextpad": 0.4,
        "labelspacing": 0.25,
        "columnspacing": 0.8,
    }
    top = 1.0
    if dimensions > 1:
        handles = [Line2D([], [], color=colour(n), lw=1.6) for n in range(dimensions)]
        names = [str(n) for n in range(dimensions)]
        first = axes.legend(
            handles,
            names,
            loc="upper left",
            bbox_to_anchor=(1.012, top),
            ncols=4,
            handlelength=0.9,
            **common,
        )
        axes.add_artist(first)
        top -= 0.17 * -(-dimensions // 4) + 0.04
    if not styles:
        return
    handles = []
    names = []
    seen: set[str] = set()
    for name, style in styles:
        if name in seen:
            continue
        seen.add(name)
        names.append(name)
        ink = style.get("color", QUIET)
        if "patch" in style:
            handles.append(Patch(color=style["patch"]))
        elif style.get("band"):
            handles.append(Patch(color=ink, alpha=0.2, lw=0))
        else:
            handles.append(
                Line2D([], [], color=ink if style else FAINT, lw=1.2, ls=style.get("ls", "-"))
            )
    axes.legend(
        handles, names, loc="upper left", bbox_to_anchor=(1.012, top), handlelength=1.8, **common
    )
