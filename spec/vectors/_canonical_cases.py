"""The cases of `canonical/`: containers in every layout, and episodes with every lane."""

from __future__ import annotations

import base64
import struct
from typing import TYPE_CHECKING, Any

from _canonical import Canonical, container, episode, pack
from _episode_draft import f32, i64, numbers, ramp_f32
from _pack import JSON as JSON_METADATA
from _pack import Pack, Part, Record
from _primitives import canonical_json
from _vector import byte_ramp
from _video import png

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _metadata import JsonObject

BLOB, JSON, TEXT = 10, 2, 5
THREE = [("a", "ramp:5", 0, 0), ("b/c", "ramp:64", BLOB, 0), ("d", "ramp:1", TEXT, 0)]
TAGS: JsonObject = {"tag_dictionary": ["train", "test", "night"]}


# --- containers


def _layouts() -> Iterator[Canonical]:
    rules = ("S-WRT-1", "S-DAT-5", "S-HDR-13")
    for alignment in (0, 16, 32, 64):
        for layout in ("moved", "declared", "reserved"):
            yield container(
                f"{layout}_{alignment}",
                f"Three entries, layout {layout}, alignment {alignment}.",
                rules,
                THREE,
                alignment=alignment,
                layout=layout,
                max_entries=3 if layout == "reserved" else None,
            )
    yield container(
        "reserved_with_room",
        "Room for ten entries, of which three are written: zero bytes up to the data.",
        rules,
        THREE,
        layout="reserved",
        max_entries=10,
    )
    yield container(
        "reserved_without_entries",
        "Room for two entries and none written.",
        rules,
        [],
        layout="reserved",
        max_entries=2,
    )
    yield container(
        "reserved_with_identity",
        "The identity takes the last of four places.",
        ("S-WRT-1", "S-IDN-5"),
        THREE,
        layout="reserved",
        max_entries=4,
        identity=True,
    )
    for layout in ("moved", "declared"):
        yield container(f"empty_{layout}", "No entries.", rules, [], layout=layout)
    yield container("empty_0", "No entries and no alignment: 64 bytes.", rules, [], alignment=0)


def _names() -> Iterator[Canonical]:
    for length in (14, 15, 16, 17):
        yield container(
            f"name_of_{length}_bytes",
            f"One name of {length} bytes and its NUL at alignment 16: where the data starts.",
            ("S-NAM-7", "S-DAT-5"),
            [("n" * length, "hex:ff", 0, 0)],
            alignment=16,
        )
    yield container(
        "names_without_nul",
        "Role 5 has no NUL after its names; this one is not an episode.",
        ("S-NAM-7",),
        [("n" * 16, "hex:ff", 0, 0), ("m", "hex:00", 0, 0)],
        alignment=16,
        role=5,
    )
    yield container(
        "names_of_many_kinds",
        "Names with a byte order mark, spaces, dots, slashes and characters above U+FFFF, not sorted.",
        ("S-NAM-3", "S-NAM-7", "S-IDX-2"),
        [
            ("\ufeffmark", "hex:01", 0, 0),
            ("../etc", "hex:02", 0, 0),
            ("größe/🤖", "hex:03", 0, 0),
            ("e\u0301", "hex:04", 0, 0),
            ("\u00e9", "hex:05", 0, 0),
            (" ", "hex:06", 0, 0),
            ("a//b/", "hex:07", 0, 0),
        ],
    )
    yield container(
        "name_of_65535_bytes", "The longest name.", ("S-NAM-6",), [("x" * 65535, "hex:01", 0, 0)]
    )
    yield container(
        "entries_300",
        "Three hundred entries of zero to four bytes.",
        ("S-IDX-2", "S-DAT-7"),
        [(f"{number:03}", f"ramp:{number % 5}", number % 18, 0) for number in range(300)],
        alignment=16,
    )


