"""Which episodes of a catalogue a data set takes: all, those of some numbers, those that a condition holds for."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from shard_format.errors import InvalidArgument
from wshard.dataset.conditions import Condition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from wshard.dataset.catalogue import Catalogue

__all__ = ["select"]

_log = logging.getLogger("wshard")


def select(
    catalogue: Catalogue, episodes: Iterable[int] | None, where: str | None
) -> NDArray[np.int64]:
    """The rows of the episodes.

    Args:
        catalogue: all files.
        episodes: numbers among all episodes, in the order in which they are taken.
        where: a condition.

    Raises:
        InvalidArgument: no episode is left, or there is none of a number.
    """
    condition = None if where is None else Condition(where)
    rows = np.flatnonzero(catalogue.lengths >= 0)
    if not len(rows):
        raise InvalidArgument(
            "there are no episodes that can be read",
            path=catalogue.base,
            found=f"{len(catalogue.lengths)} files",
        )
    if episodes is not None:
        rows = rows[_numbers(episodes, len(rows))]
    if condition is not None:
        rows = _holding(catalogue, rows, condition)
    return rows


def _numbers(episodes: Iterable[int], count: int) -> NDArray[np.int64]:
    numbers = np.array(list(episodes))
    if numbers.dtype.kind not in "iu" or numbers.ndim != 1:
        raise InvalidArgument(
            "episodes are chosen by their numbers",
            expected=f"a list of integers from 0 to {count - 1}",
            found=f"{numbers.dtype} {list(numbers.shape)}",
        )
    outside = (numbers < 0) | (numbers >= count)
    if outside.any():
        raise InvalidArgument(
            "there is no episode of this number",
            expected=f"0 to {count - 1}",
            found=int(numbers[outside][0]),
        )
    if len(np.unique(numbers)) != len(numbers):
        raise InvalidArgument("an episode is chosen twice", found=f"{len(numbers)} numbers")
    return numbers.astype(np.int64)


def _holding(
    catalogue: Catalogue, rows: NDArray[np.int64], condition: Condition
) -> NDArray[np.int64]:
    kept = []
    unknown = set(condition.names)
    for row in rows.tolist():
        facts = catalogue.facts_of(row)
        try:
            if condition.holds(facts):
                kept.append(row)
        except InvalidArgument as error:
            raise error.located(path=catalogue.paths[row]) from None
        if unknown:
            unknown.difference_update(facts)
    if unknown:
        _log.warning(
            "where=%r: no episode has a field %s", condition.text, ", ".join(sorted(unknown))
        )
    if not kept:
        raise InvalidArgument(
            "the condition holds for no episode",
            found=repr(condition.text),
            hint=f"no episode has a field {', '.join(sorted(unknown))}" if unknown else None,
        )
    return np.array(kept, np.int64)
