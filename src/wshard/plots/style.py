"""How plots look: few colours, thin lines, words that any font can show."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

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
    """Text from a file, safe to draw: one line, no markup, no characters that the font lacks."""
    line = " ".join(text.split())
    if len(line) > most:
        line = line[: max(most - 1, 0)] + "…"
    known = "".join(c if ord(c) in _shown() else "\N{REPLACEMENT CHARACTER}" for c in line)
    return known.replace("$", r"\$")


def calm(axes: Any, *, grid: bool = True) -> None:  # noqa: ANN401 - matplotlib's axes
    """Takes away everything that is not data."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT)
    axes.tick_params(labelsize=SMALL, colors=QUIET, length=2, width=0.5)
    axes.set_axisbelow(True)
    if grid:
        axes.grid(True, color=FAINT, linewidth=0.5)


def quiet_y(axes: Any) -> None:  # noqa: ANN401 - matplotlib's axes
    """No marks on the vertical axis: it has no unit."""
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
