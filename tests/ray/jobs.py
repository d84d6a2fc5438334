"""What the tests do on other processes."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from wshard import Episode, save_wshard


def make_episodes(folder: Path, count: int) -> None:
    """Short episodes of different lengths, below two folders."""
    for number in range(count):
        random = np.random.default_rng(number)
        steps = 20 + 3 * (number % 7)
        path = folder / f"run_{number % 2}" / f"ep_{number}.wshard"
        path.parent.mkdir(parents=True, exist_ok=True)
        episode = Episode(
            f"ep_{number}",
            env_id="Reach-v1",
            observations={
                "state": random.normal(size=(steps, 4)).astype(np.float32),
                "rgb": random.integers(0, 255, (steps, 8, 8, 3), np.uint8),
            },
            actions={"ctrl": random.normal(size=(steps, 2)).astype(np.float32)},
            rewards=np.ones(steps, np.float32),
        )
        save_wshard(episode, path, fsync=False)


def double(episode: Episode) -> Episode:
    """Another episode."""
    episode.observations["state"] = episode.observations["state"].data * 2
    return episode


def mean(episode: Episode) -> float:
    """A number."""
    return float(episode.observations["state"].data.mean())


def double_or_fail(episode: Episode, without: str) -> Episode:
    """Fails while a file is not there."""
    if episode.id == "ep_5" and not os.path.exists(without):
        raise ValueError("no luck with ep_5")
    return double(episode)


def once(marker: str) -> bool:
    """True for the first caller of all processes."""
    with suppress(FileExistsError):
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        return True
    return False


def double_and_die_once(episode: Episode, marker: str) -> Episode:
    """Kills its own process, the first time that it meets one episode."""
    if episode.id == "ep_7" and once(marker):
        os.kill(os.getpid(), signal.SIGKILL)
    return double(episode)


def double_where_it_waits(episode: Episode, folder: str) -> Episode:
    """Waits until one node has work, and there until that node is gone."""
    import time

    import ray

    node = ray.get_runtime_context().get_node_id()
    doomed, at_work = Path(folder, "doomed").read_text(), Path(folder, "at_work")
    if node == doomed:
        at_work.touch()
    while node == doomed or not at_work.exists():
        time.sleep(0.05)
    return double(episode)


def die_once(row: dict[str, Any], marker: str) -> dict[str, Any]:
    """Kills its own process, once."""
    if once(marker):
        os.kill(os.getpid(), signal.SIGKILL)
    return row


def always_die(_: object) -> None:
    """Never returns."""
    os.kill(os.getpid(), signal.SIGKILL)


def fail_without(row: dict[str, Any], luck: str) -> dict[str, Any]:
    """Fails for one row while a file is not there."""
    if row["__key__"].endswith("ep_9") and not os.path.exists(luck):
        raise ValueError("no luck")
    return row


def die(*_: object) -> None:
    """As a process that is killed here."""
    raise KeyboardInterrupt
