"""The descriptions of an episode for the self-check: which fields must have which types."""

from __future__ import annotations

import math
import re
import sys
from dataclasses import dataclass
from typing import cast

from _decode import BrokenRuleError, File, read_entry, require
from _metadata import JsonObject, parse_object

ITEM_SIZES = {
    "f64": 8,
    "f32": 4,
    "f16": 2,
    "bf16": 2,
    "i64": 8,
    "i32": 4,
    "i16": 2,
    "i8": 1,
    "u64": 8,
    "u32": 4,
    "u16": 2,
    "u8": 1,
    "bool": 1,
}
LONG_NAMES = {
    "float64": "f64",
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint64": "u64",
    "uint32": "u32",
    "uint16": "u16",
    "uint8": "u8",
}
LARGEST = 2**63 - 1
MOST_DIMENSIONS = 31
DEFAULT_RATE = 30.0
EXACT_IN_A_FLOAT = 2**53 - 1

STRING_FIELDS = (
    "signal_block",
    "dtype",
    "layout",
    "offsets_block",
    "frames_block",
    "extradata",
    "time_block",
    "modality",
    "unit",
    "semantics",
    "description",
    "content_type",
    "channel",
    "model",
    "type",
)
PROVENANCE_KEYS = {
    "end_state",
    "epoch",
    "first_seq",
    "last_seq",
    "prev_identity",
    "run_id",
    "source",
    "start_state",
    "v",
}
_HEX_64 = re.compile("[0-9a-f]{64}")


def is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_int64(value: object) -> bool:
    return is_integer(value) and -LARGEST <= cast("int", value) <= LARGEST


def is_number(value: object) -> bool:
    return isinstance(value, float) or (
        is_integer(value) and abs(cast("int", value)) <= sys.float_info.max
    )


def is_hex_64(value: object) -> bool:
    return isinstance(value, str) and _HEX_64.fullmatch(value) is not None


def check(condition: bool, code: str, rule: str, what: str = "") -> None:
    require(condition, code, f"{rule}: {what}")


def parse_entry(file: File, name: str, rule: str = "W-JSN-1") -> JsonObject:
    """An entry that must be a JSON object."""
    content = read_entry(file, name)
    try:
        return parse_object(content)
    except BrokenRuleError as error:
        if error.code == "limit_exceeded":
            raise
        raise BrokenRuleError("bad_metadata", f"{rule}: {name}: {error}") from error


def parse_if_there(file: File, name: str) -> JsonObject:
    return parse_entry(file, name) if name in file.by_name else {}


@dataclass(frozen=True)
class Timebase:
    """The clock of the steps."""

    type: str
    tick_hz: float | None
    """None if the writer did not know it (W-TIM-5)."""
    epoch_ns: int


@dataclass(frozen=True)
class Row:
    """A row of meta/channels, checked."""

    id: str
    block: str
    dtype: str
    shape: tuple[int, ...]
    fields: JsonObject

    @property
    def length(self) -> int | None:
        return cast("int | None", self.fields.get("length"))

    @property
    def layout(self) -> str:
        return cast("str", self.fields.get("layout", "dense"))

    def text(self, field: str) -> str | None:
        return cast("str | None", self.fields.get(field))


def _without_nulls(fields: JsonObject) -> JsonObject:
    """null stands for an absent field."""
    return {key: value for key, value in fields.items() if value is not None}


def _check_timebase(value: object) -> JsonObject:
    base = {} if value is None else value
    check(isinstance(base, dict), "bad_metadata", "W-EPI-3", "timebase")
    fields = _without_nulls(cast("JsonObject", base))
    check(isinstance(fields.get("type", ""), str), "bad_metadata", "W-TIM-1", "type")
    check(is_number(fields.get("tick_hz", 0)), "bad_metadata", "W-TIM-1", "tick_hz")
    for name in ("dt_ns", "epoch_ns"):
        check(is_int64(fields.get(name, 0)), "bad_metadata", "W-TIM-1", name)
    return fields


