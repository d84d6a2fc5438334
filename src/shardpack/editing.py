"""New shards from old ones: merged, split, filtered, sorted, sampled.

Entries are copied as they are stored, with their checksums, never decoded and encoded again; those of a
mapped shard go from its mapping to the new file without a stop in between. The same input and the same
arguments give the same records in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.errors import InvalidArgument
from shardpack._output import Output, is_set
from shardpack.columns import CombinedDataset, key_hashes, opened
from shardpack.writer import creation_time

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from shardpack.columns import AnyDataset, Samples
    from shardpack.combined import AnyRecord

__all__ = ["Edited", "filter", "merge", "sample", "sort", "split"]

# Records that are looked up together; remote ones then come with few requests.
_BATCH: Final = 64
_SCALE: Final = float(1 << 64)


@dataclass(frozen=True, slots=True)
class Edited:
    """What was written."""

    paths: list[str]
    """The new shards."""
    records: int
    """How many records they have."""


def merge(
    shards: Samples,
    output: str | os.PathLike[str],
    *,
    check: bool = True,
    **options: Any,  # noqa: ANN401 - checked by the writer
) -> Edited:
    """All records of a data set in new shards: one, or as many as the target size asks for.

    Also writes out what `join` and `overlay` put together.

    Args:
        shards: what `shardpack.open` takes, or an opened data set.
        output: one file, or `"train-%06d.shardpack"` for a set of shards.
        check: False skips the checksums of the entries, which are copied along.
        options: `max_bytes` and `max_records` for a set, and what `ShardPackWriter` takes. Alignment and
            metadata are those of the old shards unless given.

    Raises:
        InvalidArgument: two records have the same key, or the old shards say different things about
            themselves and no `metadata` is given.
    """
    with opened(shards) as dataset:
        return _write(dataset, dataset.records(), output, check, options)


def filter(
    shards: Samples,
    output: str | os.PathLike[str],
    keep: Callable[[Any], bool],
    *,
    check: bool = True,
    **options: Any,  # noqa: ANN401 - checked by the writer
) -> Edited:
    """The records for which `keep(record)` is true, in new shards.

    Args:
        shards: what `shardpack.open` takes, or an opened data set.
        output: one file, or `"train-%06d.shardpack"` for a set of shards.
        keep: told each record. Of a record whose key, metadata or names decide, no entry is read.
        check, options: as for `merge`.
    """
    with opened(shards) as dataset:
        kept = (record for record in dataset.records() if keep(record))
        return _write(dataset, kept, output, check, options)


def sort(
    shards: Samples,
    output: str | os.PathLike[str],
    *,
    by: Callable[[Any], Any] | None = None,
    reverse: bool = False,
    check: bool = True,
    **options: Any,  # noqa: ANN401 - checked by the writer
) -> Edited:
    """The records in order of their keys, or of anything else, in new shards.

    Records that compare equal stay in their order. Memory: what is compared, and 8 bytes a record.

    Args:
        shards: what `shardpack.open` takes, or an opened data set.
        output: one file, or `"train-%06d.shardpack"` for a set of shards.
        by: told each record, gives what is compared; the key if left out.
        reverse: True for the largest first.
        check, options: as for `merge`.
    """
    with opened(shards) as dataset:
        values = [record.key if by is None else by(record) for record in dataset.records()]
        order = sorted(range(len(values)), key=values.__getitem__, reverse=reverse)
        return _write(dataset, _in_batches(dataset, order), output, check, options)


def sample(
    shards: Samples,
    output: str | os.PathLike[str],
    count: float,
    *,
    seed: int = 0,
    shuffle: bool = False,
    check: bool = True,
    **options: Any,  # noqa: ANN401 - checked by the writer
) -> Edited:
    """Some of the records, drawn by chance but the same every time, in new shards.

    Which ones depends on their keys and the seed alone: not on how they are spread over shards, nor on
    the versions of anything. 16 bytes of memory a record.

    Args:
        shards: what `shardpack.open` takes, or an opened data set.
        output: one file, or `"train-%06d.shardpack"` for a set of shards.
        count: how many; a float from 0 to 1 is a share of all, rounded.
        seed: another one draws others.
        shuffle: True writes them in an order by chance rather than in the one that they have.
        check, options: as for `merge`.
    """
    with opened(shards) as dataset:
        total = len(dataset)
        wanted = count if isinstance(count, int) else round(count * total)
        if not 0 <= wanted <= total or isinstance(count, bool):
            raise InvalidArgument(
                "cannot draw this many records",
                expected=f"0 to {total}, or a share from 0.0 to 1.0",
                found=count,
            )
        drawn = np.argsort(_by_chance(dataset, seed), kind="stable")[:wanted]
        order = drawn if shuffle else np.sort(drawn)
        return _write(dataset, _in_batches(dataset, order.tolist()), output, check, options)


def split(
    shards: Samples,
    outputs: str | os.PathLike[str] | Mapping[str, float],
    *,
    parts: int | None = None,
    max_bytes: int | None = None,
    max_records: int | None = None,
    seed: int = 0,
    check: bool = True,
    **options: Any,  # noqa: ANN401 - checked by the writer
) -> dict[str, Edited]:
    """The records of a data set in several others, each of which has those that it is given.

        split("all.shardpack", "part-%06d.shardpack", max_records=10_000)
        split("all-*.shardpack", {"train-%06d.shardpack": 0.9, "val-%06d.shardpack": 0.1})

    By shares, a record goes where the hash of its key and the seed say: records that are added later
    change nothing for the others, and each share is met within chance.

    Args:
        shards: what `shardpack.open` takes, or an opened data set.
        outputs: `"part-%06d.shardpack"`, cut in order; or names with their shares, which add up to 1.
        parts: with one name, into so many shards of the same number of records, give or take one.
        max_bytes: target size of a shard.
        max_records: most records of a shard.
        seed: another one deals the records out differently.
        check, options: as for `merge`.

    Returns:
        What was written under each name.
    """
    with opened(shards) as dataset:
        # One time for all of them.
        options["created"] = creation_time(options.get("created"))
        if isinstance(outputs, Mapping):
            if parts is not None:
                raise InvalidArgument("parts and shares exclude each other", found=parts)
            limits = {"max_bytes": max_bytes or 1 << 30, "max_records": max_records}
            return _split_by_shares(dataset, dict(outputs), seed, check, limits | options)
        name = str(outputs)
        if sum(limit is not None for limit in (parts, max_bytes, max_records)) == 0:
            raise InvalidArgument(
                "into what is not said", expected="parts, max_bytes or max_records", path=name
            )
        if not is_set(name):
            raise InvalidArgument(
                "the name of a set needs a number",
                path=name,
                expected="such as 'part-%06d.shardpack'",
            )
        if parts is None:
            limits = {"max_bytes": max_bytes, "max_records": max_records}
            return {name: _write(dataset, dataset.records(), name, check, limits | options)}
        if parts < 1 or max_bytes is not None or max_records is not None:
            raise InvalidArgument(
                "parts is 1 or more, and excludes the limits", found=f"parts={parts}"
            )
        return {name: _split_evenly(dataset, name, parts, check, options)}


def _split_evenly(
    dataset: AnyDataset, name: str, parts: int, check: bool, options: dict[str, Any]
) -> Edited:
    paths: list[str] = []
    count = len(dataset)
    for part in range(parts):
        first, last = count * part // parts, count * (part + 1) // parts
        limits = {"max_bytes": None, "first": part}
        records = dataset.records(first, last)
        paths += _write(dataset, records, name, check, limits | options).paths
    return Edited(paths, count)


def _split_by_shares(
    dataset: AnyDataset,
    shares: dict[str, float],
    seed: int,
    check: bool,
    options: dict[str, Any],
) -> dict[str, Edited]:
    if (
        not shares
        or min(shares.values()) < 0
        or not np.isclose(sum(shares.values()), 1, rtol=0, atol=1e-9)
    ):
        raise InvalidArgument(
            "the shares do not add up to 1", found=" + ".join(map(str, shares.values())) or "none"
        )
    bounds = np.cumsum(list(shares.values()))[:-1]
    chosen = np.searchsorted(bounds, _by_chance(dataset, seed) / _SCALE, side="right")
    found: dict[str, Edited] = {}
    for number, name in enumerate(shares):
        numbers: list[int] = np.flatnonzero(chosen == number).tolist()
        found[name] = _write(dataset, _in_batches(dataset, numbers), name, check, dict(options))
    return found


def _by_chance(dataset: AnyDataset, seed: int) -> NDArray[np.uint64]:
    """A number for each record that depends on its key and the seed, and looks like chance."""
    # The finalizer of SplitMix64 over the key's hash; unsigned integers wrap, which is meant.
    mixed = key_hashes(dataset) ^ np.uint64(seed * 0x9E3779B97F4A7C15 & 0xFFFF_FFFF_FFFF_FFFF)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    spread: NDArray[np.uint64] = mixed ^ (mixed >> np.uint64(31))
    return spread


def _in_batches(dataset: AnyDataset, numbers: list[int]) -> Iterable[AnyRecord]:
    for start in range(0, len(numbers), _BATCH):
        yield from dataset.take(numbers[start : start + _BATCH])


def _write(
    dataset: AnyDataset,
    records: Iterable[AnyRecord],
    output: str | os.PathLike[str],
    check: bool,
    options: dict[str, Any],
) -> Edited:
    options = dict(options)
    if options.get("alignment") is None:
        options["alignment"] = _alignment(dataset)
    if options.get("metadata") is None:
        options["metadata"] = _user_fields(dataset)
    written = 0
    with Output(output, **options) as writer:
        for record in records:
            writer.copy(record, check=check)
            written += 1
    return Edited(writer.paths, written)


def _shards(dataset: AnyDataset) -> Iterable[Any]:
    return (
        (shard for part in dataset._datasets for shard in _shards(part))
        if isinstance(dataset, CombinedDataset)
        else dataset.shards
    )


def _alignment(dataset: AnyDataset) -> int:
    """The largest of the shards', so that what could be used in place still can."""
    return max((shard.record(0).alignment for shard in _shards(dataset) if len(shard)), default=8)


def _user_fields(dataset: AnyDataset) -> dict[str, Any]:
    """What the users of the old shards said about them, if all that did said the same."""
    fields: dict[str, Any] = {}
    for shard in _shards(dataset):
        said = shard.metadata.get("user")
        for name, value in said.items() if isinstance(said, dict) else ():
            if name in fields and fields[name] != value:
                raise InvalidArgument(
                    f"the shards say different things about {name!r}",
                    path=shard.name,
                    expected=repr(fields[name]),
                    found=repr(value),
                    hint="pass metadata={…} with what is true of the new shards",
                )
            fields[name] = value
    return fields
