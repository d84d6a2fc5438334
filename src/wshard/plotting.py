"""A picture of an episode: every lane against time, predictions over what happened.

    from wshard.plotting import plot_episode

    plot_episode("ep_001.wshard", "ep_001.png")

Needs matplotlib: pip install 'shard-format[plot]'. Nothing global is touched, so it works in servers and
beside other plots.
"""

from __future__ import annotations

import io
import os
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from shard_format._extras import require
from shard_format.errors import EntryNotFound, InvalidArgument, ShardIOError
from wshard.channels import Modality
from wshard.checks.values import is_frames
from wshard.episode import Episode
from wshard.plots.panels import Panel, Scene
from wshard.plots.series import Clock
from wshard.plots.style import INK, QUIET, SIZE, SMALL, plain
from wshard.ragged import RaggedChannel, TextChannel
from wshard.reader import load_wshard

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from matplotlib.figure import Figure

    from shard_format.sources import SourceLike
    from wshard.channels import Channel

__all__ = ["plot_episode"]

LANES: Final = ("signal", "action", "reward", "done", "omen", "uncert", "residual", "label")

_WIDTH: Final = 12.0
_LEFT: Final = 0.75
_RIGHT: Final = 1.75
_TOP: Final = 0.98
_BOTTOM: Final = 0.5
_GAP: Final = 0.34
_SMALL_GAP: Final = 0.06
_STRIP_GAP: Final = 0.2
_DPI: Final = 130
# Files say when they were made, which would make two of them differ.
_METADATA: Final[dict[str, dict[str, str | None]]] = {
    "png": {"Software": "shard-format"},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}


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
    """Draws an episode, and saves the drawing if told where.

    Long channels are drawn by the extremes of short spans, so that no peak is lost and the drawing stays
    small; they are read in windows, in bounded memory.

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
    _check_arguments(lanes, steps, max_panels)
    if isinstance(episode, Episode):
        figure = _draw(episode, channels, lanes, steps, max_panels, title)
    else:
        with load_wshard(episode) as opened:
            figure = _draw(opened, channels, lanes, steps, max_panels, title)
    if out is not None:
        _save(figure, os.fspath(out))
    return figure


def _check_arguments(lanes: Iterable[str] | None, steps: slice | None, max_panels: int) -> None:
    if isinstance(lanes, str):
        raise InvalidArgument("lanes takes a list of names", hint=f"lanes=[{lanes!r}]")
    for lane in lanes or ():
        if lane not in LANES:
            raise InvalidArgument("unknown lane", expected=" ".join(LANES), found=repr(lane))
    if steps is not None and steps.step not in (None, 1):
        raise InvalidArgument("steps are a slice without a stride", found=repr(steps))
    if max_panels < 1:
        raise InvalidArgument("max_panels must be at least 1", found=max_panels)


def _save(figure: Figure, path: str) -> None:
    kind = os.path.splitext(path)[1][1:].lower() or "png"
    supported = figure.canvas.get_supported_filetypes()
    if kind not in supported:
        raise InvalidArgument(
            "no picture has this suffix",
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


def _draw(
    episode: Episode,
    channels: Iterable[str] | None,
    lanes: Iterable[str] | None,
    steps: slice | None,
    max_panels: int,
    title: str | None,
) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    clock = Clock.of(episode, steps)
    inner = _WIDTH - _LEFT - _RIGHT
    groups = _Chosen(episode, channels, lanes).groups(Scene(episode, clock, inner))
    shown, hidden = groups[:max_panels], groups[max_panels:]
    panels = [panel for group in shown for panel in group]
    height = _TOP + _BOTTOM + sum(panel.height for panel in panels)
    height += sum(_gap(panel) for panel in panels[1:])
    if not panels:
        height += 0.6
    figure = Figure(figsize=(_WIDTH, height), facecolor="white")
    FigureCanvasAgg(figure)
    _head(figure, episode, clock, title, height)
    top = height - _TOP
    axes: Any = None
    first: Any = None
    for number, panel in enumerate(panels):
        top -= _gap(panel) if number else 0
        axes = figure.add_axes(
            (_LEFT / _WIDTH, (top - panel.height) / height, inner / _WIDTH, panel.height / height),
            sharex=first,
        )
        first = first or axes
        top -= panel.height
        panel.draw(axes)
        _entitle(axes, panel)
        axes.set_xlim(clock.low_s, clock.high_s)
        axes.tick_params(labelbottom=number == len(panels) - 1)
    if axes is not None:
        axes.set_xlabel("seconds", fontsize=SIZE, color=QUIET)
    else:
        figure.text(0.5, 0.4, "nothing to draw", ha="center", fontsize=SIZE, color=QUIET)
    if hidden:
        names = ", ".join(plain(group[0].title, 24) for group in hidden[:8])
        more = ", …" if len(hidden) > 8 else ""
        figure.text(
            _LEFT / _WIDTH,
            0.08 / height,
            f"{len(hidden)} more, not shown: {names}{more}",
            fontsize=SMALL,
            color=QUIET,
        )
    return figure


def _gap(panel: Panel) -> float:
    if not panel.belongs:
        return _GAP
    return _STRIP_GAP if panel.title else _SMALL_GAP


def _head(figure: Figure, episode: Episode, clock: Clock, title: str | None, height: float) -> None:
    left = _LEFT / _WIDTH
    figure.text(
        left,
        1 - 0.28 / height,
        plain(title or episode.id or "episode", 90),
        fontsize=12,
        fontweight="bold",
        color=INK,
        va="center",
    )
    parts = [plain(episode.env_id, 40)] if episode.env_id else []
    parts.append(f"{episode.length} steps")
    if (clock.start, clock.stop) != (0, episode.length):
        parts.append(f"shown: {clock.start} to {clock.stop - 1}")
    parts.append(f"{clock.high_s - clock.low_s:.4g} s")
    parts.append(
        "recorded timestamps"
        if episode.timestamps_ns is not None
        else f"{episode.timebase.tick_hz:g} Hz"
    )
    figure.text(left, 1 - 0.47 / height, " · ".join(parts), fontsize=SIZE, color=QUIET, va="center")


def _entitle(axes: Any, panel: Panel) -> None:  # noqa: ANN401 - matplotlib's axes
    from matplotlib.offsetbox import AnchoredOffsetbox, HPacker, TextArea

    strong = {
        "fontsize": SMALL if panel.belongs else SIZE,
        "color": QUIET if panel.belongs else INK,
    }
    if not panel.belongs:
        strong["fontweight"] = "bold"
    words: list[Any] = [TextArea(plain(panel.title, 60), textprops=strong)]
    if panel.detail:
        words.append(TextArea(panel.detail, textprops={"fontsize": SMALL, "color": QUIET}))
    box = HPacker(children=words, align="baseline", pad=0, sep=6)
    axes.add_artist(
        AnchoredOffsetbox(
            "lower left",
            child=box,
            pad=0.0,
            borderpad=0.25,
            frameon=False,
            bbox_to_anchor=(0.0, 1.0),
            bbox_transform=axes.transAxes,
        )
    )


def _as_action(panel: Panel) -> Panel:
    return panel if panel.belongs else replace(panel, detail=f"action · {panel.detail}")


def _rank(channel: Channel) -> int:
    """Pictures first, then words, then numbers: what a person looks at first stands first."""
    if isinstance(channel, TextChannel):
        return 1
    return 0 if is_frames(channel) else 2


class _Chosen:
    """What of an episode is to be drawn."""

    def __init__(
        self, episode: Episode, channels: Iterable[str] | None, lanes: Iterable[str] | None
    ) -> None:
        if isinstance(channels, str):
            raise InvalidArgument("channels takes a list of names", hint=f"channels=[{channels!r}]")
        self._episode = episode
        self._wanted = None if channels is None else list(channels)
        self._lanes = frozenset(LANES if lanes is None else lanes)
        known = [
            *(f"signal/{name}" for name in episode.observations),
            *(f"action/{name}" for name in episode.actions),
            *(f"label/{name}" for name in episode.labels),
            *(f"omen/{name}" for name in episode.omens),
            *("reward", "done"),
        ]
        for want in self._wanted or ():
            if not any(self._matches(want, *block.partition("/")[::2]) for block in known):
                error = EntryNotFound(f"no channel {want!r} in episode {episode.id!r}")
                error.wanted = want
                error.candidates = [name.partition("/")[2] or name for name in known]
                raise error

    @staticmethod
    def _matches(want: str, lane: str, name: str) -> bool:
        full = f"{lane}/{name}" if name else lane
        return fnmatchcase(name, want) or fnmatchcase(full, want)

    def _asked(self, lane: str, name: str) -> bool:
        if lane not in self._lanes:
            return False
        return self._wanted is None or any(self._matches(want, lane, name) for want in self._wanted)

    def groups(self, scene: Scene) -> list[list[Panel]]:
        """The panels of each channel."""
        episode = self._episode
        observed = sorted(episode.observations.items(), key=lambda item: _rank(item[1]))
        groups = [
            self._observation(scene, name, channel)
            for name, channel in observed
            if self._asked("signal", name)
        ]
        groups += [
            [_as_action(panel) for panel in self._plain(scene, name, channel)]
            for name, channel in episode.actions.items()
            if self._asked("action", name)
        ]
        known = episode.terminations is not None or episode.truncations is not None
        ends = known and self._asked("done", "")
        reward = episode.rewards is not None and self._asked("reward", "")
        if reward or ends:
            groups.append(
                [scene.rewards(reward=reward, ends=ends or (known and "done" in self._lanes))]
            )
        groups += [
            [scene.intervals(name, intervals)]
            for name, intervals in episode.labels.items()
            if self._asked("label", name)
        ]
        # Predictions of what the episode does not have, such as latent actions.
        groups += [
            self._plain(scene, f"{name} · {model}", channel)
            for name, models in episode.omens.items()
            if (name not in episode.observations or "signal" not in self._lanes)
            and self._asked("omen", name)
            for model, channel in models.items()
        ]
        return [group for group in groups if group]

    def _observation(self, scene: Scene, name: str, channel: Channel) -> list[Panel]:
        episode = self._episode
        omens: Mapping[str, Channel] = {}
        uncerts: Mapping[str, Mapping[str, Channel]] = {}
        if "omen" in self._lanes and name in episode.omens:
            omens = episode.omens[name]
        if "uncert" in self._lanes and name in episode.uncerts:
            uncerts = episode.uncerts[name]
        panels = self._plain(scene, name, channel, omens, uncerts)
        if "residual" in self._lanes:
            panels += [
                scene.residual(key, residual)
                for key, residual in episode.residuals.items()
                if residual.channel_id == name
            ]
        return panels

    @staticmethod
    def _plain(
        scene: Scene,
        title: str,
        channel: Channel,
        omens: Mapping[str, Channel] | None = None,
        uncerts: Mapping[str, Mapping[str, Channel]] | None = None,
    ) -> list[Panel]:
        if isinstance(channel, TextChannel):
            return [scene.words(title, channel)]
        if isinstance(channel, RaggedChannel):
            return [scene.counts(title, channel)]
        if is_frames(channel):
            strips = [scene.frames(title, channel)]
            strips += [
                scene.frames(f"predicted · {model}", omen, belongs=True)
                for model, omen in (omens or {}).items()
                if is_frames(omen)
            ]
            return strips
        if channel.modality == Modality.AUDIO:
            return [scene.sound(title, channel)]
        return scene.numbers(title, channel, omens or {}, uncerts or {})
