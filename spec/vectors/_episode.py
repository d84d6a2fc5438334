"""A strict reader of episodes for the self-check: what a file holds, or which rule it breaks.

Follows section 16 of spec/wshard.md in plain Python. Opening checks the rules of episodes; every
lane is a function that checks the rules of its block when it is called.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, cast

from _decode import BrokenRuleError, File, read_entry
from _episode_json import (
    ITEM_SIZES,
    Row,
    Timebase,
    check,
    check_episode,
    check_provenance,
    hints,
    parse_channels,
    parse_entry,
    parse_if_there,
    parse_label,
    timebase_of,
)
from _metadata import EPISODE_ENTRY, ROLE_WSHARD, JsonObject
from _primitives import sha256_hex, step_time

if TYPE_CHECKING:
    from collections.abc import Callable

Path = tuple[str, ...]
"""Where a lane is: ("observations", "state"), ("omens", "state", "model"), ("rewards",)."""

LONGEST_HEX = 512
DESCRIPTIONS = ("meta/wshard", EPISODE_ENTRY, "meta/channels")
NOT_EXTRA = (*DESCRIPTIONS, "meta/provenance", "meta/identity", "meta/sidecar")
ENDS = ("done", "terminated", "truncated")
INTEGERS = ("i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8", "bool")
MAY_HAVE_ONE_MORE = ("signal", "omen", "uncert")
DEFAULT_WINDOW = 256
MOST_UNBACKED = 1 << 20


@dataclass(frozen=True)
class Channel:
    """A block with its description. `pieces` are the items of each step of a ragged channel, or the packets of a video."""

    block: str
    dtype: str
    shape: tuple[int, ...]
    length: int
    data: bytes
    layout: str = "dense"
    inferred: bool = False
    time_axis: bool = True
    pieces: tuple[bytes, ...] = ()
    timestamps_ns: tuple[int, ...] | None = None
    start_ns: int | None = None
    sampling_rate_hz: float | None = None
    horizon: int | None = None
    video: JsonObject | None = None
    decode: Callable[[], JsonObject] | None = None
    """Gives the frames of a video, for whoever has a decoder."""

    def describe(self) -> JsonObject:
        told: JsonObject = {
            "block": self.block,
            "dtype": self.dtype,
            "inferred": self.inferred,
            "layout": self.layout,
            "length": str(self.length),
            "shape": [str(size) for size in self.shape],
        }
        if not self.time_axis:
            told["time_axis"] = False
        if self.horizon is not None:
            told["horizon"] = str(self.horizon)
        if self.layout == "text":
            told["text"] = [piece.decode() for piece in self.pieces]
        elif self.layout == "ragged":
            told["items"] = [piece.hex() for piece in self.pieces]
        elif self.video is not None:
            told |= self.video | {"packets": [piece.hex() for piece in self.pieces]}
        else:
            told |= describe_bytes(_normal(self.data) if self.dtype == "bool" else self.data)
        if self.timestamps_ns is not None:
            told["timestamps_ns"] = [str(time) for time in self.timestamps_ns]
        if self.start_ns is not None:
            told["start_ns"] = str(self.start_ns)
        if self.sampling_rate_hz is not None:
            told["sampling_rate_hz"] = self.sampling_rate_hz
        if self.start_ns is not None and self.sampling_rate_hz is not None:
            told["times_ns"] = [
                str(self.start_ns + step_time(i, self.sampling_rate_hz)) for i in range(self.length)
            ]
        return told


@dataclass(frozen=True)
class Flags:
    """An end of the episode: one truth value a step."""

    block: str
    data: bytes

    def describe(self) -> JsonObject:
        return {"block": self.block, "length": str(len(self.data)), "hex": _normal(self.data).hex()}


@dataclass(frozen=True)
class Numbers:
    """A clock of the episode."""

    values: tuple[int, ...]

    def describe(self) -> list[str]:
        return [str(value) for value in self.values]


@dataclass(frozen=True)
class Plain:
    """Something that is described as it is."""

    value: JsonObject | str

    def describe(self) -> JsonObject | str:
        return self.value


Lane = Channel | Flags | Numbers | Plain
VIDEO_SHAPES = {"u8": (0, 1, 3, 4), "u16": (0, 1)}
"""The numbers of values that a pixel of a video may have; 0 for frames without that axis."""


def _check_video_row(row: Row) -> None:
    """W-VID-5."""
    shape, allowed = row.shape, VIDEO_SHAPES.get(row.dtype, ())
    fine = len(shape) in (2, 3) and all(1 <= size <= 65535 for size in shape[:2])
    fine = fine and (shape[2] if len(shape) == 3 and shape[2] else 0) in allowed
    fine = fine and (len(shape) == 2 or shape[2] > 0)
    check(fine, "bad_metadata", "W-VID-5", f"{row.dtype} {shape}")
    kind = row.text("content_type") or ""
    check(kind.lower().startswith(("video/", "image/")), "bad_metadata", "W-VID-5", kind)
    try:
        base64.b64decode(row.text("extradata") or "", validate=True)
    except ValueError as error:
        raise BrokenRuleError("bad_metadata", f"W-VID-5: {error}") from error


def _pixels(packet: bytes, row: Row) -> bytes:
    """The pixels of an image as `_video.png` makes it (W-VID-6)."""
    width, height = struct.unpack_from(">II", packet, 16)
    check((height, width) == row.shape[:2], "bad_value", "W-VID-6")
    (size,) = struct.unpack_from(">I", packet, 33)
    data = zlib.decompress(packet[41 : 41 + size])
    stride = len(data) // height
    rows = b"".join(data[at + 1 : at + stride] for at in range(0, len(data), stride))
    if row.dtype == "u16":  # PNG stores the upper byte first
        return b"".join(rows[at : at + 2][::-1] for at in range(0, len(rows), 2))
    return rows


def _check_frames(frames: list[tuple[int, int]], length: int) -> None:
    """W-VID-3 and W-VID-4."""
    check(all(0 <= flags <= 3 for _, flags in frames), "bad_value", "W-VID-3")
    place = {step: at for at, (step, flags) in enumerate(frames) if not flags & 2}
    shown = sorted(step for step, flags in frames if not flags & 2)
    check(shown == list(range(length)), "bad_value", "W-VID-3")
    keys = [at for at, (_, flags) in enumerate(frames) if flags & 1]
    before = -1
    for step in range(length):
        usable = [at for at in keys if at <= place[step]][-2:]
        if usable and frames[usable[-1]][0] > step:
            usable.pop()
        elif len(usable) == 2:
            usable = usable[1:]
        fine = bool(usable) and frames[usable[-1]][0] <= step and usable[-1] >= before
        check(fine, "bad_value", "W-VID-4", str(step))
        before = usable[-1]


def _normal(data: bytes) -> bytes:
    return bytes(int(byte != 0) for byte in data)


def describe_bytes(data: bytes) -> JsonObject:
    return {"hex": data.hex()} if len(data) <= LONGEST_HEX else {"sha256": sha256_hex(data)}


@dataclass(frozen=True)
class Episode:
    """An opened episode. Calling a lane reads and checks it."""

    id: str
    env_id: str
    length: int
    timebase: Timebase
    metadata: JsonObject
    chunk_index: int | None
    total_chunks: int | None
    timestep_range: tuple[int, int] | None
    lanes: dict[Path, Callable[[], Lane]]
    files: tuple[File, ...] = ()

    def touch(self, path: Path, *, decode: bool = True) -> Lane:
        lane = self.lanes[path]()
        if decode and isinstance(lane, Channel) and lane.decode is not None:
            return replace(lane, video=(lane.video or {}) | lane.decode())
        return lane

    def describe(self, *, decode: bool = True) -> JsonObject:
        """What the episode holds; without `decode`, what a reader without a decoder sees."""

        def text(value: int | None) -> str | None:
            return None if value is None else str(value)

        told: JsonObject = {
            "id": self.id,
            "env_id": self.env_id,
            "length": str(self.length),
            "timebase": {
                "epoch_ns": str(self.timebase.epoch_ns),
                "tick_hz": self.timebase.tick_hz,
                "type": self.timebase.type,
            },
            "metadata": self.metadata,
            "chunk_index": text(self.chunk_index),
            "total_chunks": text(self.total_chunks),
            "timestep_range": self.timestep_range and [str(step) for step in self.timestep_range],
        }
        for lane in ("rewards", "terminations", "truncations", "ticks", "timestamps_ns"):
            told[lane] = None
        for lane in ("observations", "actions", "omens", "uncerts", "residuals", "labels"):
            told[lane] = {}
        told["extras"] = {}
        for path in self.lanes:
            place = told
            for key in path[:-1]:
                place = cast("JsonObject", place.setdefault(key, {}))
            place[path[-1]] = self.touch(path, decode=decode).describe()
        return told


class _Blocks:
    """The entries of an episode and its sidecars, their rows, and how to read one."""

    def __init__(self, files: tuple[File, ...], length: int) -> None:
        self.length = length
        self.files = files
        self.holder: dict[str, File] = {}
        self.rows: dict[str, Row] = {}
        self.unplaced: list[Row] = []
        for file in files:
            self.holder |= dict.fromkeys(file.by_name, file)
            for row in parse_channels(parse_if_there(file, "meta/channels")).values():
                if row.block in file.by_name:
                    self.rows[row.block] = row
                else:
                    self.unplaced.append(row)
        base = files[0]
        self.hints = hints(parse_if_there(base, "meta/wshard"), "omen_channels", "block")
        self.hints |= hints(parse_if_there(base, EPISODE_ENTRY), "action_spaces", "name")

    def read(self, block: str) -> bytes:
        return read_entry(self.holder[block], block)

    def size(self, block: str) -> int:
        return self.holder[block].by_name[block]["orig_size"]

    def integers(self, block: str, width: int) -> tuple[int, ...]:
        data = self.read(block)
        return tuple(
            int.from_bytes(data[at : at + width], "little", signed=True)
            for at in range(0, len(data), width)
        )

    def inferred(self, block: str) -> Channel:
        """Section 10: the first description whose size fits exactly."""
        size, steps = self.size(block), self.length
        for dtype, shape, guessed in self._guesses(block):
            if steps * math.prod(shape) * ITEM_SIZES[dtype] == size:
                return Channel(block, dtype, shape, steps, self.read(block), inferred=guessed)
        data = self.read(block)
        return Channel(block, "u8", (size,), 1, data, inferred=True, time_axis=False)

    def _guesses(self, block: str) -> list[tuple[str, tuple[int, ...], bool]]:
        size, steps = self.size(block), self.length
        lane, _, rest = block.partition("/")
        channel = rest.partition("/")[0]
        columns = size // (4 * steps) if steps else 0
        found: list[tuple[str, tuple[int, ...], bool]] = []
        if block in self.hints:
            found.append((*self.hints[block], False))
        if lane == "action":
            found += [(row.dtype, row.shape, True) for row in self.unplaced if row.id == rest]
        if lane == "omen" and channel == "latent_action_codebook":
            found += [("i32", (), True), ("i32", (columns,), True)]
        if lane == "omen" and channel == "latent_action":
            found.append(("f32", (columns,), True))
        signal = self.rows.get(f"signal/{channel}")
        if lane in ("omen", "uncert") and signal is not None:
            as_float = lane == "uncert" and signal.dtype in INTEGERS
            found.append(("f32" if as_float else signal.dtype, signal.shape, True))
        return [*found, ("f32", (), True), ("f32", (columns,), True)]

    def channel(self, block: str) -> Channel:
        row = self.rows.get(block)
        if row is None:
            return self.inferred(block)
        readers = {"dense": self._dense, "ragged": self._ragged, "text": self._ragged}
        readers["video"] = self._video
        check(row.layout in readers, "unknown_layout", "W-CHN-7", row.layout)
        made = readers[row.layout](row)
        rate = cast("float | None", row.fields.get("sampling_rate_hz"))
        return replace(
            made,
            timestamps_ns=self._own_clock(row, made.length),
            start_ns=cast("int | None", row.fields.get("start_ns")),
            sampling_rate_hz=rate,
            horizon=cast("int | None", row.fields.get("horizon")),
        )

    def _dense(self, row: Row) -> Channel:
        step = math.prod(row.shape) * ITEM_SIZES[row.dtype]
        lengths = [self.length if row.length is None else row.length]
        if row.length is None and row.block.partition("/")[0] in MAY_HAVE_ONE_MORE:
            lengths.append(self.length + 1)
        for length in lengths:
            unbacked = length > MOST_UNBACKED and length not in (self.length, self.length + 1)
            check(step > 0 or not unbacked, "size_mismatch", "W-BLK-1", row.block)
            if length * step == self.size(row.block):
                return Channel(row.block, row.dtype, row.shape, length, self.read(row.block))
        raise BrokenRuleError("size_mismatch", f"W-BLK-1: {row.block}")

    def _ragged(self, row: Row) -> Channel:
        if row.layout == "text":
            fine = row.dtype == "u8" and row.shape == ()
            check(fine, "bad_metadata", "W-RAG-5")
        item = math.prod(row.shape) * ITEM_SIZES[row.dtype]
        offsets_block = row.text("offsets_block") or ""
        check(offsets_block in self.holder, "bad_profile", "W-RAG-1", offsets_block)
        length = self.length if row.length is None else row.length
        fine = self.size(offsets_block) == 8 * (length + 1)
        check(fine, "size_mismatch", "W-RAG-1")
        check(self.size(row.block) % item == 0, "size_mismatch", "W-RAG-3")
        offsets, data = self.integers(offsets_block, 8), self.read(row.block)
        ordered = all(a <= b for a, b in pairwise(offsets))
        check(offsets[0] == 0 and ordered, "bad_value", "W-RAG-2")
        check(offsets[-1] == len(data) // item, "bad_value", "W-RAG-2")
        pieces = tuple(data[a * item : b * item] for a, b in pairwise(offsets))
        if row.layout == "text":
            try:
                [piece.decode() for piece in pieces]
            except UnicodeDecodeError as error:
                raise BrokenRuleError("bad_value", f"W-RAG-4: {error}") from error
        return Channel(
            row.block, row.dtype, row.shape, length, data, layout=row.layout, pieces=pieces
        )

    def _video(self, row: Row) -> Channel:
        _check_video_row(row)
        offsets_block, frames_block = row.text("offsets_block") or "", row.text("frames_block")
        check(offsets_block in self.holder, "bad_profile", "W-VID-1", offsets_block)
        size = self.size(offsets_block)
        check(size >= 8 and size % 8 == 0, "size_mismatch", "W-VID-1")
        count = size // 8 - 1
        if frames_block is not None:
            check(frames_block in self.holder, "bad_profile", "W-VID-2", frames_block)
            check(self.size(frames_block) == 16 * count, "size_mismatch", "W-VID-2")
        offsets, data = self.integers(offsets_block, 8), self.read(row.block)
        ordered = all(a <= b for a, b in pairwise(offsets))
        fine = offsets[0] == 0 and ordered and offsets[-1] == len(data)
        check(fine, "bad_value", "W-VID-1")
        frames = list(zip(range(count), [1] * count, strict=True))
        if frames_block is not None:
            numbers = self.integers(frames_block, 8)
            frames = list(zip(numbers[::2], numbers[1::2], strict=True))
        length = self.length if row.length is None else row.length
        _check_frames(frames, length)
        packets = tuple(data[a:b] for a, b in pairwise(offsets))
        video: JsonObject = {
            "content_type": row.text("content_type"),
            "extradata": row.text("extradata") or "",
            "steps": [str(step) for step, _ in frames],
            "keyframes": [bool(flags & 1) for _, flags in frames],
            "hidden": [bool(flags & 2) for _, flags in frames],
        }

        def decode() -> JsonObject:
            return {"frames": [_pixels(packet, row).hex() for packet in packets]}

        return Channel(
            *(row.block, row.dtype, row.shape, length, data),
            layout="video",
            pieces=packets,
            video=video,
            decode=decode if row.text("content_type") == "image/png" else None,
        )

    def _own_clock(self, row: Row, length: int) -> tuple[int, ...] | None:
        block = row.text("time_block")
        if block is None:
            return None
        check(block in self.holder, "bad_profile", "W-TIM-3", block)
        check(self.size(block) == 8 * length, "size_mismatch", "W-TIM-3", block)
        return self.integers(block, 8)

    def reward(self, block: str) -> Channel:
        if block in self.rows:
            return self.channel(block)
        check(self.size(block) == 4 * self.length, "size_mismatch", "W-END-1", block)
        return Channel(block, "f32", (), self.length, self.read(block))

    def ends(self, block: str) -> Flags:
        check(self.size(block) == self.length, "size_mismatch", "W-END-1", block)
        return Flags(block, self.read(block))

    def steps_clock(self, block: str, width: int) -> Numbers:
        check(self.size(block) == width * self.length, "size_mismatch", "W-TIM-2", block)
        return Numbers(self.integers(block, width))

    def residual(self, block: str) -> Plain:
        row = self.rows.get(block)
        rest, _, kind = block.removeprefix("residual/").rpartition("/")
        told: JsonObject = {
            "block": block,
            "channel": (row and row.text("channel")) or rest,
            "model": (row and row.text("model")) or "",
            "scales": None,
            "type": (row and row.text("type")) or kind,
            "window": None,
        }
        if told["type"] == "sign2nddiff":
            width = -(-self.length // 8)
            fine = self.size(block) % width == 0 if width else self.size(block) == 0
            check(fine, "size_mismatch", "W-RES-1")
        elif told["type"] == "delta_q":
            scales = f"{block}/scales"
            check(row is not None and scales in self.holder, "bad_profile", "W-RES-2")
            assert row is not None
            window = cast("int", row.fields.get("window", DEFAULT_WINDOW))
            columns = math.prod(row.shape)
            fine = self.size(block) == self.length * columns and row.dtype == "i8"
            check(fine, "size_mismatch", "W-RES-2", "values")
            fine = self.size(scales) == 4 * columns * -(-self.length // window)
            check(fine, "size_mismatch", "W-RES-2", "scales")
            told |= {"window": str(window), "scales": self.read(scales).hex()}
            told["shape"] = [str(size) for size in row.shape]
        return Plain(told | describe_bytes(self.read(block)))

    def extra(self, block: str) -> Plain:
        return Plain(sha256_hex(self.read(block)))


def _routes(blocks: _Blocks) -> dict[Path, Callable[[], Lane]]:
    """Which lane every entry belongs to: section 16, step 4."""
    clocks = {row.text("time_block") for row in blocks.rows.values()}
    offsets = {row.text("offsets_block") for row in blocks.rows.values()}
    offsets |= {row.text("frames_block") for row in blocks.rows.values()}
    used = {*clocks, *offsets, *NOT_EXTRA}
    routes: dict[Path, Callable[[], Lane]] = {}

    def route(path: Path, read: Callable[[str], Lane], block: str) -> None:
        """A path with an empty key, other than the model of an uncertainty, is no lane (W-NAM-2)."""
        lane, *keys = path
        if all(key or (lane == "uncerts" and at == 1) for at, key in enumerate(keys)):
            routes[path] = lambda: read(block)
        else:
            routes["extras", block] = lambda: blocks.extra(block)

    for block in blocks.holder:
        row = blocks.rows.get(block)
        lane, _, rest = block.partition("/")
        if block in used or (lane == "residual" and block.endswith("/delta_q/scales")):
            continue
        if block in ("reward", "reward/exact", *ENDS, "time/ticks", "time/timestamps_ns"):
            continue
        if lane == "signal":
            route(("observations", row.id if row and rest else rest), blocks.channel, block)
        elif lane == "action":
            route(("actions", row.id if row and rest else rest), blocks.channel, block)
        elif lane == "omen":
            channel, _, model = rest.partition("/")
            if row is not None:
                channel = row.text("channel") or channel
                model = row.text("model") or model
            route(("omens", channel, model), blocks.channel, block)
        elif lane == "uncert":
            channel, _, rest = rest.partition("/")
            model, _, kind = rest.rpartition("/")
            if row is not None:
                channel = row.text("channel") or channel
                model = row.text("model") or model
                kind = row.text("type") or kind
            route(("uncerts", channel, model, kind), blocks.channel, block)
        elif lane == "residual":
            key = rest.removesuffix("/sign2nddiff")
            route(("residuals", key), blocks.residual, block)
        elif lane == "label":
            route(("labels", rest), lambda b: Plain(parse_label(blocks.holder[b], b)), block)
        else:
            route(("extras", block), blocks.extra, block)
    _route_singles(blocks, routes)
    return routes


def _route_singles(blocks: _Blocks, routes: dict[Path, Callable[[], Lane]]) -> None:
    def there(*names: str) -> str | None:
        """The first of these blocks that is in the file and not empty."""
        return next((n for n in names if n in blocks.holder and blocks.size(n)), None)

    reward = there("reward/exact", "reward")
    if reward is not None:
        routes["rewards",] = lambda: blocks.reward(reward)
    terminated, truncated = there("terminated", "done"), there("truncated")
    if terminated is not None:
        routes["terminations",] = lambda: blocks.ends(terminated)
    if truncated is not None:
        routes["truncations",] = lambda: blocks.ends(truncated)
    if there("time/ticks"):
        routes["ticks",] = lambda: blocks.steps_clock("time/ticks", 4)
    if there("time/timestamps_ns"):
        routes["timestamps_ns",] = lambda: blocks.steps_clock("time/timestamps_ns", 8)


def open_episode(file: File, sidecars: tuple[File, ...] = ()) -> Episode:
    """An episode of one file, with the lanes of its sidecars."""
    check(file.header["role"] == ROLE_WSHARD, "bad_profile", "W-ROL-1")
    check(EPISODE_ENTRY in file.by_name, "bad_profile", "W-ROL-2")
    check("meta/sidecar" not in file.by_name, "bad_profile", "W-ROL-2", "a sidecar")
    episode = parse_entry(file, EPISODE_ENTRY)
    wshard = parse_if_there(file, "meta/wshard")
    check_episode(episode)
    timebase = timebase_of(episode, wshard)
    length = cast("int", episode.get("length_T", episode.get("length_t")))
    longest = max(entry["orig_size"] for entry in file.by_name.values())
    check(length <= max(MOST_UNBACKED, longest), "size_mismatch", "W-EPI-5")
    steps = cast("list[int] | None", episode.get("timestep_range"))
    if steps == [0, 0] and length != 1:
        steps = None
    blocks = _Blocks((file, *sidecars), length)
    return Episode(
        id=cast("str", episode.get("episode_id", episode.get("id"))),
        env_id=cast("str", episode.get("env_id", "")),
        length=length,
        timebase=timebase,
        metadata=cast("JsonObject", episode.get("metadata") or {}),
        chunk_index=cast("int | None", episode.get("chunk_index")),
        total_chunks=cast("int | None", episode.get("total_chunks")),
        timestep_range=None if steps is None else (steps[0], steps[1]),
        lanes=_routes(blocks),
        files=(file, *sidecars),
    )


def examine(episode: Episode) -> None:
    """What a checking tool does: touch every lane, and the rules that only tools check."""
    for path in episode.lanes:
        episode.touch(path)
    base = episode.files[0]
    if "meta/provenance" in base.by_name:
        check_provenance(parse_entry(base, "meta/provenance", "W-PRV-1"))
    ends = {n: _normal(read_entry(base, n)) for n in ENDS if n in base.by_name}
    if "done" in ends and len(ends) > 1:
        parts = [ends[name] for name in ENDS[1:] if name in ends]
        union = bytes(int(any(step)) for step in zip(*parts, strict=True))
        check(union == ends["done"], "bad_value", "W-END-3")
