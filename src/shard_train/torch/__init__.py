"""Windows of episodes and samples of packs as batches of tensors, for training with torch. Needs the extra `torch`.

    from shard_train import EpisodeDataset
    from shard_train.torch import data_loader

    dataset = EpisodeDataset("episodes", window=64)
    loader = data_loader(dataset, batch_size=64, seed=7, num_workers=4)
    for batch in loader:
        batch["rgb"]                      # uint8 [64, 64, 64, 64, 3]
    loader.state_dict()

These functions work for any dataset that has a length and returns samples by number; see docs/bridges.md.
"""

from shard_train.torch._collating import collate
from shard_train.torch._loader import (
    BatchStream,
    BatchStreamIterator,
    DataLoaderOptions,
    Loader,
    LoaderIterator,
    LoaderOptions,
    WorkerTraceback,
    data_loader,
)
from shard_train.torch._tensors import ByteColumn, image_tensor, to_tensors

__all__ = [
    "BatchStream",
    "BatchStreamIterator",
    "ByteColumn",
    "DataLoaderOptions",
    "Loader",
    "LoaderIterator",
    "LoaderOptions",
    "WorkerTraceback",
    "collate",
    "data_loader",
    "image_tensor",
    "to_tensors",
]
