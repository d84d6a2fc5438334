"""Panels: one for each thing that is shown, drawn into axes that share the time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from shard_format.display import picture_of, value_range
from shard_format.errors import MissingExtra, UnknownCodec
from wshard._lanes import DELTA_RESIDUAL
from wshard.multimodal import is_frames
from wshard.plot._predictions import LEVELS, SPREADS, as_deviations, measure
from wshard.plot._series import BINS, bin_edges, numbers_of, read_series, row_means
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
    dash,
    describe,
    key_band,
    key_line,
    legend,
    legend_inches,
    model_line,
    plain,
    quiet_y,
    say,
)
from wshard.residual import dequantize_delta
from wshard.types import Modality, RaggedChannel, TextChannel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from wshard.plot._predictions import Errors, Prediction
    from wshard.plot._series import Series, TimeAxis
    from wshard.plot._style import Axes
    from wshard.types import Channel, Episode, Intervals, Residual

    Keys = list[tuple[str, Any]]
    Measured = list[tuple[Prediction, Errors]]

# More dimensions than this make a heat map.
_MOST_LINES: Final = 8
_MOST_DIMENSIONS: Final = 16
_MOST_ROWS: Final = 256
_MOST_WORDS: Final = 60
_MOST_ENDS: Final = 200
# Of how many models differences are drawn as heat maps, and frames as strips.
_MOST_HEATS: Final = 3
_MOST_STRIPS: Final = 6
_THUMBNAILS: Final = 8
_THUMBNAIL_PIXELS: Final = 160
_SHORT_LABEL: Final = 14
_PEAK, _DIP = "#e0a98f", "#9db7d3"
_NOTHING: Final = "nothing to see in this span"
_DIFFERENCE: Final = "prediction − truth"


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
    is_apart: bool = False
    """Whether its horizontal axis is not the time."""


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
        dims: the dimensions to draw; None for all.
        per_dim: whether each dimension has a panel; None for where several models predict several dimensions.
    """

    def __init__(
        self,
        episode: Episode,
        axis: TimeAxis,
        width_inches: float,
        dims: Sequence[int] | None = None,
        per_dim: bool | None = None,
    ) -> None:
        self._episode = episode
        self._axis = axis
        self._width = width_inches
        self._dims = dims
        self._per_dim = per_dim

    def channel(
        self,
        title: str,
        channel: Channel,
        predictions: Sequence[Prediction] = (),
        own: Mapping[str, Channel] | None = None,
    ) -> list[Panel]:
        """The panels of a channel, with its predictions; `own` are uncertainties of the channel itself."""
        detail = describe(channel)
        if isinstance(channel, TextChannel):
            return [Panel(title, 0.34, partial(self._draw_words, channel), detail)]
        if isinstance(channel, RaggedChannel):
            return [Panel(title, 0.7, partial(self._draw_counts, channel), detail)]
        if is_frames(channel):
            if len(predictions) > _MOST_STRIPS:
                detail += f" · predictions of {_MOST_STRIPS} of {len(predictions)} models"
            return [
                self._frames(title, channel, partial(self._draw_strip, channel), detail),
                *(
                    panel
                    for prediction in predictions[:_MOST_STRIPS]
                    for panel in self._predicted_frames(channel, prediction)
                ),
            ]
        if channel.modality == Modality.AUDIO:
            return [Panel(title, 0.7, partial(self._draw_waveform, channel), detail)]
        dims = self.dims_of(channel)
        if not dims:
            return []
        per_dim = self._per_dim
        if per_dim is None:
            per_dim = len(predictions) > 1 and 1 < len(dims) <= _MOST_LINES
        if per_dim:
            return self._by_dimension(title, channel, dims, predictions, own or {})
        if len(dims) > _MOST_LINES:
            return self._wide(title, channel, dims, predictions)
        draw = partial(self._draw_lines, channel, dims, predictions, own or {}, has_keys=True)
        strips = self._differences(channel, dims, predictions)
        room = sum(strip.height for strip in strips)
        height = max(1.15, legend_inches(len(predictions) + 2, len(dims)) - room)
        return [Panel(title, height, draw, detail), *strips]

    def dims_of(self, channel: Channel) -> list[int]:
        """Which dimensions of a channel are drawn; none of pictures, words and ragged data."""
        if isinstance(channel, RaggedChannel) or is_frames(channel):
            return []
        size = prod(channel.step_shape)
        if self._dims is None:
            return list(range(size)) or [0]
        return [number for number in self._dims if number < size]

    # --- numbers

    def _by_dimension(
        self,
        title: str,
        channel: Channel,
        dims: list[int],
        predictions: Sequence[Prediction],
        own: Mapping[str, Channel],
    ) -> list[Panel]:
        """A panel for each dimension, with what the models predicted and how far off they were."""
        detail, panels = describe(channel), list[Panel]()
        if len(dims) > _MOST_DIMENSIONS:
            detail += f" · {_MOST_DIMENSIONS} of {len(dims)} dimensions: choose others with dims"
        for number in dims[:_MOST_DIMENSIONS]:
            first = not panels
            draw = partial(self._draw_lines, channel, [number], predictions, own, has_keys=first)
            index = ", ".join(map(str, np.unravel_index(number, channel.step_shape or (1,))))
            name = f"{title}[{index}]" if channel.step_shape else title
            panels.append(Panel(name, 0.66, draw, detail if first else "", belongs=not first))
            panels += self._differences(channel, [number], predictions)
        room = sum(panel.height for panel in panels) - 0.66
        height = max(0.66, legend_inches(len(predictions) + 2) - room)
        return [replace(panels[0], height=height), *panels[1:]]

    def _differences(
        self, channel: Channel, dims: list[int], predictions: Sequence[Prediction]
    ) -> list[Panel]:
        if not predictions:
            return []
        draw = partial(self._draw_difference, channel, dims, predictions)
        return [Panel(_DIFFERENCE, 0.36, draw, belongs=True)]

    def _wide(
        self, title: str, channel: Channel, dims: list[int], predictions: Sequence[Prediction]
    ) -> list[Panel]:
        """Many dimensions: heat maps, and the mean error of each model."""
        detail = describe(channel)
        panels = [Panel(title, 1.15, partial(self._draw_heat, channel, dims, None), detail)]
        if predictions:
            draw = partial(self._draw_mean_errors, channel, dims, predictions)
            height = max(0.55, legend_inches(len(predictions) + 1))
            panels.append(Panel("mean |truth − prediction|", height, draw, belongs=True))
        single = [one for one in predictions if one.omen.horizon is None]
        for one in single[:_MOST_HEATS]:
            heat = partial(self._draw_heat, one.omen, dims, channel)
            panels.append(Panel(f"{_DIFFERENCE} · {one.model}", 0.7, heat, belongs=True))
        return panels

    def _draw_lines(
        self,
        channel: Channel,
        dims: list[int],
        predictions: Sequence[Prediction],
        own: Mapping[str, Channel],
        axes: Axes,
        *,
        has_keys: bool,
    ) -> None:
        calm(axes)
        truth = read_series(self._axis, channel)
        truth = truth.chosen([number for number in dims if number < truth.mean.shape[1]])
        is_single = len(dims) == 1
        plain_truth = is_single and (bool(predictions) or self._per_dim is True)
        keys: Keys = [("truth", key_line(INK))] if is_single and predictions else []
        for number in range(truth.mean.shape[1]):
            x, y = truth.line(number)
            mark = "." if len(x) == 1 else None
            width = 1.0 if truth.is_exact else 0.7
            ink = INK if plain_truth else colour(number)
            axes.plot(x, y, color=ink, lw=width, marker=mark, ms=3)
        has_band = self._draw_band(axes, truth, own, dims, INK if plain_truth else None)
        for one in predictions:
            line = model_line(one.number) if is_single else {"ls": dash(one.number)}
            if one.omen.horizon is not None:
                for x, values in self._chunks(channel, one, dims, is_error=False):
                    self._draw_chunk(axes, x, values, line)
            else:
                guess = read_series(self._axis, one.omen).chosen(dims)
                for number in range(guess.mean.shape[1]):
                    look = {"color": colour(number), **line, "lw": 0.9, "alpha": 0.95}
                    axes.plot(guess.x, guess.mean[:, number], **look)
                around = colour(one.number) if is_single else None
                has_band |= self._draw_band(axes, guess, one.kinds, dims, around)
            # As much as the margin has room for.
            words = f"predicted: {one.label}" if len(one.label) <= _SHORT_LABEL else one.label
            ink = colour(one.number) if is_single else QUIET
            keys.append((words, key_line(ink, dash(one.number))))
        if has_band:
            keys.append(("±1σ", key_band()))
        _say_about(axes, truth)
        _unit(axes, channel)
        if has_keys:
            legend(axes, keys, dims)

    def _draw_band(
        self,
        axes: Axes,
        around: Series,
        kinds: Mapping[str, Channel],
        dims: list[int],
        ink: str | None,
    ) -> bool:
        """Draw one standard deviation around a line; returns whether there is one."""
        spread = self._spread(kinds)
        if spread is None or len(spread.x) != len(around.x) or not spread.mean.shape[1]:
            return False
        for at in range(around.mean.shape[1]):
            width = spread.mean[:, min(dims[at], spread.mean.shape[1] - 1)]
            low, high = around.mean[:, at] - width, around.mean[:, at] + width
            axes.fill_between(around.x, low, high, color=ink or colour(at), alpha=0.16, lw=0)
        return True

    def _spread(self, kinds: Mapping[str, Channel]) -> Series | None:
        """The first uncertainty that is a standard deviation or a variance, as deviations."""
        for kind, uncert in kinds.items():
            if kind in SPREADS and not isinstance(uncert, RaggedChannel):
                series = read_series(self._axis, uncert)
                return replace(series, mean=as_deviations(kind, series.mean))
        return None

    def _chunks(
        self, channel: Channel, one: Prediction, dims: list[int], *, is_error: bool
    ) -> Iterator[tuple[NDArray[Any], NDArray[np.float64]]]:
        """Positions [k] and values [k, D] of chunks: what was predicted at a step for it and those after it."""
        start, stop, x, _ = self._axis.entries(channel)
        for at in one.chunk_starts(start, min(stop, one.omen.length)):
            last = min(at + one.horizon, stop)
            values = one.values(at, at + 1)[0, : last - at][:, dims]
            if is_error:
                values = values - numbers_of(channel, at, last)[:, dims]
            yield x[at - start : last - start], values

    def _draw_chunk(
        self, axes: Axes, x: NDArray[Any], values: NDArray[np.float64], line: dict[str, Any]
    ) -> None:
        for number in range(values.shape[1]):
            look = {"color": colour(number), **line, "lw": 0.8, "alpha": 0.9}
            axes.plot(x, values[:, number], **look)
            axes.plot(x[:1], values[:1, number], ".", ms=2.5, color=look["color"])

    def _draw_difference(
        self, channel: Channel, dims: list[int], predictions: Sequence[Prediction], axes: Axes
    ) -> None:
        """Prediction minus truth, around a line at 0."""
        calm(axes)
        axes.axhline(0, color=QUIET, lw=0.6)
        for one in predictions:
            line = model_line(one.number) if len(dims) == 1 else {"ls": dash(one.number)}
            if one.omen.horizon is not None:
                for x, values in self._chunks(channel, one, dims, is_error=True):
                    self._draw_chunk(axes, x, values, line)
            elif _has_other_times(channel, one.omen):
                say(axes, f"{one.label} has times of its own: no difference")
            else:
                off = read_series(self._axis, one.omen, minus=channel).chosen(dims)
                for number in range(off.mean.shape[1]):
                    look = {"color": colour(number), **line, "lw": 0.8}
                    axes.plot(*off.line(number), **look)
        axes.locator_params(axis="y", nbins=3)
        _unit(axes, channel)

    def _draw_heat(
        self, channel: Channel, dims: list[int], minus: Channel | None, axes: Axes
    ) -> None:
        calm(axes, grid=False)
        series = read_series(self._axis, channel, minus=minus).chosen(dims)
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
        if minus is not None:
            high = max(abs(low), abs(high))
            low = -high
        picture = axes.imshow(
            table,
            aspect="auto",
            interpolation="nearest",
            origin="lower",
            cmap="cividis" if minus is None else "RdBu_r",
            extent=(*self._edges(series), -0.5, rows - 0.5),
            vmin=low,
            vmax=high if high > low else low + 1,
        )
        axes.set_ylabel("dimension", fontsize=SMALL, color=QUIET)
        colour_bar(axes, picture, plain((minus or channel).unit, 10))

    def _edges(self, series: Series) -> tuple[float, float]:
        """Where a picture of a series starts and ends: half an entry beyond its times."""
        half = float(series.x[-1] - series.x[0]) / max(len(series.x) - 1, 1) / 2
        if half <= 0:
            return self._axis.low, self._axis.high
        return float(series.x[0]) - half, float(series.x[-1]) + half

    def _draw_mean_errors(
        self, channel: Channel, dims: list[int], predictions: Sequence[Prediction], axes: Axes
    ) -> None:
        calm(axes)
        keys: Keys = []
        has_band = False
        for one in predictions:
            line = model_line(one.number)
            keys.append((one.label, key_line(colour(one.number), dash(one.number))))
            if one.omen.horizon is not None:
                for x, values in self._chunks(channel, one, dims, is_error=True):
                    axes.plot(x, row_means(np.abs(values)), **line, lw=0.8)
                continue
            if _has_other_times(channel, one.omen):
                continue
            off = read_series(self._axis, one.omen, minus=channel).chosen(dims)
            axes.plot(
                off.x, row_means(np.maximum(np.abs(off.low), np.abs(off.high))), **line, lw=1.0
            )
            spread = self._spread(one.kinds)
            if spread is not None:
                size = row_means(spread.mean)
                axes.fill_between(spread.x, 0, size, color=line["color"], alpha=0.14, lw=0)
                has_band = True
        if has_band:
            keys.append(("mean σ", key_band()))
        axes.set_ylim(bottom=0)
        _unit(axes, channel)
        legend(axes, keys)

    # --- how good predictions are

    def errors(self, title: str, channel: Channel, predictions: Sequence[Prediction]) -> Panel:
        """RMSE by dimension and by steps ahead, and the calibration of uncertainties."""
        draw = partial(self._draw_errors, channel, predictions)
        height = max(1.6, legend_inches(len(predictions) + 1))
        return Panel(f"{title}: errors", height, draw, "over the time that is shown", is_apart=True)

    def _draw_errors(self, channel: Channel, predictions: Sequence[Prediction], axes: Axes) -> None:
        axes.set_axis_off()
        dims = self.dims_of(channel)
        found = [(one, measure(self._axis, channel, one, dims)) for one in predictions]
        measured = [(one, errors) for one, errors in found if errors is not None]
        if not measured:
            say(axes, "no entries at the same times")
            return
        draws = [partial(_draw_rmse, measured, dims, channel.unit)]
        if any(len(errors.ahead) > 1 for _, errors in measured):
            draws.append(partial(_draw_ahead, measured, channel.unit))
        if any(errors.inside is not None for _, errors in measured):
            draws.append(partial(_draw_calibration, measured))
        inches = axes.get_position().height * axes.figure.get_figheight()
        bottom, room = 0.4 / inches, 1 / max(len(draws), 2)
        for at, draw in enumerate(draws):
            inset = axes.inset_axes((at * room, bottom, room - 0.09, 1 - bottom - 0.2 / inches))
            calm(inset)
            draw(inset)
        keys = [("RMSE over all", key_line("none"))]
        for one, errors in measured:
            text = f"{errors.total:.3g}  {one.label}"
            keys.append((text, key_line(colour(one.number), dash(one.number))))
        legend(axes, keys, left=len(draws) * room - 0.06)

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
        legend(axes, [("+1 peak", Patch(color=_PEAK)), ("−1 dip or straight", Patch(color=_DIP))])

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
        legend(axes, [("mean |error|", key_line(colour(3)))])

    # --- film strips

    def _frames(
        self,
        title: str,
        channel: Channel,
        draw: Callable[[Any], None],
        detail: str = "",
        *,
        belongs: bool = False,
    ) -> Panel:
        # As high as frames of this form need.
        height, width = picture_of(np.broadcast_to(0, channel.step_shape)).shape[:2]
        inches = min(max(self._width / _THUMBNAILS * height / max(width, 1), 0.5), 1.5)
        return Panel(title, float(inches), draw, detail, belongs)

    def _predicted_frames(self, channel: Channel, one: Prediction) -> list[Panel]:
        """What a model predicted, and where that differs from what was seen."""
        ahead = f" · {one.horizon - 1} steps ahead" if one.omen.horizon is not None else ""
        name = f"{one.model}{ahead}"
        drawn = [(f"predicted · {name}", partial(self._draw_predicted, channel, one, False))]
        if not _has_other_times(channel, one.omen):
            draw = partial(self._draw_predicted, channel, one, True)
            drawn.append((f"|prediction − truth| · {name}", draw))
        return [self._frames(title, channel, draw, belongs=True) for title, draw in drawn]

    def _chosen(self, channel: Channel) -> tuple[list[int], list[float], str]:
        """Some entries of a channel that are spread over the time, their positions, and a word about these."""
        start, stop, x, word = self._axis.entries(channel)
        if stop <= start:
            return [], [], word
        nearest = np.abs(x[:, None] - self._centres()[None, :]).argmin(axis=0)
        chosen = list(dict.fromkeys(nearest.tolist()))
        return [start + at for at in chosen], [float(x[at]) for at in chosen], word

    def _centres(self) -> NDArray[np.float64]:
        """Where the middle of each place for a frame is."""
        slot = (self._axis.high - self._axis.low) / _THUMBNAILS
        places = np.arange(_THUMBNAILS, dtype=np.float64) + 0.5
        return np.asarray(self._axis.low + slot * places, np.float64)

    def _draw_strip(self, channel: Channel, axes: Axes) -> None:
        """Some frames of a channel, each at its time."""
        entries, times, word = self._chosen(channel)
        reading = channel.uncached()
        try:
            pictures = [_thumbnail(reading, entry) for entry in entries]
        except (MissingExtra, UnknownCodec):
            say(axes, f"{channel.content_type}: no decoder is installed")
            return
        cmap = "gray" if _is_grey(channel) else "viridis"
        self._draw_pictures(axes, times, pictures, cmap)
        if word:
            say(axes, word, at=0.93)

    def _draw_predicted(
        self, channel: Channel, one: Prediction, is_error: bool, axes: Axes
    ) -> None:
        """The predictions of the frames that are shown of a channel, or how far they are from these."""
        own = _has_other_times(channel, one.omen)
        entries, times, _ = self._chosen(one.omen if own else channel)
        reading, ahead = channel.uncached(), one.horizon - 1
        pictures, at = list[Any](), list[float]()
        for entry, time in zip(entries, times, strict=True):
            if not 0 <= entry - ahead < one.omen.length:
                continue
            guess = _thumbnail(one.omen, entry - ahead, ahead if one.omen.horizon else None)
            if is_error:
                truth = _thumbnail(reading, entry)
                # One of the two may be in bytes, the other from 0 to 1.
                if channel.dtype_name == "u8" and one.omen.dtype_name.is_float:
                    guess = guess * 255 if np.nanmax(np.abs(guess), initial=0) <= 2 else guess
                off = np.abs(guess - truth)
                guess = off.mean(axis=-1) if off.ndim == 3 else off
            pictures.append(guess)
            at.append(time)
        cmap = "gray" if _is_grey(one.omen) else "viridis"
        self._draw_pictures(axes, at, pictures, "magma" if is_error else cmap)

    def _draw_pictures(
        self, axes: Axes, times: list[float], pictures: list[NDArray[np.float64]], cmap: str
    ) -> None:
        calm(axes, grid=False)
        quiet_y(axes)
        axes.set_ylim(0, 1)
        if not pictures:
            say(axes, _NOTHING)
            return
        axis, centres = self._axis, self._centres()
        slot = (axis.high - axis.low) / _THUMBNAILS
        low, high = value_range(pictures)
        if cmap == "magma":
            low = 0.0
        is_colour = pictures[0].ndim == 3
        look: dict[str, Any] = {"cmap": cmap} | ({} if is_colour else {"vmin": low, "vmax": high})
        box, figure = axes.get_position(), axes.figure
        wide = box.width * figure.get_figwidth() / _THUMBNAILS
        high_inches = box.height * figure.get_figheight()
        shown = None
        for place, (time, picture) in enumerate(zip(times, pictures, strict=True)):
            # Few frames stand where they belong, many side by side.
            middle = centres[place] if len(times) == _THUMBNAILS else time + slot / 2
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
                f"{time:.4g} s" if axis.unit == "s" else f"step {time:.0f}",
                fontsize=SMALL - 1,
                color="white",
                va="bottom",
                bbox={"boxstyle": "square,pad=0.15", "fc": "#00000066", "ec": "none"},
            )
        axes.set_ylim(0, 1)
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
            legend(axes, [(f"first {_MOST_WORDS} of {len(runs)}", key_line(FAINT))])

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
        keys: Keys = []
        if reward is not None:
            series = read_series(self._axis, reward)
            x, y = series.line(0) if series.mean.shape[1] else (series.x, series.x)
            axes.fill_between(x, 0, y, color=colour(2), alpha=0.15, lw=0)
            axes.plot(x, y, color=colour(2), lw=1.0, marker="." if len(x) == 1 else None)
            keys.append(("reward", key_line(colour(2))))
            _unit(axes, reward)
        else:
            quiet_y(axes)
            axes.set_ylim(0, 1)
        axis, episode = self._axis, self._episode
        for word, flags, ink, dashes in (
            ("terminated", episode.terminations, END, "-"),
            ("truncated", episode.truncations, CUT, (0, (2, 1.5))),
        ):
            if flags is None or not ends:
                continue
            where = np.flatnonzero(flags.uncached().data[axis.start : axis.stop])
            for x in axis.positions[axis.start + where[:_MOST_ENDS]].tolist():
                axes.axvline(x, color=ink, lw=1.0, ls=dashes)
                top = axes.get_xaxis_transform()
                axes.plot([x], [1], marker="v", ms=4, color=ink, clip_on=False, transform=top)
            if where.size:
                many = f" ({where.size} times)" if where.size > 1 else ""
                keys.append((word + many, key_line(ink, dashes)))
        legend(axes, keys)


