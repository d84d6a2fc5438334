"""Valid files that a reader refuses when its caller lowers a limit.

Each is above its lowered limit by the smallest step, so that the limit plus one lets it pass. With the limits of the
specification, most of these cases would take files of more than a megabyte.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from _compress import lz4_last_literals, plain_frame, raw_blocks, zstd_frame
from _decode import open_file, read_entry
from _encode import Container, Entry, encode
from _gzip import member
from _invalid_episode_sets import GOOD, chunked
from _invalid_packs import BAD, THREE, bad_pack, bad_record
from _layout import ENTRY_SIZE, LZ4, ZSTD
from _limits import LIMITS, lowered
from _messagepack import encode as encode_messagepack
from _metadata import ROLE_MANIFEST, JsonObject
from _pack import FOOTER_SIZE, INDEX_HEAD_SIZE, JSON, MESSAGEPACK, Part, Record
from _pack import GZIP as PACK_GZIP
from _pack import LZ4 as PACK_LZ4
from _pack import ZSTD as PACK_ZSTD
from _pack_sets import SET_FILE, SHARDS, InvalidPackSet, fields_of, set_file
from _pack_sets import outcome as set_outcome
from _primitives import canonical_json
from _selfcheck import error_of
from _selfcheck_episodes import outcome as episode_outcome
from _selfcheck_packs import outcome as pack_outcome
from _valid_episodes import base
from _valid_packs import TEXT
from _vector import Invalid, InvalidEpisode, InvalidPack, numbered_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

JSON_TYPE = 2
SMALLEST_WINDOW = 1024
WINDOW = SMALLEST_WINDOW * 9 // 8
WINDOW_CODE = 1
LINES = numbered_lines(400)
VALUES = [0] * 40
MANY_VALUES = canonical_json({"x": VALUES})
"""42 of the characters that count: a brace, a colon, a bracket and 39 commas."""
MOST_VALUES = 41
CODE = "limit_exceeded"

AnyInvalid = Invalid | InvalidEpisode | InvalidPack | InvalidPackSet


@dataclass(frozen=True)
class Limited:
    """A valid file, and the limits with which its step must fail."""

    vector: AnyInvalid
    limits: dict[str, int]

    @property
    def kind(self) -> str:
        """As the conformance programs call it."""
        kinds = {Invalid: "container", InvalidEpisode: "episode", InvalidPack: "pack"}
        return kinds.get(type(self.vector), "set")


def _outcome(vector: AnyInvalid) -> str | None:
    """The code of the step."""
    if isinstance(vector, Invalid):
        return error_of(vector)
    if isinstance(vector, InvalidEpisode):
        found = episode_outcome(vector)
        return found and found[0]
    found = pack_outcome(vector) if isinstance(vector, InvalidPack) else set_outcome(vector)
    return found and found[1]


# --- containers


def _container(name: str, description: str, rule: str, data: bytes, **limits: int) -> Limited:
    return Limited(Invalid(f"container_{name}", description, rule, CODE, "open", data), limits)


def _heads() -> Iterator[Limited]:
    data = encode(Container((Entry("first", b"1"), Entry("second", b"2"), Entry("third", b"3"))))
    yield _container("entries", "Three entries.", "S-HDR-8", data, max_entries=2)
    most = 3 * ENTRY_SIZE - 1
    yield _container("index", "An index of 144 bytes.", "S-HDR-8", data, max_index_bytes=most)
    yield _container(
        "string_table",
        "32 bytes from the end of the index to the first block: 20 of names, and padding.",
        *("S-HDR-12", data),
        max_string_table_bytes=31,
    )
    entries = (Entry("abcdefgh", b"1"), Entry("abcdefg", b"2"), Entry("bc", b"3"))
    yield _container(
        "names_together",
        "Three names of 17 bytes together, in a string table of 16.",
        *("S-NAM-9", encode(Container(entries, string_table=b"abcdefgh"))),
        max_string_table_bytes=16,
    )


def _read(name: str, description: str, rule: str, entry: Entry, **limits: int) -> Limited:
    data = encode(Container((entry, Entry("other", b"undamaged"))))
    vector = Invalid(f"container_{name}", description, rule, CODE, "read", data, entry="x")
    return Limited(vector, limits)


def _contents() -> Iterator[Limited]:
    most = len(LINES) - 1
    for codec, flags, stored in (
        ("zstd", ZSTD, plain_frame(LINES)),
        ("lz4", LZ4, lz4_last_literals(LINES)),
    ):
        entry = Entry("x", LINES, flags=flags, stored=stored)
        what = f"{len(LINES)} bytes in {codec}."
        yield _read(f"decompressed_{codec}", what, "S-CMP-2", entry, max_decompressed_bytes=most)
    frame = zstd_frame(raw_blocks(LINES), content_size=len(LINES), window=WINDOW_CODE)
    entry = Entry("x", LINES, flags=ZSTD, stored=frame)
    what = f"A zstd frame with a window of {WINDOW} bytes."
    yield _read("window_zstd", what, "S-CMP-7", entry, max_window_bytes=WINDOW - 1)


def _metadata() -> Iterator[Limited]:
    section = Container((Entry("a", b"first"),), schema=MANY_VALUES)
    rows = canonical_json({"files": [{"uri": "p0.shard"}], "x": VALUES})
    entry = Entry("meta/manifest", rows, content_type=JSON_TYPE)
    manifest = Container((entry,), role=ROLE_MANIFEST)
    for when, what, text, container in (
        ("schema", "The schema section", MANY_VALUES, section),
        ("manifest", "meta/manifest", rows, manifest),
    ):
        for suffix, size, rule, limits in _json_limits(text):
            name = f"container_{when}_{suffix}"
            data = encode(container)
            yield Limited(Invalid(name, f"{what} has {size}.", rule, CODE, when, data), limits)


# --- episodes


def _descriptions() -> Iterator[Limited]:
    for name in ("wshard", "episode", "channels"):
        draft = base()
        padded = {"metadata" if name == "episode" else "x": {"x": [0] * 500}}
        if name == "wshard":
            draft.wshard = {"format": "W-SHARD", **padded}
        elif name == "episode":
            draft.episode = {"episode_id": "ep", "length_T": 4, **padded}
        else:
            draft.channels = {"channels": draft.rows, **padded}
        yield from _episode(f"episode_{name}", f"meta/{name}", "open", draft.data())
    intervals = [{"end": 2, "start": 1, "text": str(number)} for number in range(80)]
    draft = base().json("label/bad", {"intervals": intervals}).json("label/good", {"intervals": []})
    yield from _episode("episode_label", "label/bad", "touch", draft.data(), ("labels", "bad"))


def _episode(
    name: str, entry: str, when: str, data: bytes, touch: tuple[str, ...] = ()
) -> Iterator[Limited]:
    text = read_entry(open_file(data), entry)
    for suffix, what, rule, limits in _json_limits(text):
        yield Limited(
            InvalidEpisode(
                name=f"{name}_{suffix}",
                description=f"{entry} has {what}.",
                rule=rule,
                error=CODE,
                when=when,
                files={"ep.wshard": data},
                touch=touch,
            ),
            limits,
        )


def _json_limits(text: bytes) -> Iterator[tuple[str, str, str, dict[str, int]]]:
    """What a limit one below the size of this JSON means."""
    outside_strings = re.sub(rb'"(?:[^"\\]|\\.)*"', b"", text)
    values = sum(outside_strings.count(symbol) for symbol in (b"[", b"{", b",", b":"))
    yield "bytes", f"{len(text)} bytes", "S-SCH-7", {"max_json_bytes": len(text) - 1}
    what = f"{values} of the characters that count"
    yield "values", what, "S-SCH-8", {"max_json_nodes": values - 1}


def _chunks() -> Iterator[Limited]:
    manifest = GOOD | {"x": [0] * 500}
    for suffix, what, rule, limits in _json_limits(canonical_json(manifest)):
        what = f"The manifest of an episode of chunks has {what}."
        vector = chunked(suffix, what, rule, manifest, error=CODE)
        yield Limited(replace(vector, name=f"episode_chunks_{suffix}"), limits)


# --- shards and sets


def _indexes() -> Iterator[Limited]:
    text = canonical_json({"created": "2024-01-01T00:00:00Z", "user": {"x": VALUES}, "version": 1})
    pack = replace(THREE, metadata=text)
    size = INDEX_HEAD_SIZE + 4 * 8 + 3 * 12 + len(text) + FOOTER_SIZE
    what = f"An index of {size} bytes."
    vector = bad_pack("pack_index", what, "P-IDX-1", CODE, "open", pack)
    yield Limited(vector, {"max_index_bytes": size - 1})
    for suffix, what, rule, limits in _json_limits(text):
        what = f"The metadata of the shard has {what}."
        name = f"pack_metadata_{suffix}"
        yield Limited(bad_pack(name, what, rule, CODE, "index_metadata", pack), limits)


def _records() -> Iterator[Limited]:
    def limited(
        name: str, what: str, rule: str, record: Record, entry: str | None = None, **limits: int
    ) -> Limited:
        when = "metadata" if entry is None else "entry"
        vector = bad_record(*(f"pack_{name}", what, rule, CODE, record), when=when, entry=entry)
        return Limited(vector, limits)

    record = replace(BAD, metadata=MANY_VALUES, metadata_encoding=JSON)
    what = f"{MOST_VALUES + 1} of the characters that count."
    yield limited("json_values", what, "S-SCH-8", record, max_json_nodes=MOST_VALUES)
    items = len(VALUES)
    record = replace(BAD, metadata=encode_messagepack({"x": VALUES}), metadata_encoding=MESSAGEPACK)
    what = f"A key, its value and {items} items of a list."
    yield limited("messagepack_values", what, "P-MTD-3", record, max_json_nodes=items + 1)
    before, after = Part("before", b"1", TEXT), Part("other", b"2", TEXT)
    for codec, encoding, stored in (
        ("gzip", PACK_GZIP, member(LINES)),
        ("lz4", PACK_LZ4, lz4_last_literals(LINES)),
        ("zstd", PACK_ZSTD, plain_frame(LINES)),
    ):
        part = Part("x", LINES, TEXT, encoding, stored)
        record = replace(BAD, parts=(before, part, after))
        what, most = f"{len(LINES)} bytes in {codec}.", len(LINES) - 1
        yield limited(
            *(f"decompressed_{codec}", what, "P-ENC-3", record, "x"), max_decompressed_bytes=most
        )
    frame = zstd_frame(raw_blocks(LINES), content_size=len(LINES), window=WINDOW_CODE)
    record = replace(BAD, parts=(before, Part("x", LINES, TEXT, PACK_ZSTD, frame), after))
    what = f"A zstd frame with a window of {WINDOW} bytes."
    yield limited("window_zstd", what, "P-ENC-3", record, "x", max_window_bytes=WINDOW - 1)


def _sets() -> Iterator[Limited]:
    fields: JsonObject = fields_of(SHARDS, user={"x": [0] * 500})
    text = canonical_json(fields)
    for suffix, what, rule, limits in _json_limits(text):
        what = f"The set file has {what}."
        files = {SET_FILE: set_file(fields), **SHARDS}
        yield Limited(InvalidPackSet(f"set_{suffix}", what, rule, CODE, "open", files), limits)


def limited_vectors() -> Iterator[Limited]:
    yield from _heads()
    yield from _contents()
    yield from _metadata()
    yield from _descriptions()
    yield from _chunks()
    yield from _indexes()
    yield from _records()
    yield from _sets()


# --- do they say what is so


def limited_problems(vectors: list[Limited], rules: dict[str, set[str]]) -> Iterator[str]:
    for one in vectors:
        vector, name = one.vector, f"limits/{one.vector.name}"
        with lowered(one.limits):
            found = _outcome(vector)
        if found != vector.error:
            yield f"{name} gives {found}, expected {vector.error}"
        with lowered({limit: value + 1 for limit, value in one.limits.items()}):
            found = _outcome(vector)
        if found is not None:
            yield f"{name} gives {found}, although it keeps the limit"
        if vector.error not in rules.get(vector.rule, set()):
            yield f"{name} expects {vector.error}, which {vector.rule} does not name"
    names = [one.vector.name for one in vectors]
    yield from (f"{name} is made twice" for name in set(names) if names.count(name) > 1)
    tested = {limit for one in vectors for limit in one.limits}
    yield from (f"no file for the limit {limit}" for limit in sorted(LIMITS.keys() - tested))
