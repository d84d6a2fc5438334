"""What samples are taken from: opened if it is not, the sizes of its shards, and what tells it from others."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from xxhash import xxh64

from shard_format._parallel import map_in_order
from shard_format.errors import FormatError, InvalidArgument, ShardError, ShardIOError, TrustError
from shard_format.sources import is_url
from shardpack.columns import CombinedDataset
from shardpack.dataset import Dataset
from shardpack.patterns import expand
from shardpack.reader import read_footer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shard_format._skipping import SkipCounter
    from shardpack.columns import AnyDataset, Samples

__all__ = ["DAMAGE", "described", "fingerprint", "open_samples", "shard_sizes"]

DAMAGE: Final = (FormatError, TrustError, ShardIOError)
"""Data that is damaged or away; not calls that cannot work."""
# Requests for footers that are under way at the same time.
_AT_ONCE: Final = 8


def open_samples(
    source: Samples, storage_options: Mapping[str, Any] | None, skipped: SkipCounter | None
) -> AnyDataset:
    """The data set.

    Args:
        source: as for `SampleDataset`.
        storage_options: for URLs.
        skipped: told of shards that cannot be opened, which are left out then; None for an error.
    """
    if isinstance(source, (Dataset, CombinedDataset)):
        if storage_options:
            raise InvalidArgument(
                "storage_options are for shards that are opened here",
                found="a data set that is open",
                hint="pass them to shardpack.open",
            )
        return source
    if skipped is None:
        return Dataset(source, storage_options=storage_options)
    usable: list[Any] = []
    failure: ShardError | None = None
    locations = expand(source)
    is_remote = isinstance(locations[0], str) and is_url(locations[0])
    wrong = map_in_order(
        locations,
        lambda location: _what_is_wrong(location, storage_options),
        _AT_ONCE if is_remote else 1,
    )
    for location, error in zip(locations, wrong, strict=True):
        if error is None:
            usable.append(location)
        else:
            skipped.leave_out(error.path or _name(location), error)
            failure = error
    while usable:
        try:
            return Dataset(usable, storage_options=storage_options)
        except DAMAGE as error:  # noqa: PERF203 - damage is rare
            # The first one is opened at once, and has an index that cannot be used.
            failure = error
            skipped.leave_out(error.path or _name(usable[0]), error)
            del usable[0]
    assert failure is not None  # there was at least one location
    raise failure


def _what_is_wrong(
    location: Any,  # noqa: ANN401 - any source
    storage_options: Mapping[str, Any] | None,
) -> ShardError | None:
    try:
        read_footer(location, storage_options)
    except DAMAGE as error:
        return error
    return None


def shard_sizes(dataset: AnyDataset) -> tuple[int, ...]:
    """How many samples each shard has; of joins and overlays those of the first data set, which has the order."""
    if isinstance(dataset, CombinedDataset):
        return shard_sizes(dataset.main)
    return tuple(footer.record_count for footer in dataset.footers())


def fingerprint(dataset: AnyDataset) -> str:
    """Changes with names, sizes and indexes of the shards; the same wherever they lie."""
    digest = xxh64()
    if isinstance(dataset, CombinedDataset):
        parts = [(prefix, fingerprint(part)) for prefix, part in dataset.parts]
        digest.update(repr((type(dataset).__name__, parts)).encode())
    else:
        for location, footer in zip(dataset.locations, dataset.footers(), strict=True):
            digest.update(repr((os.path.basename(_name(location)), *footer)).encode())
    return digest.hexdigest()


def described(dataset: AnyDataset) -> str:
    """The data set in messages: the name of its first shard, and how many more there are."""
    return described(dataset.main) if isinstance(dataset, CombinedDataset) else dataset._described()


def _name(location: Any) -> str:  # noqa: ANN401 - any source
    """What a shard is called, without what a URL says to the server."""
    if isinstance(location, str):
        return location.partition("?")[0] if is_url(location) else location
    name = getattr(location, "name", "<bytes>")
    return name if isinstance(name, str) else "<file>"