def _say_about(axes: Axes, series: Series) -> None:
    if series.is_empty:
        say(axes, _NOTHING)
    elif series.word:
        say(axes, series.word, at=0.93)


def _unit(axes: Axes, channel: Channel) -> None:
    """Name the unit of a vertical axis."""
    if channel.unit:
        axes.set_ylabel(plain(channel.unit, 12), fontsize=SMALL, color=QUIET)


def _has_other_times(channel: Channel, omen: Channel) -> bool:
    """Whether entries of a prediction belong to other times than those of its channel."""
    if channel.has_own_clock:
        return omen.length != channel.length
    return omen.has_own_clock


def _draw_rmse(measured: Measured, dims: list[int], unit: str, axes: Axes) -> None:
    if len(dims) == 1:
        for at, (one, errors) in enumerate(measured):
            axes.plot([at, at], [0, errors.total], lw=3, **model_line(one.number))
            axes.plot(at, errors.total, marker="_", ms=9, mew=1.5, color=colour(one.number))
            if len(measured) <= _MOST_LINES:
                look: dict[str, Any] = {"ha": "center", "va": "bottom", "fontsize": SMALL}
                axes.text(at, errors.total, f"{errors.total:.3g}", color=INK, **look)
        axes.set_xticks([])
        axes.set_xlim(-0.5, len(measured) - 0.5)
        _from_zero(axes, [errors.total for _, errors in measured])
        _name_axes(axes, "RMSE by model", "model", "RMSE", unit)
        return
    mark = "o" if len(dims) <= 2 * _MOST_LINES else ""
    for one, errors in measured:
        axes.plot(errors.rmse, marker=mark, ms=3, lw=1.0, **model_line(one.number))
    if len(dims) <= 2 * _MOST_LINES:
        axes.set_xticks(range(len(dims)), [str(number) for number in dims])
    _from_zero(axes, [errors.rmse for _, errors in measured])
    _name_axes(axes, "RMSE by dimension", "dimension", "RMSE", unit)