def _blocks() -> Iterator[Canonical]:
    empty = "hex:"
    for name, description, entries in (
        ("first", "An empty entry first.", [("a", empty, 0, 0), ("b", "ramp:3", 0, 0)]),
        ("middle", "Two empty entries in a row.", [("a", "ramp:3", 0, 0), ("b", empty, 0, 0), ("c", empty, 0, 0), ("d", "ramp:3", 0, 0)]),
        ("last", "An empty entry last: the zero bytes before it are written.", [("a", "ramp:3", 0, 0), ("b", empty, 0, 0)]),
        ("only", "One empty entry.", [("a", empty, 0, 0)]),
    ):  # fmt: skip
        yield container(f"empty_entry_{name}", description, ("S-DAT-5", "S-DAT-7"), entries)
    yield container(
        "sizes",
        "Contents around the alignment, and beyond 64 KiB.",
        ("S-DAT-5", "S-CRC-3"),
        [(str(size), f"ramp:{size}", 0, 0) for size in (1, 63, 64, 65, 255, 256, 257, 70_000)],
    )
    yield container(
        "content_types",
        "Every content type that has a name, an unassigned and two private ones.",
        ("S-HDR-13", "S-IDX-3"),
        [(f"t{kind}", "ramp:2", kind, 0) for kind in (*range(18), 99, 0x8000, 0xFFFF)],
    )
    for role in (1, 4, 16, 200, 255):
        yield container(
            f"role_{role}", f"Role {role}, one entry.", ("S-ROL-1",), THREE[:1], role=role
        )


def _schemas() -> Iterator[Canonical]:
    rules = ("S-SCH-6", "S-HDR-13")
    yield container(
        "tags", "Tag bits, with their names in the schema section.",
        ("S-SCH-4", "S-IDX-3"),
        [("a", "ramp:3", 0, 1), ("b", "ramp:3", 0, 6), ("c", "ramp:3", 0, 0)],
        schema=TAGS,
    )  # fmt: skip
    yield container(
        "schema_alone", "A schema section and no entries.", rules, [], schema={"producer": "x"}
    )
    yield container(
        "schema_after_empty_entry",
        "The schema section starts at the offset of the empty last entry.",
        (*rules, "S-DAT-7"),
        [("a", "ramp:3", 0, 0), ("b", "hex:", 0, 0)],
        schema={"producer": "x"},
    )
    yield container(
        "schema_values",
        "Keys, strings and numbers of the schema section in canonical form.",
        rules,
        THREE[:1],
        schema={
            "extra": {
                "\uffff": 1,
                "🤖": 2,
                "a": [1, -1, 0.5, 30.0, 1e21, 1e-7, 123456789012345680.0, -0.0],
                "b": [2**53 - 1, 2**53 + 1, 2**63, -(2**63)],
                "c": '\u2028 \u007f </script> \b\f\n\r\t\u0001\u001f"\\/ ü🤖',
                "d": [True, False, None, {}, [], ""],
            }
        },
    )
    yield container(
        "identity", "The identity as the last entry.", ("S-IDN-5",), THREE, identity=True
    )
    yield container(
        "identity_of_schema",
        "The identity covers the role and the schema section.",
        ("S-IDN-5",), THREE, identity=True, role=200, schema=TAGS,
    )  # fmt: skip


def _compressed() -> Iterator[Canonical]:
    entries = [
        ("lines", "lines:5000", TEXT, 0),
        ("short", "lines:256", 0, 0),
        ("b", "ramp:300", BLOB, 0),
    ]
    for codec in ("zstd", "lz4"):
        yield container(
            f"compressed_{codec}",
            f"Compressed with {codec} where that pays: compare the identity and the index.",
            ("S-WRT-2", "S-CMP-10", "S-HDR-14"),
            entries,
            compression=codec,
            identity=True,
        )


# --- episodes

_HEAD: dict[str, Any] = {
    "env_id": "Env-v0",
    "id": "ep",
    "length": "4",
    "metadata": {},
    "timebase": {"epoch_ns": "0", "tick_hz": 30.0, "type": "ticks"},
}


def dense(
    data: bytes, dtype: str = "f32", shape: tuple[int, ...] = (), **more: object
) -> JsonObject:
    return {
        "dtype": dtype,
        "hex": data.hex(),
        "layout": "dense",
        "shape": [str(n) for n in shape],
    } | more


