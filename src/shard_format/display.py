"""What people see of a file in a notebook: small HTML cards with tables, pictures and lines.

Names, metadata and pictures come from files that may lie. Everything is escaped, cut and counted here: a card has no
scripts, no links, loads nothing, and is small whatever the file claims.
"""

from __future__ import annotations

import html
import math
import struct
import zlib
from base64 import b64encode
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

__all__ = [
    "THUMBNAIL_PIXELS",
    "Line",
    "Table",
    "card",
    "fields",
    "picture_of",
    "png",
    "size",
    "sketch_of",
    "to_pixels",
    "value_range",
]

THUMBNAIL_PIXELS: Final = 96
"""The longer side of a picture in a card."""

_UNITS: Final = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_MOST_ROWS: Final = 40
_MOST_FACTS: Final = 16
_MOST_FIELDS: Final = 8
_MOST_PICTURES: Final = 6
_MOST_PLOTS: Final = 6
_MOST_LINES: Final = 3
_PLOT_COLUMNS: Final = 60
_PLOT_WIDTH: Final = 180
_PLOT_HEIGHT: Final = 40
# Of Okabe and Ito: told apart by colour-blind people, visible on white and on black.
_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73")
_LONGEST_CELL: Final = 60
_MOST_DIGITS: Final = 256
_LEFT: Final = 'style="text-align:left;vertical-align:top;padding:1px 8px 1px 0"'


# --- text


def size(count: int) -> str:
    """`1.2 MiB`, in powers of two as the specification counts."""
    if count < 1024:
        return f"{count} B"
    value = float(count)
    for unit in _UNITS:
        value /= 1024
        if value < 999.5 or unit == _UNITS[-1]:
            break
    return f"{value:.1f} {unit}" if value < 99.95 else f"{value:.0f} {unit}"


def fields(values: Mapping[Any, Any]) -> list[tuple[str, str]]:
    """The first fields of a dictionary of a file in a few words each, and how many more there are."""
    found = [
        (_in_short(name), _in_short(value)) for name, value in islice(values.items(), _MOST_FIELDS)
    ]
    more = len(values) - len(found)
    return [*found, ("…", f"{more} more")] if more else found


def _in_short(value: object) -> str:
    """Any JSON value in at most some 60 characters; containers as their size."""
    if isinstance(value, dict):
        return f"{{{len(value)} field{'' if len(value) == 1 else 's'}}}"
    if isinstance(value, (list, tuple)):
        return f"[{len(value)} item{'' if len(value) == 1 else 's'}]"
    if isinstance(value, int) and value.bit_length() > _MOST_DIGITS:
        return f"an integer of {value.bit_length()} bits"
    text = value if isinstance(value, str) else str(value)
    if len(text) > _LONGEST_CELL:
        # Both ends: paths and names differ at the end.
        half = _LONGEST_CELL // 2
        text = f"{text[:half]}…{text[-half:]}"
    return _visible(text)


