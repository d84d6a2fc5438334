"""From samples to batches of tensors; in a worker process, in memory that it shares with the training process."""

from __future__ import annotations

import inspect
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from shard_format.errors import ShardError
from shard_format.extras import require
from shard_train._batches import stack_samples
from shard_train.torch._shared import ALIGNMENT, SharedBatch, pool, rounded
from shard_train.torch._tensors import ByteColumn, is_numeric, offsets_of, tensor_of

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from shard_train._mix import SampleSource
    from shard_train._plan import Plan
else:
    torch = require("torch", "torch")

__all__ = ["BatchFetcher", "FetchedBatch", "PlannedBatch", "collate", "skipped_by"]

_BYTES: Final = frozenset({bytes, bytearray, memoryview})
_IN_LISTS: Final = (np.ndarray, np.generic, torch.Tensor)
_SIMPLE: Final = (str, bytes, int, float, type(None))


def collate(samples: Any) -> Any:  # noqa: ANN401 - whatever samples are
    """Make one batch of tensors from samples: what a torch `DataLoader` takes as `collate_fn`.

    A batch that the dataset has already stacked is used as it is: its `arrays`. Otherwise samples that are
    dictionaries
    become one dictionary, and samples that are tuples become one tuple. In it are:

    - a tensor `[B, ...]` for numbers, and for arrays or tensors of one shape and type;
    - a list of tensors for those that differ in shape;
    - a `ByteColumn` for bytes;
    - a list for everything else.

    In a worker process, the tensors of a batch are in one block of memory that the training process shares.
    """
    columns = _columns_of(samples)
    if not isinstance(columns, Mapping):
        return _assembled({"": columns})[""]
    return _assembled(columns)


def _single(sample: Any) -> Any:  # noqa: ANN401 - whatever a sample is
    """Make tensors of the arrays of one sample; other values stay as they are, as in torch."""
    return _assembled(sample) if isinstance(sample, Mapping) else _assembled({"": sample})[""]


def _columns_of(samples: Any) -> Any:  # noqa: ANN401
    """Return the samples by channel, stacked to arrays if possible: a dictionary, a tuple, or one list."""
    columns = getattr(samples, "arrays", samples)
    if isinstance(columns, Mapping) or not isinstance(columns, Sequence) or not len(columns):
        return columns
    kinds = {type(sample) for sample in columns}
    if all(issubclass(kind, Mapping) for kind in kinds):
        return stack_samples(columns)
    if kinds == {tuple} and len({len(sample) for sample in columns}) == 1:
        named = [dict(enumerate(sample)) for sample in columns]
        return tuple(stack_samples(named).values())  # type: ignore[arg-type]  # numbers for names
    return stack_samples([{"": sample} for sample in columns])[""]


def _in_worker() -> bool:
    """Return whether this process sends its batches to another one, in memory that both can share."""
    return os.name == "posix" and torch.utils.data.get_worker_info() is not None


# --- columns to tensors


