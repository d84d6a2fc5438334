"""Batches in the order of a plan, as a torch `DataLoader` that can stop and resume anywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypedDict

from shard_format.errors import InvalidArgument
from shard_format.extras import require
from shard_train._mix import MixedDataset
from shard_train._plan import BatchSampler, BatchSamplerIterator, Plan, PlanOptions
from shard_train.torch._collating import BatchFetcher, FetchedBatch, PlannedBatch, skipped_by
from shard_train.torch._shared import forget_ended_workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from multiprocessing.context import BaseContext

    import torch
    from torch.utils.data import DataLoader, IterableDataset
    from typing_extensions import Unpack

    from shard_train._mix import SampleSource
    from shard_train._orders import Shuffle
else:
    torch = require("torch", "torch")
    DataLoader = require("torch.utils.data", "torch").DataLoader
    IterableDataset = require("torch.utils.data", "torch").IterableDataset

__all__ = [
    "BatchStream",
    "BatchStreamIterator",
    "DataLoaderOptions",
    "Loader",
    "LoaderIterator",
    "LoaderOptions",
    "WorkerTraceback",
    "data_loader",
]

_SEEDS = 1 << 63
# Odd and far from what people use as a seed: the seeds of neighbouring epochs do not meet.
_STRIDE = 0x1E3779B97F4A7C15


# Options of torch's `DataLoader` that would change the order, and with it the state.
_INSTEAD: Final[Mapping[str, str]] = {
    "sampler": "choose the order with shuffle= and seed=; for an order of your own, use torch's DataLoader("
    "dataset, sampler=…, collate_fn=shard_train.torch.collate), which cannot resume",
    "batch_sampler": "make the batches with Loader(dataset, Plan(…)); for batches of your own, use torch's "
    "DataLoader(dataset, batch_sampler=…, collate_fn=shard_train.torch.collate)",
    "generator": "pass seed=, which also seeds the workers",
    "in_order": "batches always come in the order of the plan, so that the state is exact",
}


class LoaderOptions(TypedDict, total=False):
    """Options that torch's `DataLoader` takes."""

    pin_memory: bool
    """Whether batches are copied to pinned memory."""
    persistent_workers: bool
    """Whether workers live on from one epoch to the next."""
    prefetch_factor: int | None
    """Batches that each worker reads ahead; 2 if left out."""
    multiprocessing_context: str | BaseContext | None
    """How workers are started: `"fork"`, `"spawn"` or `"forkserver"`; the system's default if left out."""
    timeout: float
    """Seconds after which a batch of a worker is given up; 0 for never."""
    worker_init_fn: Callable[[int], None] | None
    """Called in each worker with its number. Workers are seeded already."""


class DataLoaderOptions(LoaderOptions, total=False):
    """The options of `LoaderOptions`, and those of `Plan` that few loaders need."""

    epoch: int
    """Of the first iteration."""
    drop_last: bool
    """Leave out the samples that do not fill a batch of all ranks at the end of an epoch."""
    pad: bool
    """Fill the last batch with samples from the start of the epoch; otherwise it is short."""
    rank: int
    """Which rank this is; if left out, what `torch.distributed` says if it is initialised, else 0."""
    world_size: int
    """How many ranks there are; likewise."""


