"""Runs the fuzz targets for a while, seeded with the vectors, and reports what they found.

A finding is a file in fuzz-work/findings. Make a vector of it in spec/vectors (see CONTRIBUTING.md) before
or together with the fix.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tests.fuzz.corpus import seeds
from tests.fuzz.targets import TARGETS

WORK = Path("fuzz-work")
SECONDS_FOR_ONE_INPUT = 10
MEMORY_MIB = 1024


def fuzz(target: str, seconds: int) -> tuple[str, list[Path]]:
    """What to print about a target, and what it found."""
    corpus = WORK / "corpus" / target
    findings = WORK / "findings" / target
    for folder in (corpus, findings):
        folder.mkdir(parents=True, exist_ok=True)
    count = 0
    for name, data in seeds(target):
        (corpus / f"seed-{name}").write_bytes(data)
        count += 1
    before = set(findings.iterdir())
    said = [f"{target}: {count} seeds, {seconds} s"]
    result = subprocess.run(
        [
            sys.executable,
            *("-m", "tests.fuzz.fuzz_one"),
            target,
            f"-max_total_time={seconds}",
            f"-timeout={SECONDS_FOR_ONE_INPUT}",
            f"-rss_limit_mb={MEMORY_MIB}",
            "-max_len=65536",
            "-print_final_stats=1",
            f"-artifact_prefix={findings}/",
            str(corpus),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    new = sorted(set(findings.iterdir()) - before)
    lines = (result.stderr + result.stdout).splitlines()
    facts = ("stat::number_of_executed_units", "stat::peak_rss_mb")
    said += [f"  {line}" for line in lines if line.startswith(facts)]
    if result.returncode or new:
        said += lines[-60:]
        said.append(f"  exit code {result.returncode}, findings: {[str(path) for path in new]}")
        return "\n".join(said), new or [findings]
    return "\n".join(said), []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--seconds", type=int, default=300, help="for all targets together, one after the other"
    )
    parser.add_argument("targets", nargs="*", default=list(TARGETS), help="which targets")
    arguments = parser.parse_args()
    share = max(1, arguments.seconds // len(arguments.targets))
    found: list[Path] = []
    # Starting a target takes longer than a short run of it.
    with ThreadPoolExecutor(os.cpu_count()) as executor:
        for text, paths in executor.map(partial(fuzz, seconds=share), arguments.targets):
            print(text, flush=True)
            found += paths
    print(f"{len(found)} findings" if found else "no findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
