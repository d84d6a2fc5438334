"""Making episodes: what is taken, what it becomes, and what is refused, with the channel and the reason."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shard_format import ShardReader
from shard_format.errors import EntryNotFound, InvalidArgument, ShardError
from tests.wshard.support import bits, full_episode, ramp, save, without_ml_dtypes
from wshard import Channel, ChunkedEpisodeWriter, DType, Episode, Timebase, add_lane, load_wshard
from wshard._episode import NestedView
from wshard._values import bfloat16
from wshard.editing import slice_episode
from wshard.latent import get_latent_actions, get_latent_codebook, set_latent_actions
from wshard.multimodal import add_multimodal_observation, get_multimodal_observations
from wshard.types import Interval, Modality, RaggedChannel, Residual, TextChannel

if TYPE_CHECKING:
    from pathlib import Path


def refusal(ep: Episode) -> ShardError:
    """What validating says."""
    with pytest.raises(InvalidArgument) as caught:
        ep.validate()
    return caught.value


class TestTaking:
    """Arrays, lists, strings and channels become channels."""

    def test_arrays_are_taken_wherever_a_channel_is(self) -> None:
        data = ramp(5, 2)
        ep = Episode("ep", observations={"a": data}, actions={"a": data}, rewards=data[:, 0])
        ep.omens["a"]["m"] = data
        ep.uncerts["a"]["m"]["std"] = data
        ep.observations.update(b=data)
        ep.observations |= {"c": data}  # type: ignore[operator] # mypy takes the type of the setter
        assert ep.observations.setdefault("d", data) is ep.observations["d"]
        for _, channel in ep.blocks():
            assert isinstance(channel, Channel)
            assert channel.dtype_name is DType.FLOAT32
        assert ep.observations["c"].name == "c"
        assert np.shares_memory(ep.observations["a"].data, data), "nothing is copied"
        ep.validate()

    def test_a_whole_lane_may_be_assigned(self) -> None:
        ep = Episode("ep")
        ep.actions = {"a": ramp(3)}
        ep.omens = {"a": {"m": ramp(3)}}
        assert ep.actions["a"].dtype_name is DType.FLOAT32
        ep.actions["b"] = ramp(3)
        ep.omens["b"]["m"] = ramp(3)
        ep.validate()
        with pytest.raises(InvalidArgument, match="W-NAM-1"):
            ep.labels = {"..": []}

    def test_lists_numbers_and_strings_are_taken(self) -> None:
        ep = Episode("ep", actions={"n": [1, 2, 3], "f": [[0.5], [1], [2]]})
        ep.observations["words"] = ["a", "", "ü"]
        ep.observations["more"] = np.array(["x", "yy", ""])
        assert ep.actions["n"].dtype_name is DType.INT64
        assert ep.actions["f"].step_shape == (1,)
        assert isinstance(ep.observations["words"], TextChannel)
        assert ep.observations["more"][1] == "yy"
        assert ep.length == 3

    @pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i2", "i4", "i8", "u2", "u4", "u8"])
    def test_big_endian_input_is_converted(self, dtype: str) -> None:
        data = np.arange(5, dtype=">" + dtype)
        stored = Channel(data=data).data
        assert stored.dtype == np.dtype("<" + dtype)
        assert stored.tolist() == data.tolist()

    def test_the_bits_of_bf16_are_taken_and_kept(self) -> None:
        stored = np.array([0x7FC1, 0x8000, 1, 0xFFFF], np.uint16)
        channel = Channel("x", "bf16", data=stored)
        assert (channel.dtype_name, channel.step_bytes) == (DType.BFLOAT16, 2)
        assert bits(channel.data) == bits(stored)
        channel.data = stored[::-1]
        assert channel.dtype_name is DType.BFLOAT16
        assert channel.clone().dtype_name is DType.BFLOAT16

    def test_bf16_without_its_package_is_bits_or_advice(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        without_ml_dtypes(monkeypatch)
        assert Channel("x", "bf16", data=np.array([1], np.uint16)).data.dtype == np.uint16
        with pytest.raises(InvalidArgument, match=r"'x'.*ml_dtypes.*shard-format\[bf16\]"):
            Channel("x", "bf16", data=np.array([1.0]))

    def test_bf16_numbers_come_through_ml_dtypes(self) -> None:
        pytest.importorskip("ml_dtypes")
        channel = Channel("x", "bf16", data=np.array([1.5, -2], np.float32))
        assert channel.data.dtype == bfloat16()
        assert channel.data.astype(float).tolist() == [1.5, -2]
        assert Channel(data=channel.data).dtype_name is DType.BFLOAT16

    def test_a_smaller_type_is_given_where_the_values_fit(self) -> None:
        assert Channel(dtype="u8", data=[0, 255]).data.dtype == np.uint8
        assert Channel(dtype="f16", data=[0.1]).data.dtype == np.float16
        assert Channel(dtype="bool", data=[0, 1]).data.tolist() == [False, True]

    @pytest.mark.parametrize(
        ("dtype", "values"),
        [
            ("i8", np.array([200], np.uint8)),
            ("u8", np.array([-1], np.int8)),
            ("i64", np.array([2**63], np.uint64)),
            ("i16", [40_000]),
            ("i32", [0.5]),
            ("u8", [np.nan]),
            ("bool", [2]),
            ("f32", [2**24 + 1]),
        ],
    )
    def test_values_that_would_change_are_refused(self, dtype: str, values: Any) -> None:  # noqa: ANN401 - anything
        with pytest.raises(InvalidArgument, match=f"'x'.*do not fit into {dtype}"):
            Channel("x", dtype, data=values)

    def test_flat_data_takes_the_shape_of_a_step(self) -> None:
        assert Channel("x", "f32", [2, 3], np.arange(12)).data.shape == (2, 2, 3)

    def test_the_number_of_steps_is_found_or_said(self) -> None:
        assert Episode("e").length == 0
        assert Episode("e", observations={"o": ramp(6)}).length == 6
        assert Episode("e", observations={"o": ramp(6)}, actions={"a": ramp(5)}).length == 5
        assert Episode("e", length=7).length == len(Episode("e", length=7)) == 7
        clock = Channel(data=ramp(9), start_ns=0, sampling_rate_hz=1.0)
        assert Episode("e", observations={"imu": clock, "o": ramp(6)}).length == 6

    def test_observations_may_have_one_more_than_actions(self) -> None:
        ep = Episode("e", observations={"o": ramp(6)}, actions={"a": ramp(5)})
        ep.omens["o"]["m"] = ramp(6)
        ep.validate()
        ep.actions["late"] = ramp(6)
        assert refusal(ep).entry == "action/late"


class TestEnds:
    """Terminated, truncated and done."""

    def test_done_is_the_union(self) -> None:
        ep = Episode("e", length=3, terminations=[0, 0, 1], truncations=np.array([0, 2, 0]))
        assert ep.dones is not None
        assert ep.dones.tolist() == [False, True, True]
        assert Episode("e").dones is None
        assert ep.terminations is not None
        assert ep.terminations.dtype_name is DType.BOOL

    @pytest.mark.parametrize("ends", [ramp(3, 2), ["a", "b", "c"], 1])
    def test_other_shapes_are_refused(self, ends: Any) -> None:  # noqa: ANN401 - anything
        with pytest.raises(InvalidArgument, match="terminated"):
            Episode("e", length=3, terminations=ends).validate()


class TestRefused:
    """Which channel, and why."""

    @pytest.mark.parametrize(
        "name", ["", "/", "a//b", "/a", "a/", ".", "a/..", "../x", "a\0b", "a/./b"]
    )
    def test_names_with_empty_or_dotted_parts(self, name: str) -> None:
        ep = Episode("e")
        for lane in (ep.observations, ep.actions, ep.omens, ep.labels, ep.extras):
            with pytest.raises(InvalidArgument, match="W-NAM-1") as caught:
                lane[name] = {"m": ramp(3)} if isinstance(lane, NestedView) else []
            assert repr(name) in str(caught.value)
        with pytest.raises(InvalidArgument, match="a model"):
            ep.omens["a"][name] = ramp(3)
        with pytest.raises(InvalidArgument, match="an uncertainty"):
            ep.uncerts["a"]["m"][name] = ramp(3)
        assert not ep.omens
        assert not ep.uncerts

    def test_names_that_are_no_strings(self) -> None:
        with pytest.raises(InvalidArgument, match=r"an observation is not a string.*3"):
            Episode("e").observations[3] = ramp(2)  # type: ignore[index] # on purpose

    @pytest.mark.parametrize(
        ("value", "why"),
        [
            (np.array([object()]), "Python objects"),
            ([{}, {}], "Python objects"),
            ([[1], [1, 2]], "RaggedChannel"),
            (np.zeros(2, complex), "complex128"),
            (np.zeros(2, "M8[ns]"), "datetime64"),
            (np.zeros(2, [("a", "f4")]), "cannot store this dtype"),
            (np.zeros(2, "S3"), "S3"),
            (5, "time axis"),
            (None, "needs data"),
        ],
    )
    def test_values_that_are_no_channel(self, value: Any, why: str) -> None:  # noqa: ANN401 - anything
        with pytest.raises(InvalidArgument, match=why) as caught:
            Episode("e").observations["arm/cam"] = value
        assert "arm/cam" in str(caught.value)

    def test_a_wrong_length_names_the_channel_and_both_lengths(self) -> None:
        ep = Episode("e", length=5, observations={"cam": ramp(4)})
        error = refusal(ep)
        assert error.entry == "signal/cam"
        assert (error.expected, error.found) == ("5 or 6 steps", "4")
        assert "timestamps_ns" in str(error)

    @pytest.mark.parametrize(
        ("change", "entry"),
        [
            (lambda ep: ep.omens["a"].update(m=ramp(9)), "omen/a/m"),
            (lambda ep: ep.uncerts["a"]["m"].update(std=ramp(3)), "uncert/a/m/std"),
            (lambda ep: setattr(ep, "rewards", ramp(4)), "reward"),
            (lambda ep: setattr(ep, "rewards", ramp(5, 2)), "reward"),
            (lambda ep: setattr(ep, "rewards", ["1"] * 5), "reward"),
            (lambda ep: setattr(ep, "truncations", ramp(6)), "truncated"),
            (lambda ep: setattr(ep, "ticks", [1, 2]), "time/ticks"),
            (lambda ep: setattr(ep, "timestamps_ns", [1, 2]), "time/timestamps_ns"),
            (lambda ep: ep.extras.update({"aux/x": ramp(3)}), "aux/x"),
            (
                lambda ep: ep.residuals.update(a=Residual.of_signal("a", ramp(4), "delta_q")),
                "residual/a/delta_q",
            ),
            (
                lambda ep: ep.observations.update(
                    c=Channel(data=ramp(3), timestamps_ns=[1, 2, 3, 4])
                ),
                "signal/c",
            ),
            (lambda ep: ep.observations.update(c=Channel(data=ramp(5), start_ns=1)), "signal/c"),
        ],
    )
    def test_what_does_not_fit_the_episode_is_named(self, change: Any, entry: str) -> None:  # noqa: ANN401 - a function
        ep = Episode("e", length=5)
        change(ep)
        assert refusal(ep).entry == entry

    @pytest.mark.parametrize(
        "fields",
        [
            {"sampling_rate_hz": 0},
            {"sampling_rate_hz": -1.0},
            {"sampling_rate_hz": "fast"},
            {"unit": 5},
            {"description": ["x"]},
            {"lossy": {"x": float("nan")}},
            {"extra": {"dtype": "u8"}},
            {"extra": {"length": 3}},
            {"extra": {"x": object()}},
            {"start_ns": 1 << 70, "sampling_rate_hz": 1.0},
        ],
    )
    def test_a_description_that_no_reader_would_take_is_refused(
        self, fields: dict[str, Any]
    ) -> None:
        ep = Episode("e", observations={"c": Channel(data=ramp(3), **fields)})
        assert refusal(ep).entry in ("signal/c", "meta/channels")

    @pytest.mark.parametrize(
        ("fields", "words"),
        [
            ({"id": ""}, "needs an id"),
            ({"id": 5}, "needs an id"),
            ({"env_id": None}, "env_id"),
            ({"timebase": Timebase(tick_hz=0)}, "rate"),
            ({"timebase": Timebase(tick_hz=float("nan"))}, "rate"),
            ({"timebase": Timebase("moons")}, "moons"),
            ({"timebase": Timebase(epoch_ns=1 << 80)}, "epoch_ns"),
            ({"length": -1}, "length"),
            ({"chunk_index": -1}, "chunk_index"),
            ({"chunk_index": 3, "total_chunks": 2}, "chunk_index"),
            ({"timestep_range": (5, 2)}, "timestep_range"),
            ({"metadata": {"x": float("inf")}}, "meta/episode"),
            ({"metadata": {"x": b"bytes"}}, "meta/episode"),
            ({"metadata": {"x": "\ud800"}}, "meta/episode"),
            ({"provenance": {"v": 2}}, "'v'"),
            ({"provenance": {"who": "me"}}, "who"),
            ({"provenance": {"start_state": "xyz"}}, "start_state"),
        ],
    )
    def test_facts_that_no_reader_would_take_are_refused(
        self, fields: dict[str, Any], words: str
    ) -> None:
        assert words in str(refusal(Episode(**{"id": "e", **fields})))

    def test_two_lanes_that_make_one_block_are_refused(self) -> None:
        ep = Episode("e", length=2)
        ep.omens["a"]["b/c"] = ramp(2)
        ep.omens["a/b"]["c"] = ramp(2)
        assert refusal(ep).entry == "omen/a/b/c"
        ep = Episode("e", length=2)
        ep.extras["signal/x"] = b"12"
        ep.observations["x"] = ramp(2)
        assert refusal(ep).entry == "signal/x"

    def test_lanes_in_lanes_want_dictionaries(self) -> None:
        with pytest.raises(InvalidArgument, match=r"'a' needs a dictionary.*ep.omens\[channel\]"):
            Episode("e").omens["a"] = ramp(3)
        with pytest.raises(KeyError):
            Episode("e").omens["a"]["m"]

    def test_residuals_are_made_with_a_hint(self) -> None:
        with pytest.raises(InvalidArgument, match=r"Residual\.of_signal"):
            Episode("e").residuals["a"] = ramp(3)
        with pytest.raises(InvalidArgument, match=r"'x'.*do not fit into i8"):
            Residual("x", "delta_q", np.array([300]), np.ones(1, "f4"))
        with pytest.raises(InvalidArgument, match="unknown type"):
            Residual("x", "other")

    @pytest.mark.parametrize(
        "items", [[(5, 2, "x")], [(1, 2)], [(1, 2, 3)], ["abc"], [(1, 2, "x", 5)]]
    )
    def test_labels_name_their_lane(self, items: list[Any]) -> None:
        with pytest.raises(InvalidArgument, match="label/task"):
            Episode("e").labels["task"] = items


class TestTime:
    """Ticks, rates, timestamps and clocks."""

    def test_ticks_count_from_0_unless_told(self) -> None:
        ep = Episode("e", length=3)
        assert ep.ticks.tolist() == [0, 1, 2]
        ep.ticks = [5, 6, 9]
        assert ep.ticks.dtype == np.int32

    @pytest.mark.parametrize("ticks", [[2**31], [0.5], ["a"]])
    def test_ticks_that_do_not_fit_are_refused(self, ticks: list[Any]) -> None:
        with pytest.raises(InvalidArgument, match="time/ticks"):
            Episode("e").ticks = ticks

    def test_times_come_from_the_rate_or_the_record(self) -> None:
        ep = Episode("e", length=3, timebase=Timebase(tick_hz=60, epoch_ns=100))
        assert ep.times_ns().tolist() == [100, 16_666_767, 33_333_433]
        ep.timestamps_ns = np.array([5, 7, 8])
        assert ep.times_ns().tolist() == [5, 7, 8]
        assert ep.timebase.type == "timestamps_ns"
        ep.observations["o"] = ramp(4)
        assert ep.times_ns("o").tolist() == [5, 7, 8, 9], "one more step"

    def test_times_of_a_clock_of_its_own(self) -> None:
        ep = Episode("e", length=3)
        ep.observations["imu"] = Channel(data=ramp(4), start_ns=10, sampling_rate_hz=1e9 / 3)
        ep.observations["gps"] = Channel(data=ramp(2), timestamps_ns=[3, 4])
        assert ep.times_ns("imu").tolist() == [10, 13, 16, 19]
        assert ep.times_ns("signal/gps").tolist() == [3, 4]

    def test_dates_are_nanoseconds(self) -> None:
        when = np.array(["2024-01-01T00:00:00.000000001"], "M8[ns]")
        channel = Channel(data=ramp(1), timestamps_ns=when)
        assert channel.timestamps_ns is not None
        assert channel.timestamps_ns.tolist() == [1_704_067_200_000_000_001]

    @pytest.mark.parametrize("times", [[0.5], [[1]], np.array([2**63], np.uint64)])
    def test_times_that_are_no_nanoseconds_are_refused(self, times: Any) -> None:  # noqa: ANN401 - anything
        with pytest.raises(InvalidArgument):
            Episode("e").timestamps_ns = times
        with pytest.raises(InvalidArgument, match="'c'"):
            Channel("c", data=ramp(1), timestamps_ns=times)

    def test_channels_of_different_rates_are_brought_together(self) -> None:
        ep = Episode("e", length=3, timebase=Timebase(tick_hz=1e9))
        ep.observations["slow"] = Channel(data=[10.0, 20.0], timestamps_ns=[0, 2])
        ep.observations["words"] = TextChannel(data=["a", "b"], timestamps_ns=[0, 2])
        ep.actions["a"] = [1, 2, 3]
        aligned = ep.align()
        assert list(aligned["slow"].data) == [10, 10, 20]
        assert list(aligned["a"].data) == [1, 2, 3]
        assert list(ep.align(method="linear")["slow"].data) == [10, 15, 20]
        assert list(ep.align(to="slow")["words"].data) == ["a", "b"]
        with pytest.raises(EntryNotFound, match="slwo"):
            ep.align(channels=["slwo"])


class TestChannels:
    """One channel by itself."""

    def test_it_says_what_it_is(self) -> None:
        channel = Channel("x", data=ramp(4, 2, dtype="f8"), modality="rgb")
        assert (channel.length, len(channel), channel.ndim) == (4, 4, 2)
        assert (channel.nbytes, channel.step_bytes) == (64, 16)
        assert channel.modality is Modality.RGB
        assert repr(channel) == "<Channel 'x': f64[4, 2]>"
        assert np.asarray(channel).dtype == np.float64
        assert np.asarray(channel, dtype="f4").dtype == np.float32
        assert len(list(channel)) == 4

    def test_ragged_channels_take_steps_or_values(self) -> None:
        steps = RaggedChannel(data=[[1.0, 2.0], [], [3.0]])
        parts = RaggedChannel(values=[1.0, 2.0, 3.0], offsets=[0, 2, 2, 3])
        assert steps.offsets.tolist() == parts.offsets.tolist() == [0, 2, 2, 3]
        assert [step.tolist() for step in steps] == [[1, 2], [], [3]]
        assert steps[-1].tolist() == [3]
        assert [step.tolist() for step in parts[1:]] == [[], [3]]
        with pytest.raises(IndexError, match="step 3"):
            steps[3]
        with pytest.raises(InvalidArgument, match="not an array"):
            np.asarray(steps)

    @pytest.mark.parametrize(
        "fields",
        [
            {"data": [[1], [[1, 2]]]},
            {"data": [1, 2]},
            {"values": [1], "offsets": [0, 2]},
            {"values": [1], "offsets": [1, 1]},
            {"values": [1, 2], "offsets": [0, 2, 1, 2]},
            {"values": [1], "offsets": []},
            {"values": [1]},
            {},
        ],
    )
    def test_ragged_channels_that_make_no_sense_are_refused(self, fields: dict[str, Any]) -> None:
        with pytest.raises(InvalidArgument, match="scan"):
            RaggedChannel("scan", **fields)

    def test_text_is_strings(self) -> None:
        text = TextChannel("t", ["", "ü", "a\0b"])
        assert text.data == ["", "ü", "a\0b"]
        assert text[1] == "ü"
        for bad in ("one string", [1], ["\ud800"], [b"x"]):
            with pytest.raises(InvalidArgument, match="'t'"):
                TextChannel("t", bad)  # type: ignore[arg-type] # on purpose

    def test_new_data_replaces_type_and_shape(self) -> None:
        channel = Channel("x", data=ramp(4, 2))
        channel.data = np.zeros((3, 1), np.int16)
        assert (channel.dtype_name, channel.step_shape, channel.length) == (DType.INT16, (1,), 3)

    def test_fields_of_one_channel_are_its_own(self) -> None:
        first, second = Channel(data=ramp(1)), Channel(data=ramp(1))
        fields = {"x": 1}
        first.extra = fields
        fields["x"] = 2
        with pytest.raises(TypeError):
            first.extra["x"] = 3  # read-only
        assert (first.extra, second.extra) == ({"x": 1}, {})


class TestCopies:
    """Clones share nothing; helpers for groups and latent actions."""

    def test_a_clone_has_everything_and_shares_nothing(self) -> None:
        ep = full_episode()
        copy = ep.clone()
        ep.metadata["deep"]["er"] = False
        assert copy.metadata["deep"]["er"] is True
        for (_, one), (_, two) in zip(ep.blocks(), copy.blocks(), strict=True):
            if type(one) is Channel:
                assert not np.shares_memory(one.data, two.data)

    def test_latent_actions_have_their_lanes(self) -> None:
        ep = Episode("e", length=3)
        assert get_latent_actions(ep, "m") is None
        set_latent_actions(ep, "m", ramp(3, 8), np.zeros(3, "i4"))
        assert [name for name, _ in ep.blocks()] == [
            "omen/latent_action/m",
            "omen/latent_action_codebook/m",
        ]
        assert get_latent_codebook(ep, "m") is ep.omens["latent_action_codebook"]["m"]

    def test_groups_of_sensors_have_their_names(self) -> None:
        ep = Episode("e", length=3)
        add_multimodal_observation(ep, "wrist", "rgb", ramp(3, 2, 2, 3, dtype="u1"))
        add_multimodal_observation(ep, "wrist", Modality.DEPTH, ramp(3, 2, 2))
        add_multimodal_observation(ep, "head", Modality.RGB, ramp(3, 2, 2, 3, dtype="u1"))
        assert list(get_multimodal_observations(ep, "wrist")) == ["wrist/rgb", "wrist/depth"]
        assert list(get_multimodal_observations(ep, modality="rgb")) == ["wrist/rgb", "head/rgb"]

    def test_labels_find_what_holds_a_step(self) -> None:
        ep = Episode("e", labels={"task": [(0, 2, "a"), Interval(1, 5, "b")]})
        assert [item.text for item in ep.labels["task"].at(1)] == ["a", "b"]
        ep.labels["task"].append(Interval(5, 6, "c"))
        del ep.labels["task"][0]
        assert len(ep.labels["task"]) == 2


class TestHorizon:
    """Chunks of predictions: [T, H, ...] with the horizon in the row."""

    def test_a_horizon_is_kept_wherever_the_lane_goes(self, tmp_path: Path) -> None:
        chunks, spread = ramp(8, 3, 2), ramp(8, 3, 2) + 1
        ep = Episode("ep", actions={"ctrl": ramp(8, 2)})
        ep.omens["ctrl"]["act"] = Channel(data=chunks, horizon=3)
        path = save(ep, tmp_path / "a.wshard", profile="training")
        add_lane(path, "uncert/ctrl/act/std", Channel(data=spread, horizon=3), fsync=False)
        writer = ChunkedEpisodeWriter(tmp_path / "c", "ep", chunk_size_t=3)
        writer.write_episode(load_wshard(path))
        compacted = save(load_wshard(path), tmp_path / "b.wshard")
        for found, steps in (
            (load_wshard(path), slice(0, 8)),
            (load_wshard(compacted), slice(0, 8)),
            (load_wshard(writer.finalize_manifest()), slice(0, 8)),
            (slice_episode(load_wshard(path), 2, 6), slice(2, 6)),
        ):
            omen, uncert = found.omens["ctrl"]["act"], found.uncerts["ctrl"]["act"]["std"]
            assert (omen.horizon, uncert.horizon) == (3, 3)
            assert bits(omen.data) == bits(chunks[steps])
            assert bits(uncert.data) == bits(spread[steps])
        rows = json.loads(ShardReader(compacted).read_entry("meta/channels"))["channels"]
        assert {row["id"]: row.get("horizon") for row in rows} == {
            "ctrl": None,
            "omen/ctrl/act": 3,
            "uncert/ctrl/act/std": 3,
        }

    def test_a_horizon_that_is_not_that_of_the_data_is_refused(self) -> None:
        for data, horizon in ((ramp(8, 3, 2), 2), (ramp(8), 1), (ramp(8, 3), 0)):
            with pytest.raises(InvalidArgument, match=r"does not have this horizon.*W-CHN-8"):
                Channel(data=data, horizon=horizon)
        with pytest.raises(InvalidArgument, match="ragged data"):
            RaggedChannel(data=[ramp(2, 3)], horizon=3)
        ep = Episode("ep", length=8)
        ep.omens["ctrl"]["act"] = Channel(data=ramp(8, 3, 2), horizon=3)
        ep.omens["ctrl"]["act"].data = ramp(8, 4, 2)
        assert "'horizon' of 'omen/ctrl/act'" in str(refusal(ep))
        ep.omens["ctrl"]["act"].horizon = 4
        ep.validate()


def test_models_that_are_taken_out_of_a_lane_stay_as_they_were() -> None:
    ep = Episode("ep")
    ep.omens["state"]["dreamer"] = np.ones((3, 2), np.float32)
    taken = ep.omens.pop("state")
    assert list(taken) == ["dreamer"]
    assert "state" not in ep.omens
    assert ep.omens.pop("state", None) is None
    ep.omens["other"] = taken
    assert ep.omens["other"]["dreamer"].shape == (3, 2)
