"""The replay buffer of DreamerV3, and the episodes that DreamerV2 stores.

**DreamerV3** stores chunks of streams, `<time>-<uuid>-<uuid of the next chunk>-<rows>.npz`. A stream is the sequence of
steps of one worker. Streams are put together by the uuids and split into episodes at `is_first`. If a chunk was saved
more than once, the longest file counts; rows behind the number in the name are not data.

Row t holds observation t, the reward and flags that came with it, and the action that was taken after it. So N rows are
N observations and N - 1 steps: `action[:-1]`, `reward[1:]`, `is_terminal[1:]`.

**DreamerV2** stores each episode as `<time>-<uuid>-<steps>.npz`. Row t holds the action that led to observation t: the
steps are `action[1:]`, `reward[1:]`, `is_terminal[1:]`.

| there | here |
|---|---|
| `action`, `action/…` | actions |
| `reward` | rewards |
| `is_terminal` | terminations; without it, `discount` = 0 |
| `is_last` without `is_terminal` | truncations |
| `dyn/…`, `enc/…`, `dec/…` | predictions of the model `dreamer` about a channel of that name |
| `omen/<channel>/<model>`, `uncert/<channel>/<model>/<type>`, as our writer stores them | predictions |
| everything else, also `stepid`, `id`, `reset`, `log_…` | observations |

`metadata["dreamer"]` has `version` (2 or 3), `file` and `row` where the episode starts, `stream`,
`is_start` (false if the buffer had dropped the start of the episode), and `first_row`: what the first row says about
the step before it, if that is not 0. The action of the last row, if it is not 0, is the extra `dreamer/action`.
"""

from __future__ import annotations

import os
import re
import uuid
from bisect import bisect_right
from datetime import datetime, timedelta
from functools import cached_property
from itertools import accumulate, groupby, pairwise
from string import ascii_letters, digits
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from shard_format.cache import BoundedCache
from shard_format.errors import BadValue, InvalidArgument, ShardError, Truncated
from shard_format.listing import natural_key
from wshard._channels import Channel, RaggedChannel
from wshard._episode import Episode
from wshard._lanes import TICKS, block_name
from wshard._values import DType
from wshard.convert._arrays import JoinedRows, PartOfRows, channel_facts, note_pixels, splits
from wshard.convert._fields import note_ambiguous, prediction_address
from wshard.convert._hdf5 import as_json_value
from wshard.convert._model import DatasetReader, DatasetWriter
from wshard.convert._npz import NpzFile, array_channel, plain_name, write_npz

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from wshard.convert._arrays import ForeignRows
    from wshard.convert._model import Notes, Probe, ReadOptions, WriteOptions

MODEL: Final = "dreamer"
_CHUNK: Final = re.compile(
    r"(\d{8}T\d{6}(?:F\d{6})?)-([0-9A-Za-z]{1,22})-([0-9A-Za-z]{1,22})-(\d{1,9})\.npz"
)
_EPISODE: Final = re.compile(r"(\d{8}T\d{6}(?:F\d{6})?)-([0-9A-Za-z_]{1,64})-(\d{1,9})\.npz")
_LATENTS: Final = ("dyn/", "enc/", "dec/")
_FLAGS: Final[tuple[str, ...]] = ("is_first", "is_last", "is_terminal")
_ZEROS: Final = "0" * 22
_MOST_OPEN: Final = 8
_ROWS: Final = 1024
_CHUNK_BYTES: Final = 128 << 20
_LAST_ACTION: Final = "dreamer/"
_NO_METADATA: Final = "a replay buffer has no metadata"


def recognises(probe: Probe) -> bool:
    """Whether it is a folder of chunks or episodes, or one of them."""
    names = probe.names if probe.is_folder else {os.path.basename(probe.path)}
    for name in sorted(names):
        if _CHUNK.fullmatch(name) or _EPISODE.fullmatch(name):
            path = os.path.join(probe.path, name) if probe.is_folder else probe.path
            try:
                file = NpzFile(path)
            except ShardError as error:
                probe.damage = probe.damage or error
                continue
            keys = file.names
            file.close()
            return "is_first" in keys or {"reward", "discount"} <= set(keys)
    return False


# --- reading


class Chunk(NamedTuple):
    """What the name of a file says."""

    path: str
    time: str
    uuid: str
    successor: str
    rows: int


