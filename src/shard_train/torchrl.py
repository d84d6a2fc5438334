"""Windows of episodes as the storage of a TorchRL replay buffer. Needs the extra `torchrl`.

    from shard_train import EpisodeDataset
    from shard_train.torchrl import replay_buffer

    ds = EpisodeDataset("episodes", window=64, next_observations=True)
    buffer = replay_buffer(ds, batch_size=16)
    buffer.sample()                           # a TensorDict [16, 64], read with one call

For a buffer that grows while an agent plays, see `wshard.replay`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from shard_format.errors import InvalidArgument
from shard_format.extras import require
from shard_train.tensordict import read_windows

if TYPE_CHECKING:
    from tensordict import TensorDict
    from torchrl.data import Storage, TensorDictReplayBuffer

    from shard_train._episode_dataset import EpisodeDataset
else:
    Storage = require("torchrl.data", "torchrl").Storage

__all__ = ["WindowStorage", "replay_buffer"]


class WindowStorage(Storage):  # type: ignore[misc] # TorchRL is not installed where types are checked
    """The windows of a dataset, which a replay buffer reads and does not write.

    Element i is window i; many of them are read with one call, and come as one TensorDict `[B, L]`, as `read_windows` says.
    Pickles without open files. Its state identifies the dataset.

    Args:
        dataset: made with `next_observations=True`.
    """

    def __init__(self, dataset: EpisodeDataset) -> None:
        super().__init__(max_size=len(dataset))
        self.dataset = dataset
        """What it reads."""

    def __len__(self) -> int:
        return len(self.dataset)

    def get(self, index: Any) -> TensorDict:  # noqa: ANN401 - whatever samplers give
        """The windows of these numbers; of a single one without the first axis."""
        if isinstance(index, slice):
            index = range(*index.indices(len(self)))
        elif isinstance(index, tuple) and len(index) == 1:
            index = index[0]
        numbers = np.asarray(index)
        found = read_windows(self.dataset, numbers.reshape(-1))
        return found.reshape(*numbers.shape, -1) if numbers.ndim != 1 else found

    def contains(self, item: Any) -> bool:  # noqa: ANN401 - whatever samplers give
        """Whether there are windows of these numbers."""
        numbers = np.asarray(item)
        return bool(((numbers >= 0) & (numbers < len(self))).all())

    def state_dict(self) -> dict[str, Any]:
        """Identifies the dataset. The files themselves are not part of a state."""
        return {"dataset": repr(self.dataset)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Checks that a state is of this dataset.

        Raises:
            InvalidArgument: it is of another one.
        """
        if state_dict.get("dataset") != repr(self.dataset):
            raise InvalidArgument(
                "the state is of another dataset",
                expected=repr(self.dataset),
                found=state_dict.get("dataset"),
            )

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> NoReturn:  # noqa: ANN401 - as TorchRL has it
        """Refuses: episodes are not changed by training."""
        raise _read_only()

    def _empty(self) -> NoReturn:
        raise _read_only()

    def __repr__(self) -> str:
        return f"WindowStorage({self.dataset!r})"


def _read_only() -> InvalidArgument:
    return InvalidArgument(
        "the windows of a dataset are read, not written",
        hint="record episodes with wshard.gym or wshard.replay, and open the dataset again",
    )


def replay_buffer(
    dataset: EpisodeDataset,
    *,
    batch_size: int,
    sampler: Any = None,  # noqa: ANN401 - a sampler of TorchRL
    prefetch: int | None = None,
    seed: int | None = None,
) -> TensorDictReplayBuffer:
    """A replay buffer over the windows of a dataset.

    Args:
        dataset: made with `next_observations=True`.
        batch_size: windows of a batch.
        sampler: of TorchRL; None for windows at random. Samplers that cut slices out of a storage of steps do not
            fit: here an element is a slice already.
        prefetch: batches that threads read ahead.
        seed: the seed of the random windows; None for another order in each run.
    """
    import torch
    from torchrl.data import ImmutableDatasetWriter, TensorDictReplayBuffer

    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return TensorDictReplayBuffer(
        storage=WindowStorage(dataset),
        sampler=sampler,
        writer=ImmutableDatasetWriter(),
        collate_fn=_as_it_is,
        batch_size=batch_size,
        prefetch=prefetch,
        generator=generator,
    )


def _as_it_is(batch: TensorDict) -> TensorDict:
    return batch
