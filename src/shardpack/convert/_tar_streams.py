"""Tar files as streams of bytes: opened, decompressed by what their first bytes say, and written."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import zlib
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

import zstandard

from shard_format._atomic import AtomicFile, write_all
from shard_format.errors import BadCompression, InvalidArgument, ShardIOError, Truncated

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_BZIP2: Final = b"BZh"
_XZ: Final = b"\xfd7zXZ\0"
_LARGEST_WINDOW: Final = 128 << 20
# zlib's window bits for a gzip wrapper, which has neither a name nor a time.
_GZIP_WRAPPER: Final = 31
# Members wait until there is so much to write at once.
_BATCH_BYTES: Final = 1 << 20
_BATCH_PIECES: Final = 1000


class _WithStart:
    """A stream whose first bytes were looked at."""

    def __init__(self, start: bytes, file: BinaryIO) -> None:
        self._start = start
        self._file = file

    def read(self, size: int = -1) -> bytes:
        if self._start:
            piece = self._start if size < 0 else self._start[:size]
            self._start = self._start[len(piece) :]
            return piece
        return self._file.read(size)


class TarInput:
    """The bytes of a tar file, whatever it is compressed with.

    Owns: the file, if it opened it.

    Args:
        source: a path, or anything with `read`, such as a pipe.
    """

    def __init__(self, source: str | os.PathLike[str] | BinaryIO) -> None:
        self._own: BinaryIO | None = None
        if isinstance(source, (str, os.PathLike)):
            self.name = os.fspath(source)
            try:
                self._own = open(self.name, "rb")  # noqa: SIM115 - closed by `__exit__`
            except OSError as error:
                raise ShardIOError.wrap(error, "cannot open", self.name) from error
            file: BinaryIO = self._own
        elif hasattr(source, "read"):
            self.name = str(getattr(source, "name", f"<{type(source).__name__}>"))
            file = source
        else:
            raise InvalidArgument(
                "cannot read from this object",
                expected="a path or a binary file",
                found=type(source).__name__,
            )
        start = file.read(len(_XZ))
        while start and len(start) < len(_XZ) and (more := file.read(len(_XZ) - len(start))):
            start += more
        self._stream: Any = _decompressed(start, cast("BinaryIO", _WithStart(start, file)))

    def read(self, size: int) -> bytes:
        """Up to so many bytes, none at the end."""
        try:
            return cast("bytes", self._stream.read(size))
        except EOFError as error:
            raise Truncated(
                f"the compressed file has lost its end: {error}", path=self.name
            ) from None
        except (gzip.BadGzipFile, zlib.error, zstandard.ZstdError, lzma.LZMAError) as error:
            raise BadCompression(f"cannot decompress: {error}", path=self.name) from None
        except OSError as error:
            if error.errno is None:  # what bz2 raises for damaged data
                raise BadCompression(f"cannot decompress: {error}", path=self.name) from None
            raise ShardIOError.wrap(error, "cannot read", self.name) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._own is not None:
            self._own.close()


def _decompressed(start: bytes, file: BinaryIO) -> Any:  # noqa: ANN401 - anything with read
    if start.startswith(_GZIP):
        return gzip.GzipFile(fileobj=file, mode="rb")
    if start.startswith(_ZSTD):
        decompressor = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW)
        return decompressor.stream_reader(file, read_across_frames=True)
    if start.startswith(_BZIP2):
        return bz2.BZ2File(file)
    if start.startswith(_XZ):
        return lzma.LZMAFile(file)
    return file


class TarOutput:
    """Where a tar file goes: a path, at which it appears when it is complete, or an open file.

    Args:
        target: compressed if the path ends in `.gz`, `.tgz` or `.zst`.
        fsync: whether a file is synced to disk.
    """

    def __init__(self, target: str | os.PathLike[str] | BinaryIO, *, fsync: bool) -> None:
        self._file: AtomicFile | None = None
        self._stream: BinaryIO | None = None
        self.size = 0
        """Bytes that were written, before compression."""
        self._pending: list[bytes | memoryview] = []
        self._waiting = 0
        if isinstance(target, (str, os.PathLike)):
            self.name = os.fspath(target)
            self._compressor = _compressor(self.name)
            self._file = AtomicFile(self.name, fsync=fsync)
        else:
            self.name = str(getattr(target, "name", f"<{type(target).__name__}>"))
            self._compressor = None
            self._stream = target

    def write(self, *pieces: bytes | memoryview) -> None:
        """Appends bytes; a view of a mapped file goes to the system as it is."""
        for piece in pieces:
            length = len(piece)
            self.size += length
            self._waiting += length
            self._pending.append(
                piece if self._compressor is None else self._compressor.compress(piece)
            )
        if self._waiting >= _BATCH_BYTES or len(self._pending) >= _BATCH_PIECES:
            self._flush()

    def _flush(self) -> None:
        pieces, self._pending, self._waiting = self._pending, [], 0
        try:
            if self._file is not None:
                write_all(self._file.descriptor, pieces)
            else:
                assert self._stream is not None
                for piece in pieces:
                    self._stream.write(piece)
        except OSError as error:
            raise ShardIOError.wrap(error, "cannot write", self.name) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                if self._compressor is not None:
                    self._pending.append(self._compressor.flush())
                self._flush()
                if self._file is not None:
                    self._file.commit()
                else:
                    assert self._stream is not None
                    self._stream.flush()
        finally:
            if self._file is not None:
                self._file.abort()


def _compressor(name: str) -> Any:  # noqa: ANN401 - one of two libraries
    lower = name.lower()
    if lower.endswith((".gz", ".tgz")):
        return zlib.compressobj(6, zlib.DEFLATED, _GZIP_WRAPPER)
    if lower.endswith((".zst", ".tzst")):
        return zstandard.ZstdCompressor(write_checksum=True).compressobj()
    return None
