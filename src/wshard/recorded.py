"""Recordings that were not finished: read while they grow, or brought back after a crash (spec/journal.md)."""

from __future__ import annotations

import logging
import os
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format import Codec, Compression
from shard_format.codecs import SMALLEST_COMPRESSED, is_worth_it
from shard_format.errors import BadMetadata, InvalidArgument, ShardError
from shard_format.registry import DEFAULT_LIMITS
from shard_format.writer import StoredRun
from wshard.describing import channel_from_row
from wshard.episode import Episode
from wshard.journal import PARTIAL_SUFFIX, Frame, JournalReader, Kind, Part
from wshard.labels import Intervals
from wshard.metadata import Row, parse_facts, parse_row
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
from wshard.timebase import TimebaseType
from wshard.values import product
from wshard.writer import save_wshard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray
    from typing_extensions import Self

    from shard_format import ShardWriter
    from wshard.channels import Channel

__all__ = ["PartialEpisode", "Recovery", "open_partial", "recover", "save_recorded"]

_log = logging.getLogger("wshard")

_FLAT: Final = {REWARD, REWARD_EXACT, DONE, TERMINATED, TRUNCATED, TIMESTAMPS}
_SEEK_TABLE: Final = (17, 12)
"""Bytes of a seek table without rows, and of a row."""


class Runs:
    """The runs of one channel, in numbers: a recording of hours has hundreds of thousands."""

    def __init__(self) -> None:
        self.codec: Codec | None = None
        """How all of them are stored; None before the first."""
        self.entries = 0
        """Entries in all of them."""
        self._offsets = array("Q")
        self._stored_sizes = array("I")
        self._checksums = array("I")
        self.ends = array("Q")
        """Where the content of each ends in that of all."""

    def append(self, frame: Frame) -> None:
        """Adds a run that is whole."""
        codec, offset, stored_size, content_size, checksum = frame.part
        self.codec = codec
        self.entries += frame.entries
        self._offsets.append(offset)
        self._stored_sizes.append(stored_size)
        self._checksums.append(checksum)
        self.ends.append(self.start(len(self.ends)) + content_size)

    def start(self, number: int) -> int:
        """Where the content of a run starts in that of all."""
        return self.ends[number - 1] if number else 0

    def __getitem__(self, number: int) -> Part:
        assert self.codec is not None
        size = self.ends[number] - self.start(number)
        place = (self._offsets[number], self._stored_sizes[number])
        return Part(self.codec, *place, size, self._checksums[number])

    def stored_size(self, count: int) -> int:
        """Bytes that the first so many take in the journal."""
        return sum(self._stored_sizes[:count])


