"""The names of blocks: which lane, channel and model an entry belongs to (spec/wshard.md, section 2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shard_format.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["LANES", "LATENT_ACTION_CHANNEL", "LATENT_CODEBOOK_CHANNEL", "BlockName", "parse_block"]

LANES: Final = (
    *("signal", "action", "reward", "done", "time", "omen", "uncert", "residual", "label"),
    *("meta", "offsets"),
)
"""The lanes, as block names start. Everything else is kept under its name."""

META_WSHARD: Final = "meta/wshard"
META_EPISODE: Final = "meta/episode"
META_CHANNELS: Final = "meta/channels"
META_PROVENANCE: Final = "meta/provenance"
META_SIDECAR: Final = "meta/sidecar"
REWARD: Final = "reward"
REWARD_EXACT: Final = "reward/exact"
DONE: Final = "done"
TERMINATED: Final = "terminated"
TRUNCATED: Final = "truncated"
TICKS: Final = "time/ticks"
TIMESTAMPS: Final = "time/timestamps_ns"

LATENT_ACTION_CHANNEL: Final = "latent_action"
"""The channel of `omen/` that holds continuous latent actions."""
LATENT_CODEBOOK_CHANNEL: Final = "latent_action_codebook"
"""The channel of `omen/` that holds their indices in a codebook."""

SIGN_RESIDUAL: Final = "sign2nddiff"
DELTA_RESIDUAL: Final = "delta_q"
SCALES: Final = "/scales"


class BlockName(NamedTuple):
    """A block's name, taken apart."""

    lane: str
    """The part before the first `/`, or all of it."""
    channel: str
    """The channel that the block is, or is about."""
    model: str = ""
    """Whose prediction, uncertainty or residual it is."""
    kind: str = ""
    """The type of an uncertainty or a residual."""


def parse_block(name: str) -> BlockName:
    """Takes a name apart by its form alone, as readers do where no row says more."""
    lane, _, rest = name.partition("/")
    if lane == "omen":
        channel, _, model = rest.partition("/")
        return BlockName(lane, channel, model)
    if lane == "uncert":
        channel, _, rest = rest.partition("/")
        model, _, kind = rest.rpartition("/")
        return BlockName(lane, channel, model, kind)
    if lane == "residual":
        channel, _, kind = rest.rpartition("/")
        return BlockName(lane, channel, "", kind)
    return BlockName(lane, rest)


def lane_path(block: str, row_id: str | None, fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Under which keys an episode has a block of `signal/`, `action/`, `omen/`, `uncert/` or `residual/`.

    Args:
        block: its name.
        row_id: the id in its row, None without one.
        fields: its row.
    """
    lane, channel, model, kind = parse_block(block)
    if lane in ("signal", "action"):
        return (channel if row_id is None else row_id,)
    channel = fields.get("channel") or channel
    if lane == "omen":
        return channel, fields.get("model") or model
    told = fields.get("model")
    return channel, model if told is None else told, fields.get("type") or kind


def omen_block(channel: str, model: str) -> str:
    """The block of a prediction."""
    return f"omen/{channel}/{model}"


def uncert_block(channel: str, model: str, kind: str) -> str:
    """The block of an uncertainty; without a model the older form with two parts."""
    return f"uncert/{channel}/{model}/{kind}" if model else f"uncert/{channel}/{kind}"


def residual_block(channel: str, model: str, kind: str) -> str:
    """The block of a residual, against the signal or against a model's prediction."""
    return f"residual/{channel}/{model}/{kind}" if model else f"residual/{channel}/{kind}"


def residual_key(block: str) -> str:
    """Under which key `Episode.residuals` has a residual block."""
    return block.removeprefix("residual/").removesuffix("/" + SIGN_RESIDUAL)


def time_block(block: str) -> str:
    """The block of a channel's own clock."""
    return f"time/{block}"


def offsets_block(block: str) -> str:
    """The block that says where the items of a ragged channel start."""
    return f"offsets/{block}"


def check_id(name: object, what: str) -> None:
    """W-NAM-1: what a user calls a channel or a model must make a plain name."""
    if not isinstance(name, str):
        raise InvalidArgument(f"the name of {what} is not a string", found=repr(name))
    parts = name.split("/")
    if "" in parts or "." in parts or ".." in parts:
        raise InvalidArgument(
            f"the name of {what} has an empty part or a part '.' or '..'",
            expected="parts between slashes that are names, such as 'wrist/rgb'",
            found=repr(name),
            rule="W-NAM-1",
        )
    if "\0" in name:
        raise InvalidArgument(f"the name of {what} holds U+0000", found=repr(name), rule="W-NAM-1")
