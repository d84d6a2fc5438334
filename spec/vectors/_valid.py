"""The valid files that test the container: layout, names, flags, roles and metadata.

Readers must accept all of them, including what no good writer would produce.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from _encode import Container, Entry, encode
from _layout import (
    ENTRY_LZ4,
    ENTRY_ZSTD,
    FLAG_CHECKSUMS,
    FLAG_LITTLE_ENDIAN,
    FLAG_RESERVED_HEAD,
    FLAG_SCHEMA,
    align,
    with_entry,
)
from _primitives import canonical_json, fnv1a64, identity_text, identity_text_2, sha256_hex, xxh64
from _vector import Valid, byte_ramp, numbered_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from _metadata import JsonObject

BLOB, JSON, TEXT = 10, 2, 5
ROLE_NAMES = {
    1: "model_weights",
    2: "samples",
    3: "gemm_panels",
    6: "model_variant",
    7: "unassigned",
    8: "columns",
    16: "vector_index",
    200: "private",
}


def _unchanged(data: bytes) -> bytes:
    return data


def valid(
    name: str,
    description: str,
    rules: tuple[str, ...],
    container: Container,
    *,
    warnings: tuple[str, ...] = (),
    lie: Callable[[bytes], bytes] = _unchanged,
    has_library_output: bool = False,
    list_entries: bool = True,
    suffix: str = ".shard",
    episode: JsonObject | None = None,
) -> Valid:
    """A vector whose entries must decode to the contents of `container`."""
    contents = {entry.name_bytes.decode(): entry.content for entry in container.entries}
    return Valid(
        name=name,
        description=description,
        rules=rules,
        data=lie(encode(container)),
        contents=contents,
        warnings=warnings,
        suffix=suffix,
        has_library_output=has_library_output,
        list_entries=list_entries,
        episode=episode,
    )


def hello() -> Valid:
    return valid(
        "hello",
        "The complete file of spec/shard.md, section 18.",
        ("S-HDR-13", "S-NAM-5", "S-NAM-7", "S-DAT-5", "S-CRC-3"),
        Container((Entry("greeting", b"hello", content_type=TEXT),)),
    )


def _layouts() -> Iterator[Valid]:
    sizes = (1, 16, 33, 64, 100)
    entries = tuple(Entry(f"ramp/{size}", byte_ramp(size), content_type=BLOB) for size in sizes)
    for alignment in (0, 16, 32, 64):
        yield valid(
            f"alignment_{alignment}",
            f"Five raw entries of different sizes with alignment {alignment}.",
            ("S-HDR-5", "S-DAT-5"),
            Container(entries, alignment=alignment),
        )
    yield valid(
        "entries_none",
        "No entries; the string table is 64 zero bytes.",
        ("S-HDR-10", "S-HDR-11"),
        Container(alignment=64, data_section_offset=128),
    )
    yield valid(
        "entries_none_64_bytes",
        "The smallest file: a header and nothing else.",
        ("S-HDR-1", "S-HDR-10", "S-HDR-11"),
        Container(alignment=0),
    )
    many = tuple(Entry(f"{number:04}", byte_ramp(number % 3 + 1)) for number in range(10_000))
    yield valid(
        "entries_10000",
        "Ten thousand entries of one to three bytes; the JSON has a digest instead of a list.",
        ("S-HDR-8", "S-IDX-2"),
        Container(many, alignment=0),
        list_entries=False,
    )
    yield valid(
        "empty_entries",
        "Empty entries first, in the middle (two in a row) and last.",
        ("S-DAT-7",),
        Container(
            (
                Entry("first"),
                Entry("a", b"some bytes"),
                Entry("middle/1"),
                Entry("middle/2"),
                Entry("b", b"more bytes"),
                Entry("last"),
            )
        ),
    )
    yield valid(
        "empty_entries_only",
        "Only empty entries: all offsets are the end of the file.",
        ("S-DAT-7",),
        Container((Entry("a"), Entry("b"), Entry("c"))),
    )
    inside = Container((Entry("block", byte_ramp(40)), Entry("empty", gap=b"")), alignment=0)
    block_at = 64 + 48 * 2 + len(b"block\0empty\0")
    yield valid(
        "empty_entry_inside_block",
        "An empty entry whose offset lies inside the block of another entry: nothing overlaps.",
        ("S-DAT-3", "S-DAT-7"),
        inside,
        lie=lambda data: with_entry(data, 1, data_offset=block_at + 7),
    )
    yield valid(
        "adjacent_blocks",
        "Two raw blocks that touch because the first ends on the alignment.",
        ("S-DAT-3", "S-DAT-5"),
        Container((Entry("left", byte_ramp(32)), Entry("right", byte_ramp(48)))),
    )
    yield valid(
        "reserved_head",
        "A head with room for four entries, two of them used, and flag 0x0040.",
        ("S-HDR-13", "S-DAT-5"),
        Container(
            (Entry("a", b"first"), Entry("b", b"second")),
            data_section_offset=align(64 + (48 + 64) * 4, 16),
            flags=FLAG_LITTLE_ENDIAN | FLAG_CHECKSUMS | FLAG_RESERVED_HEAD,
        ),
    )
    yield valid(
        "last_block_padded",
        "Alignment 32 and zero bytes after the last block, as the Python WShard writer does.",
        ("S-DAT-6",),
        Container((Entry("a", b"first"), Entry("b", b"second")), alignment=32, tail=bytes(26)),
    )
    yield valid(
        "gap_63_bytes",
        "Sixty-three zero bytes between two blocks: no warning, alignment could need them.",
        ("S-DAT-6",),
        Container((Entry("a", b"first"), Entry("b", b"second", gap=bytes(63))), alignment=0),
    )
    yield valid(
        "gap_64_bytes",
        "Sixty-four zero bytes between two blocks: more than any alignment needs.",
        ("S-DAT-6",),
        Container((Entry("a", b"first"), Entry("b", b"second", gap=bytes(64))), alignment=0),
        warnings=("unreferenced_bytes",),
    )
    yield valid(
        "gap_at_both_ends",
        "A hundred zero bytes before the first block and after the last one.",
        ("S-DAT-6",),
        Container((Entry("a", b"first", gap=bytes(100)),), alignment=0, tail=bytes(100)),
        warnings=("unreferenced_bytes",),
    )
    yield valid(
        "nonzero_padding",
        "Padding between the blocks and after the last one is not zero.",
        ("S-DAT-6",),
        Container(
            (Entry("a", byte_ramp(10)), Entry("b", b"second", gap=b"\xaa" * 6)), tail=b"\xbb"
        ),
        warnings=("nonzero_padding",),
    )
    yield valid(
        "misaligned_blocks",
        "The header says 32, the blocks lie back to back, as two stream writers leave them.",
        ("S-DAT-6",),
        Container(
            (Entry("a", b"first"), Entry("b", b"second", gap=b""), Entry("c", b"x", gap=b"")),
            alignment=32,
        ),
        warnings=("misaligned",),
    )
    yield valid(
        "index_not_in_data_order",
        "The index lists the blocks in the order third, first, second.",
        ("S-IDX-2",),
        Container(
            (Entry("a", b"third block"), Entry("b", b"first block"), Entry("c", b"second block")),
            data_order=(1, 2, 0),
        ),
        warnings=("not_ascending",),
    )


def _names() -> Iterator[Valid]:
    names = (
        "größe",
        "信号/状态",
        "сигнал",
        "e\u0301",  # e and a combining accent
        "\u00e9",  # the same letter as one character: a different name
        "🤖/👩\u200d🔬",
        "עברית/العربية",
        "\U0010ffff",
        "\ue000",  # orders before U+10FFFF in UTF-8, after it in UTF-16
        " ",
        "Name",
        "name",
    )
    yield valid(
        "names_unicode",
        "Multi-byte, combining, emoji and right-to-left names; names are bytes, not normalised.",
        ("S-NAM-3", "S-NAM-4", "S-NAM-5"),
        Container(tuple(Entry(name, name.encode()) for name in names)),
    )
    escaped = ('quote"', "back\\slash", "tab\tnew\nline\r\b\f", "\x01\x1f\x7f", "<&>\u2028")
    yield valid(
        "names_need_escaping",
        "Names with every kind of character that JSON escapes, and some that it must not.",
        ("S-NAM-3", "S-IDN-1"),
        Container(tuple(Entry(name, b"x") for name in escaped)),
    )
    yield valid(
        "name_with_nul",
        "A name with U+0000 in the middle. Writers must refuse it, readers take the whole name.",
        ("S-NAM-3", "S-NAM-6"),
        Container((Entry("a\0b", b"first"), Entry("a", b"second"))),
    )
    yield valid(
        "name_65535_bytes",
        "The longest possible name.",
        ("S-NAM-1", "S-NAM-6"),
        Container((Entry("n" * 65535, b"long name"), Entry("short", b"short name"))),
    )
    paths = ("../up", "/absolute", "a/../../b", "C:\\dir\\x", "dir/", ".", "..", "with space ", "~")
    yield valid(
        "names_like_paths",
        "Names that must not be used as file paths. The container does not care.",
        ("S-NAM-8",),
        Container(tuple(Entry(name, name.encode()) for name in paths)),
    )
    long_paths = ("/".join("a" * 257), "y" + "/".join(("x" * 240,) * 17), "/".join("b" * 32_768))
    yield valid(
        "names_of_many_parts",
        "Names of 257 parts, of 4097 bytes, and of 32 768 parts, too many for a path.",
        ("S-NAM-8",),
        Container(tuple(Entry(name, b"x") for name in long_paths)),
    )
    yield valid(
        "names_without_terminators",
        "Names back to back, as in WShard files.",
        ("S-NAM-7",),
        Container((Entry("ab", b"first"), Entry("c", b"second")), name_terminator=b""),
    )
    yield valid(
        "names_shared_bytes",
        "Three names inside the bytes of one: a suffix, a prefix and the whole.",
        ("S-NAM-1", "S-NAM-4"),
        Container(
            (Entry("signal/state", b"1"), Entry("state", b"2"), Entry("signal", b"3")),
            string_table=b"signal/state",
        ),
    )
    greeting = Container((Entry("greeting", b"hello"), Entry("other", b"world")))
    yield valid(
        "name_hashes_wrong",
        "Both stored name hashes are FNV-1a, as a reference writer stores them.",
        ("S-NAM-5",),
        greeting,
        lie=lambda data: with_entry(
            with_entry(data, 0, name_hash=fnv1a64(b"greeting")), 1, name_hash=fnv1a64(b"other")
        ),
        warnings=("name_hash_mismatch",),
    )
    yield valid(
        "name_hashes_swapped",
        "Each entry stores the hash of the other one's name.",
        ("S-NAM-5",),
        greeting,
        lie=lambda data: with_entry(
            with_entry(data, 0, name_hash=xxh64(b"other")), 1, name_hash=xxh64(b"greeting")
        ),
        warnings=("name_hash_mismatch",),
    )
    yield valid(
        "name_hashes_equal",
        "Two entries with the same stored hash, right for the first, wrong for the second.",
        ("S-NAM-5",),
        greeting,
        lie=lambda data: with_entry(data, 1, name_hash=xxh64(b"greeting")),
        warnings=("name_hash_mismatch",),
    )


def _flags_and_roles() -> Iterator[Valid]:
    two = (Entry("a", b"first"), Entry("b", b"second"))
    yield valid(
        "flags_zero",
        "The flags field is 0 and the checksums are stored, as two reference writers do.",
        ("S-HDR-13", "S-CRC-1"),
        Container(two, flags=0),
    )
    yield valid(
        "no_checksums",
        "The flags field is 0 and so are the checksums: nothing to verify.",
        ("S-CRC-2",),
        Container((Entry("a", b"first", crc32c=0), Entry("b", b"second", crc32c=0)), flags=0),
        warnings=("no_checksum",),
    )
    yield valid(
        "no_checksum_in_one_entry",
        "The flags field is 0; one entry has a checksum, the other has none.",
        ("S-CRC-1", "S-CRC-2"),
        Container((Entry("a", b"first"), Entry("b", b"second", crc32c=0)), flags=0),
        warnings=("no_checksum",),
    )
    yield valid(
        "no_checksum_of_nothing",
        "The flags field is 0; only an empty entry has no checksum, which nobody needs to know.",
        ("S-CRC-2",),
        Container((Entry("a", b"first"), Entry("empty", b"")), flags=0),
    )
    yield valid(
        "flags_unknown",
        "All header flags that mean nothing today are set, and 0x0001.",
        ("S-HDR-13",),
        Container(two, flags=0xFF2B),
        warnings=("nonzero_reserved",),
    )
    yield valid(
        "entry_flags_unknown",
        "Entry flag 8 in the first entry and all unknown flags in the second.",
        ("S-IDX-1",),
        Container((Entry("a", b"first", flags=0x0008), Entry("b", b"second", flags=0xFFE0))),
        warnings=("nonzero_reserved",),
    )
    yield valid(
        "entry_codec_bits_on_raw",
        "Codec bits without flag 1 mean nothing: the entries are raw.",
        ("S-CMP-1", "S-DAT-4"),
        Container(
            tuple(
                Entry(f"bits/{bits}", b"raw bytes", flags=bits)
                for bits in (ENTRY_ZSTD, ENTRY_LZ4, ENTRY_ZSTD | ENTRY_LZ4)
            )
        ),
    )
    yield valid(
        "reserved_nonzero",
        "The sixteen reserved bytes of the header are not zero.",
        ("S-HDR-13",),
        Container(two, reserved=int.from_bytes(byte_ramp(16), "little")),
        warnings=("nonzero_reserved",),
    )
    types = (*range(18), 0x7FFF, 0x8000, 0xFFFF)
    yield valid(
        "content_types",
        "Every assigned content type, one unassigned and two of the user's own.",
        ("S-IDX-3", "S-HDR-13"),
        Container(tuple(Entry(f"type/{t}", b"%d" % t, content_type=t) for t in types)),
    )
    for role, role_name in ROLE_NAMES.items():
        yield valid(
            f"role_{role}_{role_name}",
            f"Role {role} ({role_name}) opens as a plain archive.",
            ("S-ROL-1",),
            Container((Entry("payload", byte_ramp(8), content_type=BLOB),), role=role),
        )
    yield valid(
        "role_5_wshard",
        "The smallest file that fits role 5: no terminators and an empty meta/episode.",
        ("S-ROL-3", "S-NAM-7"),
        Container((Entry("meta/episode", b"{}", content_type=JSON),), role=5, name_terminator=b""),
        suffix=".wshard",
    )


def _schemas() -> Iterator[Valid]:
    entry = Entry("a", b"first")
    tags = ["train", "gripper", "größe"]
    yield valid(
        "schema_tags",
        "Tag bits with a tag_dictionary; bit 15 has no name.",
        ("S-IDX-3", "S-SCH-4", "S-SCH-6"),
        Container(
            (
                Entry("none", b"0"),
                Entry("train", b"1", tag_bits=0b001),
                Entry("both", b"2", tag_bits=0b110),
                Entry("unnamed", b"3", tag_bits=0x8000),
            ),
            schema=canonical_json({"schema_version": "shard-v2.1", "tag_dictionary": tags}),
        ),
    )
    unknown = {
        "entry_metadata": {"a": {"shape": [5], "x_note": None}, "not/in/file": {}},
        "future": {"numbers": [0, -1, 2**63, 10**30], "true": True},
        "profile": "someone.else.v9",
        "tag_dictionary": [f"tag{k}" for k in range(16)],
        "tags": [],
    }
    yield valid(
        "schema_unknown_fields",
        "Fields and values this version does not know, large integers, and sixteen tags.",
        ("S-SCH-4", "S-SCH-5"),
        Container((entry,), schema=canonical_json(unknown)),
    )
    indented = json.dumps({"schema_version": "shard-v2.1", "tags": ["a"], "x": {}}, indent=2)
    yield valid(
        "schema_indented",
        "Two-space indentation and white space around the object, as Go writers leave it.",
        ("S-SCH-2",),
        Container((entry,), schema=f"\n{indented}\r\n\t ".encode()),
    )
    yield valid(
        "schema_empty_object",
        "The shortest schema section.",
        ("S-SCH-2",),
        Container((entry,), schema=b"{}"),
    )
    yield valid(
        "schema_depth_128",
        "Exactly 128 levels: an object around 127 lists.",
        ("S-SCH-2",),
        Container((entry,), schema=b'{"a":' + b"[" * 127 + b"]" * 127 + b"}"),
    )
    yield valid(
        "schema_brackets_in_strings",
        "Two hundred brackets and escaped quotes inside a string are not nesting.",
        ("S-SCH-2",),
        Container((entry,), schema=b'{"a":"\\"' + b"[{" * 100 + b'\\\\","b":"\\ud83e\\udd16"}'),
    )
    yield valid(
        "schema_flag_clear",
        "A schema section without header flag 0x0010: schema_offset decides.",
        ("S-SCH-3", "S-SCH-6"),
        Container((entry,), schema=b'{"tags":["x"]}', flags=FLAG_LITTLE_ENDIAN | FLAG_CHECKSUMS),
    )
    yield valid(
        "schema_flag_without_section",
        "Header flag 0x0010 without a schema section: schema_offset decides.",
        ("S-SCH-3", "S-SCH-6"),
        Container((entry,), flags=FLAG_LITTLE_ENDIAN | FLAG_CHECKSUMS | FLAG_SCHEMA),
    )
    yield valid(
        "schema_behind_gap",
        "Zero bytes between the last block and the schema section.",
        ("S-SCH-1", "S-DAT-6"),
        Container((entry,), tail=bytes(11), schema=b'{"description":"after padding"}'),
    )


def _manifests_and_identity() -> Iterator[Valid]:
    part = sha256_hex(b"part")
    rows = [
        {
            "end_key": "0199",
            "sha256": part,
            "size": 1048576,
            "start_key": "0000",
            "uri": "p0.shard",
        },
        {"note": "kept", "sha256": part, "size": 0, "uri": "sub/p1.shard"},
    ]
    manifest = canonical_json({"dataset": "kept too", "files": rows})
    yield valid(
        "manifest_files",
        "A manifest in the entry meta/manifest.",
        ("S-MAN-1", "S-MAN-2", "S-MAN-3", "S-ROL-2"),
        Container((Entry("meta/manifest", manifest, content_type=JSON),), role=4),
    )
    chunks = {
        "episode_id": "ep",
        "total_chunks": 1,
        "chunks": [{"chunk_index": 0, "uri": "ep_chunk_0000.wshard", "timestep_range": [0, 9]}],
    }
    yield valid(
        "manifest_chunks",
        "A chunk manifest as the Python WShard writer leaves it: rows under chunks, flags 0.",
        ("S-MAN-1", "S-MAN-3", "S-ROL-2"),
        Container(
            (Entry("meta/manifest", json.dumps(chunks, indent=2).encode()),),
            role=4,
            alignment=32,
            flags=0,
            name_terminator=b"",
        ),
        suffix=".wshard",
    )
    in_schema = {"manifest": {"files": [{"role": 2, "uri": "p0.shard"}], "partitions": []}}
    yield valid(
        "manifest_in_schema",
        "No entry meta/manifest: the rows are in the schema section.",
        ("S-MAN-1", "S-ROL-2"),
        Container((), role=4, schema=canonical_json({"profile": "manifest.v1"} | in_schema)),
    )
    contents = {"b/data": numbered_lines(300), "a/größe": b"", 'quote"': b"x"}
    entries = tuple(Entry(name, content) for name, content in contents.items())
    identity = Entry("meta/identity", identity_text(contents), content_type=JSON)
    yield valid(
        "identity_stored",
        "meta/identity is the last entry and fits the others.",
        ("S-IDN-1",),
        Container((*entries, identity)),
    )
    yield valid(
        "identity_not_stored",
        "The same entries in another order and alignment, without meta/identity: same identity.",
        ("S-IDN-1",),
        Container(entries[::-1], alignment=64),
    )
    schema = {"producer": "größe", "tags": ["a", "b"]}
    text = identity_text_2(contents, 200, schema)
    yield valid(
        "identity_2_stored",
        "meta/identity of version 2, which covers the role and the schema section.",
        ("S-IDN-1", "S-IDN-5"),
        Container(
            (*entries, Entry("meta/identity", text, content_type=JSON)),
            role=200,
            schema=canonical_json(schema),
        ),
    )
    yield valid(
        "identity_2_not_stored",
        "The same entries in another order and alignment, with the same role, and a schema section that is "
        "not canonical: same identities.",
        ("S-IDN-1", "S-IDN-5"),
        Container(
            entries[::-1],
            role=200,
            alignment=64,
            schema=json.dumps(dict(reversed(schema.items())), indent=1).encode(),
        ),
    )
    files = {"files": [{"sha256": part, "size": 4, "uri": "p0.shard"}]}
    listed = {"meta/manifest": canonical_json(files)}
    section = {"manifest": files | {"partitions": []}}
    for version, text in (
        (1, identity_text(listed)),
        (2, identity_text_2(listed, 4, section)),
    ):
        yield valid(
            f"manifest_identity_{version}",
            f"A manifest with an identity of version {version}; the schema section repeats the list.",
            ("S-MAN-7", "S-IDN-1"),
            Container(
                (
                    Entry("meta/manifest", listed["meta/manifest"], content_type=JSON),
                    Entry("meta/identity", text, content_type=JSON),
                ),
                role=4,
                schema=canonical_json(section),
            ),
        )


def container_vectors() -> Iterator[Valid]:
    yield hello()
    yield from _layouts()
    yield from _names()
    yield from _flags_and_roles()
    yield from _schemas()
    yield from _manifests_and_identity()
