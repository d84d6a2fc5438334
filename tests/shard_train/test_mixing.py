"""Mixtures: exact shares in every prefix, epochs of their own for each source, one set of channels."""

from __future__ import annotations

import itertools
import pickle
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_format.errors import InvalidArgument
from shard_train import BatchSampler, MixedBatch, MixedDataset, Plan, mix
from shard_train._mixture import MixtureOrder, MixturePattern

WEIGHTS = st.one_of(
    st.lists(st.integers(1, 12), min_size=1, max_size=6),
    st.lists(st.sampled_from([0.1, 0.25, 0.5, 0.7, 1.0, 2.5]), min_size=1, max_size=5),
)


class Stacking:
    """A source that gives batches as one dictionary of arrays."""

    def __init__(self, length: int, **channels: Any) -> None:  # noqa: ANN401 - values of any kind
        self.length = length
        self.channels = channels
        self.calls = 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int, /) -> dict[str, Any]:
        return {"number": np.int64(number), **self.channels}

    def __getitems__(self, numbers: list[int]) -> dict[str, Any]:
        self.calls += 1
        stacked = {
            name: np.stack([value] * len(numbers))
            if isinstance(value, np.ndarray)
            else [value] * len(numbers)
            for name, value in self.channels.items()
        }
        return {"number": np.array(numbers, np.int64), **stacked}


class OneByOne:
    """A source of which samples can be asked for singly only."""

    def __init__(self, length: int, **channels: Any) -> None:  # noqa: ANN401 - values of any kind
        self.length = length
        self.channels = channels

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int, /) -> dict[str, Any]:
        return {"number": number, **self.channels}


def draws(mixed: MixedDataset, start: int, stop: int) -> list[tuple[int, int]]:
    """Source and number of each position."""
    sources, numbers = mixed.locate(np.arange(start, stop))
    return list(zip(sources.tolist(), numbers.tolist(), strict=True))


class TestShares:
    """How much of each source."""

    @given(WEIGHTS, st.integers(0, 5))
    def test_every_prefix_has_the_share_of_every_source_to_less_than_one_sample(
        self, weights: list[float], seed: int
    ) -> None:
        pattern = MixturePattern(weights, seed)
        exact = [Fraction(str(weight)) for weight in weights]
        shares = np.array([float(weight / sum(exact)) for weight in exact])
        positions = np.arange(len(pattern) + 500)
        sources, _ = pattern.draws(positions)
        drawn = np.cumsum(sources[:, np.newaxis] == np.arange(len(weights)), axis=0)
        wanted = (positions[:, np.newaxis] + 1) * shares
        assert np.abs(drawn - wanted).max() < 1 - 1e-9

    @given(WEIGHTS, st.integers(0, 10_000))
    def test_a_position_knows_how_often_its_source_came_before(
        self, weights: list[float], position: int
    ) -> None:
        pattern = MixturePattern(weights)
        before, _ = pattern.draws(np.arange(position))
        (source,), (draw,) = pattern.draws(np.array([position]))
        counts = np.bincount(before, minlength=len(weights))
        assert draw == counts[source]
        assert pattern.counts_before(position).tolist() == counts.tolist()
        assert pattern.position_of(int(source), int(draw)) == position

    def test_shares_without_a_common_denominator_are_rounded(self) -> None:
        weights = [2**0.5, 3**0.5, 1e-9, 0.1]
        mixed = mix([(10, weight) for weight in weights], stop="never")
        assert mixed.shares.sum() == 1
        assert np.abs(mixed.shares - np.array(weights) / sum(weights)).max() < 2**-15
        assert mixed.shares[2] == 2**-16  # at least one place, however small
        sources, _ = mixed.locate(np.arange(2**16))
        assert np.array_equal(np.bincount(sources) / 2**16, mixed.shares)

    def test_weights_are_taken_as_they_are_written(self) -> None:
        assert mix([(10, 0.1), (10, 0.2), (10, 0.7)]).shares.tolist() == [0.1, 0.2, 0.7]
        assert mix([(10, 1), (10, 3)]).shares.tolist() == [0.25, 0.75]
        thirds = mix([(10, Fraction(1, 3)), (10, Fraction(2, 3))])  # type: ignore[list-item]
        assert np.allclose(thirds.shares, [1 / 3, 2 / 3], rtol=0, atol=1e-12)

    def test_ranks_do_not_get_the_same_source_forever(self) -> None:
        """Two equal sources on two ranks: which one goes first must change."""
        sources, _ = mix([(10, 1), (10, 1)], stop="never").locate(np.arange(1000))
        assert 200 < sources[::2].sum() < 300

    def test_many_sources_have_their_shares(self) -> None:
        pattern = MixturePattern([1 + number % 7 for number in range(500)])
        sources, _ = pattern.draws(np.arange(len(pattern)))
        assert np.array_equal(np.bincount(sources), pattern.counts)

    @pytest.mark.parametrize("weight", [0, -1, float("nan"), float("inf"), 10**400, "much", None])
    def test_weights_that_are_not_positive_numbers_are_refused(self, weight: Any) -> None:  # noqa: ANN401 - wrong on purpose
        with pytest.raises(InvalidArgument, match="weight"):
            mix([(10, 1), (10, weight)])


