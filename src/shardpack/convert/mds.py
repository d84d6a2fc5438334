"""From MDS, the format of MosaicML Streaming: an `index.json` and shards of samples with typed columns."""

from __future__ import annotations

import bz2
import hashlib
import json
import os
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import cramjam
import numpy as np
import xxhash
import zstandard

from shard_format._safe_paths import unsafe_form
from shard_format.errors import (
    BadCompression,
    BadMetadata,
    BadOffset,
    ChecksumMismatch,
    InvalidArgument,
    LimitExceeded,
    ShardError,
    SizeMismatch,
    Truncated,
    UnknownCodec,
    UnsafePath,
    UnsupportedVersion,
)
from shard_format.registry import DEFAULT_LIMITS, Limits
from shard_format.sources import FileSource
from shardpack._output import Output
from shardpack.convert._mds_values import converter
from shardpack.convert._names import row_key
from shardpack.convert._result import Converted
from shardpack.decoding import decode_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shardpack.convert._mds_values import Put

__all__ = ["from_mds"]

_INDEX: Final = "index.json"
_LARGEST_INDEX: Final = 100 << 20
_LARGEST_WINDOW: Final = 128 << 20
_PIECE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class _Shard:
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


def from_mds(
    folder: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    columns: Iterable[str] | None = None,
    key: str | None = None,
    check: bool = True,
    limits: Limits = DEFAULT_LIMITS,
    **options: Any,  # noqa: ANN401 - checked by the writer
) -> Converted:
    """Makes shards of an MDS data set, sample by sample; one of its shards is in memory if it is compressed.

    Bytes, text, JSON, JPEG and PNG become entries as they are, arrays and raw images `.npy` entries,
    lists of images numbered entries. Numbers become fields of the metadata of the record. Pickles are
    kept as bytes and never loaded. The columns and their encodings are in the metadata of the shards.

    Args:
        folder: where `index.json` is.
        output: one file, or `"train-%06d.shardpack"` for a set of shards.
        columns: only these; None for all.
        key: the column whose values are the keys, text or a number; None for the number of the sample.
        check: False skips the hashes that the index has for its shards.
        limits: raise `max_decompressed_bytes` for compressed shards above 1 GiB.
        options: `max_bytes` and `max_records` for a set, and what `ShardPackWriter` takes.

    Raises:
        ShardError: a subclass that says which file is missing or damaged.
    """
    root = os.fspath(folder)
    shards = _read_index(root)
    wanted = None if columns is None else list(columns)
    kinds = {name: encoding for shard in shards for name, encoding, _ in shard.columns}
    for name in (*(wanted or ()), *(() if key is None else (key,))):
        if name not in kinds:
            raise InvalidArgument(
                "there is no such column",
                path=root,
                expected=", ".join(map(repr, kinds)) or "columns",
                found=repr(name),
            )
    options.setdefault("metadata_encoding", "msgpack")
    options["metadata"] = {"mds_columns": kinds, **(options.get("metadata") or {})}
    records = 0
    with Output(output, **options) as writer:
        for shard in shards:
            puts = _converters(shard, wanted)
            data = _shard_bytes(shard, check, limits)
            try:
                for sample in _samples(shard, data):
                    entries: dict[str, Any] = {}
                    fields: dict[str, Any] = {}
                    for name, put in puts.items():
                        put(sample[name], entries, fields)
                    own = row_key(records) if key is None else _key(sample[key], key, kinds[key])
                    writer.write(own, entries, fields)
                    records += 1
            except ShardError as error:
                raise error.located(path=shard.path) from None
    return Converted(writer.paths, records)


def _key(value: memoryview, column: str, encoding: str) -> str:
    if encoding in ("str", "bytes"):
        return decode_text(value)
    fields: dict[str, Any] = {}
    converter(column, encoding)(value, {}, fields)
    if column not in fields:
        raise InvalidArgument(
            "this column cannot be the key", entry=column, expected="text or numbers"
        )
    return str(fields[column])


def _converters(shard: _Shard, wanted: list[str] | None) -> dict[str, Put]:
    return {
        name: converter(name, encoding)
        for name, encoding, _ in shard.columns
        if wanted is None or name in wanted
    }


# --- the index


def _read_index(root: str) -> list[_Shard]:
    path = os.path.join(root, _INDEX)
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
        return [_parse_shard(root, row) for row in fields["shards"]]
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, ShardError):
            raise error.located(path=path) from None
        raise BadMetadata(f"this is no index of an MDS data set: {error!r}", path=path) from None


def _parse_shard(root: str, row: dict[str, Any]) -> _Shard:
    if row["format"] != "mds" or row["version"] != 2:
        raise UnsupportedVersion(
            "only MDS, version 2, is read",
            expected="mds 2",
            found=f"{row['format']} {row['version']}",
        )
    raw, packed = row["raw_data"], row.get("zip_data")
    names, encodings, sizes = row["column_names"], row["column_encodings"], row["column_sizes"]
    columns = [
        (_of(str, name), _of(str, encoding), 0 if size is None else _of(int, size))
        for name, encoding, size in zip(names, encodings, sizes, strict=True)
    ]
    return _Shard(
        path=_path(root, raw["basename"]),
        compressed_path=None if packed is None else _path(root, packed["basename"]),
        compression=None if packed is None else _of(str, row["compression"]),
        size=_of(int, raw["bytes"]),
        compressed_size=0 if packed is None else _of(int, packed["bytes"]),
        hashes=dict(raw.get("hashes") or {}),
        compressed_hashes={} if packed is None else dict(packed.get("hashes") or {}),
        samples=_of(int, row["samples"]),
        columns=columns,
    )


def _of(kind: type[Any], value: Any) -> Any:  # noqa: ANN401 - of that type
    if type(value) is not kind or (kind is int and value < 0):
        raise ValueError(f"{value!r} is no {kind.__name__}")
    return value


def _path(root: str, name: str) -> str:
    reason = unsafe_form(_of(str, name))
    if reason is not None:
        raise UnsafePath("the index names an unsafe path", entry=name, found=reason)
    return os.path.join(root, *name.split("/"))


# --- the shards


def _shard_bytes(shard: _Shard, check: bool, limits: Limits) -> memoryview:
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
        make: Callable[[memoryview], Any] | None = None
        if name in hashlib.algorithms_guaranteed and not name.startswith("shake_"):
            make = getattr(hashlib, name)
        elif name in xxhash.algorithms_available:
            make = getattr(xxhash, name)
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


def _decompress(stored: memoryview, shard: _Shard, limits: Limits) -> bytes | memoryview:
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


def _samples(shard: _Shard, data: memoryview) -> Iterator[dict[str, memoryview]]:
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
