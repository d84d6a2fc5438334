"""Rows of `meta/channels` to channels and back, and guesses for blocks without a row (spec/wshard.md, sections 3, 10)."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from shard_format.errors import BadMetadata, BadProfile, InvalidArgument, UnknownLayout
from wshard._channels import (
    Channel,
    RaggedChannel,
    TextChannel,
    UnreadableChannel,
    as_modality,
)
from wshard._lanes import (
    LATENT_ACTION_CHANNEL,
    LATENT_CODEBOOK_CHANNEL,
    frames_block,
    may_have_one_more,
    offsets_block,
    parse_block,
)
from wshard._metadata import BASIC_FIELDS, CHANNEL_FIELDS, ROW_FIELDS, parse_row
from wshard._values import DType
from wshard._video import VideoChannel, extradata_of, extradata_text, row_problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from shard_format.errors import ShardError
    from wshard._blocks import Block
    from wshard._metadata import Row

_LAYOUTS: dict[str, type[Channel]] = {
    "ragged": RaggedChannel,
    "text": TextChannel,
    "video": VideoChannel,
}


def channel_from_row(
    row: Row, name: str, block: Block, length: int, find: Callable[[str], Block | None]
) -> Channel:
    """The channel that a row describes, still in its file.

    Args:
        row: the description.
        name: what the episode calls it.
        block: its bytes.
        length: T.
        find: gives the blocks of clocks and offsets by name.
    """
    fields = row.fields
    stated, layout = fields.get("length"), fields.get("layout")
    is_dense = layout is None or layout == "dense"
    count = length if stated is None else stated
    step = prod(row.shape) * row.dtype.size
    # The size of a ragged block counts items, not steps.
    if step and block.nbytes == (length + 1) * step and stated is None and is_dense:
        count += may_have_one_more(block.name)
    kind: Any = Channel
    if not is_dense:
        fits = _misfit(row) is None
        kind = _LAYOUTS.get(layout or "", UnreadableChannel) if fits else UnreadableChannel
    channel: Channel = kind.from_source(name, block, row.dtype, row.shape, count)
    if fields.keys() <= BASIC_FIELDS:
        return channel
    if stated not in (None, length, length + may_have_one_more(block.name)):
        channel.has_stated_length = True
    if isinstance(channel, (RaggedChannel, VideoChannel)):
        stored = fields.get("offsets_block")
        found = None if stored is None else find(stored)
        rule = "W-VID-1" if isinstance(channel, VideoChannel) else "W-RAG-1"
        channel.offsets_source = found or _Absent(stored or offsets_block(block.name), block, rule)
        stored = fields.get("frames_block")
        if isinstance(channel, VideoChannel):
            channel.extradata = extradata_of(fields.get("extradata")) or b""
            if stored is not None:
                channel.frames_source = find(stored) or _Absent(stored, block, "W-VID-2")
    elif isinstance(channel, UnreadableChannel):
        channel.row = row
        channel.problem = partial(_unreadable, row, block)
    for key in CHANNEL_FIELDS:
        value = fields.get(key)
        if value is not None:
            setattr(channel, key, deepcopy(value) if key == "lossy" else value)
    if fields.get("modality") is not None:
        channel.modality = as_modality(fields["modality"])
    clock = fields.get("time_block")
    if clock is not None:
        channel.clock_source = find(clock) or _Absent(clock, block, "W-TIM-3")
    extra = {key: value for key, value in fields.items() if key not in ROW_FIELDS}
    if extra:
        channel.extra = deepcopy(extra)
    return channel


def _misfit(row: Row) -> tuple[str, str, str] | None:
    """What is wrong with a row for its layout, what was found, and the rule; None if nothing."""
    fields = row.fields
    layout = fields.get("layout")
    if layout == "text" and (row.dtype is not DType.UINT8 or row.shape):
        found = f"{row.dtype} {list(row.shape)}"
        return (
            "a text channel is not described as bytes, with dtype u8 and shape []",
            found,
            "W-RAG-5",
        )
    if layout == "video":
        problem = row_problem(fields.get("content_type"), row.dtype, row.shape)
        if problem is None and extradata_of(fields.get("extradata")) is None:
            problem = "'extradata' of a video is not Base64", repr(fields["extradata"])[:80]
        if problem is not None:
            return (*problem, "W-VID-5")
    return None


def _unreadable(row: Row, block: Block) -> ShardError:
    misfit = _misfit(row)
    if misfit is not None:
        problem, found, rule = misfit
        return BadMetadata(problem, path=block.path, entry=block.name, found=found, rule=rule)
    layout = row.fields.get("layout")
    return UnknownLayout(
        f"the channel has a layout {layout!r} that this version does not know",
        path=block.path,
        entry=block.name,
        expected="dense, ragged, text or video",
        rule="W-CHN-7",
        hint="a newer version of shard-format may read it",
    )


class _Absent:
    """Stands for a block that a row names and the file lacks; reading it raises the error."""

    is_compressed = is_cut_cheaply = False

    def __init__(self, name: str, wanted_by: Block, rule: str) -> None:
        self.name = name
        self.path = wanted_by.path
        self._wanted_by = wanted_by.name
        self._rule = rule

    @property
    def nbytes(self) -> int:
        raise BadProfile(
            f"the block {self.name!r}, which this one needs, is not in the file",
            path=self.path,
            entry=self._wanted_by,
            rule=self._rule,
        )

    def array(self, *_: object) -> Any:  # noqa: ANN401 - never returns
        return self.nbytes

    part = read_into = pieces = array


def basic_fields(name: str, block: str, dtype: DType, shape: tuple[int, ...]) -> dict[str, Any]:
    """The fields that every row has."""
    return {"dtype": dtype.value, "id": name, "shape": list(shape), "signal_block": block}


def row_fields(channel: Channel, name: str, block: str, length: int) -> dict[str, Any]:
    """The row that our writers store for a channel.

    Args:
        channel: the channel.
        name: its id in the row.
        block: its block.
        length: T; the row of a channel of another length states it.
    """
    fields = {**channel.extra, **basic_fields(name, block, channel.dtype_name, channel.step_shape)}
    if channel.length != length:
        fields["length"] = channel.length
    if isinstance(channel, (RaggedChannel, VideoChannel)):
        fields["layout"] = channel.layout
        fields["offsets_block"] = offsets_block(block)
    if isinstance(channel, VideoChannel):
        if channel.frames_source is not None:
            fields["frames_block"] = frames_block(block)
        if channel.extradata:
            fields["extradata"] = extradata_text(channel.extradata)
    if channel.modality is not None:
        fields["modality"] = str(channel.modality)
    for key in CHANNEL_FIELDS:
        value = getattr(channel, key)
        if value not in (None, ""):
            fields[key] = dict(value) if key == "lossy" else value
    return fields


def check_row(fields: dict[str, Any], extra: Mapping[str, Any]) -> None:
    """Raises `InvalidArgument` unless what a user set makes a row that readers take; `extra` has the user's fields."""
    block = fields["signal_block"]
    taken = extra.keys() & ROW_FIELDS.keys()
    if taken:
        raise InvalidArgument(
            f"'extra' holds a field that channels have already: {min(taken)!r}", entry=block
        )
    try:
        parse_row(fields, 0)
    except BadMetadata as error:
        raise InvalidArgument(
            error.problem, entry=block, found=error.found, rule=error.rule
        ) from None


