"""Overview files: a strict reader for the self-check, and the files of the vectors (spec/wshard.md, section 18)."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from _decode import File, open_file, read_entry
from _encode import Container, Entry, encode
from _episode import Channel, Flags, describe_bytes
from _episode_json import check, is_integer, parse_dtype, parse_entry
from _episode_sets import load
from _primitives import canonical_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from _metadata import JsonObject

OVERVIEW_ENTRY = "meta/overview"
SUFFIX = ".overview"
MOST_BUCKETS = 4096
MOST_VALUES = 256
MOST_POSTERS = 1024
LONGEST_SIDE = 4096
TOLERANCE = 1e-6
_MAX = 2**63 - 1
CODES = {
    "f64": "d",
    "f32": "f",
    "f16": "e",
    "bf16": "H",
    "i64": "q",
    "i32": "i",
    "i16": "h",
    "i8": "b",
    "u64": "Q",
    "u32": "I",
    "u16": "H",
    "u8": "B",
    "bool": "B",
}
WIDE_MEANS = ("f64", "i64", "i32", "u64", "u32")
JPEG_WITHOUT_SIZES = (b"\x01", *(bytes([code]) for code in range(0xD0, 0xD9)))
JPEG_SIZES = tuple(code for code in range(0xC0, 0xD0) if code not in (0xC4, 0xC8, 0xCC))


@dataclass(frozen=True)
class Block:
    """What a reader of the episode knows about a block that can have a row."""

    dtype: str
    shape: tuple[int, ...]
    length: int
    is_dense: bool
    orig_size: int
    crc32c: int
    data: bytes

    def row(self) -> JsonObject:
        return {
            "crc32c": self.crc32c,
            "dtype": self.dtype,
            "length": self.length,
            "orig_size": self.orig_size,
            "shape": list(self.shape),
        }


def blocks_of(files: Mapping[str, bytes], name: str) -> dict[str, Block]:
    """The blocks of an episode and its sidecars that rows can be about."""
    episode = load(files, name)
    found: dict[str, Block] = {}

    def put(block: str, dtype: str, shape: tuple[int, ...], length: int, layout: str) -> None:
        for file in episode.files:
            if block in file.by_name:
                facts, data = file.by_name[block], read_entry(file, block)
                is_dense = layout == "dense"
                found[block] = Block(
                    *(dtype, shape, length, is_dense, facts["orig_size"], facts["crc32c"], data)
                )

    for path in episode.lanes:
        lane = episode.touch(path, decode=False)
        if isinstance(lane, Channel) and lane.time_axis:
            put(lane.block, lane.dtype, lane.shape, lane.length, lane.layout)
        elif isinstance(lane, Flags):
            put(lane.block, "u8", (), len(lane.data), "dense")
    for file in episode.files:
        for block, facts in file.by_name.items():
            if block.startswith("time/") and block != "time/ticks":
                put(block, "i64", (), facts["orig_size"] // 8, "dense")
    return found


def steps_per_bucket(length: int) -> int:
    return max(1, -(-length // MOST_BUCKETS))


def mean_type(dtype: str) -> str:
    return "f64" if dtype in WIDE_MEANS else "f32"


def _numbers(dtype: str, data: bytes) -> list[float]:
    size = struct.calcsize(CODES[dtype])
    raw = struct.unpack(f"<{len(data) // size}{CODES[dtype]}", data)
    if dtype == "bf16":
        return [float(struct.unpack("<f", struct.pack("<I", bits << 16))[0]) for bits in raw]
    return [int(value != 0) for value in raw] if dtype == "bool" else list(raw)


def _bytes_of(dtype: str, values: Sequence[float]) -> bytes:
    if dtype == "bf16":
        bits = (struct.unpack("<I", struct.pack("<f", value))[0] >> 16 for value in values)
        return struct.pack(f"<{len(values)}H", *bits)
    return struct.pack(f"<{len(values)}{CODES[dtype]}", *values)


def _mean(values: Sequence[float], dtype: str) -> float:
    wide = sum(float(value) for value in values) / len(values)
    return wide if mean_type(dtype) == "f64" else float(struct.unpack("<f", _f32(wide))[0])


def _f32(value: float) -> bytes:
    return struct.pack("<f", value)


@dataclass(frozen=True)
class Arrays:
    """Means, minima and maxima, for each value of a step one per bucket."""

    means: list[float]
    minima: list[float]
    maxima: list[float]

    def data(self, dtype: str) -> bytes:
        return _bytes_of(mean_type(dtype), self.means) + b"".join(
            _bytes_of(dtype, values) for values in (self.minima, self.maxima)
        )


def arrays_of(block: Block) -> Arrays:
    """What the overview of a block must hold."""
    values, width = _numbers(block.dtype, block.data), math.prod(block.shape)
    found = Arrays([], [], [])
    count = steps_per_bucket(block.length)
    for number in range(width):
        line = values[number::width][: block.length]
        for start in range(0, len(line), count):
            bucket = [value for value in line[start : start + count] if not math.isnan(value)]
            nothing = not bucket
            found.means.append(math.nan if nothing else _mean(bucket, block.dtype))
            found.minima.append(math.nan if nothing else min(bucket))
            found.maxima.append(math.nan if nothing else max(bucket))
    return found


def overview_entry(name: str, block: Block, **changes: object) -> Entry:
    data = cast("bytes", changes.get("data", arrays_of(block).data(block.dtype)))
    return Entry(f"overview/{name}", data)


@dataclass(frozen=True)
class Poster:
    """An image and what the file says about it."""

    block: str
    step: int
    width: int
    height: int
    data: bytes

    def row(self) -> JsonObject:
        return {
            "block": self.block,
            "height": self.height,
            "step": self.step,
            "width": self.width,
        }


def overview_fields(
    blocks: Mapping[str, Block], posters: Sequence[Poster] = (), **more: object
) -> JsonObject:
    fields: JsonObject = {"blocks": {name: block.row() for name, block in blocks.items()}, "v": 1}
    if posters:
        fields["posters"] = [poster.row() for poster in posters]
    return fields | more


def overview_file(
    fields: JsonObject | bytes | None,
    overviews: Sequence[Entry] = (),
    posters: Sequence[bytes] = (),
    *,
    role: int = 0,
    more: Sequence[Entry] = (),
) -> bytes:
    """A file in the order of entries that writers use."""
    entries: list[Entry] = []
    if fields is not None:
        text = fields if isinstance(fields, bytes) else canonical_json(fields)
        entries.append(Entry(OVERVIEW_ENTRY, text, content_type=2))
    entries += sorted(overviews, key=lambda entry: entry.name_bytes)
    entries += [Entry(f"poster/{i}", data, content_type=6) for i, data in enumerate(posters)]
    return encode(Container((*entries, *more), role=role, alignment=64))


# --- reading


@dataclass(frozen=True)
class Overviews:
    """An opened overview file, with what is known about the episode."""

    file: File
    rows: dict[str, JsonObject]
    posters: list[JsonObject]
    blocks: dict[str, Block]

    def fits(self, block: str) -> bool:
        """W-OVW-4."""
        known = self.blocks.get(block)
        if known is None or (known.orig_size and not known.crc32c):
            return False
        row = self.rows[block]
        told = {key: row[key] for key in known.row()} | {"dtype": parse_dtype(row["dtype"])}
        return told == known.row()

    def stale(self) -> list[str]:
        return sorted(block for block in self.rows if not self.fits(block))

    def overview(self, block: str) -> bytes:
        """The stored arrays of a block that fits."""
        known = self.blocks[block]
        check(known.is_dense, "bad_profile", "W-OVW-5", block)
        width = math.prod(known.shape)
        check(width <= MOST_VALUES, "limit_exceeded", "W-OVW-5", block)
        buckets = -(-known.length // steps_per_bucket(known.length))
        sizes = struct.calcsize(CODES[mean_type(known.dtype)]) + 2 * struct.calcsize(
            CODES[known.dtype]
        )
        size = self.file.by_name[f"overview/{block}"]["orig_size"]
        check(size == width * buckets * sizes, "size_mismatch", "W-OVW-5", block)
        return read_entry(self.file, f"overview/{block}")

    def poster(self, number: int) -> bytes:
        name, row = f"poster/{number}", self.posters[number]
        check(name in self.file.by_name, "bad_profile", "W-OVW-6", name)
        data = read_entry(self.file, name)
        check(sizes_of_image(data) == (row["width"], row["height"]), "bad_value", "W-OVW-6", name)
        return data

    def touch(self, path: tuple[str, ...]) -> bytes:
        kind, name = path
        return self.overview(name) if kind == "overview" else self.poster(int(name))

    def paths(self) -> list[tuple[str, ...]]:
        """What can be touched."""
        fitting = [block for block in self.rows if self.fits(block)]
        return [
            *(("overview", b) for b in fitting if f"overview/{b}" in self.file.by_name),
            *(("poster", str(i)) for i, row in enumerate(self.posters) if row["block"] in fitting),
        ]

    def examine(self) -> None:
        """W-OVW-7, after everything else."""
        for path in self.paths():
            data = self.touch(path)
            if path[0] == "overview":
                _compare(self.blocks[path[1]], data, path[1])

    def describe(self) -> JsonObject:
        told: JsonObject = {"overviews": {}, "posters": [], "stale": self.stale()}
        for kind, name in self.paths():
            data = self.touch((kind, name))
            if kind == "poster":
                row = self.posters[int(name)]
                cast("list[object]", told["posters"]).append(
                    {key: str(row[key]) for key in ("step", "width", "height")}
                    | {"block": row["block"], "number": name}
                    | describe_bytes(data)
                )
            else:
                cast("JsonObject", told["overviews"])[name] = self._told(name, data)
        return told

    def _told(self, block: str, data: bytes) -> JsonObject:
        known = self.blocks[block]
        count = steps_per_bucket(known.length)
        part = math.prod(known.shape) * -(-known.length // count)
        means = part * struct.calcsize(CODES[mean_type(known.dtype)])
        size = part * struct.calcsize(CODES[known.dtype])
        return {
            "buckets": str(-(-known.length // count)),
            "dtype": known.dtype,
            "maxima": describe_bytes(data[means + size :]),
            "mean_dtype": mean_type(known.dtype),
            "means": describe_bytes(data[:means]),
            "minima": describe_bytes(data[means : means + size]),
            "shape": [str(size) for size in known.shape],
            "steps_per_bucket": str(count),
        }


def sizes_of_image(data: bytes) -> tuple[int, int] | None:
    """Width and height that a JPEG or PNG file states."""
    if data.startswith(b"\x89PNG\r\n\x1a\n") and data[12:16] == b"IHDR" and len(data) >= 24:
        width, height = struct.unpack_from(">II", data, 16)
        return width, height
    if not data.startswith(b"\xff\xd8\xff"):
        return None
    at = 2
    while data[at : at + 1] == b"\xff" and at + 9 <= len(data):
        code = data[at + 1]
        if code == 0xFF:
            at += 1
        elif bytes([code]) in JPEG_WITHOUT_SIZES:
            at += 2
        elif code in JPEG_SIZES:
            height, width = struct.unpack_from(">HH", data, at + 5)
            return width, height
        else:
            at += 2 + max(2, struct.unpack_from(">H", data, at + 2)[0])
    return None


def _compare(block: Block, data: bytes, name: str) -> None:
    true, part = arrays_of(block), len(arrays_of(block).means)
    size, means = struct.calcsize(CODES[block.dtype]), mean_type(block.dtype)
    cut = part * struct.calcsize(CODES[means])
    told = Arrays(
        _numbers(means, data[:cut]),
        _numbers(block.dtype, data[cut : cut + part * size]),
        _numbers(block.dtype, data[cut + part * size :]),
    )

    def fine(condition: bool) -> None:
        check(condition, "bad_value", "W-OVW-7", name)

    for found, expected in zip(told.minima + told.maxima, true.minima + true.maxima, strict=True):
        fine(found == expected or (math.isnan(found) and math.isnan(expected)))
    for at, (found, expected) in enumerate(zip(told.means, true.means, strict=True)):
        if math.isfinite(expected):
            largest = max(abs(true.minima[at]), abs(true.maxima[at]))
            fine(abs(found - expected) <= TOLERANCE * largest)
        elif math.isnan(true.minima[at]):
            fine(math.isnan(found))


def _parse_rows(fields: JsonObject) -> dict[str, JsonObject]:
    def fine(condition: bool, what: str) -> None:
        check(condition, "bad_metadata", "W-OVW-2", what)

    def count(value: object, most: int) -> bool:
        return is_integer(value) and 0 <= cast("int", value) <= most

    fine(is_integer(fields.get("v")) and fields["v"] == 1, "v")
    rows = fields.get("blocks")
    fine(isinstance(rows, dict), "blocks")
    for name, row in cast("dict[str, object]", rows).items():
        fine(isinstance(row, dict), name)
        told = cast("JsonObject", row)
        fine(parse_dtype(told.get("dtype")) is not None, name)
        shape = told.get("shape")
        fine(isinstance(shape, list) and len(shape) <= 31, name)
        sizes = cast("list[int]", shape)
        fine(all(count(size, _MAX) for size in sizes), name)
        fine(0 not in sizes or math.prod(size or 1 for size in sizes) < 2**31, name)
        fine(count(told.get("length"), _MAX) and count(told.get("orig_size"), _MAX), name)
        fine(count(told.get("crc32c"), 2**32 - 1), name)
    return cast("dict[str, JsonObject]", rows)


def _parse_posters(fields: JsonObject, rows: dict[str, JsonObject]) -> list[JsonObject]:
    def fine(condition: bool, what: str) -> None:
        check(condition, "bad_metadata", "W-OVW-3", what)

    posters = fields.get("posters", [])
    fine(isinstance(posters, list), "posters")
    posters = cast("list[object]", posters)
    fine(len(posters) <= MOST_POSTERS, "posters")
    for row in posters:
        fine(isinstance(row, dict), "a row")
        told = cast("JsonObject", row)
        block = told.get("block")
        fine(isinstance(block, str) and block in rows, "block")
        most = {"step": cast("int", rows[cast("str", block)]["length"]) - 1}
        for key in ("step", "width", "height"):
            value = told.get(key)
            fine(is_integer(value), key)
            least, limit = (0, most["step"]) if key == "step" else (1, LONGEST_SIDE)
            fine(least <= cast("int", value) <= limit, key)
    return cast("list[JsonObject]", posters)


def open_overviews(files: Mapping[str, bytes], name: str) -> Overviews:
    file = open_file(files[name + SUFFIX])
    check(OVERVIEW_ENTRY in file.by_name, "bad_profile", "W-OVW-1")
    fields = parse_entry(file, OVERVIEW_ENTRY, "W-OVW-2")
    rows = _parse_rows(fields)
    return Overviews(file, rows, _parse_posters(fields, rows), blocks_of(files, name))
