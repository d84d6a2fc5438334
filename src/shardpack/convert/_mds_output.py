"""Writing MDS: shards one after the other, each complete under its name, and the index when all are there."""

from __future__ import annotations

import contextlib
import json
import os
import struct
from array import array
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import zstandard

from shard_format._atomic import AtomicFile, write_all
from shard_format.errors import InvalidArgument, LimitExceeded, ShardIOError, shorten
from shardpack.convert._mds_layout import INDEX, PLACES, VERSION, hash_function

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType

    from typing_extensions import Self

    from shardpack.convert._mds_columns import Columns
    from shardpack.convert._mds_encoding import Data

# Offsets are four bytes, and the package wraps what is larger without a word.
_END_OF_OFFSETS: Final = 1 << 32
_MOST_LEVEL: Final = 22
_DEFAULT_LEVEL: Final = 3


class MdsOutput:
    """A folder with shards and an index. If writing does not end well, it is as it was before.

    Owns: the samples of one shard, and what was written.

    Args:
        folder: made if it is not there; must be empty.
        columns: of the samples.
        max_bytes: a new shard starts before one grows above this.
        compression: None, `"zstd"`, or with a level.
        hashes: names of hashes, which the index then has for every file.
        fsync: False skips syncing to disk.
    """

    def __init__(
        self,
        folder: str,
        columns: Columns,
        *,
        max_bytes: int,
        compression: str | None,
        hashes: Iterable[str],
        fsync: bool,
    ) -> None:
        if not 0 < max_bytes < _END_OF_OFFSETS:
            raise InvalidArgument(
                "max_bytes cannot be this",
                expected=f"1 to {_END_OF_OFFSETS - 1}, because offsets have 32 bits",
                found=max_bytes,
            )
        self.folder = folder
        self.records = 0
        self.paths: list[str] = []
        """The files that are complete."""
        self._columns = columns
        self._max_bytes = max_bytes
        self._level = _level_of(compression)
        self._hashes = {name: _hash_of(name) for name in sorted(set(hashes))}
        self._fsync = fsync
        self._rows: list[dict[str, Any]] = []
        self._varying = [one.encoding.size is None for one in columns.columns]
        self._head = struct.Struct(f"<{sum(self._varying)}I")
        self._config = {
            "version": VERSION,
            "format": "mds",
            "compression": compression,
            "hashes": list(self._hashes),
            "size_limit": max_bytes,
            "column_names": [one.name for one in columns.columns],
            "column_encodings": [one.encoding.name for one in columns.columns],
            "column_sizes": [one.encoding.size for one in columns.columns],
        }
        self._config_data = json.dumps(self._config, sort_keys=True).encode("utf-8")
        self._samples = bytearray()
        self._ends = array("Q")
        self._is_new = False

    def write(self, key: str, values: Sequence[Data]) -> None:
        """Adds a sample; the key is for errors."""
        sizes = [len(value) for value in values]
        size = self._head.size + sum(sizes)
        if self._size(size, 1) >= _END_OF_OFFSETS:
            raise LimitExceeded(
                f"record {shorten(key)} is too large for MDS, whose offsets have 32 bits",
                expected=f"less than {_END_OF_OFFSETS - self._size(0, 1)} bytes",
                found=f"{size} bytes",
                hint="columns=[…] leaves out what is so large",
            )
        count = len(self._ends)
        if count and self._size(len(self._samples) + size, count + 1) > self._max_bytes:
            self._finish_shard()
        varying = (one for one, varies in zip(sizes, self._varying, strict=True) if varies)
        self._samples += self._head.pack(*varying)
        for value in values:
            self._samples += value
        self._ends.append(len(self._samples))
        self.records += 1

    def _size(self, samples: int, count: int) -> int:
        return 4 * (count + 2) + len(self._config_data) + samples

    def _finish_shard(self) -> None:
        count = len(self._ends)
        start = self._size(0, count)
        offsets = np.concatenate(([0], np.asarray(self._ends, np.uint64))) + start
        head = struct.pack("<I", count) + offsets.astype("<u4").tobytes()
        pieces: list[Data] = [head, self._config_data, self._samples]
        name = f"shard.{len(self._rows):05}.mds"
        row: dict[str, Any] = {"samples": count, "raw_data": self._facts(name, pieces)}
        row["zip_data"] = None
        if self._level is not None:
            pieces = _compressed(pieces, row["raw_data"]["bytes"], self._level)
            name += ".zstd"
            row["zip_data"] = self._facts(name, pieces)
        self._write_file(name, pieces)
        self._rows.append({**row, **self._config})
        self._samples = bytearray()
        self._ends = array("Q")

    def _facts(self, name: str, pieces: Sequence[Data]) -> dict[str, Any]:
        hashes: dict[str, str] = {}
        for algorithm, make in self._hashes.items():
            state = make()
            for piece in pieces:
                state.update(piece)
            hashes[algorithm] = state.hexdigest()
        return {"basename": name, "bytes": sum(map(len, pieces)), "hashes": hashes}

    def _write_file(self, name: str, pieces: Sequence[Data]) -> None:
        path = os.path.join(self.folder, name)
        file = AtomicFile(path, fsync=self._fsync)
        try:
            write_all(file.descriptor, [memoryview(piece) for piece in pieces])
            self.paths.append(path)
            file.commit()
        except OSError as error:
            raise ShardIOError.wrap(error, "cannot write", path) from error
        finally:
            file.abort()

    def _write_index(self) -> None:
        places = self._columns.places.as_json()
        index = {"version": VERSION, "shards": self._rows, PLACES: places}
        self._write_file(INDEX, [json.dumps(index, sort_keys=True).encode("utf-8")])

    def __enter__(self) -> Self:
        try:
            self._is_new = not os.path.lexists(self.folder)
            os.makedirs(self.folder, exist_ok=True)
            found = sorted(os.listdir(self.folder))
        except OSError as error:
            raise ShardIOError.wrap(error, "cannot write", self.folder) from error
        if found:
            raise InvalidArgument(
                "the folder is not empty",
                path=self.folder,
                found=", ".join(map(repr, found[:3])) + (", …" if len(found) > 3 else ""),
                hint="name another one, or remove what is in it",
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        is_done = False
        try:
            if kind is None:
                if self._ends:
                    self._finish_shard()
                self._write_index()
                is_done = True
        finally:
            if not is_done:
                self._remove()

    def _remove(self) -> None:
        # The index first: without it nothing is a data set.
        for path in reversed(self.paths):
            with contextlib.suppress(OSError):
                os.unlink(path)
        if self._is_new:
            with contextlib.suppress(OSError):
                os.rmdir(self.folder)


def _level_of(compression: str | None) -> int | None:
    if compression is None:
        return None
    name, colon, level = compression.partition(":")
    if name == "zstd" and not colon:
        return _DEFAULT_LEVEL
    is_level = level.isascii() and level.isdecimal() and 1 <= int(level) <= _MOST_LEVEL
    if name != "zstd" or not is_level:
        raise InvalidArgument(
            "MDS is not written with this compression",
            expected=f"'zstd', or 'zstd:1' to 'zstd:{_MOST_LEVEL}'",
            found=repr(compression),
        )
    return int(level)


def _hash_of(name: str) -> Callable[..., Any]:
    found = hash_function(name)
    if found is None:
        raise InvalidArgument("there is no such hash", expected="'xxh64', 'sha256', …", found=name)
    return found


def _compressed(pieces: Sequence[Data], size: int, level: int) -> list[Data]:
    """One frame that states its size, which the package asks for."""
    compressor = zstandard.ZstdCompressor(level=level).compressobj(size=size)
    done: list[Data] = [compressor.compress(piece) for piece in pieces]
    done.append(compressor.flush())
    return done
