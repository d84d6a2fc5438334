"""The figure: which panels it has, and where they stand on the page."""

from __future__ import annotations

import io
import os
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.errors import EntryNotFound, InvalidArgument, ShardIOError
from shard_format.extras import require
from wshard._files import load_wshard
from wshard.multimodal import is_frames
from wshard.plot._panels import Panel, Panels
from wshard.plot._series import TimeAxis
from wshard.plot._style import INK, QUIET, SIZE, SMALL, plain
from wshard.types import Episode, TextChannel

if TYPE_CHECKING:
    from collections.abc import Iterable

    from matplotlib.figure import Figure

    from shard_format.sources import SourceLike
    from wshard.plot._style import Axes
    from wshard.types import Channel

LANES: Final = ("signal", "action", "reward", "done", "omen", "uncert", "residual", "label")

# Inches.
_WIDTH: Final = 12.0
_LEFT: Final = 0.75
_RIGHT: Final = 1.75
_TOP: Final = 0.98
_BOTTOM: Final = 0.5
_GAP: Final = 0.34
_SMALL_GAP: Final = 0.06
_STRIP_GAP: Final = 0.2
_INNER: Final = _WIDTH - _LEFT - _RIGHT
_DPI: Final = 130
# Dates in the files would make two pictures of one episode differ.
_METADATA: Final[dict[str, dict[str, str | None]]] = {
    "png": {"Software": "shard-format"},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}


