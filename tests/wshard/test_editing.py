"""Cutting, joining and comparing, beyond what the properties cover."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shard_format.errors import ChunkDiscontinuity, InvalidArgument
from tests.wshard.support import bits, described, facts_of, full_episode, hand_made, ramp, save
from wshard import Channel, Episode, Timebase, load_wshard
from wshard.editing import differences, merge_episodes, slice_episode, split_episode
from wshard.types import Interval, Intervals, Residual

if TYPE_CHECKING:
    from pathlib import Path


class TestSlices:
    """Some steps as an episode of their own."""

    def test_the_whole_is_the_whole(self) -> None:
        ep = full_episode()
        part = slice_episode(ep, 0, 12, id="ep_001")
        found, wanted = facts_of(part), facts_of(ep)
        assert found == wanted

    def test_times_stay_what_they_were(self, tmp_path: Path) -> None:
        ep = Episode("e", length=10, timebase=Timebase(tick_hz=100, epoch_ns=1000))
        ep.observations["imu"] = Channel(data=ramp(40), start_ns=1000, sampling_rate_hz=400.0)
        ep.observations["gps"] = Channel(data=ramp(3), timestamps_ns=[1000, 30_001_000, 70_001_000])
        part = load_wshard(save(slice_episode(ep, 3, 7), tmp_path / "a.wshard"))
        assert part.id == "e_3_7"
        assert part.times_ns().tolist() == ep.times_ns()[3:7].tolist()
        assert part.ticks.tolist() == [3, 4, 5, 6]
        assert part.times_ns("imu").tolist() == ep.times_ns("imu")[12:28].tolist()
        assert part.observations["gps"].data.tolist() == [1]

    def test_an_observation_after_the_last_action_stays(self) -> None:
        ep = Episode("e", observations={"o": ramp(6)}, actions={"a": ramp(5)})
        assert slice_episode(ep, 1, 3).observations["o"].data.tolist() == [1, 2, 3]
        assert slice_episode(ep, 5, 5).observations["o"].data.tolist() == [5]

    def test_labels_are_clipped_and_events_stay(self) -> None:
        ep = Episode("e", length=10, timebase=Timebase(tick_hz=1e9))
        rows = [(0, 5, "a"), (5, 5, "event"), (4, 99, "long"), (-3, 1, "early")]
        ep.labels["steps"] = rows
        ep.labels["ns"] = Intervals(rows, unit="ns")
        for name, shift in (("steps", 5), ("ns", 0)):
            first, last = (part.labels[name] for part in split_episode(ep, steps=5))
            assert [(i.start, i.end, i.text) for i in first] == [
                *((0, 5, "a"), (4, 5, "long"), (-3, 1, "early")),
            ]
            assert [(i.start + shift, i.end + shift, i.text) for i in last] == [
                *((5, 5, "event"), (5, 99, "long")),
            ]

    @pytest.mark.parametrize(("start", "stop"), [(-1, 3), (5, 4), (0, 13)])
    def test_steps_outside_are_refused(self, start: int, stop: int) -> None:
        with pytest.raises(InvalidArgument, match="outside the episode"):
            slice_episode(full_episode(), start, stop)

    def test_slices_of_files_are_lazy_and_exact(self, tmp_path: Path) -> None:
        path = save(full_episode(), tmp_path / "a.wshard", "zstd", steps_per_frame=4)
        part = slice_episode(load_wshard(path), 5, 9)
        wanted = slice_episode(full_episode(), 5, 9)
        assert facts_of(part) == {**facts_of(wanted), "provenance": facts_of(part)["provenance"]}

    def test_bytes_without_a_time_axis_are_not_cut(self, tmp_path: Path) -> None:
        path = tmp_path / "a.wshard"
        path.write_bytes(hand_made({**described(4, []), "omen/x/m": b"1234567"}))
        part = slice_episode(load_wshard(path), 1, 3)
        again = load_wshard(save(part, tmp_path / "b.wshard"))
        assert again.omens["x"]["m"].data.tobytes() == b"1234567"


class TestSplitting:
    """Into parts of a length, or at given steps."""

    def test_parts_have_the_length_or_start_where_told(self) -> None:
        ep = full_episode()
        assert [part.length for part in split_episode(ep, steps=5)] == [5, 5, 2]
        assert [part.length for part in split_episode(ep, at=[3, 12])] == [3, 9, 0]
        assert [part.length for part in split_episode(Episode("e"), steps=5)] == [0]

    @pytest.mark.parametrize(
        "how", [{}, {"steps": 1, "at": [1]}, {"steps": 0}, {"at": [13]}, {"at": [-1]}]
    )
    def test_other_wishes_are_refused(self, how: dict[str, Any]) -> None:
        with pytest.raises(InvalidArgument):
            split_episode(full_episode(), **how)


class TestMerging:
    """Episodes one after the other."""

    def test_parts_with_nothing_in_them_do_no_harm(self) -> None:
        ep = full_episode()
        whole = merge_episodes(split_episode(ep, at=[0, 5, 5, 12]))
        assert bits(whole.residuals["state"].data) == bits(ep.residuals["state"].data)
        assert bits(whole.observations["state"].data) == bits(ep.observations["state"].data)

    def test_the_parts_of_an_episode_get_its_id_and_metadata_back(self, tmp_path: Path) -> None:
        ep = full_episode()
        parts = split_episode(ep, at=[3, 7])
        assert parts[1].metadata == {
            **ep.metadata,
            "split_from": {"id": ep.id, "start": 3, "stop": 7, "length": ep.length},
        }
        files = [save(part, tmp_path / f"{n}.wshard") for n, part in enumerate(parts)]
        loaded = [load_wshard(file) for file in files]
        whole = merge_episodes(loaded)
        assert (whole.id, whole.metadata) == (ep.id, ep.metadata)
        assert "meta/episode" not in {one.block for one in differences(ep, whole)}
        assert merge_episodes(loaded, id="other").id == "other"
        # Cut twice, and only a part of it: each level comes back.
        again = merge_episodes(split_episode(loaded[0], steps=2))
        assert (again.id, again.metadata) == (loaded[0].id, loaded[0].metadata)
        some = merge_episodes(loaded[1:])
        assert some.id == f"{ep.id}_3_{ep.length}"
        whole = merge_episodes([loaded[0], some])
        assert (whole.id, whole.metadata) == (ep.id, ep.metadata)

    def test_parts_out_of_order_or_of_two_episodes_are_not_an_episode(self) -> None:
        ep, other = full_episode(), full_episode()
        other.id = "other"
        first, last = split_episode(ep, at=[5])
        for parts in ([last, first], [first, first], [first, split_episode(other, at=[5])[1]]):
            merged = merge_episodes(parts)
            assert merged.id == parts[0].id
            assert len(merged.metadata["merged_from"]) == 2
            assert "split_from" not in merged.metadata

    def test_different_episodes_are_remembered(self, tmp_path: Path) -> None:
        one = Episode("a", actions={"x": ramp(2)}, metadata={"n": 1})
        two = Episode("b", actions={"x": ramp(3)}, metadata={"n": 2})
        merged = load_wshard(save(merge_episodes([one, two], id="ab"), tmp_path / "a.wshard"))
        assert merged.actions["x"].data.tolist() == [0, 1, 0, 1, 2]
        assert merged.ticks.tolist() == [0, 1, 2, 3, 4]
        assert [row["id"] for row in merged.metadata["merged_from"]] == ["a", "b"]

    def test_episodes_without_metadata_are_named_in_that_of_the_merged_one_only(
        self, tmp_path: Path
    ) -> None:
        parts = [Episode(id=name, length=2) for name in "ab"]
        files = [save(part, tmp_path / f"{part.id}.wshard") for part in parts]
        first, second = map(load_wshard, files)
        merged = load_wshard(save(merge_episodes([first, second]), tmp_path / "ab.wshard"))
        assert [one["id"] for one in merged.metadata["merged_from"]] == ["a", "b"]
        assert first.metadata == {}

    def test_intervals_that_touch_inside_a_part_stay_two(self) -> None:
        ep = Episode("e", length=6, labels={"l": [(0, 2, "x"), (2, 3, "x"), (4, 6, "y")]})
        whole = merge_episodes(split_episode(ep, at=[5]))
        assert list(whole.labels["l"]) == [
            Interval(0, 2, "x"),
            Interval(2, 3, "x"),
            Interval(4, 6, "y"),
        ]

    @pytest.mark.parametrize(
        "change",
        [
            lambda ep: ep.actions.update(y=ramp(2)),
            lambda ep: ep.actions.update(x=ramp(2, 2)),
            lambda ep: ep.actions.update(x=ramp(2, dtype="f8")),
            lambda ep: setattr(ep, "rewards", ramp(2)),
            lambda ep: setattr(ep, "timestamps_ns", np.arange(2)),
            lambda ep: setattr(ep.actions["x"], "timestamps_ns", np.arange(2)),
            lambda ep: ep.residuals.update(x=Residual.of_signal("x", ramp(2))),
        ],
    )
    def test_different_channels_are_refused_by_name(self, change: Any) -> None:  # noqa: ANN401 - a function
        one, two = Episode("a", actions={"x": ramp(2)}), Episode("b", actions={"x": ramp(2)})
        change(two)
        for pair in ([one, two], [two, one]):
            with pytest.raises(ChunkDiscontinuity):
                merge_episodes(pair)

    def test_nothing_and_different_rates_are_refused(self) -> None:
        with pytest.raises(InvalidArgument, match="nothing to merge"):
            merge_episodes([])
        with pytest.raises(InvalidArgument, match="different rates"):
            merge_episodes([Episode("a"), Episode("b", timebase=Timebase(tick_hz=1))])


class TestDifferences:
    """What two episodes differ in."""

    def test_storage_makes_no_difference(self, tmp_path: Path) -> None:
        one = load_wshard(save(full_episode(), tmp_path / "a.wshard"))
        two = load_wshard(save(full_episode(), tmp_path / "b.wshard", profile="training"))
        assert differences(one, two) == []

    @pytest.mark.parametrize(
        ("change", "block", "kind"),
        [
            (lambda ep: ep.actions.pop("ctrl"), "action/ctrl", "only_left"),
            (lambda ep: ep.actions.update(new=ramp(12)), "action/new", "only_right"),
            (lambda ep: ep.metadata.update(task="x"), "meta/episode", "metadata"),
            (lambda ep: setattr(ep.actions["ctrl"], "unit", "Nm"), "meta/channels", "description"),
            (lambda ep: ep.actions.update(ctrl=ramp(12)), "action/ctrl", "form"),
            (
                lambda ep: setattr(ep.actions["ctrl"], "data", ep.actions["ctrl"].data + 1),
                "action/ctrl",
                "values",
            ),
            (lambda ep: ep.labels["skill"].append((1, 2, "x")), "label/skill", "form"),
        ],
    )
    def test_each_is_named(self, change: Any, block: str, kind: str) -> None:  # noqa: ANN401 - a function
        one, two = full_episode(), full_episode()
        change(two)
        assert (block, kind) in [(d.block, d.kind) for d in differences(one, two)]
        assert len(differences(one, two, values=False)) == (
            0 if kind == "values" else len(differences(one, two))
        )

    def test_values_say_where_and_by_how_much(self) -> None:
        one, two = full_episode(), full_episode()
        changed = two.actions["ctrl"].data.copy()
        changed[3] += 0.25
        two.actions["ctrl"].data = changed
        (found,) = differences(one, two)
        assert found.detail == "1 of 12 steps differ, first at 3, by at most 0.25"


def test_joining_many_labels_looks_at_each_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at all earlier ones for each part: 200 parts with 500 labels each took more than half a minute."""
    parts = []
    for number in range(40):
        part = Episode("e", length=20)
        part.observations["x"] = ramp(20, 2)
        part.labels["phase"] = [(step, step + 1, f"{number} {step}") for step in range(19)]
        part.labels["whole"] = [(0, 20, "all the time")]
        parts.append(part)
    looks = 0
    get = Intervals.__getitem__

    def counted(self: Intervals, index: Any) -> Any:  # noqa: ANN401 - as in the class
        nonlocal looks
        looks += 1
        return get(self, index)

    monkeypatch.setattr(Intervals, "__getitem__", counted)
    merged = merge_episodes(parts)
    assert looks < 5 * 40 * 20
    assert len(merged.labels["phase"]) == 40 * 19
    assert [(one.start, one.end) for one in merged.labels["whole"]] == [(0, 800)]
