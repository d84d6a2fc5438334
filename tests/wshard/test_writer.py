"""Saving: canonical bytes, how each block is stored, and files that are whole or not there."""

from __future__ import annotations

import errno
import os
import signal
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shard_format import Codec, ShardReader
from shard_format.errors import InvalidArgument, ShardIOError
from tests.shard_format.support import check_python, listing
from tests.wshard.support import (
    assert_same,
    entries_of,
    full_episode,
    noise_array,
    ramp,
    save,
)
from wshard import Channel, ChunkedEpisodeWriter, Episode, load_wshard, save_wshard
from wshard.types import FileOptions, RaggedChannel

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def codecs_of(path: Path) -> dict[str, str]:
    with ShardReader(path) as reader:
        return {info.name: info.codec.name.lower() for info in reader.infos()}


def smooth(steps: int, width: int = 8) -> np.ndarray[Any, Any]:
    """A trajectory that compresses better after filtering."""
    return np.cumsum(np.sin(ramp(steps, width, dtype="f8")), axis=0).astype("f4")


def error_of(call: Callable[[], None]) -> ShardIOError | None:
    """The error of the system that a call raises, None if it succeeds."""
    try:
        call()
    except ShardIOError as error:
        return error
    return None


class TestCanonical:
    """The same episode gives the same bytes."""

    def test_the_order_of_entries_is_that_of_the_specification(self, tmp_path: Path) -> None:
        path = save(full_episode(), tmp_path / "a.wshard", options=FileOptions(identity=True))
        assert ShardReader(path).names() == [
            *("meta/wshard", "meta/episode", "meta/channels"),
            *("signal/audio", "signal/imu", "signal/scan", "signal/state", "signal/text"),
            *("signal/wrist/rgb", "action/ctrl", "reward", "reward/exact"),
            *("done", "terminated", "truncated", "time/ticks", "time/signal/imu"),
            *("offsets/signal/scan", "offsets/signal/text"),
            *("omen/ctrl/act", "omen/state/dreamer", "uncert/state/dreamer/std"),
            *("residual/state/dreamer/delta_q", "residual/state/dreamer/delta_q/scales"),
            *("residual/state/sign2nddiff", "label/noise", "label/skill", "aux/blob"),
            *("debug/numbers", "meta/provenance", "meta/identity"),
        ]
        header = ShardReader(path).header
        assert (header.role, header.alignment, header.flags) == (5, 64, 0xA2)

    def test_the_descriptions_are_canonical_and_complete(self, tmp_path: Path) -> None:
        ep = Episode(
            "e", "env", observations={"b": ramp(2), "a": ramp(3, 2)}, actions={"x": [1, 2]}
        )
        entries = entries_of(save(ep, tmp_path / "a.wshard"))
        assert entries["meta/wshard"] == (
            b'{"endianness":"little","format":"W-SHARD","residual_edges":"pad","version":"0.1"}'
        )
        assert entries["meta/episode"] == (
            b'{"env_id":"env","episode_id":"e","length_T":2,'
            b'"timebase":{"tick_hz":null,"type":"ticks"}}'
        )
        assert entries["meta/channels"] == (
            b'{"channels":[{"dtype":"f32","id":"a","length":3,"shape":[2],"signal_block":"signal/a"},'
            b'{"dtype":"f32","id":"b","shape":[],"signal_block":"signal/b"},'
            b'{"dtype":"i64","id":"x","shape":[],"signal_block":"action/x"}]}'
        )
        assert entries["time/ticks"] == np.arange(2, dtype="<i4").tobytes()

    def test_saving_twice_gives_the_same_bytes(self, tmp_path: Path) -> None:
        for options in ({}, {"profile": "training"}, {"compression": "zstd"}):
            first = save(full_episode(), tmp_path / "a.wshard", **options)
            second = save(full_episode(), tmp_path / "b.wshard", **options)
            assert first.read_bytes() == second.read_bytes()

    def test_a_shared_clock_is_stored_once_under_the_first_name(self, tmp_path: Path) -> None:
        times = np.arange(3) * 5
        names = {}
        for order in ("ab", "ba"):
            ep = Episode("e", length=1)
            for name in order:
                ep.observations[name] = Channel(data=ramp(3), timestamps_ns=times.copy())
            names[order] = entries_of(save(ep, tmp_path / f"{order}.wshard"))
        assert names["ab"] == names["ba"]
        assert [name for name in names["ab"] if name.startswith("time/signal")] == ["time/signal/a"]


