"""Shards that follow the rules: records, keys, entries, alignments and the index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from _collision import colliding_text
from _compress import (
    checked_frame,
    lz4_last_literals,
    lz4_repeated,
    plain_frame,
    raw_blocks,
    skippable_frame,
    zero_blocks,
    zstd_frame,
)
from _gzip import member, zeros
from _messagepack import encode as messagepack
from _pack import CREATED, GZIP, JSON, LZ4, MESSAGEPACK, ZSTD, Pack, Part, Record
from _primitives import canonical_json, xxh64
from _vector import ValidPack, byte_ramp, numbered_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _vector import Valid

TEXT = "text/plain"
BINARY = "application/octet-stream"
HELLO = Part("x.txt", b"hello", TEXT)
LONG_TEXT = numbered_lines(600)
COLLIDING = b"a key of sixty-four bytes: the shortest with 2 words in one lane"


def _valid(
    name: str,
    description: str,
    rules: tuple[str, ...],
    pack: Pack | tuple[Record, ...],
    *,
    canonical: str | None = "write",
    absent_keys: tuple[str, ...] = ("", "no such key"),
    list_entries: bool = True,
) -> ValidPack:
    shard = pack if isinstance(pack, Pack) else Pack(pack)
    contents = {
        str(record.key): {str(part.name): part.content for part in record.parts}
        for record in shard.records
    }
    return ValidPack(
        *(name, description, rules, shard.data, contents, canonical, absent_keys, list_entries)
    )


def _record(key: str, *parts: Part, alignment: int = 8) -> Record:
    return Record(key, parts, alignment=alignment)


def hello_pack() -> ValidPack:
    """The complete file of section 15."""
    return _valid("hello", "The file of section 15.", ("P-FTR-1",), (_record("a", HELLO),))


def _records() -> Iterator[ValidPack]:
    yield _valid("empty", "No records: an index and a footer.", ("P-FTR-1", "P-IDX-4"), Pack())
    yield hello_pack()
    yield _valid("no_entries", "A record without entries.", ("P-KND-1",), (_record("a"),))
    same = (Part("x.bin", b"abc", BINARY), Part("y.txt", b"defgh", TEXT))
    yield _valid(
        "same_kinds",
        "Five records with the same names and types, and other contents.",
        ("P-KND-1", "P-IDX-6"),
        tuple(
            _record(
                f"sample {n}",
                *(Part(p.name, p.content * n, p.content_type) for p in same),
            )
            for n in range(5)
        ),
    )
    yield _valid(
        "other_kinds",
        "Records with other names, other types of one name, and none at all.",
        ("P-KND-1", "P-KND-3"),
        (
            _record("a", HELLO),
            _record("b", Part("x.txt", b"# hello", "text/markdown"), Part("z", b"z", BINARY)),
            _record("c"),
            _record("d", Part("z", b"zz", BINARY), HELLO),
        ),
    )
    yield _valid(
        "many_records",
        "Forty records: numbers of the lookup in another order than the records.",
        ("P-IDX-6",),
        tuple(_record(f"{n:03d}", Part("n.cls", b"%d" % n, TEXT)) for n in range(40)),
    )
    yield _valid(
        "many_entries",
        "A record with 70 entries of 0 to 69 bytes.",
        ("P-KND-1", "P-ENT-1"),
        (_record("a", *(Part(f"{n}.bin", byte_ramp(n), BINARY) for n in range(70))),),
    )
    yield _valid(
        "many_names",
        "A record with 257 names, for which a writer states no schema.",
        ("P-KND-1",),
        (_record("a", *(Part(f"{n}.bin", b"%d" % n, BINARY) for n in range(257))),),
        list_entries=False,
    )
    yield _valid(
        "empty_entries",
        "Entries of no bytes: first, in the middle and last.",
        ("P-ENT-1", "P-ENT-2"),
        (
            _record("a", Part("a", b"", BINARY), HELLO, Part("b", b"", BINARY)),
            _record("b", *(Part(name, b"", BINARY) for name in "abc")),
        ),
    )
    yield _valid(
        "content_types",
        "Types that are empty, as long as allowed, and of the first and last printable letter.",
        ("P-KND-3",),
        (
            _record(
                "a",
                Part("none", b"1", ""),
                Part("long", b"2", "x" * 255),
                Part("odd", b"3", " ~"),
            ),
        ),
    )


def _keys() -> Iterator[ValidPack]:
    yield _valid(
        "unicode",
        "Keys and names of two, three and four bytes a letter; composed and not, which differ.",
        ("P-REC-5", "P-KND-2"),
        (
            _record("größe", Part("größe", b"1", BINARY), Part("gro\u0308ße", b"2", BINARY)),
            _record("gro\u0308ße", Part("名前.txt", "名前".encode(), TEXT)),
            _record("🤖", Part("\U0010ffff", b"\xff", BINARY)),
            _record("\ufeff\ufffe\n\x01\x7f", HELLO),
        ),
        absent_keys=("grosse", "GRÖSSE", "🤖 "),
    )
    yield _valid(
        "keys_like_paths",
        "Keys and names are text, also where they look like paths.",
        ("P-REC-5", "P-KND-2"),
        (
            _record("a/b/c", Part("d/e.txt", b"1", TEXT)),
            _record("../up", Part("../../etc/passwd", b"2", BINARY)),
            _record("/", Part(".", b"3", BINARY), Part("..", b"4", BINARY)),
            _record("C:\\x", Part("CON", b"5", BINARY)),
            _record("a/b/c/", Part("a//b", b"6", BINARY)),
            _record(" ", Part(" ", b"7", BINARY)),
        ),
        absent_keys=("a/b", "a/b//c", "a/./b/c"),
    )
    yield _valid(
        "keys_of_many_parts",
        "Keys of 257 and of 32 768 parts, too many for a path.",
        ("P-REC-5",),
        (_record("/".join("a" * 257), HELLO), _record("/".join("b" * 32_768), HELLO)),
    )
    yield _valid(
        "long_key",
        "A key of 65 536 bytes, and one of a letter.",
        ("P-REC-5",),
        (_record("k" * 65_536, HELLO), _record("k", HELLO)),
        absent_keys=("kk",),
    )
    yield _valid(
        "long_name",
        "A name of 65 535 bytes, the most that fits; no schema repeats it.",
        ("P-KND-2",),
        Pack(
            (_record("a", Part("n" * 65_535, b"1", BINARY), Part("n", b"2", BINARY)),),
            metadata=canonical_json({"created": CREATED, "user": {}, "version": 1}),
        ),
        canonical=None,
    )
    others = [colliding_text(COLLIDING, number) for number in range(2)]
    if len({xxh64(key) for key in (COLLIDING, *others)}) != 1:
        raise SystemExit("the colliding keys do not collide")
    yield _valid(
        "colliding_keys",
        "Two keys have the same hash, and a third one too, which is not there.",
        ("P-IDX-6", "P-IDX-9"),
        (
            _record(COLLIDING.decode(), Part("x.txt", b"first", TEXT)),
            _record("other", HELLO),
            _record(others[0].decode(), Part("x.txt", b"second", TEXT)),
        ),
        absent_keys=(others[1].decode(),),
    )


def _alignments() -> Iterator[ValidPack]:
    parts = tuple(Part(f"{n}.bin", byte_ramp(n), BINARY) for n in (1, 7, 8, 9, 63, 64, 65))
    for alignment in (1, 64):
        yield _valid(
            f"alignment_{alignment}",
            f"Entries on multiples of {alignment}.",
            ("P-REC-9", "P-ENT-1"),
            tuple(Record(key, parts, alignment=alignment) for key in ("a", "b")),
        )
    yield _valid(
        "alignments_mixed",
        "Each record has its own alignment; the last two do not start on a multiple of theirs.",
        ("P-REC-4", "P-REC-9"),
        tuple(
            Record(key, parts, alignment=alignment)
            for key, alignment in (("a", 64), ("b", 8), ("odd", 1), ("d", 64), ("e", 8))
        ),
        canonical=None,
    )
    yield _valid(
        "more_padding",
        "More padding than needed behind the last entry, also bytes that are not zero.",
        ("P-REC-7", "P-REC-9"),
        (
            Record("a", (HELLO,), more_padding=bytes(40)),
            Record("b", (HELLO,), more_padding=b"SPR1 is no record here"),
            _record("c", HELLO),
        ),
        canonical=None,
    )
    yield _valid(
        "reserved_bytes",
        "Reserved bytes of rows and of the footer are ignored.",
        ("P-FTR-3",),
        Pack(
            (_record("a", Part("x.txt", b"hello", TEXT, row={"reserved": 0xABCDEF})),),
            footer={"reserved": 0x01020304050607},
        ),
        canonical=None,
    )


def _encodings() -> Iterator[ValidPack]:
    repeated, block = lz4_repeated(b"spam and ", 700)
    zero, deflated = zeros(20)
    parts = {
        "gzip": Part("a.txt", LONG_TEXT, TEXT, GZIP, member(LONG_TEXT)),
        "lz4": Part("b.txt", repeated, TEXT, LZ4, block),
        "zstd": Part("c.txt", LONG_TEXT, TEXT, ZSTD, plain_frame(LONG_TEXT)),
    }
    yield _valid(
        "encodings",
        "Entries raw and in each encoding, in one record and each in its own.",
        ("P-ENC-1", "P-ENC-4", "P-ENC-5"),
        (
            Record("all", (HELLO, *parts.values())),
            *(Record(name, (part,)) for name, part in parts.items()),
        ),
        canonical="copy",
    )
    yield _valid(
        "gzip",
        "Members with a name, of fixed codes, and of three blocks, as other tools write them.",
        ("P-ENC-5",),
        (
            _record(
                "a",
                Part("name", b"hello", BINARY, GZIP, member(b"hello", name=b"x.txt")),
                Part("zeros", zero, BINARY, GZIP, deflated),
                Part("blocks", LONG_TEXT, BINARY, GZIP, member(LONG_TEXT, block_size=250)),
            ),
        ),
        canonical="copy",
    )
    halves = LONG_TEXT[:300], LONG_TEXT[300:]
    several = skippable_frame(b"note") + plain_frame(halves[0]) + checked_frame(halves[1])
    unsized = zstd_frame(raw_blocks(LONG_TEXT))
    large = zstd_frame(zero_blocks(300_000), content_size=300_000)
    yield _valid(
        "zstd",
        "Several frames and skippable ones, a frame without its size, and one of many blocks.",
        ("P-ENC-4", "P-ENC-5"),
        (
            _record(
                "a",
                Part("several", LONG_TEXT, BINARY, ZSTD, several + skippable_frame(b"")),
                Part("unsized", LONG_TEXT, BINARY, ZSTD, unsized),
                Part("blocks", bytes(300_000), BINARY, ZSTD, large),
            ),
        ),
        canonical="copy",
    )
    yield _valid(
        "encoded_nothing",
        "Nothing at all in each encoding; a writer would store it raw.",
        ("P-ENC-4", "P-ENC-5"),
        (
            _record(
                "a",
                Part("gzip", b"", BINARY, GZIP, member(b"")),
                Part("lz4", b"", BINARY, LZ4, lz4_last_literals(b"")),
                Part("zstd", b"", BINARY, ZSTD, plain_frame(b"")),
            ),
        ),
        canonical="copy",
    )


MESSAGEPACK_VALUES: dict[object, object] = {
    "nil": None,
    "bools": [True, False],
    "integers": [
        *(limit - 1 for limit in (1 << 5, 1 << 7, 1 << 8, 1 << 16, 1 << 32, 1 << 64)),
        *(1 << bits for bits in (5, 7, 8, 16, 32, 63)),
        *(-(1 << bits) - low for bits in (0, 5, 7, 15, 31) for low in (0, 1)),
        -(1 << 63),
    ],
    "floats": [0.0, -0.0, 0.1, 1e300, float("inf")],
    "texts": ["", "größe", "x" * 31, "x" * 32, "x" * 256],
    "bytes": [b"", b"\xff\x00", bytes(256)],
    "lists": [[], [[]], list(range(16))],
    "maps": {"": {}, "sixteen": {str(n): n for n in range(16)}},
    7: "a number as a key",
}
# A 32-bit float, integers and lengths in longer forms than needed, and two extensions.
MESSAGEPACK_LONG = bytes.fromhex(
    "de0006"
    "d90166 ca3fc00000"
    "da000169 d30000000000000001"
    "db0000000175 cf0000000000000002"
    "a16c dd00000001 d1ffff"
    "a165 d6ff65920080"
    "a178 c7030a010203"
)


def nested(levels: int) -> tuple[bytes, bytes]:
    """A number in so many objects and lists, as JSON and as MessagePack."""
    lists = levels - 1
    return (
        b'{"a":' + b"[" * lists + b"1" + b"]" * lists + b"}",
        b"\x81\xa1a" + b"\x91" * lists + b"\x01",
    )


def _metadata() -> Iterator[ValidPack]:
    fields = {"label": 3, "größe": ["ü", None, True, {}], "weight": -7, "text": "a\nb\u0001"}
    yield _valid(
        "metadata_json",
        "Metadata as canonical JSON, and a record without any.",
        ("P-MTD-1", "P-MTD-2"),
        (
            Record("a", (HELLO,), canonical_json(fields), JSON),
            _record("b", HELLO),
            Record("c", (), canonical_json({"n": 0}), JSON),
        ),
    )
    yield _valid(
        "metadata_json_free",
        "JSON with white space, escapes and keys out of order, as a reader takes it.",
        ("P-MTD-2",),
        (Record("a", (HELLO,), b' {"b" : 1e2,\t"a":"\\u00fc\\ud83e\\udd16"}\r\n', JSON),),
        canonical="copy",
    )
    yield _valid(
        "metadata_messagepack",
        "Every type of MessagePack in its shortest form, and a record without metadata.",
        ("P-MTD-1", "P-MTD-3"),
        (
            Record("a", (HELLO,), messagepack(MESSAGEPACK_VALUES), MESSAGEPACK),
            _record("b", HELLO),
        ),
    )
    yield _valid(
        "metadata_messagepack_free",
        "Longer forms than needed, a 32-bit float and extensions, as a reader takes them.",
        ("P-MTD-3",),
        (Record("a", (HELLO,), MESSAGEPACK_LONG, MESSAGEPACK),),
        canonical="copy",
    )
    yield _valid(
        "metadata_empty",
        "Empty objects in both encodings read as no metadata does.",
        ("P-MTD-1", "P-MTD-2", "P-MTD-3"),
        (
            Record("a", (HELLO,), b"{}", JSON),
            Record("b", (HELLO,), b"\x80", MESSAGEPACK),
            _record("c", HELLO),
        ),
        canonical=None,
    )
    json_text, packed = nested(128)
    yield _valid(
        "metadata_deep",
        "128 levels of objects and lists around a number, the most that is allowed.",
        ("P-MTD-2", "P-MTD-3"),
        (
            Record("json", (HELLO,), json_text, JSON),
            Record("messagepack", (HELLO,), packed, MESSAGEPACK),
        ),
        canonical=None,
    )


def _index() -> Iterator[ValidPack]:
    record = _record("a", HELLO)
    yield _valid(
        "index_user",
        "Fields of the writer's user.",
        ("P-IDX-8",),
        Pack((record,), user={"license": "CC0", "größe": [1, 2, {"a": None}]}),
    )
    unknown = {"created": CREATED, "new": {"a": [1]}, "version": 1, "schema": 7}
    yield _valid(
        "index_unknown_fields",
        "Fields that nobody knows, one of another type than expected, and others missing.",
        ("P-IDX-8",),
        Pack((record,), metadata=canonical_json(unknown)),
        canonical=None,
    )
    yield _valid(
        "index_no_fields",
        "An empty object with white space around it.",
        ("P-IDX-8",),
        Pack((record,), metadata=b" { } "),
        canonical=None,
    )


def _inside(containers: list[Valid]) -> Iterator[ValidPack]:
    by_name = {vector.name: vector.data for vector in containers}
    types = {
        "a.wshard": ("application/vnd.shard.episode", by_name["episode_minimal"]),
        "b.shard": ("application/vnd.shard", by_name["hello"]),
        "c.shardpack": ("application/vnd.shard.pack", hello_pack().data),
    }
    yield _valid(
        "formats_inside",
        "An episode, a container and a shard as entries, usable in place.",
        ("P-REC-9",),
        (_record("a", *(Part(n, d, t) for n, (t, d) in types.items()), alignment=64),),
        absent_keys=("x.txt",),
    )


def pack_vectors(containers: list[Valid]) -> Iterator[ValidPack]:
    yield from _records()
    yield from _keys()
    yield from _alignments()
    yield from _encodings()
    yield from _metadata()
    yield from _index()
    yield from _inside(containers)
