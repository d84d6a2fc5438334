"""ShardPack: datasets of samples in sharded files, for streaming and random access alike.

    import shardpack

    with shardpack.ShardPackWriter("train.shardpack") as writer:
        writer.write("sample-0", {"left.jpg": jpeg_bytes, "meta.json": {"label": 3}})
    dataset = shardpack.open("train.shardpack")
    dataset["sample-0"]["meta.json"].decode()

The format is specified in spec/shardpack.md.
"""

from shardpack.columns import CombinedDataset, CombinedRecord, join, overlay
from shardpack.dataset import Dataset, open
from shardpack.editing import filter, merge, sample, sort, split
from shardpack.files import unpack
from shardpack.packing import Sample, pack
from shardpack.parts import commit
from shardpack.reader import ShardPackReader
from shardpack.record import Entry, Record, StoredEntry
from shardpack.recovery import LostPart, PackRecovery, recover
from shardpack.sets import SetLabel, ShardSet
from shardpack.streaming import stream
from shardpack.values import register_decoder
from shardpack.writer import ShardPackWriter
from shardpack.writer_set import ShardWriterSet

__all__ = [
    "CombinedDataset",
    "CombinedRecord",
    "Dataset",
    "Entry",
    "LostPart",
    "PackRecovery",
    "Record",
    "Sample",
    "SetLabel",
    "ShardPackReader",
    "ShardPackWriter",
    "ShardSet",
    "ShardWriterSet",
    "StoredEntry",
    "commit",
    "filter",
    "join",
    "merge",
    "open",
    "overlay",
    "pack",
    "recover",
    "register_decoder",
    "sample",
    "sort",
    "split",
    "stream",
    "unpack",
]
