"""Whole batches in the order of a plan for Grain, and so for JAX. Needs the extra `grain`.

    from shardpack.grain import batches

    steps = batches(dataset, Plan(len(dataset), seed=7, batch_size=32), epochs=10)
    iterator = iter(steps.to_iter_dataset())

Data sets need no bridge to be read sample by sample: `grain.MapDataset.source(dataset)` and
`grain.DataLoader(data_source=dataset, ...)` take them as they are.
"""

from __future__ import annotations

import sys
from operator import index as as_index
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from shard_format._extras import require
from shard_format.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping

    import grain
    from numpy.typing import NDArray

    from shardpack.sampling import Plan
else:
    grain = require("grain", "grain")

__all__ = ["PlanSampler", "PlannedBatches", "batches"]

# A batch is many samples, and decoding one uses threads of its own.
_READ_AHEAD: Final = 2
# Samples whose order is computed at a time.
_TOGETHER: Final = 4096


class Batched(Protocol):
    """A data set that reads many samples with one call."""

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
        plan: for this data set; of a mixture `mixed.plan(...)`. With the batch size, and if there are several
            processes `rank=jax.process_index(), world_size=jax.process_count()`. Workers are Grain's.
        epochs: how many there are from that of the plan on; None for no end.

    Raises:
        InvalidArgument: the plan is for another data set, or has workers of its own.
    """
    return PlannedBatches(dataset, plan, epochs)


class PlannedBatches(grain.MapDataset):  # type: ignore[misc] # Grain is not installed where types are checked
    """What `batches` returns. Its repr is the same in every process: it names data set and plan."""

    def __init__(self, dataset: Batched, plan: Plan, epochs: int | None) -> None:
        super().__init__()
        _check_epochs(epochs)
        if plan.length != len(dataset):
            raise InvalidArgument(
                "the plan is for another data set",
                expected=f"{len(dataset)} samples",
                found=f"{plan.length} samples",
                hint="make it with Plan(len(dataset), ...)",
            )
        _refuse(plan, "num_workers", "batches")
        self._dataset = dataset
        self._epochs = _Epochs(plan, len(plan), epochs)

    def __len__(self) -> int:
        return len(self._epochs)

    def __getitem__(self, step: Any) -> Any:  # noqa: ANN401 - a batch, or for a slice a view of this
        if isinstance(step, slice):
            return self.slice(step)
        number = as_index(step)
        plan, inside = self._epochs.locate(number + len(self) if number < 0 else number)
        return self._dataset.batch(plan.batch(inside))

    def to_iter_dataset(
        self, read_options: grain.ReadOptions | None = None, *, allow_nones: bool = False
    ) -> grain.IterDataset[dict[str, Any]]:
        """As Grain's, but reads few batches ahead: 500, its default, is meant for small elements."""
        options = read_options or grain.ReadOptions(1, _READ_AHEAD)
        return super().to_iter_dataset(options, allow_nones=allow_nones)

    def __repr__(self) -> str:
        return f"PlannedBatches({self._dataset!r}, {self._epochs!r})"

    __str__ = __repr__


class PlanSampler:
    """The order of a plan for a `grain.DataLoader` that reads sample by sample.

        sampler = PlanSampler(Plan(len(dataset), seed=7), epochs=3)
        loader = grain.DataLoader(
            data_source=dataset, sampler=sampler, operations=[grain.transforms.Batch(32)],
            shard_options=grain.sharding.ShardByJaxProcess(),
        )

    All processes together take the samples of a plan in its order; which of them has which, and what makes a
    batch, is said by `shard_options` and `operations`.

    Args:
        plan: the order; without ranks, workers and batches, which are the loader's.
        epochs: how many, each with an order of its own; None for no end.

    Raises:
        InvalidArgument: the plan deals out samples itself.
    """

    def __init__(self, plan: Plan, epochs: int | None = 1) -> None:
        for name in ("world_size", "num_workers", "batch_size"):
            _refuse(plan, name, "samples")
        _check_epochs(epochs)
        self._seed = plan.seed
        self._epochs = _Epochs(plan, plan.length, epochs)
        # Grain asks for one number at a time: the order from some index on.
        self._known: tuple[int, list[int]] = (0, [])

    def __len__(self) -> int:
        return len(self._epochs)

    def __getitem__(self, index: int) -> grain.RecordMetadata:
        plan, position = self._epochs.locate(index)
        first = index - position % _TOGETHER
        start, numbers = self._known
        if start != first or not numbers:
            begin = position - position % _TOGETHER
            stop = min(begin + _TOGETHER, plan.length)
            numbers = plan.indices(np.arange(begin, stop)).tolist()
            # Both at once: other threads may be here too.
            self._known = first, numbers
        rng = np.random.Generator(np.random.Philox(key=[self._seed, index]))
        return grain.RecordMetadata(index=index, record_key=numbers[index - first], rng=rng)

    def __repr__(self) -> str:
        return f"PlanSampler({self._epochs!r})"


class _Epochs:
    """Some epochs of a plan, one after the other; keeps the plan of the one that was used last.

    Args:
        plan: of the first.
        each: steps or samples of one.
        count: how many; None for no end.
    """

    def __init__(self, plan: Plan, each: int, count: int | None) -> None:
        self._first = self._last = plan
        self._each = each
        self._count = count

    def __len__(self) -> int:
        if self._count is None:
            return sys.maxsize if self._each else 0
        return self._count * self._each

    def locate(self, index: int) -> tuple[Plan, int]:
        """The plan of the epoch that an index lies in, and the place there.

        Grain goes on past the end when it repeats something: so do the epochs.
        """
        if index < 0 or not self._each:
            raise IndexError(f"there is no element {index} in {len(self)}")
        epoch, inside = divmod(index, self._each)
        plan, wanted = self._last, self._first.epoch + epoch
        if plan.epoch != wanted:
            plan = self._last = self._first.with_epoch(wanted)
        return plan, inside

    def __repr__(self) -> str:
        return f"{self._first!r}, epochs={self._count}"


def _check_epochs(epochs: int | None) -> None:
    if epochs is not None and epochs < 1:
        raise InvalidArgument("epochs is too small", expected="1 or more, or None", found=epochs)


def _refuse(plan: Plan, name: str, what: str) -> None:
    found = getattr(plan, name)
    if found != 1:
        raise InvalidArgument(
            f"Grain deals out the {what} itself: this plan would do so again",
            expected=f"a plan with {name}=1",
            found=f"{name}={found}",
        )
