"""Training on samples of packs: batches through loaders with worker processes."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Goal, Table
from benchmarks.loaders import WORKERS, Running, our_loader, per_batch, plan, torch_loader
from benchmarks.pack_peers import (
    ArrayRecord,
    LitData,
    Lmdb,
    Mds,
    Peer,
    Samples,
    ShardPack,
)
from benchmarks.pack_tables import HuggingFace
from benchmarks.recorders import is_installed
from benchmarks.sample_loaders import (
    BATCH,
    Converted,
    Grain,
    PeerSamples,
    Pread,
    TarFiles,
    as_is,
    of_dictionaries,
    of_named_columns,
    stream_loader,
)
from shard_train import SampleDataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from benchmarks.pack_peers import Sample

SAMPLES = 20_000
BATCHES = 72
"""Batches of one round."""
AHEAD = 24
"""Batches that Grain may have ready; torch has four."""
SLOW_SAMPLES = 4_000
"""Samples in streams that are slow to pack."""
RANDOM: tuple[type[Peer], ...] = (Lmdb, Mds, HuggingFace, ArrayRecord)
STREAMS: tuple[type[Peer], ...] = (TarFiles, LitData)
OURS = "SampleDataset, data_loader (CRC checked)"
PLAIN = "SampleDataset, samples as they are (CRC checked)"


def run(folder: Path) -> Iterator[Table]:
    samples = Samples(SAMPLES)
    loaders = prepare(folder, samples)
    for name, loader in loaders.items():
        check(name, loader, samples)
    medians = per_batch(loaders, rounds=7, ahead=AHEAD)
    yield Table(
        f"Samples through loaders with {WORKERS} workers",
        f"Batches of {BATCH} from {SAMPLES} samples in random order. The order is the same for all loaders except WebDataset, "
        "LitData and Grain, which choose their own. The training process gets all entries as bytes. Workers were started "
        "before the measurement. Time per sample.",
        {name: median / BATCH for name, median in medians.items()},
        [Goal(OURS, Pread.name, 1.1)],
    )


def write(folder: Path, kind: type[Peer], samples: Sequence[Sample]) -> Peer:
    place = folder / kind.__name__
    place.mkdir()
    peer = kind(place)
    peer.count = len(samples)
    peer.write(samples)
    return peer


def prepare(folder: Path, samples: Samples) -> dict[str, Iterable[Any]]:
    """Write the samples in all formats and make a loader for each, by name."""
    many = samples.first(SAMPLES)
    packed = write(folder, ShardPack, many).path("d.shardpack")
    bare = write(folder, Pread, many)
    loaders: dict[str, Iterable[Any]] = {
        OURS: our_loader(SampleDataset(packed, decode=False), BATCH),
        PLAIN: torch_loader(SampleDataset(packed, decode=False), BATCH, list),
        Pread.name: torch_loader(PeerSamples(bare), BATCH, as_is),
    }
    for kind in RANDOM:
        if is_here(kind.name, kind.packages):
            loaders[kind.name] = torch_loader(PeerSamples(write(folder, kind, many)), BATCH, as_is)
    for kind in STREAMS:
        if is_here(kind.name, kind.packages):
            peer = write(folder, kind, many[:SLOW_SAMPLES] if kind.is_slow else many)
            loaders[kind.name] = stream_loader(peer)
    if is_here(Grain.name, Grain.packages):
        loaders[Grain.name] = Grain(ArrayRecord(folder / ArrayRecord.__name__))
    convert: dict[str, Callable[[Any], Any]] = {OURS: of_named_columns, PLAIN: of_dictionaries}
    return {
        name: Converted(Running(loader, BATCHES), convert.get(name, as_is))
        for name, loader in loaders.items()
    }


def is_here(name: str, packages: Sequence[str]) -> bool:
    """Whether the packages of a peer are installed; prints its name if not."""
    found = is_installed(*packages)
    if not found:
        print(f"not installed, left out: {name}", file=sys.stderr)
    return found


def check(name: str, batches: Iterable[Any], samples: Samples) -> None:
    """Start the workers of a loader, and check that it returns what was written."""
    is_free = name in (Grain.name, *(kind.name for kind in STREAMS))
    for batch, numbers in zip(batches, plan(SAMPLES, BATCH).batches(), strict=False):
        found = [json.loads(label)["number"] for _, label, _ in batch]
        assert len(found) == BATCH, f"{name}: {len(found)} samples"
        assert is_free or found == numbers.tolist(), f"{name}: another order"
        for number, contents in zip(found, batch, strict=True):
            assert contents == samples[number].contents, f"{name}: sample {number}"