def _assembled(columns: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the batch of these columns; in a worker, in one piece of shared memory."""
    prepared = {name: _prepared(column) for name, column in columns.items()}
    if not _in_worker():
        return {name: _placed(column, _alone) for name, column in prepared.items()}
    total = 0

    def measure(leaf: _BatchPart) -> None:
        nonlocal total
        total += rounded(leaf.nbytes)

    for column in prepared.values():
        _placed(column, measure)
    lease = pool().take(total)
    start = ALIGNMENT

    def place(leaf: _BatchPart) -> Any:  # noqa: ANN401
        nonlocal start
        begin, start = start, start + rounded(leaf.nbytes)
        # Empty tensors lie nowhere.
        return leaf.within(lease.room[begin : begin + leaf.nbytes]) if leaf.nbytes else _alone(leaf)

    return SharedBatch({name: _placed(column, place) for name, column in prepared.items()}, lease)


class _BatchPart(NamedTuple):
    """Something that takes memory in a batch: numbers, or the bytes of all samples."""

    value: NDArray[Any] | torch.Tensor | Sequence[Any]
    nbytes: int
    offsets: NDArray[np.int64] | None = None

    def within(self, room: NDArray[np.uint8]) -> Any:  # noqa: ANN401
        """Put it into given memory of `nbytes`."""
        value = self.value
        if isinstance(value, np.ndarray):
            placed = room.view(value.dtype).reshape(value.shape)
            placed[...] = value
            return tensor_of(placed)
        if isinstance(value, torch.Tensor):
            return torch.from_numpy(room).view(value.dtype).view(value.shape).copy_(value)
        return ByteColumn.of(value, self.offsets, room)


def _alone(leaf: _BatchPart) -> Any:  # noqa: ANN401
    """Return what a batch has in memory of its own."""
    if isinstance(leaf.value, np.ndarray):
        return tensor_of(leaf.value)
    return leaf.value if leaf.offsets is None else ByteColumn.of(leaf.value, leaf.offsets)


class _RaggedColumn(list[Any]):
    """A list with leaves in it."""


def _prepared(column: Any) -> Any:  # noqa: ANN401
    """Return a column with leaves in place of what takes memory."""
    if isinstance(column, (np.ndarray, np.generic)):
        array = np.asarray(column)
        if not is_numeric(array.dtype):
            return array.tolist()
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        return _BatchPart(array, array.nbytes)
    if isinstance(column, torch.Tensor):
        return _BatchPart(column, column.nbytes)
    if type(column) is tuple:
        return tuple(_prepared(value) for value in column)
    if type(column) is not list or not column:
        return column
    kinds = set(map(type, column))
    if kinds <= _BYTES:
        offsets = offsets_of(column)
        return _BatchPart(column, int(offsets[-1]), offsets)
    if kinds == {torch.Tensor} and len({(t.shape, t.dtype, t.device) for t in column}) == 1:
        return _prepared(torch.stack(column))
    if any(issubclass(kind, _IN_LISTS) for kind in kinds):
        return _RaggedColumn(_prepared(value) for value in column)
    return column


def _placed(column: Any, place: Callable[[_BatchPart], Any]) -> Any:  # noqa: ANN401
    """Return the column with what `place` makes of its leaves."""
    if isinstance(column, _BatchPart):
        return place(column)
    if type(column) is _RaggedColumn:
        return [_placed(value, place) for value in column]
    if type(column) is tuple:
        return tuple(_placed(value, place) for value in column)
    return column


# --- batches of a dataset


@dataclass
class FetchedBatch:
    """What a worker sends for a batch."""

    batch: Any = None
    skipped: dict[str, int] = field(default_factory=dict)
    """What the dataset could not read since the last batch of this worker, by file."""
    error: ShardError | None = None
    """Why the batch is missing."""
    traceback: str = ""

    def pin_memory(self) -> FetchedBatch:
        """Move the tensors to pinned memory; loaders call this."""
        from torch.utils.data._utils.pin_memory import pin_memory

        self.batch = pin_memory(self.batch)
        return self


class PlannedBatch(list[int]):
    """The numbers of a batch, with its place in the plan."""

    def __init__(self, numbers: list[int], epoch: int, position: int) -> None:
        super().__init__(numbers)
        self.epoch = epoch
        self.position = position
        """Where the batch of all ranks begins in the epoch."""

    def __reduce__(self) -> tuple[Any, ...]:
        return PlannedBatch, (list(self), self.epoch, self.position)


class BatchFetcher:
    """A dataset whose samples come in batches of tensors; pickles as the dataset does."""

    def __init__(
        self,
        dataset: SampleSource,
        collate_fn: Callable[[Any], Any] | None,
        plan: Plan,
        *,
        batched: bool = True,
    ) -> None:
        self.dataset = dataset
        self._plan = plan
        # Where the batch after the latest one begins, if batches were taken in the order of the plan.
        self._next: tuple[int, int] | None = None
        self._batched = batched
        self._collate = collate_fn or (collate if batched else _single)
        self._fills = batched and collate_fn is None and _can_fill(dataset)
        # Shape of one sample and type of each channel, if a batch can be read into given memory.
        self._forms: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] | None = None
        self._reported = dict(skipped_by(dataset))

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, numbers: Sequence[int]) -> FetchedBatch:
        """Return a batch, or its error, in what torch takes for a list of samples."""
        if not _in_worker():
            return FetchedBatch(self.fetch(numbers))
        try:
            batch = self.fetch(numbers)
        except ShardError as error:
            # Torch would keep only its text, and not the file and the entry.
            return FetchedBatch(
                None, self._newly_skipped(), _portable(error), traceback.format_exc()
            )
        return FetchedBatch(batch, self._newly_skipped())

    def fetch(self, numbers: Sequence[int]) -> Any:  # noqa: ANN401 - what `collate_fn` returns
        """Read a batch."""
        if isinstance(numbers, PlannedBatch):
            self._follow(numbers.epoch, numbers.position)
        if self._forms is not None and _in_worker():
            return self._filled(numbers, self._forms)
        if not self._batched:
            return self._collate(self.dataset[numbers[0]])
        together = getattr(self.dataset, "__getitems__", None)
        samples = (
            [self.dataset[number] for number in numbers] if together is None else together(numbers)
        )
        if self._fills:
            self._forms = _forms_of(_columns_of(samples), len(numbers))
            self._fills = self._forms is not None
        return self._collate(samples)

    def _follow(self, epoch: int, position: int) -> None:
        """Have the dataset read ahead, from this batch on."""
        info = torch.utils.data.get_worker_info()
        workers = 1 if info is None else info.num_workers
        if (epoch, position) != self._next:
            follow = getattr(self.dataset, "follow", None)
            if follow is not None:
                # Workers take batches in turn.
                plan = replace(self._plan.with_epoch(epoch), num_workers=workers, worker=0)
                follow(plan, position)
        self._next = (epoch, position + self._plan.global_batch * workers)

    def _filled(
        self,
        numbers: Sequence[int],
        forms: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]],
    ) -> Any:  # noqa: ANN401
        count = len(numbers)
        sizes = {
            name: count * prod(shape) * dtype.itemsize for name, (shape, dtype) in forms.items()
        }
        lease = pool().take(sum(map(rounded, sizes.values())))
        arrays: dict[str, NDArray[Any]] = {}
        start = ALIGNMENT
        for name, (shape, dtype) in forms.items():
            room = lease.room[start : start + sizes[name]]
            arrays[name] = room.view(dtype).reshape(count, *shape)
            start += rounded(sizes[name])
        read = self.dataset.batch(numbers, out=arrays)  # type: ignore[attr-defined]  # `_can_fill`
        if any(
            isinstance(array, np.ndarray)
            if name not in arrays
            else not isinstance(array, np.ndarray)
            or array.shape != arrays[name].shape
            or array.dtype != arrays[name].dtype
            for name, array in read.items()
        ):
            return self._collate(read)
        batch: dict[str, Any] = {}
        for name, array in read.items():
            if name not in arrays:
                batch[name] = array
                continue
            if array is not arrays[name]:
                arrays[name][...] = array
            batch[name] = tensor_of(arrays[name])
        return SharedBatch(batch, lease)

    def _newly_skipped(self) -> dict[str, int]:
        counts = skipped_by(self.dataset)
        if counts == self._reported:
            return {}
        new = {
            path: count - self._reported.get(path, 0)
            for path, count in counts.items()
            if count != self._reported.get(path)
        }
        self._reported = counts
        return new


def _forms_of(
    columns: Any,  # noqa: ANN401 - whatever was read
    count: int,
) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]] | None:
    """Return shape and type of each array; None unless all have one row for each sample, and the rest is text."""
    if not isinstance(columns, dict):
        return None
    arrays = {name: array for name, array in columns.items() if isinstance(array, np.ndarray)}
    if not all(
        array.shape[:1] == (count,) and array.dtype.isnative and is_numeric(array.dtype)
        for array in arrays.values()
    ) or not all(name in arrays or _is_text(column) for name, column in columns.items()):
        return None
    return {name: (array.shape[1:], array.dtype) for name, array in arrays.items()}


def _is_text(column: Any) -> bool:  # noqa: ANN401 - whatever was read
    """Return whether a column has strings only: they take no shared memory."""
    if type(column) is list:
        return all(map(_is_text, column))
    return isinstance(column, str)


def _portable(error: ShardError) -> ShardError:
    """Turn into text what might not pickle: the queue would lose the error, and the loader would wait forever."""
    if not isinstance(error.expected, _SIMPLE):
        error.expected = str(error.expected)
    if not isinstance(error.found, _SIMPLE):
        error.found = str(error.found)
    return error


def _can_fill(dataset: SampleSource) -> bool:
    """Return whether the dataset can read a batch into given arrays."""
    batch = getattr(dataset, "batch", None)
    if batch is None or getattr(dataset, "transform", None) is not None:
        return False
    return "out" in inspect.signature(batch).parameters


def skipped_by(dataset: SampleSource) -> dict[str, int]:
    """Return what a dataset, or the sources of a mixture, could not read in this process, by file."""
    counts = dict(getattr(dataset, "skipped", {}))
    for source in getattr(dataset, "sources", ()):
        for path, count in skipped_by(source).items():
            counts[path] = counts.get(path, 0) + count
    return counts
