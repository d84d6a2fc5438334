"""The figure: which panels it has, and where they stand on the page."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.errors import EntryNotFound, InvalidArgument, ShardIOError
from shard_format.extras import require
from wshard._files import load_wshard
from wshard.multimodal import is_frames
from wshard.plot._panels import Panel, Panels
from wshard.plot._predictions import Prediction, check_fit
from wshard.plot._series import TimeAxis
from wshard.plot._style import INK, QUIET, SIZE, SMALL, labels_of, plain
from wshard.types import Episode, TextChannel

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from matplotlib.figure import Figure

    from shard_format.sources import SourceLike
    from wshard.plot._series import Shown
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
_BELOW_TIME: Final = 0.55
_DPI: Final = 130
_SMALLEST: Final = (5.0, 2.0)
_LARGEST: Final = 200.0
# Panels may be drawn smaller than they should be, but not so small that words overlap.
_LEAST_SCALE: Final = 0.6
# Dates in the files would make two pictures of one episode differ.
_METADATA: Final[dict[str, dict[str, str | None]]] = {
    "png": {"Software": "shard-format"},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}


@dataclass(frozen=True)
class PlotOptions:
    """How an episode is drawn, beyond which part of it."""

    models: Sequence[str] | None = None
    """Draw the predictions of these models only, by name or pattern; an empty list for none. None for all."""
    dims: Sequence[int] | None = None
    """Draw these dimensions of channels with several numbers per step, counted from 0; channels that have none of
    them are left out. None for all."""
    per_dim: bool | None = None
    """Whether each dimension has a panel of its own. None: where several models predict several dimensions."""
    size: tuple[float, float] | None = None
    """Width and height of the figure in inches; None for 12 inches, as high as the panels need."""
    dpi: float = _DPI
    """Pixels per inch."""

    def __post_init__(self) -> None:
        if isinstance(self.models, str):
            raise InvalidArgument("models takes a list of names", hint=f"models=[{self.models!r}]")
        if self.dims is not None:
            given: list[Any] = list(self.dims)
            if not given or not all(isinstance(n, (int, np.integer)) and n >= 0 for n in given):
                expected = "a list of numbers of dimensions, counted from 0"
                raise InvalidArgument("dims is not valid", expected=expected, found=repr(self.dims))
            object.__setattr__(self, "dims", sorted({int(number) for number in given}))
        size: Any = self.size
        if size is not None and (
            not isinstance(size, (tuple, list))
            or len(size) != 2
            or not all(least <= n <= _LARGEST for least, n in zip(_SMALLEST, size, strict=True))
        ):
            least = " and ".join(f"{inches:g}" for inches in _SMALLEST)
            expected = f"width and height in inches, at least {least}, at most {_LARGEST:g}"
            raise InvalidArgument("size is not valid", expected=expected, found=repr(size))
        if not 10 <= self.dpi <= 1200:
            raise InvalidArgument("dpi is not valid", expected="10 to 1200", found=self.dpi)


_DEFAULT_OPTIONS: Final = PlotOptions()


@np.errstate(all="ignore")  # Matplotlib adds margins to the largest numbers
def plot_episode(
    episode: Episode | SourceLike,
    out: str | os.PathLike[str] | None = None,
    *,
    channels: Iterable[str] | None = None,
    lanes: Iterable[str] | None = None,
    steps: Shown | None = None,
    max_panels: int = 24,
    title: str | None = None,
    options: PlotOptions = _DEFAULT_OPTIONS,
) -> Figure:
    """Draw an episode, and save the drawing if you give `out`. `Episode.plot` does the same for an open episode.

    Predictions are drawn over what happened, with one standard deviation around them, and below them how far off
    they are. A model has one colour and one dash in the whole figure. At the bottom are the errors of each predicted
    channel: RMSE by dimension, by steps ahead if predictions have a horizon, and how well uncertainties are
    calibrated. A prediction with a horizon is drawn as chunks, each from the step at which it was made.

    Long channels are drawn by the extremes of short spans, so that no peak is lost and the drawing stays
    small. They are read in windows, in bounded memory. The horizontal axis has seconds, or steps if the
    episode has no clock.

    Args:
        episode: an open episode, or anything that `load_wshard` opens.
        out: where to save it; the suffix decides the format: `.png`, `.svg`, `.pdf`.
        channels: only these observations, actions and labels, by name or pattern such as `"wrist/*"`.
        lanes: only these: `"signal"`, `"action"`, `"reward"`, `"done"`, `"omen"`, `"uncert"`,
            `"residual"`, `"label"`.
        steps: only these steps, a slice; or a pair of seconds since the episode began, such as `(1.5, 3)`. Channels
            with clocks of their own show the same span of time.
        max_panels: how many channels at most; the others are named below.
        title: instead of the episode's id.
        options: models, dimensions, size and so on.

    Raises:
        MissingExtra: matplotlib is not installed.
        InvalidArgument: a prediction does not have the shape of its channel, or an argument is invalid.
    """
    require("matplotlib", "plot")
    if isinstance(steps, slice):
        if steps.step not in (None, 1):
            raise InvalidArgument("steps must be a slice without a stride", found=repr(steps))
    elif steps is not None and len(steps) != 2:
        expected = "a slice of steps, or a pair of seconds"
        raise InvalidArgument("the time is not valid", expected=expected, found=repr(steps))
    if max_panels < 1:
        raise InvalidArgument("max_panels must be at least 1", found=max_panels)
    choice = _PanelChoice(channels, lanes, options)
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
    figure.savefig(drawn, format=kind, dpi="figure", metadata=_METADATA.get(kind))
    try:
        with open(path, "wb") as file:
            file.write(drawn.getbuffer())
    except OSError as error:
        raise ShardIOError.wrap(error, "cannot write", path) from error


# --- the page


def _draw(
    episode: Episode, choice: _PanelChoice, steps: Shown | None, max_panels: int, title: str | None
) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    axis = TimeAxis.of(episode, steps)
    options = choice.options
    width = _WIDTH if options.size is None else options.size[0]
    inner = width - _LEFT - _RIGHT
    groups = choice.groups(episode, Panels(episode, axis, inner, options.dims, options.per_dim))
    shown, hidden = groups[:max_panels], groups[max_panels:]
    # What has another horizontal axis than the time stands below.
    panels = sorted((panel for group in shown for panel in group), key=lambda one: one.is_apart)
    panels = _scaled(panels, options)
    timed = sum(not panel.is_apart for panel in panels)
    height = _height(panels)
    figure = Figure(figsize=(width, height), facecolor="white", dpi=options.dpi)
    FigureCanvasAgg(figure)
    _draw_head(figure, episode, axis, title, height, width)
    top = height - _TOP
    axes: Axes = None
    first: Axes = None
    for number, panel in enumerate(panels):
        top -= panel.height + _space_above(panels, number)
        place = (_LEFT / width, top / height, inner / width, panel.height / height)
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
        figure.text(_LEFT / width, 0.08 / height, words, fontsize=SMALL, color=QUIET)
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
    figure: Figure, episode: Episode, axis: TimeAxis, title: str | None, height: float, width: float
) -> None:
    left = _LEFT / width
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
    """Which lanes, channels and models to draw."""

    def __init__(
        self,
        channels: Iterable[str] | None,
        lanes: Iterable[str] | None,
        options: PlotOptions = _DEFAULT_OPTIONS,
    ) -> None:
        self.options = options
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
        numbers = self._model_numbers(episode)
        groups: list[list[Panel]] = []

        def add(name: str, channel: Channel, *, is_action: bool) -> None:
            guesses = self._predictions(episode, name, channel, numbers)
            kinds = episode.uncerts[name] if "uncert" in lanes and name in episode.uncerts else {}
            own = next((kinds[model] for model in kinds if model not in episode.omens[name]), None)
            made = panels.channel(name, channel, guesses, own)
            groups.append([_as_action(panel) if is_action else panel for panel in made])
            if guesses and panels.dims_of(channel):
                groups[-1].append(panels.errors(name, channel, guesses))
            if "residual" in lanes and not is_action:
                found = [r for r in episode.residuals.values() if r.channel_id == name]
                chosen = [r for r in found if not r.model or r.model in numbers]
                groups[-1] += [panels.residual(residual) for residual in chosen]

        for name, channel in sorted(episode.observations.items(), key=lambda item: _rank(item[1])):
            if has("signal", name):
                add(name, channel, is_action=False)
        for name, channel in episode.actions.items():
            if has("action", name):
                add(name, channel, is_action=True)
        groups = [group for group in groups if group]
        numbers_of_channels = [*episode.observations.values(), *episode.actions.values()]
        if self.options.dims is not None and not any(map(panels.dims_of, numbers_of_channels)):
            expected = "dimensions that a channel has"
            raise InvalidArgument(
                "no channel has these dims", expected=expected, found=self.options.dims
            )
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
            if (name not in episode.observations or "signal" not in lanes)
            and (name not in episode.actions or "action" not in lanes)
            if has("omen", name)
            for model, channel in models.items()
            if model in numbers
        ]
        return [group for group in groups if group]

    def _model_numbers(self, episode: Episode) -> dict[str, int]:
        """The chosen models, numbered in the order in which the whole episode has them."""
        known = dict.fromkeys(model for models in episode.omens.values() for model in models)
        wanted = self.options.models
        for want in wanted or ():
            if not any(fnmatchcase(model, want) for model in known):
                error = EntryNotFound(f"no model {want!r} in episode {episode.id!r}")
                error.wanted, error.candidates = want, list(known)
                raise error
        return {
            model: number
            for number, model in enumerate(known)
            if wanted is None or any(fnmatchcase(model, want) for want in wanted)
        }

    def _predictions(
        self, episode: Episode, name: str, channel: Channel, numbers: Mapping[str, int]
    ) -> list[Prediction]:
        """What the chosen models predicted for a channel.

        Raises:
            InvalidArgument: one of them does not have the shape of the channel.
        """
        is_predicted = name in episode.omens and (
            name not in episode.observations or episode.observations[name] is channel
        )
        if "omen" not in self._lanes or not is_predicted:
            return []
        has_uncerts = "uncert" in self._lanes and name in episode.uncerts
        labels = labels_of(list(numbers))
        names = dict(zip(numbers, map(plain, labels), strict=True))
        found = []
        for model, omen in episode.omens[name].items():
            if model in numbers:
                kinds = dict(episode.uncerts[name][model]) if has_uncerts else {}
                reading = {kind: uncert.uncached() for kind, uncert in kinds.items()}
                found.append(
                    Prediction(model, numbers[model], names[model], omen.uncached(), reading)
                )
        return [prediction for prediction in found if check_fit(name, channel, prediction)]

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