def timebase_of(episode: JsonObject, wshard: JsonObject) -> Timebase:
    bases = [_check_timebase(meta.get("timebase")) for meta in (episode, wshard)]
    rates: list[float] = []
    for base in bases:
        value = cast("float", base.get("tick_hz", 0))
        rates += [float(value)] if value > 0 else []
    for base in bases:
        step = cast("int", base.get("dt_ns", 0))
        rates += [1e9 / step] if step > 0 else []
    types = [t for b in bases if (t := b.get("type")) in ("ticks", "timestamps_ns")]
    epochs = [cast("int", base["epoch_ns"]) for base in bases if "epoch_ns" in base]
    own = episode.get("timebase")
    is_unknown = isinstance(own, dict) and own.get("tick_hz", 0) is None
    return Timebase(
        type=(types or ["ticks"])[0],
        tick_hz=rates[0] if rates else None if is_unknown else DEFAULT_RATE,
        epoch_ns=(epochs or [0])[0],
    )


def _check_chunk_fields(episode: JsonObject) -> None:
    for name in ("chunk_index", "total_chunks"):
        value = episode.get(name)
        fine = value is None or (is_integer(value) and cast("int", value) >= 0)
        check(fine, "bad_metadata", "W-EPI-4", name)
    index, total = episode.get("chunk_index"), episode.get("total_chunks")
    if index is not None and total:
        check(cast("int", index) < cast("int", total), "bad_metadata", "W-EPI-4", "index")
    steps = episode.get("timestep_range")
    if steps is not None:
        check(is_pair(steps), "bad_metadata", "W-EPI-4", "timestep_range")
        first, last = cast("list[int]", steps)
        check(first <= last, "bad_metadata", "W-EPI-4", "timestep_range falls")


def is_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(is_integer, value))


def check_episode(episode: JsonObject) -> None:
    found = episode.get("episode_id", episode.get("id"))
    check(isinstance(found, str), "bad_metadata", "W-EPI-1", "episode_id")
    check(isinstance(episode.get("env_id", ""), str), "bad_metadata", "W-EPI-1", "env_id")
    length = episode.get("length_T", episode.get("length_t"))
    check(is_integer(length), "bad_metadata", "W-EPI-2")
    check(0 <= cast("int", length) <= LARGEST, "bad_metadata", "W-EPI-2")
    metadata = episode.get("metadata")
    check(metadata is None or isinstance(metadata, dict), "bad_metadata", "W-EPI-3", "metadata")
    _check_chunk_fields(episode)


def _parse_shape(value: object) -> tuple[int, ...]:
    shape = [] if value is None else value
    if not isinstance(shape, list) or not all(is_integer(size) and size >= 0 for size in shape):
        raise BrokenRuleError("bad_metadata", "W-CHN-2: shape")
    fine = len(shape) <= MOST_DIMENSIONS and all(size <= LARGEST for size in shape)
    fine = fine and (0 not in shape or math.prod(filter(None, shape)) < 1 << 31)
    check(fine, "bad_metadata", "W-CHN-4")
    return tuple(shape)


def parse_dtype(value: object) -> str | None:
    name = value.lower() if isinstance(value, str) else ""
    name = LONG_NAMES.get(name, name)
    return name if name in ITEM_SIZES else None


def _parse_row(value: object, block: str | None) -> Row:
    check(isinstance(value, dict), "bad_metadata", "W-CHN-1", "a row")
    dtype = parse_dtype(cast("JsonObject", value).get("dtype"))
    identifier = cast("JsonObject", value).get("id")
    fields = _without_nulls(cast("JsonObject", value))
    for name in STRING_FIELDS:
        check(isinstance(fields.get(name, ""), str), "bad_metadata", "W-CHN-2", name)
    length, window, rate = (fields.get(n, 1) for n in ("length", "window", "sampling_rate_hz"))
    fine = is_integer(length) and cast("int", length) >= 0
    check(fine, "bad_metadata", "W-CHN-2", "length")
    for name, count in (("window", window), ("horizon", fields.get("horizon", 1))):
        fine = is_integer(count) and cast("int", count) > 0
        check(fine, "bad_metadata", "W-CHN-2", name)
    check(is_int64(fields.get("start_ns", 0)), "bad_metadata", "W-CHN-2", "start_ns")
    fine = is_number(rate) and cast("float", rate) > 0
    check(fine, "bad_metadata", "W-CHN-2", "sampling_rate_hz")
    check(isinstance(fields.get("lossy", {}), dict), "bad_metadata", "W-CHN-2", "lossy")
    if block is None:
        if not isinstance(identifier, str) or not identifier:
            raise BrokenRuleError("bad_metadata", "W-CHN-2: id")
        block = cast("str", fields.get("signal_block", f"signal/{identifier}"))
    else:
        lane, _, rest = block.partition("/")
        identifier = rest if lane in ("signal", "action") else block
    if dtype is None:
        raise BrokenRuleError("bad_metadata", "W-CHN-3: dtype")
    shape = _parse_shape(fields.get("shape"))
    if "horizon" in fields:
        is_dense = fields.get("layout", "dense") == "dense"
        check(is_dense and shape[:1] == (fields["horizon"],), "bad_metadata", "W-CHN-8")
    return Row(identifier, block, dtype, shape, fields)


