"""The only module that touches the zstd library."""

from __future__ import annotations

import zstandard

VERSIONS = {
    "zstandard": zstandard.__version__,
    "zstd": ".".join(map(str, zstandard.ZSTD_VERSION)),
}


def library_frame(content: bytes, *, content_size: bool = True, checksum: bool = False) -> bytes:
    """A frame of the library; its bytes may differ between versions."""
    compressor = zstandard.ZstdCompressor(
        level=3, write_content_size=content_size, write_checksum=checksum
    )
    return compressor.compress(content)


def decode_frame(frame: bytes, limit: int, max_window: int) -> bytes:
    """The first `limit` bytes of a frame's content.

    Raises:
        ValueError: The frame is damaged; the message is the library's.
    """
    decompressor = zstandard.ZstdDecompressor(max_window_size=max_window)
    try:
        with decompressor.stream_reader(frame) as reader:
            return reader.read(limit)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error
