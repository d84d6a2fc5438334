"""Windows of episodes as batches of tensors, for training with torch. Needs the extra `torch`.

    from wshard import EpisodeDataset
    from wshard.torch import data_loader

    dataset = EpisodeDataset("episodes", window=64)
    loader = data_loader(dataset, batch_size=16, seed=7, num_workers=4)
    for batch in loader:
        batch["rgb"]                      # uint8 [16, 64, 64, 64, 3]
    loader.state_dict()

The same names as in `shardpack.torch`; `to_tensors` knows channels too. See docs/bridges.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from shard_format._extras import require
from shardpack.torch import (
    BatchStream,
    BatchStreamIterator,
    ByteColumn,
    Loader,
    LoaderIterator,
    WorkerTraceback,
    collate,
    data_loader,
)
from shardpack.torch import to_tensors as arrays_to_tensors
from wshard.channels import Channel
from wshard.dtypes import DType

if TYPE_CHECKING:
    import torch

    from shardpack._torch.tensors import ReadOnly
else:
    torch = require("torch", "torch")

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


def to_tensors(value: Any, *, read_only: ReadOnly = "copy") -> Any:  # noqa: ANN401 - whatever a batch is made of
    """As `shardpack.torch.to_tensors`, for channels of an episode too: `to_tensors(episode.observations)`.

    A channel becomes a tensor of all its steps, ragged channels a list of tensors, text a list of strings. Channels
    of bfloat16 are such tensors also where `ml_dtypes` is not installed.

    Args:
        value: arrays and channels, in dictionaries.
        read_only: `"copy"`, or `"share"`: what to do with read-only arrays, as those of mapped files are.
    """
    if isinstance(value, Mapping):
        return {name: to_tensors(part, read_only=read_only) for name, part in value.items()}
    if not isinstance(value, Channel):
        return arrays_to_tensors(value, read_only=read_only)
    tensors = arrays_to_tensors(value.data, read_only=read_only)
    if value.dtype is DType.BFLOAT16 and getattr(value.data, "dtype", None) == np.uint16:
        return tensors.view(torch.bfloat16)
    return tensors
