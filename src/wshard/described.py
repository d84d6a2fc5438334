"""Descriptions as files hold them. The episodes of a data set mostly share theirs: each is parsed once."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from wshard.metadata import FactFields, Row, parse_facts, parse_rows
from wshard.names import META_CHANNELS, META_EPISODE, META_WSHARD
from wshard.timebase import Timebase

if TYPE_CHECKING:
    from shard_format import ShardReader

__all__ = ["Channels", "parse_channels", "parse_episode", "parse_wshard"]

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


# What our writers store of an episode without metadata. The four parts tell all; nothing is escaped, and what
# the clock's text means was found out before.
_USUAL_EPISODE: Final = re.compile(
    rb'\{"env_id":"([^"\\\x00-\x1f]*)","episode_id":"([^"\\\x00-\x1f]*)",'
    rb'"length_T":(0|[1-9][0-9]{0,17}),"timebase":(\{[^{}]*\})\}'
)
_known_timebases: dict[bytes, tuple[Any, float, int]] = {}


def parse_episode(
    reader: ShardReader, text: bytes, wshard: dict[str, Any]
) -> tuple[FactFields, dict[str, Any] | bytes]:
    """What `meta/episode` says, from its text, together with `meta/wshard`.

    Returns:
        The fields of `EpisodeFacts`, and the parsed object, or the text if there was no need to parse it.
    """
    usual = None if "timebase" in wshard else _USUAL_EPISODE.fullmatch(text)
    if usual is not None:
        env_id, name, length, clock = usual.groups()
        timebase = _known_timebases.get(clock)
        if timebase is not None:
            try:
                names = (name.decode(), env_id.decode())
            except UnicodeDecodeError:  # the parser says where
                pass
            else:
                return (*names, int(length), Timebase(*timebase), {}, None, None, None), text
    fields = reader.parse_json(META_EPISODE, text, rule="W-JSN-1")
    facts = parse_facts(fields, wshard)
    if usual is not None:
        base = facts.timebase
        _remember(_known_timebases, usual[4], (base.type, base.tick_hz, base.epoch_ns))
    return facts, fields


def _remember(known: dict[bytes, Any], text: bytes, value: object) -> None:
    if len(text) <= _LONGEST:
        if len(known) >= _MOST:
            known.clear()
        known[text] = value
