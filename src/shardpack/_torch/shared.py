"""Batches on their way from worker processes to the training process, without a copy.

A worker writes a batch into a buffer of shared memory and sends only where in it each tensor lies. The training
process maps a buffer when it comes for the first time and makes tensors over it. When the last of them is gone, it marks the
buffer as free, and the worker fills it again. Memory that is shared anew for each batch would have to be found by the
system page by page, in both processes, and a file handle be sent for each tensor.

Owns, in the training process: `_mapped`, the buffers that came, and `_held`, those that tensors lie in.
"""

from __future__ import annotations

import copy
import itertools
import os
import weakref
from contextlib import suppress
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from shard_format._extras import require
from shard_format.errors import ShardError
from shardpack._torch.buffers import FREE, GONE, HELD
from shardpack._torch.byte_column import ByteColumn

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch
    from numpy.typing import NDArray

    from shardpack._torch.buffers import Lease
else:
    torch = require("torch", "torch")

__all__ = ["SharedBatch", "forget_ended_workers"]

# Smaller tensors are copied out of the buffer: a label that somebody keeps must not keep the whole batch.
_SMALL: Final = 1 << 16


class SharedBatch(dict[str, Any]):
    """A batch in a worker, whose tensors lie in a buffer. In the training process it arrives as a plain dictionary.

    Tensors that are put into it later, and lie elsewhere, are sent as torch does it.
    """

    __slots__ = ("lease",)

    def __init__(self, values: Mapping[str, Any], lease: Lease) -> None:
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


def _described(value: Any, lease: Lease) -> Any:  # noqa: ANN401 - whatever a batch is made of
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
            "a batch of a worker came without the memory that it lies in",
            hint="batches of workers can only be received by the process that started them",
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
    except OSError:  # there is none of this number, or it is somebody else's
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
