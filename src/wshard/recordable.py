"""The channels of a recording: how they are described, and what fits into them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format import Codec, Compression
from shard_format._json import canonical
from shard_format.codecs import zstd_level
from shard_format.errors import BadMetadata, InvalidArgument
from wshard.channels import as_modality
from wshard.describing import UNDERSTOOD
from wshard.dtypes import DType, convert
from wshard.journal import LARGEST_RUN
from wshard.metadata import parse_row
from wshard.names import DONE, REWARD, TERMINATED, TIMESTAMPS, TRUNCATED
from wshard.values import as_array, product

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["BESIDES", "ChannelDef", "RecordedChannel", "StepLayout", "nanoseconds"]

BESIDES: Final = {
    REWARD: DType.FLOAT64,
    DONE: DType.BOOL,
    TERMINATED: DType.BOOL,
    TRUNCATED: DType.BOOL,
    TIMESTAMPS: DType.INT64,
}
"""What a step may bring besides its values. Rewards are kept as given: f32 in the end, where that is exact."""

_RAW: Final = Compression(Codec.NONE)
# Values of these types need no more looking at.
_PLAIN: Final = {DType.FLOAT64: float, DType.BOOL: bool, DType.INT64: None}
_I64: Final = range(-(1 << 63), 1 << 63)
_ARRAY: Final = np.ndarray
_LANES: Final = ("signal", "action")
_TEXT: Final = frozenset({"text", "str", "string", "utf8", "object"})


class RecordedChannel:
    """One channel while it is recorded: where it goes and what fits.

    Args:
        block: its block.
        row_id: its id in the row.
        dtype: the stored type.
        shape: of one entry.
        compression: of its runs.
    """

    __slots__ = ("block", "dtype", "level", "number", "row", "shape", "step_bytes", "stored")

    def __init__(
        self,
        block: str,
        row_id: str,
        dtype: DType,
        shape: tuple[int, ...],
        compression: Compression,
    ) -> None:
        self.block = block
        self.dtype = dtype
        self.stored = dtype.numpy_dtype
        self.shape = shape
        self.step_bytes = product(shape) * dtype.size
        if not 0 < self.step_bytes <= LARGEST_RUN:
            raise InvalidArgument(
                "a step of this channel holds nothing, or too much",
                entry=block,
                expected=f"1 to {LARGEST_RUN} bytes",
                found=f"{self.step_bytes}: {dtype} {list(shape)}",
            )
        if compression.codec is Codec.LZ4:
            raise InvalidArgument(
                "lz4 cannot be recorded: its blocks cannot be joined",
                entry=block,
                hint="use 'zstd:1', and 'wshard repack' later",
            )
        self.level = None if compression.codec is Codec.NONE else zstd_level(compression)
        self.number = -1
        self.row: dict[str, Any] = {
            "dtype": dtype.value,
            "id": row_id,
            "shape": list(shape),
            "signal_block": block,
        }

    def checked(self, value: Any) -> NDArray[Any]:  # noqa: ANN401 - anything array-like
        """The value as this channel stores it; raises at once if it does not fit."""
        if type(value) is np.ndarray and value.dtype is self.stored and value.shape == self.shape:
            return value
        try:
            array = as_array(value)
            converted = array
            if array.dtype != self.stored:
                with np.errstate(over="ignore"):
                    converted = convert(array, self.dtype)[0]
        except InvalidArgument as error:
            raise error.located(entry=self.block) from None
        if array.shape == self.shape:
            return converted
        raise InvalidArgument(
            "a value has another shape than its channel",
            entry=self.block,
            expected=f"{list(self.shape)}",
            found=f"{list(array.shape)}",
        )


@dataclass(frozen=True)
class ChannelDef:
    """A channel of a recording."""

    id: str
    """Its name."""
    dtype: DType | str = DType.FLOAT32
    """The stored type."""
    shape: Sequence[int] = ()
    """Of one step."""
    compression: str | Compression | None = None
    """`"none"`, `"zstd"` or `"zstd:LEVEL"`; None for the writer's default."""
    lane: str = "signal"
    """`"signal"` or `"action"`."""
    modality: str | None = None
    """The kind of sensor."""
    rate: float | None = None
    """Entries in a second."""
    unit: str = ""
    """Such as `"rad"`."""
    own_clock: bool = False
    """Whether its entries come with `write`, at times of their own."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Any other fields for its description."""

    @classmethod
    def of(cls, given: ChannelDef | Mapping[str, Any]) -> ChannelDef:
        """From a dictionary with the same fields."""
        if isinstance(given, ChannelDef):
            return given
        if not isinstance(given, Mapping):
            raise InvalidArgument(
                "this is no channel", expected="a ChannelDef or a dictionary", found=repr(given)
            )
        unknown = given.keys() - cls.__dataclass_fields__.keys()
        if given.get("layout") not in (None, "dense"):
            raise _not_recordable(str(given.get("id")), given["layout"])
        if unknown or "id" not in given:
            raise InvalidArgument(
                "this is no channel",
                entry=str(given.get("id", "")) or None,
                expected=", ".join(cls.__dataclass_fields__),
                found=", ".join(sorted(map(str, unknown))) or "no id",
            )
        return cls(**given)

    def recorded(self, default: Compression, lane: str | None = None) -> RecordedChannel:
        """The channel as it is recorded.

        Args:
            default: how it is compressed if it does not say.
            lane: another lane than its own.
        """
        lane = lane or self.lane
        if lane not in _LANES:
            raise InvalidArgument(
                "unknown lane", entry=self.id, expected="'signal' or 'action'", found=repr(lane)
            )
        if str(self.dtype).lower() in _TEXT:
            raise _not_recordable(self.id, self.dtype)
        block = f"{lane}/{self.id}"
        taken = self.extra.keys() & UNDERSTOOD
        if taken:
            raise InvalidArgument(
                f"a field of the channel's own is given as extra: {min(taken)!r}", entry=block
            )
        try:
            chosen = default if self.compression is None else Compression.parse(self.compression)
            shape = tuple(_whole(size) for size in self.shape)
            recorded = RecordedChannel(block, self.id, DType.parse(self.dtype), shape, chosen)
            recorded.row |= dict(self.extra)
            if self.modality is not None:
                recorded.row["modality"] = str(as_modality(self.modality))
            if self.rate is not None:
                recorded.row["sampling_rate_hz"] = float(self.rate)
            if self.unit:
                recorded.row["unit"] = self.unit
            canonical(recorded.row)
            parse_row(recorded.row, 0)
        except BadMetadata as error:
            raise InvalidArgument(error.problem, entry=block, found=error.found) from None
        except InvalidArgument as error:
            raise error.located(entry=block) from None
        return recorded


