"""Tar files of samples with WebDataset's names: `cat/0001.left.jpg` is the entry `left.jpg` of `cat/0001`."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import re
import tarfile
import zlib
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple, cast

from shard_format import zstd
from shard_format.atomic import AtomicFile, write_all
from shard_format.canonical_json import parse_foreign
from shard_format.errors import (
    BadCompression,
    BadHeader,
    BadName,
    BadValue,
    DuplicateName,
    InvalidArgument,
    LimitExceeded,
    ShardError,
    ShardIOError,
    Truncated,
    UnsafePath,
    check_choice,
    shorten,
)
from shard_format.registry import DEFAULT_LIMITS
from shard_format.safe_paths import unsafe_form
from shardpack._switch import Replacement, finish_replacements
from shardpack.columns import open_samples
from shardpack.dataset import expand
from shardpack.files import METADATA_ENTRY
from shardpack.streaming import read_bytes
from shardpack.writer_set import ShardWriterSet, WrittenShards, is_set, numbered_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from typing_extensions import Self

    from shardpack.columns import AnyRecord, Samples
    from shardpack.writer import Output

__all__ = ["from_tar", "split_name", "to_tar"]

_BLOCK: Final = 512
# An extended header has one path; no file system accepts so long a path.
_LARGEST_EXTENSION: Final = 1 << 20
# Writers pad the last block; anything longer is not padding.
_LARGEST_PADDING: Final = 16 << 20
_SIZE: Final = slice(124, 136)
# The first byte of a size that is not in octal digits, but binary.
_BASE_256: Final = 0x80
_FILES: Final = (b"0", b"\0", b"7")
_FOLDER: Final = b"5"
_SPECIAL: Final = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a character device",
    b"4": "a block device",
    b"6": "a pipe",
    b"S": "a sparse file",
}
_PAX_RECORD: Final = re.compile(rb"(\d{1,7}) ([^=]+)=")
# Reserved by WebDataset.
_RESERVED: Final = re.compile(r"__[^/]*__(/|$)")
_ZEROS: Final = bytes(_BLOCK)
_END: Final = bytes(2 * _BLOCK)


def split_name(path: str) -> tuple[str, str] | None:
    """Key and entry name of a member: the path is split at the first dot of its last part.

    None for a member that belongs to no sample: without a dot, hidden, or with nothing after the dot.
    """
    folder, slash, base = path.rpartition("/")
    stem, _, name = base.partition(".")
    if not stem or not name or _RESERVED.match(path):
        return None
    return folder + slash + stem, name


def from_tar(
    tars: str | os.PathLike[str] | BinaryIO | Iterable[str | os.PathLike[str] | BinaryIO],
    output: Output,
    *,
    orphans: str = "error",
    metadata_entry: str | None = METADATA_ENTRY,
    max_record_bytes: int = DEFAULT_LIMITS.max_decompressed_bytes,
    **options: Any,  # noqa: ANN401 - checked by the writer
) -> WrittenShards:
    """Make shards of tar files, as a stream (also from pipes), with one sample in memory at a time.

    Members with the same key that follow one another are one record. Contents and names are kept; folders, times and
    owners are not. Files compressed with gzip, zstd, bzip2 or xz are decompressed.

    Args:
        tars: paths, patterns as `shardpack.open` takes them, open files, or a list of these.
        output: one file (a path, or an open file), or `"train-%06d.shardpack"` for a set of shards.
        orphans: what to do with members that belong to no sample, such as `README`: `"error"`, or `"skip"`, which
            lists them in the result.
        metadata_entry: the entry that becomes the metadata of its record, a JSON object: the file that `unpack` writes,
            or `"metadata.json"` for tar files of `to_tar`. None takes every member as an entry.
        max_record_bytes: refuse larger samples; raise it for files you trust.
        options: what `ShardWriterSet` takes: `overwrite`, `max_bytes`, `compression` and so on.

    Raises:
        UnsafePath: a member is a link or a device, or its path would leave a folder.
        DuplicateName: a member comes twice, or a sample in two places.
        InvalidArgument: a member belongs to no sample.
    """
    check_choice("orphans", orphans, ("error", "skip"))
    left_out: list[str] = []
    records = 0
    locations = expand(cast("Any", tars))
    folders = {
        os.path.dirname(str(one)) for one in locations if isinstance(one, (str, os.PathLike))
    }
    if finish_replacements(folders) and isinstance(tars, (str, os.PathLike)):
        locations = expand(tars)
    with ShardWriterSet(output, **options) as writer:
        for location in locations:
            with TarInput(location) as tar:
                skipped = left_out if orphans == "skip" else None
                for key, entries in _samples(tar, max_record_bytes, skipped):
                    if key in writer:
                        raise DuplicateName(
                            f"the sample {shorten(key)} occurs twice",
                            path=tar.name,
                            hint="members of a sample must follow one another, and keys must be "
                            "unique in all files",
                        )
                    fields = _take_metadata(entries, metadata_entry, key, tar.name)
                    writer.write(key, entries, fields)
                    records += 1
    return WrittenShards(writer.paths, records, left_out)


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
                    command="pass --skip-orphans to leave them out",
                )
            left_out.append(member.name)
            continue
        if place[0] != key:
            if key is not None:
                yield key, entries
            key, entries, size = place[0], {}, 0
        if place[1] in entries:
            raise DuplicateName(
                "this member occurs twice", path=tar.name, entry=member.name, offset=member.offset
            )
        size += len(member.data)
        if size > most:
            raise LimitExceeded(
                f"the sample {shorten(key or '')} is too large",
                path=tar.name,
                offset=member.offset,
                expected=f"at most {most} bytes",
                hint="pass max_record_bytes=… if you trust the file",
                command="pass a larger --record-size-limit if you trust the file",
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
        fields = parse_foreign(entries[name], f"the metadata of sample {shorten(key)}")
    except ShardError as error:
        raise error.located(path=path, entry=name) from None
    if not isinstance(fields, dict):
        raise BadValue(
            f"the metadata of sample {shorten(key)} is not an object",
            path=path,
            entry=name,
            found=type(fields).__name__,
        )
    del entries[name]
    return fields


def to_tar(
    shards: Samples,
    output: Output,
    *,
    metadata_entry: str | None = "metadata.json",
    exact: bool = True,
    max_bytes: int | None = 1 << 30,
    max_records: int | None = None,
    overwrite: bool = False,
    fsync: bool = True,
) -> WrittenShards:
    """Write a tar file that WebDataset reads. The same records give the same bytes.

    Entries are decompressed. Only their names and contents are kept: the suffix gives the content type. Members have
    time 0, owner 0 and mode 644.

    Args:
        shards: what `shardpack.open` takes, or an open dataset.
        output: a path, compressed if it ends in `.tar.gz` or `.tar.zst`; with a number, as in `"train-%06d.tar"`, a
            set of files; or an open file, such as a pipe.
        metadata_entry: the member that gets the metadata of a record, if it has any; None refuses such records.
        exact: False also writes records whose names change when they are read back: a dot in the last part of a key,
            a slash in the name of an entry.
        max_bytes: target size of a file of a set, before compression.
        max_records: most records of a file of a set.
        overwrite: True replaces files that are there when all new ones are complete; otherwise they are an error.
        fsync: False skips syncing to disk.

    Raises:
        InvalidArgument: a name cannot be kept, or would change when it is read back.
        UnsafePath: a name would leave the folder into which you unpack the tar file.
    """
    name = os.fspath(output) if isinstance(output, (str, os.PathLike)) else None
    pattern = name if name is not None and is_set(name) else None
    replacement: Replacement | None = None
    if pattern is not None:
        existing = numbered_files(pattern)
    else:
        existing = [name] if name is not None and os.path.lexists(name) else []
    if existing and not overwrite:
        raise InvalidArgument(
            "there is a file of this name already",
            path=existing[0],
            hint="pass overwrite=True to replace it",
            command="pass --force to replace it",
        )
    if existing and pattern is not None:
        replacement = Replacement(*os.path.split(pattern), fsync=fsync)
    paths: list[str] = []
    records = 0
    try:
        with open_samples(shards) as dataset:
            waiting: Iterator[AnyRecord] = iter(dataset.records())
            record = next(waiting, None)
            while record is not None or not paths:
                target: Any = output if pattern is None else pattern % len(paths)
                paths.append(str(getattr(target, "name", target)))
                if replacement is not None:
                    target = replacement.path_of(os.path.basename(target))
                with TarOutput(target, fsync=fsync) as tar:
                    inside = 0
                    while record is not None:
                        files = _members(record, metadata_entry, exact)
                        size = sum(_member_size(data) for _, data in files) + len(_END)
                        is_full = inside and (
                            (max_bytes is not None and tar.size + size > max_bytes)
                            or (max_records is not None and inside >= max_records)
                        )
                        if pattern is not None and is_full:
                            break
                        for name, data in files:
                            header = member_header(name, len(data))
                            tar.write(header, data, _ZEROS[: -len(data) % _BLOCK])
                        inside += 1
                        record = next(waiting, None)
                    tar.write(_END)
                    records += inside
        if replacement is not None and pattern is not None:
            replacement.commit(
                list(map(os.path.basename, paths)),
                lambda: list(map(os.path.basename, numbered_files(pattern))),
            )
    except BaseException:
        if replacement is not None:
            replacement.abort()
        raise
    return WrittenShards(paths, records)


def _members(
    record: AnyRecord, metadata_entry: str | None, exact: bool
) -> list[tuple[str, memoryview]]:
    key = record.key
    files = [(f"{key}.{entry.name}", entry.data) for entry in record.file_entries()]
    fields = record.metadata
    if fields:
        if metadata_entry is None or metadata_entry in record:
            raise InvalidArgument(
                f"the metadata of record {shorten(key)} cannot be stored in the tar file",
                entry=metadata_entry,
                hint="pass another metadata_entry",
                command="pass another --metadata-entry",
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
                hint="pass exact=False if you do not read it back",
                command="pass --inexact if you will not read it back",
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
    return _BLOCK + len(data) + -len(data) % _BLOCK


# --- tar files as streams: members are read one by one, and written in batches

# `tarfile` is not used to read: it keeps every member in memory, accepts extended headers of any size, and raises
# errors of many kinds for damaged files.


class Member(NamedTuple):
    """A regular file in a tar file."""

    name: str
    offset: int
    """Where its header is."""
    data: bytes


def members(file: BinaryIO, path: str, most: int) -> Iterator[Member]:
    """The regular files, in order; folders are skipped.

    Args:
        file: anything with `read`.
        path: what errors call it.
        most: refuse larger members.

    Raises:
        UnsafePath: a member is not a regular file: a link, a device.
        FormatError: the tar file is damaged or ends too early.
    """
    position = 0
    extended: dict[str, str] = {}
    while True:
        start = position
        header = read_bytes(file, _BLOCK, path)
        if len(header) < _BLOCK:
            # A file that was cut between two members would otherwise look complete.
            raise _cut(path, start)
        position += _BLOCK
        if not any(header):
            _check_end(file, path, start)
            return
        kind, name, size = _parse(header, path, start)
        is_extension = kind in b"xgLK"
        if is_extension:
            limit = _LARGEST_EXTENSION
        else:
            name = extended.get("path", name)
            if "size" in extended:
                size = _decimal(extended["size"], path, start)
            limit = most
        if size > limit:
            raise LimitExceeded(
                "a member of the tar file is too large",
                path=path,
                entry=name,
                offset=start,
                expected=f"at most {limit} bytes",
                found=f"{size} bytes",
                hint=None if is_extension else "pass max_record_bytes=… if you trust the file",
                command=None
                if is_extension
                else "pass a larger --record-size-limit if you trust the file",
            )
        if not is_extension and kind not in _FILES and kind != _FOLDER:
            raise UnsafePath(
                "a member of the tar file is not a regular file",
                path=path,
                entry=name,
                offset=start,
                found=_SPECIAL.get(kind, f"type {kind!r}"),
                hint="remove it from the tar file, or store its target",
            )
        data = read_bytes(file, size, path)
        padding = -size % _BLOCK
        if len(data) < size or len(read_bytes(file, padding, path)) < padding:
            raise _cut(path, start)
        position += size + padding
        if kind == b"x":
            extended |= _parse_pax(data, path, start)
        elif kind == b"g":
            _check_global(data, path, start)
        elif kind == b"L":
            extended["path"] = _text(data.rstrip(b"\0"), path, start)
        elif kind != b"K":  # the target of a link, which is refused later
            extended = {}
            if kind != _FOLDER and not name.endswith("/"):
                yield Member(name, start, data)


def _parse(header: bytes, path: str, start: int) -> tuple[bytes, str, int]:
    """Type, name and size of a member."""
    try:
        info = tarfile.TarInfo.frombuf(header, "utf-8", "strict")
    except UnicodeDecodeError as error:
        raise _bad_name(error, path, start) from None
    except (tarfile.HeaderError, ValueError) as error:
        raise BadHeader(
            f"not a tar file, or its header is damaged: {error}", path=path, offset=start
        ) from None
    # `tarfile` takes signs and underscores for a part of a number.
    field = header[_SIZE]
    if field[0] == _BASE_256:
        return info.type, info.name, int.from_bytes(field[1:], "big")
    digits = field.partition(b"\0")[0].strip(b" ") or b"0"
    if digits.translate(None, b"01234567"):
        raise BadHeader(
            "a member has a bad size",
            path=path,
            entry=info.name,
            offset=start,
            expected="octal digits",
            found=repr(field),
        )
    return info.type, info.name, int(digits, 8)


def _decimal(text: str, path: str, start: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise BadHeader(
            "an extended header has a bad size", path=path, offset=start, found=repr(text[:40])
        )
    return int(text)


def _text(raw: bytes, path: str, start: int) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _bad_name(error, path, start) from None


def _bad_name(error: UnicodeDecodeError, path: str, start: int) -> BadName:
    return BadName(
        f"the name of a member is not UTF-8: {error}",
        path=path,
        offset=start,
        found=repr(error.object),
    )


def _parse_pax(data: bytes, path: str, start: int) -> dict[str, str]:
    """The fields of an extended header that change how the next member is read."""
    found: dict[str, str] = {}
    position = 0
    while position < len(data):
        match = _PAX_RECORD.match(data, position)
        end = position + int(match[1]) if match is not None else 0
        if match is None or not match.end() < end <= len(data) or data[end - 1 : end] != b"\n":
            raise BadHeader("an extended header is damaged", path=path, offset=start)
        field = match[2].decode("utf-8", "replace")
        if field in ("path", "size"):
            found[field] = _text(data[match.end() : end - 1], path, start)
        elif field.startswith("GNU.sparse."):
            raise UnsafePath(
                "a member of the tar file is not a regular file",
                path=path,
                offset=start,
                found="a sparse file",
            )
        position = end
    return found


def _check_global(data: bytes, path: str, start: int) -> None:
    if _parse_pax(data, path, start):
        raise BadHeader("a header for all members sets their path or size", path=path, offset=start)


def _check_end(file: BinaryIO, path: str, start: int) -> None:
    """Read to the end, so that a pipe does not break; only zeros may follow the first empty block."""
    room = _LARGEST_PADDING
    while piece := read_bytes(file, 1 << 16, path):
        room -= len(piece)
        if piece.strip(b"\0") or room < 0:
            raise BadHeader(
                "there is data after the end of the tar file",
                path=path,
                offset=start,
                hint="pass concatenated tar files as a list",
            )


def _cut(path: str, start: int) -> Truncated:
    return Truncated(
        "the tar file has lost its end: it has no empty block at the end",
        path=path,
        offset=start,
        hint="copy it again, or append 1024 zero bytes if you know that it is complete",
    )


# --- files

_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_BZIP2: Final = b"BZh"
_XZ: Final = b"\xfd7zXZ\0"
# zlib's window bits for a gzip wrapper, which has neither a name nor a time.
_GZIP_WRAPPER: Final = 31
# Members are written in batches of this size.
_BATCH_BYTES: Final = 1 << 20
_BATCH_PIECES: Final = 1000


class _WithStart:
    """A stream whose first bytes were already read."""

    def __init__(self, start: bytes, file: BinaryIO) -> None:
        self._start = start
        self._file = file

    def read(self, size: int = -1) -> bytes:
        if self._start:
            piece = self._start if size < 0 else self._start[:size]
            self._start = self._start[len(piece) :]
            return piece
        return self._file.read(size)


class TarInput:
    """The bytes of a tar file, decompressed.

    Owns: the file, if it opened it.

    Args:
        source: a path, or anything with `read`, such as a pipe.
    """

    def __init__(self, source: str | os.PathLike[str] | BinaryIO) -> None:
        self._own: BinaryIO | None = None
        if isinstance(source, (str, os.PathLike)):
            self.name = os.fspath(source)
            try:
                self._own = open(self.name, "rb")  # noqa: SIM115 - closed by `__exit__`
            except OSError as error:
                raise ShardIOError.wrap(error, "cannot open", self.name) from error
            file: BinaryIO = self._own
        elif hasattr(source, "read"):
            self.name = str(getattr(source, "name", f"<{type(source).__name__}>"))
            file = source
        else:
            raise InvalidArgument(
                "cannot read from this object",
                expected="a path or a binary file",
                found=type(source).__name__,
            )
        try:
            start = read_bytes(file, len(_XZ), self.name)
        except BaseException:
            self.__exit__()
            raise
        self._stream: Any = _decompressed(start, cast("BinaryIO", _WithStart(start, file)))

    def read(self, size: int) -> bytes:
        """Read up to `size` bytes; none at the end."""
        try:
            return cast("bytes", self._stream.read(size))
        except EOFError as error:
            raise Truncated(
                f"the compressed file has lost its end: {error}", path=self.name
            ) from None
        except (gzip.BadGzipFile, zlib.error, zstd.ZstdError, lzma.LZMAError) as error:
            raise BadCompression(f"cannot decompress: {error}", path=self.name) from None
        except MemoryError:  # xz states how much it needs
            raise LimitExceeded(
                "decompressing needs more memory than there is", path=self.name
            ) from None
        except OSError as error:
            if error.errno is None:  # bz2 raises this for damaged data
                raise BadCompression(f"cannot decompress: {error}", path=self.name) from None
            raise ShardIOError.wrap(error, "cannot read", self.name) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._own is not None:
            self._own.close()


def _decompressed(start: bytes, file: BinaryIO) -> Any:  # noqa: ANN401 - anything with read
    if start.startswith(_GZIP):
        return gzip.GzipFile(fileobj=file, mode="rb")
    if start.startswith(_ZSTD):
        return zstd.open_reader(file)
    if start.startswith(_BZIP2):
        return bz2.BZ2File(file)
    if start.startswith(_XZ):
        return lzma.LZMAFile(file)
    return file


class TarOutput:
    """A tar file that is written: a path, where it appears when it is complete, or an open file.

    Args:
        target: compressed if the path ends in `.gz`, `.tgz` or `.zst`.
        fsync: whether a file is synced to disk.
    """

    def __init__(self, target: str | os.PathLike[str] | BinaryIO, *, fsync: bool) -> None:
        self._file: AtomicFile | None = None
        self._stream: BinaryIO | None = None
        self.size = 0
        """Bytes written so far, before compression."""
        self._pending: list[bytes | memoryview] = []
        self._waiting = 0
        if isinstance(target, (str, os.PathLike)):
            self.name = os.fspath(target)
            self._compressor = _compressor(self.name)
            self._file = AtomicFile(self.name, fsync=fsync)
        else:
            self.name = str(getattr(target, "name", f"<{type(target).__name__}>"))
            self._compressor = None
            self._stream = target

    def write(self, *pieces: bytes | memoryview) -> None:
        """Append bytes; they are not copied."""
        for piece in pieces:
            length = len(piece)
            self.size += length
            self._waiting += length
            self._pending.append(
                piece if self._compressor is None else self._compressor.compress(piece)
            )
        if self._waiting >= _BATCH_BYTES or len(self._pending) >= _BATCH_PIECES:
            self._flush()

    def _flush(self) -> None:
        pieces, self._pending, self._waiting = self._pending, [], 0
        try:
            if self._file is not None:
                write_all(self._file.descriptor, pieces)
            else:
                assert self._stream is not None
                for piece in pieces:
                    self._stream.write(piece)
                self._stream.flush()
        except OSError as error:
            raise ShardIOError.wrap(error, "cannot write", self.name) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                if self._compressor is not None:
                    self._pending.append(self._compressor.flush())
                self._flush()
                if self._file is not None:
                    self._file.commit()
        finally:
            if self._file is not None:
                self._file.abort()


def _compressor(name: str) -> Any:  # noqa: ANN401 - one of two libraries
    lower = name.lower()
    if lower.endswith((".gz", ".tgz")):
        return zlib.compressobj(6, zlib.DEFLATED, _GZIP_WRAPPER)
    if lower.endswith((".zst", ".tzst")):
        return zstd.compressing_stream(checksum=True)
    return None


def member_header(name: str, size: int) -> bytes:
    """The header of a member, after an extended one if name or size need that."""
    info = tarfile.TarInfo(name)
    info.size = size
    info.mode = 0o644
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
