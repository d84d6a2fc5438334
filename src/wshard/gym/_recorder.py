"""Gymnasium wrappers that record what passes through them, one file for each episode."""

from __future__ import annotations

import os
import string
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from shard_format.errors import InvalidArgument, check_choice
from shard_format.extras import require
from wshard._folders import SUFFIX, reserve
from wshard._journal import PARTIAL_SUFFIX
from wshard.gym._channels import InfoChannels, as_json, leaves, success_of
from wshard.streaming import ChannelDef, StreamOptions, WShardStreamWriter
from wshard.types import DType, Modality, Timebase

if TYPE_CHECKING:
    import gymnasium
    from gymnasium.vector import VectorEnv, VectorWrapper
    from numpy.typing import NDArray

    from shard_format import Compression

    _VectorBase = VectorWrapper[Any, Any, Any, Any, Any]
else:
    gymnasium = require("gymnasium", "gym")
    _VectorBase = gymnasium.vector.VectorWrapper

ObsType = TypeVar("ObsType")
ActType = TypeVar("ActType")
Metadata = Mapping[str, Any] | Callable[[dict[str, Any]], Mapping[str, Any]]

_CAMERA: Final = "render"
_FIELDS: Final = ("episode", "env", "seed")
_NEXT_STEP, _SAME_STEP, _DISABLED = _MODES = ("NextStep", "SameStep", "Disabled")


@dataclass(frozen=True, kw_only=True)
class RecordingOptions:
    """What you rarely need to change about a recording."""

    channels: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """More about channels, fields of `ChannelDef` by the channel's name:
    `{"rgb": {"compression": "zstd:3"}, "render": {"rate": 30.0}}`."""
    infos: bool = False
    """Whether to record the infos, as observations `info/<key>`. Keys of inner dictionaries are joined with `/`.
    Numbers are float64, NaN where a step has none; arrays keep their type, and where they are missing hold NaN, or
    0 in integers; strings are text, everything else is text of JSON, both empty where missing. None counts as
    missing. A key that appears late gets its channel then, filled for the steps before. A value of another kind
    than the first one of its key goes into the text `info/other`, as JSON with its key."""
    fsync: str = "interval"
    """As for `StreamOptions`; `"never"` is fastest."""
    autoreset_mode: str | None = None
    """What a vector environment does at the end of an episode, if its metadata does not say:
    `"NextStep"` (the default), `"SameStep"` or `"Disabled"`."""


# --- the wrappers


