"""Batches: samples that were read together, one by one or stacked to one array for each name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, overload

import numpy as np

from shard_format.errors import EntryNotFound, InvalidArgument, shorten

__all__ = [
    "KEY",
    "MixedBatch",
    "NotStackable",
    "Sample",
    "SampleBatch",
    "WindowBatch",
    "owned",
    "stack_samples",
    "stack_values",
]

Sample: TypeAlias = dict[str, Any]
"""A sample or window: values by name."""
KEY: Final = "__key__"
"""Under this name a sample has the key of its record."""

_NUMERIC: Final = (np.ndarray, np.generic, bool, int, float)


class NotStackable(InvalidArgument, AttributeError):
    """Samples that are not dictionaries have no columns: a batch of them has no `arrays`."""

    __str__ = InvalidArgument.__str__


class _StackedBatch(Sequence[Sample]):
    """Samples that are rows of stacked arrays; a row is made of views, without copies."""

    __slots__ = ("_count", "arrays")

    def __init__(self, arrays: Mapping[str, Any], count: int) -> None:
        self.arrays: dict[str, Any] = dict(arrays)
        """The samples by name, `[B, ...]`; a list where values cannot be stacked."""
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, number: int) -> Sample: ...

    @overload
    def __getitem__(self, number: slice) -> list[Sample]: ...

    def __getitem__(self, number: int | slice) -> Sample | list[Sample]:
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(self._count))]
        return {name: values[number] for name, values in self.arrays.items()}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._count}>"


class MixedBatch(_StackedBatch):
    """Samples of a mixture; `arrays` has them stacked."""

    __slots__ = ()


class WindowBatch(_StackedBatch):
    """Windows that were read together; `arrays` has them stacked."""

    __slots__ = ()

    def transformed(self, transform: Callable[[Sample], Any]) -> SampleBatch:
        """Return what a function makes of each window."""
        return SampleBatch([transform(sample) for sample in self])


class SampleBatch(Sequence[Any]):
    """Samples that were decoded one by one; `arrays` has them stacked.

    The arrays of a sample belong to it: you can write to them, and they need no open file.

    Args:
        samples: as they were decoded; arrays may be views of a file.
        fill: whether a name that only some samples have is None in the others; else it is an error.
    """

    __slots__ = ("_arrays", "_decoded", "_fill", "_samples")

    def __init__(self, samples: list[Any], *, fill: bool = False) -> None:
        self._decoded = samples
        self._fill = fill
        # Each made when it is asked for, so that a batch is copied once.
        self._samples: list[Any] | None = None
        self._arrays: dict[str, Any] | None = None

    @property
    def arrays(self) -> dict[str, Any]:
        """The samples by name: an array `[B, ...]` of numbers, or of arrays of one shape and type; else a list.

        Raises:
            EntryNotFound: a sample lacks a name that another one has.
            NotStackable: the samples are not dictionaries; `getattr(batch, "arrays", batch)` gives them as they are.
        """
        if self._arrays is None:
            self._arrays = stack_samples(self._decoded, fill=self._fill)
        return self._arrays

    def __len__(self) -> int:
        return len(self._decoded)

    @overload
    def __getitem__(self, number: int) -> Any: ...  # noqa: ANN401 - what a transform returns

    @overload
    def __getitem__(self, number: slice) -> list[Any]: ...

    def __getitem__(self, number: int | slice) -> Any:
        if self._samples is None:
            self._samples = [owned(sample) for sample in self._decoded]
        return self._samples[number]

    def __repr__(self) -> str:
        return f"<SampleBatch of {len(self)}>"


def owned(value: Any) -> Any:  # noqa: ANN401 - any value
    """Copy read-only arrays, also inside dictionaries, so that the caller owns what it gets."""
    if isinstance(value, np.ndarray):
        return value if value.flags.writeable else value.copy()
    if type(value) is dict:
        return {name: owned(part) for name, part in value.items()}
    return value


def stack_samples(samples: Sequence[Mapping[str, Any]], *, fill: bool = False) -> dict[str, Any]:
    """Stack samples to one dictionary: arrays where that is possible, else lists.

    Raises:
        EntryNotFound: a sample lacks a name that another one has.
        NotStackable: a sample is not a dictionary.
    """
    names: dict[str, None] = {}
    for sample in samples:
        if not isinstance(sample, Mapping):
            raise NotStackable(
                "samples that are not dictionaries cannot be stacked",
                found=type(sample).__name__,
                hint="take the samples one by one",
            )
        if sample.keys() != names.keys():
            names.update(dict.fromkeys(sample))
    if not fill:
        _check_complete(samples, names)
    return {name: stack_values([sample.get(name) for sample in samples]) for name in names}


def _check_complete(samples: Sequence[Mapping[str, Any]], names: Mapping[str, None]) -> None:
    for number, sample in enumerate(samples):
        if len(sample) == len(names):
            continue
        lacking = next(name for name in names if name not in sample)
        key = sample.get(KEY)
        raise EntryNotFound(
            f"{f'record {shorten(key)}' if isinstance(key, str) else f'sample {number} of the batch'}"
            f" has no {shorten(lacking)}, which others of its batch have",
            hint='pass missing="none" for None in its place, or name the entries= that all records have',
        )


def stack_values(values: list[Any]) -> Any:  # noqa: ANN401 - an array or a list
    """Stack numbers, or arrays of one shape and type, to one array; return anything else as it is."""
    if not all(isinstance(value, _NUMERIC) for value in values):
        return values
    arrays = [np.asarray(value) for value in values]
    if len({array.shape for array in arrays}) > 1:
        return values
    types = {array.dtype for array in arrays}
    if len(types) > 1:
        # Numbers of different types have a common one, unless that would round integers.
        if arrays[0].ndim or any(dtype.kind not in "biuf" for dtype in types):
            return values
        if np.result_type(*types).kind not in {dtype.kind for dtype in types}:
            return values
    return values if arrays[0].dtype.hasobject else np.stack(arrays)
