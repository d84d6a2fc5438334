"""Writing many shards: a new one starts when the last is full."""

from __future__ import annotations

import glob
import os
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from shard_format._atomic import SUFFIX
from shard_format._nameset import NameSet
from shard_format.errors import Closed, InvalidArgument
from shardpack._layout import MetadataEncoding
from shardpack.dataset import Dataset
from shardpack.writer import ShardPackWriter, creation_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import TracebackType

    from typing_extensions import Self

    from shardpack._preparing import Prepared
    from shardpack.encodings import EntryCompression
    from shardpack.record import Record, StoredEntry

__all__ = ["ShardWriterSet"]

_NUMBER = re.compile(r"%0?(\d*)d")


class ShardWriterSet:
    """Writes a data set of shards, each of which appears when it is complete.

    Keys are unique in the whole set. Every shard that is there is finished: after a crash, opening with
    `append=True` goes on behind the last one, and `key in writer` says what need not be written again.

    Args:
        pattern: the name of the shards with one number in it: `"train-%06d.shardpack"`.
        max_bytes: a new shard starts before the file would grow above this. A record that is larger
            than that has a shard of its own.
        max_records: a new shard starts after so many records.
        append: True keeps the shards that are there and goes on behind them. Otherwise they are an
            error: nothing is replaced unasked.
        first: number of the first shard.
        options: what `ShardPackWriter` takes: `alignment`, `compression`, `metadata` and so on.
    """

    def __init__(
        self,
        pattern: str | os.PathLike[str],
        *,
        max_bytes: int | None = 1 << 30,
        max_records: int | None = None,
        append: bool = False,
        first: int = 0,
        **options: Any,  # noqa: ANN401 - checked by the writer
    ) -> None:
        self.pattern = os.fspath(pattern)
        numbers = _NUMBER.findall(self.pattern.replace("%%", ""))
        if len(numbers) != 1:
            raise InvalidArgument(
                "the name of a set needs one number",
                path=self.pattern,
                expected="such as 'train-%06d.shardpack'",
            )
        for what, value in (("max_bytes", max_bytes), ("max_records", max_records)):
            if value is not None and value < 1:
                raise InvalidArgument(f"{what} is too small", expected="1 or more", found=value)
        # One time for all shards.
        options["created"] = creation_time(options.get("created"))
        self._options = options
        self._max_bytes = max_bytes
        self._max_records = max_records
        self._closed = False
        self._writer: ShardPackWriter | None = None
        self._finished: list[str] = []
        self._earlier: Dataset | None = None
        self._records = 0
        self._seen = NameSet()
        existing = self._existing(first)
        if existing and not append:
            raise InvalidArgument(
                "there are shards of this name already",
                path=existing[0],
                hint="pass append=True to go on behind them, or remove them",
            )
        self._finished = existing
        self._number = first + len(existing)
        if existing:
            self._earlier = Dataset(existing)
            self._records = len(self._earlier)
            self._seen.add_hashes(
                np.concatenate([shard.index.lookup_arrays()[0] for shard in self._earlier.shards])
            )
        self._start_shard()

    def _existing(self, first: int) -> list[str]:
        found: list[str] = []
        while os.path.exists(path := self.path_of(first + len(found))):
            found.append(path)
        return found

    def path_of(self, number: int) -> str:
        """The name of the shard of this number."""
        return self.pattern % number

    @property
    def paths(self) -> list[str]:
        """The shards that are finished."""
        return list(self._finished)

    @property
    def leftovers(self) -> list[str]:
        """Unfinished files of writers that were killed: `shardpack.recover` reads them.

        One that another process is writing at the moment is among them.
        """
        folder, base = os.path.split(self.pattern)
        name = glob.escape(_NUMBER.sub("\0", base.replace("%%", "%"))).replace("\0", "*")
        found = glob.glob(os.path.join(glob.escape(folder), f".{name}.*{SUFFIX}"))
        own = None if self._writer is None else self._writer.temporary
        return sorted(path for path in found if own is None or not os.path.samefile(path, own))

    def _start_shard(self) -> ShardPackWriter:
        path = self.path_of(self._number)
        if os.path.lexists(path):  # behind a gap in the numbers
            raise InvalidArgument(
                "another shard is in the way",
                path=path,
                expected=f"free names from number {self._number} on",
                hint="remove it, or choose another name",
            )
        writer = ShardPackWriter(path, **self._options)
        writer.join_set(self._seen, self._is_in_finished)
        self._writer = writer
        return writer

    def _is_in_finished(self, key: str) -> bool:
        if not self._finished:
            return False
        if self._earlier is None or len(self._earlier.shards) != len(self._finished):
            if self._earlier is not None:
                self._earlier.close()
            self._earlier = Dataset(self._finished)
        return key in self._earlier

    def _finish_shard(self) -> None:
        assert self._writer is not None
        self._writer.close()
        self._finished.append(self._writer.name)
        self._number += 1

    def write(
        self,
        key: str,
        entries: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
        *,
        content_types: Mapping[str, str] | None = None,
        compression: Mapping[str, str | EntryCompression] | None = None,
    ) -> None:
        """Adds a record; the arguments are those of `ShardPackWriter.write`."""
        self.write_prepared(
            self._open_writer().prepare(key, entries, metadata, content_types, compression)
        )

    def write_prepared(self, prepared: Prepared) -> None:
        """Adds a record that a writer with the same options has prepared."""
        writer = self._open_writer()
        if self._is_full(writer, prepared.size):
            writer = self._next_shard()
        writer.write_prepared(prepared)
        self._records += 1

    def write_stored(
        self,
        key: str,
        entries: Iterable[StoredEntry],
        metadata_encoding: MetadataEncoding = MetadataEncoding.NONE,
        metadata: bytes = b"",
    ) -> None:
        """Adds a record of entries that are encoded already; see `ShardPackWriter.write_stored`."""
        self.write_prepared(
            self._open_writer().prepare_stored(key, entries, metadata_encoding, metadata)
        )

    def copy(self, record: Record, *, key: str | None = None, check: bool = True) -> None:
        """Adds a record of another shard as it is; see `ShardPackWriter.copy`."""
        writer = self._open_writer()
        if self._is_full(writer, record.size):
            writer = self._next_shard()
        writer.copy(record, key=key, check=check)
        self._records += 1

    def _open_writer(self) -> ShardPackWriter:
        if self._closed or self._writer is None:
            raise Closed("the set is closed", path=self.pattern)
        return self._writer

    def _is_full(self, writer: ShardPackWriter, record_bytes: int) -> bool:
        if not len(writer):
            return False
        if self._max_records is not None and len(writer) >= self._max_records:
            return True
        return self._max_bytes is not None and writer.size_with(record_bytes) > self._max_bytes

    def _next_shard(self) -> ShardPackWriter:
        self._finish_shard()
        return self._start_shard()

    def __contains__(self, key: object) -> bool:
        """Whether a record with this key is in the set, so that an interrupted run can skip it."""
        return key in self._open_writer()

    def __len__(self) -> int:
        return self._records

    def close(self) -> None:
        """Finishes the last shard. A set without records has one shard without records."""
        if self._closed:
            return
        self._closed = True
        assert self._writer is not None
        if len(self._writer) or not self._finished:
            self._finish_shard()
        else:
            self._writer.abort()
        self._let_go()

    def abort(self) -> None:
        """Drops the shard that is being written; those that are finished stay."""
        self._closed = True
        if self._writer is not None:
            self._writer.abort()
        self._let_go()

    def _let_go(self) -> None:
        if self._earlier is not None:
            self._earlier.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def __repr__(self) -> str:
        return f"<ShardWriterSet {self.pattern!r}: {self._records} records>"
