"""A torch `DataLoader` whose order is a plan, and which can be stopped and resumed anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shard_format._extras import require
from shard_format.errors import InvalidArgument
from shardpack._torch.fetching import Fetched, Fetcher, skipped_by
from shardpack._torch.shared import forget_ended_workers
from shardpack.mixing import Mixed
from shardpack.sampling import Plan, Sampler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from multiprocessing.context import BaseContext

    import torch
    from torch.utils.data import DataLoader

    from shardpack.mixing import Source
    from shardpack.orders import Shuffle
else:
    torch = require("torch", "torch")
    DataLoader = require("torch.utils.data", "torch").DataLoader

__all__ = ["Loader", "LoaderIterator", "WorkerTraceback", "data_loader"]


_SEEDS = 1 << 63
# Odd and far from all that people take as a seed: neighbouring seeds and epochs do not meet.
_STRIDE = 0x1E3779B97F4A7C15


class WorkerTraceback(Exception):
    """Where in a worker process an error was raised; the cause of that error here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Loader(DataLoader):  # type: ignore[misc]  # torch is not there where types are checked
    """Batches of a data set in the order of a plan, as tensors: a torch `DataLoader`.

    Each iteration gives the batches of one epoch. When it came to its end, the next one has the next epoch;
    one that was left earlier starts again. Its state is five integers: it counts the batches that were taken
    from the loader, however many its workers have read ahead, and fits any number of ranks, workers and batch sizes.

    Workers get seeds that follow from the plan's seed and the epoch; the random numbers of this process are not touched.

    In a worker, a data set that can read into given memory reads straight into what it shares with this process.
    A batch stays as it is while one of its tensors is used; then its memory is filled again.

    Owns: where the next iteration starts, how far the running one is, and what workers could not read.

    Args:
        dataset: with `__len__` and `__getitem__`, and `__getitems__` if it can read many samples at once.
        plan: which samples each batch has.
        num_workers: processes that read ahead; 0 reads in this one.
        collate_fn: makes a batch of samples; `collate` if left out.
        pin_memory: whether batches are copied to pinned memory.
        persistent_workers: whether workers live on from one epoch to the next.
        prefetch_factor: batches that each worker reads ahead; 2 if left out.
        multiprocessing_context: how workers are started: `"fork"`, `"spawn"` or `"forkserver"`; that of the
            system if left out.
        timeout: seconds after which a batch of a worker is given up; 0 for never.

    Raises:
        InvalidArgument: the plan is for another length, or for one of several workers.
    """

    def __init__(
        self,
        dataset: Source,
        plan: Plan,
        *,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        persistent_workers: bool = False,
        prefetch_factor: int | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        timeout: float = 0,
    ) -> None:
        check_plan(plan, dataset)
        self._source = dataset
        self._walk = Sampler(plan)
        self._start = self._walk.state_dict()
        self._progress: Progress | None = None
        self._skipped: dict[str, int] = {}
        self._seeds = torch.Generator()
        super().__init__(
            Fetcher(dataset, collate_fn),
            batch_sampler=self._walk,
            num_workers=num_workers,
            collate_fn=_as_it_is,
            pin_memory=pin_memory,
            persistent_workers=persistent_workers,
            prefetch_factor=prefetch_factor,
            multiprocessing_context=multiprocessing_context,
            timeout=timeout,
            generator=self._seeds,
        )

    @property
    def source(self) -> Source:
        """The data set. (`dataset` is how torch asks it for batches.)"""
        return self._source

    @property
    def plan(self) -> Plan:
        """The plan of the epoch that the next iteration has."""
        return self._walk.plan.with_epoch(self._start["epoch"])

    @property
    def skipped(self) -> dict[str, int]:
        """What could not be read with `on_error="skip"`, in all processes: how many samples, by file."""
        counts = skipped_by(self._source)
        for path, count in self._skipped.items():
            counts[path] = counts.get(path, 0) + count
        return counts

    def __iter__(self) -> LoaderIterator:
        # The sampler is read ahead of the training: it is told where that stands.
        self._walk.load_state_dict(self._start)
        plan = self._walk.plan
        self._seeds.manual_seed((plan.seed + plan.epoch * _STRIDE) % _SEEDS)
        self._progress = Progress(plan, self._start["position"])
        return LoaderIterator(self, super().__iter__(), self._progress)

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration that of this epoch, if it is not anyway.

        The place to resume from stays if the epoch is that of the state that was loaded.
        """
        if epoch != self._start["epoch"]:
            self._go_to(self._walk.plan.with_epoch(epoch).state_dict())

    def state_dict(self) -> dict[str, int]:
        """Five numbers that say where to go on: after the batches that were taken from the loader."""
        return dict(self._start) if self._progress is None else self._progress.state_dict()

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Makes the next iteration go on where a state was saved.

        Raises:
            InvalidArgument: the state is of another data set, seed or shuffle.
        """
        self._walk.plan.resumed(state)
        self._go_to(state)

    def _go_to(self, state: Mapping[str, int]) -> None:
        self._start = dict(state)
        self._progress = None

    # --- what iterations report

    def _arrived(self, fetched: Fetched) -> None:
        for path, count in fetched.skipped.items():
            self._skipped[path] = self._skipped.get(path, 0) + count

    def _ended(self, progress: Progress) -> None:
        # One that was left behind and is finished later says nothing about where we are.
        if progress is self._progress:
            plan = progress.plan
            self._go_to(plan.with_epoch(plan.epoch + 1).state_dict())
        forget_ended_workers()


