"""Loaders of samples with two workers, ours and the peers': each gives batches of picture, label and array as bytes.

The formats are those of `pack_peers`. Each worker opens the files itself.
"""

from __future__ import annotations

import os
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import DataLoader, IterableDataset

from benchmarks.loaders import WORKERS
from benchmarks.pack_peers import NAMES, ArrayRecord, Peer, WebDataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from benchmarks.pack_peers import Sample

    Contents = tuple[bytes, bytes, bytes]
    """Picture, label and array."""
    Batch = Sequence[Contents]

BATCH = 64


class Pread(Peer):
    """One system call per sample at a known place: the lower bound for any format."""

    name = "bare pread loop"

    def write(self, samples: Sequence[Sample]) -> None:
        lengths = [list(map(len, sample.contents)) for sample in samples]
        ends = np.cumsum(lengths).reshape(-1, len(NAMES))
        np.save(self.path("ends.npy"), ends)
        with open(self.path("d.bin"), "wb") as file:
            file.writelines(chain.from_iterable(sample.contents for sample in samples))

    def open(self) -> None:
        ends = np.load(self.path("ends.npy"))
        starts = np.concatenate([[0], ends[:-1, -1]])
        self._places = np.column_stack([starts, ends - starts[:, None]]).tolist()
        self._file = os.open(self.path("d.bin"), os.O_RDONLY)

    def close(self) -> None:
        os.close(self._file)

    def get(self, number: int) -> Contents:
        start, first, second, size = self._places[number]
        value = os.pread(self._file, size, start)
        return value[:first], value[first:second], value[second:]

    def samples(self) -> Iterator[Contents]:
        return map(self.get, range(self.count))

    def contents(self, sample: Contents) -> Contents:
        return sample


class PeerSamples:
    """Samples of a peer by their numbers."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._is_open = False

    def __len__(self) -> int:
        return self._peer.count

    def __getitems__(self, numbers: list[int]) -> list[Contents]:
        if not self._is_open:
            self._peer.open()
            self._is_open = True
        return list(map(self._peer.contents, self._peer.take(numbers)))


class TarFiles(WebDataset):
    """One file per worker."""

    name = "WebDataset, mtime=0"

    def write(self, samples: Sequence[Sample]) -> None:
        from webdataset import ShardWriter

        of_each = -(-len(samples) // WORKERS)
        with ShardWriter(
            self.path("d-%d.tar"), maxcount=of_each, encoder=False, mtime=0, verbose=0
        ) as writer:
            for key, *contents in samples:
                writer.write({"__key__": key, **dict(zip(NAMES, contents, strict=True))})

    def open(self) -> None:
        import webdataset

        paths = [self.path(f"d-{number}.tar") for number in range(WORKERS)]
        self._dataset = webdataset.WebDataset(paths, shardshuffle=False)


class PeerStream(IterableDataset):  # type: ignore[misc]  # torch is not there where types are checked
    """Batches of a peer that reads from start to end and divides its samples among the workers itself."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def __iter__(self) -> Iterator[list[Contents]]:
        self._peer.open()
        endless = chain.from_iterable(self._peer.samples() for _ in repeat(None))
        contents = map(self._peer.contents, endless)
        while True:
            yield list(islice(contents, BATCH))


def as_is(samples: Any) -> Any:  # noqa: ANN401 - whatever there is
    """Collate nothing."""
    return samples


def stream_loader(peer: Peer) -> DataLoader[Any]:
    """The DataLoader of torch over a stream."""
    return DataLoader(
        PeerStream(peer),
        batch_size=None,
        num_workers=WORKERS,
        collate_fn=as_is,
        persistent_workers=True,
        multiprocessing_context="fork",
    )


class Grain:
    """Grain's own loader over a file of ArrayRecord, with its own random order and its own processes.

    Owns: the iterator, whose processes run until it is deleted.
    """

    name = "ArrayRecord, Grain's loader"
    packages = ("grain", "array_record")

    def __init__(self, peer: ArrayRecord) -> None:
        import grain
        from absl import flags

        # Its processes ask for options of the command line, which only its own kind of program reads.
        flags.FLAGS.mark_as_parsed()
        source = grain.sources.ArrayRecordDataSource(peer.path("d.arrayrecord"))
        samples = grain.MapDataset.source(source).seed(0).shuffle().repeat().map(peer.contents)
        # By default it has twice as many threads, which is no faster, and has 500 batches ready.
        batches = samples.batch(BATCH, batch_fn=list).to_iter_dataset(
            grain.ReadOptions(num_threads=8, prefetch_buffer_size=8)
        )
        options = grain.MultiprocessingOptions(num_workers=WORKERS)
        self._batches: Iterator[list[Contents]] = iter(batches.mp_prefetch(options))

    def __iter__(self) -> Iterator[list[Contents]]:
        return self._batches


class Converted:
    """Batches in the form that is compared: tuples of bytes from every loader.

    Args:
        batches: the batches of a loader.
        convert: converts a batch to tuples of bytes; its time counts.
    """

    def __init__(self, batches: Iterable[Any], convert: Callable[[Any], Batch]) -> None:
        self._batches = batches
        self._convert = convert

    def __iter__(self) -> Iterator[Batch]:
        return map(self._convert, self._batches)


def of_dictionaries(batch: Sequence[dict[str, bytes]]) -> Batch:
    return [(sample["jpg"], sample["json"], sample["npy"]) for sample in batch]


def of_named_columns(batch: dict[str, Iterable[bytes]]) -> Batch:
    return list(zip(batch["jpg"], batch["json"], batch["npy"], strict=True))
