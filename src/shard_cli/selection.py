"""Choosing entries by pattern and prefix."""

from __future__ import annotations

import fnmatch
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shard_format import ShardReader


def choose(reader: ShardReader, patterns: Sequence[str], prefix: str | None = None) -> list[str]:
    """The names that fit one of the patterns and the prefix, in the order of the index.

    Raises:
        EntryNotFound: a pattern fits nothing; a typing mistake must not look like an empty result.
    """
    names = reader.names() if prefix is None else reader.prefix(prefix)
    if not patterns:
        return names
    chosen: set[str] = set()
    for pattern in patterns:
        fitting = matching(names, pattern)
        if not fitting:
            raise _nothing_fits(reader, pattern, prefix)
        chosen.update(fitting)
    return [name for name in names if name in chosen]


def matching(names: Sequence[str], pattern: str) -> list[str]:
    """The names that fit: case counts, and `*` goes across slashes, for names are not paths."""
    expression = re.compile(fnmatch.translate(pattern))
    # A name may hold brackets or stars of its own; spelled out in full it always fits itself.
    return [name for name in names if name == pattern or expression.match(name)]


def _nothing_fits(reader: ShardReader, pattern: str, prefix: str | None) -> Exception:
    from shard_format.errors import EntryNotFound, shorten

    where = "" if prefix is None else f" that starts with {shorten(prefix)}"
    return EntryNotFound(
        f"no entry{where} fits {shorten(pattern)}",
        path=reader.name,
        hint="'shard ls' lists the entries",
    )
