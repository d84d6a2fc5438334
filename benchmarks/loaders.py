"""Loaders with worker processes: the same order for all, and the time of a batch once they are running."""

from __future__ import annotations

import statistics
import time
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from shard_train import BatchSampler, Plan
from shard_train.torch import data_loader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

WORKERS = 2


def plan(count: int, batch_size: int) -> Plan:
    """The order of the samples, for all loaders that read at random."""
    return Plan(count, batch_size=batch_size, drop_last=True)


def torch_loader(
    dataset: Any,  # noqa: ANN401 - what torch takes
    batch_size: int,
    collate: Callable[[Any], Any],
) -> DataLoader[Any]:
    """The DataLoader of torch, in that order."""
    return DataLoader(
        dataset,
        batch_sampler=BatchSampler(plan(len(dataset), batch_size)),
        num_workers=WORKERS,
        collate_fn=collate,
        persistent_workers=True,
        multiprocessing_context="fork",
    )


def our_loader(dataset: Any, batch_size: int) -> DataLoader[Any]:  # noqa: ANN401 - any dataset
    """The loader of `shard_train`, in that order."""
    return data_loader(
        dataset,
        batch_size=batch_size,
        drop_last=True,
        num_workers=WORKERS,
        persistent_workers=True,
        multiprocessing_context="fork",
    )


class Running:
    """A loader that continues where it stopped: each iteration takes the next `batches` batches, epoch after epoch.

    Owns: the iterator over the loader, with its workers.
    """

    def __init__(self, loader: Iterable[Any], batches: int) -> None:
        self._stream = chain.from_iterable(repeat(loader))
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return islice(self._stream, self._batches)


def per_batch(loaders: Mapping[str, Iterable[Any]], *, rounds: int, ahead: int) -> dict[str, float]:
    """The median time of a batch of each loader over interleaved rounds.

    Args:
        loaders: `Running` loaders, or wrappers of them, which have been iterated over once.
        rounds: the number of rounds.
        ahead: the number of batches that workers may have ready before a round begins; these are not counted.
    """
    times: dict[str, list[float]] = {name: [] for name in loaders}
    for _ in range(rounds):
        for name, loader in loaders.items():
            taken = _time_of(loader, ahead)
            times[name].append(taken)
            # Until its workers have read ahead: the next one must not run beside them.
            time.sleep(ahead * taken)
    return {name: statistics.median(found) for name, found in times.items()}


def _time_of(loader: Iterable[Any], ahead: int) -> float:
    start, count = 0.0, 0
    for count, _ in enumerate(loader, 1):
        if count == ahead:
            start = time.perf_counter()
    assert count > ahead, f"{count} batches"
    return (time.perf_counter() - start) / (count - ahead)
