"""From any items to shards: a function makes the samples, in one process or in several.

    def make(path):
        with Image.open(path) as image:
            return path.stem, {"jpg": small(image)}, {"width": image.width}

    shardpack.pack(sorted(folder.glob("*.png")), "train-%06d.shardpack", make, processes=8)

The shards are the same bytes for any number of processes.
"""

from __future__ import annotations

import logging
import os
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from shard_format.errors import InvalidArgument, ShardError, shorten
from shardpack._making import Maker, Sample, Work, make_here
from shardpack._output import Output, how_to_go_on
from shardpack._preparing import Preparer
from shardpack.dataset import Dataset

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
    from datetime import datetime
    from multiprocessing.context import BaseContext

    from shardpack._making import Failure, Part
    from shardpack._preparing import Prepared
    from shardpack.encodings import EntryCompression

__all__ = ["FailedItem", "Packed", "Sample", "pack"]

Item = TypeVar("Item")

# All are logged and counted; a million of them need not stay in memory.
_MOST_FAILED_KEPT: Final = 1000


@dataclass(frozen=True, slots=True)
class FailedItem:
    """An item that was left out because of an error."""

    number: int
    """Its place in the input, from 0 on."""
    item: str
    """Its text form, shortened."""
    error: str
    """The class of the error and its message."""
    samples: int
    """Samples that it had given before; they are in the shards."""


@dataclass(slots=True)
class Packed:
    """What `pack` did."""

    paths: list[str] = field(default_factory=list)
    """All shards of the output, with those that were there before."""
    records: int = 0
    """Samples that were written."""
    known: int = 0
    """Samples that were not written because their keys were there before."""
    left_out: int = 0
    """Items of which `make` gave no sample."""
    failures: int = 0
    """Items that were left out because of an error."""
    failed: list[FailedItem] = field(default_factory=list)
    """The first thousand of them."""


def pack(
    items: Iterable[Item],
    output: str | os.PathLike[str],
    make: Callable[[Item], Any],
    *,
    key: Callable[[Item], str | Iterable[str]] | None = None,
    processes: int | None = 0,
    append: bool = False,
    on_error: Literal["raise", "skip"] = "raise",
    progress: Callable[[int], None] | None = None,
    max_bytes: int | None = 1 << 30,
    max_records: int | None = None,
    compression: str | EntryCompression | None = None,
    alignment: int = 8,
    metadata: Mapping[str, Any] | None = None,
    metadata_encoding: str = "json",
    created: str | float | datetime | None = None,
    fsync: bool = True,
    multiprocessing_context: str | BaseContext | None = None,
) -> Packed:
    """Makes samples of items and puts them into shards, in the order of the items.

    One pass, and memory that does not grow: `items` may be a generator without end, which is read a
    few items ahead. The same items and arguments give the same bytes for any number of processes, as
    long as `make` depends on nothing but its item; what it needs of chance it draws from a generator
    that is seeded with the item.

    Every shard that is there is complete. An error, an interrupt or the loss of a process drops the one
    that is being written, and `append=True` goes on from there: the shards become those that an
    undisturbed run gives.

    Args:
        items: anything. With processes, what can be pickled.
        output: `"train-%06d.shardpack"` for a set of shards, or one file.
        make: `make(item)` gives `(key, entries)`, `(key, entries, metadata)` or a `Sample`; a list or
            generator of these for several; or None to leave the item out. With processes, a function
            at the top level of a module, or a `functools.partial` of one.
        key: `key(item)` gives the key, or the keys, that the samples of the item will have. With
            `append`, `make` is then not called for items whose samples are all there; without it, it is
            called for every item, and what is there already is not written.
        processes: that make and encode the samples. 0 and 1: this one; None: one for each processor.
        append: True keeps the shards that are there, and goes on behind them. Samples whose keys were
            there before are left out and counted.
        on_error: `"raise"`, or `"skip"` to leave out items of which `make` raises an error, or gives what
            cannot be stored. They are counted, listed in the result, and each is reported to the
            logger `shardpack`.
        progress: told the number of items that are done since the last call: `tqdm.update` fits.
        max_bytes, max_records: a new shard of a set starts before it would be larger.
        compression, alignment, metadata, metadata_encoding, created, fsync: as for `ShardPackWriter`.
        multiprocessing_context: how processes are started, `"fork"`, `"spawn"` or `"forkserver"`; what
            Python does on this system if left out.

    Raises:
        ShardError: `make` failed; the message names the item, and the cause is the original error.
        InvalidArgument: two samples have the same key, or something cannot be sent to a process.
        ShardIOError: a process was killed, or an output cannot be written.
    """
    name = os.fspath(output)
    if not callable(make):
        raise InvalidArgument("make is no function", path=name, found=type(make).__name__)
    if on_error not in ("raise", "skip"):
        raise InvalidArgument(
            "unknown on_error", expected="'raise' or 'skip'", found=repr(on_error)
        )
    count = _process_count(processes)
    preparer = Preparer(
        name, alignment=alignment, compression=compression, metadata_encoding=metadata_encoding
    )
    made = _way_to_make(Maker(make, preparer), count, multiprocessing_context, name)
    with (
        Output(
            name,
            max_bytes=max_bytes,
            max_records=max_records,
            compression=compression,
            alignment=alignment,
            metadata=metadata,
            metadata_encoding=metadata_encoding,
            created=created,
            fsync=fsync,
            append=append,
        ) as writer,
        Dataset(writer.earlier) if writer.earlier else nullcontext() as earlier,
    ):
        packing = _Packing(name, writer, earlier, key, on_error, progress)
        with closing(made(packing.works(items))) as parts:
            for part in parts:
                packing.take(part)
    packing.done.paths = writer.paths
    return packing.done


