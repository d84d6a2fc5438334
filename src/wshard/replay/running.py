"""The episode that a replay buffer is being given, step by step."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from wshard.dtypes import DType
from wshard.folders import SUFFIX
from wshard.journal import PARTIAL_SUFFIX
from wshard.streaming import ChannelDef, WShardStreamWriter

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from shard_format import Compression
    from wshard.replay.episodes import Stored

    Values = Mapping[str, NDArray[Any]]


class RunningEpisode:
    """Records steps under a path whose journal is ours already; it goes if nothing can be recorded.

    Args:
        path: of the file it becomes.
        observations: of the first step, for their types and shapes,
        actions: and what is done.
        compression: as for `WShardStreamWriter`.
        fsync: the same.
    """

    def __init__(
        self,
        path: str,
        observations: Values,
        actions: Values,
        compression: str | Compression | None,
        fsync: str,
    ) -> None:
        self.name = os.path.basename(path).removesuffix(SUFFIX)
        self.stored: Stored | None = None
        """Its place among the others, once windows can be drawn from it."""
        self._in_both_lanes = observations.keys() & actions.keys()
        try:
            self._writer = WShardStreamWriter(
                path,
                self.name,
                [
                    ChannelDef(name, DType.from_numpy(value.dtype), value.shape, lane=lane)
                    for lane, values in (("signal", observations), ("action", actions))
                    for name, value in values.items()
                ],
                compression=compression,
                fsync=fsync,
                may_roll=False,
            )
            self._writer.begin_episode()
        except BaseException:
            with suppress(OSError):
                os.unlink(path + PARTIAL_SUFFIX)
            raise

    @property
    def steps(self) -> int:
        """Added so far."""
        return self._writer.steps_written

    def add(
        self,
        observations: Values,
        actions: Values,
        reward: float,
        terminated: bool,
        truncated: bool,
    ) -> None:
        """Records one step."""
        self._writer.write_timestep(
            {**self._by_key("signal", observations), **self._by_key("action", actions)},
            reward=reward,
            terminated=terminated,
            truncated=truncated,
        )

    def flush(self) -> None:
        """Returns when every step is in the journal."""
        self._writer.flush()

    def end(self, last: Values) -> None:
        """Finishes the file, with what was seen after the last step."""
        self._writer.end_episode(final_observations=self._by_key("signal", last))

    def _by_key(self, lane: str, values: Values) -> dict[str, NDArray[Any]]:
        """Under the names that the writer takes: a name of two lanes needs its lane."""
        return {
            f"{lane}/{name}" if name in self._in_both_lanes else name: value
            for name, value in values.items()
        }


def named(values: Mapping[str, ArrayLike] | ArrayLike, name: str) -> dict[str, NDArray[Any]]:
    """Arrays by name; one array alone gets this name."""
    if isinstance(values, Mapping):
        return {key: np.asarray(value) for key, value in values.items()}
    return {name: np.asarray(values)}
