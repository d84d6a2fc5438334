"""Opening an episode: descriptions at once, channels when they are touched."""

from __future__ import annotations

import os
import re
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from shard_format import Limits, ShardReader
from shard_format.errors import BadProfile, EntryNotFound, InvalidArgument, ShardError
from shard_format.identity import IDENTITY_ENTRY
from shard_format.registry import DEFAULT_LIMITS, Role
from shard_format.sources import BytesSource, FileSource
from wshard import inference
from wshard.blocks import FileBlock
from wshard.describing import channel_from_row, plain_channel
from wshard.dtypes import DType
from wshard.episode import Episode
from wshard.labels import Intervals
from wshard.lanes import Extra
from wshard.metadata import EpisodeFacts, Row, parse_facts, parse_row, parse_rows
from wshard.names import (
    DELTA_RESIDUAL,
    DONE,
    META_CHANNELS,
    META_EPISODE,
    META_PROVENANCE,
    META_SIDECAR,
    META_WSHARD,
    REWARD,
    REWARD_EXACT,
    SCALES,
    SIGN_RESIDUAL,
    TERMINATED,
    TICKS,
    TIMESTAMPS,
    TRUNCATED,
    parse_block,
    residual_key,
)
from wshard.origin import Origin
from wshard.provenance import parse_provenance
from wshard.residual_lane import DEFAULT_WINDOW, Residual, StoredResidual
from wshard.values import product

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from shard_format.sources import ByteSource, SourceLike
    from wshard.blocks import Block
    from wshard.channels import Channel

__all__ = ["load_wshard"]

# Files up to this size are read at once: one read costs less than a map, and leaves no open file.
_SMALL_FILE: Final = 1 << 16
_KNOWN_META: Final = frozenset(
    (META_WSHARD, META_EPISODE, META_CHANNELS, META_PROVENANCE, META_SIDECAR, IDENTITY_ENTRY)
)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
SIDECAR_SUFFIX: Final = ".lanes"


