"""From what a caller writes to the bytes of a record, which any shard with the same options can hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypedDict

from shard_format.canonical_json import canonical
from shard_format.codecs import NO_COMPRESSION, Codec, Compression, crc32c
from shard_format.errors import InvalidArgument, LimitExceeded, ShardError, shorten
from shard_format.registry import DEFAULT_LIMITS
from shardpack._layout import (
    ALIGNMENTS,
    CHECKSUM,
    LARGEST_HEAD,
    LARGEST_RECORD_METADATA,
    LONGEST_KEY,
    RECORD_HEAD,
    record_tag,
)
from shardpack._record_head import encode_text, make_types
from shardpack.content_types import content_type_of, is_compressible
from shardpack.encodings import (
    MetadataEncoding,
    encode,
)
from shardpack.values import to_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shardpack._record_head import EntryTypes
    from shardpack.record import StoredEntry

_ZEROS: Final = tuple(bytes(count) for count in range(64))
_EMPTY_METADATA: Final = (b"{}", b"\x80")
_MOST_TEMPLATES: Final = 1024
# Readers refuse larger compressed entries unless told otherwise.
_LARGEST_COMPRESSED: Final = DEFAULT_LIMITS.max_decompressed_bytes


def encode_key(key: str) -> bytes:
    """The key of a record as UTF-8.

    Raises:
        InvalidArgument: the format cannot hold it.
    """
    if type(key) is str and key.isascii() and 0 < len(key) <= LONGEST_KEY and "\0" not in key:
        return key.encode()  # most keys
    return encode_text(key, "the key of a record", LONGEST_KEY, "P-REC-5")


class EncodedRecord(NamedTuple):
    """The bytes of a record. Nothing in it depends on its place in a shard."""

    key: str
    encoded_key: bytes
    types: EntryTypes
    parts: list[bytes | memoryview]
    size: int
    """Bytes of the whole record in the file."""


class RecordTemplate(NamedTuple):
    """What all records with the same entry names share."""

    types: EntryTypes
    compressions: tuple[Compression, ...]


class EncodingOptions(TypedDict, total=False):
    """How records are encoded; see `ShardPackWriter`."""

    alignment: int
    compression: str | Compression | None
    max_record_bytes: int | None


class RecordEncoder:
    """Encodes records. You can send it to other processes, which then make the same bytes.

    Args:
        name: the file that errors name.
        alignment, compression, max_record_bytes: as for `ShardPackWriter`.
    """

    def __init__(
        self,
        name: str,
        *,
        alignment: int = 8,
        compression: str | Compression | None = None,
        max_record_bytes: int | None = None,
    ) -> None:
        if alignment not in ALIGNMENTS:
            raise InvalidArgument("unknown alignment", expected="1, 8 or 64", found=alignment)
        self.name = name
        self._mask = alignment - 1
        self._tags = tuple(record_tag(encoding, alignment) for encoding in MetadataEncoding)
        self._max_record_bytes = max_record_bytes
        self._compression = Compression.parse(compression)
        self._templates: dict[tuple[Any, ...], RecordTemplate] = {}

    def encode(
        self,
        key: str,
        entries: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
        content_types: Mapping[str, str] | None = None,
        compression: Mapping[str, str | Compression] | None = None,
    ) -> EncodedRecord:
        """Encode a record; the arguments are those of `ShardPackWriter.write`."""
        template = self._template(tuple(entries), content_types, compression)
        types = template.types
        rows: list[int] = []
        contents: list[bytes | memoryview] = []
        for name, content_type, codec, value in zip(
            types.names, types.content_types, template.compressions, entries.values(), strict=True
        ):
            data = value if type(value) is bytes else to_bytes(name, content_type, value)
            size = len(data)
            encoding = 0
            if codec is not NO_COMPRESSION and size <= _LARGEST_COMPRESSED:
                encoded = encode(data, codec)
                if encoded is not None:
                    encoding, data = encoded
            rows += (len(data), size, crc32c(data), encoding)
            contents.append(data)
        if not metadata:
            return self._assemble(key, types, rows, contents, MetadataEncoding.NONE, b"")
        text = canonical(dict(metadata))
        return self._assemble(key, types, rows, contents, MetadataEncoding.JSON, text)

    def encode_stored(
        self,
        key: str,
        entries: Iterable[StoredEntry],
        metadata_encoding: MetadataEncoding = MetadataEncoding.NONE,
        metadata: bytes = b"",
    ) -> EncodedRecord:
        """Make a record of entries that are encoded already; sizes and checksums are not checked."""
        if metadata and metadata_encoding == MetadataEncoding.NONE:
            raise InvalidArgument(
                "metadata is present, but its encoding is 'none'", path=self.name, rule="P-MTD-1"
            )
        if metadata in _EMPTY_METADATA:
            # Reads the same (section 6), and a record has one form.
            metadata_encoding, metadata = MetadataEncoding.NONE, b""
        entries = list(entries)
        names = tuple(entry.name for entry in entries)
        content_types = {entry.name: entry.content_type for entry in entries}
        if len(content_types) != len(names):
            make_types(names, [entry.content_type for entry in entries])  # says which name
        types = self._template(names, content_types, None).types
        rows = [
            number
            for e in entries
            for number in (len(e.data), e.original_size, e.crc32c, e.encoding)
        ]
        contents = [entry.data for entry in entries]
        return self._assemble(key, types, rows, contents, metadata_encoding, metadata)

    def _assemble(
        self,
        key: str,
        types: EntryTypes,
        rows: list[int],
        contents: list[bytes | memoryview],
        metadata_encoding: MetadataEncoding,
        metadata: bytes,
    ) -> EncodedRecord:
        """Put head, padding and contents together."""
        encoded_key = encode_key(key)
        mask = self._mask
        position = head_size = types.key_start + len(encoded_key) + len(metadata) + CHECKSUM.size
        parts: list[bytes | memoryview] = [b""]
        for data in contents:
            padding = -position & mask
            if padding:
                parts.append(_ZEROS[padding])
            parts.append(data)
            position += padding + len(data)
        padding = -position & mask
        if padding:
            parts.append(_ZEROS[padding])
        size = position + padding
        if (
            head_size > LARGEST_HEAD
            or len(metadata) > LARGEST_RECORD_METADATA
            or (self._max_record_bytes is not None and size > self._max_record_bytes)
        ):
            raise self._too_large(key, head_size, len(metadata), size)
        fixed = RECORD_HEAD.pack(
            size,
            self._tags[metadata_encoding],
            types.count,
            len(types.stored),
            len(encoded_key),
            len(metadata),
        )
        head = b"".join((fixed, types.rows.pack(*rows), types.stored, encoded_key, metadata))
        parts[0] = head + CHECKSUM.pack(crc32c(head))
        return EncodedRecord(key, encoded_key, types, parts, size)

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

    def _template(
        self,
        names: tuple[str, ...],
        content_types: Mapping[str, str] | None,
        compression: Mapping[str, str | Compression] | None,
    ) -> RecordTemplate:
        """The template of records with these names; most records of a dataset share one."""
        identity: tuple[Any, ...] = names
        if content_types or compression:
            own_types = tuple((content_types or {}).items())
            own_codecs = tuple((name, str(codec)) for name, codec in (compression or {}).items())
            identity = (names, own_types, own_codecs)
        template = self._templates.get(identity)
        if template is None:
            template = self._make_template(names, content_types or {}, compression or {})
            if len(self._templates) >= _MOST_TEMPLATES:
                self._templates.clear()
            self._templates[identity] = template
        return template

    def _make_template(
        self,
        names: tuple[str, ...],
        content_types: Mapping[str, str],
        compression: Mapping[str, str | Compression],
    ) -> RecordTemplate:
        for what, given in (("content_types", content_types), ("compression", compression)):
            unknown = [name for name in given if name not in names]
            if unknown:
                raise InvalidArgument(
                    f"{what} names an entry that does not exist", entry=unknown[0]
                )
        found = [
            content_types[name] if name in content_types else content_type_of(name)
            for name in names
        ]
        types = make_types(names, found)
        codecs: list[Compression] = []
        for name, content_type in zip(names, found, strict=True):
            codec = self._compression if is_compressible(content_type) else NO_COMPRESSION
            if name in compression:
                codec = Compression.parse(compression[name])
            codecs.append(NO_COMPRESSION if codec.codec is Codec.NONE else codec)
        return RecordTemplate(types, tuple(codecs))
