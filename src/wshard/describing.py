"""Rows of `meta/channels` to channels and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.errors import BadMetadata, BadProfile, ShardError, UnknownLayout
from wshard.channels import Channel, as_modality
from wshard.dtypes import DType
from wshard.names import offsets_block
from wshard.ragged import RaggedChannel, TextChannel
from wshard.values import product

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from wshard.blocks import Block
    from wshard.metadata import Row

# Fields of a row that are attributes of a channel under the same name.
_PLAIN: Final = (
    "semantics",
    "sampling_rate_hz",
    "content_type",
    "unit",
    "description",
    "start_ns",
    "lossy",
)
UNDERSTOOD: Final = frozenset(
    (
        *(*_PLAIN, "id", "dtype", "shape", "signal_block", "modality", "length", "layout"),
        *("offsets_block", "time_block", "channel", "model", "type", "window"),
    )
)
_BASIC: Final = frozenset(("id", "dtype", "shape", "signal_block"))
# Lanes whose blocks may hold the entry after the last step (W-BLK-2).
_MAY_HAVE_ONE_MORE: Final = ("signal/", "omen/", "uncert/")


class UnreadableChannel(Channel, ABC):
    """A channel whose row makes no sense: it is there, and touching it says why.

    Saving keeps its bytes and its row as they are.
    """

    row: Row

    @property
    def nbytes(self) -> int:
        assert self._block is not None
        return self._block.nbytes

    @abstractmethod
    def _fail(self) -> ShardError: ...

    def _read_all(self) -> Any:  # noqa: ANN401 - never returns
        raise self._fail()

    def read_steps(self, start: int, stop: int) -> Any:  # noqa: ANN401 - never returns
        raise self._fail()

    def stored_array(self) -> NDArray[Any]:
        assert self._block is not None
        return self._block.array(np.dtype(np.uint8), (self._block.nbytes,))


class _MisdescribedText(UnreadableChannel):
    """Text that is not described as bytes (W-RAG-5)."""

    def _fail(self) -> ShardError:
        assert self._block is not None
        return BadMetadata(
            f"the text channel {self.name!r} is not described as bytes",
            path=self._block.path,
            entry=self.block,
            expected="dtype u8 and shape []",
            found=f"{self.dtype} {list(self.shape)}",
            rule="W-RAG-5",
        )


class _UnknownChannel(UnreadableChannel):
    """A layout that we do not know (W-CHN-7)."""

    unknown: str = ""

    def _fail(self) -> ShardError:
        assert self._block is not None
        return UnknownLayout(
            f"the channel has a layout {self.unknown!r} that this version does not know",
            path=self._block.path,
            entry=self.block,
            expected="dense, ragged or text",
            rule="W-CHN-7",
            hint="a newer version of shard-format may read it",
        )


def plain_channel(
    name: str,
    block: Block,
    dtype: DType,
    shape: tuple[int, ...],
    length: int,
    may_have_one_more: bool = False,
) -> Channel:
    """A dense channel that is still in its file."""
    if may_have_one_more:
        step = product(shape) * dtype.size
        if step and block.nbytes == (length + 1) * step:
            length += 1
    channel = object.__new__(Channel)
    channel.__dict__.update(
        name=name,
        dtype=dtype,
        shape=shape,
        extra={},
        block=block.name,
        _block=block,
        _length=length,
    )
    return channel


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
    stored_length = fields.get("length")
    channel = plain_channel(
        name,
        block,
        row.dtype,
        row.shape,
        length if stored_length is None else stored_length,
        # The size of a ragged block counts items, not steps.
        stored_length is None
        and fields.get("layout") in (None, "dense")
        and block.name.startswith(_MAY_HAVE_ONE_MORE),
    )
    if fields.keys() <= _BASIC:
        return channel
    if stored_length not in (None, length, length + block.name.startswith(_MAY_HAVE_ONE_MORE)):
        channel._has_stated_length = True
    layout = fields.get("layout")
    if layout not in (None, "dense"):
        channel = _as_layout(channel, block, layout, row, find)
    for key in _PLAIN:
        value = fields.get(key)
        if value is not None:
            setattr(channel, key, deepcopy(value) if key == "lossy" else value)
    if fields.get("modality") is not None:
        channel.modality = as_modality(fields["modality"])
    time_block = fields.get("time_block")
    if time_block is not None:
        channel._time_block = find(time_block) or _absent(time_block, block, "W-TIM-3")
    extra = {key: value for key, value in fields.items() if key not in UNDERSTOOD}
    if extra:
        channel.extra = deepcopy(extra)
    return channel


def _as_layout(
    channel: Channel,
    block: Block,
    layout: str,
    row: Row,
    find: Callable[[str], Block | None],
) -> Channel:
    kinds: dict[str, type[Channel]] = {"ragged": RaggedChannel, "text": TextChannel}
    kind = kinds.get(layout, _UnknownChannel)
    if kind is TextChannel and (channel.dtype is not DType.UINT8 or channel.shape):
        kind = _MisdescribedText
    other = object.__new__(kind)
    other.__dict__.update(channel.__dict__)
    if isinstance(other, RaggedChannel):
        name = row.fields.get("offsets_block")
        found = None if name is None else find(name)
        other._offsets_block = found or _absent(
            name or offsets_block(channel.block), block, "W-RAG-1"
        )
    elif isinstance(other, UnreadableChannel):
        other.row = row
        if isinstance(other, _UnknownChannel):
            other.unknown = layout
    return other


class _Absent:
    """Stands for a block that a row names and the file lacks; says so when it is read."""

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

    part = read_into = array


def _absent(name: str, wanted_by: Block, rule: str) -> Block:
    return _Absent(name, wanted_by, rule)


def row_fields(channel: Channel, name: str, block: str, length: int) -> dict[str, Any]:
    """The row that our writers store for a channel.

    Args:
        channel: the channel.
        name: its id in the row.
        block: its block.
        length: T; a channel of another length says so.
    """
    fields: dict[str, Any] = {
        **channel.extra,
        "dtype": channel.dtype.value,
        "id": name,
        "shape": list(channel.shape),
        "signal_block": block,
    }
    if channel.length != length:
        fields["length"] = channel.length
    if isinstance(channel, RaggedChannel):
        fields["layout"] = channel.layout
        fields["offsets_block"] = offsets_block(block)
    if channel.modality is not None:
        fields["modality"] = str(channel.modality)
    for key in _PLAIN:
        value = getattr(channel, key)
        if value not in (None, ""):
            fields[key] = dict(value) if key == "lossy" else value
    return fields
