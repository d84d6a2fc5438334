"""The journal of a recording: frames, each with its own checksums (spec/journal.md, sections 2 to 4)."""

from __future__ import annotations

import functools
import os
import stat
import struct
from enum import IntEnum
from functools import reduce
from operator import getitem, xor
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shard_format import Codec
from shard_format.atomic import is_still_named, make_parent, sync_folder, take_lock, write_all
from shard_format.canonical_json import canonical, check_length, parse_object
from shard_format.codecs import LARGEST_EXPANSION, check_whole_frame, crc32c, decode, iter_decoded
from shard_format.errors import (
    DATA_ERRORS,
    BadCompression,
    BadHeader,
    BadMagic,
    BadProfile,
    ChecksumMismatch,
    Closed,
    InvalidArgument,
    LimitExceeded,
    ShardError,
    ShardIOError,
    SizeMismatch,
    TrailingData,
    Truncated,
    UnknownCodec,
    UnsupportedVersion,
)
from shard_format.registry import DEFAULT_LIMITS
from shard_format.sources import OpenFile
from shard_format.writer import StoredRun

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shard_format.filters import Filters

PARTIAL_SUFFIX: Final = ".partial"
MAGIC: Final = b"WSJ1"
_HEAD: Final = struct.Struct("<4sBBHIIIIQI")
_CHECKSUM: Final = struct.Struct("<I")
HEAD_SIZE: Final = _HEAD.size + _CHECKSUM.size
LARGEST_RUN: Final = DEFAULT_LIMITS.max_decompressed_bytes
"""The most bytes of one run, stored and decoded (J-FRM-9)."""
_VERSION: Final = 1
_PIECE_BYTES: Final = 1 << 20
_COMMON_FLAGS: Final = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_WRITE_FLAGS: Final = os.O_RDWR | os.O_CREAT | _COMMON_FLAGS


class FrameKind(IntEnum):
    """What a frame holds."""

    START = 1
    RUN = 2
    NOTE = 3
    END = 4


_KINDS = {int(kind): kind for kind in FrameKind}
_CODECS = {int(codec): codec for codec in (Codec.NONE, Codec.ZSTD)}


class JournalFrame(NamedTuple):
    """A complete frame."""

    kind: FrameKind
    codec: Codec
    channel: int
    entries: int
    body: StoredRun
    """The bytes behind the head: where they are, and what they must decode to."""


# --- writing