def told(**more: object) -> JsonObject:
    """Four steps of a state; `more` replaces or adds."""
    return {**_HEAD, "observations": {"state": dense(ramp_f32(16), shape=(4,))}} | more


def _timebases() -> Iterator[Canonical]:
    for name, base in (
        ("30_hz", {"tick_hz": 30.0}),
        ("29_97_hz", {"tick_hz": 29.97}),
        ("1_e_9_hz", {"tick_hz": 1e-9}),
        ("1_e_12_hz", {"tick_hz": 1e-12}),
        ("no_rate", {"tick_hz": None}),
        ("epoch", {"tick_hz": 10.0, "epoch_ns": "1700000000123456789"}),
        ("before_1970", {"tick_hz": 1e7, "epoch_ns": "-1"}),
    ):
        yield episode(
            f"timebase_{name}",
            f"The timebase {base}.",
            ("W-WRT-1", "W-TIM-1", "W-TIM-5"),
            told(timebase={"epoch_ns": "0", "type": "ticks"} | base),
        )
    yield episode(
        "timestamps",
        "Times of the steps, and type timestamps_ns.",
        ("W-TIM-2",),
        told(
            timebase={"epoch_ns": "0", "tick_hz": None, "type": "timestamps_ns"},
            timestamps_ns=["1700000000000000001", "1700000000033333334", "1700000000066666667", "1700000000100000000"],
        ),
    )  # fmt: skip


def _facts() -> Iterator[Canonical]:
    yield episode(
        "smallest",
        "An id, one step, no channel.",
        ("W-WRT-1",),
        {**_HEAD, "id": "e", "env_id": "", "length": "1"},
    )
    yield episode(
        "no_steps",
        "No steps.",
        ("W-WRT-1",),
        told(length="0", observations={"s": dense(b"", length="0")}),
    )
    yield episode(
        "metadata",
        "Metadata with all kinds of values, and a name outside ASCII.",
        ("W-WRT-1", "W-JSN-1"),
        told(
            id="größe/🤖",
            metadata={"z": [1, 2.5, 1e300], "a": {"🤖": None, "\uffff": True}, "n": 2**60},
        ),
    )
    yield episode(
        "chunk",
        "A chunk: its index, its range, and the ticks of the whole episode.",
        ("W-WRT-1", "W-CHK-8"),
        told(
            chunk_index="1", total_chunks="3", timestep_range=["4", "7"],
            ticks=["4", "5", "6", "7"],
            timebase={"epoch_ns": "133333333", "tick_hz": 30.0, "type": "ticks"},
        ),
    )  # fmt: skip
    yield episode(
        "identity", "The identity as the last entry.", ("S-IDN-5",), told(), identity=True
    )
    yield episode(
        "provenance",
        "Provenance and identity, in this order.",
        ("W-PRV-1",),
        told(provenance={"run_id": "r", "epoch": 3, "source": {"b": "2", "a": "1"}}),
        identity=True,
    )
    yield episode(
        "extras",
        "Entries that the format does not define, with content types, and one of meta/.",
        ("W-NAM-2",),
        told(extras={
            "zebra": {"content_type": "0", "hex": "00"}, "aux/b": {"content_type": "10", "hex": "0102"},
            "meta/other": {"content_type": "2", "hex": b"{}".hex()}, "signal": {"content_type": "0", "hex": ""},
        }),
    )  # fmt: skip


