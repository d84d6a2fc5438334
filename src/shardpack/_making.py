"""From an item to its records: what `pack` does in this process or in others."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shard_format.errors import InvalidArgument

if TYPE_CHECKING:
    from shardpack._preparing import Prepared, Preparer
    from shardpack.encodings import EntryCompression

_LONGEST_SHOWN: Final = 120
_A_SAMPLE: Final = "(key, entries), (key, entries, metadata) or a shardpack.Sample"


class Sample(NamedTuple):
    """What becomes one record; a plain tuple of the first two or three is the same.

    The fields are those of `ShardPackWriter.write`.
    """

    key: str
    """Names the sample; unique in all shards together."""
    entries: Mapping[str, Any]
    """Name to content: bytes, or a value that the ending of the name says how to store."""
    metadata: Mapping[str, Any] | None = None
    """What is to be known about the sample without reading its entries."""
    content_types: Mapping[str, str] | None = None
    """For names whose ending does not say it."""
    compression: Mapping[str, str | EntryCompression] | None = None
    """For single entries, by name."""


class Work(NamedTuple):
    """An item that is to be made into samples."""

    number: int
    """Its place in the input, from 0 on."""
    item: Any
    keys: tuple[str, ...] | None
    """The keys that its samples will have, if they are known before."""

    def __str__(self) -> str:
        try:
            shown = repr(self.item)
        except Exception:  # noqa: BLE001 - somebody else's code, while an error is being reported
            shown = object.__repr__(self.item)
        if len(shown) > _LONGEST_SHOWN:
            shown = f"{shown[:_LONGEST_SHOWN]}…"
        return f"item {self.number}, {shown}"


class RemoteTraceback(Exception):
    """Where in a worker process an error was raised; the cause of that error, so that it is shown."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Failure(NamedTuple):
    """An error of `make`, as it goes from one process to another."""

    summary: str
    """Its class and message in one line."""
    error: BaseException | None
    """None if it was raised in another process."""
    pickled: bytes = b""
    """The error of another process, if it can be pickled."""
    trace: str = ""
    """Where it was raised in another process."""

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """An error of this process."""
        message = " ".join(str(error).split())
        summary = type(error).__name__ + (f": {message}" if message else "")
        return cls(summary, error)

    def to_send(self) -> Failure:
        """The same in a form that always arrives."""
        assert self.error is not None
        trace = "".join(traceback.format_exception(self.error))
        try:
            pickled = pickle.dumps(self.error)
        except Exception:  # noqa: BLE001 - whatever classes of errors do when they are copied
            pickled = b""
        return Failure(self.summary, None, pickled, trace)

    @property
    def cause(self) -> BaseException:
        """What to raise an error from: the original, with its traceback if it is from elsewhere."""
        if self.error is not None:
            return self.error
        remote = RemoteTraceback(self.trace)
        try:
            error = pickle.loads(self.pickled)
        except Exception:  # noqa: BLE001 - as above; the text says all
            return remote
        if not isinstance(error, BaseException):
            return remote
        error.__cause__ = remote
        return error


class Part(NamedTuple):
    """Some of the records of an item, in order."""

    work: Work
    records: list[Prepared]
    is_done: bool
    """There are no more."""
    failure: Failure | None
    """Why there are no more, if that is an error."""


class Maker:
    """Makes the records of items. Goes to other processes if the function does.

    Args:
        make: gives the samples of an item; see `shardpack.pack`.
        preparer: encodes them.
    """

    def __init__(self, make: Callable[[Any], Any], preparer: Preparer) -> None:
        self._make = make
        self._preparer = preparer

    def records(self, item: Any) -> Iterator[Prepared]:  # noqa: ANN401 - the caller's
        """The records of an item, each ready to be written, one by one.

        What they hold may change when the next one is asked for.
        """
        made = self._make(item)
        if made is None:
            return
        if isinstance(made, tuple):
            yield self._prepare(made)
            return
        if not isinstance(made, Iterable) or isinstance(made, (str, bytes, Mapping)):
            raise InvalidArgument(
                "make gave no samples",
                expected=f"{_A_SAMPLE}; a list or generator of these; or None",
                found=type(made).__name__,
            )
        for sample in made:
            if sample is not None:
                yield self._prepare(sample)

    def _prepare(self, sample: Any) -> Prepared:  # noqa: ANN401 - not checked yet
        if not isinstance(sample, tuple) or not 2 <= len(sample) <= len(Sample._fields):
            length = f" of {len(sample)}" if isinstance(sample, tuple) else ""
            raise InvalidArgument(
                "make gave something that is no sample",
                expected=_A_SAMPLE,
                found=type(sample).__name__ + length,
            )
        found = Sample(*sample)
        for field in ("entries", "metadata", "content_types", "compression"):
            value = getattr(found, field)
            if not isinstance(value, Mapping) and (value is not None or field == "entries"):
                raise InvalidArgument(
                    f"the {field} of a sample are no dictionary",
                    expected=_A_SAMPLE,
                    found=type(value).__name__,
                )
        return self._preparer.prepare(*found)


def make_here(maker: Maker, works: Iterable[Work]) -> Generator[Part, None, None]:
    """Makes the records of all items in this process."""
    for work in works:
        failure = None
        try:
            for record in maker.records(work.item):
                yield Part(work, [record], False, None)
        except Exception as error:  # noqa: BLE001 - the caller of `pack` decides
            failure = Failure.of(error)
        yield Part(work, [], True, failure)