class JournalWriter:
    """Appends frames to a journal. Only one writer can have a journal open.

    Owns: the file and its lock, which the system releases when the process dies.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.position = 0
        """Bytes in complete frames."""
        self._sequence = 0
        while True:
            try:
                make_parent(path)
                self.descriptor = os.open(path, _WRITE_FLAGS, 0o666)
            except OSError as error:
                raise ShardIOError.wrap(error, "cannot record", path) from error
            if not stat.S_ISREG(os.fstat(self.descriptor).st_mode):  # a pipe would fill up
                os.close(self.descriptor)
                raise InvalidArgument("cannot record: not a regular file", path=path)
            if not take_lock(self.descriptor, path):
                os.close(self.descriptor)
                raise InvalidArgument(
                    "another writer is recording to this file",
                    path=path,
                    hint="use one writer per file, and open_partial to follow a recording",
                )
            if is_still_named(self.descriptor, path):
                break
            # The other writer finished, and removed the file after we had opened it.
            os.close(self.descriptor)

    @property
    def is_open(self) -> bool:
        """False after `close`, and in a forked child."""
        return self.descriptor >= 0

    @property
    def old_size(self) -> int:
        """Bytes that an earlier recording has left in the file."""
        return os.fstat(self.descriptor).st_size

    def clear(self) -> None:
        """Removes what an earlier recording has left."""
        # Only if needed: some file systems write out everything when a truncated file is closed or removed.
        if self.old_size:
            os.ftruncate(self.descriptor, 0)
        os.lseek(self.descriptor, 0, os.SEEK_SET)

    def head(
        self,
        kind: FrameKind,
        codec: Codec = Codec.NONE,
        channel: int = 0,
        entries: int = 0,
        *,
        sizes: tuple[int, int],
        checksums: tuple[int, int],
    ) -> bytes:
        """The head of the next frame; `sizes` and `checksums` are those of the stored bytes and of the content."""
        stored_crc, content_crc = checksums
        head = _HEAD.pack(
            *(MAGIC, kind, codec, channel, entries, *sizes),
            *(content_crc, self._sequence, stored_crc),
        )
        self._sequence += 1
        return head + _CHECKSUM.pack(_head_crc(head))

    def text_frame(self, kind: FrameKind, fields: Mapping[str, Any]) -> list[bytes]:
        """A start, note or end frame."""
        text = canonical(fields)
        size, checksum = len(text), crc32c(text)
        return [self.head(kind, sizes=(size, size), checksums=(checksum, checksum)), text]

    def append(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Appends heads, each followed by the bytes that it announces."""
        if not self.is_open:
            raise Closed("the journal is closed", path=self.path)
        write_all(self.descriptor, pieces)
        self.position += sum(map(len, pieces))

    def sync(self) -> None:
        """Waits until the disk has everything that was written."""
        getattr(os, "fdatasync", os.fsync)(self.descriptor)

    def sync_with_name(self) -> None:
        """As `sync`, for a new journal: its name must survive a loss of power too."""
        self.sync()
        sync_folder(os.path.dirname(os.path.realpath(self.path)))

    def close(self) -> None:
        """Releases the file. The journal stays on disk."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def remove(self) -> None:
        """Deletes the journal while the lock keeps others from starting a new one under its name."""
        if os.name == "nt":  # Windows cannot delete open files
            self.close()
        if is_still_named(self.descriptor, self.path):
            os.unlink(self.path)
        self.close()


@functools.cache
def _crc_tables() -> tuple[list[list[int]], int]:
    """What each value of each byte of a head adds to its checksum, and the checksum of zeros."""
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ 0x82F63B78 if byte & 1 else byte >> 1
        table.append(byte)
    tables = [table]
    for _ in range(_HEAD.size - 1):
        tables.append([table[crc & 0xFF] ^ (crc >> 8) for crc in tables[-1]])
    return tables[::-1], crc32c(bytes(_HEAD.size))


def _head_crc(head: bytes) -> int:
    """CRC-32C of a head, computed without releasing the GIL.

    The compiled function releases it, and the writing thread then waits up to 5 ms to get it back from a busy
    recording thread: for each frame.
    """
    tables, zeros = _crc_tables()
    return reduce(xor, map(getitem, tables, head), zeros)


# --- reading


class JournalReader:
    """Reads the complete frames of a journal, also of one that is still being written.

    Memory is bounded by one frame of JSON, or a piece of a run.

    Owns: the file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._file: OpenFile | None = OpenFile.at(self.path)
        self.position = 0
        """Where the next frame is expected."""
        self.error: ShardError | None = None
        """The rule that stopped reading before the end of the file; None if none did."""
        self._sequence = 0
        self._is_ended = False

    @property
    def file(self) -> OpenFile:
        """The open file. Whoever reads holds it meanwhile: another thread may close the reader."""
        file = self._file
        if file is None:
            raise Closed("the journal is closed", path=self.path)
        return file

    @property
    def size(self) -> int:
        """Bytes in the file now."""
        return self.file.size()

    def _read(self, length: int, offset: int) -> bytes:
        try:
            return self.file.read(length, offset)
        except OSError as error:
            raise ShardIOError.wrap(error, "cannot read", self.path) from error

    def frames(self, *, check: bool = True) -> Iterator[JournalFrame]:
        """Yields the frames that are complete by now and were not yielded before (J-2).

        A frame counts when you ask for the next one. If you cannot use it, call `reject` and stop.

        Args:
            check: False skips the checksums of stored bytes, for a journal that this process has written.
        """
        size = self.size
        self.error = None
        while self.position < size:
            try:
                frame = self._next(size, check)
            except DATA_ERRORS as error:
                self.reject(error)
                return
            yield frame
            if self.error is not None:
                return
            self._is_ended = frame.kind is FrameKind.END
            self._sequence += 1
            self.position = frame.body.offset + frame.body.stored_size

    def reject(self, error: ShardError) -> None:
        """Stops reading before the frame that was yielded last, which breaks a rule."""
        error.path, error.offset = self.path, self.position
        self.error = error.with_traceback(None)  # which would keep the file open

    def _next(self, size: int, check: bool) -> JournalFrame:
        """The frame at the position; raises for the first rule that it breaks."""
        head = self._read(HEAD_SIZE, self.position)
        if len(head) < HEAD_SIZE:
            raise Truncated("the head of a frame is cut off", rule="J-FRM-1")
        magic, kind, codec, channel, entries, *rest = _HEAD.unpack_from(head)
        if magic != MAGIC:
            raise BadMagic("no frame starts here", rule="J-FRM-2")
        if _CHECKSUM.unpack_from(head, _HEAD.size)[0] != crc32c(head[: _HEAD.size]):
            raise ChecksumMismatch("the head of a frame is damaged", rule="J-FRM-3")
        stored_size, content_size, content_crc, sequence, stored_crc = rest
        if kind not in _KINDS:
            raise BadHeader(f"a frame has the unknown kind {kind}", rule="J-FRM-4")
        if codec not in _CODECS or (codec and kind != FrameKind.RUN):
            raise UnknownCodec(f"a frame of kind {kind} has codec {codec}", rule="J-FRM-5")
        if sequence != self._sequence:
            text = f"frame {sequence} where frame {self._sequence} was expected"
            raise BadHeader(text, rule="J-FRM-6")
        offset = self.position + HEAD_SIZE
        body = StoredRun(self.file, offset, stored_size, content_size, content_crc)
        _check_sizes(_CODECS[codec], body, stored_crc)
        if offset + stored_size > size:
            raise Truncated("a frame is cut off", rule="J-FRM-11")
        if check and self._stored_crc(body) != stored_crc:
            raise ChecksumMismatch("the stored bytes of a frame are damaged", rule="J-FRM-12")
        self._check_order(_KINDS[kind])
        return JournalFrame(_KINDS[kind], _CODECS[codec], channel, entries, body)

    def _check_order(self, kind: FrameKind) -> None:
        is_first = self._sequence == 0
        if is_first and kind is not FrameKind.START:
            raise BadProfile("the first frame is not a start frame", rule="J-ORD-1")
        if not is_first and kind is FrameKind.START:
            raise BadProfile("there is a second start frame", rule="J-ORD-2")
        if self._is_ended:
            raise TrailingData("there is a frame after the end", rule="J-ORD-3")

    def _stored_crc(self, body: StoredRun) -> int:
        checksum = 0
        for piece in self._iter_stored(body):
            checksum = crc32c(piece, checksum)
        return checksum

    def _iter_stored(self, body: StoredRun) -> Iterator[bytes]:
        return self._iter_range(body.offset, body.offset + body.stored_size)

    def _iter_range(self, at: int, end: int) -> Iterator[bytes]:
        while at < end:
            piece = self._read(min(_PIECE_BYTES, end - at), at)
            if not piece:
                raise Truncated(
                    "the journal has become shorter", path=self.path, offset=at, rule="J-FRM-11"
                )
            yield piece
            at += len(piece)

    def part(self, body: StoredRun, start: int, size: int) -> bytes:
        """Some of the stored bytes of a frame."""
        first = body.offset + start
        return b"".join(self._iter_range(first, first + size))

    def _stored(self, body: StoredRun) -> bytes:
        return b"".join(self._iter_stored(body))

    def check_content(self, frame: JournalFrame, filters: Filters | None) -> None:
        """Raises unless the stored bytes of a run decode to what its head says (J-RUN-4); in little memory."""
        if frame.codec is Codec.NONE:
            return
        body = frame.body
        try:
            stored = self._stored(body)
            check_whole_frame(stored, body.content_size, DEFAULT_LIMITS)
            if filters is not None:  # such runs are small (J-RUN-3)
                self.content(frame.codec, body, filters)
                return
            checksum = 0
            for piece in iter_decoded(Codec.ZSTD, stored, body.content_size, DEFAULT_LIMITS):
                checksum = crc32c(piece, checksum)
            if checksum != body.content_crc32c:
                raise ChecksumMismatch("a run decodes to other bytes")
        except DATA_ERRORS as error:
            error.rule = "J-RUN-4"
            raise

    def content(
        self, codec: Codec, body: StoredRun, filters: Filters | None = None
    ) -> bytes | memoryview:
        """Reads, decodes and checks the bytes of a frame; `filters` are those of its channel."""
        try:
            content: bytes | memoryview = self._stored(body)
            if codec is Codec.ZSTD:
                content = decode(Codec.ZSTD, content, body.content_size, DEFAULT_LIMITS)
                if filters is not None:
                    filtered, content = content, memoryview(bytearray(len(content)))
                    filters.undo_into(filtered, content)
            if len(content) != body.content_size:
                raise BadCompression("a run is not as long as its head says", rule="J-RUN-4")
            if crc32c(content) != body.content_crc32c:
                raise ChecksumMismatch("a run has changed since it was written", rule="J-RUN-4")
        except ShardError as error:
            error.offset = body.offset if error.offset is None else error.offset
            raise error.located(path=self.path) from None
        return content

    def fields(self, frame: JournalFrame) -> dict[str, Any]:
        """The JSON object of a start, note or end frame."""
        try:
            check_length(frame.body.content_size, "the frame", DEFAULT_LIMITS)
            text = bytes(self.content(Codec.NONE, frame.body))
            fields = parse_object(text, "the frame", DEFAULT_LIMITS, rule="J-TXT-1")
            version = fields.get("v")
            if frame.kind is FrameKind.START and (type(version) is not int or version != _VERSION):
                raise UnsupportedVersion(
                    "the journal has an unknown version",
                    expected=_VERSION,
                    found=repr(version)[:80],
                    rule="J-STA-1",
                )
        except ShardError as error:
            if isinstance(error, LimitExceeded):
                error.rule, error.hint = "J-TXT-2", None
            error.offset = frame.body.offset if error.offset is None else error.offset
            raise error.located(path=self.path) from None
        return fields

    def not_begun(self, text: str) -> ShardError:
        """The error for a journal without a start frame (J-1), from which nothing can be read."""
        if self.error is None:
            return InvalidArgument(text, path=self.path, found="an empty file", rule="J-1")
        return type(self.error)(
            text, path=self.path, found=reason(self.error), rule=self.error.rule
        )

    def close(self) -> None:
        """Closes the file, as soon as no other thread reads it."""
        self._file = None


def reason(error: ShardError) -> str:
    """Why reading stopped at a frame, in one line without the file."""
    place = "" if error.offset is None else f"at byte {error.offset}: "
    return f"{place}{error.problem} [{error.rule}, {error.code}]"


def _check_sizes(codec: Codec, body: StoredRun, stored_crc: int) -> None:
    """Raises for sizes and checksums that cannot be right, before the bytes behind the head are read."""
    if codec is Codec.NONE:
        if body.stored_size != body.content_size:
            raise SizeMismatch("a raw frame has two different sizes", rule="J-FRM-7")
        if body.content_crc32c != stored_crc:
            raise ChecksumMismatch("a raw frame has two different checksums", rule="J-FRM-8")
        return
    if max(body.stored_size, body.content_size) > LARGEST_RUN:
        raise LimitExceeded("a run is too large", rule="J-FRM-9")
    if body.content_size > body.stored_size * LARGEST_EXPANSION:
        raise SizeMismatch("a run cannot decode to the stated size", rule="J-FRM-10")