class Piece(NamedTuple):
    """Rows of an episode that are in one file."""

    path: str
    start: int
    stop: int


class Found(NamedTuple):
    """Where an episode is."""

    stream: int
    pieces: tuple[Piece, ...]
    rows: int
    damage: ShardError | None = None
    """Why its chunk cannot be read. Which episodes are in it is then unknown."""


def _episodes_in(
    number: int, chunks: Sequence[Chunk], flags: Sequence[NDArray[np.bool_]]
) -> Iterator[Found]:
    """The episodes of chunks that follow each other."""
    offsets = [0, *accumulate(chunk.rows for chunk in chunks)]
    for start, stop in splits(np.concatenate(flags)):
        begin, end = bisect_right(offsets, start) - 1, bisect_right(offsets, stop - 1)
        pieces = tuple(
            Piece(chunk.path, max(start - at, 0), min(stop - at, chunk.rows))
            for chunk, at in zip(chunks[begin:end], offsets[begin:end], strict=True)
        )
        yield Found(number, pieces, stop - start)


class DreamerReader(DatasetReader):
    """Episodes of a replay buffer. Reads `is_first` of all chunks to find them."""

    def __init__(self, path: str, options: ReadOptions) -> None:
        super().__init__(path, options)
        # What leaves is not closed: channels of an episode may still read from it, and close it when they go.
        self._open = BoundedCache[str, NpzFile](count=_MOST_OPEN, holds_files=True)
        folder, names = os.path.split(path)[0], [os.path.basename(path)]
        if os.path.isdir(path):
            folder, names = path, sorted(os.listdir(path), key=natural_key)
        chunks = [_chunk(folder, found) for name in names if (found := _CHUNK.fullmatch(name))]
        self._files = [os.path.join(folder, name) for name in names if _EPISODE.fullmatch(name)]
        if chunks and self._files:
            raise InvalidArgument(
                "files of DreamerV3 and DreamerV2 are in one folder",
                path=path,
                found=f"{os.path.basename(chunks[0].path)} and {os.path.basename(self._files[0])}",
                hint="move them into two folders: their actions belong to different rows",
            )
        if not chunks and not self._files:
            raise InvalidArgument(
                "no file has a name as Dreamer gives them",
                path=path,
                expected="<time>-<uuid>-<uuid>-<rows>.npz (V3) or <time>-<uuid>-<steps>.npz (V2)",
            )
        own = {os.path.basename(one) for one in (*self._files, *(chunk.path for chunk in chunks))}
        self.strays = [name for name in names if name not in own]
        self.version = 3 if chunks else 2
        self._streams = chained(longest(chunks))

    @cached_property
    def _episodes(self) -> list[Found]:
        if self.version == 2:
            # The number of rows is looked up when the episode is read.
            return [Found(0, (Piece(file, 0, -1),), -1) for file in self._files]
        found = []
        for number, stream in enumerate(self._streams):
            flags = [self._first_or_damage(chunk) for chunk in stream]
            # A damaged chunk ends the episode before it, and the stream goes on in mid-episode after it.
            for is_damaged, run in groupby(
                zip(stream, flags, strict=True), lambda one: isinstance(one[1], ShardError)
            ):
                if is_damaged:
                    found += [
                        Found(number, (Piece(chunk.path, 0, chunk.rows),), chunk.rows, damage)
                        for chunk, damage in run
                        if isinstance(damage, ShardError)
                    ]
                else:
                    found += _episodes_in(number, *zip(*run, strict=True))
        return found

    def _first_or_damage(self, chunk: Chunk) -> NDArray[np.bool_] | ShardError:
        try:
            return self._first(chunk)
        except ShardError as error:
            return error

    def _first(self, chunk: Chunk) -> NDArray[np.bool_]:
        flags = self._array(chunk.path, "is_first", 0, chunk.rows)[:]
        if flags.ndim != 1:
            raise BadValue(
                "flags are not one value a row",
                path=chunk.path,
                entry="is_first",
                found=list(flags.shape),
            )
        return np.asarray(flags != 0)

    def names(self) -> Sequence[str]:
        return [f"episode_{number}" for number in range(len(self._episodes))]

    def _file(self, path: str) -> NpzFile:
        return self._open.get_or_make(path, lambda: NpzFile(path))

    def _array(self, path: str, key: str, start: int, stop: int) -> PartOfRows:
        rows = self._file(path)[key]
        if not rows.shape or rows.shape[0] < stop:
            raise Truncated(
                "an array has fewer rows than the name of its file says",
                path=path,
                entry=key,
                expected=f"{stop} rows",
                found=f"shape {list(rows.shape)}",
            )
        return PartOfRows(rows, start, stop)

    def read(self, number: int, notes: Notes) -> Episode:
        found = self._episodes[number]
        if found.damage is not None:
            raise found.damage
        path = found.pieces[0].path
        keys = self._keys(found, notes)
        if self.version == 2:
            found = self._whole(path, keys)
        row = {"stream": found.stream, "row": found.pieces[0].start} if self.version == 3 else {}
        facts: dict[str, Any] = {"version": self.version, "file": os.path.basename(path), **row}
        episode = Episode(f"episode_{number}", metadata={"dreamer": facts})
        episode.length = found.rows - 1
        arrays = {
            key: JoinedRows([self._array(at, key, a, b) for at, a, b in found.pieces], path, key)
            for key in keys
        }
        flags = {key: arrays.pop(key) for key in _FLAGS if key in arrays}
        reward = arrays.pop("reward") if _is_flat(arrays.get("reward")) else None
        first_row = self._add_ends(episode, flags, arrays.get("discount"), notes)
        if reward is not None:
            episode.rewards = np.asarray(reward[1 : found.rows])
            notes.kept("reward", "reward")
            if reward[0:1][0]:
                first_row["reward"] = as_json_value(float(reward[0:1][0]))
        if first_row:
            facts["first_row"] = first_row
        if "is_first" in flags:
            facts["is_start"] = bool(flags["is_first"][0:1][0])
        for key, rows in arrays.items():
            self._add_array(episode, key, rows, path, notes)
        return episode

    def _keys(self, found: Found, notes: Notes) -> list[str]:
        files = [self._file(piece.path) for piece in found.pieces]
        for name in dict.fromkeys(name for file in files for name in file.others):
            notes.dropped(name, "not an array")
        every = dict.fromkeys(key for file in files for key in file.names)
        for key in every:
            if not all(key in file for file in files):
                notes.dropped(key, "not in all chunks of the episode")
        return [key for key in every if all(key in file for file in files)]

    def _whole(self, path: str, keys: list[str]) -> Found:
        """An episode of DreamerV2 with its number of rows."""
        shapes = {key: self._file(path)[key].shape for key in keys}
        lengths = {shape[0] if shape else 0 for shape in shapes.values()}
        if len(lengths) != 1 or not max(lengths):
            raise BadValue(
                "the arrays of an episode have different numbers of rows",
                path=path,
                found=", ".join(f"{key} {list(shape)}" for key, shape in shapes.items()),
            )
        rows = lengths.pop()
        return Found(0, (Piece(path, 0, rows),), rows)

    def _add_ends(
        self,
        episode: Episode,
        flags: dict[str, JoinedRows],
        discount: ForeignRows | None,
        notes: Notes,
    ) -> dict[str, Any]:
        """Sets terminations and truncations; returns what the first row says."""
        values: dict[str, NDArray[np.bool_]] = {}
        for key, rows in flags.items():
            if not _is_flat(rows):
                raise BadValue("flags are not one value a row", path=self.path, entry=key)
            if rows.dtype != np.bool_:
                notes.cast(key, rows.dtype, "bool")
            values[key] = np.asarray(rows[:] != 0)
        last, terminal = values.get("is_last"), values.get("is_terminal")
        if terminal is None and discount is not None and _is_flat(discount):
            terminal = np.asarray(discount[:] == 0)
        if last is None and self.version == 2:
            last = np.arange(episode.length + 1) == episode.length
        if terminal is not None:
            episode.terminations = terminal[1:]
            notes.kept("is_terminal" if "is_terminal" in values else "discount", "terminated")
        if last is not None:
            episode.truncations = last[1:] if terminal is None else last[1:] & ~terminal[1:]
            if terminal is None:
                episode.terminations = np.zeros(episode.length, np.bool_)
        for key, target in (("is_first", "metadata/dreamer/is_start"), ("is_last", "truncated")):
            if key in values:
                notes.kept(key, target)
        said = {"is_last": last, "is_terminal": terminal}
        return {key: True for key, flag in said.items() if flag is not None and flag[0]}

    def _add_array(
        self, episode: Episode, key: str, rows: JoinedRows, path: str, notes: Notes
    ) -> None:
        name, count = plain_name(key, notes), rows.shape[0]
        if is_action(key):
            kept = (0, count - 1) if self.version == 3 else (1, count)
            rest = np.asarray(rows[count - 1 : count] if self.version == 3 else rows[0:1])
            name = "action" if name == "action" else name.removeprefix("action/")
            channel = array_channel(name, PartOfRows(rows, *kept), path, key, notes)
            if channel is not None:
                episode.actions[name] = channel
                notes.kept(key, f"action/{name}")
            if channel is not None and rest.dtype.kind not in "US" and rest.any():
                extra = Channel(key, data=rest)
                extra.has_stated_length = True  # its one entry is not a step
                episode.extras[f"{_LAST_ACTION}{key}"] = extra
                notes.kept(f"{key} of the row without a step", f"{_LAST_ACTION}{key}")
            return
        channel = array_channel(name, rows, path, key, notes)
        if channel is None:
            return
        is_latent = name.startswith(_LATENTS)
        address = ("omen", name, MODEL) if is_latent else prediction_address(name)
        if address is None:
            episode.observations[name] = channel
            notes.kept(key, f"signal/{name}")
            return
        if address[0] == "omen":
            episode.omens[address[1]][address[2]] = channel
        else:
            episode.uncerts[address[1]][address[2]][address[3]] = channel
        notes.kept(key, block_name(address))

    def close(self) -> None:
        for path in self._open.known():
            file = self._open.pop(path)
            if file is not None:
                file.close()


