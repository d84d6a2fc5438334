"""Real processes of `torch.distributed` that train on one set in an object store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import shardpack
from shard_format import remote
from tests.stores import servers

if TYPE_CHECKING:
    import pytest

JOB = Path(__file__).with_name("ddp_job.py")
SAMPLES = 120


def run_ranks(
    world_size: int, source: str, folder: Path, batch_size: int, stop_after: int
) -> list[int]:
    """Runs a job to its end; returns the exit code of each rank."""
    ranks = [
        subprocess.Popen(
            [
                *(sys.executable, str(JOB), str(rank), str(world_size)),
                *(str(folder / f"store{world_size}"), source, str(folder)),
                *(str(batch_size), str(stop_after)),
            ],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(world_size)
    ]
    return [rank.wait(timeout=120) for rank in ranks]


def test_two_ranks_are_killed_and_three_take_every_other_sample_exactly_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with servers.moto() as bucket:
        monkeypatch.setenv(remote.ENVIRONMENT, json.dumps(bucket.options))
        with shardpack.ShardWriterSet("s3://bucket/train-%06d.shardpack", max_records=25) as writer:
            for number in range(SAMPLES):
                writer.write(f"{number:03d}", {"x.npy": np.full(4, number, np.float32)})
        source = "s3://bucket/train.shardpack-set"
        assert run_ranks(2, source, tmp_path, 6, 4) == [-signal.SIGKILL] * 2
        # Twelve samples a step, as before.
        assert run_ranks(3, source, tmp_path, 4, 0) == [0] * 3
    taken = [path.read_text().split() for path in sorted(tmp_path.glob("world*"))]
    assert [len(keys) for keys in taken] == [24, 24, 24, 24, 24]
    assert sorted(key for keys in taken for key in keys) == [f"{n:03d}" for n in range(SAMPLES)]
