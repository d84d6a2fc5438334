"""From what a caller writes to the bytes of a record, for any shard with the same options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shard_format._input import check_decompressed_size
from shard_format._json import canonical
from shard_format.codecs import crc32c
from shard_format.errors import InvalidArgument, LimitExceeded, ShardError, shorten
from shard_format.registry import DEFAULT_LIMITS, Limits
from shardpack import _msgpack
from shardpack._kinds import encode_text, make_kinds
from shardpack._layout import (
    ALIGNMENTS,
    CHECKSUM,
    LARGEST_HEAD,
    LARGEST_RECORD_METADATA,
    LONGEST_KEY,
    RECORD_HEAD,
    MetadataEncoding,
    record_tag,
)
from shardpack._shapes import Shapes
from shardpack.encodings import NO_COMPRESSION, EntryCompression, encode
from shardpack.values import to_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shardpack._kinds import Kinds
    from shardpack.record import StoredEntry

_ZEROS: Final = tuple(bytes(count) for count in range(64))
_EMPTY_METADATA: Final = (b"{}", b"\x80")
_ENCODINGS: Final = {"json": MetadataEncoding.JSON, "msgpack": MetadataEncoding.MESSAGEPACK}


def encode_key(key: str) -> bytes:
    """The key of a record as UTF-8, refused if the format cannot hold it."""
    if type(key) is str and key.isascii() and 0 < len(key) <= LONGEST_KEY and "\0" not in key:
        return key.encode()  # most keys
    return encode_text(key, "the key of a record", LONGEST_KEY, "P-REC-5")


class Prepared(NamedTuple):
    """A record that is ready to be written to any shard: nothing in it depends on the place."""

    key: str
    encoded_key: bytes
    kinds: Kinds
    parts: list[bytes | memoryview]
    size: int
    """Bytes of the whole record in the file."""


class Preparer:
    """Makes records. Goes to other processes, which then make the same bytes.

    Args:
        name: the file that errors name.
        alignment, compression, metadata_encoding, max_record_bytes, limits: as for `ShardPackWriter`.
    """

    def __init__(
        self,
        name: str,
        *,
        alignment: int = 8,
        compression: str | EntryCompression | None = None,
        metadata_encoding: str = "json",
        max_record_bytes: int | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        if alignment not in ALIGNMENTS:
            raise InvalidArgument("unknown alignment", expected="1, 8 or 64", found=alignment)
        if metadata_encoding not in _ENCODINGS:
            raise InvalidArgument(
                "unknown metadata_encoding",
                expected=" or ".join(map(repr, _ENCODINGS)),
                found=repr(metadata_encoding),
            )
        self.name = name
        self._mask = alignment - 1
        self._tags = tuple(record_tag(encoding, alignment) for encoding in MetadataEncoding)
        self._metadata_encoding = _ENCODINGS[metadata_encoding]
        self._max_record_bytes = max_record_bytes
        self._limits = limits
        self._shapes = Shapes(EntryCompression.parse(compression))

    def prepare(
        self,
        key: str,
        entries: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
        content_types: Mapping[str, str] | None = None,
        compression: Mapping[str, str | EntryCompression] | None = None,
    ) -> Prepared:
        """A record with all its bytes encoded and its size known; see `ShardPackWriter.write`."""
        # One pass over the entries, and few calls: this is where packing spends its time.
        encoded_key = encode_key(key)
        shape = self._shapes.get(tuple(entries), content_types, compression)
        if metadata:
            metadata_encoding, text = self._metadata_encoding, self._encode_metadata(metadata)
        else:
            metadata_encoding, text = MetadataEncoding.NONE, b""
        kinds = shape.kinds
        mask = self._mask
        head_size = position = kinds.key_start + len(encoded_key) + len(text) + 4
        rows: list[int] = []
        parts: list[bytes | memoryview] = [b""]
        for name, content_type, codec, value in zip(
            kinds.names, kinds.content_types, shape.compressions, entries.values(), strict=True
        ):
            data = value if type(value) is bytes else to_bytes(name, content_type, value)
            stored_size = size = len(data)
            encoding = 0
            if codec is not NO_COMPRESSION and (encoded := encode(data, codec)) is not None:
                check_decompressed_size(self.name, name, size, self._limits)
                encoding, data = encoded
                stored_size = len(data)
            rows += (stored_size, size, crc32c(data), encoding)
            padding = -position & mask
            if padding:
                parts.append(_ZEROS[padding])
            parts.append(data)
            position += padding + stored_size
        return self._with_head(
            key, encoded_key, kinds, rows, parts, head_size, position, metadata_encoding, text
        )

    def prepare_stored(
        self,
        key: str,
        entries: Iterable[StoredEntry],
        metadata_encoding: MetadataEncoding = MetadataEncoding.NONE,
        metadata: bytes = b"",
    ) -> Prepared:
        """As `prepare`, of entries that are encoded already; sizes and checksums are taken as given."""
        if metadata and metadata_encoding == MetadataEncoding.NONE:
            raise InvalidArgument(
                "there is metadata although its encoding is none", path=self.name, rule="P-MTD-1"
            )
        if metadata in _EMPTY_METADATA:
            # Reads the same (section 6), and one record has one form.
            metadata_encoding, metadata = MetadataEncoding.NONE, b""
        entries = list(entries)
        names = tuple(entry.name for entry in entries)
        content_types = {entry.name: entry.content_type for entry in entries}
        if len(content_types) != len(names):
            make_kinds(names, content_types.values())
        kinds = self._shapes.get(names, content_types, None).kinds
        encoded_key = encode_key(key)
        head_size = position = kinds.key_start + len(encoded_key) + len(metadata) + 4
        rows: list[int] = []
        parts: list[bytes | memoryview] = [b""]
        for entry in entries:
            size = len(entry.data)
            rows += (size, entry.original_size, entry.crc32c, entry.encoding)
            padding = -position & self._mask
            parts += (_ZEROS[padding], entry.data)
            position += padding + size
        return self._with_head(
            key, encoded_key, kinds, rows, parts, head_size, position, metadata_encoding, metadata
        )

    def _encode_metadata(self, metadata: Mapping[str, Any]) -> bytes:
        fields = dict(metadata)
        if self._metadata_encoding is MetadataEncoding.JSON:
            return canonical(fields)
        return _msgpack.pack(fields)

    def _with_head(
        self,
        key: str,
        encoded_key: bytes,
        kinds: Kinds,
        rows: list[int],
        parts: list[bytes | memoryview],
        head_size: int,
        end: int,
        metadata_encoding: MetadataEncoding,
        metadata: bytes,
    ) -> Prepared:
        """Puts the head in front of the entries, whose last one ends at `end`."""
        padding = -end & self._mask
        if padding:
            parts.append(_ZEROS[padding])
        size = end + padding
        if (
            head_size > LARGEST_HEAD
            or len(metadata) > LARGEST_RECORD_METADATA
            or (self._max_record_bytes is not None and size > self._max_record_bytes)
        ):
            raise self._too_large(key, head_size, len(metadata), size)
        fixed = RECORD_HEAD.pack(
            size,
            self._tags[metadata_encoding],
            kinds.count,
            len(kinds.stored),
            len(encoded_key),
            len(metadata),
        )
        head = b"".join((fixed, kinds.rows.pack(*rows), kinds.stored, encoded_key, metadata))
        parts[0] = head + CHECKSUM.pack(crc32c(head))
        return Prepared(key, encoded_key, kinds, parts, size)

    def _too_large(self, key: str, head_size: int, metadata_size: int, size: int) -> ShardError:
        what, found, most = next(
            case
            for case in (
                ("the metadata of a record", metadata_size, LARGEST_RECORD_METADATA),
                ("the head of a record", head_size, LARGEST_HEAD),
                ("a record", size, self._max_record_bytes or 0),
            )
            if case[1] > case[2]
        )
        return LimitExceeded(
            f"{what} is too large: key {shorten(key)}",
            path=self.name,
            expected=f"at most {most} bytes",
            found=f"{found} bytes",
            rule="P-REC-6",
        )
