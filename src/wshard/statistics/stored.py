"""Statistics in a file beside their data: canonical JSON, believed only of the data that it was made of."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format._atomic import AtomicFile, write_all
from shard_format._json import canonical, parse_object
from shard_format.errors import (
    BadMetadata,
    InvalidArgument,
    ReferenceMismatch,
    ShardError,
    ShardIOError,
    UnsupportedVersion,
)
from shard_format.registry import DEFAULT_LIMITS
from wshard.dtypes import DType
from wshard.statistics.channel import ChannelStats, widest
from wshard.statistics.distribution import Distribution
from wshard.statistics.grouping import bins_of, group_shape
from wshard.statistics.stats import Stats
from wshard.values import product

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from wshard.dataset.dataset import EpisodeDataset

__all__ = ["channel_fields", "load_stats", "save_stats", "stats_beside"]

SUFFIX: Final = ".wshard-stats"
_FORMAT: Final = "wshard-stats"
_VERSION: Final = 1
_COUNTS: Final = ("count", "nan", "inf")
_NUMBERS: Final = ("mean", "std", "min", "max")


def stats_beside(folder: str | os.PathLike[str]) -> str:
    """Where the statistics of a folder are."""
    return os.path.abspath(folder) + SUFFIX


def save_stats(stats: Stats, where: str | os.PathLike[str]) -> str:
    """Writes statistics to a file that appears complete or not at all; returns its path.

    Args:
        stats: of `compute_stats`.
        where: the folder of the episodes, for `<folder>.wshard-stats`; or a path.
    """
    path = _path_of(where)
    text = canonical(_to_fields(stats)) + b"\n"
    file = AtomicFile(path, fsync=True)
    try:
        write_all(file.descriptor, [text])
        file.commit()
    except OSError as error:  # would name the temporary file
        raise ShardIOError.wrap(error, "cannot write", path) from error
    finally:
        file.abort()
    return path


def load_stats(where: str | os.PathLike[str], ds: EpisodeDataset | None = None) -> Stats:
    """Reads statistics that were saved.

    Args:
        where: a folder of episodes, which must be as it was then; or the path of the file.
        ds: the data set that they must be of, all its files or some; of a file that is given by its path they may be of
            anything if this is left out.

    Raises:
        InvalidArgument: there are none.
        ReferenceMismatch: they are of other data, or the data has changed.
        BadMetadata: the file is damaged.
    """
    path = _path_of(where)
    try:
        with open(path, "rb") as file:
            text = file.read(DEFAULT_LIMITS.max_json_bytes + 1)
    except FileNotFoundError:
        raise _missing(where, path) from None
    except OSError as error:
        raise ShardIOError.wrap(error, "cannot read", path) from error
    try:
        stats = _from_fields(parse_object(text, "the file", DEFAULT_LIMITS))
    except ShardError as error:
        raise error.located(path=path) from None
    if ds is None and path != os.fspath(where):
        from wshard.dataset.dataset import EpisodeDataset

        ds = EpisodeDataset(os.fspath(where), window=1)
    if ds is not None and ds.data_fingerprint not in stats.fingerprints:
        source = os.fspath(where)
        again = "ds" if source == path else repr(source)
        raise ReferenceMismatch(
            "the statistics are of other data, or the data has changed since",
            path=path,
            expected=f"fingerprint {ds.data_fingerprint}, {len(ds.lengths)} episodes",
            found=f"{', '.join(stats.fingerprints)}, {stats.episodes} episodes",
            hint=f"make them anew: wshard.save_stats(wshard.compute_stats({again}), {source!r}); "
            f"or use them as they are: normalize=wshard.load_stats({path!r})",
        )
    return stats


def _path_of(where: str | os.PathLike[str]) -> str:
    return stats_beside(where) if os.path.isdir(where) else os.fspath(where)


def _missing(where: str | os.PathLike[str], path: str) -> InvalidArgument:
    source = os.fspath(where)
    again = "ds" if source == path else repr(source)
    return InvalidArgument(
        "there are no statistics",
        path=path,
        hint=f"make them: wshard.save_stats(wshard.compute_stats({again}), {source!r})"
        + (f", or 'wshard stats {source}'" if source != path else ""),
    )


# --- writing


def _to_fields(stats: Stats) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "version": _VERSION,
        "fingerprints": list(stats.fingerprints),
        "episodes": stats.episodes,
        "steps": stats.steps,
        "channels": {name: _with_distributions(channel) for name, channel in stats.items()},
    }


def channel_fields(channel: ChannelStats) -> dict[str, Any]:
    """The statistics of a channel for JSON, without its distributions; arrays are flat."""
    return {
        "dtype": channel.dtype.value,
        "shape": list(channel.shape),
        **{name: _listed(getattr(channel, name)) for name in (*_COUNTS, *_NUMBERS)},
        "quantiles": {repr(share): _listed(row) for share, row in channel.quantiles.items()},
    }


def _with_distributions(channel: ChannelStats) -> dict[str, Any]:
    return {
        **channel_fields(channel),
        "distributions": [
            {"values": _listed(one.values), "counts": _listed(one.counts)}
            for one in channel.distributions
        ],
    }


def _listed(values: NDArray[Any]) -> list[Any]:
    """Flat; null for NaN, which JSON has not."""
    flat: list[Any] = values.reshape(-1).tolist()
    return [None if math.isnan(value) else value for value in flat]


# --- reading


def _from_fields(fields: Mapping[str, Any]) -> Stats:
    if fields.get("format") != _FORMAT:
        raise BadMetadata("these are no statistics", expected=f'"format":"{_FORMAT}"')
    if fields.get("version") != _VERSION:
        raise UnsupportedVersion(
            "statistics of an unknown version", expected=_VERSION, found=fields.get("version")
        )
    fingerprints, channels = fields.get("fingerprints"), fields.get("channels")
    episodes, steps = fields.get("episodes"), fields.get("steps")
    if (
        not isinstance(fingerprints, list)
        or not all(isinstance(one, str) for one in fingerprints)
        or not isinstance(channels, dict)
        or not (isinstance(episodes, int) and episodes >= 0)
        or not (isinstance(steps, int) and steps >= 0)
    ):
        raise BadMetadata("the statistics do not say what they are of")
    found = {name: _channel(name, channel) for name, channel in channels.items()}
    return Stats(found, tuple(fingerprints), episodes, steps)


def _channel(name: str, fields: Mapping[str, Any]) -> ChannelStats:
    try:
        return _parse_channel(fields)
    except (ShardError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise BadMetadata(
            f"the statistics of a channel cannot be read: {error}", entry=name
        ) from None


def _parse_channel(fields: Mapping[str, Any]) -> ChannelStats:
    dtype = DType(fields["dtype"])
    shape = tuple(fields["shape"])
    if not all(type(size) is int and size > 0 for size in shape):
        raise ValueError("the shape is no list of sizes")
    groups = group_shape(dtype, shape)
    counts = [_counts(fields[name]) for name in _COUNTS]
    numbers = [
        _integers(fields[name], widest(dtype))
        if name in ("min", "max") and not dtype.is_float and None not in fields[name]
        else _floats(fields[name])
        for name in _NUMBERS
    ]
    if (numbers[1] < 0).any():
        raise ValueError("a deviation is negative")
    quantiles = fields["quantiles"]
    if not isinstance(quantiles, dict):
        raise TypeError("the quantiles have no shares")
    shares = {float(share): _floats(row) for share, row in quantiles.items()}
    if not all(0 <= share <= 1 for share in shares):
        raise ValueError("a quantile is no share")
    is_counted = bins_of(dtype, product(groups)) is not None
    distributions = tuple(_distribution(one, is_counted) for one in fields["distributions"])
    sizes = {each.size for each in (*counts, *numbers, *shares.values())} | {len(distributions)}
    if sizes != {product(groups)}:
        raise ValueError(f"{product(groups)} numbers are expected of each")
    count, nan, inf = (each.reshape(groups) for each in counts)
    mean, std, low, high = (each.reshape(groups) for each in numbers)
    return ChannelStats(
        dtype=dtype,
        shape=shape,
        count=count,
        nan=nan,
        inf=inf,
        mean=mean,
        std=std,
        min=low,
        max=high,
        quantiles={share: shares[share].reshape(groups) for share in sorted(shares)},
        distributions=distributions,
    )


def _distribution(fields: Mapping[str, Any], is_counted: bool) -> Distribution:
    counts = _counts(fields["counts"])
    values = _integers(fields["values"]) if is_counted else _floats(fields["values"])
    if len(values) != len(counts) or (np.diff(values) < 0).any() or (counts < 1).any():
        raise ValueError("a distribution is out of order")
    return Distribution(values, counts)


def _counts(listed: Sequence[Any]) -> NDArray[np.int64]:
    counts = _integers(listed)
    if (counts < 0).any():
        raise ValueError("a count is negative")
    return counts


def _integers(listed: Sequence[Any], kind: type[np.integer[Any]] = np.int64) -> NDArray[Any]:
    if not all(type(value) is int for value in listed):
        raise ValueError("a whole number is none")
    return np.array(listed, kind)


def _floats(listed: Sequence[Any]) -> NDArray[np.float64]:
    if not all(value is None or type(value) in (int, float) for value in listed):
        raise ValueError("a number is none")
    return np.array([np.nan if value is None else value for value in listed], np.float64)
