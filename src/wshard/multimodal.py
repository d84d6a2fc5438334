"""Groups of sensors: `signal/{group}/{modality}`, such as `wrist/rgb` and `wrist/depth`."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, Final

from wshard._channels import Channel, Modality, RaggedChannel, as_channel

if TYPE_CHECKING:
    from wshard._episode import Episode

__all__ = ["add_multimodal_observation", "get_multimodal_observations", "is_frames"]

_FRAMES: Final = (Modality.RGB, Modality.DEPTH, Modality.VIDEO)
_SMALLEST_FRAME: Final = 8


def add_multimodal_observation(
    ep: Episode,
    group: str,
    modality: Modality | str,
    channel: Any,  # noqa: ANN401 - a channel or anything that makes one
) -> Channel:
    """Adds the observation `{group}/{modality}`; returns its channel."""
    kind = Modality(modality)
    name = f"{group}/{kind.value}"
    made = as_channel(channel, name)
    made.modality = kind
    ep.observations[name] = made
    return made


def get_multimodal_observations(
    ep: Episode, group: str | None = None, modality: Modality | str | None = None
) -> dict[str, Channel]:
    """The observations of a group, of a modality, or of both; all with neither."""
    return {
        name: channel
        for name, channel in ep.observations.items()
        if (group is None or name == group or name.startswith(group + "/"))
        and (modality is None or channel.modality == modality)
    }


def is_frames(channel: Channel) -> bool:
    """Whether each step of a channel is a picture, judged by its modality or else by its shape."""
    if isinstance(channel, RaggedChannel) or len(channel.step_shape) < 2:
        return False
    if channel.modality in _FRAMES:
        return True
    large = sorted(channel.step_shape)[-2]
    return channel.modality is None and large >= _SMALLEST_FRAME and prod(channel.step_shape) >= 64
