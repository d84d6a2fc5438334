"""Samples in packs: `python examples/packs.py [FOLDER] [EPISODES]`.

Pack a folder of pictures with labels, and a folder of recorded episodes (the example makes some if you give none). Read
both in order, by number, by key and by windows. Truncate a shard and recover its records.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import shardpack
from shard_train import EpisodeDataset, packed_episodes
from wshard import Episode, save_wshard

SAMPLES, EPISODES, STEPS = 600, 12, 100


def shardpack_command(title: str, *arguments: object) -> None:
    """Run the command line as you would."""
    words = [str(argument) for argument in arguments]
    print(f"\n== {title}\n$ shardpack {' '.join(words)}", flush=True)
    done = subprocess.run([sys.executable, "-m", "shard_cli.shardpack", *words], check=False)
    if done.returncode:
        print(f"(exit code {done.returncode})", flush=True)


def make_photos(folder: Path) -> None:
    """Small pictures with one label each, as files in folders."""
    random = np.random.default_rng(0)
    for number in range(SAMPLES):
        kind = folder / ("cats", "dogs")[number % 2]
        kind.mkdir(parents=True, exist_ok=True)
        np.save(kind / f"{number:05}.npy", random.integers(0, 255, (64, 64, 3), np.uint8))
        label = {"label": number % 2, "caption": "an animal that looks at you " * 20}
        (kind / f"{number:05}.json").write_text(json.dumps(label), "utf-8")


def make_episodes(folder: Path) -> Path:
    """Make episodes of a waving arm; return the folder."""
    folder.mkdir()
    for number in range(EPISODES):
        ep = Episode(f"wave_{number:03}", env_id="Wave-v1")
        phase = np.arange(STEPS)[:, None] / 20 + np.arange(3) + number
        ep.observations["joint_pos"] = np.sin(phase).astype(np.float32)
        ep.actions["ctrl"] = np.cos(phase).astype(np.float32)
        save_wshard(ep, folder / f"{ep.id}.wshard", fsync=False)
    return folder


def read_back(shards: str, episodes: Path) -> None:
    print("\n== Read: in order, by number, by key, episodes in place and their windows")
    with shardpack.open(shards) as dataset:
        start = time.perf_counter()
        labels = [record["json"].decode()["label"] for record in dataset.records()]
        print(f"{len(labels)} labels in {(time.perf_counter() - start) * 1e3:.0f} ms")
        picture = dataset["dogs/00007"]["npy"].decode()  # a view of the file: nothing is copied
        batch = dataset.take(np.random.default_rng(1).integers(0, len(dataset), 64))
        print(f"dogs/00007 is {picture.shape}; a batch: {batch[0].key}, {batch[1].key}, …")
        assert sum(labels) == SAMPLES // 2
    with shardpack.open(episodes) as dataset, packed_episodes.open_episode(dataset[-1]) as episode:
        print(episode)
    windows = EpisodeDataset(episodes, window=16)
    two = windows.batch([0, -1])
    print(f"{len(windows):,} windows; two:", {name: two[name].shape for name in windows.channels})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("demo-out"))
    parser.add_argument("episodes", nargs="?", type=Path)
    arguments = parser.parse_args()
    folder, restored = arguments.folder / "packs", arguments.folder / "packs" / "restored"
    shutil.rmtree(folder, ignore_errors=True)
    make_photos(folder / "photos")
    recorded = arguments.episodes or make_episodes(folder / "made_up")
    create = ("create", "--input", folder / "photos", "--output", folder / "train-%06d.shardpack")
    options = ("--shard-size", "2MB", "--compression", "lz4", "--metadata", "creator=demo")
    shardpack_command("A folder: 00007.npy and 00007.json are one record", *create, *options)
    shards, packed = str(folder / "train-*.shardpack"), folder / "episodes.shardpack"
    shardpack_command("What is in it", "stats", shards)
    shardpack_command("Recorded episodes", "pack-episodes", recorded, "-o", packed)
    read_back(shards, packed)
    shardpack_command("Restored, byte for byte", "extract", packed, "-C", restored)
    for path in recorded.rglob("*.wshard"):
        assert (restored / path.relative_to(recorded)).read_bytes() == path.read_bytes()
    whole = (folder / "train-000001.shardpack").read_bytes()
    (folder / "cut.shardpack").write_bytes(whole[: len(whole) // 2])
    shardpack_command("A shard that lost its end", "recover", folder / "cut.shardpack")


if __name__ == "__main__":
    main()
