"""Windows of many episodes, numbered from 0 on, for training.

from wshard.dataset import EpisodeDataset

ds = EpisodeDataset("episodes", window=64)
batch = ds.batch([3, 1, 4])
"""

from wshard.dataset.batches import WindowBatch
from wshard.dataset.dataset import EpisodeDataset

__all__ = ["EpisodeDataset", "WindowBatch"]