class RecordEpisodes(gymnasium.Wrapper[ObsType, ActType, ObsType, ActType]):
    """Records every episode of an environment as a file of its own.

        env = RecordEpisodes(gymnasium.make("CartPole-v1"), "episodes", compression="zstd")

    An episode of T actions has T + 1 observations, from the one that `reset` returned to the one after the last
    action. Its file appears when the episode is over; until then `<file>.partial` is a journal, from which
    `wshard recover` makes an episode. Whatever ends the process, a folder never holds half an episode under
    its name. The recorder leaves existing files and journals alone, so you can record into a folder again.

    Each part of a space becomes a channel: a space that is not a dictionary is called `observation` or
    `action`, parts of dictionaries have the names of their keys, parts of tuples their positions, with `/`
    between the levels.

    The journal holds everything that the file will hold, so that a recovered episode has the same channels. The
    file has a rate only if you give a `timebase` or the environment's metadata has `render_fps`. Its metadata
    have `ended` (`"terminated"`, `"truncated"` or `"reset"`), and `success` if the last info has `success` or
    `is_success`.

    Args:
        env: the environment.
        folder: where the files go.
        name: of each file, with the fields `{episode}` (counted up), `{seed}` and `{env}`.
        compression: `"none"`, `"zstd"` or `"zstd:LEVEL"`, for channels without a compression of their own.
        render: whether to record `env.render()` as the channel `render`; needs `render_mode="rgb_array"`.
        metadata: any JSON; or a function that is called at the end of each episode and returns what to add. Its
            argument is a dictionary: `info` (the last one), `return` (the sum of the rewards), `length`, `ended`,
            `success` where known, `episode` (its number), `seed`, `options`, and `env_index` in vectors.
        timebase: the clock of the steps; by default `render_fps` of the environment.
        options: about single channels, infos and durability.
    """

    def __init__(
        self,
        env: gymnasium.Env[ObsType, ActType],
        folder: str | os.PathLike[str],
        *,
        name: str = "{episode:06d}",
        compression: str | Compression | None = None,
        render: bool = False,
        metadata: Metadata | None = None,
        timebase: Timebase | None = None,
        options: RecordingOptions | None = None,
    ) -> None:
        super().__init__(env)
        self._render = _check_render(env, render)
        spaces = (env.observation_space, env.action_space)
        plan = _RecordingPlan(env, spaces, folder, name, compression, metadata, timebase, options)
        self._recorder = _EpisodeRecorder(plan)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObsType, dict[str, Any]]:
        """Reset the environment and start an episode; an unfinished one ends with its last step."""
        said = None if options is None else dict(options)
        observation, info = self.env.reset(seed=seed, options=options)
        self._recorder.begin(observation, info, self._frame(), seed=seed, options=said)
        return observation, info

    def step(self, action: ActType) -> tuple[ObsType, Any, bool, bool, dict[str, Any]]:
        """Step the environment and record the outcome."""
        if not self._recorder.is_recording:
            raise InvalidArgument(
                "no episode is being recorded",
                hint="call reset first; Autoreset goes around RecordEpisodes, not inside",
            )
        try:
            result = self.env.step(action)
        except BaseException:
            self._recorder.flush()
            raise
        self._recorder.step(action, *result, self._frame())
        return result

    def close(self) -> None:
        """Close the environment. An unfinished episode stays as a journal, for `wshard recover`."""
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

    An episode holds the same as with `RecordEpisodes`, whatever the vector environment does at its end. With
    `NEXT_STEP` the step that resets a sub-environment belongs to no episode. With `SAME_STEP` the last
    observation is the one in `infos["final_obs"]`. With `DISABLED` a sub-environment is left out until you
    reset it with a `reset_mask`.

    Args:
        env: the environments.
        folder: where the files go.
        name: as for `RecordEpisodes`; `{env}` is the number of the sub-environment.
        compression, metadata, timebase: as for `RecordEpisodes`.
        render: as for `RecordEpisodes`. With `SAME_STEP` the frame after the last action is missing.
        options: as for `RecordEpisodes`, and the autoreset mode.
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        folder: str | os.PathLike[str],
        *,
        name: str = "{episode:06d}",
        compression: str | Compression | None = None,
        render: bool = False,
        metadata: Metadata | None = None,
        timebase: Timebase | None = None,
        options: RecordingOptions | None = None,
    ) -> None:
        super().__init__(env)
        self._render = _check_render(env, render)
        spaces = (env.single_observation_space, env.single_action_space)
        plan = _RecordingPlan(env, spaces, folder, name, compression, metadata, timebase, options)
        self._mode = _autoreset_mode(env, plan.options.autoreset_mode)
        self._recorders = [_EpisodeRecorder(plan, number) for number in range(env.num_envs)]
        self._iterate = require("gymnasium.vector.utils", "gym").iterate
        self._is_over = np.zeros(env.num_envs, np.bool_)
        """Which sub-environments the next step resets, with `NEXT_STEP`."""

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environments and start their episodes; unfinished ones end with their last step."""
        said = None if options is None else dict(options)  # environments take the mask out
        mask = None if said is None else said.pop("reset_mask", None)
        seeds: Sequence[int | None]
        if seed is None or isinstance(seed, (int, np.integer)):
            seeds = [None if seed is None else int(seed) + n for n in range(self.num_envs)]
        else:
            seeds = seed
        observations, infos = self.env.reset(seed=seed, options=options)  # type: ignore[arg-type]  # lists are fine
        frames = self._frames()
        for number, observation in enumerate(self._iterate(self.observation_space, observations)):
            if mask is None or mask[number]:
                self._is_over[number] = False
                info, its_seed = _info_of(infos, number), seeds[number]
                self._recorders[number].begin(
                    observation, info, frames[number], seed=its_seed, options=said
                )
        return observations, infos

    def step(
        self,
        actions: Any,  # noqa: ANN401 - a batch of actions
    ) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step the environments and record the outcomes."""
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
            self._iterate(self.action_space, actions),
            self._iterate(self.observation_space, observations),
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
                final, final_info = _final(infos, number)
                recorder.step(action, final, *outcome, final_info, None)
                recorder.begin(observation, info, frame)
            else:
                recorder.step(action, observation, *outcome, info, frame)
        self._is_over = over
        return result

    def close(self, **options: Any) -> None:  # noqa: ANN401 - whatever the environment takes
        """Close the environments. Unfinished episodes stay as journals, for `wshard recover`."""
        try:
            for recorder in self._recorders:
                recorder.close()
        finally:
            super().close(**options)

    def _frames(self) -> Sequence[NDArray[Any] | None]:
        if not self._render:
            return [None] * self.num_envs
        return [_as_frame(frame) for frame in self.env.render() or ()]


def _check_render(env: Any, render: bool) -> bool:  # noqa: ANN401 - an environment or many
    if render and env.render_mode != "rgb_array":
        raise InvalidArgument(
            "the environment does not render arrays",
            expected="render_mode='rgb_array'",
            found=f"render_mode={env.render_mode!r}",
            hint="gymnasium.make(…, render_mode='rgb_array')",
        )
    return render


