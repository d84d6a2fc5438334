"""Normalising batches of a data set: which channels, by which statistics, and doing it to whole arrays."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias, Union

import numpy as np
from xxhash import xxh64

from shard_format.errors import InvalidArgument
from wshard.dtypes import DType
from wshard.statistics.grouping import is_picture
from wshard.statistics.scaling import MODES, Scaling, check_mode
from wshard.statistics.stats import Stats
from wshard.statistics.stored import load_stats
from wshard.windows import Wanted, make_arrays

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from wshard.dataset.dataset import EpisodeDataset

    Arrays = Mapping[str, NDArray[Any]]

__all__ = ["Normalize", "Normalizer", "StatsSource", "make_normalizer"]

StatsSource: TypeAlias = Union[Stats, "str | os.PathLike[str]"]
"""Statistics, or the file that holds them."""
Normalize: TypeAlias = Union[bool, Stats, "str | os.PathLike[str] | Mapping[str, str]"]
"""What `EpisodeDataset(normalize=…)` takes."""

_DEFAULT: Final = "mean_std"
_REWARD: Final = Wanted("reward", "reward", False, np.dtype(np.float32), ())
# Which kinds of uncertainty are distances in the channel, and which are squares of distances.
_POWERS: Final = {"std": 1, "stddev": 1, "sigma": 1, "variance": 2, "var": 2}


class Normalizer:
    """Scales the channels of a batch.

    Args:
        scalings: by key; all others stay as they are.
        kinds: the types of the channels as they are read.
        stats: that the scalings are from.
    """

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
            threads: at most so many; None for one per processor.
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
    wanted: Iterable[Wanted],
    ds: EpisodeDataset,
) -> Normalizer | None:
    """What `EpisodeDataset(normalize=…, stats=…)` asks for; None for nothing.

    Args:
        normalize: as there.
        stats: as there.
        wanted: the channels of the data set.
        ds: the data set, as far as its files.

    Raises:
        InvalidArgument: an argument cannot work, or there are no statistics.
        ReferenceMismatch: the statistics are of other data.
    """
    if normalize is False:
        if stats is not None:
            raise InvalidArgument("stats without normalize do nothing", hint="pass normalize=True")
        return None
    modes, own_stats = _taken_apart(normalize)
    if own_stats is not None:
        if stats is not None:
            raise InvalidArgument(
                "there are two kinds of statistics",
                hint="pass normalize=True, or a mode, together with stats=",
            )
        stats = own_stats
    found = _find_stats(stats, ds)
    channels = {want.key: want for want in (*wanted, _REWARD)}
    if isinstance(modes, Mapping):
        _check_modes(modes, channels)
    chosen = {}
    for key, want in channels.items():
        scaling = _Choice(want, modes, found).scaling()
        if scaling is not None:
            chosen[key] = scaling
    return Normalizer(chosen, {key: want.dtype for key, want in channels.items()}, found)


def _taken_apart(normalize: Normalize) -> tuple[Mapping[str, str] | str, StatsSource | None]:
    """How, and by which statistics, if that says so."""
    if normalize is True:
        return _DEFAULT, None
    # Statistics are a mapping, too.
    if isinstance(normalize, Stats):
        return _DEFAULT, normalize
    if isinstance(normalize, os.PathLike):
        return _DEFAULT, normalize
    if isinstance(normalize, str):
        return (normalize, None) if normalize in MODES else (_DEFAULT, normalize)
    if isinstance(normalize, Mapping) and not isinstance(normalize, Stats):
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
                hint="pass stats=wshard.compute_stats(files), or the path where they were saved",
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
    return load_stats(path, ds)


def _check_modes(modes: Mapping[str, str], channels: Mapping[str, Wanted]) -> None:
    for key, mode in modes.items():
        if key not in channels:
            raise InvalidArgument(
                "normalize names a channel that is not there",
                entry=key,
                expected=", ".join(sorted(channels)),
            )
        try:
            check_mode(mode)
        except InvalidArgument as error:
            raise error.located(entry=key) from None


class _Choice:
    """How one channel is normalised.

    Args:
        want: the channel.
        modes: for each channel by name; or one, for those that are usually normalised.
        stats: of all channels.
    """

    def __init__(self, want: Wanted, modes: Mapping[str, str] | str, stats: Stats) -> None:
        self._want = want
        self._modes = modes
        self._stats = stats
        self._lane, _, rest = want.key.partition("/")
        self._parts = rest.split("/") if self._lane in ("omen", "uncert") else []

    def scaling(self) -> Scaling | None:
        """None if it stays as it is."""
        want = self._want
        mode = self._mode()
        if mode == "none":
            return None
        name = self._truth() or want.key
        found = self._stats.find(name)
        if found is None:
            raise InvalidArgument(
                "there are no statistics of this channel",
                entry=want.key,
                expected=", ".join(self._stats),
                hint="compute_stats(EpisodeDataset(…, channels=[…])) makes them of any channels",
            )
        if found.shape != want.shape:
            raise InvalidArgument(
                "the statistics are of another kind of channel",
                entry=want.key,
                expected=f"{want.dtype} {list(want.shape)}",
                found=f"{found.dtype} {list(found.shape)}",
            )
        made = found.scaling(mode)
        made = Scaling(made.offset, made.scale, self._dtype(found.dtype), want.shape)
        return made.of_spread(_POWERS[self._parts[-1]]) if self._lane == "uncert" else made

    def _mode(self) -> str:
        want, modes = self._want, self._modes
        is_asked = isinstance(modes, Mapping) and want.key in modes
        if self._lane == "uncert" and (self._truth() is None or self._parts[-1] not in _POWERS):
            if isinstance(modes, Mapping) and modes.get(want.key, "none") != "none":
                raise InvalidArgument(
                    "this uncertainty cannot be normalised",
                    entry=want.key,
                    expected=f"one of {', '.join(_POWERS)}, and statistics of its channel",
                )
            return "none"
        if isinstance(modes, Mapping):
            truth = self._truth()
            return modes[want.key] if is_asked else modes.get(truth or "", "none")
        if want is _REWARD:
            return "none"
        dtype = DType.from_numpy(want.dtype)
        is_usual = dtype.is_float or is_picture(dtype, want.shape)
        return modes if is_usual or self._is_bits(dtype) else "none"

    def _truth(self) -> str | None:
        """The channel that a prediction or an uncertainty is about, if it has statistics."""
        # Names may have slashes: the longest that is known is meant.
        for stop in range(len(self._parts) - 1, 0, -1):
            name = "/".join(self._parts[:stop])
            if self._stats.find(name) is not None:
                return name
        return None

    def _is_bits(self, dtype: DType) -> bool:
        """Whether these are bf16 numbers that come as bits, as they do without ml_dtypes."""
        found = self._stats.find(self._want.key)
        return dtype is DType.UINT16 and found is not None and found.dtype is DType.BFLOAT16

    def _dtype(self, of_stats: DType) -> DType:
        dtype = DType.from_numpy(self._want.dtype)
        is_bits = dtype is DType.UINT16 and of_stats is DType.BFLOAT16
        return DType.BFLOAT16 if is_bits else dtype
