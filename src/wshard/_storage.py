"""How each block is stored: what the caller asks for, or what trying shows to be best."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format import Codec, Compression
from shard_format.errors import InvalidArgument, check_choice
from shard_format.filters import LARGEST_FRAME, Delta, Filters, Planes, encoded_size
from wshard._blocks import ArrayBlock
from wshard._channels import Channel
from wshard._lanes import block_name, not_found
from wshard._metadata import DEFAULT_RATE_HZ
from wshard._video import VideoChannel
from wshard._video_codec import CodecChoice, is_codec, parse_codec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from wshard._blocks import Block
    from wshard._episode import Episode
    from wshard._plan_episode import PlannedEntry

__all__ = ["Storage", "StoragePolicy"]

AUTO: Final = "auto"
KEEP: Final = "keep"
TRAINING: Final = "training"
EXCHANGE: Final = "exchange"

# Frames of about this size: large enough to compress well, small enough that a window wastes little.
_FRAME_BYTES = 192 << 10
# Differences need several steps in a frame to pay.
_FEWEST_DELTA_STEPS = 16
_LARGEST_DELTA_FRAME = 32 << 20
# Blocks below this stay raw when we choose: a few bytes saved are not worth a decoder.
_SMALLEST_AUTO = 1 << 10
_SAMPLE_BYTES = 512 << 10
# A filter, or a higher level, must save this much more to be taken: simpler is faster.
_WORTH_A_FILTER = 0.97
_RAW = Compression(Codec.NONE)
_BYTE = np.dtype(np.uint8)

_log = logging.getLogger("wshard")


@dataclass(frozen=True, slots=True)
class Storage:
    """How one block is stored."""

    compression: Compression
    frame_bytes: int | None = None
    """Content of one frame of a seekable block; None for one frame."""
    filters: Filters | None = None


class StoragePolicy:
    """Decides for every block of a file.

    Args:
        compression: `"none"`, `"zstd"`, `"zstd:LEVEL"`, `"lz4"`, `"auto"`, `"keep"`, or a mapping of block
            names, channel names or patterns to these, or of cameras to codecs such as `"h264:crf=23"`; None for
            `"keep"`, or for `"auto"` with a profile.
        profile: `"training"`, `"exchange"` or None.
        steps_per_frame: steps in one frame of a seekable block, and from one keyframe of a video to the next, or a
            mapping as for `compression`; None to choose by size.
    """

    def __init__(
        self,
        compression: str | Compression | Mapping[str, str | Compression] | None = None,
        profile: str | None = None,
        steps_per_frame: int | Mapping[str, int] | None = None,
    ) -> None:
        if profile is not None:
            check_choice("profile", profile, (TRAINING, EXCHANGE))
        if compression is None:
            compression = AUTO if profile else KEEP
        self._rules = _rules(compression)
        self._seekable = profile != EXCHANGE
        self._filters = profile == TRAINING
        self._auto_filters = profile != EXCHANGE
        self._steps = (
            dict(steps_per_frame) if isinstance(steps_per_frame, Mapping) else steps_per_frame
        )
        for steps in self._steps.values() if isinstance(self._steps, dict) else [self._steps]:
            if steps is not None and (int(steps) != steps or steps < 1):
                raise InvalidArgument(
                    "steps_per_frame must be an integer of at least 1", found=repr(steps)
                )

    def with_cameras(self, episode: Episode) -> Episode:
        """The episode with those cameras encoded for which a codec for pictures is asked."""
        if not any(isinstance(rule, CodecChoice) for rule in self._rules.values()):
            return episode
        encoded = episode.mapped(lambda part: part)
        for address, part in episode.parts.items():
            block = block_name(address)
            choice = _lookup(self._rules, block, None)
            if isinstance(part, Channel) and isinstance(choice, CodecChoice):
                fps = part.sampling_rate_hz or episode.timebase.tick_hz or DEFAULT_RATE_HZ
                encoded.parts[address] = VideoChannel.encoded(
                    part, choice, fps, self._steps_of(block)
                )
        return encoded

    def _steps_of(self, block: str) -> int | None:
        """What the caller says about the steps in a frame of a block."""
        steps = self._steps
        return _lookup(steps, block, None) if isinstance(steps, dict) else steps

    def check_names(self, entries: Iterable[PlannedEntry]) -> None:
        """Refuses rules for blocks that are not there: a name without a wildcard must fit one of the entries."""
        known = {entry.name for entry in entries}
        known |= {name.partition("/")[2] for name in known if "/" in name}
        for what, rules in (("compression", self._rules), ("steps_per_frame", self._steps)):
            for name in rules if isinstance(rules, dict) else ():
                if name not in known and not set(name) & set("*?["):
                    raise not_found(
                        f"{what} names a block that the episode does not have: {name!r}",
                        name,
                        sorted(known),
                    )

    @property
    def default(self) -> Compression:
        """What the header names as the file's codec."""
        only = next(iter(self._rules.values())) if list(self._rules) == ["*"] else _RAW
        return only if isinstance(only, Compression) else _RAW

    @property
    def keeps_all(self) -> bool:
        """Whether to store the file as the one that it was loaded from."""
        return self._rules == {"*": KEEP}

    def keeps(self, entry: PlannedEntry) -> bool:
        """Whether to copy an entry as its file stores it."""
        return bool(_lookup(self._rules, entry.name, _RAW) == KEEP)

    def for_entry(
        self,
        entry: PlannedEntry,
        most_bytes: int,
        before: Codec = Codec.NONE,
        filters: Filters | None = None,
    ) -> Storage:
        """How to store it. Reads some of it if that must be tried.

        Args:
            entry: the block.
            most_bytes: what readers decompress; a larger block is stored raw, unless a codec is asked for.
            before: how the file that the episode was loaded from stores a block of this name.
            filters: what that file does to the block before it is compressed.
        """
        if entry.name.startswith("meta/") or entry.content_type == 2 or entry.is_encoded:
            return Storage(_RAW)
        wanted = _lookup(self._rules, entry.name, _RAW)
        if isinstance(wanted, CodecChoice):  # a pattern that fits the index of the frames, too
            return Storage(_RAW)
        if wanted == KEEP:  # it was changed: store it as it was stored before
            wanted = Compression(before)
            frame = self._frame_bytes(entry, wanted, filtered=filters is not None)
            known = [each for each, _ in _candidates(entry, 3, False, self._auto_filters)]
            if filters in known[1:] and (frame or entry.nbytes) <= LARGEST_FRAME:  # S-FLT-5
                return Storage(wanted, frame, filters)
        if wanted == AUTO and entry.nbytes > most_bytes:
            _log.warning(
                "storing %s raw, because readers do not decompress more than %d bytes",
                *(entry.name, most_bytes),
            )
            return Storage(_RAW)
        if wanted == AUTO:
            return self._by_trying(entry, None, self._auto_filters)
        assert isinstance(wanted, Compression)
        if wanted.codec is Codec.ZSTD and self._filters:
            return self._by_trying(entry, wanted, True)
        return Storage(wanted, self._frame_bytes(entry, wanted, filtered=False))

    def _frame_bytes(
        self, entry: PlannedEntry, compression: Compression, *, filtered: bool
    ) -> int | None:
        if compression.codec is not Codec.ZSTD or not self._seekable:
            return None
        step = entry.step_bytes
        steps = self._steps_of(entry.name)
        if steps is not None:
            steps *= entry.items_per_step
        else:
            steps = max(1, _FRAME_BYTES // step)
            if filtered and steps < _FEWEST_DELTA_STEPS:
                steps = max(steps, min(_FEWEST_DELTA_STEPS, _LARGEST_DELTA_FRAME // step))
            # A power of two: windows of usual lengths then start on frames more often.
            steps = 1 << (steps.bit_length() - 1) if steps else 1
        frame = steps * step
        return frame if frame < entry.nbytes else None

    def _by_trying(
        self, entry: PlannedEntry, wanted: Compression | None, may_filter: bool
    ) -> Storage:
        if entry.nbytes < _SMALLEST_AUTO and wanted is None:
            return Storage(_RAW)
        block = None if entry.block is None else entry.block()
        if block is None or not block.is_cut_cheaply:
            block = ArrayBlock(entry.name, entry.flat())
        level = 3 if wanted is None or wanted.level is None else wanted.level
        plain_frame = self._frame_bytes(entry, Compression(Codec.ZSTD), filtered=False)
        delta_frame = self._frame_bytes(entry, Compression(Codec.ZSTD), filtered=True)
        samples: dict[int, list[NDArray[np.uint8]]] = {}
        best: tuple[float, Storage] | None = None
        for filters, tried_level in _candidates(entry, level, wanted is None, may_filter):
            frame = delta_frame if filters is not None else plain_frame
            if filters is not None and (frame or entry.nbytes) > LARGEST_FRAME:
                continue  # S-FLT-5
            tried = frame or entry.nbytes
            if tried not in samples:
                samples[tried] = list(_sample(block, tried, entry.step_bytes))
            size = sum(encoded_size(piece.data, tried_level, filters) for piece in samples[tried])
            total = sum(piece.nbytes for piece in samples[tried])
            ratio = size / total if total else 1.0
            if best is None or ratio < best[0] * _WORTH_A_FILTER:
                best = ratio, Storage(Compression(Codec.ZSTD, tried_level), frame, filters)
        assert best is not None
        return best[1] if best[0] < 0.9 else Storage(_RAW)


def _rules(compression: Any) -> dict[str, Any]:  # noqa: ANN401 - checked here
    if is_codec(compression):
        raise InvalidArgument(
            "a codec for pictures is for single channels",
            found=repr(compression),
            hint=f"name the cameras: compression={{'camera': {compression!r}}}",
        )
    if not isinstance(compression, Mapping):
        compression = {"*": compression}
    rules: dict[str, Any] = {}
    for pattern, value in compression.items():
        if is_codec(value):
            rules[pattern] = parse_codec(value)
        else:
            rules[pattern] = value if value in (AUTO, KEEP) else Compression.parse(value)
    return rules


def _lookup(rules: Mapping[str, Any], block: str, default: Any) -> Any:  # noqa: ANN401 - a rule's value
    """The rule for a block: its full name, then its channel's, then the first pattern that fits."""
    channel = block.partition("/")[2]
    for name in (block, channel):
        if name in rules:
            return rules[name]
    for pattern, value in rules.items():
        if fnmatchcase(block, pattern) or fnmatchcase(channel, pattern):
            return value
    return default


def _candidates(
    entry: PlannedEntry, level: int, choose_level: bool, may_filter: bool
) -> Iterator[tuple[Filters | None, int]]:
    """What to try, from simple to elaborate."""
    yield None, level
    if not may_filter or not entry.is_array:
        return
    width, row = entry.dtype.size, entry.step_bytes
    if row % width:
        return
    if width == 1:
        if choose_level:
            yield Filters(Delta(order=1, width=1, row=row)), 1
        yield Filters(Delta(order=1, width=1, row=row)), level
        return
    planes = Planes(width)
    yield Filters(planes=planes), level
    yield Filters(Delta(order=1, width=width, row=row), planes), level
    yield Filters(Delta(order=2, width=width, row=row), planes), level


def _sample(block: Block, frame: int, step: int) -> Iterator[NDArray[np.uint8]]:
    """A few whole frames from the start, the middle and the end; no more than is worth reading."""
    frame = min(frame, max(step, _SAMPLE_BYTES // step * step))
    frames = -(-block.nbytes // frame) if frame else 0
    for number in sorted({0, frames // 2, max(0, frames - 2)}):
        start = number * frame
        count = min(frame, block.nbytes - start)
        if count > 0:
            yield block.part(_BYTE, (count,), start)
