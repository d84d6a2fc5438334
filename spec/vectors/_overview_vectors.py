"""Overview files that fit, that are stale, and that break a rule, with their episodes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from _compress import plain_frame
from _decode import BrokenRuleError, open_file
from _encode import Entry
from _episode_draft import Draft, f32, i64, numbers, ramp_f32
from _episode_sets import load, sidecar_text
from _overviews import (
    OVERVIEW_ENTRY,
    SUFFIX,
    Block,
    Overviews,
    Poster,
    blocks_of,
    open_overviews,
    overview_entry,
    overview_fields,
    overview_file,
)
from _primitives import sha256_hex
from _selfcheck_episodes import missing
from _valid_episode_sets import sidecar_file
from _valid_episodes import ragged_blocks, text_blocks
from _video import png

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from _metadata import JsonObject

EPISODE = "ep.wshard"
STEPS = 4
LONG = 4100
NOT_A_NUMBER = math.nan
# A baseline JPEG file of 8 × 8 grey pixels: the smallest tables that a decoder needs.
JPEG = bytes.fromhex(
    "ffd8ffdb0043000302020302020303030304030304050805050404050a070706080c0a0c0c0b0a0b0b0d0e12100d0e110e"
    "0b0b1016101113141515150c0f171816141812141514ffc0000b080008000801011100ffc40014000100000000000000"
    "00000000000000000000ffc40014100100000000000000000000000000000000ffda0008010100003f0000ffd9"
)


@dataclass(frozen=True)
class OverviewVector:
    """An episode with an overview file; `rule` only if the file breaks one."""

    name: str
    description: str
    rules: tuple[str, ...]
    files: dict[str, bytes]
    told: JsonObject | None = None
    """What the description must at least say; None in a vector that breaks a rule."""
    error: str = ""
    when: str = ""
    """`open` (the overview file), `touch` or `check`."""
    touch: tuple[str, ...] = ()

    def describe(self) -> JsonObject:
        fields: JsonObject = {
            "description": self.description,
            "file": f"{self.name}/{EPISODE}",
            "files": {name: sha256_hex(data) for name, data in self.files.items()},
        }
        if self.told is not None:
            overviews = open_overviews(self.files, EPISODE)
            fields["episode"] = load(self.files, EPISODE).describe()
            return fields | {"rules": list(self.rules)} | overviews.describe()
        fields |= {"error": self.error, "rule": self.rules[0], "when": self.when}
        return fields | ({"touch": list(self.touch)} if self.touch else {})


def _with(draft: Draft, overview: bytes) -> dict[str, bytes]:
    return {EPISODE: draft.data(), EPISODE + SUFFIX: overview}


def _blocks(draft: Draft) -> dict[str, Block]:
    return blocks_of({EPISODE: draft.data()}, EPISODE)


def _entries(blocks: Mapping[str, Block]) -> list[Entry]:
    return [overview_entry(name, block) for name, block in blocks.items() if block.is_dense]


def _made(draft: Draft) -> dict[str, bytes]:
    """An episode with overviews of all its blocks."""
    blocks = _blocks(draft)
    return _with(draft, overview_file(overview_fields(blocks), _entries(blocks)))


def _small() -> Draft:
    draft = Draft(STEPS)
    draft.add("signal/state", ramp_f32(2 * STEPS), "f32", (2,))
    return draft.add("reward", f32(0, 1, -2, 0.5))


# --- valid


def _all_types() -> Draft:
    draft = Draft(3)
    for dtype, code in (
        *(("f64", "d"), ("f32", "f"), ("f16", "e"), ("i64", "q"), ("i32", "i"), ("i16", "h")),
        *(("i8", "b"), ("u64", "Q"), ("u32", "I"), ("u16", "H"), ("u8", "B")),
    ):
        draft.add(f"signal/{dtype}", numbers(code, 1, 2, 3, 100, 5, 6), dtype, (2,))
    draft.add("signal/extremes", numbers("q", -(2**63), 2**63 - 1, 0), "i64")
    draft.add("signal/bf16", numbers("H", 0x3F80, 0xBF80, 0x7FC1), "bf16")
    draft.add("signal/bool", bytes((0, 1, 255, 0, 0, 0)), "bool", (2,))
    draft.add("signal/more", f32(1, 2, 3, 4), "f32", length=4)
    draft.add("signal/wide", bytes(range(256)) * 3, "u8", (16, 16))
    draft.add("signal/no_values", b"", "f32", (0,))
    draft.add("action/ctrl", f32(*range(12)), "f32", (2, 2), horizon=2)
    draft.add("omen/f32/m", f32(1, 2, 3, 4, 5, 6), "f32", (2,))
    draft.add("uncert/f32/m/std", f32(1, 2, 3, 4, 5, 6), "f32", (2,))
    draft.add("done", bytes((0, 0, 1)))
    return draft


def _long() -> Draft:
    """More entries than buckets: two entries in each, and one in the last."""
    draft = Draft(LONG, ticks=False)
    values = [0.25 * (step % 9) - step for step in range(LONG + 1)]
    values[2:4] = [NOT_A_NUMBER] * 2
    values[4] = NOT_A_NUMBER
    values[6:12] = [math.inf, 1.0, -math.inf, 1.0, math.inf, -math.inf]
    draft.add("signal/spikes", f32(*values), "f32", length=LONG + 1)
    draft.add("reward", f32(*(0.5 * (step % 3) for step in range(LONG))))
    times = [1_700_000_000_000_000_000 + 33_333_333 * step for step in range(LONG)]
    return draft.add("time/timestamps_ns", i64(*times))


def _with_camera() -> Draft:
    draft = _small()
    frames = bytes(range(4 * 6 * 3)) * STEPS
    draft.add("signal/rgb", frames, "u8", (4, 6, 3), modality="rgb")
    text_blocks(draft, "signal/said", ["a", "b", "", "c"])
    return ragged_blocks(draft, "signal/points", [f32(1)] * STEPS, "f32", (), 4)


SMALL_PNG = png(2, 3, bytes(range(18)))


def _posters() -> list[Poster]:
    return [
        Poster("signal/rgb", 0, 6, 4, png(4, 6, bytes(range(4 * 6 * 3)))),
        Poster("signal/rgb", 1, 8, 8, JPEG),
        Poster("signal/rgb", 3, 3, 2, SMALL_PNG),
    ]


def _camera_file(posters: list[Poster], rows: object = None) -> bytes:
    blocks = _blocks(_with_camera())
    fields = overview_fields(blocks, posters)
    if rows is not None:
        fields["posters"] = rows
    data = [poster.data for poster in posters]
    return overview_file(fields, _entries({"reward": blocks["reward"]}), data)


def valid_overviews() -> Iterator[OverviewVector]:
    yield OverviewVector(
        "overview_types",
        "Every dtype, T + 1 entries, a step of 256 values and one of none, a horizon, all lanes, an end.",
        ("W-OVW-4", "W-OVW-5", "W-OVW-7"),
        _made(_all_types()),
        {
            "overviews": {
                "signal/bool": {"minima": {"hex": "000100010000"}, "mean_dtype": "f32"},
                "signal/extremes": {"means": {"hex": numbers("d", -(2.0**63), 2.0**63, 0).hex()}},
                "signal/more": {"buckets": "4", "maxima": {"hex": f32(1, 2, 3, 4).hex()}},
                "signal/no_values": {"buckets": "3", "means": {"hex": ""}},
                "signal/u8": {"maxima": {"hex": "010305026406"}},
            },
            "stale": [],
        },
    )
    yield OverviewVector(
        "overview_long",
        "4101 entries in 2051 buckets, with NaN, buckets of nothing else, infinities, and the clock of the steps.",
        ("W-OVW-5", "W-OVW-7"),
        _made(_long()),
        {
            "overviews": {
                "signal/spikes": {"buckets": "2051", "steps_per_bucket": "2"},
                "time/timestamps_ns": {"buckets": "2050", "mean_dtype": "f64"},
            },
        },
    )
    clock = _small().add("signal/imu", f32(5, 6, 7), "f32", length=3, time_block="time/signal/imu")
    clock.add("time/signal/imu", i64(10, 20, 40))
    yield OverviewVector(
        "overview_own_clock",
        "A channel with its own clock; the overview of the clock gives the times of its buckets.",
        ("W-OVW-4",),
        _made(clock),
        {"overviews": {"time/signal/imu": {"minima": {"hex": i64(10, 20, 40).hex()}}}},
    )
    yield OverviewVector(
        "overview_posters",
        "A camera with a poster and two smaller images, PNG and JPEG; rows of text and ragged channels.",
        ("W-OVW-3", "W-OVW-6"),
        _with(_with_camera(), _camera_file(_posters())),
        {
            "posters": [
                {"number": "0", "width": "6", "height": "4", "step": "0"},
                {"number": "1", "width": "8", "height": "8", "step": "1"},
                {"number": "2", "width": "3", "height": "2", "step": "3"},
            ]
        },
    )
    yield _stale()
    yield _of_sidecar()
    yield _unknown()
    empty = Draft(0).add("signal/state", b"", "f32", (2,))
    yield OverviewVector(
        "overview_no_steps",
        "An episode without steps: no buckets.",
        ("W-OVW-5",),
        _made(empty),
        {"overviews": {"signal/state": {"buckets": "0", "means": {"hex": ""}}}},
    )


def _stale() -> OverviewVector:
    draft = _small()
    for name in ("checksum", "size", "dtype", "shape", "length", "fits", "rgb"):
        draft.add(f"signal/{name}", f32(1, 2, 3, 4), "f32")
    draft.add("omen/state/gone", f32(1, 2, 3, 4), "f32")
    blocks = _blocks(draft)
    posters = [Poster("signal/rgb", 0, 3, 2, SMALL_PNG), Poster("signal/fits", 0, 3, 2, SMALL_PNG)]
    fields = overview_fields(blocks, posters)
    rows = cast("dict[str, JsonObject]", fields["blocks"])
    rows["signal/checksum"]["crc32c"] = blocks["signal/checksum"].crc32c ^ 1
    rows["signal/size"]["orig_size"] = 20
    rows["signal/dtype"]["dtype"] = "i32"
    rows["signal/shape"]["shape"] = [1]
    rows["signal/length"]["length"] = 5
    rows["signal/rgb"]["crc32c"] = 0
    rows["signal/fits"]["dtype"] = "Float32"
    entries = _entries(blocks)
    # What a stale row belongs to may break any rule.
    entries[[entry.name for entry in entries].index("overview/signal/length")] = Entry(
        "overview/signal/length", b"short"
    )
    shorter = replace(draft, blocks=[e for e in draft.blocks if e.name != "omen/state/gone"])
    entries.append(Entry("overview/signal/without_row", b"12345"))
    return OverviewVector(
        "overview_stale",
        "Blocks that were changed after the overview was made, one that is gone, and an overview without a row.",
        ("W-OVW-4",),
        _with(shorter, overview_file(fields, entries, [poster.data for poster in posters])),
        {
            "stale": [
                "omen/state/gone",
                *(f"signal/{n}" for n in ("checksum", "dtype", "length", "rgb", "shape", "size")),
            ],
            "posters": [{"number": "1", "block": "signal/fits"}],
        },
    )


def _of_sidecar() -> OverviewVector:
    base = _small()
    data = base.data()
    state = ramp_f32(2 * STEPS, 0.5)
    omen = Draft(STEPS, ticks=False).add(
        "omen/state/m", state, "f32", (2,), channel="state", model="m"
    )
    side = sidecar_file(omen, sidecar_text(open_file(data), "ep", STEPS))
    files = {EPISODE: data, f"{EPISODE}.lanes/m.wshard": side}
    blocks = blocks_of(files, EPISODE)
    overview = overview_file(overview_fields(blocks), _entries(blocks))
    return OverviewVector(
        "overview_of_sidecar",
        "An overview of a lane that a sidecar adds.",
        ("W-OVW-4",),
        files | {EPISODE + SUFFIX: overview},
        {"overviews": {"omen/state/m": {"buckets": "4"}}, "stale": []},
    )


def _unknown() -> OverviewVector:
    draft = Draft(300).add("signal/state", ramp_f32(300), "f32")
    blocks = {"signal/state": _blocks(draft)["signal/state"]}
    fields = overview_fields(blocks, posters=[], future=[1], note="mine")
    cast("dict[str, JsonObject]", fields["blocks"])["signal/state"]["quantiles"] = 3
    plain = overview_entry("signal/state", blocks["signal/state"])
    stored = replace(plain, flags=3, stored=plain_frame(plain.content))
    overview = overview_file(
        *(fields, [stored]), role=5, more=[Entry("quantiles/signal/state", b"1")]
    )
    return OverviewVector(
        "overview_unknown_fields",
        "Another role, unknown fields and entries, and an overview that is compressed.",
        ("W-OVW-1", "W-OVW-2"),
        _with(draft, overview),
        {"overviews": {"signal/state": {"buckets": "300"}}},
    )


# --- invalid


def _broken(
    name: str, description: str, rule: str, error: str, when: str, files: dict[str, bytes]
) -> OverviewVector:
    return OverviewVector(name, description, (rule,), files, None, error, when)


def _bad_fields() -> Iterator[tuple[str, JsonObject | bytes]]:
    good = overview_fields(_blocks(_small()))
    row = cast("dict[str, JsonObject]", good["blocks"])["signal/state"]

    def changed(**fields: object) -> JsonObject:
        kept = {key: value for key, value in (row | fields).items() if value is not None}
        return good | {"blocks": {"signal/state": kept}}

    yield "not_json", b"{"
    yield "list", b"[]"
    yield "repeated_key", b'{"blocks":{},"v":1,"v":1}'
    yield "no_version", {"blocks": {}}
    for number, value in enumerate((2, 0, True, "1", 1.5)):
        yield f"version_{number}", good | {"v": value}
    yield "no_blocks", {"v": 1}
    yield "blocks_list", {"blocks": [], "v": 1}
    yield "row_list", {"blocks": {"signal/state": []}, "v": 1}
    for number, dtype in enumerate((None, "f8", 4)):
        yield f"dtype_{number}", changed(dtype=dtype)
    shapes: tuple[object, ...] = (None, 2, [-1], [1.5], [True], [1] * 32, [2**63], [0, 2**31])
    for number, shape in enumerate(shapes):
        yield f"shape_{number}", changed(shape=shape)
    for number, length in enumerate((None, -1, 2**63, 4.5, True, "4")):
        yield f"length_{number}", changed(length=length)
        yield f"size_{number}", changed(orig_size=length)
    for number, crc in enumerate((None, -1, 2**32, "0")):
        yield f"crc32c_{number}", changed(crc32c=crc)


def _bad_posters() -> Iterator[tuple[str, object]]:
    row = _posters()[0].row()

    def changed(**fields: object) -> list[JsonObject]:
        return [{key: value for key, value in (row | fields).items() if value is not None}]

    yield "object", {}
    yield "row_list", [[]]
    yield "many", [row] * 1025
    for number, block in enumerate((None, "signal/other", 1)):
        yield f"block_{number}", changed(block=block)
    for number, step in enumerate((None, -1, STEPS, 1.5, True)):
        yield f"step_{number}", changed(step=step)
    for number, size in enumerate((None, 0, 4097, "6")):
        yield f"width_{number}", changed(width=size)
        yield f"height_{number}", changed(height=size)


def _bad_entries() -> Iterator[OverviewVector]:
    draft = _small()
    blocks = _blocks(draft)
    fields = overview_fields(blocks)
    reward = overview_entry("reward", blocks["reward"])
    true = overview_entry("signal/state", blocks["signal/state"]).content

    def touched(
        name: str, description: str, error: str, vector: dict[str, bytes]
    ) -> OverviewVector:
        broken = _broken(name, description, "W-OVW-5", error, "touch", vector)
        return replace(broken, touch=("overview", "signal/state"))

    for name, data in (
        *(("empty", b""), ("too_short", true[:-1]), ("too_long", true + b"\0")),
        *(("one_bucket_less", true[:-12]), ("twice", true * 2)),
    ):
        entry = Entry("overview/signal/state", data)
        yield touched(
            f"overview_{name}",
            "The overview of signal/state has another size than its row asks for.",
            "size_mismatch",
            _with(draft, overview_file(fields, [reward, entry])),
        )
    damaged = replace(Entry("overview/signal/state", true), crc32c=1)
    wrong = touched(
        "overview_damaged", "The overview has a wrong checksum.", "checksum_mismatch", {}
    )
    yield replace(
        wrong, rules=("S-CRC-1",), files=_with(draft, overview_file(fields, [reward, damaged]))
    )
    wide = Draft(STEPS).add("signal/state", bytes(257 * STEPS), "u8", (257,))
    wide.add("reward", f32(1, 2, 3, 4))
    yield touched("overview_wide", "A step has 257 values.", "limit_exceeded", _made(wide))
    for layout in ("text", "ragged"):
        other = Draft(STEPS).add("reward", f32(1, 2, 3, 4))
        if layout == "text":
            text_blocks(other, "signal/state", ["a", "b", "c", "d"])
        else:
            ragged_blocks(other, "signal/state", [f32(1)] * STEPS, "f32", (), 4)
        found = _blocks(other)
        entries = [*_entries(found), Entry("overview/signal/state", bytes(24))]
        yield touched(
            f"overview_{layout}",
            f"An overview of a {layout} channel.",
            "bad_profile",
            _with(other, overview_file(overview_fields(found), entries)),
        )
    for name, at, what in (
        ("mean", 0, "mean"),
        ("minimum", 4 * 2 * STEPS, "minimum"),
        ("maximum", 8 * 2 * STEPS, "maximum"),
    ):
        changed = bytearray(true)
        changed[at : at + 4] = f32(-7)
        entry = Entry("overview/signal/state", bytes(changed))
        yield _broken(
            f"overview_wrong_{name}",
            f"A {what} is not that of the block.",
            *("W-OVW-7", "bad_value", "check"),
            _with(draft, overview_file(fields, [reward, entry])),
        )


def _bad_images() -> Iterator[OverviewVector]:
    image = _posters()[0]
    for name, description, error, data in (
        ("missing", "The entry of a poster is missing.", "bad_profile", None),
        ("empty", "A poster without bytes.", "bad_value", b""),
        ("gif", "A poster in another format.", "bad_value", b"GIF89a\6\0\4\0\0\0\0;"),
        ("size", "A poster with another size than its row states.", "bad_value", SMALL_PNG),
        ("cut", "A PNG file that ends before its size.", "bad_value", image.data[:20]),
        ("jpeg_size", "A JPEG file with another size.", "bad_value", JPEG),
        ("jpeg_cut", "A JPEG file that ends before its size.", "bad_value", JPEG[:30]),
        ("jpeg_marks", "A JPEG file of markers only.", "bad_value", b"\xff\xd8" + b"\xff" * 999),
    ):
        posters = [replace(image, data=data or b""), _posters()[2]]
        rows = [poster.row() for poster in posters]
        blocks = _blocks(_with_camera())
        names = [poster.data for poster in posters]
        overview = overview_file(
            *(overview_fields(blocks) | {"posters": rows}, _entries({"reward": blocks["reward"]})),
            names,
        )
        if data is None:
            more = [Entry("poster/1", SMALL_PNG, content_type=6)]
            overview = overview_file(overview_fields(blocks) | {"posters": rows}, more=more)
        vector = _broken(
            f"poster_{name}",
            description,
            "W-OVW-6",
            error,
            "touch",
            _with(_with_camera(), overview),
        )
        yield replace(vector, touch=("poster", "0"))


def invalid_overviews() -> Iterator[OverviewVector]:
    yield _broken(
        "overview_no_description",
        "No meta/overview.",
        *("W-OVW-1", "bad_profile", "open"),
        _with(_small(), overview_file(None, more=[Entry("meta/other", b"{}")])),
    )
    for name, fields in _bad_fields():
        yield _broken(
            f"overview_fields_{name}",
            f"{OVERVIEW_ENTRY} is wrong: {name}.",
            *("W-OVW-2", "bad_metadata", "open"),
            _with(_small(), overview_file(fields)),
        )
    for name, rows in _bad_posters():
        yield _broken(
            f"poster_fields_{name}",
            f"posters is wrong: {name}.",
            *("W-OVW-3", "bad_metadata", "open"),
            _with(_with_camera(), _camera_file([], rows)),
        )
    yield from _bad_entries()
    yield from _bad_images()


# --- the self-check


def _problems_of_valid(vector: OverviewVector) -> Iterator[str]:
    try:
        overviews = open_overviews(vector.files, EPISODE)
        overviews.examine()
    except BrokenRuleError as error:
        yield f"does not read: {error}"
        return
    found = overviews.describe()
    for key, value in (vector.told or {}).items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            for number, (row, seen) in enumerate(
                zip(value, cast("list[object]", found[key]), strict=True)
            ):
                yield from missing(row, seen, f"{key}[{number}]")
        else:
            yield from missing(value, found[key], key)


def _outcome(vector: OverviewVector) -> tuple[str, str] | None:
    opened: Overviews | None = None
    try:
        opened = open_overviews(vector.files, EPISODE)
        if vector.when == "touch":
            for path in opened.paths():
                if path != vector.touch:
                    opened.touch(path)
        if vector.when == "check":
            opened.examine()
    except BrokenRuleError as error:
        return ("fails too early" if opened and vector.when == "touch" else error.code), str(error)
    if vector.when == "touch":
        try:
            opened.touch(vector.touch)
        except BrokenRuleError as error:
            return error.code, str(error)
    return None


def overview_problems(
    valid: list[OverviewVector], invalid: list[OverviewVector], rules: dict[str, set[str]]
) -> Iterator[str]:
    for good in valid:
        yield from (f"valid_overviews/{good.name} {what}" for what in _problems_of_valid(good))
        unknown = [rule for rule in good.rules if rule not in rules]
        yield from (f"valid_overviews/{good.name} names {rule}" for rule in unknown)
    for bad in invalid:
        found, rule = _outcome(bad), bad.rules[0]
        if found is None or found[0] != bad.error:
            yield f"invalid_overviews/{bad.name} gives {found}, expected {bad.error}"
        elif rule not in found[1] and rule.startswith("W-"):
            yield f"invalid_overviews/{bad.name} breaks {found[1]}, expected {rule}"
        if bad.error not in rules.get(rule, set()):
            yield f"invalid_overviews/{bad.name} expects {bad.error}, which {rule} does not name"
    names = [vector.name for vector in (*valid, *invalid)]
    yield from (f"{name} is made twice" for name in set(names) if names.count(name) > 1)
    broken = {vector.rules[0] for vector in invalid}
    for rule, codes in rules.items():
        if rule.startswith("W-OVW-") and codes and rule not in broken:
            yield f"no invalid overview breaks {rule}"
