"""Gymnasium wrappers that record what passes through them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from shard_format._extras import require
from shard_format.errors import InvalidArgument
from wshard.gym.infos import as_json
from wshard.gym.recording import EpisodeRecorder, Names, Settings
from wshard.gym.spaces import leaves
from wshard.timebase import Timebase

if TYPE_CHECKING:
    import os

    import gymnasium
    from gymnasium.vector import VectorEnv, VectorWrapper
    from numpy.typing import NDArray

    from shard_format import Compression
    from wshard.gym.recording import Metadata

    _VectorBase = VectorWrapper[Any, Any, Any, Any, Any]
else:
    gymnasium = require("gymnasium", "gym")
    _VectorBase = gymnasium.vector.VectorWrapper

__all__ = ["RecordEpisodes", "RecordVectorEpisodes"]

ObsType = TypeVar("ObsType")
ActType = TypeVar("ActType")

_NEXT_STEP: Final = "NextStep"
_SAME_STEP: Final = "SameStep"
_DISABLED: Final = "Disabled"
_MODES: Final = (_NEXT_STEP, _SAME_STEP, _DISABLED)


class RecordEpisodes(gymnasium.Wrapper[ObsType, ActType, ObsType, ActType]):
    """Records every episode of an environment as a file of its own.

        env = RecordEpisodes(gymnasium.make("CartPole-v1"), "episodes", compression="zstd")

    An episode of T actions has T + 1 observations, from the one that `reset` returned to the one after the last
    action. Its file appears when it is over; until then `<file>.partial` is a journal that `wshard recover`
    brings back. Whatever ends the process, a folder never holds half an episode under its name. Numbers that
    are taken, also by journals, are left alone, so that a folder can be recorded into again.

    A part of a space is a channel: a space that is no dictionary is called `observation` or `action`, parts of
    dictionaries by their keys, parts of tuples by their position, with `/` between the levels.

    Text, infos and the double precision of rewards are kept in memory until the end of the episode. In the
    journal texts are padded bytes, rewards float32, and infos are left out.

    Args:
        env: what to record.
        folder: where the files go.
        name: of each file, with the fields `{episode}` (counted up), `{seed}` and `{env}`.
        channels: more about channels, fields of `ChannelDef` by the channel's name:
            `{"rgb": {"compression": "zstd:3"}, "render": {"rate": 30.0}}`.
        compression: `"none"`, `"zstd"` or `"zstd:LEVEL"`, for channels that do not say.
        record_infos: whether to keep the infos, as observations `info/<key>`.
        render: whether `env.render()` is recorded as the channel `render`; needs `render_mode="rgb_array"`.
        metadata: any JSON; or a function that is called when an episode is over with what is known about it
            (`episode`, `seed`, `options`, `ended`, …) and returns what to add.
        timebase: the clock of the steps; `render_fps` of the environment if left out.
        fsync: as for `WShardStreamWriter`; `"never"` is fastest.
    """

    def __init__(
        self,
        env: gymnasium.Env[ObsType, ActType],
        folder: str | os.PathLike[str],
        *,
        name: str = "{episode:06d}",
        channels: Mapping[str, Mapping[str, Any]] | None = None,
        compression: str | Compression | None = None,
        record_infos: bool = False,
        render: bool = False,
        metadata: Metadata | None = None,
        timebase: Timebase | None = None,
        fsync: str = "interval",
    ) -> None:
        super().__init__(env)
        if render:
            _check_render_mode(env.render_mode)
        self._render = render
        self._recorder = EpisodeRecorder(
            _settings(
                env,
                Names(folder, name),
                (env.observation_space, env.action_space),
                (channels, compression, fsync),
                record_infos,
                metadata,
                timebase,
            )
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObsType, dict[str, Any]]:
        """Resets the environment and starts an episode; one that is not over ends with its last step."""
        said = None if options is None else dict(options)
        observation, info = self.env.reset(seed=seed, options=options)
        self._recorder.begin(observation, info, self._frame(), seed=seed, options=said)
        return observation, info

    def step(self, action: ActType) -> tuple[ObsType, Any, bool, bool, dict[str, Any]]:
        """Steps the environment and records what came of it."""
        if not self._recorder.is_recording:
            raise InvalidArgument(
                "no episode is being recorded",
                hint="call reset first; Autoreset goes around RecordEpisodes, not inside",
            )
        try:
            observation, reward, terminated, truncated, info = self.env.step(action)
        except BaseException:
            self._recorder.flush()
            raise
        self._recorder.step(action, observation, reward, terminated, truncated, info, self._frame())
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        """Closes the environment. An episode that is not over stays as a journal, for `wshard recover`."""
        try:
            self._recorder.close()
        finally:
            super().close()

    def _frame(self) -> NDArray[Any] | None:
        return _as_frame(self.env.render()) if self._render else None


class RecordVectorEpisodes(_VectorBase):
    """Records every episode of every sub-environment of a vector environment as a file of its own.

        envs = gymnasium.make_vec("CartPole-v1", num_envs=8)
        envs = RecordVectorEpisodes(envs, "episodes")

    What an episode holds is the same as with `RecordEpisodes`, whatever the vector environment does when one of
    its environments is over: with `NEXT_STEP` the step that resets it is no step of any episode, with
    `SAME_STEP` its last observation is the one in `infos["final_obs"]`, and with `DISABLED` it is left out until
    it is reset with a `reset_mask`.

    Args:
        env: what to record.
        folder: where the files go.
        name: as for `RecordEpisodes`; `{env}` is the number of the sub-environment.
        channels, compression, record_infos, metadata, timebase, fsync: as for `RecordEpisodes`.
        render: as for `RecordEpisodes`. With `SAME_STEP` there is no frame after the last action.
        autoreset_mode: what the environment does, if its metadata does not say: `"NextStep"` (the default),
            `"SameStep"` or `"Disabled"`.
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        folder: str | os.PathLike[str],
        *,
        name: str = "{episode:06d}",
        channels: Mapping[str, Mapping[str, Any]] | None = None,
        compression: str | Compression | None = None,
        record_infos: bool = False,
        render: bool = False,
        metadata: Metadata | None = None,
        timebase: Timebase | None = None,
        fsync: str = "interval",
        autoreset_mode: str | None = None,
    ) -> None:
        super().__init__(env)
        if render:
            _check_render_mode(env.render_mode)
        self._render = render
        self._mode = _autoreset_mode(env, autoreset_mode)
        settings = _settings(
            env,
            Names(folder, name),
            (env.single_observation_space, env.single_action_space),
            (channels, compression, fsync),
            record_infos,
            metadata,
            timebase,
        )
        self._recorders = [EpisodeRecorder(settings, number) for number in range(env.num_envs)]
        self._iterate = require("gymnasium.vector.utils", "gym").iterate
        self._is_over = np.zeros(env.num_envs, np.bool_)
        """Which sub-environments the next step resets, with `NEXT_STEP`."""

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Resets the environments and starts their episodes; those that are not over end with their last step."""
        said = None if options is None else dict(options)  # environments take the mask out
        mask = None if said is None else said.pop("reset_mask", None)
        seeds: Sequence[int | None]
        if seed is None or isinstance(seed, (int, np.integer)):
            seeds = [None if seed is None else int(seed) + n for n in range(self.num_envs)]
        else:
            seeds = seed
        observations, infos = self.env.reset(seed=seed, options=options)  # type: ignore[arg-type]  # lists are fine
        frames = self._frames()
        for number, observation in enumerate(self._split(self.observation_space, observations)):
            if mask is None or mask[number]:
                self._is_over[number] = False
                self._recorders[number].begin(
                    observation,
                    _info_of(infos, number),
                    frames[number],
                    seed=seeds[number],
                    options=said,
                )
        return observations, infos

    def step(
        self,
        actions: Any,  # noqa: ANN401 - a batch of actions
    ) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps the environments and records what came of it."""
        try:
            result = self.env.step(actions)
        except BaseException:
            for recorder in self._recorders:
                recorder.flush()
            raise
        observations, rewards, terminations, truncations, infos = result
        frames = self._frames()
        over = np.logical_or(terminations, truncations)
        every = zip(
            self._split(self.action_space, actions),
            self._split(self.observation_space, observations),
            strict=True,
        )
        for number, (action, observation) in enumerate(every):
            recorder, frame = self._recorders[number], frames[number]
            info = _info_of(infos, number)
            if self._mode == _NEXT_STEP and self._is_over[number]:
                recorder.begin(observation, info, frame)
                continue
            if not recorder.is_recording:
                if self._mode == _DISABLED:
                    continue  # it waits to be reset
                raise InvalidArgument("no episode is being recorded", hint="call reset first")
            outcome = (rewards[number], terminations[number], truncations[number])
            if self._mode == _SAME_STEP and over[number]:
                recorder.step(
                    action,
                    _final_observation(infos, number),
                    *outcome,
                    _info_of(infos.get("final_info", {}), number),
                    None,
                )
                recorder.begin(observation, info, frame)
            else:
                recorder.step(action, observation, *outcome, info, frame)
        self._is_over = over
        return result

    def close(self, **options: Any) -> None:  # noqa: ANN401 - whatever the environment takes
        """Closes the environments. Episodes that are not over stay as journals, for `wshard recover`."""
        try:
            for recorder in self._recorders:
                recorder.close()
        finally:
            super().close(**options)

    def _split(self, space: gymnasium.Space[Any], batch: Any) -> list[Any]:  # noqa: ANN401 - a batch
        return list(self._iterate(space, batch))

    def _frames(self) -> Sequence[NDArray[Any] | None]:
        if not self._render:
            return [None] * self.num_envs
        return [_as_frame(frame) for frame in self.env.render() or ()]


