"""Film strips: a few frames of a camera, side by side along time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from wshard.channels import Modality
from wshard.dtypes import as_numbers
from wshard.plots.parts import colour_bar, say
from wshard.plots.style import SMALL, calm, quiet_y

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wshard.channels import Channel
    from wshard.episode import Episode
    from wshard.plots.series import Clock

__all__ = ["draw_strip", "strip_height"]

_THUMBNAILS: Final = 8
_THUMBNAIL_PIXELS: Final = 160


def strip_height(channel: Channel, width_inches: float) -> float:
    """Inches that a strip of this width needs so that frames keep their form."""
    height, width, _ = _picture_axes(channel.shape)
    return float(min(max(width_inches / _THUMBNAILS * height / max(width, 1), 0.5), 1.5))


def draw_strip(
    axes: Any,  # noqa: ANN401 - matplotlib's axes
    episode: Episode,
    clock: Clock,
    channel: Channel,
) -> None:
    """Some frames of a channel, each at its time."""
    calm(axes, grid=False)
    quiet_y(axes)
    axes.set_ylim(0, 1)
    start, stop, seconds, moved = clock.entries(episode, channel)
    if stop <= start:
        say(axes, "nothing to see in this span")
        return
    slot = (clock.high_s - clock.low_s) / _THUMBNAILS
    centres = clock.low_s + slot * (np.arange(_THUMBNAILS) + 0.5)
    nearest = np.abs(seconds[:, None] - centres[None, :]).argmin(axis=0)
    chosen = list(dict.fromkeys(nearest.tolist()))
    reading = channel._shallow()
    pictures = [_thumbnail(reading, start + at) for at in chosen]
    low, high = _range_of(pictures)
    is_colour = pictures[0].ndim == 3
    box = axes.get_position()
    figure = axes.figure
    inches = (
        box.width * figure.get_figwidth() / _THUMBNAILS,
        box.height * figure.get_figheight(),
    )
    shown = None
    # Few frames stand where they belong, many side by side.
    spread = len(chosen) == _THUMBNAILS
    for place, (at, picture) in enumerate(zip(chosen, pictures, strict=True)):
        middle = centres[place] if spread else float(seconds[at]) + slot / 2
        middle = min(max(middle, clock.low_s + slot / 2), clock.high_s - slot / 2)
        ratio = picture.shape[1] / picture.shape[0]
        half = slot / 2 * min(1.0, inches[1] * ratio / inches[0]) * 0.97
        tall = min(1.0, inches[0] / ratio / inches[1]) * 0.97
        shown = axes.imshow(
            picture if not is_colour else np.clip((picture - low) / (high - low), 0, 1),
            extent=(middle - half, middle + half, 0.5 - tall / 2, 0.5 + tall / 2),
            aspect="auto",
            interpolation="nearest" if max(picture.shape[:2]) < 32 else "antialiased",
            cmap="gray" if _is_grey(channel) else "viridis",
            vmin=None if is_colour else low,
            vmax=None if is_colour else high,
        )
        axes.text(
            middle - half + slot * 0.02,
            0.5 - tall / 2 + 0.03,
            f"{float(seconds[at]):.4g} s",
            fontsize=SMALL - 1,
            color="white",
            va="bottom",
            bbox={"boxstyle": "square,pad=0.15", "fc": "#00000066", "ec": "none"},
        )
    axes.set_ylim(0, 1)
    if moved:
        say(axes, "its clock lies outside the episode: drawn from the left edge on", at=0.93)
    if not is_colour and shown is not None:
        colour_bar(axes, shown)


def _thumbnail(channel: Channel, entry: int) -> Any:  # noqa: ANN401 - an array
    """One frame as [H, W] or [H, W, 3], small enough."""
    height, width, channels_first = _picture_axes(channel.shape)
    frame = as_numbers(channel.read_steps(entry, entry + 1), channel.dtype)[0]
    with np.errstate(all="ignore"):
        numbers = frame.astype(np.float64)
    if len(channel.shape) > 3:
        numbers = numbers.reshape(-1, *channel.shape[-3:])[0]
    if numbers.ndim == 3:
        numbers = np.moveaxis(numbers, 0, -1) if channels_first else numbers
        numbers = numbers[..., :3] if numbers.shape[-1] >= 3 else numbers[..., 0]
    step = max(1, -(-max(height, width) // _THUMBNAIL_PIXELS))
    return numbers[::step, ::step]


def _picture_axes(shape: tuple[int, ...]) -> tuple[int, int, bool]:
    """Height and width of a frame, and whether its colours come first."""
    last = shape[-3:]
    if len(last) == 3 and last[2] > 4 and last[0] <= 4:
        return last[1], last[2], True
    if len(last) == 3:
        return last[0], last[1], False
    return last[0], last[1], False


def _is_grey(channel: Channel) -> bool:
    return channel.modality != Modality.DEPTH and (
        channel.dtype == "u8" or channel.modality is not None
    )


def _range_of(pictures: Sequence[Any]) -> tuple[float, float]:
    """What counts as black and white in all of them."""
    finite = [picture[np.isfinite(picture)] for picture in pictures]
    low = min((float(values.min()) for values in finite if values.size), default=0.0)
    high = max((float(values.max()) for values in finite if values.size), default=1.0)
    if pictures[0].ndim == 3:
        # Colours have a range of their own: 0 to 1, or 0 to 255.
        low, high = min(low, 0.0), (255.0 if high > 1.0 else 1.0)
    return low, high if high > low else low + 1.0
