"""What readers and writers of MDS data sets share: names, codes, and what `to_mds` adds to the index."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import xxhash

if TYPE_CHECKING:
    from collections.abc import Callable

INDEX: Final = "index.json"
VERSION: Final = 2
PLACES: Final = "shardpack"
"""The field of the index that readers of MDS pass over, and `from_mds` does not."""

DTYPES: Final = {
    "uint8": 8,
    "int8": 9,
    "uint16": 16,
    "int16": 17,
    "float16": 18,
    "uint32": 32,
    "int32": 33,
    "float32": 34,
    "uint64": 64,
    "int64": 65,
    "float64": 66,
}
"""Types of arrays and numbers, and their codes in arrays."""
FILES: Final = {"str": "txt", "jpeg": "jpg", "png": "png", "json": "json", "pkl": "pkl"}
"""Encodings whose values are files, or text, as they are, and the ending that says so."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where the columns of a data set stood in the records that it was made of."""

    key: str | None = None
    """The column of the keys."""
    entries: dict[str, str] = field(default_factory=dict)
    """Columns that were entries, with the names of these."""
    fields: dict[str, str] = field(default_factory=dict)
    """Columns that were fields of the metadata, with the names of these."""
    optional: frozenset[str] = frozenset()
    """Columns of fields that some records lacked, which is null in JSON."""

    def as_json(self) -> dict[str, Any]:
        """As the index has it."""
        return {
            "key": self.key,
            "entries": self.entries,
            "fields": self.fields,
            "optional": sorted(self.optional),
        }

    @classmethod
    def parse(cls, stored: object) -> Places:
        """Of an index.

        Raises:
            ValueError: it is something else.
        """
        if stored is None:
            return cls()
        rows = of_type(dict, stored)
        key = rows.get("key")
        return cls(
            key=None if key is None else of_type(str, key),
            entries=_texts(rows.get("entries", {})),
            fields=_texts(rows.get("fields", {})),
            optional=frozenset(
                of_type(str, name) for name in of_type(list, rows.get("optional", []))
            ),
        )


def _texts(value: object) -> dict[str, str]:
    return {name: of_type(str, text) for name, text in of_type(dict, value).items()}


def of_type(kind: type[Any], value: object) -> Any:  # noqa: ANN401 - of that type
    """The value, if it is of exactly this type; numbers may not be negative.

    Raises:
        ValueError: it is not.
    """
    if type(value) is not kind or (kind is int and value < 0):  # type: ignore[operator] # a number
        raise ValueError(f"{value!r} is no {kind.__name__}")
    return value


def hash_function(name: str) -> Callable[..., Any] | None:
    """The hash of this name, as the format calls it; None if there is none."""
    found: Callable[..., Any] | None = None
    if name in hashlib.algorithms_guaranteed and not name.startswith("shake_"):
        found = getattr(hashlib, name)
    elif name in xxhash.algorithms_available:
        found = getattr(xxhash, name)
    return found
