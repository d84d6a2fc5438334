"""The descriptions of an episode, parsed and checked, and as our writers store them (spec/wshard.md, sections 3, 5, 13)."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shard_format.errors import BadMetadata, InvalidArgument
from wshard._lanes import META_CHANNELS, META_EPISODE, META_PROVENANCE, META_WSHARD, address_of
from wshard._values import BY_NAME, DType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wshard._lanes import Address

DEFAULT_RATE_HZ: Final = 30.0
LARGEST: Final = (1 << 63) - 1
MOST_UNBACKED: Final = 1 << 20
"""Steps that a file may claim without an entry of as many bytes (W-EPI-5)."""
_MOST_DIMENSIONS = 31
_MOST_BESIDE_ZERO = (1 << 31) - 1


class TimebaseType(str, Enum):
    """Where the times of the steps come from."""

    TICKS = "ticks"
    TIMESTAMPS_NS = "timestamps_ns"

    def __str__(self) -> str:
        return self.value


@dataclass
class Timebase:
    """How steps become times."""

    type: TimebaseType | str = TimebaseType.TICKS
    """`ticks` for a fixed rate, `timestamps_ns` where every step has its own time."""
    tick_hz: float | None = None
    """Steps per second; None if it is not known."""
    epoch_ns: int = 0
    """The time of step 0, nanoseconds."""

    @property
    def dt_ns(self) -> int | None:
        """Nanoseconds of one step, rounded, at most 2**63 - 1; None without a rate."""
        if self.tick_hz is None:
            return None
        return min(round(min(1e9 / self.tick_hz, 1e19)), LARGEST)


_TIMEBASE_TYPES = {kind.value: kind for kind in TimebaseType}
_TICKS = TimebaseType.TICKS  # an attribute of an enumeration takes long to look up


class EpisodeFacts(NamedTuple):
    """What `meta/episode` and `meta/wshard` say."""

    id: str
    env_id: str
    length: int
    timebase: Timebase
    metadata: dict[str, Any]
    chunk_index: int | None
    total_chunks: int | None
    timestep_range: tuple[int, int] | None


class Row(NamedTuple):
    """One row of `meta/channels`."""

    id: str
    block: str
    dtype: DType
    shape: tuple[int, ...]
    fields: dict[str, Any]
    """The whole row, as stored."""
    address: Address
    """Where the episode has its block, as far as the row and the block's name say."""


def is_number(value: object) -> bool:
    """Whether this is a number of JSON that a float can hold."""
    # Comparing is exact: an integer of a thousand digits does not have to become a float.
    return type(value) in (int, float) and abs(value) <= sys.float_info.max  # type: ignore[arg-type] # a number


def wrong(
    what: str, found: object, expected: str, rule: str, entry: str | None = None
) -> BadMetadata:
    """The error for a field of a wrong type or value."""
    text = repr(found)
    return BadMetadata(
        f"{what} is not {expected}",
        entry=entry,
        found=text if len(text) <= 80 else text[:77] + "…",
        rule=rule,
    )


def parse_facts(episode: Mapping[str, Any], wshard: Mapping[str, Any]) -> EpisodeFacts:
    """What the two objects say together (W-EPI, W-TIM-1)."""
    entry = META_EPISODE
    name = episode["episode_id"] if "episode_id" in episode else episode.get("id")
    if not isinstance(name, str):
        raise wrong("'episode_id'", name, "a string", "W-EPI-1", entry)
    env_id = episode.get("env_id", "")
    if not isinstance(env_id, str):
        raise wrong("'env_id'", env_id, "a string", "W-EPI-1", entry)
    length = episode["length_T"] if "length_T" in episode else episode.get("length_t")
    if type(length) is not int or not 0 <= length <= LARGEST:
        raise wrong("'length_T'", length, "an integer of 0 or more", "W-EPI-2", entry)
    metadata = episode.get("metadata")
    if metadata is None:
        metadata = {}
    elif not isinstance(metadata, dict):
        raise wrong("'metadata'", metadata, "an object", "W-EPI-3", entry)
    index, total, span = None, None, None
    if "chunk_index" in episode or "total_chunks" in episode or "timestep_range" in episode:
        index, total, span = _chunk_fields(episode)
        if span == (0, 0) and length != 1:
            span = None  # what some writers store where nothing was set (section 11)
    return EpisodeFacts(
        name, env_id, length, _timebase(episode, wshard), metadata, index, total, span
    )


