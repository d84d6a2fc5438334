"""Latent actions: what a model infers as the action between two observations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wshard._lanes import LATENT_ACTION_CHANNEL, LATENT_CODEBOOK_CHANNEL

if TYPE_CHECKING:
    from wshard._channels import Channel
    from wshard._episode import Episode

__all__ = [
    "LATENT_ACTION_CHANNEL",
    "LATENT_CODEBOOK_CHANNEL",
    "get_latent_actions",
    "get_latent_codebook",
    "set_latent_actions",
]


def set_latent_actions(
    ep: Episode,
    model_id: str,
    embeddings: Any,  # noqa: ANN401 - a channel or anything that makes one
    codebook_indices: Any = None,  # noqa: ANN401 - as above
) -> None:
    """Stores a model's latent actions [T, D] and, where it has a codebook, their indices [T]."""
    ep.omens[LATENT_ACTION_CHANNEL][model_id] = embeddings
    if codebook_indices is not None:
        ep.omens[LATENT_CODEBOOK_CHANNEL][model_id] = codebook_indices


def get_latent_actions(ep: Episode, model_id: str) -> Channel | None:
    """A model's latent actions, None if there are none."""
    return _of_model(ep, LATENT_ACTION_CHANNEL, model_id)


def get_latent_codebook(ep: Episode, model_id: str) -> Channel | None:
    """The indices of a model's latent actions in its codebook, None if there are none."""
    return _of_model(ep, LATENT_CODEBOOK_CHANNEL, model_id)


def _of_model(ep: Episode, channel: str, model_id: str) -> Channel | None:
    return ep.omens[channel].get(model_id) if channel in ep.omens else None
