"""From any items to shards: your function makes the samples, in one process or in several.

    def make(path):
        with Image.open(path) as image:
            return path.stem, {"jpg": small(image)}, {"width": image.width}

    shardpack.pack(sorted(folder.glob("*.png")), "train-%06d.shardpack", make, processes=8)

The shards are the same bytes for any number of processes.
"""

from __future__ import annotations

import logging
import multiprocessing
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar

from shard_format.errors import (
    InvalidArgument,
    ShardError,
    ShardIOError,
    check_choice,
    must_stop,
    shorten,
)
from shard_format.executors import Executor, Failure, LocalExecutor, WorkerLost
from shardpack._record_encoder import EncodedRecord, RecordEncoder
from shardpack.dataset import Dataset
from shardpack.writer import output_name
from shardpack.writer_set import ShardWriterSet, how_to_continue

if TYPE_CHECKING:
    from collections.abc import Generator

    from shard_format.codecs import Compression
    from shardpack.writer import Output

__all__ = ["FailedItem", "PackResult", "Sample", "pack"]

Item = TypeVar("Item")

# All failures are logged and counted; keeping a million of them would fill the memory.
_MOST_FAILED_KEPT: Final = 1000
_LONGEST_SHOWN: Final = 120
_A_SAMPLE: Final = "(key, entries), (key, entries, metadata) or a shardpack.Sample"
_ENCODER_OPTIONS: Final = ("alignment", "compression", "max_record_bytes")
_AT_TOP_LEVEL: Final = (
    "define it at the top level of an importable module, or use processes=0 to stay in this process"
)
_BELOW_MAIN: Final = "in a script, call pack below `if __name__ == '__main__':`, so that worker processes can import it"


class Sample(NamedTuple):
    """One record to write; a plain tuple of the first two or three fields is the same.

    The fields are those of `ShardPackWriter.write`.
    """

    key: str
    """Names the sample; unique in all shards together."""
    entries: Mapping[str, Any]
    """Name to content: bytes, or a value that the suffix of the name says how to encode."""
    metadata: Mapping[str, Any] | None = None
    """What you want to know about the sample without reading its entries."""
    content_types: Mapping[str, str] | None = None
    """For names whose suffix does not say it."""
    compression: Mapping[str, str | Compression] | None = None
    """For single entries, by name."""


@dataclass(frozen=True, slots=True)
class FailedItem:
    """An item that was left out because of an error."""

    number: int
    """Its position in the input, from 0."""
    item: str
    """Its text form, shortened."""
    error: str
    """The class of the error and its message."""
    samples: int
    """Samples that it had given before the error; they are in the shards."""
    cause: BaseException | None = None
    """The error itself, if it could be brought here from another process."""


@dataclass(slots=True)
class PackResult:
    """What `pack` did."""

    paths: list[str] = field(default_factory=list)
    """All shards of the output, with those that were there before."""
    records: int = 0
    """Samples that were written."""
    known: int = 0
    """Samples that were not written because their keys were there before."""
    left_out: int = 0
    """Items for which `make` gave no sample."""
    failures: int = 0
    """Items that were left out because of an error."""
    failed: list[FailedItem] = field(default_factory=list)
    """The first thousand of them."""


