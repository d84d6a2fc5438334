"""The order of training: exact cover, equal batch counts, elastic ranks and workers, exact resume."""

from __future__ import annotations

import itertools
import json
import pickle
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shard_train._plan
from shard_format.errors import InvalidArgument
from shard_train import BatchSampler, Plan

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SHUFFLES = ("global", "shards", "none", "stream")


def sizes_for(length: int) -> list[int]:
    """Shards of 7, the last one shorter, and an empty one in front."""
    return [0, *([7] * (length // 7)), length % 7]


def plan_for(length: int, shuffle: str = "global", **options: Any) -> Plan:  # noqa: ANN401 - those of `Plan`
    if shuffle == "shards":
        options = {"shard_sizes": sizes_for(length), "buffer_shards": 3, **options}
    return Plan(length, shuffle=shuffle, **options)  # type: ignore[arg-type]


def ranks_of(plan: Plan) -> list[Plan]:
    return [replace(plan, rank=rank) for rank in range(plan.world_size)]


def workers_of(plan: Plan) -> list[Plan]:
    return [replace(plan, worker=worker) for worker in range(plan.num_workers)]


def in_turn(plan: Plan, start: int = 0) -> Iterator[list[int]]:
    """What a loader gives that takes one batch from each worker in turn."""
    running = [each.batches(start) for each in workers_of(plan)]
    for batches in itertools.cycle(running):
        batch = next(batches, None)
        if batch is None:
            return
        yield batch.tolist()


def global_batches(plan: Plan, start: int = 0) -> list[list[int]]:
    """What all ranks together take in each step."""
    by_rank = [list(in_turn(rank, start)) for rank in ranks_of(plan)]
    return [joined(parts) for parts in zip(*by_rank, strict=True)]


def as_taken(batches: list[list[int]], shuffle: str) -> list[list[int]]:
    """Global batches in the order in which the ranks have their samples, which by shards is not that of the epoch."""
    return [sorted(batch) for batch in batches] if shuffle == "shards" else batches


def joined(parts: Iterable[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(parts))


def everything(plan: Plan) -> list[int]:
    """The whole epoch, in order."""
    return list(plan.indices(np.arange(plan.length)).tolist())


class TestCover:
    """Every sample exactly once per epoch over all ranks and workers."""

    @pytest.mark.parametrize("shuffle", SHUFFLES)
    @pytest.mark.parametrize("length", [1, 2, 5, 24, 60, 61])
    def test_ranks_and_workers_share_an_epoch_without_gaps_or_repeats(
        self, length: int, shuffle: str
    ) -> None:
        for world_size, num_workers, batch_size in itertools.product(
            (1, 2, 3, 8), (1, 2, 5), (1, 4, 7)
        ):
            plan = plan_for(
                length,
                shuffle,
                seed=3,
                world_size=world_size,
                num_workers=num_workers,
                batch_size=batch_size,
                pad=True,
            )
            taken: list[int] = []
            for rank in ranks_of(plan):
                for worker in workers_of(rank):
                    steps = range(worker.worker, plan.steps, num_workers)
                    batches = list(worker.batches())
                    assert len(batches) == len(steps) == len(worker)
                    for step, batch in zip(steps, batches, strict=True):
                        assert batch.size == batch_size
                        taken += batch[~worker.is_pad(step)].tolist()
            assert sorted(taken) == list(range(length))

    @pytest.mark.parametrize("shuffle", SHUFFLES)
    @given(
        length=st.integers(0, 300),
        world_size=st.integers(1, 9),
        num_workers=st.integers(1, 5),
        batch_size=st.integers(1, 20),
        epoch=st.integers(0, 2**40),
    )
    @settings(max_examples=25)
    def test_batches_are_the_epoch_cut_into_pieces(
        self,
        shuffle: str,
        length: int,
        world_size: int,
        num_workers: int,
        batch_size: int,
        epoch: int,
    ) -> None:
        plan = plan_for(
            length,
            shuffle,
            epoch=epoch,
            world_size=world_size,
            num_workers=num_workers,
            batch_size=batch_size,
            pad=True,
        )
        stream = everything(plan)
        first = epoch * length if shuffle == "stream" else 0
        assert sorted(stream) == list(range(first, first + length))
        together = plan.global_batch
        padded = stream * (1 + together) if stream else []
        batches = global_batches(plan)
        pieces = [padded[step * together : (step + 1) * together] for step in range(plan.steps)]
        assert as_taken(batches, shuffle) == as_taken(pieces, shuffle)
        assert plan.steps == -(-length // together)
        dropping = replace(plan, drop_last=True)
        assert global_batches(dropping) == batches[: length // together]
        assert dropping.steps == length // together

    @given(st.integers(1, 200), st.integers(1, 6), st.integers(1, 9))
    def test_a_last_batch_that_is_not_filled_is_shared_evenly(
        self, length: int, world_size: int, batch_size: int
    ) -> None:
        left = length % (world_size * batch_size)
        plan = Plan(length, world_size=world_size, batch_size=batch_size)
        added = world_size - left if 0 < left < world_size else 0  # one for each rank
        stream = everything(plan)
        assert joined(global_batches(plan)) == stream + (stream * world_size)[:added]
        assert {len(rank) for rank in ranks_of(plan)} == {plan.steps}
        last = [rank.batch(plan.steps - 1).size for rank in ranks_of(plan)]
        assert max(last) - min(last) <= 1
        assert min(last) > 0
        marked = [rank.is_pad(plan.steps - 1).sum() for rank in ranks_of(plan)]
        assert sum(marked) == added

    def test_padding_repeats_the_start_of_the_epoch_and_is_marked(self) -> None:
        plan = Plan(10, batch_size=4, world_size=2, shuffle="none", pad=True)
        first, second = ranks_of(plan)
        assert [first.batch(1).tolist(), second.batch(1).tolist()] == [[8, 9, 0, 1], [2, 3, 4, 5]]
        assert first.is_pad(1).tolist() == [False, False, True, True]
        assert second.is_pad(1).all()
        assert not first.is_pad(0).any()
        assert len(plan) == 2

    def test_a_batch_longer_than_the_data_goes_round_more_than_once(self) -> None:
        plan = Plan(3, batch_size=8, shuffle="none", pad=True)
        assert plan.batch(0).tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
        assert plan.is_pad(0).tolist() == [False] * 3 + [True] * 5

    def test_no_samples_are_no_batches(self) -> None:
        for shuffle in SHUFFLES:
            plan = plan_for(0, shuffle, batch_size=3)
            assert len(plan) == 0
            assert list(plan.batches()) == []
            assert list(BatchSampler(plan)) == []


class TestOrder:
    """Positions and samples."""

    def test_a_batch_is_the_same_asked_for_alone_or_in_turn(self) -> None:
        for shuffle in SHUFFLES:
            plan = plan_for(10_007, shuffle, batch_size=32, world_size=3, rank=1)
            in_order = list(plan.batches())
            assert len(in_order) == len(plan)
            for step in (0, 1, 60, len(plan) - 1, 5, 5):
                assert np.array_equal(plan.batch(step), in_order[step])
                assert plan.batch(step).dtype == np.int64

    def test_indices_keep_the_shape_of_the_positions(self) -> None:
        plan = Plan(100, seed=1)
        grid = np.arange(12).reshape(3, 4)
        assert np.array_equal(plan.indices(grid).ravel(), plan.indices(range(12)))
        assert plan.indices(grid).shape == (3, 4)
        assert plan.indices([]).size == 0
        assert plan.indices(np.uint8(7)) == plan.indices([7])[0]

    @pytest.mark.parametrize("positions", [[-1], [100], [0, 2**63], [0.5]])
    def test_positions_outside_the_epoch_are_refused(self, positions: list[Any]) -> None:
        with pytest.raises(InvalidArgument, match="position"):
            Plan(100).indices(np.array(positions))

    def test_steps_outside_the_epoch_are_refused(self) -> None:
        plan = Plan(100, batch_size=10)
        for step in (-1, 10):
            with pytest.raises(IndexError, match=f"step {step} is outside an epoch of 10"):
                plan.batch(step)
            with pytest.raises(IndexError):
                plan.is_pad(step)
        with pytest.raises(IndexError):
            plan.batch_at(100)
        with pytest.raises(InvalidArgument):
            plan.batches(-1)
        assert list(plan.batches(10)) == list(plan.batches(99)) == []

    def test_epochs_and_seeds_have_orders_of_their_own(self) -> None:
        for shuffle in ("global", "shards"):
            plan = plan_for(500, shuffle)
            orders = [
                everything(replace(plan, seed=seed, epoch=epoch))
                for seed in range(3)
                for epoch in range(3)
            ]
            assert len({tuple(order) for order in orders}) == 9
            assert everything(plan.with_epoch(2)) == orders[2]

    def test_an_epoch_of_a_stream_follows_the_one_before(self) -> None:
        plan = Plan(5, shuffle="stream", batch_size=2, epoch=1)
        assert [batch.tolist() for batch in plan.batches()] == [[5, 6], [7, 8], [9]]

    def test_a_plan_is_the_same_in_another_process(self) -> None:
        code = (
            "from shard_train import Plan\n"
            "plan = Plan(1000, seed=5, epoch=2, batch_size=6, world_size=2, rank=1)\n"
            "print([plan.batch(3).tolist(), plan.state_dict(3)])"
        )
        printed = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        plan = Plan(1000, seed=5, epoch=2, batch_size=6, world_size=2, rank=1)
        assert printed.strip() == str([plan.batch(3).tolist(), plan.state_dict(3)])

    def test_orders_never_change_between_versions(self) -> None:
        """Saved states refer to them."""
        assert plan_for(50, "global", seed=1).indices(range(8)).tolist() == GLOBAL
        assert plan_for(50, "shards", seed=1).indices(range(8)).tolist() == BY_SHARDS
        assert plan_for(50, "shards", seed=1).state_dict() == STATE

    def test_a_plan_pickles_as_its_arguments(self) -> None:
        plan = plan_for(10_000_000, "global", batch_size=64)
        before = plan.batch(1000)
        packed = pickle.dumps(plan)
        assert len(packed) < 1000
        again = pickle.loads(packed)
        assert again == plan
        assert np.array_equal(again.batch(1000), before)

    def test_what_is_printed_makes_the_same_plan(self) -> None:
        plan = Plan(10, seed=2, batch_size=3, drop_last=True, shuffle="none")
        assert repr(plan) == "Plan(10, seed=2, batch_size=3, drop_last=True, shuffle='none')"
        assert eval(repr(plan)) == plan
        assert "shard_sizes=<3 sizes>" in repr(plan_for(10, "shards"))

    def test_batches_of_any_size_are_cut_from_blocks_of_any_size(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plan = Plan(997, batch_size=5, world_size=3, rank=2, num_workers=2, worker=1)
        expected = [batch.tolist() for batch in plan.batches(3)]
        for ahead in (1, 7, 100):
            monkeypatch.setattr(shard_train._plan, "_AHEAD", ahead)
            assert [batch.tolist() for batch in plan.batches(3)] == expected


GLOBAL = [29, 9, 5, 31, 18, 20, 8, 22]
BY_SHARDS = [5, 4, 3, 30, 28, 33, 32, 6]
STATE = {"length": 50, "seed": 1, "order": 3363314444, "epoch": 0, "position": 0}


class TestShards:
    """Shuffling for data that is far away: few shards at a time."""

    SIZES = (100, 0, 3, 250, 100, 1, 80, 100, 0, 66)

    def plan(self, **options: Any) -> Plan:  # noqa: ANN401 - those of `Plan`
        options = {"shard_sizes": self.SIZES, "buffer_shards": 3, **options}
        return Plan(sum(self.SIZES), shuffle="shards", **options)

    def shards_of(self, plan: Plan) -> list[int]:
        """The shard of every sample, in the order of the epoch."""
        bounds = np.cumsum(self.SIZES)
        return list(bounds.searchsorted(everything(plan), "right").tolist())

    def test_a_reader_needs_one_group_of_shards_at_a_time(self) -> None:
        for epoch in range(5):
            shards = self.shards_of(self.plan(epoch=epoch))
            last = {shard: position for position, shard in enumerate(shards)}
            begun: set[int] = set()
            for position, shard in enumerate(shards):
                begun.add(shard)
                assert sum(last[each] >= position for each in begun) <= 3

    def test_samples_of_a_group_are_mixed(self) -> None:
        """Else neighbours would nearly always be of the same shard."""
        shards = np.array(self.shards_of(self.plan(buffer_shards=10)))
        same = (shards[1:] == shards[:-1]).mean()
        by_chance = ((np.array(self.SIZES) / sum(self.SIZES)) ** 2).sum()
        assert abs(same - by_chance) < 0.1
        one_by_one = np.array(self.shards_of(self.plan(buffer_shards=1)))
        assert (one_by_one[1:] != one_by_one[:-1]).sum() == 7  # eight shards that are not empty

    def test_samples_of_one_shard_are_not_in_storage_order(self) -> None:
        order = np.array(everything(self.plan(buffer_shards=1)))
        largest = order[(order >= 103) & (order < 353)]
        assert 0.35 < (np.diff(largest) > 0).mean() < 0.65

    def test_the_order_of_the_shards_changes_from_epoch_to_epoch(self) -> None:
        firsts = {self.shards_of(self.plan(epoch=epoch, buffer_shards=1))[0] for epoch in range(30)}
        assert firsts == {0, 2, 3, 4, 5, 6, 7, 9}

    def test_one_shard_is_shuffled_anew_in_every_epoch(self) -> None:
        plan = Plan(40, shuffle="shards", shard_sizes=[40])
        orders = {tuple(everything(plan.with_epoch(epoch))) for epoch in range(5)}
        assert len(orders) == 5

    @given(st.lists(st.integers(0, 59), max_size=30), st.integers(1, 12))
    def test_any_positions_in_any_order_are_what_the_whole_epoch_says(
        self, positions: list[int], buffer_shards: int
    ) -> None:
        plan = plan_for(60, "shards", buffer_shards=buffer_shards)
        whole = everything(plan)
        fresh = replace(plan)
        assert fresh.indices(positions).tolist() == [whole[position] for position in positions]

    def test_many_groups_are_asked_for_without_being_kept(self) -> None:
        plan = Plan(3000, shuffle="shards", shard_sizes=[3] * 1000, buffer_shards=2)
        assert sorted(everything(plan)) == list(range(3000))
        assert len(plan._order._kept) <= 8  # type: ignore[attr-defined]

    @pytest.mark.parametrize(("world_size", "most"), [(2, 1.5), (4, 2.2), (8, 3.5)])
    def test_few_shards_are_read_by_several_ranks(self, world_size: int, most: float) -> None:
        """As neighbours of the epoch, every rank would read every shard."""
        plan = Plan(
            4800,
            shuffle="shards",
            shard_sizes=[100] * 48,
            buffer_shards=16,
            batch_size=10,
            world_size=world_size,
        )
        read = [
            {int(sample) // 100 for batch in rank.batches() for sample in batch}
            for rank in ranks_of(plan)
        ]
        assert len(set.union(*read)) == 48
        assert sum(map(len, read)) <= most * 48

    def test_each_rank_has_its_samples_in_the_order_of_the_epoch(self) -> None:
        plan = self.plan(world_size=3, batch_size=7)
        place = {sample: position for position, sample in enumerate(everything(plan))}
        for rank in ranks_of(plan):
            taken = [place[int(sample)] for batch in rank.batches() for sample in batch]
            assert taken == sorted(taken)

    @given(
        length=st.integers(1, 200),
        before=st.tuples(st.integers(1, 4), st.integers(1, 6)),
        after=st.tuples(st.integers(1, 4), st.integers(1, 6)),
        done=st.integers(0, 40),
    )
    def test_a_run_resumes_with_other_ranks_and_every_sample_comes_once(
        self, length: int, before: tuple[int, int], after: tuple[int, int], done: int
    ) -> None:
        old = plan_for(length, "shards", world_size=before[0], batch_size=before[1])
        new = plan_for(length, "shards", world_size=after[0], batch_size=after[1], pad=True)
        done = min(done, length // old.global_batch)
        taken = joined(global_batches(old)[:done])
        _, position = new.resumed(old.state_dict(done))
        for rank in ranks_of(new):
            starts = range(position, length, new.global_batch)
            for start, batch in zip(starts, rank.batches_from(position), strict=True):
                taken += batch[~rank.is_pad_at(start)].tolist()
        assert sorted(taken) == list(range(length))

    def test_sizes_must_be_those_of_the_data(self) -> None:
        with pytest.raises(InvalidArgument, match="shard_sizes="):
            Plan(10, shuffle="shards")
        for sizes in ([5, 4], [11, -1], []):
            with pytest.raises(InvalidArgument, match="not those of this dataset"):
                Plan(10, shuffle="shards", shard_sizes=sizes)


class TestElastic:
    """The same stream for any number of ranks and workers."""

    @pytest.mark.parametrize("shuffle", SHUFFLES)
    def test_the_same_global_batch_has_the_same_samples_on_any_number_of_ranks(
        self, shuffle: str
    ) -> None:
        expected = as_taken(
            global_batches(plan_for(101, shuffle, batch_size=12, pad=True)), shuffle
        )
        for world_size, num_workers in itertools.product((1, 2, 3, 4, 6, 12), (1, 2, 3)):
            plan = plan_for(
                101,
                shuffle,
                batch_size=12 // world_size,
                world_size=world_size,
                num_workers=num_workers,
                pad=True,
            )
            assert as_taken(global_batches(plan), shuffle) == expected

    @pytest.mark.parametrize("num_workers", [1, 2, 3, 4])
    def test_workers_that_start_anywhere_give_batches_in_order(self, num_workers: int) -> None:
        plan = Plan(101, batch_size=4, num_workers=num_workers)
        expected = [batch.tolist() for batch in Plan(101, batch_size=4).batches()]
        for start in range(plan.steps + 2):
            assert list(in_turn(plan, start)) == expected[start:]

    @given(
        before=st.tuples(st.integers(1, 5), st.integers(1, 6)),
        after=st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(1, 3)),
        done=st.integers(0, 100),
        length=st.integers(1, 100),
    )
    def test_a_run_resumes_with_other_ranks_workers_and_batches_without_losing_a_sample(
        self, before: tuple[int, int], after: tuple[int, int, int], done: int, length: int
    ) -> None:
        old = Plan(length, seed=4, world_size=before[0], batch_size=before[1])
        done = min(done, old.steps)
        state = old.state_dict(done)
        new = Plan(length, seed=4, world_size=after[0], batch_size=after[1], num_workers=after[2])
        taken = joined(global_batches(old)[:done])[:length]
        for rank in ranks_of(new):
            assert rank.resumed(state)[1] == done * old.global_batch
        samplers = [[BatchSampler(worker) for worker in workers_of(rank)] for rank in ranks_of(new)]
        for sampler in itertools.chain(*samplers):
            sampler.load_state_dict(state)
        by_rank = [
            [
                batch
                for turn in itertools.zip_longest(*workers)
                for batch in turn
                if batch is not None
            ]
            for workers in samplers
        ]
        for parts in zip(*by_rank, strict=True):
            taken += joined(parts)
        assert taken[:length] == everything(new)
        assert len(taken) - length < max(old.global_batch, new.global_batch)


class TestSampler:
    """Stop and resume."""

    @pytest.mark.parametrize("shuffle", SHUFFLES)
    @pytest.mark.parametrize("drop_last", [False, True])
    def test_resuming_at_every_step_twice_equals_the_uninterrupted_run(
        self, shuffle: str, drop_last: bool
    ) -> None:
        plan = plan_for(23, shuffle, batch_size=2, world_size=2, rank=1, drop_last=drop_last)
        run = BatchSampler(plan)
        expected = [batch for _ in range(3) for batch in run]
        for stop in range(len(expected)):
            state: dict[str, int] | None = None
            taken: list[list[int]] = []
            for end in (stop // 2, stop, len(expected)):
                sampler = BatchSampler(plan)
                if state is not None:
                    sampler.load_state_dict(json.loads(json.dumps(state)))
                while len(taken) < end:
                    for batch in sampler:
                        taken.append(batch)
                        if len(taken) == end:
                            break
                state = sampler.state_dict()
            assert taken == expected, stop

    def test_batches_are_lists_of_numbers(self) -> None:
        (batch,) = BatchSampler(Plan(3, batch_size=3))
        assert type(batch) is list
        assert {type(number) for number in batch} == {int}

    def test_every_iteration_that_ends_is_followed_by_the_next_epoch(self) -> None:
        plan = Plan(50, batch_size=7)
        sampler = BatchSampler(plan)
        for epoch in range(3):
            assert sampler.plan.epoch == epoch
            assert len(sampler) == 8
            expected = [batch.tolist() for batch in plan.with_epoch(epoch).batches()]
            assert list(sampler) == expected

    def test_an_iteration_that_is_left_starts_again(self) -> None:
        """A look at the first batch, or what a loader read ahead, must not cost samples."""
        sampler = BatchSampler(Plan(50, batch_size=7))
        first = next(iter(sampler))
        assert next(iter(sampler)) == first
        state = sampler.state_dict()
        assert state["position"] == 7
        resumed = BatchSampler(Plan(50, batch_size=7))
        resumed.load_state_dict(state)
        second = next(iter(resumed))
        assert second != first
        assert next(iter(resumed)) == second

    def test_an_old_iterator_that_ends_later_does_not_move_the_sampler(self) -> None:
        sampler = BatchSampler(Plan(6, batch_size=2))
        old = iter(sampler)
        new = iter(sampler)
        next(new)
        list(old)
        assert sampler.state_dict() == Plan(6, batch_size=2).state_dict(1)

    def test_set_epoch_keeps_the_place_in_the_epoch_that_was_loaded(self) -> None:
        plan = Plan(50, batch_size=7)
        state = plan.with_epoch(4).state_dict(3)
        sampler = BatchSampler(plan)
        sampler.load_state_dict(state)
        sampler.set_epoch(4)
        assert sampler.state_dict() == state
        assert list(sampler) == [batch.tolist() for batch in plan.with_epoch(4).batches(3)]
        sampler.load_state_dict(state)
        sampler.set_epoch(9)
        assert sampler.state_dict() == plan.with_epoch(9).state_dict(0)

    def test_a_state_at_the_end_of_an_epoch_gives_nothing_and_then_the_next_epoch(self) -> None:
        plan = Plan(50, batch_size=7)
        sampler = BatchSampler(plan)
        sampler.load_state_dict(plan.state_dict(plan.steps))
        sampler.set_epoch(0)
        assert list(sampler) == []
        assert list(sampler) == [batch.tolist() for batch in plan.with_epoch(1).batches()]

    def test_the_state_after_counted_batches_is_that_of_a_sampler_that_gave_them(self) -> None:
        plan = Plan(50, batch_size=3, world_size=2)
        sampler = BatchSampler(plan)
        running = iter(sampler)
        for step in range(plan.steps):
            assert plan.state_dict(step) == sampler.state_dict() == running.state_dict()
            next(running)

    @pytest.mark.parametrize("start", [0, 2])
    def test_a_loader_that_reads_ahead_saves_what_was_trained_on(self, start: int) -> None:
        plan = Plan(50, batch_size=7)
        sampler = BatchSampler(plan)
        sampler.load_state_dict(plan.state_dict(start))
        batches = list(sampler)  # all of them, before the first is used
        assert sampler.plan.epoch == 1
        assert sampler.state_dict() == plan.with_epoch(1).state_dict(0)
        for done in range(len(batches) + 1):
            state = sampler.state_dict(batches_done=done)
            assert state == plan.state_dict(start + done)
            resumed = BatchSampler(plan)
            resumed.load_state_dict(state)
            assert resumed.state_dict(batches_done=0) == state
            assert list(resumed) == batches[done:]
        with pytest.raises(InvalidArgument, match="batches_done"):
            sampler.state_dict(batches_done=-1)
        sampler.set_epoch(7)
        assert sampler.state_dict(batches_done=1) == plan.with_epoch(7).state_dict(1)

    def test_the_state_is_the_same_on_every_rank(self) -> None:
        states = []
        for rank in ranks_of(Plan(50, batch_size=3, world_size=4)):
            sampler = BatchSampler(rank)
            next(iter(sampler))
            states.append(sampler.state_dict())
        assert all(state == states[0] for state in states)
        assert all(type(value) is int for value in states[0].values())
        assert states[0]["position"] == 12

    def test_iterators_carry_a_state_too(self) -> None:
        """Stateful loaders save and load the iterator, not the sampler."""
        sampler = BatchSampler(Plan(50, batch_size=7))
        running = iter(sampler)
        next(running)
        state = running.state_dict()
        rest = list(running)
        again = iter(BatchSampler(Plan(50, batch_size=7)))
        next(again), next(again)
        again.load_state_dict(state)
        assert list(again) == rest

    def test_workers_resume_from_their_own_states(self) -> None:
        """As a loader does that saves the state of each worker, in the middle of a turn."""
        plan = Plan(60, batch_size=4, num_workers=3)
        expected = list(in_turn(plan))
        for taken in range(len(expected)):
            running = [iter(BatchSampler(worker)) for worker in workers_of(plan)]
            for step in range(taken):
                assert next(running[step % 3]) == expected[step]
            resumed = [iter(BatchSampler(worker)) for worker in workers_of(plan)]
            for new, old in zip(resumed, running, strict=True):
                new.load_state_dict(old.state_dict())
            for step in range(taken, len(expected)):
                assert next(resumed[step % 3]) == expected[step]

    def test_a_running_sampler_pickles(self) -> None:
        sampler = BatchSampler(Plan(50, batch_size=7))
        running = iter(sampler)
        next(running)
        other = pickle.loads(pickle.dumps(sampler))
        assert other.state_dict() == sampler.state_dict()
        assert list(pickle.loads(pickle.dumps(running))) == list(running)

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"length": 51}, "a different length"),
            ({"seed": 1}, "a different seed"),
            ({"shuffle": "none"}, "a different order"),
        ],
    )
    def test_states_of_other_orders_are_refused(self, change: dict[str, Any], words: str) -> None:
        state = Plan(50, batch_size=7).state_dict(2)
        with pytest.raises(InvalidArgument, match=words):
            BatchSampler(replace(Plan(50, batch_size=7), **change)).load_state_dict(state)

    def test_states_of_other_shards_are_refused(self) -> None:
        state = plan_for(50, "shards").state_dict(1)
        for change in ({"buffer_shards": 4}, {"shard_sizes": (25, 25)}):
            with pytest.raises(InvalidArgument, match="a different order"):
                replace(plan_for(50, "shards"), **change).resumed(state)

    def test_from_any_place_every_rank_has_a_last_batch(self) -> None:
        state = Plan(20, batch_size=3).state_dict(1)  # 17 are left: 8, 8 and 1
        sizes = []
        for rank in range(4):
            sampler = BatchSampler(Plan(20, batch_size=2, world_size=4, rank=rank))
            sampler.load_state_dict(state)
            sizes.append([len(batch) for batch in sampler])
        assert sizes == [[2, 2, 1]] * 4

    @pytest.mark.parametrize(
        "state",
        [
            {},
            {"epoch": 0},
            {**Plan(50).state_dict(), "position": -1},
            {**Plan(50).state_dict(), "position": 2**63},
            {**Plan(50).state_dict(), "epoch": -1},
            {**Plan(50).state_dict(), "epoch": "0"},
            {**Plan(50).state_dict(), "position": 1.5},
            {**Plan(50).state_dict(), "more": 1},
        ],
    )
    def test_what_is_no_state_is_refused_and_changes_nothing(self, state: dict[str, Any]) -> None:
        sampler = BatchSampler(Plan(50))
        before = sampler.state_dict()
        with pytest.raises(InvalidArgument):
            sampler.load_state_dict(state)
        assert sampler.state_dict() == before


class TestArguments:
    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"length": -1}, "length is out of range"),
            ({"length": 2**48 + 1}, "length is out of range"),
            ({"length": 1.5}, "length must be an integer"),
            ({"seed": -1}, "seed is out of range"),
            ({"seed": None}, "seed must be an integer"),
            ({"epoch": -1}, "epoch is out of range"),
            ({"world_size": 0}, "world_size is out of range"),
            ({"rank": 1}, "rank is out of range"),
            ({"world_size": 4, "rank": -1}, "rank is out of range"),
            ({"num_workers": 0}, "num_workers is out of range"),
            ({"num_workers": 2, "worker": 2}, "worker is out of range"),
            ({"batch_size": 0}, "batch_size is out of range"),
            ({"batch_size": 2**40, "world_size": 2**10}, "times ranks times workers"),
            ({"buffer_shards": 0}, "buffer_shards is out of range"),
            ({"shuffle": "yes"}, "unknown shuffle"),
            ({"shuffle": "stream", "length": 2**40, "epoch": 2**40}, "length times epoch"),
        ],
    )
    def test_arguments_that_cannot_work_are_refused(
        self, options: dict[str, Any], words: str
    ) -> None:
        with pytest.raises(InvalidArgument, match=words):
            Plan(**{"length": 10, **options})

    def test_numbers_of_numpy_are_numbers(self) -> None:
        numbers: tuple[Any, ...] = (np.int64(10), np.int32(2), np.uint8(3))
        plan = Plan(numbers[0], batch_size=numbers[1], seed=numbers[2])
        assert plan == Plan(10, batch_size=2, seed=3)
        assert all(type(value) is int for value in plan.state_dict().values())

    def test_the_largest_dataset_has_batches_at_both_ends(self) -> None:
        plan = Plan(2**48, batch_size=4096, world_size=1000, rank=999, pad=True)
        found = np.concatenate([plan.batch(0), plan.batch(plan.steps // 2)])
        assert np.unique(found).size == 2 * 4096
        assert found.max() < 2**48
        assert plan.is_pad(plan.steps - 1).any()
        assert plan.batch(plan.steps - 1).max() < 2**48
