"""Streams of batches, and the loader of torchdata."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from shard_format.errors import InvalidArgument
from shard_train import BatchSampler, Plan
from shard_train.torch import BatchStream, collate
from tests.bridges.torch_support import Numbers, Plain, numbers_of, planned

TIMEOUT = 60
PLAN = Plan(22, batch_size=4, seed=2)


def workers_options(workers: int) -> dict[str, Any]:
    return (
        {"num_workers": workers, "multiprocessing_context": "fork", "timeout": TIMEOUT}
        if workers
        else {}
    )


class TestOrder:
    """The same as that of a loader."""

    @pytest.mark.parametrize("workers", [0, 1, 2, 3])
    @pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes")
    def test_any_number_of_workers_gives_the_order_of_the_plan(self, workers: int) -> None:
        stream = BatchStream(Plain(22), PLAN)
        loader = DataLoader(stream, batch_size=None, **workers_options(workers))
        assert len(loader) == len(PLAN)
        assert numbers_of(loader) == planned(PLAN)

    def test_ranks_and_workers_share_an_epoch(self) -> None:
        plans = [Plan(53, batch_size=4, world_size=2, rank=rank, seed=1) for rank in range(2)]
        for plan in plans:
            loader = DataLoader(BatchStream(Plain(53), plan), batch_size=None, **workers_options(2))
            assert numbers_of(loader) == planned(plan)

    def test_shards_come_a_few_at_a_time(self) -> None:
        plan = Plan(
            60, batch_size=5, shuffle="shards", shard_sizes=[10] * 6, buffer_shards=2, seed=3
        )
        loader = DataLoader(BatchStream(Plain(60), plan), batch_size=None, **workers_options(2))
        batches = numbers_of(loader)
        assert batches == planned(plan)
        for start in range(0, len(batches), 4):
            shards = {number // 10 for batch in batches[start : start + 4] for number in batch}
            assert len(shards) == 2

    def test_persistent_workers_have_the_epoch_that_was_set(self) -> None:
        stream = BatchStream(Plain(22), PLAN)
        loader = DataLoader(stream, batch_size=None, persistent_workers=True, **workers_options(2))
        for epoch in (0, 1, 5):
            stream.set_epoch(epoch)
            assert numbers_of(loader) == planned(PLAN.with_epoch(epoch))

    def test_batches_lie_in_shared_memory(self) -> None:
        plan = Plan(48, batch_size=4, shuffle="none")
        stream = BatchStream(Numbers(48), plan)
        batches = list(DataLoader(stream, batch_size=None, **workers_options(2)))
        assert numbers_of(batches) == planned(plan)
        assert sum(bool(batch["into"].all()) for batch in batches) == 10
        for batch in batches:
            assert batch["big"].numpy()[:, -1].tolist() == (batch["number"] % 251).tolist()

    def test_a_plan_for_one_of_several_workers_is_refused(self) -> None:
        with pytest.raises(InvalidArgument, match="one of several workers"):
            BatchStream(Plain(22), Plan(22, num_workers=2))


class TestResuming:
    """Alone, and in the loader of torchdata."""

    def test_a_stream_goes_on_where_its_state_says_and_then_from_the_start(self) -> None:
        stream = BatchStream(Plain(22), PLAN)
        running = iter(stream)
        next(running), next(running)
        again = BatchStream(Plain(22), PLAN)
        again.load_state_dict(stream.state_dict())
        again.set_epoch(0)  # that of the state: the place stays
        assert numbers_of(again) == planned(PLAN)[2:]
        again.set_epoch(1)
        assert numbers_of(again) == planned(PLAN.with_epoch(1))

    def test_a_state_of_something_else_is_refused(self) -> None:
        with pytest.raises(InvalidArgument, match="a different seed"):
            BatchStream(Plain(22), PLAN).load_state_dict(Plan(22, seed=9).state_dict())

    @pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # called by torchdata
    @pytest.mark.parametrize("workers", [0, 2])
    @pytest.mark.parametrize("kind", ["sampler", "stream"])
    def test_torchdata_resumes_it_exactly_at_every_step_and_twice(
        self, kind: str, workers: int
    ) -> None:
        make = _with_sampler if kind == "sampler" else _with_stream
        whole = planned(PLAN)
        for stop in range(1, len(whole)):
            first = make(workers)
            seen, state = _taken(first, stop)
            second = make(workers)
            second.load_state_dict(state)
            more, state = _taken(second, 1)
            seen += more
            third = make(workers)
            third.load_state_dict(state)
            assert seen + numbers_of(third) == whole, stop


def _with_sampler(workers: int) -> StatefulDataLoader:
    return StatefulDataLoader(
        Plain(22), batch_sampler=BatchSampler(PLAN), collate_fn=collate, **workers_options(workers)
    )


def _with_stream(workers: int) -> StatefulDataLoader:
    return StatefulDataLoader(
        BatchStream(Plain(22), PLAN), batch_size=None, **workers_options(workers)
    )


def _taken(loader: StatefulDataLoader, count: int) -> tuple[list[list[int]], dict[str, Any]]:
    running = iter(loader)
    seen = numbers_of(next(running) for _ in range(count))
    return seen, copy.deepcopy(loader.state_dict())