class WorkerTraceback(Exception):
    """Where in a worker process an error was raised; the cause of that error in the training process."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Loader(DataLoader):  # type: ignore[misc]  # torch is not there where types are checked
    """Batches of a dataset in the order of a plan, as tensors: a torch `DataLoader`.

    Each iteration gives the batches of one epoch. After a complete iteration the next one has the next epoch; an
    iteration that you left early starts again. The state is five integers. It counts the batches that you took from
    the loader, however many its workers have read ahead, and fits any number of ranks, workers and any batch size.

    Workers get seeds that follow from the plan's seed and the epoch; the random state of this process is not touched.

    In a worker, a dataset that can read into given memory reads straight into what the worker shares with this process.
    A batch stays valid while you hold one of its tensors; then its memory is used again.

    What differs from torch's `DataLoader`: the order is that of the plan, so `sampler`, `batch_sampler`, `generator` and
    `in_order` are refused.

    Owns: where the next iteration starts, how far the running one is, and what workers could not read.

    Args:
        dataset: with `__len__` and `__getitem__`, and `__getitems__` if it can read many samples at once.
        plan: which samples each batch has.
        num_workers: processes that read ahead; 0 reads in this one.
        collate_fn: makes a batch of samples; `collate` if left out.
        batched: False for single samples as tensors, without a batch axis; the batch size of the plan is then 1.
        options: more options of torch's `DataLoader`.

    Raises:
        InvalidArgument: the plan is for a different length, or for one of several workers; or an option is not known.
    """

    def __init__(
        self,
        dataset: SampleSource,
        plan: Plan,
        *,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        batched: bool = True,
        **options: Unpack[LoaderOptions],
    ) -> None:
        _check_options(options, LoaderOptions.__optional_keys__, "num_workers", "collate_fn")
        _check_plan(plan, dataset)
        if not batched and plan.batch_size != 1:
            raise InvalidArgument(
                "single samples need a plan of single samples",
                expected="batch_size=1 in the plan",
                found=plan.batch_size,
            )
        self._source = dataset
        self._sampler = BatchSampler(plan)
        self._start = self._sampler.state_dict()
        self._running: dict[str, int] | None = None
        self._skipped: dict[str, int] = {}
        self._seeds = torch.Generator()
        super().__init__(
            BatchFetcher(dataset, collate_fn, plan, batched=batched),
            batch_sampler=_BatchNumbers(self._sampler),
            num_workers=num_workers,
            collate_fn=_unchanged,
            generator=self._seeds,
            **options,
        )

    @property
    def source(self) -> SampleSource:
        """The dataset. (`dataset` is the object that torch asks for batches.)"""
        return self._source

    @property
    def plan(self) -> Plan:
        """The plan of the epoch that the next iteration has."""
        return self._sampler.plan.with_epoch(self._start["epoch"])

    @property
    def skipped(self) -> dict[str, int]:
        """How many samples could not be read with `on_error="skip"`, in all processes, by file."""
        counts = skipped_by(self._source)
        for path, count in self._skipped.items():
            counts[path] = counts.get(path, 0) + count
        return counts

    def __iter__(self) -> LoaderIterator:
        # Torch reads ahead in the sampler; the state to start from is the training's.
        self._sampler.load_state_dict(self._start)
        plan = self._sampler.plan
        self._seeds.manual_seed((plan.seed + plan.epoch * _STRIDE) % _SEEDS)
        iterator = LoaderIterator(self, super().__iter__(), plan, self._start["position"])
        self._running = iterator.state
        return iterator

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration that of this epoch.

        If you loaded a state of the same epoch, its position stays.
        """
        if epoch != self._start["epoch"]:
            self._go_to(self._sampler.plan.with_epoch(epoch).state_dict())

    def state_dict(self) -> dict[str, int]:
        """Return five integers that say where to continue: after the batches that you took from the loader."""
        return dict(self._start if self._running is None else self._running)

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Make the next iteration continue where a state was saved.

        Raises:
            InvalidArgument: the state is of another dataset, seed or shuffle.
        """
        self._sampler.plan.resumed(state)
        self._go_to(state)

    def _go_to(self, state: Mapping[str, int]) -> None:
        self._start = dict(state)
        self._running = None

    # --- what iterations report

    def batch_arrived(self, fetched: FetchedBatch) -> None:
        """Count what a worker could not read; called by iterations."""
        for path, count in fetched.skipped.items():
            self._skipped[path] = self._skipped.get(path, 0) + count

    def epoch_ended(self, plan: Plan, state: dict[str, int]) -> None:
        """Go on to the next epoch; called by iterations."""
        # An iteration that was left behind and is finished later does not count.
        if state is self._running:
            self._go_to(plan.with_epoch(plan.epoch + 1).state_dict())
        forget_ended_workers()


class _BatchNumbers:
    """The batches of a sampler, each with its place, so that workers know what they will be asked for next."""

    def __init__(self, sampler: BatchSampler) -> None:
        self._sampler = sampler

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[PlannedBatch]:
        numbers = iter(self._sampler)
        while True:
            place = numbers.place
            try:
                yield PlannedBatch(next(numbers), *place)
            except StopIteration:
                return


class LoaderIterator:
    """The batches that are left in one epoch. Workers that do not persist end with it."""

    def __init__(
        self, loader: Loader, batches: Iterator[FetchedBatch], plan: Plan, position: int
    ) -> None:
        self._loader = loader
        self._batches = batches
        self._next = position
        self.plan = plan
        """The plan of this epoch."""
        self.state = plan.state_at(position)
        """How far the training is. Shared with the loader, so that neither keeps the other alive."""

    def __iter__(self) -> LoaderIterator:
        return self

    def __next__(self) -> Any:  # noqa: ANN401 - what `collate_fn` returns
        try:
            fetched = next(self._batches)
        except StopIteration:
            self._loader.epoch_ended(self.plan, self.state)
            raise
        except Exception:
            self._next += self.plan.global_batch
            raise
        # A batch that fails counts as taken once a later one was.
        self._next += self.plan.global_batch
        self._loader.batch_arrived(fetched)
        if fetched.error is not None:
            try:
                raise fetched.error from WorkerTraceback(fetched.traceback)
            finally:
                # The error refers to this frame: if the frame kept the error, workers would live until both are found.
                del fetched
        self.state["position"] = self._next
        return fetched.batch

    def __len__(self) -> int:
        """Batches that are still to come."""
        return self.plan.steps_from(self._next)

    def state_dict(self) -> dict[str, int]:
        """As `Loader.state_dict`."""
        return dict(self.state)


def data_loader(
    dataset: SampleSource,
    *,
    batch_size: int | None = 1,
    seed: int = 0,
    shuffle: Shuffle | bool = "global",
    num_workers: int = 0,
    collate_fn: Callable[[Any], Any] | None = None,
    **options: Unpack[DataLoaderOptions],
) -> Loader:
    """Make a `Loader` with a plan for the dataset.

        loader = data_loader(dataset, batch_size=16, seed=7, num_workers=4)
        for batch in loader:
            batch["rgb"]

    As in torch, the last batch of an epoch is short unless you pass `drop_last=True` (or `pad=True`). Unlike torch's
    `DataLoader`, it shuffles unless you pass `shuffle=False`, each epoch in an order of its own that follows from `seed`; it
    distributes samples over the ranks of `torch.distributed`; and it has no `sampler`, `batch_sampler` and `generator`.

    Args:
        dataset: as `Loader` takes it. A mixture is read in its own order.
        batch_size: samples in a batch of one rank; None for single samples, without a batch axis.
        seed: the seed of the order.
        shuffle: True or False, or an order by its name; see `Plan`.
        num_workers: processes that read ahead; 0 reads in this one.
        collate_fn: makes a batch of samples; `collate` if left out.
        options: see `DataLoaderOptions`.
    """
    named = ("batch_size", "collate_fn", "num_workers", "seed", "shuffle")
    _check_options(options, DataLoaderOptions.__optional_keys__, *named)
    given: dict[str, Any] = dict(options)
    planned: PlanOptions = {"batch_size": 1 if batch_size is None else batch_size}
    if isinstance(shuffle, bool):
        shuffle = "global" if shuffle else "none"
    for name in ("epoch", "drop_last", "pad"):
        if name in given:
            planned[name] = given.pop(name)
    rank, world_size = given.pop("rank", None), given.pop("world_size", None)
    if (rank is None) != (world_size is None):
        raise InvalidArgument(
            "rank and world_size belong together", found=f"rank={rank}, world_size={world_size}"
        )
    if rank is None or world_size is None:
        distributed, rank, world_size = require("torch.distributed", "torch"), 0, 1
        if distributed.is_available() and distributed.is_initialized():
            rank, world_size = distributed.get_rank(), distributed.get_world_size()
    planned["rank"], planned["world_size"] = rank, world_size
    if not hasattr(dataset, "__len__"):
        raise InvalidArgument(
            "the loader needs a dataset that has a length and returns samples by number",
            found=type(dataset).__name__,
            hint="pass a stream to torch's DataLoader; BatchStream makes a stream of a dataset",
        )
    if isinstance(dataset, MixedDataset):
        if seed != 0 or shuffle != "global":
            raise InvalidArgument(
                "a mixture has its own order", hint="pass seed and shuffle to mix()"
            )
        plan = dataset.plan(**planned)
    else:
        sizes = getattr(dataset, "shard_sizes", None) if shuffle == "shards" else None
        planned["seed"], planned["shuffle"] = seed, shuffle
        plan = Plan(len(dataset), shard_sizes=sizes, **planned)
    given["batched"] = batch_size is not None
    return Loader(dataset, plan, num_workers=num_workers, collate_fn=collate_fn, **given)


class BatchStream(IterableDataset):  # type: ignore[misc]  # torch is not there where types are checked
    """Whole batches of a dataset, one after the other, for loaders that take streams.

        stream = BatchStream(dataset, Plan(len(dataset), batch_size=16, seed=7))
        loader = DataLoader(stream, batch_size=None, num_workers=4)

    With any number of workers the batches and their order are those of the plan, as with `Loader`. Each worker takes
    its share by itself. Each iteration has the epoch that `set_epoch` set, also with persistent workers. With
    torchdata's `StatefulDataLoader` it resumes exactly, with the same number of workers.

    Args:
        dataset: as `Loader` takes it.
        plan: which samples each batch has.
        collate_fn: makes a batch of samples; `collate` if left out.
    """

    def __init__(
        self, dataset: SampleSource, plan: Plan, *, collate_fn: Callable[[Any], Any] | None = None
    ) -> None:
        _check_plan(plan, dataset)
        self._fetcher = BatchFetcher(dataset, collate_fn, plan)
        self._plan = plan
        # Persistent workers see what `set_epoch` sets in the training process.
        self._epoch = torch.tensor([plan.epoch], dtype=torch.int64).share_memory_()
        self._resume: dict[str, int] | None = None
        self._running: BatchStreamIterator | None = None

    @property
    def source(self) -> SampleSource:
        """The dataset."""
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
        iterator = BatchStreamIterator(self._fetcher, BatchSamplerIterator(plan, 0))
        if self._resume is not None:
            iterator.load_state_dict(self._resume)
            self._resume = None
        self._running = iterator
        return iterator

    def set_epoch(self, epoch: int) -> None:
        """Make the next iterations those of this epoch.

        If you loaded a state of the same epoch, its position stays.
        """
        self._epoch[0] = self._plan.with_epoch(epoch).epoch
        self._running = None
        if self._resume is not None and self._resume["epoch"] != epoch:
            self._resume = None

    def state_dict(self) -> dict[str, int]:
        """Return five integers that say where to continue: after the batches taken from the stream in this process."""
        if self._running is not None:
            return self._running.state_dict()
        return dict(self._resume or self.plan.state_dict())

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Make the next iteration continue where a state was saved.

        Raises:
            InvalidArgument: the state is of another dataset, seed or shuffle.
        """
        plan, _ = self._plan.resumed(state)
        self._epoch[0] = plan.epoch
        self._resume = dict(state)
        self._running = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_running": None}