class TestEpochs:
    """Where an epoch of the mixture ends, and what each source gives in it."""

    LENGTHS = (10, 35, 4)
    WEIGHTS = (0.5, 0.3, 0.2)

    def mixed(self, **options: Any) -> MixedDataset:  # noqa: ANN401 - those of `mix`
        return mix(list(zip(self.LENGTHS, self.WEIGHTS, strict=True)), **options)

    def test_first_ends_before_a_sample_repeats_and_not_earlier(self) -> None:
        mixed = self.mixed(stop="first")
        found = draws(mixed, 0, len(mixed))
        assert max(Counter(found).values()) == 1
        by_source = Counter(source for source, _ in found)
        assert any(by_source[source] == length for source, length in enumerate(self.LENGTHS))
        beyond = mix(list(zip(self.LENGTHS, self.WEIGHTS, strict=True)), stop="never")
        assert draws(beyond, 0, len(mixed)) == found
        assert max(Counter(draws(beyond, 0, len(mixed) + 1)).values()) == 2

    def test_all_ends_when_every_sample_came_and_not_later(self) -> None:
        mixed = self.mixed(stop="all")
        everything = {
            (s, number) for s, length in enumerate(self.LENGTHS) for number in range(length)
        }
        assert set(draws(mixed, 0, len(mixed))) == everything
        assert set(draws(mixed, 0, len(mixed) - 1)) != everything

    @pytest.mark.parametrize("stop", ["first", "all", "never"])
    def test_every_source_goes_through_its_samples_epoch_after_epoch(self, stop: Any) -> None:  # noqa: ANN401 - a literal
        mixed = self.mixed(stop=stop)
        found = draws(mixed, 0, 400)
        for source, length in enumerate(self.LENGTHS):
            numbers = [number for each, number in found if each == source]
            assert len(numbers) > 2 * length
            laps = [numbers[at : at + length] for at in range(0, len(numbers) - length, length)]
            assert all(sorted(lap) == list(range(length)) for lap in laps)
            assert len({tuple(lap) for lap in laps}) > 1

    def test_the_epochs_of_a_source_are_those_of_its_plan(self) -> None:
        plan = Plan(35, seed=99, shuffle="shards", shard_sizes=[5] * 7, buffer_shards=2)
        mixed = self.mixed(stop="never", plans={"1": plan})
        numbers = [number for source, number in draws(mixed, 0, 400) if source == 1]
        expected = [plan.with_epoch(epoch).indices(range(35)).tolist() for epoch in range(4)]
        assert numbers == list(itertools.chain(*expected))[: len(numbers)]

    def test_every_epoch_of_the_mixture_has_as_much_of_each_source(self) -> None:
        mixed = self.mixed(stop="first")
        counts = [
            Counter(
                source for source, _ in draws(mixed, epoch * len(mixed), (epoch + 1) * len(mixed))
            )
            for epoch in range(4)
        ]
        assert all(count == counts[0] for count in counts)

    def test_without_shuffle_the_samples_are_in_order(self) -> None:
        numbers = [
            n for source, n in draws(self.mixed(shuffle="none", stop="never"), 0, 60) if source == 0
        ]
        assert numbers == [*range(10)] * 3

    def test_seeds_have_orders_of_their_own(self) -> None:
        found = [tuple(draws(self.mixed(seed=seed), 0, 19)) for seed in range(5)]
        assert len(set(found)) == 5
        assert tuple(draws(self.mixed(seed=3), 0, 19)) == found[3]

    def test_mixtures_never_change_between_versions(self) -> None:
        """Saved states refer to them."""
        mixed = self.mixed(seed=1)
        assert draws(mixed, 0, 6) == FIRST_DRAWS
        assert mixed.plan().state_dict() == STATE

    def test_one_source_is_a_mixture_too(self) -> None:
        mixed = mix([(7, 0.3)])
        assert len(mixed) == 7
        assert sorted(draws(mixed, 0, 7)) == [(0, number) for number in range(7)]

    def test_an_endless_mixture_has_batches_far_away(self) -> None:
        mixed = self.mixed(stop="never")
        sources, numbers = mixed.locate([2**47, 2**47 + 1])
        assert all(
            number < self.LENGTHS[source] for source, number in zip(sources, numbers, strict=True)
        )

    @pytest.mark.parametrize(
        ("sources", "options", "words"),
        [
            ([], {}, "nothing to mix"),
            ([(0, 1)], {}, "has no samples"),
            ([(5, 1)], {"stop": "last"}, "unknown stop"),
            ([(5, 1)], {"shuffle": "stream"}, "unknown shuffle for the sources"),
            ([(5, 1)], {"rename": {"a": {}}}, "name that no source has"),
            ([(5, 1)], {"plans": {"a": Plan(5)}}, "name that no source has"),
            ([(5, 1)], {"plans": {"0": Plan(6)}}, "a different length"),
        ],
    )
    def test_arguments_that_cannot_work_are_refused(
        self, sources: list[Any], options: dict[str, Any], words: str
    ) -> None:
        with pytest.raises(InvalidArgument, match=words):
            mix(sources, **options)

    def test_a_mixture_that_takes_too_long_to_show_everything_is_refused(self) -> None:
        plans = [Plan(2**48), Plan(1)]
        with pytest.raises(InvalidArgument, match="too long"):
            MixtureOrder(plans, [1, 9], stop="all")
        with pytest.raises(InvalidArgument, match="one weight"):
            MixtureOrder(plans, [1])
        with pytest.raises(InvalidArgument, match="negative"):
            mix([(5, 1)]).locate([-1])


