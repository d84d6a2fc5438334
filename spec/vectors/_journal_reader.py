"""A strict reader of journals for the self-check: what comes back, and why reading stops."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import cast

from _decode import (
    MAX_ZSTD_RATIO,
    BrokenRuleError,
    parse_filters,
    zstd_frames,
)
from _decode import open_file as open_container
from _encode import Container, Entry, encode
from _episode_draft import Draft, i32, i64
from _episode_json import (
    ITEM_SIZES,
    LARGEST,
    Row,
    check,
    check_episode,
    is_integer,
    parse_channels,
    parse_label,
    timebase_of,
)
from _episode_sets import load
from _filters import MAX_FILTERED_FRAME, Filter, backward
from _journal import (
    END,
    HEAD_CHECKSUM,
    HEAD_FIELDS,
    HEAD_SIZE,
    MAGIC,
    NOTE,
    RAW,
    RUN,
    START,
    ZSTD,
)
from _layout import unpack
from _limits import LIMITS
from _metadata import JsonObject, parse_object
from _primitives import crc32c
from _zstd_library import decode_frame

FLAT = ("reward", "reward/exact", "done", "terminated", "truncated", "time/timestamps_ns")
NO_ROW_NEEDED = ("done", "terminated", "truncated")
CHECKSUM_BIT = 0x04


@dataclass(frozen=True)
class Stop:
    """Why a frame does not count."""

    rule: str
    error: str


@dataclass
class Recorded:
    """One channel: its row, and what its runs hold."""

    row: Row
    data: bytes = b""
    entries: int = 0
    codec: int | None = None
    filters: tuple[Filter, ...] = ()
    offsets: Recorded | None = None
    """Of a ragged or text channel: the channel after it."""
    owner: Recorded | None = None
    filled: int = 0
    """Of offsets: the channel before them."""

    @property
    def is_left_out(self) -> bool:
        """Whether its recorder died before it had filled the steps before it (J-3)."""
        return (self.owner or self).count < (self.owner or self).filled

    @property
    def count(self) -> int:
        """Entries; the runs of a ragged channel count items."""
        return self.entries if self.offsets is None else max(0, self.offsets.entries - 1)

    def positions(self, count: int) -> list[int]:
        """The offsets around the first entries of a ragged channel."""
        assert self.offsets is not None
        values = memoryview(self.offsets.data).cast("q").tolist()
        return values[: count + 1] or [0]

    @property
    def entry_size(self) -> int:
        return prod(self.row.shape) * ITEM_SIZES[self.row.dtype]

    @property
    def follows_steps(self) -> bool:
        block = self.row.block
        return (
            self.owner is None
            and "time_block" not in self.row.fields
            and (block in FLAT or not block.startswith("time/"))
        )


@dataclass
class Journal:
    """What a journal says, up to where it follows the rules."""

    position: int = 0
    frames: int = 0
    stop: Stop | None = None
    episode: JsonObject | None = None
    channels: list[Recorded] = field(default_factory=list)
    labels: dict[str, JsonObject] = field(default_factory=dict)
    metadata: JsonObject = field(default_factory=dict)
    dropped: JsonObject = field(default_factory=dict)
    length: int | None = None
    ended: bool = False
    chunk: JsonObject | None = None
    continues: bool = False

    # --- reading (J-2)

    def take(self, data: bytes) -> None:
        try:
            while self.position < len(data):
                head, stored = _whole_frame(data, self.position, self.frames)
                self._place(head)
                self._take_content(head, stored)
                self.position += HEAD_SIZE + len(stored)
                self.frames += 1
        except BrokenRuleError as error:
            self.stop = Stop(str(error).split(": ")[1], error.code)

    def _place(self, head: dict[str, int]) -> None:
        is_start = head["kind"] == START
        check(is_start or self.frames > 0, "bad_profile", "J-ORD-1")
        check(not is_start or self.frames == 0, "bad_profile", "J-ORD-2")
        check(not self.ended, "trailing_data", "J-ORD-3")

    def _take_content(self, head: dict[str, int], stored: bytes) -> None:
        if head["kind"] == RUN:
            self._take_run(head, stored)
            return
        try:
            fields = parse_object(stored)
        except BrokenRuleError as error:
            rule = "J-TXT-2" if error.code == "limit_exceeded" else "J-TXT-1"
            raise BrokenRuleError(error.code, f"{rule}: {error}") from error
        if head["kind"] == START:
            self._take_start(fields)
        else:
            self._take_note(fields)
            self.ended = head["kind"] == END

    def _take_start(self, fields: JsonObject) -> None:
        version = fields.get("v")
        check(is_integer(version) and version == 1, "unsupported_version", "J-STA-1")
        episode = fields.get("episode")
        check(isinstance(episode, dict), "bad_metadata", "J-STA-2", "no object")
        episode = cast("JsonObject", episode)
        try:
            check_episode(episode | {"length_T": 0})
            timebase_of(episode, {})
        except BrokenRuleError as error:
            raise BrokenRuleError("bad_metadata", f"J-STA-2: {error}") from error
        self.channels = self._new_channels(fields.get("channels"))
        _check_chunk(fields.get("chunk"))
        self.chunk = cast("JsonObject | None", fields.get("chunk"))
        self.episode = episode

    def _new_channels(self, listed: object) -> list[Recorded]:
        check(isinstance(listed, list), "bad_metadata", "J-CHN-1", "no list")
        known = {channel.row.block for channel in self.channels}
        added: list[Recorded] = []
        for fields in cast("list[object]", listed):
            try:
                (row,) = parse_channels({"channels": [fields]}).values()
            except BrokenRuleError as error:
                raise BrokenRuleError("bad_metadata", f"J-CHN-1: {error}") from error
            check(row.block not in known, "bad_metadata", "J-CHN-2", row.block)
            known.add(row.block)
            channel = Recorded(row)
            _pair(added[-1] if added else None, channel)
            check(_is_recordable(channel), "bad_metadata", "J-CHN-3", row.block)
            added.append(channel)
        _pair(added[-1] if added else None, None)
        return added

    def _take_run(self, head: dict[str, int], stored: bytes) -> None:
        check(head["channel"] < len(self.channels), "bad_header", "J-RUN-1")
        channel = self.channels[head["channel"]]
        check(channel.codec in (None, head["codec"]), "bad_header", "J-RUN-2")
        size = head["entries"] * channel.entry_size
        fine = head["entries"] > 0 and head["content_size"] == size
        check(fine, "size_mismatch", "J-RUN-3")
        is_limited = bool(channel.filters) or channel.row.layout == "text"
        check(not is_limited or size <= MAX_FILTERED_FRAME, "size_mismatch", "J-RUN-3")
        content = stored if head["codec"] == RAW else _decoded(head, stored, channel.filters)
        if channel.owner is not None:
            _check_offsets(channel, channel.owner, head, content)
        channel.codec = head["codec"]
        channel.data += content
        channel.entries += head["entries"]

    def _take_note(self, fields: JsonObject) -> None:
        def fine(condition: bool, what: str) -> None:
            check(condition, "bad_metadata", "J-NOT-1", what)

        metadata, dropped = fields.get("metadata", {}), fields.get("dropped", {})
        fine(isinstance(metadata, dict) and isinstance(dropped, dict), "metadata, dropped")
        length = fields.get("length_T", self.length)
        fine(length is None or (is_integer(length) and cast("int", length) >= 0), "length_T")
        fine(isinstance(fields.get("continues", False), bool), "continues")
        filters = fields.get("filters", {})
        fine(isinstance(filters, dict), "filters")
        labels = dict(self.labels)
        if "interval" in fields:
            label = fields.get("label")
            fine(isinstance(label, str) and label != "", "label")
            unit = fields.get("unit", "steps")
            lane = self.labels.get(cast("str", label), {"intervals": [], "unit": unit})
            fine(lane["unit"] == unit, "two units")
            rows = [*cast("list[object]", lane["intervals"]), fields["interval"]]
            _check_label({"intervals": rows, "unit": unit})
            labels[cast("str", label)] = {"intervals": rows, "unit": unit}
        filled = fields.get("filled", 0)
        fine(is_integer(filled) and cast("int", filled) >= 0, "filled")
        added = self._new_channels(fields["channels"]) if "channels" in fields else []
        for channel in added:
            channel.filled = cast("int", filled)
        filtered = _new_filters([*self.channels, *added], cast("JsonObject", filters))
        # From here on nothing can fail: a note that is refused leaves nothing behind.
        self.channels += added
        for channel, found in filtered:
            channel.filters = found
            channel.codec = ZSTD
        self.labels = labels
        self.continues = bool(fields.get("continues", False))
        self.length = cast("int | None", length)
        self.metadata |= cast("JsonObject", metadata)
        self.dropped |= cast("JsonObject", dropped)

    # --- as an episode (J-3, J-6, J-8)

    @property
    def is_chunk(self) -> bool:
        return self.chunk is not None or self.continues

    @property
    def first_step(self) -> int:
        return cast("int", (self.chunk or {}).get("first_step", 0))

    def _number(self, episode: JsonObject, steps: int) -> None:
        first = self.first_step
        episode["chunk_index"] = (self.chunk or {}).get("index", 0)
        episode["timestep_range"] = [first, max(first, first + steps - 1)]
        if not any(channel.row.block == "time/timestamps_ns" for channel in self.channels):
            timebase = cast("JsonObject", episode.get("timebase") or {})
            later = round(first * 10**9 / cast("float", timebase.get("tick_hz", 30)))
            epoch = cast("int", timebase.get("epoch_ns", 0)) + later
            episode["timebase"] = timebase | {"epoch_ns": epoch}

    def _own(self, lane: JsonObject, steps: int) -> JsonObject:
        """Intervals as this part of the recording counts them."""
        if lane["unit"] != "steps" or not self.is_chunk:
            return lane
        own = []
        for interval in cast("list[JsonObject]", lane["intervals"]):
            start = cast("int", interval["start"]) - self.first_step
            end = cast("int", interval["end"]) - self.first_step
            if self.continues and start >= steps:
                continue
            end = min(end, steps) if self.continues else end
            own.append(interval | {"end": end, "start": start})
        return lane | {"intervals": own}

    @property
    def _counted(self) -> list[Recorded]:
        return [channel for channel in self.channels if not channel.is_left_out]

    @property
    def steps(self) -> int:
        counts = [channel.count for channel in self._counted if channel.follows_steps]
        shortest = min(counts, default=0)
        return shortest if self.length is None else min(shortest, self.length)

    def kept(self) -> dict[str, int]:
        kept = {c.row.block: c.count for c in self._counted if c.owner is None}
        for channel in self._counted:
            block = channel.row.block
            if channel.follows_steps:
                one_more = self.length is not None and block.startswith("signal/")
                kept[block] = min(kept[block], self.steps + one_more)
        for channel in self._counted:
            clock = channel.row.text("time_block")
            if clock is not None:
                both = min(kept[channel.row.block], kept[clock])
                kept[channel.row.block] = kept[clock] = both
        return kept

    def cut(self) -> dict[str, int]:
        kept = self.kept()
        beyond = {}
        for channel in self._counted:
            if channel.owner is None:
                beyond[channel.row.block] = channel.count - kept[channel.row.block]
            if channel.offsets is not None:
                has_more = channel.entries > channel.positions(channel.count)[-1]
                beyond[channel.row.block] += has_more
        return {block: count for block, count in beyond.items() if count}

    def describe(self) -> JsonObject | None:
        """The episode as the JSON of a vector has it, None where nothing can be read (J-1)."""
        if self.episode is None:
            return None
        steps, kept = self.steps, self.kept()
        episode = self.episode | {"length_T": steps}
        told = cast("JsonObject", episode.get("metadata") or {}) | self.metadata
        if self.dropped:
            told["dropped"] = self.dropped
        episode["metadata"] = told
        if self.is_chunk:
            self._number(episode, steps)
        clocks = {channel.row.text("time_block") for channel in self._counted}
        draft = Draft(steps, episode=episode, ticks=False)
        if self.first_step:
            draft.add("time/ticks", i32(*range(self.first_step, self.first_step + steps)))
        for channel in self._counted:
            if channel.owner is not None:
                continue
            row, count = channel.row, kept[channel.row.block]
            items = count
            if channel.offsets is not None:
                positions = channel.positions(count)
                items = positions[-1]
                draft.blocks.append(Entry(channel.offsets.row.block, i64(*positions)))
            data = channel.data[: items * channel.entry_size]
            if row.block == "time/timestamps_ns":
                timebase = cast("JsonObject", episode.get("timebase") or {})
                episode["timebase"] = timebase | {"type": "timestamps_ns"}
            if row.block.startswith("time/"):
                if row.block in FLAT or row.block in clocks:
                    draft.add(row.block, data)
                continue
            draft.blocks.append(Entry(row.block, data))
            if row.block not in NO_ROW_NEEDED:
                draft.rows.append(row.fields | {"length": count})
        for label, lane in self.labels.items():
            draft.json(f"label/{label}", self._own(lane, steps))
        return load({"ep.wshard": draft.data()}, "ep.wshard", strict=True).describe()


def _is_recordable(channel: Recorded) -> bool:
    row = channel.row
    lane = row.block.partition("/")[0]
    is_placed = row.block in FLAT or row.block.startswith("time/")
    if lane in ("signal", "action"):
        is_placed = row.block == f"{lane}/{row.id}"
    is_simple = not row.fields.keys() & {"length", "start_ns"}
    if channel.owner is not None:
        is_placed = row.block == f"offsets/{channel.owner.row.block}"
        is_simple = is_simple and (row.dtype, row.shape) == ("i64", ())
        is_simple = is_simple and "time_block" not in row.fields
    if row.layout == "dense":
        is_simple = is_simple and "offsets_block" not in row.fields
    else:
        is_simple = is_simple and lane in ("signal", "action")
        is_simple = is_simple and row.text("offsets_block") == f"offsets/{row.block}"
        is_simple = is_simple and (row.layout == "ragged" or (row.dtype, row.shape) == ("u8", ()))
    return is_placed and is_simple and 0 < channel.entry_size < 2**32


def _pair(before: Recorded | None, channel: Recorded | None) -> None:
    """Binds the row after a ragged one to it (J-CHN-3)."""
    if before is None or before.row.layout not in ("ragged", "text"):
        return
    check(channel is not None, "bad_metadata", "J-CHN-3", "no offsets")
    channel = cast("Recorded", channel)
    before.offsets, channel.owner = channel, before


def _check_offsets(
    channel: Recorded, owner: Recorded, head: dict[str, int], content: bytes
) -> None:
    """J-RAG, of the next run of offsets."""
    check(head["codec"] == RAW, "bad_header", "J-RAG-1")
    before = memoryview(channel.data).cast("q").tolist()[-1:]
    values = before + memoryview(content).cast("q").tolist()
    check(bool(before) or values[0] == 0, "bad_value", "J-RAG-2", "first")
    check(values == sorted(values), "bad_value", "J-RAG-2", "falls")
    check(values[-1] <= owner.entries, "bad_value", "J-RAG-3")
    if owner.row.layout == "text":
        try:
            for start, end in pairwise(values):
                owner.data[start:end].decode()
        except UnicodeDecodeError as error:
            raise BrokenRuleError("bad_value", f"J-RAG-4: {error}") from error


def _check_chunk(chunk: object) -> None:
    if chunk is None:
        return
    check(isinstance(chunk, dict), "bad_metadata", "J-STA-3", "no object")
    for name, least in (("index", 1), ("first_step", 0)):
        value = cast("JsonObject", chunk).get(name)
        fine = is_integer(value) and least <= cast("int", value) <= LARGEST
        check(fine, "bad_metadata", "J-STA-3", name)


def _new_filters(
    channels: list[Recorded], told: JsonObject
) -> list[tuple[Recorded, tuple[Filter, ...]]]:
    """What a note says of filters (J-FLT)."""
    by_block = {channel.row.block: channel for channel in channels}
    found = []
    for block, listed in told.items():
        channel = by_block.get(block)
        is_new = channel is not None and not channel.entries and not channel.filters
        check(is_new, "bad_metadata", "J-FLT-1", block)
        channel = cast("Recorded", channel)
        try:
            filters = parse_filters(listed)
        except BrokenRuleError as error:
            raise BrokenRuleError(error.code, f"J-FLT-2: {error}") from error
        size = channel.entry_size
        fine = size % filters[0].unit == 0 and size <= MAX_FILTERED_FRAME
        check(fine, "bad_filter", "J-FLT-3", block)
        found.append((channel, filters))
    return found


def _check_label(lane: JsonObject) -> None:
    """The rules of section 7 of wshard.md, asked of a container that holds nothing else."""
    draft = Draft(0).json("label", lane)
    try:
        parse_label(open_container(encode(Container(tuple(draft.blocks)))), "label")
    except BrokenRuleError as error:
        raise BrokenRuleError("bad_metadata", f"J-NOT-1: {error}") from error


def _whole_frame(data: bytes, at: int, number: int) -> tuple[dict[str, int], bytes]:
    """A frame by the rules that concern it alone."""
    check(at + HEAD_SIZE <= len(data), "truncated", "J-FRM-1")
    head = unpack((*HEAD_FIELDS, HEAD_CHECKSUM), data, at)
    check(head["magic"] == MAGIC, "bad_magic", "J-FRM-2")
    computed = crc32c(data[at : at + HEAD_SIZE - 4])
    check(head["head_crc32c"] == computed, "checksum_mismatch", "J-FRM-3")
    check(head["kind"] in (START, RUN, NOTE, END), "bad_header", "J-FRM-4")
    is_known = head["codec"] == RAW or (head["codec"] == ZSTD and head["kind"] == RUN)
    check(is_known, "unknown_codec", "J-FRM-5")
    check(head["sequence"] == number, "bad_header", "J-FRM-6")
    stored_size, content_size = head["stored_size"], head["content_size"]
    if head["codec"] == RAW:
        check(stored_size == content_size, "size_mismatch", "J-FRM-7")
        same = head["stored_crc32c"] == head["content_crc32c"]
        check(same, "checksum_mismatch", "J-FRM-8")
    else:
        largest = max(stored_size, content_size)
        check(largest <= LIMITS["max_decompressed_bytes"], "limit_exceeded", "J-FRM-9")
        check(content_size <= MAX_ZSTD_RATIO * stored_size, "size_mismatch", "J-FRM-10")
    stored = data[at + HEAD_SIZE :][:stored_size]
    check(len(stored) == stored_size, "truncated", "J-FRM-11")
    check(crc32c(stored) == head["stored_crc32c"], "checksum_mismatch", "J-FRM-12")
    return head, stored


def _decoded(head: dict[str, int], stored: bytes, filters: tuple[Filter, ...]) -> bytes:
    """The content of a compressed run (J-RUN-4)."""
    rule, size = "J-RUN-4", head["content_size"]
    try:
        frames = zstd_frames(stored)
    except BrokenRuleError as error:
        raise BrokenRuleError(error.code, f"{rule}: {error}") from error
    check(len(frames) == 1 and frames[0].data == stored, "bad_compression", rule, "one frame")
    (whole,) = frames
    check(whole.dictionary_id == 0, "bad_compression", rule, "dictionary")
    check(whole.window <= LIMITS["max_window_bytes"], "limit_exceeded", rule, "window")
    check(whole.content_size == size, "size_mismatch", rule, "declared size")
    check(bool(stored[4] & CHECKSUM_BIT), "bad_compression", rule, "no checksum")
    try:
        content = decode_frame(stored, size + 1, LIMITS["max_window_bytes"])
    except ValueError as error:
        code = "checksum_mismatch" if "checksum" in str(error) else "bad_compression"
        raise BrokenRuleError(code, f"{rule}: {error}") from error
    check(len(content) == size, "size_mismatch", rule, "decoded size")
    content = backward(filters, content)
    check(crc32c(content) == head["content_crc32c"], "checksum_mismatch", rule, "content")
    return content


def read_journal(data: bytes) -> Journal:
    journal = Journal()
    journal.take(data)
    return journal
