"""From the description of an episode to the entries of its file: section 15 of spec/wshard.md, in plain Python."""

from __future__ import annotations

import base64
import math
import struct
from typing import TYPE_CHECKING, Any

from _encode import Entry
from _episode_draft import PROVENANCE, WSHARD, Draft, i32, i64, numbers, row_for
from _episode_json import ITEM_SIZES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from _metadata import JsonObject

_LARGEST = (1 << 63) - 1
_LARGEST_CODE = 127
_DTYPES = ("f64", "f32", "f16", "i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8", "bool")
_CODES = dict(zip(_DTYPES, "dfeqihbQIHBB", strict=True))
"""The letters of the struct module."""

Told = dict[str, Any]
"""What a case tells."""


def entries_of(told: JsonObject) -> tuple[Entry, ...]:
    """The entries of the canonical file, without `meta/identity`."""
    return _Plan(told).draft.entries()


def timebase_fields(told: Told) -> JsonObject:
    rate, epoch = told["tick_hz"], int(told["epoch_ns"])
    fields: JsonObject = {"tick_hz": rate, "type": told["type"]}
    if rate is not None:
        fields["dt_ns"] = min(round(1e9 / rate), _LARGEST)
    if epoch:
        fields["epoch_ns"] = epoch
    return fields


class _Plan:
    def __init__(self, told: Told) -> None:
        self.told = told
        self.length = int(told["length"])
        self.clocks: dict[str, bytes] = {}
        self.draft = Draft(self.length, episode=self._episode(), ticks=False, wshard=dict(WSHARD))
        for lane, channels in (("signal", "observations"), ("action", "actions")):
            for key in sorted(told.get(channels, {})):
                self._channel(f"{lane}/{key}", told[channels][key])
        self._rewards()
        self._ends()
        self._steps()
        for lane, path, channel in self._predictions():
            about = _about(lane, path)
            self._channel(f"{lane}/{'/'.join(filter(None, path))}", channel, **about)
        for residual in told.get("residuals", ()):
            self._residual(residual)
        for key, label in told.get("labels", {}).items():
            self.draft.json(f"label/{key}", _label(label))
        for name, extra in told.get("extras", {}).items():
            content = bytes.fromhex(extra["hex"])
            self.draft.blocks.append(Entry(name, content, content_type=int(extra["content_type"])))
        if told.get("provenance") is not None:
            self.draft.json("meta/provenance", PROVENANCE | told["provenance"])

    def _episode(self) -> JsonObject:
        told = self.told
        fields: JsonObject = {
            "env_id": told["env_id"],
            "episode_id": told["id"],
            "length_T": self.length,
            "timebase": timebase_fields(told["timebase"]),
        }
        if told.get("metadata"):
            fields["metadata"] = told["metadata"]
        for key in ("chunk_index", "total_chunks"):
            if told.get(key) is not None:
                fields[key] = int(told[key])
        if told.get("timestep_range") is not None:
            fields["timestep_range"] = [int(step) for step in told["timestep_range"]]
        return fields

    def _predictions(self) -> Iterator[tuple[str, tuple[str, ...], Any]]:
        omens, uncerts = self.told.get("omens", {}), self.told.get("uncerts", {})
        for channel in sorted(omens):
            for model in sorted(omens[channel]):
                yield "omen", (channel, model), omens[channel][model]
        for channel in sorted(uncerts):
            for model in sorted(uncerts[channel]):
                for kind in sorted(uncerts[channel][model]):
                    yield "uncert", (channel, model, kind), uncerts[channel][model][kind]

    # --- channels

    def _channel(self, block: str, told: Told, **about: str) -> None:
        fields: dict[str, object] = {**told.get("row", {}), **about}
        dtype, shape = told["dtype"], tuple(int(size) for size in told["shape"])
        content, length = self._content(block, told, fields)
        if length != self.length:
            fields["length"] = length
        for key in ("start_ns", "horizon"):
            if key in told:
                fields[key] = int(told[key])
        if "sampling_rate_hz" in told:
            fields["sampling_rate_hz"] = told["sampling_rate_hz"]
        if "timestamps_ns" in told:
            fields["time_block"] = self._clock(block, i64(*map(int, told["timestamps_ns"])))
        self.draft.add(block, content, dtype, shape, **fields)

    def _content(self, block: str, told: Told, fields: dict[str, object]) -> tuple[bytes, int]:
        """The bytes of a channel and its length; adds its offsets, frames and layout."""
        layout = told.get("layout", "dense")
        item = math.prod(int(size) for size in told["shape"]) * ITEM_SIZES[told["dtype"]]
        if layout == "dense":
            content = bytes.fromhex(told["hex"])
            return content, int(told.get("length", len(content) // item if item else self.length))
        if layout == "text":
            pieces, unit = [text.encode() for text in told["text"]], 1
        elif layout == "ragged":
            pieces, unit = [bytes.fromhex(items) for items in told["items"]], item
        else:
            pieces, unit = [bytes.fromhex(packet) for packet in told["packets"]], 1
        ends = [0]
        for piece in pieces:
            ends.append(ends[-1] + len(piece) // unit)
        fields["layout"] = layout
        fields["offsets_block"] = f"offsets/{block}"
        self.draft.add(f"offsets/{block}", i64(*ends))
        length = len(pieces)
        if layout == "video":
            length = self._frames(block, told, fields)
        return b"".join(pieces), length

    def _frames(self, block: str, told: Told, fields: dict[str, object]) -> int:
        fields["content_type"] = told["content_type"]
        if told.get("extradata"):
            fields["extradata"] = told["extradata"]
            base64.b64decode(told["extradata"], validate=True)
        if "steps" not in told:
            return len(told["packets"])
        rows: list[int] = []
        for step, key, hidden in zip(told["steps"], told["keyframes"], told["hidden"], strict=True):
            rows += [int(step), key | hidden << 1]
        fields["frames_block"] = f"frames/{block}"
        self.draft.add(f"frames/{block}", i64(*rows))
        return sum(not hidden for hidden in told["hidden"])

    def _clock(self, block: str, times: bytes) -> str:
        for name, known in self.clocks.items():
            if known == times:
                return name
        name = f"time/{block}"
        self.clocks[name] = times
        self.draft.add(name, times)
        return name

    # --- lanes of one block

    def _rewards(self) -> None:
        told = self.told.get("rewards")
        if told is None:
            return
        exact = bytes.fromhex(told["hex"])
        rounded = exact
        if told["dtype"] != "f32":
            rounded = b"".join(_as_f32(value) for value in _values(told["dtype"], exact))
        said = told.get("row", {})
        self.draft.add("reward", rounded)
        # Bit by bit: NaN is not equal to itself.
        comes_back = told["dtype"] == "f64" and exact == numbers("d", *_values("f32", rounded))
        if told["dtype"] == "f32" or comes_back:
            if said:
                self.draft.rows.append(row_for("reward", "f32", (), **said))
        else:
            self.draft.add("reward/exact", exact, told["dtype"], (), **said)

    def _ends(self) -> None:
        ends, cuts = (
            None if self.told.get(lane) is None else bytes.fromhex(self.told[lane])
            for lane in ("terminations", "truncations")
        )
        if cuts is None:
            if ends is not None:
                self.draft.add("done", ends)
            return
        ends = bytes(self.length) if ends is None else ends
        self.draft.add("done", bytes(a | b for a, b in zip(ends, cuts, strict=True)))
        self.draft.add("terminated", ends)
        self.draft.add("truncated", cuts)

    def _steps(self) -> None:
        ticks = self.told.get("ticks")
        given = range(self.length) if ticks is None else map(int, ticks)
        self.draft.add("time/ticks", i32(*given))
        if self.told.get("timestamps_ns") is not None:
            self.draft.add("time/timestamps_ns", i64(*map(int, self.told["timestamps_ns"])))

    # --- residuals

    def _residual(self, told: Told) -> None:
        channel, model, kind = told["channel"], told["model"], told["type"]
        signal = self.told["observations"][channel]
        size = math.prod(int(one) for one in signal["shape"])
        x = [float(value) for value in _values(signal["dtype"], bytes.fromhex(signal["hex"]))]
        if model:
            omen = self.told["omens"][channel][model]
            predicted = _values(omen["dtype"], bytes.fromhex(omen["hex"]))
            x = [a - float(b) for a, b in zip(x, predicted, strict=True)]
        columns = [x[dimension::size] for dimension in range(size)]
        block = "/".join(filter(None, ("residual", channel, model, kind)))
        about = {"channel": channel, "type": kind} | ({"model": model} if model else {})
        if kind == "sign2nddiff":
            packed = -(-self.length // 8)
            content = b"".join(map(_signs, columns))
            self.draft.add(block, content, "u8", (packed,), length=size if packed else 0, **about)
            return
        window, shape = int(told["window"]), tuple(int(one) for one in signal["shape"])
        scales, codes = zip(*(_quantised(column, window) for column in columns), strict=True)
        self.draft.add(block, _interleaved(codes), "i8", shape, window=window, **about)
        count = -(-self.length // window)
        self.draft.add(f"{block}/scales", _interleaved(scales), "f32", shape, length=count)


def _about(lane: str, path: tuple[str, ...]) -> dict[str, str]:
    """The keys of a prediction, where its name would be read otherwise (section 2)."""
    name = "/".join(filter(None, path))
    channel, _, rest = name.partition("/")
    read: tuple[str, ...] = (channel, rest)
    if lane == "uncert":
        model, _, kind = rest.rpartition("/")
        read = (channel, model, kind)
    return {} if read == path else dict(zip(("channel", "model", "type"), path, strict=False))


def _label(told: Told) -> JsonObject:
    intervals = []
    for one in told["intervals"]:
        interval: JsonObject = {
            "end": int(one["end"]),
            "start": int(one["start"]),
            "text": one["text"],
        }
        if one.get("source"):
            interval["source"] = one["source"]
        if one.get("confidence") is not None:
            interval["confidence"] = one["confidence"]
        intervals.append(interval)
    return {"intervals": intervals, "unit": told["unit"]}


def _values(dtype: str, data: bytes) -> list[Any]:
    return [value for (value,) in struct.iter_unpack("<" + _CODES[dtype], data)]


def _as_f32(value: float) -> bytes:
    """The nearest 32-bit float; infinite beyond the range."""
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", math.copysign(math.inf, value))


def _signs(x: Sequence[float]) -> bytes:
    bits = 0
    for t in range(1, len(x) - 1):
        bits |= (((2.0 * x[t]) - x[t - 1]) - x[t + 1] > 0) << t
    return bits.to_bytes(-(-len(x) // 8), "little")


def _quantised(d: Sequence[float], window: int) -> tuple[list[bytes], list[bytes]]:
    scales, codes = [], []
    for start in range(0, len(d), window):
        part = d[start : start + window]
        peak = max(map(abs, part))
        (scale,) = struct.unpack("<f", struct.pack("<f", peak / _LARGEST_CODE))
        if scale * _LARGEST_CODE < peak:
            (bits,) = struct.unpack("<I", struct.pack("<f", scale))
            (scale,) = struct.unpack("<f", struct.pack("<I", bits + 1))
        if peak == 0:
            scale = 1.0
        scales.append(struct.pack("<f", scale))
        codes += [round(value / scale).to_bytes(1, "little", signed=True) for value in part]
    return scales, codes


def _interleaved(columns: Sequence[Sequence[bytes]]) -> bytes:
    """The steps of all dimensions, from those of each."""
    return b"".join(value for row in zip(*columns, strict=True) for value in row)