FIRST_DRAWS = [(0, 2), (1, 4), (0, 7), (2, 1), (0, 9), (1, 12)]
STATE = {"length": 20, "seed": 1784068140, "order": 988578171, "epoch": 0, "position": 0}


class TestResume:
    """A mixture is walked along by a plan, with all that plans can do."""

    def test_resuming_at_every_step_twice_equals_the_uninterrupted_run(self) -> None:
        mixed = mix([(10, 0.5), (7, 0.5)], stop="all", seed=5)
        plan = mixed.plan(batch_size=3)
        run = BatchSampler(plan)
        expected = [batch for _ in range(3) for batch in run]
        assert [len(run), max(max(batch) for batch in expected) >= 2 * len(mixed)] == [
            plan.steps,
            True,
        ]
        for stop in range(len(expected)):
            state = plan.state_dict()
            taken: list[list[int]] = []
            for end in (stop // 2, stop, len(expected)):
                sampler = BatchSampler(
                    mix([(10, 0.5), (7, 0.5)], stop="all", seed=5).plan(batch_size=3)
                )
                sampler.load_state_dict(state)
                while len(taken) < end:
                    for batch in sampler:
                        taken.append(batch)
                        if len(taken) == end:
                            break
                state = sampler.state_dict()
            assert taken == expected

    def test_any_number_of_ranks_sees_the_same_stream(self) -> None:
        mixed = mix([(100, 0.5), (70, 0.5)])
        whole = [batch.tolist() for batch in mixed.plan(batch_size=12).batches()]
        parts = [mixed.plan(batch_size=4, world_size=3, rank=rank) for rank in range(3)]
        together = [
            list(itertools.chain(*(batch.tolist() for batch in batches)))
            for batches in zip(*(part.batches() for part in parts), strict=True)
        ]
        assert together == whole

    @pytest.mark.parametrize(
        "other",
        [
            mix([(10, 0.5), (7, 0.5)], seed=1),
            mix([(10, 0.6), (7, 0.4)]),
            mix([(10, 0.5), (7, 0.5)], shuffle="none"),
            mix([(10, 0.5), (7, 0.5)], stop="all"),
        ],
    )
    def test_the_state_of_another_mixture_is_refused(self, other: MixedDataset) -> None:
        state = mix([(10, 0.5), (7, 0.5)]).plan().state_dict(2)
        with pytest.raises(InvalidArgument, match="a different"):
            BatchSampler(other.plan()).load_state_dict(state)


class TestSamples:
    """What the view gives."""

    def test_stacked_batches_have_every_channel_and_masks_for_what_is_missing(self) -> None:
        robot = Stacking(20, state=np.ones(3, np.float32), task="pick")
        simulation = Stacking(30, depth=np.full((2, 2), 7, np.uint16), task="push")
        mixed = mix({"robot": (robot, 0.5), "simulation": (simulation, 0.5)}, seed=1)
        batch = mixed.batch(range(9))
        sources, numbers = mixed.locate(range(9))
        assert batch["source_id"].tolist() == sources.tolist()
        assert batch["number"].tolist() == numbers.tolist()
        of_robot = sources == 0
        assert 0 < of_robot.sum() < 9
        assert batch["state"].dtype == np.float32
        assert np.array_equal(batch["state"], np.repeat(of_robot[:, np.newaxis], 3, axis=1))
        assert np.array_equal(batch["depth"][~of_robot].ravel(), [7] * 4 * (~of_robot).sum())
        assert not batch["depth"][of_robot].any()
        assert np.array_equal(batch["state_is_missing"], ~of_robot)
        assert np.array_equal(batch["depth_is_missing"], of_robot)
        assert batch["task"] == [("pick", "push")[source] for source in sources]
        assert "task_is_missing" not in batch
        assert "number_is_missing" not in batch

    def test_a_batch_of_one_source_has_the_same_channels_as_any_other(self) -> None:
        sources = (Stacking(50, state=np.ones(3)), Stacking(50, depth=np.ones(2)))
        mixed = mix(list(zip(sources, (0.5, 0.5), strict=True)))
        ids, _ = mixed.locate(range(40))
        for wanted in ([0], [1], [0, 1], []):
            rows = np.flatnonzero(np.isin(ids, wanted))
            batch = mixed.batch(rows)
            assert list(batch) == [
                *("number", "state", "state_is_missing", "depth", "depth_is_missing", "source_id")
            ]
            assert batch["state"].shape == (len(rows), 3)
            assert batch["depth"].shape == (len(rows), 2)
            assert batch["depth_is_missing"].dtype == np.bool_

    def test_a_stacked_batch_is_a_sequence_of_its_samples(self) -> None:
        mixed = mix([(Stacking(20, state=np.ones(3)), 0.5), (Stacking(20, text="a"), 0.5)])
        samples = mixed.__getitems__(list(range(8)))
        assert isinstance(samples, MixedBatch)
        assert len(samples) == 8
        for position, sample in enumerate(samples):
            one = mixed[position]
            assert sample.keys() == one.keys()
            assert all(np.array_equal(sample[name], one[name]) for name in one)
        assert np.shares_memory(samples[3]["state"], samples.arrays["state"])
        assert [sample["number"] for sample in samples[2:4]] == samples.arrays["number"][
            2:4
        ].tolist()
        assert repr(samples) == "<MixedBatch of 8>"
        with pytest.raises(IndexError):
            samples[8]

    def test_samples_that_were_not_stacked_can_be(self) -> None:
        mixed = mix([(OneByOne(20, state=np.ones(3), text="a"), 0.5), (OneByOne(20), 0.5)])
        batch = mixed.batch(range(8))
        ids, numbers = mixed.locate(range(8))
        assert batch["source_id"].tolist() == ids.tolist()
        assert batch["number"].tolist() == numbers.tolist()
        assert batch["state"].shape == (8, 3)
        assert np.array_equal(batch["state_is_missing"], ids == 1)
        assert batch["text"] == ["" if source else "a" for source in ids]
        assert all(len(values) == 0 for values in mixed.batch([]).values())

    def test_a_source_is_asked_once_for_a_batch(self) -> None:
        source = Stacking(50)
        mixed = mix([(source, 0.5), (Stacking(50), 0.5)])
        mixed[0]
        source.calls = 0
        mixed.__getitems__(range(40))
        assert source.calls == 1

    def test_sources_of_single_samples_are_stacked(self) -> None:
        mixed = mix(
            [
                (OneByOne(20, state=np.ones(2), text="a"), 0.5),
                (Stacking(20, depth=np.ones(1), weight=np.full((), 2.0)), 0.5),
            ]
        )
        samples = mixed.__getitems__(list(range(10)))
        assert isinstance(samples, MixedBatch)
        ids, numbers = mixed.locate(range(10))
        for sample, source, number in zip(samples, ids, numbers, strict=True):
            assert (sample["source_id"], sample["number"]) == (source, number)
            assert sample["state_is_missing"] == sample["text_is_missing"] == (source == 1)
            assert sample["depth_is_missing"] == sample["weight_is_missing"] == (source == 0)
            assert sample["text"] == ("a" if source == 0 else "")
            assert sample["weight"] == (0 if source == 0 else 2)
            assert np.array_equal(sample["state"], np.ones(2) * (source == 0))

    def test_single_samples_are_those_of_the_batch(self) -> None:
        mixed = mix([(OneByOne(20, a=np.ones(2)), 0.7), (OneByOne(20, b=1.5), 0.3)])
        samples = mixed.__getitems__(range(len(mixed)))
        for position, (one, other) in enumerate(zip(mixed, samples, strict=True)):
            assert one.keys() == other.keys()
            assert all(np.array_equal(one[name], other[name]) for name in one)
            assert one.keys() == mixed[position - len(mixed)].keys()
            assert one["number"] == mixed[position - len(mixed)]["number"]
        with pytest.raises(IndexError):
            mixed[-len(mixed) - 1]

    def test_zeros_of_different_samples_are_not_the_same_array(self) -> None:
        mixed = mix([(OneByOne(20, a=np.ones(2)), 0.5), (OneByOne(20), 0.5)])
        samples = mixed.__getitems__(range(10))
        for sample in samples:
            sample["a"] += 5
        again = [sample["a"].tolist() for sample in mixed if sample["a_is_missing"]]
        assert set(map(tuple, again)) == {(0.0, 0.0)}

    def test_channels_are_renamed_for_their_source_only(self) -> None:
        robot = Stacking(20, cam_high=np.zeros(2))
        simulation = Stacking(20, camera=np.ones(2), cam_high=np.full(2, 2.0))
        mixed = mix(
            {"robot": (robot, 1), "simulation": (simulation, 1)},
            rename={"robot": {"cam_high": "camera"}},
        )
        batch = mixed.batch(range(10))
        assert batch["camera"][:, 0].tolist() == batch["source_id"].tolist()
        assert "camera_is_missing" not in batch
        assert np.array_equal(batch["cam_high_is_missing"], batch["source_id"] == 0)

    def test_lengths_stand_for_datasets_that_give_numbers(self) -> None:
        mixed = mix([(100, 0.7), (50, 0.3)])
        batch = mixed.batch(range(30))
        ids, numbers = mixed.locate(range(30))
        assert batch["index"].tolist() == numbers.tolist()
        assert batch["source_id"].tolist() == ids.tolist()
        assert mixed[4] == {"index": numbers[4], "source_id": ids[4]}

    def test_datasets_may_be_the_keys_of_a_dictionary(self) -> None:
        first, second = Stacking(10), Stacking(20)
        mixed = mix({first: 1, second: 3})
        assert mixed.sources == (first, second)
        assert mixed.names == ("0", "1")
        assert mixed.shares.tolist() == [0.25, 0.75]

    def test_a_mixture_of_mixtures_keeps_their_order(self) -> None:
        inner = mix([(6, 0.5), (9, 0.5)], seed=8)
        outer = mix({"inner": (inner, 0.5), "other": (5, 0.5)}, stop="never")
        sources, numbers = outer.locate(np.arange(200))
        assert numbers[sources == 0].tolist() == list(range(100))
        renamed = mix(
            {"inner": (inner, 0.5), "other": (5, 0.5)},
            rename={"inner": {"source_id": "inner_id"}},
        )
        batch = renamed.batch(range(8))
        assert np.array_equal(batch["inner_id_is_missing"], batch["source_id"] == 1)
        with pytest.raises(InvalidArgument, match="same name"):
            outer.batch(range(8))

    def test_pickles_and_describes_itself(self) -> None:
        mixed = mix([(10, 0.5), (7, 0.5)], seed=4)
        again = pickle.loads(pickle.dumps(mixed))
        assert draws(again, 0, 50) == draws(mixed, 0, 50)
        assert (
            repr(mixed) == "MixedDataset({0: 10, 1: 7}, stop='first', seed=4, weights=[0.5, 0.5])"
        )
        assert repr(again) == repr(mixed)


class Changing(OneByOne):
    """A source whose samples do not all have the same channels."""

    def __getitem__(self, number: int, /) -> dict[str, Any]:
        return super().__getitem__(number) if number else {"number": 0, "more": 1}


class Wrong(Stacking):
    """A source that gives fewer samples than it is asked for."""

    def __getitems__(self, numbers: list[int]) -> Any:  # noqa: ANN401 - wrong on purpose
        return [self[number] for number in numbers[1:]]


class Uneven(Stacking):
    """A source that gives more of one channel than of another."""

    def __getitems__(self, numbers: list[int]) -> dict[str, Any]:
        return {**super().__getitems__(numbers), "text": ["a"] * (len(numbers) // 2 + 1)}


class NoDictionary(OneByOne):
    def __getitem__(self, number: int, /) -> Any:  # noqa: ANN401 - wrong on purpose
        return number


class TestMisfits:
    """What cannot be mixed is said, not lost."""

    @pytest.mark.parametrize(
        ("sources", "rename", "words"),
        [
            ((OneByOne(9), Changing(9)), {}, "other channels than its first"),
            ((Stacking(9), Wrong(9)), {}, "another number of samples"),
            ((OneByOne(9), NoDictionary(9)), {}, "expected a dictionary of channels, found int"),
            ((OneByOne(9), OneByOne(9, source_id=1)), {}, "same name"),
            ((OneByOne(9), OneByOne(9, a=1)), {"1": {"a": "number"}}, "same name"),
            ((OneByOne(9), OneByOne(9, a=1)), {"1": {"b": "c"}}, "no channel 'b' to rename"),
            ((Uneven(9), Stacking(9)), {}, "channel 'text' of source '0' does not fit"),
            (
                (Stacking(9, a=np.ones(2)), Stacking(9, a=np.ones(3))),
                {},
                r"channel 'a' of source '1' does not fit the others \(expected float64",
            ),
            (
                (Stacking(9, a=np.ones(2)), Stacking(9, a=np.ones(2, np.float32))),
                {},
                "found float32",
            ),
        ],
    )
    def test_sources_that_do_not_fit_are_refused(
        self, sources: tuple[Any, ...], rename: dict[str, dict[str, str]], words: str
    ) -> None:
        mixed = mix([(source, 1) for source in sources], rename=rename)
        with pytest.raises(InvalidArgument, match=words):
            mixed.__getitems__(range(12))


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 9)), min_size=1, max_size=5),
    st.sampled_from(["first", "all"]),
    st.lists(st.integers(0, 400), max_size=20),
)
@settings(max_examples=30)
def test_any_positions_in_any_order_are_what_the_whole_mixture_says(
    sources: list[tuple[int, int]],
    stop: Any,  # noqa: ANN401 - a literal
    positions: list[int],
) -> None:
    whole = draws(mix(sources, stop=stop, seed=2), 0, 401)
    ids, numbers = mix(sources, stop=stop, seed=2).locate(positions)
    assert list(zip(ids.tolist(), numbers.tolist(), strict=True)) == [
        whole[position] for position in positions
    ]
