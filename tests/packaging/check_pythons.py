"""Installs the wheel, without a compiler, for every other Python that this machine has, and runs the core tests there.

python check_pythons.py [python …]

Without arguments: `python3.10` to `python3.15` and the free-threaded `python3.14t` and `python3.15t`, on the path or
from pyenv, except the version that runs this.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMES = (*(f"python3.{minor}" for minor in range(10, 16)), "python3.14t", "python3.15t")
TOOLS = (
    *("backports.zstd; python_version < '3.14'", "ml_dtypes", "urllib3"),
    *("hypothesis", "pytest", "pytest-timeout", "pytest-xdist"),
)
# The vectors of containers, and what depends most on the interpreter: codecs, recording, saving again.
TESTS = (
    "conformance/test_vectors.py",
    "shard_format/test_zstd.py",
    *(f"wshard/test_{name}.py" for name in ("recording", "resave")),
    "shardpack/test_round_trip.py",
)
FACTS = "import sys; print(sys.version.split()[0], getattr(sys, '_is_gil_enabled', lambda: True)())"


def run(*command: str | Path, **environment: str) -> None:
    print("$", Path(command[0]).name, *command[1:], flush=True)
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, **environment})


def facts_about(python: str) -> list[str] | None:
    """Version, and whether it has the global lock; None if it does not run."""
    result = subprocess.run([python, "-c", FACTS], capture_output=True, text=True, check=False)
    return result.stdout.split() if result.returncode == 0 else None


def other_pythons() -> list[str]:
    """The interpreters of `NAMES`, without the version that runs this."""
    places = [Path(folder) for folder in os.get_exec_path()]
    if pyenv := shutil.which("pyenv"):
        root = subprocess.run([pyenv, "root"], capture_output=True, text=True, check=True)
        places += sorted(Path(root.stdout.strip(), "versions").glob("*/bin"))
    own = f"python{sys.version_info.major}.{sys.version_info.minor}"
    found = []
    for name in NAMES:
        candidates = [str(place / name) for place in places if (place / name).exists()]
        usable = [python for python in candidates if name != own and facts_about(python)]
        found += usable[:1]
    return found


def check_python(python: str, wheel: Path, folder: Path) -> None:
    environment = folder / f"env-{Path(python).name}"
    run(python, "-m", "venv", environment)
    own = environment / "bin" / "python"
    install = (own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    constraints = ("-c", ROOT / "constraints.txt")
    # A compiler that always fails: nothing may need one.
    run(*install, "--only-binary", ":all:", *constraints, wheel, *TOOLS, CC="false")
    if f"{Path(python).name}t" in NAMES:
        check_free_threaded_wheels(environment, wheel)
    tests = [Path("tests", test) for test in TESTS]
    run(own, "-m", "pytest", "-qq", "-m", "not slow", "-n", "2", "-p", "no:cacheprovider", *tests)


def check_free_threaded_wheels(environment: Path, wheel: Path) -> None:
    """Checks that the free-threaded build of the same version needs no compiler, without having that build."""
    own = environment / "bin" / "python"
    version = subprocess.check_output(
        [own, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], text=True
    ).strip()
    machine = platform.machine()
    run(
        *(own, "-m", "pip", "install", "--quiet", "--dry-run", "--only-binary", ":all:"),
        *("--target", environment / "free-threaded", "--abi", f"cp{version.replace('.', '')}t"),
        *(f"--platform=manylinux{tag}_{machine}" for tag in ("2014", "_2_17", "_2_27", "_2_28")),
        wheel,
    )


def main() -> None:
    pythons = sys.argv[1:] or other_pythons()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, ROOT)
        (wheel,) = folder.glob("*.whl")
        for python in pythons:
            print(f"\n#### {python}: {facts_about(python)}", flush=True)
            check_python(python, wheel, folder)
    tested = {Path(python).name for python in pythons}
    print(f"\nthe core works on {', '.join(sorted(tested)) or 'no other Python'}")
    if missing := [name for name in NAMES if name not in tested]:
        print(f"not tested here: {', '.join(missing)}")


if __name__ == "__main__":
    main()
