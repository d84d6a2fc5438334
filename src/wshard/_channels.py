"""Channels: arrays, ragged data and text over time, in memory or still in a file (spec/wshard.md, section 6)."""

from __future__ import annotations

import operator
from enum import Enum
from itertools import pairwise
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NoReturn

import numpy as np

from shard_format import display
from shard_format.errors import BadValue, InvalidArgument, ShardError, SizeMismatch
from shard_format.sources import is_url
from wshard._blocks import ArrayBlock, FileBlock, decoded_bytes, storage_of
from wshard._metadata import MOST_UNBACKED
from wshard._values import (
    DType,
    Strict,
    as_array,
    as_times,
    convert,
    read_only,
    regular_times,
    step_ranges,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray
    from typing_extensions import Self

    from wshard._blocks import Block
    from wshard._metadata import Row

__all__ = ["Channel", "Modality", "RaggedChannel", "TextChannel", "as_channel", "is_frames"]

_FEW_FLAGS = 1 << 14
# An attribute of an enumeration takes long to look up.
_BOOL = DType.BOOL
_SMALLEST_FRAME = 8
# A notebook shows a channel without being asked: how many bytes may be decoded for a picture, and how large a block
# may be that can only be decoded as a whole.
_MOST_FOR_A_PICTURE = 32 << 20
_MOST_AS_A_WHOLE = 4 << 20
_MOST_IN_A_SKETCH = 16


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
_FRAMES = (Modality.RGB, Modality.DEPTH, Modality.VIDEO)


class Channel(Strict):
    """Numbers over time: one array with time as its first axis.

    A channel of a loaded episode is read when you access it: `channel[a:b]` reads those steps, `data` reads all of
    them. Arrays that come out of a channel are read-only, however the file stores them: write to `channel.data.copy()`
    and assign the result to `data` to change the channel. NumPy says "assignment destination is read-only" if you
    write to `data` itself.

    Args:
        name: what the episode calls it; taken from the episode if you leave it out.
        dtype: the stored type; the array's own if you leave it out.
        shape: the shape of one step; the array's own if you leave it out.
        data: the array, or anything that makes one.
        semantics: what the numbers mean, for people.
        modality: the kind of sensor.
        sampling_rate_hz: entries per second.
        content_type: a MIME type, if the bytes have one.
        unit: such as `"rad"`.
        description: for people.
        timestamps_ns: its own clock, one time in nanoseconds per entry; the channel may then have any length.
        start_ns: with `sampling_rate_hz`, its own regular clock, which starts at this time.
        lossy: how the values were changed before they were stored, such as
            `{"codec": "jpeg", "max_error": 3}`.
        horizon: H, if each step is a chunk of H steps, such as the action chunk of a policy: the data is
            `[T, H, ...]`, and `data[t, h]` is about step t + h.
        extra: any other fields for the channel's description.
    """

    layout: ClassVar[str] = "dense"

    # Defaults live on the class: a channel of a file sets only what differs.
    name: str = ""
    dtype_name: DType = DType.FLOAT32
    """The stored type, one of the 13 names of `DType`; `"f32"` for float32."""
    step_shape: tuple[int, ...] = ()
    """The shape of one step, without the time axis."""
    semantics: str = ""
    modality: Modality | str | None = None
    sampling_rate_hz: float | None = None
    content_type: str | None = None
    unit: str = ""
    description: str = ""
    start_ns: int | None = None
    lossy: Mapping[str, Any] | None = None
    horizon: int | None = None
    """How many steps each step is about, itself and those after it; None without such chunks."""
    inferred: bool = False
    """Whether dtype and shape are a guess because the file does not describe the block."""
    block: str = ""
    """The entry that it was loaded from."""
    source: Block | None = None
    """Where its bytes are stored; None if it was made or changed in memory."""
    clock_source: Block | None = None
    """Where the times of its own clock are stored."""
    has_stated_length: bool = False
    """Whether its file gives it a length of its own, with or without a clock."""

    _extra: Mapping[str, Any] = MappingProxyType({})
    _values: Any = None
    _length: int = 0
    _times: NDArray[np.int64] | None = None

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
        horizon: int | None = None,
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
        self.extra = extra or {}
        if timestamps_ns is not None:
            self.timestamps_ns = timestamps_ns
        try:
            self._take(dtype, shape, data)
            if horizon is not None:
                self._set_horizon(operator.index(horizon))
        except InvalidArgument as error:
            raise error.located(entry=name or None) from None

    def _take(
        self, dtype: str | DType | None, shape: Sequence[int] | None, data: ArrayLike | None
    ) -> None:
        if data is None:
            raise InvalidArgument("a channel needs data", hint="pass an array as data=")
        array, self.dtype_name = convert(
            as_array(data), None if dtype is None else DType.parse(dtype)
        )
        if array.ndim == 0:
            raise InvalidArgument(
                "a channel needs a time axis", expected="an array [T, ...]", found="one number"
            )
        if shape is not None:
            wanted = tuple(operator.index(size) for size in shape)
            if array.shape[1:] != wanted:
                step = prod(wanted)
                # Existing code hands over flat data together with the shape of a step.
                if array.ndim != 1 or step == 0 or array.size % step:
                    raise InvalidArgument(
                        "the data has a different shape than the channel",
                        expected=f"[T, {', '.join(map(str, wanted))}]",
                        found=f"{list(array.shape)}",
                    )
                array = array.reshape(-1, *wanted)
        self.step_shape = array.shape[1:]
        self._values = read_only(array)
        self._length = len(array)

    def _set_horizon(self, horizon: int) -> None:
        if self.layout != "dense" or horizon < 1 or self.step_shape[:1] != (horizon,):
            raise InvalidArgument(
                "the data does not have this horizon",
                expected=f"an array [T, {horizon}, ...] with a chunk of {horizon} steps at each step",
                found=f"{self.layout} data {list(self.shape)}",
                rule="W-CHN-8",
            )
        self.horizon = horizon

    @classmethod
    def from_source(
        cls, name: str, source: Block, dtype: DType, shape: tuple[int, ...], length: int
    ) -> Self:
        """A channel of `length` steps whose bytes are still where `source` says."""
        channel = cls.__new__(cls)
        # Not through `__setattr__`: opening an episode makes many channels.
        put = object.__setattr__
        put(channel, "name", name)
        put(channel, "block", source.name)
        put(channel, "source", source)
        put(channel, "dtype_name", dtype)
        put(channel, "step_shape", shape)
        put(channel, "_length", length)
        return channel

    # --- what is in it

    @property
    def extra(self) -> Mapping[str, Any]:
        """Fields of its description that this library does not know; they are kept. Assign a dictionary to change them."""
        return MappingProxyType(self._extra)

    @extra.setter
    def extra(self, fields: Mapping[str, Any]) -> None:
        self._extra = dict(fields)

    @property
    def length(self) -> int:
        """Entries along the time axis."""
        return self._length

    def __len__(self) -> int:
        return self._length

    @property
    def step_bytes(self) -> int:
        """Bytes of one step."""
        return prod(self.step_shape) * self.dtype_name.size

    @property
    def nbytes(self) -> int:
        """Bytes of all steps, uncompressed."""
        return self._length * self.step_bytes

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole array, `(T, *step_shape)`, as NumPy has it."""
        return (self._length, *self.step_shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype of the data; see `dtype_name` for the stored type."""
        return self.dtype_name.numpy_dtype

    @property
    def ndim(self) -> int:
        """The number of axes, time included."""
        return len(self.step_shape) + 1

    @property
    def is_loaded(self) -> bool:
        """Whether the data is in memory, or a view of the file."""
        return self._values is not None

    @property
    def data(self) -> NDArray[Any]:
        """All steps as one read-only array; write to `data.copy()`."""
        values: NDArray[Any] | None = self._values
        if values is None:
            values = self._read_all()
            object.__setattr__(self, "_values", values)  # as in `from_source`
        return values

    @data.setter
    def data(self, data: ArrayLike) -> None:
        array = as_array(data)
        # Without ml_dtypes the bits of bf16 come as uint16, and may go back so.
        is_bits = self.dtype_name is DType.BFLOAT16 and array.dtype == np.uint16
        self._take(self.dtype_name if is_bits else None, None, array)
        self.source = None
        self.inferred = self.has_stated_length = False

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
            number = self._step_number(int(first))
            one = self.read_steps(number, number + 1)[0]
            return one[rest] if rest else one
        return self.data[key]

    def __setitem__(self, key: Any, value: Any) -> NoReturn:  # noqa: ANN401 - whatever was tried
        raise TypeError(
            "the data of a channel is read-only: change a copy, channel.data.copy(), and assign it to channel.data"
        )

    def _step_number(self, given: int) -> int:
        """A number of a step, counted from the start."""
        number = given + (self._length if given < 0 else 0)
        if not 0 <= number < self._length:
            raise IndexError(f"step {given} of channel {self.name!r}, which has {self._length}")
        return number

    def read_steps(self, start: int, stop: int) -> NDArray[Any]:
        """The steps from `start` to `stop`; reads and decodes only what contains them."""
        block = self.source
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
            self.dtype_name.stored_dtype, (stop - start, *self.step_shape), start * self.step_bytes
        )
        return read_only(_as_booleans(steps) if self.dtype_name is _BOOL else steps)

    def read_steps_into(self, start: int, out: NDArray[Any]) -> None:
        """Fills an array with as many steps as it has, from `start` on.

        Compressed steps are decoded straight into it, which suits batches that reuse their memory.

        Args:
            start: first step.
            out: C-contiguous and writable, of the channel's dtype and shape.
        """
        block, stored, stop = self.source, self.dtype_name.stored_dtype, start + len(out)
        if out.shape[1:] != self.step_shape or out.dtype.itemsize != stored.itemsize:
            raise InvalidArgument(
                "the array has a different form than the channel",
                entry=self.block or self.name,
                expected=f"{self.dtype_name} [steps, {', '.join(map(str, self.step_shape))}]",
                found=f"{out.dtype} {list(out.shape)}",
            )
        if (
            self._values is None
            and block is not None
            and block.is_compressed
            and block.is_cut_cheaply
            and out.dtype == stored
            and self.dtype_name is not _BOOL
            and out.flags.c_contiguous
            and 0 <= start <= stop <= self._length
        ):
            self._check_size()
            block.read_into(start * self.step_bytes, out.reshape(-1).view(np.uint8))
        else:
            out[...] = self.read_steps(start, stop)

    def step_ranges(self, most_bytes: int) -> Iterator[tuple[int, int]]:
        """Ranges `(start, stop)` of steps that together cover the channel, each of at most `most_bytes`."""
        return step_ranges(self._length, self.step_bytes, most_bytes)

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
        block: Any = self.source
        dtype, shape = self.dtype_name, (self._length, *self.step_shape)
        if prod(shape) * dtype.size != block.nbytes or not block.nbytes:
            self._check_size()
        values = block.array(dtype.stored_dtype, shape)
        return _as_booleans(values) if dtype is _BOOL else values

    def stored_array(self) -> NDArray[Any]:
        """The part of it that a file stores: the array, read if necessary, but not kept."""
        if self.source is not None:
            # As stored: a boolean may be any byte.
            self._check_size()
            return self.source.array(self.dtype_name.stored_dtype, (self._length, *self.step_shape))
        values: NDArray[Any] = self._values
        return values

    def _check_size(self) -> None:
        """W-BLK-1."""
        assert self.source is not None
        if self.source.nbytes != self.nbytes:
            raise SizeMismatch(
                "the block has a different size than its description says",
                path=self.source.path,
                entry=self.block,
                expected=f"{self.nbytes} bytes: {self._length} steps of "
                f"{self.dtype_name} {list(self.step_shape)}",
                found=f"{self.source.nbytes} bytes",
                rule="W-BLK-1",
            )
        if self.has_stated_length and not self.step_bytes and self._length > MOST_UNBACKED:
            raise SizeMismatch(
                "the steps of the block have no bytes, and there are too many of them",
                path=self.source.path,
                entry=self.block,
                expected=f"at most {MOST_UNBACKED} steps",
                found=f"{self._length}",
                rule="W-BLK-1",
            )

    @property
    def is_view(self) -> bool:
        """Whether its data takes no memory of its own, because it is a view of a mapped file."""
        source = self.source
        return isinstance(source, FileBlock) and not source.is_compressed and source.reader.can_view

    def check_claims(self) -> None:
        """Compares the size that the file claims with the file, before memory for the steps is allocated."""
        if self.source is not None and self._values is None:
            self._check_size()
            if isinstance(self.source, FileBlock):
                self.source.check_sizes()

    # --- clock

    @property
    def has_own_clock(self) -> bool:
        """Whether its entries have times of their own, so that its length is free."""
        return self._times is not None or self.clock_source is not None or self.start_ns is not None

    @property
    def has_own_timestamps(self) -> bool:
        """Whether each of its entries has a time, rather than a start and a rate."""
        return self._times is not None or self.clock_source is not None

    @property
    def timestamps_ns(self) -> NDArray[np.int64] | None:
        """The times of a clock of its own, int64 nanoseconds; None if it follows the episode's steps."""
        if self._times is None and self.clock_source is not None:
            block = self.clock_source
            if block.nbytes != 8 * self._length:
                raise SizeMismatch(
                    "a channel's clock has a different length than the channel",
                    path=block.path,
                    entry=block.name,
                    expected=f"{self._length} timestamps for {self.block!r}",
                    found=f"{block.nbytes} bytes",
                    rule="W-TIM-3",
                )
            self._times = block.array(np.dtype("<i8"), (self._length,))
        if self._times is None and self.start_ns is not None:
            self.check_claims()
            return regular_times(self._length, self.sampling_rate_hz or 0, self.start_ns)
        return self._times

    @timestamps_ns.setter
    def timestamps_ns(self, times: ArrayLike | None) -> None:
        self.clock_source = None
        self._times = None if times is None else as_times(times, self.name)

    # --- looking

    def summary(self) -> dict[str, str]:
        """What a table shows about it: `dtype`, `shape`, `rate`, `codec`, `size` and `stored`. Reads no data."""
        kind = "text" if self.layout == "text" else str(self.dtype_name)
        items = "" if self.layout == "dense" else "*, "
        shape = ", ".join(map(str, self.step_shape))
        clock = "own clock" if self.has_own_clock else ""
        try:
            codec, stored = storage_of(self.source) or ("", None)
            nbytes = self.nbytes if self.source is None else self.source.nbytes
        except ShardError as error:
            codec, stored, nbytes = error.code, None, None
        return {
            "dtype": f"{kind} ragged" if self.layout == "ragged" else kind,
            "shape": f"[{self._length}, {items}{shape}]".replace(", ]", "]"),
            "rate": f"{self.sampling_rate_hz:.6g} Hz" if self.sampling_rate_hz else clock,
            "codec": codec,
            "size": "" if nbytes is None else display.size(nbytes),
            "stored": "" if stored is None else display.size(stored),
        }

    def thumbnails(self, count: int = 3) -> dict[int, NDArray[np.uint8]]:
        """Small pictures of some frames by their numbers; none if steps are not pictures, or would cost much.

        A picture is left out if its file is remote, or damaged, or if tens of megabytes must be decoded for it.
        """
        block, found = self.source, dict[int, "NDArray[np.float64]"]()
        reading = self.uncached()
        if not is_frames(self) or (block is not None and is_url(block.path or "")):
            return {}
        for number in dict.fromkeys(np.linspace(0, max(self._length - 1, 0), count).astype(int)):
            try:
                cost, most = self.step_bytes, _MOST_FOR_A_PICTURE
                if block is not None and self._values is None:
                    most = most if block.is_cut_cheaply else _MOST_AS_A_WHOLE
                    cost = self._reading_cost(int(number))
                if not 0 < cost <= most:
                    break
                frame = self.dtype_name.as_numbers(reading.read_steps(number, number + 1))[0]
                found[int(number)] = display.picture_of(frame)
            except (ShardError, ValueError, IndexError):
                break  # reading the channel says what is wrong with it
        if not found:
            return {}
        low, high = display.value_range(list(found.values()))
        if self.dtype_name is DType.UINT8 and self.modality != Modality.DEPTH:
            low, high = 0.0, 255.0
        return {at: display.to_pixels(each, low, high) for at, each in found.items()}

    def sketch(self) -> NDArray[np.float64] | None:
        """Its first dimensions over time in few points; None if it has no such dimensions, or reading it would cost much."""
        block = self.source
        is_numbers = self.layout == "dense" and not is_frames(self)
        if not is_numbers or (block is not None and is_url(block.path or "")):
            return None
        if not 0 < self.nbytes <= _MOST_AS_A_WHOLE or prod(self.step_shape) > _MOST_IN_A_SKETCH:
            return None
        try:
            values = self.dtype_name.as_numbers(self.uncached().read_steps(0, self.length))
            return display.sketch_of(values)
        except (ShardError, ValueError):
            return None  # reading the channel says what is wrong with it

    def _reading_cost(self, step: int) -> int:
        """How many bytes are decoded to get one step."""
        assert self.source is not None
        start = step * self.step_bytes
        return decoded_bytes(self.source, start, start + self.step_bytes)

    def _repr_html_(self) -> str:
        facts = {
            **self.summary(),
            "unit": self.unit,
            "modality": self.modality or "",
            "description": self.description or self.semantics,
            "block": self.block,
        }
        shown = [(name, value) for name, value in facts.items() if value]
        pictures = {f"entry {at}": each for at, each in self.thumbnails().items()}
        sketch = self.sketch()
        plots = [] if sketch is None else [("values", [display.Line(sketch)])]
        return display.card(
            f"{type(self).__name__} {self.name}", shown, pictures=pictures, plots=plots
        )

    # --- copies

    def as_block(self) -> Block:
        """Its bytes, wherever they are."""
        if self._values is None and self.source is not None:
            self._check_size()
            return self.source
        return ArrayBlock(self.block or self.name, self._values)

    def _changed(self, **fields: Any) -> Self:  # noqa: ANN401 - any attribute
        """A copy that shares the data and has other values of these attributes."""
        return self.having({**vars(self), **fields})

    @classmethod
    def having(cls, attributes: Mapping[str, Any]) -> Self:
        """A channel of this class with the attributes of another one, which are not checked again."""
        channel = object.__new__(cls)
        for name, value in attributes.items():
            object.__setattr__(channel, name, value)
        return channel

    def uncached(self) -> Self:
        """A copy that shares the data: what the copy reads from a file is forgotten with it."""
        return self._changed()

    def clone(self) -> Self:
        """A copy with data of its own in memory."""
        return self._changed(_values=read_only(np.array(self.data)), source=None)

    def at_source(self, source: Block, length: int) -> Self:
        """A channel that is described like this one and has its data elsewhere."""
        return self._changed(_values=None, source=source, _length=length)

    def with_clock_at(self, source: Block) -> Self:
        """The same channel with the times of its own clock elsewhere."""
        return self._changed(_times=None, clock_source=source)

    def sliced(self, start: int, stop: int) -> Self:
        """The steps from `start` to `stop` as a channel of its own."""
        return self._changed(_values=self.read_steps(start, stop), **self._slice(start, stop))

    def _slice(self, start: int, stop: int) -> dict[str, Any]:
        """What is different for the steps from `start` to `stop`, besides the values."""
        fields: dict[str, Any] = {"source": None, "_length": stop - start}
        times = self.timestamps_ns if self.has_own_timestamps else None
        if times is not None:
            fields.update(_times=times[start:stop], clock_source=None)
        elif self.start_ns is not None:
            first = regular_times(1, self.sampling_rate_hz or 0, self.start_ns, start)
            fields["start_ns"] = int(first[0])
        return fields

    def __repr__(self) -> str:
        shape = ", ".join(map(str, self.shape))
        state = "" if self.is_loaded else ", not loaded"
        return f"<{type(self).__name__} {self.name!r}: {self.dtype_name}[{shape}]{state}>"


