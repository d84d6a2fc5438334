"""Channels: arrays, text and ragged data over time, in memory or still in a file."""

from __future__ import annotations

import operator
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from shard_format.errors import InvalidArgument, SizeMismatch
from wshard.blocks import ArrayBlock, FileBlock
from wshard.dtypes import DType, convert
from wshard.values import as_array, as_times, product, regular_times

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray
    from typing_extensions import Self

    from wshard.blocks import Block

__all__ = ["Channel", "Modality"]


_FEW_FLAGS = 1 << 14


class Modality(str, Enum):
    """What kind of sensor a channel comes from. Equal to its name: `Modality.RGB == "rgb"`."""

    RGB = "rgb"
    DEPTH = "depth"
    LANGUAGE = "language"
    PROPRIOCEPTION = "proprioception"
    AUDIO = "audio"
    VIDEO = "video"
    POINTCLOUD = "pointcloud"

    def __str__(self) -> str:
        return self.value

    @property
    def content_type(self) -> int:
        """The container's content type for it."""
        return _CONTENT_TYPES.get(self, 1)


_CONTENT_TYPES = {Modality.RGB: 6, Modality.LANGUAGE: 5, Modality.AUDIO: 7, Modality.VIDEO: 8}
_MODALITIES = {modality.value: modality for modality in Modality}


