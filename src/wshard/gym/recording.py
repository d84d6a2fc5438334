"""The episodes of one environment, one file each."""

from __future__ import annotations

import os
import string
from array import array
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, count
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.errors import InvalidArgument
from wshard.channels import Modality
from wshard.dtypes import DType
from wshard.folders import SUFFIX, reserve
from wshard.gym.infos import as_json, flat, info_channels
from wshard.journal import PARTIAL_SUFFIX
from wshard.ragged import TextChannel
from wshard.streaming import ChannelDef, WShardStreamWriter
from wshard.timebase import Timebase

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shard_format import Compression
    from wshard.episode import Episode
    from wshard.gym.spaces import Leaf

CAMERA: Final = "render"
_FIELDS: Final = ("episode", "env", "seed")

Metadata = Mapping[str, Any] | Callable[[dict[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True)
class Settings:
    """How to record."""

    names: Names
    env_id: str
    facts: Mapping[str, Any]
    """Metadata of every episode."""
    observations: list[Leaf]
    actions: list[Leaf]
    channels: Mapping[str, Mapping[str, Any]]
    compression: str | Compression | None
    fsync: str
    infos: bool
    metadata: Metadata
    timebase: Timebase | None

    def check(self) -> None:
        """Raises for what would only be noticed at the first step."""
        known = {*(leaf.name for leaf in (*self.observations, *self.actions)), CAMERA}
        for name in self.channels:
            if name not in known:
                raise InvalidArgument(
                    "there is no such channel", entry=name, expected=", ".join(sorted(known))
                )


class Names:
    """Gives every episode a name that is free, also while other processes record into the same folder."""

    def __init__(self, folder: str | os.PathLike[str], template: str) -> None:
        self.folder = os.fspath(folder)
        self._template = template
        self._numbers = count()
        try:
            fields = [name for _, name, _, _ in string.Formatter().parse(template) if name]
            for seed in (0, "none"):
                template.format(episode=0, env=0, seed=seed)
        except (ValueError, KeyError, IndexError) as error:
            raise InvalidArgument(
                "this is no name for episodes", expected=f"fields {_FIELDS}", found=repr(error)
            ) from None
        if "episode" not in fields:
            raise InvalidArgument(
                "all episodes would have the same name",
                expected="a name with {episode}",
                found=repr(template),
            )

    def reserve(self, env: int, seed: int | None) -> tuple[str, int]:
        """The next free path, and its number. An empty journal holds its place."""
        while True:
            number = next(self._numbers)
            name = self._template.format(
                episode=number, env=env, seed="none" if seed is None else seed
            )
            path = os.path.join(self.folder, name + SUFFIX)
            if reserve(path):
                return path, number


class EpisodeRecorder:
    """Records one episode after the other.

    A step is written together with the observation that the action answered to; the last observation waits
    for the next action, or for the end, when it becomes the entry after the last step.

    Owns: the writer of the current episode.
    """

    def __init__(self, settings: Settings, env: int | None = None) -> None:
        self._settings = settings
        self._env = env
        self._writer: WShardStreamWriter | None = None
        self._ids = {leaf.name for leaf in settings.observations} & {
            leaf.name for leaf in settings.actions
        }

    @property
    def is_recording(self) -> bool:
        """Whether an episode has begun and not ended."""
        return self._writer is not None

    def begin(
        self,
        observation: Any,  # noqa: ANN401 - a value of the observation space
        info: Mapping[str, Any],
        frame: NDArray[Any] | None,
        *,
        seed: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Starts an episode; one that is not over ends here."""
        if self._writer is not None:
            self.finish("reset")
        settings = self._settings
        first = self._observed(observation, frame)
        channels = [
            *(self._channel(leaf, "signal") for leaf in settings.observations),
            *(self._channel(leaf, "action") for leaf in settings.actions),
        ]
        if frame is not None:
            fields = {"modality": Modality.RGB.value, **settings.channels.get(CAMERA, {})}
            channels.append(
                ChannelDef(CAMERA, DType.from_numpy(frame.dtype), frame.shape, **fields)
            )
        facts: dict[str, Any] = {
            **settings.facts,
            "seed": as_json(seed),
            "options": as_json(options),
            **({} if self._env is None else {"env_index": self._env}),
            **(settings.metadata if isinstance(settings.metadata, Mapping) else {}),
        }
        path, number = settings.names.reserve(self._env or 0, seed)
        try:
            writer = WShardStreamWriter(
                path,
                os.path.relpath(path, settings.names.folder).removesuffix(SUFFIX),
                channels,
                compression=settings.compression,
                fsync=settings.fsync,
                may_roll=False,  # texts and infos are added to the whole in the end
            )
            writer.begin_episode(settings.env_id, _copy(settings.timebase), facts)
        except BaseException:
            with suppress(OSError):
                os.unlink(path + PARTIAL_SUFFIX)
            raise
        self._writer = writer
        self._facts = {"episode": number, **facts}
        self._before = first
        self._rewards = array("d")
        self._infos = [flat(info)] if settings.infos else []
        self._texts: dict[tuple[str, str], list[str]] = {}

    def step(
        self,
        action: Any,  # noqa: ANN401 - a value of the action space
        observation: Any,  # noqa: ANN401 - a value of the observation space
        reward: Any,  # noqa: ANN401 - a number
        terminated: bool,
        truncated: bool,
        info: Mapping[str, Any],
        frame: NDArray[Any] | None,
    ) -> None:
        """Records a step, and ends the episode if it is the last one.

        Raises:
            InvalidArgument: something does not fit. The recording stops, because an episode has no gaps; what
                was recorded of it stays in its journal.
        """
        writer = self._writer
        assert writer is not None
        try:
            number = _number(reward)
            after = self._observed(observation, frame)
            done = {leaf.name: leaf.pick(action) for leaf in self._settings.actions}
            values = {
                **self._stored("signal", self._settings.observations, self._before),
                **self._stored("action", self._settings.actions, done),
            }
            if CAMERA in self._before:
                values[CAMERA] = self._before[CAMERA]
            writer.write_timestep(
                values,
                reward=number,
                terminated=bool(terminated),
                truncated=bool(truncated),
            )
        except BaseException:
            self.close()
            raise
        self._rewards.append(number)
        self._keep_texts("signal", self._settings.observations, self._before)
        self._keep_texts("action", self._settings.actions, done)
        self._before = after
        if self._settings.infos:
            self._infos.append(flat(info))
        if terminated or truncated:
            self.finish("terminated" if terminated else "truncated")

    def finish(self, why: str) -> None:
        """Ends the episode: its file appears. One without steps leaves nothing."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        if not self._rewards:
            writer.abort()
            return
        final = self._stored("signal", self._settings.observations, self._before)
        if CAMERA in self._before:
            final[CAMERA] = self._before[CAMERA]
        self._keep_texts("signal", self._settings.observations, self._before)
        try:
            said: dict[str, Any] = {"ended": why}
            if callable(self._settings.metadata):
                said |= self._settings.metadata({**self._facts, **said})
            channels, left_out = info_channels(self._infos)
            if left_out:
                said["infos_left_out"] = left_out

            def complete(episode: Episode) -> None:
                self._complete(episode)
                for name, channel in channels.items():
                    episode.observations[name] = channel

            writer.end_episode(said, final_observations=final, complete=complete)
        except BaseException:
            writer.close()
            raise

    def flush(self) -> None:
        """Puts what was recorded so far into the journal."""
        if self._writer is not None and self._rewards:
            self._writer.flush()

    def close(self) -> None:
        """Stops in the middle of an episode; its journal stays, for `wshard recover`."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        if self._rewards:
            writer.close()
        else:
            writer.abort()

    # --- one step

    def _observed(self, observation: Any, frame: NDArray[Any] | None) -> dict[str, Any]:  # noqa: ANN401 - as above
        found = {leaf.name: leaf.pick(observation) for leaf in self._settings.observations}
        if frame is not None:
            found[CAMERA] = frame
        return found

    def _channel(self, leaf: Leaf, lane: str) -> ChannelDef:
        return leaf.channel(lane, self._settings.channels.get(leaf.name, {}))

    def _stored(
        self, lane: str, leaves: list[Leaf], values: Mapping[str, Any]
    ) -> dict[str, NDArray[Any]]:
        """As the journal takes it; names that are in both lanes are told apart by their lane."""
        return {
            f"{lane}/{leaf.name}" if leaf.name in self._ids else leaf.name: leaf.padded(
                values[leaf.name]
            )
            if leaf.is_text
            else values[leaf.name]
            for leaf in leaves
        }

    def _keep_texts(self, lane: str, leaves: list[Leaf], values: Mapping[str, Any]) -> None:
        for leaf in leaves:
            if leaf.is_text:
                texts = self._texts.setdefault((lane, leaf.name), [])
                text = values[leaf.name]
                # Instructions stay the same for many steps: keep one of them.
                texts.append(texts[-1] if texts and texts[-1] == text else text)

    def _complete(self, episode: Episode) -> None:
        """What the journal holds in a lesser form: whole texts, and rewards in double precision."""
        lanes = {"signal": episode.observations, "action": episode.actions}
        every = chain(
            (("signal", leaf) for leaf in self._settings.observations),
            (("action", leaf) for leaf in self._settings.actions),
        )
        for lane, leaf in every:
            if leaf.is_text:
                old = lanes[lane][leaf.name]
                lanes[lane][leaf.name] = TextChannel(
                    data=self._texts[lane, leaf.name], modality=old.modality, extra=old.extra
                )
        exact = np.frombuffer(self._rewards, np.float64)
        if exact.astype(np.float32).astype(np.float64).tobytes() != exact.tobytes():
            episode.rewards = exact.copy()


def _copy(timebase: Timebase | None) -> Timebase | None:
    return (
        None if timebase is None else Timebase(timebase.type, timebase.tick_hz, timebase.epoch_ns)
    )


def _number(reward: Any) -> float:  # noqa: ANN401 - of any kind
    if np.ndim(reward):
        raise InvalidArgument(
            "a reward is one number", entry="reward", found=f"shape {np.shape(reward)}"
        )
    return float(reward)
