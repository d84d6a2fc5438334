"""Tar files of samples, named as WebDataset names them: `cat/0001.left.jpg` is entry `left.jpg` of `cat/0001`."""

from __future__ import annotations

import json
import os
import re
import tarfile
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

from shard_format._safe_paths import unsafe_form
from shard_format.errors import (
    BadValue,
    DuplicateName,
    InvalidArgument,
    LimitExceeded,
    UnsafePath,
    shorten,
)
from shardpack._output import Output, is_set
from shardpack.columns import opened
from shardpack.convert._result import Converted
from shardpack.convert._tar_members import BLOCK, members
from shardpack.convert._tar_streams import TarInput, TarOutput
from shardpack.patterns import expand

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardpack.columns import Samples
    from shardpack.combined import AnyRecord

__all__ = ["from_tar", "split_name", "to_tar"]

_LARGEST_RECORD: Final = 4 << 30
# What WebDataset keeps for itself.
_RESERVED: Final = re.compile(r"__[^/]*__(/|$)")
_ZEROS: Final = bytes(BLOCK)
_END: Final = bytes(2 * BLOCK)


def split_name(path: str) -> tuple[str, str] | None:
    """Key and entry name of a member: the path is cut at the first dot of its last part.

    None for a member that belongs to no sample: without a dot, hidden, or with nothing after the dot.
    """
    folder, slash, base = path.rpartition("/")
    stem, _, name = base.partition(".")
    if not stem or not name or _RESERVED.match(path):
        return None
    return folder + slash + stem, name


def from_tar(
    tars: str | os.PathLike[str] | BinaryIO | Iterable[str | os.PathLike[str] | BinaryIO],
    output: str | os.PathLike[str],
    *,
    orphans: str = "error",
    metadata_entry: str | None = None,
    max_record_bytes: int = _LARGEST_RECORD,
    **options: Any,  # noqa: ANN401 - checked by the writer
) -> Converted:
    """Makes shards of tar files, as a stream: from pipes too, one sample in memory at a time.

    Members that follow one another and have the same key are one record. Payloads are kept byte for
    byte, names as they are; folders, times and owners are not. Files compressed with gzip, zstd, bzip2
    or xz are read as such.

    Args:
        tars: paths, patterns as `shardpack.open` takes them, open files, or a list of these.
        output: one file, or `"train-%06d.shardpack"` for a set of shards.
        orphans: what to do with members that belong to no sample, such as `README`: `"error"`, or
            `"skip"`, which lists them in the result.
        metadata_entry: the entry that becomes the metadata of its record, a JSON object, such as the
            `"metadata.json"` that `to_tar` writes.
        max_record_bytes: larger samples are refused; raise it for files you trust.
        options: `max_bytes` and `max_records` for a set, and what `ShardPackWriter` takes.

    Raises:
        UnsafePath: a member is a link or a device, or its path would leave a folder.
        DuplicateName: a member comes twice, or a sample in two places.
        InvalidArgument: an orphan.
    """
    if orphans not in ("error", "skip"):
        raise InvalidArgument("unknown orphans", expected="'error' or 'skip'", found=repr(orphans))
    left_out: list[str] = []
    records = 0
    with Output(output, **options) as writer:
        for location in expand(cast("Any", tars)):
            with TarInput(location) as tar:
                skipped = left_out if orphans == "skip" else None
                for key, entries in _samples(tar, max_record_bytes, skipped):
                    if key in writer:
                        raise DuplicateName(
                            f"the sample {shorten(key)} comes a second time",
                            path=tar.name,
                            hint="members of a sample must follow one another, and keys be unique "
                            "in all files",
                        )
                    fields = _take_metadata(entries, metadata_entry, key, tar.name)
                    writer.write(key, entries, fields)
                    records += 1
    return Converted(writer.paths, records, left_out)


def _samples(
    tar: TarInput, most: int, left_out: list[str] | None
) -> Iterator[tuple[str, dict[str, bytes]]]:
    key: str | None = None
    entries: dict[str, bytes] = {}
    size = 0
    for member in members(cast("BinaryIO", tar), tar.name, most):
        name = member.name
        while name.startswith("./"):
            name = name[2:]
        reason = unsafe_form(name)
        if reason is not None:
            raise UnsafePath(
                "the path of a member is not safe",
                path=tar.name,
                entry=member.name,
                offset=member.offset,
                found=reason,
            )
        place = split_name(name)
        if place is None:
            if left_out is None:
                raise InvalidArgument(
                    "a member belongs to no sample",
                    path=tar.name,
                    entry=member.name,
                    offset=member.offset,
                    expected="a name such as 'folder/key.ending'",
                    hint="orphans='skip' leaves such members out",
                )
            left_out.append(member.name)
            continue
        if place[0] != key:
            if key is not None:
                yield key, entries
            key, entries, size = place[0], {}, 0
        if place[1] in entries:
            raise DuplicateName(
                "this member comes twice", path=tar.name, entry=member.name, offset=member.offset
            )
        size += len(member.data)
        if size > most:
            raise LimitExceeded(
                f"the sample {shorten(key or '')} is too large",
                path=tar.name,
                offset=member.offset,
                expected=f"at most {most} bytes",
                hint="pass max_record_bytes=… if you trust the file",
            )
        entries[place[1]] = member.data
    if key is not None:
        yield key, entries