def _chunk_fields(
    episode: Mapping[str, Any],
) -> tuple[int | None, int | None, tuple[int, int] | None]:
    entry = META_EPISODE
    index, total = episode.get("chunk_index"), episode.get("total_chunks")
    for key, value in (("chunk_index", index), ("total_chunks", total)):
        if value is not None and (type(value) is not int or not 0 <= value <= LARGEST):
            raise wrong(f"'{key}'", value, "an integer of 0 or more", "W-EPI-4", entry)
    if index is not None and total and index >= total:
        raise wrong("'chunk_index'", index, f"below 'total_chunks', {total}", "W-EPI-4", entry)
    span = episode.get("timestep_range")
    if span is None:
        return index, total, None
    if (
        not isinstance(span, list)
        or len(span) != 2
        or not all(type(step) is int and -LARGEST <= step <= LARGEST for step in span)
        or span[0] > span[1]
    ):
        raise wrong("'timestep_range'", span, "a list of two integers in order", "W-EPI-4", entry)
    return index, total, (span[0], span[1])


def _timebase(episode: Mapping[str, Any], wshard: Mapping[str, Any]) -> Timebase:
    kind: Any = _TICKS
    epoch = 0
    stated: float | None = None
    of_period: float | None = None
    # Read in reverse order of rank, so that meta/episode has the last word.
    for entry, fields in ((META_WSHARD, wshard), (META_EPISODE, episode)):
        base = fields.get("timebase")
        if base is None:
            continue
        if not isinstance(base, dict):
            raise wrong("'timebase'", base, "an object", "W-EPI-3", entry)
        stored_kind = base.get("type")
        if stored_kind is not None:
            if not isinstance(stored_kind, str):
                raise wrong("'timebase.type'", stored_kind, "a string", "W-TIM-1", entry)
            kind = _TIMEBASE_TYPES.get(stored_kind, kind)
        stored_epoch = base.get("epoch_ns")
        if stored_epoch is not None:
            if type(stored_epoch) is not int or not -LARGEST <= stored_epoch <= LARGEST:
                raise wrong("'timebase.epoch_ns'", stored_epoch, "an integer", "W-TIM-1", entry)
            epoch = stored_epoch
        rate = base.get("tick_hz")
        if rate is not None:
            if not is_number(rate):
                raise wrong("'timebase.tick_hz'", rate, "a number", "W-TIM-1", entry)
            if rate > 0:
                stated = float(rate)
        period = base.get("dt_ns")
        if period is not None:
            if type(period) is not int or not -LARGEST <= period <= LARGEST:
                raise wrong("'timebase.dt_ns'", period, "an integer", "W-TIM-1", entry)
            if period > 0:
                of_period = 1e9 / period
    # A rate has the last word over a period, wherever they stand.
    rate_hz = stated or of_period
    if rate_hz is not None:
        return Timebase(kind, rate_hz, epoch)
    # A writer of today says null for a rate that it does not know; those before it left the field out (W-TIM-5).
    base = episode.get("timebase")
    is_unknown = isinstance(base, dict) and base.get("tick_hz", 0) is None
    return Timebase(kind, None if is_unknown else DEFAULT_RATE_HZ, epoch)


# The one list of the fields of a row: what each must be, if it is there (W-CHN-2). Fields that are not listed
# belong to other programs and are kept.
_STRING: Final = "a string"
_COUNT: Final = "an integer of 0 or more"
_POSITIVE: Final = "an integer above 0"
ROW_FIELDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("id", "dtype", "signal_block"), _STRING),
    "shape": "a list of integers",
    **dict.fromkeys(("modality", "unit", "semantics", "description", "content_type"), _STRING),
    **dict.fromkeys(("layout", "time_block", "offsets_block", "channel", "model", "type"), _STRING),
    **dict.fromkeys(("frames_block", "extradata"), _STRING),
    "length": _COUNT,
    **dict.fromkeys(("window", "horizon"), _POSITIVE),
    "start_ns": "an integer",
    "sampling_rate_hz": "a number above 0",
    "lossy": "an object",
}
CHANNEL_FIELDS: Final = (
    *("semantics", "sampling_rate_hz", "content_type", "unit", "description", "start_ns"),
    *("lossy", "horizon"),
)
"""Fields of a row that are attributes of a channel under the same name."""
BASIC_FIELDS: Final = frozenset(("id", "dtype", "shape", "signal_block"))
"""Fields that every row has; `parse_row` checks them first."""


