"""Memory that workers share with the training process: who holds it, when it is used again."""

from __future__ import annotations

import copy
import os
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_format.errors import ShardError
from shard_train.torch import _shared as shared
from shard_train.torch._shared import ALIGNMENT, BufferPool, SharedBatch
from shard_train.torch._tensors import ByteColumn

BIG = 100_000


def filled(pool: BufferPool, value: int, nbytes: int = BIG) -> SharedBatch:
    """A batch in a buffer, as a worker makes it."""
    lease = pool.take(nbytes)
    room = lease.room[ALIGNMENT : ALIGNMENT + nbytes]
    room[...] = value
    return SharedBatch({"x": torch.from_numpy(room)}, lease)


def sent(batch: SharedBatch) -> dict[str, Any]:
    """What arrives on the other side. Here that is the same process, which makes no difference to either side."""
    arrived: dict[str, Any] = pickle.loads(ForkingPickler.dumps(batch))
    return arrived


def holds(tensor: torch.Tensor, value: int) -> bool:
    """Whether all bytes of it are this one."""
    return set(tensor.numpy().tobytes()) == {value}


def test_a_buffer_is_used_again_when_its_batch_is_gone_and_not_before() -> None:
    pool = BufferPool()
    first = sent(filled(pool, 1))
    part = first["x"][5:10]
    second = sent(filled(pool, 2))
    assert len(pool) == 2
    del first
    third = sent(filled(pool, 3))
    assert len(pool) == 3
    assert part.tolist() == [1] * 5
    del part
    assert sent(filled(pool, 4))["x"][0] == 4
    assert len(pool) == 3
    assert (int(second["x"][0]), int(third["x"][0])) == (2, 3)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4), st.integers(1, 3)), max_size=24))
@settings(deadline=None, max_examples=15)  # handing over memory takes milliseconds
def test_no_batch_changes_while_it_is_held_in_any_order_of_sending_and_dropping(
    steps: list[tuple[bool, int, int]],
) -> None:
    pool = BufferPool()
    held: list[tuple[int, torch.Tensor]] = []
    for value, (is_dropped, which, size) in enumerate(steps):
        if is_dropped and held:
            held.pop(which % len(held))
        else:
            held.append((value, sent(filled(pool, value, BIG * size))["x"]))
        for expected, tensor in held:
            assert holds(tensor, expected)
    assert len(pool) <= len(steps)


def test_a_batch_that_is_never_sent_gives_its_buffer_back() -> None:
    pool = BufferPool()
    for value in range(5):
        filled(pool, value)
    assert len(pool) == 1


def test_what_the_worker_itself_still_holds_is_not_filled_again() -> None:
    pool = BufferPool()
    batch = filled(pool, 1)
    sent(batch)  # arrives and is dropped
    filled(pool, 2)
    assert holds(batch["x"], 1)


def test_a_small_tensor_does_not_keep_the_whole_batch() -> None:
    pool = BufferPool()
    kept = []
    for value in range(6):
        lease = pool.take(2 * BIG)
        start = BIG + ALIGNMENT
        values = {"big": lease.room[ALIGNMENT:start], "label": lease.room[start : start + 4]}
        for part in values.values():
            part[...] = value
        tensors = {name: torch.from_numpy(part) for name, part in values.items()}
        kept.append(sent(SharedBatch(tensors, lease))["label"])
        del lease, values, tensors, part
    assert [label.tolist() for label in kept] == [[value] * 4 for value in range(6)]
    assert len(pool) == 1


def test_many_batches_that_were_held_at_once_leave_no_memory_behind() -> None:
    pool = BufferPool()
    held = [sent(filled(pool, value)) for value in range(20)]
    assert len(pool) == 20
    held.clear()
    for value in range(200):
        sent(filled(pool, value))
    assert len(pool) == 1
    assert len(shared._mapped[pool.session]) == 1


def test_larger_batches_take_the_place_of_smaller_buffers() -> None:
    pool = BufferPool()
    for size in range(1, 8):
        assert sent(filled(pool, size, size * BIG))["x"].nbytes == size * BIG
    assert len(pool) == 1
    assert len(shared._mapped[pool.session]) == 1


def test_bytes_ragged_lists_and_tensors_from_elsewhere_arrive_too() -> None:
    pool = BufferPool()
    lease = pool.take(BIG)
    values = [b"a" * 1000, b"", b"b" * 70_000]
    column = ByteColumn.of(values, room=lease.room[64 : 64 + 71_000])
    ragged = [
        torch.from_numpy(lease.room[72_000:72_016]).view(torch.bfloat16).fill_(value)
        for value in (1,)
    ]
    elsewhere = torch.arange(3)
    batch = SharedBatch({"file": column, "ragged": ragged, "own": elsewhere, "key": ["k"]}, lease)
    found = sent(batch)
    assert found["file"] == values
    assert found["ragged"][0].dtype is torch.bfloat16
    assert found["ragged"][0].tolist() == [1] * 8
    assert found["own"].tolist() == [0, 1, 2]
    assert found["key"] == ["k"]
    assert type(found) is dict


def test_copies_and_plain_pickles_have_memory_of_their_own() -> None:
    pool = BufferPool()
    batch = filled(pool, 1)
    others = [copy.deepcopy(batch), pickle.loads(pickle.dumps(batch))]
    assert isinstance(copy.copy(batch), SharedBatch)
    batch["x"].fill_(2)
    for other in others:
        assert type(other) is dict
        assert holds(other["x"], 1)
    assert holds(copy.copy(batch)["x"], 2)


def test_a_batch_that_is_sent_twice_arrives_twice() -> None:
    pool = BufferPool()
    batch = filled(pool, 7)
    first, second = sent(batch), sent(batch)
    first["x"].fill_(1)
    assert holds(second["x"], 7)


def test_a_process_that_never_got_the_memory_says_so() -> None:
    pool = BufferPool()
    sent(filled(pool, 1))
    message = ForkingPickler.dumps(filled(pool, 2))
    shared._mapped.clear()
    with pytest.raises(
        ShardError, match="can be received only by the process that started the workers"
    ):
        pickle.loads(message)


def test_a_forked_child_keeps_the_batch_that_its_parent_held() -> None:
    pool = BufferPool()
    batch = sent(filled(pool, 1))
    to_child, to_parent = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.read(to_child[0], 1)  # the parent has let go of it, and its worker wrote the next
        os.write(to_parent[1], b"same" if holds(batch["x"], 1) else b"else")
        os._exit(0)
    del batch
    for value in range(2, 6):
        sent(filled(pool, value))
    os.write(to_child[1], b".")
    assert os.read(to_parent[0], 4) == b"same"
    assert os.waitpid(child, 0)[1] == 0
    assert len(pool) == 1
    for end in (*to_child, *to_parent):
        os.close(end)


def test_buffers_of_processes_that_ended_are_forgotten() -> None:
    pool = BufferPool()
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    pool.session = f"{child} ended"
    kept = sent(filled(pool, 1))
    sent(filled(BufferPool(), 2))
    assert pool.session not in shared._mapped
    assert holds(kept["x"], 1)
