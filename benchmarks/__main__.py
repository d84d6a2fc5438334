"""Runs the benchmarks: `python -m benchmarks [--write] [name …]`."""

from __future__ import annotations

import argparse
import os
import pickle
import platform
import subprocess
import sys
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.harness import Table

ALL = (
    *("fetch", "open", "raw", "zstd"),
    *("episode_read", "episode_write", "episode_windows", "episode_small", "recording"),
    *("packs", "dataset", "training_windows", "training_samples", "remote"),
    *("convert", "convert_many", "video", "engines"),
)
RESULTS = Path(__file__).with_name("RESULTS.md")


def machine() -> str:
    packages = (
        *("numpy", "zstandard", "cramjam", "fastcrc", "xxhash"),
        *("safetensors", "h5py", "hdf5plugin", "zarr", "torch"),
    )
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    return (
        f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, "
        f"{os.cpu_count()} processors; {versions}."
    )


def in_fresh_process(name: str, parent: str | None) -> list[Table]:
    """Run one file of benchmarks in its own process, so that memory used by the others does not matter."""
    script = (
        "import pickle, sys, tempfile; from pathlib import Path\n"
        f"from benchmarks.bench_{name} import run\n"
        f"with tempfile.TemporaryDirectory(dir={parent!r}) as folder:\n"
        "    pickle.dump(list(run(Path(folder))), sys.stdout.buffer)"
    )
    result = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=True)
    tables: list[Table] = pickle.loads(result.stdout)
    return tables


def record(tables: list[Table]) -> None:
    """Put the tables in the place of those with the same title in RESULTS.md, and new ones at its end."""
    _, *sections = RESULTS.read_text("utf-8").split("\n### ")
    kept = {section.partition("\n")[0]: f"### {section.rstrip()}\n" for section in sections}
    kept |= {
        table.title: f"{table.markdown().rstrip()}\n\nRun on {date.today()}.\n" for table in tables
    }
    RESULTS.write_text(
        "# Results\n\nWritten by `make bench BENCH='--write NAME …'`, which replaces the tables of the benchmarks that it "
        "runs. Medians of interleaved rounds; files in the page cache.\n\n"
        + machine()
        + "\n\n"
        + "\n".join(kept.values()),
        "utf-8",
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"record the run in {RESULTS.name}")
    parser.add_argument("--folder", help="where the files are made; default: a temporary folder")
    parser.add_argument("names", nargs="*", default=list(ALL), help=f"of {', '.join(ALL)}")
    arguments = parser.parse_args()
    tables: list[Table] = []
    missed = 0
    for name in arguments.names:
        for table in in_fresh_process(name, arguments.folder):
            tables.append(table)
            print(f"\n{table.title}")
            for contender, median in table.medians.items():
                print(f"  {table.show(median):>10}  {contender}")
            for text, good in table.verdicts():
                missed += not good
                print(f"  {'ok  ' if good else 'MISS'} {text}", flush=True)
    print(f"\n{missed} goals missed" if missed else "\nall goals reached")
    if arguments.write:
        record(tables)
        print(f"written to {RESULTS.name}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