def parse_channels(channels: JsonObject) -> dict[str, Row]:
    """The rows of meta/channels by block."""
    if "channels" in channels:
        listed = channels["channels"]
        check(isinstance(listed, list), "bad_metadata", "W-CHN-1", "channels")
        rows = [_parse_row(value, None) for value in cast("list[object]", listed)]
    else:
        rows = [_parse_row(value, block) for block, value in channels.items()]
    by_block = {row.block: row for row in rows}
    check(len(by_block) == len(rows), "bad_metadata", "W-CHN-5")
    return by_block


def hints(meta: JsonObject, key: str, name_field: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Rows of `omen_channels` or `action_spaces`: dtype and shape by block."""
    found = {}
    for row in cast("list[JsonObject]", meta.get(key, [])):
        dtype = parse_dtype(row["dtype"])
        if dtype is not None:
            found[cast("str", row[name_field])] = dtype, _parse_shape(row.get("shape"))
    return found


def check_provenance(provenance: JsonObject) -> None:
    def fine(condition: bool, what: str) -> None:
        check(condition, "bad_metadata", "W-PRV-1", what)

    fine(set(provenance) == PROVENANCE_KEYS, "keys")
    for name in ("end_state", "start_state", "prev_identity"):
        fine(provenance[name] == "" or is_hex_64(provenance[name]), name)
    source = provenance["source"]
    fine(isinstance(source, dict), "source")
    fine(all(isinstance(v, str) for v in cast("JsonObject", source).values()), "source")
    for name in ("epoch", "first_seq", "last_seq"):
        value = provenance[name]
        fine(is_integer(value) and abs(cast("int", value)) <= EXACT_IN_A_FLOAT, name)
    fine(isinstance(provenance["run_id"], str), "run_id")
    fine(is_integer(provenance["v"]) and provenance["v"] == 1, "v")


def parse_label(file: File, name: str) -> JsonObject:
    """A label block, as the JSON of a vector describes it."""
    return check_label(parse_entry(file, name, "W-LAB-1"))


def check_label(label: JsonObject) -> JsonObject:
    """The fields of a label, as the JSON of a vector describes them."""
    unit = label.get("unit", "steps")
    check(unit in ("steps", "ns"), "bad_metadata", "W-LAB-2")
    rows = label.get("intervals")
    check(isinstance(rows, list), "bad_metadata", "W-LAB-1", "intervals")
    intervals = []
    for row in cast("list[object]", rows):
        check(isinstance(row, dict), "bad_metadata", "W-LAB-1", "an interval")
        fields = cast("JsonObject", row)
        start, end = fields.get("start"), fields.get("end")
        check(is_int64(start) and is_int64(end), "bad_metadata", "W-LAB-1", "start, end")
        check(cast("int", start) <= cast("int", end), "bad_metadata", "W-LAB-1", "start > end")
        check(isinstance(fields.get("text"), str), "bad_metadata", "W-LAB-1", "text")
        check(isinstance(fields.get("source", ""), str), "bad_metadata", "W-LAB-1", "source")
        confidence = fields.get("confidence")
        fine = confidence is None or is_number(confidence)
        check(fine, "bad_metadata", "W-LAB-1", "confidence")
        intervals.append(
            {
                "confidence": confidence,
                "end": str(end),
                "source": fields.get("source"),
                "start": str(start),
                "text": fields["text"],
            }
        )
    return {"intervals": intervals, "unit": unit}