def _settings(
    env: Any,  # noqa: ANN401 - an environment or many
    names: Names,
    spaces: tuple[gymnasium.Space[Any], gymnasium.Space[Any]],
    storage: tuple[Mapping[str, Mapping[str, Any]] | None, str | Compression | None, str],
    record_infos: bool,
    metadata: Metadata | None,
    timebase: Timebase | None,
) -> Settings:
    spec = env.spec
    facts: dict[str, Any] = {"gymnasium": gymnasium.__version__}
    if spec is not None and spec.kwargs:
        facts["env_kwargs"] = as_json(spec.kwargs)
    if timebase is None:
        rate = env.metadata.get("render_fps")
        timebase = Timebase(tick_hz=float(rate)) if rate else None
    channels, compression, fsync = storage
    settings = Settings(
        names,
        spec.id if spec is not None else type(env.unwrapped).__name__,
        facts,
        leaves(spaces[0], "observation"),
        leaves(spaces[1], "action"),
        channels or {},
        compression,
        fsync,
        record_infos,
        metadata if callable(metadata) else as_json(metadata or {}),
        timebase,
    )
    settings.check()
    return settings


def _check_render_mode(mode: str | None) -> None:
    if mode != "rgb_array":
        raise InvalidArgument(
            "this environment does not render arrays",
            expected="render_mode='rgb_array'",
            found=f"render_mode={mode!r}",
            hint="gymnasium.make(…, render_mode='rgb_array')",
        )


