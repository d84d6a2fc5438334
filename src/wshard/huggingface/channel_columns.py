"""The channels of an episode as columns of a table: arrays, lists, text, and cameras as images."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from shard_format._extras import require
from shard_format._parallel import map_in_order, thread_count
from shard_format.errors import InvalidArgument
from shardpack._hf_arrow import array_column, array_feature, libraries
from wshard.dtypes import DType
from wshard.ragged import RaggedChannel, TextChannel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardpack._hf_arrow import ArrowType, Column, Feature
    from wshard.channels import Channel

__all__ = ["ChannelColumn", "Images"]

Images = Literal["png", "array"]

_COLOURS: Final = (3, 4)
# What a thread is started for; encoding takes much longer than decoding.
_BYTES_PER_THREAD: Final = 1 << 17
# Lossless at any level; higher ones take several times as long for a few percent.
_LEVEL: Final = 1


class ChannelColumn:
    """A column for a channel, of one episode or of many that are alike.

    Args:
        channel: of the first episode.
        images: `"png"` stores cameras as images.
        is_whole: whether a row holds all steps of an episode; else it holds one.

    Raises:
        InvalidArgument: `datasets` has no type for it.
    """

    def __init__(self, channel: Channel, images: Images, *, is_whole: bool = False) -> None:
        datasets, _ = libraries()
        self._is_whole = is_whole
        self._form = _form(channel)
        self._is_image = images == "png" and not is_whole and _is_camera(channel)
        dtype = channel.dtype.numpy_dtype
        self.feature: Feature
        if isinstance(channel, TextChannel):
            text = datasets.Value("string")
            self.feature = datasets.Sequence(text) if is_whole else text
        elif self._is_image:
            self.feature = datasets.Image()
        elif isinstance(channel, RaggedChannel):
            self.feature = None if is_whole else array_feature(dtype, (None, *channel.shape))
        else:
            rows = (None,) if is_whole else ()
            self.feature = array_feature(dtype, (*rows, *channel.shape))
        if self.feature is None:
            raise InvalidArgument(
                "`datasets` has no type of column for this channel",
                entry=channel.block or channel.name,
                expected="plain numbers with at most 5 axes in a row",
                found=repr(channel),
                hint="choose others with channels=[…]",
            )
        self.bytes_per_step = max(1, channel.nbytes // max(1, channel.length))

    def check(self, channel: Channel) -> None:
        """Holds the channel of another episode against that of the first."""
        if _form(channel) != self._form:
            raise InvalidArgument(
                "an episode has another kind of channel than the others",
                entry=channel.block or channel.name,
                expected=self._form,
                found=_form(channel),
            )

    def read(self, kind: ArrowType, channel: Channel, start: int, stop: int) -> Column:
        """The steps from `start` to `stop`, one row each; or one row for all of them."""
        _, pa = libraries()
        steps: Any = channel.read_steps(start, stop)
        if isinstance(channel, TextChannel):
            return pa.array([steps] if self._is_whole else steps, kind)
        if isinstance(channel, RaggedChannel):
            offsets = np.concatenate(([0], np.cumsum([len(step) for step in steps])))
            return array_column(kind, _joined(steps, channel), offsets.astype(np.int64))
        if self._is_image:
            threads = thread_count(None, steps.nbytes, _BYTES_PER_THREAD)
            return pa.array(
                [{"bytes": png, "path": None} for png in map_in_order(steps, _png, threads)], kind
            )
        return array_column(kind, steps, np.array([0, len(steps)]) if self._is_whole else None)


def _form(channel: Channel) -> str:
    return f"{channel.layout} {channel.dtype} {list(channel.shape)}"


def _is_camera(channel: Channel) -> bool:
    shape = channel.shape
    is_colour = len(shape) == 3 and shape[2] in _COLOURS and min(shape) > 0
    return channel.layout == "dense" and channel.dtype is DType.UINT8 and is_colour


def _joined(steps: list[NDArray[Any]], channel: Channel) -> NDArray[Any]:
    if steps:
        return np.concatenate(steps)
    return np.zeros((0, *channel.shape), channel.dtype.numpy_dtype)


def _png(frame: NDArray[np.uint8]) -> bytes:
    image = require("PIL.Image", "images").fromarray(frame)
    stream = io.BytesIO()
    image.save(stream, "PNG", compress_level=_LEVEL)
    return stream.getvalue()