def load_wshard(
    source: SourceLike,
    channels: Iterable[str] | None = None,
    lanes: Iterable[str] | None = None,
    *,
    sidecars: bool | Iterable[SourceLike] = True,
    check: bool = True,
    threads: int | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> Episode:
    """Opens an episode.

    Descriptions are read now, arrays when they are touched. A chunked episode opens by its manifest.
    Lanes that were added later are there as if they were part of the file.

    Args:
        source: a path, a URL, bytes, a binary file that can seek, or any `ByteSource`.
        channels: only these, and what models said about them: names, block names, or patterns such as
            `"wrist/*"`. None for all.
        lanes: only these: `"signal"`, `"action"`, `"reward"`, `"done"`, `"time"`, `"omen"`, `"uncert"`,
            `"residual"`, `"label"`, or the prefix of any other names. None for all.
        sidecars: True looks for the folder `<file>.lanes` beside a local file, False does not; or the
            sidecars themselves, where they are elsewhere.
        check: False skips checksums.
        threads: how many threads large reads may use; None for one per processor, up to 8.
        limits: what the file may ask for; raise one for files you trust.

    Raises:
        ShardError: a subclass that says which rule of spec/wshard.md or spec/shard.md the file breaks.
    """
    reader = open_reader(source, limits=limits, threads=threads, check=check)
    try:
        if reader.role == Role.MANIFEST:
            from wshard.chunked import open_chunked

            episode = open_chunked(reader)
        else:
            episode = episode_of(reader)
        if sidecars is not False:
            from_files = sidecar_files(reader.name) if sidecars is True else sidecars
            if from_files:
                from wshard.sidecar import attach

                attach(episode, from_files)
        if channels is not None or lanes is not None:
            _keep_only(episode, channels, lanes)
    except BaseException:
        reader.close()
        raise
    return episode


def open_reader(
    source: SourceLike, *, limits: Limits, threads: int | None, check: bool
) -> ShardReader:
    """A reader of the file; small local files are brought into memory, so that none stays open."""
    if isinstance(source, (str, os.PathLike)) and not _URL.match(os.fspath(source)):
        file = FileSource(source)
        opened: ByteSource = file
        size = file.size()
        if size <= _SMALL_FILE:
            try:
                opened = BytesSource(file.read_at(0, size), file.name)
            finally:
                file.close()
        reader = ShardReader(opened, limits=limits, threads=threads, check=check)
        reader.adopt_source()
        return reader
    return ShardReader(source, limits=limits, threads=threads, check=check)


def sidecar_files(path: str) -> list[str]:
    """The sidecars beside a local file, in the order in which they are read."""
    folder = path + SIDECAR_SUFFIX
    try:
        names = os.listdir(folder)
    except (OSError, ValueError):  # most files have none, and not every name is a path
        return []
    return [os.path.join(folder, name) for name in sorted(names) if name.endswith(".wshard")]


def episode_of(reader: ShardReader, *, is_sidecar: bool = False) -> Episode:
    """The episode in a file of role 5."""
    try:
        if reader.role != Role.WSHARD:
            raise BadProfile(
                "this is not an episode",
                expected=f"a file of role {Role.WSHARD.value} (wshard)",
                found=f"role {reader.role}",
                rule="W-ROL-1",
                hint="ShardReader opens any file of the family",
            )
        if META_SIDECAR in reader and not is_sidecar:
            raise BadProfile(
                "this file only adds lanes to an episode",
                entry=META_SIDECAR,
                hint="open the episode itself; its sidecars are read with it",
                rule="W-ROL-2",
            )
        if META_EPISODE not in reader:
            raise BadProfile("the episode is not described", entry=META_EPISODE, rule="W-ROL-2")
        episode_fields = reader.read_json(META_EPISODE, rule="W-JSN-1")
        wshard = reader.read_json(META_WSHARD, rule="W-JSN-1") if META_WSHARD in reader else {}
        described = (
            reader.read_json(META_CHANNELS, rule="W-JSN-1") if META_CHANNELS in reader else {}
        )
        facts = parse_facts(episode_fields, wshard)
        rows = {row.block: row for row in parse_rows(described)}
        blocks = file_blocks(reader)
        if "omen_channels" in wshard or "action_spaces" in episode_fields:
            _add_older_rows(rows, blocks, facts.length, episode_fields, wshard)
        episode = new_episode(facts)
        episode.origin = Origin(reader, wshard, episode_fields, described, rows)
        Router(episode, rows).route(blocks, reader)
    except ShardError as error:
        raise error.located(path=reader.name) from None
    return episode


def new_episode(facts: EpisodeFacts) -> Episode:
    """An episode with its facts and without lanes."""
    episode = object.__new__(Episode)
    episode._start_lanes()
    episode.id = facts.id
    episode.env_id = facts.env_id
    episode._length = facts.length
    episode.timebase = facts.timebase
    episode.metadata = facts.metadata
    episode.chunk_index = facts.chunk_index
    episode.total_chunks = facts.total_chunks
    episode.timestep_range = facts.timestep_range
    episode.provenance = None
    return episode


def file_blocks(reader: ShardReader) -> dict[str, FileBlock]:
    """Every entry of a file, by name."""
    index = reader.index
    sizes = index["orig_size"].tolist()
    flags = index["flags"].tolist()
    return {
        name: FileBlock(reader, name, size, bool(flag & 1))
        for name, size, flag in zip(reader.names(), sizes, flags, strict=True)
    }


def _add_older_rows(
    rows: dict[str, Row],
    blocks: Mapping[str, Block],
    length: int,
    episode: Mapping[str, Any],
    wshard: Mapping[str, Any],
) -> None:
    """Descriptions that older writers keep elsewhere, where they fit (sections 3 and 10)."""
    for fields, key, block_key, entry in (
        (wshard, "omen_channels", "block", META_WSHARD),
        (episode, "action_spaces", "name", META_EPISODE),
    ):
        listed = fields.get(key)
        if not isinstance(listed, list):
            continue
        for number, row in enumerate(listed):
            block = row.get(block_key) if isinstance(row, dict) else None
            if isinstance(block, str) and block in blocks and block not in rows:
                name = block.removeprefix("action/")
                parsed = parse_row({**row, "id": name, "signal_block": block}, number, entry)
                if blocks[block].nbytes == length * product(parsed.shape) * parsed.dtype.size:
                    rows[block] = parsed


class Router:
    """Puts every entry of a file into the lane it belongs to (spec/wshard.md, section 16, step 4)."""

    def __init__(self, episode: Episode, rows: Mapping[str, Row]) -> None:
        self._episode = episode
        self._rows = rows
        self._length = episode.length
        self._taken: set[str] = set()
        self._blocks: Mapping[str, Block] = {}

    def route(self, blocks: Mapping[str, Block], reader: ShardReader) -> None:
        """Fills the episode's lanes from the entries of `reader`."""
        self._blocks = blocks
        later: list[str] = []
        for name, block in blocks.items():
            lane = name.partition("/")[0]
            if lane == "signal":
                self._signal(name, block)
            elif lane == "action":
                self._action(name, block)
            elif lane == "meta":
                if name not in _KNOWN_META:
                    later.append(name)
            elif name in _FLAT:
                self._flat(name, block)
            else:
                later.append(name)
        if later or META_PROVENANCE in blocks:
            self._route_rest(later, reader)

    def _route_rest(self, names: list[str], reader: ShardReader) -> None:
        episode, blocks = self._episode, self._blocks
        others: list[str] = []
        for name in names:
            lane = name.partition("/")[0]
            if lane == "omen":
                self._omen(name, blocks[name])
            elif lane == "uncert":
                self._uncert(name, blocks[name])
            elif lane == "residual":
                self._residual(name, blocks[name])
            elif lane == "label":
                lazy = Intervals.lazy(partial(_read_intervals, reader, name))
                episode.labels.adopt(name.removeprefix("label/"), lazy)
            else:
                others.append(name)
        if META_PROVENANCE in blocks:
            episode.provenance = parse_provenance(reader.read_json(META_PROVENANCE, rule="W-JSN-1"))
        for name in others:
            if name in self._taken:
                continue
            row = self._rows.get(name)
            if row is not None:
                channel = channel_from_row(row, name, blocks[name], self._length, self._find)
                episode.extras.adopt(name, channel)
            else:
                info = reader.info(name)
                episode.extras.adopt(
                    name,
                    Extra(
                        name,
                        block=blocks[name],
                        content_type=info.content_type,
                        tag_bits=info.tag_bits,
                    ),
                )

    def _find(self, name: str) -> Block | None:
        block = self._blocks.get(name)
        if block is not None:
            self._taken.add(name)
        return block

    def _described(self, name: str, row: Row, block: Block) -> Channel:
        return channel_from_row(row, name, block, self._length, self._find)

    def _signal(self, name: str, block: Block) -> None:
        row = self._rows.get(name)
        lane = self._episode.observations
        if row is None:
            lane.adopt(name[7:], self._inferred(name, name[7:], block))
        else:
            lane.adopt(row.id, self._described(row.id, row, block))

    def _action(self, name: str, block: Block) -> None:
        row = self._rows.get(name)
        lane = self._episode.actions
        if row is None:
            # Stream writers describe every channel as a signal, even if only the action is there.
            stream_row = self._rows.get("signal/" + name[7:])
            if stream_row is not None and stream_row.block not in self._blocks:
                channel = self._described(name[7:], stream_row, block)
                if channel._block is not None and channel._block.nbytes == channel.nbytes:
                    channel.inferred = True
                    lane.adopt(name[7:], channel)
                    return
            lane.adopt(name[7:], self._inferred(name, name[7:], block))
        else:
            lane.adopt(row.id, self._described(row.id, row, block))

    def _flat(self, name: str, block: Block) -> None:
        episode = self._episode
        if block.nbytes == 0 and self._length:
            return  # an empty block means that the lane is absent
        if name == REWARD:
            if REWARD_EXACT not in self._blocks or REWARD_EXACT not in self._rows:
                episode._rewards = plain_channel("reward", block, DType.FLOAT32, (), self._length)
        elif name == REWARD_EXACT:
            if name in self._rows:
                episode._rewards = self._described("reward", self._rows[name], block)
        elif name == TICKS:
            episode._ticks = block
        elif name == TIMESTAMPS:
            episode._timestamps = block
        elif name == TRUNCATED:
            episode._truncations = plain_channel(name, block, DType.BOOL, (), self._length)
        elif name == TERMINATED or TERMINATED not in self._blocks:
            episode._terminations = plain_channel(name, block, DType.BOOL, (), self._length)

    def _omen(self, name: str, block: Block) -> None:
        row = self._rows.get(name)
        _, channel, model, _ = parse_block(name)
        if row is not None:
            channel, model = row.fields.get("channel") or channel, row.fields.get("model") or model
            made = self._described(model, row, block)
        else:
            made = self._inferred(name, model, block)
        self._adopt_nested(self._episode.omens, (channel, model), made)

    def _uncert(self, name: str, block: Block) -> None:
        row = self._rows.get(name)
        _, channel, model, kind = parse_block(name)
        if row is not None:
            channel = row.fields.get("channel") or channel
            model, kind = row.fields.get("model", model), row.fields.get("type") or kind
            made = self._described(kind, row, block)
        else:
            made = self._inferred(name, kind, block)
        self._adopt_nested(self._episode.uncerts, (channel, model, kind), made)

    @staticmethod
    def _adopt_nested(lane: Any, path: tuple[str, ...], channel: Channel) -> None:  # noqa: ANN401 - lanes in lanes
        for name in path[:-1]:
            if name not in lane:
                lane.adopt(name, lane.new_inner(name))
            lane = lane[name]
        lane.adopt(path[-1], channel)

    def _residual(self, name: str, block: Block) -> None:
        if name.endswith(SCALES) and name.removesuffix(SCALES) in self._blocks:
            return  # comes with its residual
        row = self._rows.get(name)
        fields = {} if row is None else row.fields
        _, channel, model, kind = parse_block(name)
        kind = fields.get("type") or kind
        channel, model = fields.get("channel") or channel, fields.get("model") or model
        if kind not in (SIGN_RESIDUAL, DELTA_RESIDUAL):
            self._episode.extras.adopt(name, Extra(name, block=block))
            return
        window = fields.get("window") or DEFAULT_WINDOW
        parts = StoredResidual(block, row, self._blocks.get(name + SCALES), self._length, window)
        residual = Residual.lazy(channel, kind, model, window, parts)
        self._episode.residuals.adopt(residual_key(name), residual)

    def _inferred(self, block_name: str, name: str, block: Block) -> Channel:
        """Section 10: the first description that fits the size exactly."""
        dtype, shape, length = inference.infer(
            block_name, block.nbytes, self._length, self._rows, self._blocks
        )
        channel = plain_channel(name, block, dtype, shape, length)
        channel.inferred = True
        return channel


def _read_intervals(reader: ShardReader, name: str) -> Intervals:
    fields = reader.read_json(name, rule="W-LAB-1")
    try:
        return Intervals.from_fields(fields)
    except ShardError as error:
        raise error.located(path=reader.name, entry=name) from None


_FLAT: Final = frozenset((REWARD, REWARD_EXACT, DONE, TERMINATED, TRUNCATED, TICKS, TIMESTAMPS))


def _keep_only(
    episode: Episode, channels: Iterable[str] | None, lanes: Iterable[str] | None
) -> None:
    """Leaves out the lanes and channels that were not asked for."""
    wanted = None if channels is None else _names(channels, "channels")
    kept = None if lanes is None else frozenset(_names(lanes, "lanes"))
    assert episode.origin is not None
    episode.origin.is_filtered = True

    def asked(lane: str, channel: str, *blocks: str) -> bool:
        if kept is not None and lane not in kept:
            return False
        names = (channel, f"{lane}/{channel}", *blocks)
        return wanted is None or any(fnmatchcase(name, want) for name in names for want in wanted)

    before = [*episode.observations, *episode.actions, *(block for block, _ in episode.blocks())]
    for lane, have in (
        ("signal", episode.observations),
        ("action", episode.actions),
        ("label", episode.labels),
    ):
        for name in [name for name in have if not asked(lane, name)]:
            del have[name]
    for lane, nested in (("omen", episode.omens), ("uncert", episode.uncerts)):
        for name in list(nested):
            for model in [m for m in nested[name] if not asked(lane, name, f"{lane}/{name}/{m}")]:
                del nested[name][model]
            if not nested[name]:
                del nested[name]
    for key, residual in list(episode.residuals.items()):
        if not asked("residual", residual.channel_id, f"residual/{key}"):
            del episode.residuals[key]
    for name in list(episode.extras):
        if (kept is not None and name.partition("/")[0] not in kept) or (
            wanted is not None and not asked(name.partition("/")[0], name)
        ):
            del episode.extras[name]
    if kept is not None:
        if "reward" not in kept:
            episode._rewards = None
        if "done" not in kept:
            episode._terminations = episode._truncations = None
        if "time" not in kept:
            episode._ticks = episode._timestamps = None
    for want in wanted or ():
        if not any(fnmatchcase(name, want) for name in before):
            raise _unknown_channel(episode, want, before)


def _names(names: Iterable[str], what: str) -> list[str]:
    if isinstance(names, str):
        raise InvalidArgument(f"{what} takes a list of names", hint=f"{what}=[{names!r}]")
    return list(names)


def _unknown_channel(episode: Episode, want: str, have: Collection[str]) -> ShardError:
    assert episode.origin is not None
    error = EntryNotFound(f"no channel {want!r}", path=episode.origin.path)
    error.wanted, error.candidates = want, sorted(have)
    return error
