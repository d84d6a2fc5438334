"""The order of training: which samples each batch of each rank has, as a pure function.

    plan = Plan(len(dataset), seed=7, batch_size=32, rank=rank, world_size=world_size)
    for indices in plan.batches():
        batch = dataset.__getitems__(indices)

An epoch is a sequence of *positions* from 0 to `length - 1`, and an order says which sample is at each. The global
batch that starts at position p takes the positions from p on, `batch_size * world_size`
of them, and each rank its part of those: neighbours or, by shards, samples that are stored near each other.
So what is left of an epoch depends on one number, the position, and not on how many ranks and workers there
were before. `Plan` is that function; `BatchSampler` walks along it and can be stopped and resumed.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from operator import index as as_index
from typing import TYPE_CHECKING, Any, Final, TypedDict, get_args

import numpy as np

from shard_format.errors import InvalidArgument, check_choice
from shard_train._orders import (
    FOR_SAMPLES,
    MAX_LENGTH,
    Order,
    Permutation,
    ShardOrder,
    Shuffle,
    mixed_key,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

__all__ = ["BatchSampler", "BatchSamplerIterator", "Plan", "PlanOptions"]

# Samples whose order is computed at a time when batches are taken in turn.
_AHEAD: Final = 4096
_MOST: Final = (1 << 63) - 1
_SAME_SEED: Final = "make the plan with the saved seed"
_SAME_MIXTURE: Final = "mix the same sources with the same weights, stop and seed"
_STATE: Final = ("length", "seed", "order", "epoch", "position")


class PlanOptions(TypedDict, total=False):
    """The arguments of `Plan` that the `plan` methods of datasets take; see there."""

    seed: int
    epoch: int
    world_size: int
    rank: int
    num_workers: int
    worker: int
    batch_size: int
    drop_last: bool
    pad: bool
    shuffle: Shuffle
    buffer_shards: int


@dataclass(frozen=True)
class Plan:
    """The batches of one rank in one epoch; the same for the same arguments, everywhere.

    Over all ranks (and workers) every sample comes exactly once per epoch, apart from those that `is_pad` marks,
    and every rank has the same number of batches. Immutable, safe for threads, pickles as its arguments.

    Raises:
        InvalidArgument: arguments that cannot work, such as a rank beyond the world size.
    """

    length: int
    """Samples in the dataset."""
    seed: int = field(default=0, kw_only=True)
    """Another seed is another order."""
    epoch: int = field(default=0, kw_only=True)
    """Which epoch this is; each has an order of its own."""
    world_size: int = field(default=1, kw_only=True)
    """Ranks, each of which makes a plan that differs in `rank` only."""
    rank: int = field(default=0, kw_only=True)
    num_workers: int = field(default=1, kw_only=True)
    """Workers of this rank that take batches in turn, each with a plan of its own. Leave it at 1 if
    one process deals out the indices, as a torch `DataLoader` with a `batch_sampler` does."""
    worker: int = field(default=0, kw_only=True)
    batch_size: int = field(default=1, kw_only=True)
    """Samples in a batch of one rank."""
    drop_last: bool = field(default=False, kw_only=True)
    """Leaves out what does not fill a batch of all ranks at the end of an epoch."""
    pad: bool = field(default=False, kw_only=True)
    """Fills the last batch with samples from the start of the epoch, which `is_pad` marks. Otherwise it is
    short, and what is left is shared evenly by the ranks; if fewer samples are left than there are ranks, each
    rank has one, and those that are filled up are marked."""
    shuffle: Shuffle = field(default="global", kw_only=True)
    """`"global"`: every sample may come anywhere. `"shards"`: a few shards at a time, of which each rank takes
    its own, for data that is far away. `"none"`: as stored. `"stream"`: as stored, and epoch e has the numbers from `e * length` on,
    for datasets with an order of their own."""
    shard_sizes: Sequence[int] | None = field(default=None, kw_only=True)
    """Samples in each shard, in the order of the dataset; for `"shards"`."""
    buffer_shards: int = field(default=16, kw_only=True)
    """Shards whose samples are shuffled together; for `"shards"`."""

    def __post_init__(self) -> None:
        for name, least, most in (
            ("length", 0, MAX_LENGTH),
            ("seed", 0, _MOST),
            ("epoch", 0, MAX_LENGTH),
            ("world_size", 1, MAX_LENGTH),
            ("rank", 0, None),
            ("num_workers", 1, MAX_LENGTH),
            ("worker", 0, None),
            ("batch_size", 1, MAX_LENGTH),
            ("buffer_shards", 1, MAX_LENGTH),
        ):
            value = _whole(name, getattr(self, name))
            if name in ("rank", "worker"):
                most = (self.world_size if name == "rank" else self.num_workers) - 1
            _check_range(name, value, least, _MOST if most is None else most)
            object.__setattr__(self, name, value)
        check_choice("shuffle", self.shuffle, get_args(Shuffle))
        if self.shuffle == "stream":
            _check_range("length times epoch", self.length * (self.epoch + 1), 0, _MOST)
        # Positions of one turn of all ranks and workers, and those after it, are 64-bit numbers.
        turn = self.global_batch * self.num_workers
        _check_range("batch_size times ranks times workers", turn, 1, MAX_LENGTH)
        self._check_shards()

    def _check_shards(self) -> None:
        sizes = self.shard_sizes
        if sizes is None:
            if self.shuffle == "shards":
                raise InvalidArgument(
                    "the sizes of the shards are not given",
                    hint="pass shard_sizes=[len(shard) for shard in dataset.shards]",
                )
            return
        sizes = tuple(_whole("shard_sizes", size) for size in sizes)
        if min(sizes, default=0) < 0 or sum(sizes) != self.length:
            raise InvalidArgument(
                "shard_sizes are not those of this dataset",
                expected=f"sizes of 0 or more with the sum {self.length}",
                found=f"{len(sizes)} sizes with the sum {sum(sizes)}",
            )
        object.__setattr__(self, "shard_sizes", sizes)

    # Sizes

    @property
    def global_batch(self) -> int:
        """Samples that all ranks together take in one step."""
        return self.batch_size * self.world_size

    @property
    def steps(self) -> int:
        """Batches in an epoch, the same number for every rank."""
        return self.steps_from(0)

    def steps_from(self, position: int) -> int:
        """Batches that are left in the epoch from this position on."""
        left = max(0, self.length - position)
        return left // self.global_batch if self.drop_last else -(-left // self.global_batch)

    def __len__(self) -> int:
        """Batches that `batches()` gives: `steps`, or the share of this worker."""
        return max(0, -(-(self.steps - self.worker) // self.num_workers))

    # Samples

    @cached_property
    def _order(self) -> Order:
        if self.shuffle == "global":
            return Permutation(self.length, mixed_key(self.seed, self.epoch, FOR_SAMPLES))
        if self.shuffle == "shards":
            return ShardOrder(self.shard_sizes or (), self.buffer_shards, self.seed, self.epoch)
        start = self.epoch * self.length if self.shuffle == "stream" else 0
        return lambda positions: positions + start

    def shard_groups(self) -> NDArray[np.int64] | None:
        """The group of each shard, if the order goes from group to group (`"shards"`); else None."""
        order = self._order
        return order.groups_of_shards if isinstance(order, ShardOrder) else None

    def indices(self, positions: ArrayLike) -> NDArray[np.int64]:
        """The numbers of the samples at these positions of the epoch, whatever the rank.

        Raises:
            InvalidArgument: a position that is not below the length.
        """
        asked = np.asarray(positions)
        if asked.dtype.kind not in "iu" and asked.size:
            raise InvalidArgument("positions must be integers", found=str(asked.dtype))
        # Negative numbers turn into huge ones: one comparison finds both kinds.
        if asked.size and int(asked.astype(np.uint64).max()) >= self.length:
            raise InvalidArgument(
                "a position is outside the epoch",
                expected=f"0 to {self.length - 1}",
                found=f"{asked.min()} to {asked.max()}",
            )
        return self._order(asked.astype(np.int64).ravel()).reshape(asked.shape)

    def batch(self, step: int) -> NDArray[np.int64]:
        """The samples of this rank in a step, counted from the start of the epoch."""
        return self.batch_at(self._start_of(step))

    def is_pad(self, step: int) -> NDArray[np.bool_]:
        """Which samples of `batch(step)` only fill up the batch: they occurred already in this epoch."""
        return self.is_pad_at(self._start_of(step))

    def _start_of(self, step: int) -> int:
        step = as_index(step)
        if not 0 <= step < self.steps:
            raise IndexError(f"step {step} is outside an epoch of {self.steps} steps")
        return step * self.global_batch

    def batch_at(self, position: int) -> NDArray[np.int64]:
        """The samples of this rank in the global batch that starts at this position."""
        positions = self._positions_at(position)
        if positions.size and positions[-1] >= self.length:
            positions %= self.length
        return self._order(positions)

    def is_pad_at(self, position: int) -> NDArray[np.bool_]:
        """Which samples of `batch_at(position)` only fill up the batch."""
        return self._positions_at(position) >= self.length

    def _positions_at(self, position: int) -> NDArray[np.int64]:
        """The positions of this rank in the batch from here on, past the end where it is filled."""
        if not 0 <= position < self.length:
            raise IndexError(f"position {position} is outside an epoch of {self.length} samples")
        left = self.length - position
        is_shared = left < self.global_batch and not self.pad
        # A rank without samples would have a batch that cannot be collated.
        count = max(left, self.world_size) if is_shared else self.global_batch
        return self._share(np.array([position]), count).ravel()

    @property
    def _shares_by_shard(self) -> bool:
        return self.shuffle == "shards" and self.world_size > 1

    def _share(self, starts: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        """The positions that this rank takes of the `count` from each start on, a row for each start.

        By shards, each rank takes samples that are stored near each other, so that two rarely fetch the same shard.
        """
        first, end = (count * rank // self.world_size for rank in (self.rank, self.rank + 1))
        if not self._shares_by_shard:
            return starts[:, np.newaxis] + np.arange(first, end, dtype=np.int64)
        positions = starts[:, np.newaxis] + np.arange(count, dtype=np.int64)
        samples = self._order(positions.ravel() % self.length).reshape(positions.shape)
        # All ranks must sort alike, also the samples that a filled batch repeats.
        chosen = np.argsort(samples, axis=1, kind="stable")[:, first:end]
        chosen.sort(axis=1)
        return np.take_along_axis(positions, chosen, axis=1)

    def batches(self, start: int = 0) -> Iterator[NDArray[np.int64]]:
        """The batches of this rank from step `start` on.

        With several workers, the first takes batch `start`, the next one the batch after that, and so
        on in turn: taken from the workers in turn they are in order, wherever they start.
        """
        return self.batches_from(as_index(start) * self.global_batch)

    def batches_from(self, position: int) -> Iterator[NDArray[np.int64]]:
        """As `batches`, from any position on."""
        if position < 0:
            raise InvalidArgument("batches start before the epoch", found=position)
        return self._batches_from(position)

    def _batches_from(self, position: int) -> Iterator[NDArray[np.int64]]:
        stride = self.global_batch * self.num_workers
        position += self.global_batch * self.worker
        whole = max(0, (self.length - position - self.global_batch) // stride + 1)
        end = position + whole * stride
        # NumPy costs microseconds a call: many batches in one call cost hardly more than one.
        computed = self.global_batch if self._shares_by_shard else self.batch_size
        together = stride * max(1, _AHEAD // computed)
        for first in range(position, end, together):
            starts = np.arange(first, min(end, first + together), stride, dtype=np.int64)
            positions = self._share(starts, self.global_batch)
            yield from self._order(positions.ravel()).reshape(positions.shape)
        if end < self.length and not self.drop_last:
            yield self.batch_at(end)

    def with_epoch(self, epoch: int) -> Plan:
        """The plan of another epoch."""
        return self if epoch == self.epoch else replace(self, epoch=epoch)

    # State

    def state_dict(self, step: int = 0) -> dict[str, int]:
        """What `BatchSampler.load_state_dict` takes to continue at this step of the epoch."""
        return self.state_at(as_index(step) * self.global_batch)

    def state_at(self, position: int) -> dict[str, int]:
        """Return the state at any position of the epoch."""
        values = (self.length, self.seed, self._order_id, self.epoch, position)
        return dict(zip(_STATE, values, strict=True))

    @cached_property
    def _order_id(self) -> int:
        """A number that differs for orders that differ by more than length, seed and epoch."""
        is_by_shards = self.shuffle == "shards"
        how = (1, self.shuffle, *((self.buffer_shards, self.shard_sizes) if is_by_shards else ()))
        return zlib.crc32(repr(how).encode())

    def resumed(self, state: Mapping[str, int]) -> tuple[Plan, int]:
        """The plan of the epoch of a state, and the position in it from which to continue.

        Raises:
            InvalidArgument: the state is of another dataset or another order.
        """
        if sorted(state) != sorted(_STATE):
            raise InvalidArgument(
                "not the state of a plan",
                expected=", ".join(_STATE),
                found=", ".join(map(str, state)) or "nothing",
            )
        saved = {name: _whole(name, state[name]) for name in _STATE}
        for name, mine, hint in (
            ("length", self.length, "open the same dataset"),
            ("seed", self.seed, _SAME_MIXTURE if self.shuffle == "stream" else _SAME_SEED),
            ("order", self._order_id, "use the same shuffle, buffer_shards and shards"),
        ):
            if saved[name] != mine:
                raise InvalidArgument(
                    f"the state has a different {name} than this plan",
                    expected=mine,
                    found=saved[name],
                    hint=f"{hint}: the order would not be the same",
                )
        _check_range("position", saved["position"], 0, _MOST)
        plan = self.with_epoch(saved["epoch"])
        return plan, saved["position"]

    def __getstate__(self) -> dict[str, Any]:
        # What was computed is computed again where it is needed.
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def __repr__(self) -> str:
        shown = [f"{self.length}"]
        for each in fields(self)[1:]:
            value = getattr(self, each.name)
            if value != each.default:
                text = f"<{len(value)} sizes>" if each.name == "shard_sizes" else repr(value)
                shown.append(f"{each.name}={text}")
        return f"Plan({', '.join(shown)})"


class BatchSampler:
    """Iterates over a plan, epoch after epoch; a `batch_sampler` for torch.

        sampler = BatchSampler(Plan(len(dataset), batch_size=32))
        loader = DataLoader(dataset, batch_sampler=sampler, num_workers=4)

    Each iteration gives the batches of one epoch as lists of numbers. After a complete iteration, the next one has
    the next epoch; after an incomplete one, the same epoch starts again. `load_state_dict` makes the next
    iteration start in the middle of its epoch, with any number of ranks and workers.

    Owns: the epoch and where it starts, the iteration that is running, and where the latest one started.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        """The plan of the epoch that the next iteration has."""
        self._position = 0
        self._running: BatchSamplerIterator | None = None
        self._latest = (plan, 0)

    def __len__(self) -> int:
        """Batches in a whole epoch, also if this one was resumed in the middle."""
        return len(self.plan)

    def __iter__(self) -> BatchSamplerIterator:
        self._running = BatchSamplerIterator(self.plan, self._position, self)
        self._latest = (self.plan, self._position)
        return self._running

    def set_epoch(self, epoch: int) -> None:
        """Makes this the epoch of the next iteration.

        The place to resume from stays if the epoch is that of the state that was loaded.
        """
        if epoch != self.plan.epoch:
            self._move(self.plan.with_epoch(epoch), 0)
            self._latest = (self.plan, 0)

    def state_dict(self, batches_done: int | None = None) -> dict[str, int]:
        """Five integers that say where to continue: after the batches that were taken from the sampler.

        A loader reads ahead, so the sampler is ahead of the training and may already be in the next epoch. In that
        case, pass the number of batches of the latest iteration that you trained on.
        """
        if batches_done is not None:
            plan, start = self._latest
            _check_range("batches_done", as_index(batches_done), 0, MAX_LENGTH)
            return plan.state_at(start + batches_done * plan.global_batch * plan.num_workers)
        if self._running is not None:
            return self._running.state_dict()
        return self.plan.state_at(self._position)

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continues where a state was saved; the ranks, workers and batch size may differ.

        Raises:
            InvalidArgument: the state is of another dataset, seed or shuffle.
        """
        self._move(*self.plan.resumed(state))
        self._latest = (self.plan, self._position)

    def _move(self, plan: Plan, position: int) -> None:
        self.plan = plan
        self._position = position
        self._running = None

    def epoch_ended(self, iterator: BatchSamplerIterator) -> None:
        """Go on to the next epoch; called by iterations."""
        # One that was left behind and is finished later says nothing about where we are.
        if iterator is self._running:
            self._move(iterator.plan.with_epoch(iterator.plan.epoch + 1), 0)

    def __repr__(self) -> str:
        return f"BatchSampler({self.plan!r})"


class BatchSamplerIterator:
    """The batches that are left in one epoch, as lists of numbers."""

    def __init__(self, plan: Plan, position: int, sampler: BatchSampler | None = None) -> None:
        self.plan = plan
        """The plan of this epoch."""
        self._position = position
        self._sampler = sampler
        self._batches: Iterator[NDArray[np.int64]] | None = None

    def __iter__(self) -> BatchSamplerIterator:
        return self

    def __next__(self) -> list[int]:
        if self._batches is None:
            self._batches = self.plan.batches_from(self._position)
        indices = next(self._batches, None)
        if indices is None:
            if self._sampler is not None:
                self._sampler.epoch_ended(self)
            raise StopIteration
        # Of several workers each one counts the batches that the others take in the same turn.
        self._position += self.plan.global_batch * self.plan.num_workers
        numbers: list[int] = indices.tolist()
        return numbers

    @property
    def place(self) -> tuple[int, int]:
        """The epoch of the next batch, and the position in it where the batch of all ranks begins."""
        return self.plan.epoch, self._position + self.plan.global_batch * self.plan.worker

    def state_dict(self) -> dict[str, int]:
        """As `BatchSampler.state_dict`."""
        return self.plan.state_at(self._position)

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """As `BatchSampler.load_state_dict`."""
        self.plan, self._position = self.plan.resumed(state)
        self._batches = None

    def __getstate__(self) -> dict[str, Any]:
        # A running generator does not pickle; the next batch follows from the position.
        return {**self.__dict__, "_batches": None}


def _whole(name: str, value: object) -> int:
    try:
        return as_index(value)  # type: ignore[arg-type]  # that is what is being found out
    except TypeError:
        raise InvalidArgument(f"{name} must be an integer", found=repr(value)) from None


def _check_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidArgument(f"{name} is out of range", expected=f"{least} to {most}", found=value)
