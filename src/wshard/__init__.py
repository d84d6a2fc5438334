"""Episodes of robots, agents and world models: one file each, with what models predicted beside what happened.

    from wshard import Episode, load_wshard, save_wshard

    ep = Episode("ep_001", env_id="Reach-v1")
    ep.observations["joint_pos"] = positions
    save_wshard(ep, "ep_001.wshard", compression="auto")
    load_wshard("ep_001.wshard").observations["joint_pos"][100:164]

The format is specified in spec/wshard.md.
"""

from wshard._channels import Channel
from wshard._episode import Episode
from wshard._files import save_wshard
from wshard._formats import detect_format, load, load_wshard, save
from wshard._metadata import Timebase
from wshard._values import DType
from wshard.catalogue import find
from wshard.chunked import ChunkedEpisodeReader, ChunkedEpisodeWriter, validate_chunk_continuity
from wshard.editing import add_lane, compact, edit, remove_lane
from wshard.partial import open_partial, recover
from wshard.streaming import ChannelDef, WShardStreamWriter

__all__ = [
    "Channel",
    "ChannelDef",
    "ChunkedEpisodeReader",
    "ChunkedEpisodeWriter",
    "DType",
    "Episode",
    "Timebase",
    "WShardStreamWriter",
    "add_lane",
    "compact",
    "detect_format",
    "edit",
    "find",
    "load",
    "load_wshard",
    "open_partial",
    "recover",
    "remove_lane",
    "save",
    "save_wshard",
    "validate_chunk_continuity",
]
