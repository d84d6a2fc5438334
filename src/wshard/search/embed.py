"""From a mean observation to the vector that is stored: embedders, and what is asked of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from shard_format.errors import InvalidArgument
from wshard.values import as_array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["Embedder", "PaddedProjection", "dimension_of", "embed"]

DEFAULT_DIMENSION: Final = 128
# Rows of the projection that are made at a time, and the most that are kept between calls.
_ROWS: Final = 4096
_MOST_KEPT_BYTES: Final = 16 << 20


class Embedder(Protocol):
    """Any function from one observation, averaged over time, to a vector.

    It may also have `dimension`, the size of its vectors, and `embed_many`, which takes an array
    [N, D] and gives [N, dimension] and is then preferred.
    """

    def __call__(self, mean: NDArray[np.float32], /) -> Any:  # noqa: ANN401 - anything that makes an array
        """The vector for one mean observation, float32 [D]."""
        ...


class PaddedProjection:
    """The embedder that is used if none is given: needs no model, and is the same on every machine.

    Observations of up to `dimension` numbers are kept as they are, with zeros behind them: cosine
    similarity is then exactly that of the mean observations. Larger ones, such as cameras, are
    multiplied by a matrix of +1 and -1 over √dimension, which keeps angles up to an error of about
    1/√dimension. The signs come from a counter and `seed`, not from NumPy's generators, so that
    an index can be queried with any version.

    Args:
        dimension: the size of the vectors.
        seed: which matrix.
    """

    def __init__(self, dimension: int = DEFAULT_DIMENSION, *, seed: int = 0) -> None:
        if dimension < 1:
            raise InvalidArgument("a vector has at least one number", found=dimension)
        self.dimension = dimension
        self.seed = seed
        self._kept: NDArray[np.float32] | None = None

    def __call__(self, mean: NDArray[np.float32], /) -> NDArray[np.float32]:
        vector: NDArray[np.float32] = self.embed_many(mean.reshape(1, -1))[0]
        return vector

    def embed_many(self, means: NDArray[np.float32]) -> NDArray[np.float32]:
        """The vectors [N, dimension] for observations [N, D]."""
        count, size = means.shape
        out = np.zeros((count, self.dimension), np.float32)
        if size <= self.dimension:
            out[:, :size] = means
            return out
        total = np.zeros((count, self.dimension), np.float64)
        for first in range(0, size, _ROWS):
            last = min(size, first + _ROWS)
            total += means[:, first:last] @ self._rows(first, last, size)
        out[:] = total / np.sqrt(self.dimension)
        return out

    def _rows(self, first: int, last: int, size: int) -> NDArray[np.float32]:
        if size * self.dimension * 4 > _MOST_KEPT_BYTES:
            return _signs(self.seed, first, last, self.dimension)
        if self._kept is None or len(self._kept) < size:
            self._kept = _signs(self.seed, 0, size, self.dimension)
        return self._kept[first:last]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None}

    def __repr__(self) -> str:
        return f"PaddedProjection({self.dimension}, seed={self.seed})"


def _signs(seed: int, first: int, last: int, dimension: int) -> NDArray[np.float32]:
    """Rows `first` to `last` of the matrix: bits of splitmix64 over a counter, as +1 and -1."""
    words = -(-dimension // 64)
    counter = np.arange(first * words, last * words, dtype=np.uint64)
    state = (counter + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    state += np.uint64(seed * 0xD1342543DE82EF95 % (1 << 64))
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    in_bytes = state.astype("<u8").view(np.uint8).reshape(last - first, words * 8)
    bits = np.unpackbits(in_bytes, axis=1, count=dimension, bitorder="little")
    signs: NDArray[np.float32] = bits.astype(np.float32) * np.float32(2) - np.float32(1)
    return signs


def dimension_of(embedder: Embedder) -> int | None:
    """The size of its vectors, where it says so."""
    dimension = getattr(embedder, "dimension", None)
    return dimension if isinstance(dimension, int) else None


def embed(
    embedder: Embedder, means: Sequence[NDArray[np.float32]], dimension: int | None = None
) -> NDArray[np.float32]:
    """The vectors [N, dimension] for these observations, checked.

    Raises:
        InvalidArgument: the embedder gave something else than finite vectors of one size.
    """
    if not means:
        return np.zeros((0, dimension or 0), np.float32)
    together = getattr(embedder, "embed_many", None)
    if together is not None and len({mean.size for mean in means}) == 1:
        made = as_array(together(np.stack(means)))
        rows = list(made) if made.ndim == 2 and len(made) == len(means) else [made]
    else:
        rows = [as_array(embedder(mean)).reshape(-1) for mean in means]
    wanted = dimension or (rows[0].size if rows else 0)
    for row in rows:
        if len(rows) != len(means) or row.ndim != 1 or row.size != wanted or not row.size:
            raise InvalidArgument(
                "the embedder gave vectors of another shape",
                expected=f"{len(means)} x {wanted or 'dimension'}",
                found=f"{len(rows)} x {list(row.shape)}",
                hint="it must give one vector, always of the same size; say which with dimension=",
            )
        if row.dtype.kind not in "fiu":
            raise InvalidArgument("the embedder gave no real numbers", found=f"dtype {row.dtype}")
    with np.errstate(over="ignore"):
        vectors = np.stack(rows).astype(np.float32)
    if not np.isfinite(vectors).all():
        raise InvalidArgument(
            "the embedder gave numbers that are not finite",
            expected="numbers that float32 can hold",
            found=f"{np.count_nonzero(~np.isfinite(vectors))} others",
        )
    return vectors
