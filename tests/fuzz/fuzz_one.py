"""Fuzzes one target until libFuzzer's own options say stop: `fuzz_one.py TARGET [libFuzzer options]`."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parent))
with atheris.instrument_imports(include=["shard_format", "shard_train", "shardpack", "wshard"]):
    from targets import TARGETS

    from shard_format import ShardError


def main() -> None:
    target = TARGETS[sys.argv.pop(1)]

    def one(data: bytes) -> None:
        with contextlib.suppress(ShardError):
            target(data)

    atheris.Setup(sys.argv, one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
