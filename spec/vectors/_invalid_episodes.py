"""Episodes of one file that break a rule. As containers all of them are fine."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from _compress import lz4_between, zstd_spaces
from _encode import Container, Entry, encode
from _episode_draft import PROVENANCE, Draft, episode_fields, f32, i64, ramp_f32
from _layout import LZ4, ZSTD
from _primitives import canonical_json
from _valid_episodes import STATE, base, ragged_blocks, text_blocks
from _vector import InvalidEpisode
from _video import HIDDEN, KEYFRAME, png, video_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _metadata import JsonObject

FILE = "ep.wshard"
HUGE = 2**63 - 1


def _bad(
    name: str,
    description: str,
    rule: str,
    data: Draft | bytes,
    *,
    error: str = "bad_metadata",
    when: str = "open",
    touch: tuple[str, ...] = (),
    also: tuple[str, ...] = (),
    rules_also: tuple[str, ...] = (),
) -> InvalidEpisode:
    made = data.data() if isinstance(data, Draft) else data
    when = "touch" if touch else when
    return InvalidEpisode(
        name=name,
        description=description,
        rule=rule,
        error=error,
        when=when,
        files={FILE: made},
        touch=touch,
        also=also,
        rules_also=rules_also,
    )


def _roles() -> Iterator[InvalidEpisode]:
    for role in (0, 1, 8, 200):
        draft = base()
        draft.role = role
        what = f"An episode in a file of role {role}."
        yield _bad(f"role_{role}", what, "W-ROL-1", draft, error="bad_profile")
    empty = Container((), role=5, name_terminator=b"")
    yield _bad("empty", "No entries.", "W-ROL-2", encode(empty), error="bad_profile")
    entries = tuple(entry for entry in base().entries() if entry.name != "meta/episode")
    absent = encode(Container(entries, role=5, name_terminator=b""))
    yield _bad(
        "episode_absent", "Everything but meta/episode.", "W-ROL-2", absent, error="bad_profile"
    )
    renamed = encode(Container((Entry("meta/Episode", b'{"episode_id":"","length_T":0}'),), role=5))
    yield _bad(
        "episode_in_capitals",
        "meta/Episode is another name.",
        "W-ROL-2",
        renamed,
        error="bad_profile",
    )


EPISODE_TEXT = b'{"episode_id":"ep","length_T":4'


def _texts() -> Iterator[InvalidEpisode]:
    texts = {
        "empty": ("No bytes.", b""),
        "not_json": ("Not JSON.", b"episode 7"),
        "list": ("A list.", b'[{"episode_id":"ep","length_T":4}]'),
        "string": ("A string.", b'"ep"'),
        "null": ("null.", b"null"),
        "cut": ("The closing brace is missing.", EPISODE_TEXT),
        "nan": ("NaN.", EPISODE_TEXT + b',"x":NaN}'),
        "infinity": ("Infinity.", EPISODE_TEXT + b',"x":[Infinity]}'),
        "minus_infinity": ("-Infinity.", EPISODE_TEXT + b',"metadata":{"x":-Infinity}}'),
        "number_too_large": ("1e309.", EPISODE_TEXT + b',"x":1e309}'),
        "repeated_key": ("length_T twice.", EPISODE_TEXT + b',"length_T":4}'),
        "repeated_key_inside": (
            "A repeated key in metadata.",
            EPISODE_TEXT + b',"metadata":{"a":1,"a":1}}',
        ),
        "depth_129": ("129 levels.", EPISODE_TEXT + b',"x":' + b"[" * 128 + b"]" * 128 + b"}"),
        "depth_3000": ("3000 levels.", EPISODE_TEXT + b',"x":' + b"[" * 2999 + b"]" * 2999 + b"}"),
        "depth_unclosed": ("3000 opening brackets.", EPISODE_TEXT + b',"x":' + b"[" * 3000),
        "bom": ("A byte order mark.", b"\xef\xbb\xbf" + EPISODE_TEXT + b"}"),
        "utf16": ("UTF-16.", (EPISODE_TEXT + b"}").decode().encode("utf-16-le")),
        "invalid_utf8": ("The byte FF in a string.", EPISODE_TEXT + b',"x":"\xff"}'),
        "surrogate": ("A lone surrogate.", EPISODE_TEXT + b',"x":"\\udc00"}'),
        "trailing": ("A second object.", EPISODE_TEXT + b"}{}"),
        "trailing_nul": ("A NUL after the object.", EPISODE_TEXT + b"}\0"),
    }
    for name, (what, text) in texts.items():
        draft = base()
        draft.episode = text
        yield _bad(f"episode_json_{name}", f"meta/episode: {what}", "W-JSN-1", draft)
    compressed = {
        "too_long": (
            "One byte more than 16 MiB, most of them spaces.",
            *("S-SCH-7", "limit_exceeded", ZSTD),
            zstd_spaces(EPISODE_TEXT, (16 << 20) - len(EPISODE_TEXT), b"}"),
        ),
        "too_many_values": (
            "A list of a million numbers.",
            *("S-SCH-8", "limit_exceeded", LZ4),
            lz4_between(EPISODE_TEXT + b',"x":[0', b",0", 999_999, b',0],"y":"end"}'),
        ),
        "escaped_quotes": (
            "129 lists, and a string of escaped quotes that does not end.",
            *("W-JSN-1", "bad_metadata", LZ4),
            lz4_between(EPISODE_TEXT + b',"x":' + b"[]," * 129 + b'"', b'\\"', 1 << 20, b" " * 12),
        ),
    }
    for name, (what, rule, error, flags, (content, stored)) in compressed.items():
        entries = tuple(
            replace(entry, content=content, flags=flags, stored=stored)
            if entry.name == "meta/episode"
            else entry
            for entry in base().entries()
        )
        data = encode(Container(entries, role=5, alignment=64, name_terminator=b""))
        yield _bad(f"episode_json_{name}", f"meta/episode: {what}", rule, data, error=error)
    others = {
        "not_json": ("Not JSON.", b"version 1"),
        "empty": ("No bytes.", b""),
        "list": ("A list.", b"[]"),
        "nan": ("NaN.", b'{"x":NaN}'),
        "repeated_key": ("A repeated key.", b'{"x":{"y":1,"y":2}}'),
        "depth_129": ("129 levels.", b'{"x":' + b"[" * 128 + b"]" * 128 + b"}"),
    }
    for name, (what, text) in others.items():
        draft = base()
        draft.wshard = text
        yield _bad(f"wshard_json_{name}", f"meta/wshard: {what}", "W-JSN-1", draft)
        draft = base()
        draft.channels = text
        yield _bad(f"channels_json_{name}", f"meta/channels: {what}", "W-JSN-1", draft)


def _episode_fields() -> Iterator[InvalidEpisode]:
    def changed(
        name: str, what: str, rule: str, change: JsonObject, without: tuple[str, ...] = ()
    ) -> InvalidEpisode:
        draft = base()
        fields = episode_fields(4) | change
        draft.episode = {key: value for key, value in fields.items() if key not in without}
        return _bad(f"episode_{name}", what, rule, draft)

    yield changed("id_missing", "Neither episode_id nor id.", "W-EPI-1", {}, ("episode_id",))
    yield changed("length_missing", "No length_T.", "W-EPI-2", {}, ("length_T",))
    wrong: dict[str, tuple[str, tuple[object, ...]]] = {
        "episode_id": ("W-EPI-1", (7, None, ["ep"], {}, True)),
        "env_id": ("W-EPI-1", (7, ["env"])),
        "length_T": ("W-EPI-2", (-1, True, 4.5, "4", None, [4], 2**63, 10**30)),
        "timebase": ("W-EPI-3", ("ticks", 30, [])),
        "metadata": ("W-EPI-3", ("text", 1, [], False)),
        "chunk_index": ("W-EPI-4", (-1, "0", 1.5, True, [0])),
        "total_chunks": ("W-EPI-4", (-1, "3", 2.5, False, {})),
        "timestep_range": (
            "W-EPI-4",
            ([0], [0, 1, 2], [], "0-3", [0, "3"], [0, 3.5], [3, 2], {"0": 3}, [True, 1], 3),
        ),
    }
    for field, (rule, values) in wrong.items():
        for number, value in enumerate(values):
            what = f"{field} is {canonical_json(value).decode()}."
            yield changed(f"{field.lower()}_wrong_{number}", what, rule, {field: value})
    old: JsonObject = {"id": 7}
    yield changed("old_id_wrong", "id is 7.", "W-EPI-1", old, ("episode_id",))
    old = {"length_t": "4"}
    yield changed("old_length_wrong", 'length_t is "4".', "W-EPI-2", old, ("length_T",))
    beyond: JsonObject = {"chunk_index": 3, "total_chunks": 3}
    yield changed("chunk_index_beyond", "chunk_index 3 of 3.", "W-EPI-4", beyond)


def _timebases() -> Iterator[InvalidEpisode]:
    wrong: dict[str, tuple[object, ...]] = {
        "type": (7, ["ticks"]),
        "tick_hz": ("30", True, [30], 10**400),
        "dt_ns": ("33333333", 33.5, False, 2**63, 10**400),
        "epoch_ns": ("0", 0.5, True, -(2**63), 10**400),
    }
    for field, values in wrong.items():
        for number, value in enumerate(values):
            what = f"{field} is {canonical_json(value).decode()}."
            draft = base(4, timebase={field: value})
            yield _bad(f"timebase_{field}_wrong_{number}", what, "W-TIM-1", draft)
    draft = base()
    draft.wshard = {"timebase": {"tick_hz": "30"}}
    yield _bad("timebase_of_wshard", 'In meta/wshard, tick_hz is "30".', "W-TIM-1", draft)


def _rows() -> Iterator[InvalidEpisode]:
    objects: dict[str, tuple[str, JsonObject]] = {
        "string": ("A string.", {"channels": "state"}),
        "null": ("null.", {"channels": None}),
        "number": ("A number.", {"channels": 1}),
        "row_string": ("A row is a string.", {"channels": ["state"]}),
        "row_null": ("A row is null.", {"channels": [None]}),
        "row_list": ("A row is a list.", {"channels": [["id", "state"]]}),
        "map_of_strings": ("An object keyed by block, of strings.", {"signal/state": "f32"}),
        "map_of_lists": ("An object keyed by block, of lists.", {"signal/state": ["f32", 4]}),
    }
    for name, (what, channels) in objects.items():
        draft = base()
        draft.channels = channels
        yield _bad(f"channels_{name}", f"channels: {what}", "W-CHN-1", draft)
    wrong: dict[str, tuple[object, ...]] = {
        "id": (7, None, "", ["state"]),
        "signal_block": (7, ["signal/state"], True),
        "shape": ("4", 4, [4.5], ["4"], [-4], [True], [None], {"0": 4}, [[4]]),
        "length": ("4", -1, 4.5, True, [4]),
        "layout": (7, ["dense"]),
        "offsets_block": (7, {}),
        "time_block": (7, ["time/ticks"]),
        "start_ns": ("0", 0.5, True),
        "sampling_rate_hz": ("30", 0, -1, True, [30], 10**400),
        "modality": (7, ["rgb"]),
        "unit": (7,),
        "semantics": (7,),
        "description": (7,),
        "content_type": (6,),
        "lossy": ("jpeg", True, ["jpeg"]),
        "channel": (7,),
        "model": (7,),
        "type": (7,),
        "window": ("256", 2.5, True, 0, -1),
        "horizon": ("4", 4.5, True, 0, -1),
    }
    for field, values in wrong.items():
        for number, value in enumerate(values):
            draft = base()
            draft.rows[0][field] = value
            draft.channels = {"channels": draft.rows}
            what = f"{field} is {canonical_json(value).decode()}."
            yield _bad(f"row_{field}_wrong_{number}", what, "W-CHN-2", draft)
    draft = base()
    del draft.rows[0]["id"]
    draft.channels = {"channels": draft.rows}
    yield _bad("row_id_missing", "A row without id.", "W-CHN-2", draft)
    for name, value in (
        ("unknown", "f128"),
        ("empty", ""),
        ("numpy", "<f4"),
        ("complex", "complex64"),
        ("spaces", " f32"),
        ("number", 32),
        ("null", None),
        ("list", ["f32"]),
    ):
        draft = base()
        draft.rows[0]["dtype"] = value
        what = f"dtype is {canonical_json(value).decode()}."
        also = ("W-CHN-2",)  # not a string: two rules say so
        yield _bad(f"row_dtype_{name}", what, "W-CHN-3", draft, rules_also=also)
    draft = base()
    del draft.rows[0]["dtype"]
    yield _bad("row_dtype_missing", "A row without dtype.", "W-CHN-3", draft)
    draft = Draft(4, channels={"signal/state": {"dtype": "f31", "shape": [4]}})
    yield _bad("map_dtype_unknown", "The older form, with dtype f31.", "W-CHN-3", draft)
    shapes: dict[str, tuple[str, list[int]]] = {
        "32_dimensions": ("32 dimensions, which the time axis makes 33.", [1] * 32),
        "2_63": ("A dimension of 2^63.", [2**63]),
        "2_64": ("A dimension of 2^64 + 4, which wraps to 4.", [2**64 + 4]),
        "10_30": ("A dimension of 10^30.", [0, 10**30]),
        "zero_and_huge": ("A dimension of 0, and 2^31 beside it.", [2**16, 0, 2**15]),
    }
    for name, (what, shape) in shapes.items():
        draft = base()
        draft.rows[0]["shape"] = shape
        yield _bad(f"row_shape_{name}", what, "W-CHN-4", draft)
    horizons: dict[str, tuple[str, int, tuple[int, ...], JsonObject]] = {
        "too_large": ("A horizon of 3 steps in chunks of 2.", 3, (2, 4), {}),
        "of_the_values": ("A horizon that is the second number of the shape.", 4, (2, 4), {}),
        "without_shape": ("A horizon of single numbers.", 1, (), {}),
        "ragged": ("A horizon of ragged data.", 2, (2,), {"layout": "ragged"}),
    }
    for name, (what, horizon, shape_, more) in horizons.items():
        draft = base()
        size = 4 * 4 * math.prod(shape_)
        fields: JsonObject = {"channel": "state", "model": "m", "horizon": horizon, **more}
        draft.add("omen/state/m", bytes(size), "f32", shape_, **fields)
        yield _bad(f"row_horizon_{name}", what, "W-CHN-8", draft)
    twice = base()
    twice.rows.append(dict(twice.rows[0]))
    yield _bad("row_twice", "The same row twice.", "W-CHN-5", twice)
    twice = base()
    twice.rows.append(twice.rows[0] | {"id": "other", "shape": [2, 2]})
    yield _bad("row_twice_other_id", "Two rows of two ids for one block.", "W-CHN-5", twice)
    twice = base()
    twice.rows.append({"dtype": "f32", "id": "state", "shape": [4]})
    yield _bad("row_twice_by_default", "A second row by its default block.", "W-CHN-5", twice)
    gone = base()
    gone.rows += [{"dtype": "f32", "id": "gone", "shape": []}] * 2
    yield _bad("row_twice_without_block", "Two rows of an absent block.", "W-CHN-5", gone)


def _layouts() -> Iterator[InvalidEpisode]:
    for name in ("sparse", "Dense", "", "ragged2"):
        yield _bad(
            f"layout_{name or 'empty'}".lower(),
            f'The layout "{name}".',
            "W-CHN-7",
            base().add("signal/bad", bytes(4), "u8", layout=name),
            error="unknown_layout",
            touch=("observations", "bad"),
        )


def _sizes() -> Iterator[InvalidEpisode]:
    signal, action = ("observations", "bad"), ("actions", "bad")
    omen, uncert = ("omens", "bad", "m"), ("uncerts", "bad", "m", "std")
    blocks: dict[str, tuple[str, tuple[str, ...], str, bytes, tuple[int, ...], JsonObject]] = {
        "one_byte_less": ("One byte less.", signal, "f32", STATE[:-1], (4,), {}),
        "one_byte_more": ("One byte more.", signal, "f32", STATE + b"!", (4,), {}),
        "empty": ("No bytes.", signal, "f32", b"", (4,), {}),
        "one_step_less": ("T - 1 entries.", signal, "f32", STATE[:-16], (4,), {}),
        "two_steps_more": ("T + 2 entries.", signal, "f32", STATE + STATE[:32], (4,), {}),
        "shape_too_large": ("A shape with one number more.", signal, "f32", STATE, (5,), {}),
        "dtype_too_wide": ("f64 over the bytes of f32.", signal, "f64", STATE, (4,), {}),
        "zero_shape": ("Bytes in a channel of shape [0].", signal, "u8", b"\0", (0,), {}),
        "length_lies": ("length 3, bytes for 4.", signal, "f32", STATE, (4,), {"length": 3}),
        "length_0": ("length 0, bytes for 4.", signal, "f32", STATE, (4,), {"length": 0}),
        "length_and_one_more": (
            "length 4 and T + 1 entries: a length that is given counts.",
            signal,
            "f32",
            STATE + STATE[:16],
            (4,),
            {"length": 4},
        ),
        "action_one_step_more": (
            "T + 1 actions without length.",
            action,
            "f32",
            ramp_f32(5),
            (),
            {},
        ),
        "omen": ("A prediction with a byte more.", omen, "f32", STATE + b"!", (4,), {}),
        "uncert": ("An uncertainty with a byte more.", uncert, "f32", STATE + b"!", (4,), {}),
        "product_wraps": (
            "A shape whose product is 0 modulo 2^64, and no bytes.",
            signal,
            "f32",
            b"",
            (2**32, 2**32),
            {},
        ),
        "product_wraps_to_16": (
            "A shape whose size in bytes is 16 modulo 2^64, and 16 bytes.",
            signal,
            "u8",
            bytes(16),
            (2**62 + 4,),
            {},
        ),
        "item_size_wraps": ("2^62 numbers of 4 bytes.", signal, "f32", b"", (2**62,), {}),
        "product_huge": (
            "32 dimensions of 2^63 - 1.",
            signal,
            "f64",
            bytes(8),
            (HUGE,) * 31,
            {},
        ),
        "length_huge": ("length 2^63 - 1.", signal, "f32", f32(1), (), {"length": HUGE}),
        "length_wraps": ("length 2^62 of f32.", signal, "f32", b"", (), {"length": 2**62}),
        "length_of_nothing": (
            "2^28 steps without bytes, on a clock of their own.",
            signal,
            "f32",
            b"",
            (0,),
            {"length": 2**28, "sampling_rate_hz": 1000, "start_ns": 0},
        ),
    }
    lanes = {"observations": "signal/bad", "actions": "action/bad"}
    for name, (what, path, dtype, data, shape, fields) in blocks.items():
        block = lanes.get(path[0]) or {"omens": "omen", "uncerts": "uncert"}[path[0]]
        if "/" not in block:
            block = "/".join((block, *path[1:]))
        draft = base().add(block, data, dtype, shape, **fields)
        yield _bad(f"size_{name}", what, "W-BLK-1", draft, error="size_mismatch", touch=path)
    lengths = {"huge": HUGE, "wraps": 2**62, "10_12": 10**12, "2_28": 2**28, "2_20": 2**20 + 1}
    for name, length in lengths.items():
        draft = Draft(4, episode=episode_fields(length), ticks=False)
        draft.add("signal/bad", b"" if name == "wraps" else f32(1), "f32")
        yield _bad(
            f"size_length_t_{name}",
            f"length_T is {length}, the block has a number or none.",
            "W-EPI-5",
            draft,
            error="size_mismatch",
        )


def _clocks() -> Iterator[InvalidEpisode]:
    blocks = {
        "ticks_i64": ("T values of i64.", "ticks", "time/ticks", i64(0, 1, 2, 3)),
        "ticks_short": ("Three values.", "ticks", "time/ticks", bytes(12)),
        "ticks_odd": ("A byte more.", "ticks", "time/ticks", bytes(17)),
        "timestamps_i32": ("T values of i32.", "timestamps_ns", "time/timestamps_ns", bytes(16)),
        "timestamps_long": ("T + 1.", "timestamps_ns", "time/timestamps_ns", bytes(40)),
    }
    for name, (what, lane, block, data) in blocks.items():
        draft = base().add(block, data)
        draft.ticks = False
        yield _bad(
            f"time_{name}",
            f"{block}: {what}",
            "W-TIM-2",
            draft,
            error="size_mismatch",
            touch=(lane,),
        )
    path = ("observations", "bad")
    clock = "time/signal/bad"
    sizes = {"short": bytes(16), "long": bytes(32), "odd": bytes(25), "empty": b""}
    for name, data in sizes.items():
        draft = base().add("signal/bad", bytes(3), "u8", length=3, time_block=clock)
        yield _bad(
            f"time_block_{name}",
            f"Three entries, and {len(data)} bytes of time.",
            "W-TIM-3",
            draft.add(clock, data),
            error="size_mismatch",
            touch=path,
        )
    yield _bad(
        "time_block_missing",
        "The time_block is not in the file.",
        "W-TIM-3",
        base().add("signal/bad", bytes(3), "u8", length=3, time_block=clock),
        error="bad_profile",
        touch=path,
    )


def _ragged() -> Iterator[InvalidEpisode]:
    path = ("observations", "bad")
    offsets_block = "offsets/signal/bad"

    def draft(
        offsets: bytes | None, data: bytes = b"abcdef", dtype: str = "u8", **fields: object
    ) -> Draft:
        options: dict[str, object] = {"layout": "ragged", "offsets_block": offsets_block}
        shape: tuple[int, ...] = fields.pop("shape", ())  # type: ignore[assignment]
        made = base().add("signal/bad", data, dtype, shape, **(options | fields))
        return made if offsets is None else made.add(offsets_block, offsets)

    good = i64(0, 1, 3, 3, 6)
    sizes = {
        "short": ("T offsets.", good[:-8]),
        "long": ("T + 2 offsets.", good + i64(6)),
        "odd": ("A byte more.", good + b"\0"),
        "i32": ("Offsets of 4 bytes.", good[::2]),
        "empty": ("No offsets.", b""),
    }
    for name, (what, offsets) in sizes.items():
        yield _bad(
            f"offsets_{name}", what, "W-RAG-1", draft(offsets), error="size_mismatch", touch=path
        )
    yield _bad(
        "offsets_missing",
        "The offsets_block is not in the file.",
        "W-RAG-1",
        draft(None),
        error="bad_profile",
        touch=path,
    )
    yield _bad(
        "offsets_not_named",
        "A ragged row without offsets_block.",
        "W-RAG-1",
        draft(good, offsets_block=None),
        error="bad_profile",
        touch=path,
    )
    yield _bad(
        "offsets_length_huge",
        "length 2^63 - 1, so that length + 1 wraps.",
        "W-RAG-1",
        draft(good, length=HUGE),
        error="size_mismatch",
        touch=path,
    )
    values = {
        "start": ("They start with 1.", (1, 1, 3, 3, 6)),
        "negative": ("They start with -1.", (-1, 1, 3, 3, 6)),
        "fall": ("They fall.", (0, 3, 1, 3, 6)),
        "fall_at_end": ("The last one falls.", (0, 1, 7, 7, 6)),
        "end_early": ("They end before the last item.", (0, 1, 3, 3, 5)),
        "end_late": ("They end behind the last item.", (0, 1, 3, 3, 7)),
        "beyond": ("One of 2^62 in the middle.", (0, 1, 2**62, 2**62, 6)),
        "minimum": ("One of -2^63.", (0, -(2**63), 3, 3, 6)),
    }
    for name, (what, numbers) in values.items():
        yield _bad(
            f"offsets_{name}",
            what,
            "W-RAG-2",
            draft(i64(*numbers)),
            error="bad_value",
            touch=path,
        )
    yield _bad(
        "offsets_in_bytes",
        "Offsets counted in bytes, not in items.",
        "W-RAG-2",
        draft(i64(0, 4, 8, 8, 12), f32(1, 2, 3), "f32"),
        error="bad_value",
        touch=path,
    )
    yield _bad(
        "ragged_not_whole_items",
        "Items of 12 bytes, and 13 bytes.",
        "W-RAG-3",
        draft(i64(0, 1, 1, 1, 1), bytes(13), "f32", shape=(3,)),
        error="size_mismatch",
        touch=path,
    )
    yield _bad(
        "ragged_item_huge",
        "Items of 2^65 bytes, and one byte.",
        "W-RAG-3",
        draft(i64(0, 0, 0, 0, 0), b"\0", "f64", shape=(2**62,)),
        error="size_mismatch",
        touch=path,
    )
    texts = {
        "ff": ("The byte FF.", [b"fine", b"\xff", b"", b"ok"]),
        "overlong": ("An overlong form.", [b"\xc0\x80", b"", b"", b""]),
        "surrogate": ("A surrogate.", [b"", b"\xed\xa0\x80", b"", b""]),
        "above": ("A character above U+10FFFF.", [b"", b"", b"\xf4\x90\x80\x80", b""]),
        "cut_between_steps": (
            "A character that begins in one step and ends in the next: the whole is UTF-8.",
            [b"\xf0\x9f", b"\xa4\x96", b"", b""],
        ),
    }
    for name, (what, parts) in texts.items():
        made = ragged_blocks(base(), "signal/bad", parts, "u8", (), 1, layout="text")
        yield _bad(f"text_{name}", what, "W-RAG-4", made, error="bad_value", touch=path)
    rows: dict[str, tuple[str, str, tuple[int, ...]]] = {
        "text_dtype": ("A text row with dtype i8.", "i8", ()),
        "text_dtype_u16": ("A text row with dtype u16.", "u16", ()),
        "text_shape": ("A text row with shape [1].", "u8", (1,)),
    }
    for name, (what, dtype, shape) in rows.items():
        made = text_blocks(base(), "signal/bad", ["ab", "", "cd", ""])
        made.rows[-1] |= {"dtype": dtype, "shape": list(shape)}
        yield _bad(name, what, "W-RAG-5", made, touch=path)


def _videos() -> Iterator[InvalidEpisode]:
    path = ("observations", "bad")
    image = png(2, 3, bytes(18))
    every = [(step, KEYFRAME) for step in range(4)]

    def draft(frames: list[tuple[int, int]] | None = None, **fields: object) -> Draft:
        packets = [image] * (4 if frames is None else len(frames))
        options: dict[str, object] = {"content_type": "image/png", "shape": (2, 3, 3)} | fields
        shape: tuple[int, ...] = options.pop("shape")  # type: ignore[assignment]
        return video_blocks(base(), "signal/bad", packets, shape, frames, **options)  # type: ignore[arg-type]

    def with_block(made: Draft, block: str, data: bytes | None) -> Draft:
        made.blocks = [entry for entry in made.blocks if entry.name_bytes != block.encode()]
        return made if data is None else made.add(block, data)

    size, offsets, frames = len(image), "offsets/signal/bad", "frames/signal/bad"
    good = i64(*(size * number for number in range(5)))
    sizes = {"odd": ("Half an offset more.", good + bytes(4)), "empty": ("No offsets.", b"")}
    for name, (what, data) in sizes.items():
        made = with_block(draft(), offsets, data)
        yield _bad(
            f"video_offsets_{name}", what, "W-VID-1", made, error="size_mismatch", touch=path
        )
    made = with_block(draft(), offsets, None)
    what = "The offsets_block is not in the file."
    yield _bad("video_offsets_missing", what, "W-VID-1", made, error="bad_profile", touch=path)
    positions = {
        "start": ("Offsets start with 1.", (1, size, 2 * size, 3 * size, 4 * size)),
        "fall": ("Offsets fall.", (0, 2 * size, size, 3 * size, 4 * size)),
        "end_early": (
            "They end before the last byte.",
            (0, size, 2 * size, 3 * size, 4 * size - 1),
        ),
        "end_late": ("They end behind the last byte.", (0, size, 2 * size, 3 * size, 4 * size + 1)),
    }
    for name, (what, numbers) in positions.items():
        made = with_block(draft(), offsets, i64(*numbers))
        yield _bad(f"video_offsets_{name}", what, "W-VID-1", made, error="bad_value", touch=path)
    made = with_block(draft(every), frames, i64(0, 1, 1, 1, 2, 1, 3))
    what = "Half a frame is missing in the index."
    yield _bad("video_frames_short", what, "W-VID-2", made, error="size_mismatch", touch=path)
    made = with_block(draft(every), frames, None)
    what = "The frames_block is not in the file."
    yield _bad("video_frames_missing", what, "W-VID-2", made, error="bad_profile", touch=path)
    wrong: dict[str, tuple[str, str, list[tuple[int, int]]]] = {
        "flag_4": ("An unknown flag.", "W-VID-3", [*every[:3], (3, 5)]),
        "flag_negative": ("Flags of -1.", "W-VID-3", [*every[:3], (3, -1)]),
        "step_missing": ("One step too few.", "W-VID-3", every[:3]),
        "step_hidden": ("A step is hidden.", "W-VID-3", [*every[:3], (3, KEYFRAME | HIDDEN)]),
        "step_repeated": ("A step is there twice.", "W-VID-3", [*every[:3], (2, KEYFRAME)]),
        "step_beyond": ("A step of 2^62.", "W-VID-3", [*every[:3], (2**62, KEYFRAME)]),
        "step_negative": ("Step -1 is not hidden.", "W-VID-3", [(-1, KEYFRAME), *every[1:]]),
        "more_packets": ("One frame too many.", "W-VID-3", [*every, (4, KEYFRAME)]),
        "no_keyframe": ("No keyframe.", "W-VID-4", [(step, 0) for step in range(4)]),
        "late_keyframe": ("The first is not a keyframe.", "W-VID-4", [(0, 0), *every[1:]]),
        "keyframe_above": (
            "A frame comes before two keyframes in time, and after both in the block.",
            "W-VID-4",
            [(1, KEYFRAME), (2, KEYFRAME), (0, 0), (3, 0)],
        ),
        "keyframe_falls": (
            "A frame comes before a keyframe in the block, and after it in time.",
            "W-VID-4",
            [(0, KEYFRAME), (2, 0), (1, KEYFRAME), (3, 0)],
        ),
    }
    for name, (what, rule, numbered) in wrong.items():
        made = draft(numbered)
        yield _bad(f"video_{name}", what, rule, made, error="bad_value", touch=path)
    rows: dict[str, tuple[str, dict[str, object]]] = {
        "dtype": ("Frames of f32.", {"dtype": "f32"}),
        "dtype_u16_colours": ("Colours of 16 bits.", {"dtype": "u16"}),
        "shape_flat": ("Frames of one dimension.", {"shape": (18,)}),
        "shape_two": ("Two values for each pixel.", {"shape": (2, 3, 2)}),
        "shape_empty": ("Frames without pixels.", {"shape": (0, 3, 3)}),
        "shape_huge": ("Frames of 2^40 rows.", {"shape": (2**40, 3, 3)}),
        "no_content_type": ("No content type.", {"content_type": None}),
        "content_type": ("A content type of audio.", {"content_type": "audio/wav"}),
        "extradata": ("extradata that is not Base64.", {"extradata": "%%%"}),
    }
    for name, (what, fields) in rows.items():
        yield _bad(f"video_row_{name}", what, "W-VID-5", draft(None, **fields), touch=path)
    what = "Images of 3 x 2 pixels, where the row says 4 x 2."
    made = draft(shape=(2, 4, 3))
    yield _bad("video_other_size", what, "W-VID-6", made, error="bad_value", touch=path)
    what = "Images of 3 x 2 pixels, where the row says 65535 x 65535."
    made = draft(shape=(65535, 65535, 3))
    yield _bad("video_claims_size", what, "W-VID-6", made, error="bad_value", touch=path)


def _labels() -> Iterator[InvalidEpisode]:
    path = ("labels", "bad")

    def label(
        name: str, what: str, value: JsonObject | bytes, rule: str = "W-LAB-1"
    ) -> InvalidEpisode:
        draft = base().json("label/bad", value).json("label/good", {"intervals": []})
        return _bad(f"label_{name}", what, rule, draft, touch=path, rules_also=("W-JSN-1",))

    yield label("not_json", "Not JSON.", b"reach")
    yield label("list", "A list.", b"[]")
    yield label("nan", "NaN.", b'{"intervals":[{"confidence":NaN,"end":1,"start":0,"text":""}]}')
    yield label("no_intervals", "No intervals.", {"unit": "steps"})
    yield label("intervals_object", "intervals is an object.", {"intervals": {}})
    yield label("interval_list", "An interval is a list.", {"intervals": [[0, 1, "x"]]})
    good: JsonObject = {"end": 3, "start": 1, "text": "reach"}
    wrong: dict[str, tuple[object, ...]] = {
        "start": ("1", 1.5, None, True, 4, -(10**400)),
        "end": ("3", 2.5, None, False, 0, 2**63),
        "text": (7, None, ["x"]),
        "source": (7, None, ["human"]),
        "confidence": ("0.9", True, [1], 10**400),
    }
    for field, values in wrong.items():
        for number, value in enumerate(values):
            what = f"{field} is {canonical_json(value).decode()}."
            rows: JsonObject = {"intervals": [good, good | {field: value}]}
            yield label(f"{field}_wrong_{number}", what, rows)
        if field in good:
            fewer = {key: value for key, value in good.items() if key != field}
            yield label(f"{field}_missing", f"No {field}.", {"intervals": [fewer]})
    for number, unit in enumerate(("seconds", "", 7, None, ["steps"])):
        what = f"unit is {canonical_json(unit).decode()}."
        empty: JsonObject = {"intervals": [], "unit": unit}
        yield label(f"unit_wrong_{number}", what, empty, "W-LAB-2")


def _ends() -> Iterator[InvalidEpisode]:
    blocks = {
        "reward_f64": ("T values of f64.", "reward", "rewards", bytes(32)),
        "reward_short": ("T - 1 values.", "reward", "rewards", bytes(12)),
        "reward_long": ("T + 1 values.", "reward", "rewards", bytes(20)),
        "reward_odd": ("A byte less.", "reward", "rewards", bytes(15)),
        "done_short": ("T - 1 bytes.", "done", "terminations", bytes(3)),
        "done_f32": ("T values of f32.", "done", "terminations", bytes(16)),
        "terminated_long": ("T + 1 bytes.", "terminated", "terminations", bytes(5)),
        "truncated_short": ("One byte.", "truncated", "truncations", bytes(1)),
    }
    for name, (what, block, lane, data) in blocks.items():
        yield _bad(
            f"ends_{name}",
            f"{block}: {what}",
            "W-END-1",
            base().add(block, data),
            error="size_mismatch",
            touch=(lane,),
            rules_also=("W-BLK-1",),
        )
    exact = base().add("reward", f32(0, 0, 0, 1)).add("reward/exact", bytes(16), "f64")
    yield _bad(
        "ends_reward_exact_short",
        "reward/exact: half of the values.",
        "W-BLK-1",
        exact,
        error="size_mismatch",
        touch=("rewards",),
        rules_also=("W-END-1",),
    )
    for name, values in (("f64", bytes(40)), ("without_reward", bytes(40))):
        longer = base().add("reward/exact", values, "f64")
        if name == "f64":
            longer.add("reward", f32(0, 0, 0, 1))
        yield _bad(
            f"ends_reward_exact_long_{name}",
            "reward/exact: T + 1 values.",
            "W-BLK-1",
            longer,
            error="size_mismatch",
            touch=("rewards",),
            rules_also=("W-END-1",),
        )
    unions = {
        "done_lacks_one": (b"\0\0\0\1", b"\0\0\0\1", b"\0\0\1\0"),
        "done_has_one_more": (b"\0\1\0\1", b"\0\0\0\1", b"\0\0\0\0"),
        "done_not_terminated": (b"\0\0\0\0", b"\0\0\0\1", None),
        "done_not_truncated": (b"\0\0\0\0", None, b"\0\0\0\1"),
    }
    for name, (done, terminated, truncated) in unions.items():
        draft = base().add("done", done)
        if terminated is not None:
            draft.add("terminated", terminated)
        if truncated is not None:
            draft.add("truncated", truncated)
        yield _bad(
            f"ends_{name}",
            "done is not the union of terminated and truncated.",
            "W-END-3",
            draft,
            error="bad_value",
            when="check",
        )


def _residuals() -> Iterator[InvalidEpisode]:
    key = ("residuals", "state")
    for name, steps, size in (("3_of_2", 10, 3), ("1_of_2", 10, 1), ("5_of_3", 17, 5)):
        draft = Draft(steps).add("signal/state", ramp_f32(steps), "f32")
        draft.add("residual/state/sign2nddiff", bytes(size))
        yield _bad(
            f"residual_sign_{name}",
            f"{size} bytes of bits for {steps} steps.",
            "W-RES-1",
            draft,
            error="size_mismatch",
            touch=key,
        )
    block = "residual/state/delta_q"
    path = ("residuals", "state/delta_q")

    def delta(q: bytes, scales: bytes | None, *, row: bool = True, window: int = 2) -> Draft:
        draft = base()
        fields: JsonObject = {"channel": "state", "type": "delta_q", "window": window}
        draft.add(block, q, "i8" if row else None, (4,), **(fields if row else {}))
        return draft if scales is None else draft.add(f"{block}/scales", scales)

    good_q, good_scales = bytes(16), f32(*[1] * 8)
    drafts = {
        "values_short": ("One value less.", "size_mismatch", delta(bytes(15), good_scales)),
        "values_f32": ("Values of f32.", "size_mismatch", delta(bytes(64), good_scales)),
        "scales_short": ("One scale less.", "size_mismatch", delta(good_q, good_scales[4:])),
        "scales_f64": ("Scales of f64.", "size_mismatch", delta(good_q, good_scales * 2)),
        "scales_per_window": ("One scale a window.", "size_mismatch", delta(good_q, f32(1, 1))),
        "window_other": (
            "Scales for windows of 2, and a row that says 256.",
            "size_mismatch",
            delta(good_q, good_scales, window=256),
        ),
        "scales_missing": ("No scales.", "bad_profile", delta(good_q, None)),
        "row_missing": ("No row.", "bad_profile", delta(good_q, good_scales, row=False)),
    }
    for name, (what, error, draft) in drafts.items():
        yield _bad(
            f"residual_delta_{name}",
            f"delta_q: {what}",
            "W-RES-2",
            draft,
            error=error,
            touch=path,
            rules_also=("W-BLK-1",) if error == "size_mismatch" else (),
        )


def _provenance() -> Iterator[InvalidEpisode]:
    wrong: dict[str, tuple[object, ...]] = {
        "end_state": ("ab", "A" * 64, 7, None, "0" * 65),
        "start_state": ("g" * 64,),
        "prev_identity": ("0" * 63, "0" * 64 + "\n"),
        "source": ("robot", {"robot": 1}, None, ["robot"]),
        "epoch": (2**53, "0", 0.5, True, None),
        "first_seq": (-(2**53),),
        "last_seq": ([],),
        "run_id": (7, None),
        "v": (2, "1", True, None),
    }
    for field, values in wrong.items():
        for number, value in enumerate(values):
            what = f"{field} is {canonical_json(value).decode()}."
            draft = base().json("meta/provenance", PROVENANCE | {field: value})
            yield _bad(f"provenance_{field}_wrong_{number}", what, "W-PRV-1", draft, when="check")
    fewer = {key: value for key, value in PROVENANCE.items() if key != "run_id"}
    objects: dict[str, tuple[str, JsonObject | bytes]] = {
        "key_missing": ("No run_id.", fewer),
        "key_more": ("A key more.", PROVENANCE | {"note": ""}),
        "not_json": ("Not JSON.", b"lab 3"),
        "list": ("A list.", b"[]"),
    }
    for name, (what, told) in objects.items():
        draft = base().json("meta/provenance", told)
        yield _bad(
            f"provenance_{name}",
            what,
            "W-PRV-1",
            draft,
            when="check",
            rules_also=("W-JSN-1",),
        )


def episode_vectors() -> Iterator[InvalidEpisode]:
    yield from _roles()
    yield from _texts()
    yield from _episode_fields()
    yield from _timebases()
    yield from _rows()
    yield from _layouts()
    yield from _sizes()
    yield from _clocks()
    yield from _ragged()
    yield from _videos()
    yield from _labels()
    yield from _ends()
    yield from _residuals()
    yield from _provenance()