def pack(
    items: Iterable[Item],
    output: Output,
    make: Callable[[Item], Any],
    *,
    key: Callable[[Item], str | Iterable[str]] | None = None,
    processes: int | Executor | None = 0,
    append: bool = False,
    on_error: Literal["raise", "skip"] = "raise",
    progress: Callable[[int], None] | None = None,
    **options: Any,  # noqa: ANN401 - checked by the writer
) -> PackResult:
    """Make samples of items and write them into shards, in the order of the items.

    One pass with bounded memory: `items` may be an endless generator, which is read a few items ahead. The same
    items and arguments give the same bytes for any number of processes, as long as `make` depends only on its
    item; seed any randomness from the item.

    Every shard that is there is complete. An error, an interrupt or the death of a process drops the shard that
    is being written, and `append=True` continues from there: you get the same shards as from an undisturbed run.

    Args:
        items: anything; with processes, anything that can be pickled.
        output: `"train-%06d.shardpack"` for a set of shards, one file, or an open file such as a pipe.
        make: `make(item)` returns `(key, entries)`, `(key, entries, metadata)` or a `Sample`; a list or generator
            of these for several; or None to leave the item out. With processes, a function at the top level of a
            module, or a `functools.partial` of one; all samples of one item are then in memory at once.
        key: `key(item)` returns the key, or the keys, that the samples of the item will have. With `append`, `make`
            is then not called for items whose samples are all there. Without it, `make` is called for every item,
            and samples that are there already are not written.
        processes: how many make and encode the samples. 0 and 1: this one; None: one for each processor. Or an
            executor: `shard_format.executors.LocalExecutor(4, context="spawn")` says how processes start (else
            Python's default decides), and `RayExecutor()` makes the samples on a cluster; this process writes them.
        append: True keeps the shards that are there and continues after them. Samples whose keys are there already
            are left out and counted.
        on_error: `"raise"`, or `"skip"` to leave out items for which `make` raises an error or returns what cannot
            be stored. They are counted, listed in the result, and reported to the logger `shardpack`. A lack of
            memory or of file descriptors, and a `TransportError`, are always raised: they are not about the item.
        progress: called with the number of items that are done since the last call: `tqdm.update` fits.
        options: what `ShardWriterSet` takes: `overwrite`, `max_bytes`, `max_records`, `compression`, `alignment`,
            `metadata`, `created`, `fsync` and so on.

    Raises:
        ShardError: `make` failed; the message names the item, and the cause is the original error.
        InvalidArgument: two samples have the same key, or something cannot be sent to a process.
        ShardIOError: a process was killed, or an output cannot be written.
    """
    name = output_name(output)
    if not callable(make):
        raise InvalidArgument("make is not a function", path=name, found=type(make).__name__)
    check_choice("on_error", on_error, ("raise", "skip"))
    encoding = {option: options[option] for option in _ENCODER_OPTIONS if option in options}
    function = SampleFunction(make, RecordEncoder(name, **encoding))
    executor = _executor_of(processes, name)
    with (
        ShardWriterSet(output, append=append, **options) as writer,
        Dataset(writer.kept) if writer.kept else nullcontext() as earlier,
    ):
        run = _PackRun(name, writer, earlier, on_error, progress)
        works = run.works(items, key)
        made = (
            _make_here(function, works)
            if executor is None
            else _make_elsewhere(function, works, executor, name)
        )
        with closing(made):
            for part in made:
                run.take(part)
    run.result.paths = writer.paths
    return run.result


def _executor_of(processes: int | Executor | None, name: str) -> Executor | None:
    """Who makes the samples; None for this process."""
    if not isinstance(processes, Executor):
        if processes is not None and processes < 0:
            raise InvalidArgument("processes is too small", expected="0 or more", found=processes)
        if processes in (0, 1):
            return None
        processes = LocalExecutor(processes, context=None)
    if isinstance(processes, LocalExecutor):
        if processes.jobs == 1:
            return None
        if multiprocessing.current_process().daemon:
            raise InvalidArgument(
                "this is a daemonic worker process, which cannot start processes",
                path=name,
                hint="use processes=0 to make the samples in this process",
            )
    return processes


class _Work(NamedTuple):
    """An item to make samples of."""

    number: int
    """Its position in the input, from 0."""
    item: Any
    keys: tuple[str, ...] | None
    """The keys that its samples will have, if they are known."""

    def __str__(self) -> str:
        return f"item {self.number}, {self.shown}"

    @property
    def shown(self) -> str:
        """The text form of the item, shortened."""
        try:
            shown = repr(self.item)
        except Exception:  # noqa: BLE001 - foreign code, while an error is being reported
            shown = object.__repr__(self.item)
        return shown if len(shown) <= _LONGEST_SHOWN else f"{shown[:_LONGEST_SHOWN]}…"


class _Made(NamedTuple):
    """Some of the records of an item, in order."""

    work: _Work
    records: list[EncodedRecord]
    is_done: bool
    """There are no more."""
    failure: Failure | None = None
    """The error that ended the item."""


