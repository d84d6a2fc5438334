"""Reading an episode's file: its descriptions, and which lane each of its blocks belongs to (spec/wshard.md, section 16)."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cached_property, partial
from math import prod
from typing import TYPE_CHECKING, Any, Final

from shard_format.errors import (
    DATA_ERRORS,
    BadProfile,
    FormatError,
    InvalidArgument,
    ShardError,
    SizeMismatch,
)
from shard_format.identity import IDENTITY_ENTRY
from shard_format.registry import Role
from wshard._blocks import Extra, FileBlock
from wshard._channel_rows import channel_from_row, guessed_channel
from wshard._channels import Channel
from wshard._episode import Episode, Origin
from wshard._labels import Intervals
from wshard._lanes import (
    DELTA_RESIDUAL,
    DONE,
    EXTRA,
    FILTER_NAMES,
    LANES,
    META_CHANNELS,
    META_EDIT,
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
    Address,
    address_of,
    block_name,
    not_found,
    prediction_keys,
    residual_key,
)
from wshard._metadata import (
    MOST_UNBACKED,
    Row,
    parse_facts,
    parse_provenance,
    parse_row,
    parse_rows,
)
from wshard._values import DType
from wshard.residual import Residual, StoredResidual

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from shard_format import ShardReader
    from shard_format.layout import IndexRow
    from wshard._blocks import Block
    from wshard._metadata import EpisodeFacts

_DESCRIPTIONS: Final = (META_EPISODE, META_WSHARD, META_CHANNELS)
_KNOWN_META: Final = frozenset(
    (*_DESCRIPTIONS, META_PROVENANCE, META_SIDECAR, META_EDIT, IDENTITY_ENTRY)
)
# Lanes of one block each, with the type of their numbers; `done` stands for `terminated` if that is not there.
_FLAT: Final[dict[str, tuple[str, DType]]] = {
    REWARD: (REWARD, DType.FLOAT32),
    DONE: (TERMINATED, DType.BOOL),
    TERMINATED: (TERMINATED, DType.BOOL),
    TRUNCATED: (TRUNCATED, DType.BOOL),
    TICKS: (TICKS, DType.INT32),
    TIMESTAMPS: (TIMESTAMPS, DType.INT64),
}
_LAYOUT_FIELDS: Final = frozenset(("length", "layout", "offsets_block", "time_block", "start_ns"))
_MOST_TEXTS: Final = 64
_LONGEST_TEXT: Final = 1 << 16
_EPISODE_ROLE: Final = int(Role.WSHARD)
_CHANNELS: Final = frozenset(("signal", "action", "omen", "uncert"))


# --- descriptions

# The episodes of a dataset mostly have the same `meta/wshard` and `meta/channels`: each text is parsed once, which
# halves the time to open a small episode. What was parsed is read-only.
_known_texts: dict[tuple[str, bytes], Any] = {}


def _read_once(reader: ShardReader, entry: str, make: Callable[[dict[str, Any]], Any]) -> Any:  # noqa: ANN401 - what `make` makes
    text = reader.read_json_text(entry)
    known = _known_texts.get((entry, text))
    if known is None:
        known = make(reader.parse_json(entry, text, rule="W-JSN-1"))
        if len(text) <= _LONGEST_TEXT:
            if len(_known_texts) >= _MOST_TEXTS:
                _known_texts.clear()
            _known_texts[entry, text] = known
    return known


def _fields_and_rows(fields: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Row]]:
    return fields, {row.block: row for row in parse_rows(fields)}


def episode_of(
    reader: ShardReader, *, is_sidecar: bool = False, signals: Mapping[str, Row] | None = None
) -> Episode:
    """The episode in a file of role 5; its blocks are sorted into lanes when a lane is first asked for.

    `signals` are the rows of the episode that a sidecar belongs to.
    """
    entries = reader.rows()
    try:
        facts, origin = _read_descriptions(reader, entries, is_sidecar)
    except ShardError as error:
        raise error.located(path=reader.name) from None
    origin.route = partial(_route, reader, entries, origin.rows, facts.length, signals or {})
    return Episode.from_facts(facts, origin, origin.route)


def _read_descriptions(
    reader: ShardReader, entries: Mapping[str, IndexRow], is_sidecar: bool
) -> tuple[EpisodeFacts, Origin]:
    if reader.role != _EPISODE_ROLE:
        raise BadProfile(
            "not an episode",
            expected=f"a file of role {_EPISODE_ROLE} (wshard)",
            found=f"role {reader.role}",
            rule="W-ROL-1",
            hint="ShardReader opens any file of the family",
            command="'shard info' says what it is",
        )
    if not is_sidecar and META_SIDECAR in entries:
        raise BadProfile(
            "this is a sidecar, which adds lanes to an episode",
            entry=META_SIDECAR,
            hint="open the episode itself; its sidecars are read with it",
            rule="W-ROL-2",
        )
    if META_EPISODE not in entries:
        raise BadProfile("the episode is not described", entry=META_EPISODE, rule="W-ROL-2")
    wshard: dict[str, Any] = {}
    if META_WSHARD in entries:
        wshard = _read_once(reader, META_WSHARD, dict)
    episode = reader.read_json(META_EPISODE, rule="W-JSN-1")
    facts = parse_facts(episode, wshard)
    if facts.length > MOST_UNBACKED and not is_sidecar:
        _check_backed(facts.length, reader, entries)
    channels: dict[str, Any] = {}
    rows: dict[str, Row] = {}
    if META_CHANNELS in entries:
        channels, rows = _read_once(reader, META_CHANNELS, _fields_and_rows)
    if "omen_channels" in wshard or "action_spaces" in episode:
        rows = {**rows, **_older_rows(rows, entries, facts.length, episode, wshard)}
    return facts, Origin(reader, wshard, episode, channels, rows)


def _check_backed(length: int, reader: ShardReader, entries: Mapping[str, IndexRow]) -> None:
    """Refuses a length that no entry has bytes for, before memory for its steps is allocated."""
    for name, entry in entries.items():
        if entry.orig_size >= length:
            try:
                reader.check_sizes(name)
            except DATA_ERRORS:  # its size is a mere claim too
                continue
            return
    raise SizeMismatch(
        "the episode claims more steps than its file has bytes for",
        entry=META_EPISODE,
        expected=f"at most {MOST_UNBACKED}, or an entry with a byte for each step",
        found=f"'length_T' {length}",
        rule="W-EPI-5",
    )


def _older_rows(
    rows: Mapping[str, Row],
    entries: Mapping[str, IndexRow],
    length: int,
    episode: Mapping[str, Any],
    wshard: Mapping[str, Any],
) -> dict[str, Row]:
    """Descriptions that older writers keep elsewhere, where they fit (sections 3 and 10)."""
    found: dict[str, Row] = {}
    for fields, key, block_key, entry in (
        (wshard, "omen_channels", "block", META_WSHARD),
        (episode, "action_spaces", "name", META_EPISODE),
    ):
        listed = fields.get(key)
        for number, row in enumerate(listed if isinstance(listed, list) else ()):
            block = row.get(block_key) if isinstance(row, dict) else None
            if isinstance(block, str) and block in entries and block not in {**rows, **found}:
                name = block.removeprefix("action/")
                parsed = parse_row({**row, "id": name, "signal_block": block}, number, entry)
                if entries[block].orig_size == length * prod(parsed.shape) * parsed.dtype.size:
                    found[block] = parsed
    return found


# --- lanes


def _route(
    reader: ShardReader,
    entries: Mapping[str, IndexRow],
    rows: Mapping[str, Row],
    length: int,
    signals: Mapping[str, Row],
) -> tuple[dict[Address, Any], dict[str, Any] | None]:
    """The parts of the episode in a file by their addresses, and its provenance."""
    try:
        return _Router(reader, entries, rows, length, signals).route()
    except ShardError as error:
        raise error.located(path=reader.name) from None


def _without_layout(row: Row) -> Row:
    """What a row says about the values, for a dense block with one entry per step."""
    said = {key: value for key, value in row.fields.items() if key not in _LAYOUT_FIELDS}
    return row._replace(fields=said)


class _Router:
    """Puts every entry of a file into the lane it belongs to (section 16, step 4)."""

    def __init__(
        self,
        reader: ShardReader,
        entries: Mapping[str, IndexRow],
        rows: Mapping[str, Row],
        length: int,
        signals: Mapping[str, Row],
    ) -> None:
        self._reader = reader
        self._entries = entries
        self._rows = rows
        self._signals = signals
        self._length = length
        self._taken: set[str] = set()
        """Blocks that belong to a channel: its clock, its offsets, its scales."""
        self._parts: dict[Address, Any] = {}

    def route(self) -> tuple[dict[Address, Any], dict[str, Any] | None]:
        parts, rows, extras = self._parts, self._rows, list[str]()
        reader = self._reader
        for name, entry in self._entries.items():
            if name in _KNOWN_META:
                continue
            block = FileBlock(reader, name, entry.orig_size)
            if name in _FLAT:
                self._flat(block)
                continue
            row = rows.get(name)
            address = address_of(name) if row is None else row.address
            lane = address[0]
            if lane in _CHANNELS:
                channel = (
                    self._described(address[-1], row, block)
                    if row is not None
                    else self._undescribed(name, address[-1], block)
                )
                # Another block may have claimed that place: nothing is dropped.
                parts[address if address not in parts else (EXTRA, name)] = channel
            elif lane == "label":
                read = partial(_read_intervals, self._reader, name)
                parts[lane, name.removeprefix("label/")] = Intervals(read=read)
            elif name.startswith("residual/"):
                self._residual(name, block, extras)
            elif name == REWARD_EXACT and row is not None:
                parts[REWARD,] = self._described("reward", row, block)
            else:
                extras.append(name)
        provenance = self._provenance(extras) if META_PROVENANCE in self._entries else None
        # All of them first: the offsets of an extra come before it.
        for name, part in [(name, self._extra(name)) for name in extras]:
            if name not in self._taken:
                parts[EXTRA, name] = part
        return parts, provenance

    def _find(self, name: str) -> Block | None:
        if name not in self._entries:
            return None
        self._taken.add(name)
        return FileBlock(self._reader, name, self._entries[name].orig_size)

    def _described(self, name: str, row: Row, block: Block) -> Channel:
        return channel_from_row(row, name, block, self._length, self._find)

    def _flat(self, block: FileBlock) -> None:
        if block.nbytes == 0 and (self._length or block.is_compressed):
            return  # an empty block means that the lane is absent
        name = block.name
        lane, dtype = _FLAT[name]
        if name == REWARD:
            if REWARD_EXACT in self._entries and REWARD_EXACT in self._rows:
                return
            row = self._rows.get(REWARD)
            if row is not None:
                # `reward` is f32 [T] whatever its row says; the row may say what the numbers mean.
                plain = _without_layout(row)._replace(dtype=dtype, shape=())
                self._parts[lane,] = self._described("reward", plain, block)
                return
        elif name == DONE and TERMINATED in self._entries:
            return
        self._parts[lane,] = Channel.from_source(name, block, dtype, (), self._length)

    def _undescribed(self, name: str, key: str, block: Block) -> Channel:
        # Stream writers describe every channel as a signal, even if only the action is there.
        rows = self._unplaced.get(name[7:], ()) if name.startswith("action/") else ()
        for row in rows:
            if block.nbytes == self._length * prod(row.shape) * row.dtype.size:
                channel = self._described(name[7:], _without_layout(row), block)
                channel.inferred = True
                return channel
        return guessed_channel(key, block, self._length, self._signal)

    @cached_property
    def _unplaced(self) -> dict[str, list[Row]]:
        """Rows whose blocks are not in the file, by id."""
        found: dict[str, list[Row]] = {}
        for row in self._rows.values():
            if row.block not in self._entries:
                found.setdefault(row.id, []).append(row)
        return found

    def _signal(self, channel: str) -> Row | None:
        """The row of a signal that is there (W-CHN-6)."""
        name = f"signal/{channel}"
        return self._rows.get(name) if name in self._entries else self._signals.get(name)

    def _residual(self, name: str, block: Block, extras: list[str]) -> None:
        if name.endswith(SCALES) and name.removesuffix(SCALES) in self._entries:
            return  # comes with its residual
        row = self._rows.get(name)
        keys = prediction_keys(name, {} if row is None else row.fields)
        if keys[2] not in (SIGN_RESIDUAL, DELTA_RESIDUAL) or not keys[0]:
            extras.append(name)
            return
        scales = self._find(name + SCALES)
        residual = StoredResidual(keys, block, row, scales, self._length)
        self._parts["residual", residual_key(name)] = residual

    def _provenance(self, extras: list[str]) -> dict[str, Any] | None:
        try:
            return parse_provenance(self._reader.read_json(META_PROVENANCE, rule="W-JSN-1"))
        except FormatError:
            # For checking tools to tell (W-PRV-1); the recording is readable, and this is kept.
            extras.append(META_PROVENANCE)
            return None

    def _extra(self, name: str) -> Extra | Channel:
        row, entry = self._rows.get(name), self._entries[name]
        block = FileBlock(self._reader, name, entry.orig_size)
        if row is not None and name.partition("/")[0] != "residual":
            return self._described(name, row, block)
        return Extra(name, block=block, content_type=entry.content_type, tag_bits=entry.tag_bits)


def _read_intervals(reader: ShardReader, name: str) -> Intervals:
    fields = reader.read_json(name, rule="W-LAB-1")
    try:
        return Intervals.from_fields(fields)
    except ShardError as error:
        raise error.located(path=reader.name, entry=name) from None


# --- some channels, some lanes


def keep_only(
    episode: Episode, channels: Iterable[str] | None, lanes: Iterable[str] | None
) -> None:
    """Leaves out the lanes and channels that were not asked for."""
    origin = episode.origin
    path = None if origin is None else origin.path
    wanted = None if channels is None else _names(channels, "channels")
    kept = None if lanes is None else _names(lanes, "lanes")
    parts = episode.parts
    names = {address: _filter_names(address, part) for address, part in parts.items()}
    for lane in kept or ():
        if lane not in FILTER_NAMES and not any(lane == own[0] for own in names.values()):
            known = {*FILTER_NAMES, *(own[0] for own in names.values())}
            raise not_found(f"no lane {lane!r}", lane, sorted(known), path)
    for want in wanted or ():
        if not any(fnmatchcase(name, want) for _, own in names.values() for name in own):
            known = {name for _, own in names.values() for name in own}
            raise not_found(f"no channel {want!r}", want, sorted(known), path)
    for address, (lane, own) in names.items():
        is_kept = kept is None or lane in kept
        # Rewards, ends and clocks are part of every selection of channels.
        if is_kept and wanted is not None and LANES[address[0]].keys:
            is_kept = any(fnmatchcase(name, want) for name in own for want in wanted)
        if not is_kept:
            del parts[address]
    if origin is not None:
        origin.is_filtered = True


def _filter_names(address: Address, part: object) -> tuple[str, list[str]]:
    """The lane of a part, and the names by which a caller may ask for it."""
    lane, *keys = address
    if lane == EXTRA:
        return keys[0].partition("/")[0], [keys[0]]
    if isinstance(part, Residual):
        block = f"residual/{keys[0]}"
        about = part.channel_id
        return lane, [about, f"residual/{about}", block, f"{block}/{SIGN_RESIDUAL}"]
    # A channel, its lane with it, and every longer name down to the block.
    names = [*keys[:1], *(block_name((lane, *keys[:count])) for count in range(1, len(keys) + 1))]
    return LANES[lane].filter_name or lane, names or [lane]


def _names(names: Iterable[str], what: str) -> list[str]:
    if isinstance(names, str):
        raise InvalidArgument(f"{what} takes a list of names", hint=f"{what}=[{names!r}]")
    return list(names)
