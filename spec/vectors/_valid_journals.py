"""Journals that are read to their end."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from _compress import content_checksum, zero_blocks, zstd_frame
from _episode_draft import episode_fields, f32, i64, numbers, ramp_f32, row_for
from _filters import Delta, Planes
from _journal import END, NOTE, START, ZSTD, Recording
from _primitives import crc32c_of_zeros
from _vector import ValidJournal, byte_ramp

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _metadata import JsonObject

STATE = row_for("signal/state", "f32", (2,))
CTRL = row_for("action/ctrl", "u8", (3,))
IMAGE = row_for("signal/image", "u8", (16, 16), modality="rgb")
IMU = row_for("signal/imu", "f32", (), time_block="time/signal/imu")
IMU_CLOCK = row_for("time/signal/imu", "i64")
SCAN = row_for("signal/scan", "f32", (2,), layout="ragged", offsets_block="offsets/signal/scan")
SCAN_OFFSETS = row_for("offsets/signal/scan", "i64")
TASK = row_for("signal/task", "u8", layout="text", offsets_block="offsets/signal/task")
TASK_OFFSETS = row_for("offsets/signal/task", "i64")
INTERVAL = {"end": 2, "start": 0, "text": "reach"}


def zeros(size: int) -> bytes:
    """A compressed run of zeros: a few bytes that every version of zstd decodes."""
    return zstd_frame(zero_blocks(size), content_size=size, checksum=content_checksum(bytes(size)))


def _good(
    name: str, description: str, journal: Recording, *rules: str, **told: object
) -> ValidJournal:
    return ValidJournal(name, description, rules or ("J-2",), journal.data, told)


def _channel(lane: str, name: str, data: bytes, length: int) -> JsonObject:
    return {lane: {name: {"hex": data.hex(), "length": str(length)}}}


def _interval(start: int, end: int, text: str) -> JsonObject:
    told = {"end": str(end), "start": str(start), "text": text}
    return told | {"confidence": None, "source": None}


def journal_vectors() -> Iterator[ValidJournal]:
    yield from _beginnings()
    yield from _runs()
    yield from _compressed()
    yield from _filtered()
    yield from _ragged()
    yield from _notes()
    yield from _clocks()
    yield from _lengths()
    yield from _chunks()


def _beginnings() -> Iterator[ValidJournal]:
    yield _good(
        "start_only",
        "A recording that has just begun.",
        Recording().start(STATE, CTRL),
        *("J-1", "J-3"),
        cut={},
        finished=False,
        frames="1",
        episode={"length": "0"},
    )
    yield _good(
        "start_without_channels",
        "A recording that does not know its channels yet.",
        Recording().start(),
        *("J-1", "J-CHN-1"),
        episode={"length": "0", "observations": {}},
    )
    yield _good(
        "start_with_length",
        "The start frame says a length, which is passed over.",
        Recording().start(STATE, episode=episode_fields(99)).run(0, 1, f32(1, 2)),
        "J-STA-2",
        episode={"length": "1"},
    )
    yield _good(
        "start_with_all_fields",
        "The start frame has a rate, metadata, an id in any script, and says that it is no chunk.",
        Recording()
        .start(
            STATE,
            episode={
                "episode_id": "größe",
                "metadata": {"a": [1, None]},
                "timebase": {"epoch_ns": 5, "tick_hz": 50, "type": "ticks"},
            },
            chunk=None,
        )
        .run(0, 2, ramp_f32(4)),
        *("J-STA-2", "J-STA-3"),
        episode={"id": "größe", "metadata": {"a": [1, None]}},
    )
    loose = b' {"v" : 1, "later": {"v": 2},\n "episode": {"episode_id": "loose"}, "channels": []} '
    yield _good(
        "text_that_is_not_canonical",
        "White space, fields in any order, fields that nobody knows.",
        Recording()
        .text(START, loose)
        .text(NOTE, b'{ "mood": "good", "label": "without an interval" }')
        .text(END, b"\t{\n}\r\n"),
        *("J-TXT-1", "J-NOT-1"),
        episode={"id": "loose", "length": "0"},
        finished=True,
    )


def _runs() -> Iterator[ValidJournal]:
    data = ramp_f32(4)
    yield _good(
        "one_run",
        "One channel, one run of two entries.",
        Recording().start(STATE).run(0, 2, data),
        *("J-RUN-1", "J-RUN-3"),
        episode=_channel("observations", "state", data, 2) | {"length": "2"},
    )
    data = ramp_f32(12)
    yield _good(
        "several_runs",
        "Runs of one, two and three entries follow each other in the block.",
        Recording().start(STATE).run(0, 1, data[:8]).run(0, 2, data[8:24]).run(0, 3, data[24:]),
        *("J-FRM-6", "J-RUN-3"),
        episode=_channel("observations", "state", data, 6) | {"length": "6"},
    )
    yield _good(
        "several_channels",
        "Channels of two lanes, rewards and ends; their runs in any order.",
        Recording()
        .start(STATE, CTRL, row_for("reward", "f32"), row_for("done", "bool"))
        .run(2, 2, f32(0.5, -1))
        .run(0, 1, f32(1, 2))
        .run(3, 2, b"\0\1")
        .run(1, 2, byte_ramp(6))
        .run(0, 1, f32(3, 4)),
        *("J-CHN-3", "J-RUN-1"),
        episode={
            "rewards": {"hex": f32(0.5, -1).hex()},
            "terminations": {"block": "done", "hex": "0001"},
            **_channel("actions", "ctrl", byte_ramp(6), 2),
            **_channel("observations", "state", f32(1, 2, 3, 4), 2),
        },
    )
    yield _good(
        "ends",
        "Both ends, and rewards of 64 bits.",
        Recording()
        .start(
            row_for("terminated", "bool"),
            row_for("truncated", "bool"),
            row_for("reward/exact", "f64"),
        )
        .run(0, 3, b"\0\0\0")
        .run(1, 3, b"\0\0\1")
        .run(2, 3, numbers("d", 0.1, 0.2, 0.3)),
        "J-CHN-3",
        episode={"rewards": {"dtype": "f64"}, "truncations": {"hex": "000001"}},
    )
    kinds = {"bf16": 2, "f16": 2, "f64": 8, "i16": 2, "i64": 8, "i8": 1, "u32": 4, "bool": 1}
    journal = Recording().start(*(row_for(f"signal/{kind}", kind, (1,)) for kind in kinds))
    for number, (kind, size) in enumerate(kinds.items()):
        content = b"\1\0" if kind == "bool" else b"\xff" * (2 * size - 2) + b"\xf1\x7f"
        journal = journal.run(number, 2, content[: 2 * size])
    yield _good(
        "data_types",
        "Every bit comes back: signalling NaN, largest and smallest integers.",
        journal,
        *("J-CHN-1", "J-RUN-3"),
        episode={"observations": {"bf16": {"hex": "fffff17f"}, "i8": {"hex": "f17f"}}},
    )
    yield _good(
        "names",
        "Ids with slashes and letters of any script; a row in capitals.",
        Recording()
        .start(
            row_for("signal/arm/left/状態", "FLOAT32", (1,)),
            row_for("action/signal/x", "i32", (1, 1)),
        )
        .run(0, 1, f32(1))
        .run(1, 1, b"\1\0\0\0"),
        "J-CHN-1",
        episode={"observations": {"arm/left/状態": {"dtype": "f32"}}},
    )


def _compressed() -> Iterator[ValidJournal]:
    size = 2 * 256
    yield _good(
        "zstd",
        "Two compressed runs, beside a raw channel.",
        Recording()
        .start(IMAGE, STATE)
        .run(0, 2, bytes(size), stored=zeros(size), codec=ZSTD)
        .run(1, 3, ramp_f32(6))
        .run(0, 1, bytes(256), stored=zeros(256), codec=ZSTD),
        *("J-FRM-5", "J-RUN-2", "J-RUN-4"),
        episode={"observations": {"image": {"length": "3"}}},
    )
    yield _good(
        "zstd_that_does_not_shrink",
        "Compressed runs that are longer than their content: the episode holds them raw.",
        Recording()
        .start(STATE)
        .run(0, 1, f32(1, 2), codec=ZSTD)
        .run(0, 2, f32(3, 4, 5, 6), codec=ZSTD),
        "J-RUN-4",
        episode=_channel("observations", "state", f32(1, 2, 3, 4, 5, 6), 3),
    )
    yield _good(
        "zstd_cut_within_a_run",
        "Two steps of a compressed run of four count, because the other channel has no more.",
        Recording()
        .start(IMAGE, STATE)
        .run(0, 4, bytes(4 * 256), stored=zeros(4 * 256), codec=ZSTD)
        .run(1, 2, ramp_f32(4)),
        *("J-3", "J-RUN-4"),
        cut={"signal/image": "2"},
        episode={"length": "2"},
    )
    large = 1 << 20
    yield _good(
        "zstd_far",
        "A run of 1 MiB in a few bytes.",
        Recording()
        .start(row_for("signal/depth", "u8", (large,)))
        .run(
            0,
            1,
            b"",
            stored=zeros(large),
            codec=ZSTD,
            content_size=large,
            content_crc32c=crc32c_of_zeros(large),
        ),
        "J-FRM-10",
        episode={"observations": {"depth": {"length": "1"}}},
    )


def _filtered() -> Iterator[ValidJournal]:
    camera = Delta(width=1, row=64)
    row = row_for("signal/camera", "u8", (8, 8), modality="rgb")
    # It grows by 3 from step to step, and wraps.
    steps = [bytes((i // 2 + 3 * step) % 256 for i in range(64)) for step in range(80, 86)]
    content = b"".join(steps)
    told = {"signal/camera": [camera.fields()]}
    yield _good(
        "filters",
        "Runs of differences between steps; each starts anew.",
        Recording()
        .start(row)
        .note(filters=told)
        .filtered(0, 3, content[:192], camera)
        .filtered(0, 1, content[192:256], camera)
        .filtered(0, 2, content[256:], camera)
        .end(),
        *("J-RUN-2", "J-RUN-4", "J-FLT-1", "J-FLT-2", "J-FLT-3"),
        episode=_channel("observations", "camera", content, 6) | {"length": "6"},
        finished=True,
    )
    depth = (Delta(width=2, row=4, order=2), Planes(2))
    data = numbers("H", *(i * i % 65536 for i in range(1, 25)))
    yield _good(
        "filters_beside_channels",
        "A note adds a channel and says its filters, two of them; another channel is cut in a run.",
        Recording()
        .start(row)
        .note(
            channels=[row_for("signal/depth", "u16", (2, 2))],
            filters=told | {"signal/depth": [one.fields() for one in depth]},
        )
        .filtered(1, 4, data[:32], *depth)
        .filtered(0, 6, content, camera)
        .filtered(1, 1, data[32:40], *depth),
        *("J-FLT-1", "J-FLT-2", "J-3"),
        cut={"signal/camera": "1"},
        episode=_channel("observations", "depth", data[:40], 5) | {"length": "5"},
    )


def _ragged() -> Iterator[ValidJournal]:
    """Text and ragged channels: items, and behind them their offsets."""
    items = ramp_f32(12)

    def entries(*bounds: int) -> list[str]:
        return [items[8 * a : 8 * b].hex() for a, b in pairwise(bounds)]

    scan = Recording().start(STATE, SCAN, SCAN_OFFSETS).run(0, 4, ramp_f32(8))
    yield _good(
        "ragged",
        "Three items, none, two and one; the items of an entry are in one run or in two.",
        scan.run(1, 4, items[:32])
        .run(2, 3, i64(0, 3, 3))
        .run(1, 2, items[32:])
        .run(2, 2, i64(5, 6))
        .end(),
        *("J-CHN-3", "J-RUN-3", "J-RAG-1", "J-RAG-2", "J-RAG-3"),
        cut={},
        episode={
            "length": "4",
            "observations": {"scan": {"items": entries(0, 3, 3, 5, 6), "layout": "ragged"}},
        },
        finished=True,
    )
    yield _good(
        "ragged_without_items",
        "No entry has an item: there is a run of offsets and none of items.",
        scan.run(2, 5, i64(0, 0, 0, 0, 0)),
        *("J-RAG-2", "J-RAG-3"),
        episode={"length": "4", "observations": {"scan": {"items": ["", "", "", ""]}}},
    )
    yield _good(
        "ragged_before_its_offsets",
        "The recorder died between items and offsets: the items belong to no entry.",
        scan.run(1, 3, items[:24]).run(2, 3, i64(0, 1, 3)).run(1, 3, items[24:]),
        *("J-3", "J-6"),
        cut={"signal/scan": "1", "signal/state": "2"},
        episode={"length": "2", "observations": {"scan": {"items": entries(0, 1, 3)}}},
    )
    yield _good(
        "ragged_without_runs",
        "Rows and nothing more: the episode has the offset 0.",
        Recording().start(SCAN, SCAN_OFFSETS),
        *("J-3", "J-CHN-3"),
        cut={},
        episode={"length": "0", "observations": {"scan": {"items": [], "length": "0"}}},
    )
    yield _good(
        "ragged_cut",
        "Other channels end earlier: entries are cut with their items.",
        Recording()
        .start()
        .note(channels=[SCAN, SCAN_OFFSETS, STATE])
        .run(0, 6, items)
        .run(1, 5, i64(0, 1, 2, 4, 6))
        .run(2, 2, ramp_f32(4)),
        "J-3",
        cut={"signal/scan": "2"},
        episode={"length": "2", "observations": {"scan": {"items": entries(0, 1, 2)}}},
    )
    size = 96
    yield _good(
        "ragged_zstd",
        "Items are compressed; offsets never are.",
        Recording()
        .start(SCAN, SCAN_OFFSETS)
        .run(0, 12, bytes(size), stored=zeros(size), codec=ZSTD)
        .run(1, 3, i64(0, 5, 12)),
        *("J-RAG-1", "J-RUN-4"),
        episode={"length": "2", "observations": {"scan": {"items": ["00" * 40, "00" * 56]}}},
    )
    yield _good(
        "ragged_own_clock",
        "A scan with times of its own: an entry without a time is cut.",
        Recording()
        .start(
            STATE,
            SCAN | {"time_block": "time/signal/scan"},
            SCAN_OFFSETS,
            row_for("time/signal/scan", "i64"),
        )
        .run(0, 1, f32(1, 2))
        .run(1, 6, items)
        .run(2, 4, i64(0, 2, 3, 6))
        .run(3, 2, i64(10, 20)),
        *("J-3", "J-CHN-3"),
        cut={"signal/scan": "1"},
        episode={
            "length": "1",
            "observations": {
                "scan": {"items": entries(0, 2, 3), "timestamps_ns": ["10", "20"]},
            },
        },
    )
    texts = ("größe", "", "状態")
    data = "".join(texts).encode()
    ends = i64(0, 7, 7, 13)
    task = Recording().start(TASK, TASK_OFFSETS)
    yield _good(
        "text",
        "Strings of any length; a run ends within a character, and the next entry completes it.",
        task.run(0, 3, data[:3]).run(0, 10, data[3:]).run(1, 4, ends),
        *("J-CHN-3", "J-RAG-4"),
        episode={
            "length": "3",
            "observations": {"task": {"layout": "text", "text": list(texts)}},
        },
    )
    yield _good(
        "text_after_the_last_step",
        "One string more than steps.",
        task.run(0, 7, data[:7])
        .run(1, 3, ends[:24])
        .note(length_T=2)
        .run(0, 6, data[7:])
        .run(1, 1, ends[24:])
        .end(),
        "J-3",
        cut={},
        episode={
            "length": "2",
            "observations": {"task": {"length": "3", "text": list(texts)}},
        },
    )
    yield _good(
        "text_in_a_chunk",
        "Offsets count from the start of each journal.",
        Recording()
        .start(TASK, TASK_OFFSETS, chunk={"first_step": 40, "index": 2})
        .run(0, 13, data)
        .run(1, 4, ends)
        .end(),
        *("J-8", "J-RAG-2"),
        episode={"observations": {"task": {"text": list(texts)}}, "timestep_range": ["40", "42"]},
    )


def _chunks() -> Iterator[ValidJournal]:
    """Journals of a recording in several files (J-8, J-9)."""
    later = INTERVAL | {"end": 99, "start": 41, "text": "lift"}
    yield _good(
        "chunk_0",
        "The first of several: only its end says so. A label is cut to it, one of later steps is not its own.",
        Recording()
        .start(STATE)
        .note(interval=INTERVAL | {"end": 9}, label="task")
        .note(interval=later, label="task")
        .run(0, 3, ramp_f32(6))
        .end(continues=True),
        *("J-8", "J-9", "J-NOT-1"),
        cut={},
        episode={
            "chunk_index": "0",
            "labels": {"task": {"intervals": [_interval(0, 3, "reach")]}},
            "length": "3",
            "timestep_range": ["0", "2"],
        },
        finished=False,
    )
    third = Recording().start(STATE, chunk={"first_step": 40, "index": 2})
    yield _good(
        "chunk_2",
        "One of several: its steps are counted from 40 on, and there are more behind it.",
        third.note(interval=later, label="task").run(0, 3, ramp_f32(6)).end(continues=True),
        *("J-8", "J-9", "J-STA-3"),
        cut={},
        episode={
            "chunk_index": "2",
            "labels": {"task": {"intervals": [_interval(1, 3, "lift")]}},
            "length": "3",
            "ticks": ["40", "41", "42"],
            "timebase": {"epoch_ns": "1333333333"},
            "timestep_range": ["40", "42"],
        },
        finished=False,
    )
    yield _good(
        "chunk_last",
        "The last of several: what is said beyond its steps stays.",
        third.note(interval=later, label="task").run(0, 3, ramp_f32(6)).end(),
        *("J-8", "J-STA-3"),
        episode={
            "labels": {"task": {"intervals": [_interval(1, 59, "lift")]}},
            "timestep_range": ["40", "42"],
        },
        finished=True,
    )


def _notes() -> Iterator[ValidJournal]:
    yield _good(
        "note_channels",
        "A channel that is added after the first run.",
        Recording()
        .start(STATE)
        .run(0, 2, ramp_f32(4))
        .note(channels=[CTRL, row_for("done", "bool")])
        .run(1, 2, byte_ramp(6))
        .run(2, 2, b"\0\1"),
        *("J-NOT-1", "J-CHN-1", "J-RUN-1"),
        episode=_channel("actions", "ctrl", byte_ramp(6), 2),
    )
    yield _good(
        "note_channels_without_runs",
        "A channel that is added and has no entries: no step is whole.",
        Recording().start(STATE).run(0, 2, ramp_f32(4)).note(channels=[CTRL]),
        *("J-NOT-1", "J-3"),
        cut={"signal/state": "2"},
        episode={"length": "0"},
    )
    filled = Recording().start(STATE).run(0, 2, ramp_f32(4))
    filled = filled.note(channels=[CTRL, TASK, TASK_OFFSETS], filled=2)
    yield _good(
        "note_channels_filled",
        "Channels that are added after two steps, filled for these, and then go on with the others.",
        filled.run(1, 1, bytes(3))
        .run(1, 1, bytes(3))
        .run(3, 3, i64(0, 0, 0))
        .run(0, 1, f32(8, 9))
        .run(1, 1, b"abc")
        .run(2, 2, b"go")
        .run(3, 1, i64(2)),
        *("J-3", "J-NOT-1"),
        cut={},
        episode={
            "length": "3",
            "observations": {"task": {"text": ["", "", "go"]}},
            **_channel("actions", "ctrl", bytes(6) + b"abc", 3),
        },
    )
    yield _good(
        "note_channels_half_filled",
        "The recorder died before it had filled the channels: they are left out, and no step is.",
        filled.run(1, 1, bytes(3)).run(3, 2, i64(0, 0)),
        *("J-3", "J-NOT-1"),
        cut={},
        episode={"actions": {}, "length": "2"},
    )
    yield _good(
        "note_labels",
        "Intervals of two lanes, in steps and in nanoseconds.",
        Recording()
        .start(STATE)
        .note(interval=INTERVAL, label="task")
        .run(0, 2, ramp_f32(4))
        .note(interval={"end": -1, "source": "me", "start": -9, "text": ""}, label="a/b", unit="ns")
        .note(interval=INTERVAL | {"confidence": 0.5, "text": "grasp"}, label="task", unit="steps"),
        "J-NOT-1",
        episode={"labels": {"a/b": {"unit": "ns"}, "task": {"unit": "steps"}}},
    )
    yield _good(
        "note_metadata",
        "Later keys replace earlier ones, whole.",
        Recording()
        .start(STATE, episode={"episode_id": "ep", "metadata": {"a": {"x": 1}, "b": 1}})
        .note(metadata={"a": {"y": 2}, "c": []})
        .note(metadata={"c": None}),
        "J-NOT-1",
        episode={"metadata": {"a": {"y": 2}, "b": 1, "c": None}},
    )
    yield _good(
        "note_dropped",
        "Entries that were left out are told in the metadata.",
        Recording()
        .start(STATE, CTRL)
        .note(dropped={"signal/state": 1})
        .note(dropped={"action/ctrl": 2, "signal/state": 3}),
        "J-NOT-1",
        episode={"metadata": {"dropped": {"action/ctrl": 2, "signal/state": 3}}},
    )
    yield _good(
        "note_with_head_fields",
        "A note whose head names a channel and entries, which nobody looks at.",
        Recording().start(STATE).text(NOTE, {}, channel=7, entries=9).run(0, 1, f32(1, 2)),
        "J-FRM-4",
        episode={"length": "1"},
        frames="3",
    )
    yield _good(
        "ended",
        "A recording that came to its end, and was not finished.",
        Recording().start(STATE).run(0, 1, f32(1, 2)).end(length_T=1, metadata={"success": True}),
        *("J-NOT-1", "J-ORD-3"),
        episode={"length": "1", "metadata": {"success": True}},
        finished=True,
    )


def _clocks() -> Iterator[ValidJournal]:
    yield _good(
        "timestamps",
        "The times of the steps are a channel like the others.",
        Recording()
        .start(STATE, row_for("time/timestamps_ns", "i64"))
        .run(0, 3, ramp_f32(6))
        .run(1, 2, i64(-5, 1 << 60)),
        *("J-3", "J-6"),
        cut={"signal/state": "1"},
        episode={
            "timebase": {"type": "timestamps_ns"},
            "timestamps_ns": ["-5", str(1 << 60)],
        },
    )
    yield _good(
        "own_clock",
        "A channel at its own pace, beside one that follows the steps.",
        Recording()
        .start(STATE, IMU, IMU_CLOCK)
        .run(0, 1, f32(1, 2))
        .run(1, 3, f32(7, 8, 9))
        .run(2, 3, i64(10, 20, 30)),
        "J-3",
        cut={},
        episode={
            "length": "1",
            "observations": {"imu": {"length": "3", "timestamps_ns": ["10", "20", "30"]}},
        },
    )
    yield _good(
        "own_clock_behind",
        "Entries without a timestamp do not count.",
        Recording().start(IMU, IMU_CLOCK).run(0, 3, f32(7, 8, 9)).run(1, 2, i64(10, 20)),
        "J-3",
        cut={"signal/imu": "1"},
        episode={"length": "0", "observations": {"imu": {"length": "2"}}},
    )
    yield _good(
        "own_clock_ahead",
        "Timestamps without an entry do not count.",
        Recording().start(IMU_CLOCK, IMU).run(1, 1, f32(7)).run(0, 2, i64(10, 20)),
        "J-3",
        cut={"time/signal/imu": "1"},
        episode={"observations": {"imu": {"length": "1", "timestamps_ns": ["10"]}}},
    )


def _lengths() -> Iterator[ValidJournal]:
    yield _good(
        "length_and_one_more",
        "The observation after the last step is kept once the length is told, also in a later run.",
        Recording()
        .start(STATE, CTRL)
        .run(0, 2, ramp_f32(4))
        .run(1, 2, byte_ramp(6))
        .note(length_T=2)
        .run(0, 1, f32(8, 9))
        .end(),
        *("J-3", "J-NOT-1"),
        cut={},
        episode=_channel("observations", "state", ramp_f32(4) + f32(8, 9), 3) | {"length": "2"},
    )
    yield _good(
        "length_not_told",
        "The same without the length: what may be the next step is cut.",
        Recording().start(STATE, CTRL).run(0, 3, ramp_f32(6)).run(1, 2, byte_ramp(6)),
        "J-3",
        cut={"signal/state": "1"},
        episode=_channel("observations", "state", ramp_f32(4), 2) | {"length": "2"},
    )
    yield _good(
        "length_below",
        "The last length that was told counts; more than it, and one observation, is cut.",
        Recording()
        .start(STATE, CTRL)
        .run(0, 4, ramp_f32(8))
        .run(1, 4, byte_ramp(12))
        .note(length_T=3)
        .end(length_T=1),
        "J-3",
        cut={"action/ctrl": "3", "signal/state": "2"},
        episode={"length": "1", "observations": {"state": {"length": "2"}}},
    )
    yield _good(
        "length_above",
        "A length that the channels do not reach.",
        Recording().start(STATE, CTRL).run(0, 2, ramp_f32(4)).run(1, 1, b"abc").note(length_T=9),
        "J-3",
        cut={},
        episode={"length": "1", "observations": {"state": {"length": "2"}}},
    )
