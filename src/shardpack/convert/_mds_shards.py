"""The index and the shards of an MDS data set, read: nothing that they state is believed."""

from __future__ import annotations

import bz2
import json
import os
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import cramjam
import numpy as np
import zstandard

from shard_format._safe_paths import unsafe_form
from shard_format.errors import (
    BadCompression,
    BadMetadata,
    BadOffset,
    ChecksumMismatch,
    LimitExceeded,
    ShardError,
    SizeMismatch,
    Truncated,
    UnknownCodec,
    UnsafePath,
    UnsupportedVersion,
)
from shard_format.sources import FileSource
from shardpack.convert._mds_layout import INDEX, PLACES, Places, hash_function, of_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shard_format.registry import Limits

_LARGEST_INDEX: Final = 100 << 20
_LARGEST_WINDOW: Final = 128 << 20
_PIECE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Shard:
    """A row of the index."""

    path: str
    """The shard as it is, whether it is there or not."""
    compressed_path: str | None
    compression: str | None
    size: int
    compressed_size: int
    hashes: dict[str, str]
    compressed_hashes: dict[str, str]
    samples: int
    columns: list[tuple[str, str, int]]
    """Name, encoding, and size of a value; 0 where it varies."""


class Index(NamedTuple):
    """What `index.json` says."""

    shards: list[Shard]
    places: Places
    """What the columns were in the records that `to_mds` wrote; of other data sets nothing."""


def read_index(root: str) -> Index:
    """The index of the data set in this folder."""
    path = os.path.join(root, INDEX)
    source = FileSource(path)
    try:
        if source.size() > _LARGEST_INDEX:
            raise LimitExceeded(
                "the index is too large",
                path=path,
                expected=f"at most {_LARGEST_INDEX} bytes",
                found=f"{source.size()} bytes",
            )
        text = source.read_at(0, source.size())
    finally:
        source.close()
    try:
        fields = json.loads(text)
        shards = [_parse_shard(root, row) for row in fields["shards"]]
        return Index(shards, Places.parse(fields.get(PLACES)))
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, ShardError):
            raise error.located(path=path) from None
        raise BadMetadata(f"this is no index of an MDS data set: {error!r}", path=path) from None


def _parse_shard(root: str, row: dict[str, Any]) -> Shard:
    if row["format"] != "mds" or row["version"] != 2:
        raise UnsupportedVersion(
            "only MDS, version 2, is read",
            expected="mds 2",
            found=f"{row['format']} {row['version']}",
        )
    raw, packed = row["raw_data"], row.get("zip_data")
    names, encodings, sizes = row["column_names"], row["column_encodings"], row["column_sizes"]
    columns = [
        (of_type(str, name), of_type(str, encoding), 0 if size is None else of_type(int, size))
        for name, encoding, size in zip(names, encodings, sizes, strict=True)
    ]
    return Shard(
        path=_path(root, raw["basename"]),
        compressed_path=None if packed is None else _path(root, packed["basename"]),
        compression=None if packed is None else of_type(str, row["compression"]),
        size=of_type(int, raw["bytes"]),
        compressed_size=0 if packed is None else of_type(int, packed["bytes"]),
        hashes=dict(raw.get("hashes") or {}),
        compressed_hashes={} if packed is None else dict(packed.get("hashes") or {}),
        samples=of_type(int, row["samples"]),
        columns=columns,
    )


def _path(root: str, name: str) -> str:
    reason = unsafe_form(of_type(str, name))
    if reason is not None:
        raise UnsafePath("the index names an unsafe path", entry=name, found=reason)
    return os.path.join(root, *name.split("/"))


# --- the shards


def shard_bytes(shard: Shard, check: bool, limits: Limits) -> memoryview:
    """The bytes of a shard: mapped, or decompressed if only its compressed form is there."""
    if os.path.exists(shard.path) or shard.compressed_path is None:
        data = _mapped(shard.path)
    else:
        stored = _mapped(shard.compressed_path)
        if check:
            _check_hashes(stored, shard.compressed_hashes, shard.compressed_path)
        data = memoryview(_decompress(stored, shard, limits))
    if len(data) != shard.size:
        raise SizeMismatch(
            "a shard does not have the size that the index states",
            path=shard.path,
            expected=f"{shard.size} bytes",
            found=f"{len(data)} bytes",
        )
    if check:
        _check_hashes(data, shard.hashes, shard.path)
    return data


def _mapped(path: str) -> memoryview:
    source = FileSource(path)
    try:
        return source.view(0, source.size())
    finally:
        source.close()


