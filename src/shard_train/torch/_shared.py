"""Batches on their way from worker processes to the training process, without a copy.

A worker writes a batch into a buffer of shared memory and sends only where in it each tensor lies. The training
process maps a buffer when it arrives for the first time and makes tensors over it. When the last of them is gone, it
marks the buffer as free, and the worker fills it again. Memory that is shared anew for each batch would have to be
found by the system page by page, in both processes, and a file handle would have to be sent for each tensor.

The first byte of a buffer says who may write to it: the worker while it is `FREE`. While the training
process has it, it is `HELD`, and no process writes. It is `GONE` for good when the training process forks while it holds it: the child would see it change.

Owns, in the training process: `_mapped`, the buffers that arrived, and `_held`, those that tensors lie in.
"""

from __future__ import annotations

import copy
import itertools
import os
import secrets
import weakref
from contextlib import suppress
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from shard_format.errors import ShardError
from shard_format.extras import require
from shard_train.torch._tensors import ByteColumn

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch
    from numpy.typing import NDArray
else:
    torch = require("torch", "torch")

__all__ = [
    "ALIGNMENT",
    "BufferLease",
    "BufferPool",
    "SharedBatch",
    "forget_ended_workers",
    "pool",
    "rounded",
]

ALIGNMENT: Final = 64
"""Each tensor of a batch begins at a multiple of this, the first at this itself."""
FREE: Final = 0
HELD: Final = 1
GONE: Final = 2

# Where batches differ in size, as files do, a buffer has this part more than was asked for.
_MORE: Final = 8
# After this many batches, buffers that were never needed meanwhile are given back.
_REVIEW: Final = 64


