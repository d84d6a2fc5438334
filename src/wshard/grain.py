"""Whole batches of windows in the order of a plan for Grain, and so for JAX. Needs the extra `grain`.

from shardpack.sampling import Plan
from wshard import EpisodeDataset
from wshard.grain import batches

ds = EpisodeDataset("episodes", window=64)
steps = batches(ds, Plan(len(ds), seed=7, batch_size=32))

Windows and samples are read the same way: these are the names of `shardpack.grain`.
"""

from shardpack.grain import PlannedBatches, PlanSampler, batches

__all__ = ["PlanSampler", "PlannedBatches", "batches"]