def _check_hashes(data: memoryview, hashes: dict[str, str], path: str) -> None:
    for name, expected in hashes.items():
        make = hash_function(name)
        if make is None:
            raise UnknownCodec(
                "the index has a hash that is not known",
                path=path,
                found=repr(name),
                hint="pass check=False to read without it",
            )
        found = make(data).hexdigest()
        if found != expected:
            raise ChecksumMismatch(
                "the file is damaged", path=path, expected=f"{name} {expected}", found=found
            )


def _decompress(stored: memoryview, shard: Shard, limits: Limits) -> bytes | memoryview:
    path, size = shard.compressed_path, shard.size
    most = limits.max_decompressed_bytes
    if size > most:
        raise LimitExceeded(
            "a compressed shard is too large",
            path=path,
            expected=f"at most {most} bytes",
            found=f"{size} bytes",
            hint="pass limits=… if you trust it",
        )
    name = (shard.compression or "").partition(":")[0]
    decompress = _DECOMPRESSORS.get(name)
    if decompress is None:
        raise UnknownCodec(
            "a shard is compressed in a way that is not known",
            path=path,
            expected=", ".join(_DECOMPRESSORS),
            found=repr(shard.compression),
        )
    try:
        return decompress(stored, size)
    except (OSError, ValueError, EOFError, zlib.error, zstandard.ZstdError) as error:
        raise BadCompression(f"{name} cannot decode it: {error}", path=path) from None
    except cramjam.DecompressionError as error:
        raise BadCompression(f"{name} cannot decode it: {error}", path=path) from None


# Each stops one byte after the size that the index states: a wrong size shows, a bomb does not explode.


def _zstd(stored: memoryview, size: int) -> bytes:
    decompressor = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW)
    pieces: list[bytes] = []
    missing = size + 1
    with decompressor.stream_reader(stored, read_across_frames=True) as reader:
        while missing and (piece := reader.read(min(missing, _PIECE))):
            pieces.append(piece)
            missing -= len(piece)
    return b"".join(pieces)


def _gzip(stored: memoryview, size: int) -> bytes:
    return zlib.decompressobj(31).decompress(stored, size + 1)


def _bzip2(stored: memoryview, size: int) -> bytes:
    return bz2.BZ2Decompressor().decompress(stored, size + 1)


def _brotli(stored: memoryview, size: int) -> memoryview:
    out = np.empty(size + 1, np.uint8)
    return out.data[: cramjam.brotli.decompress_into(bytes(stored), out.data)]


def _snappy(stored: memoryview, size: int) -> memoryview:
    out = np.empty(size + 1, np.uint8)
    return out.data[: cramjam.snappy.decompress_raw_into(bytes(stored), out.data)]


_DECOMPRESSORS: Final[dict[str, Callable[[memoryview, int], bytes | memoryview]]] = {
    "br": _brotli,
    "bz2": _bzip2,
    "gz": _gzip,
    "snappy": _snappy,
    "zstd": _zstd,
}


def samples(shard: Shard, data: memoryview) -> Iterator[dict[str, memoryview]]:
    """The values of each sample as bytes, by column."""
    count = shard.samples
    head = 4 * (count + 2)
    if len(data) < head:
        raise Truncated(
            "a shard is too short for its samples",
            expected=f"at least {head} bytes",
            found=f"{len(data)} bytes",
        )
    stored = np.frombuffer(data[:head], "<u4")
    offsets = stored[1:].astype(np.int64)
    if int(stored[0]) != count:
        raise SizeMismatch(
            "a shard does not have as many samples as the index states",
            expected=count,
            found=int(stored[0]),
        )
    if int(offsets[0]) < head or int(offsets[-1]) > len(data) or np.any(np.diff(offsets) < 0):
        raise BadOffset(
            "the offsets of a shard run backwards or leave it",
            expected=f"{head} to {len(data)}",
            hint="MDS wraps offsets above 4 GiB: write smaller shards",
        )
    varying = [name for name, _, size in shard.columns if not size]
    for number, (start, stop) in enumerate(
        zip(offsets.tolist(), offsets[1:].tolist(), strict=False)
    ):
        sample = data[start:stop]
        position = 4 * len(varying)
        if len(sample) < position:
            raise _short(number, start, position, len(sample))
        sizes = iter(np.frombuffer(sample[:position], "<u4").tolist())
        values: dict[str, memoryview] = {}
        for name, _, fixed in shard.columns:
            end = position + (fixed or next(sizes))
            if end > len(sample):
                raise _short(number, start, end, len(sample))
            values[name] = sample[position:end]
            position = end
        if position != len(sample):
            raise _short(number, start, position, len(sample))
        yield values


def _short(number: int, start: int, expected: int, found: int) -> SizeMismatch:
    return SizeMismatch(
        f"the values of sample {number} do not fill it",
        offset=start,
        expected=f"{expected} bytes",
        found=f"{found} bytes",
    )
