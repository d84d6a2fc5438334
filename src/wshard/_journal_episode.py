"""The episode that a journal holds, up to where it is complete (spec/journal.md, sections 4 to 8)."""

from __future__ import annotations

import codecs
import logging
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import replace
from math import log10, prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format import Codec, Compression
from shard_format.canonical_json import canonical
from shard_format.codecs import SMALLEST_COMPRESSED
from shard_format.errors import (
    DATA_ERRORS,
    BadHeader,
    BadMetadata,
    BadValue,
    ShardError,
    SizeMismatch,
)
from shard_format.filters import LARGEST_FRAME, Filters
from shard_format.registry import DEFAULT_LIMITS
from shard_format.writer import StoredRun
from wshard._blocks import ArrayBlock
from wshard._channel_rows import channel_from_row
from wshard._channels import RaggedChannel
from wshard._episode import Episode
from wshard._files import save_wshard
from wshard._journal import HEAD_SIZE, FrameKind, JournalFrame, JournalReader
from wshard._labels import Intervals
from wshard._lanes import (
    DONE,
    EXTRA,
    REWARD,
    REWARD_EXACT,
    TERMINATED,
    TIMESTAMPS,
    TRUNCATED,
    address_of,
    offsets_block,
)
from wshard._metadata import LARGEST, Row, TimebaseType, parse_facts, parse_row
from wshard._values import DType, read_only
from wshard._video import VIDEO_FIELD, recorded_video

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from shard_format import ShardWriter
    from shard_format.sources import OpenFile
    from wshard._blocks import Block

_log = logging.getLogger("wshard")

_TICKS: Final = 1 << 31
"""More steps than ticks can count (W-TIM)."""
_LARGEST_ENTRY: Final = 0xFFFFFFFF
"""The most bytes of one entry (J-CHN-3)."""
_FLAT: Final = {
    **{lane: (lane,) for lane in (REWARD, TERMINATED, TRUNCATED, TIMESTAMPS)},
    REWARD_EXACT: (REWARD,),
    DONE: (TERMINATED,),
}
"""The addresses of blocks that are not in a lane with names."""
_OFFSET_BYTES: Final = 8
_OFFSETS_PIECE: Final = _OFFSET_BYTES << 17
# What a finished entry has besides its runs: a seek table (S-SEK), and before filtered runs their description.
_SEEK_TABLE_BYTES: Final = (17, 12)
_FILTERS_HEAD_BYTES: Final = 8


