"""zstd, by the package `zstandard`, or by the standard library on Pythons for which that package has no wheel.

`zstandard` decodes into memory of the caller and is used if it is installed. Python 3.14 and newer bring zstd
themselves (`compression.zstd`); `backports.zstd` is the same module for older versions. Everything that compresses or
decompresses zstd does it through the functions here, and the vectors hold for both.
"""

from __future__ import annotations

import io
import threading
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from shard_format.cache import Pool

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import BinaryIO

_HAS_PACKAGE: Final = find_spec("zstandard") is not None
if _HAS_PACKAGE:
    import zstandard
else:
    try:
        from compression import zstd as _standard  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        try:
            from backports import zstd as _standard  # type: ignore[import-not-found, unused-ignore]
        except ImportError as error:
            raise ImportError(
                "no zstd for this Python: install the package zstandard or backports.zstd"
            ) from error

__all__ = [
    "ZstdError",
    "compress_blocks",
    "compress_frame",
    "compressing_stream",
    "decode_into",
    "open_reader",
]

ZstdError: type[Exception] = zstandard.ZstdError if _HAS_PACKAGE else _standard.ZstdError
"""Damaged data. Truncated data raises `EOFError`, or gives less than expected."""

_DEFAULT_LEVEL: Final = 3


class FrameReader(Protocol):
    """Reads the content of compressed bytes, across frames."""

    def read(self, size: int, /) -> bytes: ...


class Compressor(Protocol):
    """Compresses one frame in pieces."""

    def compress(self, data: bytes | memoryview, /) -> bytes: ...

    def flush(self) -> bytes: ...


class _Contexts(threading.local):
    """Compressors by their options: costly to make, and not safe to share."""

    def __init__(self) -> None:
        self.by_options: dict[tuple[int, bool, int | None], Any] = {}

    def get(self, level: int, checksum: bool, shortest_match: int | None = None) -> Any:  # noqa: ANN401 - of either library
        key = (level, checksum, shortest_match)
        context = self.by_options.get(key)
        if context is None:
            context = self.by_options[key] = _new_context(level, checksum, shortest_match)
        return context


_contexts = _Contexts()

if _HAS_PACKAGE:
    # A decompressor works on one frame at a time: a second reader would take it away from the first.
    _decompressors = Pool(zstandard.ZstdDecompressor, keep=16)

    def decode_into(stored: memoryview, out: memoryview) -> int:
        """Decodes frames to the start of `out`. Returns how many bytes came out, or one more than fit if there are more."""
        decompressor = _decompressors.take()
        # Across frames: bytes after the end of the first must not go unnoticed.
        reader = decompressor.stream_reader(stored, read_across_frames=True)
        try:
            count = 0
            while count < len(out):
                more = reader.readinto(out[count:] if count else out)
                if more == 0:
                    break
                count += more
            # Forces the decoder past the last block, to the checksum.
            return count + len(reader.read(1))
        finally:
            _decompressors.give_back(decompressor)

    def open_reader(source: bytes | memoryview | BinaryIO) -> FrameReader:
        """Reads the content of frames, in bytes or a file, piece by piece. Frames may ask for a window of up to 128 MiB."""
        return zstandard.ZstdDecompressor().stream_reader(source, read_across_frames=True)

    def _new_context(level: int, checksum: bool, shortest_match: int | None) -> Any:  # noqa: ANN401
        if shortest_match is None:
            return zstandard.ZstdCompressor(level=level, write_checksum=checksum)
        parameters = zstandard.ZstdCompressionParameters.from_level(
            level, min_match=shortest_match, write_checksum=checksum, write_content_size=True
        )
        return zstandard.ZstdCompressor(compression_params=parameters)

    def compress_frame(data: bytes | memoryview, level: int, *, checksum: bool) -> bytes:
        """One frame that states the size of its content."""
        return bytes(_contexts.get(level, checksum).compress(data))

    def compress_blocks(
        parts: Sequence[memoryview], level: int, *, shortest_match: int | None = None
    ) -> bytes:
        """One frame with content size and checksum, in which each part starts a new block."""
        context = _contexts.get(level, True, shortest_match)
        stream = context.compressobj(size=sum(map(len, parts)))
        pieces: list[bytes] = []
        for number, part in enumerate(parts):
            if number:
                pieces.append(stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK))
            pieces.append(stream.compress(part))
        pieces.append(stream.flush())
        return b"".join(pieces)

    def compressing_stream(level: int = _DEFAULT_LEVEL, *, checksum: bool = False) -> Compressor:
        """Compresses one frame whose size is not known yet."""
        return zstandard.ZstdCompressor(level=level, write_checksum=checksum).compressobj()

else:
    _Parameter = _standard.CompressionParameter

    def decode_into(stored: memoryview, out: memoryview) -> int:
        count = 0
        rest: bytes | memoryview = stored
        while len(rest):
            decompressor = _standard.ZstdDecompressor()
            content = decompressor.decompress(rest, len(out) - count + 1)
            if len(content) > len(out) - count:
                return len(out) + 1
            out[count : count + len(content)] = content
            count += len(content)
            rest = decompressor.unused_data  # empty, too, if the frame is incomplete
        return count

    def open_reader(source: bytes | memoryview | BinaryIO) -> FrameReader:
        return cast(
            "FrameReader",
            _standard.ZstdFile(source if hasattr(source, "read") else io.BytesIO(source)),
        )

    def _new_context(level: int, checksum: bool, shortest_match: int | None) -> Any:  # noqa: ANN401
        options = {_Parameter.compression_level: level, _Parameter.checksum_flag: int(checksum)}
        if shortest_match is not None:
            options[_Parameter.min_match] = shortest_match
        return _standard.ZstdCompressor(options=options)

    def compress_frame(data: bytes | memoryview, level: int, *, checksum: bool) -> bytes:
        context = _contexts.get(level, checksum)
        return bytes(context.compress(data, context.FLUSH_FRAME))

    def compress_blocks(
        parts: Sequence[memoryview], level: int, *, shortest_match: int | None = None
    ) -> bytes:
        # Its own: what an interrupt leaves unfinished would become a part of the next frame.
        stream = _new_context(level, True, shortest_match)
        stream.set_pledged_input_size(sum(map(len, parts)))
        pieces = [stream.compress(part, stream.FLUSH_BLOCK) for part in parts[:-1]]
        pieces += [stream.compress(part, stream.FLUSH_FRAME) for part in parts[-1:]]
        return b"".join(pieces)

    def compressing_stream(level: int = _DEFAULT_LEVEL, *, checksum: bool = False) -> Compressor:
        return cast("Compressor", _new_context(level, checksum, None))
