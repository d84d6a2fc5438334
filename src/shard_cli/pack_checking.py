"""Checking shards completely: index, lookup, every record, every entry."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shard_cli.exits import Exit, error_fields, exit_for, worst
from shard_cli.opening import limits_with

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from shard_format import Limits, ShardError
    from shardpack import Record, ShardPackReader


@dataclass(slots=True)
class CheckedPack:
    """What checking a shard found."""

    file: str
    opens: bool = False
    records: int = 0
    listed: int = 0
    """Entries of the records that can be read."""
    entries: int = 0
    """Those of them that are undamaged."""
    bytes: int = 0
    errors: list[ShardError] = field(default_factory=list)
    hashes: NDArray[np.uint64] | None = None
    """Of the keys, by record, to find those that are in two shards; None if the lookup is damaged."""

    @property
    def exit(self) -> Exit:
        """What this shard means for the exit code."""
        return worst([exit_for(error.code) for error in self.errors])

    def to_fields(self) -> dict[str, Any]:
        """The result as `--json` shows it."""
        return {
            "file": self.file,
            "ok": not self.errors,
            "records": self.records,
            "entries": self.entries,
            "bytes": self.bytes,
            "errors": [error_fields(error) for error in self.errors],
        }


def check_shard(
    path: str, max_decompressed: int | None, progress: Callable[[int, int], None]
) -> CheckedPack:
    """Reads all of a shard; what cannot be opened is a result, too. Can run in another process."""
    from shard_format.errors import ShardError
    from shardpack import ShardPackReader

    checked = CheckedPack(path)
    try:
        with ShardPackReader(path, limits=limits_with(max_decompressed)) as reader:
            checked.opens = True
            checked.bytes = reader.footer.total_size
            _check_index(reader, checked)
            _check_records(reader, checked, progress)
    except ShardError as error:
        checked.errors.append(error)
    return checked


def _check_index(reader: ShardPackReader, checked: CheckedPack) -> None:
    """Metadata and lookup."""
    from shard_format.errors import ShardError

    try:
        _ = reader.metadata
    except ShardError as error:
        checked.errors.append(error)
    try:
        hashes, numbers = reader.index.lookup_arrays()
    except ShardError as error:
        checked.errors.append(error.located(path=reader.name))
        return
    by_record = hashes.copy()
    by_record[numbers] = hashes
    checked.hashes = by_record


def _check_records(
    reader: ShardPackReader,
    checked: CheckedPack,
    progress: Callable[[int, int], None],
) -> None:
    from shard_format.errors import ShardError

    total = reader.footer.index_offset
    offsets = reader.get_index()
    for number in range(len(reader)):
        progress(offsets[number], total)
        try:
            record = reader.record(number)
            key_hash = None if checked.hashes is None else int(checked.hashes[number])
            _check_record(record, key_hash, reader)
        except ShardError as error:
            checked.errors.append(error)
            continue
        checked.records += 1
        checked.listed += len(record)
        for entry in record.file_entries():
            try:
                _ = entry.data
            except ShardError as error:  # one damaged entry does not hide the others
                checked.errors.append(error)
                continue
            checked.entries += 1


def _check_record(record: Record, key_hash: int | None, reader: ShardPackReader) -> None:
    from xxhash import xxh64_intdigest

    from shard_format.errors import BadOffset, shorten

    key = record.key
    _ = record.metadata
    record.file_entries()
    if key_hash is None:
        return
    if xxh64_intdigest(key.encode()) != key_hash:
        raise BadOffset(
            f"the lookup does not lead to record {shorten(key)}",
            path=reader.name,
            offset=record.offset,
            rule="P-IDX-6",
        )
    reader.find(key)  # raises if the key is there twice


def find_repeated(shards: list[CheckedPack], limits: Limits) -> None:
    """Keys that are in two shards of one set: an error of the later one."""
    import numpy as np

    from shard_format.errors import DuplicateName, shorten
    from shardpack import ShardPackReader

    known = [checked for checked in shards if checked.hashes is not None]
    parts = [np.unique(checked.hashes) for checked in known if checked.hashes is not None]
    if len(parts) < 2:
        return
    hashes, counts = np.unique(np.concatenate(parts), return_counts=True)
    suspects = hashes[counts > 1]
    if not suspects.size:
        return
    # Hashes collide: the keys themselves decide.
    seen: dict[str, str] = {}
    for checked in known:
        assert checked.hashes is not None
        numbers = np.flatnonzero(np.isin(checked.hashes, suspects)).tolist()
        if not numbers:
            continue
        with ShardPackReader(checked.file, limits=limits) as reader:
            for key in _readable_keys(reader, numbers):
                other = seen.setdefault(key, checked.file)
                if other != checked.file:
                    checked.errors.append(
                        DuplicateName(
                            f"the key {shorten(key)} is in another shard, too",
                            path=checked.file,
                            found=other,
                            rule="P-REC-10",
                        )
                    )


def _readable_keys(reader: ShardPackReader, numbers: list[int]) -> Iterator[str]:
    from shard_format.errors import ShardError

    for number in numbers:
        with suppress(ShardError):  # damaged; the check has said so
            yield reader.record(number).key