class RecordedBlock:
    """The runs of one channel in a journal, as one block.

    Args:
        journal: the journal that holds them.
        name: the block.
        runs: all of them, by now.
        nbytes: how many bytes of their content count, from the start.
    """

    is_compressed = True  # in pieces, so that an array of all is always a copy
    is_cut_cheaply = True

    def __init__(self, journal: JournalReader, name: str, runs: Runs, nbytes: int) -> None:
        self.journal = journal
        self.name = name
        self.nbytes = nbytes
        self.codec = Codec.NONE if runs.codec is None else runs.codec
        """How its runs are stored."""
        self._runs = runs
        self._count = bisect_left(runs.ends, nbytes) + 1 if nbytes else 0
        """Runs that hold any of it."""

    @property
    def path(self) -> str | None:
        return self.journal.path

    def can_be_copied(self, identity: bool) -> bool:
        """Whether its runs can be taken one by one; an identity needs all of the content."""
        return not identity

    def copy_to(self, writer: ShardWriter, content_type: int) -> None:
        """Copies its runs one after the other, in constant memory.

        They are decoded only where an entry may not hold them as they are: cut within a run, or hardly smaller
        than their content (S-CMP-10), or above what readers decompress (S-CMP-2).
        """
        is_whole = self._runs.start(self._count) == self.nbytes
        compression = Compression(self._allowed_codec())
        if is_whole and compression.codec is self.codec:
            writer.write_runs(
                self.name, list(self._stored_runs()), self.codec, content_type=content_type
            )
            return
        writer.write_entry_stream(
            self.name,
            self.iter_content(),
            compression=compression,
            content_type=content_type,
            frame_bytes=self._runs.ends[0] if compression.codec is Codec.ZSTD else None,
        )

    def _allowed_codec(self) -> Codec:
        if self.codec is Codec.NONE:
            return Codec.NONE
        if self.nbytes > DEFAULT_LIMITS.max_decompressed_bytes:
            _log.warning(
                "%s: %s is stored raw: more than 1 GiB compressed is more than readers take",
                *(self.path, self.name),
            )
            return Codec.NONE
        stored = self._runs.stored_size(self._count)
        if self._count > 1:
            stored += _SEEK_TABLE[0] + _SEEK_TABLE[1] * self._count
        is_kept = self.nbytes >= SMALLEST_COMPRESSED and is_worth_it(stored, self.nbytes)
        return Codec.ZSTD if is_kept else Codec.NONE

    def _stored_runs(self) -> Iterator[StoredRun]:
        descriptor = self.journal.descriptor
        for number in range(self._count):
            run = self._runs[number]
            yield StoredRun(
                *(descriptor, run.offset, run.stored_size),
                *(run.content_size, run.content_crc32c),
            )

    def array(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        return self.part(dtype, shape, 0)

    def part(self, dtype: np.dtype[Any], shape: tuple[int, ...], start: int) -> NDArray[Any]:
        out = np.empty(shape, dtype)
        self.read_into(start, out.reshape(-1).view(np.uint8))
        return out

    def read_into(self, start: int, out: NDArray[np.uint8]) -> None:
        number = bisect_right(self._runs.ends, start)
        done = 0
        while done < len(out):
            content = np.frombuffer(self.journal.content(self._runs[number]), np.uint8)
            inside = start + done - self._runs.start(number)
            piece = content[inside:][: len(out) - done]
            out[done : done + len(piece)] = piece
            done += len(piece)
            number += 1

    def iter_content(self) -> Iterator[bytes]:
        """Its bytes, run by run."""
        left = self.nbytes
        for number in range(self._count):
            content = self.journal.content(self._runs[number])[:left]
            left -= len(content)
            yield content


@dataclass(slots=True)
class Recovery:
    """What came back from a recording that was not finished."""

    path: str
    """The journal."""
    episode_id: str
    """Whose it is."""
    steps: int
    """Whole steps that came back."""
    lost_bytes: int
    """Bytes of the journal behind the last whole frame."""
    problem: str | None
    """Why reading stopped there; None if the journal is whole."""
    cut: dict[str, int] = field(default_factory=dict)
    """Entries that were left out by channel, because other channels did not get that far."""
    finished: bool = False
    """Whether the recorder had come to its end."""
    out: str | None = None
    """Where the episode was saved."""

    @property
    def lost_data(self) -> bool:
        """Whether anything that was in the journal is not in the episode."""
        return bool(self.lost_bytes or self.cut)

    def __str__(self) -> str:
        text = f"{self.path}: {self.steps} steps of {self.episode_id!r} came back"
        if self.problem:
            text += f"; {self.lost_bytes} bytes are lost ({self.problem})"
        for name, count in self.cut.items():
            text += f"; {count} entries of {name} had no others beside them"
        return text


class _Journal:
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
        """What is wrong with a frame, None if it counts now."""
        if self.fields is None:
            if frame.kind is not Kind.START:
                raise self.bad("the first frame is not a start frame")
            self._read_start(self.reader.fields(frame))
            return None
        if self.is_finished:
            return "there is a frame after the end"
        if frame.kind is Kind.RUN:
            return self._add_run(frame)
        if frame.kind is Kind.START:
            return "there is a second start frame"
        try:
            self._add_note(self.reader.fields(frame))
        except ShardError as error:
            return error.problem
        self.is_finished = frame.kind is Kind.END
        return None

    def _read_start(self, fields: dict[str, Any]) -> None:
        if fields.get("v") != 1 or not isinstance(fields.get("episode"), dict):
            raise self.bad("the start frame does not describe a recording that we know")
        try:
            self._add_rows(fields.get("channels"))
            parse_facts({**fields["episode"], "length_T": 0}, {})
        except ShardError as error:
            raise error.located(path=self.reader.path) from None
        self.fields = fields["episode"]

    def _add_rows(self, listed: object) -> None:
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
        self.rows += rows
        self.runs += [Runs() for _ in rows]

    def _add_run(self, frame: Frame) -> str | None:
        if frame.channel >= len(self.rows):
            return f"a run of channel {frame.channel}, of which nothing is known"
        row = self.rows[frame.channel]
        if not frame.entries or frame.part.content_size != frame.entries * _step_bytes(row):
            return f"a run of {row.block!r} does not hold its entries"
        runs = self.runs[frame.channel]
        if runs.codec not in (None, frame.part.codec):
            return f"a run of {row.block!r} is stored in another way than those before"
        problem = self.reader.check_content(frame.part) if self._decode else None
        if problem is None:
            runs.append(frame)
        return problem

    def _add_note(self, fields: dict[str, Any]) -> None:
        """What a note or the end says; all of it or, with an error, nothing."""
        metadata = fields.get("metadata", {})
        dropped = fields.get("dropped", {})
        length = fields.get("length_T", self.length)
        is_length = length is None or (type(length) is int and length >= 0)
        if not isinstance(metadata, dict) or not isinstance(dropped, dict) or not is_length:
            raise self.bad("a note has fields of a wrong type")
        if "interval" in fields:
            label, unit = fields.get("label"), fields.get("unit", "steps")
            if not isinstance(label, str) or not label:
                raise self.bad("a note labels nothing")
            found = Intervals.from_fields({"intervals": [fields["interval"]], "unit": unit})
            lane = self.labels.setdefault(label, found[:0])
            if lane.unit != found.unit:
                raise self.bad("the intervals of one label have two units")
            lane.extend(found)
        if "channels" in fields:
            self._add_rows(fields["channels"])
        self.length = length
        self.metadata.update(metadata)
        self.dropped.update(dropped)

    def bad(self, problem: str) -> BadMetadata:
        """An error about the frame that was read last."""
        reader = self.reader
        return BadMetadata(
            problem, path=reader.path, offset=reader.position, found=reader.problem, rule="J-2"
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

    def episode(self) -> PartialEpisode:
        """The recording as it is by now, still lazy."""
        assert self.fields is not None
        steps = self.steps()
        facts = parse_facts({**self.fields, "length_T": steps}, {})
        episode = PartialEpisode.__new__(PartialEpisode)
        episode.__dict__.update(new_episode(facts).__dict__)
        episode._journal = self
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
            episode.labels.adopt(name, intervals[:])
        return episode


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
    return is_dense and is_simple and is_placed and _step_bytes(row) > 0


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


class PartialEpisode(Episode):
    """A recording that is not finished, as far as it is on the disk; `open_partial` gives it.

    Owns: the journal, open for reading.
    """

    _journal: _Journal

    def refresh(self) -> bool:
        """Takes in what was recorded since; returns whether there was anything. Reads nothing twice.

        Channels are replaced: those that were taken out before stay as long as they were.
        """
        if not self._journal.read():
            return False
        self.__dict__.update(self._journal.episode().__dict__)
        return True

    @property
    def is_finished(self) -> bool:
        """Whether the recorder has come to its end, so that nothing more will follow."""
        return self._journal.is_finished

    def close(self) -> None:
        """Closes the journal. Arrays that were handed out stay valid."""
        self._journal.reader.close()

    def __enter__(self) -> Self:
        return self


def open_partial(path: str | os.PathLike[str]) -> PartialEpisode:
    """A recording that is not finished, as far as it is on the disk now; values are read when they are touched.

    The recorder may go on meanwhile: `refresh` takes in what it has added.

    Args:
        path: the journal, `….partial`, or the name that the episode will have.
    """
    journal = _Journal(_partial_path(path))
    try:
        _read_from_start(journal, "nothing was recorded yet")
        return journal.episode()
    except BaseException:
        journal.reader.close()
        raise


def recover(
    path: str | os.PathLike[str], out: str | os.PathLike[str] | None = None, *, fsync: bool = True
) -> Recovery:
    """Saves what a recording holds, up to its last whole frame. The journal itself is never touched.

    Args:
        path: the journal, `….partial`.
        out: where to save the episode; the name that it was recorded for if left out, which must be free.
        fsync: as for `save_wshard`.
    """
    location = _partial_path(path)
    target = os.fspath(out) if out is not None else location.removesuffix(PARTIAL_SUFFIX)
    if out is None and os.path.exists(target):
        raise InvalidArgument(
            "there is an episode of that name already", path=target, hint="say where to save it"
        )
    if os.path.exists(target) and os.path.samefile(target, location):
        raise InvalidArgument("the journal itself is never touched", path=target)
    journal = _Journal(location, decode=True)
    try:
        _read_from_start(journal, "nothing came back: not even the start of the recording is whole")
        size = journal.reader.size
        steps = journal.steps()
        episode = journal.episode()
        save_wshard(episode, target, "keep", fsync=fsync)
        return Recovery(
            *(location, episode.id, steps, size - journal.reader.position),
            *(journal.reader.problem, journal.cut(steps), journal.is_finished, target),
        )
    except ShardError as error:
        raise error.located(path=location) from None
    finally:
        journal.reader.close()


def save_recorded(
    path: str, out: str, *, fsync: bool, change: Callable[[Episode], None] | None = None
) -> None:
    """Makes the episode of a journal that its own recorder has ended.

    Args:
        path: the journal.
        out: where to save the episode.
        fsync: as for `save_wshard`.
        change: called with the episode before it is saved.
    """
    journal = _Journal(path, check=False)
    try:
        _read_from_start(journal, "the journal has gone")
        if not journal.is_finished:
            raise journal.bad("the journal is not as it was written")
        episode = journal.episode()
        if change is not None:
            change(episode)
        save_wshard(episode, out, "keep", fsync=fsync)
    finally:
        journal.reader.close()


def _read_from_start(journal: _Journal, otherwise: str) -> None:
    journal.read()
    if journal.fields is None:
        raise InvalidArgument(
            otherwise,
            path=journal.reader.path,
            found=journal.reader.problem or "an empty file",
            rule="J-1",
        )


def _partial_path(path: str | os.PathLike[str]) -> str:
    location = os.fspath(path)
    return location if location.endswith(PARTIAL_SUFFIX) else location + PARTIAL_SUFFIX
