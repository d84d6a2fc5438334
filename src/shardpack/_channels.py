"""One set of channels for samples of several sources, some of which lack some channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, overload

import numpy as np

from shard_format.errors import InvalidArgument
from shardpack._stacking import column

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["MISSING", "SOURCE_ID", "Channels", "MixedBatch", "Part", "Sample"]

Sample: TypeAlias = "dict[str, Any]"

SOURCE_ID: Final = "source_id"
MISSING: Final = "_is_missing"


class MixedBatch(Sequence[Sample]):
    """Samples that were read together, as a sequence without copies; `arrays` has them stacked."""

    __slots__ = ("arrays",)

    def __init__(self, arrays: dict[str, Any]) -> None:
        self.arrays = arrays
        """The samples by channel, `[B, ...]`; a list where a channel has text and the like."""

    def __len__(self) -> int:
        return len(self.arrays[SOURCE_ID])

    @overload
    def __getitem__(self, number: int) -> Sample: ...

    @overload
    def __getitem__(self, number: slice) -> list[Sample]: ...

    def __getitem__(self, number: int | slice) -> Sample | list[Sample]:
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(len(self)))]
        return {name: values[number] for name, values in self.arrays.items()}

    def __repr__(self) -> str:
        return f"<MixedBatch of {len(self)} samples>"


@dataclass(frozen=True)
class Part:
    """What one source gives to a batch: the samples of some rows, one by one or stacked."""

    source: int
    rows: NDArray[np.int64]
    samples: Sequence[Sample] | Sample

    def singly(self) -> Sequence[Sample]:
        """The samples one by one, as views where they were stacked."""
        samples = self.samples
        if not isinstance(samples, dict):
            return samples
        return [
            {name: values[row] for name, values in samples.items()} for row in range(self.rows.size)
        ]


class Channels:
    """The channels of all sources together, learned from one sample of each.

    Args:
        names: of the sources, for messages.
        firsts: a part with one sample of each source.
    """

    def __init__(self, names: Sequence[str], firsts: Sequence[Part]) -> None:
        self._names = names
        self.is_stacked = all(isinstance(first.samples, dict) for first in firsts)
        """Whether all sources give their batches stacked."""
        self._owned = [frozenset(first.singly()[0]) for first in firsts]
        # What a sample has that lacks the channel.
        self._blanks: dict[str, Any] = {}
        for first in firsts:
            for name, value in first.singly()[0].items():
                self._blanks.setdefault(name, _blank(value))
        self._partial = self._blanks.keys() - frozenset.intersection(*self._owned)

    def complete(self, source: int, own: Sample) -> Sample:
        """A sample with all channels, in the same order for every source."""
        self._check(source, own)
        sample: Sample = {}
        for name, blank in self._blanks.items():
            is_missing = name not in own
            if not is_missing:
                sample[name] = own[name]
            else:
                sample[name] = blank.copy() if isinstance(blank, np.ndarray) else blank
            if name in self._partial:
                sample[name + MISSING] = is_missing
        sample[SOURCE_ID] = source
        return sample

    def join(self, ids: NDArray[np.int64], parts: Sequence[Part]) -> dict[str, Any]:
        """A batch of stacked parts; `ids` has the source of each row."""
        having: dict[str, list[tuple[Part, Any]]] = {name: [] for name in self._blanks}
        for part in parts:
            samples = part.samples
            self._check(part.source, samples)
            if isinstance(samples, dict):
                for name, values in samples.items():
                    having[name].append((part, values))
        batch: dict[str, Any] = {}
        for name in self._blanks:
            batch[name] = self._joined(name, ids.size, having[name])
            if name in self._partial:
                missing = np.ones(ids.size, np.bool_)
                for part, _ in having[name]:
                    missing[part.rows] = False
                batch[name + MISSING] = missing
        batch[SOURCE_ID] = ids
        return batch

    def _check(self, source: int, own: Sequence[Sample] | Sample) -> None:
        """What sample 0 did not have would silently be lost, and what only it had would be zero."""
        if not isinstance(own, dict) or own.keys() != self._owned[source]:
            found = own if isinstance(own, dict) else ("samples that are not stacked",)
            raise InvalidArgument(
                f"source {self._names[source]!r} has samples with other channels than its first",
                expected=", ".join(sorted(self._owned[source])),
                found=", ".join(sorted(found)),
                hint="every sample of a source must have the same channels",
            )

    def _joined(self, name: str, count: int, parts: Sequence[tuple[Part, Any]]) -> Any:  # noqa: ANN401 - a channel of any kind
        """One channel of a batch, put together from the sources that have it."""
        blank = self._blanks[name]
        is_array = isinstance(blank, (np.ndarray, np.generic))
        for part, values in parts:
            wanted = f"{part.rows.size} values"
            got = f"{len(values)} values"
            if is_array:
                found = column(values) if isinstance(values, list) else np.asarray(values)
                wanted = f"{blank.dtype} {[part.rows.size, *blank.shape]}"
                got = (
                    "arrays of different shapes or types"
                    if isinstance(found, list)
                    else f"{found.dtype} {list(found.shape)}"
                )
            if got != wanted:
                raise InvalidArgument(
                    f"channel {name!r} of source {self._names[part.source]!r} does not fit the others",
                    expected=wanted,
                    found=got,
                    hint="rename it, or convert it in the source",
                )
            if part.rows.size == count:
                return values
        joined: Any = np.zeros((count, *blank.shape), blank.dtype) if is_array else [blank] * count
        for part, values in parts:
            if is_array:
                joined[part.rows] = values
            else:
                for row, value in zip(part.rows.tolist(), values, strict=True):
                    joined[row] = value
        return joined


def _blank(value: Any) -> Any:  # noqa: ANN401 - a channel of any kind
    """What stands for a missing value: zeros of its shape and type, or something empty."""
    if isinstance(value, (np.ndarray, np.generic)):
        return np.zeros_like(value)[()]
    if isinstance(value, (bool, int, float, complex, str, bytes)):
        return type(value)()
    return None
