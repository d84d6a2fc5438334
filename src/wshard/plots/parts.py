"""Parts of panels: legends, colour bars, a word about the channel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wshard.checks.finding import counted
from wshard.plots.style import FAINT, INK, QUIET, SMALL, colour, plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wshard.channels import Channel

__all__ = ["colour_bar", "describe", "legend_lines", "row_means", "say"]


def describe(channel: Channel) -> str:
    """What is known about a channel, in a few words."""
    shape = f" [{', '.join(map(str, channel.shape))}]" if channel.shape else ""
    parts = ["text" if channel.layout == "text" else f"{channel.dtype}{shape}"]
    if channel.layout == "ragged":
        parts[0] += " ragged"
    if channel.unit:
        parts.append(plain(channel.unit, 20))
    if channel.has_own_clock:
        rate = f" {channel.sampling_rate_hz:g} Hz" if channel.sampling_rate_hz else ""
        parts.append(f"own clock{rate}, {counted(channel.length, 'entry', 'entries')}")
    if channel.inferred:
        parts.append("guessed")
    if channel.lossy is not None:
        parts.append(f"lossy {plain(str(channel.lossy.get('codec', '')), 12)}".rstrip())
    return " · ".join(parts)


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
        columns = min(dimensions, 4)
        # Legends fill columns; people read rows.
        order = [n for column in range(columns) for n in range(column, dimensions, columns)]
        first = axes.legend(
            [Line2D([], [], color=colour(n), lw=1.6) for n in order],
            [str(n) for n in order],
            loc="upper left",
            bbox_to_anchor=(1.012, top),
            ncols=columns,
            handlelength=0.9,
            **common,
        )
        if not styles:
            return
        axes.add_artist(first)
        top -= 0.17 * -(-dimensions // 4) + 0.04
    if not styles:
        return
    handles: list[Any] = []
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
