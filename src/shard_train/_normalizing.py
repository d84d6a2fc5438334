"""Normalising batches of a dataset: which channels, by which statistics, and doing it to whole arrays."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias, Union

import numpy as np
from xxhash import xxh64

from shard_format.errors import InvalidArgument, ReferenceMismatch, check_choice
from shard_train._stats import (
    MODES,
    Scaling,
    Stats,
    is_picture,
    read_stats,
    stats_beside,
)
from wshard.types import DType
from wshard.windows import ChannelSpec, make_arrays

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from shard_train._episode_dataset import EpisodeDataset

    Arrays = Mapping[str, NDArray[Any]]

__all__ = ["Normalize", "Normalizer", "StatsSource", "load_stats_of", "make_normalizer"]

StatsSource: TypeAlias = Union[Stats, "str | os.PathLike[str]"]
"""Statistics, or the file that holds them."""
Normalize: TypeAlias = Union[bool, Stats, "str | os.PathLike[str] | Mapping[str, str]"]
"""What `EpisodeDataset(normalize=…)` takes."""

_DEFAULT: Final = "mean_std"
_REWARD: Final = ChannelSpec("reward", "reward", False, np.dtype(np.float32), ())
# Which kinds of uncertainty are distances in the channel, and which are squares of distances.
_POWERS: Final = {"std": 1, "stddev": 1, "sigma": 1, "variance": 2, "var": 2}


class Normalizer:
    """Scales the channels of a batch."""

    def __init__(
        self, scalings: Mapping[str, Scaling], kinds: Mapping[str, np.dtype[Any]], stats: Stats
    ) -> None:
        self._scalings = dict(scalings)
        self._converted = {
            key: kinds[key] for key, one in scalings.items() if one.out_dtype != kinds[key]
        }
        self.stats = stats

    @property
    def fingerprint(self) -> str:
        """Changes with what is done to which channel."""
        digest = xxh64()
        for key, one in sorted(self._scalings.items()):
            digest.update(repr((key, one.out_dtype.str)).encode())
            digest.update(one.offset.tobytes() + one.scale.tobytes())
        return digest.hexdigest()

    def dtype_of(self, key: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """The type of a channel in the batch, if it is read as `dtype`."""
        return self._scalings[key].out_dtype if key in self._scalings else dtype

    def readable(self, out: Arrays | None) -> Arrays | None:
        """Arrays to read into, in place of those of an earlier batch, whose types may be others."""
        if out is None:
            return None
        return {
            **out,
            **{
                key: np.empty(np.shape(out[key]), dtype)
                for key, dtype in self._converted.items()
                if key in out
            },
        }

    def apply(
        self,
        arrays: Arrays,
        out: Arrays | None,
        threads: int | None,
        *,
        zero: NDArray[np.bool_] | None = None,
    ) -> dict[str, NDArray[Any]]:
        """The batch, normalised: in place where the type is the same.

        Args:
            arrays: as they were read.
            out: of an earlier batch, to be used again.
            threads: how many at most; None for one per processor.
            zero: `[B, T]`, steps behind the end of an episode that are zero and stay so.
        """
        done = dict(arrays)
        for key, scaling in self._scalings.items():
            values = target = arrays[key]
            if key in self._converted:
                forms = {key: (values.shape[1:], scaling.out_dtype)}
                target = make_arrays(forms, len(values), out)[key]
            done[key] = scaling.forward(values, target, threads)
            if zero is not None:
                is_zero = zero
                if target.shape[1] > zero.shape[1]:
                    # One entry more: what followed the last step is there, too.
                    is_zero = np.pad(zero, ((0, 0), (1, 0)))
                done[key][is_zero] = 0
        return done


def make_normalizer(
    normalize: Normalize,
    stats: StatsSource | None,
    wanted: Iterable[ChannelSpec],
    ds: EpisodeDataset,
) -> Normalizer | None:
    """What `EpisodeDataset(normalize=…, stats=…)` asks for; None for nothing.

    Raises:
        InvalidArgument: an argument cannot work, or statistics are missing.
        ReferenceMismatch: the statistics are of other data.
    """
    if normalize is False:
        if stats is not None:
            raise InvalidArgument(
                "stats has no effect without normalize", hint="pass normalize=True"
            )
        return None
    modes, own_stats = _taken_apart(normalize)
    if own_stats is not None:
        if stats is not None:
            raise InvalidArgument(
                "statistics are given twice",
                hint="pass normalize=True, or a mode, together with stats=",
            )
        stats = own_stats
    found = _find_stats(stats, ds)
    channels = {want.key: want for want in (*wanted, _REWARD)}
    if isinstance(modes, Mapping):
        _check_modes(modes, channels)
    chosen = {}
    for key, want in channels.items():
        scaling = _scaling_of(want, modes, found)
        if scaling is not None:
            chosen[key] = scaling
    return Normalizer(chosen, {key: want.dtype for key, want in channels.items()}, found)


def _taken_apart(normalize: Normalize) -> tuple[Mapping[str, str] | str, StatsSource | None]:
    """Return the modes, and the statistics if `normalize` names some."""
    if normalize is True:
        return _DEFAULT, None
    if isinstance(normalize, str) and normalize in MODES:
        return normalize, None
    if isinstance(normalize, (Stats, str, os.PathLike)):
        return _DEFAULT, normalize
    if isinstance(normalize, Mapping) and not isinstance(
        normalize, Stats
    ):  # which are a mapping, too
        return normalize, None
    raise InvalidArgument(
        "unknown normalize",
        expected="True, a mode, a mode for each channel, Stats, or a path",
        found=repr(normalize),
    )


def _find_stats(stats: StatsSource | None, ds: EpisodeDataset) -> Stats:
    if isinstance(stats, Stats):
        return stats
    path: str | os.PathLike[str]
    if stats is None:
        if ds.folder is None:
            raise InvalidArgument(
                "only a folder has statistics beside it",
                found=f"{len(ds.lengths)} files that were listed",
                hint="pass stats=shard_train.compute_stats(files), or the path where they were saved",
            )
        path = ds.folder
    else:
        path = stats
    if not os.path.exists(path) and os.fspath(path).isidentifier():
        raise InvalidArgument(
            "neither a mode nor a file",
            expected=f"{' or '.join(map(repr, MODES))}, or a path",
            found=repr(os.fspath(path)),
        )
    return load_stats_of(path, ds)


def load_stats_of(where: str | os.PathLike[str], ds: EpisodeDataset | None) -> Stats:
    """Read statistics and check that they are of this dataset; see `load_stats`."""
    source = os.fspath(where)
    path = stats_beside(source) if os.path.isdir(source) else source
    stats = read_stats(path)
    again = f"shard_train.compute_stats({'ds' if source == path else repr(source)})"
    if stats is None:
        raise InvalidArgument(
            "no statistics found",
            path=path,
            hint=f"make them: shard_train.save_stats({again}, {source!r})"
            + (f", or 'wshard stats {source}'" if source != path else ""),
            command=f"'wshard stats {source}' makes them",
        )
    if ds is not None and ds.data_fingerprint not in stats.fingerprints:
        raise ReferenceMismatch(
            "the statistics are of other data, or the data has changed since",
            path=path,
            expected=f"fingerprint {ds.data_fingerprint}, {len(ds.lengths)} episodes",
            found=f"{', '.join(stats.fingerprints)}, {stats.episodes} episodes",
            hint=f"compute them again: shard_train.save_stats({again}, {source!r}); "
            f"or use them as they are: normalize=shard_train.load_stats({path!r})",
            command="pass --force to make them again",
        )
    return stats


def _check_modes(modes: Mapping[str, str], channels: Mapping[str, ChannelSpec]) -> None:
    for key, mode in modes.items():
        if key not in channels:
            raise InvalidArgument(
                "normalize names a channel that is not there",
                entry=key,
                expected=", ".join(sorted(channels)),
            )
        try:
            check_choice("mode", mode, MODES)
        except InvalidArgument as error:
            raise error.located(entry=key) from None


def _scaling_of(want: ChannelSpec, modes: Mapping[str, str] | str, stats: Stats) -> Scaling | None:
    """Return how a channel is normalised; None if it stays as it is."""
    lane, _, rest = want.key.partition("/")
    parts = rest.split("/") if lane in ("omen", "uncert") else []
    # The channel that a prediction or an uncertainty is about. Names may have slashes: the longest that is known counts.
    prefixes = ("/".join(parts[:stop]) for stop in range(len(parts) - 1, 0, -1))
    truth = next((name for name in prefixes if stats.find(name) is not None), None)
    found = stats.find(truth or want.key)
    dtype = DType.from_numpy(want.dtype)
    if dtype is DType.UINT16 and found is not None and found.dtype is DType.BFLOAT16:
        dtype = DType.BFLOAT16  # without ml_dtypes, these numbers come as bits
    power = _POWERS.get(parts[-1]) if lane == "uncert" and truth is not None else None
    if isinstance(modes, Mapping):
        mode = modes[want.key] if want.key in modes else modes.get(truth or "", "none")
    else:
        is_usual = want is not _REWARD and (dtype.is_float or is_picture(dtype, want.shape))
        mode = modes if is_usual else "none"
    if lane == "uncert" and power is None:
        if isinstance(modes, Mapping) and modes.get(want.key, "none") != "none":
            raise InvalidArgument(
                "this uncertainty cannot be normalised",
                entry=want.key,
                expected=f"one of {', '.join(_POWERS)}, and statistics of its channel",
            )
        return None
    if mode == "none":
        return None
    if found is None:
        raise InvalidArgument(
            "no statistics of this channel",
            entry=want.key,
            expected=", ".join(stats),
            hint="compute_stats(EpisodeDataset(…, channels=[…])) makes them of any channels",
        )
    # A prediction may have a horizon: each of its steps then has the shape of the channel.
    if found.shape not in (want.shape, want.shape[1:] if truth is not None else want.shape):
        raise InvalidArgument(
            "the statistics are of another kind of channel",
            entry=want.key,
            expected=f"{want.dtype} {list(want.shape)}",
            found=f"{found.dtype} {list(found.shape)}",
        )
    of_stats = found.scaling(mode)
    made = Scaling(of_stats.offset, of_stats.scale, dtype, want.shape)
    return made if power is None else made.of_spread(power)