def _as_frame(frame: Any) -> NDArray[Any]:  # noqa: ANN401 - whatever it renders
    if not isinstance(frame, np.ndarray):
        found = type(frame).__name__
        raise InvalidArgument("render() did not return an array", entry=_CAMERA, found=found)
    return frame.copy()


def _autoreset_mode(env: Any, told: str | None) -> str:  # noqa: ANN401 - a vector environment
    """What the environment does at the end of an episode. Gymnasium 1.0 has one mode only, without a name."""
    said = env.metadata.get("autoreset_mode", told or _NEXT_STEP)
    mode = getattr(said, "value", said)
    check_choice("autoreset mode", mode, _MODES)
    return str(mode)


def _final(infos: Mapping[str, Any], number: int) -> tuple[Any, dict[str, Any]]:
    """The last observation of an episode and its info, where the same step resets the environment."""
    final = infos.get("final_obs")
    if final is None or final[number] is None:
        raise InvalidArgument(
            "the environment resets in the same step and does not return the last observation",
            expected="infos['final_obs']",
            found=", ".join(map(str, infos)),
        )
    return final[number], _info_of(infos.get("final_info", {}), number)


def _info_of(infos: Mapping[str, Any], number: int) -> dict[str, Any]:
    """The part of a vector environment's infos that is about one of its environments."""
    found: dict[str, Any] = {}
    for key, values in infos.items():
        mask = infos.get(f"_{key}")
        if key in ("final_obs", "final_info") or mask is None or not mask[number]:
            continue
        found[key] = _info_of(values, number) if isinstance(values, Mapping) else values[number]
    return found


# --- the recorder behind them


class _RecordingPlan:
    """Everything that the recorders of one wrapper share.

    It gives every episode a free name, also while other processes record into the same folder.
    """

    def __init__(
        self,
        env: Any,  # noqa: ANN401 - an environment or many
        spaces: tuple[gymnasium.Space[Any], gymnasium.Space[Any]],
        folder: str | os.PathLike[str],
        name: str,
        compression: str | Compression | None,
        metadata: Metadata | None,
        timebase: Timebase | None,
        options: RecordingOptions | None,
    ) -> None:
        self.env_id: str = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
        self.facts: dict[str, Any] = {"gymnasium": gymnasium.__version__}
        """Metadata of every episode."""
        if env.spec is not None and env.spec.kwargs:
            self.facts["env_kwargs"] = as_json(env.spec.kwargs)
        self.observations, self.actions = (
            leaves(spaces[0], "observation"),
            leaves(spaces[1], "action"),
        )
        self.options = options or RecordingOptions()
        known = {*(leaf.name for leaf in (*self.observations, *self.actions)), _CAMERA}
        for channel in self.options.channels:
            if channel not in known:
                raise InvalidArgument(
                    "unknown channel", entry=channel, expected=", ".join(sorted(known))
                )
        both = {leaf.name for leaf in self.observations} & {leaf.name for leaf in self.actions}
        for lane, parts in (("signal", self.observations), ("action", self.actions)):
            for leaf in parts:
                leaf.lane, leaf.key = (
                    lane,
                    f"{lane}/{leaf.name}" if leaf.name in both else leaf.name,
                )
        self.names = known
        self.compression = compression
        self.metadata: Metadata = metadata if callable(metadata) else as_json(metadata or {})
        rate = env.metadata.get("render_fps")
        self.timebase = timebase or (Timebase(tick_hz=float(rate)) if rate else None)
        self.folder = os.fspath(folder)
        self._template, self._numbers = name, count()
        try:
            fields = [part for _, part, _, _ in string.Formatter().parse(name) if part]
            for seed in (0, "none"):
                name.format(episode=0, env=0, seed=seed)
        except (ValueError, KeyError, IndexError) as error:
            raise InvalidArgument(
                "cannot make names of episodes from this template",
                expected=f"fields {_FIELDS}",
                found=repr(error),
            ) from None
        if "episode" not in fields:
            raise InvalidArgument(
                "all episodes would have the same name",
                expected="a name with {episode}",
                found=repr(name),
            )

    def reserve(self, env: int, seed: int | None) -> tuple[str, int]:
        """The next free path, and its number. An empty journal holds its place."""
        while True:
            number = next(self._numbers)
            shown = "none" if seed is None else seed
            name = self._template.format(episode=number, env=env, seed=shown)
            path = os.path.join(self.folder, name + SUFFIX)
            if reserve(path):
                return path, number

    def channels(self, frame: NDArray[Any] | None) -> list[ChannelDef]:
        """The channels as the stream writer takes them."""
        more = self.options.channels
        made = [
            leaf.channel(more.get(leaf.name, {})) for leaf in (*self.observations, *self.actions)
        ]
        if frame is not None:
            fields = {"modality": Modality.RGB.value, **more.get(_CAMERA, {})}
            made.append(ChannelDef(_CAMERA, DType.from_numpy(frame.dtype), frame.shape, **fields))
        return made


