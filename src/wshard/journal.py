"""The journal of a recording: frames that prove themselves (spec/journal.md)."""

from __future__ import annotations

import functools
import logging
import os
import struct
from enum import IntEnum
from functools import reduce
from operator import getitem, xor
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shard_format import Codec
from shard_format._atomic import write_all
from shard_format._crc import crc32c
from shard_format._json import check_length, parse_object
from shard_format._zstd import LARGEST_EXPANSION, iter_frames
from shard_format.codecs import decode, iter_decoded
from shard_format.errors import (
    BadCompression,
    ChecksumMismatch,
    Closed,
    FormatError,
    InvalidArgument,
    LimitExceeded,
    ShardError,
    ShardIOError,
    Truncated,
    UnsupportedVersion,
)
from shard_format.registry import DEFAULT_LIMITS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from typing_extensions import Self

    from shard_format.filters import Filters

_log = logging.getLogger("wshard")

PARTIAL_SUFFIX: Final = ".partial"
MAGIC: Final = b"WSJ1"
_HEAD = struct.Struct("<4sBBHIIIIQI")
_CHECKSUM = struct.Struct("<I")
HEAD_SIZE: Final = _HEAD.size + _CHECKSUM.size
LARGEST_RUN: Final = DEFAULT_LIMITS.max_decompressed_bytes
"""Bytes of one run, stored and decoded (J-FRM-9)."""
_VERSION = 1
_PIECE = 1 << 20
_READ_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_WRITE_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class Kind(IntEnum):
    """What a frame is."""

    START = 1
    RUN = 2
    NOTE = 3
    END = 4


_KINDS = {int(kind): kind for kind in Kind}
_CODECS = {int(codec): codec for codec in (Codec.NONE, Codec.ZSTD)}


class Part(NamedTuple):
    """The bytes of a frame: where they are, and what they must be."""

    codec: Codec
    offset: int
    """Where the stored bytes start in the journal."""
    stored_size: int
    content_size: int
    content_crc32c: int


class Frame(NamedTuple):
    """A frame that was found whole."""

    kind: Kind
    channel: int
    entries: int
    part: Part


class Problem(str):
    """What is wrong with a frame, in words; the rule that it breaks and the code of the registry ride along."""

    rule: str
    code: str

    def __new__(cls, text: str, rule: str, code: str) -> Self:
        problem = super().__new__(cls, text)
        problem.rule = rule
        problem.code = code
        return problem

    def __getnewargs__(self) -> tuple[str, str, str]:  # type: ignore[override] # str has the text alone
        return str(self), self.rule, self.code


_ERRORS = {error.code: error for error in FormatError.__subclasses__()}

# What is left for those who know the channels to find wrong: a start is theirs to raise.
_FOUND_BY_READERS = {
    Kind.START: ("J-STA-2", "bad_metadata"),
    Kind.RUN: ("J-RUN-3", "size_mismatch"),
    Kind.NOTE: ("J-NOT-1", "bad_metadata"),
    Kind.END: ("J-NOT-1", "bad_metadata"),
}


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
    """CRC-32C of a head, without giving up the interpreter.

    The compiled one lets other threads run meanwhile, and a thread that wants it back waits for milliseconds
    where the recording one is busy: far longer than this takes.
    """
    tables, zeros = _crc_tables()
    return reduce(xor, map(getitem, tables, head), zeros)


