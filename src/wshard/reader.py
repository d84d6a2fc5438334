"""Opening an episode: descriptions at once, channels when they are touched."""

from __future__ import annotations

import os
from copy import deepcopy
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from shard_format import Limits, ShardReader
from shard_format.errors import BadProfile, EntryNotFound, FormatError, InvalidArgument, ShardError
from shard_format.identity import IDENTITY_ENTRY
from shard_format.registry import DEFAULT_LIMITS, Role
from shard_format.sources import is_url, open_file
from wshard import inference
from wshard.blocks import file_block
from wshard.described import parse_channels, parse_episode, parse_wshard
from wshard.describing import channel_from_row, plain_channel
from wshard.dtypes import DType
from wshard.episode import Episode
from wshard.labels import Intervals
from wshard.lanes import Extra, FillPart
from wshard.metadata import FactFields, Row, parse_row
from wshard.names import (
    DELTA_RESIDUAL,
    DONE,
    LANES,
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
    lane_path,
    residual_key,
)
from wshard.origin import Origin
from wshard.plain import plain_plan
from wshard.provenance import parse_provenance
from wshard.residual_lane import DEFAULT_WINDOW, Residual, StoredResidual
from wshard.values import product

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from shard_format.sources import SourceLike
    from wshard.blocks import Block, FileBlock
    from wshard.channels import Channel

__all__ = ["load_wshard"]

# The facts; `meta/episode`, parsed or as text if there was no need to; `meta/wshard`; `meta/channels`, and its
# rows by block. A plain tuple: it is made for every episode.
Descriptions: TypeAlias = (
    "tuple[FactFields, dict[str, Any] | bytes, dict[str, Any], dict[str, Any], dict[str, Row]]"
)

