"""The records of MCAP files: messages one after the other, and any of them again."""

from __future__ import annotations

import struct
import zlib
from abc import ABC, abstractmethod
from bz2 import BZ2Decompressor
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import cramjam

from shard_format.codecs import check_sizes, decode
from shard_format.errors import (
    BadCompression,
    BadMagic,
    BadValue,
    ChecksumMismatch,
    LimitExceeded,
    ShardError,
    SizeMismatch,
    Truncated,
)
from shard_format.layout import Codec
from shard_format.registry import DEFAULT_LIMITS
from shard_format.sources import FileSource

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "MAGIC",
    "ChunkedFile",
    "McapFile",
    "McapSchema",
    "Message",
    "MessageFile",
    "Place",
    "decompress",
]

MAGIC: Final = b"\x89MCAP0\r\n"
_HEADER, _FOOTER, _SCHEMA, _CHANNEL, _MESSAGE, _CHUNK = 1, 2, 3, 4, 5, 6
_ATTACHMENT, _METADATA, _DATA_END = 9, 12, 15
_MESSAGE_HEAD: Final = struct.Struct("<HIQQ")
_RECORD_HEAD: Final = struct.Struct("<BQ")
# Pictures are read again after all messages were looked at, which is faster if their chunks are still there. At least two
# chunks stay: windows often cross the border of one.
_FEWEST_KEPT: Final = 2
_MOST_KEPT: Final = 128 << 20
_MOST_TIME: Final = (1 << 63) - 1

Place: TypeAlias = tuple[int, int, int]
"""Where the data of a message is: the offset of its chunk (0 without one), and start and end there or in the file."""
Message: TypeAlias = tuple[int, int, int, int, memoryview, Place]
"""Channel, sequence number, log time, publish time, data, place."""


class McapSchema(NamedTuple):
    """How the messages of a channel are described."""

    name: str
    encoding: str
    data: bytes


class Chunks:
    """Decompressed chunks of a file, of which the last are kept."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, memoryview] = OrderedDict()
        self._nbytes = 0

    def get(self, offset: int) -> memoryview | None:
        """The chunk at an offset, if it is still there."""
        return self._kept.get(offset)

    def put(self, offset: int, chunk: memoryview) -> memoryview:
        """Keeps a chunk, and forgets the oldest."""
        self._kept[offset] = chunk
        self._nbytes += len(chunk)
        while self._nbytes > _MOST_KEPT and len(self._kept) > _FEWEST_KEPT:
            self._nbytes -= len(self._kept.popitem(last=False)[1])
        return chunk


class MessageFile(ABC):
    """A file of messages. Gives them in the order of the file, and each of them again by its place."""

    path: str

    @abstractmethod
    def messages(self) -> Iterator[Message]:
        """All messages, as they come in the file."""

    @abstractmethod
    def data(self, place: Place) -> memoryview:
        """The data of a message."""

    @abstractmethod
    def close(self) -> None:
        """Closes the file."""


class ChunkedFile(MessageFile):
    """A file of messages that are collected in chunks, some of them compressed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._source = FileSource(path)
        self._size = self._source.size()
        self._file = self._source.view(0, self._size)
        self._chunks = Chunks()

    @abstractmethod
    def _chunk(self, offset: int) -> memoryview:
        """The content of the chunk whose record starts at an offset."""

    def data(self, place: Place) -> memoryview:
        chunk, start, stop = place
        if not chunk:
            return self._file[start:stop]
        content = self._chunks.get(chunk)
        if content is None:
            content = self._chunks.put(chunk, self._chunk(chunk))
        return content[start:stop]

    def close(self) -> None:
        self._source.close()

    def _cut(self, what: str, offset: int) -> Truncated:
        return Truncated(
            f"the file ends inside {what}",
            path=self.path,
            found=f"offset {offset} of {self._size}",
        )


class _Fields:
    """Takes the fields of one record, one after the other."""

    def __init__(self, content: memoryview) -> None:
        self._content = content
        self._at = 0

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "little")

    @property
    def is_at_end(self) -> bool:
        return self._at >= len(self._content)

    def text(self) -> str:
        return str(self.take(self.number(4)), "utf-8")

    def texts(self) -> dict[str, str]:
        inner = _Fields(self.take(self.number(4)))
        found = {}
        while not inner.is_at_end:
            key = inner.text()
            found[key] = inner.text()
        return found

    def take(self, count: int) -> memoryview:
        taken = self._content[self._at : self._at + count]
        if len(taken) != count:
            raise ValueError("a field is longer than its record")
        self._at += count
        return taken


