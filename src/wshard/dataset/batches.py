"""A batch of windows: one array for each channel, and each window as views of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, overload

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

__all__ = ["Sample", "WindowBatch"]

Sample: TypeAlias = dict[str, Any]
"""A window: arrays by name."""


class WindowBatch(Sequence[Sample]):
    """Windows that were read together, as a sequence of samples without copies.

    What collates samples may take `arrays` as they are.

    Args:
        arrays: the windows, stacked; the episodes they are from among them, as `episode`.
        transform: done to each sample; then `arrays` are those of the results.
    """

    __slots__ = ("_arrays", "_samples")

    def __init__(
        self,
        arrays: Mapping[str, NDArray[Any]],
        transform: Callable[[Sample], Sample] | None = None,
    ) -> None:
        self._arrays: dict[str, Any] | None = dict(arrays)
        self._samples: list[Sample] | None = None
        if transform is not None:
            self._samples = [transform(sample) for sample in self]
            self._arrays = None

    @property
    def arrays(self) -> dict[str, Any]:
        """The windows, stacked: `[B, ...]` by name. Of what a transform returns, lists of all that cannot be stacked."""
        if self._arrays is None:
            # Only here: data sets of files need nothing else of packs.
            from shardpack._stacking import stacked

            self._arrays = stacked(self._samples or [])
        return self._arrays

    def __len__(self) -> int:
        if self._samples is not None:
            return len(self._samples)
        return len(self.arrays["episode"])

    @overload
    def __getitem__(self, number: int) -> Sample: ...

    @overload
    def __getitem__(self, number: slice) -> list[Sample]: ...

    def __getitem__(self, number: int | slice) -> Sample | list[Sample]:
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(len(self)))]
        if self._samples is not None:
            return self._samples[number]
        return {key: array[number] for key, array in self.arrays.items()}

    def __repr__(self) -> str:
        return f"<WindowBatch of {len(self)} windows>"
