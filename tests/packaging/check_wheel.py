"""Builds the wheel, installs it without a compiler into an empty environment, and uses it there."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("shard_format", "wshard", "shardpack", "shard_cli")
LARGEST_PAGE = 400_000
USE = """
from shard_format import ShardReader, ShardWriter
with ShardWriter("a.shard") as writer:
    for codec in ("none", "zstd", "lz4"):
        writer.write_entry(codec, b"payload" * 1000, compression=codec)
reader = ShardReader("a.shard")
assert reader.read_many(reader.names()) == [b"payload" * 1000] * 3
reader.verify()

import numpy as np
from wshard import Episode, load_wshard, save_wshard
positions = np.arange(700, dtype=np.float32).reshape(100, 7)
save_wshard(Episode("a", observations={"joint_pos": positions}), "a.wshard", compression="auto")
assert (load_wshard("a.wshard").observations["joint_pos"].data == positions).all()

import shardpack
with shardpack.ShardPackWriter("a.shardpack", compression="lz4") as writer:
    writer.write("first", {"positions.npy": positions})
assert (shardpack.open("a.shardpack")["first"]["positions.npy"].decode() == positions).all()

with load_wshard("a.wshard") as episode:
    episode.to_html("a.html")
assert "embedded" in open("a.html", encoding="utf-8").read()

from shard_format.errors import MissingExtra
for url in ("http://127.0.0.1:1/a.shard", "s3://bucket/a.shard"):
    try:
        ShardReader(url)
    except MissingExtra as error:
        assert "shard-format[remote]" in str(error)
    else:
        raise AssertionError(f"{url} was opened without the extra")
"""


def run(*command: str, cwd: Path, **environment: str) -> None:
    show(command)
    subprocess.run(command, cwd=cwd, check=True, env={**os.environ, **environment})


def output_of(*command: str, cwd: Path) -> str:
    show(command)
    return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True).stdout


def show(command: tuple[str, ...]) -> None:
    print("$", Path(command[0]).name, *command[1:], flush=True)


def python_files(package: str) -> list[Path]:
    return list((ROOT / "src" / package).rglob("*.py"))


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pip = ("-m", "pip", "--quiet", "--disable-pip-version-check")
        run(sys.executable, *pip, "wheel", "--no-deps", "-w", str(folder), str(ROOT), cwd=folder)
        (wheel,) = folder.glob("*.whl")
        assert wheel.name.endswith("-py3-none-any.whl"), wheel.name
        inside = zipfile.ZipFile(wheel).namelist()
        for package in PACKAGES:
            sources = {str(file.relative_to(ROOT / "src")) for file in python_files(package)}
            assert {f"{package}/__init__.py", f"{package}/py.typed"} <= set(inside), package
            assert sources <= set(inside), sources - set(inside)
        page = zipfile.ZipFile(wheel).getinfo("wshard/viewer/viewer.html.gz")
        assert page.file_size <= LARGEST_PAGE, f"the viewer has {page.file_size} bytes"
        assert "wshard/viewer/widget.js" in inside
        assert not [file for file in inside if file.startswith(("tests/", "spec/", "benchmarks/"))]
        venv.create(folder / "env", with_pip=True)
        python = str(folder / "env" / "bin" / "python")
        # A compiler that always fails: nothing may need one.
        run(
            python,
            *pip,
            "install",
            "-c",
            str(ROOT / "constraints.txt"),
            str(wheel),
            cwd=folder,
            CC="false",
        )
        run(python, "-c", USE, cwd=folder)
        version = wheel.name.split("-")[1]
        for program, file in (
            ("shard", "a.shard"),
            ("wshard", "a.wshard"),
            ("shardpack", "a.shardpack"),
        ):
            path = str(folder / "env" / "bin" / program)
            assert output_of(path, "--version", cwd=folder) == f"{program} {version}\n"
            run(path, "verify", file, cwd=folder)
    print("the wheel installs and works")


if __name__ == "__main__":
    main()