class TestEnds:
    """What is written for which ends are known."""

    @pytest.mark.parametrize(
        ("terminated", "truncated", "written"),
        [
            (None, None, {}),
            ([0, 1], None, {"done": [0, 1]}),
            ([0, 1], [1, 0], {"done": [1, 1], "terminated": [0, 1], "truncated": [1, 0]}),
            (None, [0, 1], {"done": [0, 1], "terminated": [0, 0], "truncated": [0, 1]}),
        ],
    )
    def test_done_is_always_the_union(
        self,
        tmp_path: Path,
        terminated: Any,  # noqa: ANN401 - a list
        truncated: Any,  # noqa: ANN401 - a list
        written: dict[str, list[int]],
    ) -> None:
        ep = Episode("e", length=2, terminations=terminated, truncations=truncated)
        path = save(ep, tmp_path / "a.wshard")
        entries = entries_of(path)
        ends = ("done", "terminated", "truncated")
        assert {n: list(entries[n]) for n in ends if n in entries} == written
        assert_same(load_wshard(path), ep)

    def test_a_cut_episode_does_not_come_back_as_terminated(self, tmp_path: Path) -> None:
        path = save(Episode("e", length=2, truncations=[0, 1]), tmp_path / "a.wshard")
        loaded = load_wshard(path)
        assert loaded.terminations is not None
        assert loaded.terminations.data.tolist() == [False, False]


class TestRewards:
    """f32, and exact beside it where that is not enough."""

    @pytest.mark.parametrize(
        ("rewards", "exact"),
        [
            (np.array([0.5, -0.0], "f4"), False),
            (np.array([0.5, -0.0], "f8"), False),
            (np.array([0.1, 1.0], "f8"), True),
            (np.array([1, 2], "i8"), True),
            (np.array([0x7FF8000000000001, 0], "u8").view("f8"), True),
        ],
    )
    def test_no_value_is_lost(self, tmp_path: Path, rewards: Any, exact: bool) -> None:  # noqa: ANN401 - an array
        path = save(Episode("e", rewards=rewards), tmp_path / "a.wshard")
        assert ("reward/exact" in entries_of(path)) is exact
        loaded = load_wshard(path).rewards
        assert loaded is not None
        assert loaded.data.astype(rewards.dtype).tobytes() == rewards.tobytes()

    @pytest.mark.parametrize("dtype", ["f4", "f8", "i4"])
    def test_what_they_mean_is_kept(self, tmp_path: Path, dtype: str) -> None:
        rewards = Channel(data=ramp(3, dtype=dtype), unit="points", extra={"x": 1})
        path = save(Episode("e", rewards=rewards), tmp_path / "a.wshard")
        loaded = load_wshard(path).rewards
        assert loaded is not None
        assert (loaded.unit, loaded.extra) == ("points", {"x": 1})
        assert save(load_wshard(path), tmp_path / "b.wshard").read_bytes() == path.read_bytes()

    def test_rewards_have_no_clock_of_their_own(self, tmp_path: Path) -> None:
        rewards = Channel(data=ramp(7), start_ns=0, sampling_rate_hz=1.0)
        with pytest.raises(InvalidArgument, match="reward"):
            save(Episode("e", length=3, rewards=rewards), tmp_path / "a.wshard")


