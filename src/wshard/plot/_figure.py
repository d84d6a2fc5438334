"""The figure: which panels it has, and how it is saved."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.errors import EntryNotFound, InvalidArgument, ShardIOError
from shard_format.extras import require
from wshard._formats import load_wshard
from wshard.multimodal import is_frames
from wshard.plot._panels import Panel, Panels
from wshard.plot._predictions import Prediction, check_fit
from wshard.plot._series import TimeAxis
from wshard.plot._style import labels_of, plain
from wshard.types import Episode, TextChannel

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from matplotlib.figure import Figure

    from shard_format.sources import SourceLike
    from wshard.plot._series import Shown
    from wshard.types import Channel

LANES: Final = ("signal", "action", "reward", "done", "omen", "uncert", "residual", "label")

_DPI: Final = 130
_SMALLEST: Final = (5.0, 2.0)
_LARGEST: Final = 200.0
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
    from wshard.plot._page import Page, draw, inner_width

    def drawn(opened: Episode) -> Figure:
        axis = TimeAxis.of(opened, steps)
        panels = Panels(opened, axis, inner_width(options), options.dims, options.per_dim)
        groups = _PanelChoice(channels, lanes, options).groups(opened, panels)
        return draw(opened, axis, groups, Page(title, max_panels), options)

    if isinstance(episode, Episode):
        figure = drawn(episode)
    else:
        with load_wshard(episode) as opened:
            figure = drawn(opened)
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
        has_dims = self.options.dims is None

        def add(name: str, channel: Channel, *, is_action: bool) -> None:
            nonlocal has_dims
            channel.check_claims()  # before anything is made in the size that a file claims
            has_dims = has_dims or bool(panels.dims_of(channel))
            found = self._predictions(episode, name, channel, numbers)
            guesses = [one for one in found if check_fit(name, channel, one)]
            left_out = ", ".join(one.label for one in found if one not in guesses)
            kinds = episode.uncerts[name] if "uncert" in lanes and name in episode.uncerts else {}
            own = next((kinds[model] for model in kinds if model not in episode.omens[name]), None)
            made = panels.channel(name, channel, guesses, own)
            if left_out and made:
                words = (
                    f" · not drawn, because their shape is a guess that does not fit: {left_out}"
                )
                made[0] = replace(made[0], detail=made[0].detail + words)
            groups.append([_as_action(panel) if is_action else panel for panel in made])
            if guesses and panels.dims_of(channel):
                groups[-1].append(panels.errors(name, channel, guesses))
            if "residual" in lanes and not is_action:
                about = [r for r in episode.residuals.values() if r.channel_id == name]
                chosen = [r for r in about if not r.model or r.model in numbers]
                groups[-1] += [panels.residual(residual) for residual in chosen]

        for name, channel in sorted(episode.observations.items(), key=lambda item: _rank(item[1])):
            if has("signal", name):
                add(name, channel, is_action=False)
        for name, channel in episode.actions.items():
            if has("action", name):
                add(name, channel, is_action=True)
        groups = [group for group in groups if group]
        if not has_dims:
            expected = "dimensions that one of the channels has"
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
        alone = [
            (f"{name} · {model}", channel)
            for name, models in episode.omens.items()
            if (name not in episode.observations or "signal" not in lanes)
            and (name not in episode.actions or "action" not in lanes)
            if has("omen", name)
            for model, channel in models.items()
            if model in numbers
        ]
        for title, channel in alone:
            channel.check_claims()
            groups.append(panels.channel(title, channel))
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
        """What the chosen models predicted for a channel."""
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
                for claiming in (omen, *kinds.values()):
                    claiming.check_claims()
                reading = {kind: uncert.uncached() for kind, uncert in kinds.items()}
                found.append(
                    Prediction(model, numbers[model], names[model], omen.uncached(), reading)
                )
        return found

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