def _as_frame(frame: Any) -> NDArray[Any]:  # noqa: ANN401 - whatever it renders
    if not isinstance(frame, np.ndarray):
        raise InvalidArgument("render() gave no array", entry="render", found=type(frame).__name__)
    return frame.copy()


def _autoreset_mode(env: Any, told: str | None) -> str:  # noqa: ANN401 - a vector environment
    """Gymnasium 1.0 knows one mode only, and says nothing about it."""
    said = env.metadata.get("autoreset_mode", told or _NEXT_STEP)
    mode = getattr(said, "value", said)
    if mode not in _MODES:
        raise InvalidArgument(
            "unknown autoreset mode", expected=" or ".join(map(repr, _MODES)), found=repr(mode)
        )
    return str(mode)


def _final_observation(infos: Mapping[str, Any], number: int) -> Any:  # noqa: ANN401 - an observation
    final = infos.get("final_obs")
    if final is None or final[number] is None:
        raise InvalidArgument(
            "an environment that resets in the same step does not give its last observation",
            expected="infos['final_obs']",
            found=", ".join(map(str, infos)),
        )
    return final[number]


def _info_of(infos: Mapping[str, Any], number: int) -> dict[str, Any]:
    """What a vector environment's infos say about one of its environments."""
    found: dict[str, Any] = {}
    for key, values in infos.items():
        mask = infos.get(f"_{key}")
        if key in ("final_obs", "final_info") or mask is None or not mask[number]:
            continue
        found[key] = _info_of(values, number) if isinstance(values, Mapping) else values[number]
    return found
