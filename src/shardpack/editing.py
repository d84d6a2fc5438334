"""New shards from old ones: merge, split, filter, sort, sample.

Entries are copied as they are stored, with their checksums; they are never decoded. The same input and the same
arguments give the same records in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.errors import InvalidArgument
from shardpack.columns import CombinedDataset, open_copied, open_samples
from shardpack.writer import creation_time
from shardpack.writer_set import ShardWriterSet, WrittenShards, is_set

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from shardpack.columns import AnyDataset, AnyRecord, Samples
    from shardpack.reader import ShardPackReader
    from shardpack.writer import Output

__all__ = ["filter", "merge", "sample", "sort", "split"]

# Records to take together, so that remote ones need few requests.
_BATCH: Final = 64
_SCALE: Final = float(1 << 64)


def merge(
    shards: Samples,
    output: Output,
    *,
    check: bool = True,
    **options: Any,  # noqa: ANN401 - checked by the writer
) -> WrittenShards:
    """Write all records of a dataset into new shards: one, or as many as the target size needs.

    It also writes what `join` and `overlay` combine.

    Args:
        shards: what `shardpack.open` takes, or an open dataset.
        output: one file (a path, or an open file), or `"train-%06d.shardpack"` for a set of shards.
        check: False skips the checksums of the entries, which are copied too.
        options: what `ShardWriterSet` takes: `overwrite`, `max_bytes`, `compression` and so on. Alignment and
            metadata are those of the old shards unless you give them.

    Raises:
        InvalidArgument: two records have the same key, or the metadata of the old shards differs and you give
            no `metadata`.
    """
    with open_samples(shards) as dataset:
        return _write(dataset, dataset.records(), output, check, options)


def filter(
    shards: Samples,
    output: Output,
    keep: Callable[[Any], bool],
    *,
    check: bool = True,
    **options: Any,  # noqa: ANN401 - checked by the writer
) -> WrittenShards:
    """Write the records for which `keep(record)` is true into new shards.

    Args:
        shards, output, check, options: as for `merge`.
        keep: called with each record. If it only looks at key, metadata or names, no entry is read.
    """
    with open_samples(shards) as dataset:
        kept = (record for record in dataset.records() if keep(record))
        return _write(dataset, kept, output, check, options)


def sort(
    shards: Samples,
    output: Output,
    *,
    by: Callable[[Any], Any] | None = None,
    reverse: bool = False,
    check: bool = True,
    **options: Any,  # noqa: ANN401 - checked by the writer
) -> WrittenShards:
    """Write the records into new shards, sorted by key or by anything else.

    Equal records keep their order. Memory: what is compared, and 8 bytes per record.

    Args:
        shards, output, check, options: as for `merge`.
        by: returns what to compare for a record; None for the key.
        reverse: True for the largest first.
    """
    with open_copied(shards) as dataset:
        values = [record.key if by is None else by(record) for record in dataset.records()]
        order = sorted(range(len(values)), key=values.__getitem__, reverse=reverse)
        return _write(dataset, _in_batches(dataset, order), output, check, options)


def sample(
    shards: Samples,
    output: Output,
    count: float,
    *,
    seed: int = 0,
    shuffle: bool = False,
    check: bool = True,
    **options: Any,  # noqa: ANN401 - checked by the writer
) -> WrittenShards:
    """Write a random sample of the records into new shards, the same one every time.

    The choice depends only on the keys and the seed, not on the shards or on any version. Needs 16 bytes of
    memory per record.

    Args:
        shards, output, check, options: as for `merge`.
        count: how many records; a float from 0 to 1 is a share of all, rounded.
        seed: of the random choice.
        shuffle: True writes them in random order rather than in their own.
    """
    with open_samples(shards) as dataset:
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
) -> dict[str, WrittenShards]:
    """Split a dataset into several.

        split("all.shardpack", "part-%06d.shardpack", max_records=10_000)
        split("all-*.shardpack", {"train-%06d.shardpack": 0.9, "val-%06d.shardpack": 0.1})

    With shares, the hash of its key and the seed decide where a record goes. Records that you add later do not
    move the others, and the shares are met approximately.

    Args:
        shards, check, options: as for `merge`.
        outputs: `"part-%06d.shardpack"`, cut in order; or names with their shares, which add up to 1.
        parts: with one name, the number of shards; their record counts differ by at most one.
        max_bytes: target size of a shard.
        max_records: most records of a shard.
        seed: of the random choice.

    Returns:
        What was written under each name.
    """
    # Shares take the records of a shard in several turns.
    opening = open_copied if isinstance(outputs, Mapping) else open_samples
    with opening(shards) as dataset:
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
                "how to split is missing", expected="parts, max_bytes or max_records", path=name
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
) -> WrittenShards:
    count = len(dataset)
    with _writer(dataset, name, {"max_bytes": None} | options) as writer:
        for part in range(parts):
            if part:
                writer.start_shard()
            for record in dataset.records(count * part // parts, count * (part + 1) // parts):
                writer.copy(record, check=check)
    return WrittenShards(writer.paths, count)


def _split_by_shares(
    dataset: AnyDataset,
    shares: dict[str, float],
    seed: int,
    check: bool,
    options: dict[str, Any],
) -> dict[str, WrittenShards]:
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
    found: dict[str, WrittenShards] = {}
    for number, name in enumerate(shares):
        numbers: list[int] = np.flatnonzero(chosen == number).tolist()
        found[name] = _write(dataset, _in_batches(dataset, numbers), name, check, dict(options))
    return found


def _by_chance(dataset: AnyDataset, seed: int) -> NDArray[np.uint64]:
    """A pseudorandom number for each record that depends only on its key and the seed."""
    # The finalizer of SplitMix64 over the key's hash; unsigned overflow is intended.
    mixed = dataset.key_hashes() ^ np.uint64(seed * 0x9E3779B97F4A7C15 & 0xFFFF_FFFF_FFFF_FFFF)
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
    output: Output,
    check: bool,
    options: dict[str, Any],
) -> WrittenShards:
    written = 0
    with _writer(dataset, output, options) as writer:
        for record in records:
            writer.copy(record, check=check)
            written += 1
    return WrittenShards(writer.paths, written)


def _writer(dataset: AnyDataset, output: Output, options: dict[str, Any]) -> ShardWriterSet:
    """A writer that keeps alignment and metadata of the old shards unless the options say otherwise."""
    options = dict(options)
    if options.get("alignment") is None:
        options["alignment"] = _alignment(dataset)
    if options.get("metadata") is None:
        options["metadata"] = _user_fields(dataset)
    return ShardWriterSet(output, **options)


def _shards(dataset: AnyDataset) -> Iterable[ShardPackReader]:
    if isinstance(dataset, CombinedDataset):
        return (shard for _, part in dataset.parts for shard in _shards(part))
    return dataset.shards


def _alignment(dataset: AnyDataset) -> int:
    """The largest alignment of the shards, so that entries stay usable in place."""
    return max((shard.record(0).alignment for shard in _shards(dataset) if len(shard)), default=8)


def _user_fields(dataset: AnyDataset) -> dict[str, Any]:
    """The users' fields of the old shards, if they agree."""
    fields: dict[str, Any] = {}
    for shard in _shards(dataset):
        said = shard.metadata.get("user")
        for name, value in said.items() if isinstance(said, dict) else ():
            if name in fields and fields[name] != value:
                raise InvalidArgument(
                    f"the shards disagree about {name!r}",
                    path=shard.name,
                    expected=repr(fields[name]),
                    found=repr(value),
                    hint="pass metadata={…} for the new shards",
                    command="pass --metadata KEY=VALUE for the new shards",
                )
            fields[name] = value
    return fields
