"""The three descriptions of an episode, parsed and checked (spec/wshard.md, sections 3 and 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from shard_format.errors import BadMetadata
from wshard.dtypes import BY_NAME, DType
from wshard.timebase import DEFAULT_RATE_HZ, Timebase, TimebaseType

if TYPE_CHECKING:
    from collections.abc import Mapping

LARGEST: Final = (1 << 63) - 1
_MOST_DIMENSIONS = 31
_TIMEBASE_TYPES = {kind.value: kind for kind in TimebaseType}
_NUMBER = (int, float)


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


# The same without names: opening many episodes makes many of them.
FactFields: TypeAlias = tuple[
    str,
    str,
    int,
    Timebase,
    dict[str, Any],
    int | None,
    int | None,
    tuple[int, int] | None,
]


class Row(NamedTuple):
    """One row of `meta/channels`."""

    id: str
    block: str
    dtype: DType
    shape: tuple[int, ...]
    fields: dict[str, Any]
    """The whole row, as stored."""


def wrong(what: str, found: object, expected: str, rule: str, entry: str) -> BadMetadata:
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
    entry = "meta/episode"
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
    entry = "meta/episode"
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
    if "timebase" not in wshard:
        base = episode.get("timebase")
        # What our writers store for a fixed rate: most episodes need no further look.
        if type(base) is dict and len(base) == 3 and base.get("type") == "ticks":
            rate: Any = base.get("tick_hz")
            if type(rate) in _NUMBER and rate > 0 and type(base.get("dt_ns")) is int:
                return Timebase(_TICKS, float(rate), 0)
    kind: Any = TimebaseType.TICKS
    epoch = 0
    rates: dict[tuple[str, str], float] = {}
    # Read in reverse order of rank, so that meta/episode has the last word.
    for entry, fields in (("meta/wshard", wshard), ("meta/episode", episode)):
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
            if type(rate) not in _NUMBER:
                raise wrong("'timebase.tick_hz'", rate, "a number", "W-TIM-1", entry)
            if rate > 0:
                rates[entry, "tick_hz"] = rate
        period = base.get("dt_ns")
        if period is not None:
            if type(period) is not int:
                raise wrong("'timebase.dt_ns'", period, "an integer", "W-TIM-1", entry)
            if period > 0:
                rates[entry, "dt_ns"] = 1e9 / period
    for source in _RATE_SOURCES:
        if source in rates:
            return Timebase(kind, float(rates[source]), epoch)
    return Timebase(kind, DEFAULT_RATE_HZ, epoch)


_TICKS = TimebaseType.TICKS
_RATE_SOURCES = (
    ("meta/episode", "tick_hz"),
    ("meta/wshard", "tick_hz"),
    ("meta/episode", "dt_ns"),
    ("meta/wshard", "dt_ns"),
)

# What optional fields of a row must be.
_STRINGS = frozenset(
    (
        *("modality", "unit", "semantics", "description", "content_type", "layout"),
        *("time_block", "offsets_block", "channel", "model", "type"),
    )
)
_BASIC = frozenset(("id", "dtype", "shape", "signal_block", "modality"))


def parse_rows(fields: Mapping[str, Any]) -> list[Row]:
    """The rows of `meta/channels`, in its order (W-CHN)."""
    listed = fields.get("channels")
    if listed is None and "channels" not in fields:
        return [_legacy_row(name, row) for name, row in fields.items() if name != "modality_groups"]
    if not isinstance(listed, list):
        raise wrong("'channels'", listed, "a list", "W-CHN-1", "meta/channels")
    rows = [parse_row(fields, number) for number, fields in enumerate(listed)]
    if len({row.block for row in rows}) != len(rows):
        seen: set[str] = set()
        for row in rows:
            if row.block in seen:
                raise BadMetadata(
                    f"two rows describe the block {row.block!r}",
                    entry="meta/channels",
                    rule="W-CHN-5",
                )
            seen.add(row.block)
    return rows


def parse_row(fields: object, number: int, entry: str = "meta/channels") -> Row:
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
    row = Row(name, block, *_dtype_and_shape(fields, name, entry), fields)
    if not fields.keys() <= _BASIC or "modality" in fields:
        _check_optional(row, entry)
    return row


def _legacy_row(name: str, fields: object) -> Row:
    entry = "meta/channels"
    if not isinstance(fields, dict):
        raise wrong(f"the row {name!r}", fields, "an object", "W-CHN-1", entry)
    lane, slash, rest = name.partition("/")
    row_id = rest if slash and lane in ("signal", "action") else name
    if not row_id:
        raise wrong("a name", name, "a block with a name of its own", "W-CHN-2", entry)
    row = Row(row_id, name, *_dtype_and_shape(fields, name, entry), fields)
    _check_optional(row, entry)
    return row


def _dtype_and_shape(
    fields: Mapping[str, Any], name: str, entry: str
) -> tuple[DType, tuple[int, ...]]:
    stored = fields.get("dtype")
    dtype = BY_NAME.get(stored) if isinstance(stored, str) else None
    if dtype is None:
        dtype = BY_NAME.get(stored.lower()) if isinstance(stored, str) else None
        if dtype is None:
            raise wrong(f"'dtype' of {name!r}", stored, "a known data type", "W-CHN-3", entry)
    shape = fields.get("shape")
    if shape is None:
        return dtype, ()
    if not isinstance(shape, list):
        raise wrong(f"'shape' of {name!r}", shape, "a list of integers", "W-CHN-2", entry)
    for size in shape:
        if type(size) is not int or size < 0:
            raise wrong(f"'shape' of {name!r}", shape, "a list of integers >= 0", "W-CHN-2", entry)
        if size > LARGEST:
            raise wrong(
                f"'shape' of {name!r}", shape, "of dimensions below 2**63", "W-CHN-4", entry
            )
    if len(shape) > _MOST_DIMENSIONS:
        raise wrong(
            f"'shape' of {name!r}",
            shape,
            f"of at most {_MOST_DIMENSIONS} dimensions",
            "W-CHN-4",
            entry,
        )
    return dtype, tuple(shape)


def _check_optional(row: Row, entry: str) -> None:
    for key, value in row.fields.items():
        if value is None:
            continue
        if key in _STRINGS:
            good, expected = isinstance(value, str), "a string"
        elif key in ("length", "window"):
            good = type(value) is int and (0 if key == "length" else 1) <= value <= LARGEST
            expected = "an integer of 0 or more" if key == "length" else "an integer above 0"
        elif key == "start_ns":
            good, expected = type(value) is int and -LARGEST <= value <= LARGEST, "an integer"
        elif key == "sampling_rate_hz":
            good, expected = type(value) in _NUMBER and value > 0, "a number above 0"
        elif key == "lossy":
            good, expected = isinstance(value, dict), "an object"
        else:
            continue
        if not good:
            raise wrong(f"{key!r} of {row.id!r}", value, expected, "W-CHN-2", entry)


# --- the same, for writing

WSHARD_FIELDS: Final = {
    "endianness": "little",
    "format": "W-SHARD",
    "residual_edges": "pad",
    "version": "0.1",
}


def timebase_fields(timebase: Timebase) -> dict[str, Any]:
    """`timebase` as our writers store it."""
    fields: dict[str, Any] = {
        "dt_ns": timebase.dt_ns,
        "tick_hz": timebase.tick_hz,
        "type": str(timebase.type),
    }
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
