"""The limits of the readers here: those of shard.md, section 14, that a caller may lower."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LIMITS = {
    "max_decompressed_bytes": 1 << 30,
    "max_entries": 10_000_000,
    "max_index_bytes": 1 << 30,
    "max_json_bytes": 16 << 20,
    "max_json_nodes": 1_000_000,
    "max_string_table_bytes": 100 << 20,
    "max_window_bytes": 128 << 20,
}


@contextmanager
def lowered(limits: Mapping[str, int]) -> Iterator[None]:
    """Readers keep these limits meanwhile."""
    usual = dict(LIMITS)
    assert all(value < usual[name] for name, value in limits.items())
    LIMITS.update(limits)
    try:
        yield
    finally:
        LIMITS.update(usual)