def is_action(key: str) -> bool:
    """Whether an array holds actions."""
    return key == "action" or key.startswith("action/")


def _is_flat(rows: ForeignRows | None) -> bool:
    return rows is not None and len(rows.shape) == 1 and rows.dtype.kind in "biuf"


def _chunk(folder: str, name: re.Match[str]) -> Chunk:
    return Chunk(os.path.join(folder, name[0]), name[1], name[2], name[3], int(name[4]))


def longest(chunks: Sequence[Chunk]) -> list[Chunk]:
    """Each chunk once: the file with the most rows, and of those one that names a successor."""
    best: dict[str, Chunk] = {}
    for chunk in sorted(chunks, key=lambda chunk: (chunk.rows, chunk.successor.strip("0") != "")):
        best[chunk.uuid] = chunk
    return sorted((one for one in best.values() if one.rows), key=lambda one: (one.time, one.uuid))


def chained(chunks: Sequence[Chunk]) -> list[list[Chunk]]:
    """The chunks of each stream in order, streams by their first chunk. No chunk is in two streams."""
    by_uuid = {chunk.uuid: chunk for chunk in chunks}
    followers = {chunk.successor for chunk in chunks}
    # Last those that are in a ring, which only damaged names make.
    starts = sorted(chunks, key=lambda chunk: chunk.uuid in followers)
    seen: set[str] = set()
    streams: list[list[Chunk]] = []
    for start in starts:
        stream: list[Chunk] = []
        chunk: Chunk | None = start
        while chunk is not None and chunk.uuid not in seen:
            seen.add(chunk.uuid)
            stream.append(chunk)
            chunk = by_uuid.get(chunk.successor)
        if stream:
            streams.append(stream)
    return streams