class Progress:
    """How far an iteration is: known to it and to its loader, so that neither keeps the other."""

    def __init__(self, plan: Plan, position: int) -> None:
        self.plan = plan
        self._position = position
        self._next = position

    @property
    def left(self) -> int:
        """Batches that are still to come."""
        return self.plan.steps_from(self._next)

    def passed(self) -> None:
        """A batch came, or failed: then it counts as taken when a later one was."""
        self._next += self.plan.global_batch

    def taken(self) -> None:
        """The batch that came last is handed to the training."""
        self._position = self._next

    def state_dict(self) -> dict[str, int]:
        """As `Loader.state_dict`."""
        return {**self.plan.state_dict(), "position": self._position}


class LoaderIterator:
    """The batches that are left in one epoch. Workers that do not persist end with it."""

    def __init__(self, loader: Loader, batches: Iterator[Fetched], progress: Progress) -> None:
        self._loader = loader
        self._batches = batches
        self._progress = progress

    @property
    def plan(self) -> Plan:
        """The plan of this epoch."""
        return self._progress.plan

    def __iter__(self) -> LoaderIterator:
        return self

    def __next__(self) -> Any:  # noqa: ANN401 - what `collate_fn` returns
        try:
            fetched = next(self._batches)
        except StopIteration:
            self._loader._ended(self._progress)
            raise
        except Exception:
            self._progress.passed()
            raise
        self._progress.passed()
        self._loader._arrived(fetched)
        if fetched.error is not None:
            try:
                raise fetched.error from WorkerTraceback(fetched.traceback)
            finally:
                # The error knows this frame: if that knew the error, workers would live until both are found.
                del fetched
        self._progress.taken()
        return fetched.batch

    def __len__(self) -> int:
        """Batches that are still to come."""
        return self._progress.left

    def state_dict(self) -> dict[str, int]:
        """As `Loader.state_dict`."""
        return self._progress.state_dict()


def data_loader(
    dataset: Source,
    *,
    batch_size: int,
    seed: int = 0,
    epoch: int = 0,
    shuffle: Shuffle = "global",
    drop_last: bool = False,
    pad: bool = True,
    rank: int | None = None,
    world_size: int | None = None,
    num_workers: int = 0,
    collate_fn: Callable[[Any], Any] | None = None,
    pin_memory: bool = False,
    persistent_workers: bool = False,
    prefetch_factor: int | None = None,
    multiprocessing_context: str | BaseContext | None = None,
    timeout: float = 0,
) -> Loader:
    """A loader of batches in an order that the seed decides: `Loader` with a plan made for it.

        loader = data_loader(dataset, batch_size=16, seed=7, num_workers=4)
        for batch in loader:
            batch["rgb"]

    Args:
        dataset: as `Loader` takes it. A mixture has an order of its own, in which it is read.
        batch_size: samples in a batch of one rank.
        seed: another seed is another order.
        epoch: of the first iteration.
        shuffle: see `Plan`.
        drop_last: leaves out what does not fill a batch of all ranks at the end of an epoch.
        pad: unless it is dropped, whether the last batch is filled with samples from the start of the epoch.
        rank: which rank this is; if left out, what `torch.distributed` says where it is initialised, else 0.
        world_size: how many there are; the same.
        num_workers: and all that follow: see `Loader`.
    """
    if (rank is None) != (world_size is None):
        raise InvalidArgument(
            "rank and world_size belong together", found=f"rank={rank}, world_size={world_size}"
        )
    if rank is None or world_size is None:
        rank, world_size = _place_in_world()
    if isinstance(dataset, Mixed):
        if seed != 0 or shuffle != "global":
            raise InvalidArgument(
                "a mixture has an order of its own", hint="give seed and shuffle to mix()"
            )
        plan = dataset.plan(
            batch_size=batch_size,
            epoch=epoch,
            drop_last=drop_last,
            pad=pad,
            rank=rank,
            world_size=world_size,
        )
    else:
        plan = Plan(
            len(dataset),
            seed=seed,
            shuffle=shuffle,
            shard_sizes=getattr(dataset, "shard_sizes", None) if shuffle == "shards" else None,
            batch_size=batch_size,
            epoch=epoch,
            drop_last=drop_last,
            pad=pad,
            rank=rank,
            world_size=world_size,
        )
    return Loader(
        dataset,
        plan,
        num_workers=num_workers,
        collate_fn=collate_fn,
        pin_memory=pin_memory,
        persistent_workers=persistent_workers,
        prefetch_factor=prefetch_factor,
        multiprocessing_context=multiprocessing_context,
        timeout=timeout,
    )


def check_plan(plan: Plan, dataset: Source) -> None:
    """That a plan can be used for a data set, by a loader that deals out batches to workers itself.

    Raises:
        InvalidArgument: it cannot.
    """
    if plan.length != len(dataset):
        raise InvalidArgument(
            "the plan is for another length", expected=len(dataset), found=plan.length
        )
    if plan.num_workers != 1:
        raise InvalidArgument(
            "the batches of this plan are for one of several workers",
            expected="num_workers=1 in the plan",
            found=plan.num_workers,
            hint="the loader deals out the batches to its workers by itself",
        )


def _place_in_world() -> tuple[int, int]:
    distributed = require("torch.distributed", "torch")
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def _as_it_is(fetched: Fetched) -> Fetched:
    return fetched
