"""The page: where the panels of a figure stand, what is written around them. Imports matplotlib."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shard_format.errors import InvalidArgument
from shard_format.extras import require
from wshard.plot._style import INK, QUIET, SIZE, SMALL, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from wshard.plot._figure import PlotOptions
    from wshard.plot._panels import Panel
    from wshard.plot._series import TimeAxis
    from wshard.plot._style import Axes
    from wshard.types import Episode
else:
    Figure = require("matplotlib.figure", "plot").Figure

# Inches.
_WIDTH: Final = 12.0
_LEFT: Final = 0.75
_RIGHT: Final = 1.75
_TOP: Final = 0.98
_BOTTOM: Final = 0.5
_GAP: Final = 0.34
_SMALL_GAP: Final = 0.06
_STRIP_GAP: Final = 0.2
_BELOW_TIME: Final = 0.55
# Panels may be drawn smaller than they should be, but not so small that words overlap.
_LEAST_SCALE: Final = 0.6


class EpisodeFigure(Figure):
    """A figure that notebooks show, whether pyplot is in use or not."""

    def _repr_png_(self) -> bytes:
        drawn = io.BytesIO()
        self.savefig(drawn, format="png", dpi="figure")
        return drawn.getvalue()


class Page(NamedTuple):
    """What is on the page besides the panels."""

    title: str | None
    """Instead of the episode's id."""
    max_panels: int
    """How many channels are shown at most."""


def inner_width(options: PlotOptions) -> float:
    """How wide panels are, in inches."""
    return (_WIDTH if options.size is None else options.size[0]) - _LEFT - _RIGHT


def draw(
    episode: Episode, axis: TimeAxis, groups: list[list[Panel]], page: Page, options: PlotOptions
) -> EpisodeFigure:
    """Draw the panels of channels below each other."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    width = _WIDTH if options.size is None else options.size[0]
    inner = inner_width(options)
    shown, hidden = groups[: page.max_panels], groups[page.max_panels :]
    # Panels with a horizontal axis other than time come below.
    panels = sorted((panel for group in shown for panel in group), key=lambda one: one.is_apart)
    panels = _scaled(panels, options)
    timed = sum(not panel.is_apart for panel in panels)
    height = _height(panels)
    figure = EpisodeFigure(figsize=(width, height), facecolor="white", dpi=options.dpi)
    FigureCanvasAgg(figure)
    left = _LEFT / width
    _draw_head(figure, episode, axis, page.title, left)
    top = height - _TOP
    axes: Axes = None
    first: Axes = None
    for number, panel in enumerate(panels):
        top -= panel.height + _space_above(panels, number)
        place = (left, top / height, inner / width, panel.height / height)
        axes = figure.add_axes(place, sharex=None if panel.is_apart else first)
        panel.draw(axes)
        _draw_title(axes, panel)
        if panel.is_apart:
            continue
        first = first or axes
        axes.set_xlim(axis.low, axis.high)
        axes.tick_params(labelbottom=number == timed - 1)
        if number == timed - 1:
            unit = "seconds" if axis.unit == "s" else "steps (the episode has no clock)"
            axes.set_xlabel(unit, fontsize=SIZE, color=QUIET)
    if axes is None:
        figure.text(0.5, 0.4, "nothing to draw", ha="center", fontsize=SIZE, color=QUIET)
    if hidden:
        names = ", ".join(plain(group[0].title, 24) for group in hidden[:8])
        more = ", …" if len(hidden) > 8 else ""
        words = f"{len(hidden)} more, not shown: {names}{more}"
        figure.text(left, 0.08 / height, words, fontsize=SMALL, color=QUIET)
    return figure


def _height(panels: list[Panel]) -> float:
    if not panels:
        return _TOP + _BOTTOM + 0.6
    spaces = sum(_space_above(panels, number) for number in range(len(panels)))
    return _TOP + _BOTTOM + spaces + sum(panel.height for panel in panels)


def _space_above(panels: list[Panel], number: int) -> float:
    """Room for the title of a panel; below the last panel over time also for its axis."""
    if not number:
        return 0.0
    panel = panels[number]
    after_time = panel.is_apart and not panels[number - 1].is_apart
    return _gap(panel) + (_BELOW_TIME if after_time else 0.0)


def _scaled(panels: list[Panel], options: PlotOptions) -> list[Panel]:
    """The panels in heights that together give the size that was asked for."""
    if options.size is None or not panels:
        return panels
    high = sum(panel.height for panel in panels)
    scale = (options.size[1] - (_height(panels) - high)) / high
    if scale < _LEAST_SCALE:
        least = _height(panels) - high * (1 - _LEAST_SCALE)
        raise InvalidArgument(
            f"the figure is too small for {len(panels)} panels",
            expected=f"a height of at least {least:.1f} inches",
            found=f"size={options.size}",
            hint="choose fewer channels or dimensions, or leave size out",
        )
    return [replace(panel, height=panel.height * scale) for panel in panels]


def _gap(panel: Panel) -> float:
    if not panel.belongs:
        return _GAP
    return _STRIP_GAP if panel.title else _SMALL_GAP


def _draw_head(
    figure: Figure, episode: Episode, axis: TimeAxis, title: str | None, left: float
) -> None:
    height = figure.get_figheight()
    name = plain(title or episode.id or "episode", 90)
    look: dict[str, Any] = {"fontsize": 12, "fontweight": "bold", "color": INK, "va": "center"}
    figure.text(left, 1 - 0.28 / height, name, **look)
    parts = [plain(episode.env_id, 40)] if episode.env_id else []
    parts.append(f"{episode.length} steps")
    if (axis.start, axis.stop) != (0, episode.length):
        parts.append(f"shown: {axis.start} to {axis.stop - 1}")
    if axis.unit == "s":
        parts.append(f"{axis.high - axis.low:.4g} s")
        rate_hz = episode.timebase.tick_hz or 0.0
        has_times = episode.timestamps_ns is not None
        parts.append("recorded timestamps" if has_times else f"{rate_hz:g} Hz")
    else:
        parts.append("no clock")
    figure.text(left, 1 - 0.47 / height, " · ".join(parts), fontsize=SIZE, color=QUIET, va="center")


def _draw_title(axes: Axes, panel: Panel) -> None:
    from matplotlib.offsetbox import AnchoredOffsetbox, HPacker, TextArea

    strong: dict[str, Any] = {"fontsize": SIZE, "color": INK, "fontweight": "bold"}
    quiet: dict[str, Any] = {"fontsize": SMALL, "color": QUIET}
    props = quiet if panel.belongs else strong
    words: list[Any] = [TextArea(plain(panel.title, 60), textprops=props)]
    if panel.detail:
        words.append(TextArea(panel.detail, textprops=quiet))
    child = HPacker(children=words, align="baseline", pad=0, sep=6)
    place = {"bbox_to_anchor": (0.0, 1.0), "bbox_transform": axes.transAxes}
    look: dict[str, Any] = {"pad": 0.0, "borderpad": 0.25, "frameon": False}
    axes.add_artist(AnchoredOffsetbox("lower left", child=child, **look, **place))
