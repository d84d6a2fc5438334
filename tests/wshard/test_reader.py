"""Opening episodes: descriptions at once, arrays when they are touched, and only the parts that are needed."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_format import ShardReader
from shard_format.errors import (
    BadProfile,
    ChecksumMismatch,
    Closed,
    EntryNotFound,
    InvalidArgument,
    ShardError,
    SizeMismatch,
    UnknownCodec,
    UnknownLayout,
)
from tests.shard_format.support import HandMade, Row
from tests.wshard.support import (
    RecordingSource,
    assert_same,
    bits,
    described,
    full_episode,
    hand_made,
    noise_array,
    ramp,
    save,
)
from wshard import (
    Channel,
    ChunkedEpisodeWriter,
    Episode,
    add_lane,
    load_wshard,
    save_wshard,
)

STEPS = 400


def place(path: Path, name: str) -> tuple[int, int]:
    """Where the stored bytes of an entry are."""
    with ShardReader(path) as reader:
        row = reader.index[reader.names().index(name)]
        start = int(row["data_offset"])
        return start, start + int(row["disk_size"])


@pytest.fixture
def camera(tmp_path: Path) -> Path:
    """An episode whose blocks are far larger than everything around them."""
    ep = Episode("ep", length=STEPS)
    ep.observations["cam"] = noise_array(STEPS, 32, 32, 3, dtype="u1") // 16
    ep.observations["raw"] = noise_array(STEPS, 64, dtype="f8")
    ep.labels["task"] = [(0, 3, "x")]
    compression = {"signal/cam": "zstd:1", "*": "none"}
    return save(ep, tmp_path / "a.wshard", compression, steps_per_frame=16)


class TestLazy:
    """What is read when."""

    def test_opening_reads_no_block(self, camera: Path) -> None:
        source = RecordingSource(camera)
        ep = load_wshard(source)
        assert list(ep.observations) == ["cam", "raw"]
        assert ep.observations["cam"].step_shape == (32, 32, 3)
        assert [c.is_loaded for _, c in ep.blocks()] == [False, False]
        assert "not loaded" in repr(ep.observations["cam"])
        for name in ("signal/cam", "signal/raw"):
            start, stop = place(camera, name)
            # What is read ahead of the descriptions may reach into the first block, no further.
            assert source.bytes_within(start, stop) < 100_000

    def test_a_window_of_a_seekable_block_reads_its_frames_only(self, camera: Path) -> None:
        wanted = load_wshard(camera).observations["cam"].data
        source = RecordingSource(camera)
        channel = load_wshard(source).observations["cam"]
        start, stop = place(camera, "signal/cam")
        whole = stop - start
        assert bits(channel[40:56]) == bits(wanted[40:56])
        table = ShardReader(camera).seek_table("signal/cam")
        assert table is not None
        source.forget()
        assert bits(channel[100:110]) == bits(wanted[100:110])
        # Steps 96 to 112 are one frame of 25.
        assert 0 < source.bytes_within(start, stop) < whole * 2 / 25
        source.forget()
        assert bits(channel[15:17]) == bits(wanted[15:17]), "across the border of two frames"
        assert 0 < source.bytes_within(start, stop) < whole * 3 / 25
        assert not channel.is_loaded

    def test_a_window_of_an_uncompressed_block_reads_its_bytes_only(self, camera: Path) -> None:
        source = RecordingSource(camera)
        channel = load_wshard(source).observations["raw"]
        source.forget()
        assert bits(channel[7:9]) == bits(load_wshard(camera).observations["raw"].data[7:9])
        assert sum(b - a for a, b in source.ranges) == 2 * 64 * 8
        assert channel[5].shape == (64,)
        assert channel[-1, 3] == channel.data[-1, 3] or np.isnan(channel[-1, 3])

    def test_a_block_without_a_seek_table_is_decoded_once_and_kept(self, tmp_path: Path) -> None:
        ep = Episode("ep", observations={"a": ramp(300, 50)})
        path = save(ep, tmp_path / "a.wshard", "zstd", profile="exchange")
        channel = load_wshard(path).observations["a"]
        assert bits(channel[3:5]) == bits(ramp(300, 50)[3:5])
        assert channel.is_loaded

    def test_load_brings_everything_into_memory(self, tmp_path: Path) -> None:
        ep = load_wshard(save(full_episode(), tmp_path / "a.wshard", "zstd")).load()
        assert all(channel.is_loaded for _, channel in ep.blocks())
        ep.close()
        assert_same(ep, full_episode())

    def test_what_was_not_read_before_closing_says_so(self, camera: Path) -> None:
        with load_wshard(camera) as ep:
            first = ep.observations["raw"].data
        with pytest.raises(Closed):
            _ = ep.observations["cam"].data
        assert first.shape == (STEPS, 64), "what was handed out stays"

    @pytest.mark.parametrize("key", [3, -1, np.int64(2), slice(None), slice(1, 9, 3), slice(5, 2)])
    def test_keys_are_numpys(self, camera: Path, key: Any) -> None:  # noqa: ANN401 - any key
        lazy, whole = (
            load_wshard(camera).observations["cam"],
            load_wshard(camera).observations["cam"],
        )
        assert bits(lazy[key]) == bits(whole.data[key])
        assert bits(load_wshard(camera).observations["cam"][key, ..., 0]) == bits(
            whole.data[key, ..., 0]
        )

    def test_other_keys_work_on_the_whole(self, camera: Path) -> None:
        whole = load_wshard(camera).observations["raw"].data
        for key in (..., [1, 3], np.arange(STEPS) > 390, (), None, slice(None, None, -1)):
            assert bits(load_wshard(camera).observations["raw"][key]) == bits(whole[key])
        for bad in (STEPS, -STEPS - 1):
            with pytest.raises(IndexError):
                load_wshard(camera).observations["raw"][bad]


class TestViews:
    """Uncompressed arrays are the file's own bytes."""

    def test_they_are_read_only_views_without_a_copy(self, tmp_path: Path) -> None:
        ep = Episode("ep", observations={"a": ramp(20_000, 2)}, actions={"b": ramp(20_000) > 3})
        loaded = load_wshard(save(ep, tmp_path / "a.wshard"))
        for name in ("a", "b"):
            channel = loaded.find(name)
            part, data = channel[5:50], channel.data
            assert not data.flags.writeable
            assert not data.flags.owndata
            assert np.shares_memory(part, data)
            assert data.ctypes.data % 64 == 0
            with pytest.raises(ValueError, match="read-only"):
                data[0] = 0

    def test_views_of_bytes_share_their_memory(self, tmp_path: Path) -> None:
        content = save(full_episode(), tmp_path / "a.wshard").read_bytes()
        data = load_wshard(content).observations["wrist/rgb"].data
        assert np.shares_memory(data, np.frombuffer(content, np.uint8))

    @pytest.mark.parametrize("compression", ["none", "zstd", "lz4"])
    def test_arrays_are_read_only_however_they_are_stored(
        self, tmp_path: Path, compression: str
    ) -> None:
        ep = Episode("ep", observations={"a": ramp(3000, 2)}, rewards=ramp(3000))
        for episode in (ep, load_wshard(save(ep, tmp_path / "a.wshard", compression))):
            channel = episode.observations["a"]
            for array in (channel[3:9], channel.data, channel[3:9], np.asarray(channel)):
                with pytest.raises(ValueError, match="read-only"):
                    array[0] = 7
            with pytest.raises(TypeError, match=r"read-only: change a copy, channel.data.copy\(\)"):
                channel[0] = 7
            own = channel.data.copy()
            own[0] = 7
            channel.data = own
            assert episode.observations["a"].data[0].tolist() == [7, 7]

    def test_views_outlive_the_episode(self, tmp_path: Path) -> None:
        path = save(Episode("ep", observations={"a": ramp(50_000)}), tmp_path / "a.wshard")
        data = load_wshard(path).observations["a"].data
        path.unlink()
        assert data[-1] == 49_999


