"""Comparing two episodes by what their files would hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xxhash import xxh3_128

from wshard._plan_episode import plan_entries

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from wshard._episode import Episode
    from wshard._plan_episode import PlannedEntry

__all__ = ["differences"]

_PIECE_BYTES: Final = 16 << 20
_DESCRIPTIONS: Final = "meta/"


def differences(
    wanted: Episode, found: Episode, *, only_common: bool = False, leave_out: Container[str] = ()
) -> Iterator[str]:
    """How the blocks of two episodes differ, bit for bit; nothing if they are the same.

    Args:
        wanted: what should be there.
        found: what is there.
        only_common: whether to compare only arrays that both have, and no descriptions.
        leave_out: blocks that may differ.
    """
    if wanted.length != found.length:
        yield f"{found.length} steps instead of {wanted.length}"
    mine, yours = ({entry.name: entry for entry in plan_entries(one)} for one in (wanted, found))
    for name in dict.fromkeys([*mine, *yours]):
        if name in leave_out or (only_common and name.startswith(_DESCRIPTIONS)):
            continue
        if name not in mine or name not in yours:
            if not only_common:
                yield f"{name} is {'new' if name in yours else 'missing'}"
        elif mine[name].nbytes != yours[name].nbytes:
            yield f"{name} has {yours[name].nbytes} bytes instead of {mine[name].nbytes}"
        elif _hash_of(mine[name]) != _hash_of(yours[name]):
            yield f"{name} has other values"


def _hash_of(entry: PlannedEntry) -> bytes:
    state = xxh3_128()
    if entry.pieces is not None:
        for piece in entry.pieces(_PIECE_BYTES):
            state.update(memoryview(piece).cast("B"))
    else:
        state.update(entry.flat().data)
    return state.digest()
