"""One rank of a training job: reads a set through `torch.distributed`, trains with DDP, and notes what it has trained on.

    ddp_job.py RANK WORLD_SIZE STORE SET NOTES BATCH STOP_AFTER

Each batch is noted when all ranks have trained on it. The job ends with the epoch, or waits to be killed after STOP_AFTER
batches.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel

from shard_train import SampleDataset
from shard_train.torch import data_loader


def main() -> None:
    rank, world_size, store, source, notes, batch_size, stop_after = sys.argv[1:]
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(world_size)
    )
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = data_loader(
        SampleDataset(source), batch_size=int(batch_size), seed=3, num_workers=1, shuffle="shards"
    )
    state = Path(notes, "state.json")
    if state.exists():
        loader.load_state_dict(json.loads(state.read_text()))
    with Path(notes, f"world{world_size}-rank{rank}").open("a") as out:
        for step, batch in enumerate(loader, start=1):
            optimizer.zero_grad()
            model(batch["x.npy"].float()).square().mean().backward()
            optimizer.step()
            out.write("".join(f"{key}\n" for key in batch["__key__"]))
            out.flush()
            torch.distributed.barrier()
            if rank == "0":
                new = state.with_suffix(".new")
                new.write_text(json.dumps(loader.state_dict()))
                os.replace(new, state)
            torch.distributed.barrier()
            if step == int(stop_after):
                os.kill(os.getpid(), signal.SIGKILL)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
