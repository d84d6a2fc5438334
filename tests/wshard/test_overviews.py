"""Overviews of long channels and posters of cameras: what they hold, and when they are believed."""

from __future__ import annotations

import functools
import http.server
import importlib
import io
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shard_format.errors import InvalidArgument, MissingExtra, ShardError
from tests.wshard.recording_support import record, recorder
from tests.wshard.test_remote_episodes import RangeHandler
from wshard import Channel, Episode, Timebase, add_lane, edit, load_wshard, save_wshard
from wshard.doctor import examine
from wshard.editing import fingerprint, slice_episode
from wshard.overviews import OverviewFile, open_overviews, write_overviews
from wshard.types import DType, FileOptions

if TYPE_CHECKING:
    from numpy.typing import NDArray

VECTORS = Path(__file__).parents[2] / "spec" / "vectors" / "valid_overviews"
LONG = 20_000
BUCKET = 5
RNG = np.random.default_rng(20)


def opened(source: str | Path | Episode) -> OverviewFile:
    found = open_overviews(source)
    assert found is not None
    return found


def long_episode() -> Episode:
    ep = Episode("ep", env_id="Test-v0", timebase=Timebase(tick_hz=1000.0))
    ep.observations["joints"] = RNG.normal(size=(LONG + 1, 3)).astype(np.float32)
    ep.actions["ctrl"] = RNG.normal(size=(LONG, 2))
    ep.rewards = np.arange(LONG, dtype=np.float32)
    return ep


def with_camera(frames: int = 100, height: int = 24, width: int = 32) -> Episode:
    ep = Episode("ep")
    pixels = np.zeros((frames, height, width, 3), np.uint8)
    pixels[..., 0] = np.arange(frames)[:, None, None] * 2
    ep.observations["rgb"] = Channel("rgb", data=pixels, modality="rgb")
    return ep


