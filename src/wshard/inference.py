"""Blocks that their file does not describe: what they most likely hold (spec/wshard.md, section 10)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wshard.dtypes import DType
from wshard.names import LATENT_ACTION_CHANNEL, LATENT_CODEBOOK_CHANNEL, parse_block
from wshard.values import product

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from wshard.blocks import Block
    from wshard.metadata import Row

Guess = tuple[DType, tuple[int, ...]]


def infer(
    name: str, nbytes: int, length: int, rows: Mapping[str, Row], blocks: Mapping[str, Block]
) -> tuple[DType, tuple[int, ...], int]:
    """Dtype, shape and length of the first guess that fits the size exactly."""
    for dtype, shape in _guesses(name, nbytes, length, rows):
        size = product(shape) * dtype.size
        if nbytes == size * length:
            return dtype, shape, length
        if nbytes == size * (length + 1) and not name.startswith("action/"):
            return dtype, shape, length + 1
    return DType.UINT8, (), nbytes


def _guesses(name: str, nbytes: int, length: int, rows: Mapping[str, Row]) -> Iterator[Guess]:
    lane, channel, _, _ = parse_block(name)
    if lane == "omen" and channel == LATENT_CODEBOOK_CHANNEL:
        yield from _columns(DType.INT32, nbytes, length, scalar=True)
    elif lane == "omen" and channel == LATENT_ACTION_CHANNEL:
        yield from _columns(DType.FLOAT32, nbytes, length, scalar=False)
    elif lane in ("omen", "uncert"):
        row = rows.get(f"signal/{channel}")
        if row is not None:
            if lane == "omen" or row.dtype.is_float:
                yield row.dtype, row.shape
            else:
                yield DType.FLOAT32, row.shape
    yield from _columns(DType.FLOAT32, nbytes, length, scalar=True)


def _columns(dtype: DType, nbytes: int, length: int, *, scalar: bool) -> Iterator[Guess]:
    """One number a step, or as many as the size allows."""
    if scalar:
        yield dtype, ()
    step = dtype.size * length
    if step and nbytes % step == 0:
        yield dtype, (nbytes // step,)
