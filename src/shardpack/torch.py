"""Samples as batches of tensors, for training with torch. Needs the extra `torch`.

    from shardpack import SampleDataset
    from shardpack.torch import data_loader

    dataset = SampleDataset("train-{000000..000099}.shardpack")
    loader = data_loader(dataset, batch_size=64, seed=7, num_workers=4)
    for batch in loader:
        ...
    loader.state_dict()

Everything here works for each data set that has a length and gives samples by number; see docs/bridges.md.
"""

from shardpack._torch.byte_column import ByteColumn
from shardpack._torch.collating import collate
from shardpack._torch.loader import Loader, LoaderIterator, WorkerTraceback, data_loader
from shardpack._torch.streams import BatchStream, BatchStreamIterator
from shardpack._torch.tensors import to_tensors

__all__ = [
    "BatchStream",
    "BatchStreamIterator",
    "ByteColumn",
    "Loader",
    "LoaderIterator",
    "WorkerTraceback",
    "collate",
    "data_loader",
    "to_tensors",
]
