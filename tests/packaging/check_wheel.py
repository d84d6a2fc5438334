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
USE = """
from shard_format import ShardReader, ShardWriter
with ShardWriter("a.shard") as writer:
    for codec in ("none", "zstd", "lz4"):
        writer.write_entry(codec, b"payload" * 1000, compression=codec)
reader = ShardReader("a.shard")
assert reader.read_many(reader.names()) == [b"payload" * 1000] * 3
reader.verify()
"""


def run(*command: str, cwd: Path, **environment: str) -> None:
    print("$", " ".join(Path(command[0]).name if word is command[0] else word for word in command))
    subprocess.run(command, cwd=cwd, check=True, env={**os.environ, **environment})


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pip = ("-m", "pip", "--quiet", "--disable-pip-version-check")
        run(sys.executable, *pip, "wheel", "--no-deps", "-w", str(folder), str(ROOT), cwd=folder)
        (wheel,) = folder.glob("*.whl")
        assert wheel.name.endswith("-py3-none-any.whl"), wheel.name
        inside = zipfile.ZipFile(wheel).namelist()
        for package in PACKAGES:
            assert f"{package}/py.typed" in inside, package
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
        run(str(folder / "env" / "bin" / "shard"), "verify", "a.shard", cwd=folder)
    print("the wheel installs and works")


if __name__ == "__main__":
    main()
