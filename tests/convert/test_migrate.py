"""docs/migrate.md: the block of each ecosystem runs, on a dataset as that ecosystem has it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import wshard.convert

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = Path(__file__).parents[2] / "docs" / "migrate.md"
FIXTURES = Path(__file__).parent / "fixtures"
SECTIONS = dict(
    re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
)
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FIRST = BLOCK.findall(PAGE.read_text("utf-8"))[0]
RANDOM = np.random.default_rng(0)
STEPS = 12


def minari(folder: Path) -> None:
    script = """
import gymnasium as gym, minari
env = minari.DataCollector(gym.make("CartPole-v1"))
for seed in range(3):
    env.action_space.seed(seed)
    env.reset(seed=seed)
    for _ in range(12):
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            break
env.create_dataset("D4RL/door/human-v2", algorithm_name="random", author="a", author_email="a@example.org", code_permalink="https://example.org")
"""
    environment = {**os.environ, "MINARI_DATASETS_PATH": str(folder)}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment, cwd=folder)


def d4rl(folder: Path) -> None:
    import h5py

    ends = np.zeros(3 * STEPS, bool)
    ends[STEPS - 1 :: STEPS] = True
    with h5py.File(folder / "hopper-medium-v2.hdf5", "w") as file:
        file["observations"] = RANDOM.normal(size=(3 * STEPS, 11)).astype("f4")
        file["actions"] = RANDOM.normal(size=(3 * STEPS, 3)).astype("f4")
        file["rewards"] = RANDOM.normal(size=3 * STEPS).astype("f4")
        file["terminals"] = ends & (np.arange(3 * STEPS) < STEPS)
        file["timeouts"] = ends & (np.arange(3 * STEPS) >= STEPS)


def robomimic(folder: Path) -> None:
    import h5py

    with h5py.File(folder / "demo.hdf5", "w") as file:
        data = file.create_group("data")
        data.attrs["total"] = 2 * STEPS
        data.attrs["env_args"] = json.dumps({"env_name": "Lift", "type": 1, "env_kwargs": {}})
        for number in range(2):
            demo = data.create_group(f"demo_{number}")
            demo.attrs["num_samples"] = STEPS
            demo["actions"] = RANDOM.normal(size=(STEPS, 7))
            demo["states"] = RANDOM.normal(size=(STEPS, 32))
            demo["rewards"] = np.zeros(STEPS)
            demo["dones"] = np.zeros(STEPS, np.int64)
            demo["obs/robot0_eef_pos"] = RANDOM.normal(size=(STEPS, 3))


def zarr(folder: Path) -> None:
    import zarr

    root = zarr.open_group(str(folder / "pusht.zarr"), mode="w", zarr_format=2)
    root.create_array("data/state", data=RANDOM.normal(size=(2 * STEPS, 5)).astype("f4"))
    root.create_array("data/action", data=RANDOM.normal(size=(2 * STEPS, 2)).astype("f4"))
    root.create_array("meta/episode_ends", data=np.array([STEPS, 2 * STEPS]))


def dreamer(folder: Path) -> None:
    (folder / "replay").mkdir()
    first = np.zeros(STEPS, bool)
    first[0] = True
    np.savez_compressed(
        folder / "replay" / f"20260301T101500F123456-{'1' * 22}-{'2' * 22}-{STEPS}.npz",
        image=RANDOM.integers(0, 255, (STEPS, 8, 8, 3), np.uint8),
        action=RANDOM.normal(size=(STEPS, 2)).astype("f4"),
        reward=RANDOM.normal(size=STEPS).astype("f4"),
        is_first=first,
        is_last=first[::-1],
        is_terminal=first[::-1],
        stepid=np.zeros((STEPS, 20), np.uint8),
    )


def table(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = {
        "episode_index": np.repeat([0, 1], STEPS),
        "observation.state": RANDOM.normal(size=(2 * STEPS, 3)).tolist(),
        "action": RANDOM.normal(size=(2 * STEPS, 2)).tolist(),
        "reward": RANDOM.normal(size=2 * STEPS),
    }
    pq.write_table(pa.table(rows), folder / "runs.parquet")


def mcap(folder: Path) -> None:
    from mcap.writer import Writer

    with open(folder / "drive.mcap", "wb") as file:
        writer = Writer(file)
        writer.start()
        schema = writer.register_schema("JointState", "jsonschema", b'{"type": "object"}')
        channel = writer.register_channel("joint_states", "json", schema)
        for step in range(STEPS):
            message = json.dumps({"position": [0.1 * step, 0.2, 0.3]}).encode()
            writer.add_message(channel, step * 10_000_000, message, step * 10_000_000)
        writer.finish()


def hdf5(folder: Path) -> None:
    import h5py

    with h5py.File(folder / "data.h5", "w") as file:
        for number in range(2):
            run = file.create_group(f"run_{number}")
            run["sensors/force"] = RANDOM.normal(size=(STEPS, 6))
            run["command"] = RANDOM.normal(size=(STEPS, 2))


def lerobot(folder: Path) -> None:
    shutil.unpack_archive(FIXTURES / "lerobot_v3.zip", folder / "lerobot" / "pusht")


def rlds(folder: Path) -> None:
    shutil.copytree(FIXTURES / "rlds" / "demo" / "1.0.0", folder / "bridge" / "0.1.0")


DATASETS: dict[str, Callable[[Path], None]] = {
    "Minari": minari,
    "D4RL": d4rl,
    "robomimic, LIBERO, MimicGen, Isaac Lab, ManiSkill, ALOHA": robomimic,
    "LeRobot": lerobot,
    "RLDS and TensorFlow Datasets": rlds,
    "MCAP and ROS bags": mcap,
    "Diffusion policy (Zarr)": zarr,
    "DreamerV3": dreamer,
    "NPZ, CSV and Parquet": table,
    "Any HDF5 file": hdf5,
}


@pytest.mark.parametrize("section", DATASETS)
def test_a_dataset_becomes_batches(section: str, tmp_path: Path) -> None:
    DATASETS[section](tmp_path)
    [block] = BLOCK.findall(SECTIONS[section])
    assert len(block.strip().splitlines()) <= 10
    run(tmp_path, block)


def test_episodes_become_a_dataset_of_another_format(tmp_path: Path) -> None:
    d4rl(tmp_path)
    wshard.convert.convert(tmp_path / "hopper-medium-v2.hdf5", tmp_path / "door")
    [block] = BLOCK.findall(SECTIONS["Back again"])
    assert "3 episodes" in run(tmp_path, block)


def run(folder: Path, block: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"{FIRST}\n{block}"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_section_has_a_test() -> None:
    assert {*DATASETS, "Back again"} == set(SECTIONS)
