"""From an episode to the entries of its file: every lane checked, named and described (spec/wshard.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import numpy as np

from shard_format.errors import BadMetadata, InvalidArgument
from shard_format.registry import Role
from wshard.blocks import FileBlock
from wshard.channels import Channel
from wshard.describing import UNDERSTOOD, UnreadableChannel, row_fields
from wshard.dtypes import DType
from wshard.labels import Intervals
from wshard.metadata import EpisodeFacts, episode_fields, parse_facts, parse_row
from wshard.names import (
    DELTA_RESIDUAL,
    DONE,
    META_EPISODE,
    META_PROVENANCE,
    META_SIDECAR,
    REWARD,
    REWARD_EXACT,
    SCALES,
    TERMINATED,
    TICKS,
    TIMESTAMPS,
    TRUNCATED,
    check_id,
    lane_path,
    offsets_block,
    omen_block,
    residual_block,
    time_block,
    uncert_block,
)
from wshard.planned import Plan, PlannedEntries, PlannedEntry
from wshard.provenance import complete_provenance
from wshard.ragged import RaggedChannel
from wshard.redescribing import changed_descriptions, new_descriptions
from wshard.timebase import TimebaseType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from wshard.blocks import StoredBlock
    from wshard.episode import Episode
    from wshard.origin import Origin
    from wshard.residual_lane import Residual

__all__ = ["plan_blocks"]

Value = TypeVar("Value")

_MODEL: Final = "a model"
_PARTS: Final = {
    "signal": ("a channel of signal/",),
    "action": ("a channel of action/",),
    "omen": ("a predicted channel", _MODEL),
    "uncert": ("a predicted channel", _MODEL, "an uncertainty"),
    "residual": ("a residual's channel", _MODEL, "a residual's type"),
}
"""What the keys of each lane are called in errors."""

_PIECE: Final = 1 << 16
_I32_LIMIT = 1 << 31


def plan_blocks(episode: Episode) -> Plan:
    """Checks an episode and lays out its file.

    Raises:
        InvalidArgument: names the channel that cannot be saved, and why.
    """
    return _Planner(episode).plan()


class _Planner:
    def __init__(self, episode: Episode) -> None:
        self._episode = episode
        self._origin = _usable_origin(episode)
        self._length = episode.length
        self._entries = PlannedEntries(self._origin)
        self._rows: dict[str, dict[str, Any]] = {}
        """The row of each block, as our writers make it."""
        self._clocks: dict[str, bytes] = {}
        """The clocks of channels that are planned already, by block."""

    def plan(self) -> Plan:
        episode = self._episode
        self._check_facts()
        # In order of names: who shares a clock must not depend on who was assigned first.
        for name, channel in _by_name(episode.observations):
            block = self._block_of("signal", (name,), channel.block, f"signal/{name}")
            self._add_channel(block, name, channel, may_have_one_more=True)
        for name, channel in _by_name(episode.actions):
            block = self._block_of("action", (name,), channel.block, f"action/{name}")
            self._add_channel(block, name, channel)
        self._add_reward()
        self._add_ends()
        self._add_time()
        self._add_predictions()
        for residual in episode.residuals.values():
            self._add_residual(residual)
        for name, intervals in episode.labels.items():
            self._add_label(f"label/{name}", intervals)
        for name, extra in _by_name(episode.extras):
            self._add_extra(name, extra)
        if episode.provenance is not None:
            self._entries.add_json(META_PROVENANCE, complete_provenance(episode.provenance))
        self._add_empty()
        self._add_descriptions()
        return Plan(self._entries.in_order())

    # --- what is checked

    def _check_facts(self) -> None:
        episode, origin = self._episode, self._origin
        has_id = bool(episode.id) or (origin is not None and origin.episode_id == episode.id)
        if not _is_text(episode.id) or not has_id:
            raise InvalidArgument(
                "an episode needs an id",
                expected="a string with something in it",
                found=repr(episode.id),
            )
        if not _is_text(episode.env_id):
            raise InvalidArgument("env_id is not a string", found=repr(episode.env_id))
        if not isinstance(episode.metadata, dict):
            raise InvalidArgument(
                "metadata is not a dictionary", found=type(episode.metadata).__name__
            )
        if not episode.timebase.tick_hz > 0:
            raise InvalidArgument(
                "the rate of the timebase is not above 0", found=episode.timebase.tick_hz
            )
        if self._length < 0:
            raise InvalidArgument("the length is negative", found=self._length)
        if str(episode.timebase.type) not in {kind.value for kind in TimebaseType}:
            raise InvalidArgument(
                "unknown type of timebase",
                expected=", ".join(kind.value for kind in TimebaseType),
                found=repr(episode.timebase.type),
            )
        try:
            parse_facts(episode_fields(self._facts()), {})
        except BadMetadata as error:
            raise InvalidArgument(
                error.problem, entry=META_EPISODE, found=error.found, rule=error.rule
            ) from None

    def _facts(self) -> EpisodeFacts:
        episode = self._episode
        return EpisodeFacts(
            *(episode.id, episode.env_id, self._length, episode.timebase, episode.metadata),
            *(episode.chunk_index, episode.total_chunks, episode.timestep_range),
        )

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
        if channel.inferred or channel._has_stated_length:
            return  # what a file holds without a time for each step goes back as it came
        allowed = f"{length} or {length + 1}" if may_have_one_more else f"{length}"
        raise InvalidArgument(
            "the channel has another length than the episode",
            entry=block,
            expected=f"{allowed} steps",
            found=f"{channel.length}",
            hint="a channel with its own rate needs timestamps_ns, or start_ns and sampling_rate_hz",
        )

    # --- lanes

    def _block_of(self, lane: str, path: tuple[str, ...], loaded: str, plain: str) -> str:
        """The block of a channel: the one it was loaded from where that is still meant, else `plain`.

        Args:
            lane: the lane.
            path: its keys there.
            loaded: the block it was loaded from.
            plain: what its keys make.
        """
        origin = self._origin
        if origin is not None and loaded.startswith(lane + "/") and loaded in origin.reader:
            row = origin.rows.get(loaded)
            told = (None, {}) if row is None else (row.id, row.fields)
            if lane_path(loaded, *told) == path:
                return loaded
        for part, what in zip(path, _PARTS[lane], strict=True):
            if part or what != _MODEL or lane == "omen":
                check_id(part, what)
        return plain

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
            self._entries.add(PlannedEntry(block, channel.stored_array, channel.nbytes))
            self._rows[block] = channel.row.fields
            return
        self._check_length(block, channel, may_have_one_more)
        fields = row_fields(channel, row_id, block, self._length)
        fields.update(about or {})
        is_loaded = channel.block == block
        if isinstance(channel, RaggedChannel):
            stored = channel._offsets_block
            offsets_name = stored.name if stored and is_loaded else offsets_block(block)
            fields["offsets_block"] = offsets_name
            self._entries.add_array(offsets_name, channel.offsets, DType.INT64)
        if channel._times is not None or channel._time_block is not None:
            fields["time_block"] = self._add_clock(block, channel, is_loaded)
        self._entries.add(
            PlannedEntry(
                block,
                channel.stored_array,
                channel.nbytes,
                channel.dtype,
                max(1, channel.step_bytes),
                _items_per_step(channel),
                stored=_stored(channel, block),
            )
        )
        if not channel.inferred or (channel._block is None and channel.length == self._length):
            self._check_row(block, channel, fields)
            self._rows[block] = fields

    def _check_row(self, block: str, channel: Channel, fields: dict[str, Any]) -> None:
        """What a user set must make a row that readers take."""
        taken = channel.extra.keys() & UNDERSTOOD
        if taken:
            raise InvalidArgument(
                f"a field of the channel's own is given as extra: {min(taken)!r}", entry=block
            )
        try:
            parse_row(fields, 0)
        except BadMetadata as error:
            raise InvalidArgument(
                error.problem, entry=block, found=error.found, rule=error.rule
            ) from None

    def _add_clock(self, block: str, channel: Channel, is_loaded: bool) -> str:
        times = channel.timestamps_ns
        assert times is not None
        if len(times) != channel.length:
            raise InvalidArgument(
                "a channel's clock has another length than the channel",
                entry=block,
                expected=f"{channel.length} timestamps",
                found=f"{len(times)}",
            )
        stored = times.tobytes()
        if is_loaded and isinstance(channel._time_block, FileBlock):
            name = channel._time_block.name  # shared or not, as its file has it
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
        self._entries.add_array(name, times, DType.INT64)
        return name

    def _add_reward(self) -> None:
        channel = self._episode.rewards
        if channel is None:
            return
        if channel.shape != () or channel.has_own_clock or isinstance(channel, RaggedChannel):
            raise InvalidArgument(
                "rewards are not one number a step",
                entry=REWARD,
                expected="shape [T]",
                found=repr(channel),
                hint="keep several rewards as an observation, and their sum as the reward",
            )
        self._check_length(REWARD, channel, may_have_one_more=False)
        if channel.dtype is DType.FLOAT32:
            self._entries.add(
                PlannedEntry(
                    *(REWARD, channel.stored_array, channel.nbytes, DType.FLOAT32, 4),
                    stored=_stored(channel, REWARD),
                )
            )
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
        self._entries.add_array(REWARD, rounded, DType.FLOAT32)
        if not is_exact or channel.block == REWARD_EXACT or channel.dtype is not DType.FLOAT64:
            self._add_channel(REWARD_EXACT, REWARD_EXACT, channel)
        else:
            self._describe_reward(channel)

    def _describe_reward(self, channel: Channel) -> None:
        """A row for `reward`, where there is more to say than its name does."""
        fields = row_fields(channel, REWARD, REWARD, self._length)
        fields["dtype"] = DType.FLOAT32.value
        if len(fields) > len(_row(REWARD, DType.FLOAT32, (), None, {})) or (
            self._origin is not None and REWARD in self._origin.rows
        ):
            self._check_row(REWARD, channel, fields)
            self._rows[REWARD] = fields

    def _add_ends(self) -> None:
        terminations, truncations = self._episode.terminations, self._episode.truncations
        for block, channel in ((TERMINATED, terminations), (TRUNCATED, truncations)):
            if channel is not None:
                if (
                    channel.shape != ()
                    or channel.has_own_clock
                    or isinstance(channel, RaggedChannel)
                ):
                    raise InvalidArgument(
                        "ends are not one value a step", entry=block, found=repr(channel)
                    )
                self._check_length(block, channel, may_have_one_more=False)
        known = [channel for channel in (terminations, truncations) if channel is not None]
        if not known:
            return
        if truncations is None and terminations is not None and terminations.block != TERMINATED:
            # Only one kind of end is known: `done` says it all.
            self._entries.add(
                PlannedEntry(DONE, terminations.stored_array, self._length, DType.BOOL)
            )
            return
        dones = self._episode.dones
        assert dones is not None
        self._entries.add_array(DONE, self._stored_dones(dones), DType.BOOL)
        if terminations is None:
            # Readers would take `done` for them (W-END-2).
            self._entries.add_array(TERMINATED, np.zeros(self._length, np.bool_), DType.BOOL)
        elif not (self._origin and terminations.block == DONE and DONE in self._origin.reader):
            self._entries.add(
                PlannedEntry(TERMINATED, terminations.stored_array, self._length, DType.BOOL)
            )
        if truncations is not None:
            self._entries.add(
                PlannedEntry(TRUNCATED, truncations.stored_array, self._length, DType.BOOL)
            )

    def _stored_dones(self, dones: NDArray[Any]) -> NDArray[Any]:
        """The ends as the file has them where they mean the same: any byte but 0 is an end."""
        origin = self._origin
        if origin is not None and DONE in origin.reader:
            stored = np.frombuffer(origin.reader.read_entry(DONE), np.uint8)
            if np.array_equal(stored != 0, dones):
                return stored
        return dones

    def _add_time(self) -> None:
        episode = self._episode
        is_new = self._origin is None and META_SIDECAR not in episode.extras
        if episode._ticks is not None or is_new:
            ticks = episode.ticks
            if len(ticks) != self._length or self._length >= _I32_LIMIT:
                raise InvalidArgument(
                    "ticks do not fit the episode",
                    entry=TICKS,
                    expected=f"{self._length} ticks, below 2**31",
                    found=f"{len(ticks)}",
                )
            self._entries.add_array(TICKS, ticks, DType.INT32)
        stamps = episode.timestamps_ns
        if stamps is not None:
            if len(stamps) != self._length:
                raise InvalidArgument(
                    "the timestamps do not fit the episode",
                    entry=TIMESTAMPS,
                    expected=f"{self._length}",
                    found=f"{len(stamps)}",
                )
            self._entries.add_array(TIMESTAMPS, stamps, DType.INT64)

    def _add_predictions(self) -> None:
        for name, models in _by_name(self._episode.omens):
            for model, channel in _by_name(models):
                path = (name, model)
                block = self._block_of("omen", path, channel.block, omen_block(name, model))
                told = lane_path(block, None, {}) == path
                about = {} if told else {"channel": name, "model": model}
                self._add_channel(block, block, channel, may_have_one_more=True, about=about)
        for name, by_model in _by_name(self._episode.uncerts):
            for model, kinds in _by_name(by_model):
                for kind, channel in _by_name(kinds):
                    whole = (name, model, kind)
                    block = self._block_of("uncert", whole, channel.block, uncert_block(*whole))
                    told = lane_path(block, None, {}) == whole
                    about = {} if told else {"channel": name, "model": model, "type": kind}
                    self._add_channel(block, block, channel, may_have_one_more=True, about=about)

    def _add_residual(self, residual: Residual) -> None:
        path = (residual.channel_id, residual.model, residual.type)
        block = self._block_of("residual", path, residual.block, residual_block(*path))
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
            self._entries.add_array(block, data, DType.INT8)
            self._entries.add_array(block + SCALES, scales, DType.FLOAT32)
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
        self._entries.add_array(block, bits, DType.UINT8)
        if residual.is_described or not self._was_undescribed(block):
            dimensions = bits.size // packed if packed else 0
            self._rows[block] = _row(block, DType.UINT8, (packed,), dimensions, about)

    def _was_undescribed(self, block: str) -> bool:
        origin = self._origin
        return origin is not None and block in origin.reader and block not in origin.rows

    def _add_extra(self, name: str, extra: Any) -> None:  # noqa: ANN401 - Extra or Channel
        if isinstance(extra, Channel):
            self._add_channel(name, name, extra, may_have_one_more=True)
            return
        self._entries.add(
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

    def _add_label(self, name: str, intervals: Intervals) -> None:
        origin, fields = self._origin, intervals.to_fields()
        if (
            origin is not None
            and name in origin.reader
            and Intervals.from_fields(origin.reader.read_json(name)).to_fields() == fields
        ):
            self._entries.add_text(name, origin.reader)
        else:
            self._entries.add_json(name, fields)

    def _add_empty(self) -> None:
        """Empty blocks stand for lanes that are not there; some readers want to find them."""
        origin = self._origin
        if origin is None or origin.is_filtered:
            return
        for name in (REWARD, DONE, TERMINATED, TRUNCATED, TICKS, TIMESTAMPS):
            if name in origin.reader and not origin.reader.info(name).size:
                self._entries.add_missing(PlannedEntry(name, bytes, 0))

    # --- descriptions

    def _add_descriptions(self) -> None:
        origin, facts = self._origin, self._facts()
        if origin is None:
            unknown = self._episode.unknown_fields
            for name, fields in new_descriptions(facts, self._rows, unknown).items():
                self._entries.add_json(name, fields)
            return
        sizes = self._entries.sizes()
        for name, kept in changed_descriptions(origin, facts, self._rows, sizes).items():
            if kept is not None:
                self._entries.add_json(name, kept)
            elif name in origin.reader:
                self._entries.add_text(name, origin.reader)


def _usable_origin(episode: Episode) -> Origin | None:
    """The file whose form is kept: an episode's, not a manifest's."""
    origin = episode.origin
    return origin if origin is not None and origin.reader.role == Role.WSHARD else None


def _stored(channel: Channel, block: str) -> StoredBlock | None:
    """The entry that a channel still is: untouched, or seen through a view that cannot be written."""
    source = channel._block
    if source is None or source.name != block or not hasattr(source, "copy_to"):
        return None
    stored = cast("StoredBlock", source)
    return stored if channel._values is None or not source.is_compressed else None


def _row(
    block: str, dtype: DType, shape: tuple[int, ...], length: int | None, about: Mapping[str, Any]
) -> dict[str, Any]:
    fields: dict[str, Any] = {
        **about,
        "dtype": dtype.value,
        "id": block,
        "shape": list(shape),
        "signal_block": block,
    }
    if length is not None:
        fields["length"] = length
    return fields


def _items_per_step(channel: Channel) -> int:
    if not isinstance(channel, RaggedChannel) or not channel.length:
        return 1
    return max(1, round(int(channel.offsets[-1]) / channel.length))


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _by_name(lane: Mapping[str, Value]) -> list[tuple[str, Value]]:
    """A lane in ascending order of names, as UTF-8."""
    return sorted(lane.items(), key=lambda item: str(item[0]).encode(errors="replace"))
