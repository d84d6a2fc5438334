"""The schema section: what a file says about itself and its entries (spec/shard.md, section 9)."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from shard_format import canonical_json
from shard_format.errors import BadMetadata, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from shard_format.layout import Header
    from shard_format.registry import Limits
    from shard_format.sources import ByteSource

__all__ = ["Schema"]

MOST_TAGS = 16


class Schema:
    """The schema section as a dictionary that keeps unknown fields.

    `fields` is the JSON object itself. The properties are the fields that this library uses.
    """

    __slots__ = ("fields",)

    def __init__(self, fields: Mapping[str, Any] | None = None) -> None:
        self.fields: dict[str, Any] = dict(fields or {})
        self._check()

    @classmethod
    def read(
        cls, header: Header, index: NDArray[Any], source: ByteSource, limits: Limits
    ) -> Schema | None:
        """The schema of a file, None if it has none."""
        start = header.schema_offset
        if start == 0:
            return None
        stored = index["disk_size"] > 0
        ends = index["data_offset"][stored] + index["disk_size"][stored]
        earliest = max(header.data_section_offset, int(ends.max(initial=0)))
        if not earliest <= start <= header.total_file_size:
            raise BadMetadata(
                "the schema section is out of range",
                offset=32,
                expected=f"between {earliest} and {header.total_file_size}",
                found=start,
                rule="S-SCH-1",
            )
        length = header.total_file_size - start
        canonical_json.check_length(length, "the schema section", limits)
        return cls(
            canonical_json.parse_object(source.read_at(start, length), "the schema section", limits)
        )

    def to_bytes(self) -> bytes:
        """The canonical text."""
        self._check()
        return canonical_json.canonical(self.fields)

    @property
    def tag_dictionary(self) -> list[str]:
        """The names of the tag bits, bit 0 first."""
        return list(self.fields.get("tag_dictionary") or [])

    @property
    def entry_metadata(self) -> dict[str, dict[str, Any]]:
        """What the schema says about each entry that it mentions."""
        return dict(self.fields.get("entry_metadata") or {})

    def tags(self, tag_bits: int) -> list[str]:
        """The names of the bits that are set; bits without a name become `bit K`."""
        names = self.tag_dictionary
        return [
            names[bit] if bit < len(names) else f"bit {bit}"
            for bit in range(MOST_TAGS)
            if tag_bits >> bit & 1
        ]

    def schema_id(self) -> str:
        """The fingerprint of tags and entry types: sixteen hex digits."""
        digest = hashlib.sha256()
        for tag in self.tag_dictionary:
            digest.update(tag.encode() + b"\0")
        for name, metadata in sorted(self.entry_metadata.items()):
            for text in (
                name,
                str(metadata.get("content_type") or ""),
                str(metadata.get("semantic_type") or ""),
            ):
                digest.update(text.encode() + b"\0")
        return digest.hexdigest()[:16]

    def __eq__(self, other: object) -> bool:
        return self.fields == other.fields if isinstance(other, Schema) else NotImplemented

    __hash__ = None  # type: ignore[assignment] # mutable, like a dict

    def __repr__(self) -> str:
        return f"Schema({self.fields!r})"

    def _check(self) -> None:
        for key, kind in (
            ("tag_dictionary", str),
            ("tags", str),
        ):
            value = self.fields.get(key)
            if value is not None and not (
                isinstance(value, list) and all(isinstance(item, kind) for item in value)
            ):
                raise _wrong_type(key, "a list of strings", value)
        if len(self.tag_dictionary) > MOST_TAGS:
            raise _wrong_type(
                "tag_dictionary", f"at most {MOST_TAGS} names", f"{len(self.tag_dictionary)}"
            )
        metadata = self.fields.get("entry_metadata")
        if metadata is not None and not (
            isinstance(metadata, dict) and all(isinstance(item, dict) for item in metadata.values())
        ):
            raise _wrong_type("entry_metadata", "an object of objects", metadata)


def _wrong_type(key: str, expected: str, found: object) -> BadMetadata:
    return BadMetadata(
        f"the schema's {key!r} has a wrong type or value",
        expected=expected,
        found=repr(found)[:80],
        rule="S-SCH-4",
    )


class TagNames:
    """Gives tag names their bits, in the order in which they first appear."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.names = list(names)

    def bits(self, tags: int | Iterable[str]) -> tuple[int, list[str]]:
        """The tag bits for a number or for names, and the names as they are once this is accepted."""
        if isinstance(tags, (int, np.integer)):
            if not 0 <= tags <= 0xFFFF:
                raise InvalidArgument("tag bits out of range", expected="0 to 65535", found=tags)
            return int(tags), self.names
        if isinstance(tags, str):
            raise InvalidArgument(
                "tags is one string", expected="a list of names or an integer", found=repr(tags)
            )
        wanted = list(dict.fromkeys(tags))
        if not all(isinstance(tag, str) for tag in wanted):
            raise InvalidArgument("a tag is not a string", found=repr(wanted))
        names = [*self.names, *(tag for tag in wanted if tag not in self.names)]
        if len(names) > MOST_TAGS:
            raise InvalidArgument(
                "too many different tags in one file",
                expected=f"at most {MOST_TAGS}",
                found=", ".join(names),
            )
        return sum(1 << names.index(tag) for tag in wanted), names
