"""Zarr in the layout of diffusion policy, in and out, with zarr itself on the other side."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shard_format.errors import (
    BadMetadata,
    BadValue,
    InvalidArgument,
    LimitExceeded,
    ShardError,
    SizeMismatch,
    UnsafePath,
)
from wshard import Channel, Episode, convert, load_wshard, save_wshard
from wshard.convert._zarr_store import DescribedFiles
from wshard.types import Modality, RaggedChannel

if TYPE_CHECKING:
    from pathlib import Path

zarr = pytest.importorskip("zarr")

ENDS = (7, 7, 20)


def values() -> dict[str, Any]:
    random = np.random.default_rng(0)
    return {
        "data/action": random.random((20, 2)).astype(np.float32),
        "data/img": random.integers(0, 256, (20, 9, 8, 3)).astype(np.uint8),
        "data/state": random.random((20, 5)),
        "data/big_endian": random.integers(0, 1000, (20, 2)).astype(">i4"),
        "data/reward": random.random(20),
        "data/robot0/eef": random.random((20, 3)).astype(np.float16),
        "data/is_open": random.random(20) > 0.5,
        "meta/seed": np.arange(3, dtype=np.int32),
        "meta/gains": np.array([0.5, 1.5], np.float32),
    }


_made: dict[int, Path] = {}


@pytest.fixture(autouse=True, scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    for form in (2, 3):
        _made[form] = write(tmp_path_factory.mktemp("made") / "a.zarr", form)


def make(path: Path, form: int) -> Path:
    shutil.copytree(_made[form], path)
    return path


def write(path: Path, form: int) -> Path:
    root = zarr.open_group(path, mode="w", zarr_format=form)
    for name, array in values().items():
        rows = min(6, len(array))
        root.create_array(name, data=array, chunks=(rows, *array.shape[1:]))
    text = root.create_array("data/prompt", shape=(20,), chunks=(6,), dtype=str)
    text[:] = np.array([f"é{t}" for t in range(20)], object)
    root.create_array("meta/episode_ends", data=np.array(ENDS))
    root.attrs["robot"] = "ur5"
    root["data/state"].attrs["unit"] = "m"
    return path


def packed(folder: Path) -> Path:
    path = folder.with_suffix(".zarr.zip")
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                archive.write(file, file.relative_to(folder))
    return path


def contents(path: Path) -> dict[str, Any]:
    """Every array of a store, as zarr reads it."""
    store = zarr.storage.ZipStore(path, mode="r") if path.is_file() else path
    root = zarr.open_group(store, mode="r")
    found = {}
    for group in ("data", "meta"):
        for name, array in root[group].members(max_depth=None):
            if hasattr(array, "dtype"):
                found[f"{group}/{name}"] = array[...]
    return found


@pytest.mark.parametrize("is_zip", [False, True])
@pytest.mark.parametrize("form", [2, 3])
def test_a_replay_buffer_is_read_and_comes_back_as_it_was(
    tmp_path: Path, form: int, is_zip: bool
) -> None:
    path = make(tmp_path / "a.zarr", form)
    source = packed(path) if is_zip else path
    assert convert.detect(str(source)).name == "zarr"

    def through_files() -> Any:  # noqa: ANN401 - anything
        expected = values()
        for number, episode in enumerate(convert.read(source)):
            rows = slice((0, *ENDS)[number], ENDS[number])
            assert episode.length == rows.stop - rows.start
            assert np.array_equal(episode.actions["action"].data, expected["data/action"][rows])
            assert np.array_equal(
                episode.observations["robot0/eef"].data, expected["data/robot0/eef"][rows]
            )
            assert episode.observations["img"].modality == Modality.RGB
            assert episode.observations["prompt"].data == [f"é{t}" for t in range(20)[rows]]
            assert episode.metadata["zarr"]["episode"] == {"meta/seed": number}
            assert episode.metadata["dataset"] == {"robot": "ur5"}
            assert not episode.lost
            save_wshard(episode, tmp_path / f"{number}.wshard")
            yield load_wshard(tmp_path / f"{number}.wshard")

    target = tmp_path / ("back.zarr.zip" if is_zip else "back.zarr")
    report = convert.write(through_files(), target, "zarr")
    assert {change.kind for change in report.changes} == {"kept"}
    assert sorted(os.listdir(tmp_path)) == sorted(
        {*os.listdir(tmp_path)} - {f"{target.name}.folder"}
    )
    before, after = contents(source), contents(target)
    assert before.keys() == after.keys()
    for name, array in before.items():
        assert np.array_equal(array, after[name]), name
        if name != "data/prompt":
            assert array.dtype.newbyteorder("=") == after[name].dtype, name
    store = zarr.storage.ZipStore(target, mode="r") if is_zip else target
    root = zarr.open_group(store, mode="r")
    assert root.metadata.zarr_format == 2
    assert root["data/img"].chunks == (6, 9, 8, 3)
    assert dict(root.attrs) == {"robot": "ur5"}
    assert dict(root["data/state"].attrs) == {"unit": "m"}


def made_by_hand(number: int) -> Episode:
    random = np.random.default_rng(number)
    episode = Episode(f"hand_{number}", env_id="Reach-v1", metadata={"task": "reach"})
    episode.timebase.tick_hz = 20.0
    episode.observations["wrist/rgb"] = random.integers(0, 256, (5, 8, 8, 3)).astype(np.uint8)
    episode.observations["text"] = [f"é{t}" for t in range(5)]
    episode.actions["action"] = random.random((5, 2))
    episode.rewards = np.arange(5) / (2 if number else 3)
    episode.terminations = np.arange(5) == 4
    episode.truncations = np.zeros(5, np.bool_)
    episode.omens["wrist/rgb"]["dreamer"] = random.random((5, 4))
    episode.uncerts["wrist/rgb"]["dreamer"]["std"] = random.random((5, 4))
    episode.timestamps_ns = np.arange(5) * 50_000_000 + 3
    return episode


def test_episodes_of_ours_come_back_as_they_were_and_what_has_no_place_is_noted(
    tmp_path: Path,
) -> None:
    def through_files() -> Any:  # noqa: ANN401 - anything
        for number in range(2):
            episode = made_by_hand(number)
            episode.observations["after"] = np.arange(6)
            episode.observations["imu"] = Channel(
                data=np.zeros(9), start_ns=0, sampling_rate_hz=100
            )
            episode.observations["scan"] = RaggedChannel(data=[np.zeros(t) for t in range(5)])
            save_wshard(episode, tmp_path / f"{number}.wshard")
            yield load_wshard(tmp_path / f"{number}.wshard")

    report = convert.write(through_files(), tmp_path / "out.zarr", "zarr")
    assert {change.field for change, _ in report.of_kind("dropped")} == {
        *("signal/imu", "signal/scan", "signal/after after the last step"),
    }
    assert {change.kind for change in report.changes} == {"kept", "dropped"}
    names = os.listdir(tmp_path / "out.zarr" / "data")
    assert {"wrist_rgb", "action", "omen_wrist_rgb_dreamer"} <= set(names)
    for number, found in enumerate(convert.read(tmp_path / "out.zarr")):
        made = made_by_hand(number)
        assert (found.id, found.env_id, found.metadata) == (made.id, made.env_id, made.metadata)
        assert found.timebase == made.timebase
        assert found.observations.pop("after").length == 5
        assert dict(found.blocks()).keys() == dict(made.blocks()).keys()
        for name, channel in made.blocks():
            back = found.find(name)
            assert channel.dtype == back.dtype
            assert np.array_equal(channel.data, back.data), name


# --- damaged and hostile files


def change(path: Path, name: str, **facts: Any) -> None:  # noqa: ANN401 - anything
    file = path / name / ".zarray"
    file.write_text(json.dumps({**json.loads(file.read_text()), **facts}))


@pytest.mark.parametrize(
    ("facts", "error"),
    [
        ({"dtype": "|O", "filters": [{"id": "pickle"}], "fill_value": None}, InvalidArgument),
        ({"filters": [{"id": "pickle", "protocol": 5}]}, InvalidArgument),
        ({"compressor": {"id": "pickle"}}, InvalidArgument),
        ({"filters": [{"id": "blosc"}]}, InvalidArgument),
        ({"dtype": "|O", "filters": [{"id": "json2"}]}, InvalidArgument),
        ({"dtype": "|O", "filters": None}, InvalidArgument),
        ({"dtype": [["a", "<f4"]]}, InvalidArgument),
        ({"dtype": "not a type"}, InvalidArgument),
        ({"chunks": [1 << 40, 5]}, LimitExceeded),
        ({"shape": [1 << 50, 5]}, LimitExceeded),
        ({"shape": [-1, 5]}, BadMetadata),
        ({"shape": [19, 5]}, SizeMismatch),
        ({"shape": "x"}, BadMetadata),
        ({"chunks": None}, BadMetadata),
        ({"compressor": {"id": "imagecodecs_jpegxl"}}, ShardError),
    ],
)
def test_an_array_that_could_harm_is_refused_before_it_is_decoded(
    tmp_path: Path, facts: dict[str, Any], error: type[ShardError]
) -> None:
    path = make(tmp_path / "a.zarr", 2)
    change(path, "data/state", **facts)
    with pytest.raises(error, match="data/state"):
        next(convert.read(path, "zarr"))


def test_a_pickle_codec_within_a_shard_is_refused(tmp_path: Path) -> None:
    path = make(tmp_path / "a.zarr", 3)
    file = path / "data" / "state" / "zarr.json"
    meta = json.loads(file.read_text())
    inner: dict[str, Any] = {
        "codecs": [{"name": "numcodecs.pickle"}],
        "index_codecs": [],
        "chunk_shape": [1, 5],
    }
    meta["codecs"] = [{"name": "sharding_indexed", "configuration": inner}]
    file.write_text(json.dumps(meta))
    with pytest.raises(InvalidArgument, match="pickle"):
        next(convert.read(path, "zarr"))


def test_a_damaged_chunk_is_named(tmp_path: Path) -> None:
    path = make(tmp_path / "a.zarr", 2)
    chunk = path / "data" / "img" / "1.0.0.0"
    whole = chunk.read_bytes()
    long = whole[:4] + (1 << 31).to_bytes(4, "little") + whole[8:]
    for content in (
        whole[:40],
        whole[:10],
        b"",
        whole + b"x",
        long,
    ):
        chunk.write_bytes(content)
        for source in (path, packed(path)):
            with pytest.raises(BadValue, match="data/img"):
                list(convert.read(source))


def test_a_damaged_zip_file_gives_its_descriptions_or_an_error(tmp_path: Path) -> None:
    path = packed(make(tmp_path / "a.zarr", 2))
    whole = path.read_bytes()
    directory, end = whole.index(b"PK\1\2"), whole.rindex(b"PK\5\6")
    refused = 0
    for at in (*range(directory, directory + 300), *range(end, len(whole))):
        for value in (0, 0x80, 0xFF):
            path.write_bytes(whole[:at] + bytes([value]) + whole[at + 1 :])
            try:
                files = DescribedFiles(str(path))
            except ShardError:
                refused += 1
                continue
            with contextlib.closing(files), contextlib.suppress(ShardError):
                list(files.arrays("data"))
    assert refused > 20


def test_links_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    path, other = make(tmp_path / "a.zarr", 2), make(tmp_path / "b.zarr", 2)
    chunk = path / "data" / "img" / "1.0.0.0"
    chunk.unlink()
    chunk.symlink_to(other / "data" / "img" / "1.0.0.0")
    with pytest.raises(UnsafePath, match=r"1\.0\.0\.0"):
        list(convert.read(path))
    (path / "data" / "linked").symlink_to(other / "data" / "state")
    with pytest.raises(UnsafePath):
        next(convert.read(path))


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "data/../../evil"])
def test_an_archive_with_a_climbing_member_is_refused(tmp_path: Path, name: str) -> None:
    path = packed(make(tmp_path / "a.zarr", 2))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name, b"x")
    with pytest.raises(UnsafePath, match="evil"):
        next(convert.read(path))


@pytest.mark.parametrize(
    "ends", [np.array([20, 7]), np.array([-1, 20]), np.array([0.5, 20.0]), np.zeros((2, 2), int)]
)
def test_ends_that_make_no_sense_are_refused(tmp_path: Path, ends: Any) -> None:  # noqa: ANN401 - anything
    root = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=2)
    root.create_array("data/action", data=np.zeros((20, 2)))
    root.create_array("meta/episode_ends", data=ends)
    with pytest.raises(BadMetadata, match="episode_ends"):
        next(convert.read(tmp_path / "a.zarr", "zarr"))


def test_what_an_episode_says_about_itself_and_its_channels_comes_back(tmp_path: Path) -> None:
    ep = Episode("a", length=2, provenance={"run_id": "run 7"})
    ep.observations["force"] = Channel(data=np.ones((2, 3)), unit="N", description="of the wrist")
    other = Episode("b", length=2)
    other.observations["force"] = Channel(data=np.ones((2, 3)), unit="kN")
    report = convert.write([ep, other], tmp_path / "a.zarr")
    assert [str(change.field) for change, _ in report.of_kind("dropped")] == ["signal/force, unit"]
    found = next(convert.read(tmp_path / "a.zarr"))
    force = found.observations["force"]
    assert (force.unit, force.description) == ("N", "of the wrist")
    assert found.provenance is not None
    assert found.provenance["run_id"] == "run 7"


def test_what_lies_beside_the_steps_is_noted(tmp_path: Path) -> None:
    path = make(tmp_path / "a.zarr", 2)
    root = zarr.open_group(path, mode="a")
    root.create_array("stray", data=np.ones(3))
    root["data"].attrs["fps"] = 10
    (episode, *_) = convert.read(path)
    lost = {change.field for change in episode.lost}
    assert {"stray", "data, attribute fps"} <= lost


def test_a_few_bytes_cannot_claim_any_number_of_episodes(tmp_path: Path) -> None:
    root = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=2)
    root.create_array("data/action", data=np.zeros((20, 2)))
    root.create_array("meta/episode_ends", shape=(50_000_000,), chunks=(1_000_000,), dtype="i8")
    with pytest.raises(BadMetadata, match="episode_ends"):
        next(convert.read(tmp_path / "a.zarr", "zarr"))


@pytest.mark.parametrize("states_size", [True, False])
@pytest.mark.parametrize("form", [2, 3])
def test_a_zstd_chunk_cannot_hold_more_than_its_array_says(
    tmp_path: Path, form: int, states_size: bool
) -> None:
    zstandard = pytest.importorskip("zstandard")
    codec = {"compressors": pytest.importorskip("numcodecs").Zstd()} if form == 2 else {}
    root = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=form)
    root.create_array("data/x", data=np.ones((20, 2)), chunks=(20, 2), **codec)
    root.create_array("meta/episode_ends", data=np.array([20]), chunks=(1,), **codec)
    assert next(convert.read(tmp_path / "a.zarr")).observations["x"].data.sum() == 40
    chunk = tmp_path / "a.zarr" / "data" / "x" / ("0.0" if form == 2 else "c/0/0")
    encoder = zstandard.ZstdCompressor(write_content_size=states_size).compressobj()
    first = encoder.compress(bytes(320)) + encoder.flush()
    encoder = zstandard.ZstdCompressor(write_content_size=states_size).compressobj()
    # Zarr decodes frames that follow each other.
    chunk.write_bytes(first + encoder.compress(bytes(1 << 20)) + encoder.flush())
    with pytest.raises(BadValue, match="holds too much"):
        _ = next(convert.read(tmp_path / "a.zarr")).observations["x"].data


def test_long_texts_about_many_episodes_come_back(tmp_path: Path) -> None:
    texts = [f"episode {number}: " + "x" * 3000 for number in range(40)]

    def episodes() -> Any:  # noqa: ANN401 - an iterator
        for text in texts:
            ep = Episode(text[:10], length=1, metadata={"task": text})
            ep.actions["action"] = np.ones((1, 1))
            yield ep

    convert.write(episodes(), tmp_path / "a.zarr")
    assert [ep.metadata["task"] for ep in convert.read(tmp_path / "a.zarr")] == texts
