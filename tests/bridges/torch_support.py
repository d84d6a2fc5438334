"""What the tests of the torch bridge share: datasets in memory, which spawned workers can import."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from shard_format.errors import ChecksumMismatch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    from shard_train import Plan

WIDTH = 30_000
"""Numbers in `big`: with a few samples it is too large to be copied out of shared memory."""


class Numbers:
    """A dataset whose samples say which they are; it can read into given memory, and counts how often it did."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {name: array[0] for name, array in self.batch([number]).items()}

    def __getitems__(self, numbers: Sequence[int]) -> dict[str, NDArray[Any]]:
        return self.batch(numbers)

    def batch(
        self, numbers: ArrayLike, *, out: Mapping[str, NDArray[Any]] | None = None
    ) -> dict[str, NDArray[Any]]:
        chosen = np.asarray(numbers, np.int64)
        big = np.empty((len(chosen), WIDTH), np.uint8) if out is None else out["big"]
        big[...] = (chosen % 251)[:, None]
        into = np.full(len(chosen), out is not None)
        return {
            "big": big,
            "number": chosen,
            "process": np.full(len(chosen), os.getpid()),
            "into": into,
        }


class Plain:
    """A dataset with nothing but the two methods of every map-style dataset."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {
            "number": number,
            "name": f"sample {number}",
            "file": bytes([number % 251]) * (number % 7 * 1000),
            "ragged": np.full((number % 3, 2), number, np.float32),
            "tensor": torch.full((3,), number, dtype=torch.bfloat16),
            "meta": {"number": number},
        }


class Random(Plain):
    """A dataset whose samples are random numbers of torch."""

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"random": torch.rand(()).item()}


class Dies(Plain):
    """A worker that reads sample 5 is killed, as by the system when memory is short."""

    def __getitem__(self, number: int) -> dict[str, Any]:
        if number == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"number": number}


class Damaged(Plain):
    """Sample 5 cannot be read."""

    def __getitem__(self, number: int) -> dict[str, Any]:
        if number == 5:
            raise ChecksumMismatch(
                "CRC32C mismatch", path="ep_5.wshard", entry="signal/rgb", found="00000001"
            )
        return {"number": number}


def numbers_of(batches: Any) -> list[list[int]]:  # noqa: ANN401 - any loader
    """The samples of each batch."""
    return [batch["number"].tolist() for batch in batches]


def planned(plan: Plan) -> list[list[int]]:
    """What they must be."""
    return [indices.tolist() for indices in plan.batches()]
