"""What the numbers of a data set are like, and scaling them for training.

from wshard import EpisodeDataset, compute_stats, save_stats

save_stats(compute_stats("episodes"), "episodes")
ds = EpisodeDataset("episodes", window=64, normalize=True)
"""

from wshard.statistics.channel import ChannelStats
from wshard.statistics.computing import compute_stats
from wshard.statistics.stats import Stats
from wshard.statistics.stored import load_stats, save_stats

__all__ = ["ChannelStats", "Stats", "compute_stats", "load_stats", "save_stats"]
