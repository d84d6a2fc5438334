"""Episodes put together from blocks, true unless told otherwise."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from _encode import Container, Entry, encode
from _metadata import ROLE_WSHARD, JsonObject
from _primitives import canonical_json, identity_text, identity_text_2

JSON_TYPE = 2
WSHARD: JsonObject = {
    "endianness": "little",
    "format": "W-SHARD",
    "residual_edges": "pad",
    "version": "0.1",
}
PROVENANCE: JsonObject = {
    "end_state": "",
    "epoch": 0,
    "first_seq": 0,
    "last_seq": 0,
    "prev_identity": "",
    "run_id": "",
    "source": {},
    "start_state": "",
    "v": 1,
}
_SINGLES = ("reward", "reward/exact", "done", "terminated", "truncated", "time/ticks")
_LANES = ("time", "offsets", "frames", "omen", "uncert", "residual", "label")
_ROW_LANES = ("signal", "action", "reward", "omen", "uncert", "residual")


def numbers(code: str, *values: float) -> bytes:
    """Little-endian values; `code` is a letter of the struct module."""
    return struct.pack(f"<{len(values)}{code}", *values)


def f32(*values: float) -> bytes:
    return numbers("f", *values)


def i32(*values: int) -> bytes:
    return numbers("i", *values)


def i64(*values: int) -> bytes:
    return numbers("q", *values)


def ramp_f32(count: int, start: float = 0.0) -> bytes:
    """Quarters, which every float holds exactly."""
    return f32(*(start + 0.25 * i for i in range(count)))


def channel_id(block: str) -> str:
    lane, _, rest = block.partition("/")
    return rest if lane in ("signal", "action") else block


def row_for(block: str, dtype: str, shape: tuple[int, ...] = (), **fields: object) -> JsonObject:
    """A row of meta/channels; fields that are None are left out."""
    row: JsonObject = {
        "dtype": dtype,
        "id": channel_id(block),
        "shape": list(shape),
        "signal_block": block,
    }
    return {key: value for key, value in (row | fields).items() if value is not None}


def episode_fields(
    length: object, *, episode_id: str = "ep", hz: int = 30, **more: object
) -> JsonObject:
    """The object of meta/episode in canonical form."""
    return {
        "env_id": "Env-v0",
        "episode_id": episode_id,
        "length_T": length,
        "timebase": {"dt_ns": round(10**9 / hz), "tick_hz": hz, "type": "ticks"},
    } | more


def in_canonical_order(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """The order of section 15."""

    def place(entry: Entry) -> tuple[int, bytes]:
        name = entry.name_bytes.decode()
        lane = name.partition("/")[0]
        groups = (
            *("meta/wshard", "meta/episode", "meta/channels", "signal", "action"),
            *_SINGLES,
            "time/timestamps_ns",
            *_LANES,
            "*",
            "meta",
            "meta/provenance",
            "meta/identity",
        )
        for key in (name, lane):
            if key in groups:
                return groups.index(key), entry.name_bytes
        return groups.index("*"), entry.name_bytes

    return tuple(sorted(entries, key=place))


def _row_place(row: JsonObject) -> tuple[int, bytes]:
    lane = str(row.get("signal_block", "signal")).partition("/")[0]
    return _ROW_LANES.index(lane) if lane in _ROW_LANES else len(_ROW_LANES), str(
        row["id"]
    ).encode()


@dataclass
class Draft:
    """An episode in the making. `wshard`, `episode` and `channels` may be bytes, or None for none."""

    length: int
    episode: JsonObject | bytes | None = None
    wshard: JsonObject | bytes | None = field(default_factory=lambda: dict(WSHARD))
    channels: JsonObject | bytes | None = None
    blocks: list[Entry] = field(default_factory=list)
    rows: list[JsonObject] = field(default_factory=list)
    ticks: bool = True
    identity: int = 0
    """The version of the identity that it carries; 0 for none."""
    role: int = ROLE_WSHARD
    no_channels: bool = False

    def add(
        self,
        block: str,
        data: bytes = b"",
        dtype: str | None = None,
        shape: tuple[int, ...] = (),
        **fields: object,
    ) -> Draft:
        """A raw block, with a row where `dtype` is given."""
        return self.put(Entry(block, data), dtype, shape, **fields)

    def put(
        self,
        entry: Entry,
        dtype: str | None = None,
        shape: tuple[int, ...] = (),
        **fields: object,
    ) -> Draft:
        self.blocks.append(entry)
        if dtype is not None:
            self.rows.append(row_for(entry.name_bytes.decode(), dtype, shape, **fields))
        return self

    def json(self, block: str, value: JsonObject | bytes) -> Draft:
        text = value if isinstance(value, bytes) else canonical_json(value)
        self.blocks.append(Entry(block, text, content_type=JSON_TYPE))
        return self

    def entries(self) -> tuple[Entry, ...]:
        """All entries in canonical order."""
        made = Draft(self.length, blocks=list(self.blocks))
        if self.wshard is not None:
            made.json("meta/wshard", self.wshard)
        episode = episode_fields(self.length) if self.episode is None else self.episode
        made.json("meta/episode", episode)
        channels = self.channels
        if channels is None:
            channels = {"channels": sorted(self.rows, key=_row_place)}
        if not self.no_channels:
            made.json("meta/channels", channels)
        if self.ticks:
            made.add("time/ticks", i32(*range(self.length)))
        entries = in_canonical_order(tuple(made.blocks))
        if self.identity:
            contents = {entry.name_bytes.decode(): entry.content for entry in entries}
            text = identity_text(contents)
            if self.identity == 2:
                text = identity_text_2(contents, self.role)
            entries = (*entries, Entry("meta/identity", text, content_type=JSON_TYPE))
        return entries

    def container(self) -> Container:
        return Container(self.entries(), role=self.role, alignment=64, name_terminator=b"")

    def data(self) -> bytes:
        return encode(self.container())
