"""The types of an episode, and the names of its blocks."""

from wshard._blocks import Extra
from wshard._channels import Channel, Modality, RaggedChannel, TextChannel
from wshard._episode import Episode
from wshard._labels import Interval, Intervals
from wshard._lanes import REWARD, TERMINATED, TIMESTAMPS, TRUNCATED, BlockName, parse_block
from wshard._metadata import Timebase, TimebaseType
from wshard._sidecar import SidecarWarning
from wshard._values import DType, as_array
from wshard._video import VideoChannel
from wshard._writer import FileOptions
from wshard.residual import Residual

TimebaseSpec = Timebase

__all__ = [
    "REWARD",
    "TERMINATED",
    "TIMESTAMPS",
    "TRUNCATED",
    "BlockName",
    "Channel",
    "DType",
    "Episode",
    "Extra",
    "FileOptions",
    "Interval",
    "Intervals",
    "Modality",
    "RaggedChannel",
    "Residual",
    "SidecarWarning",
    "TextChannel",
    "Timebase",
    "TimebaseSpec",
    "TimebaseType",
    "VideoChannel",
    "as_array",
    "parse_block",
]
