"""`wshard convert`: exit codes, what it shows before and after, packs."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import numpy as np
import pytest

import shardpack
from tests.shard_format.faults import killed_at
from wshard import Episode, save_wshard
from wshard.convert import ConvertOptions, commit_parts, convert, read, write
from wshard.video import VideoChannel

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Run


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write((episode(number) for number in range(3)), tmp_path / "source", "npz")
    return tmp_path / "source"


def episode(number: int) -> Episode:
    ep = Episode(f"ep_{number}", env_id="Test-v0")
    ep.observations["state"] = np.full((5, 3), number, np.float32)
    ep.actions["ctrl"] = np.zeros((5, 2))
    ep.labels["phase"] = [(0, 5, "reach")]
    return ep


def test_a_broken_episode_is_named_and_the_exit_code_is_3(
    wshard: Run, source: Path, tmp_path: Path
) -> None:
    (source / "ep_1.npz").write_bytes(b"PK")
    result = wshard("convert", str(source), str(tmp_path / "out"), "--jobs", "1")
    assert result.code == 3
    assert "1 episode not converted" in result.out
    assert "ep_1" in result.out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "ep_0.wshard",
        "ep_2.wshard",
    ]


def test_a_misspelt_name_in_a_condition_is_a_warning(
    wshard: Run, source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    result = wshard("convert", str(source), str(out), "--where", "lengte > 3", "--jobs", "1")
    assert (result.code, list(out.iterdir())) == (0, [])
    assert "warning: where: no episode has a field 'lengte'; did you mean 'length'?" in result.err


def test_a_field_that_only_one_part_has_is_not_misspelt(source: Path, tmp_path: Path) -> None:
    for part in (1, 2):
        where = "ep_id == 3" if part == 1 else "lengte > 3"
        report = convert(
            source, tmp_path / "out", options=ConvertOptions(part=(part, 2), where=where)
        )
        assert len(report.warnings) == 1
    assert commit_parts(tmp_path / "out").warnings == []


def test_a_dry_run_shows_what_reading_and_writing_change_and_writes_nothing(
    wshard: Run, tmp_path: Path
) -> None:
    save_wshard(episode(0), tmp_path / "ep_0.wshard")
    target = tmp_path / "out.zarr"
    result = wshard("convert", str(tmp_path / "ep_0.wshard"), str(target), "--dry-run", "--json")
    assert result.code == 0, result.err
    kinds = {row["field"]: row["kind"] for row in result.json["fields"]}
    assert kinds["label/phase"] == "dropped"
    assert [path.name for path in tmp_path.iterdir()] == ["ep_0.wshard"]


def test_a_suggested_mapping_is_written_and_used_for_the_chosen_episodes(
    wshard: Run, tmp_path: Path
) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "data.h5", "w") as file:
        for number in range(4):
            file[f"run_{number}/arm/q"] = np.full((10 + number, 3), number, np.float32)
            file[f"run_{number}/torque"] = np.ones((10 + number, 2))
    source, plan, out = (str(tmp_path / name) for name in ("data.h5", "map.json", "out"))
    assert wshard("convert", source, out).code == 2
    result = wshard("convert", source, plan, "--suggest-map")
    assert result.code == 0, result.err
    chosen = ("--map", plan, "--episodes", "1:4", "--where", "length > 11", "--verify")
    result = wshard("convert", source, out, *chosen, "--jobs", "2", "--json")
    assert result.code == 0, result.err
    assert (result.json["episodes"], result.json["steps"]) == (2, 12 + 13)
    episodes = list(read(out))
    assert [episode.id for episode in episodes] == ["run_2", "run_3"]
    assert [episode.observations["arm/q"].shape for episode in episodes] == [(12, 3), (13, 3)]


def test_cameras_are_kept_decoded_or_encoded_as_you_say(wshard: Run, tmp_path: Path) -> None:
    pytest.importorskip("av")
    ep = episode(0)
    pixels = np.zeros((5, 96, 160, 3), np.uint8) + np.arange(5, dtype=np.uint8)[:, None, None, None]
    ep.observations["raw"] = pixels
    ep.observations["png"] = VideoChannel.encode(
        pixels, "png", name="png", unit="cd", timestamps_ns=np.arange(5) * 7
    )
    save_wshard(ep, tmp_path / "ep_0.wshard")
    kinds = {}
    for video in ("keep", "decode", "encode"):
        out = tmp_path / video
        result = wshard("convert", str(tmp_path / "ep_0.wshard"), str(out), "--video", video)
        assert result.code == 0, result.err
        dry = wshard("convert", str(tmp_path / "ep_0.wshard"), "x", "-n", "--video", video)
        assert (dry.out.count("signal/png"), dry.out.count("signal/raw")) == (
            result.out.count("signal/png"),
            result.out.count("signal/raw"),
        )
        (found,) = read(out)
        channels = [found.observations[name] for name in ("raw", "png")]
        kinds[video] = [isinstance(channel, VideoChannel) for channel in channels]
        assert (channels[1].data == pixels).all()
        assert channels[1].unit == "cd"
        assert np.asarray(channels[1].timestamps_ns).tolist() == [0, 7, 14, 21, 28]
        assert result.out.count("signal/png") == (video == "decode")
    assert kinds == {"keep": [False, True], "decode": [False, False], "encode": [True, True]}


def test_episodes_go_into_a_pack_and_an_interrupted_run_goes_on(
    wshard: Run, source: Path, tmp_path: Path
) -> None:
    good = (source / "ep_2.npz").read_bytes()
    (source / "ep_2.npz").write_bytes(b"PK")
    target = tmp_path / "out.shardpack"
    command = ("convert", str(source), str(target), "--pack", "1G", "--jobs", "1")
    assert wshard(*command, "--on-error", "raise").code == 1
    assert not target.exists()
    (source / "ep_2.npz").write_bytes(good)
    result = wshard(*command, "--resume", "--json")
    assert result.code == 0, result.err
    assert (result.json["episodes"], result.json["skipped"]) == (3, 2)
    with shardpack.open(target) as dataset:
        assert list(dataset.keys()) == ["ep_0", "ep_1", "ep_2"]
    assert wshard(*command).code == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "out.shardpack",
        "out.shardpack.report.json",
        "out.shardpack.report.txt",
        "source",
    ]


def test_parts_of_two_machines_become_the_folder_that_one_machine_makes(
    wshard: Run, source: Path, tmp_path: Path
) -> None:
    one, out = str(tmp_path / "one"), tmp_path / "out"
    assert wshard("convert", str(source), one, "--jobs", "1").code == 0
    part = ("convert", str(source), str(out), "--jobs", "1", "--part")
    assert wshard(*part, "2/2").code == 0
    result = wshard("commit", str(out))
    assert (result.code, "parts are missing" in result.err) == (2, True)
    assert not out.exists()
    assert wshard(*part, "1/2", "--resume").code == 0
    result = wshard("commit", str(out), "--json")
    assert result.code == 0, result.err
    assert result.json["episodes"] == 3
    assert {path.name: path.read_bytes() for path in out.iterdir()} == {
        path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()
    }
    assert not (tmp_path / "out.parts").exists()
    assert wshard("commit", str(out)).code == 3
    for wrong in ("3/2", "0/2", "x/2"):
        assert wshard(*part, wrong).code == 2
    other = ("convert", str(source), str(tmp_path / "out.zarr"), "--part", "1/2")
    assert "in parts" in wshard(*other).err


@pytest.mark.slow
def test_a_commit_of_parts_that_is_killed_at_any_step_can_be_given_again(
    source: Path, tmp_path: Path
) -> None:
    expected = None
    for step in count(1):
        out = tmp_path / f"out_{step}"
        for part in (1, 2):
            convert(source, out, options=ConvertOptions(part=(part, 2)))
        was_killed = killed_at(step, lambda out=out: commit_parts(out))  # type: ignore[misc]
        if was_killed:
            assert commit_parts(out).episodes == 3
        found = {path.name: path.read_bytes() for path in out.iterdir()}
        expected = expected or found
        assert (found, (tmp_path / f"out_{step}.parts").exists()) == (expected, False)
        if not was_killed:
            break
    assert len(expected or ()) == 3
