"""Which lane a block belongs to: the names of blocks, and the one table of lanes (spec/wshard.md, section 2).

Every part of an episode has an address: the lane, and its keys there. `("signal", "joint_pos")` is the observation
`joint_pos`, `("omen", "joint_pos", "dreamer")` what the model `dreamer` predicted for it, `("reward",)` the reward.
What the format does not define has an address of the lane `EXTRA`. The name of the block in a file mostly follows from
the address (`block_name`), and the address from the name (`address_of`); rows of `meta/channels` may say otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from shard_format.errors import EntryNotFound, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["LANES", "Address", "BlockName", "Lane", "parse_block"]

Address: TypeAlias = tuple[str, ...]
"""The lane, and the keys of one part of an episode there."""

META_WSHARD: Final = "meta/wshard"
META_EPISODE: Final = "meta/episode"
META_CHANNELS: Final = "meta/channels"
META_PROVENANCE: Final = "meta/provenance"
META_SIDECAR: Final = "meta/sidecar"
META_EDIT: Final = "meta/edit"
REWARD: Final = "reward"
REWARD_EXACT: Final = "reward/exact"
DONE: Final = "done"
TERMINATED: Final = "terminated"
TRUNCATED: Final = "truncated"
TICKS: Final = "time/ticks"
TIMESTAMPS: Final = "time/timestamps_ns"
EXTRA: Final = ""
"""The lane of entries that the format does not define."""

LATENT_ACTION_CHANNEL: Final = "latent_action"
"""The channel of `omen/` that holds continuous latent actions."""
LATENT_CODEBOOK_CHANNEL: Final = "latent_action_codebook"
"""The channel of `omen/` that holds their indices in a codebook."""

SIGN_RESIDUAL: Final = "sign2nddiff"
DELTA_RESIDUAL: Final = "delta_q"
SCALES: Final = "/scales"
_MODEL: Final = "a model"


class Lane(NamedTuple):
    """One row of the table of lanes."""

    view: str
    """The attribute of `Episode` that shows the lane."""
    keys: tuple[str, ...] = ()
    """What each of its keys is, for errors."""
    may_have_one_more: bool = False
    """Whether its blocks may hold the entry after the last step (W-BLK-2)."""
    filter_name: str = ""
    """The name that `load_wshard(lanes=…)` knows it by, if that is not the lane itself."""


LANES: Final[dict[str, Lane]] = {
    "signal": Lane("observations", ("an observation",), may_have_one_more=True),
    "action": Lane("actions", ("an action",)),
    REWARD: Lane("rewards"),
    TERMINATED: Lane("terminations", filter_name=DONE),
    TRUNCATED: Lane("truncations", filter_name=DONE),
    TICKS: Lane("ticks", filter_name="time"),
    TIMESTAMPS: Lane("timestamps_ns", filter_name="time"),
    "omen": Lane("omens", ("a predicted channel", _MODEL), may_have_one_more=True),
    "uncert": Lane(
        "uncerts", ("a predicted channel", _MODEL, "an uncertainty"), may_have_one_more=True
    ),
    "residual": Lane("residuals", ("a residual",)),
    "label": Lane("labels", ("a label",)),
    EXTRA: Lane("extras", ("an entry",), may_have_one_more=True),
}
"""The lanes of an episode, in the order in which `Episode.blocks` and files have them."""

_CHANNEL_LANES = ("signal", "action", REWARD, TERMINATED, TRUNCATED, "omen", "uncert")
CHANNEL_LANES: Final = {lane: place for place, lane in enumerate(_CHANNEL_LANES)}
"""The lanes that hold channels, without the clocks of the steps, and the place of each among them."""
FILTER_NAMES: Final = (
    *("signal", "action", REWARD, DONE, "time", "omen", "uncert", "residual", "label"),
    *("meta", "offsets", "frames"),
)
"""What `load_wshard(lanes=…)` takes besides the first part of any other name."""


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
    """Splits a name by its form alone, as readers do if no row says more."""
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


def address_of(
    name: str, row_id: str | None = None, fields: Mapping[str, Any] | None = None
) -> Address:
    """The address of a block of `signal/`, `action/`, `omen/`, `uncert/` or `label/`, by its name and its row.

    A block without a channel, a model or a type in its name or row is an extra (W-NAM-2).

    Args:
        name: the block.
        row_id: the id in its row; None without a row.
        fields: its row.
    """
    lane, channel, model, kind = parse_block(name)
    if lane in ("signal", "action", "label"):
        key = channel if row_id is None or not channel else row_id
        return (lane, key) if key else (EXTRA, name)
    channel, model, kind = prediction_keys(name, fields or {})
    if lane == "omen" and channel and model:
        return lane, channel, model
    if lane == "uncert" and channel and kind:
        return lane, channel, model, kind
    return EXTRA, name


def prediction_keys(name: str, fields: Mapping[str, Any]) -> tuple[str, str, str]:
    """Channel, model and type of a block of `omen/`, `uncert/` or `residual/`; its row has the last word."""
    _, channel, model, kind = parse_block(name)
    told = fields.get("model")
    return (
        fields.get("channel") or channel,
        model if told is None or (not told and name.startswith("omen/")) else told,
        fields.get("type") or kind,
    )


def block_name(address: Address) -> str:
    """The block that an address makes; an uncertainty without a model has the older form with two parts."""
    lane = address[0]
    if lane == EXTRA:
        return address[1]
    return "/".join(filter(None, address) if lane == "uncert" else address)


def residual_block(channel: str, model: str, kind: str) -> str:
    """The block of a residual, against the signal or against a model's prediction."""
    return "/".join(filter(None, ("residual", channel, model, kind)))


def residual_key(block: str) -> str:
    """Under which key `Episode.residuals` has a residual block."""
    return block.removeprefix("residual/").removesuffix("/" + SIGN_RESIDUAL)


def time_block(block: str) -> str:
    """The block of a channel's own clock."""
    return f"time/{block}"


def offsets_block(block: str) -> str:
    """The block that says where the items of a ragged channel start, or the packets of a video."""
    return f"offsets/{block}"


def frames_block(block: str) -> str:
    """The block that says what each packet of a video is."""
    return f"frames/{block}"


def may_have_one_more(block: str) -> bool:
    """Whether a block may hold the entry after the last step, by its name (W-BLK-2)."""
    lane = LANES.get(block.partition("/")[0])
    return lane is not None and lane.may_have_one_more


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


def check_address(address: Address) -> None:
    """W-NAM-1 for every key of an address; only an uncertainty may have an empty model."""
    for key, what in zip(address[1:], LANES[address[0]].keys, strict=True):
        if key or what != _MODEL or address[0] == "omen":
            check_id(key, what)


def not_found(
    problem: str, wanted: str, candidates: Iterable[str], path: str | None = None
) -> EntryNotFound:
    """The error for a name that is not there, which suggests similar ones."""
    error = EntryNotFound(problem, path=path)
    error.wanted, error.candidates = wanted, list(candidates)
    return error
