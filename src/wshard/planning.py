"""What a file will hold: every block with its name, bytes, row and place (spec/wshard.md, section 15)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format._json import canonical
from shard_format.errors import InvalidArgument, ShardError
from shard_format.registry import ContentType, Role
from wshard.blocks import FileBlock
from wshard.channels import Channel
from wshard.describing import row_fields
from wshard.dtypes import DType
from wshard.metadata import EpisodeFacts
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
    TERMINATED,
    TICKS,
    TIMESTAMPS,
    TRUNCATED,
    check_id,
    offsets_block,
    omen_block,
    parse_block,
    residual_block,
    time_block,
    uncert_block,
)
from wshard.provenance import complete_provenance
from wshard.ragged import RaggedChannel
from wshard.redescribing import changed_descriptions, new_descriptions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from shard_format import ShardReader
    from wshard.episode import Episode
    from wshard.origin import Origin
    from wshard.residual_lane import Residual

__all__ = ["Plan", "PlannedEntry", "plan_blocks"]

_ORDER: Final = (
    *(META_WSHARD, META_EPISODE, META_CHANNELS, "signal/", "action/", REWARD, REWARD_EXACT, DONE),
    *(
        TERMINATED,
        TRUNCATED,
        TICKS,
        TIMESTAMPS,
        "time/",
        "offsets/",
        "omen/",
        "uncert/",
        "residual/",
    ),
    *("label/", "", "meta/", META_PROVENANCE),
)
_I32_LIMIT = 1 << 31


@dataclass(slots=True)
class PlannedEntry:
    """One entry of the file to be."""

    name: str
    read: Callable[[], NDArray[Any] | bytes]
    """Gives its bytes; called when they are written."""
    nbytes: int
    dtype: DType = DType.UINT8
    step_bytes: int = 1
    """Frames of a compressed block hold whole steps of this size."""
    content_type: int = 0
    tag_bits: int = 0
    is_array: bool = True
    """False for JSON and for entries that the format does not define."""
    stored: FileBlock | None = None
    """The entry of a file that holds exactly this, so that it can be copied as it is stored."""

    def flat(self) -> NDArray[np.uint8]:
        """Its bytes, read now."""
        data = self.read()
        if isinstance(data, bytes):
            return np.frombuffer(data, np.uint8)
        return np.ascontiguousarray(data).reshape(-1).view(np.uint8)


@dataclass(slots=True)
class Plan:
    """All entries, in the order in which they are written."""

    entries: list[PlannedEntry] = field(default_factory=list)


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
        self._entries: dict[str, PlannedEntry] = {}
        self._rows: dict[str, dict[str, Any]] = {}
        """The row of each block, as our writers make it."""
        self._clocks: dict[bytes, str] = {}
        """The block of each clock that is already planned, by its bytes."""

    def plan(self) -> Plan:
        episode = self._episode
        self._check_facts()
        for name, channel in episode.observations.items():
            block = self._known_block("signal", name, channel)
            self._add_channel(block, name, channel, may_have_one_more=True)
        for name, channel in episode.actions.items():
            self._add_channel(self._known_block("action", name, channel), name, channel)
        self._add_reward()
        self._add_ends()
        self._add_time()
        self._add_predictions()
        for residual in episode.residuals.values():
            self._add_residual(residual)
        for name, intervals in episode.labels.items():
            self._add_json(f"label/{name}", intervals.to_fields())
        for name, extra in episode.extras.items():
            self._add_extra(name, extra)
        if episode.provenance is not None:
            self._add_json(META_PROVENANCE, complete_provenance(episode.provenance))
        self._add_descriptions()
        return Plan(self._in_order())

    # --- what is checked

    def _check_facts(self) -> None:
        episode = self._episode
        if not _is_text(episode.id) or not episode.id:
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
        if channel.inferred and channel._block is not None:
            return  # bytes whose meaning is unknown go back as they came
        allowed = f"{length} or {length + 1}" if may_have_one_more else f"{length}"
        raise InvalidArgument(
            "the channel has another length than the episode",
            entry=block,
            expected=f"{allowed} steps",
            found=f"{channel.length}",
            hint="a channel with its own rate needs timestamps_ns, or start_ns and sampling_rate_hz",
        )

    # --- lanes

    def _known_block(self, lane: str, name: str, channel: Channel) -> str:
        """The block of a channel: its own where its file calls it differently, else `lane/name`."""
        check_id(name, f"a channel of {lane}/")
        plain = f"{lane}/{name}"
        if self._origin is not None and channel.block != plain:
            row = self._origin.rows.get(channel.block)
            if row is not None and row.id == name and channel.block.startswith(lane + "/"):
                return channel.block
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
        self._check_length(block, channel, may_have_one_more)
        fields = row_fields(channel, row_id, block, self._length)
        fields.update(about or {})
        if isinstance(channel, RaggedChannel):
            offsets_name = (
                channel._offsets_block.name if channel._offsets_block else offsets_block(block)
            )
            fields["offsets_block"] = offsets_name
            self._add_array(offsets_name, channel.offsets, DType.INT64)
        if channel._times is not None or channel._time_block is not None:
            fields["time_block"] = self._add_clock(block, channel)
        self._add(
            PlannedEntry(
                block,
                channel.stored_array,
                channel.nbytes,
                channel.dtype,
                max(1, channel.step_bytes),
                stored=_stored(channel, block),
            )
        )
        if not (channel.inferred and channel._block is not None):
            self._rows[block] = fields

    def _add_clock(self, block: str, channel: Channel) -> str:
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
        name = self._clocks.get(stored)
        if name is None:
            name = channel._time_block.name if channel._time_block else time_block(block)
            self._clocks[stored] = name
            self._add_array(name, times, DType.INT64)
        return name

    def _add_reward(self) -> None:
        channel = self._episode.rewards
        if channel is None:
            return
        if channel.shape != ():
            raise InvalidArgument(
                "rewards are not one number a step",
                entry=REWARD,
                expected="shape [T]",
                found=f"[T, {', '.join(map(str, channel.shape))}]",
                hint="keep several rewards as an observation, and their sum as the reward",
            )
        self._check_length(REWARD, channel, may_have_one_more=False)
        if channel.dtype is DType.FLOAT32:
            self._add(
                PlannedEntry(
                    *(REWARD, channel.stored_array, channel.nbytes, DType.FLOAT32, 4),
                    stored=_stored(channel, REWARD),
                )
            )
            if _has_description(channel):
                self._rows[REWARD] = row_fields(channel, REWARD, REWARD, self._length)
            return
        exact = channel.data
        with np.errstate(all="ignore"):
            rounded = exact.astype(np.float32)
            is_exact = np.array_equal(
                rounded.astype(exact.dtype), exact, equal_nan=channel.dtype.is_float
            )
        self._add_array(REWARD, rounded, DType.FLOAT32)
        if not is_exact or channel.block == REWARD_EXACT or channel.dtype is not DType.FLOAT64:
            self._add_channel(REWARD_EXACT, REWARD_EXACT, channel)

    def _add_ends(self) -> None:
        terminations, truncations = self._episode.terminations, self._episode.truncations
        for block, channel in ((TERMINATED, terminations), (TRUNCATED, truncations)):
            if channel is not None:
                if channel.shape != ():
                    raise InvalidArgument(
                        "ends are not one value a step", entry=block, found=list(channel.shape)
                    )
                self._check_length(block, channel, may_have_one_more=False)
        known = [channel for channel in (terminations, truncations) if channel is not None]
        if not known:
            return
        if truncations is None and terminations is not None and terminations.block != TERMINATED:
            # Only one kind of end is known: `done` says it all.
            self._add(PlannedEntry(DONE, terminations.stored_array, self._length, DType.BOOL))
            return
        dones = self._episode.dones
        assert dones is not None
        self._add_array(DONE, dones, DType.BOOL)
        for block, channel in ((TERMINATED, terminations), (TRUNCATED, truncations)):
            if channel is not None:
                self._add(PlannedEntry(block, channel.stored_array, self._length, DType.BOOL))

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
            self._add_array(TICKS, ticks, DType.INT32)
        stamps = episode.timestamps_ns
        if stamps is not None:
            if len(stamps) != self._length:
                raise InvalidArgument(
                    "the timestamps do not fit the episode",
                    entry=TIMESTAMPS,
                    expected=f"{self._length}",
                    found=f"{len(stamps)}",
                )
            self._add_array(TIMESTAMPS, stamps, DType.INT64)

    def _add_predictions(self) -> None:
        for name, models in self._episode.omens.items():
            for model, channel in models.items():
                check_id(name, "a predicted channel")
                check_id(model, "a model")
                block = omen_block(name, model)
                parsed = parse_block(block)
                about = {} if parsed[1:3] == (name, model) else {"channel": name, "model": model}
                self._add_channel(block, block, channel, may_have_one_more=True, about=about)
        for name, by_model in self._episode.uncerts.items():
            for model, kinds in by_model.items():
                for kind, channel in kinds.items():
                    check_id(name, "a predicted channel")
                    check_id(kind, "an uncertainty")
                    if model:
                        check_id(model, "a model")
                    block = uncert_block(name, model, kind)
                    about = (
                        {}
                        if parse_block(block)[1:] == (name, model, kind)
                        else {"channel": name, "model": model, "type": kind}
                    )
                    self._add_channel(block, block, channel, may_have_one_more=True, about=about)

    def _add_residual(self, residual: Residual) -> None:
        check_id(residual.channel_id, "a residual's channel")
        block = residual_block(residual.channel_id, residual.model, residual.type)
        about: dict[str, Any] = {"channel": residual.channel_id, "type": residual.type}
        if residual.model:
            check_id(residual.model, "a residual's model")
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

    # --- descriptions

    def _add_descriptions(self) -> None:
        episode, origin = self._episode, self._origin
        facts = EpisodeFacts(
            *(episode.id, episode.env_id, self._length, episode.timebase, episode.metadata),
            *(episode.chunk_index, episode.total_chunks, episode.timestep_range),
        )
        if origin is None:
            for name, fields in new_descriptions(facts, self._rows).items():
                self._add_json(name, fields)
            return
        sizes = {name: entry.nbytes for name, entry in self._entries.items()}
        for name, kept in changed_descriptions(origin, facts, self._rows, sizes).items():
            if kept is not None:
                self._add_json(name, kept)
            elif name in origin.reader:
                self._add_text(name, origin.reader)

    def _add_text(self, name: str, reader: ShardReader) -> None:
        """A description as its file has it, to the last space."""
        text = reader.read_entry(name)
        content_type = reader.info(name).content_type
        self._add(
            PlannedEntry(name, lambda: text, len(text), content_type=content_type, is_array=False)
        )

    # --- entries

    def _add(self, entry: PlannedEntry) -> None:
        if entry.name in self._entries:
            raise InvalidArgument("two lanes give a block of the same name", entry=entry.name)
        self._entries[entry.name] = entry

    def _add_array(self, name: str, array: NDArray[Any], dtype: DType) -> None:
        stored = array.astype(dtype.numpy_dtype, copy=False)
        step = stored.nbytes // len(stored) if len(stored) else dtype.size
        self._add(PlannedEntry(name, lambda: stored, stored.nbytes, dtype, max(1, step)))

    def _add_json(self, name: str, fields: Mapping[str, Any]) -> None:
        try:
            text = canonical(fields)
        except ShardError as error:
            raise error.located(entry=name) from None
        self._add(
            PlannedEntry(
                name, lambda: text, len(text), content_type=ContentType.JSON, is_array=False
            )
        )

    def _in_order(self) -> list[PlannedEntry]:
        places = {prefix: number for number, prefix in enumerate(_ORDER)}

        def place(name: str) -> tuple[int, bytes]:
            number = places.get(name)
            if number is None:
                lane = name.partition("/")[0] + "/"
                number = places.get(lane, places[""])
            return number, name.encode()

        names = sorted(self._entries, key=place)
        if self._origin is not None:
            before = [name for name in self._origin.reader.names() if name in self._entries]
            known = set(before)
            last = [META_PROVENANCE] if before[-1:] == [META_PROVENANCE] else []
            added = [name for name in names if name not in known]
            names = [*before[: len(before) - len(last)], *added, *last]
        return [self._entries[name] for name in names]


def _usable_origin(episode: Episode) -> Origin | None:
    """The file whose form is kept: an episode's, not a manifest's."""
    origin = episode.origin
    return origin if origin is not None and origin.reader.role == Role.WSHARD else None


def _stored(channel: Channel, block: str) -> FileBlock | None:
    """The entry that a channel still is: untouched, or seen through a view that cannot be written."""
    source = channel._block
    if not isinstance(source, FileBlock) or source.name != block:
        return None
    return source if channel._values is None or not source.is_compressed else None


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


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _has_description(channel: Channel) -> bool:
    return bool(
        channel.unit or channel.description or channel.semantics or channel.extra or channel.lossy
    )