def _draw_ahead(measured: Measured, unit: str, axes: Axes) -> None:
    for one, errors in measured:
        mark = "o" if len(errors.ahead) <= 2 * _MOST_LINES else ""
        axes.plot(errors.ahead, marker=mark, ms=3, lw=1.0, **model_line(one.number))
    axes.xaxis.get_major_locator().set_params(integer=True)
    _from_zero(axes, [errors.ahead for _, errors in measured])
    _name_axes(axes, "RMSE by steps ahead", "steps ahead", "RMSE", unit)


def _from_zero(axes: Axes, values: Sequence[Any]) -> None:
    """Let a vertical axis start at 0 and end above the largest value."""
    highest = float(np.nanmax(np.concatenate([np.ravel(each) for each in values])))
    axes.set_ylim(0, 1.15 * highest if highest > 0 else 1)


def _draw_calibration(measured: Measured, axes: Axes) -> None:
    axes.plot([0, 1], [0, 1], color=QUIET, lw=0.7)
    for one, errors in measured:
        if errors.inside is not None:
            axes.plot(LEVELS, errors.inside, lw=1.1, **model_line(one.number))
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    look: dict[str, Any] = {"fontsize": SMALL, "color": QUIET, "transform": axes.transAxes}
    axes.text(0.03, 0.96, "σ too large", va="top", **look)
    axes.text(0.97, 0.04, "σ too small", ha="right", **look)
    title = "calibration: errors that lie within their σ interval"
    _name_axes(axes, title, "expected share", "observed share", "")


def _name_axes(axes: Axes, title: str, x: str, y: str, unit: str) -> None:
    axes.set_title(title, fontsize=SMALL, color=QUIET, loc="left", pad=3)
    axes.set_xlabel(x, fontsize=SMALL, color=QUIET, labelpad=1)
    text = f"{y} [{plain(unit, 10)}]" if unit else y
    axes.set_ylabel(text, fontsize=SMALL, color=QUIET, labelpad=2)


def _thumbnail(channel: Channel, entry: int, ahead: int | None = None) -> NDArray[np.float64]:
    """One frame as [H, W] or [H, W, 3], small enough; of a chunk of frames the one `ahead` steps later."""
    frame = channel.dtype_name.as_numbers(channel.read_steps(entry, entry + 1))[0]
    return picture_of(frame if ahead is None else frame[ahead], _THUMBNAIL_PIXELS)


def _is_grey(channel: Channel) -> bool:
    return channel.modality != Modality.DEPTH and (
        channel.dtype_name == "u8" or channel.modality is not None
    )
