"""`--engine ray`: the same results as without, for every command that has it."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_cli.exits import Exit
from shard_cli.main import main
from shard_cli.programs import SHARDPACK, WSHARD
from shard_format.remote import ENVIRONMENT, list_url
from tests.docs.test_snippets import BLOCK, ROOT
from tests.stores import servers
from wshard import Episode, load_wshard, save_wshard
from wshard.convert import convert

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("cluster")]

SHELL = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RAY = ("--engine", "ray", "--address", "auto")


def run(program: Any, *arguments: object) -> str:  # noqa: ANN401 - a program
    out = io.StringIO()
    with redirect_stdout(out):
        assert main([str(one) for one in arguments], program) == 0
    return out.getvalue()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_conversions_are_the_same_files(episodes: Path, tmp_path: Path) -> None:
    for name, engine in (("a", ("--jobs", "1")), ("b", RAY)):
        run(WSHARD, "convert", episodes / "run_0", tmp_path / name, *engine)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert len(contents(tmp_path / "a")) == 12


CONVERT_FAR = """
import os, sys
import ray
from shard_format.executors import RayExecutor
from wshard.convert import ConvertOptions, convert
name = "SHARD_STORAGE_OPTIONS"
ray.init(address="auto", log_to_driver=False, runtime_env={"env_vars": {name: os.environ[name]}})
convert(sys.argv[1], sys.argv[2], options=ConvertOptions(executor=RayExecutor()))
"""


def test_a_cluster_converts_from_bucket_to_bucket(episodes: Path, tmp_path: Path) -> None:
    convert(episodes / "run_0", tmp_path / "npz", to="npz")
    convert(tmp_path / "npz", tmp_path / "here")
    with servers.moto() as bucket:
        env = {**os.environ, ENVIRONMENT: json.dumps(bucket.options)}
        for path in (tmp_path / "npz").iterdir():
            bucket.put(f"npz/{path.name}", path.read_bytes())
        urls = [f"{bucket.root}/npz", f"{bucket.root}/out"]
        subprocess.run([sys.executable, "-c", CONVERT_FAR, *urls], env=env, check=True)
        found = list_url(urls[1], bucket.options)
        sizes = {one.url.rpartition("/")[2]: one.version.size for one in found}
    assert sizes == {name: len(data) for name, data in contents(tmp_path / "here").items()}
    assert len(sizes) == 12


def test_statistics_are_the_same_numbers(episodes: Path, tmp_path: Path) -> None:
    for name, engine in (("a", ("--jobs", "1")), ("b", RAY)):
        run(WSHARD, "stats", episodes, "-o", tmp_path / f"{name}.wshard-stats", *engine)
    one, other = contents(tmp_path).values()
    assert one == other


def test_the_doctor_says_the_same(episodes: Path) -> None:
    assert run(WSHARD, "doctor", episodes, *RAY) == run(WSHARD, "doctor", episodes, "--jobs", "1")


def test_a_folder_is_inspected_to_the_same_lines(episodes: Path) -> None:
    for question in ((), ("--where", "length > 2", "--columns", "id,length,return")):
        found = [
            run(WSHARD, "inspect", episodes, *question, *engine)
            for engine in (RAY, ("--jobs", "1"))
        ]
        assert found[0] == found[1]


def test_packs_are_the_same_shards(
    episodes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    monkeypatch.chdir(episodes)  # relative paths mean the same on the nodes
    for name, engine in (("a", ("--jobs", "1")), ("b", RAY)):
        (tmp_path / name).mkdir()
        output = tmp_path / name / "new-%02d.shardpack"
        create = ("create", "-i", "run_0", "-o", output, "--shard-records", "5", "-c", "zstd")
        run(SHARDPACK, *create, *engine)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert len(contents(tmp_path / "a")) == 4
    for name, more in (("c", ()), ("d", RAY)):
        (tmp_path / name).mkdir()
        output = tmp_path / name / "e-%02d.shardpack"
        run(SHARDPACK, "pack-episodes", ".", "-o", output, "--jobs", "2", *more)
    assert contents(tmp_path / "c") == contents(tmp_path / "d")
    assert len(contents(tmp_path / "c")) == 3


def test_an_address_without_ray_and_a_wrong_token_are_refused(
    cluster: Any,  # noqa: ANN401 - of Ray
    episodes: Path,
    tmp_path: Path,
) -> None:
    with pytest.raises(AssertionError):
        run(WSHARD, "doctor", episodes, "--address", "auto")
    done = subprocess.run(
        [sys.executable, "-m", "shard_cli.wshard", "convert", str(episodes / "run_0"),
         str(tmp_path / "out"), "--engine", "ray", "--address", cluster.address],
        env={**os.environ, "RAY_AUTH_TOKEN": "0" * 64, "RAY_NUM_REDIS_GET_RETRIES": "2"},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == Exit.IO
    assert "cannot connect to a Ray cluster" in done.stderr
    assert not (tmp_path / "out").exists()


def test_the_page_about_many_machines_does_what_it_says(
    tmp_path: Path,
    cluster: Any,  # noqa: ANN401 - of Ray
) -> None:
    """First the Python blocks as one script, then the shell blocks, in one empty folder."""
    text = (ROOT / "docs" / "many-machines.md").read_text("utf-8")
    scripts = {"page.py": BLOCK.findall(text), "page.sh": SHELL.findall(text)}
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for name, blocks in scripts.items():
        assert len(blocks) >= 2
        (tmp_path / name).write_text("\n".join(blocks), "utf-8")
        done = subprocess.run(
            [*([sys.executable] if name == "page.py" else ["bash", "-eu"]), name],
            cwd=tmp_path,
            env={**os.environ, "PATH": programs, "RAY_ADDRESS": cluster.address},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert len(list((tmp_path / "all").iterdir())) == 12


def test_the_readme_maps_episodes_as_it_is_written(
    tmp_path: Path,
    cluster: Any,  # noqa: ANN401 - of Ray
) -> None:
    import re

    for number in range(3):
        episode = Episode(f"ep_{number}")
        episode.observations["joint_pos"] = np.ones((10, 7), np.float32)
        save_wshard(episode, tmp_path / "recordings" / f"ep_{number}.wshard")
    text = (ROOT / "README.md").read_text("utf-8")
    blocks = re.findall(r"^```py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    script = tmp_path / "readme.py"
    script.write_text(next(block for block in blocks if "ray" in block))
    env = {**os.environ, "RAY_ADDRESS": cluster.address}
    subprocess.run([sys.executable, str(script)], cwd=tmp_path, env=env, check=True)
    for number in range(3):
        smoothed = load_wshard(tmp_path / "smoothed" / f"ep_{number}.wshard")
        assert smoothed.observations["joint_pos"].data[-1, 0] == 10
