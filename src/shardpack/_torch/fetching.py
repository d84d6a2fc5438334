"""Reading the batches of a data set, in a worker process straight into the memory that it shares."""

from __future__ import annotations

import inspect
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.errors import ShardError
from shardpack._torch.buffers import ALIGNMENT, pool, rounded
from shardpack._torch.collating import collate, columns_of, in_worker
from shardpack._torch.shared import SharedBatch
from shardpack._torch.tensors import is_numeric, tensor_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from shardpack.mixing import Source

__all__ = ["Fetched", "Fetcher", "skipped_by"]

_SIMPLE: Final = (str, bytes, int, float, type(None))


@dataclass
class Fetched:
    """What a worker sends for a batch."""

    batch: Any = None
    skipped: dict[str, int] = field(default_factory=dict)
    """What the data set could not read since the last batch of this worker, by file."""
    error: ShardError | None = None
    """Why there is no batch."""
    traceback: str = ""

    def pin_memory(self) -> Fetched:
        """The same with its tensors in pinned memory; what loaders call."""
        from torch.utils.data._utils.pin_memory import pin_memory

        self.batch = pin_memory(self.batch)
        return self


class Layout:
    """Where the channels of a batch lie in a buffer, if all are arrays of numbers with one row for each sample."""

    def __init__(self, forms: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]) -> None:
        self._forms = dict(forms)

    @classmethod
    def of(cls, columns: Any, count: int) -> Layout | None:  # noqa: ANN401 - whatever was read
        """That of a batch of so many samples; None if it has none."""
        if not isinstance(columns, dict) or not all(
            isinstance(array, np.ndarray)
            and array.shape[:1] == (count,)
            and array.dtype.isnative
            and is_numeric(array.dtype)
            for array in columns.values()
        ):
            return None
        return cls({name: (array.shape[1:], array.dtype) for name, array in columns.items()})

    def nbytes(self, count: int) -> int:
        """Of a batch of so many samples."""
        return sum(rounded(size) for _, _, _, size in self._places(count))

    def arrays(self, room: NDArray[np.uint8], count: int) -> dict[str, NDArray[Any]]:
        """The channels of a batch of so many samples in a buffer."""
        found, start = {}, ALIGNMENT
        for name, shape, dtype, size in self._places(count):
            found[name] = room[start : start + size].view(dtype).reshape(shape)
            start += rounded(size)
        return found

    def _places(self, count: int) -> list[tuple[str, tuple[int, ...], np.dtype[Any], int]]:
        places = []
        for name, (shape, dtype) in self._forms.items():
            size = dtype.itemsize * count
            for extent in shape:
                size *= extent
            places.append((name, (count, *shape), dtype, size))
        return places


class Fetcher:
    """A data set whose samples come in batches of tensors; pickles as the data set does.

    Args:
        dataset: with `__len__` and `__getitem__`, and `__getitems__` if it can read many samples at once. If it
            has `batch(numbers, out=...)` too, workers let that fill shared memory.
        collate_fn: makes a batch of samples; `collate` if left out.
    """

    def __init__(self, dataset: Source, collate_fn: Callable[[Any], Any] | None) -> None:
        self.dataset = dataset
        self._collate = collate_fn or collate
        self._fills = collate_fn is None and _can_fill(dataset)
        self._layout: Layout | None = None
        self._reported = dict(skipped_by(dataset))

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, numbers: Sequence[int]) -> Fetched:
        """A batch, or why there is none, in what loaders take for a list of samples."""
        if not in_worker():
            return Fetched(self.fetch(numbers))
        try:
            batch = self.fetch(numbers)
        except ShardError as error:
            # torch would keep the text of it only, and not the file and the entry.
            return Fetched(None, self._newly_skipped(), _portable(error), traceback.format_exc())
        return Fetched(batch, self._newly_skipped())

    def fetch(self, numbers: Sequence[int]) -> Any:  # noqa: ANN401 - what `collate_fn` returns
        """A batch."""
        if self._layout is not None and in_worker():
            return self._filled(numbers, self._layout)
        together = getattr(self.dataset, "__getitems__", None)
        samples = (
            [self.dataset[number] for number in numbers] if together is None else together(numbers)
        )
        if self._fills:
            self._layout = Layout.of(columns_of(samples), len(numbers))
            self._fills = self._layout is not None
        return self._collate(samples)

    def _filled(self, numbers: Sequence[int], layout: Layout) -> Any:  # noqa: ANN401
        lease = pool().take(layout.nbytes(len(numbers)))
        arrays = layout.arrays(lease.room, len(numbers))
        read = self.dataset.batch(numbers, out=arrays)  # type: ignore[attr-defined]  # `_can_fill`
        if any(
            name not in arrays
            or array.shape != arrays[name].shape
            or array.dtype != arrays[name].dtype
            for name, array in read.items()
        ):
            return self._collate(read)
        for name, array in read.items():
            if array is not arrays[name]:
                arrays[name][...] = array
        return SharedBatch({name: tensor_of(arrays[name]) for name in read}, lease)

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


def _portable(error: ShardError) -> ShardError:
    """The error with nothing on it that might not pickle: a queue would lose it, and the loader wait forever."""
    if not isinstance(error.expected, _SIMPLE):
        error.expected = str(error.expected)
    if not isinstance(error.found, _SIMPLE):
        error.found = str(error.found)
    return error


def _can_fill(dataset: Source) -> bool:
    """Whether the data set can read a batch into given arrays."""
    batch = getattr(dataset, "batch", None)
    if batch is None or getattr(dataset, "transform", None) is not None:
        return False
    return "out" in inspect.signature(batch).parameters


def skipped_by(dataset: Source) -> dict[str, int]:
    """What a data set, or the sources of a mixture, could not read in this process, by file."""
    counts = dict(getattr(dataset, "skipped", {}))
    for source in getattr(dataset, "sources", ()):
        for path, count in skipped_by(source).items():
            counts[path] = counts.get(path, 0) + count
    return counts