class McapFile(ChunkedFile):
    """An MCAP file. Needs neither a summary nor indexes nor chunks."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        if bytes(self._file[:8]) != MAGIC:
            raise BadMagic("not an MCAP file", path=path, found=bytes(self._file[:8]))
        if self._size < 16 or bytes(self._file[-8:]) != MAGIC:
            raise Truncated(
                "the MCAP file has no end, as after a crash of the recorder",
                path=path,
                hint=f"recover it with the tool of MCAP: mcap recover {path} -o recovered.mcap",
            )
        self.profile = self.library = ""
        self.schemas: dict[int, McapSchema] = {}
        self.channels: dict[int, tuple[int, str, str, dict[str, str]]] = {}
        """By id: schema id, topic, message encoding, metadata."""
        self.metadata: list[dict[str, Any]] = []
        self.attachments: list[dict[str, Any]] = []
        self.unknown: set[int] = set()
        """Kinds of records that the specification of MCAP does not have."""

    def own_record(self, name: str) -> dict[str, str] | None:
        """What a metadata record says, wherever it is in the file; looks at the heads of records only."""
        at, end = 8, self._size - 8
        while at < end:
            op, start, stop = self._record(self._file, at, end)
            if op == _METADATA:
                fields = _Fields(self._file[start:stop])
                try:
                    if fields.text() == name:
                        return fields.texts()
                except ValueError:
                    pass  # `messages` reports it
            elif op in (_DATA_END, _FOOTER):
                return None
            at = stop
        return None

    def messages(self) -> Iterator[Message]:
        at, end = 8, self._size - 8
        while at < end:
            op, start, stop = self._record(self._file, at, end)
            if op == _MESSAGE:
                yield self._message(self._file, start, stop, 0)
            elif op == _CHUNK:
                content = self._chunks.put(at, self._chunk(at))
                yield from self._in_chunk(content, at)
            elif op in (_DATA_END, _FOOTER):
                return
            else:
                self._note(op, self._file[start:stop], at)
            at = stop
        raise self._cut("the data: no footer", at)

    def _in_chunk(self, content: memoryview, chunk: int) -> Iterator[Message]:
        at, end = 0, len(content)
        while at < end:
            op, start, stop = self._record(content, at, end)
            if op == _MESSAGE:
                yield self._message(content, start, stop, chunk)
            elif op in (_SCHEMA, _CHANNEL):
                self._note(op, content[start:stop], chunk)
            elif op > _DATA_END:
                self.unknown.add(op)
            at = stop

    def _record(self, content: memoryview, at: int, end: int) -> tuple[int, int, int]:
        """Kind, start and end of the content of the record at an offset."""
        if at + 9 > end:
            raise self._cut("a record", at)
        op, length = _RECORD_HEAD.unpack_from(content, at)
        if not op or length > end - at - 9:
            raise BadValue(
                "a record of the MCAP file is longer than what is left",
                path=self.path,
                expected=f"at most {end - at - 9} bytes",
                found=f"{length} bytes, kind {op}, offset {at}",
            )
        return op, at + 9, at + 9 + length

    def _message(self, content: memoryview, start: int, stop: int, chunk: int) -> Message:
        if stop - start < 22:
            raise BadValue("a message record is too short", path=self.path, found=stop - start)
        channel, sequence, log, publish = _MESSAGE_HEAD.unpack_from(content, start)
        if channel not in self.channels:
            raise BadValue(
                "a message belongs to a channel that the file does not describe before it",
                path=self.path,
                found=f"channel {channel}",
            )
        if log > _MOST_TIME or publish > _MOST_TIME:
            raise BadValue(
                "a time does not fit into 63 bits",
                path=self.path,
                entry=self.channels[channel][1],
                found=max(log, publish),
            )
        start += 22
        return channel, sequence, log, publish, content[start:stop], (chunk, start, stop)

    def _chunk(self, offset: int) -> memoryview:
        _, start, stop = self._record(self._file, offset, self._size - 8)
        try:
            fields = _Fields(self._file[start:stop])
            fields.take(16)
            size, crc, compression = fields.number(8), fields.number(4), fields.text()
            stored = fields.take(fields.number(8))
        except ValueError as error:
            raise BadValue(f"a damaged chunk: {error}", path=self.path) from None
        content = decompress(compression, stored, size, f"{self.path}, chunk at {offset}")
        if crc and zlib.crc32(content) != crc:
            raise ChecksumMismatch(
                "the checksum of a chunk does not match", path=self.path, found=f"offset {offset}"
            )
        return content

    def _note(self, op: int, content: memoryview, at: int) -> None:
        """Remembers what a record other than a message says."""
        fields = _Fields(content)
        if op > _DATA_END:
            self.unknown.add(op)
        try:
            if op == _HEADER:
                self.profile, self.library = fields.text(), fields.text()
            elif op == _SCHEMA:
                number, name, encoding = fields.number(2), fields.text(), fields.text()
                schema = McapSchema(name, encoding, bytes(fields.take(fields.number(4))))
                self._once(self.schemas, number, schema, "schema")
            elif op == _CHANNEL:
                number, schema_id = fields.number(2), fields.number(2)
                channel = (schema_id, fields.text(), fields.text(), fields.texts())
                if schema_id:
                    _ = self.schemas[schema_id]
                self._once(self.channels, number, channel, "channel")
            elif op == _METADATA:
                self.metadata.append({"name": fields.text(), "metadata": fields.texts()})
            elif op == _ATTACHMENT:
                log, create = fields.number(8), fields.number(8)
                name, media_type = fields.text(), fields.text()
                data = bytes(fields.take(fields.number(8)))
                crc = fields.number(4)
                if crc and zlib.crc32(content[:-4]) != crc:
                    raise ChecksumMismatch(
                        "the checksum of an attachment does not match", path=self.path, entry=name
                    )
                one = {"name": name, "media_type": media_type, "log_time": log}
                self.attachments.append({**one, "create_time": create, "data": data})
        except KeyError as error:
            raise BadValue(
                "a channel has a schema that the file does not describe before it",
                path=self.path,
                found=f"schema {error}",
            ) from None
        except ValueError as error:
            raise BadValue(
                f"a damaged record of the MCAP file: {error}",
                path=self.path,
                found=f"kind {op}, offset {at}",
            ) from None

    @staticmethod
    def _once(table: dict[int, Any], number: int, value: object, what: str) -> None:
        if table.setdefault(number, value) != value:
            raise ValueError(f"{what} {number} is described twice, differently")


def decompress(compression: str, stored: memoryview, size: int, name: str) -> memoryview:
    """The content of a compressed chunk, exactly `size` bytes: what a small chunk claims is checked first."""
    try:
        if compression in ("", "none"):
            if len(stored) != size:
                raise SizeMismatch(
                    "a chunk has a different size than it states", expected=size, found=len(stored)
                )
            return stored
        if compression == "zstd":
            check_sizes(Codec.ZSTD, len(stored), size, DEFAULT_LIMITS)
            return memoryview(decode(Codec.ZSTD, stored, size, DEFAULT_LIMITS))
        if compression == "lz4":
            # With the head of a frame in front, unlike our own entries.
            check_sizes(Codec.LZ4, len(stored), size, DEFAULT_LIMITS)
            out = bytearray(size)
            count = cramjam.lz4.decompress_into(stored, out)
        elif compression == "bz2":
            if size > DEFAULT_LIMITS.max_decompressed_bytes:
                raise LimitExceeded("a chunk is too large to decompress", found=size)
            out = bytearray(BZ2Decompressor().decompress(stored, size + 1))
            count = len(out)
        else:
            raise BadCompression(
                "unknown compression of a chunk",
                expected="zstd, lz4, bz2 or none",
                found=compression,
            )
        if count != size:
            raise SizeMismatch(
                "a chunk has a different size than it states", expected=size, found=count
            )
        return memoryview(out)
    except ShardError as error:
        raise error.located(path=name) from None
    except (cramjam.DecompressionError, OSError, ValueError) as error:
        raise BadCompression(f"{compression} cannot decode a chunk: {error}", path=name) from None