class ChannelRuns:
    """The runs of one channel. Kept in arrays: a recording of hours has hundreds of thousands."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.step_bytes = prod(row.shape) * row.dtype.size
        self.codec: Codec | None = None
        """How all of them are stored; None before the first."""
        self.filters: Filters | None = None
        """What was applied to each run before it was compressed."""
        self.offsets: ChannelRuns | None = None
        """Of a ragged or text channel: the runs of its offsets, which are the next channel."""
        self.owner: ChannelRuns | None = None
        """Of offsets: the channel that they belong to."""
        self.filled = 0
        """With how many entries the recorder fills it, for the steps before it was added."""
        self.held = 0
        """Entries in all runs; items of a ragged or text channel."""
        self.last_offset = 0
        self.ends = array("Q")
        """Where the content of each run ends in the content of all."""
        self._offsets = array("Q")
        self._stored_sizes = array("I")
        self._checksums = array("I")

    @property
    def entries(self) -> int:
        """Entries that are complete: a ragged or text channel has one fewer than offsets (J-3)."""
        return self.held if self.offsets is None else max(0, self.offsets.held - 1)

    @property
    def is_left_out(self) -> bool:
        """Whether the recorder died before it had filled the channel (J-3)."""
        channel = self.owner or self
        return channel.entries < channel.filled

    @property
    def follows_steps(self) -> bool:
        """Whether the channel has one entry for each step."""
        block = self.row.block
        return (
            self.owner is None
            and "time_block" not in self.row.fields
            and (block in _FLAT or not block.startswith("time/"))
        )

    def append(self, frame: JournalFrame) -> None:
        """Adds the next run."""
        body = frame.body
        self.codec = frame.codec
        self.held += frame.entries
        self._offsets.append(body.offset)
        self._stored_sizes.append(body.stored_size)
        self._checksums.append(body.content_crc32c)
        self.ends.append(self.start(len(self.ends)) + body.content_size)

    def start(self, number: int) -> int:
        """Where the content of a run starts in the content of all."""
        return self.ends[number - 1] if number else 0

    def run(self, number: int, file: OpenFile) -> StoredRun:
        """One run of the open journal."""
        return StoredRun(
            *(file, self._offsets[number], self._stored_sizes[number]),
            *(self.ends[number] - self.start(number), self._checksums[number]),
        )

    def stored_size(self, count: int) -> int:
        """Bytes of an entry that holds the first `count` runs as they are."""
        size = sum(self._stored_sizes[:count])
        if count > 1:
            size += _SEEK_TABLE_BYTES[0] + _SEEK_TABLE_BYTES[1] * count
        if self.filters is not None:
            size += _FILTERS_HEAD_BYTES + len(self.filters.description)
        return size


class JournalBlock:
    """The runs of one channel in a journal, as one block; the first `nbytes` of their content count."""

    is_compressed = True  # in pieces, so that an array of all is always a copy
    is_cut_cheaply = True

    def __init__(self, reader: JournalReader, runs: ChannelRuns, nbytes: int) -> None:
        self.name = runs.row.block
        self.nbytes = nbytes
        self._reader = reader
        self._runs = runs
        self._codec = Codec.NONE if runs.codec is None else runs.codec
        self._count = bisect_left(runs.ends, nbytes) + 1 if nbytes else 0
        """Runs that hold any of it."""

    @property
    def path(self) -> str | None:
        return self._reader.path

    def can_be_copied(self, identity: bool) -> bool:
        """Whether it can be copied run by run; an identity needs the decoded content."""
        return not identity

    def copy_to(self, writer: ShardWriter, content_type: int) -> None:
        """Copies the runs in constant memory.

        Decodes them only if an entry may not hold them as they are: if the block ends within a run, if they are
        not smaller than their content (S-CMP-10), or larger than readers decompress (S-CMP-2).
        """
        runs = self._runs
        is_whole = runs.start(self._count) == self.nbytes
        codec = self._allowed_codec()
        filters = runs.filters if codec is Codec.ZSTD else None
        if is_whole and codec is self._codec:
            file = self._reader.file
            stored = [runs.run(number, file) for number in range(self._count)]
            writer.write_runs(self.name, stored, codec, content_type=content_type, filters=filters)
            return
        writer.write_entry_stream(
            self.name,
            self.pieces(),
            compression=Compression(codec),
            content_type=content_type,
            frame_bytes=runs.ends[0] if codec is Codec.ZSTD else None,
            filters=filters,
        )

    def _allowed_codec(self) -> Codec:
        if self._codec is Codec.NONE:
            return Codec.NONE
        if self.nbytes > DEFAULT_LIMITS.max_decompressed_bytes:
            _log.warning(
                "%s: storing %s raw, because readers do not decompress more than 1 GiB",
                *(self.path, self.name),
            )
            return Codec.NONE
        # The recorder has chosen zstd; decoding everything is not worth a few percent.
        is_smaller = self._runs.stored_size(self._count) < self.nbytes
        return Codec.ZSTD if self.nbytes >= SMALLEST_COMPRESSED and is_smaller else Codec.NONE

    def array(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        return read_only(self.part(dtype, shape, 0))

    def part(self, dtype: np.dtype[Any], shape: tuple[int, ...], start: int) -> NDArray[Any]:
        out = np.empty(shape, dtype)
        self.read_into(start, out.reshape(-1).view(np.uint8))
        return out

    def read_into(self, start: int, out: NDArray[np.uint8]) -> None:
        number = bisect_right(self._runs.ends, start)
        done = 0
        while done < len(out):
            content = np.frombuffer(self._content(number), np.uint8)
            inside = start + done - self._runs.start(number)
            piece = content[inside:][: len(out) - done]
            out[done : done + len(piece)] = piece
            done += len(piece)
            number += 1

    def _content(self, number: int) -> bytes | memoryview:
        run = self._runs.run(number, self._reader.file)
        return self._reader.content(self._codec, run, self._runs.filters)

    def pieces(self, most_bytes: int = 0) -> Iterator[bytes | memoryview]:
        left = self.nbytes
        for number in range(self._count):
            content = self._content(number)[:left]
            left -= len(content)
            yield content


class Journal:
    """Everything that a journal holds, up to where it is complete.

    `check` compares the checksums of runs, `decode` also what they decode to. `bad_text` is the frame to stop before,
    and why, as `first_bad_text` found it.

    Owns: the reader.
    """

    def __init__(
        self,
        path: str,
        *,
        check: bool = True,
        decode: bool = False,
        bad_text: tuple[int, BadValue] | None = None,
    ) -> None:
        self.reader = JournalReader(path)
        self.fields: dict[str, Any] | None = None
        """The `episode` of the start frame; None before it was read."""
        self.channels: list[ChannelRuns] = []
        self._by_block: dict[str, ChannelRuns] = {}
        self.is_finished = False
        """Whether there is an end frame."""
        self.index: int | None = None
        """The chunk that this is; None for the first, which learns only at its end that others follow."""
        self.first_step = 0
        """The number of its first step in the recording (J-8)."""
        self.continues = False
        """Whether the recording continues in another journal."""
        self._labels: dict[str, Intervals] = {}
        self._metadata: dict[str, Any] = {}
        self._dropped: dict[str, Any] = {}
        self._changes: dict[str, list[Any]] = {}
        """Of encoded frames by block: how many, the largest error, and the sum of the powers of errors."""
        self._length: int | None = None
        """The number of steps, once it is final: an observation may follow the last."""
        self._check = check
        self._decode = decode
        self._bad_text = bad_text

    @classmethod
    def open(
        cls, path: str, otherwise: str, *, check: bool = True, decode: bool = False
    ) -> Journal:
        """Opens and reads a journal; raises `otherwise` if it has no start."""
        journal = cls(path, check=check, decode=decode)
        try:
            journal.read()
            bad = journal.first_bad_text() if decode else None
            if bad is not None:
                journal.reader.close()
                journal = cls(path, check=check, bad_text=bad)
                journal.read()
        except BaseException:
            journal.reader.close()
            raise
        if journal.fields is None:
            journal.reader.close()
            raise journal.reader.not_begun(otherwise)
        return journal

    # --- frames

    def read(self) -> int:
        """Reads the frames that have appeared since the last call; returns how many.

        Raises:
            ShardError: the start frame breaks a rule.
        """
        count = 0
        for frame in self.reader.frames(check=self._check):
            if frame.kind is FrameKind.START:
                self._read_start(self.reader.fields(frame))
                count += 1
                continue
            try:
                self._add(frame)
            except DATA_ERRORS as error:
                self.reader.reject(error)
            else:
                count += 1
        return count

    def _add(self, frame: JournalFrame) -> None:
        if self._bad_text is not None and self._bad_text[0] == self.reader.position:
            raise self._bad_text[1]
        if frame.kind is FrameKind.RUN:
            self._add_run(frame)
        else:
            self._add_note(self.reader.fields(frame))
            self.is_finished = frame.kind is FrameKind.END

    def _read_start(self, fields: dict[str, Any]) -> None:
        if not isinstance(fields.get("episode"), dict):
            raise self._bad("the start frame does not describe an episode", "J-STA-2")
        try:
            parse_facts({**fields["episode"], "length_T": 0}, {})
        except ShardError as error:
            raise self._bad(error.problem, "J-STA-2", error.found) from None
        self._read_chunk(fields.get("chunk"))
        self._add_channels(self._parsed_rows(fields.get("channels")))
        self.fields = fields["episode"]

    def _read_chunk(self, chunk: object) -> None:
        if chunk is None:
            return
        fields = chunk if isinstance(chunk, dict) else {}
        index, first = fields.get("index"), fields.get("first_step")
        is_part = type(index) is int and 1 <= index <= LARGEST
        if not is_part or type(first) is not int or not 0 <= first <= LARGEST:
            raise self._bad("'chunk' does not say which part of a recording this is", "J-STA-3")
        self.index, self.first_step = index, first

    def _parsed_rows(self, listed: object) -> list[ChannelRuns]:
        if not isinstance(listed, list):
            raise self._bad("'channels' is not a list", "J-CHN-1")
        added: dict[str, ChannelRuns] = {}
        before: ChannelRuns | None = None
        for number, fields in enumerate(listed, len(self.channels)):
            try:
                runs = ChannelRuns(parse_row(fields, number, "channels"))
            except ShardError as error:
                raise self._bad(error.problem, "J-CHN-1", error.found) from None
            block = runs.row.block
            if block in self._by_block or block in added:
                raise self._bad(f"two channels have the block {block!r}", "J-CHN-2")
            if before is not None and _is_ragged(before):
                before.offsets, runs.owner = runs, before
            if not _is_recordable(runs):
                raise self._bad(f"channel {number}, {block!r}, cannot be recorded", "J-CHN-3")
            added[block] = before = runs
        if before is not None and _is_ragged(before):
            block = before.row.block
            raise self._bad(f"the offsets of {block!r} are not the next channel", "J-CHN-3")
        return list(added.values())

    def _add_channels(self, added: list[ChannelRuns]) -> None:
        self.channels += added
        self._by_block.update((runs.row.block, runs) for runs in added)

    def _add_run(self, frame: JournalFrame) -> None:
        if frame.channel >= len(self.channels):
            raise BadHeader(f"a run belongs to the unknown channel {frame.channel}", rule="J-RUN-1")
        runs = self.channels[frame.channel]
        block, size = runs.row.block, frame.body.content_size
        expected = runs.codec if runs.filters is None else Codec.ZSTD
        if expected not in (None, frame.codec):
            raise BadHeader(
                f"a run of {block!r} has a different codec than expected", rule="J-RUN-2"
            )
        if not frame.entries or size != frame.entries * runs.step_bytes:
            raise SizeMismatch(f"a run of {block!r} does not hold its entries", rule="J-RUN-3")
        is_limited = runs.filters is not None or runs.row.fields.get("layout") == "text"
        if is_limited and size > LARGEST_FRAME:
            raise SizeMismatch(f"a run of {block!r} is too large", rule="J-RUN-3")
        if self._decode:
            self.reader.check_content(frame, runs.filters)
        if runs.owner is not None:
            runs.last_offset = self._checked_offsets(frame, runs, runs.owner)
        runs.append(frame)

    def _checked_offsets(self, frame: JournalFrame, runs: ChannelRuns, owner: ChannelRuns) -> int:
        """The last offset of a run of offsets, all of which follow J-RAG; in little memory."""
        block = runs.row.block
        if frame.codec is not Codec.NONE:
            raise BadHeader(f"a run of {block!r} is compressed", rule="J-RAG-1")
        if not self._check:  # this process has written the journal
            return int(next(self._pieces(frame.body, frame.body.stored_size - _OFFSET_BYTES))[0])
        last = runs.last_offset
        if not runs.held and next(self._pieces(frame.body))[0] != 0:
            raise BadValue(f"{block!r} does not start with 0", rule="J-RAG-2")
        for piece in self._pieces(frame.body):
            # Compared, not subtracted: differences of hostile values would wrap.
            if piece[0] < last or (piece[1:] < piece[:-1]).any():
                raise BadValue(f"the offsets in {block!r} run backwards", rule="J-RAG-2")
            last = int(piece[-1])
        if last > owner.held:
            raise BadValue(f"{block!r} counts items that are not there", rule="J-RAG-3")
        return last

    def _pieces(self, body: StoredRun, start: int = 0) -> Iterator[NDArray[np.int64]]:
        """The offsets in a frame, some at a time."""
        for at in range(start, body.stored_size, _OFFSETS_PIECE):
            part = self.reader.part(body, at, min(_OFFSETS_PIECE, body.stored_size - at))
            yield np.frombuffer(part, "<i8")

    def first_bad_text(self) -> tuple[int, BadValue] | None:
        """The first frame that completes a string that is not UTF-8 (J-RAG-4): its place, and the error.

        Goes through one channel after the other, so that each run is decoded once.
        """
        found: list[tuple[int, BadValue]] = []
        for runs in self.channels:
            if runs.offsets is None or runs.row.fields["layout"] != "text":
                continue
            texts, start = _TextCheck(self.reader, runs), 0
            for number in range(len(runs.offsets.ends)):
                body = runs.offsets.run(number, self.reader.file)
                try:
                    for piece in self._pieces(body):
                        texts.check(start, piece)
                        start = int(piece[-1])
                except BadValue as error:
                    found.append((body.offset - HEAD_SIZE, error))
                    break
        return min(found, key=lambda each: each[0], default=None)

    def _add_note(self, fields: dict[str, Any]) -> None:
        """Adds what a note or the end says; all of it or, with an error, nothing."""
        objects = [fields.get(key, {}) for key in ("metadata", "dropped", "filters")]
        length, continues = fields.get("length_T", self._length), fields.get("continues", False)
        is_length = length is None or (type(length) is int and length >= 0)
        if not (
            all(isinstance(o, dict) for o in objects) and is_length and type(continues) is bool
        ):
            raise self._bad("a field of a note has the wrong type", "J-NOT-1")
        metadata, dropped, filters = objects
        filled = fields.get("filled", 0)
        if type(filled) is not int or filled < 0:
            raise self._bad("a field of a note has the wrong type", "J-NOT-1")
        label, found = fields.get("label"), None
        if "interval" in fields:
            if not isinstance(label, str) or not label:
                raise self._bad("a note has an interval without a label", "J-NOT-1")
            unit = fields.get("unit", "steps")
            try:
                found = Intervals.from_fields({"intervals": [fields["interval"]], "unit": unit})
            except ShardError as error:
                raise self._bad(error.problem, "J-NOT-1", error.found) from None
            if label in self._labels and self._labels[label].unit != found.unit:
                raise self._bad("the intervals of one label have two units", "J-NOT-1")
        added = self._parsed_rows(fields["channels"]) if "channels" in fields else []
        for runs in added:
            runs.filled = filled
        filtered = self._parsed_filters(filters, added)
        # Nothing below can fail.
        if found is not None:
            self._labels.setdefault(str(label), found[:0]).extend(found)
        self._add_channels(added)
        for runs, each in filtered:
            runs.filters = each
        self._length = length
        self.continues = continues
        self._metadata.update(metadata)
        self._dropped.update(dropped)
        self._add_measured(fields.get("measured"))

    def _add_measured(self, listed: object) -> None:
        """Adds up what encoding frames has changed; for people, so that what makes no sense is left out."""
        for block, found in listed.items() if isinstance(listed, dict) else ():
            try:
                entries, largest = int(found["entries"]), int(found["max_error"])
                power = 10 ** (-float(found["psnr_db"]) / 10) if found["psnr_db"] else 0.0
            except (KeyError, TypeError, ValueError, OverflowError):
                continue
            if 0 < entries < _TICKS:
                sums = self._changes.setdefault(block, [0, 0, 0.0])
                sums[:] = [sums[0] + entries, max(sums[1], largest), sums[2] + entries * power]

    @property
    def _measured(self) -> dict[str, dict[str, Any]]:
        """What encoding the frames of each block has changed, all in all."""
        return {
            block: {"max_error": largest}
            | ({"psnr_db": round(-10 * log10(power / entries), 2)} if power else {})
            for block, (entries, largest, power) in self._changes.items()
        }

    def _parsed_filters(
        self, listed: dict[str, Any], added: list[ChannelRuns]
    ) -> list[tuple[ChannelRuns, Filters]]:
        """The filters of a note, by channel (J-FLT-1 to J-FLT-3)."""
        new = {runs.row.block: runs for runs in added}
        found = []
        for block, steps in listed.items():
            runs = new.get(block) or self._by_block.get(block)
            # The entries of a ragged channel do not count its items.
            if runs is None or runs.codec is not None or runs.filters is not None:
                raise self._bad(
                    "a note has filters for a channel that is unknown or has begun", "J-FLT-1"
                )
            try:
                filters = Filters.parse(canonical({"filters": steps}))
                filters.check_frame(runs.step_bytes)
            except ShardError as error:
                error.rule = "J-FLT-3" if error.rule == "S-FLT-5" else "J-FLT-2"
                raise
            found.append((runs, filters))
        return found

    def _bad(self, problem: str, rule: str, found: object = None) -> BadMetadata:
        reader = self.reader
        return BadMetadata(
            problem, path=reader.path, offset=reader.position, found=found, rule=rule
        )

    # --- as an episode

    def _counted(self) -> list[ChannelRuns]:
        return [runs for runs in self.channels if not runs.is_left_out]

    def steps(self) -> int:
        """The steps that every channel has (J-3)."""
        known = min((runs.entries for runs in self._counted() if runs.follows_steps), default=0)
        return known if self._length is None else min(known, self._length)

    def kept(self) -> dict[str, int]:
        """How many entries of each block count (J-3)."""
        steps = self.steps()
        kept = {runs.row.block: runs.entries for runs in self._counted() if runs.owner is None}
        for runs in self._counted():
            if runs.follows_steps:
                block = runs.row.block
                one_more = self._length is not None and block.startswith("signal/")
                kept[block] = min(kept[block], steps + one_more)
        for runs in self._counted():
            clock = runs.row.fields.get("time_block")
            if clock is not None:
                block = runs.row.block
                kept[block] = kept[clock] = min(kept[block], kept.get(clock, 0))
        return kept

    def cut(self) -> dict[str, int]:
        """How many entries each block has beyond those that count."""
        kept = self.kept()
        beyond = {}
        for runs in self._counted():
            if runs.owner is None:
                beyond[runs.row.block] = runs.entries - kept[runs.row.block]
            if runs.offsets is not None and runs.held > runs.offsets.last_offset:
                beyond[runs.row.block] += 1  # an entry whose offset is missing (J-6)
        return {block: count for block, count in beyond.items() if count}

    @property
    def is_chunk(self) -> bool:
        """Whether this is part of a recording in several files."""
        return self.index is not None or self.continues

    def episode(self, first_step: int | None = None) -> Episode:
        """The recording so far; values are read when they are used. Steps before `first_step` may be lost."""
        assert self.fields is not None
        steps, kept = self.steps(), self.kept()
        facts = parse_facts({**self.fields, "length_T": steps}, {})
        episode = Episode.from_facts(facts)
        episode.metadata = {**facts.metadata, **self._metadata}
        if self._dropped:
            episode.metadata["dropped"] = dict(self._dropped)
        blocks: dict[str, Block] = {}
        for runs in self._counted():
            if runs.owner is None:
                blocks.update(self._blocks(runs, kept[runs.row.block]))
        for runs in self._counted():
            if runs.owner is not None:
                continue
            row, count = runs.row, kept[runs.row.block]
            address = _FLAT.get(row.block) or address_of(row.block, row.id)
            if address[0] != EXTRA:  # the clock of another channel is not a part
                described = row._replace(fields={**row.fields, "length": count})
                channel = channel_from_row(described, row.id, blocks[row.block], count, blocks.get)
                if isinstance(channel, RaggedChannel) and VIDEO_FIELD in channel.extra:
                    channel = recorded_video(channel, self._measured.get(row.block))
                episode.parts[address] = channel
        if (TIMESTAMPS,) in episode.parts:
            episode.timebase.type = TimebaseType.TIMESTAMPS_NS
        for name, intervals in self._labels.items():
            episode.labels.adopt(name, self._own(intervals, steps))
        if self.is_chunk:
            self._number(episode, self.first_step if first_step is None else first_step)
        return episode

    def _blocks(self, runs: ChannelRuns, count: int) -> Iterator[tuple[str, Block]]:
        """The first `count` entries of a channel, and the offsets that belong to them."""
        block, offsets = runs.row.block, runs.offsets
        if offsets is not None:
            positions: Block = ArrayBlock(offsets.row.block, np.zeros(1, np.int64))
            if offsets.held:
                positions = JournalBlock(self.reader, offsets, (count + 1) * _OFFSET_BYTES)
            yield offsets.row.block, positions
            # Only the last offset that counts says how many items do.
            count = int(positions.part(np.dtype("<i8"), (1,), count * _OFFSET_BYTES)[0])
        yield block, JournalBlock(self.reader, runs, count * runs.step_bytes)

    def _number(self, episode: Episode, first_step: int) -> None:
        """Sets which part of the recording an episode is (J-8)."""
        episode.chunk_index = self.index or 0
        episode.timestep_range = (first_step, max(first_step, first_step + episode.length - 1))
        # Steps that were lost before it leave a gap in the ticks.
        start = self.first_step
        if not start:
            return
        if start + episode.length <= _TICKS:
            episode.ticks = np.arange(start, start + episode.length)
        base = episode.timebase
        if (TIMESTAMPS,) not in episode.parts and base.tick_hz is not None:
            base.epoch_ns += round(min(start * 1e9 / base.tick_hz, 1e19))

    def _own(self, intervals: Intervals, steps: int) -> Intervals:
        """Intervals counted from the start of this chunk, and cut where the next chunk starts."""
        if intervals.unit != "steps" or not self.is_chunk:
            return intervals[:]
        own = Intervals(unit=intervals.unit, extra=intervals.extra)
        for item in intervals:
            start, end = item.start - self.first_step, item.end - self.first_step
            if self.continues:
                if start >= steps:
                    continue  # the next journal has it
                end = min(end, steps)
            own.append(replace(item, start=start, end=end))
        return own


class _TextCheck:
    """Whether the strings of a text channel are strict UTF-8, each on its own (J-RAG-4).

    Strings are checked in order, so that each run is decoded once. One of them is in memory at a time (J-RUN-3).
    """

    def __init__(self, reader: JournalReader, runs: ChannelRuns) -> None:
        self._reader = reader
        self._runs = runs
        self._number = -1
        """The run in memory."""
        self._content: NDArray[np.uint8] = np.empty(0, np.uint8)

    def check(self, start: int, ends: NDArray[np.int64]) -> None:
        """Checks the strings between `start` and each of `ends`."""
        decoder = codecs.getincrementaldecoder("utf-8")()
        runs, at, stop = self._runs, start, int(ends[-1])
        try:
            while at < stop:
                number = bisect_right(runs.ends, at)
                first, end = runs.start(number), min(stop, runs.ends[number])
                if number != self._number:
                    codec = runs.codec or Codec.NONE
                    stored = runs.run(number, self._reader.file)
                    content = self._reader.content(codec, stored, runs.filters)
                    self._number, self._content = number, np.frombuffer(content, np.uint8)
                piece = self._content[at - first : end - first]
                decoder.decode(piece.tobytes())
                # Together they are UTF-8, and so is each, unless one starts within a character.
                starts = ends[np.searchsorted(ends, at) : np.searchsorted(ends, end)] - at
                if ((piece[starts] & 0xC0) == 0x80).any():
                    raise BadValue("a string starts within a character", rule="J-RAG-4")
                at = end
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            raise BadValue(f"a string is not UTF-8: {error.reason}", rule="J-RAG-4") from None


def _is_ragged(runs: ChannelRuns) -> bool:
    return runs.row.fields.get("layout") in ("ragged", "text")


def _is_recordable(runs: ChannelRuns) -> bool:
    row, owner = runs.row, runs.owner
    lane = row.block.partition("/")[0]
    has_lane = lane in ("signal", "action")
    if owner is not None:
        is_placed = row.block == offsets_block(owner.row.block) and "time_block" not in row.fields
        is_placed &= row.dtype is DType.INT64 and not row.shape
    else:
        is_named = has_lane and row.block == f"{lane}/{row.id}"
        is_placed = row.block in _FLAT or row.block.startswith("time/") or is_named
    stored, layout = row.fields.get("offsets_block"), row.fields.get("layout")
    if layout in (None, "dense"):
        is_known = stored is None
    else:
        is_known = _is_ragged(runs) and has_lane and stored == offsets_block(row.block)
        is_known &= layout == "ragged" or (row.dtype is DType.UINT8 and not row.shape)
    is_simple = is_known and not row.fields.keys() & {"length", "start_ns"}
    return is_placed and is_simple and 0 < runs.step_bytes <= _LARGEST_ENTRY


def save_journal(
    path: str, out: str, *, fsync: bool, change: Callable[[Episode], None] | None = None
) -> Episode:
    """Saves the episode of a journal that this process has recorded and ended, changed by `change`.

    Returns the episode; its channels can no longer be read.
    """
    journal = Journal.open(path, "the journal is gone", check=False)
    try:
        if not journal.is_finished:
            raise BadMetadata("the journal has changed since it was written", path=path)
        episode = journal.episode()
        if change is not None:
            change(episode)
        save_wshard(episode, out, "keep", fsync=fsync)
        return episode
    finally:
        journal.reader.close()