class _EpisodeRecorder:
    """Records one episode after the other.

    It writes a step together with the observation that the action answered to. The last observation waits
    for the next action, or for the end, when it becomes the entry after the last step.

    Owns: the writer of the current episode.
    """

    def __init__(self, plan: _RecordingPlan, env: int | None = None) -> None:
        self._plan = plan
        self._env = env
        self._writer: WShardStreamWriter | None = None

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
        """Start an episode; the one before ends here if it is not over."""
        self._finish("reset")
        plan = self._plan
        first = self._observed(observation, frame)
        infos = InfoChannels(plan.names) if plan.options.infos else None
        channels, values = ([], {}) if infos is None else infos.take(info)
        facts: dict[str, Any] = {
            **plan.facts,
            "seed": as_json(seed),
            "options": as_json(options),
            **({} if self._env is None else {"env_index": self._env}),
            **(plan.metadata if isinstance(plan.metadata, Mapping) else {}),
        }
        path, number = plan.reserve(self._env or 0, seed)
        try:
            writer = WShardStreamWriter(
                path,
                os.path.relpath(path, plan.folder).removesuffix(SUFFIX),
                [*plan.channels(frame), *channels],
                compression=plan.compression,
                # An episode is one file, and may get channels late.
                options=StreamOptions(fsync=plan.options.fsync, may_roll=False),
            )
            clock = None if plan.timebase is None else replace(plan.timebase)
            writer.begin_episode(plan.env_id, clock, facts)
        except BaseException:
            with suppress(OSError):
                os.unlink(path + PARTIAL_SUFFIX)
            raise
        self._writer = writer
        self._facts = {"episode": number, **facts}
        self._before = first | values
        self._info = dict(info)
        self._infos = infos
        self._rewards = array("d")

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
        """Record a step, and end the episode if it is the last one.

        Raises:
            InvalidArgument: something does not fit. The recording stops, because an episode has no gaps;
                its journal keeps what was recorded.
        """
        writer = self._writer
        assert writer is not None
        try:
            number = _number(reward)
            after = self._observed(observation, frame)
            values = {
                **self._before,
                **{leaf.key: leaf.pick(action) for leaf in self._plan.actions},
            }
            writer.write_timestep(
                values, reward=number, terminated=bool(terminated), truncated=bool(truncated)
            )
            if self._infos is not None:
                channels, found = self._infos.take(info)
                for channel in channels:
                    writer.add_channel(channel)
                after |= found
        except BaseException:
            self.close()
            raise
        self._rewards.append(number)
        self._before = after
        self._info = dict(info)
        if terminated or truncated:
            self._finish("terminated" if terminated else "truncated")

    def flush(self) -> None:
        """Put what was recorded so far into the journal."""
        if self._writer is not None and self._rewards:
            self._writer.flush()

    def close(self) -> None:
        """Stop in the middle of an episode; its journal stays, for `wshard recover`."""
        writer, self._writer = self._writer, None
        if writer is not None:
            (writer.close if self._rewards else writer.abort)()

    def _finish(self, why: str) -> None:
        """End the episode: its file appears. An episode without steps leaves nothing."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        if not self._rewards:
            writer.abort()
            return
        try:
            writer.end_episode(self._outcome(why), final_observations=self._before)
        except BaseException:
            writer.close()
            raise

    def _outcome(self, why: str) -> dict[str, Any]:
        """What the metadata say about how the episode went."""
        plan, found = self._plan, success_of(self._info)
        said: dict[str, Any] = {"ended": why}
        if found is not None and "success" not in self._facts:
            said["success"] = found
        if self._infos is not None and self._infos.left_out:
            said["infos_left_out"] = self._infos.left_out
        if callable(plan.metadata):
            outcome = {
                "info": self._info,
                "length": len(self._rewards),
                "return": sum(self._rewards),
            }
            said |= plan.metadata({**self._facts, **said, **outcome})
        return said

    def _observed(self, value: Any, frame: NDArray[Any] | None) -> dict[str, Any]:  # noqa: ANN401 - as for `begin`
        picked = {leaf.key: leaf.pick(value) for leaf in self._plan.observations}
        if frame is not None:
            picked[_CAMERA] = frame
        return picked


def _number(reward: Any) -> float:  # noqa: ANN401 - of any kind
    if np.ndim(reward):
        found = f"shape {np.shape(reward)}"
        raise InvalidArgument("a reward is one number", entry="reward", found=found)
    return float(reward)
