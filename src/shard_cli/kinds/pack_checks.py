"""Checking shards of packs, and set files: every byte, for `verify` and `doctor`."""

from __future__ import annotations

import hashlib
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from xxhash import xxh64_intdigest

import shardpack
from shard_cli.files import known_size
from shard_cli.kinds.model import Checked, Problem
from shard_cli.text import count, size
from shard_format.errors import BadOffset, DuplicateName, ShardError, must_stop, shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from numpy.typing import NDArray

    from shard_cli.kinds.model import Progress, Target
    from shard_format import Limits
    from shardpack import ShardPackReader, ShardSet
    from shardpack.reader import Footer


@dataclass(slots=True)
class ShardCheck:
    """What checking one shard found."""

    file: str
    opens: bool = False
    records: int = 0
    listed: int = 0
    """Entries of the records that can be read."""
    entries: int = 0
    """Those of them that are undamaged."""
    bytes: int = 0
    footer: Footer | None = None
    errors: list[ShardError] = field(default_factory=list)
    hashes: NDArray[np.uint64] | None = None
    """Of the keys, by record, to find those that are in two shards; None if the lookup is damaged."""
    shards: int | None = None
    """How many shards a set file lists; None for a shard."""

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Keeps an error: one damaged part does not hide the others. Only a failing network, or a shortage, does."""
        try:
            yield
        except ShardError as error:
            if must_stop(error):
                raise
            self.errors.append(error)


def checked(found: ShardCheck) -> Checked:
    """What checking a shard, or a set file, found, as `verify` shows it."""
    errors = [Problem.of(error, found.file) for error in found.errors]
    what = {"records": found.records, "entries": found.entries}
    good = f"{count(found.records, 'record')}, {count(found.entries, 'entry')}"
    if found.shards is not None:
        what = {"shards": found.shards}
        good = f"lists {count(found.shards, 'shard')}"
    fields = {**what, "bytes": found.bytes, "errors": [error.fields for error in errors]}
    return Checked(found.file, f"{good}, {size(found.bytes)}", fields, errors)


def check_set(listed: ShardSet, checked: Collection[str] = ()) -> ShardCheck:
    """What is wrong with a set as a whole: shards that are missing, and shards that it does not list.

    Args:
        listed: the set.
        checked: shards that were checked, whose own results say that they are missing.
    """
    found = ShardCheck(listed.path, opens=True, shards=len(listed))
    found.bytes = known_size(listed.path)
    found.errors += [one for one in listed.missing_shards() if one.path not in checked]
    found.errors += listed.extra_shards()
    return found


def check_shard(target: Target, progress: Progress, *, limits: Limits) -> ShardCheck:
    """Reads all of a shard once, from start to end; that it does not open is a result, too. Can run in another process."""
    found = ShardCheck(target.path)
    listed = target.listed
    try:
        if listed is not None:
            listed.check_place(0, target.path)
        with shardpack.ShardPackReader(target.path, limits=limits) as reader:
            digest = hashlib.sha256()
            is_hashed = listed is not None and target.is_hashed
            _check_content(found, reader, progress, digest.update if is_hashed else None)
            digest.update(reader.index_bytes())
        if listed is not None:
            if is_hashed:
                listed.check_hash(0, digest.hexdigest(), target.path)
            listed.check_footer(0, reader.footer, target.path)
    except ShardError as error:
        found.errors.append(error)
    return found


def _check_content(
    found: ShardCheck,
    reader: ShardPackReader,
    progress: Progress,
    on_bytes: Callable[[bytes | memoryview], object] | None,
) -> None:
    found.opens = True
    found.footer = reader.footer
    found.bytes = reader.footer.total_size
    with found.noting():
        _ = reader.metadata
    with found.noting():
        found.hashes = reader.key_hashes()
    lookup = _Lookup(found.hashes)
    records = reader.records(on_bytes=on_bytes)
    for number, offset in enumerate(reader.get_index()):
        progress(offset, reader.footer.index_offset)
        with found.noting():
            record = next(records)
            entries = record.file_entries()
            _ = record.metadata
            lookup.check(number, offset, record.key, reader.name)
            found.records += 1
            found.listed += len(record)
            for entry in entries:
                with found.noting():
                    _ = entry.data
                    found.entries += 1
    deque(records, maxlen=0)  # to see the end of the last record


class _Lookup:
    """Checks that the lookup of a shard finds each record, and that no key is there twice.

    Args:
        hashes: of the keys, by record; None if the lookup is damaged: then nothing is checked.
    """

    def __init__(self, hashes: NDArray[np.uint64] | None) -> None:
        self._hashes = hashes
        self._repeated: set[int] = set()
        if hashes is not None:
            values, counts = np.unique(hashes, return_counts=True)
            self._repeated = set(values[counts > 1].tolist())
        # Hashes collide: the keys themselves decide.
        self._seen: dict[str, int] = {}

    def check(self, number: int, offset: int, key: str, path: str) -> None:
        """Checks the record of this number, which starts at `offset`.

        Raises:
            BadOffset, DuplicateName: the lookup leads elsewhere, or an earlier record has the key.
        """
        if self._hashes is None:
            return
        key_hash = xxh64_intdigest(key.encode())
        if key_hash != int(self._hashes[number]):
            raise BadOffset(
                f"the lookup does not find record {shorten(key)}",
                path=path,
                offset=offset,
                rule="P-IDX-6",
            )
        if key_hash in self._repeated and (first := self._seen.setdefault(key, number)) != number:
            raise DuplicateName(
                f"the records {first} and {number} have the same key {shorten(key)}",
                path=path,
                offset=offset,
                rule="P-REC-10",
            )
