"""Episodes of robots, agents and world models: one file each, with what models predicted beside what happened.

    from wshard import Episode, load_wshard, save_wshard

    ep = Episode("ep_001", env_id="Reach-v1")
    ep.observations["joint_pos"] = positions
    save_wshard(ep, "ep_001.wshard", compression="auto")
    load_wshard("ep_001.wshard").observations["joint_pos"][100:164]

The format is specified in spec/wshard.md.
"""

import typing as _typing

from wshard.arrays import load_arrays
from wshard.channels import Channel, Modality
from wshard.chunked import (
    ChunkedEpisodeReader,
    ChunkedEpisodeWriter,
    ChunkManifest,
    validate_chunk_continuity,
)
from wshard.dtypes import DType
from wshard.episode import Episode
from wshard.formats import detect_format, load, save
from wshard.labels import Interval, Intervals
from wshard.latent import (
    LATENT_ACTION_CHANNEL,
    LATENT_CODEBOOK_CHANNEL,
    get_latent_actions,
    get_latent_codebook,
    set_latent_actions,
)
from wshard.multimodal import add_multimodal_observation, get_multimodal_observations
from wshard.ragged import RaggedChannel, TextChannel
from wshard.reader import load_wshard
from wshard.recorded import Recovery, open_partial, recover
from wshard.residual import (
    compute_error_residual,
    compute_sign2nd_diff,
    compute_sign2nd_diff_multidim,
    dequantize_delta,
    pack_multidim_residual_bits,
    pack_residual_bits,
    quantize_delta,
    reconstruct_from_omen_and_delta,
    unpack_multidim_residual_bits,
    unpack_residual_bits,
)
from wshard.residual_lane import Residual
from wshard.sidecar import add_lane, compact
from wshard.streaming import ChannelDef, WShardStreamWriter
from wshard.summary import peek
from wshard.timebase import Timebase, TimebaseType
from wshard.writer import save_wshard

if _typing.TYPE_CHECKING:
    from wshard.dataset import EpisodeDataset
    from wshard.statistics import compute_stats, load_stats, save_stats

__all__ = [
    "LATENT_ACTION_CHANNEL",
    "LATENT_CODEBOOK_CHANNEL",
    "Channel",
    "ChannelDef",
    "ChunkManifest",
    "ChunkedEpisodeReader",
    "ChunkedEpisodeWriter",
    "DType",
    "Episode",
    "EpisodeDataset",
    "Interval",
    "Intervals",
    "Modality",
    "RaggedChannel",
    "Recovery",
    "Residual",
    "TextChannel",
    "Timebase",
    "TimebaseType",
    "WShardStreamWriter",
    "add_lane",
    "add_multimodal_observation",
    "compact",
    "compute_error_residual",
    "compute_sign2nd_diff",
    "compute_sign2nd_diff_multidim",
    "compute_stats",
    "dequantize_delta",
    "detect_format",
    "get_latent_actions",
    "get_latent_codebook",
    "get_multimodal_observations",
    "load",
    "load_arrays",
    "load_stats",
    "load_wshard",
    "open_partial",
    "pack_multidim_residual_bits",
    "pack_residual_bits",
    "peek",
    "quantize_delta",
    "reconstruct_from_omen_and_delta",
    "recover",
    "save",
    "save_stats",
    "save_wshard",
    "set_latent_actions",
    "unpack_multidim_residual_bits",
    "unpack_residual_bits",
    "validate_chunk_continuity",
]

# Built on episodes, and loaded when it is asked for: the module of each name.
_LAZY = {
    "EpisodeDataset": "wshard.dataset",
    "compute_stats": "wshard.statistics",
    "load_stats": "wshard.statistics",
    "save_stats": "wshard.statistics",
}


def __getattr__(name: str) -> _typing.Any:  # noqa: ANN401 - a class or a function
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
