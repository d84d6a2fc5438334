"""Groups of sensors: `signal/{group}/{modality}`, such as `wrist/rgb` and `wrist/depth`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wshard._channels import Channel, Modality, as_channel, is_frames

if TYPE_CHECKING:
    from wshard._episode import Episode

__all__ = ["add_multimodal_observation", "get_multimodal_observations", "is_frames"]


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
