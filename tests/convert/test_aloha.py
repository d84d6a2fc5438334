"""ALOHA episodes, written with h5py and OpenCV as the recording scripts of ACT and Mobile ALOHA do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest

import wshard
import wshard.convert
from shard_format.errors import BadValue, LimitExceeded, UnsafePath
from wshard.types import Modality

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

random = np.random.default_rng(5)
CAMERAS = ("cam_high", "cam_right_wrist", "cam_left_wrist")


def frames(length: int) -> NDArray[np.uint8]:
    """Smooth pictures, mostly of the first channel, of which JPEG keeps nearly everything."""
    rows, columns = np.mgrid[0:48, 0:64]
    one = np.stack([200 + rows, columns, rows // 2], axis=-1)
    return np.stack([one - 3 * step for step in range(length)]).clip(0, 255).astype(np.uint8)


def aloha_file(path: Path, length: int = 6, *, compress: bool | None = None) -> None:
    with h5py.File(path, "w") as file:
        file.attrs["sim"] = False
        if compress is not None:
            file.attrs["compress"] = compress
        for name in ("qpos", "qvel", "effort"):
            values = random.normal(size=(length, 14))
            file.create_dataset(f"observations/{name}", data=values.astype(np.float32))
        file.create_dataset("action", data=random.normal(size=(length, 14)).astype(np.float32))
        if compress is not None:
            file.create_dataset("base_action", data=random.normal(size=(length, 2)))
        pictures = {camera: frames(length) + np.uint8(at) for at, camera in enumerate(CAMERAS)}
        if not compress:
            for camera, array in pictures.items():
                file.create_dataset(
                    f"observations/images/{camera}", data=array, chunks=(1, 48, 64, 3)
                )
            return
        cv2 = pytest.importorskip("cv2")
        encoded = {
            camera: [
                cv2.imencode(".jpg", frame, [cv2.IMWRITE_JPEG_QUALITY, 50])[1] for frame in array
            ]
            for camera, array in pictures.items()
        }
        longest = max(len(data) for rows in encoded.values() for data in rows)
        for camera, rows in encoded.items():
            padded = np.zeros((length, longest), np.uint8)
            for step, data in enumerate(rows):
                padded[step, : len(data)] = data.ravel()
            file.create_dataset(f"observations/images/{camera}", data=padded, chunks=(1, longest))
        lengths = [[len(data) for data in rows] for rows in encoded.values()]
        file.create_dataset("compress_len", data=np.array(lengths, np.float32))


def test_an_episode_is_read_with_all_its_arrays(tmp_path: Path) -> None:
    aloha_file(path := tmp_path / "any_name.h5")
    assert wshard.convert.detect(str(path)).name == "aloha"
    for episode in wshard.convert.read(path):
        with h5py.File(path) as file:
            for name, channel in episode.observations.items():
                assert channel.length == episode.length == 6
                np.testing.assert_array_equal(channel.data, file["observations"][name])
            np.testing.assert_array_equal(episode.actions["action"].data, file["action"])
        assert set(episode.observations) == {
            *("qpos", "qvel", "effort", *(f"images/{camera}" for camera in CAMERAS))
        }
        assert episode.observations["images/cam_high"].modality is Modality.RGB
        assert episode.metadata["aloha"] == {"sim": False}
        assert episode.rewards is None
        assert not episode.lost


def test_texts_do_not_replace_an_attribute_of_that_name(tmp_path: Path) -> None:
    aloha_file(path := tmp_path / "episode_0.hdf5")
    with h5py.File(path, "a") as file:
        file.attrs["texts"] = "an attribute"
        file["task"] = "fold the shirt"
    (episode,) = wshard.convert.read(path)
    assert episode.metadata["aloha"] == {
        "sim": False,
        "texts": {"task": "fold the shirt"},
        "texts_": "an attribute",
    }


def test_a_damaged_file_leaves_the_others(tmp_path: Path) -> None:
    for number in range(3):
        aloha_file(tmp_path / f"episode_{number}.hdf5")
    (tmp_path / "episode_0.hdf5").write_bytes((tmp_path / "episode_0.hdf5").read_bytes()[:3000])
    found = [episode.id for episode in wshard.convert.read(tmp_path, on_error="skip")]
    assert found == ["episode_1", "episode_2"]


def test_jpeg_cameras_have_the_pixels_that_the_reference_loader_gives(tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2")
    aloha_file(path := tmp_path / "episode_0.hdf5", compress=True)
    for episode in wshard.convert.read(path):
        assert set(episode.actions) == {"action", "base_action"}
        with h5py.File(path) as file:
            for camera in CAMERAS:
                found = episode.observations[f"images/{camera}"].data
                assert found.shape == (6, 48, 64, 3)
                for step, row in enumerate(file["observations/images"][camera][:]):
                    reference = cv2.imdecode(row, 1)
                    assert np.abs(found[step].astype(int) - reference).max() <= 2
        # The first channel is the brightest, as it was recorded.
        brightness = episode.observations["images/cam_high"][0].mean(axis=(0, 1))
        assert brightness.argmax() == 0
        assert {change.kind for change in episode.lost} == {"decoded", "dropped"}
        assert {change.field for change in episode.lost if change.kind == "dropped"} == {
            "compress_len"
        }


def test_a_folder_of_episodes_is_read_by_number(tmp_path: Path) -> None:
    for number in (0, 10, 2):
        aloha_file(tmp_path / f"episode_{number}.hdf5", 2 + number, compress=False)
    (tmp_path / "notes.txt").write_text("other files do not matter")
    assert wshard.convert.detect(str(tmp_path)).name == "aloha"
    lengths = {}
    for episode in wshard.convert.read(tmp_path):
        lengths[episode.id] = episode.observations["images/cam_high"].data.shape[0]
    assert lengths == {"episode_0": 2, "episode_2": 4, "episode_10": 12}
    assert list(lengths) == ["episode_0", "episode_2", "episode_10"]


def test_frames_are_decoded_when_they_are_used(tmp_path: Path) -> None:
    aloha_file(path := tmp_path / "episode_0.hdf5", 40, compress=True)
    with h5py.File(path, "a") as file:
        file["observations/images/cam_high"][7] = 0
    for episode in wshard.convert.read(path):
        camera = episode.observations["images/cam_high"]
        assert not camera.is_loaded
        assert camera[8:10].shape == (2, 48, 64, 3)
        with pytest.raises(BadValue, match="step 7"):
            camera[6:9]


def test_other_hdf5_files_are_not_taken_for_it(tmp_path: Path) -> None:
    with h5py.File(path := tmp_path / "hopper-medium-v2.hdf5", "w") as file:
        file["observations"] = np.zeros((3, 4))
        file["action"] = np.zeros((3, 4))
    assert wshard.convert.detect(str(path)).name == "hdf5"
    (tmp_path / "episode_0.hdf5").write_bytes(b"nothing of HDF5")
    assert wshard.convert.detect(str(tmp_path)).name == "hdf5"


def external(file: Any) -> None:  # noqa: ANN401 - an h5py.File
    file["observations/x"] = h5py.ExternalLink("/etc/passwd", "/x")


def claim(file: Any) -> None:  # noqa: ANN401 - an h5py.File
    file.create_dataset("observations/x", (6, 1 << 40), np.uint8, chunks=(1, 1 << 20))


@pytest.mark.parametrize(("damage", "error"), [(external, UnsafePath), (claim, LimitExceeded)])
def test_hostile_files_are_refused(
    damage: Any,  # noqa: ANN401 - one of the functions above
    error: type[Exception],
    tmp_path: Path,
) -> None:
    aloha_file(path := tmp_path / "episode_0.hdf5")
    with h5py.File(path, "a") as file:
        damage(file)
    with pytest.raises(error, match=r"episode_0\.hdf5"):
        list(wshard.convert.read(path))
