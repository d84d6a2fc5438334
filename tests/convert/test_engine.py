"""Whole datasets: processes, resuming, checking, reports, and what is left when something goes wrong."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import wshard
from shard_format.errors import BadValue, InvalidArgument, ShardError, ShardIOError
from wshard import Channel, Episode
from wshard.convert import ConvertOptions, convert, read, write
from wshard.convert._engine import _foreign_differences, differences
from wshard.video import VideoChannel

if TYPE_CHECKING:
    from collections.abc import Callable

OWN = "wshard"


def episode(number: int, length: int = 30) -> Episode:
    random = np.random.default_rng(number)
    ep = Episode(f"ep_{number}", env_id="Test-v0")
    ep.observations["state"] = random.normal(size=(length + 1, 4)).astype("f4")
    ep.observations["note"] = [f"step {step}" for step in range(length + 1)]
    ep.actions["ctrl"] = random.normal(size=(length, 2))
    ep.rewards = np.full(length, float(number))
    ep.metadata["success"] = number % 2 == 0
    ep.labels["phase"] = [(0, 10, "reach")]
    return ep


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    for number in range(6):
        wshard.save_wshard(episode(number), folder / f"ep_{number}.wshard")
    return folder


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    position = data.rindex(episode(3).observations["state"].data.tobytes()[:16])
    data[position] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_episode_arrives_as_it_was(source: Path, tmp_path: Path, jobs: int) -> None:
    seen: list[tuple[int, int]] = []
    report = convert(
        source,
        tmp_path / "out",
        OWN,
        options=ConvertOptions(jobs=jobs, verify=True),
        progress=lambda done, total: seen.append((done, total)),
    )
    assert (report.episodes, report.steps, report.failed) == (6, 180, {})
    assert seen[-1] == (6, 6)
    for number in range(6):
        with wshard.load(tmp_path / "out" / f"ep_{number}.wshard") as found:
            assert list(differences(episode(number), found)) == []
    assert json.loads((tmp_path / "out.report.json").read_text())["episodes"] == 6
    assert "6 episodes" in (tmp_path / "out.report.txt").read_text()
    assert sorted(os.listdir(tmp_path)) == ["out", "out.report.json", "out.report.txt", "source"]


def test_a_range_and_a_condition_choose_episodes(source: Path, tmp_path: Path) -> None:
    options = ConvertOptions(episodes=slice(1, 6), where="success and return > 100")
    report = convert(source, tmp_path / "out", OWN, options=options)
    assert report.episodes == 1
    assert os.listdir(tmp_path / "out") == ["ep_4.wshard"]


def test_the_report_shows_which_block_each_field_became(tmp_path: Path) -> None:
    (folder := tmp_path / "runs").mkdir()
    for number in range(2):
        named: dict[str, Any] = {
            f"observations/{name}": np.zeros((3, 2)) for name in "abc"[: 2 + number]
        }
        np.savez(folder / f"{number}.npz", **named, acts=np.zeros((2, 1)), phase=np.zeros(2))
    report = convert(folder, tmp_path / "out")
    text = (tmp_path / "out.report.txt").read_text()
    assert text.split("fields:\n")[1].splitlines() == [
        "  observations/* (2 fields) -> signal/*",
        "  acts                      -> action/action",
        "  phase                     -> signal/phase",
        "  observations/c            -> signal/c (1 episode)",
    ]
    kinds = {row["field"]: row["kind"] for row in report.as_json()["changes"]}
    assert kinds == dict.fromkeys((*(f"observations/{c}" for c in "abc"), "acts", "phase"), "kept")


@pytest.mark.parametrize(("jobs", "to"), [(1, OWN), (2, OWN), (1, "npz")])
def test_a_condition_on_a_field_that_no_episode_has_is_a_warning(
    source: Path, tmp_path: Path, jobs: int, to: str
) -> None:
    options = ConvertOptions(jobs=jobs, where="sucksess or lengte > 3")
    report = convert(source, tmp_path / "out", OWN, to, options=options)
    assert report.episodes == 0
    assert report.warnings == [
        "where: no episode has a field 'lengte'; did you mean 'length'?",
        "where: no episode has a field 'sucksess'; did you mean 'success'?",
    ]
    assert f"warning: {report.warnings[0]}" in (tmp_path / "out.report.txt").read_text()
    assert json.loads((tmp_path / "out.report.json").read_text())["warnings"] == report.warnings
    fine = convert(source, tmp_path / "fine", OWN, to, options=ConvertOptions(where="length > 99"))
    assert fine.warnings == []


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_damaged_episode_is_named_and_the_others_are_converted(
    source: Path, tmp_path: Path, jobs: int
) -> None:
    damage(source / "ep_3.wshard")
    options = ConvertOptions(jobs=jobs, on_error="skip")
    report = convert(source, tmp_path / "out", OWN, options=options)
    assert report.episodes == 5
    assert list(report.failed) == ["ep_3"]
    assert "signal/state" in report.failed["ep_3"]
    assert not (tmp_path / "out" / "ep_3.wshard").exists()


def test_an_error_leaves_no_target_and_can_be_resumed(source: Path, tmp_path: Path) -> None:
    good = (source / "ep_3.wshard").read_bytes()
    stamp = os.stat(source).st_mtime_ns
    damage(source / "ep_3.wshard")
    with pytest.raises(ShardError, match="ep_3"):
        convert(source, tmp_path / "out", OWN)
    assert not (tmp_path / "out").exists()
    with pytest.raises(FileExistsError, match="resume"):
        convert(source, tmp_path / "out", OWN)
    (source / "ep_3.wshard").write_bytes(good)
    os.utime(source, ns=(stamp, stamp))
    report = convert(source, tmp_path / "out", OWN, options=ConvertOptions(resume=True))
    assert (report.episodes, report.skipped) == (6, 3)
    assert len(os.listdir(tmp_path / "out")) == 6
    assert not (tmp_path / "out.converting").exists()


def test_another_conversion_is_not_resumed(source: Path, tmp_path: Path) -> None:
    damage(source / "ep_3.wshard")
    with pytest.raises(ShardError):
        convert(source, tmp_path / "out", OWN)
    options = ConvertOptions(resume=True, compression="zstd")
    with pytest.raises(InvalidArgument, match="a different one"):
        convert(source, tmp_path / "out", OWN, options=options)


KILLED = """
import os, sys, signal
from wshard.convert import ConvertOptions, convert
def progress(done, total):
    if done == 3:
        os.kill(os.getpid(), signal.SIGKILL)