class Channel:
    """Numbers over time: one array with time as its first axis.

    A channel of a loaded episode is read when it is touched: `channel[a:b]` reads those steps, `data`
    all of them. What is stored uncompressed comes as a read-only view of the file (below 64 KiB perhaps as a
    read-only copy), checked against its checksum when all of it is asked for; what is compressed as an
    array of its own.

    Args:
        name: what the episode calls it; taken from the episode if it is left out.
        dtype: the stored type; the array's own if left out.
        shape: of one step; the array's own if left out.
        data: the array, or anything that makes one.
        semantics: what the numbers mean, for people.
        modality: the kind of sensor.
        sampling_rate_hz: entries in a second.
        content_type: a MIME type, where the bytes are of one.
        unit: such as `"rad"`.
        description: for people.
        timestamps_ns: a clock of its own, one time in nanoseconds for each entry. Then its length is free.
        start_ns: together with `sampling_rate_hz` a regular clock of its own, from this time on.
        lossy: how the values were changed before they came here, such as
            `{"codec": "jpeg", "max_error": 3}`.
        extra: any other fields for the channel's description.
    """

    layout: ClassVar[str] = "dense"

    # Defaults live on the class: a lazily loaded channel sets only what differs, which makes opening an
    # episode with many channels cheap.
    name: str = ""
    dtype: DType
    """The stored type."""
    shape: tuple[int, ...]
    """Of one step, without the time axis."""
    semantics: str = ""
    modality: Modality | str | None = None
    sampling_rate_hz: float | None = None
    content_type: str | None = None
    unit: str = ""
    description: str = ""
    start_ns: int | None = None
    lossy: Mapping[str, Any] | None = None
    extra: Mapping[str, Any]
    """Fields of its description that this library does not know; they are kept."""
    inferred: bool = False
    """Whether dtype and shape are a guess because the file does not describe the block."""
    block: str = ""
    """The entry that it was loaded from."""

    _values: Any = None
    _block: Block | None = None
    _length: int = 0
    _has_stated_length: bool = False
    """Whether its file gives it a length of its own, with or without a clock."""
    _ready: tuple[Block, DType, tuple[int, ...], np.dtype[Any], int] | None = None
    """What `read_steps_into` has found out about the block: steps are decoded into arrays of this dtype, so many bytes each."""
    _times: NDArray[np.int64] | None = None
    _time_block: Block | None = None

    def __init__(
        self,
        name: str = "",
        dtype: str | DType | None = None,
        shape: Sequence[int] | None = None,
        data: ArrayLike | None = None,
        semantics: str = "",
        modality: Modality | str | None = None,
        sampling_rate_hz: float | None = None,
        content_type: str | None = None,
        *,
        unit: str = "",
        description: str = "",
        timestamps_ns: ArrayLike | None = None,
        start_ns: int | None = None,
        lossy: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.semantics = semantics
        self.modality = as_modality(modality)
        self.sampling_rate_hz = sampling_rate_hz
        self.content_type = content_type
        self.unit = unit
        self.description = description
        self.start_ns = None if start_ns is None else operator.index(start_ns)
        self.lossy = lossy
        self.extra = dict(extra or {})
        if timestamps_ns is not None:
            self.timestamps_ns = timestamps_ns
        try:
            self._take(dtype, shape, data)
        except InvalidArgument as error:
            raise error.located(entry=name or None) from None

    def _take(
        self, dtype: str | DType | None, shape: Sequence[int] | None, data: ArrayLike | None
    ) -> None:
        if data is None:
            raise InvalidArgument("a channel needs data", hint="give an array as data=")
        array, self.dtype = convert(as_array(data), None if dtype is None else DType.parse(dtype))
        if array.ndim == 0:
            raise InvalidArgument(
                "a channel needs a time axis", expected="an array [T, ...]", found="one number"
            )
        if shape is not None:
            wanted = tuple(operator.index(size) for size in shape)
            if array.shape[1:] != wanted:
                count = len(array)
                flat = array.reshape(-1)
                step = product(wanted)
                # Existing code hands over flat data together with the shape of a step.
                if array.ndim != 1 or step == 0 or flat.size % step:
                    raise InvalidArgument(
                        "the data has another shape than the channel",
                        expected=f"[T, {', '.join(map(str, wanted))}]",
                        found=f"{list(array.shape)}",
                    )
                count = flat.size // step
                array = flat.reshape(count, *wanted)
        self.shape = array.shape[1:]
        self._values = array
        self._length = len(array)

    # --- what is in it

    @property
    def length(self) -> int:
        """Entries along the time axis."""
        return self._length

    def __len__(self) -> int:
        return self._length

    @property
    def step_bytes(self) -> int:
        """Bytes of one step."""
        return product(self.shape) * self.dtype.size

    @property
    def nbytes(self) -> int:
        """Bytes of all steps, uncompressed."""
        return self._length * self.step_bytes

    @property
    def ndim(self) -> int:
        """Axes of the array, time included."""
        return len(self.shape) + 1

    @property
    def is_loaded(self) -> bool:
        """Whether the data is in memory, or a view of the file."""
        return self._values is not None

    @property
    def data(self) -> NDArray[Any]:
        """All of it, as one array."""
        if self._values is None:
            self._values = self._read_all()
        values: NDArray[Any] = self._values
        return values

    @data.setter
    def data(self, data: ArrayLike) -> None:
        array = as_array(data)
        # Without ml_dtypes the bits of bf16 come as uint16, and may go back so.
        is_bits = self.dtype is DType.BFLOAT16 and array.dtype == np.uint16
        self._take(self.dtype if is_bits else None, None, array)
        self._block = None
        self.inferred = self._has_stated_length = False

    def __getitem__(self, key: Any) -> Any:  # noqa: ANN401 - whatever NumPy gives for the key
        if self._values is not None:
            return self.data[key]
        first, rest = (key[0], key[1:]) if isinstance(key, tuple) and key else (key, ())
        if isinstance(first, slice):
            start, stop, step = first.indices(self._length)
            if step < 0:
                return self.data[key]
            steps = self.read_steps(start, max(start, stop))[::step]
            return steps[(slice(None), *rest)] if rest else steps
        if isinstance(first, (int, np.integer)) and not isinstance(first, bool):
            number = int(first) + (self._length if first < 0 else 0)
            if not 0 <= number < self._length:
                raise IndexError(f"step {first} of channel {self.name!r}, which has {self._length}")
            one = self.read_steps(number, number + 1)[0]
            return one[rest] if rest else one
        return self.data[key]

    def read_steps(self, start: int, stop: int) -> NDArray[Any]:
        """The steps from `start` to `stop`; reads and decodes only what holds them."""
        block = self._block
        if self._values is not None or block is None:
            return self.data[start:stop]
        if not 0 <= start <= stop <= self._length:
            raise InvalidArgument(
                "steps outside the channel",
                entry=self.block,
                expected=f"0 <= start <= stop <= {self._length}",
                found=f"start {start}, stop {stop}",
            )
        self._check_size()
        if not block.is_cut_cheaply:
            # Decoded as a whole anyway: keep it.
            return self.data[start:stop]
        steps = block.part(
            self.dtype.stored_dtype, (stop - start, *self.shape), start * self.step_bytes
        )
        return _as_booleans(steps) if self.dtype is DType.BOOL else steps

    def read_steps_into(self, start: int, out: NDArray[Any]) -> None:
        """Fills an array with as many steps as it has, from `start` on.

        Compressed steps are decoded straight into it: for batches of windows that are used again and again.

        Args:
            start: first step.
            out: C-contiguous and writable, of the channel's dtype and shape.
        """
        if self._ready is not None and self._values is None:
            ready, dtype, shape, stored, step = self._ready
            if (
                ready is self._block
                and dtype is self.dtype
                and shape is self.shape
                and out.dtype == stored
                and out.shape[1:] == shape
                and out.flags.c_contiguous
                and 0 <= start <= start + len(out) <= self._length
            ):
                ready.read_into(start * step, out.reshape(-1).view(np.uint8))
                return
        block, stored = self._block, self.dtype.stored_dtype
        if out.shape[1:] != self.shape or out.dtype.itemsize != stored.itemsize or not out.ndim:
            raise InvalidArgument(
                "the array has another form than the channel",
                entry=self.block or self.name,
                expected=f"{self.dtype} [steps, {', '.join(map(str, self.shape))}]",
                found=f"{out.dtype} {list(out.shape)}",
            )
        if (
            self._values is not None
            or block is None
            or not block.is_compressed
            or not block.is_cut_cheaply
            or self.dtype is DType.BOOL
            or out.dtype != stored
            or not out.flags.c_contiguous
        ):
            out[...] = self.read_steps(start, start + len(out))
            return
        if not 0 <= start <= start + len(out) <= self._length:
            self.read_steps(start, start + len(out))  # says so
        self._check_size()
        self._ready = (block, self.dtype, self.shape, stored, self.step_bytes)
        block.read_into(start * self.step_bytes, out.reshape(-1).view(np.uint8))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.data)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:  # noqa: ANN401 - NumPy's protocol
        array = self.data
        if dtype is not None and np.dtype(dtype) != array.dtype:
            if copy is False:
                raise ValueError("another dtype needs a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def _read_all(self) -> NDArray[Any]:
        block, dtype = self._block, self.dtype
        assert block is not None
        if block.nbytes != self._length * product(self.shape) * dtype.size:
            self._check_size()
        values = block.array(dtype._stored or dtype.stored_dtype, (self._length, *self.shape))
        return _as_booleans(values) if dtype is _BOOL else values

    def stored_array(self) -> NDArray[Any]:
        """What a file holds of it: the array, read if need be, but not kept."""
        if self._block is not None and (self._values is None or not self._values.flags.writeable):
            # As stored: a boolean may be any byte.
            self._check_size()
            return self._block.array(self.dtype.stored_dtype, (self._length, *self.shape))
        values: NDArray[Any] = self._values
        return values

    def _check_size(self) -> None:
        """W-BLK-1."""
        assert self._block is not None
        if self._block.nbytes != self.nbytes:
            raise SizeMismatch(
                "the block has another size than its description says",
                path=self._block.path,
                entry=self.block,
                expected=f"{self.nbytes} bytes: {self._length} steps of "
                f"{self.dtype} {list(self.shape)}",
                found=f"{self._block.nbytes} bytes",
                rule="W-BLK-1",
            )

    def check_claims(self) -> None:
        """Holds the size that the file claims against the file, before anything is made of so many steps."""
        if self._block is not None and self._values is None:
            self._check_size()
            if isinstance(self._block, FileBlock):
                self._block.check_sizes()

    # --- clock

    @property
    def has_own_clock(self) -> bool:
        """Whether its entries have times of their own, so that its length is free."""
        return self._times is not None or self._time_block is not None or self.start_ns is not None

    @property
    def timestamps_ns(self) -> NDArray[np.int64] | None:
        """The times of a clock of its own, int64 nanoseconds; None if it follows the episode's steps."""
        if self._times is None and self._time_block is not None:
            block = self._time_block
            if block.nbytes != 8 * self._length:
                raise SizeMismatch(
                    "a channel's clock has another length than the channel",
                    path=block.path,
                    entry=block.name,
                    expected=f"{self._length} timestamps for {self.block!r}",
                    found=f"{block.nbytes} bytes",
                    rule="W-TIM-3",
                )
            self._times = block.array(np.dtype("<i8"), (self._length,))
        if self._times is None and self.start_ns is not None:
            return regular_times(self._length, self.sampling_rate_hz or 0, self.start_ns)
        return self._times

    @timestamps_ns.setter
    def timestamps_ns(self, times: ArrayLike | None) -> None:
        self._time_block = None
        self._times = None if times is None else as_times(times, self.name)

    # --- copies

    def as_block(self) -> Block:
        """Its bytes, wherever they are."""
        if self._values is None and self._block is not None:
            self._check_size()
            return self._block
        return ArrayBlock(self.block or self.name, self.data)

    def clone(self) -> Self:
        """A copy with data of its own in memory."""
        copy = self._shallow()
        copy._values = self._copied_values()
        copy._block = None
        return copy

    def _copied_values(self) -> Any:  # noqa: ANN401 - array or list
        return np.array(self.data)

    def _shallow(self) -> Self:
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy.extra = dict(self.extra)
        return copy

    def sliced(self, start: int, stop: int) -> Self:
        """The steps from `start` to `stop` as a channel of its own, still lazy where this one is."""
        copy = self._shallow()
        copy._values = self.read_steps(start, stop)
        copy._block = None
        copy._length = stop - start
        if self._times is not None or self._time_block is not None:
            times = self.timestamps_ns
            assert times is not None
            copy._times, copy._time_block = times[start:stop], None
        elif self.start_ns is not None:
            copy.start_ns = int(
                regular_times(1, self.sampling_rate_hz or 0, self.start_ns, start)[0]
            )
        return copy

    def __repr__(self) -> str:
        shape = ", ".join(map(str, (self._length, *self.shape)))
        state = "" if self.is_loaded else ", not loaded"
        return f"<{type(self).__name__} {self.name!r}: {self.dtype}[{shape}]{state}>"


# Looking up a member of an enum takes longer than the comparison.
_BOOL = DType.BOOL


def as_modality(modality: Modality | str | None) -> Modality | str | None:
    """The known modality of that name; other names are kept as they are."""
    return None if modality is None else _MODALITIES.get(modality, modality)


def _as_booleans(stored: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Bytes as booleans: a view where they are 0 and 1, else every other value becomes true."""
    # For little data a look through bytes is much faster than a reduction.
    if stored.tobytes().translate(None, b"\0\1") if stored.size <= _FEW_FLAGS else stored.max() > 1:
        true: NDArray[np.bool_] = stored != 0
        true.flags.writeable = stored.flags.writeable
        return true
    return stored.view(np.bool_)