def _is_good(value: object, expected: str) -> bool:
    if expected == _STRING:
        return isinstance(value, str)
    if expected == "an object":
        return isinstance(value, dict)
    if expected == "a number above 0":
        return is_number(value) and value > 0  # type: ignore[operator] # a number
    if type(value) is not int:
        return False
    least = {_COUNT: 0, _POSITIVE: 1}.get(expected, -LARGEST)
    return least <= value <= LARGEST


def parse_rows(fields: Mapping[str, Any]) -> list[Row]:
    """The rows of `meta/channels`, in its order (W-CHN)."""
    listed = fields.get("channels")
    if listed is None and "channels" not in fields:
        return [_legacy_row(name, row) for name, row in fields.items() if name != "modality_groups"]
    if not isinstance(listed, list):
        raise wrong("'channels'", listed, "a list", "W-CHN-1", META_CHANNELS)
    rows = [parse_row(fields, number) for number, fields in enumerate(listed)]
    seen: set[str] = set()
    for row in rows:
        if row.block in seen:
            problem = f"two rows describe the block {row.block!r}"
            raise BadMetadata(problem, entry=META_CHANNELS, rule="W-CHN-5")
        seen.add(row.block)
    return rows


def parse_row(fields: object, number: int, entry: str = META_CHANNELS) -> Row:
    """One row, checked."""
    if not isinstance(fields, dict):
        raise wrong(f"row {number}", fields, "an object", "W-CHN-1", entry)
    name = fields.get("id")
    if not isinstance(name, str) or not name:
        raise wrong(
            f"'id' of row {number}", name, "a string with something in it", "W-CHN-2", entry
        )
    block = fields.get("signal_block")
    if block is None:
        block = f"signal/{name}"
    elif not isinstance(block, str):
        raise wrong(f"'signal_block' of {name!r}", block, "a string", "W-CHN-2", entry)
    return _checked_row(name, block, fields, entry)


def _legacy_row(name: str, fields: object) -> Row:
    entry = META_CHANNELS
    if not isinstance(fields, dict):
        raise wrong(f"the row {name!r}", fields, "an object", "W-CHN-1", entry)
    lane, slash, rest = name.partition("/")
    row_id = rest if slash and lane in ("signal", "action") else name
    if not row_id:
        raise wrong("a name", name, "a block with a name of its own", "W-CHN-2", entry)
    return _checked_row(row_id, name, fields, entry)


def _checked_row(name: str, block: str, fields: dict[str, Any], entry: str) -> Row:
    dtype, shape = parse_dtype_and_shape(fields, name, entry)
    for key, value in fields.items():
        expected = ROW_FIELDS.get(key)
        if expected is None or value is None or key in BASIC_FIELDS:
            continue
        if not _is_good(value, expected):
            raise wrong(f"{key!r} of {name!r}", value, expected, "W-CHN-2", entry)
    horizon = fields.get("horizon")
    if horizon is not None:
        if shape[:1] != (horizon,):
            first = f"the first number of its shape, {list(shape)}"
            raise wrong(f"'horizon' of {name!r}", horizon, first, "W-CHN-8", entry)
        if fields.get("layout") not in (None, "dense"):
            raise wrong(
                f"{name!r}, which has a horizon,", fields["layout"], "dense", "W-CHN-8", entry
            )
    return Row(name, block, dtype, shape, fields, address_of(block, name, fields))