def buckets_of(values: NDArray[Any]) -> list[NDArray[Any]]:
    """The entries of each bucket, one value a step."""
    count = max(1, -(-len(values) // 4096))
    return [values[start : start + count] for start in range(0, len(values), count)]


@pytest.mark.parametrize("dtype", [one for one in DType if one is not DType.BFLOAT16])
def test_every_bucket_has_the_minimum_the_maximum_and_the_mean_of_its_entries(
    dtype: DType, tmp_path: Path
) -> None:
    values: NDArray[Any] = RNG.integers(0, 2, LONG + 3)
    if dtype is not DType.BOOL:
        kind = dtype.numpy_dtype
        low, high = (-1000, 1000) if dtype.is_float else (np.iinfo(kind).min, np.iinfo(kind).max)
        values = RNG.integers(low, high, LONG + 3, dtype=np.int64 if low < 0 else np.uint64)
    data = values.astype(dtype.numpy_dtype)
    ep = Episode("ep", length=LONG + 2)
    ep.observations["x"] = data
    save_wshard(ep, tmp_path / "ep.wshard", overview=True, fsync=False)
    with opened(tmp_path / "ep.wshard") as overviews:
        found = overviews["signal/x"]
    assert found.steps_per_bucket == BUCKET
    assert found.minimum.dtype == found.maximum.dtype == data.dtype
    parts = buckets_of(data)
    assert found.minimum.tolist() == [part.min().item() for part in parts]
    assert found.maximum.tolist() == [part.max().item() for part in parts]
    means = [part.astype(np.float64).mean() for part in parts]
    assert np.allclose(found.mean, means, rtol=1e-6, atol=1e-3)


def test_nan_does_not_count_unless_a_bucket_has_nothing_else(tmp_path: Path) -> None:
    ep = Episode("ep")
    data = np.ones(LONG, np.float32)
    data[0] = np.nan
    data[1] = np.inf
    data[5:10] = np.nan
    data[10] = -np.inf
    ep.observations["x"] = data
    save_wshard(ep, tmp_path / "ep.wshard", overview=True, fsync=False)
    with opened(tmp_path / "ep.wshard") as overviews:
        found = overviews["signal/x"]
    assert found.minimum[[0, 2, 3]].tolist() == [1, -np.inf, 1]
    assert found.maximum[[0, 2, 3]].tolist() == [np.inf, 1, 1]
    assert found.mean[[0, 2, 3]].tolist() == [np.inf, -np.inf, 1]
    assert np.isnan([found.minimum[1], found.maximum[1], found.mean[1]]).all()
    assert not examine(tmp_path / "ep.wshard").errors


def test_no_spike_is_lost_however_the_channel_is_stored(tmp_path: Path) -> None:
    ep = long_episode()
    for compression in ("none", "zstd", "auto"):
        path = tmp_path / f"{compression}.wshard"
        save_wshard(ep, path, compression, overview=True, fsync=False)
        with opened(path) as overviews:
            joints, ctrl = overviews["signal/joints"], overviews["action/ctrl"]
            assert joints.maximum.shape == (4001, 3)
            assert (joints.maximum.max(axis=0) == ep.observations["joints"].data.max(axis=0)).all()
            assert (ctrl.minimum.min(axis=0) == ep.actions["ctrl"].data.min(axis=0)).all()
            assert overviews["reward"].minimum[1] == 5


def test_the_times_of_buckets_come_from_the_overview_of_their_clock(tmp_path: Path) -> None:
    ep = Episode("ep", length=10, timebase=Timebase(tick_hz=1.0))
    times = np.arange(LONG) * 1000 + 7
    ep.observations["imu"] = Channel(data=np.zeros(LONG, np.float32), timestamps_ns=times)
    save_wshard(ep, tmp_path / "ep.wshard", overview=True, fsync=False)
    with opened(tmp_path / "ep.wshard") as overviews:
        clock = overviews["time/signal/imu"]
        assert (clock.minimum == times[::BUCKET]).all()


def test_short_and_wide_channels_have_none(tmp_path: Path) -> None:
    ep = Episode("ep")
    ep.observations["wide"] = np.zeros((LONG, 257), np.uint8)
    ep.observations["said"] = ["x"] * LONG
    path = tmp_path / "ep.wshard"
    save_wshard(long_episode(), path, overview=True, fsync=False)
    save_wshard(ep, path, overview=True, fsync=False)
    assert open_overviews(path) is None
    assert os.listdir(tmp_path) == ["ep.wshard"]


def test_an_episode_of_the_longest_name_has_none(tmp_path: Path) -> None:
    path = tmp_path / f"{'x' * 248}.wshard"
    save_wshard(Episode("ep"), path, fsync=False)
    assert open_overviews(path) is None
    with load_wshard(path.read_bytes()) as ep:
        assert open_overviews(ep) is None


# --- what an overview is bound to


def test_the_episode_does_not_change(tmp_path: Path) -> None:
    path = tmp_path / "ep.wshard"
    save_wshard(long_episode(), path, options=FileOptions(identity=True), fsync=False)
    before = path.read_bytes()
    assert write_overviews(path) == f"{path}.overview"
    assert path.read_bytes() == before


def test_what_keeps_a_channel_keeps_its_overview(tmp_path: Path) -> None:
    path = tmp_path / "ep.wshard"
    save_wshard(long_episode(), path, overview=True, fsync=False)
    edit(path, metadata={"note": "new"})
    with load_wshard(path) as ep:
        save_wshard(ep, path, "zstd", fsync=False)
    with opened(path) as overviews:
        assert overviews.stale == []
        assert len(overviews) == 3


def test_a_channel_that_was_changed_has_no_overview_and_the_doctor_says_so(tmp_path: Path) -> None:
    path = tmp_path / "ep.wshard"
    save_wshard(long_episode(), path, overview=True, fsync=False)
    with load_wshard(path) as ep:
        changed = ep.actions["ctrl"].data.copy()
        changed[3] = 1000
        ep.actions["ctrl"].data = changed
        with opened(ep) as overviews:  # what is in memory is not what the file holds
            assert overviews.stale == ["action/ctrl"]
        save_wshard(ep, path, fsync=False)
    with opened(path) as overviews:
        assert overviews.stale == ["action/ctrl"]
        assert sorted(overviews) == ["reward", "signal/joints"]
        with pytest.raises(KeyError, match="no overview of 'action/ctrl'"):
            _ = overviews["action/ctrl"]
    notes = [f for f in examine(path).findings if f.code == "stale_overview"]
    assert [(f.entry, f.severity) for f in notes] == [("action/ctrl", "note")]


def test_parts_of_an_episode_have_no_overviews(tmp_path: Path) -> None:
    path = tmp_path / "ep.wshard"
    save_wshard(long_episode(), path, overview=True, fsync=False)
    with load_wshard(path) as ep:
        assert open_overviews(slice_episode(ep, 0, 100)) is None
        part = slice_episode(ep, 0, 100)
        save_wshard(part, tmp_path / "part.wshard", fsync=False)
    assert open_overviews(tmp_path / "part.wshard") is None


def test_lanes_of_sidecars_have_overviews_too(tmp_path: Path) -> None:
    path = tmp_path / "ep.wshard"
    save_wshard(long_episode(), path, fsync=False)
    add_lane(path, "omen/joints/m", np.zeros((LONG + 1, 3), np.float32))
    write_overviews(path)
    with opened(path) as overviews:
        assert "omen/joints/m" in overviews
    with load_wshard(path) as ep:
        assert ep.origin is not None
        before = fingerprint(ep.origin.reader)
    write_overviews(path)
    with load_wshard(path) as ep:
        assert ep.origin is not None
        assert fingerprint(ep.origin.reader) == before


def test_an_overview_of_another_episode_is_not_believed(tmp_path: Path) -> None:
    save_wshard(long_episode(), tmp_path / "a.wshard", overview=True, fsync=False)
    save_wshard(long_episode(), tmp_path / "b.wshard", fsync=False)
    (tmp_path / "a.wshard.overview").rename(tmp_path / "b.wshard.overview")
    with opened(tmp_path / "b.wshard") as overviews:
        assert sorted(overviews) == ["reward"]  # which both have
        assert overviews.stale == ["action/ctrl", "signal/joints"]


def test_every_cut_of_an_overview_file_is_an_error_and_never_a_wrong_picture(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ep.wshard"
    ep = Episode("ep")
    ep.observations["x"] = np.arange(LONG, dtype=np.float32)
    save_wshard(ep, path, overview=True, fsync=False)
    whole = Path(f"{path}.overview").read_bytes()
    for size in (0, 10, 64, 200, 1000, len(whole) - 1):
        Path(f"{path}.overview").write_bytes(whole[:size])
        with pytest.raises(ShardError, match=r"ep\.wshard\.overview"):
            open_overviews(path)
        load_wshard(path).close()
    damaged = bytearray(whole)
    damaged[-9] ^= 1
    Path(f"{path}.overview").write_bytes(damaged)
    with opened(path) as overviews, pytest.raises(ShardError, match="CRC-32C"):
        _ = overviews["signal/x"]


def test_damage_of_any_byte_is_an_error_or_changes_nothing_that_is_read(tmp_path: Path) -> None:
    for name in ("ep.wshard", "ep.wshard.overview"):
        (tmp_path / name).write_bytes((VECTORS / "overview_own_clock" / name).read_bytes())

    def read() -> dict[str, list[bytes]]:
        with opened(tmp_path / "ep.wshard") as overviews:
            found = ((block, overviews[block]) for block in overviews)
            return {
                block: [array.tobytes() for array in (one.minimum, one.maximum, one.mean)]
                for block, one in found
            }

    whole = (tmp_path / "ep.wshard.overview").read_bytes()
    true, refused = read(), 0
    assert len(true) == 4
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        (tmp_path / "ep.wshard.overview").write_bytes(damaged)
        try:
            found = read()
        except ShardError:
            refused += 1
        else:
            assert found.items() <= true.items()
    assert refused > len(whole) / 2


# --- posters


def test_a_camera_has_a_poster_and_64_small_images(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    path = tmp_path / "ep.wshard"
    save_wshard(with_camera(100, 480, 1280), path, "zstd", overview=True, fsync=False)
    with opened(path) as overviews:
        poster, *small = overviews.posters
        assert (poster.step, poster.width, poster.height) == (0, 640, 240)
        assert {(one.width, one.height) for one in small} == {(160, 60)}
        assert len(small) == 64
        assert [small[0].step, small[-1].step] == [0, 99]
        pixels = np.asarray(image.open(io.BytesIO(overviews.read_poster(small[-1]))))
        assert abs(int(pixels[30, 80, 0]) - 198) < 5
        assert len(overviews) == 0
    assert os.stat(f"{path}.overview").st_size < 200_000


def test_several_cameras_share_the_small_images(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    ep = with_camera(40)
    ep.observations["wrist"] = np.zeros((40, 16, 16), np.uint8)
    ep.observations["depth"] = Channel(data=np.zeros((40, 16, 16), np.uint16), modality="depth")
    save_wshard(ep, tmp_path / "ep.wshard", overview=True, fsync=False)
    with opened(tmp_path / "ep.wshard") as overviews:
        blocks = [poster.block for poster in overviews.posters]
    assert blocks.count("signal/rgb") == blocks.count("signal/wrist") == 33
    assert "signal/depth" not in blocks


def test_without_pillow_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, package: str | None = None) -> Any:  # noqa: ANN401 - a module
        if name.startswith("PIL"):
            raise ImportError(name)
        return real(name, package)

    real = importlib.import_module
    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(MissingExtra, match=r"shard-format\[images\]"):
        save_wshard(with_camera(), tmp_path / "ep.wshard", overview=True)
    with pytest.raises(MissingExtra, match=r"shard-format\[images\]"):
        recorder(tmp_path / "rec.wshard", overview=True)
    assert os.listdir(tmp_path) == []
    save_wshard(long_episode(), tmp_path / "ep.wshard", overview=True, fsync=False)


# --- recordings, chunks, URLs


def test_a_recorder_writes_them_when_the_episode_is_complete(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    writer = recorder(tmp_path / "ep.wshard", overview=True)
    record(writer, 0, 10)
    writer.end_episode()
    assert sorted(os.listdir(tmp_path)) == ["ep.wshard", "ep.wshard.overview"]
    with opened(tmp_path / "ep.wshard") as overviews:
        assert len(overviews.posters) == 11


def test_each_chunk_of_a_recording_has_its_own(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    writer = recorder(tmp_path / "ep.wshard", overview=True, max_steps_per_file=4)
    record(writer, 0, 10)
    writer.end_episode()
    for number in range(3):
        with opened(tmp_path / f"ep_chunk_{number:04}.wshard") as overviews:
            assert overviews.stale == []
    with load_wshard(tmp_path / "ep_manifest.wshard") as ep:
        assert open_overviews(ep) is None
    with pytest.raises(InvalidArgument, match="chunks"):
        write_overviews(tmp_path / "ep_manifest.wshard")


def test_an_aborted_recording_leaves_none(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    writer = recorder(tmp_path / "ep.wshard", overview=True, max_steps_per_file=4)
    record(writer, 0, 10)
    writer.abort()
    assert os.listdir(tmp_path) == []


def test_a_recording_is_complete_although_its_overviews_fail(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("PIL")
    (tmp_path / "ep.wshard.overview").mkdir()
    writer = recorder(tmp_path / "ep.wshard", overview=True)
    record(writer, 0, 10)
    writer.end_episode()
    assert sorted(os.listdir(tmp_path)) == ["ep.wshard", "ep.wshard.overview"]
    assert load_wshard(tmp_path / "ep.wshard").length == 10
    assert "no overview of" in caplog.text


def test_they_are_read_through_a_url(tmp_path: Path) -> None:
    save_wshard(long_episode(), tmp_path / "ep.wshard", overview=True, fsync=False)
    save_wshard(long_episode(), tmp_path / "bare.wshard", fsync=False)
    handler = functools.partial(RangeHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            address = f"http://127.0.0.1:{server.server_port}"
            with opened(f"{address}/ep.wshard?version=1") as overviews:
                assert overviews["reward"].minimum[1] == 5
            assert open_overviews(f"{address}/bare.wshard") is None
        finally:
            server.shutdown()
            thread.join()
