"""The descriptions of a file to be: new ones, or those it was loaded with where they still hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from wshard.describing import channel_from_row, row_fields
from wshard.dtypes import DType
from wshard.metadata import (
    WSHARD_FIELDS,
    EpisodeFacts,
    Row,
    episode_fields,
    parse_facts,
    parse_rows,
)
from wshard.names import META_CHANNELS, META_EPISODE, META_WSHARD, SIGN_RESIDUAL, lane_path
from wshard.residual_lane import DEFAULT_WINDOW
from wshard.values import product

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from wshard.origin import Origin, UnknownFields

Rows = dict[str, dict[str, Any]]

_ROW_GROUPS: Final = ("signal", "action", "reward", "omen", "uncert", "residual")
_LINKS: Final = ("offsets_block", "time_block", "channel", "model", "type", "window")
# Fields that a name or a size tells as well, so that a row without them says the same.
_DERIVABLE: Final = frozenset(("length", "offsets_block"))
_ABOUT: Final = frozenset(("channel", "model", "type"))
_MADE_BY_US: Final = frozenset(
    (
        *("id", "dtype", "shape", "signal_block", "length", "layout", "offsets_block"),
        *("time_block", "modality", "semantics", "sampling_rate_hz", "content_type", "unit"),
        *("description", "start_ns", "lossy", "channel", "model", "type", "window"),
    )
)


class _Sized:
    """A block of known size, for asking what a row says of it."""

    path = None
    is_compressed = is_cut_cheaply = False

    def __init__(self, name: str, nbytes: int) -> None:
        self.name = name
        self.nbytes = nbytes

    def array(self, *_: object) -> Any:  # noqa: ANN401 - never called
        raise AssertionError

    part = read_into = array


def new_descriptions(
    facts: EpisodeFacts, rows: Rows, unknown: UnknownFields
) -> dict[str, dict[str, Any]]:
    """The three objects of an episode that has no file of its own yet."""
    return {
        META_WSHARD: {**WSHARD_FIELDS, **unknown.wshard},
        META_EPISODE: {**unknown.episode, **episode_fields(facts)},
        META_CHANNELS: {"channels": _in_order(rows, rows)},
    }


def changed_descriptions(
    origin: Origin, facts: EpisodeFacts, rows: Rows, sizes: Mapping[str, int]
) -> dict[str, dict[str, Any] | None]:
    """The three objects of an episode that was loaded: None for one that still says what is true.

    Args:
        origin: the file.
        facts: what the episode is now.
        rows: the row of each block, as our writers make it.
        sizes: the bytes of each block that will be there.
    """
    wanted = episode_fields(facts)
    before = episode_fields(parse_facts(origin.episode, origin.wshard))
    episode = _merged(origin.episode, before, wanted)
    wshard = origin.wshard
    if before["timebase"] != wanted["timebase"] and "timebase" in wshard:
        wshard = {key: value for key, value in wshard.items() if key != "timebase"}
    return {
        META_WSHARD: None if wshard == origin.wshard else wshard,
        META_EPISODE: None if episode == origin.episode else episode,
        META_CHANNELS: _changed_rows(origin, rows, sizes, facts.length),
    }


def _changed_rows(
    origin: Origin, rows: Rows, sizes: Mapping[str, int], length: int
) -> dict[str, Any] | None:
    listed = {row.block: row for row in parse_rows(origin.channels)}
    kept: list[dict[str, Any]] = []
    changed = False
    for block, row in listed.items():
        mine = rows.get(block)
        if mine is None:
            if block in sizes or block in origin.reader:
                changed = True  # described before, and now gone or no longer described
            else:
                kept.append(_listed_form(row))
        elif _says_the_same(row, mine, sizes, length):
            kept.append(_listed_form(row))
        else:
            unknown = {k: v for k, v in row.fields.items() if k not in _MADE_BY_US}
            kept.append({**unknown, **mine})
            changed = True
    described = listed.keys() | {
        block
        for block, row in origin.rows.items()
        if block in rows and _says_the_same(row, rows[block], sizes, length)
    }
    new = [block for block in rows if block not in described]
    if not new and not changed:
        return None
    others = dict(origin.channels) if "channels" in origin.channels else {}
    others.pop("modality_groups", None)  # derived by older writers, and no longer right
    return {**others, "channels": kept + _in_order(rows, new)}


def _says_the_same(
    row: Row, mine: Mapping[str, Any], sizes: Mapping[str, int], length: int
) -> bool:
    """Whether a stored row says what we would write for its channel."""
    theirs = row.fields
    if mine is theirs:
        return True
    if mine["id"] not in (row.id, row.block) or _about(row.block, theirs) != _about(
        row.block, mine
    ):
        return False
    size = sizes.get(row.block, 0)
    if mine.get("type") == SIGN_RESIDUAL and row.dtype is DType.UINT8:
        # Packed bits: how their rows divide into shape and length says nothing.
        length_told = theirs.get("length")
        return product(row.shape) * (length if length_told is None else length_told) == size
    block = _Sized(row.block, size)
    channel = channel_from_row(row, row.id, block, length, lambda _: None)
    plain = row_fields(channel, mine["id"], row.block, length)
    for key in _LINKS:
        if theirs.get(key) is not None:
            plain[key] = theirs[key]
    skipped = _ABOUT | {key for key in _DERIVABLE if theirs.get(key) is None}
    if theirs.get("window") is None and mine.get("window") == DEFAULT_WINDOW:
        skipped |= {"window"}
    ours = {k: v for k, v in mine.items() if k not in skipped}
    return ours == {k: v for k, v in plain.items() if k not in skipped}


def _about(block: str, fields: Mapping[str, Any]) -> tuple[str, ...]:
    """What a block is about, by its row or by its name."""
    return lane_path(block, None, fields)


def _in_order(rows: Rows, blocks: Iterable[str]) -> list[dict[str, Any]]:
    def place(block: str) -> tuple[int, bytes]:
        lane = block.partition("/")[0]
        group = _ROW_GROUPS.index(lane) if lane in _ROW_GROUPS else len(_ROW_GROUPS)
        return group, rows[block]["id"].encode()

    return [rows[block] for block in sorted(blocks, key=place)]


def _listed_form(row: Row) -> dict[str, Any]:
    """A row as the list has it, also if it came from the older map."""
    if "id" in row.fields:
        return row.fields
    return {**row.fields, "id": row.id, "signal_block": row.block}


def _merged(
    stored: dict[str, Any], before: Mapping[str, Any], wanted: Mapping[str, Any]
) -> dict[str, Any]:
    """The stored fields with those replaced that mean something else now."""
    merged = dict(stored)
    older = {"episode_id": "id", "length_T": "length_t"}
    for key in before.keys() | wanted.keys():
        if before.get(key) == wanted.get(key):
            continue
        merged.pop(older.get(key, key), None)
        if key in wanted:
            merged[key] = wanted[key]
        else:
            merged.pop(key, None)
    return merged