class _PackRun:
    """Writes what is made. Owns: the result.

    Args:
        name: the output, for errors.
        writer: takes the records.
        earlier: the records that were there before, if any.
        on_error, progress: as for `pack`.
    """

    def __init__(
        self,
        name: str,
        writer: ShardWriterSet,
        earlier: Dataset | None,
        on_error: str,
        progress: Callable[[int], None] | None,
    ) -> None:
        self.result = PackResult()
        self._name = name
        self._writer = writer
        self._earlier = earlier
        self._on_error = on_error
        self._progress = progress
        self._samples = 0  # of the item that is being written

    def works(
        self, items: Iterable[Any], key: Callable[[Any], str | Iterable[str]] | None
    ) -> Iterator[_Work]:
        """The items, without those that need not be made."""
        for number, item in enumerate(items):
            work = _Work(number, item, None)
            if key is not None:
                work = work._replace(keys=self._keys_of(work, key))
                if work.keys and all(map(self._is_known, work.keys)):
                    self.result.known += len(work.keys)
                    self._report()
                    continue
            yield work

    def _keys_of(self, work: _Work, key: Callable[[Any], str | Iterable[str]]) -> tuple[str, ...]:
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
                    f"key returned something that is not a key, for {work}",
                    path=self._name,
                    expected="a string, or several",
                    found=type(one).__name__,
                )
        return keys

    def _is_known(self, key: str) -> bool:
        return self._earlier is not None and key in self._earlier

    def take(self, made: _Made) -> None:
        """Write some records of an item."""
        for record in made.records:
            self._write(made.work, record)
        if not made.is_done:
            return
        samples, self._samples = self._samples, 0
        if made.failure is not None:
            self._fail(made.work, made.failure, samples)
        elif not samples:
            self.result.left_out += 1
        self._report()

    def _write(self, work: _Work, record: EncodedRecord) -> None:
        self._samples += 1
        if work.keys is not None and record.key not in work.keys:
            raise InvalidArgument(
                f"make returned a different key than key, for {work}",
                path=self._name,
                expected=" or ".join(map(shorten, work.keys)),
                found=shorten(record.key),
            )
        if self._is_known(record.key):
            self.result.known += 1
            return
        try:
            self._writer.write_encoded(record)
        except InvalidArgument as error:
            error.found = error.found or f"again, in {work}"
            raise
        self.result.records += 1

    def _fail(self, work: _Work, failure: Failure, samples: int) -> None:
        cause = failure.cause
        if must_stop(cause) and isinstance(cause, OSError):
            raise ShardIOError.wrap(cause, f"make failed for {work}", self._name) from cause
        if self._on_error == "raise" or must_stop(cause):
            skipping = "" if must_stop(cause) else "on_error='skip' leaves such items out; "
            raise ShardError(
                f"make failed for {work}: {failure.summary}",
                path=self._name,
                hint=skipping + how_to_continue(self._name),
            ) from cause
        logging.getLogger("shardpack").warning(
            "%s: left out %s: %s", self._name, work, failure.summary
        )
        self.result.failures += 1
        if len(self.result.failed) < _MOST_FAILED_KEPT:
            self.result.failed.append(
                FailedItem(work.number, work.shown, failure.summary, samples, cause)
            )

    def _report(self) -> None:
        if self._progress is not None:
            self._progress(1)


# --- making samples


class SampleFunction:
    """Makes the records of items. Can be pickled if your function can.

    Args:
        make: returns the samples of an item; see `pack`.
        encoder: encodes them.
    """

    def __init__(self, make: Callable[[Any], Any], encoder: RecordEncoder) -> None:
        self._make = make
        self._encoder = encoder

    def records(self, item: Any) -> Iterator[EncodedRecord]:  # noqa: ANN401 - the caller's
        """The records of an item. Their bytes may change when you ask for the next one."""
        made = self._make(item)
        if made is None:
            return
        if isinstance(made, tuple):
            yield self._encode(made)
            return
        if not isinstance(made, Iterable) or isinstance(made, (str, bytes, Mapping)):
            raise InvalidArgument(
                "make returned no samples",
                expected=f"{_A_SAMPLE}; a list or generator of these; or None",
                found=type(made).__name__,
            )
        for sample in made:
            if sample is not None:
                yield self._encode(sample)

    def _encode(self, sample: Any) -> EncodedRecord:  # noqa: ANN401 - not checked yet
        if not isinstance(sample, tuple) or not 2 <= len(sample) <= len(Sample._fields):
            length = f" of {len(sample)}" if isinstance(sample, tuple) else ""
            raise InvalidArgument(
                "make returned something that is not a sample",
                expected=_A_SAMPLE,
                found=type(sample).__name__ + length,
            )
        found = Sample(*sample)
        for part in ("entries", "metadata", "content_types", "compression"):
            value = getattr(found, part)
            if not isinstance(value, Mapping) and (value is not None or part == "entries"):
                raise InvalidArgument(
                    f"the {part} of a sample are not a dictionary",
                    expected=_A_SAMPLE,
                    found=type(value).__name__,
                )
        return self._encoder.encode(*found)