# Files up to this size are read at once: one read costs less than a map, and leaves no open file.
_SMALL_FILE: Final = 1 << 16
_KNOWN_META: Final = frozenset(
    (META_WSHARD, META_EPISODE, META_CHANNELS, META_PROVENANCE, META_SIDECAR, IDENTITY_ENTRY)
)
# Plain names: a member of an enum takes longer to look up than to compare.
_WSHARD: Final = Role.WSHARD.value
_MANIFEST: Final = Role.MANIFEST.value
_OBSERVATIONS: Final = FillPart.OBSERVATIONS
_DESCRIPTIONS: Final = (META_EPISODE, META_WSHARD, META_CHANNELS)
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
    storage_options: Mapping[str, Any] | None = None,
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
        storage_options: headers, credentials and the like for a URL, as `ShardReader` takes them. They
            are for the episode itself: a sidecar that needs some is passed as an opened source.

    Raises:
        ShardError: a subclass that says which rule of spec/wshard.md or spec/shard.md the file breaks.
    """
    reader = open_reader(
        source, limits=limits, threads=threads, check=check, storage_options=storage_options
    )
    return open_episode(reader, sidecars, channels, lanes)


def open_episode(
    reader: ShardReader,
    sidecars: bool | Iterable[SourceLike] = True,
    channels: Iterable[str] | None = None,
    lanes: Iterable[str] | None = None,
) -> Episode:
    """The episode behind an open reader, which it owns from now on; arguments as for `load_wshard`."""
    try:
        if reader.header.role == _MANIFEST:
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
    source: SourceLike,
    *,
    limits: Limits,
    threads: int | None,
    check: bool,
    storage_options: Mapping[str, Any] | None = None,
) -> ShardReader:
    """A reader of the file; small local files are brought into memory, so that none stays open."""
    if isinstance(source, (str, os.PathLike)) and not (
        storage_options or is_url(os.fspath(source))
    ):
        opened = open_file(source, _SMALL_FILE)
        reader = ShardReader(opened, limits=limits, threads=threads, check=check)
        reader.adopt_source()
        return reader
    return ShardReader(
        source, limits=limits, threads=threads, check=check, storage_options=storage_options
    )


def sidecar_files(path: str) -> list[str]:
    """The sidecars beside a local file, in the order in which they are read."""
    folder = path + SIDECAR_SUFFIX
    try:
        # Asked first: an error costs more.
        names = os.listdir(folder) if os.access(folder, os.F_OK) else []
    except (OSError, ValueError):  # most files have none, and not every name is a path
        return []
    return [os.path.join(folder, name) for name in sorted(names) if name.endswith(".wshard")]


def read_descriptions(reader: ShardReader, *, is_sidecar: bool = False) -> Descriptions:
    """What a file of role 5 says about its episode, checked."""
    try:
        if reader.header.role != _WSHARD:
            raise BadProfile(
                "this is not an episode",
                expected=f"a file of role {Role.WSHARD.value} (wshard)",
                found=f"role {reader.role}",
                rule="W-ROL-1",
                hint="ShardReader opens any file of the family",
            )
        if not is_sidecar and META_SIDECAR in (reader.names_by_row or reader):
            raise BadProfile(
                "this file only adds lanes to an episode",
                entry=META_SIDECAR,
                hint="open the episode itself; its sidecars are read with it",
                rule="W-ROL-2",
            )
        episode_text, wshard_text, channels_text = reader.read_json_texts(_DESCRIPTIONS)
        if episode_text is None:
            raise BadProfile("the episode is not described", entry=META_EPISODE, rule="W-ROL-2")
        wshard = {} if wshard_text is None else parse_wshard(reader, wshard_text)
        facts, stored = parse_episode(reader, episode_text, wshard)
        described, rows = (
            ({}, {}) if channels_text is None else parse_channels(reader, channels_text)
        )
        fields = stored if isinstance(stored, dict) else {}
        if "omen_channels" in wshard or "action_spaces" in fields:
            rows = dict(rows)
            _add_older_rows(rows, file_blocks(reader), facts[2], fields, wshard)
    except ShardError as error:
        raise error.located(path=reader.name) from None
    return facts, stored, wshard, described, rows


def episode_of(reader: ShardReader, *, is_sidecar: bool = False) -> Episode:
    """The episode in a file of role 5."""
    facts, stored, wshard, described, rows = read_descriptions(reader, is_sidecar=is_sidecar)
    episode = new_episode(facts)
    known = episode.__dict__
    known["origin"] = Origin(reader, wshard, stored, described, rows)
    known["_fill"] = partial(_fill_lanes, reader, rows)
    return episode


def _fill_lanes(
    reader: ShardReader, rows: Mapping[str, Row], episode: Episode, part: FillPart
) -> bool:
    """Sorts the entries of a file into the lanes of an episode; whether that is all of them.

    Another thread may do so at the same time: the first to bring a lane decides.
    """
    known = episode.__dict__
    try:
        plan = plain_plan(reader, rows)
        if plan is not None:
            filled = plan.lanes(reader, known["_length"], part)
        else:
            staged = object.__new__(Episode)
            filled = staged.__dict__
            filled["_length"] = known["_length"]
            Router(staged, rows).route(file_blocks(reader), reader)
    except ShardError as error:
        raise error.located(path=reader.name) from None
    for key, value in filled.items():
        known.setdefault(key, value)
    return plan is None or part is not _OBSERVATIONS


def new_episode(facts: FactFields) -> Episode:
    """An episode with its facts and without lanes."""
    episode = object.__new__(Episode)
    # Past __setattr__, which opening many episodes would feel.
    id, env_id, length, timebase, metadata, chunk_index, total_chunks, timestep_range = facts
    episode.__dict__ = {
        "id": id,
        "env_id": env_id,
        "_length": length,
        "timebase": timebase,
        # A copy: what the file said is compared with when the episode is saved.
        "metadata": deepcopy(metadata) if metadata else {},
        "chunk_index": chunk_index,
        "total_chunks": total_chunks,
        "timestep_range": timestep_range,
    }
    return episode


def file_blocks(reader: ShardReader) -> dict[str, FileBlock]:
    """Every entry of a file, by name."""
    named = zip(reader.names(), reader.sizes(), strict=True)
    return {name: file_block((reader, name, at, size)) for at, (name, size) in enumerate(named)}


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
            if name in _KNOWN_META:
                continue
            if name in _FLAT:
                self._flat(name, block)
                continue
            lane = name.partition("/")[0]
            if lane == "signal":
                self._signal(name, block)
            elif lane == "action":
                self._action(name, block)
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
            try:
                fields = reader.read_json(META_PROVENANCE, rule="W-JSN-1")
                episode.provenance = parse_provenance(fields)
            except FormatError:
                # For checking tools to tell (W-PRV-1); the recording is readable, and this is kept.
                others.append(META_PROVENANCE)
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
        if row is None:
            self._put(
                self._episode.observations, name[7:], name, self._inferred(name, name[7:], block)
            )
        else:
            self._put(self._episode.observations, row.id, name, self._described(row.id, row, block))

    def _action(self, name: str, block: Block) -> None:
        row = self._rows.get(name)
        if row is None:
            # Stream writers describe every channel as a signal, even if only the action is there.
            stream_row = self._rows.get("signal/" + name[7:])
            if stream_row is not None and stream_row.block not in self._blocks:
                channel = self._described(name[7:], stream_row, block)
                if channel._block is not None and channel._block.nbytes == channel.nbytes:
                    channel.inferred = True
                    self._put(self._episode.actions, name[7:], name, channel)
                    return
            self._put(self._episode.actions, name[7:], name, self._inferred(name, name[7:], block))
        else:
            self._put(self._episode.actions, row.id, name, self._described(row.id, row, block))

    def _flat(self, name: str, block: Block) -> None:
        episode = self._episode
        if block.nbytes == 0 and self._length:
            return  # an empty block means that the lane is absent
        if name == REWARD:
            if REWARD_EXACT not in self._blocks or REWARD_EXACT not in self._rows:
                episode._rewards = self._reward(block)
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

    def _reward(self, block: Block) -> Channel:
        """`reward` is f32 [T] whatever its row says; the row may say what the numbers mean."""
        row = self._rows.get(REWARD)
        if row is None:
            return plain_channel("reward", block, DType.FLOAT32, (), self._length)
        said = {key: row.fields[key] for key in row.fields if key not in _FIXED_FOR_REWARD}
        plain = Row(row.id, row.block, DType.FLOAT32, (), said)
        return channel_from_row(plain, "reward", block, self._length, self._find)

    def _omen(self, name: str, block: Block) -> None:
        self._adopt_predicted(self._episode.omens, name, block)

    def _uncert(self, name: str, block: Block) -> None:
        self._adopt_predicted(self._episode.uncerts, name, block)

    def _adopt_predicted(self, lane: Any, name: str, block: Block) -> None:  # noqa: ANN401 - lanes in lanes
        row = self._rows.get(name)
        last = lane_path(name, None, {} if row is None else row.fields)[-1]
        if row is None:
            channel = self._inferred(name, last, block)
        else:
            channel = self._described(last, row, block)
        self._adopt(lane, name, row, channel)

    def _adopt(self, lane: Any, block: str, row: Row | None, channel: Channel) -> None:  # noqa: ANN401 - lanes in lanes
        told = (None, {}) if row is None else (row.id, row.fields)
        *outer, last = lane_path(block, *told)
        for name in outer:
            if name not in lane:
                lane.adopt(name, lane.new_inner(name))
            lane = lane[name]
        self._put(lane, last, block, channel)

    def _put(self, lane: Any, last: str, block: str, channel: Channel) -> None:  # noqa: ANN401 - any lane
        if last in lane:
            # Another block has claimed that place: nothing is dropped.
            self._episode.extras.adopt(block, channel)
        else:
            lane.adopt(last, channel)

    def _residual(self, name: str, block: Block) -> None:
        if name.endswith(SCALES) and name.removesuffix(SCALES) in self._blocks:
            return  # comes with its residual
        row = self._rows.get(name)
        fields = {} if row is None else row.fields
        channel, model, kind = lane_path(name, None, fields)
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


_FIXED_FOR_REWARD: Final = frozenset(
    ("length", "layout", "offsets_block", "time_block", "start_ns")
)
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

    before = [
        *(*episode.observations, *episode.actions, *(block for block, _ in episode.blocks())),
        *(f"label/{name}" for name in episode.labels),
        *(name for key in episode.residuals for name in _residual_names(key)),
        *episode.extras,
    ]
    for lane in kept or ():
        if lane not in LANES and not any(name.partition("/")[0] == lane for name in before):
            raise InvalidArgument(
                f"no lane {lane!r}", path=episode.origin.path, expected=", ".join(LANES)
            )
    for lane, have in (
        ("signal", episode.observations),
        ("action", episode.actions),
        ("label", episode.labels),
    ):
        for name in [name for name in have if not asked(lane, name)]:
            del have[name]
    for lane, nested in (("omen", episode.omens), ("uncert", episode.uncerts)):
        for name in list(nested):
            for model in list(nested[name]):
                _keep_predicted(nested[name], name, model, asked, lane)
            if not nested[name]:
                del nested[name]
    for key, residual in list(episode.residuals.items()):
        if not asked("residual", residual.channel_id, *_residual_names(key)):
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


def _keep_predicted(
    models: Any,  # noqa: ANN401 - channels, or lanes of channels
    name: str,
    model: str,
    asked: Callable[..., bool],
    lane: str,
) -> None:
    block = f"{lane}/{name}/{model}" if model else f"{lane}/{name}"
    if lane == "uncert":
        for kind in list(models[model]):
            if not asked(lane, name, block, f"{block}/{kind}"):
                del models[model][kind]
        if not models[model]:
            del models[model]
    elif not asked(lane, name, block):
        del models[model]


def _residual_names(key: str) -> tuple[str, str]:
    """What a residual may be called: with and without its usual type."""
    return f"residual/{key}", f"residual/{key}/{SIGN_RESIDUAL}"


def _names(names: Iterable[str], what: str) -> list[str]:
    if isinstance(names, str):
        raise InvalidArgument(f"{what} takes a list of names", hint=f"{what}=[{names!r}]")
    return list(names)


def _unknown_channel(episode: Episode, want: str, have: Collection[str]) -> ShardError:
    assert episode.origin is not None
    error = EntryNotFound(f"no channel {want!r}", path=episode.origin.path)
    error.wanted, error.candidates = want, sorted(have)
    return error
