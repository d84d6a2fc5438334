"""docs/remote.md runs as it is written, against a real server."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import shardpack
from shard_format import remote

if TYPE_CHECKING:
    from tests.stores.servers import Bucket

PAGE = Path(__file__).parents[2] / "docs" / "remote.md"
BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_python_and_the_commands_of_the_page_run(moto: Bucket, tmp_path: Path) -> None:
    moto.make("robots")
    text = PAGE.read_text("utf-8").replace("http://127.0.0.1:9000", moto.endpoint)
    blocks = BLOCK.findall(text)
    script = tmp_path / "page.py"
    script.write_text("\n".join(code for kind, code in blocks if kind == "python"), "utf-8")
    environment = {**os.environ, remote.ENVIRONMENT: json.dumps(moto.options)}

    def run(command: list[str]) -> str:
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    printed = run([sys.executable, "-W", "error", str(script)])
    for expected in ("ep_3", "cup", "(64, 7)", "112", "denies access", "requests=1"):
        assert expected in printed
    commands = [line for kind, code in blocks if kind == "bash" for line in code.splitlines()]
    said = []
    for line in commands:
        program, *arguments = shlex.split(line)
        said.append(run([sys.executable, "-m", f"shard_cli.{program}", *arguments]))
    assert "4 episodes, all ok" in said[0]
    assert said[1].endswith("received\n")
    assert "4 episodes" in said[-2]  # of two parts
    assert len(said) == 10
    with shardpack.open("s3://robots/runs.shardpack-set", storage_options=moto.options) as packed:
        assert len(packed) == 4
