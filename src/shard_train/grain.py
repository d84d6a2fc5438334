"""Whole batches in the order of a plan for Grain, and so for JAX. Needs the extra `grain`.

    from shard_train.grain import batches

    steps = batches(dataset, Plan(len(dataset), seed=7, batch_size=32), epochs=10)
    iterator = iter(steps.to_iter_dataset())

Datasets need no bridge to be read sample by sample: `grain.MapDataset.source(dataset)` and
`grain.DataLoader(data_source=dataset, ...)` take them as they are.
"""

from __future__ import annotations

import sys
from operator import index as as_index
from typing import TYPE_CHECKING, Any, Final, Protocol

from shard_format.errors import InvalidArgument
from shard_format.extras import require

if TYPE_CHECKING:
    from collections.abc import Mapping

    import grain
    import numpy as np
    from numpy.typing import NDArray

    from shard_train._plan import Plan
else:
    grain = require("grain", "grain")

__all__ = ["PlannedBatches", "batches"]

# A batch is many samples, and decoding one uses threads of its own.
_READ_AHEAD: Final = 2


class Batched(Protocol):
    """A dataset that reads many samples with one call."""

    def __len__(self) -> int: ...

    def batch(self, numbers: NDArray[np.int64], /) -> Mapping[str, Any]:
        """The samples of these numbers, stacked by channel."""


def batches(dataset: Batched, plan: Plan, *, epochs: int | None = 1) -> PlannedBatches:
    """The batches of a plan as a `grain.MapDataset`.

    Element i is the batch of step i: a dictionary of arrays, read with one call, which decodes in parallel and
    stacks nothing. The steps of the following epochs, each with an order of its own, come after it. The state of
    an iterator over them is one integer.

    Args:
        dataset: an `EpisodeDataset`, a `SampleDataset`, a mixture: anything with `batch`.
        plan: for this dataset; of a mixture `mixed.plan(...)`. With the batch size, and if there are several
            processes `rank=jax.process_index(), world_size=jax.process_count()`. Workers are Grain's.
        epochs: how many there are from that of the plan on; None for no end.

    Raises:
        InvalidArgument: the plan is for another dataset, or has workers of its own.
    """
    return PlannedBatches(dataset, plan, epochs)


class PlannedBatches(grain.MapDataset):  # type: ignore[misc] # Grain is not installed where types are checked
    """What `batches` returns. Its repr is the same in every process: it names dataset and plan."""

    def __init__(self, dataset: Batched, plan: Plan, epochs: int | None) -> None:
        super().__init__()
        if epochs is not None and epochs < 1:
            raise InvalidArgument(
                "epochs is too small", expected="1 or more, or None", found=epochs
            )
        if plan.length != len(dataset):
            raise InvalidArgument(
                "the plan is for another dataset",
                expected=f"{len(dataset)} samples",
                found=f"{plan.length} samples",
                hint="make it with Plan(len(dataset), ...)",
            )
        if plan.num_workers != 1:
            raise InvalidArgument(
                "Grain gives each process its batches: this plan would do so again",
                expected="a plan with num_workers=1",
                found=f"num_workers={plan.num_workers}",
            )
        self._dataset = dataset
        self._first = self._latest = plan
        self._epochs = epochs

    def __len__(self) -> int:
        steps = len(self._first)
        return steps * self._epochs if self._epochs is not None else sys.maxsize * bool(steps)

    def __getitem__(self, step: Any) -> Any:  # noqa: ANN401 - a batch, or for a slice a view of this
        if isinstance(step, slice):
            return self.slice(step)
        number = as_index(step)
        if number < 0:
            number += len(self)
        if number < 0 or not len(self):
            raise IndexError(f"step {step} is outside {len(self)} steps")
        # Grain goes on past the end when it repeats something: so do the epochs.
        epoch, inside = divmod(number, len(self._first))
        plan = self._latest
        if plan.epoch != self._first.epoch + epoch:
            plan = self._latest = self._first.with_epoch(self._first.epoch + epoch)
        return self._dataset.batch(plan.batch(inside))

    def to_iter_dataset(
        self, read_options: grain.ReadOptions | None = None, *, allow_nones: bool = False
    ) -> grain.IterDataset[dict[str, Any]]:
        """As Grain's, but reads few batches ahead: 500, its default, is meant for small elements."""
        options = read_options or grain.ReadOptions(1, _READ_AHEAD)
        return super().to_iter_dataset(options, allow_nones=allow_nones)

    def __repr__(self) -> str:
        return f"PlannedBatches({self._dataset!r}, {self._first!r}, epochs={self._epochs})"

    __str__ = __repr__
