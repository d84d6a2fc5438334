"""The buffers of a worker process: memory that it shares with the training process, used again and again.

Who may write is said by the first byte of a buffer: the worker while it is `FREE`, nobody while the training process
has it, `HELD`. It is `GONE` for good when the training process forks while it holds it: the child would see it change.
"""

from __future__ import annotations

import itertools
import os
import secrets
import weakref
from typing import TYPE_CHECKING, Final

from shard_format._extras import require

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
else:
    torch = require("torch", "torch")

__all__ = ["ALIGNMENT", "FREE", "GONE", "HELD", "Buffer", "Lease", "Pool", "pool", "rounded"]

ALIGNMENT: Final = 64
"""Each tensor of a batch begins at a multiple of this, the first at this itself."""
FREE: Final = 0
HELD: Final = 1
GONE: Final = 2

# Where batches differ in size, as files do, a buffer has this part more than was asked for.
_MORE: Final = 8
# After so many batches, buffers that were not needed once in the meantime are given back.
_REVIEW: Final = 64


def rounded(nbytes: int) -> int:
    """The bytes that a tensor takes in a buffer."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class Buffer:
    """Shared memory of a worker, with what the worker knows about it."""

    def __init__(self, number: int, nbytes: int) -> None:
        self.number = number
        self.memory = torch.empty(nbytes, dtype=torch.uint8).share_memory_()
        self.state: NDArray[np.uint8] = self.memory.numpy()[:1]
        self.state[0] = FREE
        self.is_known = False
        """Whether the training process has been given the memory itself."""
        self.lease: weakref.ref[NDArray[np.uint8]] | None = None

    @property
    def nbytes(self) -> int:
        """All of it."""
        return int(self.memory.nbytes)

    @property
    def is_free(self) -> bool:
        # What this process still has a tensor of must not change either.
        return bool(self.state[0] == FREE) and (self.lease is None or self.lease() is None)


class Lease:
    """A buffer for one batch: it is not used again while there are views of `room`, here or in the training process."""

    def __init__(self, owner: Pool, buffer: Buffer) -> None:
        self.owner = owner
        self.buffer = buffer
        # Views of views have this very array as their base, and so have tensors over them.
        self.room: NDArray[np.uint8] = buffer.memory.numpy()
        self.was_sent = False
        buffer.lease = weakref.ref(self.room)

    def send(self) -> None:
        """From now on the training process says when it is free again."""
        self.was_sent = True
        self.buffer.state[0] = HELD

    def offset_of(self, tensor: torch.Tensor) -> int | None:
        """Where in the buffer a tensor lies; None if it does not, or not in one piece."""
        if tensor.device.type != "cpu" or tensor.requires_grad or not tensor.is_contiguous():
            return None
        offset: int = tensor.data_ptr() - self.buffer.memory.data_ptr()
        return offset if ALIGNMENT <= offset <= self.buffer.nbytes - tensor.nbytes else None


class Pool:
    """The buffers of a process.

    As many as there are batches on their way or in use: a worker never waits for one.
    """

    def __init__(self) -> None:
        self.process = os.getpid()
        self.session = f"{self.process} {secrets.token_hex(8)}"
        """Names this pool for the training process."""
        self._buffers: list[Buffer] = []
        self._numbers = itertools.count()
        self._dropped: list[int] = []
        self._taken = 0
        self._unneeded = 0

    def __len__(self) -> int:
        return len(self._buffers)

    def take(self, nbytes: int) -> Lease:
        """A buffer with room for so many bytes from `ALIGNMENT` on."""
        nbytes += ALIGNMENT
        for buffer in [one for one in self._buffers if one.state[0] == GONE]:
            self._drop(buffer)
        free = [buffer for buffer in self._buffers if buffer.is_free]
        # Always the first that fits: it stays in the caches, and the last are those that are not needed.
        chosen = next((buffer for buffer in free if buffer.nbytes >= nbytes), None)
        if chosen is None:
            chosen = self._made(nbytes, free)
        self._review([buffer for buffer in free if buffer is not chosen])
        return Lease(self, chosen)

    def _made(self, nbytes: int, free: list[Buffer]) -> Buffer:
        if any(buffer.nbytes < nbytes for buffer in self._buffers):
            nbytes += nbytes // _MORE
        if free:
            self._drop(free.pop())
        buffer = Buffer(next(self._numbers), nbytes)
        self._buffers.append(buffer)
        return buffer

    def _review(self, spare: list[Buffer]) -> None:
        self._unneeded = min(self._unneeded, len(spare)) if self._taken else len(spare)
        self._taken = (self._taken + 1) % _REVIEW
        if self._taken == 0:
            for buffer in spare[len(spare) - self._unneeded :]:
                self._drop(buffer)

    def _drop(self, buffer: Buffer) -> None:
        self._buffers.remove(buffer)
        self._dropped.append(buffer.number)

    def dropped(self) -> list[int]:
        """The numbers of the buffers that were given back since this was asked last."""
        dropped, self._dropped = self._dropped, []
        return dropped


_pool: Pool | None = None


def pool() -> Pool:
    """The pool of this process."""
    global _pool
    if _pool is None or _pool.process != os.getpid():
        _pool = Pool()
    return _pool