def _take_metadata(
    entries: dict[str, bytes], name: str | None, key: str, path: str
) -> dict[str, Any] | None:
    if name is None or name not in entries:
        return None
    try:
        fields = json.loads(entries[name])
    except (ValueError, RecursionError) as error:
        raise BadValue(
            f"the metadata of sample {shorten(key)} is not JSON: {error}", path=path, entry=name
        ) from None
    if not isinstance(fields, dict):
        raise BadValue(
            f"the metadata of sample {shorten(key)} is no object",
            path=path,
            entry=name,
            found=type(fields).__name__,
        )
    del entries[name]
    return fields


def to_tar(
    shards: Samples,
    output: str | os.PathLike[str] | BinaryIO,
    *,
    metadata_entry: str | None = "metadata.json",
    exact: bool = True,
    max_bytes: int | None = 1 << 30,
    max_records: int | None = None,
    fsync: bool = True,
) -> Converted:
    """Writes a tar file that WebDataset reads: the same records give the same bytes.

    Entries are decompressed, and everything else about them but name and content is left behind:
    a content type is what the ending says. Members have time 0, owner 0 and mode 644.

    Args:
        shards: what `shardpack.open` takes, or an opened data set.
        output: a path, compressed if it ends in `.tar.gz` or `.tar.zst`; with a number, as in
            `"train-%06d.tar"`, a set of files; or an open file, such as a pipe.
        metadata_entry: the member in which the metadata of a record is written, if it has any; None
            refuses such records.
        exact: False writes records whose names come back otherwise too: a dot in the last part of a key,
            a slash in the name of an entry.
        max_bytes: target size of a file of a set, before compression.
        max_records: most records of a file of a set.
        fsync: False skips syncing to disk.

    Raises:
        InvalidArgument: a name cannot be kept, or would be another one when it is read back.
        UnsafePath: a name would leave the folder into which somebody unpacks the tar file.
    """
    is_many = isinstance(output, (str, os.PathLike)) and is_set(os.fspath(output))
    paths: list[str] = []
    records = 0
    with opened(shards) as dataset:
        waiting: Iterator[AnyRecord] = iter(dataset.records())
        record = next(waiting, None)
        while record is not None or not paths:
            target: Any = os.fspath(output) % len(paths) if is_many else output  # type: ignore[arg-type] # a path
            with TarOutput(target, fsync=fsync) as tar:
                inside = 0
                while record is not None:
                    files = _members(record, metadata_entry, exact)
                    size = sum(_member_size(data) for _, data in files) + len(_END)
                    is_full = inside and (
                        (max_bytes is not None and tar.size + size > max_bytes)
                        or (max_records is not None and inside >= max_records)
                    )
                    if is_many and is_full:
                        break
                    for name, data in files:
                        tar.write(_header(name, len(data)), data, _ZEROS[: -len(data) % BLOCK])
                    inside += 1
                    record = next(waiting, None)
                tar.write(_END)
                paths.append(tar.name)
                records += inside
    return Converted(paths, records)


def _members(
    record: AnyRecord, metadata_entry: str | None, exact: bool
) -> list[tuple[str, memoryview]]:
    key = record.key
    files = [(f"{key}.{entry.name}", entry.data) for entry in record.file_entries()]
    fields = record.metadata
    if fields:
        if metadata_entry is None or metadata_entry in record:
            raise InvalidArgument(
                f"the metadata of record {shorten(key)} has no place in the tar file",
                entry=metadata_entry,
                hint="pass another metadata_entry",
            )
        files.append((f"{key}.{metadata_entry}", memoryview(_as_json(fields, key))))
    for name, _ in files:
        reason = unsafe_form(name)
        if reason is not None:
            raise UnsafePath(
                f"record {shorten(key)} cannot be in a tar file", entry=name, found=reason
            )
        if exact and split_name(name) != (key, name[len(key) + 1 :]):
            raise InvalidArgument(
                f"record {shorten(key)} would come back under another key",
                entry=name,
                expected="no dot in the last part of the key, no slash in the name of an entry",
                hint="pass exact=False if nobody reads it back",
            )
    return files


def _as_json(fields: dict[str, Any], key: str) -> bytes:
    try:
        text = json.dumps(fields, ensure_ascii=False, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            f"the metadata of record {shorten(key)} cannot be JSON: {error}"
        ) from None
    return text.encode("utf-8")


def _member_size(data: memoryview) -> int:
    return BLOCK + len(data) + -len(data) % BLOCK


_LONGEST_PLAIN_NAME: Final = 100
_LARGEST_PLAIN_SIZE: Final = 8**11
_PLAIN_HEADER: Final = tarfile.TarInfo("").tobuf(tarfile.PAX_FORMAT)
# Of all bytes but name, size and the checksum itself, which counts as blanks.
_PLAIN_SUM: Final = sum(_PLAIN_HEADER[100:124] + _PLAIN_HEADER[135:148] + _PLAIN_HEADER[156:]) + 256


def _header(name: str, size: int) -> bytes:
    """The header of a member; an extended one before it where name or size need that."""
    if len(name) < _LONGEST_PLAIN_NAME and name.isascii() and size < _LARGEST_PLAIN_SIZE:
        # What the module makes of it too, in a tenth of the time.
        encoded, digits = name.encode(), b"%011o" % size
        total = sum(encoded) + sum(digits) + _PLAIN_SUM
        return b"".join(
            (
                encoded.ljust(100, b"\0"),
                _PLAIN_HEADER[100:124],
                digits,
                _PLAIN_HEADER[135:148],
                b"%06o\0" % total,
                _PLAIN_HEADER[155:],
            )
        )
    info = tarfile.TarInfo(name)
    info.size = size
    info.mode = 0o644
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
