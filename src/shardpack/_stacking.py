"""From samples to columns: one array for each name, or a list where the values do not make one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, overload

import numpy as np

from shard_format.errors import EntryNotFound, InvalidArgument, shorten

__all__ = ["KEY", "NotStackable", "SampleBatch", "column", "owned", "stacked"]

KEY: Final = "__key__"
"""Under this name a sample has the key of its record."""

_NUMERIC: Final = (np.ndarray, np.generic, bool, int, float)


class NotStackable(InvalidArgument, AttributeError):
    """Samples that are not dictionaries have no columns: asked for one, a batch has no `arrays`."""

    __str__ = InvalidArgument.__str__


class SampleBatch(Sequence[Any]):
    """Samples that were read together, as a sequence; `arrays` has them stacked.

    What collates samples may take `arrays` as they are. The arrays of a sample belong to it: they can be
    written to, and need no file.

    Args:
        samples: as they were decoded; arrays may be views of a file.
        fill: whether a name that only some samples have is None in the others; else it is an error.
    """

    __slots__ = ("_arrays", "_decoded", "_fill", "_samples")

    def __init__(self, samples: list[Any], *, fill: bool = False) -> None:
        self._decoded = samples
        self._fill = fill
        # Made when they are needed, so that a batch is copied once, whichever of them is taken.
        self._samples: list[Any] | None = None
        self._arrays: dict[str, Any] | None = None

    @property
    def arrays(self) -> dict[str, Any]:
        """The samples by name: an array `[B, ...]` of numbers, or of arrays of one shape and type; else a list.

        Raises:
            EntryNotFound: a sample lacks what another one has.
            NotStackable: the samples are not dictionaries; `getattr(batch, "arrays", batch)` takes them as they are.
        """
        if self._arrays is None:
            self._arrays = stacked(self._decoded, fill=self._fill)
        return self._arrays

    def _all(self) -> list[Any]:
        if self._samples is None:
            self._samples = [owned(sample) for sample in self._decoded]
        return self._samples

    def __len__(self) -> int:
        return len(self._decoded)

    @overload
    def __getitem__(self, number: int) -> Any: ...  # noqa: ANN401 - what a transform returns

    @overload
    def __getitem__(self, number: slice) -> list[Any]: ...

    def __getitem__(self, number: int | slice) -> Any:
        return self._all()[number]

    def __repr__(self) -> str:
        return f"<SampleBatch of {len(self)} samples>"


def owned(value: Any) -> Any:  # noqa: ANN401 - any value
    """The value with arrays of its own in place of those that cannot be written to; also inside dictionaries."""
    if isinstance(value, np.ndarray):
        return value if value.flags.writeable else value.copy()
    if type(value) is dict:
        return {name: owned(part) for name, part in value.items()}
    return value


def stacked(samples: Sequence[Mapping[str, Any]], *, fill: bool = False) -> dict[str, Any]:
    """Samples as one dictionary: arrays where that is possible, lists of all else.

    Args:
        samples: dictionaries.
        fill: whether a name that only some samples have is None in the others; else it is an error.

    Raises:
        EntryNotFound: a sample lacks what another one has.
        NotStackable: a sample is no dictionary.
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
    return {name: column([sample.get(name) for sample in samples]) for name in names}


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


def column(values: list[Any]) -> Any:  # noqa: ANN401 - an array or a list
    """The values as one array if they are numbers, or arrays that have the same shape and type."""
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
