"""What one journal says, as far as it is whole, as an episode (spec/journal.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format import Codec
from shard_format._json import canonical
from shard_format.errors import BadMetadata, ShardError
from shard_format.filters import LARGEST_FRAME, Filters
from wshard.describing import channel_from_row
from wshard.journal import Frame, JournalReader, Kind, Problem, not_begun
from wshard.labels import Interval, Intervals
from wshard.metadata import LARGEST, Row, parse_facts, parse_row
from wshard.names import (
    DONE,
    REWARD,
    REWARD_EXACT,
    TERMINATED,
    TIMESTAMPS,
    TRUNCATED,
    parse_block,
)
from wshard.reader import new_episode
from wshard.recorded_blocks import RecordedBlock, Runs
from wshard.timebase import TimebaseType
from wshard.values import product
from wshard.writer import save_wshard

if TYPE_CHECKING:
    from collections.abc import Callable

    from wshard.channels import Channel
    from wshard.episode import Episode

_TICKS: Final = 1 << 31
"""More than a file can count (W-TIM)."""
_LARGEST_ENTRY: Final = 0xFFFFFFFF
"""Bytes that one run can hold, which has at least one entry (J-CHN-3)."""
_FLAT: Final = {REWARD, REWARD_EXACT, DONE, TERMINATED, TRUNCATED, TIMESTAMPS}


class Journal:
    """All that a journal says, up to where it is whole.

    Owns: the reader.
    """

    def __init__(self, path: str, *, check: bool = True, decode: bool = False) -> None:
        """`check`, `decode`: whether runs must have their checksum, and hold what their head says."""
        self.reader = JournalReader(path)
        self.fields: dict[str, Any] | None = None
        """The `episode` of the start frame; None as long as there is none."""
        self.rows: list[Row] = []
        self.runs: list[Runs] = []
        self.labels: dict[str, Intervals] = {}
        self.metadata: dict[str, Any] = {}
        self.dropped: dict[str, Any] = {}
        self.length: int | None = None
        """The number of steps, once no more will come: an observation may follow the last."""
        self.is_finished = False
        self.index: int | None = None
        """Which chunk of the recording this is; None for the first, which knows it only at its end."""
        self.first_step = 0
        """The number of its first step in the recording (J-8)."""
        self.continues = False
        """Whether the recording goes on in another journal."""
        self._check = check
        self._decode = decode

    def read(self) -> int:
        """Takes in the frames that have appeared since the last time; returns how many.

        Raises:
            ShardError: the start frame is not one.
        """
        count = 0
        for frame in self.reader.frames(check=self._check):
            problem = self._take(frame)
            if problem is None:
                count += 1
            else:
                self.reader.refuse(problem)
        return count

    def _take(self, frame: Frame) -> str | None:
        """What is wrong with a frame beyond its place, None if it counts now."""
        if frame.kind is Kind.START:
            self._read_start(self.reader.fields(frame))
            return None
        if frame.kind is Kind.RUN:
            return self._add_run(frame)
        try:
            self._add_note(self.reader.fields(frame))
        except ShardError as error:
            return error.problem
        self.is_finished = frame.kind is Kind.END
        return None

    def _read_start(self, fields: dict[str, Any]) -> None:
        if not isinstance(fields.get("episode"), dict):
            raise self.bad("the start frame does not describe an episode")
        try:
            self._add_rows(self._parsed_rows(fields.get("channels")))
            parse_facts({**fields["episode"], "length_T": 0}, {})
            self._read_chunk(fields.get("chunk"))
        except ShardError as error:
            raise error.located(path=self.reader.path) from None
        self.fields = fields["episode"]

    def _read_chunk(self, chunk: object) -> None:
        if chunk is None:
            return
        fields = chunk if isinstance(chunk, dict) else {}
        index, first = fields.get("index"), fields.get("first_step")
        is_part = type(index) is int and 1 <= index <= LARGEST
        if not is_part or type(first) is not int or not 0 <= first <= LARGEST:
            raise self.bad("'chunk' does not say which part of a recording this is", "J-STA-3")
        self.index, self.first_step = index, first

    def _parsed_rows(self, listed: object) -> list[Row]:
        if not isinstance(listed, list):
            raise self.bad("'channels' is not a list")
        known = {row.block for row in self.rows}
        rows = []
        for number, fields in enumerate(listed, len(self.rows)):
            row = parse_row(fields, number, "channels")
            if row.block in known or not _is_recordable(row):
                raise self.bad(f"channel {number}, {row.block!r}, cannot be recorded")
            known.add(row.block)
            rows.append(row)
        return rows

    def _add_rows(self, rows: list[Row]) -> None:
        self.rows += rows
        self.runs += [Runs() for _ in rows]

    def _parsed_filters(self, told: dict[str, Any], added: list[Row]) -> dict[int, Filters]:
        """What a note says of filters, by channel (J-FLT-1 to J-FLT-3)."""
        if not told:
            return {}
        rows = [*self.rows, *added]
        numbers = {row.block: number for number, row in enumerate(rows)}
        begun = {
            row.block
            for row, runs in zip(self.rows, self.runs, strict=True)
            if runs.entries or runs.filters is not None
        }
        found = {}
        for block, listed in told.items():
            number = numbers.get(block)
            if number is None or block in begun:
                text = "a note has filters of a channel that is not known, or that has begun"
                raise self.bad(Problem(text, "J-FLT-1", BadMetadata.code))
            try:
                filters = Filters.parse(canonical({"filters": listed}))
                filters.check_frame(_step_bytes(rows[number]))
            except ShardError as error:
                rule = "J-FLT-3" if error.rule == "S-FLT-5" else "J-FLT-2"
                raise self.bad(Problem(error.problem, rule, error.code)) from None
            found[number] = filters
        return found

    def _add_run(self, frame: Frame) -> str | None:
        row = self.rows[frame.channel]
        runs = self.runs[frame.channel]
        size = frame.part.content_size
        if not frame.entries or size != frame.entries * _step_bytes(row):
            return f"a run of {row.block!r} does not hold its entries"
        if runs.filters is not None and size > LARGEST_FRAME:
            return f"a filtered run of {row.block!r} is too large"
        problem = self.reader.check_content(frame.part, runs.filters) if self._decode else None
        if problem is None:
            runs.append(frame)
        return problem

    def _add_note(self, fields: dict[str, Any]) -> None:
        """What a note or the end says; all of it or, with an error, nothing."""
        metadata = fields.get("metadata", {})
        dropped = fields.get("dropped", {})
        length = fields.get("length_T", self.length)
        is_length = length is None or (type(length) is int and length >= 0)
        continues = fields.get("continues", False)
        filters = fields.get("filters", {})
        if (
            not isinstance(metadata, dict)
            or not isinstance(dropped, dict)
            or not isinstance(filters, dict)
            or not is_length
            or type(continues) is not bool
        ):
            raise self.bad("a note has fields of a wrong type")
        label, found = fields.get("label"), None
        if "interval" in fields:
            if not isinstance(label, str) or not label:
                raise self.bad("a note labels nothing")
            unit = fields.get("unit", "steps")
            found = Intervals.from_fields({"intervals": [fields["interval"]], "unit": unit})
            if label in self.labels and self.labels[label].unit != found.unit:
                raise self.bad("the intervals of one label have two units")
        rows = self._parsed_rows(fields["channels"]) if "channels" in fields else []
        filtered = self._parsed_filters(filters, rows)
        # From here on nothing can fail: a note that is refused leaves nothing behind.
        if found is not None:
            self.labels.setdefault(str(label), found[:0]).extend(found)
        self._add_rows(rows)
        for number, each in filtered.items():
            self.runs[number].filters = each
            self.reader.expect(number, Codec.ZSTD)
        self.length = length
        self.continues = continues
        self.metadata.update(metadata)
        self.dropped.update(dropped)

    def bad(self, problem: str, rule: str = "J-2") -> BadMetadata:
        """An error about the frame that was read last."""
        reader = self.reader
        return BadMetadata(
            problem, path=reader.path, offset=reader.position, found=reader.problem, rule=rule
        )

    # --- as an episode

    def steps(self) -> int:
        """J-3: the steps that every channel has."""
        counts = [
            runs.entries
            for row, runs in zip(self.rows, self.runs, strict=True)
            if _follows_steps(row)
        ]
        known = min(counts, default=0)
        return known if self.length is None else min(known, self.length)

    def kept(self, steps: int) -> dict[str, int]:
        """How many entries of each block count (J-3)."""
        lengths = {row.block: runs.entries for row, runs in zip(self.rows, self.runs, strict=True)}
        kept = dict(lengths)
        for row in self.rows:
            if _follows_steps(row):
                one_more = self.length is not None and row.block.startswith("signal/")
                kept[row.block] = min(kept[row.block], steps + one_more)
        for row in self.rows:
            clock = row.fields.get("time_block")
            if clock is not None:
                kept[row.block] = kept[clock] = min(kept[row.block], kept.get(clock, 0))
        return kept

    def cut(self, steps: int) -> dict[str, int]:
        """What each block has beyond the entries that count."""
        kept = self.kept(steps)
        beyond = {
            row.block: runs.entries - kept[row.block]
            for row, runs in zip(self.rows, self.runs, strict=True)
        }
        return {block: count for block, count in beyond.items() if count}

    @property
    def is_chunk(self) -> bool:
        """Whether this is part of a recording in several files."""
        return self.index is not None or self.continues

    def episode(self, first_step: int | None = None) -> Episode:
        """The recording as it is by now, still lazy.

        Args:
            first_step: where its steps are in the whole, if steps before it are lost.
        """
        assert self.fields is not None
        steps = self.steps()
        facts = parse_facts({**self.fields, "length_T": steps}, {})
        episode = new_episode(facts)
        episode.metadata = {**facts.metadata, **self.metadata}
        if self.dropped:
            episode.metadata["dropped"] = dict(self.dropped)
        kept = self.kept(steps)
        blocks = {
            row.block: RecordedBlock(
                self.reader, row.block, runs, kept[row.block] * _step_bytes(row)
            )
            for row, runs in zip(self.rows, self.runs, strict=True)
        }
        for row in self.rows:
            _place(episode, row, blocks, kept[row.block])
        for name, intervals in self.labels.items():
            episode.labels.adopt(name, self._own(intervals, steps))
        if self.is_chunk:
            self._number(episode, self.first_step if first_step is None else first_step)
        return episode

    def _number(self, episode: Episode, first_step: int) -> None:
        """Says which part of the whole an episode is, as cutting the whole would."""
        episode.chunk_index = self.index or 0
        episode.timestep_range = (first_step, max(first_step, first_step + episode.length - 1))
        # What was lost before it leaves a gap in the ticks.
        start = self.first_step
        if not start:
            return
        if start + episode.length <= _TICKS:
            episode.ticks = np.arange(start, start + episode.length)
        if episode._timestamps is None:
            base = episode.timebase
            base.epoch_ns += round(min(start * 1e9 / base.tick_hz, 1e19))

    def _own(self, intervals: Intervals, steps: int) -> Intervals:
        """Intervals as this part of the recording counts; those that go on beyond it are cut."""
        if intervals.unit != "steps" or not self.is_chunk:
            return intervals[:]
        own = Intervals(unit=intervals.unit, extra=intervals.extra)
        for item in intervals:
            start, end = item.start - self.first_step, item.end - self.first_step
            if self.continues:
                if start >= steps:
                    continue  # the next journal has it
                end = min(end, steps)
            own.append(Interval(start, end, item.text, item.source, item.confidence, item.extra))
        return own


def _step_bytes(row: Row) -> int:
    return product(row.shape) * row.dtype.size


def _follows_steps(row: Row) -> bool:
    return "time_block" not in row.fields and (
        row.block in _FLAT or not row.block.startswith("time/")
    )


def _is_recordable(row: Row) -> bool:
    lane = row.block.partition("/")[0]
    is_dense = row.fields.get("layout") in (None, "dense")
    is_simple = not row.fields.keys() & {"length", "start_ns", "offsets_block"}
    is_placed = row.block in _FLAT or (
        row.block.startswith("time/")
        if lane == "time"
        else lane in ("signal", "action") and row.block == f"{lane}/{row.id}"
    )
    return is_dense and is_simple and is_placed and 0 < _step_bytes(row) <= _LARGEST_ENTRY


def _place(episode: Episode, row: Row, blocks: dict[str, RecordedBlock], count: int) -> None:
    block = blocks[row.block]
    if row.block == TIMESTAMPS:
        episode._timestamps = block
        episode.timebase.type = TimebaseType.TIMESTAMPS_NS
        return
    lane = parse_block(row.block).lane
    if lane == "time":
        return
    described = row._replace(fields={**row.fields, "length": count})
    channel: Channel = channel_from_row(described, row.id, block, count, blocks.get)
    if lane == "signal":
        episode.observations.adopt(row.id, channel)
    elif lane == "action":
        episode.actions.adopt(row.id, channel)
    elif row.block in (REWARD, REWARD_EXACT):
        episode._rewards = channel
    elif row.block == TRUNCATED:
        episode._truncations = channel
    else:
        episode._terminations = channel


def read_journal(path: str, otherwise: str, *, check: bool = True, decode: bool = False) -> Journal:
    """A journal, as far as it is whole.

    Args:
        path: its file.
        otherwise: what to say if not even its start is.
        check: as for `Journal`.
        decode: as for `Journal`.
    """
    journal = Journal(path, check=check, decode=decode)
    try:
        journal.read()
        if journal.fields is not None:
            return journal
    except BaseException:
        journal.reader.close()
        raise
    journal.reader.close()
    raise not_begun(journal.reader, otherwise)


def save_recorded(
    path: str, out: str, *, fsync: bool, change: Callable[[Episode], None] | None = None
) -> Episode:
    """Makes the episode of a journal that its own recorder has ended.

    Args:
        path: the journal.
        out: where to save the episode.
        fsync: as for `save_wshard`.
        change: called with the episode before it is saved.

    Returns:
        What was saved; its channels cannot be read any more.
    """
    journal = read_journal(path, "the journal has gone", check=False)
    try:
        if not journal.is_finished:
            raise journal.bad("the journal is not as it was written")
        episode = journal.episode()
        if change is not None:
            change(episode)
        save_wshard(episode, out, "keep", fsync=fsync)
        return episode
    finally:
        journal.reader.close()