class StepLayout:
    """What every step of a recording brings, as its first one does.

    Args:
        named: the channels, by what steps call them.
        besides: what the first step brings besides, in the order of `BESIDES`; None for what it does not.
        path: the recording, for errors to name.
    """

    def __init__(
        self, named: dict[str, RecordedChannel], besides: tuple[Any, ...], path: str
    ) -> None:
        self.named = named
        self._path = path
        brought = [
            (block, dtype)
            for (block, dtype), value in zip(BESIDES.items(), besides, strict=True)
            if value is not None
        ]
        self.channels = [
            *named.values(),
            *(RecordedChannel(block, block, dtype, (), _RAW) for block, dtype in brought),
        ]
        """All of them, in the order in which `store` takes places."""
        self._slots = [(key, c.stored, c.shape, c) for key, c in named.items()]
        self._trial = [np.empty(c.shape, c.stored) for c in self.channels]
        self._absent = [number for number, value in enumerate(besides) if value is None]
        numbers = [number for number, value in enumerate(besides) if value is not None]
        self._brought = [
            (len(named) + at, number, _PLAIN[dtype])
            for at, (number, (_, dtype)) in enumerate(zip(numbers, brought, strict=True))
        ]
        """What comes besides: the place of each, its number in `BESIDES`, and the type it mostly has."""

    def store(
        self, values: Mapping[str, Any], besides: tuple[Any, ...], places: Sequence[NDArray[Any]]
    ) -> None:
        """Puts everything that a step brings into its places, in the order of `channels`.

        Raises where something does not fit. The places are then of no use, and must not count.
        """
        if len(values) != len(self.named):
            raise self._other_channels(values)
        try:
            for (key, stored, shape, channel), place in zip(self._slots, places, strict=False):
                value = values[key]
                if type(value) is _ARRAY and value.dtype is stored and value.shape == shape:
                    place[...] = value
                else:
                    place[...] = channel.checked(value)
        except KeyError:
            if self.named.keys() <= values.keys():
                raise  # of a value, not of ours
            raise self._other_channels(values) from None
        for number in self._absent:
            if besides[number] is not None:
                raise InvalidArgument(
                    "a step brings what the first one did not",
                    path=self._path,
                    entry=list(BESIDES)[number],
                    hint="give it at every step, from the first one on",
                )
        for at, number, plain in self._brought:
            value = besides[number]
            places[at][...] = (
                value if type(value) is plain else self._checked_besides(number, value)
            )

    def check(self, values: Mapping[str, Any], besides: tuple[Any, ...]) -> None:
        """Raises if anything of a step does not fit."""
        self.store(values, besides, self._trial)

    def _other_channels(self, values: Mapping[str, Any]) -> InvalidArgument:
        for key, channel in self.named.items():
            if key not in values:
                return InvalidArgument(
                    "a step lacks a channel", path=self._path, entry=channel.block
                )
        return InvalidArgument(
            "a step has a channel that the recording has not",
            path=self._path,
            entry=str(min(values.keys() - self.named.keys(), key=str)),
            expected=", ".join(self.named) or "no channels",
        )

    def _checked_besides(self, number: int, value: Any) -> Any:  # noqa: ANN401 - checked here
        block = list(BESIDES)[number]
        if value is None and BESIDES[block] is not DType.BOOL:
            raise InvalidArgument(
                "a step lacks what the first one had", path=self._path, entry=block
            )
        if block == TIMESTAMPS:
            return nanoseconds(value, block)
        try:
            return float(value) if block == REWARD else bool(value)
        except (TypeError, ValueError):
            raise InvalidArgument(
                "this is not one value", path=self._path, entry=block, found=repr(value)[:80]
            ) from None


def nanoseconds(value: Any, name: str) -> int:  # noqa: ANN401 - checked here
    """A timestamp as a number of 64 bits; `name` is whose it is."""
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        number = int(value)
        if number in _I64:
            return number
    raise InvalidArgument(
        "a timestamp is not whole nanoseconds",
        entry=name,
        expected="an integer of 64 bits",
        found=repr(value)[:80],
        hint="use time.monotonic_ns()",
    )


def _whole(size: Any) -> int:  # noqa: ANN401 - checked here
    if isinstance(size, (int, np.integer)) and not isinstance(size, bool) and size >= 0:
        return int(size)
    raise InvalidArgument("a shape is a list of whole numbers", found=repr(size))


def _not_recordable(name: str, kind: object) -> InvalidArgument:
    return InvalidArgument(
        "text and ragged channels cannot be recorded yet",
        entry=name,
        found=repr(kind),
        hint="record bytes of a fixed length, or add the channel to the finished episode",
    )