if __name__ == "__main__":
    options = ConvertOptions(jobs=int(sys.argv[3]), resume=True)
    convert(sys.argv[1], sys.argv[2], "wshard", sys.argv[4], options=options, progress=progress)
"""


@pytest.mark.parametrize(("jobs", "to"), [(1, "wshard"), (2, "wshard"), (1, "npz")])
def test_a_killed_conversion_goes_on_without_repeating_what_was_done(
    source: Path, tmp_path: Path, jobs: int, to: str
) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    done = subprocess.run(
        [sys.executable, script, source, tmp_path / "out", str(jobs), to], check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    options = ConvertOptions(resume=True, verify=True)
    report = convert(source, tmp_path / "out", OWN, to, options=options)
    assert (report.episodes, report.skipped) == (6, 3)
    assert [ep.id for ep in read(tmp_path / "out", to)] == [f"ep_{n}" for n in range(6)]
    assert not (tmp_path / "out.converting").exists()


def test_a_kill_after_the_switch_loses_neither_target_nor_report(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out"
    target.mkdir()
    (target / "ep_0.wshard").write_bytes(b"old")

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("wshard.convert.ConversionReport.save", stop)
        with pytest.raises(KeyboardInterrupt):
            convert(source, target, OWN, options=ConvertOptions(overwrite=True))
    assert len(os.listdir(target)) == 6
    report = convert(source, target, OWN, options=ConvertOptions(resume=True))
    assert (report.episodes, report.steps) == (6, 180)
    assert sorted(os.listdir(tmp_path)) == ["out", "out.report.json", "out.report.txt", "source"]


def test_what_is_resumed_with_another_range_holds_only_that_range(
    source: Path, tmp_path: Path
) -> None:
    damage(source / "ep_3.wshard")
    with pytest.raises(ShardError):
        convert(source, tmp_path / "out", OWN)
    (tmp_path / "out.converting" / "episodes" / ".ep_3.wshard.0123456789ab.partial").touch()
    options = ConvertOptions(resume=True, episodes=slice(1, 3))
    report = convert(source, tmp_path / "out", OWN, options=options)
    assert (report.episodes, report.skipped) == (2, 2)
    assert sorted(os.listdir(tmp_path / "out")) == ["ep_1.wshard", "ep_2.wshard"]


def test_one_process_at_a_time_writes_to_a_target(source: Path, tmp_path: Path) -> None:
    refused: list[str] = []

    def progress(_done: int, _total: int) -> None:
        if not refused:
            with pytest.raises(ShardIOError) as error:
                convert(source, tmp_path / "out", OWN, "npz")
            refused.append(str(error.value))

    convert(source, tmp_path / "out", OWN, progress=progress)
    assert "another process writes to this target" in refused[0]
    assert len(os.listdir(tmp_path / "out")) == 6


def test_a_folder_of_the_user_is_not_taken_for_the_work_folder(
    source: Path, tmp_path: Path
) -> None:
    (tmp_path / "out.converting").mkdir()
    (tmp_path / "out.converting" / "precious").write_text("x")
    with pytest.raises(FileExistsError, match="something else"):
        convert(source, tmp_path / "out", OWN)
    assert os.listdir(tmp_path / "out.converting") == ["precious"]


@pytest.mark.parametrize("how", ["interrupt", "kill"])
def test_processes_end_at_an_interrupt_or_when_one_of_them_is_killed(
    source: Path, tmp_path: Path, how: str
) -> None:
    def progress(done: int, _total: int) -> None:
        if done == 1 and how == "interrupt":
            raise KeyboardInterrupt
        if done == 1:
            os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)

    for number in range(6, 20):  # more than are handed out before the first is done
        wshard.save_wshard(episode(number), source / f"ep_{number}.wshard")
    expected = KeyboardInterrupt if how == "interrupt" else ShardIOError
    with pytest.raises(expected):
        convert(source, tmp_path / "out", OWN, options=ConvertOptions(jobs=2), progress=progress)
    assert multiprocessing.active_children() == []
    report = convert(source, tmp_path / "out", OWN, options=ConvertOptions(resume=True))
    assert report.episodes == 20
    assert report.skipped >= 1


def test_a_dataset_that_does_not_verify_replaces_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert(source, tmp_path / "out", OWN, "npz", options=ConvertOptions(episodes=slice(0, 1)))
    monkeypatch.setattr("wshard.convert._engine.differences", lambda *_, **__: iter(["it differs"]))
    options = ConvertOptions(overwrite=True, verify=True)
    with pytest.raises(BadValue, match="it differs"):
        convert(source, tmp_path / "out", OWN, "npz", options=options)
    assert [ep.id for ep in read(tmp_path / "out", "npz")] == ["ep_0"]
    assert not (tmp_path / "out.converting").exists()


def test_the_report_names_files_that_belong_to_no_episode(source: Path, tmp_path: Path) -> None:
    (source / "README.md").write_text("important")
    report = convert(source, tmp_path / "out", OWN)
    assert "README.md" in [change.field for change, _ in report.of_kind("dropped")]
    assert "README.md" in (tmp_path / "out.report.txt").read_text()


def test_cameras_can_be_encoded(tmp_path: Path) -> None:
    pytest.importorskip("av")
    ep = Episode("ep", length=20)
    ep.observations["rgb"] = (
        np.arange(20, dtype=np.uint8).repeat(64 * 64 * 3).reshape(20, 64, 64, 3)
    )
    ep.observations["depth"] = np.ones((20, 64, 64), np.uint16)
    (tmp_path / "source").mkdir()
    wshard.save_wshard(ep, tmp_path / "source" / "ep.wshard")
    options = ConvertOptions(video="encode", verify=True)
    report = convert(tmp_path / "source", tmp_path / "out", OWN, options=options)
    assert [change.field for change, _ in report.of_kind("decoded")] == ["signal/rgb"]
    with wshard.load(tmp_path / "out" / "ep.wshard") as found:
        layouts = {name: channel.layout for name, channel in found.observations.items()}
    assert layouts == {"rgb": "video", "depth": "dense"}


def test_verifying_notices_a_file_that_differs(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save: Callable[..., None] = wshard.save_wshard

    def save_wrongly(ep: Episode, *args: object, **options: object) -> None:
        ep.actions["ctrl"] = ep.actions["ctrl"].data + 1
        save(ep, *args, **options)
        ep.actions["ctrl"] = ep.actions["ctrl"].data - 1

    monkeypatch.setattr("wshard.convert._engine.save_wshard", save_wrongly)
    with pytest.raises(BadValue, match="action/ctrl has other values"):
        convert(source, tmp_path / "out", OWN, options=ConvertOptions(verify=True))


FIXTURES = Path(__file__).parent / "fixtures"
TARGETS = ["minari", "lerobot", "rlds", "robomimic", "mcap", "dreamer", "zarr", "npz", "table"]
SUFFIXES = {"robomimic": ".hdf5", "table": ".parquet"}


@pytest.fixture(params=["rlds", "lerobot", "dreamer"])
def foreign(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A dataset with pictures or video, text, large integers, extras and, but for LeRobot, one more observation."""
    source = tmp_path / "source"
    if request.param == "rlds":
        return FIXTURES / "rlds" / "demo" / "1.0.0"
    if request.param == "lerobot":
        shutil.unpack_archive(FIXTURES / "lerobot_v3.zip", source)
        return source
    ep = Episode("ep", length=5)
    ep.observations["image"] = np.arange(6 * 64, dtype=np.uint8).reshape(6, 8, 8, 1)
    ep.actions["action"] = np.ones((5, 2), np.float32)
    last = Channel(data=np.ones((1, 2), np.float32))
    last.has_stated_length = True
    ep.extras["dreamer/action"] = last
    write([ep], source, "dreamer")
    return source


