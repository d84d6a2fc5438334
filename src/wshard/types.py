"""The types of an episode, under one roof."""

from wshard.channels import Channel, Modality
from wshard.dtypes import DType
from wshard.episode import Episode
from wshard.labels import Interval, Intervals
from wshard.lanes import Extra
from wshard.ragged import RaggedChannel, TextChannel
from wshard.residual_lane import Residual
from wshard.timebase import Timebase, TimebaseType

TimebaseSpec = Timebase

__all__ = [
    "Channel",
    "DType",
    "Episode",
    "Extra",
    "Interval",
    "Intervals",
    "Modality",
    "RaggedChannel",
    "Residual",
    "TextChannel",
    "Timebase",
    "TimebaseSpec",
    "TimebaseType",
]