def _way_to_make(
    maker: Maker, processes: int, context: str | BaseContext | None, name: str
) -> Callable[[Iterator[Work]], Generator[Part, None, None]]:
    if processes <= 1:
        return partial(make_here, maker)
    from shardpack._packing_processes import Processes

    return Processes(maker, processes, context, name).make


def _process_count(processes: int | None) -> int:
    if processes is None:
        if hasattr(os, "sched_getaffinity"):
            return len(os.sched_getaffinity(0))
        return os.cpu_count() or 1
    if processes < 0:
        raise InvalidArgument("processes is too small", expected="0 or more", found=processes)
    return processes


class _Packing:
    """Writes what is made. Owns: the result.

    Args:
        name: the output, for errors.
        writer: where records go.
        earlier: what was there before, if anything.
        key, on_error, progress: as for `pack`.
    """

    def __init__(
        self,
        name: str,
        writer: Output,
        earlier: Dataset | None,
        key: Callable[[Any], str | Iterable[str]] | None,
        on_error: str,
        progress: Callable[[int], None] | None,
    ) -> None:
        self.done = Packed()
        self._name = name
        self._writer = writer
        self._earlier = earlier
        self._key = key
        self._on_error = on_error
        self._progress = progress
        self._samples = 0  # of the item that is being written

    def works(self, items: Iterable[Any]) -> Iterator[Work]:
        """The items, without those that need not be made."""
        for number, item in enumerate(items):
            work = Work(number, item, None)
            if self._key is not None:
                work = work._replace(keys=self._keys_of(work, self._key))
                if work.keys and all(map(self._is_known, work.keys)):
                    self.done.known += len(work.keys)
                    self._tell()
                    continue
            yield work

    def _keys_of(self, work: Work, key: Callable[[Any], str | Iterable[str]]) -> tuple[str, ...]:
        try:
            found = key(work.item)
            keys = (found,) if isinstance(found, str) else tuple(found)
        except Exception as error:
            raise ShardError(
                f"key failed for {work}: {type(error).__name__}: {error}", path=self._name
            ) from error
        for one in keys:
            if not isinstance(one, str):
                raise InvalidArgument(
                    f"key gave no key for {work}",
                    path=self._name,
                    expected="a string, or several",
                    found=type(one).__name__,
                )
        return keys

    def _is_known(self, key: str) -> bool:
        return self._earlier is not None and key in self._earlier

    def take(self, part: Part) -> None:
        """Writes some records of an item."""
        for record in part.records:
            self._write(part.work, record)
        if not part.is_done:
            return
        samples, self._samples = self._samples, 0
        if part.failure is not None:
            self._fail(part.work, part.failure, samples)
        elif not samples:
            self.done.left_out += 1
        self._tell()

    def _write(self, work: Work, record: Prepared) -> None:
        self._samples += 1
        if work.keys is not None and record.key not in work.keys:
            raise InvalidArgument(
                f"make gave another key than key said, for {work}",
                path=self._name,
                expected=" or ".join(map(shorten, work.keys)),
                found=shorten(record.key),
            )
        if self._is_known(record.key):
            self.done.known += 1
            return
        try:
            self._writer.write_prepared(record)
        except InvalidArgument as error:
            error.found = error.found or f"it again, of {work}"
            raise
        self.done.records += 1

    def _fail(self, work: Work, failure: Failure, samples: int) -> None:
        if self._on_error == "raise":
            raise ShardError(
                f"make failed for {work}: {failure.summary}",
                path=self._name,
                hint=f"on_error='skip' leaves such items out; {how_to_go_on(self._name)}",
            ) from failure.cause
        logging.getLogger("shardpack").warning(
            "%s: %s was left out: %s", self._name, work, failure.summary
        )
        self.done.failures += 1
        if len(self.done.failed) < _MOST_FAILED_KEPT:
            shown = str(work).partition(", ")[2]
            self.done.failed.append(FailedItem(work.number, shown, failure.summary, samples))

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(1)