class BatchStreamIterator:
    """The batches that are left in one epoch for one worker."""

    def __init__(self, fetcher: BatchFetcher, numbers: BatchSamplerIterator) -> None:
        self._fetcher = fetcher
        self._numbers = numbers

    def __iter__(self) -> BatchStreamIterator:
        return self

    def __next__(self) -> Any:  # noqa: ANN401 - what `collate_fn` returns
        place = self._numbers.place
        return self._fetcher.fetch(PlannedBatch(next(self._numbers), *place))

    def state_dict(self) -> dict[str, int]:
        """As `BatchStream.state_dict`."""
        return self._numbers.state_dict()

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """As `BatchStream.load_state_dict`."""
        self._numbers.load_state_dict(state)


def _check_options(options: Mapping[str, Any], known: Iterable[str], *named: str) -> None:
    for name in options:
        if name in _INSTEAD:
            raise InvalidArgument(f"the loader does not take {name}=", hint=_INSTEAD[name])
        if name not in known:
            raise InvalidArgument(
                "the loader does not know this option",
                found=f"{name}=",
                expected=", ".join(sorted((*known, *named))),
            )


def _check_plan(plan: Plan, dataset: SampleSource) -> None:
    if plan.length != len(dataset):
        raise InvalidArgument(
            "the plan is for a different length", expected=len(dataset), found=plan.length
        )
    if plan.num_workers != 1:
        raise InvalidArgument(
            "the batches of this plan are for one of several workers",
            expected="num_workers=1 in the plan",
            found=plan.num_workers,
            hint="pass num_workers to the loader, which gives each worker its batches",
        )


def _unchanged(fetched: FetchedBatch) -> FetchedBatch:
    return fetched
