"""The doctor finds what is wrong, says where and what to do, and keeps quiet about everything else."""

from __future__ import annotations

import json
import re
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shard_format import ShardReader, ShardWriter, verify
from shard_format.registry import Role
from wshard import Channel, Episode, Timebase, add_lane, load_wshard, save_wshard
from wshard.chunked import ChunkedEpisodeWriter
from wshard.doctor import CODES, EpisodeReport, ExamineOptions, Finding, examine
from wshard.types import FileOptions, Intervals, RaggedChannel, Residual, TextChannel
from wshard.video import VideoChannel

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

REPOSITORY = Path(__file__).parents[2]
VECTORS = REPOSITORY / "spec" / "vectors"
T = 64
SECOND = 1_000_000_000


def clean() -> Episode:
    """An episode with something in every lane and nothing to complain about."""
    rng = np.random.default_rng(7)
    joints = np.cumsum(rng.normal(size=(T, 3)), axis=0).astype(np.float32)
    guess = (joints + rng.normal(size=joints.shape) * 0.1).astype(np.float32)
    ep = Episode("ep_001", env_id="Reach-v1", timebase=Timebase(tick_hz=20))
    ep.observations["joints"] = Channel(data=joints, unit="rad")
    ep.observations["rgb"] = Channel(
        data=rng.integers(0, 255, (T + 1, 12, 10, 3), dtype=np.uint8), modality="rgb"
    )
    ep.observations["task"] = TextChannel(data=["reach für"] * 30 + [""] + ["grasp 🤖"] * (T - 31))
    ep.observations["points"] = RaggedChannel(
        data=[rng.normal(size=(n % 5, 3)).astype(np.float32) for n in range(T)]
    )
    ep.observations["touch"] = Channel(
        data=rng.normal(size=(320, 2)).astype(np.float32),
        timestamps_ns=np.arange(320) * (SECOND // 100),
        sampling_rate_hz=100.0,
    )
    ep.observations["mic"] = Channel(
        data=rng.normal(size=1600).astype(np.float32), start_ns=0, sampling_rate_hz=500.0
    )
    ep.actions["ctrl"] = rng.normal(size=(T, 2)).astype(np.float32)
    ep.omens["joints"]["dreamer"] = guess
    ep.uncerts["joints"]["dreamer"]["std"] = np.abs(guess) + np.float32(0.1)
    ep.uncerts["joints"]["dreamer"]["log_var"] = -np.abs(guess)
    ep.residuals["joints"] = Residual.of_signal("joints", joints)
    ep.residuals["joints/dreamer/delta_q"] = Residual.of_error(
        "joints", joints, guess, "dreamer", "delta_q", window=16
    )
    ep.rewards = np.zeros(T, np.float32)
    ep.terminations = np.arange(T) == T - 1
    ep.truncations = np.zeros(T, np.bool_)
    ep.timestamps_ns = np.arange(T) * (SECOND // 20)
    ep.labels["phase"] = Intervals([(0, 30, "reach"), (30, T, "grasp")])
    ep.labels["speech"] = Intervals([(0, SECOND, "go")], unit="ns")
    return ep


def examined(ep: Episode, folder: Path, **saving: Any) -> EpisodeReport:  # noqa: ANN401 - as save_wshard
    path = folder / "ep.wshard"
    save_wshard(ep, path, fsync=False, **saving)
    return examine(path)


def only(report: EpisodeReport) -> Finding:
    (finding,) = report.findings
    return finding


class TestCleanEpisodes:
    """Nothing to say is said by saying nothing."""

    @pytest.mark.parametrize(
        "saving",
        [{}, {"compression": "zstd"}, {"profile": "training"}, {"identity": True}],
        ids=["raw", "zstd", "training", "identity"],
    )
    def test_a_clean_file_has_no_findings(self, tmp_path: Path, saving: dict[str, Any]) -> None:
        report = examined(clean(), tmp_path, **saving)
        assert [str(finding) for finding in report.findings] == []
        assert report.ok
        assert (report.episode_id, report.length, report.files) == ("ep_001", T, 1)
        assert report.path == str(tmp_path / "ep.wshard")
        assert report.blocks > 10
        assert report.bytes > 10_000

    def test_an_episode_in_memory_is_examined_without_a_file(self) -> None:
        report = examine(clean())
        assert report.findings == ()
        assert (report.path, report.files, report.length) == ("", 0, T)

    def test_a_clean_chunked_episode_has_no_findings(self, tmp_path: Path) -> None:
        ep = clean()
        ep.residuals.clear()
        with ChunkedEpisodeWriter(tmp_path, "ep_001", chunk_size_t=24) as writer:
            writer.write_episode(ep)
        report = examine(tmp_path / "ep_001_manifest.wshard")
        assert [str(finding) for finding in report.findings] == []
        assert report.length == T
        assert report.files == 4

    def test_a_clean_sidecar_adds_no_findings(self, tmp_path: Path) -> None:
        ep = clean()
        save_wshard(ep, tmp_path / "ep.wshard", fsync=False)
        guess = np.asarray(ep.omens["joints"]["dreamer"]) + np.float32(1)
        add_lane(tmp_path / "ep.wshard", "omen/joints/other", guess)
        report = examine(tmp_path / "ep.wshard")
        assert [str(finding) for finding in report.findings] == []
        assert report.files == 2

    def test_an_empty_episode_is_no_problem(self) -> None:
        assert examine(Episode("nothing", length=0)).findings == ()

    def test_short_episodes_are_not_called_constant(self) -> None:
        ep = Episode("short")
        ep.observations["x"] = np.zeros((4, 2), np.float32)
        ep.terminations = [False, False, False, True]
        assert examine(ep).findings == ()

    def test_the_golden_residual_of_one_dimension_fits_its_signal_of_three(self) -> None:
        report = examine(VECTORS / "valid" / "golden_omen_uncert.wshard")
        assert set(report.codes) == {"undescribed_block"}


def late(times: NDArray[Any], by: int) -> NDArray[Any]:
    changed = np.array(times)
    changed[40:] += by
    return changed


def steps(ep: Episode) -> NDArray[Any]:
    times = ep.timestamps_ns
    assert times is not None
    return np.array(times)


def data(channel: Channel) -> NDArray[Any]:
    return np.array(channel.data)


def time_backwards(ep: Episode) -> None:
    times = steps(ep)
    times[20] = times[18] + 1
    ep.timestamps_ns = times


def time_jump(ep: Episode) -> None:
    ep.timestamps_ns = late(steps(ep), SECOND // 2)


def time_repeats(ep: Episode) -> None:
    times = steps(ep)
    times[11] = times[10]
    ep.timestamps_ns = times


def channel_clock_repeats(ep: Episode) -> None:
    touch = ep.observations["touch"]
    times = np.array(touch.timestamps_ns)
    times[5] = times[4]
    touch.timestamps_ns = times


def ticks_not_increasing(ep: Episode) -> None:
    ticks = np.arange(T)
    ticks[9] = 7
    ep.ticks = ticks


def rate_mismatch(ep: Episode) -> None:
    ep.timebase.tick_hz = 30.0


def channel_rate_mismatch(ep: Episode) -> None:
    ep.observations["touch"].sampling_rate_hz = 150.0


def clock_outside(ep: Episode) -> None:
    touch = ep.observations["touch"]
    times = touch.timestamps_ns
    assert times is not None
    touch.timestamps_ns = times + 1_700_000_000 * SECOND


def clock_span(ep: Episode) -> None:
    touch = ep.observations["touch"]
    times = touch.timestamps_ns
    assert times is not None
    touch.timestamps_ns = times // 1000  # microseconds
    touch.sampling_rate_hz = None


def clock_span_of_a_tenth(ep: Episode) -> None:
    touch = ep.observations["touch"]
    touch.timestamps_ns = np.arange(320) * 900_000
    touch.sampling_rate_hz = None


def clock_span_of_wrong_steps(ep: Episode) -> None:
    ep.timestamps_ns = steps(ep) // 1000
    ep.timebase.tick_hz = None
    del ep.labels["speech"], ep.observations["mic"]


def regular_clock_outside(ep: Episode) -> None:
    ep.observations["mic"].start_ns = -5 * SECOND


def not_finite(ep: Episode) -> None:
    ctrl = data(ep.actions["ctrl"])
    ctrl[17, 1], ctrl[20, 1] = np.nan, np.inf
    ep.actions["ctrl"] = ctrl


def half_not_finite(ep: Episode) -> None:
    values = np.random.default_rng(1).normal(size=(T, 2)).astype(np.float16)
    values[3, 0] = np.inf
    ep.observations["half"] = values


def brain_float_not_finite(ep: Episode) -> None:
    bits = np.arange(T, dtype=np.uint16) + 0x3F80
    bits[9] = 0x7FC0
    ep.observations["brain"] = Channel(data=bits, dtype="bf16")


def points_not_finite(ep: Episode) -> None:
    points = ep.observations["points"]
    assert isinstance(points, RaggedChannel)
    values = np.array(points.values)
    values[0, 2] = np.nan
    ep.observations["points"] = RaggedChannel(values=values, offsets=points.offsets)


def reward_not_finite(ep: Episode) -> None:
    rewards = np.zeros(T, np.float32)
    rewards[5] = -np.inf
    ep.rewards = rewards


def constant_dimension(ep: Episode) -> None:
    ctrl = data(ep.actions["ctrl"])
    ctrl[:, 0] = 0.5
    ep.actions["ctrl"] = ctrl


def dead_dimension(ep: Episode) -> None:
    ctrl = data(ep.actions["ctrl"])
    ctrl[:, 1] = 0
    ep.actions["ctrl"] = ctrl


def dead_index(ep: Episode) -> None:
    ep.observations["task_index"] = np.zeros(T, np.int64)


def frozen_frames(ep: Episode) -> None:
    frames = data(ep.observations["rgb"])
    frames[20:35] = frames[20]
    ep.observations["rgb"] = Channel(data=frames, modality="rgb")


def blank_frames(ep: Episode) -> None:
    frames = data(ep.observations["rgb"])
    frames[4] = 0
    ep.observations["rgb"] = Channel(data=frames, modality="rgb")


def negative_uncertainty(ep: Episode) -> None:
    spread = data(ep.uncerts["joints"]["dreamer"]["std"])
    spread[6, 1] = -0.5
    ep.uncerts["joints"]["dreamer"]["std"] = spread


def done_before_end(ep: Episode) -> None:
    ep.terminations = (np.arange(T) == 12) | (np.arange(T) == T - 1)


def no_end(ep: Episode) -> None:
    ep.terminations = np.zeros(T, np.bool_)


def nobody_knows_the_end(ep: Episode) -> None:
    ep.terminations = ep.truncations = None


def both_ends(ep: Episode) -> None:
    ep.truncations = np.arange(T) == T - 1


def lossy_channel(ep: Episode) -> None:
    ep.observations["rgb"].lossy = {"codec": "jpeg", "max_error": 3}


def orphan_omen(ep: Episode) -> None:
    ep.omens["nobody"]["dreamer"] = np.ones(T, np.float32) * np.arange(T)


def orphan_uncertainty(ep: Episode) -> None:
    ep.uncerts["joints"]["stranger"]["std"] = np.ones((T, 3), np.float32)


def orphan_residual(ep: Episode) -> None:
    ep.residuals["nobody"] = Residual.of_signal("nobody", np.arange(T))


def other_shape(ep: Episode) -> None:
    ep.omens["joints"]["flat"] = np.arange(T * 2, dtype=np.float32).reshape(T, 2)


def other_dtype(ep: Episode) -> None:
    ep.omens["joints"]["double"] = np.arange(T * 3, dtype=np.float64).reshape(T, 3)


def wrong_signs(ep: Episode) -> None:
    joints = data(ep.observations["joints"])
    ep.residuals["joints"] = Residual.of_signal("joints", -joints)


def wrong_differences(ep: Episode) -> None:
    guess = data(ep.omens["joints"]["dreamer"])
    guess[33] += 1
    ep.omens["joints"]["dreamer"] = guess


def label_outside(ep: Episode) -> None:
    ep.labels["phase"] = Intervals([(0, 30, "reach"), (30, T + 5, "grasp")])


def label_in_another_time(ep: Episode) -> None:
    ep.labels["speech"] = Intervals([(10 * SECOND, 11 * SECOND, "late")], unit="ns")


def unknown_entry(ep: Episode) -> None:
    ep.extras["com.example/notes"] = b"hello"


SPOILED: list[tuple[str, Callable[[Episode], None], str | None, int | None, int | None]] = [
    ("time_backwards", time_backwards, "time/timestamps_ns", 20, 1),
    ("clock_span", clock_span, "signal/touch", None, None),
    ("clock_span", clock_span_of_a_tenth, "signal/touch", None, None),
    ("time_jump", time_jump, "time/timestamps_ns", 40, 1),
    ("time_repeats", time_repeats, "time/timestamps_ns", 11, 1),
    ("time_repeats", channel_clock_repeats, "time/signal/touch", 5, 1),
    ("ticks_not_increasing", ticks_not_increasing, "time/ticks", 9, 1),
    ("rate_mismatch", rate_mismatch, "time/timestamps_ns", None, None),
    ("rate_mismatch", channel_rate_mismatch, "time/signal/touch", None, None),
    ("clock_outside", clock_outside, "signal/touch", 0, 320),
    ("clock_outside", regular_clock_outside, "signal/mic", 0, 1600),
    ("not_finite", not_finite, "action/ctrl", 17, 2),
    ("not_finite", half_not_finite, "signal/half", 3, 1),
    ("not_finite", brain_float_not_finite, "signal/brain", 9, 1),
    ("not_finite", points_not_finite, "signal/points", 1, 1),
    ("not_finite", reward_not_finite, "reward", 5, 1),
    ("constant_dimension", constant_dimension, "action/ctrl", None, 1),
    ("dead_dimension", dead_dimension, "action/ctrl", None, 1),
    ("dead_dimension", dead_index, "signal/task_index", None, 1),
    ("frozen_frames", frozen_frames, "signal/rgb", 20, 15),
    ("blank_frames", blank_frames, "signal/rgb", 4, 1),
    ("negative_uncertainty", negative_uncertainty, "uncert/joints/dreamer/std", 6, 1),
    ("done_before_end", done_before_end, "terminated", 12, 1),
    ("no_end", no_end, None, T - 1, None),
    ("no_end", nobody_knows_the_end, None, T - 1, None),
    ("both_ends", both_ends, "truncated", T - 1, None),
    ("lossy_channel", lossy_channel, "signal/rgb", None, None),
    ("orphan_prediction", orphan_omen, "omen/nobody/dreamer", None, None),
    ("orphan_prediction", orphan_uncertainty, "uncert/joints/stranger/std", None, None),
    ("orphan_prediction", orphan_residual, "residual/nobody/sign2nddiff", None, None),
    ("prediction_mismatch", other_shape, "omen/joints/flat", None, None),
    ("prediction_mismatch", other_dtype, "omen/joints/double", None, None),
    ("residual_mismatch", wrong_signs, "residual/joints/sign2nddiff", 1, None),
    ("residual_mismatch", wrong_differences, "residual/joints/dreamer/delta_q", 33, 3),
    ("label_outside", label_outside, "label/phase", 30, 1),
    ("label_outside", label_in_another_time, "label/speech", None, 1),
    ("unknown_entry", unknown_entry, "com.example/notes", None, 1),
]


class TestJudgement:
    """Each thing that is odd is found, alone, at its place."""

    @pytest.mark.parametrize(
        ("code", "spoil", "block", "step", "count"),
        SPOILED,
        ids=[spoil.__name__ for _, spoil, *_ in SPOILED],
    )
    def test_what_was_spoiled_is_found_and_nothing_else(
        self,
        tmp_path: Path,
        code: str,
        spoil: Callable[[Episode], None],
        block: str | None,
        step: int | None,
        count: int | None,
    ) -> None:
        ep = clean()
        spoil(ep)
        report = examined(ep, tmp_path)
        finding = only(report)
        assert (finding.code, finding.entry, finding.step) == (code, block, step)
        if count is not None:
            assert finding.count == count
        assert finding.advice
        assert finding.message
        assert report.ok
        # The same windows by windows, and the same in memory.
        small = ExamineOptions(window_bytes=700)
        assert examine(tmp_path / "ep.wshard", options=small).findings == report.findings
        if spoil is not unknown_entry and "time/signal" not in (block or ""):
            assert examine(ep).codes == report.codes

    def test_severities_are_those_of_the_table_unless_a_reason_lowers_them(self) -> None:
        assert set(CODES.values()) == {"warning", "note"}
        for spoil, severity in (
            (dead_dimension, "warning"),
            (dead_index, "note"),
            (other_shape, "warning"),
            (other_dtype, "note"),
            (time_jump, "warning"),
            (no_end, "note"),
        ):
            ep = clean()
            spoil(ep)
            assert only(examine(ep)).severity == severity

    def test_messages_say_how_many_where_and_which(self) -> None:
        for spoil, words in (
            (not_finite, ["1 NaN and 1 infinite of 128", "step 17", "dimension 1"]),
            (time_jump, ["1 gap", "5 times", "50 ms", "550 ms", "step 40"]),
            (rate_mismatch, ["30 Hz", "20 Hz", "50 ms"]),
            (clock_outside, ["320 of 320", "1.7e+09 s after it ends"]),
            (frozen_frames, ["15 of 65 frames", "1 run", "step 20"]),
            (constant_dimension, ["1 of 2 dimensions is constant at 0.5: dimension 0", "64 steps"]),
            (lossy_channel, ["jpeg", "max_error 3"]),
            (time_backwards, ["once", "step 20", "50 ms"]),
            (label_outside, ["1 of 2 intervals", "0 to 64", "'grasp' from 30 to 69"]),
        ):
            ep = clean()
            spoil(ep)
            message = only(examine(ep)).message
            for word in words:
                assert word in message, (spoil.__name__, message)

    @pytest.mark.parametrize(
        ("spoil", "message"),
        [
            (
                clock_span,
                "its times cover 3.200 ms of an episode of 3.200 s, as if they were micro",
            ),
            (clock_span_of_wrong_steps, "of an episode of 3.200 ms, as if the steps were in micro"),
        ],
    )
    def test_a_clock_in_another_unit_is_mended_by_the_line_that_is_named(
        self, spoil: Callable[[Episode], None], message: str
    ) -> None:
        ep = clean()
        spoil(ep)
        (finding,) = (f for f in examine(ep).findings if f.code == "clock_span")
        assert message in finding.message
        line = finding.advice.split("`")[1].split(", or")[0]
        exec(line, {"ep": ep, "channel": ep.observations["touch"]})  # noqa: S102 - our own words
        assert "clock_span" not in examine(ep).codes

    def test_a_channel_clock_that_runs_backwards_is_mended_by_the_lines_that_are_named(
        self,
    ) -> None:
        ep = clean()
        touch = ep.observations["touch"]
        times = np.array(touch.timestamps_ns)
        times[[7, 8]] = times[[8, 7]]
        touch.timestamps_ns = times
        finding = only(examine(ep))
        assert finding.code == "time_backwards"
        first, second = finding.advice.split("`")[1:4:2]
        exec(f"{first}; {second}", {"np": np, "channel": touch})  # noqa: S102 - our own words
        assert examine(ep).findings == ()
        assert touch.timestamps_ns is not None
        assert touch.timestamps_ns[7] == 7 * SECOND // 100

    def test_a_lossy_channel_without_a_measured_error_is_a_warning(self) -> None:
        ep = clean()
        ep.observations["rgb"].lossy = {"codec": "h264"}
        finding = only(examine(ep))
        assert (finding.code, finding.severity) == ("lossy_channel", "warning")
        assert "h264" in finding.message

    def test_video_that_cannot_be_decoded_here_is_a_note(self) -> None:
        ep = clean()
        ep.observations["cam"] = VideoChannel.from_packets([b"x"] * T, "video/x-none", (8, 8, 3))
        finding = only(examine(ep))
        assert (finding.code, finding.severity) == ("not_decoded", "note")

    def test_holes_in_depth_are_a_note(self) -> None:
        ep = clean()
        depth = np.random.default_rng(3).random((T, 9, 9)).astype(np.float32)
        depth[5, 2, 2] = np.inf
        ep.observations["depth"] = Channel(data=depth, modality="depth")
        finding = only(examine(ep))
        assert (finding.code, finding.severity, finding.step) == ("not_finite", "note", 5)

    def test_a_run_of_frames_is_seen_across_windows(self) -> None:
        ep = clean()
        frozen_frames(ep)
        one_frame = ExamineOptions(window_bytes=1)
        assert examine(ep, options=one_frame).findings == examine(ep).findings

    def test_constants_of_several_axes_are_named_by_index(self) -> None:
        ep = clean()
        pose = np.random.default_rng(2).normal(size=(T, 2, 3)).astype(np.float32)
        pose[:, 1, 2] = 4
        ep.observations["pose"] = pose
        assert "dimension [1, 2]" in only(examine(ep)).message

    def test_one_bad_clock_of_two_channels_is_said_once(self, tmp_path: Path) -> None:
        ep = clean()
        times = np.arange(320) * (SECOND // 100)
        times[7] = times[6]
        for name in ("touch", "force"):
            ep.observations[name] = Channel(
                data=np.arange(320, dtype=np.float32), timestamps_ns=times
            )
        save_wshard(ep, tmp_path / "ep.wshard", fsync=False)
        clocks = {f.entry for f in examine(tmp_path / "ep.wshard").findings}
        with ShardReader(tmp_path / "ep.wshard") as reader:
            assert len(clocks) == len(reader.prefix("time/signal/"))

    def test_what_needs_the_time_of_the_steps_says_that_they_have_none(self) -> None:
        ep = Episode("ep")
        ep.observations["state"] = np.random.default_rng(0).normal(size=(T, 2))
        ep.terminations = np.arange(T) == T - 1
        assert examine(ep).findings == ()
        ep.observations["mic"] = Channel(data=np.arange(9.0), start_ns=0, sampling_rate_hz=5.0)
        ep.labels["speech"] = Intervals([(0, SECOND, "go")], unit="ns")
        found = [(f.code, f.entry) for f in examine(ep).findings]
        assert found == [("no_clock", "signal/mic"), ("no_clock", "label/speech")]

    def test_thresholds_can_be_moved(self) -> None:
        for spoil, options in (
            (time_jump, ExamineOptions(jump_factor=12)),
            (rate_mismatch, ExamineOptions(rate_tolerance=0.6)),
            (regular_clock_outside, ExamineOptions(clock_slack_s=10)),
            (constant_dimension, ExamineOptions(constant_steps=T + 1)),
            (constant_dimension, ExamineOptions(most_dimensions=1)),
            (frozen_frames, ExamineOptions(frozen_run=15)),
        ):
            ep = clean()
            spoil(ep)
            assert examine(ep).findings != ()
            assert examine(ep, options=options).findings == ()

    def test_times_at_the_ends_of_int64_do_not_overflow(self) -> None:
        ep = clean()
        ep.timestamps_ns = np.linspace(-(2**62), 2**62, T).astype(np.int64) * 1
        assert {"rate_mismatch"} <= set(examine(ep).codes)

    def test_an_episode_that_was_opened_in_part_is_not_blamed_for_it(self, tmp_path: Path) -> None:
        save_wshard(clean(), tmp_path / "ep.wshard", fsync=False)
        with load_wshard(tmp_path / "ep.wshard", lanes=["omen", "uncert", "done"]) as ep:
            assert examine(ep).findings == ()


def raw_file(
    path: Path,
    entries: dict[str, bytes],
    length: int = 4,
    **fields: Any,  # noqa: ANN401 - JSON
) -> Path:
    """An episode as somebody else's writer might leave it."""
    episode = {"episode_id": "raw", "length_T": length, **fields}
    names = ["meta/episode", *entries]
    with ShardWriter(path, role=Role.WSHARD, reserve=names, fsync=False) as writer:
        writer.write_entry("meta/episode", json.dumps(episode).encode(), content_type=2)
        for name, content in entries.items():
            writer.write_entry(name, content, content_type=2 if name.startswith("meta/") else 0)
    return path


def rows(*listed: dict[str, Any]) -> bytes:
    return json.dumps({"channels": list(listed)}).encode()


DONE = {"done": b"\0\0\0\1"}


class TestFiles:
    """Broken rules come with the codes and rules of the specification."""

    def test_blocks_without_a_row_and_rows_without_a_block_are_found(self, tmp_path: Path) -> None:
        path = raw_file(
            tmp_path / "a.wshard",
            {
                **DONE,
                "signal/x": bytes(32),
                "meta/channels": rows({"id": "gone", "dtype": "f32", "shape": [2]}),
            },
        )
        report = examine(path)
        assert {(f.code, f.entry, f.rule) for f in report.findings} == {
            ("undescribed_block", "signal/x", "W-INF-1"),
            ("missing_block", "signal/gone", "W-CHN-6"),
        }

    def test_a_length_that_nothing_explains_is_found(self, tmp_path: Path) -> None:
        row = {"id": "x", "dtype": "f32", "shape": [], "length": 7}
        path = raw_file(
            tmp_path / "a.wshard", {**DONE, "signal/x": bytes(28), "meta/channels": rows(row)}
        )
        finding = only(examine(path))
        assert (finding.code, finding.entry, finding.count) == ("length_mismatch", "signal/x", 7)

    def test_a_range_of_steps_that_does_not_fit_is_found(self, tmp_path: Path) -> None:
        path = raw_file(tmp_path / "a.wshard", DONE, timestep_range=[10, 20])
        finding = only(examine(path))
        assert (finding.code, finding.entry) == ("length_mismatch", "meta/episode")

    def test_done_that_is_not_the_union_breaks_a_rule(self, tmp_path: Path) -> None:
        path = raw_file(
            tmp_path / "a.wshard",
            {"done": b"\0\1\0\1", "terminated": b"\0\0\0\0", "truncated": b"\0\0\0\1"},
        )
        finding = only(examine(path))
        assert (finding.code, finding.severity, finding.rule) == ("bad_value", "error", "W-END-3")
        assert (finding.entry, finding.step, finding.count) == ("done", 1, 1)

    @pytest.mark.parametrize(
        ("block", "size", "rule"),
        [
            ("reward", 12, "W-END-1"),
            ("done", 3, "W-END-1"),
            ("terminated", 5, "W-END-1"),
            ("truncated", 1, "W-END-1"),
            ("time/ticks", 4, "W-TIM-2"),
            ("time/timestamps_ns", 16, "W-TIM-2"),
        ],
    )
    def test_flat_lanes_of_a_wrong_size_break_a_rule(
        self, tmp_path: Path, block: str, size: int, rule: str
    ) -> None:
        path = raw_file(tmp_path / "a.wshard", {**DONE, block: bytes(size)})
        errors = examine(path).errors
        assert [(f.code, f.entry, f.rule) for f in errors] == [("size_mismatch", block, rule)]

    def test_one_bad_block_does_not_hide_the_others(self, tmp_path: Path) -> None:
        path = raw_file(
            tmp_path / "a.wshard",
            {
                **DONE,
                "signal/x": bytes(5),
                "signal/y": np.array([1, np.nan, 3, 4], "<f4").tobytes(),
                "label/bad": b'{"intervals":1}',
                "label/worse": b"[]",
                "residual/y/sign2nddiff": b"\0\0\0"[:1],
                "meta/provenance": b"{}",
                "meta/channels": rows(
                    {"id": "x", "dtype": "f32", "shape": []},
                    {"id": "y", "dtype": "f32", "shape": []},
                    {
                        "id": "residual/y/sign2nddiff",
                        "signal_block": "residual/y/sign2nddiff",
                        "dtype": "u8",
                        "shape": [],
                    },
                ),
            },
        )
        report = examine(path)
        found = {(f.code, f.entry) for f in report.findings}
        assert found >= {
            ("size_mismatch", "signal/x"),
            ("not_finite", "signal/y"),
            ("bad_metadata", "label/bad"),
            ("bad_metadata", "label/worse"),
            ("bad_metadata", "meta/provenance"),
        }
        assert not report.ok
        assert report.length == 4

    @pytest.mark.parametrize(
        ("length", "broken"),
        [(1 << 52, {"meta/episode"}), (1 << 20, {"signal/x", "signal/y", "signal/z"})],
    )
    def test_lengths_that_lie_cost_neither_memory_nor_time(
        self, length: int, broken: set[str], tmp_path: Path
    ) -> None:
        claimed = 1 << 52
        listed = rows(
            {"id": "x", "dtype": "u8", "shape": [9, 9]},
            {
                "id": "y",
                "dtype": "f32",
                "shape": [0],
                "length": claimed,
                "start_ns": 5,
                "sampling_rate_hz": 30,
            },
            {
                "id": "z",
                "dtype": "f32",
                "shape": [],
                "length": claimed,
                "start_ns": 5,
                "sampling_rate_hz": 30,
            },
        )
        entries = {"signal/x": bytes(81), "signal/y": b"", "signal/z": bytes(8)}
        path = raw_file(tmp_path / "a.wshard", {**entries, "meta/channels": listed}, length)
        tracemalloc.start()
        report = examine(path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 16 << 20
        assert {(f.code, f.entry) for f in report.errors} == {
            ("size_mismatch", name) for name in broken
        }

    def test_text_that_is_not_utf8_breaks_a_rule_and_names_the_step(self, tmp_path: Path) -> None:
        offsets = np.array([0, 1, 2, 3, 4], "<i8").tobytes()
        row = {
            "id": "t",
            "dtype": "u8",
            "shape": [],
            "layout": "text",
            "offsets_block": "offsets/signal/t",
        }
        for content, step in ((b"ab\xffd", 2), ("aé".encode() + b"z", 1)):
            path = raw_file(
                tmp_path / f"{step}.wshard",
                {
                    **DONE,
                    "signal/t": content,
                    "offsets/signal/t": offsets,
                    "meta/channels": rows(row),
                },
            )
            finding = only(examine(path))
            assert (finding.code, finding.rule) == ("bad_value", "W-RAG-4")
            assert f"step {step}" in finding.message

    def test_everything_that_checking_the_container_reports_is_kept(self, tmp_path: Path) -> None:
        path = tmp_path / "ep.wshard"
        save_wshard(clean(), path, fsync=False)
        content = bytearray(path.read_bytes())
        with ShardReader(path) as reader:
            at = reader.info("signal/joints").data_offset
        content[at] ^= 1
        content[9] = 0x55  # a header flag that nobody knows
        path.write_bytes(content)
        with ShardReader(path) as reader:
            expected = verify.check(reader)
        report = examine(path)
        assert [f.code for f in report.errors] == [broken.code for broken in expected.errors]
        assert [f.code for f in report.warnings] == [odd.code for odd in expected.warnings]
        assert report.errors[0].entry == "signal/joints"
        assert report.errors[0].rule == "S-CRC-1"

    def test_values_of_damaged_blocks_are_not_judged(self, tmp_path: Path) -> None:
        ep = clean()
        not_finite(ep)
        path = tmp_path / "ep.wshard"
        save_wshard(ep, path, fsync=False)
        content = bytearray(path.read_bytes())
        with ShardReader(path) as reader:
            content[reader.info("action/ctrl").data_offset] ^= 1
        path.write_bytes(content)
        assert examine(path).codes == ("checksum_mismatch",)
        # Values are read through checksums too.
        options = ExamineOptions(check_container=False)
        assert examine(path, options=options).codes == ("checksum_mismatch",)

    def test_a_wrong_identity_is_an_error(self, tmp_path: Path) -> None:
        path = tmp_path / "ep.wshard"
        save_wshard(clean(), path, options=FileOptions(identity=True), fsync=False)
        changed = tmp_path / "changed.wshard"
        with (
            ShardReader(path) as reader,
            ShardWriter(changed, role=Role.WSHARD, fsync=False) as writer,
        ):
            for name in reader.names():
                content = reader.read_entry(name)
                if name == "reward":
                    content = np.ones(T, "<f4").tobytes()
                writer.write_entry(name, content, content_type=reader.info(name).content_type)
        report = examine(changed)
        assert [(f.code, f.entry) for f in report.errors] == [("identity_mismatch", "reward")]
        assert examine(changed, options=ExamineOptions(check_identity=False)).ok

    def test_an_identity_of_version_1_is_a_note(self, tmp_path: Path) -> None:
        old = VECTORS / "valid" / "episode_generation_2_simple_episode.wshard"
        notes = [(f.severity, f.entry) for f in examine(old).findings if f.code == "old_identity"]
        assert notes == [("note", "meta/identity")]
        save_wshard(load_wshard(old), tmp_path / "new.wshard", fsync=False)
        assert "old_identity" not in examine(tmp_path / "new.wshard").codes

    def test_a_file_that_is_not_there_is_a_finding(self, tmp_path: Path) -> None:
        report = examine(tmp_path / "absent.wshard")
        assert report.codes == ("io_error",)
        assert (report.episode_id, report.length, report.ok) == (None, None, False)

    def test_other_files_of_the_family_and_foreign_files_are_findings(self, tmp_path: Path) -> None:
        (tmp_path / "text").write_bytes(b"hello, this is no shard file at all" * 4)
        assert examine(tmp_path / "text").codes == ("bad_magic",)
        with ShardWriter(tmp_path / "plain.shard", fsync=False) as writer:
            writer.write_entry("a", b"1")
        (finding,) = examine(tmp_path / "plain.shard").errors
        assert (finding.code, finding.rule) == ("bad_profile", "W-ROL-1")

    def test_a_missing_and_a_changed_chunk_are_found(self, tmp_path: Path) -> None:
        ep = clean()
        ep.residuals.clear()
        with ChunkedEpisodeWriter(tmp_path, "ep_001", chunk_size_t=24) as writer:
            writer.write_episode(ep)
        chunk = tmp_path / "ep_001_chunk_0001.wshard"
        content = bytearray(chunk.read_bytes())
        content[-1] ^= 1
        chunk.write_bytes(content)
        (tmp_path / "ep_001_chunk_0002.wshard").unlink()
        report = examine(tmp_path / "ep_001_manifest.wshard")
        assert {(f.code, f.rule) for f in report.errors} >= {
            ("missing_file", "W-CHK-7"),
            ("reference_mismatch", "W-CHK-7"),
        }

    def test_a_stale_sidecar_is_found_and_the_episode_examined(self, tmp_path: Path) -> None:
        ep = clean()
        path = tmp_path / "ep.wshard"
        save_wshard(ep, path, fsync=False)
        add_lane(path, "omen/joints/other", np.asarray(ep.omens["joints"]["dreamer"]))
        not_finite(ep)
        save_wshard(ep, tmp_path / "other.wshard", fsync=False)
        (tmp_path / "other.wshard").replace(path)
        report = examine(path)
        assert [(f.code, f.rule) for f in report.errors] == [("reference_mismatch", "W-SID-2")]
        assert report.errors[0].path is not None
        assert "not_finite" in report.codes

    @pytest.mark.parametrize("folder", ["valid", "valid_episodes", "invalid", "invalid_episodes"])
    def test_no_vector_makes_it_raise(self, folder: str) -> None:
        paths = sorted((VECTORS / folder).rglob("*.wshard"))
        for path in paths:
            assert isinstance(examine(path), EpisodeReport)

    def test_what_only_checking_tools_find_is_found_in_the_vectors(self) -> None:
        seen = 0
        for path in sorted((VECTORS / "invalid_episodes").glob("*.json")):
            expected = json.loads(path.read_text("utf-8"))
            if expected["when"] != "check":
                continue
            seen += 1
            errors = examine(path.parent / expected["file"]).errors
            rules = {expected["rule"], *expected.get("rules_also", [])}
            assert any(f.code == expected["error"] and f.rule in rules for f in errors), path.name
        assert seen > 20

    def test_no_damage_makes_it_raise(self, tmp_path: Path) -> None:
        content = (VECTORS / "valid" / "golden_omen_uncert.wshard").read_bytes()
        rng = np.random.default_rng(5)
        for _ in range(150):
            broken = bytearray(content)
            for at in rng.integers(0, len(broken), rng.integers(1, 4)).tolist():
                broken[at] ^= 1 << int(rng.integers(8))
            assert isinstance(examine(bytes(broken)), EpisodeReport)
        for length in range(0, len(content), 97):
            assert not examine(content[:length]).ok


class TestReports:
    """Reports are for programs, too."""

    def test_errors_come_first_and_counts_add_up(self, tmp_path: Path) -> None:
        path = raw_file(
            tmp_path / "a.wshard", {"signal/x": bytes(16), "done": b"\0", "com.example": b"?"}
        )
        report = examine(path)
        order = [("error", "warning", "note").index(f.severity) for f in report.findings]
        assert order == sorted(order)
        assert report.findings == report.errors + report.warnings + report.notes
        assert (len(report.errors), report.ok) == (1, False)

    def test_fields_are_json(self, tmp_path: Path) -> None:
        ep = clean()
        not_finite(ep)
        fields = json.loads(json.dumps(examined(ep, tmp_path).to_fields()))
        assert fields["episode_id"] == "ep_001"
        assert (fields["ok"], fields["errors"], fields["warnings"]) == (True, 0, 1)
        (finding,) = fields["findings"]
        assert finding.keys() == {
            "code", "severity", "message", "entry", "step", "count", "advice"
        }  # fmt: skip

    def test_a_finding_reads_as_one_line(self) -> None:
        finding = Finding("time_jump", "warning", "1 gap", "time/ticks", advice="look")
        assert str(finding) == "entry 'time/ticks': 1 gap"

    def test_progress_rises_to_the_total(self, tmp_path: Path) -> None:
        save_wshard(clean(), tmp_path / "ep.wshard", fsync=False)
        seen: list[tuple[int, int]] = []
        examine(tmp_path / "ep.wshard", progress=lambda done, total: seen.append((done, total)))
        assert len({total for _, total in seen}) == 1
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)
        assert seen[-1][0] == seen[-1][1]

    def test_an_open_episode_stays_open_and_nothing_is_kept_in_memory(self, tmp_path: Path) -> None:
        save_wshard(clean(), tmp_path / "ep.wshard", compression="zstd", fsync=False)
        with load_wshard(tmp_path / "ep.wshard") as ep:
            assert examine(ep).findings == ()
            assert not ep.observations["rgb"].is_loaded
            assert ep.observations["rgb"][3].shape == (12, 10, 3)

    def test_an_overview_of_what_was_changed_is_reported(self, tmp_path: Path) -> None:
        path, ep = tmp_path / "ep.wshard", Episode("ep")
        ep.actions["ctrl"] = np.sin(np.arange(20_000))
        ep.truncations = np.arange(20_000) == 19_999
        save_wshard(ep, path, fsync=False, overview=True)
        assert [f.code for f in examine(path).findings] == []
        ep.actions["ctrl"] = np.cos(np.arange(20_000))
        save_wshard(ep, path, fsync=False)
        (finding,) = examine(path).findings
        assert (finding.code, finding.entry) == ("stale_overview", "action/ctrl")
        assert "wshard repack --overview" in finding.advice

    def test_threads_change_nothing(self, tmp_path: Path) -> None:
        ep = clean()
        for number in range(6):
            noise = np.random.default_rng(number).normal(size=(T, 9000)).astype(np.float32)
            noise[number, 0] = np.nan
            ep.observations[f"noise_{number}"] = noise
        save_wshard(ep, tmp_path / "ep.wshard", fsync=False)
        one, many = (examine(tmp_path / "ep.wshard", threads=n) for n in (1, 4))
        assert one == many
        assert [f.step for f in one.findings] == list(range(6))

    def test_every_code_is_in_the_registry_and_has_a_test(self) -> None:
        text = (REPOSITORY / "spec" / "registry.md").read_text("utf-8")
        section = text.split("## Findings of the doctor")[1].split("\n## ")[0]
        listed = dict(re.findall(r"^\| `(\w+)` \| (\w+)[^|]* \|", section, re.MULTILINE))
        assert listed == CODES
        here = Path(__file__).read_text("utf-8")
        assert [code for code in CODES if f'"{code}"' not in here] == []