class TestCompression:
    """Rules for blocks, channels and patterns."""

    @pytest.fixture
    def ep(self) -> Episode:
        ep = Episode("ep", length=500, actions={"ctrl": ramp(500, 4) // 100})
        ep.observations["state"] = ramp(500, 4) // 100
        ep.observations["wrist/depth"] = ramp(500, 16, dtype="u2") // 100
        ep.observations["noise"] = noise_array(500, 16, dtype="u1")
        return ep

    def test_rules_go_by_name_then_channel_then_pattern(self, tmp_path: Path, ep: Episode) -> None:
        rules = {"signal/state": "zstd:19", "signal/wr*": "lz4", "ctrl": "zstd", "*": "none"}
        found = codecs_of(save(ep, tmp_path / "a.wshard", rules))
        assert found["signal/state"] == found["action/ctrl"] == "zstd"
        assert found["signal/wrist/depth"] == "lz4"
        assert found["signal/noise"] == found["time/ticks"] == "none"
        assert (
            codecs_of(save(ep, tmp_path / "a.wshard", {"depth*": "lz4"}))["signal/state"] == "none"
        )

    @pytest.mark.parametrize("compression", ["zstd", "zstd:19", "lz4", "auto"])
    @pytest.mark.parametrize("profile", [None, "training", "exchange"])
    def test_blocks_that_hardly_shrink_and_descriptions_stay_raw(
        self, tmp_path: Path, ep: Episode, compression: str, profile: str | None
    ) -> None:
        path = save(ep, tmp_path / "a.wshard", compression, profile=profile)
        found = codecs_of(path)
        assert found["signal/noise"] == "none"
        assert found["signal/state"] != "none"
        assert {codec for name, codec in found.items() if name.startswith("meta/")} == {"none"}
        assert_same(load_wshard(path), ep)

    def test_exchange_has_one_frame_and_no_filters(self, tmp_path: Path) -> None:
        ep = Episode("e", observations={"a": np.round(smooth(20_000))})
        for compression in (None, "zstd", "auto"):
            path = save(
                ep, tmp_path / "a.wshard", compression, profile="exchange", steps_per_frame=10
            )
            with ShardReader(path) as reader:
                info = reader.info("signal/a")
                assert info.codec is Codec.ZSTD
                assert not info.filtered
                assert reader.seek_table("signal/a") is None
        with ShardReader(save(ep, tmp_path / "b.wshard", "lz4", profile="exchange")) as reader:
            assert not any(info.filtered for info in reader.infos())

    def test_training_has_seekable_filtered_blocks_and_is_smaller(self, tmp_path: Path) -> None:
        ep = Episode("e", observations={"a": smooth(40_000)})
        small = save(ep, tmp_path / "a.wshard", profile="training")
        plain = save(ep, tmp_path / "b.wshard", "zstd")
        with ShardReader(small) as reader:
            assert reader.info("signal/a").filtered
            assert reader.seek_table("signal/a") is not None
        assert small.stat().st_size < plain.stat().st_size * 0.9
        assert_same(load_wshard(small), ep)

    def test_frames_too_large_for_filters_are_stored_without(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("wshard._storage.LARGEST_FRAME", 100_000)
        ep = Episode("e", observations={"a": np.round(smooth(20_000))})
        path = save(ep, tmp_path / "a.wshard", profile="training", steps_per_frame=1 << 30)
        with ShardReader(path) as reader:
            assert not reader.info("signal/a").filtered
        assert_same(load_wshard(path), ep)

    @pytest.mark.parametrize("profile", [None, "training"])
    @pytest.mark.parametrize("steps", [1, 7, 64])
    def test_frames_hold_whole_steps(self, tmp_path: Path, profile: str | None, steps: int) -> None:
        ep = Episode("e", observations={"a": smooth(300, 24), "b": ramp(300, 40, dtype="u2")})
        path = save(ep, tmp_path / "a.wshard", "zstd", profile=profile, steps_per_frame=steps)
        with ShardReader(path) as reader:
            for name, channel in ep.observations.items():
                table = reader.seek_table(f"signal/{name}")
                if table is None:
                    assert channel.nbytes < 1000 or not reader.info(f"signal/{name}").codec.value
                    continue
                sizes = np.diff(table.content_starts).tolist()
                assert set(sizes[:-1]) == {channel.step_bytes * steps}
        assert_same(load_wshard(path), ep)

    def test_steps_per_frame_may_differ(self, tmp_path: Path) -> None:
        ep = Episode("e", observations={"a": ramp(300, 40), "b": ramp(300, 40)})
        path = save(ep, tmp_path / "a.wshard", "zstd", steps_per_frame={"a": 10, "signal/b": 100})
        with ShardReader(path) as reader:
            counts = [reader.seek_table(f"signal/{n}") for n in "ab"]
        assert [len(t) for t in counts if t is not None] == [30, 3]

    def test_large_blocks_are_seekable_without_being_asked(self, tmp_path: Path) -> None:
        ep = Episode("e", observations={"cam": noise_array(64, 96, 96, 3, dtype="u1") // 8})
        with ShardReader(save(ep, tmp_path / "a.wshard", "zstd:1")) as reader:
            assert reader.seek_table("signal/cam") is not None

    @pytest.mark.parametrize(
        "options",
        [
            {"compression": "gzip"},
            {"compression": "zstd:99"},
            {"compression": {"*": "best"}},
            {"profile": "fast"},
            {"steps_per_frame": 0},
            {"steps_per_frame": 1.5},
            {"steps_per_frame": {"*": -1}},
        ],
    )
    def test_what_nobody_knows_is_refused(self, tmp_path: Path, options: dict[str, Any]) -> None:
        path = tmp_path / "a.wshard"
        with pytest.raises(InvalidArgument):
            save(Episode("e", actions={"a": ramp(500)}), path, **options)
        assert listing(tmp_path) == []

    def test_ragged_and_text_are_compressed_too(self, tmp_path: Path) -> None:
        ep = Episode("e", length=900, observations={"t": ["the same words"] * 900})
        ep.observations["r"] = RaggedChannel(data=[ramp(5, 3)] * 900)
        path = save(ep, tmp_path / "a.wshard", "zstd", steps_per_frame=50)
        found = codecs_of(path)
        assert found["signal/t"] == found["signal/r"] == "zstd"
        assert_same(load_wshard(path), ep)

    def test_keep_copies_what_was_not_changed(self, tmp_path: Path, ep: Episode) -> None:
        path = save(ep, tmp_path / "a.wshard", "zstd:7", steps_per_frame=50)
        loaded = load_wshard(path)
        loaded.actions["ctrl"] = ramp(500, 4) * 2
        changed = loaded.observations["state"].data.copy()
        changed[0] = 99
        loaded.observations["state"].data = changed
        kept = save(loaded, tmp_path / "b.wshard")
        with ShardReader(path) as old, ShardReader(kept) as new:
            for name in ("signal/wrist/depth", "signal/noise", "time/ticks"):
                assert b"".join(old.iter_stored(name)) == b"".join(new.iter_stored(name))
        again = load_wshard(kept)
        assert again.observations["state"].data[0].tolist() == [99] * 4
        assert again.actions["ctrl"].data.tolist() == (ramp(500, 4) * 2).tolist()

    def test_alignment_may_be_chosen_and_is_kept(self, tmp_path: Path, ep: Episode) -> None:
        path = tmp_path / "a.wshard"
        save_wshard(ep, path, options=FileOptions(alignment=16, threads=1))
        assert ShardReader(save(load_wshard(path), tmp_path / "b.wshard")).header.alignment == 16


@pytest.mark.parametrize("chunked", [False, True])
def test_missing_folders_are_made(tmp_path: Path, chunked: bool) -> None:
    ep = Episode("ep", observations={"x": np.zeros((4, 2))})
    target = tmp_path / "new" / "folder" / "ep"
    if chunked:
        writer = ChunkedEpisodeWriter(target, "ep")
        writer.write_chunk(ep)
        assert load_wshard(writer.finalize_manifest()).length == 4
    else:
        save_wshard(ep, f"{target}.wshard", fsync=False)
        assert load_wshard(f"{target}.wshard").length == 4


class TestAtomic:
    """The old file or the new one, never anything between."""

    def test_a_refused_episode_leaves_the_old_file(self, tmp_path: Path) -> None:
        path = save(full_episode(), tmp_path / "a.wshard")
        before = path.read_bytes()
        bad = full_episode()
        bad.actions["late"] = ramp(99)
        with pytest.raises(InvalidArgument, match="action/late"):
            save(bad, path)
        assert path.read_bytes() == before
        assert listing(tmp_path) == ["a.wshard"]

    def test_an_error_in_the_middle_leaves_the_old_file(self, tmp_path: Path) -> None:
        path = save(full_episode(), tmp_path / "a.wshard")
        before = bytearray(path.read_bytes())
        ep = load_wshard(bytes(before))
        damaged = before[:]
        place = damaged.find(ep.observations["wrist/rgb"].data.tobytes())
        damaged[place + 5] ^= 1
        with pytest.raises(Exception, match="CRC-32C mismatch"):
            save(load_wshard(bytes(damaged)), path, "lz4")
        assert path.read_bytes() == before
        assert listing(tmp_path) == ["a.wshard"]

    def test_an_episode_is_saved_over_the_file_it_is_read_from(self, tmp_path: Path) -> None:
        path = save(Episode("e", observations={"a": ramp(50_000)}), tmp_path / "a.wshard")
        ep = load_wshard(path)
        view = ep.observations["a"].data
        ep.metadata["x"] = 1
        save(ep, path, "zstd")
        assert view[-1] == 49_999
        assert load_wshard(path).metadata == {"x": 1}

    def test_a_failure_of_any_system_call_is_one_clear_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = save(full_episode(), tmp_path / "a.wshard")
        old = path.read_bytes()
        state = {"calls": 0, "fatal": 0, "armed": False}

        def failing(call: Callable[..., Any]) -> Callable[..., Any]:
            def guarded(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - any call
                state["calls"] += state["armed"]
                if state["armed"] and state["calls"] == state["fatal"]:
                    raise OSError(errno.ENOSPC, "No space left on device")
                return call(*args, **kwargs)

            return guarded

        for name in ("open", "writev", "fsync", "replace", "posix_fallocate"):
            monkeypatch.setattr(os, name, failing(getattr(os, name)))
        ep = Episode("new", observations={"a": ramp(1000)})
        failed = 0
        while state["calls"] >= state["fatal"]:
            path.write_bytes(old)
            state.update(calls=0, fatal=state["fatal"] + 1, armed=True)
            error = error_of(lambda: save_wshard(ep, path))
            state["armed"] = False
            if error is not None:
                failed += 1
                assert error.errno == errno.ENOSPC
                assert str(path) in str(error)
            assert listing(tmp_path) == ["a.wshard"], state
            if path.read_bytes() != old:
                assert_same(load_wshard(path), ep)
        assert failed > 2
        assert path.read_bytes() != old, "the last run has met no failure"

    def test_a_kill_at_any_system_call_leaves_the_old_file_or_the_new(self, tmp_path: Path) -> None:
        script = """
            import os, signal, sys
            import numpy as np
            from wshard import Episode, load_wshard, save_wshard
            path = os.path.join(sys.argv[1], "a.wshard")
            def write(number):
                data = np.full((50_000, 2), number, np.float32)
                save_wshard(Episode(f"ep {number}", observations={"a": data}), path)
            write(1)
            old = open(path, "rb").read()
            states = []
            for when in ("before", "after"):
                fatal = 1
                while True:
                    pid = os.fork()
                    if pid == 0:
                        done = 0
                        def guard(call):
                            def guarded(*args, **kwargs):
                                global done
                                done += 1
                                if done == fatal:
                                    if when == "after":
                                        call(*args, **kwargs)
                                    os.kill(os.getpid(), signal.SIGKILL)
                                return call(*args, **kwargs)
                            return guarded
                        for name in ("writev", "write", "fsync", "replace", "ftruncate"):
                            setattr(os, name, guard(getattr(os, name)))
                        write(2)
                        os._exit(0)
                    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    if status == 0:
                        break
                    assert status == -signal.SIGKILL, status
                    ep = load_wshard(path).load()
                    number = int(ep.id[3:])
                    assert (ep.observations["a"].data == number).all()
                    states.append(number)
                    for name in os.listdir(sys.argv[1]):
                        os.unlink(os.path.join(sys.argv[1], name))
                    open(path, "wb").write(old)
                    fatal += 1
            print(states.count(1), states.count(2))
        """
        with_old, with_new = map(int, check_python(script, tmp_path).split())
        assert with_old >= 3
        assert with_new >= 1
        assert signal.SIGKILL

    def test_a_limit_on_file_sizes_leaves_the_old_file(self, tmp_path: Path) -> None:
        path = save(full_episode(), tmp_path / "a.wshard")
        before = path.read_bytes()
        script = """
            import resource, sys
            import numpy as np
            from shard_format.errors import ShardIOError
            from wshard import Episode, save_wshard
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
            try:
                save_wshard(Episode("e", observations={"a": np.zeros(100_000)}), sys.argv[1])
            except ShardIOError as error:
                print(error.errno)
        """
        assert check_python(script, path).strip() == str(errno.EFBIG)
        assert path.read_bytes() == before
        assert listing(tmp_path) == ["a.wshard"]
