"""Each call to the file system fails, writes less, finds the disk full or is the last one, for everything that writes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.operations import OPERATIONS
from tests.faults.run import MODES

COMPILER = shutil.which("cc")
# `make test` runs this; the others take minutes.
QUICK = ("replace chunks", ["full"])


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if COMPILER is None or sys.platform != "linux":
        pytest.skip("needs Linux and a C compiler")
    built = tmp_path_factory.mktemp("shim") / "shim.so"
    source = Path(__file__).with_name("shim.c")
    command = [COMPILER, "-O2", "-shared", "-fPIC", "-o", str(built), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return built


@pytest.mark.parametrize(
    ("operation", "modes"),
    [
        pytest.param(*QUICK, id="quick"),
        # In one process, because starting it takes longer than most operations do.
        *(pytest.param(name, [*MODES], marks=pytest.mark.slow, id=name) for name in OPERATIONS),
    ],
)
@pytest.mark.timeout(1200)
def test_after_a_fault_the_old_or_the_new_state_is_there_and_the_program_goes_on(
    shim: Path, tmp_path: Path, operation: str, modes: list[str]
) -> None:
    root = Path(__file__).parents[2]
    paths = os.pathsep.join((str(root), *filter(None, [os.environ.get("PYTHONPATH")])))
    result = subprocess.run(
        [sys.executable, "-m", "tests.faults.run", str(shim), str(tmp_path), operation, *modes],
        env={**os.environ, "LD_PRELOAD": str(shim), "PYTHONPATH": paths},
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-4000:]
    assert "\n0 problems" in result.stdout
