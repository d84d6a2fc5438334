"""Writing one shard or many: the name says which, and a new shard starts when the last is full."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from shard_format.errors import Closed, InvalidArgument
from shard_format.listing import is_there
from shard_format.sources import is_url
from shard_format.writer_input import NameSet
from shardpack._switch import Replacement, finish_replacements
from shardpack.dataset import Dataset
from shardpack.sets import (
    SetLabel,
    SetWriter,
    WrittenShards,
    can_be_listed,
    is_parts_folder,
    is_set,
    numbered_files,
)
from shardpack.writer import RecordWriter, ShardPackWriter, creation_time, output_name

if TYPE_CHECKING:
    from shardpack._record_encoder import EncodedRecord, RecordEncoder
    from shardpack.writer import Output

__all__ = ["ShardWriterSet", "WrittenShards", "is_set", "numbered_files"]


def how_to_continue(output: str) -> str:
    """The advice of an error that ends writing early."""
    if is_set(output):
        return "append=True continues after the finished shards"
    return "with a set of shards, such as 'train-%06d.shardpack', finished shards would be kept"


class ShardWriterSet(RecordWriter):
    """Writes a dataset of one or many shards. Each shard appears when it is complete.

    Keys are unique in the whole set. After a crash, every shard that is there is complete: open the set with
    `append=True` to continue after the last one; `key in writer` says what you need not write again. `close` writes
    the set file (`shardpack.sets`), which lists all shards.

    With `overwrite=True` the old shards stay until all new ones are complete and synced. Then `close` puts the new
    set in place of the old one. If anything goes wrong, even a kill or a power failure, you have the complete old
    set or the complete new one, never a part: the next process that opens the set finishes the switch.

    Args:
        output: `"train-%06d.shardpack"` for a set of shards; a name without a number, or an open file, for one file. A
            URL of an object store is fine, too.
        max_bytes: start a new shard before the file would grow above this. A larger record gets its own shard.
        max_records: start a new shard after this many records. One file ignores both limits.
        append: True keeps the existing shards and continues after them.
        overwrite: True replaces the existing shards. Without either, existing shards are an error.
        first: number of the first shard.
        refuse_full: True raises an error for a record above the limits instead of starting a new shard; for one
            file, too.
        label: the revision of the set; and the part, if several writers write one set (`shardpack.sets.commit`).
        options: what `ShardPackWriter` takes: `alignment`, `compression`, `metadata` and so on.
    """

    def __init__(
        self,
        output: Output,
        *,
        max_bytes: int | None = 1 << 30,
        max_records: int | None = None,
        append: bool = False,
        overwrite: bool = False,
        first: int = 0,
        refuse_full: bool = False,
        label: SetLabel | None = None,
        **options: Any,  # noqa: ANN401 - checked by the writer
    ) -> None:
        label = label or SetLabel()
        whole = output_name(output)
        self.output = label.output(whole)
        self._is_set = is_set(output)
        for what, value in (("max_bytes", max_bytes), ("max_records", max_records)):
            if value is not None and value < 1:
                raise InvalidArgument(f"{what} is too small", expected="1 or more", found=value)
        if append and overwrite:
            raise InvalidArgument("append and overwrite exclude each other", path=self.output)
        # One time for all shards.
        options["created"] = creation_time(options.get("created"))
        self._options = options
        self._max_bytes = max_bytes
        self._max_records = max_records
        self._refuse_full = refuse_full
        self._closed = False
        self._writer: ShardPackWriter | None = None
        self._finished: list[str] = []
        self._earlier: Dataset | None = None
        self._replacement: Replacement | None = None
        self._replaced: list[str] = []
        self._records = 0
        self._keeps_empty = False
        self._seen = NameSet()
        self._set: SetWriter | None = None
        self._first = self._number = first
        self.kept: list[str] = []
        """The shards that were there before and whose records stay."""
        if not self._is_set:
            self._writer = ShardPackWriter(output, append=append, overwrite=overwrite, **options)
            self._records = len(self._writer)
            self.kept = [self.output] if self._records else []
            return
        self._folder = os.path.dirname(self.path_of(first))
        storage = options.get("storage_options")
        if not is_url(self._folder):
            finish_replacements([self._folder])
        if can_be_listed(self.output):
            user = options.get("metadata") or {}
            self._set = SetWriter(whole, first, options["created"], user, label, storage)
        existing = numbered_files(self.output, first, storage)
        if existing and overwrite:
            if is_url(self.output) and not is_parts_folder(self._folder):
                raise InvalidArgument(
                    "a set in an object store cannot be replaced: readers would see parts of both",
                    path=existing[0],
                    hint="write the new set under another name, then delete the old one",
                )
            self._replaced = existing
            if not is_url(self.output):  # else a part, which is read only after it is committed
                base = os.path.basename(self.output)
                fsync = options.get("fsync", True)
                self._replacement = Replacement(self._folder, base, fsync=fsync)
        elif existing and not append:
            raise InvalidArgument(
                "there are shards of this name already",
                path=existing[0],
                hint="pass append=True to continue after them, or overwrite=True to replace them",
                command="pass --force to replace them",
            )
        elif existing:
            self._keep(existing)
        try:
            self._start_shard()
        except BaseException:
            self.abort()
            raise

    def _keep(self, existing: list[str]) -> None:
        """Continue after finished shards."""
        self.kept = list(existing)
        self._finished = existing
        self._number += len(existing)
        self._earlier = Dataset(existing, storage_options=self._options.get("storage_options"))
        self._records = len(self._earlier)
        hashes = []
        for path, shard in zip(existing, self._earlier.shards, strict=True):
            # Copies: views of all the shards would keep all of them open.
            hashes.append(np.array(shard.key_lookup()[0]))
            if self._set is not None:
                self._set.keep(shard, path)
        self._seen.add_hashes(np.concatenate(hashes))

    def path_of(self, number: int) -> str:
        """The name of the shard of this number."""
        return self.output % number if self._is_set else self.output

    @property
    def paths(self) -> list[str]:
        """The finished shards, under the names that they have after `close`."""
        if not self._is_set:
            return [self.output]
        if self._replacement is None:
            return list(self._finished)
        return [os.path.join(self._folder, os.path.basename(path)) for path in self._finished]

    def _start_shard(self) -> ShardPackWriter:
        path = self.path_of(self._number)
        if path not in self._replaced and is_there(path, self._options.get("storage_options")):
            # After a gap in the numbers.
            raise InvalidArgument(
                "another shard is in the way",
                path=path,
                expected=f"no shards from number {self._number} on",
                hint="remove it, or choose another name",
            )
        if self._replacement is not None:
            path = self._replacement.path_of(os.path.basename(path))
        if self._set is not None:
            self._set.make_room()
        is_old = self._replacement is None and path in self._replaced
        writer = ShardPackWriter(path, overwrite=is_old, **self._options)
        writer.share_keys(self._seen, self._is_in_finished)
        if self._set is not None:
            writer.hash_content()
        self._writer = writer
        return writer

    def _is_in_finished(self, key: str) -> bool:
        if not self._finished:
            return False
        if self._earlier is None or len(self._earlier.shards) != len(self._finished):
            if self._earlier is not None:
                self._earlier.close()
            self._earlier = Dataset(
                self._finished, storage_options=self._options.get("storage_options")
            )
        return key in self._earlier

    def _finish_shard(self) -> None:
        writer = self._writer
        assert writer is not None
        writer.close()
        self._finished.append(writer.name)
        self._number += 1
        if self._set is not None:
            assert writer.sha256 is not None  # both are known when it is closed
            assert writer.footer is not None
            self._set.add(writer.name, writer.sha256, writer.footer, writer.fields.get("schema"))

    def start_shard(self) -> None:
        """Finish the current shard, even an empty one, and start the next."""
        if not self._is_set:
            raise InvalidArgument("one file cannot have a second shard", path=self.output)
        self._open_writer()
        self._finish_shard()
        self._start_shard()
        self._keeps_empty = True

    @property
    def encoder(self) -> RecordEncoder:
        """Makes the bytes of records."""
        return self._open_writer().encoder

    def write_encoded(self, record: EncodedRecord) -> None:
        """Add a record that a writer with the same options has encoded."""
        self._writer_for(record.size).write_encoded(record)
        self._records += 1

    def _open_writer(self) -> ShardPackWriter:
        if self._closed or self._writer is None:
            raise Closed("the set is closed", path=self.output)
        return self._writer

    def _writer_for(self, record_bytes: int) -> ShardPackWriter:
        """The writer of the shard that takes the next record."""
        writer = self._open_writer()
        if not len(writer) or not (self._is_set or self._refuse_full):
            return writer
        is_full = (self._max_records is not None and len(writer) >= self._max_records) or (
            self._max_bytes is not None and writer.size_with(record_bytes) > self._max_bytes
        )
        if not is_full:
            return writer
        if self._refuse_full:
            limits = [
                f"{limit} {unit}"
                for limit, unit in ((self._max_bytes, "bytes"), (self._max_records, "records"))
                if limit is not None
            ]
            stem, suffix = os.path.splitext(self.output)
            raise InvalidArgument(
                "the records do not fit into one shard",
                path=self.output,
                expected=f"at most {' and '.join(limits)}",
                hint="name a set of shards, such as 'train-%06d.shardpack'",
                command=f"pass --output {stem}-%06d{suffix}, or a larger --shard-size",
            )
        self._finish_shard()
        return self._start_shard()

    def __contains__(self, key: object) -> bool:
        """Whether a record with this key is in the set, so that an interrupted run can skip it."""
        return key in self._open_writer()

    def __len__(self) -> int:
        return self._records

    def close(self) -> None:
        """Finish the last shard, write the set file, and put a new set in place of the old one. You can call it twice.

        A set without records has one shard without records.
        """
        if self._closed:
            return
        self._closed = True
        assert self._writer is not None
        try:
            if len(self._writer) or not self._finished or self._keeps_empty:
                self._finish_shard()
            else:
                self._writer.abort()
            self._release()
            set_file = self._write_set_file()
            if self._replacement is not None:
                self._replacement.commit(
                    [*map(os.path.basename, self._finished), *set_file],
                    lambda: list(map(os.path.basename, numbered_files(self.output, self._first))),
                )
        except BaseException:
            self.abort()
            raise

    def _write_set_file(self) -> list[str]:
        """Write the set file, beside the new shards until they are in place; returns its name, if there is one."""
        if self._set is None:
            return []
        name = os.path.basename(self._set.path)
        path = None if self._replacement is None else self._replacement.path_of(name)
        self._set.write(path, fsync=self._options.get("fsync", True))
        return [name]

    def abort(self) -> None:
        """Drop the shard that is being written; finished shards stay. With `overwrite`, the old set stays."""
        self._closed = True
        if self._writer is not None:
            self._writer.abort()
        self._release()
        if self._replacement is not None:
            self._replacement.abort()

    def _release(self) -> None:
        if self._earlier is not None:
            self._earlier.close()

    def __repr__(self) -> str:
        return f"<ShardWriterSet {self.output!r}: {self._records} records>"