def _make_here(function: SampleFunction, works: Iterable[_Work]) -> Generator[_Made, None, None]:
    """Make the records of all items in this process."""
    for work in works:
        failure = None
        try:
            for record in function.records(work.item):
                yield _Made(work, [record], False)
        except Exception as error:  # noqa: BLE001 - `on_error` decides
            failure = Failure.of(error)
        try:
            yield _Made(work, [], True, failure)
        finally:
            del failure  # the traceback of its error has this frame


# --- in several processes


class _ItemMaker:
    """Makes the records of a pickled item, in a worker process.

    Args:
        function: makes the records; pickled until it is first needed, unless the process is a fork.
    """

    def __init__(self, function: SampleFunction | bytes) -> None:
        self._function = function

    def __call__(self, item: bytes) -> tuple[list[EncodedRecord], Failure | None] | Failure:
        """The records, with the error that ended the item; or only an error if the function cannot be loaded."""
        if isinstance(self._function, bytes):
            try:
                self._function = pickle.loads(self._function)
            except Exception as error:  # noqa: BLE001 - goes to the first process
                return Failure.of(error).to_send()
        assert isinstance(self._function, SampleFunction)
        records: list[EncodedRecord] = []
        failure = None
        try:
            # Those before an error stay in the list.
            records.extend(
                record._replace(parts=[b"".join(record.parts)])
                for record in self._function.records(pickle.loads(item))
            )
        except (Exception, SystemExit) as error:  # noqa: BLE001 - goes to the first process
            failure = Failure.of(error).to_send()
        return records, failure


def _make_elsewhere(
    function: SampleFunction, works: Iterator[_Work], executor: Executor, name: str
) -> Generator[_Made, None, None]:
    """Make the records of all items in other processes; they come in the order of the items."""
    waiting: dict[int, _Work] = {}

    def items() -> Iterator[bytes]:
        for place, work in enumerate(works):
            waiting[place] = work
            yield _pickled(work.item, work, name)

    maker = _ItemMaker(function)
    if isinstance(executor, LocalExecutor) and not executor.forks:
        maker = _ItemMaker(_pickled(function, "make", name))
    try:
        with closing(executor.run(maker, items(), in_order=True)) as made:
            for place, result in made:
                work = waiting.pop(place)
                if isinstance(result, Failure):
                    raise InvalidArgument(
                        f"make cannot be used in a worker process: {result.summary}",
                        path=name,
                        hint=_AT_TOP_LEVEL,
                    ) from result.cause
                yield _Made(work, result[0], True, result[1])
    except WorkerLost as error:
        raise _process_ended([waiting[place] for place in error.numbers], error, name) from error


def _process_ended(works: list[_Work], error: WorkerLost, name: str) -> ShardError:
    """A process has ended without being stopped."""
    doing = f"{works[0]}"
    if len(works) > 1:
        doing = f"one of the items {works[0].number} to {works[-1].number}"
    hint = "if the system ran out of memory, use fewer processes; "
    if not error.has_begun:
        hint += f"{_BELOW_MAIN}; "
    return ShardIOError(
        f"a worker process was killed or ended by itself while it made {doing}",
        path=name,
        found=error.found,
        hint=hint + how_to_continue(name),
    )


def _pickled(value: Any, what: _Work | str, name: str) -> bytes:  # noqa: ANN401 - the caller's
    try:
        return pickle.dumps(value)
    except Exception as error:
        raise InvalidArgument(
            f"{what} cannot be sent to a worker process: {error}",
            path=name,
            hint=_AT_TOP_LEVEL if what == "make" else "processes=0 sends nothing",
        ) from error