def _channels() -> Iterator[Canonical]:
    codes = {
        "f64": numbers("d", 1.5, -0.0, 5e-324, 1e308), "f32": struct.pack("<Ifff", 0xFFA00001, -0.0, 1.5, 0.1),
        "f16": numbers("e", 1.0, -0.0, 65504.0, 6e-8), "bf16": bytes.fromhex("817f0080803f80ff"),
        "i64": i64(-(2**63), -1, 0, 2**63 - 1), "i32": numbers("i", -(2**31), -1, 0, 1), "i16": numbers("h", -1, 0, 1, 2),
        "i8": numbers("b", -128, -1, 0, 127), "u64": numbers("Q", 0, 1, 2**63, 2**64 - 1), "u32": numbers("I", 0, 1, 2, 2**32 - 1),
        "u16": numbers("H", 0, 1, 2, 65535), "u8": bytes((0, 1, 128, 255)), "bool": bytes((0, 1, 1, 0)),
    }  # fmt: skip
    yield episode(
        "dtypes", "One channel of every data type.", ("W-WRT-1", "W-BLK-3"),
        told(observations={dtype: dense(data, dtype) for dtype, data in codes.items()}),
    )  # fmt: skip
    yield episode(
        "order_of_names",
        "Channels in the order of their UTF-8 bytes, whatever the order in which they were given.",
        ("W-WRT-1",),
        told(
            observations={key: dense(f32(*range(4))) for key in ("z", "\U0001f916", "\uffee", "a/b", "a", "a.b", "Z")},
            actions={key: dense(f32(*range(4))) for key in ("grip", "arm")},
        ),
    )  # fmt: skip
    yield episode(
        "fields_of_rows",
        "A channel with every field that people and tools read, and one of a writer's own.",
        ("W-WRT-1", "W-CHN-2"),
        told(observations={"cam": dense(
            bytes(4 * 6), "u8", (1, 2, 3),
            sampling_rate_hz=29.97,
            row={
                "content_type": "image/raw", "description": "front", "lossy": {"codec": "jpeg", "max_error": 3, "psnr_db": 41.25},
                "modality": "rgb", "semantics": "colour", "unit": "1", "x_serial": [7, 0.5],
            },
        )}),
    )  # fmt: skip
    yield episode(
        "one_more_observation", "T + 1 observations and predictions.", ("W-BLK-2",),
        told(
            observations={"state": dense(ramp_f32(20), shape=(4,), length="5")},
            actions={"ctrl": dense(ramp_f32(4))},
            omens={"state": {"m": dense(ramp_f32(20), shape=(4,), length="5")}},
        ),
    )  # fmt: skip
    yield episode(
        "steps_without_bytes",
        "A shape with a 0.",
        ("W-BLK-1",),
        told(observations={"none": dense(b"", "f32", (0, 3), length="4")}),
    )
    yield episode(
        "horizon",
        "Action chunks.",
        ("W-CHN-8",),
        told(actions={"chunk": dense(ramp_f32(24), shape=(3, 2), horizon="3")}),
    )
    yield episode(
        "text_and_ragged", "Text, ragged numbers and ragged points, with empty steps.", ("W-RAG-1", "W-RAG-2"),
        told(observations={
            "said": {"dtype": "u8", "layout": "text", "shape": [], "text": ["", "größe", "🤖", "a"]},
            "ids": {"dtype": "i32", "items": ["", "01000000", "", "0200000003000000"], "layout": "ragged", "shape": []},
            "points": {"dtype": "f32", "items": [ramp_f32(6).hex(), "", ramp_f32(3).hex(), ""], "layout": "ragged", "shape": ["3"]},
        }),
    )  # fmt: skip
    images = [png(2, 2, bytes((shade,) * 12)).hex() for shade in (0, 1, 2, 3)]
    yield episode(
        "video_of_images", "A camera as PNG images, one a step.", ("W-VID-5", "W-VID-7"),
        told(observations={"cam": {
            "content_type": "image/png", "dtype": "u8", "layout": "video", "packets": images, "shape": ["2", "2", "3"],
        }}),
    )  # fmt: skip
    yield episode(
        "video_with_frames", "Packets in another order than their steps, with a hidden one and extradata.", ("W-VID-1", "W-VID-2", "W-VID-7"),
        told(observations={"cam": {
            "content_type": "video/h264", "dtype": "u8", "extradata": base64.b64encode(b"\x01config").decode(), "layout": "video",
            "packets": ["00", "0102", "03", "0405", "06"], "steps": ["-1", "0", "3", "1", "2"],
            "keyframes": [True, False, False, False, False], "hidden": [True, False, False, False, False],
            "shape": ["4", "4", "3"],
        }}),
    )  # fmt: skip


