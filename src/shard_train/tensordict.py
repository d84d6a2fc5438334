"""Episodes and windows as TensorDicts in the form of TorchRL, and back. Needs the extra `tensordict`.

    from shard_train.tensordict import from_tensordict, read_windows, to_tensordict

    td = to_tensordict(load_wshard("ep_001.wshard"))          # [T]
    td["next", "state"]                                       # what followed each step
    episode = from_tensordict(env.rollout(1000), "ep_002")

A step t has what was seen before it and the action at its root; what followed, the reward and whether the episode
ended are under `next`. Reward and ends have one axis more, as TorchRL wants them. Replay buffers over a dataset
are in `shard_train.torchrl`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from shard_format.errors import InvalidArgument, check_choice
from shard_format.extras import require
from wshard.types import Channel, Episode
from wshard.windows import STEP_KEYS, wanted_channels

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch
    from numpy.typing import ArrayLike, NDArray
    from tensordict import TensorDict, TensorDictBase

    from shard_train._episode_dataset import EpisodeDataset
    from wshard.types import Timebase

__all__ = ["from_tensordict", "read_windows", "to_tensordict"]

_ACTION: Final = "action"
_NEXT: Final = "next"
_ENDS: Final = ("done", "terminated", "truncated")
_RESERVED: Final = frozenset((_NEXT, _ACTION, "reward", *_ENDS))
# What TorchRL's collectors note for themselves.
_COLLECTOR: Final = "collector"


def to_tensordict(
    episode: Episode,
    *,
    channels: Iterable[str] | None = None,
    last: Literal["raise", "drop", "repeat"] = "raise",
) -> TensorDict:
    """The steps of an episode, batch size [T].

    An observation is at its name, with `/` between levels, and under `next`; both share their memory. The only action,
    or the one that is called `action`, is at `action`; several are below it. A reward and ends that the episode does
    not have are left out, and false.

    Args:
        episode: what to convert; read as a whole.
        channels: names; None for all plain observations and actions that follow the steps.
        last: what to do if an observation after the last action was not recorded. `"raise"`: refuse. `"drop"`: leave
            out the last step. `"repeat"`: take the last observation once more.

    Raises:
        MissingExtra: `tensordict` is not installed.
        InvalidArgument: a name is used by TorchRL, or the last observation is missing.
    """
    require("tensordict", "tensordict")
    check_choice("last", last, ("raise", "drop", "repeat"))
    wanted = wanted_channels(episode, channels, reserved=_ENDS)
    found = {want.key: want.of(episode) for want in wanted}
    observed = {want.key for want in wanted if want.is_observation}
    short = [key for key in observed if found[key].length == episode.length]
    if short and last == "raise":
        raise InvalidArgument(
            "the observation after the last action was not recorded",
            entry=min(short),
            expected=f"{episode.length + 1} entries",
            found=f"{episode.length} entries",
            hint="pass last='drop' to leave out the last step, or last='repeat'",
        )
    count = episode.length - (1 if short and last == "drop" else 0)
    arrays: dict[str, NDArray[Any]] = {}
    for key, channel in found.items():
        values = channel.data[: count + (key in observed)]
        if key in observed and len(values) == count:
            values = np.concatenate([values, values[-1:]])
        arrays[key] = values
    for key, flat in zip(
        STEP_KEYS, (episode.rewards, episode.terminations, episode.truncations), strict=True
    ):
        if flat is not None:
            arrays[key] = flat.data[:count]
    actions = [want.key for want in wanted if _is_action(want.key, want.is_observation)]
    return _transitions(arrays, observed, actions, (count,))


def read_windows(dataset: EpisodeDataset, numbers: ArrayLike) -> TensorDict:
    """Windows of a dataset, batch size [B, L], read with one call.

    The form is that of `to_tensordict`, with the numbers of `episode` and `start` and the metadata at every step, and
    `is_pad` if there is padding. Text is a `NonTensorStack`. Ragged data must be padded.

    Args:
        dataset: made with `next_observations=True`, so that it is known what followed the last step of a window.
        numbers: of the windows.

    Raises:
        MissingExtra: `tensordict` is not installed.
        InvalidArgument: the dataset does not have what followed or has ragged data, or a name is used by TorchRL.
    """
    require("tensordict", "tensordict")
    arrays = dict(dataset.batch(numbers))
    lead: tuple[int, ...] = arrays["reward"].shape
    observed = set(dataset.observation_keys)
    if lead[1:] != (dataset.window,) or any(
        arrays[key].shape[1] != lead[1] + 1 for key in observed
    ):
        raise InvalidArgument(
            "these windows do not have the observation after their last step",
            found=repr(dataset),
            hint="EpisodeDataset(…, window=…, next_observations=True)",
        )
    texts = {key: arrays.pop(key) for key in list(arrays) if isinstance(arrays[key], list)}
    for key, values in arrays.items():
        if values.ndim == 1:  # of the window
            arrays[key] = np.broadcast_to(values[:, np.newaxis], lead)
    actions = [key for key in dataset.channels if _is_action(key, key in observed)]
    steps = {key: _texts_of_steps(key, values, lead[1]) for key, values in texts.items()}
    windows = _transitions(arrays, observed, actions, lead)
    for key, rows in steps.items():
        _set(windows, _path(key), _stack_of_texts(rows))
    return windows


def _texts_of_steps(key: str, values: list[Any], steps: int) -> list[list[str]]:
    """Text for each step of each window, of text for each step or for each window."""
    rows = [[value] * steps if isinstance(value, str) else value for value in values]
    if not all(
        isinstance(row, list) and len(row) == steps and all(isinstance(one, str) for one in row)
        for row in rows
    ):
        raise InvalidArgument(
            "a TensorDict cannot hold data of varying length",
            entry=key,
            found=type(values[0]).__name__,
            hint=f"encode={{{key!r}: most items}} pads it; or choose others with channels=[…]",
        )
    return rows


def _stack_of_texts(rows: list[list[str]]) -> Any:  # noqa: ANN401 - of tensordict
    from tensordict import NonTensorStack

    return NonTensorStack.from_list(rows)


def _is_action(key: str, is_observation: bool) -> bool:
    return not is_observation and not key.startswith(("omen/", "uncert/"))


def _transitions(
    arrays: Mapping[str, NDArray[Any]],
    observed: set[str],
    actions: list[str],
    lead: tuple[int, ...],
) -> TensorDict:
    """Arrays `[*lead, ...]` as what TorchRL calls transitions; observations have one step more."""
    import torch
    from tensordict import TensorDict

    from shard_train.torch import to_tensors

    tensors: dict[str, torch.Tensor] = to_tensors(dict(arrays))
    axis, count = len(lead) - 1, lead[-1]
    root = TensorDict({}, batch_size=lead)
    following = TensorDict({}, batch_size=lead)
    for key, tensor in tensors.items():
        if key in observed:
            _set(root, _path(key), tensor.narrow(axis, 0, count))
            _set(following, _path(key), tensor.narrow(axis, 1, count))
        elif key in STEP_KEYS:
            following[key] = tensor.unsqueeze(-1)
        elif key in actions and (len(actions) == 1 or key == _ACTION):
            _set(root, (_ACTION,), tensor)
        else:
            parts = tuple(key.removeprefix("action/").split("/"))
            _set(root, (_ACTION, *parts) if key in actions else _path(key), tensor)
    for key in _ENDS[1:]:
        if key not in following:
            following[key] = torch.zeros((*lead, 1), dtype=torch.bool)
    following["done"] = following["terminated"] | following["truncated"]
    for key in _ENDS:
        # Nothing has ended before a step.
        root[key] = torch.zeros((*lead, 1), dtype=torch.bool)
    root[_NEXT] = following
    return root


def _path(key: str) -> tuple[str, ...]:
    path = tuple(key.split("/"))
    if path[0] in _RESERVED:
        raise InvalidArgument(
            f"TorchRL reserves the name {path[0]!r}",
            entry=key,
            hint="choose other channels with channels=[…]",
        )
    return path


def _set(target: TensorDict, path: tuple[str, ...], tensor: Any) -> None:  # noqa: ANN401 - a tensor, or text
    for end in range(1, len(path) + 1):
        existing = target.get(path[:end], None)
        is_leaf = existing is not None and not hasattr(existing, "batch_size")
        if is_leaf or (end == len(path) and existing is not None):
            raise InvalidArgument(
                "the name of one channel is the first part of another", entry="/".join(path)
            )
    target[path] = tensor


def from_tensordict(
    td: TensorDictBase,
    id: str,
    *,
    env_id: str = "",
    timebase: Timebase | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Episode:
    """An episode of one trajectory, such as `env.rollout` returns.

    What is also under `next` is an observation, with one entry more for what followed the last step; so is what is
    there only. `action`, and what is below it, are actions; so is everything else that is known at a step, such as
    log-probabilities. What TorchRL's collectors note for themselves (`collector`) is left out, as are the ends at the
    root, which repeat those of the step before.

    Args:
        td: batch size [T], one trajectory.
        id: of the episode.
        env_id: of the episode.
        timebase: of the episode.
        metadata: of the episode.

    Raises:
        MissingExtra: `tensordict` is not installed.
        InvalidArgument: there are several trajectories in it, or none.
    """
    require("tensordict", "tensordict")
    if td.batch_dims != 1:
        raise InvalidArgument(
            "an episode is made of one trajectory",
            expected="a batch size of one axis, [T]",
            found=f"{list(td.batch_size)}",
            hint="take one of them: td[0]",
        )
    count = int(td.batch_size[0])
    leaves = _leaves(td)
    following = {key[1:]: leaf for key, leaf in leaves.items() if key[0] == _NEXT}
    episode = Episode(id, env_id, count, timebase, metadata=metadata)
    ends = {key: following.pop((key,), None) for key in _ENDS}
    _check_ends(ends, count)
    if (reward := following.pop(("reward",), None)) is not None:
        episode.rewards = _channel(_flat(reward, count))
    if (terminated := ends["terminated"]) is None:
        terminated = ends["done"]
    if terminated is not None:
        episode.terminations = _channel(_flat(terminated, count))
    if ends["truncated"] is not None:
        episode.truncations = _channel(_flat(ends["truncated"], count))
    for key, leaf in leaves.items():
        if key[0] in (_NEXT, _COLLECTOR) or (len(key) == 1 and key[0] in _ENDS):
            continue
        after = following.pop(key, None)
        if after is not None:
            episode.observations["/".join(key)] = _channel(_continued(key, leaf, after))
        else:
            parts = key[1:] if key[0] == _ACTION and len(key) > 1 else key
            episode.actions["/".join(parts)] = _channel(leaf)
    for key, leaf in following.items():
        if key[0] != _COLLECTOR:
            episode.observations["/".join((_NEXT, *key))] = _channel(leaf)
    return episode


def _leaves(td: TensorDictBase) -> dict[tuple[str, ...], torch.Tensor]:
    import torch
    from tensordict import is_non_tensor

    leaves: dict[tuple[str, ...], torch.Tensor] = {}
    # With `leaves_only`, it would skip values that are not tensors.
    for key, value in td.detach().cpu().items(include_nested=True):
        path = key if isinstance(key, tuple) else (key,)
        if isinstance(value, torch.Tensor):
            leaves[path] = value
        elif is_non_tensor(value):
            raise InvalidArgument(
                "not a tensor",
                entry="/".join(path),
                found=type(value).__name__,
                hint=f"leave it out: td.exclude({key!r})",
            )
    return leaves


def _check_ends(ends: Mapping[str, torch.Tensor | None], count: int) -> None:
    for key, leaf in ends.items():
        if leaf is not None and bool(_flat(leaf, count)[:-1].any()):
            step = int(_flat(leaf, count).nonzero()[0])
            raise InvalidArgument(
                "the trajectory ends before its last step",
                entry=f"next/{key}",
                expected="one trajectory",
                found=f"an end at step {step} of {count}",
                hint="split it with torchrl.collectors.utils.split_trajectories, or by its ends",
            )


def _flat(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """Without the axis that TorchRL puts behind single numbers."""
    return tensor.reshape(count) if tuple(tensor.shape) == (count, 1) else tensor


def _continued(key: tuple[str, ...], tensor: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """What was seen at each step, and after the last one."""
    import torch

    if not torch.equal(_bits(tensor[1:]), _bits(after[:-1])):
        raise InvalidArgument(
            "what follows a step is not what the next one starts with",
            entry="/".join(key),
            hint="an episode is made of one trajectory, with all its steps in order",
        )
    return torch.cat([tensor, after[-1:]])


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Numbers that are compared bit by bit: what is not a number equals itself."""
    import torch

    return tensor.contiguous().view(torch.uint8) if tensor.dim() and tensor.numel() else tensor


def _channel(tensor: torch.Tensor) -> Channel:
    import torch

    if tensor.dtype is torch.bfloat16:
        return Channel(dtype="bf16", data=tensor.contiguous().view(torch.uint16).numpy())
    return Channel(data=tensor.contiguous().numpy())