@np.errstate(all="ignore")  # Matplotlib adds margins to the largest numbers
def plot_episode(
    episode: Episode | SourceLike,
    out: str | os.PathLike[str] | None = None,
    *,
    channels: Iterable[str] | None = None,
    lanes: Iterable[str] | None = None,
    steps: slice | None = None,
    max_panels: int = 24,
    title: str | None = None,
) -> Figure:
    """Draw an episode, and save the drawing if you give `out`.

    Long channels are drawn by the extremes of short spans, so that no peak is lost and the drawing stays
    small. They are read in windows, in bounded memory. The horizontal axis has seconds, or steps if the
    episode has no clock.

    Args:
        episode: an open episode, or anything that `load_wshard` opens.
        out: where to save it; the suffix decides the format: `.png`, `.svg`, `.pdf`.
        channels: only these observations, actions and labels, by name or pattern such as `"wrist/*"`.
        lanes: only these: `"signal"`, `"action"`, `"reward"`, `"done"`, `"omen"`, `"uncert"`,
            `"residual"`, `"label"`.
        steps: only these steps; channels with clocks of their own show the same span of time.
        max_panels: how many channels at most; the others are named below.
        title: instead of the episode's id.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    require("matplotlib", "plot")
    if steps is not None and steps.step not in (None, 1):
        raise InvalidArgument("steps must be a slice without a stride", found=repr(steps))
    if max_panels < 1:
        raise InvalidArgument("max_panels must be at least 1", found=max_panels)
    choice = _PanelChoice(channels, lanes)
    if isinstance(episode, Episode):
        figure = _draw(episode, choice, steps, max_panels, title)
    else:
        with load_wshard(episode) as opened:
            figure = _draw(opened, choice, steps, max_panels, title)
    if out is not None:
        _save(figure, os.fspath(out))
    return figure


def _save(figure: Figure, path: str) -> None:
    kind = os.path.splitext(path)[1][1:].lower() or "png"
    supported = figure.canvas.get_supported_filetypes()
    if kind not in supported:
        raise InvalidArgument(
            "unknown suffix for a picture",
            path=path,
            expected=" ".join(sorted(supported)),
            found=kind,
        )
    drawn = io.BytesIO()
    figure.savefig(drawn, format=kind, dpi=_DPI, metadata=_METADATA.get(kind))
    try:
        with open(path, "wb") as file:
            file.write(drawn.getbuffer())
    except OSError as error:
        raise ShardIOError.wrap(error, "cannot write", path) from error


# --- the page


def _draw(
    episode: Episode, choice: _PanelChoice, steps: slice | None, max_panels: int, title: str | None
) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    axis = TimeAxis.of(episode, steps)
    groups = choice.groups(episode, Panels(episode, axis, _INNER))
    shown, hidden = groups[:max_panels], groups[max_panels:]
    panels = [panel for group in shown for panel in group]
    height = _TOP + _BOTTOM + sum(panel.height for panel in panels)
    height += sum(_gap(panel) for panel in panels[1:]) if panels else 0.6
    figure = Figure(figsize=(_WIDTH, height), facecolor="white")
    FigureCanvasAgg(figure)
    _draw_head(figure, episode, axis, title, height)
    top = height - _TOP
    axes: Axes = None
    first: Axes = None
    for number, panel in enumerate(panels):
        top -= panel.height + (_gap(panel) if number else 0)
        place = (_LEFT / _WIDTH, top / height, _INNER / _WIDTH, panel.height / height)
        axes = figure.add_axes(place, sharex=first)
        first = first or axes
        panel.draw(axes)
        _draw_title(axes, panel)
        axes.set_xlim(axis.low, axis.high)
        axes.tick_params(labelbottom=number == len(panels) - 1)
    if axes is not None:
        unit = "seconds" if axis.unit == "s" else "steps (the episode has no clock)"
        axes.set_xlabel(unit, fontsize=SIZE, color=QUIET)
    else:
        figure.text(0.5, 0.4, "nothing to draw", ha="center", fontsize=SIZE, color=QUIET)
    if hidden:
        names = ", ".join(plain(group[0].title, 24) for group in hidden[:8])
        more = ", …" if len(hidden) > 8 else ""
        words = f"{len(hidden)} more, not shown: {names}{more}"
        figure.text(_LEFT / _WIDTH, 0.08 / height, words, fontsize=SMALL, color=QUIET)
    return figure


def _gap(panel: Panel) -> float:
    if not panel.belongs:
        return _GAP
    return _STRIP_GAP if panel.title else _SMALL_GAP


def _draw_head(
    figure: Figure, episode: Episode, axis: TimeAxis, title: str | None, height: float
) -> None:
    left = _LEFT / _WIDTH
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


# --- what is shown


class _PanelChoice:
    """Which lanes and channels to draw."""

    def __init__(self, channels: Iterable[str] | None, lanes: Iterable[str] | None) -> None:
        for argument, given in (("channels", channels), ("lanes", lanes)):
            if isinstance(given, str):
                raise InvalidArgument(
                    f"{argument} takes a list of names", hint=f"{argument}=[{given!r}]"
                )
        self._wanted = None if channels is None else list(channels)
        self._lanes = frozenset(LANES if lanes is None else lanes)
        for lane in self._lanes - set(LANES):
            raise InvalidArgument("unknown lane", expected=" ".join(LANES), found=repr(lane))

    def groups(self, episode: Episode, panels: Panels) -> list[list[Panel]]:
        """The panels of each channel."""
        self._check_names(episode)
        lanes, has = self._lanes, self._has
        groups: list[list[Panel]] = []
        for name, channel in sorted(episode.observations.items(), key=lambda item: _rank(item[1])):
            if has("signal", name):
                omens = episode.omens[name] if "omen" in lanes and name in episode.omens else None
                uncerts = "uncert" in lanes and name in episode.uncerts
                spread = episode.uncerts[name] if uncerts else None
                groups.append(panels.channel(name, channel, omens, spread))
                if "residual" in lanes:
                    residuals = [r for r in episode.residuals.values() if r.channel_id == name]
                    groups[-1] += [panels.residual(residual) for residual in residuals]
        groups += [
            [_as_action(panel) for panel in panels.channel(name, channel)]
            for name, channel in episode.actions.items()
            if has("action", name)
        ]
        known = episode.terminations is not None or episode.truncations is not None
        reward = episode.rewards is not None and has("reward")
        if reward or (known and has("done")):
            groups.append([panels.rewards(reward=reward, ends=known and "done" in lanes)])
        groups += [
            [panels.intervals(name, intervals)]
            for name, intervals in episode.labels.items()
            if has("label", name)
        ]
        # Predictions of what the episode does not have, such as latent actions.
        groups += [
            panels.channel(f"{name} · {model}", channel)
            for name, models in episode.omens.items()
            if name not in episode.observations or "signal" not in lanes
            if has("omen", name)
            for model, channel in models.items()
        ]
        return groups

    def _check_names(self, episode: Episode) -> None:
        known = [
            *(("signal", name) for name in episode.observations),
            *(("action", name) for name in episode.actions),
            *(("label", name) for name in episode.labels),
            *(("omen", name) for name in episode.omens),
            *(("reward", ""), ("done", "")),
        ]
        for want in self._wanted or ():
            if not any(_matches(want, lane, name) for lane, name in known):
                error = EntryNotFound(f"no channel {want!r} in episode {episode.id!r}")
                error.wanted = want
                error.candidates = [name or lane for lane, name in known]
                raise error

    def _has(self, lane: str, name: str = "") -> bool:
        return lane in self._lanes and (
            self._wanted is None or any(_matches(want, lane, name) for want in self._wanted)
        )


def _matches(want: str, lane: str, name: str) -> bool:
    return fnmatchcase(name, want) or fnmatchcase(f"{lane}/{name}" if name else lane, want)


def _as_action(panel: Panel) -> Panel:
    return panel if panel.belongs else replace(panel, detail=f"action · {panel.detail}")


def _rank(channel: Channel) -> int:
    """Pictures first, then words, then numbers: people look at them in this order."""
    if isinstance(channel, TextChannel):
        return 1
    return 0 if is_frames(channel) else 2
