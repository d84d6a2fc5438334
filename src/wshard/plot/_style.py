"""How plots look: few colours, thin lines, words that any font can show; legends and colour bars."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from wshard.types import Channel

Axes: TypeAlias = Any
"""Axes of matplotlib, which is imported only when something is drawn."""

COLOURS: Final = (
    *("#3b6ea8", "#d07f3c", "#4d9a6a", "#b4504e"),
    *("#7c68a6", "#8a7060", "#c07aa0", "#5f9aa6"),
)
_DASHES: Final = (
    *((3.5, 1.4), (1.0, 1.3), (5.0, 1.4, 1.0, 1.4)),
    *((8.0, 2.0), (3.0, 1.2, 1.0, 1.2, 1.0, 1.2), (8.0, 1.6, 3.0, 1.6)),
)
_LONGEST_LABEL: Final = 24
INK: Final = "#22262b"
QUIET: Final = "#7a828c"
FAINT: Final = "#e4e7ea"
END: Final = "#b4504e"
CUT: Final = "#d07f3c"
SIZE: Final = 7.5
SMALL: Final = 6.5


def colour(number: int) -> str:
    """The colour of a dimension, a label or a model."""
    return COLOURS[number % len(COLOURS)]


def dash(number: int) -> tuple[float, tuple[float, ...]]:
    """How the line of a model is broken: different for every number, and never solid as the truth is."""
    pattern = _DASHES[number % len(_DASHES)]
    return 0.0, (*pattern, *((1.0, 1.4) * (number // len(_DASHES))))


def model_line(number: int) -> dict[str, Any]:
    """Colour and dash of a model."""
    return {"color": colour(number), "ls": dash(number)}


@functools.cache
def _shown() -> AbstractSet[int]:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    font: Any = get_font(findfont(FontProperties()))
    return frozenset(font.get_charmap())


def plain(text: str, most: int = 60) -> str:
    """Text from a file, safe to draw: one line, without markup and characters that the font lacks."""
    line = " ".join(text.split())
    if len(line) > most:
        line = line[: max(most - 1, 0)] + "…"
    known = "".join(c if ord(c) in _shown() else "\N{REPLACEMENT CHARACTER}" for c in line)
    return known.replace("$", r"\$")


def labels_of(models: Sequence[str]) -> list[str]:
    """Different names for a legend: the middle of a long one is left out, because models differ at the end."""
    names = [
        name if len(name) <= _LONGEST_LABEL else f"{name[:11]}…{name[12 - _LONGEST_LABEL :]}"
        for name in models
    ]
    return [
        name if names.count(name) == 1 else f"{number}: {name[:-4]}"
        for number, name in enumerate(names)
    ]


def calm(axes: Axes, *, grid: bool = True) -> None:
    """Remove everything that is not data."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT)
    axes.tick_params(labelsize=SMALL, colors=QUIET, length=2, width=0.5)
    axes.set_axisbelow(True)
    if grid:
        axes.grid(True, color=FAINT, linewidth=0.5)


def quiet_y(axes: Axes) -> None:
    """Remove the marks of a vertical axis that has no unit."""
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)


def describe(channel: Channel) -> str:
    """A channel in a few words."""
    shape = f" [{', '.join(map(str, channel.step_shape))}]" if channel.step_shape else ""
    parts = ["text" if channel.layout == "text" else f"{channel.dtype_name}{shape}"]
    if channel.layout == "ragged":
        parts[0] += " ragged"
    if channel.layout == "video":
        parts.append(plain(channel.content_type or "", 20))
    if channel.unit:
        parts.append(plain(channel.unit, 20))
    if channel.has_own_clock:
        rate = f" {channel.sampling_rate_hz:g} Hz" if channel.sampling_rate_hz else ""
        parts.append(
            f"own clock{rate}, {channel.length} {'entry' if channel.length == 1 else 'entries'}"
        )
    if channel.inferred:
        parts.append("guessed")
    if channel.lossy is not None:
        parts.append(f"lossy {plain(str(channel.lossy.get('codec', '')), 12)}".rstrip())
    return " · ".join(parts)


def say(axes: Axes, text: str, *, at: float = 0.5) -> None:
    """Write a quiet word in the middle of a panel."""
    look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": SMALL, "color": QUIET}
    axes.text(0.5, at, text, transform=axes.transAxes, **look)


def colour_bar(axes: Axes, picture: Any, unit: str = "") -> None:  # noqa: ANN401 - matplotlib's objects
    """Add a small colour bar to the right of a panel."""
    inset = axes.inset_axes([1.012, 0.1, 0.008, 0.8])
    bar = axes.figure.colorbar(picture, cax=inset)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=SMALL - 0.5, colors=QUIET, length=1.5, width=0.4)
    bar.ax.locator_params(nbins=3)
    if unit:
        bar.ax.set_ylabel(unit, fontsize=SMALL - 0.5, color=QUIET, labelpad=2)


def key_line(ink: str = QUIET, ls: Any = "-") -> Any:  # noqa: ANN401 - matplotlib's objects
    """A line for a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], color=ink, lw=1.2, ls=ls)


def key_band() -> Any:  # noqa: ANN401 - matplotlib's objects
    """A band for a legend."""
    from matplotlib.patches import Patch

    return Patch(color=QUIET, alpha=0.2, lw=0)


LINE_INCHES: Final = 0.135
"""How high a line of a legend is."""
_COLUMNS: Final = 4
MOST_KEYS: Final = 24
"""How many lines a legend has at most."""


def legend_inches(keys: int, dimensions: int = 0) -> float:
    """How high a legend is."""
    rows = -(-dimensions // _COLUMNS) if dimensions > 1 else 0
    return LINE_INCHES * (min(keys, MOST_KEYS + 1) + rows) + 0.05 * bool(rows)


def legend(
    axes: Axes,
    keys: Sequence[tuple[str, Any]],
    dimensions: Sequence[int] = (),
    left: float = 1.012,
) -> None:
    """Add the legend, right of the data: dimensions by colour, everything else by its key."""
    from matplotlib.lines import Line2D

    look: dict[str, Any] = {
        "loc": "upper left",
        "frameon": False,
        "fontsize": SMALL,
        "borderaxespad": 0.0,
        "borderpad": 0.0,
        "labelcolor": INK,
        "handletextpad": 0.4,
        "labelspacing": 0.25,
        "columnspacing": 0.8,
    }
    inches = axes.get_position().height * axes.figure.get_figheight()
    top, count = 1.0, len(dimensions)
    if count > 1:
        columns = min(count, _COLUMNS)
        # Legends fill columns; people read rows.
        order = [n for column in range(columns) for n in range(column, count, columns)]
        lines = [Line2D([], [], color=colour(n), lw=1.6) for n in order]
        look |= {"bbox_to_anchor": (left, top), "handlelength": 0.9}
        names = [str(dimensions[n]) for n in order]
        first = axes.legend(lines, names, ncols=columns, **look)
        if keys:
            axes.add_artist(first)  # the next legend would replace it
        top -= legend_inches(0, count) / inches
    if len(keys) > MOST_KEYS:
        keys = [*keys[:MOST_KEYS], (f"… {len(keys) - MOST_KEYS} more", key_line("none"))]
    if keys:
        look |= {"bbox_to_anchor": (left, top), "handlelength": 2.6}
        axes.legend([key for _, key in keys], [text for text, _ in keys], **look)
