"""Channels without a fixed number of items at each step: ragged arrays and text (spec/wshard.md, section 6)."""

from __future__ import annotations

import operator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from shard_format.errors import BadValue, InvalidArgument, SizeMismatch
from wshard.blocks import ArrayBlock
from wshard.channels import Channel
from wshard.dtypes import DType
from wshard.values import as_array

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import ArrayLike, NDArray
    from typing_extensions import Self

    from wshard.blocks import Block

__all__ = ["RaggedChannel", "TextChannel"]


class RaggedChannel(Channel):
    """A changing number of items at each step: points of a scan, detections, tokens.

    `channel[t]` is the array of the items of step t, `channel[a:b]` a list of such arrays. All items
    back to back are `values`; `offsets` says where each step starts.

    Args:
        name: as for `Channel`.
        dtype: as for `Channel`.
        shape: of one item.
        data: one array [items, ...] for each step.
        values: instead of `data`: all items, together with `offsets`.
        offsets: int64, one more than steps.
        fields: as for `Channel`.
    """

    layout: ClassVar[str] = "ragged"

    _offsets: NDArray[np.int64] | None = None
    _offsets_block: Block | None = None

    def __init__(
        self,
        name: str = "",
        dtype: str | DType | None = None,
        shape: Sequence[int] | None = None,
        data: Sequence[ArrayLike] | None = None,
        *,
        values: ArrayLike | None = None,
        offsets: ArrayLike | None = None,
        **fields: Any,  # noqa: ANN401 - the arguments of Channel
    ) -> None:
        if (data is None) == (values is None) or (values is None) != (offsets is None):
            raise InvalidArgument("give either data, or values and offsets", entry=name or None)
        self._given_offsets = offsets
        super().__init__(name, dtype, shape, data if values is None else values, **fields)  # type: ignore[arg-type] # _take knows
        del self._given_offsets

    def _take(self, dtype: Any, shape: Any, data: Any) -> None:  # noqa: ANN401 - as for Channel
        given = self.__dict__.get("_given_offsets")
        if given is None:
            pieces = [as_array(piece) for piece in data]
            counts = [len(piece) if piece.ndim else -1 for piece in pieces]
            if -1 in counts:
                raise InvalidArgument(
                    "a step of a ragged channel is one number",
                    expected="an array [items, ...] for each step",
                    found=f"step {counts.index(-1)}",
                )
            offsets = np.zeros(len(pieces) + 1, np.int64)
            np.cumsum(counts, out=offsets[1:])
            # Steps without items often come as [] and know neither dtype nor shape.
            filled = [piece for piece in pieces if len(piece)]
            step = tuple(shape) if shape is not None else None
            try:
                joined = (
                    np.concatenate(filled)
                    if filled
                    else np.zeros(
                        (0, *(step if step is not None else pieces[0].shape[1:] if pieces else ())),
                        DType.parse(dtype).numpy_dtype
                        if dtype is not None
                        else pieces[0].dtype
                        if pieces
                        else np.float32,
                    )
                )
            except ValueError as error:
                raise InvalidArgument(f"the steps have different items: {error}") from None
            super()._take(dtype, shape, joined)
        else:
            offsets = np.ascontiguousarray(given, dtype=np.int64)
            super()._take(dtype, shape, data)
            check_offsets(offsets, len(self._values), None, InvalidArgument)
        self._offsets = offsets
        self._length = len(offsets) - 1

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Where the items of each step start in `values`; one more element for the end."""
        if self._offsets is None:
            block = self._offsets_block
            assert block is not None
            assert self._block is not None
            if block.nbytes != 8 * (self._length + 1):
                raise SizeMismatch(
                    "the offsets of a ragged channel have another length than the channel",
                    path=block.path,
                    entry=block.name,
                    expected=f"{self._length + 1} offsets for {self.block!r}",
                    found=f"{block.nbytes} bytes",
                    rule="W-RAG-1",
                )
            offsets = block.array(np.dtype("<i8"), (self._length + 1,))
            item = self.step_bytes
            if self._block.nbytes % item if item else self._block.nbytes:
                raise SizeMismatch(
                    "the block is not a whole number of items",
                    path=self._block.path,
                    entry=self.block,
                    expected=f"a multiple of {item} bytes",
                    found=f"{self._block.nbytes} bytes",
                    rule="W-RAG-3",
                )
            items = self._block.nbytes // item if item else None
            try:
                check_offsets(offsets, items, block.name, BadValue)
            except BadValue as error:
                raise error.located(path=block.path) from None
            self._offsets = offsets
        return self._offsets

    @property
    def values(self) -> NDArray[Any]:
        """All items of all steps, back to back."""
        if self._values is None:
            assert self._block is not None
            count = int(self.offsets[-1])
            self._values = self._block.array(self.dtype.numpy_dtype, (count, *self.shape))
        values: NDArray[Any] = self._values
        return values

    @property
    def nbytes(self) -> int:
        return self._block.nbytes if self._block is not None else int(self._values.nbytes)

    @property
    def data(self) -> Any:  # noqa: ANN401 - a list of arrays; text gives a list of strings
        """One array of items for each step."""
        return self._steps(0, self._length)

    @data.setter
    def data(self, data: Any) -> None:  # noqa: ANN401 - as above
        self._take(None, None, data)
        self._block = self._offsets_block = None
        self.inferred = self._has_stated_length = False

    def __getitem__(self, key: Any) -> Any:  # noqa: ANN401 - one step or a list of them
        if isinstance(key, slice):
            start, stop, step = key.indices(self._length)
            if step == 1:
                return self._steps(start, max(start, stop))
            return [self[number] for number in range(start, stop, step)]
        number = operator.index(key)
        wanted = number + (self._length if number < 0 else 0)
        if not 0 <= wanted < self._length:
            raise IndexError(f"step {number} of channel {self.name!r}, which has {self._length}")
        return self._steps(wanted, wanted + 1)[0]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._steps(0, self._length))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:  # noqa: ANN401 - NumPy's protocol
        raise InvalidArgument(
            f"a {self.layout} channel is no array",
            entry=self.name,
            hint="use .values and .offsets, or .data for a list with one element per step",
        )

    def read_steps(self, start: int, stop: int) -> Any:  # noqa: ANN401 - a list
        return self._steps(start, stop)

    def read_steps_into(self, start: int, out: NDArray[Any]) -> None:
        raise InvalidArgument(
            f"a {self.layout} channel does not fit into an array",
            entry=self.name,
            hint="use .values and .offsets",
        )

    def _steps(self, start: int, stop: int) -> list[Any]:
        offsets = self.offsets
        first, end = int(offsets[start]), int(offsets[stop])
        items = self._items(first, end)
        bounds = (offsets[start : stop + 1] - first).tolist()
        return [items[a:b] for a, b in pairwise(bounds)]

    def _items(self, first: int, end: int) -> NDArray[Any]:
        block = self._block
        if self._values is not None or block is None or not block.is_cut_cheaply:
            return self.values[first:end]
        return block.part(
            self.dtype.numpy_dtype, (end - first, *self.shape), first * self.step_bytes
        )

    def _copied_values(self) -> Any:  # noqa: ANN401 - array
        return np.array(self.values)

    def stored_array(self) -> NDArray[Any]:
        return self.values

    def as_block(self) -> Block:
        if self._values is None and self._block is not None:
            return self._block
        return ArrayBlock(self.block or self.name, self.values)

    def clone(self) -> Self:
        offsets = np.array(self.offsets)
        copy = super().clone()
        copy._offsets, copy._offsets_block = offsets, None
        return copy

    def sliced(self, start: int, stop: int) -> Self:
        offsets = self.offsets
        first, end = int(offsets[start]), int(offsets[stop])
        items = self._items(first, end)
        copy = super().sliced(start, stop)
        copy._values = items
        copy._offsets, copy._offsets_block = offsets[start : stop + 1] - first, None
        return copy

    def __repr__(self) -> str:
        item = "".join(f", {size}" for size in self.shape)
        state = "" if self.is_loaded else ", not loaded"
        return f"<{type(self).__name__} {self.name!r}: {self._length} steps of {self.dtype}[*{item}]{state}>"


class TextChannel(RaggedChannel):
    """One string at each step, of any length; stored as UTF-8.

    `channel[t]` is a string, `channel[a:b]` and `data` are lists of strings.

    Args:
        name: as for `Channel`.
        data: the strings.
        fields: as for `Channel`.
    """

    layout: ClassVar[str] = "text"

    def __init__(
        self,
        name: str = "",
        data: Sequence[str] | None = None,
        **fields: Any,  # noqa: ANN401 - the arguments of Channel
    ) -> None:
        super().__init__(name, DType.UINT8, (), data, **fields)

    def _take(self, dtype: Any, shape: Any, data: Any) -> None:  # noqa: ANN401 - as for Channel
        if isinstance(data, str):
            raise InvalidArgument(
                "a text channel needs one string for each step",
                found="one string",
                hint="repeat it: [text] * T; or label the whole episode with an interval",
            )
        pieces = []
        for step, text in enumerate(data):
            if not isinstance(text, str):
                raise InvalidArgument(
                    "a text channel holds something that is not a string",
                    found=f"{type(text).__name__} at step {step}",
                )
            try:
                pieces.append(text.encode())
            except UnicodeEncodeError:
                raise InvalidArgument(
                    "a string holds a lone surrogate, which UTF-8 cannot store",
                    found=f"step {step}",
                ) from None
        offsets = np.zeros(len(pieces) + 1, np.int64)
        np.cumsum([len(piece) for piece in pieces], out=offsets[1:])
        self.dtype, self.shape = DType.UINT8, ()
        self._values = np.frombuffer(b"".join(pieces), np.uint8)
        self._offsets = offsets
        self._length = len(pieces)

    def _steps(self, start: int, stop: int) -> list[Any]:
        texts: list[str] = []
        try:
            for step in super()._steps(start, stop):
                texts.append(step.tobytes().decode())  # noqa: PERF401 - its length names the bad step
        except UnicodeDecodeError as error:
            raise BadValue(
                f"the text of step {start + len(texts)} is not UTF-8: {error.reason}",
                path=None if self._block is None else self._block.path,
                entry=self.block or self.name,
                rule="W-RAG-4",
            ) from None
        return texts

    def __repr__(self) -> str:
        return f"<TextChannel {self.name!r}: {self._length} strings>"


def check_offsets(
    offsets: NDArray[np.int64],
    items: int | None,
    block: str | None,
    error: type[BadValue | InvalidArgument],
) -> None:
    """W-RAG-2."""
    if offsets.ndim != 1 or not len(offsets):
        raise error("offsets are one row, with at least one element", entry=block, rule="W-RAG-2")
    if offsets[0] != 0:
        raise error("offsets do not start at 0", entry=block, found=int(offsets[0]), rule="W-RAG-2")
    # Compared, not subtracted: differences of hostile values would wrap.
    falls = np.flatnonzero(offsets[1:] < offsets[:-1])
    if len(falls):
        step = int(falls[0])
        raise error(
            "offsets run backwards",
            entry=block,
            found=f"{int(offsets[step + 1])} after {int(offsets[step])} at step {step}",
            rule="W-RAG-2",
        )
    if items is not None and int(offsets[-1]) != items:
        raise error(
            "the last offset is not the number of items",
            entry=block,
            expected=items,
            found=int(offsets[-1]),
            rule="W-RAG-2",
        )