def rounded(nbytes: int) -> int:
    """The bytes that a tensor takes in a buffer."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class SharedBuffer:
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


class BufferLease:
    """A buffer for one batch: it is not used again while there are views of `room`, here or in the training process."""

    def __init__(self, owner: BufferPool, buffer: SharedBuffer) -> None:
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


class BufferPool:
    """The buffers of a process.

    As many as there are batches on their way or in use: a worker never waits for one.
    """

    def __init__(self) -> None:
        self.process = os.getpid()
        self.session = f"{self.process} {secrets.token_hex(8)}"
        """Names this pool for the training process."""
        self._buffers: list[SharedBuffer] = []
        self._numbers = itertools.count()
        self._dropped: list[int] = []
        self._taken = 0
        self._unneeded = 0

    def __len__(self) -> int:
        return len(self._buffers)

    def take(self, nbytes: int) -> BufferLease:
        """Return a buffer with room for `nbytes` from `ALIGNMENT` on."""
        nbytes += ALIGNMENT
        for buffer in [one for one in self._buffers if one.state[0] == GONE]:
            self._drop(buffer)
        free = [buffer for buffer in self._buffers if buffer.is_free]
        # Always the first that fits: it stays in the caches, and the last are those that are not needed.
        chosen = next((buffer for buffer in free if buffer.nbytes >= nbytes), None)
        if chosen is None:
            chosen = self._made(nbytes, free)
        self._review([buffer for buffer in free if buffer is not chosen])
        return BufferLease(self, chosen)

    def _made(self, nbytes: int, free: list[SharedBuffer]) -> SharedBuffer:
        if any(buffer.nbytes < nbytes for buffer in self._buffers):
            nbytes += nbytes // _MORE
        if free:
            self._drop(free.pop())
        buffer = SharedBuffer(next(self._numbers), nbytes)
        self._buffers.append(buffer)
        return buffer

    def _review(self, spare: list[SharedBuffer]) -> None:
        self._unneeded = min(self._unneeded, len(spare)) if self._taken else len(spare)
        self._taken = (self._taken + 1) % _REVIEW
        if self._taken == 0:
            for buffer in spare[len(spare) - self._unneeded :]:
                self._drop(buffer)

    def _drop(self, buffer: SharedBuffer) -> None:
        self._buffers.remove(buffer)
        self._dropped.append(buffer.number)

    def dropped(self) -> list[int]:
        """The numbers of the buffers that were given back since this was asked last."""
        dropped, self._dropped = self._dropped, []
        return dropped


_pool: BufferPool | None = None


def pool() -> BufferPool:
    """The pool of this process."""
    global _pool
    if _pool is None or _pool.process != os.getpid():
        _pool = BufferPool()
    return _pool


# --- batches over buffers

# Smaller tensors are copied out of the buffer: a label that you keep must not keep the whole batch.
_SMALL: Final = 1 << 16


class SharedBatch(dict[str, Any]):
    """A batch in a worker, whose tensors lie in a buffer. In the training process it arrives as a plain dictionary.

    Tensors that are put into it later, and lie elsewhere, are sent as torch does it.
    """

    __slots__ = ("lease",)

    def __init__(self, values: Mapping[str, Any], lease: BufferLease) -> None:
        super().__init__(values)
        self.lease = lease

    def __copy__(self) -> SharedBatch:
        return SharedBatch(self, self.lease)

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return copy.deepcopy(dict(self), memo)

    def __reduce__(self) -> tuple[Any, ...]:
        # Whatever is not the queue of a worker gets a dictionary with memory of its own.
        return dict, (dict(self),)


class _Place(NamedTuple):
    """A tensor in a buffer."""

    offset: int
    nbytes: int
    shape: tuple[int, ...]
    dtype: torch.dtype


class _PlaceOfBytes(NamedTuple):
    """A `ByteColumn` in a buffer."""

    offset: int
    offsets: bytes


def _described(value: Any, lease: BufferLease) -> Any:  # noqa: ANN401 - whatever a batch is made of
    """The value with places instead of the tensors that lie in the buffer."""
    if isinstance(value, torch.Tensor):
        offset = lease.offset_of(value)
        if offset is None:
            return value
        return _Place(offset, value.nbytes, tuple(value.shape), value.dtype)
    if isinstance(value, ByteColumn):
        offset = lease.offset_of(value.data)
        return value if offset is None else _PlaceOfBytes(offset, value.offsets.tobytes())
    if type(value) is tuple or (type(value) is list and torch.Tensor in map(type, value)):
        return type(value)(_described(part, lease) for part in value)
    if isinstance(value, dict):
        return {key: _described(part, lease) for key, part in value.items()}
    return value


def _reduced(batch: SharedBatch) -> tuple[Any, ...]:
    """What is put into the queue for a batch."""
    lease = batch.lease
    if lease.was_sent:
        return batch.__reduce__()
    described = _described(batch, lease)
    lease.send()
    owner, buffer = lease.owner, lease.buffer
    memory = None if buffer.is_known else buffer.memory
    buffer.is_known = True
    return _rebuilt, (owner.session, buffer.number, memory, owner.dropped(), described)


ForkingPickler.register(SharedBatch, _reduced)

# --- in the training process

_mapped: dict[str, dict[int, torch.Tensor]] = {}
_held: dict[int, tuple[str, int]] = {}
_arrivals = itertools.count()


def _rebuilt(
    session: str,
    number: int,
    memory: torch.Tensor | None,
    dropped: Iterable[int],
    described: dict[str, Any],
) -> dict[str, Any]:
    """A batch that arrives, over the buffer that it lies in."""
    if session not in _mapped:
        forget_ended_workers()
    buffers = _mapped.setdefault(session, {})
    for one in dropped:
        buffers.pop(one, None)
    if memory is not None:
        buffers[number] = memory
    found = buffers.get(number)
    if found is None:
        raise ShardError(
            "a batch of a worker arrived without its memory",
            hint="batches of workers can be received only by the process that started the workers",
        )
    room: NDArray[np.uint8] = found.numpy()
    arrival = next(_arrivals)
    _held[arrival] = (session, number)
    weakref.finalize(room, _release, arrival, found).atexit = False
    batch: dict[str, Any] = _restored(described, room)
    return batch


def _release(arrival: int, memory: torch.Tensor) -> None:
    _held.pop(arrival, None)
    state = memory.numpy()
    if state[0] == HELD:
        state[0] = FREE


def _restored(value: Any, room: NDArray[np.uint8]) -> Any:  # noqa: ANN401
    if isinstance(value, _Place):
        tensor = _tensor(room, value.offset, value.nbytes)
        return tensor.view(value.dtype).view(value.shape)
    if isinstance(value, _PlaceOfBytes):
        offsets = np.frombuffer(bytearray(value.offsets), np.int64)
        return ByteColumn(_tensor(room, value.offset, int(offsets[-1])), offsets)
    if type(value) is tuple or (type(value) is list and _Place in map(type, value)):
        return type(value)(_restored(part, room) for part in value)
    if isinstance(value, dict):
        return {key: _restored(part, room) for key, part in value.items()}
    return value


def _tensor(room: NDArray[np.uint8], offset: int, nbytes: int) -> torch.Tensor:
    part = room[offset : offset + nbytes]
    return torch.from_numpy(part.copy() if nbytes <= _SMALL else part)


def forget_ended_workers() -> None:
    """Gives back the buffers of workers that are no longer there."""
    for session in list(_mapped):
        if not _is_running(int(session.partition(" ")[0])):
            _mapped.pop(session, None)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError:  # no such process, or one of another user
        return False
    return True


def _before_fork() -> None:
    for session, number in list(_held.values()):
        memory = _mapped.get(session, {}).pop(number, None)
        if memory is not None:
            memory.numpy()[0] = GONE


def _in_child() -> None:
    _mapped.clear()


with suppress(AttributeError):  # where processes cannot be forked
    os.register_at_fork(before=_before_fork, after_in_child=_in_child)
