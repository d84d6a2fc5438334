"""The valid episodes of one file: every lane, layout and clock in canonical form.

Each vector states what is special about it a second time, as the reader must see it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from _compress import (
    checked_frame,
    lz4_last_literals,
    lz4_repeated,
    plain_frame,
    seek_rows,
    seek_table,
)
from _encode import Container, Entry
from _episode_draft import (
    PROVENANCE,
    WSHARD,
    Draft,
    episode_fields,
    f32,
    i32,
    i64,
    numbers,
    ramp_f32,
)
from _filters import Delta, Planes, filtered_entry
from _layout import LZ4, ZSTD
from _primitives import canonical_json, sha256_hex
from _valid import valid
from _vector import Valid, byte_ramp
from _video import H264, HIDDEN, KEYFRAME, png, video_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _metadata import JsonObject

STATE = ramp_f32(16)


def episode(
    name: str,
    description: str,
    rules: tuple[str, ...],
    draft: Draft | Container,
    expected: JsonObject,
    warnings: tuple[str, ...] = (),
) -> Valid:
    container = draft.container() if isinstance(draft, Draft) else draft
    return valid(
        f"episode_{name}",
        description,
        rules,
        container,
        suffix=".wshard",
        warnings=warnings,
        episode=expected,
    )


def seen(
    block: str,
    data: bytes,
    dtype: str = "f32",
    shape: tuple[int, ...] = (),
    length: int = 4,
    *,
    inferred: bool = False,
) -> JsonObject:
    """A dense channel as the JSON tells it."""
    return {
        "block": block,
        "dtype": dtype,
        "hex": data.hex(),
        "inferred": inferred,
        "length": str(length),
        "shape": [str(size) for size in shape],
    }


def base(length: int = 4, **more: object) -> Draft:
    """Four steps of a state with four numbers."""
    draft = Draft(length, episode=episode_fields(length, **more))  # type: ignore[arg-type]
    return draft.add("signal/state", ramp_f32(4 * length), "f32", (4,))


def _smallest() -> Iterator[Valid]:
    text = b'{"episode_id":"","length_T":0}'
    yield episode(
        "minimal",
        "meta/episode alone, with the two fields that must be there; the id is empty.",
        ("W-ROL-2", "W-EPI-1", "W-EPI-2"),
        Container((Entry("meta/episode", text),), role=5, name_terminator=b""),
        {
            "id": "",
            "env_id": "",
            "length": "0",
            "timebase": {"type": "ticks", "tick_hz": 30.0, "epoch_ns": "0"},
            "metadata": {},
            "chunk_index": None,
            "timestep_range": None,
            "rewards": None,
            "ticks": None,
        },
    )
    yield episode(
        "length_0",
        "No steps: every block is empty.",
        ("W-EPI-2", "W-BLK-1"),
        Draft(0)
        .add("signal/state", b"", "f32", (4,))
        .add("action/ctrl", b"", "f64", (2,))
        .add("reward")
        .add("done"),
        {
            "length": "0",
            "observations": {"state": seen("signal/state", b"", "f32", (4,), 0)},
            "actions": {"ctrl": seen("action/ctrl", b"", "f64", (2,), 0)},
            "rewards": None,
            "terminations": None,
            "ticks": None,
        },
    )
    one = ramp_f32(4)
    yield episode(
        "length_0_one_observation",
        "No steps and the observation at the start, with and without length.",
        ("W-BLK-2",),
        Draft(0)
        .add("signal/said", one, "f32", (4,), length=1)
        .add("signal/found", one, "f32", (4,)),
        {
            "observations": {
                "said": seen("signal/said", one, "f32", (4,), 1),
                "found": seen("signal/found", one, "f32", (4,), 1),
            }
        },
    )
    yield episode(
        "length_1",
        "One step; timestep_range [0, 0] is a range here.",
        ("W-EPI-4",),
        base(1, timestep_range=[0, 0]).add("reward", f32(-0.5)).add("done", b"\x01"),
        {"length": "1", "timestep_range": ["0", "0"], "terminations": {"hex": "01"}},
    )


_DTYPES: dict[str, bytes] = {
    "f64": struct.pack("<QdddQ", 0x7FF4000000000001, -0.0, 5e-324, 1.5, 0xFFF8000000000000)[:32],
    "f32": struct.pack("<Ifff", 0xFFA00001, -0.0, 1.5, 3.4028234663852886e38),
    "f16": struct.pack("<HHHH", 0x7D01, 0x8000, 0x3C00, 0x0001),
    "bf16": struct.pack("<HHHH", 0x7F81, 0x8000, 0x3F80, 0xFF80),
    "i64": struct.pack("<qqqq", -(2**63), -1, 0, 2**63 - 1),
    "i32": struct.pack("<iiii", -(2**31), -1, 0, 2**31 - 1),
    "i16": struct.pack("<hhhh", -(2**15), -1, 0, 2**15 - 1),
    "i8": struct.pack("<bbbb", -128, -1, 0, 127),
    "u64": struct.pack("<QQQQ", 0, 1, 2**63, 2**64 - 1),
    "u32": struct.pack("<IIII", 0, 1, 2**31, 2**32 - 1),
    "u16": struct.pack("<HHHH", 0, 1, 2**15, 2**16 - 1),
    "u8": bytes((0, 1, 128, 255)),
    "bool": bytes((0, 1, 1, 0)),
}
_ALIASES = {
    "float64": "f64",
    "Float32": "f32",
    "FLOAT16": "f16",
    "bfloat16": "bf16",
    "int64": "i64",
    "Int32": "i32",
    "INT16": "i16",
    "int8": "i8",
    "uint64": "u64",
    "UInt32": "u32",
    "uint16": "u16",
    "UINT8": "u8",
    "BOOL": "bool",
    "F32": "f32",
}


def _arrays() -> Iterator[Valid]:
    draft = Draft(4)
    for dtype, data in _DTYPES.items():
        draft.add(f"signal/{dtype}", data, dtype)
    yield episode(
        "dtypes",
        "All data types, with NaN payloads, negative zeros and the ends of the ranges.",
        ("W-CHN-3", "W-BLK-3"),
        draft,
        {"observations": {d: seen(f"signal/{d}", data, d) for d, data in _DTYPES.items()}},
    )
    draft = Draft(4)
    for alias, dtype in _ALIASES.items():
        draft.add(f"signal/{alias}", _DTYPES[dtype], alias)
    yield episode(
        "dtype_names",
        "The long names of the data types, in any letter case.",
        ("W-CHN-3",),
        draft,
        {
            "observations": {
                alias: seen(f"signal/{alias}", _DTYPES[dtype], dtype)
                for alias, dtype in _ALIASES.items()
            }
        },
    )
    yield episode(
        "bool_values",
        "A bool channel with the bytes 0, 1, 2 and 255: every value but 0 is true.",
        ("W-CHN-3",),
        Draft(4).add("signal/b", bytes((0, 1, 2, 255)), "bool"),
        {"observations": {"b": seen("signal/b", bytes((0, 1, 1, 1)), "bool")}},
    )
    shapes: dict[str, tuple[int, ...]] = {
        "scalar": (),
        "one": (1,),
        "zero": (0,),
        "zero_inside": (2, 0, 3),
        "image": (2, 3, 2),
        "ones_31": (1,) * 31,
    }
    draft, expected = Draft(3), {}
    for name, shape in shapes.items():
        size = 3
        for part in shape:
            size *= part
        draft.add(f"signal/{name}", byte_ramp(size), "u8", shape)
        expected[name] = seen(f"signal/{name}", byte_ramp(size), "u8", shape, 3)
    draft.add("signal/null", f32(1, 2, 3), "f32")
    draft.rows[-1]["shape"] = None
    expected["null"] = seen("signal/null", f32(1, 2, 3), length=3)
    yield episode(
        "shapes",
        "Shapes [], [1], [0], a zero inside, 31 dimensions, and null, which is [].",
        ("W-CHN-4", "W-BLK-1"),
        draft,
        {"observations": expected},
    )
    five = ramp_f32(20)
    yield episode(
        "observation_after_the_last_action",
        "T + 1 observations, predictions and uncertainties, described with length and without.",
        ("W-BLK-1", "W-BLK-2"),
        Draft(4)
        .add("signal/said", five, "f32", (4,), length=5)
        .add("signal/found", five, "f32", (4,))
        .add("omen/said/m", five, "f32", (4,))
        .add("uncert/said/m/std", five, "f32", (4,))
        .add("action/ctrl", ramp_f32(8), "f32", (2,)),
        {
            "observations": {
                "said": seen("signal/said", five, "f32", (4,), 5),
                "found": seen("signal/found", five, "f32", (4,), 5),
            },
            "omens": {"said": {"m": {"length": "5"}}},
            "uncerts": {"said": {"m": {"std": {"length": "5"}}}},
            "actions": {"ctrl": seen("action/ctrl", ramp_f32(8), "f32", (2,))},
        },
    )
    yield episode(
        "lengths_of_their_own",
        "Channels with fewer and more entries than steps.",
        ("W-BLK-1",),
        base()
        .add("signal/none", b"", "f32", (3,), length=0)
        .add("signal/once", f32(7), "f32", length=1)
        .add("action/often", ramp_f32(12), "f32", length=12),
        {
            "observations": {
                "none": seen("signal/none", b"", "f32", (3,), 0),
                "once": seen("signal/once", f32(7), length=1),
            },
            "actions": {"often": seen("action/often", ramp_f32(12), length=12)},
        },
    )


def _ends_and_rewards() -> Iterator[Valid]:
    exact = numbers("d", 0.1, -1e300, 5e-324, 2.0)
    yield episode(
        "rewards",
        "Rewards in f32.",
        ("W-END-1",),
        base().add("reward", f32(0, 1, -0.5, 2)),
        {"rewards": seen("reward", f32(0, 1, -0.5, 2)), "terminations": None},
    )
    yield episode(
        "rewards_exact",
        "Rewards that f32 cannot hold, in f64 beside the rounded ones.",
        ("W-END-1",),
        base().add("reward", f32(0.1, float("-inf"), 0, 2)).add("reward/exact", exact, "f64"),
        {"rewards": seen("reward/exact", exact, "f64")},
    )
    yield episode(
        "ends",
        "terminated, truncated and their union done.",
        ("W-END-1", "W-END-2", "W-END-3"),
        base()
        .add("done", bytes((0, 1, 1, 1)))
        .add("terminated", bytes((0, 1, 0, 1)))
        .add("truncated", bytes((0, 0, 1, 1))),
        {
            "terminations": {"block": "terminated", "hex": "00010001"},
            "truncations": {"block": "truncated", "hex": "00000101"},
        },
    )
    yield episode(
        "ends_done_only",
        "done alone, with values other than 1.",
        ("W-END-2",),
        base().add("done", bytes((0, 2, 0, 255))),
        {"terminations": {"block": "done", "hex": "00010001"}, "truncations": None},
    )
    yield episode(
        "ends_empty",
        "reward, done and time/ticks are empty, which means absent.",
        ("W-END-1", "W-TIM-2"),
        Draft(4, ticks=False)
        .add("signal/state", STATE, "f32", (4,))
        .add("reward")
        .add("done")
        .add("time/ticks")
        .add("time/timestamps_ns"),
        {"rewards": None, "terminations": None, "ticks": None, "timestamps_ns": None},
    )


EPOCH = 1_700_000_000_000_000_000


def _clocks() -> Iterator[Valid]:
    times = (EPOCH, EPOCH + 33_000_000, EPOCH + 70_000_000, EPOCH + 70_000_000)
    timebase = {"epoch_ns": EPOCH, "tick_hz": 30, "type": "timestamps_ns"}
    draft = base(4, timebase=timebase).add("time/timestamps_ns", i64(*times))
    draft.ticks = False
    draft.add("time/ticks", i32(0, 1, 5, -3))
    yield episode(
        "timestamps",
        "Timestamps beyond 2^53, two of them equal, ticks that jump, and an epoch.",
        ("W-TIM-1", "W-TIM-2", "W-TIM-4"),
        draft,
        {
            "timebase": {"type": "timestamps_ns", "tick_hz": 30, "epoch_ns": str(EPOCH)},
            "ticks": ["0", "1", "5", "-3"],
            "timestamps_ns": [str(time) for time in times],
        },
    )
    sources: dict[str, tuple[str, JsonObject, JsonObject, float | None]] = {
        "episode_tick_hz": (
            "The rate is tick_hz of meta/episode, whatever else there is.",
            {"tick_hz": 12.5, "dt_ns": 1},
            {"tick_hz": 99, "dt_ns": 2},
            12.5,
        ),
        "wshard_tick_hz": (
            "The rate is tick_hz of meta/wshard, before dt_ns of meta/episode.",
            {"dt_ns": 1},
            {"tick_hz": 99, "dt_ns": 2},
            99,
        ),
        "episode_dt_ns": (
            "The rate follows from dt_ns of meta/episode.",
            {"dt_ns": 20_000_000},
            {"dt_ns": 2},
            50,
        ),
        "wshard_dt_ns": ("The rate follows from dt_ns of meta/wshard.", {}, {"dt_ns": 8}, 1.25e8),
        "odd": (
            "A rate of 0, a negative dt_ns and an unknown type count as absent.",
            {"tick_hz": 0, "dt_ns": -5, "type": "sundial"},
            {"tick_hz": -1.5, "dt_ns": 4, "type": "timestamps_ns"},
            2.5e8,
        ),
        "default": ("No rate at all: 30 Hz.", {"type": "ticks"}, {}, 30),
        "unknown": (
            "tick_hz null in meta/episode, and no other rate: the rate is not known.",
            {"tick_hz": None, "type": "ticks"},
            {},
            None,
        ),
        "unknown_but_told": (
            "tick_hz null in meta/episode, and a rate in meta/wshard.",
            {"tick_hz": None, "type": "ticks"},
            {"tick_hz": 20},
            20,
        ),
    }
    for name, (what, own, shared, rate) in sources.items():
        draft = base(4, timebase=own)
        draft.wshard = WSHARD | {"timebase": shared}
        yield episode(
            f"timebase_{name}",
            what,
            ("W-TIM-1", "W-TIM-5") if name.startswith("unknown") else ("W-TIM-1",),
            draft,
            {"timebase": {"tick_hz": rate}},
        )
    shared_times, own_times = (5, 10, 20), (-7, 0)
    draft = (
        base()
        .add("signal/camera", bytes(12), "u8", (4,), length=3, time_block="time/signal/camera")
        .add("signal/depth", bytes(6), "u16", length=3, time_block="time/signal/camera")
        .add("signal/gps", ramp_f32(2), "f32", length=2, time_block="time/signal/gps")
        .add("signal/imu", ramp_f32(8), "f32", length=8, start_ns=EPOCH, sampling_rate_hz=29.97)
        .add("signal/rated", ramp_f32(4), "f32", sampling_rate_hz=200)
        .add("time/signal/camera", i64(*shared_times))
        .add("time/signal/gps", i64(*own_times))
    )
    step = 10**9 / 29.97
    yield episode(
        "multi_rate",
        "Clocks of channels: one of its own, one shared by two, one that is regular, none.",
        ("W-TIM-3",),
        draft,
        {
            "observations": {
                "camera": {"timestamps_ns": ["5", "10", "20"], "length": "3"},
                "depth": {"timestamps_ns": ["5", "10", "20"]},
                "gps": {"timestamps_ns": ["-7", "0"]},
                "imu": {
                    "start_ns": str(EPOCH),
                    "sampling_rate_hz": 29.97,
                    "times_ns": [str(EPOCH + round(i * step)) for i in range(8)],
                },
                "rated": {"sampling_rate_hz": 200, "length": "4"},
            },
            "extras": {},
        },
    )


def text_blocks(draft: Draft, block: str, texts: list[str], **fields: object) -> Draft:
    """A text channel."""
    parts = [text.encode() for text in texts]
    return ragged_blocks(draft, block, parts, "u8", (), 1, layout="text", **fields)


def ragged_blocks(
    draft: Draft,
    block: str,
    steps: list[bytes],
    dtype: str,
    shape: tuple[int, ...],
    item: int,
    *,
    layout: str = "ragged",
    **fields: object,
) -> Draft:
    """A ragged channel; each step is its items back to back."""
    offsets = [0]
    for step in steps:
        offsets.append(offsets[-1] + len(step) // item)
    name = f"offsets/{block}"
    draft.add(block, b"".join(steps), dtype, shape, layout=layout, offsets_block=name, **fields)
    return draft.add(name, i64(*offsets))


TEXTS = ["pick up the cup", "", "größer 🤖\0", "\u202e\u0301"]


def _text_and_ragged() -> Iterator[Valid]:
    draft = text_blocks(base(), "signal/instruction", TEXTS, modality="language")
    text_blocks(draft, "action/said", ["", "", "", ""])
    text_blocks(draft, "signal/final", ["a", "b", "c", "d", "e"], length=5)
    text_blocks(draft, "signal/none", [], length=0)
    yield episode(
        "text",
        "Text: empty strings, a NUL, several scripts, only empty ones, T + 1 strings and none.",
        ("W-RAG-1", "W-RAG-2", "W-RAG-4", "W-RAG-5"),
        draft,
        {
            "observations": {
                "instruction": {"text": TEXTS, "layout": "text", "length": "4"},
                "final": {"text": ["a", "b", "c", "d", "e"], "length": "5"},
                "none": {"text": [], "length": "0"},
            },
            "actions": {"said": {"text": ["", "", "", ""]}},
        },
    )
    points = [f32(1, 2, 3), b"", f32(4, 5, 6, 7, 8, 9), b""]
    tokens = [b"", i32(7), i32(-1, 2), b""]
    draft = ragged_blocks(base(), "signal/points", points, "f32", (3,), 12, modality="pointcloud")
    ragged_blocks(draft, "action/tokens", tokens, "i32", (), 4)
    ragged_blocks(
        draft,
        "omen/points/m",
        [f32(0, 0, 0)] * 4,
        "f32",
        (3,),
        12,
        channel="points",
        model="m",
    )
    yield episode(
        "ragged",
        "Ragged channels: points of three numbers, tokens, a prediction; steps without items.",
        ("W-RAG-1", "W-RAG-2", "W-RAG-3"),
        draft,
        {
            "observations": {
                "points": {"items": [part.hex() for part in points], "shape": ["3"]},
            },
            "actions": {"tokens": {"items": [part.hex() for part in tokens], "dtype": "i32"}},
            "omens": {"points": {"m": {"layout": "ragged"}}},
        },
    )


def _videos() -> Iterator[Valid]:
    pictures = [bytes(range(start, start + 18)) for start in (0, 50, 100, 150, 200)]
    images = [png(2, 3, picture) for picture in pictures]
    greys = [bytes(range(start, start + 12)) for start in range(4)]
    depths = [png(2, 3, grey) for grey in greys]
    draft = video_blocks(base(), "signal/rgb", images[:4], (2, 3, 3), content_type="image/png")
    video_blocks(*(draft, "signal/final", images, (2, 3, 3)), content_type="image/png", length=5)
    video_blocks(draft, "signal/none", [], (2, 3, 3), content_type="image/png", length=0)
    video_blocks(
        *(draft, "signal/depth", depths, (2, 3)), dtype="u16", content_type="image/png", unit="mm"
    )
    # PNG stores the upper byte first.
    swapped = [b"".join(grey[at : at + 2][::-1] for at in range(0, 12, 2)) for grey in greys]
    yield episode(
        "video_images",
        "Cameras as one PNG image for each step, without an index of frames: T and T + 1 colours, none, and depth.",
        ("W-VID-1", "W-VID-3", "W-VID-5", "W-VID-6"),
        draft,
        {
            "observations": {
                "rgb": {
                    "layout": "video",
                    "content_type": "image/png",
                    "packets": [image.hex() for image in images[:4]],
                    "frames": [picture.hex() for picture in pictures[:4]],
                    "steps": ["0", "1", "2", "3"],
                    "keyframes": [True] * 4,
                    "hidden": [False] * 4,
                },
                "final": {"length": "5", "frames": [picture.hex() for picture in pictures]},
                "none": {"length": "0", "packets": []},
                "depth": {"dtype": "u16", "frames": [grey.hex() for grey in swapped]},
            },
        },
    )
    packets = [bytes.fromhex(text) for _, _, text in H264]
    frames = [(step, flags) for step, flags, _ in H264]
    draft = video_blocks(
        *(base(6), "signal/camera", packets, (16, 16, 3), frames),
        content_type="video/h264",
        lossy={"codec": "h264", "crf": 28, "max_error": 13},
    )
    yield episode(
        "video_h264",
        "H.264 with frames out of order, an open group of pictures, and a hidden keyframe in front.",
        ("W-VID-2", "W-VID-3", "W-VID-4"),
        draft,
        {
            "observations": {
                "camera": {
                    "layout": "video",
                    "content_type": "video/h264",
                    "length": "6",
                    "packets": [packet.hex() for packet in packets],
                    "steps": [str(step) for step, _ in frames],
                    "keyframes": [bool(flags & KEYFRAME) for _, flags in frames],
                    "hidden": [bool(flags & HIDDEN) for _, flags in frames],
                },
            },
        },
    )
    joined = [(0, KEYFRAME), (1, 0), (1, KEYFRAME | HIDDEN), (2, 0), (5, HIDDEN), (3, 0)]
    draft = video_blocks(
        *(base(), "signal/camera", [b"a", b"bc", b"def", b"", b"g", b"h"], (1, 65535), joined),
        content_type="video/x-unknown",
        extradata="AAEC",
        time_block="time/signal/camera",
    )
    draft.add("time/signal/camera", i64(5, 6, 7, 9))
    yield episode(
        "video_unknown_codec",
        "A codec that no reader knows: two streams were joined, one packet is empty, with a clock and extradata.",
        ("W-VID-3", "W-VID-4", "W-VID-5"),
        draft,
        {
            "observations": {
                "camera": {
                    "content_type": "video/x-unknown",
                    "extradata": "AAEC",
                    "steps": ["0", "1", "1", "2", "5", "3"],
                    "hidden": [False, False, True, False, True, False],
                    "timestamps_ns": ["5", "6", "7", "9"],
                },
            },
        },
    )


def _models() -> Iterator[Valid]:
    yield episode(
        "omens",
        "Predictions of two models; a model and, where the row says so, a channel with a slash.",
        ("W-NAM-2", "W-INF-1"),
        base()
        .add("signal/arm/pose", ramp_f32(8), "f32", (2,))
        .add("omen/state/dreamer", STATE, "f32", (4,), channel="state", model="dreamer")
        .add("omen/state/org/v2", STATE, "f16", (8,))
        .add("omen/arm/pose/m", ramp_f32(8), "f32", (2,), channel="arm/pose", model="m"),
        {
            "omens": {
                "state": {
                    "dreamer": seen("omen/state/dreamer", STATE, "f32", (4,)),
                    "org/v2": seen("omen/state/org/v2", STATE, "f16", (8,)),
                },
                "arm/pose": {"m": seen("omen/arm/pose/m", ramp_f32(8), "f32", (2,))},
            }
        },
    )
    yield episode(
        "uncertainties",
        "Uncertainties in three parts, in two parts and with slashes.",
        ("W-INF-1",),
        base()
        .add("uncert/state/dreamer/std", STATE, "f32", (4,))
        .add("uncert/state/dreamer/variance", numbers("e", *range(16)), "f16", (4,))
        .add("uncert/state/std", f32(1, 2, 3, 4), "f32")
        .add("uncert/state/org/v2/std", f32(5, 6, 7, 8), "f32")
        .add(
            "uncert/arm/pose/m/std",
            f32(0, 0, 0, 1),
            "f32",
            channel="arm/pose",
            model="m",
            type="std",
        ),
        {
            "uncerts": {
                "state": {
                    "dreamer": {
                        "std": seen("uncert/state/dreamer/std", STATE, "f32", (4,)),
                        "variance": {"dtype": "f16"},
                    },
                    "": {"std": {"block": "uncert/state/std"}},
                    "org/v2": {"std": {"block": "uncert/state/org/v2/std"}},
                },
                "arm/pose": {"m": {"std": {"block": "uncert/arm/pose/m/std"}}},
            }
        },
    )
    latent, codes = ramp_f32(12), i32(3, 1, 0, 2)
    yield episode(
        "latent_actions",
        "Latent actions and their indices in a codebook.",
        ("W-INF-1",),
        base()
        .add("omen/latent_action/genie", latent, "f32", (3,))
        .add("omen/latent_action_codebook/genie", codes, "i32"),
        {
            "omens": {
                "latent_action": {
                    "genie": seen("omen/latent_action/genie", latent, "f32", (3,)),
                },
                "latent_action_codebook": {
                    "genie": seen("omen/latent_action_codebook/genie", codes, "i32"),
                },
            }
        },
    )


def _horizons() -> Iterator[Valid]:
    chunks, spread, ahead = ramp_f32(24), ramp_f32(24, 1), ramp_f32(16)
    yield episode(
        "horizons",
        "Action chunks of three steps with their uncertainty, predictions of one step, and recorded chunks.",
        ("W-CHN-8",),
        base()
        .add("action/ctrl", ramp_f32(8), "f32", (2,))
        .add("action/plan", ramp_f32(16), "f32", (2, 2), horizon=2)
        .add("omen/ctrl/act", chunks, "f32", (3, 2), channel="ctrl", model="act", horizon=3)
        .add("omen/state/dreamer", ahead, "f32", (1, 4), horizon=1)
        .add("uncert/ctrl/act/std", spread, "f32", (3, 2), horizon=3),
        {
            "actions": {
                "ctrl": seen("action/ctrl", ramp_f32(8), "f32", (2,)),
                "plan": seen("action/plan", ramp_f32(16), "f32", (2, 2)) | {"horizon": "2"},
            },
            "omens": {
                "ctrl": {
                    "act": seen("omen/ctrl/act", chunks, "f32", (3, 2)) | {"horizon": "3"},
                },
                "state": {
                    "dreamer": seen("omen/state/dreamer", ahead, "f32", (1, 4)) | {"horizon": "1"},
                },
            },
            "uncerts": {
                "ctrl": {
                    "act": {
                        "std": seen("uncert/ctrl/act/std", spread, "f32", (3, 2))
                        | {"horizon": "3"},
                    },
                },
            },
        },
    )


def _bits(values: list[float]) -> bytes:
    """sign2nddiff of one dimension: section 9, written out."""
    count = len(values)
    packed = bytearray(-(-count // 8))
    for t in range(1, count - 1):
        if 2 * values[t] - values[t - 1] - values[t + 1] > 0:
            packed[t // 8] |= 1 << t % 8
    return bytes(packed)


def _residuals() -> Iterator[Valid]:
    x = [0.0, 1.0, 0.0, -1.0, 3.0, 0.0]
    bits = _bits(x)
    if bits != b"\x12":
        raise SystemExit(f"the residual of spec/wshard.md, section 9, is {bits.hex()}")
    yield episode(
        "residual_sign",
        "The residual of section 9: x = 0 1 0 -1 3 0 gives the byte 12.",
        ("W-RES-1",),
        Draft(6)
        .add("signal/x", f32(*x), "f32")
        .add("residual/x/sign2nddiff", bits, "u8", length=1, channel="x", type="sign2nddiff"),
        {
            "residuals": {
                "x": {
                    "block": "residual/x/sign2nddiff",
                    "channel": "x",
                    "model": "",
                    "type": "sign2nddiff",
                    "hex": "12",
                }
            }
        },
    )
    steps = [[(t * (d + 2)) % 5 - 1.5 for t in range(10)] for d in range(3)]
    packed = b"".join(_bits(column) for column in steps)
    signal = f32(*(steps[d][t] for t in range(10) for d in range(3)))
    yield episode(
        "residual_sign_3_dimensions",
        "Three dimensions one after the other; one residual has no row, and a channel a slash.",
        ("W-RES-1",),
        Draft(10)
        .add("signal/arm/pos", signal, "f32", (3,))
        .add("signal/first", f32(*steps[0]), "f32")
        .add("residual/first/sign2nddiff", _bits(steps[0]))
        .add("residual/arm/pos/sign2nddiff", packed, "u8", length=6, channel="arm/pos"),
        {
            "residuals": {
                "arm/pos": {"channel": "arm/pos", "hex": packed.hex()},
                "first": {"channel": "first", "hex": _bits(steps[0]).hex()},
            }
        },
    )
    omen = [0.5, 0.5, 1.0, 0.0, 2.0, 0.0]
    against = _bits([a - b for a, b in zip(x, omen, strict=True)])
    yield episode(
        "residual_against_omen",
        "The same of signal minus omen; the row names the model.",
        ("W-RES-1",),
        Draft(6)
        .add("signal/x", f32(*x), "f32")
        .add("omen/x/m", f32(*omen), "f32", channel="x", model="m")
        .add(
            "residual/x/m/sign2nddiff",
            against,
            "u8",
            length=1,
            channel="x",
            model="m",
            type="sign2nddiff",
        ),
        {"residuals": {"x/m": {"channel": "x", "model": "m", "hex": against.hex()}}},
    )
    q = numbers("b", 127, -127, 0, 64, 1, -1, 127, 2, -3, 127)
    scales = f32(0.5, 1.0, 0.25, 2.0, 1.0, 1.0)
    yield episode(
        "residual_delta_q",
        "delta_q of five steps of two numbers in windows of two steps, and one of 256.",
        ("W-RES-2",),
        Draft(5)
        .add("signal/x", ramp_f32(10), "f32", (2,))
        .add("omen/x/m", ramp_f32(10, 1), "f32", (2,), channel="x", model="m")
        .add(
            "residual/x/m/delta_q",
            q,
            "i8",
            (2,),
            channel="x",
            model="m",
            type="delta_q",
            window=2,
        )
        .add("residual/x/m/delta_q/scales", scales, "f32", (2,), length=3)
        .add("residual/x/delta_q", q, "i8", (2,), channel="x", type="delta_q")
        .add("residual/x/delta_q/scales", f32(1, 2), "f32", (2,), length=1),
        {
            "residuals": {
                "x/m/delta_q": {
                    "channel": "x",
                    "model": "m",
                    "type": "delta_q",
                    "window": "2",
                    "hex": q.hex(),
                    "scales": scales.hex(),
                },
                "x/delta_q": {"model": "", "window": "256", "scales": f32(1, 2).hex()},
            },
            "extras": {},
        },
    )


def _labels() -> Iterator[Valid]:
    intervals: list[JsonObject] = [
        {"confidence": 0.9, "end": 3, "source": "human", "start": 1, "text": "reach"},
        {"confidence": None, "end": 1, "start": 1, "text": "größe 🤖"},
        {"confidence": 1, "end": 4, "start": 0, "text": "", "x_note": "kept"},
    ]
    yield episode(
        "labels",
        "Labels in steps and in nanoseconds: overlapping, empty, negative, none; a default unit.",
        ("W-LAB-1", "W-LAB-2"),
        base()
        .json("label/skill", {"intervals": intervals, "unit": "steps"})
        .json(
            "label/speech/left",
            {"intervals": [{"end": 2**62, "start": -5, "text": "t"}], "unit": "ns"},
        )
        .json("label/none", {"intervals": []}),
        {
            "labels": {
                "skill": {
                    "unit": "steps",
                    "intervals": [
                        {
                            "confidence": 0.9,
                            "end": "3",
                            "source": "human",
                            "start": "1",
                            "text": "reach",
                        },
                        {
                            "confidence": None,
                            "end": "1",
                            "source": None,
                            "start": "1",
                            "text": "größe 🤖",
                        },
                        {"confidence": 1, "end": "4", "source": None, "start": "0", "text": ""},
                    ],
                },
                "speech/left": {"unit": "ns"},
                "none": {"intervals": [], "unit": "steps"},
            }
        },
    )


MODALITIES = {
    "rgb": ("u8", (2, 2, 3), 12),
    "depth": ("f32", (2, 2), 16),
    "language": ("u8", (5,), 5),
    "proprioception": ("f32", (7,), 28),
    "audio": ("i16", (8,), 16),
    "video": ("u8", (1, 2, 2, 3), 12),
    "pointcloud": ("f32", (2, 3), 24),
}


def _names_and_fields() -> Iterator[Valid]:
    draft, expected = Draft(2), {}
    for name, (dtype, shape, size) in MODALITIES.items():
        block = f"signal/head/{name}"
        draft.add(block, byte_ramp(2 * size), dtype, shape, modality=name)
        expected[f"head/{name}"] = seen(block, byte_ramp(2 * size), dtype, shape, 2)
    draft.add("signal/head/smell", b"ab", "u8", modality="olfaction")
    draft.channels = {
        "channels": list(draft.rows),
        "modality_groups": {"head": [{"channel_id": "head/rgb", "modality": "rgb"}]},
    }
    yield episode(
        "modalities",
        "A group with all seven modalities and one that nobody knows.",
        ("W-JSN-2",),
        draft,
        {"observations": expected},
    )
    yield episode(
        "ids",
        "One id in both lanes, an id that is not the end of its block, scripts, odd parts.",
        ("W-NAM-1", "W-CHN-2"),
        Draft(2)
        .add("signal/joint", f32(1, 2), "f32")
        .add("action/joint", f32(3, 4), "f32")
        .add("signal/cam0", b"ab", "u8", id="camera/left")
        .add("signal/größe/信号", f32(5, 6), "f32")
        .add("signal//..//.", f32(7, 8), "f32"),
        {
            "observations": {
                "joint": seen("signal/joint", f32(1, 2), length=2),
                "camera/left": seen("signal/cam0", b"ab", "u8", (), 2),
                "größe/信号": seen("signal/größe/信号", f32(5, 6), length=2),
                "/..//.": seen("signal//..//.", f32(7, 8), length=2),
            },
            "actions": {"joint": seen("action/joint", f32(3, 4), length=2)},
        },
    )
    models = canonical_json({"models": [{"id": "dreamer", "latent_dim": 32}]})
    yield episode(
        "unknown_names_and_fields",
        "Custom namespaces, unknown entries below meta/, reserved prefixes, unknown fields.",
        ("W-NAM-2", "W-JSN-2"),
        base(4, source="lab 3", x_note={"a": [1, None]})
        .add("signal/b", ramp_f32(4), "f32", x_gain=1.5, x_list=[{}])
        .json("meta/models", models)
        .add("meta/robot.urdf", b"<robot/>")
        .add("com.example/calibration", byte_ramp(30))
        .add("aux/debug", b"\0\1")
        .add("debug/log", b"no lane")
        .add("rewards", b"not the lane reward")
        .add("plain", b""),
        {
            "extras": {
                "meta/models": sha256_hex(models),
                "meta/robot.urdf": sha256_hex(b"<robot/>"),
                "com.example/calibration": sha256_hex(byte_ramp(30)),
                "aux/debug": sha256_hex(b"\0\1"),
                "debug/log": sha256_hex(b"no lane"),
                "rewards": sha256_hex(b"not the lane reward"),
                "plain": sha256_hex(b""),
            },
            "rewards": None,
        },
    )
    bare = (
        *("signal", "signal/", "action", "action/", "omen", "omen/state", "uncert"),
        *("uncert/state", "uncert/state/", "label", "label/", "residual"),
    )
    draft = base()
    for number, name in enumerate(bare):
        draft.add(name, ramp_f32(number + 1))
    yield episode(
        "bare_prefixes",
        "Entries that are only a prefix, or have no channel, model or type: unknown entries, no channels.",
        ("W-NAM-2",),
        draft,
        {
            "observations": {"state": seen("signal/state", STATE, "f32", (4,))},
            "omens": {},
            "uncerts": {},
            "labels": {},
            "extras": {name: sha256_hex(ramp_f32(number + 1)) for number, name in enumerate(bare)},
        },
    )
    metadata = {
        "task": "größe 🤖",
        "nested": {"list": [1, -2.5, None, True, "x"], "empty": {}},
        "big": 2**53 + 1,
    }
    yield episode(
        "described_in_full",
        "Every descriptive field of a row, and metadata of all JSON types.",
        ("W-CHN-2", "W-EPI-3"),
        base(4, metadata=metadata).add(
            "signal/cam",
            bytes(16),
            "u8",
            (4,),
            length=4,
            layout="dense",
            sampling_rate_hz=0.5,
            start_ns=-1,
            modality="rgb",
            unit="counts",
            semantics="sRGB",
            description="left \u201ceye\u201d",
            content_type="image/raw",
            lossy={"codec": "jpeg", "max_error": 3},
        ),
        {
            "metadata": metadata,
            "observations": {
                "cam": {
                    "start_ns": "-1",
                    "sampling_rate_hz": 0.5,
                    "times_ns": ["-1", "1999999999", "3999999999", "5999999999"],
                }
            },
        },
    )
    draft = base()
    draft.rows.append({"dtype": "f32", "id": "gone", "shape": [2], "signal_block": "signal/gone"})
    draft.rows.append({"dtype": "u8", "id": "omen/gone/m", "signal_block": "omen/gone/m"})
    yield episode(
        "row_without_block",
        "Rows whose blocks are not in the file are skipped; one has no shape.",
        ("W-CHN-6",),
        draft,
        {"observations": {"state": seen("signal/state", STATE, "f32", (4,))}, "omens": {}},
    )


def _nulls() -> Iterator[Valid]:
    draft = base(4, metadata=None, chunk_index=None, total_chunks=None, timestep_range=None)
    draft.wshard = WSHARD | {
        "timebase": {"dt_ns": None, "epoch_ns": None, "tick_hz": None, "type": None}
    }
    assert isinstance(draft.episode, dict)
    draft.episode["timebase"] = None
    optional = "length layout offsets_block time_block start_ns sampling_rate_hz modality unit"
    optional += " semantics description content_type lossy channel model type window shape"
    nothing = dict.fromkeys(optional.split())
    draft.add("signal/x", f32(1, 2, 3, 4), "f32")
    draft.rows[-1] |= nothing
    yield episode(
        "nulls",
        "null stands for every field that may be absent.",
        ("W-EPI-3", "W-EPI-4", "W-CHN-2", "W-TIM-1"),
        draft,
        {
            "metadata": {},
            "timebase": {"type": "ticks", "tick_hz": 30.0, "epoch_ns": "0"},
            "observations": {"x": seen("signal/x", f32(1, 2, 3, 4))},
        },
    )


def _trust() -> Iterator[Valid]:
    provenance = PROVENANCE | {
        "end_state": sha256_hex(b"end"),
        "epoch": -(2**53 - 1),
        "last_seq": 2**53 - 1,
        "prev_identity": sha256_hex(b"previous"),
        "run_id": "run größe",
        "source": {"robot": "arm-1"},
    }
    draft = base().add("reward", f32(0, 0, 0, 1)).json("meta/provenance", provenance)
    draft.identity = 1
    yield episode(
        "provenance_and_identity",
        "meta/provenance right before meta/identity, which is last.",
        ("W-PRV-1", "S-IDN-1"),
        draft,
        {"extras": {}},
    )
    draft = base().json("meta/provenance", PROVENANCE)
    draft.identity = 1
    yield episode(
        "provenance_empty",
        "The provenance of nothing in particular.",
        ("W-PRV-1",),
        draft,
        {"extras": {}},
    )
    draft = base().add("reward", f32(0, 0, 0, 1))
    draft.identity = 2
    yield episode(
        "identity_2",
        "meta/identity of version 2, as writers of today leave it.",
        ("S-IDN-1", "S-IDN-5"),
        draft,
        {"extras": {}},
    )


def _compressed() -> Iterator[Valid]:
    steps = 40
    rows = ramp_f32(7 * steps)
    frame_content = 28 * 16
    parts = [rows[at : at + frame_content] for at in range(0, len(rows), frame_content)]
    frames = [checked_frame(part) for part in parts]
    zeros, block = lz4_repeated(b"\0", 7 * 4 * steps)
    filtered = (Delta(4, 28), Planes(4))
    seekable = b"".join(frames) + seek_table(seek_rows(frames, parts))
    texts = [f"step {step}" for step in range(steps)]
    draft = (
        Draft(steps)
        .put(Entry("signal/zstd", rows, flags=ZSTD, stored=plain_frame(rows)), "f32", (7,))
        .put(Entry("signal/seekable", rows, flags=ZSTD, stored=seekable), "f32", (7,))
        .put(Entry("signal/lz4", zeros, flags=LZ4, stored=block), "f32", (7,))
        .put(filtered_entry("signal/filtered", rows, filtered), "f32", (7,))
        .put(
            filtered_entry("signal/training", rows, filtered, frame_content=frame_content),
            "f32",
            (7,),
        )
    )
    text = text_blocks(Draft(steps), "signal/text", texts)
    content = text.blocks[0].content
    draft.put(Entry("signal/text", content, flags=LZ4, stored=lz4_last_literals(content)))
    draft.blocks.append(text.blocks[1])
    draft.rows += text.rows
    reward = ramp_f32(steps)
    draft.put(Entry("reward", reward, flags=ZSTD, stored=checked_frame(reward)))
    digest = {"sha256": sha256_hex(rows), "shape": ["7"], "inferred": False}
    yield episode(
        "compressed",
        "Blocks in zstd, seekable zstd, lz4 and filtered in both forms.",
        ("S-FLT-5", "S-SEK-5", "W-BLK-1"),
        draft,
        {
            "observations": {
                "zstd": digest,
                "seekable": digest,
                "filtered": digest,
                "training": digest,
                "lz4": {"sha256": sha256_hex(zeros)},
                "text": {"text": texts},
            },
            "rewards": {"hex": reward.hex()},
        },
    )
    entries = []
    for entry in base().entries():
        if entry.content_type == 2:
            stored = checked_frame(entry.content)
            entry = Entry(entry.name, entry.content, content_type=2, flags=ZSTD, stored=stored)
        entries.append(entry)
    yield episode(
        "compressed_descriptions",
        "The descriptions are compressed, too.",
        ("W-JSN-1",),
        Container(tuple(entries), role=5, alignment=64, name_terminator=b""),
        {"observations": {"state": seen("signal/state", STATE, "f32", (4,))}},
    )


def episode_vectors() -> Iterator[Valid]:
    yield from _smallest()
    yield from _arrays()
    yield from _ends_and_rewards()
    yield from _clocks()
    yield from _text_and_ragged()
    yield from _videos()
    yield from _models()
    yield from _horizons()
    yield from _residuals()
    yield from _labels()
    yield from _names_and_fields()
    yield from _nulls()
    yield from _trust()
    yield from _compressed()
