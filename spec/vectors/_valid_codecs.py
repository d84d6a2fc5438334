"""The valid files that test compression and seeking, and the golden files of other writers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from _compress import (
    SEEK_CHECKSUM_BIT,
    SEEK_FOOTER_MAGIC,
    WINDOW_128_MIB,
    checked_frame,
    lz4_last_literals,
    lz4_repeated,
    plain_frame,
    raw_blocks,
    seek_rows,
    seek_table,
    skippable_frame,
    zero_blocks,
    zstd_frame,
)
from _encode import Container, Entry
from _layout import ENTRY_COMPRESSED, LZ4, ZSTD
from _primitives import sha256_hex
from _valid import valid
from _vector import Valid, byte_ramp, numbered_lines
from _zstd_library import library_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

TEXT = numbered_lines(2000)
FRAME_CONTENT = 4096
SEEKABLE = numbered_lines(2 * FRAME_CONTENT + 1808)

GOLDEN_SHA256 = """\
e0056ea463fc94ab58967fef9fd464fc3ec96bc649e643e3377223fc85c585ce  golden_align16.shard
487228df14dc2eff0ed316ec55c759ea7459ab33be61a29a1708411cd13fd67f  golden_basic.shard
8f7e2d0d93c95f430299a4689c55c942e37f13282aa7d368a08afb7f8dbbe209  golden_dtype_zoo.wshard
69750520122e45cfa414572b4bec56cda39f9665d222f2bc7d2baf885bc019b8  golden_latent_action.wshard
a51294cf839deef92ce59ca12875a231a500b3a811ce5944d8c15941be0540ba  golden_multimodal.wshard
7e3b4acbdea04d981ed1c635a5e571ccfce1db8d82aed108c9937ba60cab9ead  golden_noalign.shard
5e68d72bcca6fbe2b85f0ac2be476f3c0b170d1a75491241174f872d4a8353e3  golden_omen_uncert.wshard
37bbe66942bf20a9d79805bbab360016b90716c1670e22496616a5a8e274008b  golden_per_block_compressed.wshard
6234417c41af6f33605f27c781cd3edec0e522add265e29afbf0c46a927ad457  golden_simple_episode.wshard"""
"""Files of the reference implementations. They are inputs here, so their bytes are pinned."""
GOLDEN_EPISODES = {
    "golden_dtype_zoo": "golden_dtypes",
    "golden_latent_action": "golden_latent_action",
    "golden_multimodal": "golden_multimodal",
    "golden_omen_uncert": "golden_omen_uncert",
    "golden_per_block_compressed": "golden_compressed",
    "golden_simple_episode": "golden_simple",
}
"""The ids of the episodes among them."""


def golden_vectors(folder: Path) -> Iterator[Valid]:
    for line in GOLDEN_SHA256.split("\n"):
        digest, file_name = line.split()
        data = (folder / file_name).read_bytes()
        if sha256_hex(data) != digest:
            problem = f"{file_name} is not the published golden file; restore it from git"
            raise SystemExit(problem)
        name, _, suffix = file_name.partition(".")
        yield Valid(
            name=name,
            description="A published golden file of the reference implementations.",
            rules=("S-ROL-1",),
            data=data,
            suffix=f".{suffix}",
            episode={"id": told} if (told := GOLDEN_EPISODES.get(name)) else None,
        )


def _zstd(name: str, content: bytes, stored: bytes) -> Entry:
    return Entry(name, content, flags=ZSTD, stored=stored)


def _library_frames() -> Iterator[Valid]:
    yield valid(
        "zstd",
        "Frames of the zstd library: with and without content size and checksum.",
        ("S-CMP-3", "S-CMP-4"),
        Container(
            (
                _zstd("size", TEXT, library_frame(TEXT)),
                _zstd("size_checksum", TEXT, library_frame(TEXT, checksum=True)),
                _zstd("neither", TEXT, library_frame(TEXT, content_size=False)),
                _zstd("checksum", TEXT, library_frame(TEXT, content_size=False, checksum=True)),
            )
        ),
        has_library_output=True,
    )
    repeated, block = lz4_repeated(b"0123456789", 1000)
    yield valid(
        "codecs_mixed",
        "One raw, one zstd and one lz4 entry, and compression_default 2.",
        ("S-CMP-1", "S-CMP-10"),
        Container(
            (
                Entry("raw", byte_ramp(50)),
                _zstd("zstd", TEXT, library_frame(TEXT, checksum=True)),
                Entry("lz4", repeated, flags=LZ4, stored=block),
            ),
            alignment=64,
            compression_default=2,
        ),
        has_library_output=True,
    )
    parts = _parts(SEEKABLE)
    frames = [library_frame(part, checksum=True) for part in parts]
    yield valid(
        "seekable",
        "Three frames of the zstd library, the last one short, and a seek table with checksums.",
        ("S-SEK-2", "S-SEK-3", "S-SEK-4", "S-SEK-5"),
        Container(
            (
                _zstd("rows", SEEKABLE, b"".join(frames) + seek_table(seek_rows(frames, parts))),
                Entry("raw", byte_ramp(20)),
            )
        ),
        has_library_output=True,
    )


def _parts(content: bytes) -> list[bytes]:
    return [content[at : at + FRAME_CONTENT] for at in range(0, len(content), FRAME_CONTENT)]


def _hand_made() -> Iterator[Valid]:
    repeated, block = lz4_repeated(b"abc", 700)
    yield valid(
        "lz4",
        "Raw lz4 blocks: a long match, and literals only.",
        ("S-CMP-4", "S-CMP-9"),
        Container(
            (
                Entry("match", repeated, flags=LZ4, stored=block),
                Entry("literals", TEXT, flags=LZ4, stored=lz4_last_literals(TEXT)),
            )
        ),
    )
    last = len(block) - 13
    yield valid(
        "lz4_last_token",
        "The last token of each block states a match that does not follow.",
        ("S-CMP-9",),
        Container(
            tuple(
                Entry(
                    f"bits/{bits}",
                    repeated,
                    flags=LZ4,
                    stored=block[:last] + bytes([block[last] | bits]) + block[last + 1 :],
                )
                for bits in (1, 15)
            )
        ),
    )
    yield valid(
        "default_codec_zstd",
        "Flag 1 without a codec bit, and compression_default 1.",
        ("S-CMP-1",),
        Container(
            (
                Entry("zstd", TEXT, flags=ENTRY_COMPRESSED, stored=plain_frame(TEXT)),
                Entry("raw", b"raw whatever the default is"),
                Entry("lz4", repeated, flags=LZ4, stored=block),
            ),
            compression_default=1,
        ),
    )
    yield valid(
        "default_codec_lz4",
        "Flag 1 without a codec bit, and compression_default 2.",
        ("S-CMP-1",),
        Container(
            (Entry("lz4", repeated, flags=ENTRY_COMPRESSED, stored=block),), compression_default=2
        ),
    )
    yield valid(
        "default_codec_unknown_unused",
        "compression_default 9 in a file whose entries do not need it.",
        ("S-CMP-1",),
        Container(
            (Entry("raw", b"raw"), _zstd("zstd", TEXT, plain_frame(TEXT))), compression_default=9
        ),
    )
    yield valid(
        "compressed_empty",
        "Compressed entries that decode to nothing.",
        ("S-CMP-3", "S-CMP-4"),
        Container(
            (
                _zstd("zstd", b"", checked_frame(b"")),
                Entry("lz4", b"", flags=LZ4, stored=lz4_last_literals(b"")),
            )
        ),
    )
    zeros = bytes(300_000)
    yield valid(
        "zstd_header_forms",
        "Frame headers a reader may meet: single segment, window of 128 MiB, dictionary id 0, RLE.",
        ("S-CMP-3", "S-CMP-6", "S-CMP-7", "S-CMP-8"),
        Container(
            (
                _zstd(
                    "single_segment",
                    TEXT,
                    zstd_frame(raw_blocks(TEXT), content_size=len(TEXT), single_segment=True),
                ),
                _zstd("window", TEXT, zstd_frame(raw_blocks(TEXT), window=WINDOW_128_MIB)),
                _zstd("dictionary_id", TEXT, zstd_frame(raw_blocks(TEXT), dictionary_id=0)),
                _zstd("rle", zeros, zstd_frame(zero_blocks(len(zeros)))),
            )
        ),
    )
    first, second, third = TEXT[:700], TEXT[700:1500], TEXT[1500:]
    frames = plain_frame(first) + checked_frame(second) + zstd_frame(raw_blocks(third))
    yield valid(
        "zstd_concatenated_frames",
        "Three frames without a seek table; only two declare their size. An empty one follows.",
        ("S-CMP-3", "S-CMP-5"),
        Container((_zstd("rows", TEXT, frames + plain_frame(b"")),)),
    )
    skippable = skippable_frame(b"ignored", 0x184D2A5F)
    yield valid(
        "zstd_skippable_frames",
        "Skippable frames before, between and behind the frames; one of them is empty.",
        ("S-CMP-5",),
        Container(
            (
                _zstd("leading", TEXT, skippable + plain_frame(TEXT)),
                _zstd(
                    "between",
                    TEXT,
                    plain_frame(first) + skippable_frame(b"") + plain_frame(second + third),
                ),
                _zstd("trailing", TEXT, checked_frame(TEXT) + skippable),
            )
        ),
    )


def _seekable() -> Iterator[Valid]:
    parts = _parts(SEEKABLE)

    def entry(name: str, make_frame: Callable[[bytes], bytes], *, checksums: bool) -> Entry:
        frames = [make_frame(part) for part in parts]
        table = seek_table(seek_rows(frames, parts, checksums=checksums))
        return _zstd(name, SEEKABLE, b"".join(frames) + table)

    yield valid(
        "seekable_checksum_forms",
        "Checksums in the frames only, in the table only, and nowhere.",
        ("S-SEK-3", "S-SEK-4"),
        Container(
            (
                entry("frames", checked_frame, checksums=False),
                entry("table", plain_frame, checksums=True),
                entry("nowhere", plain_frame, checksums=False),
            )
        ),
    )
    uneven = [SEEKABLE[:10], SEEKABLE[10:5000], SEEKABLE[5000:]]
    frames = [checked_frame(uneven[0]), zstd_frame(raw_blocks(uneven[1])), plain_frame(uneven[2])]
    table = seek_table(seek_rows(frames, uneven), descriptor=SEEK_CHECKSUM_BIT | 0x03)
    yield valid(
        "seekable_uneven_frames",
        "Frames of different lengths, one without content size, and the unused descriptor bits.",
        ("S-SEK-1", "S-SEK-3"),
        Container((_zstd("rows", SEEKABLE, b"".join(frames) + table),)),
    )
    one = checked_frame(TEXT)
    rows = seek_rows([one], [TEXT])
    magic_at_end = TEXT + SEEK_FOOTER_MAGIC.to_bytes(4, "little")
    yield valid(
        "seekable_look_alikes",
        "A seekable entry of one frame, and two that only end like one: ordinary zstd entries.",
        ("S-SEK-2",),
        Container(
            (
                _zstd("one_frame", TEXT, one + seek_table(rows)),
                _zstd("count_huge", TEXT, one + seek_table(rows, count=0xFFFFFFFF)),
                _zstd("number_in_content", magic_at_end, plain_frame(magic_at_end)),
            )
        ),
    )


def codec_vectors() -> Iterator[Valid]:
    yield from _library_frames()
    yield from _hand_made()
    yield from _seekable()
