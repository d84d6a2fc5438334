"""Reads every invalid vector in every way and prints how much the peak memory grew for each, as JSON."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

from shard_format import Manifest, ShardError, ShardReader, compute_identity
from shard_format.verify import check

VECTORS = Path(__file__).parents[2] / "spec" / "vectors"


def peak_bytes() -> int:
    """The most memory that was resident since the last reset."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("no VmHWM in /proc/self/status")


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def read_in_every_way(path: Path) -> None:
    with contextlib.suppress(ShardError), ShardReader(path) as reader:
        check(reader)
        for name in reader.names():
            with contextlib.suppress(ShardError):
                reader.read_entry(name)
            with contextlib.suppress(ShardError):
                reader.read_range(name, 0, 1)
            with contextlib.suppress(ShardError):
                reader.read_into(name, bytearray(1024))
        with contextlib.suppress(ShardError):
            Manifest.read(reader)
        compute_identity(reader)


def main() -> None:
    # Once without measuring: imports and first-time allocations are the baseline.
    read_in_every_way(VECTORS / "valid" / "hello.shard")
    grown: dict[str, int] = {}
    for description in sorted((VECTORS / "invalid").glob("*.json")):
        case = json.loads(description.read_text("utf-8"))
        reset_peak()
        before = peak_bytes()
        read_in_every_way(description.parent / case["file"])
        grown[description.stem] = peak_bytes() - before
    json.dump(grown, sys.stdout)


if __name__ == "__main__":
    main()