def _clocks() -> Iterator[Canonical]:
    times = ["10", "20", "30"]
    yield episode(
        "own_clocks", "Channels with timestamps of their own, two of which are the same, and a regular clock.", ("W-TIM-3",),
        told(
            observations={
                "b": dense(f32(1, 2, 3), length="3", timestamps_ns=times), "a": dense(f32(1, 2), length="2", timestamps_ns=["5", "6"]),
                "c": dense(f32(4, 5, 6), length="3", timestamps_ns=times),
                "regular": dense(ramp_f32(8), length="8", start_ns="-5", sampling_rate_hz=100.5),
            },
            actions={"a": dense(f32(7, 8, 9), length="3", timestamps_ns=times)},
        ),
    )  # fmt: skip


def _ends() -> Iterator[Canonical]:
    for name, ends in (
        ("terminations", {"terminations": "00000001"}),
        ("truncations", {"truncations": "00000001"}),
        ("both", {"terminations": "00000001", "truncations": "00000100"}),
    ):
        yield episode(f"ends_{name}", f"Ends: {name}.", ("W-END-2",), told(**ends))
    for name, rewards in (
        ("f32", dense(f32(0.1, -0.0, 1e-45, 3e38))),
        ("f32_with_unit", dense(f32(1, 2, 3, 4), row={"unit": "points"})),
        ("f64_exact", dense(numbers("d", 0.5, -2.0, 0.0, 1e10), "f64")),
        ("f64", dense(numbers("d", 0.1, 1e300, -1e-320, 16777217.0), "f64")),
        ("i64", dense(i64(1, 2, 3, 4), "i64")),
        ("u8", dense(bytes((0, 1, 2, 255)), "u8", row={"description": "score"})),
    ):
        yield episode(f"rewards_{name}", f"Rewards: {name}.", ("W-END-4",), told(rewards=rewards))


def _predictions() -> Iterator[Canonical]:
    state = dense(ramp_f32(16), shape=(4,))
    yield episode(
        "predictions", "Predictions and uncertainties of two models, given in another order than they are stored.", ("W-WRT-1",),
        told(
            omens={"state": {"z": state, "a": state}, "latent_action": {"m": dense(ramp_f32(8), shape=(2,))}},
            uncerts={"state": {"z": {"variance": state, "std": state}, "a": {"std": state}}},
        ),
    )  # fmt: skip
    yield episode(
        "predictions_with_slashes", "A channel with a slash in its name: its row names channel and model.", ("W-WRT-1",),
        told(
            observations={"arm/pos": state},
            omens={"arm/pos": {"m": state}},
            uncerts={"arm/pos": {"m": {"std": state}}},
        ),
    )  # fmt: skip
    yield episode(
        "labels", "Two lanes of labels, in steps and in nanoseconds.", ("W-LAB-1", "W-LAB-2"),
        told(labels={
            "phase": {"intervals": [
                {"confidence": 0.9, "end": "2", "source": "human", "start": "0", "text": "reach"},
                {"confidence": None, "end": "4", "source": None, "start": "1", "text": ""},
            ], "unit": "steps"},
            "event": {"intervals": [{"confidence": None, "end": "1700000000000000002", "source": None, "start": "1700000000000000001", "text": "x"}], "unit": "ns"},
            "none": {"intervals": [], "unit": "steps"},
        }),
    )  # fmt: skip