# --- blocks without a row


def guessed_channel(
    name: str, block: Block, length: int, signal_of: Callable[[str], Row | None]
) -> Channel:
    """The channel of a block that its file does not describe: the first guess that fits its size exactly."""
    nbytes = block.nbytes
    found: tuple[DType, tuple[int, ...], int] = (DType.UINT8, (), nbytes)
    for dtype, shape in _guesses(block.name, nbytes, length, signal_of):
        size = prod(shape) * dtype.size
        if nbytes == size * length:
            found = dtype, shape, length
            break
        if nbytes == size * (length + 1) and may_have_one_more(block.name):
            found = dtype, shape, length + 1
            break
    channel = Channel.from_source(name, block, *found)
    channel.inferred = True
    return channel


def _guesses(
    name: str, nbytes: int, length: int, signal_of: Callable[[str], Row | None]
) -> Iterator[tuple[DType, tuple[int, ...]]]:
    lane, channel, _, _ = parse_block(name)
    if lane == "omen" and channel == LATENT_CODEBOOK_CHANNEL:
        yield from _columns(DType.INT32, nbytes, length, scalar=True)
    elif lane == "omen" and channel == LATENT_ACTION_CHANNEL:
        yield from _columns(DType.FLOAT32, nbytes, length, scalar=False)
    elif lane in ("omen", "uncert"):
        row = signal_of(channel)
        if row is not None:
            is_kept = lane == "omen" or row.dtype.is_float
            yield row.dtype if is_kept else DType.FLOAT32, row.shape
    yield from _columns(DType.FLOAT32, nbytes, length, scalar=True)


def _columns(
    dtype: DType, nbytes: int, length: int, *, scalar: bool
) -> Iterator[tuple[DType, tuple[int, ...]]]:
    """One number a step, or as many as the size allows."""
    if scalar:
        yield dtype, ()
    step = dtype.size * length
    if step and nbytes % step == 0:
        yield dtype, (nbytes // step,)
