"""The batches of a data set as a torch `IterableDataset`: each worker takes its share by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shard_format._extras import require
from shardpack._torch.fetching import Fetcher
from shardpack._torch.loader import check_plan
from shardpack.sampling import SamplerIterator

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch
    from torch.utils.data import IterableDataset

    from shardpack.mixing import Source
    from shardpack.sampling import Plan
else:
    torch = require("torch", "torch")
    IterableDataset = torch.utils.data.IterableDataset

__all__ = ["BatchStream", "BatchStreamIterator"]


class BatchStream(IterableDataset):  # type: ignore[misc]  # torch is not there where types are checked
    """Whole batches of a data set, one after the other, for loaders that take streams.

        stream = BatchStream(dataset, Plan(len(dataset), batch_size=16, seed=7))
        loader = DataLoader(stream, batch_size=None, num_workers=4)

    With any number of workers the batches and their order are those of the plan, the same that `Loader` has. Each
    iteration has the epoch that `set_epoch` has set, also where workers live on. With `StatefulDataLoader` of torchdata
    it resumes exactly, with as many workers as before.

    Args:
        dataset: as `Loader` takes it.
        plan: which samples each batch has.
        collate_fn: makes a batch of samples; `collate` if left out.
    """

    def __init__(
        self, dataset: Source, plan: Plan, *, collate_fn: Callable[[Any], Any] | None = None
    ) -> None:
        check_plan(plan, dataset)
        self._fetcher = Fetcher(dataset, collate_fn)
        self._plan = plan
        # Workers that live on see what `set_epoch` sets in the training process.
        self._epoch = torch.tensor([plan.epoch], dtype=torch.int64).share_memory_()
        self._resume: dict[str, int] | None = None
        self._running: BatchStreamIterator | None = None

    @property
    def source(self) -> Source:
        """The data set."""
        return self._fetcher.dataset

    @property
    def plan(self) -> Plan:
        """The plan of the epoch that the next iteration has, for all workers together."""
        return self._plan.with_epoch(int(self._epoch[0]))

    def __len__(self) -> int:
        """Batches in a whole epoch."""
        return len(self._plan)

    def __iter__(self) -> BatchStreamIterator:
        info = torch.utils.data.get_worker_info()
        workers, worker = (1, 0) if info is None else (info.num_workers, info.id)
        plan = replace(self.plan, num_workers=workers, worker=worker)
        iterator = BatchStreamIterator(self._fetcher, SamplerIterator(plan, 0))
        if self._resume is not None:
            iterator.load_state_dict(self._resume)
            self._resume = None
        self._running = iterator
        return iterator

    def set_epoch(self, epoch: int) -> None:
        """Makes the iterations from now on those of this epoch.

        The place to resume from stays if the epoch is that of the state that was loaded.
        """
        self._epoch[0] = self._plan.with_epoch(epoch).epoch
        self._running = None
        if self._resume is not None and self._resume["epoch"] != epoch:
            self._resume = None

    def state_dict(self) -> dict[str, int]:
        """Five numbers that say where to go on: after the batches that were taken from the stream in this process."""
        if self._running is not None:
            return self._running.state_dict()
        return dict(self._resume or self.plan.state_dict())

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Makes the next iteration go on where a state was saved.

        Raises:
            InvalidArgument: the state is of another data set, seed or shuffle.
        """
        plan, _ = self._plan.resumed(state)
        self._epoch[0] = plan.epoch
        self._resume = dict(state)
        self._running = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_running": None}


class BatchStreamIterator:
    """The batches that are left in one epoch for one worker."""

    def __init__(self, fetcher: Fetcher, numbers: SamplerIterator) -> None:
        self._fetcher = fetcher
        self._numbers = numbers

    def __iter__(self) -> BatchStreamIterator:
        return self

    def __next__(self) -> Any:  # noqa: ANN401 - what `collate_fn` returns
        return self._fetcher.fetch(next(self._numbers))

    def state_dict(self) -> dict[str, int]:
        """As `BatchStream.state_dict`."""
        return self._numbers.state_dict()

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """As `BatchStream.load_state_dict`."""
        self._numbers.load_state_dict(state)