# --- writing


class DreamerColumn(NamedTuple):
    """One array of the episode as rows: a channel, and the row before or after it."""

    channel: Channel
    before: NDArray[Any] | None = None
    after: NDArray[Any] | None = None

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """The rows from `start` to `stop`."""
        shift, length = 0 if self.before is None else 1, len(self.channel)
        parts: list[Any] = []
        if self.before is not None and start < 1:
            parts.append(self.before)
        low, high = max(0, start - shift), min(stop - shift, length)
        if high > low:
            parts.append(_numbers(self.channel, low, high))
        if stop - shift > length:
            assert self.after is not None
            parts.append(self.after)
        return np.concatenate(parts)


def _numbers(channel: Channel, start: int, stop: int) -> NDArray[Any]:
    """Steps in a type that `.npy` files have: bf16 becomes f32."""
    steps = channel.read_steps(start, stop)
    is_brain = channel.dtype_name is DType.BFLOAT16
    return channel.dtype_name.as_numbers(steps) if is_brain else steps


class DreamerWriter(DatasetWriter):
    """A folder of DreamerV3 chunks. Each episode has chunks of its own, which follow those of the one before."""

    def __init__(self, path: str, options: WriteOptions) -> None:
        super().__init__(path, options)
        os.makedirs(path)
        self._next = uuid.uuid4()
        self._time = datetime.now()
        self._stream: object = None
        self._form: object = None

    def write(self, episode: Episode, notes: Notes) -> None:
        facts = episode.metadata.get("dreamer")
        facts = facts if isinstance(facts, dict) else {}
        first_row = facts.get("first_row")
        first_row = first_row if isinstance(first_row, dict) else {}
        rows = episode.length + 1
        columns = self._columns(episode, first_row, notes)
        flags = _flags(episode, facts, first_row, notes)
        self._note_rest(episode, facts, notes)
        form = {key: (c.channel.dtype_name, c.channel.step_shape) for key, c in columns.items()}
        is_start = facts.get("is_start") is not False
        stream = facts.get("stream")
        if not is_start or stream != self._stream or form != self._form:
            # What follows in a stream belongs to the episode before unless it is a start.
            self._next = uuid.uuid4()
        self._stream, self._form = stream, form
        row_bytes = sum(column.channel.step_bytes for column in columns.values())
        most = max(1, min(_ROWS, _CHUNK_BYTES // max(1, row_bytes)))
        for start, stop in pairwise([*range(0, rows, most), rows]):
            chunk = {key: column.rows(start, stop) for key, column in columns.items()}
            chunk |= {key: flag[start:stop] for key, flag in flags.items()}
            self._write_chunk(chunk, stop - start)

    def _write_chunk(self, arrays: dict[str, NDArray[Any]], rows: int) -> None:
        own, self._next = self._next, uuid.uuid4()
        self._time += timedelta(microseconds=1)  # Dreamer expects successors to be later
        index = np.arange(rows, dtype=">u4").view(np.uint8).reshape(rows, 4)
        name = np.broadcast_to(np.frombuffer(own.bytes, np.uint8), (rows, 16))
        arrays["stepid"] = np.concatenate([name, index], axis=1)
        stamp = self._time.strftime("%Y%m%dT%H%M%SF%f")
        file = f"{stamp}-{base62(own.int)}-{base62(self._next.int)}-{rows}.npz"
        write_npz(
            os.path.join(self.path, file),
            {key: (array.dtype, array.shape, [array]) for key, array in arrays.items()},
            compress=True,
        )

    def _columns(
        self, episode: Episode, first_row: dict[str, Any], notes: Notes
    ) -> dict[str, DreamerColumn]:
        columns: dict[str, DreamerColumn] = {}
        length = episode.length
        for address, part in episode.parts.items():
            if not isinstance(part, Channel) or address[0] not in (
                *("signal", "action", "omen", "uncert"),
            ):
                continue
            block = block_name(address)
            key = _key(address)
            if key in ("stepid", "id"):
                notes.dropped(block, "it names rows of other chunks")
                if key == "stepid":
                    notes.filled(block, "with names of the new rows")
                continue
            if key in (*_FLAGS, "reward") or key in columns:
                notes.renamed(block, f"{block}, because {key!r} is taken")
                key = block
            why = _misfit(part, length, is_action=address[0] == "action")
            if why:
                notes.dropped(block, why)
                continue
            if part.dtype_name is DType.BFLOAT16:
                notes.cast(block, "bf16", "f32", "which holds the same values")
            after = None
            if address[0] == "action":
                after = _last_action(episode, key, part)
            elif len(part) == length:
                notes.filled(block, "the observation after the last step, with the one before it")
                after = _numbers(part, length - 1, length) if length else _zeros(part)
            if key == block:
                note_ambiguous(address, notes)
            columns[key] = DreamerColumn(part, after=after)
            notes.kept(block, key)
            note_pixels(part, block, notes)
            if known := channel_facts(part).keys() - {"modality"}:
                notes.dropped(f"{block}, {', '.join(sorted(known))}", _NO_METADATA)
        rewards = episode.rewards
        if rewards is None:
            notes.filled("reward", "with 0")
            rewards = Channel("reward", data=np.zeros(length, np.float32))
        else:
            notes.kept("reward", "reward")
        before = np.array([first_row.get("reward", 0)]).astype(rewards.dtype)
        columns["reward"] = DreamerColumn(rewards, before=before)
        return columns

    def _note_rest(self, episode: Episode, facts: dict[str, Any], notes: Notes) -> None:
        """Tells what a replay buffer has no place for."""
        for address in episode.parts:
            if address[0] in ("signal", "action", "omen", "uncert", "reward"):
                continue
            block = block_name(address)
            if address == (TICKS,) and np.array_equal(episode.ticks, np.arange(episode.length)):
                continue
            if address[0] in ("terminated", "truncated"):
                notes.kept(block, "is_terminal" if address[0] == "terminated" else "is_last")
            elif not (block.startswith(_LAST_ACTION) and facts.get("version") == 3):
                notes.dropped(block, "a replay buffer holds only arrays with one row a step")
        for key in episode.metadata:
            if key != "dreamer":
                notes.dropped(f"metadata/{key}", _NO_METADATA)
        if episode.env_id:
            notes.dropped("env_id", _NO_METADATA)
        if episode.provenance is not None:
            notes.dropped("meta/provenance", _NO_METADATA)
        if episode.timebase.tick_hz is not None:
            notes.dropped("timebase", "a replay buffer has no clock")

    def finish(self) -> None:
        pass


def _key(address: tuple[str, ...]) -> str:
    """What an array is called in a chunk."""
    if address[0] == "signal":
        return address[1]
    if address[0] == "action":
        return "action" if address[1] == "action" else f"action/{address[1]}"
    if address[0] == "omen" and address[2] == MODEL and address[1].startswith(_LATENTS):
        return address[1]
    return block_name(address)


def _misfit(channel: Channel, length: int, *, is_action: bool) -> str:
    """Why a channel cannot be an array with one row a step; empty if it can."""
    if isinstance(channel, RaggedChannel):
        return "text and ragged data are not arrays"
    if channel.has_own_clock:
        return "it has a clock of its own"
    if len(channel) not in (length, length + (not is_action)):
        return f"it has {len(channel)} entries for {length} steps"
    return ""


def _zeros(channel: Channel) -> NDArray[Any]:
    dtype = np.dtype("<f4") if channel.dtype_name is DType.BFLOAT16 else channel.dtype
    return np.zeros((1, *channel.step_shape), dtype)


def _last_action(episode: Episode, key: str, channel: Channel) -> NDArray[Any]:
    """The action of the row without a step: what was there, or zeros, as Dreamer has it."""
    extra, zeros = episode.extras.get(f"{_LAST_ACTION}{key}"), _zeros(channel)
    if isinstance(extra, Channel) and extra.shape == zeros.shape and extra.dtype == zeros.dtype:
        is_v3 = episode.metadata.get("dreamer", {}).get("version") == 3
        return extra.data if is_v3 else zeros
    return zeros


def _flags(
    episode: Episode, facts: dict[str, Any], first_row: dict[str, Any], notes: Notes
) -> dict[str, NDArray[np.bool_]]:
    rows = episode.length + 1
    flags = {key: np.zeros(rows, np.bool_) for key in _FLAGS}
    flags["is_first"][0] = facts.get("is_start") is not False
    for key in ("is_last", "is_terminal"):
        flags[key][0] = first_row.get(key) is True
    terminations, truncations = episode.terminations, episode.truncations
    if terminations is not None:
        flags["is_terminal"][1:] = flags["is_last"][1:] = terminations.data
    else:
        notes.filled("terminated", "with false")
    if truncations is not None:
        flags["is_last"][1:] |= truncations.data
    elif not flags["is_last"][-1]:
        notes.filled("done", "the last row is_last")
        flags["is_last"][-1] = True
    return flags


def base62(number: int) -> str:
    """A uuid as Dreamer writes it into names."""
    signs, text = digits + ascii_letters, ""
    while number:
        number, digit = divmod(number, 62)
        text = signs[digit] + text
    return text.rjust(22, "0")