class JournalWriter:
    """Appends frames to a journal that nobody else writes.

    Owns: the file and its lock, which the system releases when the process dies.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.position = 0
        """Bytes in whole frames."""
        self._sequence = 0
        while True:
            try:
                self.descriptor = os.open(path, _WRITE_FLAGS, 0o666)
            except OSError as error:
                raise ShardIOError.wrap(error, "cannot record", path) from error
            if not _lock(self.descriptor, path):
                os.close(self.descriptor)
                raise InvalidArgument(
                    "somebody else is recording to this file",
                    path=path,
                    hint="one writer per file; open_partial follows a recording",
                )
            if _is_still_there(self.descriptor, path):
                break
            # Its recorder finished, and removed it, after we had opened it.
            os.close(self.descriptor)

    @property
    def old_size(self) -> int:
        """How many bytes of an earlier recording are there."""
        return os.fstat(self.descriptor).st_size

    def clear(self) -> None:
        """Forgets the earlier recording."""
        # Of a file that was cut to nothing some systems write all to the disk when it is closed, also when
        # it is removed at once, as a journal is when its episode is finished.
        if self.old_size:
            os.ftruncate(self.descriptor, 0)
        os.lseek(self.descriptor, 0, os.SEEK_SET)

    def head(
        self,
        kind: Kind,
        codec: Codec,
        channel: int,
        entries: int,
        sizes: tuple[int, int],
        checksums: tuple[int, int],
    ) -> bytes:
        """The head of the next frame; sizes and checksums of what is stored and of its content."""
        head = _HEAD.pack(
            *(MAGIC, kind, codec, channel, entries, *sizes),
            *(checksums[1], self._sequence, checksums[0]),
        )
        self._sequence += 1
        return head + _CHECKSUM.pack(_head_crc(head))

    def text_head(self, kind: Kind, text: bytes) -> bytes:
        """The head of a start, note or end frame."""
        size, checksum = len(text), crc32c(text)
        return self.head(kind, Codec.NONE, 0, 0, (size, size), (checksum, checksum))

    def append(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Appends heads and what they announce."""
        if self.descriptor < 0:
            raise Closed("the journal is closed", path=self.path)
        write_all(self.descriptor, pieces)
        self.position += sum(map(len, pieces))

    def append_text(self, kind: Kind, text: bytes) -> None:
        """Appends a start, note or end frame."""
        self.append([self.text_head(kind, text), text])

    def sync(self) -> None:
        """Makes sure that what was written survives a loss of power."""
        getattr(os, "fdatasync", os.fsync)(self.descriptor)

    def close(self) -> None:
        """Releases the file; the journal stays."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def remove(self) -> None:
        """Deletes the journal, while nobody else can have begun another under its name."""
        if os.name == "nt":  # which cannot delete open files
            self.close()
        if _is_still_there(self.descriptor, self.path):
            os.unlink(self.path)
        self.close()


def _is_still_there(descriptor: int, path: str) -> bool:
    """Whether the name still means the open file."""
    try:
        named = os.stat(path)
    except FileNotFoundError:
        return False
    return descriptor < 0 or os.path.samestat(named, os.fstat(descriptor))


def _lock(descriptor: int, path: str) -> bool:
    """Whether the exclusive lock was free."""
    try:
        import fcntl
    except ImportError:  # Windows: opening for writing is what keeps others out there
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        _log.warning("%s: this file system has no locks (%s); do not record twice", path, error)
    return True


class JournalReader:
    """The whole frames of a journal, also of one that is still being written.

    Memory is bounded by one frame of JSON, or a piece of a run; nothing is read that is not there.

    Owns: the file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.descriptor = -1
        try:
            self.descriptor = os.open(self.path, _READ_FLAGS)
        except OSError as error:
            raise ShardIOError.wrap(error, "cannot read", self.path) from error
        self.position = 0
        """Where the next frame is expected."""
        self.problem: Problem | None = None
        """Why reading stopped before the end of the file; None if it did not."""
        self._sequence = 0
        self._kind = Kind.START
        """Of the frame that was returned last."""
        self._codecs: dict[int, Codec] = {}
        """How the runs of each channel are stored."""
        self._channels = 0
        """How many channels the frames that count have named."""
        self._named = 0
        """How many more the frame that was returned last names."""
        self._is_ended = False

    @property
    def size(self) -> int:
        """Bytes in the file now."""
        return os.fstat(self.descriptor).st_size

    def frames(self, *, check: bool = True) -> Iterator[Frame]:
        """The frames that are whole by now and were not returned before (J-2).

        A frame counts when the next one is asked for: who cannot use it calls `refuse` and stops. Runs come only
        to those who have asked for the `fields` of the frames before, which name the channels (J-RUN-1).

        Args:
            check: False takes stored bytes at the word of their head, for a journal of one's own.
        """
        self._ensure_open()
        size = self.size
        self.problem = None
        while self.position < size:
            frame = self._next(size, check)
            if isinstance(frame, Problem):
                self.refuse(frame)
                return
            self._kind, self._named = frame.kind, 0
            yield frame
            if self.problem is not None:
                return
            self._count(frame)

    def refuse(self, problem: str) -> None:
        """Ends reading at the frame that was returned last: it does not count."""
        rule, code = _FOUND_BY_READERS[self._kind]
        if isinstance(problem, Problem):
            rule, code = problem.rule, problem.code
        text = f"at byte {self.position}: {problem} [{rule}, {code}]"
        self.problem = Problem(text, rule, code)

    def expect(self, channel: int, codec: Codec) -> None:
        """From now on the runs of a channel must be stored like this; those who know its filters say so."""
        self._codecs[channel] = codec

    def _next(self, size: int, check: bool) -> Frame | Problem:
        """The frame at the position, or the first rule that it breaks."""
        head = os.pread(self.descriptor, HEAD_SIZE, self.position)
        if len(head) < HEAD_SIZE:
            return Problem("the head of a frame is cut off", "J-FRM-1", "truncated")
        magic, kind, codec, *rest = _HEAD.unpack_from(head)
        if magic != MAGIC:
            return Problem("there is no frame", "J-FRM-2", "bad_magic")
        if _CHECKSUM.unpack_from(head, _HEAD.size)[0] != crc32c(head[: _HEAD.size]):
            return Problem("the head of a frame is damaged", "J-FRM-3", "checksum_mismatch")
        channel, entries, stored_size, content_size, content_crc, sequence, stored_crc = rest
        if kind not in _KINDS:
            return Problem(f"unknown kind {kind}", "J-FRM-4", "bad_header")
        if codec not in _CODECS or (codec and kind != Kind.RUN):
            return Problem(f"codec {codec} in a frame of kind {kind}", "J-FRM-5", "unknown_codec")
        if sequence != self._sequence:
            text = f"frame {sequence} where frame {self._sequence} was expected"
            return Problem(text, "J-FRM-6", "bad_header")
        offset = self.position + HEAD_SIZE
        part = Part(_CODECS[codec], offset, stored_size, content_size, content_crc)
        problem = _impossible(part, stored_crc)
        if problem is not None:
            return problem
        if offset + stored_size > size:
            return Problem("a frame is cut off", "J-FRM-11", "truncated")
        if check and self._stored_crc(part) != stored_crc:
            return Problem("the content of a frame is damaged", "J-FRM-12", "checksum_mismatch")
        frame = Frame(_KINDS[kind], channel, entries, part)
        return self._misplaced(frame) or frame

    def _misplaced(self, frame: Frame) -> Problem | None:
        """What is wrong with a frame after those before it."""
        if frame.kind is not Kind.START and not self._sequence:
            return Problem("the first frame is not a start frame", "J-ORD-1", "bad_profile")
        if frame.kind is Kind.START and self._sequence:
            return Problem("there is a second start frame", "J-ORD-2", "bad_profile")
        if self._is_ended:
            return Problem("there is a frame after the end", "J-ORD-3", "trailing_data")
        if frame.kind is Kind.RUN:
            number = frame.channel
            if number >= self._channels:
                text = f"a run of channel {number}, of which nothing is known"
                return Problem(text, "J-RUN-1", "bad_header")
            if self._codecs.get(number, frame.part.codec) is not frame.part.codec:
                text = f"a run of channel {number} is stored in another way than those before"
                return Problem(text, "J-RUN-2", "bad_header")
        return None

    def _count(self, frame: Frame) -> None:
        """Goes on to the next frame."""
        if frame.kind is Kind.RUN:
            self._codecs[frame.channel] = frame.part.codec
        self._channels += self._named
        self._is_ended = frame.kind is Kind.END
        self._sequence += 1
        self.position = frame.part.offset + frame.part.stored_size

    def _stored_crc(self, part: Part) -> int:
        checksum = 0
        for piece in self._iter_stored(part):
            checksum = crc32c(piece, checksum)
        return checksum

    def _iter_stored(self, part: Part) -> Iterator[bytes]:
        at, end = part.offset, part.offset + part.stored_size
        while at < end:
            piece = os.pread(self.descriptor, min(_PIECE, end - at), at)
            if not piece:
                raise Truncated(
                    "the journal lost its end", path=self.path, offset=at, rule="J-FRM-11"
                )
            yield piece
            at += len(piece)

    def check_content(self, part: Part, filters: Filters | None = None) -> Problem | None:
        """What is wrong with a run beyond its stored bytes: they must decode to what its head says."""
        if part.codec is Codec.NONE:
            return None
        rule = "J-RUN-4"
        try:
            stored = self.stored(part)
            whole = next(iter_frames(stored, DEFAULT_LIMITS), None)
            if whole is None or (whole.start, whole.stop) != (0, len(stored)):
                return Problem("a run is not one frame", rule, "bad_compression")
            if whole.content_size != part.content_size:
                return Problem("a run is not one frame of its size", rule, "size_mismatch")
            if not whole.has_checksum:
                return Problem("a run has no checksum of its own", rule, "bad_compression")
            checksum = 0
            if filters is not None:
                checksum = crc32c(_decoded(stored, part, filters))
            else:
                for piece in iter_decoded(Codec.ZSTD, stored, part.content_size, DEFAULT_LIMITS):
                    checksum = crc32c(piece, checksum)
        except ShardError as error:
            return Problem(error.problem, rule, error.code)
        if checksum != part.content_crc32c:
            return Problem("a run decodes to something else", rule, "checksum_mismatch")
        return None

    def stored(self, part: Part) -> bytes:
        """The stored bytes of a part."""
        self._ensure_open()
        return b"".join(self._iter_stored(part))

    def content(self, part: Part, filters: Filters | None = None) -> bytes | memoryview:
        """The decoded bytes of a frame, checked; `filters` are those of its channel."""
        try:
            content: bytes | memoryview = self.stored(part)
            if part.codec is Codec.ZSTD:
                content = _decoded(content, part, filters)
            if len(content) != part.content_size:
                raise BadCompression("a run is not as long as it says", rule="J-RUN-4")
            if crc32c(content) != part.content_crc32c:
                raise ChecksumMismatch("a run has changed since it was written", rule="J-RUN-4")
        except ShardError as error:
            error.offset = part.offset if error.offset is None else error.offset
            raise error.located(path=self.path) from None
        return content

    def fields(self, frame: Frame) -> dict[str, Any]:
        """The JSON object of a frame that is no run."""
        try:
            check_length(frame.part.content_size, "the frame", DEFAULT_LIMITS)
            fields = parse_object(
                bytes(self.content(frame.part)), "the frame", DEFAULT_LIMITS, rule="J-TXT-1"
            )
            version = fields.get("v")
            if frame.kind is Kind.START and (type(version) is not int or version != _VERSION):
                raise UnsupportedVersion(
                    "the start frame is of a version that we do not know",
                    expected=_VERSION,
                    found=repr(version)[:80],
                    rule="J-STA-1",
                )
        except ShardError as error:
            if isinstance(error, LimitExceeded):
                error.rule = "J-TXT-2"
            error.offset = frame.part.offset if error.offset is None else error.offset
            error.problem = Problem(error.problem, error.rule or "J-2", error.code)
            raise error.located(path=self.path) from None
        rows = fields.get("channels")
        self._named = len(rows) if isinstance(rows, list) else 0
        return fields

    def _ensure_open(self) -> None:
        if self.descriptor < 0:
            raise Closed("the journal is closed", path=self.path)

    def close(self) -> None:
        """Closes the file."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


def not_begun(reader: JournalReader, text: str) -> ShardError:
    """Why nothing can be read of a journal without a start frame (J-1)."""
    problem = reader.problem
    if problem is None:
        return InvalidArgument(text, path=reader.path, found="an empty file", rule="J-1")
    return _ERRORS[problem.code](text, path=reader.path, found=problem, rule=problem.rule)


def _decoded(stored: bytes | memoryview, part: Part, filters: Filters | None) -> bytes | memoryview:
    """The content of a compressed run."""
    content = decode(Codec.ZSTD, stored, part.content_size, DEFAULT_LIMITS)
    if filters is None:
        return content
    out = memoryview(bytearray(len(content)))
    filters.undo_into(content, out)
    return out


def _impossible(part: Part, stored_crc: int) -> Problem | None:
    """What is wrong with the sizes and checksums of a head, before anything behind it is read."""
    text = "the sizes in the head of a frame cannot be right"
    if part.codec is Codec.NONE:
        if part.stored_size != part.content_size:
            return Problem(text, "J-FRM-7", "size_mismatch")
        if part.content_crc32c != stored_crc:
            text = "the head of a frame has two checksums of the same bytes"
            return Problem(text, "J-FRM-8", "checksum_mismatch")
        return None
    if max(part.stored_size, part.content_size) > LARGEST_RUN:
        return Problem(text, "J-FRM-9", "limit_exceeded")
    if part.content_size > part.stored_size * LARGEST_EXPANSION:
        return Problem(text, "J-FRM-10", "size_mismatch")
    return None
