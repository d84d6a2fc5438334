"""Descriptions as files hold them. The episodes of a data set mostly share theirs: each is parsed once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from wshard.metadata import Row, parse_rows
from wshard.names import META_CHANNELS, META_WSHARD

if TYPE_CHECKING:
    from shard_format import ShardReader

__all__ = ["Channels", "parse_channels", "parse_wshard"]

_LONGEST = 1 << 16
_MOST = 64
# Rows with nothing else hold no list or object that an episode would hand out.
_SHAREABLE: Final = frozenset(
    (
        *("id", "dtype", "shape", "signal_block", "modality", "semantics", "sampling_rate_hz"),
        *("unit", "content_type", "description", "length", "start_ns", "layout", "time_block"),
        *("offsets_block", "channel", "model", "type", "window"),
    )
)
_SCALAR: Final = (str, int, float, bool, type(None))


class Channels(NamedTuple):
    """`meta/channels`. Shared between episodes: to be read only."""

    fields: dict[str, Any]
    """As parsed."""
    rows: dict[str, Row]
    """By block."""


_known_channels: dict[bytes, Channels] = {}
_known_wshard: dict[bytes, dict[str, Any]] = {}


def parse_channels(reader: ShardReader, text: bytes) -> Channels:
    """`meta/channels` of a file, from its text."""
    known = _known_channels.get(text)
    if known is not None:
        return known
    fields = reader.parse_json(META_CHANNELS, text, rule="W-JSN-1")
    parsed = Channels(fields, {row.block: row for row in parse_rows(fields)})
    if fields.keys() == {"channels"} and all(
        row.fields.keys() <= _SHAREABLE for row in parsed.rows.values()
    ):
        _remember(_known_channels, text, parsed)
    return parsed


def parse_wshard(reader: ShardReader, text: bytes) -> dict[str, Any]:
    """`meta/wshard` of a file, from its text. Shared between episodes: to be read only."""
    known = _known_wshard.get(text)
    if known is not None:
        return known
    fields = reader.parse_json(META_WSHARD, text, rule="W-JSN-1")
    if all(isinstance(value, _SCALAR) for value in fields.values()):
        _remember(_known_wshard, text, fields)
    return fields


def _remember(known: dict[bytes, Any], text: bytes, value: object) -> None:
    if len(text) <= _LONGEST:
        if len(known) >= _MOST:
            known.clear()
        known[text] = value
