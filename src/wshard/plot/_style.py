"""How plots look: few colours, thin lines, words that any font can show; legends and colour bars."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

    from wshard.types import Channel

Axes: TypeAlias = Any
"""Axes of matplotlib, which is imported only when something is drawn."""

COLOURS: Final = (
    *("#3b6ea8", "#d07f3c", "#4d9a6a", "#b4504e"),
    *("#7c68a6", "#8a7060", "#c07aa0", "#5f9aa6"),
)
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


def colour_bar(axes: Axes, picture: Any) -> None:  # noqa: ANN401 - matplotlib's objects
    """Add a small colour bar to the right of a panel."""
    inset = axes.inset_axes([1.012, 0.1, 0.008, 0.8])
    bar = axes.figure.colorbar(picture, cax=inset)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=SMALL - 0.5, colors=QUIET, length=1.5, width=0.4)
    bar.ax.locator_params(nbins=3)


def key_line(ink: str = QUIET, dash: Any = "-") -> Any:  # noqa: ANN401 - matplotlib's objects
    """A line for a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], color=ink, lw=1.2, ls=dash)


def key_band(ink: str = QUIET) -> Any:  # noqa: ANN401 - matplotlib's objects
    """A band for a legend."""
    from matplotlib.patches import Patch

    return Patch(color=ink, alpha=0.2, lw=0)


def legend(axes: Axes, keys: Mapping[str, Any], dimensions: int = 0) -> None:
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
    top = 1.0
    if dimensions > 1:
        columns = min(dimensions, 4)
        # Legends fill columns; people read rows.
        order = [n for column in range(columns) for n in range(column, dimensions, columns)]
        lines = [Line2D([], [], color=colour(n), lw=1.6) for n in order]
        look |= {"bbox_to_anchor": (1.012, top), "handlelength": 0.9}
        first = axes.legend(lines, [str(n) for n in order], ncols=columns, **look)
        if keys:
            axes.add_artist(first)  # the next legend would replace it
        top -= 0.17 * -(-dimensions // 4) + 0.04
    if keys:
        look |= {"bbox_to_anchor": (1.012, top), "handlelength": 1.8}
        axes.legend(list(keys.values()), list(keys), **look)
