"""Fuzzes one target until libFuzzer's own options say stop: `python -m tests.fuzz.fuzz_one TARGET [libFuzzer options]`."""

from __future__ import annotations

import contextlib
import sys

import atheris

with atheris.instrument_imports(include=["shard_format", "shard_train", "shardpack", "wshard"]):
    from shard_format import ShardError
    from tests.fuzz.targets import TARGETS


def main() -> None:
    target = TARGETS[sys.argv.pop(1)]

    def one(data: bytes) -> None:
        with contextlib.suppress(ShardError):
            target(data)

    atheris.Setup(sys.argv, one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