@pytest.mark.parametrize("to", TARGETS)
def test_what_any_format_gave_is_verified_in_every_other_and_comes_back(
    foreign: Path, tmp_path: Path, to: str
) -> None:
    target = tmp_path / f"out{SUFFIXES.get(to, '')}"
    report = convert(foreign, target, to=to, options=ConvertOptions(verify=True))
    back = convert(target, tmp_path / "back", to, options=ConvertOptions(verify=True))
    assert (back.episodes, back.steps) == (report.episodes, report.steps)


def test_an_episode_without_steps_that_lerobot_leaves_out_is_not_counted(tmp_path: Path) -> None:
    source = tmp_path / "source"
    write((episode(number, length) for number, length in enumerate((12, 0, 15))), source, OWN)
    report = convert(source, tmp_path / "out", to="lerobot", options=ConvertOptions(verify=True))
    assert (report.episodes, report.steps) == (2, 27)
    assert "episode" in {change.field for change, _ in report.of_kind("dropped")}
    assert [ep.length for ep in read(tmp_path / "out")] == [12, 15]


def test_verifying_compares_pixels_however_they_are_stored() -> None:
    pytest.importorskip("av")
    pixels = np.zeros((31, 8, 8, 3), np.uint8)
    one, other = episode(0), episode(0)
    one.observations["camera"] = VideoChannel.encode(pixels, "png", name="camera")
    other.observations["camera"] = pixels[:30]
    other.observations["note"] = one.observations["note"].data[:30]
    cut = {"signal/camera", "signal/note"}
    assert list(_foreign_differences(one, other, set(), cut)) == []
    problems = " ".join(_foreign_differences(one, other, set(), set()))
    assert "signal/camera has 30 entries instead of 31" in problems
    assert "signal/note has 200 bytes instead of 207" in problems
    wrong = pixels[:30].copy()
    wrong[29, 7, 7, 2] = 1
    other.observations["camera"] = wrong
    other.observations["note"] = [*one.observations["note"].data[:29], "another"]
    assert sorted(_foreign_differences(one, other, set(), cut)) == [
        "signal/camera has other values",
        "signal/note has other values",
    ]


