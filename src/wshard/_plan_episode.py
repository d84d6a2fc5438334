"""From an episode to the entries of its file: every part checked, named and described (spec/wshard.md, section 15)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from shard_format.canonical_json import canonical
from shard_format.errors import BadMetadata, InvalidArgument, ShardError
from shard_format.registry import ContentType, Role
from wshard._blocks import Extra, FileBlock
from wshard._channel_rows import basic_fields, check_row, row_fields
from wshard._channels import Channel, RaggedChannel, UnreadableChannel
from wshard._labels import Intervals
from wshard._lanes import (
    DELTA_RESIDUAL,
    DONE,
    EXTRA,
    LANES,
    META_CHANNELS,
    META_EPISODE,
    META_PROVENANCE,
    META_SIDECAR,
    META_WSHARD,
    REWARD,
    REWARD_EXACT,
    SCALES,
    TERMINATED,
    TICKS,
    TIMESTAMPS,
    TRUNCATED,
    Address,
    address_of,
    block_name,
    check_address,
    check_id,
    frames_block,
    offsets_block,
    prediction_keys,
    residual_block,
    time_block,
)
from wshard._metadata import (
    BASIC_FIELDS,
    ROW_FIELDS,
    WSHARD_FIELDS,
    Row,
    TimebaseType,
    complete_provenance,
    episode_fields,
    parse_facts,
    parse_rows,
)
from wshard._values import DType
from wshard._video import VideoChannel
from wshard.residual import Residual

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import NDArray

    from shard_format import ShardReader
    from wshard._blocks import Block, StoredBlock
    from wshard._episode import Episode, Origin

__all__ = ["PlannedEntry", "plan_entries"]

Rows = dict[str, dict[str, Any]]

_ABOUT: Final = ("channel", "model", "type")
# The order of a new file: whole names, lanes with a slash, and "" for everything else.
_FILE_ORDER: Final = (
    *(META_WSHARD, META_EPISODE, META_CHANNELS, "signal/", "action/", REWARD, REWARD_EXACT, DONE),
    *(TERMINATED, TRUNCATED, TICKS, TIMESTAMPS, "time/", "offsets/", "frames/", "omen/"),
    *("uncert/", "residual/", "label/", "", "meta/", META_PROVENANCE),
)
_ROW_ORDER: Final = ("signal", "action", "reward", "omen", "uncert", "residual")
_PIECE: Final = 1 << 16
_I32_LIMIT: Final = 1 << 31


@dataclass(slots=True)
class PlannedEntry:
    """One entry of the file to be."""

    name: str
    read: Callable[[], NDArray[Any] | bytes]
    """Gives its bytes; called when they are written."""
    nbytes: int
    dtype: DType = DType.UINT8
    step_bytes: int = 1
    """Frames of a compressed block hold whole steps of this size; items of a ragged one."""
    items_per_step: int = 1
    """How many items a step of a ragged block has, on average."""
    content_type: int = 0
    tag_bits: int = 0
    is_encoded: bool = False
    """Whether it holds pictures that are encoded already: compressing them again saves nothing."""
    is_array: bool = True
    """False for JSON and for entries that the format does not define."""
    stored: StoredBlock | None = None
    """The entry of a file that holds exactly this, so that it can be copied as it is stored."""
    block: Callable[[], Block] | None = None
    """Gives its bytes as a block, which can be read in parts, for those that are larger than memory."""

    def flat(self) -> NDArray[np.uint8]:
        """Its bytes, read now."""
        data = self.read()
        if isinstance(data, bytes):
            return np.frombuffer(data, np.uint8)
        return np.ascontiguousarray(data).reshape(-1).view(np.uint8)


def plan_entries(episode: Episode) -> list[PlannedEntry]:
    """Checks an episode and lays out its file.

    Raises:
        InvalidArgument: names the channel that cannot be saved, and why.
    """
    return _Planner(episode).plan()


def in_file_order(address: Address) -> tuple[int, bytes]:
    """A key that sorts addresses as new files have their blocks: by lane, then by name."""
    lanes = list(LANES)
    return lanes.index(address[0]), "/".join(map(str, address[1:])).encode(errors="replace")


class _Planner:
    def __init__(self, episode: Episode) -> None:
        self._episode = episode
        origin = episode.origin
        is_kept = origin is not None and origin.reader.role == Role.WSHARD
        self._origin = origin if is_kept else None
        """The file whose form is kept: an episode's, not a manifest's."""
        self._length = episode.length
        self._entries: dict[str, PlannedEntry] = {}
        self._rows: Rows = {}
        """The row of each block, as our writers make it."""
        self._clocks: dict[str, bytes] = {}
        """The clocks of channels that are planned already, by block."""

    def plan(self) -> list[PlannedEntry]:
        episode = self._episode
        self._check_facts()
        # In order of names: who shares a clock must not depend on who was assigned first.
        for address in sorted(episode.parts, key=in_file_order):
            self._add_part(address, episode.parts[address])
        self._add_ends()
        if (TICKS,) not in episode.parts and self._is_new:
            self._add_clock(TICKS, episode.ticks)
        if episode.provenance is not None:
            self._add_json(META_PROVENANCE, complete_provenance(episode.provenance))
        self._add_empty()
        self._add_descriptions()
        return self._in_order()

    @property
    def _is_new(self) -> bool:
        return self._origin is None and (EXTRA, META_SIDECAR) not in self._episode.parts

    def _add_part(self, address: Address, part: Any) -> None:  # noqa: ANN401 - any part
        lane = address[0]
        if lane == REWARD:
            self._add_reward(part)
        elif lane in (TICKS, TIMESTAMPS):
            self._add_clock(lane, self._episode.ticks if lane == TICKS else part.data, part)
        elif isinstance(part, Residual):
            self._add_residual(part)
        elif isinstance(part, Intervals):
            self._add_label(address, part)
        elif isinstance(part, Extra):
            self._add_extra(address[1], part)
        elif lane not in (TERMINATED, TRUNCATED):
            self._add_lane_channel(address, part)

    # --- entries

    def _add(self, entry: PlannedEntry) -> None:
        if entry.name in self._entries:
            raise InvalidArgument("two lanes give a block of the same name", entry=entry.name)
        self._entries[entry.name] = entry

    def _add_array(self, name: str, array: NDArray[Any], dtype: DType) -> None:
        stored = array.astype(dtype.numpy_dtype, copy=False)
        step = stored.nbytes // len(stored) if len(stored) else dtype.size
        self._add(PlannedEntry(name, lambda: stored, stored.nbytes, dtype, max(1, step)))

    def _add_channel_bytes(self, name: str, channel: Channel, dtype: DType) -> None:
        is_video = isinstance(channel, VideoChannel)
        self._add(
            PlannedEntry(
                name,
                channel.stored_array,
                channel.as_block().nbytes if is_video else channel.nbytes,
                DType.UINT8 if is_video else dtype,
                1 if is_video else max(1, channel.step_bytes),
                _items_per_step(channel),
                is_encoded=is_video,
                stored=_stored(channel, name),
                block=channel.as_block,
            )
        )

    def _add_json(self, name: str, fields: Mapping[str, Any]) -> None:
        try:
            text = canonical(fields)
        except ShardError as error:
            raise error.located(entry=name) from None
        self._add_text(name, text, ContentType.JSON)

    def _add_text(self, name: str, text: bytes, content_type: int) -> None:
        self._add(
            PlannedEntry(name, lambda: text, len(text), content_type=content_type, is_array=False)
        )

    def _keep_text(self, name: str, reader: ShardReader) -> None:
        """A description as its file has it, to the last space."""
        self._add_text(name, reader.read_entry(name), reader.info(name).content_type)

    def _in_order(self) -> list[PlannedEntry]:
        """All of them: in the order of the origin, then by lanes and names."""
        places = {prefix: number for number, prefix in enumerate(_FILE_ORDER)}

        def place(name: str) -> tuple[int, bytes]:
            number = places.get(name)
            if number is None:
                number = places.get(name.partition("/")[0] + "/", places[""])
            return number, name.encode()

        names = sorted(self._entries, key=place)
        if self._origin is not None:
            reader = self._origin.reader
            before = [name for name in reader.names() if name in self._entries]
            for name in before:
                entry = self._entries[name]
                if entry.is_array:
                    info = reader.info(name)
                    entry.content_type, entry.tag_bits = info.content_type, info.tag_bits
            last = [META_PROVENANCE] if before[-1:] == [META_PROVENANCE] else []
            added = [name for name in names if name not in set(before)]
            names = [*before[: len(before) - len(last)], *added, *last]
        return [self._entries[name] for name in names]

    # --- what is checked

    def _check_facts(self) -> None:
        episode, origin = self._episode, self._origin
        base, is_named = episode.timebase, isinstance(episode.id, str)
        has_id = is_named and (episode.id or (origin and origin.episode_id == episode.id))
        kinds = [kind.value for kind in TimebaseType]
        for is_good, problem, found in (
            (has_id, "an episode needs an id: a string with something in it", episode.id),
            (isinstance(episode.env_id, str), "env_id is not a string", episode.env_id),
            (isinstance(episode.metadata, dict), "metadata is not a dictionary", episode.metadata),
            (
                base.tick_hz is None or base.tick_hz > 0,
                *("the rate of the timebase is not above 0", base.tick_hz),
            ),
            (
                str(base.type) in kinds,
                *(f"the type of the timebase is not one of {', '.join(kinds)}", base.type),
            ),
        ):
            if not is_good:
                raise InvalidArgument(problem, found=repr(found)[:80])
        try:
            parse_facts(episode_fields(self._episode.facts), {})
        except BadMetadata as error:
            raise InvalidArgument(
                error.problem, entry=META_EPISODE, found=error.found, rule=error.rule
            ) from None

    def _check_length(self, block: str, channel: Channel, may_have_one_more: bool) -> None:
        length, own = self._length, channel.has_own_clock
        if channel.start_ns is not None and channel.sampling_rate_hz is None:
            raise InvalidArgument(
                "a regular clock needs a rate",
                entry=block,
                hint="set sampling_rate_hz together with start_ns",
            )
        if own or channel.length == length or (may_have_one_more and channel.length == length + 1):
            return
        if channel.inferred or channel.has_stated_length:
            return  # what a file holds without a time for each step goes back as it came
        allowed = f"{length} or {length + 1}" if may_have_one_more else f"{length}"
        raise InvalidArgument(
            "the channel has a different length than the episode",
            entry=block,
            expected=f"{allowed} steps",
            found=f"{channel.length}",
            hint="a channel with its own rate needs timestamps_ns, or start_ns and sampling_rate_hz",
        )

    # --- lanes

    def _block_of(self, address: Address, loaded: str) -> str:
        """The block of a channel: the one it was loaded from where that is still meant, else what its keys make."""
        origin = self._origin
        if origin is not None and loaded in origin.reader:
            row = origin.rows.get(loaded)
            if address == (address_of(loaded) if row is None else row.address):
                return loaded
        check_address(address)
        return block_name(address)

    def _add_lane_channel(self, address: Address, channel: Channel) -> None:
        lane = address[0]
        if lane == EXTRA:
            self._add_channel(address[1], address[1], channel, may_have_one_more=True)
            return
        block = self._block_of(address, channel.block)
        about: dict[str, Any] = {}
        if lane in ("omen", "uncert") and address_of(block) != address:
            about = dict(zip(_ABOUT, address[1:], strict=False))
        self._add_channel(
            block,
            address[1] if lane in ("signal", "action") else block,
            channel,
            may_have_one_more=LANES[lane].may_have_one_more,
            about=about,
        )

    def _add_channel(
        self,
        block: str,
        row_id: str,
        channel: Channel,
        *,
        may_have_one_more: bool = False,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(channel, UnreadableChannel):
            assert channel.row is not None
            self._add(
                PlannedEntry(
                    block, channel.stored_array, channel.nbytes, stored=_stored(channel, block)
                )
            )
            self._rows[block] = channel.row.fields
            return
        self._check_length(block, channel, may_have_one_more)
        fields = row_fields(channel, row_id, block, self._length)
        fields.update(about or {})
        is_loaded = channel.block == block
        if isinstance(channel, (RaggedChannel, VideoChannel)):
            stored = channel.offsets_source
            offsets_name = stored.name if stored and is_loaded else offsets_block(block)
            fields["offsets_block"] = offsets_name
            self._add_array(offsets_name, channel.offsets, DType.INT64)
        if isinstance(channel, VideoChannel) and channel.frames_source is not None:
            name = channel.frames_source.name if is_loaded else frames_block(block)
            fields["frames_block"] = name
            self._add_array(name, channel.index.table, DType.INT64)
        if channel.has_own_timestamps:
            fields["time_block"] = self._add_own_clock(block, channel, is_loaded)
        self._add_channel_bytes(block, channel, channel.dtype_name)
        if not (channel.inferred and self._holds(channel.source, block)):
            # W-INF-1. The file's own block stays undescribed: a guess is not a description.
            check_row(fields, channel.extra)
            self._rows[block] = fields

    def _holds(self, source: Block | None, block: str) -> bool:
        """Whether a block is the entry of that name in the file that the episode was loaded from."""
        origin = self._origin
        return (
            origin is not None
            and isinstance(source, FileBlock)
            and source.reader is origin.reader
            and source.name == block
        )

    def _add_own_clock(self, block: str, channel: Channel, is_loaded: bool) -> str:
        times = channel.timestamps_ns
        assert times is not None
        if len(times) != channel.length:
            raise InvalidArgument(
                "a channel's clock has a different length than the channel",
                entry=block,
                expected=f"{channel.length} timestamps",
                found=f"{len(times)}",
            )
        stored = times.tobytes()
        if is_loaded and isinstance(channel.clock_source, FileBlock):
            name = channel.clock_source.name  # shared or not, as its file has it
            stamps = self._episode.timestamps_ns if name == TIMESTAMPS else None
            if self._clocks.get(name) == stored or (
                stamps is not None and stamps.tobytes() == stored
            ):
                return name
            if name in (TICKS, TIMESTAMPS):
                name = ""
        else:
            name = next((n for n, clock in self._clocks.items() if clock == stored), "")
            if name:
                return name
        number = 1
        base = name = name or time_block(block)
        while name in self._clocks:  # another channel has changed its own
            number += 1
            name = f"{base}/{number}"
        self._clocks[name] = stored
        self._add_array(name, times, DType.INT64)
        return name

    def _add_reward(self, channel: Channel) -> None:
        self._check_flat(REWARD, channel)
        if channel.dtype_name is DType.FLOAT32:
            self._add_channel_bytes(REWARD, channel, DType.FLOAT32)
            self._describe_reward(channel)
            return
        exact = channel.data
        with np.errstate(all="ignore"):
            rounded = exact.astype(np.float32)
            # Piece by piece: a long recording has millions. Bytes, because NaN is not itself.
            is_exact = all(
                rounded[at : at + _PIECE].astype(exact.dtype).tobytes()
                == exact[at : at + _PIECE].tobytes()
                for at in range(0, len(exact), _PIECE)
            )
        self._add_array(REWARD, rounded, DType.FLOAT32)
        if not is_exact or channel.block == REWARD_EXACT or channel.dtype_name is not DType.FLOAT64:
            self._add_channel(REWARD_EXACT, REWARD_EXACT, channel)
        else:
            self._describe_reward(channel)

    def _describe_reward(self, channel: Channel) -> None:
        """A row for `reward`, where there is more to say than its name does."""
        fields = row_fields(channel, REWARD, REWARD, self._length)
        fields["dtype"] = DType.FLOAT32.value
        if fields.keys() != BASIC_FIELDS or (self._origin and REWARD in self._origin.rows):
            check_row(fields, channel.extra)
            self._rows[REWARD] = fields

    def _check_flat(self, block: str, channel: Channel) -> None:
        """Rewards and ends are one value a step."""
        if channel.step_shape or channel.has_own_clock or channel.layout != "dense":
            what = "rewards are" if block == REWARD else "ends are"
            raise InvalidArgument(
                f"{what} not one value a step",
                entry=block,
                expected="shape [T]",
                found=repr(channel),
                hint="store several values per step as an observation",
            )
        self._check_length(block, channel, may_have_one_more=False)

    def _add_ends(self) -> None:
        terminations, truncations = self._episode.terminations, self._episode.truncations
        for block, channel in ((TERMINATED, terminations), (TRUNCATED, truncations)):
            if channel is not None:
                self._check_flat(block, channel)
        dones = self._episode.dones
        if dones is None:
            return
        if truncations is None and terminations is not None and terminations.block != TERMINATED:
            # Only one kind of end is known: `done` says it all.
            self._add_channel_bytes(DONE, terminations, DType.BOOL)
            return
        self._add_array(DONE, self._stored_dones(dones), DType.BOOL)
        if terminations is None:
            # Readers would take `done` for them (W-END-2).
            self._add_array(TERMINATED, np.zeros(self._length, np.bool_), DType.BOOL)
        elif not (self._origin and terminations.block == DONE and DONE in self._origin.reader):
            self._add_channel_bytes(TERMINATED, terminations, DType.BOOL)
        if truncations is not None:
            self._add_channel_bytes(TRUNCATED, truncations, DType.BOOL)

    def _stored_dones(self, dones: NDArray[Any]) -> NDArray[Any]:
        """The ends as the file has them where they mean the same: any byte but 0 is an end."""
        origin = self._origin
        if origin is not None and DONE in origin.reader:
            stored = np.frombuffer(origin.reader.read_entry(DONE), np.uint8)
            if np.array_equal(stored != 0, dones):
                return stored
        return dones

    def _add_clock(self, lane: str, times: NDArray[Any], clock: Channel | None = None) -> None:
        """The clock of the steps, ticks or times."""
        is_ticks = lane == TICKS
        if len(times) != self._length or (is_ticks and self._length >= _I32_LIMIT):
            raise InvalidArgument(
                f"{'ticks' if is_ticks else 'the timestamps'} do not fit the episode",
                entry=lane,
                expected=f"{self._length}{' ticks, below 2**31' if is_ticks else ''}",
                found=f"{len(times)}",
            )
        self._add_array(lane, times, DType.INT32 if is_ticks else DType.INT64)
        if clock is not None:
            self._entries[lane].stored = _stored(clock, lane)

    def _add_residual(self, residual: Residual) -> None:
        keys = (residual.channel_id, residual.model, residual.type)
        block = self._residual_block(keys, residual.block)
        about: dict[str, Any] = {"channel": residual.channel_id, "type": residual.type}
        if residual.model:
            about["model"] = residual.model
        data = residual.data
        if residual.type == DELTA_RESIDUAL:
            scales = residual.scales
            assert scales is not None
            windows = -(-self._length // residual.window)
            if len(data) != self._length or scales.shape != (windows, *data.shape[1:]):
                raise InvalidArgument(
                    "the residual does not fit the episode",
                    entry=block,
                    expected=f"{self._length} steps and {windows} windows of scales",
                    found=f"{list(data.shape)} and {list(scales.shape)}",
                )
            self._add_array(block, data, DType.INT8)
            self._add_array(block + SCALES, scales, DType.FLOAT32)
            self._rows[block] = _row(block, DType.INT8, data.shape[1:], None, about)
            self._rows[block]["window"] = residual.window
            self._rows[block + SCALES] = _row(
                block + SCALES, DType.FLOAT32, data.shape[1:], windows, {}
            )
            return
        packed = -(-self._length // 8)
        bits = data.reshape(-1)
        if (packed and bits.size % packed) or (not packed and bits.size):
            raise InvalidArgument(
                "the packed signs do not fit the episode",
                entry=block,
                expected=f"a multiple of {packed} bytes for {self._length} steps",
                found=f"{bits.size} bytes",
            )
        self._add_array(block, bits, DType.UINT8)
        origin = self._origin
        was_undescribed = origin and block in origin.reader and block not in origin.rows
        if residual.is_described or not was_undescribed:
            dimensions = bits.size // packed if packed else 0
            self._rows[block] = _row(block, DType.UINT8, (packed,), dimensions, about)

    def _residual_block(self, keys: tuple[str, str, str], loaded: str) -> str:
        origin = self._origin
        if origin is not None and loaded in origin.reader:
            row = origin.rows.get(loaded)
            if prediction_keys(loaded, {} if row is None else row.fields) == keys:
                return loaded
        check_id(keys[0], "a residual's channel")
        check_id(keys[1] or "none", "a model")
        check_id(keys[2], "a residual's type")
        return residual_block(*keys)

    def _add_extra(self, name: str, extra: Extra) -> None:
        self._add(
            PlannedEntry(
                name,
                lambda: extra.data,
                extra.nbytes,
                content_type=extra.content_type,
                tag_bits=extra.tag_bits,
                is_array=False,
                stored=extra.stored,
            )
        )

    def _add_label(self, address: Address, intervals: Intervals) -> None:
        name, origin, fields = block_name(address), self._origin, intervals.to_fields()
        if (
            origin is not None
            and name in origin.reader
            and Intervals.from_fields(origin.reader.read_json(name)).to_fields() == fields
        ):
            self._keep_text(name, origin.reader)
        else:
            self._add_json(name, fields)

    def _add_empty(self) -> None:
        """Empty blocks stand for lanes that are not there; some readers want to find them."""
        origin = self._origin
        if origin is None or origin.is_filtered:
            return
        for name in (REWARD, DONE, TERMINATED, TRUNCATED, TICKS, TIMESTAMPS):
            if name in origin.reader and not origin.reader.info(name).size:
                self._entries.setdefault(name, PlannedEntry(name, bytes, 0))

    # --- descriptions

    def _add_descriptions(self) -> None:
        origin, wanted = self._origin, episode_fields(self._episode.facts)
        if origin is None:
            unknown = self._episode.unknown_fields
            self._add_json(META_WSHARD, {**WSHARD_FIELDS, **unknown.wshard})
            self._add_json(META_EPISODE, {**unknown.episode, **wanted})
            self._add_json(META_CHANNELS, {"channels": _rows_in_order(self._rows, self._rows)})
            return
        # What is still true stays as it is, to the last space.
        before = episode_fields(parse_facts(origin.episode, origin.wshard))
        wshard = dict(origin.wshard)
        if before["timebase"] != wanted["timebase"]:
            wshard.pop("timebase", None)
        for name, old, new in (
            (META_WSHARD, origin.wshard, wshard),
            (META_EPISODE, origin.episode, _merged(origin.episode, before, wanted)),
            (META_CHANNELS, origin.channels, self._changed_rows(origin)),
        ):
            if new != old:
                self._add_json(name, new)
            elif name in origin.reader:
                self._keep_text(name, origin.reader)

    def _changed_rows(self, origin: Origin) -> dict[str, Any]:
        """`meta/channels` of an episode that was loaded: a row that still says what is true stays as it is."""
        listed = {row.block: row for row in parse_rows(origin.channels)}
        kept, changed = [], False
        for block, row in listed.items():
            mine = self._rows.get(block)
            as_listed = {
                "id": row.id,
                "signal_block": block,
                **row.fields,
            }  # or the older map has it
            if self._is_still_true(row):
                is_gone = block in origin.reader and block not in self._entries
                kept += [] if is_gone else [row.fields if "id" in row.fields else as_listed]
                changed |= is_gone
                continue
            changed = True
            if mine is not None:
                unknown = {k: v for k, v in row.fields.items() if k not in ROW_FIELDS}
                kept.append({**unknown, **mine})
        known = {
            block
            for block, row in origin.rows.items()
            if block in listed or self._is_still_true(row)
        }
        new = [block for block in self._rows if block not in known]
        if not new and not changed:
            return origin.channels
        others = dict(origin.channels) if "channels" in origin.channels else {}
        others.pop("modality_groups", None)  # derived by older writers, and no longer right
        return {**others, "channels": kept + _rows_in_order(self._rows, new)}

    def _is_still_true(self, row: Row) -> bool:
        """Whether a stored row says what we would write for its block now."""
        mine = self._rows.get(row.block)
        if mine == row.fields:
            return True
        loaded, length = self._loaded
        is_outdated = "length" in row.fields and length != self._length
        return not is_outdated and mine == loaded.get(row.block)

    @cached_property
    def _loaded(self) -> tuple[Rows, int]:
        """The rows that we would write for the episode as its file has it, and its length there."""
        origin = self._origin
        assert origin is not None
        assert origin.route is not None
        episode = self._episode.mapped(lambda part: part)
        episode.length = parse_facts(origin.episode, origin.wshard).length
        episode.parts.clear()
        episode.parts.update(origin.route()[0])
        return _Planner(episode).plan_rows(), episode.length

    def plan_rows(self) -> Rows:
        """The rows of all parts that have one and could be saved."""
        for address in sorted(self._episode.parts, key=in_file_order):
            part = self._episode.parts[address]
            if isinstance(part, (Channel, Residual)):
                with suppress(ShardError):
                    self._add_part(address, part)
        return self._rows


def _stored(channel: Channel, block: str) -> StoredBlock | None:
    """The stored entry that a channel still equals: arrays of a channel are read-only, so it cannot have changed."""
    source = channel.source
    if source is None or source.name != block or not hasattr(source, "copy_to"):
        return None
    return cast("StoredBlock", source)


def _row(
    block: str, dtype: DType, shape: tuple[int, ...], length: int | None, about: Mapping[str, Any]
) -> dict[str, Any]:
    stated = {} if length is None else {"length": length}
    return {**about, **basic_fields(block, block, dtype, shape), **stated}


def _items_per_step(channel: Channel) -> int:
    if not isinstance(channel, RaggedChannel) or not channel.length:
        return 1
    return max(1, round(int(channel.offsets[-1]) / channel.length))


def _rows_in_order(rows: Rows, blocks: Iterable[str]) -> list[dict[str, Any]]:
    def place(block: str) -> tuple[int, bytes]:
        lane = block.partition("/")[0]
        group = _ROW_ORDER.index(lane) if lane in _ROW_ORDER else len(_ROW_ORDER)
        return group, rows[block]["id"].encode()

    return [rows[block] for block in sorted(blocks, key=place)]


def _merged(
    stored: dict[str, Any], before: Mapping[str, Any], wanted: Mapping[str, Any]
) -> dict[str, Any]:
    """The stored fields with those replaced that mean something else now."""
    merged = dict(stored)
    older = {"episode_id": "id", "length_T": "length_t"}
    for key in before.keys() | wanted.keys():
        if before.get(key) == wanted.get(key):
            continue
        merged.pop(older.get(key, key), None)
        if key in wanted:
            merged[key] = wanted[key]
        else:
            merged.pop(key, None)
    return merged
