"""What must hold for any input, found by Hypothesis; the examples are the same in every run."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import struct
import tempfile
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from xxhash import xxh64_intdigest

from shard_format import Limits, ShardError, ShardReader, ShardWriter, compute_identity
from shard_format._kernels import WORD_PADDING, hash_names
from shard_format.canonical_json import canonical, parse_object
from shard_format.errors import BadMetadata, Closed, InvalidArgument, LimitExceeded
from shard_format.layout import align
from shard_format.registry import DEFAULT_LIMITS
from shard_format.seekable import FrameDecoder, SeekTable
from tests.shard_format.support import LAYOUTS, HandMade, Row, layout_options, noise, prose

if TYPE_CHECKING:
    from collections.abc import Iterator

characters = st.characters(codec="utf-8", exclude_characters="\0")
texts = st.text(st.characters(codec="utf-8"))
names = st.text(characters, min_size=1, max_size=40)
contents = st.one_of(
    st.binary(max_size=600),
    st.builds(bytes, st.integers(0, 5_000)),
    st.builds(prose, st.integers(0, 5_000)),
    st.builds(noise, st.integers(0, 3_000), st.integers(0, 9)),
)
codecs = st.one_of(
    st.sampled_from(["none", "zstd", "lz4"]),
    st.integers(-20, 22).map(lambda level: f"zstd:{level}"),
)
alignments = st.sampled_from([0, 16, 32, 64])


@st.composite
def entries(draw: st.DrawFn) -> list[tuple[str, bytes, str, int | None, bool]]:
    """Name, content, codec, frame size and whether it is streamed, for several entries."""
    rows: list[tuple[str, bytes, str, int | None, bool]] = []
    for name in draw(st.lists(names, max_size=6, unique=True)):
        codec = draw(codecs)
        frame_bytes = draw(st.none() | st.integers(1, 900)) if codec.startswith("zstd") else None
        streamed = draw(st.booleans()) and not codec.startswith("lz4")
        rows.append((name, draw(contents), codec, frame_bytes, streamed))
    return rows


class TestRoundTrip:
    """read(write(x)) == x."""

    @given(rows=entries(), alignment=alignments, layout=st.sampled_from(LAYOUTS), data=st.data())
    def test_what_is_written_is_read(
        self,
        tmp_path: Path,
        rows: list[tuple[str, bytes, str, int | None, bool]],
        alignment: int,
        layout: str,
        data: st.DataObject,
    ) -> None:
        path = tmp_path / "a.shard"
        options = layout_options(layout, [row[0] for row in rows])
        with ShardWriter(path, alignment=alignment, fsync=False, **options) as writer:
            for name, content, codec, frame_bytes, streamed in rows:
                if streamed:
                    cut = data.draw(st.integers(0, len(content)))
                    writer.write_entry_stream(
                        name,
                        [content[:cut], content[cut:]],
                        compression=codec,
                        frame_bytes=frame_bytes,
                    )
                else:
                    writer.write_entry(name, content, compression=codec, frame_bytes=frame_bytes)
        for source in (path, path.read_bytes()):
            with ShardReader(source) as reader:
                reader.verify()
                assert reader.names() == [row[0] for row in rows]
                assert reader.read_many(reader.names()) == [row[1] for row in rows]
                for name, content, *_ in rows:
                    start = data.draw(st.integers(0, len(content)))
                    stop = data.draw(st.integers(start, len(content)))
                    assert reader.read_range(name, start, stop) == content[start:stop]
                    buffer = bytearray(stop - start)
                    reader.read_into(name, buffer, start=start, stop=stop)
                    assert buffer == content[start:stop]
                    assert b"".join(reader.iter_entry(name)) == content

    @given(rows=entries(), alignment=alignments)
    def test_the_identity_depends_on_names_and_contents_alone(
        self,
        tmp_path: Path,
        rows: list[tuple[str, bytes, str, int | None, bool]],
        alignment: int,
    ) -> None:
        found = set()
        for reverse, compress in ((False, True), (True, False)):
            path = tmp_path / "a.shard"
            with ShardWriter(path, alignment=alignment if compress else 0, fsync=False) as writer:
                for name, content, codec, frame_bytes, _ in rows[:: -1 if reverse else 1]:
                    if compress:
                        writer.write_entry(
                            name, content, compression=codec, frame_bytes=frame_bytes
                        )
                    else:
                        writer.write_entry(name, content)
            found.add(compute_identity(path).digest)
        assert len(found) == 1

    @given(st.integers(0, 2**64), st.sampled_from([0, 16, 32, 64]))
    def test_align_gives_the_next_multiple(self, position: int, alignment: int) -> None:
        aligned = align(position, alignment)
        assert position <= aligned < position + max(alignment, 1)
        assert alignment == 0 or aligned % alignment == 0


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda children: st.lists(children, max_size=4) | st.dictionaries(texts, children, max_size=4),
    max_leaves=20,
)


def parse(text: bytes) -> Any:  # noqa: ANN401 - any JSON
    """Any value through the strict reader, which reads objects."""
    return parse_object(b'{"x":' + text + b"}", "a test", DEFAULT_LIMITS)["x"]


def equal(found: Any, wanted: Any) -> bool:  # noqa: ANN401 - any JSON
    """Whether two values are the same; a float of 2**53 or more is read as the integer it looks like."""
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(equal(found[k], wanted[k]) for k in wanted)
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(equal, found, wanted))
    if isinstance(wanted, float):
        return float(found) == wanted
    return type(found) is type(wanted) and bool(found == wanted)


# What ECMAScript's Number.prototype.toString gives; the first block is from RFC 8785, appendix B.
ECMASCRIPT = [
    (0.0, "0"),
    (-0.0, "0"),
    (5e-324, "5e-324"),
    (-5e-324, "-5e-324"),
    (1.7976931348623157e308, "1.7976931348623157e+308"),
    (-1.7976931348623157e308, "-1.7976931348623157e+308"),
    (9007199254740992.0, "9007199254740992"),
    (295147905179352830000.0, "295147905179352830000"),
    (9.999999999999997e22, "9.999999999999997e+22"),
    (1e23, "1e+23"),
    (1.0000000000000001e23, "1.0000000000000001e+23"),
    (999999999999999700000.0, "999999999999999700000"),
    (999999999999999900000.0, "999999999999999900000"),
    (1e21, "1e+21"),
    (9.999999999999997e-7, "9.999999999999997e-7"),
    (0.000001, "0.000001"),
    (333333333.3333332, "333333333.3333332"),
    (333333333.33333325, "333333333.33333325"),
    (333333333.3333334, "333333333.3333334"),
    (-0.0000033333333333333333, "-0.0000033333333333333333"),
    (1424953923781206.2, "1424953923781206.2"),
    (1e-7, "1e-7"),
    (1.5e-7, "1.5e-7"),
    (123456789012345680000.0, "123456789012345680000"),
    (1e20, "100000000000000000000"),
    (1e22, "1e+22"),
    (1.5e300, "1.5e+300"),
    (30.0, "30"),
    (0.1, "0.1"),
    (-1.5, "-1.5"),
    (100.0, "100"),
    (123.456, "123.456"),
    (4.35, "4.35"),
    (0.00001, "0.00001"),
    (1 / 3, "0.3333333333333333"),
    (2.0**53, "9007199254740992"),
    (1e100, "1e+100"),
]


class TestCanonicalJson:
    """One text for one value (spec/registry.md, JSON)."""

    @pytest.mark.parametrize(("number", "text"), ECMASCRIPT, ids=[text for _, text in ECMASCRIPT])
    def test_numbers_are_printed_as_ecmascript_prints_them(self, number: float, text: str) -> None:
        assert canonical(number).decode() == text

    @pytest.mark.parametrize("value", [1.5, 30.0, 1e-7, 1e100, 0.0])
    def test_numpy_floats_are_printed_like_floats(self, value: float) -> None:
        assert canonical(np.float64(value)) == canonical(value)

    @given(json_values)
    @settings(max_examples=200)
    def test_the_text_reads_back_as_the_value(self, value: Any) -> None:  # noqa: ANN401 - any JSON
        text = canonical(value)
        assert equal(parse(text), value)
        assert equal(json.loads(text), value)

    @given(json_values)
    def test_reading_and_writing_again_changes_nothing(self, value: Any) -> None:  # noqa: ANN401 - any JSON
        text = canonical(value)
        assert canonical(parse(text)) == text

    @given(st.floats(allow_nan=False, allow_infinity=False))
    @settings(max_examples=300)
    def test_every_float_reads_back_exactly(self, number: float) -> None:
        assert float(canonical(number)) == number

    @given(st.dictionaries(texts, st.none()))
    def test_keys_are_in_the_order_of_their_bytes(self, value: dict[str, None]) -> None:
        keys = list(json.loads(canonical(value)))
        assert keys == sorted(keys, key=str.encode)

    def test_strings_are_escaped_as_little_as_possible(self) -> None:
        text = '"\\/\b\f\n\r\t\x00\x1f\x7f\u2028é😀'
        expected = '"\\"\\\\/\\b\\f\\n\\r\\t\\u0000\\u001f\x7f\u2028é😀"'
        assert canonical(text).decode() == expected

    @pytest.mark.parametrize(
        "value",
        [
            math.nan,
            math.inf,
            -math.inf,
            np.float64("nan"),
            b"bytes",
            {1, 2},
            {1: 2},
            object(),
            "\ud800",
            {"\udc00": 1},
            np.zeros(3),
            10**5000,
        ],
        ids=lambda value: str(type(value).__name__),
    )
    def test_what_has_no_json_form_is_refused(self, value: object) -> None:
        with pytest.raises(InvalidArgument):
            canonical({"x": value})

    def test_128_levels_are_the_deepest(self) -> None:
        value: list[Any] = []
        for _ in range(127):
            value = [value]
        assert canonical(value) == b"[" * 128 + b"]" * 128
        with pytest.raises(InvalidArgument, match="128"):
            canonical([value])

    @pytest.mark.parametrize(
        "text",
        [
            b"",
            b"[]",
            b"null",
            b"{",
            b"{}{}",
            b"{} x",
            b'{"a":1,"a":2}',
            b'{"a":NaN}',
            b'{"a":Infinity}',
            b'{"a":-Infinity}',
            b'{"a":1e400}',
            b"\xef\xbb\xbf{}",
            "{}".encode("utf-16"),
            b'{"a":"\xff"}',
            b'{"a":"\\ud800"}',
            b'{"\\udc00":1}',
            b'{"a":["\\ud800"]}',
            b'{"a":01}',
            b"{'a':1}",
            b'{"a":"\n"}',
            b'{"a":' + b"[" * 128 + b"]" * 128 + b"}",
            b"[" * 100_000,
            b'{"a":' + b"9" * 5000 + b"}",
        ],
        ids=lambda text: repr(text[:20]),
    )
    def test_what_is_outside_the_subset_is_refused(self, text: bytes) -> None:
        with pytest.raises(ShardError) as caught:
            parse_object(text, "a test", DEFAULT_LIMITS)
        assert caught.value.code == "bad_metadata"

    def test_long_text_is_refused_unread(self) -> None:
        with pytest.raises(ShardError) as caught:
            parse_object(b"x" * 101, "a test", Limits(max_json_bytes=100))
        assert caught.value.code == "limit_exceeded"

    @given(
        st.recursive(
            st.text(alphabet='[]{}":,\\ab', max_size=5) | st.integers(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text('":,\\[', max_size=3), inner),
            max_leaves=20,
        )
    )
    @settings(max_examples=60)
    def test_as_many_values_are_read_as_the_limit_says(self, value: object) -> None:
        def nodes(value: object) -> int:
            if isinstance(value, dict):
                return 1 + sum(nodes(one) for one in value.values()) + 2 * len(value) - bool(value)
            if isinstance(value, list):
                return 1 + sum(map(nodes, value)) + len(value) - bool(value)
            return 0

        text = canonical({"x": value})
        count = nodes({"x": value})
        assert parse_object(text, "a test", Limits(max_json_nodes=count)) == {"x": value}
        with pytest.raises(LimitExceeded, match=r"max_json_nodes.*trust") as caught:
            parse_object(text, "a test", Limits(max_json_nodes=count - 1))
        assert caught.value.rule == "S-SCH-8"

    @pytest.mark.parametrize(
        "text",
        [
            b'{"x":[' * 200 + b'\\"' * (1 << 20),
            b"[" * 200 + b'"' * (1 << 21),
            b'{"x":[' + b"[]," * 700_000 + b"0]}",
            b'{"x":[' + b'"\\u0041",' * 1_000_000 + b"0]}",
        ],
        ids=["escaped quotes", "quotes", "lists", "escapes"],
    )
    def test_hostile_text_takes_memory_in_proportion(self, text: bytes) -> None:
        tracemalloc.start()
        try:
            with pytest.raises((BadMetadata, LimitExceeded)):
                parse_object(text, "a test", DEFAULT_LIMITS)
            assert tracemalloc.get_traced_memory()[1] < 4 * len(text)
        finally:
            tracemalloc.stop()

    def test_strings_are_searched_for_surrogates_at_any_depth(self) -> None:
        inner = b"[" * 126 + b'"\\u00e4",' * 5000 + b'"\\udc00"' + b"]" * 126
        with pytest.raises(BadMetadata, match="lone surrogate"):
            parse_object(b'{"x":' + inner + b"}", "a test", DEFAULT_LIMITS)

    @pytest.mark.parametrize("value", [" " * (16 << 20), [0] * 1_000_000], ids=["long", "many"])
    def test_writers_refuse_what_readers_would_refuse(self, value: object) -> None:
        with pytest.raises(LimitExceeded):
            canonical({"x": value})

    @given(
        st.binary(max_size=60) | st.text(alphabet='[]{}":,\\0123eE.-+ ntrufalse\n').map(str.encode)
    )
    @settings(max_examples=200)
    def test_any_bytes_parse_or_are_refused(self, text: bytes) -> None:
        with contextlib.suppress(ShardError):
            assert isinstance(parse_object(text, "a test", DEFAULT_LIMITS), dict)


class TestHashing:
    """The hashes of a whole table are those of the names one by one."""

    @given(
        st.lists(st.integers(1, 300), min_size=1, max_size=5),
        st.sampled_from([1, 63, 64, 65, 200]),
        st.integers(0, 2**32),
    )
    @settings(max_examples=40)
    def test_all_lengths_and_group_sizes_agree_with_xxhash(
        self, lengths: list[int], repeats: int, seed: int
    ) -> None:
        generator = np.random.default_rng(seed)
        sizes = generator.permutation(np.repeat(lengths, repeats)).astype(np.int64)
        table = generator.integers(0, 256, int(sizes.max()) + 500 + WORD_PADDING, np.uint8)
        offsets = generator.integers(0, 500, sizes.size).astype(np.int64)
        self.compare(table, offsets, sizes)

    def test_every_length_from_1_to_300_agrees_with_xxhash(self) -> None:
        generator = np.random.default_rng(7)
        sizes = np.repeat(np.arange(1, 301), 70)
        table = generator.integers(0, 256, 3_000 + WORD_PADDING, np.uint8)
        offsets = generator.integers(0, 3_000 - sizes + 1)
        self.compare(table, offsets, sizes)

    def compare(
        self,
        table: np.ndarray[Any, np.dtype[np.uint8]],
        offsets: np.ndarray[Any, np.dtype[np.int64]],
        sizes: np.ndarray[Any, np.dtype[np.int64]],
    ) -> None:
        data = table.tobytes()
        expected = [
            xxh64_intdigest(data[offset : offset + size])
            for offset, size in zip(offsets.tolist(), sizes.tolist(), strict=True)
        ]
        assert hash_names(table, offsets, sizes).tolist() == expected


class TestSeekTables:
    """Which frames hold a range."""

    @given(st.lists(st.integers(0, 20), min_size=1, max_size=12), st.data())
    @settings(max_examples=150)
    def test_frames_for_covers_the_range_and_starts_and_ends_in_it(
        self, sizes: list[int], data: st.DataObject
    ) -> None:
        total = sum(sizes)
        if total == 0:
            return
        starts = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
        table = FrameDecoder(SeekTable(starts * 3, starts, None), DEFAULT_LIMITS)
        start = data.draw(st.integers(0, total - 1))
        stop = data.draw(st.integers(start + 1, total))
        frames = table.frames_for(start, stop)
        needed = [
            number
            for number in range(len(sizes))
            if starts[number] < stop and starts[number + 1] > start
        ]
        assert set(needed) <= set(frames)
        # Empty frames may lie between, but the ends are frames with wanted bytes.
        assert (frames[0], frames[-1]) == (needed[0], needed[-1])
        first, end = table.stored_range(frames)
        assert (first, end) == (3 * int(starts[frames[0]]), 3 * int(starts[frames[-1] + 1]))

    @given(st.binary(max_size=80), st.integers(0, 2**40), st.integers(0, 2**40))
    def test_any_tail_parses_or_is_refused(
        self, rows: bytes, disk_size: int, orig_size: int
    ) -> None:
        frames = len(rows) // 12
        rows = rows[: 12 * frames]
        tail = struct.pack("<II", 0x184D2A5E, len(rows) + 9) + rows
        tail += struct.pack("<IBI", frames, 0x80, 0x8F92EAB1)
        with contextlib.suppress(ShardError):
            table = SeekTable.parse(tail, disk_size, orig_size)
            assert table is not None
            assert len(table) == frames


def use(data: bytes) -> None:
    """Opens bytes and reads whatever they claim to hold."""
    with ShardReader(data, limits=Limits(max_decompressed_bytes=1 << 20)) as reader:
        for name in reader.names():
            with contextlib.suppress(ShardError):
                reader.read_entry(name)
            with contextlib.suppress(ShardError):
                reader.read_range(name, 0, 1)
            with contextlib.suppress(ShardError):
                list(reader.iter_entry(name))
        with contextlib.suppress(ShardError):
            reader.verify()
        with contextlib.suppress(ShardError):
            _ = reader.schema


u64 = st.sampled_from([0, 1, 63, 64, 112, 128, 2**31, 2**32, 2**63, 2**64 - 1]) | st.integers(
    0, 2**64 - 1
)


class TestHostileBytes:
    """Nothing but ShardError comes out of bytes that are not a Shard file."""

    @given(st.binary(max_size=300))
    @settings(max_examples=150)
    def test_arbitrary_bytes(self, data: bytes) -> None:
        with contextlib.suppress(ShardError):
            use(data)

    @given(st.binary(max_size=300))
    @settings(max_examples=150)
    def test_arbitrary_bytes_after_the_magic(self, data: bytes) -> None:
        with contextlib.suppress(ShardError):
            use(b"SHRD\2" + data)

    @given(
        st.tuples(*[st.integers(0, 255)] * 2),
        st.tuples(*[st.integers(0, 0xFFFF)] * 1),
        st.sampled_from([0, 16, 32, 64]),
        st.integers(0, 3),
        st.integers(0, 4),
        st.tuples(*[u64] * 10),
        st.binary(max_size=200),
    )
    @settings(max_examples=300)
    def test_any_header_and_index_fields(
        self,
        small: tuple[int, ...],
        words: tuple[int, ...],
        alignment: int,
        default: int,
        count: int,
        large: tuple[int, ...],
        rest: bytes,
    ) -> None:
        """Well-formed enough to get past the header, wrong in everything else."""
        index_end = 64 + 48 * count
        index = b"".join(
            struct.pack(
                "<QIHHQQQIHH",
                large[0],
                large[(row + 1) % 10] % 50,
                large[(row + 2) % 10] % 20,
                words[0],
                large[(row + 3) % 10],
                large[(row + 4) % 10],
                large[(row + 5) % 10],
                large[(row + 6) % 10] & 0xFFFFFFFF,
                words[0],
                words[0],
            )
            for row in range(count)
        )
        body = index + rest
        header = struct.pack(
            "<4sBBHBBHIQQQQ16s",
            b"SHRD",
            2,
            small[0],
            words[0] & ~4,
            alignment,
            default,
            48,
            count,
            index_end,
            min(index_end + small[1] % 60, 64 + len(body)),
            large[7] % (64 + len(body) + 9),
            64 + len(body),
            bytes(16),
        )
        with contextlib.suppress(ShardError):
            use(header + body)

    @given(st.integers(0, 4), st.binary(min_size=1, max_size=120), st.integers(0, 5_000))
    @settings(max_examples=200)
    def test_any_stored_bytes_of_any_codec(self, kind: int, stored: bytes, orig_size: int) -> None:
        flags = (1, 3, 5, 3, 3)[kind]
        if kind == 3:
            stored = b"\x28\xb5\x2f\xfd" + stored
        if kind == 4:
            stored += struct.pack("<IBI", len(stored) // 12, 0x80, 0x8F92EAB1)
        row = Row(b"a", stored, flags=flags, orig_size=orig_size, crc=0)
        use(HandMade([row], flags=0, compression_default=1).to_bytes())


class WriterMachine(RuleBasedStateMachine):
    """Any order of calls leaves a complete file with what was accepted, or what was there before."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="shard-machine-"))
        self.path = self.folder / "a.shard"
        self.before: bytes | None = None
        self.accepted: dict[str, bytes] = {}
        self.state = "open"

    def teardown(self) -> None:
        if hasattr(self, "writer"):
            self.writer.abort()
            self.check_folder()
        shutil.rmtree(self.folder)

    @initialize(
        existing=st.booleans(),
        reserved=st.booleans(),
        alignment=alignments,
        identity=st.booleans(),
    )
    def start(self, existing: bool, reserved: bool, alignment: int, identity: bool) -> None:
        if existing:
            self.before = HandMade([Row(b"old", b"content")]).to_bytes()
            self.path.write_bytes(self.before)
        self.identity = identity
        self.writer = ShardWriter(
            self.path,
            alignment=alignment,
            fsync=False,
            reserve=20 if reserved else None,
            identity=identity,
        )

    short_names = st.sampled_from(["a", "b", "c", "ü", "x" * 30])

    def expect(self, name: str, options: dict[str, Any]) -> type[Exception] | None:
        """The error that a call must raise, None if it must succeed."""
        if self.state != "open":
            return Closed
        if name in self.accepted or options:
            return InvalidArgument
        return None

    bad_options = st.sampled_from(
        [{}, {}, {}, {"compression": "gzip"}, {"tags": 99999}, {"content_type": -1}]
    )

    @rule(name=short_names, content=contents, options=bad_options, codec=codecs)
    def write(self, name: str, content: bytes, options: dict[str, Any], codec: str) -> None:
        expected = self.expect(name, options)
        call = {"compression": codec, **options}
        if expected is not None:
            with pytest.raises(expected):
                self.writer.write_entry(name, content, **call)
            return
        self.writer.write_entry(name, content, **call)
        self.accepted[name] = content

    @rule(
        name=short_names,
        content=contents,
        options=bad_options,
        codec=st.sampled_from(["none", "zstd"]),
        fails=st.booleans(),
        frame_bytes=st.none() | st.integers(1, 2_000),
    )
    def stream(
        self,
        name: str,
        content: bytes,
        options: dict[str, Any],
        codec: str,
        fails: bool,
        frame_bytes: int | None,
    ) -> None:
        def chunks() -> Iterator[bytes]:
            yield content
            if fails:
                raise RuntimeError("the source failed")
            yield content[:7]

        call: dict[str, Any] = {"compression": codec, **options}
        if codec == "zstd" and not options:
            call["frame_bytes"] = frame_bytes
        expected = self.expect(name, options) or (RuntimeError if fails else None)
        if expected is not None:
            with pytest.raises(expected):
                self.writer.write_entry_stream(name, chunks(), **call)
            return
        self.writer.write_entry_stream(name, chunks(), **call)
        self.accepted[name] = content + content[:7]

    @rule(name=st.sampled_from(["", "a\0b", "\ud800"]))
    def write_bad_name(self, name: str) -> None:
        with pytest.raises((InvalidArgument, Closed)):
            self.writer.write_entry(name, b"")

    @precondition(lambda self: len(self.accepted) > 1)
    @rule()
    def close(self) -> None:
        self.writer.close()
        if self.state == "open":
            self.state = "closed"

    @precondition(lambda self: len(self.accepted) > 2)
    @rule()
    def abort(self) -> None:
        self.writer.abort()
        if self.state == "open":
            self.state = "aborted"

    @invariant()
    def check_folder(self) -> None:
        if self.state == "closed":
            with ShardReader(self.path) as reader:
                reader.verify()
                found = {name: reader[name] for name in reader if name != "meta/identity"}
            assert found == self.accepted
            assert list(found) == list(self.accepted)
        elif self.before is None:
            assert not self.path.exists()
        else:
            assert self.path.read_bytes() == self.before
        if self.state != "open":
            assert os.listdir(self.folder) == (["a.shard"] if self.path.exists() else [])


TestWriterStates = WriterMachine.TestCase
TestWriterStates.settings = settings(max_examples=60, stateful_step_count=15, deadline=None)


@example(count=0)
@example(count=1)
@given(count=st.integers(0, 40))
@settings(max_examples=15)
def test_hand_made_files_and_written_files_are_the_same_bytes(tmp_path: Path, count: int) -> None:
    """The writer against the builder of this test suite, which knows only the tables of the spec."""
    path = tmp_path / "a.shard"
    rows = [Row(f"entry/{number}".encode(), noise(number * 7, number)) for number in range(count)]
    with ShardWriter(path, fsync=False) as writer:
        for row in rows:
            writer.write_entry(row.name.decode(), row.stored)
    assert path.read_bytes() == HandMade(rows).to_bytes()