def test_one_episode_becomes_one_file(source: Path, tmp_path: Path) -> None:
    report = convert(source / "ep_2.wshard", tmp_path / "one.wshard", OWN)
    assert report.episodes == 1
    assert wshard.load(tmp_path / "one.wshard").id == "ep_2"
    with pytest.raises(InvalidArgument, match="one file"):
        convert(source, tmp_path / "all.wshard", OWN)


def test_what_is_there_is_replaced_only_if_asked(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()
    (target / "precious").write_text("x")
    with pytest.raises(FileExistsError):
        convert(source, target, OWN)
    with pytest.raises(FileExistsError):
        write(read(source, OWN), target, OWN)
    assert (target / "precious").exists()
    convert(source, target, OWN, options=ConvertOptions(overwrite=True))
    assert len(os.listdir(target)) == 6


@pytest.mark.parametrize("to", ["wshard", "npz", "lerobot"])
def test_what_is_there_stays_if_no_episode_can_be_converted(
    source: Path, tmp_path: Path, to: str
) -> None:
    for file in source.iterdir():
        file.write_bytes(b"SHRD")
    target = tmp_path / "out"
    target.mkdir()
    (target / "precious").write_text("x")
    options = ConvertOptions(overwrite=True, on_error="skip")
    report = convert(source, target, OWN, to, options=options)
    assert (report.episodes, len(report.failed)) == (0, 6)
    assert os.listdir(target) == ["precious"]
    assert sorted(os.listdir(tmp_path)) == ["out", "out.report.json", "out.report.txt", "source"]


def test_an_error_while_writing_leaves_what_was_there(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()
    (target / "precious").write_text("x")
    damage(source / "ep_3.wshard")
    with pytest.raises(ShardError):
        write(read(source, OWN), target, OWN, overwrite=True)
    assert os.listdir(target) == ["precious"]
    assert sorted(os.listdir(tmp_path)) == ["out", "source"]


def test_reading_can_leave_out_what_is_damaged(
    source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (source / "ep_3.wshard").write_bytes(b"SHRD")
    assert [ep.id for ep in read(source, OWN, on_error="skip")] == [
        f"ep_{n}" for n in (0, 1, 2, 4, 5)
    ]
    assert "ep_3" in caplog.text


@pytest.mark.parametrize("name", ["dreamer", "mcap", "minari", "npz", "robomimic", "table"])
def test_sparse_rewards_of_64_bits_keep_their_type_there_and_back(
    name: str, tmp_path: Path
) -> None:
    suffix = SUFFIXES.get(name, "")
    episode = Episode("episode_0", env_id="X-v1", length=3)
    episode.observations["x"] = np.arange(8.0).reshape(4, 2)
    episode.actions["action"] = np.zeros((3, 2), np.float32)
    # 32 bits can hold them, and a file of ours needs no more.
    episode.rewards = np.array([0.0, 0.0, 1.0])
    episode.terminations = np.array([False, False, True])
    episode.truncations = np.zeros(3, bool)
    paths = [tmp_path / f"first{suffix}", tmp_path / "ours", tmp_path / f"second{suffix}"]
    write([episode], paths[0], name)
    write(read(paths[0], name), paths[1], "wshard")
    write(read(paths[1]), paths[2], name)
    for path in paths:
        (found,) = read(path)
        assert found.rewards is not None
        assert found.rewards.dtype == np.float64
        assert found.rewards.data.tolist() == [0, 0, 1]


@pytest.mark.parametrize("form", ["minari", "zarr", "npz", "dreamer", "table"])
def test_files_that_belong_to_no_episode_are_noted(tmp_path: Path, form: str) -> None:
    needed = {"minari": "h5py", "zarr": "zarr", "table": "pyarrow"}
    pytest.importorskip(needed.get(form, "numpy"))
    ep = Episode("ep", length=2)
    ep.actions["action"] = np.ones((2, 1))
    folder = tmp_path / f"dataset.{form}"
    write([ep], folder, form)
    (clean,) = read(folder, form)
    assert "README.md" not in {change.field for change in clean.lost}
    (folder / "README.md").write_text("How this was recorded.")
    (found,) = read(folder, form)
    assert "README.md" in {change.field for change in found.lost}


def test_a_recording_that_was_not_finished_is_noted(source: Path) -> None:
    for name in ("lost.wshard.partial", "ep_0.wshard.partial", "ep_0.wshard.overview"):
        (source / name).write_bytes(b"")
    first = next(read(source, OWN))
    assert [change.field for change in first.lost] == ["lost.wshard.partial"]