def _visible(text: str) -> str:
    """The text with everything escaped that a page might obey or hide: line breaks, marks of direction."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text
    )


# --- cards


class Table(NamedTuple):
    """A table of a card. Only its first rows are taken out of `rows`."""

    columns: Sequence[str]
    rows: Iterable[Sequence[object]]
    total: int
    """How many rows there are."""


class Line(NamedTuple):
    """Values over time in a small plot."""

    points: NDArray[np.float64]
    """As `sketch_of` returns them."""
    is_prediction: bool = False
    """Whether it is drawn with dashes."""


def card(
    heading: str,
    facts: Iterable[tuple[str, object]] = (),
    table: Table | None = None,
    pictures: Mapping[str, NDArray[np.uint8]] | None = None,
    note: str = "",
    plots: Iterable[tuple[str, Sequence[Line]]] = (),
) -> str:
    """A small piece of HTML for a notebook.

    Args:
        heading: what it is.
        facts: names and values, shown as lines.
        table: what it consists of.
        pictures: by caption, as `to_pixels` returns them.
        note: a sentence below, such as what could not be read.
        plots: captions and lines, of which only the first plots are made.
    """
    parts = [f"<div><strong>{_escaped(heading)}</strong>"]
    lines = [
        f"<tr><td {_LEFT}>{_escaped(name)}</td><td {_LEFT}>{_escaped(value)}</td></tr>"
        for name, value in islice(facts, _MOST_FACTS)
    ]
    if lines:
        parts.append(f"<table><tbody>{''.join(lines)}</tbody></table>")
    if pictures:
        parts.append("<div>")
        parts += [_figure(name, each) for name, each in islice(pictures.items(), _MOST_PICTURES)]
        parts.append("</div>")
    drawn = [_plot(name, lines) for name, lines in islice(plots, _MOST_PLOTS)]
    if drawn:
        parts.append(f"<div>{''.join(drawn)}</div>")
    if table is not None and table.total:
        parts.append(_table(table))
    if note:
        parts.append(f"<div><em>{html.escape(_visible(note[:300]))}</em></div>")
    return "".join((*parts, "</div>"))


def _table(table: Table) -> str:
    head = "".join(f"<th {_LEFT}>{_escaped(name)}</th>" for name in table.columns)
    rows = [
        "".join(f"<td {_LEFT}>{_escaped(cell)}</td>" for cell in row)
        for row in islice(table.rows, _MOST_ROWS)
    ]
    if table.total > len(rows):
        more = f"… and {table.total - len(rows)} more"
        rows.append(f'<td colspan="{len(table.columns)}" {_LEFT}>{more}</td>')
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _figure(caption: str, pixels: NDArray[np.uint8]) -> str:
    height, width = pixels.shape[:2]
    # Tiny frames are shown larger, with their pixels as squares.
    scale = max(1, THUMBNAIL_PIXELS // max(height, width))
    look = ";image-rendering:pixelated" if scale > 1 else ""
    text = _escaped(caption)
    data = b64encode(png(pixels)).decode("ascii")
    return (
        '<figure style="display:inline-block;margin:4px 8px 4px 0">'
        f'<img width="{width * scale}" height="{height * scale}" alt="{text}" style="margin:0{look}" '
        f'src="data:image/png;base64,{data}"><figcaption>{text}</figcaption></figure>'
    )


def _plot(caption: str, lines: Sequence[Line]) -> str:
    finite = np.concatenate([line.points[np.isfinite(line.points)] for line in lines])
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    text = f"{_escaped(caption)} · {low:.4g} … {high:.4g}" if finite.size else _escaped(caption)
    middle, half = low / 2 + high / 2, high / 2 - low / 2
    drawn = []
    for line in lines:
        dashes = ' stroke-dasharray="3 2"' if line.is_prediction else ""
        # Halves, because the largest numbers have no difference.
        heights = (line.points / 2 - middle / 2) / half if half > 0 else line.points * 0.0
        for number in range(line.points.shape[1]):
            drawn += [
                f'<polyline points="{points}" stroke="{_COLOURS[number]}"{dashes}/>'
                for points in _runs(heights[:, number])
            ]
    return (
        '<figure style="display:inline-block;margin:4px 8px 4px 0">'
        f'<svg width="{_PLOT_WIDTH}" height="{_PLOT_HEIGHT}" role="img" aria-label="{text}" fill="none">'
        f"{''.join(drawn)}</svg><figcaption>{text}</figcaption></figure>"
    )


def _runs(heights: NDArray[np.float64]) -> list[str]:
    """The points of a line between its gaps; heights are from -0.5 to 0.5."""
    across = np.linspace(2, _PLOT_WIDTH - 2, len(heights)) if len(heights) > 1 else np.array([2.0])
    up = _PLOT_HEIGHT / 2 - heights * (_PLOT_HEIGHT - 4)
    runs: list[list[str]] = [[]]
    for x, y in zip(across.tolist(), up.tolist(), strict=True):
        if math.isfinite(y):
            runs[-1].append(f"{x:.0f},{y:.1f}")
        elif runs[-1]:
            runs.append([])
    # A point of its own is shown as a short line.
    return [" ".join(run if len(run) > 1 else run * 2) for run in runs if run]


def _escaped(value: object) -> str:
    return html.escape(_in_short("" if value is None else value))


# --- lines and pictures


def sketch_of(values: NDArray[Any]) -> NDArray[np.float64]:
    """The first dimensions of values over time as [points, dimensions], with the extremes of long ones.

    Missing values are NaN.
    """
    with np.errstate(all="ignore"):
        points = values.reshape(len(values), -1)[:, :_MOST_LINES].astype(np.float64)
    points[~np.isfinite(points)] = np.nan
    if len(points) <= 2 * _PLOT_COLUMNS:
        return points
    starts = np.linspace(0, len(points), _PLOT_COLUMNS, endpoint=False).astype(np.int64)
    extremes = (np.fmin.reduceat(points, starts), np.fmax.reduceat(points, starts))
    return np.stack(extremes, axis=1).reshape(-1, points.shape[1])


def picture_of(frame: NDArray[Any], most: int = THUMBNAIL_PIXELS) -> NDArray[np.float64]:
    """A frame of any common form as [height, width] or [height, width, 3], each side at most `most`.

    Colours may be the first or the last axis. Of more axes the first element is taken, of more than three colours the
    first three. Pixels are picked, not averaged.
    """
    picture = frame[(0,) * max(frame.ndim - 3, 0)]
    if picture.ndim == 3:
        if picture.shape[2] > 4 and picture.shape[0] <= 4:
            picture = np.moveaxis(picture, 0, -1)
        picture = picture[..., :3] if picture.shape[-1] >= 3 else picture[..., 0]
    step = max(1, -(-max(picture.shape[:2]) // most))
    with np.errstate(all="ignore"):
        small: NDArray[np.float64] = picture[::step, ::step].astype(np.float64)
    return small


def value_range(pictures: Sequence[NDArray[np.float64]]) -> tuple[float, float]:
    """What counts as black and white in all of them."""
    finite = [picture[np.isfinite(picture)] for picture in pictures]
    low = min((float(values.min()) for values in finite if values.size), default=0.0)
    high = max((float(values.max()) for values in finite if values.size), default=1.0)
    if pictures[0].ndim == 3:
        # Colours have a range of their own: 0 to 1, or 0 to 255.
        low, high = min(low, 0.0), (255.0 if high > 1.0 else 1.0)
    return low, high if high > low else low + 1.0


def to_pixels(picture: NDArray[np.float64], low: float, high: float) -> NDArray[np.uint8]:
    """A picture of `picture_of` as bytes, `low` as 0 and `high` as 255; black where it is not a number."""
    with np.errstate(all="ignore"):
        scaled = (picture - low) * (255.0 / (high - low))
        pixels: NDArray[np.uint8] = np.nan_to_num(scaled).clip(0, 255).astype(np.uint8)
    return pixels


def png(pixels: NDArray[np.uint8]) -> bytes:
    """A PNG file of [height, width] or [height, width, 3]."""
    height, width = pixels.shape[:2]
    rows = np.zeros((height, 1 + pixels[0].size), np.uint8)  # each row starts with its filter: none
    rows[:, 1:] = pixels.reshape(height, -1)
    colour_type = 2 if pixels.ndim == 3 else 0
    head = struct.pack(">IIBBBBB", width, height, 8, colour_type, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows.tobytes(), 6)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
