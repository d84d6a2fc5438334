"""Checking shards of packs, and set files: every byte, for `verify` and `doctor`."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from xxhash import xxh64_intdigest

import shardpack
from shard_cli.files import known_size
from shard_cli.kinds.model import Checked, Problem
from shard_cli.text import count, size
from shard_format.errors import BadOffset, ShardError, must_stop, shorten
from shard_format.opening import copying_urls
from shard_format.sources import is_url

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import numpy as np
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
    """Of a set file, how many shards it lists; None for a shard."""

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
    """Reads all of a shard; that it does not open is a result, too. Can run in another process."""
    found = ShardCheck(target.path)
    listed = target.listed
    try:
        # First: a file that is another one need not be read as a shard.
        if listed is not None and target.is_hashed and not is_url(target.path):
            listed.check_place(0, target.path)
            listed.manifest.verify_file(target.path, listed.manifest.files[0])
        with copying_urls():
            _check_content(found, target, progress, limits)
        if listed is not None and found.footer is not None:
            listed.check_footer(0, found.footer, target.path)
    except ShardError as error:
        found.errors.append(error)
    return found


def _check_content(found: ShardCheck, target: Target, progress: Progress, limits: Limits) -> None:
    with shardpack.ShardPackReader(target.path, limits=limits) as reader:
        if target.listed is not None and target.is_hashed and is_url(target.path):
            target.listed.check_hash(0, reader.sha256(), target.path)
        found.opens = True
        found.footer = reader.footer
        found.bytes = reader.footer.total_size
        with found.noting():
            _ = reader.metadata
        with found.noting():
            found.hashes = reader.key_hashes()
        offsets = reader.get_index()
        for number in range(len(reader)):
            progress(offsets[number], reader.footer.index_offset)
            with found.noting():
                _check_record(reader, number, found)


def _check_record(reader: ShardPackReader, number: int, found: ShardCheck) -> None:
    record = reader.record(number)
    key = record.key
    _ = record.metadata
    entries = record.file_entries()
    if found.hashes is not None:
        if xxh64_intdigest(key.encode()) != int(found.hashes[number]):
            raise BadOffset(
                f"the lookup does not find record {shorten(key)}",
                path=reader.name,
                offset=record.offset,
                rule="P-IDX-6",
            )
        reader.find(key)  # raises if the key is there twice
    found.records += 1
    found.listed += len(record)
    for entry in entries:
        with found.noting():
            _ = entry.data
            found.entries += 1
