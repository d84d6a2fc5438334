"""Episodes of robots, agents and world models: one file each, with what models predicted beside what happened.

    from wshard import Episode, load_wshard, save_wshard

    ep = Episode("ep_001", env_id="Reach-v1")
    ep.observations["joint_pos"] = positions
    save_wshard(ep, "ep_001.wshard", compression="auto")
    load_wshard("ep_001.wshard").observations["joint_pos"][100:164]

The format is specified in spec/wshard.md.
"""

from wshard.channels import Channel, Modality
from wshard.dtypes import DType
from wshard.episode import Episode
from wshard.labels import Interval, Intervals
from wshard.ragged import RaggedChannel, TextChannel
from wshard.reader import load_wshard
from wshard.residual_lane import Residual
from wshard.timebase import Timebase
from wshard.writer import save_wshard

__all__ = [
    "Channel",
    "DType",
    "Episode",
    "Interval",
    "Intervals",
    "Modality",
    "RaggedChannel",
    "Residual",
    "TextChannel",
    "Timebase",
    "load_wshard",
    "save_wshard",
]
