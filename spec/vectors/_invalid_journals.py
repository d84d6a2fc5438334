"""Journals with a frame that breaks a rule. What is before it comes back, nothing in or after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from _compress import (
    COMPRESSED,
    RESERVED,
    WINDOW_128_MIB,
    Block,
    checked_frame,
    content_checksum,
    plain_frame,
    raw_blocks,
    skippable_frame,
    zstd_frame,
)
from _episode_draft import f32, i64, ramp_f32, row_for
from _filters import Delta, Planes
from _journal import END, HEAD_SIZE, NOTE, RUN, START, ZSTD, Recording, frame, start_text
from _valid_journals import (
    CTRL,
    IMAGE,
    IMU,
    IMU_CLOCK,
    INTERVAL,
    SCAN,
    SCAN_OFFSETS,
    STATE,
    TASK,
    TASK_OFFSETS,
    zeros,
)
from _vector import InvalidJournal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _metadata import JsonObject

GIB = 1 << 30
LARGEST_U32 = (1 << 32) - 1
BEFORE = Recording().start(STATE).run(0, 2, ramp_f32(4))
"""Two steps that must come back."""
AFTER = (RUN, 1, f32(8, 9))
"""What follows the bad frame, good in itself, and must not."""


def _bad(
    name: str,
    description: str,
    rule: str,
    error: str,
    journal: Recording,
    before: Recording = BEFORE,
    *,
    when: str = "frame",
    also: tuple[str, ...] = (),
    rules_also: tuple[str, ...] = (),
) -> InvalidJournal:
    """`journal` is `before` and the bad frame; a good one is put behind it."""
    kind, entries, content = AFTER
    follows = frame(kind, content, entries=entries, sequence=journal.sequence)
    return InvalidJournal(
        name=name,
        description=description,
        rule=rule,
        error=error,
        data=journal.data + follows,
        stop=len(before.data),
        when=when,
        also=also,
        rules_also=rules_also,
    )


def journal_vectors() -> Iterator[InvalidJournal]:
    yield from _torn()
    yield from _frames()
    yield from _order()
    yield from _texts()
    yield from _starts()
    yield from _rows()
    yield from _runs()
    yield from _compressed_runs()
    yield from _filters()
    yield from _notes()
    yield from _ragged_rows()
    yield from _offsets()
    yield from _strings()


def _torn() -> Iterator[InvalidJournal]:
    """Files that end too early, as a crash leaves them."""

    def cut(
        name: str, description: str, rule: str, whole: Recording, stop: int, size: int
    ) -> InvalidJournal:
        data = whole.data[: stop + size]
        return InvalidJournal(name, description, rule, "truncated", data, stop, "frame")

    two = len(BEFORE.data)
    longer = BEFORE.run(0, 1, f32(8, 9))
    yield cut("torn_start_head", "The head of the start frame is cut.", "J-FRM-1", BEFORE, 0, 39)
    yield cut("torn_start", "The start frame is cut.", "J-FRM-11", BEFORE, 0, HEAD_SIZE + 9)
    yield cut("torn_one_byte", "One byte of a second run.", "J-FRM-1", longer, two, 1)
    yield cut("torn_head", "A head without its last byte.", "J-FRM-1", longer, two, 39)
    yield cut("torn_after_head", "A head and nothing else.", "J-FRM-11", longer, two, HEAD_SIZE)
    yield cut("torn_last_byte", "A run without its last byte.", "J-FRM-11", longer, two, 47)
    noted = BEFORE.note(metadata={"a": 1})
    yield cut("torn_note", "A note without its last byte.", "J-FRM-11", noted, two, 54)
    ended = BEFORE.end()
    yield cut("torn_end", "The end is cut: not finished.", "J-FRM-11", ended, two, HEAD_SIZE + 1)
    several = Recording().start(STATE, CTRL).run(0, 3, ramp_f32(6)).run(1, 2, b"abcdef")
    yield cut(
        "torn_between_channels",
        "The last entries of one channel are lost, and with them a step of the other.",
        "J-FRM-11",
        several.run(1, 1, b"ghi"),
        len(several.data),
        42,
    )
    clocked = Recording().start(IMU, IMU_CLOCK).run(0, 2, f32(1, 2)).run(1, 1, i64(10))
    yield cut(
        "torn_clock",
        "A timestamp is lost, and with it an entry of the channel.",
        "J-FRM-11",
        clocked.run(1, 1, i64(20)),
        len(clocked.data),
        HEAD_SIZE + 7,
    )
    packed = Recording().start(IMAGE).run(0, 2, bytes(512), stored=zeros(512), codec=ZSTD)
    yield cut(
        "torn_zstd",
        "A compressed run without its last byte.",
        "J-FRM-11",
        packed.run(0, 1, bytes(256), stored=zeros(256), codec=ZSTD),
        len(packed.data),
        HEAD_SIZE + len(zeros(256)) - 1,
    )
    yield InvalidJournal(
        name="torn_raw_4_gib",
        description="A raw run that claims 4 GiB and has nothing.",
        rule="J-FRM-11",
        error="truncated",
        data=BEFORE.run(
            0, 1 << 29, b"", stored_size=LARGEST_U32 - 7, content_size=LARGEST_U32 - 7
        ).data,
        stop=two,
        when="frame",
    )
    yield InvalidJournal(
        name="torn_in_zeros",
        description="A page of zeros after the last frame, as some file systems leave it.",
        rule="J-FRM-2",
        error="bad_magic",
        data=BEFORE.data + bytes(4096),
        stop=two,
        when="frame",
    )


def _frames() -> Iterator[InvalidJournal]:
    def run(**fields: int) -> Recording:
        return BEFORE.run(0, 1, f32(5, 6), stored=None, **fields)

    magic = int.from_bytes(b"WSJ2", "little")
    yield _bad("magic", "A frame of another magic.", "J-FRM-2", "bad_magic", run(magic=magic))
    yield _bad(
        "magic_of_the_first",
        "A file of another kind.",
        "J-FRM-2",
        "bad_magic",
        Recording().add(b"SHRD" + bytes(60)),
        Recording(),
    )
    yield _bad(
        "head_checksum",
        "The checksum of a head is wrong.",
        "J-FRM-3",
        "checksum_mismatch",
        run(head_crc32c=0x12345678),
    )
    yield _bad(
        "head_checksum_of_the_first",
        "The checksum of the start frame's head is wrong.",
        "J-FRM-3",
        "checksum_mismatch",
        Recording().text(START, start_text(STATE), head_crc32c=1),
        Recording(),
    )
    for kind in (0, 5, 255):
        yield _bad(
            f"kind_{kind}",
            "A kind that is not assigned.",
            "J-FRM-4",
            "bad_header",
            BEFORE.text(kind, {}),
        )
    for codec in (2, 255):
        yield _bad(
            f"codec_{codec}",
            "A codec that is not assigned.",
            "J-FRM-5",
            "unknown_codec",
            BEFORE.run(0, 1, f32(5, 6), codec=codec),
        )
    yield _bad(
        "codec_of_a_note",
        "A compressed note.",
        "J-FRM-5",
        "unknown_codec",
        BEFORE.text(NOTE, {}, codec=ZSTD),
    )
    for name, sequence in (("gap", 3), ("repeated", 1), ("from_start", 0), ("huge", 2**64 - 1)):
        yield _bad(
            f"sequence_{name}",
            f"Frame {sequence} where frame 2 must be.",
            "J-FRM-6",
            "bad_header",
            run(sequence=sequence),
        )
    yield _bad(
        "sequence_of_the_first",
        "A journal without its first frame.",
        "J-FRM-6",
        "bad_header",
        Recording(sequence=1).start(STATE),
        Recording(),
    )
    yield _bad(
        "raw_sizes",
        "A raw run whose content has another size.",
        "J-FRM-7",
        "size_mismatch",
        BEFORE.run(0, 2, f32(5, 6), content_size=16),
    )
    yield _bad(
        "raw_checksums",
        "A raw run whose content has another checksum.",
        "J-FRM-8",
        "checksum_mismatch",
        run(content_crc32c=1),
    )
    yield _bad(
        "zstd_content_above_1_gib",
        "A compressed run that claims 1 GiB and a byte of content.",
        "J-FRM-9",
        "limit_exceeded",
        run(codec=ZSTD, content_size=GIB + 1),
    )
    yield _bad(
        "zstd_stored_above_1_gib",
        "A compressed run that claims 1 GiB and a byte on the disk.",
        "J-FRM-9",
        "limit_exceeded",
        run(codec=ZSTD, stored_size=GIB + 1),
    )
    yield _bad(
        "zstd_unreachable",
        "A compressed run that claims more than its bytes can hold.",
        "J-FRM-10",
        "size_mismatch",
        BEFORE.run(0, 1, f32(5, 6), stored=b"x" * 9, codec=ZSTD, content_size=9 * 32_768 + 1),
    )
    yield _bad(
        "zstd_empty",
        "A compressed run without any bytes.",
        "J-FRM-10",
        "size_mismatch",
        BEFORE.run(0, 1, f32(5, 6), stored=b"", codec=ZSTD),
    )
    yield _bad(
        "stored_checksum",
        "A run of which a bit has flipped.",
        "J-FRM-12",
        "checksum_mismatch",
        BEFORE.add(run().data[len(BEFORE.data) : -1] + b"\x41"),
    )
    yield _bad(
        "stored_checksum_of_a_note",
        "A note of which a letter has changed.",
        "J-FRM-12",
        "checksum_mismatch",
        BEFORE.add(frame(NOTE, b'{"metadata":{"a":1}}', sequence=2).replace(b'"a":1', b'"a":2')),
    )
    yield _bad(
        "stored_checksum_of_the_first",
        "A start frame of which a letter has changed.",
        "J-FRM-12",
        "checksum_mismatch",
        Recording().add(BEFORE.data[: len(Recording().start(STATE).data)].replace(b"ep", b"eq", 1)),
        Recording(),
    )


def _order() -> Iterator[InvalidJournal]:
    none = Recording()
    for name, kind in (("run", RUN), ("note", NOTE), ("end", END)):
        yield _bad(
            f"first_is_a_{name}",
            "The first frame is not a start frame.",
            "J-ORD-1",
            "bad_profile",
            none.text(kind, {}),
            none,
        )
    yield _bad(
        "second_start",
        "A second start frame.",
        "J-ORD-2",
        "bad_profile",
        BEFORE.start(STATE),
    )
    ended = BEFORE.end()
    for name, more in (
        ("run", ended.run(0, 1, f32(5, 6))),
        ("note", ended.note(metadata={"a": 1})),
        ("end", ended.end(metadata={"a": 1})),
    ):
        yield _bad(
            f"{name}_after_the_end",
            "A frame after the end.",
            "J-ORD-3",
            "trailing_data",
            more,
            ended,
        )


TEXTS = {
    "not_json": b"{]",
    "empty": b"",
    "list": b"[]",
    "nan": b'{"metadata":{"a":NaN}}',
    "repeated_key": b'{"metadata":{"a":1,"a":2}}',
    "depth_129": b'{"metadata":' + b'{"a":' * 128 + b"1" + b"}" * 129,
    "not_utf8": b'{"metadata":{"a":"\xff"}}',
    "byte_order_mark": b"\xef\xbb\xbf{}",
    "surrogate": b'{"metadata":{"a":"\\ud800"}}',
    "two_values": b"{}{}",
}


def _texts() -> Iterator[InvalidJournal]:
    for name, text in TEXTS.items():
        yield _bad(
            f"note_json_{name}",
            "A note that is no JSON object as we read it.",
            "J-TXT-1",
            "bad_metadata",
            BEFORE.text(NOTE, text),
        )
    yield _bad(
        "end_json",
        "An end that is no JSON object: not finished.",
        "J-TXT-1",
        "bad_metadata",
        BEFORE.text(END, b"null"),
    )
    for name in ("not_json", "list"):
        yield _bad(
            f"start_json_{name}",
            "A start that is no JSON object.",
            "J-TXT-1",
            "bad_metadata",
            Recording().text(START, TEXTS[name]),
            Recording(),
        )


def _starts() -> Iterator[InvalidJournal]:
    def start(
        name: str, rule: str, text: JsonObject, error: str = "bad_metadata", *rules_also: str
    ) -> InvalidJournal:
        return _bad(
            f"start_{name}",
            "A start frame that describes no recording of version 1.",
            rule,
            error,
            Recording().text(START, text),
            Recording(),
            rules_also=("J-2", *rules_also),
        )

    for name, version in (("2", 2), ("text", "1"), ("true", True), ("null", None)):
        text = start_text(STATE, v=version)
        yield start(f"version_{name}", "J-STA-1", text, "unsupported_version")
    text = start_text(STATE)
    del text["v"]
    yield start("version_absent", "J-STA-1", text, "unsupported_version")
    for name, episode, rule in (
        ("list", [], "J-2"),
        ("without_id", {}, "W-EPI-1"),
        ("id_number", {"episode_id": 5}, "W-EPI-1"),
        ("metadata", {"episode_id": "e", "metadata": 5}, "W-EPI-3"),
        ("chunk", {"chunk_index": -1, "episode_id": "e"}, "W-EPI-4"),
        ("timebase", {"episode_id": "e", "timebase": {"tick_hz": "fast"}}, "W-TIM-1"),
    ):
        text = start_text(STATE, episode=episode)
        yield start(f"episode_{name}", "J-STA-2", text, "bad_metadata", rule)
    for name, chunk in (
        ("list", [1, 5]),
        ("without_first_step", {"index": 1}),
        ("index_0", {"first_step": 0, "index": 0}),
        ("index_true", {"first_step": 5, "index": True}),
        ("index_huge", {"first_step": 5, "index": 2**63}),
        ("first_step_negative", {"first_step": -1, "index": 1}),
    ):
        yield start(f"chunk_{name}", "J-STA-3", start_text(STATE, chunk=chunk))
    text = start_text()
    del text["channels"]
    yield start("channels_absent", "J-CHN-1", text)
    yield start("channels_object", "J-CHN-1", start_text(channels={"signal/x": STATE}))
    for name, row, rule in (
        ("number", 5, "W-CHN-1"),
        ("without_id", {"dtype": "f32"}, "W-CHN-2"),
        ("dtype", row_for("signal/x", "c64"), "W-CHN-3"),
        ("shape", row_for("signal/x", "f32") | {"shape": ["a"]}, "W-CHN-2"),
        ("dimensions", row_for("signal/x", "f32", (1,) * 32), "W-CHN-4"),
        ("empty_and_huge", row_for("signal/x", "f32", (2**62, 2**62, 0)), "W-CHN-4"),
        ("horizon", row_for("action/x", "f32", (2, 3), horizon=3), "W-CHN-8"),
    ):
        yield start(f"row_{name}", "J-CHN-1", start_text(row), "bad_metadata", rule)
    yield start("row_twice", "J-CHN-2", start_text(STATE, CTRL, STATE))


ROWS: dict[str, JsonObject] = {
    "ragged": row_for("signal/x", "f32", layout="ragged", offsets_block="offsets/signal/x"),
    "length": row_for("signal/x", "f32", length=1 << 60),
    "start_ns": row_for("signal/x", "f32", start_ns=0),
    "offsets": row_for("signal/x", "f32", offsets_block="offsets/signal/x"),
    "omen": row_for("omen/x/m", "f32"),
    "meta": row_for("meta/episode", "u8"),
    "other_id": row_for("signal/x", "f32", id="y"),
    "empty": row_for("signal/x", "f32", (3, 0)),
    "too_large": row_for("signal/x", "f32", (2**30,)),
    "huge": row_for("signal/x", "f32", (2**62, 2**62)),
}


def _rows() -> Iterator[InvalidJournal]:
    """Rows in notes, whose rule J-NOT-1 repeats."""
    for name, row in ROWS.items():
        yield _bad(
            f"row_{name}",
            "A note adds a channel that cannot be recorded.",
            "J-CHN-3",
            "bad_metadata",
            BEFORE.note(channels=[row]),
            rules_also=("J-NOT-1",),
        )
    yield _bad(
        "row_again",
        "A note adds a channel that is there.",
        "J-CHN-2",
        "bad_metadata",
        BEFORE.note(channels=[STATE]),
        rules_also=("J-NOT-1",),
    )
    yield _bad(
        "row_beside_a_label",
        "A note adds a label and a channel that is none: neither counts.",
        "J-CHN-1",
        "bad_metadata",
        BEFORE.note(channels=[5], interval=INTERVAL, label="task"),
        rules_also=("J-NOT-1",),
    )
    yield _bad(
        "row_after_a_good_one",
        "A note adds two channels, and one has no dtype: neither counts.",
        "J-CHN-1",
        "bad_metadata",
        BEFORE.note(channels=[CTRL, {"id": "x"}]),
        rules_also=("J-NOT-1",),
    )


def _runs() -> Iterator[InvalidJournal]:
    for channel in (1, 65535):
        yield _bad(
            f"channel_{channel}",
            "A run of a channel that nobody has described.",
            "J-RUN-1",
            "bad_header",
            BEFORE.run(channel, 1, f32(5, 6)),
        )
    yield _bad(
        "channel_described_later",
        "A run before the note that describes its channel.",
        "J-RUN-1",
        "bad_header",
        BEFORE.run(1, 1, b"abc").note(channels=[CTRL]),
    )
    yield _bad(
        "codec_changes",
        "A compressed run after a raw one of the same channel.",
        "J-RUN-2",
        "bad_header",
        BEFORE.run(0, 1, f32(5, 6), codec=ZSTD),
    )
    packed = Recording().start(STATE).run(0, 1, f32(1, 2), codec=ZSTD)
    yield _bad(
        "codec_changes_to_raw",
        "A raw run after a compressed one of the same channel.",
        "J-RUN-2",
        "bad_header",
        packed.run(0, 1, f32(5, 6)),
        packed,
    )
    for name, entries, content in (
        ("none", 0, b""),
        ("too_many", 2, f32(5, 6)),
        ("too_few", 1, f32(5, 6, 7, 8)),
        ("in_part", 1, f32(5)),
        # 8 bytes an entry: a product of 32 bits would be right.
        ("overflow", (1 << 29) + 1, f32(5, 6)),
    ):
        yield _bad(
            f"entries_{name}",
            "A run whose size is not that of its entries.",
            "J-RUN-3",
            "size_mismatch",
            BEFORE.run(0, entries, content),
        )


def _compressed_runs() -> Iterator[InvalidJournal]:
    before = Recording().start(STATE).run(0, 1, f32(1, 2), codec=ZSTD)
    content = f32(5, 6)
    blocks, checksum = raw_blocks(content), content_checksum(content)

    def run(
        name: str, description: str, stored: bytes, error: str = "bad_compression", *also: str
    ) -> InvalidJournal:
        return _bad(
            f"run_{name}",
            description,
            "J-RUN-4",
            error,
            before.run(0, 1, content, stored=stored, codec=ZSTD),
            before,
            when="content",
            also=also,
        )

    good = checked_frame(content)
    yield run("not_zstd", "Bytes that are no zstd frame.", b"no zstd at all")
    yield run("frame_cut", "A frame without its last byte.", good[:-1])
    yield run("two_frames", "Two frames.", checked_frame(content[:4]) + checked_frame(content[4:]))
    yield run("skippable_before", "A skippable frame before.", skippable_frame(b"") + good)
    yield run("skippable_after", "A skippable frame behind.", good + skippable_frame(b""))
    yield run("skippable_alone", "A skippable frame alone.", skippable_frame(content))
    yield run("trailing_byte", "A byte behind the frame.", good + b"\0")
    yield run("no_checksum", "A frame without a checksum.", plain_frame(content))
    for name, size in (("above", 9), ("below", 7), ("huge", 1 << 62)):
        yield run(
            f"size_{name}",
            f"A frame that states {size} bytes of content.",
            zstd_frame(blocks, content_size=size, checksum=checksum),
            "size_mismatch",
        )
    yield run(
        "size_not_told",
        "A frame that does not state the size of its content.",
        zstd_frame(blocks, checksum=checksum),
        "size_mismatch",
    )
    yield run(
        "longer",
        "A frame that holds more than it states.",
        zstd_frame(raw_blocks(content + b"x"), content_size=8, checksum=checksum),
        "bad_compression",
        *("size_mismatch", "checksum_mismatch"),
    )
    yield run(
        "shorter",
        "A frame that holds less than it states.",
        zstd_frame(raw_blocks(content[:7]), content_size=8, checksum=content_checksum(content[:7])),
        "bad_compression",
        "size_mismatch",
    )
    yield run(
        "frame_checksum",
        "The checksum of the frame is wrong.",
        zstd_frame(blocks, content_size=8, checksum=checksum ^ 1),
        "checksum_mismatch",
        "bad_compression",
    )
    yield run(
        "other_content",
        "A good frame of other content.",
        checked_frame(f32(5, 7)),
        "checksum_mismatch",
    )
    yield run(
        "reserved_block",
        "A block of the reserved type.",
        zstd_frame((Block(RESERVED, content, 8),), content_size=8, checksum=checksum),
    )
    yield run(
        "damaged_block",
        "A compressed block that is none.",
        zstd_frame((Block(COMPRESSED, content, 8),), content_size=8, checksum=checksum),
    )
    yield run(
        "dictionary",
        "A frame that needs a dictionary.",
        zstd_frame(blocks, content_size=8, checksum=checksum, dictionary_id=7),
    )
    yield run(
        "window",
        "A frame with a window above 128 MiB.",
        zstd_frame(blocks, content_size=8, checksum=checksum, window=WINDOW_128_MIB + 1),
        "limit_exceeded",
    )


DELTA = Delta(width=1, row=8)
FILTERS: dict[str, tuple[str, str, object]] = {
    "number": ("J-FLT-2", "bad_filter", 5),
    "none": ("J-FLT-2", "bad_filter", []),
    "three": ("J-FLT-2", "bad_filter", [DELTA.fields()] * 3),
    "without_row": ("J-FLT-2", "bad_filter", [{"name": "delta", "order": 1, "width": 1}]),
    "width": ("J-FLT-2", "bad_filter", [Delta(width=3, row=24).fields()]),
    "other_field": ("J-FLT-2", "bad_filter", [DELTA.fields() | {"level": 1}]),
    "order": ("J-FLT-2", "bad_filter", [Planes(4).fields(), Delta(width=4, row=8).fields()]),
    "unknown": ("J-FLT-2", "unknown_filter", [{"name": "wavelet"}]),
    "row_in_part": ("J-FLT-3", "bad_filter", [Delta(width=1, row=5).fields()]),
    "row_above": ("J-FLT-3", "bad_filter", [Delta(width=8, row=16).fields()]),
}


def _filters() -> Iterator[InvalidJournal]:
    start = Recording().start(STATE)
    told = {"signal/state": [DELTA.fields()]}
    for name, (rule, error, listed) in FILTERS.items():
        yield _bad(
            f"filters_{name}",
            "A note says filters that a channel cannot have, beside good metadata: neither counts.",
            rule,
            error,
            start.note(filters={"signal/state": listed}, metadata={"a": 1}),
            start,
        )
    bare = start.note(channels=[row_for("signal/x", "u8", (1 << 26,))])
    wide = row_for("signal/y", "u8", ((1 << 26) + 1,))
    yield _bad(
        "filters_large_entry",
        "Filters of a channel whose entries have more than 64 MiB: it is not added.",
        "J-FLT-3",
        "bad_filter",
        bare.note(
            channels=[wide], filters={"signal/y": [Delta(width=1, row=(1 << 26) + 1).fields()]}
        ),
        bare,
    )
    large = bare.note(filters={"signal/x": [Delta(width=1, row=1 << 26).fields()]})
    size = 2 << 26
    yield _bad(
        "filters_large_run",
        "A filtered run of more than 64 MiB.",
        "J-RUN-3",
        "size_mismatch",
        large.run(1, 2, b"", stored=bytes(4096), codec=ZSTD, content_size=size),
        large,
    )
    for name, before, note in (
        ("of_nobody", start, {"filters": {"signal/other": [DELTA.fields()]}}),
        ("after_a_run", BEFORE, {"filters": told}),
        ("twice", start.note(filters=told), {"filters": told}),
        (
            "after_items",
            Recording().start(STATE, SCAN, SCAN_OFFSETS).run(1, 3, ramp_f32(6)),
            {"filters": {"signal/scan": [DELTA.fields()]}},
        ),
    ):
        yield _bad(
            f"filters_{name}",
            "Filters of a channel that is not known, or that has begun.",
            "J-FLT-1",
            "bad_metadata",
            before.note(**note),
            before,
        )
    begun = start.note(filters=told).filtered(0, 1, f32(1, 2), DELTA)
    yield _bad(
        "filtered_raw",
        "A raw run of a channel that is filtered.",
        "J-RUN-2",
        "bad_header",
        start.note(filters=told).run(0, 1, f32(5, 6)),
        start.note(filters=told),
    )
    yield _bad(
        "filtered_not",
        "A compressed run that was not filtered, of a channel that is.",
        "J-RUN-4",
        "checksum_mismatch",
        begun.run(0, 2, f32(5, 6, 7, 8), codec=ZSTD),
        begun,
        when="content",
    )


NOTES: dict[str, JsonObject] = {
    "filters": {"filters": [DELTA.fields()]},
    "metadata": {"metadata": 5},
    "dropped": {"dropped": [1]},
    "length_negative": {"length_T": -1},
    "length_true": {"length_T": True},
    "length_text": {"length_T": "2"},
    "length_fraction": {"length_T": 1.5},
    "continues": {"continues": 1},
    "filled_negative": {"filled": -1},
    "filled_text": {"filled": "2"},
    "channels": {"channels": 5},
    "interval_number": {"interval": 5, "label": "task"},
    "interval_without_end": {"interval": {"start": 0, "text": ""}, "label": "task"},
    "interval_backwards": {"interval": INTERVAL | {"start": 9}, "label": "task"},
    "interval_unit": {"interval": INTERVAL, "label": "task", "unit": "years"},
    "label_absent": {"interval": INTERVAL},
    "label_empty": {"interval": INTERVAL, "label": ""},
    "label_number": {"interval": INTERVAL, "label": 5},
}


def _notes() -> Iterator[InvalidJournal]:
    for name, fields in NOTES.items():
        yield _bad(
            f"note_{name}",
            "A note with a field of another form, beside a good one.",
            "J-CHN-1" if name == "channels" else "J-NOT-1",
            "bad_metadata",
            BEFORE.note(**{"metadata": {"a": 1}} | fields),
            rules_also=("J-NOT-1",) if name == "channels" else (),
        )
    labelled = BEFORE.note(interval=INTERVAL, label="task")
    yield _bad(
        "note_two_units",
        "The intervals of one label in steps, then in nanoseconds.",
        "J-NOT-1",
        "bad_metadata",
        labelled.note(interval=INTERVAL, label="task", unit="ns"),
        labelled,
    )


RAGGED_ROWS: dict[str, list[JsonObject]] = {
    "without_offsets": [SCAN, CTRL],
    "and_foreign_offsets": [SCAN, TASK_OFFSETS],
    "and_offsets_elsewhere": [SCAN | {"offsets_block": "offsets/other"}, SCAN_OFFSETS],
    "unnamed_offsets": [row_for("signal/scan", "f32", (2,), layout="ragged"), SCAN_OFFSETS],
    "and_offsets_first": [SCAN_OFFSETS, SCAN],
    "offsets_of_nobody": [SCAN_OFFSETS],
    "offsets_u32": [SCAN, SCAN_OFFSETS | {"dtype": "u32"}],
    "offsets_shape": [SCAN, SCAN_OFFSETS | {"shape": [1]}],
    "offsets_with_a_clock": [SCAN, SCAN_OFFSETS | {"time_block": "time/x"}],
    "rewards": [
        row_for("reward", "f32", layout="ragged", offsets_block="offsets/reward"),
        row_for("offsets/reward", "i64"),
    ],
    "of_nothing": [SCAN | {"shape": [3, 0]}, SCAN_OFFSETS],
    "text_of_numbers": [TASK | {"dtype": "u16"}, TASK_OFFSETS],
    "text_with_a_shape": [TASK | {"shape": [1]}, TASK_OFFSETS],
    "layout_unknown": [SCAN | {"layout": "sparse"}, SCAN_OFFSETS],
}


def _ragged_rows() -> Iterator[InvalidJournal]:
    for name, rows in RAGGED_ROWS.items():
        yield _bad(
            f"ragged_row_{name}",
            "A note adds a ragged or text channel, or offsets, that cannot be recorded.",
            "J-CHN-3",
            "bad_metadata",
            BEFORE.note(channels=rows),
            rules_also=("J-NOT-1",),
        )


def _offsets() -> Iterator[InvalidJournal]:
    """Offsets that lie."""
    begun = Recording().start(STATE, SCAN, SCAN_OFFSETS).run(0, 2, ramp_f32(4))
    begun = begun.run(1, 3, ramp_f32(6))
    two = begun.run(2, 3, i64(0, 1, 3))
    yield _bad(
        "offsets_zstd",
        "Offsets that are compressed.",
        "J-RAG-1",
        "bad_header",
        begun.run(2, 3, i64(0, 0, 0), stored=zeros(24), codec=ZSTD),
        begun,
    )
    for name, before, offsets in (
        ("start_at_1", begun, (1, 2)),
        ("start_below_0", begun, (-1, 0, 3)),
        ("fall", begun, (0, 2, 1)),
        ("fall_below_0", begun, (0, -(2**63), 1)),
        ("fall_between_runs", two, (2, 3)),
        ("start_again", two, (0, 3)),
    ):
        yield _bad(
            f"offsets_{name}",
            "Offsets that do not start with 0, or that fall.",
            "J-RAG-2",
            "bad_value",
            before.run(2, len(offsets), i64(*offsets)),
            before,
        )
    for name, before, offsets in (
        ("beyond", begun, (0, 4)),
        ("before_the_items", two, (3, 4)),
        ("huge", begun, (0, 2**63 - 1)),
    ):
        yield _bad(
            f"offsets_{name}",
            "Offsets of items that are not there.",
            "J-RAG-3",
            "bad_value",
            before.run(2, len(offsets), i64(*offsets)),
            before,
        )


def _strings() -> Iterator[InvalidJournal]:
    start = Recording().start(STATE, TASK, TASK_OFFSETS).run(0, 2, ramp_f32(4))
    begun = start.run(1, 4, b"good").run(2, 2, i64(0, 4))
    for name, text, ends in (
        ("latin_1", b"gr\xf6sse", (10,)),
        ("surrogate", b"\xed\xa0\x80", (7,)),
        ("overlong", b"\xc0\x80", (6,)),
        ("cut", b"\xe7\x8a", (6,)),
        ("split_between_entries", "é".encode(), (5, 6)),
    ):
        before = begun.run(1, len(text), text)
        yield _bad(
            f"text_{name}",
            "Strings that are not strict UTF-8, each on its own.",
            "J-RAG-4",
            "bad_value",
            before.run(2, len(ends), i64(*ends)),
            before,
            when="content",
        )
    size = (1 << 26) + 1
    yield _bad(
        "text_large_run",
        "A run of text of more than 64 MiB.",
        "J-RUN-3",
        "size_mismatch",
        start.run(1, size, b"", stored=bytes(4096), codec=ZSTD, content_size=size),
        start,
    )