class _Items(NamedTuple):
    """The items of all steps back to back, and where each step starts."""

    values: Any
    offsets: NDArray[np.int64]


class RaggedChannel(Channel):
    """A varying number of items at each step: points of a scan, detections, tokens.

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

    offsets_source: Block | None = None
    """Where its offsets are stored."""
    _offsets: NDArray[np.int64] | None = None

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
            raise InvalidArgument("pass either data, or values and offsets", entry=name or None)
        given: Any = data
        if offsets is not None:
            given = _Items(values, np.ascontiguousarray(offsets, dtype=np.int64))
        super().__init__(name, dtype, shape, given, **fields)

    def _take(self, dtype: Any, shape: Any, data: Any) -> None:  # noqa: ANN401 - as for Channel
        items = data if isinstance(data, _Items) else self._packed(dtype, shape, data)
        super()._take(dtype, shape, items.values)
        check_offsets(items.offsets, self._length, None, InvalidArgument)
        self._offsets = items.offsets
        self._length = len(items.offsets) - 1

    def _packed(self, dtype: Any, shape: Any, data: Any) -> _Items:  # noqa: ANN401 - as for Channel
        pieces = [as_array(piece) for piece in data]
        for step, piece in enumerate(pieces):
            if not piece.ndim:
                raise InvalidArgument(
                    "a step of a ragged channel is one number",
                    expected="an array [items, ...] for each step",
                    found=f"step {step}",
                )
        # Steps without items often come as [] and know neither dtype nor shape.
        filled = [piece for piece in pieces if len(piece)]
        try:
            if filled:
                values = np.concatenate(filled)
            else:
                example = pieces[0] if pieces else np.zeros((0,), np.float32)
                step_shape = example.shape[1:] if shape is None else tuple(shape)
                kind = example.dtype if dtype is None else DType.parse(dtype).numpy_dtype
                values = np.zeros((0, *step_shape), kind)
        except ValueError as error:
            raise InvalidArgument(f"the steps have different items: {error}") from None
        return _Items(values, _offsets_of(pieces))

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Where the items of each step start in `values`; one more element for the end."""
        if self._offsets is None:
            block = self.offsets_source
            assert block is not None
            assert self.source is not None
            if block.nbytes != 8 * (self._length + 1):
                raise SizeMismatch(
                    "the offsets of a ragged channel have a different length than the channel",
                    path=block.path,
                    entry=block.name,
                    expected=f"{self._length + 1} offsets for {self.block!r}",
                    found=f"{block.nbytes} bytes",
                    rule="W-RAG-1",
                )
            offsets = block.array(np.dtype("<i8"), (self._length + 1,))
            item = self.step_bytes
            if self.source.nbytes % item if item else self.source.nbytes:
                raise SizeMismatch(
                    "the block is not a whole number of items",
                    path=self.source.path,
                    entry=self.block,
                    expected=f"a multiple of {item} bytes",
                    found=f"{self.source.nbytes} bytes",
                    rule="W-RAG-3",
                )
            items = self.source.nbytes // item if item else None
            try:
                check_offsets(offsets, items, block.name, BadValue)
            except BadValue as error:
                raise error.located(path=block.path) from None
            self._offsets = offsets
        return self._offsets

    def check_claims(self) -> None:
        """As for `Channel`: each step has an offset, whatever its items are."""
        if self._values is None:
            len(self.offsets)

    @property
    def values(self) -> NDArray[Any]:
        """All items of all steps, back to back."""
        if self._values is None:
            assert self.source is not None
            count = int(self.offsets[-1])
            array = self.source.array(self.dtype_name.numpy_dtype, (count, *self.step_shape))
            self._values = read_only(array)
        values: NDArray[Any] = self._values
        return values

    @property
    def shape(self) -> tuple[int, ...]:
        """`(T,)`: steps have different numbers of items; `step_shape` is the shape of one item."""
        return (self._length,)

    @property
    def ndim(self) -> int:
        return 1

    @property
    def nbytes(self) -> int:
        return self.source.nbytes if self.source is not None else int(self._values.nbytes)

    @property
    def data(self) -> Any:  # noqa: ANN401 - a list of arrays; text gives a list of strings
        """One array of items for each step."""
        return self.read_steps(0, self._length)

    @data.setter
    def data(self, data: Any) -> None:  # noqa: ANN401 - as above
        self._take(None, None, data)
        self.source = self.offsets_source = None
        self.inferred = self.has_stated_length = False

    def __getitem__(self, key: Any) -> Any:  # noqa: ANN401 - one step or a list of them
        if isinstance(key, slice):
            start, stop, step = key.indices(self._length)
            if step == 1:
                return self.read_steps(start, max(start, stop))
            return [self[number] for number in range(start, stop, step)]
        wanted = self._step_number(operator.index(key))
        return self.read_steps(wanted, wanted + 1)[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:  # noqa: ANN401 - NumPy's protocol
        raise InvalidArgument(
            f"a {self.layout} channel is not an array",
            entry=self.name,
            hint="use .values and .offsets, or .data for a list with one element per step",
        )

    def read_steps_into(self, start: int, out: NDArray[Any]) -> None:
        raise InvalidArgument(
            f"a {self.layout} channel does not fit into an array",
            entry=self.name,
            hint="use .values and .offsets",
        )

    def read_steps(self, start: int, stop: int) -> Any:  # noqa: ANN401 - a list
        offsets = self.offsets
        first, end = int(offsets[start]), int(offsets[stop])
        items = self._items(first, end)
        bounds = (offsets[start : stop + 1] - first).tolist()
        return [items[a:b] for a, b in pairwise(bounds)]

    def _items(self, first: int, end: int) -> NDArray[Any]:
        block = self.source
        if self._values is not None or block is None or not block.is_cut_cheaply:
            return self.values[first:end]
        return read_only(
            block.part(
                self.dtype_name.numpy_dtype,
                (end - first, *self.step_shape),
                first * self.step_bytes,
            )
        )

    def stored_array(self) -> NDArray[Any]:
        return self.values

    def with_items_at(self, source: Block, offsets: NDArray[np.int64]) -> Self:
        """A channel that is described like this one and has its items elsewhere."""
        return self._changed(
            _values=None,
            source=source,
            _length=len(offsets) - 1,
            _offsets=offsets,
            offsets_source=None,
        )

    def clone(self) -> Self:
        values, offsets = read_only(np.array(self.values)), np.array(self.offsets)
        return self._changed(_values=values, source=None, _offsets=offsets, offsets_source=None)

    def _slice(self, start: int, stop: int) -> dict[str, Any]:
        offsets = self.offsets[start : stop + 1]
        fields = super()._slice(start, stop)
        return {**fields, "_offsets": offsets - offsets[0], "offsets_source": None}

    def sliced(self, start: int, stop: int) -> Self:
        items = self._items(int(self.offsets[start]), int(self.offsets[stop]))
        return self._changed(_values=items, **self._slice(start, stop))

    def __repr__(self) -> str:
        item = "".join(f", {size}" for size in self.step_shape)
        state = "" if self.is_loaded else ", not loaded"
        return f"<{type(self).__name__} {self.name!r}: {self._length} steps of {self.dtype_name}[*{item}]{state}>"


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

    def _packed(self, dtype: Any, shape: Any, data: Any) -> _Items:  # noqa: ANN401 - as for Channel
        if isinstance(data, str):
            raise InvalidArgument(
                "a text channel needs one string for each step",
                found="one string",
                hint="repeat it: [text] * T; or label the whole episode with an interval",
            )
        texts, pieces = list(data), list[bytes]()
        try:
            pieces.extend(map(str.encode, texts))
        except TypeError:
            raise InvalidArgument(
                "a text channel holds something that is not a string",
                found=f"{type(texts[len(pieces)]).__name__} at step {len(pieces)}",
            ) from None
        except UnicodeEncodeError:
            raise InvalidArgument(
                "a string holds a lone surrogate, which UTF-8 cannot store",
                found=f"step {len(pieces)}",
            ) from None
        return _Items(np.frombuffer(b"".join(pieces), np.uint8), _offsets_of(pieces))

    def read_steps(self, start: int, stop: int) -> Any:  # noqa: ANN401 - a list of strings
        texts: list[str] = []
        offsets = self.offsets
        first, end = int(offsets[start]), int(offsets[stop])
        stored = self._items(first, end).tobytes()
        try:
            edges = (offsets[start : stop + 1] - first).tolist()
            texts.extend(map(bytes.decode, [stored[low:high] for low, high in pairwise(edges)]))
        except UnicodeDecodeError as error:
            raise BadValue(
                f"the text of step {start + len(texts)} is not UTF-8: {error.reason}",
                path=None if self.source is None else self.source.path,
                entry=self.block or self.name,
                rule="W-RAG-4",
            ) from None
        return texts

    def __repr__(self) -> str:
        return f"<TextChannel {self.name!r}: {self._length} strings>"


def _offsets_of(pieces: Sequence[Any]) -> NDArray[np.int64]:
    offsets = np.zeros(len(pieces) + 1, np.int64)
    np.fromiter(map(len, pieces), np.int64, len(pieces)).cumsum(out=offsets[1:])
    return offsets


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


class UnreadableChannel(Channel):
    """A channel whose row makes no sense: it is there, and touching it says why.

    Saving keeps its bytes and its row as they are.
    """

    row: Row | None = None
    problem: Callable[[], ShardError] | None = None
    """Makes the error."""

    @property
    def nbytes(self) -> int:
        assert self.source is not None
        return self.source.nbytes

    def _read_all(self) -> Any:  # noqa: ANN401 - never returns
        assert self.problem is not None
        raise self.problem()

    def read_steps(self, start: int, stop: int) -> Any:  # noqa: ANN401 - never returns
        return self._read_all()

    def check_claims(self) -> None:
        self._read_all()

    def stored_array(self) -> NDArray[Any]:
        assert self.source is not None
        return self.source.array(np.dtype(np.uint8), (self.source.nbytes,))


def is_frames(channel: Channel) -> bool:
    """Whether each step of a channel is a picture, judged by its modality or else by its shape."""
    if isinstance(channel, RaggedChannel) or len(channel.step_shape) < 2:
        return False
    if channel.modality in _FRAMES or channel.layout == "video":
        return True
    large = sorted(channel.step_shape)[-2]
    return channel.modality is None and large >= _SMALLEST_FRAME and prod(channel.step_shape) >= 64


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


def as_channel(value: Any, name: str) -> Channel:  # noqa: ANN401 - whatever a user has
    """A channel of what a user assigns: a channel, an array, numbers in a list, or strings."""
    if isinstance(value, Channel):
        if not value.name:
            value.name = name
        return value
    try:
        if isinstance(value, np.ndarray) and value.dtype.kind == "U":
            value = value.tolist()
        if isinstance(value, (list, tuple)) and value and all(isinstance(v, str) for v in value):
            return TextChannel(name, value)
        return Channel(name, data=value)
    except InvalidArgument as error:
        raise error.located(entry=name) from None