class TestSources:
    """Paths, bytes, files and anything with ranges."""

    @pytest.mark.parametrize("compression", [None, "zstd"])
    def test_all_of_them_give_the_same(self, tmp_path: Path, compression: str | None) -> None:
        path = save(full_episode(), tmp_path / "a.wshard", compression)
        content = path.read_bytes()
        with path.open("rb") as file:
            for source in (
                str(path),
                path,
                content,
                file,
                io.BytesIO(content),
                RecordingSource(path),
            ):
                assert_same(load_wshard(source), full_episode())


class TestDamaged:
    """Checksums, when a block is touched."""

    @pytest.mark.parametrize("compression", [None, "zstd"])
    def test_a_flipped_byte_is_found_when_its_block_is_touched(
        self, camera: Path, compression: str | None
    ) -> None:
        start, stop = place(camera, "signal/raw")
        content = bytearray(camera.read_bytes())
        content[(start + stop) // 2] ^= 1
        ep = load_wshard(content)
        assert ep.observations["cam"].data.shape == (STEPS, 32, 32, 3)
        with pytest.raises(ChecksumMismatch) as caught:
            _ = ep.observations["raw"].data
        assert caught.value.entry == "signal/raw"
        with pytest.raises(ChecksumMismatch):
            load_wshard(content).load()
        assert load_wshard(content, check=False).observations["raw"].data.shape == (STEPS, 64)

    def test_unchecked_reading_does_not_check_chunks_and_sidecars_either(
        self, tmp_path: Path
    ) -> None:
        values = noise_array(STEPS, 256, dtype="u1")
        whole = Episode("ep", length=STEPS)
        whole.observations["raw"] = values
        with ChunkedEpisodeWriter(tmp_path / "chunks", "ep", fsync=False) as writer:
            chunk = Path(writer.write_chunk(whole))
            manifest = writer.finalize_manifest()
        alone = tmp_path / "ep.wshard"
        save_wshard(whole, alone, fsync=False)
        added = add_lane(alone, {"omen/raw/model": values})
        for path, opened, name in (
            (chunk, manifest, "signal/raw"),
            (Path(added), alone, "omen/raw/model"),
        ):
            content = bytearray(path.read_bytes())
            content[place(path, name)[1] - 1] ^= 1
            path.write_bytes(content)
            with pytest.raises(ChecksumMismatch):
                _ = load_wshard(opened).find(name).data
            assert np.array_equal(load_wshard(opened, check=False).find(name)[:9], values[:9])

    def test_a_flipped_byte_of_a_description_is_found_at_once(self, camera: Path) -> None:
        for name in ("meta/episode", "meta/channels", "meta/wshard"):
            content = bytearray(camera.read_bytes())
            content[place(camera, name)[0] + 3] ^= 1
            with pytest.raises(ChecksumMismatch) as caught:
                load_wshard(content)
            assert caught.value.entry == name


class TestEmpty:
    """An episode without steps has blocks without bytes."""

    @pytest.mark.parametrize("lane", ["observations", "actions"])
    def test_the_rules_about_a_compressed_block_hold_all_the_same(self, lane: str) -> None:
        name = b"signal/x" if lane == "observations" else b"action/x"
        about = Row(b"meta/episode", b'{"episode_id":"ep","length_T":0}')
        ep = load_wshard(HandMade([about, Row(name, flags=1)], role=5).to_bytes())
        with pytest.raises(UnknownCodec, match="S-CMP-1"):
            _ = getattr(ep, lane)["x"].data


class TestProvenance:
    """Only checking tools look into it (W-PRV-1)."""

    @pytest.mark.parametrize("flags", [0x01, 0x07, 0x10, 0x11])
    def test_one_that_cannot_be_decoded_does_not_hide_the_recording(self, flags: int) -> None:
        entries = {**described(1, []), "signal/x": bytes(4)}
        rows = [
            Row(name.encode(), text if isinstance(text, bytes) else json.dumps(text).encode())
            for name, text in entries.items()
        ]
        damaged = Row(b"meta/provenance", b"{}", flags=flags)
        ep = load_wshard(HandMade([*rows, damaged], role=5).to_bytes())
        assert ep.provenance is None
        assert ep.observations["x"].data.tolist() == [0.0]


class TestParts:
    """Only some channels or lanes."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return save(full_episode(), tmp_path / "a.wshard")

    def test_a_channel_comes_with_what_models_said_about_it(self, path: Path) -> None:
        ep = load_wshard(path, channels=["state"])
        assert list(ep.observations) == ["state"]
        assert not ep.actions
        assert set(ep.residuals) == {"state", "state/dreamer/delta_q"}
        assert list(ep.omens) == list(ep.uncerts) == ["state"]
        assert ep.length == 12

    @pytest.mark.parametrize(
        ("name", "left"),
        [
            ("signal/state", {"signal/state"}),
            ("wrist/*", {"signal/wrist/rgb"}),
            ("omen/state/dreamer", {"omen/state/dreamer"}),
            ("uncert/state/dreamer/std", {"uncert/state/dreamer/std"}),
            ("uncert/*", {"uncert/state/dreamer/std"}),
            ("label/skill", set()),
            ("residual/state/sign2nddiff", set()),
            ("residual/state/dreamer/delta_q", set()),
            ("aux/blob", set()),
        ],
    )
    def test_block_names_and_patterns_choose(self, path: Path, name: str, left: set[str]) -> None:
        ep = load_wshard(path, channels=[name])
        flat = {"reward", "terminated", "truncated"}
        assert {block for block, _ in ep.blocks()} - flat == left
        kept = [*ep.labels, *ep.residuals, *ep.extras]
        assert len(kept) == (0 if left else 1), kept

    def test_an_unknown_channel_is_an_error_with_candidates(self, path: Path) -> None:
        with pytest.raises(EntryNotFound, match="no channel 'stat'") as caught:
            load_wshard(path, channels=["stat"])
        assert str(path) in str(caught.value)

    def test_lanes_choose(self, path: Path) -> None:
        ep = load_wshard(path, lanes=["action", "reward"])
        assert [block for block, _ in ep.blocks()] == ["action/ctrl", "reward"]
        assert not ep.labels
        assert not ep.extras
        assert list(load_wshard(path, lanes=["aux"]).extras) == ["aux/blob"]
        assert load_wshard(path, lanes=["signal"], channels=["*"]).actions == {}

    def test_an_unknown_lane_is_an_error(self, path: Path) -> None:
        with pytest.raises(EntryNotFound, match=r"no lane 'signals'.*did you mean 'signal'"):
            load_wshard(path, lanes=["signals"])

    def test_a_string_is_no_list(self, path: Path) -> None:
        with pytest.raises(InvalidArgument, match=r"channels=\['state'\]"):
            load_wshard(path, channels="state")

    def test_a_part_can_be_saved(self, path: Path, tmp_path: Path) -> None:
        part = load_wshard(path, channels=["state"], lanes=["signal"])
        again = load_wshard(save(part, tmp_path / "b.wshard"))
        assert list(again.observations) == ["state"]
        assert not again.omens


class TestForms:
    """What older and other files look like, beyond the vectors."""

    def test_a_manifest_without_episode_and_other_roles_are_refused(self) -> None:
        with pytest.raises(BadProfile, match="W-ROL-2"):
            load_wshard(hand_made({"signal/x": b"1234"}))

    @pytest.mark.parametrize("text", [b"{}", b"not json", b'{"v":2}', b"[]"])
    def test_a_bad_provenance_does_not_hide_the_recording(
        self, tmp_path: Path, text: bytes
    ) -> None:
        rows = [{"id": "x", "dtype": "u8", "shape": []}]
        entries = {**described(2, rows), "signal/x": b"12", "meta/provenance": text}
        ep = load_wshard(hand_made(entries))
        assert ep.provenance is None
        assert ep.observations["x"].data.tobytes() == b"12"
        assert ShardReader(save(ep, tmp_path / "a.wshard"))["meta/provenance"] == text

    def test_two_rows_with_one_id_lose_nothing(self, tmp_path: Path) -> None:
        row = {"id": "x", "dtype": "u8", "shape": []}
        rows = [{**row, "signal_block": "signal/a"}, {**row, "signal_block": "signal/b"}]
        content = hand_made({**described(2, rows), "signal/a": b"12", "signal/b": b"34"})
        ep = load_wshard(content)
        assert ep.observations["x"].data.tobytes() == b"12"
        other = ep.extras["signal/b"]
        assert isinstance(other, Channel)
        assert other.data.tobytes() == b"34"
        path = save(ep, tmp_path / "a.wshard")
        assert ShardReader(path)["signal/b"] == b"34"

    def test_an_unknown_layout_is_named_when_touched_and_survives_saving(
        self, tmp_path: Path
    ) -> None:
        rows = [
            {"id": "x", "dtype": "u8", "shape": [], "layout": "spiral", "x_turns": 3},
            {"id": "y", "dtype": "u8", "shape": []},
        ]
        entries = {**described(2, rows), "signal/x": b"12345", "signal/y": b"34"}
        ep = load_wshard(hand_made(entries))
        assert ep.observations["y"].data.tobytes() == b"34"
        with pytest.raises(UnknownLayout, match="'spiral'"):
            _ = ep.observations["x"].data
        path = save(ep, tmp_path / "a.wshard")
        assert ShardReader(path)["signal/x"] == b"12345"
        with pytest.raises(UnknownLayout):
            _ = load_wshard(path).observations["x"][0:1]

    def test_a_ragged_block_of_as_many_items_as_steps_and_one_is_not_longer(
        self, tmp_path: Path
    ) -> None:
        ep = Episode("ep", length=3, observations={"words": ["ab", "", "cd"]})
        assert load_wshard(save(ep, tmp_path / "a.wshard")).observations["words"].data == [
            *("ab", "", "cd")
        ]

    def test_channels_may_share_the_clock_of_the_steps(self, tmp_path: Path) -> None:
        row = {"id": "x", "dtype": "u8", "shape": [], "time_block": "time/timestamps_ns"}
        stamps = np.array([5, 7], "<i8").tobytes()
        entries = {**described(2, [row]), "signal/x": b"12", "time/timestamps_ns": stamps}
        ep = load_wshard(hand_made(entries))
        assert ep.times_ns("x").tolist() == [5, 7]
        again = load_wshard(save(ep, tmp_path / "a.wshard"))
        assert again.times_ns("x").tolist() == again.times_ns().tolist() == [5, 7]

    def test_fields_of_loaded_channels_are_their_own(self, tmp_path: Path) -> None:
        ep = load_wshard(save(Episode("e", actions={"a": ramp(2), "b": ramp(2)}), tmp_path / "a"))
        with pytest.raises(TypeError):
            ep.actions["a"].extra["x"] = 1  # type: ignore[index] # read-only
        ep.actions["a"].extra = {"x": 1}
        assert ep.actions["b"].extra == {}
        assert load_wshard(tmp_path / "a").actions["a"].extra == {}

    def test_sizes_that_do_not_fit_are_told_when_touched(self) -> None:
        rows = [{"id": "x", "dtype": "f32", "shape": [2]}, {"id": "y", "dtype": "u8", "shape": []}]
        ep = load_wshard(hand_made({**described(2, rows), "signal/x": b"1234", "signal/y": b"12"}))
        assert ep.observations["y"].data.tobytes() == b"12"
        touches: list[Any] = [
            lambda c: c.data,
            lambda c: c[0],
            lambda c: c[0:1],
            lambda c: c.clone(),
        ]
        for touch in touches:
            with pytest.raises(SizeMismatch, match="W-BLK-1"):
                touch(ep.observations["x"])

    def test_hostile_shapes_do_not_leak_other_errors(self) -> None:
        for row in (
            {"shape": [2**40, 2**40, 0]},
            {"shape": [0], "length": 2**62},
            {"shape": [2**62, 2**62]},
            {"shape": [1] * 31},
        ):
            rows = [{"id": "x", "dtype": "f64", **row}]
            touches: list[Any] = [lambda c: c.data, lambda c: c[0:1], lambda c: c[5]]
            for touch in touches:
                with contextlib.suppress(ShardError):
                    ep = load_wshard(hand_made({**described(2**20, rows), "signal/x": b""}))
                    assert np.asarray(touch(ep.observations["x"])).size == 0