def _residuals() -> Iterator[Canonical]:
    signal = f32(0, 1, 0, -1, 3, 0, 0.1, 0.3, 0.7, 1e10, 1e-10, -5)
    omen = f32(0.1, 0.9, 0, -1, 2.5, 0, 0.2, 0.3, 0.6, 1e10, 0, -5.5)
    pairs = numbers("d", *(value / 7 for value in range(24)))
    integers = i64(0, 2**53 + 1, 2**60, -(2**60), 5, 4, 3, 2, 1, 0, -1, 2**62)
    rows = {"x": dense(signal), "xy": dense(pairs, "f64", (2,)), "n": dense(integers, "i64")}
    for name, residuals in (
        ("signs", [{"channel": "x", "model": "", "type": "sign2nddiff"}, {"channel": "xy", "model": "", "type": "sign2nddiff"}]),
        ("signs_of_integers", [{"channel": "n", "model": "", "type": "sign2nddiff"}]),
        ("signs_of_errors", [{"channel": "x", "model": "m", "type": "sign2nddiff"}]),
        ("differences", [{"channel": "x", "model": "m", "type": "delta_q", "window": "5"}]),
        ("differences_of_two", [{"channel": "xy", "model": "", "type": "delta_q", "window": "256"}]),
    ):  # fmt: skip
        yield episode(
            f"residuals_{name}",
            "Residuals that the writer computes from the signal, or from signal and prediction.",
            ("W-RES-1", "W-RES-2"),
            told(
                length="12", observations=rows, omens={"x": {"m": dense(omen)}}, residuals=residuals
            ),
        )


def _compressed_episodes() -> Iterator[Canonical]:
    big = told(
        length="256",
        observations={"state": dense(f32(*(step % 7 for step in range(1024))), shape=(4,))},
        rewards=dense(f32(*(1.0 for _ in range(256)))),
    )
    yield episode(
        "compressed", "Compressed with zstd: compare the identity and the index.", ("S-WRT-2",), big, identity=True, compression="zstd"
    )  # fmt: skip


# --- shards of datasets


def _packs() -> Iterator[Canonical]:
    rules = ("P-WRT-1", "P-REC-9")
    text, binary = "text/plain", "application/octet-stream"
    hello = Part("x.txt", b"hello", text)
    yield pack("empty", "No records.", ("P-WRT-1",), Pack())
    for alignment in (1, 8, 64):
        parts = [Part(f"{size}.bin", byte_ramp(size), binary) for size in (0, 1, 7, 8, 63, 65)]
        records = tuple(
            Record(key, tuple(parts[first:]), alignment=alignment)
            for first, key in enumerate(("a", "b", "größe/🤖"))
        )
        yield pack(
            f"alignment_{alignment}",
            f"Three records of entries of different sizes, alignment {alignment}.",
            rules,
            Pack(records),
            alignment,
        )
    yield pack("no_entries", "Records without entries.", rules, Pack((Record("b"), Record("a"))))
    kinds = (
        Record("a", (hello, Part("z", b"1", ""))),
        Record("b", (Part("z", b"2", binary), Part("x.txt", b"# hi", "text/markdown"))),
    )
    yield pack(
        "kinds", "Names in another order and with other types.", ("P-WRT-1", "P-KND-4"), Pack(kinds)
    )
    metadata = {"\uffff": 1, "🤖": [0.5, 30.0, 1e21], "n": 2**60, "a": {"b": None}, "t": "\u2028\n"}
    yield pack(
        "metadata",
        "Metadata of records, and of the shard, in canonical form.",
        ("P-WRT-1", "P-MTD-1", "P-MTD-2"),
        Pack(
            (Record("a", (hello,), canonical_json(metadata), JSON_METADATA), Record("b", (hello,))),
            user={"z": 1.5, "a": "ü"},
        ),
    )
    many = tuple(Record(f"{n:03}", (Part("n.cls", b"%d" % n, text),)) for n in range(100))
    yield pack("records_100", "A hundred records.", ("P-WRT-1", "P-IDX-6"), Pack(many))
    names = tuple(Part(f"{n}.bin", b"%d" % n, binary) for n in range(257))
    yield pack(
        "names_257",
        "257 names: a writer states no schema.",
        ("P-WRT-1",),
        Pack((Record("a", names),)),
    )


def canonical_cases() -> Iterator[Canonical]:
    for make in (
        *(_layouts, _names, _blocks, _schemas, _compressed),
        *(_timebases, _facts, _channels, _clocks, _ends, _predictions, _residuals),
        *(_compressed_episodes, _packs),
    ):
        yield from make()
