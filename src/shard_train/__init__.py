"""Training on episodes and samples: datasets, order, mixing, statistics, and bridges to other libraries.

    from shard_train import EpisodeDataset, Plan

    dataset = EpisodeDataset("episodes", window=64)
    for numbers in Plan(len(dataset), batch_size=16, seed=7).batches():
        batch = dataset.batch(numbers)

The bridges are `shard_train.torch`, `.grain`, `.huggingface`, `.tensordict`, `.torchrl` and `.ray`.
"""

from shard_train._batches import MixedBatch, SampleBatch, WindowBatch
from shard_train._episode_dataset import EpisodeDataset
from shard_train._episodes.contents import OneHot
from shard_train._map_episodes import MapReport, map_episodes
from shard_train._mix import MixedDataset, mix
from shard_train._plan import BatchSampler, Plan
from shard_train._sample_dataset import SampleDataset
from shard_train.statistics import Stats, compute_stats, load_stats, save_stats
from wshard.catalogue import EpisodeInfo

__all__ = [
    "BatchSampler",
    "EpisodeDataset",
    "EpisodeInfo",
    "MapReport",
    "MixedBatch",
    "MixedDataset",
    "OneHot",
    "Plan",
    "SampleBatch",
    "SampleDataset",
    "Stats",
    "WindowBatch",
    "compute_stats",
    "load_stats",
    "map_episodes",
    "mix",
    "save_stats",
]