def parse_dtype_and_shape(
    fields: Mapping[str, Any], name: str, entry: str
) -> tuple[DType, tuple[int, ...]]:
    stored = fields.get("dtype")
    dtype = BY_NAME.get(stored.lower()) if isinstance(stored, str) else None
    if dtype is None:
        raise wrong(f"'dtype' of {name!r}", stored, "a known data type", "W-CHN-3", entry)
    shape = fields.get("shape")
    if shape is None:
        return dtype, ()
    what = f"'shape' of {name!r}"
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise wrong(what, shape, "a list of integers >= 0", "W-CHN-2", entry)
    if len(shape) > _MOST_DIMENSIONS or max(shape, default=0) > LARGEST:
        most = f"of at most {_MOST_DIMENSIONS} dimensions below 2**63"
        raise wrong(what, shape, most, "W-CHN-4", entry)
    if 0 in shape and prod(filter(None, shape)) > _MOST_BESIDE_ZERO:
        most = "at most 2**31 - 1 in all beside its 0"
        raise wrong(what, shape, most, "W-CHN-4", entry)
    return dtype, tuple(shape)


# --- the same, for writing

WSHARD_FIELDS: Final = {
    "endianness": "little",
    "format": "W-SHARD",
    "residual_edges": "pad",
    "version": "0.1",
}


def timebase_fields(timebase: Timebase) -> dict[str, Any]:
    """`timebase` as our writers store it."""
    fields: dict[str, Any] = {"tick_hz": timebase.tick_hz, "type": str(timebase.type)}
    if timebase.tick_hz is not None:
        fields["dt_ns"] = timebase.dt_ns
    if timebase.epoch_ns:
        fields["epoch_ns"] = timebase.epoch_ns
    return fields


def episode_fields(facts: EpisodeFacts) -> dict[str, Any]:
    """`meta/episode` as our writers store it."""
    fields: dict[str, Any] = {
        "env_id": facts.env_id,
        "episode_id": facts.id,
        "length_T": facts.length,
        "timebase": timebase_fields(facts.timebase),
    }
    if facts.metadata:
        fields["metadata"] = facts.metadata
    if facts.chunk_index is not None:
        fields["chunk_index"] = facts.chunk_index
    if facts.total_chunks is not None:
        fields["total_chunks"] = facts.total_chunks
    if facts.timestep_range is not None:
        fields["timestep_range"] = list(facts.timestep_range)
    return fields


# --- meta/provenance

PROVENANCE_DEFAULTS: Final[Mapping[str, Any]] = {
    "end_state": "",
    "epoch": 0,
    "first_seq": 0,
    "last_seq": 0,
    "prev_identity": "",
    "run_id": "",
    "source": {},
    "start_state": "",
    "v": 1,
}
_STATE = re.compile(r"(?:[0-9a-f]{64})?")
_LARGEST = (1 << 53) - 1


def _problem(fields: Mapping[str, Any]) -> tuple[str, object] | None:
    for key, value in fields.items():
        if key not in PROVENANCE_DEFAULTS:
            return f"unknown field {key!r}", value
        expected = ""
        if key in ("end_state", "start_state", "prev_identity"):
            if not isinstance(value, str) or _STATE.fullmatch(value) is None:
                expected = "empty or 64 lower-case hex digits"
        elif key == "source":
            texts = (*value, *value.values()) if isinstance(value, dict) else (None,)
            if not all(isinstance(text, str) for text in texts):
                expected = "an object of strings"
        elif key == "run_id":
            expected = "" if isinstance(value, str) else "a string"
        elif type(value) is not int or abs(value) > _LARGEST or (key == "v" and value != 1):
            expected = "1" if key == "v" else "an integer within 2**53"
        if expected:
            return f"{key!r} is not {expected}", value
    return None


def parse_provenance(fields: dict[str, Any]) -> dict[str, Any]:
    """What a file says, checked (W-PRV-1)."""
    missing = PROVENANCE_DEFAULTS.keys() - fields.keys()
    problem = (f"the field {min(missing)!r} is missing", None) if missing else _problem(fields)
    if problem is not None:
        raise BadMetadata(problem[0], entry=META_PROVENANCE, found=problem[1], rule="W-PRV-1")
    return fields


def complete_provenance(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What a user set, with the defaults for the rest."""
    problem = _problem(fields)
    if problem is not None:
        raise InvalidArgument(problem[0], entry=META_PROVENANCE, found=problem[1], rule="W-PRV-1")
    return {**PROVENANCE_DEFAULTS, **fields}
