"""Videos for the vectors: packets that an encoder made once, and images made here."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

from _episode_draft import i64

if TYPE_CHECKING:
    from _episode_draft import Draft

KEYFRAME, HIDDEN = 1, 2

H264_HEAD = (
    "000000016764000aacd11e84000003000400000300f03c4894480000000168ebe24b22c0"  # parameter sets
)
H264: tuple[tuple[int, int, str], ...] = (
    (-1, KEYFRAME | HIDDEN, H264_HEAD + "00000001658884008f56ba1a4638e46c9a38ef7ea0674d"),
    (2, 0, "00000001419a26dd0408cfcc80"),
    (0, 0, "00000001019e42f212fff081"),
    (1, 0, "00000001019e44f212fff080"),
    (
        *(5, KEYFRAME),
        H264_HEAD + "00000001060601c4800000000141889302bf57b36fdfb90f8ded70a2d82cd1",
    ),
    (3, 0, "00000001019e68d484bff081"),
    (4, 0, "00000001019e6ad484bff081"),
)
"""Step, flags and packet. 16 x 16 pixels, by x264 with two B-frames and open groups of pictures, in Annex B form: the
frames 1 to 6 of a clip, so that the keyframe in front is hidden, and the steps 3 and 4 need that one."""


def png(height: int, width: int, values: bytes) -> bytes:
    """An image of 8-bit colours, or of 8-bit or 16-bit grey as the number of bytes says; not compressed."""
    per_pixel = len(values) // (height * width)
    colour, depth = {1: (0, 8), 2: (0, 16), 3: (2, 8)}[per_pixel]
    stride = width * per_pixel
    rows = b"".join(b"\0" + values[at : at + stride] for at in range(0, len(values), stride))
    deflated = b"\x78\x01\x01" + struct.pack("<HH", len(rows), len(rows) ^ 0xFFFF) + rows
    deflated += struct.pack(">I", zlib.adler32(rows))

    def chunk(kind: bytes, content: bytes) -> bytes:
        crc = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + crc

    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", deflated) + chunk(b"IEND", b"")
    )


def video_blocks(
    draft: Draft,
    block: str,
    packets: list[bytes],
    shape: tuple[int, ...],
    frames: list[tuple[int, int]] | None = None,
    *,
    dtype: str = "u8",
    **fields: object,
) -> Draft:
    """A video channel; `frames` has the step and the flags of each packet."""
    offsets = [0]
    for packet in packets:
        offsets.append(offsets[-1] + len(packet))
    named: dict[str, object] = {"layout": "video", "offsets_block": f"offsets/{block}"}
    if frames is not None:
        named["frames_block"] = f"frames/{block}"
    draft.add(block, b"".join(packets), dtype, shape, **(named | fields))
    draft.add(f"offsets/{block}", i64(*offsets))
    if frames is not None:
        draft.add(f"frames/{block}", i64(*(number for frame in frames for number in frame)))
    return draft
